"""A light HTTP client for many requests at once, so that a measurement on one machine measures the
server: non-blocking sockets, one thread, bytes are looked at once the reply is complete."""
import json
import select
import socket


def request_bytes(path, body):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return (b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % (path.encode(), len(data))) + data


class Job:
    """One request. cut: leave after so many bytes of the reply (0: as soon as it is sent). status
    0: the connection was closed instead of an answer."""

    def __init__(self, path, body, cut=None):
        self.path, self.body, self.cut = path, body, cut
        self.status, self.reply, self.retries = None, b"", 0


class Connection:
    def __init__(self, address):
        self.address, self.sock = address, None

    def open(self):
        self.sock = socket.create_connection(self.address)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.setblocking(False)

    def close(self):
        self.sock.close()
        self.sock = None

    def begin(self, job):
        self.job, self.parts, self.n = job, [], 0
        self.out = memoryview(request_bytes(job.path, job.body))
        self.head, self.tail = b"", b""
        self.need = None  # bytes of a reply with a length; else it is chunked
        self.lost = False

    def write(self):
        """True when the request is sent."""
        while self.out:
            try:
                self.out = self.out[self.sock.send(self.out):]
            except BlockingIOError:
                return False
            except (BrokenPipeError, ConnectionResetError):
                self.out = b""  # it may have answered before
        return True

    def read(self):
        """True when the reply is there (or was cut)."""
        while True:
            try:
                data = self.sock.recv(1 << 16)
            except BlockingIOError:
                return False
            except ConnectionResetError:
                data = b""
            if not data:
                self.lost = True
                return True
            self.parts.append(data)
            self.n += len(data)
            self.tail = (self.tail + data)[-5:]
            if self.job.cut is not None and self.n >= self.job.cut:
                return True
            if not self.head:
                self.look_for_head()
            if self.head and (self.n >= self.need if self.need is not None
                              else self.tail == b"0\r\n\r\n"):
                return True

    def look_for_head(self):
        data = b"".join(self.parts)
        end = data.find(b"\r\n\r\n")
        if end < 0:
            return
        self.head = data[:end].lower()
        at = self.head.find(b"content-length:")
        if at >= 0:
            self.need = end + 4 + int(self.head[at + 15:].split(b"\r\n", 1)[0])

    def end(self):
        """Fills the job in; True when the connection can be used again."""
        job = self.job
        if job.cut is not None:
            return False
        if self.lost:
            job.status = 0
            return False
        data = b"".join(self.parts)
        head, _, rest = data.partition(b"\r\n\r\n")
        job.status = int(head.split(b" ", 2)[1])
        if self.need is None:
            out = []
            while True:
                size, _, rest = rest.partition(b"\r\n")
                k = int(size, 16)
                if k == 0:
                    break
                out.append(rest[:k])
                rest = rest[k + 2:]
            rest = b"".join(out)
        job.reply = rest
        return b"connection: close" not in head.lower()


def run(address, jobs, clients, on_done=None):
    """Runs the jobs, `clients` of them at a time, each in the order of the list. A 429 is asked
    again."""
    waiting = list(reversed(jobs))
    poll = select.epoll()
    by_fd = {}

    def start(c):
        while waiting:
            job = waiting.pop()
            if c.sock is None:
                c.open()
                by_fd[c.sock.fileno()] = c
                poll.register(c.sock, select.EPOLLIN)
            c.begin(job)
            if not c.write():
                poll.modify(c.sock, select.EPOLLIN | select.EPOLLOUT)
            if job.cut != 0:
                return
            finish(c, False)
        if c.sock is not None:
            leave(c)

    def leave(c):
        del by_fd[c.sock.fileno()]
        poll.unregister(c.sock)
        c.close()

    def finish(c, keep):
        if not keep:
            leave(c)
        job = c.job
        if job.status == 429:
            job.status, job.retries = None, job.retries + 1
            waiting.insert(len(waiting) // 2, job)
        elif on_done:
            on_done(job)

    for _ in range(clients):
        start(Connection(address))
    while by_fd:
        for fd, what in poll.poll():
            c = by_fd.get(fd)
            if c is None:
                continue
            if what & select.EPOLLOUT and c.write():
                poll.modify(c.sock, select.EPOLLIN)
            if what & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR) and c.read():
                finish(c, c.end())
                start(c)
