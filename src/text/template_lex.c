/* template_lex.c - owns the cut of a template into text and tokens, white-space control included.
 * Invariant: every token's text lies in the template's arena and is valid UTF-8. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "text/template_int.h"

#define STACK_MAX 256

typedef struct lexer {
    template *t;
    const char *s;
    size_t len, pos;
    int line;
    bool line_starting; /* the last match ended with a line end */
    ttok *tok;
    size_t n, cap;
    char stack[STACK_MAX]; /* open brackets of this tag: what closes them */
    int n_stack;
} lexer;

static corun_status push(lexer *x, ttok t)
{
    if (x->n == x->cap) {
        size_t cap = x->cap ? x->cap * 2 : 256;
        ttok *p = mem_realloc(x->tok, cap, sizeof *p, "template tokens");
        if (!p) return CORUN_ENOMEM;
        x->tok = p;
        x->cap = cap;
    }
    x->tok[x->n++] = t;
    return CORUN_OK;
}

static size_t normalize_lines(char *s, size_t len)
{
    size_t o = 0;
    for (size_t i = 0; i < len; i++) {
        char ch = s[i];
        if (ch == '\r') {
            if (i + 1 < len && s[i + 1] == '\n') i++;
            ch = '\n';
        }
        s[o++] = ch;
    }
    return o && s[o - 1] == '\n' ? o - 1 : o;
}

static int count_lines(const char *s, size_t len)
{
    int n = 0;
    for (size_t i = 0; i < len; i++) n += s[i] == '\n';
    return n;
}

static size_t skip_space(const lexer *x, size_t i)
{
    while (i < x->len) {
        int n;
        if (!tstr_space(tstr_cp(x->s + i, &n))) break;
        i += (size_t)n;
    }
    return i;
}

static void advance(lexer *x, size_t to)
{
    x->line += count_lines(x->s + x->pos, to - x->pos);
    x->line_starting = to > x->pos && x->s[to - 1] == '\n';
    x->pos = to;
}

static bool at(const lexer *x, size_t i, const char *w)
{
    size_t n = strlen(w);
    return x->len - i >= n && memcmp(x->s + i, w, n) == 0;
}

/* The text before a tag at `end` whose sign is - or + or 0, cut as the sign and lstrip_blocks
 * say. */
static corun_status push_text(lexer *x, size_t end, char sign, bool is_var)
{
    size_t len = end - x->pos;
    const char *s = x->s + x->pos;
    if (sign == '-') {
        tval v = tv_str(s, len);
        len = tstr_strip(&v, NULL, STRIP_RIGHT).len;
    } else if (sign != '+' && !is_var) {
        size_t l = len;
        while (l > 0 && s[l - 1] != '\n') l--;
        if ((l > 0 || x->line_starting) && skip_space(x, x->pos + l) >= end) len = l;
    }
    if (len == 0) return CORUN_OK;
    return push(x, (ttok){.kind = TOK_TEXT, .line = x->line, .len = (uint32_t)len, .u.s = s});
}

/* Where the tag that closes with "%}" or the like ends: i stands at its optional sign. 0: no
 * such end here. trim: one line end after it goes too. */
static size_t tag_end(const lexer *x, size_t i, const char *close, bool plus, bool trim)
{
    if (i < x->len && x->s[i] == '-' && at(x, i + 1, close)) return skip_space(x, i + 3);
    if (plus && i < x->len && x->s[i] == '+' && at(x, i + 1, close)) return i + 3;
    if (!at(x, i, close)) return 0;
    i += 2;
    return trim && i < x->len && x->s[i] == '\n' ? i + 1 : i;
}

static char sign_at(const lexer *x, size_t i)
{
    return i < x->len && (x->s[i] == '-' || x->s[i] == '+') ? x->s[i] : 0;
}

/* The end of a raw tag that begins at i, or 0. */
static size_t raw_begin(const lexer *x, size_t i)
{
    i += 2;
    if (sign_at(x, i)) i++;
    i = skip_space(x, i);
    if (!at(x, i, "raw")) return 0;
    i = skip_space(x, i + 3);
    return tag_end(x, i, "%}", false, false);
}

static corun_status lex_raw(lexer *x)
{
    for (size_t i = x->pos; i < x->len; i++) {
        if (!at(x, i, "{%")) continue;
        char sign = sign_at(x, i + 2);
        size_t e = skip_space(x, i + 2 + (sign != 0));
        if (!at(x, e, "endraw")) continue;
        e = tag_end(x, skip_space(x, e + 6), "%}", true, true);
        if (!e) continue;
        TRY(push_text(x, i, sign, false));
        advance(x, e);
        return CORUN_OK;
    }
    return tpl_parse_fail(x->t, x->line, "missing end of raw directive");
}

static corun_status lex_comment(lexer *x)
{
    for (size_t i = x->pos; i < x->len; i++) {
        size_t e = tag_end(x, i, "#}", true, true);
        if (!e) continue;
        advance(x, e);
        return CORUN_OK;
    }
    return tpl_parse_fail(x->t, x->line, "missing end of comment tag");
}

static bool is_digit(char ch) { return ch >= '0' && ch <= '9'; }
static bool is_word(char ch)
{
    return is_digit(ch) || (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z') || ch == '_';
}

/* Digits with single underscores between them, from i on; the end (i: none). */
static size_t digits(const lexer *x, size_t i)
{
    size_t end = i;
    while (i < x->len && is_digit(x->s[i])) {
        end = ++i;
        if (i + 1 < x->len && x->s[i] == '_' && is_digit(x->s[i + 1])) i++;
    }
    return end;
}

/* The end of a float at i, or 0. */
static size_t float_end(const lexer *x, size_t i)
{
    if (i > 0 && x->s[i - 1] == '.') return 0;
    size_t a = digits(x, i), e = a;
    bool is_float = false;
    if (e < x->len && x->s[e] == '.' && digits(x, e + 1) > e + 1) {
        e = digits(x, e + 1);
        is_float = true;
    }
    if (e < x->len && (x->s[e] == 'e' || x->s[e] == 'E')) {
        size_t d = e + 1;
        if (sign_at(x, d)) d++;
        size_t end = digits(x, d);
        if (end > d) return end;
    }
    return is_float ? e : 0;
}

static corun_status lex_number(lexer *x)
{
    char text[400];
    size_t e = float_end(x, x->pos), n = 0;
    bool is_float = e != 0;
    int base = 10;
    size_t from = x->pos;
    if (!is_float) {
        char k = x->len - x->pos > 2 && x->s[x->pos] == '0' ? (char)(x->s[x->pos + 1] | 32) : 0;
        base = k == 'x' ? 16 : k == 'o' ? 8 : k == 'b' ? 2 : 10;
        e = from = base == 10 ? x->pos : x->pos + 2;
        while (e < x->len && is_word(x->s[e])) e++;
    }
    for (size_t i = from; i < e && n + 1 < sizeof text; i++)
        if (x->s[i] != '_') text[n++] = x->s[i];
    text[n] = 0;
    ttok t = {.kind = is_float ? TOK_FLOAT : TOK_INT, .line = x->line};
    char *stop = text;
    errno = 0;
    if (n + 1 < sizeof text) {
        if (is_float)
            t.u.f = strtod(text, &stop);
        else
            t.u.i = strtoll(text, &stop, base);
    }
    if (n == 0 || *stop || (base == 10 && !is_float && n > 1 && text[0] == '0' && t.u.i))
        return tpl_parse_fail(x->t, x->line, "malformed number '%.*s'", (int)(e - x->pos),
                              x->s + x->pos);
    if (is_float ? isinf(t.u.f) : errno == ERANGE)
        return tpl_parse_fail(x->t, x->line, "number '%.*s' does not fit 64 bits",
                              (int)(e - x->pos), x->s + x->pos);
    advance(x, e);
    return push(x, t);
}

static int hex(char ch)
{
    return is_digit(ch)                           ? ch - '0'
           : (ch | 32) >= 'a' && (ch | 32) <= 'f' ? (ch | 32) - 'a' + 10
                                                  : -1;
}

/* One escape at s (after the backslash, n bytes left). Gives the code point (-1: the backslash
 * stays, -2: nothing, -3: wrong) and the bytes read. */
static int32_t escape(const char *s, size_t n, size_t *used)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    const char *p = *s ? strchr(from, *s) : NULL;
    *used = 1;
    if (*s == '\n') return -2;
    if (p) return to[p - from];
    int32_t cp = 0;
    if (*s >= '0' && *s <= '7') {
        size_t i = 0;
        for (; i < 3 && i < n && s[i] >= '0' && s[i] <= '7'; i++) cp = cp * 8 + (s[i] - '0');
        *used = i;
        return cp;
    }
    size_t want = *s == 'x' ? 2 : *s == 'u' ? 4 : *s == 'U' ? 8 : 0;
    if (*s == 'N') return -3;
    if (want == 0) return -1;
    if (n < want + 1) return -3;
    for (size_t i = 1; i <= want; i++) {
        int h = hex(s[i]);
        if (h < 0 || cp > 0x10ffff) return -3;
        cp = cp * 16 + h;
    }
    *used = want + 1;
    return cp > 0x10ffff || (cp >= 0xd800 && cp <= 0xdfff) ? -3 : cp;
}

static corun_status lex_string(lexer *x)
{
    char quote = x->s[x->pos];
    size_t e = x->pos + 1;
    while (e < x->len && x->s[e] != quote) e += x->s[e] == '\\' ? 2 : 1;
    if (e >= x->len) return tpl_parse_fail(x->t, x->line, "a string begins here and does not end");
    char *p;
    TPL_NEW(&x->t->a, p, e - x->pos);
    size_t o = 0;
    for (size_t i = x->pos + 1; i < e;) {
        if (x->s[i] != '\\') {
            p[o++] = x->s[i++];
            continue;
        }
        size_t used;
        int32_t cp = escape(x->s + i + 1, e - i - 1, &used);
        if (cp == -3)
            return tpl_parse_fail(
                x->t, x->line, "unsupported or malformed escape '\\%c' in a string", x->s[i + 1]);
        if (cp == -1) {
            p[o++] = '\\';
            i++;
            continue;
        }
        tctx c = {.t = x->t};
        tsb b = {.p = p + o, .cap = 4};
        if (cp >= 0) tsb_cp(&c, &b, cp);
        o += b.len;
        i += 1 + used;
    }
    ttok t = {.kind = TOK_STR, .line = x->line, .len = (uint32_t)o, .u.s = p};
    advance(x, e + 1);
    return push(x, t);
}

static corun_status lex_operator(lexer *x)
{
    static const char two[][4] = {"//F", "**P", "==E", "!=N", ">=G", "<=L"};
    const char *s = x->s + x->pos;
    ttok t = {.kind = TOK_OP, .op = *s, .line = x->line};
    size_t n = 1;
    for (size_t i = 0; i < sizeof two / sizeof *two; i++)
        if (x->len - x->pos > 1 && memcmp(s, two[i], 2) == 0) {
            t.op = two[i][2];
            n = 2;
        }
    if (n == 1 && (!*s || !strchr("+-/*%~[](){}><=.:|,;", *s)))
        return tpl_parse_fail(x->t, x->line, "unexpected character '%.*s'",
                              *s & 0x80 ? (int)(x->len - x->pos < 4 ? x->len - x->pos : 4) : 1, s);
    const char *open = *s ? strchr("([{", *s) : NULL;
    if (open) {
        if (x->n_stack == STACK_MAX)
            return tpl_parse_fail(x->t, x->line, "brackets nested too deeply");
        x->stack[x->n_stack++] = *open == '(' ? ')' : *open == '[' ? ']' : '}';
    }
    if (*s == ')' || *s == ']' || *s == '}') {
        if (x->n_stack == 0) return tpl_parse_fail(x->t, x->line, "unexpected '%c'", *s);
        if (x->stack[--x->n_stack] != *s)
            return tpl_parse_fail(x->t, x->line, "unexpected '%c', expected '%c'", *s,
                                  x->stack[x->n_stack]);
    }
    advance(x, x->pos + n);
    return push(x, t);
}

/* The inside of {{ }} or {% %}. */
static corun_status lex_tag(lexer *x, bool is_var)
{
    int begin = x->line;
    x->n_stack = 0;
    for (;;) {
        if (x->pos >= x->len)
            return tpl_parse_fail(x->t, begin, "a tag begins here and does not end");
        if (x->n_stack == 0) {
            size_t e = is_var ? tag_end(x, x->pos, "}}", false, false)
                              : tag_end(x, x->pos, "%}", true, true);
            if (e) {
                TRY(push(x, (ttok){.kind = is_var ? TOK_VAR_END : TOK_BLOCK_END, .line = x->line}));
                advance(x, e);
                return CORUN_OK;
            }
        }
        char ch = x->s[x->pos];
        size_t e = skip_space(x, x->pos);
        if (e > x->pos) {
            advance(x, e);
        } else if (is_digit(ch)) {
            TRY(lex_number(x));
        } else if (is_word(ch)) {
            while (e < x->len && is_word(x->s[e])) e++;
            ttok t = {.kind = TOK_NAME, .line = x->line, .u.s = x->s + x->pos};
            t.len = (uint32_t)(e - x->pos);
            advance(x, e);
            TRY(push(x, t));
        } else if (ch == '\'' || ch == '"') {
            TRY(lex_string(x));
        } else {
            TRY(lex_operator(x));
        }
    }
}

/* From pos to the next tag, and that tag. */
static corun_status lex_next(lexer *x)
{
    size_t i = x->pos;
    while (i < x->len && !(at(x, i, "{{") || at(x, i, "{%") || at(x, i, "{#"))) i++;
    if (i >= x->len) {
        TRY(push_text(x, x->len, '+', true));
        advance(x, x->len);
        return CORUN_OK;
    }
    char kind = x->s[i + 1], sign = sign_at(x, i + 2);
    TRY(push_text(x, i, sign, kind == '{'));
    size_t raw = kind == '%' ? raw_begin(x, i) : 0;
    if (raw) {
        advance(x, raw);
        return lex_raw(x);
    }
    advance(x, i + 2 + (sign != 0));
    if (kind == '#') return lex_comment(x);
    TRY(push(x, (ttok){.kind = kind == '{' ? TOK_VAR_BEGIN : TOK_BLOCK_BEGIN, .line = x->line}));
    return lex_tag(x, kind == '{');
}

corun_status tpl_lex(template *t, char *src, size_t len, ttok **out, size_t *n)
{
    lexer x = {.t = t, .s = src, .len = normalize_lines(src, len), .line = 1};
    x.line_starting = true;
    corun_status st = CORUN_OK;
    while (st == CORUN_OK && x.pos < x.len) st = lex_next(&x);
    if (st == CORUN_OK) st = push(&x, (ttok){.kind = TOK_END, .line = x.line});
    if (st != CORUN_OK) {
        mem_free(x.tok);
        return st;
    }
    *out = x.tok;
    *n = x.n;
    return CORUN_OK;
}
