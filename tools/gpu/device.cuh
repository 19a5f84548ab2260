/* device.cuh - what the programs of tools/gpu share: error checks and inputs from a hash.
 * Invariant: an input is a function of its place alone. */
#ifndef TOOLS_GPU_DEVICE_CUH
#define TOOLS_GPU_DEVICE_CUH

#include "ops/cuda/ptx.cuh"

#include <stdio.h>
#include <stdlib.h>

#define CHECK(call)                                                                                \
    do {                                                                                           \
        cudaError_t status_ = (call);                                                              \
        if (status_ != cudaSuccess) {                                                              \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call,                          \
                    cudaGetErrorString(status_));                                                  \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* The finalizer of splitmix64: inputs are a function of a counter, the same on host and device. */
__host__ DEVICE uint64_t hash64(uint64_t x)
{
    x += 0x9E3779B97F4A7C15ull;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ x >> 27) * 0x94D049BB133111EBull;
    return x ^ x >> 31;
}

/* About normal with variance 1: the sum of four uniform numbers, exact in fp32. */
__host__ DEVICE float hash_normal(uint64_t x)
{
    uint64_t h = hash64(x);
    int sum = (int)(h & 0xffff) + (int)(h >> 16 & 0xffff) + (int)(h >> 32 & 0xffff) +
              (int)(h >> 48 & 0xffff);
    return (float)(sum - 2 * 0xffff) * (1.0f / 37836.0f);
}

#endif
