/* test_ref_mma.c - the tensor-core step on the CPU against bits taken from an H200.
 *
 * tests/data/ref_mma_golden.txt is written by tools/gpu's mma_check -g on the device. A line holds
 * a class, the accumulator, 16 a, 16 b and the result, or a long product of inputs by formula.
 * tests/data/ref_mma_found.txt holds outputs, from mma_check -m, in which an earlier version of the
 * C code differed from the device. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "ops/ref_mma.h"

static uint32_t bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static float from_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* Element i of row (side 0) or column (side 1) data of a long product, as mma_check makes it. */
static uint16_t long_input(uint64_t seed, uint64_t side, uint64_t i)
{
    uint64_t x = (seed << 33 ^ side << 32 ^ i) + 0x9E3779B97F4A7C15ull;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ x >> 27) * 0x94D049BB133111EBull;
    x ^= x >> 31;
    return (uint16_t)((x & 0x807f) | (120 + (x >> 16) % 10) << 7);
}

/* Reads one hexadecimal word; the file is ours, so a failure is a failed test. */
static uint32_t word(FILE *f)
{
    unsigned x;
    assert_int_equal(fscanf(f, "%x", &x), 1);
    return x;
}

static void check_long(FILE *f)
{
    static uint16_t a[12288], b[12288];
    int k, row, column;
    assert_int_equal(fscanf(f, "%d %d %d", &k, &row, &column), 3);
    assert_in_range(k, 1, 12288);
    uint32_t want = word(f);
    for (int i = 0; i < k; i++) {
        a[i] = long_input((uint64_t)k, 0, (uint64_t)row * k + i);
        b[i] = long_input((uint64_t)k, 1, (uint64_t)column * k + i);
    }
    assert_int_equal(bits(ref_mma_dot(a, b, k)), want);
}

static void check_step(FILE *f)
{
    uint16_t a[REF_MMA_GROUP], b[REF_MMA_GROUP];
    uint32_t acc = word(f);
    for (int i = 0; i < REF_MMA_GROUP; i++) a[i] = (uint16_t)word(f);
    for (int i = 0; i < REF_MMA_GROUP; i++) b[i] = (uint16_t)word(f);
    uint32_t want = word(f);
    assert_int_equal(bits(ref_mma_step(from_bits(acc), a, b, REF_MMA_GROUP)), want);
    for (int i = 0; i < REF_MMA_GROUP; i += 2) { /* the order inside a group is free */
        uint16_t x = a[i], y = b[i];
        a[i] = a[REF_MMA_GROUP - 1 - i];
        b[i] = b[REF_MMA_GROUP - 1 - i];
        a[REF_MMA_GROUP - 1 - i] = x;
        b[REF_MMA_GROUP - 1 - i] = y;
    }
    assert_int_equal(bits(ref_mma_step(from_bits(acc), b, a, REF_MMA_GROUP)), want);
}

static void check_file(const char *name, int *steps, int *longs)
{
    FILE *f = fopen(name, "r");
    assert_non_null(f);
    char kind[16];
    *steps = *longs = 0;
    while (fscanf(f, "%15s", kind) == 1) {
        if (!strcmp(kind, "long")) {
            check_long(f);
            ++*longs;
        } else {
            check_step(f);
            ++*steps;
        }
    }
    fclose(f);
}

static void test_device_bits(void **state)
{
    (void)state;
    int steps, longs;
    check_file(TEST_DATA "/ref_mma_golden.txt", &steps, &longs);
    assert_int_equal(steps, 360);
    assert_int_equal(longs, 56);
    check_file(TEST_DATA "/ref_mma_found.txt", &steps, &longs);
    assert_int_equal(steps, 180);
}

/* Fewer than 16 elements are the same as zeros in their places. */
static void test_short_group(void **state)
{
    (void)state;
    uint16_t a[24], b[24];
    for (int i = 0; i < 24; i++) {
        a[i] = long_input(5, 0, (uint64_t)i);
        b[i] = long_input(5, 1, (uint64_t)i);
    }
    for (int n = 0; n <= 24; n++) {
        uint16_t x[32] = {0}, y[32] = {0};
        memcpy(x, a, (size_t)n * sizeof *a);
        memcpy(y, b, (size_t)n * sizeof *b);
        assert_int_equal(bits(ref_mma_dot(a, b, n)), bits(ref_mma_dot(x, y, 32)));
    }
    assert_int_equal(bits(ref_mma_dot(a, b, 0)), 0);
}

/* Which group an element is in is not free: moving the border changes bits. */
static void test_groups_matter(void **state)
{
    (void)state;
    uint16_t a[33], b[33];
    int moved = 0;
    for (uint64_t trial = 0; trial < 200; trial++) {
        for (uint64_t i = 0; i < 33; i++) {
            a[i] = i ? long_input(100 + trial, 0, i) : 0;
            b[i] = i ? long_input(100 + trial, 1, i) : 0;
        }
        moved += bits(ref_mma_dot(a, b, 33)) != bits(ref_mma_dot(a + 1, b + 1, 32));
    }
    assert_true(moved > 20);
}

int main(void)
{
    const struct CMUnitTest t[] = {cmocka_unit_test(test_device_bits),
                                   cmocka_unit_test(test_short_group),
                                   cmocka_unit_test(test_groups_matter)};
    return cmocka_run_group_tests_name("ops: ref_mma", t, NULL, NULL);
}
