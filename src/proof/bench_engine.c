/* bench_engine.c - owns the runs of the engine that are timed: steps in steady state, prompts,
 * jobs. Invariant: all that is timed goes through corun.h, as a user's program would; only what
 * comes before (pages of prompts that are not computed) is done below it. */
#include "proof/bench_int.h"

#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/num.h"

enum { PAGE_TOKENS = 64, TEMPLATES = 4, MIN_CTX = 4096 };

static double since_1970(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int64_t pages_of(int64_t tokens) { return (tokens + PAGE_TOKENS - 1) / PAGE_TOKENS; }

/* ---- an engine and its requests ---------------------------------------------------------------
 */

/* n_ctx below MIN_CTX is raised to it: the audit at open is then the same for all runs. */
static corun_status open_engine(bench_engine *b, int32_t n_slot, int64_t n_ctx, int64_t n_page,
                                corun_engine **e)
{
    const config *g = &b->m->net->cfg;
    corun_engine_opts eo = corun_engine_opts_default();
    if (n_ctx > g->n_ctx)
        FAIL(CORUN_EINVAL, "bench: a context of %lld tokens, the model has %d", (long long)n_ctx,
             g->n_ctx);
    if (n_ctx < MIN_CTX) n_ctx = g->n_ctx < MIN_CTX ? g->n_ctx : MIN_CTX;
    eo.policy = b->policy;
    eo.n_slot = n_slot;
    eo.n_ctx = (int32_t)n_ctx;
    eo.page_tokens = PAGE_TOKENS;
    eo.prefill_chunk = b->o->chunk;
    eo.kv_bytes = (uint64_t)n_page * (uint64_t)g->n_layer * (uint64_t)g->n_kv *
                  (uint64_t)g->d_head * 4 * PAGE_TOKENS;
    if (b->o->kv && eo.kv_bytes > (uint64_t)b->o->kv) eo.kv_bytes = (uint64_t)b->o->kv;
    TRY(corun_engine_open(e, b->m, &eo));
    return corun_identity(*e, b->identity, NULL, 0, NULL);
}

/* An engine that is closed leaves its pages to the backend for the next one; the parts need that
 * memory. Gives st, or what went wrong here. */
static corun_status close_engine(const bench_engine *b, corun_engine *e, corun_status st)
{
    const ops_conf least = {.n_ctx = 1,
                            .max_tok = 1,
                            .max_row = 1,
                            .max_want = 1,
                            .max_lane = 1,
                            .n_slot = 1,
                            .page_tokens = PAGE_TOKENS,
                            .n_page = 2,
                            .logit_rows = 1,
                            .n_top = 1};
    corun_engine_close(e);
    if (st != CORUN_OK) return st;
    return b->m->net->configure(b->m->net, &least);
}

static corun_status submit(bench_engine *b, corun_engine *e, int32_t n_prompt, int32_t n_new,
                           uint64_t *id)
{
    int32_t *prompt = mem_alloc((size_t)n_prompt, sizeof *prompt, "prompt");
    if (!prompt) return CORUN_ENOMEM;
    uint64_t serial = b->serial++, vocab = (uint64_t)b->m->net->cfg.n_vocab;
    for (int32_t k = 0; k < n_prompt; k++)
        prompt[k] = (int32_t)(((uint64_t)k * 7919 + serial * 104729 + 17) % vocab);
    corun_request r = {.tokens = prompt, .n_token = (size_t)n_prompt};
    corun_status st = corun_sampling_default(b->m, &r.sampling);
    r.sampling.temperature = r.sampling.top_p = r.sampling.repetition_penalty = 1;
    r.sampling.min_p = 0;
    r.sampling.top_k = 0;
    r.sampling.max_tokens = n_new;
    r.sampling.seed = serial;
    r.sampling.ignore_eos = true;
    r.sampling.logprobs = b->o->logprobs;
    if (st == CORUN_OK) st = corun_submit(e, &r, id);
    mem_free(prompt);
    return st;
}

static corun_status failed(const corun_event *ev)
{
    FAIL(CORUN_EINTERNAL, "bench: a request failed: %.*s", (int)ev->text_len, ev->text);
}

static corun_status run_until_idle(corun_engine *e)
{
    corun_event ev = {.kind = CORUN_EVENT_NONE};
    while (ev.kind != CORUN_EVENT_IDLE) {
        TRY(corun_next(e, &ev));
        if (ev.kind == CORUN_EVENT_FAILED) return failed(&ev);
    }
    return CORUN_OK;
}

/* ---- prompts that are not computed ------------------------------------------------------------
 */

/* Stands before the model's network while prompts come in: of each row the pages that begin in it
 * are filled from the last pages of the pool, which nobody owns, and its last token alone is run.
 */
typedef struct setup {
    model base; /* first: the engine takes a setup for a model */
    model *net;
    step_row *row; /* [conf.max_row] */
} setup;

static corun_status setup_forward(model *m, const step *s)
{
    setup *u = (setup *)m;
    ops *o = u->net->o;
    int32_t size = o->conf.page_tokens, n = 0;
    for (int32_t i = 0; i < s->n_row; i++) {
        step_row *w = &u->row[n];
        *w = s->row[i];
        for (int32_t k = (w->pos + size - 1) / size; w->seq >= 0 && k * size < w->pos + w->q_len;
             k++)
            TRY(o->page_copy(o, o->conf.n_page - 1 - k % TEMPLATES, w->page[k]));
        if (w->seq >= 0 && w->want == STEP_WANT_NONE) continue;
        if (w->q_len > 1) {
            w->pos += w->q_len - 1;
            w->tok_first += w->q_len - 1;
            w->q_len = 1;
        }
        n++;
    }
    step cut = *s;
    cut.row = u->row;
    cut.n_row = n;
    return n ? u->net->forward(u->net, &cut) : o->step_put(o, &cut);
}

static corun_status setup_logits(model *m, int32_t first, int32_t n)
{
    setup *u = (setup *)m;
    return u->net->logits(u->net, first, n);
}

static corun_status setup_begin(setup *u, corun_model *m)
{
    ops *o = m->net->o;
    *u = (setup){.base = *m->net, .net = m->net};
    u->base.forward = setup_forward;
    u->base.logits = setup_logits;
    if (!MEM_NEW(u->row, (size_t)o->conf.max_row)) return CORUN_ENOMEM;
    TRY(bench_fill_pages(o, o->conf.n_page - TEMPLATES, TEMPLATES));
    m->net = &u->base;
    return CORUN_OK;
}

static void setup_end(setup *u, corun_model *m)
{
    if (u->net) m->net = u->net;
    mem_free(u->row);
    *u = (setup){0};
}

/* ---- steps ------------------------------------------------------------------------------------
 */

typedef struct watch {
    int32_t rows, timed;
    uint64_t first; /* id of the first request: its tokens tell the steps apart */
    int64_t prompt; /* tokens of a prompt */
    int64_t begun, drawn;
    double *stamp; /* [timed + 1] */
    double *wait;  /* [timed + 1] seconds waited so far */
    double context, from;
    int32_t n_stamp;
} watch;

/* A step has ended. Those to be timed begin when their mean context will be the target. */
static corun_status stamp(watch *w, corun_engine *e, double target)
{
    if (w->begun < w->rows) return CORUN_OK;
    if (w->n_stamp == 0) {
        double context = (double)w->prompt + (double)w->drawn / w->rows + (w->timed + 1) / 2.0;
        if (context < target) return CORUN_OK;
        w->context = context;
        w->from = since_1970();
    }
    corun_stats s;
    TRY(corun_engine_stats(e, &s));
    w->wait[w->n_stamp] = s.seconds_wait;
    w->stamp[w->n_stamp++] = clock_seconds();
    return CORUN_OK;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *t, int32_t n)
{
    qsort(t, (size_t)n, sizeof *t, by_value);
    return n % 2 ? t[n / 2] : (t[n / 2 - 1] + t[n / 2]) / 2;
}

static void sum_up(watch *w, bench_steps *out)
{
    int32_t n = w->timed;
    double *t = w->stamp, all = t[n] - t[0];
    out->context = w->context;
    out->from = w->from;
    out->mean = all / n;
    out->wait = (w->wait[n] - w->wait[0]) / n;
    /* To read draws that are there takes some time, too. */
    double read = 10e-6 + 0.2e-6 * w->rows;
    for (int32_t i = 0; i < n; i++) out->late += w->wait[i + 1] - w->wait[i] < read;
    for (int32_t i = 0; i < n; i++) t[i] = t[i + 1] - t[i];
    out->median = bench_median(t, n);
    out->low = t[n / 10];
    out->high = t[n - 1 - n / 10];
}

static corun_status run_steps(bench_engine *b, corun_engine *e, watch *w, double target,
                              bench_steps *out)
{
    setup u = {0};
    corun_event ev;
    corun_status st = setup_begin(&u, b->m);
    while (st == CORUN_OK && w->n_stamp <= w->timed) {
        TRY_OR_DONE(corun_next(e, &ev));
        if (ev.kind == CORUN_EVENT_FAILED) TRY_OR_DONE(failed(&ev));
        if (ev.kind == CORUN_EVENT_DONE || ev.kind == CORUN_EVENT_IDLE)
            FAIL_OR_DONE(CORUN_EINTERNAL, "bench: a row ended before the steps were timed");
        if (ev.kind != CORUN_EVENT_TOKEN) continue;
        if (u.net && w->begun == w->rows) setup_end(&u, b->m);
        if (ev.id == w->first) TRY_OR_DONE(stamp(w, e, target));
        w->begun += ev.index == 0;
        w->drawn++;
    }
    out->to = since_1970();
done:
    setup_end(&u, b->m);
    return st;
}

static corun_status cancel_all(corun_engine *e, uint64_t first, int32_t n)
{
    for (int32_t i = 0; i < n; i++) TRY(corun_cancel(e, first + (uint64_t)i));
    TRY(run_until_idle(e));
    corun_stats s;
    TRY(corun_engine_stats(e, &s));
    if (s.pages_peak + TEMPLATES > s.pages)
        FAIL(CORUN_EINTERNAL, "bench: a row was given a page that others are filled from");
    return CORUN_OK;
}

static corun_status steps_on(bench_engine *b, corun_engine *e, watch *w, int32_t n_new,
                             double target, bench_steps *out)
{
    uint64_t id;
    for (int32_t i = 0; i < w->rows; i++) {
        TRY(submit(b, e, (int32_t)w->prompt, n_new, &id));
        if (i == 0) w->first = id;
    }
    TRY(run_steps(b, e, w, target, out));
    sum_up(w, out);
    return cancel_all(e, w->first, w->rows);
}

corun_status bench_time_steps(bench_engine *b, int32_t rows, int32_t context, double expect,
                              bench_steps *out)
{
    const bench_device_opts *o = b->o;
    int32_t timed = o->timed;
    *out = (bench_steps){0};
    /* Rows begin one after the other while prompts come in, so some steps go by before all run. */
    int64_t before = (int64_t)(o->warm / expect) + 4, come_in = (int64_t)rows * context / o->chunk;
    int64_t prompt = context - timed / 2 - before - come_in / 2;
    if (prompt < 1) prompt = 1;
    int64_t n_new = context - prompt + timed + come_in + 16;
    int64_t n_page = rows * (pages_of(prompt + n_new) + 1) + TEMPLATES;
    int32_t n_slot = b->policy == CORUN_POLICY_CORUN ? rows : bench_slots(o);
    corun_engine *e;
    watch w = {.rows = rows, .timed = timed, .prompt = prompt};
    TRY(open_engine(b, n_slot, prompt + n_new, n_page, &e));
    corun_status st = CORUN_ENOMEM;
    if (MEM_NEW(w.stamp, (size_t)timed + 2) && MEM_NEW(w.wait, (size_t)timed + 2))
        st = steps_on(b, e, &w, (int32_t)n_new, context, out);
    mem_free(w.stamp);
    mem_free(w.wait);
    return close_engine(b, e, st);
}

/* ---- prompts ----------------------------------------------------------------------------------
 */

static corun_status run_prompts(bench_engine *b, corun_engine *e, int32_t n, int32_t tokens,
                                double *seconds)
{
    uint64_t id;
    for (int32_t i = 0; i < n; i++) TRY(submit(b, e, tokens, 1, &id));
    double t0 = clock_seconds();
    TRY(run_until_idle(e));
    *seconds = clock_seconds() - t0;
    return CORUN_OK;
}

static corun_status prompts_on(bench_engine *b, corun_engine *e, int32_t n, int32_t tokens,
                               double expect, bench_prompts *out)
{
    enum { SECONDS = 3 };
    double warm = b->o->warm, share = n * warm / (expect > 1e-9 ? expect : 1e-9), s, all = 0;
    int32_t some = share < 1 ? 1 : share < n ? (int32_t)share : n;
    for (double t0 = clock_seconds(); clock_seconds() - t0 < warm;)
        TRY(run_prompts(b, e, some, tokens, &s));
    out->from = since_1970();
    while (out->n < BENCH_MAX_RUN && (out->n == 0 || all < SECONDS)) {
        int at = out->n++;
        TRY(run_prompts(b, e, n, tokens, &s));
        all += s;
        for (; at > 0 && out->seconds[at - 1] > s; at--) out->seconds[at] = out->seconds[at - 1];
        out->seconds[at] = s;
    }
    out->to = since_1970();
    return CORUN_OK;
}

corun_status bench_time_prompts(bench_engine *b, int32_t n, int32_t tokens, double expect,
                                bench_prompts *out)
{
    corun_engine *e;
    *out = (bench_prompts){0};
    TRY(open_engine(b, bench_slots(b->o), (int64_t)tokens + 1, n * (pages_of(tokens + 1) + 1), &e));
    return close_engine(b, e, prompts_on(b, e, n, tokens, expect, out));
}

/* ---- jobs -------------------------------------------------------------------------------------
 */

typedef struct lengths {
    int32_t in, out;
} lengths;

static uint64_t mixed(uint64_t x)
{
    x = (x ^ x >> 31) * 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 29) * 0xBF58476D1CE4E5B9u;
    return x ^ x >> 32;
}

/* Log-normal, lo and hi two standard deviations from the middle; what is outside is cut off. */
static int32_t spread_length(uint64_t key, int32_t lo, int32_t hi)
{
    double sum = -6, low = num_log(lo), high = num_log(hi);
    for (uint64_t i = 0; i < 12; i++) sum += (double)(mixed(key * 12 + i + 1) >> 11) * 0x1p-53;
    double v = num_exp2(((low + high) / 2 + (high - low) / 4 * sum) * 1.4426950408889634);
    return v < lo ? lo : v > hi ? hi : (int32_t)v;
}

static lengths lengths_of(const bench_job *j, int32_t i)
{
    if (!j->spread) return (lengths){j->n_in, j->n_out};
    return (lengths){spread_length(2 * (uint64_t)i, j->n_in, j->n_out),
                     spread_length(2 * (uint64_t)i + 1, j->n_in, j->n_out)};
}

/* What came after `from`, of the counters that are printed. */
static void only_after(corun_stats *to, const corun_stats *from)
{
    to->steps_prefill -= from->steps_prefill;
    to->steps_decode -= from->steps_decode;
    to->steps_mixed -= from->steps_mixed;
    to->swaps_out -= from->swaps_out;
    to->recomputes -= from->recomputes;
    to->prefix_tokens -= from->prefix_tokens;
    to->seconds_prefill -= from->seconds_prefill;
    to->seconds_decode -= from->seconds_decode;
    to->seconds_wait -= from->seconds_wait;
}

/* Requests of the job's kind, but short: shapes are recorded, the device is warm. */
static corun_status warm_up(bench_engine *b, corun_engine *e, const bench_job *j)
{
    uint64_t id;
    for (int32_t i = 0; i < j->n; i++) {
        lengths l = lengths_of(j, i);
        TRY(submit(b, e, l.in < 128 ? l.in : 128, l.out < 16 ? l.out : 16, &id));
    }
    return run_until_idle(e);
}

/* bits: [n] of each request's tokens so far. */
static corun_status job_on(bench_engine *b, corun_engine *e, const bench_job *j, uint64_t *bits,
                           bench_job_result *out)
{
    corun_event ev = {.kind = CORUN_EVENT_NONE};
    corun_stats before;
    uint64_t first = 0, id;
    TRY(warm_up(b, e, j));
    TRY(corun_engine_stats(e, &before));
    b->serial = (uint64_t)j->n * 2; /* the same prompts under each policy */
    for (int32_t i = 0; i < j->n; i++) {
        lengths l = lengths_of(j, i);
        TRY(submit(b, e, l.in, l.out, &id));
        if (i == 0) first = id;
        out->tokens_in += (uint64_t)l.in;
        out->tokens_out += (uint64_t)l.out;
    }
    out->from = since_1970();
    double t0 = clock_seconds();
    while (ev.kind != CORUN_EVENT_IDLE) {
        TRY(corun_next(e, &ev));
        if (ev.kind == CORUN_EVENT_FAILED) return failed(&ev);
        if (ev.kind != CORUN_EVENT_TOKEN) continue;
        uint64_t *v = &bits[ev.id - first];
        *v = mixed(*v ^ ((uint64_t)(uint32_t)ev.token << 32 | num_bits_f(ev.logprob)));
    }
    out->seconds = clock_seconds() - t0;
    out->to = since_1970();
    TRY(corun_engine_stats(e, &out->stats));
    out->kv_bytes = (out->stats.pages + 1) * b->m->net->o->page_bytes(b->m->net->o);
    only_after(&out->stats, &before);
    digest_hex(digest_of(bits, (size_t)j->n * sizeof *bits), out->digest);
    return CORUN_OK;
}

corun_status bench_time_job(bench_engine *b, const bench_job *j, bench_job_result *out)
{
    int64_t n_page = 0, longest = 0;
    *out = (bench_job_result){0};
    for (int32_t i = 0; i < j->n; i++) {
        lengths l = lengths_of(j, i);
        int64_t all = (int64_t)l.in + l.out;
        if (all > longest) longest = all;
        n_page += pages_of(all) + 1;
    }
    corun_engine *e;
    uint64_t *bits = mem_alloc((size_t)j->n, sizeof *bits, "bits");
    if (!bits) return CORUN_ENOMEM;
    b->serial = 0;
    corun_status st = open_engine(b, j->n, longest, n_page, &e);
    if (st == CORUN_OK) st = close_engine(b, e, job_on(b, e, j, bits, out));
    mem_free(bits);
    return st;
}
