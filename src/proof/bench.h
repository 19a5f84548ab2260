/* bench.h - times the engine against its own parts in one run. Figures are ratios first: absolute
 * times hold only on the machine that printed them. */
#ifndef PROOF_BENCH_H
#define PROOF_BENCH_H

#include "corun.h"

#include <stdio.h>

typedef struct bench_opts {
    int n_ctx;     /* mean context of the decode steps, in tokens */
    int n_prefill; /* tokens of the timed prompt */
    int n_repeat;  /* runs of each figure, interleaved; the best counts */
    bool json;     /* one JSON object instead of a table */
} bench_opts;

/* Decode at widths 1, 4, 16 and 32 (greedy, end ids ignored) and one prefill, each beside the bare
 * matrix products of the same step on weights of the same shapes, and what sampling costs. */
corun_status bench_run(corun_model *m, const bench_opts *o, FILE *out);

#endif
