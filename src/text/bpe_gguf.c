/* bpe_gguf.c - a tokenizer from GGUF metadata. Invariant: an unknown tokenizer.ggml.pre is an error
 * that names it: a guessed pre-tokenizer gives wrong ids that look fine. */
#include <string.h>

#include "text/bpe_int.h"

#define RE_CASE  "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define RE_TAIL  "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define RE_QWEN  RE_CASE "\\p{N}" RE_TAIL
#define RE_LLAMA RE_CASE "\\p{N}{1,3}" RE_TAIL
#define RE_DEEPSEEK                                                                                \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|"                                       \
    "[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|"                      \
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
/* Letters with case as deepseek-llm's file lists them. */
#define RE_DEEPSEEK_LETTERS                                                                        \
    "\\s?[A-Za-z\\u00B5\\u00C0-\\u00D6\\u00D8-\\u00F6\\u00F8-\\u01BA\\u01BC-\\u01BF"               \
    "\\u01C4-\\u0293\\u0295-\\u02AF\\u0370-\\u0373\\u0376\\u0377\\u037B-\\u037D\\u037F\\u0386"     \
    "\\u0388-\\u038A\\u038C\\u038E-\\u03A1\\u03A3-\\u03F5\\u03F7-\\u0481\\u048A-\\u052F"           \
    "\\u0531-\\u0556\\u10A0-\\u10C5\\u13A0-\\u13F5\\u13F8-\\u13FD\\u1C90-\\u1CBA"                  \
    "\\u1CBD-\\u1CBF\\u1D00-\\u1D2B\\u1D6B-\\u1D77\\u1D79-\\u1D9A\\u1E00-\\u1F15"                  \
    "\\u1F18-\\u1F1D\\u1F20-\\u1F45\\u1F48-\\u1F4D\\u1F50-\\u1F57\\u1F59\\u1F5B\\u1F5D"            \
    "\\u1F5F-\\u1F7D\\u1F80-\\u1FB4\\u1FB6-\\u1FBC\\u1FBE\\u1FC2-\\u1FC4\\u1FC6-\\u1FCC"           \
    "\\u1FD0-\\u1FD3\\u1FD6-\\u1FDB\\u1FE0-\\u1FEC\\u1FF2-\\u1FF4\\u1FF6-\\u1FFC\\u2102"           \
    "\\u2107\\u210A-\\u2113\\u2115\\u2119-\\u211D\\u2124\\u2126\\u2128\\u212A-\\u212D"             \
    "\\u212F-\\u2134\\u2139\\u213C-\\u213F\\u2145-\\u2149\\u214E\\u2183\\u2184\\u2C00-\\u2C7B"     \
    "\\u2C7E-\\u2CE4\\u2CEB-\\u2CEE\\u2CF2\\u2CF3\\uA640-\\uA66D\\uA680-\\uA69B"                   \
    "\\uA722-\\uA76F\\uA771-\\uA787\\uA78B-\\uA78E\\uAB70-\\uABBF\\uFB00-\\uFB06"                  \
    "\\uFB13-\\uFB17\\uFF21-\\uFF3A\\uFF41-\\uFF5A\\x{10400}-\\x{1044F}\\x{104B0}-\\x{104D3}"      \
    "\\x{104D8}-\\x{104FB}\\x{10C80}-\\x{10CB2}\\x{10CC0}-\\x{10CF2}\\x{118A0}-\\x{118DF}"         \
    "\\x{1E900}-\\x{1E943}]+"
#define RE_DEEPSEEK_MARKS                                                                          \
    "\\s?[!-/:-~\\uFF01-\\uFF0F\\uFF1A-\\uFF5E\\u2018-\\u201F\\u3000-\\u3002]+"
#define RE_CJK_HANGUL "[\\u4E00-\\u9FA5\\u0800-\\u4E00\\uAC00-\\uD7FF]+"
#define RE_CJK_KANA   "[\\u4E00-\\u9FA5\\u3040-\\u309F\\u30A0-\\u30FF]+"

typedef struct pre_rule {
    const char *name;
    const char *step[6]; /* all Isolated */
    bool nfc, ignore_merges, bos;
} pre_rule;

static const pre_rule pre_rules[] = {
    {"gpt-2", {BPE_RE_GPT2}},
    {"smollm", {BPE_DIGIT_SET, BPE_RE_GPT2}},
    {"llama-bpe", {RE_LLAMA}, .ignore_merges = true, .bos = true},
    {"qwen2", {RE_QWEN}, .nfc = true},
    {"deepseek-r1-qwen", {RE_QWEN}, .nfc = true},
    {"hunyuan", {RE_QWEN}},
    {"deepseek-v3", {"\\p{N}{1,3}", RE_CJK_KANA, RE_DEEPSEEK}},
    {"hunyuan-dense", {"\\p{N}{1,3}", RE_CJK_KANA, RE_DEEPSEEK}},
    {"deepseek-llm",
     {"[\r\n]", RE_DEEPSEEK_LETTERS, RE_DEEPSEEK_MARKS, "\\s+$", RE_CJK_HANGUL, BPE_DIGIT_SET}},
    {"deepseek-coder", {"[\r\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", RE_CJK_HANGUL, BPE_DIGIT_SET}},
};

/* Looks at the items of a GGUF array of strings, one after the other. */
typedef struct items {
    const char *p, *end;
} items;

static bool next_item(items *it, const char **s, size_t *len)
{
    uint64_t n = 0;
    if (it->end - it->p < 8) return false;
    for (int i = 0; i < 8; i++) n |= (uint64_t)(unsigned char)it->p[i] << (8 * i);
    it->p += 8;
    if (n > (uint64_t)(it->end - it->p)) return false;
    *s = it->p;
    *len = (size_t)n;
    it->p += n;
    return true;
}

static corun_status need_array(const bpe *t, const weights *w, const char *key, gguf_type item,
                               const gguf_value **out)
{
    *out = weights_meta(w, key);
    if (!*out || (*out)->type != GGUF_ARRAY || (*out)->item != item)
        FAIL(CORUN_EFORMAT, "%s: %s is missing, or not an array of the right type", t->what, key);
    return CORUN_OK;
}

static corun_status load_tokens(bpe *t, const weights *w)
{
    const gguf_value *tokens, *types = weights_meta(w, "tokenizer.ggml.token_type");
    size_t wrong;
    TRY(need_array(t, w, "tokenizer.ggml.tokens", GGUF_STRING, &tokens));
    if (types &&
        (types->type != GGUF_ARRAY || types->item != GGUF_I32 || types->count != tokens->count))
        FAIL(CORUN_EFORMAT, "%s: tokenizer.ggml.token_type does not fit the tokens", t->what);
    if (tokens->count > BPE_MAX_ID)
        FAIL(CORUN_EFORMAT, "%s: %llu tokens", t->what, (unsigned long long)tokens->count);
    for (int pass = 0; pass < 2; pass++) { /* the vocabulary first, then what is added to it */
        items it = {tokens->data, tokens->data + tokens->bytes};
        for (int32_t id = 0; id < (int32_t)tokens->count; id++) {
            const char *s;
            size_t len;
            int32_t type = 1;
            if (types) memcpy(&type, types->data + (size_t)id * 4, 4);
            if (!next_item(&it, &s, &len) || !utf8_valid(s, len, &wrong))
                FAIL(CORUN_EFORMAT, "%s: token %d is not UTF-8", t->what, id);
            if (type < 1 || type > 5)
                FAIL(CORUN_EUNSUPPORTED, "%s: token %d has type %d", t->what, id, type);
            bool added = type >= 2 && type <= 4;
            if (pass == 0 && type == 1) TRY(bpe_add_vocab(t, s, len, id));
            if (pass == 1 && added)
                TRY(bpe_add_added(t, s, len, &(bpe_added){.id = id, .special = type != 4}, true));
        }
    }
    return CORUN_OK;
}

static corun_status load_merges(bpe *t, const weights *w)
{
    const gguf_value *merges;
    TRY(need_array(t, w, "tokenizer.ggml.merges", GGUF_STRING, &merges));
    TRY(bpe_merges_begin(t, (size_t)merges->count));
    items it = {merges->data, merges->data + merges->bytes};
    buf both;
    buf_init(&both, SIZE_MAX / 2);
    corun_status st = CORUN_OK;
    for (uint64_t i = 0; i < merges->count; i++) {
        const char *s;
        size_t len, wrong;
        bool ok = next_item(&it, &s, &len) && utf8_valid(s, len, &wrong);
        const char *space = ok && len ? memchr(s + 1, ' ', len - 1) : NULL;
        if (!space || space + 1 == s + len || memchr(space + 1, ' ', (size_t)(s + len - space - 1)))
            FAIL_OR_DONE(CORUN_EFORMAT, "%s: tokenizer.ggml.merges, entry %llu: \"%.*s\"", t->what,
                         (unsigned long long)i, ok ? (int)(len < 60 ? len : 60) : 0, ok ? s : "");
        buf_reset(&both);
        buf_put(&both, s, (size_t)(space - s));
        buf_put(&both, space + 1, (size_t)(s + len - space - 1));
        TRY_OR_DONE(buf_status(&both));
        TRY_OR_DONE(bpe_add_merge(t, both.data, (size_t)(space - s), both.len));
    }
done:
    buf_free(&both);
    return st;
}

static corun_status load_special(bpe *t, const weights *w, const pre_rule *rule)
{
    static const struct {
        const char *key, *name;
    } keys[] = {
        {"tokenizer.ggml.bos_token_id", "bos_token"},
        {"tokenizer.ggml.eos_token_id", "eos_token"},
        {"tokenizer.ggml.unknown_token_id", "unk_token"},
        {"tokenizer.ggml.padding_token_id", "pad_token"},
        {"tokenizer.ggml.seperator_token_id", "sep_token"},
    };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        int64_t v;
        if (!weights_meta(w, keys[i].key)) continue;
        if (!weights_meta_int(w, keys[i].key, &v) || v < 0 || v >= (int64_t)t->n_tok ||
            !t->tok[v].flags)
            FAIL(CORUN_EFORMAT, "%s: %s is no token", t->what, keys[i].key);
        const bpe_tok *k = &t->tok[v];
        TRY(bpe_add_name(t, keys[i].name, t->arena.data + k->off, k->len));
        if (i == 0) t->bos = (int32_t)v;
        if (i == 1) t->eos = (int32_t)v;
    }
    bool add[2] = {rule->bos, false};
    static const char *const switches[] = {"tokenizer.ggml.add_bos_token",
                                           "tokenizer.ggml.add_eos_token"};
    for (int i = 0; i < 2; i++) {
        if (weights_meta(w, switches[i]) && !weights_meta_bool(w, switches[i], &add[i]))
            FAIL(CORUN_EFORMAT, "%s: %s is not true or false", t->what, switches[i]);
        int32_t id = i ? t->eos : t->bos;
        if (!add[i]) continue;
        if (id < 0) FAIL(CORUN_EFORMAT, "%s: %s without such a token", t->what, switches[i]);
        TRY(bpe_add_around(t, i == 1, &id, 1));
    }
    return CORUN_OK;
}

static corun_status load_all(bpe *t, const weights *w)
{
    const char *s;
    size_t len;
    if (!weights_is_gguf(w)) FAIL(CORUN_EINVAL, "%s: not a GGUF file", t->what);
    if (!weights_meta_str(w, "tokenizer.ggml.model", &s, &len))
        FAIL(CORUN_EFORMAT, "%s: no tokenizer.ggml.model", t->what);
    if (len != 4 || memcmp(s, "gpt2", 4) != 0)
        FAIL(CORUN_EUNSUPPORTED, "%s: tokenizer.ggml.model \"%.*s\": only gpt2 (byte-level BPE)",
             t->what, (int)(len < 60 ? len : 60), s);
    if (!weights_meta_str(w, "tokenizer.ggml.pre", &s, &len))
        FAIL(CORUN_EFORMAT, "%s: no tokenizer.ggml.pre: the pre-tokenizer is not known", t->what);
    const pre_rule *rule = NULL;
    for (size_t i = 0; i < sizeof pre_rules / sizeof *pre_rules; i++)
        if (len == strlen(pre_rules[i].name) && !memcmp(s, pre_rules[i].name, len))
            rule = &pre_rules[i];
    if (!rule)
        FAIL(CORUN_EUNSUPPORTED, "%s: tokenizer.ggml.pre \"%.*s\" is not known", t->what,
             (int)(len < 60 ? len : 60), s);
    for (int i = 0; i < 6 && rule->step[i]; i++)
        TRY(bpe_add_step(t, rule->step[i], strlen(rule->step[i]), false, PATTERN_ISOLATED, false,
                         t->what));
    t->nfc = rule->nfc;
    t->ignore_merges = rule->ignore_merges;
    TRY(load_tokens(t, w));
    TRY(load_merges(t, w));
    TRY(load_special(t, w, rule));
    return bpe_finish(t);
}

corun_status bpe_open_gguf(bpe **out, const weights *w)
{
    bpe *t;
    *out = NULL;
    TRY(bpe_new(&t, "GGUF tokenizer"));
    corun_status st = load_all(t, w);
    if (st == CORUN_OK)
        *out = t;
    else
        bpe_close(t);
    return st;
}
