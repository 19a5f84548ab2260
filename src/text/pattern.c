/* pattern.c - classes of characters and the run of PCRE2 over them. Invariant: two characters have
 * the same class exactly when the pattern's sets cannot tell them apart. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/pattern.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#include "text/pattern_int.h"

#define PAGE_SIZE 256u
#define N_PAGE    ((UNICODE_MAX + 1) / PAGE_SIZE)
#define MAX_CLASS 256

struct pattern {
    pcre2_code *code;
    bool jit;
    uint16_t page[N_PAGE]; /* into pages, in units of PAGE_SIZE */
    uint8_t *pages;
    size_t n_pages;
    char *what;
};

/* ---- memory of PCRE2 ------------------------------------------------------------------------ */

static void *pcre_malloc(size_t n, void *arg)
{
    (void)arg;
    return mem_alloc(n, 1, "pattern");
}

static void pcre_free(void *p, void *arg)
{
    (void)arg;
    mem_free(p);
}

/* ---- classes -------------------------------------------------------------------------------- */

static int u32_order(const void *pa, const void *pb)
{
    uint32_t a = *(const uint32_t *)pa, b = *(const uint32_t *)pb;
    return a < b ? -1 : a > b;
}

typedef struct class_table {
    size_t words;   /* 64-bit words of a signature: which sets hold a character */
    uint64_t *sig;  /* MAX_CLASS signatures */
    uint64_t *now;  /* one */
    size_t *cursor; /* for each set: the range at or after the sweep */
    uint32_t *edge; /* where a signature may change, ascending */
    size_t n_edge;
    uint8_t *flat; /* the class of every code point */
    int n_class;
} class_table;

static void class_table_free(class_table *t)
{
    mem_free(t->flat);
    mem_free(t->edge);
    mem_free(t->cursor);
    mem_free(t->now);
    mem_free(t->sig);
}

static corun_status collect_edges(class_table *t, const pattern_src *src)
{
    size_t n = 1;
    for (size_t i = 0; i < src->n; i++) n += 2 * src->set[i].n;
    if (!MEM_NEW(t->edge, n)) return CORUN_ENOMEM;
    t->edge[t->n_edge++] = 0;
    for (size_t i = 0; i < src->n; i++)
        for (size_t k = 0; k < src->set[i].n; k++) {
            t->edge[t->n_edge++] = src->set[i].r[k].lo;
            t->edge[t->n_edge++] = src->set[i].r[k].hi + 1;
        }
    qsort(t->edge, t->n_edge, sizeof *t->edge, u32_order);
    size_t k = 0;
    for (size_t i = 1; i < t->n_edge; i++)
        if (t->edge[i] != t->edge[k]) t->edge[++k] = t->edge[i];
    t->n_edge = k + 1;
    return CORUN_OK;
}

/* Sweeps over the edges and numbers the different signatures. */
static corun_status find_classes(class_table *t, const pattern_src *src, const char *what)
{
    t->words = (src->n + 63) / 64 + 1;
    if (!MEM_NEW(t->sig, MAX_CLASS * t->words) || !MEM_NEW(t->now, t->words) ||
        !MEM_NEW(t->cursor, src->n) || !MEM_NEW(t->flat, UNICODE_MAX + 1))
        return CORUN_ENOMEM;
    TRY(collect_edges(t, src));
    for (size_t e = 0; e < t->n_edge && t->edge[e] <= UNICODE_MAX; e++) {
        uint32_t lo = t->edge[e];
        uint32_t hi = e + 1 < t->n_edge ? t->edge[e + 1] : UNICODE_MAX + 1;
        memset(t->now, 0, t->words * sizeof *t->now);
        for (size_t i = 0; i < src->n; i++) {
            const charset *s = &src->set[i];
            while (t->cursor[i] < s->n && s->r[t->cursor[i]].hi < lo) t->cursor[i]++;
            if (t->cursor[i] < s->n && s->r[t->cursor[i]].lo <= lo)
                t->now[i / 64] |= 1ull << (i % 64);
        }
        int k = 0;
        while (k < t->n_class &&
               memcmp(t->sig + (size_t)k * t->words, t->now, t->words * sizeof *t->now) != 0)
            k++;
        if (k == t->n_class) {
            if (k == MAX_CLASS)
                FAIL(CORUN_EUNSUPPORTED, "%s: pattern with more than %d classes of characters",
                     what, MAX_CLASS);
            memcpy(t->sig + (size_t)k * t->words, t->now, t->words * sizeof *t->now);
            t->n_class++;
        }
        memset(t->flat + lo, k, hi - lo);
    }
    return CORUN_OK;
}

static uint64_t page_hash(const uint8_t *p)
{
    uint64_t h = 0, w;
    for (size_t i = 0; i < PAGE_SIZE; i += 8) {
        memcpy(&w, p + i, 8);
        h = (h ^ w) * 0x9E3779B97F4A7C15u;
        h ^= h >> 29;
    }
    return h;
}

/* Folds the flat table into pages, equal pages once. */
static corun_status fold_pages(pattern *p, const class_table *t)
{
    uint64_t *hash;
    if (!MEM_NEW(hash, N_PAGE)) return CORUN_ENOMEM;
    for (size_t i = 0; i < N_PAGE; i++) {
        const uint8_t *from = t->flat + i * PAGE_SIZE;
        uint64_t h = page_hash(from);
        size_t k = 0;
        while (k < p->n_pages &&
               (hash[k] != h || memcmp(p->pages + k * PAGE_SIZE, from, PAGE_SIZE) != 0))
            k++;
        if (k == p->n_pages) {
            uint8_t *q = mem_realloc(p->pages, (k + 1) * PAGE_SIZE, 1, "pattern pages");
            if (!q) {
                mem_free(hash);
                return CORUN_ENOMEM;
            }
            p->pages = q;
            memcpy(q + k * PAGE_SIZE, from, PAGE_SIZE);
            hash[p->n_pages++] = h;
        }
        p->page[i] = (uint16_t)k;
    }
    mem_free(hash);
    return CORUN_OK;
}

void pattern_classes(const pattern *p, const uint32_t *c, size_t n, uint8_t *cls)
{
    for (size_t i = 0; i < n; i++)
        cls[i] = p->pages[p->page[c[i] / PAGE_SIZE] * PAGE_SIZE + c[i] % PAGE_SIZE];
}

/* ---- compilation ---------------------------------------------------------------------------- */

/* Writes "one byte of the classes that are in set i". */
static void put_set(buf *b, const class_table *t, size_t i)
{
    int n = 0;
    for (int k = 0; k < t->n_class; k++)
        n += (int)(t->sig[(size_t)k * t->words + i / 64] >> (i % 64) & 1);
    if (n == 0) {
        buf_puts(b, "(?!)");
        return;
    }
    buf_putc(b, '[');
    for (int k = 0; k < t->n_class; k++)
        if (t->sig[(size_t)k * t->words + i / 64] >> (i % 64) & 1) buf_printf(b, "\\x%02X", k);
    buf_putc(b, ']');
}

static corun_status compile(pattern *p, const pattern_src *src, const class_table *t)
{
    buf b;
    buf_init(&b, SIZE_MAX / 2);
    for (size_t i = 0; i < src->text.len; i++) {
        const unsigned char *s = (const unsigned char *)src->text.data + i;
        if (*s == PATTERN_MARK) {
            put_set(&b, t, (size_t)s[1] * 256 + s[2]);
            i += 2;
        } else {
            buf_putc(&b, (char)*s);
        }
    }
    corun_status st = buf_status(&b);
    pcre2_general_context *g = NULL;
    pcre2_compile_context *c = NULL;
    if (st == CORUN_OK) {
        g = pcre2_general_context_create(pcre_malloc, pcre_free, NULL);
        c = g ? pcre2_compile_context_create(g) : NULL;
        if (!c) st = CORUN_ENOMEM;
    }
    if (st == CORUN_OK) {
        int code;
        PCRE2_SIZE at;
        p->code = pcre2_compile((PCRE2_SPTR)(b.data ? b.data : ""), b.len,
                                PCRE2_NEVER_UTF | PCRE2_NEVER_UCP, &code, &at, c);
        if (!p->code && (code == PCRE2_ERROR_HEAP_FAILED || code == PCRE2_ERROR_NOMEMORY)) {
            st = err_set(CORUN_ENOMEM, "%s: pattern: no memory", p->what);
        } else if (!p->code) {
            char text[128] = "";
            pcre2_get_error_message(code, (PCRE2_UCHAR *)text, sizeof text);
            st = err_set(CORUN_EUNSUPPORTED, "%s: pattern: PCRE2: %s", p->what, text);
        } else {
            /* Without a JIT for this machine the interpreter gives the same matches. */
            p->jit = pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE) == 0;
        }
    }
    if (c) pcre2_compile_context_free(c);
    if (g) pcre2_general_context_free(g);
    buf_free(&b);
    return st;
}

corun_status pattern_parse(pattern **out, const char *re, size_t len, bool literal,
                           const char *what)
{
    pattern *p;
    pattern_src src = {0};
    class_table t = {0};
    *out = NULL;
    if (!MEM_NEW(p, 1)) return CORUN_ENOMEM;
    corun_status st = CORUN_OK;
    if (!(p->what = mem_dup(what, strlen(what), "pattern"))) {
        st = CORUN_ENOMEM;
        goto done;
    }
    TRY_OR_DONE(pattern_translate(&src, re, len, literal, what));
    TRY_OR_DONE(find_classes(&t, &src, what));
    TRY_OR_DONE(fold_pages(p, &t));
    TRY_OR_DONE(compile(p, &src, &t));
    *out = p;
done:
    class_table_free(&t);
    pattern_src_free(&src);
    if (st != CORUN_OK) pattern_free(p);
    return st;
}

void pattern_free(pattern *p)
{
    if (!p) return;
    if (p->code) pcre2_code_free(p->code);
    mem_free(p->pages);
    mem_free(p->what);
    mem_free(p);
}

/* ---- matching ------------------------------------------------------------------------------- */

struct pattern_scan {
    pcre2_general_context *g;
    pcre2_match_data *md;
    pcre2_match_context *mc;
    pcre2_jit_stack *stack; /* NULL until a pattern needs more than the default */
};

corun_status pattern_scan_open(pattern_scan **out)
{
    pattern_scan *s;
    *out = NULL;
    if (!MEM_NEW(s, 1)) return CORUN_ENOMEM;
    s->g = pcre2_general_context_create(pcre_malloc, pcre_free, NULL);
    s->md = s->g ? pcre2_match_data_create(1, s->g) : NULL;
    s->mc = s->md ? pcre2_match_context_create(s->g) : NULL;
    if (!s->mc) {
        pattern_scan_close(s);
        return CORUN_ENOMEM;
    }
    *out = s;
    return CORUN_OK;
}

void pattern_scan_close(pattern_scan *s)
{
    if (!s) return;
    if (s->stack) pcre2_jit_stack_free(s->stack);
    if (s->mc) pcre2_match_context_free(s->mc);
    if (s->md) pcre2_match_data_free(s->md);
    if (s->g) pcre2_general_context_free(s->g);
    mem_free(s);
}

corun_status pattern_pieces_add(pattern_pieces *p, uint32_t begin, uint32_t end)
{
    if (begin == end) return CORUN_OK;
    if (p->n == p->cap) {
        size_t cap = p->cap ? p->cap * 2 : 64;
        pattern_piece *at = mem_realloc(p->at, cap, sizeof *at, "pieces");
        if (!at) return CORUN_ENOMEM;
        p->at = at;
        p->cap = cap;
    }
    p->at[p->n++] = (pattern_piece){begin, end};
    return CORUN_OK;
}

/* *found, and the match [ov[0], ov[1]) at or after from. */
static corun_status find(const pattern *p, pattern_scan *s, const uint8_t *text, size_t len,
                         size_t from, bool *found)
{
    for (;;) {
        int rc = p->jit ? pcre2_jit_match(p->code, text, len, from, 0, s->md, s->mc)
                        : pcre2_match(p->code, text, len, from, 0, s->md, s->mc);
        *found = rc >= 0;
        if (rc >= 0 || rc == PCRE2_ERROR_NOMATCH) return CORUN_OK;
        if (rc == PCRE2_ERROR_JIT_STACKLIMIT && !s->stack) {
            s->stack = pcre2_jit_stack_create(1u << 16, 1u << 26, s->g);
            if (!s->stack) FAIL(CORUN_ENOMEM, "%s: no memory for the pattern's stack", p->what);
            pcre2_jit_stack_assign(s->mc, NULL, s->stack);
            continue;
        }
        if (rc == PCRE2_ERROR_NOMEMORY) FAIL(CORUN_ENOMEM, "%s: pattern: no memory", p->what);
        char msg[128] = "";
        pcre2_get_error_message(rc, (PCRE2_UCHAR *)msg, sizeof msg);
        FAIL(CORUN_ECAPACITY, "%s: the pattern is too costly for this text: %s", p->what, msg);
    }
}

/* Follows the reference: how a new part joins what is already there. */
typedef struct joiner {
    pattern_behavior behavior;
    bool invert;
    bool any, held_match; /* a part is held back; it was a match */
    uint32_t begin, end;
    pattern_pieces *out;
} joiner;

static corun_status join_flush(joiner *j)
{
    bool any = j->any;
    j->any = false;
    return any ? pattern_pieces_add(j->out, j->begin, j->end) : CORUN_OK;
}

static corun_status join(joiner *j, uint32_t begin, uint32_t end, bool match)
{
    match ^= j->invert;
    bool extend = false;
    switch (j->behavior) {
    case PATTERN_ISOLATED: return pattern_pieces_add(j->out, begin, end);
    case PATTERN_REMOVED: return match ? CORUN_OK : pattern_pieces_add(j->out, begin, end);
    case PATTERN_CONTIGUOUS: extend = j->any && j->held_match == match; break;
    case PATTERN_MERGED_WITH_PREVIOUS: extend = j->any && match && !j->held_match; break;
    /* From the right: a match takes the gap that follows it. */
    case PATTERN_MERGED_WITH_NEXT: extend = j->any && j->held_match && !match; break;
    }
    if (extend) {
        j->end = end;
    } else {
        TRY(join_flush(j));
        j->any = true;
        j->begin = begin;
        j->end = end;
    }
    j->held_match = match;
    return CORUN_OK;
}

corun_status pattern_split(const pattern *p, pattern_scan *scan, const uint8_t *cls,
                           pattern_piece in, pattern_behavior behavior, bool invert,
                           pattern_pieces *out)
{
    const uint8_t *text = cls + in.begin;
    size_t len = in.end - in.begin;
    size_t at = 0, done = 0;
    bool matched = false;
    joiner j = {.behavior = behavior, .invert = invert, .out = out};
    while (at <= len) {
        bool found;
        TRY(find(p, scan, text, len, at, &found));
        if (!found) break;
        const PCRE2_SIZE *ov = pcre2_get_ovector_pointer(scan->md);
        size_t b = ov[0], e = ov[1];
        if (e < b) FAIL(CORUN_EUNSUPPORTED, "%s: a pattern that matches backwards", p->what);
        if (b == e && matched && e == done) { /* empty, right behind the last match */
            at++;
            continue;
        }
        if (done != b) TRY(join(&j, in.begin + (uint32_t)done, in.begin + (uint32_t)b, false));
        TRY(join(&j, in.begin + (uint32_t)b, in.begin + (uint32_t)e, true));
        done = at = e;
        matched = true;
    }
    if (done != len) TRY(join(&j, in.begin + (uint32_t)done, in.end, false));
    return join_flush(&j);
}
