/* mma_check.cu - is src/ops/ref_mma.c what the tensor core computes?
 *
 * Compares, bit by bit, one step of mma.sync m16n8k16 (bf16, fp32 accumulate), the same step of
 * wgmma m64n8k16 with and without its accumulator, and ref_mma_step over the classes of
 * mma_inputs.h; then long products. Exit 1 when any bit differs.
 * usage: mma_check [-n TILES] [-g GOLDEN] [-m MISMATCHES]
 *   -n tiles of 512 outputs a class (default 2000)
 *   -g write golden lines: class, accumulator, 16 a, 16 b, result (hexadecimal bits)
 *   -m write the first differing outputs of each class in the same form
 * Invariant: the device's bits are the truth here; the reference is what is tested. */
#include "device.cuh"
#include "ops/cuda/wgmma.cuh"

extern "C" {
#include "mma_inputs.h"
#include "ops/ref_mma.h"
}

#include <math.h>
#include <string.h>

#include <atomic>
#include <thread>
#include <vector>

enum { CTA = 128, GOLDEN_LINES = 20, MISMATCH_LINES = 60 };

/* Fragments of A rows (g, g + 8) x 16 elements, as both instructions want them. */
DEVICE void load_a(uint32_t (&a)[4], const uint16_t *rows, int stride, int lane)
{
    int g = lane >> 2, q = lane & 3;
    a[0] = *(const uint32_t *)(rows + g * stride + 2 * q);
    a[1] = *(const uint32_t *)(rows + (g + 8) * stride + 2 * q);
    a[2] = *(const uint32_t *)(rows + g * stride + 8 + 2 * q);
    a[3] = *(const uint32_t *)(rows + (g + 8) * stride + 8 + 2 * q);
}

/* The elements of a 16 x 8 tile that a lane holds: rows g and g + 8, columns 2q and 2q + 1. */
DEVICE int out_index(int warp, int lane, int e)
{
    int g = lane >> 2, q = lane & 3;
    return (16 * warp + g + 8 * (e >> 1)) * TILE_N + 2 * q + (e & 1);
}

/* zero: +0 instead of the tile's accumulators. */
__global__ void step_mma_sync(const mma_tile *tiles, float *out, bool zero)
{
    const mma_tile &t = tiles[blockIdx.x];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
    uint32_t a[4], b[2];
    float c[4];
    load_a(a, t.a[16 * warp], TILE_K, lane);
    b[0] = *(const uint32_t *)(t.b[g] + 2 * q);
    b[1] = *(const uint32_t *)(t.b[g] + 8 + 2 * q);
    for (int e = 0; e < 4; e++) c[e] = zero ? 0 : t.c[0][out_index(warp, lane, e)];
    mma_sync(c, a, b);
    for (int e = 0; e < 4; e++) out[blockIdx.x * TILE_OUT + out_index(warp, lane, e)] = c[e];
}

/* add 0: the accumulator is not read. */
__global__ void step_wgmma(const mma_tile *tiles, float *out, bool zero, int add)
{
    __shared__ __align__(128) uint16_t b[2][TILE_N][8]; /* core matrices: 8 elements of K each */
    const mma_tile &t = tiles[blockIdx.x];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    uint32_t a[4];
    float c[4];
    load_a(a, t.a[16 * warp], TILE_K, lane);
    b[(threadIdx.x & 15) >> 3][threadIdx.x >> 4][threadIdx.x & 7] =
        t.b[threadIdx.x >> 4][threadIdx.x & 15];
    for (int e = 0; e < 4; e++) c[e] = zero ? 0 : t.c[0][out_index(warp, lane, e)];
    fence_async();
    __syncthreads();
    wgmma_fence();
    wgmma_registers<0>(c, a, wgmma_matrix(shared_address(b), 128, 256, 0), add);
    wgmma_wait();
    for (int e = 0; e < 4; e++) out[blockIdx.x * TILE_OUT + out_index(warp, lane, e)] = c[e];
}

/* One warp a tile: 16 rows of a (k elements each) by 8 rows of b. */
__global__ void long_mma_sync(const uint16_t *a_rows, const uint16_t *b_rows, int k, float *out)
{
    int lane = threadIdx.x, g = lane >> 2, q = lane & 3;
    const uint16_t *a0 = a_rows + (size_t)blockIdx.x * 16 * k;
    const uint16_t *b0 = b_rows + (size_t)blockIdx.x * 8 * k;
    float c[4] = {0, 0, 0, 0};
    for (int i = 0; i < k; i += 16) {
        uint32_t a[4], b[2];
        load_a(a, a0 + i, k, lane);
        b[0] = *(const uint32_t *)(b0 + (size_t)g * k + i + 2 * q);
        b[1] = *(const uint32_t *)(b0 + (size_t)g * k + i + 8 + 2 * q);
        mma_sync(c, a, b);
    }
    for (int e = 0; e < 4; e++) out[blockIdx.x * 128 + out_index(0, lane, e)] = c[e];
}

/* ---- host */

static uint32_t bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

template <class F> static void in_threads(int n, F f)
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

static void write_line(FILE *f, int kind, const mma_tile &t, int o, float acc, float result)
{
    fprintf(f, "%d %08x", kind, bits(acc));
    for (int k = 0; k < TILE_K; k++) fprintf(f, " %04x", t.a[o / TILE_N][k]);
    for (int k = 0; k < TILE_K; k++) fprintf(f, " %04x", t.b[o % TILE_N][k]);
    fprintf(f, " %08x\n", bits(result));
}

struct buffers {
    mma_tile *tiles;
    float *out;
};

enum step_form { SYNC, WGMMA, SYNC_ZERO, WGMMA_ZERO, WGMMA_NO_ADD, STEP_FORMS };

static std::vector<float> run_step(const buffers &d, int n, int form)
{
    std::vector<float> host((size_t)n * TILE_OUT);
    bool zero = form >= SYNC_ZERO;
    CHECK(cudaMemset(d.out, 0x5a, host.size() * sizeof(float)));
    if (form == SYNC || form == SYNC_ZERO)
        step_mma_sync<<<n, CTA>>>(d.tiles, d.out, zero);
    else
        step_wgmma<<<n, CTA>>>(d.tiles, d.out, zero, form != WGMMA_NO_ADD);
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpy(host.data(), d.out, host.size() * sizeof(float), cudaMemcpyDeviceToHost));
    return host;
}

static long count_differing(const std::vector<float> &x, const std::vector<float> &y)
{
    long n = 0;
    for (size_t i = 0; i < x.size(); i++) n += bits(x[i]) != bits(y[i]);
    return n;
}

static long check_class(int kind, int n, const buffers &d, FILE *golden, FILE *mismatches)
{
    std::vector<mma_tile> tiles(n);
    std::vector<float> ref((size_t)n * TILE_OUT), ref0((size_t)n * TILE_OUT);
    in_threads(n, [&](int i) {
        mma_tile_make(&tiles[i], kind, (uint64_t)i);
        for (int o = 0; o < TILE_OUT; o++) {
            const uint16_t *a = tiles[i].a[o / TILE_N], *b = tiles[i].b[o % TILE_N];
            float c = tiles[i].c[o / TILE_N][o % TILE_N];
            ref[(size_t)i * TILE_OUT + o] = ref_mma_step(c, a, b, TILE_K);
            ref0[(size_t)i * TILE_OUT + o] = ref_mma_step(0, a, b, TILE_K);
        }
    });
    CHECK(cudaMemcpy(d.tiles, tiles.data(), n * sizeof(mma_tile), cudaMemcpyHostToDevice));
    long all = 0;
    std::vector<float> got[STEP_FORMS];
    printf("%-20s %10zu", mma_class_name(kind), ref.size());
    for (int form = 0; form < STEP_FORMS; form++) {
        got[form] = run_step(d, n, form);
        long bad = count_differing(got[form], form >= SYNC_ZERO ? ref0 : ref);
        printf(" %10ld", bad);
        all += bad;
    }
    printf("\n");
    fflush(stdout);
    int shown = 0;
    for (size_t i = 0; mismatches && i < ref.size(); i++) {
        const mma_tile &t = tiles[i / TILE_OUT];
        int o = (int)(i % TILE_OUT);
        if (bits(got[SYNC][i]) != bits(ref[i]) && shown++ < MISMATCH_LINES)
            write_line(mismatches, kind, t, o, t.c[0][o], got[SYNC][i]);
        if (bits(got[SYNC_ZERO][i]) != bits(ref0[i]) && shown++ < MISMATCH_LINES)
            write_line(mismatches, kind, t, o, 0, got[SYNC_ZERO][i]);
    }
    for (int i = 0; golden && i < GOLDEN_LINES; i++) {
        int o = (int)(hash64((uint64_t)kind << 32 | i) % TILE_OUT), tile = i % n;
        const mma_tile &t = tiles[tile];
        size_t at = (size_t)tile * TILE_OUT + o;
        bool zero = i % 4 == 3;
        write_line(golden, kind, t, o, zero ? 0 : t.c[0][o], got[zero ? SYNC_ZERO : SYNC][at]);
    }
    return all;
}

static long check_long(int k, int tiles, FILE *golden)
{
    size_t na = (size_t)tiles * 16 * k, nb = (size_t)tiles * 8 * k;
    std::vector<uint16_t> a(na), b(nb);
    for (size_t i = 0; i < na; i++) a[i] = mma_long_input(k, 0, i);
    for (size_t i = 0; i < nb; i++) b[i] = mma_long_input(k, 1, i);
    uint16_t *da, *db;
    float *dout;
    std::vector<float> out((size_t)tiles * 128);
    CHECK(cudaMalloc(&da, na * 2));
    CHECK(cudaMalloc(&db, nb * 2));
    CHECK(cudaMalloc(&dout, out.size() * sizeof(float)));
    CHECK(cudaMemcpy(da, a.data(), na * 2, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(db, b.data(), nb * 2, cudaMemcpyHostToDevice));
    long_mma_sync<<<tiles, 32>>>(da, db, k, dout);
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpy(out.data(), dout, out.size() * sizeof(float), cudaMemcpyDeviceToHost));
    std::vector<float> ref(out.size());
    in_threads((int)out.size(), [&](int i) {
        const uint16_t *x = a.data() + ((size_t)(i / 128) * 16 + i % 128 / 8) * k;
        ref[i] = ref_mma_dot(x, b.data() + ((size_t)(i / 128) * 8 + i % 8) * k, k);
    });
    long bad = count_differing(out, ref);
    printf("K = %-16d %10zu %10ld\n", k, out.size(), bad);
    for (int i = 0; golden && i < 8; i++) /* tile 0: rows 0 to 7 on the diagonal */
        fprintf(golden, "long %d %d %d %08x\n", k, i, i, bits(out[i * 8 + i]));
    CHECK(cudaFree(da));
    CHECK(cudaFree(db));
    CHECK(cudaFree(dout));
    return bad;
}

static FILE *open_or_exit(const char *name)
{
    FILE *f = fopen(name, "w");
    if (f) return f;
    fprintf(stderr, "mma_check: cannot write %s\n", name);
    exit(2);
}

int main(int argc, char **argv)
{
    int n = 2000;
    FILE *golden = NULL, *mismatches = NULL;
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (value && !strcmp(argv[i], "-n") && atoi(value) > 0)
            n = atoi(value);
        else if (value && !strcmp(argv[i], "-g"))
            golden = open_or_exit(value);
        else if (value && !strcmp(argv[i], "-m"))
            mismatches = open_or_exit(value);
        else {
            fprintf(stderr, "usage: mma_check [-n TILES] [-g GOLDEN] [-m MISMATCHES]\n");
            return 2;
        }
    }
    cudaDeviceProp prop;
    CHECK(cudaGetDeviceProperties(&prop, 0));
    printf("device %s, compute %d.%d\n", prop.name, prop.major, prop.minor);
    printf("outputs whose bits differ from ref_mma; +0: accumulators are +0, none: not read\n");
    printf("%-20s %10s %10s %10s %10s %10s %10s\n", "class", "outputs", "mma.sync", "wgmma",
           "mma.sync+0", "wgmma+0", "wgmma none");
    buffers d;
    CHECK(cudaMalloc(&d.tiles, n * sizeof(mma_tile)));
    CHECK(cudaMalloc(&d.out, (size_t)n * TILE_OUT * sizeof(float)));
    long bad = 0;
    for (int kind = 0; kind < IN_CLASSES; kind++)
        bad += check_class(kind, n, d, golden, mismatches);
    static const int lengths[] = {16, 64, 128, 576, 1024, 4096, 12288};
    for (int k : lengths) bad += check_long(k, 64, golden);
    if (golden) fclose(golden);
    if (mismatches) fclose(mismatches);
    printf("%ld differ\n", bad);
    return bad != 0;
}
