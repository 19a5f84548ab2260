/* test_ref_attn.c - attention of the GPU classes on the CPU against bits taken from an H200.
 *
 * tests/data/ref_attn_golden.txt is written by tools/gpu's attention_check -o on the device, where
 * both kernels gave these outputs. A line holds head dimension, group, row, head, position, the
 * number of 2^x, a hash of their arguments, their values on the device, and the outputs. Inputs are
 * made by formula. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "ops/ref_attn.h"

enum { LENGTH = 5000, KV_HEADS = 2, MAX_TOKENS = 1025, MAX_DIM = 128, MAX_EX2 = 9 * 129 + 6 };

static uint32_t bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static uint64_t mix(uint64_t x)
{
    x += 0x9E3779B97F4A7C15ull;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ x >> 27) * 0x94D049BB133111EBull;
    return x ^ x >> 31;
}

/* About normal, times size, as bf16. */
static uint16_t value(uint64_t place, float size)
{
    uint64_t h = mix(place);
    int sum = (int)(h & 0xffff) + (int)(h >> 16 & 0xffff) + (int)(h >> 32 & 0xffff) +
              (int)(h >> 48 & 0xffff);
    float x = (float)(sum - 2 * 0xffff) * (1.0f / 37836.0f);
    uint32_t u = bits(size * x);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* The inputs of one line. */
typedef struct row_inputs {
    uint16_t q[MAX_DIM], k[MAX_TOKENS * MAX_DIM], v[MAX_TOKENS * MAX_DIM];
    ref_attn_row r;
} row_inputs;

static void make_inputs(row_inputs *in, int group, uint64_t row, uint64_t head)
{
    int d = in->r.head_dim;
    float size = 0.5f * (float)(1 << row % 4);
    for (int i = 0; i < d; i++)
        in->q[i] = value((1ull << 60) + (row * 64 + head) * 256 + (uint64_t)i, size);
    for (int j = 0; j <= in->r.position; j++) {
        uint64_t place = (row * LENGTH + (uint64_t)j) * KV_HEADS + head / (uint64_t)group;
        for (int i = 0; i < d; i++) {
            in->k[j * d + i] = value(place * 512 + (uint64_t)i, 1);
            in->v[j * d + i] = value(place * 512 + 256 + (uint64_t)i, 1);
        }
    }
    in->r.c = (float)(1.4426950408889634 / sqrt((double)d));
    in->r.q = in->q;
    in->r.k = in->k;
    in->r.v = in->v;
}

static float word(FILE *f)
{
    unsigned u;
    float x;
    assert_int_equal(fscanf(f, "%x", &u), 1);
    memcpy(&x, &u, sizeof x);
    return x;
}

/* Checks the line whose head dimension was read. */
static void check_line(FILE *f, row_inputs *in)
{
    static float arguments[MAX_EX2], values[MAX_EX2], out[MAX_DIM];
    int group, row, head, n;
    unsigned long long want;
    assert_int_equal(
        fscanf(f, "%d %d %d %d %d %llx", &group, &row, &head, &in->r.position, &n, &want), 6);
    assert_in_range(in->r.head_dim, 1, MAX_DIM);
    assert_in_range(in->r.position, 0, MAX_TOKENS - 1);
    assert_in_range(group, 1, 16);
    assert_in_range(n, 1, MAX_EX2);
    make_inputs(in, group, (uint64_t)row, (uint64_t)head);
    assert_in_range(ref_attn_arguments_max(&in->r), n, MAX_EX2);
    assert_int_equal(ref_attn_arguments(&in->r, arguments), n);
    uint64_t hash = 0;
    for (int i = 0; i < n; i++) hash = mix(hash ^ bits(arguments[i]));
    assert_true(hash == want);
    for (int i = 0; i < n; i++) values[i] = word(f);
    ref_attn_output(&in->r, values, out);
    for (int i = 0; i < in->r.head_dim; i++) assert_int_equal(bits(out[i]), bits(word(f)));
}

static void test_device_bits(void **state)
{
    (void)state;
    static row_inputs in;
    FILE *f = fopen(TEST_DATA "/ref_attn_golden.txt", "r");
    assert_non_null(f);
    int lines = 0;
    for (; fscanf(f, "%d", &in.r.head_dim) == 1; lines++) check_line(f, &in);
    fclose(f);
    assert_int_equal(lines, 22);
}

/* What lies behind the row's end is not read as a number: NaN there changes nothing. */
static void test_behind_the_end(void **state)
{
    (void)state;
    static row_inputs in, nan;
    static float arguments[MAX_EX2], again[MAX_EX2], out[MAX_DIM], out_nan[MAX_DIM];
    in.r = (ref_attn_row){.head_dim = 64, .position = 200};
    make_inputs(&in, 1, 7, 0);
    nan = in;
    nan.r.q = nan.q;
    nan.r.k = nan.k;
    nan.r.v = nan.v;
    for (int i = 201 * 64; i < 256 * 64; i++) nan.k[i] = nan.v[i] = 0x7fc0;
    int n = ref_attn_arguments(&in.r, arguments);
    assert_int_equal(ref_attn_arguments(&nan.r, again), n);
    assert_memory_equal(arguments, again, (size_t)n * sizeof *again);
    for (int i = 0; i < n; i++) arguments[i] = exp2f(arguments[i]);
    ref_attn_output(&in.r, arguments, out);
    ref_attn_output(&nan.r, arguments, out_nan);
    assert_memory_equal(out, out_nan, 64 * sizeof *out);
}

int main(void)
{
    const struct CMUnitTest t[] = {cmocka_unit_test(test_device_bits),
                                   cmocka_unit_test(test_behind_the_end)};
    return cmocka_run_group_tests_name("ops: ref_attn", t, NULL, NULL);
}
