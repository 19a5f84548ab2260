/* mma_inputs.h - inputs for one tensor-core step, in classes that strain its arithmetic.
 * Invariant: a tile is a function of (class, number) alone, the same wherever it is made. */
#ifndef TOOLS_GPU_MMA_INPUTS_H
#define TOOLS_GPU_MMA_INPUTS_H

#include <stdint.h>

enum { TILE_M = 64, TILE_N = 8, TILE_K = 16, TILE_OUT = TILE_M * TILE_N };

typedef struct mma_tile {
    uint16_t a[TILE_M][TILE_K]; /* bf16, rows of A */
    uint16_t b[TILE_N][TILE_K]; /* bf16, columns of B */
    float c[TILE_M][TILE_N];    /* what is accumulated to */
} mma_tile;

enum {
    IN_NORMAL,       /* normal numbers of one size */
    IN_WIDE,         /* exponents of products over 120 binades */
    IN_ANY,          /* any finite bits */
    IN_CANCEL,       /* products come in pairs that cancel but for a last bit */
    IN_ZERO_SUM,     /* products cancel exactly; the accumulator is tiny or a zero */
    IN_SUBNORMAL,    /* subnormal operands times large ones */
    IN_TINY,         /* results around the smallest normal and subnormal numbers */
    IN_UNDERFLOW,    /* products below every fp32 number, tiny accumulators */
    IN_SUM_BELOW,    /* products around a tenth of the smallest number, accumulators a few of it */
    IN_ZEROS,        /* zeros of both signs among the operands and accumulators */
    IN_OVERFLOW,     /* sums around the largest number */
    IN_ACC_HIGH,     /* the accumulator is 2^16 to 2^32 times the products */
    IN_ACC_LOW,      /* the products are 2^16 to 2^32 times the accumulator */
    IN_EDGE,         /* one large product, the others 2^20 to 2^30 times smaller */
    IN_TRUNCATION,   /* the accumulator cancels the products, low bits stay */
    IN_INFINITY,     /* infinities among finite numbers */
    IN_INFINITY_ANY, /* the same among finite numbers whose products overflow */
    IN_NAN,          /* NaN and infinities among finite numbers */
    IN_CLASSES
};

const char *mma_class_name(int kind);
void mma_tile_make(mma_tile *t, int kind, uint64_t number);

/* Element i of the operand `side` (0: a, 1: b) of a long product: normal, about 2^-7 to 2^2. */
uint16_t mma_long_input(uint64_t seed, int side, uint64_t i);

#endif
