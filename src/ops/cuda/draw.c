/* draw.c - slots, lanes and results of sampling on the device.
 *
 * A slot's state is filled on the host by the code of every backend (ops/slot.h) and copied; from
 * then on the kernels advance it. A call has its items and results in pinned memory of its own, so
 * that the host reads one call while the next one runs. Invariant: pinned memory is rewritten only
 * after what reads it has run; everything is on one stream, so a call that has run tells of all
 * copies before it. */
#include <cuda_runtime_api.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "ops/cuda/draw.h"
#include "ops/slot.h"

/* What one slot_put sends in any case. */
typedef struct slot_image {
    draw_slot s;
    int32_t last;
    uint64_t sent; /* its copies run before this call; 0: they have run */
} slot_image;

/* One call of sample or score. */
typedef struct draw_call {
    draw_item *item; /* [n_item], pinned */
    int32_t n;
    draw_result *result; /* pinned, as the next two */
    int32_t *top_id;
    float *top_logprob;
    uint64_t number; /* of the call, from 1; 0: none yet */
    void *run;       /* cudaEvent_t: its results are on the host */
} draw_call;

enum { SCORED = 2, N_CALL = 3 }; /* the last two calls of sample by turns, the last of score */

struct gpu_sampler {
    const gpu *g;
    ops_conf c;
    int32_t n_item;
    draw_args a;
    slot_state fill;   /* arrays in pinned memory, shared by all slots */
    int32_t *bad_off;  /* [OPS_MAX_BAD + 1], pinned */
    slot_image *image; /* [n_slot], pinned */
    uint64_t sent;     /* likewise the copies from fill */
    bool *ready;       /* [n_slot] */
    uint8_t *in_use;   /* [n_slot] slots of the running call */
    draw_call call[N_CALL];
    int32_t last;          /* of sample: 0 or 1 */
    uint64_t n_call, done; /* calls so far; the newest that is known to have run */
};

#define DEV(p, n, what)                                                                            \
    do {                                                                                           \
        void *v_;                                                                                  \
        TRY(gpu_alloc(s->g, &v_, (size_t)(n) * sizeof *(p), (what)));                              \
        (p) = v_;                                                                                  \
    } while (0)
#define HOST(p, n, what)                                                                           \
    do {                                                                                           \
        void *v_;                                                                                  \
        TRY(gpu_alloc_host(&v_, (size_t)(n) * sizeof *(p), (what)));                               \
        (p) = v_;                                                                                  \
    } while (0)

static corun_status open_slots(gpu_sampler *s)
{
    draw_args *a = &s->a;
    size_t n = (size_t)s->c.n_slot, v = (size_t)a->n_block * SAMPLE_BLOCK;
    DEV(a->slot, n, "sampling slots");
    DEV(a->last, n, "sampling slots");
    DEV(a->flag, n * v, "token flags of the slots");
    DEV(a->count, n * v, "token counts of the slots");
    DEV(a->bias, n * v, "logit biases of the slots");
    DEV(a->bad_id, n * OPS_MAX_BAD_SLOT, "bad words of the slots");
    DEV(a->bad_off, n * (OPS_MAX_BAD + 1), "bad words of the slots");
    DEV(a->banned, n * OPS_MAX_BAD, "bad words of the slots");
    DEV(a->recent, n * OPS_MAX_BAD_LEN, "recent tokens of the slots");
    HOST(s->image, n, "sampling slots");
    HOST(s->fill.flag, v, "token flags of a slot");
    HOST(s->fill.count, v, "token counts of a slot");
    HOST(s->fill.bias, v, "logit biases of a slot");
    HOST(s->fill.bad_id, OPS_MAX_BAD_SLOT, "bad words of a slot");
    HOST(s->fill.recent, OPS_MAX_BAD_LEN, "recent tokens of a slot");
    HOST(s->bad_off, OPS_MAX_BAD + 1, "bad words of a slot");
    if (!MEM_NEW(s->fill.bad_len, OPS_MAX_BAD) || !MEM_NEW(s->ready, n) || !MEM_NEW(s->in_use, n))
        return CORUN_ENOMEM;
    return CORUN_OK;
}

static corun_status open_items(gpu_sampler *s)
{
    draw_args *a = &s->a;
    size_t n = (size_t)s->n_item, blocks = n * (size_t)a->n_block;
    DEV(a->item, n, "sampling lanes");
    DEV(a->work, n, "sampling lanes");
    DEV(a->block_x, blocks, "sampling lanes");
    DEV(a->block_y, blocks, "sampling lanes");
    DEV(a->block_s, blocks, "sampling lanes");
    for (draw_call *c = s->call; c < s->call + N_CALL; c++) {
        HOST(c->item, n, "sampling lanes");
        HOST(c->result, n, "results of sampling");
        HOST(c->top_id, n * (size_t)a->n_top_max, "alternatives");
        HOST(c->top_logprob, n * (size_t)a->n_top_max, "alternatives");
        cudaEvent_t e;
        TRY(gpu_status((int)cudaEventCreateWithFlags(&e, cudaEventDisableTiming), "event"));
        c->run = e;
    }
    return CORUN_OK;
}

corun_status gpu_sampler_open(gpu_sampler **out, const gpu *g, int32_t n_vocab, const ops_conf *c,
                              const float *logits, int64_t stride)
{
    *out = NULL;
    gpu_sampler *s;
    if (!MEM_NEW(s, 1)) return CORUN_ENOMEM;
    s->g = g;
    s->c = *c;
    s->n_item = c->max_lane > c->logit_rows ? c->max_lane : c->logit_rows;
    s->a = (draw_args){.logits = logits,
                       .stride = stride,
                       .n_vocab = n_vocab,
                       .n_block = (n_vocab + SAMPLE_BLOCK - 1) / SAMPLE_BLOCK,
                       .n_top_max = c->n_top > 0 ? c->n_top : 1,
                       .processed = c->processed_logprobs};
    corun_status st = open_slots(s);
    if (st == CORUN_OK) st = open_items(s);
    if (st != CORUN_OK) {
        gpu_sampler_close(s);
        return st;
    }
    *out = s;
    return CORUN_OK;
}

void gpu_sampler_close(gpu_sampler *s)
{
    if (!s) return;
    draw_args *a = &s->a;
    void *dev[] = {a->slot,   a->last,   a->flag, a->count, a->bias,    a->bad_id,  a->bad_off,
                   a->banned, a->recent, a->item, a->work,  a->block_x, a->block_y, a->block_s};
    void *host[] = {s->image,       s->fill.flag,   s->fill.count, s->fill.bias,
                    s->fill.bad_id, s->fill.recent, s->bad_off};
    for (size_t i = 0; i < sizeof dev / sizeof *dev; i++) gpu_free(dev[i]);
    for (size_t i = 0; i < sizeof host / sizeof *host; i++) gpu_free_host(host[i]);
    for (draw_call *c = s->call; c < s->call + N_CALL; c++) {
        gpu_free_host(c->item);
        gpu_free_host(c->result);
        gpu_free_host(c->top_id);
        gpu_free_host(c->top_logprob);
        if (c->run) cudaEventDestroy(c->run);
    }
    mem_free(s->fill.bad_len);
    mem_free(s->ready);
    mem_free(s->in_use);
    mem_free(s);
}

const int32_t *gpu_sampler_last(const gpu_sampler *s) { return s->a.last; }

/* ---- slots --------------------------------------------------------------------------------- */

static corun_status slot_ok(const gpu_sampler *s, int32_t slot)
{
    if (slot < 0 || slot >= s->c.n_slot)
        FAIL(CORUN_EINVAL, "slot %d is not in 0 ... %d", slot, s->c.n_slot - 1);
    return CORUN_OK;
}

static corun_status send(const gpu_sampler *s, void *dev, const void *host, size_t bytes)
{
    if (bytes == 0) return CORUN_OK;
    return gpu_status((int)cudaMemcpyAsync(dev, host, bytes, cudaMemcpyHostToDevice, s->g->stream),
                      "sampling state to the device");
}

/* The arrays that the slot's kernels will read; sets what the image says of them. */
static corun_status send_arrays(gpu_sampler *s, int32_t slot, draw_slot *d)
{
    const slot_state *f = &s->fill;
    const draw_args *a = &s->a;
    size_t v = (size_t)a->n_block * SAMPLE_BLOCK, at = (size_t)slot * v, total = 0;
    d->n_bad = f->p.n_bad;
    d->use_flag = f->use_flag || d->n_bad > 0;
    d->use_bias = f->use_bias;
    d->use_count = f->use_count;
    if (d->use_flag) TRY(send(s, a->flag + at, f->flag, v * sizeof *f->flag));
    if (d->use_bias) TRY(send(s, a->bias + at, f->bias, v * sizeof *f->bias));
    if (d->use_count) TRY(send(s, a->count + at, f->count, v * sizeof *f->count));
    if (d->n_bad == 0) return CORUN_OK;
    for (int32_t i = 0; i < d->n_bad; i++) {
        s->bad_off[i] = (int32_t)total;
        total += (size_t)f->bad_len[i];
    }
    s->bad_off[d->n_bad] = (int32_t)total;
    TRY(send(s, a->bad_id + (size_t)slot * OPS_MAX_BAD_SLOT, f->bad_id, total * sizeof *f->bad_id));
    TRY(send(s, a->bad_off + (size_t)slot * (OPS_MAX_BAD + 1), s->bad_off,
             (size_t)(d->n_bad + 1) * sizeof *s->bad_off));
    return send(s, a->recent + (size_t)slot * OPS_MAX_BAD_LEN, f->recent,
                OPS_MAX_BAD_LEN * sizeof *f->recent);
}

/* Until what was sent before call `sent` is no longer read. */
static corun_status settle(gpu_sampler *s, uint64_t sent)
{
    if (sent <= s->done) return CORUN_OK;
    TRY(gpu_sync(s->g, "sampling"));
    s->done = s->n_call;
    s->sent = 0;
    for (int32_t i = 0; i < s->c.n_slot; i++) s->image[i].sent = 0;
    return CORUN_OK;
}

corun_status gpu_sampler_slot_put(gpu_sampler *s, int32_t slot, const ops_slot *p)
{
    TRY(slot_ok(s, slot));
    s->ready[slot] = false;
    slot_image *m = &s->image[slot];
    TRY(settle(s, m->sent > s->sent ? m->sent : s->sent));
    const slot_state *f = &s->fill;
    TRY(slot_fill(&s->fill, s->a.n_vocab, s->c.n_top, p));
    m->s = (draw_slot){.seed = p->seed,
                       .temperature = p->temperature,
                       .top_p = p->top_p,
                       .min_p = p->min_p,
                       .repetition = p->repetition,
                       .presence = p->presence,
                       .frequency = p->frequency,
                       .top_k = p->top_k,
                       .min_tokens = p->min_tokens,
                       .n_top = p->n_top,
                       .n_draw = p->n_draw_max,
                       .n_output = f->n_output};
    if (FAULT(RNG_SLOT)) m->s.seed += (uint64_t)slot;
    m->last = f->last;
    TRY(send_arrays(s, slot, &m->s));
    m->sent = s->n_call + 1;
    if (m->s.use_flag || m->s.use_bias || m->s.use_count) s->sent = m->sent;
    TRY(send(s, s->a.slot + slot, &m->s, sizeof m->s));
    TRY(send(s, s->a.last + slot, &m->last, sizeof m->last));
    s->ready[slot] = true;
    return CORUN_OK;
}

/* ---- lanes --------------------------------------------------------------------------------- */

static corun_status lanes_ok(gpu_sampler *s, int32_t n_lane, const int32_t *chunk_row,
                             const int32_t *slot, const int32_t *pos)
{
    memset(s->in_use, 0, (size_t)s->c.n_slot);
    for (int32_t i = 0; i < n_lane; i++) {
        if (chunk_row[i] < 0) continue;
        if (chunk_row[i] >= s->c.logit_rows)
            FAIL(CORUN_EINVAL, "lane %d: row %d of a chunk of %d", i, chunk_row[i],
                 s->c.logit_rows);
        TRY(slot_ok(s, slot[i]));
        if (!s->ready[slot[i]]) FAIL(CORUN_EINVAL, "lane %d: slot %d was never put", i, slot[i]);
        if (s->in_use[slot[i]]++)
            FAIL(CORUN_EINVAL, "lane %d: slot %d has another lane in this call", i, slot[i]);
        if (pos[i] < 0) FAIL(CORUN_EINVAL, "lane %d: position %d", i, pos[i]);
    }
    return CORUN_OK;
}

/* Planted: whether some lanes of the call use top-k and some do not. */
static bool mixed_top_k(const gpu_sampler *s, const draw_call *c)
{
    bool seen[2] = {false, false};
    for (int32_t i = 0; i < c->n; i++)
        if (c->item[i].row >= 0 && c->item[i].target < 0)
            seen[s->image[c->item[i].slot].s.top_k > 0] = true;
    return seen[0] && seen[1];
}

/* Its kernels read the items and write the results where they lie, in pinned memory. */
static corun_status run(gpu_sampler *s, draw_call *c)
{
    draw_args a = s->a;
    if (FAULT(SAMPLER_PATH)) a.processed |= mixed_top_k(s, c);
    a.n_item = c->n;
    a.from = c->item;
    a.result = c->result;
    a.top_id = c->top_id;
    a.top_logprob = c->top_logprob;
    c->number = ++s->n_call;
    TRY(gpu_draw(s->g, &a));
    return gpu_status((int)cudaEventRecord(c->run, s->g->stream), "event");
}

/* Until the call has run. */
static corun_status wait_for(gpu_sampler *s, const draw_call *c)
{
    if (c->number <= s->done) return CORUN_OK;
    TRY(gpu_status((int)cudaEventSynchronize(c->run), "sampling"));
    s->done = c->number;
    return CORUN_OK;
}

corun_status gpu_sampler_sample(gpu_sampler *s, int32_t n_lane, const int32_t *chunk_row,
                                const int32_t *slot, const int32_t *pos)
{
    if (n_lane < 0 || n_lane > s->c.max_lane)
        FAIL(CORUN_EINVAL, "sample: %d lanes exceed the configuration", n_lane);
    TRY(lanes_ok(s, n_lane, chunk_row, slot, pos));
    draw_call *c = &s->call[1 - s->last];
    TRY(wait_for(s, c));
    s->last = 1 - s->last;
    c->n = n_lane;
    for (int32_t i = 0; i < n_lane; i++)
        c->item[i] = (draw_item){chunk_row[i], chunk_row[i] < 0 ? 0 : slot[i], pos[i], -1, 0};
    return run(s, c);
}

corun_status gpu_sampler_score(gpu_sampler *s, int32_t n, const int32_t *target, int32_t n_top)
{
    if (n < 0 || n > s->c.logit_rows || n_top < -1 || n_top > s->c.n_top)
        FAIL(CORUN_EINVAL, "score: %d rows with %d alternatives exceed the configuration", n,
             n_top);
    for (int32_t i = 0; i < n; i++)
        if (target[i] < -1 || target[i] >= s->a.n_vocab)
            FAIL(CORUN_EINVAL, "score: token id %d is not in 0 ... %d", target[i],
                 s->a.n_vocab - 1);
    draw_call *c = &s->call[SCORED];
    TRY(wait_for(s, c));
    c->n = n;
    for (int32_t i = 0; i < n; i++)
        c->item[i] = (draw_item){target[i] < 0 ? -1 : i, -1, 0, target[i], n_top < 0 ? 0 : n_top};
    return run(s, c);
}

static corun_status draw_of(gpu_sampler *s, const draw_call *c, int32_t i, ops_draw *out)
{
    static const char *const why[] = {NULL, "non-finite logits", "no token may be drawn"};
    if (i >= c->n || c->item[i].row < 0) {
        *out = (ops_draw){.token = -1};
        return CORUN_OK;
    }
    TRY(wait_for(s, c));
    const draw_result *r = &c->result[i];
    size_t at = (size_t)i * (size_t)s->a.n_top_max;
    *out = (ops_draw){r->token, why[r->why],    r->logprob,
                      r->n_top, c->top_id + at, c->top_logprob + at};
    return CORUN_OK;
}

corun_status gpu_sampler_draw_get(gpu_sampler *s, int32_t back, int32_t lane, ops_draw *out)
{
    if (back < 0 || back > 1) FAIL(CORUN_EINVAL, "draws of %d calls ago are not kept", back);
    if (lane < 0 || lane >= s->c.max_lane)
        FAIL(CORUN_EINVAL, "lane %d is not in 0 ... %d", lane, s->c.max_lane - 1);
    return draw_of(s, &s->call[back ? 1 - s->last : s->last], lane, out);
}

corun_status gpu_sampler_score_get(gpu_sampler *s, int32_t i, ops_draw *out)
{
    if (i < 0 || i >= s->c.logit_rows)
        FAIL(CORUN_EINVAL, "scored row %d is not in 0 ... %d", i, s->c.logit_rows - 1);
    return draw_of(s, &s->call[SCORED], i, out);
}
