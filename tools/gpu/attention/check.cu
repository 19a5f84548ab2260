/* check.cu - does the attention of the CUDA backend give the bits of docs/numerics.md, section 3?
 *
 * Everything goes through the entry points of src/ops/cuda/gpu.h. For head dimensions 64 and 128
 * and eight group sizes these are checked, with NaN in every byte of the pool that no row owns:
 *
 * Rows: decode rows of lengths 1 to 5,000; the same bits are asked of other orders, places of the
 * pages, page sizes, dead rows between, folds in registers and through memory, of rows alone, and
 * of a captured graph that is replayed over other lengths.
 *
 * Sequence: every position of one sequence of 5,000: prefill whole, in pieces with NaN behind each,
 * and pieces mixed with single rows in one step, against decode row by row.
 *
 * Samples: rows of both against src/ops/ref_attn.c, 2^x taken from the device.
 *
 * Sets: fixed gives one result for decode, prefill and rows alone; standard repeats itself; both
 * are near canonical.
 *
 * usage: check [-d HEAD_DIM] [-g GROUP] [-s SAMPLES] [-o GOLDEN] [-x] [-t]
 *
 * -o: write lines for tests/data/ref_attn_golden.txt. -x: plant a fault, folds through memory walk
 * downward; it must be found. -t: only measure speed. Exit 1 when any bit differs.
 *
 * Invariant: every comparison is by bits, fp32 and bf16; outputs are poisoned before a run. */
#include "device.cuh"

extern "C" {
#include "base/err.h"
#include "ops/ref_attn.h"
}

#include "ops/cuda/attention.h"

#include <math.h>
#include <string.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <random>
#include <set>
#include <thread>
#include <vector>

enum { KV_HEADS = 2, LENGTH = 5000, N_ROWS = 96, POOL_TOKENS = 8192 * 64 };

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

/* Where element d of a token lies in a page's K or V: an index of bf16. */
__host__ DEVICE int page_index(int page_tokens, int token, int d)
{
    return (d >> 6) * (page_tokens * 64) + token * 64 +
           ((((d & 63) >> 3) ^ (token & 7)) << 3 | (d & 7));
}

/* ends[seq]: tokens of the sequence; table: its pages. */
__global__ void fill_cache(__nv_bfloat16 *cache, const int *table, int max_page, const int *ends,
                           int head_dim, int page_tokens)
{
    int seq = blockIdx.y;
    size_t n = (size_t)ends[seq] * KV_HEADS * 2 * head_dim;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        int d = (int)(i % head_dim), is_v = (int)(i / head_dim % 2);
        int kv_head = (int)(i / head_dim / 2 % KV_HEADS),
            token = (int)(i / head_dim / 2 / KV_HEADS);
        size_t page = (size_t)table[seq * max_page + token / page_tokens] * KV_HEADS + kv_head;
        cache[(page * 2 + is_v) * page_tokens * head_dim +
              page_index(page_tokens, token % page_tokens, d)] =
            cache_value(seq, token, kv_head, is_v, d);
    }
}

/* ids[token]: which query, or -1. */
__global__ void fill_query(__nv_bfloat16 *q, const int *ids, int heads, int head_dim)
{
    int id = ids[blockIdx.x];
    for (int i = threadIdx.x; i < heads * head_dim; i += blockDim.x)
        q[(size_t)blockIdx.x * heads * head_dim + i] =
            id < 0 ? __float2bfloat16_rn(NAN) : query_value(id, i / head_dim, i % head_dim);
}

/* Token t of the step against what is kept for ids[t]; one without an id must be untouched. keep:
 * keeps it instead. counts: fp32 that differ, bf16 that differ, not finite. */
__global__ void compare_tokens(const uint32_t *out, const uint16_t *half, uint32_t *kept,
                               uint16_t *kept_half, const int *ids, int n, bool keep,
                               unsigned long long *counts)
{
    unsigned long long count[3] = {0, 0, 0};
    int id = ids[blockIdx.x];
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        uint32_t x = out[(size_t)blockIdx.x * n + i];
        uint16_t y = half[(size_t)blockIdx.x * n + i];
        if (id < 0) {
            count[0] += x != 0xffffffffu;
            count[1] += y != 0xffffu;
            continue;
        }
        size_t at = (size_t)id * n + i;
        count[2] += (x & 0x7f800000u) == 0x7f800000u;
        if (keep) {
            kept[at] = x;
            kept_half[at] = y;
        }
        count[0] += x != kept[at];
        count[1] += y != kept_half[at];
    }
    for (int k = 0; k < 3; k++)
        if (count[k]) atomicAdd(counts + k, count[k]);
}

__global__ void ex2_batch(const float *in, float *out, size_t n)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x)
        out[i] = ex2(in[i]);
}

/* ---- one (head dimension, group) */

enum { MAX_IDS = N_ROWS + LENGTH, MAX_TOK = LENGTH + 64 };

/* A row of a step: `length` tokens of a sequence from `position` on, queries id, id + 1, ...;
 * length 0: a dead row. */
struct test_row {
    int seq, position, length, id;
};

struct bench {
    int head_dim, group, heads, page_tokens, n_page, max_page;
    float scale;
    bool planted;
    FILE *golden;
    long bad;
    gpu device;
    ops_dims dims;
    ops_conf conf;
    gpu_kv kv;
    gpu_attn *attn;
    gpu_step step;
    std::vector<int> table; /* [seq][max_page] */
    int *d_table, *d_ends, *d_ids;
    __nv_bfloat16 *q, *out;
    float *out_fp32;
    uint32_t *kept;
    uint16_t *kept_half;
    unsigned long long *counts;
};

static void check_status(corun_status st)
{
    if (st == CORUN_OK) return;
    fprintf(stderr, "check: %s\n", err_text());
    exit(2);
}

static cudaStream_t stream_of(const bench &b) { return (cudaStream_t)b.device.stream; }

template <typename T> static void reserve(T **p, size_t n) { CHECK(cudaMalloc(p, n * sizeof **p)); }

static void open_device(gpu &g)
{
    cudaDeviceProp prop;
    cudaStream_t stream;
    CHECK(cudaGetDeviceProperties(&prop, 0));
    CHECK(cudaStreamCreate(&stream));
    g.sm_count = prop.multiProcessorCount;
    g.cc = prop.major * 10 + prop.minor;
    g.stream = stream;
}

static void open_step(gpu_step &s)
{
    reserve(&s.row_tok, s.max_row + 1);
    reserve(&s.row_pos, s.max_row);
    reserve(&s.row_len, s.max_row);
    reserve(&s.page, (size_t)s.max_row * s.max_page);
}

static void close_step(gpu_step &s)
{
    for (void *p : {(void *)s.row_tok, (void *)s.row_pos, (void *)s.row_len, (void *)s.page})
        CHECK(cudaFree(p));
}

/* Opens attention for a page size and sets; the pool is poisoned by place_rows. */
static void open_attention(bench &b, int page_tokens, ops_set decode, ops_set prefill)
{
    b.page_tokens = page_tokens;
    b.n_page = POOL_TOKENS / page_tokens;
    b.max_page = (LENGTH + page_tokens - 1) / page_tokens;
    b.conf = {};
    b.conf.n_ctx = LENGTH;
    b.conf.max_tok = MAX_TOK;
    b.conf.max_row = LENGTH + 8;
    b.conf.page_tokens = page_tokens;
    b.conf.n_page = b.n_page;
    b.conf.set[OPS_OP_ATTN_DECODE] = decode;
    b.conf.set[OPS_OP_ATTN_PREFILL] = prefill;
    b.kv.page_stride = (size_t)KV_HEADS * 2 * page_tokens * b.head_dim * 2;
    b.kv.layer_stride = b.kv.page_stride * b.n_page;
    b.kv.page_tokens = page_tokens;
    b.kv.n_kv = KV_HEADS;
    b.kv.d_head = b.head_dim;
    check_status(gpu_attn_open(&b.attn, &b.device, &b.dims, &b.conf, &b.kv));
    gpu_attn_probe(b.attn, b.out_fp32, b.planted, -1);
    b.step.max_row = b.conf.max_row;
    b.step.max_tok = MAX_TOK;
    b.step.max_page = b.max_page;
    open_step(b.step);
}

static void close_attention(bench &b)
{
    close_step(b.step);
    gpu_attn_close(b.attn);
}

static void open_bench(bench &b)
{
    size_t token = (size_t)KV_HEADS * b.group * b.head_dim;
    b.heads = KV_HEADS * b.group;
    b.scale = (float)(1 / sqrt((double)b.head_dim));
    b.dims.n_layer = 1;
    b.dims.n_head = b.heads;
    b.dims.n_kv = KV_HEADS;
    b.dims.d_head = b.head_dim;
    reserve((char **)&b.kv.base, (size_t)POOL_TOKENS * KV_HEADS * 2 * b.head_dim * 2);
    reserve(&b.q, MAX_TOK * token);
    reserve(&b.out, MAX_TOK * token);
    reserve(&b.out_fp32, MAX_TOK * token);
    reserve(&b.kept, MAX_IDS * token);
    reserve(&b.kept_half, MAX_IDS * token);
    reserve(&b.d_table, (size_t)N_ROWS * ((LENGTH + 15) / 16));
    reserve(&b.d_ends, N_ROWS);
    reserve(&b.d_ids, MAX_TOK);
    reserve(&b.counts, 3);
}

static void close_bench(bench &b)
{
    for (void *p : {(void *)b.kv.base, (void *)b.q, (void *)b.out, (void *)b.out_fp32,
                    (void *)b.kept, (void *)b.kept_half, (void *)b.d_table, (void *)b.d_ends,
                    (void *)b.d_ids, (void *)b.counts})
        CHECK(cudaFree(p));
}

/* NaN everywhere, then the tokens of the sequences, on pages in a random order. */
static void place_rows(bench &b, const std::vector<int> &ends, uint32_t seed)
{
    std::mt19937 random(seed);
    std::vector<int> pool(b.n_page);
    for (size_t i = 0; i < pool.size(); i++) pool[i] = (int)i;
    std::shuffle(pool.begin(), pool.end(), random);
    size_t next = 0;
    b.table.assign(ends.size() * b.max_page, 0);
    for (size_t r = 0; r < ends.size(); r++)
        for (int p = 0; p * b.page_tokens < ends[r]; p++)
            b.table[r * b.max_page + p] = pool[next++ % pool.size()];
    if (next > pool.size()) {
        fprintf(stderr, "check: the rows need more pages than the pool has\n");
        exit(2);
    }
    CHECK(cudaMemcpy(b.d_table, b.table.data(), b.table.size() * 4, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(b.d_ends, ends.data(), ends.size() * 4, cudaMemcpyHostToDevice));
    CHECK(cudaMemset(b.kv.base, 0xff, b.kv.layer_stride));
    fill_cache<<<dim3(64, (unsigned)ends.size()), 256>>>(
        (__nv_bfloat16 *)b.kv.base, b.d_table, b.max_page, b.d_ends, b.head_dim, b.page_tokens);
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
}

/* Puts the arrays of a step of these rows and poisons its outputs. */
static void put_step(bench &b, const std::vector<test_row> &rows)
{
    size_t token = (size_t)b.heads * b.head_dim;
    std::vector<int> first, position, length, ids, pages;
    b.step.max_q = 1;
    for (const test_row &r : rows) {
        first.push_back((int)ids.size());
        position.push_back(r.length ? r.position : -1);
        length.push_back(std::max(1, r.length));
        b.step.max_q = std::max(b.step.max_q, length.back());
        for (int i = 0; i < length.back(); i++) ids.push_back(r.length ? r.id + i : -1);
        /* A dead row's pages are no pages. */
        for (int p = 0; p < b.max_page; p++)
            pages.push_back(r.length ? b.table[r.seq * b.max_page + p] : 0x7fffffff);
    }
    first.push_back((int)ids.size());
    b.step.n_row = (int)rows.size();
    b.step.n_tok = (int)ids.size();
    b.step.kind = b.step.max_q == 1 ? STEP_DECODE : rows.size() == 1 ? STEP_PREFILL : STEP_MIXED;
    const std::pair<int *, std::vector<int> *> arrays[] = {{b.step.row_tok, &first},
                                                           {b.step.row_pos, &position},
                                                           {b.step.row_len, &length},
                                                           {b.step.page, &pages},
                                                           {b.d_ids, &ids}};
    for (auto &a : arrays)
        CHECK(cudaMemcpy(a.first, a.second->data(), a.second->size() * 4, cudaMemcpyHostToDevice));
    fill_query<<<(unsigned)ids.size(), 256>>>(b.q, b.d_ids, b.heads, b.head_dim);
    CHECK(cudaGetLastError());
    CHECK(cudaMemset(b.out, 0xff, MAX_TOK * token * 2));
    CHECK(cudaMemset(b.out_fp32, 0xff, MAX_TOK * token * 4));
    CHECK(cudaDeviceSynchronize());
}

static void launch(bench &b)
{
    check_status(gpu_attn_plan(b.attn, &b.step));
    check_status(gpu_attn_run(b.attn, &b.step, 0, b.q, b.scale, b.out, false));
}

/* A step; slots bounds how many states of chunks go through memory (-1: as many as fit). */
static void run_rows(bench &b, const std::vector<test_row> &rows, int slots)
{
    put_step(b, rows);
    gpu_attn_probe(b.attn, b.out_fp32, b.planted, slots);
    launch(b);
    CHECK(cudaDeviceSynchronize());
}

/* The outputs of the last step against what is kept. keep: keeps them, only finite is asked. */
static void compare(bench &b, const char *what, bool keep = false)
{
    unsigned long long counts[3];
    int n = b.heads * b.head_dim;
    CHECK(cudaMemset(b.counts, 0, sizeof counts));
    compare_tokens<<<b.step.n_tok, 256>>>((const uint32_t *)b.out_fp32, (const uint16_t *)b.out,
                                          b.kept, b.kept_half, b.d_ids, n, keep, b.counts);
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpy(counts, b.counts, sizeof counts, cudaMemcpyDeviceToHost));
    b.bad += (long)(counts[0] + counts[1] + counts[2]);
    printf("d %3d group %2d  %-60s %9zu %8llu %8llu %8llu\n", b.head_dim, b.group, what,
           (size_t)b.step.n_tok * n, counts[0], counts[1], counts[2]);
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
    s.ref = {D,          s.position, (float)((double)b.scale * 1.4426950408889634),
             s.q.data(), s.k.data(), s.v.data()};
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
    size_t token = (size_t)b.heads * b.head_dim;
    std::vector<float> got((size_t)MAX_IDS * token);
    CHECK(cudaMemcpy(got.data(), b.kept, got.size() * 4, cudaMemcpyDeviceToHost));
    in_threads((int)samples.size(), [&](int i) { fill_sample(b, samples[i]); });
    take_ex2(samples);
    in_threads((int)samples.size(), [&](int i) {
        sample &s = samples[i];
        s.out.resize(b.head_dim);
        ref_attn_output(&s.ref, s.values.data(), s.out.data());
        const float *device = got.data() + (size_t)s.row * token + (size_t)s.head * b.head_dim;
        for (int d = 0; d < b.head_dim; d++) differing += memcmp(&device[d], &s.out[d], 4) != 0;
    });
    b.bad += differing;
    printf("d %3d group %2d  %-60s %9zu %8ld\n", b.head_dim, b.group, what,
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

/* ---- the checks */

static std::vector<int> row_lengths()
{
    std::vector<int> v = {1,    2,    15,   16,   17,   63,   64,   65,   127,   128,
                          129,  191,  192,  255,  256,  257,  383,  384,  511,   512,
                          513,  577,  639,  640,  1023, 1024, 1025, 1087, 1535,  1536,
                          1537, 2047, 2048, 2049, 3071, 4096, 4097, 4999, LENGTH};
    std::mt19937 random(3);
    while (v.size() < N_ROWS) v.push_back(1 + random() % LENGTH);
    std::shuffle(v.begin(), v.end(), random);
    return v;
}

static std::vector<test_row> decode_rows(const std::vector<int> &lengths)
{
    std::vector<test_row> rows;
    for (int r = 0; r < (int)lengths.size(); r++) rows.push_back({r, lengths[r] - 1, 1, r});
    return rows;
}

/* In another order, a dead row before every fifth. */
static std::vector<test_row> with_dead_rows(std::vector<test_row> rows, uint32_t seed)
{
    std::vector<test_row> all;
    std::shuffle(rows.begin(), rows.end(), std::mt19937(seed));
    for (size_t i = 0; i < rows.size(); i++) {
        if (i % 5 == 0) all.push_back({0, 0, 0, 0});
        all.push_back(rows[i]);
    }
    return all;
}

/* A graph of a step of dead and short rows, replayed over the arrays of other steps. */
static void check_replay(bench &b, const std::vector<test_row> &rows)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    std::vector<test_row> other = rows;
    for (size_t i = 0; i < other.size(); i++) {
        other[i].position = (int)(i % 7);
        if (i % 3 == 0) other[i].length = 0;
    }
    put_step(b, other);
    gpu_attn_probe(b.attn, b.out_fp32, b.planted, -1);
    CHECK(cudaStreamBeginCapture(stream_of(b), cudaStreamCaptureModeThreadLocal));
    launch(b);
    CHECK(cudaStreamEndCapture(stream_of(b), &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 3; i++) {
        std::vector<test_row> these = rows;
        std::shuffle(these.begin(), these.end(), std::mt19937(i + 50));
        if (i == 1)
            for (size_t r = 0; r < these.size(); r += 2) these[r].length = 0;
        put_step(b, these);
        CHECK(cudaGraphLaunch(exec, stream_of(b)));
        CHECK(cudaDeviceSynchronize());
        compare(b, "decode rows: graph of another step, replayed");
    }
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
}

static void check_rows(bench &b, int n_samples)
{
    std::vector<int> lengths = row_lengths();
    std::vector<test_row> rows = decode_rows(lengths);
    open_attention(b, 64, OPS_SET_CANONICAL, OPS_SET_CANONICAL);
    place_rows(b, lengths, 1);
    run_rows(b, rows, -1);
    compare(b, "decode rows: kept", true);
    std::vector<sample> samples(n_samples);
    for (int i = 0; i < n_samples; i++) {
        int row = i < N_ROWS ? i : (int)(hash64(i) % N_ROWS);
        samples[i].row = samples[i].cache_row = row;
        samples[i].head = (int)(hash64(i + 99) % b.heads);
        samples[i].position = lengths[row] - 1;
    }
    check_samples(b, "decode rows against ref_attn.c", samples);
    if (b.golden && b.group == 4) write_golden(b.golden, b, samples);
    run_rows(b, rows, 0);
    compare(b, "decode rows: folded in registers");
    run_rows(b, with_dead_rows(rows, 7), 150);
    compare(b, "decode rows: dead rows between, shuffled, 150 states");
    check_replay(b, rows);
    for (int r = 5; r < N_ROWS; r += 31) {
        run_rows(b, {rows[r]}, r % 2 ? 0 : -1);
        compare(b, "decode rows: one alone");
    }
    close_attention(b);
    for (int page_tokens : {16, 32, 128}) {
        char what[80];
        open_attention(b, page_tokens, OPS_SET_CANONICAL, OPS_SET_CANONICAL);
        place_rows(b, lengths, 2);
        run_rows(b, with_dead_rows(rows, page_tokens), page_tokens == 32 ? 100 : -1);
        snprintf(what, sizeof what, "decode rows: pages of %d", page_tokens);
        compare(b, what);
        close_attention(b);
    }
}

/* Positions [first, end) of the sequence as one row. */
static test_row piece_of(int first, int end) { return {0, first, end - first, N_ROWS + first}; }

/* The whole sequence as rows of one step: pieces, single rows between, dead rows. */
static std::vector<test_row> mixed_rows(uint32_t seed)
{
    std::mt19937 random(seed);
    std::vector<test_row> rows;
    for (int at = 0; at < LENGTH;) {
        int n = random() % 3 == 0 ? 1 : 1 + (int)(random() % (random() % 2 ? 700 : 140));
        n = std::min(n, LENGTH - at);
        rows.push_back(piece_of(at, at + n));
        at += n;
    }
    return with_dead_rows(rows, seed);
}

static void check_pieces(bench &b, int slots, const char *what)
{
    static const int cuts[] = {0, 1, 63, 64, 500, 512, 1000, 1021, 1664, 2048, 3333, 4990, LENGTH};
    for (size_t i = 0; i + 1 < sizeof cuts / sizeof *cuts; i++) {
        char text[80];
        place_rows(b, {cuts[i + 1]}, 4); /* NaN behind the piece */
        run_rows(b, {piece_of(cuts[i], cuts[i + 1])}, slots);
        snprintf(text, sizeof text, "%s %d to %d", what, cuts[i], cuts[i + 1] - 1);
        compare(b, text);
    }
}

static void check_sequence(bench &b, int n_samples)
{
    std::vector<test_row> rows;
    for (int p = 0; p < LENGTH; p++) rows.push_back(piece_of(p, p + 1));
    open_attention(b, 64, OPS_SET_CANONICAL, OPS_SET_CANONICAL);
    place_rows(b, {LENGTH}, 4);
    run_rows(b, rows, -1);
    compare(b, "every position by decode: kept", true);
    for (int slots : {-1, 0}) {
        run_rows(b, {piece_of(0, LENGTH)}, slots);
        compare(b, slots ? "prefill whole" : "prefill whole, folded in registers");
    }
    std::vector<sample> samples(n_samples);
    for (int i = 0; i < n_samples; i++) {
        samples[i].cache_row = 0;
        samples[i].position = (int)(hash64(i + 1000) % LENGTH);
        samples[i].row = N_ROWS + samples[i].position;
        samples[i].head = (int)(hash64(i + 2000) % b.heads);
    }
    check_samples(b, "the sequence against ref_attn.c", samples);
    for (int i = 0; i < 3; i++) {
        run_rows(b, mixed_rows(20 + i), i ? -1 : 0);
        compare(b, "mixed step: pieces, single rows, dead rows");
    }
    check_pieces(b, -1, "prefill of");
    check_pieces(b, 0, "prefill, folded in registers, of");
    close_attention(b);
    for (int page_tokens : {16, 32, 128}) {
        char what[80];
        open_attention(b, page_tokens, OPS_SET_CANONICAL, OPS_SET_CANONICAL);
        place_rows(b, {LENGTH}, page_tokens);
        run_rows(b, mixed_rows(30 + page_tokens), -1);
        snprintf(what, sizeof what, "mixed step: pages of %d", page_tokens);
        compare(b, what);
        close_attention(b);
    }
}

/* ---- the other sets */

/* The largest |difference| of the last step's outputs to the kept ones, over the RMS of those. */
static double distance(bench &b)
{
    size_t n = (size_t)b.step.n_tok * b.heads * b.head_dim, token = (size_t)b.heads * b.head_dim;
    std::vector<float> out(n), kept((size_t)MAX_IDS * token);
    std::vector<int> ids(b.step.n_tok);
    double largest = 0, squares = 0;
    CHECK(cudaMemcpy(out.data(), b.out_fp32, n * 4, cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(kept.data(), b.kept, kept.size() * 4, cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(ids.data(), b.d_ids, ids.size() * 4, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < n; i++) {
        double x = out[i], y = kept[ids[i / token] * token + i % token];
        if (!(fabs(x - y) <= largest)) largest = fabs(x - y);
        squares += y * y;
    }
    return largest / sqrt(squares / (double)n);
}

static void check_distance(bench &b, const char *what)
{
    double d = distance(b);
    b.bad += !(d < 0.05);
    printf("d %3d group %2d  %-60s largest distance / RMS %.2e\n", b.head_dim, b.group, what, d);
}

/* After check_sequence: the canonical outputs of the sequence are kept. */
static void check_sets(bench &b)
{
    std::vector<test_row> rows;
    for (int p = 0; p < LENGTH; p += 7) rows.push_back(piece_of(p, p + 1));
    std::vector<test_row> whole = {piece_of(0, LENGTH)};
    for (ops_set set : {OPS_SET_STANDARD, OPS_SET_FIXED}) {
        const char *name = set == OPS_SET_STANDARD ? "standard" : "fixed";
        char what[80];
        open_attention(b, 64, set, set);
        place_rows(b, {LENGTH}, 4);
        for (const std::vector<test_row> &v :
             {rows, whole, std::vector<test_row>{piece_of(4800, LENGTH)}}) {
            run_rows(b, v, -1);
            snprintf(what, sizeof what, "%s, %d rows: near canonical", name, (int)v.size());
            check_distance(b, what);
        }
        if (set == OPS_SET_STANDARD) {
            run_rows(b, rows, -1);
            compare(b, "standard decode: kept", true);
            run_rows(b, rows, -1);
            compare(b, "standard decode: again");
            long bad = b.bad;
            run_rows(b, {piece_of(4998, 4999)}, -1);
            compare(b, "standard decode: a row alone (other bits are right)");
            printf("standard decode: the load of the step %s the bits\n",
                   b.bad == bad ? "DID NOT MOVE" : "moves");
            b.bad = b.bad == bad ? bad + 1 : bad;
        } else {
            run_rows(b, whole, -1);
            compare(b, "fixed prefill: kept", true);
            run_rows(b, rows, -1);
            compare(b, "fixed decode against fixed prefill");
            run_rows(b, {piece_of(4998, 4999)}, 0);
            compare(b, "fixed decode: a row alone");
            run_rows(b, mixed_rows(77), -1);
            compare(b, "fixed: mixed step");
        }
        close_attention(b);
    }
}

/* ---- speed: 32 heads on 8 kv heads of 128, pages of 64 */

enum { SPEED_PAGES = 16384, SPEED_CONTEXT = 65536, REPEATS = 20, SPEED_TOK = 8192 };

/* Microseconds of one launch: a graph of REPEATS launches on pages of their own, the median of 5.
 */
static double time_launches(bench &b, int *tables)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t from, to;
    float ms[5];
    gpu_step s = b.step;
    CHECK(cudaEventCreate(&from));
    CHECK(cudaEventCreate(&to));
    check_status(gpu_attn_plan(b.attn, &s));
    CHECK(cudaStreamBeginCapture(stream_of(b), cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < REPEATS; i++) {
        s.page = tables + (size_t)i * s.n_row * s.max_page;
        check_status(gpu_attn_run(b.attn, &s, 0, b.q, b.scale, b.out, false));
    }
    CHECK(cudaStreamEndCapture(stream_of(b), &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaGraphLaunch(exec, stream_of(b)));
    for (float &t : ms) {
        CHECK(cudaEventRecord(from, stream_of(b)));
        CHECK(cudaGraphLaunch(exec, stream_of(b)));
        CHECK(cudaEventRecord(to, stream_of(b)));
        CHECK(cudaEventSynchronize(to));
        CHECK(cudaEventElapsedTime(&t, from, to));
    }
    std::sort(ms, ms + 5);
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    return ms[2] * 1e3 / REPEATS;
}

/* Rows (position, length) of a step on random pages, other pages in every repeat. */
static double time_step(bench &b, const std::vector<std::pair<int, int>> &rows)
{
    std::vector<int> first, position, length, pool(SPEED_PAGES);
    int tok = 0, n = (int)rows.size();
    b.step.max_q = 1;
    for (auto &r : rows) {
        first.push_back(tok);
        position.push_back(r.first);
        length.push_back(r.second);
        tok += r.second;
        b.step.max_q = std::max(b.step.max_q, r.second);
    }
    b.step.n_row = n;
    b.step.n_tok = tok;
    b.step.kind = b.step.max_q == 1 ? STEP_DECODE : n == 1 ? STEP_PREFILL : STEP_MIXED;
    for (int i = 0; i < SPEED_PAGES; i++) pool[i] = i;
    std::shuffle(pool.begin(), pool.end(), std::mt19937(1));
    std::vector<int> tables((size_t)REPEATS * n * b.step.max_page, 0);
    size_t next = 0;
    for (int i = 0; i < REPEATS * n; i++)
        for (int p = 0; p * 64 < rows[i % n].first + rows[i % n].second; p++)
            tables[(size_t)i * b.step.max_page + p] = pool[next++ % SPEED_PAGES];
    int *d_tables;
    reserve(&d_tables, tables.size());
    CHECK(cudaMemcpy(d_tables, tables.data(), tables.size() * 4, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(b.step.row_tok, first.data(), n * 4, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(b.step.row_pos, position.data(), n * 4, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(b.step.row_len, length.data(), n * 4, cudaMemcpyHostToDevice));
    double us = time_launches(b, d_tables);
    CHECK(cudaFree(d_tables));
    return us;
}

__global__ void fill_normal(__nv_bfloat16 *x, size_t n)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x)
        x[i] = __float2bfloat16_rn(hash_normal(i));
}

static void open_speed(bench &b, ops_set set)
{
    b.conf = {};
    b.conf.n_ctx = SPEED_CONTEXT;
    b.conf.max_tok = SPEED_TOK;
    b.conf.max_row = 256;
    b.conf.page_tokens = 64;
    b.conf.n_page = SPEED_PAGES;
    b.conf.set[OPS_OP_ATTN_DECODE] = b.conf.set[OPS_OP_ATTN_PREFILL] = set;
    check_status(gpu_attn_open(&b.attn, &b.device, &b.dims, &b.conf, &b.kv));
}

static void measure_set(bench &b, const char *name)
{
    std::vector<std::pair<int, int>> mixed(31, {4095, 1}), spread;
    std::mt19937 random(3);
    mixed.insert(mixed.begin(), {SPEED_CONTEXT - 1, 1});
    for (int i = 0; i < 256; i++) spread.push_back({(int)(199 + random() % 2000), 1});
    auto decode = [&](const char *what, const std::vector<std::pair<int, int>> &rows) {
        double bytes = 0, us = time_step(b, rows);
        for (auto &r : rows) bytes += (r.first + 1.0) * 8 * 128 * 2 * 2;
        printf("%-9s decode %-22s %8.1f us %6.1f %% of 4.5 TB/s\n", name, what, us,
               bytes / us / 4.5e6 * 100);
    };
    auto same = [](int n, int length) {
        return std::vector<std::pair<int, int>>(n, {length - 1, 1});
    };
    decode("256 x 1,090", same(256, 1090));
    decode("256 x 1,536", same(256, 1536));
    decode("256 x 2,048", same(256, 2048));
    decode("256 x 200 to 2,200", spread);
    decode("31 x 4,096 + 65,536", mixed);
    decode("8 x 4,096", same(8, 4096));
    decode("32 x 512", same(32, 512));
    decode("1 x 1,024", same(1, 1024));
    decode("1 x 8,192", same(1, 8192));
    for (auto &r : std::vector<std::pair<int, int>>{
             {0, 8192}, {0, 2048}, {0, 512}, {0, 128}, {8192, 128}, {8192, 512}, {32768, 2048}}) {
        double us = time_step(b, {r}), flop = 0;
        for (int i = 0; i < r.second; i++) flop += 4.0 * 128 * 32 * (r.first + i + 1.0);
        printf("%-9s prefill %6d rows from %6d %8.1f us %6.1f TFLOP/s\n", name, r.second, r.first,
               us, flop / us / 1e6);
    }
    fflush(stdout);
}

static void measure()
{
    bench b = {};
    size_t page = (size_t)8 * 2 * 64 * 128, token = 32 * 128;
    open_device(b.device);
    b.scale = (float)(1 / sqrt(128.0));
    b.dims.n_layer = 1;
    b.dims.n_head = 32;
    b.dims.n_kv = 8;
    b.dims.d_head = 128;
    b.kv = {NULL, page * 2 * SPEED_PAGES, page * 2, 64, 8, 128};
    b.step.max_row = 256;
    b.step.max_tok = SPEED_TOK;
    b.step.max_page = SPEED_CONTEXT / 64;
    open_step(b.step);
    reserve((__nv_bfloat16 **)&b.kv.base, page * SPEED_PAGES);
    reserve(&b.q, SPEED_TOK * token);
    reserve(&b.out, SPEED_TOK * token);
    fill_normal<<<1024, 256>>>((__nv_bfloat16 *)b.kv.base, page * SPEED_PAGES);
    fill_normal<<<1024, 256>>>(b.q, SPEED_TOK * token);
    CHECK(cudaDeviceSynchronize());
    for (ops_set set : {OPS_SET_CANONICAL, OPS_SET_STANDARD, OPS_SET_FIXED}) {
        open_speed(b, set);
        measure_set(b, set == OPS_SET_CANONICAL  ? "canonical"
                       : set == OPS_SET_STANDARD ? "standard"
                                                 : "fixed");
        gpu_attn_close(b.attn);
    }
}

int main(int argc, char **argv)
{
    int only_dim = 0, only_group = 0, n_samples = 192;
    bool planted = false, usage = false, timed = false;
    FILE *golden = NULL;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "-x"))
            planted = true;
        else if (!strcmp(argv[i], "-t"))
            timed = true;
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
        fprintf(stderr,
                "usage: check [-d HEAD_DIM] [-g GROUP] [-s SAMPLES] [-o GOLDEN] [-x] [-t]\n");
        return 2;
    }
    cudaDeviceProp prop;
    CHECK(cudaGetDeviceProperties(&prop, 0));
    if (timed) {
        printf("device %s, one launch in a graph of %d\n", prop.name, (int)REPEATS);
        measure();
        return 0;
    }
    printf("device %s; outputs whose bits differ, fp32 and bf16; not finite\n", prop.name);
    printf("%-76s %9s %8s %8s %8s\n", "", "outputs", "fp32", "bf16", "not fin.");
    long bad = 0;
    for (int dim : {64, 128})
        for (int group : {1, 2, 3, 4, 5, 7, 8, 16}) {
            if ((only_dim && dim != only_dim) || (only_group && group != only_group)) continue;
            bench b = {};
            b.head_dim = dim;
            b.group = group;
            b.planted = planted;
            b.golden = golden;
            open_device(b.device);
            open_bench(b);
            check_rows(b, n_samples);
            check_sequence(b, n_samples);
            check_sets(b);
            close_bench(b);
            bad += b.bad;
        }
    if (golden) fclose(golden);
    printf("%ld differ or are not finite\n", bad);
    return bad != 0;
}
