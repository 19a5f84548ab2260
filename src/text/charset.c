/* charset.c - the algebra of charset.h. Invariant: after each call but charset_add the ranges are
 * sorted, disjoint and not adjacent. */
#include "text/charset.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

void charset_free(charset *s)
{
    mem_free(s->r);
    *s = (charset){0};
}

corun_status charset_add(charset *s, uint32_t lo, uint32_t hi)
{
    if (s->n == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 16;
        unicode_range *r = mem_realloc(s->r, cap, sizeof *r, "character set");
        if (!r) return CORUN_ENOMEM;
        s->r = r;
        s->cap = cap;
    }
    s->r[s->n++] = (unicode_range){lo, hi};
    return CORUN_OK;
}

static int range_order(const void *pa, const void *pb)
{
    const unicode_range *a = pa, *b = pb;
    return a->lo < b->lo ? -1 : a->lo > b->lo;
}

void charset_settle(charset *s)
{
    if (s->n < 2) return;
    qsort(s->r, s->n, sizeof *s->r, range_order);
    size_t k = 0;
    for (size_t i = 1; i < s->n; i++) {
        if (s->r[i].lo <= s->r[k].hi + 1) {
            if (s->r[i].hi > s->r[k].hi) s->r[k].hi = s->r[i].hi;
        } else {
            s->r[++k] = s->r[i];
        }
    }
    s->n = k + 1;
}

corun_status charset_add_ranges(charset *s, const unicode_range *r, size_t n)
{
    for (size_t i = 0; i < n; i++) TRY(charset_add(s, r[i].lo, r[i].hi));
    charset_settle(s);
    return CORUN_OK;
}

corun_status charset_union(charset *s, const charset *o)
{
    return charset_add_ranges(s, o->r, o->n);
}

corun_status charset_intersect(charset *s, const charset *o)
{
    charset out = {0};
    for (size_t i = 0, j = 0; i < s->n && j < o->n;) {
        uint32_t lo = s->r[i].lo > o->r[j].lo ? s->r[i].lo : o->r[j].lo;
        uint32_t hi = s->r[i].hi < o->r[j].hi ? s->r[i].hi : o->r[j].hi;
        if (lo <= hi && charset_add(&out, lo, hi) != CORUN_OK) {
            charset_free(&out);
            return CORUN_ENOMEM;
        }
        if (s->r[i].hi < o->r[j].hi)
            i++;
        else
            j++;
    }
    charset_free(s);
    *s = out;
    return CORUN_OK;
}

corun_status charset_invert(charset *s)
{
    charset out = {0};
    uint32_t at = 0;
    corun_status st = CORUN_OK;
    for (size_t i = 0; i < s->n && st == CORUN_OK; i++) {
        if (at < s->r[i].lo) st = charset_add(&out, at, s->r[i].lo - 1);
        at = s->r[i].hi + 1;
    }
    if (st == CORUN_OK && at <= UNICODE_MAX) st = charset_add(&out, at, UNICODE_MAX);
    if (st != CORUN_OK) {
        charset_free(&out);
        return st;
    }
    charset_free(s);
    *s = out;
    return CORUN_OK;
}

bool charset_equal(const charset *a, const charset *b)
{
    return a->n == b->n && (a->n == 0 || !memcmp(a->r, b->r, a->n * sizeof *a->r));
}

corun_status charset_add_gc(charset *s, const char *prefix)
{
    size_t k = strlen(prefix);
    for (size_t i = 0; i < unicode_gc_runs_n; i++) {
        const char *name = unicode_gc_names[unicode_gc_runs[i] & 0xFF];
        if (strncmp(name, prefix, k) != 0) continue;
        uint32_t hi = i + 1 < unicode_gc_runs_n ? (unicode_gc_runs[i + 1] >> 8) - 1 : UNICODE_MAX;
        TRY(charset_add(s, unicode_gc_runs[i] >> 8, hi));
    }
    charset_settle(s);
    return CORUN_OK;
}

corun_status charset_add_word(charset *s, bool in_class)
{
    static const char *const gc[] = {"L", "M", "Nd", "Nl", "Pc"};
    static const unicode_range latin1[] = {{0xB2, 0xB3}, {0xB9, 0xB9}, {0xBC, 0xBE}};
    for (size_t i = 0; i < sizeof gc / sizeof *gc; i++) TRY(charset_add_gc(s, gc[i]));
    if (!in_class) TRY(charset_add_ranges(s, latin1, sizeof latin1 / sizeof *latin1));
    return charset_add_ranges(s, unicode_word_more, unicode_word_more_n);
}

/* Long names, folded as charset_add_property folds them. */
static const char *const gc_long[][2] = {
    {"letter", "L"},
    {"uppercaseletter", "Lu"},
    {"lowercaseletter", "Ll"},
    {"titlecaseletter", "Lt"},
    {"modifierletter", "Lm"},
    {"otherletter", "Lo"},
    {"mark", "M"},
    {"nonspacingmark", "Mn"},
    {"spacingmark", "Mc"},
    {"enclosingmark", "Me"},
    {"number", "N"},
    {"decimalnumber", "Nd"},
    {"letternumber", "Nl"},
    {"othernumber", "No"},
    {"punctuation", "P"},
    {"connectorpunctuation", "Pc"},
    {"dashpunctuation", "Pd"},
    {"openpunctuation", "Ps"},
    {"closepunctuation", "Pe"},
    {"initialpunctuation", "Pi"},
    {"finalpunctuation", "Pf"},
    {"otherpunctuation", "Po"},
    {"symbol", "S"},
    {"mathsymbol", "Sm"},
    {"currencysymbol", "Sc"},
    {"modifiersymbol", "Sk"},
    {"othersymbol", "So"},
    {"separator", "Z"},
    {"spaceseparator", "Zs"},
    {"lineseparator", "Zl"},
    {"paragraphseparator", "Zp"},
    {"other", "C"},
    {"control", "Cc"},
    {"format", "Cf"},
    {"privateuse", "Co"},
    {"surrogate", "Cs"},
    {"unassigned", "Cn"},
};

corun_status charset_add_property(charset *s, const char *name, size_t len, bool *known)
{
    char f[32];
    size_t k = 0;
    *known = false;
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)name[i];
        if (c == ' ' || c == '_' || c == '-') continue;
        if (!isalpha(c) || k + 1 >= sizeof f) return CORUN_OK;
        f[k++] = (char)tolower(c);
    }
    f[k] = 0;
    *known = true;
    if (k == 1 && strchr("lmnpszc", f[0])) {
        char one[2] = {(char)toupper((unsigned char)f[0]), 0};
        return charset_add_gc(s, one);
    }
    if (k == 2)
        for (int i = 0; i < UNICODE_GC_COUNT; i++)
            if (!strcasecmp(f, unicode_gc_names[i])) return charset_add_gc(s, unicode_gc_names[i]);
    for (size_t i = 0; i < sizeof gc_long / sizeof *gc_long; i++)
        if (!strcmp(f, gc_long[i][0])) return charset_add_gc(s, gc_long[i][1]);
    if (!strcmp(f, "any")) return charset_add_ranges(s, &(unicode_range){0, UNICODE_MAX}, 1);
    for (size_t i = 0; i < unicode_scripts_n; i++)
        if (!strcasecmp(f, unicode_scripts[i].name))
            return charset_add_ranges(s, unicode_scripts[i].r, unicode_scripts[i].n);
    *known = false;
    return CORUN_OK;
}
