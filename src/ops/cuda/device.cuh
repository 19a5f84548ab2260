/* device.cuh - what the row kernels share: bf16 in and out.
 * Invariant: every rounding is written: nothing here may be contracted or reordered. */
#ifndef OPS_CUDA_DEVICE_CUH
#define OPS_CUDA_DEVICE_CUH

#include <cuda_bf16.h>
#include <stdint.h>

#include "ops/cuda/ptx.cuh"

#define LOG2_E 0x1.715476p+0f

static __device__ __forceinline__ float dev_wide(uint16_t v)
{
    return __uint_as_float((uint32_t)v << 16);
}

/* To nearest, ties to even; a NaN becomes 0x7fff. */
static __device__ __forceinline__ uint16_t dev_round(float f)
{
    return __bfloat16_as_ushort(__float2bfloat16_rn(f));
}

static __device__ __forceinline__ float dev_rounded(float f) { return dev_wide(dev_round(f)); }

static __device__ __forceinline__ void dev_widen8(uint4 q, float v[8])
{
    const uint32_t w[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
    for (int k = 0; k < 4; k++) {
        v[2 * k] = __uint_as_float(w[k] << 16);
        v[2 * k + 1] = __uint_as_float(w[k] & 0xffff0000u);
    }
}

static __device__ __forceinline__ uint4 dev_narrow8(const float v[8])
{
    uint32_t w[4];
#pragma unroll
    for (int k = 0; k < 4; k++)
        w[k] = dev_round(v[2 * k]) | (uint32_t)dev_round(v[2 * k + 1]) << 16;
    return make_uint4(w[0], w[1], w[2], w[3]);
}

static __device__ __forceinline__ float dev_silu(float g)
{
    const float e = ex2(__fmul_rn(-g, LOG2_E));
    return dev_rounded(__fdiv_rn(g, __fadd_rn(1.0f, e)));
}

/* 128 partials, of threads 0 to 127, to their tree sum, in every thread. s: 129 floats of shared
 * memory; sync: a barrier of all threads that call. */
template <class S> static __device__ __forceinline__ float dev_tree128(float part, float *s, S sync)
{
    const int t = threadIdx.x;
    if (t >= 64 && t < 128) s[t] = part;
    sync();
    if (t < 64) part = __fadd_rn(part, s[t + 64]);
    if (t >= 32 && t < 64) s[t] = part;
    sync();
    if (t < 32) {
        part = __fadd_rn(part, s[t + 32]);
#pragma unroll
        for (int h = 16; h >= 1; h /= 2) part = __fadd_rn(part, __shfl_down_sync(~0u, part, h));
        if (t == 0) s[128] = part;
    }
    sync();
    return s[128];
}

#endif
