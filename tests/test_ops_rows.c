/* test_ops_rows.c - matmul, norm, embed, SiLU and logits of every instruction set against the
 * definition, by bytes. */
#include "ops_fixture.h"

static ops_conf conf(int32_t max_tok)
{
    return (ops_conf){.n_ctx = 1024,
                      .max_tok = max_tok,
                      .max_row = 8,
                      .max_want = max_tok,
                      .page_tokens = 16,
                      .n_page = 80,
                      .logit_rows = 8,
                      .n_slot = 1,
                      .max_lane = 1};
}

typedef struct machine {
    pool *threads;
    ops *o;
} machine;

static bool machine_open(machine *m, const char *isa, int threads, const ops_dims *d,
                         const ops_conf *c)
{
    if (!ops_isa_pick(isa)) return false;
    ok(pool_open(&m->threads, threads));
    ops_open_opts oo = {.threads = m->threads, .isa = isa};
    ok(ops_open_cpu(&m->o, d, &oo));
    assert_string_equal(m->o->isa, isa);
    ok(m->o->configure(m->o, c));
    return true;
}

static void machine_close(machine *m)
{
    m->o->close(m->o);
    pool_close(m->threads);
}

static const ops_dims dims0 = {
    .n_layer = 2, .n_embd = 72, .n_head = 3, .n_kv = 1, .d_head = 16, .n_ff = 100, .n_vocab = 130};

static void matmul_case(int64_t n_out, int64_t n_in, pattern p, bool bias, const int32_t *rows,
                        int n_rows)
{
    int32_t most = 0;
    for (int i = 0; i < n_rows; i++) most = rows[i] > most ? rows[i] : most;
    uint16_t *w = must((size_t)(n_out * n_in), 2), *x = must((size_t)(most * n_in), 2);
    uint16_t *b = must((size_t)n_out, 2), *want16 = must((size_t)(most * n_out), 2);
    float *want = must((size_t)(most * n_out), 4), *got = must((size_t)(most * n_out), 4);
    fill(w, n_out * n_in, 1, p, 0.1f);
    fill(x, most * n_in, 2, p == ORDER ? RANDOM : p, 1.0f);
    fill(b, n_out, 3, p, 1.0f);
    ref_cpu_matmul(w, bias ? b : NULL, n_out, n_in, x, most, true, want);
    ref_cpu_matmul(w, bias ? b : NULL, n_out, n_in, x, most, false, want16);
    static const int threads[] = {1, 2, 5};
    for (size_t i = 0; i < N_ISA * 3; i++) {
        machine m;
        ops_conf c = conf(most);
        if (!machine_open(&m, all_isa[i / 3], threads[i % 3], &dims0, &c)) continue;
        ops_weight *h = open_weight(m.o, w, n_out, n_in, bias ? b : NULL);
        void *dx = alloc_dev(m.o, (size_t)(most * n_in) * 2);
        void *out = alloc_dev(m.o, (size_t)(most * n_out) * 4);
        ok(m.o->dev_put(m.o, dx, 0, x, (size_t)(most * n_in) * 2));
        for (int k = 0; k < n_rows; k++) {
            size_t n = (size_t)(rows[k] * n_out);
            put_tokens(m.o, rows[k], 0, STEP_WANT_NONE);
            memset(got, 0x7f, n * 4);
            ok(m.o->dev_put(m.o, out, 0, got, n * 4));
            ok(m.o->matmul(m.o, OPS_ROWS_TOK, h, dx, OPS_F32, out));
            ok(m.o->dev_get(m.o, out, 0, got, n * 4));
            same_bytes(got, want, n * 4, "%s, %d threads, %d rows of %d x %d, fp32", all_isa[i / 3],
                       threads[i % 3], rows[k], (int)n_out, (int)n_in);
            ok(m.o->matmul(m.o, OPS_ROWS_TOK, h, dx, OPS_BF16, out));
            ok(m.o->dev_get(m.o, out, 0, got, n * 2));
            same_bytes(got, want16, n * 2, "%s, %d threads, %d rows of %d x %d, bf16",
                       all_isa[i / 3], threads[i % 3], rows[k], (int)n_out, (int)n_in);
        }
        m.o->weight_close(m.o, h);
        assert_int_equal(m.o->weight_bytes(m.o), 0);
        m.o->dev_free(m.o, dx);
        m.o->dev_free(m.o, out);
        machine_close(&m);
    }
    free(w), free(x), free(b), free(want16), free(want), free(got);
}

static void test_matmul_rows(void **state)
{
    (void)state;
    int32_t rows[48];
    int n = 0;
    for (int32_t r = 1; r <= 40; r++) rows[n++] = r;
    static const int32_t more[] = {55, 56, 57, 61, 71, 100};
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) rows[n++] = more[i];
    matmul_case(200, 72, RANDOM, true, rows, n);
    matmul_case(200, 72, ORDER, false, rows, n);
    matmul_case(97, 130, INTEGER, false, rows, n);
}

static void test_matmul_shapes(void **state)
{
    (void)state;
    static const int32_t rows[] = {1, 2, 3, 16, 60};
    static const int shape[][2] = {{2, 1},    {31, 5},    {32, 127},  {33, 128},
                                   {64, 129}, {160, 576}, {70, 1536}, {257, 64}};
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++) {
        matmul_case(shape[i][0], shape[i][1], RANDOM, i % 2, rows, 5);
        matmul_case(shape[i][0], shape[i][1], ORDER, false, rows, 5);
    }
    /* more rows than a worker widens at once */
    static const int32_t many[] = {129, 150};
    matmul_case(40, 1600, RANDOM, false, many, 2);
}

/* Rows of other sequences and dead rows change nothing in a row's product. */
static void test_matmul_neighbours(void **state)
{
    (void)state;
    enum { N = 70, K = 300, R = 8 };
    uint16_t *w = must(N * K, 2), *x = must(R * K, 2);
    float *want = must(R * N, 4), *got = must(R * N, 4);
    fill(w, N * K, 1, RANDOM, 0.1f);
    fill(x, R * K, 2, RANDOM, 1.0f);
    ref_cpu_matmul(w, NULL, N, K, x, R, true, want);
    for (size_t i = 0; i < N_ISA; i++) {
        machine m;
        ops_conf c = conf(R);
        if (!machine_open(&m, all_isa[i], 2, &dims0, &c)) continue;
        ops_weight *h = open_weight(m.o, w, N, K, NULL);
        void *dx = alloc_dev(m.o, R * K * 2), *out = alloc_dev(m.o, R * N * 4);
        ok(m.o->dev_put(m.o, dx, 0, x, R * K * 2));
        for (unsigned live = 1; live < 1u << R; live += live < 20 ? 1 : 37) {
            int32_t tok[1] = {0}, page[1] = {0}, n = 0;
            step_row r[R];
            for (int k = 0; k < R; k++) {
                bool on = live >> k & 1;
                r[k] = (step_row){.seq = on ? k : -1,
                                  .slot = -1,
                                  .pos = k,
                                  .q_len = 1,
                                  .page = page,
                                  .n_page = on};
                n += on;
            }
            step s = {.id = 1, .kind = STEP_DECODE, .n_row = R, .row = r, .n_tok = 1, .tok = tok};
            ok(m.o->step_put(m.o, &s));
            assert_int_equal(m.o->n_tok, n);
            memset(got, 0x7f, R * N * 4);
            ok(m.o->dev_put(m.o, out, 0, got, R * N * 4));
            ok(m.o->matmul(m.o, OPS_ROWS_TOK, h, dx, OPS_F32, out));
            ok(m.o->dev_get(m.o, out, 0, got, R * N * 4));
            same_bytes(got, want, (size_t)n * N * 4, "%s, live rows %x", all_isa[i], live);
            for (int k = n * N; k < R * N; k++) /* and nothing else is written */
                assert_memory_equal(&got[k], "\x7f\x7f\x7f\x7f", 4);
        }
        m.o->weight_close(m.o, h);
        m.o->dev_free(m.o, dx), m.o->dev_free(m.o, out);
        machine_close(&m);
    }
    free(w), free(x), free(want), free(got);
}

/* The order-revealing pattern must be able to show another order. */
static void test_order_shows(void **state)
{
    (void)state;
    enum { K = 256, N = 64 };
    uint16_t w[N * K], x[K];
    fill(w, N * K, 1, ORDER, 1);
    fill(x, K, 2, RANDOM, 1);
    float up[N], down[N];
    ref_cpu_matmul(w, NULL, N, K, x, 1, true, up);
    for (int o = 0; o < N; o++) {
        down[o] = 0;
        for (int k = K - 1; k >= 0; k--)
            down[o] = fmaf(ops_bf16_wide(x[k]), ops_bf16_wide(w[o * K + k]), down[o]);
    }
    int differ = 0;
    for (int o = 0; o < N; o++) differ += up[o] != down[o];
    assert_in_range(differ, N / 4, N);
}

static void norm_case(int32_t n, pattern p)
{
    enum { R = 19 };
    ops_dims d = dims0;
    d.n_embd = n;
    uint16_t *h = must((size_t)(R * n), 2), *y = must((size_t)(R * n), 2), *g = must((size_t)n, 2);
    uint16_t *hw = must((size_t)(R * n), 2), *want = must((size_t)(R * n), 2);
    uint16_t *plain = must((size_t)(R * n), 2), *got = must((size_t)(R * n), 2);
    fill(h, R * n, 4, p, 1.0f);
    fill(y, R * n, 5, p, 0.5f);
    fill(g, n, 6, RANDOM, 1.0f);
    memcpy(hw, h, (size_t)(R * n) * 2);
    for (int r = 0; r < R; r++) ref_cpu_norm(hw + r * n, NULL, n, g, 1e-5f, plain + r * n);
    for (int r = 0; r < R; r++) ref_cpu_norm(hw + r * n, y + r * n, n, g, 1e-5f, want + r * n);
    for (size_t i = 0; i < N_ISA; i++) {
        machine m;
        ops_conf c = conf(R);
        if (!machine_open(&m, all_isa[i], 2, &d, &c)) continue;
        size_t bytes = (size_t)(R * n) * 2;
        ops_weight *gain = open_weight(m.o, g, 1, n, NULL);
        void *dh = alloc_dev(m.o, bytes), *dy = alloc_dev(m.o, bytes), *out = alloc_dev(m.o, bytes);
        ok(m.o->dev_put(m.o, dh, 0, h, bytes));
        ok(m.o->dev_put(m.o, dy, 0, y, bytes));
        put_tokens(m.o, R, 0, STEP_WANT_LAST);
        ok(m.o->norm(m.o, OPS_ROWS_TOK, dh, NULL, gain, 1e-5f, out));
        ok(m.o->dev_get(m.o, out, 0, got, bytes));
        same_bytes(got, plain, bytes, "%s norm of %d", all_isa[i], n);
        /* only the last row, h untouched */
        ok(m.o->norm(m.o, OPS_ROWS_WANT, dh, dy, gain, 1e-5f, out));
        ok(m.o->dev_get(m.o, out, 0, got, bytes));
        same_bytes(got, want + (R - 1) * n, (size_t)n * 2, "%s norm of the wanted row", all_isa[i]);
        ok(m.o->dev_get(m.o, dh, 0, got, bytes));
        same_bytes(got, h, bytes, "%s h after a norm of wanted rows", all_isa[i]);
        ok(m.o->norm(m.o, OPS_ROWS_TOK, dh, dy, gain, 1e-5f, out));
        ok(m.o->dev_get(m.o, out, 0, got, bytes));
        same_bytes(got, want, bytes, "%s norm with residual of %d", all_isa[i], n);
        ok(m.o->dev_get(m.o, dh, 0, got, bytes));
        same_bytes(got, hw, bytes, "%s residual of %d", all_isa[i], n);
        m.o->weight_close(m.o, gain);
        m.o->dev_free(m.o, dh), m.o->dev_free(m.o, dy), m.o->dev_free(m.o, out);
        machine_close(&m);
    }
    free(h), free(y), free(g), free(hw), free(want), free(plain), free(got);
}

static void test_norm(void **state)
{
    (void)state;
    static const int32_t n[] = {1, 7, 8, 9, 64, 72, 576, 1000, 2048, 2049, 4100};
    for (size_t i = 0; i < sizeof n / sizeof *n; i++)
        for (int p = 0; p < N_PATTERN; p++) norm_case(n[i], (pattern)p);
}

static void test_silu(void **state)
{
    (void)state;
    enum { R = 7, N = 9362 }; /* R * N covers all 65,536 gates */
    ops_dims d = dims0;
    d.n_ff = N;
    uint16_t *x = must(2 * R * N, 2), *want = must(R * N, 2), *got = must(R * N, 2);
    for (int r = 0; r < R; r++) {
        for (int i = 0; i < N; i++) {
            uint16_t g = (uint16_t)(r * N + i);
            x[r * 2 * N + i] = (g & 0x7fff) > 0x7f80 ? 0x3f80 : g; /* NaN has no one pattern */
        }
        fill(x + r * 2 * N + N, N, (uint64_t)r, RANDOM, 1.0f);
        ref_cpu_silu_mul(x + r * 2 * N, N, want + r * N);
    }
    for (size_t i = 0; i < N_ISA; i++) {
        machine m;
        ops_conf c = conf(R);
        if (!machine_open(&m, all_isa[i], 5, &d, &c)) continue;
        void *dx = alloc_dev(m.o, 4 * R * N), *out = alloc_dev(m.o, 2 * R * N);
        ok(m.o->dev_put(m.o, dx, 0, x, 4 * R * N));
        put_tokens(m.o, R, 0, STEP_WANT_NONE);
        ok(m.o->silu_mul(m.o, dx, out));
        ok(m.o->dev_get(m.o, out, 0, got, 2 * R * N));
        same_bytes(got, want, 2 * R * N, "%s silu_mul", all_isa[i]);
        m.o->dev_free(m.o, dx), m.o->dev_free(m.o, out);
        machine_close(&m);
    }
    free(x), free(want), free(got);
}

/* Embedding rows come back as they went in; logits are the product with the same handle. */
static void test_embed_and_logits(void **state)
{
    (void)state;
    enum { V = 130, H = 72, R = 12 };
    uint16_t *w = must(V * H, 2), *got = must(R * H, 2), *x = must(R * H, 2);
    float *want = must(R * V, 4), row[V];
    fill(w, V * H, 9, RANDOM, 1.0f);
    fill(x, R * H, 10, RANDOM, 1.0f);
    ref_cpu_matmul(w, NULL, V, H, x, R, true, want);
    for (size_t i = 0; i < N_ISA; i++) {
        machine m;
        ops_conf c = conf(R);
        if (!machine_open(&m, all_isa[i], 2, &dims0, &c)) continue;
        ops_weight *h = open_weight(m.o, w, V, H, NULL);
        void *out = alloc_dev(m.o, R * H * 2);
        int32_t tok[R] = {0, 129, 1, 15, 16, 31, 32, 33, 64, 127, 128, 5}, page[1] = {0};
        step_row r = {
            .seq = 0, .slot = -1, .q_len = R, .page = page, .n_page = 1, .want = STEP_WANT_ALL};
        step s = {.id = 1, .n_row = 1, .row = &r, .n_tok = R, .tok = tok};
        ok(m.o->step_put(m.o, &s));
        assert_int_equal(m.o->n_want, R);
        ok(m.o->embed(m.o, h, out));
        ok(m.o->dev_get(m.o, out, 0, got, R * H * 2));
        for (int k = 0; k < R; k++)
            same_bytes(got + k * H, w + tok[k] * H, H * 2, "%s embed %d", all_isa[i], tok[k]);
        ok(m.o->dev_put(m.o, out, 0, x, R * H * 2));
        for (int first = 0; first < R; first += 5) {
            int n = R - first < 5 ? R - first : 5;
            ok(m.o->logits(m.o, h, out, first, n));
            for (int k = 0; k < n; k++) {
                ok(m.o->logits_get(m.o, k, row));
                same_bytes(row, want + (first + k) * V, sizeof row, "%s logits", all_isa[i]);
            }
        }
        assert_int_equal(m.o->logits(m.o, h, out, 8, 5), CORUN_EINVAL);
        assert_int_equal(m.o->logits(m.o, h, out, 0, 9), CORUN_EINVAL);
        m.o->weight_close(m.o, h);
        m.o->dev_free(m.o, out);
        machine_close(&m);
    }
    free(w), free(got), free(x), free(want);
}

int main(void)
{
    const struct CMUnitTest t[] = {
        cmocka_unit_test(test_matmul_rows),
        cmocka_unit_test(test_matmul_shapes),
        cmocka_unit_test(test_order_shows),
        cmocka_unit_test(test_matmul_neighbours),
        cmocka_unit_test(test_norm),
        cmocka_unit_test(test_silu),
        cmocka_unit_test(test_embed_and_logits),
    };
    return cmocka_run_group_tests_name("ops: rows", t, NULL, NULL);
}
