/* pump.h - carries lines through the engine: reads, submits, collects, and hands rows on. Rows that
 * an earlier run has finished are not run again. Bounded: at most `window` prompts are alive, and
 * at most PUMP_MAX_ROWS lines or PUMP_MAX_BYTES of them wait for their turn. */
#ifndef APP_PUMP_H
#define APP_PUMP_H

#include "app/feed.h"
#include "app/report.h"
#include "app/results.h"

#define PUMP_MAX_ROWS  JOURNAL_WINDOW
#define PUMP_MAX_BYTES ((size_t)48 << 20)

/* Prompts alive for this many slots: enough that no slot waits for a line. */
#define PUMP_WINDOW(slots) ((slots) < 16 ? 64u : (slots) > 250 ? 1000u : 4u * (unsigned)(slots))

/* When lines are submitted: all as soon as there is room, a number of them before each step, or
 * 0 to 8 before each step by a counter generator with this seed. */
typedef struct pump_arrival {
    enum { PUMP_ALL, PUMP_GROUP, PUMP_RANDOM } kind;
    uint64_t n; /* of a group, or the seed */
} pump_arrival;

corun_status pump_arrival_parse(const char *text, pump_arrival *out);

typedef struct pump {
    feed_kind kind;
    const job_model *model;
    corun_engine *engine; /* NULL: check the lines only, write nothing */
    lines *in;
    results *out; /* NULL without an engine */
    report *report;
    pump_arrival arrival;
    bool pieces;             /* the input is a stream of pieces (pieces.h) */
    uint64_t shard, n_shard; /* lines with index (blank ones not counted) % n_shard == shard */
    size_t window;
    int (*stop)(void); /* not 0: end now */
} pump;

/* CORUN_OK when all lines are done, and when p->stop ended it. */
corun_status pump_run(pump *p);

#endif
