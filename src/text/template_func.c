/* template_func.c - owns the global functions. Invariant: the only clock is the date that the
 * caller pinned. */
#include <stdio.h>
#include <string.h>

#include "text/template_int.h"

const char *const tpl_fixed_names[NAME_FIXED] = {"namespace",       "range",        "dict",
                                                 "raise_exception", "strftime_now", "loop",
                                                 "caller",          "varargs",      "kwargs"};

static corun_status put_pair(tctx *c, tpair *pairs, uint32_t *n, const tval *k, const tval *v)
{
    for (uint32_t i = 0; i < *n; i++) {
        bool same;
        TRY(tpl_equal(c, &pairs[i].k, k, &same));
        if (same) {
            pairs[i].v = *v;
            return CORUN_OK;
        }
    }
    pairs[(*n)++] = (tpair){*k, *v};
    return CORUN_OK;
}

/* The pairs of dict(...) and namespace(...): a dictionary, then keywords. */
static corun_status pairs_of(tctx *c, const char *what, const targs *a, tpair **pairs, uint32_t *n)
{
    uint32_t room = (uint32_t)a->n_kw;
    *n = 0;
    if (a->n > 1 || (a->n == 1 && a->v[0].kind != T_DICT))
        return tpl_fail(c, "%s takes one dict and keyword arguments", what);
    if (a->n == 1) room += a->v[0].len;
    TPL_NEW(&c->a, *pairs, room);
    if (a->n == 1) {
        *n = a->v[0].len;
        if (*n) memcpy(*pairs, a->v[0].u.d, *n * sizeof **pairs);
    }
    for (int i = 0; i < a->n_kw; i++) {
        tval k = tv_str(a->kw[i].name, a->kw[i].len);
        TRY(put_pair(c, *pairs, n, &k, &a->kw[i].v));
    }
    return tpl_charge(c, room);
}

static corun_status fn_namespace(tctx *c, const targs *a, tval *out)
{
    tns *ns;
    TPL_NEW(&c->a, ns, 1);
    TRY(pairs_of(c, "namespace", a, &ns->vars, &ns->n));
    ns->cap = ns->n;
    for (uint32_t i = 0; i < ns->n; i++)
        if (ns->vars[i].k.kind != T_STR) return tpl_fail(c, "namespace: names must be strings");
    *out = (tval){.kind = T_NS, .u.ns = ns};
    return CORUN_OK;
}

static corun_status fn_dict(tctx *c, const targs *a, tval *out)
{
    tpair *pairs;
    uint32_t n;
    TRY(pairs_of(c, "dict", a, &pairs, &n));
    return tpl_dict(c, pairs, n, out);
}

static corun_status fn_range(tctx *c, const targs *a, tval *out)
{
    int64_t v[3] = {0, 0, 1};
    if (a->n_kw || a->n < 1 || a->n > 3) return tpl_fail(c, "range takes one to three integers");
    for (int i = 0; i < a->n; i++) {
        if (a->v[i].kind == T_UNDEF) return tpl_fail_undef(c, &a->v[i]);
        if (!tv_is_int(&a->v[i]))
            return tpl_fail(c, "range: an integer is required, not '%s'", tpl_kind_name(&a->v[i]));
        v[i] = a->v[i].u.i;
    }
    int64_t first = a->n == 1 ? 0 : v[0], stop = a->n == 1 ? v[0] : v[1], step = v[2];
    if (step == 0) return tpl_fail(c, "range: the step must not be zero");
    uint64_t n = 0;
    if (step > 0 ? first < stop : first > stop) {
        uint64_t span =
            step > 0 ? (uint64_t)stop - (uint64_t)first : (uint64_t)first - (uint64_t)stop;
        uint64_t size = step > 0 ? (uint64_t)step : -(uint64_t)step;
        n = (span - 1) / size + 1;
    }
    if (n > TPL_RANGE_MAX) return tpl_fail(c, "range too big: more than %d items", TPL_RANGE_MAX);
    tval *items;
    TRY(tpl_list(c, &items, n));
    for (uint64_t i = 0; i < n; i++)
        items[i] = tv_int((int64_t)((uint64_t)first + i * (uint64_t)step));
    return tpl_seq(c, SEQ_RANGE, items, n, out);
}

static corun_status fn_raise(tctx *c, const targs *a, tval *out)
{
    tval s;
    (void)out;
    if (a->n != 1 || a->n_kw) return tpl_fail(c, "raise_exception takes one message");
    TRY(tpl_to_str(c, &a->v[0], &s));
    return tpl_fail(c, "the template refuses: %.*s", (int)(s.len < 600 ? s.len : 600), s.u.s);
}

/* Days of the year before this date, and the weekday (0: Sunday). */
static int day_of_year(int y, int m, int d)
{
    static const int before[] = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334};
    bool leap = (y % 4 == 0 && y % 100 != 0) || y % 400 == 0;
    return before[m - 1] + d - 1 + (leap && m > 2);
}

static int weekday(int y, int m, int d)
{
    int p = y - 1;
    return (p + p / 4 - p / 100 + p / 400 + day_of_year(y, m, d) + 1) % 7;
}

/* One directive of strftime; false: not known. pad: two digits. */
static bool date_part(const tctx *c, char k, bool pad, char out[40])
{
    static const char *const days[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                       "Thursday", "Friday", "Saturday"};
    static const char *const months[] = {"January",   "February", "March",    "April",
                                         "May",       "June",     "July",     "August",
                                         "September", "October",  "November", "December"};
    const char *two = pad ? "%02d" : "%d";
    const char *day = days[weekday(c->year, c->month, c->day)], *month = months[c->month - 1];
    switch (k) {
    case 'Y': snprintf(out, 40, "%d", c->year); break;
    case 'y': snprintf(out, 40, two, c->year % 100); break;
    case 'm': snprintf(out, 40, two, c->month); break;
    case 'd': snprintf(out, 40, two, c->day); break;
    case 'e': snprintf(out, 40, pad ? "%2d" : "%d", c->day); break;
    case 'B': snprintf(out, 40, "%s", month); break;
    case 'b':
    case 'h': snprintf(out, 40, "%.3s", month); break;
    case 'A': snprintf(out, 40, "%s", day); break;
    case 'a': snprintf(out, 40, "%.3s", day); break;
    case 'j':
        snprintf(out, 40, pad ? "%03d" : "%d", day_of_year(c->year, c->month, c->day) + 1);
        break;
    case 'H':
    case 'M':
    case 'S': snprintf(out, 40, two, 0); break;
    case 'I': snprintf(out, 40, two, 12); break;
    case 'p': snprintf(out, 40, "AM"); break;
    case 'F': snprintf(out, 40, "%d-%02d-%02d", c->year, c->month, c->day); break;
    case 'D':
    case 'x': snprintf(out, 40, "%02d/%02d/%02d", c->month, c->day, c->year % 100); break;
    case 'T':
    case 'X': snprintf(out, 40, "00:00:00"); break;
    case 'R': snprintf(out, 40, "00:00"); break;
    case 'Z':
    case 'z': out[0] = 0; break;
    case '%': snprintf(out, 40, "%%"); break;
    default: return false;
    }
    return true;
}

static corun_status fn_strftime(tctx *c, const targs *a, tval *out)
{
    tsb b = {0};
    if (a->n != 1 || a->n_kw || a->v[0].kind != T_STR)
        return tpl_fail(c, "strftime_now takes one format string");
    const char *s = a->v[0].u.s, *end = s + a->v[0].len;
    while (s < end) {
        const char *p = memchr(s, '%', (size_t)(end - s));
        tsb_put(c, &b, s, (size_t)((p ? p : end) - s));
        if (!p) break;
        bool pad = !(p + 1 < end && p[1] == '-');
        s = p + (pad ? 1 : 2);
        char part[40];
        if (s >= end || !date_part(c, *s, pad, part))
            return tpl_fail(c, "strftime_now: the directive '%.*s' is not supported",
                            (int)(s < end ? s - p + 1 : s - p), p);
        tsb_puts(c, &b, part);
        s++;
    }
    return tsb_value(c, &b, out);
}

corun_status tpl_function(tctx *c, int id, const targs *a, tval *out)
{
    switch (id) {
    case NAME_NAMESPACE: return fn_namespace(c, a, out);
    case NAME_RANGE: return fn_range(c, a, out);
    case NAME_DICT: return fn_dict(c, a, out);
    case NAME_RAISE: return fn_raise(c, a, out);
    case NAME_STRFTIME: return fn_strftime(c, a, out);
    default: FAIL(CORUN_EINTERNAL, "template function %d", id);
    }
}
