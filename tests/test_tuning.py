"""corun tune where there is no device, and the tables of docs/tuning.md."""
import json
import subprocess

from conftest import ROOT

CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
          "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2,
          "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 256, "rms_norm_eps": 1e-5,
          "max_position_embeddings": 128, "rope_theta": 10000.0, "tie_word_embeddings": True,
          "bos_token_id": 1, "eos_token_id": 2}


def test_use(corun):
    for args, text in ((["-o", "t.plan"], b"no model is named"),
                       (["-m", "x"], b"no file is named"),
                       (["-m", "x", "-o", "t.plan", "--seconds", "0"], b"--seconds"),
                       (["-m", "nowhere", "-o", "t.plan"], b"nowhere")):
        r = corun("tune", *args)
        assert r.returncode == 2 and text in r.stderr, r.stderr
    r = corun("tune", "--help")
    assert r.returncode == 0 and b"--seconds" in r.stdout


def test_no_device_is_said(corun):
    (corun.folder / "config.json").write_text(json.dumps(CONFIG))
    r = corun("tune", "-m", ".", "-o", "t.plan", "--seconds", "1", timeout=60)
    if r.returncode == 0:  # there is a device
        assert (corun.folder / "t.plan").read_text().startswith("corun-plan 1\n")
        return
    assert r.returncode in (2, 4)
    assert b"CUDA" in r.stderr or b"Hopper" in r.stderr, r.stderr
    assert not (corun.folder / "t.plan").exists()


def test_tables_of_the_document():
    r = subprocess.run([str(ROOT / "tools" / "tuning_table"), "--check"], capture_output=True)
    assert r.returncode == 0, r.stdout.decode()
