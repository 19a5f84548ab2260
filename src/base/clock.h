/* clock.h - the steady clock, for measuring. Invariant: nothing that goes into a result reads it.
 */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <time.h>

static inline double clock_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#endif
