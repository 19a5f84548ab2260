#!/usr/bin/env python3
"""Loads `corun serve` and compares every answer with the batch file's.

usage: tools/load_serve.py [-m MODEL] [--requests N] [--clients N] [--seconds S] [--tokens N]
                           [--seed S] [--corun PROGRAM] [-- OPTION...]

N requests (1,000) of all kinds from 64 clients: whole and streamed, of several prompts and choices,
some cancelled before or in their answer, some over a limit (tokens, body, queue) or malformed. `corun
batch` answers the same requests; every completed answer must be its row's body, every stream, put
together, too. At the end no page may be held, and the counts of the server must be those of the
clients. With --seconds the load is repeated so long, with other requests, and the resident memory is
shown: of the second half it may not grow by more than 3 % and 2 MB. Other options of the engine stand
behind "--". Exit code 1 when something differs.
"""
import argparse
import json
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tools")]

import http_light  # noqa: E402
import server  # noqa: E402
from server import Server, events, join, usage_of, without_created  # noqa: E402

LIMIT = 6000  # --max-tokens


def make(rng, name, tokens):
    """A request: path, body, and what is to happen with it."""
    body = {"model": "m", "request_id": name, "max_tokens": rng.randint(1, tokens)}
    words = " ".join(rng.choice(["red", "blue", "seven", "rain", "why", "is"])
                     for _ in range(rng.randint(1, 40)))
    kind = rng.random()
    if kind < 0.4:
        path = "/v1/chat/completions"
        body["messages"] = [{"role": "user", "content": words}]
        if rng.random() < 0.3:
            body.update(logprobs=True, top_logprobs=rng.randint(0, 3))
    else:
        path = "/v1/completions"
        body["prompt"] = words if kind < 0.85 else [words, "and", "more"]
        if rng.random() < 0.3:
            body.update(logprobs=rng.randint(0, 3), echo=rng.random() < 0.5)
    if rng.random() < 0.15:
        body["n"] = rng.randint(2, 4)
    if rng.random() < 0.2:
        body["stop"] = ["e", "xyz"]
    if rng.random() < 0.1:
        body["prompt_logprobs"] = 1
    if rng.random() < 0.5:
        body["stream"] = True
        if rng.random() < 0.5:
            body["stream_options"] = {"include_usage": True}
    fate = rng.random()
    if fate < 0.04:
        body.update(max_tokens=LIMIT, n=2)
        return path, body, "limit"
    if fate < 0.06:
        body["user"] = "x" * 300000
        return path, body, "body"
    if fate < 0.08:
        body["n"] = 0
        return path, body, "bad"
    if fate < 0.18:
        return path, body, "cancel"
    return path, body, "answer"


def batch(program, model, options, work, folder):
    lines = [{"custom_id": body["request_id"], "method": "POST", "url": path,
              "body": {k: v for k, v in body.items() if k not in ("stream", "stream_options")}}
             for path, body, fate in work if fate == "answer"]
    (folder / "in.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    subprocess.run([program, "batch", "-m", model, "-i", "in.jsonl", "-o", "out.jsonl", "-q",
                    *options], cwd=folder, check=True)
    rows = {}
    for line in (folder / "out.jsonl").read_bytes().splitlines(keepends=True):
        body = re.search(rb'"body":(\{.*\})\},"error":null\}\n$', line)[1]
        rows[json.loads(line)["custom_id"]] = body
    return rows


def check(job, fate, row):
    """What is wrong with a reply, or None."""
    if fate == "cancel":
        return None
    want = {"limit": 400, "body": 413, "bad": 400, "answer": 200}[fate]
    if fate == "body" and job.status == 0:
        return None  # the reply can be lost where the server closes while the client still sends
    if job.status != want:
        return f"status {job.status}, not {want}: {job.reply[:300]}"
    if fate != "answer":
        return None if json.loads(job.reply)["error"]["message"] else "no message"
    if not job.body.get("stream"):
        return None if without_created(job.reply) == row else "not the row of the batch"
    whole = json.loads(row)
    if not usage_of(job.body):
        del whole["usage"]
    got = join(events(job.reply), usage_of(job.body))
    got["created"] = 0
    return None if got == whole else "the stream is not the row of the batch"


def rss(pid):
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", text)[1]) / 1024


def one_round(live, work, rows, clients, rng, counts):
    jobs = []
    for path, body, fate in work:
        cut = None
        if fate == "cancel":
            cut = 0 if rng.random() < 0.3 else rng.randint(1, 2000)
        job = http_light.Job(path, body, cut)
        job.fate = fate
        jobs.append(job)
    http_light.run((live.host, live.port), jobs, clients)
    bad = 0
    for job in jobs:
        wrong = check(job, job.fate, rows.get(job.body["request_id"]))
        counts[job.fate] = counts.get(job.fate, 0) + 1
        counts["429"] = counts.get("429", 0) + job.retries
        if wrong:
            bad += 1
            print(f"{job.body['request_id']}: {wrong}", flush=True)
    return bad


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("-m", "--model", default="fake:phase")
    p.add_argument("--requests", type=int, default=1000)
    p.add_argument("--clients", type=int, default=64)
    p.add_argument("--seconds", type=float, default=0)
    p.add_argument("--tokens", type=int, default=48, help="most new tokens of a choice")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--corun", default=str(ROOT / "build" / "corun"))
    p.add_argument("options", nargs="*")
    a = p.parse_args()
    a.corun = str(pathlib.Path(a.corun).resolve())
    server.CORUN = a.corun
    model = a.model if a.model.startswith("fake:") else str(pathlib.Path(a.model).resolve())
    rng, counts, bad, memory = random.Random(a.seed), {}, 0, []
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        with Server(folder, "--no-state", "--max-tokens", LIMIT, "--max-body", "200K", "--queue",
                    max(8, a.clients // 2), *a.options, model=model) as live:
            began, shown, n_round = time.monotonic(), 0, 0
            while True:
                work = [make(rng, f"r{n_round}-{i}", a.tokens) for i in range(a.requests)]
                rows = batch(a.corun, model, a.options, work, folder)
                t = time.monotonic()
                bad += one_round(live, work, rows, a.clients, rng, counts)
                state = live.idle()
                n_round += 1
                now = time.monotonic()
                memory.append((now - began, rss(live.process.pid)))
                if n_round == 1 or now - shown > 20:
                    shown = now
                    print(f"{now - began:7.1f} s  round {n_round}: {a.requests} requests in "
                          f"{now - t:.1f} s, {memory[-1][1]:.1f} MB resident, pages free "
                          f"{state['pages_free']} of {state['pages']}", flush=True)
                if now - began >= a.seconds or bad:
                    break
            metrics = live.metrics()
            code = live.stop()
    done = sum(v for k, v in metrics.items() if k.startswith("corun_requests_total"))
    print("clients:", ", ".join(f"{v} {k}" for k, v in sorted(counts.items())))
    cancelled = metrics['corun_requests_total{end="cancelled"}']
    print(f"engine: {done:.0f} requests, of them {cancelled:.0f} cancelled; "
          f"{metrics['corun_requests_refused_total']:.0f} refused; exit code {code}")
    late = [m for t, m in memory if t >= a.seconds / 2]
    if a.seconds and late[-1] > 1.03 * late[0] + 2:
        print(f"memory has grown: {late[0]:.1f} MB to {late[-1]:.1f} MB")
        bad += 1
    if metrics['corun_requests_total{end="ok"}'] < counts["answer"] or code != 0:
        print("the counts do not fit")
        bad += 1
    print("ok" if not bad else f"{bad} wrong")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
