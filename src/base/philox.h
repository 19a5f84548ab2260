/* philox.h - Philox4x32-10, the counter-based generator (Salmon et al., SC 2011).
 * Invariant: four words are a function of key and counter alone; there is no state. */
#ifndef BASE_PHILOX_H
#define BASE_PHILOX_H

#include <stdint.h>

#ifdef __CUDACC__
#define PHILOX_FN static __device__ __host__ __forceinline__
#else
#define PHILOX_FN static inline
#endif

/* Third counter word: what the numbers are for. */
#define PHILOX_PURPOSE_DRAW 0u
#define PHILOX_PURPOSE_FILL 1u

/* c: the counter on entry, the four words on return. */
PHILOX_FN void philox4x32(uint32_t c[4], uint32_t k0, uint32_t k1)
{
    uint32_t a = c[0], b = c[1], d = c[2], e = c[3];
    for (int r = 0; r < 10; r++) {
        uint64_t p = (uint64_t)a * 0xD2511F53u, q = (uint64_t)d * 0xCD9E8D57u;
        a = (uint32_t)(q >> 32) ^ b ^ k0;
        b = (uint32_t)q;
        d = (uint32_t)(p >> 32) ^ e ^ k1;
        e = (uint32_t)p;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    c[0] = a;
    c[1] = b;
    c[2] = d;
    c[3] = e;
}

#endif
