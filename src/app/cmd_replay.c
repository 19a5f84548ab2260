/* cmd_replay.c - owns `corun replay`: rows of a result file run again, each alone, and compared to
 * the bit. Invariant: nothing runs under another identity than the rows', unless it is forced. */
#include <stdio.h>
#include <string.h>

#include "app/again.h"
#include "app/cmd.h"
#include "app/fingerprint.h"
#include "app/openai.h"
#include "app/rows.h"
#include "app/score.h"
#include "proof/diff.h"

#define SHOW 20

typedef struct replay_args {
    cmd_engine_args e;
    const char *result, *in, *ids, *identity;
    int64_t every, n; /* 0: not given */
    bool force, quiet, help;
} replay_args;

typedef struct replay {
    const replay_args *a;
    cmd_session s;
    rows result, in;
    fingerprints prints;
    uint64_t errors, equal, different;
    diff_count count;
    buf line, row;
} replay;

static corun_status read_args(replay_args *a, int argc, char **argv)
{
    const arg_spec specs[] = {
        {NULL, 0, ARG_FLAG, NULL, NULL, "Rows:"},
        {"input", 'i', ARG_TEXT, &a->in, "FILE",
         "the requests; without it rows must hold their prompt_token_ids"},
        {"ids", 0, ARG_TEXT, &a->ids, "ID,ID", "only these custom_ids"},
        {"every", 0, ARG_LONG, &a->every, "K", "only rows 1, 1 + K, ..."},
        {"number", 'n', ARG_LONG, &a->n, "N", "only N rows, spread evenly"},
        {"identity", 0, ARG_TEXT, &a->identity, "FILE",
         "what `batch --metrics` wrote for the rows: names the fields that differ"},
        {"force", 0, ARG_FLAG, &a->force, NULL, "run under another identity too"},
        {"quiet", 'q', ARG_FLAG, &a->quiet, NULL, "only the summary"},
        {"help", 'h', ARG_FLAG, &a->help, NULL, "this text"},
        CMD_ENGINE_SPECS(&a->e),
    };
    size_t n;
    cmd_engine_args_init(&a->e);
    a->every = a->n = INT64_MIN;
    TRY(args_parse(specs, sizeof specs / sizeof *specs, argc, argv, &a->result, 1, &n));
    if (a->help) {
        puts("corun replay RESULT.jsonl -m MODEL [-i IN.jsonl] [options]\n\n"
             "Runs rows of a result file again, one at a time on a fresh engine, and compares "
             "tokens\nand log-probability bits. Model and options must be those of the run that "
             "made "
             "them\n(--policy, --page and so on). Exit code 0: all equal, 1: a difference, or "
             "another identity.");
        args_help(specs, sizeof specs / sizeof *specs);
        return CORUN_OK;
    }
    a->e.quiet = a->quiet;
    if (n != 1) FAIL(CORUN_EINVAL, "no result file is named");
    for (int i = 0; i < 2; i++) {
        int64_t *v = i ? &a->n : &a->every;
        if (*v == INT64_MIN)
            *v = 0;
        else if (*v < 1)
            FAIL(CORUN_EINVAL, "%s: must be 1 or more", i ? "-n" : "--every");
    }
    if ((a->every != 0) + (a->n != 0) + (a->ids != NULL) > 1)
        FAIL(CORUN_EINVAL, "only one of --ids, --every and -n");
    return CORUN_OK;
}

/* ---- which rows --------------------------------------------------------------------------- */

static corun_status choose_ids(replay *r)
{
    const char *p = r->a->ids;
    for (;;) {
        size_t len = strcspn(p, ",");
        buf_reset(&r->line);
        buf_puts(&r->line, "s:");
        buf_put(&r->line, p, len);
        TRY(buf_status(&r->line));
        rows_entry *e = rows_find(&r->result, digest_of(r->line.data, r->line.len));
        if (!e) FAIL(CORUN_EINVAL, "%s: has no row with custom_id %.*s", r->a->result, (int)len, p);
        e->seen = true;
        if (!p[len]) return CORUN_OK;
        p += len + 1;
    }
}

/* Marks the chosen rows. */
static corun_status choose(replay *r)
{
    const replay_args *a = r->a;
    uint64_t total = r->result.n, n = a->n && (uint64_t)a->n < total ? (uint64_t)a->n : total;
    if (a->ids) {
        TRY(choose_ids(r));
    } else if (a->every) {
        for (uint64_t i = 0; i < total; i += (uint64_t)a->every) r->result.row[i].seen = true;
    } else {
        for (uint64_t k = 0; k < n; k++)
            r->result.row[(size_t)((double)k * (double)total / (double)n)].seen = true;
    }
    for (size_t i = 0; i < r->result.n; i++) {
        json_t *row;
        if (!r->result.row[i].seen) continue;
        TRY(rows_parse(&r->result, &r->result.row[i], &row));
        fingerprints_add(&r->prints, row);
        json_decref(row);
    }
    return CORUN_OK;
}

/* ---- identity ----------------------------------------------------------------------------- */

/* What differs, on standard error; refuses unless forced. */
static corun_status check_identity(replay *r)
{
    char json[16384], hex[33], mine[40];
    size_t n = 0, differing;
    json_t *theirs = NULL, *ours = NULL;
    const fingerprints *f = &r->prints;
    snprintf(mine, sizeof mine, "\"%s\"", r->s.identity);
    if (f->n == 1 && f->none == 0 && strcmp(f->seen[0].text, mine) == 0) return CORUN_OK;
    const char *first = f->n ? f->seen[0].text : "none (no system_fingerprint: are they results?)";
    if (f->n && strcmp(first, mine) == 0) first = f->n > 1 ? f->seen[1].text : "none";
    buf b;
    buf_init(&b, 1 << 24);
    corun_status st = CORUN_OK;
    if (r->a->identity) {
        st = fingerprint_file(r->a->identity, &theirs, hex);
        if (st == CORUN_OK) st = corun_identity(r->s.engine, hex, json, sizeof json, &n);
        if (st == CORUN_OK) st = json_read(&ours, json, n, "identity");
        if (st == CORUN_OK) st = diff_identity(theirs, ours, &b, &differing);
        if (st == CORUN_OK && b.len)
            fprintf(stderr, "corun: the identities differ (A: the rows', B: here):\n%s", b.data);
    }
    buf_free(&b);
    json_decref(theirs);
    json_decref(ours);
    TRY(st);
    if (r->a->force) {
        fprintf(stderr, "corun: rows have the identity %s, here it is %s; forced\n", first, mine);
        return CORUN_OK;
    }
    FAIL(CORUN_EMISMATCH, "rows have the identity %s, here it is %s%s (--force runs them)", first,
         mine,
         r->a->identity
             ? ""
             : ": give the model and options of the run that made them; --identity FILE, which "
               "`corun batch --metrics FILE` wrote then, names the fields that differ");
}

/* ---- one row ------------------------------------------------------------------------------- */

/* All prompts of the job, one after the other. */
static corun_status run_job(replay *r, job *j)
{
    for (size_t p = 0; p < j->n_prompt && !job_done(j); p++) {
        corun_request q;
        uint64_t id;
        job_request(j, p, &q);
        TRY(cmd_reopen_engine(&r->s, &r->a->e));
        TRY(corun_submit(r->s.engine, &q, &id));
        while (j->prompt[p].n_open > 0 && !cmd_signal()) {
            corun_event e;
            TRY(corun_next(r->s.engine, &e));
            if (e.kind != CORUN_EVENT_NONE && e.kind != CORUN_EVENT_IDLE) TRY(job_event(j, p, &e));
        }
        if (cmd_signal()) return CORUN_OK;
    }
    return CORUN_OK;
}

static corun_status run_line(replay *r, const char *line, size_t len, uint64_t no, bool score,
                             json_t **out)
{
    job *j = NULL;
    *out = NULL;
    corun_status st = score ? score_open(&j, line, len, no) : openai_open(&j, line, len, no);
    if (st == CORUN_OK) st = score ? score_prepare(j, &r->s.facts) : openai_prepare(j, &r->s.facts);
    if (st == CORUN_OK && j->http == 200) st = run_job(r, j);
    buf_reset(&r->row);
    if (st == CORUN_OK && !cmd_signal())
        st = score ? score_write(j, &r->s.facts, &r->row) : openai_write(j, &r->s.facts, &r->row);
    if (st == CORUN_OK && !cmd_signal()) st = rows_json(out, r->row.data, r->row.len, "row");
    job_free(j);
    return st;
}

/* The line that the row answers: of the input, or made of the row. */
static corun_status line_of(replay *r, const rows_entry *e, const json_t *row, const char **line,
                            size_t *len, bool *score)
{
    char name[160];
    *score = false;
    rows_name(row, e, name);
    if (r->a->in) {
        if (again_is_score(row))
            FAIL(CORUN_EINVAL, "%s: holds scores: they are run from their rows, without -i",
                 r->a->result);
        const rows_entry *from = rows_find(&r->in, e->key);
        if (!from) FAIL(CORUN_EINVAL, "%s: has no line for %s", r->a->in, name);
        *line = r->in.text.data + from->at;
        *len = from->len;
        return CORUN_OK;
    }
    buf_reset(&r->line);
    corun_status st = again_line(row, &r->line, score);
    if (st == CORUN_EINVAL)
        FAIL(st, "%s: %s cannot be run from its row: %s; name the requests with -i", r->a->result,
             name, err_text());
    *line = r->line.data;
    *len = r->line.len;
    return st;
}

static corun_status one_row(replay *r, const rows_entry *e, const json_t *row)
{
    const char *line = NULL;
    size_t len = 0;
    bool score;
    json_t *again;
    diff_place p;
    char name[160];
    TRY(line_of(r, e, row, &line, &len, &score));
    TRY(run_line(r, line, len, e->line, score, &again));
    if (cmd_signal()) return CORUN_OK;
    diff_rows(row, again, &p, &r->count);
    json_decref(again);
    rows_name(row, e, name);
    if (p.kind == DIFF_EQUAL) {
        r->equal++;
        if (!r->a->quiet) printf("equal      %s\n", name);
        return CORUN_OK;
    }
    if (r->different++ >= SHOW) return CORUN_OK;
    buf b;
    buf_init(&b, 1 << 20);
    diff_place_text(&p, &b);
    corun_status st = buf_status(&b);
    if (st == CORUN_OK)
        printf("different  %s (line %llu): %s\n", name, (unsigned long long)e->line, b.data);
    buf_free(&b);
    return st;
}

static corun_status run(replay *r)
{
    TRY(rows_read(&r->result, r->a->result));
    if (r->result.n_bad) FAIL(CORUN_EINVAL, "%s: has bad lines", r->a->result);
    if (r->a->in) TRY(rows_read(&r->in, r->a->in));
    TRY(choose(r));
    if (r->prints.n + r->prints.none + r->prints.more == 0)
        FAIL(CORUN_EINVAL, "%s: has no answered row to run", r->a->result);
    TRY(cmd_open(&r->s, &r->a->e, true));
    TRY(check_identity(r));
    for (size_t i = 0; i < r->result.n && !cmd_signal(); i++) {
        const rows_entry *e = &r->result.row[i];
        json_t *row;
        if (!e->seen) continue;
        TRY(rows_parse(&r->result, e, &row));
        corun_status st = CORUN_OK;
        if (diff_is_error(row))
            r->errors++;
        else
            st = one_row(r, e, row);
        json_decref(row);
        TRY(st);
    }
    if (cmd_signal()) return CORUN_OK;
    printf("%llu rows run again: %llu equal, %llu different; %llu error rows not run\n"
           "compared %llu samples, %llu tokens, %llu log-probabilities\n",
           (unsigned long long)(r->equal + r->different), (unsigned long long)r->equal,
           (unsigned long long)r->different, (unsigned long long)r->errors,
           (unsigned long long)r->count.samples, (unsigned long long)r->count.tokens,
           (unsigned long long)r->count.logprobs);
    if (r->count.text_only) printf(DIFF_TEXT_ONLY, (unsigned long long)r->count.text_only);
    return CORUN_OK;
}

int cmd_replay(int argc, char **argv)
{
    replay_args a = {0};
    replay r = {.a = &a};
    corun_status st = read_args(&a, argc, argv);
    if (st != CORUN_OK) return cmd_usage("replay", "%s", corun_last_error());
    if (a.help) return CMD_OK;
    cmd_signals_install();
    buf_init(&r.line, 8 * JOB_MAX_LINE);
    buf_init(&r.row, JOB_MAX_ROW);
    st = run(&r);
    int code = st != CORUN_OK ? cmd_fail(st) : r.different ? CMD_PROMISE : CMD_OK;
    if (cmd_signal()) code = CMD_SIGNAL + cmd_signal();
    cmd_close(&r.s);
    rows_free(&r.result);
    rows_free(&r.in);
    buf_free(&r.line);
    buf_free(&r.row);
    return code;
}
