/* ref_cpu.c - the definition of the CPU class, one output at a time. Invariant: nothing here is
 * fast; every rounding is in the place that docs/numerics.md gives it, and every sum has the one
 * order that is written here. */
#include "ops/ref_cpu.h"

#include <math.h>
#include <string.h>

#include "base/num.h"
#include "ops/rows.h"

static float wide(uint16_t v) { return ops_bf16_wide(v); }

void ref_cpu_matmul(const uint16_t *w, const uint16_t *bias, int64_t n_out, int64_t n_in,
                    const uint16_t *x, int64_t n_row, bool f32, void *out)
{
    for (int64_t r = 0; r < n_row; r++)
        for (int64_t o = 0; o < n_out; o++) {
            float acc = 0.0f;
            for (int64_t k = 0; k < n_in; k++)
                acc = fmaf(wide(x[r * n_in + k]), wide(w[o * n_in + k]), acc);
            if (bias) acc = acc + wide(bias[o]);
            if (f32)
                ((float *)out)[r * n_out + o] = acc;
            else
                ((uint16_t *)out)[r * n_out + o] = ops_bf16_round(acc);
        }
}

/* r of the norm: 256 partial sums of squares, then a tree. */
static float norm_factor(const uint16_t *x, int64_t n, float eps)
{
    float part[256] = {0};
    for (int64_t i = 0; i < n; i++) {
        int64_t t = i % 2048 / 8;
        part[t] = fmaf(wide(x[i]), wide(x[i]), part[t]);
    }
    for (int half = 128; half >= 1; half /= 2)
        for (int t = 0; t < half; t++) part[t] = part[t] + part[t + half];
    float inv = (float)(1.0 / (double)n);
    float mean = part[0] * inv;
    float sum = mean + eps;
    return (float)(1.0 / sqrt((double)sum));
}

void ref_cpu_norm(uint16_t *h, const uint16_t *y, int64_t n, const uint16_t *gain, float eps,
                  uint16_t *out)
{
    if (y)
        for (int64_t i = 0; i < n; i++) h[i] = ops_bf16_round(wide(h[i]) + wide(y[i]));
    float r = norm_factor(h, n, eps);
    for (int64_t i = 0; i < n; i++) {
        uint16_t u = ops_bf16_round(wide(h[i]) * r);
        out[i] = ops_bf16_round(wide(gain[i]) * wide(u));
    }
}

void ref_cpu_rope(const uint16_t *x, int64_t d, const uint16_t *gain, float eps,
                  const float *inv_freq, double scale, int32_t pos, uint16_t *out)
{
    uint16_t t[256];
    memcpy(t, x, (size_t)d * sizeof *t);
    if (gain) ref_cpu_norm(t, NULL, d, gain, eps, t);
    for (int64_t i = 0; i < d / 2; i++) {
        float angle = (float)pos * inv_freq[i];
        float c = (float)(num_cos((double)angle) * scale);
        float s = (float)(num_sin((double)angle) * scale);
        float a = wide(t[i]), b = wide(t[i + d / 2]);
        float ac = a * c, bs = b * s, bc = b * c, as = a * s;
        out[i] = ops_bf16_round(ac - bs);
        out[i + d / 2] = ops_bf16_round(bc + as);
    }
}

/* State of a chunk, and of the chunks folded so far. */
typedef struct soft {
    float t, l[4], o[256];
} soft;

/* The block of 128 tokens from start: keys after pos take no part in anything. */
static void soft_block(soft *s, const uint16_t *q, const uint16_t *k, const uint16_t *v,
                       int64_t stride, int64_t d, int32_t pos, int32_t start, float c)
{
    float p[128], top = -INFINITY;
    for (int j = 0; j < 128; j++) {
        p[j] = -INFINITY;
        if (start + j > pos) continue;
        float acc = 0.0f;
        for (int64_t i = 0; i < d; i++)
            acc = fmaf(wide(q[i]), wide(k[(start + j) * stride + i]), acc);
        p[j] = acc;
        top = acc > top ? acc : top;
    }
    float ct = c * top;
    float t = s->t > ct ? s->t : ct;
    float base = t == -INFINITY ? 0.0f : t;
    float a = num_exp2f(s->t - base);
    s->t = t;
    for (int j = 0; j < 128; j++) p[j] = num_exp2f(fmaf(p[j], c, -base));
    for (int lane = 0; lane < 4; lane++) {
        float r = 0.0f;
        for (int n = 0; n < 16; n++) {
            r = r + p[8 * n + 2 * lane];
            r = r + p[8 * n + 2 * lane + 1];
        }
        s->l[lane] = fmaf(s->l[lane], a, r);
    }
    for (int64_t i = 0; i < d; i++) {
        float o = s->o[i] * a;
        for (int j = 0; j < 128 && start + j <= pos; j++)
            o = fmaf(wide(ops_bf16_round(p[j])), wide(v[(start + j) * stride + i]), o);
        s->o[i] = o;
    }
}

void ref_cpu_attention(const uint16_t *q, const uint16_t *k, const uint16_t *v, int64_t row_stride,
                       int64_t d, int32_t pos, float scale, uint16_t *out)
{
    const float c = (float)((double)scale * 0x1.71547652b82fep+0); /* log2 e */
    float T = 0.0f, L = 0.0f, O[256];
    for (int32_t chunk = 0; chunk <= pos; chunk += 512) {
        soft s = {.t = -INFINITY};
        for (int32_t b = chunk; b < chunk + 512 && b <= pos; b += 128)
            soft_block(&s, q, k, v, row_stride, d, pos, b, c);
        float l = (s.l[0] + s.l[1]) + (s.l[2] + s.l[3]);
        if (chunk == 0) {
            T = s.t;
            L = l;
            memcpy(O, s.o, sizeof O);
            continue;
        }
        float t = T > s.t ? T : s.t;
        float base = t == -INFINITY ? 0.0f : t;
        float A = num_exp2f(T - base), B = num_exp2f(s.t - base);
        T = t;
        float la = L * A;
        L = fmaf(l, B, la);
        for (int64_t i = 0; i < d; i++) {
            float oa = O[i] * A;
            O[i] = fmaf(s.o[i], B, oa);
        }
    }
    float inv = 1.0f / L;
    for (int64_t i = 0; i < d; i++) out[i] = ops_bf16_round(O[i] * inv);
}

void ref_cpu_silu_mul(const uint16_t *gate_up, int64_t n_ff, uint16_t *out)
{
    for (int64_t i = 0; i < n_ff; i++) {
        float g = wide(gate_up[i]);
        float e = num_exp2f(-g * 0x1.715476p+0f); /* fp32 of log2 e */
        float den = 1.0f + e;
        uint16_t s = ops_bf16_round(g / den);
        out[i] = ops_bf16_round(wide(s) * wide(gate_up[n_ff + i]));
    }
}
