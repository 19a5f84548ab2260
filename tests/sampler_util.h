/* sampler_util.h - what the sampler's tests share: kernels that run here, random rows, slots. */
#ifndef TESTS_SAMPLER_UTIL_H
#define TESTS_SAMPLER_UTIL_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/mem.h"
#include "base/num.h"
#include "base/seed.h"
#include "ops/sample.h"
#include "ops/sampler.h"

/* Kernels of this build that this machine can run; the definition first. */
static inline int util_isas(const char *name[8])
{
    int n = 0;
    name[n++] = "ref";
    if (sample_row_pick("generic")) name[n++] = "generic";
    if (sample_row_pick("neon")) name[n++] = "neon";
#ifdef __x86_64__
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) name[n++] = "avx2";
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw"))
        name[n++] = "avx512";
#endif
    return n;
}

static inline uint64_t util_next(uint64_t *s) { return seed_mix(*s += 0x9E3779B97F4A7C15u); }

static inline double util_unit(uint64_t *s) { return (double)(util_next(s) >> 11) * 0x1p-53; }

static inline int32_t util_below(uint64_t *s, int32_t n)
{
    return (int32_t)(util_next(s) % (uint64_t)n);
}

static inline float util_normal(uint64_t *s)
{
    double a = 0;
    for (int i = 0; i < 12; i++) a += util_unit(s);
    return (float)(a - 6);
}

/* Neutral parameters, greedy. */
static inline ops_slot util_slot(int32_t n_vocab)
{
    return (ops_slot){.top_p = 1, .repetition = 1, .n_top = -1, .n_draw_max = n_vocab};
}

static inline ops_conf util_conf(int32_t lanes, int32_t rows)
{
    return (ops_conf){.n_slot = lanes, .max_lane = lanes, .logit_rows = rows, .n_top = 20};
}

#endif
