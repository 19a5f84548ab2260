/* attention_prefill.cuh - attention of consecutive rows of one sequence by wgmma.
 *
 * One CTA of three warpgroups an SM takes items (tile of 128 rows, head, range of blocks) until
 * none is left. The first warpgroup copies blocks of K and V ahead, the others have 64 rows each:
 * the scores of block j + 1 are in flight while P·V of block j is. The two take turns at giving
 * work to the tensor cores, a block at a time, so that one computes weights while the other's
 * products run. The folded output of earlier chunks lies in shared memory. Bound: the tensor cores.
 * Level: phase (chunks of the row alone), run where the chunk length follows the step. Invariant: a
 * row's result depends on its chunk length alone: not on the tile it is in, on where the sequence
 * was cut, on which CTA has which blocks or on the page size. */
#ifndef OPS_CUDA_ATTENTION_PREFILL_CUH
#define OPS_CUDA_ATTENTION_PREFILL_CUH

#include "ops/cuda/attention.cuh"
#include "ops/cuda/wgmma.cuh"

enum {
    PREFILL_STAGES = 2,
    PREFILL_THREADS = 384,
    PREFILL_CONSUMERS = 256,
    PREFILL_GROUP_BARRIER = 1, /* named barriers 1 and 2: of the two consumer warpgroups */
    PREFILL_TURN_BARRIER = 3,  /* 3 and 4: the turn of each */
    FOLD_THREADS = 256
};

template <int D> struct prefill_layout {
    static constexpr int MATRIX = ATTN_BLOCK * D * 2, QUERY_HALF = ATTN_TILE * ATTN_LINE;
    static constexpr int QUERY = 0; /* [d/64][rows][64] */
    static constexpr int K = QUERY + D / 64 * QUERY_HALF, V = K + PREFILL_STAGES * MATRIX;
    static constexpr int OUTPUT = V + PREFILL_STAGES * MATRIX; /* fp32, [element][thread] */
    static constexpr int ITEM = OUTPUT + ATTN_TILE * D * 4;    /* one a stage */
    static constexpr int BARRIERS = ITEM + PREFILL_STAGES * (int)sizeof(attn_item);
    static constexpr int K_FULL = 0, V_FULL = PREFILL_STAGES; /* numbers of barriers */
    static constexpr int K_FREE = 2 * PREFILL_STAGES, V_FREE = 3 * PREFILL_STAGES;
    static constexpr int BYTES = BARRIERS + 4 * PREFILL_STAGES * 8 + 1024;
};

template <int D> struct prefill_copies {
    using layout = prefill_layout<D>;
    const attn_args &at;
    char *shared;
    uint32_t base;
    int lane;

    DEVICE uint32_t barrier(int number) const { return base + layout::BARRIERS + 8 * number; }

    DEVICE void wait_free(int number, uint32_t n) const
    {
        if (n >= PREFILL_STAGES)
            barrier_wait(barrier(number + n % PREFILL_STAGES), (n / PREFILL_STAGES + 1) & 1);
    }

    DEVICE int32_t page_of(const attn_item &item, const page_lane &mine, int token) const
    {
        int last = (item.position + item.rows - 1) >> at.page_shift;
        return __ldg(at.page + (size_t)item.row * at.max_page +
                     min((token + mine.first) >> at.page_shift, last));
    }

    DEVICE void copy_item(const attn_item &item, const page_lane &mine, uint32_t &n,
                          uint64_t policy) const
    {
        int begin = item.block * ATTN_BLOCK;
        int end = min(item.position + item.rows, begin + item.blocks * ATTN_BLOCK);
        int32_t page = page_of(item, mine, begin);
        for (int first = begin; first < end; first += ATTN_BLOCK, n++) {
            const char *k = page_head<D>(at, page, item.head / at.group);
            uint32_t stage = n % PREFILL_STAGES;
            int tokens = min(ATTN_BLOCK, end - first);
            uint32_t k_full = barrier(layout::K_FULL + stage);
            uint32_t v_full = barrier(layout::V_FULL + stage);
            page = page_of(item, mine, first + ATTN_BLOCK);
            wait_free(layout::K_FREE, n);
            if (lane == 0) {
                if (first == begin) ((attn_item *)(shared + layout::ITEM))[stage] = item;
                barrier_expect(k_full, (uint32_t)tokens * D * 2);
            }
            __syncwarp();
            load_span<D, ATTN_BLOCK>(at, mine, base + layout::K + stage * layout::MATRIX, k, first,
                                     tokens, k_full, policy);
            wait_free(layout::V_FREE, n);
            /* Values behind the tile's last row are zero: only its last block has such. */
            if (tokens < ATTN_BLOCK) {
                clear_tokens<D, ATTN_BLOCK>(shared + layout::V + stage * layout::MATRIX, tokens,
                                            lane, 32);
                fence_async();
            }
            if (lane == 0)
                barrier_expect(v_full, (uint32_t)tokens * D * 2);
            else
                barrier_arrive(v_full);
            __syncwarp();
            load_span<D, ATTN_BLOCK>(at, mine, base + layout::V + stage * layout::MATRIX,
                                     k + (size_t)at.page_tokens * D * 2, first, tokens, v_full,
                                     policy);
        }
    }

    DEVICE void run() const
    {
        int heads = at.n_kv * at.group;
        uint64_t policy = policy_evict_normal();
        page_lane mine = lane_of_pages<D, ATTN_BLOCK>(at, lane);
        uint32_t n = 0, items = (uint32_t)(at.work->prefill_items * heads), number = blockIdx.x;
        while (number < items) {
            attn_item item = at.prefill[number / heads];
            item.head = (int32_t)(number % heads);
            if (lane == 0) number = atomicAdd(&at.work->prefill_next, 1) + gridDim.x;
            copy_item(item, mine, n, policy);
            number = __shfl_sync(~0u, number, 0);
        }
        if (lane != 0) return;
        wait_free(layout::K_FREE, n);
        wait_free(layout::V_FREE, n);
        ((attn_item *)(shared + layout::ITEM))[n % PREFILL_STAGES].blocks = 0;
        barrier_arrive(barrier(layout::K_FULL + n % PREFILL_STAGES));
        if (count_arrival(&at.work->prefill_done, gridDim.x - 1) == gridDim.x - 1)
            at.work->prefill_next = 0;
    }
};

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
    DEVICE void wait_full(int number, uint32_t n) const
    {
        barrier_wait(barrier(number + n % PREFILL_STAGES), (n / PREFILL_STAGES) & 1);
    }
    DEVICE void release(int number, uint32_t n) const /* every thread, as in decode */
    {
        barrier_arrive(barrier(number + n % PREFILL_STAGES));
    }
    DEVICE float &folded(int i)
    {
        return ((float *)(shared + layout::OUTPUT))[i * PREFILL_CONSUMERS + thread];
    }
    DEVICE int heads() const { return at.n_kv * at.group; }

    /* By shuffles, so that the compiler knows the item to be the same in all lanes. */
    DEVICE void read_item(uint32_t stage)
    {
        const int32_t *from = (const int32_t *)(shared + layout::ITEM + stage * sizeof item);
        int32_t word = from[min(lane, (int)(sizeof item / 4) - 1)];
        int32_t *to = (int32_t *)&item;
#pragma unroll
        for (int i = 0; i < (int)(sizeof item / 4); i++) to[i] = __shfl_sync(~0u, word, i);
    }

    DEVICE void begin_item()
    {
        constexpr int PIECES = D / 8;
        for (int r = 0; r < 2; r++) {
            row[r] = 64 * group + 16 * warp + g + 8 * r;
            position[r] = item.position + row[r];
        }
        named_barrier(PREFILL_GROUP_BARRIER + group, 128); /* the queries before were read */
        for (int i = thread & 127; i < 64 * PIECES; i += 128) {
            int r = 64 * group + i / PIECES, piece = i % PIECES;
            uint4 v = make_uint4(0, 0, 0, 0);
            if (r < item.rows)
                v = *(const uint4 *)(at.q + ((size_t)(item.token + r) * heads() + item.head) * D +
                                     piece * 8);
            *(uint4 *)(shared + layout::QUERY + (piece >> 3) * layout::QUERY_HALF + r * ATTN_LINE +
                       (((piece & 7) ^ (r & 7)) << 4)) = v;
        }
        fence_async();
        named_barrier(PREFILL_GROUP_BARRIER + group, 128);
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
        return wgmma_low(base + layout::K) + n % PREFILL_STAGES * (layout::MATRIX / 16);
    }
    DEVICE uint32_t values(uint32_t n) const
    {
        return wgmma_low(base + layout::V, BLOCK_HALF) + n % PREFILL_STAGES * (layout::MATRIX / 16);
    }

    /* Starts s = q·K of the block in stage n. */
    DEVICE void start_scores(uint32_t n)
    {
        const uint32_t query = wgmma_low(base + layout::QUERY + group * 64 * ATTN_LINE);
        const uint32_t key = keys(n);
        wait_full(layout::K_FULL, n);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < D / 16; k++)
            wgmma_shared(s, wgmma_lines(query + (k >> 2) * (layout::QUERY_HALF / 16) + (k & 3) * 2),
                         wgmma_lines(key + (k >> 2) * (BLOCK_HALF / 16) + (k & 3) * 2), k > 0);
        wgmma_commit();
    }

    /* Starts o += P·V. */
    DEVICE void start_values(uint32_t n)
    {
        const uint32_t value = values(n);
        wait_full(layout::V_FULL, n);
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

    /* t', a, P (in s) and the row sums of a block whose scores are there. */
    DEVICE void weights()
    {
        float sum[2] = {0, 0};
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float m = -INFINITY;
#pragma unroll
            for (int i = 2 * r; i < SCORES; i += 4) m = fmaxf(m, fmaxf(s[i], s[i + 1]));
            m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
            m = fmaxf(m, __shfl_xor_sync(~0u, m, 2));
            t[r] = block_maximum(t[r], m, at.c, a[r]);
        }
#pragma unroll
        for (int i = 0; i < SCORES; i++) {
            int r = i >> 1 & 1;
            s[i] = block_weight(s[i], at.c, t[r]);
            sum[r] = __fadd_rn(sum[r], s[i]);
        }
        for (int r = 0; r < 2; r++) l[r] = __fmaf_rn(l[r], a[r], sum[r]);
    }

    DEVICE void pack_weights()
    {
#pragma unroll
        for (int i = 0; i < SCORES; i += 2) packed[i / 2] = pack_bf16(s[i], s[i + 1]);
    }

    DEVICE void rescale_outputs()
    {
        if (!__any_sync(~0u, a[0] != 1.0f || a[1] != 1.0f)) return;
#pragma unroll
        for (int i = 0; i < OUTPUTS; i++) o[i] = __fmul_rn(o[i], a[i >> 1 & 1]);
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
            for (int i = 0; i < OUTPUTS; i++) folded(i) = o[i];
        } else {
            float keep[2] = {1, 1}, weight[2] = {0, 0};
            bool exists[2] = {first_token <= position[0], first_token <= position[1]};
            for (int r = 0; r < 2; r++)
                if (exists[r])
                    fold_state(whole_t[r], whole_l[r], chunk_t[r], sum[r], keep[r], weight[r]);
#pragma unroll
            for (int i = 0; i < OUTPUTS; i++) {
                int r = i >> 1 & 1;
                float before = folded(i), after = fold_output(before, o[i], keep[r], weight[r]);
                folded(i) = exists[r] ? after : before;
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
            for (int i = 2 * r; i < OUTPUTS; i += 4)
                __stcg(to + i / 4 * 4, make_float2(folded(i), folded(i + 1)));
        }
    }

    DEVICE void write_rows()
    {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            if (row[r] >= item.rows) continue;
            float inverse = __frcp_rn(whole_l[r]);
            size_t index = ((size_t)(item.token + row[r]) * heads() + item.head) * D + 2 * q;
#pragma unroll
            for (int i = 2 * r; i < OUTPUTS; i += 4) {
                float y0 = __fmul_rn(folded(i), inverse), y1 = __fmul_rn(folded(i + 1), inverse);
                *(uint32_t *)(at.out + index + 8 * (i >> 2)) = pack_bf16(y0, y1);
                if (at.out_fp32)
                    *(float2 *)(at.out_fp32 + index + 8 * (i >> 2)) = make_float2(y0, y1);
            }
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
        release(layout::K_FREE, n);
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
        release(layout::K_FREE, n);
        if (edge(first)) mask(first);
        weights();
        pack_weights();
        for (int j = 1, of_chunk = 1; j < count; j++, of_chunk++) {
            int block = first + j;
            bool begins = of_chunk == item.chunk;
            if (begins) of_chunk = 0;
            float old_t[2] = {t[0], t[1]}, old_l[2] = {l[0], l[1]};
            for (int r = 0; r < 2; r++) { /* begin_chunk */
                t[r] = begins ? -INFINITY : t[r];
                l[r] = begins ? 0 : l[r];
            }
            if (!edge(block)) {
                give(n + j);
                weights();
                wgmma_wait_behind(fminf(l[0], l[1]), base);
            } else {
                give(n + j);
                wgmma_wait_until<0>();
                mask(block);
                weights();
            }
            release(layout::V_FREE, n + j - 1);
            if (begins)
                end_chunk((block - 1) / item.chunk, old_t, old_l);
            else
                rescale_outputs();
            pack_weights();
        }
        start_values(n + count - 1);
        wgmma_wait_until<0>();
        release(layout::V_FREE, n + count - 1);
        end_chunk((first + count - 1) / item.chunk, t, l);
    }

    DEVICE void run()
    {
        if (group == 1) end_turn(); /* the first turn is that of group 0 */
        for (uint32_t n = 0;;) {
            wait_full(layout::K_FULL, n);
            read_item(n % PREFILL_STAGES);
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
                wait_full(layout::K_FULL, n + j);
                wait_full(layout::V_FULL, n + j);
                release(layout::K_FREE, n + j);
                release(layout::V_FREE, n + j);
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
    prefill_copies<D> copies = {at, shared, shared_address(shared), (int)threadIdx.x};
    if (threadIdx.x == 0) {
        for (int i = 0; i < PREFILL_STAGES; i++) {
            barrier_init(copies.barrier(layout::K_FULL + i), 1);
            barrier_init(copies.barrier(layout::V_FULL + i), 32);
            barrier_init(copies.barrier(layout::K_FREE + i), PREFILL_CONSUMERS);
            barrier_init(copies.barrier(layout::V_FREE + i), PREFILL_CONSUMERS);
        }
        barrier_init_done();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x < 32) copies.run();
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
