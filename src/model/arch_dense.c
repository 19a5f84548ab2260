/* arch_dense.c - the graph of Llama, Qwen2/2.5 and Qwen3: one file, the differences are flags of
 * the config (biases, q and k norm, RoPE scaling).
 *
 * Layer: a = h + O(Attn(norm1(h))), h' = a + Down(SiLU(Gate(norm2(a))) * Up(norm2(a))). The
 * residual add of each half is fused into the norm that follows it. What attention needs between
 * its products, the output of gate and up, and the wanted rows lie in one place: no two of them are
 * alive at one time. Invariant: forward allocates nothing; buffers are sized by configure. */
#include <stdio.h>
#include <string.h>

#include "model/load.h"

typedef struct layer {
    ops_weight *attn_norm, *qkv, *q_norm, *k_norm, *o, *ffn_norm, *gate_up, *down;
} layer;

/* Those from N_OWN on lie in BUF_SHARED: qkv, q and attention behind each other. */
enum {
    BUF_H,
    BUF_X,
    BUF_Y,
    BUF_ACT,
    BUF_SHARED,
    N_OWN,
    BUF_QKV = N_OWN,
    BUF_Q,
    BUF_ATTN,
    BUF_GATE_UP,
    BUF_WANT,
    N_BUF
};

typedef struct dense {
    model base; /* first: a model is its dense */
    layer *layer;
    ops_weight *embed, *head, *out_norm; /* head == embed when tied */
    ops_rope *rope;
    float *factors; /* rope_freqs of the file, or NULL */
    float scale;    /* of the scores: d^-1/2 */
    void *buf[N_BUF];
} dense;

static corun_status run(dense *d)
{
    model *m = &d->base;
    ops *o = m->o;
    float eps = m->cfg.eps;
    void **b = d->buf;
    TRY(o->embed(o, d->embed, b[BUF_H]));
    TRY(o->norm(o, OPS_ROWS_TOK, b[BUF_H], NULL, d->layer[0].attn_norm, eps, b[BUF_X]));
    TRY(o->matmul(o, OPS_ROWS_TOK, d->layer[0].qkv, b[BUF_X], OPS_BF16, b[BUF_QKV]));
    for (int32_t i = 0; i < m->cfg.n_layer; i++) {
        const layer *l = &d->layer[i], *next = i + 1 < m->cfg.n_layer ? l + 1 : NULL;
        ops_between rest = {.o = l->o,
                            .ffn_norm = l->ffn_norm,
                            .gate_up = l->gate_up,
                            .down = l->down,
                            .next_norm = next ? next->attn_norm : NULL,
                            .next_qkv = next ? next->qkv : NULL,
                            .attn = b[BUF_ATTN],
                            .h = b[BUF_H],
                            .x = b[BUF_X],
                            .y = b[BUF_Y],
                            .pair = b[BUF_GATE_UP],
                            .act = b[BUF_ACT],
                            .qkv = b[BUF_QKV],
                            .eps = eps};
        TRY(o->qkv_post(o, i, b[BUF_QKV], l->q_norm, l->k_norm, eps, d->rope, b[BUF_Q]));
        TRY(o->attention(o, i, b[BUF_Q], d->scale, b[BUF_ATTN]));
        TRY(ops_run_between(o, &rest));
    }
    return o->norm(o, OPS_ROWS_WANT, b[BUF_H], b[BUF_Y], d->out_norm, eps, b[BUF_WANT]);
}

static corun_status forward(model *m, const step *s)
{
    ops *o = m->o;
    bool replay = false;
    TRY(o->step_put(o, s));
    if (!o->record) return run((dense *)m);
    TRY(o->record(o, &replay));
    return replay ? CORUN_OK : o->record_end(o, run((dense *)m));
}

static corun_status logits(model *m, int32_t first, int32_t n)
{
    dense *d = (dense *)m;
    return m->o->logits(m->o, d->head, d->buf[BUF_WANT], first, n);
}

static void free_bufs(dense *d)
{
    for (int i = 0; i < N_OWN; i++) d->base.o->dev_free(d->base.o, d->buf[i]);
    for (int i = 0; i < N_BUF; i++) d->buf[i] = NULL;
}

/* Bytes of n elements as dev_alloc counts them, a multiple of what any kernel reads at once. */
static corun_status elements(size_t rows, int64_t width, size_t *bytes)
{
    if (!mem_mul(rows, (size_t)width * sizeof(uint16_t), bytes) || *bytes > SIZE_MAX / 16)
        FAIL(CORUN_EINVAL, "activations of %zu rows do not fit in memory", rows);
    *bytes = (*bytes + 255) / 256 * 256;
    return CORUN_OK;
}

static corun_status configure(model *m, const ops_conf *c)
{
    dense *d = (dense *)m;
    const config *g = &m->cfg;
    ops *o = m->o;
    free_bufs(d);
    TRY(o->configure(o, c));
    int64_t q = (int64_t)g->n_head * g->d_head, kv = (int64_t)g->n_kv * g->d_head;
    int64_t width[N_BUF] = {[BUF_H] = g->n_embd,    [BUF_X] = g->n_embd,
                            [BUF_Y] = g->n_embd,    [BUF_ACT] = g->n_ff,
                            [BUF_QKV] = q + 2 * kv, [BUF_Q] = q,
                            [BUF_ATTN] = q,         [BUF_GATE_UP] = 2 * (int64_t)g->n_ff,
                            [BUF_WANT] = g->n_embd};
    size_t bytes[N_BUF] = {0};
    for (int i = 0; i < N_BUF; i++)
        TRY(elements((size_t)(i == BUF_WANT ? c->max_want : c->max_tok), width[i], &bytes[i]));
    size_t at[N_BUF] = {[BUF_Q] = bytes[BUF_QKV], [BUF_ATTN] = bytes[BUF_QKV] + bytes[BUF_Q]};
    for (int i = N_OWN; i < N_BUF; i++)
        if (at[i] + bytes[i] > bytes[BUF_SHARED]) bytes[BUF_SHARED] = at[i] + bytes[i];
    for (int i = 0; i < N_OWN; i++) TRY(o->dev_alloc(o, bytes[i], &d->buf[i]));
    for (int i = N_OWN; i < N_BUF; i++)
        d->buf[i] = (char *)d->buf[BUF_SHARED] + at[i] / 2 * (size_t)o->act_bytes;
    return CORUN_OK;
}

static void close_dense(model *m)
{
    dense *d = (dense *)m;
    ops *o = m->o;
    free_bufs(d);
    for (int32_t i = 0; d->layer && i < m->cfg.n_layer; i++) {
        ops_weight **w = (ops_weight **)&d->layer[i];
        for (size_t k = 0; k < sizeof(layer) / sizeof *w; k++) o->weight_close(o, w[k]);
    }
    if (d->head != d->embed) o->weight_close(o, d->head);
    o->weight_close(o, d->embed);
    o->weight_close(o, d->out_norm);
    o->rope_close(o, d->rope);
    o->close(o);
    mem_free(d->factors);
    mem_free(d->layer);
    mem_free(d);
}

static corun_status load_layer(load *l, int i, layer *out)
{
    const config *g = l->cfg;
    int64_t h = g->n_embd, q = (int64_t)g->n_head * g->d_head, kv = (int64_t)g->n_kv * g->d_head;
    static const load_role qkv[3] = {LOAD_Q, LOAD_K, LOAD_V}, gate_up[2] = {LOAD_GATE, LOAD_UP};
    static const load_role o = LOAD_O, down = LOAD_DOWN;
    int64_t qkv_out[3] = {q, kv, kv}, ff[2] = {g->n_ff, g->n_ff};
    TRY(load_vector(l, i, LOAD_ATTN_NORM, h, &out->attn_norm));
    TRY(load_matrix(l, i, 3, qkv, qkv_out, h, g->qkv_bias, &out->qkv));
    if (g->qk_norm) {
        TRY(load_vector(l, i, LOAD_Q_NORM, g->d_head, &out->q_norm));
        TRY(load_vector(l, i, LOAD_K_NORM, g->d_head, &out->k_norm));
    }
    TRY(load_matrix(l, i, 1, &o, &h, q, g->o_bias, &out->o));
    TRY(load_vector(l, i, LOAD_FFN_NORM, h, &out->ffn_norm));
    TRY(load_matrix(l, i, 2, gate_up, ff, h, g->mlp_bias, &out->gate_up));
    return load_matrix(l, i, 1, &down, &h, g->n_ff, g->mlp_bias, &out->down);
}

static corun_status walk(load *l, dense *d)
{
    const config *g = l->cfg;
    static const load_role embed = LOAD_EMBED, head = LOAD_HEAD;
    int64_t v = g->n_vocab, h = g->n_embd;
    TRY(load_matrix(l, -1, 1, &embed, &v, h, false, &d->embed));
    for (int32_t i = 0; i < g->n_layer; i++) TRY(load_layer(l, i, &d->layer[i]));
    TRY(load_vector(l, -1, LOAD_OUT_NORM, h, &d->out_norm));
    if (g->tied)
        d->head = d->embed;
    else
        TRY(load_matrix(l, -1, 1, &head, &v, h, false, &d->head));
    return CORUN_OK;
}

static corun_status load_all(load *l, dense *d)
{
    const config *g = l->cfg;
    float *inv_freq = NULL;
    double scale = 1;
    TRY(walk(l, d));
    TRY(load_rope_factors(l, &d->factors));
    corun_status st = CORUN_OK;
    if (!MEM_NEW(inv_freq, (size_t)g->d_head / 2)) st = CORUN_ENOMEM;
    if (st == CORUN_OK) st = config_rope_table(g, d->factors, inv_freq, &scale);
    if (st == CORUN_OK) st = l->o->rope_open(l->o, inv_freq, scale, &d->rope);
    mem_free(inv_freq);
    TRY(st);
    TRY(load_all_used(l));
    return load_digest(l, &d->base.weights);
}

/* Tables of positions stay: rope_freqs must hold what it held. */
static corun_status check_factors(load *l, const dense *d)
{
    float *f;
    size_t half = (size_t)l->cfg->d_head / 2;
    TRY(load_rope_factors(l, &f));
    bool same = !f == !d->factors && (!f || memcmp(f, d->factors, half * sizeof *f) == 0);
    mem_free(f);
    if (!same) FAIL(CORUN_EINVAL, "tensor \"rope_freqs.weight\": cannot change in a refill");
    return CORUN_OK;
}

static corun_status refill(model *m, weights *w, bool *written)
{
    dense *d = (dense *)m;
    load l = {.mode = LOAD_CHECK, .w = w, .cfg = &m->cfg, .o = m->o};
    *written = false;
    if (!MEM_NEW(l.used, weights_count(w))) return CORUN_ENOMEM;
    corun_status st = walk(&l, d);
    if (st == CORUN_OK) st = check_factors(&l, d);
    if (st == CORUN_OK) st = load_all_used(&l);
    if (st == CORUN_OK) {
        *written = true;
        l.mode = LOAD_REFILL;
        st = walk(&l, d);
    }
    if (st == CORUN_OK) st = weights_digest(w, &m->weights);
    mem_free(l.used);
    return st;
}

/* 1/sqrt(d) correctly rounded to fp32 without a library: d is a small integer. */
static float inv_sqrt(int32_t d)
{
    double x = 1.0 / (double)d, r = 1.0;
    for (int i = 0; i < 64; i++) r = 0.5 * (r + x / r);
    return (float)r;
}

corun_status model_load_on(model **out, weights *w, const config *cfg, ops *o)
{
    *out = NULL;
    dense *d = mem_alloc(1, sizeof *d, "model");
    if (!d) {
        o->close(o);
        return CORUN_ENOMEM;
    }
    d->base = (model){.cfg = *cfg,
                      .o = o,
                      .configure = configure,
                      .forward = forward,
                      .logits = logits,
                      .gguf = w && weights_is_gguf(w),
                      .refill = refill,
                      .close = close_dense};
    d->scale = inv_sqrt(cfg->d_head);
    load l = {.w = w, .cfg = cfg, .o = o};
    corun_status st = CORUN_OK;
    if (!MEM_NEW(d->layer, (size_t)cfg->n_layer) || !MEM_NEW(l.used, w ? weights_count(w) : 1))
        st = CORUN_ENOMEM;
    if (st == CORUN_OK) st = load_all(&l, d);
    mem_free(l.used);
    if (st != CORUN_OK) {
        close_dense(&d->base);
        return st;
    }
    d->base.n_param = l.n_param;
    *out = &d->base;
    return CORUN_OK;
}

void model_dims(const config *g, ops_dims *out)
{
    *out = (ops_dims){.n_layer = g->n_layer,
                      .n_embd = g->n_embd,
                      .n_head = g->n_head,
                      .n_kv = g->n_kv,
                      .d_head = g->d_head,
                      .n_ff = g->n_ff,
                      .n_vocab = g->n_vocab};
}

corun_status model_load(model **out, weights *w, const config *cfg, const ops_open_opts *oo)
{
    ops_dims d;
    ops *o;
    *out = NULL;
    model_dims(cfg, &d);
    TRY(ops_open_cpu(&o, &d, oo));
    return model_load_on(out, w, cfg, o);
}

corun_status model_load_ref(model **out, weights *w, const config *cfg, bool exact)
{
    ops_dims d;
    ops *o;
    *out = NULL;
    model_dims(cfg, &d);
    TRY(ops_open_ref(&o, &d, exact));
    return model_load_on(out, w, cfg, o);
}

void model_close(model *m)
{
    if (m) m->close(m);
}
