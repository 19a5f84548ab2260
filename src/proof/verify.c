/* verify.c - owns the table of recipes, its columns and its judgement. Invariant: a cell is kept
 * only if bytes were compared, all were equal, and what the recipe is for has happened. */
#include "base/clock.h"
#include "proof/verify_int.h"

#include <stdarg.h>
#include <string.h>

static const vf_recipe recipes[] = {
    {'A', "needle among others", vf_needle},
    {'B', "neighbours' lengths", vf_lengths},
    {'C', "experts crowded", vf_experts},
    {'D', "extreme neighbours", vf_extremes},
    {'E', "concurrency and order", vf_concurrency},
    {'F', "known prefix", vf_prefix},
    {'G', "pool cut short", vf_eviction},
    {'H', "kill -9 and resume", vf_killed},
    {'I', "other kinds of sampling", vf_kinds},
    {'J', "8 samples", vf_samples},
    {'K', "stop strings", vf_stops},
    {'L', "two processes", vf_process},
    {'M', "bad lines", vf_bad_lines},
    {'N', "scores", vf_scores},
    {'O', "replay", vf_replay},
    {'P', "identical rows", vf_rows},
    {'Q', "seeds", vf_seeds},
    {'R', "prompt in pieces", vf_chunks},
};
enum { N_RECIPE = sizeof recipes / sizeof *recipes, MAX_COLUMN = 16, SMALL_MODEL = 10000000 };

typedef struct column {
    const vf_policy *p;
    bool lower;
    const char *model;
    char title[64], identity[33];
    size_t n_row;
    int32_t n_distinct;
    int64_t n_tokens;
    vf_cell cell[N_RECIPE];
} column;

typedef struct table {
    const verify_opts *o;
    column col[MAX_COLUMN];
    size_t n_col;
    int n_broken; /* cells and columns that are not as promised */
} table;

/* ---- cells ---------------------------------------------------------------------------------- */

static void append(char *to, size_t cap, const char *fmt, va_list ap)
{
    size_t n = strlen(to);
    vsnprintf(to + n, cap - n, fmt, ap);
}

void vf_note(vf_cell *c, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    append(c->seen, sizeof c->seen, fmt, ap);
    va_end(ap);
}

void vf_need(vf_cell *c, uint64_t n, const char *what)
{
    if (n || c->state != VF_KEPT) return;
    c->state = VF_IDLE;
    snprintf(c->where, sizeof c->where, "did not happen: %s", what);
}

void vf_na(vf_cell *c, const char *fmt, ...)
{
    va_list ap;
    c->state = VF_NA;
    va_start(ap, fmt);
    append(c->seen, sizeof c->seen, fmt, ap);
    va_end(ap);
}

void vf_broken(vf_cell *c, const char *fmt, ...)
{
    va_list ap;
    if (c->n_differ++) return; /* the first one is named */
    c->state = VF_BROKEN;
    c->where[0] = 0;
    va_start(ap, fmt);
    append(c->where, sizeof c->where, fmt, ap);
    va_end(ap);
}

void vf_check(vf_cell *c, const vf_job *want, const vf_job *got, bool as_prefix, const char *fmt,
              ...)
{
    char why[300], who[100] = "";
    va_list ap;
    for (int32_t i = 0; i < got->r.sampling.n; i++)
        c->n_token += got->s[i].drawn.n + got->s[i].prompt.n;
    if (vf_same(want, got, as_prefix, why, sizeof why)) return;
    va_start(ap, fmt);
    append(who, sizeof who, fmt, ap);
    va_end(ap);
    vf_broken(c, "%s, %s", who, why);
}

/* A status of the engine that a recipe ran into: a broken rule is the cell's, the rest ends it. */
static corun_status judge(vf_cell *c, corun_status st)
{
    if (st == CORUN_EMISMATCH || st == CORUN_EINTERNAL) {
        vf_broken(c, "%s", corun_last_error());
        st = CORUN_OK;
    }
    if (st == CORUN_OK && c->state == VF_KEPT && c->n_token == 0)
        vf_need(c, 0, "a comparison of tokens");
    return st;
}

static const char *verdict(const column *k, const vf_cell *c)
{
    bool promise = k->p->lower != NULL;
    switch (c->state) {
    case VF_KEPT: return k->lower ? "equal" : promise ? "kept" : "no promise, equal";
    case VF_BROKEN: return k->lower ? "differs" : promise ? "BROKEN" : "no promise, differs";
    case VF_IDLE: return promise && !k->lower ? "IDLE" : "idle";
    case VF_NA: return "n/a";
    case VF_SKIPPED: return "";
    }
    return "";
}

static void print_cell(FILE *out, const column *k, const vf_recipe *r, const vf_cell *c)
{
    if (c->state == VF_SKIPPED) return;
    if (c->state == VF_NA) {
        fprintf(out, "  %c %-24s n/a: %s\n", r->letter, r->name, c->seen);
        return;
    }
    fprintf(out, "  %c %-24s %s: %s; %lld tokens compared, %.1f s\n", r->letter, r->name,
            verdict(k, c), c->seen, (long long)c->n_token, c->seconds);
    if (c->where[0]) fprintf(out, "    %s%s\n", c->n_differ ? "first difference: " : "", c->where);
}

/* ---- columns -------------------------------------------------------------------------------- */

static bool wanted(const verify_opts *o, char letter)
{
    return !o->recipe || strchr(o->recipe, letter);
}

enum { MIN_DISTINCT = 200 };

static corun_status run_recipes(table *t, column *k, vf *v)
{
    FILE *out = t->o->out;
    double t0 = clock_seconds();
    TRY(vf_set_open(v));
    k->n_row = v->n_set;
    k->n_distinct = v->n_distinct;
    k->n_tokens = v->n_tokens;
    fprintf(out, "  %zu requests alone: %lld tokens, %d of them distinct, %.1f s\n", v->n_set,
            (long long)v->n_tokens, v->n_distinct, clock_seconds() - t0);
    if (v->n_distinct < MIN_DISTINCT && v->p->lower && !k->lower) {
        fprintf(out, "    IDLE: fewer than %d distinct tokens prove nothing\n", MIN_DISTINCT);
        t->n_broken++;
    }
    int differs = 0;
    for (int i = 0; i < N_RECIPE; i++) {
        vf_cell *c = &k->cell[i];
        if (!wanted(t->o, recipes[i].letter)) continue;
        c->state = VF_KEPT;
        t0 = clock_seconds();
        TRY(judge(c, recipes[i].run(v, c)));
        c->seconds = clock_seconds() - t0;
        print_cell(out, k, &recipes[i], c);
        fflush(out);
        differs += c->state == VF_BROKEN;
        if (k->p->lower && !k->lower) t->n_broken += c->state == VF_BROKEN || c->state == VF_IDLE;
    }
    /* A model that is weaker than the policy asks for must be seen to fail. */
    if ((k->lower || (v->fake && !k->p->lower && !strcmp(t->o->model.path, "fake:"))) &&
        !t->o->recipe) {
        fprintf(out, "  %s\n", differs ? "seen to fail, as it must" : "NOT SEEN TO FAIL");
        t->n_broken += !differs;
    }
    return CORUN_OK;
}

static corun_status name_identity(vf *v, column *k)
{
    corun_engine *e;
    vf_pool(v, &v->eo, 16);
    TRY(corun_engine_open(&e, v->m, &v->eo));
    corun_status st = corun_identity(e, k->identity, NULL, 0, NULL);
    corun_engine_close(e);
    return st;
}

static corun_status run_column(table *t, column *k)
{
    const verify_opts *o = t->o;
    vf v = {.o = o, .p = k->p, .m = o->open, .model = k->model, .eo = o->engine};
    bool fake = strncmp(o->model.path, "fake:", 5) == 0;
    for (int i = 0; i < N_RECIPE; i++) k->cell[i].state = VF_SKIPPED;
    v.fake = fake;
    v.eo.policy = k->p->policy;
    if (fake) { /* short pages and chunks: more of everything in little time */
        v.eo.page_tokens = 16;
        v.eo.n_slot = 8;
        v.eo.prefill_chunk = k->p->cut ? k->p->cut : 128;
    }
    corun_status st = CORUN_OK;
    if (!v.m) {
        corun_model_opts mo = o->model;
        mo.path = v.model;
        st = corun_model_open(&v.m, &mo);
    }
    if (st == CORUN_OK) st = corun_model_describe(v.m, &v.info);
    /* A policy that promises nothing is information: the quick form tells as much. */
    v.few = (o->quick || !k->p->lower) && v.info.n_param > SMALL_MODEL;
    if (v.few && !o->quick) v.eo.page_tokens = 16; /* short requests have several pages, too */
    if (st == CORUN_OK) st = name_identity(&v, k);
    if (st == CORUN_EUNSUPPORTED && o->n_policy > 1) { /* a refusal breaks no promise */
        fprintf(o->out, "%s is refused: %s\n", k->title, corun_last_error());
        for (int i = 0; i < N_RECIPE; i++) vf_na(&k->cell[i], "%s", corun_last_error());
        st = CORUN_OK;
    } else if (st == CORUN_OK) {
        fprintf(o->out, "%s (%s, identity %s)\n", k->title, v.info.isa, k->identity);
        st = run_recipes(t, k, &v);
    }
    fprintf(o->out, "\n");
    vf_set_close(&v);
    vf_files_close(&v);
    if (!o->open) corun_model_close(v.m);
    return st;
}

static void add_column(table *t, const vf_policy *p, bool lower)
{
    if (t->n_col == MAX_COLUMN) return;
    column *k = &t->col[t->n_col++];
    const char *path = t->o->model.path;
    bool fakes = strcmp(path, "fake:") == 0;
    *k = (column){.p = p, .lower = lower};
    k->model = !fakes ? path : lower ? p->lower : p->fake;
    if (fakes)
        snprintf(k->title, sizeof k->title, "%s on %s%s", p->name, k->model,
                 lower ? " (a level too low)" : "");
    else
        snprintf(k->title, sizeof k->title, "%s", p->name);
}

/* ---- report --------------------------------------------------------------------------------- */

static const char *short_verdict(const column *k, const vf_cell *c)
{
    if (k->p->lower || c->state == VF_NA || c->state == VF_SKIPPED) return verdict(k, c);
    return c->state == VF_KEPT ? "(equal)" : c->state == VF_BROKEN ? "(differs)" : "(idle)";
}

static void print_table(const table *t, double seconds)
{
    FILE *out = t->o->out;
    fprintf(out, "  %-24s", "recipe");
    for (size_t j = 0; j < t->n_col; j++) {
        char title[24];
        snprintf(title, sizeof title, "%s%s", t->col[j].p->name, t->col[j].lower ? " -1" : "");
        fprintf(out, " %-12s", title);
    }
    for (int i = 0; i < N_RECIPE; i++) {
        if (!wanted(t->o, recipes[i].letter)) continue;
        fprintf(out, "\n%c %-24s", recipes[i].letter, recipes[i].name);
        for (size_t j = 0; j < t->n_col; j++)
            fprintf(out, " %-12s", short_verdict(&t->col[j], &t->col[j].cell[i]));
    }
    fprintf(out, "\n\nIn brackets: a policy that promises nothing.");
    if (t->n_col && strcmp(t->o->model.path, "fake:") == 0)
        fprintf(out, " \"-1\": on kernels one level weaker than the policy asks for.");
    fprintf(out, "\n%.0f s\n%s\n", seconds,
            t->n_broken ? "NOT every promise was kept" : "every promise was kept");
}

static void put_column(jw *w, const table *t, const column *k)
{
    jw_open(w, '{');
    jw_field_str(w, "policy", k->p->name);
    jw_field_str(w, "model", k->model);
    jw_field_str(w, "identity", k->identity);
    jw_field_bool(w, "level_too_low", k->lower);
    jw_field_uint(w, "requests", k->n_row);
    jw_field_int(w, "tokens", k->n_tokens);
    jw_field_int(w, "distinct_tokens", k->n_distinct);
    jw_key(w, "recipes");
    jw_open(w, '[');
    for (int i = 0; i < N_RECIPE; i++) {
        const vf_cell *c = &k->cell[i];
        char letter[2] = {recipes[i].letter, 0};
        if (!wanted(t->o, recipes[i].letter)) continue;
        jw_open(w, '{');
        jw_field_str(w, "recipe", letter);
        jw_field_str(w, "name", recipes[i].name);
        jw_field_str(w, "verdict", verdict(k, c));
        jw_field_str(w, c->state == VF_NA ? "reason" : "exercised", c->seen);
        jw_field_int(w, "tokens_compared", c->n_token);
        jw_field_int(w, "differences", c->n_differ);
        if (c->where[0]) jw_field_str(w, c->n_differ ? "first_difference" : "missing", c->where);
        jw_field_double(w, "seconds", c->seconds);
        jw_close(w, '}');
    }
    jw_close(w, ']');
    jw_close(w, '}');
}

static void put_json(const table *t, buf *b)
{
    jw w;
    jw_init(&w, b);
    jw_open(&w, '{');
    jw_field_str(&w, "version", corun_version());
    jw_field_str(&w, "model", t->o->model.path);
    jw_field_str(&w, "form", t->o->quick ? "quick" : "full");
    jw_field_bool(&w, "kept", t->n_broken == 0);
    jw_key(&w, "columns");
    jw_open(&w, '[');
    for (size_t i = 0; i < t->n_col; i++) put_column(&w, t, &t->col[i]);
    jw_close(&w, ']');
    jw_close(&w, '}');
    buf_putc(b, '\n');
}

static corun_status check_recipes(const char *text)
{
    for (const char *p = text; p && *p; p++) {
        int i = 0;
        while (i < N_RECIPE && recipes[i].letter != *p) i++;
        if (i == N_RECIPE) FAIL(CORUN_EINVAL, "--recipe %s: there is no recipe '%c'", text, *p);
    }
    return CORUN_OK;
}

corun_status verify_run(const verify_opts *o)
{
    TRY(check_recipes(o->recipe));
    table *t;
    if (!MEM_NEW(t, 1)) return CORUN_ENOMEM;
    t->o = o;
    bool fakes = strcmp(o->model.path, "fake:") == 0;
    for (size_t i = 0; i < o->n_policy; i++)
        for (size_t j = 0; j < vf_n_policy; j++) {
            if (vf_policies[j].policy != o->policy[i]) continue;
            add_column(t, &vf_policies[j], false);
            if (fakes && vf_policies[j].lower) add_column(t, &vf_policies[j], true);
        }
    corun_status st = CORUN_OK;
    double t0 = clock_seconds();
    fprintf(o->out, "corun %s verify, %s, %s form\n\n", corun_version(), o->model.path,
            o->quick ? "quick" : "full");
    for (size_t i = 0; i < t->n_col && st == CORUN_OK; i++) st = run_column(t, &t->col[i]);
    if (st == CORUN_OK) {
        print_table(t, clock_seconds() - t0);
        if (o->json) {
            put_json(t, o->json);
            st = buf_status(o->json);
        }
    }
    if (st == CORUN_OK && t->n_broken)
        st =
            err_set(CORUN_EMISMATCH, "verify: %d promises were not kept or not tried", t->n_broken);
    mem_free(t);
    return st;
}
