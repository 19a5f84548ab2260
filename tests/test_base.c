/* test_base.c - error text, sizes, buffers, JSON reading and printing, digests, the pool. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/digest.h"
#include "base/json.h"
#include "base/pool.h"

static void test_err_text(void **state)
{
    (void)state;
    assert_int_equal(err_set(CORUN_EFORMAT, "bad \xff byte %d", 7), CORUN_EFORMAT);
    assert_string_equal(err_text(), "bad \\xff byte 7");
    assert_int_equal(err_prefix(CORUN_EFORMAT, "line %d", 3), CORUN_EFORMAT);
    assert_string_equal(err_text(), "line 3: bad \\xff byte 7");
}

static void test_mem(void **state)
{
    (void)state;
    size_t x = 5;
    assert_false(mem_mul(SIZE_MAX, 2, &x));
    assert_int_equal(x, 5);
    assert_null(mem_alloc(SIZE_MAX / 2, 4, "huge"));
    assert_non_null(strstr(err_text(), "huge"));
    mem_fail_at(1);
    assert_null(mem_alloc(1, 1, "first"));
    mem_fail_at(0);
    buf b;
    buf_init(&b, 10);
    buf_puts(&b, "0123456789");
    assert_int_equal(buf_status(&b), CORUN_OK);
    buf_putc(&b, 'x');
    assert_int_equal(buf_status(&b), CORUN_ECAPACITY);
    assert_int_equal(b.len, 10);
    buf_reset(&b);
    buf_put(&b, "01234567890123", 14);
    assert_int_equal(buf_status(&b), CORUN_ECAPACITY);
    assert_int_equal(b.len, 0);
    buf_free(&b);
}

static void test_double_repr(void **state)
{
    (void)state;
    static const struct {
        double v;
        const char *t;
    } c[] = {{0.1, "0.1"},       {1e16, "1e+16"},
             {1e-5, "1e-05"},    {-0.0, "-0.0"},
             {1.0, "1.0"},       {123456789012345678.0, "1.2345678901234568e+17"},
             {0.0001, "0.0001"}, {1e15, "1000000000000000.0"},
             {5e-324, "5e-324"}, {1.7976931348623157e308, "1.7976931348623157e+308"},
             {1234.5, "1234.5"}};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        char t[32];
        json_double_repr(c[i].v, t);
        assert_string_equal(t, c[i].t);
    }
}

static void test_json_strict(void **state)
{
    (void)state;
    static const char *const bad[] = {"{\"a\":1,\"a\":2}",
                                      "\"\\ud83d\"",
                                      "\"\\ude00\"",
                                      "[1,]",
                                      "{} {}",
                                      "\"\xff\"",
                                      "\"\xc0\x80\"",
                                      "\"\xed\xa0\x80\"",
                                      "\xef\xbb\xbf{}",
                                      "12345678901234567890",
                                      "{\"a\\u0000b\":1}",
                                      "NaN",
                                      ""};
    json_t *v;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(json_read(&v, bad[i], strlen(bad[i]), "x"), CORUN_EFORMAT);
    assert_int_equal(json_read(&v, "\"a\\u0000b\\ud83d\\ude00\"", 22, "x"), CORUN_OK);
    assert_int_equal(json_string_length(v), 7);
    json_decref(v);
    char *deep = malloc(20001);
    memset(deep, '[', 10000);
    memset(deep + 10000, ']', 10000);
    assert_int_equal(json_read(&v, deep, 20000, "x"), CORUN_EFORMAT);
    free(deep);
}

static void test_json_write(void **state)
{
    (void)state;
    json_t *v;
    const char *in = "{\"b\":[1,2.5,null],\"a\":{\"y\":true,\"x\":\"\\u0001\\\"\"}}";
    assert_int_equal(json_read(&v, in, strlen(in), "x"), CORUN_OK);
    buf b;
    buf_init(&b, 1000);
    jw w;
    jw_init(&w, &b);
    jw_value(&w, v);
    assert_string_equal(b.data, "{\"b\":[1,2.5,null],\"a\":{\"y\":true,\"x\":\"\\u0001\\\"\"}}");
    buf_reset(&b);
    jw_init(&w, &b);
    jw_canonical(&w, v);
    assert_string_equal(b.data, "{\"a\":{\"x\":\"\\u0001\\\"\",\"y\":true},\"b\":[1.0,2.5,null]}");
    buf_reset(&b);
    jw_init(&w, &b);
    jw_str(&w,
           "a\xf0\x9f\x98"
           "b\xff",
           6);
    assert_string_equal(b.data, "\"a\xef\xbf\xbd"
                                "b\xef\xbf\xbd\"");
    buf_free(&b);
    json_decref(v);
    char t[32];
    json_logprob_repr(-INFINITY, t);
    assert_string_equal(t, "-9999.0");
    json_logprob_repr(-1.5f, t);
    assert_string_equal(t, "-1.5");
    json_logprob_repr(0.0f, t);
    assert_string_equal(t, "0.0");
    int64_t i;
    json_t *whole = json_real(16.0), *half = json_real(16.5);
    assert_true(json_is_whole(whole, &i) && i == 16);
    assert_false(json_is_whole(half, &i));
    json_decref(whole);
    json_decref(half);
}

static void test_digest(void **state)
{
    (void)state;
    char hex[33];
    digest_hex(digest_of("", 0), hex);
    assert_string_equal(hex, "99aa06d3014798d86001c324468d497f"); /* XXH3-128 of nothing */
    digest_stream *s = digest_open();
    digest_add(s, "ab", 2);
    digest_add(s, "c", 1);
    digest a = digest_value(s), b = digest_of("abc", 3);
    assert_memory_equal(&a, &b, sizeof a);
    digest_close(s);
}

static void mark(void *arg, int worker, int n_worker)
{
    int64_t b, e;
    pool_slice(1000, 32, worker, n_worker, &b, &e);
    for (int64_t i = b; i < e; i++) ((int *)arg)[i]++;
}

static void test_pool(void **state)
{
    (void)state;
    for (int n = 1; n <= 5; n++) {
        pool *p;
        assert_int_equal(pool_open(&p, n), CORUN_OK);
        int hits[1000] = {0};
        for (int k = 0; k < 200; k++) pool_run(p, mark, hits);
        for (int i = 0; i < 1000; i++) assert_int_equal(hits[i], 200);
        pool_close(p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_err_text),    cmocka_unit_test(test_mem),
        cmocka_unit_test(test_double_repr), cmocka_unit_test(test_json_strict),
        cmocka_unit_test(test_json_write),  cmocka_unit_test(test_digest),
        cmocka_unit_test(test_pool),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
