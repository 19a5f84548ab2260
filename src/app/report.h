/* report.h - what a person or a script sees beside the results: progress, error lines, metrics.
 * Clocks live here and nowhere near a result. */
#ifndef APP_REPORT_H
#define APP_REPORT_H

#include "app/job.h"

typedef struct report_error {
    uint64_t line_no;
    int http;
    char *message;
} report_error;

typedef struct report {
    bool quiet, terminal;
    double begin, ready, shown; /* seconds: start, model open, last sign of progress */
    uint64_t n_total;           /* rows to come; 0: unknown */
    uint64_t n_done;            /* rows that are ready, written or not */
    uint64_t n_restored;        /* of them, those that an earlier run has finished */
    uint64_t n_ok, n_error, n_prompt_tokens, n_new_tokens;
    uint64_t n_checked;  /* --check: tokens of the prompts of good lines */
    report_error *error; /* the first ones */
    size_t n_listed, cap_listed;
} report;

void report_init(report *r, bool quiet);
void report_free(report *r);
void report_ready(report *r); /* the model is open: rates count from here */
/* A row was written. Error rows are named on standard error, the first 20 of them. */
corun_status report_row(report *r, const job *j);
void report_tick(report *r, const corun_stats *s);
void report_end(report *r);
/* The metrics, as one JSON object. identity is a JSON text or NULL. */
corun_status report_metrics(const report *r, const corun_stats *s, const char *identity,
                            size_t identity_len, buf *out);

#endif
