/* test_files_dequant.c - every block format against golden values of the format's own reference
 * implementation, bit by bit, and the roundings to and from 16-bit floats. */
#include "files_make.h"

typedef struct golden {
    weights_dtype type;
    int block, bytes;
} golden;

static const golden goldens[] = {
    {WEIGHTS_F16, 1, 2},      {WEIGHTS_BF16, 1, 2},     {WEIGHTS_Q4_0, 32, 18},
    {WEIGHTS_Q4_1, 32, 20},   {WEIGHTS_Q5_0, 32, 22},   {WEIGHTS_Q5_1, 32, 24},
    {WEIGHTS_Q8_0, 32, 34},   {WEIGHTS_Q4_K, 256, 144}, {WEIGHTS_Q5_K, 256, 176},
    {WEIGHTS_Q6_K, 256, 210},
};

static void load(buf *b, const char *name, const char *ext)
{
    char path[512];
    snprintf(path, sizeof path, "%s/files/%s.%s", TEST_DATA, name, ext);
    buf_init(b, 1 << 20);
    assert_int_equal(file_read(b, path, 1 << 20), CORUN_OK);
}

/* Round to nearest, ties to even, done with arithmetic instead of bit tricks. */
static uint16_t slow_bf16(float f)
{
    uint32_t u, lo, hi;
    float a, b;
    memcpy(&u, &f, 4);
    if (isnan(f)) return (uint16_t)(u >> 16 | 0x40);
    lo = u & 0xffff0000u; /* towards zero */
    hi = lo + 0x10000u;
    if (isinf(f)) return (uint16_t)(lo >> 16);
    memcpy(&a, &lo, 4);
    memcpy(&b, &hi, 4);
    double beyond = isinf(b) ? copysign(0x1p128, f) : (double)b;
    double below = fabs((double)f - (double)a), above = fabs(beyond - (double)f);
    if (below != above) return (uint16_t)((below < above ? lo : hi) >> 16);
    return (uint16_t)((lo >> 16 & 1u ? hi : lo) >> 16);
}

static void test_sizes(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof goldens / sizeof *goldens; i++) {
        assert_int_equal(dequant_block(goldens[i].type), goldens[i].block);
        assert_int_equal(dequant_block_bytes(goldens[i].type), goldens[i].bytes);
    }
    assert_int_equal(dequant_block_bytes(WEIGHTS_F32), 4);
    assert_int_equal(dequant_block_bytes(WEIGHTS_F8_E4M3), 0);
    assert_int_equal(dequant_block_bytes(WEIGHTS_OTHER), 0);
    assert_int_equal(dequant_block_bytes((weights_dtype)99), 0);
    assert_string_equal(weights_dtype_name(WEIGHTS_Q5_K), "Q5_K");
    assert_string_equal(weights_dtype_name((weights_dtype)99), "no type");
}

static void test_golden(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof goldens / sizeof *goldens; i++) {
        buf raw, want;
        load(&raw, weights_dtype_name(goldens[i].type), "raw");
        load(&want, weights_dtype_name(goldens[i].type), "f32");
        int64_t n = (int64_t)want.len / 4;
        assert_int_equal(raw.len, n / goldens[i].block * goldens[i].bytes);
        /* exact memory, unaligned source */
        char *src = malloc(raw.len + 1);
        float *out = malloc((size_t)n * 4);
        uint16_t *half = malloc((size_t)n * 2);
        memcpy(src + 1, raw.data, raw.len);
        dequant_row(goldens[i].type, src + 1, n, out);
        dequant_row_bf16(goldens[i].type, src + 1, n, half);
        for (int64_t j = 0; j < n; j++) {
            float w;
            memcpy(&w, want.data + 4 * j, 4);
            if (memcmp(&w, &out[j], 4) != 0)
                fail_msg("%s, value %d: %.9g, the reference has %.9g",
                         weights_dtype_name(goldens[i].type), (int)j, (double)out[j], (double)w);
            assert_int_equal(half[j], slow_bf16(w));
        }
        free(src);
        free(out);
        free(half);
        buf_free(&raw);
        buf_free(&want);
    }
}

/* All 65,536 halves against their definition. */
static void test_f16(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        uint16_t src = (uint16_t)h;
        float f;
        dequant_row(WEIGHTS_F16, &src, 1, &f);
        int e = h >> 10 & 31, m = h & 1023;
        double sign = h & 0x8000 ? -1.0 : 1.0;
        double want = e == 0    ? sign * ldexp(m, -24)
                      : e == 31 ? sign * INFINITY
                                : sign * ldexp(1024 + m, e - 25);
        if (e == 31 && m != 0) {
            assert_true(isnan(f));
            continue;
        }
        assert_true((double)f == want && !signbit(f) == !signbit(want));
    }
}

static void test_bf16_rounding(void **state)
{
    (void)state;
    static const uint32_t bits[] = {0,          0x80000000, 0x3f800000, 0x3f808000, 0x3f818000,
                                    0x3f808001, 0x3f807fff, 0xbf808000, 0xbf818000, 0x7f7fffff,
                                    0x7f7f8000, 0x7f7f7fff, 0xff7fffff, 0x7f800000, 0xff800000,
                                    0x7f800001, 0x7fc00000, 0xffffffff, 0x7fffffff, 1,
                                    0x8000,     0x8001,     0x18000,    0x007fffff, 0x00808000};
    uint64_t seed = 1;
    for (uint32_t i = 0; i < 200000; i++) {
        uint32_t u = bits[i < sizeof bits / sizeof *bits ? i : 0];
        if (i >= sizeof bits / sizeof *bits) {
            seed = seed * 6364136223846793005ull + 1442695040888963407ull;
            u = (uint32_t)(seed >> 32);
        }
        float f;
        uint16_t got;
        memcpy(&f, &u, 4);
        dequant_row_bf16(WEIGHTS_F32, &u, 1, &got);
        if (got != slow_bf16(f)) fail_msg("%08x: %04x, not %04x", u, got, slow_bf16(f));
    }
    uint16_t nan = 0x7f81, copy; /* bf16 is copied: even a signalling NaN stays as it is */
    dequant_row_bf16(WEIGHTS_BF16, &nan, 1, &copy);
    assert_int_equal(copy, nan);
}

/* Rows longer than the tile of the rounding loop, and lengths that are no multiple of it. */
static void test_long_rows(void **state)
{
    (void)state;
    enum { N = 256 * 5 + 32 };
    uint8_t *src = malloc(N / 32 * 20);
    float *f = malloc(N * sizeof *f);
    uint16_t *h = malloc(N * sizeof *h);
    uint64_t seed = 9;
    for (size_t i = 0; i < N / 32 * 20; i++) {
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        src[i] = (uint8_t)(seed >> 56);
        if (i % 20 == 1 || i % 20 == 3) src[i] &= 0x3f;
    }
    dequant_row(WEIGHTS_Q4_1, src, N, f);
    dequant_row_bf16(WEIGHTS_Q4_1, src, N, h);
    for (int i = 0; i < N; i++) assert_int_equal(h[i], slow_bf16(f[i]));
    free(src);
    free(f);
    free(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),     cmocka_unit_test(test_golden),
        cmocka_unit_test(test_f16),       cmocka_unit_test(test_bf16_rounding),
        cmocka_unit_test(test_long_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
