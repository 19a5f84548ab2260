/* json.c - strict reading over Jansson and the writer. Invariant: output is always valid UTF-8. */
#include "base/json.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/utf8.h"

#define JSON_FLAGS (JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY)

corun_status json_read(json_t **out, const char *text, size_t len, const char *what)
{
    json_error_t e;
    *out = json_loadb(text, len, JSON_FLAGS, &e);
    if (*out) return CORUN_OK;
    if (len >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0)
        FAIL(CORUN_EFORMAT, "%s: JSON does not begin with a byte order mark (EF BB BF)", what);
    if (!memchr(text, '\n', len))
        FAIL(CORUN_EFORMAT, "%s: JSON, column %d: %s", what, e.column, e.text);
    FAIL(CORUN_EFORMAT, "%s: JSON, line %d column %d: %s", what, e.line, e.column, e.text);
}

json_t *json_read_rough(const char *text, size_t len)
{
    return json_loadb(text, len, JSON_FLAGS | JSON_DECODE_INT_AS_REAL, NULL);
}

corun_status file_refusal(int err)
{
    bool path = err == ENOENT || err == ENOTDIR || err == ELOOP || err == EACCES || err == EPERM ||
                err == EISDIR || err == ENXIO || err == ENAMETOOLONG;
    return path ? CORUN_EFORMAT : CORUN_EIO;
}

bool file_exists(const char *path)
{
    struct stat sb;
    return lstat(path, &sb) == 0 || errno != ENOENT;
}

corun_status file_read(buf *b, const char *path, size_t max)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not hang us */
    if (fd < 0) FAIL(file_refusal(errno), "%s: %s", path, strerror(errno));
    struct stat sb;
    if (fstat(fd, &sb) != 0 || !S_ISREG(sb.st_mode)) {
        close(fd);
        FAIL(CORUN_EFORMAT, "%s: not a regular file", path);
    }
    if ((uint64_t)sb.st_size > max) {
        close(fd);
        FAIL(CORUN_EFORMAT, "%s: %lld bytes, more than the %zu allowed", path,
             (long long)sb.st_size, max);
    }
    char chunk[65536];
    ssize_t n;
    while ((n = read(fd, chunk, sizeof chunk)) > 0) buf_put(b, chunk, (size_t)n);
    int saved = errno;
    close(fd);
    if (n < 0) FAIL(CORUN_EIO, "%s: %s", path, strerror(saved));
    return buf_status(b);
}

corun_status json_read_file(json_t **out, const char *path, size_t max)
{
    buf b;
    buf_init(&b, max);
    *out = NULL;
    corun_status st = file_read(&b, path, max);
    if (st == CORUN_OK) st = json_read(out, b.data ? b.data : "", b.len, path);
    buf_free(&b);
    return st;
}

bool json_is_whole(const json_t *v, int64_t *out)
{
    if (json_is_integer(v)) {
        *out = json_integer_value(v);
        return true;
    }
    if (!json_is_real(v)) return false;
    double d = json_real_value(v);
    if (!(fabs(d) < 9007199254740992.0) || d != floor(d)) return false;
    *out = (int64_t)d;
    return true;
}

void json_double_repr(double v, char out[32])
{
    char digits[32];
    int prec = 1;
    for (; prec <= 17; prec++) {
        snprintf(digits, sizeof digits, "%.*e", prec - 1, v);
        if (strtod(digits, NULL) == v) break;
    }
    if (!isfinite(v)) {
        snprintf(out, 32, "%s", isnan(v) ? "nan" : v > 0 ? "inf" : "-inf");
        return;
    }
    int e = atoi(strchr(digits, 'e') + 1);
    if (e < -4 || e >= 16) {
        char *p = strchr(digits, 'e');
        *p = 0;
        snprintf(out, 32, "%.24se%c%02d", digits, e < 0 ? '-' : '+', abs(e) % 1000);
        return;
    }
    int decimals = prec - 1 - e;
    snprintf(out, 32, "%.*f", decimals < 1 ? 1 : decimals, v);
}

void json_logprob_repr(float v, char out[32])
{
    if (v == -INFINITY || v < -9999.0f)
        snprintf(out, 32, "-9999.0");
    else {
        snprintf(out, 32, "%.9g", (double)v);
        if (!strpbrk(out, ".en")) strcat(out, ".0");
    }
}

void jw_init(jw *w, buf *b) { *w = (jw){.b = b}; }

static void jw_sep(jw *w)
{
    if (w->comma) buf_putc(w->b, ',');
    w->comma = true;
}

void jw_open(jw *w, char c)
{
    jw_sep(w);
    buf_putc(w->b, c);
    w->comma = false;
}

void jw_close(jw *w, char c)
{
    buf_putc(w->b, c);
    w->comma = true;
}

static void put_string(buf *b, const char *s, size_t len)
{
    buf_putc(b, '"');
    for (size_t i = 0; i < len;) {
        unsigned char c = (unsigned char)s[i];
        int n = utf8_part((const unsigned char *)s + i, len - i);
        if (n < 0) {
            buf_puts(b, "\xef\xbf\xbd");
            i += (size_t)-n;
        } else if (n > 1 || (c >= 0x20 && c != '"' && c != '\\')) {
            buf_put(b, s + i, (size_t)n);
            i += (size_t)n;
        } else {
            static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
            const char *p = c ? strchr(from, c) : NULL;
            if (p)
                buf_printf(b, "\\%c", to[p - from]);
            else
                buf_printf(b, "\\u%04x", c);
            i++;
        }
    }
    buf_putc(b, '"');
}

void jw_key_str(jw *w, const char *key, size_t len)
{
    jw_sep(w);
    put_string(w->b, key, len);
    buf_putc(w->b, ':');
    w->comma = false;
}

void jw_key(jw *w, const char *key) { jw_key_str(w, key, strlen(key)); }

void jw_str(jw *w, const char *s, size_t len)
{
    jw_sep(w);
    put_string(w->b, s, len);
}

void jw_cstr(jw *w, const char *s) { jw_str(w, s, strlen(s)); }

void jw_int(jw *w, int64_t v)
{
    jw_sep(w);
    buf_printf(w->b, "%lld", (long long)v);
}

void jw_uint(jw *w, uint64_t v)
{
    jw_sep(w);
    buf_printf(w->b, "%llu", (unsigned long long)v);
}

void jw_double(jw *w, double v)
{
    char t[32];
    jw_sep(w);
    json_double_repr(v, t);
    buf_puts(w->b, isfinite(v) ? t : "null");
}

void jw_logprob(jw *w, float v)
{
    char t[32];
    jw_sep(w);
    json_logprob_repr(v, t);
    buf_puts(w->b, t);
}

void jw_bool(jw *w, bool v)
{
    jw_sep(w);
    buf_puts(w->b, v ? "true" : "false");
}

void jw_null(jw *w)
{
    jw_sep(w);
    buf_puts(w->b, "null");
}

void jw_field_str(jw *w, const char *key, const char *v)
{
    jw_key(w, key);
    if (v)
        jw_cstr(w, v);
    else
        jw_null(w);
}

void jw_field_int(jw *w, const char *key, int64_t v)
{
    jw_key(w, key);
    jw_int(w, v);
}

void jw_field_uint(jw *w, const char *key, uint64_t v)
{
    jw_key(w, key);
    jw_uint(w, v);
}

void jw_field_double(jw *w, const char *key, double v)
{
    jw_key(w, key);
    jw_double(w, v);
}

void jw_field_bool(jw *w, const char *key, bool v)
{
    jw_key(w, key);
    jw_bool(w, v);
}

void jw_field_null(jw *w, const char *key)
{
    jw_key(w, key);
    jw_null(w);
}

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Keys in sorted order, each once (a hostile depth is bounded by the reader's 2,048 levels). */
static void put_object_sorted(jw *w, const json_t *v)
{
    size_t n = json_object_size(v), i = 0;
    const char **keys = mem_alloc(n, sizeof *keys, "JSON keys");
    if (!keys) {
        w->b->status = CORUN_ENOMEM;
        w->b->failed = true;
        return;
    }
    const char *key;
    json_t *val;
    json_object_foreach ((json_t *)(uintptr_t)v, key, val) keys[i++] = key;
    qsort(keys, n, sizeof *keys, by_bytes);
    jw_open(w, '{');
    for (i = 0; i < n; i++) {
        jw_key(w, keys[i]);
        jw_canonical(w, json_object_get(v, keys[i]));
    }
    jw_close(w, '}');
    mem_free(keys);
}

static void put_any(jw *w, const json_t *v, bool canonical)
{
    size_t i;
    const char *key;
    json_t *val;
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        if (canonical) {
            put_object_sorted(w, v);
            return;
        }
        jw_open(w, '{');
        json_object_foreach ((json_t *)(uintptr_t)v, key, val) {
            jw_key(w, key);
            put_any(w, val, canonical);
        }
        jw_close(w, '}');
        return;
    case JSON_ARRAY:
        jw_open(w, '[');
        json_array_foreach (v, i, val) put_any(w, val, canonical);
        jw_close(w, ']');
        return;
    case JSON_STRING: jw_str(w, json_string_value(v), json_string_length(v)); return;
    case JSON_INTEGER:
        if (canonical)
            jw_double(w, (double)json_integer_value(v));
        else
            jw_int(w, json_integer_value(v));
        return;
    case JSON_REAL: jw_double(w, json_real_value(v)); return;
    case JSON_TRUE:
    case JSON_FALSE: jw_bool(w, json_is_true(v)); return;
    case JSON_NULL: jw_null(w); return;
    }
}

void jw_value(jw *w, const json_t *v) { put_any(w, v, false); }
void jw_canonical(jw *w, const json_t *v) { put_any(w, v, true); }
