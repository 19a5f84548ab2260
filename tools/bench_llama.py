#!/usr/bin/env python3
"""Times llama.cpp on a BF16 file of the demo model, as a rival of `corun bench`.

usage: tools/bench_llama.py build [--jobs N]
       tools/bench_llama.py run [--rounds N] [--threads N] [--other COMMAND]

build   llama.cpp from the pinned sdist (tools/fetch llama.cpp demo) into .cache/llama.cpp, native,
        Release; and .cache/models/SmolLM2-135M-Instruct.BF16.gguf: the demo model dequantised and
        rounded once to bf16, as the engine reads it. Needs cmake, a C++ compiler and the Python
        packages gguf and numpy.
run     every setting (KV cache f16 or bf16, flash attention off or on) at 1, 4, 16 and 32 rows of
        context 256 (240 tokens of prompt, 32 decoded) and a prefill of 512. Rounds go over all
        settings, so that slow moments of the machine hit all alike; with --other the given command
        runs once before each setting, in the same round. Prints one JSON line a figure (to stdout)
        and a table of the best setting of each (best of the rounds, to stderr).
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"
SOURCE, BUILD = CACHE / "llama.cpp" / "source", CACHE / "llama.cpp" / "build"
SDIST = CACHE / "archives" / "llama_cpp_python-0.3.36.tar.gz"
QUANTISED = CACHE / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL = CACHE / "models" / "SmolLM2-135M-Instruct.BF16.gguf"
BENCH = BUILD / "bin" / "llama-batched-bench"
ROWS = [1, 4, 16, 32]
PROMPT, DECODED, PREFILL = 240, 32, 512  # half of the decoded tokens lie beyond 256
SETTINGS = [(kv, fa) for kv in ("f16", "bf16") for fa in ("off", "on")]


def unpack():
    if SOURCE.exists():
        return
    part = SOURCE.with_name("source.part")
    mark = "/vendor/llama.cpp/"
    with tarfile.open(SDIST) as tar:
        for m in tar:
            if mark in m.name and m.isfile():
                m.name = m.name.split(mark, 1)[1]
                tar.extract(m, part, filter="data")
    part.rename(SOURCE)


def convert():
    """Matrices to BF16, vectors stay F32, metadata copied."""
    import gguf
    import numpy as np

    if MODEL.exists():
        return
    reader = gguf.GGUFReader(QUANTISED)
    part = MODEL.with_suffix(".part")
    writer = gguf.GGUFWriter(part, reader.fields["general.architecture"].contents())
    skip = {"general.architecture", "general.file_type", "general.quantization_version"}
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key in skip:
            continue
        sub = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(key, field.contents(), field.types[0], sub_type=sub)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    for t in reader.tensors:
        x = gguf.dequantize(t.data, t.tensor_type).astype(np.float32)
        kind = gguf.GGMLQuantizationType.F32 if x.ndim == 1 else gguf.GGMLQuantizationType.BF16
        data = x if x.ndim == 1 else gguf.quantize(x, kind)
        writer.add_tensor(t.name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.rename(MODEL)


def build(jobs):
    subprocess.run([ROOT / "tools" / "fetch", "--cache", CACHE, "llama.cpp", "demo"], check=True)
    convert()
    unpack()
    off = [f"-DLLAMA_{x}=OFF" for x in (
        "BUILD_TESTS", "BUILD_EXAMPLES", "BUILD_SERVER", "BUILD_APP", "BUILD_UI",
        "USE_PREBUILT_UI", "OPENSSL")]
    subprocess.run(["cmake", "-S", SOURCE, "-B", BUILD, "-DCMAKE_BUILD_TYPE=Release",
                    "-DGGML_NATIVE=ON", "-DBUILD_SHARED_LIBS=OFF", *off], check=True)
    subprocess.run(["cmake", "--build", BUILD, "--target", "llama-batched-bench",
                    "-j", str(jobs)], check=True)


def bench(threads, kv, fa, prompt, decoded, rows):
    n_ctx = max(rows) * (prompt + decoded)
    out = subprocess.run(
        [BENCH, "-m", MODEL, "-c", str(n_ctx), "-b", "2048", "-ub", "512", "-npp", str(prompt),
         "-ntg", str(decoded), "-npl", ",".join(map(str, rows)), "-t", str(threads), "-ctk", kv,
         "-ctv", kv, "-fa", fa, "--output-format", "jsonl"],
        check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def run(rounds, threads, other):
    best = {}

    def report(what, kv, fa, rate):
        print(json.dumps({"what": what, "kv": kv, "flash_attention": fa,
                          "tokens_per_s": round(rate, 1)}), flush=True)
        if rate > best.get(what, (0,))[0]:
            best[what] = (rate, kv, fa)

    for _ in range(rounds):
        for kv, fa in SETTINGS:
            if other:
                subprocess.run(shlex.split(other), check=True)
            for r in bench(threads, kv, fa, PROMPT, DECODED, ROWS):
                report(f"decode {r['pl']}", kv, fa, r["speed_tg"])
            for r in bench(threads, kv, fa, PREFILL, 1, [1]):
                report(f"prefill {PREFILL}", kv, fa, r["speed_pp"])
    for what, (rate, kv, fa) in best.items():
        print(f"{what:12s} {rate:8.1f} tokens/s  (KV {kv}, flash attention {fa})", file=sys.stderr)


def main():
    ap = argparse.ArgumentParser(usage=__doc__.split("usage: ", 1)[1].split("\n\n")[0])
    ap.add_argument("command", choices=["build", "run"])
    ap.add_argument("--jobs", type=int, default=os.cpu_count())
    ap.add_argument("--rounds", type=int, default=2)
    ap.add_argument("--threads", type=int, default=os.cpu_count())
    ap.add_argument("--other")
    a = ap.parse_args()
    if a.command == "build":
        build(a.jobs)
    elif not (BENCH.exists() and MODEL.exists()):
        sys.exit("tools/bench_llama.py build comes first")
    else:
        run(a.rounds, a.threads, a.other)


if __name__ == "__main__":
    main()
