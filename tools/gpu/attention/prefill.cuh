/* prefill.cuh - attention of consecutive rows of one sequence by wgmma.
 *
 * One CTA takes 64 rows of one head for each of its GROUPS warpgroups, and a range of chunks. K and
 * V of two blocks lie in shared memory; the copies of a block run while the one before is computed.
 * The running output of earlier chunks is kept in shared memory.
 * Invariant: a row's result does not depend on the tile it is in, on where the sequence was cut, on
 * how the chunks are spread over CTAs or on the widths of the instructions. */
#ifndef TOOLS_GPU_ATTENTION_PREFILL_CUH
#define TOOLS_GPU_ATTENTION_PREFILL_CUH

#include "attention/common.cuh"
#include "wgmma.cuh"

struct prefill_rows {
    const int *pages; /* the sequence's pages */
    int position;     /* of row 0 */
    int rows;
    int chunks_of_cta; /* blockIdx.z takes chunks [z, z + 1) · chunks_of_cta */
    int partial;       /* write the states of the chunks; else fold them and write the output */
};

template <int D, int GROUPS> struct prefill_layout {
    static constexpr int ROWS = 64 * GROUPS, THREADS = 128 * GROUPS;
    static constexpr int MATRIX = BLOCK * D * 2, STAGE = 2 * MATRIX; /* K, then V */
    static constexpr int QUERY_HALF = ROWS * 128;
    static constexpr int QUERY = 2 * STAGE;                    /* [d/64][rows][64] */
    static constexpr int OUTPUT = QUERY + D / 64 * QUERY_HALF; /* fp32, [element][thread] */
    static constexpr int BARRIERS = OUTPUT + ROWS * D * 4;
    static constexpr int BYTES = BARRIERS + 16 + 1024;
};

/* WIDTH: outputs of one wgmma instruction, 64 or 128. */
template <int D, int GROUPS, int WIDTH> struct prefill_cta {
    using layout = prefill_layout<D, GROUPS>;
    static constexpr int VALUE_WIDTH = WIDTH < D ? WIDTH : D;
    static constexpr int SCORES = BLOCK / 2, OUTPUTS = D / 2; /* a thread's share */
    static constexpr int BLOCK_HALF = PAGES_OF_BLOCK * HALF_BYTES;

    const attention &at;
    const prefill_rows &in;
    char *shared;
    int head, first_row, last; /* last: the position of the last row of the tile */
    int group, g, q;
    int row[2], position[2]; /* the thread's two rows */
    float t[2], l[2], a[2];
    float s[BLOCK / WIDTH][WIDTH / 2]; /* column 8·(i / 4) + 2q + (i & 1), row i >> 1 & 1 */
    float o[D / VALUE_WIDTH][VALUE_WIDTH / 2]; /* the same over dimensions */
    uint32_t packed[BLOCK / 4];                /* bf16 P as the fragments of A */

    DEVICE prefill_cta(const attention &at_, const prefill_rows &in_, char *shared_)
        : at(at_), in(in_), shared(shared_)
    {
        int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
        group = warp >> 2;
        g = lane >> 2;
        q = lane & 3;
        head = blockIdx.y;
        first_row = blockIdx.x * layout::ROWS;
        last = in.position + min(first_row + layout::ROWS, in.rows) - 1;
        for (int r = 0; r < 2; r++) {
            row[r] = first_row + 64 * group + 16 * (warp & 3) + g + 8 * r;
            position[r] = in.position + row[r];
        }
    }

    DEVICE float &score(int i) { return s[i / (WIDTH / 2)][i % (WIDTH / 2)]; }
    DEVICE float &output(int i) { return o[i / (VALUE_WIDTH / 2)][i % (VALUE_WIDTH / 2)]; }
    DEVICE float &folded(int i)
    {
        return ((float *)(shared + layout::OUTPUT))[i * layout::THREADS + threadIdx.x];
    }
    DEVICE uint32_t barrier(int stage) const
    {
        return shared_address(shared + layout::BARRIERS) + 8 * stage;
    }
    DEVICE size_t row_head(int r) const { return (size_t)row[r] * at.kv_heads * at.group + head; }

    DEVICE void load(int block, int stage)
    {
        int n = min(PAGES_OF_BLOCK, last / PAGE + 1 - block * PAGES_OF_BLOCK);
        uint32_t to = shared_address(shared + stage * layout::STAGE);
        barrier_expect(barrier(stage), (uint32_t)(n * 2 * PAGE * D * 2));
        for (int is_v = 0; is_v < 2; is_v++)
            load_block<D>(to + is_v * layout::MATRIX, at.cache, in.pages + block * PAGES_OF_BLOCK,
                          n, at.kv_heads, head / at.group, is_v, barrier(stage));
    }

    DEVICE void load_query()
    {
        constexpr int PIECES = D / 8;
        for (int i = threadIdx.x; i < layout::ROWS * PIECES; i += layout::THREADS) {
            int r = i / PIECES, piece = i % PIECES;
            uint4 v = make_uint4(0, 0, 0, 0);
            if (first_row + r < in.rows)
                v = *(const uint4 *)(at.q +
                                     ((size_t)(first_row + r) * at.kv_heads * at.group + head) * D +
                                     piece * 8);
            *(uint4 *)(shared + layout::QUERY + (piece >> 3) * layout::QUERY_HALF + r * 128 +
                       (((piece & 7) ^ (r & 7)) << 4)) = v;
        }
        fence_async();
    }

    DEVICE void begin_chunk()
    {
        for (int r = 0; r < 2; r++) {
            t[r] = -INFINITY;
            l[r] = 0;
        }
#pragma unroll
        for (int i = 0; i < OUTPUTS; i++) output(i) = 0;
    }

    /* s = q·K; what lies behind a row's position is set to -inf, whatever it holds. */
    DEVICE void scores(uint32_t k_block, int first_token)
    {
        uint32_t query = shared_address(shared + layout::QUERY) + group * HALF_BYTES;
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < D / 16; k++)
#pragma unroll
            for (int j = 0; j < BLOCK / WIDTH; j++)
                wgmma_shared(
                    s[j],
                    wgmma_matrix(query + (k >> 2) * layout::QUERY_HALF + (k & 3) * 32, 16, 1024, 1),
                    wgmma_matrix(k_block + (k >> 2) * BLOCK_HALF + j * WIDTH * 128 + (k & 3) * 32,
                                 16, 1024, 1),
                    k > 0);
        wgmma_wait();
        if (first_token + BLOCK - 1 <= in.position + first_row + 64 * group) return;
#pragma unroll
        for (int i = 0; i < SCORES; i++)
            if (first_token + 8 * (i >> 2) + 2 * q + (i & 1) > position[i >> 1 & 1])
                score(i) = -INFINITY;
    }

    /* t', a, P and the row sums of the block. */
    DEVICE void weights()
    {
        float sum[2] = {0, 0};
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float m = -INFINITY;
#pragma unroll
            for (int i = 2 * r; i < SCORES; i += 4) m = fmaxf(m, fmaxf(score(i), score(i + 1)));
            m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
            m = fmaxf(m, __shfl_xor_sync(~0u, m, 2));
            t[r] = block_maximum(t[r], m, at.c, a[r]);
        }
#pragma unroll
        for (int i = 0; i < SCORES; i += 2) {
            int r = i >> 1 & 1;
            float p0 = block_weight(score(i), at.c, t[r]);
            float p1 = block_weight(score(i + 1), at.c, t[r]);
            sum[r] = __fadd_rn(__fadd_rn(sum[r], p0), p1);
            packed[i / 2] = pack_bf16(p0, p1);
        }
        for (int r = 0; r < 2; r++) l[r] = __fmaf_rn(l[r], a[r], sum[r]);
    }

    DEVICE void add_values(uint32_t v_block)
    {
#pragma unroll
        for (int i = 0; i < OUTPUTS; i++) output(i) = __fmul_rn(output(i), a[i >> 1 & 1]);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < BLOCK / 16; k++)
#pragma unroll
            for (int j = 0; j < D / VALUE_WIDTH; j++)
                wgmma_registers<1>(
                    o[j], packed + 4 * k,
                    wgmma_matrix(v_block + j * BLOCK_HALF + k * 2048, BLOCK_HALF, 1024, 1), 1);
        wgmma_wait();
    }

    /* One block that has arrived in `stage`. The caller synchronises before the next one. */
    DEVICE void block(int index, int stage)
    {
        char *k = shared + stage * layout::STAGE, *v = k + layout::MATRIX;
        int behind = last + 1 - index * BLOCK;
        if (behind < BLOCK) {
            clear_tokens<D>(v, behind, threadIdx.x, layout::THREADS);
            fence_async();
            __syncthreads();
        }
        scores(shared_address(k), index * BLOCK);
        weights();
        add_values(shared_address(v));
    }

    DEVICE void write_partial(int chunk, int r, float sum)
    {
        if (row[r] >= in.rows || chunk * CHUNK > position[r]) return;
        size_t slot = row_head(r) * at.part.max_chunks + chunk;
        if (q == 0) at.part.tl[slot] = make_float2(t[r], sum);
#pragma unroll
        for (int i = 2 * r; i < OUTPUTS; i += 4)
            *(float2 *)(at.part.o + slot * D + 8 * (i >> 2) + 2 * q) =
                make_float2(output(i), output(i + 1));
    }

    /* Folds the chunk into (T, L, O) of a row for which it exists; the first one is copied. */
    DEVICE void fold(bool first, int chunk, int r, float &T, float &L, float sum)
    {
        float keep = 0, weight = 0;
        if (first) {
            T = t[r];
            L = sum;
        } else if (chunk * CHUNK <= position[r])
            fold_state(T, L, t[r], sum, keep, weight);
        else
            return;
#pragma unroll
        for (int i = 2 * r; i < OUTPUTS; i += 4)
#pragma unroll
            for (int e = i; e < i + 2; e++)
                folded(e) = first ? output(e) : fold_output(folded(e), output(e), keep, weight);
    }

    DEVICE void write_rows(const float (&L)[2])
    {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            if (row[r] >= in.rows) continue;
            float inverse = __frcp_rn(L[r]);
#pragma unroll
            for (int i = 2 * r; i < OUTPUTS; i += 4)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    write_output(at, row_head(r) * D + 8 * (i >> 2) + 2 * q + e, folded(i + e),
                                 inverse);
        }
    }

    DEVICE void run()
    {
        constexpr int BLOCKS = CHUNK / BLOCK;
        int first_chunk = blockIdx.z * in.chunks_of_cta, begin = first_chunk * BLOCKS;
        int end = min(last / BLOCK + 1, begin + in.chunks_of_cta * BLOCKS);
        float T[2], L[2];
        if (begin >= end) return;
        if (threadIdx.x == 0) {
            barrier_init(barrier(0), 1);
            barrier_init(barrier(1), 1);
            barrier_init_done();
        }
        load_query();
        __syncthreads();
        if (threadIdx.x == 0) {
            load(begin, 0);
            if (begin + 1 < end) load(begin + 1, 1);
        }
        for (int b = begin; b < end; b++) {
            int stage = (b - begin) & 1, chunk = b / BLOCKS;
            if (b % BLOCKS == 0) begin_chunk();
            barrier_wait(barrier(stage), (uint32_t)(b - begin) >> 1 & 1);
            block(b, stage);
            __syncthreads();
            if (threadIdx.x == 0 && b + 2 < end) load(b + 2, stage);
            if ((b + 1) % BLOCKS != 0 && b + 1 < end) continue;
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float sum = quad_sum(l[r]);
                if (in.partial)
                    write_partial(chunk, r, sum);
                else
                    fold(chunk == first_chunk, chunk, r, T[r], L[r], sum);
            }
        }
        if (!in.partial) write_rows(L);
    }
};

template <int D, int GROUPS, int WIDTH>
__global__ void __launch_bounds__(128 * GROUPS, 1)
    prefill(const attention at, const prefill_rows in)
{
    extern __shared__ char memory[];
    char *aligned = memory + (-shared_address(memory) & 1023);
    prefill_cta<D, GROUPS, WIDTH>(at, in, aligned).run();
}

#endif
