/* attention.h - what tests ask of the attention kernels beyond gpu.h. */
#ifndef OPS_CUDA_ATTENTION_H
#define OPS_CUDA_ATTENTION_H

#include "ops/cuda/gpu.h"

#ifdef __cplusplus
extern "C" {
#endif

/* From now on run also writes the outputs before rounding to out_fp32 [tok][n_head d] (NULL: not);
 * bf16 hides most wrong orders. downward: the planted fault, folds through memory walk downward.
 * slots: at most so many states of chunks are kept, the rest folds in registers (-1: all that
 * there are). */
void gpu_attn_probe(gpu_attn *a, float *out_fp32, bool downward, int32_t slots);
/* Another kernel set for decode rows, from the next plan on. */
void gpu_attn_decode_set(gpu_attn *a, ops_set set);

#ifdef __cplusplus
}
#endif
#endif
