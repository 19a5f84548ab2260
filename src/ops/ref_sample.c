/* ref_sample.c - the definition of ops/sample.h, scalar and step by step.
 * Invariant: nothing here is clever; the kernels of every instruction set must give these bits. */
#include "ops/sample.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "base/philox.h"

typedef struct ranked {
    float x;
    int32_t id;
} ranked;

typedef struct ref_work {
    float *x, *d;
    ranked *sorted; /* largest x first */
    uint64_t *w;
    bool *kept;
} ref_work;

size_t sample_scratch_bytes(int32_t n_vocab)
{
    size_t nb = ((size_t)n_vocab + SAMPLE_BLOCK - 1) / SAMPLE_BLOCK;
    return nb * SAMPLE_BLOCK * 28 + nb * 24;
}

static ref_work work_of(void *scratch, int32_t n_vocab)
{
    size_t v = ((size_t)n_vocab + SAMPLE_BLOCK - 1) / SAMPLE_BLOCK * SAMPLE_BLOCK;
    char *p = scratch;
    ref_work k;
    k.w = (uint64_t *)(void *)p, p += v * 8;
    k.x = (float *)(void *)p, p += v * 4;
    k.d = (float *)(void *)p, p += v * 4;
    k.sorted = (ranked *)(void *)p, p += v * 8;
    k.kept = (bool *)(void *)p;
    return k;
}

static bool masked(const sample_row *in, int32_t i)
{
    if (i >= in->n_draw) return true;
    if (in->flag && (in->flag[i] & SAMPLE_DENIED)) return true;
    if (in->flag && in->mask_end && (in->flag[i] & SAMPLE_END)) return true;
    for (int32_t b = 0; b < in->n_banned; b++)
        if (in->banned[b] == i) return true;
    return false;
}

static float processed(const sample_row *in, int32_t i)
{
    if (masked(in, i)) return -INFINITY;
    float x = in->logit[i];
    int32_t count = in->count ? in->count[i] : 0;
    bool seen = count > 0 || (in->flag && (in->flag[i] & SAMPLE_PROMPT));
    if (in->bias && in->bias[i] != 0) x = x + in->bias[i];
    if (in->repetition != 1 && seen) x = x > 0 ? x / in->repetition : x * in->repetition;
    if (in->frequency != 0) {
        float f = in->frequency * (float)count;
        x = x - f;
    }
    if (in->presence != 0 && count > 0) x = x - in->presence;
    return x > FLT_MAX ? FLT_MAX : x < -FLT_MAX ? -FLT_MAX : x;
}

static int descending(const void *a, const void *b)
{
    float x = ((const ranked *)a)->x, y = ((const ranked *)b)->x;
    return x > y ? -1 : x < y;
}

/* kept[i] after top-k, min-p and top-p */
static void filter(const sample_row *in, const ref_work *k)
{
    int32_t n = in->n_vocab;
    for (int32_t i = 0; i < n; i++) k->sorted[i] = (ranked){k->x[i], i};
    qsort(k->sorted, (size_t)n, sizeof *k->sorted, descending);
    float kth = in->top_k > 0 && in->top_k < n ? k->sorted[in->top_k - 1].x : -INFINITY;
    uint64_t z = 0;
    for (int32_t i = 0; i < n; i++) {
        bool ok = k->x[i] != -INFINITY && k->x[i] >= kth;
        if (in->min_p > 0) ok = ok && (double)k->w[i] >= (double)in->min_p * 0x1p40;
        k->kept[i] = ok;
        if (ok) z += k->w[i];
    }
    if (!(in->top_p < 1)) return;
    /* `above`: the kept mass of strictly larger logits than those of the group that begins at s */
    double limit = (double)in->top_p * (double)z;
    uint64_t above = 0;
    for (int32_t s = 0; s < n;) {
        uint64_t group = 0;
        float x = k->sorted[s].x;
        for (; s < n && k->sorted[s].x == x; s++) {
            int32_t i = k->sorted[s].id;
            if (k->kept[i]) group += k->w[i];
            if (!((double)above < limit)) k->kept[i] = false;
        }
        above += group;
    }
}

static float score(const sample_row *in, int32_t i, float d)
{
    uint32_t c[4] = {(uint32_t)i >> 2, (uint32_t)in->pos, PHILOX_PURPOSE_DRAW, 0};
    philox4x32(c, (uint32_t)in->seed, (uint32_t)(in->seed >> 32));
    float v = (float)c[i & 3] * 0x1p-32f;
    v = v + 0x1p-33f;
    float e = -num_log1pf(-v);
    return d - num_logf(e);
}

static int32_t draw(const sample_row *in, const ref_work *k, int32_t best, bool greedy)
{
    if (greedy || in->top_p == 0) return best;
    filter(in, k);
    int32_t token = -1;
    float top = 0;
    for (int32_t i = 0; i < in->n_vocab; i++) {
        if (!k->kept[i]) continue;
        float s = score(in, i, k->d[i]);
        if (token < 0 || s > top) {
            token = i;
            top = s;
        }
    }
    return token;
}

static float exp2_diff(float a, float b)
{
    float d = a - b;
    return num_exp2f(d * SAMPLE_LOG2E);
}

static void log_softmax(const float *y, int32_t n, float *max, float *log_s)
{
    float m_all = 0, s_all = 0;
    for (int32_t first = 0; first < n; first += SAMPLE_BLOCK) {
        float e[SAMPLE_BLOCK], lane[32] = {0}, m = -INFINITY;
        for (int32_t j = 0; j < SAMPLE_BLOCK; j++) {
            e[j] = first + j < n ? y[first + j] : -INFINITY;
            if (e[j] > m) m = e[j];
        }
        m = m + 0.0f;
        for (int32_t j = 0; j < SAMPLE_BLOCK; j++)
            lane[j % 32] += exp2_diff(e[j], m == -INFINITY ? 0 : m);
        for (int32_t h = 16; h > 0; h /= 2)
            for (int32_t j = 0; j < h; j++) lane[j] += lane[j + h];
        if (first == 0) {
            m_all = m;
            s_all = lane[0];
            continue;
        }
        float m_new = m > m_all ? m : m_all, sub = m_new == -INFINITY ? 0 : m_new;
        float old = s_all * exp2_diff(m_all, sub);
        s_all = fmaf(lane[0], exp2_diff(m, sub), old);
        m_all = m_new;
    }
    *max = m_all;
    *log_s = num_logf(s_all);
}

static void report(const sample_row *in, const float *y, sample_out *out)
{
    float m, log_s;
    log_softmax(y, in->n_vocab, &m, &log_s);
    float d = y[out->token] - m;
    out->logprob = d - log_s;
    for (int32_t r = 0; r < in->n_top; r++) {
        int32_t best = -1;
        for (int32_t i = 0; i < in->n_vocab; i++) {
            bool taken = y[i] == -INFINITY;
            for (int32_t q = 0; q < r && !taken; q++) taken = out->top_id[q] == i;
            if (!taken && (best < 0 || y[i] > y[best])) best = i;
        }
        if (best < 0) return;
        float t = y[best] - m;
        out->top_id[r] = best;
        out->top_logprob[r] = t - log_s;
        out->n_top = r + 1;
    }
}

void sample_row_ref(const sample_row *in, sample_out *out, void *scratch)
{
    ref_work k = work_of(scratch, in->n_vocab);
    *out = (sample_out){SAMPLE_OK, -1, 0, 0, out->top_id, out->top_logprob};
    for (int32_t i = 0; i < in->n_vocab; i++)
        if (!isfinite(in->logit[i])) {
            out->why = SAMPLE_NONFINITE;
            return;
        }
    if (in->target >= 0) {
        out->token = in->target;
        report(in, in->logit, out);
        return;
    }
    int32_t best = -1;
    for (int32_t i = 0; i < in->n_vocab; i++) {
        k.x[i] = processed(in, i);
        if (k.x[i] != -INFINITY && (best < 0 || k.x[i] > k.x[best])) best = i;
    }
    if (best < 0) {
        out->why = SAMPLE_ALL_MASKED;
        return;
    }
    bool greedy = in->temperature < SAMPLE_GREEDY_T;
    float max = k.x[best] + 0.0f;
    for (int32_t i = 0; i < in->n_vocab && !greedy; i++) {
        float d = k.x[i] - max;
        k.d[i] = d / in->temperature;
        float y = num_exp2f(k.d[i] * SAMPLE_LOG2E);
        k.w[i] = (uint64_t)rint((double)y * 0x1p40);
    }
    out->token = draw(in, &k, best, greedy);
    if (in->n_top < 0) return;
    report(in, !in->processed ? in->logit : greedy ? k.x : k.d, out);
}
