"""One result file on every machine: the tiny golden models with each instruction set, plain C,
several thread counts, another compiler, and an aarch64 build under qemu-user. Compared by bytes."""
import json
import os
import shutil
import subprocess

import pytest

from conftest import ROOT, completion

# What an engine measures when it opens grows with these; under qemu that would be minutes.
SMALL = ["--slots", "2", "--ctx", "128"]
MODELS = sorted(p.name for p in (ROOT / "tests" / "data" / "golden").iterdir() if p.is_dir())


def lines():
    out = []
    for i in range(6):
        body = {"max_tokens": 6, "logprobs": 5, "temperature": [0, 0.8, 1.3][i % 3]}
        out.append(completion(f"r{i}", [(7 * i + 11 * k) % 90 + 30 for k in range(3 + 20 * i)],
                              **body))
    return out


def run(corun, name, program, *options):
    """The rows of one run. The fingerprint is part of them: the identity must be equal too."""
    corun.write("in.jsonl", lines())
    r = subprocess.run([*program, "batch", "-m", ROOT / "tests" / "data" / "golden" / name, "-i",
                        "in.jsonl", "-o", "out.jsonl", "-q", "--strict", *SMALL, *options],
                       cwd=corun.folder, capture_output=True, timeout=600)
    assert r.returncode == 0, r.stderr.decode()
    return (corun.folder / "out.jsonl").read_bytes()


def other_build(preset):
    path = ROOT / "build" / preset / "corun"
    if not path.exists():
        if os.environ.get("CI"):
            pytest.fail(f"{path} is not built")
        pytest.skip(f"{path} is not built")
    return path


@pytest.mark.parametrize("name", MODELS)
def test_instruction_sets(corun, name):
    program = [ROOT / "build" / "corun"]
    want = run(corun, name, program)
    assert len(want.splitlines()) == 6
    used = set()
    for isa in ("avx512", "avx2", "neon", "generic"):
        info = subprocess.run([*program, "info", ROOT / "tests" / "data" / "golden" / name, "--json",
                               "--isa", isa], capture_output=True)
        if info.returncode == 0:
            used.add(json.loads(info.stdout)["isa"])
            assert run(corun, name, program, "--isa", isa) == want, isa
    assert "generic" in used
    for threads in (1, 2, 5):
        assert run(corun, name, program, "--threads", str(threads)) == want, threads


@pytest.mark.parametrize("name", MODELS)
def test_clang(corun, name):
    assert run(corun, name, [other_build("clang")]) == run(corun, name, [ROOT / "build" / "corun"])


@pytest.mark.parametrize("name", MODELS)
def test_aarch64(corun, name):
    other = other_build("aarch64")
    if not shutil.which("qemu-aarch64"):
        pytest.skip("qemu-user is not installed")
    got = run(corun, name, ["qemu-aarch64", other], "--threads", "2")
    assert got == run(corun, name, [ROOT / "build" / "corun"])
