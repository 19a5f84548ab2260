/* verify_text.c - owns the recipes about samples, seeds and stop strings: J, K, Q. Invariant: the
 * place where a stop must cut is worked out from the uncut answer's bytes, not by the engine. */
#include "proof/verify_int.h"

#include <string.h>

/* ---- J -------------------------------------------------------------------------------------- */

/* Ids that the set's answers hold most often: as stop ids they make samples end early. */
static corun_status common_ids(vf *v, int32_t *out, size_t n)
{
    int32_t *count;
    if (!MEM_NEW(count, (size_t)v->info.n_vocab)) return CORUN_ENOMEM;
    for (size_t i = 0; i < v->n_set; i++)
        for (int32_t k = 0; k < v->set[i].s[0].drawn.n; k++) count[v->set[i].s[0].drawn.t[k].id]++;
    for (size_t i = 0; i < n; i++) {
        int32_t best = 0;
        for (int32_t k = 1; k < v->info.n_vocab; k++)
            if (count[k] > count[best]) best = k;
        out[i] = best;
        count[best] = -1;
    }
    mem_free(count);
    return CORUN_OK;
}

static void check_samples(vf_cell *c, const vf_job *q, const vf_job *one, const size_t *order)
{
    int32_t n = q->r.sampling.n;
    for (int32_t i = 0; i < n; i++) {
        char why[300];
        const vf_job *o = &one[order[i]];
        c->n_token += q->s[i].drawn.n;
        if (!vf_same_sample(&o->s[0], &q->s[i], false, why, sizeof why))
            vf_broken(c, "sample %d against the request with its seed, %s", i, why);
        for (int32_t k = 0; k < i; k++)
            if (vf_same_sample(&q->s[k], &q->s[i], false, why, sizeof why))
                vf_broken(c, "samples %d and %d are one and the same", k, i);
    }
}

/* J: n = 8 against eight requests with the derived seeds, in another order. The samples end at
 * different times, and others start meanwhile. */
corun_status vf_samples(vf *v, vf_cell *c)
{
    enum { N = 8, BESIDE = 4, ENDS = 6 };
    int32_t cut = v->few ? 20 : 100, ids[ENDS];
    size_t order[N];
    TRY(common_ids(v, ids, ENDS));
    vf_job q[1 + BESIDE] = {{.r = vf_cut(v->set[v->n_own].r, cut)}}, one[N] = {{{0}}};
    corun_sampling *s = &q[0].r.sampling;
    s->n = N;
    s->temperature = 1;
    s->stop_id = ids;
    s->n_stop_id = ENDS;
    s->n_stop = 0;
    s->min_tokens = 12;
    for (size_t i = 0; i < BESIDE; i++) q[i + 1].r = vf_cut(v->set[v->n_own + 1 + i].r, cut);
    for (size_t i = 0; i < N; i++) order[i] = i;
    for (size_t i = N; i > 1; i--) {
        size_t k = (size_t)vf_rand(v, i), t = order[i - 1];
        order[i - 1] = order[k];
        order[k] = t;
    }
    for (int32_t i = 0; i < N; i++) {
        one[order[i]].r = q[0].r;
        one[order[i]].r.sampling.n = 1;
        one[order[i]].r.sampling.seed = corun_seed_sample(s->seed, i);
    }
    corun_stats st1;
    corun_status st = vf_run(v->m, &v->eo, q, 1 + BESIDE, (vf_when){.group = 1}, &st1);
    if (st == CORUN_OK) st = vf_run(v->m, &v->eo, one, N, (vf_when){0}, &st1);
    int32_t lengths = 0;
    if (st == CORUN_OK) {
        check_samples(c, &q[0], one, order);
        for (size_t i = 0; i < BESIDE; i++)
            vf_check(c, &v->set[v->n_own + 1 + i], &q[i + 1], true, "beside 8 samples, request %zu",
                     v->n_own + 1 + i);
        for (int32_t i = 0; i < N; i++) {
            bool twice = false;
            for (int32_t k = 0; k < i; k++) twice |= q[0].s[k].drawn.n == q[0].s[i].drawn.n;
            lengths += !twice;
        }
        vf_note(c, "8 samples against 8 requests, shuffled; %d different lengths", lengths);
        vf_need(c, lengths > 1 ? (uint64_t)lengths : 0, "samples that end at different times");
    }
    vf_jobs_free(q, 1 + BESIDE);
    vf_jobs_free(one, N);
    return st;
}

/* ---- K -------------------------------------------------------------------------------------- */

enum { MAX_STOPS = 12 };

typedef struct stop_case {
    corun_bytes stop;
    int32_t n_token, max_tokens; /* that must be drawn; asked for */
    size_t text_len;
} stop_case;

typedef struct stop_text {
    buf raw;     /* the tokens' bytes */
    size_t *end; /* [n] where each token ends in it */
    int32_t n;
    int n_inside, n_span, n_max;
} stop_text;

/* Special tokens give no text. */
static corun_status token_text(vf *v, stop_text *t, int32_t id)
{
    char bytes[512], shown[8];
    size_t n = 0, n_shown = 0;
    TRY(corun_token_bytes(v->m, id, bytes, sizeof bytes, &n));
    corun_status st =
        corun_decode(v->m, &id, 1, CORUN_TEXT_SKIP_SPECIAL, shown, sizeof shown, &n_shown);
    if (st != CORUN_OK && st != CORUN_ECAPACITY) return st;
    if (n_shown) buf_put(&t->raw, bytes, n);
    return buf_status(&t->raw);
}

static bool is_ascii(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s[i] >= 0x80) return false;
    return true;
}

/* Bytes [b, e) of the text as a stop string: the first place where it is decides. */
static void add_case(const vf_job *want, stop_text *t, size_t b, size_t e, int32_t max_tokens,
                     stop_case *list, size_t *n)
{
    if (*n == MAX_STOPS || e <= b || !is_ascii(t->raw.data + b, e - b)) return;
    const char *stop = t->raw.data + b;
    const char *hit = memmem(t->raw.data, t->raw.len, stop, e - b);
    const buf *text = &want->s[0].text;
    const char *shown = memmem(text->data, text->len, stop, e - b);
    if (!shown) return;
    size_t at = (size_t)(hit - t->raw.data) + (e - b);
    int32_t k = 0;
    while (t->end[k] < at) k++;
    if (k + 1 > max_tokens) return;
    size_t begin = k ? t->end[k - 1] : 0;
    t->n_inside += at < t->end[k];
    t->n_span += at - (e - b) < begin;
    t->n_max += k + 1 == max_tokens;
    list[(*n)++] = (stop_case){.stop = {stop, e - b},
                               .n_token = k + 1,
                               .max_tokens = max_tokens,
                               .text_len = (size_t)(shown - text->data)};
}

/* Of some tokens: a stop that ends inside it, one that spans into it, and one that ends with the
 * last token that is asked for. */
static void make_cases(const vf_job *want, stop_text *t, stop_case *list, size_t *n)
{
    for (int32_t k = 3; k < t->n; k += 2) {
        size_t b = t->end[k - 1], e = t->end[k], before = t->end[k - 2];
        if (e - b >= 2 && t->n_inside < 4) add_case(want, t, b, e - 1, t->n, list, n);
        if (e > b && b > before && t->n_span < 4) add_case(want, t, b - 1, b + 1, t->n, list, n);
        if (e > b && b > before && t->n_max < 2 && k > 8)
            add_case(want, t, b - 1, e, k + 1, list, n);
    }
}

static void check_stop(vf_cell *c, const vf_job *want, const vf_job *got, const stop_case *k,
                       bool include)
{
    const vf_sample *w = &want->s[0], *g = &got->s[0];
    char why[200];
    size_t len = k->text_len + (include ? k->stop.len : 0);
    c->n_token += g->drawn.n;
    for (int32_t i = 0; i < g->drawn.n && i < w->drawn.n; i++)
        if (!vf_same_token(&w->drawn.t[i], &g->drawn.t[i], why, sizeof why)) {
            vf_broken(c, "stop after %d tokens, token %d: %s", k->n_token, i, why);
            return;
        }
    if (g->drawn.n != k->n_token)
        vf_broken(c, "a stop string that ends in token %d: %d tokens were drawn", k->n_token - 1,
                  g->drawn.n);
    else if (g->text.len != len || memcmp(g->text.data, w->text.data, len) != 0)
        vf_broken(c, "a stop string that ends in token %d: the text is not cut before it",
                  k->n_token - 1);
    else if (g->finish != CORUN_FINISH_STOP || g->stop_index != 0)
        vf_broken(c, "a stop string that ends in token %d: it is not named as the end",
                  k->n_token - 1);
}

static corun_status run_stops(vf *v, vf_cell *c, const vf_job *want, const stop_case *list,
                              size_t n)
{
    vf_job q[MAX_STOPS] = {{{0}}};
    corun_stats s = {0};
    for (size_t i = 0; i < n; i++) {
        q[i].r = vf_cut(want->r, list[i].max_tokens);
        q[i].r.sampling.stop = &list[i].stop;
        q[i].r.sampling.n_stop = 1;
        q[i].r.sampling.include_stop = i % 2;
    }
    corun_status st = vf_run(v->m, &v->eo, q, n, (vf_when){0}, &s);
    for (size_t i = 0; i < n && st == CORUN_OK; i++) check_stop(c, want, &q[i], &list[i], i % 2);
    vf_jobs_free(q, n);
    return st;
}

/* K: stop strings of an answer's own text, cut where its bytes say. */
corun_status vf_stops(vf *v, vf_cell *c)
{
    const vf_job *want = NULL;
    for (size_t i = 0; i < v->n_set && !want; i++) {
        const corun_sampling *s = &v->set[i].r.sampling;
        if (s->n == 1 && !s->n_stop && !s->min_tokens && s->skip_special &&
            v->set[i].s[0].drawn.n >= 32)
            want = &v->set[i];
    }
    if (!want) {
        vf_need(c, 0, "an answer of 32 tokens without stop strings");
        return CORUN_OK;
    }
    stop_text t = {.n = want->s[0].drawn.n};
    stop_case list[MAX_STOPS];
    size_t n = 0;
    if (v->few && t.n > 64) t.n = 64;
    buf_init(&t.raw, (size_t)1 << 24);
    corun_status st = MEM_NEW(t.end, (size_t)t.n) ? CORUN_OK : CORUN_ENOMEM;
    for (int32_t i = 0; i < t.n && st == CORUN_OK; i++) {
        st = token_text(v, &t, want->s[0].drawn.t[i].id);
        t.end[i] = t.raw.len;
    }
    if (st == CORUN_OK) make_cases(want, &t, list, &n);
    if (st == CORUN_OK && n) st = run_stops(v, c, want, list, n);
    mem_free(t.end);
    buf_free(&t.raw);
    vf_note(c, "%zu stop strings: %d end inside a token, %d span tokens, %d fall on max_tokens", n,
            t.n_inside, t.n_span, t.n_max);
    vf_need(c, (uint64_t)t.n_span, "stop strings that span tokens");
    vf_need(c, (uint64_t)t.n_max, "stop strings that fall on max_tokens");
    if (!v->fake) vf_need(c, (uint64_t)t.n_inside, "stop strings that end inside a token");
    return st;
}

/* ---- Q -------------------------------------------------------------------------------------- */

/* Q: one seed twice in a batch; a hundred samples without a seed of their own. */
corun_status vf_seeds(vf *v, vf_cell *c)
{
    enum { N = 100 };
    int32_t cut = v->few ? 8 : 32;
    vf_job q[3] = {
        {.r = vf_cut(v->set[v->needle].r, cut)},
        {.r = vf_cut(v->set[v->needle].r, cut)},
        {.r = vf_request(v, v->set[v->needle].r.tokens, v->set[v->needle].r.n_token, cut, 31)}};
    q[2].r.sampling.n = N;
    corun_stats s = {0};
    corun_status st = vf_run(v->m, &v->eo, q, 3, (vf_when){0}, &s);
    int same = 0;
    if (st == CORUN_OK) {
        vf_check(c, &v->set[v->needle], &q[0], true, "first of one seed");
        vf_check(c, &v->set[v->needle], &q[1], true, "second of one seed");
        for (int32_t i = 0; i < N; i++)
            for (int32_t k = 0; k < i; k++) {
                char why[300];
                if (!vf_same_sample(&q[2].s[k], &q[2].s[i], false, why, sizeof why)) continue;
                vf_broken(c, "samples %d and %d of %d are one and the same", k, i, N);
                same++;
            }
    }
    vf_jobs_free(q, 3);
    vf_note(c, "one seed twice; %d samples of %d tokens, %d of them the same", N, cut, same);
    vf_need(c, N - 1, "samples");
    return st;
}
