/* tile.h - the product of a few rows with a strip of weights, all sums in registers.
 *
 * A strip is VW words of a panel line: 2 VW outputs. For each k upward one fma an output, on the
 * accumulators that come in; nothing else touches a sum, so a caller may cut K anywhere.
 * x is [K / CPU_KB][mr][CPU_KB] floats; strip s of the group starts at w[s], stride words apart.
 * Fetched into the cache for each k and strip: the line at fetch[s] + k * ahead bytes; fetch NULL:
 * the strip's own line CPU_AHEAD further on. */
#ifndef OPS_CPU_TILE_H
#define OPS_CPU_TILE_H

#include "ops/cpu/cpu.h"
#include "ops/cpu/isa.h"

#define CPU_STRIPS  (16 / VW) /* of a panel */
#define CPU_MAX_ACC (2 * TILE_ROW)
#define CPU_AHEAD   16 /* panel lines that are fetched ahead */

/* The most strips at once for mr rows: enough independent sums to hide the latency of fma. */
#define CPU_GROUP(mr) ((mr) == 1 ? 4 : (mr) == 2 ? (VW == 8 ? 2 : 4) : (mr) == 3 ? 2 : 1)

CPU_INLINE void tile_bf16(const int mr, const int ns, const float *x, const uint32_t *const *w,
                          int64_t stride, int64_t n, const char *const *fetch, int64_t ahead,
                          vf *acc)
{
    const uint32_t *p[4];
    const char *f[4];
    CPU_UNROLL for (int s = 0; s < ns; s++)
    {
        p[s] = w[s];
        f[s] = fetch ? fetch[s] : NULL;
    }
    for (int64_t k0 = 0; k0 < n; k0 += CPU_KB, x += mr * CPU_KB) {
        int64_t m = n - k0 < CPU_KB ? n - k0 : CPU_KB;
        for (int64_t k = 0; k < m; k++) {
            vf lo[4], hi[4];
            CPU_UNROLL for (int s = 0; s < ns; s++)
            {
                vu v = vu_load(p[s]);
                __builtin_prefetch(fetch ? f[s] : (const char *)(p[s] + stride * CPU_AHEAD));
                p[s] += stride;
                if (fetch) f[s] += ahead;
                lo[s] = vu_low(v);
                hi[s] = vu_high(v);
            }
            CPU_UNROLL for (int r = 0; r < mr; r++)
            {
                vf b = vf_all(x[r * CPU_KB + k]);
                CPU_UNROLL for (int s = 0; s < ns; s++)
                {
                    acc[(r * ns + s) * 2] = vf_fma(b, lo[s], acc[(r * ns + s) * 2]);
                    acc[(r * ns + s) * 2 + 1] = vf_fma(b, hi[s], acc[(r * ns + s) * 2 + 1]);
                }
            }
        }
    }
}

/* The same with one strip of weights that are floats already: [n][2 VW]. */
CPU_INLINE void tile_f32(const int mr, const float *x, const float *w, int64_t n, vf *acc)
{
    for (int64_t k0 = 0; k0 < n; k0 += CPU_KB, x += mr * CPU_KB) {
        int64_t m = n - k0 < CPU_KB ? n - k0 : CPU_KB;
        for (int64_t k = 0; k < m; k++, w += 2 * VW) {
            vf lo = vf_load(w), hi = vf_load(w + VW);
            CPU_UNROLL for (int r = 0; r < mr; r++)
            {
                vf b = vf_all(x[r * CPU_KB + k]);
                acc[r * 2] = vf_fma(b, lo, acc[r * 2]);
                acc[r * 2 + 1] = vf_fma(b, hi, acc[r * 2 + 1]);
            }
        }
    }
}

/* Runs CASE(1) ... CASE(TILE_ROW) by the value of rows. */
#if TILE_ROW == 14
#define CPU_MORE_CASES(CASE) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12) CASE(13) CASE(14)
#elif TILE_ROW == 12
#define CPU_MORE_CASES(CASE) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#else
#define CPU_MORE_CASES(CASE)
#endif
#if TILE_ROW >= 6
#define CPU_CASES(CASE) CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CPU_MORE_CASES(CASE)
#else
#define CPU_CASES(CASE) CASE(1) CASE(2) CASE(3) CASE(4)
#endif

#endif
