/* engine_run.h - runs lists of requests through the public interface and keeps all that a request
 * got, so that two runs are compared by bytes. */
#ifndef TESTS_ENGINE_RUN_H
#define TESTS_ENGINE_RUN_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "corun.h"

enum { RUN_MAX_TOKEN = 640, RUN_MAX_TEXT = 8192, RUN_MAX_PROMPT = 4300 };

/* Everything a sample got. Compared as bytes: all of it is set to 0 first. */
typedef struct run_sample {
    int32_t n_token, n_prompt, done, failed, finish, stop_index, stop_token, text_len, n_prompt_lp;
    int32_t token[RUN_MAX_TOKEN];
    uint32_t logprob[RUN_MAX_TOKEN];
    int32_t top_id[RUN_MAX_TOKEN][3];
    uint32_t top_logprob[RUN_MAX_TOKEN][3];
    uint32_t prompt_logprob[RUN_MAX_PROMPT];
    char text[RUN_MAX_TEXT];
} run_sample;

typedef struct run_request {
    corun_request r;
    run_sample *out; /* [r.sampling.n] */
} run_request;

static inline uint32_t run_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline void run_take(run_sample *s, const corun_event *ev)
{
    if (ev->kind == CORUN_EVENT_PROMPT) {
        assert_true(ev->index >= 1 && ev->index < RUN_MAX_PROMPT);
        s->prompt_logprob[ev->index] = run_bits(ev->logprob);
        s->n_prompt_lp++;
        return;
    }
    if (ev->kind == CORUN_EVENT_TOKEN) {
        assert_int_equal(ev->index, s->n_token);
        assert_true(s->n_token < RUN_MAX_TOKEN);
        s->token[s->n_token] = ev->token;
        s->logprob[s->n_token] = run_bits(ev->logprob);
        for (int k = 0; k < 3 && k < ev->n_top; k++) {
            s->top_id[s->n_token][k] = ev->top_id[k];
            s->top_logprob[s->n_token][k] = run_bits(ev->top_logprob[k]);
        }
        s->n_token++;
    }
    assert_true(s->text_len + ev->text_len < RUN_MAX_TEXT);
    memcpy(s->text + s->text_len, ev->text, ev->text_len);
    s->text_len += (int32_t)ev->text_len;
    if (ev->kind == CORUN_EVENT_FAILED) s->failed = 1;
    if (ev->kind == CORUN_EVENT_DONE) {
        s->done = 1;
        s->finish = (int32_t)ev->finish;
        s->stop_index = ev->stop_index;
        s->stop_token = ev->stop_token;
        s->n_prompt = ev->n_prompt;
        assert_int_equal(ev->n_new, s->n_token);
    }
}

/* Submits `group` requests, runs one step, submits the next ...; fails the test on any error. */
static inline corun_stats run_all(corun_model *m, const corun_engine_opts *o, run_request *q,
                                  size_t n, size_t group)
{
    corun_engine *e;
    corun_status st = corun_engine_open(&e, m, o);
    if (st != CORUN_OK) fail_msg("%s", corun_last_error());
    uint64_t first = 0;
    size_t sent = 0;
    corun_event ev = {.kind = CORUN_EVENT_NONE};
    while (sent < n || ev.kind != CORUN_EVENT_IDLE) {
        bool quiet = ev.kind == CORUN_EVENT_NONE || ev.kind == CORUN_EVENT_IDLE;
        for (size_t k = 0; quiet && k < group && sent < n; k++, sent++) {
            uint64_t id;
            for (int32_t i = 0; i < q[sent].r.sampling.n; i++)
                memset(&q[sent].out[i], 0, sizeof *q[sent].out);
            if (corun_submit(e, &q[sent].r, &id) != CORUN_OK) fail_msg("%s", corun_last_error());
            if (sent == 0) first = id;
            assert_int_equal(id, first + sent);
        }
        if (corun_next(e, &ev) != CORUN_OK) fail_msg("%s", corun_last_error());
        if (ev.kind != CORUN_EVENT_NONE && ev.kind != CORUN_EVENT_IDLE)
            run_take(&q[ev.id - first].out[ev.sample], &ev);
    }
    corun_stats s;
    assert_int_equal(corun_engine_stats(e, &s), CORUN_OK);
    assert_int_equal(s.pages_free, s.pages); /* nothing leaked */
    assert_int_equal(s.swap_pages_free, s.swap_pages);
    corun_engine_close(e);
    return s;
}

/* Number of samples that differ in any byte. */
static inline int run_differ(const run_sample *a, const run_sample *b, size_t n)
{
    int d = 0;
    for (size_t i = 0; i < n; i++) d += memcmp(&a[i], &b[i], sizeof *a) != 0;
    return d;
}

static inline uint64_t run_rand(uint64_t *state)
{
    uint64_t x = *state += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* What a test does to each model that run_open opens. */
static void (*run_prepare)(corun_model *m);

static inline corun_model *run_open(const char *path)
{
    corun_model *m;
    corun_model_opts o = corun_model_opts_default();
    o.path = path;
    o.n_thread = 1;
    if (corun_model_open(&m, &o) != CORUN_OK) fail_msg("%s: %s", path, corun_last_error());
    if (run_prepare) run_prepare(m);
    return m;
}

#endif
