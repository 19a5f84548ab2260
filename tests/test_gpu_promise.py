"""scripts/gpu_promise.sh, tried on the CPU with a tiny model: its files, its limits, its verdicts."""
import json
import os
import shutil
import subprocess

from conftest import CORUN, ROOT

TINY = ROOT / "tests" / "data" / "golden" / "llama_plain"


def run(folder, *parts, **env):
    bundle, models = folder / "bundle", folder / "models"
    if not bundle.exists():
        bundle.mkdir()
        (bundle / "corun").symlink_to(CORUN)
        (bundle / "version").write_text("corun test\n")
        for name in ("qwen3_8b", "llama3.1_8b"):
            shutil.copytree(TINY, models / name)
    return subprocess.run([str(ROOT / "scripts/gpu_promise.sh"), str(folder / "out"), *parts], cwd=ROOT,
                          capture_output=True, text=True, timeout=300,
                          env={**os.environ, "BUNDLE": str(bundle), "CONFIGS": str(models), "DEVICE": "cpu",
                               "CTX": "2048", "LENGTH": "1500", "KV": "1950K", "SLOTS": "12", **env})


def test_two_runs_have_one_digest(tmp_path):
    digests = []
    for _ in range(2):
        p = run(tmp_path, "machines")
        assert p.returncode == 0, p.stdout + p.stderr
        digests.append((tmp_path / "out/machines.digest").read_text())
    assert digests[0] == digests[1] and digests[0].count("identity") == 2
    report = json.loads((tmp_path / "out/machines.json").read_text())
    assert report["version"] == "corun test"
    assert [c["name"] for c in report["checks"]] == ["free", "corun", "digest"]
    assert all(c["exit"] == 0 and c["seconds"] >= 0 and c["command"] for c in report["checks"])
    assert report["checks"][2]["identity"] in digests[0]
    assert "== digest: exit 0" in (tmp_path / "out/machines.txt").read_text()


def test_long_prompt_rows(tmp_path):
    """The context of this model is too short for a piece of `invariant`: that is a failure, and said."""
    p = run(tmp_path, "long")
    assert p.returncode == 1
    report = json.loads((tmp_path / "out/long.json").read_text())
    assert {c["name"] for c in report["checks"] if c["exit"]} == {"same"}
    text = (tmp_path / "out/long.txt").read_text()
    for line in ("the same bytes in free_cut, free_one, free_warm", "the same bytes in corun_beside, corun_one",
                 "free_warm: prefix {'hits': '1', 'tokens': '1472'}", "invariant_warm: prefix {'hits': '0'"):
        assert line in text, text


def test_widths(tmp_path):
    """On the CPU `dynamic` gives equal rows: it was not seen to differ, and that is a failure."""
    p = run(tmp_path, "widths")
    assert p.returncode == 1
    text = (tmp_path / "out/widths.txt").read_text()
    assert "dynamic: 0 of 128 rows differ" in text and "free: 0 of 128 rows differ" in text
    report = json.loads((tmp_path / "out/widths.json").read_text())
    assert {c["name"] for c in report["checks"] if c["exit"]} == {"differ"}


def test_beside(tmp_path):
    p = run(tmp_path, "beside")
    assert p.returncode == 0, p.stdout + p.stderr
    report = json.loads((tmp_path / "out/beside.json").read_text())
    assert [c["name"] for c in report["checks"]] == ["alone", "one", "two", "same-one", "same-two"]


def test_time_is_kept(tmp_path):
    p = run(tmp_path, "machines", SECONDS_EACH="0")
    assert p.returncode == 1
    report = json.loads((tmp_path / "out/machines.json").read_text())
    assert [c["exit"] for c in report["checks"]] == [124] * 3
    assert (tmp_path / "out/machines.txt").read_text().count("the time of this part was over") == 3


def test_a_skip_is_no_proof(tmp_path):
    run(tmp_path, "machines", ONLY="none")
    program = tmp_path / "bundle/test_cuda_ops"
    program.write_text("#!/bin/sh\necho '[  SKIPPED ] test_norm'\n")
    program.chmod(0o755)
    p = run(tmp_path, "tests", ONLY="ops")
    assert p.returncode == 1 and "FAILED (77)" in p.stdout


def test_use(tmp_path):
    assert run(tmp_path, "nothing").returncode == 2
    p = run(tmp_path)
    assert p.returncode == 2 and "usage" in p.stdout


def test_another_machine(tmp_path):
    def digest(row, identity):
        for policy in ("free", "corun"):
            (tmp_path / f"{policy}.jsonl").write_text(
                "".join(json.dumps({"i": i, "row": row, "system_fingerprint": identity}) + "\n" for i in range(64)))
        return subprocess.run([str(ROOT / "scripts/gpu_requests.py"), "digest", str(tmp_path),
                               str(tmp_path / "new"), str(tmp_path / "old")], capture_output=True, text=True)
    p = digest("a", "x")
    assert p.returncode == 0 and "to hold it against" in p.stdout
    (tmp_path / "new").rename(tmp_path / "old")
    for row, identity, code, text in (("a", "x", 0, "as on the other machine"),
                                      ("a", "y", 0, "the same rows under another identity"),
                                      ("b", "y", 0, "other rows under another identity"),
                                      ("b", "x", 2, "OTHER rows under one identity")):
        p = digest(row, identity)
        assert p.returncode == code and p.stdout.count(text) == 2, p.stdout
