/* ref_attn.c - canonical GPU attention of one row in plain C.
 * Invariant: both passes walk the same blocks and chunks; every sum is written as the definition
 * orders it. Built without contraction: only fmaf fuses. */
#include "ops/ref_attn.h"

#include <math.h>
#include <string.h>

#include "ops/ref_mma.h"

int ref_attn_arguments_max(const ref_attn_row *r)
{
    int blocks = r->position / REF_ATTN_BLOCK + 1, chunks = r->position / REF_ATTN_CHUNK + 1;
    return blocks * (REF_ATTN_BLOCK + 1) + 2 * chunks;
}

static float larger(float a, float b) { return a > b ? a : b; }

/* A block: its 128 weights, then a. Returns t'. */
static float block_arguments(const ref_attn_row *r, int begin, float t, float **arguments)
{
    float s[REF_ATTN_BLOCK], largest = -INFINITY;
    for (int j = 0; j < REF_ATTN_BLOCK; j++) {
        int token = begin + j;
        s[j] = token > r->position
                   ? -INFINITY
                   : ref_mma_dot(r->q, r->k + (int64_t)token * r->head_dim, r->head_dim);
        largest = larger(largest, s[j]);
    }
    float next = larger(t, r->c * largest);
    for (int j = 0; j < REF_ATTN_BLOCK; j++) *(*arguments)++ = fmaf(s[j], r->c, -next);
    *(*arguments)++ = t - next;
    return next;
}

int ref_attn_arguments(const ref_attn_row *r, float *arguments)
{
    float *at = arguments, T = 0;
    for (int chunk = 0; chunk <= r->position; chunk += REF_ATTN_CHUNK) {
        float t = -INFINITY;
        for (int b = chunk; b < chunk + REF_ATTN_CHUNK && b <= r->position; b += REF_ATTN_BLOCK)
            t = block_arguments(r, b, t, &at);
        float next = chunk ? larger(T, t) : t;
        if (chunk) {
            *at++ = T - next;
            *at++ = t - next;
        }
        T = next;
    }
    return (int)(at - arguments);
}

static uint16_t to_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

typedef struct chunk_state {
    float l[4]; /* the row sums of the four lanes */
    float *o;
} chunk_state;

static void block_output(const ref_attn_row *r, int begin, const float *p, float a, chunk_state *s)
{
    uint16_t packed[REF_ATTN_BLOCK], column[REF_ATTN_BLOCK];
    for (int q = 0; q < 4; q++) {
        float sum = 0;
        for (int n = 0; n < REF_ATTN_BLOCK / 8; n++) {
            sum = sum + p[8 * n + 2 * q];
            sum = sum + p[8 * n + 2 * q + 1];
        }
        s->l[q] = fmaf(s->l[q], a, sum);
    }
    for (int j = 0; j < REF_ATTN_BLOCK; j++) packed[j] = to_bf16(p[j]);
    for (int d = 0; d < r->head_dim; d++) {
        for (int j = 0; j < REF_ATTN_BLOCK; j++)
            column[j] = begin + j > r->position ? 0 : r->v[(int64_t)(begin + j) * r->head_dim + d];
        float o = s->o[d] * a;
        for (int j = 0; j < REF_ATTN_BLOCK; j += REF_MMA_GROUP)
            o = ref_mma_step(o, packed + j, column + j, REF_MMA_GROUP);
        s->o[d] = o;
    }
}

void ref_attn_output(const ref_attn_row *r, const float *values, float *out)
{
    float o[REF_ATTN_MAX_DIM], L = 0;
    for (int chunk = 0; chunk <= r->position; chunk += REF_ATTN_CHUNK) {
        chunk_state s = {.o = o};
        for (int d = 0; d < r->head_dim; d++) o[d] = 0;
        for (int b = chunk; b < chunk + REF_ATTN_CHUNK && b <= r->position; b += REF_ATTN_BLOCK) {
            block_output(r, b, values, values[REF_ATTN_BLOCK], &s);
            values += REF_ATTN_BLOCK + 1;
        }
        float l = (s.l[0] + s.l[1]) + (s.l[2] + s.l[3]);
        if (chunk == 0) {
            L = l;
            memcpy(out, o, (size_t)r->head_dim * sizeof *out);
            continue;
        }
        float keep = values[0], weight = values[1];
        values += 2;
        L = fmaf(l, weight, L * keep);
        for (int d = 0; d < r->head_dim; d++) out[d] = fmaf(o[d], weight, out[d] * keep);
    }
    for (int d = 0; d < r->head_dim; d++) out[d] = out[d] * (1.0f / L);
}
