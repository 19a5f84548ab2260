/* pool.h - the CPU backend's threads. Work is split by output, never across a reduction, so the
 * number of workers changes no bit. Workers spin briefly, then sleep. */
#ifndef BASE_POOL_H
#define BASE_POOL_H

#include "base/err.h"

typedef struct pool pool;

/* The calling thread is worker 0. Each worker sets round to nearest and no flushing of
 * subnormals; pool_run does so for the caller. n = 0: one worker a core that this process may
 * use. */
corun_status pool_open(pool **out, int n);
void pool_close(pool *p); /* NULL is fine */
int pool_size(const pool *p);

/* Runs fn(arg, worker, n_worker) on every worker and returns when all are done. Not re-entrant. */
void pool_run(pool *p, void (*fn)(void *arg, int worker, int n_worker), void *arg);

/* The contiguous slice of n items in units of `unit` that belongs to a worker: [*begin, *end). */
void pool_slice(int64_t n, int64_t unit, int worker, int n_worker, int64_t *begin, int64_t *end);

#endif
