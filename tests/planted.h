/* planted.h - a backend that forwards to another and plants one fault in one op of one kernel set,
 * so that what looks for such faults is seen to find them.
 * Invariant: without a plant every byte is the other backend's. */
#ifndef TESTS_PLANTED_H
#define TESTS_PLANTED_H

#include <stdlib.h>
#include <string.h>

#include "base/seed.h"
#include "ops/cpu/backend.h"

typedef enum plant_kind {
    PLANT_NONE,
    PLANT_CALLS,     /* some calls give other bits: not repeatable */
    PLANT_UNWRITTEN, /* an element of each row is left as it was */
    PLANT_SLOT,      /* bits by the slot */
    PLANT_ROW,       /* bits by the row's place */
    PLANT_BESIDE,    /* bits by the position of another row of the step */
    PLANT_STALE,     /* reads a page that nobody owns */
    PLANT_SHAPE,     /* bits by the number of rows, dead ones included */
    PLANT_CUT,       /* a chunk of a prompt has other bits than a decode step */
    PLANT_N
} plant_kind;

enum { PLANTED_MAX = 4096 };

typedef struct planted {
    ops base; /* first: an ops is a planted */
    ops *inner;
    plant_kind kind;
    ops_op op;
    ops_set set;
    uint64_t n_call;
    /* of the step that was put: its live tokens */
    int32_t n_row, n_tok;
    struct {
        int32_t slot, row, q_len, beside;
    } tok[PLANTED_MAX];
} planted;

static inline planted *planted_of(const ops *o) { return (planted *)(uintptr_t)o; }

static inline bool planted_acts(planted *p, ops_op op)
{
    return p->kind != PLANT_NONE && p->op == op && p->base.conf.set[op] == p->set;
}

/* Whether the output of live token i has a wrong bit. */
static inline bool planted_wrong(planted *p, int32_t i)
{
    switch (p->kind) {
    case PLANT_CALLS: return seed_mix(p->n_call) % 2;
    case PLANT_SLOT: return p->tok[i].slot > 0 && p->tok[i].slot % 2;
    case PLANT_ROW: return p->n_row > 2 && p->tok[i].row == p->n_row - 1;
    case PLANT_BESIDE: return p->tok[i].beside % 2;
    case PLANT_SHAPE: return p->n_row > 4;
    case PLANT_CUT: return p->tok[i].q_len > 1;
    case PLANT_STALE: {
        uint64_t n = p->base.page_bytes(&p->base);
        unsigned char *page = malloc(n);
        bool bad = page &&
                   p->inner->page_get(p->inner, p->base.conf.n_page - 1, page) == CORUN_OK &&
                   page[n / 2] == 0xff;
        free(page);
        return bad;
    }
    default: return false;
    }
}

/* Flips the lowest bit of the first element of the wrong rows of out. */
static inline corun_status planted_spoil(planted *p, ops_op op, void *out, size_t row_bytes,
                                         int32_t n)
{
    if (!planted_acts(p, op)) return CORUN_OK;
    p->n_call++;
    for (int32_t i = 0; i < n && i < PLANTED_MAX; i++) {
        unsigned char b;
        if (p->kind == PLANT_UNWRITTEN) {
            b = (unsigned char)(++p->n_call); /* what was there before the call: not the same */
            TRY(p->base.dev_put(&p->base, out, (size_t)i * row_bytes, &b, 1));
            continue;
        }
        if (!planted_wrong(p, i)) continue;
        TRY(p->base.dev_get(&p->base, out, (size_t)i * row_bytes, &b, 1));
        b ^= 1;
        TRY(p->base.dev_put(&p->base, out, (size_t)i * row_bytes, &b, 1));
    }
    return CORUN_OK;
}

#define IN(o) (planted_of(o)->inner)

static inline void planted_sync(ops *o)
{
    o->conf = IN(o)->conf;
    o->n_tok = IN(o)->n_tok;
    o->n_want = IN(o)->n_want;
}

static inline void planted_close(ops *o)
{
    IN(o)->close(IN(o));
    free(planted_of(o));
}

static inline corun_status planted_configure(ops *o, const ops_conf *c)
{
    corun_status st = IN(o)->configure(IN(o), c);
    planted_sync(o);
    return st;
}

static inline corun_status planted_step_put(ops *o, const step *s)
{
    planted *p = planted_of(o);
    corun_status st = IN(o)->step_put(IN(o), s);
    planted_sync(o);
    p->n_row = s->n_row;
    p->n_tok = 0;
    for (int32_t r = 0; r < s->n_row; r++) {
        const step_row *w = &s->row[r];
        for (int32_t i = 0; w->seq >= 0 && i < w->q_len && p->n_tok < PLANTED_MAX;
             i++, p->n_tok++) {
            p->tok[p->n_tok].slot = w->slot;
            p->tok[p->n_tok].row = r;
            p->tok[p->n_tok].q_len = w->q_len;
            p->tok[p->n_tok].beside = s->n_row > 1 ? s->row[(r + 1) % s->n_row].pos : 0;
        }
    }
    return st;
}

static inline corun_status planted_embed(ops *o, const ops_weight *w, void *h)
{
    TRY(IN(o)->embed(IN(o), w, h));
    return planted_spoil(planted_of(o), OPS_OP_EMBED, h, (size_t)o->dims.n_embd * 2, o->n_tok);
}

static inline corun_status planted_norm(ops *o, ops_rows rows, void *h, const void *y,
                                        const ops_weight *gain, float eps, void *out)
{
    TRY(IN(o)->norm(IN(o), rows, h, y, gain, eps, out));
    if (rows == OPS_ROWS_WANT) return CORUN_OK;
    return planted_spoil(planted_of(o), OPS_OP_NORM, out, (size_t)o->dims.n_embd * 2, o->n_tok);
}

static inline corun_status planted_matmul(ops *o, ops_rows rows, const ops_weight *w, const void *x,
                                          ops_dtype type, void *out)
{
    TRY(IN(o)->matmul(IN(o), rows, w, x, type, out));
    return planted_spoil(planted_of(o), OPS_OP_MATMUL, out,
                         (size_t)w->n_out * (type == OPS_F32 ? 4 : 2), o->n_tok);
}

static inline corun_status planted_qkv_post(ops *o, int32_t layer, const void *qkv,
                                            const ops_weight *qg, const ops_weight *kg, float eps,
                                            const ops_rope *rope, void *q)
{
    TRY(IN(o)->qkv_post(IN(o), layer, qkv, qg, kg, eps, rope, q));
    return planted_spoil(planted_of(o), OPS_OP_QKV_POST, q,
                         (size_t)(o->dims.n_head * o->dims.d_head) * 2, o->n_tok);
}

static inline corun_status planted_attention(ops *o, int32_t layer, const void *q, float scale,
                                             void *out)
{
    planted *p = planted_of(o);
    size_t bytes = (size_t)(o->dims.n_head * o->dims.d_head) * 2;
    TRY(IN(o)->attention(IN(o), layer, q, scale, out));
    bool decode = planted_acts(p, OPS_OP_ATTN_DECODE),
         prefill = planted_acts(p, OPS_OP_ATTN_PREFILL);
    if (!decode && !prefill) return CORUN_OK;
    p->n_call++;
    for (int32_t i = 0; i < o->n_tok; i++) {
        unsigned char b;
        if ((p->tok[i].q_len > 1) != prefill || !planted_wrong(p, i)) continue;
        TRY(o->dev_get(o, out, (size_t)i * bytes, &b, 1));
        b ^= 1;
        TRY(o->dev_put(o, out, (size_t)i * bytes, &b, 1));
    }
    return CORUN_OK;
}

static inline corun_status planted_silu_mul(ops *o, const void *gate_up, void *out)
{
    TRY(IN(o)->silu_mul(IN(o), gate_up, out));
    return planted_spoil(planted_of(o), OPS_OP_SILU_MUL, out, (size_t)o->dims.n_ff * 2, o->n_tok);
}

static inline corun_status planted_logits(ops *o, const ops_weight *w, const void *x, int32_t first,
                                          int32_t n)
{
    planted *p = planted_of(o);
    TRY(IN(o)->logits(IN(o), w, x, first, n));
    if (!planted_acts(p, OPS_OP_LOGITS)) return CORUN_OK;
    p->n_call++;
    float *row = malloc((size_t)o->dims.n_vocab * sizeof *row);
    corun_status st = row ? CORUN_OK : CORUN_ENOMEM;
    for (int32_t i = 0; i < n && st == CORUN_OK; i++) {
        if (!planted_wrong(p, first + i)) continue; /* all tokens of the step are wanted */
        st = IN(o)->logits_get(IN(o), i, row);
        ((uint32_t *)(void *)row)[0] ^= 1;
        if (st == CORUN_OK) st = IN(o)->logits_put(IN(o), i, row);
    }
    free(row);
    return st;
}

static inline corun_status planted_draw_get(ops *o, int32_t back, int32_t lane, ops_draw *d)
{
    planted *p = planted_of(o);
    TRY(IN(o)->draw_get(IN(o), back, lane, d));
    if (!planted_acts(p, OPS_OP_SAMPLE)) return CORUN_OK;
    p->n_call++;
    if (lane < p->n_tok && planted_wrong(p, lane)) d->logprob -= 0.5f;
    return CORUN_OK;
}

/* Plain forwarding. */
#define FORWARD(name, args, call)                                                                  \
    static inline corun_status planted_##name args { return IN(o)->name call; }
FORWARD(dev_alloc, (ops * o, size_t n, void **d), (IN(o), n, d))
FORWARD(dev_put, (ops * o, void *d, size_t off, const void *h, size_t n), (IN(o), d, off, h, n))
FORWARD(dev_get, (ops * o, const void *d, size_t off, void *h, size_t n), (IN(o), d, off, h, n))
FORWARD(weight_open, (ops * o, const ops_weight_spec *s, ops_weight **w), (IN(o), s, w))
FORWARD(weight_refill, (ops * o, ops_weight *w, const ops_weight_spec *s), (IN(o), w, s))
FORWARD(rope_open, (ops * o, const float *f, double s, ops_rope **r), (IN(o), f, s, r))
FORWARD(slot_put, (ops * o, int32_t i, const ops_slot *s), (IN(o), i, s))
FORWARD(logits_get, (ops * o, int32_t r, float *h), (IN(o), r, h))
FORWARD(logits_put, (ops * o, int32_t r, const float *h), (IN(o), r, h))
FORWARD(sample, (ops * o, int32_t n, const int32_t *c, const int32_t *s, const int32_t *p),
        (IN(o), n, c, s, p))
FORWARD(score, (ops * o, int32_t n, const int32_t *t, int32_t top), (IN(o), n, t, top))
FORWARD(score_get, (ops * o, int32_t i, ops_draw *d), (IN(o), i, d))
FORWARD(page_copy, (ops * o, int32_t a, int32_t b), (IN(o), a, b))
FORWARD(page_out, (ops * o, int32_t a, int32_t b), (IN(o), a, b))
FORWARD(page_in, (ops * o, int32_t a, int32_t b), (IN(o), a, b))
FORWARD(page_get, (ops * o, int32_t p, void *h), (IN(o), p, h))
FORWARD(page_put, (ops * o, int32_t p, const void *h), (IN(o), p, h))
static inline void planted_dev_free(ops *o, void *d) { IN(o)->dev_free(IN(o), d); }
static inline void planted_weight_close(ops *o, ops_weight *w) { IN(o)->weight_close(IN(o), w); }
static inline void planted_rope_close(ops *o, ops_rope *r) { IN(o)->rope_close(IN(o), r); }
static inline uint64_t planted_weight_bytes(const ops *o) { return IN(o)->weight_bytes(IN(o)); }
static inline uint64_t planted_page_bytes(const ops *o) { return IN(o)->page_bytes(IN(o)); }

static inline ops *planted_wrap(ops *inner, plant_kind kind, ops_set set, ops_op op);

static inline corun_status planted_twin(const ops *o, const ops_dims *d, ops **out)
{
    const planted *p = planted_of(o);
    ops *inner;
    TRY(p->inner->twin(p->inner, d, &inner));
    *out = planted_wrap(inner, p->kind, p->set, p->op);
    return CORUN_OK;
}

/* Takes inner, which closes with it. */
static inline ops *planted_wrap(ops *inner, plant_kind kind, ops_set set, ops_op op)
{
    planted *p = calloc(1, sizeof *p);
    if (!p) abort();
    p->inner = inner;
    p->kind = kind;
    p->set = set;
    p->op = op;
    p->base = *inner;
#define USE(f) p->base.f = planted_##f
    USE(close), USE(twin), USE(configure), USE(dev_alloc), USE(dev_free), USE(dev_put);
    USE(dev_get), USE(weight_open), USE(weight_refill), USE(weight_close), USE(weight_bytes);
    USE(rope_open), USE(rope_close), USE(step_put), USE(slot_put), USE(embed), USE(norm);
    USE(matmul), USE(qkv_post), USE(attention), USE(silu_mul), USE(logits), USE(logits_get);
    USE(logits_put), USE(sample), USE(draw_get), USE(score), USE(score_get), USE(page_bytes);
    USE(page_copy), USE(page_out), USE(page_in), USE(page_get), USE(page_put);
#undef USE
    return &p->base;
}

#endif
