/* cmd_merge.c - owns `corun merge`: the results of shards 0 ... N - 1 back into one file.
 * Invariant: with the input named, the merged file is the file that one run over all lines would
 * have written; without it, what could not be checked is said. */
#include <stdio.h>
#include <string.h>

#include "app/cmd.h"
#include "app/lines.h"
#include "app/openai.h"
#include "app/seen.h"
#include "app/sink.h"

#define MAX_SHARD 4096

typedef struct merge {
    const char *pos[MAX_SHARD + 1]; /* and one for place_find */
    size_t n;
    lines *in[MAX_SHARD];
    place at;
    sink *out;
    buf line;
    char fingerprint[64]; /* of the first row */
    seen answered;        /* custom_ids */
    const char *input;    /* the batch's own lines, or NULL */
    lines *asked;
    buf question;
    uint64_t rows;
} merge;

static const char BEGIN[] = "{\"id\":\"batch_req_";
enum { ID = sizeof BEGIN - 1, ID_LEN = 32 };

/* No two rows of one run answer the same custom_id. */
static corun_status check_twice(merge *m, size_t shard, uint64_t no)
{
    static const char key[] = "\"custom_id\":", after[] = ",\"response\":{\"status_code\":200,";
    const char *row = m->line.data, *from = row + ID + ID_LEN + 2;
    const char *to = memmem(row, m->line.len, after, sizeof after - 1);
    bool twice;
    if (!to) return CORUN_OK;
    if (to < from || memcmp(from, key, sizeof key - 1) != 0)
        FAIL(CORUN_EFORMAT, "%s: line %llu is no row of a batch", m->pos[shard],
             (unsigned long long)no);
    from += sizeof key - 1;
    TRY(seen_add(&m->answered, from, (size_t)(to - from), &twice));
    if (twice)
        FAIL(CORUN_EFORMAT,
             "%s: line %llu answers custom_id %.*s, which a row before it has answered: a shard "
             "twice, or shards of different runs",
             m->pos[shard], (unsigned long long)no, to - from < 200 ? (int)(to - from) : 200, from);
    return CORUN_OK;
}

/* The row's digest must be that of the input's next line. */
static corun_status check_line(merge *m, size_t shard, uint64_t no)
{
    uint64_t line_no;
    lines_kind kind;
    job *j = NULL;
    char hex[33];
    if (!m->input) return CORUN_OK;
    TRY(lines_next(m->asked, &m->question, &line_no, &kind));
    if (kind == LINES_END)
        FAIL(CORUN_EFORMAT, "%s: line %llu: the shards have more rows than %s has lines",
             m->pos[shard], (unsigned long long)no, m->input);
    digest id = digest_of(m->question.data, m->question.len);
    if (kind == LINES_LINE) {
        TRY(openai_open(&j, m->question.data, m->question.len, line_no));
        id = j->id;
        job_free(j);
    }
    digest_hex(id, hex);
    if (memcmp(m->line.data + ID, hex, ID_LEN) != 0)
        FAIL(CORUN_EFORMAT,
             "%s: line %llu is not the row of line %llu of %s: a shard is missing, of another "
             "input, given twice or at the wrong place",
             m->pos[shard], (unsigned long long)no, (unsigned long long)line_no, m->input);
    return CORUN_OK;
}

/* All rows are there: so must be all lines. */
static corun_status check_end(merge *m)
{
    uint64_t line_no;
    lines_kind kind;
    if (!m->input) return CORUN_OK;
    TRY(lines_next(m->asked, &m->question, &line_no, &kind));
    if (kind != LINES_END)
        FAIL(CORUN_EFORMAT, "line %llu of %s has no row: a shard is missing or cut",
             (unsigned long long)line_no, m->input);
    return CORUN_OK;
}

/* A row must look like one that a batch wrote; all rows must name one identity. Inside a
 * JSON string quotes are escaped, so the key can be searched for as it stands. */
static corun_status check_row(merge *m, size_t shard, uint64_t no)
{
    static const char key[] = "\"system_fingerprint\":\"", end_of[] = ",\"error\":null}";
    const char *row = m->line.data;
    size_t len = m->line.len;
    if (len < ID + ID_LEN + sizeof end_of || memcmp(row, BEGIN, ID) != 0 ||
        memcmp(row + len - (sizeof end_of - 1), end_of, sizeof end_of - 1) != 0)
        FAIL(CORUN_EFORMAT, "%s: line %llu is no whole row of a batch", m->pos[shard],
             (unsigned long long)no);
    TRY(check_twice(m, shard, no));
    TRY(check_line(m, shard, no));
    const char *at = memmem(row, len, key, sizeof key - 1);
    if (!at) return CORUN_OK;
    at += sizeof key - 1;
    const char *end = memchr(at, '"', len - (size_t)(at - row));
    if (!end || (size_t)(end - at) >= sizeof m->fingerprint)
        FAIL(CORUN_EFORMAT, "%s: line %llu has no readable identity", m->pos[shard],
             (unsigned long long)no);
    char f[sizeof m->fingerprint] = "";
    memcpy(f, at, (size_t)(end - at));
    if (!m->fingerprint[0]) memcpy(m->fingerprint, f, sizeof f);
    if (strcmp(f, m->fingerprint) != 0)
        FAIL(CORUN_EMISMATCH,
             "%s: line %llu has the identity %s, rows before it have %s: these shards were run "
             "with different numbers",
             m->pos[shard], (unsigned long long)no, f, m->fingerprint);
    return CORUN_OK;
}

static corun_status take_row(merge *m, size_t shard, bool *end)
{
    uint64_t no;
    lines_kind kind;
    corun_status st = lines_next(m->in[shard], &m->line, &no, &kind);
    if (st != CORUN_OK) return st;
    if (kind == LINES_LONG)
        FAIL(CORUN_EFORMAT, "%s: line %llu is longer than a row can be", m->pos[shard],
             (unsigned long long)no);
    *end = kind == LINES_END;
    return *end ? CORUN_OK : check_row(m, shard, no);
}

static corun_status run(merge *m, const char *out)
{
    for (size_t i = 0; i < m->n; i++) TRY(lines_open(&m->in[i], m->pos[i], JOB_MAX_ROW));
    if (m->input) TRY(lines_open(&m->asked, m->input, JOB_MAX_LINE));
    m->pos[m->n] = m->input;
    TRY(place_find_idle(&m->at, out, m->pos, m->n + 1));
    TRY(sink_open(&m->out, &m->at));
    for (size_t i = 0, ended = m->n; !cmd_signal(); i = (i + 1) % m->n) {
        bool end;
        if (i == ended) break; /* every shard after the first ended one has ended too */
        TRY(take_row(m, i, &end));
        if (end && ended == m->n) {
            ended = i;
            continue;
        }
        if (end) continue;
        if (ended != m->n)
            FAIL(CORUN_EFORMAT,
                 "%s: has a row more than %s: not all shards of one run, or in another order",
                 m->pos[i], m->pos[ended]);
        buf_putc(&m->line, '\n');
        TRY(buf_status(&m->line));
        TRY(sink_put(m->out, m->line.data, m->line.len));
        m->rows++;
    }
    if (cmd_signal()) return CORUN_OK;
    TRY(check_end(m));
    return sink_commit(m->out);
}

/* The output is in place: how many rows it has, and what is known of them. */
static void say_end(const merge *m, const char *out)
{
    fprintf(stderr, "corun: %s: %llu rows of %zu shard%s%s%s\n", out, (unsigned long long)m->rows,
            m->n, m->n == 1 ? "" : "s", m->input ? ", each that of its line of " : "",
            m->input ? m->input : "");
    if (!m->input)
        fprintf(stderr, "corun: warning: without -i IN.jsonl a shard that is missing, cut or at "
                        "another place can go unseen: the rows were not checked against lines\n");
}

int cmd_merge(int argc, char **argv)
{
    const char *out = NULL;
    bool help = false;
    merge *m;
    if (!MEM_NEW(m, 1)) return cmd_fail(CORUN_ENOMEM);
    buf_init(&m->line, JOB_MAX_ROW + 2);
    buf_init(&m->question, JOB_MAX_LINE + 1);
    const arg_spec specs[] = {
        {NULL, 0, ARG_FLAG, NULL, NULL, "Options:"},
        {"output", 'o', ARG_TEXT, &out, "FILE",
         "the whole batch; .gz is written; - is standard output"},
        {"input", 'i', ARG_TEXT, &m->input, "FILE",
         "the requests of the batch: every row must be that of its line, and none missing"},
        {"help", 'h', ARG_FLAG, &help, NULL, "this text"},
    };
    int code;
    corun_status st =
        args_parse(specs, sizeof specs / sizeof *specs, argc, argv, m->pos, MAX_SHARD, &m->n);
    if (st != CORUN_OK) {
        code = cmd_usage("merge", "%s", corun_last_error());
    } else if (help) {
        puts(
            "corun merge -o OUT.jsonl [-i IN.jsonl] SHARD0 SHARD1 ...\n\n"
            "Joins the results of `corun batch --shard I/N`, given in the order of I, and says how "
            "many\nrows there are. Give -i: without it a shard that is missing, cut or at another "
            "place\ncan go unseen, and only a warning says so.");
        args_help(specs, sizeof specs / sizeof *specs);
        code = CMD_OK;
    } else if (!out || m->n == 0) {
        code = cmd_usage("merge", "%s", out ? "no shard is named" : "no output is named: -o FILE");
    } else {
        cmd_signals_install();
        st = run(m, out);
        code = cmd_signal() ? CMD_SIGNAL + cmd_signal() : st != CORUN_OK ? cmd_fail(st) : CMD_OK;
        if (code == CMD_OK) say_end(m, out);
    }
    sink_close(m->out);
    place_free(&m->at);
    for (size_t i = 0; i < m->n; i++) lines_close(m->in[i]);
    lines_close(m->asked);
    seen_free(&m->answered);
    buf_free(&m->question);
    buf_free(&m->line);
    mem_free(m);
    return code;
}
