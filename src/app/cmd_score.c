/* cmd_score.c - owns `corun score`: log-probabilities of given texts or token ids. */
#include <stdio.h>
#include <string.h>

#include "app/cmd.h"
#include "app/pump.h"
#include "app/score.h"

typedef struct score_args {
    cmd_engine_args e;
    const char *in, *out;
    int32_t top;
    bool text, strict, quiet, restart, help;
} score_args;

static corun_status read_args(score_args *a, int argc, char **argv)
{
    const arg_spec specs[] = {
        {NULL, 0, ARG_FLAG, NULL, NULL, "Files:"},
        {"input", 'i', ARG_TEXT, &a->in, "FILE",
         "lines {\"text\": ...} or {\"tokens\": [...]}; - is standard input"},
        {"output", 'o', ARG_TEXT, &a->out, "FILE", "one row a line; - is standard output"},
        {"text", 0, ARG_FLAG, &a->text, NULL, "each line is itself the text"},
        {"top", 0, ARG_INT, &a->top, "K", "also the K likeliest tokens, 0 to 20"},
        {"strict", 0, ARG_FLAG, &a->strict, NULL, "exit code 3 when there are error rows"},
        {"restart", 0, ARG_FLAG, &a->restart, NULL,
         "throw away the rows that an earlier, unfinished run has kept"},
        {"quiet", 'q', ARG_FLAG, &a->quiet, NULL, "no progress"},
        {"help", 'h', ARG_FLAG, &a->help, NULL, "this text"},
        CMD_ENGINE_SPECS(&a->e),
    };
    const char *pos[1];
    size_t n;
    cmd_engine_args_init(&a->e);
    a->in = a->out = "-";
    TRY(args_parse(specs, sizeof specs / sizeof *specs, argc, argv, pos, 0, &n));
    if (a->help) {
        puts("corun score -m MODEL [-i IN.jsonl] [-o OUT.jsonl] [options]\n\n"
             "Writes the log-probability of every token of each line's text.");
        args_help(specs, sizeof specs / sizeof *specs);
    }
    a->e.quiet = a->quiet;
    if (a->top < 0 || a->top > CORUN_MAX_TOP)
        FAIL(CORUN_EINVAL, "--top %d: not in 0 ... %d", a->top, CORUN_MAX_TOP);
    return CORUN_OK;
}

static corun_status run(const score_args *a, cmd_session *s, lines **in, results *out, report *r)
{
    json_t *options = json_pack("{s:i, s:b}", "top", a->top, "text", a->text);
    TRY(lines_open(in, a->in, JOB_MAX_LINE));
    out->quiet = a->quiet;
    TRY(results_open(out, a->out, a->in, a->e.model, options, "score", a->restart));
    TRY(cmd_open(s, &a->e, true));
    TRY(results_begin(out, s));
    s->facts.defaults.prompt_logprobs = a->top;
    r->n_total = out->input.n;
    report_ready(r);
    pump p = {.kind = {a->text ? score_open_text : score_open, score_prepare, score_write},
              .model = &s->facts,
              .engine = s->engine,
              .in = *in,
              .out = out,
              .report = r,
              .n_shard = 1,
              .window = PUMP_WINDOW(a->e.slots),
              .stop = cmd_signal};
    TRY(pump_run(&p));
    if (cmd_signal()) return CORUN_OK;
    report_end(r);
    return results_end(out, *in, r->n_ok + r->n_error, cmd_signal);
}

int cmd_score(int argc, char **argv)
{
    score_args a = {0};
    cmd_session s = {0};
    lines *in = NULL;
    results out = {0};
    report r;
    corun_status st = read_args(&a, argc, argv);
    if (st != CORUN_OK) return cmd_usage("score", "%s", corun_last_error());
    if (a.help) return CMD_OK;
    cmd_signals_install();
    report_init(&r, a.quiet);
    st = run(&a, &s, &in, &out, &r);
    int code = cmd_close_results(&out, st);
    if (code == CMD_OK && r.n_error && a.strict) code = CMD_ROWS;
    lines_close(in);
    cmd_close(&s);
    report_free(&r);
    return code;
}
