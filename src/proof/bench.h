/* bench.h - times the engine against its own parts in one run. Figures are ratios first: absolute
 * times hold only on the machine that printed them. */
#ifndef PROOF_BENCH_H
#define PROOF_BENCH_H

#include "corun.h"

#include <stdio.h>

/* ---- the form for CPUs ----------------------------------------------------------------------- */

typedef struct bench_opts {
    int n_ctx;     /* mean context of the decode steps, in tokens */
    int n_prefill; /* tokens of the timed prompt */
    int n_repeat;  /* engines that run for each figure (three times as many for the prompt) */
    bool json;     /* one JSON object instead of a table */
} bench_opts;

/* Decode at widths 1, 4, 16 and 32 (greedy, end ids ignored) and one prefill, each step followed by
 * the bare matrix products of such a step on weights of the same shapes, and what sampling costs.
 * Medians count. */
corun_status bench_run(corun_model *m, const bench_opts *o, FILE *out);

/* ---- the form for devices (docs/bench.md) ---------------------------------------------------- */

enum { BENCH_MAX = 16, BENCH_MAX_ROWS = 1024 };

typedef struct bench_shape {
    int32_t n, tokens; /* rows and their context, or prompts and their length */
} bench_shape;

typedef struct bench_job {
    int32_t n;           /* requests, all submitted at once */
    int32_t n_in, n_out; /* tokens of each */
    bool spread;         /* prompts and answers are log-normal between n_in and n_out */
} bench_job;

typedef struct bench_device_opts {
    bench_shape steps[BENCH_MAX], prompts[BENCH_MAX];
    bench_job jobs[BENCH_MAX];
    int n_steps, n_prompts, n_jobs;
    corun_policy policy[4]; /* every figure under each of them */
    int n_policy;
    int32_t chunk;    /* prompt tokens of a step, under corun its grid */
    int32_t timed;    /* steps that are timed */
    int32_t logprobs; /* as in corun_sampling */
    double warm;      /* seconds of the same work before */
    int64_t kv;       /* most bytes of the KV pool; 0: as many as are needed */
    bool json;        /* one JSON object a line instead of text */
} bench_device_opts;

/* The defaults; nothing to time. */
bench_device_opts bench_device_default(void);
/* "256x1536,1x1024", at most BENCH_MAX of them. CORUN_EINVAL names what is wrong. */
corun_status bench_read_shapes(const char *text, bench_shape *out, int *n);
/* "256x1024/1024,256x64-4096" */
corun_status bench_read_jobs(const char *text, bench_job *out, int *n);
corun_status bench_read_policies(const char *text, corun_policy *out, int *n);

/* Whether the model runs on a device. */
bool bench_on_device(const corun_model *m);
/* Prints each figure as soon as it is there. Works on every backend that has a second instance. */
corun_status bench_device_run(corun_model *m, const bench_device_opts *o, FILE *out);

#endif
