/* ref_attn.h - canonical GPU attention of one row and one head on a CPU, to the bit
 * (docs/numerics.md, section 3).
 *
 * Products are ref_mma's. 2^x is an instruction of the device (ex2.approx.ftz.f32): all its
 * arguments follow from the scores, so they are written first and the caller brings the values,
 * from a device or from a record of one. */
#ifndef OPS_REF_ATTN_H
#define OPS_REF_ATTN_H

#include <stdint.h>

enum { REF_ATTN_BLOCK = 128, REF_ATTN_CHUNK = 512, REF_ATTN_MAX_DIM = 256 };

typedef struct ref_attn_row {
    int head_dim;          /* at most REF_ATTN_MAX_DIM */
    int position;          /* tokens 0 to position are seen */
    float c;               /* fp32(scale · log2 e) */
    const uint16_t *q;     /* bf16, [head_dim] */
    const uint16_t *k, *v; /* bf16, [token][head_dim] */
} ref_attn_row;

/* Upper bound of the arguments that ref_attn_arguments writes. */
int ref_attn_arguments_max(const ref_attn_row *r);

/* Writes the arguments of 2^x in the order in which ref_attn_output takes their values; returns how
 * many there are. */
int ref_attn_arguments(const ref_attn_row *r, float *arguments);

/* The fp32 outputs O · rcp(L), [head_dim]. */
void ref_attn_output(const ref_attn_row *r, const float *values, float *out);

#endif
