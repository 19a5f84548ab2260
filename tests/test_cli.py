"""The program as a user sees it: commands, files, exit codes, batches on the fake model."""
import gzip
import json
import os
import pty
import random
import re
import shutil
import signal
import time

import pytest

from conftest import CORUN, ROOT, chat, completion


def mixed(n=24, seed=3):
    """Requests of many kinds and lengths."""
    rng = random.Random(seed)
    lines = []
    for i in range(n):
        prompt = "".join(rng.choice("abcdefgh ") for _ in range(rng.choice([1, 5, 20, 90])))
        body = {"max_tokens": rng.choice([1, 3, 8, 30])}
        body.update(rng.choice([{"temperature": 0}, {}, {"temperature": 0.7, "top_k": 20},
                                {"top_p": 0.5}, {"min_p": 0.1, "seed": i}, {"n": 3},
                                {"logprobs": 2}, {"n": 2, "logprobs": 1, "echo": True}]))
        if i % 4 == 0:
            for key in ("logprobs", "echo"):
                body.pop(key, None)
            lines.append(chat(f"r{i:03d}", prompt, **body))
        else:
            lines.append(completion(f"r{i:03d}", prompt, **body))
    return lines


def by_id(rows):
    return sorted(rows, key=lambda row: json.loads(row)["custom_id"])


# ---- words and exit codes ------------------------------------------------------------------------

def test_help(corun):
    for args in (["--help"], ["help"], ["batch", "--help"], ["help", "run"], ["--version"]):
        r = corun(*args)
        assert r.returncode == 0 and r.stdout and not r.stderr
    assert b"128 + n" in corun("--help").stdout


@pytest.mark.parametrize("args", [
    [], ["fly"], ["batch"], ["batch", "-m", "fake:phase"], ["batch", "--what"],
    ["run", "-m", "fake:phase"], ["run", "-m", "missing.gguf", "-p", "x"],
    ["run", "-m", "fake:nonsense", "-p", "x"], ["info"], ["info", "a", "b"], ["info", "missing"],
    ["run", "-m", "fake:phase", "-p", "x", "--slots", "x"],
    ["run", "-m", "fake:phase", "-p", "x", "--slots", "0"],
    ["run", "-m", "fake:phase", "-p", "x", "--page", "7"],
    ["run", "-m", "fake:phase", "-p", "x", "--kv", "1Q"],
    ["run", "-m", "fake:phase", "-p", "x", "--kv", "1"],
    ["run", "-m", "fake:phase", "-p", "x", "--policy", "fast"],
    ["run", "-m", "fake:phase", "-p", "x", "--temperature", "3"],
    ["run", "-m", "fake:phase", "-p", "x", "--temperature=-1"],
    ["run", "-m", "fake:phase", "-p", "x", "--top-p=-1"],
    ["run", "-m", "fake:phase", "-p", "x", "--min-p=-0.5"],
    ["run", "-m", "fake:phase", "-p", "x", "--top-k=-2"],
    ["run", "-m", "fake:phase", "-p", "x", "--max-tokens=-1"],
    ["replay", "x", "-m", "fake:phase", "-n", "0"],
    ["replay", "x", "-m", "fake:phase", "--every", "0"],
    ["run", "-m", "fake:phase", "-p", "x", "--date", "yesterday"],
    ["run", "-m", "fake:phase", "-p", "x", "--quiet=1"],
    ["merge"], ["merge", "-o", "x"], ["score", "-m", "fake:phase", "--top", "21"],
])
def test_bad_use(corun, args):
    r = corun(*args)
    assert r.returncode == 2, r.stderr
    assert r.stderr or not args


def test_stdout_full(corun):
    with open("/dev/full", "wb") as full:
        assert corun.start("info", "fake:phase", stdout=full, stderr=-3).wait(60) == 4
    corun.write("in.jsonl", mixed(3))
    with open("/dev/full", "wb") as full:
        p = corun.start("batch", "-m", "fake:phase", "-i", "in.jsonl", "-o", "-", "-q",
                        stdout=full, stderr=-3)
        assert p.wait(60) == 4


@pytest.mark.parametrize("shard", ["0/99999999999999999999", "0/-1", "0/ 2", "+0/2"])
def test_shard_is_plain_numbers(corun, shard):
    corun.write("in.jsonl", mixed(3))
    assert corun("batch", "-m", "fake:phase", "-i", "in.jsonl", "-o", "out", "--shard",
                 shard).returncode == 2


def test_metrics_is_output(corun):
    corun.write("in.jsonl", mixed(3))
    for metrics in ("o", "./o", str(corun.folder / "o"), "here/o", "o.corun-journal", ".o.corun-part"):
        (corun.folder / "here").exists() or (corun.folder / "here").symlink_to(".")
        r = corun("batch", "-m", "fake:phase", "-i", "in.jsonl", "-o", "o", "--metrics", metrics)
        assert r.returncode == 2 and b"one place" in r.stderr, metrics
        assert sorted(os.listdir(corun.folder)) == ["here", "in.jsonl"]


def test_output_is_the_model(corun, tmp_path):
    """A file that a model is made of is no place for an output."""
    folder = corun.folder / "model"
    shutil.copytree(ROOT / "tests/data/golden/llama_plain", folder)
    for name in ("golden.json", "golden.bin"):  # not the model's
        (folder / name).unlink()
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    corun.write("in.jsonl", [completion("a", "x", max_tokens=1)])
    commands = (["batch", "-i", "in.jsonl", "-o"], ["score", "-i", "in.jsonl", "-o"],
                ["batch", "-i", "in.jsonl", "-o", "out", "--metrics"], ["verify", "--json"], ["audit", "--json"])
    for args in commands:
        for name in before:
            r = corun(*args, f"model/{name}", "-m", "model")
            assert r.returncode == 2 and b"file of the model" in r.stderr, (args, name, r.stderr)
        r = corun(*args, "./model/../model/config.json", "-m", "model/config.json", "--dummy-weights")
        assert r.returncode == 2 and b"also an input" in r.stderr, (args, r.stderr)
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before
    for _ in range(2):  # a result in the folder is none of its files
        r = corun("batch", "-i", "in.jsonl", "-o", "model/rows.jsonl", "-m", "model", "-q")
        assert r.returncode == 0, r.stderr


def test_run_refuses_what_is_not_utf8(corun):
    for args in (["-p", "a\udcffb"], ["-p", "a", "--system", "\udcff"], ["-p", "a", "--stop", "\udcff"]):
        r = corun("run", "-m", "fake:phase", *args)
        assert r.returncode == 2 and b"UTF-8" in r.stderr, r.stderr
    r = corun("run", "-m", "fake:phase", "-p", "-", "--raw", stdin=b"a\xffb")
    assert r.returncode == 2 and b"byte 1 is not UTF-8" in r.stderr
    r = corun("run", "-m", "fake:phase", "-p", "-", "--raw", stdin=b"a" * (17 << 20))
    assert r.returncode == 2 and r.stderr
    corun.write("in.jsonl", mixed(3))
    r = corun("batch", "-m", "fake:phase", "-i", "in.jsonl", "-o", "o", "--served-model-name", "\udcff")
    assert r.returncode == 2 and b"--served-model-name: not UTF-8" in r.stderr


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer.json",
                                  "tokenizer_config.json", "chat_template.jinja",
                                  "model.safetensors", "model.safetensors.index.json"])
@pytest.mark.parametrize("kind", ["fifo", "folder", "dangling link"])
def test_model_file_of_another_kind(corun, tmp_path, name, kind):
    """Each is bad input (2), named, and none hangs or is taken as absent."""
    model = tmp_path / "model"
    shutil.copytree(ROOT / "tests/data/golden/qwen2_tied", model)
    (model / name).unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(model / name)
    elif kind == "folder":
        (model / name).mkdir()
    else:
        (model / name).symlink_to("nowhere")
    r = corun("run", "-m", str(model), "-p", "x", "--max-tokens", "1")
    assert r.returncode == 2 and name.encode() in r.stderr, r.stderr


def test_closed_streams(corun):
    """A file of the run must not get the number of a closed stream, and with it our messages."""
    corun.write("in.jsonl", [b"{bad"] + mixed(2))
    command = ["batch", "-m", "fake:phase", "-i", "in.jsonl", "-o"]
    assert corun(*command, "ref").returncode == 0
    for closed in ([2], [0, 2], [1, 2], [0, 1, 2]):
        pid = os.fork()
        if pid == 0:
            os.chdir(corun.folder)
            for fd in closed:
                os.close(fd)
            os.execv(CORUN, [str(CORUN), *command, "out"])
        os.waitpid(pid, 0)
        assert (corun.folder / "out").read_bytes() == (corun.folder / "ref").read_bytes(), closed


def test_info(corun):
    info = json.loads(corun("info", "fake:phase", "--json", "--identity").stdout)
    assert info["family"] == "fake" and info["n_vocab"] >= 260
    body = corun.bodies([completion("a", "x", max_tokens=1)])[0]
    assert body["system_fingerprint"] == info["identity_digest"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", info["identity"]["unicode"])  # decides `upper` in a template
    assert b"fake" in corun("info", "fake:phase").stdout


def test_info_names_the_tensors_types(corun):
    """What the files hold, though everything is held as bf16."""
    demo = ROOT / ".cache" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    for model, want in ((ROOT / "tests" / "data" / "golden" / "llama_plain", r"BF16 \d+"),
                        (demo, "F32 61, Q4_1 210, Q8_0 1"), ("fake:phase", "")):
        if model == demo and not demo.exists():
            continue
        r = corun("info", model, "--json")
        assert re.fullmatch(want, json.loads(r.stdout)["tensor_types"]), (model, r.stdout)
        text = corun("info", model).stdout.decode()
        assert bool(re.search(f"^tensors +{want} ", text, re.M)) == (want != "")


def test_run_is_batch(corun):
    answer = corun("run", "-m", "fake:phase", "-p", "hello", "-n", "12").stdout
    line = {"custom_id": "run", "method": "POST", "url": "/v1/chat/completions",
            "body": {"model": "", "messages": [{"role": "user", "content": "hello"}],
                     "max_tokens": 12}}
    body = corun.bodies([line])[0]
    assert answer.decode() == body["choices"][0]["message"]["content"] + "\n"
    raw = corun("run", "-m", "fake:phase", "-p", "-", "--raw", "-n", "9", "--seed", "4",
                stdin=b"hello")
    body = corun.bodies([completion("x", "hello", max_tokens=9, seed=4)])[0]
    assert raw.stdout.decode() == body["choices"][0]["text"] + "\n"


def test_run_says_its_times(corun):
    said = corun("run", "-v", "-m", "fake:phase", "-p", "hello", "-n", "3").stderr.decode()
    m = re.search(r"model opened in (\S+) s \(weights of \S+ GB, \S+ GB/s\), engine in (\S+) s, first token (\S+) s",
                  said)
    assert float(m[1]) + float(m[2]) <= float(m[3]) + 0.02 and float(m[3]) < 60
    assert re.search(r"^corun: identity [0-9a-f]{32}$", said, re.M)


# ---- one answer whatever the schedule ------------------------------------------------------------

SCHEDULES = [
    ["--arrival", "1"], ["--arrival", "seed:1"], ["--arrival", "seed:2", "--threads", "3"],
    ["--arrival", "5", "--kv", "SMALL"],
]


def pool(corun, pages):
    """The size of a KV pool of so many pages of 16 tokens."""
    info = json.loads(corun("info", "fake:phase", "--json").stdout)
    return str(pages * 16 * info["kv_bytes_per_token"])


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedule(corun, schedule):
    lines = mixed(40)
    want = corun.batch(lines, "--page", 16)
    options = [pool(corun, 24) if o == "SMALL" else o for o in schedule]
    random.Random(str(schedule)).shuffle(lines)
    assert by_id(corun.batch(lines, "--page", 16, *options)) == by_id(want)


def test_swapped(corun):
    """Requests that grow beyond the pool are moved out and back, bits kept."""
    lines = [completion(f"r{i:02d}", "x" * (i + 1), max_tokens=150, ignore_eos=True, logprobs=1,
                        n=1 + i % 2) for i in range(20)]
    shuffled = random.Random(1).sample(lines, len(lines))
    for policy in ("corun", "invariant", "dynamic"):
        want = corun.batch(lines, "--page", 16, "--kv", "8M", "--metrics", "m.json", "--policy",
                           policy)
        assert json.loads((corun.folder / "m.json").read_text())["swaps_out"] == 0
        got = corun.batch(shuffled, "--page", 16, "--kv", pool(corun, 40), "--swap", "64M",
                          "--arrival", "seed:9", "--metrics", "m.json", "--policy", policy)
        m = json.loads((corun.folder / "m.json").read_text())
        assert m["swaps_out"] > 1 and m["swaps_in"] > 1
        if policy != "dynamic":
            assert by_id(got) == by_id(want)


def test_alone(corun):
    """Each line alone in a file gives the row that it has among the others."""
    lines = mixed(12)
    rows = corun.batch(lines)
    for line, row in zip(lines, rows):
        assert corun.batch([line]) == [row]


def test_weak_kernels(corun):
    """With kernels that are only position-invariant in decode, corun keeps its promise and dynamic
    is seen to break it."""
    lines = mixed(40)
    shuffled = lines[::-1]
    model = "fake:run,position"
    want = by_id(corun.batch(lines, "--policy", "corun", model=model))
    got = corun.batch(shuffled, "--policy", "corun", "--arrival", "seed:5", model=model)
    assert by_id(got) == want
    a = by_id(corun.batch(lines, "--policy", "dynamic", model=model))
    b = by_id(corun.batch(shuffled, "--policy", "dynamic", "--arrival", "seed:5", model=model))
    assert a != b


def test_pages_of_part_of_a_piece(corun):
    """A prompt that ends inside a piece wrote that piece's first pages in a shorter row: under
    invariant they are not reused, not even with pages behind them that another prompt wrote."""
    tokens = [i * i % 251 for i in range(4200)]
    lines = [completion(f"p{n}", tokens[:n], max_tokens=3, logprobs=1)
             for n in (3100, 4097, 4130)]
    options = ("--policy", "invariant", "--page", "16", "--slots", "1", "--arrival", "1",
               "--ctx", "4200")
    rows = corun.batch(lines, *options, "--metrics", "m.json", model="fake:batch")
    assert json.loads((corun.folder / "m.json").read_text())["prefix_tokens"] == 2048 + 4096
    for i in range(3):
        assert corun.batch(lines[i:i + 1], *options, model="fake:batch") == rows[i:i + 1]


def test_samples(corun):
    """n samples are distinct; each is the single request with its seed (recipe J)."""
    body = corun.bodies([completion("a", "abc", n=8, max_tokens=20, seed=7)])[0]
    texts = [c["text"] for c in body["choices"]]
    assert len(set(texts)) == 8 and body["choices"][0]["seed"] == 7
    singles = [completion(f"s{i}", "abc", max_tokens=20, seed=c["seed"])
               for i, c in enumerate(body["choices"])]
    assert [b["choices"][0]["text"] for b in corun.bodies(singles)] == texts


def test_seeds(corun):
    """The same seed twice gives one text; 100 requests without a seed give 100 (recipe Q)."""
    lines = [completion(f"s{i}", "abc", max_tokens=20, seed=5) for i in range(2)]
    lines += [completion(f"u{i}", "abc", max_tokens=20) for i in range(100)]
    texts = [b["choices"][0]["text"] for b in corun.bodies(lines)]
    assert texts[0] == texts[1] and len(set(texts)) == 101
    body = corun.bodies([completion("a", ["x"] * 20, max_tokens=20)])[0]
    assert len({c["text"] for c in body["choices"]}) == 20
    body = corun.bodies([completion("a", ["x"] * 5, n=4, max_tokens=20)])[0]
    assert len({c["seed"] for c in body["choices"]}) == len({c["text"] for c in body["choices"]}) == 20


# ---- bad lines -----------------------------------------------------------------------------------

def raw(custom_id, body, url="/v1/completions"):
    return (b'{"custom_id":"' + custom_id.encode() + b'","method":"POST","url":"' + url.encode() +
            b'","body":' + body + b"}")


BAD = [
    b"nonsense", b"{", b"[]", b"null", b'{"custom_id":"x"}', b"\xef\xbb\xbf{}", b"\x00\x00",
    b"\xff\xfe{}", b'{"a":1}{"b":2}', b"[" * 10000 + b"]" * 10000,
    raw("b0", b'{"model":"m","prompt":"\\ud83d"}'), raw("b1", b'{"model":"m","prompt":"\xff"}'),
    raw("b2", b'{"model":"m","prompt":"x","temperature":-1}'),
    raw("b3", b'{"model":"m","prompt":"x","n":0}'),
    raw("b4", b'{"model":"m","prompt":"x","n":100000}'),
    raw("b5", b'{"model":"m","prompt":"x","stream":true}'),
    raw("b6", b'{"model":"m","prompt":[99999]}'), raw("b7", b'{"model":"m","prompt":[-1]}'),
    raw("b8", b'{"model":"m","prompt":"x"}', "/v1/embeddings"),
    raw("b9", b'{"model":"m","messages":[]}', "/v1/chat/completions"),
    raw("c0", b'{"model":"m","messages":[{"role":"wizard","content":"x"}]}',
        "/v1/chat/completions"),
    raw("c1", b'{"model":"m","prompt":"' + b"x" * 300000 + b'"}'),
    raw("c2", b'{"model":"m","prompt":"x","logit_bias":{' +
        b",".join(b'"%d":1' % i for i in range(100000)) + b"}}"),
    raw("c3", b'{"model":"m","prompt":"x","stop":[' +
        b",".join(b'"s%d"' % i for i in range(5000)) + b"]}"),
    raw("c4", b'{"model":"m","prompt":"x","max_tokens":99999999}'),
    raw("c5", b'{"model":"m","prompt":"x","stop_token_ids":[-1]}'),
    raw("c6", b'{"model":"m","prompt":"x","logit_bias":{"99999":1}}'),
    raw("c7", b'{"model":"m","prompt":"x","response_format":{"type":"json_object"}}'),
    raw("c8", b'{"model":"m","prompt":"x","temperature":1e400}'),
    raw("c9", b'{"model":"m","prompt":"' + b"y" * (17 << 20) + b'"}'),
]


def test_bad_lines(corun):
    """Bad lines give error rows; every other row is the same bytes as without them (recipe M)."""
    good = mixed(12)
    want = corun.batch(good)
    lines, places = [], []
    for i, bad in enumerate(BAD):
        if i < len(good):
            lines.append(good[i])
        places.append(len(lines))
        lines.append(bad)
    rows = corun.batch(lines, "--metrics", "m.json")
    assert len(rows) == len(lines)
    assert [r for i, r in enumerate(rows) if i not in places] == want
    for i, place in enumerate(places):
        row = json.loads(rows[place])
        assert row["response"]["status_code"] == 400, BAD[i][:80]
        assert row["response"]["body"]["error"]["message"]
        assert ("line" in row) == (row["custom_id"] is None)
    m = json.loads((corun.folder / "m.json").read_text())
    assert [e["line"] for e in m["errors"]] == [p + 1 for p in places]
    assert m["error_rows"] == len(BAD) and m["rows"] == len(lines)


def test_strict_and_check(corun):
    lines = [completion("a", "x"), b"nonsense"]
    corun.batch(lines)
    corun.batch(lines, "--strict", code=3)
    assert (corun.folder / "out.jsonl").exists()
    r = corun("batch", "-m", "fake:phase", "-i", "in.jsonl", "--check")
    assert r.returncode == 2 and b"line 2" in r.stderr
    corun.write("in.jsonl", [completion("a", ["xyz", "x"]), completion("b", [1, 2, 3, 4])])
    prompts = corun.bodies(None, "--page", "16")
    n = sum(b["usage"]["prompt_tokens"] for b in prompts)
    r = corun("batch", "-m", "fake:phase", "-i", "in.jsonl", "--check")
    assert r.returncode == 0 and f"2 rows, 0 with errors, {n} prompt tokens\n".encode() in r.stderr
    corun.write("in.jsonl", lines[:1])
    before = sorted(os.listdir(corun.folder))
    r = corun("batch", "-m", "fake:phase", "-i", "in.jsonl", "--check")
    assert r.returncode == 0 and sorted(os.listdir(corun.folder)) == before


@pytest.mark.parametrize("option, value, said", [
    ("--kv", "100", "--kv: 100 do not hold one page"),
    ("--ctx", "99999999", "--ctx: 99999999 is not in"),
    ("--slots", "0", "--slots: 0 is not in"), ("--page", "17", "--page: 17 is not"),
    ("--chunk", "1", "--chunk: 1 "), ("--policy", "fast", '--policy "fast": not auto'),
    ("--kv", "8000000T", "--kv or --swap: more pages")])
def test_a_refused_option_is_named(corun, option, value, said):
    corun.write("in.jsonl", [completion("a", "x")])
    r = corun("batch", "-m", "fake:phase", "-i", "in.jsonl", "-o", "o", option, value)
    assert r.returncode == 2 and r.stderr.decode().startswith("corun: " + said), r.stderr


def test_quiet_leaves_out_the_device_note(corun):
    """A real model on a build with the CUDA backend notes why it runs on the CPU, but not under -q."""
    corun.write("in.jsonl", [completion("a", [5, 6], max_tokens=2)])
    command = ["batch", "-m", ROOT / "tests" / "data" / "golden" / "llama_plain", "-i", "in.jsonl",
               "-o", "o"]
    r = corun(*command, "-q")
    assert r.returncode == 0 and r.stderr == b""


def test_a_complete_output_is_made_anew(corun):
    """The same command after the end runs everything again, and says so unless it is quiet."""
    lines = [completion("a", "x"), completion("b", "y")]
    want = corun.batch(lines)
    command = ["batch", "-m", "fake:phase", "-i", "in.jsonl", "-o", "out.jsonl"]
    r = corun(*command)
    assert r.returncode == 0
    assert b"out.jsonl is there: its rows are made anew, and it is replaced at the end" in r.stderr
    assert (corun.folder / "out.jsonl").read_bytes().splitlines(keepends=True) == want
    assert corun(*command, "-q").stderr == b""
    (corun.folder / "out.jsonl").unlink()
    assert b"made anew" not in corun(*command).stderr


def test_line_ends(corun):
    a, b = (json.dumps(x).encode() for x in (completion("a", "x"), completion("b", "y")))
    want = corun.batch([a, b])
    for text in (a + b"\r\n" + b + b"\r\n", a + b"\n" + b, b"\n\n \t\r\n" + a + b"\n\n" + b + b"\n\n",
                 b" " + a + b" \n" + b):
        (corun.folder / "in.jsonl").write_bytes(text)
        assert corun.batch(None) == want
    (corun.folder / "in.jsonl").write_bytes(b"\xef\xbb\xbf" + a + b"\n" + b)
    rows = corun.batch(None)
    assert rows[1] == want[1] and json.loads(rows[0])["line"] == 1
    (corun.folder / "in.jsonl").write_bytes(b"")
    assert corun.batch(None) == []


def test_duplicates(corun):
    lines = [completion("a", "x"), completion("b", "y"), completion("a", "z"), b"nonsense",
             completion("a", "x")]
    rows = corun.batch(lines)
    assert rows[:2] == corun.batch(lines[:2])
    for i in (2, 4):
        row = json.loads(rows[i])
        assert row["response"]["status_code"] == 400 and "earlier line" in rows[i].decode()
        assert row["custom_id"] == "a"


def test_served_name(corun):
    rows = corun.batch([completion("a", "x")], "--served-model-name", "m")
    assert json.loads(rows[0])["response"]["status_code"] == 200
    rows = corun.batch([completion("a", "x")], "--served-model-name", "n")
    assert json.loads(rows[0])["response"]["status_code"] == 404


def test_never_fits(corun):
    """A request that the pool can never hold is refused with the size it needs."""
    lines = [completion("a", "x" * 900, max_tokens=100), completion("b", "y")]
    rows = corun.batch(lines, "--page", 16, "--kv", pool(corun, 24))
    assert json.loads(rows[0])["response"]["status_code"] == 400
    assert rows[1] == corun.batch(lines[1:], "--page", 16)[0]


# ---- files ---------------------------------------------------------------------------------------

def test_pipes_and_gzip(corun):
    want = b"".join(corun.batch(mixed(10)))
    text = (corun.folder / "in.jsonl").read_bytes()
    r = corun("batch", "-m", "fake:phase", "-i", "-", "-o", "-", "-q", stdin=text)
    assert r.returncode == 0 and r.stdout == want
    r = corun("batch", "-m", "fake:phase", "-i", "-", "-o", "-", "-q", stdin=gzip.compress(text))
    assert r.stdout == want
    (corun.folder / "in.jsonl.gz").write_bytes(gzip.compress(text))
    for _ in range(2):
        r = corun("batch", "-m", "fake:phase", "-i", "in.jsonl.gz", "-o", "o.jsonl.gz", "-q")
        assert r.returncode == 0
        packed = (corun.folder / "o.jsonl.gz").read_bytes()
        assert gzip.decompress(packed) == want
    (corun.folder / "in.jsonl.gz").write_bytes(gzip.compress(text)[:-9])
    os.remove(corun.folder / "o.jsonl.gz")
    r = corun("batch", "-m", "fake:phase", "-i", "in.jsonl.gz", "-o", "o.jsonl.gz", "-q")
    assert r.returncode == 2 and b"gzip" in r.stderr
    assert not [f for f in os.listdir(corun.folder) if f.startswith((".", "o."))]


def test_places(corun):
    corun.write("in.jsonl", mixed(3))
    (corun.folder / "dir").mkdir()
    (corun.folder / "link").symlink_to("in.jsonl")
    base = ["batch", "-m", "fake:phase", "-q", "-i"]
    for i, o in [("in.jsonl", "in.jsonl"), ("link", "in.jsonl"), ("in.jsonl", "./link"),
                 ("in.jsonl", "dir"), ("in.jsonl", "no/such/out"), ("in.jsonl", "/dev/null"),
                 ("in.jsonl", "/proc/out.jsonl"), ("none.jsonl", "out.jsonl"), ("dir", "out.jsonl")]:
        before = (corun.folder / "in.jsonl").read_bytes()
        r = corun(*base, i, "-o", o)
        assert r.returncode == 2, (i, o, r.stderr)
        assert (corun.folder / "in.jsonl").read_bytes() == before
    for o, m in (("o", "in.jsonl"), ("o", "no/m"), ("o", "o"), ("-", "-")):
        assert corun(*base, "in.jsonl", "-o", o, "--metrics", m).returncode == 2
    assert sorted(os.listdir(corun.folder)) == ["dir", "in.jsonl", "link"]


def test_kept_on_failure(corun):
    """What stood at the output's place stays when the run fails, and its mode when it is replaced."""
    out = corun.folder / "out.jsonl"
    out.write_text("old")
    out.chmod(0o600)
    corun.write("in.jsonl", mixed(3))
    r = corun("batch", "-m", "missing.gguf", "-i", "in.jsonl", "-o", "out.jsonl")
    assert r.returncode == 2 and out.read_text() == "old"
    corun.batch(None)
    assert out.read_text() != "old" and out.stat().st_mode & 0o777 == 0o600
    assert not [f for f in os.listdir(corun.folder) if f.startswith(".")]


def waiting_batch(corun, out):
    """A batch that has started and waits for lines."""
    p = corun.start("batch", "-m", "fake:phase", "-i", "-", "-o", out, "-q", stdin=-1, stderr=-1)
    for _ in range(600):
        if (corun.folder / f"{out}.corun-journal").exists():
            return p
        time.sleep(0.05)
    raise AssertionError("the batch did not start")


def test_two_processes(corun):
    p = waiting_batch(corun, "out.jsonl")
    corun.write("in.jsonl", mixed(3))
    r = corun("batch", "-m", "fake:phase", "-i", "in.jsonl", "-o", "out.jsonl", "-q")
    assert r.returncode == 2 and b"another process" in r.stderr
    p.communicate((corun.folder / "in.jsonl").read_bytes(), timeout=60)
    assert p.returncode == 0
    assert len((corun.folder / "out.jsonl").read_bytes().splitlines()) == 3


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_signals(corun, sig):
    p = waiting_batch(corun, "out.jsonl")
    p.send_signal(sig)
    assert p.wait(60) == 128 + sig
    p.stdin.close()
    assert os.listdir(corun.folder) == []


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_signals_while_a_stream_waits(corun, sig):
    """A row is made, and kept, while the next line is not there yet."""
    p = waiting_batch(corun, "out.jsonl")
    journal = corun.folder / "out.jsonl.corun-journal"
    p.stdin.write(json.dumps(completion("a", "x", max_tokens=100)).encode() + b"\n")
    p.stdin.flush()
    for _ in range(600):
        if b"batch_req_" in journal.read_bytes():
            break
        time.sleep(0.05)
    p.send_signal(sig)
    assert p.wait(60) == 128 + sig
    p.stdin.close()
    assert b"1 rows are done and kept" in p.stderr.read()
    assert os.listdir(corun.folder) == [journal.name]


def test_killed(corun):
    """kill -9 leaves the old output; the next run takes the temporary file over."""
    p = waiting_batch(corun, "out.jsonl")
    p.kill()
    p.wait(60)
    p.stdin.close()
    assert os.listdir(corun.folder) == ["out.jsonl.corun-journal"]
    corun.batch(mixed(3))
    assert sorted(os.listdir(corun.folder)) == ["in.jsonl", "out.jsonl"]


# ---- shards --------------------------------------------------------------------------------------

@pytest.mark.parametrize("n", [1, 2, 3, 7, 40])
def test_shards(corun, n):
    lines = mixed(11)
    lines[5:5] = [b"nonsense", b"", b"  ", completion("r001", "again")]
    want = b"".join(corun.batch(lines))
    for i in range(n):
        corun.batch(None, "--shard", f"{i}/{n}")
        os.rename(corun.folder / "out.jsonl", corun.folder / f"s{i}")
    r = corun("merge", "-o", "all.jsonl", *[f"s{i}" for i in range(n)])
    assert r.returncode == 0, r.stderr
    assert (corun.folder / "all.jsonl").read_bytes() == want
    if n == 2:
        r = corun("merge", "-o", "bad.jsonl", "s1", "s0")
        assert r.returncode in (0, 2)
        assert corun("merge", "-o", "s0", "s0", "s1").returncode == 2
        (corun.folder / "s1").write_bytes(b"")
        r = corun("merge", "-o", "bad2.jsonl", "s0", "s1")
        assert r.returncode == 2 and not (corun.folder / "bad2.jsonl").exists()
        other = corun.bodies(lines, "--processed-logprobs")[0]["system_fingerprint"]
        assert other != json.loads(want.splitlines()[0])["response"]["body"]["system_fingerprint"]
        os.rename(corun.folder / "out.jsonl", corun.folder / "s1")
        assert corun("merge", "-o", "bad3.jsonl", "s0", "s1").returncode in (1, 2)


@pytest.mark.parametrize("shard", ["2/2", "-1/2", "1", "a/b", "1/0", "1/2x"])
def test_bad_shard(corun, shard):
    corun.write("in.jsonl", mixed(3))
    r = corun("batch", "-m", "fake:phase", "-i", "in.jsonl", "-o", "o", "--shard", shard)
    assert r.returncode == 2


# ---- answers -------------------------------------------------------------------------------------

@pytest.mark.parametrize("n_prompt", [1, 2])
@pytest.mark.parametrize("as_ids", [False, True])
@pytest.mark.parametrize("body", [{"max_tokens": 0}, {"max_tokens": 1},
                                  {"max_tokens": 1, "temperature": 1, "top_k": 1},
                                  {"max_tokens": 1, "n": 2}])
def test_echo_logprobs(corun, body, as_ids, n_prompt):
    """API-5: echo with max_tokens 0 and 1, filters, n 2, text and ids, two prompts."""
    text = "The capital"
    prompt = list(text.encode()) if as_ids else text
    b = corun.bodies([completion("a", [prompt, prompt] if n_prompt == 2 else prompt, echo=True,
                                 logprobs=1, **body)])[0]
    new, n_choice = body["max_tokens"], n_prompt * body.get("n", 1)
    assert [c["index"] for c in b["choices"]] == list(range(n_choice))
    assert b["usage"]["completion_tokens"] == new * n_choice
    for c in b["choices"]:
        lp = c["logprobs"]
        n = b["usage"]["prompt_tokens"] // n_prompt + new
        assert {len(lp[k]) for k in ("tokens", "token_logprobs", "top_logprobs", "text_offset")} == {n}
        assert lp["token_logprobs"][0] is None and lp["top_logprobs"][0] is None
        assert c["text"].startswith(text)
        if not new:
            assert c["text"] == text and c["finish_reason"] == "length"
        for x, top in zip(lp["token_logprobs"][1:], lp["top_logprobs"][1:]):
            assert x <= max(top.values())


def test_prompt_logprobs_ignore_sampling(corun):
    lines = [completion(f"l{i}", "abcabc", echo=True, logprobs=2, max_tokens=1, **more)
             for i, more in enumerate([{}, {"temperature": 0}, {"top_k": 1}, {"logit_bias": {"97": 50}},
                                       {"n": 3}, {"presence_penalty": 2}])]
    got = [b["choices"][0]["logprobs"]["token_logprobs"][:-1] for b in corun.bodies(lines)]
    assert all(g == got[0] for g in got)


def test_logprobs_forms(corun):
    """API-6: the drawn token's float is one and the same in every form."""
    lines = [completion("a", "abc", max_tokens=5, seed=1, **more)
             for more in ({}, {"logprobs": 0}, {"logprobs": 1}, {"logprobs": 20})]
    bodies = [corun.bodies([line])[0] for line in lines]
    assert bodies[0]["choices"][0]["logprobs"] is None
    floats = [b["choices"][0]["logprobs"]["token_logprobs"] for b in bodies[1:]]
    assert floats[0] == floats[1] == floats[2] and len(floats[0]) == bodies[0]["usage"]["completion_tokens"]
    assert bodies[1]["choices"][0]["logprobs"]["top_logprobs"] is None
    assert all(1 <= len(t) <= 21 for t in bodies[3]["choices"][0]["logprobs"]["top_logprobs"])
    chats = [corun.bodies([chat("a", "abc", max_tokens=5, seed=1, **more)])[0]["choices"][0]["logprobs"]
             for more in ({}, {"logprobs": True}, {"logprobs": True, "top_logprobs": 2})]
    assert chats[0] is None
    assert [t["logprob"] for t in chats[1]["content"]] == [t["logprob"] for t in chats[2]["content"]]
    assert all(t["top_logprobs"] == [] for t in chats[1]["content"])
    assert all(len(t["top_logprobs"]) == 2 for t in chats[2]["content"])


def test_stops(corun):
    """Recipe K: text cut at the stop string; ids and log-probabilities keep one length."""
    free = corun.bodies([completion("a", "abc", max_tokens=40, seed=3, ignore_eos=True,
                                    return_token_ids=True, allowed_token_ids=list(range(97, 107)))])[0]
    text = free["choices"][0]["text"]
    assert len(text) == 40
    for at, length in ((5, 1), (10, 3), (37, 3), (38, 2)):
        stop = text[at:at + length]
        cut = text.index(stop)
        for include in (False, True):
            b = corun.bodies([completion("a", "abc", max_tokens=40, seed=3, ignore_eos=True, logprobs=1,
                                         return_token_ids=True, stop=["zzz", stop],
                                         allowed_token_ids=list(range(97, 107)),
                                         include_stop_str_in_output=include)])[0]
            c = b["choices"][0]
            assert c["text"] == text[:cut + (len(stop) if include else 0)]
            assert c["finish_reason"] == "stop" and c["stop_reason"] == stop
            n = cut + len(stop)
            assert c["token_ids"] == free["choices"][0]["token_ids"][:n]
            assert len(c["logprobs"]["tokens"]) == n == b["usage"]["completion_tokens"]


def test_score(corun):
    corun.write("in.jsonl", [{"text": "abc"}, {"tokens": [97, 98, 99], "custom_id": "k"},
                             {"text": "abc", "top_logprobs": 2}, b"nonsense", {"text": 5}])
    r = corun("score", "-m", "fake:phase", "-i", "in.jsonl", "-o", "out.jsonl", "-q")
    assert r.returncode == 0
    rows = [json.loads(x) for x in (corun.folder / "out.jsonl").read_bytes().splitlines()]
    echo = corun.bodies([completion("a", "abc", echo=True, logprobs=0, max_tokens=0),
                         completion("b", [97, 98, 99], echo=True, logprobs=0, max_tokens=0)])
    for row, b in zip(rows, echo):
        assert row["token_logprobs"] == b["choices"][0]["logprobs"]["token_logprobs"]
        assert row["error"] is None
    assert rows[1]["custom_id"] == "k" and rows[1]["tokens"] == [97, 98, 99]
    assert len(rows[2]["top_logprobs"][1]) == 2
    assert rows[3]["error"] and rows[4]["error"] and rows[3]["line"] == 4
    r = corun("score", "-m", "fake:phase", "-q", "--top", "2", stdin=b'{"tokens": [5]}\n')
    one = json.loads(r.stdout)
    assert one["token_logprobs"] == [None] and one["top_logprobs"] == [None]
    r = corun("score", "-m", "fake:phase", "-q", "--text", "--strict", stdin=b"abc\r\n\nab\xff\n")
    assert r.returncode == 3
    first, second = map(json.loads, r.stdout.splitlines())
    assert first["token_logprobs"] == rows[0]["token_logprobs"] and second["error"]


def test_metrics(corun):
    corun.batch(mixed(30), "--metrics", "m.json", "--slots", 8)
    m = json.loads((corun.folder / "m.json").read_text())
    assert m["rows"] == 30 and m["error_rows"] == 0 and m["tokens_new"] > 0
    assert len(m["live_rows_seen"]) >= 3 and max(m["live_rows_seen"]) <= 8
    assert m["seconds_run"] > 0 and m["identity"]


def test_rows_hold_no_clock(corun):
    lines = mixed(6)
    first = corun.batch(lines)
    time.sleep(1.1)
    assert corun.batch(lines) == first
    assert all(json.loads(r)["response"]["body"]["created"] == 0 for r in first)


# ---- what a person sees, and limits --------------------------------------------------------------

def test_progress(corun):
    """Without a terminal: a summary line. With one: a bar that leaves no trace in the results."""
    corun.write("in.jsonl", mixed(10) + [b"nonsense"] * 25)
    r = corun("batch", "-m", "fake:phase", "-i", "in.jsonl", "-o", "a")
    err = r.stderr.decode()
    assert "35 rows, 25 with errors" in err and err.count("corun: line ") == 20 and "5 more error" in err
    ours, theirs = pty.openpty()
    p = corun.start("batch", "-m", "fake:phase", "-i", "in.jsonl", "-o", "b", stderr=theirs)
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 4096):
            shown += part
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    assert p.wait(60) == 0 and b"35 rows" in shown and b"\r\x1b[K" in shown
    assert (corun.folder / "a").read_bytes() == (corun.folder / "b").read_bytes()


def test_ignored_signals(corun):
    """What nohup ignores stays ignored."""
    p = corun.start("batch", "-m", "fake:phase", "-i", "-", "-o", "out.jsonl", "-q", stdin=-1,
                    preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    while not (corun.folder / "out.jsonl.corun-journal").exists():
        time.sleep(0.05)
    time.sleep(0.3)
    p.send_signal(signal.SIGHUP)
    p.communicate(json.dumps(completion("a", "x")).encode(), timeout=60)
    assert p.returncode == 0


def test_memory_is_bounded(corun):
    """Lines are streamed: 48 MB of them do not make the program grow."""
    with open(corun.folder / "in.jsonl", "w") as f:
        for i in range(6000):
            f.write(json.dumps(completion(f"r{i}", "x" * 50, max_tokens=1,
                                          user="y" * 8000)) + "\n")
    p = corun.start("batch", "-m", "fake:phase", "-i", "in.jsonl", "-o", "out.jsonl", "-q")
    _, status, used = os.wait4(p.pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert used.ru_maxrss < 200 * 1024


@pytest.mark.parametrize("more", [{}, {"logprobs": 1}, {"prompt_logprobs": 0}])
def test_scored_samples(corun, more):
    """A prompt that is only scored ends for all its samples: n choices, and the run ends."""
    body = corun.bodies([completion("a", ["abc", "xy"], max_tokens=0, n=3, echo=True, **more)])[0]
    choices = body["choices"]
    assert [c["text"] for c in choices] == ["abc"] * 3 + ["xy"] * 3
    assert {c["finish_reason"] for c in choices} == {"length"}
    assert choices[0]["logprobs"] == choices[1]["logprobs"] == choices[2]["logprobs"]
