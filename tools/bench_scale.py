#!/usr/bin/env python3
"""Runs N lines through corun.ray with the fake model and writes the memory of every process.

tools/bench_scale.py N --folder DIR [--workers 2] [--corun build/corun] [--every 5]

Makes the input (tools/make_requests.py, each 1,000th custom_id twice), runs `python -m corun.ray
batch` over it while it samples the resident memory of its processes, then `corun batch` alone, and
compares both files. Prints a table; docs/scale.md has the figures.
"""
import argparse
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
COLUMNS = ("coordinator", "split", "merge", "actors", "engines")


def processes():
    """pid: (parent, arguments, resident bytes, anonymous resident bytes)."""
    found = {}
    for p in pathlib.Path("/proc").iterdir():
        if not p.name.isdigit():
            continue
        try:
            parent = int((p / "stat").read_text().rsplit(")", 1)[1].split()[1])
            argv = (p / "cmdline").read_bytes().split(b"\0")
            rss, shared = map(int, (p / "statm").read_text().split()[1:3])
            found[int(p.name)] = (parent, argv, rss * 4096, (rss - shared) * 4096)
        except OSError:
            pass
    return found


def sample(coordinator):
    """Mebibytes of anonymous memory of each kind of process; of several the largest."""
    all_of, size = processes(), dict.fromkeys(COLUMNS, 0)
    for pid, (parent, argv, _, own) in all_of.items():
        kind = None
        if pid == coordinator:
            kind = "coordinator"
        elif b"--pieces" in argv:
            above = all_of.get(parent)
            kind = "engines"
            if above:
                size["actors"] = max(size["actors"], above[3] / 2**20)
        elif parent == coordinator and b"split" in argv:
            kind = "split"
        elif parent == coordinator and b"merge" in argv:
            kind = "merge"
        if kind:
            size[kind] = max(size[kind], own / 2**20)
    return size


def timed(what, argv, **more):
    begin = time.monotonic()
    r = subprocess.run([str(x) for x in argv], check=True, **more)
    print(f"# {what}: {time.monotonic() - begin:.1f} s", flush=True)
    return r


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("n", type=int)
    p.add_argument("--folder", type=pathlib.Path, required=True)
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--corun", default=str(ROOT / "build" / "corun"))
    p.add_argument("--every", type=float, default=5)
    a = p.parse_args()
    a.folder.mkdir(parents=True, exist_ok=True)
    source, out, alone = (a.folder / n for n in ("in.jsonl", "ray.jsonl", "alone.jsonl"))
    with open(source, "wb") as f:
        timed(f"input of {a.n} lines", [sys.executable, ROOT / "tools" / "make_requests.py", a.n,
                                        "--max-tokens", 4, "--twice", 1000], stdout=f)
    command = [sys.executable, "-m", "corun.ray", "batch", "-m", "fake:phase", "-i", str(source),
               "-o", str(out), "--workers", str(a.workers), "--cpus-per-worker", "1", "--corun",
               a.corun]
    print("# " + " ".join(command[1:]), flush=True)
    begin = time.monotonic()
    run = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT / "python")},
                           stderr=subprocess.STDOUT)
    print("# anonymous resident memory in MiB; of several actors and engines the largest\n"
          "#   seconds    rows  " + "  ".join(f"{c:>11}" for c in COLUMNS), flush=True)
    while run.poll() is None:
        folder = pathlib.Path(f"{out}.corun-ray")
        rows = 0
        if folder.exists():
            try:
                rows = sum(int(f.name.split("-")[2]) for f in folder.glob("*.rows"))
            except OSError:
                pass
        size = sample(run.pid)
        print(f"{time.monotonic() - begin:11.1f} {rows:7d}  " +
              "  ".join(f"{size[c]:11.1f}" for c in COLUMNS), flush=True)
        time.sleep(a.every)
    print(f"# corun.ray: {time.monotonic() - begin:.1f} s, exit code {run.returncode}")
    if run.returncode:
        return 1
    timed("corun batch alone", [a.corun, "batch", "-m", "fake:phase", "-i", source, "-o", alone,
                                "-q", "--threads", 1], stderr=subprocess.DEVNULL)
    same = subprocess.run(["cmp", str(out), str(alone)]).returncode == 0
    print(f"# cmp: {'the same bytes' if same else 'DIFFERENT'}, {out.stat().st_size} bytes")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
