/* test_bpe_golden.c - real tokenizers against ids of the reference library: 1,000 mixed texts for
 * each, and the named cases. The files come from tools/fetch. */
#include "bpe_util.h"

#include "text/unicode.h"

/* ---- the 1,000 texts ------------------------------------------------------------------------ */

static void check_round_trip(const bpe *t, const char *s, size_t len, bool nfc)
{
    bpe_ids ids = encode(t, s, len, 0);
    buf raw, want;
    buf_init(&raw, SIZE_MAX / 2);
    buf_init(&want, SIZE_MAX / 2);
    raw_bytes(t, &ids, &raw);
    bool changed = false;
    if (nfc) assert_int_equal(unicode_nfc(s, len, &want, &changed), CORUN_OK);
    if (!changed) {
        buf_reset(&want);
        buf_put(&want, s, len);
    }
    if (raw.len != want.len || (raw.len && memcmp(raw.data, want.data, raw.len) != 0))
        fail_msg("round trip of \"%s\" gives \"%s\"", want.data, raw.data);
    buf_free(&raw);
    buf_free(&want);
    bpe_ids_free(&ids);
}

enum { TRIP_NONE, TRIP_SAME, TRIP_NFC };

static void compare_all(const bpe *t, const golden *g, int trip)
{
    json_t *texts = golden_texts();
    assert_int_equal(g->n, json_array_size(texts));
    for (size_t i = 0; i < g->n; i++) {
        const json_t *s = json_array_get(texts, i);
        check_ids_n(t, json_string_value(s), json_string_length(s), 0, g->line[i]);
        if (trip != TRIP_NONE)
            check_round_trip(t, json_string_value(s), json_string_length(s), trip == TRIP_NFC);
    }
    json_decref(texts);
}

static void compare_name(bpe *t, const char *name, const char *base, int trip)
{
    golden b = {0};
    if (base) b = golden_open(base, NULL);
    golden g = golden_open(name, base ? &b : NULL);
    compare_all(t, &g, trip);
    golden_free(&g);
    if (base) golden_free(&b);
    bpe_close(t);
}

#define JSON_TEST(fn, name, base, trip)                                                            \
    static void fn(void **state)                                                                   \
    {                                                                                              \
        (void)state;                                                                               \
        compare_name(open_folder(name), name, base, trip);                                         \
    }
#define GGUF_TEST(fn, file, name, base, trip)                                                      \
    static void fn(void **state)                                                                   \
    {                                                                                              \
        (void)state;                                                                               \
        compare_name(open_gguf(file), name, base, trip);                                           \
    }

JSON_TEST(json_qwen3, "qwen3", NULL, TRIP_NFC)
JSON_TEST(json_qwen25, "qwen2.5", "qwen3", TRIP_NFC)
JSON_TEST(json_qwen2, "qwen2", "qwen3", TRIP_NFC)
JSON_TEST(json_deepseek_v3, "deepseek-v3", NULL, TRIP_SAME)
JSON_TEST(json_deepseek_r1, "deepseek-r1", "deepseek-v3", TRIP_SAME)
JSON_TEST(json_llama3, "llama-3", NULL, TRIP_SAME)
JSON_TEST(json_llama32, "llama-3.2", "llama-3", TRIP_SAME)
JSON_TEST(json_gpt2, "gpt2", NULL, TRIP_SAME)
/* SmolLM2 has no token for 21 bytes: they are dropped, so no round trip. */
GGUF_TEST(gguf_smollm2, "models/SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2", NULL, TRIP_NONE)
GGUF_TEST(gguf_qwen2, "vocab/ggml-vocab-qwen2.gguf", "qwen2", "qwen3", TRIP_NFC)
GGUF_TEST(gguf_llama3, "vocab/ggml-vocab-llama-bpe.gguf", "llama-3", NULL, TRIP_SAME)
GGUF_TEST(gguf_gpt2, "vocab/ggml-vocab-gpt-2.gguf", "gpt2", NULL, TRIP_SAME)
GGUF_TEST(gguf_deepseek_llm, "vocab/ggml-vocab-deepseek-llm.gguf", "deepseek-llm", NULL, TRIP_NONE)
GGUF_TEST(gguf_deepseek_coder, "vocab/ggml-vocab-deepseek-coder.gguf", "deepseek-coder", NULL,
          TRIP_NONE)

/* ---- the ready cases of the vocabulary files --------------------------------------------------
 */

static char *read_text(const char *path)
{
    buf b;
    buf_init(&b, 1 << 20);
    if (file_read(&b, path, 1 << 20) != CORUN_OK) fail_msg("%s", err_text());
    assert_true(b.len > 0);
    return b.data;
}

static void ready_cases(const char *name)
{
    static const char mark[] = "\n__ggml_vocab_test__\n";
    char file[256], path[1024];
    snprintf(file, sizeof file, "vocab/ggml-vocab-%s.gguf", name);
    bpe *t = open_gguf(file);
    snprintf(path, sizeof path, TEST_CACHE "/%s.inp", file);
    char *in = read_text(path);
    snprintf(path, sizeof path, TEST_CACHE "/%s.out", file);
    char *out = read_text(path);
    char *s = in, *want = out;
    int n = 0;
    while (s) {
        char *end = strstr(s, mark);
        char *line = strchr(want, '\n');
        if (line) *line = 0;
        while (*want == ' ') want++;
        size_t len = end ? (size_t)(end - s) : strlen(s);
        if (!end && !len) break; /* behind the last mark */
        check_ids_n(t, s, len, 0, want);
        n++;
        s = end ? end + sizeof mark - 1 : NULL;
        want = line ? line + 1 : want + strlen(want);
    }
    assert_true(n >= 46);
    mem_free(in);
    mem_free(out);
    bpe_close(t);
}

#define READY_TEST(fn, name)                                                                       \
    static void fn(void **state)                                                                   \
    {                                                                                              \
        (void)state;                                                                               \
        ready_cases(name);                                                                         \
    }
READY_TEST(ready_qwen2, "qwen2")
READY_TEST(ready_llama, "llama-bpe")
READY_TEST(ready_gpt2, "gpt-2")
READY_TEST(ready_deepseek_llm, "deepseek-llm")
READY_TEST(ready_deepseek_coder, "deepseek-coder")

/* ---- named cases ---------------------------------------------------------------------------- */

#define DEMO "models/SmolLM2-135M-Instruct.Q4_1.gguf"

static void first_line(void **state)
{
    (void)state;
    static const char s[] = "Hello, 世界! 12345 é \t\n\n  def f(x): return x**2 🙂";
    bpe *q = open_folder("qwen3"), *l = open_folder("llama-3.2"), *d = open_folder("deepseek-v3");
    bpe *m = open_gguf(DEMO);
    check_ids(q, s,
              "9707 11 220 99489 0 220 16 17 18 19 20 3958 7018 271 220 707 282 2075 1648 470 856 "
              "334 17 27484");
    check_ids(d, s,
              "19923 14 223 3427 3 223 6895 1883 2678 49293 271 223 1351 285 4042 2605 1354 1527 "
              "666 20 68139");
    check_ids(l, s,
              "9906 11 127365 0 220 4513 1774 4046 7163 271 220 711 282 2120 1680 471 865 334 17 "
              "28584");
    check_ids_n(l, "Hi", 2, BPE_ADD_SPECIAL, "128000 13347");
    check_ids(m, s,
              "19556 28 216 7906 240 178 239 230 17 216 33 34 35 36 37 26411 216 197 8866 753 275 "
              "24 104 727 1003 1792 828 34 47526");
    bpe_close(m);
    bpe_close(d);
    bpe_close(l);
    bpe_close(q);
}

static void four_pre_tokenizers(void **state)
{
    (void)state;
    static const char *const rows[][5] = {
        {"if(p->q):\n\tx+=3141", "333 1319 405 80 997 10436 8664 16104 16",
         "333 1295 405 80 982 10225 8496 18 16 19 16", "394 7093 2105 83 3395 51669 26634 18321 19",
         "342 24 96 22690 97 727 198 197 104 32657 35 33 36 33"},
        {"10 ⅔ cups", "605 220 71567 242 26446", "16 15 220 70467 242 25374",
         "553 223 23603 245 22185", "33 32 216 173 223 238 12382"},
        {"WE'LL we'll", "12739 6 4178 584 3358", "12457 6 4086 582 3278", "24118 9 3699 579 5922",
         "23342 23 16421 392 3060"},
        {"naive  end \n \n\n z", "3458 535 220 842 720 4815 1167", "3376 533 220 835 715 4710 1147",
         "2720 505 223 1522 539 1004 961", "3546 404 216 1112 3717 38028 1892"},
        {"a\u00a0\u00a0b\u3000c", "64 4194 115648 23249 66", "64 4102 4102 65 22441 66",
         "67 2162 2162 68 18524 69", "81 15442 15442 82 12109 218 83"},
        {"2027年をok", "2366 22 8107 30512 564", "17 15 17 22 7948 29412 562",
         "939 25 695 2747 633", "34 32 34 39 32090 129 34771 2231"},
        {"@user #tag/_id", "31 882 674 4681 20205 307", "31 872 671 4578 19632 307",
         "34 5265 1823 24164 67847 329", "48 4093 907 9204 31 79 311"},
        {"hello world", "15339 1917", "14990 1879", "33310 2058", "28120 905"},
    };
    bpe *t[4] = {open_folder("llama-3"), open_folder("qwen3"), open_folder("deepseek-v3"),
                 open_gguf(DEMO)};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int k = 0; k < 4; k++) check_ids(t[k], rows[i][0], rows[i][k + 1]);
    for (int k = 0; k < 4; k++) {
        check_round_trip(t[k], "hello world", 11, false);
        bpe_close(t[k]);
    }
}

/* The file's text, with one part replaced by another of any length. */
static buf patched(const char *name, const char *from, const char *to)
{
    char path[1024];
    buf b, out;
    buf_init(&b, 1 << 26);
    buf_init(&out, 1 << 26);
    snprintf(path, sizeof path, TEST_CACHE "/tokenizers/%s/tokenizer.json", name);
    need_file(path);
    assert_int_equal(file_read(&b, path, 1 << 26), CORUN_OK);
    char *at = memmem(b.data, b.len, from, strlen(from));
    assert_non_null(at);
    buf_put(&out, b.data, (size_t)(at - b.data));
    buf_puts(&out, to);
    buf_put(&out, at + strlen(from), b.len - (size_t)(at - b.data) - strlen(from));
    assert_int_equal(buf_status(&out), CORUN_OK);
    buf_free(&b);
    return out;
}

static void ignore_merges(void **state)
{
    (void)state;
    bpe *t = open_folder("llama-3");
    check_ids(t, "x Merkez hukuk", "87 120102 119422");
    check_ids(t, " việc", "100769");
    bpe_close(t);
    buf b = patched("llama-3", "\"ignore_merges\": true", "\"ignore_merges\": false");
    assert_int_equal(bpe_parse(&t, b.data, b.len, NULL, 0, "patched"), CORUN_OK);
    check_ids(t, "x Merkez hukuk", "87 8930 441 89 305 3178 3178");
    check_ids(t, " việc", "3355 26298 66");
    bpe_close(t);
    buf_free(&b);
}

static void unicode_versions(void **state)
{
    (void)state;
    bpe *d = open_folder("deepseek-v3"), *l = open_folder("llama-3");
    check_ids(d, "x \U0001F6DC", "90 7351 252 253");
    check_ids(d, "x \U0001FAE9", "90 7351 107 105");
    check_ids(d, "x \u1C89", "90 8751 113 234");
    check_ids(l, "x \U00011F50", "87 220 172 239 121 238");
    check_ids(l, "x \U00011DE0", "87 109697 239 115 254");
    /* The Digits step knows the numbers of Unicode 17, which the regex engine does not. */
    bpe *m = open_gguf(DEMO);
    check_ids(m, "a  \U00011DE0", "81 256 187 235 132 250");
    check_ids(m, "a  \U00016FF5b", "81 256 187 240 140 130 82");
    bpe_close(m);
    bpe_close(l);
    bpe_close(d);
}

static void unicode_versions_nfc(void **state)
{
    (void)state;
    bpe *q = open_folder("qwen3");
    check_ids(q, "a\u1ABF\u0301", "64 157 103 123 53839");
    check_ids(q, "a\u0898\u0316", "64 156 95 246 136 244");
    bpe_close(q);
}

static void two_merge_spellings(void **state)
{
    (void)state;
    const char *text = "The capital of France is", *want = "785 6722 315 9625 374";
    bpe *t = open_folder("qwen3"), *u = NULL;
    check_ids(t, text, want);
    json_t *doc = NULL;
    char path[] = TEST_CACHE "/tokenizers/qwen3/tokenizer.json";
    assert_int_equal(json_read_file(&doc, path, 1 << 26), CORUN_OK);
    json_t *model = json_object_get(doc, "model"), *list = json_array();
    size_t i;
    json_t *v;
    json_array_foreach (json_object_get(model, "merges"), i, v)
        json_array_append_new(list, json_sprintf("%s %s", json_string_value(json_array_get(v, 0)),
                                                 json_string_value(json_array_get(v, 1))));
    json_object_set(model, "merges", list);
    char *s = json_dumps(doc, JSON_COMPACT | JSON_ENSURE_ASCII);
    assert_int_equal(bpe_parse(&u, s, strlen(s), NULL, 0, "strings"), CORUN_OK);
    check_ids(u, text, want);
    free(s);
    /* The content is the same, but tokenizer_config.json gave names to the first. */
    bpe_close(t);
    assert_int_equal(bpe_parse(&t, "", 0, NULL, 0, "empty"), CORUN_EFORMAT);
    buf b = patched("qwen3", "{", "{");
    assert_int_equal(bpe_parse(&t, b.data, b.len, NULL, 0, "strings"), CORUN_OK);
    buf_free(&b);
    digest x = bpe_digest(t), y = bpe_digest(u);
    assert_true(x.hi == y.hi && x.lo == y.lo);
    bpe_close(u);
    bpe_close(t);

    json_array_set_new(list, 5, json_string("ab"));
    s = json_dumps(doc, JSON_COMPACT);
    assert_int_equal(bpe_parse(&u, s, strlen(s), NULL, 0, "bad"), CORUN_EFORMAT);
    assert_non_null(strstr(err_text(), "entry 5: \"ab\""));
    free(s);
    json_array_clear(list);
    s = json_dumps(doc, JSON_COMPACT);
    assert_int_equal(bpe_parse(&u, s, strlen(s), NULL, 0, "none"), CORUN_EFORMAT);
    assert_non_null(strstr(err_text(), "no merges"));
    free(s);
    json_decref(list);
    json_decref(doc);
}

/* n copies of unit: the number of ids, the first and the last, and the time. */
static void check_run(const bpe *t, const char *unit, size_t n, size_t n_id, int32_t first,
                      int32_t last)
{
    size_t k = strlen(unit);
    char *s = mem_alloc(n, k, "run");
    for (size_t i = 0; i < n; i++) memcpy(s + i * k, unit, k);
    clock_t begin = clock();
    bpe_ids ids = encode(t, s, n * k, 0);
    double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
    assert_int_equal(ids.n, n_id);
    assert_int_equal(ids.id[0], first);
    assert_int_equal(ids.id[ids.n - 1], last);
    if (seconds > 2) fail_msg("%zu times \"%s\" took %.1f s", n, unit, seconds);
    bpe_ids_free(&ids);
    mem_free(s);
}

static void long_runs(void **state)
{
    (void)state;
    bpe *q = open_folder("qwen3"), *l = open_folder("llama-3"), *d = open_folder("deepseek-v3");
    check_run(q, "A", 100000, 12500, 57905, 57905);
    check_run(l, "A", 100000, 12500, 59005, 59005);
    check_run(d, "A", 100000, 12500, 73523, 73523);
    check_run(q, "\n", 30000, 938, 79083, 24616);
    check_run(l, "\n", 30000, 938, 80183, 25638);
    check_run(d, "\n", 30000, 1875, 93614, 93614);
    check_run(q, " ", 26000, 204, 56940, 338);
    check_run(d, " ", 26000, 204, 69933, 1032);
    check_run(q, "世", 20000, 20000, 99244, 99244);
    check_run(q, "a'", 500000, 500001, 64, 6);
    bpe_close(d);
    bpe_close(l);
    bpe_close(q);
}

/* Other inputs that hurt a careless tokenizer: the time alone is looked at. */
static void hostile_runs(void **state)
{
    (void)state;
    static const char *const units[] = {"<",
                                        "<|im_",
                                        "<\uFF5Cplace\u2581holder\u2581no\u2581",
                                        "\u0301\u0316",
                                        "\u0334",
                                        "e\u0323\u0302",
                                        " \n",
                                        "\r",
                                        "'",
                                        "1",
                                        "\u1100\u1161",
                                        "🇩",
                                        "<|im_end|>"};
    bpe *t[3] = {open_folder("qwen3"), open_folder("deepseek-v3"), open_gguf(DEMO)};
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        for (int k = 0; k < 3; k++) {
            size_t len = strlen(units[i]), n = 400000 / len;
            char *s = mem_alloc(n, len, "run");
            for (size_t j = 0; j < n; j++) memcpy(s + j * len, units[i], len);
            clock_t begin = clock();
            bpe_ids ids = encode(t[k], s, n * len, 0);
            double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
            if (seconds > 2) fail_msg("\"%s\" took %.1f s", units[i], seconds);
            bpe_ids_free(&ids);
            mem_free(s);
        }
    for (int k = 0; k < 3; k++) bpe_close(t[k]);
}

static void special_tokens(void **state)
{
    (void)state;
    bpe *q = open_folder("qwen3"), *d = open_folder("deepseek-v3"), *r = open_folder("deepseek-r1");
    bpe *g = open_gguf("vocab/ggml-vocab-llama-bpe.gguf"), *m = open_gguf(DEMO);
    assert_int_equal(bpe_bos(q), -1);
    assert_int_equal(bpe_eos(q), 151645);
    assert_int_equal(bpe_n_token(q), 151669);
    assert_string_equal(bpe_special(q, "pad_token"), "<|endoftext|>");
    assert_null(bpe_special(q, "bos_token"));
    assert_int_equal(bpe_find(q, "<think>", 7), 151667);
    assert_int_equal(bpe_find(q, "Hello", 5), 9707);
    assert_int_equal(bpe_find(q, "Hello, world", 12), -1);
    check_ids(q, "<|im_start|>user\n", "151644 872 198");
    check_ids_n(q, "<|im_end|>", 10, BPE_LITERAL, "27 91 318 6213 91 29");
    const char *s;
    size_t n;
    bool special;
    bpe_token(q, 151667, &s, &n, &special);
    assert_true(n == 7 && !memcmp(s, "<think>", 7) && !special);
    bpe_token(q, 151645, &s, &n, &special);
    assert_true(n == 10 && special);
    bpe_token(q, 151669, &s, &n, &special);
    assert_int_equal(n, 0);
    bpe_token(q, -1, &s, &n, &special);
    assert_int_equal(n, 0);
    /* The switch of tokenizer_config.json decides, not the post-processor. */
    check_ids_n(d, "hello world", 11, BPE_ADD_SPECIAL, "0 33310 2058");
    check_ids_n(r, "hello world", 11, BPE_ADD_SPECIAL, "33310 2058");
    assert_int_equal(bpe_bos(d), 0);
    assert_int_equal(bpe_eos(d), 1);
    check_ids_n(g, "hello world", 11, BPE_ADD_SPECIAL, "128000 15339 1917");
    check_ids_n(m, "hello world", 11, BPE_ADD_SPECIAL, "28120 905");
    assert_int_equal(bpe_bos(m), 1);
    assert_int_equal(bpe_eos(m), 2);
    /* SmolLM2 has no token for byte 04: it is dropped, and its neighbours may merge. */
    check_ids_n(m, "hello\x04 world", 12, 0, "28120 905");
    bpe_close(m);
    bpe_close(g);
    bpe_close(r);
    bpe_close(d);
    bpe_close(q);
}

/* SMP-8: tokens that are parts of characters. */
static void stream_of_tokens(void **state)
{
    (void)state;
    static const struct {
        int32_t id[3];
        int n;
        const char *want;
    } rows[] = {
        {{9284}, 1, "\uFFFD"},
        {{9284, 9284, 9284}, 3, "\uFFFD\uFFFD\uFFFD"},
        {{9284, 56823}, 2, "\U0001F9AC"},
        {{29333, 29333}, 2, " \uFFFD \uFFFD"},
    };
    bpe *q = open_folder("qwen3");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        bpe_stream st = {0};
        buf out;
        buf_init(&out, 1000);
        for (int k = 0; k < rows[i].n; k++) {
            const char *s;
            size_t n;
            bool special;
            bpe_token(q, rows[i].id[k], &s, &n, &special);
            if (rows[i].id[k] == 9284) assert_true(n == 2 && !memcmp(s, "\xF0\x9F", 2));
            bpe_stream_push(&st, s, n, &out);
            /* A genuine U+FFFD is a whole character: it is not held back. */
            if (rows[i].id[k] == 29333) assert_int_equal(out.len, 4 * (k + 1));
        }
        bpe_stream_end(&st, &out);
        assert_string_equal(out.data, rows[i].want);
        buf_free(&out);
    }
    bpe_close(q);
}

static void load_time(void **state)
{
    (void)state;
    clock_t begin = clock();
    bpe *t = open_folder("qwen3");
    double json = (double)(clock() - begin) / CLOCKS_PER_SEC;
    bpe_close(t);
    begin = clock();
    t = open_gguf(DEMO);
    double demo = (double)(clock() - begin) / CLOCKS_PER_SEC;
    bpe_close(t);
    print_message("qwen3 tokenizer.json %.3f s, demo GGUF %.3f s\n", json, demo);
    if (json > 7 || demo > 3) fail_msg("loading is ten times slower than it should be");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_qwen3),           cmocka_unit_test(json_qwen25),
        cmocka_unit_test(json_qwen2),           cmocka_unit_test(json_deepseek_v3),
        cmocka_unit_test(json_deepseek_r1),     cmocka_unit_test(json_llama3),
        cmocka_unit_test(json_llama32),         cmocka_unit_test(json_gpt2),
        cmocka_unit_test(gguf_smollm2),         cmocka_unit_test(gguf_qwen2),
        cmocka_unit_test(gguf_llama3),          cmocka_unit_test(gguf_gpt2),
        cmocka_unit_test(gguf_deepseek_llm),    cmocka_unit_test(gguf_deepseek_coder),
        cmocka_unit_test(ready_qwen2),          cmocka_unit_test(ready_llama),
        cmocka_unit_test(ready_gpt2),           cmocka_unit_test(ready_deepseek_llm),
        cmocka_unit_test(ready_deepseek_coder), cmocka_unit_test(first_line),
        cmocka_unit_test(four_pre_tokenizers),  cmocka_unit_test(ignore_merges),
        cmocka_unit_test(unicode_versions),     cmocka_unit_test(unicode_versions_nfc),
        cmocka_unit_test(two_merge_spellings),  cmocka_unit_test(long_runs),
        cmocka_unit_test(hostile_runs),         cmocka_unit_test(special_tokens),
        cmocka_unit_test(stream_of_tokens),     cmocka_unit_test(load_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
