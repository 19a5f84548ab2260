"""For end-to-end tests of `corun serve`: a server of their own, plain requests, streams put
together, and the matrix of requests that streams, whole replies and batch rows are compared on."""
import http.client
import json
import os
import pathlib
import re
import signal
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
CORUN = pathlib.Path(os.environ.get("CORUN_BIN", ROOT / "build" / "corun")).resolve()


class Server:
    """A `corun serve` on a free port; ended by SIGTERM when the block ends."""

    def __init__(self, folder, *options, model="fake:phase", env=None):
        self.log = pathlib.Path(folder) / f"serve-{time.monotonic_ns()}.log"
        with open(self.log, "wb") as err:
            self.process = subprocess.Popen(
                [str(CORUN), "serve", "-m", str(model), "--port", "0", *map(str, options)],
                cwd=folder, stderr=err, env=env)
        end = time.monotonic() + 120
        while not (found := re.search(r"^corun serve: listening on http://(\S+):(\d+)$",
                                      self.said(), re.M)):
            if self.process.poll() is not None or time.monotonic() > end:
                self.process.kill()
                raise RuntimeError(f"corun serve did not start: {self.said()}")
            time.sleep(0.02)
        self.host, self.port = found[1], int(found[2])
        self.url = f"http://{self.host}:{self.port}"

    def said(self):
        return self.log.read_text(errors="replace")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self, number=signal.SIGTERM, timeout=60):
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    def connect(self, timeout=60):
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout)

    def ask(self, method, path, body=None, headers=None):
        """Status, headers, bytes."""
        c = self.connect()
        try:
            data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            c.request(method, path, data, headers or {})
            r = c.getresponse()
            return r.status, r.headers, r.read()
        finally:
            c.close()

    def get(self, path, **more):
        return self.ask("GET", path, **more)

    def post(self, path, body, **more):
        return self.ask("POST", path, body, **more)

    def json(self, path, body=None, status=200, **more):
        got, _, data = self.ask("GET" if body is None else "POST", path, body, **more)
        assert got == status, (got, data)
        return json.loads(data)

    def state(self):
        return self.json("/corun/state")

    def idle(self, timeout=30):
        """Waits until nothing runs; then every page must be free."""
        end = time.monotonic() + timeout
        while (s := self.state())["running"] or s["waiting"]:
            assert time.monotonic() < end, s
            time.sleep(0.02)
        assert s["pages_free"] == s["pages"] and s["swap_pages_free"] == s["swap_pages"], s
        return s

    def metrics(self):
        text = self.get("/metrics")[2].decode()
        out = {}
        for line in text.splitlines():
            if not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                out[name] = float(value)
        return out


def events(data):
    """The chunks of a stream's bytes; its form is checked."""
    assert data.endswith(b"data: [DONE]\n\n"), data[-200:]
    parts = data.split(b"\n\n")
    assert parts.pop() == b"" and parts.pop() == b"data: [DONE]"
    assert all(p.startswith(b"data: ") and b"\n" not in p for p in parts)
    return [json.loads(p[6:]) for p in parts]


def join(chunks, usage):
    """The whole answer that the chunks make."""
    whole = {"choices": {}}
    for chunk in chunks:
        assert "error" not in chunk, chunk
        for key, value in chunk.items():
            if key == "choices":
                assert len(value) <= 1
                for choice in value:
                    join_choice(whole["choices"].setdefault(choice["index"], {}), choice)
            elif key == "usage":
                if value is not None:
                    whole[key] = value
            else:
                assert whole.setdefault(key, value) == value, key
    whole["choices"] = [whole["choices"][i] for i in sorted(whole["choices"])]
    whole["object"] = {"text_completion": "text_completion",
                       "chat.completion.chunk": "chat.completion"}[whole["object"]]
    assert ("usage" in whole) == usage
    return whole


def join_choice(to, choice):
    assert to.get("finish_reason") is None, "a chunk after the end of its choice"
    for key, value in choice.items():
        if key == "delta":
            message = to.setdefault("message", {"refusal": None})
            assert ("role" in value) == ("role" not in message)
            if "role" in value:
                message.update(role=value["role"], content="")
            message["content"] += value.get("content", "")
        elif key == "text":
            to["text"] = to.get("text", "") + value
        elif key == "logprobs":
            if value is None:
                to.setdefault(key, None)
                continue
            lists = to[key] = to.get(key) or {}
            for name, part in value.items():
                lists[name] = None if part is None else (lists.get(name) or []) + part
        elif key == "token_ids":
            to[key] = to.get(key, []) + value
        else:
            to[key] = value


def usage_of(body):
    return body.get("stream_options", {}).get("include_usage", False) or \
        body.get("stream_options", {}).get("continuous_usage_stats", False)


def without_created(data):
    """An answer's bytes with its one clock value made that of a batch row."""
    out, n = re.subn(rb'"created":\d+', b'"created":0', data, count=1)
    assert n == 1
    return out


def row_bodies(corun, requests, model, *options):
    """The bytes of response.body of the batch rows of these (path, body) requests."""
    lines = [{"custom_id": body.get("request_id", ""), "method": "POST", "url": path,
              "body": {k: v for k, v in body.items() if k not in ("stream", "stream_options")}}
             for path, body in requests]
    out = []
    for line in lines:  # a batch takes every custom_id once: those without one run alone
        if line["custom_id"] == "":
            out += corun.batch([line], *options, model=model)
    ids = [line for line in lines if line["custom_id"]]
    rest = iter(corun.batch(ids, *options, model=model) if ids else [])
    plain = iter(out)
    rows = [next(rest) if line["custom_id"] else next(plain) for line in lines]
    return [re.search(rb'"body":(\{.*\})\},"error":null\}\n$', row)[1] for row in rows]


TALK = [{"role": "user", "content": "Name a colour."}]
COMPLETION, CHAT = "/v1/completions", "/v1/chat/completions"
MATRIX = [
    (COMPLETION, {"prompt": "The capital of France is"}),
    (COMPLETION, {"prompt": "The capital of France is", "max_tokens": 1, "logprobs": 2}),
    (COMPLETION, {"prompt": "The capital of France is", "logprobs": 0, "temperature": 0}),
    (COMPLETION, {"prompt": "The capital", "echo": True, "logprobs": 1, "max_tokens": 0}),
    (COMPLETION, {"prompt": "The capital", "echo": True, "logprobs": 1, "max_tokens": 1}),
    (COMPLETION, {"prompt": "The capital", "echo": True, "max_tokens": 9, "n": 2}),
    (COMPLETION, {"prompt": ["one", "two", "three"], "n": 3, "logprobs": 3, "max_tokens": 12}),
    (COMPLETION, {"prompt": [[5, 6, 7], [8]], "echo": True, "logprobs": 2, "max_tokens": 5}),
    (COMPLETION, {"prompt": "stop here", "stop": ["a", "the", "e"], "max_tokens": 40}),
    (COMPLETION, {"prompt": "stop here", "stop": ["e"], "include_stop_str_in_output": True,
                  "max_tokens": 40, "logprobs": 1}),
    (COMPLETION, {"prompt": "x", "ignore_eos": True, "max_tokens": 60, "logprobs": 1,
                  "skip_special_tokens": False}),
    (COMPLETION, {"prompt": "x", "ignore_eos": True, "max_tokens": 60, "min_tokens": 50,
                  "return_tokens_as_token_ids": True, "logprobs": 2}),
    (COMPLETION, {"prompt": "tell me", "prompt_logprobs": 2, "return_token_ids": True, "n": 2}),
    (COMPLETION, {"prompt": "a\u0000b \U0001f9ac \ufffd", "echo": True, "logprobs": 1}),
    (COMPLETION, {"prompt": "seeded", "seed": 7, "temperature": 1.5, "max_tokens": 30}),
    (COMPLETION, {"prompt": "usage", "stream_options": {"include_usage": True}}),
    (COMPLETION, {"prompt": ["u", "v"], "n": 2, "max_tokens": 7, "stream_options": {
        "include_usage": True, "continuous_usage_stats": True}}),
    (CHAT, {"messages": TALK, "max_tokens": 20}),
    (CHAT, {"messages": TALK, "max_tokens": 20, "n": 3, "logprobs": True, "top_logprobs": 2,
            "stream_options": {"include_usage": True}}),
    (CHAT, {"messages": TALK, "max_tokens": 9, "logprobs": True, "prompt_logprobs": 1,
            "return_token_ids": True}),
    (CHAT, {"messages": [*TALK, {"role": "assistant", "content": "I like"}], "max_tokens": 9,
            "continue_final_message": True, "echo": True, "n": 2}),
    (CHAT, {"messages": TALK, "max_completion_tokens": 5, "temperature": 0}),
]
# Most have a request_id, since each one without costs a batch run of its own.
MATRIX = [(path, {"model": "m", **({"request_id": f"m{i}"} if i % 11 else {}), **body})
          for i, (path, body) in enumerate(MATRIX)]
