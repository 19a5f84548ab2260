/* cmd_run.c - owns `corun run`: one prompt, its answer streamed. Invariant: the prompt becomes a
 * batch line and takes the same way, so the answer is the one that the batch would hold. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "app/cmd.h"
#include "app/openai.h"
#include "base/clock.h"
#include "base/utf8.h"

typedef struct run_args {
    cmd_engine_args e;
    const char *prompt, *system, *stop;
    double temperature, top_p, min_p;
    int32_t top_k, max_tokens;
    int64_t seed;
    bool raw, verbose, help;
} run_args;

static corun_status read_args(run_args *a, int argc, char **argv)
{
    const arg_spec specs[] = {
        {NULL, 0, ARG_FLAG, NULL, NULL, "Prompt:"},
        {"prompt", 'p', ARG_UTF8, &a->prompt, "TEXT", "what the user says; - reads standard input"},
        {"system", 0, ARG_UTF8, &a->system, "TEXT", "a system message before it"},
        {"raw", 0, ARG_FLAG, &a->raw, NULL, "no chat template: continue the text"},
        {NULL, 0, ARG_FLAG, NULL, NULL, "Sampling (defaults: the model's):"},
        {"max-tokens", 'n', ARG_INT, &a->max_tokens, "N", "most new tokens (default 256)"},
        {"temperature", 't', ARG_REAL, &a->temperature, "X", "0: greedy"},
        {"top-p", 0, ARG_REAL, &a->top_p, "X", ""},
        {"min-p", 0, ARG_REAL, &a->min_p, "X", ""},
        {"top-k", 0, ARG_INT, &a->top_k, "N", ""},
        {"seed", 's', ARG_LONG, &a->seed, "N", "default: made from the request"},
        {"stop", 0, ARG_UTF8, &a->stop, "TEXT", "end before this text"},
        {"verbose", 'v', ARG_FLAG, &a->verbose, NULL,
         "times, speeds and identity on standard error"},
        {"help", 'h', ARG_FLAG, &a->help, NULL, "this text"},
        CMD_ENGINE_SPECS(&a->e),
    };
    const char *pos[1];
    size_t n;
    cmd_engine_args_init(&a->e);
    a->temperature = a->top_p = a->min_p = NAN; /* not given: no option reads as this */
    a->top_k = INT32_MIN;
    a->seed = -1;
    a->max_tokens = 256;
    TRY(args_parse(specs, sizeof specs / sizeof *specs, argc, argv, pos, 0, &n));
    if (a->help) {
        puts("corun run -m MODEL -p TEXT [options]\n\nPrints the model's answer as it comes.");
        args_help(specs, sizeof specs / sizeof *specs);
        return CORUN_OK;
    }
    if (!a->prompt) FAIL(CORUN_EINVAL, "no prompt: -p TEXT");
    if (a->raw && a->system) FAIL(CORUN_EINVAL, "--system needs a chat, not --raw");
    return CORUN_OK;
}

static corun_status read_stdin(buf *b)
{
    char block[65536];
    size_t n;
    while ((n = fread(block, 1, sizeof block, stdin)) > 0) buf_put(b, block, n);
    if (ferror(stdin)) FAIL(CORUN_EIO, "standard input: %s", strerror(errno));
    TRY(buf_status(b));
    size_t bad = utf8_bad(b->data ? b->data : "", b->len);
    if (bad < b->len) FAIL(CORUN_EINVAL, "standard input: byte %zu is not UTF-8", bad);
    return CORUN_OK;
}

static void put_message(jw *w, const char *role, const char *text, size_t len)
{
    jw_open(w, '{');
    jw_field_str(w, "role", role);
    jw_key(w, "content");
    jw_str(w, text, len);
    jw_close(w, '}');
}

static void put_real(jw *w, const char *key, double v)
{
    if (!isnan(v)) jw_field_double(w, key, v);
}

/* The call as a batch line. */
static corun_status write_line(const run_args *a, const char *text, size_t len, buf *out)
{
    jw w;
    jw_init(&w, out);
    jw_open(&w, '{');
    jw_field_str(&w, "custom_id", "run");
    jw_field_str(&w, "method", "POST");
    jw_field_str(&w, "url", a->raw ? "/v1/completions" : "/v1/chat/completions");
    jw_key(&w, "body");
    jw_open(&w, '{');
    jw_field_str(&w, "model", "");
    if (a->raw) {
        jw_key(&w, "prompt");
        jw_str(&w, text, len);
    } else {
        jw_key(&w, "messages");
        jw_open(&w, '[');
        if (a->system) put_message(&w, "system", a->system, strlen(a->system));
        put_message(&w, "user", text, len);
        jw_close(&w, ']');
    }
    jw_field_int(&w, "max_tokens", a->max_tokens);
    put_real(&w, "temperature", a->temperature);
    put_real(&w, "top_p", a->top_p);
    put_real(&w, "min_p", a->min_p);
    if (a->top_k != INT32_MIN) {
        jw_field_int(&w, "top_k", a->top_k);
    }
    if (a->seed != -1) {
        jw_field_int(&w, "seed", a->seed);
    }
    if (a->stop) {
        jw_field_str(&w, "stop", a->stop);
    }
    jw_close(&w, '}');
    jw_close(&w, '}');
    return buf_status(out);
}

static corun_status make_line(const run_args *a, buf *out)
{
    if (strcmp(a->prompt, "-") != 0) return write_line(a, a->prompt, strlen(a->prompt), out);
    buf in;
    buf_init(&in, JOB_MAX_LINE);
    corun_status st = read_stdin(&in);
    if (st == CORUN_OK) st = write_line(a, in.data ? in.data : "", in.len, out);
    buf_free(&in);
    return st;
}

/* first: when the first event of an answer came. */
static corun_status stream(corun_engine *e, job *j, double *first)
{
    corun_request r;
    uint64_t id;
    job_request(j, 0, &r);
    TRY(corun_submit(e, &r, &id));
    while (!job_done(j) && !cmd_signal()) {
        corun_event ev;
        TRY(corun_next(e, &ev));
        if (ev.kind == CORUN_EVENT_NONE || ev.kind == CORUN_EVENT_IDLE) continue;
        TRY(job_event(j, 0, &ev));
        if (ev.kind != CORUN_EVENT_TOKEN && ev.kind != CORUN_EVENT_DONE) continue;
        if (*first == 0) *first = clock_seconds();
        if (fwrite(ev.text, 1, ev.text_len, stdout) != ev.text_len || fflush(stdout) != 0)
            FAIL(CORUN_EIO, "standard output: %s", strerror(errno));
    }
    if (j->http != 200) FAIL(CORUN_EFORMAT, "%s", j->message ? j->message : "the request failed");
    if (putchar('\n') == EOF || fflush(stdout) != 0)
        FAIL(CORUN_EIO, "standard output: %s", strerror(errno));
    return CORUN_OK;
}

/* to_first: seconds from the start of the command to the first token. */
static void speeds(const cmd_session *s, double to_first)
{
    corun_stats t;
    if (corun_engine_stats(s->engine, &t) != CORUN_OK) return;
    double gb = 1e-9 * (double)s->info.weight_bytes;
    fprintf(
        stderr,
        "corun: model opened in %.2f s (weights of %.2f GB, %.2f GB/s), engine in %.2f s, first "
        "token %.2f s after the start\n",
        s->seconds_model, gb, gb / s->seconds_model, s->seconds_engine, to_first);
    double s_all = t.seconds_prefill + t.seconds_decode;
    fprintf(stderr, "corun: prompt %llu tokens, answer %llu tokens, %.3f s (%.1f new tokens/s)\n",
            (unsigned long long)t.tokens_prompt, (unsigned long long)t.tokens_new, s_all,
            s_all > 0 ? (double)t.tokens_new / s_all : 0);
    fprintf(stderr, "corun: identity %s\n", s->identity);
}

static corun_status run(const run_args *a, cmd_session *s, buf *line)
{
    job *j;
    double began = clock_seconds(), first = 0;
    TRY(make_line(a, line));
    TRY(cmd_open(s, &a->e, true));
    TRY(openai_open(&j, line->data, line->len, 1));
    corun_status st = openai_prepare(j, &s->facts);
    if (st == CORUN_OK && j->http != 200)
        st = err_set(CORUN_EINVAL, "%s", j->message ? j->message : "the request is bad");
    if (st == CORUN_OK) st = stream(s->engine, j, &first);
    if (st == CORUN_OK && a->verbose) speeds(s, first - began);
    job_free(j);
    return st;
}

int cmd_run(int argc, char **argv)
{
    run_args a = {0};
    cmd_session s = {0};
    buf line;
    corun_status st = read_args(&a, argc, argv);
    if (st != CORUN_OK) return cmd_usage("run", "%s", corun_last_error());
    if (a.help) return CMD_OK;
    cmd_signals_install();
    buf_init(&line, 8 * JOB_MAX_LINE);
    st = run(&a, &s, &line);
    int code = cmd_signal() ? CMD_SIGNAL + cmd_signal() : st != CORUN_OK ? cmd_fail(st) : CMD_OK;
    buf_free(&line);
    cmd_close(&s);
    return code;
}
