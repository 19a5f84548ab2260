/* cpu.h - what the CPU backend hands to its kernels: one job a call, run on every worker.
 *
 * Layouts that cpu.c and the kernels share:
 * - weights: panels of 32 outputs, [panel][n_in][16] words; word o of a line holds output o of the
 *   panel in its low half and output 16 + o in its high half. Outputs that do not exist are 0.
 * - K of a page, layer and kv head: [page_tokens / 16][d / 2][16] words: for 16 tokens elements 2i
 *   (low) and 2i + 1.
 * - V of the same: [page_tokens][dp], dp = d rounded up to 32, in groups of 32 as a panel line.
 * Invariant: a kernel writes only the outputs of its worker's slice; a sum is never cut. */
#ifndef OPS_CPU_CPU_H
#define OPS_CPU_CPU_H

#include "ops/rows.h"

#define CPU_PANEL 32  /* outputs a panel */
#define CPU_KB    128 /* x is widened in pieces of so many of K: [K / KB][rows][KB] */
#define CPU_KEYS  16  /* tokens whose K lies side by side */
#define CPU_BLOCK 128 /* tokens an attention block */
#define CPU_CHUNK 512 /* tokens an attention chunk */
#define CPU_MAX_D 256
#define CPU_X_BYTES                                                                                \
    (768u << 10) /* widened x that a worker holds at once: stays in the L2 cache                   \
                  */

typedef struct cpu_embed_job {
    const uint32_t *panel;
    int64_t n_in, n_row;
    const int32_t *id;
    uint16_t *out;
} cpu_embed_job;

typedef struct cpu_norm_job {
    int64_t n, n_row;
    const int32_t *row; /* rows of h and y to read, or NULL: all in order */
    uint16_t *h;
    const uint16_t *y; /* or NULL */
    const float *gain;
    float eps;
    uint16_t *out;
} cpu_norm_job;

typedef struct cpu_matmul_job {
    const uint32_t *panel;
    int64_t n_out, n_in, n_row;
    const float *bias; /* padded to whole panels, or NULL */
    const uint16_t *x; /* [n_row][n_in] */
    bool f32;
    void *out; /* [n_row][n_out] */
    float *scratch;
    int64_t scratch_floats; /* a worker: cpu_matmul_scratch */
#ifdef CORUN_BREAK
    int64_t cut; /* planted fault: the sums of the parts before and from cut on are added */
#endif
} cpu_matmul_job;

/* Floats of scratch that a worker needs for matrices of up to n_in columns. */
static inline int64_t cpu_matmul_scratch(int64_t n_in)
{
    int64_t k = (n_in + CPU_KB - 1) / CPU_KB * CPU_KB;
    int64_t n = (int64_t)(CPU_X_BYTES / 4) / k;
    return k * (n < 16 ? 16 : n) + k * CPU_PANEL;
}

typedef struct cpu_kv {
    uint16_t *data; /* pages one after the other */
    int64_t page;   /* elements a page */
    int64_t head;   /* elements of one kv head of one layer of a page, K first */
    int64_t layer;  /* offset of the layer in a page */
    int32_t page_tokens, n_head, n_kv, d, dp;
} cpu_kv;

typedef struct cpu_qkv_job {
    const rowset *r;
    cpu_kv kv;
    const uint16_t *qkv;
    const float *q_gain, *k_gain; /* or NULL */
    float eps;
    const float *cos, *sin; /* [n_ctx][d / 2] */
    uint16_t *q;
} cpu_qkv_job;

typedef struct cpu_attn_job {
    const rowset *r;
    cpu_kv kv;
    const uint16_t *q;
    float c; /* fp32(scale log2 e) */
    uint16_t *out;
    int64_t cost; /* of all units: sum over tokens of the positions they see, times kv heads */
} cpu_attn_job;

typedef struct cpu_silu_job {
    int64_t n_ff, n_row;
    const uint16_t *gate_up;
    uint16_t *out;
} cpu_silu_job;

typedef void cpu_kernel(void *job, int worker, int n_worker);

typedef struct cpu_kernels {
    const char *isa;
    cpu_kernel *norm, *matmul, *qkv_post, *attention, *silu_mul;
} cpu_kernels;

#endif
