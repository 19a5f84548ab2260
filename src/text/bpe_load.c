/* bpe_load.c - tokenizer.json and tokenizer_config.json to a tokenizer. Invariant: a setting that
 * would change an id and that we do not implement is an error that names its key; nothing is taken
 * from the class name. */
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "text/bpe_int.h"

#define MAX_FILE  (1u << 28)
#define MAX_DEPTH 4 /* of Sequences in Sequences */

/* ---- small helpers -------------------------------------------------------------------------- */

/* Refuses members of an object that are not in the list: "a b c". */
static corun_status only_keys(const bpe *t, const json_t *o, const char *place, const char *allowed)
{
    const char *key;
    json_t *v;
    json_object_foreach ((json_t *)o, key, v) {
        size_t n = strlen(key);
        const char *p = allowed;
        bool ok = false;
        while (!ok && n && (p = strstr(p, key))) {
            ok = (p == allowed || p[-1] == ' ') && (p[n] == 0 || p[n] == ' ');
            p += n;
        }
        if (!ok)
            FAIL(CORUN_EUNSUPPORTED, "%s: %s: key \"%.60s\" is not known", t->what, place, key);
    }
    return CORUN_OK;
}

static corun_status get_bool(const bpe *t, const json_t *o, const char *key, bool missing,
                             bool *out)
{
    const json_t *v = json_object_get(o, key);
    *out = v && !json_is_null(v) ? json_is_true(v) : missing;
    if (v && !json_is_boolean(v) && !json_is_null(v))
        FAIL(CORUN_EFORMAT, "%s: %s is not true or false", t->what, key);
    return CORUN_OK;
}

static bool is_type(const json_t *o, const char *type)
{
    const char *s = json_string_value(json_object_get(o, "type"));
    return s && !strcmp(s, type);
}

static corun_status unsupported_type(const bpe *t, const json_t *o, const char *place)
{
    const char *s = json_string_value(json_object_get(o, "type"));
    FAIL(CORUN_EUNSUPPORTED, "%s: %s of type \"%.60s\" is not supported", t->what, place,
         s ? s : "?");
}

/* ---- normalizer, pre-tokenizer -------------------------------------------------------------- */

static corun_status load_normalizer(bpe *t, const json_t *o, int depth)
{
    const char *place = "normalizer";
    if (!o || json_is_null(o)) return CORUN_OK;
    if (is_type(o, "NFC")) {
        TRY(only_keys(t, o, place, "type"));
        t->nfc = true;
        return CORUN_OK;
    }
    if (!is_type(o, "Sequence") || depth == MAX_DEPTH) return unsupported_type(t, o, place);
    TRY(only_keys(t, o, place, "type normalizers"));
    const json_t *list = json_object_get(o, "normalizers");
    if (!json_is_array(list)) FAIL(CORUN_EFORMAT, "%s: normalizers is not an array", t->what);
    for (size_t i = 0; i < json_array_size(list); i++)
        TRY(load_normalizer(t, json_array_get(list, i), depth + 1));
    return CORUN_OK;
}

static corun_status load_split(bpe *t, const json_t *o, const char *place)
{
    static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"};
    TRY(only_keys(t, o, place, "type pattern behavior invert"));
    const json_t *p = json_object_get(o, "pattern");
    const json_t *re = json_object_get(p, "Regex"), *text = json_object_get(p, "String");
    const char *b = json_string_value(json_object_get(o, "behavior"));
    bool invert;
    TRY(get_bool(t, o, "invert", false, &invert));
    if (json_object_size(p) != 1 || !json_is_string(re ? re : text))
        FAIL(CORUN_EFORMAT, "%s: %s: pattern is not {\"Regex\": ...} or {\"String\": ...}", t->what,
             place);
    int k = 0;
    while (k < 5 && (!b || strcmp(b, names[k]) != 0)) k++;
    if (k == 5)
        FAIL(CORUN_EUNSUPPORTED, "%s: %s: behavior \"%.60s\" is not supported", t->what, place,
             b ? b : "?");
    const json_t *s = re ? re : text;
    char where[512];
    snprintf(where, sizeof where, "%.400s: %s", t->what, place);
    return bpe_add_step(t, json_string_value(s), json_string_length(s), !re, (pattern_behavior)k,
                        invert, where);
}

static corun_status load_pre_tokenizer(bpe *t, const json_t *o, int depth, bool *byte_level)
{
    const char *place = "pre_tokenizer";
    if (*byte_level) FAIL(CORUN_EUNSUPPORTED, "%s: a pre-tokenizer step behind ByteLevel", t->what);
    if (is_type(o, "Sequence") && depth < MAX_DEPTH) {
        TRY(only_keys(t, o, place, "type pretokenizers"));
        const json_t *list = json_object_get(o, "pretokenizers");
        if (!json_is_array(list)) FAIL(CORUN_EFORMAT, "%s: pretokenizers is not an array", t->what);
        for (size_t i = 0; i < json_array_size(list); i++)
            TRY(load_pre_tokenizer(t, json_array_get(list, i), depth + 1, byte_level));
        return CORUN_OK;
    }
    if (is_type(o, "Split")) return load_split(t, o, place);
    if (is_type(o, "Digits")) {
        bool one;
        TRY(only_keys(t, o, place, "type individual_digits"));
        TRY(get_bool(t, o, "individual_digits", false, &one));
        const char *re = one ? BPE_DIGIT_SET : BPE_DIGIT_SET "+";
        return bpe_add_step(t, re, strlen(re), false, PATTERN_ISOLATED, false, t->what);
    }
    if (is_type(o, "ByteLevel")) {
        bool space, regex;
        TRY(only_keys(t, o, place, "type add_prefix_space trim_offsets use_regex"));
        TRY(get_bool(t, o, "add_prefix_space", true, &space));
        TRY(get_bool(t, o, "use_regex", true, &regex));
        if (space)
            FAIL(CORUN_EUNSUPPORTED, "%s: %s: add_prefix_space is not supported", t->what, place);
        *byte_level = true;
        if (!regex) return CORUN_OK;
        return bpe_add_step(t, BPE_RE_GPT2, strlen(BPE_RE_GPT2), false, PATTERN_ISOLATED, false,
                            t->what);
    }
    return unsupported_type(t, o, place);
}

/* ---- post-processor, decoder ---------------------------------------------------------------- */

static corun_status load_template(bpe *t, const json_t *o)
{
    const json_t *single = json_object_get(o, "single");
    const json_t *special = json_object_get(o, "special_tokens");
    int32_t around[2][16];
    size_t n[2] = {0, 0};
    bool behind = false;
    TRY(only_keys(t, o, "post_processor", "type single pair special_tokens"));
    if (!json_is_array(single))
        FAIL(CORUN_EUNSUPPORTED, "%s: post_processor: single is not an array", t->what);
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *item = json_array_get(single, i);
        const json_t *seq = json_object_get(item, "Sequence");
        const char *id = json_string_value(json_object_get(seq, "id"));
        if (seq) {
            if (behind || !id || strcmp(id, "A") != 0)
                FAIL(CORUN_EUNSUPPORTED, "%s: post_processor: single is not one sequence A",
                     t->what);
            behind = true;
            continue;
        }
        id = json_string_value(json_object_get(json_object_get(item, "SpecialToken"), "id"));
        const json_t *ids = id ? json_object_get(json_object_get(special, id), "ids") : NULL;
        if (!json_is_array(ids))
            FAIL(CORUN_EFORMAT, "%s: post_processor: special token \"%.60s\" is not described",
                 t->what, id ? id : "?");
        for (size_t k = 0; k < json_array_size(ids); k++) {
            int64_t v;
            if (!json_is_whole(json_array_get(ids, k), &v) || v < 0 || v >= (int64_t)t->n_tok ||
                !t->tok[v].flags || n[behind] == 16)
                FAIL(CORUN_EFORMAT, "%s: post_processor: ids of \"%.60s\"", t->what, id);
            around[behind][n[behind]++] = (int32_t)v;
        }
    }
    if (!behind) FAIL(CORUN_EFORMAT, "%s: post_processor: single has no sequence A", t->what);
    TRY(bpe_add_around(t, false, around[0], n[0]));
    return bpe_add_around(t, true, around[1], n[1]);
}

static corun_status load_post_processor(bpe *t, const json_t *o, int depth)
{
    const char *place = "post_processor";
    if (!o || json_is_null(o) || is_type(o, "ByteLevel")) return CORUN_OK; /* offsets only */
    if (is_type(o, "TemplateProcessing")) return load_template(t, o);
    if (!is_type(o, "Sequence") || depth == MAX_DEPTH) return unsupported_type(t, o, place);
    TRY(only_keys(t, o, place, "type processors"));
    const json_t *list = json_object_get(o, "processors");
    if (!json_is_array(list)) FAIL(CORUN_EFORMAT, "%s: processors is not an array", t->what);
    for (size_t i = 0; i < json_array_size(list); i++)
        TRY(load_post_processor(t, json_array_get(list, i), depth + 1));
    return CORUN_OK;
}

static corun_status check_decoder(const bpe *t, const json_t *o)
{
    if (is_type(o, "Sequence")) {
        const json_t *list = json_object_get(o, "decoders");
        if (json_array_size(list) == 1) o = json_array_get(list, 0);
    }
    return is_type(o, "ByteLevel") ? CORUN_OK : unsupported_type(t, o, "decoder");
}

/* ---- model and added tokens ----------------------------------------------------------------- */

static corun_status load_model(bpe *t, const json_t *m, const char *text, bpe_span vocab,
                               bpe_span merges)
{
    static const char *const absent[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    bool flag;
    TRY(only_keys(t, m, "model",
                  "type dropout unk_token continuing_subword_prefix end_of_word_suffix fuse_unk "
                  "byte_fallback ignore_merges vocab merges"));
    if (json_object_get(m, "type") && !is_type(m, "BPE")) return unsupported_type(t, m, "model");
    const json_t *drop = json_object_get(m, "dropout");
    if (drop && !json_is_null(drop) && json_number_value(drop) != 0.0)
        FAIL(CORUN_EUNSUPPORTED, "%s: model.dropout is not supported", t->what);
    for (int i = 0; i < 2; i++) {
        const json_t *v = json_object_get(m, absent[i]);
        if (v && !json_is_null(v) && (!json_is_string(v) || json_string_length(v)))
            FAIL(CORUN_EUNSUPPORTED, "%s: model.%s is not supported", t->what, absent[i]);
    }
    TRY(get_bool(t, m, "byte_fallback", false, &flag));
    if (flag) FAIL(CORUN_EUNSUPPORTED, "%s: model.byte_fallback is not supported", t->what);
    TRY(get_bool(t, m, "fuse_unk", false, &t->fuse_unk));
    TRY(get_bool(t, m, "ignore_merges", false, &t->ignore_merges));
    if (!vocab.end) FAIL(CORUN_EFORMAT, "%s: model.vocab is not an object", t->what);
    if (!merges.end) FAIL(CORUN_EFORMAT, "%s: model.merges is not an array", t->what);
    TRY(bpe_scan_vocab(t, text, vocab));
    TRY(bpe_scan_merges(t, text, merges));
    const json_t *unk = json_object_get(m, "unk_token");
    if (unk && !json_is_null(unk)) {
        if (json_is_string(unk))
            t->unk = bpe_vocab_id(t, json_string_value(unk), json_string_length(unk));
        if (t->unk < 0)
            FAIL(CORUN_EFORMAT, "%s: model.unk_token is not in the vocabulary", t->what);
    }
    return CORUN_OK;
}

static corun_status load_added(bpe *t, const json_t *o, int64_t id)
{
    bpe_added a = {.id = (int32_t)id};
    const json_t *s = json_object_get(o, "content");
    TRY(only_keys(t, o, "added token",
                  "id content single_word lstrip rstrip normalized special __type"));
    if (!json_is_string(s) || id < 0 || id >= BPE_MAX_ID)
        FAIL(CORUN_EFORMAT, "%s: an added token without content, or with id %lld", t->what,
             (long long)id);
    TRY(get_bool(t, o, "special", false, &a.special));
    TRY(get_bool(t, o, "single_word", false, &a.single_word));
    TRY(get_bool(t, o, "lstrip", false, &a.lstrip));
    TRY(get_bool(t, o, "rstrip", false, &a.rstrip));
    TRY(get_bool(t, o, "normalized", !a.special, &a.normalized));
    return bpe_add_added(t, json_string_value(s), json_string_length(s), &a, false);
}

static corun_status load_added_list(bpe *t, const json_t *list)
{
    if (!list || json_is_null(list)) return CORUN_OK;
    if (!json_is_array(list)) FAIL(CORUN_EFORMAT, "%s: added_tokens is not an array", t->what);
    for (size_t i = 0; i < json_array_size(list); i++) {
        int64_t id;
        const json_t *o = json_array_get(list, i);
        if (!json_is_whole(json_object_get(o, "id"), &id))
            FAIL(CORUN_EFORMAT, "%s: added_tokens, entry %zu: no id", t->what, i);
        TRY(load_added(t, o, id));
    }
    return CORUN_OK;
}

/* ---- tokenizer_config.json ------------------------------------------------------------------ */

/* Tokens that only this file has are added; flags of the others are those of this file. */
static corun_status load_added_decoder(bpe *t, const json_t *o, const char *what)
{
    const char *key;
    json_t *v;
    if (!o || json_is_null(o)) return CORUN_OK;
    if (!json_is_object(o)) FAIL(CORUN_EFORMAT, "%s: added_tokens_decoder is not an object", what);
    json_object_foreach ((json_t *)o, key, v) {
        int64_t id = 0;
        for (const char *p = key; *p; p++) {
            if (*p < '0' || *p > '9' || id >= BPE_MAX_ID)
                FAIL(CORUN_EFORMAT, "%s: added_tokens_decoder: key \"%.60s\"", what, key);
            id = id * 10 + (*p - '0');
        }
        TRY(load_added(t, v, id));
    }
    return CORUN_OK;
}

/* add_bos_token and its like hold true or false; a token itself never does. */
static bool is_switch(const char *key, const json_t *v)
{
    static const char *const tokens[] = {"bos_token", "eos_token", "pad_token", "unk_token",
                                         "sep_token", "cls_token", "mask_token"};
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++)
        if (strcmp(key, tokens[i]) == 0) return false;
    return json_is_boolean(v) || strncmp(key, "add_", 4) == 0; /* load_switches checks its own */
}

static corun_status load_names(bpe *t, const json_t *c, const char *what)
{
    const char *key;
    json_t *v;
    json_object_foreach ((json_t *)c, key, v) {
        size_t n = strlen(key);
        if (n < 7 || strcmp(key + n - 6, "_token") != 0) continue;
        const json_t *s = json_is_object(v) ? json_object_get(v, "content") : v;
        if (json_is_null(s) || is_switch(key, s)) continue;
        if (!json_is_string(s))
            FAIL(CORUN_EFORMAT, "%s: %.60s is no string, object with content or null", what, key);
        const char *text = json_string_value(s);
        size_t len = json_string_length(s);
        if (memchr(text, 0, len)) FAIL(CORUN_EFORMAT, "%s: %.60s holds NUL", what, key);
        TRY(bpe_add_name(t, key, text, len));
        int32_t id = bpe_find(t, text, len);
        if (!strcmp(key, "bos_token")) t->bos = id;
        if (!strcmp(key, "eos_token")) t->eos = id;
    }
    return CORUN_OK;
}

/* The switches add_bos_token and add_eos_token, where one is there, replace what the
 * post-processor adds. */
static corun_status load_switches(bpe *t, const json_t *c, const char *what)
{
    static const char *const keys[] = {"add_bos_token", "add_eos_token"};
    const json_t *v[2];
    for (int i = 0; i < 2; i++) {
        v[i] = json_object_get(c, keys[i]);
        if (json_is_null(v[i])) v[i] = NULL;
        if (v[i] && !json_is_boolean(v[i]))
            FAIL(CORUN_EFORMAT, "%s: %s is not true or false", what, keys[i]);
    }
    if (!v[0] && !v[1]) return CORUN_OK;
    t->n_prefix = t->n_suffix = 0;
    for (int i = 0; i < 2; i++) {
        int32_t id = i ? t->eos : t->bos;
        if (!json_is_true(v[i])) continue;
        if (id < 0) FAIL(CORUN_EFORMAT, "%s: %s without such a token", what, keys[i]);
        TRY(bpe_add_around(t, i == 1, &id, 1));
    }
    return CORUN_OK;
}

static corun_status load_config(bpe *t, const char *text, size_t len)
{
    json_t *c;
    char what[512];
    snprintf(what, sizeof what, "%.400s (tokenizer_config.json)", t->what);
    TRY(json_read(&c, text, len, what));
    corun_status st = CORUN_OK;
    if (!json_is_object(c)) st = err_set(CORUN_EFORMAT, "%s: not an object", what);
    if (st == CORUN_OK)
        st = load_added_decoder(t, json_object_get(c, "added_tokens_decoder"), what);
    if (st == CORUN_OK) st = load_names(t, c, what);
    if (st == CORUN_OK) st = load_switches(t, c, what);
    json_decref(c);
    return st;
}

/* ---- the whole ------------------------------------------------------------------------------ */

static corun_status load_document(bpe *t, const json_t *doc, const char *text, bpe_span vocab,
                                  bpe_span merges)
{
    bool byte_level = false;
    if (!json_is_object(doc)) FAIL(CORUN_EFORMAT, "%s: not an object", t->what);
    /* truncation and padding are left to whoever calls, as the reference framework does. */
    TRY(only_keys(t, doc, "top level",
                  "version truncation padding added_tokens normalizer pre_tokenizer "
                  "post_processor decoder model"));
    const json_t *model = json_object_get(doc, "model");
    if (!json_is_object(model)) FAIL(CORUN_EFORMAT, "%s: model is not an object", t->what);
    TRY(load_normalizer(t, json_object_get(doc, "normalizer"), 0));
    TRY(load_pre_tokenizer(t, json_object_get(doc, "pre_tokenizer"), 0, &byte_level));
    if (!byte_level)
        FAIL(CORUN_EUNSUPPORTED, "%s: pre_tokenizer without ByteLevel is not supported", t->what);
    TRY(check_decoder(t, json_object_get(doc, "decoder")));
    TRY(load_model(t, model, text, vocab, merges));
    TRY(load_added_list(t, json_object_get(doc, "added_tokens")));
    return load_post_processor(t, json_object_get(doc, "post_processor"), 0);
}

corun_status bpe_parse(bpe **out, const char *json, size_t len, const char *tokenizer_config,
                       size_t config_len, const char *what)
{
    bpe *t = NULL;
    json_t *doc = NULL;
    bpe_span vocab, merges;
    buf rest;
    buf_init(&rest, MAX_FILE + 16u);
    *out = NULL;
    corun_status st;
    TRY_OR_DONE(bpe_new(&t, what));
    TRY_OR_DONE(bpe_scan_cut(json, len, &vocab, &merges, &rest));
    TRY_OR_DONE(json_read(&doc, rest.data ? rest.data : "", rest.len, what));
    TRY_OR_DONE(load_document(t, doc, json, vocab, merges));
    if (tokenizer_config) TRY_OR_DONE(load_config(t, tokenizer_config, config_len));
    TRY_OR_DONE(bpe_finish(t));
    *out = t;
done:
    json_decref(doc);
    buf_free(&rest);
    if (st != CORUN_OK) bpe_close(t);
    return st;
}

corun_status bpe_open_folder(bpe **out, const char *folder)
{
    char path[2][4096];
    buf file[2];
    *out = NULL;
    for (int i = 0; i < 2; i++) {
        int n = snprintf(path[i], sizeof path[i], "%s/%s", folder,
                         i ? "tokenizer_config.json" : "tokenizer.json");
        if (n < 0 || (size_t)n >= sizeof path[i]) FAIL(CORUN_EINVAL, "%.60s...: path", folder);
        buf_init(&file[i], MAX_FILE);
    }
    corun_status st;
    bool have_config = file_exists(path[1]);
    TRY_OR_DONE(file_read(&file[0], path[0], MAX_FILE));
    if (have_config) TRY_OR_DONE(file_read(&file[1], path[1], MAX_FILE));
    TRY_OR_DONE(bpe_parse(out, file[0].data ? file[0].data : "", file[0].len,
                          have_config ? (file[1].data ? file[1].data : "") : NULL, file[1].len,
                          path[0]));
done:
    buf_free(&file[1]);
    buf_free(&file[0]);
    return st;
}
