/* test_num.c - the numeric functions of base/num.h: accuracy against the wider libm functions, the
 * special cases, and golden digests of the output bits, for every instruction set of this machine.
 * Invariant: the digests below hold for every host, compiler and instruction set.
 *
 * `test_num full` sweeps all 2^32 inputs of the fp32 functions (about two minutes a core). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/digest.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/pool.h"

enum { EXP2F, LOGF, LOG1PF, N_FUN };

typedef void (*sweep_fn)(int fun, const float *restrict x, float *restrict y, int n);

#define SWEEP(name, attr)                                                                          \
    attr static void name(int fun, const float *restrict x, float *restrict y, int n)              \
    {                                                                                              \
        if (fun == EXP2F)                                                                          \
            for (int i = 0; i < n; i++) y[i] = num_exp2f(x[i]);                                    \
        else if (fun == LOGF)                                                                      \
            for (int i = 0; i < n; i++) y[i] = num_logf(x[i]);                                     \
        else                                                                                       \
            for (int i = 0; i < n; i++) y[i] = num_log1pf(x[i]);                                   \
    }

SWEEP(sweep_plain, )
#ifdef __x86_64__
SWEEP(sweep_avx2, __attribute__((target("avx2,fma"))))
SWEEP(sweep_avx512, __attribute__((target("avx512f,avx512vl,avx512dq,avx512bw,fma"))))
#endif

static const char *const fun_name[N_FUN] = {"num_exp2f", "num_logf", "num_log1pf"};
static const double fun_limit[N_FUN] = {0.911, 0.841, 0.850}; /* measured: see num.h */

/* Digests of the outputs: all 2^32 inputs (digest of the 4,096 hexadecimal digests of 2^20 inputs
 * each), and the sample of quick_input. */
static const char *const gold_full[N_FUN] = {"3f21b1f6c40f66b18d716f14b6a09540",
                                             "76a4149ae974123d9ecaab154a2313b3",
                                             "4bd3cf1b30e99d1b7059ff309b484593"};
static const char *const gold_quick[N_FUN] = {"e2aeb280feaab16107d551c3f6f50722",
                                              "977fb299e87cf37d487fe1ae3c8326ea",
                                              "204a3b5231f3278256c9902bf44de466"};
static const char gold_double[] = "47d09c4b8940e94f918d6a628e51bed6";

static int have(int isa)
{
#ifdef __x86_64__
    __builtin_cpu_init();
    if (isa == 1) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (isa == 2)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw");
#endif
    return isa == 0;
}

static sweep_fn sweep_of(int isa)
{
#ifdef __x86_64__
    if (isa == 1) return sweep_avx2;
    if (isa == 2) return sweep_avx512;
#endif
    (void)isa;
    return sweep_plain;
}

static double reference(int fun, double x)
{
    return fun == EXP2F ? exp2(x) : fun == LOGF ? log(x) : log1p(x);
}

/* Distance in units of the last place of the exact result; huge where a special case is wrong. */
static double ulps(float y, double r)
{
    if (isnan(r)) return num_bits_f(y) == 0x7fc00000u ? 0 : 1e30;
    if (isinf(r) || isinf((float)r)) return y == (float)r ? 0 : 1e30;
    if (r == 0) return y == 0 && !signbit(y) == !signbit(r) ? 0 : 1e30;
    int e;
    (void)frexp(r, &e);
    return fabs((double)y - r) / ldexp(1, (e < -125 ? -125 : e) - 24);
}

/* ---- quick: every exponent's ends and a strided sample ----------------------------------------
 */

#define QUICK_EDGE (2 * 256 * 16)
#define QUICK_N    (QUICK_EDGE + (1 << 20))

static float quick_input(uint32_t i)
{
    if (i < QUICK_EDGE) return num_from_f(((i >> 4) << 23) + (i & 15u) - 8u);
    return num_from_f((i - QUICK_EDGE) * 4093u);
}

static void test_quick(void **state)
{
    (void)state;
    float *x = mem_alloc(QUICK_N, sizeof *x, "inputs"), *y = mem_alloc(QUICK_N, sizeof *y, "out");
    assert_non_null(x);
    assert_non_null(y);
    for (uint32_t i = 0; i < QUICK_N; i++) x[i] = quick_input(i);
    int bad = 0;
    for (int isa = 0; isa < 3; isa++) {
        if (!have(isa)) continue;
        for (int f = 0; f < N_FUN; f++) {
            sweep_of(isa)(f, x, y, QUICK_N);
            double worst = 0;
            for (uint32_t i = 0; i < QUICK_N && isa == 0; i++) {
                double u = ulps(y[i], reference(f, x[i]));
                worst = u > worst ? u : worst;
            }
            char hex[33];
            digest_hex(digest_of(y, QUICK_N * sizeof *y), hex);
            if (isa == 0) print_message("%s: %.4f ulp, %s\n", fun_name[f], worst, hex);
            bad += worst > fun_limit[f] || strcmp(hex, gold_quick[f]) != 0;
        }
    }
    mem_free(x);
    mem_free(y);
    assert_int_equal(bad, 0);
}

static void test_special(void **state)
{
    (void)state;
    static const struct {
        int fun;
        uint32_t x, y;
    } row[] = {
        {EXP2F, 0xff800000, 0},
        {EXP2F, 0x7f800000, 0x7f800000},
        {EXP2F, 0x7fc00001, 0x7fc00000},
        {EXP2F, 0xffc00000, 0x7fc00000},
        {EXP2F, 0x7f800001, 0x7fc00000},
        {EXP2F, 0, 0x3f800000},
        {EXP2F, 0x80000000, 0x3f800000},
        {EXP2F, 0x43000000, 0x7f800000}, /* 128 */
        {EXP2F, 0xc2fc0000, 0x00800000}, /* -126 */
        {EXP2F, 0xc2fe0000, 0x00400000}, /* -127 */
        {EXP2F, 0xc3150000, 1},          /* -149 */
        {EXP2F, 0xc3160000, 0},          /* -150: to even */
        {EXP2F, 0xc315ffff, 1},
        {EXP2F, 0x42fe0000, 0x7f000000},
        {LOGF, 0, 0xff800000},
        {LOGF, 0x80000000, 0xff800000},
        {LOGF, 0x7f800000, 0x7f800000},
        {LOGF, 0xff800000, 0x7fc00000},
        {LOGF, 0xbf800000, 0x7fc00000},
        {LOGF, 0x80000001, 0x7fc00000},
        {LOGF, 0xffc00000, 0x7fc00000},
        {LOGF, 0x7fa00000, 0x7fc00000},
        {LOGF, 0x3f800000, 0},
        {LOGF, 1, 0xc2ce8ed0}, /* log 2^-149 */
        {LOG1PF, 0, 0},
        {LOG1PF, 0x80000000, 0x80000000},
        {LOG1PF, 0xbf800000, 0xff800000},
        {LOG1PF, 0xbf800001, 0x7fc00000},
        {LOG1PF, 0x7f800000, 0x7f800000},
        {LOG1PF, 0xff800000, 0x7fc00000},
        {LOG1PF, 0x7fc12345, 0x7fc00000},
        {LOG1PF, 1, 1},
        {LOG1PF, 0x80000001, 0x80000001},
        {LOG1PF, 0xbf7fffff, 0xc1851592}, /* log 2^-24 */
        {LOG1PF, 0xaf000000, 0xaf000000},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        float x = num_from_f(row[i].x), y;
        sweep_plain(row[i].fun, &x, &y, 1);
        if (num_bits_f(y) != row[i].y)
            print_error("%s(%08x) = %08x\n", fun_name[row[i].fun], row[i].x, num_bits_f(y));
        assert_int_equal(num_bits_f(y), row[i].y);
    }
}

/* ---- double, on samples -----------------------------------------------------------------------
 */

static uint64_t next(uint64_t *s)
{
    uint64_t z = *s += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static double unit(uint64_t *s) { return (double)(next(s) >> 11) * 0x1p-53; }

static double ulps_l(double y, long double r)
{
    if (isnan(r)) return num_bits(y) == 0x7ff8000000000000u ? 0 : 1e30;
    double d = (double)r;
    if (isinf(d) || d == 0) return y == d ? 0 : 1e30;
    int e;
    (void)frexp(d, &e);
    return (double)(fabsl((long double)y - r) / ldexpl(1, (e < -1021 ? -1021 : e) - 53));
}

static void worst_of(double *w, double u) { *w = u > *w ? u : *w; }

static double angle(int i, uint64_t *s)
{
    double wide = (unit(s) - 0.5) * 2.6e7,
           near = (double)(next(s) % 1000000) * 0x1.921fb54442d18p+0;
    float pos = (float)(next(s) % 1000001), freq = (float)unit(s);
    switch (i & 7) {
    case 0: return wide;
    case 1: return (unit(s) - 0.5) * 8;
    case 2: return near; /* nearly a multiple of pi/2 */
    case 3: return -near;
    case 4: return (double)(float)near;
    case 5: return (double)(next(s) % 1000001); /* position times frequency 1 */
    default: return (double)pos * (double)freq;
    }
}

static void test_double(void **state)
{
    (void)state;
    if (sizeof(long double) <= sizeof(double)) skip();
    enum { N = 1 << 18 };
    uint64_t s = 12345;
    double worst[4] = {0};
    double *out = mem_alloc(4 * N, sizeof *out, "outputs");
    assert_non_null(out);
    for (int i = 0; i < N; i++) {
        double a = angle(i, &s), e = (unit(&s) - 0.5) * (i & 1 ? 2300 : 4);
        double l = i & 1 ? num_from(next(&s) >> 1) : 0.5 + 2 * unit(&s);
        if (i % 16 == 6) l = num_from(next(&s) >> 12); /* subnormal */
        out[4 * i] = num_exp2(e), out[4 * i + 1] = num_log(l);
        out[4 * i + 2] = num_sin(a), out[4 * i + 3] = num_cos(a);
        worst_of(&worst[0], ulps_l(out[4 * i], exp2l(e)));
        worst_of(&worst[1], ulps_l(out[4 * i + 1], logl(l)));
        worst_of(&worst[2], ulps_l(out[4 * i + 2], sinl(a)));
        worst_of(&worst[3], ulps_l(out[4 * i + 3], cosl(a)));
    }
    char hex[33];
    digest_hex(digest_of(out, 4 * N * sizeof *out), hex);
    print_message("exp2 %.4f log %.4f sin %.4f cos %.4f ulp, %s\n", worst[0], worst[1], worst[2],
                  worst[3], hex);
    mem_free(out);
    for (int k = 0; k < 4; k++) assert_true(worst[k] < 0.95);
    assert_string_equal(hex, gold_double);
    assert_true(num_bits(num_sin(-0.0)) == num_bits(-0.0) && num_cos(-0.0) == 1);
    assert_true(isnan(num_sin(INFINITY)) && isnan(num_cos(1.4e7)) && isnan(num_sin(NAN)));
    assert_true(num_sin(0x1p-1074) == 0x1p-1074 && num_sin(1e-310) == 1e-310);
    assert_true(num_exp2(-INFINITY) == 0 && num_exp2(1024) == INFINITY && num_exp2(INFINITY) > 0);
    assert_true(num_exp2(-1074) == 0x1p-1074 && num_exp2(-1075) == 0 && isnan(num_exp2(NAN)));
    assert_true(num_log(0) == -INFINITY && isnan(num_log(-1)) && num_log(INFINITY) == INFINITY);
    assert_true(num_log(1) == 0 && isnan(num_log(NAN)));
}

/* ---- all inputs -------------------------------------------------------------------------------
 */

#define CHUNK   (1u << 20)
#define N_CHUNK 4096

typedef struct full {
    int fun;
    sweep_fn fn;
    double worst[64];
    uint32_t at[64];
    char hex[N_CHUNK][33];
} full;

static void full_work(void *arg, int worker, int n_worker)
{
    full *w = arg;
    float *x = mem_alloc(CHUNK, sizeof *x, "inputs"), *y = mem_alloc(CHUNK, sizeof *y, "outputs");
    for (uint32_t c = (uint32_t)worker; c < N_CHUNK && x && y; c += (uint32_t)n_worker) {
        for (uint32_t i = 0; i < CHUNK; i++) x[i] = num_from_f(c * CHUNK + i);
        w->fn(w->fun, x, y, CHUNK);
        digest_hex(digest_of(y, CHUNK * sizeof *y), w->hex[c]);
        for (uint32_t i = 0; i < CHUNK; i++) {
            double u = ulps(y[i], reference(w->fun, x[i]));
            if (u > w->worst[worker]) w->worst[worker] = u, w->at[worker] = c * CHUNK + i;
        }
    }
    mem_free(x);
    mem_free(y);
}

static void test_full(void **state)
{
    (void)state;
    pool *p = NULL;
    assert_int_equal(pool_open(&p, 0), CORUN_OK);
    assert_true(pool_size(p) <= 64);
    static full w;
    int bad = 0;
    for (int f = 0; f < N_FUN; f++) {
        memset(&w, 0, sizeof w);
        w.fun = f;
        w.fn = sweep_of(have(2) ? 2 : have(1) ? 1 : 0);
        pool_run(p, full_work, &w);
        double worst = 0;
        uint32_t at = 0;
        for (int i = 0; i < 64; i++)
            if (w.worst[i] > worst) worst = w.worst[i], at = w.at[i];
        char hex[33];
        digest_hex(digest_of(w.hex, sizeof w.hex), hex);
        print_message("%s: all inputs, %.4f ulp at %08x, %s\n", fun_name[f], worst, at, hex);
        bad += worst > fun_limit[f] || strcmp(hex, gold_full[f]) != 0;
    }
    pool_close(p);
    assert_int_equal(bad, 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest quick[] = {cmocka_unit_test(test_special), cmocka_unit_test(test_quick),
                                       cmocka_unit_test(test_double)};
    const struct CMUnitTest all[] = {cmocka_unit_test(test_full)};
    if (argc > 1 && strcmp(argv[1], "full") == 0)
        return cmocka_run_group_tests_name("num_full", all, NULL, NULL);
    return cmocka_run_group_tests_name("num", quick, NULL, NULL);
}
