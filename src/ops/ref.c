/* ref.c - the oracle backend: one output at a time, sums in double, the roundings where
 * docs/numerics.md has them; or exact: no rounding at all, activations and KV kept as doubles.
 *
 * Invariant: an activation is reached only by get and put, an element at its index, so both modes
 * run the same code. In exact mode a buffer holds four times the bytes; host copies are bf16. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/num.h"
#include "ops/rows.h"
#include "ops/sampler.h"

#define BLOCK 128
#define CHUNK 512
#define LOG2E 0x1.71547652b82fep+0
#define MAX_D 256

struct ops_weight {
    int64_t n_out, n_in;
    uint16_t *b16; /* [n_out][n_in], or */
    float *f32;
    double *bias; /* [n_out] or NULL */
};

struct ops_rope {
    float *inv_freq;
    double scale;
};

typedef struct ref {
    ops base;
    bool exact, configured;
    rowset r;
    size_t elem;  /* bytes of an activation and of a KV element */
    int64_t page; /* elements a page: [layer][K, V][kv head][token][d] */
    char *kv, *swap;
    float *logits;
    sampler *draws;
    double *x; /* one row, widened */
    int64_t n_x;
    uint64_t weight_bytes;
} ref;

static ref *ref_of(ops *o) { return (ref *)o; }

static double get(const ref *r, const void *p, int64_t i)
{
    return r->exact ? ((const double *)p)[i] : (double)ops_bf16_wide(((const uint16_t *)p)[i]);
}

static void put(const ref *r, void *p, int64_t i, double v)
{
    if (r->exact)
        ((double *)p)[i] = v;
    else
        ((uint16_t *)p)[i] = ops_bf16_round((float)v);
}

/* A value that numerics.md rounds to bf16. */
static double bf16(const ref *r, double v)
{
    return r->exact ? v : (double)ops_bf16_wide(ops_bf16_round((float)v));
}

static double weight_at(const ops_weight *w, int64_t i)
{
    return w->f32 ? (double)w->f32[i] : (double)ops_bf16_wide(w->b16[i]);
}

/* ---- memory and weights -------------------------------------------------------------------- */

static corun_status ref_dev_alloc(ops *o, size_t bytes, void **dev)
{
    size_t n = 0;
    *dev = NULL;
    if (!mem_mul(bytes, ref_of(o)->elem / 2, &n)) FAIL(CORUN_ENOMEM, "activations: size overflows");
    *dev = mem_aligned(64, n, "activations");
    return *dev ? CORUN_OK : CORUN_ENOMEM;
}

static void ref_dev_free(ops *o, void *dev)
{
    (void)o;
    mem_free(dev);
}

static corun_status ref_dev_put(ops *o, void *dev, size_t off, const void *host, size_t bytes)
{
    if (!ref_of(o)->exact)
        memcpy((char *)dev + off, host, bytes);
    else
        for (size_t i = 0; i < bytes / 2; i++)
            ((double *)dev)[off / 2 + i] = ops_bf16_wide(((const uint16_t *)host)[i]);
    return CORUN_OK;
}

static corun_status ref_dev_get(ops *o, const void *dev, size_t off, void *host, size_t bytes)
{
    if (!ref_of(o)->exact)
        memcpy(host, (const char *)dev + off, bytes);
    else
        for (size_t i = 0; i < bytes / 2; i++)
            ((uint16_t *)host)[i] = ops_bf16_round((float)((const double *)dev)[off / 2 + i]);
    return CORUN_OK;
}

static void ref_weight_close(ops *o, ops_weight *w)
{
    if (!w) return;
    ref_of(o)->weight_bytes -= (uint64_t)(w->n_out * w->n_in) * (w->f32 ? 4 : w->b16 ? 2 : 0);
    mem_free(w->b16);
    mem_free(w->f32);
    mem_free(w->bias);
    mem_free(w);
}

static corun_status ref_weight_refill(ops *o, ops_weight *w, const ops_weight_spec *s)
{
    (void)o;
    if (s->n_out != w->n_out || s->n_in != w->n_in || (s->dtype == OPS_F32) != (w->f32 != NULL))
        FAIL(CORUN_EINVAL, "%s: refilled with another shape or type", s->name);
    if ((s->bias != NULL) != (w->bias != NULL))
        FAIL(CORUN_EINVAL, "%s: refilled with another bias", s->name);
    for (int64_t i = 0; s->bias && i < w->n_out; i++) w->bias[i] = ops_bf16_wide(s->bias[i]);
    return s->read(s->arg, 0, w->n_out, w->f32 ? (void *)w->f32 : (void *)w->b16);
}

static corun_status ref_weight_open(ops *o, const ops_weight_spec *s, ops_weight **out)
{
    ref *r = ref_of(o);
    *out = NULL;
    if (s->dtype != OPS_BF16 && s->dtype != OPS_F32)
        FAIL(CORUN_EUNSUPPORTED, "%s: the reference takes bf16 and fp32 weights", s->name);
    if (s->n_out < 1 || s->n_in < 1 || s->n_out > 1 << 30 || s->n_in > 1 << 24)
        FAIL(CORUN_EINVAL, "%s: shape %lld x %lld", s->name, (long long)s->n_out,
             (long long)s->n_in);
    ops_weight *w;
    if (!MEM_NEW(w, 1)) return CORUN_ENOMEM;
    w->n_out = s->n_out;
    w->n_in = s->n_in;
    size_t n = (size_t)(s->n_out * s->n_in);
    corun_status st = CORUN_ENOMEM;
    bool f32 = s->dtype == OPS_F32;
    if (f32 ? !MEM_NEW(w->f32, n) : !MEM_NEW(w->b16, n)) goto fail;
    r->weight_bytes += n * (f32 ? 4 : 2);
    if (s->bias && !MEM_NEW(w->bias, (size_t)s->n_out)) goto fail;
    if (r->n_x < s->n_in) {
        double *x;
        if (!MEM_NEW(x, (size_t)s->n_in)) goto fail;
        mem_free(r->x);
        r->x = x;
        r->n_x = s->n_in;
    }
    if ((st = ref_weight_refill(o, w, s)) != CORUN_OK) goto fail;
    *out = w;
    return CORUN_OK;
fail:
    ref_weight_close(o, w);
    return st;
}

static uint64_t ref_weight_bytes(const ops *o) { return ((const ref *)o)->weight_bytes; }

static corun_status ref_rope_open(ops *o, const float *inv_freq, double scale, ops_rope **out)
{
    *out = NULL;
    size_t half = (size_t)o->dims.d_head / 2;
    ops_rope *p;
    if (!MEM_NEW(p, 1)) return CORUN_ENOMEM;
    if (!MEM_NEW(p->inv_freq, half)) {
        mem_free(p);
        return CORUN_ENOMEM;
    }
    memcpy(p->inv_freq, inv_freq, half * sizeof *inv_freq);
    p->scale = scale;
    *out = p;
    return CORUN_OK;
}

static void ref_rope_close(ops *o, ops_rope *p)
{
    (void)o;
    if (p) mem_free(p->inv_freq);
    mem_free(p);
}

/* ---- configuration ------------------------------------------------------------------------- */

static void unconfigure(ref *r)
{
    r->configured = false;
    rows_close(&r->r);
    mem_free(r->kv);
    mem_free(r->swap);
    mem_free(r->logits);
    sampler_close(r->draws);
    r->kv = r->swap = NULL;
    r->logits = NULL;
    r->draws = NULL;
    r->base.n_tok = r->base.n_want = 0;
}

static uint64_t ref_page_bytes(const ops *o)
{
    const ref *r = (const ref *)o;
    return (uint64_t)r->page * r->elem;
}

static corun_status configure(ref *r, const ops_conf *f)
{
    const ops_dims *d = &r->base.dims;
    r->base.conf = *f;
    r->page = (int64_t)d->n_layer * 2 * d->n_kv * f->page_tokens * d->d_head;
    TRY(rows_open(&r->r, d, f));
    size_t bytes = ref_page_bytes(&r->base);
    if (!(r->kv = mem_alloc((size_t)f->n_page, bytes, "KV pages"))) return CORUN_ENOMEM;
    if (!(r->swap = mem_alloc((size_t)f->n_swap, bytes, "swap pages"))) return CORUN_ENOMEM;
    if (!MEM_NEW(r->logits, (size_t)f->logit_rows * (size_t)d->n_vocab)) return CORUN_ENOMEM;
    TRY(sampler_open(&r->draws, d->n_vocab, f, NULL, "ref"));
    return CORUN_OK;
}

static corun_status ref_configure(ops *o, const ops_conf *f)
{
    ref *r = ref_of(o);
    TRY(ops_check_conf(&o->dims, f));
    unconfigure(r);
    corun_status st = configure(r, f);
    if (st != CORUN_OK) {
        unconfigure(r);
        return st;
    }
    r->configured = true;
    return CORUN_OK;
}

static void ref_close(ops *o)
{
    ref *r = ref_of(o);
    unconfigure(r);
    mem_free(r->x);
    mem_free(r);
}

/* ---- ops ----------------------------------------------------------------------------------- */

static corun_status ref_step_put(ops *o, const step *s)
{
    ref *r = ref_of(o);
    if (!r->configured) FAIL(CORUN_EINVAL, "step before configure");
    corun_status st = rows_put(&r->r, s);
    for (int32_t i = 0; i < r->r.n_tok; i++)
        if (r->r.id[i] < 0) r->r.id[i] = sampler_last_token(r->draws, r->r.slot[i]);
    o->n_tok = r->r.n_tok;
    o->n_want = r->r.n_want;
    return st;
}

static corun_status ref_embed(ops *o, const ops_weight *w, void *h)
{
    ref *r = ref_of(o);
    TRY(ops_need_shape(w->n_out, w->n_in, o->dims.n_vocab, o->dims.n_embd, "embed"));
    for (int64_t t = 0; t < o->n_tok; t++)
        for (int64_t k = 0; k < w->n_in; k++)
            put(r, h, t * w->n_in + k, weight_at(w, r->r.id[t] * w->n_in + k));
    return CORUN_OK;
}

/* out[at ...] = the norm of x[n], in double. */
static void norm_row(const ref *r, const double *x, int64_t n, const ops_weight *gain, float eps,
                     double *out)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * x[i];
    double f = 1.0 / sqrt(sum / (double)n + (double)eps);
    for (int64_t i = 0; i < n; i++) out[i] = bf16(r, weight_at(gain, i) * bf16(r, x[i] * f));
}

static corun_status ref_norm(ops *o, ops_rows set, void *h, const void *y, const ops_weight *gain,
                             float eps, void *out)
{
    ref *r = ref_of(o);
    int64_t n = o->dims.n_embd, n_row = set == OPS_ROWS_WANT ? o->n_want : o->n_tok;
    TRY(ops_need_shape(gain->n_out, gain->n_in, 1, n, "norm"));
    for (int64_t i = 0; i < n_row; i++) {
        int64_t at = (set == OPS_ROWS_WANT ? r->r.want[i] : i) * n;
        for (int64_t k = 0; k < n; k++) {
            r->x[k] = get(r, h, at + k);
            if (y) r->x[k] = bf16(r, r->x[k] + get(r, y, at + k));
            if (y && set == OPS_ROWS_TOK) put(r, h, at + k, r->x[k]);
        }
        norm_row(r, r->x, n, gain, eps, r->x);
        for (int64_t k = 0; k < n; k++) put(r, out, i * n + k, r->x[k]);
    }
    return CORUN_OK;
}

/* Sum of x w in double, four at a time: the order is no part of the oracle. */
static double dot(const double *x, const ops_weight *w, int64_t o)
{
    double s[4] = {0};
    int64_t n = w->n_in, k = 0;
    for (; k + 4 <= n; k += 4)
        for (int i = 0; i < 4; i++) s[i] += x[k + i] * weight_at(w, o * n + k + i);
    for (; k < n; k++) s[0] += x[k] * weight_at(w, o * n + k);
    return (s[0] + s[1]) + (s[2] + s[3]);
}

static void product_row(ref *r, const ops_weight *w, const void *x, int64_t row, bool f32,
                        void *out, int64_t out_row, bool logits)
{
    for (int64_t k = 0; k < w->n_in; k++) r->x[k] = get(r, x, row * w->n_in + k);
    for (int64_t o = 0; o < w->n_out; o++) {
        double v = dot(r->x, w, o) + (w->bias ? w->bias[o] : 0.0);
        int64_t at = out_row * w->n_out + o;
        if (logits || (f32 && !r->exact))
            ((float *)out)[at] = (float)v;
        else
            put(r, out, at, v);
    }
}

static corun_status ref_matmul(ops *o, ops_rows set, const ops_weight *w, const void *x,
                               ops_dtype out_type, void *out)
{
    if (out_type != OPS_BF16 && out_type != OPS_F32)
        FAIL(CORUN_EINVAL, "matmul: output type %d", (int)out_type);
    int64_t n_row = set == OPS_ROWS_WANT ? o->n_want : o->n_tok;
    for (int64_t i = 0; i < n_row; i++)
        product_row(ref_of(o), w, x, i, out_type == OPS_F32, out, i, false);
    return CORUN_OK;
}

/* Address of K (which 0) or V (1) of a position: d elements. */
static char *kv_at(const ref *r, int32_t seq, int64_t pos, int32_t layer, int which, int64_t head)
{
    const ops_dims *d = &r->base.dims;
    int64_t pt = r->base.conf.page_tokens, page = rows_pages(&r->r, seq)[pos / pt];
    int64_t at = (((int64_t)layer * 2 + which) * d->n_kv + head) * pt + pos % pt;
    return r->kv + (size_t)(page * r->page + at * d->d_head) * r->elem;
}

static corun_status ref_qkv_post(ops *o, int32_t layer, const void *qkv, const ops_weight *q_gain,
                                 const ops_weight *k_gain, float eps, const ops_rope *rope, void *q)
{
    ref *r = ref_of(o);
    const ops_dims *m = &o->dims;
    const int64_t d = m->d_head, half = d / 2, n_head = m->n_head + 2 * (int64_t)m->n_kv;
    TRY(ops_need_layer(m, layer, "qkv_post"));
    if (q_gain) TRY(ops_need_shape(q_gain->n_out, q_gain->n_in, 1, d, "qkv_post"));
    if (k_gain) TRY(ops_need_shape(k_gain->n_out, k_gain->n_in, 1, d, "qkv_post"));
    for (int64_t i = 0; i < o->n_tok * n_head; i++) {
        int64_t t = i / n_head, h = i % n_head;
        int32_t pos = r->r.pos[t], seq = r->r.seq[t];
        double x[MAX_D];
        for (int64_t k = 0; k < d; k++) x[k] = get(r, qkv, i * d + k);
        if (h >= m->n_head + m->n_kv) {
            char *v = kv_at(r, seq, pos, layer, 1, h - m->n_head - m->n_kv);
            for (int64_t k = 0; k < d; k++) put(r, v, k, x[k]);
            continue;
        }
        const ops_weight *gain = h < m->n_head ? q_gain : k_gain;
        if (gain) norm_row(r, x, d, gain, eps, x);
        char *to = h < m->n_head ? (char *)q + (size_t)((t * m->n_head + h) * d) * r->elem
                                 : kv_at(r, seq, pos, layer, 0, h - m->n_head);
        for (int64_t k = 0; k < half; k++) {
            double angle = (double)((float)pos * rope->inv_freq[k]);
            double c = num_cos(angle) * rope->scale, s = num_sin(angle) * rope->scale;
            put(r, to, k, x[k] * c - x[k + half] * s);
            put(r, to, k + half, x[k + half] * c + x[k] * s);
        }
    }
    return CORUN_OK;
}

typedef struct soft {
    double t, l, o[MAX_D];
} soft;

/* Blocks of 128 keys: the maximum that a probability is rounded against runs as on the CPU. */
static void soft_block(const ref *r, soft *s, const double *q, int32_t seq, int32_t layer,
                       int64_t g, int32_t pos, int32_t start, double c)
{
    const int64_t d = r->base.dims.d_head;
    double p[BLOCK], top = -INFINITY;
    int n = pos - start + 1 < BLOCK ? pos - start + 1 : BLOCK;
    for (int j = 0; j < n; j++) {
        const char *k = kv_at(r, seq, start + j, layer, 0, g);
        p[j] = 0;
        for (int64_t i = 0; i < d; i++) p[j] += q[i] * get(r, k, i);
        top = p[j] > top ? p[j] : top;
    }
    double t = s->t > c * top ? s->t : c * top;
    double base = t == -INFINITY ? 0.0 : t, a = num_exp2(s->t - base);
    s->t = t;
    s->l *= a;
    for (int64_t i = 0; i < d; i++) s->o[i] *= a;
    for (int j = 0; j < n; j++) {
        const char *v = kv_at(r, seq, start + j, layer, 1, g);
        p[j] = num_exp2(p[j] * c - base);
        s->l += p[j];
        for (int64_t i = 0; i < d; i++) s->o[i] += bf16(r, p[j]) * get(r, v, i);
    }
}

static corun_status ref_attention(ops *o, int32_t layer, const void *q, float scale, void *out)
{
    ref *r = ref_of(o);
    const ops_dims *m = &o->dims;
    const int64_t d = m->d_head;
    TRY(ops_need_layer(m, layer, "attention"));
    for (int64_t i = 0; i < (int64_t)o->n_tok * m->n_head; i++) {
        int64_t t = i / m->n_head, g = i % m->n_head / (m->n_head / m->n_kv);
        int32_t pos = r->r.pos[t];
        double x[MAX_D], O[MAX_D] = {0}, T = -INFINITY, L = 0;
        for (int64_t k = 0; k < d; k++) x[k] = get(r, q, i * d + k);
        for (int32_t chunk = 0; chunk <= pos; chunk += CHUNK) {
            soft s = {.t = -INFINITY};
            for (int32_t b = chunk; b < chunk + CHUNK && b <= pos; b += BLOCK)
                soft_block(r, &s, x, r->r.seq[t], layer, g, pos, b, (double)scale * LOG2E);
            double top = T > s.t ? T : s.t, base = top == -INFINITY ? 0.0 : top;
            double A = num_exp2(T - base), B = num_exp2(s.t - base);
            T = top;
            L = L * A + s.l * B;
            for (int64_t k = 0; k < d; k++) O[k] = O[k] * A + s.o[k] * B;
        }
        for (int64_t k = 0; k < d; k++) put(r, out, i * d + k, O[k] / L);
    }
    return CORUN_OK;
}

static corun_status ref_silu_mul(ops *o, const void *gate_up, void *out)
{
    ref *r = ref_of(o);
    const int64_t n = o->dims.n_ff;
    for (int64_t t = 0; t < o->n_tok; t++)
        for (int64_t i = 0; i < n; i++) {
            double g = get(r, gate_up, t * 2 * n + i);
            double s = bf16(r, g / (1.0 + num_exp2(-g * LOG2E)));
            put(r, out, t * n + i, s * get(r, gate_up, t * 2 * n + n + i));
        }
    return CORUN_OK;
}

static corun_status ref_logits(ops *o, const ops_weight *w, const void *x, int32_t first, int32_t n)
{
    TRY(ops_need_shape(w->n_out, w->n_in, o->dims.n_vocab, o->dims.n_embd, "logits"));
    TRY(ops_need_logits(o, first, n));
    ref *r = ref_of(o);
    for (int32_t i = 0; i < n; i++) product_row(r, w, x, first + i, true, r->logits, i, true);
    return CORUN_OK;
}

static corun_status ref_logits_get(ops *o, int32_t i, float *host)
{
    TRY(ops_need_index(i, o->conf.logit_rows, "logits row"));
    size_t n = (size_t)o->dims.n_vocab;
    memcpy(host, ref_of(o)->logits + (size_t)i * n, n * sizeof *host);
    return CORUN_OK;
}

static corun_status ref_logits_put(ops *o, int32_t i, const float *host)
{
    TRY(ops_need_index(i, o->conf.logit_rows, "logits row"));
    size_t n = (size_t)o->dims.n_vocab;
    memcpy(ref_of(o)->logits + (size_t)i * n, host, n * sizeof *host);
    return CORUN_OK;
}

/* ---- sampling: ops/sampler.h over the logits buffer ------------------------------------------ */

static corun_status ref_slot_put(ops *o, int32_t slot, const ops_slot *s)
{
    if (!ref_of(o)->draws) FAIL(CORUN_EINVAL, "slot_put before configure");
    return sampler_slot_put(ref_of(o)->draws, slot, s);
}

static corun_status ref_sample(ops *o, int32_t n_lane, const int32_t *chunk_row,
                               const int32_t *slot, const int32_t *pos)
{
    if (!ref_of(o)->draws) FAIL(CORUN_EINVAL, "sample before configure");
    return sampler_sample(ref_of(o)->draws, ref_of(o)->logits, o->conf.logit_rows, n_lane,
                          chunk_row, slot, pos);
}

static corun_status ref_draw_get(ops *o, int32_t back, int32_t lane, ops_draw *out)
{
    if (!ref_of(o)->draws) FAIL(CORUN_EINVAL, "draw_get before configure");
    return sampler_draw_get(ref_of(o)->draws, back, lane, out);
}

static corun_status ref_score(ops *o, int32_t n, const int32_t *target, int32_t n_top)
{
    if (!ref_of(o)->draws) FAIL(CORUN_EINVAL, "score before configure");
    return sampler_score(ref_of(o)->draws, ref_of(o)->logits, n, target, n_top);
}

static corun_status ref_score_get(ops *o, int32_t i, ops_draw *out)
{
    if (!ref_of(o)->draws) FAIL(CORUN_EINVAL, "score_get before configure");
    return sampler_score_get(ref_of(o)->draws, i, out);
}

/* ---- pages --------------------------------------------------------------------------------- */

static corun_status page_at(ops *o, bool swap, int32_t i, char **p)
{
    ref *r = ref_of(o);
    TRY(ops_need_index(i, swap ? o->conf.n_swap : o->conf.n_page, swap ? "swap page" : "page"));
    *p = (swap ? r->swap : r->kv) + (size_t)i * ref_page_bytes(o);
    return CORUN_OK;
}

static corun_status move_page(ops *o, bool from_swap, int32_t src, bool to_swap, int32_t dst)
{
    char *a, *b;
    TRY(page_at(o, from_swap, src, &a));
    TRY(page_at(o, to_swap, dst, &b));
    memmove(b, a, ref_page_bytes(o));
    return CORUN_OK;
}

static corun_status ref_page_copy(ops *o, int32_t src, int32_t dst)
{
    return move_page(o, false, src, false, dst);
}

static corun_status ref_page_out(ops *o, int32_t page, int32_t swap)
{
    return move_page(o, false, page, true, swap);
}

static corun_status ref_page_in(ops *o, int32_t swap, int32_t page)
{
    return move_page(o, true, swap, false, page);
}

static corun_status ref_page_get(ops *o, int32_t page, void *host)
{
    char *p;
    TRY(page_at(o, false, page, &p));
    memcpy(host, p, ref_page_bytes(o));
    return CORUN_OK;
}

static corun_status ref_page_put(ops *o, int32_t page, const void *host)
{
    char *p;
    TRY(page_at(o, false, page, &p));
    memcpy(p, host, ref_page_bytes(o));
    return CORUN_OK;
}

static const ops table = {
    .name = "ref",
    .isa = "scalar",
    .close = ref_close,
    .configure = ref_configure,
    .dev_alloc = ref_dev_alloc,
    .dev_free = ref_dev_free,
    .dev_put = ref_dev_put,
    .dev_get = ref_dev_get,
    .weight_open = ref_weight_open,
    .weight_refill = ref_weight_refill,
    .weight_close = ref_weight_close,
    .weight_bytes = ref_weight_bytes,
    .rope_open = ref_rope_open,
    .rope_close = ref_rope_close,
    .step_put = ref_step_put,
    .embed = ref_embed,
    .norm = ref_norm,
    .matmul = ref_matmul,
    .qkv_post = ref_qkv_post,
    .attention = ref_attention,
    .silu_mul = ref_silu_mul,
    .logits = ref_logits,
    .logits_get = ref_logits_get,
    .logits_put = ref_logits_put,
    .slot_put = ref_slot_put,
    .sample = ref_sample,
    .draw_get = ref_draw_get,
    .score = ref_score,
    .score_get = ref_score_get,
    .page_bytes = ref_page_bytes,
    .page_copy = ref_page_copy,
    .page_out = ref_page_out,
    .page_in = ref_page_in,
    .page_get = ref_page_get,
    .page_put = ref_page_put,
};

corun_status ops_open_ref(ops **out, const ops_dims *d, bool exact)
{
    *out = NULL;
    TRY(ops_check_dims(d));
    ref *r;
    if (!MEM_NEW(r, 1)) return CORUN_ENOMEM;
    r->base = table;
    r->base.dims = *d;
    for (int s = 0; s < OPS_N_SET; s++)
        for (int i = 0; i < OPS_N_OP; i++) r->base.level[s][i] = OPS_LEVEL_PHASE;
    r->exact = exact;
    r->elem = exact ? sizeof(double) : 2;
    r->base.act_bytes = (int32_t)r->elem;
    *out = &r->base;
    return CORUN_OK;
}
