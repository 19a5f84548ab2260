/* rows.h - the step as flat arrays: one entry a token row, one a wanted row, one a live sequence.
 * Shared by the host backends, with the checks of every input that ops.h forbids.
 *
 * Invariant: dead rows are gone, every id, position, page and slot in the arrays is in range. */
#ifndef OPS_ROWS_H
#define OPS_ROWS_H

#include "ops/ops.h"

typedef struct rowset {
    ops_dims dims;
    ops_conf conf;
    int32_t max_page; /* pages of one sequence */
    int32_t n_tok, n_want, n_seq;
    int32_t *id;      /* [n_tok] token id, or -1: the last drawn one of slot[] */
    int32_t *slot;    /* [n_tok] where id is -1 */
    int32_t *pos;     /* [n_tok] */
    int32_t *seq;     /* [n_tok] index of the live sequence */
    int32_t *want;    /* [n_want] token rows */
    int32_t *seq_tok; /* [n_seq + 1] first token row of each live sequence */
    int32_t *page;    /* [n_seq][max_page] */
} rowset;

corun_status ops_check_dims(const ops_dims *d);
corun_status ops_check_conf(const ops_dims *d, const ops_conf *c);

corun_status rows_open(rowset *r, const ops_dims *d, const ops_conf *c);
void rows_close(rowset *r);
/* On an error the rows are those of an empty step. */
corun_status rows_put(rowset *r, const step *s);

/* cos and sin of positions [first, first + n), half of each a position, `stride` floats from one
 * position to the next. One code for all backends. */
void ops_rope_rows(const float *inv_freq, double scale, int64_t half, int64_t first, int64_t n,
                   int64_t stride, float *cos, float *sin);

/* Checks of arguments: CORUN_EINVAL names the op and the numbers. */
corun_status ops_need_index(int32_t i, int32_t n, const char *what);
corun_status ops_need_layer(const ops_dims *d, int32_t layer, const char *op);
corun_status ops_need_logits(const ops *o, int32_t first, int32_t n);
/* A weight of n_out x n_in where want_out (0: any) x want_in is needed. */
corun_status ops_need_shape(int64_t n_out, int64_t n_in, int64_t want_out, int64_t want_in,
                            const char *op);

static inline const int32_t *rows_pages(const rowset *r, int32_t seq)
{
    return r->page + (int64_t)seq * r->max_page;
}

static inline float ops_bf16_wide(uint16_t v)
{
    union {
        uint32_t u;
        float f;
    } x = {.u = (uint32_t)v << 16};
    return x.f;
}

/* To nearest, ties to even; NaN stays NaN. */
static inline uint16_t ops_bf16_round(float f)
{
    union {
        float f;
        uint32_t u;
    } x = {.f = f};
    if ((x.u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((x.u >> 16) | 0x40u);
    return (uint16_t)((x.u + 0x7fffu + ((x.u >> 16) & 1u)) >> 16);
}

#endif
