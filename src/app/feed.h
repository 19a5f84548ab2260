/* feed.h - lines of a batch become jobs, and jobs become rows: what `corun batch` and the batches
 * of the server have in common, so that their files are the same. */
#ifndef APP_FEED_H
#define APP_FEED_H

#include "app/job.h"
#include "app/lines.h"
#include "app/seen.h"

/* What a line is. */
typedef struct feed_kind {
    corun_status (*open)(job **out, const char *line, size_t len, uint64_t line_no);
    corun_status (*prepare)(job *j, const job_model *m);
    corun_status (*write)(const job *j, const job_model *m, buf *out);
} feed_kind;

typedef struct feed {
    lines *in;
    const feed_kind *kind;
    seen seen; /* custom_ids so far */
    buf line;
    uint64_t line_no; /* of the line just read */
    lines_kind what;
} feed;

void feed_init(feed *f, lines *in, const feed_kind *kind);
void feed_free(feed *f);
/* Reads the next line that is not blank. f->what is LINES_END at the end. */
corun_status feed_next(feed *f);
/* The job of the line just read, opened and not prepared; it has failed when the line is too long
 * or cannot be read, or when an earlier line has its custom_id. Once for each line. */
corun_status feed_job(feed *f, job **j);
/* Appends the row of a job that is done. An answer too large to write becomes an error row. */
corun_status feed_row(const feed_kind *kind, job *j, const job_model *m, buf *row);

#endif
