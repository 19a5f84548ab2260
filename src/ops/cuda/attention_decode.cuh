/* attention_decode.cuh - attention of single rows by mma.sync: tokens on the 16-side, the heads of
 * a group on the 8-side.
 *
 * One CTA of 13 warps an SM takes items (row, kv head, chunk) until none is left. K and V pass
 * through a ring of stages of 64 tokens. Warp 8 copies, ahead over the borders of items; warps 0
 * to 3 compute scores and weights, 16 tokens of a stage each; warps 4 to 7 compute P·V and the row
 * sums, D/4 dimensions each; warps 9 to 12 fold the chunks of a row whose last item this CTA did.
 * Bound: reading K and V once. Level: phase (chunks of the row alone), run where the chunk length
 * follows the load of the step.
 * Invariant: a row's result depends on its chunk length alone: not on which CTA has which item, on
 * their order or on the page size. */
#ifndef OPS_CUDA_ATTENTION_DECODE_CUH
#define OPS_CUDA_ATTENTION_DECODE_CUH

#include "ops/cuda/attention.cuh"

enum {
    DECODE_SPAN = 64, /* tokens of a stage */
    DECODE_THREADS = 13 * 32,
    DECODE_RING = 4, /* blocks of weights between the score and the value warps */
    /* named barriers */
    DECODE_SCORE_BARRIER = 1,
    DECODE_VALUE_BARRIER,
    DECODE_FOLD_BARRIER
};

/* Sizes and offsets in shared memory for head dimension D and N tiles of 8 heads. */
template <int D, int N> struct decode_layout {
    static constexpr int STAGES = D == 64 ? 8 : N == 1 ? 5 : 4;
    static constexpr int HEADS = 8 * N;
    static constexpr int MATRIX = DECODE_SPAN * D * 2, QUERY_BYTES = HEADS * D * 2;
    static constexpr int PACKED_BYTES = ATTN_BLOCK * HEADS * 2, WIDE_BYTES = ATTN_BLOCK * HEADS * 4;
    static constexpr int K = 0, V = K + STAGES * MATRIX, QUERY = V + STAGES * MATRIX;
    static constexpr int PACKED = QUERY + STAGES * QUERY_BYTES;      /* bf16 P, fragments of mma */
    static constexpr int WIDE = PACKED + DECODE_RING * PACKED_BYTES; /* fp32 P, [token][head] */
    static constexpr int RESCALE = WIDE + DECODE_RING * WIDE_BYTES;  /* a, then t, [head] */
    static constexpr int MAXIMA = RESCALE + DECODE_RING * HEADS * 8; /* [2][warp][head] */
    static constexpr int K_ITEM = MAXIMA + 2 * 4 * HEADS * 4;        /* an item a stage */
    static constexpr int V_ITEM = K_ITEM + STAGES * (int)sizeof(attn_item);
    static constexpr int FOLD_ITEM = V_ITEM + STAGES * (int)sizeof(attn_item); /* two */
    static constexpr int BARRIERS = FOLD_ITEM + 2 * (int)sizeof(attn_item);
    /* numbers of barriers */
    static constexpr int K_FULL = 0, V_FULL = STAGES, K_FREE = 2 * STAGES, V_FREE = 3 * STAGES;
    static constexpr int P_FULL = 4 * STAGES, P_FREE = P_FULL + DECODE_RING;
    static constexpr int FOLD_FULL = P_FREE + DECODE_RING, FOLD_FREE = FOLD_FULL + 2;
    static constexpr int ARRIVED = BARRIERS + (FOLD_FREE + 2) * 8; /* two words */
    static constexpr int BYTES = ARRIVED + 16 + 1024;
};

template <int D, int N> struct decode_cta {
    using layout = decode_layout<D, N>;
    static constexpr int S = layout::STAGES;
    static constexpr int DIM_TILES = D / 64; /* tiles of 16 dimensions of a value warp */
    static constexpr int HALF_BYTES = DECODE_SPAN * ATTN_LINE;

    const attn_args &at;
    char *shared;
    uint32_t base; /* the address of `shared` */
    int warp, lane, g, q;

    DEVICE decode_cta(const attn_args &at_, char *shared_) : at(at_), shared(shared_)
    {
        base = shared_address(shared);
        warp = threadIdx.x >> 5;
        lane = threadIdx.x & 31;
        g = lane >> 2;
        q = lane & 3;
    }

    DEVICE uint32_t barrier(int number) const { return base + layout::BARRIERS + 8 * number; }
    /* Barrier `number` of the ring entry of stage n, its n / S-th use. */
    DEVICE void wait_full(int number, uint32_t n) const
    {
        barrier_wait(barrier(number + n % S), (n / S) & 1);
    }
    DEVICE void wait_free(int number, uint32_t n) const
    {
        if (n >= S) barrier_wait(barrier(number + n % S), (n / S + 1) & 1);
    }
    /* Every thread for itself: that one lane arrives behind a __syncwarp is not followed by
     * compute-sanitizer's racecheck. */
    DEVICE void release(int number) const { barrier_arrive(barrier(number)); }
    DEVICE attn_item *item_at(int offset, uint32_t n) const
    {
        return (attn_item *)(shared + offset) + n;
    }
    /* Tokens of the item that lie in its block b or behind. */
    DEVICE static int tokens_from(const attn_item &item, int b)
    {
        return item.position + 1 - (item.block + b) * ATTN_BLOCK;
    }

    DEVICE void open_barriers() const
    {
        for (int i = 0; i < S; i++) {
            barrier_init(barrier(layout::K_FULL + i), 1);
            barrier_init(barrier(layout::V_FULL + i), 1);
            barrier_init(barrier(layout::K_FREE + i), 128);
            barrier_init(barrier(layout::V_FREE + i), 128);
        }
        for (int i = 0; i < DECODE_RING; i++) {
            barrier_init(barrier(layout::P_FULL + i), 128);
            barrier_init(barrier(layout::P_FREE + i), 128);
        }
        for (int i = 0; i < 2; i++) {
            barrier_init(barrier(layout::FOLD_FULL + i), 128);
            barrier_init(barrier(layout::FOLD_FREE + i), 128);
        }
        barrier_init_done();
    }

    /* ---- warp 8: copies */

    /* The next item, in three steps of one memory access each, so that the copies of the item
     * before hide them: its number, the item, its first 32 pages (a lane each). */
    struct cursor {
        int step;
        uint32_t number, items;
        attn_item item;
        int32_t page;
    };

    DEVICE int32_t page_of(const attn_item &item, int from) const
    {
        int n = from + lane, end = item.position >> at.page_shift;
        return __ldg(at.page + (size_t)item.row * at.max_page + min(n, end));
    }

    DEVICE void advance(cursor &c) const
    {
        if (c.step == 0) {
            if (lane == 0) c.number = atomicAdd(&at.work->decode_next, 1) + gridDim.x;
        } else if (c.step == 1) {
            /* Behind the last item too: the first one need not wait for their number. */
            c.number = __shfl_sync(~0u, c.number, 0);
            c.item = at.decode[min(c.number / at.n_kv, (uint32_t)at.decode_room - 1)];
            c.item.head = (int32_t)(c.number % at.n_kv);
        } else if (c.number < c.items)
            c.page = page_of(c.item, c.item.block * ATTN_BLOCK >> at.page_shift);
        c.step++;
    }

    DEVICE cursor first_item() const
    {
        cursor c = {1, blockIdx.x, (uint32_t)(at.work->decode_items * at.n_kv), {}, 0};
        while (c.step < 3) advance(c);
        return c;
    }

    DEVICE void copy_items(cursor c) const
    {
        uint64_t first_out = policy_evict_first();
        page_lane mine = lane_of_pages<D, DECODE_SPAN>(at, lane);
        uint32_t n = 0;
        for (;;) {
            while (c.step < 3) advance(c);
            if (c.number >= c.items) break;
            attn_item item = c.item;
            int32_t pages = c.page;
            c.step = 0;
            int begin = item.block * ATTN_BLOCK;
            int end = min(item.position + 1, begin + item.blocks * ATTN_BLOCK);
            int window = begin >> at.page_shift; /* of the first page in `pages` */
            for (int first = begin; first < end; first += DECODE_SPAN, n++) {
                int index = (first + mine.first) >> at.page_shift;
                /* A span lies in one window: both are multiples of the pages of a span. */
                if ((first >> at.page_shift) - window >= 32) {
                    window += 32;
                    pages = page_of(item, window);
                }
                int32_t page = __shfl_sync(~0u, pages, (index - window) & 31);
                copy_stage(item, mine, page, first, min(DECODE_SPAN, end - first), n,
                           first == begin, first_out);
                if (c.step < 3) advance(c);
            }
        }
        leave(n);
    }

    DEVICE void copy_stage(const attn_item &item, const page_lane &mine, int32_t page, int first,
                           int tokens, uint32_t n, bool begins, uint64_t policy) const
    {
        uint32_t stage = n % S, bytes = (uint32_t)tokens * D * 2;
        uint32_t query = begins ? (uint32_t)at.group * D * 2 : 0;
        uint32_t k_full = barrier(layout::K_FULL + stage), v_full = barrier(layout::V_FULL + stage);
        const char *k = page_head<D>(at, page, item.head);
        wait_free(layout::K_FREE, n);
        if (lane == 0) {
            if (begins) *item_at(layout::K_ITEM, stage) = item;
            barrier_expect(k_full, bytes + query);
        }
        __syncwarp();
        if (begins && lane == 31)
            bulk_load(base + layout::QUERY + stage * layout::QUERY_BYTES,
                      at.q + ((size_t)item.token * at.n_kv + item.head) * at.group * D, query,
                      k_full);
        load_span<D, DECODE_SPAN>(at, mine, base + layout::K + stage * layout::MATRIX, k, first,
                                  tokens, k_full, policy);
        wait_free(layout::V_FREE, n);
        if (lane == 0) {
            if (begins) *item_at(layout::V_ITEM, stage) = item;
            barrier_expect(v_full, bytes);
        }
        __syncwarp();
        load_span<D, DECODE_SPAN>(at, mine, base + layout::V + stage * layout::MATRIX,
                                  k + (size_t)at.page_tokens * D * 2, first, tokens, v_full,
                                  policy);
    }

    /* An item without blocks ends the other warps; the last CTA makes the counter ready. */
    DEVICE void leave(uint32_t n) const
    {
        uint32_t stage = n % S;
        if (lane != 0) return;
        wait_free(layout::K_FREE, n);
        item_at(layout::K_ITEM, stage)->blocks = 0;
        barrier_arrive(barrier(layout::K_FULL + stage));
        wait_free(layout::V_FREE, n);
        item_at(layout::V_ITEM, stage)->blocks = 0;
        barrier_arrive(barrier(layout::V_FULL + stage));
        if (count_arrival(&at.work->decode_done, gridDim.x - 1) == gridDim.x - 1)
            at.work->decode_next = 0;
    }

    /* ---- warps 0 to 3: scores and weights */

    DEVICE void load_query(uint32_t (&query)[D / 16][N][2], uint32_t stage) const
    {
        const uint32_t *from =
            (const uint32_t *)(shared + layout::QUERY + stage * layout::QUERY_BYTES);
#pragma unroll
        for (int k = 0; k < D / 16; k++)
#pragma unroll
            for (int i = 0; i < N; i++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    query[k][i][e] = 8 * i + g < at.group
                                         ? from[((8 * i + g) * D + 16 * k + 8 * e + 2 * q) >> 1]
                                         : 0;
    }

    /* s = K·q of the warp's tokens of a stage; what lies behind p is -inf, whatever it holds. */
    DEVICE void scores(float (&s)[N][4], const uint32_t (&query)[D / 16][N][2], uint32_t stage,
                       int tokens) const
    {
        int row = (lane & 7) + ((lane >> 3) & 1) * 8, piece = lane >> 4;
        uint32_t k_rows = base + layout::K + stage * layout::MATRIX + (16 * warp + row) * ATTN_LINE;
        uint32_t a[D / 16][4];
#pragma unroll
        for (int k = 0; k < D / 16; k++)
            load_matrices(a[k], k_rows + (k >> 2) * HALF_BYTES +
                                    (((2 * (k & 3) + piece) ^ (row & 7)) << 4));
#pragma unroll
        for (int i = 0; i < N; i++) {
            s[i][0] = s[i][1] = s[i][2] = s[i][3] = 0;
#pragma unroll
            for (int k = 0; k < D / 16; k++) mma_sync(s[i], a[k], query[k][i]);
            if (16 * warp + g >= tokens) s[i][0] = s[i][1] = -INFINITY;
            if (16 * warp + g + 8 >= tokens) s[i][2] = s[i][3] = -INFINITY;
        }
    }

    /* The largest score of each head of the block, of all four warps. */
    DEVICE void maxima(float (&m)[N][2], const float (&s)[2][N][4], uint32_t parity) const
    {
        float *shared_maxima = (float *)(shared + layout::MAXIMA) + parity * 4 * layout::HEADS;
#pragma unroll
        for (int i = 0; i < N; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float x =
                    fmaxf(fmaxf(s[0][i][h], s[0][i][h + 2]), fmaxf(s[1][i][h], s[1][i][h + 2]));
#pragma unroll
                for (int step = 4; step < 32; step *= 2)
                    x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
                if (g == 0) shared_maxima[warp * layout::HEADS + 8 * i + 2 * q + h] = x;
            }
        named_barrier(DECODE_SCORE_BARRIER, 128);
#pragma unroll
        for (int i = 0; i < N; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const float *of_head = shared_maxima + 8 * i + 2 * q + h;
                m[i][h] = fmaxf(fmaxf(of_head[0], of_head[layout::HEADS]),
                                fmaxf(of_head[2 * layout::HEADS], of_head[3 * layout::HEADS]));
            }
    }

    /* P of the block, in bf16 as the value warps' fragments and in fp32 for the sums. */
    DEVICE void weights(const float (&s)[2][N][4], const float (&t)[N][2], uint32_t ring) const
    {
        uint2 *packed = (uint2 *)(shared + layout::PACKED + ring * layout::PACKED_BYTES);
        float2 *wide = (float2 *)(shared + layout::WIDE + ring * layout::WIDE_BYTES);
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int i = 0; i < N; i++) {
                float p[4];
#pragma unroll
                for (int e = 0; e < 4; e++) p[e] = block_weight(s[h][i][e], at.c, t[i][e & 1]);
                packed[((4 * h + warp) * N + i) * 32 + lane] =
                    make_uint2(transpose_matrix(pack_bf16(p[0], p[1])),
                               transpose_matrix(pack_bf16(p[2], p[3])));
                int token = 64 * h + 16 * warp + g;
                wide[(token * N + i) * 4 + q] = make_float2(p[0], p[1]);
                wide[((token + 8) * N + i) * 4 + q] = make_float2(p[2], p[3]);
            }
    }

    DEVICE void score_items() const
    {
        uint32_t n = 0, block = 0; /* stages and blocks so far */
        for (;;) {
            wait_full(layout::K_FULL, n);
            attn_item item = *item_at(layout::K_ITEM, n % S);
            if (item.blocks == 0) return;
            uint32_t query[D / 16][N][2];
            float t[N][2];
            load_query(query, n % S);
            for (int b = 0, in_chunk = 0; b < item.blocks; b++, block++) {
                int tokens = tokens_from(item, b);
                float s[2][N][4], m[N][2], a[N][2];
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    if (h == 0 || tokens > DECODE_SPAN) {
                        wait_full(layout::K_FULL, n);
                        scores(s[h], query, n % S, tokens - h * DECODE_SPAN);
                        release(layout::K_FREE + n % S);
                        n++;
                    } else {
#pragma unroll
                        for (int i = 0; i < N; i++)
                            s[h][i][0] = s[h][i][1] = s[h][i][2] = s[h][i][3] = -INFINITY;
                    }
                }
                maxima(m, s, block & 1);
                uint32_t ring = block % DECODE_RING;
#pragma unroll
                for (int i = 0; i < N; i++)
#pragma unroll
                    for (int h = 0; h < 2; h++)
                        t[i][h] =
                            block_maximum(in_chunk ? t[i][h] : -INFINITY, m[i][h], at.c, a[i][h]);
                if (block >= DECODE_RING)
                    barrier_wait(barrier(layout::P_FREE + ring), (block / DECODE_RING + 1) & 1);
                weights(s, t, ring);
                if (warp == 0 && g == 0) {
                    float *rescale = (float *)(shared + layout::RESCALE) + ring * 2 * layout::HEADS;
#pragma unroll
                    for (int i = 0; i < N; i++)
#pragma unroll
                        for (int h = 0; h < 2; h++) {
                            rescale[8 * i + 2 * q + h] = a[i][h];
                            rescale[layout::HEADS + 8 * i + 2 * q + h] = t[i][h];
                        }
                }
                release(layout::P_FULL + ring);
                if (++in_chunk == item.chunk) in_chunk = 0;
            }
        }
    }

    /* ---- warps 4 to 7: P·V and row sums */

    struct values {
        float o[DIM_TILES][N][4]; /* dims 16·tile + g (+ 8), heads 8i + 2q (+ 1) */
        float t[N][2], l[N][2];   /* of those heads */
    };

    DEVICE void add_stage(values &x, const uint2 *packed, uint32_t stage,
                          const uint32_t (&v)[DIM_TILES][4][4]) const
    {
#pragma unroll
        for (int k = 0; k < 4; k++)
#pragma unroll
            for (int i = 0; i < N; i++) {
                uint2 p2 = packed[(k * N + i) * 32 + lane];
                uint32_t p[2] = {p2.x, p2.y};
#pragma unroll
                for (int d = 0; d < DIM_TILES; d++) mma_sync(x.o[d][i], v[d][k], p);
            }
    }

    /* The values of a stage as fragments; those behind p are zero. */
    DEVICE void load_values(uint32_t (&v)[DIM_TILES][4][4], uint32_t stage, int tokens) const
    {
        int row = (lane & 7) + (lane >> 4) * 8, piece = (lane >> 3) & 1;
        char *block = shared + layout::V + stage * layout::MATRIX;
        if (tokens < DECODE_SPAN) {
            clear_tokens<D, DECODE_SPAN>(block, tokens, (int)threadIdx.x - 128, 128);
            fence_async();
            named_barrier(DECODE_VALUE_BARRIER, 128);
        }
#pragma unroll
        for (int k = 0; k < 4; k++)
#pragma unroll
            for (int d = 0; d < DIM_TILES; d++) {
                int tile = (warp - 4) * DIM_TILES + d;
                load_matrices_transposed(v[d][k],
                                         shared_address(block) + (tile >> 2) * HALF_BYTES +
                                             (16 * k + row) * ATTN_LINE +
                                             (((2 * (tile & 3) + piece) ^ (row & 7)) << 4));
            }
    }

    /* The row sums of lane q of head 8i + g: columns 8m + 2q and 8m + 2q + 1, m upward. */
    DEVICE void add_sums(float (&sum)[N], uint32_t ring) const
    {
        const float *wide = (const float *)(shared + layout::WIDE + ring * layout::WIDE_BYTES);
        const float *rescale = (const float *)(shared + layout::RESCALE) + ring * 2 * layout::HEADS;
#pragma unroll
        for (int i = 0; i < N; i++) {
            float r = 0;
#pragma unroll
            for (int m = 0; m < ATTN_BLOCK / 8; m++) {
                r = __fadd_rn(r, wide[(8 * m + 2 * q) * layout::HEADS + 8 * i + g]);
                r = __fadd_rn(r, wide[(8 * m + 2 * q + 1) * layout::HEADS + 8 * i + g]);
            }
            sum[i] = __fmaf_rn(sum[i], rescale[8 * i + g], r);
        }
    }

    /* l of the chunk for the lane's own heads. */
    DEVICE void end_sums(values &x, const float (&sum)[N]) const
    {
#pragma unroll
        for (int i = 0; i < N; i++) {
            float l = quad_sum(sum[i]);
            x.l[i][0] = __shfl_sync(~0u, l, 8 * q);
            x.l[i][1] = __shfl_sync(~0u, l, 8 * q + 4);
        }
    }

    DEVICE static void begin_chunk(values &x, float (&sum)[N])
    {
#pragma unroll
        for (int i = 0; i < N; i++) {
            sum[i] = 0;
#pragma unroll
            for (int d = 0; d < DIM_TILES; d++)
                x.o[d][i][0] = x.o[d][i][1] = x.o[d][i][2] = x.o[d][i][3] = 0;
        }
    }

    DEVICE static void fold(values &whole, const values &x)
    {
#pragma unroll
        for (int i = 0; i < N; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float keep, weight;
                fold_state(whole.t[i][h], whole.l[i][h], x.t[i][h], x.l[i][h], keep, weight);
#pragma unroll
                for (int d = 0; d < DIM_TILES; d++)
#pragma unroll
                    for (int e = h; e < 4; e += 2)
                        whole.o[d][i][e] =
                            fold_output(whole.o[d][i][e], x.o[d][i][e], keep, weight);
            }
    }

    /* One block: P·V into x, the row sums into sum. Returns the stages it took. */
    DEVICE int add_block(values &x, float (&sum)[N], int tokens, uint32_t n, uint32_t block) const
    {
        uint32_t ring = block % DECODE_RING;
        const uint2 *packed =
            (const uint2 *)(shared + layout::PACKED + ring * layout::PACKED_BYTES);
        const float *rescale = (const float *)(shared + layout::RESCALE) + ring * 2 * layout::HEADS;
        int stages = tokens > DECODE_SPAN ? 2 : 1;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            if (h >= stages) continue;
            uint32_t v[DIM_TILES][4][4];
            wait_full(layout::V_FULL, n + h);
            load_values(v, (n + h) % S, tokens - h * DECODE_SPAN);
            if (h == 0) {
                barrier_wait(barrier(layout::P_FULL + ring), (block / DECODE_RING) & 1);
#pragma unroll
                for (int i = 0; i < N; i++)
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        float a = rescale[8 * i + 2 * q + e];
                        x.t[i][e] = rescale[layout::HEADS + 8 * i + 2 * q + e];
#pragma unroll
                        for (int d = 0; d < DIM_TILES; d++) {
                            x.o[d][i][e] = __fmul_rn(x.o[d][i][e], a);
                            x.o[d][i][e + 2] = __fmul_rn(x.o[d][i][e + 2], a);
                        }
                    }
            }
            add_stage(x, packed + h * 4 * N * 32, (n + h) % S, v);
            release(layout::V_FREE + (n + h) % S);
        }
        add_sums(sum, ring);
        release(layout::P_FREE + ring);
        return stages;
    }

    DEVICE void value_items() const
    {
        uint64_t stays = policy_evict_last();
        uint32_t n = 0, block = 0, folds = 0;
        for (;;) {
            wait_full(layout::V_FULL, n);
            attn_item item = *item_at(layout::V_ITEM, n % S);
            values x, whole;
            float sum[N];
            for (int b = 0, in_chunk = 0; b < item.blocks; b++, block++) {
                if (in_chunk == 0) begin_chunk(x, sum);
                n += add_block(x, sum, tokens_from(item, b), n, block);
                if (++in_chunk < item.chunk && b + 1 < item.blocks) continue;
                in_chunk = 0;
                end_sums(x, sum);
                if (item.slot >= 0)
                    write_state(item, (item.block + b) / item.chunk, x, stays);
                else if (b < item.chunk)
                    whole = x;
                else
                    fold(whole, x);
            }
            if (item.blocks == 0 || item.slot >= 0)
                hand_over(item, folds++);
            else
                write_row(item, whole);
            if (item.blocks == 0) return;
        }
    }

    DEVICE void write_state(const attn_item &item, int chunk, const values &x,
                            uint64_t policy) const
    {
        size_t heads = (size_t)at.n_kv * at.group;
        size_t state = (item.slot + chunk) * heads + item.head * at.group;
#pragma unroll
        for (int i = 0; i < N; i++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                int head = 8 * i + 2 * q + e;
                if (warp == 4 && g == 0 && head < at.group)
                    __stcg(at.state_tl + state + head, make_float2(x.t[i][e], x.l[i][e]));
            }
        write_state_o(x, state, policy);
    }

    /* Four dimensions of one head a store: lanes g = 4a ... 4a + 3 exchange what they hold, so that
     * lane g has dims 4·(g >> 2) ... + 3 of the head that its quad lane and g & 3 name. */
    DEVICE void write_state_o(const values &x, size_t state, uint64_t policy) const
    {
#pragma unroll
        for (int d = 0; d < DIM_TILES; d++)
#pragma unroll
            for (int i = 0; i < N; i++) {
                float y[4] = {x.o[d][i][0], x.o[d][i][1], x.o[d][i][2], x.o[d][i][3]};
                int dim = 16 * ((warp - 4) * DIM_TILES + d) + 4 * (g >> 2) + 8 * (g >> 1 & 1);
                /* y[e]: dim g + 8·(e >> 1), head e & 1. A 4 x 4 transpose over e and g & 3. */
                transpose_quads(y);
                int head = 8 * i + 2 * q + (g & 1);
                if (head < at.group)
                    store_hinted((float4 *)(at.state_o + (state + head) * D + dim),
                                 make_float4(y[0], y[1], y[2], y[3]), policy);
            }
    }

    /* y[e] of lane g becomes y[g & 3] of lane 4·(g >> 2) + e. */
    DEVICE void transpose_quads(float (&y)[4]) const
    {
#pragma unroll
        for (int bit = 1; bit < 4; bit *= 2) {
            bool upper = g & bit;
#pragma unroll
            for (int e = 0; e < 4; e++) {
                if (e & bit) continue;
                float sent = upper ? y[e] : y[e | bit];
                float got = __shfl_xor_sync(~0u, sent, 4 * bit);
                if (upper)
                    y[e] = got;
                else
                    y[e | bit] = got;
            }
        }
    }

    /* To the warps that fold: the item whose state is written, or the end. */
    DEVICE void hand_over(const attn_item &item, uint32_t folds) const
    {
        uint32_t entry = folds & 1;
        if (folds >= 2) barrier_wait(barrier(layout::FOLD_FREE + entry), (folds / 2 + 1) & 1);
        if (warp == 4 && lane == 0) *item_at(layout::FOLD_ITEM, entry) = item;
        release(layout::FOLD_FULL + entry);
    }

    DEVICE void write_row(const attn_item &item, const values &x) const
    {
        size_t row = ((size_t)item.token * at.n_kv + item.head) * at.group;
#pragma unroll
        for (int i = 0; i < N; i++) {
            float inverse[2] = {__frcp_rn(x.l[i][0]), __frcp_rn(x.l[i][1])};
#pragma unroll
            for (int d = 0; d < DIM_TILES; d++) {
                int dim = 16 * ((warp - 4) * DIM_TILES + d);
                float y[4];
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    int head = 8 * i + 2 * q + (e & 1);
                    y[e] = __fmul_rn(x.o[d][i][e], inverse[e & 1]);
                    if (at.out_fp32 && head < at.group)
                        at.out_fp32[(row + head) * D + dim + g + 8 * (e >> 1)] = y[e];
                }
                uint32_t low = transpose_matrix(pack_bf16(y[0], y[1]));
                uint32_t high = transpose_matrix(pack_bf16(y[2], y[3]));
                if (8 * i + g >= at.group) continue;
                uint32_t *out = (uint32_t *)(at.out + (row + 8 * i + g) * D + dim + 2 * q);
                out[0] = low;
                out[4] = high;
            }
        }
    }

    /* ---- warps 9 to 12: folds through memory */

    DEVICE void fold_items() const
    {
        int thread = (int)threadIdx.x - 288;
        size_t heads = (size_t)at.n_kv * at.group;
        for (uint32_t folds = 0;; folds++) {
            uint32_t entry = folds & 1;
            volatile uint32_t *arrived = (volatile uint32_t *)(shared + layout::ARRIVED) + entry;
            barrier_wait(barrier(layout::FOLD_FULL + entry), (folds / 2) & 1);
            attn_item item = *item_at(layout::FOLD_ITEM, entry);
            release(layout::FOLD_FREE + entry);
            if (item.blocks == 0) return;
            if (thread == 0)
                *arrived = count_arrival(at.done + item.row * at.n_kv + item.head, item.pieces - 1);
            named_barrier(DECODE_FOLD_BARRIER, 128);
            if ((int)*arrived != item.pieces - 1) continue;
            size_t state = item.slot * heads + item.head * at.group;
            size_t out = ((size_t)item.token * at.n_kv + item.head) * at.group * D;
            int chunks = item.position / (ATTN_BLOCK * item.chunk) + 1;
            for (int i = thread; i < at.group * (D / 4); i += 128)
                fold_memory<D>(at, state + i / (D / 4), heads, chunks, i % (D / 4) * 4,
                               out + i * 4);
            named_barrier(DECODE_FOLD_BARRIER, 128);
            for (int i = thread; i < chunks * at.group * (D / 32); i += 128) {
                int of_chunk = at.group * (D / 32);
                discard_line(at.state_o + (state + i / of_chunk * heads) * D + i % of_chunk * 32);
            }
        }
    }

    DEVICE void run() const
    {
        cursor first = {};
        if (threadIdx.x == 0) open_barriers();
        if (at.next_early) next_may_start();
        wait_for_before();
        if (warp == 8) first = first_item();
        __syncthreads();
        if (warp < 4)
            score_items();
        else if (warp < 8)
            value_items();
        else if (warp == 8)
            copy_items(first);
        else
            fold_items();
    }
};

template <int D, int N>
__global__ void __launch_bounds__(DECODE_THREADS, 1) k_attn_decode(const attn_args at)
{
#if PTX_HOPPER
    extern __shared__ char memory[];
    decode_cta<D, N>(at, memory + (-shared_address(memory) & 1023)).run();
#endif
}

#endif
