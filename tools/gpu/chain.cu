/* chain.cu - how long is a chain of dependent tensor-core steps?
 *
 * The canonical product walks K in steps of 16 with one accumulator, so an output costs K/16
 * dependent steps whatever the machine does beside it. One tile, operands in place: nothing but the
 * chain is timed. Prints cycles a step and the time of a launch (a graph of 20, median of 9).
 * usage: chain
 * Invariant: every step adds to the accumulators of the step before. */
#include "device.cuh"
#include "ops/cuda/wgmma.cuh"

#include <algorithm>

enum { LAUNCHES = 20, REPEATS = 9 };

/* One warp, mma.sync m16n8k16; the operands stay in registers. */
__global__ void chain_mma_sync(int steps, float *out, long long *cycles)
{
    uint32_t a[4] = {0x3f803f80u + threadIdx.x, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
    uint32_t b[2] = {0x3f80bf80u, 0x3f80bf80u};
    float c[4] = {0, 0, 0, 0};
    long long start = clock64();
#pragma unroll 1
    for (int i = 0; i < steps; i += 8) {
#pragma unroll
        for (int u = 0; u < 8; u++) mma_sync(c, a, b);
    }
    float sum = c[0] + c[1] + c[2] + c[3];
    out[threadIdx.x] = sum;
    if (threadIdx.x == 0) *cycles = clock64() - start;
}

/* One warpgroup, wgmma m64nNk16, b in shared memory, a in registers; the group waits every WAIT
 * steps (4: each 64 elements of K, as a pipelined kernel does). */
template <int N, int WAIT> __global__ void chain_wgmma(int steps, float *out, long long *cycles)
{
    __shared__ __align__(128) uint16_t b[N * 16];
    for (int i = threadIdx.x; i < N * 16; i += blockDim.x) b[i] = i & 1 ? 0x3f80 : 0xbf80;
    fence_async();
    __syncthreads();
    uint64_t matrix = wgmma_matrix(shared_address(b), 128, 256, 0);
    uint32_t a[4] = {0x3f803f80u + threadIdx.x, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
    float c[N / 2];
    for (float &x : c) x = 0;
    long long start = clock64();
#pragma unroll 1
    for (int i = 0; i < steps; i += WAIT) {
        wgmma_fence();
#pragma unroll
        for (int u = 0; u < WAIT; u++) wgmma_registers<0>(c, a, matrix, 1);
        wgmma_wait();
    }
    long long end = clock64();
    float sum = 0;
    for (float x : c) sum += x;
    out[threadIdx.x] = sum;
    if (threadIdx.x == 0) *cycles = end - start;
}

template <class F> static void report(const char *name, int k, F launch, long long *cycles)
{
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t begin, end;
    float ms[REPEATS];
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < LAUNCHES; i++) launch(stream);
    CHECK(cudaGetLastError());
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 20; i++) CHECK(cudaGraphLaunch(exec, stream));
    for (int i = 0; i < REPEATS; i++) {
        CHECK(cudaEventRecord(begin, stream));
        CHECK(cudaGraphLaunch(exec, stream));
        CHECK(cudaEventRecord(end, stream));
        CHECK(cudaEventSynchronize(end));
        CHECK(cudaEventElapsedTime(&ms[i], begin, end));
    }
    std::sort(ms, ms + REPEATS);
    long long total;
    CHECK(cudaMemcpy(&total, cycles, sizeof total, cudaMemcpyDeviceToHost));
    printf("%-26s %6d %8.2f %9.2f\n", name, k, (double)total / (k / 16),
           1e3 * ms[REPEATS / 2] / LAUNCHES);
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaEventDestroy(begin));
    CHECK(cudaEventDestroy(end));
    CHECK(cudaStreamDestroy(stream));
}

template <int N, int WAIT> static void report_wgmma(int k, float *out, long long *cycles)
{
    char name[64];
    snprintf(name, sizeof name, "wgmma m64n%d, wait %d", N, WAIT);
    auto launch = [&](cudaStream_t s) {
        chain_wgmma<N, WAIT><<<1, 128, 0, s>>>(k / 16, out, cycles);
    };
    report(name, k, launch, cycles);
}

template <int WAIT> static void report_widths(int k, float *out, long long *cycles)
{
    report_wgmma<8, WAIT>(k, out, cycles);
    report_wgmma<64, WAIT>(k, out, cycles);
    report_wgmma<128, WAIT>(k, out, cycles);
    report_wgmma<256, WAIT>(k, out, cycles);
}

int main()
{
    cudaDeviceProp prop;
    float *out;
    long long *cycles;
    CHECK(cudaGetDeviceProperties(&prop, 0));
    CHECK(cudaMalloc(&out, 1024 * sizeof(float)));
    CHECK(cudaMalloc(&cycles, sizeof *cycles));
    printf("device %s\n%-26s %6s %8s %9s\n", prop.name, "chain of one tile", "K", "cycles", "us");
    printf("%-26s %6s %8s %9s\n", "", "", "a step", "a launch");
    for (int k : {128, 1024, 4096, 12288}) {
        auto launch = [&](cudaStream_t s) { chain_mma_sync<<<1, 32, 0, s>>>(k / 16, out, cycles); };
        report("mma.sync m16n8", k, launch, cycles);
    }
    for (int k : {4096, 12288}) {
        report_widths<4>(k, out, cycles);
        report_widths<32>(k, out, cycles);
    }
    return 0;
}
