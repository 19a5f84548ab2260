/* pages.h - numbers of pages with a count of their owners. The pool and the swap area are one
 * each; what a page holds is the backend's business.
 *
 * With a prefix cache a page without an owner may still be an entry there. It counts as free: it is
 * given out, and forgotten by the cache, when no other is left. */
#ifndef SCHED_PAGES_H
#define SCHED_PAGES_H

#include "sched/prefix.h"

#define PAGES_NONE (-1)

typedef struct pages {
    int32_t n;        /* numbers 0 ... n - 1 */
    int32_t reserved; /* the first ones, never given out */
    int32_t n_free, peak;
    int32_t *owners; /* [n] */
    int32_t *stack;  /* [n_stack] free ones that are no entries; the last freed goes first */
    int32_t n_stack;
    prefix *cache; /* borrowed; NULL: none */
} pages;

corun_status pages_open(pages *p, int32_t n, int32_t reserved, const char *what);
void pages_close(pages *p);

int32_t pages_take(pages *p);                        /* one owner; PAGES_NONE: all are taken */
void pages_own(pages *p, int32_t page, int32_t n);   /* n owners more of an entry of the cache */
void pages_share(pages *p, int32_t page, int32_t n); /* n more owners */
void pages_drop(pages *p, int32_t page, int32_t n);  /* n owners less */
/* n owners of a page leave it for a new one of another pool (or of the same); PAGES_NONE when that
 * pool has none free. */
int32_t pages_move(pages *from, int32_t page, int32_t n, pages *to);
/* Each free page stands on the stack once or is an entry that nobody owns, and only those have no
 * owner. */
corun_status pages_check(const pages *p, const char *what);

#endif
