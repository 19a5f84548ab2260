/* cmd_batch.c - owns `corun batch`: options, files, order of opening, exit code. Invariant: what
 * can be refused is refused before the model is read. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app/cmd.h"
#include "app/openai.h"
#include "app/pump.h"

typedef struct batch_args {
    cmd_engine_args e;
    const char *in, *out, *shard, *arrival, *metrics;
    bool check, strict, quiet, restart, pieces, help;
    uint64_t shard_i, shard_n;
    pump_arrival when;
} batch_args;

typedef struct batch {
    cmd_session s;
    lines *in;
    results out;
    place metrics_at; /* path NULL: no metrics */
    report report;
} batch;

static corun_status read_shard(batch_args *a)
{
    unsigned long long i, n;
    char rest;
    if (!a->shard) return CORUN_OK;
    if (a->shard[strspn(a->shard, "0123456789/")] ||
        sscanf(a->shard, "%llu/%llu%c", &i, &n, &rest) != 2 || n == ULLONG_MAX || n < 1 || i >= n)
        FAIL(CORUN_EINVAL, "--shard %s: must be I/N with I in 0 ... N - 1", a->shard);
    a->shard_i = i;
    a->shard_n = n;
    return CORUN_OK;
}

static corun_status read_args(batch_args *a, int argc, char **argv)
{
    const arg_spec specs[] = {
        {NULL, 0, ARG_FLAG, NULL, NULL, "Files:"},
        {"input", 'i', ARG_TEXT, &a->in, "FILE",
         "requests, JSONL; .gz is read; - is standard input"},
        {"output", 'o', ARG_TEXT, &a->out, "FILE",
         "results, put in place at the end; .gz is written; - is standard output"},
        {"metrics", 0, ARG_TEXT, &a->metrics, "FILE", "timings, counts and error lines, as JSON"},
        {"shard", 0, ARG_TEXT, &a->shard, "I/N", "only lines I, I + N, ...; I from 0; see merge"},
        {"pieces", 0, ARG_FLAG, &a->pieces, NULL,
         "the input is what `corun split` writes; says first who runs it; see docs/scale.md"},
        {"check", 0, ARG_FLAG, &a->check, NULL,
         "check the lines only; exit code 2 when some are bad"},
        {"strict", 0, ARG_FLAG, &a->strict, NULL, "exit code 3 when there are error rows"},
        {"served-model-name", 0, ARG_UTF8, &a->e.served_name, "NAME",
         "refuse requests for another model"},
        {"arrival", 0, ARG_TEXT, &a->arrival, "WHEN",
         "lines submitted before each step: all, a number, or seed:S (0 to 8 each)"},
        {"restart", 0, ARG_FLAG, &a->restart, NULL,
         "throw away the rows that an earlier, unfinished run has kept"},
        {"quiet", 'q', ARG_FLAG, &a->quiet, NULL, "no progress"},
        {"help", 'h', ARG_FLAG, &a->help, NULL, "this text"},
        CMD_ENGINE_SPECS(&a->e),
    };
    const char *pos[1];
    size_t n;
    cmd_engine_args_init(&a->e);
    a->arrival = "all";
    a->shard_n = 1;
    TRY(args_parse(specs, sizeof specs / sizeof *specs, argc, argv, pos, 0, &n));
    if (a->help) {
        puts("corun batch -m MODEL -i IN.jsonl -o OUT.jsonl [options]\n\n"
             "Runs an OpenAI batch file. The row of a request does not depend on the other "
             "requests.\n"
             "A run that was ended goes on when the same command is given again.\n"
             "docs/batch.md lists the fields.");
        args_help(specs, sizeof specs / sizeof *specs);
        return CORUN_OK;
    }
    if (!a->in) FAIL(CORUN_EINVAL, "no input is named: -i FILE");
    if (!a->out && !a->check) FAIL(CORUN_EINVAL, "no output is named: -o FILE");
    if (a->pieces && (a->shard || a->check || strcmp(a->out, "-") != 0))
        FAIL(CORUN_EINVAL, "--pieces: only with -o -, without --shard and --check");
    a->e.quiet = a->quiet;
    TRY(read_shard(a));
    return pump_arrival_parse(a->arrival, &a->when);
}

/* What moves bytes of rows and is not part of the numeric identity. */
static json_t *options_of(const batch_args *a)
{
    return json_pack("{s:I, s:I, s:s?}", "shard", (json_int_t)a->shard_i, "shards",
                     (json_int_t)a->shard_n, "served_model_name", a->e.served_name);
}

static corun_status open_files(batch *b, const batch_args *a)
{
    TRY(lines_open(&b->in, a->in, JOB_MAX_LINE));
    const char *inputs[] = {a->in, a->e.model};
    if (a->metrics) TRY(place_find_idle(&b->metrics_at, a->metrics, inputs, 2));
    b->out.quiet = a->quiet;
    b->out.metrics = a->metrics ? &b->metrics_at : NULL;
    if (a->check) return lines_survey(a->in, &b->out.input);
    return results_open(&b->out, a->out, a->in, a->e.model, options_of(a), "batch", a->restart);
}

/* The first line of a run of pieces: all that its rows depend on beside the lines. */
static corun_status say_who(batch *b, const batch_args *a)
{
    char hex[33], json[16384];
    size_t n;
    corun_stats stats;
    buf text;
    jw w;
    TRY(corun_identity(b->s.engine, hex, json, sizeof json, &n));
    TRY(corun_engine_stats(b->s.engine, &stats));
    json_t *numeric;
    TRY(json_read(&numeric, json, n, "identity"));
    json_t *options = options_of(a);
    buf_init(&text, sizeof json * 4);
    jw_init(&w, &text);
    jw_open(&w, '{');
    jw_key(&w, "release");
    jw_str(&w, corun_version(), strcspn(corun_version(), " "));
    jw_field_str(&w, "identity", hex);
    jw_field_uint(&w, "pool_pages", stats.pages);
    jw_key(&w, "served_model_name");
    jw_value(&w, json_object_get(options, "served_model_name"));
    jw_key(&w, "numeric");
    jw_value(&w, numeric);
    jw_close(&w, '}');
    buf_putc(&text, '\n');
    corun_status st = buf_status(&text);
    if (st == CORUN_OK) st = sink_put(b->out.direct, text.data, text.len);
    buf_free(&text);
    json_decref(numeric);
    json_decref(options);
    return st;
}

static corun_status write_metrics(batch *b, const batch_args *a)
{
    if (!a->metrics) return CORUN_OK;
    corun_stats stats = {0};
    char hex[33], json[16384];
    size_t n = 0;
    if (b->s.engine) {
        TRY(corun_engine_stats(b->s.engine, &stats));
        TRY(corun_identity(b->s.engine, hex, json, sizeof json, &n));
    }
    buf text;
    buf_init(&text, (size_t)64 << 20);
    corun_status st = report_metrics(&b->report, &stats, n ? json : NULL, n, &text);
    if (st == CORUN_OK) st = sink_whole(&b->metrics_at, &text);
    buf_free(&text);
    return st;
}

static corun_status run(batch *b, const batch_args *a)
{
    TRY(open_files(b, a));
    TRY(cmd_open(&b->s, &a->e, !a->check));
    if (!a->check) TRY(results_begin(&b->out, &b->s));
    if (a->pieces) TRY(say_who(b, a));
    if (!a->pieces) b->report.n_total = (b->out.input.n + a->shard_n - 1 - a->shard_i) / a->shard_n;
    report_ready(&b->report);
    pump p = {.kind = {openai_open, openai_prepare, openai_write},
              .model = &b->s.facts,
              .engine = b->s.engine,
              .in = b->in,
              .out = a->check ? NULL : &b->out,
              .report = &b->report,
              .arrival = a->when,
              .pieces = a->pieces,
              .shard = a->shard_i,
              .n_shard = a->shard_n,
              .window = PUMP_WINDOW(a->e.slots),
              .stop = cmd_signal};
    TRY(pump_run(&p));
    if (cmd_signal()) return CORUN_OK;
    report_end(&b->report);
    if (!a->check) {
        TRY(results_end(&b->out, b->in, b->report.n_ok + b->report.n_error, cmd_signal));
        if (!b->out.done) return CORUN_OK;
    }
    return write_metrics(b, a);
}

int cmd_batch(int argc, char **argv)
{
    batch_args a = {0};
    batch b = {0};
    corun_status st = read_args(&a, argc, argv);
    if (st != CORUN_OK) return cmd_usage("batch", "%s", corun_last_error());
    if (a.help) return CMD_OK;
    cmd_signals_install();
    report_init(&b.report, a.quiet);
    st = run(&b, &a);
    int code = cmd_close_results(&b.out, st);
    if (st == CORUN_OK && b.report.n_error && a.check) code = CMD_BAD;
    if (code == CMD_OK && b.report.n_error && a.strict && !a.check) code = CMD_ROWS;
    place_free(&b.metrics_at);
    lines_close(b.in);
    cmd_close(&b.s);
    report_free(&b.report);
    return code;
}
