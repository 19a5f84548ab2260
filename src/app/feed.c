/* feed.c - owns the rules that a whole file of lines adds to its single ones. Invariant: of equal
 * custom_ids only the first is run, and every line that is not blank gives exactly one job. */
#include "app/feed.h"

void feed_init(feed *f, lines *in, const feed_kind *kind)
{
    *f = (feed){.in = in, .kind = kind};
    buf_init(&f->line, JOB_MAX_LINE + 1);
}

void feed_free(feed *f)
{
    seen_free(&f->seen);
    buf_free(&f->line);
}

corun_status feed_next(feed *f) { return lines_next(f->in, &f->line, &f->line_no, &f->what); }

static corun_status open_job(feed *f, job **j)
{
    bool twice = false;
    if (f->what == LINES_LONG) {
        TRY(job_new(j, f->line_no));
        (*j)->id = digest_of(f->line.data, f->line.len);
        job_fail(*j, 400, NULL, "the line is longer than %zu bytes", JOB_MAX_LINE);
        return CORUN_OK;
    }
    TRY(f->kind->open(j, f->line.data, f->line.len, f->line_no));
    if ((*j)->custom_id)
        TRY(seen_add(&f->seen, json_string_value((*j)->custom_id),
                     json_string_length((*j)->custom_id), &twice));
    if (twice) job_fail(*j, 400, "custom_id", "custom_id: an earlier line has the same one");
    return CORUN_OK;
}

corun_status feed_job(feed *f, job **j)
{
    *j = NULL;
    corun_status st = open_job(f, j);
    if (st == CORUN_OK) return st;
    job_free(*j);
    *j = NULL;
    return st;
}

corun_status feed_row(const feed_kind *kind, job *j, const job_model *m, buf *row)
{
    if (j->http != 200 && !j->message)
        FAIL(CORUN_ENOMEM, "line %llu: no memory for its error", (unsigned long long)j->line_no);
    corun_status st = kind->write(j, m, row);
    if (st != CORUN_ECAPACITY) return st;
    job_fail(j, 500, NULL, "the answer is larger than %zu bytes", JOB_MAX_ROW);
    buf_reset(row);
    return kind->write(j, m, row);
}
