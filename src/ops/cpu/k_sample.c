/* k_sample.c - the draw and the log-probabilities of one row, for one instruction set.
 * Invariant: the bits of ops/sample.h. Reduction orders: integer sums and maxima have none; the
 * log-softmax is summed as defined. What is left out (blocks that cannot win the draw, masses that
 * are 0) is left out only where that is certain.
 *
 * Bound: one pass over the row for its maxima (memory), then arithmetic: 2^x, log, log1p and
 * Philox for the ids that take part. Loops are over 128 ids and vectorise; comparisons go over
 * integer keys that order like the floats, since compilers vectorise those without fast-math. */
#include "ops/sample.h"

#include <float.h>
#include <string.h>

#include "base/num.h"
#include "base/philox.h"

#define NAME_(a, b)    a##b
#define NAME(a, b)     NAME_(a, b)
#define sample_row_isa NAME(sample_row_, CPU_ISA)
void sample_row_isa(const sample_row *in, sample_out *out, void *scratch);

#define B SAMPLE_BLOCK

/* Keys order like the floats they stand for; -0 and +0 share one. */
#define KEY_MASKED ((int32_t)0x807fffff) /* of -inf */

static inline int32_t key_of(float x)
{
    int32_t k = (int32_t)num_bits_f(x + 0.0f);
    return k ^ ((k >> 31) & 0x7fffffff);
}

static inline float key_float(int32_t k)
{
    return num_from_f((uint32_t)(k ^ ((k >> 31) & 0x7fffffff)));
}

/* Work memory: every array has room for the vocabulary in whole blocks (nb for a block each). */
typedef struct work {
    float *x, *d;              /* processed logits; their d, for processed log-probabilities */
    int32_t *id;               /* list: ids that take part, ascending */
    float *lx;                 /* list: their x */
    uint64_t *w;               /* list: their masses */
    uint32_t *u;               /* keys, for selection */
    int32_t *bm_raw, *bm, *pm; /* maxima of blocks (keys), and their running maximum */
    float *s, *fa, *fb;        /* sums of blocks, and the two factors of each fold */
} work;

static work work_of(void *scratch, int32_t n_vocab)
{
    size_t nb = ((size_t)n_vocab + B - 1) / B, v = nb * B;
    char *p = scratch;
    work k;
    k.w = (uint64_t *)(void *)p, p += v * 8;
    k.x = (float *)(void *)p, p += v * 4;
    k.d = (float *)(void *)p, p += v * 4;
    k.id = (int32_t *)(void *)p, p += v * 4;
    k.lx = (float *)(void *)p, p += v * 4;
    k.u = (uint32_t *)(void *)p, p += v * 4;
    k.bm_raw = (int32_t *)(void *)p, p += nb * 4;
    k.bm = (int32_t *)(void *)p, p += nb * 4;
    k.pm = (int32_t *)(void *)p, p += nb * 4;
    k.s = (float *)(void *)p, p += nb * 4;
    k.fa = (float *)(void *)p, p += nb * 4;
    k.fb = (float *)(void *)p;
    return k;
}

/* A row in whole blocks: the last one is a copy filled up with -inf. */
typedef struct view {
    const float *x;
    int32_t n, nb;
    const int32_t *bm; /* [nb] maxima as keys */
    float tail[B];
} view;

static void view_set(view *v, const float *x, int32_t n, const int32_t *bm)
{
    v->x = x;
    v->n = n;
    v->nb = (n + B - 1) / B;
    v->bm = bm;
    int32_t full = n / B * B;
    for (int32_t j = 0; j < B; j++) v->tail[j] = full + j < n ? x[full + j] : -INFINITY;
}

static inline const float *view_block(const view *v, int32_t b)
{
    return (b + 1) * B <= v->n ? v->x + (size_t)b * B : v->tail;
}

static int32_t max_key(const int32_t *k, int32_t n)
{
    int32_t m = INT32_MIN;
    for (int32_t i = 0; i < n; i++) m = k[i] > m ? k[i] : m;
    return m;
}

static int32_t block_max(const float *x)
{
    int32_t m = INT32_MIN;
    for (int32_t j = 0; j < B; j++) {
        int32_t k = key_of(x[j]);
        m = k > m ? k : m;
    }
    return m;
}

static bool all_finite(const float *x, int32_t n)
{
    uint32_t bad = 0;
    for (int32_t i = 0; i < n; i++) bad |= (uint32_t)((num_bits_f(x[i]) << 1) >= 0xff000000u);
    return bad == 0;
}

/* ---- step 1: processors ------------------------------------------------------------------------
 */

static void penalise(const sample_row *in, float *restrict x)
{
    const int32_t *restrict count = in->count;
    const uint8_t *restrict flag = in->flag;
    const float r = in->repetition, f = in->frequency, p = in->presence;
    const int32_t n = in->n_draw;
    for (int32_t i = 0; i < n && r != 1.0f; i++) {
        uint32_t hit = (uint32_t)(count[i] > 0) | (flag[i] & SAMPLE_PROMPT);
        float a = x[i] / r, m = x[i] * r;
        uint32_t y = num_pick_f(key_of(x[i]) > 0, num_bits_f(a), num_bits_f(m));
        x[i] = num_from_f(num_pick_f(hit != 0, y, num_bits_f(x[i])));
    }
    for (int32_t i = 0; i < n && f != 0.0f; i++) x[i] = x[i] - f * (float)count[i];
    for (int32_t i = 0; i < n && p != 0.0f; i++) {
        float y = x[i] - p;
        x[i] = num_from_f(num_pick_f(count[i] > 0, num_bits_f(y), num_bits_f(x[i])));
    }
}

/* x in whole blocks, masked ids and the filling at the end -inf. */
static void process(const sample_row *in, float *restrict x)
{
    const float *restrict bias = in->bias;
    const uint8_t *restrict flag = in->flag;
    int32_t n = in->n_draw, end = (n + B - 1) / B * B;
    memcpy(x, in->logit, (size_t)n * sizeof *x);
    for (int32_t i = 0; i < n && bias; i++) {
        float y = x[i] + bias[i];
        uint32_t used = num_bits_f(bias[i]) << 1;
        x[i] = num_from_f(num_pick_f(used != 0, num_bits_f(y), num_bits_f(x[i])));
    }
    penalise(in, x);
    for (int32_t i = 0; i < n; i++) { /* overflow of the above: the sign stays */
        uint32_t u = num_bits_f(x[i]), over = (uint32_t)((u << 1) == 0xff000000u);
        x[i] = num_from_f(u - over);
    }
    const uint32_t mask = SAMPLE_DENIED | (in->mask_end ? SAMPLE_END : 0);
    for (int32_t i = 0; i < n && flag; i++)
        x[i] = num_from_f(num_pick_f((flag[i] & mask) != 0, 0xff800000u, num_bits_f(x[i])));
    for (int32_t i = 0; i < in->n_banned; i++)
        if (in->banned[i] < n) x[in->banned[i]] = -INFINITY;
    for (int32_t i = n; i < end; i++) x[i] = -INFINITY;
}

static bool unprocessed(const sample_row *in)
{
    return !in->bias && in->repetition == 1.0f && in->frequency == 0.0f && in->presence == 0.0f &&
           !in->flag && in->n_banned == 0;
}

/* ---- step 3: log-softmax and alternatives -------------------------------------------------------
 */

static float block_sum(const float *x, float sub)
{
    float acc[32] = {0};
    for (int32_t r = 0; r < 4; r++)
        for (int32_t j = 0; j < 32; j++) acc[j] += num_exp2f((x[32 * r + j] - sub) * SAMPLE_LOG2E);
    for (int32_t h = 16; h > 0; h /= 2)
        for (int32_t j = 0; j < h; j++) acc[j] += acc[j + h];
    return acc[0];
}

typedef struct soft {
    float m, log_s;
} soft;

static inline float zero_if_masked(int32_t key) { return key == KEY_MASKED ? 0 : key_float(key); }

static soft log_softmax(const view *v, const work *k)
{
    for (int32_t b = 0; b < v->nb; b++) {
        k->s[b] = block_sum(view_block(v, b), zero_if_masked(v->bm[b]));
        k->pm[b] = b && k->pm[b - 1] > v->bm[b] ? k->pm[b - 1] : v->bm[b];
    }
    for (int32_t b = 1; b < v->nb; b++) {
        float sub = zero_if_masked(k->pm[b]);
        k->fa[b] = num_exp2f((key_float(k->pm[b - 1]) - sub) * SAMPLE_LOG2E);
        k->fb[b] = num_exp2f((key_float(v->bm[b]) - sub) * SAMPLE_LOG2E);
    }
    float s = k->s[0];
    for (int32_t b = 1; b < v->nb; b++) s = fmaf(k->s[b], k->fb[b], s * k->fa[b]);
    return (soft){key_float(k->pm[v->nb - 1]), num_logf(s)};
}

static float logprob_of(soft f, float y) { return (y - f.m) - f.log_s; }

/* Radix selection, largest first: 11 + 11 + 10 bits of the key. u is consumed. */
static const int radix_shift[3] = {21, 10, 0};
static const uint32_t radix_mask[3] = {2047, 2047, 1023};

static uint32_t unsigned_key(int32_t key) { return (uint32_t)key ^ 0x80000000u; }

static int32_t keep_bin(uint32_t *u, uint64_t *w, int32_t n, int level, uint32_t bin)
{
    int32_t m = 0;
    for (int32_t i = 0; i < n; i++)
        if (((u[i] >> radix_shift[level]) & radix_mask[level]) == bin) {
            u[m] = u[i];
            if (w) w[m] = w[i];
            m++;
        }
    return m;
}

/* The k-th largest of n unsigned keys, 1 <= k <= n. */
static uint32_t kth_largest(uint32_t *u, int32_t n, int32_t k)
{
    for (int level = 0; level < 3; level++) {
        int32_t hist[2048] = {0}, bin = (int32_t)radix_mask[level];
        for (int32_t i = 0; i < n; i++) hist[(u[i] >> radix_shift[level]) & radix_mask[level]]++;
        while (hist[bin] < k) k -= hist[bin--];
        n = keep_bin(u, NULL, n, level, (uint32_t)bin);
    }
    return u[0];
}

/* The smallest key whose strictly larger keys have a mass below the limit (> 0). */
static uint32_t mass_border(uint32_t *u, uint64_t *w, int32_t n, double limit)
{
    uint64_t above = 0;
    for (int level = 0; level < 3; level++) {
        int32_t hist[2048] = {0}, last = 0;
        uint64_t mass[2048] = {0}, sum = above;
        for (int32_t i = 0; i < n; i++) {
            uint32_t bin = (u[i] >> radix_shift[level]) & radix_mask[level];
            hist[bin]++;
            mass[bin] += w[i];
        }
        for (int32_t bin = (int32_t)radix_mask[level]; bin >= 0; bin--) {
            if (!hist[bin]) continue;
            if (!((double)sum < limit)) break;
            last = bin;
            above = sum;
            sum += mass[bin];
        }
        n = keep_bin(u, w, n, level, (uint32_t)last);
    }
    return u[0];
}

/* A key that at most the k-th largest of the view reaches, from the k-th largest block maximum. */
static int32_t kth_bound(const view *v, const work *k, int32_t n)
{
    if (v->nb < n) return KEY_MASKED;
    for (int32_t b = 0; b < v->nb; b++) k->u[b] = unsigned_key(v->bm[b]);
    return (int32_t)(kth_largest(k->u, v->nb, n) ^ 0x80000000u);
}

/* The n largest y above -inf, ties to the lower id. */
static void alternatives(const view *v, const work *k, soft f, int32_t n, sample_out *out)
{
    int32_t m = 0, bound = n > 0 ? kth_bound(v, k, n) : 0;
    for (int32_t b = 0; b < v->nb && n > 0; b++) {
        if (v->bm[b] < bound || v->bm[b] == KEY_MASKED) continue;
        const float *x = view_block(v, b);
        for (int32_t j = 0; j < B; j++) {
            int32_t key = key_of(x[j]);
            if (key < bound || key == KEY_MASKED) continue;
            if (m == n && !(x[j] > out->top_logprob[m - 1])) continue;
            int32_t at = m < n ? m++ : m - 1;
            for (; at > 0 && x[j] > out->top_logprob[at - 1]; at--) {
                out->top_logprob[at] = out->top_logprob[at - 1];
                out->top_id[at] = out->top_id[at - 1];
            }
            out->top_logprob[at] = x[j];
            out->top_id[at] = b * B + j;
        }
    }
    for (int32_t i = 0; i < m; i++) out->top_logprob[i] = logprob_of(f, out->top_logprob[i]);
    out->n_top = m;
}

/* ---- step 2: filters
 * ------------------------------------------------------------------------------ */

static inline float distance(float x, float max, float t) { return (x - max) / t; }

static inline uint64_t mass_of(float d)
{
    double y = (double)num_exp2f(d * SAMPLE_LOG2E);
    return num_bits(y * 0x1p40 + 0x1.8p52) - 0x4338000000000000u; /* rint, below 2^51 */
}

static void block_masses(const float *x, float max, float t, float *d, uint64_t *w)
{
    for (int32_t j = 0; j < B; j++) {
        d[j] = distance(x[j], max, t);
        w[j] = mass_of(d[j]);
    }
}

/* List of the ids with key >= bound, masked ones never. */
static int32_t list_above(const view *v, const work *k, int32_t bound)
{
    int32_t n = 0;
    if (bound == KEY_MASKED) bound++;
    for (int32_t b = 0; b < v->nb; b++) {
        if (v->bm[b] < bound) continue;
        const float *x = view_block(v, b);
        for (int32_t j = 0; j < B; j++) {
            k->id[n] = b * B + j;
            k->lx[n] = x[j];
            n += key_of(x[j]) >= bound;
        }
    }
    return n;
}

static int32_t list_top_k(const view *v, const work *k, int32_t top_k)
{
    int32_t n = list_above(v, k, kth_bound(v, k, top_k));
    if (n <= top_k) return n;
    for (int32_t i = 0; i < n; i++) k->u[i] = unsigned_key(key_of(k->lx[i]));
    return list_above(v, k, (int32_t)(kth_largest(k->u, n, top_k) ^ 0x80000000u));
}

/* List of the ids with w >= least (at least 1). A block whose maximum lies below -28.5 has no mass:
 * 2^40 exp(-28.5) rounds to 0. */
static int32_t list_min_p(const view *v, const work *k, float max, float t, uint64_t least)
{
    int32_t n = 0;
    float d[B];
    uint64_t w[B];
    for (int32_t b = 0; b < v->nb; b++) {
        if (distance(key_float(v->bm[b]), max, t) < -28.5f) continue;
        const float *x = view_block(v, b);
        block_masses(x, max, t, d, w);
        for (int32_t j = 0; j < B; j++) {
            k->id[n] = b * B + j;
            k->lx[n] = x[j];
            n += w[j] >= least;
        }
    }
    return n;
}

/* Top-p over the whole row: *z is the mass of all ids, the list a set {d >= -c} whose mass reaches
 * p z, which so holds all that top-p keeps. */
static int32_t list_top_p(const view *v, const work *k, float max, float t, float p, uint64_t *z)
{
    enum { N_CUT = 5 };
    static const float cut[N_CUT] = {1, 3, 7, 15, 28.5f};
    uint64_t sum[N_CUT] = {0}, w[B];
    float d[B];
    *z = 0;
    for (int32_t b = 0; b < v->nb; b++) {
        if (distance(key_float(v->bm[b]), max, t) < -28.5f) continue;
        block_masses(view_block(v, b), max, t, d, w);
        uint64_t all = 0;
        for (int32_t j = 0; j < B; j++) all += w[j];
        *z += all;
        for (int32_t c = 0; c < N_CUT; c++) {
            uint64_t part = 0;
            uint32_t lim = num_bits_f(cut[c]);
            for (int32_t j = 0; j < B; j++)
                part += num_pick((num_bits_f(d[j]) & 0x7fffffffu) <= lim, w[j], 0);
            sum[c] += part;
        }
    }
    int32_t c = 0, n = 0; /* the last cut holds all mass, and p z rounds below it */
    while (c < N_CUT - 1 && (double)sum[c] < (double)p * (double)*z) c++;
    for (int32_t b = 0; b < v->nb; b++) {
        if (distance(key_float(v->bm[b]), max, t) < -cut[c]) continue;
        const float *x = view_block(v, b);
        for (int32_t j = 0; j < B; j++) d[j] = distance(x[j], max, t);
        for (int32_t j = 0; j < B; j++) {
            k->id[n] = b * B + j;
            k->lx[n] = x[j];
            n += d[j] >= -cut[c];
        }
    }
    return n;
}

static void list_masses(const work *k, int32_t n, float max, float t)
{
    for (int32_t i = 0; i < n; i++) k->w[i] = mass_of(distance(k->lx[i], max, t));
}

/* The kept ids as a list; -1: every id that is not masked is kept. */
static int32_t filter(const sample_row *in, const view *v, const work *k, float max)
{
    bool top_k = in->top_k > 0 && in->top_k<in->n_vocab, min_p = in->min_p> 0.0f;
    bool top_p = in->top_p < 1.0f;
    double floor_p = (double)in->min_p * 0x1p40;
    uint64_t least = min_p ? (uint64_t)floor_p : 0, z = 0;
    if (min_p && (double)least < floor_p) least++;
    int32_t n;
    if (top_k)
        n = list_top_k(v, k, in->top_k);
    else if (min_p)
        n = list_min_p(v, k, max, in->temperature, least);
    else if (top_p)
        n = list_top_p(v, k, max, in->temperature, in->top_p, &z);
    else
        return -1;
    if (!min_p && !top_p) return n;
    list_masses(k, n, max, in->temperature);
    if (top_k && min_p) {
        int32_t m = 0;
        for (int32_t i = 0; i < n; i++)
            if (k->w[i] >= least) {
                k->id[m] = k->id[i];
                k->lx[m] = k->lx[i];
                k->w[m++] = k->w[i];
            }
        n = m;
    }
    if (!top_p) return n;
    if (top_k || min_p)
        for (int32_t i = 0; i < n; i++) z += k->w[i];
    for (int32_t i = 0; i < n; i++) k->u[i] = unsigned_key(key_of(k->lx[i]));
    uint32_t border = mass_border(k->u, k->w, n, (double)in->top_p * (double)z);
    int32_t m = 0;
    for (int32_t i = 0; i < n; i++)
        if (unsigned_key(key_of(k->lx[i])) >= border) {
            k->id[m] = k->id[i];
            k->lx[m++] = k->lx[i];
        }
    return m;
}

/* ---- step 2: the draw
 * --------------------------------------------------------------------------------- */

typedef struct best {
    int32_t key, id; /* INT32_MIN: none yet */
} best;

static void take(best *a, const int32_t *key, const int32_t *id, int32_t first, int32_t n)
{
    int32_t m = max_key(key, n), j = 0;
    if (m < a->key || m == INT32_MIN) return;
    while (key[j] != m) j++;
    int32_t at = id ? id[j] : first + j;
    if (m > a->key || at < a->id) *a = (best){m, at};
}

/* Keys of the scores; a masked id never takes part. */
static void scores(const float *x, const uint32_t *u, int32_t n, float max, float t, int32_t *key)
{
    for (int32_t j = 0; j < n; j++) {
        float v = (float)u[j] * 0x1p-32f + 0x1p-33f;
        float e = -num_log1pf(-v);
        int32_t s = key_of(distance(x[j], max, t) - num_logf(e));
        key[j] = (int32_t)num_pick_f(num_bits_f(x[j]) == 0xff800000u, 0x80000000u, (uint32_t)s);
    }
}

static void noise_block(const sample_row *in, int32_t b, uint32_t *u)
{
    uint32_t k0 = (uint32_t)in->seed, k1 = (uint32_t)(in->seed >> 32), w[4][B / 4];
    for (int32_t j = 0; j < B / 4; j++) {
        uint32_t c[4] = {(uint32_t)(b * (B / 4) + j), (uint32_t)in->pos, PHILOX_PURPOSE_DRAW, 0};
        philox4x32(c, k0, k1);
        w[0][j] = c[0], w[1][j] = c[1], w[2][j] = c[2], w[3][j] = c[3];
    }
    for (int32_t j = 0; j < B / 4; j++)
        for (int32_t q = 0; q < 4; q++) u[4 * j + q] = w[q][j];
}

static void draw_block(const sample_row *in, const view *v, int32_t b, float max, best *a)
{
    uint32_t u[B];
    int32_t key[B];
    noise_block(in, b, u);
    scores(view_block(v, b), u, B, max, in->temperature, key);
    take(a, key, NULL, b * B, B);
}

/* The block of the maximum first: its score mostly rules the others out. No -log(e) exceeds 22.9
 * (v is at least 2^-33), and rounding is monotone, so the test is exact. */
static int32_t draw_all(const sample_row *in, const view *v, int32_t max_key_, float max)
{
    best a = {INT32_MIN, 0};
    int32_t first = 0;
    while (v->bm[first] != max_key_) first++;
    draw_block(in, v, first, max, &a);
    for (int32_t b = 0; b < v->nb; b++) {
        if (b == first || v->bm[b] == KEY_MASKED) continue;
        float bound = distance(key_float(v->bm[b]), max, in->temperature) + 22.9f;
        if (key_of(bound) >= a.key) draw_block(in, v, b, max, &a);
    }
    return a.id;
}

static int32_t draw_list(const sample_row *in, const work *k, int32_t n, float max)
{
    enum { N = 64 };
    uint32_t k0 = (uint32_t)in->seed, k1 = (uint32_t)(in->seed >> 32), u[N];
    best a = {INT32_MIN, 0};
    for (int32_t i = 0; i < n; i += N) {
        int32_t m = n - i < N ? n - i : N, key[N], id[N] = {0};
        float x[N];
        for (int32_t j = 0; j < N; j++) x[j] = -INFINITY;
        memcpy(id, k->id + i, (size_t)m * sizeof *id);
        memcpy(x, k->lx + i, (size_t)m * sizeof *x);
        for (int32_t j = 0; j < N; j++) {
            uint32_t q = (uint32_t)id[j] & 3u;
            uint32_t c[4] = {(uint32_t)id[j] >> 2, (uint32_t)in->pos, PHILOX_PURPOSE_DRAW, 0};
            philox4x32(c, k0, k1);
            u[j] =
                num_pick_f(q < 2, num_pick_f(q == 0, c[0], c[1]), num_pick_f(q == 2, c[2], c[3]));
        }
        scores(x, u, N, max, in->temperature, key);
        take(&a, key, id, 0, N);
    }
    return a.id;
}

static int32_t argmax(const view *v, int32_t max)
{
    int32_t b = 0, j = 0;
    while (v->bm[b] != max) b++;
    const float *x = view_block(v, b);
    while (key_of(x[j]) != max) j++;
    return b * B + j;
}

/* ---- the row
 * --------------------------------------------------------------------------------------------- */

static void report(const sample_row *in, const view *y, const work *k, int32_t token,
                   sample_out *out)
{
    soft f = log_softmax(y, k);
    out->logprob = logprob_of(f, view_block(y, token / B)[token % B]);
    alternatives(y, k, f, in->n_top, out);
}

static void report_processed(const sample_row *in, const view *x, const work *k, bool greedy,
                             float max, sample_out *out)
{
    if (greedy) {
        report(in, x, k, out->token, out);
        return;
    }
    for (int32_t b = 0; b < x->nb; b++) {
        const float *p = view_block(x, b);
        for (int32_t j = 0; j < B; j++) k->d[b * B + j] = distance(p[j], max, in->temperature);
        k->bm_raw[b] = block_max(k->d + (size_t)b * B);
    }
    view d;
    view_set(&d, k->d, x->nb * B, k->bm_raw);
    report(in, &d, k, out->token, out);
}

void sample_row_isa(const sample_row *in, sample_out *out, void *scratch)
{
    work k = work_of(scratch, in->n_vocab);
    view raw, x;
    *out = (sample_out){SAMPLE_OK, -1, 0, 0, out->top_id, out->top_logprob};
    if (!all_finite(in->logit, in->n_vocab)) {
        out->why = SAMPLE_NONFINITE;
        return;
    }
    view_set(&raw, in->logit, in->n_vocab, k.bm_raw);
    for (int32_t b = 0; b < raw.nb; b++) k.bm_raw[b] = block_max(view_block(&raw, b));
    if (in->target >= 0) {
        out->token = in->target;
        report(in, &raw, &k, in->target, out);
        return;
    }
    if (unprocessed(in)) {
        view_set(&x, in->logit, in->n_draw, k.bm);
        for (int32_t b = 0; b < x.nb; b++)
            k.bm[b] = b + 1 < x.nb ? k.bm_raw[b] : block_max(view_block(&x, b));
    } else {
        process(in, k.x);
        view_set(&x, k.x, (in->n_draw + B - 1) / B * B, k.bm);
        for (int32_t b = 0; b < x.nb; b++) k.bm[b] = block_max(k.x + (size_t)b * B);
    }
    int32_t top = max_key(k.bm, x.nb);
    if (top == KEY_MASKED) {
        out->why = SAMPLE_ALL_MASKED;
        return;
    }
    float max = key_float(top);
    bool greedy = in->temperature < SAMPLE_GREEDY_T;
    if (greedy || in->top_p == 0.0f) {
        out->token = argmax(&x, top);
    } else {
        int32_t n = filter(in, &x, &k, max);
        out->token = n < 0 ? draw_all(in, &x, top, max) : draw_list(in, &k, n, max);
    }
    if (in->n_top < 0) return;
    if (in->processed)
        report_processed(in, &x, &k, greedy, max, out);
    else
        report(in, &raw, &k, out->token, out);
}
