/* backend.h - the CUDA backend's own state, shared by its C files. */
#ifndef OPS_CUDA_BACKEND_H
#define OPS_CUDA_BACKEND_H

#include "ops/cuda/draw.h"
#include "ops/cuda/gpu.h"
#include "ops/rows.h"

#define CUDA_MAX_GRAPH 128 /* recorded shapes that are kept */

struct ops_weight {
    int64_t n_out, n_in;
    uint16_t *w;    /* [n_out rounded up to 8][n_in], the rows behind n_out are 0 */
    uint16_t *bias; /* as many, or NULL */
    size_t bytes;
};

struct ops_rope {
    ops_rope *next;
    float *inv_freq; /* [d / 2] on the host */
    double scale;
    float *cos_sin; /* [n_ctx][2][d / 2] of the last configure, on the device */
};

/* A decode shape: seen once without a recording, recorded the second time, then replayed. */
typedef struct cuda_graph {
    int32_t n_tok, n_want, max_end;
    void *exec;   /* cudaGraphExec_t, NULL: not recorded yet */
    bool between; /* between.cu is in it */
} cuda_graph;

typedef struct cuda {
    ops base; /* first: an ops is a cuda */
    gpu g;
    pool *threads; /* may be NULL */
    bool configured;
    rowset r;
    gpu_step s;
    bool shaped; /* the step is a decode step filled up to a width */
    gpu_kv kv;
    size_t page_bytes;
    gpu_attn *attn;
    const struct plan_table *plan;  /* the user's, or NULL */
    gpu_matmul *product[OPS_N_SET]; /* of each kernel set, from open to close */
    float *logits;                  /* [logit_rows][stride] */
    int64_t stride;
    gpu_between *between; /* NULL: not for these sizes */
    gpu_sampler *draws;
    char *swap; /* [n_swap][page_bytes] in host memory */
    int32_t *dev_step, *host_step;
    void *step_sent; /* cudaEvent_t: the copies from host_step have run */
    void *piece[2];  /* pinned, for weights on their way */
    void *piece_sent[2];
    size_t piece_bytes;
    uint64_t weight_bytes;
    ops_rope *ropes;
    cuda_graph graph[CUDA_MAX_GRAPH];
    int32_t n_graph, next_graph;
    cuda_graph *recording;
} cuda;

static inline cuda *cuda_of(ops *o) { return (cuda *)o; }

/* weights.c */
corun_status cuda_weight_open(ops *o, const ops_weight_spec *s, ops_weight **w);
corun_status cuda_weight_refill(ops *o, ops_weight *w, const ops_weight_spec *s);
void cuda_weight_close(ops *o, ops_weight *w);
void cuda_pieces_close(cuda *c);
corun_status cuda_rope_open(ops *o, const float *inv_freq, double scale, ops_rope **r);
void cuda_rope_close(ops *o, ops_rope *r);
/* Tables of all ropes for n_ctx positions. */
corun_status cuda_rope_tables(cuda *c, int32_t n_ctx);

/* step.c */
corun_status cuda_steps_open(cuda *c); /* after rows_open */
void cuda_steps_close(cuda *c);
corun_status cuda_step_put(ops *o, const step *s);
corun_status cuda_record(ops *o, bool *replay);
corun_status cuda_record_end(ops *o, corun_status st);
/* Buffers that a recording holds are gone. */
void cuda_graphs_drop(cuda *c);

#endif
