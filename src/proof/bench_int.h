/* bench_int.h - inside of bench*.c: the parts of a step timed apart, and the engine timed whole. */
#ifndef PROOF_BENCH_INT_H
#define PROOF_BENCH_INT_H

#include "engine/engine.h"
#include "proof/bench.h"

/* ---- bench_parts.c: the parts of a step ------------------------------------------------------ */

/* w[n_layer * OPS_PER_LAYER + 1]: made-up matrices of the model's shapes, the head last. */
corun_status bench_weights_open(ops *o, const config *g, int32_t n_layer, ops_weight **w);
/* Those that are open; w may hold NULL. */
void bench_weights_close(ops *o, int32_t n_layer, ops_weight **w);

/* Seconds of each part of one step, all layers, and the least that the first two can take. */
typedef struct bench_part_times {
    double products; /* of all matrices, head included */
    double attention;
    double rows;  /* embed, norms, what follows the qkv product, SiLU */
    double draws; /* sampling with the log-probability of the drawn token */
    double products_floor, attention_floor;
} bench_part_times;

double bench_part_sum(const bench_part_times *t);

/* What was moved at 4.5 TB/s or computed at 780 TFLOP/s, whichever takes longer: an H200. */
/* Slots of an engine: as many as the largest figure has rows. */
int32_t bench_slots(const bench_device_opts *o);

double bench_floor(double bytes, double operations);

typedef struct bench_parts bench_parts;

/* A second instance of the model's backend with matrices of its own: those of a few layers, used by
 * turns, since none stays in a cache. warm: seconds of the same work before the products are timed.
 * CORUN_EUNSUPPORTED: the backend has no second instance. */
corun_status bench_parts_open(bench_parts **out, const corun_model *m, const policy *p,
                              double warm);
void bench_parts_close(bench_parts *p); /* NULL is fine */
/* A step of `rows` rows, each of `len` tokens from position `pos` on, the last of them wanted, on
 * pages of their own. What was timed for as many tokens and rows before is not timed again. The
 * memory of the pages is given back. */
corun_status bench_parts_time(bench_parts *p, int32_t rows, int32_t pos, int32_t len,
                              bench_part_times *t);

/* Fills page `first` and the n - 1 after it with made-up values. */
corun_status bench_fill_pages(ops *o, int32_t first, int32_t n);

/* ---- bench_engine.c: the engine ---------------------------------------------------------------
 */

/* What every run of the engine needs; one engine is open at a time. */
typedef struct bench_engine {
    corun_model *m;
    const bench_device_opts *o;
    corun_policy policy;
    uint64_t serial; /* of the next prompt: no two begin alike */
    char identity[33];
} bench_engine;

/* Sorts n > 0 seconds and gives their median. */
double bench_median(double *t, int32_t n);

typedef struct bench_steps {
    double context;                 /* tokens that a row attends to, mean of all rows and steps */
    double median, mean, low, high; /* seconds a step; low and high: a tenth is below, above */
    double wait;                    /* seconds a step that the host waited for draws */
    int32_t late; /* steps whose draws were there before the host came: the device may have idled */
    double from, to; /* seconds since 1970 */
} bench_steps;

/* Steps of `rows` running rows around the context `context`, after o->warm seconds of such steps;
 * expect: seconds that a step may take. Prompts are not computed: their pages are filled with
 * made-up values and their last token alone is run. */
corun_status bench_time_steps(bench_engine *b, int32_t rows, int32_t context, double expect,
                              bench_steps *out);

enum { BENCH_MAX_RUN = 5 };

typedef struct bench_prompts {
    double seconds[BENCH_MAX_RUN]; /* in order of time */
    int n;
    double from, to;
} bench_prompts;

/* n prompts of `tokens` tokens at once, one new token each; as often as fits in a few seconds. */
corun_status bench_time_prompts(bench_engine *b, int32_t n, int32_t tokens, double expect,
                                bench_prompts *out);

typedef struct bench_job_result {
    double seconds;
    uint64_t tokens_in, tokens_out, kv_bytes;
    corun_stats stats; /* what the job added */
    char digest[33];   /* of all drawn tokens and the bits of their log-probabilities */
    double from, to;
} bench_job_result;

/* All requests of a job at once, to the end of the last. */
corun_status bench_time_job(bench_engine *b, const bench_job *j, bench_job_result *out);

#endif
