/* test_files_gguf.c - GGUF headers: hostile counts and lengths, regions that lie, and the values of
 * a good one. */
#include "files_make.h"

/* Parses from memory of exactly len bytes, as a prefix of a file of file_bytes. */
static corun_status parse(const make *m, size_t len, uint64_t file_bytes, gguf_header **out,
                          uint64_t *need, char **keep)
{
    *keep = malloc(len ? len : 1);
    if (len) memcpy(*keep, m->b.data, len);
    return gguf_parse(out, *keep, len, file_bytes, "file", need);
}

/* The whole file gives the status; each prefix of it either gives an error or asks for more bytes
 * than it has and not more than the file has. */
static void check(make *m, corun_status want, const char *text, const char *label)
{
    gguf_header *h;
    uint64_t need;
    char *keep;
    size_t len = m->b.len;
    expect(parse(m, len, len, &h, &need, &keep), want, text, label);
    assert_int_equal(need, 0);
    assert_true((want == CORUN_OK) == (h != NULL));
    gguf_free(h);
    free(keep);
    for (size_t n = 0; n < len; n += n < 400 ? 1 : 97) {
        corun_status st = parse(m, n, len, &h, &need, &keep);
        if (st == CORUN_OK && !h) assert_true(need > n && need <= len);
        if (st == CORUN_OK && h) assert_int_equal(want, CORUN_OK);
        gguf_free(h);
        free(keep);
        if (want == CORUN_OK) { /* cut short: an error, or no tensor was in the part cut off */
            st = parse(m, n, n, &h, &need, &keep);
            assert_int_equal(need, 0);
            gguf_free(h);
            free(keep);
        }
    }
    make_free(m);
}

/* ---- counts and lengths beyond the file ---------------------------------------------------------
 */

static void test_header(void **state)
{
    (void)state;
    static const struct {
        const char *magic;
        uint32_t version;
        uint64_t n_tensor, n_kv;
        corun_status st;
        const char *text;
    } c[] = {
        {"GGUF", 3, 0, 0, CORUN_OK, NULL},
        {"GGUF", 2, 0, 0, CORUN_OK, NULL},
        {"GGUF", 3, (uint64_t)1 << 60, 0, CORUN_EFORMAT, "offset 8: 1152921504606846976 tensors"},
        {"GGUF", 3, 0, (uint64_t)1 << 60, CORUN_EFORMAT, "offset 16: 1152921504606846976 keys"},
        {"GGUF", 3, UINT64_MAX, 0, CORUN_EFORMAT, "offset 8: 18446744073709551615 tensors"},
        {"GGUF", 3, 0, UINT64_MAX, CORUN_EFORMAT, "offset 16: 18446744073709551615 keys"},
        {"GGUF", 3, 1, 0, CORUN_EFORMAT, "offset 8"},
        {"GGUF", 3, 0, 1, CORUN_EFORMAT, "offset 16"},
        {"GGUF", 0, 0, 0, CORUN_EUNSUPPORTED, "offset 4: GGUF version 0"},
        {"GGUF", 1, 0, 0, CORUN_EUNSUPPORTED, "offset 4: GGUF version 1"},
        {"GGUF", 4, 0, 0, CORUN_EUNSUPPORTED, "offset 4: GGUF version 4"},
        {"GGUF", 0x03000000, 0, 0, CORUN_EUNSUPPORTED, "big-endian"},
        {"GGUF", 0x02000000, 0, 0, CORUN_EUNSUPPORTED, "big-endian"},
        {"FUGG", 3, 0, 0, CORUN_EFORMAT, "offset 0: no GGUF file"},
        {"GGML", 3, 0, 0, CORUN_EFORMAT, "offset 0"},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        make m;
        make_init(&m);
        put_raw(&m, c[i].magic, 4);
        put_u32(&m, c[i].version);
        put_u64(&m, c[i].n_tensor);
        put_u64(&m, c[i].n_kv);
        check(&m, c[i].st, c[i].text, "header");
    }
    for (size_t n = 0; n < 24; n++) {
        make m;
        make_init(&m);
        gg_head(&m, 0, 0);
        m.b.len = n;
        check(&m, CORUN_EFORMAT, "offset", "short header");
    }
}

static void start_kv(make *m)
{
    make_init(m);
    gg_head(m, 0, 1);
}

static void test_lengths(void **state)
{
    (void)state;
    make m;
    static const uint64_t far[] = {UINT64_MAX,        UINT64_MAX - 31, (uint64_t)1 << 63,
                                   (uint64_t)1 << 62, 1 << 30,         200};
    for (size_t i = 0; i < sizeof far / sizeof *far; i++) {
        start_kv(&m); /* the key */
        put_u64(&m, far[i]);
        put_zeros(&m, 100);
        check(&m, CORUN_EFORMAT, ": key ", "key length");
        start_kv(&m); /* a string value in a file of 160 bytes */
        put_str(&m, "general.name");
        put_u32(&m, GGUF_STRING);
        put_u64(&m, far[i]);
        put_zeros(&m, 160 - m.b.len);
        check(&m, CORUN_EFORMAT, "offset 56: string value takes", "string length");
        for (uint32_t item = 0; item <= GGUF_F64; item++) { /* arrays of every type */
            if (item == GGUF_ARRAY) continue;
            start_kv(&m);
            put_str(&m, "a");
            put_u32(&m, GGUF_ARRAY);
            put_u32(&m, item);
            put_u64(&m, far[i]);
            put_zeros(&m, 100);
            check(&m, CORUN_EFORMAT, "an array of", "array length");
        }
        start_kv(&m); /* a string inside an array */
        put_str(&m, "a");
        put_u32(&m, GGUF_ARRAY);
        put_u32(&m, GGUF_STRING);
        put_u64(&m, 2);
        put_str(&m, "fine");
        put_u64(&m, far[i]);
        put_zeros(&m, 100);
        check(&m, CORUN_EFORMAT, "string of an array takes", "string in an array");
    }
}

static void test_values(void **state)
{
    (void)state;
    make m;
    static const uint32_t types[] = {13, 99, UINT32_MAX};
    for (size_t i = 0; i < 3; i++) {
        start_kv(&m);
        put_str(&m, "a");
        put_u32(&m, types[i]);
        put_zeros(&m, 64);
        check(&m, CORUN_EFORMAT, "offset 33: unknown type", "value type");
        start_kv(&m);
        put_str(&m, "a");
        put_u32(&m, GGUF_ARRAY);
        put_u32(&m, types[i]);
        put_u64(&m, 1);
        put_zeros(&m, 64);
        check(&m, CORUN_EFORMAT, "unknown type", "item type");
    }
    start_kv(&m); /* arrays of arrays, 10,000 deep */
    put_str(&m, "a");
    put_u32(&m, GGUF_ARRAY);
    for (int i = 0; i < 10000; i++) {
        put_u32(&m, GGUF_ARRAY);
        put_u64(&m, 1);
    }
    check(&m, CORUN_EUNSUPPORTED, "array of arrays", "deep arrays");
    for (int v = 2; v < 256; v += 253 / 2) {
        start_kv(&m);
        gg_bool(&m, "b", (uint8_t)v);
        check(&m, CORUN_EFORMAT, "bool", "bool");
        start_kv(&m);
        put_str(&m, "a");
        put_u32(&m, GGUF_ARRAY);
        put_u32(&m, GGUF_BOOL);
        put_u64(&m, 3);
        put_u8(&m, 1);
        put_u8(&m, 0);
        put_u8(&m, (uint8_t)v);
        check(&m, CORUN_EFORMAT, "bool", "bools");
    }
    start_kv(&m);
    put_str(&m, "");
    put_u32(&m, GGUF_U8);
    put_u8(&m, 1);
    put_u8(&m, 1);
    check(&m, CORUN_EFORMAT, "key is empty", "empty key");
    start_kv(&m);
    put_u64(&m, 3);
    put_raw(&m, "a\0b", 3);
    put_u32(&m, GGUF_U8);
    put_u8(&m, 1);
    check(&m, CORUN_EFORMAT, "key holds a NUL", "NUL in a key");
    make_init(&m);
    gg_head(&m, 0, 3);
    gg_u32(&m, "a", 1);
    gg_u32(&m, "b", 1);
    gg_u32(&m, "a", 1);
    check(&m, CORUN_EFORMAT, "key \"a\" stands twice", "duplicate key");
    char *key = malloc(65537);
    for (int more = 0; more < 2; more++) {
        memset(key, 'k', 65536);
        key[65535 + more] = 0;
        make_init(&m);
        gg_head(&m, 0, 1);
        gg_u32(&m, key, 1);
        check(&m, more ? CORUN_EFORMAT : CORUN_OK, more ? "at most 65535" : NULL, "key size");
    }
    free(key);
}

static void test_alignment(void **state)
{
    (void)state;
    make m;
    static const struct {
        uint32_t align;
        corun_status st;
        const char *text;
    } c[] = {{0, CORUN_EFORMAT, "general.alignment 0"},
             {3, CORUN_EFORMAT, "general.alignment 3"},
             {33, CORUN_EFORMAT, "no power of two"},
             {UINT32_MAX, CORUN_EFORMAT, "no power of two"},
             {1, CORUN_OK, NULL},
             {8, CORUN_OK, NULL},
             {4096, CORUN_OK, NULL}};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        make_init(&m);
        gg_head(&m, 2, 1);
        gg_u32(&m, "general.alignment", c[i].align);
        gg_tensor(&m, "a", 0, 0, 1, 2, 0);
        gg_tensor(&m, "b", 0, c[i].st == CORUN_OK && c[i].align > 8 ? c[i].align : 8, 1, 2, 0);
        if (c[i].st == CORUN_OK) gg_pad(&m, c[i].align);
        put_zeros(&m, c[i].st == CORUN_OK && c[i].align > 8 ? c[i].align + 8 : 16);
        check(&m, c[i].st, c[i].text, "alignment");
    }
    make_init(&m);
    gg_head(&m, 0, 1);
    gg_str(&m, "general.alignment", "32");
    check(&m, CORUN_EFORMAT, "general.alignment is no u32", "alignment type");
    make_init(&m); /* 2^31: the data would begin behind any file */
    gg_head(&m, 1, 1);
    gg_u32(&m, "general.alignment", 0x80000000u);
    gg_tensor(&m, "a", 0, 0, 1, 2, 0);
    put_zeros(&m, 64);
    check(&m, CORUN_EFORMAT, "do not fit", "huge alignment");
}

/* ---- regions ------------------------------------------------------------------------------------
 */

/* Two F16 tensors of 64 x 64 at these offsets, and data bytes of data. */
static void check_two(uint64_t a, uint64_t b, size_t data, corun_status want, const char *text)
{
    make m;
    make_init(&m);
    gg_head(&m, 2, 0);
    gg_tensor(&m, "a", 1, a, 2, 64, 64);
    gg_tensor(&m, "b", 1, b, 2, 64, 64);
    gg_pad(&m, 32);
    put_zeros(&m, data);
    check(&m, want, text, "regions");
}

static void test_regions(void **state)
{
    (void)state;
    check_two(0, 8192, 16384, CORUN_OK, NULL);
    check_two(8192, 0, 16384, CORUN_OK, NULL); /* reordered, but apart */
    check_two(0, 8224, 16416, CORUN_OK, NULL); /* a gap */
    check_two(0, 8160, 16384, CORUN_EFORMAT, "\"a\" and \"b\" overlap");
    check_two(8192, 32, 16384, CORUN_EFORMAT, "\"b\" and \"a\" overlap");
    check_two(0, 0, 16384, CORUN_EFORMAT, "overlap");
    check_two(0, 8208, 16500, CORUN_EFORMAT, "\"b\": offset 8208 is no multiple of 32");
    check_two(1, 8192, 16384, CORUN_EFORMAT, "\"a\": offset 1 is no multiple");
    check_two(0, 8192, 16383, CORUN_EFORMAT, "\"b\": 8192 bytes at data offset 8192 do not fit");
    check_two(0, 8192, 0, CORUN_EFORMAT, "do not fit");
    check_two(0, (uint64_t)1 << 63, 16384, CORUN_EFORMAT, "do not fit");
    check_two(0, UINT64_MAX - 31, 16384, CORUN_EFORMAT, "do not fit");
    check_two(0, UINT64_MAX - 8191, 16384, CORUN_EFORMAT, "do not fit");
}

static void check_one(const char *name, uint32_t type, int n_dim, uint64_t d0, uint64_t d1,
                      size_t data, corun_status want, const char *text)
{
    make m;
    make_init(&m);
    gg_head(&m, 1, 0);
    gg_tensor(&m, name, type, 0, n_dim, d0, d1);
    gg_pad(&m, 32);
    put_zeros(&m, data);
    check(&m, want, text, text ? text : name);
}

static void test_types(void **state)
{
    (void)state;
    static const struct {
        uint32_t id;
        const char *name;
        int block;
        size_t bytes;
    } c[] = {{0, "F32", 1, 4},       {1, "F16", 1, 2},       {2, "Q4_0", 32, 18},
             {3, "Q4_1", 32, 20},    {6, "Q5_0", 32, 22},    {7, "Q5_1", 32, 24},
             {8, "Q8_0", 32, 34},    {9, "Q8_1", 32, 36},    {10, "Q2_K", 256, 84},
             {11, "Q3_K", 256, 110}, {12, "Q4_K", 256, 144}, {13, "Q5_K", 256, 176},
             {14, "Q6_K", 256, 210}, {20, "IQ4_NL", 32, 18}, {30, "BF16", 1, 2},
             {24, "I8", 1, 1},       {28, "F64", 1, 8},      {39, "MXFP4", 32, 17}};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        uint64_t row = (uint64_t)c[i].block * 3;
        size_t bytes = c[i].bytes * 3 * 5;
        make m;
        gguf_header *h;
        uint64_t need;
        make_init(&m);
        gg_head(&m, 1, 0);
        gg_tensor(&m, "t", c[i].id, 0, 2, row, 5);
        gg_pad(&m, 32);
        size_t start = m.b.len;
        put_zeros(&m, bytes); /* exactly: no padding after the last tensor */
        assert_int_equal(gguf_parse(&h, m.b.data, m.b.len, m.b.len, "file", &need), CORUN_OK);
        const weights_tensor *t = gguf_at(h, 0);
        assert_string_equal(t->dtype_text, c[i].name);
        assert_int_equal(t->bytes, bytes);
        assert_int_equal(t->offset, start);
        assert_int_equal(t->dim[0], 5);
        assert_int_equal(t->dim[1], row);
        gguf_free(h);
        assert_int_equal(gguf_parse(&h, m.b.data, m.b.len - 1, m.b.len - 1, "file", &need),
                         CORUN_EFORMAT);
        make_free(&m);
        if (c[i].block == 1) continue;
        check_one("t", c[i].id, 2, (uint64_t)c[i].block + 1, 5, 9999, CORUN_EFORMAT, "no whole");
        check_one("t", c[i].id, 2, (uint64_t)c[i].block / 2, 2, 9999, CORUN_EFORMAT, "no whole");
        check_one("t", c[i].id, 0, 0, 0, 9999, CORUN_EFORMAT, "no whole");
    }
    check_one("t", 8, 2, 33, 4, 9999, CORUN_EFORMAT, "rows of 33 values are no whole Q8_0");
    check_one("t", 12, 2, 896, 4, 9999, CORUN_EFORMAT, "rows of 896 values are no whole Q4_K");
    static const uint32_t bad[] = {4, 5, 31, 32, 33, 36, 37, 38, 250, UINT32_MAX};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        check_one("t", bad[i], 2, 256, 4, 9999, CORUN_EFORMAT, "unknown type");
}

static void test_tensors(void **state)
{
    (void)state;
    make m;
    char name[66];
    memset(name, 'n', sizeof name);
    name[63] = 0;
    check_one(name, 0, 1, 2, 0, 8, CORUN_OK, NULL);
    name[63] = 'n';
    name[64] = 0;
    check_one(name, 0, 1, 2, 0, 8, CORUN_EFORMAT, "tensor name of 64 bytes");
    name[64] = 'n';
    name[65] = 0;
    check_one(name, 0, 1, 2, 0, 8, CORUN_EFORMAT, "tensor name of 65 bytes");
    check_one("", 0, 1, 2, 0, 8, CORUN_EFORMAT, "tensor name is empty");
    check_one("t", 0, 0, 0, 0, 4, CORUN_OK, NULL); /* a scalar */
    check_one("t", 0, 2, 0, 5, 8, CORUN_EFORMAT, "dimension 0");
    check_one("t", 0, 2, 5, 0, 8, CORUN_EFORMAT, "dimension 0");
    check_one("t", 0, 1, UINT64_MAX, 0, 8, CORUN_EFORMAT, "out of range");
    check_one("t", 0, 1, (uint64_t)1 << 63, 0, 8, CORUN_EFORMAT, "out of range");
    check_one("t", 0, 2, (uint64_t)1 << 32, (uint64_t)1 << 32, 8, CORUN_EFORMAT, "out of range");
    check_one("t", 0, 2, (uint64_t)1 << 62, 3, 8, CORUN_EFORMAT, "overflows");
    check_one("t", 0, 1, (uint64_t)1 << 62, 0, 8, CORUN_EFORMAT, "overflows");
    check_one("t", 0, 1, (uint64_t)1 << 61, 0, 8, CORUN_EFORMAT, "do not fit");
    static const uint32_t dims[] = {5, 8, 1u << 20, UINT32_MAX};
    for (size_t i = 0; i < 4; i++) {
        make_init(&m);
        gg_head(&m, 1, 0);
        put_str(&m, "t");
        put_u32(&m, dims[i]);
        for (int k = 0; k < 20; k++) put_u64(&m, 1);
        check(&m, CORUN_EFORMAT, "dimensions, more than 4", "dimensions");
    }
    make_init(&m);
    gg_head(&m, 2, 0);
    gg_tensor(&m, "t", 0, 0, 1, 2, 0);
    gg_tensor(&m, "t", 0, 32, 1, 2, 0);
    gg_pad(&m, 32);
    put_zeros(&m, 64);
    check(&m, CORUN_EFORMAT, "tensor \"t\" stands twice", "duplicate name");
    make_init(&m); /* n_tensor fits by size alone, but the keys took the room */
    gg_head(&m, 4, 1);
    gg_str(&m, "general.name",
           "a name of some length that takes the room of the tensors, and more");
    check(&m, CORUN_EFORMAT, "4 tensors", "tensors after keys");
}

/* ---- a good file --------------------------------------------------------------------------------
 */

static void test_good(void **state)
{
    (void)state;
    make m;
    gguf_header *h;
    uint64_t need;
    make_init(&m);
    gg_head(&m, 1, 5);
    gg_str(&m, "s", "text");
    put_str(&m, "strings");
    put_u32(&m, GGUF_ARRAY);
    put_u32(&m, GGUF_STRING);
    put_u64(&m, 2);
    put_str(&m, "one");
    put_str(&m, "");
    put_str(&m, "none");
    put_u32(&m, GGUF_ARRAY);
    put_u32(&m, GGUF_F64);
    put_u64(&m, 0);
    gg_bool(&m, "b", 1);
    gg_f32(&m, "f", 0.5f);
    gg_tensor(&m, "t", 0, 0, 2, 3, 2);
    gg_pad(&m, 32);
    put_zeros(&m, 24);
    assert_int_equal(gguf_parse(&h, m.b.data, m.b.len, m.b.len, "file", &need), CORUN_OK);
    assert_int_equal(gguf_meta_count(h), 5);
    assert_string_equal(gguf_meta_key(h, 0), "b"); /* sorted */
    assert_string_equal(gguf_meta_key(h, 4), "strings");
    const gguf_value *v = gguf_meta(h, "s");
    assert_int_equal(v->type, GGUF_STRING);
    assert_int_equal(v->count, 4);
    assert_memory_equal(v->data, "text", 4);
    v = gguf_meta(h, "strings");
    assert_int_equal(v->type, GGUF_ARRAY);
    assert_int_equal(v->item, GGUF_STRING);
    assert_int_equal(v->count, 2);
    assert_int_equal(v->bytes, 8 + 3 + 8);
    assert_memory_equal(v->data + 8, "one", 3);
    v = gguf_meta(h, "none");
    assert_int_equal(v->count, 0);
    assert_int_equal(v->bytes, 0);
    assert_null(gguf_meta(h, "absent"));
    assert_null(gguf_meta(h, ""));
    gguf_free(h);
    gguf_free(NULL);
    check(&m, CORUN_OK, NULL, "good");
}

/* A thousand hostile headers must not take memory beyond their own size. */
static void test_peak_memory(void **state)
{
    (void)state;
    struct rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    test_header(state);
    test_lengths(state);
    getrusage(RUSAGE_SELF, &after);
    assert_true(after.ru_maxrss - before.ru_maxrss < 32 * 1024);
}

static void test_memory(void **state)
{
    (void)state;
    make m;
    gguf_header *h;
    uint64_t need;
    make_init(&m);
    gg_head(&m, 40, 40);
    for (int i = 0; i < 40; i++) {
        char key[16];
        snprintf(key, sizeof key, "key.%d", i);
        gg_u32(&m, key, 1);
    }
    for (int i = 0; i < 40; i++) {
        char name[16];
        snprintf(name, sizeof name, "t%d", i);
        gg_tensor(&m, name, 0, (uint64_t)i * 32, 1, 8, 0);
    }
    gg_pad(&m, 32);
    put_zeros(&m, 40 * 32);
    corun_status st = CORUN_ENOMEM;
    for (uint64_t k = 1; st != CORUN_OK; k++) {
        mem_fail_at(k);
        st = gguf_parse(&h, m.b.data, m.b.len, m.b.len, "file", &need);
        mem_fail_at(0);
        if (st != CORUN_OK) {
            expect(st, CORUN_ENOMEM, "memory", "failing allocation");
            assert_null(h);
        }
        assert_true(k < 100);
    }
    gguf_free(h);
    make_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_peak_memory), cmocka_unit_test(test_header),
        cmocka_unit_test(test_lengths),     cmocka_unit_test(test_values),
        cmocka_unit_test(test_alignment),   cmocka_unit_test(test_regions),
        cmocka_unit_test(test_types),       cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_good),        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
