/* pages.c - owns the owner counts. Invariant: a page that is not reserved has an owner, or is on
 * the free stack, or is idle in the cache; one of the three. */
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
    for (int32_t i = n - 1; i >= reserved; i--) p->stack[p->n_stack++] = i;
    p->n_free = p->n_stack;
    return CORUN_OK;
}

void pages_close(pages *p)
{
    mem_free(p->owners);
    mem_free(p->stack);
    *p = (pages){0};
}

static void count_used(pages *p)
{
    p->n_free--;
    int32_t used = p->n - p->reserved - p->n_free;
    if (used > p->peak) p->peak = used;
}

int32_t pages_take(pages *p)
{
    if (!p->n_free) return PAGES_NONE;
    int32_t page = p->n_stack ? p->stack[--p->n_stack] : prefix_reclaim(p->cache);
    p->owners[page] = 1;
    count_used(p);
    return page;
}

void pages_own(pages *p, int32_t page, int32_t n)
{
    if (p->owners[page] == 0) {
        prefix_wake(p->cache, page);
        count_used(p);
    }
    p->owners[page] += n;
}

void pages_share(pages *p, int32_t page, int32_t n) { p->owners[page] += n; }

void pages_drop(pages *p, int32_t page, int32_t n)
{
    p->owners[page] -= n;
    if (p->owners[page]) return;
    p->n_free++;
    if (p->cache && prefix_has(p->cache, page))
        prefix_idle(p->cache, page);
    else
        p->stack[p->n_stack++] = page;
}

int32_t pages_move(pages *from, int32_t page, int32_t n, pages *to)
{
    int32_t dst = pages_take(to);
    if (dst == PAGES_NONE) return dst;
    to->owners[dst] = n;
    pages_drop(from, page, n);
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
    int32_t n_idle = p->cache ? prefix_n_idle(p->cache) : 0;
    if (p->n_stack + n_idle != p->n_free)
        FAIL(CORUN_EINTERNAL, "%s: %d pages on the free list and %d idle, not %d", what, p->n_stack,
             n_idle, p->n_free);
    for (int32_t i = 0; i < p->n_stack; i++) {
        int32_t page = p->stack[i];
        if (page < p->reserved || page >= p->n || p->owners[page] ||
            (p->cache && prefix_has(p->cache, page)))
            FAIL(CORUN_EINTERNAL, "%s page %d is on the free list and in use", what, page);
    }
    return CORUN_OK;
}
