/* bench_device.c - owns the form of `corun bench` for devices: which figures are timed, and how
 * they are printed. Invariant: a figure is printed once it is whole, so a run that is cut short
 * loses nothing that it had. */
#include "proof/bench_int.h"

#include <stdlib.h>
#include <string.h>

/* ---- options ----------------------------------------------------------------------------------
 */

bench_device_opts bench_device_default(void)
{
    return (bench_device_opts){
        .policy = {CORUN_POLICY_FREE}, .n_policy = 1, .chunk = 8192, .timed = 120, .warm = 2};
}

/* A whole number of 1 ... max at *p, which moves behind it. */
static bool take_number(const char **p, int32_t max, int32_t *out)
{
    int64_t v = 0;
    const char *at = *p;
    for (; *at >= '0' && *at <= '9' && v <= max; at++) v = v * 10 + (*at - '0');
    if (at == *p || v < 1 || v > max) return false;
    *p = at;
    *out = (int32_t)v;
    return true;
}

static bool take_char(const char **p, char c)
{
    if (**p != c) return false;
    ++*p;
    return true;
}

enum { MAX_TOKENS = 1 << 20 };

corun_status bench_read_shapes(const char *text, bench_shape *out, int *n)
{
    const char *p = text;
    *n = 0;
    do {
        bench_shape s;
        if (*n == BENCH_MAX) FAIL(CORUN_EINVAL, "%s: more than %d shapes", text, BENCH_MAX);
        if (!take_number(&p, BENCH_MAX_ROWS, &s.n) || !take_char(&p, 'x') ||
            !take_number(&p, MAX_TOKENS, &s.tokens) || (*p && *p != ','))
            FAIL(CORUN_EINVAL, "%s: not a list as 256x1536,1x1024 (at most %d x %d)", text,
                 BENCH_MAX_ROWS, MAX_TOKENS);
        out[(*n)++] = s;
    } while (take_char(&p, ','));
    return CORUN_OK;
}

corun_status bench_read_jobs(const char *text, bench_job *out, int *n)
{
    const char *p = text;
    *n = 0;
    do {
        bench_job j;
        if (*n == BENCH_MAX) FAIL(CORUN_EINVAL, "%s: more than %d jobs", text, BENCH_MAX);
        bool ok = take_number(&p, BENCH_MAX_ROWS, &j.n) && take_char(&p, 'x') &&
                  take_number(&p, MAX_TOKENS, &j.n_in);
        j.spread = ok && *p == '-';
        ok = ok && (take_char(&p, '-') || take_char(&p, '/')) &&
             take_number(&p, MAX_TOKENS, &j.n_out) && (!*p || *p == ',');
        if (!ok || (j.spread && j.n_in > j.n_out))
            FAIL(CORUN_EINVAL,
                 "%s: not a list as 256x1024/1024,256x64-4096 (requests x tokens in / out, or x "
                 "shortest - longest)",
                 text);
        out[(*n)++] = j;
    } while (take_char(&p, ','));
    return CORUN_OK;
}

corun_status bench_read_policies(const char *text, corun_policy *out, int *n)
{
    const char *p = text;
    *n = 0;
    do {
        char name[16];
        size_t len = strcspn(p, ",");
        if (len >= sizeof name || *n == 4)
            FAIL(CORUN_EINVAL, "%s: not a list of at most 4 policies", text);
        memcpy(name, p, len);
        name[len] = 0;
        TRY(corun_policy_parse(name, &out[*n]));
        if (!policy_get(out[(*n)++])) FAIL(CORUN_EINVAL, "%s: a policy must be named", text);
        p += len;
    } while (take_char(&p, ','));
    return CORUN_OK;
}

int32_t bench_slots(const bench_device_opts *o)
{
    int32_t n = 1;
    for (int i = 0; i < o->n_steps; i++)
        if (o->steps[i].n > n) n = o->steps[i].n;
    for (int i = 0; i < o->n_prompts; i++)
        if (o->prompts[i].n > n) n = o->prompts[i].n;
    return n;
}

bool bench_on_device(const corun_model *m) { return m->net->o->record != NULL; }

/* ---- printing ---------------------------------------------------------------------------------
 */

/* A figure as an object on a line of its own. */
typedef struct line {
    buf b;
    jw w;
} line;

static void put_text(line *l, const char *key, const char *v)
{
    jw_key(&l->w, key);
    jw_cstr(&l->w, v);
}

static void put_int(line *l, const char *key, int64_t v)
{
    jw_key(&l->w, key);
    jw_int(&l->w, v);
}

/* To a millionth: no more digits than a time has. */
static double rounded(double v) { return (double)(int64_t)(v * 1e6 + (v < 0 ? -0.5 : 0.5)) / 1e6; }

static void put_real(line *l, const char *key, double v)
{
    jw_key(&l->w, key);
    jw_double(&l->w, rounded(v));
}

static void line_begin(line *l, const char *what)
{
    buf_init(&l->b, 1 << 20);
    jw_init(&l->w, &l->b);
    jw_open(&l->w, '{');
    put_text(l, "figure", what);
}

static void line_of(line *l, const char *what, const bench_engine *b, double from, double to)
{
    line_begin(l, what);
    put_text(l, "policy", corun_policy_name(b->policy));
    put_text(l, "identity", b->identity);
    put_real(l, "from", from);
    put_real(l, "to", to);
}

static corun_status line_end(line *l, FILE *out)
{
    jw_close(&l->w, '}');
    corun_status st = buf_status(&l->b);
    if (st == CORUN_OK) fprintf(out, "%s\n", l->b.data);
    buf_free(&l->b);
    fflush(out);
    return st;
}

static void put_parts(line *l, const bench_part_times *t)
{
    put_real(l, "products_ms", 1e3 * t->products);
    put_real(l, "attention_ms", 1e3 * t->attention);
    put_real(l, "row_kernels_ms", 1e3 * t->rows);
    put_real(l, "draws_ms", 1e3 * t->draws);
    put_real(l, "products_floor_ms", 1e3 * t->products_floor);
    put_real(l, "attention_floor_ms", 1e3 * t->attention_floor);
    put_real(l, "parts_ms", 1e3 * bench_part_sum(t));
}

static corun_status print_machine(const corun_model *m, const bench_device_opts *o, FILE *out)
{
    const ops *b = m->net->o;
    const config *g = &m->net->cfg;
    if (!o->json) {
        fprintf(out, "%s%s%s, %d threads, corun %s\n", b->label, *b->label ? ", " : "", b->isa,
                pool_size(m->threads), corun_version());
        return CORUN_OK;
    }
    line l;
    line_begin(&l, "machine");
    put_text(&l, "version", corun_version());
    put_text(&l, "backend", b->name);
    put_text(&l, "device", b->label);
    put_text(&l, "isa", b->isa);
    put_text(&l, "machine", b->machine);
    put_int(&l, "threads", pool_size(m->threads));
    put_text(&l, "family", g->family_name);
    put_int(&l, "n_layer", g->n_layer);
    put_int(&l, "n_embd", g->n_embd);
    put_int(&l, "n_ff", g->n_ff);
    put_int(&l, "n_vocab", g->n_vocab);
    put_int(&l, "weight_bytes", (int64_t)b->weight_bytes(b));
    put_int(&l, "chunk", o->chunk);
    put_int(&l, "timed", o->timed);
    put_real(&l, "warm_s", o->warm);
    put_int(&l, "logprobs", o->logprobs);
    return line_end(&l, out);
}

/* ---- figures ----------------------------------------------------------------------------------
 */

static corun_status print_steps(const bench_engine *b, int32_t rows, const bench_steps *s,
                                const bench_part_times *t, FILE *out)
{
    double parts = bench_part_sum(t);
    bool lag = b->m->net->o->lag > 0;
    if (!b->o->json) {
        fprintf(out,
                "step    %-9s %4d x %7.1f %9.3f ms (%.3f ... %.3f) %9.1f tokens/s  parts %8.3f: "
                "products %.3f, attention %.3f, rows %.3f, draws %.3f; ratio %.3f\n",
                corun_policy_name(b->policy), rows, s->context, 1e3 * s->median, 1e3 * s->low,
                1e3 * s->high, rows / s->median, 1e3 * parts, 1e3 * t->products, 1e3 * t->attention,
                1e3 * t->rows, 1e3 * t->draws, s->median / parts);
        fflush(out);
        return CORUN_OK;
    }
    line l;
    line_of(&l, "step", b, s->from, s->to);
    put_int(&l, "rows", rows);
    put_real(&l, "context", s->context);
    put_real(&l, "median_ms", 1e3 * s->median);
    put_real(&l, "mean_ms", 1e3 * s->mean);
    put_real(&l, "p10_ms", 1e3 * s->low);
    put_real(&l, "p90_ms", 1e3 * s->high);
    if (lag) put_real(&l, "wait_ms", 1e3 * s->wait);
    if (lag) put_int(&l, "late", s->late);
    put_int(&l, "timed", b->o->timed);
    put_parts(&l, t);
    put_real(&l, "ratio", s->median / parts);
    put_real(&l, "tokens_per_s", rows / s->median);
    return line_end(&l, out);
}

static corun_status print_prompts(const bench_engine *b, const bench_shape *s,
                                  const bench_prompts *r, const bench_part_times *t, FILE *out)
{
    double median = r->seconds[r->n / 2], parts = bench_part_sum(t);
    double tokens = (double)s->n * s->tokens;
    if (!b->o->json) {
        fprintf(out,
                "prompts %-9s %4d x %7d %9.3f s, median of %d %9.1f tokens/s  parts %8.3f: "
                "products %.3f, attention %.3f, rows %.3f, draws %.3f; ratio %.3f\n",
                corun_policy_name(b->policy), s->n, s->tokens, median, r->n, tokens / median, parts,
                t->products, t->attention, t->rows, t->draws, median / parts);
        fflush(out);
        return CORUN_OK;
    }
    line l;
    line_of(&l, "prompts", b, r->from, r->to);
    put_int(&l, "prompts", s->n);
    put_int(&l, "tokens", s->tokens);
    jw_key(&l.w, "seconds");
    jw_open(&l.w, '[');
    for (int i = 0; i < r->n; i++) jw_double(&l.w, rounded(r->seconds[i]));
    jw_close(&l.w, ']');
    put_real(&l, "median_s", median);
    put_real(&l, "tokens_per_s", tokens / median);
    put_parts(&l, t);
    put_real(&l, "ratio", median / parts);
    return line_end(&l, out);
}

static corun_status print_job(const bench_engine *b, const bench_job *j, const bench_job_result *r,
                              FILE *out)
{
    char name[64];
    double rate = (double)r->tokens_out / r->seconds;
    snprintf(name, sizeof name, "%dx%d%c%d", j->n, j->n_in, j->spread ? '-' : '/', j->n_out);
    if (!b->o->json) {
        fprintf(out, "job     %-9s %-16s %8.2f s %9.1f tokens/s, results %s\n",
                corun_policy_name(b->policy), name, r->seconds, rate, r->digest);
        fflush(out);
        return CORUN_OK;
    }
    line l;
    line_of(&l, "job", b, r->from, r->to);
    put_text(&l, "job", name);
    put_int(&l, "tokens_in", (int64_t)r->tokens_in);
    put_int(&l, "tokens_out", (int64_t)r->tokens_out);
    put_real(&l, "seconds", r->seconds);
    put_real(&l, "tokens_per_s", rate);
    put_int(&l, "steps_prefill", (int64_t)r->stats.steps_prefill);
    put_int(&l, "steps_decode", (int64_t)r->stats.steps_decode);
    put_int(&l, "steps_mixed", (int64_t)r->stats.steps_mixed);
    put_real(&l, "wait_s", r->stats.seconds_wait);
    put_int(&l, "kv_bytes", (int64_t)r->kv_bytes);
    put_int(&l, "swaps_out", (int64_t)r->stats.swaps_out);
    put_int(&l, "recomputes", (int64_t)r->stats.recomputes);
    put_text(&l, "digest", r->digest);
    return line_end(&l, out);
}

static void add_times(bench_part_times *to, const bench_part_times *t, double times)
{
    to->products += times * t->products;
    to->attention += times * t->attention;
    to->rows += times * t->rows;
    to->draws += times * t->draws;
    to->products_floor += times * t->products_floor;
    to->attention_floor += times * t->attention_floor;
}

/* The steps that the planner makes of n prompts: several whole ones a step, or one in pieces. */
static corun_status time_prompt_parts(bench_parts *p, const bench_shape *s, int32_t chunk,
                                      bench_part_times *sum)
{
    bench_part_times t;
    *sum = (bench_part_times){0};
    if (s->n > 1 && s->tokens <= chunk) {
        int32_t whole = chunk / s->tokens < s->n ? chunk / s->tokens : s->n;
        TRY(bench_parts_time(p, whole, 0, s->tokens, &t));
        add_times(sum, &t, (double)s->n / whole);
        return CORUN_OK;
    }
    for (int32_t pos = 0; pos < s->tokens; pos += chunk) {
        int32_t len = s->tokens - pos < chunk ? s->tokens - pos : chunk;
        TRY(bench_parts_time(p, 1, pos, len, &t));
        add_times(sum, &t, s->n);
    }
    return CORUN_OK;
}

static corun_status run_policy(bench_engine *b, bench_parts *p, FILE *out)
{
    const bench_device_opts *o = b->o;
    bench_part_times t;
    for (int i = 0; i < o->n_steps; i++) {
        bench_steps s;
        TRY(bench_parts_time(p, o->steps[i].n, o->steps[i].tokens - 1, 1, &t));
        TRY(bench_time_steps(b, o->steps[i].n, o->steps[i].tokens, bench_part_sum(&t), &s));
        TRY(print_steps(b, o->steps[i].n, &s, &t, out));
    }
    for (int i = 0; i < o->n_prompts; i++) {
        bench_prompts r;
        const bench_shape *s = &o->prompts[i];
        TRY(time_prompt_parts(p, s, o->chunk, &t));
        TRY(bench_time_prompts(b, s->n, s->tokens, bench_part_sum(&t), &r));
        TRY(print_prompts(b, s, &r, &t, out));
    }
    return CORUN_OK;
}

static corun_status need_context(const corun_model *m, int64_t n)
{
    if (n > m->net->cfg.n_ctx)
        FAIL(CORUN_EINVAL, "bench: a context of %lld tokens, the model has %d", (long long)n,
             m->net->cfg.n_ctx);
    return CORUN_OK;
}

/* Before anything is timed. */
static corun_status check(const corun_model *m, const bench_device_opts *o)
{
    if (o->timed < 1 || o->timed > 100000 || !(o->warm >= 0 && o->warm <= 3600) || o->kv < 0)
        FAIL(CORUN_EINVAL, "bench: %d timed steps, %g s before or the KV pool is out of range",
             o->timed, o->warm);
    if (!o->n_steps && !o->n_prompts && !o->n_jobs)
        FAIL(CORUN_EINVAL, "bench: nothing to time is named");
    if (m->net->fake) FAIL(CORUN_EINVAL, "bench: a fake model has nothing to time");
    if (o->chunk < bench_slots(o))
        FAIL(CORUN_EINVAL, "bench: %d prompt tokens of a step are fewer than the %d rows", o->chunk,
             bench_slots(o));
    for (int i = 0; i < o->n_steps; i++) {
        int32_t context = o->steps[i].tokens;
        if (context < o->timed / 2 + 2)
            FAIL(CORUN_EINVAL, "bench: %d steps around a context of %d begin below 1", o->timed,
                 context);
        TRY(need_context(m, (int64_t)context + o->timed));
    }
    for (int i = 0; i < o->n_prompts; i++) TRY(need_context(m, (int64_t)o->prompts[i].tokens + 1));
    for (int i = 0; i < o->n_jobs; i++) {
        const bench_job *j = &o->jobs[i];
        TRY(need_context(m, j->spread ? 2 * (int64_t)j->n_out : (int64_t)j->n_in + j->n_out));
    }
    return CORUN_OK;
}

corun_status bench_device_run(corun_model *m, const bench_device_opts *o, FILE *out)
{
    TRY(check(m, o));
    TRY(print_machine(m, o, out));
    for (int k = 0; k < o->n_policy && (o->n_steps || o->n_prompts); k++) {
        bench_engine b = {.m = m, .o = o, .policy = o->policy[k]};
        bench_parts *p;
        TRY(bench_parts_open(&p, m, policy_get(b.policy), o->warm));
        corun_status st = run_policy(&b, p, out);
        bench_parts_close(p);
        TRY(st);
    }
    for (int i = 0; i < o->n_jobs; i++)
        for (int k = 0; k < o->n_policy; k++) {
            bench_engine b = {.m = m, .o = o, .policy = o->policy[k]};
            bench_job_result r;
            TRY(bench_time_job(&b, &o->jobs[i], &r));
            TRY(print_job(&b, &o->jobs[i], &r, out));
        }
    return CORUN_OK;
}
