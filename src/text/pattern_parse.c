/* pattern_parse.c - translates an Oniguruma expression into a PCRE2 one over sets of characters.
 * Invariant: what is not known to mean the same in both is translated or refused, never passed
 * on. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "text/pattern_int.h"

#define MAX_LEN   65536
#define MAX_DEPTH 64
#define MAX_SETS  4096

typedef struct parser {
    const char *s;
    size_t len, at;
    const char *what;
    pattern_src *o;
    bool icase[MAX_DEPTH + 1]; /* (?i) is on, for each open group */
    int depth;
    bool in_class;    /* inside [...] */
    bool item;        /* a quantifier may follow */
    bool group_start; /* nothing but (?i) came since the group began */
    uint32_t last;    /* the literal just before, under (?i); 0: none */
} parser;

void pattern_src_free(pattern_src *s)
{
    for (size_t i = 0; i < s->n; i++) charset_free(&s->set[i]);
    mem_free(s->set);
    buf_free(&s->text);
    *s = (pattern_src){0};
}

#define REFUSE(p, ...) return refuse((p), __VA_ARGS__)

static corun_status __attribute__((format(printf, 2, 3)))
refuse(const parser *p, const char *fmt, ...)
{
    char text[128];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    FAIL(CORUN_EUNSUPPORTED, "%s: pattern, byte %zu: %s", p->what, p->at, text);
}

static int peek(const parser *p, size_t ahead)
{
    return p->at + ahead < p->len ? (unsigned char)p->s[p->at + ahead] : -1;
}

static uint32_t next_char(parser *p)
{
    int n;
    uint32_t c = utf8_next(p->s + p->at, &n);
    p->at += (size_t)n;
    return c;
}

/* Emits "one character of set" and takes the set over. */
static corun_status emit_set(parser *p, charset *set)
{
    pattern_src *o = p->o;
    size_t i = 0;
    while (i < o->n && !charset_equal(&o->set[i], set)) i++;
    if (i < o->n) {
        charset_free(set);
    } else {
        if (o->n == MAX_SETS) REFUSE(p, "more than %d different sets", MAX_SETS);
        if (o->n == o->cap) {
            size_t cap = o->cap ? o->cap * 2 : 16;
            charset *a = mem_realloc(o->set, cap, sizeof *a, "pattern sets");
            if (!a) return CORUN_ENOMEM;
            o->set = a;
            o->cap = cap;
        }
        o->set[o->n++] = *set;
        *set = (charset){0};
    }
    buf_putc(&o->text, PATTERN_MARK);
    buf_putc(&o->text, (char)(i >> 8));
    buf_putc(&o->text, (char)(i & 0xFF));
    return buf_status(&o->text);
}

static corun_status emit_text(parser *p, const char *s)
{
    buf_puts(&p->o->text, s);
    return buf_status(&p->o->text);
}

static corun_status emit_range(parser *p, uint32_t lo, uint32_t hi)
{
    charset set = {0};
    corun_status st = charset_add(&set, lo, hi);
    if (st == CORUN_OK) st = emit_set(p, &set);
    charset_free(&set);
    return st;
}

/* Adds [lo, hi] with its other cases where (?i) is on. */
static corun_status add_range(parser *p, charset *set, uint32_t lo, uint32_t hi)
{
    TRY(charset_add(set, lo, hi));
    if (!p->icase[p->depth]) return CORUN_OK;
    for (uint32_t c = lo; c <= hi; c++) {
        if (c >= 0x80) {
            const char *g = unicode_gc_names[unicode_gc(c)];
            if (g[0] != 'L' && g[0] != 'M' && g[0] != 'N' && g[0] != 'S') continue;
            REFUSE(p, "U+%04X under (?i): only ASCII letters are known there", c);
        }
        if (!((c | 0x20) >= 'a' && (c | 0x20) <= 'z')) continue;
        TRY(charset_add(set, c ^ 0x20, c ^ 0x20));
        if ((c | 0x20) == 's') TRY(charset_add(set, 0x17F, 0x17F));
        if ((c | 0x20) == 'k') TRY(charset_add(set, 0x212A, 0x212A));
    }
    return CORUN_OK;
}

static corun_status literal_char(parser *p, uint32_t c)
{
    if (p->icase[p->depth]) {
        /* Letters that one character also spells, as U+FB01 does "fi". */
        static const char pairs[] = "ss st ff fi fl";
        char two[3] = {(char)(p->last | 0x20), (char)(c | 0x20), 0};
        if (p->last && p->last < 0x80 && c < 0x80 && c != ' ' && strstr(pairs, two))
            REFUSE(p, "\"%s\" under (?i) has one-character spellings that we do not know", two);
    }
    charset set = {0};
    corun_status st = add_range(p, &set, c, c);
    charset_settle(&set);
    if (st == CORUN_OK) st = emit_set(p, &set);
    charset_free(&set);
    p->last = p->icase[p->depth] ? c : 0;
    p->item = true;
    return st;
}

static corun_status hex(parser *p, int digits, bool braces, uint32_t *c)
{
    uint32_t v = 0;
    int k = 0;
    for (; k < digits; k++) {
        int h = peek(p, 0);
        int d = h >= '0' && h <= '9'                 ? h - '0'
                : (h | 32) >= 'a' && (h | 32) <= 'f' ? (h | 32) - 'a' + 10
                                                     : -1;
        if (d < 0) break;
        v = v * 16 + (uint32_t)d;
        p->at++;
    }
    if (braces) {
        if (k == 0 || peek(p, 0) != '}') REFUSE(p, "\\x{...} needs hexadecimal digits");
        p->at++;
    } else if (k < (digits == 4 ? 4 : 1)) {
        REFUSE(p, "too few hexadecimal digits");
    }
    if (v > UNICODE_MAX || (v >= 0xD800 && v <= 0xDFFF)) REFUSE(p, "U+%X is no character", v);
    if (digits == 2 && v >= 0x80) REFUSE(p, "\\x%X is a byte, not a character", v);
    *c = v;
    return CORUN_OK;
}

/* \p{name}, \p{^name}, \P{name}; p->at is behind the p. */
static corun_status property(parser *p, bool inverted, charset *set)
{
    if (p->icase[p->depth]) REFUSE(p, "\\p{...} under (?i)");
    if (peek(p, 0) != '{') REFUSE(p, "\\p needs a name in braces");
    p->at++;
    if (peek(p, 0) == '^') {
        inverted = !inverted;
        p->at++;
    }
    const char *name = p->s + p->at;
    const char *end = memchr(name, '}', p->len - p->at);
    if (!end) REFUSE(p, "\\p{ without }");
    bool known;
    TRY(charset_add_property(set, name, (size_t)(end - name), &known));
    if (!known) REFUSE(p, "\\p{%.*s}: no such class here", (int)(end - name) % 64, name);
    p->at = (size_t)(end - p->s) + 1;
    return inverted ? charset_invert(set) : CORUN_OK;
}

/* The part after a backslash that means the same inside and outside of [...]: a set (*is_set) or
 * one character. */
static corun_status escape(parser *p, bool *is_set, charset *set, uint32_t *c)
{
    if (p->at >= p->len) REFUSE(p, "a backslash at the end");
    *is_set = false;
    uint32_t e = next_char(p);
    switch (e) {
    case 'n': *c = '\n'; return CORUN_OK;
    case 't': *c = '\t'; return CORUN_OK;
    case 'r': *c = '\r'; return CORUN_OK;
    case 'f': *c = '\f'; return CORUN_OK;
    case 'v': *c = '\v'; return CORUN_OK;
    case 'a': *c = 7; return CORUN_OK;
    case 'e': *c = 27; return CORUN_OK;
    case 'u': return hex(p, 4, false, c);
    case 'x':
        if (peek(p, 0) != '{') return hex(p, 2, false, c);
        p->at++;
        return hex(p, 8, true, c);
    default: break;
    }
    *is_set = true;
    switch (e) {
    case 'd': return charset_add_gc(set, "Nd");
    case 'D': TRY(charset_add_gc(set, "Nd")); return charset_invert(set);
    case 'w': return charset_add_word(set, p->in_class);
    case 'W': TRY(charset_add_word(set, p->in_class)); return charset_invert(set);
    case 's': return charset_add_ranges(set, unicode_space, unicode_space_n);
    case 'S':
        TRY(charset_add_ranges(set, unicode_space, unicode_space_n));
        return charset_invert(set);
    case 'h':
    case 'H': {
        static const unicode_range h[] = {{'0', '9'}, {'A', 'F'}, {'a', 'f'}};
        TRY(charset_add_ranges(set, h, 3));
        return e == 'H' ? charset_invert(set) : CORUN_OK;
    }
    case 'p': return property(p, false, set);
    case 'P': return property(p, true, set);
    default: break;
    }
    *is_set = false;
    bool alnum = (e >= '0' && e <= '9') || ((e | 0x20) >= 'a' && (e | 0x20) <= 'z');
    if (alnum) REFUSE(p, "\\%c is not supported", (char)e);
    *c = e;
    return CORUN_OK;
}

/* ---- [...] ---------------------------------------------------------------------------------- */

static corun_status class_body(parser *p, charset *out, int depth);

/* One item of a class added to set: a nested class, an escape, a character or a range. */
static corun_status class_item(parser *p, charset *set, int depth)
{
    charset part = {0};
    corun_status st;
    bool is_set = false;
    uint32_t lo = 0, hi;
    if (peek(p, 0) == '[') {
        if (peek(p, 1) == ':') REFUSE(p, "[[:name:]]");
        p->at++;
        is_set = true;
        st = class_body(p, &part, depth + 1);
    } else if (peek(p, 0) == '\\') {
        p->at++;
        st = CORUN_OK;
        if (peek(p, 0) == 'b') {
            p->at++;
            lo = 8;
        } else {
            st = escape(p, &is_set, &part, &lo);
        }
    } else {
        lo = next_char(p);
        st = CORUN_OK;
    }
    if (st == CORUN_OK && is_set) st = charset_union(set, &part);
    charset_free(&part);
    if (st != CORUN_OK || is_set) return st;

    hi = lo;
    if (peek(p, 0) == '-' && peek(p, 1) >= 0 && peek(p, 1) != ']') {
        p->at++;
        if (peek(p, 0) == '[') REFUSE(p, "a range that ends in a class");
        if (peek(p, 0) == '\\') {
            p->at++;
            st = escape(p, &is_set, &part, &hi);
            charset_free(&part);
            TRY(st);
            if (is_set) REFUSE(p, "a range that ends in a class");
        } else {
            hi = next_char(p);
        }
        if (hi < lo) REFUSE(p, "empty range");
    }
    return add_range(p, set, lo, hi);
}

/* Behind the [ of a class; leaves p behind its ]. */
static corun_status class_items(parser *p, charset *all, charset *part, int depth)
{
    bool inverted = false, first = true, all_set = false;
    if (depth > 8) REFUSE(p, "classes nested too deep");
    if (peek(p, 0) == '^') {
        inverted = true;
        p->at++;
    }
    for (;; first = false) {
        int c = peek(p, 0);
        if (c < 0) REFUSE(p, "[ without ]");
        if (c == ']' && first) REFUSE(p, "empty class");
        bool both = c == '&' && peek(p, 1) == '&';
        if (c != ']' && !both) {
            TRY(class_item(p, part, depth));
            continue;
        }
        charset_settle(part);
        TRY(all_set ? charset_intersect(all, part) : charset_union(all, part));
        all_set = true;
        charset_free(part);
        p->at += both ? 2 : 1;
        if (!both) return inverted ? charset_invert(all) : CORUN_OK;
    }
}

static corun_status class_body(parser *p, charset *out, int depth)
{
    charset part = {0};
    corun_status st = class_items(p, out, &part, depth);
    charset_free(&part);
    return st;
}

/* ---- everything else ------------------------------------------------------------------------ */

static corun_status class_atom(parser *p)
{
    charset set = {0};
    p->at++;
    p->in_class = true;
    corun_status st = class_body(p, &set, 0);
    p->in_class = false;
    if (st == CORUN_OK) st = emit_set(p, &set);
    charset_free(&set);
    p->item = true;
    p->last = 0;
    return st;
}

static corun_status word_boundary(parser *p, bool inverted)
{
    static const char *const parts[2][5] = {
        {"(?:(?<=", ")(?!", ")|(?<!", ")(?=", "))"},
        {"(?:(?<=", ")(?=", ")|(?<!", ")(?!", "))"},
    };
    for (int i = 0; i < 5; i++) {
        TRY(emit_text(p, parts[inverted][i]));
        if (i == 4) break;
        charset w = {0};
        corun_status st = charset_add_word(&w, false);
        if (st == CORUN_OK) st = emit_set(p, &w);
        charset_free(&w);
        TRY(st);
    }
    p->item = false;
    return CORUN_OK;
}

static corun_status escape_atom(parser *p)
{
    int e = peek(p, 1);
    if (e == 'A' || e == 'z' || e == 'Z' || e == 'b' || e == 'B') {
        p->at += 2;
        p->item = false;
        p->last = 0;
        if (e == 'b' || e == 'B') return word_boundary(p, e == 'B');
        if (e != 'Z') return emit_text(p, e == 'A' ? "\\A" : "\\z");
        TRY(emit_text(p, "(?="));
        TRY(emit_range(p, '\n', '\n'));
        return emit_text(p, "?\\z)");
    }
    p->at++;
    charset set = {0};
    bool is_set;
    uint32_t c = 0;
    corun_status st = escape(p, &is_set, &set, &c);
    if (st == CORUN_OK && is_set) {
        st = emit_set(p, &set);
        p->item = true;
        p->last = 0;
    }
    charset_free(&set);
    if (st != CORUN_OK || is_set) return st;
    return literal_char(p, c);
}

static corun_status group_open(parser *p)
{
    static const struct {
        const char *onig, *pcre;
        int icase; /* 1 on, 0 off, -1 as before */
    } kinds[] = {{"(?:", "(?:", -1},   {"(?=", "(?=", -1}, {"(?!", "(?!", -1}, {"(?<=", "(?<=", -1},
                 {"(?<!", "(?<!", -1}, {"(?>", "(?>", -1}, {"(?i:", "(?:", 1}, {"(?-i:", "(?:", 0}};
    bool at_start = p->group_start;
    p->item = false;
    p->last = 0;
    if (p->len - p->at >= 4 && !memcmp(p->s + p->at, "(?i)", 4)) {
        if (!at_start) REFUSE(p, "(?i) in the middle of a group");
        p->at += 4;
        p->icase[p->depth] = true;
        p->group_start = true;
        return CORUN_OK;
    }
    const char *text = "(?:";
    size_t skip = 1;
    int icase = -1;
    if (peek(p, 1) == '?') {
        skip = 0;
        for (size_t i = 0; i < sizeof kinds / sizeof *kinds && !skip; i++) {
            size_t k = strlen(kinds[i].onig);
            if (p->len - p->at < k || memcmp(p->s + p->at, kinds[i].onig, k) != 0) continue;
            skip = k;
            text = kinds[i].pcre;
            icase = kinds[i].icase;
        }
        if (!skip) REFUSE(p, "this kind of group is not supported");
    }
    if (p->depth == MAX_DEPTH) REFUSE(p, "groups nested more than %d deep", MAX_DEPTH);
    p->depth++;
    p->icase[p->depth] = icase < 0 ? p->icase[p->depth - 1] : icase == 1;
    p->at += skip;
    p->group_start = true;
    return emit_text(p, text);
}

/* {n}, {n,}, {n,m} or {,m} at p->at. *len 0: not an interval, the brace is a character. */
static corun_status interval(parser *p, size_t *len, char out[32], bool *exact)
{
    uint32_t v[2] = {0, 0};
    bool have[2] = {false, false}, comma = false;
    size_t i = 1;
    *len = 0;
    for (;; i++) {
        int c = peek(p, i);
        if (c >= '0' && c <= '9') {
            uint32_t *x = &v[comma];
            *x = *x * 10 + (uint32_t)(c - '0');
            if (*x > 65535) REFUSE(p, "a repeat count above 65535");
            have[comma] = true;
        } else if (c == ',' && !comma) {
            comma = true;
        } else if (c == '}') {
            break;
        } else {
            return CORUN_OK;
        }
    }
    if (!have[0] && !have[1]) return CORUN_OK;
    if (have[1] && v[1] < v[0]) REFUSE(p, "a repeat count {%u,%u}", v[0], v[1]);
    *exact = !comma;
    if (!comma)
        snprintf(out, 32, "{%u}", v[0]);
    else if (have[1])
        snprintf(out, 32, "{%u,%u}", v[0], v[1]);
    else
        snprintf(out, 32, "{%u,}", v[0]);
    *len = i + 1;
    return CORUN_OK;
}

static corun_status quantifier(parser *p)
{
    char text[32];
    size_t len = 1;
    bool exact = false, braces = peek(p, 0) == '{';
    if (braces) {
        TRY(interval(p, &len, text, &exact));
        if (!len) {
            p->at++;
            return literal_char(p, '{');
        }
    } else {
        text[0] = p->s[p->at];
        text[1] = 0;
    }
    if (!p->item) REFUSE(p, "nothing to repeat");
    p->at += len;
    TRY(emit_text(p, text));
    int c = peek(p, 0);
    if (c == '?' || c == '+') {
        if (braces && (exact || c == '+')) REFUSE(p, "%s%c means another thing elsewhere", text, c);
        TRY(emit_text(p, c == '?' ? "?" : "+"));
        p->at++;
    }
    p->item = false;
    p->last = 0;
    return CORUN_OK;
}

static corun_status anchor(parser *p, bool end)
{
    /* Oniguruma's ^ and $ are those of lines; ^ does not match behind a last line feed. */
    p->at++;
    p->item = false;
    p->last = 0;
    TRY(emit_text(p, end ? "(?=" : "(?:\\A|(?<="));
    TRY(emit_range(p, '\n', '\n'));
    return emit_text(p, end ? "|\\z)" : ")(?!\\z))");
}

static corun_status one_token(parser *p)
{
    int c = peek(p, 0);
    if (c == '(') return group_open(p);
    p->group_start = false;
    switch (c) {
    case ')':
        if (p->depth == 0) REFUSE(p, ") without (");
        p->depth--;
        p->at++;
        p->item = true;
        p->last = 0;
        return emit_text(p, ")");
    case '|':
        p->at++;
        p->item = false;
        p->last = 0;
        return emit_text(p, "|");
    case '[': return class_atom(p);
    case '\\': return escape_atom(p);
    case '*':
    case '+':
    case '?':
    case '{': return quantifier(p);
    case '^': return anchor(p, false);
    case '$': return anchor(p, true);
    case '.': {
        charset set = {0};
        corun_status st = charset_add(&set, '\n', '\n');
        if (st == CORUN_OK) st = charset_invert(&set);
        if (st == CORUN_OK) st = emit_set(p, &set);
        charset_free(&set);
        p->at++;
        p->item = true;
        p->last = 0;
        return st;
    }
    default: return literal_char(p, next_char(p));
    }
}

corun_status pattern_translate(pattern_src *out, const char *re, size_t len, bool literal,
                               const char *what)
{
    parser p = {.s = re, .len = len, .what = what, .o = out, .group_start = true};
    size_t bad;
    *out = (pattern_src){0};
    buf_init(&out->text, (size_t)MAX_LEN * 16);
    if (len > MAX_LEN) FAIL(CORUN_EUNSUPPORTED, "%s: pattern of %zu bytes", what, len);
    if (!utf8_valid(re, len, &bad))
        FAIL(CORUN_EFORMAT, "%s: pattern, byte %zu is not UTF-8", what, bad);
    while (p.at < len) {
        if (literal)
            TRY(literal_char(&p, next_char(&p)));
        else
            TRY(one_token(&p));
    }
    if (p.depth) REFUSE(&p, "( without )");
    return CORUN_OK;
}
