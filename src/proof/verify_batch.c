/* verify_batch.c - owns the recipes about who else is in the batch: A to E, I, P. Invariant: what
 * is compared is the answer beside others with the answer alone. */
#include "proof/verify_int.h"

static void shuffle(vf *v, size_t *order, size_t n)
{
    for (size_t i = 0; i < n; i++) order[i] = i;
    for (size_t i = n; i > 1; i--) {
        size_t k = (size_t)vf_rand(v, i), t = order[i - 1];
        order[i - 1] = order[k];
        order[k] = t;
    }
}

static uint64_t least(uint64_t n, uint64_t want) { return n < want ? 0 : n; }

/* A request that only stands beside others: a short prompt, an answer of at least half the length.
 */
static corun_status make_neighbour(vf *v, uint64_t i, int32_t max_tokens, corun_request *out)
{
    int32_t *t, half = (max_tokens + 1) / 2;
    size_t n = 1 + (size_t)vf_rand(v, 40);
    TRY(vf_words(v, 20000 + i, n, &t));
    int32_t new = half + (int32_t)vf_rand(v, (uint64_t)(max_tokens - half + 1));
    *out = vf_request(v, t, n, new, 30000 + i);
    out->sampling.temperature = i % 3 ? 1 : 0;
    out->sampling.top_k = i % 4 == 1 ? 20 : 0;
    return CORUN_OK;
}

/* Many requests at once. Those of the set are compared, each with its answer alone; where there are
 * fewer of them than `rows`, neighbours fill up. */
typedef struct crowd {
    size_t rows;
    int32_t cut, neighbour; /* most new tokens of the set's requests, of a neighbour's */
    vf_when when;
    const char *run;
} crowd;

static corun_status fill_crowd(vf *v, const crowd *k, const size_t *order, vf_job *q, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (order[i] < v->n_set)
            q[i].r = vf_cut(v->set[order[i]].r, k->cut);
        else
            TRY(make_neighbour(v, order[i], k->neighbour, &q[i].r));
    }
    return CORUN_OK;
}

static corun_status run_crowd(vf *v, vf_cell *c, const crowd *k, corun_stats *s)
{
    size_t n = k->rows > v->n_set ? k->rows : v->n_set, *order = NULL;
    vf_job *q = NULL;
    corun_engine_opts o = v->eo;
    corun_status st = CORUN_ENOMEM;
    if (!MEM_NEW(q, n) || !MEM_NEW(order, n)) goto done;
    shuffle(v, order, n);
    TRY_OR_DONE(fill_crowd(v, k, order, q, n));
    int32_t pages = 2;
    for (size_t i = 0; i < n; i++) pages += vf_pages(v, &q[i].r);
    if (n > v->n_set) vf_pool(v, &o, pages);
    if (o.kv_bytes < v->eo.kv_bytes) o.kv_bytes = v->eo.kv_bytes;
    TRY_OR_DONE(vf_run(v->m, &o, q, n, k->when, s));
    for (size_t i = 0; i < n; i++)
        if (order[i] < v->n_set)
            vf_check(c, &v->set[order[i]], &q[i], true, "%s, request %zu (place %zu)", k->run,
                     order[i], i);
    if (n > v->n_set)
        vf_need(c, least((uint64_t)vf_live_most(s), k->rows - v->n_set),
                "a step with all neighbours");
done:
    vf_jobs_free(q, q ? n : 0);
    mem_free(q);
    mem_free(order);
    return st;
}

/* Rows of a decode step, of which a run of neighbours can count so many. */
static size_t slots_of(const vf *v)
{
    return v->eo.n_slot < VERIFY_MAX_ROW ? (size_t)v->eo.n_slot : (size_t)VERIFY_MAX_ROW;
}

/* A: a request among many of mixed length, at random places. */
corun_status vf_needle(vf *v, vf_cell *c)
{
    int rounds = v->few ? 1 : 3, counts = 0, most = 0;
    uint64_t dead = 0;
    for (int i = 0; i < rounds; i++) {
        corun_stats s = {0};
        char run[32];
        snprintf(run, sizeof run, "round %d", i);
        crowd k = {.rows = v->few ? 0 : slots_of(v),
                   .cut = v->n_new,
                   .neighbour = v->n_new / 4,
                   .when = {.group = i == 0 ? 0 : (size_t)(1 + 5 * i)},
                   .run = run};
        TRY(run_crowd(v, c, &k, &s));
        int n = vf_live_counts(&s), m = vf_live_most(&s);
        counts = n > counts ? n : counts;
        most = m > most ? m : most;
        dead += s.rows_dead;
    }
    vf_note(c, "%zu requests, up to %d tokens, %d rounds, %d live-row counts, up to %d", v->n_set,
            v->n_new, rounds, counts, most);
    vf_need(c, least((uint64_t)counts, 3), "3 live-row counts");
    if (v->p->policy == CORUN_POLICY_CORUN) {
        vf_note(c, ", %llu dead rows", (unsigned long long)dead);
        vf_need(c, dead, "dead rows");
    }
    return CORUN_OK;
}

/* B: a neighbour's length from 1 to the maximum. */
corun_status vf_lengths(vf *v, vf_cell *c)
{
    int32_t p = v->eo.page_tokens;
    const int32_t all[] = {1, p - 1, p, p + 1, 127, 129, 511, 513, 2048, 4097};
    const int32_t quick[] = {1, p + 1, 511};
    bool few = v->few;
    size_t n = few ? sizeof quick / sizeof *quick : sizeof all / sizeof *all, beside = 0;
    int32_t cut = few ? 16 : 100;
    vf_note(c, "%d tokens beside a neighbour of length", cut);
    for (size_t i = 0; i < n; i++) {
        int32_t len = few ? quick[i] : all[i], *t;
        if (len + cut + 8 > v->info.n_ctx) continue;
        TRY(vf_words(v, 2000 + i, (size_t)len, &t));
        vf_job q[2] = {{.r = vf_request(v, t, (size_t)len, cut + 8, 3000 + i)},
                       {.r = vf_cut(v->set[v->needle].r, cut)}};
        corun_stats s = {0};
        corun_status st = vf_run(v->m, &v->eo, q, 2, (vf_when){0}, &s);
        if (st == CORUN_OK)
            vf_check(c, &v->set[v->needle], &q[1], true, "beside length %d, the needle", len);
        vf_jobs_free(q, 2);
        if (st != CORUN_OK) return st;
        beside += (s.live_rows_seen[0] & 2) != 0;
        vf_note(c, " %d", len);
    }
    vf_need(c, beside, "a step with both rows");
    return CORUN_OK;
}

/* C: neighbours that crowd one expert. */
corun_status vf_experts(vf *v, vf_cell *c)
{
    (void)v;
    vf_na(c, "a dense model has no experts");
    return CORUN_OK;
}

/* D: neighbours that drive activations and logits to extremes: one token over and over (the start
 * token among them), the largest biases, the hottest and coldest sampling. */
corun_status vf_extremes(vf *v, vf_cell *c)
{
    enum { N = 5, LEN = 64 };
    int32_t id[4] = {v->info.bos >= 0 ? v->info.bos : 0, v->info.eos >= 0 ? v->info.eos : 1, 0,
                     v->info.n_token - 1};
    const float bias[2] = {100, -100};
    int32_t cut = v->few ? 32 : 128;
    vf_job q[N] = {{.r = vf_cut(v->set[v->needle].r, cut)}};
    for (int i = 1; i < N; i++) {
        int32_t *t;
        TRY(vf_tokens_new(v, LEN, &t));
        for (int k = 0; k < LEN; k++) t[k] = id[i - 1];
        q[i].r = vf_request(v, t, LEN, cut, 50);
        q[i].r.sampling.temperature = i % 2 ? 2 : 0;
        q[i].r.sampling.bias_id = id + 2;
        q[i].r.sampling.bias = bias;
        q[i].r.sampling.n_bias = id[2] != id[3] ? 2 : 1;
    }
    corun_stats s = {0};
    corun_status st = vf_run(v->m, &v->eo, q, N, (vf_when){0}, &s);
    if (st == CORUN_OK) vf_check(c, &v->set[v->needle], &q[0], true, "the needle");
    vf_jobs_free(q, N);
    vf_note(c,
            "%d neighbours of one token each, biases of 100, temperatures 0 and 2; no "
            "per-tensor scale exists at bf16",
            N - 1);
    vf_need(c, s.live_rows_seen[0] & ~1ull, "a step with neighbours");
    return st;
}

/* E: every concurrency, arrivals shuffled, requests join and leave. */
corun_status vf_concurrency(vf *v, vf_cell *c)
{
    int32_t cut = v->few ? 8 : 64;
    corun_stats s = {0};
    uint64_t seen[8] = {0};
    /* One at a time is how a real model's references were made. */
    size_t top = slots_of(v), first = v->fake ? 1 : 2;
    vf_note(c, "%zu requests, at most", v->n_set);
    for (size_t n = first;; n = n * 2 < top ? n * 2 : top) {
        char run[32];
        snprintf(run, sizeof run, "%zu at a time", n);
        crowd k = {.rows = n, .cut = cut, .neighbour = cut, .when = {.alive = n}, .run = run};
        TRY(run_crowd(v, c, &k, &s));
        for (int i = 0; i < 8; i++) seen[i] |= s.live_rows_seen[i];
        vf_note(c, " %zu", n);
        if (n >= top) break;
    }
    for (int i = 0; i < 8; i++) s.live_rows_seen[i] = seen[i];
    vf_note(c, " at a time, order shuffled, %d live-row counts, up to %d", vf_live_counts(&s),
            vf_live_most(&s));
    vf_need(c, least((uint64_t)vf_live_counts(&s), top < 3 ? top : 3), "3 live-row counts");
    return CORUN_OK;
}

/* I: rows with a seed beside rows without one, greedy, top-k and min-p rows. The engine always has
 * a seed: a row "without" gets another one each round. */
corun_status vf_kinds(vf *v, vf_cell *c)
{
    enum { N = 6 };
    int32_t cut = v->few ? 24 : 128;
    size_t n = v->n_set < N ? v->n_set : N;
    corun_stats s = {0};
    for (int round = 0; round < 2; round++) {
        vf_job q[N + 2] = {{{0}}};
        for (size_t i = 0; i < n; i++) q[i].r = vf_cut(v->set[i].r, cut);
        for (size_t i = n; i < n + 2; i++) {
            q[i].r = vf_cut(v->set[v->needle].r, cut);
            q[i].r.sampling.seed = vf_rand(v, 1ull << 53);
            if (i == n) q[i].r.sampling.top_k = 5;
        }
        corun_status st = vf_run(v->m, &v->eo, q, n + 2, (vf_when){0}, &s);
        for (size_t i = 0; i < n && st == CORUN_OK; i++)
            vf_check(c, &v->set[i], &q[i], true, "round %d, request %zu", round, i);
        vf_jobs_free(q, n + 2);
        if (st != CORUN_OK) return st;
    }
    vf_note(c,
            "%zu seeded rows (greedy, top-k, min-p, penalties) beside 2 of other seeds, twice; "
            "%d live-row counts",
            n, vf_live_counts(&s));
    vf_need(c, s.live_rows_seen[0] & ~1ull, "a step with neighbours");
    return CORUN_OK;
}

/* P: four identical rows. */
corun_status vf_rows(vf *v, vf_cell *c)
{
    enum { N = 4 };
    int32_t cut = v->few ? 32 : v->n_new;
    vf_job q[N] = {{{0}}};
    for (int i = 0; i < N; i++) q[i].r = vf_cut(v->set[v->needle].r, cut);
    corun_stats s = {0};
    corun_status st = vf_run(v->m, &v->eo, q, N, (vf_when){0}, &s);
    for (int i = 0; i < N && st == CORUN_OK; i++)
        vf_check(c, &v->set[v->needle], &q[i], true, "row %d", i);
    vf_jobs_free(q, N);
    vf_note(c, "%d identical rows of %d tokens", N, cut);
    vf_need(c, s.live_rows_seen[0] & 8, "a step with 4 live rows");
    return st;
}
