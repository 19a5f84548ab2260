#!/usr/bin/env python3
"""Kills a batch at random moments, starts it again until it ends, and compares the output.

usage: tools/kill_resume.py [--kills N] [--rows R] [--model MODEL] [--input FILE] [--seed S] [--keep]
                            [-- OPTION...]

One uninterrupted run gives the wanted bytes. Then runs are started with the same arguments and
killed with SIGKILL: at a random moment, or when the journal has grown by a random number of bytes,
one in two. A run that ends by itself is compared and the next one begins from nothing. Other
options of `corun batch` stand behind "--". Every kill prints a line: the moment, the rows that the
journal held, and how many bytes of a torn record. Exit code 1 when bytes differ, when a resumed run
is refused, or when no kill hit a run that had rows.
"""
import argparse
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEAD = 72


def make_input(path, rows, rng):
    import json
    with open(path, "w") as f:
        for i in range(rows):
            body = {"model": "m", "prompt": "abc " * rng.randint(1, 30), "logprobs": 2,
                    "max_tokens": rng.choice([1, 5, 40, 200]), "n": rng.choice([1, 1, 2])}
            f.write(json.dumps({"custom_id": f"r{i}", "method": "POST", "url": "/v1/completions",
                                "body": body}) + "\n")


def journal_rows(path):
    """Whole records, and the bytes behind them, by their lengths alone."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return 0, 0
    at, rows = 0, -1
    while at + HEAD <= len(data):
        message, row = struct.unpack_from("<IQ", data, at + 28)
        if at + HEAD + message + row > len(data):
            break
        at += HEAD + message + row
        rows += 1
    return max(rows, 0), len(data) - at


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--kills", type=int, default=20)
    ap.add_argument("--rows", type=int, default=100)
    ap.add_argument("--model", default="fake:phase")
    ap.add_argument("--input")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("options", nargs="*")
    a = ap.parse_args()
    corun = os.environ.get("CORUN_BIN", str(ROOT / "build" / "corun"))
    rng = random.Random(a.seed)
    with tempfile.TemporaryDirectory(prefix="kill_resume.") as tmp:
        folder = pathlib.Path(tmp)
        source = pathlib.Path(a.input).resolve() if a.input else folder / "in.jsonl"
        if not a.input:
            make_input(source, a.rows, rng)
        out, journal = folder / "out.jsonl", folder / "out.jsonl.corun-journal"
        args = [corun, "batch", "-m", a.model, "-i", str(source), "-o", str(out), *a.options]
        begin = time.monotonic()
        subprocess.run([*args, "-q"], check=True)
        span, want = time.monotonic() - begin, out.read_bytes()
        total = want.count(b"\n")
        print(f"uninterrupted: {total} rows, {len(want)} bytes, {span:.2f} s", flush=True)
        kills = useful = resumed = ends = restored = 0
        while kills < a.kills or journal.exists():
            out.unlink(missing_ok=True)
            before = journal_rows(journal)[0]
            size = journal.stat().st_size if journal.exists() else 0
            p = subprocess.Popen(args, stderr=subprocess.PIPE)
            if kills < a.kills:
                if rng.random() < 0.5:
                    moment = rng.random() * span
                    time.sleep(moment)
                    how = f"after {moment:.3f} s"
                else:
                    grow = rng.randrange(1, max(2, len(want) // 4))
                    while p.poll() is None:
                        if journal.exists() and journal.stat().st_size >= size + grow:
                            break
                        time.sleep(0.0005)
                    how = f"after {grow} bytes"
                p.kill()
            err = p.communicate()[1].decode()
            resumed += before > 0
            if out.exists() and out.read_bytes() != want:
                sys.exit("FAIL: an output that differs was put in place")
            if p.returncode == 0 or (out.exists() and not journal.exists()):
                ends += 1
                if p.returncode:  # killed after its work was done
                    kills += 1
                    print(f"kill {kills}: {how}: the output was in place", flush=True)
                    continue
                if before and f"({before} from the journal)" not in err:
                    sys.exit(f"FAIL: {before} rows were kept, but not used:\n{err}")
                restored += before
                if sorted(os.listdir(folder)) != sorted({source.name} - {source.name if a.input else ""}
                                                        | {out.name}):
                    sys.exit(f"FAIL: files are left: {os.listdir(folder)}")
                continue
            if p.returncode != -9:
                sys.exit(f"FAIL: exit code {p.returncode}:\n{err}")
            kills += 1
            rows, torn = journal_rows(journal)
            useful += rows > 0
            if rows < before:
                sys.exit(f"FAIL: the journal has shrunk from {before} to {rows} rows")
            print(f"kill {kills}: {how}: {rows}/{total} rows, {torn} torn bytes", flush=True)
        if not useful or not restored:
            sys.exit("FAIL: no kill hit a run that had rows")
        print(f"{kills} kills ({useful} with rows in the journal), {resumed} resumed runs, {ends} "
              f"outputs, all byte-equal; {restored} rows came from journals")


main()
