/* fault.h - the planted faults of a test build (CMake option CORUN_BREAK). `corun verify` must
 * catch each of them (tools/check_faults). In every other build FAULT() is false and the code is
 * gone. Invariant: one fault at a time, chosen before anything runs. */
#ifndef BASE_FAULT_H
#define BASE_FAULT_H

#include <stdbool.h>
#include <stddef.h>

typedef enum fault {
    FAULT_NONE,
    FAULT_ORDER,        /* a sum is cut where the number of live sequences says */
    FAULT_STALE_PAGE,   /* a page that comes back is not read from the swap area */
    FAULT_RNG_SLOT,     /* random numbers hang on the slot */
    FAULT_SAMPLER_PATH, /* a row that uses top-k decides how the others are reported */
    FAULT_LOAD_SPLIT,   /* attention is split by the load of the whole step */
    FAULT_RECOMPUTE,    /* every policy computes evicted requests again */
    FAULT_FOLD_ORDER,   /* attention chunks are folded in another way beside prompt rows */
    FAULT_PREFIX_NOID,  /* a prefix hit does not compare the ids (and digests collide) */
    FAULT_PAGE_EARLY,   /* a page that moves out is free for others before it is saved */
    FAULT_DEAD_WRITE,   /* a dead row writes the page that its slot had last */
    FAULT_SEED_N,       /* all n samples draw with the seed of the request */
    FAULT_STOP_LATE     /* text is cut behind a stop string */
} fault;

#ifdef CORUN_BREAK
extern fault fault_now;
#define FAULT(name) (fault_now == FAULT_##name)
bool fault_select(const char *name); /* "stale_page"; false: none of that name */
const char *fault_name(void);        /* "none": none of them */
void fault_pause(bool pause);        /* the golden check must let a planted fault run */
#else
#define FAULT(name) false
static inline bool fault_select(const char *name)
{
    (void)name;
    return false;
}
static inline void fault_pause(bool pause) { (void)pause; }
static inline const char *fault_name(void) { return NULL; } /* no such build */
#endif

#endif
