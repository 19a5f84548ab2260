/* results.h - the way of rows out of a run: straight to standard output, or over a journal into a
 * file that is put in place when all rows are there. */
#ifndef APP_RESULTS_H
#define APP_RESULTS_H

#include "app/cmd.h"
#include "app/journal.h"
#include "app/lines.h"

typedef struct results {
    place at;
    journal *journal; /* NULL: standard output */
    sink *direct;     /* standard output */
    json_t *facts;    /* what a run that goes on must have in common */
    lines_shape input;
    bool quiet;
    const place *metrics; /* another output of the run, NULL: none */
    bool begun, done;     /* rows can come; the output is complete and in place */
} results;

/* Refuses what can be refused before the model is read: places, a journal of another input or of
 * other options. options (an object) is taken over; it holds what moves bytes and is not part of
 * the numeric identity. in, model: what the output must not be. */
corun_status results_open(results *r, const char *out, const char *in, const char *model,
                          json_t *options, const char *command, bool restart);
/* The engine is open: its identity must be the journal's. Rows can come. */
corun_status results_begin(results *r, const cmd_session *s);

/* The row of this index, if an earlier run has finished it. As journal_find. */
corun_status results_find(results *r, uint64_t index, journal_row *row, bool *found);
/* Rows are added in any order where there is a journal, in that of the input where not. */
corun_status results_add(results *r, const journal_row *row, const char *message, const char *data);
corun_status results_tick(results *r);

/* All n rows are there and `in` was read to its end: makes the file, puts it in place, removes the
 * journal. CORUN_OK as well when stop ended it. */
corun_status results_end(results *r, const lines *in, uint64_t n, int (*stop)(void));
void results_close(results *r);
/* The end of a run that gave st: says on standard error what went wrong or which signal ended it,
 * what is kept and how to go on; closes r and gives the exit code. */
int cmd_close_results(results *r, corun_status st);

#endif
