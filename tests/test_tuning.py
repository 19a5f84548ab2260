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


def test_a_plan_of_the_user(corun, tmp_path):
    """A table that cannot serve is an error with its name, on every machine and for every command."""
    config = tmp_path / "model"
    config.mkdir()
    (config / "config.json").write_text(json.dumps({**CONFIG, "vocab_size": 320}))
    bad = tmp_path / "bad.plan"
    bad.write_text("corun-plan 1\ndevice 130100 132 NVIDIA H200\nplan canonical 8 8 none bf16 1 7 1 1 0 0 0 1 0 5\n")
    good = tmp_path / "good.plan"
    good.write_text("corun-plan 1\ndevice 130100 132 NVIDIA H200\n")
    for command in (["info"], ["verify"], ["audit"], ["bench"]):
        m = ["-m", config, "--dummy-weights", "--device", "cpu"]
        r = corun(*command, *m, "--plan", tmp_path / "none.plan")
        assert r.returncode == 2 and b"none.plan" in r.stderr, r.stderr
        r = corun(*command, *m, "--plan", bad)
        assert r.returncode == 2 and b"bad.plan: line 3: the algorithm id is none of" in r.stderr, r.stderr
        r = corun(*command, *m, "--plan", good)
        assert r.returncode == 2 and b"a plan table serves a CUDA device" in r.stderr, r.stderr
    r = corun("info", "-m", "fake:phase", "--plan", good)
    assert r.returncode == 2 and b"a plan table serves a CUDA device" in r.stderr, r.stderr


def test_tables_of_the_document():
    r = subprocess.run([str(ROOT / "tools" / "tuning_table"), "--check"], capture_output=True)
    assert r.returncode == 0, r.stdout.decode()
