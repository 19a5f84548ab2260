/* test_sampler.c - what the sampler must do, case by case: ties, ends of the filters, temperatures
 * near zero, bad logits, penalties, masks, seeds, statistics, errors.
 * Invariant: every case runs with each kernel of this machine, so each sees the same answers. */
#include "sampler_util.h"

#include "base/philox.h"

static const char *isas[8];
static int n_isas;

/* A sampler of one slot and one row over given logits. */
typedef struct one {
    sampler *s;
    int32_t v;
} one;

static one open_one(const char *isa, int32_t v, bool processed)
{
    one o = {.v = v};
    ops_conf c = util_conf(2, 4);
    c.processed_logprobs = processed;
    assert_int_equal(sampler_open(&o.s, v, &c, NULL, isa), CORUN_OK);
    return o;
}

static ops_draw draw_at(one *o, const float *logits, int32_t pos)
{
    int32_t row = 0, slot = 0;
    ops_draw d;
    assert_int_equal(sampler_sample(o->s, logits, 1, 1, &row, &slot, &pos), CORUN_OK);
    assert_int_equal(sampler_draw_get(o->s, 0, 0, &d), CORUN_OK);
    return d;
}

static ops_draw draw(one *o, const float *logits, const ops_slot *p)
{
    assert_int_equal(sampler_slot_put(o->s, 0, p), CORUN_OK);
    return draw_at(o, logits, 9);
}

/* The draws of the last two calls are kept. */
static void test_two_calls(void **state)
{
    (void)state;
    one o = open_one("ref", 64, false);
    float x[64];
    for (int i = 0; i < 64; i++) x[i] = 0.01f * (float)i;
    const ops_slot p = {
        .seed = 3, .temperature = 1, .top_p = 1, .repetition = 1, .n_top = 3, .n_draw_max = 64};
    assert_int_equal(sampler_slot_put(o.s, 0, &p), CORUN_OK);
    int32_t differ = 0;
    for (int32_t pos = 0; pos < 20; pos++) {
        ops_draw first = draw_at(&o, x, 2 * pos), again;
        int32_t top = first.top_id[2];
        x[pos] += 5; /* other alternatives */
        ops_draw second = draw_at(&o, x, 2 * pos + 1);
        assert_int_equal(sampler_draw_get(o.s, 1, 0, &again), CORUN_OK);
        assert_int_equal(again.token, first.token);
        assert_memory_equal(&again.logprob, &first.logprob, sizeof first.logprob);
        assert_int_equal(again.top_id[2], top);
        differ += again.token != second.token;
    }
    assert_true(differ > 10);
    sampler_close(o.s);
}

/* How often each of the first 32 ids is drawn over seeds 0 ... n - 1 (others: the last counter). */
static void histogram(one *o, const float *logits, ops_slot p, int n, int32_t count[33])
{
    memset(count, 0, 33 * sizeof *count);
    for (int i = 0; i < n; i++) {
        p.seed = (uint64_t)i;
        int32_t t = draw(o, logits, &p).token;
        assert_true(t >= 0 && t < o->v);
        count[t < 32 ? t : 32]++;
    }
}

static void test_philox(void **state)
{
    (void)state;
    static const struct {
        uint32_t c[4], k[2], want[4];
    } kat[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (int i = 0; i < 3; i++) {
        uint32_t c[4];
        memcpy(c, kat[i].c, sizeof c);
        philox4x32(c, kat[i].k[0], kat[i].k[1]);
        assert_memory_equal(c, kat[i].want, sizeof c);
    }
}

static void test_seeds(void **state)
{
    (void)state;
    assert_true(seed_sample(42, 0) == 42 && seed_sample(UINT64_MAX, 0) == UINT64_MAX);
    assert_true(seed_sample(42, 1) == 6679422623415661u && seed_sample(42, 2) == 1440344771546334u);
    assert_true(seed_sample(0, 1) == 7956156453446585u &&
                seed_sample(UINT64_MAX, 127) == 6837763711390892u);
    for (int i = 1; i < 128; i++) {
        assert_true(seed_sample(7, i) < (uint64_t)1 << 53);
        for (int j = 0; j < i; j++) assert_true(seed_sample(7, i) != seed_sample(7, j));
    }
}

/* SMP-1: ties, and every way to switch top-k off. */
static void ties(const char *isa)
{
    enum { V = 512 };
    float x[V] = {0};
    int32_t n[33];
    one o = open_one(isa, V, false);
    ops_slot p = util_slot(V);
    x[5] = x[256] = 7;
    assert_int_equal(draw(&o, x, &p).token, 5);
    p.temperature = 1;
    p.top_k = 1; /* the border's ties stay: 5 and 256, about half each */
    histogram(&o, x, p, 1000, n);
    assert_int_equal(n[5] + n[32], 1000);
    assert_true(n[5] > 430 && n[5] < 570);
    for (int i = 0; i < 200; i++) {
        static const int32_t off[] = {512, 513, 1000000000, INT32_MAX};
        p.seed = (uint64_t)i;
        p.top_k = 0;
        int32_t t = draw(&o, x, &p).token;
        for (int k = 0; k < 4; k++) {
            p.top_k = off[k];
            assert_int_equal(draw(&o, x, &p).token, t);
        }
    }
    x[1] = x[2] = x[3] = 6; /* a tie at the border of top_k 3: all five stay, nothing else */
    p.top_k = 3;
    histogram(&o, x, p, 2000, n);
    assert_true(n[1] && n[2] && n[3] && n[5] && n[32]);
    assert_int_equal(n[1] + n[2] + n[3] + n[5] + n[32], 2000);
    p = util_slot(V);
    memset(x, 0, sizeof x);
    assert_int_equal(draw(&o, x, &p).token, 0); /* all equal */
    x[V - 1] = 1;
    assert_int_equal(draw(&o, x, &p).token, V - 1);
    x[V - 1] = 0, x[127] = x[128] = 2; /* across blocks */
    assert_int_equal(draw(&o, x, &p).token, 127);
    for (int i = 0; i < V; i++) x[i] = i < 300 ? -0.0f : 0.0f; /* equal, whatever the sign */
    assert_int_equal(draw(&o, x, &p).token, 0);
    sampler_close(o.s);
}

/* With this seed and position ids 0 and 128 draw noise that gives one score, 129 a lower one. */
static void score_ties(const char *isa)
{
    static const int32_t allowed[] = {129, 128, 0};
    float x[256] = {0};
    one o = open_one(isa, 256, false);
    ops_slot p = util_slot(256);
    p.allowed = allowed, p.n_allowed = 3;
    p.seed = 92071333, p.temperature = 1;
    for (int i = 0; i < 4; i++) {
        x[129] = i & 1 ? 1e-7f : 0; /* the largest logit in the first or the second block */
        p.top_k = i & 2 ? 3 : 0;
        assert_int_equal(draw(&o, x, &p).token, 0);
        p.n_allowed = 2;
        assert_int_equal(draw(&o, x, &p).token, 128);
        p.n_allowed = 3;
    }
    sampler_close(o.s);
}

/* With this seed and position the word of id 1 is 1: v = 1.5 * 2^-32, -log(e) = 21.775; that of
 * id 0 is 0x3897dbb9: -log(e) = 1.387. So id 1 wins while it lies less than 20.388 below. */
static void test_noise(void **state)
{
    (void)state;
    for (int k = 0; k < n_isas; k++) {
        one o = open_one(isas[k], 2, false);
        ops_slot p = util_slot(2);
        p.seed = 1069071570, p.temperature = 1;
        assert_int_equal(draw(&o, (float[]){0, -20.38f}, &p).token, 1);
        assert_int_equal(draw(&o, (float[]){0, -20.40f}, &p).token, 0);
        p.temperature = 0.5f;
        assert_int_equal(draw(&o, (float[]){0, -10.19f}, &p).token, 1);
        assert_int_equal(draw(&o, (float[]){0, -10.20f}, &p).token, 0);
        sampler_close(o.s);
    }
}

static void test_ties(void **state)
{
    (void)state;
    for (int k = 0; k < n_isas; k++) {
        ties(isas[k]);
        score_ties(isas[k]);
    }
}

/* SMP-2: top-p at its ends. */
static void nucleus(const char *isa)
{
    static const struct {
        float p;
        int kept;
    } row[] = {{0.6f, 2},  {0.85f, 3}, {0.4f, 1},        {0.49f, 1},         {0.51f, 2},
               {0.94f, 3}, {0.96f, 4}, {1e-8f, 1},       {1e-38f, 1},        {1e-45f, 1},
               {1, 4},     {0, 1},     {0.99999999f, 4}, {0x1.fffffep-1f, 4}};
    float x[4] = {logf(0.5f), logf(0.3f), logf(0.15f), logf(0.05f)};
    int32_t n[33];
    one o = open_one(isa, 4, false);
    ops_slot p = util_slot(4);
    p.temperature = 1;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        p.top_p = row[i].p;
        histogram(&o, x, p, 400, n);
        for (int t = 0; t < 4; t++) assert_true((n[t] > 0) == (t < row[i].kept));
    }
    sampler_close(o.s);
    enum { V = 4096 };
    float *y = mem_alloc(V, 4, "logits");
    assert_non_null(y);
    for (int i = 0; i < V; i++) y[i] = 1 + (float)(i * 1237 % V) * 1e-6f;
    int32_t best = 0;
    for (int i = 0; i < V; i++) best = y[i] > y[best] ? i : best;
    o = open_one(isa, V, false);
    p = util_slot(V);
    p.temperature = 1;
    for (int i = 0; i < 50; i++) {
        p.top_p = 1e-7f;
        p.seed = (uint64_t)i;
        assert_int_equal(draw(&o, y, &p).token, best);
        p.top_p = 1;
        int32_t all = draw(&o, y, &p).token;
        p.top_p = 0.99999999f; /* as fp32 this is 1 */
        assert_int_equal(draw(&o, y, &p).token, all);
    }
    mem_free(y);
    sampler_close(o.s);
}

static void test_nucleus(void **state)
{
    (void)state;
    for (int k = 0; k < n_isas; k++) nucleus(isas[k]);
}

static void test_min_p(void **state)
{
    (void)state;
    static const struct {
        float min_p;
        int kept;
    } row[] = {{0, 4}, {0.05f, 4}, {0.11f, 3}, {0.29f, 3}, {0.31f, 2}, {0.61f, 1}, {1, 1}};
    float x[4] = {logf(0.5f), logf(0.3f), logf(0.15f), logf(0.05f)};
    int32_t n[33];
    for (int k = 0; k < n_isas; k++) {
        one o = open_one(isas[k], 4, false);
        ops_slot p = util_slot(4);
        p.temperature = 1;
        for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
            p.min_p = row[i].min_p;
            histogram(&o, x, p, 400, n);
            for (int t = 0; t < 4; t++) assert_true((n[t] > 0) == (t < row[i].kept));
        }
        sampler_close(o.s);
    }
}

/* top_p counts over what top_k and min_p left: of .5 .3 .15 .05 with top_k 2 the second id is
 * kept from p = .625 on. */
static void test_filters_together(void **state)
{
    (void)state;
    float x[4] = {logf(0.5f), logf(0.3f), logf(0.15f), logf(0.05f)};
    int32_t n[33];
    for (int k = 0; k < n_isas; k++) {
        one o = open_one(isas[k], 4, false);
        ops_slot p = util_slot(4);
        p.temperature = 1;
        for (int by = 0; by < 3; by++) {
            p.top_k = by == 1 ? 0 : 2;
            p.min_p = by == 0 ? 0 : 0.5f;
            p.top_p = 0.62f;
            histogram(&o, x, p, 400, n);
            assert_int_equal(n[0], 400);
            p.top_p = 0.63f;
            histogram(&o, x, p, 400, n);
            assert_true(n[1] > 0 && n[2] + n[3] == 0);
        }
        sampler_close(o.s);
    }
}

/* SMP-4: very small temperatures and huge logits. */
static void cold(const char *isa)
{
    float x[4] = {2.9f, 11.0625f, -2.4f, 50}, y[3] = {-3e38f, 3e38f, 1};
    static const int32_t allowed[] = {0, 1, 2};
    static const float temp[] = {1e-4f, 1e-5f, 9.9e-6f, 1e-30f, 1e-45f, 0};
    one o = open_one(isa, 4, false), q = open_one(isa, 3, false), r = open_one(isa, 4, true);
    ops_slot p = util_slot(4), u = util_slot(3);
    p.allowed = allowed, p.n_allowed = 3, p.n_top = 4, u.n_top = 3;
    ops_draw d;
    float raw = 0, proc = 0;
    for (int i = 5; i >= 0; i--)
        for (int seed = 0; seed < 300; seed++) {
            p.temperature = u.temperature = temp[i];
            p.seed = u.seed = (uint64_t)seed;
            d = draw(&o, x, &p);
            assert_int_equal(d.token, 1);
            assert_true(isfinite(d.logprob) && d.n_top == 4 && d.top_id[0] == 3);
            if (i == 5 && seed == 0) raw = d.logprob;
            assert_int_equal(num_bits_f(d.logprob), num_bits_f(raw)); /* raw: t plays no part */
            d = draw(&r, x, &p);
            assert_int_equal(d.token, 1);
            assert_int_equal(d.n_top, 3); /* a masked id is never listed */
            if (i == 5 && seed == 0) proc = d.logprob;
            if (i >= 2) assert_int_equal(num_bits_f(d.logprob), num_bits_f(proc));
            d = draw(&q, y, &u);
            assert_int_equal(d.token, 1);
            assert_true(d.logprob == 0);
        }
    sampler_close(o.s);
    sampler_close(q.s);
    sampler_close(r.s);
}

static void test_cold(void **state)
{
    (void)state;
    for (int k = 0; k < n_isas; k++) cold(isas[k]);
}

/* SMP-7: logits that are no numbers fail their lane and no other. */
static void bad_logits(const char *isa)
{
    enum { V = 300 };
    static const int32_t at[] = {0, 150, 299, -1};
    float x[2 * V];
    uint64_t s = 3;
    sampler *m;
    ops_conf c = util_conf(2, 2);
    assert_int_equal(sampler_open(&m, V, &c, NULL, isa), CORUN_OK);
    int32_t row[2] = {0, 1}, slot[2] = {0, 1}, pos[2] = {5, 6};
    for (int kind = 0; kind < 3; kind++)
        for (int a = 0; a < 4; a++)
            for (int t = 0; t < 2; t++) {
                float bad = kind == 0 ? NAN : kind == 1 ? INFINITY : -INFINITY;
                ops_slot p = util_slot(V);
                p.temperature = (float)t, p.n_top = 2, p.top_k = 3 * t;
                ops_draw d[2], want;
                for (int i = 0; i < 2 * V; i++) x[i] = util_normal(&s);
                for (int i = 0; i < 2; i++) sampler_slot_put(m, i, &p);
                sampler_sample(m, x, 2, 2, row, slot, pos);
                sampler_draw_get(m, 0, 1, &want);
                int32_t top = want.top_id[0];
                for (int i = 0; i < V; i++)
                    if (at[a] < 0 || i == at[a] || (kind == 1 && i == 7)) x[i] = bad;
                p.output = (int32_t[]){5}, p.n_output = 1;
                for (int i = 0; i < 2; i++) sampler_slot_put(m, i, &p);
                assert_int_equal(sampler_last_token(m, 0), 5);
                assert_int_equal(sampler_sample(m, x, 2, 2, row, slot, pos), CORUN_OK);
                for (int i = 0; i < 2; i++) sampler_draw_get(m, 0, i, &d[i]);
                assert_int_equal(d[0].token, -1);
                assert_int_equal(d[0].n_top, 0);
                assert_string_equal(d[0].why, "non-finite logits");
                assert_int_equal(sampler_last_token(m, 0), 0);
                assert_null(d[1].why);
                assert_int_equal(d[1].token, want.token);
                assert_int_equal(d[1].top_id[0], top);
                assert_int_equal(num_bits_f(d[1].logprob), num_bits_f(want.logprob));
                int32_t target[2] = {1, 1};
                assert_int_equal(sampler_score(m, x, 2, target, 1), CORUN_OK);
                for (int i = 0; i < 2; i++) sampler_score_get(m, i, &d[i]);
                assert_true(d[0].token == -1 && d[0].why && d[1].token == 1 && !d[1].why);
            }
    sampler_close(m);
}

static void test_bad_logits(void **state)
{
    (void)state;
    for (int k = 0; k < n_isas; k++) bad_logits(isas[k]);
}

static void test_rows_without_token(void **state)
{
    (void)state;
    enum { V = 400 };
    float x[V] = {0};
    static const int32_t bias_id[] = {390, 399};
    static const float bias[] = {100, 100};
    for (int k = 0; k < n_isas; k++) {
        one o = open_one(isas[k], V, false);
        ops_slot p = util_slot(V);
        p.n_draw_max = 390;
        p.bias_id = bias_id, p.bias = bias, p.n_bias = 2;
        for (int i = 0; i < 300; i++) {
            p.seed = (uint64_t)i;
            p.temperature = (float)(i % 3);
            assert_true(draw(&o, x, &p).token < 390);
        }
        p.n_draw_max = V; /* and where they are allowed, the bias works */
        p.temperature = 0;
        assert_int_equal(draw(&o, x, &p).token, 390);
        sampler_close(o.s);
    }
}

/* Pearson's statistic of draws over `pos` or seeds against exact probabilities. */
static double pearson(const int32_t *got, const double *p, int n, int total)
{
    double x = 0;
    for (int i = 0; i < n; i++) {
        double e = p[i] * total;
        if (p[i] > 0) x += (got[i] - e) * (got[i] - e) / e;
    }
    return x;
}

static void test_frequencies(void **state)
{
    (void)state;
    enum { V = 12, N = 40000 };
    float x[V];
    for (int i = 0; i < V; i++) x[i] = 0.3f * (float)(i * 5 % V);
    one o = open_one(isas[n_isas - 1], V, false);
    ops_slot p = util_slot(V);
    for (int mode = 0; mode < 4; mode++) {
        p.temperature = mode == 1 ? 0.6f : 1;
        p.top_k = mode == 2 ? 4 : 0;
        double q[V], z = 0;
        for (int i = 0; i < V; i++) {
            q[i] = mode == 2 && x[i] < 0.3f * 7.9f ? 0 : exp((double)x[i] / (double)p.temperature);
            z += q[i];
        }
        for (int i = 0; i < V; i++) q[i] /= z;
        int32_t n[V] = {0};
        p.seed = 77;
        sampler_slot_put(o.s, 0, &p);
        for (int i = 0; i < N; i++) {
            if (mode != 3) { /* over seeds; mode 3: over positions of one seed */
                p.seed = (uint64_t)i * 3 + 1;
                sampler_slot_put(o.s, 0, &p);
            }
            n[draw_at(&o, x, mode == 3 ? i : 9).token]++;
        }
        for (int i = 0; i < V; i++) assert_true(q[i] > 0 || n[i] == 0);
        double stat = pearson(n, q, V, N);
        print_message("draws against probabilities, mode %d: %.1f\n", mode, stat);
        assert_true(stat < 33.1); /* 11 degrees of freedom: exceeded once in 2,000 */
    }
    sampler_close(o.s);
}

/* The processed log-probabilities of one row equal the raw ones of a row changed by hand. */
static void same_as(const char *isa, const float *x, const ops_slot *p, const float *want)
{
    enum { V = 5 };
    one a = open_one(isa, V, true), b = open_one(isa, V, false);
    ops_slot q = *p, r = util_slot(V);
    q.n_top = r.n_top = V;
    ops_draw d = draw(&a, x, &q), e = draw(&b, want, &r);
    assert_int_equal(d.token, e.token);
    assert_int_equal(num_bits_f(d.logprob), num_bits_f(e.logprob));
    assert_int_equal(d.n_top, e.n_top);
    assert_memory_equal(d.top_id, e.top_id, V * 4);
    assert_memory_equal(d.top_logprob, e.top_logprob, V * 4);
    sampler_close(a.s);
    sampler_close(b.s);
}

static void test_penalties(void **state)
{
    (void)state;
    static const int32_t prompt[] = {0, 1, 1}, out[] = {3, 3, 2}, bias_id[] = {1, 4};
    static const float bias[] = {3, -0.5f};
    float x[5] = {2, -1, 0.5f, 1, 0};
    for (int k = 0; k < n_isas; k++) {
        ops_slot p = util_slot(5);
        p.prompt = prompt, p.n_prompt = 3;
        p.output = out, p.n_output = 3;
        same_as(isas[k], x, &p, x);
        p.repetition = 2; /* once for each id of prompt and output, whatever the count */
        same_as(isas[k], x, &p, (float[]){1, -2, 0.25f, 0.5f, 0});
        p.repetition = 0.5f;
        same_as(isas[k], x, &p, (float[]){4, -0.5f, 1, 2, 0});
        p.repetition = 1, p.frequency = 0.25f; /* by count, output only */
        same_as(isas[k], x, &p, (float[]){2, -1, 0.25f, 0.5f, 0});
        p.frequency = 0, p.presence = -1;
        same_as(isas[k], x, &p, (float[]){2, -1, 1.5f, 2, 0});
        p.repetition = 2, p.frequency = 0.25f, p.presence = 0.125f;
        p.bias_id = bias_id, p.bias = bias, p.n_bias = 2; /* bias first, then the penalties */
        same_as(isas[k], x, &p, (float[]){1, 1, -0.125f, -0.125f, -0.5f});
        p = util_slot(5); /* a penalty that overflows leaves finite values */
        p.prompt = prompt, p.n_prompt = 3, p.repetition = 1e-6f;
        one o = open_one(isas[k], 5, true);
        float huge[5] = {3e38f, 1, 2, 3, 2e38f};
        p.n_top = 5;
        ops_draw d = draw(&o, huge, &p);
        assert_true(d.token == 0 && d.logprob == 0);
        sampler_close(o.s);
    }
}

/* Draws n tokens greedily from the same row and compares. */
static void walk(one *o, const float *x, const ops_slot *p, const int32_t *want, int n)
{
    assert_int_equal(sampler_slot_put(o->s, 0, p), CORUN_OK);
    for (int i = 0; i < n; i++) assert_int_equal(draw_at(o, x, 20 + i).token, want[i]);
}

static void test_masks(void **state)
{
    (void)state;
    float x[6] = {5, 4, 3, 2, 1, 0};
    static const int32_t end[] = {0, 1, 0}, allowed[] = {4, 2, 4};
    static const int32_t bad_id[] = {0, 1, 2, 1, 1, 1}, bad_len[] = {1, 2, 3};
    for (int k = 0; k < n_isas; k++) {
        one o = open_one(isas[k], 6, false);
        ops_slot p = util_slot(6);
        p.end_id = end, p.n_end = 3, p.min_tokens = 2;
        walk(&o, x, &p, (int32_t[]){2, 2, 0, 0}, 4);
        p.output = allowed, p.n_output = 1; /* one of them is drawn already */
        walk(&o, x, &p, (int32_t[]){2, 0}, 2);
        p = util_slot(6);
        p.allowed = allowed, p.n_allowed = 3;
        walk(&o, x, &p, (int32_t[]){2, 2}, 2);
        /* bad words [0], [1 2], [1 1 1]: 0 never; 1 1, then not 1 (nor 2), so 3 */
        p = util_slot(6);
        p.bad_id = bad_id, p.bad_len = bad_len, p.n_bad = 3;
        walk(&o, x, &p, (int32_t[]){1, 1, 3, 1, 1, 3}, 6);
        p.output = (int32_t[]){5, 1, 1}, p.n_output = 3; /* what came before counts */
        walk(&o, x, &p, (int32_t[]){3, 1}, 2);
        p.prompt = (int32_t[]){1, 1}, p.n_prompt = 2, p.n_output = 0; /* the prompt does not */
        walk(&o, x, &p, (int32_t[]){1, 1, 3}, 3);
        p = util_slot(6); /* nothing left */
        p.allowed = allowed, p.n_allowed = 1;
        p.bad_id = allowed, p.bad_len = bad_len, p.n_bad = 1, p.n_top = 3;
        ops_draw d = draw(&o, x, &p);
        assert_int_equal(d.token, -1);
        assert_string_equal(d.why, "no token may be drawn");
        assert_int_equal(sampler_last_token(o.s, 0), 0);
        sampler_close(o.s);
    }
}

static void test_long_bad_word(void **state)
{
    (void)state;
    int32_t word[OPS_MAX_BAD_LEN], len = OPS_MAX_BAD_LEN, out[200];
    float x[4] = {3, 2, 1, 0};
    for (int i = 0; i < OPS_MAX_BAD_LEN; i++) word[i] = i % 2;
    one o = open_one(isas[n_isas - 1], 4, false);
    ops_slot p = util_slot(4);
    p.bad_id = word, p.bad_len = &len, p.n_bad = 1;
    for (int i = 0; i < 200; i++) out[i] = (i + 1) % 2; /* ... 1 0 1 0: 1 would complete it */
    x[1] = 9;
    p.output = out, p.n_output = 199 + 1;
    assert_int_equal(draw(&o, x, &p).token, 0);
    p.n_output = 62; /* too short */
    out[61] = 0;
    assert_int_equal(draw(&o, x, &p).token, 1);
    sampler_close(o.s);
}

static void test_logprobs(void **state)
{
    (void)state;
    enum { V = 1500 };
    static float x[4 * V];
    uint64_t s = 5;
    for (int i = 0; i < 4 * V; i++) x[i] = 3 * util_normal(&s);
    x[700] = x[20] = x[1400] = 15; /* a tie of the largest */
    long double z = 0;
    for (int i = 0; i < V; i++) z += expl((long double)x[i] - 15);
    for (int k = 0; k < n_isas; k++) {
        one o = open_one(isas[k], V, false);
        ops_slot p = util_slot(V);
        p.n_top = 20;
        ops_draw d = draw(&o, x, &p);
        assert_int_equal(d.token, 20);
        assert_int_equal(d.n_top, 20);
        assert_int_equal(num_bits_f(d.logprob), num_bits_f(d.top_logprob[0]));
        assert_true(d.top_id[0] == 20 && d.top_id[1] == 700 && d.top_id[2] == 1400);
        for (int i = 0; i < 20; i++) {
            double want = (double)((long double)x[d.top_id[i]] - 15 - logl(z));
            assert_true(fabs((double)d.top_logprob[i] - want) < 2e-6);
            assert_true(i == 0 || x[d.top_id[i]] < x[d.top_id[i - 1]] ||
                        (x[d.top_id[i]] == x[d.top_id[i - 1]] && d.top_id[i] > d.top_id[i - 1]));
        }
        p.temperature = 1.5f, p.top_k = 300, p.presence = 1; /* raw: nothing of this moves them */
        float top[20];
        memcpy(top, d.top_logprob, sizeof top);
        for (int i = 0; i < 50; i++) {
            p.seed = (uint64_t)i;
            d = draw(&o, x, &p);
            assert_memory_equal(d.top_logprob, top, sizeof top);
            /* a draw and a score of the same row give the same bits; row 3 is the same as row 0 */
            memcpy(x + 3 * V, x, V * 4);
            int32_t target[4] = {d.token, 3, -1, d.token}, token = d.token;
            float lp = d.logprob;
            assert_int_equal(sampler_score(o.s, x, 4, target, i % 21 - 1), CORUN_OK);
            for (int r = 0; r < 4; r += 3) {
                ops_draw e;
                assert_int_equal(sampler_score_get(o.s, r, &e), CORUN_OK);
                assert_int_equal(e.token, token);
                assert_int_equal(num_bits_f(e.logprob), num_bits_f(lp));
                assert_int_equal(e.n_top, i % 21 - 1 < 0 ? 0 : i % 21 - 1);
                assert_memory_equal(e.top_logprob, top, (size_t)e.n_top * 4);
            }
            sampler_score_get(o.s, 2, &d);
            assert_true(d.token == -1 && !d.why);
        }
        sampler_close(o.s);
    }
}

/* A slot that held everything is as good as new; and a sample taken up again in another slot goes
 * on as it was. */
static void test_slots(void **state)
{
    (void)state;
    enum { V = 500, N = 30 };
    static float x[N][V];
    uint64_t s = 6;
    for (int i = 0; i < N * V; i++) x[i / V][i % V] = 2 * util_normal(&s);
    int32_t ids[100], len[] = {1, 2}, want[N], plain[N];
    for (int i = 0; i < 100; i++) ids[i] = i * 3;
    float bias[100];
    for (int i = 0; i < 100; i++) bias[i] = (float)(i % 7);
    for (int k = 0; k < n_isas; k++) {
        one o = open_one(isas[k], V, false);
        ops_slot p = util_slot(V), q;
        p.temperature = 0.9f, p.seed = 11;
        q = p;
        sampler_slot_put(o.s, 0, &q);
        for (int i = 0; i < N; i++) plain[i] = draw_at(&o, x[i], 50 + i).token;
        p.repetition = 1.3f, p.presence = 0.3f, p.frequency = 0.2f;
        p.prompt = ids, p.n_prompt = 50, p.bias_id = ids, p.bias = bias, p.n_bias = 100;
        p.bad_id = ids, p.bad_len = len, p.n_bad = 2, p.end_id = ids, p.n_end = 3;
        p.min_tokens = 10, p.allowed = ids, p.n_allowed = 100;
        sampler_slot_put(o.s, 0, &p);
        for (int i = 0; i < N; i++) want[i] = draw_at(&o, x[i], 50 + i).token;
        sampler_slot_put(o.s, 0, &q);
        for (int i = 0; i < N; i++) assert_int_equal(draw_at(&o, x[i], 50 + i).token, plain[i]);
        for (int cut = 0; cut < N; cut += 7) {
            p.output = want, p.n_output = cut;
            sampler_slot_put(o.s, 0, &p);
            assert_int_equal(sampler_last_token(o.s, 0), cut ? want[cut - 1] : 0);
            for (int i = cut; i < N; i++)
                assert_int_equal(draw_at(&o, x[i], 50 + i).token, want[i]);
        }
        /* Flags of other ids: what the slot held before must not stay. */
        q.allowed = (int32_t[]){1, 2}, q.n_allowed = 2;
        sampler_slot_put(o.s, 0, &q);
        for (int i = 0; i < N; i++) assert_in_range(draw_at(&o, x[i], 50 + i).token, 1, 2);
        q.n_allowed = 0, q.repetition = 1 + 1e-7f; /* flags in use, none of them a mask */
        sampler_slot_put(o.s, 0, &q);
        int other = 0;
        for (int i = 0; i < N; i++) other += draw_at(&o, x[i], 50 + i).token > 2;
        assert_true(other > N / 2);
        sampler_close(o.s);
    }
}

static void test_refused(void **state)
{
    (void)state;
    enum { V = 100 };
    static float x[4 * V];
    sampler *s;
    ops_conf c = util_conf(2, 4);
    assert_int_equal(sampler_open(&s, V, &c, NULL, "nothing"), CORUN_EINVAL);
    assert_int_equal(sampler_open(&s, V, &c, NULL, NULL), CORUN_EINVAL);
    assert_int_equal(sampler_open(&s, 0, &c, NULL, "ref"), CORUN_EINVAL);
    assert_int_equal(sampler_open(&s, V, &c, NULL, "ref"), CORUN_OK);
    int32_t row[3] = {0, 1, 4}, slot[3] = {0, 1, 0}, pos[3] = {1, 1, 1};
    assert_int_equal(sampler_sample(s, x, 4, 1, row, slot, pos), CORUN_EINVAL); /* never put */
    ops_slot p = util_slot(V), q;
    assert_int_equal(sampler_slot_put(s, 2, &p), CORUN_EINVAL);
    assert_int_equal(sampler_slot_put(s, -1, &p), CORUN_EINVAL);
    int32_t id[] = {0, V}, len[] = {1, 65};
    float inf = INFINITY;
#define REFUSED(change)                                                                            \
    do {                                                                                           \
        q = p;                                                                                     \
        change;                                                                                    \
        assert_int_equal(sampler_slot_put(s, 0, &q), CORUN_EINVAL);                                \
        assert_int_equal(sampler_sample(s, x, 4, 1, row, slot, pos), CORUN_EINVAL);                \
    } while (0)
    REFUSED(q.temperature = NAN);
    REFUSED(q.temperature = -1);
    REFUSED(q.top_p = 1.5f);
    REFUSED(q.top_p = NAN);
    REFUSED(q.min_p = -0.1f);
    REFUSED(q.repetition = 0);
    REFUSED(q.presence = INFINITY);
    REFUSED(q.frequency = NAN);
    REFUSED(q.n_top = 21);
    REFUSED(q.n_draw_max = 0);
    REFUSED((q.allowed = id, q.n_allowed = 2));
    REFUSED((q.prompt = id, q.n_prompt = 2));
    REFUSED((q.output = id, q.n_output = 2));
    REFUSED((q.end_id = id, q.n_end = 2));
    REFUSED((q.bias_id = id + 1, q.bias = &inf, q.n_bias = 1));
    REFUSED((q.bias_id = id, q.bias = &inf, q.n_bias = 1));
    REFUSED((q.bad_id = id, q.bad_len = len + 1, q.n_bad = 1));
    REFUSED((q.bad_id = id + 1, q.bad_len = len, q.n_bad = 1));
    REFUSED(q.n_bad = OPS_MAX_BAD + 1);
    assert_int_equal(sampler_slot_put(s, 0, &p), CORUN_OK);
    assert_int_equal(sampler_slot_put(s, 1, &p), CORUN_OK);
    assert_int_equal(sampler_sample(s, x, 4, 2, row, slot, pos), CORUN_OK);
    assert_int_equal(sampler_sample(s, x, 4, 3, row, slot, pos), CORUN_EINVAL); /* too many */
    slot[1] = 0;
    assert_int_equal(sampler_sample(s, x, 4, 2, row, slot, pos), CORUN_EINVAL); /* slot twice */
    row[1] = -1; /* skipped, so fine */
    assert_int_equal(sampler_sample(s, x, 4, 2, row, slot, pos), CORUN_OK);
    assert_int_equal(sampler_sample(s, x, 4, 1, row + 2, slot, pos), CORUN_EINVAL); /* row */
    assert_int_equal(sampler_score(s, x, 5, row, 0), CORUN_EINVAL);
    assert_int_equal(sampler_score(s, x, 1, row, 21), CORUN_EINVAL);
    assert_int_equal(sampler_score(s, x, 1, id + 1, 1), CORUN_EINVAL);
    ops_draw d;
    assert_int_equal(sampler_draw_get(s, 0, 2, &d), CORUN_EINVAL);
    assert_int_equal(sampler_draw_get(s, 2, 0, &d), CORUN_EINVAL);
    assert_int_equal(sampler_score_get(s, -1, &d), CORUN_EINVAL);
    sampler_close(s);
    sampler_close(NULL);
}

static void test_memory(void **state)
{
    (void)state;
    enum { V = 300 };
    static float x[V];
    sampler *s = NULL;
    ops_conf c = util_conf(2, 2);
    corun_status st = CORUN_ENOMEM;
    int n = 0;
    for (; st != CORUN_OK && n < 100; n++) { /* each allocation of open fails once */
        mem_fail_at((uint64_t)n + 1);
        st = sampler_open(&s, V, &c, NULL, "ref");
        mem_fail_at(0);
        assert_true(st == CORUN_OK || (st == CORUN_ENOMEM && !s));
    }
    assert_true(n > 10 && n < 100);
    ops_slot p = util_slot(V);
    int32_t row = 0, slot = 0, pos = 1;
    p.temperature = 1, p.top_p = 0.9f, p.n_top = 5, p.presence = 1;
    mem_guard(true);
    sampler_slot_put(s, 0, &p);
    sampler_sample(s, x, 1, 1, &row, &slot, &pos);
    sampler_score(s, x, 1, &row, 5);
    mem_guard(false);
    sampler_close(s);
}

int main(void)
{
    n_isas = util_isas(isas);
    const struct CMUnitTest t[] = {cmocka_unit_test(test_philox),
                                   cmocka_unit_test(test_two_calls),
                                   cmocka_unit_test(test_seeds),
                                   cmocka_unit_test(test_noise),
                                   cmocka_unit_test(test_ties),
                                   cmocka_unit_test(test_nucleus),
                                   cmocka_unit_test(test_min_p),
                                   cmocka_unit_test(test_filters_together),
                                   cmocka_unit_test(test_cold),
                                   cmocka_unit_test(test_bad_logits),
                                   cmocka_unit_test(test_rows_without_token),
                                   cmocka_unit_test(test_frequencies),
                                   cmocka_unit_test(test_penalties),
                                   cmocka_unit_test(test_masks),
                                   cmocka_unit_test(test_long_bad_word),
                                   cmocka_unit_test(test_logprobs),
                                   cmocka_unit_test(test_slots),
                                   cmocka_unit_test(test_refused),
                                   cmocka_unit_test(test_memory)};
    return cmocka_run_group_tests_name("sampler", t, NULL, NULL);
}
