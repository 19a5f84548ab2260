/* mma_inputs.c - the classes of inputs for one tensor-core step. */
#include "mma_inputs.h"

#include <string.h>

static uint64_t mix(uint64_t x)
{
    x += 0x9E3779B97F4A7C15ull;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ x >> 27) * 0x94D049BB133111EBull;
    return x ^ x >> 31;
}

typedef struct source {
    uint64_t seed, n;
} source;

static uint64_t draw(source *s) { return mix(s->seed + s->n++); }
static int between(source *s, int lo, int hi)
{
    return lo + (int)(draw(s) % (uint64_t)(hi - lo + 1));
}

static float float_of(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* A random sign and fraction with the given binary exponent; -127 makes a subnormal number. */
static uint16_t half_at(source *s, int exponent)
{
    return (uint16_t)((draw(s) & 0x807f) | (uint64_t)(exponent + 127) << 7);
}

static float single_at(source *s, int exponent)
{
    if (exponent < -127) exponent = -127;
    if (exponent > 127) exponent = 127;
    return float_of((uint32_t)((draw(s) & 0x807fffff) | (uint64_t)(exponent + 127) << 23));
}

/* Exponents of a's and b's elements (k) and of the accumulators, by class. */
typedef struct range {
    int lo, hi;
} range;

typedef struct class_info {
    const char *name;
    range a, b, c;
} class_info;

static const class_info classes[IN_CLASSES] = {
    [IN_NORMAL] = {"normal", {-3, 1}, {-3, 1}, {-4, 4}},
    [IN_WIDE] = {"wide", {-30, 30}, {-30, 30}, {-60, 60}},
    [IN_ANY] = {"any finite", {-127, 127}, {-127, 127}, {-127, 127}},
    [IN_CANCEL] = {"cancelling pairs", {-8, 8}, {-8, 8}, {-24, 4}},
    [IN_ZERO_SUM] = {"zero sum", {-8, 8}, {-8, 8}, {-40, -20}},
    [IN_SUBNORMAL] = {"subnormal operands", {-127, -120}, {90, 127}, {-50, 10}},
    [IN_TINY] = {"tiny results", {-70, -58}, {-70, -58}, {-127, -118}},
    [IN_UNDERFLOW] = {"underflow", {-127, -70}, {-127, -62}, {-127, -125}},
    [IN_SUM_BELOW] = {"sum below", {-80, -73}, {-80, -73}, {-127, -127}},
    [IN_ZEROS] = {"zeros", {-4, 4}, {-4, 4}, {-8, 8}},
    [IN_OVERFLOW] = {"overflow", {60, 64}, {60, 63}, {120, 127}},
    [IN_ACC_HIGH] = {"accumulator high", {-4, 4}, {-4, 4}, {16, 32}},
    [IN_ACC_LOW] = {"accumulator low", {-2, 2}, {-2, 2}, {-32, -16}},
    [IN_EDGE] = {"alignment edge", {-15, -10}, {-15, -10}, {-30, -20}},
    [IN_TRUNCATION] = {"truncation", {-2, 2}, {-2, 2}, {-2, 6}},
    [IN_INFINITY] = {"infinity", {-8, 8}, {-8, 8}, {-8, 8}},
    [IN_INFINITY_ANY] = {"infinity, any", {-127, 127}, {-127, 127}, {-127, 127}},
    [IN_NAN] = {"nan", {-8, 8}, {-8, 8}, {-8, 8}},
};

const char *mma_class_name(int kind) { return classes[kind].name; }

/* Where the class wants a special number: rarely in infinity and NaN, often in zeros. */
static uint16_t special(source *s, int kind, uint16_t plain)
{
    uint16_t sign = (uint16_t)(draw(s) & 0x8000);
    switch (kind) {
    case IN_ZEROS: return draw(s) % 4 ? sign : plain;
    case IN_INFINITY:
    case IN_INFINITY_ANY:
        if (draw(s) % 24 == 0) return sign | 0x7f80;
        return draw(s) % 64 ? plain : sign;
    case IN_NAN:
        if (draw(s) % 48 == 0) return (uint16_t)(sign | 0x7f81 | (draw(s) & 0x7f));
        return draw(s) % 48 ? plain : (uint16_t)(sign | 0x7f80);
    default: return plain;
    }
}

static void make_operand(source *s, int kind, range r, int is_b, uint16_t v[TILE_K])
{
    int top = kind == IN_EDGE ? between(s, 0, TILE_K - 1) : -1;
    for (int k = 0; k < TILE_K; k++) {
        v[k] = special(s, kind, half_at(s, k == top ? between(s, -1, 1) : between(s, r.lo, r.hi)));
        if ((kind == IN_CANCEL || kind == IN_ZERO_SUM) && k % 2) {
            uint16_t flip = is_b ? 0x8000 : 0;
            if (kind == IN_CANCEL && is_b && draw(s) % 2) flip |= 1;
            v[k] = v[k - 1] ^ flip;
        }
    }
}

static float accumulator(source *s, int kind, const mma_tile *t, int i, int j)
{
    range r = classes[kind].c;
    float plain = single_at(s, between(s, r.lo, r.hi));
    if (kind == IN_TRUNCATION) { /* minus the sum, but for its low bits */
        double sum = 0;
        for (int k = 0; k < TILE_K; k++)
            sum += (double)float_of((uint32_t)t->a[i][k] << 16) *
                   (double)float_of((uint32_t)t->b[j][k] << 16);
        return (float)-sum;
    }
    if (kind == IN_SUM_BELOW) return float_of((uint32_t)(draw(s) & 0x80000007));
    if (kind == IN_ZERO_SUM && draw(s) % 2) return draw(s) % 2 ? 0.0f : -0.0f;
    uint16_t high = special(s, kind, 1);
    return high == 1 ? plain : float_of((uint32_t)high << 16);
}

void mma_tile_make(mma_tile *t, int kind, uint64_t number)
{
    source s = {mix((uint64_t)kind << 56 | number) & ~0xfffffull, 0};
    for (int i = 0; i < TILE_M; i++) make_operand(&s, kind, classes[kind].a, 0, t->a[i]);
    for (int j = 0; j < TILE_N; j++) make_operand(&s, kind, classes[kind].b, 1, t->b[j]);
    for (int i = 0; i < TILE_M; i++)
        for (int j = 0; j < TILE_N; j++) t->c[i][j] = accumulator(&s, kind, t, i, j);
}

uint16_t mma_long_input(uint64_t seed, int side, uint64_t i)
{
    uint64_t h = mix(seed << 33 ^ (uint64_t)side << 32 ^ i);
    return (uint16_t)((h & 0x807f) | (120 + (h >> 16) % 10) << 7);
}
