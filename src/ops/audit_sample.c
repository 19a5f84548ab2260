/* audit_sample.c - tries sample and score on logits of its own.
 * Invariant: a lane's logits, parameters and position depend on its content alone. */
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "ops/audit_impl.h"

enum { N_KIND = 8, DRAW_BYTES = 3 + 2 * CORUN_MAX_TOP };

typedef struct kept {
    int32_t *row;   /* [logit_rows] content of a chunk row */
    int32_t *drawn; /* token drawn for a content */
} kept;

/* Chunk row r gets the logits of a content; AUDIT_NAN and AUDIT_HUGE have none. */
static corun_status put_logits(audit *a, int32_t r, int32_t content, int32_t *held)
{
    if (held[r] == content) return CORUN_OK;
    held[r] = content;
    float *row = (float *)(void *)a->row;
    for (int32_t i = 0; i < a->spec->dims.n_vocab; i++) {
        uint64_t x = audit_mix((uint64_t)(uint32_t)content << 32 | (uint32_t)i);
        row[i] = (float)(x >> 40) * 0x1p-20f - 8.0f; /* -8 ... 8 */
        if (content == AUDIT_NAN) row[i] = (float)(0.0 / (double)(i - i));
        if (content == AUDIT_HUGE) row[i] = i % 2 ? 3e38f : -3e38f;
    }
    return a->o->logits_put(a->o, r, row);
}

static ops_slot slot_of(const audit *a, int32_t content, const int32_t *output)
{
    static const int32_t one[] = {1, 2, 5};
    static const float push[] = {-3, 2, 0.5f};
    int32_t kind = content < 0 ? 7 : content % N_KIND, v = a->spec->dims.n_vocab;
    ops_slot s = {.seed = 1000 + (uint64_t)(uint32_t)content,
                  .temperature = kind == 0 ? 0.0f : 0.8f,
                  .top_p = kind == 2 || kind == 7 ? 0.7f : 1.0f,
                  .min_p = kind == 3 || kind == 7 ? 0.02f : 0.0f,
                  .repetition = kind == 4 || kind == 7 ? 1.2f : 1.0f,
                  .presence = kind == 5 || kind == 7 ? 0.4f : 0.0f,
                  .frequency = kind == 5 ? 0.2f : 0.0f,
                  .top_k = kind == 1 || kind == 7 ? 40 : 0,
                  .n_top = content % 3 == 0   ? CORUN_MAX_TOP
                           : content % 3 == 1 ? 0
                                              : 3,
                  .n_draw_max = v,
                  .output = output,
                  .n_output = 4};
    if ((kind == 6 || kind == 7) && v > 5) {
        s.bias_id = one;
        s.bias = push;
        s.n_bias = 3;
        s.end_id = one;
        s.n_end = 1;
        s.min_tokens = 9;
    }
    return s;
}

static void pack(const ops_draw *d, uint32_t out[DRAW_BYTES])
{
    memset(out, 0, DRAW_BYTES * sizeof *out);
    out[0] = (uint32_t)d->token;
    memcpy(&out[1], &d->logprob, sizeof d->logprob);
    out[2] = (uint32_t)d->n_top;
    for (int32_t i = 0; i < d->n_top && i < CORUN_MAX_TOP; i++) {
        out[3 + 2 * i] = (uint32_t)d->top_id[i];
        memcpy(&out[4 + 2 * i], &d->top_logprob[i], sizeof(float));
    }
}

/* n lanes; lane i has content (i + rotate) mod n, its logits in a row that shift moves. Every
 * second lane may be another thing. */
typedef struct lanes {
    int32_t n, rotate, shift, other, parity;
} lanes;

static int32_t content_at(const lanes *l, int32_t i)
{
    if (l->other && i % 2 == l->parity) return l->other;
    return (i + l->rotate) % l->n;
}

/* The log-probability of a token is one number, drawn or scored. Without alternatives, so that the
 * form does not matter. */
static corun_status note_logprob(audit *a, int which, int32_t content, int32_t n, const ops_draw *d)
{
    if (a->spec->processed_logprobs || d->token < 0) return CORUN_OK;
    uint64_t key = (uint64_t)content << 32 | (uint32_t)d->token;
    return audit_note_key(a, which, audit_mix(key) ^ 1, (uint64_t)which, (uint64_t)n,
                          which ? "its score" : "its draw", &d->logprob, sizeof d->logprob);
}

static corun_status try_lanes(audit *a, lanes l, int32_t times, kept *h)
{
    ops *o = a->o;
    int32_t *row = a->sc.at, *slot = a->sc.want_at, *pos = a->sc.owner; /* arrays of max_tok */
    int32_t output[4];
    TRY(audit_scene_put(a));
    for (int32_t i = 0; i < l.n; i++) {
        row[i] = (i + l.rotate + l.shift) % a->conf.logit_rows;
        slot[i] = (i + 2 * l.rotate) % a->conf.n_slot;
        pos[i] = 5 + (i + l.rotate) % l.n * 3;
        TRY(put_logits(a, row[i], content_at(&l, i), h->row));
    }
    for (int32_t t = 0; t < times; t++) {
        for (int32_t i = 0; i < l.n; i++) {
            int32_t c = content_at(&l, i);
            for (int32_t k = 0; k < 4; k++) output[k] = audit_token(a, (c < 0 ? 0 : c) * 4 + k / 2);
            ops_slot s = slot_of(a, c, output);
            TRY(o->slot_put(o, slot[i], &s));
        }
        TRY(o->sample(o, l.n, row, slot, pos));
        for (int32_t i = 0; i < l.n; i++) {
            int32_t c = content_at(&l, i);
            ops_draw d;
            uint32_t bytes[DRAW_BYTES];
            TRY(o->draw_get(o, 0, i, &d));
            if (c < 0) continue;
            pack(&d, bytes);
            TRY(audit_note_key(a, 0, audit_mix((uint64_t)c), 0, (uint64_t)l.n, "a lane", bytes,
                               sizeof bytes));
            TRY(note_logprob(a, 0, c, l.n, &d));
            h->drawn[c] = d.token;
        }
    }
    return CORUN_OK;
}

static corun_status try_scores(audit *a, lanes l, int32_t times, kept *h)
{
    ops *o = a->o;
    int32_t *target = a->sc.at;
    TRY(audit_scene_put(a));
    for (int32_t i = 0; i < l.n; i++) {
        int32_t c = content_at(&l, i);
        target[i] = c < 0 || h->drawn[c] < 0 ? 0 : h->drawn[c];
        TRY(put_logits(a, i, c, h->row));
    }
    for (int32_t t = 0; t < times; t++) {
        TRY(o->score(o, l.n, target, 5));
        for (int32_t i = 0; i < l.n; i++) {
            int32_t c = content_at(&l, i);
            ops_draw d;
            uint32_t bytes[DRAW_BYTES];
            TRY(o->score_get(o, i, &d));
            if (c < 0) continue;
            pack(&d, bytes);
            TRY(audit_note_key(a, 1, audit_mix((uint64_t)c) ^ 2, 1, (uint64_t)l.n, "a score", bytes,
                               sizeof bytes));
            TRY(note_logprob(a, 1, c, l.n, &d));
        }
    }
    return CORUN_OK;
}

/* A step whose wanted rows are n, since results are kept until the next step. */
static void wanted(audit *a, int32_t n)
{
    a->want = STEP_WANT_LAST;
    audit_scene_begin(a, STEP_DECODE);
    for (int32_t i = 0; i < n; i++) audit_scene_row(a, i, 0, 1, i, a->perm);
}

static corun_status try_set(audit *a, kept *h)
{
    static const int32_t other[] = {AUDIT_OTHER, AUDIT_NAN, AUDIT_HUGE};
    double begin = clock_seconds();
    int32_t w = a->spec->width, rows = a->conf.logit_rows;
    TRY(audit_begin(a, 0, OPS_OP_SAMPLE, "draw"));
    TRY(audit_begin(a, 1, OPS_OP_SAMPLE, "score"));
    for (int32_t i = 0; i < rows; i++) h->row[i] = AUDIT_DEAD; /* none */
    for (int32_t i = 0; i < 2 * (5 + a->n_count); i++) {
        int32_t k = i % (5 + a->n_count);
        lanes l = {.n = w, .rotate = k, .shift = k};
        if (k >= 2 && k < 5) {
            l.other = other[k - 2];
            l.parity = k % 2;
        }
        if (k >= 5) l = (lanes){.n = a->count[k - 5], .shift = 1};
        if (l.n > rows || (l.other && w < 2)) continue;
        wanted(a, l.n);
        /* first all draws, then scores of what was drawn */
        TRY((i == k ? try_lanes : try_scores)(a, l, k == 0 ? a->n_repeat : 1, h));
    }
    audit_end(a, begin);
    return CORUN_OK;
}

corun_status audit_sampling(audit *a)
{
    kept h = {NULL, NULL};
    corun_status st = CORUN_OK;
    if (!MEM_NEW(h.row, (size_t)a->conf.logit_rows) || !MEM_NEW(h.drawn, (size_t)a->conf.max_tok))
        st = CORUN_ENOMEM;
    for (int s = 0; s < OPS_N_SET && st == CORUN_OK; s++) {
        st = audit_use_set(a, (ops_set)s);
        if (st == CORUN_OK) st = try_set(a, &h);
    }
    mem_free(h.row);
    mem_free(h.drawn);
    return st;
}
