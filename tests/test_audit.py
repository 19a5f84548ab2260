"""corun audit end to end on a tiny model: the table, what is kept, what a kept failure does,
--diff."""
import json
import shutil
import subprocess

import pytest

from conftest import ROOT, completion

MODEL = ROOT / "tests" / "data" / "golden" / "qwen3_tied"
OPTIONS = ("--slots", "4", "--ctx", "100", "--page", "16", "--threads", "1")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "corun" / "audit"


def kept(cache):
    return sorted(cache.glob("*"))


def test_table(corun, cache):
    r = corun("audit", "-m", MODEL, *OPTIONS, "--json", "a.json")
    assert r.returncode == 0, r.stderr
    lines = r.stdout.decode().splitlines()
    for op in ("embed", "norm", "matmul", "qkv_post", "attention (decode)", "attention (prefill)",
               "silu_mul", "logits", "sample"):
        rows = [x for x in lines if x.startswith(op)]
        assert len(rows) >= 3 and all(" phase " in x for x in rows), op
    a = json.loads((corun.folder / "a.json").read_text())
    assert a["form"] == "quick" and a["identity"]["backend"] == "cpu"
    assert all(c["level"] == c["declared"] == "phase" and c["compared"] > 100 for c in a["cases"])
    assert [p.suffix for p in kept(cache)] == [".json"]
    assert kept(cache)[0].read_bytes() == (corun.folder / "a.json").read_bytes()
    # the engine of the same options takes this result and measures nothing
    stamp = kept(cache)[0].stat()
    corun.batch([completion("x", "ab", max_tokens=3)], *OPTIONS, model=str(MODEL))
    assert len(kept(cache)) == 1 and kept(cache)[0].stat().st_mtime_ns == stamp.st_mtime_ns


def test_report_that_cannot_be_written(corun, cache):
    """Before anything is measured."""
    r = corun("audit", "-m", MODEL, *OPTIONS, "--json", "no/a.json")
    assert r.returncode == 2 and b"no/a.json" in r.stderr and not r.stdout and not kept(cache)


def test_kept_failure(corun, cache):
    assert corun("audit", "-m", MODEL, *OPTIONS).returncode == 0
    a = json.loads(kept(cache)[0].read_text())
    for c in a["cases"]:
        if c["op"] == "matmul" and c["set"] == "canonical":
            c["level"], c["why"] = "batch", "prefill 1x61 row 0 has other bits than decode 4x1 row 0"
    kept(cache)[0].write_text(json.dumps(a))
    corun.write("in.jsonl", [completion("x", "ab", max_tokens=3)])
    args = ("batch", "-m", MODEL, "-i", "in.jsonl", "-o", "out.jsonl", "-q", *OPTIONS)
    r = corun(*args, "--policy", "free")
    assert r.returncode == 1
    for word in ("policy free", "matmul", "canonical", "level batch", "needs phase", "1x61",
                 "corun audit"):
        assert word in r.stderr.decode(), word
    assert not (corun.folder / "out.jsonl").exists()
    for policy in ("corun", "invariant", "dynamic", "auto"):
        assert corun(*args, "--policy", policy).returncode == 0, policy
    r = corun("info", MODEL, "--identity", "--json", *OPTIONS)
    assert json.loads(r.stdout)["identity"]["policy"] == "corun"  # what auto became
    assert corun("audit", "-m", MODEL, *OPTIONS).returncode == 0  # measured again
    assert corun(*args, "--policy", "free").returncode == 0


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe", b"[" * 100000, b'{"identity":{}}'])
def test_bad_file(corun, cache, text):
    line = [completion("x", "ab", max_tokens=3)]
    corun.batch(line, *OPTIONS, model=str(MODEL))
    good = kept(cache)[0]
    size = good.stat().st_size
    good.write_bytes(text)
    corun.batch(line, *OPTIONS, model=str(MODEL))
    assert good.stat().st_size > size - 500 and len(kept(cache)) == 1


def test_no_folder(corun, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    corun.batch([completion("x", "ab", max_tokens=3)], *OPTIONS, model=str(MODEL))
    r = corun("audit", "-m", MODEL, *OPTIONS)
    assert r.returncode == 0 and b"not kept" in r.stdout


def test_diff(corun, cache):
    for name, slots in (("a", "4"), ("b", "4"), ("c", "5")):
        r = corun("audit", "-m", MODEL, "--ctx", "100", "--page", "16", "--threads", "1", "--slots",
                  slots, "--json", f"{name}.json")
        assert r.returncode == 0
    r = corun("audit", "--diff", "a.json", "b.json")
    assert (r.returncode, r.stdout) == (0, b"0 differences\n")
    r = corun("audit", "--diff", "a.json", "c.json")
    assert (r.returncode, r.stdout) == (1, b"  width: A 4, B 5\n1 differences\n")
    b = json.loads((corun.folder / "b.json").read_text())
    b["cases"][0]["level"] = "run"
    b["cases"][1]["bits"] = "0" * 32
    del b["cases"][2]
    (corun.folder / "b.json").write_text(json.dumps(b))
    r = corun("audit", "--diff", "a.json", "b.json")
    assert r.returncode == 1 and r.stdout.endswith(b"3 differences\n"), r.stdout
    # identities, and result files, which carry only its digest
    for policy in ("free", "corun"):
        r = corun("info", MODEL, "--identity", "--json", *OPTIONS, "--policy", policy)
        (corun.folder / f"{policy}.json").write_bytes(r.stdout)
        corun.batch([completion(f"x{i}", "ab", max_tokens=3) for i in range(3)], *OPTIONS, "--policy",
                    policy, model=str(MODEL))
        (corun.folder / "out.jsonl").rename(corun.folder / f"{policy}.jsonl")
    r = corun("audit", "--diff", "free.json", "corun.json")
    assert r.returncode == 1 and b'policy: A "free", B "corun"' in r.stdout
    r = corun("audit", "--diff", "free.jsonl", "corun.jsonl")
    assert r.returncode == 1 and b"system_fingerprint" in r.stdout
    assert corun("audit", "--diff", "free.jsonl", "free.jsonl").returncode == 0
    r = corun("audit", "--diff", "a.json", "free.json")
    assert r.returncode == 2 and b"the other is not" in r.stderr


@pytest.mark.parametrize("args", [(), ("-m", "fake:phase"), ("--diff",), ("--diff", "a"),
                                  ("--diff", "a", "b"), ("x",), ("-m", MODEL, "--slots", "0"),
                                  ("-m", MODEL, "--page", "17"), ("-m", MODEL, "--ctx", "99999"),
                                  ("-m", MODEL, "--diff", "a", "b")])
def test_bad_use(corun, cache, args):
    r = corun("audit", *args)
    assert r.returncode == 2 and r.stderr.startswith(b"corun"), r.stderr
    assert not kept(cache)


def test_sources_hold_the_flags(tmp_path):
    """Kept results are those of one build: other sources, tools or flags give another digest."""
    tree = tmp_path / "tree"
    for name in ("src/ops", "src/base", "src/step", "src/model", "cmake"):
        shutil.copytree(ROOT / name, tree / name)
    shutil.copy(ROOT / "CMakeLists.txt", tree)

    def digest(tools="cc"):
        subprocess.run(["cmake", f"-DOUT={tmp_path}/sources.h", f"-DSRC={tree}",
                        f"-DTOOLS={tools}", "-P", str(tree / "cmake" / "write_sources.cmake")],
                       check=True)
        return (tmp_path / "sources.h").read_text()

    want = digest()
    assert digest() == want != digest("other")
    for name, old, new in (("CMakeLists.txt", "-ffp-contract=off", "-ffp-contract=fast"),
                           ("cmake/isa.cmake", "-mprefer-vector-width=512", "-ffast-math"),
                           ("cmake/cuda.cmake", "-O3", "-O1"),
                           ("src/ops/ref_cpu.c", "fmaf(", "faf(")):
        path = tree / name
        text = path.read_text()
        assert old in text, name
        path.write_text(text.replace(old, new))
        assert digest() != want, name
        path.write_text("# a comment\n" + text if "cmake" in name.lower() else "/* one */" + text)
        assert digest() == want, name
        path.write_text(text)


def test_table_of_the_document():
    r = subprocess.run([str(ROOT / "tools" / "audit_table"), "--check"], capture_output=True)
    assert r.returncode == 0, r.stdout.decode()
