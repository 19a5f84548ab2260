#!/usr/bin/env python3
"""Writes a batch file of N completions, for runs with many lines (docs/scale.md).

tools/make_requests.py N [--max-tokens K] [--twice EVERY] > requests.jsonl

Every line has its own prompt; with --twice each EVERY-th custom_id is one that came before, which
gives an error row.
"""
import argparse
import json
import sys


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("n", type=int)
    p.add_argument("--max-tokens", type=int, default=8)
    p.add_argument("--twice", type=int, default=0)
    a = p.parse_args()
    for i in range(a.n):
        name = i // 2 if a.twice and i % a.twice == a.twice - 1 else i
        sys.stdout.write(json.dumps({
            "custom_id": f"request-{name}", "method": "POST", "url": "/v1/completions",
            "body": {"model": "m", "prompt": f"Question {i}:", "max_tokens": a.max_tokens}}) + "\n")


if __name__ == "__main__":
    main()
