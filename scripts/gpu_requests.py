#!/usr/bin/env python3
"""What scripts/gpu_promise.sh needs of files: requests of token ids, and the comparison of results.

usage: gpu_requests.py long N FOLDER         b, ab, beside: a prompt of N tokens alone, behind one that
                                             begins alike, among short ones
       gpu_requests.py same FOLDER           row b of all results of a policy must be the same bytes
       gpu_requests.py machines FOLDER       64 requests of mixed length and sampling
       gpu_requests.py digest FOLDER OUT OLD digests of free.jsonl and corun.jsonl; held against OLD
                                             where that is there
       gpu_requests.py table OUT             the verdicts of OUT/verify_*.json
       gpu_requests.py widths FOLDER         128 requests of mixed length
       gpu_requests.py differ FOLDER         how many rows differ by width: some under `dynamic`, none
                                             under `free`
"""
import hashlib
import json
import pathlib
import re
import sys


def tokens(seed, n, below=300):
    x = seed * 0x9E3779B97F4A7C15 + 1
    out = []
    for _ in range(n):
        x = (x * 6364136223846793005 + 1442695040888963407) % 2**64
        out.append((x >> 33) % below)
    return out


def line(name, prompt, max_tokens, seed, **more):
    body = {"model": "m", "prompt": prompt, "max_tokens": max_tokens, "seed": seed, "logprobs": 5,
            "ignore_eos": True, "temperature": 1.0, **more}
    return json.dumps({"custom_id": name, "method": "POST", "url": "/v1/completions", "body": body}) + "\n"


def long(n, folder):
    start = tokens(1, n - 10)
    a = line("a", start + tokens(2, 10), 4, 11)
    b = line("b", start + tokens(3, 10), 32, 12)
    short = [line(f"s{i}", tokens(10 + i, 20 + 30 * i), 48, 20 + i) for i in range(8)]
    (folder / "b.jsonl").write_text(b)
    (folder / "ab.jsonl").write_text(a + b)
    (folder / "beside.jsonl").write_text("".join(short[:4]) + b + "".join(short[4:]))


def row(path, name):
    found = [r for r in path.read_bytes().splitlines(True) if json.loads(r)["custom_id"] == name]
    return found[0] if found else b""


def same(folder):
    bad = 0
    for policy in ("free", "corun", "invariant"):
        files = sorted(folder.glob(policy + "_*.jsonl"))
        rows = {p.stem: row(p, "b") for p in files}
        first = next(iter(rows.values()), b"")
        ok = len(rows) > 1 and b'"status_code":200' in first.replace(b" ", b"") and \
            all(r == first for r in rows.values())
        bad += not ok
        name = re.findall(rb'"system_fingerprint": ?"([^"]*)"', first) or [b"?"]
        print(f"{policy}: identity {name[0].decode()}, {'the same bytes' if ok else 'NOT the same'} in {', '.join(rows) or 'no file'}: "
              f"{len(first)} bytes, sha256 {hashlib.sha256(first).hexdigest()}")
    for p in sorted(folder.glob("*_warm.json")):
        m = json.loads(p.read_text())
        text = json.dumps(m)
        hits = re.findall(r'"prefix_(\w+)": (\d+)', text)
        print(f"{p.stem}: prefix {dict(hits)}")
        bad += not any(name == "tokens" and int(n) > 0 for name, n in hits)
    return bad


def machines(folder):
    with open(folder / "in.jsonl", "w") as f:
        for i in range(64):
            more = [{}, {"top_k": 40}, {"top_p": 0.9}, {"temperature": 0}, {"min_p": 0.05}][i % 5]
            f.write(line(f"r{i}", tokens(100 + i, 1 + 37 * i % 700), 32 + i, 1000 + i, **more))


def bare(data):
    """Rows without the identity that they name."""
    return re.sub(rb'"system_fingerprint": ?"[^"]*"', b"", data)


def digest(folder, out, old):
    text = ""
    for policy in ("free", "corun"):
        data = (folder / f"{policy}.jsonl").read_bytes()
        print_of = sorted(set(re.findall(rb'"system_fingerprint": ?"([^"]*)"', data)))
        if data.count(b"\n") != 64 or len(print_of) != 1:
            print(f"{policy}: {data.count(10)} rows, {len(print_of)} fingerprints")
            return 1
        text += f"{policy} rows {hashlib.sha256(bare(data)).hexdigest()} identity {print_of[0].decode()}\n"
    out.write_text(text)
    print(text, end="")
    if not old.exists():
        print(f"no {old} to hold it against")
        return 0
    bad = 0
    for new, was in zip(text.splitlines(), old.read_text().splitlines()):
        word = "as on the other machine" if new == was else \
            "the same rows under another identity" if new.split()[2] == was.split()[2] else \
            "OTHER rows under one identity" if new.split()[4] == was.split()[4] else \
            "other rows under another identity"
        bad += word.startswith("OTHER")
        print(f"{new.split()[0]}: {word}")
    return bad


def table(out):
    bad = 0
    for p in sorted(out.glob("verify_*.json")):
        t = json.loads(p.read_text())
        for c in t["columns"]:
            cells = {r["recipe"]: r["verdict"] for r in c["recipes"]}
            print(f"{c['policy']}: {c['requests']} requests, {c['tokens']} tokens, identity {c['identity']}")
            print("   " + "  ".join(f"{k} {v}" for k, v in cells.items()))
            bad += not all(v in ("kept", "n/a") for v in cells.values())
    return bad


def widths(folder):
    with open(folder / "in.jsonl", "w") as f:
        for i in range(128):
            f.write(line(f"r{i}", tokens(300 + i, 200 + 37 * i % 900), 48, 2000 + i))


def differ(folder):
    count = {}
    for policy in ("dynamic", "free"):
        rows = []
        for n in (128, 8):
            data = (folder / f"{policy}_{n}.jsonl").read_bytes()
            rows.append(bare(data).splitlines())
        if len(rows[0]) != 128 or len(rows[1]) != 128:
            print(f"{policy}: {len(rows[0])} and {len(rows[1])} rows")
            return 1
        count[policy] = sum(a != b for a, b in zip(*rows))
        print(f"{policy}: {count[policy]} of 128 rows differ between steps of up to 128 rows and of 8")
    return (count["dynamic"] == 0) + (count["free"] != 0)


def main():
    a = sys.argv[1:]
    path = [pathlib.Path(x) for x in a]
    if a[:1] == ["long"]:
        return long(int(a[1]), path[2])
    if a[:1] == ["same"]:
        return same(path[1])
    if a[:1] == ["machines"]:
        return machines(path[1])
    if a[:1] == ["digest"]:
        return digest(*path[1:])
    if a[:1] == ["widths"]:
        return widths(path[1])
    if a[:1] == ["differ"]:
        return differ(path[1])
    if a[:1] == ["table"]:
        return table(path[1])
    print(__doc__)
    return 2


sys.exit(main())
