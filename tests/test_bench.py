"""corun bench in both forms on a tiny model, scripts/gpu_bench.sh, and the tables made of its output."""
import importlib.machinery
import importlib.util
import json
import os
import subprocess
import sys

import pytest

from conftest import CORUN, ROOT


@pytest.fixture(scope="module")
def table():
    loader = importlib.machinery.SourceFileLoader("gpu_table", str(ROOT / "tools" / "gpu_table"))
    sys.dont_write_bytecode = True
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_table", loader))
    loader.exec_module(module)
    return module


@pytest.fixture
def tiny(corun):
    r = subprocess.run([str(ROOT / "tools" / "model_config"), "tiny"], capture_output=True, check=True)
    (corun.folder / "config.json").write_bytes(r.stdout)
    return corun


def bench(corun, *args, code=0):
    r = corun("bench", "-m", "config.json", "--dummy-weights", "--device", "cpu", *args)
    assert r.returncode == code, r.stderr.decode()
    return r


def figures(corun, *args):
    rows = [json.loads(x) for x in bench(corun, "--json", "--warm", "0", *args).stdout.splitlines()]
    assert rows[0]["figure"] == "machine" and rows[0]["n_layer"] == 2
    return rows[1:]


def test_form_for_cpus(tiny):
    v = json.loads(bench(tiny, "--json", "--context", "64", "--prefill", "32", "--repeat", "1").stdout)
    assert set(v) == {"version", "isa", "threads", "context", "repeat", "decode", "prefill", "logprobs20"}
    assert [d["width"] for d in v["decode"]] == [1, 4, 16, 32]
    assert all(d["step_ms"] > 0 and d["matmul_ms"] > 0 for d in v["decode"])
    assert v["prefill"]["tokens"] == 32 and v["context"] == 64


def test_context_out_of_range(tiny):
    for context in ("0", "2147483647"):
        assert b"out of range" in bench(tiny, "--context", context, code=2).stderr


def test_steps(tiny):
    rows = figures(tiny, "--steps", "5x300,1x100", "--timed", "7", "--chunk", "128", "--policy", "free,corun")
    assert [(v["policy"], v["rows"]) for v in rows] == [("free", 5), ("free", 1), ("corun", 5), ("corun", 1)]
    for v in rows:
        want = 300 if v["rows"] == 5 else 100
        assert v["figure"] == "step" and abs(v["context"] - want) <= 1, v
        assert 0 < v["p10_ms"] <= v["median_ms"] <= v["p90_ms"]
        parts = sum(v[p] for p in ("products_ms", "attention_ms", "row_kernels_ms", "draws_ms"))
        assert v["parts_ms"] == pytest.approx(parts, rel=1e-3)
        assert v["ratio"] == pytest.approx(v["median_ms"] / parts, rel=1e-2)
        assert v["from"] <= v["to"] and len(v["identity"]) == 32


def test_prompts(tiny):
    rows = figures(tiny, "--prompts", "6x100,1x300", "--chunk", "256")
    assert [(v["prompts"], v["tokens"]) for v in rows] == [(6, 100), (1, 300)]
    for v in rows:
        assert v["seconds"] == sorted(v["seconds"]) and v["median_s"] in v["seconds"]
        assert v["tokens_per_s"] == pytest.approx(v["prompts"] * v["tokens"] / v["median_s"], rel=1e-2)


def test_jobs_give_the_same_bits(tiny):
    args = ("--jobs", "6x40/12,8x16-64", "--policy", "free,corun,dynamic")
    rows = figures(tiny, *args, "--chunk", "128") + figures(tiny, *args, "--chunk", "256", "--threads", "1")
    for job in ("6x40/12", "8x16-64"):
        same = [v for v in rows if v["job"] == job]
        assert len(same) == 6 and len({v["digest"] for v in same}) == 1, same
        assert len({(v["tokens_in"], v["tokens_out"]) for v in same}) == 1
    assert rows[0]["tokens_in"] == 240 and rows[0]["tokens_out"] == 72
    spread = next(v for v in rows if v["job"] == "8x16-64")
    assert 8 * 16 < spread["tokens_in"] < 8 * 64
    other = figures(tiny, "--jobs", "6x40/12", "--logprobs", "-1")
    assert other[0]["digest"] != rows[0]["digest"]  # no log-probabilities: other bits


def test_text(tiny):
    out = bench(tiny, "--warm", "0", "--steps", "2x80", "--prompts", "2x40", "--jobs", "2x16/4", "--timed", "3").stdout.decode()
    assert [x.split()[0] for x in out.splitlines()[1:]] == ["step", "prompts", "job"]


@pytest.mark.parametrize("args", [
    ["--steps", "256"], ["--steps", "0x10"], ["--steps", "2000x10"], ["--steps", "1x10,"], ["--steps", "1x10;2x20"],
    ["--steps", ",".join(["1x100"] * 17)], ["--prompts", "x"], ["--jobs", "4x10"], ["--jobs", "4x64-10"],
    ["--jobs", "4x1/0"], ["--policy", "fast", "--steps", "1x100"], ["--policy", "auto", "--steps", "1x100"],
    ["--steps", "1x100", "--context", "64"], ["--steps", "1x100", "--timed", "0"],
    ["--steps", "1x10", "--timed", "100"], ["--steps", "1x99999999"], ["--steps", "1x50000"],
    ["--steps", "1x100", "--warm", "-1"], ["--steps", "9x100", "--chunk", "4"], ["--repeat", "0"]])
def test_bad_use(tiny, args):
    r = bench(tiny, *args, code=2)
    assert r.stderr and b"internal" not in r.stderr


def test_script_and_its_lines(tmp_path):
    env = {**os.environ, "MODEL": "tiny", "DEVICE": "cpu", "ONLY": "steps short",
           "ARGS": "--steps 2x80 --prompts 2x40 --jobs 3x16/4 --timed 3 --warm 0 --policy free"}
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (bundle / "corun").symlink_to(CORUN)
    r = subprocess.run([str(ROOT / "scripts" / "gpu_bench.sh"), str(bundle), str(tmp_path), "mine"], env=env,
                       capture_output=True, text=True, timeout=120)
    assert r.returncode == 0, r.stdout + r.stderr
    rows = [json.loads(x) for x in (tmp_path / "mine.jsonl").read_text().splitlines()]
    assert [v["run"] for v in rows if "run" in v] == ["steps", "short"]
    assert all(v["exit"] == 0 for v in rows if "end" in v)
    assert [v["figure"] for v in rows if "figure" in v and v["figure"] != "machine"] == [
        "step", "prompts", "job"] * 2
    assert "tiny free" in r.stdout


def test_failing_run_is_kept_and_told(tmp_path):
    (tmp_path / "corun").write_text("#!/bin/sh\necho '{\"figure\": \"machine\"}'\nprintf '{\"figure\"'\nexit 4\n")
    (tmp_path / "corun").chmod(0o755)
    r = subprocess.run([str(ROOT / "scripts" / "gpu_bench.sh"), str(tmp_path), str(tmp_path), "bad"], text=True,
                       env={**os.environ, "MODEL": "tiny", "ONLY": "short"}, capture_output=True, timeout=60)
    assert r.returncode == 1 and "FAILED (4)" in r.stdout
    assert '"exit": 4' in (tmp_path / "bad.jsonl").read_text()


# ---- tables --------------------------------------------------------------------------------------

def test_tables_of_the_document():
    r = subprocess.run([str(ROOT / "tools" / "gpu_table"), "--check"], capture_output=True)
    assert r.returncode == 0, r.stdout.decode()


PARTS = {"products_ms": 6.0, "attention_ms": 12.0, "row_kernels_ms": 0.5, "draws_ms": 0.5, "parts_ms": 19.0,
         "products_floor_ms": 4.5, "attention_floor_ms": 9.0}
FREE = {"policy": "free", "identity": "0" * 32, "from": 1000000000.0, "to": 1000000002.0}


def write_run(folder, name, figures, card=""):
    rows = [{"run": "steps", "model": "qwen3-8b", "device": "", "command": ""}, {"figure": "machine", "weight_bytes": 2**34, "version": name}, *figures]
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(v) + "\n" for v in rows) + '{"figure": "st')
    (folder / f"{name}.csv").write_text(card)


def test_tables_of_figures(table, tmp_path):
    step = {"figure": "step", **FREE, "rows": 256, "context": 1535.5, "median_ms": 20.0, "ratio": 1.0526,
            "late": 0, "timed": 120, "wait_ms": 18.5, **PARTS}
    prompts = {"figure": "prompts", **FREE, "prompts": 1, "tokens": 8192, "median_s": 0.2, "tokens_per_s": 40960.0,
               "ratio": 1.05, **PARTS}
    jobs = [{"figure": "job", **FREE, "policy": p, "job": "256x1024/1024", "seconds": s, "tokens_per_s": 9000.0,
             "kv_bytes": 2**35, "steps_mixed": 33, "steps_prefill": 0, "steps_decode": 1023, "digest": "ab" * 16}
            for p, s in (("free", 27.5), ("dynamic", 27.0))]
    card = "".join(f"2001/09/09 01:46:{at:06.3f}, {mhz}, {watts}, 99, 60, 61440\n"
                   for at, mhz, watts in ((39.9, 1, 1), (40.2, 1500, 690), (41, 1520, 700), (41.5, 1540, 699), (43, 2, 2)))
    write_run(tmp_path, "a", [{**step, "median_ms": 99.0}])
    write_run(tmp_path, "b", [step, prompts, *jobs], card + "2001/09/09 01:4")
    text = table.tables(tmp_path)
    assert "| step, 256 x 1,536 | 20.00 ms | 20.4 ms; 19.5 | 1.053 | 1,520 MHz, 699 W | 22.4 / 26.2 |" in text
    assert "| prompts, 1 x 8,192 | 41.0 thousand tokens/s |" in text
    assert "| job 256x1024/1024, `free` | 27.50 s |" in text
    assert "job 256x1024/1024 | 1.019 |" in text
    assert "| qwen3-8b, `free` | step 256 x 1,536 | 20.00 | 6.00 (75) | 12.00 (75) | 0.50 | 0.50 | 1.00 |" in text
    assert "| qwen3-8b | 256x1024/1024 | `dynamic` | 27.00 | 9,000 | 33 / 1,023 | 1,520 MHz, 699 W | 12.00 GiB |" in text
    assert "step 256 x 1,536 | in 0 of 120 steps; the host waits 18.50 ms a step | 0 |" in text
    assert "Revisions: job: b; prompts: b; step: b." in text
    assert "| attention of a prompt of 8,192 | 585 TFLOP/s | 560 TFLOP/s; 620 |" in text
    assert text.count("not measured") == 8  # with the attention of a prompt of 32,768


def test_price_of_the_canonical_order(table, tmp_path, monkeypatch):
    (tmp_path / "x.plan").write_text(
        "corun-plan 1\ndevice 1 132 X\n# comment\n"
        "plan standard 6144 4096 none bf16 1 66 1 35 2 1 0 1 0 10000\nplan canonical 6144 4096 none bf16 1 66 1 35 2 1 0 1 0 12100\n"
        "plan standard 4096 4096 none bf16 8 66 1 35 2 1 0 1 0 10000\nplan canonical 4096 4096 none bf16 8 66 1 35 2 1 0 1 0 10000\n"
        "plan canonical 4096 4096 none bf16 4096 66 1 35 2 1 0 1 0 99999\n")
    monkeypatch.setattr(table, "PLANS", tmp_path)
    mean, (worst, shape, rows), _ = table.price_of("qwen3-8b")
    assert mean == pytest.approx(1.1) and (worst, shape, rows) == (pytest.approx(1.21), (6144, 4096), 1)


def test_start(tmp_path):
    """A model file is written once; each start is a line."""
    call = [str(ROOT / "tools" / "bench_start"), "--corun", str(CORUN), "--model", "tiny", "--device", "cpu",
            "--repeat", "2", str(tmp_path)]
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    rows = [json.loads(x) for x in subprocess.run(call, env=env, check=True, capture_output=True).stdout.splitlines()]
    assert [r["n"] for r in rows] == [1, 2]
    assert all(0 <= r["model_s"] and r["engine_s"] < r["first_token_s"] <= r["process_s"] + 0.02 for r in rows)
    written = (tmp_path / "tiny" / "model-00001-of-00001.safetensors").stat().st_mtime_ns
    subprocess.run(call, env=env, check=True, capture_output=True)
    assert (tmp_path / "tiny" / "model-00001-of-00001.safetensors").stat().st_mtime_ns == written
