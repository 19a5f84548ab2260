/* matmul_aux.cu - small kernels beside the products: a widened bias, random operands, comparison.
 * Invariant: each element is a function of its own inputs; no sum of floating-point numbers. */
#include "ops/cuda/matmul.h"

#include <cuda_bf16.h>
#include <cuda_runtime.h>

__global__ void k_widen_bf16(const __nv_bfloat16 *in, int64_t n, float *out)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = __bfloat162float(in[i]);
}

/* The finalizer of splitmix64. */
static __device__ uint64_t hash64(uint64_t x)
{
    x += 0x9E3779B97F4A7C15ull;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ x >> 27) * 0x94D049BB133111EBull;
    return x ^ x >> 31;
}

/* The sum of four uniform 16-bit numbers, scaled to variance 1: exact in fp32. */
__global__ void k_fill_normal_bf16(__nv_bfloat16 *p, size_t n, uint64_t seed, float deviation)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        uint64_t h = hash64(seed << 40 ^ i);
        int sum = (int)(h & 0xffff) + (int)(h >> 16 & 0xffff) + (int)(h >> 32 & 0xffff) +
                  (int)(h >> 48 & 0xffff);
        float x = __fmul_rn((float)(sum - 2 * 0xffff), 1.0f / 37836.0f);
        p[i] = __float2bfloat16_rn(__fmul_rn(deviation, x));
    }
}

__global__ void k_count_differing(const float *acc, const __nv_bfloat16 *bias, const void *got,
                                  bool is_bf16, size_t n, int64_t n_out, unsigned long long *count)
{
    unsigned long long differing = 0;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        float y = acc[i];
        if (bias) y = __fadd_rn(y, __bfloat162float(bias[i % (size_t)n_out]));
        if (is_bf16)
            differing += __bfloat16_as_ushort(__float2bfloat16_rn(y)) != ((const uint16_t *)got)[i];
        else
            differing += __float_as_uint(y) != ((const uint32_t *)got)[i];
    }
    if (differing) atomicAdd(count, differing);
}

extern "C" corun_status gpu_widen(const gpu *g, const void *in, int64_t n, float *out)
{
    k_widen_bf16<<<(unsigned)((n + 255) / 256), 256, 0, (cudaStream_t)g->stream>>>(
        (const __nv_bfloat16 *)in, n, out);
    return gpu_status(cudaGetLastError(), "bias");
}

extern "C" corun_status gpu_fill_normal(const gpu *g, void *p, size_t n, uint64_t seed,
                                        float deviation)
{
    k_fill_normal_bf16<<<2048, 256, 0, (cudaStream_t)g->stream>>>((__nv_bfloat16 *)p, n, seed,
                                                                  deviation);
    return gpu_status(cudaGetLastError(), "random operands");
}

extern "C" corun_status gpu_count_differing(const gpu *g, const float *acc, const void *bias,
                                            const void *got, ops_dtype type, size_t rows,
                                            int64_t n_out, unsigned long long *count)
{
    k_count_differing<<<2048, 256, 0, (cudaStream_t)g->stream>>>(
        acc, (const __nv_bfloat16 *)bias, got, type == OPS_BF16, rows * (size_t)n_out, n_out,
        count);
    return gpu_status(cudaGetLastError(), "comparison");
}
