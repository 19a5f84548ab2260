/* session.c - owns what commands share: opening a model and its engine by options, exit codes,
 * signals. Invariant: the engine is closed before its model. */
#include "app/cmd.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"

int cmd_exit_code(corun_status st)
{
    switch (st) {
    case CORUN_OK: return CMD_OK;
    case CORUN_EMISMATCH:
    case CORUN_EINTERNAL: return CMD_PROMISE;
    case CORUN_ENOMEM:
    case CORUN_EIO:
    case CORUN_EDEVICE: return CMD_SYSTEM;
    default: return CMD_BAD;
    }
}

int cmd_fail(corun_status st)
{
    fprintf(stderr, "corun: %s\n", corun_last_error());
    return cmd_exit_code(st);
}

int cmd_usage(const char *command, const char *fmt, ...)
{
    va_list ap;
    fprintf(stderr, "corun %s: ", command);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fprintf(stderr, " (corun %s --help shows the use)\n", command);
    return CMD_BAD;
}

void cmd_engine_args_init(cmd_engine_args *a)
{
    const corun_engine_opts o = corun_engine_opts_default();
    const corun_model_opts m = corun_model_opts_default();
    *a = (cmd_engine_args){.policy = corun_policy_name(o.policy),
                           .device = m.device,
                           .isa = m.isa,
                           .date = m.template_date,
                           .threads = m.n_thread,
                           .slots = o.n_slot,
                           .ctx = o.n_ctx,
                           .page = o.page_tokens,
                           .chunk = o.prefill_chunk,
                           .kv = (int64_t)o.kv_bytes,
                           .swap = o.swap_bytes};
}

/* ---- the functions of a job_model --------------------------------------------------------- */

static corun_status encode(const void *ctx, const char *text, size_t len, unsigned flags,
                           int32_t *out, size_t cap, size_t *n)
{
    return corun_encode(ctx, text, len, flags, out, cap, n);
}

static corun_status decode(const void *ctx, const int32_t *ids, size_t n_id, unsigned flags,
                           char *out, size_t cap, size_t *n)
{
    return corun_decode(ctx, ids, n_id, flags, out, cap, n);
}

static corun_status token_bytes(const void *ctx, int32_t id, char *out, size_t cap, size_t *n)
{
    return corun_token_bytes(ctx, id, out, cap, n);
}

static corun_status render(const void *ctx, const char *json, size_t len, char *out, size_t cap,
                           size_t *n)
{
    return corun_chat_render(ctx, json, len, out, cap, n);
}

/* ---- open ---------------------------------------------------------------------------------- */

static corun_status read_identity(cmd_session *s)
{
    char json[16384];
    size_t n;
    json_t *o;
    TRY(corun_identity(s->engine, s->identity, json, sizeof json, &n));
    TRY(json_read(&o, json, n, "identity"));
    const char *name = json_string_value(json_object_get(o, "policy"));
    snprintf(s->policy, sizeof s->policy, "%s", name ? name : "");
    json_decref(o);
    return CORUN_OK;
}

/* The text that is set begins with a field of the options: the program's user knows it as an
 * option. Returns st. */
static corun_status name_option(corun_status st)
{
    static const struct {
        const char *field, *option;
    } of[] = {
        {"policy \"", "--policy \""},
        {"n_slot:", "--slots:"},
        {"n_ctx:", "--ctx:"},
        {"page_tokens:", "--page:"},
        {"prefill_chunk:", "--chunk:"},
        {"kv_bytes:", "--kv:"},
        {"kv_bytes or swap_bytes:", "--kv or --swap:"},
    };
    char text[ERR_TEXT_MAX];
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        size_t n = strlen(of[i].field);
        if (strncmp(err_text(), of[i].field, n) != 0) continue;
        snprintf(text, sizeof text, "%s", err_text() + n);
        return err_set(st, "%s%s", of[i].option, text);
    }
    return st;
}

static corun_status open_engine(cmd_session *s, const cmd_engine_args *a)
{
    corun_engine_opts o = corun_engine_opts_default();
    if (corun_policy_parse(a->policy, &o.policy) != CORUN_OK) return name_option(CORUN_EINVAL);
    o.n_slot = a->slots;
    o.n_ctx = a->ctx;
    o.page_tokens = a->page;
    o.kv_bytes = (uint64_t)a->kv;
    o.swap_bytes = a->swap;
    o.prefill_chunk = a->chunk;
    o.processed_logprobs = a->processed_logprobs;
    o.allow_special_rows = a->allow_special_rows;
    corun_status st = corun_engine_open(&s->engine, s->model, &o);
    if (st == CORUN_EINVAL) return name_option(st);
    TRY(st);
    return read_identity(s);
}

corun_status cmd_open(cmd_session *s, const cmd_engine_args *a, bool with_engine)
{
    *s = (cmd_session){0};
    if (!a->model) FAIL(CORUN_EINVAL, "no model is named: -m MODEL");
    if (a->kv < 0) FAIL(CORUN_EINVAL, "--kv: negative");
    corun_model_opts mo = corun_model_opts_default();
    mo.path = a->model;
    mo.n_thread = a->threads;
    mo.device = a->device;
    mo.isa = a->isa;
    mo.dummy_weights = a->dummy_weights;
    mo.template_date = a->date;
    mo.plan = a->plan;
    double began = clock_seconds();
    corun_status st = corun_model_open(&s->model, &mo);
    s->seconds_model = clock_seconds() - began;
    if (st == CORUN_OK) st = corun_model_describe(s->model, &s->info);
    if (st == CORUN_OK && *s->info.device_note && !a->quiet)
        fprintf(stderr, "corun: %s\n", s->info.device_note);
    s->facts = (job_model){.ctx = s->model,
                           .encode = encode,
                           .decode = decode,
                           .token_bytes = token_bytes,
                           .render = render,
                           .n_vocab = s->info.n_vocab,
                           .n_ctx = a->ctx > 0 ? a->ctx : s->info.n_ctx,
                           .bos = s->info.bos,
                           .served_name = a->served_name,
                           .fingerprint = s->identity};
    if (st == CORUN_OK) st = corun_sampling_default(s->model, &s->facts.defaults);
    if (st == CORUN_OK && with_engine) {
        began = clock_seconds();
        st = open_engine(s, a);
        s->seconds_engine = clock_seconds() - began;
    }
    if (st != CORUN_OK) cmd_close(s);
    return st;
}

corun_status cmd_reopen_engine(cmd_session *s, const cmd_engine_args *a)
{
    corun_engine_close(s->engine);
    s->engine = NULL;
    return open_engine(s, a);
}

void cmd_close(cmd_session *s)
{
    corun_engine_close(s->engine);
    corun_model_close(s->model);
    s->engine = NULL;
    s->model = NULL;
}

/* ---- signals ------------------------------------------------------------------------------- */

static volatile sig_atomic_t signal_seen; /* the one variable that a signal handler can reach */

/* The first signal is noted. A second one, of whatever kind, ends the process at once. */
static void note_signal(int n)
{
    if (signal_seen) {
        signal(n, SIG_DFL);
        raise(n); /* comes when this handler returns */
    }
    signal_seen = n;
}

void cmd_signals_install(void)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction sa = {.sa_handler = note_signal}, old;
    sigemptyset(&sa.sa_mask);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        if (sigaction(signals[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN)
            sigaction(signals[i], &sa, NULL); /* what nohup ignores stays ignored */
    sa = (struct sigaction){.sa_handler = SIG_IGN};
    sigaction(SIGPIPE, &sa, NULL);
    sigaction(SIGXFSZ, &sa, NULL); /* a file too large is an error of write */
}

int cmd_signal(void) { return signal_seen; }
