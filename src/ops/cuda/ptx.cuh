/* ptx.cuh - the warp, barrier and copy instructions of Hopper that the kernels use, by inline PTX.
 * Invariant: one function is one instruction; no arithmetic is hidden here. Floating-point
 * instructions whose bits docs/numerics.md fixes are written by name. */
#ifndef OPS_CUDA_PTX_CUH
#define OPS_CUDA_PTX_CUH

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <stdint.h>

#define DEVICE __device__ __forceinline__

/* Whether Hopper's own instructions compile. For other targets kernels that need them are empty,
 * and their hosts refuse the device. */
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define PTX_HOPPER 1
#else
#define PTX_HOPPER 0
#endif

/* ---- warp-level instructions */

DEVICE float ex2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0,%1;" : "=f"(y) : "f"(x));
    return y;
}

/* Two bf16 in one register, lo in the low half, rounded to nearest even. It stays where it is
 * written: behind the wait for a wgmma that still reads the register. */
DEVICE uint32_t pack_bf16(float lo, float hi)
{
    uint32_t r;
    asm volatile("cvt.rn.bf16x2.f32 %0,%1,%2;" : "=r"(r) : "f"(hi), "f"(lo));
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

/* An 8 x 8 matrix of bf16, two neighbours of a row a lane, transposed. */
DEVICE uint32_t transpose_matrix(uint32_t x)
{
    uint32_t r;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0,%1;" : "=r"(r) : "r"(x));
    return r;
}

/* A word of shared memory, read where it is written. */
DEVICE uint32_t load_shared(uint32_t address)
{
    uint32_t r;
    asm volatile("ld.volatile.shared.u32 %0,[%1];" : "=r"(r) : "r"(address) : "memory");
    return r;
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

DEVICE void barrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _,[%0];" ::"r"(barrier) : "memory");
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

/* The same with a cache policy. */
DEVICE void bulk_load(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier,
                      uint64_t policy)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0],[%1],%2,[%3],%4;" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
                 : "memory");
}

/* A box of a tensor of two dimensions: from column x and row y on; its sizes are the map's. */
DEVICE void tensor_load(uint32_t to, const void *map, int32_t x, int32_t y, uint32_t barrier,
                        uint64_t policy)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0],[%1,{%2,%3}],[%4],%5;" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(barrier), "l"(policy)
                 : "memory");
}

/* 16 bytes through the L2, by the thread itself; async_arrive: it arrives at the barrier when all
 * such copies that it began are there. */
DEVICE void async_load(uint32_t to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0],[%1],16;" ::"r"(to), "l"(from) : "memory");
}

DEVICE void async_arrive(uint32_t barrier)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

/* ---- hints for the L2 cache */

DEVICE uint64_t policy_evict_first()
{
    uint64_t p;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0,1.0;" : "=l"(p));
    return p;
}

DEVICE uint64_t policy_evict_normal()
{
    uint64_t p;
    asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0,1.0;" : "=l"(p));
    return p;
}

DEVICE uint64_t policy_evict_last()
{
    uint64_t p;
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0,1.0;" : "=l"(p));
    return p;
}

DEVICE void store_hinted(float4 *to, float4 v, uint64_t policy)
{
    asm volatile("st.global.L2::cache_hint.v4.f32 [%0],{%1,%2,%3,%4},%5;" ::"l"(to), "f"(v.x),
                 "f"(v.y), "f"(v.z), "f"(v.w), "l"(policy)
                 : "memory");
}

/* The 128 bytes at p need not be written back; they are undefined until they are written. */
DEVICE void discard_line(void *p)
{
    asm volatile("discard.global.L2 [%0],128;" ::"l"(p) : "memory");
}

/* ---- threads and CTAs together */

/* ---- programmatic dependent launch, between our own kernels only */

/* The kernel behind may start, up to its wait. Nothing else follows from it. */
DEVICE void next_may_start()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Until the kernel before has ended and its writes are seen. */
DEVICE void wait_for_before()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* A barrier of `threads` threads of the CTA; id 0 is __syncthreads. */
DEVICE void named_barrier(int id, int threads)
{
    asm volatile("bar.sync %0,%1;" ::"r"(id), "r"(threads) : "memory");
}

/* Arrives at a named barrier without waiting for it. */
DEVICE void named_arrive(int id, int threads)
{
    asm volatile("bar.arrive %0,%1;" ::"r"(id), "r"(threads) : "memory");
}

/* Counts to `limit`, then to 0 again; returns the count before. What the CTA wrote is visible to
 * who counts later. */
DEVICE uint32_t count_arrival(uint32_t *counter, uint32_t limit)
{
    uint32_t old;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0,[%1],%2;"
                 : "=r"(old)
                 : "l"(counter), "r"(limit)
                 : "memory");
    return old;
}

/* Adds 1; what the CTA wrote is visible to who sees it. */
DEVICE void count_up(unsigned long long *counter)
{
    asm volatile("red.release.gpu.global.add.u64 [%0],1;" ::"l"(counter) : "memory");
}

DEVICE unsigned long long count_of(const unsigned long long *counter)
{
    unsigned long long n;
    asm volatile("ld.acquire.gpu.global.u64 %0,[%1];" : "=l"(n) : "l"(counter) : "memory");
    return n;
}

#endif
