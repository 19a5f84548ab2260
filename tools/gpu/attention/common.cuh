/* common.cuh - what the attention kernels share: the page layout, the state of a chunk, the fold.
 *
 * docs/numerics.md, section 3 is the definition. Blocks have 128 tokens, chunks 512, pages 64. A
 * page holds [kv head][K, V][d/64][64 tokens][64] bf16, its 16-byte pieces XOR (token & 7): the
 * 128-byte swizzle that ldmatrix, wgmma and plain bulk copies all read as it lies.
 * Invariant: whatever a kernel's tiles, it uses the functions below and adds nothing of its own to
 * the arithmetic of t, l and the fold. */
#ifndef TOOLS_GPU_ATTENTION_COMMON_CUH
#define TOOLS_GPU_ATTENTION_COMMON_CUH

#include "device.cuh"

#include <math.h>

enum { PAGE = 64, BLOCK = 128, CHUNK = 512, PAGES_OF_BLOCK = BLOCK / PAGE, HALF_BYTES = 64 * 128 };

/* Where element d of a token lies in a page's K or V: an index of bf16. */
__host__ DEVICE int page_index(int token, int d)
{
    return (d >> 6) * (PAGE * 64) + token * 64 + ((((d & 63) >> 3) ^ (token & 7)) << 3 | (d & 7));
}

/* Elements of K and V of one kv head of a page. */
__host__ DEVICE size_t page_elements(int head_dim) { return (size_t)2 * PAGE * head_dim; }

/* States of chunks in memory: [row][head][chunk], t and l in one float2, o of head_dim floats. */
struct partials {
    float2 *tl;
    float *o;
    int max_chunks;
};

/* The memory that both kernels read and write. Rows are the rows of q and out, [row][head][d]. */
struct attention {
    const __nv_bfloat16 *cache; /* pages */
    const __nv_bfloat16 *q;
    __nv_bfloat16 *out;
    float *out_fp32; /* the outputs before rounding to bf16 */
    partials part;
    float c; /* fp32(scale · log2 e) */
    int kv_heads, group;
};

/* ---- a block inside a chunk */

/* The new maximum t' from the largest score of the block; `rescale` is a. */
DEVICE float block_maximum(float t, float largest, float c, float &rescale)
{
    float next = fmaxf(t, __fmul_rn(c, largest));
    rescale = ex2(__fsub_rn(t, next == -INFINITY ? 0.0f : next));
    return next;
}

DEVICE float block_weight(float score, float c, float t)
{
    return ex2(__fmaf_rn(score, c, t == -INFINITY ? -0.0f : -t));
}

/* (l_0 + l_1) + (l_2 + l_3) over the four lanes of a quad, in all of them. */
DEVICE float quad_sum(float l)
{
    l = __fadd_rn(l, __shfl_xor_sync(~0u, l, 1));
    return __fadd_rn(l, __shfl_xor_sync(~0u, l, 2));
}

/* ---- the fold of a later chunk (t, l) into (T, L); O = fma(o, weight, O · keep) follows. */
DEVICE void fold_state(float &T, float &L, float t, float l, float &keep, float &weight)
{
    float next = fmaxf(T, t);
    keep = ex2(__fsub_rn(T, next));
    weight = ex2(__fsub_rn(t, next));
    L = __fmaf_rn(l, weight, __fmul_rn(L, keep));
    T = next;
}

DEVICE float fold_output(float O, float o, float keep, float weight)
{
    return __fmaf_rn(o, weight, __fmul_rn(O, keep));
}

DEVICE void write_output(const attention &at, size_t index, float O, float inverse)
{
    float y = __fmul_rn(O, inverse);
    at.out[index] = __float2bfloat16_rn(y);
    at.out_fp32[index] = y;
}

/* Copies the pages of one block of K or V to shared memory as [d/64][128 tokens][64]. */
template <int D>
DEVICE void load_block(uint32_t to, const __nv_bfloat16 *cache, const int *pages, int n_pages,
                       int kv_heads, int kv_head, int is_v, uint32_t barrier)
{
    for (int p = 0; p < n_pages; p++) {
        const __nv_bfloat16 *from = cache +
                                    ((size_t)pages[p] * kv_heads + kv_head) * page_elements(D) +
                                    (size_t)is_v * PAGE * D;
        for (int half = 0; half < D / 64; half++)
            bulk_load(to + half * PAGES_OF_BLOCK * HALF_BYTES + p * HALF_BYTES,
                      from + half * PAGE * 64, HALF_BYTES, barrier);
    }
}

/* Zeroes the tokens from `first` to the end of a block of V, by `threads` threads. */
template <int D> DEVICE void clear_tokens(char *v, int first, int thread, int threads)
{
    for (int half = 0; half < D / 64; half++)
        for (int i = first * 8 + thread; i < BLOCK * 8; i += threads)
            ((uint4 *)(v + half * PAGES_OF_BLOCK * HALF_BYTES))[i] = make_uint4(0, 0, 0, 0);
}

/* Folds the chunks of every (row, head) from memory, one warp each. position[row]: the row's p, or
 * -1 for a row that has none there.
 * downward: the planted fault, which folds the chunks in the wrong order. */
template <int D>
__global__ void fold_chunks(attention at, const int *position, int rows, int heads, bool downward)
{
    int warp = (blockIdx.x * blockDim.x + threadIdx.x) >> 5, lane = threadIdx.x & 31;
    if (warp >= rows * heads) return;
    if (position[warp / heads] < 0) return;
    int n = position[warp / heads] / CHUNK + 1;
    size_t base = (size_t)warp * at.part.max_chunks;
    float T = 0, L = 0, O[D / 32];
    for (int i = 0; i < n; i++) {
        size_t slot = base + (downward ? n - 1 - i : i);
        float2 tl = at.part.tl[slot];
        float keep = 0, weight = 0;
        if (i == 0) {
            T = tl.x;
            L = tl.y;
        } else
            fold_state(T, L, tl.x, tl.y, keep, weight);
#pragma unroll
        for (int k = 0; k < D / 32; k++) {
            float o = at.part.o[slot * D + lane + 32 * k];
            O[k] = i == 0 ? o : fold_output(O[k], o, keep, weight);
        }
    }
    float inverse = __frcp_rn(L);
#pragma unroll
    for (int k = 0; k < D / 32; k++)
        write_output(at, (size_t)warp * D + lane + 32 * k, O[k], inverse);
}

#endif
