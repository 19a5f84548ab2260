#!/usr/bin/env python3
"""Makes tests/data/golden/smollm2.{bin,json}: SmolLM2-135M-Instruct in the reference framework, on
the very weights that the engine reads (the demo GGUF, dequantised by the gguf package, rounded once
to bf16, q and k rows put back into the framework's order).

Reference: float64 (norms, angles and softmax in fp32, where the framework forces it). Beside it the
error of the framework's own bf16 run on the same positions.

Run: pip install torch transformers gguf tokenizers numpy; tools/fetch demo;
tools/golden_smollm2.py [--text | --gpu] [GGUF]. --text prints greedy answers instead (for reading);
--gpu prints the errors of the framework's own bf16 runs on a GPU, same prompts and positions, as JSON
beside those of smollm2.json, and writes nothing.

smollm2.bin, little endian: 8 bytes "CRNGOLD2"; i32 n_prompt, n_vocab, n_full, n_top, n_exact, 0;
then for each prompt: i32 n_token; i32 token[n_token]; i32 pos[n_full]; for each of these positions
the full logits: f32 base, f32 step, i32 id[n_exact], f32 value[n_exact] (the largest, exact),
u8 code[n_vocab / 2][3] (12 bits each, low one first: base + step * code); then for each token:
f32 log-probability of the token that follows (0 for the last), i32 id[n_top], f32 logprob[n_top]
(likeliest first).
"""

import copy
import json
import struct
import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from gguf import GGUFReader, dequantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

ROOT = Path(__file__).resolve().parent.parent
GGUF = ROOT / ".cache" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
OUT = ROOT / "tests" / "data" / "golden"
N_FULL, N_TOP, N_EXACT = 4, 20, 64


def chat(*turns):
    text = ""
    if turns[0][0] != "system":
        turns = (("system", "You are a helpful AI assistant named SmolLM, trained by Hugging Face"),
                 *turns)
    for role, content in turns:
        text += f"<|im_start|>{role}\n{content}<|im_end|>\n"
    return text + "<|im_start|>assistant\n"


LONG = (
    "A lighthouse keeper writes down the weather every three hours. On the first of March the wind "
    "came from the north-west, force five, and the sea was rough; two fishing boats waited behind "
    "the breakwater until noon. On the second the wind turned to the south and the rain began. The "
    "keeper checked the lamp, cleaned the lens with a soft cloth and vinegar, wound the clockwork "
    "that turns it, and wrote: lamp lit at 18:04, visibility four miles. The third day was quiet. A "
    "boat from the village brought bread, a sack of potatoes, a tin of coffee, newspapers of the "
    "week before, and a letter from his sister, who asked whether he would come home for the "
    "summer. He answered that the lamp does not know seasons. On the fourth of March the barometer "
    "fell from 1012 to 987 hectopascals within ten hours, the fastest fall in his book. He closed "
    "the shutters, tied down the water barrels, carried the hens into the shed and filled the "
    "second oil can. The storm arrived at two in the morning. Waves reached the gallery, and one "
    "pane of the lantern room cracked from corner to corner, but the lamp kept burning. He stayed "
    "awake beside it for thirty-one hours and slept on the stairs when the wind dropped. When he "
    "looked out again, the breakwater had lost its outer end, and a buoy that belonged eleven miles "
    "to the west lay on the rocks below the tower like a toy. He wrote all of it down, with the "
    "hours, in the same small hand as always, and drew the buoy in the margin. The fifth, sixth and "
    "seventh of March hold one line each: repairs, repairs, repairs. On the eighth an inspector "
    "came, counted the panes, read the book, and asked why the entry for the storm had no mistakes "
    "in it. The keeper said that he had been careful. The inspector said that nobody is careful for "
    "thirty-one hours. They drank the rest of the coffee and looked at the sea, which lay there as "
    "if it had never done anything at all. In April the swallows returned to the shed. The keeper "
    "painted the door green, because green was the paint that he had. He measured the crack in the "
    "old pane, which had been replaced but which he had kept, and found that it was exactly as long "
    "as his arm. He wrote that down as well. In May a school class climbed the 164 steps, and a boy "
    "asked what the light is for if ships have satellites now. The keeper thought about it for a "
    "while. He said that a satellite tells you where you are, and a light tells you that somebody "
    "else is there too. The teacher wrote the sentence on her hand. In June there was fog for nine "
    "days, and the horn sounded every forty seconds until he no longer heard it, and woke up when it "
    "stopped. In July nothing happened, and he wrote that down with particular care. In August his "
    "sister came to visit him after all, with her two children, who slept in the lantern room and "
    "were not afraid of the wind. Question: what did the keeper draw in the margin? Answer:"
)

# None begins with <|endoftext|>: behind it the framework's own bf16 run is far off (KL 0.18 at the
# first position), so that a bound on the mean would measure that prompt alone.
PROMPTS = [
    "Hello! How are you today?",
    "The capital of France is Paris. The capital of Germany is Berlin. The capital of Italy is",
    chat(("user", "What is gravity? Answer in two sentences.")),
    chat(("system", "You answer with one word."), ("user", "Name a colour."),
         ("assistant", "Blue."), ("user", "Another one, please.")),
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return fibonacci(n - 1) + fibonacci("
    "n - 2)\n\n\ndef test_fibonacci():\n    assert fibonacci(10) ==",
    "#include <stdio.h>\n\nint main(void)\n{\n\tfor (int i = 0; i < 10; i++) {\n\t\tprintf(\"%d\\n"
    "\", i * i);\n\t}\n\treturn 0;\n}\n",
    "SELECT name, COUNT(*) AS n FROM orders JOIN users ON users.id = orders.user_id WHERE total > "
    "100 GROUP BY name ORDER BY n DESC LIMIT 10;",
    '{"id": 17, "name": "Ada", "tags": ["math", "engine"], "born": "1815-12-10", "alive": false, '
    '"score": 9.75e-3}',
    "3.14159265358979323846264338327950288419716939937510 and 2 + 2 = 4, 12 * 12 = 144, 99 - 1 =",
    "1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610, 987,",
    "今天天气很好，我们去公园散步吧。北京是中国的首都，有很多人住在那里。",
    "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。",
    "Le chat est assis sur la fenêtre et regarde les oiseaux qui passent dans le jardin d'à côté.",
    "Übermäßige Größe ist für die Straßenbahn ein Ärgernis, sagte der Bürgermeister von Köln.",
    "🙂🙃 emoji test 👩‍👩‍👧‍👦 flags 🇩🇪🇫🇷 and   many    spaces\t\ttabs\n\n\nand new lines\r\n.",
    "x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x",
    "| year | rain mm | sun h |\n|------|---------|-------|\n| 2019 | 612 | 1801 |\n| 2020 | 588 | "
    "1932 |\n| 2021 | 701 | 1655 |\n| 2022 |",
    "Theorem. There are infinitely many primes. Proof. Suppose that p_1, ..., p_n are all primes, "
    "and let N = p_1 p_2 ... p_n + 1. Then N has a prime divisor, which",
    "To be, or not to be, that is the question: Whether 'tis nobler in the mind to "
    "suffer The slings and arrows of outrageous fortune, Or to take arms against a sea of troubles",
    LONG,
]


def load_tokenizer(reader):
    get = lambda key: reader.fields[key].contents()
    tokens, merges = get("tokenizer.ggml.tokens"), get("tokenizer.ggml.merges")
    tok = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)},
                               [tuple(m.split(" ")) for m in merges]))
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True),
         pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False)
                            for t, k in zip(tokens, get("tokenizer.ggml.token_type")) if k == 3])
    tok.decoder = decoders.ByteLevel()
    first = tok.encode("Hello, 世界! 12345 é \t\n\n  def f(x): return x**2 🙂").ids
    assert first[:6] == [19556, 28, 216, 7906, 240, 178] and first[-1] == 47526, first
    return tok


NAMES = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
         "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
         "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
         "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}


def load_weights(reader, heads):
    out = {}
    for t in reader.tensors:
        x = dequantize(t.data, t.tensor_type)
        x = torch.from_numpy(np.array(x)).reshape([int(n) for n in t.shape[::-1]])
        if t.name.startswith("blk."):
            _, layer, leaf, _ = t.name.split(".")
            if leaf in heads:
                n, width = heads[leaf], x.shape[0] // heads[leaf]
                x = x.reshape(n, width // 2, 2, -1).transpose(1, 2).reshape(x.shape)
            name = f"model.layers.{layer}.{NAMES[leaf]}.weight"
        else:
            name = {"token_embd.weight": "model.embed_tokens.weight",
                    "output_norm.weight": "model.norm.weight"}[t.name]
        out[name] = x.to(torch.bfloat16)
    return out


def make_model(config, weights, dtype, attn):
    model = transformers.AutoModelForCausalLM.from_config(
        copy.deepcopy(config), attn_implementation=attn, dtype=dtype)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    assert model.model.rotary_emb.inv_freq.dtype == torch.float32
    return model.eval()


def run(model, ids):
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids], device=model.device)).logits[0].double().cpu().numpy()


def log_softmax(x):
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def full_positions(n):
    if n > 600:
        return [127, 511, 512, n - 1]
    return [n // 4, n // 2, n - 2, n - 1]


def pack_row(x):
    order = np.argsort(-x, kind="stable")
    exact = order[:N_EXACT]
    rest = x[order[N_EXACT:]]
    base = np.float32(rest.min())
    step = np.float32((rest.max() - float(base)) / 4095)
    code = np.clip(np.rint((x - float(base)) / float(step)), 0, 4095).astype(np.uint16)
    lo, hi = code[0::2], code[1::2]
    packed = np.stack([lo & 255, (lo >> 8) | ((hi & 15) << 4), hi >> 4], axis=1).astype(np.uint8)
    return (struct.pack("<2f", base, step) + exact.astype("<i4").tobytes()
            + x[exact].astype("<f4").tobytes() + packed.tobytes())


def coarse_kl(ref, got):
    """Mean over positions of the KL divergence between the distributions over n_top ids and the
    rest as one: [n][n_top] log-probabilities each."""
    p, q = np.exp(ref), np.exp(got)
    rest_p = np.maximum(1 - p.sum(-1), 1e-9)
    rest_q = np.maximum(1 - q.sum(-1), 1e-9)
    return (p * (ref - got)).sum(-1) + rest_p * np.log(rest_p / rest_q)


class Errors:
    def __init__(self):
        self.sq = self.n = self.max = 0
        self.kl = []

    def add(self, err):
        self.sq += float((err**2).sum())
        self.n += err.size
        self.max = max(self.max, float(np.abs(err).max()))

    def add_kl(self, ref, got):
        lp, lq = log_softmax(ref), log_softmax(got)
        self.kl.append(float((np.exp(lp) * (lp - lq)).sum()))

    def figures(self):
        f = {"rms": (self.sq / self.n) ** 0.5, "max": self.max}
        if self.kl:
            f.update(kl_mean=float(np.mean(self.kl)), kl_max=float(np.max(self.kl)))
        return f


def main():
    torch.set_num_threads(2)
    transformers.logging.set_verbosity_error()
    args = [a for a in sys.argv[1:] if not a.startswith("--")]
    reader = GGUFReader(args[0] if args else GGUF)
    tok = load_tokenizer(reader)
    get = lambda key: reader.fields["llama." + key].contents()
    heads, kv = get("attention.head_count"), get("attention.head_count_kv")
    config = transformers.LlamaConfig(
        hidden_size=get("embedding_length"), num_hidden_layers=get("block_count"),
        num_attention_heads=heads, num_key_value_heads=kv,
        intermediate_size=get("feed_forward_length"), vocab_size=get("vocab_size"),
        rms_norm_eps=get("attention.layer_norm_rms_epsilon"),
        max_position_embeddings=get("context_length"), tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": get("rope.freq_base")},
        bos_token_id=1, eos_token_id=2, pad_token_id=2)
    weights = load_weights(reader, {"attn_q": heads, "attn_k": kv})
    if "--text" in sys.argv:
        model = make_model(config, weights, torch.float32, "eager")
        for q in ("What is gravity? Answer in two sentences.",
                  "Write a short poem about the sea.", "How do I sort a list in Python?"):
            ids = tok.encode(chat(("user", q))).ids
            out = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=80)
            print(f"--- {q}\n{tok.decode(out[0, len(ids):].tolist())}")
        return

    gpu = "--gpu" in sys.argv
    wide = make_model(config, weights, torch.float64, "eager")
    runs = {"fp32": make_model(config, weights, torch.float32, "eager"),
            "bf16": make_model(config, weights, torch.bfloat16, "sdpa"),
            "bf16_eager": make_model(config, weights, torch.bfloat16, "eager")}
    if gpu:
        wide = wide.cuda()
        runs = {k: m.cuda() for k, m in runs.items()}
    full = {k: Errors() for k in runs}
    token = {k: Errors() for k in runs}
    rows, body, lengths = [], b"", []
    for i, prompt in enumerate(PROMPTS):
        ids = tok.encode(prompt).ids
        n = len(ids)
        lengths.append(n)
        ref = run(wide, ids)
        lp = log_softmax(ref)
        pos = full_positions(n)
        assert len(set(pos)) == N_FULL
        body += struct.pack("<i", n) + np.array(ids + pos, "<i4").tobytes()
        body += b"".join(pack_row(ref[p]) for p in pos)
        top = np.argsort(-lp, axis=-1, kind="stable")[:, :N_TOP]
        for t in range(n):
            body += struct.pack("<f", lp[t, ids[t + 1]] if t + 1 < n else 0.0)
            body += top[t].astype("<i4").tobytes() + lp[t, top[t]].astype("<f4").tobytes()
        rows += [ref[p] for p in pos]
        for k, m in runs.items():
            got = run(m, ids)
            glp = log_softmax(got)
            for p in pos:
                full[k].add(got[p] - ref[p])
                full[k].add_kl(ref[p], got[p])
            token[k].add(np.take_along_axis(glp - lp, top, axis=-1))
            token[k].kl += coarse_kl(np.take_along_axis(lp, top, axis=-1),
                                     np.take_along_axis(glp, top, axis=-1)).tolist()
            nxt = np.array(ids[1:], int)
            if n > 1:
                token[k].add((glp - lp)[np.arange(n - 1), nxt])
        if not gpu:
            print(f"{i:2d} {n:4d} tokens", flush=True)
    framework = {k: {"full": full[k].figures(), "logprob": token[k].figures()} for k in runs}
    if gpu:
        cpu = json.loads((OUT / "smollm2.json").read_text())["framework"]
        print(json.dumps({"device": torch.cuda.get_device_name(), "torch": torch.__version__,
                          "transformers": transformers.__version__, "gpu": framework, "cpu": cpu}, indent=2))
        return
    std = float(np.concatenate(rows).std())
    with open(OUT / "smollm2.bin", "wb") as f:
        f.write(b"CRNGOLD2" + struct.pack("<6i", len(PROMPTS), config.vocab_size, N_FULL, N_TOP,
                                          N_EXACT, 0) + body)
    (OUT / "smollm2.json").write_text(json.dumps({
        "made_by": "tools/golden_smollm2.py", "torch": torch.__version__,
        "transformers": transformers.__version__, "tokens": sum(lengths), "std": std,
        "framework": framework,
    }, indent=2) + "\n")
    print((OUT / "smollm2.json").read_text(), (OUT / "smollm2.bin").stat().st_size)


if __name__ == "__main__":
    main()
