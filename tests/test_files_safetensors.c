/* test_files_safetensors.c - the header table of safetensors: what is refused and what is not. */
#include "files_make.h"

/* Parses a file of these bytes from memory of exactly the length that the parser is promised. */
static corun_status parse(const char *data, size_t len, safetensors_header **out)
{
    uint64_t n = 0;
    size_t give = len;
    if (len >= 8) {
        memcpy(&n, data, 8);
        if (n < len - 8) give = 8 + n;
    }
    char *copy = malloc(give ? give : 1);
    memcpy(copy, data, give);
    corun_status st = safetensors_parse(out, copy, give, len, "file");
    free(copy);
    return st;
}

static void check(const char *header, size_t n_data, corun_status want, const char *text)
{
    make m;
    safetensors_header *h;
    make_init(&m);
    st_file(&m, header, n_data);
    corun_status st = parse(m.b.data, m.b.len, &h);
    expect(st, want, text, header);
    assert_true((st == CORUN_OK) == (h != NULL));
    safetensors_free(h);
    make_free(&m);
}

#define A(off)     "{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":" off "}"
#define T(t, s, o) "{\"dtype\":\"" t "\",\"shape\":" s ",\"data_offsets\":" o "}"

static void test_length(void **state)
{
    (void)state;
    static const struct {
        uint64_t n;
        size_t file;
        const char *text;
    } c[] = {{0, 7, "too few"},
             {0, 8, "does not begin with {"},
             {0, 100, "does not begin with {"},
             {93, 100, "only 92 bytes follow"},
             {UINT64_MAX, 100, "above 100000000"},
             {UINT64_MAX - 7, 100, "above 100000000"},
             {100000001, 100, "above 100000000"},
             {100000000, 100, "only 92 bytes follow"}};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        make m;
        safetensors_header *h;
        make_init(&m);
        put_u64(&m, c[i].n);
        put_zeros(&m, 100);
        expect(parse(m.b.data, c[i].file, &h), CORUN_EFORMAT, c[i].text, "length");
        make_free(&m);
    }
    safetensors_header *h;
    expect(parse("", 0, &h), CORUN_EFORMAT, "too few", "nothing");
    /* a caller that passes less than the header is told so, and nothing is read behind it */
    expect(safetensors_parse(&h, "\2\0\0\0\0\0\0\0{", 9, 10, "file"), CORUN_EINVAL, "whole",
           "part");
}

static void test_table(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t data;
        corun_status st;
        const char *text;
    } c[] = {
        {"{}", 0, CORUN_OK, NULL},
        {"{}", 1, CORUN_EFORMAT, "the tensors end at 0"},
        {"{\"a\":" A("[0,8]") "}", 8, CORUN_OK, NULL},
        {"{\"a\":" A("[0,8]") "}", 9, CORUN_EFORMAT, "the tensors end at 8"},
        {"{\"a\":" A("[0,8]") "}", 7, CORUN_EFORMAT, "\"a\" ends at data byte 8"},
        {"{\"a\":" A("[0,8]") "}     ", 8, CORUN_OK, NULL},
        {" {\"a\":" A("[0,8]") "}", 8, CORUN_EFORMAT, "does not begin with {"},
        {"\n{}", 0, CORUN_EFORMAT, "does not begin with {"},
        {"{\"a\":" A("[0,8]") ",\"b\":" A("[0,8]") "}", 8, CORUN_EFORMAT, "another tensor lies"},
        {"{\"a\":" A("[0,8]") ",\"b\":" A("[4,12]") "}", 12, CORUN_EFORMAT, "another tensor lies"},
        {"{\"a\":" A("[0,8]") ",\"b\":" A("[12,20]") "}", 20, CORUN_EFORMAT, "hole"},
        {"{\"a\":" A("[4,12]") "}", 12, CORUN_EFORMAT, "hole"},
        {"{\"b\":" A("[8,16]") ",\"a\":" A("[0,8]") "}", 16, CORUN_OK, NULL},
        {"{\"a\":" A("[8,0]") "}", 8, CORUN_EFORMAT, "end before they begin"},
        {"{\"a\":" A("[-8,0]") "}", 8, CORUN_EFORMAT, "data_offsets[0]"},
        {"{\"a\":" A("[0.0,8]") "}", 8, CORUN_EFORMAT, "data_offsets[0]"},
        {"{\"a\":" A("[0,8e0]") "}", 8, CORUN_EFORMAT, "data_offsets[1]"},
        {"{\"a\":" A("[0,\"8\"]") "}", 8, CORUN_EFORMAT, "data_offsets[1]"},
        {"{\"a\":" A("[0,4,8]") "}", 8, CORUN_EFORMAT, "two integers"},
        {"{\"a\":" A("[0]") "}", 8, CORUN_EFORMAT, "two integers"},
        {"{\"a\":" A("8") "}", 8, CORUN_EFORMAT, "two integers"},
        {"{\"a\":" A("[0,18446744073709551615]") "}", 8, CORUN_EFORMAT, "JSON"},
        {"{\"a\":" A("[0,9223372036854775807]") "}", 8, CORUN_EFORMAT, "need 8"},
        {"{\"a\":" T("F32", "[3]", "[0,8]") "}", 8, CORUN_EFORMAT, "need 12"},
        {"{\"a\":" T("F32", "[1]", "[0,8]") "}", 8, CORUN_EFORMAT, "need 4"},
        {"{\"a\":" T("F32", "[]", "[0,4]") "}", 4, CORUN_OK, NULL},
        {"{\"a\":" T("F32", "[0,5]", "[0,0]") ",\"b\":" A("[0,8]") "}", 8, CORUN_OK, NULL},
        {"{\"b\":" A("[0,8]") ",\"a\":" T("F32", "[0,5]", "[0,0]") "}", 8, CORUN_OK, NULL},
        {"{\"b\":" A("[0,8]") ",\"a\":" T("F32", "[3,0]", "[8,8]") "}", 8, CORUN_OK, NULL},
        {"{\"b\":" A("[0,8]") ",\"a\":" T("F32", "[3,0]", "[4,4]") "}", 8, CORUN_EFORMAT, "lies"},
        {"{\"b\":" A("[0,8]") ",\"a\":" T("F32", "[3,0]", "[9,9]") "}", 8, CORUN_EFORMAT, "hole"},
        {"{\"a\":" T("F32", "[4294967296,4294967296]", "[0,0]") "}", 0, CORUN_EFORMAT, "overflows"},
        {"{\"a\":" T("F32", "[4611686018427387904,4]", "[0,0]") "}", 0, CORUN_EFORMAT, "overflows"},
        {"{\"a\":" T("F32", "[9223372036854775808,2,0]", "[0,0]") "}", 0, CORUN_EFORMAT, NULL},
        {"{\"a\":" T("F32", "[4611686018427387904,4,0]", "[0,0]") "}", 0, CORUN_EFORMAT,
         "overflows"},
        {"{\"a\":" T("F32", "[0,4611686018427387904,4]", "[0,0]") "}", 0, CORUN_EFORMAT,
         "overflows"},
        {"{\"a\":" T("F32", "[2305843009213693952]", "[0,0]") "}", 0, CORUN_EFORMAT, "overflows"},
        {"{\"a\":" T("F32", "[-1]", "[0,0]") "}", 0, CORUN_EFORMAT, "shape[0]"},
        {"{\"a\":" T("F32", "[2.0]", "[0,8]") "}", 8, CORUN_EFORMAT, "shape[0]"},
        {"{\"a\":" T("F32", "[true,2]", "[0,8]") "}", 8, CORUN_EFORMAT, "shape[0]"},
        {"{\"a\":" T("F32", "2", "[0,8]") "}", 8, CORUN_EFORMAT, "shape"},
        {"{\"a\":" T("F32", "[1,1,1,1,1,1,1,2]", "[0,8]") "}", 8, CORUN_OK, NULL},
        {"{\"a\":" T("F32", "[1,1,1,1,1,1,1,1,2]", "[0,8]") "}", 8, CORUN_EUNSUPPORTED,
         "9 dimensions"},
        {"{\"a\":" T("F33", "[2]", "[0,8]") "}", 8, CORUN_EFORMAT, "\"F33\""},
        {"{\"a\":" T("f32", "[2]", "[0,8]") "}", 8, CORUN_EFORMAT, "\"f32\""},
        {"{\"a\":" T("", "[2]", "[0,8]") "}", 8, CORUN_EFORMAT, "unknown dtype"},
        {"{\"a\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, CORUN_EFORMAT, "dtype is missing"},
        {"{\"a\":{\"dtype\":5,\"shape\":[2],\"data_offsets\":[0,8]}}", 8, CORUN_EFORMAT, "dtype"},
        {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", 8, CORUN_EFORMAT,
         "shape is missing"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, CORUN_EFORMAT, "data_offsets"},
        {"{\"a\":null}", 0, CORUN_EFORMAT, "no object"},
        {"{\"a\":[]}", 0, CORUN_EFORMAT, "no object"},
        {"{\"a\":" T("F4", "[3]", "[0,2]") "}", 2, CORUN_EFORMAT, "no whole bytes"},
        {"{\"a\":" T("F4", "[4]", "[0,2]") "}", 2, CORUN_OK, NULL},
        {"{\"a\":" T("F6_E2M3", "[4]", "[0,3]") "}", 3, CORUN_OK, NULL},
        {"{\"a\":" T("F6_E3M2", "[3]", "[0,3]") "}", 3, CORUN_EFORMAT, "no whole bytes"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"x\":{}}}", 8, CORUN_OK,
         NULL},
        {"{\"__metadata__\":null}", 0, CORUN_OK, NULL},
        {"{\"__metadata__\":{}}", 0, CORUN_OK, NULL},
        {"{\"__metadata__\":{\"format\":\"pt\"}}", 0, CORUN_OK, NULL},
        {"{\"__metadata__\":{\"format\":1}}", 0, CORUN_EFORMAT, "\"format\" is no string"},
        {"{\"__metadata__\":[]}", 0, CORUN_EFORMAT, "__metadata__"},
        {"{\"__metadata__\":\"x\"}", 0, CORUN_EFORMAT, "__metadata__"},
        {"{\"\":" A("[0,8]") "}", 8, CORUN_OK, NULL},
        {"{\"a\xff\":" A("[0,8]") "}", 8, CORUN_EFORMAT, "JSON"},
        {"{\"a\\u0000\":" A("[0,8]") "}", 8, CORUN_EFORMAT, "JSON"},
        {"[]", 0, CORUN_EFORMAT, "does not begin with {"},
        {"{", 0, CORUN_EFORMAT, "JSON"},
        {"{}{}", 0, CORUN_EFORMAT, "JSON"},
        {"{\"a\":" A("[0,8]") ",\"a\":" A("[0,8]") "}", 8, CORUN_EFORMAT, "duplicate"},
        {"{\"a\":" A("[0,8]") ",\"\\u0061\":" A("[8,16]") "}", 16, CORUN_EFORMAT, "duplicate"},
        {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8,
         CORUN_EFORMAT, "duplicate"},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++)
        check(c[i].header, c[i].data, c[i].st, c[i].text);
}

static void test_padding_and_depth(void **state)
{
    (void)state;
    make m;
    safetensors_header *h;
    make_init(&m);
    put_u64(&m, 10); /* {} and eight NUL bytes */
    put_raw(&m, "{}\0\0\0\0\0\0\0\0", 10);
    expect(parse(m.b.data, m.b.len, &h), CORUN_EFORMAT, "JSON", "NUL padding");
    make_free(&m);
    char *deep = malloc(10006);
    memcpy(deep, "{\"a\":", 5);
    memset(deep + 5, '[', 5000);
    memset(deep + 5005, ']', 5000);
    deep[10005] = 0;
    check(deep, 0, CORUN_EFORMAT, "JSON");
    deep[5005] = 0;
    check(deep, 0, CORUN_EFORMAT, "JSON");
    check(deep + 5, 0, CORUN_EFORMAT, "does not begin");
    free(deep);
}

static void test_dtypes(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int bits;
        weights_dtype type;
    } c[] = {{"BOOL", 8, WEIGHTS_OTHER},        {"U8", 8, WEIGHTS_OTHER},
             {"I8", 8, WEIGHTS_OTHER},          {"F8_E5M2", 8, WEIGHTS_OTHER},
             {"F8_E4M3", 8, WEIGHTS_F8_E4M3},   {"F8_E8M0", 8, WEIGHTS_F8_E8M0},
             {"F8_E4M3FNUZ", 8, WEIGHTS_OTHER}, {"F8_E5M2FNUZ", 8, WEIGHTS_OTHER},
             {"I16", 16, WEIGHTS_OTHER},        {"U16", 16, WEIGHTS_OTHER},
             {"F16", 16, WEIGHTS_F16},          {"BF16", 16, WEIGHTS_BF16},
             {"I32", 32, WEIGHTS_OTHER},        {"U32", 32, WEIGHTS_OTHER},
             {"F32", 32, WEIGHTS_F32},          {"I64", 64, WEIGHTS_OTHER},
             {"U64", 64, WEIGHTS_OTHER},        {"F64", 64, WEIGHTS_OTHER},
             {"C64", 64, WEIGHTS_OTHER},        {"F4", 4, WEIGHTS_OTHER},
             {"F6_E2M3", 6, WEIGHTS_OTHER},     {"F6_E3M2", 6, WEIGHTS_OTHER}};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        char header[200];
        size_t bytes = (size_t)(c[i].bits * 8 / 8);
        snprintf(header, sizeof header,
                 "{\"a\":{\"dtype\":\"%s\",\"shape\":[2,4],\"data_offsets\":[0,%zu]}}", c[i].name,
                 bytes);
        make m;
        safetensors_header *h;
        make_init(&m);
        st_file(&m, header, bytes);
        expect(parse(m.b.data, m.b.len, &h), CORUN_OK, NULL, header);
        const weights_tensor *t = safetensors_at(h, 0);
        assert_int_equal(safetensors_count(h), 1);
        assert_string_equal(t->name, "a");
        assert_string_equal(t->dtype_text, c[i].name);
        assert_int_equal(t->dtype, c[i].type);
        assert_int_equal(t->n_dim, 2);
        assert_int_equal(t->dim[0], 2);
        assert_int_equal(t->dim[1], 4);
        assert_int_equal(t->bytes, bytes);
        assert_int_equal(t->offset, 8 + strlen(header));
        safetensors_free(h);
        make_free(&m);
    }
}

/* Cut anywhere, a good header is refused and nothing behind it is read. */
static void test_cut(void **state)
{
    (void)state;
    make m;
    safetensors_header *h;
    make_init(&m);
    st_file(&m, "{\"a\":" A("[0,8]") ",\"__metadata__\":{\"a\":\"b\"}}", 8);
    for (size_t n = 0; n < m.b.len; n++)
        expect(parse(m.b.data, n, &h), CORUN_EFORMAT, "file", "cut");
    expect(parse(m.b.data, m.b.len, &h), CORUN_OK, NULL, "whole");
    safetensors_free(h);
    make_free(&m);
}

static void test_memory(void **state)
{
    (void)state;
    make m;
    safetensors_header *h;
    make_init(&m);
    st_file(&m, "{\"a\":" A("[0,8]") ",\"b\":" A("[8,16]") "}", 16);
    corun_status st = CORUN_ENOMEM;
    for (uint64_t k = 1; st != CORUN_OK; k++) {
        mem_fail_at(k);
        st = parse(m.b.data, m.b.len, &h);
        mem_fail_at(0);
        if (st != CORUN_OK) {
            expect(st, CORUN_ENOMEM, "memory", "failing allocation");
            assert_null(h);
        }
        assert_true(k < 100);
    }
    safetensors_free(h);
    safetensors_free(NULL);
    make_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_length),
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_padding_and_depth),
        cmocka_unit_test(test_dtypes),
        cmocka_unit_test(test_cut),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
