/* ref_mma.c - the arithmetic of one Hopper tensor-core step in integers.
 * Invariant: nothing here rounds by the host's floating-point unit. */
#include "ops/ref_mma.h"

#include <stdbool.h>
#include <string.h>

/* The terms are aligned to an exponent of at least LEAST: seen where products are tiny and the
 * accumulator is a zero. */
enum { FRACTION = 25, LEAST = -133 };

/* A finite term: (-1)^negative * mant * 2^(exp - bits of its fraction). */
typedef struct term {
    int64_t mant;
    int exp;
    bool negative;
} term;

static uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static float float_of(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static float wide(uint16_t h) { return float_of((uint32_t)h << 16); }
static bool finite_bits(uint32_t u) { return (u & 0x7f800000u) != 0x7f800000u; }

/* An fp32 value with 23 fraction bits; its exponent is that of a subnormal's, too. */
static term split(uint32_t u)
{
    int e = (int)(u >> 23 & 0xff);
    return (term){.mant = (int64_t)((u & 0x7fffff) | (e ? 0x800000u : 0)),
                  .exp = (e ? e : 1) - 127,
                  .negative = u >> 31};
}

/* The product of two bf16 with 14 fraction bits, not normalised: below 4. */
static term product(uint16_t a, uint16_t b)
{
    term x = split((uint32_t)a << 16), y = split((uint32_t)b << 16);
    return (term){.mant = (x.mant >> 16) * (y.mant >> 16),
                  .exp = x.exp + y.exp,
                  .negative = x.negative != y.negative};
}

/* The term in units of 2^(top - FRACTION), cut toward zero. */
static int64_t aligned(term t, int fraction, int top)
{
    int shift = top - t.exp - (FRACTION - fraction);
    int64_t v = shift <= 0 ? t.mant << -shift : shift < 63 ? t.mant >> shift : 0;
    return t.negative ? -v : v;
}

/* v * 2^(exp - FRACTION), cut toward zero to fp32. A sum that becomes zero is +0. */
static float cut(int64_t v, int exp)
{
    uint32_t sign = v < 0 ? 0x80000000u : 0;
    uint64_t m = v < 0 ? (uint64_t)-v : (uint64_t)v;
    if (m == 0) return 0;
    int top = 63 - __builtin_clzll(m), e = exp - FRACTION + top;
    if (e > 127) return float_of(sign | 0x7f800000u);
    int keep = e >= -126 ? 23 : 23 + (e + 126); /* fraction bits that fp32 holds here */
    if (keep < 0) return 0;
    uint64_t frac = top > keep ? m >> (top - keep) : m << (keep - top);
    if (e < -126) return float_of(sign | (uint32_t)frac);
    return float_of(sign | (uint32_t)(e + 127) << 23 | ((uint32_t)frac & 0x7fffff));
}

float ref_mma_step(float acc, const uint16_t *a, const uint16_t *b, int n)
{
    term p[REF_MMA_GROUP], c = split(bits_of(acc));
    int top = c.mant ? c.exp : LEAST;
    bool finite = finite_bits(bits_of(acc));
    for (int i = 0; i < n; i++) {
        finite = finite && finite_bits((uint32_t)a[i] << 16) && finite_bits((uint32_t)b[i] << 16);
        p[i] = product(a[i], b[i]);
        if (p[i].mant && p[i].exp > top) top = p[i].exp;
    }
    if (!finite) { /* the order does not matter: IEEE rules give the class, double never overflows
                    */
        double s = acc;
        for (int i = 0; i < n; i++) s += (double)wide(a[i]) * (double)wide(b[i]);
        return s != s ? float_of(0x7fffffffu) : (float)s;
    }
    int64_t sum = aligned(c, 23, top);
    for (int i = 0; i < n; i++) sum += aligned(p[i], 14, top);
    return cut(sum, top);
}

float ref_mma_dot(const uint16_t *a, const uint16_t *b, int64_t k)
{
    float acc = 0;
    for (int64_t i = 0; i < k; i += REF_MMA_GROUP)
        acc = ref_mma_step(acc, a + i, b + i, k - i < REF_MMA_GROUP ? (int)(k - i) : REF_MMA_GROUP);
    return acc;
}
