/* template_value.c - owns what values are: made from JSON, compared, iterated, printed as Python
 * prints them. Invariant: a list or dictionary knows its depth, at most TPL_VALUE_DEPTH_MAX. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <utf8proc.h>

#include "text/template_int.h"

const char *tpl_kind_name(const tval *v)
{
    static const char *const seqs[] = {"list",      "tuple",       "range",
                                       "dict_keys", "dict_values", "dict_items"};
    static const char *const kinds[] = {
        "nothing", "Undefined", "NoneType",  "bool",  "int",      "float",  "str",        "",
        "dict",    "generator", "Namespace", "Macro", "function", "method", "LoopContext"};
    return v->kind == T_SEQ ? seqs[v->sub] : v->kind == T_STR && v->sub ? "Markup" : kinds[v->kind];
}

static unsigned depth_of(const tval *v)
{
    return v->kind == T_SEQ || v->kind == T_DICT || v->kind == T_ITER ? v->depth : 0;
}

static corun_status set_depth(const tctx *c, tval *v, unsigned inner)
{
    if (inner >= TPL_VALUE_DEPTH_MAX)
        return tpl_fail(c, "values nested deeper than %d levels", TPL_VALUE_DEPTH_MAX);
    v->depth = (uint16_t)(inner + 1);
    return CORUN_OK;
}

corun_status tpl_list(tctx *c, tval **items, size_t n)
{
    TRY(tpl_charge(c, n));
    TPL_NEW(&c->a, *items, n);
    return CORUN_OK;
}

corun_status tpl_seq(tctx *c, tseq kind, const tval *items, size_t n, tval *out)
{
    static const tval nothing;
    unsigned d = 0;
    if (!items) items = &nothing;
    TRY(tpl_charge(c, n / 8));
    for (size_t i = 0; i < n; i++)
        if (depth_of(&items[i]) > d) d = depth_of(&items[i]);
    *out = (tval){.kind = T_SEQ, .sub = (uint8_t)kind, .len = (uint32_t)n, .u.v = items};
    return set_depth(c, out, d);
}

corun_status tpl_iter(tctx *c, const tval *items, size_t n, tval *out)
{
    titer *it;
    TPL_NEW(&c->a, it, 1);
    it->pos = 0;
    TRY(tpl_seq(c, SEQ_LIST, items, n, &it->seq));
    *out = (tval){.kind = T_ITER, .u.it = it};
    return set_depth(c, out, it->seq.depth);
}

corun_status tpl_dict(tctx *c, const tpair *pairs, size_t n, tval *out)
{
    unsigned d = 0;
    TRY(tpl_charge(c, n / 8));
    for (size_t i = 0; i < n; i++) {
        if (depth_of(&pairs[i].k) > d) d = depth_of(&pairs[i].k);
        if (depth_of(&pairs[i].v) > d) d = depth_of(&pairs[i].v);
    }
    *out = (tval){.kind = T_DICT, .len = (uint32_t)n, .u.d = pairs};
    return set_depth(c, out, d);
}

static corun_status json_text(tctx *c, const char *s, size_t len, tval *out)
{
    if (c->copy_strings) {
        char *p;
        TPL_NEW(&c->a, p, len);
        s = memcpy(p, s, len);
    }
    *out = tv_str(s, len);
    return CORUN_OK;
}

static corun_status json_list(tctx *c, const json_t *j, tval *out)
{
    tval *items;
    size_t n = json_array_size(j), i;
    json_t *x;
    TRY(tpl_list(c, &items, n));
    json_array_foreach (j, i, x) TRY(tpl_from_json(c, x, &items[i]));
    return tpl_seq(c, SEQ_LIST, items, n, out);
}

static corun_status json_dict(tctx *c, const json_t *j, tval *out)
{
    tpair *pairs;
    size_t n = json_object_size(j), i = 0, len;
    const char *key;
    json_t *x;
    TRY(tpl_charge(c, n));
    TPL_NEW(&c->a, pairs, n);
    json_object_keylen_foreach((json_t *)(uintptr_t)j, key, len, x)
    {
        TRY(json_text(c, key, len, &pairs[i].k));
        TRY(tpl_from_json(c, x, &pairs[i].v));
        i++;
    }
    return tpl_dict(c, pairs, n, out);
}

corun_status tpl_from_json(tctx *c, const json_t *j, tval *out)
{
    corun_status st = CORUN_OK;
    if (++c->depth > TPL_EVAL_MAX)
        return tpl_fail(c, "values nested deeper than %d levels", TPL_VALUE_DEPTH_MAX);
    switch (json_typeof(j)) {
    case JSON_OBJECT: st = json_dict(c, j, out); break;
    case JSON_ARRAY: st = json_list(c, j, out); break;
    case JSON_STRING: st = json_text(c, json_string_value(j), json_string_length(j), out); break;
    case JSON_INTEGER: *out = tv_int(json_integer_value(j)); break;
    case JSON_REAL: *out = tv_float(json_real_value(j)); break;
    case JSON_TRUE: *out = tv_bool(true); break;
    case JSON_FALSE: *out = tv_bool(false); break;
    case JSON_NULL: *out = tv_none(); break;
    }
    c->depth--;
    return st;
}

bool tpl_truth(const tval *v)
{
    switch (v->kind) {
    case T_ABSENT:
    case T_UNDEF:
    case T_NONE: return false;
    case T_BOOL:
    case T_INT: return v->u.i != 0;
    case T_FLOAT: return v->u.f != 0;
    case T_STR:
    case T_SEQ:
    case T_DICT: return v->len != 0;
    default: return true;
    }
}

/* ---- comparison
 * ---------------------------------------------------------------------------------- */

/* -1, 0, 1; 2 when one is not a number. Exact, also between integers and floats. */
static int compare_numbers(const tval *a, const tval *b)
{
    if (a->kind != T_FLOAT && b->kind != T_FLOAT) return (a->u.i > b->u.i) - (a->u.i < b->u.i);
    if (a->kind == T_FLOAT && b->kind == T_FLOAT) {
        if (isnan(a->u.f) || isnan(b->u.f)) return 2;
        return (a->u.f > b->u.f) - (a->u.f < b->u.f);
    }
    if (b->kind == T_FLOAT) {
        int r = compare_numbers(b, a);
        return r == 2 ? 2 : -r;
    }
    double f = a->u.f;
    if (isnan(f)) return 2;
    if (f >= 9223372036854775808.0) return 1;
    if (f < -9223372036854775808.0) return -1;
    int64_t whole = (int64_t)f, i = b->u.i;
    if (whole != i) return whole > i ? 1 : -1;
    return (f > (double)whole) - (f < (double)whole);
}

static int compare_strings(const tval *a, const tval *b)
{
    size_t n = a->len < b->len ? a->len : b->len;
    int r = n ? memcmp(a->u.s, b->u.s, n) : 0;
    return r ? (r > 0) - (r < 0) : (a->len > b->len) - (a->len < b->len);
}

static corun_status equal_seqs(tctx *c, const tval *a, const tval *b, bool *out)
{
    *out = a->len == b->len && a->sub == b->sub;
    for (uint32_t i = 0; *out && i < a->len; i++) TRY(tpl_equal(c, &a->u.v[i], &b->u.v[i], out));
    return CORUN_OK;
}

static corun_status equal_dicts(tctx *c, const tval *a, const tval *b, bool *out)
{
    *out = a->len == b->len;
    for (uint32_t i = 0; *out && i < a->len; i++) {
        const tval *v;
        TRY(tpl_dict_get(c, b, &a->u.d[i].k, &v));
        *out = v != NULL;
        if (v) TRY(tpl_equal(c, &a->u.d[i].v, v, out));
    }
    return CORUN_OK;
}

corun_status tpl_equal(tctx *c, const tval *a, const tval *b, bool *out)
{
    TRY(tpl_charge(c, 1));
    *out = false;
    if (tv_is_num(a) && tv_is_num(b)) {
        *out = compare_numbers(a, b) == 0;
        return CORUN_OK;
    }
    if (a->kind != b->kind) return CORUN_OK;
    switch (a->kind) {
    case T_UNDEF:
    case T_NONE: *out = true; return CORUN_OK;
    case T_STR:
        TRY(tpl_charge(c, a->len / 64));
        *out = compare_strings(a, b) == 0;
        return CORUN_OK;
    case T_SEQ: return equal_seqs(c, a, b, out);
    case T_DICT: return equal_dicts(c, a, b, out);
    case T_FUNC: *out = a->u.i == b->u.i; return CORUN_OK;
    case T_METHOD: return CORUN_OK;
    default: *out = a->u.s == b->u.s; return CORUN_OK; /* the same object */
    }
}

corun_status tpl_less(tctx *c, const tval *a, const tval *b, bool or_equal, bool *out)
{
    TRY(tpl_charge(c, 1));
    if (a->kind == T_UNDEF) return tpl_fail_undef(c, a);
    if (b->kind == T_UNDEF) return tpl_fail_undef(c, b);
    if (tv_is_num(a) && tv_is_num(b)) {
        int r = compare_numbers(a, b);
        *out = r < 0 || (or_equal && r == 0);
        return CORUN_OK;
    }
    if (a->kind == T_STR && b->kind == T_STR) {
        TRY(tpl_charge(c, a->len / 64));
        int r = compare_strings(a, b);
        *out = r < 0 || (or_equal && r == 0);
        return CORUN_OK;
    }
    if (a->kind == T_SEQ && b->kind == T_SEQ && a->sub == b->sub && a->sub <= SEQ_TUPLE) {
        for (uint32_t i = 0; i < a->len && i < b->len; i++) {
            bool same;
            TRY(tpl_equal(c, &a->u.v[i], &b->u.v[i], &same));
            if (!same) return tpl_less(c, &a->u.v[i], &b->u.v[i], or_equal, out);
        }
        *out = a->len < b->len || (or_equal && a->len == b->len);
        return CORUN_OK;
    }
    return tpl_fail(c, "'<' is not supported between '%s' and '%s'", tpl_kind_name(a),
                    tpl_kind_name(b));
}

corun_status tpl_hashable(tctx *c, const tval *v)
{
    TRY(tpl_charge(c, 1));
    if (v->kind == T_DICT || (v->kind == T_SEQ && v->sub != SEQ_TUPLE && v->sub != SEQ_RANGE))
        return tpl_fail(c, "unhashable type: '%s'", tpl_kind_name(v));
    for (uint32_t i = 0; v->kind == T_SEQ && i < v->len; i++) TRY(tpl_hashable(c, &v->u.v[i]));
    return CORUN_OK;
}

corun_status tpl_dict_get(tctx *c, const tval *d, const tval *k, const tval **out)
{
    *out = NULL;
    if (k->kind != T_STR) {
        TRY(tpl_hashable(c, k));
        for (uint32_t i = 0; i < d->len && !*out; i++) {
            bool same;
            TRY(tpl_equal(c, &d->u.d[i].k, k, &same));
            if (same) *out = &d->u.d[i].v;
        }
        return CORUN_OK;
    }
    uint32_t i = 0;
    for (; i < d->len; i++) {
        const tval *key = &d->u.d[i].k;
        if (key->kind == T_STR && key->len == k->len &&
            (k->len == 0 || memcmp(key->u.s, k->u.s, k->len) == 0)) {
            *out = &d->u.d[i].v;
            break;
        }
    }
    return tpl_charge(c, i / 8);
}

corun_status tpl_contains(tctx *c, const tval *box, const tval *v, bool *out)
{
    *out = false;
    if (box->kind == T_STR) {
        if (v->kind != T_STR)
            return tpl_fail(c, "'in <string>' requires string as left operand, not %s",
                            tpl_kind_name(v));
        TRY(tpl_charge(c, box->len / 16));
        *out = tstr_find(box->u.s, box->len, v->u.s, v->len) != NULL;
        return CORUN_OK;
    }
    if (box->kind == T_DICT) {
        const tval *found;
        TRY(tpl_dict_get(c, box, v, &found));
        *out = found != NULL;
        return CORUN_OK;
    }
    const tval *items;
    uint32_t n;
    TRY(tpl_items(c, box, &items, &n));
    for (uint32_t i = 0; i < n && !*out; i++) TRY(tpl_equal(c, &items[i], v, out));
    return CORUN_OK;
}

/* ---- iteration
 * ------------------------------------------------------------------------------------ */

bool tpl_can_iterate(const tval *v)
{
    return v->kind == T_UNDEF || v->kind == T_STR || v->kind == T_SEQ || v->kind == T_DICT ||
           v->kind == T_ITER || v->kind == T_LOOP;
}

corun_status tpl_items(tctx *c, const tval *v, const tval **items, uint32_t *n)
{
    tval *list;
    *items = NULL;
    *n = 0;
    switch (v->kind) {
    case T_UNDEF: return CORUN_OK;
    case T_SEQ:
        *items = v->u.v;
        *n = v->len;
        return CORUN_OK;
    case T_ITER:
        *items = v->u.it->seq.u.v + v->u.it->pos;
        *n = v->u.it->seq.len - v->u.it->pos;
        v->u.it->pos = v->u.it->seq.len;
        return CORUN_OK;
    case T_DICT:
        TRY(tpl_list(c, &list, v->len));
        for (uint32_t i = 0; i < v->len; i++) list[i] = v->u.d[i].k;
        *items = list;
        *n = v->len;
        return CORUN_OK;
    case T_STR: {
        TRY(tpl_list(c, &list, tstr_count(v->u.s, v->len)));
        uint32_t count = 0;
        for (uint32_t i = 0; i < v->len;) {
            int bytes;
            tstr_cp(v->u.s + i, &bytes);
            list[count++] = tv_str(v->u.s + i, (size_t)bytes);
            i += (uint32_t)bytes;
        }
        *items = list;
        *n = count;
        return CORUN_OK;
    }
    default: return tpl_fail(c, "'%s' object is not iterable", tpl_kind_name(v));
    }
}

corun_status tpl_length(tctx *c, const tval *v, int64_t *out)
{
    switch (v->kind) {
    case T_UNDEF: *out = 0; return CORUN_OK;
    case T_STR:
        TRY(tpl_charge(c, v->len / 64));
        *out = (int64_t)tstr_count(v->u.s, v->len);
        return CORUN_OK;
    case T_SEQ:
    case T_DICT: *out = v->len; return CORUN_OK;
    case T_LOOP: *out = v->u.loop->n; return CORUN_OK;
    default: return tpl_fail(c, "object of type '%s' has no len()", tpl_kind_name(v));
    }
}

/* ---- printing
 * ------------------------------------------------------------------------------------- */

static bool printable(int32_t cp)
{
    if (cp < 0x7f) return cp >= 0x20;
    switch (utf8proc_category(cp)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS: return false;
    default: return true;
    }
}

static void put_quoted(tctx *c, tsb *b, const tval *v)
{
    bool one = v->len && memchr(v->u.s, '\'', v->len), two = v->len && memchr(v->u.s, '"', v->len);
    char quote = one && !two ? '"' : '\'';
    tsb_put(c, b, &quote, 1);
    for (uint32_t i = 0; i < v->len;) {
        int n;
        int32_t cp = tstr_cp(v->u.s + i, &n);
        char t[16];
        if (cp == quote || cp == '\\')
            snprintf(t, sizeof t, "\\%c", (int)cp);
        else if (cp == '\n' || cp == '\r' || cp == '\t')
            snprintf(t, sizeof t, "\\%c", cp == '\n' ? 'n' : cp == '\r' ? 'r' : 't');
        else if (printable(cp))
            snprintf(t, sizeof t, "%.*s", n, v->u.s + i);
        else
            snprintf(t, sizeof t,
                     cp < 0x100     ? "\\x%02x"
                     : cp < 0x10000 ? "\\u%04x"
                                    : "\\U%08x",
                     (unsigned)cp);
        tsb_puts(c, b, t);
        i += (uint32_t)n;
    }
    tsb_put(c, b, &quote, 1);
}

static corun_status put_seq(tctx *c, tsb *b, const tval *v)
{
    static const char *const open[] = {"[",           "(", "", "dict_keys([", "dict_values([",
                                       "dict_items(["};
    static const char *const close[] = {"]", ")", "", "])", "])", "])"};
    if (v->sub == SEQ_RANGE) return tpl_fail(c, "a range cannot be printed");
    tsb_puts(c, b, open[v->sub]);
    for (uint32_t i = 0; i < v->len; i++) {
        if (i) tsb_puts(c, b, ", ");
        TRY(tpl_put_repr(c, b, &v->u.v[i]));
    }
    if (v->sub == SEQ_TUPLE && v->len == 1) tsb_puts(c, b, ",");
    tsb_puts(c, b, close[v->sub]);
    return CORUN_OK;
}

static corun_status put_dict(tctx *c, tsb *b, const tval *v)
{
    tsb_puts(c, b, "{");
    for (uint32_t i = 0; i < v->len; i++) {
        if (i) tsb_puts(c, b, ", ");
        TRY(tpl_put_repr(c, b, &v->u.d[i].k));
        tsb_puts(c, b, ": ");
        TRY(tpl_put_repr(c, b, &v->u.d[i].v));
    }
    tsb_puts(c, b, "}");
    return CORUN_OK;
}

corun_status tpl_put_repr(tctx *c, tsb *b, const tval *v)
{
    char t[32];
    TRY(tpl_charge(c, 1));
    switch (v->kind) {
    case T_UNDEF: tsb_puts(c, b, "Undefined"); break;
    case T_NONE: tsb_puts(c, b, "None"); break;
    case T_BOOL: tsb_puts(c, b, v->u.i ? "True" : "False"); break;
    case T_INT:
        snprintf(t, sizeof t, "%lld", (long long)v->u.i);
        tsb_puts(c, b, t);
        break;
    case T_FLOAT:
        json_double_repr(v->u.f, t);
        tsb_puts(c, b, t);
        break;
    case T_STR:
        if (v->sub) tsb_puts(c, b, "Markup(");
        put_quoted(c, b, v);
        if (v->sub) tsb_puts(c, b, ")");
        break;
    case T_SEQ: return put_seq(c, b, v);
    case T_DICT: return put_dict(c, b, v);
    default: return tpl_fail(c, "a value of type '%s' cannot be printed", tpl_kind_name(v));
    }
    return b->failed ? tpl_why(&c->a) : CORUN_OK;
}

corun_status tpl_put_str(tctx *c, tsb *b, const tval *v)
{
    if (v->kind == T_STR) {
        tsb_put(c, b, v->u.s, v->len);
        return b->failed ? tpl_why(&c->a) : CORUN_OK;
    }
    return v->kind == T_UNDEF ? CORUN_OK : tpl_put_repr(c, b, v);
}

corun_status tpl_to_str(tctx *c, const tval *v, tval *out)
{
    tsb b = {0};
    if (v->kind == T_STR) {
        *out = *v;
        return CORUN_OK;
    }
    TRY(tpl_put_str(c, &b, v));
    return tsb_value(c, &b, out);
}
