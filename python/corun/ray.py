"""A batch file over many workers, on Ray: `python -m corun.ray batch -m MODEL -i IN -o OUT`.

The output is the file that `corun batch` writes on one machine, byte for byte. `corun split` cuts
the input into pieces, workers run `corun batch --pieces` and send rows back through Ray, `corun
merge` checks every row against its line and puts the file in place. This process holds the pieces
that are out, never results: rows go to files in OUT.corun-ray, one a piece, named by the digest of
the piece, so that the same command goes on where an earlier one was ended. docs/scale.md has the
format and the figures.
"""
from __future__ import annotations

import argparse
import collections
import ctypes
import dataclasses
import fcntl
import hashlib
import json
import os
import pathlib
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from typing import Any, Callable, Deque, Dict, Iterable, Iterator, List, Optional, Tuple, Union

__all__ = ["run_batch", "BatchFailed", "Summary", "main"]

OK, PROMISE, BAD, ROWS, SYSTEM, SIGNAL = 0, 1, 2, 3, 4, 128  # exit codes of corun batch
CHUNK = 1 << 20        # bytes of rows in one object
DEEP = 2               # pieces at a worker: its engine never runs empty between two
TRIES = 3              # a piece, or a worker, that fails this often in a row ends the run
OPEN_TIMEOUT = 3600.0  # seconds to open a model
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class BatchFailed(Exception):
    """The run ended without an output. code: as the exit codes of `corun batch`."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclasses.dataclass
class Summary:
    """What a finished run was. rows includes error rows; kept: rows of an earlier, ended run."""
    rows: int = 0
    errors: int = 0
    kept: int = 0
    pieces: int = 0
    lost: int = 0          # workers that died and were replaced
    refused: List[str] = dataclasses.field(default_factory=list)  # texts, one a worker
    identity: str = ""
    seconds: float = 0.0


# ---- the worker ----------------------------------------------------------------------------------

class _Worker:
    """One engine: a `corun batch --pieces` process that is fed pieces and gives rows.

    Calls come from several threads. Pieces are written whole, one after the other; one thread reads
    the rows and gives each to the piece that it is of, since they come in that order. The process
    ends with that thread, and so with this actor, however it ends.
    """

    def __init__(self, argv: List[str]) -> None:
        self.argv = argv
        self.feeding = threading.Lock()
        self.waiting: Deque[List[Any]] = collections.deque()  # [rows to come, queue]
        self.first: queue.Queue[Any] = queue.Queue()  # the first line of the process
        self.ended: Optional[Tuple[str, int, str]] = None  # ("failed", code, text)
        self.process: Any = None
        threading.Thread(target=self._own, daemon=True).start()

    def hello(self) -> Tuple[Any, ...]:
        """The first line of the process as ("hello", dict, where) or ("failed", code, text)."""
        import ray
        where = f"{ray.util.get_node_ip_address()}, process {os.getpid()}"
        said = self.first.get()
        return ("hello", said, where) if isinstance(said, dict) else tuple(said)

    def run(self, head: bytes, text: bytes) -> Iterator[Any]:
        """Yields the rows of a piece in chunks, then None, or ("failed", code, text)."""
        rows: queue.Queue[Any] = queue.Queue(maxsize=4)
        with self.feeding:
            if self.ended:
                rows.put(self.ended)
            else:
                self.waiting.append([json.loads(head)["rows"], rows])
                try:
                    self.process.stdin.write(head + text)
                    self.process.stdin.flush()
                except OSError:
                    pass  # the process is gone: the reader says why
        item: Any = b""
        while isinstance(item, bytes):
            item = rows.get()
            yield item

    def _own(self) -> None:
        libc = ctypes.CDLL(None)
        try:
            self.process = subprocess.Popen(
                self.argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                preexec_fn=lambda: libc.prctl(1, signal.SIGKILL))  # PR_SET_PDEATHSIG
            tail: Deque[bytes] = collections.deque(maxlen=20)
            errors = threading.Thread(target=lambda: tail.extend(self.process.stderr), daemon=True)
            errors.start()
            first = self.process.stdout.readline()
            if first.endswith(b"\n"):
                self.first.put(json.loads(first))
                self._read()
            code = self.process.wait()
            errors.join(5)
            said = b"".join(tail).decode(errors="replace").strip().splitlines()
            ended = ("failed", code, said[-1] if said else f"ended with code {code}")
        except OSError as e:
            ended = ("failed", BAD, f"{self.argv[0]}: {e.strerror}")
        except Exception as e:  # a line that no corun writes: whoever waits must hear of it
            self.process.kill()
            ended = ("failed", SYSTEM, f"{self.argv[0]}: {_unexpected(e)}")
        with self.feeding:
            self.ended = ended
            for at in self.waiting:
                at[1].put(ended)
        self.first.put(ended)

    def _read(self) -> None:
        chunk: List[bytes] = []
        size = 0
        for row in self.process.stdout:
            if not row.endswith(b"\n"):
                return
            at = self.waiting[0]
            chunk.append(row)
            size += len(row)
            at[0] -= 1
            if size >= CHUNK or at[0] == 0:
                at[1].put(b"".join(chunk))
                chunk, size = [], 0
            if at[0] == 0:
                self.waiting.popleft()
                at[1].put(None)


# ---- the coordinator -----------------------------------------------------------------------------

@dataclasses.dataclass
class _Piece:
    index: int
    line: int
    rows: int
    head: bytes
    text: bytes
    key: str
    tries: int = 0


class _Lost(Exception):
    """A worker, or its process, is gone."""


def _flat(value: Any, name: str = "") -> Dict[str, Any]:
    """{"a": {"b": 1}} as {"a.b": 1}."""
    if not isinstance(value, dict):
        return {name: value}
    return {k: v for key, x in value.items()
            for k, v in _flat(x, f"{name}.{key}" if name else key).items()}


def _differences(a: Any, b: Any) -> str:
    """The fields in which two first lines differ, as text."""
    a, b = _flat(a), _flat(b)
    return "; ".join(f"{k.removeprefix('numeric.')} is {json.dumps(a.get(k))}, not "
                     f"{json.dumps(b.get(k))}"
                     for k in sorted(a.keys() | b.keys()) if a.get(k) != b.get(k))


_NAME = re.compile(r"(\d{8})-([0-9a-f]{32})-(\d+)-(\d+)\.rows")
_GOOD = b',"response":{"status_code":200,'


class _Folder:
    """OUT.corun-ray: the rows of finished pieces, one file each, and who made them."""

    def __init__(self, out: str, restart: bool) -> None:
        self.path = pathlib.Path(_kept_at(out))
        try:
            if restart and self.path.exists():
                shutil.rmtree(self.path)
            self.path.mkdir(exist_ok=True)
            self.lock = open(self.path / "lock", "w")
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BatchFailed(BAD, f"{self.path}: another process is writing it") from None
        except OSError as e:
            raise BatchFailed(BAD, f"{self.path}: {e.strerror}") from None
        self.kept: Dict[str, Tuple[str, int, int]] = {}  # key to name, rows, error rows
        for p in self.path.iterdir():
            m = _NAME.fullmatch(p.name)
            if m:
                self.kept[m[2]] = (p.name, int(m[3]), int(m[4]))
            elif p.suffix == ".part":
                p.unlink()
        self.who: Any = None
        if (self.path / "who.json").exists():
            self.who = json.loads((self.path / "who.json").read_text())

    def write(self, name: Union[str, Callable[[], str]], chunks: Iterable[bytes]) -> str:
        """A file that is whole or not there. name: a text, or what gives it when all is written."""
        part = self.path / f"{threading.get_ident()}.part"
        try:
            with open(part, "wb") as f:
                for chunk in chunks:
                    f.write(chunk)
                f.flush()
                os.fsync(f.fileno())
            to = name() if callable(name) else name
            os.rename(part, self.path / to)
        finally:
            part.unlink(missing_ok=True)
        return to

    def remove(self) -> None:
        shutil.rmtree(self.path)
        self.lock.close()

    def close(self) -> None:
        self.lock.close()
        if not self.kept and not any(_NAME.fullmatch(p.name) for p in self.path.iterdir()):
            shutil.rmtree(self.path)


class _Run:
    """The state that all threads share. Everything below is under `turn`."""

    def __init__(self, a: argparse.Namespace, folder: _Folder, summary: Summary) -> None:
        self.a, self.folder, self.summary = a, folder, summary
        self.turn = threading.Condition(threading.RLock())
        self.again: Deque[_Piece] = collections.deque()  # pieces of lost workers
        self.out = 0                      # pieces that were taken and are not finished
        self.read_all = False
        self.names: Dict[int, str] = {}   # index to file
        self.failed: Optional[BatchFailed] = None # BatchFailed
        self.who = folder.who             # what all workers must say
        self.alive = a.workers            # workers that were not refused or given up
        self.text_bytes = 0               # of finished pieces
        self.split = subprocess.Popen(
            [a.corun, "split", "-i", str(a.input), "--rows", str(a.rows), "--bytes", str(a.bytes)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def fail(self, code: int, text: str) -> None:
        with self.turn:
            self.failed = self.failed or BatchFailed(code, text)
            self.turn.notify_all()

    def done(self) -> bool:
        return self.read_all and self.out == 0

    def say(self, text: str) -> None:
        if not self.a.quiet:
            print(f"{_clear()}corun.ray: {text}", file=sys.stderr, flush=True)

    def _next(self) -> Optional[_Piece]:
        """The next piece of the input, None at its end."""
        assert self.split.stdout and self.split.stderr
        head = self.split.stdout.readline()
        if not head:
            said = self.split.stderr.read().decode(errors="replace").strip()
            code = self.split.wait()
            if code:
                self.fail(code if code > 0 else SYSTEM, said or f"corun split ended with {code}")
            return None
        h = json.loads(head)
        text = self.split.stdout.read(h["bytes"])
        key = hashlib.sha256(head + text).hexdigest()[:32]
        return _Piece(h["piece"], h["line"], h["rows"], head, text, key)

    def take(self) -> Optional[_Piece]:
        """A piece to run; None when there is no more to do."""
        with self.turn:
            while not self.failed:
                if self.again:
                    return self.again.popleft()
                if self.read_all:
                    if self.out == 0:
                        return None
                    self.turn.wait()
                    continue
                try:
                    piece = self._next()
                except Exception as e:  # a line that no corun writes; behind it nothing counts
                    self.fail(SYSTEM, f"{self.a.corun} split: {_unexpected(e)}")
                    return None
                if piece is None:
                    self.read_all = True
                    self.turn.notify_all()
                elif piece.key in self.folder.kept:
                    name, rows, errors = self.folder.kept[piece.key]
                    self.finished(piece, name, errors)
                    self.summary.kept += rows
                else:
                    self.out += 1
                    return piece
            return None

    def finished(self, piece: _Piece, name: str, errors: int) -> None:
        self.names[piece.index] = name
        self.summary.pieces += 1
        self.summary.rows += piece.rows
        self.summary.errors += errors
        self.text_bytes += len(piece.text)

    def give(self, piece: _Piece) -> None:
        with self.turn:
            self.again.append(piece)
            self.turn.notify_all()

    def put_back(self, piece: _Piece, text: str) -> None:
        with self.turn:
            piece.tries += 1
            if piece.tries == TRIES:
                self.fail(SYSTEM, f"the {piece.rows} rows from line {piece.line} on ended {TRIES} "
                                  f"workers, the last: {text}")
            self.give(piece)

    def accept(self, said: Dict[str, Any]) -> Optional[str]:
        """Why this worker is refused, or None. The first one says what all must say."""
        with self.turn:
            pinned = self.a.identity
            if pinned and said["identity"] != pinned:
                return f"its numeric identity is {said['identity']}, {pinned} is asked for" + (
                    f": {_differences(said, self.who)}" if self.who else "")
            if self.who is None:
                self.folder.write("who.json", [json.dumps(said).encode()])
                self.who = said
            if said == self.who:
                return None
            kind = "numeric identity" if said["identity"] != self.who["identity"] else "setting"
            return f"its {kind} differs from that of the run: {_differences(said, self.who)}"

    def drop(self, text: str) -> None:
        """One worker less."""
        with self.turn:
            self.alive -= 1
            if self.alive == 0:
                more = ""
                if self.folder.who:
                    more = (f". {self.folder.path} keeps the rows of an earlier run; --restart "
                            "throws them away")
                self.fail(BAD if self.summary.refused else SYSTEM,
                          f"no worker is left: {text}{more}")


class _Slot:
    """One worker after the other: the actor, and the threads that feed it."""

    def __init__(self, run: _Run, number: int, actor_class: Any) -> None:
        self.run, self.number, self.actor_class = run, number, actor_class
        self.lock = threading.Lock()
        self.actor: Any = None
        self.where = "not started"
        self.losses = 0  # in a row

    def start(self) -> None:
        """A new actor whose answers count, or none."""
        import ray
        run = self.run
        while not run.failed and not run.done():
            self.actor = self.actor_class.remote(run.a.argv)
            try:
                kind, *said = ray.get(self.actor.hello.remote(), timeout=OPEN_TIMEOUT)
            except ray.exceptions.RayError as e:
                kind, said = "failed", (SYSTEM, _first_line(e))
            if run.failed or run.done():
                self.kill()
                return
            if kind == "hello":
                self.where = said[1]
                why = run.accept(said[0])
                if why is None:
                    return
                text = f"worker {self.number} ({self.where}) is refused: {why}"
                with run.turn:
                    run.summary.refused.append(text)
                run.say(text)
            elif said[0] in (PROMISE, BAD):
                run.fail(said[0], f"worker {self.number}: {_bare(said[1])}")
                why = said[1]
            else:
                self.losses += 1
                run.say(f"worker {self.number} did not start: {_bare(said[1])}")
                if self.losses < TRIES:
                    continue
                text = f"worker {self.number} is given up: {_bare(said[1])}"
                run.say(text)
            self.kill()
            if kind == "hello" or said[0] not in (PROMISE, BAD):
                run.drop(text)
            return

    def kill(self) -> None:
        import ray
        actor, self.actor = self.actor, None
        if actor is not None:
            try:
                ray.kill(actor)
            except Exception:  # gone already, or Ray is
                pass

    def lost(self, actor: Any, piece: _Piece, text: str) -> None:
        """The actor is replaced. The lock is held from before the piece goes back: no thread runs
        it on the actor that ends."""
        with self.lock:
            if actor is not self.actor:  # another thread has replaced it, for its own piece
                self.run.give(piece)
                return
            self.run.put_back(piece, text)
            if self.run.failed:
                return
            with self.run.turn:
                self.run.summary.lost += 1
            self.losses += 1
            self.run.say(f"worker {self.number} ({self.where}) is lost, its pieces go to another: "
                         f"{_bare(text)}")
            self.kill()
            if self.losses >= TRIES:
                self.run.drop(f"worker {self.number} was lost {TRIES} times in a row: {text}")
                return
            self.start()

    def work(self) -> None:
        """Runs pieces until there are no more. DEEP threads do."""
        try:
            self.pieces()
        except Exception as e:  # what must not happen is no reason to hang
            self.run.fail(SYSTEM, f"worker {self.number}: {_unexpected(e)}")

    def pieces(self) -> None:
        while True:
            with self.lock:
                actor = self.actor
            piece = self.run.take() if actor else None  # no actor: refused or given up
            if piece is None:
                return
            with self.lock:
                stale = actor is not self.actor
            if stale:  # lost meanwhile
                self.run.give(piece)
                continue
            try:
                name, errors = self.fetch(actor, piece)
            except _Lost as e:
                self.lost(actor, piece, str(e))
                continue
            except OSError as e:
                self.run.fail(SYSTEM, f"{self.run.folder.path}: {e.strerror}")
                return
            self.losses = 0
            with self.run.turn:
                self.run.finished(piece, name, errors)
                self.run.out -= 1
                self.run.turn.notify_all()

    def fetch(self, actor: Any, piece: _Piece) -> Tuple[str, int]:
        """The rows of a piece into its file: its name, and how many are error rows."""
        n = good = 0

        def chunks() -> Iterator[bytes]:
            nonlocal n, good
            for item in _stream(actor, piece):
                if not isinstance(item, bytes):
                    _, code, text = item
                    if code in (PROMISE, BAD):
                        self.run.fail(code, f"worker {self.number}: {_bare(text)}")
                    raise _Lost(text)
                n += item.count(b"\n")
                good += item.count(_GOOD)
                yield item
            if n != piece.rows:
                raise _Lost(f"{n} rows came of a piece of {piece.rows}")

        name = self.run.folder.write(
            lambda: f"{piece.index:08d}-{piece.key}-{n}-{n - good}.rows", chunks())
        return name, n - good

    def live(self) -> None:
        """The life of this slot."""
        try:
            with self.lock:
                self.start()
            if self.actor is None:
                return
            threads = [threading.Thread(target=self.work, daemon=True) for _ in range(DEEP)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
        except Exception as e:  # what must not happen is no reason to hang
            self.run.fail(SYSTEM, f"worker {self.number}: {_unexpected(e)}")


def _stream(actor: Any, piece: _Piece) -> Iterator[Any]:
    import ray
    try:
        call = actor.run.options(num_returns="streaming", _generator_backpressure_num_objects=4)
        for ref in call.remote(piece.head, piece.text):
            item = ray.get(ref)
            if item is None:
                return
            yield item
    except ray.exceptions.RayError as e:
        raise _Lost(_first_line(e)) from None


def _first_line(e: Exception) -> str:
    return (str(e).strip().splitlines() or [type(e).__name__])[0]


def _unexpected(e: Exception) -> str:
    return f"{type(e).__name__}: {e}"


def _bare(text: str) -> str:
    return text.removeprefix("corun: ")


def _clear() -> str:
    return "\r\033[K" if sys.stderr.isatty() else ""


def _open_ray(a: argparse.Namespace) -> bool:
    """Connects to a cluster or starts one on this machine. True: it is ours to stop."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if not a.address:  # a cluster of this machine alone listens on 127.0.0.1 alone
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        import ray
    except ImportError:
        raise BatchFailed(BAD, "Ray is not installed: pip install ray") from None
    if ray.is_initialized():
        return False
    handlers = {n: signal.getsignal(n) for n in _SIGNALS}
    quiet: Dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    if a.address:
        ray.init(address=a.address, **quiet)
    else:
        ray.init(address="local", num_cpus=a.workers * a.cpus, include_dashboard=False,
                 object_store_memory=100 << 20, **quiet)
    if threading.current_thread() is threading.main_thread():
        for n, handler in handlers.items():  # Ray puts its own in their place
            if handler is not None:
                signal.signal(n, handler)
    return True


def _merge(run: _Run) -> None:
    """The rows of all pieces, checked against the input, to their place."""
    p = subprocess.Popen([run.a.corun, "merge", "-o", str(run.a.output), "-i", str(run.a.input),
                          "-"], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    assert p.stdin and p.stderr
    try:
        for i in range(len(run.names)):
            with open(run.folder.path / run.names[i], "rb") as f:
                shutil.copyfileobj(f, p.stdin, CHUNK)
        p.stdin.close()
    except BrokenPipeError:
        pass  # merge says why
    text = p.stderr.read().decode(errors="replace").strip()
    if p.wait():
        raise BatchFailed(p.returncode if p.returncode > 0 else SYSTEM,
                          _bare(text) or f"corun merge ended with {p.returncode}")


def _progress(run: _Run, begin: float, shown: float) -> float:
    terminal = sys.stderr.isatty()
    now = time.monotonic()
    if run.a.quiet or now - shown < (0.5 if terminal else 10):
        return shown
    s = run.summary
    size = 0 if str(run.a.input).endswith(".gz") else os.path.getsize(run.a.input)
    part = f" ({100 * run.text_bytes // size} %)" if size else ""
    rate = (s.rows - s.kept) / max(now - begin, 1e-9)
    text = f"{s.rows} rows{part}, {rate:.{0 if rate >= 10 else 1}f} rows/s, {run.alive} workers, {run.out} pieces out"
    print(f"{_clear()}{'' if terminal else 'corun.ray: '}{text}", file=sys.stderr,
          end="" if terminal else "\n", flush=True)
    return now


def run_batch(model: str, input: Union[str, os.PathLike[str]],
              output: Union[str, os.PathLike[str]], *, workers: int = 1,
              options: Iterable[Any] = (), corun: str = "corun", address: Optional[str] = None,
              cpus_per_worker: Optional[float] = None, gpus_per_worker: float = 0,
              piece_rows: int = 512, piece_bytes: int = 1 << 20, identity: Optional[str] = None,
              restart: bool = False, quiet: bool = True) -> Summary:
    """Runs a batch file over workers and gives a Summary; BatchFailed where there is no output.

    model, and options (a list, as on the command line): those of `corun batch`. corun: the program,
    on this machine and on every worker's. address: of a Ray cluster ("auto": that of this machine);
    None uses the one that this process is connected to, else starts one for this run. identity: the
    digest that workers must have; None: that of the first. A piece ends after piece_rows rows or
    piece_bytes bytes of text.
    """
    if workers < 1:
        raise BatchFailed(BAD, "workers: at least 1")
    a = argparse.Namespace(workers=workers, corun=_program(corun), address=address,
                           rows=piece_rows, bytes=piece_bytes, identity=identity, quiet=quiet,
                           input=pathlib.Path(input), output=pathlib.Path(output))
    a.cpus = cpus_per_worker or (1 if address else max(1, (os.cpu_count() or 1) // workers))
    if str(input) == "-" or str(output) == "-":
        raise BatchFailed(BAD, "input and output are files: the input is read twice")
    more = [str(o) for o in options]
    for o in more:
        if o.split("=")[0] in ("--metrics", "--check", "--shard", "--pieces", "--arrival"):
            raise BatchFailed(BAD, f"{o}: an option of one process (corun batch)")
    if not any(o.split("=")[0] == "--threads" for o in more):
        more += ["--threads", str(max(1, int(a.cpus)))]
    if os.path.exists(model):
        model = os.path.abspath(model)
    a.argv = [a.corun, "batch", "--pieces", "-q", "-m", str(model), "-i", "-", "-o", "-", *more]
    if not a.input.is_file():
        raise BatchFailed(BAD, f"{a.input}: no such file")
    if a.output.exists() and not a.output.is_file():
        raise BatchFailed(BAD, f"{a.output}: is no regular file")
    if a.output.exists() and a.output.samefile(a.input):
        raise BatchFailed(BAD, f"{a.output}: is the input")
    return _run(a, gpus_per_worker, restart)


def _kept_at(output: str) -> str:
    return os.path.realpath(output) + ".corun-ray"


def _program(name: str) -> str:
    path = shutil.which(name)
    if not path:
        raise BatchFailed(BAD, f"{name}: no such program")
    return os.path.abspath(path) if os.sep in name else name


def _run(a: argparse.Namespace, gpus: float, restart: bool) -> Summary:
    begin = time.monotonic()
    summary = Summary()
    folder = _Folder(str(a.output), restart)
    run: Optional[_Run] = None
    slots: List[_Slot] = []
    ours, kept = False, True
    try:
        ours = _open_ray(a)
        import ray
        if __name__ != "__main__":  # workers need Ray and the program, not this package
            ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
        actor_class = ray.remote(_Worker).options(
            num_cpus=a.cpus, num_gpus=gpus, max_concurrency=DEEP + 1, max_restarts=0,
            scheduling_strategy="SPREAD")
        run = _Run(a, folder, summary)
        slots = [_Slot(run, i, actor_class) for i in range(a.workers)]
        for s in slots:
            threading.Thread(target=s.live, daemon=True).start()
        shown = begin
        with run.turn:
            while not run.failed and not (run.done() and run.who):
                run.turn.wait(0.2)
                shown = _progress(run, begin, shown)
        if run.failed:
            raise run.failed
        _merge(run)
        kept = False
        folder.remove()
        summary.identity = run.who["identity"]
        summary.seconds = time.monotonic() - begin
        run.say(f"{summary.rows} rows, {summary.errors} with errors, in {summary.seconds:.1f} s" +
                (f" ({summary.kept} were there)" if summary.kept else ""))
        return summary
    finally:
        if run:
            run.fail(SYSTEM, "ended")  # threads end
            run.split.kill()
            run.split.wait()
        for s in slots:
            s.kill()
        if ours:
            ray.shutdown()
        if kept:
            folder.close()


# ---- the command ---------------------------------------------------------------------------------

class _Signal(BaseException):
    pass


def _on_signal(number: int, frame: Any) -> None:
    for n in _SIGNALS:
        signal.signal(n, signal.SIG_DFL)  # a second one ends this process at once
    raise _Signal(number)


def _parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m corun.ray", allow_abbrev=False,
        description="Runs an OpenAI batch file over many workers on Ray. The output is that of "
                    "corun batch on one machine, byte for byte.",
        epilog="All other options go to corun batch on the workers (--policy, --kv, --device, "
               "--served-model-name, ...). Exit codes are those of corun batch.")
    p.add_argument("command", choices=["batch"])
    p.add_argument("-m", "--model", required=True, help="a path or name that every worker has")
    p.add_argument("-i", "--input", required=True, metavar="FILE", help="requests; .gz is read")
    p.add_argument("-o", "--output", required=True, metavar="FILE", help="results; .gz is written")
    p.add_argument("--workers", type=int, default=1, metavar="N", help="engines (1)")
    p.add_argument("--address", metavar="ADDRESS",
                   help="of a Ray cluster, or auto; without it one is started on this machine")
    p.add_argument("--cpus-per-worker", type=float, metavar="N",
                   help="cores that a worker takes (this machine: all, shared out; a cluster: 1)")
    p.add_argument("--gpus-per-worker", type=float, default=0, metavar="N", help="(0)")
    p.add_argument("--corun", default="corun", metavar="PROGRAM", help="here and on workers")
    p.add_argument("--identity", metavar="DIGEST",
                   help="numeric identity that workers must have (default: that of the first)")
    p.add_argument("--rows", type=int, default=512, metavar="N", help="most rows of a piece (512)")
    p.add_argument("--bytes", type=int, default=1 << 20, metavar="N", help="and bytes (1048576)")
    p.add_argument("--strict", action="store_true", help="exit code 3 when there are error rows")
    p.add_argument("--restart", action="store_true",
                   help="throw away the rows that an earlier, unfinished run has kept")
    p.add_argument("-q", "--quiet", action="store_true", help="no progress")
    return p


def main(argv: Optional[List[str]] = None) -> int:
    a, options = _parser().parse_known_args(argv)
    before = [(n, signal.signal(n, _on_signal)) for n in _SIGNALS
              if signal.getsignal(n) != signal.SIG_IGN]  # what nohup ignores stays ignored
    kept = _kept_at(a.output)
    try:
        s = run_batch(a.model, a.input, a.output, workers=a.workers, options=options,
                      corun=a.corun, address=a.address, cpus_per_worker=a.cpus_per_worker,
                      gpus_per_worker=a.gpus_per_worker, piece_rows=a.rows, piece_bytes=a.bytes,
                      identity=a.identity, restart=a.restart, quiet=a.quiet)
        return ROWS if a.strict and s.errors else OK
    except BatchFailed as e:
        print(f"{_clear()}corun.ray: {_bare(str(e))}", file=sys.stderr)
        code = e.code
    except _Signal as e:
        print(f"{_clear()}corun.ray: ended by signal {e.args[0]}, no output is written",
              file=sys.stderr)
        code = SIGNAL + e.args[0]
    finally:
        for n, handler in before:
            signal.signal(n, handler)
    if os.path.isdir(kept):
        print(f"corun.ray: finished rows are kept in {kept}: the same command goes on",
              file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
