/* ops_fixture.h - a backend with a schedule for the op tests, random data, and byte comparison.
 * Invariant: all data comes from a counter, so a case is the same wherever it runs. */
#ifndef TESTS_OPS_FIXTURE_H
#define TESTS_OPS_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/pool.h"
#include "ops/ops.h"
#include "ops/ref_cpu.h"
#include "ops/rows.h"

#define UNUSED __attribute__((unused))

static const char *const all_isa[] = {"generic", "avx2", "avx512", "neon"};
#define N_ISA (sizeof all_isa / sizeof *all_isa)

UNUSED static uint32_t mix32(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)((x ^ (x >> 31)) >> 16);
}

typedef enum pattern { RANDOM, INTEGER, ORDER, N_PATTERN } pattern;

/* Random: about normal, deviation `scale`. Integer: sums are exact. Order: 1e8, 1, -1e8, ... */
UNUSED static void fill(uint16_t *out, int64_t n, uint64_t seed, pattern p, float scale)
{
    for (int64_t i = 0; i < n; i++) {
        float f;
        if (p == RANDOM) {
            f = 0;
            for (int k = 0; k < 4; k++)
                f +=
                    (float)(mix32(seed * 1000003u + (uint64_t)i * 4 + (uint64_t)k) >> 8) * 0x1p-24f;
            f = (f - 2.0f) * 1.7f * scale;
        } else if (p == INTEGER) {
            f = (float)((int32_t)(mix32(seed * 77u + (uint64_t)i) % 7) - 3);
        } else {
            static const float v[4] = {1e8f, 1.0f, -1e8f, 0.37f};
            f = v[mix32(seed * 1234567u + (uint64_t)i) % 4];
        }
        out[i] = ops_bf16_round(f);
    }
}

UNUSED static void *must(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size);
    assert_non_null(p);
    return p;
}

typedef struct source {
    const uint16_t *data;
    int64_t n_in;
} source;

UNUSED static corun_status source_read(void *arg, int64_t row, int64_t n, void *out)
{
    const source *s = arg;
    memcpy(out, s->data + row * s->n_in, (size_t)(n * s->n_in) * 2);
    return CORUN_OK;
}

UNUSED static ops_weight *open_weight(ops *o, const uint16_t *data, int64_t n_out, int64_t n_in,
                                      const uint16_t *bias)
{
    source src = {data, n_in};
    ops_weight_spec s = {.name = "w",
                         .dtype = OPS_BF16,
                         .n_out = n_out,
                         .n_in = n_in,
                         .read = source_read,
                         .arg = &src,
                         .bias = bias};
    ops_weight *w = NULL;
    if (o->weight_open(o, &s, &w) != CORUN_OK) fail_msg("%s", err_text());
    return w;
}

UNUSED static void ok(corun_status st)
{
    if (st != CORUN_OK) fail_msg("%s: %s", corun_status_name(st), err_text());
}

/* A step of n tokens of one sequence from position pos, pages 0, 1, ... */
UNUSED static void put_tokens(ops *o, int32_t n, int32_t pos, step_want want)
{
    static int32_t tok[4096], page[4096];
    for (int32_t i = 0; i < 4096; i++) page[i] = i < o->conf.n_page ? i : o->conf.n_page - 1;
    step_row r = {.seq = 0,
                  .slot = STEP_NO_SLOT,
                  .pos = pos,
                  .q_len = n,
                  .page = page,
                  .n_page = (pos + n + o->conf.page_tokens - 1) / o->conf.page_tokens,
                  .want = want};
    step s = {.id = 1, .kind = STEP_PREFILL, .n_row = 1, .row = &r, .n_tok = n, .tok = tok};
    ok(o->step_put(o, &s));
    assert_int_equal(o->n_tok, n);
}

UNUSED static void same_bytes(const void *a, const void *b, size_t n, const char *what, ...)
{
    if (memcmp(a, b, n) == 0) return;
    char t[256];
    va_list ap;
    va_start(ap, what);
    vsnprintf(t, sizeof t, what, ap);
    va_end(ap);
    size_t i = 0, bad = 0;
    while (((const char *)a)[i] == ((const char *)b)[i]) i++;
    for (size_t k = 0; k < n; k++) bad += ((const char *)a)[k] != ((const char *)b)[k];
    fail_msg("%s: byte %zu of %zu differs first, %zu in all", t, i, n, bad);
}

UNUSED static void *alloc_dev(ops *o, size_t bytes)
{
    void *d = NULL;
    ok(o->dev_alloc(o, bytes, &d));
    return d;
}

#endif
