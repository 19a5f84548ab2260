/* attention_prefill.cuh - attention of consecutive rows of one sequence by wgmma.
 *
 * One CTA of three warpgroups an SM takes items (tile of 128 rows, head, range of blocks) until
 * none is left. Of the first warpgroup one warp copies blocks of K ahead and one those of V, the
 * other groups have 64 rows each and their queries in registers: the scores of block j + 1 are in
 * flight while P·V of block j is. The two take turns at giving work to the tensor cores, a block at
 * a time, so that one computes weights while the other's products run. The folded output of earlier
 * chunks lies in shared memory. Bound: the tensor cores and the bandwidth of shared memory.
 * Level: phase (chunks of the row alone), run where the chunk length follows the step. Invariant: a
 * row's result depends on its chunk length alone: not on the tile it is in, on where the sequence
 * was cut, on which CTA has which blocks or on the page size. */
#ifndef OPS_CUDA_ATTENTION_PREFILL_CUH
#define OPS_CUDA_ATTENTION_PREFILL_CUH

#include "ops/cuda/attention.cuh"
#include "ops/cuda/wgmma.cuh"

enum {
    PREFILL_K_STAGES = 2,
    PREFILL_V_STAGES = 3,
    PREFILL_ITEMS = 8, /* places of items, which nobody waits for: see below */
    PREFILL_THREADS = 384,
    PREFILL_CONSUMERS = 256,
    PREFILL_TURN_BARRIER = 1, /* named barriers 1 and 2: the turn of each consumer warpgroup */
    FOLD_THREADS = 256
};

/* A place is written again when the keys of an item behind it could be copied, whose stage all
 * consumers have left: they, and the warp of the values, have read the place by then. */
static_assert(PREFILL_ITEMS >= PREFILL_K_STAGES + 2, "places of items");

template <int D> struct prefill_layout {
    static constexpr int MATRIX = ATTN_BLOCK * D * 2;
    static constexpr int K = 0, V = K + PREFILL_K_STAGES * MATRIX; /* [stage][d/64][token][64] */
    static constexpr int OUTPUT = V + PREFILL_V_STAGES * MATRIX; /* fp32, [element/4][thread][4] */
    static constexpr int ITEM = OUTPUT + ATTN_TILE * D * 4;
    static constexpr int BARRIERS = ITEM + PREFILL_ITEMS * (int)sizeof(attn_item);
    static constexpr int K_FULL = 0, K_FREE = PREFILL_K_STAGES; /* numbers of barriers */
    static constexpr int V_FULL = 2 * PREFILL_K_STAGES, V_FREE = V_FULL + PREFILL_V_STAGES;
    static constexpr int ITEM_FULL = V_FREE + PREFILL_V_STAGES;
    static constexpr int ZERO = BARRIERS + (ITEM_FULL + PREFILL_ITEMS) * 8; /* a word that is 0 */
    static constexpr int BYTES = ZERO + 16 + 1024;
};

/* The copying warps. Values behind a tile's last row are zero: only its last block has such. */
template <int D> struct prefill_copies {
    using layout = prefill_layout<D>;
    const attn_args &at;
    char *shared;
    uint32_t base;
    int lane;

    DEVICE uint32_t barrier(int number) const { return base + layout::BARRIERS + 8 * number; }
    DEVICE attn_item &place(uint32_t m) const
    {
        return ((attn_item *)(shared + layout::ITEM))[m % PREFILL_ITEMS];
    }

    /* K (V: VALUES) of an item's blocks into stages n, n + 1, ... */
    template <bool VALUES> DEVICE void copy(const attn_item &item, uint32_t &n) const
    {
        constexpr int STAGES = VALUES ? PREFILL_V_STAGES : PREFILL_K_STAGES;
        constexpr int FULL = VALUES ? layout::V_FULL : layout::K_FULL;
        constexpr int FREE = VALUES ? layout::V_FREE : layout::K_FREE;
        const page_lane mine = lane_of_pages<D, ATTN_BLOCK>(at, lane);
        const int32_t *pages = at.page + (size_t)item.row * at.max_page;
        const int head = item.head / at.group, last = item.position + item.rows - 1;
        const uint64_t policy = policy_evict_normal();
        const int end = min(last + 1, (item.block + item.blocks) * ATTN_BLOCK);
        auto page_of = [&](int token) {
            return __ldg(pages + (min(token + mine.first, last) >> at.page_shift));
        };
        int32_t page = page_of(item.block * ATTN_BLOCK);
#pragma unroll 1
        for (int first = item.block * ATTN_BLOCK; first < end; first += ATTN_BLOCK, n++) {
            const char *from = page_head<D>(at, page, head);
            if (VALUES) from += (size_t)at.page_tokens * D * 2;
            const uint32_t stage = n % STAGES, full = barrier(FULL + stage);
            const uint32_t to = (VALUES ? layout::V : layout::K) + stage * layout::MATRIX;
            const int tokens = min(ATTN_BLOCK, end - first);
            page = page_of(first + ATTN_BLOCK);
            if (n >= STAGES) barrier_wait(barrier(FREE + stage), (n / STAGES + 1) & 1);
            if (VALUES && tokens < ATTN_BLOCK) {
                clear_tokens<D, ATTN_BLOCK>(shared + to, tokens, lane, 32);
                fence_async();
            }
            if (lane == 0)
                barrier_expect(full, (uint32_t)tokens * D * 2);
            else if (VALUES)
                barrier_arrive(full);
            __syncwarp();
            load_span<D, ATTN_BLOCK>(at, mine, base + to, from, first, tokens, full, policy);
        }
    }

    /* Counts the items, and tells the others. */
    DEVICE void run_keys() const
    {
        const uint32_t heads = (uint32_t)(at.n_kv * at.group);
        const uint32_t items = (uint32_t)at.work->prefill_items * heads;
        uint32_t n = 0, m = 0, number = blockIdx.x;
        for (; number < items; m++) {
            attn_item item = at.prefill[number / heads];
            item.head = (int32_t)(number % heads);
            if (lane == 0) {
                place(m) = item;
                barrier_arrive(barrier(layout::ITEM_FULL + m % PREFILL_ITEMS));
                number = atomicAdd(&at.work->prefill_next, 1) + gridDim.x;
            }
            copy<false>(item, n);
            number = __shfl_sync(~0u, number, 0);
        }
        if (lane != 0) return;
        place(m).blocks = 0;
        barrier_arrive(barrier(layout::ITEM_FULL + m % PREFILL_ITEMS));
        if (count_arrival(&at.work->prefill_done, gridDim.x - 1) == gridDim.x - 1)
            at.work->prefill_next = 0;
    }

    DEVICE void run_values() const
    {
        uint32_t n = 0;
        for (uint32_t m = 0;; m++) {
            barrier_wait(barrier(layout::ITEM_FULL + m % PREFILL_ITEMS), m / PREFILL_ITEMS & 1);
            const attn_item item = place(m);
            if (item.blocks == 0) return;
            copy<true>(item, n);
        }
    }
};

/* x where bits is 0, which the compiler does not know: x is not there before bits is. */
DEVICE float with_bits(float x, uint32_t bits)
{
    return __uint_as_float(__float_as_uint(x) | bits);
}

template <int D> struct prefill_rows {
    using layout = prefill_layout<D>;
    static constexpr int SCORES = ATTN_BLOCK / 2, OUTPUTS = D / 2; /* a thread's share */
    static constexpr int BLOCK_HALF = ATTN_BLOCK * ATTN_LINE;

    const attn_args &at;
    char *shared;
    uint32_t base;
    int thread, group, warp, lane, g, q; /* thread: of the consumers; warp: of the group */
    attn_item item;
    int row[2], position[2];         /* the thread's two rows in the tile, and in the sequence */
    float t[2], l[2], a[2];          /* of the chunk at work */
    float whole_t[2], whole_l[2];    /* of the chunks before */
    float s[SCORES];                 /* column 8·(i / 4) + 2q + (i & 1), row i >> 1 & 1 */
    float o[OUTPUTS];                /* the same over dimensions */
    uint32_t query[D / 4];           /* q as the fragments of A: two of either row, in turn */
    uint32_t packed[ATTN_BLOCK / 4]; /* bf16 P as the fragments of A */

    DEVICE prefill_rows(const attn_args &at_, char *shared_) : at(at_), shared(shared_)
    {
        base = shared_address(shared);
        int of_cta = __shfl_sync(~0u, (int)threadIdx.x >> 5, 0); /* uniform for the compiler */
        thread = (int)threadIdx.x - 128;
        group = (of_cta >> 2) - 1;
        warp = of_cta & 3;
        lane = thread & 31;
        g = lane >> 2;
        q = lane & 3;
    }

    DEVICE uint32_t barrier(int number) const { return base + layout::BARRIERS + 8 * number; }
    DEVICE void wait_key(uint32_t n) const
    {
        barrier_wait(barrier(layout::K_FULL + n % PREFILL_K_STAGES), (n / PREFILL_K_STAGES) & 1);
    }
    DEVICE void wait_value(uint32_t n) const
    {
        barrier_wait(barrier(layout::V_FULL + n % PREFILL_V_STAGES), (n / PREFILL_V_STAGES) & 1);
    }
    DEVICE void release_key(uint32_t n) const /* every thread, as in decode */
    {
        barrier_arrive(barrier(layout::K_FREE + n % PREFILL_K_STAGES));
    }
    DEVICE void release_value(uint32_t n) const
    {
        barrier_arrive(barrier(layout::V_FREE + n % PREFILL_V_STAGES));
    }
    /* o[4i] to o[4i + 3] of the chunks before: two of either row. */
    DEVICE float4 &folded(int i)
    {
        return ((float4 *)(shared + layout::OUTPUT))[i * PREFILL_CONSUMERS + thread];
    }
    DEVICE int heads() const { return at.n_kv * at.group; }

    /* By shuffles, so that the compiler knows the item to be the same in all lanes. */
    DEVICE void read_item(uint32_t m)
    {
        barrier_wait(barrier(layout::ITEM_FULL + m % PREFILL_ITEMS), m / PREFILL_ITEMS & 1);
        const int32_t *from =
            (const int32_t *)(shared + layout::ITEM + m % PREFILL_ITEMS * sizeof item);
        int32_t word = from[min(lane, (int)(sizeof item / 4) - 1)];
        int32_t *to = (int32_t *)&item;
#pragma unroll
        for (int i = 0; i < (int)(sizeof item / 4); i++) to[i] = __shfl_sync(~0u, word, i);
    }

    DEVICE void begin_item()
    {
        for (int r = 0; r < 2; r++) {
            row[r] = 64 * group + 16 * warp + g + 8 * r;
            position[r] = item.position + row[r];
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            size_t first = ((size_t)(item.token + row[r]) * heads() + item.head) * D + 2 * q;
#pragma unroll
            for (int i = r; i < D / 4; i += 2)
                query[i] = row[r] < item.rows ? *(const uint32_t *)(at.q + first + 4 * (i - r)) : 0;
        }
#pragma unroll
        for (int i = 0; i < OUTPUTS; i++) o[i] = 0;
    }

    DEVICE void begin_chunk()
    {
        t[0] = t[1] = -INFINITY;
        l[0] = l[1] = 0;
    }

    /* Each group takes one turn for every block of an item, whether it has rows there or not. */
    DEVICE void begin_turn() const
    {
        named_barrier(PREFILL_TURN_BARRIER + group, PREFILL_CONSUMERS);
    }
    DEVICE void end_turn() const
    {
        named_arrive(PREFILL_TURN_BARRIER + (group ^ 1), PREFILL_CONSUMERS);
    }

    /* Low halves of the matrices of stage n. */
    DEVICE uint32_t keys(uint32_t n) const
    {
        return wgmma_low(base + layout::K) + n % PREFILL_K_STAGES * (layout::MATRIX / 16);
    }
    DEVICE uint32_t values(uint32_t n) const
    {
        return wgmma_low(base + layout::V, BLOCK_HALF) +
               n % PREFILL_V_STAGES * (layout::MATRIX / 16);
    }

    /* Starts s = q·K of the block in stage n. */
    DEVICE void start_scores(uint32_t n)
    {
        const uint32_t key = keys(n);
        wait_key(n);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < D / 16; k++)
            wgmma_registers<0>(s, query + 4 * k,
                               wgmma_lines(key + (k >> 2) * (BLOCK_HALF / 16) + (k & 3) * 2),
                               k > 0);
        wgmma_commit();
    }

    /* Starts o += P·V. */
    DEVICE void start_values(uint32_t n)
    {
        const uint32_t value = values(n);
        wait_value(n);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < ATTN_BLOCK / 16; k++)
            wgmma_registers<1>(o, packed + 4 * k, wgmma_lines(value + k * 128), 1);
        wgmma_commit();
    }

    /* Whether some row of the group does not see all of the block. */
    DEVICE bool edge(int block) const
    {
        return block * ATTN_BLOCK + ATTN_BLOCK - 1 > item.position + 64 * group;
    }

    DEVICE void mask(int block)
    {
#pragma unroll
        for (int i = 0; i < SCORES; i++)
            if (block * ATTN_BLOCK + 8 * (i >> 2) + 2 * q + (i & 1) > position[i >> 1 & 1])
                s[i] = -INFINITY;
    }

    /* t' and a of row r of a block whose scores are there. */
    DEVICE void maximum(int r)
    {
        float m = -INFINITY;
#pragma unroll
        for (int i = 2 * r; i < SCORES; i += 4) m = fmaxf(m, fmaxf(s[i], s[i + 1]));
        m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
        m = fmaxf(m, __shfl_xor_sync(~0u, m, 2));
        t[r] = block_maximum(t[r], m, at.c, a[r]);
    }

    /* P (in s) and the sum of row r. */
    DEVICE void weights(int r, float t_r)
    {
        float sum = 0;
#pragma unroll
        for (int i = 2 * r; i < SCORES; i += 4)
#pragma unroll
            for (int k = i; k < i + 2; k++) {
                s[k] = block_weight(s[k], at.c, t_r);
                sum = __fadd_rn(sum, s[k]);
            }
        l[r] = __fmaf_rn(l[r], a[r], sum);
    }

    DEVICE void pack_weights(int r)
    {
#pragma unroll
        for (int i = 2 * r; i < SCORES; i += 4) packed[i / 2] = pack_bf16(s[i], s[i + 1]);
    }

    /* The weights of a block while P·V of the one before runs, which is awaited when half of them
     * are there. Beside the other half, whose exponentials take longest, stands what had to wait: o
     * times a, where no chunk begins, and P as bf16. `zero` holds that half back, which the
     * assembler would move in front of the wait. No branch in between: it would place the wait
     * there. */
    DEVICE void weights_beside_products(bool begins)
    {
        maximum(0);
        maximum(1);
        weights(0, t[0]);
        float keep[2] = {begins ? 1.0f : a[0], begins ? 1.0f : a[1]};
        wgmma_wait_behind(fminf(l[0], keep[1]), base);
        wgmma_arrived(o);
        const uint32_t zero = load_shared(base + layout::ZERO);
        pack_weights(0);
        keep[0] = with_bits(keep[0], zero);
        weights(1, with_bits(t[1], zero));
#pragma unroll
        for (int i = 0; i < OUTPUTS; i++) o[i] = __fmul_rn(o[i], keep[i >> 1 & 1]);
        pack_weights(1);
    }

    /* The chunk that ended: folded into the item's chunks before. The first one is copied, and each
     * one that goes to memory. */
    DEVICE void end_chunk(int chunk, const float (&chunk_t)[2], const float (&chunk_l)[2])
    {
        int first_token = chunk * item.chunk * ATTN_BLOCK;
        float sum[2] = {quad_sum(chunk_l[0]), quad_sum(chunk_l[1])};
        if (chunk == 0 || item.slot >= 0) {
            for (int r = 0; r < 2; r++) {
                whole_t[r] = chunk_t[r];
                whole_l[r] = sum[r];
            }
#pragma unroll
            for (int i = 0; i < OUTPUTS / 4; i++)
                folded(i) = make_float4(o[4 * i], o[4 * i + 1], o[4 * i + 2], o[4 * i + 3]);
        } else {
            float keep[2] = {1, 1}, weight[2] = {0, 0};
            bool exists[2] = {first_token <= position[0], first_token <= position[1]};
            for (int r = 0; r < 2; r++)
                if (exists[r])
                    fold_state(whole_t[r], whole_l[r], chunk_t[r], sum[r], keep[r], weight[r]);
#pragma unroll
            for (int i = 0; i < OUTPUTS / 4; i++) {
                float4 x = folded(i);
                if (exists[0]) {
                    x.x = fold_output(x.x, o[4 * i], keep[0], weight[0]);
                    x.y = fold_output(x.y, o[4 * i + 1], keep[0], weight[0]);
                }
                if (exists[1]) {
                    x.z = fold_output(x.z, o[4 * i + 2], keep[1], weight[1]);
                    x.w = fold_output(x.w, o[4 * i + 3], keep[1], weight[1]);
                }
                folded(i) = x;
            }
        }
#pragma unroll
        for (int i = 0; i < OUTPUTS; i++) o[i] = 0;
    }

    /* The state of the chunk that ended last. */
    DEVICE void write_state(int chunk)
    {
        int first_token = chunk * item.chunk * ATTN_BLOCK;
        for (int r = 0; r < 2; r++) {
            if (row[r] >= item.rows || first_token > position[r]) continue;
            size_t slot = (size_t)item.slot + (size_t)chunk * item.rows + row[r];
            size_t state = slot * heads() + item.head;
            if (q == 0) __stcg(at.state_tl + state, make_float2(whole_t[r], whole_l[r]));
            float2 *to = (float2 *)(at.state_o + state * D) + q;
#pragma unroll 2
            for (int i = 0; i < OUTPUTS / 4; i++) {
                float4 x = folded(i);
                __stcg(to + i * 4, r == 0 ? make_float2(x.x, x.y) : make_float2(x.z, x.w));
            }
        }
    }

    DEVICE void write_rows()
    {
        float inverse[2] = {__frcp_rn(whole_l[0]), __frcp_rn(whole_l[1])};
        size_t index = ((size_t)(item.token + row[0]) * heads() + item.head) * D + 2 * q;
        size_t below = (size_t)8 * heads() * D;
        bool mine[2] = {row[0] < item.rows, row[1] < item.rows};
#pragma unroll
        for (int i = 0; i < OUTPUTS / 4; i++, index += 8) {
            float4 x = folded(i);
            x = make_float4(__fmul_rn(x.x, inverse[0]), __fmul_rn(x.y, inverse[0]),
                            __fmul_rn(x.z, inverse[1]), __fmul_rn(x.w, inverse[1]));
            if (mine[0]) *(uint32_t *)(at.out + index) = pack_bf16(x.x, x.y);
            if (mine[1]) *(uint32_t *)(at.out + index + below) = pack_bf16(x.z, x.w);
            if (at.out_fp32 && mine[0]) *(float2 *)(at.out_fp32 + index) = make_float2(x.x, x.y);
            if (at.out_fp32 && mine[1])
                *(float2 *)(at.out_fp32 + index + below) = make_float2(x.z, x.w);
        }
    }

    /* A turn: the scores of the block in stage n and P·V of the one before; the scores are there
     * afterwards. */
    DEVICE void give(uint32_t n)
    {
        begin_turn();
        start_scores(n);
        start_values(n - 1);
        end_turn();
        wgmma_wait_until<1>();
        wgmma_arrived(s);
        release_key(n);
    }

    /* `count` blocks from `first`, where a chunk begins, in the stages from n on. The weights of a
     * block whose tokens are all seen are made while P·V of the one before runs: without a branch
     * in between, where the assembler would place the wait. */
    DEVICE void attend(uint32_t n, int first, int count)
    {
        begin_chunk();
        begin_turn();
        start_scores(n);
        end_turn();
        wgmma_wait_until<0>();
        wgmma_arrived(s);
        release_key(n);
        if (edge(first)) mask(first);
        for (int r = 0; r < 2; r++) {
            maximum(r);
            weights(r, t[r]);
            pack_weights(r);
        }
        int chunk = first / item.chunk;
        for (int j = 1, of_chunk = 1; j < count; j++, of_chunk++) {
            bool begins = of_chunk == item.chunk;
            if (begins) of_chunk = 0;
            float old_t[2] = {t[0], t[1]}, old_l[2] = {l[0], l[1]};
            for (int r = 0; r < 2; r++) { /* begin_chunk */
                t[r] = begins ? -INFINITY : t[r];
                l[r] = begins ? 0 : l[r];
            }
            give(n + j);
            if (edge(first + j)) mask(first + j);
            weights_beside_products(begins);
            release_value(n + j - 1);
            if (begins) end_chunk(chunk++, old_t, old_l);
        }
        start_values(n + count - 1);
        wgmma_wait_until<0>();
        wgmma_arrived(o);
        release_value(n + count - 1);
        end_chunk(chunk, t, l);
    }

    DEVICE void run()
    {
        if (group == 1) end_turn(); /* the first turn is that of group 0 */
        uint32_t n = 0;
        for (uint32_t m = 0;; m++) {
            read_item(m);
            if (item.blocks == 0) return;
            int last = item.position + min(64 * group + 64, item.rows) - 1; /* of the group */
            int end = item.position + item.rows - 1;                        /* of the tile */
            int blocks = min(item.blocks, end / ATTN_BLOCK + 1 - item.block);
            int count = 64 * group >= item.rows ? 0 : last / ATTN_BLOCK + 1 - item.block;
            count = min(blocks, count);
            begin_item();
            /* Whose chunks go to memory: one after the other. */
            int step = item.slot >= 0 ? item.chunk : max(count, 1);
            for (int j = 0; j < count; j += step) {
                attend(n + j, item.block + j, min(step, count - j));
                if (item.slot >= 0) write_state((item.block + j) / item.chunk);
            }
            for (int j = max(count, 0); j < blocks; j++) {
                begin_turn();
                end_turn();
                wait_key(n + j);
                wait_value(n + j);
                release_key(n + j);
                release_value(n + j);
            }
            n += (uint32_t)blocks;
            if (item.slot < 0) write_rows();
        }
    }
};

template <int D>
__global__ void __launch_bounds__(PREFILL_THREADS, 1) k_attn_prefill(const attn_args at)
{
#if PTX_HOPPER
    using layout = prefill_layout<D>;
    extern __shared__ char memory[];
    char *shared = memory + (-shared_address(memory) & 1023);
    prefill_copies<D> copies = {at, shared, shared_address(shared), (int)threadIdx.x & 31};
    if (threadIdx.x == 0) {
        for (int i = 0; i < PREFILL_K_STAGES; i++) {
            barrier_init(copies.barrier(layout::K_FULL + i), 1);
            barrier_init(copies.barrier(layout::K_FREE + i), PREFILL_CONSUMERS);
        }
        for (int i = 0; i < PREFILL_V_STAGES; i++) {
            barrier_init(copies.barrier(layout::V_FULL + i), 32);
            barrier_init(copies.barrier(layout::V_FREE + i), PREFILL_CONSUMERS);
        }
        for (int i = 0; i < PREFILL_ITEMS; i++)
            barrier_init(copies.barrier(layout::ITEM_FULL + i), 1);
        *(uint32_t *)(shared + layout::ZERO) = 0;
        barrier_init_done();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x < 32)
            copies.run_keys();
        else if (threadIdx.x < 64)
            copies.run_values();
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        prefill_rows<D>(at, shared).run();
    }
#endif
}

/* Folds the tiles whose chunks went to memory. A CTA takes some rows of one head of a tile at a
 * time, a thread four dimensions of a row. */
template <int D> __global__ void __launch_bounds__(FOLD_THREADS) k_attn_fold(const attn_args at)
{
    constexpr int ROWS = FOLD_THREADS / (D / 4), PARTS = ATTN_TILE / ROWS;
    int heads = at.n_kv * at.group, row = threadIdx.x / (D / 4), dim = threadIdx.x % (D / 4) * 4;
    int units = at.work->prefill_items * PARTS * heads;
    for (int unit = blockIdx.x; unit < units; unit += gridDim.x) {
        const attn_item &item = at.prefill[unit / (PARTS * heads)];
        int head = unit % heads, r = unit / heads % PARTS * ROWS + row;
        if (item.slot < 0 || item.block > 0 || r >= item.rows) continue;
        int chunks = (item.position + r) / (ATTN_BLOCK * item.chunk) + 1;
        fold_memory<D>(at, ((size_t)item.slot + r) * heads + head, (size_t)item.rows * heads,
                       chunks, dim, ((size_t)(item.token + r) * heads + head) * D + dim);
    }
}

#endif
