/* k_row.c - the ops that see one token row at a time: norm, what follows the qkv product, SiLU.
 *
 * Reduction order of the norm: 256 partial sums of squares, partial t over elements 8t ... 8t + 7
 * of each 2,048, then a tree (docs/numerics.md, section 2). Nothing else is a sum. Level: phase.
 * Bound: the bytes of the rows over the bandwidth of the caches. */
#include "base/num.h"
#include "ops/cpu/cpu.h"
#include "ops/cpu/isa.h"

#define LOG2_E 0x1.715476p+0f

#define STRIP 2048 /* floats of a row that are held at once: a multiple of the 256 partials */

/* out = bf16(g bf16(x r)); out may be x. */
static void norm_row(const uint16_t *x, int64_t n, const float *gain, float eps, uint16_t *out)
{
    float part[256] = {0}, f[STRIP];
    for (int64_t i = 0; i < n; i += STRIP) {
        int64_t m = n - i < STRIP ? n - i : STRIP;
        for (int64_t k = 0; k < m; k++) f[k] = cpu_wide(x[i + k]);
        for (int64_t k = m; k < (m + 7) / 8 * 8; k++) f[k] = 0.0f;
        for (int64_t t = 0; t < (m + 7) / 8; t++)
            for (int e = 0; e < 8; e++) part[t] = cpu_fmaf(f[8 * t + e], f[8 * t + e], part[t]);
    }
    int64_t used = (n + 7) / 8, half = 128;
    while (half >= used && half > 1) half /= 2;
    for (; half >= 1; half /= 2)
        for (int64_t t = 0; t < half; t++) part[t] += part[t + half];
    float mean = part[0] * (1.0f / (float)n);
    float r = (float)(1.0 / sqrt((double)(mean + eps)));
    for (int64_t i = 0; i < n; i++) out[i] = cpu_round(gain[i] * cpu_rounded(cpu_wide(x[i]) * r));
}

static void add_row(uint16_t *h, const uint16_t *y, int64_t n)
{
    for (int64_t k = 0; k < n; k++) h[k] = cpu_round(cpu_wide(h[k]) + cpu_wide(y[k]));
}

void CPU_NAME(k_norm)(void *job, int worker, int n_worker);
void CPU_NAME(k_norm)(void *job, int worker, int n_worker)
{
    const cpu_norm_job *j = job;
    int64_t b, e;
    pool_slice(j->n_row, 1, worker, n_worker, &b, &e);
    for (int64_t i = b; i < e; i++) {
        int64_t at = (j->row ? j->row[i] : i) * j->n;
        const uint16_t *x = j->h + at;
        uint16_t *out = j->out + i * j->n;
        if (j->y && j->row) { /* a chosen set leaves h alone: the sum passes through out */
            memcpy(out, x, (size_t)j->n * sizeof *out);
            add_row(out, j->y + at, j->n);
            x = out;
        } else if (j->y) {
            add_row(j->h + at, j->y + at, j->n);
        }
        norm_row(x, j->n, j->gain, j->eps, out);
    }
}

/* Rotates a head of floats by halves: two rounded products and one rounded sum. */
static void rotate(const float *x, const float *cs, const float *sn, int64_t half, uint16_t *out)
{
    for (int64_t i = 0; i < half; i++) {
        float a = x[i] * cs[i], b = x[i + half] * sn[i];
        float c = x[i + half] * cs[i], d = x[i] * sn[i];
        out[i] = cpu_round(a - b);
        out[i + half] = cpu_round(c + d);
    }
}

/* Head h of token t: q heads first, then k, then v. */
static void qkv_head(const cpu_qkv_job *j, int64_t t, int64_t h)
{
    const cpu_kv *kv = &j->kv;
    const int64_t d = kv->d, half = d / 2, pt = kv->page_tokens;
    const uint16_t *x = j->qkv + (t * (kv->n_head + 2 * kv->n_kv) + h) * d;
    int64_t pos = j->r->pos[t];
    int64_t page = rows_pages(j->r, j->r->seq[t])[pos / pt];
    if (h >= kv->n_head + kv->n_kv) {
        uint16_t *v =
            kv->data + page * kv->page + kv->layer + (h - kv->n_head - kv->n_kv) * kv->head;
        v += d * pt + pos % pt * kv->dp;
        for (int64_t g = 0; g < d; g += CPU_PANEL)
            for (int64_t o = 0; o < CPU_PANEL; o++)
                v[g + (o < 16 ? 2 * o : 2 * (o - 16) + 1)] = g + o < d ? x[g + o] : 0;
        return;
    }
    float f[CPU_MAX_D];
    uint16_t out[CPU_MAX_D];
    const float *gain = h < kv->n_head ? j->q_gain : j->k_gain;
    if (gain) {
        norm_row(x, d, gain, j->eps, out);
        x = out;
    }
    for (int64_t i = 0; i < d; i++) f[i] = cpu_wide(x[i]);
    rotate(f, j->cos + pos * half, j->sin + pos * half, half, out);
    if (h < kv->n_head) {
        memcpy(j->q + (t * kv->n_head + h) * d, out, (size_t)d * sizeof *out);
        return;
    }
    uint16_t *k = kv->data + page * kv->page + kv->layer + (h - kv->n_head) * kv->head;
    k += pos % pt / CPU_KEYS * CPU_KEYS * d + pos % CPU_KEYS * 2;
    for (int64_t i = 0; i < half; i++) {
        k[i * CPU_KEYS * 2] = out[2 * i];
        k[i * CPU_KEYS * 2 + 1] = out[2 * i + 1];
    }
}

void CPU_NAME(k_qkv_post)(void *job, int worker, int n_worker);
void CPU_NAME(k_qkv_post)(void *job, int worker, int n_worker)
{
    const cpu_qkv_job *j = job;
    int64_t n_head = j->kv.n_head + 2 * (int64_t)j->kv.n_kv, b, e;
    pool_slice(j->r->n_tok * n_head, 1, worker, n_worker, &b, &e);
    for (int64_t i = b; i < e; i++) qkv_head(j, i / n_head, i % n_head);
}

void CPU_NAME(k_silu_mul)(void *job, int worker, int n_worker);
void CPU_NAME(k_silu_mul)(void *job, int worker, int n_worker)
{
    const cpu_silu_job *j = job;
    int64_t b, e, n = j->n_ff;
    pool_slice(j->n_row * n, 64, worker, n_worker, &b, &e);
    while (b < e) {
        int64_t row = b / n, i = b % n, m = n - i < e - b ? n - i : e - b;
        const uint16_t *gate = j->gate_up + row * 2 * n + i, *up = gate + n;
        uint16_t *out = j->out + row * n + i;
        for (int64_t k = 0; k < m; k++) {
            float g = cpu_wide(gate[k]);
            float s = cpu_rounded(g / (1.0f + num_exp2f(-g * LOG2_E)));
            out[k] = cpu_round(s * cpu_wide(up[k]));
        }
        b += m;
    }
}
