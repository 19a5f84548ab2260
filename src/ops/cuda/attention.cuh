/* attention.cuh - what the attention kernels share: the work of a step, the state of a chunk, the
 * fold.
 *
 * docs/numerics.md, section 3 is the definition. A block has 128 tokens, a chunk a number of
 * blocks: four in the canonical set. An item is a query row (decode) or up to 128 consecutive rows
 * of one sequence (prefill), with a range of blocks that begins at a chunk. Which items a step has
 * is written on the device by k_attn_plan; the CTAs of a kernel take them one after the other from
 * a counter, so launches depend on no length. An item with a slot writes the states of its chunks
 * to memory, and the CTA that comes last of a row or tile folds them; an item without one has all
 * blocks and folds in registers. The bits are the same. Invariant: whatever a kernel's tiles, it
 * uses the functions below and adds nothing of its own to the arithmetic of t, l and the fold. */
#ifndef OPS_CUDA_ATTENTION_CUH
#define OPS_CUDA_ATTENTION_CUH

#include "ops/cuda/ptx.cuh"

#include <math.h>

enum {
    ATTN_BLOCK = 128,
    ATTN_TILE = 128,    /* query rows of a prefill item */
    ATTN_LINE = 128,    /* bytes of 64 elements of one token */
    ATTN_CANONICAL = 4, /* blocks of a chunk */
    ATTN_FIXED = 16,    /* of the set fixed: 2,048 tokens */
    ATTN_MAX_GROUP = 16
};

struct __align__(16) attn_item
{
    int32_t row, token; /* of the step: the row, and the first token row of the tile */
    int32_t position;   /* of that token */
    int32_t rows;       /* of the tile; 1 in decode */
    int32_t block;      /* first block: a chunk begins there */
    int32_t blocks;     /* 0: no more items */
    int32_t chunk;      /* blocks a chunk */
    int32_t slot;       /* of chunk 0 of the tile's first row, in states; -1: none */
    int32_t pieces;     /* items of the same row or tile */
    int32_t head;       /* kv head (decode) or head (prefill): set by the CTA that takes it */
    int32_t unused[2];
};

/* Written by k_attn_plan. */
struct attn_work {
    int32_t decode_items, prefill_items; /* entries of the lists, before heads */
    uint32_t decode_next, prefill_next;  /* heads included */
    uint32_t decode_done, prefill_done;  /* CTAs that have left; the last one resets next */
};

/* What one launch reads and writes. */
struct attn_args {
    const char *kv; /* of the layer */
    size_t page_stride;
    int32_t page_tokens, page_shift, n_kv, group; /* page_tokens is 1 << page_shift */
    const int32_t *page;                          /* [row][max_page] */
    int32_t max_page;
    const __nv_bfloat16 *q; /* [token][head][d] */
    __nv_bfloat16 *out;
    float *out_fp32; /* the outputs before rounding, or NULL */
    float c;         /* fp32(scale · log2 e) */
    attn_work *work;
    const attn_item *decode, *prefill;
    int32_t decode_room; /* items that the list holds at most */
    float2 *state_tl;    /* [slot][head] t and l of a chunk */
    float *state_o;      /* [slot][head][d] */
    uint32_t *done;      /* [row][kv head] items that are done */
    bool downward;       /* the planted fault: folds through memory walk downward */
    bool next_early;     /* the kernel behind is one of ours that waits for this one's end */
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

DEVICE float4 fold_output(float4 O, float4 o, float keep, float weight)
{
    return make_float4(fold_output(O.x, o.x, keep, weight), fold_output(O.y, o.y, keep, weight),
                       fold_output(O.z, o.z, keep, weight), fold_output(O.w, o.w, keep, weight));
}

/* Folds four dimensions of n chunks of one row and head from memory and writes the output.
 * state: of chunk 0, (slot · heads + head); step: states from a chunk to the next; index: of the
 * first of the four outputs. */
template <int D>
DEVICE void fold_memory(const attn_args &at, size_t state, size_t step, int n, int dim,
                        size_t index)
{
    constexpr int AHEAD = 8;
    float T = 0, L = 0;
    float4 O = make_float4(0, 0, 0, 0);
    for (int first = 0; first < n; first += AHEAD) {
        float2 tl[AHEAD];
        float4 o[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (first + i >= n) continue;
            size_t s = state + step * (at.downward ? n - 1 - first - i : first + i);
            tl[i] = __ldcg(at.state_tl + s);
            o[i] = __ldcg((const float4 *)(at.state_o + s * D + dim));
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            float keep, weight;
            if (first + i >= n) continue;
            if (first + i == 0) {
                T = tl[i].x;
                L = tl[i].y;
                O = o[i];
                continue;
            }
            fold_state(T, L, tl[i].x, tl[i].y, keep, weight);
            O = fold_output(O, o[i], keep, weight);
        }
    }
    float inverse = __frcp_rn(L);
    O = make_float4(__fmul_rn(O.x, inverse), __fmul_rn(O.y, inverse), __fmul_rn(O.z, inverse),
                    __fmul_rn(O.w, inverse));
    *(uint2 *)(at.out + index) = make_uint2(pack_bf16(O.x, O.y), pack_bf16(O.z, O.w));
    if (at.out_fp32) *(float4 *)(at.out_fp32 + index) = O;
}

/* ---- pages */

/* Where K (V: + page_tokens · D · 2) of the kv head begins in a page. */
template <int D> DEVICE const char *page_head(const attn_args &at, int32_t page, int kv_head)
{
    return at.kv + (size_t)page * at.page_stride + (size_t)kv_head * 4 * D * (size_t)at.page_tokens;
}

/* The part of a span of tokens that a lane copies: `piece` tokens of one half of the dimensions. */
struct page_lane {
    int piece;
    int first, half; /* the first of the tokens, counted in the span; the half */
    bool active;     /* the lane has a part */
};

template <int D, int SPAN> DEVICE page_lane lane_of_pages(const attn_args &at, int lane)
{
    page_lane l;
    l.piece = min((int)at.page_tokens, SPAN);
    int pieces = SPAN / l.piece;
    l.half = lane / pieces;
    l.first = lane % pieces * l.piece;
    l.active = l.half < D / 64;
    return l;
}

/* Copies the lane's part of K or V to shared memory as [d/64][SPAN][64]. first: the span's first
 * token, a multiple of SPAN, of which `tokens` exist; head: K or V of the page that holds the
 * lane's part. */
template <int D, int SPAN>
DEVICE void load_span(const attn_args &at, const page_lane &l, uint32_t to, const char *head,
                      int first, int tokens, uint32_t barrier, uint64_t policy)
{
    int n = min(l.piece, tokens - l.first);
    if (!l.active || n <= 0) return;
    const char *from =
        head +
        ((size_t)l.half * at.page_tokens + ((first + l.first) & (at.page_tokens - 1))) * ATTN_LINE;
    bulk_load(to + (l.half * SPAN + l.first) * ATTN_LINE, from, (uint32_t)n * ATTN_LINE, barrier,
              policy);
}

/* Zeroes the tokens from `first` to the end of a span of V, by `threads` threads. */
template <int D, int SPAN> DEVICE void clear_tokens(char *v, int first, int thread, int threads)
{
    for (int half = 0; half < D / 64; half++)
        for (int i = first * 8 + thread; i < SPAN * 8; i += threads)
            ((uint4 *)(v + half * SPAN * ATTN_LINE))[i] = make_uint4(0, 0, 0, 0);
}

#endif
