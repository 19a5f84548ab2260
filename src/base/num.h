/* num.h - 2^x, log, log1p (fp32) and 2^x, log, sine, cosine (double) with the same bits on every
 * host, compiler, instruction set and device.
 *
 * Invariant: only IEEE + - *, named fma and integer operations, in one fixed order; no branch, no
 * table, no library call. So a loop over these functions may be vectorised and keeps its bits.
 * Needs: round to nearest, subnormals kept, contraction off (docs/numerics.md, section 6).
 * A NaN result is always 0x7fc00000 (fp32) or 0x7ff8000000000000 (double). Zeros keep their sign
 * where the function does. Largest errors, in units of the last place of the exact result:
 *
 *   num_exp2f   0.911  all 2^32 inputs (0.838 where the result is normal); overflow to inf
 *   num_logf    0.841  all 2^32 inputs; log(0) = -inf, log(x < 0) = NaN
 *   num_log1pf  0.850  all 2^32 inputs; log1p(-1) = -inf, log1p(x < -1) = NaN
 *   num_exp2    0.90   samples (0.84 where the result is normal)
 *   num_log     0.82   samples
 *   num_sin, num_cos 0.78   samples, |x| <= 1.3e7; beyond that the result is NaN
 *
 * The polynomials are near-minimax (Chebyshev) fits made for this file. */
#ifndef BASE_NUM_H
#define BASE_NUM_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define NUM_FN static __device__ __host__ __forceinline__
#else
#define NUM_FN static inline
#endif

NUM_FN uint32_t num_bits_f(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

NUM_FN float num_from_f(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

NUM_FN uint64_t num_bits(double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

NUM_FN double num_from(uint64_t u)
{
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* cond ? a : b without a branch, which would keep a loop from being vectorised. */
NUM_FN uint32_t num_pick_f(int cond, uint32_t a, uint32_t b)
{
    uint32_t m = 0u - (uint32_t)cond;
    return (a & m) | (b & ~m);
}

NUM_FN uint64_t num_pick(int cond, uint64_t a, uint64_t b)
{
    uint64_t m = 0u - (uint64_t)cond;
    return (a & m) | (b & ~m);
}

/* 2^x: x = n + f with f in [-1/2, 1/2]; 2^f = 1 + f q(f), then two exact steps of scaling of which
 * only the last can round (to a subnormal) or overflow. */
NUM_FN float num_exp2f(float x)
{
    uint32_t ix = num_bits_f(x), ax = ix & 0x7fffffffu;
    float c = num_from_f((ix & 0x80000000u) | (ax < 0x43200000u ? ax : 0x43200000u)); /* 160 */
    float t = c + 0x1.8p23f;
    int32_t n = (int32_t)(num_bits_f(t) - 0x4b400000u);
    float f = c - (t - 0x1.8p23f);
    float q = 0x1.44138ap-13f;
    q = fmaf(q, f, 0x1.5f0890p-10f);
    q = fmaf(q, f, 0x1.3b2a54p-7f);
    q = fmaf(q, f, 0x1.c6af6cp-5f);
    q = fmaf(q, f, 0x1.ebfbe0p-3f);
    q = fmaf(q, f, 0x1.62e430p-1f);
    float p = fmaf(q, f, 1.0f);
    int32_t a = n >> 1, b = n - a;
    float r = p * num_from_f((uint32_t)(a + 127) << 23) * num_from_f((uint32_t)(b + 127) << 23);
    return num_from_f(num_pick_f(ax > 0x7f800000u, 0x7fc00000u, num_bits_f(r)));
}

/* (log(1 + f) - f) / f^2 for 1 + f in [sqrt(1/2), sqrt(2)] */
NUM_FN float num_log_tail_f(float f)
{
    float q = 0x1.15425cp-4f;
    q = fmaf(q, f, -0x1.d962f2p-4f);
    q = fmaf(q, f, 0x1.e3d33ap-4f);
    q = fmaf(q, f, -0x1.fcc1aep-4f);
    q = fmaf(q, f, 0x1.237a56p-3f);
    q = fmaf(q, f, -0x1.5559e6p-3f);
    q = fmaf(q, f, 0x1.99a130p-3f);
    q = fmaf(q, f, -0x1.000008p-2f);
    q = fmaf(q, f, 0x1.55554ep-2f);
    q = fmaf(q, f, -0.5f);
    return q;
}

/* x = 2^e m, m in [sqrt(1/2), sqrt(2)): e ln 2 + log m, the leading sum kept in two parts. */
NUM_FN float num_logf(float x)
{
    uint32_t ix = num_bits_f(x);
    uint32_t iy = num_pick_f(ix < 0x00800000u, num_bits_f(x * 0x1p23f), ix);
    int32_t k = (int32_t)(iy - 0x3f3504f3u) >> 23;
    float f = num_from_f(iy - ((uint32_t)k << 23)) - 1.0f;
    float e = (float)(k - (int32_t)num_pick_f(ix < 0x00800000u, 23u, 0u));
    float s = e * 0x1.62e4p-1f; /* exact */
    float hi = s + f, lo = f - (hi - s);
    float tail = fmaf(f * f, num_log_tail_f(f), fmaf(e, 0x1.7f7d1cp-20f, lo));
    uint32_t u = num_bits_f(hi + tail);
    u = num_pick_f(ix > 0x7f800000u, 0x7fc00000u, u); /* NaN, and all that is negative */
    u = num_pick_f(ix == 0x7f800000u, ix, u);
    u = num_pick_f((ix << 1) == 0u, 0xff800000u, u);
    return num_from_f(u);
}

/* As num_logf on u = 1 + x; what the sum lost is d, known exactly, and enters as d / 2^e. */
NUM_FN float num_log1pf(float x)
{
    uint32_t ix = num_bits_f(x);
    float u1 = 1.0f + x;
    float da = x - (u1 - 1.0f), db = 1.0f - (u1 - x);
    float d =
        num_from_f(num_pick_f((ix & 0x7fffffffu) >= 0x3f800000u, num_bits_f(db), num_bits_f(da)));
    uint32_t iu = num_bits_f(u1);
    int32_t k = (int32_t)(iu - 0x3f3504f3u) >> 23;
    int32_t ks = k < 126 ? k : 126;
    float dd = d * num_from_f((uint32_t)(127 - ks) << 23);
    float m1 = num_from_f(iu - ((uint32_t)k << 23)) - 1.0f;
    float f = m1 + dd, fl = dd - (f - m1);
    float e = (float)k;
    float s = e * 0x1.62e4p-1f; /* exact */
    float hi = s + f, lo = (f - (hi - s)) + fmaf(-f, fl, fl);
    float tail = fmaf(f * f, num_log_tail_f(f), fmaf(e, 0x1.7f7d1cp-20f, lo));
    uint32_t u = num_bits_f(hi + tail);
    u = num_pick_f(((ix & 0x7fffffffu) > 0x7f800000u) | (ix > 0xbf800000u), 0x7fc00000u, u);
    u = num_pick_f((ix == 0x7f800000u) | ((ix << 1) == 0u), ix, u);
    u = num_pick_f(ix == 0xbf800000u, 0xff800000u, u);
    return num_from_f(u);
}

NUM_FN double num_exp2(double x)
{
    uint64_t ix = num_bits(x), ax = ix & 0x7fffffffffffffffu, top = 0x4091300000000000u; /* 1100 */
    double c = num_from((ix & 0x8000000000000000u) | (ax < top ? ax : top));
    double t = c + 0x1.8p52;
    int64_t n = (int64_t)(num_bits(t) - 0x4338000000000000u);
    double f = c - (t - 0x1.8p52);
    double q = 0x1.c4a29324a1038p-36;
    q = fma(q, f, 0x1.e9ec1fcb69a7fp-32);
    q = fma(q, f, 0x1.e4cf10dec0f59p-28);
    q = fma(q, f, 0x1.b524ebd13a55fp-24);
    q = fma(q, f, 0x1.62c02242b879cp-20);
    q = fma(q, f, 0x1.ffcbfc6da6ed1p-17);
    q = fma(q, f, 0x1.430912f86b7dbp-13);
    q = fma(q, f, 0x1.5d87fe78a3f9cp-10);
    q = fma(q, f, 0x1.3b2ab6fba4e79p-7);
    q = fma(q, f, 0x1.c6b08d704a0c6p-5);
    q = fma(q, f, 0x1.ebfbdff82c58fp-3);
    q = fma(q, f, 0x1.62e42fefa39efp-1);
    double p = fma(q, f, 1.0);
    int64_t a = n >> 1, b = n - a;
    double r = p * num_from((uint64_t)(a + 1023) << 52) * num_from((uint64_t)(b + 1023) << 52);
    return num_from(num_pick(ax > 0x7ff0000000000000u, 0x7ff8000000000000u, num_bits(r)));
}

NUM_FN double num_log(double x)
{
    uint64_t ix = num_bits(x);
    uint64_t iy = num_pick(ix < 0x0010000000000000u, num_bits(x * 0x1p52), ix);
    int64_t k = (int64_t)(iy - 0x3fe6a09e667f3bcdu) >> 52;
    double f = num_from(iy - ((uint64_t)k << 52)) - 1.0;
    double e = (double)(int32_t)(k - (int64_t)num_pick(ix < 0x0010000000000000u, 52u, 0u));
    double q = -0x1.8e8f5f6d78efbp-6;
    q = fma(q, f, 0x1.ceab3eecb74d9p-5);
    q = fma(q, f, -0x1.fc84a09888c57p-5);
    q = fma(q, f, 0x1.bb08e0be73d94p-5);
    q = fma(q, f, -0x1.b635ac30a3dacp-5);
    q = fma(q, f, 0x1.dd3093b701211p-5);
    q = fma(q, f, -0x1.00b0e81fd59f4p-4);
    q = fma(q, f, 0x1.115b4daceee38p-4);
    q = fma(q, f, -0x1.248b2a78bff20p-4);
    q = fma(q, f, 0x1.3b0eda8f5d75cp-4);
    q = fma(q, f, -0x1.55556c388aeddp-4);
    q = fma(q, f, 0x1.745d460eacbc4p-4);
    q = fma(q, f, -0x1.99999a6364b62p-4);
    q = fma(q, f, 0x1.c71c70c1303cbp-4);
    q = fma(q, f, -0x1.fffffff7e955cp-4);
    q = fma(q, f, 0x1.249249261f2ccp-3);
    q = fma(q, f, -0x1.5555555561dddp-3);
    q = fma(q, f, 0x1.999999999772bp-3);
    q = fma(q, f, -0x1.fffffffffff34p-3);
    q = fma(q, f, 0x1.555555555555cp-2);
    q = fma(q, f, -0.5);
    double s = e * 0x1.62e42fefa3p-1; /* exact */
    double hi = s + f, lo = f - (hi - s);
    double tail = fma(f * f, q, fma(e, 0x1.3de6af278ece6p-42, lo));
    uint64_t u = num_bits(hi + tail);
    u = num_pick(ix > 0x7ff0000000000000u, 0x7ff8000000000000u, u);
    u = num_pick(ix == 0x7ff0000000000000u, ix, u);
    u = (ix << 1) == 0u ? 0xfff0000000000000u : u;
    return num_from(u);
}

/* sin(x + turn pi/2). n = rint(x 2/pi) is below 2^23; pi/2 in three parts of 30 bits (products
 * exact) and a fourth of 53; the reduced angle is y + yl. */
NUM_FN double num_circle(double x, uint64_t turn)
{
    uint64_t ix = num_bits(x) & 0x7fffffffffffffffu;
    int far = ix > 0x4168cba800000000u; /* |x| > 13,000,000, and NaN */
    double xs = num_from(num_pick(far, 0u, num_bits(x)));
    double t = fma(xs, 0x1.45f306dc9c883p-1, 0x1.8p52);
    double n = t - 0x1.8p52;
    uint64_t quarter = num_bits(t) + turn;
    double r0 = fma(-n, 0x1.921fb54p+0, xs); /* exact */
    double w = n * 0x1.10b46118p-30;         /* exact */
    double r1 = r0 - w, b1 = r0 - r1;
    double e1 = (r0 - (r1 + b1)) + (b1 - w); /* r1 + e1 = r0 - w */
    double v = n * 0x1.313198ap-61;          /* exact */
    double t1 = e1 - v, b2 = e1 - t1;
    double t2 = (e1 - (t1 + b2)) + (b2 - v); /* t1 + t2 = e1 - v */
    double y = r1 + t1, b3 = y - r1;
    double yl = ((r1 - (y - b3)) + (t1 - b3)) + fma(-n, 0x1.701b839a25205p-92, t2);
    double z = y * y;
    double s = -0x1.ab17a79237a19p-41;
    s = fma(s, z, 0x1.61217ec01749dp-33);
    s = fma(s, z, -0x1.ae64541266378p-26);
    s = fma(s, z, 0x1.71de3a54605eep-19);
    s = fma(s, z, -0x1.a01a01a019936p-13);
    s = fma(s, z, 0x1.1111111111110p-7);
    s = fma(s, z, -0x1.5555555555555p-3);
    s = y + fma(z * y, s, fma(-0.5 * z, yl, yl));
    double c = 0x1.ab783376962cfp-45;
    c = fma(c, z, -0x1.9394b9c9c20a4p-37);
    c = fma(c, z, 0x1.1eed8deb6d561p-29);
    c = fma(c, z, -0x1.27e4fb7712bdfp-22);
    c = fma(c, z, 0x1.a01a01a019d0ap-16);
    c = fma(c, z, -0x1.6c16c16c16c16p-10);
    c = fma(c, z, 0x1.5555555555555p-5);
    double h = 0.5 * z, g = 1.0 - h;
    c = g + (((1.0 - g) - h) + fma(z * z, c, -(y * yl)));
    uint64_t u = num_pick((int)(quarter & 1u), num_bits(c), num_bits(s));
    u ^= (quarter & 2u) << 62;
    return num_from(num_pick(far, 0x7ff8000000000000u, u));
}

NUM_FN double num_sin(double x)
{
    double s = num_circle(x, 0u);
    return num_from(num_pick((num_bits(x) << 1) == 0u, num_bits(x), num_bits(s)));
}

NUM_FN double num_cos(double x) { return num_circle(x, 1u); }

#endif
