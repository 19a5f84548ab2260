/* cpu.c - the CPU backend: checks each call, makes the job, runs it on the pool.
 *
 * Every op is one pool_run over outputs. Invariant: what a row gets depends on its own row, its
 * pages and the weights alone, so every op meets the level phase, whatever the kernel set. */
#include <math.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "ops/cpu/backend.h"

#define LOG2_E 0x1.71547652b82fep+0

#define DECLARE(isa)                                                                               \
    cpu_kernel k_norm_##isa, k_matmul_##isa, k_qkv_post_##isa, k_attention_##isa, k_silu_mul_##isa;
#define KERNELS(name)                                                                              \
    {                                                                                              \
        .isa = #name, .norm = k_norm_##name, .matmul = k_matmul_##name,                            \
        .qkv_post = k_qkv_post_##name, .attention = k_attention_##name,                            \
        .silu_mul = k_silu_mul_##name                                                              \
    }

DECLARE(generic)
#ifdef CPU_HAVE_avx2
DECLARE(avx2)
#endif
#ifdef CPU_HAVE_avx512
DECLARE(avx512)
#endif
#ifdef CPU_HAVE_neon
DECLARE(neon)
#endif

static const cpu_kernels kernels[] = {
    KERNELS(generic),
#ifdef CPU_HAVE_avx2
    KERNELS(avx2),
#endif
#ifdef CPU_HAVE_avx512
    KERNELS(avx512),
#endif
#ifdef CPU_HAVE_neon
    KERNELS(neon),
#endif
};

/* ---- memory -------------------------------------------------------------------------------- */

static corun_status cpu_dev_alloc(ops *o, size_t bytes, void **dev)
{
    (void)o;
    *dev = mem_large(bytes, "activations"); /* touched only as far as steps are long */
    return *dev ? CORUN_OK : CORUN_ENOMEM;
}

static void cpu_dev_free(ops *o, void *dev)
{
    (void)o;
    mem_free(dev);
}

static corun_status cpu_dev_put(ops *o, void *dev, size_t off, const void *host, size_t bytes)
{
    (void)o;
    memcpy((char *)dev + off, host, bytes);
    return CORUN_OK;
}

static corun_status cpu_dev_get(ops *o, const void *dev, size_t off, void *host, size_t bytes)
{
    (void)o;
    memcpy(host, (const char *)dev + off, bytes);
    return CORUN_OK;
}

static uint64_t cpu_weight_bytes(const ops *o) { return ((const cpu *)o)->weight_bytes; }

/* ---- configuration ------------------------------------------------------------------------- */

static void unconfigure(cpu *c)
{
    c->configured = false;
    rows_close(&c->r);
    mem_free(c->kv);
    mem_free(c->swap);
    mem_free(c->logits);
    sampler_close(c->draws);
    c->kv = c->swap = NULL;
    c->logits = NULL;
    c->draws = NULL;
    c->base.n_tok = c->base.n_want = 0;
}

static corun_status take_pages(uint16_t **out, size_t n, int64_t page, const char *what)
{
    size_t bytes;
    if (!mem_mul(n, (size_t)page * 2, &bytes)) FAIL(CORUN_ENOMEM, "%s: size overflows", what);
    *out = mem_large(bytes, what);
    return *out ? CORUN_OK : CORUN_ENOMEM;
}

static corun_status configure(cpu *c, const ops_conf *f)
{
    const ops_dims *d = &c->base.dims;
    c->base.conf = *f;
    cpu_kv *k = &c->shape;
    *k = (cpu_kv){.page_tokens = f->page_tokens, .n_head = d->n_head, .n_kv = d->n_kv};
    k->d = d->d_head;
    k->dp = (d->d_head + CPU_PANEL - 1) / CPU_PANEL * CPU_PANEL;
    k->head = (int64_t)(k->d + k->dp) * k->page_tokens;
    k->page = k->head * k->n_kv * d->n_layer;
    TRY(rows_open(&c->r, d, f));
    TRY(take_pages(&c->kv, (size_t)f->n_page, k->page, "KV pages"));
    memset(c->kv, 0, (size_t)f->n_page * (size_t)k->page * 2);
    TRY(take_pages(&c->swap, (size_t)f->n_swap, k->page, "swap pages")); /* touched when used */
    c->logits =
        mem_aligned(64, (size_t)f->logit_rows * (size_t)d->n_vocab * sizeof *c->logits, "logits");
    if (!c->logits) return CORUN_ENOMEM;
    TRY(sampler_open(&c->draws, d->n_vocab, f, c->threads, c->base.isa));
    return cpu_rope_tables(c, f->n_ctx);
}

static corun_status cpu_configure(ops *o, const ops_conf *f)
{
    cpu *c = cpu_of(o);
    TRY(ops_check_conf(&o->dims, f));
    unconfigure(c);
    corun_status st = configure(c, f);
    if (st != CORUN_OK) {
        unconfigure(c);
        return st;
    }
    c->configured = true;
    return CORUN_OK;
}

static void cpu_close(ops *o)
{
    cpu *c = cpu_of(o);
    unconfigure(c);
    while (c->ropes) cpu_rope_close(o, c->ropes);
    cpu_chunks_close(c);
    mem_free(c->scratch);
    mem_free(c);
}

/* ---- ops ----------------------------------------------------------------------------------- */

static corun_status cpu_step_put(ops *o, const step *s)
{
    cpu *c = cpu_of(o);
    if (!c->configured) FAIL(CORUN_EINVAL, "step before configure");
    corun_status st = rows_put(&c->r, s);
    for (int32_t i = 0; i < c->r.n_tok; i++)
        if (c->r.id[i] < 0) c->r.id[i] = sampler_last_token(c->draws, c->r.slot[i]);
    o->n_tok = c->r.n_tok;
    o->n_want = c->r.n_want;
    return st;
}

static corun_status need_matrix(const ops_weight *w, int64_t n_out, int64_t n_in, const char *op)
{
    if (!w->panel) FAIL(CORUN_EINVAL, "%s: a vector where a matrix is needed", op);
    return ops_need_shape(w->n_out, w->n_in, n_out, n_in, op);
}

static corun_status need_vector(const ops_weight *w, int64_t n, const char *op)
{
    return ops_need_shape(w->n_out, w->n_in, 1, n, op);
}

static void embed_work(void *arg, int worker, int n_worker)
{
    const cpu_embed_job *j = arg;
    int64_t b, e;
    pool_slice(j->n_row, 1, worker, n_worker, &b, &e);
    for (int64_t r = b; r < e; r++) {
        int64_t o = j->id[r] % CPU_PANEL;
        const uint32_t *line = j->panel + j->id[r] / CPU_PANEL * j->n_in * 16 + o % 16;
        int shift = o < 16 ? 0 : 16;
        for (int64_t k = 0; k < j->n_in; k++)
            j->out[r * j->n_in + k] = (uint16_t)(line[k * 16] >> shift);
    }
}

static corun_status cpu_embed(ops *o, const ops_weight *w, void *h)
{
    cpu *c = cpu_of(o);
    TRY(need_matrix(w, o->dims.n_vocab, o->dims.n_embd, "embed"));
    cpu_embed_job j = {
        .panel = w->panel, .n_in = w->n_in, .n_row = o->n_tok, .id = c->r.id, .out = h};
    pool_run(c->threads, embed_work, &j);
    return CORUN_OK;
}

static corun_status cpu_norm(ops *o, ops_rows set, void *h, const void *y, const ops_weight *gain,
                             float eps, void *out)
{
    cpu *c = cpu_of(o);
    TRY(need_vector(gain, o->dims.n_embd, "norm"));
    cpu_norm_job j = {
        .n = o->dims.n_embd, .h = h, .y = y, .gain = gain->vec, .eps = eps, .out = out};
    j.n_row = set == OPS_ROWS_WANT ? o->n_want : o->n_tok;
    j.row = set == OPS_ROWS_WANT ? c->r.want : NULL;
    pool_run(c->threads, c->k.norm, &j);
    return CORUN_OK;
}

static void run_matmul(cpu *c, const ops_weight *w, const void *x, int64_t n_row, bool f32,
                       void *out)
{
    cpu_matmul_job j = {.panel = w->panel,
                        .n_out = w->n_out,
                        .n_in = w->n_in,
                        .n_row = n_row,
                        .bias = w->bias,
                        .x = x,
                        .f32 = f32,
                        .out = out,
                        .scratch = c->scratch,
                        .scratch_floats = c->scratch_floats};
#ifdef CORUN_BREAK
    /* Planted: with more than one live sequence, K is cut at a place that their number picks. */
    if (FAULT(ORDER)) j.cut = CPU_KB * ((c->r.n_seq - 1) % ((w->n_in + CPU_KB - 1) / CPU_KB));
#endif
    if (n_row > 0) pool_run(c->threads, c->k.matmul, &j);
}

static corun_status cpu_matmul(ops *o, ops_rows set, const ops_weight *w, const void *x,
                               ops_dtype out_type, void *out)
{
    TRY(need_matrix(w, 0, w->n_in, "matmul"));
    if (out_type != OPS_BF16 && out_type != OPS_F32)
        FAIL(CORUN_EINVAL, "matmul: output type %d", (int)out_type);
    int64_t n_row = set == OPS_ROWS_WANT ? o->n_want : o->n_tok;
    run_matmul(cpu_of(o), w, x, n_row, out_type == OPS_F32, out);
    return CORUN_OK;
}

static cpu_kv kv_of(const cpu *c, int32_t layer)
{
    cpu_kv k = c->shape;
    k.data = c->kv;
    k.layer = layer * k.n_kv * k.head;
    return k;
}

static corun_status cpu_qkv_post(ops *o, int32_t layer, const void *qkv, const ops_weight *q_gain,
                                 const ops_weight *k_gain, float eps, const ops_rope *rope, void *q)
{
    cpu *c = cpu_of(o);
    TRY(ops_need_layer(&o->dims, layer, "qkv_post"));
    if (q_gain) TRY(need_vector(q_gain, o->dims.d_head, "qkv_post"));
    if (k_gain) TRY(need_vector(k_gain, o->dims.d_head, "qkv_post"));
    cpu_qkv_job j = {.r = &c->r,
                     .kv = kv_of(c, layer),
                     .qkv = qkv,
                     .eps = eps,
                     .cos = rope->cos,
                     .sin = rope->sin,
                     .q = q};
    j.q_gain = q_gain ? q_gain->vec : NULL;
    j.k_gain = k_gain ? k_gain->vec : NULL;
    pool_run(c->threads, c->k.qkv_post, &j);
    return CORUN_OK;
}

static corun_status cpu_attention(ops *o, int32_t layer, const void *q, float scale, void *out)
{
    cpu *c = cpu_of(o);
    TRY(ops_need_layer(&o->dims, layer, "attention"));
    if (!(scale > 0.0f)) FAIL(CORUN_EINVAL, "attention: scale %g", (double)scale);
    cpu_attn_job j = {.r = &c->r, .kv = kv_of(c, layer), .q = q, .out = out};
    j.c = (float)((double)scale * LOG2_E);
    for (int32_t i = 0; i < o->n_tok; i++) j.cost += c->r.pos[i] + 1;
    j.cost *= o->dims.n_head;
    pool_run(c->threads, c->k.attention, &j);
    return CORUN_OK;
}

static corun_status cpu_silu_mul(ops *o, const void *gate_up, void *out)
{
    cpu *c = cpu_of(o);
    cpu_silu_job j = {.n_ff = o->dims.n_ff, .n_row = o->n_tok, .gate_up = gate_up, .out = out};
    pool_run(c->threads, c->k.silu_mul, &j);
    return CORUN_OK;
}

static corun_status cpu_logits(ops *o, const ops_weight *w, const void *x, int32_t first, int32_t n)
{
    cpu *c = cpu_of(o);
    TRY(need_matrix(w, o->dims.n_vocab, o->dims.n_embd, "logits"));
    TRY(ops_need_logits(o, first, n));
    run_matmul(c, w, (const uint16_t *)x + (int64_t)first * w->n_in, n, true, c->logits);
    return CORUN_OK;
}

static corun_status cpu_logits_get(ops *o, int32_t r, float *host)
{
    TRY(ops_need_index(r, o->conf.logit_rows, "logits row"));
    size_t n = (size_t)o->dims.n_vocab;
    memcpy(host, cpu_of(o)->logits + (size_t)r * n, n * sizeof *host);
    return CORUN_OK;
}

static corun_status cpu_logits_put(ops *o, int32_t r, const float *host)
{
    TRY(ops_need_index(r, o->conf.logit_rows, "logits row"));
    size_t n = (size_t)o->dims.n_vocab;
    memcpy(cpu_of(o)->logits + (size_t)r * n, host, n * sizeof *host);
    return CORUN_OK;
}

/* ---- sampling: ops/sampler.h over the logits buffer ------------------------------------------ */

static corun_status cpu_slot_put(ops *o, int32_t slot, const ops_slot *s)
{
    if (!cpu_of(o)->draws) FAIL(CORUN_EINVAL, "slot_put before configure");
    return sampler_slot_put(cpu_of(o)->draws, slot, s);
}

static corun_status cpu_sample(ops *o, int32_t n_lane, const int32_t *chunk_row,
                               const int32_t *slot, const int32_t *pos)
{
    if (!cpu_of(o)->draws) FAIL(CORUN_EINVAL, "sample before configure");
    return sampler_sample(cpu_of(o)->draws, cpu_of(o)->logits, o->conf.logit_rows, n_lane,
                          chunk_row, slot, pos);
}

static corun_status cpu_draw_get(ops *o, int32_t back, int32_t lane, ops_draw *out)
{
    if (!cpu_of(o)->draws) FAIL(CORUN_EINVAL, "draw_get before configure");
    return sampler_draw_get(cpu_of(o)->draws, back, lane, out);
}

static corun_status cpu_score(ops *o, int32_t n, const int32_t *target, int32_t n_top)
{
    if (!cpu_of(o)->draws) FAIL(CORUN_EINVAL, "score before configure");
    return sampler_score(cpu_of(o)->draws, cpu_of(o)->logits, n, target, n_top);
}

static corun_status cpu_score_get(ops *o, int32_t i, ops_draw *out)
{
    if (!cpu_of(o)->draws) FAIL(CORUN_EINVAL, "score_get before configure");
    return sampler_score_get(cpu_of(o)->draws, i, out);
}

/* ---- pages --------------------------------------------------------------------------------- */

static uint64_t cpu_page_bytes(const ops *o) { return (uint64_t)((const cpu *)o)->shape.page * 2; }

static corun_status cpu_page_copy(ops *o, int32_t src, int32_t dst)
{
    cpu *c = cpu_of(o);
    TRY(ops_need_index(src, o->conf.n_page, "page"));
    TRY(ops_need_index(dst, o->conf.n_page, "page"));
    if (src != dst)
        memcpy(c->kv + dst * c->shape.page, c->kv + src * c->shape.page, cpu_page_bytes(o));
    return CORUN_OK;
}

static corun_status cpu_page_out(ops *o, int32_t page, int32_t swap)
{
    cpu *c = cpu_of(o);
    TRY(ops_need_index(page, o->conf.n_page, "page"));
    TRY(ops_need_index(swap, o->conf.n_swap, "swap page"));
    memcpy(c->swap + swap * c->shape.page, c->kv + page * c->shape.page, cpu_page_bytes(o));
    return CORUN_OK;
}

static corun_status cpu_page_in(ops *o, int32_t swap, int32_t page)
{
    cpu *c = cpu_of(o);
    TRY(ops_need_index(page, o->conf.n_page, "page"));
    TRY(ops_need_index(swap, o->conf.n_swap, "swap page"));
    memcpy(c->kv + page * c->shape.page, c->swap + swap * c->shape.page, cpu_page_bytes(o));
    return CORUN_OK;
}

static corun_status cpu_page_get(ops *o, int32_t page, void *host)
{
    cpu *c = cpu_of(o);
    TRY(ops_need_index(page, o->conf.n_page, "page"));
    memcpy(host, c->kv + page * c->shape.page, cpu_page_bytes(o));
    return CORUN_OK;
}

static corun_status cpu_page_put(ops *o, int32_t page, const void *host)
{
    cpu *c = cpu_of(o);
    TRY(ops_need_index(page, o->conf.n_page, "page"));
    memcpy(c->kv + page * c->shape.page, host, cpu_page_bytes(o));
    return CORUN_OK;
}

static corun_status cpu_twin(const ops *o, const ops_dims *d, ops **out)
{
    ops_open_opts oo = {.threads = ((const cpu *)o)->threads, .isa = o->isa};
    return ops_open_cpu(out, d, &oo);
}

static const ops table = {
    .name = "cpu",
    .act_bytes = 2,
    .close = cpu_close,
    .twin = cpu_twin,
    .configure = cpu_configure,
    .dev_alloc = cpu_dev_alloc,
    .dev_free = cpu_dev_free,
    .dev_put = cpu_dev_put,
    .dev_get = cpu_dev_get,
    .weight_open = cpu_weight_open,
    .weight_refill = cpu_weight_refill,
    .weight_close = cpu_weight_close,
    .weight_bytes = cpu_weight_bytes,
    .rope_open = cpu_rope_open,
    .rope_close = cpu_rope_close,
    .step_put = cpu_step_put,
    .embed = cpu_embed,
    .norm = cpu_norm,
    .matmul = cpu_matmul,
    .qkv_post = cpu_qkv_post,
    .attention = cpu_attention,
    .silu_mul = cpu_silu_mul,
    .logits = cpu_logits,
    .logits_get = cpu_logits_get,
    .logits_put = cpu_logits_put,
    .slot_put = cpu_slot_put,
    .sample = cpu_sample,
    .draw_get = cpu_draw_get,
    .score = cpu_score,
    .score_get = cpu_score_get,
    .page_bytes = cpu_page_bytes,
    .page_copy = cpu_page_copy,
    .page_out = cpu_page_out,
    .page_in = cpu_page_in,
    .page_get = cpu_page_get,
    .page_put = cpu_page_put,
};

corun_status ops_open_cpu(ops **out, const ops_dims *d, const ops_open_opts *opts)
{
    *out = NULL;
    TRY(ops_check_dims(d));
    if (!opts->threads) FAIL(CORUN_EINVAL, "the CPU backend needs a thread pool");
    const char *isa = ops_isa_pick(opts->isa);
    if (!isa)
        FAIL(CORUN_EUNSUPPORTED, "instruction set \"%s\" cannot run here or is unknown", opts->isa);
    cpu *c;
    if (!MEM_NEW(c, 1)) return CORUN_ENOMEM;
    c->base = table;
    c->base.dims = *d;
    c->base.isa = isa;
    for (int s = 0; s < OPS_N_SET; s++)
        for (int i = 0; i < OPS_N_OP; i++) c->base.level[s][i] = OPS_LEVEL_PHASE;
    c->threads = opts->threads;
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (strcmp(kernels[i].isa, isa) == 0) c->k = kernels[i];
    *out = &c->base;
    return CORUN_OK;
}
