/* cmd_verify.c - owns `corun verify`: options, and the user's own lines as requests. The recipes
 * and the table are proof/verify.h. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "app/cmd.h"
#include "app/openai.h"
#include "app/pump.h"
#include "app/sink.h"
#include "base/fault.h"
#include "proof/verify.h"

enum { MAX_RECIPE = 64, MAX_POLICY = 4 };

typedef struct verify_args {
    cmd_engine_args e;
    const char *in, *recipe, *json;
    char letters[MAX_RECIPE];
    int32_t requests;
    bool quick, help;
    corun_policy policy[MAX_POLICY];
    size_t n_policy;
} verify_args;

/* The jobs own what the requests point to. */
typedef struct own_requests {
    job **j;
    corun_request *r;
    size_t n_job, n;
} own_requests;

static corun_status read_policy(verify_args *a)
{
    static const corun_policy all[] = {CORUN_POLICY_CORUN, CORUN_POLICY_INVARIANT,
                                       CORUN_POLICY_FREE, CORUN_POLICY_DYNAMIC};
    corun_policy one = CORUN_POLICY_AUTO;
    if (strcmp(a->e.policy, "all") != 0 && corun_policy_parse(a->e.policy, &one) != CORUN_OK)
        FAIL(CORUN_EINVAL, "--policy %s: not corun, invariant, free, dynamic or all", a->e.policy);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (one == CORUN_POLICY_AUTO || one == all[i]) a->policy[a->n_policy++] = all[i];
    return CORUN_OK;
}

/* "a,F" and "AF" are the same. */
static corun_status read_recipe(verify_args *a)
{
    size_t n = 0;
    for (const char *p = a->recipe; p && *p; p++) {
        if (*p == ',') continue;
        if (n + 1 == MAX_RECIPE) FAIL(CORUN_EINVAL, "--recipe: too many letters");
        a->letters[n++] = (char)toupper((unsigned char)*p);
    }
    return CORUN_OK;
}

static corun_status read_args(verify_args *a, int argc, char **argv)
{
    const arg_spec specs[] = {
        {"model", 'm', ARG_TEXT, &a->e.model, "MODEL",
         "a model, or fake: for each policy on the weakest kernels that it allows"},
        {"input", 'i', ARG_TEXT, &a->in, "FILE", "requests of a batch file instead of made ones"},
        {"quick", 0, ARG_FLAG, &a->quick, NULL, "17 rows, 128 tokens, prefixes up to 511"},
        {"requests", 0, ARG_INT, &a->requests, "N",
         "how many are compared (17 to 65, by the form): 8 or more"},
        {"policy", 0, ARG_TEXT, &a->e.policy, "NAME",
         "corun, invariant, free, dynamic or all (default)"},
        {"recipe", 0, ARG_TEXT, &a->recipe, "LETTERS", "only these, as A,F"},
        {"json", 0, ARG_TEXT, &a->json, "FILE", "the table with all that was seen, as JSON"},
        {"slots", 0, ARG_INT, &a->e.slots, "N", "rows of a decode step"},
        {"ctx", 0, ARG_INT, &a->e.ctx, "N", "longest request in tokens (0: the model's)"},
        {"page", 0, ARG_INT, &a->e.page, "N", "tokens of a KV page (64; with --quick 16)"},
        {"device", 0, ARG_TEXT, &a->e.device, "NAME", "auto, cpu, cuda or cuda:N"},
        {"dummy-weights", 0, ARG_FLAG, &a->e.dummy_weights, NULL,
         "MODEL is a config.json: weights are made up"},
        {"threads", 0, ARG_INT, &a->e.threads, "N", "CPU workers (0: one a core)"},
        {"isa", 0, ARG_TEXT, &a->e.isa, "NAME", "auto, avx512, avx2, neon or generic"},
        {"plan", 0, ARG_TEXT, &a->e.plan, "FILE", "matrix plans for a CUDA device"},
        {"processed-logprobs", 0, ARG_FLAG, &a->e.processed_logprobs, NULL,
         "log-probabilities after temperature instead of raw"},
        {"allow-special-rows", 0, ARG_FLAG, &a->e.allow_special_rows, NULL,
         "let ids that the tokenizer does not name be drawn"},
        {"help", 'h', ARG_FLAG, &a->help, NULL, "this text"},
    };
    size_t n;
    cmd_engine_args_init(&a->e);
    a->e.policy = "all";
    a->e.page = 0;
    TRY(args_parse(specs, sizeof specs / sizeof *specs, argc, argv, NULL, 0, &n));
    if (a->help) {
        puts("corun verify -m MODEL [-i IN.jsonl] [--quick] [options]\n\n"
             "Tries the promise: recipes A to R under each policy, every bit of every\n"
             "log-probability compared. Exit code 1 when a promise was not kept, or when a recipe\n"
             "did not get to try what it is for. docs/verify.md describes the recipes.");
        args_help(specs, sizeof specs / sizeof *specs);
        return CORUN_OK;
    }
    if (!a->e.model) FAIL(CORUN_EINVAL, "no model is named: -m MODEL");
    if (a->requests && (a->requests < VERIFY_MIN_ROW || a->requests > VERIFY_MAX_ROW))
        FAIL(CORUN_EINVAL, "--requests %d: not in %d ... %d", a->requests, VERIFY_MIN_ROW,
             VERIFY_MAX_ROW);
    if (a->e.page == 0) a->e.page = a->quick ? 16 : corun_engine_opts_default().page_tokens;
    TRY(read_recipe(a));
    return read_policy(a);
}

static corun_status add_line(own_requests *own, const job_model *m, const buf *line, uint64_t no)
{
    job **all = mem_realloc(own->j, own->n_job + 1, sizeof *all, "requests"), *j;
    if (!all) return CORUN_ENOMEM;
    own->j = all;
    TRY(openai_open(&j, line->data, line->len, no));
    own->j[own->n_job++] = j;
    if (j->http == 200) TRY(openai_prepare(j, m));
    if (j->http != 200)
        FAIL(CORUN_EINVAL, "line %llu: %s", (unsigned long long)no,
             j->message ? j->message : "no memory");
    corun_request *r = mem_realloc(own->r, own->n + j->n_prompt, sizeof *r, "requests");
    if (!r) return CORUN_ENOMEM;
    own->r = r;
    for (size_t i = 0; i < j->n_prompt; i++) job_request(j, i, &r[own->n++]);
    return CORUN_OK;
}

static corun_status read_requests(own_requests *own, const char *path, const job_model *m)
{
    lines *in;
    buf line;
    TRY(lines_open(&in, path, JOB_MAX_LINE));
    buf_init(&line, JOB_MAX_LINE + 1);
    corun_status st = CORUN_OK;
    lines_kind kind = LINES_LINE;
    while (st == CORUN_OK) {
        uint64_t no;
        st = lines_next(in, &line, &no, &kind);
        if (st != CORUN_OK || kind == LINES_END) break;
        if (kind == LINES_LONG)
            st = err_set(CORUN_EINVAL, "line %llu: longer than %zu bytes", (unsigned long long)no,
                         JOB_MAX_LINE);
        else
            st = add_line(own, m, &line, no);
    }
    if (st == CORUN_OK && !own->n) st = err_set(CORUN_EINVAL, "%s: no requests", path);
    buf_free(&line);
    lines_close(in);
    return st;
}

static corun_status run(const verify_args *a, cmd_session *s, own_requests *own, buf *json,
                        place *json_at)
{
    const char *inputs[] = {a->in, a->e.model};
    if (a->json) TRY(place_find_idle(json_at, a->json, inputs, 2));
    char program[4096];
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    if (n > 0) program[n] = 0;
    bool fakes = strcmp(a->e.model, "fake:") == 0;
    cmd_engine_args e = a->e;
    if (fakes) e.model = "fake:phase"; /* all of them read text alike */
    if (!fakes || a->in) TRY(cmd_open(s, &e, false));
    if (a->in) TRY(read_requests(own, a->in, &s->facts));
    corun_model_opts mo = corun_model_opts_default();
    corun_engine_opts eo = corun_engine_opts_default();
    mo.path = a->e.model;
    mo.n_thread = a->e.threads;
    mo.isa = a->e.isa;
    mo.device = a->e.device;
    mo.dummy_weights = a->e.dummy_weights;
    mo.plan = a->e.plan;
    eo.n_slot = a->e.slots;
    eo.n_ctx = a->e.ctx;
    eo.page_tokens = a->e.page;
    eo.processed_logprobs = a->e.processed_logprobs;
    eo.allow_special_rows = a->e.allow_special_rows;
    const char *const words[] = {"--fault", fault_name(), NULL};
    verify_opts o = {.model = mo,
                     .open = fakes ? NULL : s->model,
                     .engine = eo,
                     .policy = a->policy,
                     .n_policy = a->n_policy,
                     .recipe = a->letters[0] ? a->letters : NULL,
                     .quick = a->quick,
                     .n_row = (size_t)a->requests,
                     .request = own->r,
                     .n_request = own->n,
                     .program = n > 0 ? program : NULL,
                     .prefix = fault_name() ? words : NULL,
                     .out = stdout,
                     .json = a->json ? json : NULL};
    corun_status st = verify_run(&o);
    if (a->json && json->len && (st == CORUN_OK || st == CORUN_EMISMATCH)) {
        char text[ERR_TEXT_MAX]; /* the verdict outlives a report that could not be written */
        snprintf(text, sizeof text, "%s", err_text());
        TRY(sink_whole(json_at, json));
        if (st != CORUN_OK) st = err_set(st, "%s", text);
    }
    return st;
}

int cmd_verify(int argc, char **argv)
{
    verify_args a = {0};
    cmd_session s = {0};
    own_requests own = {0};
    buf json;
    place json_at = {0};
    corun_status st = read_args(&a, argc, argv);
    if (st != CORUN_OK) return cmd_usage("verify", "%s", corun_last_error());
    if (a.help) return CMD_OK;
    buf_init(&json, (size_t)64 << 20);
    st = run(&a, &s, &own, &json, &json_at);
    int code = st != CORUN_OK ? cmd_fail(st) : CMD_OK;
    for (size_t i = 0; i < own.n_job; i++) job_free(own.j[i]);
    mem_free(own.j);
    mem_free(own.r);
    buf_free(&json);
    place_free(&json_at);
    cmd_close(&s);
    return code;
}
