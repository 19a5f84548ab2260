/* check.cu - do the decode and the prefill kernel give the bits of docs/numerics.md, section 3?
 *
 * For head dimensions 64 and 128 and eight group sizes three things are checked.
 *
 * Rows: decode rows of lengths 1 to 5,000 on pages of their own, NaN in every byte of the pool that
 * no row owns; the same bits are asked of other cuts into chunks, folds through memory, orders of
 * the items, warps, page places, and of rows alone.
 *
 * Sequence: every position of one sequence of 5,000: prefill whole, in pieces with NaN behind each
 * piece, by chunks through memory and with other tiles, against decode row by row.
 *
 * Samples: rows of both against src/ops/ref_attn.c, 2^x taken from the device.
 *
 * usage: check [-d HEAD_DIM] [-g GROUP] [-s SAMPLES] [-o GOLDEN] [-x]
 *
 * -o: write lines for tests/data/ref_attn_golden.txt. -x: plant a fault, folds through memory walk
 * downward; it must be found. Exit 1 when any bit differs.
 *
 * Invariant: every comparison is by bits, fp32 and bf16; outputs are poisoned before a run. */
#include "attention/decode.cuh"
#include "attention/prefill.cuh"

extern "C" {
#include "ops/ref_attn.h"
}

#include <string.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <random>
#include <set>
#include <thread>
#include <vector>

enum { KV_HEADS = 2, LENGTH = 5000, MAX_PAGES = (LENGTH + PAGE - 1) / PAGE, MAX_CHUNKS = 10 };

/* ---- inputs: functions of their place, the same on host and device */

__host__ DEVICE __nv_bfloat16 cache_value(int row, int token, int kv_head, int is_v, int d)
{
    uint64_t place = (((uint64_t)row * LENGTH + token) * KV_HEADS + kv_head) * 2 + is_v;
    return __float2bfloat16_rn(hash_normal(place * 256 + d));
}

__host__ DEVICE __nv_bfloat16 query_value(int row, int head, int d)
{
    float size = 0.5f * (float)(1 << row % 4); /* from flat to sharp weights */
    return __float2bfloat16_rn(size *
                               hash_normal(1ull << 60 | ((uint64_t)row * 64 + head) * 256 + d));
}

/* ends[row]: tokens of the row; table: its pages. Sequences: one row. */
__global__ void fill_cache(__nv_bfloat16 *cache, const int *table, const int *ends, int head_dim)
{
    int row = blockIdx.y;
    size_t n = (size_t)ends[row] * KV_HEADS * 2 * head_dim;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        int d = (int)(i % head_dim), is_v = (int)(i / head_dim % 2);
        int kv_head = (int)(i / head_dim / 2 % KV_HEADS),
            token = (int)(i / head_dim / 2 / KV_HEADS);
        size_t page = (size_t)table[row * MAX_PAGES + token / PAGE] * KV_HEADS + kv_head;
        cache[page * page_elements(head_dim) + is_v * PAGE * head_dim +
              page_index(token % PAGE, d)] = cache_value(row, token, kv_head, is_v, d);
    }
}

__global__ void fill_query(__nv_bfloat16 *q, int heads, int head_dim)
{
    int row = blockIdx.x;
    for (int i = threadIdx.x; i < heads * head_dim; i += blockDim.x)
        q[(size_t)row * heads * head_dim + i] = query_value(row, i / head_dim, i % head_dim);
}

__global__ void count_differing(const uint32_t *x, const uint32_t *y, size_t n,
                                unsigned long long *counts)
{
    unsigned long long differing = 0, not_finite = 0;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        differing += x[i] != y[i];
        not_finite += (x[i] & 0x7f800000u) == 0x7f800000u;
    }
    if (differing) atomicAdd(counts, differing);
    if (not_finite) atomicAdd(counts + 1, not_finite);
}

__global__ void ex2_batch(const float *in, float *out, size_t n)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x)
        out[i] = ex2(in[i]);
}

/* ---- kernels by shape */

typedef void (*decode_kernel)(const attention, const decode_item *, const int *);
typedef void (*prefill_kernel)(const attention, const prefill_rows);

struct decode_shape {
    int head_dim, tiles, warps, bytes;
    decode_kernel kernel;
};
struct prefill_shape {
    int head_dim, groups, width, bytes;
    prefill_kernel kernel;
};

#define DECODE(D, N, W)                                                                            \
    {                                                                                              \
        D, N, W, decode_layout<D, N>::BYTES, decode<D, N, W>                                       \
    }
#define PREFILL(D, G, WIDTH)                                                                       \
    {                                                                                              \
        D, G, WIDTH, prefill_layout<D, G>::BYTES, prefill<D, G, WIDTH>                             \
    }
static const decode_shape decode_shapes[] = {
    DECODE(64, 1, 4),  DECODE(64, 1, 8),  DECODE(64, 2, 4),  DECODE(64, 2, 8),
    DECODE(128, 1, 4), DECODE(128, 1, 8), DECODE(128, 2, 4), DECODE(128, 2, 8)};
static const prefill_shape prefill_shapes[] = {
    PREFILL(64, 1, 64),  PREFILL(64, 1, 128),  PREFILL(64, 2, 64),  PREFILL(64, 2, 128),
    PREFILL(128, 1, 64), PREFILL(128, 1, 128), PREFILL(128, 2, 64), PREFILL(128, 2, 128)};

/* ---- one (head dimension, group) */

enum cut { WHOLE, CHUNKS, MIXED };

struct bench {
    int head_dim, group, heads;
    bool planted;
    FILE *golden;
    long bad;
    attention at;
    std::vector<int> table, ends; /* rows: the table on the host */
    int *d_table, *d_ends, *d_positions;
    decode_item *d_items;
    size_t cache_bytes, out_count, partial_count;
    float *expect_fp32;
    __nv_bfloat16 *expect;
    unsigned long long *counts;
};

static const int max_rows = LENGTH;

static void open_bench(bench &b)
{
    b.heads = KV_HEADS * b.group;
    b.cache_bytes = (size_t)8192 * KV_HEADS * page_elements(b.head_dim) * 2;
    b.out_count = (size_t)max_rows * b.heads * b.head_dim;
    b.partial_count = (size_t)max_rows * b.heads * MAX_CHUNKS;
    CHECK(cudaMalloc((void **)&b.at.cache, b.cache_bytes));
    CHECK(cudaMalloc((void **)&b.at.q, b.out_count * 2));
    CHECK(cudaMalloc(&b.at.out, b.out_count * 2));
    CHECK(cudaMalloc(&b.at.out_fp32, b.out_count * 4));
    CHECK(cudaMalloc(&b.expect, b.out_count * 2));
    CHECK(cudaMalloc(&b.expect_fp32, b.out_count * 4));
    CHECK(cudaMalloc(&b.at.part.tl, b.partial_count * sizeof(float2)));
    CHECK(cudaMalloc(&b.at.part.o, b.partial_count * b.head_dim * 4));
    CHECK(cudaMalloc(&b.d_table, (size_t)max_rows * MAX_PAGES * 4));
    CHECK(cudaMalloc(&b.d_ends, max_rows * 4));
    CHECK(cudaMalloc(&b.d_positions, max_rows * 4));
    CHECK(cudaMalloc(&b.d_items, (size_t)max_rows * KV_HEADS * MAX_CHUNKS * sizeof(decode_item)));
    CHECK(cudaMalloc(&b.counts, 2 * sizeof *b.counts));
    b.at.part.max_chunks = MAX_CHUNKS;
    b.at.c = (float)(1.4426950408889634 / sqrt((double)b.head_dim));
    b.at.kv_heads = KV_HEADS;
    b.at.group = b.group;
    fill_query<<<max_rows, 256>>>((__nv_bfloat16 *)b.at.q, b.heads, b.head_dim);
    CHECK(cudaGetLastError());
}

static void close_bench(bench &b)
{
    void *all[] = {(void *)b.at.cache, (void *)b.at.q, b.at.out,    b.at.out_fp32, b.expect,
                   b.expect_fp32,      b.at.part.tl,   b.at.part.o, b.d_table,     b.d_ends,
                   b.d_positions,      b.d_items,      b.counts};
    for (void *p : all) CHECK(cudaFree(p));
}

/* NaN everywhere, then the tokens of the rows. */
static void place_rows(bench &b, const std::vector<int> &ends, uint32_t seed)
{
    std::mt19937 random(seed);
    std::vector<int> pool(b.cache_bytes / 2 / KV_HEADS / page_elements(b.head_dim));
    for (size_t i = 0; i < pool.size(); i++) pool[i] = (int)i;
    std::shuffle(pool.begin(), pool.end(), random);
    size_t next = 0;
    b.ends = ends;
    b.table.assign(ends.size() * MAX_PAGES, 0);
    for (size_t r = 0; r < ends.size(); r++)
        for (int p = 0; p * PAGE < ends[r]; p++)
            b.table[r * MAX_PAGES + p] = pool[next++ % pool.size()];
    if (next > pool.size()) {
        fprintf(stderr, "check: the rows need more pages than the pool has\n");
        exit(2);
    }
    CHECK(cudaMemcpy(b.d_table, b.table.data(), b.table.size() * 4, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(b.d_ends, ends.data(), ends.size() * 4, cudaMemcpyHostToDevice));
    CHECK(cudaMemset((void *)b.at.cache, 0xff, b.cache_bytes));
    fill_cache<<<dim3(64, (unsigned)ends.size()), 256>>>((__nv_bfloat16 *)b.at.cache, b.d_table,
                                                         b.d_ends, b.head_dim);
    CHECK(cudaGetLastError());
}

static void poison(bench &b)
{
    CHECK(cudaMemset(b.at.out, 0xff, b.out_count * 2));
    CHECK(cudaMemset(b.at.out_fp32, 0xff, b.out_count * 4));
    CHECK(cudaMemset(b.at.part.tl, 0xff, b.partial_count * sizeof(float2)));
}

static void fold_rows(bench &b, const std::vector<int> &positions)
{
    int rows = (int)positions.size(), warps = rows * b.heads;
    CHECK(cudaMemcpy(b.d_positions, positions.data(), rows * 4, cudaMemcpyHostToDevice));
    if (b.head_dim == 64)
        fold_chunks<64><<<(warps + 3) / 4, 128>>>(b.at, b.d_positions, rows, b.heads, b.planted);
    else
        fold_chunks<128><<<(warps + 3) / 4, 128>>>(b.at, b.d_positions, rows, b.heads, b.planted);
    CHECK(cudaGetLastError());
}

/* A decode row: number, position, its first page in the table. */
struct decode_row {
    int row, position, pages;
};

static void add_items(std::vector<decode_item> &items, const decode_row &r, bool partial, int piece)
{
    int n = r.position / CHUNK + 1;
    for (int first = 0; first < n; first += piece)
        for (int kv = 0; kv < KV_HEADS; kv++)
            items.push_back(
                {r.row, kv, first, std::min(piece, n - first), r.position, r.pages, partial});
}

static void run_decode(bench &b, const std::vector<decode_row> &rows, int warps, cut how,
                       bool shuffled)
{
    std::mt19937 random(17);
    std::vector<decode_item> items;
    std::vector<int> fold(max_rows, -1);
    for (const decode_row &r : rows) {
        bool partial = how == CHUNKS || (how == MIXED && random() % 3);
        add_items(items, r, partial, how == CHUNKS ? 1 : partial ? 1 + random() % 3 : MAX_CHUNKS);
        if (partial) fold[r.row] = r.position;
    }
    if (shuffled) std::shuffle(items.begin(), items.end(), random);
    CHECK(cudaMemcpy(b.d_items, items.data(), items.size() * sizeof(decode_item),
                     cudaMemcpyHostToDevice));
    poison(b);
    for (const decode_shape &s : decode_shapes) {
        if (s.head_dim != b.head_dim || s.tiles != (b.group + 7) / 8 || s.warps != warps) continue;
        CHECK(cudaFuncSetAttribute(s.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, s.bytes));
        s.kernel<<<(unsigned)items.size(), 32 * warps, s.bytes>>>(b.at, b.d_items, b.d_table);
        CHECK(cudaGetLastError());
    }
    if (how != WHOLE) fold_rows(b, fold);
    CHECK(cudaDeviceSynchronize());
}

/* Rows [first, end) of the sequence whose pages are the table's first row. */
static void run_prefill(bench &b, int first, int end, int groups, int width, bool partial)
{
    attention at = b.at;
    size_t skip = (size_t)first * b.heads;
    at.q += skip * b.head_dim;
    at.out += skip * b.head_dim;
    at.out_fp32 += skip * b.head_dim;
    at.part.tl += skip * MAX_CHUNKS;
    at.part.o += skip * MAX_CHUNKS * b.head_dim;
    prefill_rows in = {b.d_table, first, end - first, partial ? 1 : MAX_CHUNKS, partial};
    for (const prefill_shape &s : prefill_shapes) {
        if (s.head_dim != b.head_dim || s.groups != groups || s.width != width) continue;
        dim3 grid((end - first + 64 * groups - 1) / (64 * groups), b.heads,
                  partial ? MAX_CHUNKS : 1);
        CHECK(cudaFuncSetAttribute(s.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, s.bytes));
        s.kernel<<<grid, 128 * groups, s.bytes>>>(at, in);
        CHECK(cudaGetLastError());
    }
    CHECK(cudaDeviceSynchronize());
}

static void keep_as_expected(bench &b)
{
    CHECK(cudaMemcpy(b.expect, b.at.out, b.out_count * 2, cudaMemcpyDeviceToDevice));
    CHECK(cudaMemcpy(b.expect_fp32, b.at.out_fp32, b.out_count * 4, cudaMemcpyDeviceToDevice));
}

/* Compares rows [first, first + rows) with what was kept. */
static void compare(bench &b, const char *what, int first, int rows)
{
    size_t at = (size_t)first * b.heads * b.head_dim, n = (size_t)rows * b.heads * b.head_dim;
    unsigned long long counts[2], halves[2];
    CHECK(cudaMemset(b.counts, 0, sizeof counts));
    count_differing<<<512, 256>>>((const uint32_t *)b.at.out_fp32 + at,
                                  (const uint32_t *)b.expect_fp32 + at, n, b.counts);
    CHECK(cudaMemcpy(counts, b.counts, sizeof counts, cudaMemcpyDeviceToHost));
    CHECK(cudaMemset(b.counts, 0, sizeof counts));
    count_differing<<<512, 256>>>((const uint32_t *)(b.at.out + at),
                                  (const uint32_t *)(b.expect + at), n / 2, b.counts);
    CHECK(cudaMemcpy(halves, b.counts, sizeof halves, cudaMemcpyDeviceToHost));
    b.bad += (long)(counts[0] + counts[1] + halves[0]);
    printf("d %3d group %2d  %-52s %9zu %8llu %8llu %8llu\n", b.head_dim, b.group, what, n,
           counts[0], halves[0], counts[1]);
    fflush(stdout);
}

/* ---- samples against the reference */

struct sample {
    int row, cache_row, head, position;
    std::vector<uint16_t> q, k, v;
    std::vector<float> arguments, values, out;
    ref_attn_row ref;
};

static uint16_t bits_of(__nv_bfloat16 x)
{
    uint16_t u;
    memcpy(&u, &x, 2);
    return u;
}

static void fill_sample(const bench &b, sample &s)
{
    int D = b.head_dim, n = s.position + 1, kv = s.head / b.group;
    s.q.resize(D);
    s.k.resize((size_t)n * D);
    s.v.resize((size_t)n * D);
    for (int d = 0; d < D; d++) s.q[d] = bits_of(query_value(s.row, s.head, d));
    for (int j = 0; j < n; j++)
        for (int d = 0; d < D; d++) {
            s.k[(size_t)j * D + d] = bits_of(cache_value(s.cache_row, j, kv, 0, d));
            s.v[(size_t)j * D + d] = bits_of(cache_value(s.cache_row, j, kv, 1, d));
        }
    s.ref = {D, s.position, b.at.c, s.q.data(), s.k.data(), s.v.data()};
    s.arguments.resize(ref_attn_arguments_max(&s.ref));
    s.arguments.resize(ref_attn_arguments(&s.ref, s.arguments.data()));
}

static void in_threads(int n, const std::function<void(int)> &f)
{
    unsigned workers = std::max(1u, std::thread::hardware_concurrency());
    std::atomic<int> next{0};
    std::vector<std::thread> threads;
    for (unsigned w = 0; w < workers; w++)
        threads.emplace_back([&] {
            for (int i; (i = next++) < n;) f(i);
        });
    for (auto &t : threads) t.join();
}

static void take_ex2(std::vector<sample> &samples)
{
    size_t n = 0;
    for (const sample &s : samples) n += s.arguments.size();
    std::vector<float> all;
    all.reserve(n);
    for (const sample &s : samples) all.insert(all.end(), s.arguments.begin(), s.arguments.end());
    float *in, *out;
    CHECK(cudaMalloc(&in, n * 4));
    CHECK(cudaMalloc(&out, n * 4));
    CHECK(cudaMemcpy(in, all.data(), n * 4, cudaMemcpyHostToDevice));
    ex2_batch<<<512, 256>>>(in, out, n);
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpy(all.data(), out, n * 4, cudaMemcpyDeviceToHost));
    CHECK(cudaFree(in));
    CHECK(cudaFree(out));
    const float *at = all.data();
    for (sample &s : samples) {
        s.values.assign(at, at + s.arguments.size());
        at += s.arguments.size();
    }
}

static void check_samples(bench &b, const char *what, std::vector<sample> &samples)
{
    std::atomic<long> differing{0};
    std::vector<float> got(b.out_count);
    CHECK(cudaMemcpy(got.data(), b.at.out_fp32, b.out_count * 4, cudaMemcpyDeviceToHost));
    in_threads((int)samples.size(), [&](int i) { fill_sample(b, samples[i]); });
    take_ex2(samples);
    in_threads((int)samples.size(), [&](int i) {
        sample &s = samples[i];
        s.out.resize(b.head_dim);
        ref_attn_output(&s.ref, s.values.data(), s.out.data());
        const float *device = got.data() + ((size_t)s.row * b.heads + s.head) * b.head_dim;
        for (int d = 0; d < b.head_dim; d++) differing += memcmp(&device[d], &s.out[d], 4) != 0;
    });
    b.bad += differing;
    printf("d %3d group %2d  %-52s %9zu %8ld\n", b.head_dim, b.group, what,
           samples.size() * b.head_dim, (long)differing);
    fflush(stdout);
}

/* The rows that tests/test_ref_attn.c holds: lengths around the borders of blocks and chunks. A
 * line: head_dim, group, row, head, position, number of 2^x, a hash of their arguments, their
 * values, the outputs. */
static void write_golden(FILE *f, const bench &b, const std::vector<sample> &samples)
{
    std::multiset<int> wanted = {0, 16, 127, 128, 511, 512, 512, 512, 639, 639, 639, 1024};
    for (const sample &s : samples) {
        auto found = wanted.find(s.position);
        if (found == wanted.end()) continue;
        wanted.erase(found);
        uint64_t hash = 0;
        for (float x : s.arguments) {
            uint32_t u;
            memcpy(&u, &x, 4);
            hash = hash64(hash ^ u);
        }
        fprintf(f, "%d %d %d %d %d %zu %016llx", b.head_dim, b.group, s.row, s.head, s.position,
                s.values.size(), (unsigned long long)hash);
        for (const std::vector<float> *v : {&s.values, &s.out})
            for (float x : *v) {
                uint32_t u;
                memcpy(&u, &x, 4);
                fprintf(f, " %x", u);
            }
        fprintf(f, "\n");
    }
}

/* ---- the three checks */

static std::vector<int> row_lengths()
{
    std::vector<int> v = {1,    2,    15,   16,   17,   63,   64,   65,   127,   128,
                          129,  191,  192,  255,  256,  257,  383,  384,  511,   512,
                          513,  577,  639,  640,  1023, 1024, 1025, 1087, 1535,  1536,
                          1537, 2047, 2048, 2049, 3071, 4096, 4097, 4999, LENGTH};
    std::mt19937 random(3);
    while (v.size() < 96) v.push_back(1 + random() % LENGTH);
    std::shuffle(v.begin(), v.end(), random);
    return v;
}

static void check_rows(bench &b, int n_samples)
{
    std::vector<int> lengths = row_lengths();
    std::vector<decode_row> rows;
    int n = (int)lengths.size();
    for (int r = 0; r < n; r++) rows.push_back({r, lengths[r] - 1, r * MAX_PAGES});
    place_rows(b, lengths, 1);
    run_decode(b, rows, 4, WHOLE, false);
    keep_as_expected(b);
    std::vector<sample> samples(n_samples);
    for (int i = 0; i < n_samples; i++) {
        int row = i < n ? i : (int)(hash64(i) % n), head = (int)(hash64(i + 99) % b.heads);
        samples[i].row = samples[i].cache_row = row;
        samples[i].head = head;
        samples[i].position = lengths[row] - 1;
    }
    check_samples(b, "decode rows against ref_attn.c", samples);
    if (b.golden && b.group == 4) write_golden(b.golden, b, samples);
    run_decode(b, rows, 8, WHOLE, true);
    compare(b, "decode rows: 8 warps, shuffled", 0, n);
    run_decode(b, rows, 4, CHUNKS, true);
    compare(b, "decode rows: chunks through memory, shuffled", 0, n);
    run_decode(b, rows, 8, CHUNKS, false);
    compare(b, "decode rows: chunks through memory, 8 warps", 0, n);
    run_decode(b, rows, 4, MIXED, true);
    compare(b, "decode rows: mixed cuts, shuffled", 0, n);
    place_rows(b, lengths, 2);
    run_decode(b, rows, 8, MIXED, true);
    compare(b, "decode rows: mixed cuts, 8 warps, other pages", 0, n);
    for (int r = 5; r < n; r += 31) {
        run_decode(b, {rows[r]}, r % 2 ? 4 : 8, r % 4 < 2 ? WHOLE : CHUNKS, false);
        compare(b, "decode rows: one alone", r, 1);
    }
}

static void check_sequence(bench &b, int n_samples)
{
    static const int cuts[] = {0, 1, 63, 64, 500, 512, 1000, 1021, 1664, 2048, 3333, 4990, LENGTH};
    std::vector<decode_row> rows;
    for (int p = 0; p < LENGTH; p++) rows.push_back({p, p, 0});
    place_rows(b, {LENGTH}, 4);
    run_decode(b, rows, 4, WHOLE, false);
    keep_as_expected(b);
    for (int groups = 1; groups <= 2; groups++)
        for (int width = 64; width <= 128; width *= 2) {
            char what[80];
            poison(b);
            run_prefill(b, 0, LENGTH, groups, width, false);
            snprintf(what, sizeof what, "prefill whole against decode: %d rows, n %d", 64 * groups,
                     width);
            compare(b, what, 0, LENGTH);
        }
    std::vector<sample> samples(n_samples);
    for (int i = 0; i < n_samples; i++) {
        samples[i].cache_row = 0;
        samples[i].row = samples[i].position = (int)(hash64(i + 1000) % LENGTH);
        samples[i].head = (int)(hash64(i + 2000) % b.heads);
    }
    check_samples(b, "prefill against ref_attn.c", samples);
    std::vector<int> positions(LENGTH);
    for (int p = 0; p < LENGTH; p++) positions[p] = p;
    poison(b);
    run_prefill(b, 0, LENGTH, 2, 128, true);
    fold_rows(b, positions);
    CHECK(cudaDeviceSynchronize());
    compare(b, "prefill: chunks apart, folded through memory", 0, LENGTH);
    for (int partial = 0; partial < 2; partial++) {
        poison(b);
        for (size_t i = 0; i + 1 < sizeof cuts / sizeof *cuts; i++) {
            place_rows(b, {cuts[i + 1]}, 4); /* NaN behind the piece */
            run_prefill(b, cuts[i], cuts[i + 1], 1 + i % 2, i % 3 ? 128 : 64, partial && i % 2);
            if (!partial || i % 2 == 0) continue;
            std::vector<int> piece(LENGTH, -1);
            for (int p = cuts[i]; p < cuts[i + 1]; p++) piece[p] = p;
            fold_rows(b, piece);
            CHECK(cudaDeviceSynchronize());
        }
        compare(b,
                partial ? "prefill: 12 pieces, every other through memory" : "prefill: 12 pieces",
                0, LENGTH);
    }
}

int main(int argc, char **argv)
{
    int only_dim = 0, only_group = 0, n_samples = 192;
    bool planted = false, usage = false;
    FILE *golden = NULL;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "-x"))
            planted = true;
        else if (i + 1 < argc && !strcmp(argv[i], "-d"))
            only_dim = atoi(argv[++i]);
        else if (i + 1 < argc && !strcmp(argv[i], "-g"))
            only_group = atoi(argv[++i]);
        else if (i + 1 < argc && !strcmp(argv[i], "-s"))
            n_samples = std::max(1, atoi(argv[++i]));
        else if (i + 1 < argc && !strcmp(argv[i], "-o")) {
            golden = fopen(argv[++i], "w");
            if (!golden) fprintf(stderr, "check: cannot write %s\n", argv[i]);
            usage |= !golden;
        } else
            usage = true;
    }
    if (usage) {
        fprintf(stderr, "usage: check [-d HEAD_DIM] [-g GROUP] [-s SAMPLES] [-o GOLDEN] [-x]\n");
        return 2;
    }
    cudaDeviceProp prop;
    CHECK(cudaGetDeviceProperties(&prop, 0));
    printf("device %s; outputs whose bits differ, fp32 and (pairs of) bf16; not finite\n",
           prop.name);
    printf("%-68s %9s %8s %8s %8s\n", "", "outputs", "fp32", "bf16", "not fin.");
    long bad = 0;
    for (int dim : {64, 128})
        for (int group : {1, 2, 3, 4, 5, 7, 8, 16}) {
            if ((only_dim && dim != only_dim) || (only_group && group != only_group)) continue;
            bench b = {};
            b.head_dim = dim;
            b.group = group;
            b.planted = planted;
            b.golden = golden;
            open_bench(b);
            check_rows(b, n_samples);
            check_sequence(b, n_samples);
            close_bench(b);
            bad += b.bad;
        }
    if (golden) fclose(golden);
    printf("%ld differ or are not finite\n", bad);
    return bad != 0;
}
