/* bpe_scan.c - reads model.vocab and model.merges of a tokenizer.json straight into the tables.
 *
 * These two members are nearly the whole file, and as trees of a JSON library they cost several
 * times its size and most of the loading time. They are cut out and read here, as strictly as the
 * rest: UTF-8, escapes, no duplicates. Invariant: no index leaves the span that is read. */
#include <string.h>

#include "text/bpe_int.h"

typedef struct scan {
    const char *s;
    size_t at, end;
    const char *what; /* the member, for errors */
    const char *file;
} scan;

static void skip_space(scan *c)
{
    while (c->at < c->end) {
        char x = c->s[c->at];
        if (x != ' ' && x != '\n' && x != '\r' && x != '\t') break;
        c->at++;
    }
}

static int peek(const scan *c) { return c->at < c->end ? (unsigned char)c->s[c->at] : -1; }

static bool take(scan *c, char want)
{
    skip_space(c);
    if (peek(c) != (unsigned char)want) return false;
    c->at++;
    return true;
}

static corun_status bad(const scan *c, const char *rule)
{
    FAIL(CORUN_EFORMAT, "%s: %s, byte %zu: %s", c->file, c->what, c->at, rule);
}

/* ---- cutting -------------------------------------------------------------------------------- */

/* Skips a string whose quote is at c->at; false: it does not end. */
static bool skip_string(scan *c)
{
    c->at++;
    while (c->at < c->end) {
        const char *q = memchr(c->s + c->at, '"', c->end - c->at);
        if (!q) break;
        size_t p = (size_t)(q - c->s), k = p;
        while (k > c->at && c->s[k - 1] == '\\') k--;
        c->at = p + 1;
        if ((p - k) % 2 == 0) return true;
    }
    c->at = c->end;
    return false;
}

/* Skips a value of any kind; false: the text ends first. */
static bool skip_value(scan *c)
{
    size_t depth = 0;
    do {
        skip_space(c);
        int x = peek(c);
        if (x < 0) return false;
        if (x == '"') {
            if (!skip_string(c)) return false;
        } else if (x == '{' || x == '[') {
            depth++;
            c->at++;
        } else if (x == '}' || x == ']') {
            if (!depth) return false;
            depth--;
            c->at++;
        } else if (x == ',' || x == ':') {
            if (!depth) return false;
            c->at++;
        } else {
            while (c->at < c->end && !strchr(" \n\r\t,:{}[]\"", c->s[c->at])) c->at++;
            if (c->at < c->end && !c->s[c->at]) return false;
        }
    } while (depth);
    return true;
}

typedef bool (*member_fn)(scan *c, const char *key, size_t len, void *arg);

/* Calls fn for each member of the object at c; fn leaves c behind the value. */
static bool each_member(scan *c, member_fn fn, void *arg)
{
    if (!take(c, '{')) return false;
    if (take(c, '}')) return true;
    for (;;) {
        skip_space(c);
        if (peek(c) != '"') return false;
        size_t key = c->at + 1;
        if (!skip_string(c)) return false;
        size_t len = c->at - 1 - key;
        if (!take(c, ':')) return false;
        skip_space(c);
        if (!fn(c, c->s + key, len, arg)) return false;
        if (take(c, '}')) return true;
        if (!take(c, ',')) return false;
    }
}

typedef struct cut_spans {
    bpe_span *vocab, *merges;
} cut_spans;

static bool key_is(const char *key, size_t len, const char *want)
{
    return len == strlen(want) && !memcmp(key, want, len);
}

static bool model_member(scan *c, const char *key, size_t len, void *arg)
{
    cut_spans *x = arg;
    bpe_span *span = NULL;
    if (key_is(key, len, "vocab") && peek(c) == '{') span = x->vocab;
    if (key_is(key, len, "merges") && peek(c) == '[') span = x->merges;
    size_t begin = c->at;
    if (!skip_value(c)) return false;
    if (span && !span->end) *span = (bpe_span){begin, c->at};
    return true;
}

static bool top_member(scan *c, const char *key, size_t len, void *arg)
{
    if (key_is(key, len, "model") && peek(c) == '{') return each_member(c, model_member, arg);
    return skip_value(c);
}

/* Appends an empty container with the line feeds of the one that stands in span. */
static void put_empty(buf *rest, const char *s, bpe_span span)
{
    buf_putc(rest, s[span.begin]);
    for (size_t at = span.begin; at < span.end;) {
        const char *nl = memchr(s + at, '\n', span.end - at);
        if (!nl) break;
        buf_putc(rest, '\n');
        at = (size_t)(nl - s) + 1;
    }
    buf_putc(rest, s[span.end - 1]);
}

corun_status bpe_scan_cut(const char *s, size_t len, bpe_span *vocab, bpe_span *merges, buf *rest)
{
    scan c = {.s = s, .end = len};
    *vocab = *merges = (bpe_span){0, 0};
    if (!each_member(&c, top_member, &(cut_spans){vocab, merges}))
        *vocab = *merges = (bpe_span){0, 0};
    const bpe_span *a = vocab, *b = merges;
    if (b->begin < a->begin) {
        const bpe_span *swap = a;
        a = b;
        b = swap;
    }
    size_t at = 0;
    for (int i = 0; i < 2; i++) {
        const bpe_span *x = i ? b : a;
        if (!x->end) continue;
        buf_put(rest, s + at, x->begin - at);
        put_empty(rest, s, *x);
        at = x->end;
    }
    buf_put(rest, s + at, len - at);
    return buf_status(rest);
}

/* ---- reading -------------------------------------------------------------------------------- */

static int hex4(const scan *c, size_t at)
{
    int v = 0;
    if (c->end - at < 4) return -1;
    for (size_t i = at; i < at + 4; i++) {
        int h = (unsigned char)c->s[i];
        int d = h >= '0' && h <= '9'                 ? h - '0'
                : (h | 32) >= 'a' && (h | 32) <= 'f' ? (h | 32) - 'a' + 10
                                                     : -1;
        if (d < 0) return -1;
        v = v * 16 + d;
    }
    return v;
}

/* The escape behind a backslash at c->at, appended to out. */
static corun_status read_escape(scan *c, buf *out)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    int e = c->at + 1 < c->end ? (unsigned char)c->s[c->at + 1] : 0;
    const char *k = e ? strchr(from, e) : NULL;
    if (k) {
        buf_putc(out, to[k - from]);
        c->at += 2;
        return CORUN_OK;
    }
    int v = e == 'u' ? hex4(c, c->at + 2) : -1;
    if (v < 0) return bad(c, "invalid escape");
    uint32_t u = (uint32_t)v;
    c->at += 6;
    if (u >= 0xD800 && u <= 0xDFFF) {
        int low = c->end - c->at >= 6 && c->s[c->at] == '\\' && c->s[c->at + 1] == 'u'
                      ? hex4(c, c->at + 2)
                      : -1;
        if (u > 0xDBFF || low < 0xDC00 || low > 0xDFFF) return bad(c, "lone surrogate");
        u = 0x10000 + ((u - 0xD800) << 10) + ((uint32_t)low - 0xDC00);
        c->at += 6;
    }
    char b[4];
    buf_put(out, b, (size_t)utf8_put(u, b));
    return CORUN_OK;
}

/* Appends a string's text to out. */
static corun_status read_string(scan *c, buf *out)
{
    skip_space(c);
    if (peek(c) != '"') return bad(c, "a string is expected");
    c->at++;
    size_t start = out->len;
    for (;;) {
        size_t k = c->at;
        while (k < c->end && c->s[k] != '"' && c->s[k] != '\\' && (unsigned char)c->s[k] >= 0x20)
            k++;
        buf_put(out, c->s + c->at, k - c->at);
        c->at = k;
        if (k == c->end) return bad(c, "a string does not end");
        if (c->s[k] == '"') break;
        if (c->s[k] != '\\') return bad(c, "control character in a string");
        TRY(read_escape(c, out));
    }
    c->at++;
    TRY(buf_status(out));
    size_t wrong;
    if (out->len > start && !utf8_valid(out->data + start, out->len - start, &wrong))
        return bad(c, "a string is not UTF-8");
    return CORUN_OK;
}

static corun_status read_id(scan *c, int32_t *id)
{
    skip_space(c);
    size_t start = c->at;
    int64_t v = 0;
    while (c->at < c->end && c->s[c->at] >= '0' && c->s[c->at] <= '9' && v < BPE_MAX_ID)
        v = v * 10 + (c->s[c->at++] - '0');
    int next = peek(c);
    if (c->at == start || (c->s[start] == '0' && c->at > start + 1) || v >= BPE_MAX_ID ||
        (next >= 0 && !strchr(" \n\r\t,}", next)))
        return bad(c, "a token id is expected");
    *id = (int32_t)v;
    return CORUN_OK;
}

corun_status bpe_scan_vocab(bpe *t, const char *s, bpe_span span)
{
    scan c = {.s = s, .at = span.begin, .end = span.end, .what = "model.vocab", .file = t->what};
    buf key;
    buf_init(&key, SIZE_MAX / 2);
    corun_status st = CORUN_OK;
    take(&c, '{');
    bool more = !take(&c, '}');
    while (more) {
        int32_t id = 0;
        buf_reset(&key);
        TRY_OR_DONE(read_string(&c, &key));
        if (!take(&c, ':')) {
            st = bad(&c, "':' is expected");
            goto done;
        }
        TRY_OR_DONE(read_id(&c, &id));
        TRY_OR_DONE(bpe_add_vocab(t, key.data ? key.data : "", key.len, id));
        if (take(&c, ',')) continue;
        more = false;
        if (!take(&c, '}')) st = bad(&c, "',' or '}' is expected");
    }
done:
    buf_free(&key);
    return st;
}

/* One merge, as "left right" or ["left", "right"]: both parts joined in b, and the left's length.
 */
static corun_status read_merge(scan *c, size_t i, buf *b, size_t *left)
{
    buf_reset(b);
    skip_space(c);
    if (take(c, '[')) {
        TRY(read_string(c, b));
        *left = b->len;
        if (!take(c, ',')) return bad(c, "a merge is a pair of strings");
        TRY(read_string(c, b));
        if (!take(c, ']')) return bad(c, "a merge is a pair of strings");
        return CORUN_OK;
    }
    TRY(read_string(c, b));
    char *space = b->len ? memchr(b->data, ' ', b->len) : NULL;
    size_t at = space ? (size_t)(space - b->data) : 0;
    if (!space || at == 0 || at + 1 == b->len || memchr(space + 1, ' ', b->len - at - 1))
        FAIL(CORUN_EFORMAT, "%s: model.merges, entry %zu: \"%.*s\" is not \"left right\"", c->file,
             i, b->len < 60 ? (int)b->len : 60, b->data ? b->data : "");
    memmove(space, space + 1, b->len - at - 1);
    b->len--;
    *left = at;
    return CORUN_OK;
}

static size_t count_items(scan c)
{
    size_t n = 0;
    take(&c, '[');
    while (skip_value(&c)) {
        n++;
        take(&c, ',');
    }
    return n;
}

corun_status bpe_scan_merges(bpe *t, const char *s, bpe_span span)
{
    scan c = {.s = s, .at = span.begin, .end = span.end, .what = "model.merges", .file = t->what};
    buf both;
    buf_init(&both, SIZE_MAX / 2);
    corun_status st = CORUN_OK;
    TRY_OR_DONE(bpe_merges_begin(t, count_items(c)));
    take(&c, '[');
    bool more = !take(&c, ']');
    for (size_t i = 0; more; i++) {
        size_t left = 0;
        TRY_OR_DONE(read_merge(&c, i, &both, &left));
        TRY_OR_DONE(bpe_add_merge(t, both.data ? both.data : "", left, both.len));
        if (take(&c, ',')) continue;
        more = false;
        if (!take(&c, ']')) st = bad(&c, "',' or ']' is expected");
    }
done:
    buf_free(&both);
    return st;
}
