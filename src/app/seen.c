/* seen.c - owns the set of custom_ids. Invariant: at least half of the places are free. */
#include "app/seen.h"

static bool is_free(const digest *d) { return d->hi == 0 && d->lo == 0; }

/* The place of d, or the free place where it belongs. */
static digest *find(const seen *s, digest d)
{
    size_t i = (size_t)d.lo & (s->cap - 1);
    while (!is_free(&s->slot[i]) && (s->slot[i].hi != d.hi || s->slot[i].lo != d.lo))
        i = (i + 1) & (s->cap - 1);
    return &s->slot[i];
}

corun_status seen_add(seen *s, const char *id, size_t len, bool *twice)
{
    return seen_put(s, digest_of(id, len), twice);
}

corun_status seen_put(seen *s, digest d, bool *twice)
{
    if (is_free(&d)) d.lo = 1;
    if (2 * (s->n + 1) > s->cap) {
        seen more = {.cap = s->cap ? 2 * s->cap : 1024, .n = s->n};
        if (!(more.slot = mem_alloc(more.cap, sizeof d, "custom_ids"))) return CORUN_ENOMEM;
        for (size_t i = 0; i < s->cap; i++)
            if (!is_free(&s->slot[i])) *find(&more, s->slot[i]) = s->slot[i];
        mem_free(s->slot);
        *s = more;
    }
    digest *at = find(s, d);
    *twice = !is_free(at);
    if (!*twice) s->n++;
    *at = d;
    return CORUN_OK;
}

void seen_free(seen *s)
{
    mem_free(s->slot);
    *s = (seen){0};
}
