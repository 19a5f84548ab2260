/* between.cu - what stands between two attentions of a step of few rows, as one kernel: the o
 * product, norm, gate and up with SiLU, down, and the next layer's norm and qkv product.
 *
 * One CTA an SM stays for all of it and has some outputs of each product. A warp copies their
 * weights through a ring in shared memory and waits for nothing but room, so the memory works on
 * while the others wait for each other; two warps bring the activations, well ahead, since behind
 * so many copies of weights they take microseconds; a warpgroup multiplies (weights on the
 * 64-side), and norms a row where the CTA has one. Between the products all CTAs of the card wait
 * for each other, so each must find room while the others wait: there is one a multiprocessor, and
 * nothing beside it that waits for it (gpu_between_enter). Bound: reading the weights once.
 * Reduction order: docs/numerics.md, section 1 (products) and 2 (norm), as rows.cu and the
 * library's admitted kernels have it. Level: phase. Invariant: each output is one accumulator over
 * K upward, a step of 16 elements after the other; which CTA has it moves no bit. A tile of 64 may
 * reach behind the CTA's own rows, and behind the ring of weights into that of activations: what is
 * computed there is not stored. */
#include <cudaTypedefs.h>
#include <cuda_runtime.h>
#include <pthread.h>

extern "C" {
#include "base/mem.h"
}

#include "ops/cuda/device.cuh"
#include "ops/cuda/gpu.h"
#include "ops/cuda/wgmma.cuh"

enum {
    O,
    GATE_UP, /* rows of gate and of up in one stage */
    DOWN,
    QKV,
    PHASES
};

enum {
    CONSUMERS = 128,
    X_THREADS = 64,
    THREADS = CONSUMERS + 32 + X_THREADS,
    MAX_PIECES = 8,     /* of 1,024 elements of a row that a norm keeps in registers */
    LINE = 128,         /* bytes of 64 elements of K: a box is 64 elements of some rows */
    MAX_BOXES = 6,      /* of a stage */
    MEMORY = 224 << 10, /* of both rings */
    MAX_SLOTS = 16,
    LEAST_SLOTS = 3,
    LEAST_SLOT = 16 << 10,
    X_SLOTS = 4,
    SUMS = 129 * 4, /* of dev_tree128 */
    /* numbers of mbarriers */
    W_FULL = 0,
    W_FREE = MAX_SLOTS,
    X_FULL = 2 * MAX_SLOTS,
    X_FREE = X_FULL + X_SLOTS,
    X_READY = X_FREE + X_SLOTS, /* of the second part, the third, ...: each is used once */
    N_BARRIER = X_READY + PHASES - 1,
    BYTES = MEMORY + SUMS + 12 + 8 * N_BARRIER + 1024
};

/* Tiles of 64 rows of a CTA, of gate and of up each, for NT times 8 rows. */
static constexpr __host__ __device__ int max_tiles(int nt) { return nt == 1 ? 4 : 2; }

/* The ring of activations for NT times 8 rows, behind that of weights: slots of some stages. */
static constexpr __host__ __device__ int x_boxes(int nt) { return nt == 4 ? MAX_BOXES : 8; }
static constexpr __host__ __device__ int x_box(int nt) { return nt * 8 * LINE; }
static constexpr __host__ __device__ int w_ring(int nt)
{
    return MEMORY - X_SLOTS * x_boxes(nt) * x_box(nt);
}

typedef struct part {
    int32_t n_out, n_in; /* of gate and up: n_ff */
    int32_t rows;        /* of a CTA */
    int32_t lines;       /* of a box: rows, those of gate and of up */
    int32_t boxes;       /* of a stage */
} part;

typedef struct between_args {
    CUtensorMap w[PHASES];
    part p[PHASES];
    const uint16_t *bias[PHASES], *gain[2];
    const uint16_t *attn;
    uint16_t *h, *x, *y, *act, *qkv;
    unsigned long long *arrived; /* counts up for ever */
    float eps, inv;
    int32_t rows, n_embd, last; /* parts before `last` are done */
    int32_t slots, slot_bytes;
} between_args;

struct gpu_between {
    const gpu *g;
    int32_t n_embd, most; /* rows */
    part p[PHASES];
    int32_t slot_bytes;
    unsigned long long *arrived;
    PFN_cuTensorMapEncodeTiled_v12000 encode_map;
    cudaEvent_t done; /* its last turn */
};

/* ---- device -------------------------------------------------------------------------------- */

/* A place in a ring: a producer begins with parity 1, so that it finds all slots free. */
struct ring_place {
    uint32_t slot, parity;

    DEVICE void next(uint32_t slots)
    {
        if (++slot < slots) return;
        slot = 0;
        parity ^= 1;
    }
};

/* What the norm of a row needs and is there before its last addend; the gain of long rows is read
 * when it is used, for want of registers. */
template <int PIECES> struct norm_row {
    static constexpr bool KEPT = PIECES <= 4;
    uint4 h[PIECES], gain[KEPT ? PIECES : 1];
};

template <int NT> struct between_cta {
    static constexpr int X_BOX = x_box(NT);
    const between_args &a;
    char *shared; /* aligned to 1,024 */
    uint32_t base;
    int warp, lane;

    DEVICE uint32_t barrier(int number) const { return base + MEMORY + SUMS + 12 + 8 * number; }
    DEVICE float *sums() const { return (float *)(shared + MEMORY); }
    DEVICE uint32_t x_slot(uint32_t slot) const
    {
        return base + w_ring(NT) + slot * x_boxes(NT) * X_BOX;
    }
    DEVICE uint32_t w_slot(uint32_t slot) const { return base + slot * a.slot_bytes; }
    /* First output of this CTA; behind the last one it has none. */
    DEVICE int first(const part &p) const { return (int)blockIdx.x * p.rows; }

    DEVICE void open() const
    {
        for (int i = w_ring(NT) / 16 + threadIdx.x; i < MEMORY / 16; i += THREADS)
            ((uint4 *)shared)[i] = make_uint4(0, 0, 0, 0); /* rows that do not exist */
        if (threadIdx.x == 0) {
            for (int i = 0; i < a.slots; i++) {
                barrier_init(barrier(W_FULL + i), 1);
                barrier_init(barrier(W_FREE + i), CONSUMERS);
            }
            for (int i = 0; i < X_SLOTS; i++) {
                barrier_init(barrier(X_FULL + i), X_THREADS);
                barrier_init(barrier(X_FREE + i), CONSUMERS);
            }
            for (int n = 1; n < PHASES; n++) barrier_init(barrier(X_READY + n - 1), CONSUMERS);
            barrier_init_done();
        }
        fence_async();
        __syncthreads();
    }

    /* ---- the warp that copies weights */

    DEVICE void copy_weights() const
    {
        const uint64_t once = policy_evict_first();
        ring_place at = {0, 1};
        for (int n = 0; n < a.last; n++) {
            const part &p = a.p[n];
            const int row = first(p);
            if (row >= p.n_out) continue;
            for (int k = 0; k < p.n_in; k += 64 * p.boxes) {
                const int boxes = min(p.boxes, (p.n_in - k) / 64);
                const uint32_t full = barrier(W_FULL + at.slot);
                barrier_wait(barrier(W_FREE + at.slot), at.parity);
                if (lane == 0) {
                    barrier_expect(full, (uint32_t)(boxes * p.lines * LINE));
                    uint32_t to = w_slot(at.slot);
                    for (int i = 0; i < boxes; i++, to += p.lines * LINE) {
                        tensor_load(to, &a.w[n], k + 64 * i, row, full, once);
                        if (n == GATE_UP)
                            tensor_load(to + p.rows * LINE, &a.w[n], k + 64 * i, p.n_out + row,
                                        full, once);
                    }
                }
                __syncwarp();
                at.next(a.slots);
            }
        }
    }

    /* ---- the warps that bring activations: a thread 16 bytes of each eighth row of a box */

    DEVICE const uint16_t *input(int n) const { return n == O ? a.attn : n == DOWN ? a.act : a.x; }

    DEVICE void copy_activations() const
    {
        const int t = threadIdx.x - CONSUMERS - 32, row = t >> 3, piece = t & 7;
        const uint32_t own = row * LINE + ((piece ^ row) << 4);
        ring_place at = {0, 1};
        for (int n = 0; n < a.last; n++) {
            const part &p = a.p[n];
            const uint16_t *from = input(n) + (size_t)row * p.n_in + 8 * piece;
            if (n > 0) barrier_wait(barrier(X_READY + n - 1), 0);
            if (first(p) >= p.n_out) continue;
            const int all = p.boxes * (x_boxes(NT) / p.boxes);
            for (int k = 0; k < p.n_in; k += 64 * all) {
                const int boxes = min(all, (p.n_in - k) / 64);
                barrier_wait(barrier(X_FREE + at.slot), at.parity);
                for (int i = 0; i < boxes; i++)
#pragma unroll
                    for (int j = 0; j < NT; j++)
                        if (row + 8 * j < a.rows)
                            async_load(x_slot(at.slot) + i * X_BOX + j * 8 * LINE + own,
                                       from + (size_t)8 * j * p.n_in + k + 64 * i);
                async_arrive(barrier(X_FULL + at.slot));
                at.next(X_SLOTS);
            }
        }
    }

    /* ---- the warpgroup that computes */

    /* All CTAs; who comes last lets all go. target: of thread 0. */
    DEVICE void wait_for_all(unsigned long long &target) const
    {
        named_barrier(1, CONSUMERS);
        if (threadIdx.x == 0) {
            target += gridDim.x;
            count_up(a.arrived);
            while (count_of(a.arrived) < target) {
            }
        }
        named_barrier(1, CONSUMERS);
    }

    DEVICE void store(int n, int token, int row, float v) const
    {
        const part &p = a.p[n];
        uint16_t *out = n == QKV ? a.qkv : a.y;
        if (a.bias[n]) v = __fadd_rn(v, dev_wide(a.bias[n][row]));
        out[(size_t)token * p.n_out + row] = dev_round(v);
    }

    DEVICE void store_pair(int token, int row, float gate, float up) const
    {
        const part &p = a.p[GATE_UP];
        if (a.bias[GATE_UP]) {
            gate = __fadd_rn(gate, dev_wide(a.bias[GATE_UP][row]));
            up = __fadd_rn(up, dev_wide(a.bias[GATE_UP][p.n_out + row]));
        }
        const float s = dev_silu(dev_rounded(gate));
        a.act[(size_t)token * p.n_out + row] = dev_round(__fmul_rn(s, dev_rounded(up)));
    }

    /* A product: T tiles of 64 of the CTA's rows, and as many of up behind those of gate. A slot of
     * activations is for `many` stages. */
    template <int T, bool PAIR> DEVICE void product(int n, ring_place &w, ring_place &x) const
    {
        constexpr int N = PAIR ? 2 * T : T;
        const part &p = a.p[n];
        const int many = x_boxes(NT) / p.boxes;
        float d[N][4 * NT];
        ring_place w_before = w;
        int stage = 0, ended = -1; /* ended: the slot of activations that the stage before ended */
        for (int k = 0; k < p.n_in; k += 64 * p.boxes) {
            const int boxes = min(p.boxes, (p.n_in - k) / 64);
            barrier_wait(barrier(W_FULL + w.slot), w.parity);
            if (stage == 0) barrier_wait(barrier(X_FULL + x.slot), x.parity);
            fence_async();
            uint32_t wa = wgmma_low(w_slot(w.slot));
            uint32_t xa = wgmma_low(x_slot(x.slot) + stage * p.boxes * X_BOX);
            for (int i = 0; i < boxes; i++, wa += p.lines * LINE / 16, xa += X_BOX / 16) {
                wgmma_fence();
#pragma unroll
                for (int e = 0; e < 4; e++)
#pragma unroll
                    for (int t = 0; t < N; t++) {
                        const int row = (t % T) * 64 + (t < T ? 0 : p.rows);
                        wgmma_shared(d[t], wgmma_lines(wa + row * LINE / 16 + 2 * e),
                                     wgmma_lines(xa + 2 * e), e > 0 || k + i > 0);
                    }
                wgmma_commit();
                if (i == 0 && k > 0) {
                    wgmma_wait_until<1>();
                    barrier_arrive(barrier(W_FREE + w_before.slot));
                    if (ended >= 0) barrier_arrive(barrier(X_FREE + ended));
                }
            }
            w_before = w;
            w.next(a.slots);
            ended = -1;
            if (++stage == many || k + 64 * p.boxes >= p.n_in) {
                ended = (int)x.slot;
                stage = 0;
                x.next(X_SLOTS);
            }
        }
        wgmma_wait_until<0>();
#pragma unroll
        for (int t = 0; t < N; t++)
#pragma unroll
            for (int e = 0; e < 4 * NT; e++) asm volatile("" : "+f"(d[t][e]));
        barrier_arrive(barrier(W_FREE + w_before.slot));
        barrier_arrive(barrier(X_FREE + ended));
#pragma unroll
        for (int t = 0; t < T; t++)
#pragma unroll
            for (int e = 0; e < 4 * NT; e++) {
                const int own = t * 64 + 16 * warp + (lane >> 2) + 8 * (e >> 1 & 1);
                const int row = first(p) + own, token = 8 * (e >> 2) + 2 * (lane & 3) + (e & 1);
                if (own >= p.rows || row >= p.n_out || token >= a.rows) continue;
                if (PAIR)
                    store_pair(token, row, d[t][e], d[PAIR ? T + t : t][e]);
                else
                    store(n, token, row, d[t][e]);
            }
    }

    template <bool PAIR> DEVICE void product_of(int n, ring_place &w, ring_place &x) const
    {
        const part &p = a.p[n];
        if (first(p) >= p.n_out) return;
        constexpr int MOST = max_tiles(NT);
        if (p.rows <= 64) return product<1, PAIR>(n, w, x);
        if (p.rows <= 128) return product<2, PAIR>(n, w, x);
        if (MOST > 2) product<MOST, PAIR>(n, w, x);
    }

    DEVICE int element(int piece) const { return 8 * (int)threadIdx.x + 8 * CONSUMERS * piece; }

    template <int PIECES> DEVICE void load_row(norm_row<PIECES> &r, const uint16_t *gain) const
    {
#pragma unroll
        for (int piece = 0; piece < PIECES; piece++) {
            const int i = element(piece);
            if (i >= a.n_embd) continue;
            r.h[piece] = __ldcg((const uint4 *)(a.h + blockIdx.x * a.n_embd + i));
            if (norm_row<PIECES>::KEPT) r.gain[piece] = __ldg((const uint4 *)(gain + i));
        }
    }

    /* h = h + y and x = norm(h) of the CTA's row: 256 partial sums, two a thread, then a tree. */
    template <int PIECES> DEVICE void norm(norm_row<PIECES> &r, const uint16_t *gain) const
    {
        const size_t row = (size_t)blockIdx.x * a.n_embd;
        float part[2] = {0.0f, 0.0f}, v[8], add[8];
#pragma unroll
        for (int piece = 0; piece < PIECES; piece++) {
            const int i = element(piece);
            if (i >= a.n_embd) continue;
            dev_widen8(r.h[piece], v);
            dev_widen8(__ldcg((const uint4 *)(a.y + row + i)), add);
#pragma unroll
            for (int k = 0; k < 8; k++) {
                v[k] = dev_rounded(__fadd_rn(v[k], add[k]));
                part[piece & 1] = __fmaf_rn(v[k], v[k], part[piece & 1]);
            }
            r.h[piece] = dev_narrow8(v);
            *(uint4 *)(a.h + row + i) = r.h[piece];
        }
        const float sum =
            dev_tree128(__fadd_rn(part[0], part[1]), sums(), [] { named_barrier(1, CONSUMERS); });
        const float f = __frsqrt_rn(__fadd_rn(__fmul_rn(sum, a.inv), a.eps));
#pragma unroll
        for (int piece = 0; piece < PIECES; piece++) {
            const int i = element(piece);
            if (i >= a.n_embd) continue;
            dev_widen8(r.h[piece], v);
            dev_widen8(norm_row<PIECES>::KEPT ? r.gain[piece] : __ldg((const uint4 *)(gain + i)),
                       add);
#pragma unroll
            for (int k = 0; k < 8; k++) v[k] = __fmul_rn(add[k], dev_rounded(__fmul_rn(v[k], f)));
            *(uint4 *)(a.x + row + i) = dev_narrow8(v);
        }
    }

    /* All CTAs, then the norms of the rows, a CTA a row, then all CTAs. */
    template <int PIECES>
    DEVICE void norm_pieces(const uint16_t *gain, unsigned long long &target) const
    {
        const bool own = (int)blockIdx.x < a.rows;
        norm_row<PIECES> r;
        if (own) load_row(r, gain);
        wait_for_all(target);
        if (own) norm(r, gain);
        wait_for_all(target);
    }

    DEVICE void norm_rows(const uint16_t *gain, unsigned long long &target) const
    {
        switch ((a.n_embd + 2047) / 2048) {
        case 1: return norm_pieces<2>(gain, target);
        case 2: return norm_pieces<4>(gain, target);
        case 3: return norm_pieces<6>(gain, target);
        default: return norm_pieces<MAX_PIECES>(gain, target);
        }
    }

    DEVICE void compute() const
    {
        ring_place w = {0, 0}, x = {0, 0};
        unsigned long long target = 0;
        if (threadIdx.x == 0) target = count_of(a.arrived) / gridDim.x * gridDim.x;
        for (int n = 0; n < a.last; n++) {
            if (n == GATE_UP)
                product_of<true>(n, w, x);
            else
                product_of<false>(n, w, x);
            if (n + 1 == a.last) break;
            if (n == GATE_UP)
                wait_for_all(target);
            else
                norm_rows(a.gain[n == DOWN], target);
            barrier_arrive(barrier(X_READY + n));
        }
    }

    DEVICE void run() const
    {
        open();
        if (warp == CONSUMERS / 32) return copy_weights(); /* they hang on nothing before */
        wait_for_before();
        if (warp < CONSUMERS / 32)
            compute();
        else
            copy_activations();
    }
};

template <int NT>
static __global__ void __launch_bounds__(THREADS, 1)
    k_between(const __grid_constant__ between_args a)
{
#if PTX_HOPPER
    extern __shared__ char memory[];
    char *shared = memory + (-shared_address(memory) & 1023);
    /* The warp's number by a shuffle: uniform for the compiler. */
    between_cta<NT>{a, shared, shared_address(shared), __shfl_sync(~0u, (int)threadIdx.x >> 5, 0),
                    (int)threadIdx.x & 31}
        .run();
#endif
}

/* ---- host ---------------------------------------------------------------------------------- */

typedef void (*between_kernel)(const between_args);

typedef struct form {
    int32_t rows;  /* at most */
    int32_t ring;  /* bytes of weights */
    int32_t share; /* most rows of weights of a CTA */
    between_kernel kernel;
} form;

static const form forms[] = {{8, w_ring(1), 64 * max_tiles(1), k_between<1>},
                             {16, w_ring(2), 64 * max_tiles(2), k_between<2>},
                             {GPU_BETWEEN_ROWS, w_ring(4), 64 * max_tiles(4), k_between<4>}};
enum { N_FORM = sizeof forms / sizeof *forms };

/* The CTAs' shares, and how many rows the kernel takes with them. */
static int32_t lay_out(gpu_between *b, const ops_dims *d)
{
    const int32_t q = d->n_head * d->d_head, kv = d->n_kv * d->d_head;
    const int32_t out[PHASES] = {d->n_embd, d->n_ff, d->n_embd, q + 2 * kv};
    const int32_t in[PHASES] = {q, d->n_embd, d->n_ff, d->n_embd};
    const int32_t eights = 8 * b->g->sm_count;
    if (d->n_embd > 8 * CONSUMERS * MAX_PIECES) return 0;
    int32_t share = 0, most = 0;
    b->slot_bytes = LEAST_SLOT;
    for (int n = 0; n < PHASES; n++) {
        part *p = &b->p[n];
        const int32_t rows = (out[n] + eights - 1) / eights * 8;
        *p = part{out[n], in[n], rows, n == GATE_UP ? 2 * rows : rows, 0};
        if (p->n_in % 64) return 0;
        share = max(share, p->rows);
        b->slot_bytes = max(b->slot_bytes, p->lines * LINE);
    }
    b->slot_bytes = (b->slot_bytes + 1023) / 1024 * 1024;
    for (int n = 0; n < PHASES; n++) {
        part *p = &b->p[n];
        p->boxes = min(b->slot_bytes / (p->lines * LINE), (int)MAX_BOXES);
    }
    for (const form *f = forms; f < forms + N_FORM; f++)
        if (f->ring / b->slot_bytes >= LEAST_SLOTS && share <= f->share)
            most = min(f->rows, b->g->sm_count);
    return most;
}

/* TOGETHER: refused where not all CTAs have room at once. EARLY: begins while the kernel before
 * ends, where that one allows it. */
typedef enum start { PLAIN, TOGETHER, EARLY } start;

/* In the stream of g, behind what is there. */
static corun_status launch(const gpu_between *b, const form *f, between_args *a, start how)
{
    cudaLaunchAttribute attr = {};
    if (how == TOGETHER) {
        attr.id = cudaLaunchAttributeCooperative;
        attr.val.cooperative = 1;
    } else {
        attr.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attr.val.programmaticStreamSerializationAllowed = how == EARLY;
    }
    cudaLaunchConfig_t c = {};
    c.gridDim = dim3((unsigned)b->g->sm_count);
    c.blockDim = dim3(THREADS);
    c.dynamicSmemBytes = BYTES;
    c.stream = (cudaStream_t)b->g->stream;
    c.attrs = &attr;
    c.numAttrs = 1;
    void *args[] = {a};
    return gpu_status((int)cudaLaunchKernelExC(&c, (const void *)f->kernel, args),
                      "kernel for few rows");
}

/* Whose turn was the last on a device; NULL: nothing of it is left. */
enum { MAX_DEVICES = 64 };
static pthread_mutex_t turns = PTHREAD_MUTEX_INITIALIZER;
static const gpu_between *last_turn[MAX_DEVICES];

corun_status gpu_between_enter(const gpu_between *b)
{
    pthread_mutex_lock(&turns);
    const gpu_between *other = last_turn[b->g->device];
    if (!other || other == b) return CORUN_OK;
    const corun_status st = gpu_status(
        (int)cudaStreamWaitEvent((cudaStream_t)b->g->stream, other->done, 0), "another's turn");
    if (st != CORUN_OK) pthread_mutex_unlock(&turns);
    return st;
}

/* Without a launch the turn stays with the other, whom the next one must still wait for. */
corun_status gpu_between_leave(const gpu_between *b, corun_status st)
{
    if (st == CORUN_OK) {
        st = gpu_status((int)cudaEventRecord(b->done, (cudaStream_t)b->g->stream), "turn");
        if (st != CORUN_OK) cudaStreamSynchronize((cudaStream_t)b->g->stream);
        last_turn[b->g->device] = b;
    }
    pthread_mutex_unlock(&turns);
    return st;
}

/* Programs may share the SMs (MPS). */
static bool shared_with_others(int device)
{
    int mps = 0;
    if (cudaDeviceGetAttribute(&mps, cudaDevAttrMpsEnabled, device) == cudaSuccess) return mps;
    (void)cudaGetLastError(); /* a driver that does not know the question */
    return true;
}

/* The driver's; NULL: it has none. */
static PFN_cuTensorMapEncodeTiled_v12000 find_encode_map(void)
{
    void *f = NULL;
    enum cudaDriverEntryPointQueryResult found;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault,
                                         &found) == cudaSuccess &&
        found == cudaDriverEntryPointSuccess)
        return (PFN_cuTensorMapEncodeTiled_v12000)f;
    (void)cudaGetLastError();
    return NULL;
}

corun_status gpu_between_open(gpu_between **out, const gpu *g, const ops_dims *d)
{
    *out = NULL;
    if (g->cc != 90 || g->device >= MAX_DEVICES || shared_with_others(g->device)) return CORUN_OK;
    gpu_between *b = (gpu_between *)mem_alloc(1, sizeof *b, "kernel for few rows");
    if (!b) return CORUN_ENOMEM;
    b->g = g;
    b->n_embd = d->n_embd;
    b->most = lay_out(b, d);
    b->encode_map = find_encode_map();
    if (!b->most || !b->encode_map) {
        mem_free(b);
        return CORUN_OK;
    }
    corun_status st = gpu_alloc(g, (void **)&b->arrived, sizeof *b->arrived, "counter of CTAs");
    bool room =
        st == CORUN_OK && cudaEventCreateWithFlags(&b->done, cudaEventDisableTiming) == cudaSuccess;
    for (int f = 0; f < N_FORM && room; f++)
        room =
            cudaFuncSetAttribute((const void *)forms[f].kernel,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES) == cudaSuccess;
    between_args none = {}; /* of no part */
    none.arrived = b->arrived;
    room = room && gpu_between_enter(b) == CORUN_OK &&
           gpu_between_leave(b, launch(b, forms, &none, TOGETHER)) == CORUN_OK;
    if (room) {
        *out = b;
    } else {
        (void)cudaGetLastError();
        gpu_between_close(b);
    }
    return st;
}

int32_t gpu_between_rows(const gpu_between *b) { return b ? b->most : 0; }

void gpu_between_close(gpu_between *b)
{
    if (!b) return;
    (void)gpu_sync(b->g, "kernel for few rows"); /* what failed there was told before */
    pthread_mutex_lock(&turns);
    if (last_turn[b->g->device] == b) last_turn[b->g->device] = NULL;
    pthread_mutex_unlock(&turns);
    if (b->done) cudaEventDestroy(b->done);
    gpu_free(b->arrived);
    mem_free(b);
}

static corun_status map_weights(const gpu_between *b, CUtensorMap *m, const void *w, int64_t n_out,
                                const part *p)
{
    const cuuint64_t size[2] = {(cuuint64_t)p->n_in, (cuuint64_t)n_out};
    const cuuint64_t pitch[1] = {(cuuint64_t)p->n_in * 2};
    const cuuint32_t box[2] = {64, (cuuint32_t)p->rows}, step[2] = {1, 1};
    const CUresult e =
        b->encode_map(m, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, (void *)w, size, pitch, box, step,
                      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                      CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (e != CUDA_SUCCESS)
        FAIL(CORUN_EDEVICE, "a tensor map of %lld x %d: driver error %d", (long long)n_out, p->n_in,
             (int)e);
    return CORUN_OK;
}

corun_status gpu_between_run(gpu_between *b, int32_t rows, const gpu_between_part *v, bool early)
{
    between_args a = {};
    const form *f = forms;
    while (f->rows < rows) f++;
    a.last = v->w[QKV] ? PHASES : QKV;
    for (int n = 0; n < a.last; n++) {
        a.p[n] = b->p[n];
        a.bias[n] = (const uint16_t *)v->bias[n];
        TRY(map_weights(b, &a.w[n], v->w[n], (n == GATE_UP ? 2 : 1) * (int64_t)b->p[n].n_out,
                        &b->p[n]));
    }
    for (int i = 0; i < 2; i++) a.gain[i] = (const uint16_t *)v->gain[i];
    a.attn = (const uint16_t *)v->attn;
    a.h = (uint16_t *)v->h;
    a.x = (uint16_t *)v->x;
    a.y = (uint16_t *)v->y;
    a.act = (uint16_t *)v->act;
    a.qkv = (uint16_t *)v->qkv;
    a.arrived = b->arrived;
    a.eps = v->eps;
    a.inv = (float)(1.0 / (double)b->n_embd);
    a.rows = rows;
    a.n_embd = b->n_embd;
    a.slots = min(f->ring / b->slot_bytes, (int)MAX_SLOTS);
    a.slot_bytes = b->slot_bytes;
    return launch(b, f, &a, early ? EARLY : PLAIN);
}
