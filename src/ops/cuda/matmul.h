/* matmul.h - what tests and the search see of the products beside gpu.h: tables by hand, the plan
 * that a product runs with, and small kernels around it. */
#ifndef OPS_CUDA_MATMUL_H
#define OPS_CUDA_MATMUL_H

#include "ops/cuda/gpu.h"

#ifdef __cplusplus
extern "C" {
#endif

#include "ops/plan.h"

#define GPU_MATMUL_ROOM ((size_t)64 << 20) /* workspace of the set standard, bytes */

/* table: the user's (borrowed); NULL: the built-in one. A table of another device or library is
 * left aside: gpu_matmul_note says so. Products of the set standard need gpu_matmul_room, too. */
corun_status gpu_matmul_open_plan(gpu_matmul **out, const gpu *g, ops_set set,
                                  const plan_table *table);
/* The table in use; NULL: none. */
const plan_table *gpu_matmul_table(const gpu_matmul *m);
/* What people should know of the table: "" when it serves, else which one is missing or foreign. */
const char *gpu_matmul_note(const gpu_matmul *m);
/* The configuration that a product runs with; *from_table: the table's, not the rule's. */
corun_status gpu_matmul_plan(gpu_matmul *m, int32_t rows, const plan_shape *s, plan_config *c,
                             bool *from_table);

/* out[n] fp32 = in[n] bf16. */
corun_status gpu_widen(const gpu *g, const void *in, int64_t n, float *out);
/* p[n] bf16: about normal with this deviation, a function of seed and index alone. */
corun_status gpu_fill_normal(const gpu *g, void *p, size_t n, uint64_t seed, float deviation);
/* Adds to *count (device memory) the elements of got[rows][n_out] of type `type` that are not
 * acc + bias (bias NULL: none) in that type, rounded once. */
corun_status gpu_count_differing(const gpu *g, const float *acc, const void *bias, const void *got,
                                 ops_dtype type, size_t rows, int64_t n_out,
                                 unsigned long long *count);

#ifdef __cplusplus
}
#endif
#endif
