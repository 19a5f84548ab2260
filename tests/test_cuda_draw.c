/* test_cuda_draw.c - sampling on the device against the host sampler, by bytes: the same logits and
 * the same slots give the same tokens, log-probabilities and alternatives, draw after draw. */
#include "cuda_fixture.h"

#ifndef CORUN_CUDA
static void test_absent(void **state)
{
    (void)state;
    skip();
}

int main(void)
{
    const struct CMUnitTest t[] = {cmocka_unit_test(test_absent)};
    return cmocka_run_group_tests_name("cuda: sampling", t, NULL, NULL);
}
#else
#include "ops/cuda/draw.h"
#include "ops/sampler.h"

#include <float.h>

enum { LANES = 24, ROWS = 5, TOP = 20, MAX_LIST = 300 };

typedef struct twin {
    gpu g;
    int32_t v;
    int64_t stride;
    float *dev, *host; /* [ROWS][stride] and [ROWS][v] */
    gpu_sampler *a;
    sampler *b;
} twin;

static void twin_open(twin *t, int32_t v, bool processed)
{
    ops_conf c = {
        .n_slot = LANES, .max_lane = LANES, .logit_rows = ROWS, .n_top = TOP, .n_ctx = 1 << 20};
    c.processed_logprobs = processed;
    *t = (twin){.v = v, .stride = (v + 7) / 8 * 8};
    ok(gpu_open(&t->g, -1));
    ok(gpu_alloc(&t->g, (void **)&t->dev, (size_t)(ROWS * t->stride) * 4, "logits"));
    t->host = must((size_t)(ROWS * v), 4);
    ok(gpu_sampler_open(&t->a, &t->g, v, &c, t->dev, t->stride));
    ok(sampler_open(&t->b, v, &c, NULL, v < 3000 ? "ref" : ops_isa_pick("auto")));
}

static void twin_close(twin *t)
{
    gpu_sampler_close(t->a);
    sampler_close(t->b);
    gpu_free(t->dev);
    gpu_close(&t->g);
    free(t->host);
}

static uint64_t next(uint64_t *s) { return *s = (uint64_t)mix32(*s + 1) << 32 | mix32(*s + 77); }
static int32_t below(uint64_t *s, int32_t n) { return (int32_t)(next(s) % (uint64_t)n); }

static float normal(uint64_t *s)
{
    double a = 0;
    for (int i = 0; i < 12; i++) a += (double)(next(s) >> 11) * 0x1p-53;
    return (float)(a - 6);
}

static void fill_row(float *x, int32_t n, uint64_t *s)
{
    int mode = below(s, 11);
    float scale = mode == 0 ? 0.01f : mode == 1 ? 30.0f : mode == 2 ? 1e38f : 3.0f;
    for (int32_t i = 0; i < n; i++) {
        float f = normal(s) * scale;
        switch (mode) {
        case 3: f = rintf(f); break;
        case 4: f = 1.5f; break;
        case 5: f = i % 2 ? 0.0f : -0.0f; break;
        case 6: f = i == n / 2 ? 60.0f : f; break;
        case 7: f = f * 0x1p-140f; break;
        case 8: f = i % 7 ? -3e38f : 3e38f; break;
        default: break;
        }
        x[i] = f > FLT_MAX ? FLT_MAX : f < -FLT_MAX ? -FLT_MAX : f;
    }
    if (mode == 10) x[below(s, n)] = below(s, 2) ? NAN : -INFINITY;
}

static void fill_rows(twin *t, uint64_t *s)
{
    for (int r = 0; r < ROWS; r++) fill_row(t->host + (int64_t)r * t->v, t->v, s);
    float *wide = must((size_t)(ROWS * t->stride), 4);
    for (int64_t i = 0; i < ROWS * t->stride; i++) wide[i] = NAN; /* what is no id is not read */
    for (int r = 0; r < ROWS; r++)
        memcpy(wide + r * t->stride, t->host + (int64_t)r * t->v, (size_t)t->v * 4);
    ok(gpu_put(&t->g, t->dev, wide, (size_t)(ROWS * t->stride) * 4));
    free(wide);
}

typedef struct lists {
    int32_t end[4], bias_id[MAX_LIST], allowed[MAX_LIST], prompt[MAX_LIST], output[MAX_LIST];
    int32_t bad_id[MAX_LIST], bad_len[MAX_LIST];
    float bias[MAX_LIST];
} lists;

static float pick(uint64_t *s, const float *v, int n) { return v[below(s, n)]; }

static void random_slot(const twin *t, ops_slot *p, lists *l, uint64_t *s)
{
    static const float temp[] = {0, 1, 1, 0.7f, 1e-5f, 1e-4f, 2, 100, 9.9e-6f, 1.3f};
    static const float top_p[] = {1, 1, 1, 0.9f, 0.5f, 0.99999994f, 1e-7f, 0, 1e-38f, 0.999f};
    static const float min_p[] = {0, 0, 0, 0.05f, 0.5f, 1, 1e-30f, 1e-6f};
    static const int32_t top_k[] = {0, 0, 0, 1, 2, 20, 50, 700, 1 << 30};
    static const float rep[] = {1, 1, 1, 1.1f, 0.5f, 1.05f, 1e6f, 1e-6f};
    static const float pen[] = {0, 0, 0, 0.5f, -2, 2, 0.1f};
    int32_t v = t->v;
    *p = (ops_slot){.seed = next(s) >> below(s, 60),
                    .temperature = pick(s, temp, 10),
                    .top_p = pick(s, top_p, 10),
                    .min_p = pick(s, min_p, 8),
                    .repetition = pick(s, rep, 8),
                    .presence = pick(s, pen, 7),
                    .frequency = pick(s, pen, 7),
                    .top_k = top_k[below(s, 9)],
                    .n_top = below(s, 3) ? below(s, TOP + 2) - 1 : -1,
                    .n_draw_max = below(s, 4) ? v : 1 + below(s, v)};
    if (below(s, 3) == 0) { /* plain, as most requests are */
        *p = (ops_slot){.seed = next(s),
                        .temperature = 1,
                        .top_p = 1,
                        .repetition = 1,
                        .n_top = 3,
                        .n_draw_max = v};
        return;
    }
    p->min_tokens = below(s, 4);
    p->end_id = l->end, p->n_end = below(s, 4);
    for (int i = 0; i < 4; i++) l->end[i] = below(s, v);
    p->bias_id = l->bias_id, p->bias = l->bias, p->n_bias = below(s, 2) ? 0 : below(s, MAX_LIST);
    p->prompt = l->prompt, p->n_prompt = below(s, MAX_LIST);
    p->output = l->output, p->n_output = below(s, 2) ? 0 : below(s, 100);
    p->allowed = l->allowed, p->n_allowed = below(s, 4) ? 0 : below(s, 40);
    for (int i = 0; i < MAX_LIST; i++) {
        l->bias_id[i] = below(s, v);
        l->bias[i] = below(s, 9) ? normal(s) * 20 : 0.0f;
        l->prompt[i] = below(s, v);
        l->output[i] = below(s, v < 6 ? v : 6); /* so that bad words are met */
        l->allowed[i] = below(s, v);
    }
    p->bad_id = l->bad_id, p->bad_len = l->bad_len, p->n_bad = below(s, 2) ? 0 : below(s, 60);
    for (int i = 0; i < MAX_LIST; i++) l->bad_id[i] = below(s, v < 6 ? v : 6);
    for (int i = 0; i < p->n_bad; i++) l->bad_len[i] = 1 + below(s, 4);
}

static void same_draw(const ops_draw *a, const ops_draw *b, const char *what, int32_t v, int lane)
{
    bool same = a->token == b->token && !a->why == !b->why && (!a->why || !strcmp(a->why, b->why));
    same &= memcmp(&a->logprob, &b->logprob, 4) == 0 && a->n_top == b->n_top;
    if (same && a->n_top > 0)
        same = memcmp(a->top_id, b->top_id, (size_t)a->n_top * 4) == 0 &&
               memcmp(a->top_logprob, b->top_logprob, (size_t)a->n_top * 4) == 0;
    if (!same)
        fail_msg("%s, %d ids, lane %d: token %d (%s) logprob %.9g, %d alternatives; host %d (%s) "
                 "%.9g, %d",
                 what, v, lane, a->token, a->why ? a->why : "ok", (double)a->logprob, a->n_top,
                 b->token, b->why ? b->why : "ok", (double)b->logprob, b->n_top);
}

static void draws(twin *t, uint64_t seed, int turns)
{
    uint64_t s = seed;
    ops_slot p[LANES];
    lists *l = must(LANES, sizeof *l);
    for (int turn = 0; turn < turns; turn++) {
        int32_t row[LANES], slot[LANES], pos[LANES];
        for (int i = 0; i < LANES; i++) {
            if (turn % 4 == 0 || below(&s, 5) == 0) {
                random_slot(t, &p[i], &l[i], &s);
                ok(gpu_sampler_slot_put(t->a, i, &p[i]));
                ok(sampler_slot_put(t->b, i, &p[i]));
            }
            slot[i] = i;
        }
        for (int i = LANES - 1; i > 0; i--) { /* lanes in any order */
            int k = below(&s, i + 1), x = slot[i];
            slot[i] = slot[k], slot[k] = x;
        }
        for (int i = 0; i < LANES; i++) {
            row[i] = below(&s, ROWS + 1) - 1;
            pos[i] = below(&s, 1 << 20);
        }
        fill_rows(t, &s);
        int n = 1 + below(&s, LANES);
        ok(gpu_sampler_sample(t->a, n, row, slot, pos));
        ok(sampler_sample(t->b, t->host, ROWS, n, row, slot, pos));
        for (int i = 0; i < n; i++) {
            ops_draw a, b;
            if (row[i] < 0) continue;
            ok(gpu_sampler_draw_get(t->a, 0, i, &a));
            ok(sampler_draw_get(t->b, 0, i, &b));
            same_draw(&a, &b, "draw", t->v, i);
        }
        int32_t target[ROWS], top = below(&s, TOP + 2) - 1;
        for (int i = 0; i < ROWS; i++) target[i] = below(&s, t->v + 1) - 1;
        ok(gpu_sampler_score(t->a, ROWS, target, top));
        ok(sampler_score(t->b, t->host, ROWS, target, top));
        for (int i = 0; i < ROWS; i++) {
            ops_draw a, b;
            ok(gpu_sampler_score_get(t->a, i, &a));
            ok(sampler_score_get(t->b, i, &b));
            same_draw(&a, &b, "score", t->v, i);
        }
    }
    free(l);
}

static void test_draws(void **state)
{
    (void)state;
    NEED_CUDA();
    static const int32_t v[] = {1, 2, 31, 127, 128, 129, 300, 1000, 2999, 49152, 151936, 262145};
    bool brief = getenv("CORUN_TEST_SHORT") != NULL;
    for (size_t i = 0; i < sizeof v / sizeof *v && !(brief && v[i] > 2999); i++)
        for (int processed = 0; processed < 2; processed++) {
            twin t;
            twin_open(&t, v[i], processed);
            draws(&t, 1000 + i * 2 + (size_t)processed, brief ? 4 : v[i] < 3000 ? 60 : 8);
            twin_close(&t);
        }
}

/* The frequencies of a row of four ids, so that equal faults on both sides would show too. */
static void test_frequencies(void **state)
{
    (void)state;
    NEED_CUDA();
    twin t;
    twin_open(&t, 4, false);
    static const float x[4] = {0, 0.6931472f, 1.3862944f, -20};
    float rows[ROWS * 8] = {0};
    memcpy(rows, x, sizeof x);
    ok(gpu_put(&t.g, t.dev, rows, sizeof rows));
    int32_t n[4] = {0}, row[1] = {0}, slot[1] = {0};
    int32_t draws_made = getenv("CORUN_TEST_SHORT") ? 20 : 2000;
    const ops_slot p = {
        .seed = 5, .temperature = 1, .top_p = 1, .repetition = 1, .n_top = -1, .n_draw_max = 4};
    static int32_t drawn[2000];
    for (int32_t i = 0; i < draws_made; i++) {
        ops_draw d;
        if (i == 0) ok(gpu_sampler_slot_put(t.a, 0, &p));
        ok(gpu_sampler_sample(t.a, 1, row, slot, &i));
        ok(gpu_sampler_draw_get(t.a, 0, 0, &d));
        n[d.token]++;
        drawn[i] = d.token;
    }
    /* Once more, each draw read when the next one was asked for, and the slot put in between. */
    for (int32_t i = 0; i < draws_made; i++) {
        ops_draw d;
        ok(gpu_sampler_slot_put(t.a, 0, &p));
        ok(gpu_sampler_sample(t.a, 1, row, slot, &i));
        if (i == 0) continue;
        ok(gpu_sampler_draw_get(t.a, 1, 0, &d));
        assert_int_equal(d.token, drawn[i - 1]);
    }
    twin_close(&t);
    if (draws_made < 2000) return;
    assert_in_range(n[0], 220, 350); /* one in seven, two, four */
    assert_in_range(n[1], 500, 645);
    assert_in_range(n[2], 1070, 1215);
    assert_int_equal(n[3], 0);
}

static void test_bad_input(void **state)
{
    (void)state;
    NEED_CUDA();
    twin t;
    twin_open(&t, 100, false);
    ops_slot p = {.top_p = 1, .repetition = 1, .n_top = -1, .n_draw_max = 100};
    ops_draw d;
    int32_t row[2] = {0, 0}, slot[2] = {0, 0}, pos[2] = {1, 1};
    assert_int_equal(gpu_sampler_sample(t.a, 1, row, slot, pos), CORUN_EINVAL); /* never put */
    assert_int_equal(gpu_sampler_slot_put(t.a, LANES, &p), CORUN_EINVAL);
    ok(gpu_sampler_slot_put(t.a, 0, &p));
    assert_int_equal(gpu_sampler_sample(t.a, 2, row, slot, pos), CORUN_EINVAL); /* one slot twice */
    assert_int_equal(gpu_sampler_sample(t.a, LANES + 1, row, slot, pos), CORUN_EINVAL);
    row[0] = ROWS;
    assert_int_equal(gpu_sampler_sample(t.a, 1, row, slot, pos), CORUN_EINVAL);
    p.temperature = -1;
    assert_int_equal(gpu_sampler_slot_put(t.a, 0, &p), CORUN_EINVAL);
    row[0] = 0;
    assert_int_equal(gpu_sampler_sample(t.a, 1, row, slot, pos),
                     CORUN_EINVAL); /* it is undefined */
    int32_t target[1] = {100};
    assert_int_equal(gpu_sampler_score(t.a, 1, target, 0), CORUN_EINVAL);
    assert_int_equal(gpu_sampler_draw_get(t.a, 0, -1, &d), CORUN_EINVAL);
    assert_int_equal(gpu_sampler_draw_get(t.a, 2, 0, &d), CORUN_EINVAL);
    twin_close(&t);
}

int main(void)
{
    const struct CMUnitTest t[] = {
        cmocka_unit_test(test_draws),
        cmocka_unit_test(test_frequencies),
        cmocka_unit_test(test_bad_input),
    };
    return cmocka_run_group_tests_name("cuda: sampling", t, NULL, NULL);
}
#endif
