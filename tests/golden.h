/* golden.h - reads reference logits and the tolerance table, and compares runs with them.
 * Shared by the golden tests; a figure is computed here once, the same way for every run. */
#ifndef TESTS_GOLDEN_H
#define TESTS_GOLDEN_H

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "files/config.h"

typedef struct golden_figures {
    double rms, max, kl_mean;
} golden_figures;

typedef struct golden_tolerance {
    double graph_rms_of_std, fault_factor;
    double rms_factor, max_factor, kl_mean, kl_mean_factor, top1_margin;
} golden_tolerance;

typedef struct golden {
    buf file;
    int32_t n_token, n_vocab, n_pos;
    const int32_t *token, *pos; /* [n_token], [n_pos] ascending */
    const float *logits;        /* [n_pos][n_vocab] */
    double std;
    golden_figures bf16; /* of the framework's own bf16 run */
} golden;

static inline double golden_number(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return json_is_number(v) ? json_number_value(v) : (double)NAN;
}

static inline corun_status golden_tolerance_read(golden_tolerance *t)
{
    json_t *j;
    TRY(json_read_file(&j, TEST_DATA "/tolerance.json", 1 << 20));
    const json_t *g = json_object_get(j, "graph_parity"), *p = json_object_get(j, "parity");
    *t = (golden_tolerance){.graph_rms_of_std = golden_number(g, "rms_of_std"),
                            .fault_factor = golden_number(g, "fault_factor"),
                            .rms_factor = golden_number(p, "rms_factor"),
                            .max_factor = golden_number(p, "max_factor"),
                            .kl_mean = golden_number(p, "kl_mean"),
                            .kl_mean_factor = golden_number(p, "kl_mean_factor"),
                            .top1_margin = golden_number(p, "top1_margin")};
    json_decref(j);
    const double *v = (const double *)t;
    for (size_t i = 0; i < sizeof *t / sizeof *v; i++)
        if (!(v[i] > 0)) FAIL(CORUN_EFORMAT, "tolerance.json: number %zu is missing", i);
    return CORUN_OK;
}

static inline golden_figures golden_figures_of(const json_t *j)
{
    return (golden_figures){golden_number(j, "rms"), golden_number(j, "max"),
                            golden_number(j, "kl_mean")};
}

/* Reads folder/golden.bin and folder/golden.json (format: tools/golden_models.py). */
static inline corun_status golden_open(golden *g, const char *folder)
{
    char path[512];
    memset(g, 0, sizeof *g);
    buf_init(&g->file, 64 << 20);
    snprintf(path, sizeof path, "%s/golden.bin", folder);
    TRY(file_read(&g->file, path, 64 << 20));
    if (g->file.len < 24 || memcmp(g->file.data, "CRNGOLD1", 8) != 0)
        FAIL(CORUN_EFORMAT, "%s: not a golden file", path);
    const int32_t *h = (const int32_t *)(g->file.data + 8);
    g->n_token = h[0];
    g->n_vocab = h[1];
    g->n_pos = h[2];
    g->token = h + 4;
    g->pos = g->token + g->n_token;
    g->logits = (const float *)(g->pos + g->n_pos);
    size_t want = 24 + 4 * ((size_t)g->n_token + (size_t)g->n_pos * (1 + (size_t)g->n_vocab));
    if (g->file.len != want) FAIL(CORUN_EFORMAT, "%s: %zu bytes, not %zu", path, g->file.len, want);
    json_t *j;
    snprintf(path, sizeof path, "%s/golden.json", folder);
    TRY(json_read_file(&j, path, 1 << 20));
    g->std = golden_number(j, "std");
    g->bf16 = golden_figures_of(json_object_get(json_object_get(j, "framework"), "bf16"));
    json_decref(j);
    return CORUN_OK;
}

static inline void golden_close(golden *g) { buf_free(&g->file); }

static inline double golden_log_sum_exp(const float *x, int32_t n)
{
    float m = x[0];
    double s = 0;
    for (int32_t i = 1; i < n; i++) m = x[i] > m ? x[i] : m;
    for (int32_t i = 0; i < n; i++) s += exp((double)x[i] - (double)m);
    return (double)m + log(s);
}

/* Sums over rows; finish with golden_sum_figures. */
typedef struct golden_sum {
    double sq, max, kl;
    int64_t n, rows, top1_wrong; /* where the reference margin is large enough */
} golden_sum;

/* One row of n logits against the reference; margin: of the top-1 rule. NaN counts as infinite. */
static inline void golden_add(golden_sum *s, const float *ref, const float *got, int32_t n,
                              double margin)
{
    double lr = golden_log_sum_exp(ref, n), lg = golden_log_sum_exp(got, n), kl = 0;
    int32_t top = 0, top_got = 0;
    double second = -DBL_MAX;
    for (int32_t i = 0; i < n; i++) {
        double e = (double)got[i] - (double)ref[i];
        if (!isfinite(e)) e = DBL_MAX / 1e300;
        s->sq += e * e;
        s->max = fabs(e) > s->max ? fabs(e) : s->max;
        kl += exp((double)ref[i] - lr) * ((double)ref[i] - lr - (double)got[i] + lg);
        if (ref[i] > ref[top]) top = i;
        if (got[i] > got[top_got]) top_got = i;
    }
    for (int32_t i = 0; i < n; i++)
        if (i != top && (double)ref[i] > second) second = (double)ref[i];
    s->kl += isfinite(kl) ? kl : DBL_MAX / 1e300;
    if (top != top_got && (double)ref[top] - second > margin) s->top1_wrong++;
    s->n += n;
    s->rows++;
}

static inline golden_figures golden_sum_figures(const golden_sum *s)
{
    return (golden_figures){sqrt(s->sq / (double)s->n), s->max, s->kl / (double)s->rows};
}

/* The parity rows of the table; prints the figures, and what is out of bounds. */
static inline bool golden_parity_ok(const golden_tolerance *t, const char *what,
                                    const golden_sum *sum, const golden_figures *fw)
{
    golden_figures f = golden_sum_figures(sum);
    bool rms = f.rms <= t->rms_factor * fw->rms, max = f.max <= t->max_factor * fw->max;
    bool kl = f.kl_mean <= t->kl_mean && f.kl_mean <= t->kl_mean_factor * fw->kl_mean;
    bool top = sum->top1_wrong == 0;
    printf("# %s: rms %.4f (framework's bf16 %.4f)%s, max %.3f (%.3f)%s, mean KL %.2e (%.2e)%s, "
           "top-1 wrong %lld%s\n",
           what, f.rms, fw->rms, rms ? "" : " TOO LARGE", f.max, fw->max, max ? "" : " TOO LARGE",
           f.kl_mean, fw->kl_mean, kl ? "" : " TOO LARGE", (long long)sum->top1_wrong,
           top ? "" : " WRONG");
    return rms && max && kl && top;
}

#endif
