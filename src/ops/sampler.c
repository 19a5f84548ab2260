/* sampler.c - lanes and results of the host sampler, and the memory of its slots.
 * Invariant: a slot whose parameters are neutral never reads its arrays. */
#include "ops/sampler.h"

#include <math.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "ops/sample.h"
#include "ops/slot.h"

/* One lane or scored row: input prepared by the caller's thread, result by a worker. */
typedef struct item {
    bool run;
    sample_row in;
    sample_out out;
} item;

typedef struct worker {
    void *scratch;
    int32_t *banned; /* [OPS_MAX_BAD] */
} worker;

struct sampler {
    int32_t n_vocab;
    ops_conf c;
    pool *threads;
    sample_row_fn row;
    int32_t n_worker, n_item; /* n_item: of the running call */
    worker *worker;
    slot_state *slot;
    item *lane[2];            /* [max_lane] of the last two calls of sample, */
    int32_t last;             /* the last one's */
    item *scored, *item;      /* [logit_rows]; item: those of the running call */
    const int32_t *item_slot; /* of the running call; NULL: scoring */
    int32_t *top_id;          /* [2 max_lane + logit_rows][n_top] */
    float *top_logprob;
    uint8_t *flag;
    int32_t *count;
    float *bias;
    int32_t *bad_id, *bad_len, *recent;
    uint8_t *in_use; /* [n_slot] slots of the running call */
};

/* ---- kernels of this build
 * ----------------------------------------------------------------------- */

#ifdef CPU_HAVE_generic
void sample_row_generic(const sample_row *in, sample_out *out, void *scratch);
#endif
#ifdef CPU_HAVE_avx2
void sample_row_avx2(const sample_row *in, sample_out *out, void *scratch);
#endif
#ifdef CPU_HAVE_avx512
void sample_row_avx512(const sample_row *in, sample_out *out, void *scratch);
#endif
#ifdef CPU_HAVE_neon
void sample_row_neon(const sample_row *in, sample_out *out, void *scratch);
#endif

sample_row_fn sample_row_pick(const char *isa)
{
    static const struct {
        const char *name;
        sample_row_fn fn;
    } row[] = {
        {"ref", sample_row_ref},
#ifdef CPU_HAVE_generic
        {"generic", sample_row_generic},
#endif
#ifdef CPU_HAVE_avx2
        {"avx2", sample_row_avx2},
#endif
#ifdef CPU_HAVE_avx512
        {"avx512", sample_row_avx512},
#endif
#ifdef CPU_HAVE_neon
        {"neon", sample_row_neon},
#endif
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++)
        if (isa && strcmp(isa, row[i].name) == 0) return row[i].fn;
    return NULL;
}

/* ---- open
 * ------------------------------------------------------------------------------------------ */

#define NEED(p, n, size, what)                                                                     \
    do {                                                                                           \
        if (!((p) = mem_alloc((n), (size), (what)))) goto fail;                                    \
    } while (0)

corun_status sampler_open(sampler **out, int32_t n_vocab, const ops_conf *c, pool *threads,
                          const char *isa)
{
    *out = NULL;
    sample_row_fn row = sample_row_pick(isa);
    if (!row) FAIL(CORUN_EINVAL, "sampler: no kernels for '%s' in this build", isa ? isa : "");
    if (n_vocab < 1 || c->n_slot < 1 || c->max_lane < 1 || c->logit_rows < 1 || c->n_top < 0)
        FAIL(CORUN_EINVAL, "sampler: sizes of the configuration must be positive");
    sampler *s;
    if (!MEM_NEW(s, 1)) return CORUN_ENOMEM;
    s->n_vocab = n_vocab;
    s->c = *c;
    s->threads = threads;
    s->row = row;
    s->n_worker = threads ? pool_size(threads) : 1;
    size_t v = (size_t)n_vocab, n = (size_t)c->n_slot, lanes = (size_t)c->max_lane;
    size_t rows = (size_t)c->logit_rows, tops = (2 * lanes + rows) * (size_t)(c->n_top + 1),
           flags = 0;
    if (!mem_mul(n, v, &flags)) {
        err_set(CORUN_ENOMEM, "sampler: %d slots of %d ids are too many", c->n_slot, n_vocab);
        goto fail;
    }
    NEED(s->slot, n, sizeof *s->slot, "sampling slots");
    NEED(s->in_use, n, 1, "sampling slots");
    NEED(s->lane[0], 2 * lanes, sizeof *s->lane[0], "sampling lanes");
    s->lane[1] = s->lane[0] + lanes;
    NEED(s->scored, rows, sizeof *s->scored, "scored rows");
    NEED(s->top_id, tops, sizeof *s->top_id, "alternatives");
    NEED(s->top_logprob, tops, sizeof *s->top_logprob, "alternatives");
    NEED(s->flag, flags, 1, "token flags of the slots");
    NEED(s->count, flags, sizeof *s->count, "token counts of the slots");
    NEED(s->bias, flags, sizeof *s->bias, "logit biases of the slots");
    NEED(s->bad_id, n, OPS_MAX_BAD_SLOT * sizeof *s->bad_id, "bad words of the slots");
    NEED(s->bad_len, n, OPS_MAX_BAD * sizeof *s->bad_len, "bad words of the slots");
    NEED(s->recent, n, OPS_MAX_BAD_LEN * sizeof *s->recent, "recent tokens of the slots");
    NEED(s->worker, (size_t)s->n_worker, sizeof *s->worker, "sampling workers");
    for (int32_t i = 0; i < s->n_worker; i++) {
        worker *w = &s->worker[i];
        w->scratch = mem_aligned(64, sample_scratch_bytes(n_vocab), "sampling work memory");
        if (!w->scratch) goto fail;
        NEED(w->banned, OPS_MAX_BAD, sizeof *w->banned, "sampling work memory");
    }
    for (size_t i = 0; i < n; i++) {
        slot_state *t = &s->slot[i];
        t->flag = s->flag + i * v;
        t->count = s->count + i * v;
        t->bias = s->bias + i * v;
        t->bad_id = s->bad_id + i * OPS_MAX_BAD_SLOT;
        t->bad_len = s->bad_len + i * OPS_MAX_BAD;
        t->recent = s->recent + i * OPS_MAX_BAD_LEN;
    }
    for (size_t i = 0; i < 2 * lanes + rows; i++) {
        item *t = i < 2 * lanes ? &s->lane[0][i] : &s->scored[i - 2 * lanes];
        t->out.token = -1;
        t->out.top_id = s->top_id + i * (size_t)(c->n_top + 1);
        t->out.top_logprob = s->top_logprob + i * (size_t)(c->n_top + 1);
    }
    *out = s;
    return CORUN_OK;
fail:
    sampler_close(s);
    return CORUN_ENOMEM;
}

void sampler_close(sampler *s)
{
    if (!s) return;
    for (int32_t i = 0; s->worker && i < s->n_worker; i++) {
        mem_free(s->worker[i].scratch);
        mem_free(s->worker[i].banned);
    }
    mem_free(s->worker);
    mem_free(s->recent);
    mem_free(s->bad_len);
    mem_free(s->bad_id);
    mem_free(s->bias);
    mem_free(s->count);
    mem_free(s->flag);
    mem_free(s->top_logprob);
    mem_free(s->top_id);
    mem_free(s->scored);
    mem_free(s->lane[0]);
    mem_free(s->in_use);
    mem_free(s->slot);
    mem_free(s);
}

/* ---- slots
 * ----------------------------------------------------------------------------------------- */

static corun_status slot_ok(const sampler *s, int32_t slot)
{
    if (slot < 0 || slot >= s->c.n_slot)
        FAIL(CORUN_EINVAL, "slot %d is not in 0 ... %d", slot, s->c.n_slot - 1);
    return CORUN_OK;
}

corun_status sampler_slot_put(sampler *s, int32_t slot, const ops_slot *p)
{
    TRY(slot_ok(s, slot));
    return slot_fill(&s->slot[slot], s->n_vocab, s->c.n_top, p);
}

int32_t sampler_last_token(const sampler *s, int32_t slot)
{
    return slot >= 0 && slot < s->c.n_slot ? s->slot[slot].last : 0;
}

/* Ids that would complete a bad word after the output so far. */
static int32_t banned_ids(const slot_state *t, int32_t *banned)
{
    int32_t n = 0;
    const int32_t *word = t->bad_id;
    for (int32_t i = 0; i < t->p.n_bad; word += t->bad_len[i++]) {
        int32_t before = t->bad_len[i] - 1, j = 0;
        if (before > t->n_output) continue;
        while (j < before && t->recent[(t->n_output - before + j) % OPS_MAX_BAD_LEN] == word[j])
            j++;
        if (j == before) banned[n++] = word[before];
    }
    return n;
}

/* ---- lanes
 * ----------------------------------------------------------------------------------------- */

static void lane_row(const sampler *s, const slot_state *t, const worker *w, sample_row *in)
{
    const ops_slot *p = &t->p;
    in->n_vocab = s->n_vocab;
    in->n_draw = p->n_draw_max < s->n_vocab ? p->n_draw_max : s->n_vocab;
    in->seed = p->seed;
    in->temperature = p->temperature;
    in->top_p = p->top_p;
    in->min_p = p->min_p;
    in->repetition = p->repetition;
    in->presence = p->presence;
    in->frequency = p->frequency;
    in->top_k = p->top_k;
    in->n_top = p->n_top;
    in->processed = s->c.processed_logprobs;
    in->mask_end = t->n_output < p->min_tokens;
    in->flag = t->use_flag ? t->flag : NULL;
    in->bias = t->use_bias ? t->bias : NULL;
    in->count = t->use_count ? t->count : NULL;
    in->banned = w->banned;
    in->n_banned = banned_ids(t, w->banned);
    in->target = -1;
}

/* Planted: whether any lane of the call uses top-k. */
static bool any_top_k(const sampler *s)
{
    for (int32_t i = 0; i < s->n_item; i++)
        if (s->item[i].run && s->slot[s->item_slot[i]].p.top_k > 0) return true;
    return false;
}

static void work(void *arg, int index, int n_worker)
{
    sampler *s = arg;
    const worker *w = &s->worker[index];
    for (int32_t i = index; i < s->n_item; i += n_worker) {
        item *t = &s->item[i];
        if (!t->run) continue;
        slot_state *slot = s->item_slot ? &s->slot[s->item_slot[i]] : NULL;
        if (slot) lane_row(s, slot, w, &t->in);
        if (slot && FAULT(RNG_SLOT)) t->in.seed += (uint64_t)s->item_slot[i];
        if (slot && FAULT(SAMPLER_PATH) && t->in.top_k <= 0) t->in.processed |= any_top_k(s);
        s->row(&t->in, &t->out, w->scratch);
        if (!slot) continue;
        if (t->out.token >= 0)
            slot_advance(slot, t->out.token);
        else
            slot->last = 0;
    }
}

static void run(sampler *s, item *items, int32_t n, const int32_t *slot)
{
    s->item = items;
    s->n_item = n;
    s->item_slot = slot;
    if (s->threads)
        pool_run(s->threads, work, s);
    else
        work(s, 0, 1);
    s->item_slot = NULL;
}

static corun_status lanes_ok(sampler *s, int32_t n_row, int32_t n_lane, const int32_t *chunk_row,
                             const int32_t *slot, const int32_t *pos)
{
    memset(s->in_use, 0, (size_t)s->c.n_slot);
    for (int32_t i = 0; i < n_lane; i++) {
        if (chunk_row[i] < 0) continue;
        if (chunk_row[i] >= n_row)
            FAIL(CORUN_EINVAL, "lane %d: row %d of a chunk of %d", i, chunk_row[i], n_row);
        TRY(slot_ok(s, slot[i]));
        if (!s->slot[slot[i]].ready)
            FAIL(CORUN_EINVAL, "lane %d: slot %d was never put", i, slot[i]);
        if (s->in_use[slot[i]]++)
            FAIL(CORUN_EINVAL, "lane %d: slot %d has another lane in this call", i, slot[i]);
        if (pos[i] < 0) FAIL(CORUN_EINVAL, "lane %d: position %d", i, pos[i]);
    }
    return CORUN_OK;
}

corun_status sampler_sample(sampler *s, const float *logits, int32_t n_row, int32_t n_lane,
                            const int32_t *chunk_row, const int32_t *slot, const int32_t *pos)
{
    if (n_row < 0 || n_row > s->c.logit_rows || n_lane < 0 || n_lane > s->c.max_lane)
        FAIL(CORUN_EINVAL, "sample: %d rows and %d lanes exceed the configuration", n_row, n_lane);
    TRY(lanes_ok(s, n_row, n_lane, chunk_row, slot, pos));
    s->last = 1 - s->last;
    for (int32_t i = 0; i < n_lane; i++) {
        item *t = &s->lane[s->last][i];
        t->run = chunk_row[i] >= 0;
        if (!t->run) continue;
        t->in = (sample_row){.logit = logits + (size_t)chunk_row[i] * (size_t)s->n_vocab,
                             .pos = pos[i]};
    }
    run(s, s->lane[s->last], n_lane, slot);
    return CORUN_OK;
}

static void draw_of(const item *t, ops_draw *out)
{
    static const char *const why[] = {NULL, "non-finite logits", "no token may be drawn"};
    *out = (ops_draw){t->out.token, why[t->out.why], t->out.logprob,
                      t->out.n_top, t->out.top_id,   t->out.top_logprob};
}

corun_status sampler_draw_get(const sampler *s, int32_t back, int32_t lane, ops_draw *out)
{
    if (back < 0 || back > 1) FAIL(CORUN_EINVAL, "draws of %d calls ago are not kept", back);
    if (lane < 0 || lane >= s->c.max_lane)
        FAIL(CORUN_EINVAL, "lane %d is not in 0 ... %d", lane, s->c.max_lane - 1);
    draw_of(&s->lane[back ? 1 - s->last : s->last][lane], out);
    return CORUN_OK;
}

corun_status sampler_score(sampler *s, const float *logits, int32_t n, const int32_t *target,
                           int32_t n_top)
{
    if (n < 0 || n > s->c.logit_rows || n_top < -1 || n_top > s->c.n_top)
        FAIL(CORUN_EINVAL, "score: %d rows with %d alternatives exceed the configuration", n,
             n_top);
    for (int32_t i = 0; i < n; i++)
        if (target[i] < -1 || target[i] >= s->n_vocab)
            FAIL(CORUN_EINVAL, "score: token id %d is not in 0 ... %d", target[i], s->n_vocab - 1);
    for (int32_t i = 0; i < n; i++) {
        item *t = &s->scored[i];
        t->run = target[i] >= 0;
        t->in = (sample_row){.logit = logits + (size_t)i * (size_t)s->n_vocab,
                             .n_vocab = s->n_vocab,
                             .n_draw = s->n_vocab,
                             .n_top = n_top < 0 ? 0 : n_top,
                             .target = target[i]};
        t->out = (sample_out){SAMPLE_OK, -1, 0, 0, t->out.top_id, t->out.top_logprob};
    }
    run(s, s->scored, n, NULL);
    return CORUN_OK;
}

corun_status sampler_score_get(const sampler *s, int32_t i, ops_draw *out)
{
    if (i < 0 || i >= s->c.logit_rows)
        FAIL(CORUN_EINVAL, "scored row %d is not in 0 ... %d", i, s->c.logit_rows - 1);
    draw_of(&s->scored[i], out);
    return CORUN_OK;
}
