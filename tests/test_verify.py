"""`corun verify`: every promise kept on the fakes that just allow it, and a weaker one seen to fail."""
import json
import re

import pytest
from conftest import ROOT, Corun, completion

RECIPES = "ABCDEFGHIJKLMNOPQR"
PROMISES = ("corun", "invariant", "free")


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("verify")
    p = Corun(folder)("verify", "-m", "fake:", "--json", "table.json", timeout=600)
    return p, json.loads((folder / "table.json").read_text())


def test_every_promise_is_kept_at_its_level(table):
    p, t = table
    assert p.returncode == 0, (p.stdout[-6000:] + p.stderr).decode()
    assert t["kept"] is True
    columns = {c["policy"]: c for c in t["columns"] if not c["level_too_low"]}
    for name in PROMISES:
        cells = columns[name]["recipes"]
        assert "".join(c["recipe"] for c in cells) == RECIPES
        assert {c["verdict"] for c in cells} <= {"kept", "n/a"}
        assert all(c["tokens_compared"] > 0 for c in cells if c["verdict"] == "kept")
        assert all(c["reason"] for c in cells if c["verdict"] == "n/a")
        assert columns[name]["distinct_tokens"] >= 200
    assert all("BROKEN" not in c["verdict"] for c in columns["dynamic"]["recipes"])


def test_one_level_lower_is_seen_to_fail(table):
    _, t = table
    for name in PROMISES:
        column, = [c for c in t["columns"] if c["policy"] == name and c["level_too_low"]]
        failed = {c["recipe"] for c in column["recipes"] if c["verdict"] == "differs"}
        assert {"A", "E"} <= failed, name
    dynamic, = [c for c in t["columns"] if c["policy"] == "dynamic"]
    assert "A" in {c["recipe"] for c in dynamic["recipes"] if c["differences"]}


def test_preemption_is_seen(table):
    _, t = table
    for name in PROMISES:
        column, = [c for c in t["columns"] if c["policy"] == name and not c["level_too_low"]]
        g, = [c for c in column["recipes"] if c["recipe"] == "G"]
        assert int(re.findall(r"one request (\d+) times", g["exercised"])[-1]) >= 2


def test_a_broken_promise_is_named(corun):
    p = corun("verify", "-m", "fake:run,run", "--policy", "corun", "--recipe", "a,P")
    assert p.returncode == 1
    assert re.search(rb"first difference: .*request \d+.*, token \d+: ", p.stdout)
    assert re.search(rb"^P identical rows +BROKEN", p.stdout, re.M)
    assert b"not kept" in p.stderr


def test_own_requests_are_the_needles(corun, tmp_path):
    lines = tmp_path / "in.jsonl"
    corun.write("in.jsonl", [completion(f"r{i}", "one two three " * (i + 1), max_tokens=40, n=1 + i,
                                        seed=i, temperature=0.9, logprobs=8) for i in range(3)])
    p = corun("verify", "-m", "fake:phase", "-i", lines, "--policy", "free", "--recipe", "AEGO")
    assert p.returncode == 0, (p.stdout + p.stderr).decode()
    p = corun("verify", "-m", "fake:run,run", "-i", lines, "--policy", "corun", "--recipe", "E")
    assert p.returncode == 1
    lines.write_text("{}\n")
    p = corun("verify", "-m", "fake:phase", "-i", lines, "--policy", "free")
    assert p.returncode == 2 and b"line 1: " in p.stderr


@pytest.mark.parametrize("args, text", [
    (["-m", "fake:", "--recipe", "X"], "no recipe 'X'"),
    (["-m", "fake:", "--policy", "best"], "best"),
    (["-m", "/nonexistent"], "/nonexistent"),
    ([], "no model"),
    (["-m", "fake:", "--requests", "7"], "--requests 7: not in 8 ... 512"),
    (["-m", "fake:", "--requests", "513"], "--requests 513: not in 8 ... 512"),
])
def test_bad_use(corun, args, text):
    p = corun("verify", *args)
    assert p.returncode == 2 and text in p.stderr.decode()


def test_few_requests_in_many_rows(corun):
    """Eight requests are compared, neighbours fill the rows of a wide step."""
    model = ROOT / "tests" / "data" / "golden" / "llama_plain"
    p = corun("verify", "-m", model, "--device", "cpu", "--requests", "8", "--slots", "24", "--policy",
              "corun", "--recipe", "AE", "--json", "t.json", timeout=120)
    assert p.returncode == 0, (p.stdout + p.stderr).decode()
    column, = json.loads((corun.folder / "t.json").read_text())["columns"]
    assert column["requests"] == 8
    for cell in column["recipes"]:
        assert cell["verdict"] == "kept" and cell["exercised"].endswith("up to 24") or \
            ", up to 24, " in cell["exercised"], cell
