"""Journal and resume: whatever ends a run, the same command goes on and gives the same bytes."""
import gzip
import json
import os
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time

import pytest

from conftest import CORUN, ROOT, chat, completion

HEAD = 72


def requests(n=24, tokens=12):
    """Requests whose order of ending is not that of the lines, and error rows among them."""
    rng = random.Random(5)
    lines = []
    for i in range(n):
        if i % 7 == 3:
            lines.append(completion(f"r{i}", "x", max_tokens=-5))
        elif i % 7 == 5:
            lines.append(b'{"custom_id": broken %d' % i)
        elif i % 2:
            lines.append(chat(f"r{i}", "hello", max_tokens=rng.randint(1, tokens), ignore_eos=True))
        else:
            lines.append(completion(f"r{i}", "abc" * rng.randint(1, 9), logprobs=1, n=1 + i % 3,
                                    max_tokens=rng.randint(1, tokens), ignore_eos=True))
    return lines


def frames(data):
    """Places of the frames of a whole journal, and its end."""
    at, places = 0, []
    while at < len(data):
        assert data[at:at + 4] == b"CoRJ"
        message, row = struct.unpack_from("<IQ", data, at + 28)
        places.append(at)
        at += HEAD + message + row
    return places + [at]


class Job:
    """A batch in a folder of its own, with the output that an uninterrupted run gives."""

    def __init__(self, corun, lines, *options, out="out.jsonl", command="batch", policy="corun"):
        self.corun, self.out, self.folder = corun, out, corun.folder
        self.args = [command, "-m", "fake:phase", "-i", "in.jsonl", "--slots", "4", "--policy", policy,
                     *options, "-o", out]
        corun.write("in.jsonl", lines)
        r = corun(*self.args)
        assert r.returncode == 0, r.stderr
        self.want = self.path.read_bytes()
        self.path.unlink()

    @property
    def path(self):
        return self.folder / self.out

    @property
    def journal(self):
        return self.folder / f"{self.out}.corun-journal"

    def whole_journal(self):
        """The journal as it is before the output is put in place: a folder stands in the way."""
        temp = self.folder / f".{self.out}.corun-part"
        for _ in range(100):
            p = self.corun.start(*self.args, "--arrival", "1", stderr=-1)
            while not self.journal.exists() and p.poll() is None:
                time.sleep(0.001)
            p.send_signal(signal.SIGSTOP)
            try:
                temp.mkdir()
            except FileExistsError:
                pass
            p.send_signal(signal.SIGCONT)
            p.communicate(timeout=60)
            temp.rmdir() if temp.is_dir() else None
            if p.returncode == 2 and self.journal.exists():
                return self.journal.read_bytes()
            self.path.unlink(missing_ok=True)
        raise AssertionError("the run was never caught before its end")

    def resume(self, *options, rows=None):
        """The same command again: must give the wanted bytes and leave nothing else."""
        self.path.unlink(missing_ok=True)
        r = self.corun(*self.args, *options)
        assert r.returncode == 0, r.stderr
        assert self.path.read_bytes() == self.want
        assert not self.journal.exists()
        assert not [f for f in os.listdir(self.folder) if f.endswith(".corun-part")]
        if rows is not None:
            kept = [line for line in r.stderr.decode().splitlines() if "going on from there" in line]
            assert len(kept) == (rows > 0)
            if rows:
                assert kept[0].startswith(f"corun: {self.out}.corun-journal: {rows} rows are done")
                assert f"rows ({rows} from the journal)" in r.stderr.decode()
        return r.stderr.decode()

    def refused(self, *options, args=None, code=2):
        """The command must be refused and leave the journal as it was."""
        before = self.journal.read_bytes()
        r = self.corun(*(args or self.args), *options)
        assert r.returncode == code, r.stderr
        assert self.journal.read_bytes() == before and not self.path.exists()
        return r.stderr.decode()

    def running(self, rows=1, **more):
        """The command, started and with this many rows done."""
        p = self.corun.start(*self.args, stderr=-1, **more)
        for _ in range(60000):
            if self.journal.exists():
                data = self.journal.read_bytes()
                if data.count(b"CoRJ") > rows:
                    return p
            assert p.poll() is None, "the run ended too early"
            time.sleep(0.001)
        raise AssertionError("no row was done")


# ---- killed at every place -----------------------------------------------------------------------

@pytest.mark.parametrize("out, cuts, policy", [("out.jsonl", 4, "corun"), ("out.jsonl", 1, "free"),
                                               ("out.jsonl.gz", 1, "free")])
def test_killed_at_every_record(corun, out, cuts, policy):
    """A journal cut after every record and inside every record is what kill -9 leaves."""
    job = Job(corun, requests(), out=out, policy=policy)
    whole = job.whole_journal()
    places = frames(whole)
    assert len(places) == 26 and places[-1] == len(whole)
    order = [struct.unpack_from("<Q", whole, at + 8)[0] for at in places[1:-1]]
    assert sorted(order) == list(range(24)) and order != sorted(order)
    for k, (at, end) in enumerate(zip(places, places[1:])):
        for cut in (at, (at + HEAD + end) // 2, at + 1 + k % HEAD, end - 1)[:cuts]:
            job.journal.write_bytes(whole[:cut])
            err = job.resume(rows=max(0, k - 1))
            assert ("torn" in err) == (k > 1 and cut > at)
    job.journal.write_bytes(whole)  # killed between rename and removal
    job.resume(rows=24)


def test_finished_lines_are_not_run_again(corun):
    job = Job(corun, requests())
    whole = job.whole_journal()
    job.journal.write_bytes(whole[:frames(whole)[-2]])
    r = corun(*job.args, "--metrics", "m.json", "--strict")
    assert r.returncode == 3 and job.path.read_bytes() == job.want
    m = json.loads((corun.folder / "m.json").read_text())
    errors = sum(1 for row in job.want.splitlines() if json.loads(row)["response"]["status_code"] != 200)
    assert m["rows"] == 24 and m["rows_restored"] == 23 and m["error_rows"] == errors > 0
    assert len(m["errors"]) == errors and all(e["message"] and e["line"] for e in m["errors"])
    assert m["tokens_new"] <= 12 * 3


def test_two_interruptions(corun):
    """Records of three runs in one journal, with another schedule each time."""
    job = Job(corun, requests(60))
    whole = job.whole_journal()
    job.journal.write_bytes(whole[:frames(whole)[9] + 30])
    for options, rows in ((["--slots", "4", "--arrival", "seed:3"], 8), (["--threads", "1"], 20)):
        p = corun.start(*job.args, *options, "--arrival", "1", stderr=-1)
        while p.poll() is None and job.journal.read_bytes().count(b"CoRJ") <= rows:
            time.sleep(0.001)
        p.kill()
        p.communicate()
    if job.journal.exists():
        job.resume()
    assert job.path.read_bytes() == job.want


def test_kill_resume_tool(corun):
    r = subprocess.run([sys.executable, ROOT / "tools/kill_resume.py", "--kills", "8", "--rows", "40"],
                       capture_output=True, timeout=300, env={**os.environ, "CORUN_BIN": str(CORUN)})
    assert r.returncode == 0, r.stderr
    assert b"8 kills" in r.stdout.splitlines()[-1]


def test_more_rows_than_the_window(corun):
    """A line that ends last, the whole window behind it, killed twice."""
    lines = [completion("slow", "x", max_tokens=3000, ignore_eos=True)]
    lines += [completion(f"r{i}", "y", max_tokens=-1) for i in range(4500)]
    job = Job(corun, lines)
    for rows in (100, 4094):
        p = job.running(rows)
        p.kill()
        p.communicate()
    job.resume()


# ---- what must be the same -----------------------------------------------------------------------

def test_refused_with_the_difference(corun):
    lines = requests()
    job = Job(corun, lines)
    whole = job.whole_journal()
    job.journal.write_bytes(whole[:frames(whole)[5]])
    for options, name in [(["--slots", "5"], "numeric.decode_width: journal 4, this run 5"),
                          (["--policy", "dynamic"], 'numeric.policy: journal "corun", this run "dynamic"'),
                          (["--ctx", "1000"], "numeric.n_ctx: journal 32768, this run 1000"),
                          (["--page", "32"], "numeric.page_tokens: journal 64, this run 32"),
                          (["--date", "2020-01-01"], "numeric.template_date"),
                          (["--processed-logprobs"], 'numeric.logprobs: journal "raw"'),
                          (["--kv", "800K"], "pool_pages"),
                          (["--shard", "1/2"], "options.shard: journal 0, this run 1"),
                          (["--served-model-name", "m"], 'options.served_model_name: journal null')]:
        err = job.refused(*options)
        assert name in err and "--restart" in err, err
        assert "this run" in err.splitlines()[-1] or "identity" in err
    corun.write("in.jsonl", lines[:-1] + [completion("other", "x")])
    err = job.refused()
    assert "input.digest" in err and "options" not in err
    corun.write("in.jsonl", lines + [completion("more", "x")])
    assert "input.lines: journal 24, this run 25" in job.refused()
    corun.write("in.jsonl", lines)
    args = ["score", *job.args[1:]]
    assert 'command: journal "batch", this run "score"' in job.refused(args=args)
    same = ["--threads", "1", "--isa", "generic", "--arrival", "2", "--swap", "1G", "--strict", "-q"]
    r = corun(*job.args, *same)
    assert r.returncode == 3 and job.path.read_bytes() == job.want


def test_restart(corun):
    job = Job(corun, requests())
    whole = job.whole_journal()
    other = [completion(f"o{i}", "z", max_tokens=3) for i in range(5)]
    corun.write("in.jsonl", other)
    assert corun(*job.args[:-1], "fresh.jsonl").returncode == 0
    fresh = (corun.folder / "fresh.jsonl").read_bytes()
    job.refused()
    assert "from the journal" not in corun(*job.args, "--restart").stderr.decode()
    assert job.path.read_bytes() == fresh and not job.journal.exists()
    for junk in (b"junk", whole[:40] + b"x" + whole[41:]):
        job.journal.write_bytes(junk)
        job.path.unlink()
        assert corun(*job.args, "--restart").returncode == 0 and job.path.read_bytes() == fresh
    assert corun(*job.args[:-1], "-", "--restart").returncode == 2
    assert b"no journal" in corun("batch", "-m", "fake:phase", "-i", "in.jsonl", "-o", "-",
                                  "--restart").stderr


def test_corrupt_records(corun):
    job = Job(corun, requests())
    whole = job.whole_journal()
    places = frames(whole)
    rng = random.Random(1)
    for k in range(1, 24):  # any byte of any record but the last
        at = rng.randrange(places[k], places[k + 1])
        job.journal.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << rng.randrange(8)]) + whole[at + 1:])
        err = job.refused()
        assert f"byte {places[k]}: record {k} is corrupt" in err and f"truncate -s {places[k]}" in err
    with open(job.journal, "r+b") as f:  # what the message says
        f.truncate(places[23])
    job.resume(rows=22)
    job.path.unlink()
    for at in (0, 5, 30, 60, HEAD + 3):
        job.journal.write_bytes(whole[:at] + b"\xee" + whole[at + 1:])
        job.refused()
    at = places[24] + 90  # the last one counts as torn
    job.journal.write_bytes(whole[:at] + b"\xee" + whole[at + 1:])
    assert "torn" in job.resume(rows=23)
    job.journal.write_bytes(whole + bytes(5000))  # zeros, as after a loss of power
    assert "torn" in job.resume(rows=24)
    job.path.unlink()
    one = whole[places[3]:places[4]]
    for bad in (whole + one, whole[:places[5]] + one + whole[places[5]:]):  # a row twice
        job.journal.write_bytes(bad)
        assert "cannot be here" in job.refused()
    for bad in (whole[:places[4]] + b"x" + whole[places[4]:],
                whole[:places[4]] + whole[places[4] + 1:]):  # a byte too many, a byte too few
        job.journal.write_bytes(bad)
        assert "corrupt" in job.refused()
    job.journal.write_bytes(whole[:places[4]] + whole[places[5]:])  # one taken out is run again
    job.resume(rows=23)


def test_records_of_another_run(corun):
    job = Job(corun, requests())
    whole = job.whole_journal()
    args, job.args = job.args, [*job.args, "--slots", "5"]
    job.journal.unlink()
    other = job.whole_journal()
    assert other != whole
    job.args = args
    assert len(frames(other)) == len(frames(whole))
    assert frames(other)[1] == frames(whole)[1]  # headers of one length
    job.journal.write_bytes(whole[:frames(whole)[1]] + other[frames(other)[1]:])
    job.resume(rows=0)  # none of them counts


# ---- hostile places ------------------------------------------------------------------------------

@pytest.mark.parametrize("kind", ["text", "noise", "folder", "link", "dangling", "fifo", "future"])
def test_hostile_journal(corun, kind):
    job = Job(corun, requests(5))
    if kind == "text":
        job.journal.write_text("my notes\n")
    elif kind == "noise":
        job.journal.write_bytes(random.Random(2).randbytes(100000))
    elif kind == "folder":
        job.journal.mkdir()
    elif kind == "link":
        (corun.folder / "precious").write_text("precious")
        job.journal.symlink_to("precious")
    elif kind == "dangling":
        job.journal.symlink_to("nowhere")
    elif kind == "fifo":
        os.mkfifo(job.journal)
    else:
        job.journal.write_bytes(b"CoRJ" + struct.pack("<HH", 2, 0) + bytes(200))
    r = corun(*job.args, timeout=20)
    assert r.returncode == 2 and b"corun-journal" in r.stderr, r.stderr
    assert not job.path.exists() and not (corun.folder / "nowhere").exists()
    if kind == "link":
        assert (corun.folder / "precious").read_text() == "precious"
    if kind == "text":
        assert job.journal.read_text() == "my notes\n" and b"no journal of corun" in r.stderr
    if kind == "future":
        assert b"format 2" in r.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_other_user(corun):
    job = Job(corun, requests(5))
    whole = job.whole_journal()
    os.chown(job.journal, 12345, 12345)
    assert "another user (id 12345)" in job.refused()
    folder = corun.folder / "shut"
    folder.mkdir(mode=0o755)
    os.chmod(corun.folder, 0o755)
    r = corun(*job.args[:-1], "shut/out.jsonl", preexec_fn=lambda: os.setuid(12345))
    assert r.returncode == 2, r.stderr
    assert whole == job.journal.read_bytes()


def test_two_processes(corun):
    job = Job(corun, requests(160, 60))
    p = job.running()
    r = corun(*job.args)
    assert r.returncode == 2 and b"another process" in r.stderr
    r = corun(*job.args, "--restart")
    assert r.returncode == 2 and b"another process" in r.stderr
    p.kill()
    p.communicate()
    job.resume()


def test_output_is_a_link(corun):
    job = Job(corun, requests())
    (corun.folder / "deep").mkdir()
    (corun.folder / "deep/real.jsonl").write_text("old")
    job.path.symlink_to("deep/real.jsonl")
    p = corun.start(*job.args, "--arrival", "1", stderr=-1)
    while p.poll() is None and not (corun.folder / "deep/real.jsonl.corun-journal").exists():
        time.sleep(0.001)
    p.kill()
    p.communicate()
    assert corun(*job.args).returncode == 0
    assert job.path.is_symlink() and (corun.folder / "deep/real.jsonl").read_bytes() == job.want
    assert os.listdir(corun.folder / "deep") == ["real.jsonl"]
    job.path.unlink()
    job.path.symlink_to("nowhere.jsonl")
    r = corun(*job.args)
    assert r.returncode == 2 and b"leads to no file" in r.stderr
    assert job.path.is_symlink() and not job.journal.exists()


# ---- signals -------------------------------------------------------------------------------------

@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_first_signal(corun, sig):
    job = Job(corun, requests(160, 60))
    before = set(os.listdir(corun.folder))
    p = job.running(5)
    p.send_signal(sig)
    _, err = p.communicate(timeout=60)
    assert p.returncode == 128 + sig
    assert b"ended by signal" in err and b"kept in out.jsonl.corun-journal" in err
    assert b"the same command goes on" in err
    assert set(os.listdir(corun.folder)) == before | {job.journal.name}
    rows = len(frames(job.journal.read_bytes())) - 2  # whole records only
    assert rows >= 5
    job.resume(rows=rows)


@pytest.mark.parametrize("sig", [signal.SIGQUIT, signal.SIGKILL, signal.SIGABRT, signal.SIGUSR1])
def test_other_signals(corun, sig):
    job = Job(corun, requests(160, 60))
    before = set(os.listdir(corun.folder))
    p = job.running(5, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)))
    p.send_signal(sig)
    p.communicate(timeout=60)
    assert p.returncode == -sig
    assert set(os.listdir(corun.folder)) == before | {job.journal.name}
    job.resume()


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_second_signal(corun, second):
    """The first one waits for the running step, here for a line that does not come."""
    corun.write("in.jsonl", requests(4))
    args = ["batch", "-m", "fake:phase", "-i", "-", "-o", "out.jsonl"]
    p = corun.start(*args, stdin=-1, stderr=-1)
    journal = corun.folder / "out.jsonl.corun-journal"
    for _ in range(3000):
        if journal.exists() and journal.stat().st_size:
            break
        time.sleep(0.01)
    p.send_signal(signal.SIGSTOP)
    p.send_signal(signal.SIGINT)
    p.send_signal(second if second != signal.SIGINT else signal.SIGHUP)
    p.send_signal(signal.SIGCONT)
    p.communicate(timeout=60)
    assert p.returncode in (-second, -signal.SIGHUP, -signal.SIGINT)


# ---- disks ---------------------------------------------------------------------------------------

def test_file_too_large(corun):
    """The limit on the size of files stands for a full disk: exit code 4, and then it goes on."""
    job = Job(corun, requests(60))
    whole = job.whole_journal()
    job.journal.unlink()
    for limit in (100, frames(whole)[1] + 10, frames(whole)[7] + 20, frames(whole)[30] + 1,
                  len(whole) - 1):
        r = corun(*job.args, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
        assert r.returncode == 4 and b"too large" in r.stderr, r.stderr
        assert not job.path.exists() and not (corun.folder / ".out.jsonl.corun-part").exists()
        if job.journal.exists():
            assert frames(job.journal.read_bytes())  # no torn record
            assert b"the same command goes on" in r.stderr
    job.resume()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
def test_full_disk(corun):
    job = Job(corun, requests(200, 40))
    small = corun.folder / "small"
    small.mkdir()
    size = len(job.want) * 3 // 2 // 4096 * 4096  # the rows fit once, not twice
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", small]).returncode:
        pytest.skip("no right to mount")
    try:
        args = [*job.args[:-1], "small/out.jsonl"]
        for filler in (size - 4096, size // 2, 0):
            (small / "filler").write_bytes(bytes(filler))
            r = corun(*args)
            assert r.returncode == 4 and b"No space left" in r.stderr, r.stderr
            assert not (small / "out.jsonl").exists()
        assert sorted(os.listdir(small)) == ["filler", "out.jsonl.corun-journal"]
        assert len(frames((small / "out.jsonl.corun-journal").read_bytes())) == 202
        subprocess.run(["mount", "-o", f"remount,size={3 * size}", small], check=True)
        r = corun(*args)
        assert r.returncode == 0 and b"(200 from the journal)" in r.stderr
        assert (small / "out.jsonl").read_bytes() == job.want
        assert sorted(os.listdir(small)) == ["filler", "out.jsonl"]
    finally:
        subprocess.run(["umount", small])


def test_another_file_system(corun):
    shm = "/dev/shm"
    if not os.access(shm, os.W_OK) or os.stat(shm).st_dev == os.stat(corun.folder).st_dev:
        pytest.skip("no second file system")
    folder = f"{shm}/corun-test-{os.getpid()}"
    os.mkdir(folder)
    try:
        job = Job(corun, requests(160, 60))
        job.args[job.args.index("-o") + 1] = f"{folder}/out.jsonl"
        p = corun.start(*job.args, stderr=-1)
        path = f"{folder}/out.jsonl.corun-journal"
        while p.poll() is None and not (os.path.exists(path) and os.stat(path).st_size > 5000):
            time.sleep(0.001)
        p.kill()
        p.communicate()
        assert os.listdir(folder) == ["out.jsonl.corun-journal"]
        assert corun(*job.args).returncode == 0
        with open(f"{folder}/out.jsonl", "rb") as f:
            assert f.read() == job.want
        assert os.listdir(folder) == ["out.jsonl"]
    finally:
        shutil.rmtree(folder)


# ---- streams, shards, scores ---------------------------------------------------------------------

def stopped_stream(corun, args, lines, rows):
    """A batch from a pipe, killed when it has this many rows and waits for more lines."""
    p = corun.start(*args, stdin=-1, stderr=-1)
    p.stdin.write(b"".join(json.dumps(x).encode() + b"\n" for x in lines))
    p.stdin.flush()
    journal = corun.folder / "out.jsonl.corun-journal"
    for _ in range(3000):
        if journal.exists() and journal.read_bytes().count(b"CoRJ") > rows:
            break
        assert p.poll() is None
        time.sleep(0.01)
    p.kill()
    p.communicate()


def test_stream(corun):
    lines = [x for x in requests(400) if isinstance(x, dict)]
    args = ["batch", "-m", "fake:phase", "-i", "-", "-o", "out.jsonl"]
    text = b"".join(json.dumps(x).encode() + b"\n" for x in lines)
    assert corun(*args, stdin=text).returncode == 0
    want = (corun.folder / "out.jsonl").read_bytes()
    os.remove(corun.folder / "out.jsonl")
    stopped_stream(corun, args, lines, 3)
    assert corun(*args, stdin=text.replace(b"hello", b"hallo", 1)).returncode == 2
    r = corun(*args, stdin=gzip.compress(text))  # the text counts
    assert r.returncode == 0 and b"from the journal" in r.stderr
    assert (corun.folder / "out.jsonl").read_bytes() == want
    r = corun(*args[:-1], "-", stdin=text)
    assert r.stdout == want and sorted(os.listdir(corun.folder)) == ["out.jsonl"]


def test_place_of_an_unfinished_batch(corun):
    """What other commands write must not take the place of a batch that will write there."""
    lines = [x for x in requests(400) if isinstance(x, dict)]
    text = b"".join(json.dumps(x).encode() + b"\n" for x in lines)
    args = ["batch", "-m", "fake:phase", "-i", "-", "-o", "out.jsonl"]
    want = corun(*args[:-1], "-", stdin=text).stdout
    (corun.folder / "shard").write_bytes(want)
    corun.write("in.jsonl", lines)
    stopped_stream(corun, args, lines, 3)
    before = (corun.folder / "out.jsonl.corun-journal").read_bytes()
    for other in (["merge", "-o", "out.jsonl", "shard"],
                  ["batch", "-m", "fake:phase", "-i", "in.jsonl", "-o", "b", "--metrics", "out.jsonl"],
                  ["verify", "-m", "fake:", "--json", "out.jsonl"]):
        r = corun(*other)
        assert r.returncode == 2 and b"a batch that writes there runs or was stopped" in r.stderr, r.stderr
        assert sorted(os.listdir(corun.folder)) == ["in.jsonl", "out.jsonl.corun-journal", "shard"]
    assert (corun.folder / "out.jsonl.corun-journal").read_bytes() == before
    assert corun(*args, stdin=text).returncode == 0
    assert (corun.folder / "out.jsonl").read_bytes() == want
    assert corun("merge", "-o", "out.jsonl", "shard").returncode == 0


def test_shard(corun):
    job = Job(corun, requests(), "--shard", "1/3")
    whole = job.whole_journal()
    assert len(frames(whole)) == 2 + 8
    job.journal.write_bytes(whole[:frames(whole)[4]])
    job.resume(rows=3)


def test_score(corun):
    lines = [{"text": "abc" * (1 + i % 5), "custom_id": f"c{i}"} for i in range(20)] + [{"text": 5}]
    corun.write("in.jsonl", lines)
    args = ["score", "-m", "fake:phase", "-i", "in.jsonl", "-o", "out.jsonl"]
    assert corun(*args).returncode == 0
    want = (corun.folder / "out.jsonl").read_bytes()
    job = Job.__new__(Job)
    job.corun, job.out, job.folder, job.want, job.args = corun, "out.jsonl", corun.folder, want, args
    job.path.unlink()
    job.args = args[:]
    job_args = [a for a in args]
    # score has no --arrival: a folder in the way of the output's temporary file
    for _ in range(100):
        p = corun.start(*job_args, stderr=-1)
        while not job.journal.exists() and p.poll() is None:
            time.sleep(0.0005)
        p.send_signal(signal.SIGSTOP)
        (corun.folder / ".out.jsonl.corun-part").mkdir()
        p.send_signal(signal.SIGCONT)
        p.communicate(timeout=60)
        (corun.folder / ".out.jsonl.corun-part").rmdir()
        if p.returncode == 2 and job.journal.exists():
            break
        job.path.unlink(missing_ok=True)
    whole = job.journal.read_bytes()
    assert "options.top: journal 0, this run 3" in job.refused("--top", "3")
    assert "options.text: journal false" in job.refused("--text")
    for k in (2, 11, 20):
        job.journal.write_bytes(whole[:frames(whole)[k]])
        job.resume(rows=k - 1)


def test_input_changes_while_it_is_read(corun):
    job = Job(corun, requests(160, 60))
    p = job.running()
    p.send_signal(signal.SIGSTOP)
    with open(corun.folder / "in.jsonl", "ab") as f:
        f.write(json.dumps(completion("late", "x")).encode() + b"\n")
    p.send_signal(signal.SIGCONT)
    _, err = p.communicate(timeout=60)
    assert p.returncode in (0, 2)  # 0: all lines were read before
    if p.returncode == 2:
        assert b"changed while it was read" in err and not job.path.exists()
