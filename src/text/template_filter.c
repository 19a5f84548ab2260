/* template_filter.c - owns the filters. Invariant: a filter sees as many argument slots as its
 * row of the table names, those not given being T_ABSENT. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/template_int.h"

#define SLOTS 6

typedef corun_status filter_fn(tctx *c, const tval *in, const tval *a, tval *out);
typedef corun_status rest_fn(tctx *c, const tval *in, const targs *a, tval *out);

static bool given(const tval *v) { return v->kind != T_ABSENT; }
static bool is_word(const tval *v, const char *w)
{
    return v->kind == T_STR && v->len == strlen(w) && memcmp(v->u.s, w, v->len) == 0;
}
static bool flag(const tval *v) { return given(v) && tpl_truth(v); }

static corun_status want_int(tctx *c, const tval *v, int64_t def, int64_t *out)
{
    *out = def;
    if (!given(v)) return CORUN_OK;
    if (v->kind == T_UNDEF) return tpl_fail_undef(c, v);
    if (!tv_is_int(v)) return tpl_fail(c, "an integer is required, not '%s'", tpl_kind_name(v));
    *out = v->u.i;
    return CORUN_OK;
}

/* ---- parameters
 * ------------------------------------------------------------------------------------ */

int tpl_param_count(const char *params)
{
    int n = *params != 0;
    for (; *params; params++) n += *params == ',';
    return n;
}

int tpl_param(const char *params, const char *name, size_t len)
{
    for (int i = 0; *params; i++) {
        size_t n = strcspn(params, ",");
        if (n == len && memcmp(params, name, len) == 0) return i;
        params += n + (params[n] == ',');
    }
    return -1;
}

corun_status tpl_bind(const tctx *c, const char *what, const char *params, const targs *a,
                      tval *slots, int n_slot)
{
    int n = tpl_param_count(params);
    for (int i = 0; i < n_slot; i++) slots[i] = (tval){.kind = T_ABSENT};
    if (a->n > n) return tpl_fail(c, "%s takes at most %d argument(s), %d given", what, n, a->n);
    for (int i = 0; i < a->n; i++) slots[i] = a->v[i];
    for (int i = 0; i < a->n_kw; i++) {
        int k = tpl_param(params, a->kw[i].name, a->kw[i].len);
        if (k < 0)
            return tpl_fail(c, "%s has no argument '%.*s'", what, (int)a->kw[i].len, a->kw[i].name);
        if (k < a->n)
            return tpl_fail(c, "%s: argument '%.*s' is given twice", what, (int)a->kw[i].len,
                            a->kw[i].name);
        slots[k] = a->kw[i].v;
    }
    return CORUN_OK;
}

/* ---- members by path, sorting
 * ----------------------------------------------------------------------- */

corun_status tpl_attr_path(tctx *c, const tval *v, const tval *path, const tval *fallback,
                           tval *out)
{
    *out = *v;
    if (path->kind != T_STR) {
        TRY(tpl_get_item(c, v, path, out));
    } else {
        const char *s = path->u.s, *end = s + path->len;
        for (;;) {
            const char *dot = memchr(s, '.', (size_t)(end - s));
            size_t len = (size_t)((dot ? dot : end) - s);
            tval key = tv_str(s, len), x = *out;
            if (len > 0 && len < 10 && tstr_is_class(&key, 'd')) {
                int64_t i = 0;
                for (size_t k = 0; k < len; k++) i = i * 10 + (s[k] - '0');
                key = tv_int(i);
            }
            TRY(tpl_get_item(c, &x, &key, out));
            if (out->kind == T_UNDEF && fallback && given(fallback)) *out = *fallback;
            if (!dot) break;
            s = dot + 1;
        }
    }
    if (out->kind == T_UNDEF && fallback && given(fallback)) *out = *fallback;
    return CORUN_OK;
}

/* Merges two sorted halves of keys and items (n in all, the first has half). */
static corun_status merge(tctx *c, tval *keys, tval *items, size_t n, size_t half, bool reverse,
                          tval *room)
{
    size_t i = 0, j = half, o = 0;
    tval *k = room, *v = room + n;
    while (i < half || j < n) {
        bool second = i >= half;
        if (i < half && j < n)
            TRY(reverse ? tpl_less(c, &keys[i], &keys[j], false, &second)
                        : tpl_less(c, &keys[j], &keys[i], false, &second));
        size_t from = second ? j++ : i++;
        k[o] = keys[from];
        v[o++] = items[from];
    }
    memcpy(keys, k, n * sizeof *k);
    memcpy(items, v, n * sizeof *v);
    return CORUN_OK;
}

static corun_status sort_part(tctx *c, tval *keys, tval *items, size_t n, bool reverse, tval *room)
{
    if (n < 2) return CORUN_OK;
    size_t half = n / 2; /* depth: log2 of at most 2^25 items */
    TRY(sort_part(c, keys, items, half, reverse, room));
    TRY(sort_part(c, keys + half, items + half, n - half, reverse, room));
    return merge(c, keys, items, n, half, reverse, room);
}

corun_status tpl_sort(tctx *c, tval *keys, tval *items, size_t n, bool reverse)
{
    tval *room;
    TRY(tpl_list(c, &room, 2 * n));
    return sort_part(c, keys, items, n, reverse, room);
}

/* The key of sort, unique, min, max: an attribute, lower case if case does not count. */
static corun_status key_of(tctx *c, const tval *v, const tval *attr, bool case_counts, tval *out)
{
    *out = *v;
    if (given(attr) && attr->kind != T_NONE) TRY(tpl_attr_path(c, v, attr, NULL, out));
    if (out->kind == T_STR && !case_counts) TRY(tstr_case(c, out, CASE_LOWER, out));
    return CORUN_OK;
}

static corun_status keys_of(tctx *c, const tval *items, size_t n, const tval *attr,
                            bool case_counts, tval **keys)
{
    TRY(tpl_list(c, keys, n));
    for (size_t i = 0; i < n; i++) TRY(key_of(c, &items[i], attr, case_counts, &(*keys)[i]));
    return CORUN_OK;
}

static corun_status copy_items(tctx *c, const tval *in, tval **out, uint32_t *n)
{
    const tval *items;
    TRY(tpl_items(c, in, &items, n));
    TRY(tpl_list(c, out, *n));
    if (*n) memcpy(*out, items, *n * sizeof **out);
    return CORUN_OK;
}

static corun_status f_sort(tctx *c, const tval *in, const tval *a, tval *out)
{
    tval *items, *keys;
    uint32_t n;
    TRY(copy_items(c, in, &items, &n));
    if (a[2].kind == T_STR && memchr(a[2].u.s, ',', a[2].len))
        return tpl_fail(c, "sort by several attributes is not supported");
    TRY(keys_of(c, items, n, &a[2], flag(&a[1]), &keys));
    for (uint32_t i = 0; i < n; i++) { /* lists of one: equal keys need no order */
        tval *one;
        TRY(tpl_list(c, &one, 1));
        *one = keys[i];
        TRY(tpl_seq(c, SEQ_LIST, one, 1, &keys[i]));
    }
    TRY(tpl_sort(c, keys, items, n, flag(&a[0])));
    return tpl_seq(c, SEQ_LIST, items, n, out);
}

static corun_status f_dictsort(tctx *c, const tval *in, const tval *a, tval *out)
{
    tval *keys, *items;
    bool by_value = is_word(&a[1], "value");
    if (in->kind == T_UNDEF) return tpl_fail_undef(c, in);
    if (in->kind != T_DICT)
        return tpl_fail(c, "dictsort needs a dict, not '%s'", tpl_kind_name(in));
    if (given(&a[1]) && !by_value && !is_word(&a[1], "key"))
        return tpl_fail(c, "dictsort: by must be 'key' or 'value'");
    TRY(tpl_list(c, &keys, in->len));
    TRY(tpl_list(c, &items, in->len));
    for (uint32_t i = 0; i < in->len; i++) {
        tval *pair;
        TRY(tpl_list(c, &pair, 2));
        pair[0] = in->u.d[i].k;
        pair[1] = in->u.d[i].v;
        TRY(tpl_seq(c, SEQ_TUPLE, pair, 2, &items[i]));
        TRY(key_of(c, &pair[by_value], &(tval){.kind = T_ABSENT}, flag(&a[0]), &keys[i]));
    }
    TRY(tpl_sort(c, keys, items, in->len, flag(&a[2])));
    return tpl_seq(c, SEQ_LIST, items, in->len, out);
}

static corun_status f_unique(tctx *c, const tval *in, const tval *a, tval *out)
{
    tval *items, *keys;
    uint32_t n, kept = 0;
    TRY(copy_items(c, in, &items, &n));
    TRY(keys_of(c, items, n, &a[1], flag(&a[0]), &keys));
    for (uint32_t i = 0; i < n; i++) {
        bool seen = false;
        TRY(tpl_hashable(c, &keys[i]));
        for (uint32_t k = 0; k < kept && !seen; k++) TRY(tpl_equal(c, &keys[k], &keys[i], &seen));
        if (seen) continue;
        keys[kept] = keys[i];
        items[kept++] = items[i];
    }
    return tpl_iter(c, items, kept, out);
}

static corun_status extreme(tctx *c, const tval *in, const tval *a, bool max, tval *out)
{
    static const char hint[] = "No aggregated item, sequence was empty.";
    tval *items, *keys;
    uint32_t n, best = 0;
    TRY(copy_items(c, in, &items, &n));
    if (n == 0) {
        *out = tv_hint(hint, sizeof hint - 1);
        return CORUN_OK;
    }
    TRY(keys_of(c, items, n, &a[1], flag(&a[0]), &keys));
    for (uint32_t i = 1; i < n; i++) {
        bool better;
        TRY(max ? tpl_less(c, &keys[best], &keys[i], false, &better)
                : tpl_less(c, &keys[i], &keys[best], false, &better));
        if (better) best = i;
    }
    *out = items[best];
    return CORUN_OK;
}

static corun_status f_min(tctx *c, const tval *in, const tval *a, tval *out)
{
    return extreme(c, in, a, false, out);
}
static corun_status f_max(tctx *c, const tval *in, const tval *a, tval *out)
{
    return extreme(c, in, a, true, out);
}

/* ---- sequences
 * ---------------------------------------------------------------------------------------- */

static corun_status f_length(tctx *c, const tval *in, const tval *a, tval *out)
{
    int64_t n;
    (void)a;
    TRY(tpl_length(c, in, &n));
    *out = tv_int(n);
    return CORUN_OK;
}

static corun_status f_list(tctx *c, const tval *in, const tval *a, tval *out)
{
    const tval *items;
    uint32_t n;
    (void)a;
    TRY(tpl_items(c, in, &items, &n));
    return tpl_seq(c, SEQ_LIST, items, n, out);
}

static corun_status f_first(tctx *c, const tval *in, const tval *a, tval *out)
{
    const tval *items;
    uint32_t n;
    (void)a;
    if (in->kind == T_ITER) { /* takes one, leaves the rest */
        titer *it = in->u.it;
        *out = it->pos < it->seq.len ? it->seq.u.v[it->pos++]
                                     : tv_hint("No first item, sequence was empty.", 34);
        return CORUN_OK;
    }
    TRY(tpl_items(c, in, &items, &n));
    *out = n ? items[0] : tv_hint("No first item, sequence was empty.", 34);
    return CORUN_OK;
}

static corun_status f_last(tctx *c, const tval *in, const tval *a, tval *out)
{
    const tval *items;
    uint32_t n;
    (void)a;
    if (in->kind == T_ITER) return tpl_fail(c, "'%s' object is not reversible", tpl_kind_name(in));
    TRY(tpl_items(c, in, &items, &n));
    *out = n ? items[n - 1] : tv_hint("No last item, sequence was empty.", 33);
    return CORUN_OK;
}

static corun_status f_reverse(tctx *c, const tval *in, const tval *a, tval *out)
{
    tval *items, part[3] = {{.kind = T_NONE}, {.kind = T_NONE}, {.kind = T_INT, .u.i = -1}};
    uint32_t n;
    (void)a;
    if (in->kind == T_STR) return tpl_slice(c, in, part, out);
    TRY(copy_items(c, in, &items, &n));
    for (uint32_t i = 0; i < n / 2; i++) {
        tval t = items[i];
        items[i] = items[n - 1 - i];
        items[n - 1 - i] = t;
    }
    return tpl_iter(c, items, n, out);
}

static corun_status f_items(tctx *c, const tval *in, const tval *a, tval *out)
{
    tval *items;
    (void)a;
    if (in->kind != T_DICT && in->kind != T_UNDEF)
        return tpl_fail(c, "can only get item pairs from a mapping, not '%s'", tpl_kind_name(in));
    uint32_t n = in->kind == T_DICT ? in->len : 0;
    TRY(tpl_list(c, &items, n));
    for (uint32_t i = 0; i < n; i++) {
        tval *pair;
        TRY(tpl_list(c, &pair, 2));
        pair[0] = in->u.d[i].k;
        pair[1] = in->u.d[i].v;
        TRY(tpl_seq(c, SEQ_TUPLE, pair, 2, &items[i]));
    }
    return tpl_iter(c, items, n, out);
}

static corun_status f_batch(tctx *c, const tval *in, const tval *a, tval *out)
{
    const tval *items;
    tval *rows, *row;
    uint32_t n, n_row = 0;
    int64_t width;
    TRY(tpl_items(c, in, &items, &n));
    TRY(want_int(c, &a[0], 0, &width));
    if (width < 1 || width > TPL_RANGE_MAX) return tpl_fail(c, "batch: width must be 1 or more");
    TRY(tpl_list(c, &rows, n / (size_t)width + 1));
    for (uint32_t i = 0; i < n; i += (uint32_t)width) {
        uint32_t left = n - i, len = left < width ? left : (uint32_t)width;
        bool fill = left < width && given(&a[1]) && a[1].kind != T_NONE;
        TRY(tpl_list(c, &row, (size_t)width));
        for (uint32_t k = 0; k < width; k++) row[k] = k < len ? items[i + k] : a[1];
        TRY(tpl_seq(c, SEQ_LIST, row, fill ? (size_t)width : len, &rows[n_row++]));
    }
    return tpl_iter(c, rows, n_row, out);
}

static corun_status f_join(tctx *c, const tval *in, const tval *a, tval *out)
{
    const tval *items;
    uint32_t n;
    tsb b = {0};
    TRY(tpl_items(c, in, &items, &n));
    for (uint32_t i = 0; i < n; i++) {
        tval v = items[i];
        if (given(&a[1]) && a[1].kind != T_NONE) TRY(tpl_attr_path(c, &items[i], &a[1], NULL, &v));
        if (i && given(&a[0])) TRY(tpl_put_str(c, &b, &a[0]));
        TRY(tpl_charge(c, 1));
        TRY(tpl_put_str(c, &b, &v));
    }
    return tsb_value(c, &b, out);
}

static corun_status f_sum(tctx *c, const tval *in, const tval *a, tval *out)
{
    const tval *items;
    uint32_t n;
    tval sum = given(&a[1]) ? a[1] : tv_int(0);
    TRY(tpl_items(c, in, &items, &n));
    if (sum.kind == T_STR) return tpl_fail(c, "sum() cannot sum strings");
    for (uint32_t i = 0; i < n; i++) {
        tval v = items[i];
        if (given(&a[0]) && a[0].kind != T_NONE) TRY(tpl_attr_path(c, &items[i], &a[0], NULL, &v));
        TRY(tpl_charge(c, 1));
        TRY(tpl_binary(c, '+', &sum, &v, &sum));
    }
    *out = sum;
    return CORUN_OK;
}

/* ---- map, select and their kin
 * ------------------------------------------------------------------------ */

static corun_status f_map(tctx *c, const tval *in, const targs *a, tval *out)
{
    const tval *items;
    tval *done, attr = {.kind = T_ABSENT}, fallback = {.kind = T_ABSENT};
    uint32_t n;
    int id = -1;
    if (!tpl_truth(in)) return tpl_iter(c, NULL, 0, out); /* whatever it is, and the arguments */
    TRY(tpl_items(c, in, &items, &n));
    if (a->n == 0) {
        tval slots[2];
        TRY(tpl_bind(c, "map", "attribute,default", a, slots, 2));
        attr = slots[0];
        fallback = slots[1];
        if (!given(&attr)) return tpl_fail(c, "map needs a filter or attribute=");
    } else {
        if (a->v[0].kind != T_STR) return tpl_fail(c, "map needs the name of a filter");
        id = tpl_filter_find(a->v[0].u.s, a->v[0].len);
        if (id < 0)
            return tpl_fail(c, "the filter '%.*s' is not supported", (int)a->v[0].len, a->v[0].u.s);
    }
    targs rest = {a->v + 1, a->n - 1, a->kw, a->n_kw};
    TRY(tpl_list(c, &done, n));
    if (++c->depth > TPL_EVAL_MAX) return tpl_fail(c, "filters nested too deeply");
    for (uint32_t i = 0; i < n; i++) {
        TRY(tpl_charge(c, 1));
        TRY(id < 0 ? tpl_attr_path(c, &items[i], &attr, &fallback, &done[i])
                   : tpl_filter(c, id, &items[i], &rest, &done[i]));
    }
    c->depth--;
    return tpl_iter(c, done, n, out);
}

/* The items whose test (or truth) is want; by_attr: the first argument names a member. */
static corun_status choose(tctx *c, const tval *in, const targs *a, bool by_attr, bool want,
                           tval *out)
{
    const tval *items;
    tval *kept;
    uint32_t n, n_kept = 0;
    int skip = by_attr ? 1 : 0, id = -1;
    if (!tpl_truth(in)) return tpl_iter(c, NULL, 0, out);
    TRY(tpl_items(c, in, &items, &n));
    if (a->n < skip) return tpl_fail(c, "the name of an attribute is missing");
    if (a->n > skip) {
        const tval *name = &a->v[skip];
        if (name->kind != T_STR) return tpl_fail(c, "the name of a test must be a string");
        id = tpl_test_find(name->u.s, name->len);
        if (id < 0)
            return tpl_fail(c, "the test '%.*s' is not supported", (int)name->len, name->u.s);
        skip++;
    }
    targs rest = {a->v + skip, a->n - skip, a->kw, a->n_kw};
    TRY(tpl_list(c, &kept, n));
    for (uint32_t i = 0; i < n; i++) {
        tval v = items[i];
        bool r;
        TRY(tpl_charge(c, 1));
        if (by_attr) TRY(tpl_attr_path(c, &items[i], &a->v[0], NULL, &v));
        if (id >= 0)
            TRY(tpl_test(c, id, &v, &rest, &r));
        else
            r = tpl_truth(&v);
        if (r == want) kept[n_kept++] = items[i];
    }
    return tpl_iter(c, kept, n_kept, out);
}

static corun_status f_select(tctx *c, const tval *in, const targs *a, tval *out)
{
    return choose(c, in, a, false, true, out);
}
static corun_status f_reject(tctx *c, const tval *in, const targs *a, tval *out)
{
    return choose(c, in, a, false, false, out);
}
static corun_status f_selectattr(tctx *c, const tval *in, const targs *a, tval *out)
{
    return choose(c, in, a, true, true, out);
}
static corun_status f_rejectattr(tctx *c, const tval *in, const targs *a, tval *out)
{
    return choose(c, in, a, true, false, out);
}

/* ---- strings
 * ------------------------------------------------------------------------------------------- */

static corun_status f_string(tctx *c, const tval *in, const tval *a, tval *out)
{
    (void)a;
    return tpl_to_str(c, in, out);
}

static corun_status f_safe(tctx *c, const tval *in, const tval *a, tval *out)
{
    (void)a;
    TRY(tpl_to_str(c, in, out));
    out->sub = 1;
    return CORUN_OK;
}

static corun_status f_escape(tctx *c, const tval *in, const tval *a, tval *out)
{
    (void)a;
    return tstr_escape_html(c, in, out);
}

static corun_status f_trim(tctx *c, const tval *in, const tval *a, tval *out)
{
    tval s;
    TRY(tpl_to_str(c, in, &s));
    if (given(&a[0]) && a[0].kind != T_NONE && a[0].kind != T_STR)
        return tpl_fail(c, "trim: characters must be a string");
    TRY(tpl_charge(c, s.len / 16));
    *out = tstr_strip(&s, a[0].kind == T_STR ? &a[0] : NULL, STRIP_LEFT | STRIP_RIGHT);
    return CORUN_OK;
}

static corun_status to_case(tctx *c, const tval *in, tcase how, tval *out)
{
    tval s;
    TRY(tpl_to_str(c, in, &s));
    return tstr_case(c, &s, how, out);
}

static corun_status f_upper(tctx *c, const tval *in, const tval *a, tval *out)
{
    (void)a;
    return to_case(c, in, CASE_UPPER, out);
}
static corun_status f_lower(tctx *c, const tval *in, const tval *a, tval *out)
{
    (void)a;
    return to_case(c, in, CASE_LOWER, out);
}
static corun_status f_capitalize(tctx *c, const tval *in, const tval *a, tval *out)
{
    (void)a;
    return to_case(c, in, CASE_CAPITAL, out);
}
static corun_status f_title(tctx *c, const tval *in, const tval *a, tval *out)
{
    (void)a;
    return to_case(c, in, CASE_TITLE_FILTER, out);
}

static corun_status f_replace(tctx *c, const tval *in, const tval *a, tval *out)
{
    tval s, from, to, count = a[2];
    int64_t max;
    if (count.kind == T_NONE) count.kind = T_ABSENT;
    if (!given(&a[0]) || !given(&a[1])) return tpl_fail(c, "replace needs two arguments");
    TRY(tpl_to_str(c, in, &s));
    TRY(tpl_to_str(c, &a[0], &from));
    TRY(tpl_to_str(c, &a[1], &to));
    TRY(want_int(c, &count, -1, &max));
    return tstr_replace(c, &s, &from, &to, max, out);
}

static corun_status f_indent(tctx *c, const tval *in, const tval *a, tval *out)
{
    tval lines, s = *in, pad = tv_str("    ", 4);
    int64_t width;
    if (in->kind != T_STR) return tpl_fail(c, "indent needs a string, not '%s'", tpl_kind_name(in));
    if (a[0].kind == T_STR) {
        pad = a[0];
    } else {
        tval space = tv_str(" ", 1);
        TRY(want_int(c, &a[0], 4, &width));
        tval n = tv_int(width);
        TRY(tpl_binary(c, '*', &space, &n, &pad));
    }
    /* as the reference: a line end more, so that a final one makes an empty last line */
    tval end = tv_str("\n", 1);
    tsb b = {0};
    TRY(tpl_binary(c, '+', &s, &end, &s));
    TRY(tstr_splitlines(c, &s, false, &lines));
    for (uint32_t i = 0; i < lines.len; i++) {
        const tval *line = &lines.u.v[i];
        if (i) tsb_puts(c, &b, "\n");
        if (i == 0 ? flag(&a[1]) : line->len > 0 || flag(&a[2])) tsb_put(c, &b, pad.u.s, pad.len);
        tsb_put(c, &b, line->u.s, line->len);
    }
    return tsb_value(c, &b, out);
}

static corun_status f_format(tctx *c, const tval *in, const targs *a, tval *out)
{
    tval s, args;
    TRY(tpl_to_str(c, in, &s));
    if (a->n_kw) return tpl_fail(c, "format with keyword arguments is not supported");
    TRY(tpl_seq(c, SEQ_TUPLE, a->v, (size_t)a->n, &args));
    return tstr_percent(c, &s, &args, out);
}

static corun_status f_tojson(tctx *c, const tval *in, const tval *a, tval *out)
{
    tjson how = {.ascii = flag(&a[0]), .sorted = flag(&a[3]), .key = ": ", .key_len = 2};
    tval pad;
    how.item = given(&a[1]) && a[1].kind != T_NONE ? "," : ", ";
    how.item_len = strlen(how.item);
    if (a[1].kind == T_STR) {
        how.indent = a[1].u.s;
        how.indent_len = a[1].len;
    } else if (given(&a[1]) && a[1].kind != T_NONE) {
        tval space = tv_str(" ", 1), n;
        int64_t width;
        TRY(want_int(c, &a[1], 0, &width));
        n = tv_int(width);
        TRY(tpl_binary(c, '*', &space, &n, &pad));
        how.indent = pad.u.s;
        how.indent_len = pad.len;
    }
    if (given(&a[2]) && a[2].kind != T_NONE) {
        const tval *sep = a[2].u.v;
        if (a[2].kind != T_SEQ || a[2].len != 2 || sep[0].kind != T_STR || sep[1].kind != T_STR)
            return tpl_fail(c, "tojson: separators must be two strings");
        how.item = sep[0].u.s;
        how.item_len = sep[0].len;
        how.key = sep[1].u.s;
        how.key_len = sep[1].len;
    }
    return tpl_to_json(c, in, &how, out);
}

static corun_status f_from_json(tctx *c, const tval *in, const tval *a, tval *out)
{
    json_t *j;
    char what[256];
    (void)a;
    if (in->kind != T_STR)
        return tpl_fail(c, "from_json needs a string, not '%s'", tpl_kind_name(in));
    snprintf(what, sizeof what, "%s, line %d: from_json", c->t->what, c->line);
    TRY(tpl_charge(c, in->len));
    TRY(json_read(&j, in->u.s, in->len, what));
    bool was = c->copy_strings;
    c->copy_strings = true;
    corun_status st = tpl_from_json(c, j, out);
    c->copy_strings = was;
    json_decref(j);
    return st;
}

/* ---- numbers and the rest
 * ------------------------------------------------------------------------------- */

/* A whole text as a number, as Python's int() and float() read it; ABSENT: it is none. */
static void parse_number(const tval *s, bool as_float, tval *out)
{
    char t[400];
    tval v = tstr_strip(s, NULL, STRIP_LEFT | STRIP_RIGHT);
    size_t n = 0;
    *out = (tval){.kind = T_ABSENT};
    if (v.len == 0 || v.len >= sizeof t) return;
    for (uint32_t i = 0; i < v.len; i++) {
        char ch = v.u.s[i];
        if (!ch || !strchr(as_float ? "0123456789+-.eE_infatyINFATY" : "0123456789+-_", ch)) return;
        bool mid = i > 0 && i + 1 < v.len && v.u.s[i - 1] >= '0' && v.u.s[i - 1] <= '9' &&
                   v.u.s[i + 1] >= '0' && v.u.s[i + 1] <= '9';
        if (ch == '_' && !mid) return;
        if (ch != '_') t[n++] = ch;
    }
    t[n] = 0;
    char *end;
    errno = 0;
    if (as_float) {
        double f = strtod(t, &end);
        if (!*end) *out = tv_float(f);
    } else {
        long long i = strtoll(t, &end, 10);
        if (!*end && errno == 0) *out = tv_int(i);
    }
}

static corun_status f_int(tctx *c, const tval *in, const tval *a, tval *out)
{
    tval v = {.kind = T_ABSENT};
    if (given(&a[1])) return tpl_fail(c, "int with a base is not supported");
    if (in->kind == T_UNDEF) return tpl_fail_undef(c, in);
    if (tv_is_int(in)) v = tv_int(in->u.i);
    if (in->kind == T_STR) parse_number(in, false, &v);
    if (!given(&v)) {
        if (in->kind == T_FLOAT) v = *in;
        if (in->kind == T_STR) parse_number(in, true, &v);
        if (given(&v) && v.kind == T_FLOAT) {
            bool finite = isfinite(v.u.f);
            if (finite && !(fabs(v.u.f) < 9.2e18))
                return tpl_fail(c, "the result does not fit a 64-bit integer");
            v = finite ? tv_int((int64_t)v.u.f) : (tval){.kind = T_ABSENT};
        }
    }
    *out = given(&v) ? v : given(&a[0]) ? a[0] : tv_int(0);
    return CORUN_OK;
}

static corun_status f_float(tctx *c, const tval *in, const tval *a, tval *out)
{
    tval v = {.kind = T_ABSENT};
    if (in->kind == T_UNDEF) return tpl_fail_undef(c, in);
    if (tv_is_num(in)) v = tv_float(tv_double(in));
    if (in->kind == T_STR) parse_number(in, true, &v);
    *out = given(&v) ? v : given(&a[0]) ? a[0] : tv_float(0);
    return CORUN_OK;
}

static corun_status f_abs(tctx *c, const tval *in, const tval *a, tval *out)
{
    (void)a;
    tval zero = tv_int(0);
    if (in->kind == T_UNDEF) return tpl_fail_undef(c, in);
    if (!tv_is_num(in)) return tpl_fail(c, "bad operand type for abs(): '%s'", tpl_kind_name(in));
    if (in->kind == T_FLOAT) {
        *out = tv_float(fabs(in->u.f));
        return CORUN_OK;
    }
    return tpl_binary(c, in->u.i < 0 ? '-' : '+', &zero, in, out);
}

static corun_status f_round(tctx *c, const tval *in, const tval *a, tval *out)
{
    int64_t digits;
    char t[400];
    TRY(want_int(c, &a[0], 0, &digits));
    if (in->kind == T_UNDEF) return tpl_fail_undef(c, in);
    if (!tv_is_num(in)) return tpl_fail(c, "round needs a number, not '%s'", tpl_kind_name(in));
    if (digits < 0 || digits > 15) return tpl_fail(c, "round: 0 to 15 digits are supported");
    double scale = 1, v = tv_double(in);
    for (int64_t i = 0; i < digits; i++) scale *= 10;
    if (!given(&a[1]) || is_word(&a[1], "common")) {
        snprintf(t, sizeof t, "%.*f", (int)digits, v); /* correctly rounded, ties to even */
        *out = tv_is_int(in) ? tv_int(in->u.i) : tv_float(strtod(t, NULL));
    } else if (is_word(&a[1], "floor")) {
        *out = tv_float(floor(v * scale) / scale);
    } else if (is_word(&a[1], "ceil")) {
        *out = tv_float(ceil(v * scale) / scale);
    } else {
        return tpl_fail(c, "round: method must be common, ceil or floor");
    }
    return CORUN_OK;
}

static corun_status f_default(tctx *c, const tval *in, const tval *a, tval *out)
{
    (void)c;
    bool missing = in->kind == T_UNDEF || (flag(&a[1]) && !tpl_truth(in));
    *out = !missing ? *in : given(&a[0]) ? a[0] : tv_str("", 0);
    return CORUN_OK;
}

static corun_status f_attr(tctx *c, const tval *in, const tval *a, tval *out)
{
    if (a[0].kind != T_STR) return tpl_fail(c, "attr needs the name of an attribute");
    return tpl_get_attr(c, in, a[0].u.s, a[0].len, out);
}

/* ---- the table
 * ------------------------------------------------------------------------------------------- */

static const struct filter {
    const char *name;
    filter_fn *fn; /* arguments in slots ... */
    rest_fn *rest; /* ... or as they came */
    const char *params;
    int required;
} filters[] = {
    {"abs", f_abs, NULL, "", 0},
    {"attr", f_attr, NULL, "name", 1},
    {"batch", f_batch, NULL, "linecount,fill_with", 1},
    {"capitalize", f_capitalize, NULL, "", 0},
    {"count", f_length, NULL, "", 0},
    {"d", f_default, NULL, "default_value,boolean", 0},
    {"default", f_default, NULL, "default_value,boolean", 0},
    {"dictsort", f_dictsort, NULL, "case_sensitive,by,reverse", 0},
    {"e", f_escape, NULL, "", 0},
    {"escape", f_escape, NULL, "", 0},
    {"first", f_first, NULL, "", 0},
    {"float", f_float, NULL, "default", 0},
    {"format", NULL, f_format, "", 0},
    {"from_json", f_from_json, NULL, "", 0},
    {"fromjson", f_from_json, NULL, "", 0},
    {"indent", f_indent, NULL, "width,first,blank", 0},
    {"int", f_int, NULL, "default,base", 0},
    {"items", f_items, NULL, "", 0},
    {"join", f_join, NULL, "d,attribute", 0},
    {"last", f_last, NULL, "", 0},
    {"length", f_length, NULL, "", 0},
    {"list", f_list, NULL, "", 0},
    {"lower", f_lower, NULL, "", 0},
    {"map", NULL, f_map, "", 0},
    {"max", f_max, NULL, "case_sensitive,attribute", 0},
    {"min", f_min, NULL, "case_sensitive,attribute", 0},
    {"reject", NULL, f_reject, "", 0},
    {"rejectattr", NULL, f_rejectattr, "", 0},
    {"replace", f_replace, NULL, "old,new,count", 2},
    {"reverse", f_reverse, NULL, "", 0},
    {"round", f_round, NULL, "precision,method", 0},
    {"safe", f_safe, NULL, "", 0},
    {"select", NULL, f_select, "", 0},
    {"selectattr", NULL, f_selectattr, "", 0},
    {"sort", f_sort, NULL, "reverse,case_sensitive,attribute", 0},
    {"string", f_string, NULL, "", 0},
    {"sum", f_sum, NULL, "attribute,start", 0},
    {"title", f_title, NULL, "", 0},
    {"tojson", f_tojson, NULL, "ensure_ascii,indent,separators,sort_keys", 0},
    {"trim", f_trim, NULL, "chars", 0},
    {"unique", f_unique, NULL, "case_sensitive,attribute", 0},
    {"upper", f_upper, NULL, "", 0},
};

int tpl_filter_find(const char *s, size_t len)
{
    for (size_t i = 0; i < sizeof filters / sizeof *filters; i++)
        if (strlen(filters[i].name) == len && memcmp(filters[i].name, s, len) == 0) return (int)i;
    return -1;
}

const char *tpl_filter_check(int id, int n_pos, const tname *kw, int n_kw)
{
    const struct filter *f = &filters[id];
    if (f->rest) return NULL;
    if (n_pos > tpl_param_count(f->params)) return "too many arguments";
    if (n_pos + n_kw < f->required) return "an argument is missing";
    for (int i = 0; i < n_kw; i++) {
        int k = tpl_param(f->params, kw[i].s, kw[i].len);
        if (k < 0) return "a keyword argument is not supported";
        if (k < n_pos) return "an argument is given twice";
    }
    return NULL;
}

corun_status tpl_filter(tctx *c, int id, const tval *in, const targs *a, tval *out)
{
    const struct filter *f = &filters[id];
    tval slots[SLOTS], v = *in;
    if (f->rest) return f->rest(c, &v, a, out);
    TRY(tpl_bind(c, f->name, f->params, a, slots, SLOTS));
    return f->fn(c, &v, slots, out);
}
