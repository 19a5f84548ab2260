/* test_multipart.c - form uploads: every way to cut a body into two or three pieces gives the same
 * parts; what is malformed is refused at its byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "app/multipart.h"

#define TYPE "multipart/form-data; boundary=b0"

/* All that the handler was told, as one text. */
typedef struct told {
    buf b;
    int fail_at; /* the call of this number fails; 0: none */
    int calls;
} told;

static corun_status count(told *t)
{
    if (++t->calls == t->fail_at) return err_set(CORUN_ECAPACITY, "the handler's");
    return CORUN_OK;
}

static corun_status on_part(void *ctx, const char *name, const char *filename)
{
    told *t = ctx;
    buf_printf(&t->b, "[%s|%s:", name, filename ? filename : "-");
    return count(t);
}

static corun_status on_data(void *ctx, const char *data, size_t len)
{
    told *t = ctx;
    assert_true(len > 0);
    buf_put(&t->b, data, len);
    return count(t);
}

static corun_status on_end(void *ctx)
{
    told *t = ctx;
    buf_puts(&t->b, "]");
    return count(t);
}

/* Reads a body whose pieces end at a and b. */
static corun_status feed(told *t, const char *type, const char *body, size_t len, size_t a,
                         size_t b)
{
    multipart *m;
    multipart_handler h = {t, on_part, on_data, on_end};
    buf_init(&t->b, 1 << 20);
    corun_status st = multipart_open(&m, type, &h);
    if (st != CORUN_OK) return st;
    st = multipart_put(m, body, a);
    if (st == CORUN_OK) st = multipart_put(m, body + a, b - a);
    if (st == CORUN_OK) st = multipart_put(m, body + b, len - b);
    if (st == CORUN_OK) st = multipart_end(m);
    multipart_close(m);
    return st;
}

static void check(const char *type, const char *body, size_t len, const char *want, size_t n_want)
{
    for (size_t a = 0; a <= len; a++) {
        for (size_t b = a; b <= len;
             b = len > 400 && b < len ? (b + 37 < len ? b + 37 : len) : b + 1) {
            told t = {0};
            if (feed(&t, type, body, len, a, b) != CORUN_OK)
                fail_msg("cut at %zu, %zu: %s", a, b, err_text());
            if (t.b.len != n_want || (n_want && memcmp(t.b.data, want, n_want) != 0))
                fail_msg("cut at %zu, %zu: %.*s", a, b, (int)t.b.len, t.b.data);
            buf_free(&t.b);
        }
    }
    /* byte for byte */
    told t = {0};
    multipart *m;
    multipart_handler h = {&t, on_part, on_data, on_end};
    buf_init(&t.b, 1 << 20);
    assert_int_equal(multipart_open(&m, type, &h), CORUN_OK);
    for (size_t i = 0; i < len; i++) assert_int_equal(multipart_put(m, body + i, 1), CORUN_OK);
    assert_int_equal(multipart_end(m), CORUN_OK);
    assert_int_equal(t.b.len, n_want);
    assert_memory_equal(t.b.data, want, n_want);
    multipart_close(m);
    buf_free(&t.b);
}

#define CHECK(type, body, want) check(type, body, sizeof(body) - 1, want, sizeof(want) - 1)

static void test_parts(void **state)
{
    (void)state;
    CHECK(TYPE,
          "--b0\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n"
          "--b0\r\nContent-Disposition: form-data; name=\"file\"; filename=\"in.jsonl\"\r\n"
          "Content-Type: application/octet-stream\r\n\r\n{\"a\": 1}\n{}\n\r\n--b0--\r\n",
          "[purpose|-:batch][file|in.jsonl:{\"a\": 1}\n{}\n]");
    /* text before the first and after the last boundary; blanks behind one; an empty part */
    CHECK(TYPE "; charset=x",
          "before\r\n--b0 \t\r\ncontent-disposition:form-data;NAME=a\r\n\r\n\r\n--b0--after",
          "[a|-:]");
    CHECK("Multipart/Form-Data ; charset=utf-8; boundary=\"b 'x:\"",
          "--b 'x:\r\nContent-Disposition: form-data; filename=\"\"; name=\"n\"\r\n\r\n1\r\n"
          "--b 'x:--",
          "[n|:1]");
    CHECK(TYPE, "--b0--", "");
}

/* What looks like a boundary and is none. */
static void test_near_boundaries(void **state)
{
    (void)state;
    CHECK(TYPE,
          "--b0\r\nContent-Disposition: form-data; name=x\r\n\r\n"
          "\r\r\n\r\n-\r\n--\r\n--b\r\n--b\r\n--b1--b0\n--b0\r--b0\0\r\n\r\n--b0--",
          "[x|-:\r\r\n\r\n-\r\n--\r\n--b\r\n--b\r\n--b1--b0\n--b0\r--b0\0\r\n]");
    CHECK(TYPE,
          "--b\r\n--b1\r\r\n--b0\r\nContent-Disposition: form-data; name=x\r\n\r\n-\r\n--b0--",
          "[x|-:-]");
}

static void test_names(void **state)
{
    (void)state;
    CHECK(TYPE,
          "--b0\r\nX: y\r\nContent-Disposition: form-data; name=\"a\\\"b\\\\c\\d\"; "
          "filename=\"s; t=\\\"u\\\".txt\"; other=1\r\nContent-Transfer-Encoding: binary\r\n\r\n1"
          "\r\n--b0--",
          "[a\"b\\c\\d|s; t=\"u\".txt:1]");
    CHECK(TYPE,
          "--b0\r\nContent-Disposition: form-data; name=file; filename=\xc3\xa9.txt\r\n\r\n1\r\n"
          "--b0--",
          "[file|\xc3\xa9.txt:1]");
}

static void refused(const char *type, const char *body, size_t len, const char *why)
{
    for (size_t a = 0; a <= len; a++) {
        told t = {0};
        assert_int_equal(feed(&t, type, body, len, a, len), CORUN_EFORMAT);
        if (!strstr(err_text(), why)) fail_msg("%s: %s", why, err_text());
        buf_free(&t.b);
    }
}

#define PART(header) "--b0\r\n" header "\r\n\r\n1\r\n--b0--"

static void test_malformed(void **state)
{
    (void)state;
    static const struct {
        const char *body, *why;
    } bad[] = {
        {"", "before its last boundary"},
        {"--b0", "before its last boundary"},
        {"--b0\r\nContent-Disposition: form-data; name=x\r\n\r\n1\r\n--b0",
         "before its last boundary"},
        {"--b0\r\nContent-Disposition: form-data; name=x\r\n\r\n1\r\n--b0\r\n",
         "before its last boundary"},
        {"--b0x", "byte 4: a boundary must end its line"},
        {"--b0 -", "must end its line"},
        {"--b0-x", "must end its line"},
        {"--b0\rx", "must end its line"},
        {"--b0\r\n\r\n1\r\n--b0--", "without Content-Disposition"},
        {PART("Content-Type: text/plain"), "without Content-Disposition"},
        {PART("Content-Disposition: form-data"), "has no name"},
        {PART("Content-Disposition: form-data; filename=x"), "has no name"},
        {PART("Content-Disposition: attachment; name=x"), "must be form-data"},
        {PART("Content-Disposition: form-data; name=\"x"), "cannot be read"},
        {PART("Content-Disposition: form-data; name="), "cannot be read"},
        {PART("Content-Disposition: form-data; name"), "cannot be read"},
        {PART("Content-Disposition: form-data; name=x y"), "cannot be read"},
        {PART("Content-Disposition: form-data; name=x; name=y"), "two values"},
        {PART("Content-Disposition: form-data; name=x; filename=a; filename=b"), "two values"},
        {PART("Content-Disposition: form-data; name=x\r\nContent-Disposition: form-data; name=y"),
         "two Content-Disposition"},
        {PART("nothing"), "without a name"},
        {PART(": x"), "without a name"},
        {PART("Content-Disposition: form-data; name=x\r\nContent-Transfer-Encoding: base64"),
         "only binary"},
        {PART("Content-Disposition: form-data; name=x\r\nContent-Type: multipart/mixed; b=c"),
         "multipart itself"},
        {"--b0\r\nContent-Disposition: form-data; name=x\n\r\n\r\n", "CR LF"},
        {"--b0\r\nContent-Disposition: form-data; name=x\r\r\n", "CR LF"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        refused(TYPE, bad[i].body, strlen(bad[i].body), bad[i].why);
    refused(TYPE, "--b0\r\nA\0: b", 11, "NUL");
}

static void test_types(void **state)
{
    (void)state;
    static const char *const bad[] = {
        NULL,
        "",
        "application/json",
        "multipart/form-data",
        "multipart/form-datax; boundary=x",
        "multipart/mixed; boundary=x",
        "multipart/form-data; boundary=",
        "multipart/form-data; boundary=\"\"",
        "multipart/form-data; boundary=\"x ",
        "multipart/form-data; boundary=\"x \"",
        "multipart/form-data; boundary=\"\xc3\xa9\"",
        "multipart/form-data boundary=x",
        "multipart/form-data; "
        "boundary=a123456789b123456789c123456789d123456789e123456789f123456789g123456789x",
    };
    char *large = mem_alloc(5000, 1, "type");
    memset(large, 'x', 4999);
    memcpy(large, "multipart/form-data; boundary=", 30);
    for (size_t i = 0; i <= sizeof bad / sizeof *bad; i++) {
        multipart *m;
        multipart_handler h = {0};
        const char *type = i < sizeof bad / sizeof *bad ? bad[i] : large;
        if (multipart_open(&m, type, &h) != CORUN_EFORMAT) fail_msg("taken: %s", type);
        assert_non_null(strstr(err_text(), "Content-Type"));
    }
    mem_free(large);
    CHECK("multipart/form-data; "
          "boundary=a123456789b123456789c123456789d123456789e123456789f123456789g123456789",
          "--a123456789b123456789c123456789d123456789e123456789f123456789g123456789--", "");
}

static void test_limits(void **state)
{
    (void)state;
    buf b;
    buf_init(&b, 1 << 20);
    /* a header of exactly the limit is read, one byte more is not */
    for (size_t more = 0; more < 2; more++) {
        buf_reset(&b);
        buf_puts(&b, "--b0\r\n");
        size_t begin = b.len;
        buf_puts(&b, "Content-Disposition: form-data; name=x\r\nX: ");
        /* a kept line is its text and a NUL; the last one is "\r" */
        while (b.len - begin - 1 < MULTIPART_MAX_HEADER - 2 + more) buf_putc(&b, 'y');
        buf_puts(&b, "\r\n\r\n1\r\n--b0--");
        told t = {0};
        corun_status st = feed(&t, TYPE, b.data, b.len, 0, 0);
        assert_int_equal(st, more ? CORUN_EFORMAT : CORUN_OK);
        if (more) assert_non_null(strstr(err_text(), "longer than 8192 bytes"));
        buf_free(&t.b);
    }
    for (unsigned n = MULTIPART_MAX_PARTS; n <= MULTIPART_MAX_PARTS + 1; n++) {
        buf_reset(&b);
        for (unsigned i = 0; i < n; i++)
            buf_puts(&b, "--b0\r\nContent-Disposition: form-data; name=x\r\n\r\n1\r\n");
        buf_puts(&b, "--b0--");
        told t = {0};
        corun_status st = feed(&t, TYPE, b.data, b.len, 0, 0);
        assert_int_equal(st, n > MULTIPART_MAX_PARTS ? CORUN_EFORMAT : CORUN_OK);
        if (st) assert_non_null(strstr(err_text(), "more than 32 parts"));
        buf_free(&t.b);
    }
    buf_free(&b);
}

/* What the handler says ends the parsing; so does a failed allocation. */
static void test_handler_errors(void **state)
{
    (void)state;
    static const char body[] =
        "--b0\r\nContent-Disposition: form-data; name=x\r\n\r\n\r\n--b1\r\n--b0--";
    int calls = 3;
    for (int i = 1; i <= calls; i++) {
        for (size_t a = 0; a < sizeof body - 1; a++) {
            told t = {.fail_at = i};
            corun_status st = feed(&t, TYPE, body, sizeof body - 1, a, sizeof body - 1);
            assert_true(t.calls >= i);
            assert_int_equal(st, CORUN_ECAPACITY);
            assert_string_equal(err_text(), "the handler's");
            buf_free(&t.b);
        }
    }
    for (uint64_t n = 1; n <= 2; n++) {
        told t = {0};
        mem_fail_at(n);
        assert_int_equal(feed(&t, TYPE, body, sizeof body - 1, 0, 0), CORUN_ENOMEM);
        mem_fail_at(0);
        buf_free(&t.b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts),          cmocka_unit_test(test_near_boundaries),
        cmocka_unit_test(test_names),          cmocka_unit_test(test_malformed),
        cmocka_unit_test(test_types),          cmocka_unit_test(test_limits),
        cmocka_unit_test(test_handler_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
