/* prefix.h - which full page of the pool holds which tokens, so that a prompt need not be computed
 * twice.
 *
 * An entry is a page whose content is known: page_tokens ids, and the entry that comes before it
 * (the root for the first page of a sequence). It is found by a chained digest, of its ids and of
 * the digest before it, and taken only if ids and entry before it are the same: a digest that
 * collides gives no hit. Entries before others go last: pages without an owner leave oldest first,
 * and who gives up a sequence gives up its last page first.
 *
 * Rules of the caller: a page is added only when the step that filled it has been noted, with a
 * good draw that read it (so also under lag 1 a hit is on a page that is written before the step
 * that reads it); nobody writes to a page that is an entry; a page that another may fill is
 * forgotten first (pages_take does). Nothing here allocates after prefix_open. */
#ifndef SCHED_PREFIX_H
#define SCHED_PREFIX_H

#include "base/err.h"

#include "base/digest.h"

typedef struct prefix prefix;

/* The end of a chain of entries; all zeros: the root. */
typedef struct prefix_at {
    int32_t n;    /* pages */
    uint64_t uid; /* of the last entry: never given twice */
    digest key;   /* of the last entry */
} prefix_at;

/* key_bits: how many bits of a digest are used (tests: few, so that they collide); 0: all. */
corun_status prefix_open(prefix **out, int32_t n_page, int32_t page_tokens, int32_t key_bits);
void prefix_close(prefix *p); /* NULL is fine */

/* The page that holds these tokens after *at, which moves on to it; -1: none. */
int32_t prefix_find(const prefix *p, prefix_at *at, const int32_t *tokens);
/* Page `page` holds these tokens after *at, which moves on to it. Where another page does already,
 * *at moves on to that one, and `page` is no entry. */
void prefix_add(prefix *p, prefix_at *at, const int32_t *tokens, int32_t page);
bool prefix_has(const prefix *p, int32_t page); /* it is an entry */
void prefix_forget(prefix *p, int32_t page);    /* no longer; it need not be one */

/* Entries that nobody owns. */
void prefix_idle(prefix *p, int32_t page); /* an entry lost its last owner: the newest of these */
void prefix_wake(prefix *p, int32_t page); /* it is owned again */
int32_t prefix_reclaim(prefix *p);         /* the oldest of these, forgotten; -1: none */
int32_t prefix_n_idle(const prefix *p);

#endif
