/* template_method.c - owns the methods of values. Invariant: what would change a list or a
 * dictionary is refused, as the immutable sandbox of the reference refuses it. */
#include <string.h>

#include "text/template_int.h"

#define SLOTS 4

typedef corun_status method_fn(tctx *c, const tval *self, const tval *a, tval *out);

static bool given(const tval *v) { return v->kind != T_ABSENT && v->kind != T_NONE; }

static corun_status want_str(tctx *c, const tval *v, const char *what)
{
    if (v->kind == T_STR) return CORUN_OK;
    if (v->kind == T_ABSENT) return tpl_fail(c, "%s: an argument is missing", what);
    return tpl_fail(c, "%s: a string is required, not '%s'", what, tpl_kind_name(v));
}

static corun_status want_int(tctx *c, const tval *v, int64_t def, int64_t *out)
{
    *out = def;
    if (!given(v)) return CORUN_OK;
    if (!tv_is_int(v)) return tpl_fail(c, "an integer is required, not '%s'", tpl_kind_name(v));
    *out = v->u.i;
    return CORUN_OK;
}

/* ---- strings
 * --------------------------------------------------------------------------------------- */

static corun_status strip(tctx *c, const tval *self, const tval *a, unsigned sides, tval *out)
{
    if (given(&a[0])) TRY(want_str(c, &a[0], "strip"));
    TRY(tpl_charge(c, self->len / 16 * (given(&a[0]) ? 1 + a[0].len : 1)));
    *out = tstr_strip(self, given(&a[0]) ? &a[0] : NULL, sides);
    return CORUN_OK;
}

static corun_status m_strip(tctx *c, const tval *self, const tval *a, tval *out)
{
    return strip(c, self, a, STRIP_LEFT | STRIP_RIGHT, out);
}
static corun_status m_lstrip(tctx *c, const tval *self, const tval *a, tval *out)
{
    return strip(c, self, a, STRIP_LEFT, out);
}
static corun_status m_rstrip(tctx *c, const tval *self, const tval *a, tval *out)
{
    return strip(c, self, a, STRIP_RIGHT, out);
}

static corun_status split(tctx *c, const tval *self, const tval *a, bool right, tval *out)
{
    int64_t max;
    if (given(&a[0])) TRY(want_str(c, &a[0], "split"));
    TRY(want_int(c, &a[1], -1, &max));
    return tstr_split(c, self, given(&a[0]) ? &a[0] : NULL, max, right, out);
}

static corun_status m_split(tctx *c, const tval *self, const tval *a, tval *out)
{
    return split(c, self, a, false, out);
}
static corun_status m_rsplit(tctx *c, const tval *self, const tval *a, tval *out)
{
    return split(c, self, a, true, out);
}

static corun_status m_splitlines(tctx *c, const tval *self, const tval *a, tval *out)
{
    return tstr_splitlines(c, self, given(&a[0]) && tpl_truth(&a[0]), out);
}

/* The part of self that the optional bounds a[1], a[2] leave. */
static corun_status bounded(tctx *c, const tval *self, const tval *a, tval *out)
{
    tval part[3] = {a[1], a[2], {.kind = T_ABSENT}};
    return tpl_slice(c, self, part, out);
}

static bool has_affix(const tval *s, const tval *w, bool end)
{
    return w->len <= s->len && memcmp(s->u.s + (end ? s->len - w->len : 0), w->u.s, w->len) == 0;
}

static corun_status affix(tctx *c, const tval *self, const tval *a, bool end, tval *out)
{
    tval s;
    const char *what = end ? "endswith" : "startswith";
    const tval *words = a;
    uint32_t n = 1;
    bool found = false;
    TRY(bounded(c, self, a, &s));
    if (a[0].kind == T_SEQ && a[0].sub == SEQ_TUPLE) {
        words = a[0].u.v;
        n = a[0].len;
    }
    for (uint32_t i = 0; i < n; i++) {
        TRY(want_str(c, &words[i], what));
        found |= has_affix(&s, &words[i], end);
    }
    *out = tv_bool(found);
    return CORUN_OK;
}

static corun_status m_startswith(tctx *c, const tval *self, const tval *a, tval *out)
{
    return affix(c, self, a, false, out);
}
static corun_status m_endswith(tctx *c, const tval *self, const tval *a, tval *out)
{
    return affix(c, self, a, true, out);
}

static corun_status m_replace(tctx *c, const tval *self, const tval *a, tval *out)
{
    int64_t max;
    TRY(want_str(c, &a[0], "replace"));
    TRY(want_str(c, &a[1], "replace"));
    TRY(want_int(c, &a[2], -1, &max));
    return tstr_replace(c, self, &a[0], &a[1], max, out);
}

static corun_status m_upper(tctx *c, const tval *self, const tval *a, tval *out)
{
    (void)a;
    return tstr_case(c, self, CASE_UPPER, out);
}
static corun_status m_lower(tctx *c, const tval *self, const tval *a, tval *out)
{
    (void)a;
    return tstr_case(c, self, CASE_LOWER, out);
}
static corun_status m_title(tctx *c, const tval *self, const tval *a, tval *out)
{
    (void)a;
    return tstr_case(c, self, CASE_TITLE, out);
}
static corun_status m_capitalize(tctx *c, const tval *self, const tval *a, tval *out)
{
    (void)a;
    return tstr_case(c, self, CASE_CAPITAL, out);
}

static corun_status m_join(tctx *c, const tval *self, const tval *a, tval *out)
{
    const tval *items;
    uint32_t n;
    tsb b = {0};
    if (a[0].kind == T_ABSENT) return tpl_fail(c, "join: an argument is missing");
    TRY(tpl_items(c, &a[0], &items, &n));
    for (uint32_t i = 0; i < n; i++) {
        TRY(want_str(c, &items[i], "join"));
        if (i) tsb_put(c, &b, self->u.s, self->len);
        tsb_put(c, &b, items[i].u.s, items[i].len);
        TRY(tpl_charge(c, 1));
    }
    return tsb_value(c, &b, out);
}

/* Code point of the first (last) place of a[0], or -1. */
static corun_status find(tctx *c, const tval *self, const tval *a, bool last, int64_t *out)
{
    tval s, part[3] = {a[1], a[2], {.kind = T_ABSENT}};
    TRY(want_str(c, &a[0], "find"));
    TRY(tpl_slice(c, self, part, &s));
    TRY(tpl_charge(c, self->len / 16));
    const char *hit = tstr_find(s.u.s, s.len, a[0].u.s, a[0].len);
    if (hit && last)
        for (const char *p = s.u.s + s.len - a[0].len; p > hit; p--) {
            TRY(tpl_charge(c, 1 + a[0].len / 64));
            if (memcmp(p, a[0].u.s, a[0].len) == 0) hit = p;
        }
    *out = -1;
    if (!hit) return CORUN_OK;
    if (s.len == 0 && (given(&a[1]) || given(&a[2])))
        return tpl_fail(c, "find of an empty part is not supported");
    *out = (int64_t)tstr_count(self->u.s, (size_t)(hit - self->u.s));
    return CORUN_OK;
}

static corun_status m_find(tctx *c, const tval *self, const tval *a, tval *out)
{
    int64_t i;
    TRY(find(c, self, a, false, &i));
    *out = tv_int(i);
    return CORUN_OK;
}
static corun_status m_rfind(tctx *c, const tval *self, const tval *a, tval *out)
{
    int64_t i;
    TRY(find(c, self, a, true, &i));
    *out = tv_int(i);
    return CORUN_OK;
}

static corun_status m_index(tctx *c, const tval *self, const tval *a, tval *out)
{
    if (self->kind == T_STR) {
        TRY(m_find(c, self, a, out));
        return out->u.i >= 0 ? CORUN_OK : tpl_fail(c, "substring not found");
    }
    for (uint32_t i = 0; i < self->len; i++) {
        bool same;
        TRY(tpl_equal(c, &self->u.v[i], &a[0], &same));
        if (same) {
            *out = tv_int(i);
            return CORUN_OK;
        }
    }
    return tpl_fail(c, "index: the value is not in the list");
}

static corun_status m_count(tctx *c, const tval *self, const tval *a, tval *out)
{
    int64_t n = 0;
    if (self->kind == T_STR) {
        tval s;
        TRY(want_str(c, &a[0], "count"));
        TRY(bounded(c, self, a, &s));
        TRY(tpl_charge(c, self->len / 16));
        const char *p = s.u.s, *end = p + s.len;
        if (a[0].len == 0) n = (int64_t)tstr_count(p, s.len) + 1;
        while (a[0].len && (p = tstr_find(p, (size_t)(end - p), a[0].u.s, a[0].len))) {
            p += a[0].len;
            n++;
        }
    }
    for (uint32_t i = 0; self->kind == T_SEQ && i < self->len; i++) {
        bool same;
        TRY(tpl_equal(c, &self->u.v[i], &a[0], &same));
        n += same;
    }
    *out = tv_int(n);
    return CORUN_OK;
}

static corun_status is_class(tctx *c, const tval *self, char what, tval *out)
{
    *out = tv_bool(tstr_is_class(self, what));
    return tpl_charge(c, self->len / 8);
}
static corun_status m_isdigit(tctx *c, const tval *self, const tval *a, tval *out)
{
    (void)a;
    return is_class(c, self, 'd', out);
}
static corun_status m_isalpha(tctx *c, const tval *self, const tval *a, tval *out)
{
    (void)a;
    return is_class(c, self, 'a', out);
}
static corun_status m_isalnum(tctx *c, const tval *self, const tval *a, tval *out)
{
    (void)a;
    return is_class(c, self, 'n', out);
}
static corun_status m_isspace(tctx *c, const tval *self, const tval *a, tval *out)
{
    (void)a;
    return is_class(c, self, 's', out);
}
static corun_status m_isupper(tctx *c, const tval *self, const tval *a, tval *out)
{
    (void)a;
    *out = tv_bool(tstr_is_case(self, true));
    return tpl_charge(c, self->len / 8);
}
static corun_status m_islower(tctx *c, const tval *self, const tval *a, tval *out)
{
    (void)a;
    *out = tv_bool(tstr_is_case(self, false));
    return tpl_charge(c, self->len / 8);
}

static corun_status remove_affix(tctx *c, const tval *self, const tval *a, bool end, tval *out)
{
    TRY(want_str(c, &a[0], end ? "removesuffix" : "removeprefix"));
    *out = *self;
    if (!has_affix(self, &a[0], end)) return CORUN_OK;
    out->len -= a[0].len;
    if (!end) out->u.s += a[0].len;
    return CORUN_OK;
}
static corun_status m_removeprefix(tctx *c, const tval *self, const tval *a, tval *out)
{
    return remove_affix(c, self, a, false, out);
}
static corun_status m_removesuffix(tctx *c, const tval *self, const tval *a, tval *out)
{
    return remove_affix(c, self, a, true, out);
}

/* ---- dictionaries, lists
 * --------------------------------------------------------------------------- */

static corun_status m_get(tctx *c, const tval *self, const tval *a, tval *out)
{
    const tval *found;
    if (a[0].kind == T_ABSENT) return tpl_fail(c, "get: an argument is missing");
    TRY(tpl_dict_get(c, self, &a[0], &found));
    *out = found ? *found : a[1].kind != T_ABSENT ? a[1] : tv_none();
    return CORUN_OK;
}

static corun_status view(tctx *c, const tval *self, tseq kind, tval *out)
{
    tval *items;
    TRY(tpl_list(c, &items, self->len));
    for (uint32_t i = 0; i < self->len; i++) {
        const tpair *p = &self->u.d[i];
        tval *pair;
        if (kind != SEQ_ITEMS) {
            items[i] = kind == SEQ_KEYS ? p->k : p->v;
            continue;
        }
        TRY(tpl_list(c, &pair, 2));
        pair[0] = p->k;
        pair[1] = p->v;
        TRY(tpl_seq(c, SEQ_TUPLE, pair, 2, &items[i]));
    }
    return tpl_seq(c, kind, items, self->len, out);
}

static corun_status m_items(tctx *c, const tval *self, const tval *a, tval *out)
{
    (void)a;
    return view(c, self, SEQ_ITEMS, out);
}
static corun_status m_keys(tctx *c, const tval *self, const tval *a, tval *out)
{
    (void)a;
    return view(c, self, SEQ_KEYS, out);
}
static corun_status m_values(tctx *c, const tval *self, const tval *a, tval *out)
{
    (void)a;
    return view(c, self, SEQ_VALUES, out);
}
static corun_status m_copy(tctx *c, const tval *self, const tval *a, tval *out)
{
    (void)c;
    (void)a;
    *out = *self; /* values never change */
    return CORUN_OK;
}

static corun_status m_changed(tctx *c, const targs *a, tloop *l, tval *out)
{
    tval now;
    bool same = false;
    TRY(tpl_seq(c, SEQ_TUPLE, a->v, (size_t)a->n, &now));
    if (l->changed_once) TRY(tpl_equal(c, &l->changed, &now, &same));
    l->changed = now;
    l->changed_once = true;
    *out = tv_bool(!same);
    return CORUN_OK;
}

/* ---- the table
 * --------------------------------------------------------------------------------------- */

enum { ON_STR = 1, ON_DICT = 2, ON_LIST = 4, ON_LOOP = 8 };

static const struct method {
    const char *name;
    unsigned on;
    method_fn *fn; /* NULL: taken apart in tpl_method */
    const char *params;
    int required;
} methods[] = {
    {"capitalize", ON_STR, m_capitalize, "", 0},
    {"changed", ON_LOOP, NULL, "", 0},
    {"copy", ON_DICT | ON_LIST, m_copy, "", 0},
    {"count", ON_STR | ON_LIST, m_count, "value,start,end", 1},
    {"cycle", ON_LOOP, NULL, "", 0},
    {"endswith", ON_STR, m_endswith, "suffix,start,end", 1},
    {"find", ON_STR, m_find, "sub,start,end", 1},
    {"format", ON_STR, NULL, "", 0},
    {"get", ON_DICT, m_get, "key,default", 1},
    {"index", ON_STR | ON_LIST, m_index, "value,start,end", 1},
    {"isalnum", ON_STR, m_isalnum, "", 0},
    {"isalpha", ON_STR, m_isalpha, "", 0},
    {"isdigit", ON_STR, m_isdigit, "", 0},
    {"islower", ON_STR, m_islower, "", 0},
    {"isspace", ON_STR, m_isspace, "", 0},
    {"isupper", ON_STR, m_isupper, "", 0},
    {"items", ON_DICT, m_items, "", 0},
    {"join", ON_STR, m_join, "iterable", 1},
    {"keys", ON_DICT, m_keys, "", 0},
    {"lower", ON_STR, m_lower, "", 0},
    {"lstrip", ON_STR, m_lstrip, "chars", 0},
    {"removeprefix", ON_STR, m_removeprefix, "prefix", 1},
    {"removesuffix", ON_STR, m_removesuffix, "suffix", 1},
    {"replace", ON_STR, m_replace, "old,new,count", 2},
    {"rfind", ON_STR, m_rfind, "sub,start,end", 1},
    {"rsplit", ON_STR, m_rsplit, "sep,maxsplit", 0},
    {"rstrip", ON_STR, m_rstrip, "chars", 0},
    {"split", ON_STR, m_split, "sep,maxsplit", 0},
    {"splitlines", ON_STR, m_splitlines, "keepends", 0},
    {"startswith", ON_STR, m_startswith, "prefix,start,end", 1},
    {"strip", ON_STR, m_strip, "chars", 0},
    {"title", ON_STR, m_title, "", 0},
    {"upper", ON_STR, m_upper, "", 0},
    {"values", ON_DICT, m_values, "", 0},
};

static const char *const unsafe_dict[] = {"clear", "pop", "popitem", "setdefault", "update"};
static const char *const unsafe_list[] = {"append", "clear",  "extend",  "insert",
                                          "pop",    "remove", "reverse", "sort"};
static const char *const missing_str[] = {"casefold",   "center",      "encode",    "expandtabs",
                                          "format_map", "isascii",     "isdecimal", "isidentifier",
                                          "isnumeric",  "isprintable", "istitle",   "ljust",
                                          "maketrans",  "partition",   "rindex",    "rjust",
                                          "rpartition", "swapcase",    "translate", "zfill"};
static const char *const missing_dict[] = {"fromkeys"};

#define HAS(list, s, len) has_word(list, sizeof list / sizeof *list, s, len)

static bool same_word(const char *word, const char *s, size_t len)
{
    return len > 0 && word[0] == s[0] && strlen(word) == len && memcmp(word, s, len) == 0;
}

static bool has_word(const char *const *list, size_t n, const char *s, size_t len)
{
    for (size_t i = 0; i < n; i++)
        if (same_word(list[i], s, len)) return true;
    return false;
}

tmethod_state tpl_method_find(const tval *v, const char *s, size_t len, int *id)
{
    unsigned on = v->kind == T_STR                          ? ON_STR
                  : v->kind == T_DICT                       ? ON_DICT
                  : v->kind == T_SEQ && v->sub <= SEQ_TUPLE ? ON_LIST
                  : v->kind == T_LOOP                       ? ON_LOOP
                                                            : 0;
    if (!on) return METHOD_NONE;
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        if ((methods[i].on & on) && same_word(methods[i].name, s, len)) {
            if (v->kind == T_SEQ && v->sub == SEQ_TUPLE && methods[i].fn == m_copy)
                return METHOD_NONE;
            *id = (int)i;
            return METHOD_HERE;
        }
    if (v->kind == T_DICT && HAS(unsafe_dict, s, len)) return METHOD_UNSAFE;
    if (v->kind == T_SEQ && v->sub == SEQ_LIST && HAS(unsafe_list, s, len)) return METHOD_UNSAFE;
    if (v->kind == T_STR && HAS(missing_str, s, len)) return METHOD_MISSING;
    if (v->kind == T_DICT && HAS(missing_dict, s, len)) return METHOD_MISSING;
    return METHOD_NONE;
}

bool tpl_method_unknown(const char *s, size_t len)
{
    return HAS(missing_str, s, len) || HAS(missing_dict, s, len);
}

corun_status tpl_method(tctx *c, int id, const tval *self, const targs *a, tval *out)
{
    const struct method *m = &methods[id];
    if (!m->fn && self->kind == T_STR) return tstr_format(c, self, a, out);
    if (!m->fn && a->n_kw) return tpl_fail(c, "%s takes no keyword arguments", m->name);
    if (!m->fn && m->name[1] == 'h') return m_changed(c, a, self->u.loop, out);
    if (!m->fn) {
        if (a->n == 0) return tpl_fail(c, "no items for cycling given");
        *out = a->v[self->u.loop->i % (uint32_t)a->n];
        return CORUN_OK;
    }
    tval slots[SLOTS];
    TRY(tpl_bind(c, m->name, m->params, a, slots, SLOTS));
    for (int i = 0; i < m->required; i++)
        if (slots[i].kind == T_ABSENT) return tpl_fail(c, "%s: an argument is missing", m->name);
    return m->fn(c, self, slots, out);
}
