/* test_bpe.c - the tokenizer on small files of its own: loading and its errors, added tokens,
 * merges against a plain search, streaming decode, memory that runs out, threads. */
#include "bpe_util.h"

#include <pthread.h>

#include "files_make.h"
#include "text/unicode.h"

/* ---- a small tokenizer.json -------------------------------------------------------------------
 */

/* How the byte alphabet spells a byte. */
static void spell(unsigned b, char out[5])
{
    unsigned c = b;
    bool plain = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    if (!plain) {
        c = 0x100;
        for (unsigned k = 0; k < b; k++)
            if (!((k >= 33 && k <= 126) || (k >= 161 && k <= 172) || k >= 174)) c++;
    }
    int n = 0;
    if (c < 0x80) {
        out[n++] = (char)c;
    } else {
        out[n++] = (char)(0xC0 | c >> 6);
        out[n++] = (char)(0x80 | (c & 0x3F));
    }
    out[n] = 0;
}

/* 256 bytes, then "ab" 256, "abc" 257, "bc" 258, " a" 259; specials from 300 on. */
static json_t *small_doc(void)
{
    json_t *vocab = json_object();
    for (unsigned b = 0; b < 256; b++) {
        char s[5];
        spell(b, s);
        json_object_set_new(vocab, s, json_integer(b));
    }
    json_object_set_new(vocab, "ab", json_integer(256));
    json_object_set_new(vocab, "abc", json_integer(257));
    json_object_set_new(vocab, "bc", json_integer(258));
    json_object_set_new(vocab, "\u0120a", json_integer(259));
    json_t *doc = json_pack(
        "{s:s, s:n, s:n, s:[{s:i,s:s,s:b,s:b,s:b,s:b,s:b}], s:n, s:{s:s,s:b,s:b,s:b}, s:n, "
        "s:{s:s}, s:{s:s,s:n,s:n,s:n,s:n,s:b,s:b,s:b,s:o,s:[s,s,[s,s],s]}}",
        "version", "1.0", "truncation", "padding", "added_tokens", "id", 300, "content", "<s>",
        "single_word", 0, "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 1, "normalizer",
        "pre_tokenizer", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 1, "use_regex",
        1, "post_processor", "decoder", "type", "ByteLevel", "model", "type", "BPE", "dropout",
        "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0,
        "byte_fallback", 0, "ignore_merges", 0, "vocab", vocab, "merges", "a b", "ab c", "b", "c",
        "\u0120 a");
    assert_non_null(doc);
    return doc;
}

static corun_status parse_doc(bpe **t, const json_t *doc, const char *conf)
{
    char *s = json_dumps(doc, JSON_INDENT(1));
    corun_status st = bpe_parse(t, s, strlen(s), conf, conf ? strlen(conf) : 0, "small.json");
    free(s);
    return st;
}

static bpe *small(const json_t *doc, const char *conf)
{
    bpe *t = NULL;
    if (parse_doc(&t, doc, conf) != CORUN_OK) fail_msg("%s", err_text());
    return t;
}

static void test_small(void **state)
{
    (void)state;
    json_t *doc = small_doc();
    bpe *t = small(doc, NULL);
    check_ids(t, "", "");
    check_ids(t, "abc ab", "257 32 256");
    check_ids(t, "bcab a", "258 256 259");
    check_ids(t, "a<s>b", "97 300 98");
    check_ids_n(t, "<s>", 3, BPE_LITERAL, "60 115 62");
    check_ids_n(t, "a\0b", 3, 0, "97 0 98");
    check_ids(t, "\u00e9", "195 169");
    assert_int_equal(bpe_n_token(t), 301);
    assert_int_equal(bpe_find(t, "abc", 3), 257);
    assert_int_equal(bpe_find(t, "<s>", 3), 300);
    assert_int_equal(bpe_find(t, " a", 2), 259);
    assert_int_equal(bpe_find(t, "\u0120a", 3), -1);
    assert_int_equal(bpe_find(t, "", 0), -1);
    assert_int_equal(bpe_bos(t), -1);
    bpe_ids ids = {0};
    assert_int_equal(bpe_encode(t, "ok\xff", 3, 0, 9, &ids), CORUN_EFORMAT);
    assert_non_null(strstr(err_text(), "byte 2"));
    assert_int_equal(bpe_encode(t, "x", 1, 0, 9, &ids), CORUN_OK);
    assert_int_equal(bpe_encode(t, "xyz", 3, 0, 3, &ids), CORUN_ECAPACITY);
    assert_int_equal(ids.n, 1);
    assert_int_equal(bpe_encode(t, "yz", 2, 0, 3, &ids), CORUN_OK);
    assert_int_equal(ids.n, 3);
    bpe_ids_free(&ids);
    bpe_close(t);
    json_decref(doc);
}

/* ---- loading: what is refused -----------------------------------------------------------------
 */

/* Sets doc's member at path ("model.merges") to the JSON text v; "" removes it. */
static void set_path(json_t *doc, const char *path, const char *v)
{
    char key[128];
    snprintf(key, sizeof key, "%s", path);
    json_t *o = doc;
    char *at = key;
    for (char *dot; (dot = strchr(at, '.')); at = dot + 1) {
        *dot = 0;
        o = json_object_get(o, at);
        assert_non_null(o);
    }
    if (!*v) {
        json_object_del(o, at);
        return;
    }
    json_t *x = json_loads(v, JSON_DECODE_ANY, NULL);
    assert_non_null(x);
    assert_int_equal(json_object_set_new(o, at, x), 0);
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *path, *value;
        corun_status st;
        const char *text;
    } rows[] = {
        {"model.type", "\"WordPiece\"", CORUN_EUNSUPPORTED, "WordPiece"},
        {"model.dropout", "0.1", CORUN_EUNSUPPORTED, "model.dropout"},
        {"model.byte_fallback", "true", CORUN_EUNSUPPORTED, "model.byte_fallback"},
        {"model.continuing_subword_prefix", "\"##\"", CORUN_EUNSUPPORTED, "continuing_subword"},
        {"model.end_of_word_suffix", "\"</w>\"", CORUN_EUNSUPPORTED, "end_of_word_suffix"},
        {"model.unk_token", "\"<none>\"", CORUN_EFORMAT, "unk_token"},
        {"model.ignore_merges", "1", CORUN_EFORMAT, "ignore_merges"},
        {"model.surprise", "1", CORUN_EUNSUPPORTED, "\"surprise\""},
        {"model.vocab", "[]", CORUN_EFORMAT, "model.vocab"},
        {"model.vocab", "{}", CORUN_EFORMAT, "not in the vocabulary"},
        {"model.vocab", "{\"a\": -1}", CORUN_EFORMAT, "token id is expected"},
        {"model.vocab", "{\"a\": 1.5}", CORUN_EFORMAT, "token id is expected"},
        {"model.vocab", "{\"a\": 99999999}", CORUN_EFORMAT, "token id is expected"},
        {"model.vocab", "{\"a\": \"1\"}", CORUN_EFORMAT, "token id is expected"},
        {"model.vocab", "{\"a\": 1, \"b\": 1}", CORUN_EFORMAT, "id 1 is given twice"},
        {"model.merges", "{}", CORUN_EFORMAT, "model.merges"},
        {"model.merges", "[]", CORUN_EFORMAT, "no merges"},
        {"model.merges", "[\"ab\"]", CORUN_EFORMAT, "entry 0: \"ab\""},
        {"model.merges", "[\"a b\", \"a b c\"]", CORUN_EFORMAT, "entry 1: \"a b c\""},
        {"model.merges", "[\" b\"]", CORUN_EFORMAT, "entry 0"},
        {"model.merges", "[\"a \"]", CORUN_EFORMAT, "entry 0"},
        {"model.merges", "[[\"a\"]]", CORUN_EFORMAT, "pair of strings"},
        {"model.merges", "[[\"a\", \"b\", \"c\"]]", CORUN_EFORMAT, "pair of strings"},
        {"model.merges", "[7]", CORUN_EFORMAT, "a string is expected"},
        {"model.merges", "[\"a z\"]", CORUN_EFORMAT, "the result is not in the vocabulary"},
        {"model.merges", "[\"a zz\"]", CORUN_EFORMAT, "the right part is not in the vocabulary"},
        {"normalizer", "{\"type\": \"NFKC\"}", CORUN_EUNSUPPORTED, "NFKC"},
        {"normalizer", "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Lowercase\"}]}",
         CORUN_EUNSUPPORTED, "Lowercase"},
        {"pre_tokenizer", "null", CORUN_EUNSUPPORTED, "pre_tokenizer"},
        {"pre_tokenizer", "{\"type\": \"Metaspace\"}", CORUN_EUNSUPPORTED, "Metaspace"},
        {"pre_tokenizer.add_prefix_space", "true", CORUN_EUNSUPPORTED, "add_prefix_space"},
        {"pre_tokenizer", "{\"type\": \"Sequence\", \"pretokenizers\": []}", CORUN_EUNSUPPORTED,
         "ByteLevel"},
        {"pre_tokenizer",
         "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"a(\"}, \"behavior\": \"Isolated\"}",
         CORUN_EUNSUPPORTED, "( without )"},
        {"pre_tokenizer",
         "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"a\"}, \"behavior\": \"Odd\"}",
         CORUN_EUNSUPPORTED, "Odd"},
        {"pre_tokenizer", "{\"type\": \"Split\", \"pattern\": \"a\", \"behavior\": \"Isolated\"}",
         CORUN_EFORMAT, "pattern"},
        {"decoder", "{\"type\": \"Metaspace\"}", CORUN_EUNSUPPORTED, "decoder"},
        {"decoder", "null", CORUN_EUNSUPPORTED, "decoder"},
        {"post_processor", "{\"type\": \"BertProcessing\"}", CORUN_EUNSUPPORTED, "BertProcessing"},
        {"added_tokens", "[{\"content\": \"x\"}]", CORUN_EFORMAT, "no id"},
        {"added_tokens", "[{\"id\": 5, \"content\": \"x\"}]", CORUN_EFORMAT, "another text"},
        {"added_tokens", "[{\"id\": 400, \"content\": \"ab\"}]", CORUN_EFORMAT, "id 256"},
        {"added_tokens", "[{\"id\": 400, \"content\": \"\"}]", CORUN_EFORMAT, "400"},
        {"added_tokens", "[{\"id\": -1, \"content\": \"q\"}]", CORUN_EFORMAT, "-1"},
        {"added_tokens", "[{\"id\": 4194304, \"content\": \"q\"}]", CORUN_EFORMAT, "4194304"},
        {"added_tokens",
         "[{\"id\": 400, \"content\": \"<q>\"}, {\"id\": 401, \"content\": \"<q>\"}]",
         CORUN_EFORMAT, "the same text"},
        {"added_tokens",
         "[{\"id\": 400, \"content\": \"<q>\"}, {\"id\": 400, \"content\": \"<r>\"}]",
         CORUN_EFORMAT, "two texts"},
        {"added_tokens", "[{\"id\": 400, \"content\": \"<q>\", \"lstrip\": 1}]", CORUN_EFORMAT,
         "lstrip"},
        {"surprise", "1", CORUN_EUNSUPPORTED, "surprise"},
        {"model", "", CORUN_EFORMAT, "model"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_t *doc = small_doc();
        bpe *t = NULL;
        set_path(doc, rows[i].path, rows[i].value);
        corun_status st = parse_doc(&t, doc, NULL);
        if (st != rows[i].st || !strstr(err_text(), rows[i].text))
            fail_msg("%s = %s: status %d, \"%s\"", rows[i].path, rows[i].value, (int)st,
                     st ? err_text() : "");
        assert_null(t);
        json_decref(doc);
    }
}

/* Text that is no JSON in the parts that we read ourselves. */
static void test_broken_text(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to;
    } rows[] = {
        {"\"ab\": 256", "\"ab\" 256"},
        {"\"ab\": 256", "\"ab\": 256,"},
        {"\"ab\": 256", "\"ab\": 0256"},
        {"\"ab\": 256", "\"ab\": 2 56"},
        {"\"ab\": 256", "\"a\\x62\": 256"},
        {"\"ab\": 256", "\"a\tb\": 256"},
        {"\"ab\": 256", "\"\\ud83d\": 256"},
        {"\"ab\": 256", "\"\\ude00\": 256"},
        {"\"ab\": 256", "\"\xff\": 256"},
        {"\"ab\": 256", "\"bc\": 256"},
        {"\"ab\": 256", "\"\\u00\": 256"},
        {"\"a b\"", "\"a b"},
        {"\"a b\"", "\"a b\" \"a b\""},
        {"\"a b\"", "\"a b\",,"},
        {"\"model\":", "\"model\": {}, \"model\":"},
        {"\"merges\":", "\"merges\": [\"a b\"], \"merges\":"},
        {"\"version\":", "\"version\""},
    };
    json_t *doc = small_doc();
    char *s = json_dumps(doc, JSON_INDENT(1) | JSON_ENSURE_ASCII);
    json_decref(doc);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        buf b;
        buf_init(&b, 1 << 20);
        char *at = strstr(s, rows[i].from);
        assert_non_null(at);
        buf_put(&b, s, (size_t)(at - s));
        buf_puts(&b, rows[i].to);
        buf_puts(&b, at + strlen(rows[i].from));
        bpe *t = NULL;
        corun_status st = bpe_parse(&t, b.data, b.len, NULL, 0, "broken");
        if (st != CORUN_EFORMAT) fail_msg("%s: status %d", rows[i].to, (int)st);
        buf_free(&b);
    }
    /* Cut anywhere: an error, never a crash. */
    size_t len = strlen(s);
    for (size_t k = 0; k < len; k += k < 200 ? 1 : 37) {
        bpe *t = NULL;
        char *cut = mem_dup(s, k, "cut");
        assert_int_equal(bpe_parse(&t, cut, k, NULL, 0, "cut"), CORUN_EFORMAT);
        mem_free(cut);
    }
    free(s);
}

static void test_escapes_and_spaces(void **state)
{
    (void)state;
    /* Escaped keys, a token with a space inside, and a merge that makes it. */
    static const char doc[] =
        "{\"added_tokens\": [], \"pre_tokenizer\": {\"type\": \"ByteLevel\", "
        "\"add_prefix_space\": false}, \"decoder\": {\"type\": \"ByteLevel\"}, \"model\": "
        "{\"merges\": [[\"x\", \"y z\"], [\"\\u0061\", \"b\"]], \"vocab\": {\"\\u0061\": 0, "
        "\"b\": 1, \"ab\": 2, \"x\": 3, \"y z\": 4, \"xy z\": 5, \"\\ud83d\\ude42\": 6, "
        "\"\\\"\": 7, \"\\/\": 8}}}";
    bpe *t = NULL;
    if (bpe_parse(&t, doc, sizeof doc - 1, NULL, 0, "escapes") != CORUN_OK)
        fail_msg("%s", err_text());
    check_ids(t, "ab\"/x", "2 7 8 3");
    assert_int_equal(bpe_find(t, "\U0001F642", 4), 6);
    bpe_close(t);
}

/* ---- settings that change ids -----------------------------------------------------------------
 */

static void test_unknown_bytes(void **state)
{
    (void)state;
    json_t *doc = small_doc();
    json_t *vocab = json_object_get(json_object_get(doc, "model"), "vocab");
    json_object_del(vocab, "z");
    bpe *t = small(doc, NULL);
    check_ids(t, "zazbz", "256"); /* dropped: its neighbours may merge */
    bpe_close(t);
    json_object_set_new(vocab, "<unk>", json_integer(260));
    set_path(doc, "model.unk_token", "\"<unk>\"");
    t = small(doc, NULL);
    check_ids(t, "zzazb", "260 260 97 260 98");
    bpe_close(t);
    set_path(doc, "model.fuse_unk", "true");
    t = small(doc, NULL);
    check_ids(t, "zzazb", "260 97 260 98");
    bpe_close(t);
    json_decref(doc);
}

static void test_around(void **state)
{
    (void)state;
    json_t *doc = small_doc();
    set_path(doc, "post_processor",
             "{\"type\": \"Sequence\", \"processors\": [{\"type\": \"ByteLevel\"}, {\"type\": "
             "\"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"<s>\", "
             "\"type_id\": 0}}, {\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}, "
             "{\"SpecialToken\": {\"id\": \"e\", \"type_id\": 0}}], \"pair\": [], "
             "\"special_tokens\": {\"<s>\": {\"id\": \"<s>\", \"ids\": [300], \"tokens\": "
             "[\"<s>\"]}, \"e\": {\"id\": \"e\", \"ids\": [257, 258], \"tokens\": []}}}]}");
    bpe *t = small(doc, NULL);
    check_ids(t, "x", "120");
    check_ids_n(t, "x", 1, BPE_ADD_SPECIAL, "300 120 257 258");
    check_ids_n(t, "", 0, BPE_ADD_SPECIAL, "300 257 258");
    bpe_close(t);
    t = small(doc, "{\"bos_token\": \"<s>\", \"eos_token\": {\"content\": \"abc\"}, "
                   "\"pad_token\": null, \"tokenizer_class\": \"LlamaTokenizer\"}");
    check_ids_n(t, "x", 1, BPE_ADD_SPECIAL, "300 120 257 258");
    assert_int_equal(bpe_bos(t), 300);
    assert_int_equal(bpe_eos(t), 257);
    assert_string_equal(bpe_special(t, "eos_token"), "abc");
    assert_null(bpe_special(t, "pad_token"));
    assert_int_equal(bpe_n_special(t), 2);
    bpe_close(t);
    t = small(doc, "{\"bos_token\": \"<s>\", \"eos_token\": \"abc\", \"add_eos_token\": true}");
    check_ids_n(t, "x", 1, BPE_ADD_SPECIAL, "120 257");
    bpe_close(t);
    t = small(doc, "{\"add_bos_token\": false}");
    check_ids_n(t, "x", 1, BPE_ADD_SPECIAL, "120");
    bpe_close(t);
    assert_int_equal(parse_doc(&t, doc, "{\"add_bos_token\": true}"), CORUN_EFORMAT);
    assert_non_null(strstr(err_text(), "add_bos_token"));
    assert_int_equal(parse_doc(&t, doc, "{\"add_bos_token\": 1}"), CORUN_EFORMAT);
    static const char *const wrong[] = {
        "{\"bos_token\": 5}",           "{\"eos_token\": [\"x\"]}",
        "{\"pad_token\": true}",        "{\"image_token\": 5}",
        "{\"bos_token\": {\"id\": 1}}", "{\"eos_token\": {\"content\": 7}}"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(parse_doc(&t, doc, wrong[i]), CORUN_EFORMAT);
        assert_non_null(strstr(err_text(), "tokenizer_config.json"));
        assert_non_null(strstr(err_text(), "_token is no string"));
    }
    t = small(doc,
              "{\"keep_token\": true, \"bos_token\": null, \"unk_token\": {\"content\": null}}");
    bpe_close(t);
    assert_int_equal(parse_doc(&t, doc, "[]"), CORUN_EFORMAT);
    assert_int_equal(parse_doc(&t, doc, "{"), CORUN_EFORMAT);
    /* Tokens and flags that only tokenizer_config.json has. */
    t = small(doc, "{\"added_tokens_decoder\": {\"301\": {\"content\": \"<t>\", \"lstrip\": true, "
                   "\"normalized\": false, \"rstrip\": false, \"single_word\": false, "
                   "\"special\": false}, \"300\": {\"content\": \"<s>\", \"special\": false}}}");
    check_ids(t, "x <t> <s>", "120 301 32 300");
    const char *d;
    size_t n;
    bool special;
    bpe_token(t, 300, &d, &n, &special);
    assert_false(special);
    bpe_close(t);
    assert_int_equal(
        parse_doc(&t, doc, "{\"added_tokens_decoder\": {\"300\": {\"content\": \"<z>\"}}}"),
        CORUN_EFORMAT);
    json_decref(doc);
}

/* Each row was checked against the reference library. */
static void test_added_tokens(void **state)
{
    (void)state;
    json_t *doc = small_doc();
    set_path(doc, "normalizer", "{\"type\": \"NFC\"}");
    set_path(doc, "added_tokens",
             "[{\"id\": 300, \"content\": \"<s>\", \"normalized\": false},"
             "{\"id\": 301, \"content\": \"<s>>\", \"normalized\": false},"
             "{\"id\": 302, \"content\": \"<l>\", \"lstrip\": true, \"normalized\": false},"
             "{\"id\": 303, \"content\": \"<r>\", \"rstrip\": true, \"normalized\": false},"
             "{\"id\": 304, \"content\": \"word\", \"single_word\": true, \"normalized\": false},"
             "{\"id\": 305, \"content\": \"caf\u00e9\", \"normalized\": true},"
             "{\"id\": 306, \"content\": \"<<s>\", \"normalized\": true}]");
    bpe *t = small(doc, NULL);
    check_ids(t, "<s><s>><s", "300 301 60 115");
    check_ids(t, "x \u3000<l> y", "120 302 32 121");
    check_ids(t, "x <r> \n\u00a0y", "120 32 303 121");
    check_ids(t, "<r>  <l>", "303 302");
    check_ids(t, "word words sword word_ (word) w\u00f6rd \u00e9word",
              "304 32 119 111 114 100 115 "
              "32 115 119 111 114 100 32 119 111 114 100 95 32 40 304 41 32 119 195 182 114 100 32 "
              "195 169 119 111 114 100");
    check_ids(t, "cafe\u0301 caf\u00e9", "305 32 305");
    /* Raw tokens first: the longer normalized one is never seen. */
    check_ids(t, "<<s>", "60 300");
    check_ids_n(t, "<s>cafe\u0301", 9, BPE_LITERAL, "60 115 62 99 97 102 195 169");
    bpe_close(t);
    json_decref(doc);
}

static void test_digest(void **state)
{
    (void)state;
    static const char *const changes[][2] = {
        {"model.merges", "[\"a b\", \"b c\", \"ab c\", \"\u0120 a\"]"},
        {"model.ignore_merges", "true"},
        {"normalizer", "{\"type\": \"NFC\"}"},
        {"pre_tokenizer.use_regex", "false"},
        {"added_tokens", "[{\"id\": 300, \"content\": \"<t>\"}]"},
        {"added_tokens", "[{\"id\": 300, \"content\": \"<s>\", \"special\": false}]"},
    };
    json_t *doc = small_doc();
    bpe *t = small(doc, NULL), *u = small(doc, NULL);
    digest a = bpe_digest(t), b = bpe_digest(u);
    assert_true(a.hi == b.hi && a.lo == b.lo);
    bpe_close(u);
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        json_t *other = small_doc();
        set_path(other, changes[i][0], changes[i][1]);
        u = small(other, NULL);
        b = bpe_digest(u);
        if (a.hi == b.hi && a.lo == b.lo) fail_msg("%s does not move the digest", changes[i][0]);
        bpe_close(u);
        json_decref(other);
    }
    u = small(doc, "{\"bos_token\": \"<s>\"}");
    b = bpe_digest(u);
    assert_false(a.hi == b.hi && a.lo == b.lo);
    bpe_close(u);
    bpe_close(t);
    json_decref(doc);
}

/* ---- merges against a plain search ------------------------------------------------------------
 */

#define N_LETTER 4
#define N_RANDOM 60

/* A random vocabulary over the letters a to d; list[r] is the spelling of the pair of rank r. */
static json_t *random_doc(uint32_t *seed, char list[N_RANDOM][2][64], int *n_list)
{
    json_t *doc = small_doc();
    json_t *model = json_object_get(doc, "model");
    json_t *vocab = json_object(), *merges = json_array();
    char tok[N_LETTER + N_RANDOM][64];
    int n = 0;
    for (; n < N_LETTER; n++) {
        snprintf(tok[n], sizeof tok[n], "%c", 'a' + n);
        json_object_set_new(vocab, tok[n], json_integer(n));
    }
    *n_list = 0;
    for (int i = 0; i < N_RANDOM; i++) {
        *seed = *seed * 1664525u + 1013904223u;
        const char *l = tok[(*seed >> 8) % (unsigned)n], *r = tok[(*seed >> 20) % (unsigned)n];
        char both[130];
        if (strlen(l) + strlen(r) > 12) continue;
        snprintf(both, sizeof both, "%s%s", l, r);
        bool again = false;
        for (int k = 0; k < *n_list; k++)
            again = again || (!strcmp(list[k][0], l) && !strcmp(list[k][1], r));
        if (again) continue;
        if (!json_object_get(vocab, both)) {
            json_object_set_new(vocab, both, json_integer(n));
            snprintf(tok[n++], sizeof tok[0], "%.60s", both);
        }
        snprintf(list[*n_list][0], 64, "%s", l);
        snprintf(list[(*n_list)++][1], 64, "%s", r);
        json_array_append_new(merges, json_pack("[s,s]", l, r));
    }
    json_object_set_new(model, "vocab", vocab);
    json_object_set_new(model, "merges", merges);
    return doc;
}

static void plain_merge(char sym[][64], int *n, char list[N_RANDOM][2][64], int n_list)
{
    for (;;) {
        int best = -1, rank = n_list;
        for (int i = 0; i + 1 < *n; i++)
            for (int r = 0; r < rank; r++)
                if (!strcmp(sym[i], list[r][0]) && !strcmp(sym[i + 1], list[r][1])) {
                    rank = r;
                    best = i;
                }
        if (best < 0) return;
        snprintf(sym[best] + strlen(sym[best]), 64 - strlen(sym[best]), "%s", list[rank][1]);
        for (int i = best + 1; i + 1 < *n; i++) memcpy(sym[i], sym[i + 1], 64);
        (*n)--;
    }
}

static void test_random_merges(void **state)
{
    (void)state;
    uint32_t seed = 7;
    static char list[N_RANDOM][2][64];
    static char sym[100][64];
    for (int trial = 0; trial < 40; trial++) {
        int n_list;
        json_t *doc = random_doc(&seed, list, &n_list);
        bpe *t = small(doc, NULL);
        for (int k = 0; k < 60; k++) {
            char text[100];
            int n = k + 1; /* lengths on both sides of the switch to the heap */
            for (int i = 0; i < n; i++) {
                seed = seed * 1664525u + 1013904223u;
                text[i] = (char)('a' + (seed >> 24) % N_LETTER);
                snprintf(sym[i], 64, "%c", text[i]);
            }
            bpe_ids ids = encode(t, text, (size_t)n, 0);
            plain_merge(sym, &n, list, n_list);
            assert_int_equal(ids.n, n);
            for (int i = 0; i < n; i++)
                assert_int_equal(ids.id[i], bpe_find(t, sym[i], strlen(sym[i])));
            bpe_ids_free(&ids);
        }
        bpe_close(t);
        json_decref(doc);
    }
}

/* ---- streaming decode -------------------------------------------------------------------------
 */

static void test_stream(void **state)
{
    (void)state;
#define R "\uFFFD"
    static const char *const rows[][2] = {
        {"", ""},
        {"plain", "plain"},
        {"\xE2\x80", R},
        {"\xF0\x9F\x98\xF0\x9F", R R},
        {"\xC0\xAF", R R},
        {"\xE2\x28\xA1", R "(" R},
        {"\xED\xA0\x80", R R R},
        {"\xF4\x90\x80\x80", R R R R},
        {"\xF0\x9F\x99\x82", "\U0001F642"},
        {"a\x80z", "a" R "z"},
        {"\xF8\x88", R R},
        {"\xE0\x9F\xBF", R R R},
        {"\xF0\x8F\xBF\xBF", R R R R},
        {"\xEF\xBF\xBD", R},
        {"\xC3\xC3\xA9", R "\u00e9"},
        {"\xF4\x8F\xBF\xBF", "\U0010FFFF"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        size_t len = strlen(rows[i][0]);
        for (size_t cut = 0; cut <= len; cut++) {
            bpe_stream s = {0};
            buf out;
            buf_init(&out, 100);
            buf_puts(&out, "");
            bpe_stream_push(&s, rows[i][0], cut, &out);
            size_t bad;
            assert_true(utf8_valid(out.data, out.len, &bad));
            bpe_stream_push(&s, rows[i][0] + cut, len - cut, &out);
            bpe_stream_end(&s, &out);
            assert_string_equal(out.data, rows[i][1]);
            assert_int_equal(s.n_held, 0);
            buf_free(&out);
        }
    }
    /* As soon as it is certain: the second byte alone settles the first. */
    bpe_stream s = {0};
    buf out;
    buf_init(&out, 100);
    bpe_stream_push(&s, "\xE2(", 2, &out);
    assert_string_equal(out.data, R "(");
    buf_free(&out);
}

/* ---- the byte tokenizer -----------------------------------------------------------------------
 */

static void test_bytes(void **state)
{
    (void)state;
    bpe *t = NULL;
    assert_int_equal(bpe_open_bytes(&t), CORUN_OK);
    check_ids(t, "a\u00e9", "97 195 169");
    check_ids(t, "<|user|>hi<|eos|>", "258 104 105 257");
    check_ids_n(t, "x", 1, BPE_ADD_SPECIAL, "120");
    assert_int_equal(bpe_bos(t), 256);
    assert_int_equal(bpe_eos(t), 257);
    assert_int_equal(bpe_n_token(t), 260);
    assert_string_equal(bpe_special(t, "bos_token"), "<|bos|>");
    for (int i = 0; i < 260; i++) {
        const char *s;
        size_t n;
        bool special;
        bpe_token(t, i, &s, &n, &special);
        assert_int_equal(special, i >= 256);
        if (i < 256) assert_true(n == 1 && (unsigned char)*s == i);
        assert_int_equal(bpe_find(t, s, n), i);
    }
    bpe_close(t);
}

/* ---- GGUF -------------------------------------------------------------------------------------
 */

typedef struct gg_options {
    const char *model, *pre;
    int n_merge;        /* of the two */
    int32_t type_of_ab; /* token 256 */
    int n_type;         /* entries of token_type */
    int bos;
    bool bad_merge;
} gg_options;

static const gg_options gg_good = {"gpt2", "gpt-2", 2, 1, 259, 258, false};

/* Bytes 0 to 255, "ab" 256, "abc" 257, the control token <s> 258. */
static void gg_write(make *m, gg_options o)
{
    gg_head(m, 0, 5 + (o.model != NULL) + (o.pre != NULL));
    if (o.model) gg_str(m, "tokenizer.ggml.model", o.model);
    if (o.pre) gg_str(m, "tokenizer.ggml.pre", o.pre);
    put_str(m, "tokenizer.ggml.tokens");
    put_u32(m, GGUF_ARRAY);
    put_u32(m, GGUF_STRING);
    put_u64(m, 259);
    for (unsigned b = 0; b < 256; b++) {
        char s[5];
        spell(b, s);
        put_str(m, s);
    }
    put_str(m, "ab");
    put_str(m, "abc");
    put_str(m, "<s>");
    put_str(m, "tokenizer.ggml.token_type");
    put_u32(m, GGUF_ARRAY);
    put_u32(m, GGUF_I32);
    put_u64(m, (uint64_t)o.n_type);
    for (int i = 0; i < o.n_type; i++)
        put_u32(m, (uint32_t)(i == 258 ? 3 : i == 256 ? o.type_of_ab : 1));
    put_str(m, "tokenizer.ggml.merges");
    put_u32(m, GGUF_ARRAY);
    put_u32(m, GGUF_STRING);
    put_u64(m, (uint64_t)o.n_merge);
    for (int i = 0; i < o.n_merge; i++) put_str(m, i ? "ab c" : o.bad_merge ? "ab" : "a b");
    gg_u32(m, "tokenizer.ggml.bos_token_id", (uint32_t)o.bos);
    gg_bool(m, "tokenizer.ggml.add_bos_token", 1);
}

static corun_status gg_open(bpe **t, gg_options o)
{
    char folder[64], path[128];
    make m;
    weights *w = NULL;
    make_init(&m);
    gg_write(&m, o);
    folder_make(folder);
    file_put(folder, "t.gguf", m.b.data, m.b.len);
    snprintf(path, sizeof path, "%s/t.gguf", folder);
    *t = NULL;
    corun_status st = weights_open(&w, path);
    if (st == CORUN_OK) st = bpe_open_gguf(t, w);
    weights_close(w);
    folder_remove(folder);
    make_free(&m);
    return st;
}

static void test_gguf(void **state)
{
    (void)state;
    bpe *t;
    if (gg_open(&t, gg_good) != CORUN_OK) fail_msg("%s", err_text());
    check_ids(t, "abc ab<s>", "257 32 256 258");
    check_ids_n(t, "ab", 2, BPE_ADD_SPECIAL, "258 256");
    assert_string_equal(bpe_special(t, "bos_token"), "<s>");
    bpe_close(t);
    /* Neither an unused nor a user-defined token is a part of the vocabulary that merges make. */
    gg_options o = gg_good;
    for (o.type_of_ab = 4; o.type_of_ab <= 5; o.type_of_ab++) {
        assert_int_equal(gg_open(&t, o), CORUN_EFORMAT);
        assert_non_null(strstr(err_text(), "the result is not in the vocabulary"));
    }
    static const struct {
        gg_options o;
        corun_status st;
        const char *text;
    } rows[] = {
        {{"llama", "gpt-2", 2, 1, 259, 258, false}, CORUN_EUNSUPPORTED, "\"llama\""},
        {{NULL, "gpt-2", 2, 1, 259, 258, false}, CORUN_EFORMAT, "tokenizer.ggml.model"},
        {{"gpt2", "mystery", 2, 1, 259, 258, false}, CORUN_EUNSUPPORTED, "\"mystery\""},
        {{"gpt2", NULL, 2, 1, 259, 258, false}, CORUN_EFORMAT, "tokenizer.ggml.pre"},
        {{"gpt2", "gpt-2", 2, 6, 259, 258, false}, CORUN_EUNSUPPORTED, "type 6"},
        {{"gpt2", "gpt-2", 2, 1, 258, 258, false}, CORUN_EFORMAT, "token_type"},
        {{"gpt2", "gpt-2", 2, 1, 259, 259, false}, CORUN_EFORMAT, "bos_token_id"},
        {{"gpt2", "gpt-2", 2, 1, 259, 258, true}, CORUN_EFORMAT, "entry 0: \"ab\""},
        {{"gpt2", "gpt-2", 0, 1, 259, 258, false}, CORUN_EFORMAT, "no merges"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        corun_status st = gg_open(&t, rows[i].o);
        if (st != rows[i].st || !strstr(err_text(), rows[i].text))
            fail_msg("row %zu: status %d, \"%s\"", i, (int)st, st ? err_text() : "");
    }
    static const char *const pre[] = {
        "llama-bpe",        "qwen2",   "smollm",        "gpt-2",        "deepseek-v3",
        "deepseek-r1-qwen", "hunyuan", "hunyuan-dense", "deepseek-llm", "deepseek-coder"};
    for (size_t i = 0; i < sizeof pre / sizeof *pre; i++) {
        o = gg_good;
        o.pre = pre[i];
        if (gg_open(&t, o) != CORUN_OK) fail_msg("%s: %s", pre[i], err_text());
        check_ids(t, "abc", "257");
        bpe_close(t);
    }
}

/* ---- folders ----------------------------------------------------------------------------------
 */

static void test_folder(void **state)
{
    (void)state;
    char folder[64];
    bpe *t = NULL;
    folder_make(folder);
    assert_int_equal(bpe_open_folder(&t, folder), CORUN_EFORMAT);
    assert_non_null(strstr(err_text(), "tokenizer.json"));
    json_t *doc = small_doc();
    char *s = json_dumps(doc, 0);
    file_put(folder, "tokenizer.json", s, strlen(s));
    assert_int_equal(bpe_open_folder(&t, folder), CORUN_OK);
    assert_int_equal(bpe_bos(t), -1);
    bpe_close(t);
    static const char conf[] = "{\"bos_token\": \"<s>\"}";
    file_put(folder, "tokenizer_config.json", conf, sizeof conf - 1);
    assert_int_equal(bpe_open_folder(&t, folder), CORUN_OK);
    assert_int_equal(bpe_bos(t), 300);
    bpe_close(t);
    file_put(folder, "tokenizer_config.json", "{", 1);
    assert_int_equal(bpe_open_folder(&t, folder), CORUN_EFORMAT);
    assert_non_null(strstr(err_text(), "tokenizer_config.json"));
    folder_remove(folder);
    free(s);
    json_decref(doc);
}

/* ---- memory that runs out, threads ------------------------------------------------------------
 */

static void test_no_memory(void **state)
{
    (void)state;
    json_t *doc = small_doc();
    set_path(doc, "normalizer", "{\"type\": \"NFC\"}");
    char *s = json_dumps(doc, 0);
    static const char conf[] = "{\"bos_token\": \"<s>\", \"add_bos_token\": true}";
    bpe *t = NULL;
    corun_status st = CORUN_ENOMEM;
    uint64_t n = 1;
    for (; n < 5000 && st != CORUN_OK; n++) {
        mem_fail_at(n);
        st = bpe_parse(&t, s, strlen(s), conf, sizeof conf - 1, "small");
        mem_fail_at(0);
        if (st != CORUN_OK && st != CORUN_ENOMEM) fail_msg("allocation %d: %s", (int)n, err_text());
    }
    assert_int_equal(st, CORUN_OK);
    assert_true(n > 20);
    /* A text that is long for the heap, changes under NFC and holds a special token. */
    static const char text[] = "<s>abcabcabcabcabcabcabcabcabcabcabcabcabc e\u0301\u0316 x1";
    st = CORUN_ENOMEM;
    for (n = 1; n < 5000 && st != CORUN_OK; n++) {
        bpe_ids ids = {0};
        mem_fail_at(n);
        st = bpe_encode(t, text, sizeof text - 1, BPE_ADD_SPECIAL, 1000, &ids);
        mem_fail_at(0);
        if (st != CORUN_OK) {
            assert_int_equal(st, CORUN_ENOMEM);
            assert_int_equal(ids.n, 0);
        }
        bpe_ids_free(&ids);
    }
    assert_int_equal(st, CORUN_OK);
    assert_true(n > 10);
    bpe_close(t);
    st = CORUN_ENOMEM;
    for (n = 1; n < 5000 && st != CORUN_OK; n++) {
        mem_fail_at(n);
        st = bpe_open_bytes(&t);
        mem_fail_at(0);
        assert_true(st == CORUN_OK || st == CORUN_ENOMEM);
    }
    assert_int_equal(st, CORUN_OK);
    bpe_close(t);
    free(s);
    json_decref(doc);
}

static void *encode_many(void *arg)
{
    const bpe *t = arg;
    uintptr_t bad = 0;
    for (int i = 0; i < 300; i++) {
        char s[64];
        int n = snprintf(s, sizeof s, "abc%d ab <s> bcbcabc a%dab", i, i % 7);
        bpe_ids a = {0}, b = {0};
        bad += bpe_encode(t, s, (size_t)n, 0, 1000, &a) != CORUN_OK;
        bad += bpe_encode(t, s, (size_t)n, 0, 1000, &b) != CORUN_OK;
        bad += a.n != b.n || memcmp(a.id, b.id, a.n * sizeof *a.id) != 0;
        bpe_ids_free(&a);
        bpe_ids_free(&b);
    }
    return (void *)bad;
}

static void test_threads(void **state)
{
    (void)state;
    json_t *doc = small_doc();
    bpe *t = small(doc, NULL);
    pthread_t th[4];
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&th[i], NULL, encode_many, t), 0);
    for (int i = 0; i < 4; i++) {
        void *bad;
        pthread_join(th[i], &bad);
        assert_null(bad);
    }
    bpe_close(t);
    json_decref(doc);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small),         cmocka_unit_test(test_refused),
        cmocka_unit_test(test_broken_text),   cmocka_unit_test(test_escapes_and_spaces),
        cmocka_unit_test(test_unknown_bytes), cmocka_unit_test(test_around),
        cmocka_unit_test(test_added_tokens),  cmocka_unit_test(test_digest),
        cmocka_unit_test(test_random_merges), cmocka_unit_test(test_stream),
        cmocka_unit_test(test_bytes),         cmocka_unit_test(test_gguf),
        cmocka_unit_test(test_folder),        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
