/* verify_reuse.c - owns the recipes about pages and phases: F, G, N, O, R. Invariant: the reference
 * is always computed in full, on an engine that has run nothing else. */
#include "proof/verify_int.h"

#include <string.h>

/* ---- F -------------------------------------------------------------------------------------- */

enum { N_SUFFIX = 8 };

/* The prefix of a length, and one of two endings. */
static corun_status make_prefixed(vf *v, int32_t len, uint64_t ending, corun_request *out)
{
    int32_t *prefix, *suffix, *t;
    TRY(vf_words(v, 5000 + (uint64_t)len, (size_t)len, &prefix));
    TRY(vf_words(v, 6000 + ending, N_SUFFIX, &suffix));
    TRY(vf_tokens_new(v, (size_t)len + N_SUFFIX, &t));
    memcpy(t, prefix, (size_t)len * sizeof *t);
    memcpy(t + len, suffix, N_SUFFIX * sizeof *t);
    *out = vf_request(v, t, (size_t)len + N_SUFFIX, v->few ? 8 : 32, 600 + ending);
    return CORUN_OK;
}

/* One after the other on one engine: first the ones that leave pages behind, then those that may
 * find them. */
static corun_status run_warm(vf *v, vf_job *first, vf_job *then, size_t n, corun_stats *s)
{
    corun_engine *e;
    TRY(corun_engine_open(&e, v->m, &v->eo));
    corun_status st = vf_run_on(e, first, n, (vf_when){.alive = 1}, s);
    if (st == CORUN_OK) st = vf_run_on(e, then, n, (vf_when){.alive = 1}, s);
    corun_engine_close(e);
    return st;
}

/* Two scored texts with one beginning, in both orders. */
static corun_status score_orders(vf *v, vf_cell *c)
{
    corun_stats s = {0};
    vf_job q[2] = {{{0}}}, back[2] = {{{0}}};
    corun_status st = CORUN_OK;
    for (uint64_t i = 0; i < 2 && st == CORUN_OK; i++) {
        st = make_prefixed(v, 100, i, &q[i].r);
        q[i].r.sampling.max_tokens = 0;
        q[i].r.sampling.prompt_logprobs = VERIFY_TOP;
        back[1 - i].r = q[i].r;
    }
    if (st == CORUN_OK) st = vf_run(v->m, &v->eo, q, 2, (vf_when){.alive = 1}, &s);
    if (st == CORUN_OK) st = vf_run(v->m, &v->eo, back, 2, (vf_when){.alive = 1}, &s);
    for (int i = 0; i < 2 && st == CORUN_OK; i++)
        vf_check(c, &q[i], &back[1 - i], false, "scored text %d in the other order", i);
    vf_jobs_free(q, 2);
    vf_jobs_free(back, 2);
    return st;
}

/* F: a prefix that is new against one that is known. */
corun_status vf_prefix(vf *v, vf_cell *c)
{
    enum { MAX = 8 };
    int32_t p = v->eo.page_tokens;
    const int32_t all[] = {1, p - 1, p, p + 1, 511, 2048, 4097};
    vf_job cold[MAX] = {{{0}}}, first[MAX] = {{{0}}}, warm[MAX] = {{{0}}};
    corun_stats s = {0};
    size_t n = 0;
    if (!v->p->reuse) {
        vf_na(c, "%s computes every prompt in full", v->p->name);
        return CORUN_OK;
    }
    if (v->p->reuse > v->max_prefix) {
        vf_na(c, "prefixes are reused in pieces of %d tokens, this form stops at %d", v->p->reuse,
              v->max_prefix);
        return CORUN_OK;
    }
    corun_status st = CORUN_OK;
    vf_note(c, "prefixes of");
    for (size_t i = 0; i < sizeof all / sizeof *all && st == CORUN_OK; i++) {
        if (all[i] > v->max_prefix || all[i] + 64 > v->info.n_ctx) continue;
        vf_note(c, " %d", all[i]);
        st = make_prefixed(v, all[i], 0, &first[n].r);
        if (st == CORUN_OK) st = make_prefixed(v, all[i], 1, &cold[n].r);
        warm[n].r = cold[n].r;
        if (st == CORUN_OK) st = vf_alone(v, &cold[n++]);
    }
    if (st == CORUN_OK) st = run_warm(v, first, warm, n, &s);
    for (size_t i = 0; i < n && st == CORUN_OK; i++)
        vf_check(c, &cold[i], &warm[i], false, "known prefix of %zu tokens",
                 cold[i].r.n_token - N_SUFFIX);
    if (st == CORUN_OK) st = score_orders(v, c);
    vf_jobs_free(cold, n);
    vf_jobs_free(first, n);
    vf_jobs_free(warm, n);
    vf_note(c, " tokens: %llu hits, %llu tokens not computed", (unsigned long long)s.prefix_hits,
            (unsigned long long)s.prefix_tokens);
    if (st == CORUN_OK) vf_need(c, s.prefix_hits, "prefix hits");
    return st;
}

/* ---- G -------------------------------------------------------------------------------------- */

enum { N_EVICT = 5 };

/* The first five made requests, of different lengths, in a small pool. */
static corun_status run_evicted(vf *v, vf_cell *c, int32_t pages, corun_stats *s)
{
    vf_job q[N_EVICT] = {{{0}}};
    const vf_job *want[N_EVICT];
    corun_engine_opts o = v->eo;
    vf_pool(v, &o, pages);
    o.swap_bytes = (int64_t)v->eo.kv_bytes;
    for (size_t i = 0; i < N_EVICT; i++) {
        want[i] = &v->set[v->n_own + i];
        q[i].r = vf_cut(want[i]->r, 8 * o.page_tokens);
    }
    corun_status st = vf_run(v->m, &o, q, N_EVICT, (vf_when){.group = 1}, s);
    for (size_t i = 0; i < N_EVICT && st == CORUN_OK; i++)
        vf_check(c, want[i], &q[i], true, "%d pages, request %zu", pages,
                 (size_t)(want[i] - v->set));
    vf_jobs_free(q, N_EVICT);
    return st;
}

/* G: the pool is cut until requests lose their pages, one of them more than once. */
corun_status vf_eviction(vf *v, vf_cell *c)
{
    int32_t least = 2, fits = 1, p = v->eo.page_tokens;
    corun_stats s = {0};
    for (size_t i = 0; i < N_EVICT; i++) {
        corun_request r = vf_cut(v->set[v->n_own + i].r, 8 * p);
        int32_t pages = vf_pages(v, &r);
        int32_t whole = ((int32_t)r.n_token + r.sampling.n * r.sampling.max_tokens + p - 1) / p;
        least = pages > least ? pages : least;
        fits = whole > fits ? whole : fits;
    }
    for (int32_t pages = least + 2; pages >= fits && pages >= least - 2; pages -= 2) {
        TRY(run_evicted(v, c, pages, &s));
        vf_note(c, "%s%d pages: %llu moves out, %llu recomputes, one request %llu times",
                c->seen[0] ? "; " : "", pages, (unsigned long long)s.swaps_out,
                (unsigned long long)s.recomputes, (unsigned long long)s.preempted_most);
        if (s.preempted_most >= 2) break;
    }
    vf_need(c, s.preempted_most >= 2, "a request that lost its pages several times");
    if (v->p->recomputes)
        vf_need(c, s.recomputes, "recomputes");
    else
        vf_need(c, s.swaps_out, "moves out");
    return CORUN_OK;
}

/* ---- N -------------------------------------------------------------------------------------- */

/* N: the log-likelihood of texts at every batch size. */
corun_status vf_scores(vf *v, vf_cell *c)
{
    enum { MAX = 64 };
    static const size_t sizes[] = {1, 4, 5, 16, 64};
    size_t n = v->few ? 16 : MAX, n_size = v->few ? 4 : 5;
    vf_job base[MAX] = {{{0}}}, q[MAX] = {{{0}}};
    corun_status st = CORUN_OK;
    double sum = 0;
    uint64_t scored = 0;
    vf_note(c, "%zu texts at batch", n);
    for (size_t k = 0; k < n_size && st == CORUN_OK; k++) {
        vf_job *to = k ? q : base;
        for (size_t i = 0; i < n && st == CORUN_OK; i++) {
            size_t len = 8 + i * 7 % (v->few ? 17 : 45);
            int32_t *t;
            if ((st = vf_words(v, 8000 + i, len, &t)) != CORUN_OK) break;
            to[i].r = vf_request(v, t, len, 0, 1);
            to[i].r.sampling.prompt_logprobs = VERIFY_TOP;
        }
        corun_stats s = {0};
        if (st == CORUN_OK) st = vf_run(v->m, &v->eo, to, n, (vf_when){.alive = sizes[k]}, &s);
        vf_note(c, " %zu", sizes[k]);
        for (size_t i = 0; i < n && k && st == CORUN_OK; i++)
            vf_check(c, &base[i], &q[i], false, "batch %zu, text %zu", sizes[k], i);
    }
    for (size_t i = 0; i < n && st == CORUN_OK; i++)
        for (int32_t j = 0; j < base[i].s[0].prompt.n; j++, scored++) {
            float f;
            memcpy(&f, &base[i].s[0].prompt.t[j].logprob, sizeof f);
            sum += (double)f;
        }
    vf_jobs_free(base, n);
    vf_jobs_free(q, n);
    vf_note(c, ": %llu tokens, sum %.9g", (unsigned long long)scored, sum);
    if (st == CORUN_OK) vf_need(c, scored, "scored tokens");
    return st;
}

/* ---- O -------------------------------------------------------------------------------------- */

/* The answer as part of a prompt: the log-probabilities that its tokens have there. */
static corun_status score_answer(vf *v, vf_cell *c, const vf_job *want)
{
    const vf_tokens *a = &want->s[0].drawn;
    size_t n = want->r.n_token;
    int32_t *t;
    TRY(vf_tokens_new(v, n + (size_t)a->n, &t));
    memcpy(t, want->r.tokens, n * sizeof *t);
    for (int32_t i = 0; i < a->n; i++) t[n + (size_t)i] = a->t[i].id;
    vf_job q = {.r = vf_request(v, t, n + (size_t)a->n, 0, 1)};
    q.r.sampling.prompt_logprobs = want->r.sampling.logprobs;
    corun_status st = vf_alone(v, &q);
    for (int32_t i = 0; i < a->n && st == CORUN_OK; i++) {
        char why[200];
        if (!vf_same_token(&a->t[i], &q.s[0].prompt.t[n + (size_t)i - 1], why, sizeof why)) {
            vf_broken(c, "scored as a prompt, token %d: %s", i, why);
            break;
        }
    }
    vf_note(c, ", %d tokens scored as a prompt", a->n);
    vf_jobs_free(&q, 1);
    return st;
}

/* The answer's first half as prompt: the same second half must follow. */
static corun_status go_on(vf *v, vf_cell *c, const vf_job *want)
{
    const vf_tokens *a = &want->s[0].drawn;
    const corun_sampling *s = &want->r.sampling;
    if (s->presence_penalty != 0 || s->frequency_penalty != 0 || s->n_bad || s->n_stop ||
        s->min_tokens)
        return CORUN_OK;
    int32_t half = a->n / 2, *t;
    size_t n = want->r.n_token;
    TRY(vf_tokens_new(v, n + (size_t)half, &t));
    memcpy(t, want->r.tokens, n * sizeof *t);
    for (int32_t i = 0; i < half; i++) t[n + (size_t)i] = a->t[i].id;
    vf_job q = {.r = vf_cut(want->r, a->n - half)};
    q.r.tokens = t;
    q.r.n_token = n + (size_t)half;
    q.r.sampling.prompt_logprobs = -1;
    corun_status st = vf_alone(v, &q);
    for (int32_t i = half; i < a->n && st == CORUN_OK; i++) {
        char why[200] = "it is not there";
        const vf_tokens *g = &q.s[0].drawn;
        if (i - half < g->n && vf_same_token(&a->t[i], &g->t[i - half], why, sizeof why)) continue;
        vf_broken(c, "gone on with from token %d, token %d: %s", half, i, why);
        break;
    }
    vf_note(c, ", gone on with from token %d", half);
    vf_jobs_free(&q, 1);
    return st;
}

/* O: a recorded answer, made again from what was recorded. */
corun_status vf_replay(vf *v, vf_cell *c)
{
    const vf_job *want = &v->set[v->needle];
    if (want->r.sampling.n > 1) want = &v->set[v->n_own];
    vf_job q = {.r = vf_cut(want->r, v->few ? 64 : v->n_new)};
    corun_status st = vf_alone(v, &q);
    int32_t n = st == CORUN_OK ? q.s[0].drawn.n : 0;
    if (st == CORUN_OK) vf_check(c, want, &q, true, "run again, request %zu", want - v->set);
    vf_jobs_free(&q, 1);
    vf_note(c, "%d tokens run again by decode", n);
    vf_need(c, (uint64_t)n, "tokens");
    if (st != CORUN_OK) return st;
    if (!v->p->phase || v->eo.processed_logprobs) {
        vf_note(c, v->p->phase ? "; not scored: log-probabilities are processed ones"
                               : "; not scored: prompt bits are not decode bits here");
        return CORUN_OK;
    }
    TRY(score_answer(v, c, want));
    return go_on(v, c, want);
}

/* ---- R -------------------------------------------------------------------------------------- */

/* R: a long prompt in one piece and in many. */
corun_status vf_chunks(vf *v, vf_cell *c)
{
    int32_t chunks[] = {64, 100, 333}, n_chunk = v->few ? 2 : 3;
    int32_t len = v->few ? 511 : 2500, cut = v->few ? 16 : 64, *t;
    if (!v->p->chunks) {
        vf_na(c, "the cuts of a prompt are part of the identity of %s", v->p->name);
        return CORUN_OK;
    }
    if (v->p->cut) {
        len = 2 * v->p->cut + 300;
        chunks[0] = v->p->cut;
        n_chunk = 1;
    }
    if (len > v->max_prefix + 600 || len + cut > v->info.n_ctx) {
        vf_na(c, "prompts are cut every %d tokens, this form stops at %d", v->p->cut,
              v->max_prefix);
        return CORUN_OK;
    }
    TRY(vf_words(v, 9000, (size_t)len, &t));
    corun_request r = vf_request(v, t, (size_t)len, cut, 9);
    corun_engine_opts o = v->eo;
    o.prefill_chunk = v->p->cut ? 3 * v->p->cut : len + o.n_slot;
    vf_job whole = {.r = r};
    corun_stats s = {0};
    uint64_t cuts = 0;
    corun_status st = vf_run(v->m, &o, &whole, 1, (vf_when){0}, &s);
    vf_note(c, "%d tokens in steps of %d and of", len, o.prefill_chunk);
    for (int32_t i = 0; i < n_chunk && st == CORUN_OK; i++) {
        vf_job q[3] = {{.r = vf_cut(v->set[v->n_own + 1].r, cut)},
                       {.r = r},
                       {.r = vf_cut(v->set[v->n_own + 2].r, cut)}};
        o.prefill_chunk = chunks[i] < o.n_slot ? o.n_slot : chunks[i];
        st = vf_run(v->m, &o, q, 3, (vf_when){0}, &s);
        if (st == CORUN_OK)
            vf_check(c, &whole, &q[1], false, "steps of %d tokens", o.prefill_chunk);
        vf_jobs_free(q, 3);
        cuts += s.prompt_cuts;
        vf_note(c, " %d", o.prefill_chunk);
    }
    vf_jobs_free(&whole, 1);
    vf_note(c, ": %llu cuts", (unsigned long long)cuts);
    if (st == CORUN_OK) vf_need(c, cuts, "cuts inside a prompt");
    return st;
}
