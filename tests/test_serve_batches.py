"""Files and batches of `corun serve` with the official client: the flow, what is refused, a server
that is killed again and again; the output is the file that `corun batch` writes, by bytes."""
import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import threading
import time

import pytest

from conftest import ROOT, chat, completion
from server import Server

openai = pytest.importorskip("openai")
DEMO = ROOT / ".cache" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
ENDS = ("completed", "failed", "cancelled")


class Kept(Server):
    """A server with a state folder, which can be killed and started again."""

    def __init__(self, corun, *options, model="fake:phase"):
        self.corun, self.model, self.options = corun, model, options
        self.start()

    def start(self, *more):
        super().__init__(self.corun.folder, "--state", "state", *self.options, *more,
                         model=self.model)
        self.client = openai.OpenAI(base_url=self.url + "/v1", api_key="none", max_retries=0)

    def restart(self, number=signal.SIGKILL, *more):
        self.stop(number)
        self.start(*more)

    def raw(self, path, data=None, method=None, **headers):
        """Status and JSON of a request."""
        status, _, body = self.ask(method or ("GET" if data is None else "POST"), path, data,
                                   headers)
        return status, json.loads(body)

    def upload(self, data, name="in.jsonl"):
        return self.client.files.create(file=(name, data), purpose="batch")

    def batch(self, data, endpoint="/v1/completions", **more):
        return self.client.batches.create(input_file_id=self.upload(data).id, endpoint=endpoint,
                                          completion_window="24h", **more)

    def wait(self, batch, seconds=60):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            b = self.client.batches.retrieve(batch.id)
            if b.status in ENDS:
                return b
            time.sleep(0.02)
        raise AssertionError(f"{b.status} after {seconds} s: {b}")

    def progress(self, batch, rows, seconds=60):
        """Waits until this many more rows are counted, or the batch ends."""
        end = time.monotonic() + seconds
        first = None
        while time.monotonic() < end:
            b = self.client.batches.retrieve(batch.id)
            n = b.request_counts.completed + b.request_counts.failed
            first = n if first is None else first
            if b.status in ENDS or n >= first + rows:
                return b
            time.sleep(0.01)
        raise AssertionError(b)

    def content(self, file_id):
        return self.client.files.content(file_id).read()


@pytest.fixture
def serve(corun):
    running = []

    def start(*options, **more):
        running.append(Kept(corun, *options, **more))
        return running[-1]

    yield start
    for s in running:
        s.stop(signal.SIGKILL)


def text_of(lines):
    return b"".join((x if isinstance(x, bytes) else json.dumps(x).encode()) + b"\n" for x in lines)


def check_completed(corun, s, batch, lines, *options, model="fake:phase"):
    """The batch's files against those of the command."""
    assert batch.status == "completed", batch
    rows = corun.batch(lines, *options, model=model)
    bad = [r for r in rows if json.loads(r)["response"]["status_code"] != 200]
    assert s.content(batch.output_file_id) == b"".join(rows)
    if bad:
        assert s.content(batch.error_file_id) == b"".join(bad)
    else:
        assert batch.error_file_id is None
    c = batch.request_counts
    assert (c.total, c.completed, c.failed) == (len(rows), len(rows) - len(bad), len(bad))


MIXED = [completion("a", "one two", max_tokens=9),
         completion("b", "one two", max_tokens=9, n=3, temperature=0.8, logprobs=2),
         b"", b"  \t\r",
         completion("a", "again", max_tokens=3),  # the id of the first line
         b"no JSON", b"[1]",
         completion("c", "x", temperature=9),
         completion("d", [1, 2, 3], max_tokens=4, echo=True, request_id="q"),
         {"custom_id": "e", "method": "POST", "url": "/v1/embeddings", "body": {}},
         completion("\u00e9", "y", stream=False)]


def test_flow(corun, serve):
    s = serve()
    up = s.upload(text_of(MIXED), "my requests.jsonl")
    assert re.fullmatch("file-[0-9a-f]{32}", up.id)
    assert (up.object, up.purpose, up.filename) == ("file", "batch", "my requests.jsonl")
    assert up.bytes == len(text_of(MIXED)) and abs(up.created_at - time.time()) < 60
    assert s.client.files.retrieve(up.id) == up
    assert s.content(up.id) == text_of(MIXED)
    b = s.client.batches.create(input_file_id=up.id, endpoint="/v1/completions",
                                completion_window="24h", metadata={"k": "v", "\u00e9": ""})
    assert b.status == "validating" and b.object == "batch"
    done = s.wait(b)
    check_completed(corun, s, done, MIXED)
    assert done.metadata == {"k": "v", "\u00e9": ""} and done.errors is None
    assert done.input_file_id == up.id and done.completion_window == "24h"
    times = [done.created_at, done.in_progress_at, done.finalizing_at, done.completed_at]
    assert times == sorted(times) and abs(times[0] - time.time()) < 60
    assert not (done.failed_at or done.expired_at or done.cancelling_at or done.cancelled_at
                or done.expires_at)
    out = s.client.files.retrieve(done.output_file_id)
    assert out.purpose == "batch_output" and out.filename == f"{b.id}_output.jsonl"
    # all of it is there after a restart; the output can be deleted, and the input now as well
    s.restart(signal.SIGTERM)
    assert s.client.batches.retrieve(b.id) == done
    check_completed(corun, s, done, MIXED)
    for name in (done.output_file_id, up.id):
        d = s.client.files.delete(name)
        assert d.deleted and d.id == name
        with pytest.raises(openai.NotFoundError):
            s.content(name)


def test_chats_long_lines_and_no_last_line_feed(corun, serve):
    lines = [chat("a", "hello", max_tokens=5), chat("b", "x" * 1000, max_tokens=1),
             b'{"custom_id": "long", "pad": "' + b"x" * (16 << 20) + b'"}',
             chat("c", "hello", max_tokens=5, logprobs=True, top_logprobs=2)]
    s = serve("--max-upload", "17M")
    b = s.wait(s.batch(text_of(lines)[:-1], "/v1/chat/completions"))
    check_completed(corun, s, b, lines)
    assert b.request_counts.failed == 1


def test_options_move_the_output_alike(corun, serve):
    """Served name, pool: the same options give the same file."""
    lines = [completion("a", "x"), {**completion("b", "x"), "body": {"model": "z", "prompt": "x"}},
             completion("big", [5] * 500, max_tokens=100)]
    options = ["--served-model-name", "z", "--kv", "64K", "--page", "16"]
    s = serve(*options)
    b = s.wait(s.batch(text_of(lines)))
    check_completed(corun, s, b, lines, *options)
    assert b.request_counts.failed == 2


def test_lists(serve):
    s = serve()
    files = [s.upload(text_of([completion(f"{i}", "x", max_tokens=1)])) for i in range(5)]
    ids = [f.id for f in files]
    assert [f.id for f in s.client.files.list()] == ids[::-1]
    assert [f.id for f in s.client.files.list(order="asc", limit=2)] == ids  # pages are followed
    page = s.client.files.list(limit=2, after=ids[3])
    assert [f.id for f in page.data] == [ids[2], ids[1]] and page.has_more
    batches = [s.client.batches.create(input_file_id=i, endpoint="/v1/completions",
                                       completion_window="24h") for i in ids]
    for b in batches:
        s.wait(b)
    want = [b.id for b in batches][::-1]
    assert [b.id for b in s.client.batches.list(limit=2)] == want
    page = s.client.batches.list(limit=3, after=want[0])
    assert [b.id for b in page.data] == want[1:4] and page.has_more
    assert [f.id for f in s.client.files.list(purpose="batch")] == ids[::-1]
    assert len(list(s.client.files.list(purpose="batch_output"))) == 5
    for path in ("/v1/files", "/v1/batches"):
        for query, param in (("limit=0", "limit"), ("limit=x", "limit"), ("limit=99999", "limit"),
                             ("after=none", "after"), ("order=up", "order")):
            status, body = s.raw(f"{path}?{query}")
            assert status == 400 and body["error"]["param"] == param, (path, query, body)


def test_cancel(corun, serve):
    s = serve()
    lines = [completion(f"{i}", [1, 2, 3 + i % 90], max_tokens=200) for i in range(1500)]
    first, second = s.batch(text_of(lines)), s.batch(text_of(lines))
    s.progress(first, 1)
    assert s.client.batches.cancel(second.id).status == "cancelling"
    gone = s.wait(second)  # while the first one runs
    assert gone.status == "cancelled" and gone.output_file_id is None
    assert gone.cancelling_at and gone.cancelled_at
    with pytest.raises(openai.BadRequestError) as e:
        s.client.files.delete(first.input_file_id)
    assert e.value.code == "file_in_use" and first.id in str(e.value)
    b = s.client.batches.cancel(first.id)
    assert b.status == "cancelling"
    b = s.wait(b)
    assert b.status == "cancelled" and 0 < b.request_counts.completed < 1500
    rows = s.content(b.output_file_id).splitlines(keepends=True)
    assert len(rows) == b.request_counts.completed
    want = iter(corun.batch(lines))
    assert all(any(r == w for w in want) for r in rows)  # in the order of the lines
    with pytest.raises(openai.BadRequestError, match="is cancelled and cannot be"):
        s.client.batches.cancel(first.id)
    s.restart()
    assert s.client.batches.retrieve(first.id) == b
    idle = time.monotonic() + 10
    while s.raw("/corun/state")[1]["running"] and time.monotonic() < idle:
        time.sleep(0.05)
    state = s.raw("/corun/state")[1]
    assert not state["running"] and state["pages"] == state["pages_free"]


def test_failed_batches(serve):
    s = serve()
    for data, code in ((b"", "empty_file"), (b"\n \n", "empty_file"),
                       (b"\x1f\x8b\x08\x00", "invalid_file")):
        b = s.wait(s.batch(data))
        assert b.status == "failed" and b.errors.data[0].code == code and b.failed_at
        assert b.output_file_id is None and b.error_file_id is None
    b = s.wait(s.batch(text_of([chat("a", "x"), b"no JSON", completion("b", "x")]),
                       "/v1/chat/completions"))
    assert [(e.code, e.line, e.param) for e in b.errors.data] == [("mismatched_endpoint", 3, "url")]
    with pytest.raises(openai.BadRequestError, match="is failed and cannot be cancelled"):
        s.client.batches.cancel(b.id)


def test_refused(serve):
    s = serve("--max-upload", "1000")
    f = s.upload(b"{}")
    good = {"input_file_id": f.id, "endpoint": "/v1/completions", "completion_window": "24h"}
    for change, param in (({"input_file_id": "file-x"}, "input_file_id"),
                          ({"input_file_id": 5}, "input_file_id"),
                          ({"input_file_id": None}, "input_file_id"),
                          ({"endpoint": "/v1/embeddings"}, "endpoint"),
                          ({"completion_window": "1h"}, "completion_window"),
                          ({"input_file_id": f.id + "\0x"}, "input_file_id"),
                          ({"endpoint": "/v1/completions\0/x"}, "endpoint"),
                          ({"completion_window": "24h\0"}, "completion_window"),
                          ({"metadata": []}, "metadata"), ({"metadata": {"a": 1}}, "metadata"),
                          ({"metadata": {"a" * 65: ""}}, "metadata"),
                          ({"metadata": {"a": "x" * 513}}, "metadata"),
                          ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
                          ({"output_expires_after": {"seconds": 5}}, None)):
        status, body = s.raw("/v1/batches", json.dumps({**good, **change}).encode())
        assert status == 400 and body["error"]["param"] == param, (change, body)
        assert body["error"]["type"] == "invalid_request_error"
    for bad in (b"", b"{", b"[]", b'{"a": 1, "a": 2}', b'{"endpoint": "\xff"}'):
        assert s.raw("/v1/batches", bad)[0] == 400
    for path in ("/v1/files/file-x", "/v1/files/file-x/content", "/v1/batches/batch_x",
                 "/v1/files/" + "x" * 200):
        status, body = s.raw(path)
        assert status == 404 and body["error"]["message"], path
    assert s.raw("/v1/files/file-x", method="DELETE")[0] == 404
    assert s.raw("/v1/batches/batch_x/cancel", b"", method="POST")[0] == 404
    assert s.raw(f"/v1/files/{f.id}", b"{}", method="POST")[0] == 405
    with pytest.raises(openai.BadRequestError, match="purpose: must be batch"):
        s.client.files.create(file=("a", b"{}"), purpose="assistants")
    with pytest.raises(openai.BadRequestError, match="expires_after.*not supported"):
        s.client.files.create(file=("a", b"{}"), purpose="batch",
                              expires_after={"anchor": "created_at", "seconds": 3600})
    with pytest.raises(openai.APIStatusError) as e:
        s.upload(b"x" * 1001)
    assert e.value.status_code == 413
    assert s.upload(b"x" * 1000).bytes == 1000
    assert len(list(s.client.files.list())) == 2
    assert len(os.listdir(s.corun.folder / "state" / "files")) == 2


def form(*parts, end=b"--b0--\r\n"):
    return b"".join(b"--b0\r\nContent-Disposition: form-data; " + head + b"\r\n\r\n" + data + b"\r\n"
                    for head, data in parts) + end


def test_forms(serve):
    s = serve()
    purpose, file = (b'name="purpose"', b"batch"), (b'name=file; filename="a"', b"{}")
    multi = {"Content-Type": "multipart/form-data; boundary=b0"}
    status, body = s.raw("/v1/files", form(file, purpose), **multi)  # in any order
    assert status == 200 and body["filename"] == "a" and body["bytes"] == 2
    assert s.raw("/v1/files", form(purpose, (b"name=file", b"")), **multi)[1]["bytes"] == 0
    for data, why in ((form(purpose), "file: is needed"), (form(file), "purpose: must be batch"),
                      (form(file, file, purpose), "file: is given twice"),
                      (form(file, purpose, purpose), "purpose: is given twice"),
                      (form(file, (b"name=purpose", b"batch" * 20)), "purpose: must be batch"),
                      (form(file, (b"name=purpose", b"batch\0x")), "purpose: must be batch"),
                      (form(file, purpose, (b"name=other", b"")), "other: this field"),
                      (form(file, purpose, end=b"--b0\r\n"), "before its last boundary"),
                      (form(file, purpose)[:40], "before its last boundary"),
                      (form((b"x", b"")), "Content-Disposition"),
                      (form((b'name=file; filename="' + b"n" * 1025 + b'"', b"")), "1024 bytes"),
                      (b"", "before its last boundary")):
        status, body = s.raw("/v1/files", data, **multi)
        assert status == 400 and why in body["error"]["message"], (data[:200], body)
    for kind in ("application/json", "multipart/form-data", "multipart/mixed; boundary=b0"):
        status, body = s.raw("/v1/files", form(file, purpose), **{"Content-Type": kind})
        assert status == 400 and "Content-Type" in body["error"]["message"]
    # clients that go away in the middle leave nothing
    for cut in (5, 60, 150):
        data = form(purpose, (b"name=file", b"x" * 5000))
        with socket.create_connection(("127.0.0.1", s.port)) as c:
            c.sendall(b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n"
                      b"Content-Type: multipart/form-data; boundary=b0\r\n\r\n" % len(data)
                      + data[:cut])
            time.sleep(0.05)
    end = time.monotonic() + 10
    files = s.corun.folder / "state" / "files"
    while len(os.listdir(files)) != 2 and time.monotonic() < end:
        time.sleep(0.05)
    assert len(os.listdir(files)) == 2
    assert len(list(s.client.files.list())) == 2


def test_large_content(serve):
    """A file that is far larger than what a socket takes at once comes back whole."""
    data = b"".join(b"%07d %s\n" % (i, b"x" * 990) for i in range(40000))
    s = serve()
    up = s.client.files.create(file=("large.jsonl", data), purpose="batch")
    assert s.content(up.id) == data


def test_one_client_does_not_starve_the_rest(serve):
    """While one client uploads and another downloads as fast as they can, /health stays quick."""
    s = serve()
    data = b"x" * (32 << 20)
    up = s.upload(data)
    late, busy = [], threading.Event()

    def ask():
        while not busy.is_set():
            begin = time.monotonic()
            assert s.get("/health")[0] == 200
            late.append(time.monotonic() - begin)

    good = threading.Thread(target=ask)
    good.start()
    others = [threading.Thread(target=f) for f in
              (lambda: s.upload(data), lambda: s.content(up.id), lambda: s.content(up.id))]
    for t in others:
        t.start()
    for t in others:
        t.join()
    busy.set()
    good.join()
    assert len(late) > 20 and max(late) < 1, (len(late), max(late))


SLOW_DISK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
ssize_t write(int fd, const void *data, size_t n)
{
    char link[64], name[4096] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (readlink(link, name, sizeof name - 1) > 0 && strstr(name, "/files/part-")) usleep(1500000);
    ssize_t (*real)(int, const void *, size_t) = dlsym(RTLD_NEXT, "write");
    return real(fd, data, n);
}
"""


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
def test_slow_disk_holds_up_nobody_else(corun, tmp_path):
    (tmp_path / "slow.c").write_text(SLOW_DISK)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", "slow.so", "slow.c"], cwd=tmp_path, check=True)
    asan = os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"
    env = {**os.environ, "LD_PRELOAD": str(tmp_path / "slow.so"), "ASAN_OPTIONS": asan}
    with Server(tmp_path, "--state", "state", env=env) as s:
        client = openai.OpenAI(base_url=s.url + "/v1", api_key="none", max_retries=0)
        data = b"x" * (150 << 10)
        began = time.monotonic()
        upload = threading.Thread(target=lambda: client.files.create(file=("a", data), purpose="batch"))
        upload.start()
        late = []
        while upload.is_alive():
            begin = time.monotonic()
            assert s.get("/health")[0] == 200
            assert s.post("/v1/completions", {"model": "m", "prompt": "x", "max_tokens": 2})[0] == 200
            late.append(time.monotonic() - begin)
        upload.join()
        assert time.monotonic() - began > 1.4  # the disk was slow: one write takes as long
        assert len(late) > 10 and max(late) < 1.2, (len(late), max(late))
        assert client.files.content(client.files.list().data[0].id).read() == data


def test_stored_limit(corun, serve):
    """All files together have a limit: more uploads are refused by name, results never."""
    lines = [completion(f"{i}", "x", max_tokens=9) for i in range(9)]
    text = text_of(lines)
    room = 3 * 4096 + len(text) + len(b"".join(corun.batch(lines)))
    s = serve("--max-stored", str(room))
    a = s.upload(text)
    with pytest.raises(openai.APIStatusError, match="--max-stored.*delete some") as e:
        s.upload(b"x" * 30000)
    assert e.value.status_code == 413 and e.value.body["param"] == "file"
    b = s.client.batches.create(input_file_id=a.id, endpoint="/v1/completions",
                                completion_window="24h")
    check_completed(corun, s, s.wait(b), lines)
    s.upload(b"")
    assert s.metrics()["corun_stored_bytes"] == room
    for _ in range(2):
        with pytest.raises(openai.APIStatusError, match="--max-stored"):
            s.upload(b"")  # a file without bytes counts too
        s.restart(signal.SIGTERM)
    s.client.files.delete(a.id)
    assert s.upload(b"").bytes == 0
    assert len(os.listdir(s.corun.folder / "state" / "files")) == 3


def kill_five_times(s, batch, rows, seed):
    """kill -9 at random moments while the batch runs; the number of kills that hit it running."""
    rng = random.Random(seed)
    hits = 0
    for _ in range(5):
        b = s.progress(batch, rows)
        time.sleep(rng.random() * 0.2)
        hits += b.status == "in_progress"
        s.restart()
    return hits


def test_killed_five_times(corun, serve):
    lines = [completion(f"r{i}" if i % 101 else "same", f"line {i}", max_tokens=100, n=1 + i % 2)
             for i in range(2500)]
    lines[1000:1000] = [b"", b"no JSON"]
    s = serve("--threads", 1)
    b = s.batch(text_of(lines))
    assert kill_five_times(s, b, 200, 1) >= 3
    check_completed(corun, s, s.wait(b), lines)


@pytest.mark.skipif(not DEMO.exists(), reason="the demo model is not fetched (tools/fetch demo)")
def test_demo_model_killed_five_times(corun, serve):
    lines = [chat(f"r{i}", f"Say something about the number {i}.", max_tokens=32)
             for i in range(32)]
    s = serve("--slots", 4, model=DEMO)
    b = s.batch(text_of(lines), "/v1/chat/completions")
    assert kill_five_times(s, b, 1, 2) >= 2
    check_completed(corun, s, s.wait(b, 120), lines, model=DEMO)


def test_ended_by_a_signal(corun, serve):
    """SIGTERM does not wait for a batch; the next server goes on."""
    lines = [completion(f"{i}", f"line {i}", max_tokens=150) for i in range(1200)]
    s = serve()
    b = s.batch(text_of(lines))
    s.progress(b, 1)
    began = time.monotonic()
    assert s.stop() == 0
    assert time.monotonic() - began < 5
    s.start()
    assert s.client.batches.retrieve(b.id).status == "in_progress"
    check_completed(corun, s, s.wait(b), lines)


def test_another_identity(corun, serve):
    """What another engine has begun is not gone on with: the batch fails, its rows are kept."""
    lines = [completion(f"{i}", f"line {i}", max_tokens=150) for i in range(1200)]
    s = serve()
    b = s.batch(text_of(lines))
    s.progress(b, 1)
    s.restart(signal.SIGKILL, "--page", 32)
    b = s.wait(b)
    assert b.status == "failed" and b.errors.data[0].code == "server_changed"
    assert "numeric.page_tokens: then 64, now 32" in b.errors.data[0].message
    rows = s.content(b.output_file_id).splitlines(keepends=True)
    assert 0 < len(rows) == b.request_counts.completed
    want = iter(corun.batch(lines))
    assert all(any(r == w for w in want) for r in rows)
    with pytest.raises(openai.BadRequestError):
        s.client.batches.cancel(b.id)


def test_requests_go_before_lines(serve):
    """A request is answered while a batch runs."""
    s = serve()
    b = s.batch(text_of([completion(f"{i}", f"line {i}", max_tokens=400) for i in range(3000)]))
    s.progress(b, 1)
    for i in range(5):
        assert s.client.completions.create(model="m", prompt="now", max_tokens=4).choices
    assert s.client.batches.retrieve(b.id).status == "in_progress"
    s.client.batches.cancel(b.id)


# ---- the folder -------------------------------------------------------------------------------


def test_no_state(tmp_path):
    with Server(tmp_path, "--no-state") as s:
        for method, path in (("GET", "/v1/files"), ("POST", "/v1/files"), ("GET", "/v1/batches"),
                             ("POST", "/v1/batches"), ("GET", "/v1/files/x/content")):
            status, _, body = s.ask(method, path, b"{}" if method == "POST" else None)
            assert status == 503 and "--no-state" in json.loads(body)["error"]["message"]


def test_folder_that_cannot_be_had(corun, serve, tmp_path):
    s = serve()
    options = ("serve", "-m", "fake:phase", "--port", 0, "--state")
    r = corun(*options, "state")
    assert r.returncode == 2 and b"another process" in r.stderr
    assert s.upload(b"{}").id
    s.stop()
    (tmp_path / "state" / "corun.db").write_bytes(b"no database " * 1000)
    r = corun(*options, "state")
    assert r.returncode == 2 and b"not a database" in r.stderr
    (tmp_path / "file").write_bytes(b"")
    r = corun(*options, "file/x")
    assert r.returncode == 2 and b"file" in r.stderr
    # the usual folder is no reason not to serve
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "file")}
    with Server(tmp_path, env=env) as plain:
        assert "no files and no batches" in plain.said()
        status, _, body = plain.get("/v1/files")
        assert status == 503 and str(tmp_path) in json.loads(body)["error"]["message"]


def test_database_taken_away(corun, serve):
    """Without its database in place the server takes nothing that would be lost; brought back, all goes on."""
    s = serve()
    db = s.corun.folder / "state" / "corun.db"
    lines = [completion(f"{i}", f"line {i}", max_tokens=300) for i in range(800)]
    b = s.batch(text_of(lines))
    s.progress(b, 1)
    db.rename(db.with_suffix(".away"))
    end = time.monotonic() + 30
    while not (now := s.client.batches.retrieve(b.id)).errors and time.monotonic() < end:
        time.sleep(0.02)
    assert now.status == "in_progress" and now.errors.data[0].code == "waits"
    for _ in range(2):
        for fails in (lambda: s.upload(b"{}"), lambda: s.client.files.delete(b.input_file_id),
                      lambda: s.client.batches.cancel(b.id),
                      lambda: s.client.batches.create(input_file_id=b.input_file_id, endpoint="/v1/completions",
                                                      completion_window="24h")):
            with pytest.raises(openai.InternalServerError, match=r"state/corun\.db: was removed or replaced") as e:
                fails()
            assert e.value.status_code == 503 and e.value.code == "storage"
        assert s.client.completions.create(model="m", prompt="x", max_tokens=2).choices
        assert s.content(b.input_file_id) == text_of(lines)
        db.write_bytes(b"")  # another one in its place
    assert s.said().count("corun serve: state/corun.db: was removed or replaced") == 1
    db.with_suffix(".away").rename(db)
    s.upload(b"{}")
    s.restart()
    check_completed(corun, s, s.wait(b), lines)
    assert len(list(s.client.files.list())) == 3


def test_unfinished_batches_have_a_limit(corun, serve):
    """More than --max-batches: 429; those that were taken go on, and with room others are taken."""
    s = serve("--max-batches", 2)
    long = s.batch(text_of([completion(f"{i}", f"line {i}", max_tokens=300) for i in range(3000)]))
    f = s.upload(text_of([completion("a", "x")]))
    new = {"input_file_id": f.id, "endpoint": "/v1/completions", "completion_window": "24h"}
    short = s.client.batches.create(**new)
    for _ in range(2):
        status, head, data = s.ask("POST", "/v1/batches", json.dumps(new).encode())
        error = json.loads(data)["error"]
        assert status == 429 and head["Retry-After"] == "1" and error["type"] == "rate_limit_error"
        assert "2 batches" in error["message"] and "--max-batches" in error["message"]
        s.restart()
    assert len(list(s.client.batches.list())) == 2
    s.client.batches.cancel(long.id)
    s.wait(long)
    assert s.wait(short).status == "completed"
    for _ in range(3):
        assert s.wait(s.client.batches.create(**new)).status == "completed"


def test_no_room(corun, serve):
    """Files may not grow: 507 for uploads, a batch that waits and says why; requests are served;
    with room all goes on."""
    s = serve()
    lines = [completion(f"{i}", f"line {i}", max_tokens=300) for i in range(1200)]
    f = s.upload(text_of(lines))
    size = 1 << 16
    resource.prlimit(s.process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    with pytest.raises(openai.APIStatusError) as e:
        s.upload(b"x" * (1 << 20))
    assert e.value.status_code == 507 and e.value.code == "no_room"
    name = 'corun_http_requests_total{method="POST",endpoint="/v1/files",status="507"}'
    assert s.metrics()[name] == 1
    resource.prlimit(s.process.pid, resource.RLIMIT_FSIZE,
                     (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    b = s.client.batches.create(input_file_id=f.id, endpoint="/v1/completions",
                                completion_window="24h")
    s.progress(b, 1)
    resource.prlimit(s.process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    end = time.monotonic() + 30
    while not (now := s.client.batches.retrieve(b.id)).errors and time.monotonic() < end:
        time.sleep(0.02)
    assert now.status == "in_progress" and now.errors.data[0].code == "waits"
    assert "no room on the disk" in now.errors.data[0].message
    assert s.client.completions.create(model="m", prompt="x", max_tokens=2).choices
    with pytest.raises(openai.APIStatusError) as e:
        s.client.batches.create(input_file_id=f.id, endpoint="/v1/completions",
                                completion_window="24h")
    assert e.value.status_code == 507
    resource.prlimit(s.process.pid, resource.RLIMIT_FSIZE,
                     (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    check_completed(corun, s, s.wait(b), lines)
    assert len(list(s.client.batches.list())) == 1
    assert len(os.listdir(s.corun.folder / "state" / "files")) == 2
