"""`corun split` and `corun batch --pieces`: pieces in any order give the rows of one run."""
import gzip
import json
import random
import subprocess
import time

import pytest

from conftest import completion



def awkward(n=60, seed=1):
    """Lines with duplicates, blanks, bad JSON, CRLF, no custom_id; the last has no line feed."""
    r = random.Random(seed)
    lines = [json.dumps(completion(f"r{r.randrange(n * 3 // 4)}", f"p{i}", max_tokens=r.randrange(30),
                                   n=1 + i % 2)).encode() for i in range(n)]
    for i, line in {3: b"", 4: b" \t", 7: b"{bad", 11: lines[11] + b"\r", 20: b"[]",
                    21: b"", 30: b'{"custom_id": "nul\\u0000", "x": 1}', 31: b'{"x": 1}',
                    44: b'{"custom_id": "nul\\u0000", "y": 1}', 45: b"\xff\xfe"}.items():
        lines[i] = line
    return b"\n".join(lines)


def pieces_of(raw):
    """The output of split as (header, text)."""
    out = []
    while raw:
        head, _, raw = raw.partition(b"\n")
        n = json.loads(head)["bytes"]
        out.append((head + b"\n", raw[:n]))
        raw = raw[n:]
    return out


@pytest.fixture
def awkward_run(corun):
    (corun.folder / "in.jsonl").write_bytes(awkward())
    return b"".join(corun.batch(None))


def run_pieces(corun, pieces, *options):
    r = corun("batch", "--pieces", "-m", "fake:phase", "-i", "-", "-o", "-", "-q", *options,
              stdin=b"".join(h + t for h, t in pieces))
    assert r.returncode == 0, r.stderr.decode()
    first, _, rows = r.stdout.partition(b"\n")
    assert set(json.loads(first)) == {"release", "identity", "pool_pages", "served_model_name",
                                      "numeric"}
    return rows


@pytest.mark.parametrize("rows", [1, 2, 7, 1000])
def test_pieces_in_order_are_the_file(corun, awkward_run, rows):
    pieces = pieces_of(corun("split", "-i", "in.jsonl", "--rows", rows).stdout)
    heads = [json.loads(h) for h, _ in pieces]
    assert [h["piece"] for h in heads] == list(range(len(heads)))
    assert all(h["rows"] <= rows for h in heads)
    assert run_pieces(corun, pieces) == awkward_run


def test_pieces_in_any_order_alone_and_twice(corun, awkward_run):
    pieces = pieces_of(corun("split", "-i", "in.jsonl", "--rows", 5).stdout)
    order = list(range(len(pieces))) * 2
    random.Random(3).shuffle(order)
    rows = run_pieces(corun, [pieces[i] for i in order]).splitlines(keepends=True)
    got = {}
    for i in order:
        n = json.loads(pieces[i][0])["rows"]
        mine, rows = b"".join(rows[:n]), rows[n:]
        assert got.setdefault(i, mine) == mine
    assert b"".join(got[i] for i in range(len(pieces))) == awkward_run


def test_the_test_sees_a_lost_duplicate(corun, awkward_run):
    """Without `taken` a second request with the same custom_id would run."""
    pieces = pieces_of(corun("split", "-i", "in.jsonl", "--rows", 5).stdout)
    bare = [(json.dumps({**json.loads(h), "taken": []}).encode() + b"\n", t) for h, t in pieces]
    assert bare != pieces and run_pieces(corun, bare) != awkward_run
    one = [(json.dumps({**json.loads(h), "line": 1}).encode() + b"\n", t) for h, t in pieces]
    assert run_pieces(corun, one) != awkward_run


def test_gzip_size_and_long_lines(corun):
    long = json.dumps(completion("long", "x" * (17 << 20))).encode()
    lines = [completion("a", "x", max_tokens=3), long, completion("b", "y", max_tokens=3)]
    want = b"".join(corun.batch(lines))
    (corun.folder / "in.jsonl.gz").write_bytes(
        gzip.compress((corun.folder / "in.jsonl").read_bytes(), 1))
    for name in ("in.jsonl", "in.jsonl.gz"):
        out = corun("split", "-i", name, "--bytes", 100).stdout
        pieces = pieces_of(out)
        assert len(pieces) == 3 and len(pieces[1][1]) == (16 << 20) + 2
        assert run_pieces(corun, pieces) == want


def test_many_blank_lines_make_no_large_piece(corun):
    raw = b"\n" * 9999 + json.dumps(completion("a", "x", max_tokens=2)).encode() + b"\n" * 50000
    (corun.folder / "in.jsonl").write_bytes(raw + b"{bad")
    want = b"".join(corun.batch(None))
    pieces = pieces_of(corun("split", "-i", "in.jsonl").stdout)
    assert [json.loads(h)["line"] for h, _ in pieces] == [10000, 60000]
    assert run_pieces(corun, pieces) == want and b'"line":60000' in want


@pytest.mark.parametrize("head, text", [
    (b"{}", b'"piece"'), (b"[]", b'"piece"'), (b"{bad", b"line 1: header of a piece"),
    (b'{"piece":0,"line":0,"rows":1,"bytes":1,"taken":[]}', b'"line"'),
    (b'{"piece":0,"line":1,"rows":0,"bytes":1,"taken":[]}', b'"rows"'),
    (b'{"piece":0,"line":1,"rows":70000,"bytes":1,"taken":[]}', b'"rows"'),
    (b'{"piece":0,"line":1,"rows":1,"bytes":1,"taken":1}', b'"taken"'),
    (b'{"piece":0,"line":1,"rows":1,"bytes":1,"taken":["x"]}', b"taken[0]"),
    (b'{"piece":0,"line":1,"rows":3,"bytes":1,"taken":[]}', b"ends inside a piece"),
])
def test_bad_headers(corun, head, text):
    r = corun("batch", "--pieces", "-m", "fake:phase", "-i", "-", "-o", "-",
              stdin=head + b"\n" + json.dumps(completion("a", "x", max_tokens=1)).encode())
    assert r.returncode == 2 and text in r.stderr, r.stderr


@pytest.mark.parametrize("options", [("-o", "out.jsonl"), ("-o", "-", "--shard", "0/2"),
                                     ("-o", "-", "--check")])
def test_what_pieces_do_not_go_with(corun, options):
    r = corun("batch", "--pieces", "-m", "fake:phase", "-i", "-", *options)
    assert r.returncode == 2 and b"--pieces" in r.stderr


def test_a_stream_that_waits_does_not_hold_rows_back(corun):
    """The rows of a piece come while the next one is not there yet."""
    corun.write("in.jsonl", [completion(f"r{i}", "x", max_tokens=20, ignore_eos=True)
                             for i in range(8)])
    pieces = pieces_of(corun("split", "-i", "in.jsonl", "--rows", 4).stdout)
    p = corun.start("batch", "--pieces", "-m", "fake:phase", "-i", "-", "-o", "-", "-q",
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        p.stdout.readline()
        for head, text in pieces:
            p.stdin.write(head + text)
            p.stdin.flush()
            begin = time.monotonic()
            assert [json.loads(p.stdout.readline())["error"] for _ in range(4)] == [None] * 4
            assert time.monotonic() - begin < 30
        p.stdin.close()
        assert p.stdout.read() == b"" and p.wait(30) == 0
    finally:
        p.kill()
        p.wait()


@pytest.mark.parametrize("options, text", [((), b"no input"), (("-i", "none"), b"No such file"),
                                           (("-i", "x", "--rows", "0"), b"--rows"),
                                           (("-i", "x", "--bytes", "1G"), b"--bytes")])
def test_bad_use_of_split(corun, options, text):
    r = corun("split", *options)
    assert r.returncode == 2 and text in r.stderr


