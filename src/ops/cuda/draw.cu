/* draw.cu - one row of logits to its draw and its log-probabilities, in five kernels:
 *   k_begin   a block an item: clears its work, marks the ids that would complete a bad word
 *   k_max     a warp blocks of 128 ids: are the raw logits finite, the largest processed one, and
 *             the block sums of the log-softmax of raw logits
 *   k_filter  a block an item: the borders of top-k, min-p and top-p, by radix selection
 *   k_draw    a warp blocks of 128 ids: noise and scores, the block sums of processed logits
 *   k_end     a block an item: the token, the fold of the blocks, alternatives, the slot's state
 * The arithmetic and its order stand in ops/sample.h. Sums of masses are integers, maxima have no
 * order, a block sum is one warp's tree, the fold is one thread's loop. Level: phase.
 * Bound: twice the bytes of the logits, and the arithmetic of the noise. */
#include <cuda_runtime.h>
#include <float.h>

#include "base/num.h"
#include "base/philox.h"
#include "ops/cuda/draw.h"

#define BLOCK      SAMPLE_BLOCK
#define WARPS      8
#define KEY_MASKED ((int32_t)0x807fffff) /* of -inf */
#define KEY_NONE   INT32_MIN
#define FULL       0xffffffffu

/* Keys order like the floats they stand for; -0 and +0 share one. */
static __device__ __forceinline__ int32_t key_of(float x)
{
    const int32_t k = (int32_t)num_bits_f(x + 0.0f);
    return k ^ ((k >> 31) & 0x7fffffff);
}

static __device__ __forceinline__ float key_float(int32_t k)
{
    return num_from_f((uint32_t)(k ^ ((k >> 31) & 0x7fffffff)));
}

static __device__ __forceinline__ uint32_t unsigned_key(int32_t k)
{
    return (uint32_t)k ^ 0x80000000u;
}

/* Larger keys win, then lower ids. */
static __device__ __forceinline__ uint64_t packed(int32_t key, int32_t id)
{
    return (uint64_t)unsigned_key(key) << 32 | (uint32_t)~id;
}

static __device__ __forceinline__ int32_t packed_key(uint64_t p)
{
    return (int32_t)((uint32_t)(p >> 32) ^ 0x80000000u);
}

static __device__ __forceinline__ int32_t packed_id(uint64_t p) { return (int32_t) ~(uint32_t)p; }

static __device__ __forceinline__ uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* What a thread knows of its item. */
typedef struct view {
    const float *logit;
    const uint8_t *flag;
    const int32_t *count;
    const float *bias;
    draw_slot s;
    int32_t n_vocab, n_draw, pos;
    bool scored, greedy;
    bool plain;    /* no noise: the leading processed logit is drawn */
    bool changed;  /* anything but a clamp stands between a raw logit and a processed one */
    uint32_t mask; /* of the flags */
} view;

static __device__ view view_of(const draw_args &a, const draw_item &it)
{
    view v = {};
    v.logit = a.logits + it.row * a.stride;
    v.n_vocab = v.n_draw = a.n_vocab;
    v.pos = it.pos;
    v.scored = it.slot < 0;
    if (v.scored) return v;
    const int64_t at = (int64_t)it.slot * a.n_block * BLOCK;
    v.s = a.slot[it.slot];
    if (v.s.n_draw < v.n_draw) v.n_draw = v.s.n_draw;
    v.greedy = v.s.temperature < SAMPLE_GREEDY_T;
    v.plain = v.greedy || v.s.top_p == 0.0f;
    if (v.s.use_flag) v.flag = a.flag + at;
    if (v.s.use_count) v.count = a.count + at;
    if (v.s.use_bias) v.bias = a.bias + at;
    v.changed = v.s.use_flag || v.s.use_count || v.s.use_bias || v.s.repetition != 1.0f ||
                v.s.frequency != 0.0f || v.s.presence != 0.0f;
    v.mask = SAMPLE_DENIED | DRAW_BANNED | (v.s.n_output < v.s.min_tokens ? SAMPLE_END : 0);
    return v;
}

static __device__ __forceinline__ float finite(float x)
{
    return x > FLT_MAX ? FLT_MAX : x < -FLT_MAX ? -FLT_MAX : x;
}

/* Step 1 of the definition. */
static __device__ float processed(const view &v, int32_t i)
{
    if (i >= v.n_draw) return -INFINITY;
    const float raw = v.logit[i];
    if (v.scored) return raw;
    if (!v.changed) return finite(raw);
    const uint32_t flag = v.flag ? v.flag[i] : 0;
    if (flag & v.mask) return -INFINITY;
    const int32_t count = v.count ? v.count[i] : 0;
    float x = raw;
    if (v.bias && v.bias[i] != 0.0f) x = x + v.bias[i];
    if (v.s.repetition != 1.0f && (count > 0 || (flag & SAMPLE_PROMPT)))
        x = x > 0.0f ? x / v.s.repetition : x * v.s.repetition;
    if (v.s.frequency != 0.0f) {
        const float f = v.s.frequency * (float)count;
        x = x - f;
    }
    if (v.s.presence != 0.0f && count > 0) x = x - v.s.presence;
    return finite(x);
}

static __device__ __forceinline__ float distance(float x, float max, float t)
{
    return t == 1.0f ? x - max : (x - max) / t;
}

static __device__ __forceinline__ uint64_t mass_of(float d)
{
    const double y = (double)num_exp2f(d * SAMPLE_LOG2E);
    return num_bits(y * 0x1p40 + 0x1.8p52) - 0x4338000000000000u; /* rint, below 2^51 */
}

/* What log-probabilities are of: raw logits, x, or d. max: the largest x. */
static __device__ float reported(const draw_args &a, const view &v, float max, int32_t i)
{
    if (i >= v.n_vocab) return -INFINITY;
    if (v.scored || !a.processed) return v.logit[i];
    const float x = processed(v, i);
    return v.greedy ? x : distance(x, max, v.s.temperature);
}

static __device__ bool lost(const draw_work &w) { return w.bad || w.max_key == KEY_MASKED; }

/* ---- k_begin ------------------------------------------------------------------------------- */

static __device__ void mark_banned(const draw_args &a, int32_t slot)
{
    draw_slot *s = &a.slot[slot];
    uint8_t *flag = a.flag + (int64_t)slot * a.n_block * BLOCK;
    int32_t *banned = a.banned + (int64_t)slot * OPS_MAX_BAD;
    const int32_t *id = a.bad_id + (int64_t)slot * OPS_MAX_BAD_SLOT;
    const int32_t *off = a.bad_off + (int64_t)slot * (OPS_MAX_BAD + 1);
    const int32_t *recent = a.recent + (int64_t)slot * OPS_MAX_BAD_LEN;
    for (int32_t i = threadIdx.x; i < s->n_banned; i += blockDim.x)
        flag[banned[i]] &= (uint8_t)~DRAW_BANNED;
    __syncthreads();
    if (threadIdx.x == 0) s->n_banned = 0;
    __syncthreads();
    for (int32_t i = threadIdx.x; i < s->n_bad; i += blockDim.x) {
        const int32_t *word = id + off[i];
        const int32_t before = off[i + 1] - off[i] - 1;
        int32_t j = 0;
        if (before > s->n_output) continue;
        while (j < before && recent[(s->n_output - before + j) % OPS_MAX_BAD_LEN] == word[j]) j++;
        if (j < before) continue;
        banned[atomicAdd(&s->n_banned, 1)] = word[before];
        flag[word[before]] |= DRAW_BANNED; /* two words with one end store one value */
    }
}

static __global__ void __launch_bounds__(128) k_begin(const draw_args a)
{
    const int32_t i = blockIdx.x;
    const draw_item it = a.from[i];
    if (threadIdx.x == 0) {
        a.item[i] = it;
        a.work[i] = draw_work{0, 0, KEY_MASKED, 0, 0};
    }
    if (it.row >= 0 && it.slot >= 0 && a.slot[it.slot].n_bad > 0) mark_banned(a, it.slot);
}

/* Whether log-probabilities are of raw logits, so that they hang on no maximum of the row. */
static __device__ __forceinline__ bool raw_reported(const draw_args &a, const view &v)
{
    return v.scored || !a.processed;
}

static __device__ __forceinline__ bool wants_sums(const view &v)
{
    return v.scored || v.s.n_top >= 0;
}

/* Sum of exponentials and largest value of block b of item i, as the definition orders them. */
static __device__ void sum_block(const draw_args &a, const view &v, float max, int32_t i, int32_t b)
{
    const int32_t lane = threadIdx.x % 32;
    float y[4];
    int32_t key = KEY_NONE;
#pragma unroll
    for (int r = 0; r < 4; r++) {
        y[r] = reported(a, v, max, b * BLOCK + 32 * r + lane);
        key = ::max(key, key_of(y[r]));
    }
    const int32_t m = __reduce_max_sync(FULL, key);
    const float sub = m == KEY_MASKED ? 0.0f : key_float(m);
    float s = 0.0f;
    int32_t id = INT32_MAX;
#pragma unroll
    for (int r = 0; r < 4; r++) {
        s = s + num_exp2f((y[r] - sub) * SAMPLE_LOG2E);
        if (key_of(y[r]) == m) id = min(id, b * BLOCK + 32 * r + lane);
    }
    for (int h = 16; h > 0; h /= 2) s = s + __shfl_down_sync(FULL, s, h);
    id = __reduce_min_sync(FULL, id);
    if (lane) return;
    a.block_s[(int64_t)i * a.n_block + b] = s;
    a.block_y[(int64_t)i * a.n_block + b] = packed(m, id);
}

/* ---- k_max --------------------------------------------------------------------------------- */

static __global__ void __launch_bounds__(32 * WARPS) k_max(const draw_args a)
{
    const int32_t i = blockIdx.x, lane = threadIdx.x % 32;
    const draw_item it = a.item[i];
    if (it.row < 0) return;
    const view v = view_of(a, it);
    const bool sums = wants_sums(v) && raw_reported(a, v);
    int32_t most = KEY_MASKED;
    uint32_t bad = 0;
    for (int32_t b = blockIdx.y * WARPS + threadIdx.x / 32; b < a.n_block; b += gridDim.y * WARPS) {
        int32_t key = KEY_MASKED;
#pragma unroll
        for (int r = 0; r < 4; r++) {
            const int32_t id = b * BLOCK + 32 * r + lane;
            if (id >= v.n_vocab) continue;
            bad |= (uint32_t)((num_bits_f(v.logit[id]) << 1) >= 0xff000000u);
            key = max(key, key_of(processed(v, id)));
        }
        if (sums) sum_block(a, v, 0.0f, i, b);
        key = __reduce_max_sync(FULL, key);
        if (lane == 0) a.block_x[(int64_t)i * a.n_block + b] = key;
        most = max(most, key);
    }
    bad = __reduce_or_sync(FULL, bad);
    if (lane) return;
    atomicMax(&a.work[i].max_key, most);
    if (bad) a.work[i].bad = 1;
}

/* ---- k_filter ------------------------------------------------------------------------------ */

#define FILTER_THREADS 1024
#define BINS           2048

typedef struct filter_mem {
    uint64_t mass[BINS];
    uint32_t hist[BINS];
    uint64_t sum;
    uint32_t prefix; /* chosen bits of the key so far */
    uint32_t left;   /* top-k: rank within the chosen prefix */
} filter_mem;

static __device__ __forceinline__ int radix_shift(int level)
{
    return level == 0 ? 21 : level == 1 ? 10 : 0;
}

static __device__ __forceinline__ uint32_t radix_bin(uint32_t key, int level)
{
    return (key >> radix_shift(level)) & (level < 2 ? 2047u : 1023u);
}

/* Whether the bits above those of the level are those of the prefix. */
static __device__ __forceinline__ bool in_prefix(uint32_t key, uint32_t prefix, int level)
{
    return level == 0 || (key ^ prefix) >> (radix_shift(level) + 11 - (level == 2)) == 0;
}

static __device__ void clear_bins(filter_mem *m)
{
    for (int b = threadIdx.x; b < BINS; b += FILTER_THREADS) {
        m->hist[b] = 0;
        m->mass[b] = 0;
    }
    __syncthreads();
}

/* By warp 0: the bin that holds the left-th largest key. */
static __device__ void choose_rank(filter_mem *m, int level)
{
    const int lane = threadIdx.x;
    uint32_t left = m->left;
    for (int top = BINS - 1; top >= 0; top -= 32) {
        const uint32_t n = m->hist[top - lane];
        uint32_t upto = n; /* keys in this bin and those above it in the group */
        for (int h = 1; h < 32; h *= 2) {
            const uint32_t o = __shfl_up_sync(FULL, upto, h);
            if (lane >= h) upto += o;
        }
        const uint32_t hit = __ballot_sync(FULL, upto >= left);
        if (hit) {
            const int win = __ffs((int)hit) - 1;
            __syncwarp(); /* all lanes have read m->left */
            if (lane == win) {
                m->left = left - (upto - n);
                m->prefix |= (uint32_t)(top - lane) << radix_shift(level);
            }
            return;
        }
        left -= __shfl_sync(FULL, upto, 31);
    }
}

/* By warp 0: the lowest bin whose strictly larger keys have a mass below the limit. m->sum: the
 * mass above the prefix, then above that bin. */
static __device__ void choose_mass(filter_mem *m, int level, double limit)
{
    const int lane = threadIdx.x;
    uint64_t above = m->sum, best_above = 0;
    int best = -1;
    for (int top = BINS - 1; top >= 0; top -= 32) {
        const uint64_t w = m->mass[top - lane];
        uint64_t upto = w;
        for (int h = 1; h < 32; h *= 2) {
            const uint64_t o = __shfl_up_sync(FULL, upto, h);
            if (lane >= h) upto += o;
        }
        const uint64_t before = above + (upto - w);
        const bool used = m->hist[top - lane] > 0, fits = (double)before < limit;
        const uint32_t yes = __ballot_sync(FULL, used && fits);
        const uint32_t no = __ballot_sync(FULL, used && !fits);
        if (yes) {
            const int win = 31 - __clz((int)yes);
            best = top - win;
            best_above = __shfl_sync(FULL, before, win);
        }
        if (no) break;
        above += __shfl_sync(FULL, upto, 31);
    }
    __syncwarp(); /* all lanes have read m->sum */
    if (lane == 0) {
        m->sum = best_above;
        m->prefix |= (uint32_t)best << radix_shift(level);
    }
}

/* The unsigned key of the k-th largest of all ids, masked ones the smallest. */
static __device__ uint32_t kth_key(const view &v, filter_mem *m, int32_t k)
{
    if (threadIdx.x == 0) {
        m->prefix = 0;
        m->left = (uint32_t)k;
    }
    for (int level = 0; level < 3; level++) {
        clear_bins(m);
        const uint32_t prefix = m->prefix;
        for (int32_t i = threadIdx.x; i < v.n_vocab; i += FILTER_THREADS) {
            const uint32_t key = unsigned_key(key_of(processed(v, i)));
            if (in_prefix(key, prefix, level)) atomicAdd(&m->hist[radix_bin(key, level)], 1u);
        }
        __syncthreads();
        if (threadIdx.x < 32) choose_rank(m, level);
        __syncthreads();
    }
    return m->prefix;
}

/* The key of id i where top-k (kth) and min-p (least) keep it, and its mass. */
static __device__ bool passes(const view &v, int32_t i, uint32_t kth, uint64_t least, float max,
                              uint32_t *key, uint64_t *w)
{
    const float x = processed(v, i);
    *key = unsigned_key(key_of(x));
    if (*key <= unsigned_key(KEY_MASKED) || *key < kth) return false;
    *w = mass_of(distance(x, max, v.s.temperature));
    return *w >= least;
}

/* The smallest key that top-p keeps among those that pass. */
static __device__ uint32_t top_p_key(const view &v, filter_mem *m, uint32_t kth, uint64_t least,
                                     float max)
{
    uint32_t key;
    uint64_t w, part = 0;
    if (threadIdx.x == 0) m->sum = 0;
    __syncthreads();
    for (int32_t i = threadIdx.x; i < v.n_vocab; i += FILTER_THREADS)
        if (passes(v, i, kth, least, max, &key, &w)) part += w;
    atomicAdd((unsigned long long *)&m->sum, (unsigned long long)part);
    __syncthreads();
    const double limit = (double)v.s.top_p * (double)m->sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        m->sum = 0;
        m->prefix = 0;
    }
    for (int level = 0; level < 3; level++) {
        clear_bins(m);
        const uint32_t prefix = m->prefix;
        for (int32_t i = threadIdx.x; i < v.n_vocab; i += FILTER_THREADS) {
            if (!passes(v, i, kth, least, max, &key, &w) || !in_prefix(key, prefix, level))
                continue;
            atomicAdd(&m->hist[radix_bin(key, level)], 1u);
            atomicAdd((unsigned long long *)&m->mass[radix_bin(key, level)], (unsigned long long)w);
        }
        __syncthreads();
        if (threadIdx.x < 32) choose_mass(m, level, limit);
        __syncthreads();
    }
    return m->prefix;
}

static __global__ void __launch_bounds__(FILTER_THREADS) k_filter(const draw_args a)
{
    __shared__ filter_mem m;
    const int32_t i = blockIdx.x;
    const draw_item it = a.item[i];
    if (it.row < 0 || it.slot < 0 || lost(a.work[i])) return;
    const view v = view_of(a, it);
    if (v.plain) return;
    const float max = key_float(a.work[i].max_key);
    const double floor_p = (double)v.s.min_p * 0x1p40;
    uint64_t least = (uint64_t)floor_p;
    if ((double)least < floor_p) least++;
    uint32_t border = 0;
    if (v.s.top_k > 0 && v.s.top_k < v.n_vocab) border = kth_key(v, &m, v.s.top_k);
    if (v.s.top_p < 1.0f) {
        const uint32_t key = top_p_key(v, &m, border, least, max);
        border = key > border ? key : border;
    }
    if (threadIdx.x == 0) {
        a.work[i].least = least;
        a.work[i].border = border;
    }
}

/* ---- k_draw -------------------------------------------------------------------------------- */

/* Whether d - log(-log1p(-n)) is surely below a score that is reached already: -log1p(-n) is at
 * least n, and the margin is a thousand times the errors of the two sides. It spares most ids their
 * logarithms and moves no bit. */
static __device__ __forceinline__ bool out_of_reach(float d, float n, float reached)
{
    float l;
    asm("lg2.approx.f32 %0,%1;" : "=f"(l) : "f"(n));
    return d - 0.6931472f * l + 0.01f - 1e-4f * d < reached;
}

static __device__ __forceinline__ float noise(uint32_t word)
{
    const float n = (float)word * 0x1p-32f;
    return n + 0x1p-33f;
}

/* The leading candidate of the four ids from `first` on, where one reaches so far. */
static __device__ uint64_t candidates(const view &v, const draw_work &w, float max, float reached,
                                      int32_t first)
{
    uint64_t best = 0;
    uint32_t c[4] = {(uint32_t)first >> 2, (uint32_t)v.pos, PHILOX_PURPOSE_DRAW, 0};
    float x[4];
#pragma unroll
    for (int k = 0; k < 4; k++) x[k] = processed(v, first + k);
    if (!v.plain) {
        philox4x32(c, (uint32_t)v.s.seed, (uint32_t)(v.s.seed >> 32));
        const float top = fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]));
        const uint32_t least = min(min(c[0], c[1]), min(c[2], c[3]));
        if (out_of_reach(distance(top, max, v.s.temperature), noise(least), reached)) return 0;
    }
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const int32_t id = first + k, key = key_of(x[k]);
        if (key == KEY_MASKED) continue;
        if (v.plain) {
            best = larger(best, packed(key, id));
            continue;
        }
        if (unsigned_key(key) < w.border) continue;
        const float d = distance(x[k], max, v.s.temperature);
        if (w.least > 0 && mass_of(d) < w.least) continue;
        const float n = noise(c[k]);
        if (out_of_reach(d, n, reached)) continue;
        const float e = -num_log1pf(-n);
        best = larger(best, packed(key_of(d - num_logf(e)), id));
    }
    return best;
}

/* Block b's part in the draw. `best` is the leading candidate that this warp knows of. */
static __device__ void draw_block(const draw_args &a, const view &v, const draw_work &w, float max,
                                  int32_t i, int32_t b, uint64_t *best)
{
    const int32_t x = a.block_x[(int64_t)i * a.n_block + b], lane = threadIdx.x % 32;
    uint64_t *leading = &a.work[i].best;
    if (x == KEY_MASKED) return;
    /* Others raise it: one lane's reading is all lanes', or they would part below. */
    *best = larger(*best, __ldcg((const unsigned long long *)leading));
    *best = __shfl_sync(FULL, *best, 0);
    const float reached = *best ? key_float(packed_key(*best)) : -INFINITY;
    if (!v.plain && out_of_reach(distance(key_float(x), max, v.s.temperature), 0x1p-33f, reached))
        return; /* not even with the largest noise that there is */
    uint64_t own = candidates(v, w, max, reached, b * BLOCK + 4 * lane);
    if (!__any_sync(FULL, own > *best)) return;
    for (int h = 16; h > 0; h /= 2) own = larger(own, __shfl_xor_sync(FULL, own, h));
    *best = own;
    if (lane == 0) atomicMax((unsigned long long *)leading, (unsigned long long)own);
}

static __global__ void __launch_bounds__(32 * WARPS) k_draw(const draw_args a)
{
    const int32_t i = blockIdx.x;
    const draw_item it = a.item[i];
    if (it.row < 0) return;
    const draw_work w = a.work[i];
    if (lost(w)) return;
    const view v = view_of(a, it);
    const float max = key_float(w.max_key);
    const bool sums = wants_sums(v) && !raw_reported(a, v);
    uint64_t best = 0;
    if (v.scored) return;
    for (int32_t b = blockIdx.y * WARPS + threadIdx.x / 32; b < a.n_block; b += gridDim.y * WARPS) {
        draw_block(a, v, w, max, i, b, &best);
        if (sums) sum_block(a, v, max, i, b);
    }
}

/* ---- k_end --------------------------------------------------------------------------------- */

#define END_THREADS 256
#define TILE        1024

typedef struct end_mem {
    float s[TILE], fa[TILE], fb[TILE];
    int32_t before[TILE + 1]; /* largest key of the blocks before */
    uint64_t best[END_THREADS / 32];
    float m, log_s;
} end_mem;

static __device__ __forceinline__ float zero_if_masked(int32_t key)
{
    return key == KEY_MASKED ? 0.0f : key_float(key);
}

/* By warp 0: before[k + 1] = the largest of before[0] and the keys of blocks first ... first + k.
 */
static __device__ void running_max(const uint64_t *y, int32_t first, int32_t n, end_mem *m)
{
    const int lane = threadIdx.x;
    for (int32_t k = 0; k < n; k += 32) {
        int32_t key = k + lane < n ? packed_key(y[first + k + lane]) : KEY_NONE;
        for (int h = 1; h < 32; h *= 2) {
            const int32_t o = __shfl_up_sync(FULL, key, h);
            if (lane >= h) key = max(key, o);
        }
        key = max(key, m->before[k]);
        __syncwarp();
        if (k + lane < n) m->before[k + lane + 1] = key;
        __syncwarp();
    }
}

/* (M, log S) of the row into m->m and m->log_s. */
static __device__ void fold(const draw_args &a, int32_t i, end_mem *m)
{
    const uint64_t *y = a.block_y + (int64_t)i * a.n_block;
    const float *bs = a.block_s + (int64_t)i * a.n_block;
    float s = 0.0f; /* of thread 0 */
    if (threadIdx.x == 0) m->before[0] = packed_key(y[0]);
    __syncthreads();
    for (int32_t first = 0; first < a.n_block; first += TILE) {
        const int32_t n = min(TILE, a.n_block - first);
        if (threadIdx.x < 32) running_max(y, first, n, m);
        __syncthreads();
        for (int32_t k = threadIdx.x; k < n; k += END_THREADS) {
            const float sub = zero_if_masked(m->before[k + 1]);
            m->s[k] = bs[first + k];
            m->fa[k] = num_exp2f((key_float(m->before[k]) - sub) * SAMPLE_LOG2E);
            m->fb[k] = num_exp2f((key_float(packed_key(y[first + k])) - sub) * SAMPLE_LOG2E);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            int32_t k = 0;
            if (first == 0) s = m->s[k++];
            for (; k < n; k++) s = __fmaf_rn(m->s[k], m->fb[k], __fmul_rn(s, m->fa[k]));
            m->before[0] = m->before[n];
            m->m = key_float(m->before[n]);
            m->log_s = num_logf(s);
        }
        __syncthreads();
    }
}

/* The largest of a block's entries below `limit` (in the order of packed), in every lane. */
static __device__ uint64_t next_of_block(const draw_args &a, const view &v, float max, int32_t b,
                                         uint64_t limit)
{
    uint64_t best = 0;
    for (int r = 0; r < 4; r++) {
        const int32_t id = b * BLOCK + 32 * r + (int32_t)(threadIdx.x % 32);
        const uint64_t p = packed(key_of(reported(a, v, max, id)), id);
        if (p < limit) best = larger(best, p);
    }
    for (int h = 16; h > 0; h /= 2) best = larger(best, __shfl_xor_sync(FULL, best, h));
    return best;
}

/* The n largest y, ties to the lower id; block_y is consumed. Returns how many there are. */
static __device__ int32_t alternatives(const draw_args &a, const view &v, int32_t i, int32_t n,
                                       float max, end_mem *m)
{
    uint64_t *y = a.block_y + (int64_t)i * a.n_block;
    int32_t k = 0;
    for (; k < n; k++) {
        uint64_t best = 0;
        for (int32_t b = threadIdx.x; b < a.n_block; b += END_THREADS) best = larger(best, y[b]);
        for (int h = 16; h > 0; h /= 2) best = larger(best, __shfl_xor_sync(FULL, best, h));
        if (threadIdx.x % 32 == 0) m->best[threadIdx.x / 32] = best;
        __syncthreads();
        for (int w = 0; w < END_THREADS / 32; w++) best = larger(best, m->best[w]);
        if (packed_key(best) <= KEY_MASKED) break; /* of all threads alike */
        const int32_t id = packed_id(best);
        if (threadIdx.x < 32) {
            const uint64_t next = next_of_block(a, v, max, id / BLOCK, best);
            if (threadIdx.x == 0) {
                y[id / BLOCK] = next;
                a.top_id[(int64_t)i * a.n_top_max + k] = id;
                a.top_logprob[(int64_t)i * a.n_top_max + k] =
                    (reported(a, v, max, id) - m->m) - m->log_s;
            }
        }
        __syncthreads();
    }
    return k;
}

/* By thread 0: the slot after the draw. */
static __device__ void advance(const draw_args &a, int32_t slot, int32_t token)
{
    draw_slot *s = &a.slot[slot];
    a.last[slot] = token < 0 ? 0 : token;
    if (token < 0) return;
    a.recent[(int64_t)slot * OPS_MAX_BAD_LEN + s->n_output % OPS_MAX_BAD_LEN] = token;
    s->n_output++;
    if (s->use_count) a.count[(int64_t)slot * a.n_block * BLOCK + token]++;
}

static __global__ void __launch_bounds__(END_THREADS) k_end(const draw_args a)
{
    __shared__ end_mem m;
    const int32_t i = blockIdx.x;
    const draw_item it = a.item[i];
    if (it.row < 0) return;
    const draw_work w = a.work[i];
    const view v = view_of(a, it); /* before the slot advances */
    draw_result r = {-1, w.bad ? SAMPLE_NONFINITE : SAMPLE_ALL_MASKED, 0, 0.0f};
    if (!lost(w)) {
        const float max = key_float(w.max_key);
        r.token = v.scored ? it.target : packed_id(w.best);
        r.why = SAMPLE_OK;
        const int32_t n_top = v.scored ? it.n_top : v.s.n_top;
        if (n_top >= 0) {
            fold(a, i, &m);
            r.logprob = (reported(a, v, max, r.token) - m.m) - m.log_s;
            r.n_top = alternatives(a, v, i, n_top, max, &m);
        }
    }
    __syncthreads(); /* nobody reads the slot any more */
    if (threadIdx.x) return;
    a.result[i] = r;
    if (it.slot >= 0) advance(a, it.slot, r.token);
}

corun_status gpu_draw(const gpu *g, const draw_args *a)
{
    if (a->n_item == 0) return CORUN_OK;
    const cudaStream_t s = (cudaStream_t)g->stream;
    const unsigned n = (unsigned)a->n_item, whole = (unsigned)((a->n_block + WARPS - 1) / WARPS);
    /* What a warp must know of its item it reads once: few more of them than the card holds. */
    const unsigned share = (2 * 8 * (unsigned)g->sm_count + n - 1) / n;
    const dim3 blocks(n, share < whole ? share : whole);
    k_begin<<<n, 128, 0, s>>>(*a);
    k_max<<<blocks, 32 * WARPS, 0, s>>>(*a);
    k_filter<<<n, FILTER_THREADS, 0, s>>>(*a);
    k_draw<<<blocks, 32 * WARPS, 0, s>>>(*a);
    k_end<<<n, END_THREADS, 0, s>>>(*a);
    return gpu_status((int)cudaGetLastError(), "sample");
}
