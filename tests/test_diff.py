"""corun diff and corun replay: result files compared to the bit, rows run again alone."""
import gzip
import json
import random
import struct

import pytest

from conftest import chat, completion


def requests(n=12, **more):
    lines = []
    for i in range(n):
        body = {"max_tokens": 12, "ignore_eos": True, "logprobs": 2, **more}
        if i % 3 == 1:
            body = {"max_tokens": 12, "ignore_eos": True, "logprobs": True, "top_logprobs": 2,
                    "n": 2, **more}
            lines.append(chat(f"r{i:02d}", "abc" * (i + 1), **body))
        else:
            lines.append(completion(f"r{i:02d}", "xyz" * (i + 1), **body))
    return lines


def up(value):
    """The next fp32 number away from zero, in nine digits."""
    bits = struct.unpack("<I", struct.pack("<f", value))[0] + 1
    return float(f"{struct.unpack('<f', struct.pack('<I', bits))[0]:.9g}")


def write(corun, name, rows):
    (corun.folder / name).write_bytes(b"".join(json.dumps(r).encode() + b"\n" for r in rows))


@pytest.fixture
def rows(corun):
    return [json.loads(r) for r in corun.batch(requests(), "--metrics", "m.json")]


def diff(corun, code, *args):
    r = corun("diff", *args)
    assert r.returncode == code, (r.stdout + r.stderr).decode()
    return r.stdout.decode(), r.stderr.decode()


# ---- diff ----------------------------------------------------------------------------------------

def test_equal_in_any_order(corun, rows):
    random.Random(1).shuffle(rows)
    text = b"".join(json.dumps(r).encode() + b"\n" for r in rows)
    (corun.folder / "b.jsonl.gz").write_bytes(gzip.compress(text))
    out, _ = diff(corun, 0, "out.jsonl", "b.jsonl.gz")
    assert "A 12, B 12" in out and "equal              12\n" in out
    assert " 16 samples," in out and " 0 tokens" not in out


def test_ids_and_clocks_do_not_count(corun, rows):
    for r in rows:
        r["id"] = r["response"]["request_id"] = "x" + r["id"]
        r["response"]["body"].update(id="y", created=17, usage=None, model="other")
    write(corun, "b.jsonl", rows)
    diff(corun, 0, "out.jsonl", "b.jsonl")


def test_one_bit(corun, rows):
    """The last bit of one log-probability: the row, the token and the bit are named."""
    lps = rows[5]["response"]["body"]["choices"][0]["logprobs"]["token_logprobs"]
    lps[7] = up(lps[7])
    write(corun, "b.jsonl", rows)
    out, _ = diff(corun, 1, "out.jsonl", "b.jsonl")
    assert "different          1\n" in out and 'request "r05" (A line 6, B line 6)' in out
    bits = struct.unpack("<I", struct.pack("<f", lps[7]))[0]
    assert "sample 0, token 7: log-probability" in out and f"{bits:08x}" in out
    assert "token 4-7" in out


@pytest.mark.parametrize("place", ["token", "id", "top", "text", "finish", "bytes", "message",
                                   "short", "samples", "error"])
def test_each_kind(corun, place):
    """One difference of each kind in the second sample of a chat row is found and named."""
    rows = [json.loads(r) for r in corun.batch(requests(return_token_ids=True))]
    body = rows[4]["response"]["body"]
    c = body["choices"][1]
    entry = c["logprobs"]["content"][3]
    want = {"token": "sample 1, token 3: token", "id": "sample 1, token 3: token",
            "bytes": "sample 1, token 3: token", "top": "sample 1, token 3: alternatives",
            "text": "sample 1, character 2: text", "finish": "sample 1: end (finish_reason)",
            "message": "sample 1: message (reasoning)", "short": "sample 1, token 11: token",
            "samples": "number of choices: A 2, B 1", "error": "sample 0: error"}[place]
    if place == "token":
        entry["token"] += "x"
    elif place == "id":
        c["token_ids"][3] += 1
    elif place == "bytes":
        entry["bytes"] = [1, 2, 3, 4]
    elif place == "top":
        entry["top_logprobs"][1]["logprob"] = up(entry["top_logprobs"][1]["logprob"])
    elif place == "text":
        c["message"]["content"] = c["message"]["content"][:2] + "¤" + c["message"]["content"][3:]
    elif place == "finish":
        c["finish_reason"] = "other"
    elif place == "message":
        c["message"]["reasoning"] = "hm"
    elif place == "short":
        c["logprobs"]["content"].pop()
        c["token_ids"].pop()
    elif place == "samples":
        body["choices"].pop()
    else:
        rows[4]["response"] = {"status_code": 500, "body": {"error": {"message": "no"}}}
    write(corun, "b.jsonl", rows)
    for order in (["out.jsonl", "b.jsonl"], ["b.jsonl", "out.jsonl"]):
        out, _ = diff(corun, 1, *order)
        assert "different          1\n" in out
        assert (want if order[0] == "out.jsonl" else want.split(": A")[0]) in out, out


def test_first_token_may_come_after_first_bit(corun, rows):
    c = rows[0]["response"]["body"]["choices"][0]["logprobs"]
    c["token_logprobs"][1] = up(c["token_logprobs"][1])
    c["tokens"][9] += "!"
    write(corun, "b.jsonl", rows)
    out, _ = diff(corun, 1, "out.jsonl", "b.jsonl")
    table = {line.rsplit(None, 2)[0].strip(): line.split()[-2:] for line in out.splitlines()
             if line.startswith("  token")}
    assert table["token 1"] == ["1", "0"] and table["token 8-15"] == ["0", "1"]


def test_rows_missing_and_twice(corun, rows):
    twice = json.loads(json.dumps(rows[3]))
    write(corun, "b.jsonl", rows[2:] + [twice])
    out, err = diff(corun, 1, "out.jsonl", "b.jsonl")
    assert "only in one        A 2, B 1" in out and 'request "r03" stood in line 2 already' in err
    write(corun, "a.jsonl", rows + [twice])
    write(corun, "b.jsonl", [twice] + rows)
    diff(corun, 0, "a.jsonl", "b.jsonl")


def test_bad_lines_and_files(corun, rows):
    write(corun, "b.jsonl", rows)
    with open(corun.folder / "b.jsonl", "ab") as f:
        f.write(b"nonsense\n[1]\n")
    out, err = diff(corun, 2, "out.jsonl", "b.jsonl")
    assert "equal              12" in out and "b.jsonl: line 13" in err and "line 14" in err
    diff(corun, 2, "out.jsonl", "missing")
    diff(corun, 2, "out.jsonl")
    diff(corun, 2, "-", "-")


def test_text_without_logprobs(corun):
    """Another engine's rows: no log-probabilities, only text; the place is in characters."""
    def row(text):
        return {"custom_id": "a", "response": {"status_code": 200, "body": {
            "choices": [{"index": 0, "message": {"role": "assistant", "content": text}}]}}}
    write(corun, "a.jsonl", [row("h\u00e9llo w\u00f6rld")])
    write(corun, "b.jsonl", [row("h\u00e9llo w\u00fcrld")])
    out, _ = diff(corun, 1, "a.jsonl", "b.jsonl")
    assert 'character 7: text: A "\u00f6rld", B "\u00fcrld"' in out


def test_other_forms(corun):
    """Rows of lm-eval: paired by doc_id, compared as values, the path is named."""
    def row(doc, lp):
        return {"doc_id": doc, "doc": {"q": "x"}, "resps": [[[lp, False]], [[-2.5, True]]]}
    write(corun, "a.jsonl", [row(0, -1.5), row(1, -1.25)])
    write(corun, "b.jsonl", [row(1, up(-1.25)), row(0, -1.5)])
    out, _ = diff(corun, 1, "a.jsonl", "b.jsonl")
    assert "doc" not in out or 'request 1' in out
    assert "resps[0][0][0]" in out and "bfa00000" in out and "bfa00001" in out


def test_nul_in_a_key(corun):
    """Alternatives by text may be keyed by a NUL character; a change there is seen."""
    def row(key, lp):
        return {"custom_id": "a\u0000", "choices": [{"text": "\u0000", "logprobs": {
            "tokens": ["\u0000"], "token_logprobs": [-1.0], "top_logprobs": [{key: lp}]}}]}
    write(corun, "a.jsonl", [row("\u0000", -1.0)])
    write(corun, "b.jsonl", [row("\u0000", -1.5)])
    write(corun, "c.jsonl", [row("u0000", -1.0)])
    diff(corun, 0, "a.jsonl", "a.jsonl")
    assert "alternatives" in diff(corun, 1, "a.jsonl", "b.jsonl")[0]
    assert "alternatives" in diff(corun, 1, "a.jsonl", "c.jsonl")[0]


def test_scores(corun):
    corun.write("s.jsonl", [{"text": "abcdef"}, {"text": "xyz", "custom_id": "b"}])
    for name in ("a", "b"):
        assert corun("score", "-m", "fake:phase", "-i", "s.jsonl", "-o", name, "--top",
                     "2").returncode == 0
    out, _ = diff(corun, 0, "a", "b")
    assert " 0 log-probabilities" not in out
    rows = [json.loads(x) for x in (corun.folder / "b").read_bytes().splitlines()]
    rows[0]["token_logprobs"][2] = up(rows[0]["token_logprobs"][2])
    write(corun, "b", rows)
    out, _ = diff(corun, 1, "a", "b")
    assert "row of line 1" in out and "token 2: log-probability" in out
    assert corun("replay", "a", "-m", "fake:phase").returncode == 0
    r = corun("replay", "a", "-m", "fake:phase", "-i", "s.jsonl")
    assert r.returncode == 2 and b"a: holds scores: they are run from their rows, without -i" in r.stderr
    r = corun("replay", "b", "-m", "fake:phase")
    assert r.returncode == 1 and b"token 2: log-probability" in r.stdout


def test_identity_fields(corun, rows):
    corun.batch(None, "--page", "16", "--metrics", "m4.json")
    (corun.folder / "out.jsonl").rename(corun.folder / "b.jsonl")
    corun.batch(None)
    out, _ = diff(corun, 0, "out.jsonl", "b.jsonl", "--identity-a", "m.json", "--identity-b",
                  "m4.json")
    assert "  page_tokens: A 64, B 16\n" in out
    _, err = diff(corun, 2, "out.jsonl", "b.jsonl", "--identity-a", "m4.json")
    assert "m4.json: is the identity" in err


def test_text_only_is_said(corun):
    """Rows with neither token ids nor log-probabilities are compared by their text, which is said."""
    said = "text only: %d samples carry no log-probabilities or token ids; ask for logprobs or " \
           "return_token_ids\n"
    lines = [completion("a", "x", max_tokens=4, n=2), chat("b", "y", max_tokens=4),
             completion("c", "z", max_tokens=4, logprobs=0),
             completion("d", "z", max_tokens=4, return_token_ids=True),
             completion("e", "z", max_tokens=-1)]
    corun.batch(lines)
    out, _ = diff(corun, 0, "out.jsonl", "out.jsonl")
    assert said % 3 in out
    r = corun("replay", "out.jsonl", "-m", "fake:phase", "-i", "in.jsonl")
    assert r.returncode == 0 and said % 3 in r.stdout.decode()
    (corun.folder / "out.jsonl").rename(corun.folder / "plain.jsonl")
    corun.batch([completion("a", "x", max_tokens=4, n=2, logprobs=1)])
    out, _ = diff(corun, 1, "out.jsonl", "plain.jsonl")  # one file with them is not enough
    assert said % 2 in out
    out, _ = diff(corun, 0, "out.jsonl", "out.jsonl")
    assert "text only" not in out


# ---- replay --------------------------------------------------------------------------------------

def test_replay(corun, rows):
    command = ["replay", "out.jsonl", "-m", "fake:phase", "-i", "in.jsonl"]
    r = corun(*command)
    assert r.returncode == 0 and b"12 rows run again: 12 equal" in r.stdout, r.stderr
    lps = rows[6]["response"]["body"]["choices"][0]["logprobs"]["token_logprobs"]
    lps[4] = up(lps[4])
    write(corun, "out.jsonl", rows)
    r = corun(*command)
    assert r.returncode == 1 and b'request "r06" (line 7): sample 0, token 4' in r.stdout
    for choice, n, code in ((["--ids", "r06"], 1, 1), (["--ids", "r01,r02"], 2, 0),
                            (["--every", "4"], 3, 0), (["--every", "3"], 4, 1),
                            (["-n", "5"], 5, 0), (["-n", "99"], 12, 1)):
        r = corun(*command, *choice)
        assert r.returncode == code and b"%d rows run again" % n in r.stdout, choice
    for bad in (["--ids", "r99"], ["--ids", "r01", "-n", "1"], ["--every", "-1"]):
        assert corun(*command, *bad).returncode == 2


def test_replay_from_rows_alone(corun):
    """With return_token_ids a row holds all that its request was."""
    more = {"return_token_ids": True}
    lines = requests(6, **more) + [
        completion("s", "abcabc", max_tokens=30, n=3, stop=["q", "zz"], temperature=0.7, top_p=0.9,
                   logit_bias={"70": 3, "81": -2}, bad_words=["ab"], prompt_logprobs=2, **more),
        completion("m", ["abc", "abd"], max_tokens=9, seed=5, logprobs=0, min_tokens=4, **more),
        chat("c", "hello", max_tokens=20, stop_token_ids=[90],
             allowed_token_ids=list(range(60, 99)), logprobs=True, **more)]
    corun.batch(lines)
    (corun.folder / "in.jsonl").unlink()
    r = corun("replay", "out.jsonl", "-m", "fake:phase")
    assert r.returncode == 0 and b"9 rows run again: 9 equal" in r.stdout, (r.stdout, r.stderr)
    rows = [json.loads(x) for x in (corun.folder / "out.jsonl").read_bytes().splitlines()]
    for i, row in enumerate(rows):  # a wrong token in any of them is found
        body = row["response"]["body"]
        body["choices"][-1]["token_ids"][0] ^= 1
    write(corun, "out.jsonl", rows)
    r = corun("replay", "out.jsonl", "-m", "fake:phase")
    assert r.returncode == 1 and b"0 equal, 9 different" in r.stdout
    corun.batch([completion("e", "abc", echo=True, **more)])
    r = corun("replay", "out.jsonl", "-m", "fake:phase")
    assert r.returncode == 2 and b"it has an echo" in r.stderr
    corun.batch([completion("e", "abc")])
    r = corun("replay", "out.jsonl", "-m", "fake:phase")
    assert r.returncode == 2 and b"prompt_token_ids" in r.stderr


def test_replay_refuses_another_identity(corun, rows):
    command = ["replay", "out.jsonl", "-m", "fake:batch", "-i", "in.jsonl", "--identity", "m.json"]
    r = corun(*command)
    assert r.returncode == 1 and b"  weights: A" in r.stderr and b"rows run again" not in r.stdout
    r = corun(*command, "--force")
    assert r.returncode == 1 and b"12 rows run again: 0 equal" in r.stdout
    for row in rows:
        del row["response"]["body"]["system_fingerprint"]
    write(corun, "out.jsonl", rows)
    r = corun("replay", "out.jsonl", "-m", "fake:phase", "-i", "in.jsonl")
    assert r.returncode == 1 and b"identity none" in r.stderr
    write(corun, "out.jsonl", [{"custom_id": "a", "error": {"message": "x"}}])
    assert corun("replay", "out.jsonl", "-m", "fake:phase").returncode == 2


def test_replay_finds_a_broken_schedule(corun):
    """Rows of an ordinary engine over weak kernels are not those that each request gives alone."""
    corun.batch(requests(24), "--policy", "dynamic", model="fake:run")
    r = corun("replay", "out.jsonl", "-m", "fake:run", "--policy", "dynamic", "-i", "in.jsonl")
    assert r.returncode == 1 and b" 0 different" not in r.stdout
