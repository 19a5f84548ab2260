/* template_eval.c - owns the evaluation of expressions. Invariant: evaluation nests at most
 * TPL_EVAL_MAX deep and takes at most TPL_STEPS_MAX steps, whatever the template. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "text/template_int.h"

corun_status tpl_fail(const tctx *c, const char *fmt, ...)
{
    char text[ERR_TEXT_MAX];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    FAIL(CORUN_EFORMAT, "%s, line %d: %s", c->t->what, c->line, text);
}

corun_status tpl_fail_undef(const tctx *c, const tval *v)
{
    static const char *const seqs[] = {"list",      "tuple",       "range",
                                       "dict_keys", "dict_values", "dict_items"};
    tval was = {.kind = (uint8_t)(v->depth >> 8), .sub = (uint8_t)(v->depth & 0xff)};
    const char *kind = was.kind == T_SEQ ? seqs[was.sub] : tpl_kind_name(&was);
    int len = (int)(v->len < 200 ? v->len : 200);
    switch (v->sub) {
    case UNDEF_NAME: return tpl_fail(c, "'%.*s' is undefined", len, v->u.s);
    case UNDEF_ATTR:
        return tpl_fail(c, "'%s%s' has no attribute '%.*s'", was.kind == T_NONE ? "None" : kind,
                        was.kind == T_NONE ? "" : " object", len, v->u.s);
    case UNDEF_UNSAFE:
        return tpl_fail(c, "access to attribute '%.*s' of '%s' object is unsafe", len, v->u.s,
                        kind);
    default: return tpl_fail(c, "%.*s", len, v->u.s);
    }
}

static tval undef_of(const tval *v, tundef sub, const char *s, size_t len)
{
    return (tval){.kind = T_UNDEF,
                  .sub = (uint8_t)sub,
                  .depth = (uint16_t)(v->kind << 8 | v->sub),
                  .len = (uint32_t)len,
                  .u.s = s};
}

corun_status tpl_charge(tctx *c, uint64_t n)
{
    c->steps += n;
    if (c->steps > TPL_STEPS_MAX)
        FAIL(CORUN_ECAPACITY, "%s, line %d: more than %u steps", c->t->what, c->line,
             TPL_STEPS_MAX);
    return CORUN_OK;
}

/* ---- names and members --------------------------------------------------------------------------
 */

static void lookup(tctx *c, int name, tval *out)
{
    for (const tscope *s = c->scope; s; s = s->up) {
        c->steps += (uint64_t)s->n / 8;
        for (int i = 0; i < s->n; i++)
            if (s->vars[i].name == name) {
                *out = s->vars[i].v;
                return;
            }
    }
    if (name < NAME_LOOP) {
        *out = (tval){.kind = T_FUNC, .u.i = name};
        return;
    }
    const tname *n = &c->t->names[name];
    *out = (tval){.kind = T_UNDEF, .sub = UNDEF_NAME, .len = n->len, .u.s = n->s};
}

static bool is(const char *s, size_t len, const char *word)
{
    return strlen(word) == len && memcmp(s, word, len) == 0;
}

/* An attribute of loop; false: there is none. */
static bool loop_attr(const tloop *l, const char *s, size_t len, tval *out)
{
    if (is(s, len, "index"))
        *out = tv_int((int64_t)l->i + 1);
    else if (is(s, len, "index0"))
        *out = tv_int(l->i);
    else if (is(s, len, "first"))
        *out = tv_bool(l->i == 0);
    else if (is(s, len, "last"))
        *out = tv_bool(l->i + 1 == l->n);
    else if (is(s, len, "length"))
        *out = tv_int(l->n);
    else if (is(s, len, "revindex"))
        *out = tv_int((int64_t)l->n - l->i);
    else if (is(s, len, "revindex0"))
        *out = tv_int((int64_t)l->n - l->i - 1);
    else if (is(s, len, "depth"))
        *out = tv_int(1);
    else if (is(s, len, "depth0"))
        *out = tv_int(0);
    else if (is(s, len, "previtem"))
        *out = l->i ? l->items[l->i - 1] : tv_hint("there is no previous item", 25);
    else if (is(s, len, "nextitem"))
        *out = l->i + 1 < l->n ? l->items[l->i + 1] : tv_hint("there is no next item", 21);
    else
        return false;
    return true;
}

/* A method as a value; false: none of this name. */
static corun_status method_attr(tctx *c, const tval *v, const char *s, size_t len, tval *out,
                                bool *found)
{
    int id;
    tbound *b;
    *found = true;
    switch (tpl_method_find(v, s, len, &id)) {
    case METHOD_HERE:
        TPL_NEW(&c->a, b, 1);
        *b = (tbound){.self = *v, .method = id};
        *out = (tval){.kind = T_METHOD, .u.bound = b};
        return CORUN_OK;
    case METHOD_UNSAFE: *out = undef_of(v, UNDEF_UNSAFE, s, len); return CORUN_OK;
    case METHOD_MISSING:
        return tpl_fail(c, "the method '%.*s' of '%s' is not supported", (int)len, s,
                        tpl_kind_name(v));
    default: *found = false; return CORUN_OK;
    }
}

static corun_status key_of(tctx *c, const tval *v, const char *s, size_t len, tval *out)
{
    if (v->kind == T_DICT) {
        tval key = tv_str(s, len);
        const tval *found;
        TRY(tpl_dict_get(c, v, &key, &found));
        if (found) {
            *out = *found;
            return CORUN_OK;
        }
    }
    if (v->kind == T_NS) c->steps += v->u.ns->n / 8;
    if (v->kind == T_NS)
        for (uint32_t i = 0; i < v->u.ns->n; i++)
            if (v->u.ns->vars[i].k.len == len && memcmp(v->u.ns->vars[i].k.u.s, s, len) == 0) {
                *out = v->u.ns->vars[i].v;
                return CORUN_OK;
            }
    *out = undef_of(v, UNDEF_ATTR, s, len);
    return CORUN_OK;
}

corun_status tpl_get_attr(tctx *c, const tval *v, const char *s, size_t len, tval *out)
{
    bool found;
    if (v->kind == T_UNDEF) return tpl_fail_undef(c, v);
    if (v->kind == T_LOOP && loop_attr(v->u.loop, s, len, out)) return CORUN_OK;
    TRY(method_attr(c, v, s, len, out, &found));
    return found ? CORUN_OK : key_of(c, v, s, len, out);
}

/* Item i of a string or sequence (negative from the end); false: out of range. */
static bool item_at(const tval *v, int64_t i, tval *out)
{
    int64_t n = v->kind == T_STR ? (int64_t)tstr_count(v->u.s, v->len) : v->len;
    if (i < 0) i += n;
    if (i < 0 || i >= n) return false;
    if (v->kind == T_SEQ) {
        *out = v->u.v[i];
        return true;
    }
    size_t at = tstr_offset(v->u.s, v->len, (size_t)i);
    int bytes;
    tstr_cp(v->u.s + at, &bytes);
    *out = tv_str(v->u.s + at, (size_t)bytes);
    out->sub = v->sub;
    return true;
}

static bool is_sequence(const tval *v)
{
    return v->kind == T_STR || (v->kind == T_SEQ && v->sub <= SEQ_RANGE);
}

corun_status tpl_get_item(tctx *c, const tval *v, const tval *key, tval *out)
{
    if (v->kind == T_UNDEF) return tpl_fail_undef(c, v);
    if (is_sequence(v) && tv_is_int(key)) {
        TRY(tpl_charge(c, v->kind == T_STR ? v->len / 16 : 0));
        if (!item_at(v, key->u.i, out)) *out = undef_of(v, UNDEF_ATTR, "that index", 10);
        return CORUN_OK;
    }
    if (v->kind == T_DICT &&
        (key->kind != T_DICT && (key->kind != T_SEQ || key->sub == SEQ_TUPLE))) {
        const tval *found;
        TRY(tpl_dict_get(c, v, key, &found));
        if (found) {
            *out = *found;
            return CORUN_OK;
        }
    }
    if (key->kind == T_STR) { /* then the attribute of that name */
        bool found;
        if (v->kind == T_LOOP && loop_attr(v->u.loop, key->u.s, key->len, out)) return CORUN_OK;
        TRY(method_attr(c, v, key->u.s, key->len, out, &found));
        return found ? CORUN_OK : key_of(c, v, key->u.s, key->len, out);
    }
    *out = undef_of(v, UNDEF_ATTR, "that element", 12);
    return CORUN_OK;
}

/* A bound of a slice over n items, as Python clamps it. */
static int64_t clamp(int64_t i, int64_t n, bool back)
{
    if (i < 0) {
        i += n;
        return i < 0 ? (back ? -1 : 0) : i;
    }
    return i >= n ? (back ? n - 1 : n) : i;
}

/* What Python's slice gives: first index, step and count. */
static corun_status slice_range(tctx *c, const tval part[3], int64_t n, int64_t *first,
                                int64_t *step, int64_t *count)
{
    for (int i = 0; i < 3; i++) {
        if (part[i].kind == T_UNDEF) return tpl_fail_undef(c, &part[i]);
        if (part[i].kind != T_ABSENT && part[i].kind != T_NONE && !tv_is_int(&part[i]))
            return tpl_fail(c, "slice indices must be integers or None");
    }
    *step = tv_is_int(&part[2]) ? part[2].u.i : 1;
    if (*step == 0) return tpl_fail(c, "slice step cannot be zero");
    bool back = *step < 0;
    int64_t a = tv_is_int(&part[0]) ? clamp(part[0].u.i, n, back) : back ? n - 1 : 0;
    int64_t b = tv_is_int(&part[1]) ? clamp(part[1].u.i, n, back) : back ? -1 : n;
    int64_t span = back ? a - b : b - a;
    if (*step > n + 1) *step = n + 1; /* no further than one step past the end */
    if (*step < -n - 1) *step = -n - 1;
    int64_t size = back ? -*step : *step;
    *first = a;
    *count = span <= 0 ? 0 : (span + size - 1) / size;
    return CORUN_OK;
}

static corun_status slice_string(tctx *c, const tval *v, const tval part[3], tval *out)
{
    int64_t first, step, count, n = (int64_t)tstr_count(v->u.s, v->len);
    TRY(tpl_charge(c, v->len / 16));
    TRY(slice_range(c, part, n, &first, &step, &count));
    *out = tv_str("", 0);
    if (count == 0) return CORUN_OK;
    if (step == 1) {
        size_t a = tstr_offset(v->u.s, v->len, (size_t)first);
        size_t len = tstr_offset(v->u.s + a, v->len - a, (size_t)count);
        *out = tv_str(v->u.s + a, len);
    } else {
        const tval *items;
        uint32_t n_item;
        tsb b = {0};
        TRY(tpl_items(c, v, &items, &n_item));
        for (int64_t i = 0; i < count; i++) {
            const tval *x = &items[first + i * step];
            tsb_put(c, &b, x->u.s, x->len);
        }
        TRY(tsb_value(c, &b, out));
    }
    out->sub = v->sub;
    return CORUN_OK;
}

corun_status tpl_slice(tctx *c, const tval *v, const tval part[3], tval *out)
{
    if (v->kind == T_UNDEF) return tpl_fail_undef(c, v);
    if (v->kind == T_STR) return slice_string(c, v, part, out);
    if (!is_sequence(v)) return tpl_fail(c, "'%s' object cannot be sliced", tpl_kind_name(v));
    int64_t first, step, count;
    TRY(slice_range(c, part, v->len, &first, &step, &count));
    const tval *items = v->u.v + (count ? first : 0);
    if (step != 1 && count) {
        tval *copy;
        TRY(tpl_list(c, &copy, (size_t)count));
        for (int64_t i = 0; i < count; i++) copy[i] = v->u.v[first + i * step];
        items = copy;
    }
    return tpl_seq(c, v->sub, items, (size_t)count, out);
}

/* ---- operators ----------------------------------------------------------------------------------
 */

static corun_status overflow(const tctx *c)
{
    return tpl_fail(c, "the result does not fit a 64-bit integer");
}

static corun_status int_power(tctx *c, int64_t a, int64_t b, tval *out)
{
    int64_t r = 1;
    if (b < 0) return tpl_fail(c, "negative exponents are not supported");
    if (a == 0 || a == 1 || a == -1) {
        *out = tv_int(a == -1 && b % 2 == 0 ? 1 : b == 0 ? 1 : a);
        return CORUN_OK;
    }
    for (; b > 0; b--)
        if (__builtin_mul_overflow(r, a, &r)) return overflow(c);
    *out = tv_int(r);
    return CORUN_OK;
}

static corun_status int_op(tctx *c, char op, int64_t a, int64_t b, tval *out)
{
    int64_t r = 0;
    bool over = false;
    switch (op) {
    case '+': over = __builtin_add_overflow(a, b, &r); break;
    case '-': over = __builtin_sub_overflow(a, b, &r); break;
    case '*': over = __builtin_mul_overflow(a, b, &r); break;
    case 'p': return int_power(c, a, b, out);
    default: /* f % */
        if (b == 0) return tpl_fail(c, "division by zero");
        if (b == -1) {
            over = op == 'f' && __builtin_sub_overflow((int64_t)0, a, &r);
            break;
        }
        r = op == 'f' ? a / b : a % b;
        if (a % b != 0 && (a % b < 0) != (b < 0)) r += op == 'f' ? -1 : b;
    }
    if (over) return overflow(c);
    *out = tv_int(r);
    return CORUN_OK;
}

static corun_status float_op(tctx *c, char op, double a, double b, tval *out)
{
    double r = 0;
    switch (op) {
    case '+': r = a + b; break;
    case '-': r = a - b; break;
    case '*': r = a * b; break;
    case 'p': return tpl_fail(c, "powers of floats are not supported");
    default:
        if (b == 0) return tpl_fail(c, "division by zero");
        if (op == '/') {
            r = a / b;
            break;
        }
        r = fmod(a, b);
        if (r != 0 && (r < 0) != (b < 0)) r += b;
        if (op == 'f') r = floor((a - r) / b + 0.5);
    }
    *out = tv_float(r);
    return CORUN_OK;
}

static corun_status repeat(tctx *c, const tval *v, int64_t n, tval *out)
{
    uint64_t total;
    if (n < 0) n = 0;
    if (__builtin_mul_overflow((uint64_t)n, (uint64_t)v->len, &total) || total > TPL_OUT_MAX)
        FAIL(CORUN_ECAPACITY, "%s, line %d: a repetition of %lld times is too large", c->t->what,
             c->line, (long long)n);
    if (v->kind == T_STR) {
        tsb b = {0};
        TRY(tpl_charge(c, v->len ? (uint64_t)n : 0));
        for (int64_t i = 0; v->len && i < n; i++) tsb_put(c, &b, v->u.s, v->len);
        TRY(tsb_value(c, &b, out));
        out->sub = v->sub;
        return CORUN_OK;
    }
    tval *items;
    TRY(tpl_list(c, &items, total));
    for (uint64_t i = 0; i < total; i++) items[i] = v->u.v[i % v->len];
    return tpl_seq(c, v->sub, items, total, out);
}

static corun_status add_strings(tctx *c, const tval *a, const tval *b, tval *out)
{
    tval x = *a, y = *b;
    tsb t = {0};
    bool safe = a->sub || b->sub;
    if (safe) {
        TRY(tstr_escape_html(c, a, &x));
        TRY(tstr_escape_html(c, b, &y));
    }
    tsb_put(c, &t, x.u.s, x.len);
    tsb_put(c, &t, y.u.s, y.len);
    TRY(tsb_value(c, &t, out));
    out->sub = safe;
    return CORUN_OK;
}

static corun_status add_lists(tctx *c, const tval *a, const tval *b, tval *out)
{
    tval *items;
    size_t n = (size_t)a->len + b->len;
    TRY(tpl_list(c, &items, n));
    if (a->len) memcpy(items, a->u.v, a->len * sizeof *items);
    if (b->len) memcpy(items + a->len, b->u.v, b->len * sizeof *items);
    return tpl_seq(c, a->sub, items, n, out);
}

static bool is_list(const tval *v) { return v->kind == T_SEQ && v->sub <= SEQ_TUPLE; }
static bool can_repeat(const tval *v) { return v->kind == T_STR || is_list(v); }

static corun_status number_op(tctx *c, char op, const tval *a, const tval *b, tval *out)
{
    if (op != '/' && tv_is_int(a) && tv_is_int(b)) return int_op(c, op, a->u.i, b->u.i, out);
    return float_op(c, op, tv_double(a), tv_double(b), out);
}

corun_status tpl_binary(tctx *c, char op, const tval *a, const tval *b, tval *out)
{
    if (a->kind == T_UNDEF) return tpl_fail_undef(c, a);
    if (a->kind == T_STR && op == '%') return tstr_percent(c, a, b, out);
    if (b->kind == T_UNDEF) return tpl_fail_undef(c, b);
    if (tv_is_num(a) && tv_is_num(b)) return number_op(c, op, a, b, out);
    if (op == '+' && a->kind == T_STR && b->kind == T_STR) return add_strings(c, a, b, out);
    if (op == '+' && is_list(a) && is_list(b) && a->sub == b->sub) return add_lists(c, a, b, out);
    if (op == '*' && can_repeat(a) && tv_is_int(b)) return repeat(c, a, b->u.i, out);
    if (op == '*' && can_repeat(b) && tv_is_int(a)) return repeat(c, b, a->u.i, out);
    return tpl_fail(c, "unsupported operand types for %s: '%s' and '%s'",
                    op == 'f'   ? "//"
                    : op == 'p' ? "**"
                                : (char[]){op, 0},
                    tpl_kind_name(a), tpl_kind_name(b));
}

static corun_status eval_sign(tctx *c, const tnode *n, tval *out)
{
    tval v;
    TRY(tpl_eval(c, n->kid[0], &v));
    c->line = n->line;
    if (v.kind == T_UNDEF) return tpl_fail_undef(c, &v);
    if (!tv_is_num(&v))
        return tpl_fail(c, "bad operand type for unary %c: '%s'", n->kind == N_NEG ? '-' : '+',
                        tpl_kind_name(&v));
    if (v.kind == T_FLOAT)
        *out = tv_float(n->kind == N_NEG ? -v.u.f : v.u.f);
    else if (n->kind == N_NEG)
        return int_op(c, '-', 0, v.u.i, out);
    else
        *out = tv_int(v.u.i);
    return CORUN_OK;
}

static corun_status compare_one(tctx *c, tcmp op, const tval *a, const tval *b, bool *r)
{
    switch (op) {
    case CMP_EQ: return tpl_equal(c, a, b, r);
    case CMP_LT: return tpl_less(c, a, b, false, r);
    case CMP_LE: return tpl_less(c, a, b, true, r);
    case CMP_GT: return tpl_less(c, b, a, false, r);
    case CMP_GE: return tpl_less(c, b, a, true, r);
    case CMP_IN: return tpl_contains(c, b, a, r);
    case CMP_NE: TRY(tpl_equal(c, a, b, r)); break;
    case CMP_NOT_IN: TRY(tpl_contains(c, b, a, r)); break;
    }
    *r = !*r;
    return CORUN_OK;
}

static corun_status eval_compare(tctx *c, const tnode *n, tval *out)
{
    tval a, b;
    bool r = true;
    TRY(tpl_eval(c, n->kid[0], &a));
    for (int i = 1; r && i < n->n; i++) {
        TRY(tpl_eval(c, n->kid[i], &b));
        c->line = n->line;
        TRY(compare_one(c, n->ops[i - 1], &a, &b, &r));
        a = b;
    }
    *out = tv_bool(r);
    return CORUN_OK;
}

static corun_status eval_concat(tctx *c, const tnode *n, tval *out)
{
    tsb b = {0};
    for (int i = 0; i < n->n; i++) {
        tval v;
        TRY(tpl_eval(c, n->kid[i], &v));
        c->line = n->line;
        TRY(tpl_put_str(c, &b, &v));
    }
    return tsb_value(c, &b, out);
}

/* ---- literals, calls ----------------------------------------------------------------------------
 */

static corun_status eval_list(tctx *c, const tnode *n, tval *out)
{
    tval *items;
    TRY(tpl_list(c, &items, (size_t)n->n));
    for (int i = 0; i < n->n; i++) TRY(tpl_eval(c, n->kid[i], &items[i]));
    return tpl_seq(c, n->op, items, (size_t)n->n, out);
}

static corun_status eval_dict(tctx *c, const tnode *n, tval *out)
{
    tpair *pairs;
    size_t count = 0;
    TPL_NEW(&c->a, pairs, (size_t)n->n / 2);
    for (int i = 0; i < n->n; i += 2) {
        tval k, v;
        TRY(tpl_eval(c, n->kid[i], &k));
        TRY(tpl_eval(c, n->kid[i + 1], &v));
        c->line = n->line;
        tval so_far = {.kind = T_DICT, .len = (uint32_t)count, .u.d = pairs};
        const tval *old;
        TRY(tpl_dict_get(c, &so_far, &k, &old));
        if (old)
            pairs[((const char *)old - (const char *)pairs) / sizeof *pairs].v = v;
        else
            pairs[count++] = (tpair){k, v};
    }
    return tpl_dict(c, pairs, count, out);
}

static corun_status add_keyword(tctx *c, targs *a, const char *name, uint32_t len, const tval *v)
{
    for (int i = 0; i < a->n_kw; i++)
        if (a->kw[i].len == len && memcmp(a->kw[i].name, name, len) == 0)
            return tpl_fail(c, "the keyword argument '%.*s' is given twice", (int)len, name);
    a->kw[a->n_kw++] = (tkw){name, len, *v};
    return CORUN_OK;
}

/* *args and **kwargs, which stand last. */
static corun_status eval_stars(tctx *c, const tnode *n, tval *star, tval *stars)
{
    int i = n->n - (n->op & CALL_STAR ? 1 : 0) - (n->op & CALL_STARS ? 1 : 0);
    *star = *stars = (tval){.kind = T_ABSENT};
    if (n->op & CALL_STAR) TRY(tpl_eval(c, n->kid[i++], star));
    if (n->op & CALL_STARS) TRY(tpl_eval(c, n->kid[i], stars));
    if (stars->kind != T_ABSENT && stars->kind != T_DICT)
        return tpl_fail(c, "the argument after ** must be a mapping");
    return CORUN_OK;
}

corun_status tpl_eval_args(tctx *c, const tnode *n, int room, targs *a)
{
    tval star = {.kind = T_ABSENT}, stars = star, v, *pos;
    const tval *more = NULL;
    uint32_t n_more = 0, n_pair = 0;
    int n_pos = n->n - 1 - n->n_kw;
    if (n->kind == N_CALL && n->op) {
        n_pos -= (n->op & CALL_STAR ? 1 : 0) + (n->op & CALL_STARS ? 1 : 0);
        TRY(eval_stars(c, n, &star, &stars));
        if (star.kind != T_ABSENT) TRY(tpl_items(c, &star, &more, &n_more));
        if (stars.kind == T_DICT) n_pair = stars.len;
    }
    TRY(tpl_list(c, &pos, (size_t)n_pos + n_more));
    *a = (targs){.v = pos, .n = n_pos + (int)n_more};
    if (n->n_kw || n_pair || room) TPL_NEW(&c->a, a->kw, (size_t)(n->n_kw + room) + n_pair);
    for (int i = 0; i < n_pos; i++) TRY(tpl_eval(c, n->kid[1 + i], &pos[i]));
    if (n_more) memcpy(pos + n_pos, more, n_more * sizeof *pos);
    for (int i = 0; i < n->n_kw; i++) {
        const tname *name = &c->t->names[n->names[i]];
        TRY(tpl_eval(c, n->kid[1 + n_pos + i], &v));
        TRY(add_keyword(c, a, name->s, name->len, &v));
    }
    for (uint32_t i = 0; i < n_pair; i++) {
        const tpair *p = &stars.u.d[i];
        if (p->k.kind != T_STR) return tpl_fail(c, "keywords must be strings");
        TRY(add_keyword(c, a, p->k.u.s, p->k.len, &p->v));
    }
    return CORUN_OK;
}

corun_status tpl_call_value(tctx *c, const tval *f, const targs *a, tval *out)
{
    switch (f->kind) {
    case T_MACRO: return tpl_run_macro(c, f->u.m, a, out);
    case T_FUNC: return tpl_function(c, (int)f->u.i, a, out);
    case T_METHOD: return tpl_method(c, f->u.bound->method, &f->u.bound->self, a, out);
    case T_UNDEF: return tpl_fail_undef(c, f);
    default: return tpl_fail(c, "'%s' object is not callable", tpl_kind_name(f));
    }
}

static corun_status eval_call(tctx *c, const tnode *n, tval *out)
{
    tval f;
    targs a;
    TRY(tpl_eval(c, n->kid[0], &f));
    TRY(tpl_eval_args(c, n, 0, &a));
    c->line = n->line;
    return tpl_call_value(c, &f, &a, out);
}

static corun_status eval_filter(tctx *c, const tnode *n, const tval *in, tval *out)
{
    tval v;
    targs a;
    if (n->kid[0] && n->kid[0]->kind == N_FILTER && in) {
        if (++c->depth > TPL_EVAL_MAX) return tpl_fail(c, "nested too deeply");
        TRY(eval_filter(c, n->kid[0], in, &v));
        c->depth--;
    } else if (n->kid[0]) {
        TRY(tpl_eval(c, n->kid[0], &v));
    } else {
        v = *in;
    }
    TRY(tpl_eval_args(c, n, 0, &a));
    c->line = n->line;
    return tpl_filter(c, n->id, &v, &a, out);
}

corun_status tpl_apply_filters(tctx *c, const tnode *n, const tval *in, tval *out)
{
    return eval_filter(c, n, in, out);
}

static corun_status eval_test(tctx *c, const tnode *n, tval *out)
{
    tval v;
    targs a;
    bool r;
    TRY(tpl_eval(c, n->kid[0], &v));
    TRY(tpl_eval_args(c, n, 0, &a));
    c->line = n->line;
    TRY(tpl_test(c, n->id, &v, &a, &r));
    *out = tv_bool(r);
    return CORUN_OK;
}

static corun_status eval_slice(tctx *c, const tnode *n, tval *out)
{
    tval v, part[3] = {{.kind = T_ABSENT}, {.kind = T_ABSENT}, {.kind = T_ABSENT}};
    TRY(tpl_eval(c, n->kid[0], &v));
    for (int i = 0; i < 3; i++)
        if (n->kid[1 + i]) TRY(tpl_eval(c, n->kid[1 + i], &part[i]));
    c->line = n->line;
    return tpl_slice(c, &v, part, out);
}

static corun_status eval_cond(tctx *c, const tnode *n, tval *out)
{
    static const char hint[] = "the inline if-expression evaluated to false and has no else";
    tval v;
    TRY(tpl_eval(c, n->kid[1], &v));
    if (tpl_truth(&v)) return tpl_eval(c, n->kid[0], out);
    if (n->kid[2]) return tpl_eval(c, n->kid[2], out);
    *out = tv_hint(hint, sizeof hint - 1);
    return CORUN_OK;
}

static corun_status eval_two(tctx *c, const tnode *n, tval *out)
{
    tval a, b;
    TRY(tpl_eval(c, n->kid[0], &a));
    if (n->kind == N_AND || n->kind == N_OR) {
        if (tpl_truth(&a) == (n->kind == N_AND)) return tpl_eval(c, n->kid[1], out);
        *out = a;
        return CORUN_OK;
    }
    TRY(tpl_eval(c, n->kid[1], &b));
    c->line = n->line;
    return n->kind == N_BINARY ? tpl_binary(c, (char)n->op, &a, &b, out)
                               : tpl_get_item(c, &a, &b, out);
}

static corun_status eval_attr(tctx *c, const tnode *n, tval *out)
{
    tval v;
    TRY(tpl_eval(c, n->kid[0], &v));
    c->line = n->line;
    return tpl_get_attr(c, &v, c->t->names[n->id].s, c->t->names[n->id].len, out);
}

static corun_status eval_not(tctx *c, const tnode *n, tval *out)
{
    tval v;
    TRY(tpl_eval(c, n->kid[0], &v));
    *out = tv_bool(!tpl_truth(&v));
    return CORUN_OK;
}

static corun_status eval_any(tctx *c, const tnode *n, tval *out)
{
    switch (n->kind) {
    case N_CONST: *out = n->k; return CORUN_OK;
    case N_NAME: lookup(c, n->id, out); return CORUN_OK;
    case N_LIST: return eval_list(c, n, out);
    case N_DICT: return eval_dict(c, n, out);
    case N_NOT: return eval_not(c, n, out);
    case N_NEG:
    case N_POS: return eval_sign(c, n, out);
    case N_AND:
    case N_OR:
    case N_BINARY:
    case N_ITEM: return eval_two(c, n, out);
    case N_CONCAT: return eval_concat(c, n, out);
    case N_COMPARE: return eval_compare(c, n, out);
    case N_COND: return eval_cond(c, n, out);
    case N_ATTR: return eval_attr(c, n, out);
    case N_SLICE: return eval_slice(c, n, out);
    case N_CALL: return eval_call(c, n, out);
    case N_FILTER: return eval_filter(c, n, NULL, out);
    case N_TEST: return eval_test(c, n, out);
    default: FAIL(CORUN_EINTERNAL, "template node %d is no expression", n->kind);
    }
}

corun_status tpl_eval(tctx *c, const tnode *n, tval *out)
{
    c->line = n->line;
    TRY(tpl_charge(c, 1));
    if (++c->depth > TPL_EVAL_MAX)
        return tpl_fail(c, "evaluation nested deeper than %d levels", TPL_EVAL_MAX);
    TRY(eval_any(c, n, out));
    c->depth--;
    return CORUN_OK;
}
