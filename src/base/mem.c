/* mem.c - owns the allocation counters. Invariant: a size that overflows never reaches malloc. */
#include "base/mem.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static _Atomic uint64_t n_alloc, fail_at;
static _Thread_local bool guarded;

bool mem_mul(size_t a, size_t b, size_t *out)
{
    size_t r;
    if (__builtin_mul_overflow(a, b, &r)) return false;
    *out = r;
    return true;
}

bool mem_add(size_t a, size_t b, size_t *out)
{
    size_t r;
    if (__builtin_add_overflow(a, b, &r)) return false;
    *out = r;
    return true;
}

void mem_fail_at(uint64_t n) { atomic_store(&fail_at, n ? atomic_load(&n_alloc) + n : 0); }
uint64_t mem_count(void) { return atomic_load(&n_alloc); }
void mem_guard(bool armed) { guarded = armed; }

/* Counts this allocation; true when it is the one that a test wants to fail. */
static bool must_fail(const char *what)
{
    if (guarded) {
        fprintf(stderr, "corun: allocation of %s inside a step\n", what);
        abort();
    }
    uint64_t n = atomic_fetch_add(&n_alloc, 1) + 1;
    return n == atomic_load(&fail_at);
}

void *mem_realloc(void *p, size_t n, size_t size, const char *what)
{
    size_t bytes;
    if (!mem_mul(n, size, &bytes)) {
        err_set(CORUN_ENOMEM, "%s: size overflows", what);
        return NULL;
    }
    void *q = must_fail(what) ? NULL : realloc(p, bytes ? bytes : 1);
    if (!q) err_set(CORUN_ENOMEM, "%s: no memory for %zu bytes", what, bytes);
    return q;
}

void *mem_alloc(size_t n, size_t size, const char *what)
{
    size_t bytes;
    if (!mem_mul(n, size, &bytes)) {
        err_set(CORUN_ENOMEM, "%s: size overflows", what);
        return NULL;
    }
    void *q = must_fail(what) ? NULL : calloc(1, bytes ? bytes : 1);
    if (!q) err_set(CORUN_ENOMEM, "%s: no memory for %zu bytes", what, bytes);
    return q;
}

/* *padded: bytes rounded up to the alignment. */
static void *aligned_take(size_t align, size_t bytes, size_t *padded, const char *what)
{
    void *q = NULL;
    if (!mem_add(bytes ? bytes : 1, align - 1, padded)) {
        err_set(CORUN_ENOMEM, "%s: size overflows", what);
        return NULL;
    }
    *padded -= *padded % align;
    if (!must_fail(what)) q = aligned_alloc(align, *padded);
    if (!q) err_set(CORUN_ENOMEM, "%s: no memory for %zu bytes", what, bytes);
    return q;
}

void *mem_aligned(size_t align, size_t bytes, const char *what)
{
    size_t padded;
    void *q = aligned_take(align, bytes, &padded, what);
    if (q) memset(q, 0, padded);
    return q;
}

void *mem_large(size_t bytes, const char *what)
{
    size_t padded;
    void *q = aligned_take((size_t)2 << 20, bytes, &padded, what);
    /* Only speed depends on it. */
    if (q) (void)madvise(q, padded, MADV_HUGEPAGE);
    return q;
}

char *mem_dup(const char *s, size_t len, const char *what)
{
    size_t bytes;
    if (!mem_add(len, 1, &bytes)) {
        err_set(CORUN_ENOMEM, "%s: size overflows", what);
        return NULL;
    }
    char *p = mem_alloc(bytes, 1, what);
    if (p && len) memcpy(p, s, len);
    return p;
}

void mem_free(void *p) { free(p); }

void buf_init(buf *b, size_t max) { *b = (buf){.max = max}; }

void buf_free(buf *b)
{
    mem_free(b->data);
    *b = (buf){.max = b->max};
}

void buf_reset(buf *b)
{
    b->len = 0;
    b->failed = false;
}

/* Room for len more bytes and a terminator. */
static bool buf_room(buf *b, size_t len)
{
    if (b->failed) return false;
    size_t want;
    if (!mem_add(b->len, len, &want) || want > b->max) {
        b->status = err_set(CORUN_ECAPACITY, "text is larger than %zu bytes", b->max);
        b->failed = true;
        return false;
    }
    if (want < b->cap) return true;
    size_t cap = b->cap ? b->cap : 64;
    while (cap <= want) cap += cap / 2;
    char *p = mem_realloc(b->data, cap, 1, "buffer");
    if (!p) {
        b->status = CORUN_ENOMEM;
        b->failed = true;
        return false;
    }
    b->data = p;
    b->cap = cap;
    return true;
}

void buf_put(buf *b, const void *data, size_t len)
{
    if (!buf_room(b, len)) return;
    if (len) memcpy(b->data + b->len, data, len);
    b->len += len;
    b->data[b->len] = 0;
}

void buf_putc(buf *b, char c) { buf_put(b, &c, 1); }
void buf_puts(buf *b, const char *s) { buf_put(b, s, strlen(s)); }

void buf_printf(buf *b, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n >= 0 && buf_room(b, (size_t)n)) {
        vsnprintf(b->data + b->len, (size_t)n + 1, fmt, again);
        b->len += (size_t)n;
    }
    va_end(again);
}

corun_status buf_status(const buf *b) { return b->failed ? b->status : CORUN_OK; }
