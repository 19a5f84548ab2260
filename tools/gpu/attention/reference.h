/* reference.h - docs/numerics.md, section 3 for one row and one head, in plain C to the bit.
 *
 * Products are ref_mma's. 2^x is the device's instruction: all its arguments follow from the
 * scores, so they are collected first and the caller lets the device compute them in one batch. */
#ifndef TOOLS_GPU_ATTENTION_REFERENCE_H
#define TOOLS_GPU_ATTENTION_REFERENCE_H

#include <stdint.h>

enum { REF_BLOCK = 128, REF_CHUNK = 512 };

typedef struct ref_row {
    int head_dim, position; /* tokens 0 to position are seen */
    float c;                /* fp32(scale · log2 e) */
    const uint16_t *q;      /* bf16, [head_dim] */
    const uint16_t *k, *v;  /* bf16, [token][head_dim] */
} ref_row;

/* Upper bound of the arguments that ref_row_arguments writes. */
int ref_row_arguments_max(const ref_row *r);

/* Writes the arguments of 2^x in the order in which ref_row_output takes their values; returns how
 * many there are. */
int ref_row_arguments(const ref_row *r, float *arguments);

/* The fp32 outputs O · rcp(L), [head_dim]. */
void ref_row_output(const ref_row *r, const float *values, float *out);

#endif
