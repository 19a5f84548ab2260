/* backend.h - the CPU backend's own state, shared by its files (cpu.c, pack.c). */
#ifndef OPS_CPU_BACKEND_H
#define OPS_CPU_BACKEND_H

#include "ops/cpu/cpu.h"
#include "ops/sampler.h"

typedef struct cpu_chunk cpu_chunk;

struct ops_weight {
    int64_t n_out, n_in;
    uint32_t *panel; /* a matrix */
    float *vec;      /* a vector (n_out 1): [n_in] */
    float *bias;     /* padded to whole panels, or NULL */
    cpu_chunk *chunk;
    size_t bytes;
    bool counted; /* in weight_bytes */
};

struct ops_rope {
    ops_rope *next;
    float *inv_freq; /* [d / 2] */
    double scale;
    float *cos, *sin; /* [n_ctx][d / 2] of the last configure */
};

typedef struct cpu {
    ops base; /* first: an ops is a cpu */
    pool *threads;
    cpu_kernels k;
    bool configured;
    rowset r;
    uint16_t *kv, *swap;
    cpu_kv shape;  /* of pages; data and layer are set for each call */
    float *logits; /* [logit_rows][n_vocab] */
    sampler *draws;
    float *scratch; /* of the matmul, scratch_floats a worker */
    int64_t scratch_floats;
    cpu_chunk *chunks; /* memory of the packed weights */
    uint64_t weight_bytes;
    ops_rope *ropes;
} cpu;

static inline cpu *cpu_of(ops *o) { return (cpu *)o; }

corun_status cpu_weight_open(ops *o, const ops_weight_spec *s, ops_weight **w);
corun_status cpu_weight_refill(ops *o, ops_weight *w, const ops_weight_spec *s);
void cpu_weight_close(ops *o, ops_weight *w);
void cpu_chunks_close(cpu *c);
corun_status cpu_rope_open(ops *o, const float *inv_freq, double scale, ops_rope **r);
void cpu_rope_close(ops *o, ops_rope *r);
/* Tables of all ropes for n_ctx positions. */
corun_status cpu_rope_tables(cpu *c, int32_t n_ctx);

#endif
