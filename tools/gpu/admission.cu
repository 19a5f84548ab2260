/* admission.cu - which algorithms of cuBLASLt give the bits of docs/numerics.md, section 1?
 *
 * For every shape, M and form of output it draws configurations (algorithm id, tile, stages,
 * cluster, custom option, swizzle; no split, no workspace), adds the library's own picks, runs each
 * in a CUDA graph into a poisoned output and compares all elements with the product by mma.sync, K
 * upward. That product is itself compared with ref_mma_dot on samples.
 *
 * usage: admission [-t SECONDS] [-n CONFIGURATIONS] [-f]
 *
 * -t: time for all shapes together (240); a shape that runs out says so. -n: configurations of one
 * id for each shape, M and form (10). -f: instead, the shortest time of admitted configurations on
 * narrow products. Exit 1 when an admitted id gives other bits, or the product by mma.sync differs
 * from the reference.
 *
 * Invariant: an output counts as canonical only when every element has the expected bits. */
#include "device.cuh"

#include "ops/cuda/algo.h"

extern "C" {
#include "ops/ref_mma.h"
}

#include <string.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <set>
#include <thread>
#include <tuple>
#include <vector>

#define CHECK_LT(call)                                                                             \
    do {                                                                                           \
        cublasStatus_t status_ = (call);                                                           \
        if (status_ != CUBLAS_STATUS_SUCCESS) {                                                    \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call,                          \
                    cublasLtGetStatusString(status_));                                             \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define CHECK_ALGO(call)                                                                           \
    do {                                                                                           \
        if ((call) != CORUN_OK) {                                                                  \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, corun_last_error());                \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

enum form { FP32, FP32_BIAS, BF16, BF16_BIAS, FORMS };
static const char *const form_names[] = {"fp32", "fp32+bias", "bf16", "bf16+bias"};

struct shape {
    const char *name;
    int n, k;
};
static const shape shapes[] = {{"SmolLM2-135M qkv", 960, 576},
                               {"SmolLM2-135M o", 576, 576},
                               {"SmolLM2-135M gate,up", 3072, 576},
                               {"SmolLM2-135M down", 576, 1536},
                               {"Qwen3-0.6B qkv", 4096, 1024},
                               {"Qwen3-0.6B o", 1024, 2048},
                               {"Qwen3-0.6B gate,up", 6144, 1024},
                               {"Qwen3-0.6B down", 1024, 3072},
                               {"Qwen3-8B qkv", 6144, 4096},
                               {"Qwen3-8B o", 4096, 4096},
                               {"Qwen3-8B gate,up", 24576, 4096},
                               {"Qwen3-8B down", 4096, 12288},
                               {"router", 128, 4096},
                               {"Qwen3-8B head", 151936, 4096},
                               {"SmolLM2-135M head", 49152, 576}};
static const int rows_of[] = {1,    2,    3,    5,    7,    8,    13,   16,   17,   31,
                              32,   33,   48,   63,   64,   65,   96,   127,  128,  129,
                              192,  255,  256,  257,  384,  511,  512,  1000, 1023, 1024,
                              1025, 2047, 2048, 4095, 4096, 4097, 8191, 8192};
static const size_t largest_weights = (size_t)151936 * 4096;
static const size_t largest_output = (size_t)220 << 20; /* elements */

/* ---- device */

__global__ void fill(__nv_bfloat16 *p, size_t n, uint64_t seed, float size)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x)
        p[i] = __float2bfloat16_rn(size * hash_normal(seed << 40 | i));
}

__global__ void widen(const __nv_bfloat16 *in, float *out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = __bfloat162float(in[i]);
}

/* y[m][n] = x·w for 16 rows of x and 64 of w a warp; mma.sync, K upward, one accumulator. */
__global__ void canonical_product(const uint16_t *x, const uint16_t *w, int M, int N, int K,
                                  float *y)
{
    int lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
    int n0 = (blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5)) * 64, m0 = blockIdx.y * 16;
    if (n0 >= N) return;
    float c[8][4] = {};
    const uint16_t *row0 = x + (size_t)min(m0 + g, M - 1) * K + 2 * q;
    const uint16_t *row1 = x + (size_t)min(m0 + g + 8, M - 1) * K + 2 * q;
    for (int k = 0; k < K; k += 16) {
        uint32_t a[4] = {*(const uint32_t *)(row0 + k), *(const uint32_t *)(row1 + k),
                         *(const uint32_t *)(row0 + k + 8), *(const uint32_t *)(row1 + k + 8)};
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const uint16_t *p = w + (size_t)min(n0 + 8 * j + g, N - 1) * K + k + 2 * q;
            uint32_t b[2] = {*(const uint32_t *)p, *(const uint32_t *)(p + 8)};
            mma_sync(c[j], a, b);
        }
    }
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int m = m0 + g + 8 * (e >> 1), n = n0 + 8 * j + 2 * q + (e & 1);
            if (m < M && n < N) y[(size_t)m * N + n] = c[j][e];
        }
}

/* Adds to *count the elements of `got` that are not the accumulator in the given form. */
__global__ void compare(const float *acc, const __nv_bfloat16 *bias, const void *got,
                        size_t count_of, int N, int form, unsigned long long *count)
{
    unsigned long long differing = 0;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < count_of;
         i += (size_t)gridDim.x * blockDim.x) {
        float y = acc[i];
        if (form == FP32_BIAS || form == BF16_BIAS) y = __fadd_rn(y, __bfloat162float(bias[i % N]));
        if (form == FP32 || form == FP32_BIAS)
            differing += __float_as_uint(y) != ((const uint32_t *)got)[i];
        else
            differing += __bfloat16_as_ushort(__float2bfloat16_rn(y)) != ((const uint16_t *)got)[i];
    }
    if (differing) atomicAdd(count, differing);
}

/* ---- host */

static double now()
{
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

struct tally {
    long tried = 0, canonical = 0, other = 0, refused = 0;
};

struct bench {
    cublasLtHandle_t lt;
    cudaStream_t stream;
    __nv_bfloat16 *x, *w, *bias;
    float *bias_fp32, *acc;
    void *out;
    unsigned long long *counts;
    std::map<int, tally> tallies[FORMS], picks;
    std::map<std::pair<int, int>, tally> by_shape; /* (shape, id) */
};

struct configuration {
    cublasLtMatmulAlgo_t algo;
    int id;
    bool pick;
};

/* One (shape, M, form). */
struct problem {
    algo_problem lt;
    int M, N, K, form;
};

static problem open_problem(bench &b, int M, int N, int K, int form)
{
    problem p = {};
    bool biased = form == FP32_BIAS || form == BF16_BIAS;
    plan_shape shape = {N, K, biased, form < BF16 ? OPS_F32 : OPS_BF16};
    p.M = M;
    p.N = N;
    p.K = K;
    p.form = form;
    CHECK_ALGO(algo_problem_init(&p.lt, &shape, M));
    if (biased)
        CHECK_ALGO(algo_problem_bias(&p.lt, form == FP32_BIAS ? (void *)b.bias_fp32 : b.bias));
    return p;
}

static bool multiply(bench &b, problem &p, const cublasLtMatmulAlgo_t &algo)
{
    return algo_run(b.lt, &p.lt, &algo, b.w, b.x, b.out, NULL, 0, b.stream) == CORUN_OK;
}

/* Draws up to `wanted` valid configurations of one id. */
static void draw(bench &b, problem &p, int id, int wanted, uint64_t seed,
                 std::vector<configuration> &out)
{
    static algo_choices c;
    if (!algo_choices_of(b.lt, p.lt.shape.out, id, &c)) return;
    std::set<std::tuple<uint32_t, uint32_t, int, int, uint32_t>> seen;
    int found = 0;
    for (int attempt = 0; attempt < 60 * wanted && found < wanted; attempt++) {
        uint64_t h = hash64(seed << 20 ^ (uint64_t)id << 12 ^ (uint64_t)attempt << 40);
        uint32_t tile = c.tile[h % c.n_tile], stages = c.stages[(h >> 12) % c.n_stages];
        int custom = (int)((h >> 24) % (c.custom + 1));
        int cluster = h >> 36 & 1 ? 0 : (int)((h >> 37) % CUBLASLT_CLUSTER_SHAPE_END);
        uint32_t swizzle = (uint32_t)((h >> 50) % (c.swizzle + 1));
        if (cluster == 1 || !seen.insert({tile, stages, custom, cluster, swizzle}).second) continue;
        plan_config config = {id, (int)tile, (int)stages, cluster, custom, (int)swizzle, 1, 0};
        cublasLtMatmulAlgo_t algo;
        size_t need;
        algo_configure(&c.base, &config, &algo);
        if (!algo_accepts(b.lt, &p.lt, &algo, 0, &need)) continue;
        out.push_back({algo, id, false});
        found++;
    }
}

static void add_picks(bench &b, problem &p, std::vector<configuration> &out)
{
    cublasLtMatmulHeuristicResult_t results[8];
    int n = algo_picks(b.lt, &p.lt, 0, results, 8);
    for (int i = 0; i < n; i++) {
        plan_config config;
        algo_config_of(&results[i].algo, &config);
        out.push_back({results[i].algo, config.id, true});
    }
}

static std::vector<configuration> configurations(bench &b, problem &p, int wanted, uint64_t seed)
{
    std::vector<configuration> v;
    int ids[256], n = 0;
    cudaDataType y = p.form < BF16 ? CUDA_R_32F : CUDA_R_16BF;
    CHECK_LT(cublasLtMatmulAlgoGetIds(b.lt, CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_16BF,
                                      CUDA_R_16BF, y, y, 256, ids, &n));
    for (int i = 0; i < n; i++) draw(b, p, ids[i], wanted, seed, v);
    add_picks(b, p, v);
    return v;
}

enum { OTHER, CANONICAL, REFUSED };

/* Runs configurations [begin, end) in one graph; false when the graph could not be made. */
static bool run_graph(bench &b, problem &p, const std::vector<configuration> &v, size_t begin,
                      size_t end, std::vector<int> &verdict)
{
    size_t elements = (size_t)p.M * p.N, bytes = elements * (p.form < BF16 ? 4 : 2);
    std::vector<unsigned long long> counts(end - begin);
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec;
    CHECK(cudaMemset(b.counts, 0, counts.size() * sizeof counts[0]));
    CHECK(cudaStreamBeginCapture(b.stream, cudaStreamCaptureModeThreadLocal));
    for (size_t i = begin; i < end; i++) {
        cudaMemsetAsync(b.out, 0xff, bytes, b.stream);
        verdict[i] = multiply(b, p, v[i].algo) ? OTHER : REFUSED;
        compare<<<(unsigned)std::min<size_t>(2048, elements / 1024 + 1), 256, 0, b.stream>>>(
            b.acc, b.bias, b.out, elements, p.N, p.form, b.counts + (i - begin));
    }
    if (cudaStreamEndCapture(b.stream, &graph) != cudaSuccess || !graph ||
        cudaGraphInstantiate(&exec, graph, 0) != cudaSuccess) {
        cudaGetLastError();
        if (graph) cudaGraphDestroy(graph);
        return false;
    }
    CHECK(cudaGraphLaunch(exec, b.stream));
    CHECK(cudaStreamSynchronize(b.stream));
    CHECK(cudaMemcpy(counts.data(), b.counts, counts.size() * sizeof counts[0],
                     cudaMemcpyDeviceToHost));
    for (size_t i = begin; i < end; i++)
        if (verdict[i] != REFUSED) verdict[i] = counts[i - begin] ? OTHER : CANONICAL;
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    return true;
}

static std::vector<int> run_all(bench &b, problem &p, const std::vector<configuration> &v)
{
    const size_t batch = 32;
    std::vector<int> verdict(v.size(), REFUSED);
    for (size_t begin = 0; begin < v.size(); begin += batch) {
        size_t end = std::min(v.size(), begin + batch);
        if (run_graph(b, p, v, begin, end, verdict)) continue;
        for (size_t i = begin; i < end; i++)
            if (!run_graph(b, p, v, i, i + 1, verdict)) verdict[i] = REFUSED;
    }
    return verdict;
}

static void count(tally &t, int verdict)
{
    t.tried++;
    t.canonical += verdict == CANONICAL;
    t.other += verdict == OTHER;
    t.refused += verdict == REFUSED;
}

static void product(bench &b, int M, int N, int K)
{
    fill<<<1024, 256>>>(b.x, (size_t)M * K, 1, 1.0f);
    fill<<<1024, 256>>>(b.w, (size_t)N * K, 2, 0.05f);
    fill<<<64, 256>>>(b.bias, N, 3, 1.0f);
    widen<<<(N + 255) / 256, 256>>>(b.bias, b.bias_fp32, N);
    canonical_product<<<dim3((N + 255) / 256, (M + 15) / 16), 128>>>(
        (uint16_t *)b.x, (uint16_t *)b.w, M, N, K, b.acc);
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
}

/* Samples of the product by mma.sync against the definition; how many differ. */
static long check_reference(bench &b, int M, int N, int K, int samples)
{
    std::vector<uint16_t> x((size_t)M * K), w((size_t)N * K);
    std::vector<float> y((size_t)M * N);
    std::atomic<long> differing{0};
    std::atomic<int> next{0};
    std::vector<std::thread> threads;
    CHECK(cudaMemcpy(x.data(), b.x, x.size() * 2, cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(w.data(), b.w, w.size() * 2, cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(y.data(), b.acc, y.size() * 4, cudaMemcpyDeviceToHost));
    for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); i++)
        threads.emplace_back([&] {
            for (int s; (s = next++) < samples;) {
                size_t m = hash64(2 * s) % M, n = hash64(2 * s + 1) % N;
                float want = ref_mma_dot(&x[m * K], &w[n * K], K);
                differing += memcmp(&want, &y[m * N + n], 4) != 0;
            }
        });
    for (auto &t : threads) t.join();
    return differing;
}

static long run_shape(bench &b, int index, int wanted, double deadline)
{
    const shape &s = shapes[index];
    int largest = (int)std::min<size_t>(8192, largest_output / s.n), sizes = 0;
    product(b, largest, s.n, s.k);
    long differing = check_reference(b, largest, s.n, s.k, 2048), tried = 0;
    for (int M : rows_of) {
        if (M > largest || now() > deadline) break;
        for (int f = 0; f < FORMS; f++) {
            problem p = open_problem(b, M, s.n, s.k, f);
            std::vector<configuration> v = configurations(b, p, wanted, (uint64_t)M * 8 + f);
            std::vector<int> verdict = run_all(b, p, v);
            for (size_t i = 0; i < v.size(); i++) {
                count(b.tallies[f][v[i].id], verdict[i]);
                count(b.by_shape[{index, v[i].id}], verdict[i]);
                if (v[i].pick) count(b.picks[v[i].id], verdict[i]);
            }
            tried += (long)v.size();
        }
        sizes++;
    }
    printf("%-22s %6d %6d  %2d values of M up to %5d, %6ld runs; mma.sync against ref_mma: %ld of "
           "2048 "
           "differ%s\n",
           s.name, s.n, s.k, sizes, largest, tried, differing,
           now() > deadline ? " (out of time)" : "");
    fflush(stdout);
    return differing;
}

static long report(const bench &b)
{
    long wrong = 0;
    printf("\n%-4s %-10s %8s %10s %8s %8s\n", "id", "form", "tried", "canonical", "other",
           "refused");
    for (int f = 0; f < FORMS; f++)
        for (const auto &[id, t] : b.tallies[f]) {
            printf("%-4d %-10s %8ld %10ld %8ld %8ld\n", id, form_names[f], t.tried, t.canonical,
                   t.other, t.refused);
            if (plan_admitted(id)) wrong += t.other;
        }
    printf("\nthe library's own picks (no split, no workspace, the first 8)\n");
    for (const auto &[id, t] : b.picks)
        printf("%-4d %-10s %8ld %10ld %8ld %8ld\n", id, "all", t.tried, t.canonical, t.other,
               t.refused);
    printf("\nby shape\n%-22s %-4s %8s %10s %8s %8s\n", "shape", "id", "tried", "canonical",
           "other", "refused");
    for (const auto &[key, t] : b.by_shape)
        printf("%-22s %-4d %8ld %10ld %8ld %8ld\n", shapes[key.first].name, key.second, t.tried,
               t.canonical, t.other, t.refused);
    printf("\nadmitted ids with other bits: %ld\n", wrong);
    return wrong;
}

/* ---- the floor of narrow products */

static float time_us(bench &b, problem &p, const cublasLtMatmulAlgo_t &algo)
{
    enum { LAUNCHES = 20, REPEATS = 5 };
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec;
    cudaEvent_t begin, end;
    float ms[REPEATS];
    bool ok = true;
    CHECK(cudaStreamBeginCapture(b.stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < LAUNCHES; i++) ok = multiply(b, p, algo) && ok;
    if (cudaStreamEndCapture(b.stream, &graph) != cudaSuccess || !ok ||
        cudaGraphInstantiate(&exec, graph, 0) != cudaSuccess) {
        cudaGetLastError();
        return 1e9f;
    }
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    CHECK(cudaGraphLaunch(exec, b.stream));
    for (int i = 0; i < REPEATS; i++) {
        CHECK(cudaEventRecord(begin, b.stream));
        CHECK(cudaGraphLaunch(exec, b.stream));
        CHECK(cudaEventRecord(end, b.stream));
        CHECK(cudaEventSynchronize(end));
        CHECK(cudaEventElapsedTime(&ms[i], begin, end));
    }
    std::sort(ms, ms + REPEATS);
    CHECK(cudaEventDestroy(begin));
    CHECK(cudaEventDestroy(end));
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    return 1e3f * ms[REPEATS / 2] / LAUNCHES;
}

static void floors(bench &b, int wanted)
{
    static const shape narrow[] = {{"", 64, 4096},    {"", 128, 4096},  {"", 1024, 4096},
                                   {"", 4096, 4096},  {"", 64, 12288},  {"", 128, 12288},
                                   {"", 1024, 12288}, {"", 4096, 12288}};
    printf("%6s %6s %6s %8s %9s %4s\n", "N", "K", "M", "tried", "best us", "id");
    for (const shape &s : narrow)
        for (int M : {1, 16, 64, 256}) {
            product(b, M, s.n, s.k);
            problem p = open_problem(b, M, s.n, s.k, BF16);
            std::vector<configuration> v = configurations(b, p, wanted, 7);
            std::vector<int> verdict = run_all(b, p, v);
            float best = 1e9f;
            int id = 0, tried = 0;
            for (size_t i = 0; i < v.size(); i++) {
                if (!plan_admitted(v[i].id) || verdict[i] != CANONICAL) continue;
                float us = time_us(b, p, v[i].algo);
                tried++;
                if (us < best) id = v[i].id;
                best = std::min(best, us);
            }
            printf("%6d %6d %6d %8d %9.2f %4d\n", s.n, s.k, M, tried, best, id);
            fflush(stdout);
        }
}

int main(int argc, char **argv)
{
    double seconds = 240;
    int wanted = 10;
    bool only_floors = false, usage = false;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "-f"))
            only_floors = true;
        else if (i + 1 < argc && !strcmp(argv[i], "-t"))
            seconds = atof(argv[++i]);
        else if (i + 1 < argc && !strcmp(argv[i], "-n"))
            wanted = std::max(1, atoi(argv[++i]));
        else
            usage = true;
    }
    if (usage) {
        fprintf(stderr, "usage: admission [-t SECONDS] [-n CONFIGURATIONS] [-f]\n");
        return 2;
    }
    bench b = {};
    cudaDeviceProp prop;
    CHECK(cudaGetDeviceProperties(&prop, 0));
    CHECK_LT(cublasLtCreate(&b.lt));
    CHECK(cudaStreamCreate(&b.stream));
    CHECK(cudaMalloc(&b.x, (size_t)8192 * 12288 * 2));
    CHECK(cudaMalloc(&b.w, largest_weights * 2));
    CHECK(cudaMalloc(&b.bias, (size_t)262144 * 2));
    CHECK(cudaMalloc(&b.bias_fp32, (size_t)262144 * 4));
    CHECK(cudaMalloc(&b.acc, largest_output * 4));
    CHECK(cudaMalloc(&b.out, largest_output * 4));
    CHECK(cudaMalloc(&b.counts, 4096 * sizeof *b.counts));
    printf("device %s, cublasLt %zu\n", prop.name, cublasLtGetVersion());
    if (only_floors) {
        floors(b, wanted);
        return 0;
    }
    int n = (int)(sizeof shapes / sizeof *shapes);
    long differing = 0;
    double begin = now();
    for (int i = 0; i < n; i++)
        differing += run_shape(b, i, wanted, now() + (begin + seconds - now()) / (n - i));
    long wrong = report(b);
    return differing || wrong;
}
