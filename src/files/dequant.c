/* dequant.c - owns the number formats of weight files: their sizes and their formulas.
 *
 * Invariant: every value is the format's formula in fp32, each step rounded (no fma), so the bits
 * are the same on every machine. */
#include <string.h>

#include "files/weights.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "weight files are little-endian, and so must be the machine"
#endif

static const struct {
    const char *name;
    int32_t block, bytes;
} types[] = {
    [WEIGHTS_F32] = {"F32", 1, 4},         [WEIGHTS_F16] = {"F16", 1, 2},
    [WEIGHTS_BF16] = {"BF16", 1, 2},       [WEIGHTS_F8_E4M3] = {"F8_E4M3", 1, 0},
    [WEIGHTS_F8_E8M0] = {"F8_E8M0", 1, 0}, [WEIGHTS_Q4_0] = {"Q4_0", 32, 18},
    [WEIGHTS_Q4_1] = {"Q4_1", 32, 20},     [WEIGHTS_Q5_0] = {"Q5_0", 32, 22},
    [WEIGHTS_Q5_1] = {"Q5_1", 32, 24},     [WEIGHTS_Q8_0] = {"Q8_0", 32, 34},
    [WEIGHTS_Q4_K] = {"Q4_K", 256, 144},   [WEIGHTS_Q5_K] = {"Q5_K", 256, 176},
    [WEIGHTS_Q6_K] = {"Q6_K", 256, 210},   [WEIGHTS_OTHER] = {"another type", 1, 0},
};

const char *weights_dtype_name(weights_dtype t)
{
    return (unsigned)t <= WEIGHTS_OTHER ? types[t].name : "no type";
}

int32_t dequant_block(weights_dtype t) { return (unsigned)t <= WEIGHTS_OTHER ? types[t].block : 1; }

int32_t dequant_block_bytes(weights_dtype t)
{
    return (unsigned)t <= WEIGHTS_OTHER ? types[t].bytes : 0;
}

static float from_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static uint32_t to_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

/* Exact, and without subnormal floats on the way, which are slow: a half below the normal range is
 * read as one with the smallest exponent, less that exponent's one. */
static inline float half(uint32_t h)
{
    uint32_t mag = (h & 0x7fffu) << 13, e = h & 0x7c00u;
    uint32_t small = to_bits(from_bits(mag + 0x38800000u) - 0x1p-14f);
    uint32_t bits = e == 0 ? small : e == 0x7c00u ? mag | 0x7f800000u : mag + 0x38000000u;
    return from_bits(bits | (h & 0x8000u) << 16);
}

static float half_at(const uint8_t *p) { return half((uint32_t)p[0] | (uint32_t)p[1] << 8); }

static inline uint16_t to_bf16(float f)
{
    uint32_t u = to_bits(f);
    uint32_t even = (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
    uint32_t quiet = u >> 16 | 0x40u;
    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? quiet : even);
}

/* ---- one block each ------------------------------------------------------------------------- */

static void block_q8_0(const uint8_t *b, float *y)
{
    float d = half_at(b);
    int8_t q[32];
    memcpy(q, b + 2, sizeof q);
    for (int j = 0; j < 32; j++) y[j] = d * (float)q[j];
}

static void block_q4_0(const uint8_t *b, float *y)
{
    float d = half_at(b);
    for (int j = 0; j < 16; j++) {
        y[j] = d * (float)((b[2 + j] & 15) - 8);
        y[j + 16] = d * (float)((b[2 + j] >> 4) - 8);
    }
}

static void block_q4_1(const uint8_t *b, float *y)
{
    float d = half_at(b), m = half_at(b + 2);
    for (int j = 0; j < 16; j++) {
        y[j] = d * (float)(b[4 + j] & 15) + m;
        y[j + 16] = d * (float)(b[4 + j] >> 4) + m;
    }
}

/* The 5-bit values of Q5_0 and Q5_1: h holds the fifth bits of all 32. */
static void five_bits(const uint8_t *h, const uint8_t *q, int32_t *v)
{
    uint32_t high;
    memcpy(&high, h, sizeof high);
    for (int j = 0; j < 16; j++) {
        v[j] = (int32_t)((q[j] & 15u) | (high >> j & 1u) << 4);
        v[j + 16] = (int32_t)((q[j] >> 4) | (high >> (j + 16) & 1u) << 4);
    }
}

static void block_q5_0(const uint8_t *b, float *y)
{
    float d = half_at(b);
    int32_t v[32];
    five_bits(b + 2, b + 6, v);
    for (int j = 0; j < 32; j++) y[j] = d * (float)(v[j] - 16);
}

static void block_q5_1(const uint8_t *b, float *y)
{
    float d = half_at(b), m = half_at(b + 2);
    int32_t v[32];
    five_bits(b + 4, b + 8, v);
    for (int j = 0; j < 32; j++) y[j] = d * (float)v[j] + m;
}

/* Group j of the eight 6-bit scales and minima of Q4_K and Q5_K, times d and dmin. */
static void scale_k(const uint8_t *b, int j, float *scale, float *min)
{
    const uint8_t *s = b + 4;
    int sc = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
    int mn = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | (s[j] >> 6) << 4;
    *scale = half_at(b) * (float)sc;
    *min = half_at(b + 2) * (float)mn;
}

static void block_q4_k(const uint8_t *b, float *y)
{
    for (int c = 0; c < 4; c++) {
        const uint8_t *q = b + 16 + 32 * c;
        float d0, m0, d1, m1;
        scale_k(b, 2 * c, &d0, &m0);
        scale_k(b, 2 * c + 1, &d1, &m1);
        for (int l = 0; l < 32; l++) {
            y[64 * c + l] = d0 * (float)(q[l] & 15) - m0;
            y[64 * c + 32 + l] = d1 * (float)(q[l] >> 4) - m1;
        }
    }
}

static void block_q5_k(const uint8_t *b, float *y)
{
    const uint8_t *h = b + 16;
    for (int c = 0; c < 4; c++) {
        const uint8_t *q = b + 48 + 32 * c;
        float d0, m0, d1, m1;
        scale_k(b, 2 * c, &d0, &m0);
        scale_k(b, 2 * c + 1, &d1, &m1);
        for (int l = 0; l < 32; l++) {
            int lo = (q[l] & 15) | (h[l] >> (2 * c) & 1) << 4;
            int hi = q[l] >> 4 | (h[l] >> (2 * c + 1) & 1) << 4;
            y[64 * c + l] = d0 * (float)lo - m0;
            y[64 * c + 32 + l] = d1 * (float)hi - m1;
        }
    }
}

static void block_q6_k(const uint8_t *b, float *y)
{
    float d = half_at(b + 208);
    for (int n = 0; n < 2; n++, y += 128) {
        const uint8_t *ql = b + 64 * n, *qh = b + 128 + 32 * n;
        float s[8];
        for (int g = 0; g < 8; g++) s[g] = d * (float)(int8_t)b[192 + 8 * n + g];
        for (int l = 0; l < 32; l++) {
            int g = l / 16;
            int v0 = (ql[l] & 15) | (qh[l] & 3) << 4;
            int v1 = (ql[l + 32] & 15) | (qh[l] >> 2 & 3) << 4;
            int v2 = ql[l] >> 4 | (qh[l] >> 4 & 3) << 4;
            int v3 = ql[l + 32] >> 4 | (qh[l] >> 6) << 4;
            y[l] = s[g] * (float)(v0 - 32);
            y[l + 32] = s[g + 2] * (float)(v1 - 32);
            y[l + 64] = s[g + 4] * (float)(v2 - 32);
            y[l + 96] = s[g + 6] * (float)(v3 - 32);
        }
    }
}

/* ---- rows ------------------------------------------------------------------------------------ */

typedef void (*block_fn)(const uint8_t *b, float *y);

static block_fn block_of(weights_dtype t)
{
    switch (t) {
    case WEIGHTS_Q4_0: return block_q4_0;
    case WEIGHTS_Q4_1: return block_q4_1;
    case WEIGHTS_Q5_0: return block_q5_0;
    case WEIGHTS_Q5_1: return block_q5_1;
    case WEIGHTS_Q8_0: return block_q8_0;
    case WEIGHTS_Q4_K: return block_q4_k;
    case WEIGHTS_Q5_K: return block_q5_k;
    case WEIGHTS_Q6_K: return block_q6_k;
    default: return NULL;
    }
}

void dequant_row(weights_dtype t, const void *src, int64_t n, float *out)
{
    const uint8_t *p = src;
    uint16_t h;
    if (t == WEIGHTS_F32) {
        memcpy(out, src, (size_t)n * 4);
    } else if (t == WEIGHTS_F16) {
        for (int64_t i = 0; i < n; i++) {
            memcpy(&h, p + 2 * i, 2);
            out[i] = half(h);
        }
    } else if (t == WEIGHTS_BF16) {
        for (int64_t i = 0; i < n; i++) {
            memcpy(&h, p + 2 * i, 2);
            out[i] = from_bits((uint32_t)h << 16);
        }
    } else {
        block_fn fn = block_of(t);
        int32_t block = dequant_block(t), bytes = dequant_block_bytes(t);
        if (!fn) return;
        for (int64_t i = 0; i < n; i += block, p += bytes) fn(p, out + i);
    }
}

void dequant_row_bf16(weights_dtype t, const void *src, int64_t n, uint16_t *out)
{
    enum { TILE = 256 }; /* a multiple of every block */
    float tile[TILE];
    const uint8_t *p = src;
    int32_t block = dequant_block(t), bytes = dequant_block_bytes(t);
    if (t == WEIGHTS_BF16) {
        memcpy(out, src, (size_t)n * 2);
        return;
    }
    for (int64_t i = 0; i < n; i += TILE, p += TILE / block * bytes) {
        int64_t m = n - i < TILE ? n - i : TILE;
        dequant_row(t, p, m, tile);
        for (int64_t j = 0; j < m; j++) out[i + j] = to_bf16(tile[j]);
    }
}
