"""corun.ray: batch files over workers of a small Ray cluster on this machine, bytes against those
of `corun batch`."""
import contextlib
import gzip
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

from conftest import CORUN, ROOT, completion
from test_pieces import awkward

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # listen on 127.0.0.1 alone
ray = pytest.importorskip("ray", reason="Ray is not installed (tools/requirements.txt)")
sys.path.insert(0, str(ROOT / "python"))
import corun.ray as cr  # noqa: E402


@pytest.fixture(scope="module")
def cluster():
    ray.init(address="local", num_cpus=3, include_dashboard=False, object_store_memory=100 << 20,
             log_to_driver=False, configure_logging=False)
    yield
    ray.shutdown()


class Place:
    """A folder with the program under a name of its own, so that its processes can be found."""

    def __init__(self, corun):
        self.folder = corun.folder
        self.corun = corun
        self.program = self.folder / "corun"
        self.program.symlink_to(CORUN)

    def single(self, *options, name="in.jsonl", model="fake:phase"):
        r = self.corun("batch", "-m", model, "-i", name, "-o", "single.jsonl", "-q", *options)
        assert r.returncode == 0, r.stderr.decode()
        return (self.folder / "single.jsonl").read_bytes()

    def run(self, name="in.jsonl", out="out.jsonl", model="fake:phase", **more):
        more = {"workers": 3, "cpus_per_worker": 1, "piece_rows": 5, "corun": str(self.program), **more}
        return cr.run_batch(model, self.folder / name, self.folder / out, **more)

    def out(self):
        return (self.folder / "out.jsonl").read_bytes()

    def processes(self, mark="--pieces"):
        """Processes of the program in this folder."""
        found = []
        for p in pathlib.Path("/proc").iterdir():
            if p.name.isdigit():
                with contextlib.suppress(OSError):
                    argv = (p / "cmdline").read_bytes().split(b"\0")
                    if str(self.folder).encode() in b" ".join(argv) and mark.encode() in argv:
                        found.append(int(p.name))
        return found

    def none_left(self):
        end = time.monotonic() + 20
        while self.processes():
            assert time.monotonic() < end, "a worker's process is left"
            time.sleep(0.05)

    def pieces(self):
        return list((self.folder / "out.jsonl.corun-ray").glob("*.rows"))


@pytest.fixture
def place(corun, cluster):
    p = Place(corun)
    yield p
    p.none_left()


def parent(pid):
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def wait_for(what, seconds=60):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not come to this"
        time.sleep(0.01)


def many(place, n=3000, max_tokens=60):
    place.corun.write("in.jsonl", [completion(f"r{i % (n - 7)}", f"p{i}", max_tokens=max_tokens)
                                   for i in range(n)])


@pytest.mark.parametrize("name", ["in.jsonl", "in.jsonl.gz"])
def test_awkward_lines(place, name):
    """Duplicates over pieces, blank lines, bad JSON, CRLF, lines without custom_id."""
    raw = awkward()
    (place.folder / name).write_bytes(gzip.compress(raw) if name.endswith("gz") else raw)
    want = place.single(name=name)
    s = place.run(name=name)
    assert place.out() == want
    rows = [json.loads(x) for x in want.splitlines()]
    assert s.rows == len(rows) and s.errors > 5
    assert s.errors == sum(r["response"]["status_code"] != 200 for r in rows)
    assert s.identity == rows[0]["response"]["body"]["system_fingerprint"]
    assert not (place.folder / "out.jsonl.corun-ray").exists()


def test_compressed_output_and_served_name(place):
    place.corun.write("in.jsonl", [completion("a", "x", max_tokens=3),
                                   {**completion("b", "x"), "body": {"model": "o", "prompt": "x"}}])
    want = place.single("--served-model-name", "m")
    place.run(out="out.jsonl.gz", options=["--served-model-name", "m"])
    assert gzip.decompress((place.folder / "out.jsonl.gz").read_bytes()) == want


def test_an_empty_file(place):
    (place.folder / "in.jsonl").write_bytes(b"\n\n")
    assert place.run(workers=2).rows == 0 and place.out() == place.single() == b""


def test_a_killed_worker(place):
    """The actor's process is killed in the middle: its pieces go to others, same bytes."""
    many(place)
    want = place.single()
    box = {}
    t = threading.Thread(target=lambda: box.update(s=place.run(piece_rows=50)))
    t.start()
    wait_for(lambda: len(place.pieces()) >= 5)
    actor = parent(place.processes()[0])
    assert b"ray::" in pathlib.Path(f"/proc/{actor}/cmdline").read_bytes()
    os.kill(actor, signal.SIGKILL)
    t.join(120)
    assert box["s"].lost == 1 and box["s"].rows == 3000
    assert place.out() == want


def test_killed_engines_again_and_again(place):
    """The program under a worker dies, as by the kernel for memory, at random moments."""
    many(place)
    want = place.single()
    box = {}
    t = threading.Thread(target=lambda: box.update(s=place.run(piece_rows=20)))
    t.start()
    r = random.Random(5)
    for _ in range(3):
        wait_for(lambda: place.processes())
        time.sleep(r.random() / 2)
        with contextlib.suppress(ProcessLookupError, IndexError):
            os.kill(r.choice(place.processes()), signal.SIGKILL)
    t.join(120)
    assert place.out() == want and box["s"].lost <= 3


def odd_one(place, options):
    """A program that one process runs with other options: the first that comes."""
    script = place.folder / "odd"
    script.write_text(f"""#!/bin/sh
case "$*" in *--pieces*) mkdir {place.folder}/first 2>/dev/null && exec {place.program} "$@" {options} ;; esac
exec {place.program} "$@"
""")
    script.chmod(0o755)
    return str(script)


def test_another_identity_is_refused_and_named(place):
    many(place, 400)
    want = place.single()
    right = json.loads(want.splitlines()[0])["response"]["body"]["system_fingerprint"]
    s = place.run(corun=odd_one(place, "--page 32"), identity=right)
    assert place.out() == want
    assert len(s.refused) == 1 and s.lost == 0
    assert "its numeric identity is" in s.refused[0] and right in s.refused[0]
    (place.folder / "first").rmdir()
    (place.folder / "out.jsonl").unlink()
    many(place, 20000)  # enough that both workers are there before the end
    want = place.single()
    try:  # the first is what others are compared with, and which is first is chance
        s = place.run(corun=odd_one(place, "--page 32"))
    except cr.BatchFailed as e:
        pytest.fail(str(e))
    assert s.refused and all("numeric identity differs" in t and "page_tokens is " in t
                             for t in s.refused)
    assert place.out() in (want, place.single("--page", "32"))


def test_another_pool_is_refused(place):
    """It decides which requests are too large, and stands in no identity."""
    many(place, 20000)  # enough that both workers are there before the end
    s = place.run(workers=2, corun=odd_one(place, "--kv 64M"))
    assert len(s.refused) == 1 and "its setting differs" in s.refused[0]
    assert "pool_pages is " in s.refused[0]


def test_all_refused(place):
    many(place, 20)
    with pytest.raises(cr.BatchFailed, match="no worker is left.*0000 is asked for") as e:
        place.run(identity="0" * 32)
    assert e.value.code == 2 and not (place.folder / "out.jsonl").exists()
    assert not (place.folder / "out.jsonl.corun-ray").exists()


@pytest.mark.parametrize("then, text", [
    ("head -c 1 >/dev/null; kill -9 $$", "rows from line 1 on ended 3 workers"),
    ("echo 'corun: no memory' >&2; exit 4", "ended 3 workers, the last: corun: no memory"),
])
def test_a_piece_that_ends_workers_ends_the_run(place, then, text):
    many(place, 20)
    script = place.folder / "weak"
    script.write_text(f"""#!/bin/sh
case "$*" in *--pieces*) {place.program} "$@" </dev/null; {then} ;; esac
exec {place.program} "$@"
""")
    script.chmod(0o755)
    with pytest.raises(cr.BatchFailed) as e:
        place.run(corun=str(script), workers=1, piece_rows=100)
    assert e.value.code == 4 and text in str(e.value)
    assert not (place.folder / "out.jsonl").exists()


def test_workers_that_do_not_start(place):
    many(place, 5)
    script = place.folder / "weak"
    script.write_text(f"""#!/bin/sh
case "$*" in *--pieces*) echo "corun: no device" >&2; exit 4 ;; esac
exec {place.program} "$@"
""")
    script.chmod(0o755)
    with pytest.raises(cr.BatchFailed, match="no worker is left.*no device") as e:
        place.run(corun=str(script), workers=2)
    assert e.value.code == 4


@pytest.mark.parametrize("when, says, text", [
    ("split", "echo what", "other split: .*JSONDecodeError"),
    ("split", "printf '{}\\n'", "other split: KeyError"),
    ("--pieces", "echo what", "no worker is left.*JSONDecodeError"),
    ("--pieces", """echo '{"identity":"x"}'; for i in 1 2 3 4 5 6 7; do echo '{}'; done; sleep 1""",
     "IndexError")])
def test_a_program_that_says_something_else(place, when, says, text):
    """A line that nobody expects ends the run; no thread dies in silence while others wait."""
    many(place, 5)
    script = place.folder / "other"
    script.write_text(f"""#!/bin/sh
case "$*" in *{when}*) {says}; exit 0 ;; esac
exec {place.program} "$@"
""")
    script.chmod(0o755)
    ended = []

    def work():
        try:
            ended.append(place.run(corun=str(script), workers=1))
        except BaseException as e:
            ended.append(e)
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(60)
    assert ended and isinstance(ended[0], cr.BatchFailed), ended
    assert re.search(text, str(ended[0])) and ended[0].code == 4


@pytest.mark.parametrize("more, text", [
    ({"model": "missing.gguf"}, "missing.gguf: No such file"),
    ({"options": ["--no-such"]}, "no-such"),
    ({"options": ["--shard", "0/2"]}, "--shard"),
    ({"options": ["--metrics=x"]}, "--metrics"),
    ({"name": "none.jsonl"}, "none.jsonl"),
    ({"out": "nowhere/out.jsonl"}, "nowhere"),
    ({"out": "."}, "no regular file"),
    ({"out": "in.jsonl"}, "is the input"),
    ({"corun": "no-such-program"}, "no-such-program"),
    ({"workers": 0}, "workers"),
    ({"workers": 0, "cpus_per_worker": None}, "workers"),
    ({"piece_rows": 0}, "--rows"),
])
def test_bad_use(place, more, text):
    many(place, 5)
    with pytest.raises(cr.BatchFailed) as e:
        place.run(**more)
    assert e.value.code == 2 and text in str(e.value)


def test_a_changed_row_is_found(place):
    """merge checks every row: a kept piece with another row ends in no output."""
    many(place, 50)
    who = cr._Folder.write

    def spoil(self, name, chunks):
        name = who(self, name, chunks)
        p = self.path / name
        if p.name.startswith("00000003"):
            rows = p.read_bytes().splitlines(keepends=True)
            p.write_bytes(b"".join([rows[1], rows[0], *rows[2:]]))
        return name
    cr._Folder.write = spoil
    try:
        with pytest.raises(cr.BatchFailed, match="is not the row of line 16"):
            place.run()
    finally:
        cr._Folder.write = who
    assert not (place.folder / "out.jsonl").exists()


def command(place, *options):
    return ["batch", "-m", "fake:phase", "-i", str(place.folder / "in.jsonl"), "-o",
            str(place.folder / "out.jsonl"), "--workers", "2", "--cpus-per-worker", "1", "--corun",
            str(place.program), "--rows", "50", *options]


def test_signals_and_the_same_command_goes_on(place, capfd):
    """No process is left; the second run keeps the pieces of the first; exit codes. The first run
    starts a cluster of its own."""
    many(place, 4000, 150)
    kept = 0
    for sig in (signal.SIGINT, signal.SIGTERM):
        p = subprocess.Popen([sys.executable, "-m", "corun.ray", *command(place)],
                             env={**os.environ, "PYTHONPATH": str(ROOT / "python")},
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        wait_for(lambda: len(place.pieces()) >= kept + 3)
        p.send_signal(sig)
        err = p.communicate(timeout=60)[1]
        assert p.returncode == 128 + sig and f"ended by signal {sig}".encode() in err
        assert b"the same command goes on" in err
        place.none_left()
        assert not (place.folder / "out.jsonl").exists()
        kept = len(place.pieces())
        assert 3 <= kept < 80
    assert cr.main(command(place, "--kv", "64M")) == 2  # with another pool the rows could differ
    err = capfd.readouterr().err
    assert "pool_pages is" in err and "--restart" in err
    assert cr.main(command(place, "--strict")) == 3  # there are duplicates
    err = capfd.readouterr().err
    assert "4000 rows, 7 with errors" in err and "were there)" in err
    assert place.out() == place.single()
    assert not (place.folder / "out.jsonl.corun-ray").exists()
