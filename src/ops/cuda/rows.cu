/* rows.cu - the ops that see one token row at a time: embed, norm, what follows the qkv product,
 * SiLU. Bound of each: the bytes of its rows over the bandwidth of the device memory.
 *
 * Reduction order of the norm: 256 partial sums of squares, partial t over elements 8t ... 8t + 7
 * of each 2,048, then a tree (docs/numerics.md, section 2). Nothing else is a sum. Level: phase.
 * Invariant: the bits do not depend on how wide the memory accesses are. */
#include <cuda_runtime.h>

#include "ops/cuda/device.cuh"
#include "ops/cuda/gpu.h"
#include "ops/fill.h"

static corun_status launched(const char *what) { return gpu_status((int)cudaGetLastError(), what); }

static cudaStream_t stream_of(const gpu *g) { return (cudaStream_t)g->stream; }

/* Whether rows of n elements can be read 16 bytes at a time. */
static bool wide_rows(int32_t n) { return n % 8 == 0; }

/* ---- the step's arrays ----------------------------------------------------------------------- */

static __global__ void k_step_in(gpu_step to, gpu_step from, int32_t pages)
{
    const struct {
        int32_t *to;
        const int32_t *from;
        int32_t pitch, width, height;
    } part[] = {{to.tok_id, from.tok_id, to.max_tok, from.n_tok, 4},
                {to.row_tok, from.row_tok, to.max_row + 1, from.n_row + 1, 3},
                {to.want_tok, from.want_tok, to.max_want, from.n_want, 1},
                {to.page, from.page, to.max_page, pages, from.n_row}};
    const int32_t first = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
#pragma unroll
    for (int p = 0; p < 4; p++)
        for (int32_t i = first; i < part[p].width * part[p].height; i += step) {
            const int64_t at = (int64_t)(i / part[p].width) * part[p].pitch + i % part[p].width;
            part[p].to[at] = part[p].from[at];
        }
}

corun_status gpu_step_in(const gpu *g, const gpu_step *to, const gpu_step *from, int32_t pages)
{
    const int32_t most = max(max(4 * from->n_tok, 3 * (from->n_row + 1)), pages * from->n_row);
    const int32_t blocks = min((most + 255) / 256, 4 * g->sm_count);
    k_step_in<<<blocks, 256, 0, stream_of(g)>>>(*to, *from, pages);
    return launched("arrays of the step to the device");
}

/* ---- embed --------------------------------------------------------------------------------- */

/* A block a token row. */
template <typename T>
static __global__ void k_embed(const int32_t *tok_id, const int32_t *tok_slot,
                               const int32_t *last_token, const T *w, int64_t n, T *h)
{
    const int64_t t = blockIdx.x;
    const int32_t own = tok_id[t];
    const int64_t id = own >= 0 ? own : last_token[tok_slot[t]];
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) h[t * n + i] = w[id * n + i];
}

corun_status gpu_embed(const gpu *g, const gpu_step *s, const int32_t *last_token, const void *w,
                       int32_t n_embd, void *h)
{
    if (s->n_tok == 0) return CORUN_OK;
    if (wide_rows(n_embd))
        k_embed<uint4><<<s->n_tok, 256, 0, stream_of(g)>>>(
            s->tok_id, s->tok_slot, last_token, (const uint4 *)w, n_embd / 8, (uint4 *)h);
    else
        k_embed<uint16_t><<<s->n_tok, 256, 0, stream_of(g)>>>(
            s->tok_id, s->tok_slot, last_token, (const uint16_t *)w, n_embd, (uint16_t *)h);
    return launched("embed");
}

/* ---- norm ---------------------------------------------------------------------------------- */

/* Eight elements of a row from element i on; those behind the end are 0. */
template <bool WIDE>
static __device__ __forceinline__ void load8(const uint16_t *row, int32_t i, int32_t n, float v[8])
{
    if (WIDE) {
        dev_widen8(*(const uint4 *)(row + i), v);
    } else {
#pragma unroll
        for (int k = 0; k < 8; k++) v[k] = i + k < n ? dev_wide(row[i + k]) : 0.0f;
    }
}

template <bool WIDE>
static __device__ __forceinline__ void store8(uint16_t *row, int32_t i, int32_t n, const float v[8])
{
    if (WIDE) {
        *(uint4 *)(row + i) = dev_narrow8(v);
    } else {
#pragma unroll
        for (int k = 0; k < 8; k++)
            if (i + k < n) row[i + k] = dev_round(v[k]);
    }
}

/* 256 partials, one a thread, to their tree sum, in every thread. */
static __device__ float tree256(float part)
{
    __shared__ float s[129];
    const int t = threadIdx.x;
    if (t >= 128) s[t - 128] = part;
    __syncthreads();
    if (t < 128) part = __fadd_rn(part, s[t]);
    __syncthreads();
    return dev_tree128(part, s, [] { __syncthreads(); });
}

/* A block of 256 threads a row, which stays in registers: thread t holds the elements of its
 * partial in PIECES times 8. want: the rows to read (h stays as it is, out is compact); NULL: all
 * rows, h = h + y where y is given. */
template <bool WIDE, int PIECES>
static __global__ void __launch_bounds__(256)
    k_norm(const int32_t *want, uint16_t *h, const uint16_t *y, const uint16_t *gain, int32_t n,
           float inv, float eps, uint16_t *out)
{
    const int64_t r = want ? want[blockIdx.x] : blockIdx.x;
    uint16_t *x = h + r * n;
    uint16_t *o = out + (int64_t)blockIdx.x * n;
    float part = 0.0f, v[PIECES][8];
    uint4 g[PIECES]; /* of wide rows: on its way while the sum is made */
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        const int32_t i = 8 * (int32_t)threadIdx.x + 2048 * p;
        if (i >= n) continue;
        if (WIDE) g[p] = *(const uint4 *)(gain + i);
        load8<WIDE>(x, i, n, v[p]);
        if (y) {
            float a[8];
            load8<WIDE>(y + r * n, i, n, a);
#pragma unroll
            for (int k = 0; k < 8; k++) v[p][k] = dev_rounded(__fadd_rn(v[p][k], a[k]));
            if (!want) store8<WIDE>(x, i, n, v[p]);
        }
#pragma unroll
        for (int k = 0; k < 8; k++) part = __fmaf_rn(v[p][k], v[p][k], part);
    }
    const float mean = __fmul_rn(tree256(part), inv);
    const float f = __frsqrt_rn(__fadd_rn(mean, eps));
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        const int32_t i = 8 * (int32_t)threadIdx.x + 2048 * p;
        if (i >= n) continue;
        float gv[8];
        if (WIDE)
            dev_widen8(g[p], gv);
        else
            load8<WIDE>(gain, i, n, gv);
#pragma unroll
        for (int k = 0; k < 8; k++) v[p][k] = __fmul_rn(gv[k], dev_rounded(__fmul_rn(v[p][k], f)));
        store8<WIDE>(o, i, n, v[p]);
    }
}

typedef void (*norm_kernel)(const int32_t *, uint16_t *, const uint16_t *, const uint16_t *,
                            int32_t, float, float, uint16_t *);

template <bool WIDE> static norm_kernel norm_for(int32_t n)
{
    return n <= 2048   ? k_norm<WIDE, 1>
           : n <= 4096 ? k_norm<WIDE, 2>
           : n <= 8192 ? k_norm<WIDE, 4>
                       : k_norm<WIDE, GPU_MAX_EMBD / 2048>;
}

corun_status gpu_norm(const gpu *g, const gpu_step *s, ops_rows rows, void *h, const void *y,
                      const void *gain, int32_t n_embd, float eps, void *out)
{
    const bool wanted = rows == OPS_ROWS_WANT;
    const int32_t n_row = wanted ? s->n_want : s->n_tok;
    if (n_row == 0) return CORUN_OK;
    const norm_kernel kernel = wide_rows(n_embd) ? norm_for<true>(n_embd) : norm_for<false>(n_embd);
    kernel<<<n_row, 256, 0, stream_of(g)>>>(wanted ? s->want_tok : NULL, (uint16_t *)h,
                                            (const uint16_t *)y, (const uint16_t *)gain, n_embd,
                                            (float)(1.0 / (double)n_embd), eps, (uint16_t *)out);
    return launched("norm");
}

/* ---- after the qkv product ----------------------------------------------------------------- */

#define POST_THREADS 128

typedef struct qkv_args {
    gpu_step s;
    gpu_kv kv;
    char *layer; /* pages of the layer */
    const uint16_t *qkv, *q_gain, *k_gain;
    const float *cos_sin;
    float eps, inv;
    int32_t n_head;
    uint16_t *q;
} qkv_args;

/* Norm of a head that LANES lanes hold, 8 elements each: lane t has partial t. All lanes of the
 * warp come here; gain NULL: the head stays as it is. */
template <int LANES>
static __device__ __forceinline__ void head_norm(float v[8], const uint16_t *gain, float inv,
                                                 float eps)
{
    float part = 0.0f, g[8];
#pragma unroll
    for (int k = 0; k < 8; k++) part = __fmaf_rn(v[k], v[k], part);
#pragma unroll
    for (int h = LANES / 2; h >= 1; h /= 2)
        part = __fadd_rn(part, __shfl_down_sync(~0u, part, h, LANES));
    const float mean = __fmul_rn(__shfl_sync(~0u, part, 0, LANES), inv);
    const float f = __frsqrt_rn(__fadd_rn(mean, eps));
    if (!gain) return;
    dev_widen8(*(const uint4 *)gain, g);
#pragma unroll
    for (int k = 0; k < 8; k++)
        v[k] = dev_rounded(__fmul_rn(g[k], dev_rounded(__fmul_rn(v[k], f))));
}

/* Rotates a head by halves: two rounded products and one rounded sum. cs: of the lane's elements
 * in their half; the sines lie `half` behind. */
template <int LANES>
static __device__ __forceinline__ void head_rotate(float v[8], const float *cs, bool upper)
{
    const uint4 own = dev_narrow8(v);
    uint4 q;
    q.x = __shfl_xor_sync(~0u, own.x, LANES / 2);
    q.y = __shfl_xor_sync(~0u, own.y, LANES / 2);
    q.z = __shfl_xor_sync(~0u, own.z, LANES / 2);
    q.w = __shfl_xor_sync(~0u, own.w, LANES / 2);
    float other[8], c[8], s[8];
    dev_widen8(q, other);
#pragma unroll
    for (int k = 0; k < 8; k += 4) {
        *(float4 *)(c + k) = *(const float4 *)(cs + k);
        *(float4 *)(s + k) = *(const float4 *)(cs + 4 * LANES + k);
    }
#pragma unroll
    for (int k = 0; k < 8; k++) {
        const float a = __fmul_rn(v[k], c[k]), b = __fmul_rn(other[k], s[k]);
        v[k] = upper ? __fadd_rn(a, b) : __fsub_rn(a, b);
    }
}

/* D / 8 lanes a head of a token row: q heads first, then k, then v. A dead row has no effect. */
template <int D> static __global__ void __launch_bounds__(POST_THREADS) k_qkv_post(const qkv_args a)
{
    constexpr int LANES = D / 8;
    const int32_t n_kv = a.kv.n_kv, heads = a.n_head + 2 * n_kv, lane = threadIdx.x % LANES;
    const int32_t t = blockIdx.x, first = blockIdx.y * (POST_THREADS / LANES);
    const int32_t mine = first + (int32_t)threadIdx.x / LANES, h = min(mine, heads - 1);
    const int32_t row = a.s.tok_row[t];
    next_may_start(); /* decode attention: it waits before it reads */
    if (row < 0) return;
    const int64_t pos = a.s.tok_pos[t];
    const uint4 in = *(const uint4 *)(a.qkv + ((int64_t)t * heads + h) * D + 8 * lane);
    float v[8];
    dev_widen8(in, v);
    const uint16_t *gain = h < a.n_head ? a.q_gain : a.k_gain;
    if (a.q_gain || a.k_gain) head_norm<LANES>(v, gain ? gain + 8 * lane : NULL, a.inv, a.eps);
    head_rotate<LANES>(v, a.cos_sin + pos * D + 8 * (lane % (LANES / 2)), lane >= LANES / 2);
    if (mine >= heads) return;
    const uint4 x = h < a.n_head + n_kv ? dev_narrow8(v) : in; /* values stay */
    if (h < a.n_head) {
        *(uint4 *)(a.q + ((int64_t)t * a.n_head + h) * D + 8 * lane) = x;
        return;
    }
    const int32_t pt = a.kv.page_tokens, at = (int32_t)(pos % pt);
    const int32_t head = h - a.n_head < n_kv ? 2 * (h - a.n_head) : 2 * (h - a.n_head - n_kv) + 1;
    const int64_t page = a.s.page[(int64_t)row * a.s.max_page + pos / pt];
    uint16_t *line = (uint16_t *)(a.layer + page * (int64_t)a.kv.page_stride) +
                     ((int64_t)head * (D / 64) * pt + at) * 64;
    *(uint4 *)(line + (int64_t)(lane / 8) * pt * 64 + (lane % 8 ^ (at & 7)) * 8) = x;
}

corun_status gpu_qkv_post(const gpu *g, const gpu_step *s, const ops_dims *d, const gpu_kv *kv,
                          int32_t layer, const void *qkv, const void *q_gain, const void *k_gain,
                          float eps, const float *cos_sin, void *q)
{
    if (s->n_tok == 0) return CORUN_OK;
    qkv_args a;
    a.s = *s;
    a.kv = *kv;
    a.layer = (char *)kv->base + (size_t)layer * kv->layer_stride;
    a.qkv = (const uint16_t *)qkv;
    a.q_gain = (const uint16_t *)q_gain;
    a.k_gain = (const uint16_t *)k_gain;
    a.cos_sin = cos_sin;
    a.eps = eps;
    a.inv = (float)(1.0 / (double)d->d_head);
    a.n_head = d->n_head;
    a.q = (uint16_t *)q;
    const int32_t heads = POST_THREADS * 8 / d->d_head; /* of a block */
    const dim3 grid((unsigned)s->n_tok, (unsigned)((d->n_head + 2 * d->n_kv + heads - 1) / heads));
    if (d->d_head == 64)
        k_qkv_post<64><<<grid, POST_THREADS, 0, stream_of(g)>>>(a);
    else
        k_qkv_post<128><<<grid, POST_THREADS, 0, stream_of(g)>>>(a);
    return launched("qkv_post");
}

/* ---- SiLU ---------------------------------------------------------------------------------- */

static __global__ void k_ex2(int64_t n, const float *x, float *out)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = ex2(x[i]);
}

corun_status gpu_ex2(const gpu *g, int64_t n, const float *x, float *out)
{
    k_ex2<<<(unsigned)((n + 255) / 256), 256, 0, stream_of(g)>>>(n, x, out);
    return launched("2^x");
}

/* A thread eight outputs of a token row. */
template <bool WIDE>
static __global__ void k_silu_mul(int32_t n, const uint16_t *gate_up, uint16_t *out)
{
    const int64_t t = blockIdx.y;
    const int32_t i = 8 * (int32_t)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= n) return;
    float g[8], u[8];
    load8<WIDE>(gate_up + t * 2 * n, i, n, g);
    load8<WIDE>(gate_up + t * 2 * n + n, i, n, u);
#pragma unroll
    for (int k = 0; k < 8; k++) g[k] = __fmul_rn(dev_silu(g[k]), u[k]);
    store8<WIDE>(out + t * n, i, n, g);
}

corun_status gpu_silu_mul(const gpu *g, int32_t n_tok, int32_t n_ff, const void *gate_up, void *out)
{
    const unsigned blocks = (unsigned)(n_ff + 2047) / 2048;
    for (int32_t t = 0; t < n_tok; t += 32768) { /* a grid has at most 65,535 rows */
        const dim3 grid(blocks, (unsigned)(n_tok - t < 32768 ? n_tok - t : 32768));
        const uint16_t *in = (const uint16_t *)gate_up + (int64_t)t * 2 * n_ff;
        uint16_t *o = (uint16_t *)out + (int64_t)t * n_ff;
        if (wide_rows(n_ff))
            k_silu_mul<true><<<grid, 256, 0, stream_of(g)>>>(n_ff, in, o);
        else
            k_silu_mul<false><<<grid, 256, 0, stream_of(g)>>>(n_ff, in, o);
    }
    return launched("silu_mul");
}

/* ---- made-up weights ----------------------------------------------------------------------- */

/* A thread four elements. */
static __global__ void k_fill(ops_fill f, uint64_t n, uint16_t *w)
{
    const uint64_t step = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; 4 * i < n; i += step) {
        float v[4];
        fill_four(f.seed, f.index, i, f.base, f.spread, v);
        for (int k = 0; k < 4 && 4 * i + k < n; k++) w[4 * i + k] = dev_round(v[k]);
    }
}

corun_status gpu_fill(const gpu *g, const ops_fill *f, int64_t n_out, void *w)
{
    const unsigned blocks = 8 * (unsigned)g->sm_count;
    k_fill<<<blocks, 256, 0, stream_of(g)>>>(*f, (uint64_t)(n_out * f->n_in), (uint16_t *)w);
    return launched("made-up weights");
}
