/* test_ops_backend.c - opening, configuring, weights and bad input of both host backends. */
#include "ops_fixture.h"

#include "base/mem.h"

static const ops_dims dims = {
    .n_layer = 2, .n_embd = 40, .n_head = 4, .n_kv = 2, .d_head = 16, .n_ff = 48, .n_vocab = 70};
static const ops_conf conf = {.n_ctx = 100,
                              .max_tok = 16,
                              .max_row = 4,
                              .max_want = 8,
                              .max_lane = 4,
                              .n_slot = 4,
                              .page_tokens = 16,
                              .n_page = 10,
                              .n_swap = 1,
                              .logit_rows = 4,
                              .n_top = 2};

enum { N_BACKEND = 3 };

static corun_status open_backend(int which, pool *p, const ops_dims *d, ops **o)
{
    ops_open_opts oo = {.threads = p, .isa = "auto"};
    return which == 0 ? ops_open_cpu(o, d, &oo) : ops_open_ref(o, d, which == 2);
}

static void expect(corun_status st, corun_status want, const char *word)
{
    assert_int_equal(st, want);
    if (!strstr(err_text(), word)) fail_msg("\"%s\" is not in: %s", word, err_text());
}

static void test_bad_dims(void **state)
{
    (void)state;
    pool *p;
    ok(pool_open(&p, 1));
    static const struct {
        size_t at;
        int32_t v;
        const char *word;
    } bad[] = {{offsetof(ops_dims, n_layer), 0, "n_layer"},
               {offsetof(ops_dims, n_embd), -1, "n_embd"},
               {offsetof(ops_dims, d_head), 258, "d_head"},
               {offsetof(ops_dims, d_head), 15, "odd"},
               {offsetof(ops_dims, n_kv), 3, "n_kv"},
               {offsetof(ops_dims, n_ff), 0, "n_ff"},
               {offsetof(ops_dims, n_vocab), 1 << 25, "n_vocab"}};
    for (int b = 0; b < N_BACKEND; b++)
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
            ops_dims d = dims;
            memcpy((char *)&d + bad[i].at, &bad[i].v, sizeof bad[i].v);
            ops *o;
            expect(open_backend(b, p, &d, &o), CORUN_EINVAL, bad[i].word);
            assert_null(o);
        }
    ops *o;
    ops_open_opts none = {.isa = "auto"}, isa = {.threads = p, .isa = "mmx"};
    expect(ops_open_cpu(&o, &dims, &none), CORUN_EINVAL, "thread");
    expect(ops_open_cpu(&o, &dims, &isa), CORUN_EUNSUPPORTED, "mmx");
    pool_close(p);
}

static void test_bad_conf(void **state)
{
    (void)state;
    pool *p;
    ok(pool_open(&p, 1));
    static const struct {
        size_t at;
        int32_t v;
        const char *word;
    } bad[] = {{offsetof(ops_conf, n_ctx), 0, "n_ctx"},
               {offsetof(ops_conf, max_tok), 0, "max_tok"},
               {offsetof(ops_conf, max_row), -3, "max_row"},
               {offsetof(ops_conf, page_tokens), 48, "page_tokens"},
               {offsetof(ops_conf, n_page), 0, "n_page"},
               {offsetof(ops_conf, n_swap), -1, "n_swap"},
               {offsetof(ops_conf, logit_rows), 0, "logit_rows"}};
    for (int b = 0; b < N_BACKEND; b++) {
        ops *o;
        ok(open_backend(b, p, &dims, &o));
        step none = {.id = 1};
        expect(o->step_put(o, &none), CORUN_EINVAL, "configure");
        ok(o->configure(o, &conf));
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
            ops_conf c = conf;
            memcpy((char *)&c + bad[i].at, &bad[i].v, sizeof bad[i].v);
            expect(o->configure(o, &c), CORUN_EINVAL, bad[i].word);
        }
        ok(o->configure(o, &conf));
        ok(o->step_put(o, &none));
        assert_int_equal(o->n_tok, 0);
        o->close(o);
    }
    pool_close(p);
}

static void test_bad_steps(void **state)
{
    (void)state;
    pool *p;
    ok(pool_open(&p, 1));
    const int32_t page[7] = {0, 1, 2, 3, 4, 5, 6}, wrong[1] = {10};
    const int32_t tok[4] = {1, 2, 3, 70};
    static const struct {
        step_row r;
        const char *word;
    } bad[] = {{{.q_len = 0}, "q_len"},
               {{.q_len = 17}, "q_len"},
               {{.q_len = 1, .pos = -1}, "context"},
               {{.q_len = 1, .pos = 100}, "context"},
               {{.q_len = 3, .pos = 98}, "context"},
               {{.q_len = 2, .pos = 15, .n_page = 1}, "pages"},
               {{.q_len = 1, .tok_first = 4}, "tokens"},
               {{.q_len = 1, .tok_first = -2}, "tokens"},
               {{.q_len = 2, .tok_first = 2}, "id 70"},
               {{.q_len = 1, .tok_first = STEP_TOK_SLOT, .slot = 4}, "slot"},
               {{.q_len = 1, .tok_first = STEP_TOK_SLOT, .slot = -1}, "slot"},
               {{.q_len = 2, .tok_first = STEP_TOK_SLOT, .slot = 0}, "slot"}};
    for (int b = 0; b < N_BACKEND; b++) {
        ops *o;
        ok(open_backend(b, p, &dims, &o));
        ok(o->configure(o, &conf));
        step_row row[5];
        step s = {.id = 1, .n_row = 1, .row = row, .n_tok = 4, .tok = tok};
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
            row[0] = bad[i].r;
            row[0].page = page;
            if (!row[0].n_page) row[0].n_page = 7;
            expect(o->step_put(o, &s), CORUN_EINVAL, bad[i].word);
            assert_int_equal(o->n_tok, 0);
        }
        row[0] = (step_row){.q_len = 1, .page = wrong, .n_page = 1};
        expect(o->step_put(o, &s), CORUN_EINVAL, "page 10");
        for (int i = 0; i < 5; i++)
            row[i] =
                (step_row){.seq = i, .q_len = 3, .page = page, .n_page = 7, .want = STEP_WANT_ALL};
        s.n_row = 5;
        expect(o->step_put(o, &s), CORUN_EINVAL, "rows");
        s.n_row = 4;
        expect(o->step_put(o, &s), CORUN_EINVAL, "wanted");
        s.n_row = 2;
        ok(o->step_put(o, &s));
        assert_int_equal(o->n_tok, 6);
        assert_int_equal(o->n_want, 6);
        row[0].seq = -1; /* dead: nothing else of it is read */
        row[0].page = NULL;
        row[1].want = STEP_WANT_LAST;
        ok(o->step_put(o, &s));
        assert_int_equal(o->n_tok, 3);
        assert_int_equal(o->n_want, 1);
        o->close(o);
    }
    pool_close(p);
}

static corun_status read_fails(void *arg, int64_t row, int64_t n, void *out)
{
    (void)n, (void)out;
    FAIL(CORUN_EIO, "row %d of %s", (int)row, (const char *)arg);
}

typedef struct order {
    int64_t next, n_in;
    bool wrong;
} order;

static corun_status read_in_order(void *arg, int64_t row, int64_t n, void *out)
{
    order *r = arg;
    r->wrong |= row != r->next || n < 1;
    r->next = row + n;
    fill(out, n * r->n_in, (uint64_t)row, RANDOM, 1.0f);
    return CORUN_OK;
}

static void test_weights(void **state)
{
    (void)state;
    pool *p;
    ok(pool_open(&p, 3));
    for (int b = 0; b < N_BACKEND; b++) {
        ops *o;
        ok(open_backend(b, p, &dims, &o));
        ops_weight *w = (ops_weight *)&b;
        ops_weight_spec s = {
            .name = "blk.0.w", .n_out = 64, .n_in = 40, .read = read_fails, .arg = "shard"};
        expect(o->weight_open(o, &s, &w), CORUN_EIO, "shard");
        assert_null(w);
        assert_int_equal(o->weight_bytes(o), 0);
        s.n_in = 0;
        expect(o->weight_open(o, &s, &w), CORUN_EINVAL, "blk.0.w");
        s.n_in = 40;
        s.dtype = OPS_F8_E4M3;
        expect(o->weight_open(o, &s, &w), CORUN_EUNSUPPORTED, "blk.0.w");
        /* a large matrix is read in order, every row once */
        order r = {.n_in = 1000};
        s = (ops_weight_spec){
            .name = "big", .n_out = 5001, .n_in = 1000, .read = read_in_order, .arg = &r};
        ok(o->weight_open(o, &s, &w));
        assert_int_equal(r.next, 5001);
        assert_false(r.wrong);
        assert_true(o->weight_bytes(o) >= 2 * 5001 * 1000);
        s.n_out = 5000;
        expect(o->weight_refill(o, w, &s), CORUN_EINVAL, "big");
        o->weight_close(o, w);
        assert_int_equal(o->weight_bytes(o), 0);
        o->weight_close(o, NULL);
        o->close(o);
    }
    pool_close(p);
}

/* New values through the same handle. */
static void test_refill(void **state)
{
    (void)state;
    enum { N = 70, K = 40 };
    uint16_t a[N * K], c[N * K], x[K], bias[N];
    fill(a, N * K, 1, RANDOM, 1), fill(c, N * K, 2, RANDOM, 1), fill(x, K, 3, RANDOM, 1);
    fill(bias, N, 4, RANDOM, 1);
    float want[N], got[N];
    pool *p;
    ok(pool_open(&p, 2));
    ops *o;
    ok(open_backend(0, p, &dims, &o));
    ok(o->configure(o, &conf));
    ops_weight *other = open_weight(o, a, N, K, NULL), *w = open_weight(o, a, N, K, NULL);
    source src = {c, K};
    ops_weight_spec s = {.name = "w", .n_out = N, .n_in = K, .read = source_read, .arg = &src};
    ok(o->weight_refill(o, w, &s));
    s.bias = bias;
    expect(o->weight_refill(o, w, &s), CORUN_EINVAL, "bias");
    put_tokens(o, 1, 0, STEP_WANT_NONE);
    void *dx = alloc_dev(o, sizeof x), *out = alloc_dev(o, sizeof got);
    ok(o->dev_put(o, dx, 0, x, sizeof x));
    ok(o->matmul(o, OPS_ROWS_TOK, w, dx, OPS_F32, out));
    ok(o->dev_get(o, out, 0, got, sizeof got));
    ref_cpu_matmul(c, NULL, N, K, x, 1, true, want);
    same_bytes(got, want, sizeof got, "refilled");
    ok(o->matmul(o, OPS_ROWS_TOK, other, dx, OPS_F32, out));
    ok(o->dev_get(o, out, 0, got, sizeof got));
    ref_cpu_matmul(a, NULL, N, K, x, 1, true, want);
    same_bytes(got, want, sizeof got, "the weight beside it");
    o->weight_close(o, w), o->weight_close(o, other);
    o->dev_free(o, dx), o->dev_free(o, out);
    o->close(o);
    pool_close(p);
}

/* Everything that a model does, from open to close. */
static corun_status use(int which, pool *p)
{
    enum { QKV = (4 + 2 * 2) * 16 };
    static uint16_t data[70 * 48];
    fill(data, 70 * 48, 5, RANDOM, 0.2f);
    static const int32_t page[2] = {3, 4}, tok[3] = {1, 69, 7}, row[1] = {0}, slot[1] = {2};
    static const int32_t pos[1] = {20};
    source e = {data, 40}, q = {data, 40}, g = {data, 40}, ff = {data, 48};
    ops_weight_spec s[4] = {
        {.name = "embed", .n_out = 70, .n_in = 40, .read = source_read, .arg = &e},
        {.name = "qkv", .n_out = 64, .n_in = 40, .read = source_read, .arg = &q, .bias = data},
        {.name = "gain", .n_out = 1, .n_in = 40, .read = source_read, .arg = &g},
        {.name = "down", .n_out = 40, .n_in = 48, .read = source_read, .arg = &ff}};
    float inv[8] = {1, 0.5f, 0.25f, 0.1f, 0.05f, 0.01f, 0.001f, 0.0001f};
    ops *o = NULL;
    ops_weight *w[4] = {NULL};
    ops_rope *rope = NULL;
    void *d[4] = {NULL};
    corun_status st;
    TRY_OR_DONE(open_backend(which, p, &dims, &o));
    TRY_OR_DONE(o->rope_open(o, inv, 1.0, &rope));
    for (int i = 0; i < 4; i++) TRY_OR_DONE(o->weight_open(o, &s[i], &w[i]));
    TRY_OR_DONE(o->configure(o, &conf));
    TRY_OR_DONE(o->configure(o, &conf));
    for (int i = 0; i < 4; i++) TRY_OR_DONE(o->dev_alloc(o, 16 * QKV * 2, &d[i]));
    ops_slot draw = {
        .seed = 1, .temperature = 1, .top_p = 1, .repetition = 1, .n_top = 2, .n_draw_max = 70};
    step_row r = {
        .slot = 2, .pos = 17, .q_len = 3, .page = page, .n_page = 2, .want = STEP_WANT_LAST};
    step sp = {.id = 1, .n_row = 1, .row = &r, .n_tok = 3, .tok = tok};
    TRY_OR_DONE(o->slot_put(o, 2, &draw));
    mem_guard(true); /* a step allocates nothing */
    for (int turn = 0; turn < 2 && st == CORUN_OK; turn++) {
        if ((st = o->step_put(o, &sp)) != CORUN_OK) break;
        if ((st = o->embed(o, w[0], d[0])) != CORUN_OK) break;
        if ((st = o->norm(o, OPS_ROWS_TOK, d[0], NULL, w[2], 1e-5f, d[1])) != CORUN_OK) break;
        if ((st = o->matmul(o, OPS_ROWS_TOK, w[1], d[1], OPS_BF16, d[2])) != CORUN_OK) break;
        if ((st = o->silu_mul(o, d[2], d[3])) != CORUN_OK) break;
        if ((st = o->matmul(o, OPS_ROWS_TOK, w[3], d[3], OPS_BF16, d[1])) != CORUN_OK) break;
        if ((st = o->norm(o, OPS_ROWS_WANT, d[0], d[1], w[2], 1e-5f, d[2])) != CORUN_OK) break;
        if ((st = o->qkv_post(o, 1, d[3], NULL, NULL, 0, rope, d[1])) != CORUN_OK) break;
        if ((st = o->attention(o, 1, d[1], 0.25f, d[3])) != CORUN_OK) break;
        if ((st = o->logits(o, w[0], d[2], 0, 1)) != CORUN_OK) break;
        if ((st = o->sample(o, 1, row, slot, pos)) != CORUN_OK) break;
        r = (step_row){.slot = 2,
                       .pos = 20,
                       .q_len = 1,
                       .tok_first = STEP_TOK_SLOT,
                       .page = page,
                       .n_page = 2,
                       .want = STEP_WANT_LAST};
    }
    mem_guard(false);
    ops_draw got;
    if (st == CORUN_OK && (st = o->draw_get(o, 0, 0, &got)) == CORUN_OK) {
        assert_in_range(got.token, 0, 69);
        assert_int_equal(got.n_top, 2);
    }
done:
    if (!o) return st;
    for (int i = 0; i < 4; i++) {
        if (d[i]) o->dev_free(o, d[i]);
        o->weight_close(o, w[i]);
    }
    if (rope) o->rope_close(o, rope);
    o->close(o);
    return st;
}

/* The first, second, ... allocation fails: an error, nothing lost (the sanitizer sees leaks). */
static void test_no_memory(void **state)
{
    (void)state;
    pool *p;
    ok(pool_open(&p, 2));
    for (int b = 0; b < N_BACKEND; b++) {
        ok(use(b, p));
        int n = 0;
        for (uint64_t i = 1;; i++, n++) {
            mem_fail_at(i);
            corun_status st = use(b, p);
            mem_fail_at(0);
            if (st == CORUN_OK) break;
            assert_int_equal(st, CORUN_ENOMEM);
            assert_in_range(i, 1, 1000);
        }
        assert_true(n > 20);
    }
    pool_close(p);
}

int main(void)
{
    const struct CMUnitTest t[] = {
        cmocka_unit_test(test_bad_dims),  cmocka_unit_test(test_bad_conf),
        cmocka_unit_test(test_bad_steps), cmocka_unit_test(test_weights),
        cmocka_unit_test(test_refill),    cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests_name("ops: backend", t, NULL, NULL);
}
