/* pages.c - owns the owner counts. Invariant: a page is on the free stack exactly when it has no
 * owner and is not reserved. */
#include "sched/pages.h"

#include "base/mem.h"

corun_status pages_open(pages *p, int32_t n, int32_t reserved, const char *what)
{
    *p = (pages){.n = n, .reserved = reserved};
    p->owners = mem_alloc((size_t)n, sizeof *p->owners, what);
    p->stack = mem_alloc((size_t)n, sizeof *p->stack, what);
    if (!p->owners || !p->stack) {
        pages_close(p);
        return CORUN_ENOMEM;
    }
    for (int32_t i = n - 1; i >= reserved; i--) p->stack[p->n_free++] = i;
    return CORUN_OK;
}

void pages_close(pages *p)
{
    mem_free(p->owners);
    mem_free(p->stack);
    *p = (pages){0};
}

int32_t pages_take(pages *p)
{
    if (!p->n_free) return PAGES_NONE;
    int32_t page = p->stack[--p->n_free];
    p->owners[page] = 1;
    int32_t used = p->n - p->reserved - p->n_free;
    if (used > p->peak) p->peak = used;
    return page;
}

void pages_share(pages *p, int32_t page, int32_t n) { p->owners[page] += n; }

bool pages_drop(pages *p, int32_t page)
{
    if (--p->owners[page]) return false;
    p->stack[p->n_free++] = page;
    return true;
}

int32_t pages_move(pages *from, int32_t page, pages *to)
{
    int32_t dst = pages_take(to);
    if (dst == PAGES_NONE) return dst;
    to->owners[dst] = from->owners[page];
    from->owners[page] = 0;
    from->stack[from->n_free++] = page;
    return dst;
}

corun_status pages_check(const pages *p, const char *what)
{
    int32_t n_owned = 0;
    for (int32_t i = 0; i < p->n; i++) {
        if (p->owners[i] < 0)
            FAIL(CORUN_EINTERNAL, "%s page %d has %d owners", what, i, p->owners[i]);
        if (i < p->reserved && p->owners[i])
            FAIL(CORUN_EINTERNAL, "%s page %d is reserved and was given out", what, i);
        n_owned += p->owners[i] > 0;
    }
    if (n_owned + p->n_free + p->reserved != p->n)
        FAIL(CORUN_EINTERNAL, "%s: %d pages owned and %d free, of %d", what, n_owned, p->n_free,
             p->n - p->reserved);
    for (int32_t i = 0; i < p->n_free; i++) {
        int32_t page = p->stack[i];
        if (page < p->reserved || page >= p->n || p->owners[page])
            FAIL(CORUN_EINTERNAL, "%s page %d is on the free list and in use", what, page);
    }
    return CORUN_OK;
}
