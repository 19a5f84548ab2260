/* seen.h - a set of byte strings, kept as their digests: 16 bytes each. */
#ifndef APP_SEEN_H
#define APP_SEEN_H

#include "base/digest.h"
#include "base/mem.h"

typedef struct seen {
    digest *slot; /* open addressing; all zero: free */
    size_t cap, n;
} seen;

/* Adds a string to a set, which begins as zeros. *twice: it was there. */
corun_status seen_put(seen *s, digest d, bool *twice); /* by its digest */
corun_status seen_add(seen *s, const char *id, size_t len, bool *twice);
void seen_free(seen *s);

#endif
