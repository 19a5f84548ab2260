/* sample.h - one row of logits: its draw and its log-probabilities, defined once and computed by
 * sample_row_ref (the definition, scalar) and by the kernels of each instruction set.
 * Invariant: all of them give the same bits; a row's result depends on nothing but its own input.
 *
 * The definition (docs/numerics.md, section 5). All is fp32, each step rounded on its own; the
 * functions are those of base/num.h. V = n_vocab. A maximum of -0 counts as +0.
 *
 * 0  A raw logit that is NaN or infinite, anywhere in 0 ... V - 1, fails the row.
 * 1  x_i = logit_i, then where x_i is not masked, in this order:
 *      bias          x = x + bias_i                         (where bias_i is not 0)
 *      repetition    x = x > 0 ? x / r : x * r   (r not 1; ids of the prompt and the output)
 *      frequency     x = x - f * count_i         (f not 0; count_i: times drawn, as fp32)
 *      presence      x = x - p                   (p not 0; where count_i > 0)
 *      limits        x = min(max(x, -FLT_MAX), FLT_MAX)     (so only a mask is -inf)
 *    Masked, that is x_i = -inf: ids that are not allowed, ids >= n_draw, ends of bad words, and
 *    end ids until min_tokens are drawn. A row with every id masked fails.
 * 2  temperature < 1e-5: the token is the lowest id of the largest x. Otherwise
 *      d_i = (x_i - max x) / t
 *      w_i = rint(2^40 exp2(d_i * log2 e)) as uint64
 *    kept: x_i not masked, and
 *      top_k in 1 ... V - 1: x_i >= the top_k-th largest x (ties at the border all stay)
 *      min_p > 0: w_i >= min_p 2^40, in double (2^40 is the largest w)
 *      top_p < 1: with Z = the sum of w over ids that passed both, x_i is kept while the sum of w
 *      over such ids of strictly larger x is < top_p Z, in double. top_p 0: only the lowest id of
 *      the largest x.
 *    u_i = word i & 3 of Philox(key = seed, counter = (i >> 2, pos, PHILOX_PURPOSE_DRAW, 0));
 *      v = fp32(u) * 2^-32 + 2^-33;  e = -log1p(-v);  score_i = d_i - log(e)
 *    The token is the kept id of the largest score, ties to the lower id.
 * 3  Log-probabilities are of y: the raw logits or, with `processed`, of x (greedy) or d (masked
 *    ids -inf, filters of step 2 not applied). Blocks of 128 ids: m = the largest y,
 *      lane j < 32 adds exp2((y - m) * log2 e) of ids j, j + 32, j + 64, j + 96, from 0, upward;
 *      then lanes j += j + 16, j + 8, ... j + 1. Block 0 is (M, S); each next block, upward,
 *      M' = max(M, m), S = fma(s, exp2((m - M') * log2 e), S * exp2((M - M') * log2 e)).
 *    Where a maximum is -inf, 0 is subtracted. logprob_i = (y_i - M) - log S.
 *    The alternatives are the n_top largest y, ties to the lower id; y = -inf is never listed.
 */
#ifndef OPS_SAMPLE_H
#define OPS_SAMPLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SAMPLE_BLOCK    128
#define SAMPLE_LOG2E    0x1.715476p0f
#define SAMPLE_GREEDY_T 1e-5f

#define SAMPLE_DENIED 1u /* flag: not among the allowed ids */
#define SAMPLE_END    2u /* flag: ends the text */
#define SAMPLE_PROMPT 4u /* flag: in the prompt */

typedef struct sample_row {
    const float *logit; /* [n_vocab] */
    int32_t n_vocab;
    int32_t n_draw; /* ids >= n_draw are masked */
    int32_t pos;    /* absolute position of the drawn token */
    uint64_t seed;
    float temperature, top_p, min_p;
    float repetition, presence, frequency;
    int32_t top_k;
    int32_t n_top; /* alternatives, at most out.cap; -1: no log-probability at all */
    bool processed;
    bool mask_end;         /* min_tokens are not reached */
    const uint8_t *flag;   /* [n_vocab] SAMPLE_*; may be NULL (all 0) unless repetition is used */
    const float *bias;     /* [n_vocab], or NULL: all 0 */
    const int32_t *count;  /* [n_vocab] times drawn; may be NULL when no penalty is used */
    const int32_t *banned; /* ids that would complete a bad word */
    int32_t n_banned;
    int32_t target; /* -1: draw. Otherwise no draw: the log-probability of this id */
} sample_row;

typedef enum sample_why { SAMPLE_OK, SAMPLE_NONFINITE, SAMPLE_ALL_MASKED } sample_why;

typedef struct sample_out {
    sample_why why;
    int32_t token; /* -1 unless why is SAMPLE_OK */
    float logprob; /* 0 where not asked for */
    int32_t n_top;
    int32_t *top_id;    /* [room for n_top] */
    float *top_logprob; /* [room for n_top] */
} sample_out;

/* Work memory of one row: bytes for a vocabulary, 64-byte aligned. */
size_t sample_scratch_bytes(int32_t n_vocab);

typedef void (*sample_row_fn)(const sample_row *in, sample_out *out, void *scratch);

void sample_row_ref(const sample_row *in, sample_out *out, void *scratch);
/* The kernel of an instruction set that this build has ("avx512", "avx2", "neon", "generic"), or
 * the definition ("ref"); NULL otherwise. Whether the machine can run it is the caller's care. */
sample_row_fn sample_row_pick(const char *isa);

#endif
