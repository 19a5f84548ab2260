/* streams.h - random request streams on the fake model: a few requests run twice, each time among
 * other neighbours, in another order, in another pool; what they got must be the same bytes.
 *
 * A stream is bytes, so that a fuzzer can shape it and a test can draw it from a counter. Bytes
 * that are missing read as zero. stream_check aborts, after it said what and where, when two runs
 * differ, when the engine fails or when it leaks a page. */
#ifndef TESTS_STREAMS_H
#define TESTS_STREAMS_H

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/digest.h"
#include "corun.h"
#include "engine/engine.h"

enum {
    STREAM_KEPT = 4,   /* requests that both runs have */
    STREAM_OTHERS = 6, /* neighbours of each run */
    STREAM_SAMPLES = 4,
    STREAM_PROMPT = 400,
    STREAM_CTX = 512
};

typedef struct stream_bytes {
    const uint8_t *data;
    size_t n, at;
} stream_bytes;

static inline uint32_t stream_take(stream_bytes *b, uint32_t below)
{
    uint32_t v = 0;
    for (int i = 0; i < (below > 256 ? 2 : 1); i++)
        v = v << 8 | (b->at < b->n ? b->data[b->at++] : 0u);
    return v % below;
}

/* All that a sample got: tokens, log-probabilities, alternatives, texts, its end. */
typedef struct stream_got {
    digest d;
    int32_t n_token, token[64];
} stream_got;

typedef struct stream_request {
    int32_t tokens[STREAM_PROMPT];
    corun_request r;
    corun_bytes stop[2];
    char stop_text[2][4];
    int32_t cancel; /* steps after which it is cancelled, -1: never */
    uint64_t id;
    int32_t open; /* samples that have not ended */
    stream_got got[STREAM_SAMPLES];
} stream_request;

typedef struct stream_run {
    corun_engine_opts o;
    uint32_t group; /* requests that arrive between two steps */
    int32_t lag;    /* steps that are given ahead */
    stream_request *q[STREAM_KEPT + STREAM_OTHERS];
    size_t n;
    corun_stats stats;
} stream_run;

static inline void stream_die(const char *what)
{
    fprintf(stderr, "stream: %s: %s\n", what, corun_last_error());
    abort();
}

/* A policy and the fake that is just strong enough for it. */
typedef struct stream_policy {
    corun_policy policy;
    const char *model;
    int32_t chunk; /* fixed by the identity; 0: any */
    bool width;    /* the width is part of the identity */
} stream_policy;

static const stream_policy stream_policies[] = {
    {CORUN_POLICY_CORUN, "fake:run,position", 128, true},
    {CORUN_POLICY_INVARIANT, "fake:batch", 2048, false},
    {CORUN_POLICY_FREE, "fake:phase", 0, false},
};

static inline corun_model *stream_model(const char *path)
{
    corun_model *m;
    corun_model_opts o = corun_model_opts_default();
    o.path = path;
    o.n_thread = 1;
    if (corun_model_open(&m, &o) != CORUN_OK) stream_die(path);
    return m;
}

static inline void stream_draw_request(stream_bytes *b, corun_model *m, stream_request *q)
{
    memset(q, 0, sizeof *q);
    if (corun_sampling_default(m, &q->r.sampling) != CORUN_OK) stream_die("sampling");
    corun_sampling *s = &q->r.sampling;
    /* Few families of prompts, so that prefixes are shared; the tail is the request's own. */
    uint32_t family = stream_take(b, 4), shared = stream_take(b, STREAM_PROMPT - 40);
    uint32_t own = 1 + stream_take(b, 39), salt = stream_take(b, 256);
    for (uint32_t i = 0; i < shared + own; i++)
        q->tokens[i] = (int32_t)((i < shared ? family * 7 + i * (family + 3) : salt + i * 5) % 256);
    q->r.tokens = q->tokens;
    q->r.n_token = shared + own;
    s->max_tokens = (int32_t)stream_take(b, 40);
    s->n = s->max_tokens ? 1 + (int32_t)stream_take(b, STREAM_SAMPLES) : 1;
    s->seed = stream_take(b, 256);
    s->logprobs = (int32_t)stream_take(b, 4) - 1;
    s->ignore_eos = true;
    uint32_t flags = stream_take(b, 256);
    if (flags & 1) s->temperature = 0;
    if (flags & 2) s->top_k = 5;
    if (flags & 4) s->top_p = 0.8;
    if (flags & 8) s->min_p = 0.05;
    if (flags & 16) s->repetition_penalty = 1.3;
    if (flags & 32) s->presence_penalty = 0.5;
    if (flags & 64 || s->max_tokens == 0) s->prompt_logprobs = (int32_t)stream_take(b, 3);
    if (flags & 128) {
        for (int i = 0; i < 2; i++) {
            size_t len = 1 + stream_take(b, 3);
            for (size_t k = 0; k < len; k++) q->stop_text[i][k] = (char)('a' + stream_take(b, 26));
            q->stop[i] = (corun_bytes){q->stop_text[i], len};
        }
        s->stop = q->stop;
        s->n_stop = 2;
    }
    q->cancel = -1;
}

static inline void stream_add(stream_got *g, const void *data, size_t n)
{
    struct {
        digest before, of;
    } link = {g->d, digest_of(data, n)};
    g->d = digest_of(&link, sizeof link);
}

static inline void stream_event(stream_request *q, const corun_event *ev)
{
    stream_got *g = &q->got[ev->sample];
    stream_add(g, &ev->kind, sizeof ev->kind);
    stream_add(g, ev->text_len ? ev->text : "", ev->text_len);
    if (ev->kind == CORUN_EVENT_DONE) {
        int32_t end[] = {(int32_t)ev->finish, ev->stop_index, ev->stop_token, ev->n_prompt,
                         ev->n_new};
        stream_add(g, end, sizeof end);
        q->open--;
    } else if (ev->kind == CORUN_EVENT_FAILED) {
        stream_die("a request failed");
    } else {
        int32_t head[] = {ev->index, ev->token, ev->n_top};
        stream_add(g, head, sizeof head);
        stream_add(g, &ev->logprob, sizeof ev->logprob);
        stream_add(g, ev->top_id, (size_t)ev->n_top * sizeof *ev->top_id);
        stream_add(g, ev->top_logprob, (size_t)ev->n_top * sizeof *ev->top_logprob);
        if (ev->kind == CORUN_EVENT_TOKEN) {
            if (ev->index != g->n_token) stream_die("a token is missing or came twice");
            g->token[g->n_token++] = ev->token;
        }
    }
}

/* Submits what is due; false when the pool can never hold a request. */
static inline bool stream_submit(corun_engine *e, stream_run *run, size_t *sent)
{
    for (uint32_t k = 0; k < run->group && *sent < run->n; k++, ++*sent) {
        stream_request *q = run->q[*sent];
        corun_status st = corun_submit(e, &q->r, &q->id);
        if (st == CORUN_ECAPACITY) return false;
        if (st != CORUN_OK) stream_die("submit");
        q->open = q->r.sampling.n;
        for (int32_t i = 0; i < q->open; i++) q->got[i] = (stream_got){.n_token = 0};
    }
    return true;
}

static inline bool stream_go(corun_model *m, stream_run *run)
{
    corun_engine *e;
    m->net->o->lag = run->lag;
    if (corun_engine_open(&e, m, &run->o) != CORUN_OK) stream_die("open");
    size_t sent = 0;
    int32_t steps = 0;
    bool fits = stream_submit(e, run, &sent);
    corun_event ev = {.kind = CORUN_EVENT_NONE};
    while (fits && ev.kind != CORUN_EVENT_IDLE) {
        if (corun_next(e, &ev) != CORUN_OK) stream_die("next");
        if (ev.kind != CORUN_EVENT_NONE && ev.kind != CORUN_EVENT_IDLE) {
            for (size_t i = 0; i < sent; i++)
                if (run->q[i]->id == ev.id) stream_event(run->q[i], &ev);
            continue;
        }
        steps++;
        for (size_t i = 0; i < sent; i++)
            if (run->q[i]->cancel == steps && corun_cancel(e, run->q[i]->id) != CORUN_OK)
                stream_die("cancel");
        if (sent < run->n) ev.kind = CORUN_EVENT_NONE;
        fits = stream_submit(e, run, &sent);
    }
    if (corun_engine_stats(e, &run->stats) != CORUN_OK) stream_die("stats");
    corun_engine_close(e);
    if (!fits) return false;
    if (run->stats.pages_free != run->stats.pages) stream_die("pages are not free at the end");
    return true;
}

/* The kept requests among those of `others`, in an order of the stream's own. */
static inline void stream_mix(stream_bytes *b, stream_run *run, stream_request *kept, size_t n_kept,
                              stream_request *others, size_t n_others)
{
    run->n = n_kept + n_others;
    for (size_t i = 0; i < run->n; i++) run->q[i] = i < n_kept ? &kept[i] : &others[i - n_kept];
    for (size_t i = run->n; i > 1; i--) {
        size_t k = stream_take(b, (uint32_t)i);
        stream_request *t = run->q[i - 1];
        run->q[i - 1] = run->q[k];
        run->q[k] = t;
    }
    run->group = 1 + stream_take(b, (uint32_t)run->n);
}

static inline void stream_schedule(stream_bytes *b, const stream_policy *p, uint64_t page,
                                   int32_t width, stream_run *run)
{
    run->o = corun_engine_opts_default();
    run->o.policy = p->policy;
    run->o.n_ctx = STREAM_CTX;
    run->o.page_tokens = 16;
    int32_t other = 1 + (int32_t)stream_take(b, 8), chunk = 1 + (int32_t)stream_take(b, 300);
    run->o.n_slot = p->width ? width : other;
    run->o.prefill_chunk = p->chunk ? p->chunk : chunk + run->o.n_slot;
    run->o.kv_bytes = page * (8 + stream_take(b, 120));
    run->lag = (int32_t)stream_take(b, 2);
}

typedef struct stream_seen {
    uint64_t streams, swaps, recomputes, prefix_hits, prompt_cuts, cancelled, samples;
} stream_seen;

static inline void stream_compare(const stream_request *a, const stream_request *b, size_t i)
{
    for (int32_t k = 0; k < a->r.sampling.n; k++) {
        const stream_got *x = &a->got[k], *y = &b->got[k];
        if (memcmp(&x->d, &y->d, sizeof x->d) == 0) continue;
        int32_t t = 0;
        while (t < x->n_token && t < y->n_token && x->token[t] == y->token[t]) t++;
        fprintf(stderr,
                "stream: request %zu, sample %d: the runs differ (%d and %d tokens, the first %d "
                "are equal)\n",
                i, k, x->n_token, y->n_token, t);
        abort();
    }
}

/* models: one for each row of stream_policies, opened by the caller. */
static inline void stream_check(corun_model *const *models, const uint8_t *data, size_t size,
                                stream_seen *seen)
{
    static stream_request kept[2][STREAM_KEPT], others[2][STREAM_OTHERS];
    stream_bytes b = {data, size, 0};
    uint32_t row = stream_take(&b, sizeof stream_policies / sizeof *stream_policies);
    const stream_policy *p = &stream_policies[row];
    corun_model *m = models[row];
    corun_model_info info;
    if (corun_model_describe(m, &info) != CORUN_OK) stream_die("describe");
    uint64_t page = info.kv_bytes_per_token * 16;
    size_t n_kept = 1 + stream_take(&b, STREAM_KEPT);
    int32_t width = 1 + (int32_t)stream_take(&b, 8);
    for (size_t i = 0; i < n_kept; i++) stream_draw_request(&b, m, &kept[0][i]);
    stream_run run[2];
    for (int k = 0; k < 2; k++) {
        for (size_t i = 0; k && i < n_kept; i++) {
            kept[1][i] = kept[0][i];
            kept[1][i].r.tokens = kept[1][i].tokens;
            for (int t = 0; t < 2; t++) kept[1][i].stop[t].data = kept[1][i].stop_text[t];
            if (kept[1][i].r.sampling.n_stop) kept[1][i].r.sampling.stop = kept[1][i].stop;
        }
        size_t n_others = stream_take(&b, STREAM_OTHERS + 1);
        for (size_t i = 0; i < n_others; i++) {
            stream_draw_request(&b, m, &others[k][i]);
            others[k][i].cancel = (int32_t)stream_take(&b, 40) - 10;
            if (others[k][i].cancel <= 0) others[k][i].cancel = -1;
            seen->cancelled += others[k][i].cancel > 0;
        }
        stream_schedule(&b, p, page, width, &run[k]);
        stream_mix(&b, &run[k], kept[k], n_kept, others[k], n_others);
        while (!stream_go(m, &run[k])) run[k].o.kv_bytes *= 2; /* too small for one of them */
        seen->swaps += run[k].stats.swaps_out;
        seen->recomputes += run[k].stats.recomputes;
        seen->prefix_hits += run[k].stats.prefix_hits;
        seen->prompt_cuts += run[k].stats.prompt_cuts;
    }
    for (size_t i = 0; i < n_kept; i++) {
        stream_compare(&kept[0][i], &kept[1][i], i);
        seen->samples += (uint64_t)kept[0][i].r.sampling.n;
    }
    seen->streams++;
}

#endif
