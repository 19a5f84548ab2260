"""`corun serve` as its users see it: answers that are those of a batch file, whole and streamed,
the official client, limits, keys, clients that go away, the end by a signal."""
import asyncio
import concurrent.futures
import http.client
import itertools
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time

import pytest

from conftest import CORUN, ROOT, completion
from server import (CHAT, COMPLETION, MATRIX, TALK, Server, events, join, row_bodies, usage_of,
                    without_created)

GOLDEN = ROOT / "tests" / "data" / "golden"
DEMO = ROOT / ".cache" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
MODELS = ["fake:phase", GOLDEN / "qwen2_tied", GOLDEN / "llama_plain", DEMO]


@pytest.fixture(params=MODELS, ids=lambda m: str(m).rsplit("/", 1)[-1])
def model(request):
    if request.param == DEMO and not DEMO.exists():
        pytest.skip("the demo model is not fetched (tools/fetch demo)")
    return request.param


@pytest.fixture
def serve(corun):
    """Starts servers that end with the test."""
    running = []

    def start(*options, **more):
        running.append(Server(corun.folder, "--no-state", *options, **more))
        return running[-1]

    yield start
    for s in running:
        s.stop()


# ---- answers ----------------------------------------------------------------------------------


def test_help_and_document_have_the_same_defaults():
    """Every limit of docs/server.md's table stands in --help with its default."""
    said = subprocess.run([str(CORUN), "serve", "--help"], capture_output=True, check=True).stdout.decode()
    shown = {m[1]: m[2] for m in re.finditer(r"^ +(--[a-z-]+) .*\(([^()]*)\)", said, re.M)}
    rows = re.findall(r"^\| (`--.*?) \| (.*?) \|", (ROOT / "docs" / "server.md").read_text(), re.M)
    names = [(n, v) for names, values in rows
             for n, v in zip(re.findall(r"--[a-z-]+", names), values.split(", "))]
    assert len(names) >= 12
    for name, value in names:
        want = {"MiB": "M", "GiB": "G"}
        v = re.match(r"(none|\d+)( [MG]iB)?", value)
        text = "0: no limit" if v[1] == "none" else v[1] + (want[v[2][1:]] if v[2] else "")
        assert shown[name].split(",")[0] == text, name
    slowest = re.search(r"\.body_min = (\d+)", (ROOT / "src" / "app" / "http.c").read_text())[1]
    text = f"{int(slowest):,} bytes a second"
    assert text in said and text in (ROOT / "docs" / "server.md").read_text()


def test_stream_whole_and_row_are_one(corun, serve, model):
    """For each request of the matrix: stream, whole reply and batch row hold the same bytes."""
    matrix = [(p, b) for p, b in MATRIX
              if model == "fake:phase" or "\u0000" not in str(b.get("prompt"))]
    if model != "fake:phase" and model != DEMO and not json.loads(
            corun("info", model, "--json").stdout).get("has_template", True):
        matrix = [(p, b) for p, b in matrix if p == COMPLETION]
    rows = row_bodies(corun, matrix, model)
    s = serve(model=model)
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        whole = list(pool.map(lambda r: s.post(r[0], {k: v for k, v in r[1].items()
                                                      if k != "stream_options"}), matrix))
        streamed = list(pool.map(lambda r: s.post(r[0], {**r[1], "stream": True}), matrix))
    for (path, body), row, (status, head, data), (status_s, head_s, data_s) in zip(
            matrix, rows, whole, streamed):
        assert status == status_s == 200, (path, body, data, data_s)
        assert head["Content-Type"] == "application/json"
        assert without_created(data) == row, (path, body)
        assert head_s["Content-Type"] == "text/event-stream; charset=utf-8"
        chunks = events(data_s)
        assert len({c["created"] for c in chunks}) == 1
        want = json.loads(row)
        if not usage_of(body):
            del want["usage"]
        got = join(chunks, usage_of(body))
        got["created"] = 0
        assert got == want, (path, body)
    s.idle()


def test_first_chunks(serve):
    s = serve()
    body = {"model": "m", "messages": TALK, "max_tokens": 4, "stream": True, "n": 2,
            "stream_options": {"include_usage": True}}
    chunks = events(s.post(CHAT, body)[2])
    for i in (0, 1):
        mine = [c["choices"][0] for c in chunks if c["choices"] and c["choices"][0]["index"] == i]
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}
        assert all("role" not in c["delta"] for c in mine[1:])
        assert mine[-1]["finish_reason"] in ("stop", "length") and "seed" in mine[-1]
        assert all(c["finish_reason"] is None for c in mine[:-1])
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] > 0
    assert all(c["usage"] is None for c in chunks[:-1])
    assert {c["object"] for c in chunks} == {"chat.completion.chunk"}
    assert len({(c["id"], c["created"], c["system_fingerprint"]) for c in chunks}) == 1
    echo = events(s.post(COMPLETION, {"model": "m", "prompt": "before", "echo": True,
                                      "stream": True})[2])
    assert echo[0]["choices"][0]["text"] == "before"


def test_under_load_as_alone(corun, serve, model):
    """64 clients at once; every answer is the one of the batch file."""
    work = [(COMPLETION, {"model": "m", "prompt": f"Question {i}: what is {i} + {i % 7}?",
                          "max_tokens": 4 + i % 24, "request_id": f"q{i}", "logprobs": i % 2})
            for i in range(128 if model != DEMO else 48)]
    rows = row_bodies(corun, work, model)
    s = serve("--slots", 8, "--kv", "2M" if model != DEMO else "64M", model=model)
    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        got = list(pool.map(lambda r: s.post(*r), work))
    for (status, _, data), row in zip(got, rows):
        assert status == 200, data
        assert without_created(data) == row
    s.idle()


@pytest.mark.parametrize("body, field", [
    (b"", None), (b"{", None), (b"[]", None), (b"\xff", None), (b"\xef\xbb\xbf{}", None),
    (b'{"model":"m","prompt":"x"} {}', None), (b'{"model":"m","prompt":"x",}', None),
    (b'{"model":"m","prompt":"\\ud83d"}', None), (b'{"model":"m","prompt":"\\ude00"}', None),
    (b'{"model":"m","prompt":"\xc0\x80"}', None), (b'{"model":"m","prompt":"\xed\xa0\x80"}', None),
    (b'{"model":"m","prompt":"x","prompt":"y"}', None), (b'{"a\\u0000b":1}', None),
    (b'{"model":"m","user":' + b"[" * 10000 + b"]" * 10000 + b"}", None),
    ({"prompt": "x"}, "model"), ({"model": 1, "prompt": "x"}, "model"),
    ({"model": "m"}, "prompt"),
    *[({"model": "m", "prompt": p}, "prompt") for p in
      ([-1], [10 ** 6], [4294967294], [1.5], [[1], "x"], {}, 7)],
    *[({"model": "m", "prompt": "x", k: v}, k) for k, v in (
        ("logprobs", -1), ("logprobs", 21), ("logprobs", True), ("stop_token_ids", [10 ** 6]),
        ("stop_token_ids", [-1]), ("logit_bias", {"1000000": 1}), ("logit_bias", {"-1": 1}),
        ("logit_bias", {"1.5": 1}), ("logit_bias", {"abc": 1}), ("logit_bias", {"5": "x"}),
        ("n", 0), ("temperature", 3), ("guided_json", {}), ("stream_options", {}),
        ("max_tokens", -1), ("max_tokens", 10 ** 9), ("request_id", 3), ("best_of", 2),
        ("min_tokens", -1), ("min_tokens", 17))],
])
def test_bad_requests(shared, body, field):
    status, head, data = shared.post(COMPLETION, body)
    assert status == 400 and head["Content-Type"] == "application/json"
    error = json.loads(data)["error"]
    assert error["type"] == "invalid_request_error" and error["message"]
    if field not in (None, "max_tokens"):
        assert error["param"] == field, error


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    if not CORUN.exists():
        pytest.skip(f"{CORUN} is not built")
    with Server(tmp_path_factory.mktemp("serve"), "--no-state") as s:
        yield s
        s.idle()


def test_odd_but_right(shared):
    """A pair of surrogates, NUL, empty and null fields are served."""
    for body in (b'{"model":"m","prompt":"\\ud83d\\ude00","echo":true,"max_tokens":1}',
                 b'{"model":"m","prompt":"a\\u0000b","echo":true,"max_tokens":1}',
                 b'{"model":"m","prompt":"x","logit_bias":{},"logprobs":null,"stop":null}'):
        status, _, data = shared.post(COMPLETION, body)
        assert status == 200, data
    text = json.loads(shared.post(
        COMPLETION, b'{"model":"m","prompt":"a\\u0000b","echo":true,"max_tokens":0}')[2])
    assert text["choices"][0]["text"] == "a\0b"


def test_logprobs_zero_is_not_null(shared):
    """Cases of bug reports: 0 is the drawn token alone, null is none."""
    def lp(path, **body):
        b = {"model": "m", "max_tokens": 3, "seed": 1, **body}
        b.update({"messages": TALK} if path == CHAT else {"prompt": "x"})
        status, _, data = shared.post(path, b)
        return json.loads(data)["choices"][0]["logprobs"] if status == 200 else status

    assert lp(COMPLETION, logprobs=None) is None
    zero, one = lp(COMPLETION, logprobs=0), lp(COMPLETION, logprobs=1)
    assert zero["top_logprobs"] is None and zero["token_logprobs"] == one["token_logprobs"]
    assert lp(CHAT) is None and lp(CHAT, logprobs=False, top_logprobs=2) == 400
    assert lp(CHAT, logprobs=5) == 400
    plain, two = lp(CHAT, logprobs=True, top_logprobs=None), lp(CHAT, logprobs=True, top_logprobs=2)
    assert all(t["top_logprobs"] == [] for t in plain["content"])
    assert [t["logprob"] for t in plain["content"]] == [t["logprob"] for t in two["content"]]


def test_echo_and_no_tokens(shared):
    body = {"model": "m", "prompt": "The capital of France is", "echo": True, "logprobs": 1}
    zero = shared.json(COMPLETION, {**body, "max_tokens": 0})
    one = shared.json(COMPLETION, {**body, "max_tokens": 1})
    c0, c1 = zero["choices"][0], one["choices"][0]
    assert c0["text"] == body["prompt"] and c0["finish_reason"] == "length"
    assert zero["usage"]["completion_tokens"] == 0
    lp0, lp1 = c0["logprobs"], c1["logprobs"]
    assert lp0["token_logprobs"][0] is None and None not in lp0["token_logprobs"][1:]
    assert len(lp1["tokens"]) == len(lp0["tokens"]) + 1
    assert lp1["token_logprobs"][:-1] == lp0["token_logprobs"]
    hot = shared.json(COMPLETION, {**body, "max_tokens": 1, "temperature": 1, "top_k": 1})
    assert hot["choices"][0]["logprobs"]["token_logprobs"][:-1] == lp0["token_logprobs"]


# ---- the other endpoints ----------------------------------------------------------------------


def test_endpoints(shared):
    models = shared.json("/v1/models")
    assert models["object"] == "list" and [m["id"] for m in models["data"]] == ["fake:phase"]
    assert shared.json("/v1/models/fake:phase") == models["data"][0]
    assert shared.json("/v1/models/other/name", status=404)["error"]["code"] == "model_not_found"
    assert shared.get("/health")[0] == shared.get("/ping")[0] == 200
    assert "version" in shared.json("/version")
    info = shared.json("/tokenizer_info")
    assert {"eos_token", "chat_template"} <= set(info), info
    status, head, data = shared.get("/")
    assert status == 200 and head["Content-Type"].startswith("text/html") and b"<html" in data
    assert shared.json("/nothing/here", status=404)["error"]["type"] == "not_found_error"
    status, head, data = shared.get(COMPLETION)
    assert status == 405 and head["Allow"] == "POST" and json.loads(data)["error"]
    status, head, _ = shared.post("/health", {})
    assert status == 405 and head["Allow"] == "GET, HEAD"
    assert shared.get("/health", headers={"X-Request-Id": "mine"})[1]["X-Request-Id"] == "mine"


def test_head(shared):
    """HEAD is GET without the body: the same fields, and the connection goes on."""
    c = shared.connect()
    for path in ("/health", "/ping", "/version", "/v1/models", "/v1/models/fake:phase", "/tokenizer_info",
                 "/", "/nothing", "/v1/models/other"):
        got = []
        for method in ("HEAD", "GET"):
            c.request(method, path, headers={"X-Request-Id": "mine"})
            r = c.getresponse()
            got.append((r.status, [h for h in r.getheaders() if h[0] != "Date"], r.read()))
        (status, head, none), (status_get, head_get, data) = got
        assert (status, head, none) == (status_get, head_get, b"") and data, path
        assert int(dict(head)["Content-Length"]) == len(data)
    c.close()
    for path in ("/metrics", "/corun/state"):
        status, head, data = shared.ask("HEAD", path)
        assert status == 200 and int(head["Content-Length"]) > 0 and data == b""
    status, head, data = shared.ask("HEAD", COMPLETION)
    assert status == 405 and head["Allow"] == "POST" and data == b""


def test_tokenize(shared):
    ids = shared.json("/tokenize", {"prompt": "Hello there", "add_special_tokens": False,
                                    "return_token_strs": True})
    assert ids["count"] == len(ids["tokens"]) and "".join(ids["token_strs"]) == "Hello there"
    back = shared.json("/detokenize", {"tokens": ids["tokens"]})
    assert back == {"prompt": "Hello there"}
    chat_ids = shared.json("/tokenize", {"messages": TALK})["tokens"]
    asked = shared.json(CHAT, {"model": "m", "messages": TALK, "max_tokens": 1,
                               "return_token_ids": True})
    assert chat_ids == asked["prompt_token_ids"]
    for path, body in (("/tokenize", {}), ("/tokenize", {"prompt": 1}), ("/detokenize", {}),
                       ("/detokenize", {"tokens": [10 ** 9]}), ("/tokenize", {"x": 1})):
        assert shared.post(path, body)[0] == 400


def test_metrics_and_state(serve):
    s = serve("--log")
    before = s.metrics()
    assert any(k.startswith("corun_build_info{") and 'identity="' in k for k in before)
    s.json(COMPLETION, {"model": "m", "prompt": "x", "max_tokens": 5, "ignore_eos": True})
    s.json(COMPLETION, {"model": "m", "prompt": "x", "n": 0}, status=400)
    after = s.metrics()
    assert after["corun_generation_tokens_total"] - before["corun_generation_tokens_total"] == 5
    name = 'corun_http_requests_total{method="POST",endpoint="/v1/completions",status="%d"}'
    assert after[name % 200] == 1 and after[name % 400] == 1
    assert after['corun_requests_total{end="ok"}'] == 1
    for h in ("time_to_first_token_seconds", "time_per_output_token_seconds",
              "request_latency_seconds"):
        assert after[f"corun_{h}_count"] == after[f'corun_{h}_bucket{{le="+Inf"}}'] == 1
    state = s.idle()
    assert {"identity", "model", "policy", "version", "uptime_s", "slots", "running", "waiting",
            "pages", "pages_free", "pages_peak", "swap_pages", "swap_pages_free", "tokens_new",
            "tokens_prompt", "rows_live", "rows_dead", "steps", "prefix_hits", "swaps_out",
            "swaps_in", "recomputes"} <= set(state)
    assert state["tokens_new"] == 5 and state["policy"] == "corun" or state["policy"] == "free"
    lines = [x for x in s.said().splitlines() if "/v1/completions" in x]
    assert len(lines) == 2 and " 200 " in lines[0] and " new" in lines[0] and " 400" in lines[1]


# ---- the official client ----------------------------------------------------------------------


@pytest.fixture
def openai():
    return pytest.importorskip("openai")


def test_client(openai, shared):
    client = openai.OpenAI(base_url=shared.url + "/v1", api_key="none", max_retries=0)
    assert [m.id for m in client.models.list()] == ["fake:phase"]
    assert client.models.retrieve("fake:phase").owned_by == "corun"
    whole = client.chat.completions.create(model="m", messages=TALK, max_tokens=12, seed=3)
    stream = client.chat.completions.create(model="m", messages=TALK, max_tokens=12, seed=3,
                                            stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage
    one = client.completions.create(model="m", prompt="x", max_tokens=9, logprobs=2, seed=1)
    parts = list(client.completions.create(model="m", prompt="x", max_tokens=9, logprobs=2, seed=1,
                                           stream=True))
    assert "".join(p.choices[0].text for p in parts) == one.choices[0].text
    assert sum((p.choices[0].logprobs.token_logprobs for p in parts), []) == \
        one.choices[0].logprobs.token_logprobs
    with pytest.raises(openai.BadRequestError) as e:
        client.completions.create(model="m", prompt="x", n=0)
    assert e.value.param == "n"
    extra = client.completions.create(model="m", prompt="x", max_tokens=2,
                                      extra_body={"ignore_eos": True, "request_id": "r"})
    assert extra.usage.completion_tokens == 2


def test_async_client(openai, shared):
    async def main():
        client = openai.AsyncOpenAI(base_url=shared.url + "/v1", api_key="none", max_retries=0)

        async def one(i):
            r = await client.completions.create(model="m", prompt=f"q {i}", max_tokens=8)
            s = await client.completions.create(model="m", prompt=f"q {i}", max_tokens=8,
                                                stream=True)
            assert "".join([c.choices[0].text async for c in s]) == r.choices[0].text

        await asyncio.gather(*(one(i) for i in range(40)))
        await client.close()

    asyncio.run(main())


# ---- limits and keys --------------------------------------------------------------------------


def test_served_name(serve):
    s = serve("--served-model-name", "org/mine")
    assert s.json("/v1/models/org/mine")["id"] == "org/mine"
    assert s.json(COMPLETION, {"model": "org/mine", "prompt": "x"})["model"] == "org/mine"
    error = s.json(COMPLETION, {"model": "other", "prompt": "x"}, status=404)["error"]
    assert error["code"] == "model_not_found" and error["param"] == "model"
    assert s.post("/tokenize", {"model": "other", "prompt": "x"})[0] == 404


def test_token_limit(corun, serve):
    """A request over the limit is refused, never cut."""
    s = serve("--max-tokens", 40)
    body = {"model": "m", "prompt": [1, 2, 3, 4], "max_tokens": 9}
    assert s.post(COMPLETION, {**body, "n": 4})[0] == 200  # 4 + 4 x 9
    error = s.json(COMPLETION, {**body, "n": 5}, status=400)["error"]
    assert error["param"] == "max_tokens" and "49 tokens" in error["message"] and \
        "40" in error["message"]
    assert s.post(COMPLETION, {**body, "prompt": [[1] * 12, [2] * 12]})[0] == 400
    assert s.post(CHAT, {"model": "m", "messages": TALK})[0] == 400  # the rest of the context


def test_body_limit(serve):
    s = serve("--max-body", "10K")
    small = {"model": "m", "prompt": "x" * 9000, "max_tokens": 1}
    assert s.post(COMPLETION, small)[0] in (200, 400)
    assert s.post(COMPLETION, {**small, "prompt": "x" * 11000})[0] == 413


def test_queue_limit(serve):
    """More than may wait: 429 with Retry-After; those that were taken are answered."""
    s = serve("--queue", 4, "--slots", 1, "--threads", 1)
    body = {"model": "m", "prompt": "x", "max_tokens": 400, "ignore_eos": True}
    with concurrent.futures.ThreadPoolExecutor(100) as pool:
        got = list(pool.map(lambda i: s.post(COMPLETION, {**body, "request_id": f"{i}",
                                                          "n": 4}), range(200)))
    assert {g[0] for g in got} == {200, 429}
    for status, head, data in got:
        if status == 429:
            assert head["Retry-After"] == "1"
            assert json.loads(data)["error"]["type"] == "rate_limit_error"
    s.idle()


def test_keys(corun, serve, openai):
    keys = corun.folder / "keys"
    keys.write_text("# two people\nsk-first\n\n  sk-second-key  \n")
    keys.chmod(0o644)
    s = serve("--api-keys", keys)
    assert "other users may read the keys" in s.said()
    body = {"model": "m", "prompt": "x", "max_tokens": 2}
    for auth in (None, "sk-first", "Bearer", "Bearer ", "Bearer sk-firs", "Bearer sk-firstt",
                 "Bearer # two people", "Basic sk-first"):
        status, head, data = s.post(COMPLETION, body, headers=auth and {"Authorization": auth})
        assert status == 401 and head["WWW-Authenticate"] == "Bearer", auth
        assert json.loads(data)["error"]["type"] == "authentication_error"
    assert s.get("/v1/models")[0] == s.get("/metrics")[0] == s.get("/corun/state")[0] == 401
    assert s.get("/nothing")[0] == 401
    assert s.get("/health")[0] == s.get("/ping")[0] == s.get("/")[0] == 200
    for auth in ("Bearer sk-first", "bearer sk-second-key"):
        assert s.post(COMPLETION, body, headers={"Authorization": auth})[0] == 200
    client = openai.OpenAI(base_url=s.url + "/v1", api_key="wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        client.models.list()


def test_log(serve):
    """One line a request, whatever the path holds."""
    s = serve("--log")
    assert s.get("/a%0Acorun%20serve:%20GET%20/forged%20200%1B")[0] == 404
    assert s.get("/health")[0] == 200
    lines = s.said().splitlines()
    assert "corun serve: GET /a?corun serve: GET /forged 200? 404" in lines
    assert "corun serve: GET /health 200" in lines


def test_other_sites(serve):
    """A page of another site, or a name that was turned to this address, uses no server without keys."""
    s = serve()
    body = {"model": "m", "prompt": "x", "max_tokens": 2}
    own = s.url.split("://")[1]
    for head, want in [({"Origin": "http://evil.example"}, 403), ({"Origin": "null"}, 403), ({"Origin": s.url}, 200),
                       ({"Host": "evil.example"}, 403), ({"Host": "localhost.evil.example"}, 403),
                       ({"Host": "1.evil.example"}, 403), ({"Host": "1.evil.example", "Origin": "http://1.evil.example"}, 403),
                       ({"Host": "[evil]"}, 403), ({"Host": "localhost:1"}, 200), ({"Host": "[::1]:80"}, 200), ({"Host": own}, 200)]:
        assert s.post(COMPLETION, body, headers=head)[0] == want, head
    # a target with a name of its own counts instead of the Host header
    for name, want in [("evil.example", 403), ("localhost@evil.example", 400), (own, 200), ("localhost", 200),
                       ("localhost:x", 403)]:
        assert s.get(f"http://{name}/health", headers={"Host": own})[0] == want, name
    assert s.get(f"http://{own}/health", headers={"Host": "evil.example"})[0] == 200
    assert s.get(f"http://{own}/health", headers={"Host": "evil.example", "Origin": s.url})[0] == 200
    assert s.get("/health", headers={"Host": "localhost:x@evil.example"})[0] == 403
    assert serve("--no-keys").post(COMPLETION, body, headers={"Host": "proxy.example"})[0] == 200


@pytest.mark.parametrize("options, text", [
    (["--port", "70000"], "--port 70000"), (["--queue", "0"], "--queue 0"),
    (["--host", "0.0.0.0"], "--api-keys FILE, or --no-keys"),
    (["--host", "nowhere.invalid", "--no-keys"], "nowhere.invalid"),
    (["--max-body", "1G"], "--max-body"), (["--api-keys", "missing"], "missing"),
    (["--api-keys", "empty"], "holds no key"), (["--api-keys", "bad"], "line 2"),
    (["--no-keys", "--api-keys", "empty"], "exclude"), (["--stop-seconds", "-1"], "--stop-seconds"),
    (["--no-state", "--state", "x"], "exclude"), (["--max-tokens", "-1"], "--max-tokens"),
])
def test_bad_use(corun, options, text):
    (corun.folder / "empty").write_text("# none\n")
    (corun.folder / "bad").write_text("good\nwith space\n")
    r = corun("serve", "-m", "fake:phase", *options)
    assert r.returncode == 2 and text in r.stderr.decode(), r.stderr


def test_port_in_use(corun, serve):
    s = serve()
    r = corun("serve", "-m", "fake:phase", "--no-state", "--port", s.port)
    assert r.returncode == 2 and str(s.port) in r.stderr.decode()


def test_load(corun):
    """1,000 requests of all kinds from 64 clients; every completed answer is the batch file's."""
    r = subprocess.run([sys.executable, str(ROOT / "tools" / "load_serve.py"), "--corun",
                        str(CORUN)], cwd=corun.folder, capture_output=True, timeout=300)
    assert r.returncode == 0, r.stdout.decode() + r.stderr.decode()


# ---- clients that go away ---------------------------------------------------------------------


def send_and_leave(s, body, read, hard):
    data = json.dumps(body).encode()
    c = socket.create_connection((s.host, s.port))
    c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(data)
              + data)
    if read:
        c.recv(read)
    end = time.monotonic() + 20
    while not s.state()["running"] and time.monotonic() < end:
        time.sleep(0.005)
    if hard:
        c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    c.close()


@pytest.mark.parametrize("stream", [False, True])
def test_gone_client_frees_its_pages(serve, stream):
    """A request that would run for long ends when its client goes."""
    s = serve("--threads", 1)
    long = {"model": "m", "prompt": "x", "ignore_eos": True, "max_tokens": 900, "n": 100,
            "stream": stream}
    total = 6 * 100 * 900
    for i in range(6):
        send_and_leave(s, {**long, "request_id": f"{i}"}, read=100 if stream else 0, hard=i % 2)
    state = s.idle()
    assert state["tokens_new"] < total / 2, state
    m = s.metrics()
    assert m['corun_requests_total{end="cancelled"}'] >= 1
    assert s.post(COMPLETION, {"model": "m", "prompt": "still here"})[0] == 200


def test_slow_reader_is_cut_off(serve):
    """A stream that nobody reads does not grow in memory, and its request ends."""
    s = serve("--max-unsent", "64K", "--threads", 1)
    body = json.dumps({"model": "m", "prompt": "x", "ignore_eos": True, "max_tokens": 900,
                       "n": 120, "logprobs": 20, "stream": True}).encode()
    c = socket.socket()
    c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    c.connect((s.host, s.port))
    c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
              + body)
    end = time.monotonic() + 30
    while s.metrics()['corun_requests_total{end="cancelled"}'] == 0:
        assert time.monotonic() < end
        time.sleep(0.05)
    assert s.idle()["tokens_new"] < 120 * 900
    assert s.metrics()["corun_http_cut_off_total"] == 1
    c.close()


@pytest.mark.parametrize("unsent", ["4M", 1])
def test_large_pieces_of_a_stream(serve, unsent):
    """A client that reads gets a stream whatever its pieces' size, and however little may wait."""
    s = serve("--max-unsent", unsent)
    large = {"prompt": "x" * 4000, "max_tokens": 2, "prompt_logprobs": 20}
    asks = [large, {**large, "n": 3, "max_tokens": 20, "ignore_eos": True}, {**large, "prompt": "x" * 600},
            {"prompt": "x", "n": 32, "logprobs": 5, "max_tokens": 60, "ignore_eos": True}]
    for ask in asks:
        body = {"model": "m", **ask}
        status, _, data = s.post(COMPLETION, body)
        assert status == 200
        want = json.loads(without_created(data))
        del want["usage"]
        got = join(events(s.post(COMPLETION, {**body, "stream": True})[2]), False)
        got["created"] = 0
        assert got == want
    assert s.metrics()["corun_http_cut_off_total"] == 0


TEXT = "{% for i in range(800) %}" + "ab cd " * 1000 + "{% endfor %}"  # 4.8 MB


@pytest.mark.parametrize("path, more, mark", [
    (COMPLETION, {"prompt": "x" * 8_000_000}, " 400"),
    ("/tokenize", {"prompt": "x" * 4_000_000}, "/tokenize 200"),
    (CHAT, {"messages": TALK, "chat_template": TEXT}, " 400"),
    ("/tokenize", {"messages": TALK, "chat_template": TEXT}, "/tokenize 200"),
    (COMPLETION, {"prompt": "x" * 20000, "prompt_logprobs": 20}, "20000 prompt tokens"),
    (COMPLETION, {"prompt": "x" * 20000, "prompt_logprobs": 20, "stream": True}, "20000 prompt tokens"),
], ids=["prompt", "tokenize", "template", "tokenize-template", "answer", "stream"])
def test_small_requests_pass_large_ones(serve, path, more, mark):
    """While large requests are worked on, one after the other, small ones are answered. The server's log is looked
    at: this client would be busy with reading."""
    s = serve("--log")
    large = json.dumps({"model": "m", **({"max_tokens": 1} if path != "/tokenize" else {}), **more}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(large)}\r\n\r\n".encode()
    socks = [socket.create_connection((s.host, s.port)) for _ in range(8)]
    for c in socks:
        c.sendall(head + large)
    small = [(COMPLETION, {"model": "m", "prompt": "small", "max_tokens": 1}), ("/tokenize", {"prompt": "small"})]
    while s.said().count(mark) < len(socks):
        for ask in small[:1 if path == "/tokenize" else 2]:
            assert s.post(*ask)[0] == 200
    for c in socks:
        c.close()
    order = [mark in line for line in s.said().splitlines() if "POST" in line]
    runs = [k for k, _ in itertools.groupby(order)].count(True)
    assert runs >= 4, order  # 8 at the best


def test_answer_that_cannot_fit(corun, serve):
    """What must become larger than a row is refused before it is computed, as in a batch."""
    s = serve()
    body = {"model": "m", "prompt": "x" * 20000, "prompt_logprobs": 20, "n": 100, "max_tokens": 1}
    before = s.state()["tokens_prompt"]
    row, = row_bodies(corun, [(COMPLETION, {**body, "request_id": "r"})], "fake:phase")
    for stream in (False, True):
        status, _, data = s.post(COMPLETION, {**body, "request_id": "r", "stream": stream})
        assert status == 400 and data == row
        error = json.loads(data)["error"]
        assert error["param"] == "prompt_logprobs" and "268435456 bytes" in error["message"]
    assert s.idle()["tokens_prompt"] == before


NO_MEMORY = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>
static int is_chunk(const void *data, size_t n) { return n > 7 && memcmp(data, "data: {", 7) == 0; }
int evbuffer_add(void *b, const void *data, size_t n)
{
    static int left = 2;
    if (is_chunk(data, n) && memmem(data, n, "\"transport\"", 11) && left-- <= 0) return -1;
    int (*real)(void *, const void *, size_t) = dlsym(RTLD_NEXT, "evbuffer_add");
    return real(b, data, n);
}
#ifdef IN_chunk
void *realloc(void *p, size_t n)
{
    void *(*real)(void *, size_t) = dlsym(RTLD_NEXT, "realloc");
    return n > 3000 && p && is_chunk(p, n) && strstr(p, "\"chunk\"") ? NULL : real(p, n);
}
#endif
"""


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
@pytest.mark.parametrize("where", ["chunk", "transport"])
def test_stream_without_memory_is_no_client_that_went(serve, tmp_path, where):
    """A stream that fails for want of memory counts as 500; where it can be sent the error is its last event."""
    if where == "chunk" and re.search(b"__[at]san_", CORUN.read_bytes()):
        pytest.skip("sanitizers have their own realloc")
    (tmp_path / "short.c").write_text(NO_MEMORY)
    subprocess.run(["cc", "-shared", "-fPIC", f"-DIN_{where}", "-o", "short.so", "short.c"], cwd=tmp_path, check=True)
    asan = os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"
    s = serve(env={**os.environ, "LD_PRELOAD": str(tmp_path / "short.so"), "ASAN_OPTIONS": asan})
    body = {"model": where, "stream": True, "echo": True,
            "prompt": ["x", "y" * 400], "logprobs": 5, "max_tokens": 300, "ignore_eos": True}
    if where == "chunk":
        status, _, data = s.post(COMPLETION, body)
        last = data.split(b"\n\n")[-2]
        assert status == 200 and data.startswith(b'data: {"id"') and last.startswith(b'data: {"error":'), data[-300:]
        error = json.loads(last[6:])["error"]
        assert error["type"] == "server_error" and "memory" in error["message"]
    else:
        # Cut off in the middle, or before the transport had its turn at the beginning.
        with pytest.raises((http.client.IncompleteRead, http.client.RemoteDisconnected)):
            s.post(COMPLETION, body)
    s.idle()
    m = s.metrics()
    name = 'corun_http_requests_total{method="POST",endpoint="/v1/completions",status="%d"}'
    assert m.get(name % 500) == 1 and name % 499 not in m, m
    assert m['corun_requests_total{end="failed"}'] == 1
    assert s.post(COMPLETION, {"model": "m", "prompt": "x"})[0] == 200


def test_half_requests(serve):
    s = serve("--body-seconds", 1, "--head-seconds", 1)
    socks = []
    for text in (b"", b"POST /v1/compl", b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n",
                 b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{\"mod"):
        c = socket.create_connection((s.host, s.port))
        c.sendall(text)
        socks.append(c)
    assert s.post(COMPLETION, {"model": "m", "prompt": "others are served"})[0] == 200
    for c in socks:
        c.settimeout(20)
        while c.recv(1000):
            pass  # the server closes it
        c.close()
    s.idle()


# ---- the end ----------------------------------------------------------------------------------

SLOW = {"model": "m", "prompt": "x", "ignore_eos": True, "max_tokens": 900, "n": 64}


def test_sigterm_finishes(serve):
    s = serve("--threads", 1)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(s.post, COMPLETION, {**SLOW, "n": 8, "request_id": f"{i}",
                                                  "stream": i % 2 == 0}) for i in range(8)]
        while not s.state()["running"]:
            time.sleep(0.01)
        code = s.stop()
        for a in asked:
            try:
                status, _, data = a.result()
            except OSError:
                continue  # its connection was not taken any more
            assert status == 200 and (data[:5] != b"data:" or events(data)), data
    assert code == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_aborts_in_time(serve, number):
    s = serve("--threads", 1, "--stop-seconds", 0.2)
    with concurrent.futures.ThreadPoolExecutor(40) as pool:
        asked = [pool.submit(s.post, COMPLETION, {**SLOW, "n": 128, "request_id": f"{i}",
                                                  "stream": i % 2 == 0}) for i in range(40)]
        while len(s.state()["running"]) < 4:
            time.sleep(0.01)
        began = time.monotonic()
        code = s.stop(number)
        assert time.monotonic() - began < 5
        assert code == 128 + number
        n_aborted = 0
        for a in asked:
            try:
                status, _, data = a.result()
            except OSError:
                continue
            if status == 200:
                failed = b'"error":{' in data
                assert data[:5] != b"data:" or data.endswith(b"data: [DONE]\n\n") != failed
                n_aborted += failed
            else:
                assert status == 503, data
                n_aborted += 1
        assert n_aborted


def test_client_sees_that_a_stream_has_failed(openai, serve):
    """The event with the error is the last one; the official client raises it."""
    s = serve("--threads", 1, "--stop-seconds", 0)
    client = openai.OpenAI(base_url=s.url + "/v1", api_key="none", max_retries=0)
    got = []
    with pytest.raises(openai.APIError, match="the server was stopped before the answer"):
        for chunk in client.completions.create(model="m", prompt="x", max_tokens=900, n=100,
                                               stream=True, extra_body={"ignore_eos": True}):
            if not got:
                s.process.send_signal(signal.SIGTERM)
            got.append(chunk)
    assert 0 < len(got) < 900 * 100
    assert s.stop() == 128 + signal.SIGTERM


def test_second_signal_ends_at_once(serve):
    s = serve("--threads", 1)
    pool = concurrent.futures.ThreadPoolExecutor(8)
    asked = [pool.submit(s.post, COMPLETION, {**SLOW, "n": 128, "request_id": f"{i}"})
             for i in range(8)]
    while not s.state()["running"]:
        time.sleep(0.01)
    s.process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    assert s.process.poll() is None
    assert s.stop(signal.SIGTERM, 5) == -signal.SIGTERM
    for a in asked:
        assert a.exception() is not None or a.result()[0] == 200
    pool.shutdown()
