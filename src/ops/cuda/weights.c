/* weights.c - owns the weights and the rope tables of the CUDA backend.
 *
 * A matrix is read a piece at a time into one of two pinned buffers while the piece before it is
 * copied. Invariant: a buffer is read into again only after its copy has run; a refill keeps every
 * address, so that recorded graphs stay right. */
#include <cuda_runtime_api.h>
#include <string.h>

#include "base/mem.h"
#include "ops/cuda/backend.h"

#define PIECE_BYTES ((size_t)16 << 20)
#define PIECE_ROWS  32 /* rows are read in multiples of these, as files/weights.h asks */

#define CUDA(call, what) TRY(gpu_status((int)(call), (what)))

/* ---- pieces -------------------------------------------------------------------------------- */

void cuda_pieces_close(cuda *c)
{
    for (int i = 0; i < 2; i++) {
        if (c->piece_sent[i]) cudaEventDestroy(c->piece_sent[i]);
        gpu_free_host(c->piece[i]);
        c->piece[i] = c->piece_sent[i] = NULL;
    }
    c->piece_bytes = 0;
}

/* Room for at least `bytes` in each. */
static corun_status grow_pieces(cuda *c, size_t bytes)
{
    if (bytes < PIECE_BYTES) bytes = PIECE_BYTES;
    if (bytes <= c->piece_bytes) return CORUN_OK;
    cuda_pieces_close(c);
    for (int i = 0; i < 2; i++) {
        cudaEvent_t e;
        TRY(gpu_alloc_host(&c->piece[i], bytes, "staging memory of weights"));
        CUDA(cudaEventCreateWithFlags(&e, cudaEventDisableTiming), "event");
        c->piece_sent[i] = e;
    }
    c->piece_bytes = bytes;
    return CORUN_OK;
}

static corun_status stream_rows(cuda *c, ops_weight *w, const ops_weight_spec *s)
{
    size_t row = (size_t)w->n_in * sizeof *w->w;
    TRY(grow_pieces(c, row));
    int64_t most = (int64_t)(c->piece_bytes / row);
    if (most > PIECE_ROWS) most = most / PIECE_ROWS * PIECE_ROWS;
    int i = 0;
    for (int64_t r = 0; r < w->n_out; r += most, i ^= 1) {
        int64_t n = w->n_out - r < most ? w->n_out - r : most;
        CUDA(cudaEventSynchronize(c->piece_sent[i]), s->name);
        TRY(s->read(s->arg, r, n, c->piece[i]));
        CUDA(cudaMemcpyAsync(w->w + r * w->n_in, c->piece[i], (size_t)n * row,
                             cudaMemcpyHostToDevice, c->g.stream),
             s->name);
        CUDA(cudaEventRecord(c->piece_sent[i], c->g.stream), s->name);
    }
    return CORUN_OK;
}

static corun_status fill(cuda *c, ops_weight *w, const ops_weight_spec *s)
{
    if (s->dtype != OPS_BF16)
        FAIL(CORUN_EUNSUPPORTED, "%s: the CUDA backend takes bf16 weights only", s->name);
    if ((s->bias != NULL) != (w->bias != NULL))
        FAIL(CORUN_EINVAL, "%s: refilled with another bias", s->name);
    TRY(gpu_use(&c->g));
    if (s->read == ops_fill_read)
        TRY(gpu_fill(&c->g, s->arg, w->n_out, w->w));
    else
        TRY(stream_rows(c, w, s));
    if (s->bias)
        CUDA(cudaMemcpyAsync(w->bias, s->bias, (size_t)w->n_out * sizeof *w->bias,
                             cudaMemcpyHostToDevice, c->g.stream),
             s->name);
    return gpu_sync(&c->g, s->name);
}

corun_status cuda_weight_open(ops *o, const ops_weight_spec *s, ops_weight **out)
{
    cuda *c = cuda_of(o);
    *out = NULL;
    if (s->n_out < 1 || s->n_in < 1 || s->n_out > 1 << 30 || s->n_in > 1 << 24)
        FAIL(CORUN_EINVAL, "%s: shape %lld x %lld", s->name, (long long)s->n_out,
             (long long)s->n_in);
    ops_weight *w;
    if (!MEM_NEW(w, 1)) return CORUN_ENOMEM;
    w->n_out = s->n_out;
    w->n_in = s->n_in;
    int64_t rows = s->n_out == 1 ? 1 : (s->n_out + 7) / 8 * 8;
    size_t bytes = (size_t)rows * (size_t)s->n_in * sizeof *w->w;
    corun_status st = gpu_alloc(&c->g, (void **)&w->w, bytes, s->name);
    if (st == CORUN_OK && s->bias)
        st = gpu_alloc(&c->g, (void **)&w->bias, (size_t)rows * sizeof *w->bias, s->name);
    if (st == CORUN_OK) {
        w->bytes = bytes;
        c->weight_bytes += bytes;
        st = fill(c, w, s);
    }
    if (st != CORUN_OK) {
        cuda_weight_close(o, w);
        return st;
    }
    *out = w;
    return CORUN_OK;
}

corun_status cuda_weight_refill(ops *o, ops_weight *w, const ops_weight_spec *s)
{
    if (s->n_out != w->n_out || s->n_in != w->n_in)
        FAIL(CORUN_EINVAL, "%s: refilled with %lld x %lld, holds %lld x %lld", s->name,
             (long long)s->n_out, (long long)s->n_in, (long long)w->n_out, (long long)w->n_in);
    return fill(cuda_of(o), w, s);
}

void cuda_weight_close(ops *o, ops_weight *w)
{
    if (!w) return;
    cuda *c = cuda_of(o);
    cuda_graphs_drop(c);
    c->weight_bytes -= w->bytes;
    gpu_free(w->w);
    gpu_free(w->bias);
    mem_free(w);
}

/* ---- rope ---------------------------------------------------------------------------------- */

typedef struct rope_job {
    const ops_rope *r;
    int64_t n_ctx, half;
    float *host;
} rope_job;

static void rope_work(void *arg, int worker, int n_worker)
{
    const rope_job *j = arg;
    int64_t b, e;
    pool_slice(j->n_ctx, 1, worker, n_worker, &b, &e);
    ops_rope_rows(j->r->inv_freq, j->r->scale, j->half, b, e - b, 2 * j->half, j->host,
                  j->host + j->half);
}

static corun_status rope_table(cuda *c, ops_rope *r, int32_t n_ctx)
{
    size_t half = (size_t)c->base.dims.d_head / 2, n = (size_t)n_ctx * 2 * half;
    gpu_free(r->cos_sin);
    r->cos_sin = NULL;
    TRY(gpu_alloc(&c->g, (void **)&r->cos_sin, n * sizeof *r->cos_sin, "rope table"));
    rope_job j = {.r = r, .n_ctx = n_ctx, .half = (int64_t)half};
    j.host = mem_alloc(n, sizeof *j.host, "rope table");
    if (!j.host) return CORUN_ENOMEM;
    if (c->threads)
        pool_run(c->threads, rope_work, &j);
    else
        rope_work(&j, 0, 1);
    corun_status st = c->base.dev_put(&c->base, r->cos_sin, 0, j.host, n * sizeof *j.host);
    mem_free(j.host);
    return st;
}

corun_status cuda_rope_tables(cuda *c, int32_t n_ctx)
{
    for (ops_rope *r = c->ropes; r; r = r->next) TRY(rope_table(c, r, n_ctx));
    return CORUN_OK;
}

corun_status cuda_rope_open(ops *o, const float *inv_freq, double scale, ops_rope **out)
{
    cuda *c = cuda_of(o);
    *out = NULL;
    ops_rope *r;
    if (!MEM_NEW(r, 1)) return CORUN_ENOMEM;
    size_t half = (size_t)o->dims.d_head / 2;
    r->scale = scale;
    r->next = c->ropes;
    c->ropes = r;
    corun_status st = CORUN_ENOMEM;
    if (MEM_NEW(r->inv_freq, half)) {
        memcpy(r->inv_freq, inv_freq, half * sizeof *inv_freq);
        st = c->configured ? rope_table(c, r, o->conf.n_ctx) : CORUN_OK;
    }
    if (st != CORUN_OK) {
        cuda_rope_close(o, r);
        return st;
    }
    *out = r;
    return CORUN_OK;
}

void cuda_rope_close(ops *o, ops_rope *r)
{
    if (!r) return;
    for (ops_rope **p = &cuda_of(o)->ropes; *p; p = &(*p)->next) {
        if (*p != r) continue;
        *p = r->next;
        break;
    }
    gpu_free(r->cos_sin);
    mem_free(r->inv_freq);
    mem_free(r);
}
