/* device.cuh - what the programs of tools/gpu share: error checks, inputs from a hash, and the
 * tensor-core and copy instructions by inline PTX.
 * Invariant: one function is one instruction; no arithmetic is hidden here. Floating-point
 * instructions whose bits docs/numerics.md fixes are written by name. */
#ifndef TOOLS_GPU_DEVICE_CUH
#define TOOLS_GPU_DEVICE_CUH

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define DEVICE __device__ __forceinline__

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

/* ---- warp-level instructions */

DEVICE float ex2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0,%1;" : "=f"(y) : "f"(x));
    return y;
}

/* Two bf16 in one register, lo in the low half, rounded to nearest even. */
DEVICE uint32_t pack_bf16(float lo, float hi)
{
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0,%1,%2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
}

/* c += a·b, 16 x 8 outputs over 16 elements of K. */
DEVICE void mma_sync(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

DEVICE uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

DEVICE void load_matrices(uint32_t (&r)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

DEVICE void load_matrices_transposed(uint32_t (&r)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

/* ---- barriers in shared memory and bulk copies */

DEVICE void barrier_init(uint32_t barrier, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0],%1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

DEVICE void barrier_expect(uint32_t barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _,[%0],%1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

DEVICE void barrier_wait(uint32_t barrier, uint32_t phase)
{
    asm volatile("{\n.reg .pred done_;\n"
                 "again: mbarrier.try_wait.parity.shared::cta.b64 done_,[%0],%1;\n"
                 "@!done_ bra again;\n}" ::"r"(barrier),
                 "r"(phase)
                 : "memory");
}

/* Barriers that were initialised become visible to the copy engine. */
DEVICE void barrier_init_done()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Ordinary stores to shared memory become visible to wgmma and to the copy engine. */
DEVICE void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

DEVICE void bulk_load(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0],[%1],%2,[%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

#endif
