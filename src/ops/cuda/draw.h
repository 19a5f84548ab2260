/* draw.h - sampling on the device: what draw.c (slots, lanes, results) and draw.cu (the kernels)
 * share. The arithmetic is that of ops/sample.h to the bit.
 *
 * Invariant: one path for every lane; a lane whose parameters are neutral leaves a kernel early,
 * and what it computes depends on nothing but its own row, slot and position. */
#ifndef OPS_CUDA_DRAW_H
#define OPS_CUDA_DRAW_H

#include "ops/cuda/gpu.h"
#include "ops/sample.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DRAW_BANNED 8u /* flag: would complete a bad word after the output so far */

/* State of a slot on the device; its arrays are those of draw_args at the slot's index. */
typedef struct draw_slot {
    uint64_t seed;
    float temperature, top_p, min_p;
    float repetition, presence, frequency;
    int32_t top_k, min_tokens, n_top, n_draw;
    int32_t use_flag, use_bias, use_count;
    int32_t n_bad, n_banned;
    int32_t n_output;
} draw_slot;

/* One lane, or one scored row (slot -1). row -1: not in this call. */
typedef struct draw_item {
    int32_t row, slot, pos, target, n_top;
} draw_item;

/* Of one item, from kernel to kernel. */
typedef struct draw_work {
    uint64_t best;   /* (ordered score, complement of the id) of the leading candidate */
    uint64_t least;  /* min-p: smallest mass that is kept */
    int32_t max_key; /* of the processed logits */
    int32_t bad;     /* a raw logit is not finite */
    uint32_t border; /* smallest unsigned key that top-k and top-p keep */
} draw_work;

typedef struct draw_result {
    int32_t token, why, n_top;
    float logprob;
} draw_result;

typedef struct draw_args {
    const float *logits; /* [row][stride] */
    int64_t stride;
    int32_t n_vocab, n_block, n_item, n_top_max;
    int32_t processed;
    const draw_item *from; /* pinned: k_begin copies it to item */
    draw_item *item;
    draw_slot *slot;
    int32_t *last;       /* [n_slot] token drawn last; 0 after a failure */
    uint8_t *flag;       /* [n_slot][n_block 128] */
    int32_t *count;      /* [n_slot][n_block 128] */
    float *bias;         /* [n_slot][n_block 128] */
    int32_t *bad_id;     /* [n_slot][OPS_MAX_BAD_SLOT] */
    int32_t *bad_off;    /* [n_slot][OPS_MAX_BAD + 1] where each word begins in bad_id */
    int32_t *banned;     /* [n_slot][OPS_MAX_BAD] ids that carry DRAW_BANNED */
    int32_t *recent;     /* [n_slot][OPS_MAX_BAD_LEN] */
    draw_work *work;     /* [n_item] */
    int32_t *block_x;    /* [n_item][n_block] maxima of processed logits, as keys */
    uint64_t *block_y;   /* [n_item][n_block] largest y and its id, as draw_work.best */
    float *block_s;      /* [n_item][n_block] sums of exponentials */
    draw_result *result; /* pinned, as the next two: the kernels write to the host */
    int32_t *top_id;     /* [n_item][n_top_max] */
    float *top_logprob;
} draw_args;

corun_status gpu_draw(const gpu *g, const draw_args *a);

/* ---- draw.c -------------------------------------------------------------------------------- */

typedef struct gpu_sampler gpu_sampler;

/* As sampler.h has them for a host backend. logits: [logit_rows][stride] on the device. */
corun_status gpu_sampler_open(gpu_sampler **out, const gpu *g, int32_t n_vocab, const ops_conf *c,
                              const float *logits, int64_t stride);
void gpu_sampler_close(gpu_sampler *s);
const int32_t *gpu_sampler_last(const gpu_sampler *s); /* [n_slot], on the device */
corun_status gpu_sampler_slot_put(gpu_sampler *s, int32_t slot, const ops_slot *p);
corun_status gpu_sampler_sample(gpu_sampler *s, int32_t n_lane, const int32_t *chunk_row,
                                const int32_t *slot, const int32_t *pos);
corun_status gpu_sampler_draw_get(gpu_sampler *s, int32_t back, int32_t lane, ops_draw *out);
corun_status gpu_sampler_score(gpu_sampler *s, int32_t n, const int32_t *target, int32_t n_top);
corun_status gpu_sampler_score_get(gpu_sampler *s, int32_t i, ops_draw *out);

#ifdef __cplusplus
}
#endif
#endif
