/* sampler.h - the sampling half of a host backend: per-slot state, lanes, results.
 * It implements slot_put, sample, draw_get, score and score_get of ops.h over a logits buffer
 * [row][n_vocab] fp32 that the backend owns; the arithmetic of a row is ops/sample.h.
 *
 * Nothing is allocated after open. A lane's result depends on its row, its slot's state and its
 * position alone: rows are spread over the threads, one row is never split. */
#ifndef OPS_SAMPLER_H
#define OPS_SAMPLER_H

#include "ops/ops.h"

typedef struct sampler sampler;

/* c gives n_slot, max_lane, logit_rows, n_top and processed_logprobs. threads is borrowed (NULL:
 * the caller's thread alone). isa: a name that ops_isa_pick gave, or "ref" for the plain
 * definition. CORUN_EINVAL when this build has no such kernels. */
corun_status sampler_open(sampler **out, int32_t n_vocab, const ops_conf *c, pool *threads,
                          const char *isa);
void sampler_close(sampler *s); /* NULL is fine */

/* CORUN_EINVAL: slot or an id out of range, too many bad words, a parameter without meaning. The
 * state of the slot is then undefined until a slot_put succeeds. */
corun_status sampler_slot_put(sampler *s, int32_t slot, const ops_slot *p);
/* The token drawn last, or the last of slot_put's output; 0 when there is none, or when the last
 * draw failed, so that a step that was already made stays in range. */
int32_t sampler_last_token(const sampler *s, int32_t slot);

/* As ops.h has them; logits is the buffer of the chunk, n_row its rows. Two lanes of one call
 * must not share a slot. */
corun_status sampler_sample(sampler *s, const float *logits, int32_t n_row, int32_t n_lane,
                            const int32_t *chunk_row, const int32_t *slot, const int32_t *pos);
corun_status sampler_draw_get(const sampler *s, int32_t back, int32_t lane, ops_draw *out);
/* target -1: the row is not scored (its draw has token -1 and why NULL). n_top -1 counts as 0. */
corun_status sampler_score(sampler *s, const float *logits, int32_t n, const int32_t *target,
                           int32_t n_top);
corun_status sampler_score_get(const sampler *s, int32_t i, ops_draw *out);

#endif
