/* search.h - the search behind `corun tune`: which configuration is the fastest for a product on
 * this device. Times are those of CUDA graphs whose launches take one weight after the other, so
 * that no weight is found in L2. */
#ifndef OPS_CUDA_SEARCH_H
#define OPS_CUDA_SEARCH_H

#include "ops/cuda/matmul.h"

typedef struct gpu_search gpu_search;

/* What was found for one shape and number of rows. Times in microseconds. */
typedef struct search_cell {
    plan_config canonical, standard;
    double canonical_us, standard_us;
    double pick_us; /* of the library's own first pick; 0: none */
    int32_t n_valid, n_timed;
} search_cell;

corun_status gpu_search_open(gpu_search **out, const gpu *g);
void gpu_search_close(gpu_search *s);

/* Makes the operands of a shape, and the canonical accumulators of max_rows rows by the first
 * admitted configuration, samples of which are compared with ref_mma_dot: CORUN_EMISMATCH where
 * one differs. */
corun_status gpu_search_shape(gpu_search *s, const plan_shape *shape, int32_t max_rows);
/* One cell. full: all configurations, a group of one tile at a time, but groups whose
 * representatives take twice the best time; else the best 40 of the full cells next to it, which
 * come first. The search ends when `seconds` are over. Configurations that could win have all
 * elements of their outputs compared; CORUN_EMISMATCH names one with other bits. */
corun_status gpu_search_cell(gpu_search *s, int32_t rows, bool full, double seconds,
                             search_cell *out);
/* The one configuration with the shortest times at 256 rows over these shapes, each time relative
 * to the best of the candidates; *ratio: the mean of those. Candidates: the best of this search and
 * those in extra. *found false: none serves every shape at every number of rows. The operands of
 * the last shape are gone afterwards. */
corun_status gpu_search_fixed(gpu_search *s, const plan_shape *shapes, int n_shape,
                              const plan_config *extra, int n_extra, plan_config *c, double *ratio,
                              bool *found);
/* Bits that were compared since the search was opened. */
uint64_t gpu_search_compared(const gpu_search *s);

#endif
