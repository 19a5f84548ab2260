/* cmd_split.c - owns `corun split`: a batch file into pieces that can be run anywhere (pieces.h).
 * Invariant: the rows of all pieces, one behind the other, are the file that one run would write.
 */
#include <stdio.h>
#include <string.h>

#include "app/cmd.h"
#include "app/lines.h"
#include "app/openai.h"
#include "app/pieces.h"
#include "app/sink.h"

enum { MAX_GAP = 4096 }; /* blank lines inside a piece */

typedef struct split {
    uint64_t max_rows;
    size_t max_bytes;
    lines *in;
    sink *out;
    place at;
    seen all, here; /* custom_ids of the file so far, of this piece */
    piece now;
    uint64_t last; /* number of the last line */
    buf line, text, taken, head;
} split;

static corun_status end_piece(split *s)
{
    if (s->now.rows == 0) return CORUN_OK;
    s->now.bytes = s->text.len;
    TRY(buf_status(&s->text));
    TRY(buf_status(&s->taken));
    buf_reset(&s->head);
    piece_write(&s->head, &s->now, &s->taken);
    TRY(buf_status(&s->head));
    TRY(sink_put(s->out, s->head.data, s->head.len));
    TRY(sink_put(s->out, s->text.data, s->text.len));
    s->now = (piece){.index = s->now.index + 1};
    buf_reset(&s->text);
    buf_reset(&s->taken);
    seen_free(&s->here);
    return CORUN_OK;
}

/* Notes the line's custom_id, and where an earlier piece has it. */
static corun_status note_id(split *s, uint64_t no)
{
    job *j;
    TRY(openai_open(&j, s->line.data, s->line.len, no));
    corun_status st = CORUN_OK;
    if (j->custom_id) {
        const char *id = json_string_value(j->custom_id);
        size_t len = json_string_length(j->custom_id);
        bool before, here = false;
        st = seen_add(&s->all, id, len, &before);
        if (st == CORUN_OK) st = seen_add(&s->here, id, len, &here);
        if (st == CORUN_OK && before && !here) {
            char hex[33];
            digest_hex(digest_of(id, len), hex);
            buf_put(&s->taken, hex, 32);
        }
    }
    job_free(j);
    return st;
}

static corun_status add_line(split *s, uint64_t no, lines_kind kind)
{
    if (s->now.rows && no - s->last > MAX_GAP) TRY(end_piece(s));
    if (s->now.rows == 0) {
        s->now.line = no;
        s->last = no - 1;
    }
    for (; s->last + 1 < no; s->last++) buf_putc(&s->text, '\n');
    s->last = no;
    s->now.rows++;
    buf_put(&s->text, s->line.data, s->line.len);
    if (kind == LINES_LONG)
        buf_putc(&s->text, 'x'); /* still too long; which byte does not matter */
    buf_putc(&s->text, '\n');
    if (kind == LINES_LINE) TRY(note_id(s, no));
    return s->now.rows >= s->max_rows || s->text.len >= s->max_bytes ? end_piece(s) : CORUN_OK;
}

static corun_status run(split *s, const char *in)
{
    TRY(lines_open(&s->in, in, JOB_MAX_LINE));
    TRY(sink_open(&s->out, &s->at));
    while (!cmd_signal()) {
        uint64_t no;
        lines_kind kind;
        TRY(lines_next(s->in, &s->line, &no, &kind));
        if (kind == LINES_END) {
            TRY(end_piece(s));
            return sink_commit(s->out);
        }
        TRY(add_line(s, no, kind));
    }
    return CORUN_OK;
}

int cmd_split(int argc, char **argv)
{
    const char *in = NULL, *pos[1];
    int32_t rows = 512;
    int64_t bytes = 1 << 20;
    bool help = false;
    size_t n;
    const arg_spec specs[] = {
        {NULL, 0, ARG_FLAG, NULL, NULL, "Options:"},
        {"input", 'i', ARG_TEXT, &in, "FILE", "requests, JSONL; .gz is read; - is standard input"},
        {"rows", 0, ARG_INT, &rows, "N", "a piece ends after N rows (512) ..."},
        {"bytes", 0, ARG_SIZE, &bytes, "SIZE", "... or when its text has this size (1M)"},
        {"help", 'h', ARG_FLAG, &help, NULL, "this text"},
    };
    corun_status st = args_parse(specs, sizeof specs / sizeof *specs, argc, argv, pos, 0, &n);
    if (st != CORUN_OK) return cmd_usage("split", "%s", corun_last_error());
    if (help) {
        puts(
            "corun split -i IN.jsonl [options]\n\n"
            "Writes the pieces of a batch file to standard output, each behind a header line, for\n"
            "`corun batch --pieces`. docs/scale.md has the format.");
        args_help(specs, sizeof specs / sizeof *specs);
        return CMD_OK;
    }
    if (!in) return cmd_usage("split", "no input is named: -i FILE");
    if (rows < 1 || rows > (int32_t)PIECE_MAX_ROWS)
        return cmd_usage("split", "--rows: 1 to %u", PIECE_MAX_ROWS);
    if (bytes < 1 || bytes > (int64_t)PIECE_MAX_BYTES)
        return cmd_usage("split", "--bytes: 1 byte to 256M");
    split s = {.max_rows = (uint64_t)rows, .max_bytes = (size_t)bytes};
    buf_init(&s.line, JOB_MAX_LINE + 1);
    buf_init(&s.text, PIECE_MAX_BYTES + 2 * JOB_MAX_LINE);
    buf_init(&s.taken, (size_t)PIECE_MAX_ROWS * 32);
    buf_init(&s.head, (size_t)PIECE_MAX_ROWS * 36 + 256);
    cmd_signals_install();
    st = run(&s, in);
    int code = cmd_signal() ? CMD_SIGNAL + cmd_signal() : st != CORUN_OK ? cmd_fail(st) : CMD_OK;
    sink_close(s.out);
    lines_close(s.in);
    seen_free(&s.all);
    seen_free(&s.here);
    buf_free(&s.line);
    buf_free(&s.text);
    buf_free(&s.taken);
    buf_free(&s.head);
    return code;
}
