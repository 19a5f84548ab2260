/* k_matmul.c - out = x W^T for any number of rows: docs/numerics.md, section 7.
 *
 * A worker owns a contiguous slice of panels. It widens the rows of x into its scratch, a block of
 * rows at a time, and walks its panels once a block; with many rows a panel is widened once, too.
 * Reduction order: one accumulator an output, from +0, K upward. Level: phase.
 * Bound: the larger of the weights' bytes over the read bandwidth and of two vector fma an
 * output pair and row over the fma rate. */
#include "ops/cpu/tile.h"

#define WIDE_ROWS 56 /* from so many rows on a panel is widened once for all of them */

/* Sums of one tile of rows with one panel (or several): [row][panels * 32]. */
typedef struct sums {
    float v[TILE_ROW * CPU_PANEL * 4];
} sums;

/* Rows [0, n) of x to floats in tiles: tile t of mr rows is [K / KB][mr][KB]. */
static void widen_x(const cpu_matmul_job *j, int64_t row, int64_t n, int64_t n_tile, float *out)
{
    int64_t K = j->n_in;
    for (int64_t t = 0; t < n_tile; t++) {
        int64_t b = n * t / n_tile, mr = n * (t + 1) / n_tile - b;
        for (int64_t k0 = 0; k0 < K; k0 += CPU_KB) {
            int64_t m = K - k0 < CPU_KB ? K - k0 : CPU_KB;
            for (int64_t r = 0; r < mr; r++, out += CPU_KB) {
                const uint16_t *x = j->x + (row + b + r) * K + k0;
                for (int64_t k = 0; k < m; k++) out[k] = cpu_wide(x[k]);
            }
        }
    }
}

/* A panel to floats: [strip][n_in][2 VW]. */
static void widen_w(const uint32_t *panel, int64_t n_in, float *out)
{
    for (int s = 0; s < CPU_STRIPS; s++) {
        const uint32_t *p = panel + s * VW;
        for (int64_t k = 0; k < n_in; k++, p += 16, out += 2 * VW) {
            vu v = vu_load(p);
            vf_store(out, vu_low(v));
            vf_store(out + VW, vu_high(v));
        }
    }
}

/* Writes a panel's sums: bias, rounding, the outputs that exist. ld: floats between rows of v. */
static void store(const cpu_matmul_job *j, const float *v, int64_t ld, int64_t panel, int64_t row,
                  int64_t n_row)
{
    int64_t o = panel * CPU_PANEL, n = j->n_out - o < CPU_PANEL ? j->n_out - o : CPU_PANEL;
    for (int64_t r = 0; r < n_row; r++, v += ld) {
        float t[CPU_PANEL];
        for (int i = 0; i < CPU_PANEL; i++) t[i] = v[i];
        if (j->bias)
            for (int i = 0; i < CPU_PANEL; i++) t[i] = v[i] + j->bias[o + i];
        int64_t at = (row + r) * j->n_out + o;
        if (j->f32) {
            memcpy((float *)j->out + at, t, (size_t)n * sizeof *t);
        } else {
            uint16_t b[CPU_PANEL];
            for (int i = 0; i < CPU_PANEL; i++) b[i] = cpu_round(t[i]);
            memcpy((uint16_t *)j->out + at, b, (size_t)n * sizeof *b);
        }
    }
}

CPU_INLINE void put_sums(const int mr, const int ns, const vf *acc, int64_t strip, int64_t ld,
                         float *v)
{
    CPU_UNROLL for (int r = 0; r < mr; r++) CPU_UNROLL for (int s = 0; s < ns; s++)
    {
        int64_t at = (strip + s) / CPU_STRIPS * CPU_PANEL + (strip + s) % CPU_STRIPS * VW;
        vf_store(v + r * ld + at, acc[(r * ns + s) * 2]);
        vf_store(v + r * ld + at + 16, acc[(r * ns + s) * 2 + 1]);
    }
}

/* mr rows with the strips of n_panel panels (n_panel times CPU_STRIPS is a multiple of ns). */
CPU_INLINE void rows_bf16(const int mr, const int ns, const float *x, const uint32_t *panel,
                          int64_t n_in, int64_t n_panel, float *v)
{
    for (int64_t strip = 0; strip < n_panel * CPU_STRIPS; strip += ns) {
        const uint32_t *w[4];
        vf acc[TILE_ROW * 2 > 16 ? TILE_ROW * 2 : 16];
        CPU_UNROLL for (int s = 0; s < ns; s++) w[s] =
            panel + (strip + s) / CPU_STRIPS * n_in * 16 + (strip + s) % CPU_STRIPS * VW;
        CPU_UNROLL for (int i = 0; i < mr * ns * 2; i++) acc[i] = vf_zero();
        tile_bf16(mr, ns, x, w, 16, n_in, NULL, 0, acc);
        put_sums(mr, ns, acc, strip, n_panel * CPU_PANEL, v);
    }
}

static void few_rows(int64_t mr, const float *x, const uint32_t *panel, int64_t n_in,
                     int64_t n_panel, float *v)
{
    bool group = n_panel * CPU_STRIPS >= CPU_GROUP(mr);
    switch (mr) {
#define CASE(n)                                                                                    \
    case n:                                                                                        \
        if (group)                                                                                 \
            rows_bf16(n, CPU_GROUP(n), x, panel, n_in, n_panel, v);                                \
        else                                                                                       \
            rows_bf16(n, 1, x, panel, n_in, n_panel, v);                                           \
        break;
        CPU_CASES(CASE)
#undef CASE
    default: break;
    }
}

CPU_INLINE void rows_f32(const int mr, const float *x, const float *w, int64_t n_in, float *v)
{
    for (int s = 0; s < CPU_STRIPS; s++, w += n_in * 2 * VW) {
        vf acc[2 * TILE_ROW];
        CPU_UNROLL for (int i = 0; i < 2 * mr; i++) acc[i] = vf_zero();
        tile_f32(mr, x, w, n_in, acc);
        put_sums(mr, 1, acc, s, CPU_PANEL, v);
    }
}

static void many_rows(int64_t mr, const float *x, const float *w, int64_t n_in, float *v)
{
    switch (mr) {
#define CASE(n)                                                                                    \
    case n: rows_f32(n, x, w, n_in, v); break;
        CPU_CASES(CASE)
#undef CASE
    default: break;
    }
}

#ifdef CORUN_BREAK
/* The planted fault: K in two parts, with a sum each. */
static void cut_rows(int64_t mr, const float *x, const uint32_t *panel, int64_t n_in, int64_t cut,
                     float *v)
{
    sums second;
    few_rows(mr, x, panel, cut, 1, v);
    few_rows(mr, x + cut * mr, panel + cut * 16, n_in - cut, 1, second.v);
    for (int64_t i = 0; i < mr * CPU_PANEL; i++) v[i] += second.v[i];
}
#endif

/* Sums of mr rows with np panels: from `wide`, the widened panel, if that is not NULL. */
static void tile_sums(const cpu_matmul_job *j, int64_t mr, const float *x, const uint32_t *panel,
                      int64_t np, const float *wide, float *v)
{
#ifdef CORUN_BREAK
    if (j->cut) {
        cut_rows(mr, x, panel, j->n_in, j->cut, v);
        return;
    }
#endif
    if (wide)
        many_rows(mr, x, wide, j->n_in, v);
    else
        few_rows(mr, x, panel, j->n_in, np, v);
}

/* Panels to take at once for n rows, of those that are left. */
static int64_t panels_at_once(const cpu_matmul_job *j, int64_t n, int64_t left)
{
#ifdef CORUN_BREAK
    if (j->cut) return 1;
#endif
    (void)j;
    int64_t p = n <= TILE_ROW ? (CPU_GROUP(n) + CPU_STRIPS - 1) / CPU_STRIPS : 1;
    return left >= p ? p : 1;
}

/* Rows [row, row + n), whose floats are x in n_tile tiles, with panels [p, p_end). */
static void block(const cpu_matmul_job *j, int64_t row, int64_t n, int64_t n_tile, const float *x,
                  float *scratch, int64_t p, int64_t p_end)
{
    int64_t K = j->n_in, kp = (K + CPU_KB - 1) / CPU_KB * CPU_KB;
    float *wide = n >= WIDE_ROWS ? scratch : NULL;
    sums v;
    while (p < p_end) {
        int64_t np = panels_at_once(j, n, p_end - p);
        const uint32_t *panel = j->panel + p * K * 16;
        if (wide) widen_w(panel, K, wide);
        for (int64_t t = 0; t < n_tile; t++) {
            int64_t b = n * t / n_tile, mr = n * (t + 1) / n_tile - b;
            tile_sums(j, mr, x + b * kp, panel, np, wide, v.v);
            for (int64_t q = 0; q < np; q++)
                store(j, v.v + q * CPU_PANEL, np * CPU_PANEL, p + q, row + b, mr);
        }
        p += np;
    }
}

void CPU_NAME(k_matmul)(void *job, int worker, int n_worker);
void CPU_NAME(k_matmul)(void *job, int worker, int n_worker)
{
    const cpu_matmul_job *j = job;
    int64_t p, p_end, n_panel = (j->n_out + CPU_PANEL - 1) / CPU_PANEL;
    pool_slice(n_panel, 1, worker, n_worker, &p, &p_end);
    if (p == p_end) return;
    int64_t kp = (j->n_in + CPU_KB - 1) / CPU_KB * CPU_KB;
    float *wide = j->scratch + worker * j->scratch_floats, *x = wide + kp * CPU_PANEL;
    int64_t most = (int64_t)(CPU_X_BYTES / 4) / kp;
    if (most < 16) most = 16;
    int64_t n_block = (j->n_row + most - 1) / most;
    for (int64_t i = 0; i < n_block; i++) {
        int64_t row = j->n_row * i / n_block, n = j->n_row * (i + 1) / n_block - row;
        int64_t n_tile = (n + TILE_ROW - 1) / TILE_ROW;
        widen_x(j, row, n, n_tile, x);
        block(j, row, n, n_tile, x, wide, p, p_end);
    }
}
