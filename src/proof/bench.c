/* bench.c - owns the timed runs of the form for CPUs. Invariant: the engine and the bare products
 * that it is compared with run by turns, step by step, on the same threads; medians count. */
#include "proof/bench_int.h"

#include <string.h>

#include "base/clock.h"

/* ---- the bare products of a step --------------------------------------------------------------
 */

typedef struct bare {
    ops *o;
    ops_weight **w; /* as bench_weights_open has them */
    int32_t n_layer;
    void *x, *y; /* dev: widest activations */
} bare;

static void close_bare(bare *b)
{
    if (!b->o) return;
    bench_weights_close(b->o, b->n_layer, b->w);
    b->o->dev_free(b->o, b->x);
    b->o->dev_free(b->o, b->y);
    mem_free(b->w);
    b->o->close(b->o);
}

static corun_status open_bare(bare *b, corun_model *m, int32_t max_rows)
{
    const config *g = &m->net->cfg;
    ops_dims d;
    model_dims(g, &d);
    d.n_layer = 1;
    const ops *like = m->net->o;
    *b = (bare){0};
    TRY(like->twin(like, &d, &b->o));
    ops_conf c = {.n_ctx = 1024,
                  .max_tok = max_rows,
                  .max_row = max_rows,
                  .max_want = max_rows,
                  .max_lane = 1,
                  .n_slot = 1,
                  .page_tokens = 128,
                  .n_page = 9,
                  .n_swap = 1,
                  .logit_rows = max_rows,
                  .n_top = 1};
    TRY(b->o->configure(b->o, &c));
    size_t widest = 2 * (size_t)g->n_ff + 3 * (size_t)(g->n_head * g->d_head) + (size_t)g->n_embd;
    TRY(b->o->dev_alloc(b->o, widest * (size_t)max_rows * 2, &b->x));
    TRY(b->o->dev_alloc(b->o, widest * (size_t)max_rows * 2, &b->y));
    b->n_layer = g->n_layer;
    if (!MEM_NEW(b->w, (size_t)g->n_layer * OPS_PER_LAYER + 1)) return CORUN_ENOMEM;
    return bench_weights_open(b->o, g, g->n_layer, b->w);
}

/* Seconds of all products of one step of `rows` token rows; want: rows of the head. */
static corun_status time_bare(bare *b, int32_t rows, int32_t want, double *seconds)
{
    static const int32_t page[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    static int32_t tok[1024];
    step_row r[1024];
    for (int32_t i = 0; i < want; i++)
        r[i] = (step_row){.seq = i,
                          .slot = STEP_NO_SLOT,
                          .pos = 0,
                          .q_len = rows / want,
                          .tok_first = 0,
                          .page = page,
                          .n_page = 8,
                          .want = STEP_WANT_LAST};
    step s = {
        .id = 1, .kind = STEP_MIXED, .n_row = want, .row = r, .n_tok = rows / want, .tok = tok};
    TRY(b->o->step_put(b->o, &s));
    double t0 = clock_seconds();
    for (int32_t i = 0; i < b->n_layer * OPS_PER_LAYER; i++)
        TRY(b->o->matmul(b->o, OPS_ROWS_TOK, b->w[i], b->x, OPS_BF16, b->y));
    TRY(b->o->logits(b->o, b->w[b->n_layer * OPS_PER_LAYER], b->x, 0, want));
    char end[2];
    TRY(b->o->dev_get(b->o, b->y, 0, end, sizeof end)); /* a device has finished then */
    *seconds = clock_seconds() - t0;
    return CORUN_OK;
}

/* ---- the engine -------------------------------------------------------------------------------
 */

/* Seconds of steps and of the bare products of such steps, measured by turns, so that a slow moment
 * of a shared machine hits both. sample: of all `sampled` steps. */
typedef struct turns {
    double *step, *bare, sample;
    uint64_t sampled;
    int32_t n, limit;
} turns;

static corun_status turn(turns *t, double seconds, bare *b, int32_t rows, int32_t want)
{
    if (t->n == t->limit) FAIL(CORUN_EINTERNAL, "bench: more than %d steps", t->limit);
    t->step[t->n] = seconds;
    return time_bare(b, rows, want, &t->bare[t->n++]);
}

/* width 0: the prompt counts, n_prompt tokens, and not the decode steps. */
static corun_status run_turns(corun_engine *e, bare *b, int32_t width, int32_t n_prompt, turns *t)
{
    corun_event ev = {.kind = CORUN_EVENT_NONE};
    corun_stats was, is;
    TRY(corun_engine_stats(e, &was));
    is = was;
    while (ev.kind != CORUN_EVENT_IDLE) {
        TRY(corun_next(e, &ev));
        TRY(corun_engine_stats(e, &is));
        if (width && is.steps_decode > was.steps_decode)
            TRY(turn(t, is.seconds_decode - was.seconds_decode, b, width, width));
        was = is;
    }
    if (!width) TRY(turn(t, is.seconds_prefill, b, n_prompt, 1));
    t->sampled += is.steps_decode + is.steps_prefill;
    t->sample += is.seconds_sample;
    return CORUN_OK;
}

static corun_status time_engine(corun_model *m, bare *b, int32_t width, int32_t n_prompt,
                                int32_t n_new, int32_t logprobs, turns *t)
{
    corun_engine *e;
    corun_engine_opts eo = corun_engine_opts_default();
    eo.policy = CORUN_POLICY_CORUN; /* prompts alone */
    eo.n_slot = width ? width : 1;
    eo.n_ctx = n_prompt + n_new;
    TRY(corun_engine_open(&e, m, &eo));
    int32_t *prompt = mem_alloc((size_t)n_prompt, sizeof *prompt, "bench prompt");
    corun_status st = prompt ? CORUN_OK : CORUN_ENOMEM;
    corun_request r = {.tokens = prompt, .n_token = (size_t)n_prompt};
    if (st == CORUN_OK) st = corun_sampling_default(m, &r.sampling);
    r.sampling.temperature = 0;
    r.sampling.repetition_penalty = 1;
    r.sampling.max_tokens = n_new;
    r.sampling.ignore_eos = true;
    r.sampling.logprobs = logprobs;
    for (int32_t i = 0; i < eo.n_slot && st == CORUN_OK; i++) {
        for (int32_t k = 0; k < n_prompt; k++)
            prompt[k] =
                (int32_t)((uint32_t)(k * 7919 + i * 104729 + 17) % (uint32_t)m->net->cfg.n_vocab);
        uint64_t id;
        st = corun_submit(e, &r, &id);
    }
    if (st == CORUN_OK) st = run_turns(e, b, width, n_prompt, t);
    mem_free(prompt);
    corun_engine_close(e);
    return st;
}

/* ---- figures ----------------------------------------------------------------------------------
 */

typedef struct figure {
    double step, bare, sample; /* medians; of a step, the mean */
} figure;

enum { N_WIDTH = 4, N_NEW = 32, MAX_REPEAT = 1000 };
static const int32_t widths[N_WIDTH] = {1, 4, 16, 32};

typedef struct figures {
    figure decode[N_WIDTH], prefill, scored; /* scored: width 16 with 20 log-probabilities */
} figures;

/* n_repeat engines, one after another. */
static corun_status measure_one(corun_model *m, bare *b, int n_repeat, int32_t width,
                                int32_t n_prompt, int32_t n_new, int32_t logprobs, figure *f)
{
    turns t = {.limit = n_repeat * n_new};
    corun_status st = CORUN_OK;
    if (!MEM_NEW(t.step, (size_t)t.limit) || !MEM_NEW(t.bare, (size_t)t.limit)) st = CORUN_ENOMEM;
    for (int i = 0; i < n_repeat && st == CORUN_OK; i++)
        st = time_engine(m, b, width, n_prompt, n_new, logprobs, &t);
    if (st == CORUN_OK && !t.n) st = err_set(CORUN_EINTERNAL, "bench: no step was seen");
    if (st == CORUN_OK)
        *f = (figure){bench_median(t.step, t.n), bench_median(t.bare, t.n),
                      t.sample / (double)t.sampled};
    mem_free(t.step);
    mem_free(t.bare);
    return st;
}

static corun_status measure(corun_model *m, bare *b, const bench_opts *o, figures *f)
{
    int32_t prompt = o->n_ctx > N_NEW ? o->n_ctx - N_NEW / 2 : N_NEW;
    for (int i = 0; i < N_WIDTH; i++)
        TRY(measure_one(m, b, o->n_repeat, widths[i], prompt, N_NEW, -1, &f->decode[i]));
    TRY(measure_one(m, b, 3 * o->n_repeat, 0, o->n_prefill, 1, -1, &f->prefill));
    return measure_one(m, b, o->n_repeat, 16, prompt, N_NEW, CORUN_MAX_TOP, &f->scored);
}

static void print_json(const figures *f, const corun_model *m, const bench_opts *o, FILE *out)
{
    fprintf(out, "{\"version\":\"%s\",\"isa\":\"%s\",\"threads\":%d,\"context\":%d,\"repeat\":%d,",
            corun_version(), m->net->o->isa, pool_size(m->threads), o->n_ctx, o->n_repeat);
    fprintf(out, "\"decode\":[");
    for (int i = 0; i < N_WIDTH; i++)
        fprintf(out,
                "%s{\"width\":%d,\"step_ms\":%.4f,\"matmul_ms\":%.4f,\"ratio\":%.4f,"
                "\"sample_ms\":%.4f,\"tokens_per_s\":%.2f}",
                i ? "," : "", widths[i], 1e3 * f->decode[i].step, 1e3 * f->decode[i].bare,
                f->decode[i].step / f->decode[i].bare, 1e3 * f->decode[i].sample,
                widths[i] / f->decode[i].step);
    fprintf(out,
            "],\"prefill\":{\"tokens\":%d,\"ms\":%.4f,\"matmul_ms\":%.4f,\"ratio\":%.4f,"
            "\"tokens_per_s\":%.2f},",
            o->n_prefill, 1e3 * f->prefill.step, 1e3 * f->prefill.bare,
            f->prefill.step / f->prefill.bare, o->n_prefill / f->prefill.step);
    fprintf(out, "\"logprobs20\":{\"width\":16,\"step_ms\":%.4f,\"sample_ms\":%.4f}}\n",
            1e3 * f->scored.step, 1e3 * f->scored.sample);
}

static void print_table(const figures *f, const corun_model *m, const bench_opts *o, FILE *out)
{
    fprintf(out, "%s%s%s, %d threads, context %d, medians of %d runs\n", m->net->o->label,
            *m->net->o->label ? ", " : "", m->net->o->isa, pool_size(m->threads), o->n_ctx,
            o->n_repeat);
    fprintf(out, "%-12s %10s %12s %8s %12s %10s\n", "rows", "step ms", "products ms", "ratio",
            "sampling ms", "tokens/s");
    for (int i = 0; i < N_WIDTH; i++)
        fprintf(out, "%-12d %10.2f %12.2f %8.3f %12.3f %10.1f\n", widths[i],
                1e3 * f->decode[i].step, 1e3 * f->decode[i].bare,
                f->decode[i].step / f->decode[i].bare, 1e3 * f->decode[i].sample,
                widths[i] / f->decode[i].step);
    fprintf(out, "%-12s %10.2f %12.2f %8.3f %12s %10.1f\n", "prefill", 1e3 * f->prefill.step,
            1e3 * f->prefill.bare, f->prefill.step / f->prefill.bare, "",
            o->n_prefill / f->prefill.step);
    fprintf(out, "with 20 log-probabilities, 16 rows: step %.2f ms, of it sampling %.3f ms\n",
            1e3 * f->scored.step, 1e3 * f->scored.sample);
}

corun_status bench_run(corun_model *m, const bench_opts *o, FILE *out)
{
    if (o->n_ctx < N_NEW || o->n_prefill < 1 || o->n_prefill > 1024 || o->n_repeat < 1 ||
        o->n_repeat > MAX_REPEAT || o->n_ctx > m->net->cfg.n_ctx - N_NEW)
        FAIL(CORUN_EINVAL, "bench: context %d, prefill %d or repeat %d is out of range", o->n_ctx,
             o->n_prefill, o->n_repeat);
    bare b;
    figures f;
    memset(&f, 0, sizeof f);
    int32_t most = widths[N_WIDTH - 1];
    corun_status st = open_bare(&b, m, o->n_prefill > most ? o->n_prefill : most);
    if (st == CORUN_OK) st = measure(m, &b, o, &f);
    close_bare(&b);
    if (st != CORUN_OK) return st;
    (o->json ? print_json : print_table)(&f, m, o, out);
    return CORUN_OK;
}
