/* template_arena.c - owns the memory of templates and renders. Invariant: an arena never holds
 * more than its maximum, and freeing it frees every value that was made in it. */
#include <string.h>

#include "text/template_int.h"

#define CHUNK_MIN ((size_t)8 << 10)
#define CHUNK_MAX ((size_t)1 << 20)

typedef struct tchunk {
    struct tchunk *next;
    size_t used, cap;
    char data[] __attribute__((aligned(16)));
} tchunk;

static void too_big(tarena *a)
{
    a->st = err_set(CORUN_ECAPACITY, "template: values of more than %zu bytes", a->max);
}

void *tpl_new(tarena *a, size_t n, size_t size)
{
    size_t bytes;
    if (!mem_mul(n, size, &bytes) || bytes > a->max) {
        too_big(a);
        return NULL;
    }
    bytes = (bytes + 15) & ~(size_t)15;
    if (bytes == 0) bytes = 16;
    tchunk *c = a->head;
    if (!c || c->cap - c->used < bytes) {
        size_t cap = c ? c->cap * 2 : CHUNK_MIN;
        if (cap > CHUNK_MAX) cap = CHUNK_MAX;
        if (cap < bytes) cap = bytes;
        if (cap > a->max - a->used) cap = bytes;
        if (cap > a->max - a->used) {
            too_big(a);
            return NULL;
        }
        c = mem_alloc(1, sizeof *c + cap, "template values");
        if (!c) {
            a->st = CORUN_ENOMEM;
            return NULL;
        }
        c->cap = cap;
        c->next = a->head;
        a->head = c;
        a->used += cap;
    }
    void *p = c->data + c->used;
    c->used += bytes;
    return p;
}

void *tpl_grow(tarena *a, void *p, size_t old, size_t bytes)
{
    tchunk *c = a->head;
    size_t held = (old + 15) & ~(size_t)15, want;
    if (p && mem_add(bytes, 15, &want) && c && (char *)p + held == c->data + c->used) {
        want &= ~(size_t)15;
        if (want >= held && want - held <= c->cap - c->used) {
            c->used += want - held;
            return p;
        }
    }
    void *q = tpl_new(a, bytes, 1);
    if (q && old) memcpy(q, p, old);
    return q;
}

void tpl_arena_free(tarena *a)
{
    while (a->head) {
        tchunk *next = a->head->next;
        mem_free(a->head);
        a->head = next;
    }
    a->used = 0;
}

/* ---- text in the arena --------------------------------------------------------------------- */

void tsb_put(tctx *c, tsb *b, const char *s, size_t len)
{
    if (b->failed || len == 0) return;
    if (b->cap - b->len < len) {
        size_t cap = b->cap ? b->cap : 48, want = b->len + len;
        while (cap < want) cap += cap / 2 + 16;
        if (want > TPL_OUT_MAX) {
            c->a.st = err_set(CORUN_ECAPACITY, "%s, line %d: text of more than %u bytes",
                              c->t->what, c->line, TPL_OUT_MAX);
            b->failed = true;
            return;
        }
        char *p = tpl_grow(&c->a, b->p, b->cap, cap);
        if (!p) {
            b->failed = true;
            return;
        }
        b->p = p;
        b->cap = cap;
    }
    memcpy(b->p + b->len, s, len);
    b->len += len;
    c->steps += len / 64;
}

void tsb_puts(tctx *c, tsb *b, const char *s) { tsb_put(c, b, s, strlen(s)); }

void tsb_cp(tctx *c, tsb *b, int32_t cp)
{
    char t[4];
    int n = 1;
    if (cp < 0x80)
        t[0] = (char)cp;
    else if (cp < 0x800) {
        t[0] = (char)(0xc0 | cp >> 6);
        n = 2;
    } else if (cp < 0x10000) {
        t[0] = (char)(0xe0 | cp >> 12);
        n = 3;
    } else {
        t[0] = (char)(0xf0 | cp >> 18);
        n = 4;
    }
    for (int i = 1; i < n; i++) t[i] = (char)(0x80 | (cp >> 6 * (n - 1 - i) & 0x3f));
    tsb_put(c, b, t, (size_t)n);
}

corun_status tsb_value(tctx *c, const tsb *b, tval *out)
{
    if (b->failed) return tpl_why(&c->a);
    *out = tv_str(b->len ? b->p : "", b->len);
    return CORUN_OK;
}
