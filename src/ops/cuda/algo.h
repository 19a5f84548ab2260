/* algo.h - cuBLASLt's matmul as data: the descriptors of one product, configurations in and out of
 * the library's own form, and what the library says of them. C and CUDA C both include it.
 *
 * Invariant: nothing here picks; the same arguments give the same answer. The library's first
 * matrix is the weight (transposed), its second the tokens: its M is n_out, its N the rows. */
#ifndef OPS_CUDA_ALGO_H
#define OPS_CUDA_ALGO_H

#include <cublasLt.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "ops/plan.h"

typedef struct algo_problem {
    plan_shape shape;
    int32_t rows;
    cublasLtMatmulDescOpaque_t op;
    cublasLtMatrixLayoutOpaque_t w, x, y;
} algo_problem;

/* What an algorithm id offers. */
#define ALGO_MAX_CHOICE 1024
typedef struct algo_choices {
    cublasLtMatmulAlgo_t base;
    uint32_t tile[ALGO_MAX_CHOICE], stages[ALGO_MAX_CHOICE];
    int n_tile, n_stages;
    int custom;  /* largest custom option */
    int swizzle; /* largest swizzle */
} algo_choices;

/* CORUN_EDEVICE with the library's words when `code` is an error. */
corun_status algo_status(cublasStatus_t code, const char *what);

corun_status algo_problem_init(algo_problem *p, const plan_shape *s, int32_t rows);
/* bias: of the type of the output; kept by the caller until the run. */
corun_status algo_problem_bias(algo_problem *p, const void *bias);

/* The library's form of c over a base of its id; c's fields alone decide it. */
void algo_configure(const cublasLtMatmulAlgo_t *base, const plan_config *c,
                    cublasLtMatmulAlgo_t *algo);
void algo_config_of(const cublasLtMatmulAlgo_t *algo, plan_config *c);
/* False: the library does not take the id for this form of output. */
bool algo_base(cublasLtHandle_t lt, ops_dtype out, int32_t id, cublasLtMatmulAlgo_t *base);
/* Whether the library runs algo on p within `room` bytes of workspace; *need: what it takes. The
 * counter of ALGO_COUNTER bytes that a kernel would have where its tiles outnumber its CTAs is not
 * counted: it runs without one, and gives the same bits (docs/tuning.md). */
#define ALGO_COUNTER 4
bool algo_accepts(cublasLtHandle_t lt, algo_problem *p, const cublasLtMatmulAlgo_t *algo,
                  size_t room, size_t *need);
bool algo_choices_of(cublasLtHandle_t lt, ops_dtype out, int32_t id, algo_choices *c);
/* The library's picks for p, best first; how many. With room 0 no split and no reduction; else a
 * split is allowed that adds its parts in fp32. */
int algo_picks(cublasLtHandle_t lt, algo_problem *p, size_t room,
               cublasLtMatmulHeuristicResult_t *out, int max);
corun_status algo_run(cublasLtHandle_t lt, algo_problem *p, const cublasLtMatmulAlgo_t *algo,
                      const void *w, const void *x, void *out, void *workspace, size_t bytes,
                      void *stream);

#ifdef __cplusplus
}
#endif
#endif
