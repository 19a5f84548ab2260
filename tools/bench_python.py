#!/usr/bin/env python3
"""Times corun.LLM against `corun batch` on the same requests: tokens per second of new tokens.

usage: tools/bench_python.py [--rounds N] [--repeat N] [--model MODEL] [--slots N]

The requests are the chats of examples/demo.jsonl, --repeat times with a seed of its own for each.
Each round runs the program and then LLM.chat, each in a process of its own, so that slow moments of
the machine hit both. Opening the model is left out of both: of the program the metrics' seconds_run
count (reading lines to the output in place), of Python the time of LLM.chat (templates and
tokens included). All texts and token ids of the two must be equal, else the exit code is 1. One JSON
line a round to stdout, the medians to stderr. Needs build/corun, build/libcorun.so (`make`) and the
packages numpy and tqdm (.cache/venv has them).
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
DEMO = ROOT / ".cache" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
FIELDS = ["max_tokens", "temperature", "seed", "n", "top_p", "top_k", "min_p", "stop",
          "repetition_penalty", "presence_penalty", "frequency_penalty"]


def requests(repeat):
    out = []
    for r in range(repeat):
        for text in (ROOT / "examples" / "demo.jsonl").read_text().splitlines():
            line = json.loads(text)
            body = {k: v for k, v in line["body"].items() if k in FIELDS or k == "messages"}
            if "messages" not in body:
                continue
            if body["temperature"] == 0:
                body.pop("n", None)
            body.update(model="m", seed=len(out), return_token_ids=True)
            out.append({**line, "custom_id": f"r{len(out)}", "body": body})
    return out


def child(model, path, slots):
    """The Python side of one round, in a process of its own."""
    sys.path.insert(0, str(ROOT / "python"))
    from corun import LLM, SamplingParams
    bodies = [json.loads(x)["body"] for x in pathlib.Path(path).read_text().splitlines()]
    with LLM(model, slots=slots, library=str(ROOT / "build" / "libcorun.so")) as llm:
        begin = time.perf_counter()
        params = [SamplingParams(**{k: b[k] for k in FIELDS if k in b}) for b in bodies]
        outs = llm.chat([b["messages"] for b in bodies], params, use_tqdm=False)
        seconds = time.perf_counter() - begin
    answers = [[[c.token_ids, c.text] for c in o.outputs] for o in outs]
    n = sum(len(ids) for o in answers for ids, _ in o)
    json.dump({"seconds": seconds, "tokens": n, "answers": answers}, sys.stdout)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--repeat", type=int, default=2)
    p.add_argument("--model", default=str(DEMO))
    p.add_argument("--slots", type=int, default=16)
    p.add_argument("--child", help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.child:
        return child(a.model, a.child, a.slots)
    rates = {"batch": [], "python": []}
    with tempfile.TemporaryDirectory() as folder:
        at = pathlib.Path(folder)
        lines, out, metrics = at / "in.jsonl", at / "out.jsonl", at / "metrics.json"
        lines.write_text("".join(json.dumps(x) + "\n" for x in requests(a.repeat)))
        for r in range(a.rounds):
            subprocess.run([ROOT / "build" / "corun", "batch", "-q", "-m", a.model, "-i", lines,
                            "-o", out, "--metrics", metrics, "--slots", str(a.slots), "--strict"],
                           check=True)
            m = json.loads(metrics.read_text())
            rows = [json.loads(x)["response"]["body"] for x in out.read_text().splitlines()]
            want = [[[c["token_ids"], c["message"]["content"]] for c in x["choices"]] for x in rows]
            got = json.loads(subprocess.run(
                [sys.executable, __file__, "--child", lines, "--model", a.model, "--slots",
                 str(a.slots)], check=True, stdout=subprocess.PIPE).stdout)
            if got["answers"] != want or got["tokens"] != m["tokens_new"]:
                print("bench_python: the answers differ", file=sys.stderr)
                return 1
            rates["batch"].append(m["tokens_new"] / m["seconds_run"])
            rates["python"].append(got["tokens"] / got["seconds"])
            print(json.dumps({"round": r, "tokens": got["tokens"],
                              **{k: round(v[-1], 2) for k, v in rates.items()}}), flush=True)
    batch, python = (statistics.median(rates[k]) for k in ("batch", "python"))
    print(f"new tokens/s, medians of {a.rounds}: corun batch {batch:.1f}, LLM.chat {python:.1f}: "
          f"{100 * (1 - python / batch):+.1f} % slower", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
