/* test_bpe_gguf.c - pre-tokenizers that no ready vocabulary file has: a GGUF file is written from a
 * tokenizer.json, and must give the ids of the reference library for the tokenizer.json. */
#include "bpe_util.h"

#include "files_make.h"

static void put_bytes(make *m, const char *s, size_t n)
{
    put_u64(m, n);
    put_raw(m, s, n);
}

/* Token texts and types in order of id, from the vocabulary and the added tokens. */
static size_t collect(const json_t *doc, const char **text, uint32_t *type, size_t max)
{
    size_t n = 0, i;
    const char *key;
    json_t *v;
    json_object_foreach (json_object_get(json_object_get(doc, "model"), "vocab"), key, v) {
        size_t id = (size_t)json_integer_value(v);
        assert_true(id < max);
        text[id] = key;
        type[id] = 1;
        if (id >= n) n = id + 1;
    }
    json_array_foreach (json_object_get(doc, "added_tokens"), i, v) {
        size_t id = (size_t)json_integer_value(json_object_get(v, "id"));
        assert_true(id < max);
        text[id] = json_string_value(json_object_get(v, "content"));
        type[id] = json_is_true(json_object_get(v, "special")) ? 3 : 4;
        if (id >= n) n = id + 1;
    }
    return n;
}

static void write_gguf(make *m, const json_t *doc, const char *pre)
{
    static const char *text[200000];
    static uint32_t type[200000];
    memset(text, 0, sizeof text);
    size_t n = collect(doc, text, type, 200000), i;
    json_t *v;
    gg_head(m, 0, 5);
    gg_str(m, "tokenizer.ggml.model", "gpt2");
    gg_str(m, "tokenizer.ggml.pre", pre);
    put_str(m, "tokenizer.ggml.tokens");
    put_u32(m, GGUF_ARRAY);
    put_u32(m, GGUF_STRING);
    put_u64(m, n);
    for (i = 0; i < n; i++) put_str(m, text[i] ? text[i] : "[UNUSED]");
    put_str(m, "tokenizer.ggml.token_type");
    put_u32(m, GGUF_ARRAY);
    put_u32(m, GGUF_I32);
    put_u64(m, n);
    for (i = 0; i < n; i++) put_u32(m, text[i] ? type[i] : 5);
    const json_t *merges = json_object_get(json_object_get(doc, "model"), "merges");
    put_str(m, "tokenizer.ggml.merges");
    put_u32(m, GGUF_ARRAY);
    put_u32(m, GGUF_STRING);
    put_u64(m, json_array_size(merges));
    json_array_foreach (merges, i, v) {
        char both[1024];
        if (json_is_string(v))
            snprintf(both, sizeof both, "%s", json_string_value(v));
        else
            snprintf(both, sizeof both, "%s %s", json_string_value(json_array_get(v, 0)),
                     json_string_value(json_array_get(v, 1)));
        put_bytes(m, both, strlen(both));
    }
}

static bpe *convert(const char *name, const char *pre)
{
    char path[1024], folder[64];
    json_t *doc = NULL;
    make m;
    weights *w = NULL;
    bpe *t = NULL;
    snprintf(path, sizeof path, TEST_CACHE "/tokenizers/%s/tokenizer.json", name);
    need_file(path);
    if (json_read_file(&doc, path, 1 << 26) != CORUN_OK) fail_msg("%s", err_text());
    make_init(&m);
    write_gguf(&m, doc, pre);
    assert_int_equal(buf_status(&m.b), CORUN_OK);
    folder_make(folder);
    file_put(folder, "t.gguf", m.b.data, m.b.len);
    snprintf(path, sizeof path, "%s/t.gguf", folder);
    if (weights_open(&w, path) != CORUN_OK || bpe_open_gguf(&t, w) != CORUN_OK)
        fail_msg("%s", err_text());
    weights_close(w);
    folder_remove(folder);
    make_free(&m);
    json_decref(doc);
    return t;
}

/* ascii_only: texts that NFC cannot change. */
static void compare(bpe *t, const char *name, bool ascii_only)
{
    golden g = golden_open(name, NULL);
    json_t *texts = golden_texts();
    size_t n = 0;
    for (size_t i = 0; i < g.n; i++) {
        const char *s = json_string_value(json_array_get(texts, i));
        size_t len = json_string_length(json_array_get(texts, i));
        bool ascii = true;
        for (size_t k = 0; k < len; k++) ascii = ascii && !(s[k] & 0x80);
        if (ascii_only && !ascii) continue;
        check_ids_n(t, s, len, 0, g.line[i]);
        n++;
    }
    assert_true(n > 100);
    json_decref(texts);
    golden_free(&g);
    bpe_close(t);
}

static void deepseek_v3(void **state)
{
    (void)state;
    compare(convert("deepseek-v3", "deepseek-v3"), "deepseek-v3", false);
}

static void hunyuan_dense(void **state)
{
    (void)state;
    compare(convert("deepseek-v3", "hunyuan-dense"), "deepseek-v3", false);
}

static void deepseek_r1_qwen(void **state)
{
    (void)state;
    compare(convert("qwen3", "deepseek-r1-qwen"), "qwen3", false);
}

/* Qwen's pattern without NFC. */
static void hunyuan(void **state)
{
    (void)state;
    bpe *t = convert("qwen3", "hunyuan");
    check_ids(t, "e\u0301", "68 53839");
    compare(t, "qwen3", true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(deepseek_v3),
        cmocka_unit_test(hunyuan_dense),
        cmocka_unit_test(deepseek_r1_qwen),
        cmocka_unit_test(hunyuan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
