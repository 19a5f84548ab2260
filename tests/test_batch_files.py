"""Files of a batch that are not what they should be: gzip, numbers, shards that do not fit."""
import gzip
import json

import pytest

from conftest import completion


def lines(n=9):
    return [completion(f"r{i}", "abc", max_tokens=2 + i % 3) for i in range(n)]


# ---- gzip ----------------------------------------------------------------------------------------

@pytest.mark.parametrize("source", ["in.jsonl.gz", "-"])
def test_gzip_members(corun, source):
    """Members that follow each other are one text, wherever they are cut."""
    want = b"".join(corun.batch(lines()))
    text = (corun.folder / "in.jsonl").read_bytes()
    for cuts in ([0], [10], [1, 300], [len(text) - 1], range(1, len(text), 50)):
        ends = [*cuts, len(text)]
        packed = b"".join(gzip.compress(text[a:b]) for a, b in zip([0, *ends], ends))
        (corun.folder / "in.jsonl.gz").write_bytes(packed)
        r = corun("batch", "-m", "fake:phase", "-i", source, "-o", "-", "-q", stdin=packed)
        assert r.returncode == 0 and r.stdout == want, r.stderr


@pytest.mark.parametrize("junk", [b"\0", b"\n", b"\x1f", b"\x1f\x8a", b'{"custom_id": "late"}\n', bytes(100000)],
                         ids=["nul", "line", "half", "magic", "row", "many"])  # pytest puts the id into the environment
def test_gzip_junk(corun, junk):
    corun.write("in.jsonl", lines())
    packed = gzip.compress((corun.folder / "in.jsonl").read_bytes())
    (corun.folder / "in.jsonl").write_bytes(packed + junk)
    r = corun("batch", "-m", "fake:phase", "-i", "in.jsonl", "-o", "out", "-q")
    assert r.returncode == 2 and f"byte {len(packed)}:".encode() in r.stderr, r.stderr
    assert not (corun.folder / "out").exists()


def test_gzip_cut_and_changed(corun):
    corun.write("in.jsonl", lines(40))
    packed = gzip.compress((corun.folder / "in.jsonl").read_bytes())
    for bad in [packed[:k] for k in (3, 10, 11, len(packed) // 2, len(packed) - 1)] + \
            [packed[:k] + bytes([packed[k] ^ 0x55]) + packed[k + 1:] for k in (2, 30, len(packed) - 2)] + \
            [packed + packed[:20]]:
        (corun.folder / "in.jsonl").write_bytes(bad)
        r = corun("batch", "-m", "fake:phase", "-i", "in.jsonl", "-o", "out", "-q")
        assert r.returncode == 2 and b"gzip" in r.stderr, r.stderr


# ---- numbers -------------------------------------------------------------------------------------

@pytest.mark.parametrize("number", ["18446744073709551615", "9223372036854775808", "-9223372036854775809"])
def test_number_too_large(corun, number):
    """The error row keeps its custom_id, and the others are as they are without it."""
    want = corun.batch(lines(3))
    bad = json.dumps(completion("big", "x", seed=7)).replace("7}", number + "}").encode()
    rows = corun.batch([lines(3)[0], bad, *lines(3)[1:]])
    row = json.loads(rows.pop(1))
    assert rows == want
    assert row["custom_id"] == "big" and row["response"]["status_code"] == 400
    assert "too " in row["response"]["body"]["error"]["message"]
    corun.write("s.jsonl", [b'{"custom_id": "k", "tokens": [%s]}' % number.encode()])
    r = corun("score", "-m", "fake:phase", "-i", "s.jsonl", "-q")
    row = json.loads(r.stdout)
    assert row["custom_id"] == "k" and row["error"]
    row = json.loads(corun.batch([b'{"custom_id": "k", "x": 1e999}'])[0])  # a real: the line is unreadable
    assert row["custom_id"] is None and row["line"] == 1


# ---- merge ---------------------------------------------------------------------------------------

@pytest.fixture
def shards(corun):
    """Three shards of ten lines, the input, and the whole."""
    text = lines(10)
    text[4] = completion("r4", "x", max_tokens=-1)  # an error row
    text[7] = completion("r2", "twice", max_tokens=2)
    whole = b"".join(corun.batch(text))
    for i in range(3):
        rows = b"".join(corun.batch(None, "--shard", f"{i}/3"))
        (corun.folder / f"s{i}").write_bytes(rows)
    return corun, whole


def merge(corun, *shards, code, text=b"", options=("-i", "in.jsonl")):
    r = corun("merge", "-o", "all.jsonl", *options, *shards)
    assert r.returncode == code, r.stderr
    assert text in r.stderr, r.stderr
    if code:
        assert not (corun.folder / "all.jsonl").exists()
    return r


def test_merge(shards):
    corun, whole = shards
    for options in ((), ("-i", "in.jsonl")):
        r = merge(corun, "s0", "s1", "s2", code=0, text=b"all.jsonl: 10 rows of 3 shards",
                  options=options)
        assert (corun.folder / "all.jsonl").read_bytes() == whole
        assert (b"warning: without -i" in r.stderr) == (not options)


def test_merge_without_input_warns(shards):
    """A missing shard fits into no check without -i: the number of rows and a warning remain."""
    corun, whole = shards
    r = merge(corun, "s0", "s1", code=0, options=())
    assert b"all.jsonl: 7 rows of 2 shards\n" in r.stderr
    assert b"warning: without -i IN.jsonl a shard that is missing" in r.stderr


def test_merge_of_wrong_shards(shards):
    corun, whole = shards
    merge(corun, "s0", "s1", code=2, text=b"line 2 is not the row of line 3 of in.jsonl")
    merge(corun, "s0", "s2", "s1", code=2, text=b"is not the row of line 2")
    merge(corun, "s0", "s1", "s2", "s2", code=2, text=b's2: line 1 answers custom_id "r2"')
    merge(corun, "s0", "s0", "s2", code=2, text=b"twice")
    merge(corun, "s0", "s0", "s2", code=2, text=b"s0: line 1 answers custom_id \"r0\"", options=())
    merge(corun, "s1", "s0", "s2", code=2, text=b"has a row more", options=())
    merge(corun, "s0", "s1", "none", code=2, text=b"none: No such file")
    merge(corun, "s0", "s1", "s2", code=2, text=b"No such file", options=("-i", "none"))
    merge(corun, "s0", "in.jsonl", code=2, text=b"no whole row of a batch", options=())
    corun.write("in.jsonl", lines(12))
    merge(corun, "s0", "s1", "s2", code=2, text=b"not the row of line 5")


def test_merge_into_its_input(shards):
    corun, whole = shards
    before = (corun.folder / "in.jsonl").read_bytes()
    for out in ("in.jsonl", "./in.jsonl", "s1"):
        r = corun("merge", "-o", out, "-i", "in.jsonl", "s0", "s1", "s2")
        assert r.returncode == 2 and b"the output is also an input" in r.stderr
    assert (corun.folder / "in.jsonl").read_bytes() == before


def test_merge_of_cut_shards(shards):
    corun, whole = shards
    full = [(corun.folder / f"s{i}").read_bytes() for i in range(3)]
    for i in range(3):
        rows = full[i].splitlines(keepends=True)
        for bad in (full[i][:-40], full[i][:-2], b"".join(rows[:-1]) + rows[-1][20:], b"",
                    b"".join(rows[:-1]), full[i] + rows[0], rows[0] + full[i],
                    b"".join([rows[1], rows[0], *rows[2:]])):
            (corun.folder / f"s{i}").write_bytes(bad)
            merge(corun, "s0", "s1", "s2", code=2)
        (corun.folder / f"s{i}").write_bytes(full[i])
    (corun.folder / "s2").write_bytes(full[2].rstrip(b"\n"))  # only the last line feed
    merge(corun, "s0", "s1", "s2", code=0)
    assert (corun.folder / "all.jsonl").read_bytes() == whole


def test_merge_of_two_identities(shards):
    corun, whole = shards
    other = b"".join(corun.batch(None, "--shard", "1/3", "--processed-logprobs"))
    (corun.folder / "s1").write_bytes(other)
    err = merge(corun, "s0", "s1", "s2", code=1, text=b"s1: line 1 has the identity").stderr.decode()
    prints = {json.loads(x)["response"]["body"].get("system_fingerprint")
              for x in (whole + other).splitlines()} - {None}
    assert len(prints) == 2 and all(p in err for p in prints)


def test_merge_of_error_rows_alone(corun):
    """A shard that answered nothing names what it ran with, too."""
    corun.write("in.jsonl", [completion("a", "x", max_tokens=2),
                             completion("b", "y" * 90, max_tokens=2)])
    whole = b"".join(corun.batch(None))
    for i, options in enumerate(((), ("--ctx", "50"))):
        rows = corun.batch(None, "--shard", f"{i}/2", *options)
        (corun.folder / f"s{i}").write_bytes(b"".join(rows))
    assert json.loads(rows[0])["response"]["status_code"] == 400
    merge(corun, "s0", "s1", code=1, text=b"s1: line 1 has the identity")
    (corun.folder / "s1").write_bytes(b"".join(corun.batch(None, "--shard", "1/2")))
    merge(corun, "s0", "s1", code=0)
    assert (corun.folder / "all.jsonl").read_bytes() == whole
