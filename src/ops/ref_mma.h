/* ref_mma.h - one tensor-core product of Hopper on a CPU, to the bit (docs/numerics.md, section 1).
 *
 * Source: the published arithmetic model of MMA-Sim (arXiv 2511.10909), completed and checked on an
 * H200 by tools/gpu/mma_check (docs/numerics.md, section 10). A kernel of the set `canonical` gives
 * these fp32 bits for every output, whatever its tiles. */
#ifndef OPS_REF_MMA_H
#define OPS_REF_MMA_H

#include <stdint.h>

#define REF_MMA_GROUP 16 /* elements of K that one step adds */

/* acc plus the products of one group of n <= 16 elements (the rest counts as zeros): the exact
 * products and acc are aligned to the largest exponent (that of a product: the sum of its operands'
 * exponents; at least -133), cut toward zero to 25 fraction bits, added exactly, and the sum is cut
 * toward zero to fp32. A zero result is +0, a NaN 0x7fffffff; subnormal numbers are kept. a, b:
 * bf16. */
float ref_mma_step(float acc, const uint16_t *a, const uint16_t *b, int n);

/* The whole product over K elements: groups that begin at multiples of 16, upward, from +0. */
float ref_mma_dot(const uint16_t *a, const uint16_t *b, int64_t k);

#endif
