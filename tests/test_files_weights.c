/* test_files_weights.c - opening files, shards and split sets; reading rows on several threads; the
 * content digest; files that shrink; every allocation of an open made to fail. */
#include "files_make.h"

#include "base/pool.h"

static void tiny(char out[512], const char *name)
{
    snprintf(out, 512, "%s/files/%s", TEST_DATA, name);
}

static weights *open_ok(const char *path)
{
    weights *w;
    expect(weights_open(&w, path), CORUN_OK, NULL, path);
    return w;
}

static void open_bad(const char *folder, const char *name, corun_status want, const char *text)
{
    char path[512];
    weights *w;
    snprintf(path, sizeof path, "%s%s%s", folder, *name ? "/" : "", name);
    expect(weights_open(&w, path), want, text, path);
    assert_null(w);
}

static int64_t rows_of(const weights_tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i + 1 < t->n_dim; i++) n *= t->dim[i];
    return n;
}

static int64_t cols_of(const weights_tensor *t) { return t->n_dim ? t->dim[t->n_dim - 1] : 1; }

/* ---- third-party files
 * --------------------------------------------------------------------------- */

/* The three ways to write the same tensors give the same values. */
static void test_tiny(void **state)
{
    (void)state;
    char path[512];
    tiny(path, "tiny");
    weights *st = open_ok(path);
    assert_false(weights_is_gguf(st));
    assert_null(weights_meta(st, "general.architecture"));
    assert_int_equal(weights_meta_count(st), 0);
    digest whole = {0, 0};
    static const char *const files[] = {"tiny.gguf", "tiny-00001-of-00003.gguf",
                                        "tiny-00002-of-00003.gguf", "tiny-00003-of-00003.gguf"};
    for (int f = 0; f < 4; f++) {
        tiny(path, files[f]);
        weights *w = open_ok(path);
        assert_true(weights_is_gguf(w));
        assert_int_equal(weights_count(w), weights_count(st));
        int64_t x = 0;
        assert_true(weights_meta_int(w, "llama.embedding_length", &x));
        assert_int_equal(x, 256);
        for (size_t i = 0; i < weights_count(w); i++) {
            const weights_tensor *t = weights_at(w, i), *u = weights_find(st, t->name);
            assert_ptr_equal(weights_find(w, t->name), t);
            assert_non_null(u);
            int64_t n = rows_of(t), c = cols_of(t);
            assert_int_equal(n, rows_of(u));
            float *a = malloc((size_t)(n * c) * 4), *b = malloc((size_t)(n * c) * 4);
            assert_int_equal(weights_read_f32(w, t, 0, n, a), CORUN_OK);
            assert_int_equal(weights_read_f32(st, u, 0, n, b), CORUN_OK);
            assert_memory_equal(a, b, (size_t)(n * c) * 4);
            free(a);
            free(b);
        }
        digest d;
        assert_int_equal(weights_digest(w, &d), CORUN_OK);
        if (f == 0) whole = d;
        assert_memory_equal(&d, &whole, sizeof d); /* split or not: the same content */
        weights_close(w);
    }
    weights_close(st);
}

static void test_meta(void **state)
{
    (void)state;
    char path[512];
    tiny(path, "tiny.gguf");
    weights *w = open_ok(path);
    int64_t i;
    double d;
    const char *s;
    size_t len;
    bool b;
    assert_true(weights_meta_double(w, "llama.rope.freq_base", &d) && d == 10000.0);
    assert_false(weights_meta_int(w, "llama.rope.freq_base", &i));
    assert_false(weights_meta_bool(w, "llama.rope.freq_base", &b));
    assert_true(weights_meta_str(w, "tokenizer.ggml.model", &s, &len) && len == 4);
    assert_memory_equal(s, "gpt2", 4);
    assert_false(weights_meta_int(w, "tokenizer.ggml.tokens", &i));
    assert_false(weights_meta_str(w, "tokenizer.ggml.tokens", &s, &len));
    assert_false(weights_meta_int(w, "no.such.key", &i));
    const gguf_value *v = weights_meta(w, "tokenizer.ggml.token_type");
    assert_int_equal(v->item, GGUF_I32);
    assert_int_equal(v->count, 8);
    for (size_t k = 0; k < weights_meta_count(w); k++)
        assert_non_null(weights_meta(w, weights_meta_key(w, k)));
    weights_close(w);
    make m; /* every integer type, and the limits of the widest */
    char folder[64];
    folder_make(folder);
    make_init(&m);
    gg_head(&m, 0, 10);
    static const struct {
        const char *key;
        uint32_t type;
        uint64_t bits;
        size_t bytes;
        int64_t value;
    } c[] = {{"u8", GGUF_U8, 255, 1, 255},
             {"i8", GGUF_I8, 255, 1, -1},
             {"u16", GGUF_U16, 65535, 2, 65535},
             {"i16", GGUF_I16, 65535, 2, -1},
             {"u32", GGUF_U32, UINT32_MAX, 4, UINT32_MAX},
             {"i32", GGUF_I32, UINT32_MAX, 4, -1},
             {"u64", GGUF_U64, INT64_MAX, 8, INT64_MAX},
             {"i64", GGUF_I64, UINT64_MAX, 8, -1}};
    for (size_t k = 0; k < 8; k++) {
        put_str(&m, c[k].key);
        put_u32(&m, c[k].type);
        put_raw(&m, &c[k].bits, c[k].bytes);
    }
    put_str(&m, "large");
    put_u32(&m, GGUF_U64);
    put_u64(&m, UINT64_MAX);
    put_str(&m, "f64");
    put_u32(&m, GGUF_F64);
    double third = 1.0 / 3.0;
    put_raw(&m, &third, 8);
    file_put(folder, "m.gguf", m.b.data, m.b.len);
    snprintf(path, sizeof path, "%s/m.gguf", folder);
    w = open_ok(path);
    for (size_t k = 0; k < 8; k++) {
        assert_true(weights_meta_int(w, c[k].key, &i));
        assert_true(i == c[k].value);
    }
    assert_false(weights_meta_int(w, "large", &i));
    assert_true(weights_meta_double(w, "f64", &d) && d == third);
    assert_false(weights_meta_double(w, "u8", &d));
    weights_close(w);
    make_free(&m);
    folder_remove(folder);
}

/* ---- folders
 * ------------------------------------------------------------------------------------- */

#define ENTRY(name, off) "\"" name "\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":" off "}"

static void put_shard(const char *folder, const char *name, const char *header, size_t n_data)
{
    make m;
    make_init(&m);
    st_file(&m, header, n_data);
    file_put(folder, name, m.b.data, m.b.len);
    make_free(&m);
}

static void test_shards(void **state)
{
    (void)state;
    char folder[64], single[64];
    folder_make(folder);
    folder_make(single);
    make m; /* bytes count up in both: a, b, c hold 0..7, 8..15, 16..23 in one file */
    make_init(&m);
    st_file(&m, "{" ENTRY("a", "[0,8]") "," ENTRY("b", "[8,16]") "," ENTRY("c", "[16,24]") "}", 24);
    file_put(single, "model.safetensors", m.b.data, m.b.len);
    make_free(&m);
    make_init(&m);
    put_str(&m, "{" ENTRY("c", "[0,8]") "," ENTRY("a", "[8,16]") "}");
    for (int i = 0; i < 8; i++) put_u8(&m, (uint8_t)(16 + i));
    for (int i = 0; i < 8; i++) put_u8(&m, (uint8_t)i);
    file_put(folder, "model-00001-of-000002.safetensors", m.b.data, m.b.len);
    make_free(&m);
    make_init(&m); /* and a tensor that the index does not name */
    put_str(&m, "{" ENTRY("b", "[0,8]") "," ENTRY("x", "[8,16]") "}");
    for (int i = 0; i < 16; i++) put_u8(&m, (uint8_t)(8 + i));
    file_put(folder, "other.safetensors", m.b.data, m.b.len);
    make_free(&m);
    file_text(folder, "model.safetensors.index.json",
              "{\"metadata\":{\"total_size\":3},\"weight_map\":{"
              "\"b\":\"other.safetensors\",\"a\":\"model-00001-of-000002.safetensors\","
              "\"c\":\"model-00001-of-000002.safetensors\"}}");
    weights *w = open_ok(folder), *s = open_ok(single);
    digest d, e;
    assert_int_equal(weights_count(w), 3);
    assert_string_equal(weights_at(w, 0)->name, "a");
    assert_string_equal(weights_at(w, 2)->name, "c");
    assert_null(weights_find(w, "x"));
    assert_int_equal(weights_digest(w, &d), CORUN_OK);
    assert_int_equal(weights_digest(s, &e), CORUN_OK);
    assert_memory_equal(&d, &e, sizeof d);
    weights_close(w);
    weights_close(s);
    folder_remove(folder);
    folder_remove(single);
}

static void test_index(void **state)
{
    (void)state;
    char folder[64];
    folder_make(folder);
    put_shard(folder, "a.safetensors", "{" ENTRY("a", "[0,8]") "}", 8);
    static const struct {
        const char *index;
        corun_status st;
        const char *text;
    } c[] = {
        {"{\"weight_map\":{\"a\":\"a.safetensors\"}}", CORUN_OK, NULL},
        {"{\"weight_map\":{\"a\":\"a.safetensors\",\"b\":\"a.safetensors\"}}", CORUN_EFORMAT,
         "tensor \"b\" is not there"},
        {"{\"weight_map\":{\"a\":\"b.safetensors\"}}", CORUN_EFORMAT, "b.safetensors"},
        {"{\"weight_map\":{\"a\":\"../a.safetensors\"}}", CORUN_EFORMAT, "no plain file name"},
        {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", CORUN_EFORMAT, "no plain file name"},
        {"{\"weight_map\":{\"a\":\"x\\\\a.safetensors\"}}", CORUN_EFORMAT, "no plain file name"},
        {"{\"weight_map\":{\"a\":\"..\"}}", CORUN_EFORMAT, "no plain file name"},
        {"{\"weight_map\":{\"a\":\".\"}}", CORUN_EFORMAT, "no plain file name"},
        {"{\"weight_map\":{\"a\":\"\"}}", CORUN_EFORMAT, "no plain file name"},
        {"{\"weight_map\":{\"a\":\"a.safetensors\\u0000\"}}", CORUN_EFORMAT, "no plain file name"},
        {"{\"weight_map\":{\"a\":1}}", CORUN_EFORMAT, "\"a\" is no string"},
        {"{\"weight_map\":{}}", CORUN_EFORMAT, "weight_map is empty"},
        {"{\"weight_map\":[]}", CORUN_EFORMAT, "weight_map"},
        {"{}", CORUN_EFORMAT, "weight_map is missing"},
        {"[]", CORUN_EFORMAT, "weight_map is missing"},
        {"", CORUN_EFORMAT, "JSON"},
        {"{\"weight_map\":{\"a\":\"a.safetensors\",\"a\":\"a.safetensors\"}}", CORUN_EFORMAT,
         "duplicate"},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        weights *w;
        file_text(folder, "model.safetensors.index.json", c[i].index);
        expect(weights_open(&w, folder), c[i].st, c[i].text, c[i].index);
        weights_close(w);
    }
    /* both an index and a single file that it does not name */
    file_text(folder, "model.safetensors.index.json", c[0].index);
    put_shard(folder, "model.safetensors", "{" ENTRY("a", "[0,8]") "}", 8);
    open_bad(folder, "", CORUN_EFORMAT, "remove one of them");
    file_text(folder, "model.safetensors.index.json",
              "{\"weight_map\":{\"a\":\"model.safetensors\"}}");
    weights_close(open_ok(folder));
    folder_remove(folder);
}

static void test_paths(void **state)
{
    (void)state;
    char folder[64], path[128];
    folder_make(folder);
    open_bad(folder, "", CORUN_EFORMAT, "neither model.safetensors");
    open_bad(folder, "nothing", CORUN_EFORMAT, "No such file");
    file_text(folder, "empty.gguf", "");
    open_bad(folder, "empty.gguf", CORUN_EFORMAT, "offset 0");
    file_text(folder, "text.gguf", "this is a text, and it is no GGUF file at all");
    open_bad(folder, "text.gguf", CORUN_EFORMAT, "no GGUF file");
    file_text(folder, "model.safetensors", "");
    open_bad(folder, "", CORUN_EFORMAT, "too few");
    file_text(folder, "model.safetensors", "\xff\xff\xff\xff\xff\xff\xff\xff{}");
    open_bad(folder, "", CORUN_EFORMAT, "above 100000000");
    file_text(folder, "model.safetensors", "\x9{}345678");
    open_bad(folder, "", CORUN_EFORMAT, "model.safetensors");
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0); /* must not hang */
    open_bad(folder, "", CORUN_EFORMAT, "not a regular file");
    open_bad(folder, "model.safetensors", CORUN_EFORMAT, "not a regular file");
    open_bad("/dev/null", "", CORUN_EFORMAT, "not a regular file");
    unlink(path);
    mkdir(path, 0700);
    open_bad(folder, "", CORUN_EFORMAT, "not a regular file");
    rmdir(path);
    weights_close(NULL);
    folder_remove(folder);
}

/* ---- split GGUF
 * ----------------------------------------------------------------------------------- */

/* One part of a set: a tensor named name, and the three keys where they are not negative. */
static void put_part(const char *folder, const char *file, const char *name, int no, int count,
                     int total)
{
    make m;
    make_init(&m);
    gg_head(&m, 1, (uint64_t)(no >= 0) + (count >= 0) + (total >= 0));
    if (no >= 0) gg_u32(&m, "split.no", (uint32_t)no);
    if (count >= 0) gg_u32(&m, "split.count", (uint32_t)count);
    if (total >= 0) gg_u32(&m, "split.tensors.count", (uint32_t)total);
    gg_tensor(&m, name, 0, 0, 1, 4, 0);
    gg_pad(&m, 32);
    put_zeros(&m, 16);
    file_put(folder, file, m.b.data, m.b.len);
    make_free(&m);
}

static void test_split(void **state)
{
    (void)state;
    char folder[64], path[128];
    static const char one[] = "m-00001-of-00002.gguf", two[] = "m-00002-of-00002.gguf";
    folder_make(folder);
    int fds = count_fds();
    put_part(folder, one, "a", 0, 2, 2);
    open_bad(folder, one, CORUN_EFORMAT, two);
    put_part(folder, two, "b", 1, 2, -1);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, i ? two : one);
        weights *w = open_ok(path);
        assert_int_equal(weights_count(w), 2);
        weights_close(w);
    }
    put_part(folder, two, "a", 1, 2, 2);
    open_bad(folder, one, CORUN_EFORMAT, "tensor \"a\" stands in");
    put_part(folder, two, "b", 0, 2, 2);
    open_bad(folder, one, CORUN_EFORMAT, "\"split.no\" is 0, but 1 by");
    open_bad(folder, two, CORUN_EFORMAT, "its name does not end in -00001-of-00002.gguf");
    put_part(folder, two, "b", 2, 2, 2);
    open_bad(folder, two, CORUN_EFORMAT, "\"split.no\" is 2, not 0 to 1");
    put_part(folder, two, "b", 1, 3, 2);
    open_bad(folder, one, CORUN_EFORMAT, "\"split.count\" is 3, but 2");
    put_part(folder, two, "b", -1, 2, 2);
    open_bad(folder, one, CORUN_EFORMAT, "\"split.no\" of a split file is missing");
    put_part(folder, two, "b", 1, -1, 2);
    open_bad(folder, one, CORUN_EFORMAT, "\"split.count\" of a split file is missing");
    put_part(folder, two, "b", 1, 2, 2);
    put_part(folder, one, "a", 0, 2, 3);
    open_bad(folder, one, CORUN_EFORMAT, "\"split.tensors.count\" is 3, the parts hold 2");
    put_part(folder, one, "a", 0, 2, -1);
    open_bad(folder, one, CORUN_EFORMAT, "split.tensors.count");
    put_part(folder, one, "a", 0, 65535, 2);
    open_bad(folder, one, CORUN_EFORMAT, "\"split.count\" is 65535");
    put_part(folder, "whole.gguf", "a", 0, 1, 1);
    snprintf(path, sizeof path, "%s/whole.gguf", folder);
    weights_close(open_ok(path)); /* a set of one needs no such name */
    put_part(folder, "whole.gguf", "a", 0, 2, 1);
    open_bad(folder, "whole.gguf", CORUN_EFORMAT, "its name does not end in");
    put_part(folder, "x", "a", 0, 2, 1);
    open_bad(folder, "x", CORUN_EFORMAT, "its name does not end in");
    assert_int_equal(count_fds(), fds);
    folder_remove(folder);
}

/* ---- rows, digest, threads
 * --------------------------------------------------------------------------- */

/* A file with long and short tensors: every way to read them gives one digest. */
static void put_mixed(const char *folder)
{
    make m;
    make_init(&m);
    put_str(&m, "{\"big\":{\"dtype\":\"F32\",\"shape\":[3,70,257],\"data_offsets\":[0,215880]},"
                "\"bytes\":{\"dtype\":\"U8\",\"shape\":[100],\"data_offsets\":[215880,215980]},"
                "\"none\":{\"dtype\":\"F32\",\"shape\":[5,0],\"data_offsets\":[215980,215980]},"
                "\"one\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[215980,215984]},"
                "\"wide\":{\"dtype\":\"BF16\",\"shape\":[40,9001],"
                "\"data_offsets\":[215984,936064]}}");
    uint64_t seed = 5;
    for (int i = 0; i < 936064; i++) {
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        put_u8(&m, (uint8_t)(seed >> 57)); /* below 0x80: no NaN */
    }
    file_put(folder, "model.safetensors", m.b.data, m.b.len);
    make_free(&m);
}

static void test_rows(void **state)
{
    (void)state;
    char folder[64];
    folder_make(folder);
    put_mixed(folder);
    weights *w = open_ok(folder);
    const weights_tensor *big = weights_find(w, "big"), *one = weights_find(w, "one"), *t;
    float *all = malloc(210 * 257 * 4), *part = malloc(210 * 257 * 4);
    assert_int_equal(weights_read_f32(w, big, 0, 210, all), CORUN_OK);
    for (int64_t row = 0; row < 210; row += 7)
        for (int64_t n = 0; n <= 210 - row; n += 13) {
            assert_int_equal(weights_read_f32(w, big, row, n, part), CORUN_OK);
            assert_memory_equal(part, all + row * 257, (size_t)n * 257 * 4);
        }
    float x;
    assert_int_equal(weights_read_f32(w, one, 0, 1, &x), CORUN_OK);
    static const int64_t bad[][2] = {{-1, 1},
                                     {0, -1},
                                     {0, 211},
                                     {210, 1},
                                     {211, 0},
                                     {0, INT64_MAX},
                                     {INT64_MAX, 1},
                                     {1, INT64_MAX},
                                     {5, 206},
                                     {INT64_MIN, 0},
                                     {INT64_MAX, INT64_MAX}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        expect(weights_read_f32(w, big, bad[i][0], bad[i][1], part), CORUN_EINVAL,
               "\"big\" has 210", "rows");
    assert_int_equal(weights_read_f32(w, big, 210, 0, part), CORUN_OK);
    t = weights_find(w, "none");
    assert_int_equal(weights_read_f32(w, t, 0, 0, part), CORUN_OK);
    expect(weights_read_f32(w, t, 0, 1, part), CORUN_EINVAL, "\"none\" has 0 rows", "no rows");
    t = weights_find(w, "bytes");
    expect(weights_read_f32(w, t, 0, 1, part), CORUN_EUNSUPPORTED, "\"bytes\" has type U8", "U8");
    weights_tensor copy = *big;
    expect(weights_read_f32(w, &copy, 0, 1, part), CORUN_EINVAL, "another file", "foreign");
    free(all);
    free(part);
    weights_close(w);
    folder_remove(folder);
}

/* Pieces larger than the bytes that are read at once, of blocks whose size does not divide them. */
static void test_long_blocks(void **state)
{
    (void)state;
    enum { ROWS = 35, COLS = 256 * 45, BYTES = ROWS * 45 * 210 };
    char folder[64], path[128];
    make m;
    make_init(&m);
    gg_head(&m, 1, 0);
    gg_tensor(&m, "t", 14, 0, 2, COLS, ROWS);
    gg_pad(&m, 32);
    size_t start = m.b.len;
    uint64_t seed = 3;
    for (int i = 0; i < BYTES; i++) {
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        put_u8(&m, i % 210 == 209 ? 0x2c : (uint8_t)(seed >> 56)); /* d below 1, no NaN */
    }
    folder_make(folder);
    file_put(folder, "m.gguf", m.b.data, m.b.len);
    snprintf(path, sizeof path, "%s/m.gguf", folder);
    weights *w = open_ok(path);
    const weights_tensor *t = weights_at(w, 0);
    float *want = malloc((size_t)ROWS * COLS * 4), *got = malloc((size_t)ROWS * COLS * 4);
    dequant_row(WEIGHTS_Q6_K, m.b.data + start, (int64_t)ROWS * COLS, want);
    digest before, after;
    assert_int_equal(weights_digest(w, &before), CORUN_OK);
    assert_int_equal(weights_read_f32(w, t, 0, ROWS, got), CORUN_OK);
    assert_memory_equal(got, want, (size_t)ROWS * COLS * 4);
    assert_int_equal(weights_read_f32(w, t, 7, 9, got), CORUN_OK);
    assert_memory_equal(got, want + 7 * COLS, (size_t)9 * COLS * 4);
    assert_int_equal(weights_digest(w, &after), CORUN_OK);
    assert_memory_equal(&before, &after, sizeof before);
    free(want);
    free(got);
    weights_close(w);
    make_free(&m);
    folder_remove(folder);
}

typedef struct job {
    weights *w;
    int64_t step;
    int failed;
} job;

/* Each worker takes its slice of each tensor, in steps of its own. */
static void read_slices(void *arg, int worker, int n_worker)
{
    job *j = arg;
    float *out = malloc((size_t)j->step * 9001 * 4);
    for (size_t i = 0; i < weights_count(j->w); i++) {
        const weights_tensor *t = weights_at(j->w, i);
        int64_t begin, end;
        if (!dequant_block_bytes(t->dtype) || t->bytes == 0) continue;
        pool_slice(rows_of(t), 1, worker, n_worker, &begin, &end);
        for (int64_t r = begin; r < end; r += j->step) {
            int64_t n = end - r < j->step ? end - r : j->step;
            if (weights_read_f32(j->w, t, r, n, out) != CORUN_OK)
                __atomic_store_n(&j->failed, 1, 0);
        }
        /* and the same pieces from all workers at once */
        for (int64_t r = 0; r < rows_of(t); r += 32) {
            int64_t n = rows_of(t) - r < 32 ? rows_of(t) - r : 32;
            uint16_t *h = malloc((size_t)(n * cols_of(t)) * 2);
            if (weights_read_bf16(j->w, t, r, n, h) != CORUN_OK) __atomic_store_n(&j->failed, 1, 0);
            free(h);
        }
    }
    free(out);
}

static void test_digest(void **state)
{
    (void)state;
    char folder[64];
    folder_make(folder);
    put_mixed(folder);
    digest want, got;
    weights *w = open_ok(folder);
    assert_int_equal(weights_digest(w, &want), CORUN_OK);
    assert_int_equal(weights_digest(w, &got), CORUN_OK);
    assert_memory_equal(&got, &want, sizeof got);
    weights_close(w);
    static const int64_t steps[] = {1, 7, 32, 33, 64, 256};
    for (int n = 1; n <= 4; n += 3)
        for (size_t s = 0; s < sizeof steps / sizeof *steps; s++) {
            pool *p;
            assert_int_equal(pool_open(&p, n), CORUN_OK);
            job j = {open_ok(folder), steps[s], 0};
            pool_run(p, read_slices, &j);
            assert_int_equal(j.failed, 0);
            assert_int_equal(weights_digest(j.w, &got), CORUN_OK);
            assert_memory_equal(&got, &want, sizeof got);
            weights_close(j.w);
            pool_close(p);
        }
    folder_remove(folder);
}

/* Any byte of data, the name, type and shape of a tensor move the digest; the header's layout does
 * not. */
static void test_digest_moves(void **state)
{
    (void)state;
    char folder[64];
    folder_make(folder);
    static const char *const header[] = {
        "{" ENTRY("a", "[0,8]") "," ENTRY("b", "[8,16]") "}",
        "{\"__metadata__\":{\"x\":\"y\"}, " ENTRY("b", "[8,16]") "," ENTRY("a", "[0,8]") "}  ",
        "{" ENTRY("a", "[0,8]") "," ENTRY("c", "[8,16]") "}",
        "{" ENTRY("b", "[0,8]") "," ENTRY("a", "[8,16]") "}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[0,8]}," ENTRY("b",
                                                                                   "[8,16]") "}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]}," ENTRY("b",
                                                                                   "[8,16]") "}",
        "{\"a\":{\"dtype\":\"I32\",\"shape\":[2],\"data_offsets\":[0,8]}," ENTRY("b",
                                                                                 "[8,16]") "}"};
    digest d[7 + 16];
    for (int i = 0; i < 7 + 16; i++) {
        make m;
        make_init(&m);
        st_file(&m, header[i < 7 ? i : 0], 16);
        if (i >= 7) m.b.data[m.b.len - 16 + (size_t)i - 7] ^= 1;
        file_put(folder, "model.safetensors", m.b.data, m.b.len);
        make_free(&m);
        weights *w = open_ok(folder);
        assert_int_equal(weights_digest(w, &d[i]), CORUN_OK);
        weights_close(w);
        for (int k = 0; k < i; k++)
            assert_true((memcmp(&d[i], &d[k], sizeof *d) == 0) == (i == 1 && k == 0));
    }
    folder_remove(folder);
}

/* A file that shrinks after it was opened is an error that names file and tensor. */
static void test_shrink(void **state)
{
    (void)state;
    char folder[64], path[128];
    folder_make(folder);
    put_mixed(folder);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    weights *w = open_ok(folder);
    const weights_tensor *t = weights_find(w, "wide");
    uint16_t *out = malloc(40 * 9001 * 2);
    assert_int_equal(weights_read_bf16(w, t, 0, 40, out), CORUN_OK);
    assert_int_equal(truncate(path, 900000), 0);
    expect(weights_read_bf16(w, t, 0, 40, out), CORUN_EIO, "tensor \"wide\"", "shrunk");
    expect(weights_read_bf16(w, t, 0, 40, out), CORUN_EIO, "has shrunk", "shrunk");
    assert_int_equal(weights_read_bf16(w, t, 0, 16, out), CORUN_OK);
    assert_int_equal(truncate(path, 100), 0);
    expect(weights_read_bf16(w, weights_find(w, "big"), 0, 32, out), CORUN_EIO, "tensor \"big\"",
           "shrunk");
    digest d, want;
    expect(weights_digest(w, &d), CORUN_EIO, "tensor \"big\"", "shrunk");
    put_mixed(folder); /* the same bytes again: a read that failed has left no digest behind */
    weights *again = open_ok(folder);
    assert_int_equal(weights_digest(w, &d), CORUN_OK);
    assert_int_equal(weights_digest(again, &want), CORUN_OK);
    assert_memory_equal(&d, &want, sizeof d);
    weights_close(again);
    free(out);
    weights_close(w);
    folder_remove(folder);
}

/* ---- names
 * ------------------------------------------------------------------------------------------- */

static void test_need(void **state)
{
    (void)state;
    char path[512];
    tiny(path, "tiny.gguf");
    weights *w = open_ok(path);
    const weights_tensor *t;
    int64_t dim[8] = {8, 256}, flipped[2] = {256, 8}, three[3] = {1, 8, 256};
    assert_int_equal(weights_need(w, "token_embd.weight", 2, dim, &t), CORUN_OK);
    assert_string_equal(t->name, "token_embd.weight");
    expect(weights_need(w, "token_embd.weight", 2, flipped, &t), CORUN_EFORMAT,
           "tensor \"token_embd.weight\" has shape [8, 256], the model needs [256, 8]", "shape");
    assert_null(t);
    expect(weights_need(w, "token_embd.weight", 3, three, &t), CORUN_EFORMAT, "[1, 8, 256]",
           "dims");
    expect(weights_need(w, "token_embd.weight", 1, dim, &t), CORUN_EFORMAT, "needs [8]", "dims");
    expect(weights_need(w, "blk.3.ffn_up.weight", 2, dim, &t), CORUN_EFORMAT,
           "tensor \"blk.3.ffn_up.weight\" [8, 256] is missing", "missing");
    expect(weights_need(w, "other", 2, dim, &t), CORUN_EFORMAT, "tensor \"other\" [8, 256]",
           "missing");
    expect(weights_need(w, "other", 9, dim, &t), CORUN_EINVAL, "9 dimensions", "dims");
    expect(weights_need(w, "other", -1, dim, &t), CORUN_EINVAL, "dimensions", "dims");
    weights_close(w);
}

/* ---- memory and the real model
 * ------------------------------------------------------------------------ */

/* Fails each allocation in turn; nothing stays open and nothing leaks (seen under ASan). */
static void walk(const char *path)
{
    int fds = count_fds();
    corun_status st = CORUN_ENOMEM;
    for (uint64_t k = 1; st != CORUN_OK; k++) {
        weights *w;
        digest d;
        mem_fail_at(k);
        st = weights_open(&w, path);
        if (st == CORUN_OK) {
            st = weights_digest(w, &d);
            weights_close(w);
        } else {
            assert_null(w);
        }
        mem_fail_at(0);
        if (st != CORUN_OK) expect(st, CORUN_ENOMEM, "memory", path);
        assert_int_equal(count_fds(), fds);
        assert_true(k < 1000);
    }
}

static void test_memory(void **state)
{
    (void)state;
    char path[512], folder[64];
    static const char *const c[] = {"tiny", "tiny.gguf", "tiny-00002-of-00003.gguf"};
    for (int i = 0; i < 3; i++) {
        tiny(path, c[i]);
        walk(path);
    }
    folder_make(folder);
    put_shard(folder, "a.safetensors", "{" ENTRY("a", "[0,8]") "}", 8);
    put_shard(folder, "b.safetensors", "{" ENTRY("b", "[0,8]") "}", 8);
    file_text(folder, "model.safetensors.index.json",
              "{\"weight_map\":{\"a\":\"a.safetensors\",\"b\":\"b.safetensors\"}}");
    walk(folder);
    put_mixed(folder); /* now a single file with long pieces */
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", folder);
    unlink(path);
    walk(folder);
    folder_remove(folder);
}

static void test_demo_model(void **state)
{
    (void)state;
    static const char path[] = TEST_CACHE "/models/SmolLM2-135M-Instruct.Q4_1.gguf";
    if (access(path, R_OK) != 0) {
        if (getenv("CI")) fail_msg("%s is missing", path);
        skip();
    }
    weights *w = open_ok(path);
    config c;
    expect(config_from_gguf(&c, w), CORUN_OK, NULL, path);
    assert_string_equal(c.family_name, "llama");
    assert_int_equal(c.n_layer, 30);
    assert_int_equal(c.n_embd, 576);
    assert_int_equal(c.n_head, 9);
    assert_int_equal(c.n_kv, 3);
    assert_int_equal(c.d_head, 64);
    assert_int_equal(c.n_ff, 1536);
    assert_int_equal(c.n_vocab, 49152);
    assert_int_equal(c.n_ctx, 8192);
    assert_true(c.eps == 1e-5f && c.theta == 100000.0 && c.tied && c.gguf_permuted);
    assert_false(c.qkv_bias || c.o_bias || c.mlp_bias || c.qk_norm);
    assert_int_equal(c.rope, CONFIG_ROPE_DEFAULT);
    assert_int_equal(c.bos, 1);
    assert_int_equal(c.n_eos, 1);
    assert_int_equal(c.eos[0], 2);
    assert_int_equal(weights_count(w), 272);
    int64_t n_param = 0;
    uint16_t *out = malloc(32 * 1536 * 2);
    for (size_t i = 0; i < weights_count(w); i++) {
        const weights_tensor *t = weights_at(w, i);
        n_param += rows_of(t) * cols_of(t);
        for (int64_t r = 0; r < rows_of(t); r += 32) {
            int64_t n = rows_of(t) - r < 32 ? rows_of(t) - r : 32;
            assert_int_equal(weights_read_bf16(w, t, r, n, out), CORUN_OK);
        }
    }
    assert_int_equal(n_param, 134515008);
    digest d;
    char hex[33];
    assert_int_equal(weights_digest(w, &d), CORUN_OK);
    digest_hex(d, hex);
    assert_string_equal(hex, "d949b059912b013315ec6d70e80c9f6d");
    free(out);
    weights_close(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiny),   cmocka_unit_test(test_meta),
        cmocka_unit_test(test_shards), cmocka_unit_test(test_index),
        cmocka_unit_test(test_paths),  cmocka_unit_test(test_split),
        cmocka_unit_test(test_rows),   cmocka_unit_test(test_long_blocks),
        cmocka_unit_test(test_digest), cmocka_unit_test(test_digest_moves),
        cmocka_unit_test(test_shrink), cmocka_unit_test(test_need),
        cmocka_unit_test(test_memory), cmocka_unit_test(test_demo_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
