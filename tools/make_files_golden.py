#!/usr/bin/env python3
"""Make the golden files of tests/data/files with the `gguf` and `safetensors` packages.

usage: tools/make_files_golden.py        (needs: pip install gguf==0.19.0 safetensors numpy)

  TYPE.raw, TYPE.f32        random blocks of a format, and their values by gguf's numpy reference
  tiny.gguf                 a small llama file of every readable type, written by gguf's writer
  tiny-0000N-of-00003.gguf  the same tensors as a split set
  tiny/model.safetensors    the values of all of its tensors as F32, written by safetensors

The files are committed; the tests need no Python.
"""
import pathlib
import sys

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T
from safetensors.numpy import save_file

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data" / "files"
BLOCKS = {T.Q4_0: 24, T.Q4_1: 24, T.Q5_0: 24, T.Q5_1: 24, T.Q8_0: 24, T.Q4_K: 6, T.Q5_K: 6,
          T.Q6_K: 6, T.F16: 512, T.BF16: 512}
# Byte offsets of the half-precision factors in a block.
HALVES = {T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0], T.Q4_K: [0, 2],
          T.Q5_K: [0, 2], T.Q6_K: [208]}


def random_blocks(rng, kind, n):
    """n blocks of random bytes whose factors are finite: small, large, subnormal, zero, negative."""
    size = gguf.GGML_QUANT_SIZES[kind][1]
    raw = rng.integers(0, 256, (n, size), dtype=np.uint8)
    halves = np.array([0.0, -0.0, 6e-8, -3e-5, 65504.0, -1.0], dtype=np.float16)
    for at in HALVES.get(kind, []):
        d = rng.normal(0, 0.05, n).astype(np.float16)
        d[:len(halves)] = rng.permutation(halves)[:n]
        raw[:, at:at + 2] = d.view(np.uint8).reshape(n, 2)
    if kind in (T.F16, T.BF16):  # no NaN: their payload is tested apart
        top = 0x7c if kind == T.F16 else 0x7f
        raw[(raw[:, 1] & 0x7f) >= top, 1] &= 0x3f
    return raw


def dequantize(raw, kind):
    if kind == T.F16:
        return raw.view(np.float16).astype(np.float32).reshape(-1)
    return gguf.quants.dequantize(raw.reshape(1, -1), kind).astype(np.float32).reshape(-1)


def tiny_tensors(rng):
    tensors = {"token_embd.weight": (T.F32, rng.normal(0, 1, (8, 256)).astype(np.float32))}
    for kind in BLOCKS:
        rows = 34 if kind == T.Q5_K else 2
        blocks = 256 // gguf.GGML_QUANT_SIZES[kind][0]
        raw = random_blocks(rng, kind, rows * blocks).reshape(rows, -1)
        tensors[f"blk.0.{kind.name}.weight"] = (kind, raw)
    tensors["output_norm.weight"] = (T.F32, rng.normal(1, 0.1, 256).astype(np.float32))
    return tensors


def write_gguf(path, tensors, **split):
    w = gguf.GGUFWriter(path, "llama", **split)
    w.add_context_length(128)
    w.add_embedding_length(256)
    w.add_block_count(1)
    w.add_feed_forward_length(512)
    w.add_head_count(4)
    w.add_head_count_kv(2)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_freq_base(10000.0)
    w.add_vocab_size(8)
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_tokenizer_model("gpt2")
    w.add_token_list([f"token {i}" for i in range(8)])
    w.add_token_types([1] * 8)
    for name, (kind, data) in tensors.items():
        w.add_tensor(name, data, raw_dtype=None if kind == T.F32 else kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main():
    rng = np.random.default_rng(20251129)
    (OUT / "tiny").mkdir(parents=True, exist_ok=True)
    for kind, n in BLOCKS.items():
        raw = random_blocks(rng, kind, n)
        (OUT / f"{kind.name}.raw").write_bytes(raw.tobytes())
        (OUT / f"{kind.name}.f32").write_bytes(dequantize(raw, kind).tobytes())
    tensors = tiny_tensors(rng)
    write_gguf(OUT / "tiny.gguf", tensors)
    write_gguf(OUT / "tiny.gguf", tensors, split_max_tensors=5)
    flat = {}
    for name, (kind, data) in tensors.items():
        rows = data.shape[0] if data.ndim == 2 else 1
        values = data if kind == T.F32 else dequantize(data, kind).reshape(rows, 256)
        flat[name] = np.ascontiguousarray(values)
    save_file(flat, OUT / "tiny" / "model.safetensors", metadata={"format": "pt"})
    return 0


sys.exit(main())
