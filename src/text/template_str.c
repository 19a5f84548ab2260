/* template_str.c - owns the string functions of templates, on code points as Python has them.
 * Invariant: strings are valid UTF-8 and are only ever cut between code points. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <utf8proc.h>

#include "text/template_int.h"

bool tstr_space(int32_t cp)
{
    return (cp >= 9 && cp <= 13) || (cp >= 0x1c && cp <= 0x20) || cp == 0x85 || cp == 0xa0 ||
           cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 ||
           cp == 0x202f || cp == 0x205f || cp == 0x3000;
}

bool tstr_valid(const char *s, size_t len)
{
    for (size_t i = 0; i < len;) {
        utf8proc_int32_t cp;
        utf8proc_ssize_t n =
            utf8proc_iterate((const utf8proc_uint8_t *)s + i, (utf8proc_ssize_t)(len - i), &cp);
        if (n <= 0) return false;
        i += (size_t)n;
    }
    return true;
}

int32_t tstr_cp(const char *s, int *n)
{
    unsigned char c = (unsigned char)s[0];
    *n = c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
    if (*n == 1) return c;
    int32_t cp = c & (0xff >> (*n + 1));
    for (int i = 1; i < *n; i++) cp = cp << 6 | ((unsigned char)s[i] & 0x3f);
    return cp;
}

size_t tstr_count(const char *s, size_t len)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++) n += ((unsigned char)s[i] & 0xc0) != 0x80;
    return n;
}

size_t tstr_offset(const char *s, size_t len, size_t i)
{
    size_t o = 0;
    for (; i > 0 && o < len; i--)
        for (o++; o < len && ((unsigned char)s[o] & 0xc0) == 0x80;) o++;
    return o;
}

const char *tstr_find(const char *s, size_t len, const char *w, size_t wlen)
{
    return wlen == 0 ? s : wlen > len ? NULL : memmem(s, len, w, wlen);
}

/* Start of the code point before s + i. */
static size_t before(const char *s, size_t i)
{
    for (i--; i > 0 && ((unsigned char)s[i] & 0xc0) == 0x80;) i--;
    return i;
}

static bool in_set(const char *s, int n, const tval *chars)
{
    int m;
    if (!chars) return tstr_space(tstr_cp(s, &m));
    for (uint32_t i = 0; i < chars->len; i += (uint32_t)m) {
        tstr_cp(chars->u.s + i, &m);
        if (m == n && memcmp(chars->u.s + i, s, (size_t)n) == 0) return true;
    }
    return false;
}

tval tstr_strip(const tval *v, const tval *chars, unsigned sides)
{
    const char *s = v->u.s;
    size_t a = 0, b = v->len;
    while ((sides & STRIP_LEFT) && a < b) {
        int n;
        tstr_cp(s + a, &n);
        if (!in_set(s + a, n, chars)) break;
        a += (size_t)n;
    }
    while ((sides & STRIP_RIGHT) && a < b) {
        size_t p = before(s, b);
        if (!in_set(s + p, (int)(b - p), chars)) break;
        b = p;
    }
    tval r = tv_str(s + a, b - a);
    r.sub = v->sub;
    return r;
}

/* ---- splitting ----------------------------------------------------------------------------------
 */

typedef struct pieces {
    tval *v;
    size_t n, cap;
} pieces;

static corun_status add_piece(tctx *c, pieces *p, const char *s, size_t len)
{
    if (p->n == p->cap) {
        size_t cap = p->cap ? p->cap * 2 : 8;
        tval *v = tpl_grow(&c->a, p->v, p->cap * sizeof *v, cap * sizeof *v);
        if (!v) return tpl_why(&c->a);
        p->v = v;
        p->cap = cap;
    }
    p->v[p->n++] = tv_str(s, len);
    return tpl_charge(c, 1);
}

static void reverse(pieces *p)
{
    for (size_t i = 0; i < p->n / 2; i++) {
        tval t = p->v[i];
        p->v[i] = p->v[p->n - 1 - i];
        p->v[p->n - 1 - i] = t;
    }
}

static corun_status split_space(tctx *c, const tval *v, int64_t max, pieces *p)
{
    const char *s = v->u.s;
    size_t i = 0, len = v->len;
    for (;;) {
        int n;
        while (i < len && tstr_space(tstr_cp(s + i, &n))) i += (size_t)n;
        if (i >= len) return CORUN_OK;
        if (max >= 0 && (int64_t)p->n >= max) return add_piece(c, p, s + i, len - i);
        size_t from = i;
        while (i < len && !tstr_space(tstr_cp(s + i, &n))) i += (size_t)n;
        TRY(add_piece(c, p, s + from, i - from));
    }
}

static corun_status rsplit_space(tctx *c, const tval *v, int64_t max, pieces *p)
{
    const char *s = v->u.s;
    size_t len = v->len;
    for (;;) {
        tval rest = tv_str(s, len);
        len = tstr_strip(&rest, NULL, STRIP_RIGHT).len;
        if (len == 0) break;
        if (max >= 0 && (int64_t)p->n >= max) {
            TRY(add_piece(c, p, s, len));
            break;
        }
        size_t from = len;
        int n;
        while (from > 0 && !tstr_space(tstr_cp(s + before(s, from), &n))) from = before(s, from);
        TRY(add_piece(c, p, s + from, len - from));
        len = from;
    }
    reverse(p);
    return CORUN_OK;
}

static corun_status split_word(tctx *c, const tval *v, const tval *sep, int64_t max, pieces *p)
{
    const char *s = v->u.s, *end = s + v->len, *hit;
    while ((max < 0 || (int64_t)p->n < max) &&
           (hit = tstr_find(s, (size_t)(end - s), sep->u.s, sep->len))) {
        TRY(add_piece(c, p, s, (size_t)(hit - s)));
        s = hit + sep->len;
    }
    return add_piece(c, p, s, (size_t)(end - s));
}

static corun_status rsplit_word(tctx *c, const tval *v, const tval *sep, int64_t max, pieces *p)
{
    size_t end = v->len, i = end;
    while ((max < 0 || (int64_t)p->n < max) && i >= sep->len) {
        TRY(tpl_charge(c, sep->len / 64));
        if (memcmp(v->u.s + i - sep->len, sep->u.s, sep->len) != 0) {
            i--;
            continue;
        }
        TRY(add_piece(c, p, v->u.s + i, end - i));
        end = i -= sep->len;
    }
    TRY(add_piece(c, p, v->u.s, end));
    reverse(p);
    return CORUN_OK;
}

corun_status tstr_split(tctx *c, const tval *v, const tval *sep, int64_t max, bool from_right,
                        tval *out)
{
    pieces p = {0};
    TRY(tpl_charge(c, v->len / 16));
    if (sep && sep->len == 0) return tpl_fail(c, "empty separator");
    if (!sep)
        TRY(from_right ? rsplit_space(c, v, max, &p) : split_space(c, v, max, &p));
    else
        TRY(from_right ? rsplit_word(c, v, sep, max, &p) : split_word(c, v, sep, max, &p));
    for (size_t i = 0; i < p.n; i++) p.v[i].sub = v->sub;
    return tpl_seq(c, SEQ_LIST, p.v, p.n, out);
}

static bool line_end(int32_t cp)
{
    return (cp >= 10 && cp <= 13) || (cp >= 0x1c && cp <= 0x1e) || cp == 0x85 || cp == 0x2028 ||
           cp == 0x2029;
}

corun_status tstr_splitlines(tctx *c, const tval *v, bool keep, tval *out)
{
    pieces p = {0};
    const char *s = v->u.s;
    size_t from = 0;
    TRY(tpl_charge(c, v->len / 16));
    for (size_t i = 0; i < v->len;) {
        int n;
        int32_t cp = tstr_cp(s + i, &n);
        size_t next = i + (size_t)n;
        if (line_end(cp)) {
            if (cp == '\r' && next < v->len && s[next] == '\n') next++;
            TRY(add_piece(c, &p, s + from, (keep ? next : i) - from));
            from = next;
        }
        i = next;
    }
    if (from < v->len) TRY(add_piece(c, &p, s + from, v->len - from));
    for (size_t i = 0; i < p.n; i++) p.v[i].sub = v->sub;
    return tpl_seq(c, SEQ_LIST, p.v, p.n, out);
}

corun_status tstr_replace(tctx *c, const tval *v, const tval *from, const tval *to, int64_t max,
                          tval *out)
{
    tsb b = {0};
    const char *s = v->u.s, *end = s + v->len;
    TRY(tpl_charge(c, v->len / 16));
    for (int64_t done = 0; max < 0 || done < max; done++) {
        const char *hit = tstr_find(s, (size_t)(end - s), from->u.s, from->len);
        if (!hit) break;
        tsb_put(c, &b, s, (size_t)(hit - s));
        tsb_put(c, &b, to->u.s, to->len);
        s = hit + from->len;
        TRY(tpl_charge(c, 1));
        if (from->len == 0) { /* between all code points, and at the end */
            if (s >= end) break;
            int n;
            tstr_cp(s, &n);
            tsb_put(c, &b, s, (size_t)n);
            s += n;
        }
        if (b.failed) return tpl_why(&c->a);
    }
    tsb_put(c, &b, s, (size_t)(end - s));
    return tsb_value(c, &b, out);
}

corun_status tstr_escape_html(tctx *c, const tval *v, tval *out)
{
    tsb b = {0};
    if (v->kind == T_STR && v->sub) {
        *out = *v;
        return CORUN_OK;
    }
    tval text;
    TRY(tpl_to_str(c, v, &text));
    for (uint32_t i = 0; i < text.len; i++) {
        const char *s = text.u.s + i;
        const char *r = *s == '&'    ? "&amp;"
                        : *s == '<'  ? "&lt;"
                        : *s == '>'  ? "&gt;"
                        : *s == '"'  ? "&#34;"
                        : *s == '\'' ? "&#39;"
                                     : NULL;
        if (r)
            tsb_puts(c, &b, r);
        else
            tsb_put(c, &b, s, 1);
    }
    TRY(tsb_value(c, &b, out));
    out->sub = 1;
    return CORUN_OK;
}

/* ---- formatting
 * ---------------------------------------------------------------------------------- */

typedef struct directive {
    char flags[8], conv;
    int width, precision; /* -1: none */
} directive;

static corun_status put_padded(tctx *c, tsb *b, const directive *d, const char *s, size_t len)
{
    if (d->precision >= 0) len = tstr_offset(s, len, (size_t)d->precision);
    int pad = d->width - (int)tstr_count(s, len);
    bool left = strchr(d->flags, '-') != NULL;
    if (left) tsb_put(c, b, s, len);
    while (pad-- > 0) tsb_put(c, b, " ", 1);
    if (!left) tsb_put(c, b, s, len);
    return b->failed ? tpl_why(&c->a) : CORUN_OK;
}

static corun_status put_number(tctx *c, tsb *b, const directive *d, const tval *v)
{
    char fmt[24], text[1400];
    bool as_float = strchr("eEfFgG", d->conv) != NULL;
    if (!tv_is_num(v) || (!as_float && strchr("xXo", d->conv) && v->kind == T_FLOAT))
        return tpl_fail(c, "%%%c format: a number is required, not %s", d->conv, tpl_kind_name(v));
    int precision = d->precision < 0 ? 6 : d->precision;
    if (as_float) {
        snprintf(fmt, sizeof fmt, "%%%s*.*%c", d->flags, d->conv);
        snprintf(text, sizeof text, fmt, d->width, precision, tv_double(v));
    } else {
        double f = v->kind == T_FLOAT ? v->u.f : 0;
        if (!(fabs(f) < 9e18)) return tpl_fail(c, "integer overflow");
        int64_t i = v->kind == T_FLOAT ? (int64_t)f : v->u.i;
        bool hex = strchr("xXo", d->conv) != NULL;
        if (hex && i < 0) return tpl_fail(c, "%%%c of a negative number is not supported", d->conv);
        snprintf(fmt, sizeof fmt, "%%%s*.*ll%c", d->flags, hex ? d->conv : 'd');
        snprintf(text, sizeof text, fmt, d->width, d->precision, (long long)i); /* -1: none */
    }
    tsb_puts(c, b, text);
    return b->failed ? tpl_why(&c->a) : CORUN_OK;
}

static int read_count(const char **s, const char *end)
{
    int n = 0;
    while (*s < end && **s >= '0' && **s <= '9' && n < 10000) n = n * 10 + (*(*s)++ - '0');
    return n;
}

/* Reads "[flags][width][.precision]conv" at *s. */
static corun_status read_directive(tctx *c, const char **s, const char *end, directive *d)
{
    *d = (directive){.precision = -1};
    size_t n = 0;
    while (*s < end && **s && strchr("-+ #0", **s) && n + 1 < sizeof d->flags)
        d->flags[n++] = *(*s)++;
    d->width = read_count(s, end);
    if (*s < end && **s == '.') {
        (*s)++;
        d->precision = read_count(s, end);
    }
    if (d->width > 1000 || d->precision > 300) return tpl_fail(c, "format field is too wide");
    if (*s >= end) return tpl_fail(c, "incomplete format");
    d->conv = *(*s)++;
    if (!d->conv || !strchr("srdiufFeEgGxXo%", d->conv))
        return tpl_fail(c, "the format '%%%c' is not supported", d->conv);
    return CORUN_OK;
}

static corun_status put_directive(tctx *c, tsb *b, const directive *d, const tval *v)
{
    tval text;
    if (d->conv == 's') {
        TRY(tpl_to_str(c, v, &text));
        return put_padded(c, b, d, text.u.s, text.len);
    }
    if (d->conv == 'r') {
        tsb r = {0};
        TRY(tpl_put_repr(c, &r, v));
        return put_padded(c, b, d, r.p, r.len);
    }
    return put_number(c, b, d, v);
}

corun_status tstr_percent(tctx *c, const tval *fmt, const tval *args, tval *out)
{
    tsb b = {0};
    const char *s = fmt->u.s, *end = s + fmt->len;
    bool many = args->kind == T_SEQ && args->sub == SEQ_TUPLE;
    uint32_t next = 0, n = many ? args->len : 1;
    while (s < end) {
        const char *p = memchr(s, '%', (size_t)(end - s));
        tsb_put(c, &b, s, (size_t)((p ? p : end) - s));
        if (!p) break;
        s = p + 1;
        const tval *v = NULL;
        if (s < end && *s == '(' && args->kind == T_DICT) {
            const char *close = memchr(s, ')', (size_t)(end - s));
            if (!close) return tpl_fail(c, "incomplete format key");
            tval key = tv_str(s + 1, (size_t)(close - s - 1));
            TRY(tpl_dict_get(c, args, &key, &v));
            if (!v) return tpl_fail(c, "format key '%.*s' is missing", (int)key.len, key.u.s);
            s = close + 1;
        }
        directive d;
        TRY(read_directive(c, &s, end, &d));
        if (d.conv == '%') {
            tsb_put(c, &b, "%", 1);
            continue;
        }
        if (!v) {
            if (next >= n) return tpl_fail(c, "not enough arguments for format string");
            v = many ? &args->u.v[next] : args;
            next++;
        }
        TRY(put_directive(c, &b, &d, v));
    }
    bool strict = many || args->kind == T_STR || args->kind == T_NONE || tv_is_num(args);
    if (next < n && strict)
        return tpl_fail(c, "not all arguments converted during string formatting");
    return tsb_value(c, &b, out);
}

/* The argument that a replacement field names. */
static corun_status format_field(tctx *c, const char *name, size_t len, const targs *a, int *next,
                                 const tval **out)
{
    *out = NULL;
    bool digits = len > 0 && len < 6;
    int index = 0;
    for (size_t i = 0; i < len; i++) {
        if (strchr("!:.[", name[i]) && name[i])
            return tpl_fail(c, "the format field '{%.*s}' is not supported", (int)len, name);
        if (name[i] < '0' || name[i] > '9') digits = false;
        if (digits) index = index * 10 + (name[i] - '0');
    }
    if (len == 0) {
        if (*next < 0) return tpl_fail(c, "cannot switch to automatic field numbering");
        index = (*next)++;
    } else if (digits) {
        if (*next > 0) return tpl_fail(c, "cannot switch to manual field specification");
        *next = -1;
    }
    if (len == 0 || digits) {
        if (index < a->n) *out = &a->v[index];
    } else {
        for (int i = 0; i < a->n_kw; i++)
            if (a->kw[i].len == len && memcmp(a->kw[i].name, name, len) == 0) *out = &a->kw[i].v;
    }
    if (!*out) return tpl_fail(c, "the format field '{%.*s}' has no argument", (int)len, name);
    return CORUN_OK;
}

corun_status tstr_format(tctx *c, const tval *fmt, const targs *a, tval *out)
{
    tsb b = {0};
    const char *s = fmt->u.s, *end = s + fmt->len;
    int next = 0;
    while (s < end) {
        char ch = *s;
        if (ch != '{' && ch != '}') {
            const char *p = s;
            while (p < end && *p != '{' && *p != '}') p++;
            tsb_put(c, &b, s, (size_t)(p - s));
            s = p;
            continue;
        }
        if (s + 1 < end && s[1] == ch) {
            tsb_put(c, &b, s, 1);
            s += 2;
            continue;
        }
        const char *close = ch == '{' ? memchr(s, '}', (size_t)(end - s)) : NULL;
        if (!close) return tpl_fail(c, "single '%c' encountered in format string", ch);
        const tval *v;
        TRY(format_field(c, s + 1, (size_t)(close - s - 1), a, &next, &v));
        TRY(tpl_put_str(c, &b, v));
        s = close + 1;
    }
    return tsb_value(c, &b, out);
}
