/* seed.h - the seed of one of n samples. Invariant: a fixed function of (seed, i), the same
 * everywhere, and at most 53 bits for i > 0 (JSON tools round or refuse larger integers). */
#ifndef BASE_SEED_H
#define BASE_SEED_H

#include <stdint.h>

/* The finalizer of splitmix64 alone. */
static inline uint64_t seed_mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

/* seed_0 = seed; seed_i = mix(seed + i * 0x9E3779B97F4A7C15) >> 11. Sample i draws as a request
 * alone with this seed does. */
static inline uint64_t seed_sample(uint64_t seed, int32_t i)
{
    return i == 0 ? seed : seed_mix(seed + (uint64_t)i * 0x9E3779B97F4A7C15u) >> 11;
}

#endif
