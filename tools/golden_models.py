#!/usr/bin/env python3
"""Makes the tiny random models under tests/data/golden with the reference framework's own classes.

Owns: tests/data/golden/NAME/{config.json, generation_config.json, model.safetensors,
tokenizer.json, tokenizer_config.json, golden.bin, golden.json}.
Invariant: the framework reads the very files that the engine reads (the config is loaded back from
the folder, the weights are those of the file), and the reference logits are computed from the bf16
weights widened exactly, in float64 (norms, angles and softmax in fp32, where the framework forces
it).

Weights come from a counter RNG with a fixed seed. They are scaled so that every part matters:
logits of std 3 or more, attention neither flat nor one-hot, hidden states small enough for eps to
show, gains and biases away from 1 and 0.

Run: pip install torch transformers safetensors tokenizers numpy; tools/golden_models.py [NAME ...]

golden.bin, little endian: 8 bytes "CRNGOLD1"; i32 n_token, n_vocab, n_pos, 0; i32 token[n_token];
i32 pos[n_pos]; f32 logits[n_pos][n_vocab].
"""

import json
import math
import struct
import sys
from pathlib import Path

import numpy as np
import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

OUT = Path(__file__).resolve().parent.parent / "tests" / "data" / "golden"
N_TOKEN = 640
LOGIT_STD = 3.6

R_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
R_QWEN = R_LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

# One row a model. "style": how config.json spells the rope fields: "old" (rope_theta and
# rope_scaling), "type" (older still: the key "type") or "new" (rope_parameters).
MODELS = {
    # H no multiple of 32, nq * d != H, 3 heads a group, odd vocabulary
    "llama_plain": dict(
        family="llama", hidden_size=72, layers=2, heads=6, kv=2, head_dim=64, ff=136, vocab=331,
        eps=1e-5, theta=1e5, tied=False, style="old",
    ),
    # llama3 scaling where all three bands occur, biases everywhere, 5 heads a group, tied although
    # the file holds another lm_head
    "llama3_tied_bias": dict(
        family="llama", hidden_size=80, layers=2, heads=5, kv=1, head_dim=64, ff=120, vocab=317,
        eps=1e-5, theta=5e5, tied=True, style="old", attention_bias=True, mlp_bias=True,
        decoy_head=True,
        rope=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                  original_max_position_embeddings=256),
    ),
    # no head_dim key, one head a group, linear scaling in the oldest spelling, three layers
    "llama_linear": dict(
        family="llama", hidden_size=96, layers=3, heads=3, kv=3, head_dim=None, ff=104, vocab=304,
        eps=1e-6, theta=1e4, tied=False, style="type", rope=dict(rope_type="linear", factor=4.0),
    ),
    # yarn with the factor on cos and sin given and no truncation, new spelling, 7 heads a group
    "llama_yarn_new": dict(
        family="llama", hidden_size=56, layers=2, heads=7, kv=1, head_dim=64, ff=112, vocab=320,
        eps=1e-5, theta=1e4, tied=True, style="new",
        rope=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=160,
                  beta_fast=16.0, beta_slow=2.0, attention_factor=0.9, truncate=False),
    ),
    # 7 heads a group as Qwen2.5-0.5B, tied
    "qwen2_tied": dict(
        family="qwen2", hidden_size=224, layers=2, heads=7, kv=1, head_dim=None, ff=88, vocab=303,
        eps=1e-6, theta=1e6, tied=True, style="old",
    ),
    "qwen2_untied": dict(
        family="qwen2", hidden_size=96, layers=2, heads=3, kv=1, head_dim=128, ff=136, vocab=310,
        eps=1e-6, theta=1e6, tied=False, style="old",
    ),
    # nq * d = 8 H
    "qwen3_tied": dict(
        family="qwen3", hidden_size=64, layers=2, heads=4, kv=2, head_dim=128, ff=144, vocab=336,
        eps=1e-6, theta=1e6, tied=True, style="old",
    ),
    # the long-context advice of Qwen, 5 heads a group, new spelling
    "qwen3_yarn": dict(
        family="qwen3", hidden_size=88, layers=2, heads=10, kv=2, head_dim=64, ff=120, vocab=325,
        eps=1e-6, theta=1e6, tied=False, style="new", logit_std=3.15,
        rope=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=128),
    ),
    # biases on q, k, v and o beside the q and k norms; yarn with both mscale fields
    "qwen3_bias_mscale": dict(
        family="qwen3", hidden_size=72, layers=2, heads=6, kv=2, head_dim=64, ff=96, vocab=305,
        eps=1e-6, theta=1e5, tied=False, style="new", attention_bias=True,
        rope=dict(rope_type="yarn", factor=8.0, original_max_position_embeddings=96, mscale=1.0,
                  mscale_all_dim=0.5),
    ),
}

ARCH = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|start|>' + m['role'] + '\n' + m['content'] + '<|end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant\n' }}{% endif %}"
)
SPECIAL = ["<|text|>", "<|start|>", "<|end|>"]
CORPUS = [
    "The quick brown fox jumps over the lazy dog and then it sleeps for the rest of the day.",
    "In the year 1984 there were 12 monkeys, 7 samurai and 101 dalmatians in the theatre.",
    "for (int i = 0; i < n; i++) { sum += x[i] * y[i]; } return sum;",
] * 4


def config_json(m):
    c = {
        "architectures": [ARCH[m["family"]]],
        "model_type": m["family"],
        "hidden_size": m["hidden_size"],
        "num_hidden_layers": m["layers"],
        "num_attention_heads": m["heads"],
        "num_key_value_heads": m["kv"],
        "intermediate_size": m["ff"],
        "vocab_size": m["vocab"],
        "rms_norm_eps": m["eps"],
        "max_position_embeddings": 2048,
        "hidden_act": "silu",
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "tie_word_embeddings": m["tied"],
        "bos_token_id": 0,
        "eos_token_id": 2,
        "use_cache": True,
    }
    if m["head_dim"]:
        c["head_dim"] = m["head_dim"]
    if m["family"] == "llama" or m.get("attention_bias"):
        c["attention_bias"] = m.get("attention_bias", False)
    if m["family"] == "llama":
        c["mlp_bias"] = m.get("mlp_bias", False)
    if m["family"] in ("qwen2", "qwen3"):
        c.update(use_sliding_window=False, sliding_window=None, max_window_layers=m["layers"])
    rope = m.get("rope")
    if m["style"] == "new":
        c["rope_parameters"] = {"rope_theta": m["theta"], **(rope or {"rope_type": "default"})}
        c["dtype"] = "bfloat16"
    else:
        c["rope_theta"] = m["theta"]
        c["rope_scaling"] = dict(rope) if rope else None
        if rope and m["style"] == "type":
            c["rope_scaling"]["type"] = c["rope_scaling"].pop("rope_type")
        c["torch_dtype"] = "bfloat16"
    return c


def make_weights(model, m, rng):
    """New values for every parameter, scaled by what it feeds."""
    H, ff = m["hidden_size"], m["ff"]
    d = m["head_dim"] or H // m["heads"]
    nq_d = m["heads"] * d
    small = math.sqrt(m["eps"] / 1e-5)  # hidden states so small that eps shows
    embed = 0.04 * small
    final = m.get("logit_std", LOGIT_STD) / (embed if m["tied"] else 1.0) / math.sqrt(H)
    qk = 0.03 * small if m["family"] == "qwen3" else 1.2
    branch = 0.06 * small  # what a block adds to the residual stream
    std = {
        "q_proj": qk / math.sqrt(H),
        "k_proj": qk / math.sqrt(H),
        "v_proj": 1 / math.sqrt(H),
        "o_proj": branch / 0.35 / math.sqrt(nq_d),
        "gate_proj": 1.5 / math.sqrt(H),
        "up_proj": 1 / math.sqrt(H),
        "down_proj": branch / 0.9 / math.sqrt(ff),
        "embed_tokens": embed,
        "lm_head": 1.0,
    }
    bias = {"q_proj": 0.3 * qk, "k_proj": 0.3 * qk, "v_proj": 0.3, "o_proj": branch / 3,
            "gate_proj": 0.3, "up_proj": 0.3, "down_proj": branch / 3}
    out = {}
    for name, p in sorted(model.named_parameters()):
        leaf, kind = name.split(".")[-2:]
        z = torch.from_numpy(rng.standard_normal(tuple(p.shape)))
        if leaf == "norm":
            v = final * (1 + 0.2 * z)
        elif leaf in ("q_norm", "k_norm"):
            v = 1.2 * (1 + 0.25 * z)
        elif leaf.endswith("layernorm"):
            v = 1 + 0.25 * z
        elif kind == "bias":
            v = bias[leaf] * z
        else:
            v = std[leaf] * z
        out[name] = v.to(torch.bfloat16).contiguous()
    if m.get("decoy_head"):
        z = torch.from_numpy(rng.standard_normal((m["vocab"], H)))
        out["lm_head.weight"] = (embed * z).to(torch.bfloat16)
    return out


def make_tokenizer(m, name, folder):
    tok = Tokenizer(models.BPE())
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if m["family"] != "llama":
        tok.normalizer = normalizers.NFC()
        tok.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(R_QWEN), "isolated"), level])
    elif name.startswith("llama3"):
        tok.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(R_LLAMA3), "isolated"), level])
    else:
        tok.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True),
             pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=SPECIAL, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tok.train_from_iterator(CORPUS, trainer)
    tok.save(str(folder / "tokenizer.json"), pretty=False)
    write_json(folder / "tokenizer_config.json", {
        "bos_token": SPECIAL[0], "eos_token": SPECIAL[2], "pad_token": SPECIAL[2],
        "add_bos_token": False, "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE, "tokenizer_class": "PreTrainedTokenizerFast"})


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2) + "\n")


def run(folder, weights, dtype, attn, ids):
    config = transformers.AutoConfig.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation=attn, dtype=dtype)  # inv_freq stays fp32
    assert type(model).__name__ == config.architectures[0]
    keep = {k: v for k, v in weights.items()
            if not (config.tie_word_embeddings and k.startswith("lm_head"))}
    missing, unexpected = model.load_state_dict(keep, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    model = model.eval()
    assert model.model.rotary_emb.inv_freq.dtype == torch.float32
    with torch.no_grad():
        return model(input_ids=ids).logits[0].double().numpy()


def log_softmax(x):
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def figures(ref, got):
    """Error figures of one run against the reference: [n][V] logits each."""
    err = got - ref
    lp, lq = log_softmax(ref), log_softmax(got)
    kl = (np.exp(lp) * (lp - lq)).sum(axis=-1)
    return {"rms": float(np.sqrt((err**2).mean())), "max": float(np.abs(err).max()),
            "kl_mean": float(kl.mean()), "kl_max": float(kl.max()),
            "top1": int((ref.argmax(-1) == got.argmax(-1)).sum())}


def positions():
    edge = {0, 1, 2, 15, 16, 17, 63, 64, 126, 127, 128, 129, 255, 256, 327, 328, 329, 383, 384, 510,
            511, 512, 513, 514, 599, 600, 601, 638, 639}
    return sorted(edge | set(range(5, N_TOKEN, 11)))


def make(name, seed):
    m = MODELS[name]
    folder = OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config_json(m))
    write_json(folder / "generation_config.json", {
        "bos_token_id": 0, "eos_token_id": [2, 0], "pad_token_id": 2, "do_sample": True,
        "temperature": 0.7, "top_p": 0.9, "top_k": 40})
    make_tokenizer(m, name, folder)
    rng = np.random.Generator(np.random.Philox(key=seed))
    config = transformers.AutoConfig.from_pretrained(folder)
    blank = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    save_file(make_weights(blank, m, rng), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    weights = load_file(folder / "model.safetensors")

    ids = torch.from_numpy(rng.integers(0, m["vocab"], (1, N_TOKEN)))
    full = run(folder, weights, torch.float64, "eager", ids)
    pos = positions()
    ref = full[pos]
    stored = ref.astype("<f4")
    std = float(ref.std())
    assert std >= 3, (name, std)
    runs = {
        "fp32": figures(ref, run(folder, weights, torch.float32, "eager", ids)[pos]),
        "bf16": figures(ref, run(folder, weights, torch.bfloat16, "sdpa", ids)[pos]),
        "bf16_eager": figures(ref, run(folder, weights, torch.bfloat16, "eager", ids)[pos]),
    }
    with open(folder / "golden.bin", "wb") as f:
        f.write(b"CRNGOLD1" + struct.pack("<4i", N_TOKEN, m["vocab"], len(pos), 0))
        f.write(ids[0].numpy().astype("<i4").tobytes() + np.array(pos, "<i4").tobytes())
        f.write(stored.tobytes())
    write_json(folder / "golden.json", {
        "made_by": "tools/golden_models.py", "seed": seed, "torch": torch.__version__,
        "transformers": transformers.__version__, "tokenizers": tokenizers.__version__,
        "std": std, "framework": runs})
    size = sum(p.stat().st_size for p in folder.iterdir())
    print(f"{name:18s} std {std:5.2f}  fp32 rms/std {runs['fp32']['rms'] / std:.1e}"
          f"  bf16 rms {runs['bf16']['rms']:.4f} max {runs['bf16']['max']:.3f}"
          f" kl {runs['bf16']['kl_mean']:.1e}  eager rms {runs['bf16_eager']['rms']:.4f}"
          f" max {runs['bf16_eager']['max']:.3f} kl {runs['bf16_eager']['kl_mean']:.1e}"
          f"  {size / 1024:.0f} KiB")


def main():
    torch.set_num_threads(2)
    transformers.logging.set_verbosity_error()
    names = sys.argv[1:] or list(MODELS)
    for name in names:
        make(name, seed=0xC0 + list(MODELS).index(name))


if __name__ == "__main__":
    main()
