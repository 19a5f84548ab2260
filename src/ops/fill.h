/* fill.h - the values of ops_fill, for hosts and devices. Invariant: an element is a function of
 * seed, index and its place alone, each step rounded on its own. */
#ifndef OPS_FILL_H
#define OPS_FILL_H

#include "base/num.h"
#include "base/philox.h"

/* Elements 4 i ... 4 i + 3, before their rounding to bf16. */
NUM_FN void fill_four(uint64_t seed, uint32_t index, uint64_t i, float base, float spread,
                      float out[4])
{
    uint32_t c[4] = {(uint32_t)i, (uint32_t)(i >> 32), PHILOX_PURPOSE_FILL, index};
    philox4x32(c, (uint32_t)seed, (uint32_t)(seed >> 32));
    for (int k = 0; k < 4; k++) {
        float u = (float)(int32_t)(c[k] & 0xffffff00u) * 0x1p-31f; /* 24 bits: exact */
        float v = u * spread;
        out[k] = base + v;
    }
}

#endif
