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

#endif
