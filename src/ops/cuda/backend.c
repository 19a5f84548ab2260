/* backend.c - the CUDA backend's table: checks each call and launches its kernels on one stream.
 *
 * Invariant: every launch follows from the shape of the step that was put; what changes inside a
 * shape lies in device arrays. Calls that hand something to the host wait for the stream. */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "ops/cuda/attention.h"
#include "ops/cuda/backend.h"
#include "ops/cuda/matmul.h"

#include "cuda_numeric.h"

#define MAX_PRODUCT_ROWS 8192 /* of one matrix product */

/* ---- memory -------------------------------------------------------------------------------- */

static corun_status cuda_dev_alloc(ops *o, size_t bytes, void **dev)
{
    return gpu_alloc(&cuda_of(o)->g, dev, bytes, "activations");
}

static void cuda_dev_free(ops *o, void *dev)
{
    if (!dev) return;
    cuda_graphs_drop(cuda_of(o));
    gpu_free(dev);
}

static corun_status cuda_dev_put(ops *o, void *dev, size_t off, const void *host, size_t bytes)
{
    return gpu_put(&cuda_of(o)->g, (char *)dev + off, host, bytes);
}

static corun_status cuda_dev_get(ops *o, const void *dev, size_t off, void *host, size_t bytes)
{
    return gpu_get(&cuda_of(o)->g, (const char *)dev + off, host, bytes);
}

static uint64_t cuda_weight_bytes(const ops *o) { return ((const cuda *)o)->weight_bytes; }

/* ---- configuration ------------------------------------------------------------------------- */

static void unconfigure(cuda *c)
{
    c->configured = false;
    cuda_steps_close(c);
    rows_close(&c->r);
    gpu_sampler_close(c->draws);
    gpu_attn_close(c->attn);
    gpu_free(c->logits);
    gpu_free(c->kv.base);
    mem_free(c->swap);
    c->swap = NULL;
    c->draws = NULL;
    c->attn = NULL;
    c->logits = NULL;
    c->kv.base = NULL;
    c->base.n_tok = c->base.n_want = 0;
}

/* Not pinned: that takes a second for some GiB at each open, and most runs never swap. */
static corun_status open_swap(cuda *c, int32_t n_swap)
{
    size_t bytes;
    if (n_swap == 0) return CORUN_OK;
    if (!mem_mul((size_t)n_swap, c->page_bytes, &bytes))
        FAIL(CORUN_ENOMEM, "swap pages: size overflows");
    c->swap = mem_large(bytes, "swap pages");
    return c->swap ? CORUN_OK : CORUN_ENOMEM;
}

static corun_status open_pages(cuda *c, const ops_conf *f)
{
    const ops_dims *d = &c->base.dims;
    gpu_kv *k = &c->kv;
    size_t bytes;
    *k = (gpu_kv){.page_tokens = f->page_tokens, .n_kv = d->n_kv, .d_head = d->d_head};
    k->page_stride = (size_t)d->n_kv * 2 * (size_t)((d->d_head + 63) / 64) *
                     (size_t)f->page_tokens * 64 * sizeof *k->base;
    c->page_bytes = k->page_stride * (size_t)d->n_layer;
    if (!mem_mul(k->page_stride, (size_t)f->n_page, &k->layer_stride) ||
        !mem_mul(k->layer_stride, (size_t)d->n_layer, &bytes))
        FAIL(CORUN_ENOMEM, "KV pages: size overflows");
    TRY(gpu_alloc(&c->g, (void **)&k->base, bytes, "KV pages"));
    return open_swap(c, f->n_swap);
}

static corun_status configure(cuda *c, const ops_conf *f)
{
    const ops_dims *d = &c->base.dims;
    c->base.conf = *f;
    TRY(rows_open(&c->r, d, f));
    TRY(cuda_steps_open(c));
    TRY(open_pages(c, f));
    TRY(gpu_attn_open(&c->attn, &c->g, d, f, &c->kv));
    c->stride = (d->n_vocab + 7) / 8 * 8;
    TRY(gpu_alloc(&c->g, (void **)&c->logits,
                  (size_t)f->logit_rows * (size_t)c->stride * sizeof *c->logits, "logits"));
    TRY(gpu_matmul_room(c->product[OPS_SET_STANDARD],
                        f->set[OPS_OP_MATMUL] == OPS_SET_STANDARD ||
                            f->set[OPS_OP_LOGITS] == OPS_SET_STANDARD || FAULT(ORDER)));
    TRY(gpu_sampler_open(&c->draws, &c->g, d->n_vocab, f, c->logits, c->stride));
    TRY(cuda_rope_tables(c, f->n_ctx));
    return gpu_sync(&c->g, "configuration");
}

static corun_status cuda_configure(ops *o, const ops_conf *f)
{
    cuda *c = cuda_of(o);
    TRY(ops_check_conf(&o->dims, f));
    TRY(gpu_use(&c->g));
    unconfigure(c);
    corun_status st = configure(c, f);
    if (st != CORUN_OK) {
        unconfigure(c);
        return st;
    }
    c->configured = true;
    return CORUN_OK;
}

static void cuda_close(ops *o)
{
    cuda *c = cuda_of(o);
    unconfigure(c);
    while (c->ropes) cuda_rope_close(o, c->ropes);
    cuda_pieces_close(c);
    for (int i = 0; i < OPS_N_SET; i++) gpu_matmul_close(c->product[i]);
    gpu_between_close(c->between);
    gpu_close(&c->g);
    mem_free(c);
}

/* ---- ops ----------------------------------------------------------------------------------- */

static corun_status need_matrix(const ops_weight *w, int64_t n_out, int64_t n_in, const char *op)
{
    if (w->n_out == 1) FAIL(CORUN_EINVAL, "%s: a vector where a matrix is needed", op);
    return ops_need_shape(w->n_out, w->n_in, n_out, n_in, op);
}

static corun_status need_vector(const ops_weight *w, int64_t n, const char *op)
{
    return ops_need_shape(w->n_out, w->n_in, 1, n, op);
}

static corun_status cuda_embed(ops *o, const ops_weight *w, void *h)
{
    cuda *c = cuda_of(o);
    TRY(need_matrix(w, o->dims.n_vocab, o->dims.n_embd, "embed"));
    return gpu_embed(&c->g, &c->s, gpu_sampler_last(c->draws), w->w, o->dims.n_embd, h);
}

static corun_status cuda_norm(ops *o, ops_rows set, void *h, const void *y, const ops_weight *gain,
                              float eps, void *out)
{
    cuda *c = cuda_of(o);
    TRY(need_vector(gain, o->dims.n_embd, "norm"));
    return gpu_norm(&c->g, &c->s, set, h, y, gain->w, o->dims.n_embd, eps, out);
}

static corun_status cuda_matmul(ops *o, ops_rows set, const ops_weight *w, const void *x,
                                ops_dtype out_type, void *out)
{
    cuda *c = cuda_of(o);
    TRY(need_matrix(w, 0, w->n_in, "matmul"));
    if (out_type != OPS_BF16 && out_type != OPS_F32)
        FAIL(CORUN_EINVAL, "matmul: output type %d", (int)out_type);
    int32_t n_row = set == OPS_ROWS_WANT ? c->s.n_want : c->s.n_tok;
    ops_set kernels = o->conf.set[OPS_OP_MATMUL];
    if (FAULT(ORDER) && c->r.n_seq > 1) kernels = OPS_SET_STANDARD;
    size_t in = (size_t)w->n_in * 2, each = (size_t)w->n_out * (out_type == OPS_F32 ? 4 : 2);
    for (int32_t r = 0; r < n_row; r += MAX_PRODUCT_ROWS) {
        int32_t n = n_row - r < MAX_PRODUCT_ROWS ? n_row - r : MAX_PRODUCT_ROWS;
        TRY(gpu_matmul_run(c->product[kernels], n, w->n_out, w->n_in, w->w, w->bias,
                           (const char *)x + (size_t)r * in, out_type,
                           (char *)out + (size_t)r * each));
    }
    return CORUN_OK;
}

static corun_status cuda_qkv_post(ops *o, int32_t layer, const void *qkv, const ops_weight *q_gain,
                                  const ops_weight *k_gain, float eps, const ops_rope *rope,
                                  void *q)
{
    cuda *c = cuda_of(o);
    TRY(ops_need_layer(&o->dims, layer, "qkv_post"));
    if (q_gain) TRY(need_vector(q_gain, o->dims.d_head, "qkv_post"));
    if (k_gain) TRY(need_vector(k_gain, o->dims.d_head, "qkv_post"));
    return gpu_qkv_post(&c->g, &c->s, &o->dims, &c->kv, layer, qkv, q_gain ? q_gain->w : NULL,
                        k_gain ? k_gain->w : NULL, eps, rope->cos_sin, q);
}

/* With the products of the set canonical alone: its order is theirs. */
static bool takes_between(const cuda *c)
{
    return c->shaped && c->s.n_tok <= gpu_between_rows(c->between) &&
           c->base.conf.set[OPS_OP_MATMUL] == OPS_SET_CANONICAL &&
           !(FAULT(ORDER) && c->r.n_seq > 1);
}

static corun_status cuda_attention(ops *o, int32_t layer, const void *q, float scale, void *out)
{
    cuda *c = cuda_of(o);
    TRY(ops_need_layer(&o->dims, layer, "attention"));
    if (!(scale > 0.0f)) FAIL(CORUN_EINVAL, "attention: scale %g", (double)scale);
    if (FAULT(FOLD_ORDER)) gpu_attn_probe(c->attn, NULL, c->r.n_tok > c->r.n_seq, -1);
    return c->s.n_tok ? gpu_attn_run(c->attn, &c->s, layer, q, scale, out, takes_between(c))
                      : CORUN_OK;
}

static corun_status cuda_silu_mul(ops *o, const void *gate_up, void *out)
{
    cuda *c = cuda_of(o);
    return gpu_silu_mul(&c->g, c->s.n_tok, o->dims.n_ff, gate_up, out);
}

static corun_status cuda_between(ops *o, const ops_between *b, bool *done)
{
    cuda *c = cuda_of(o);
    const ops_dims *d = &o->dims;
    const int32_t q = d->n_head * d->d_head, qkv = q + 2 * d->n_kv * d->d_head;
    *done = takes_between(c);
    if (!*done) return CORUN_OK;
    TRY(need_matrix(b->o, d->n_embd, q, "between"));
    TRY(need_vector(b->ffn_norm, d->n_embd, "between"));
    TRY(need_matrix(b->gate_up, 2 * (int64_t)d->n_ff, d->n_embd, "between"));
    TRY(need_matrix(b->down, d->n_embd, d->n_ff, "between"));
    gpu_between_part p = {.w = {b->o->w, b->gate_up->w, b->down->w},
                          .bias = {b->o->bias, b->gate_up->bias, b->down->bias},
                          .gain = {b->ffn_norm->w},
                          .attn = b->attn,
                          .h = b->h,
                          .x = b->x,
                          .y = b->y,
                          .act = b->act,
                          .qkv = b->qkv,
                          .eps = b->eps};
    if (b->next_qkv) {
        TRY(need_vector(b->next_norm, d->n_embd, "between"));
        TRY(need_matrix(b->next_qkv, qkv, d->n_embd, "between"));
        p.w[3] = b->next_qkv->w;
        p.bias[3] = b->next_qkv->bias;
        p.gain[1] = b->next_norm->w;
    }
    if (c->recording) {
        c->recording->between = true;
        return gpu_between_run(c->between, c->s.n_tok, &p, true);
    }
    TRY(gpu_between_enter(c->between));
    return gpu_between_leave(c->between, gpu_between_run(c->between, c->s.n_tok, &p, false));
}

static corun_status cuda_logits(ops *o, const ops_weight *w, const void *x, int32_t first,
                                int32_t n)
{
    cuda *c = cuda_of(o);
    TRY(ops_need_logits(o, first, n));
    TRY(need_matrix(w, o->dims.n_vocab, o->dims.n_embd, "logits"));
    /* All rows of a filled up step at once: the product has the shape's rows, too. */
    int32_t rows = n;
    if (c->shaped && first == 0 && n == o->n_want && c->s.n_want <= o->conf.logit_rows)
        rows = c->s.n_want;
    if (rows == 0) return CORUN_OK;
    return gpu_matmul_run(c->product[o->conf.set[OPS_OP_LOGITS]], rows, c->stride, w->n_in, w->w,
                          w->bias, (const uint16_t *)x + (size_t)first * (size_t)w->n_in, OPS_F32,
                          c->logits);
}

static corun_status need_row(const ops *o, int32_t r)
{
    return ops_need_index(r, o->conf.logit_rows, "logits row");
}

static corun_status cuda_logits_get(ops *o, int32_t r, float *host)
{
    cuda *c = cuda_of(o);
    TRY(need_row(o, r));
    return gpu_get(&c->g, c->logits + (size_t)r * (size_t)c->stride, host,
                   (size_t)o->dims.n_vocab * sizeof *host);
}

static corun_status cuda_logits_put(ops *o, int32_t r, const float *host)
{
    cuda *c = cuda_of(o);
    TRY(need_row(o, r));
    return gpu_put(&c->g, c->logits + (size_t)r * (size_t)c->stride, host,
                   (size_t)o->dims.n_vocab * sizeof *host);
}

/* ---- sampling ------------------------------------------------------------------------------ */

static corun_status cuda_slot_put(ops *o, int32_t slot, const ops_slot *p)
{
    if (!cuda_of(o)->draws) FAIL(CORUN_EINVAL, "slot_put before configure");
    TRY(gpu_use(&cuda_of(o)->g));
    return gpu_sampler_slot_put(cuda_of(o)->draws, slot, p);
}

static corun_status cuda_sample(ops *o, int32_t n_lane, const int32_t *chunk_row,
                                const int32_t *slot, const int32_t *pos)
{
    if (!cuda_of(o)->draws) FAIL(CORUN_EINVAL, "sample before configure");
    return gpu_sampler_sample(cuda_of(o)->draws, n_lane, chunk_row, slot, pos);
}

static corun_status cuda_draw_get(ops *o, int32_t back, int32_t lane, ops_draw *out)
{
    if (!cuda_of(o)->draws) FAIL(CORUN_EINVAL, "draw_get before configure");
    return gpu_sampler_draw_get(cuda_of(o)->draws, back, lane, out);
}

static corun_status cuda_score(ops *o, int32_t n, const int32_t *target, int32_t n_top)
{
    if (!cuda_of(o)->draws) FAIL(CORUN_EINVAL, "score before configure");
    return gpu_sampler_score(cuda_of(o)->draws, n, target, n_top);
}

static corun_status cuda_score_get(ops *o, int32_t i, ops_draw *out)
{
    if (!cuda_of(o)->draws) FAIL(CORUN_EINVAL, "score_get before configure");
    return gpu_sampler_score_get(cuda_of(o)->draws, i, out);
}

/* ---- pages --------------------------------------------------------------------------------- */

static uint64_t cuda_page_bytes(const ops *o) { return ((const cuda *)o)->page_bytes; }

/* All layers of a page: `pitch` bytes lie from one layer to the next. */
static corun_status move(const cuda *c, void *to, size_t to_pitch, const void *from,
                         size_t from_pitch, const char *what)
{
    TRY(gpu_use(&c->g));
    return gpu_status((int)cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, c->kv.page_stride,
                                             (size_t)c->base.dims.n_layer, cudaMemcpyDefault,
                                             c->g.stream),
                      what);
}

static char *page_at(const cuda *c, int32_t page)
{
    return (char *)c->kv.base + (size_t)page * c->kv.page_stride;
}

static corun_status cuda_page_copy(ops *o, int32_t src, int32_t dst)
{
    cuda *c = cuda_of(o);
    TRY(ops_need_index(src, o->conf.n_page, "page"));
    TRY(ops_need_index(dst, o->conf.n_page, "page"));
    if (src == dst) return CORUN_OK;
    return move(c, page_at(c, dst), c->kv.layer_stride, page_at(c, src), c->kv.layer_stride,
                "page copy");
}

static corun_status cuda_page_out(ops *o, int32_t page, int32_t swap)
{
    cuda *c = cuda_of(o);
    TRY(ops_need_index(page, o->conf.n_page, "page"));
    TRY(ops_need_index(swap, o->conf.n_swap, "swap page"));
    return move(c, c->swap + (size_t)swap * c->page_bytes, c->kv.page_stride, page_at(c, page),
                c->kv.layer_stride, "page out");
}

static corun_status cuda_page_in(ops *o, int32_t swap, int32_t page)
{
    cuda *c = cuda_of(o);
    TRY(ops_need_index(page, o->conf.n_page, "page"));
    TRY(ops_need_index(swap, o->conf.n_swap, "swap page"));
    return move(c, page_at(c, page), c->kv.layer_stride, c->swap + (size_t)swap * c->page_bytes,
                c->kv.page_stride, "page in");
}

static corun_status cuda_page_get(ops *o, int32_t page, void *host)
{
    cuda *c = cuda_of(o);
    TRY(ops_need_index(page, o->conf.n_page, "page"));
    TRY(move(c, host, c->kv.page_stride, page_at(c, page), c->kv.layer_stride, "page"));
    return gpu_sync(&c->g, "page");
}

static corun_status cuda_page_put(ops *o, int32_t page, const void *host)
{
    cuda *c = cuda_of(o);
    TRY(ops_need_index(page, o->conf.n_page, "page"));
    TRY(move(c, page_at(c, page), c->kv.layer_stride, host, c->kv.page_stride, "page"));
    return gpu_sync(&c->g, "page");
}

static corun_status cuda_twin(const ops *o, const ops_dims *d, ops **out)
{
    const cuda *c = (const cuda *)o;
    ops_open_opts oo = {.threads = c->threads, .device = c->g.device, .plan = c->plan};
    return ops_open_cuda(out, d, &oo);
}

static const ops table = {
    .name = "cuda",
    .isa = "sm_90a",
    .act_bytes = 2,
    .lag = 1,
    .close = cuda_close,
    .twin = cuda_twin,
    .configure = cuda_configure,
    .dev_alloc = cuda_dev_alloc,
    .dev_free = cuda_dev_free,
    .dev_put = cuda_dev_put,
    .dev_get = cuda_dev_get,
    .weight_open = cuda_weight_open,
    .weight_refill = cuda_weight_refill,
    .weight_close = cuda_weight_close,
    .weight_bytes = cuda_weight_bytes,
    .rope_open = cuda_rope_open,
    .rope_close = cuda_rope_close,
    .step_put = cuda_step_put,
    .record = cuda_record,
    .record_end = cuda_record_end,
    .slot_put = cuda_slot_put,
    .embed = cuda_embed,
    .norm = cuda_norm,
    .matmul = cuda_matmul,
    .qkv_post = cuda_qkv_post,
    .attention = cuda_attention,
    .silu_mul = cuda_silu_mul,
    .between = cuda_between,
    .logits = cuda_logits,
    .logits_get = cuda_logits_get,
    .logits_put = cuda_logits_put,
    .sample = cuda_sample,
    .draw_get = cuda_draw_get,
    .score = cuda_score,
    .score_get = cuda_score_get,
    .page_bytes = cuda_page_bytes,
    .page_copy = cuda_page_copy,
    .page_out = cuda_page_out,
    .page_in = cuda_page_in,
    .page_get = cuda_page_get,
    .page_put = cuda_page_put,
};

/* What each kernel set is built to meet; `audit` asks the device. Row kernels and sampling are the
 * same in all sets. */
static void declare(ops *o)
{
    static const ops_level product[OPS_N_SET] = {[OPS_SET_STANDARD] = OPS_LEVEL_POSITION,
                                                 [OPS_SET_FIXED] = OPS_LEVEL_PHASE,
                                                 [OPS_SET_CANONICAL] = OPS_LEVEL_PHASE};
    static const ops_level attention[OPS_N_SET] = {[OPS_SET_STANDARD] = OPS_LEVEL_RUN,
                                                   [OPS_SET_FIXED] = OPS_LEVEL_BATCH,
                                                   [OPS_SET_CANONICAL] = OPS_LEVEL_PHASE};
    for (int s = 0; s < OPS_N_SET; s++) {
        for (int i = 0; i < OPS_N_OP; i++) o->level[s][i] = OPS_LEVEL_PHASE;
        o->level[s][OPS_OP_MATMUL] = o->level[s][OPS_OP_LOGITS] = product[s];
        o->level[s][OPS_OP_ATTN_DECODE] = o->level[s][OPS_OP_ATTN_PREFILL] = attention[s];
    }
}

/* What there is to say of the plans of the kernel sets, each thing once. */
static void note_plans(cuda *c)
{
    ops *o = &c->base;
    const plan_table *t = NULL;
    o->note[0] = 0;
    for (int i = 0; i < OPS_N_SET; i++) {
        const char *text = gpu_matmul_note(c->product[i]);
        size_t n = strlen(o->note);
        if (*text && !strstr(o->note, text))
            snprintf(o->note + n, sizeof o->note - n, "%s%s", n ? "; " : "", text);
        if (!t) t = gpu_matmul_table(c->product[i]);
    }
    if (t && !*o->note) plan_missing(t, &o->dims, o->note, sizeof o->note);
}

/* All of the machine and its libraries that can move a bit. */
static corun_status describe(cuda *c)
{
    char plans[OPS_N_SET][33];
    ops *o = &c->base;
    for (int i = 0; i < OPS_N_SET; i++) gpu_matmul_digest(c->product[i], plans[i]);
    int n = snprintf(o->machine, sizeof o->machine,
                     "%s, %d SMs, cuBLASLt %zu, %s, kernels %s, plans %s %s %s", c->g.name,
                     c->g.sm_count, c->g.lt_version, CUDA_COMPILER, CUDA_NUMERIC_DIGEST, plans[0],
                     plans[1], plans[2]);
    if (n < 0 || (size_t)n >= sizeof o->machine)
        FAIL(CORUN_EINTERNAL, "the description of the machine is too long");
    snprintf(o->label, sizeof o->label, "%s", c->g.name);
    note_plans(c);
    return CORUN_OK;
}

static corun_status open_device(cuda *c, int device)
{
    TRY(gpu_open(&c->g, device));
    for (int i = 0; i < OPS_N_SET; i++)
        TRY(gpu_matmul_open_plan(&c->product[i], &c->g, (ops_set)i, c->plan));
    TRY(gpu_between_open(&c->between, &c->g, &c->base.dims));
    return describe(c);
}

corun_status ops_open_cuda(ops **out, const ops_dims *d, const ops_open_opts *opts)
{
    *out = NULL;
    TRY(ops_check_dims(d));
    if (d->d_head != 64 && d->d_head != 128)
        FAIL(CORUN_EUNSUPPORTED, "head dimension %d: the CUDA backend has kernels for 64 and 128",
             d->d_head);
    if (d->n_embd > GPU_MAX_EMBD)
        FAIL(CORUN_EUNSUPPORTED, "n_embd %d: the CUDA backend takes at most %d", d->n_embd,
             GPU_MAX_EMBD);
    if (d->n_embd % 8 || d->n_ff % 8)
        FAIL(CORUN_EUNSUPPORTED, "n_embd %d, n_ff %d: the CUDA backend takes multiples of 8",
             d->n_embd, d->n_ff);
    cuda *c;
    if (!MEM_NEW(c, 1)) return CORUN_ENOMEM;
    c->base = table;
    c->base.dims = *d;
    c->threads = opts->threads;
    c->plan = opts->plan;
    declare(&c->base);
    corun_status st = open_device(c, opts->device);
    if (st != CORUN_OK) {
        cuda_close(&c->base);
        return st;
    }
    *out = &c->base;
    return CORUN_OK;
}
