/* test_sampler_ref.c - every kernel of the sampler against its definition, by bytes, over random
 * rows and parameters; threads, lanes, slots and neighbours.
 * Invariant: a lane's result is one function of its row, its slot's state and its position. */
#include "sampler_util.h"

#include <float.h>

#include "base/digest.h"
#include "base/pool.h"

#define TOP 20

typedef struct input {
    sample_row row;
    float *logit, *bias;
    uint8_t *flag;
    int32_t *count, banned[8];
} input;

static void fill_logits(float *x, int32_t n, uint64_t *s)
{
    int mode = util_below(s, 10);
    float scale = mode == 0 ? 0.01f : mode == 1 ? 30.0f : mode == 2 ? 1e38f : 3.0f;
    for (int32_t i = 0; i < n; i++) {
        float v = util_normal(s) * scale;
        switch (mode) {
        case 3: v = rintf(v); break;               /* many ties, both zeros */
        case 4: v = 1.5f; break;                   /* all equal */
        case 5: v = i % 2 ? 0.0f : -0.0f; break;   /* equal, other bits */
        case 6: v = i == n / 2 ? 60.0f : v; break; /* one wins */
        case 7: v = v * 0x1p-140f; break;          /* subnormal */
        case 8: v = i % 7 ? -3e38f : 3e38f; break;
        default: break;
        }
        x[i] = v > FLT_MAX ? FLT_MAX : v < -FLT_MAX ? -FLT_MAX : v;
    }
}

static float pick(uint64_t *s, const float *v, int n) { return v[util_below(s, n)]; }

static void fill_filters(sample_row *r, uint64_t *s)
{
    static const float temp[] = {0, 1, 1, 0.7f, 1e-5f, 1e-4f, 2, 100, 9.9e-6f, 1.3f};
    static const float top_p[] = {1, 1, 1, 0.9f, 0.5f, 0.99999994f, 1e-7f, 0, 1e-38f, 0.999f};
    static const float min_p[] = {0, 0, 0, 0.05f, 0.5f, 1, 1e-30f, 1e-6f};
    static const int32_t top_k[] = {0, 0, 0, 1, 2, 20, 50, 700, 1 << 30};
    r->temperature = pick(s, temp, 10);
    r->top_p = pick(s, top_p, 10);
    r->min_p = pick(s, min_p, 8);
    r->top_k = top_k[util_below(s, 9)];
    r->n_top = util_below(s, 3) ? util_below(s, TOP + 2) - 1 : -1;
    r->processed = util_below(s, 3) == 0;
}

static void fill_processors(input *t, uint64_t *s)
{
    static const float rep[] = {1.1f, 0.5f, 1.05f, 1e6f, 1e-6f}, pen[] = {0.5f, -2, 2, 0.1f};
    sample_row *r = &t->row;
    int32_t n = r->n_vocab, some = util_below(s, 50) + 1;
    r->repetition = util_below(s, 3) ? 1 : pick(s, rep, 5);
    r->presence = util_below(s, 3) ? 0 : pick(s, pen, 4);
    r->frequency = util_below(s, 3) ? 0 : pick(s, pen, 4);
    memset(t->flag, 0, (size_t)n);
    memset(t->count, 0, (size_t)n * sizeof *t->count);
    memset(t->bias, 0, (size_t)n * sizeof *t->bias);
    for (int32_t i = 0; i < some; i++) {
        t->count[util_below(s, n)] += 1 + util_below(s, 3);
        t->flag[util_below(s, n)] |= SAMPLE_PROMPT;
        t->flag[util_below(s, n)] |= SAMPLE_END;
        t->bias[util_below(s, n)] = util_normal(s) * 20;
    }
    if (util_below(s, 4) == 0)
        for (int32_t i = 0; i < n; i++) t->flag[i] |= util_below(s, 10) ? SAMPLE_DENIED : 0;
    r->n_banned = util_below(s, 8);
    for (int32_t i = 0; i < r->n_banned; i++) t->banned[i] = util_below(s, n);
    r->mask_end = util_below(s, 2);
    r->bias = util_below(s, 2) ? t->bias : NULL;
    r->flag = t->flag;
    r->count = t->count;
    r->banned = t->banned;
}

static void fill(input *t, int32_t n, uint64_t *s)
{
    fill_logits(t->logit, n, s);
    t->row = (sample_row){.logit = t->logit, .n_vocab = n, .n_draw = n, .target = -1};
    sample_row *r = &t->row;
    r->repetition = 1;
    r->pos = util_below(s, 1000000);
    r->seed = util_next(s);
    fill_filters(r, s);
    if (util_below(s, 3) == 0) fill_processors(t, s);
    if (util_below(s, 4) == 0) r->n_draw = 1 + util_below(s, n);
    if (util_below(s, 20) == 0) r->target = util_below(s, n);
    if (util_below(s, 20) == 0) t->logit[util_below(s, n)] = util_below(s, 2) ? NAN : -INFINITY;
    if (r->target >= 0) r->processed = false;
}

static bool same(const sample_out *a, const sample_out *b)
{
    size_t n = (size_t)(a->n_top > 0 ? a->n_top : 0);
    return a->why == b->why && a->token == b->token &&
           num_bits_f(a->logprob) == num_bits_f(b->logprob) && a->n_top == b->n_top &&
           memcmp(a->top_id, b->top_id, n * sizeof *a->top_id) == 0 &&
           memcmp(a->top_logprob, b->top_logprob, n * sizeof *a->top_logprob) == 0;
}

static void show(const char *isa, const input *t, const sample_out *a, const sample_out *b)
{
    const sample_row *r = &t->row;
    print_error("%s: V %d draw %d t %g p %g min %g k %d top %d proc %d target %d\n", isa,
                r->n_vocab, r->n_draw, (double)r->temperature, (double)r->top_p, (double)r->min_p,
                r->top_k, r->n_top, r->processed, r->target);
    print_error("  why %d %d token %d %d logprob %a %a n_top %d %d\n", a->why, b->why, a->token,
                b->token, (double)a->logprob, (double)b->logprob, a->n_top, b->n_top);
}

static void add(digest_stream *d, const sample_out *a)
{
    int32_t head[3] = {(int32_t)a->why, a->token, a->n_top};
    digest_add(d, head, sizeof head);
    digest_add(d, &a->logprob, sizeof a->logprob);
    digest_add(d, a->top_id, (size_t)a->n_top * sizeof *a->top_id);
    digest_add(d, a->top_logprob, (size_t)a->n_top * sizeof *a->top_logprob);
}

static void compare(digest_stream *all, int32_t n, int rounds, uint64_t seed)
{
    const char *isa[8];
    int n_isa = util_isas(isa), seen[3] = {0};
    input t = {0};
    size_t v = (size_t)n;
    int32_t id_a[TOP], id_b[TOP];
    float lp_a[TOP], lp_b[TOP];
    void *scratch = mem_aligned(64, sample_scratch_bytes(n), "work");
    t.logit = mem_alloc(v, 4, "logits");
    t.bias = mem_alloc(v, 4, "bias");
    t.count = mem_alloc(v, 4, "count");
    t.flag = mem_alloc(v, 1, "flags");
    assert_true(scratch && t.logit && t.bias && t.count && t.flag);
    for (int i = 0; i < rounds; i++) {
        fill(&t, n, &seed);
        sample_out a = {.top_id = id_a, .top_logprob = lp_a};
        sample_row_ref(&t.row, &a, scratch);
        seen[a.why]++;
        add(all, &a);
        for (int k = 1; k < n_isa; k++) {
            sample_out b = {.top_id = id_b, .top_logprob = lp_b};
            sample_row_pick(isa[k])(&t.row, &b, scratch);
            if (!same(&a, &b)) show(isa[k], &t, &a, &b);
            assert_true(same(&a, &b));
        }
    }
    assert_true(seen[SAMPLE_OK] > rounds / 2);
    mem_free(t.flag);
    mem_free(t.count);
    mem_free(t.bias);
    mem_free(t.logit);
    mem_free(scratch);
}

/* The digests are of the definition's own results: a change here is a new numerics version. */
static void close_golden(digest_stream *d, const char *want)
{
    char hex[33];
    digest_hex(digest_value(d), hex);
    digest_close(d);
    assert_string_equal(hex, want);
}

static void test_small(void **state)
{
    (void)state;
    static const int32_t size[] = {1, 2, 3, 31, 127, 128, 129, 255, 257, 512, 640};
    digest_stream *d = digest_open();
    assert_non_null(d);
    for (int i = 0; i < 11; i++) compare(d, size[i], 1000, 100 + (uint64_t)i);
    close_golden(d, "0ab25e81e552ad503e1392a679b4d049");
}

static void test_middle(void **state)
{
    (void)state;
    digest_stream *d = digest_open();
    assert_non_null(d);
    compare(d, 3001, 400, 7);
    compare(d, 2688, 200, 9);
    close_golden(d, "884cc77f3277c789e2026a24006a5b13");
}

static void test_large(void **state)
{
    (void)state;
    digest_stream *d = digest_open();
    assert_non_null(d);
    compare(d, 49152, 30, 8);
    compare(d, 151936, 6, 11);
    close_golden(d, "e840859365b4d5e390f4834f45a02437");
}

/* ---- lanes
 * ---------------------------------------------------------------------------------------- */

#define V     1000
#define LANES 12
#define STEPS 6

typedef struct trace {
    int32_t token[STEPS];
    float logprob[STEPS];
    int32_t n_top[STEPS], top_id[STEPS][TOP];
    float top_logprob[STEPS][TOP];
} trace;

/* Parameters of request r: greedy, plain, every filter, every processor. */
static ops_slot request(int r, const int32_t *prompt)
{
    static const int32_t bad_id[] = {1, 2, 3, 4, 5, 6}, bad_len[] = {1, 2, 3}, end[] = {7, 8};
    static const int32_t bias_id[] = {3, 999}, allowed[] = {1, 2, 3, 4, 5, 10, 20, 999};
    static const float bias[] = {5, -7.5f};
    ops_slot p = util_slot(V);
    p.seed = 1000 + (uint64_t)r;
    p.n_top = r % 4 == 3 ? -1 : r % 5;
    p.temperature = r % 3 ? 0.5f + 0.1f * (float)r : 0;
    if (r % 4 == 1) p.top_k = 5 + r;
    if (r % 4 == 2) p.top_p = 0.8f, p.min_p = 0.01f;
    if (r % 2) p.prompt = prompt, p.n_prompt = 20, p.repetition = 1.2f;
    if (r % 5 == 2) p.frequency = 0.5f, p.presence = 0.25f;
    if (r == 4) p.allowed = allowed, p.n_allowed = 8;
    if (r == 5) p.bias_id = bias_id, p.bias = bias, p.n_bias = 2;
    if (r == 6) p.bad_id = bad_id, p.bad_len = bad_len, p.n_bad = 3;
    if (r == 7) p.end_id = end, p.n_end = 2, p.min_tokens = 3;
    if (r == 8) p.n_draw_max = 700;
    return p;
}

/* Runs requests order[0 ... n) together for STEPS draws; request r's row is r's own logits. */
static void run_lanes(const char *isa, int threads, const int *order, int n, int slot_shift,
                      const float *logits, trace *out)
{
    pool *p = NULL;
    if (threads) assert_int_equal(pool_open(&p, threads), CORUN_OK);
    sampler *s;
    ops_conf c = util_conf(LANES, LANES);
    assert_int_equal(sampler_open(&s, V, &c, p, isa), CORUN_OK);
    int32_t prompt[20], row[LANES], slot[LANES], pos[LANES];
    for (int i = 0; i < 20; i++) prompt[i] = i * 37 % V;
    for (int i = 0; i < n; i++) {
        ops_slot q = request(order[i], prompt);
        slot[i] = (i + slot_shift) % LANES;
        row[i] = n - 1 - i;
        assert_int_equal(sampler_slot_put(s, slot[i], &q), CORUN_OK);
    }
    float *rows = mem_alloc(LANES * V, 4, "logits");
    assert_non_null(rows);
    for (int at = 0; at < STEPS; at++) {
        for (int i = 0; i < n; i++) {
            pos[i] = 20 + at;
            memcpy(rows + row[i] * V, logits + ((size_t)order[i] * STEPS + (size_t)at) * V, V * 4);
        }
        assert_int_equal(sampler_sample(s, rows, n, n, row, slot, pos), CORUN_OK);
        for (int i = 0; i < n; i++) {
            ops_draw d;
            trace *t = &out[order[i]];
            assert_int_equal(sampler_draw_get(s, 0, i, &d), CORUN_OK);
            assert_true(d.token >= 0);
            assert_int_equal(sampler_last_token(s, slot[i]), d.token);
            t->token[at] = d.token;
            t->logprob[at] = d.logprob;
            t->n_top[at] = d.n_top;
            memcpy(t->top_id[at], d.top_id, (size_t)d.n_top * 4);
            memcpy(t->top_logprob[at], d.top_logprob, (size_t)d.n_top * 4);
        }
    }
    mem_free(rows);
    sampler_close(s);
    pool_close(p);
}

static void test_lanes(void **state)
{
    (void)state;
    static float logits[LANES * STEPS * V];
    static trace want[LANES], got[LANES];
    uint64_t s = 4;
    for (int i = 0; i < LANES * STEPS * V; i++) logits[i] = 2 * util_normal(&s);
    memset(want, 0, sizeof want);
    for (int r = 0; r < LANES; r++) run_lanes("ref", 0, &r, 1, 0, logits, want); /* each alone */
    const char *isa[8];
    int n_isa = util_isas(isa);
    static const int forward[LANES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    static const int mixed[LANES] = {5, 0, 11, 3, 8, 1, 10, 2, 9, 7, 4, 6};
    static const int threads[] = {0, 1, 2, 5};
    for (int k = 0; k < n_isa; k++)
        for (int t = 0; t < 4; t++)
            for (int o = 0; o < 3; o++) {
                memset(got, 0, sizeof got);
                run_lanes(isa[k], threads[t], o == 1 ? mixed : forward, LANES, 3 * o, logits, got);
                assert_memory_equal(got, want, sizeof got);
            }
    memset(got, 0, sizeof got); /* and in two batches of other sizes */
    run_lanes(isa[n_isa - 1], 2, mixed, 5, 1, logits, got);
    run_lanes(isa[n_isa - 1], 2, mixed + 5, 7, 2, logits, got);
    assert_memory_equal(got, want, sizeof got);
}

int main(void)
{
    const struct CMUnitTest t[] = {cmocka_unit_test(test_small), cmocka_unit_test(test_middle),
                                   cmocka_unit_test(test_large), cmocka_unit_test(test_lanes)};
    return cmocka_run_group_tests_name("sampler_ref", t, NULL, NULL);
}
