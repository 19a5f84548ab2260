"""Clients that mean harm, against `corun serve`, while a well-behaved one is served: none of them
brings the server down, keeps its file descriptors or makes its memory grow."""
import json
import os
import random
import resource
import socket
import struct
import threading
import time
import urllib.request

import pytest

from server import Server

HOST = b"Host: localhost\r\n"
BODY = json.dumps({"model": "m", "prompt": "hello", "max_tokens": 4}).encode()


def fds(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def rss_mib(pid):
    with open(f"/proc/{pid}/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


class Good(threading.Thread):
    """Asks again and again; keeps the answers that were late or wrong."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self.url, self.worst, self.asked, self.wrong = f"http://127.0.0.1:{port}", 0.0, 0, []
        self.over = threading.Event()

    def run(self):
        first = None
        while not self.over.is_set():
            begin = time.monotonic()
            try:
                r = urllib.request.Request(self.url + "/v1/completions", BODY,
                                           {"Content-Type": "application/json"})
                with urllib.request.urlopen(r, timeout=20) as got:
                    text = json.load(got)["choices"][0]["text"]
                first = text if first is None else first
                if text != first:
                    self.wrong.append(text)
            except Exception as e:  # whatever it is, the client was not served
                self.wrong.append(repr(e))
            self.asked += 1
            self.worst = max(self.worst, time.monotonic() - begin)
            time.sleep(0.02)


@pytest.fixture(scope="module")
def port_pid(tmp_path_factory):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 6000:
        pytest.skip("2,000 connections need more file descriptors than this machine allows")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 6000), hard))
    s = Server(tmp_path_factory.mktemp("hostile"), "--no-state", model="fake:phase")
    yield s.port, s.process.pid
    s.stop()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def connect(port):
    s = socket.create_connection(("127.0.0.1", port), timeout=8)
    return s


def talk(port, data, end=False):
    """Sends, then reads to the end; b"" when the server only closed."""
    with connect(port) as s:
        got = b""
        try:
            s.sendall(data)
            if end:
                s.shutdown(socket.SHUT_WR)
            while piece := s.recv(65536):
                got += piece
        except ConnectionError:
            pass
        return got


def status(reply):
    assert reply.startswith(b"HTTP/1.1 "), reply[:100]
    head, _, body = reply.partition(b"\r\n\r\n")
    code = int(head.split()[1])
    if code >= 400:
        error = json.loads(body)["error"]
        assert error["message"] and set(error) == {"message", "type", "param", "code"}
    return code


def post(body, length=None, more=b""):
    n = len(body) if length is None else length
    return (b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"Connection: close\r\n" + more
            + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % n + body)


def bad_heads(port):
    for head, want in [
            (b"GET / HTTP/1.1\r\n\r\n", 400), (b"GET / HTTP/3.0\r\n" + HOST + b"\r\n", 505),
            (b"GET /%00 HTTP/1.1\r\n" + HOST + b"\r\n", 400),
            (b"GET /\xff HTTP/1.1\r\nConnection: close\r\n" + HOST + b"\r\n", None),
            (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400),
            (b"GET / HTTP/1.1\r\n" + HOST + b"A : b\r\n\r\n", 400),
            (b"GET / HTTP/1.1\r\n" + HOST + b"A: b\r\n c\r\n\r\n", 400),
            (b"\r\n" * 40000, 400),
            (b"GET / HTTP/1.1\r\n" + HOST + b"A: b\r\n" * 20000 + b"\r\n", 431),
            (b"GET / HTTP/1.1\r\n" + HOST + b"A: b\r\n" * 250 + b"\r\n", 431),  # too many, not too long
            (b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\n", 431)]:
        reply = talk(port, head)
        if reply:  # a client that goes on sending may lose the reply
            got = status(reply)
            assert got == want or (want is None and got in (400, 404)), (head[:60], got)
        else:
            assert len(head) > 60000, head[:60]


def bad_bodies(port):
    assert status(talk(port, post(b'{"prompt":"\xff\xfe"}'))) == 400
    assert status(talk(port, post(b"[" * 100000))) == 400
    assert status(talk(port, post(b"{}", more=b"Content-Length: 3\r\n"))) == 400
    assert status(talk(port, post(b"", 1 << 40))) == 413
    chunked = b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
    assert status(talk(port, chunked + b"zz\r\n")) == 400
    assert status(talk(port, chunked + b"5\r\nhelloX")) == 400
    talk(port, post(BODY[:10], len(BODY)), end=True)  # half a body, then it goes away
    huge = post(b'{"model":"m","prompt":"' + b"a" * (40 << 20) + b'"}')
    reply = talk(port, huge)
    assert not reply or status(reply) in (400, 413)


def noise(port):
    rng = random.Random(7)
    for _ in range(200):
        talk(port, rng.randbytes(rng.randrange(1, 3000)), end=True)
    for _ in range(50):  # garbage behind a request
        reply = talk(port, b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n" + rng.randbytes(200)
                     + b"\r\n\r\n", end=False)
        assert not reply or reply.startswith(b"HTTP/1.1 200 "), reply[:100]


def resets(port):
    """RST in the middle of a body, of a reply and of a stream."""
    stream = json.dumps({"model": "m", "prompt": "x", "max_tokens": 500, "stream": True}).encode()
    for i in range(150):
        with connect(port) as s:
            data = post(stream if i % 3 == 2 else BODY)
            s.sendall(data[:-5] if i % 3 == 0 else data)
            if i % 3 == 2:
                s.recv(1)
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def never_read(port):
    stream = json.dumps({"model": "m", "prompt": "x", "max_tokens": 500, "stream": True}).encode()
    held = [connect(port) for _ in range(20)]
    for s in held:
        s.sendall(post(stream))
    time.sleep(0.5)
    for s in held:
        s.close()


def crowd(port):
    """2,000 connections: slow heads, half bodies, silence."""
    held = []
    for i in range(2000):
        try:
            s = connect(port)
            s.sendall([b"GET / HT", post(b"{", 100), b""][i % 3])
            held.append(s)
        except ConnectionError:
            pass
    assert len(held) > 1900
    time.sleep(0.5)
    for s in held:
        s.close()


@pytest.mark.parametrize("attack", [bad_heads, bad_bodies, noise, resets, never_read, crowd])
def test_others_are_served(port_pid, attack):
    port, pid = port_pid
    talk(port, post(BODY))
    before, size = fds(pid), rss_mib(pid)
    good = Good(port)
    good.start()
    time.sleep(0.1)
    try:
        attack(port)
    finally:
        good.over.set()
        good.join(30)
    assert good.asked > 2 and not good.wrong, good.wrong[:3]
    assert good.worst < 5, good.worst
    end = time.monotonic() + 10  # replies may linger for two seconds
    while fds(pid) > before + 2 and time.monotonic() < end:
        time.sleep(0.1)
    assert fds(pid) <= before + 2, (before, fds(pid))
    assert rss_mib(pid) < size + 300, (size, rss_mib(pid))
