/* isa.h - the vectors of one instruction set: VW floats, and the same number of words.
 *
 * Invariant: every function is lane by lane and rounds once, so a kernel written on them has the
 * same bits for every VW. Intrinsics, because the compiler's own vectors reach half the speed in
 * the product kernels (measured: 82 of 166 GFLOP/s a core with AVX-512). */
#ifndef OPS_CPU_ISA_H
#define OPS_CPU_ISA_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define CPU_PASTE2(a, b) a##_##b
#define CPU_PASTE(a, b)  CPU_PASTE2(a, b)
/* The public name of a kernel of this instruction set: k_norm_avx2. */
#define CPU_NAME(f) CPU_PASTE(f, CPU_ISA)

#define CPU_INLINE static inline __attribute__((always_inline, unused))
#if defined(__clang__)
#define CPU_UNROLL _Pragma("clang loop unroll(full)")
#else
#define CPU_UNROLL _Pragma("GCC unroll 32")
#endif

#if defined(CPU_ISA_avx512)
#include <immintrin.h>
#define VW       16
#define TILE_ROW 14 /* rows x 2 vectors of accumulators, 2 of weights, 1 broadcast: 31 of 32 */
typedef __m512 vf;
typedef __m512i vu;
CPU_INLINE vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
CPU_INLINE void vf_store(float *p, vf a) { _mm512_storeu_ps(p, a); }
CPU_INLINE vf vf_all(float a) { return _mm512_set1_ps(a); }
CPU_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
CPU_INLINE vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
CPU_INLINE vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
CPU_INLINE vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
CPU_INLINE vu vu_load(const uint32_t *p) { return _mm512_loadu_si512(p); }
CPU_INLINE vf vu_low(vu a) { return _mm512_castsi512_ps(_mm512_slli_epi32(a, 16)); }
CPU_INLINE vf vu_high(vu a)
{
    return _mm512_castsi512_ps(_mm512_and_si512(a, _mm512_set1_epi32((int)0xffff0000u)));
}

#elif defined(CPU_ISA_avx2)
#include <immintrin.h>
#define VW       8
#define TILE_ROW 6
typedef __m256 vf;
typedef __m256i vu;
CPU_INLINE vf vf_load(const float *p) { return _mm256_loadu_ps(p); }
CPU_INLINE void vf_store(float *p, vf a) { _mm256_storeu_ps(p, a); }
CPU_INLINE vf vf_all(float a) { return _mm256_set1_ps(a); }
CPU_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
CPU_INLINE vf vf_add(vf a, vf b) { return _mm256_add_ps(a, b); }
CPU_INLINE vf vf_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
CPU_INLINE vf vf_max(vf a, vf b) { return _mm256_max_ps(a, b); }
CPU_INLINE vu vu_load(const uint32_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
CPU_INLINE vf vu_low(vu a) { return _mm256_castsi256_ps(_mm256_slli_epi32(a, 16)); }
CPU_INLINE vf vu_high(vu a)
{
    return _mm256_castsi256_ps(_mm256_and_si256(a, _mm256_set1_epi32((int)0xffff0000u)));
}

#elif defined(CPU_ISA_neon)
#include <arm_neon.h>
#define VW       4
#define TILE_ROW 12
typedef float32x4_t vf;
typedef uint32x4_t vu;
CPU_INLINE vf vf_load(const float *p) { return vld1q_f32(p); }
CPU_INLINE void vf_store(float *p, vf a) { vst1q_f32(p, a); }
CPU_INLINE vf vf_all(float a) { return vdupq_n_f32(a); }
CPU_INLINE vf vf_fma(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }
CPU_INLINE vf vf_add(vf a, vf b) { return vaddq_f32(a, b); }
CPU_INLINE vf vf_mul(vf a, vf b) { return vmulq_f32(a, b); }
CPU_INLINE vf vf_max(vf a, vf b) { return vmaxq_f32(a, b); }
CPU_INLINE vu vu_load(const uint32_t *p) { return vld1q_u32(p); }
CPU_INLINE vf vu_low(vu a) { return vreinterpretq_f32_u32(vshlq_n_u32(a, 16)); }
CPU_INLINE vf vu_high(vu a)
{
    return vreinterpretq_f32_u32(vandq_u32(a, vdupq_n_u32(0xffff0000u)));
}

#else /* plain C on the compiler's vectors of four */
#define VW       4
#define TILE_ROW 4
typedef float vf __attribute__((vector_size(16)));
typedef uint32_t vu __attribute__((vector_size(16)));
CPU_INLINE vf vf_load(const float *p)
{
    vf a;
    memcpy(&a, p, sizeof a);
    return a;
}
CPU_INLINE void vf_store(float *p, vf a) { memcpy(p, &a, sizeof a); }
CPU_INLINE vf vf_all(float a) { return (vf){a, a, a, a}; }
CPU_INLINE vf vf_add(vf a, vf b) { return a + b; }
CPU_INLINE vf vf_mul(vf a, vf b) { return a * b; }
CPU_INLINE vf vf_max(vf a, vf b)
{
    vu m = (vu)(a > b);
    return (vf)(((vu)a & m) | ((vu)b & ~m));
}
CPU_INLINE vu vu_load(const uint32_t *p)
{
    vu a;
    memcpy(&a, p, sizeof a);
    return a;
}
CPU_INLINE vf vu_low(vu a) { return (vf)(a << 16); }
CPU_INLINE vf vu_high(vu a) { return (vf)(a & 0xffff0000u); }
#if defined(__FMA__) || defined(__aarch64__)
CPU_INLINE vf vf_fma(vf a, vf b, vf c)
{
    return (vf){__builtin_fmaf(a[0], b[0], c[0]), __builtin_fmaf(a[1], b[1], c[1]),
                __builtin_fmaf(a[2], b[2], c[2]), __builtin_fmaf(a[3], b[3], c[3])};
}
#else
/* No fma instruction: the product is exact in double; the sum is rounded to odd there (the lost
 * part is known exactly), which the second rounding, to float, cannot tell from the exact sum. */
typedef float vf2 __attribute__((vector_size(8)));
typedef double vd2 __attribute__((vector_size(16)));
typedef uint64_t vu2 __attribute__((vector_size(16)));
CPU_INLINE vf2 vf2_fma(vf2 a, vf2 b, vf2 c)
{
    vd2 p = __builtin_convertvector(a, vd2) * __builtin_convertvector(b, vd2);
    vd2 q = __builtin_convertvector(c, vd2);
    vd2 s = p + q, t = s - p;
    vd2 e = (p - (s - t)) + (q - t);
    /* One step of the last bit away from zero where e has the sign of s, else towards zero; only
     * where the last bit is 0 and e is neither 0 nor NaN (e e cannot underflow). */
    vu2 bits = (vu2)s, adjust = 1 - ((bits ^ (vu2)e) >> 63 << 1);
    bits += adjust & ((bits & 1) - 1) & (vu2)(e * e > 0.0);
    return __builtin_convertvector((vd2)bits, vf2);
}
CPU_INLINE vf vf_fma(vf a, vf b, vf c)
{
    vf2 lo = vf2_fma((vf2){a[0], a[1]}, (vf2){b[0], b[1]}, (vf2){c[0], c[1]});
    vf2 hi = vf2_fma((vf2){a[2], a[3]}, (vf2){b[2], b[3]}, (vf2){c[2], c[3]});
    return (vf){lo[0], lo[1], hi[0], hi[1]};
}
#endif
#endif

CPU_INLINE float cpu_fmaf(float a, float b, float c)
{
#if defined(__FMA__) || defined(__aarch64__)
    return __builtin_fmaf(a, b, c);
#else
    return fmaf(a, b, c);
#endif
}

CPU_INLINE vf vf_zero(void) { return vf_all(0.0f); }

/* bf16 to float, and float to bf16 (to nearest, ties to even, NaN stays NaN). */
CPU_INLINE float cpu_wide(uint16_t v)
{
    uint32_t u = (uint32_t)v << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

CPU_INLINE uint16_t cpu_round(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    uint32_t r = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    r = (u & 0x7fffffffu) > 0x7f800000u ? (u >> 16) | 0x40u : r;
    return (uint16_t)r;
}

/* The float of the rounded value. */
CPU_INLINE float cpu_rounded(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    uint32_t r = (u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u;
    r = (u & 0x7fffffffu) > 0x7f800000u ? (u & 0xffff0000u) | 0x400000u : r;
    memcpy(&f, &r, sizeof f);
    return f;
}

#endif
