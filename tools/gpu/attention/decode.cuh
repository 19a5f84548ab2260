/* decode.cuh - attention of single rows by mma.sync: tokens on the 16-side, heads on the 8-side.
 *
 * One CTA takes an item: a row, one of its kv heads with all query heads of the group, and a range
 * of chunks. It holds K and V of two blocks in shared memory; the copies of a block run while the
 * one before is computed.
 * Invariant: a row's result does not depend on how its chunks are cut into items, on the order of
 * the items or on WARPS. */
#ifndef TOOLS_GPU_ATTENTION_DECODE_CUH
#define TOOLS_GPU_ATTENTION_DECODE_CUH

#include "attention/common.cuh"

struct decode_item {
    int row, kv_head;
    int chunk, chunks; /* chunks [chunk, chunk + chunks) of the row */
    int position;      /* the row's p: tokens 0 to p are seen */
    int pages;         /* index of the row's first page in the table */
    int partial;       /* write the states of the chunks; else fold them and write the output */
};

/* Sizes and offsets in shared memory for head dimension D and N tiles of 8 heads. */
template <int D, int N> struct decode_layout {
    static constexpr int HEADS = 8 * N;
    static constexpr int MATRIX = BLOCK * D * 2, STAGE = 2 * MATRIX; /* K, then V */
    static constexpr int WEIGHT_STRIDE = BLOCK + 4, PACKED_STRIDE = BLOCK + 8;
    static constexpr int WEIGHTS = 2 * STAGE;                          /* fp32 P, [head][token] */
    static constexpr int PACKED = WEIGHTS + HEADS * WEIGHT_STRIDE * 4; /* bf16 P */
    static constexpr int MAXIMA = PACKED + HEADS * PACKED_STRIDE * 2;  /* [warp][head] */
    static constexpr int RESCALE = MAXIMA + 8 * HEADS * 4;             /* a, [head] */
    static constexpr int SUMS = RESCALE + HEADS * 4;                   /* l of a chunk, [head] */
    static constexpr int BARRIERS = SUMS + HEADS * 4;
    static constexpr int BYTES = BARRIERS + 16 + 1024;
};

template <int D, int N, int WARPS> struct decode_cta {
    using layout = decode_layout<D, N>;
    static constexpr int SCORE_TILES = BLOCK / 16 / WARPS; /* tiles of 16 tokens a warp */
    static constexpr int DIM_TILES = D / 16 >= WARPS ? D / 16 / WARPS : 1;

    const attention &at;
    const decode_item &item;
    char *shared;
    const int *pages;
    int warp, lane, g, q;
    int last_block; /* exclusive, in blocks of the row */
    uint32_t query[D / 16][N][2];
    float t[N][2];            /* heads 8n + 2q, 8n + 2q + 1 */
    float l;                  /* lane `q` of head threadIdx.x / 4 */
    float o[DIM_TILES][N][4]; /* dims 16·tile + g (+ 8), the heads of t */

    DEVICE decode_cta(const attention &at_, const decode_item &item_, char *shared_,
                      const int *table)
        : at(at_), item(item_), shared(shared_), pages(table + item_.pages)
    {
        warp = threadIdx.x >> 5;
        lane = threadIdx.x & 31;
        g = lane >> 2;
        q = lane & 3;
        last_block = min(item.position / BLOCK + 1, (item.chunk + item.chunks) * (CHUNK / BLOCK));
    }

    DEVICE bool holds_dims() const { return warp * DIM_TILES < D / 16; }
    DEVICE uint32_t barrier(int stage) const
    {
        return shared_address(shared + layout::BARRIERS) + 8 * stage;
    }

    DEVICE void load(int block, int stage)
    {
        int n = min(PAGES_OF_BLOCK, item.position / PAGE + 1 - block * PAGES_OF_BLOCK);
        uint32_t to = shared_address(shared + stage * layout::STAGE);
        barrier_expect(barrier(stage), (uint32_t)(n * 2 * PAGE * D * 2));
        for (int is_v = 0; is_v < 2; is_v++)
            load_block<D>(to + is_v * layout::MATRIX, at.cache, pages + block * PAGES_OF_BLOCK, n,
                          at.kv_heads, item.kv_head, is_v, barrier(stage));
    }

    DEVICE void load_query()
    {
        const __nv_bfloat16 *from =
            at.q + ((size_t)item.row * at.kv_heads + item.kv_head) * at.group * D;
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int k = 0; k < D / 16; k++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const __nv_bfloat16 *p = from + (8 * n + g) * D + 16 * k + 8 * e + 2 * q;
                    query[k][n][e] = 8 * n + g < at.group ? *(const uint32_t *)p : 0;
                }
    }

    DEVICE void begin_chunk()
    {
#pragma unroll
        for (int n = 0; n < N; n++) {
            t[n][0] = t[n][1] = -INFINITY;
#pragma unroll
            for (int i = 0; i < DIM_TILES; i++)
#pragma unroll
                for (int e = 0; e < 4; e++) o[i][n][e] = 0;
        }
        l = 0;
    }

    /* s = K·q for the warp's tokens; what lies behind p is set to -inf, whatever it holds. */
    DEVICE void scores(float (&s)[SCORE_TILES][N][4], uint32_t k_block, int first_token)
    {
        int row = (lane & 7) + ((lane >> 3) & 1) * 8, piece = lane >> 4;
#pragma unroll
        for (int i = 0; i < SCORE_TILES; i++) {
            int token = 16 * (warp + WARPS * i);
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) s[i][n][e] = 0;
#pragma unroll
            for (int k = 0; k < D / 16; k++) {
                uint32_t a[4];
                load_matrices(a, k_block + (k >> 2) * PAGES_OF_BLOCK * HALF_BYTES +
                                     (token + row) * 128 +
                                     (((2 * (k & 3) + piece) ^ (row & 7)) << 4));
#pragma unroll
                for (int n = 0; n < N; n++) mma_sync(s[i][n], a, query[k][n]);
            }
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    if (first_token + token + g + 8 * (e >> 1) > item.position)
                        s[i][n][e] = -INFINITY;
        }
    }

    /* The largest score of each head over the warp's tokens, to shared memory. */
    DEVICE void reduce_maxima(const float (&s)[SCORE_TILES][N][4])
    {
        float *maxima = (float *)(shared + layout::MAXIMA);
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float m = -INFINITY;
#pragma unroll
                for (int i = 0; i < SCORE_TILES; i++)
                    m = fmaxf(m, fmaxf(s[i][n][h], s[i][n][h + 2]));
#pragma unroll
                for (int step = 4; step < 32; step *= 2)
                    m = fmaxf(m, __shfl_xor_sync(~0u, m, step));
                if (g == 0) maxima[warp * layout::HEADS + 8 * n + 2 * q + h] = m;
            }
    }

    /* t', a and P of the block; P to shared memory in fp32 for the sums and in bf16 for P·V. */
    DEVICE void weights(const float (&s)[SCORE_TILES][N][4], float (&a)[N][2])
    {
        const float *maxima = (const float *)(shared + layout::MAXIMA);
        float *wide = (float *)(shared + layout::WEIGHTS);
        __nv_bfloat16 *packed = (__nv_bfloat16 *)(shared + layout::PACKED);
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int head = 8 * n + 2 * q + h;
                float m = maxima[head];
#pragma unroll
                for (int w = 1; w < WARPS; w++) m = fmaxf(m, maxima[w * layout::HEADS + head]);
                t[n][h] = block_maximum(t[n][h], m, at.c, a[n][h]);
                if (warp == 0 && g == 0) ((float *)(shared + layout::RESCALE))[head] = a[n][h];
#pragma unroll
                for (int i = 0; i < SCORE_TILES; i++)
#pragma unroll
                    for (int r = 0; r < 2; r++) {
                        int token = 16 * (warp + WARPS * i) + g + 8 * r;
                        float p = block_weight(s[i][n][h + 2 * r], at.c, t[n][h]);
                        wide[head * layout::WEIGHT_STRIDE + token] = p;
                        packed[head * layout::PACKED_STRIDE + token] = __float2bfloat16_rn(p);
                    }
            }
    }

    /* The row sum of lane q of one head: columns 8n + 2q and 8n + 2q + 1, n upward. */
    DEVICE void add_sums()
    {
        int head = threadIdx.x >> 2;
        if (head >= layout::HEADS) return;
        const float *p = (const float *)(shared + layout::WEIGHTS) + head * layout::WEIGHT_STRIDE;
        float r = 0;
#pragma unroll
        for (int n = 0; n < BLOCK / 8; n++) {
            r = __fadd_rn(r, p[8 * n + 2 * q]);
            r = __fadd_rn(r, p[8 * n + 2 * q + 1]);
        }
        l = __fmaf_rn(l, ((const float *)(shared + layout::RESCALE))[head], r);
    }

    DEVICE void add_values(uint32_t v_block, const float (&a)[N][2])
    {
        if (!holds_dims()) return;
        const __nv_bfloat16 *packed = (const __nv_bfloat16 *)(shared + layout::PACKED);
        int row = (lane & 7) + (lane >> 4) * 8, piece = (lane >> 3) & 1;
#pragma unroll
        for (int i = 0; i < DIM_TILES; i++)
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) o[i][n][e] = __fmul_rn(o[i][n][e], a[n][e & 1]);
#pragma unroll
        for (int k = 0; k < BLOCK / 16; k++) {
            uint32_t p[N][2];
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    p[n][e] = *(const uint32_t *)(packed + (8 * n + g) * layout::PACKED_STRIDE +
                                                  16 * k + 8 * e + 2 * q);
#pragma unroll
            for (int i = 0; i < DIM_TILES; i++) {
                int tile = warp * DIM_TILES + i;
                uint32_t v[4];
                load_matrices_transposed(v, v_block + (tile >> 2) * PAGES_OF_BLOCK * HALF_BYTES +
                                                (16 * k + row) * 128 +
                                                (((2 * (tile & 3) + piece) ^ (row & 7)) << 4));
#pragma unroll
                for (int n = 0; n < N; n++) mma_sync(o[i][n], v, p[n]);
            }
        }
    }

    /* One block that has arrived in `stage`. The caller synchronises before the next one. */
    DEVICE void block(int index, int stage)
    {
        char *k = shared + stage * layout::STAGE, *v = k + layout::MATRIX;
        int behind = item.position + 1 - index * BLOCK;
        float s[SCORE_TILES][N][4], a[N][2];
        if (behind < BLOCK) clear_tokens<D>(v, behind, threadIdx.x, 32 * WARPS);
        scores(s, shared_address(k), index * BLOCK);
        reduce_maxima(s);
        __syncthreads();
        weights(s, a);
        __syncthreads();
        add_sums();
        add_values(shared_address(v), a);
    }

    /* l of the chunk for the thread's own heads. */
    DEVICE void chunk_sums(float (&sum)[N][2])
    {
        float *sums = (float *)(shared + layout::SUMS);
        float total = quad_sum(l);
        if (q == 0 && (int)(threadIdx.x >> 2) < layout::HEADS) sums[threadIdx.x >> 2] = total;
        __syncthreads();
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int h = 0; h < 2; h++) sum[n][h] = sums[8 * n + 2 * q + h];
    }

    /* The row's head and dimension of element e of o[i][n]; the head may not exist. */
    DEVICE int head_of(int n, int e) const { return 8 * n + 2 * q + (e & 1); }
    DEVICE int dim_of(int i, int e) const { return 16 * (warp * DIM_TILES + i) + g + 8 * (e >> 1); }
    DEVICE size_t row_head(int head) const
    {
        return ((size_t)item.row * at.kv_heads + item.kv_head) * at.group + head;
    }

    DEVICE void write_partial(int chunk, const float (&sum)[N][2])
    {
        if (!holds_dims()) return;
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int head = head_of(n, e);
                if (head >= at.group) continue;
                size_t slot = row_head(head) * at.part.max_chunks + chunk;
                if (warp == 0 && g == 0 && e < 2)
                    at.part.tl[slot] = make_float2(t[n][e], sum[n][e]);
#pragma unroll
                for (int i = 0; i < DIM_TILES; i++) at.part.o[slot * D + dim_of(i, e)] = o[i][n][e];
            }
    }

    DEVICE void write_row(const float (&O)[DIM_TILES][N][4], const float (&L)[N][2])
    {
        if (!holds_dims()) return;
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int head = head_of(n, e);
                if (head >= at.group) continue;
                float inverse = __frcp_rn(L[n][e & 1]);
#pragma unroll
                for (int i = 0; i < DIM_TILES; i++)
                    write_output(at, row_head(head) * D + dim_of(i, e), O[i][n][e], inverse);
            }
    }

    /* Folds the chunk into (T, L, O); the item's first chunk is copied. */
    DEVICE void fold(bool first, float (&T)[N][2], float (&L)[N][2], float (&O)[DIM_TILES][N][4],
                     const float (&sum)[N][2])
    {
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float keep = 0, weight = 0;
                if (first) {
                    T[n][h] = t[n][h];
                    L[n][h] = sum[n][h];
                } else
                    fold_state(T[n][h], L[n][h], t[n][h], sum[n][h], keep, weight);
#pragma unroll
                for (int i = 0; i < DIM_TILES; i++)
#pragma unroll
                    for (int e = h; e < 4; e += 2)
                        O[i][n][e] =
                            first ? o[i][n][e] : fold_output(O[i][n][e], o[i][n][e], keep, weight);
            }
    }

    DEVICE void run()
    {
        int begin = item.chunk * (CHUNK / BLOCK);
        float T[N][2], L[N][2], O[DIM_TILES][N][4], sum[N][2];
        if (threadIdx.x == 0) {
            barrier_init(barrier(0), 1);
            barrier_init(barrier(1), 1);
            barrier_init_done();
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            load(begin, 0);
            if (begin + 1 < last_block) load(begin + 1, 1);
        }
        load_query();
        for (int b = begin; b < last_block; b++) {
            int stage = (b - begin) & 1;
            if (b % (CHUNK / BLOCK) == 0) begin_chunk();
            barrier_wait(barrier(stage), (uint32_t)(b - begin) >> 1 & 1);
            block(b, stage);
            __syncthreads();
            if (threadIdx.x == 0 && b + 2 < last_block) load(b + 2, stage);
            if ((b + 1) % (CHUNK / BLOCK) != 0 && b + 1 < last_block) continue;
            chunk_sums(sum);
            if (item.partial)
                write_partial(b / (CHUNK / BLOCK), sum);
            else
                fold(b / (CHUNK / BLOCK) == item.chunk, T, L, O, sum);
        }
        if (!item.partial) write_row(O, L);
    }
};

template <int D, int N, int WARPS>
__global__ void __launch_bounds__(32 * WARPS)
    decode(const attention at, const decode_item *items, const int *table)
{
    extern __shared__ char memory[];
    char *aligned = memory + (-shared_address(memory) & 1023);
    decode_item item = items[blockIdx.x];
    decode_cta<D, N, WARPS>(at, item, aligned, table).run();
}

#endif
