/* Heads of requests and bodies in chunks: what is read, what is refused, and that pieces of any
 * size give the same. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "app/http_head.h"

static const struct {
    const char *text;
    int status;
} heads[] = {
    {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 0},
    {"GET / HTTP/1.0\r\n\r\n", 0},
    {"GET http://x/a HTTP/1.1\r\nHost: x\r\n\r\n", 0},
    {"GET http:///a HTTP/1.1\r\nHost: x\r\n\r\n", 400},
    {"GET http://x@y/a HTTP/1.1\r\nHost: x\r\n\r\n", 400},
    {"GET http://x?/a HTTP/1.1\r\nHost: x\r\n\r\n", 400},
    {"GET http://x/a HTTP/1.1\r\n\r\n", 400}, /* no Host */
    {"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 12\r\n\r\n", 0},
    {"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: Chunked\r\n\r\n", 0},
    {"GET / HTTP/1.1\r\n\r\n", 400}, /* no Host */
    {"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400},
    {"GET / HTTP/2.0\r\nHost: x\r\n\r\n", 505},
    {"GET /\r\n\r\n", 400},
    {"\r\n\r\n", 400}, /* its end is that of an empty line */
    {"GET  / HTTP/1.1\r\nHost: x\r\n\r\n", 400},
    {"GET a HTTP/1.1\r\nHost: x\r\n\r\n", 400},
    {"GET /%0 HTTP/1.1\r\nHost: x\r\n\r\n", 400},
    {"GET /%00 HTTP/1.1\r\nHost: x\r\n\r\n", 400},
    {"GET / HTTP/1.1\nHost: x\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\nHost : x\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\nHost: x\r\n more\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\nHost: x\ry\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\nHost: x\r\nA: \x01\r\n\r\n", 400},
    {"P /a HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n", 400},
    {"P /a HTTP/1.1\r\nHost: x\r\nContent-Length: +1\r\n\r\n", 400},
    {"P /a HTTP/1.1\r\nHost: x\r\nContent-Length: 1234567890123456789\r\n\r\n", 400},
    {"P / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
    {"P / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501},
    {"P / HTTP/1.1\r\nHost: x\r\nExpect: magic\r\n\r\n", 417},
};

static void test_heads(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        http_head h;
        const char *t = heads[i].text, *why;
        size_t n = strlen(t);
        if (t[0] != '\r') assert_int_equal(http_head_end(t, n, 0), n);
        int status = http_head_read(&h, t, n, &why);
        if (status != heads[i].status) fail_msg("%s: %d, %s", t, status, why);
        http_head_free(&h);
    }
}

static void test_fields(void **state)
{
    (void)state;
    static const char t[] = "GET /a%20b/%C3%A9?x=1+2&y&z=%26 HTTP/1.1\r\nHost: h\r\nA:  b c \t\r\n"
                            "Connection: Close\r\nExpect: 100-continue\r\n\r\n";
    http_head h;
    const char *why;
    assert_int_equal(http_head_read(&h, t, sizeof t - 1, &why), 0);
    assert_string_equal(h.path, "/a b/\xc3\xa9");
    assert_int_equal(h.n_query, 3);
    assert_string_equal(h.query[0].value, "1 2");
    assert_string_equal(h.query[1].value, "");
    assert_string_equal(h.query[2].value, "&");
    assert_string_equal(http_head_field(&h, "a"), "b c");
    assert_null(http_head_field(&h, "b"));
    assert_true(h.close && h.expect && !h.chunked && h.length == 0);
    http_head_free(&h);
}

/* Whom a request is for: the target's authority counts before the Host header. */
static void test_host(void **state)
{
    (void)state;
    static const struct {
        const char *text, *host, *path;
    } list[] = {
        {"GET /a HTTP/1.1\r\nHost: h:1\r\n\r\n", "h:1", "/a"},
        {"GET /http://y/ HTTP/1.1\r\nHost: h\r\n\r\n", "h", "/http://y/"},
        {"GET http://y:2/a?b=/c HTTP/1.1\r\nHost: h\r\n\r\n", "y:2", "/a"},
        {"GET HTTP://Y/ HTTP/1.0\r\n\r\n", "Y", "/"},
        {"GET / HTTP/1.0\r\n\r\n", NULL, "/"},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        http_head h;
        const char *why;
        assert_int_equal(http_head_read(&h, list[i].text, strlen(list[i].text), &why), 0);
        if (list[i].host)
            assert_string_equal(h.host, list[i].host);
        else
            assert_null(h.host);
        assert_string_equal(h.path, list[i].path);
        assert_string_equal(h.method, "GET");
        http_head_free(&h);
    }
}

/* Feeds text in pieces; the body into out. What http_chunks_read gave last; *left: unread bytes. */
static int unchunk(const char *text, size_t len, size_t piece, char *out, size_t *n_out,
                   size_t *left)
{
    http_chunks c = {0};
    int r = 0;
    *n_out = 0;
    size_t at = 0;
    while (r == 0 && at < len) {
        size_t k = piece < len - at ? piece : len - at, used, n;
        r = http_chunks_read(&c, text + at, k, &used, &n);
        assert_true(used > 0 && used <= k && n <= used);
        memcpy(out + *n_out, text + at + used - n, n);
        *n_out += n;
        at += used;
    }
    *left = len - at;
    return r;
}

static const struct {
    const char *text;
    int result;
    const char *body;
} chunked[] = {
    {"0\r\n\r\n", 1, ""},
    {"3\r\nabc\r\n0\r\n\r\n", 1, "abc"},
    {"3;x=y\r\nabc\r\nA \r\n0123456789\r\n0\r\nT: v\r\nU: w\r\n\r\n", 1, "abc0123456789"},
    {"00003\r\nabc\r\n0000\r\n\r\n", 1, "abc"},
    {"3\r\nabcd", -1, "abc"},
    {"3\nabc", -1, ""},
    {"g\r\n", -1, ""},
    {"\r\n", -1, ""},
    {"-1\r\n", -1, ""},
    {"1234567890123456\r\n", -1, ""},
    {"3\r\nab", 0, "ab"},
};

static void test_chunks(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof chunked / sizeof *chunked; i++)
        for (size_t piece = 1; piece < 40; piece++) {
            char out[200];
            size_t n, left, len = strlen(chunked[i].text);
            int r = unchunk(chunked[i].text, len, piece, out, &n, &left);
            if (r != chunked[i].result) fail_msg("%s: %d", chunked[i].text, r);
            assert_int_equal(n, strlen(chunked[i].body));
            assert_memory_equal(out, chunked[i].body, n);
            if (r == 1) assert_int_equal(left, 0);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_heads),
        cmocka_unit_test(test_fields),
        cmocka_unit_test(test_host),
        cmocka_unit_test(test_chunks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
