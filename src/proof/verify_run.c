/* verify_run.c - owns runs of request lists and the comparison of their answers. Invariant: all
 * that an event carries is kept, floats as their bits, and all of it is compared. */
#include "proof/verify_int.h"

#include <string.h>

static uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static corun_status add_token(vf_tokens *a, const corun_event *e)
{
    if (a->n == a->cap) {
        int32_t cap = a->cap ? 2 * a->cap : 64;
        vf_token *t = mem_realloc(a->t, (size_t)cap, sizeof *t, "tokens of an answer");
        if (!t) return CORUN_ENOMEM;
        a->t = t;
        a->cap = cap;
    }
    vf_token *t = &a->t[a->n++];
    memset(t, 0, sizeof *t);
    t->id = e->token;
    t->logprob = bits_of(e->logprob);
    t->n_top = e->n_top;
    for (int32_t i = 0; i < e->n_top; i++) {
        t->top_id[i] = e->top_id[i];
        t->top_logprob[i] = bits_of(e->top_logprob[i]);
    }
    return CORUN_OK;
}

static void free_answer(vf_job *q)
{
    for (int32_t i = 0; q->s && i < q->r.sampling.n; i++) {
        mem_free(q->s[i].drawn.t);
        mem_free(q->s[i].prompt.t);
        mem_free(q->s[i].failure);
        buf_free(&q->s[i].text);
    }
    mem_free(q->s);
    q->s = NULL;
}

void vf_jobs_free(vf_job *q, size_t n)
{
    for (size_t i = 0; i < n; i++) free_answer(&q[i]);
}

static corun_status take(vf_job *q, const corun_event *e)
{
    if (e->sample < 0 || e->sample >= q->r.sampling.n)
        FAIL(CORUN_EMISMATCH, "an event of sample %d, of %d samples", e->sample, q->r.sampling.n);
    vf_sample *s = &q->s[e->sample];
    if (s->done || s->failure) FAIL(CORUN_EMISMATCH, "an event of a sample that has ended");
    if (e->kind == CORUN_EVENT_PROMPT) {
        if (e->index != s->prompt.n + 1)
            FAIL(CORUN_EMISMATCH, "prompt token %d came after token %d", e->index, s->prompt.n);
        return add_token(&s->prompt, e);
    }
    if (e->kind == CORUN_EVENT_FAILED) {
        s->failure = mem_dup(e->text, e->text_len, "failure");
        q->n_open--;
        return s->failure ? CORUN_OK : CORUN_ENOMEM;
    }
    if (e->kind == CORUN_EVENT_TOKEN) {
        if (e->index != s->drawn.n)
            FAIL(CORUN_EMISMATCH, "token %d came where token %d was due", e->index, s->drawn.n);
        TRY(add_token(&s->drawn, e));
    }
    buf_put(&s->text, e->text, e->text_len);
    TRY(buf_status(&s->text));
    if (e->kind != CORUN_EVENT_DONE) return CORUN_OK;
    if (e->n_new != s->drawn.n)
        FAIL(CORUN_EMISMATCH, "%d tokens came, the end counts %d", s->drawn.n, e->n_new);
    s->done = true;
    s->finish = e->finish;
    s->stop_index = e->stop_index;
    s->stop_token = e->stop_token;
    /* A prompt that is only scored ends once, for all its samples. */
    q->n_open -= q->r.sampling.max_tokens == 0 ? q->n_open : 1;
    return CORUN_OK;
}

static corun_status submit(corun_engine *e, vf_job *q)
{
    free_answer(q);
    if (!MEM_NEW(q->s, (size_t)q->r.sampling.n)) return CORUN_ENOMEM;
    for (int32_t i = 0; i < q->r.sampling.n; i++) buf_init(&q->s[i].text, (size_t)1 << 28);
    q->n_open = q->r.sampling.n;
    return corun_submit(e, &q->r, &q->id);
}

static void subtract(corun_stats *s, const corun_stats *b)
{
    s->steps_prefill -= b->steps_prefill;
    s->steps_decode -= b->steps_decode;
    s->steps_mixed -= b->steps_mixed;
    s->tokens_prompt -= b->tokens_prompt;
    s->tokens_new -= b->tokens_new;
    s->rows_live -= b->rows_live;
    s->rows_dead -= b->rows_dead;
    s->swaps_out -= b->swaps_out;
    s->swaps_in -= b->swaps_in;
    s->recomputes -= b->recomputes;
    s->prefix_hits -= b->prefix_hits;
    s->prefix_tokens -= b->prefix_tokens;
    s->prompt_cuts -= b->prompt_cuts;
}

static uint64_t count_steps(const corun_stats *s)
{
    return s->steps_prefill + s->steps_decode + s->steps_mixed;
}

corun_status vf_run_on(corun_engine *e, vf_job *q, size_t n, vf_when w, corun_stats *stats)
{
    corun_stats before;
    TRY(corun_engine_stats(e, &before));
    size_t sent = 0, ended = 0, budget = 0;
    uint64_t steps = UINT64_MAX;
    corun_event ev;
    while (ended < n) {
        TRY(corun_engine_stats(e, stats));
        if (steps != count_steps(stats)) budget = w.group ? w.group : n;
        steps = count_steps(stats);
        for (; budget && sent < n && (!w.alive || sent - ended < w.alive); budget--, sent++)
            TRY(submit(e, &q[sent]));
        if (sent == ended) steps = UINT64_MAX; /* nothing runs: time goes on */
        if (sent == ended) continue;
        TRY(corun_next(e, &ev));
        if (ev.kind == CORUN_EVENT_IDLE && sent > ended)
            FAIL(CORUN_EMISMATCH, "the engine is idle, %zu requests have no end", sent - ended);
        if (ev.kind == CORUN_EVENT_NONE || ev.kind == CORUN_EVENT_IDLE) continue;
        size_t i = 0;
        while (i < sent && q[i].id != ev.id) i++;
        if (i == sent)
            FAIL(CORUN_EMISMATCH, "an event of request %llu, which is none of the run",
                 (unsigned long long)ev.id);
        if (!q[i].n_open) FAIL(CORUN_EMISMATCH, "an event of a request that has ended");
        TRY(take(&q[i], &ev));
        ended += !q[i].n_open;
    }
    corun_status st; /* a step that was given ahead may still have to land */
    do st = corun_next(e, &ev);
    while (st == CORUN_OK && ev.kind == CORUN_EVENT_NONE);
    if (st == CORUN_OK && ev.kind != CORUN_EVENT_IDLE)
        st = err_set(CORUN_EMISMATCH, "an event came after the end of all requests");
    if (st == CORUN_OK) st = corun_engine_stats(e, stats);
    subtract(stats, &before);
    return st;
}

corun_status vf_run(corun_model *m, const corun_engine_opts *o, vf_job *q, size_t n, vf_when w,
                    corun_stats *stats)
{
    corun_engine *e;
    TRY(corun_engine_open(&e, m, o));
    corun_status st = vf_run_on(e, q, n, w, stats);
    corun_engine_close(e);
    return st;
}

int vf_live_counts(const corun_stats *s)
{
    int n = 0;
    for (int i = 0; i < 8; i++) n += __builtin_popcountll(s->live_rows_seen[i]);
    return n;
}

int vf_live_most(const corun_stats *s)
{
    for (int i = 511; i >= 0; i--)
        if (s->live_rows_seen[i / 64] >> (i % 64) & 1) return i + 1;
    return 0;
}

/* ---- comparison ----------------------------------------------------------------------------- */

static bool same_bits(uint32_t want, uint32_t got, const char *what, char *why, size_t cap)
{
    if (want == got) return true;
    snprintf(why, cap, "%s: bit %d (%08x, not %08x)", what, __builtin_ctz(want ^ got),
             (unsigned)got, (unsigned)want);
    return false;
}

bool vf_same_token(const vf_token *want, const vf_token *got, char *why, size_t cap)
{
    if (want->id != got->id) {
        snprintf(why, cap, "id %d, not %d", got->id, want->id);
        return false;
    }
    if (!same_bits(want->logprob, got->logprob, "log-probability", why, cap)) return false;
    if (want->n_top != got->n_top) {
        snprintf(why, cap, "%d alternatives, not %d", got->n_top, want->n_top);
        return false;
    }
    for (int32_t i = 0; i < want->n_top; i++) {
        char what[64];
        snprintf(what, sizeof what, "alternative %d", i);
        if (want->top_id[i] != got->top_id[i]) {
            snprintf(why, cap, "%s: id %d, not %d", what, got->top_id[i], want->top_id[i]);
            return false;
        }
        if (!same_bits(want->top_logprob[i], got->top_logprob[i], what, why, cap)) return false;
    }
    return true;
}

static bool same_tokens(const vf_tokens *want, const vf_tokens *got, bool as_prefix,
                        const char *what, int32_t first, char *why, size_t cap)
{
    for (int32_t i = 0; i < want->n && i < got->n; i++) {
        char text[200];
        if (vf_same_token(&want->t[i], &got->t[i], text, sizeof text)) continue;
        snprintf(why, cap, "%s %d: %s", what, first + i, text);
        return false;
    }
    if (got->n == want->n || (as_prefix && got->n < want->n)) return true;
    snprintf(why, cap, "%d %ss, not %d", got->n, what, want->n);
    return false;
}

bool vf_same_sample(const vf_sample *want, const vf_sample *got, bool as_prefix, char *why,
                    size_t cap)
{
    if (want->failure || got->failure) {
        snprintf(why, cap, "failed: %s", got->failure ? got->failure : want->failure);
        return false;
    }
    if (!same_tokens(&want->prompt, &got->prompt, false, "prompt token", 1, why, cap) ||
        !same_tokens(&want->drawn, &got->drawn, as_prefix, "token", 0, why, cap))
        return false;
    if (as_prefix && got->drawn.n < want->drawn.n) return true;
    if (want->text.len != got->text.len ||
        (want->text.len && memcmp(want->text.data, got->text.data, want->text.len) != 0)) {
        snprintf(why, cap, "the tokens are equal, the texts are not");
        return false;
    }
    if (want->done == got->done && want->finish == got->finish &&
        want->stop_index == got->stop_index && want->stop_token == got->stop_token)
        return true;
    snprintf(why, cap, "the tokens are equal, the ends are not");
    return false;
}

bool vf_same(const vf_job *want, const vf_job *got, bool as_prefix, char *why, size_t cap)
{
    for (int32_t i = 0; i < want->r.sampling.n; i++) {
        char text[300];
        int32_t n = want->s[i].drawn.n, max = got->r.sampling.max_tokens;
        if (as_prefix && got->s[i].drawn.n < n && got->s[i].drawn.n < max) as_prefix = false;
        if (vf_same_sample(&want->s[i], &got->s[i], as_prefix, text, sizeof text)) continue;
        if (want->r.sampling.n > 1)
            snprintf(why, cap, "sample %d, %s", i, text);
        else
            snprintf(why, cap, "%s", text);
        return false;
    }
    return true;
}
