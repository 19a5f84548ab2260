/* gpu.h - what the files of the CUDA backend share: the device, a step as kernels see it, and the
 * calls of each family of ops. C and CUDA C both include it.
 *
 * Invariant: a kernel reads what changes from step to step (tokens, positions, pages, live rows)
 * from the arrays of gpu_step, never from its arguments, so that a captured graph of one shape
 * serves every step of that shape. The host fields of gpu_step tell only the shape.
 *
 * Layout of the KV pool: [layer][page][kv head][K, V][d / 64][page_tokens][64] bf16, the 16-byte
 * pieces of each 128-byte line XOR (token & 7): the 128-byte swizzle that ldmatrix, wgmma and bulk
 * copies read as it lies. */
#ifndef OPS_CUDA_GPU_H
#define OPS_CUDA_GPU_H

#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

#define GPU_MAX_EMBD     16384 /* elements of a row that norm keeps in registers */
#define GPU_BETWEEN_ROWS 32    /* most rows of between.cu */

/* One device and one stream; everything of a backend runs on it. */
typedef struct gpu {
    int device, sm_count, cc; /* cc: 90 is Hopper */
    char name[64];
    void *stream; /* cudaStream_t */
    void *lt;     /* cublasLtHandle_t */
    size_t lt_version;
} gpu;

/* The first Hopper device, or number want where it is not -1. CORUN_EINVAL names a variable of the
 * environment that would change what a library computes; CORUN_EUNSUPPORTED: not Hopper. After a
 * failure gpu_close is still due. */
corun_status gpu_open(gpu *g, int want);
void gpu_close(gpu *g);
/* Makes the device the calling thread's: a model may be used by another thread than opened it.
 * gpu_alloc, gpu_put and gpu_get do it themselves. */
corun_status gpu_use(const gpu *g);
/* Loads cuBLASLt (lt.c); gpu_open has done it. Callers include <cublasLt.h> and call its functions
 * by their names; an entry point that is not in the list of lt.c is added there. */
corun_status gpu_lt_load(void);

/* CORUN_EDEVICE with CUDA's own words when `code` (a cudaError_t) is one. */
corun_status gpu_status(int code, const char *what);
/* Device memory, 256-byte aligned and zeroed; CORUN_ENOMEM names `what` and the bytes. */
corun_status gpu_alloc(const gpu *g, void **dev, size_t bytes, const char *what);
void gpu_free(void *dev);
/* Pinned host memory, zeroed. */
corun_status gpu_alloc_host(void **host, size_t bytes, const char *what);
void gpu_free_host(void *host);
/* Copies to the device and from it, done on return. */
corun_status gpu_put(const gpu *g, void *dev, const void *host, size_t bytes);
corun_status gpu_get(const gpu *g, const void *dev, void *host, size_t bytes);
/* Waits for the stream; an error of an earlier launch is told here. */
corun_status gpu_sync(const gpu *g, const char *what);

/* The step that was put. Pointers are device memory and stay the same after configure. */
typedef struct gpu_step {
    int32_t *tok_id;   /* [max_tok] host id, or -1: the last drawn token of tok_slot */
    int32_t *tok_slot; /* [max_tok] */
    int32_t *tok_pos;  /* [max_tok] absolute position */
    int32_t *tok_row;  /* [max_tok] row of the step; -1: a dead row's token, which has no effect */
    int32_t *row_tok;  /* [max_row + 1] first token row of each row */
    int32_t *row_pos;  /* [max_row] position of its first token; -1: a dead row */
    int32_t *row_len;  /* [max_row] q_len (1 of a dead row) */
    int32_t *page;     /* [max_row][max_page] */
    int32_t *want_tok; /* [max_want] token row of each wanted row */
    int32_t max_row, max_tok, max_want, max_page;
    /* host: the shape. Live rows come first; a decode step is filled up to its width with dead rows
     * (their token is id 0 at position 0), and its n_want with token row 0. */
    step_kind kind;
    int32_t n_row, n_tok, n_want;
    int32_t max_q;   /* longest q_len */
    int32_t max_end; /* at least the longest pos + q_len: rounded up, so that one recorded graph
                        serves many steps. It moves the size of a launch, never a bit */
} gpu_step;

typedef struct gpu_kv {
    uint16_t *base;
    size_t layer_stride, page_stride; /* bytes */
    int32_t page_tokens, n_kv, d_head;
} gpu_kv;

/* ---- attention.cu ------------------------------------------------------------------------- */

typedef struct gpu_attn gpu_attn;
/* Workspace for the largest step of c. CORUN_EUNSUPPORTED names a head dimension, a group or a page
 * size that no kernel takes. kv is copied. */
corun_status gpu_attn_open(gpu_attn **out, const gpu *g, const ops_dims *d, const ops_conf *c,
                           const gpu_kv *kv);
void gpu_attn_close(gpu_attn *a);
/* Once a step, after its arrays are there: the work of the step, made on the device. */
corun_status gpu_attn_plan(gpu_attn *a, const gpu_step *s);
/* out[tok][n_head d] = causal attention of q[tok][n_head d] over the pages of each row. The set is
 * conf.set of the phase: rows of one token are decode, longer ones prefill. next_early: the next
 * kernel may start before this one's end (gpu_between_run waits for it; a library's may not). */
corun_status gpu_attn_run(gpu_attn *a, const gpu_step *s, int32_t layer, const void *q, float scale,
                          void *out, bool next_early);

/* ---- matmul.c ------------------------------------------------------------------------------ */

typedef struct gpu_matmul gpu_matmul;
/* The workspace that products of the set standard run with: taken where they are used, else given
 * back. The other sets have none. */
corun_status gpu_matmul_room(gpu_matmul *m, bool used);
void gpu_matmul_close(gpu_matmul *m);
/* Finds and keeps the plan of a shape, so that run finds it without a search: outside a step. */
corun_status gpu_matmul_prepare(gpu_matmul *m, int32_t rows, int64_t n_out, int64_t n_in, bool bias,
                                ops_dtype out_type);
/* out[rows][n_out] = x[rows][n_in] w[n_out][n_in]^T (+ bias bf16 [n_out]), all on the device. */
corun_status gpu_matmul_run(gpu_matmul *m, int32_t rows, int64_t n_out, int64_t n_in, const void *w,
                            const void *bias, const void *x, ops_dtype out_type, void *out);
/* Digest of the plan table and of the rule that picks without one: part of the identity. */
void gpu_matmul_digest(const gpu_matmul *m, char hex[33]);

/* ---- between.cu ---------------------------------------------------------------------------- */

typedef struct gpu_between gpu_between;
/* Of a layer: o, gate and up, down, then the next layer's qkv (all of it NULL behind the last one).
 * Weights as matmul takes them; bias bf16 or NULL; gain: of the norm before gate and up, and of the
 * one before qkv. */
typedef struct gpu_between_part {
    const void *w[4], *bias[4], *gain[2];
    const void *attn;
    void *h, *x, *y, *act, *qkv;
    float eps;
} gpu_between_part;
/* *out NULL: it does not take these sizes or this device, has no room for all of its CTAs at once,
 * or programs share the device's SMs (MPS). */
corun_status gpu_between_open(gpu_between **out, const gpu *g, const ops_dims *d);
/* Most rows of a step that it takes; 0 for NULL. */
int32_t gpu_between_rows(const gpu_between *b);
void gpu_between_close(gpu_between *b);
/* The ops in their order for the first `rows` rows (1 to gpu_between_rows), with their bits: y = o
 * attn, h += y, x = norm(h), act = silu(gate x) up x, y = down act, and where there is a next layer
 * h += y, x = norm(h), qkv x. early: it may start before the end of the kernel before; so in a
 * recording, but not where its own turn (below) stands between the two. */
corun_status gpu_between_run(gpu_between *b, int32_t rows, const gpu_between_part *p, bool early);
/* Its CTAs wait for each other, so two instances of a process must not each have some of a device.
 * Around run, or around the launch of a graph that was recorded with it: behind enter the stream
 * waits for the last other instance that left. leave is due after an enter that did not fail, takes
 * the status of what was launched and returns it or its own. */
corun_status gpu_between_enter(const gpu_between *b);
corun_status gpu_between_leave(const gpu_between *b, corun_status st);

/* ---- rows.cu -------------------------------------------------------------------------------- */

/* The arrays of a step from pinned host memory, which the kernel reads itself: one launch instead
 * of copies of which each waits for an engine of its own. pages: of the longest row. */
corun_status gpu_step_in(const gpu *g, const gpu_step *to, const gpu_step *from, int32_t pages);

/* Arithmetic of each: docs/numerics.md, section 2. Sizes by gpu_step; bf16 rows. */
corun_status gpu_embed(const gpu *g, const gpu_step *s, const int32_t *last_token, const void *w,
                       int32_t n_embd, void *h);
corun_status gpu_norm(const gpu *g, const gpu_step *s, ops_rows rows, void *h, const void *y,
                      const void *gain, int32_t n_embd, float eps, void *out);
corun_status gpu_qkv_post(const gpu *g, const gpu_step *s, const ops_dims *d, const gpu_kv *kv,
                          int32_t layer, const void *qkv, const void *q_gain, const void *k_gain,
                          float eps, const float *cos_sin, void *q);
corun_status gpu_silu_mul(const gpu *g, int32_t n_tok, int32_t n_ff, const void *gate_up,
                          void *out);
/* out[n] = 2^x of x[n] as this device's kernels have it (for tests). */
corun_status gpu_ex2(const gpu *g, int64_t n, const float *x, float *out);
/* w[n_out][f->n_in] as ops_fill_read gives it. */
corun_status gpu_fill(const gpu *g, const ops_fill *f, int64_t n_out, void *w);

#ifdef __cplusplus
}
#endif
#endif
