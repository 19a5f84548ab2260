#!/usr/bin/env python3
"""Tokens a second of `corun serve` beside `corun batch`, alternating in one run.

usage: tools/bench_server.py [-m MODEL] [-i REQUESTS.jsonl] [--repeat N] [--rounds N] [--clients N]
                             [--corun PROGRAM] [-- OPTION...]

Each round runs the same requests three ways: a batch file, 64 clients that ask for whole answers, 64
that ask for streams. The file's lines are used N times (--repeat), with other custom_ids. Both
times begin when the model is open, and end with the last answer. All three ways give the same
answers, which is checked, so they give the same number of tokens. The clients run on the same machine
and cost what they cost. Shows each round, then the medians and what the server takes: the median over the
rounds of its time over the file's in the same round, so many short rounds tell more than few long ones.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tools")]

import http_light  # noqa: E402
import server  # noqa: E402
from server import Server, events, join  # noqa: E402


def run_batch(a, folder):
    subprocess.run([a.corun, "batch", "-m", a.model, "-i", "in.jsonl", "-o", "out.jsonl", "-q",
                    "--metrics", "m.json", *a.options], cwd=folder, check=True)
    m = json.loads((folder / "m.json").read_text())
    rows = [json.loads(x) for x in (folder / "out.jsonl").read_text().splitlines()]
    return m["seconds_run"], {r["custom_id"]: r["response"]["body"] for r in rows}


def run_server(a, folder, lines, stream, want):
    jobs = [http_light.Job(x["url"], {**x["body"], "request_id": x["custom_id"],
                                      **({"stream": True} if stream else {})}) for x in lines]
    with Server(folder, "--no-state", *a.options, model=a.model) as s:
        began = time.monotonic()
        http_light.run((s.host, s.port), jobs, a.clients)
        spent = time.monotonic() - began
    for job in jobs:
        body = want[job.body["request_id"]]
        got = join(events(job.reply), False) if stream else json.loads(job.reply)
        body = {k: v for k, v in body.items() if k != "usage" or not stream}
        if job.status != 200 or {**got, "created": 0} != body:
            sys.exit(f"{job.body['request_id']}: another answer: {job.reply[:500]}")
    return spent


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("-m", "--model",
                   default=str(ROOT / ".cache/models/SmolLM2-135M-Instruct.Q4_1.gguf"))
    p.add_argument("-i", "--input", default=str(ROOT / "examples" / "demo.jsonl"))
    p.add_argument("--repeat", type=int, default=1)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--clients", type=int, default=64)
    p.add_argument("--corun", default=str(ROOT / "build" / "corun"))
    p.add_argument("options", nargs="*")
    a = p.parse_args()
    a.corun = str(pathlib.Path(a.corun).resolve())
    server.CORUN = a.corun
    if not a.model.startswith("fake:"):
        a.model = str(pathlib.Path(a.model).resolve())
    lines = [json.loads(x) for x in open(a.input)]
    lines = [{**x, "custom_id": f"{x['custom_id']}.{k}"} for k in range(a.repeat) for x in lines]
    times = {"batch": [], "whole": [], "streamed": []}
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "in.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
        for k in range(a.rounds):
            seconds, rows = run_batch(a, folder)
            times["batch"].append(seconds)
            tokens = sum(r["usage"]["completion_tokens"] for r in rows.values())
            for stream in (False, True) if k % 2 == 0 else (True, False):
                times["streamed" if stream else "whole"].append(
                    run_server(a, folder, lines, stream, rows))
            print(f"round {k + 1}: " + ", ".join(f"{n} {tokens / t[-1]:.1f} tokens/s"
                                                for n, t in times.items()), flush=True)
    print(f"{len(lines)} requests, {tokens} new tokens, {a.clients} clients; medians:")
    for name, t in times.items():
        ratios = sorted(x / y for x, y in zip(t, times["batch"]))
        print(f"  {name:9} {tokens / statistics.median(t):9.1f} tokens/s  "
              f"{100 * (statistics.median(ratios) - 1):+6.2f} % of time "
              f"({100 * (ratios[0] - 1):+.1f} to {100 * (ratios[-1] - 1):+.1f})")


if __name__ == "__main__":
    main()
