/* test_ops_accuracy.c - every op of the CPU and of a CUDA device against the oracle in double,
 * within the table tests/data/tolerance.json, "ops". */
#include "base/json.h"
#include "cuda_fixture.h"

static json_t *tolerance; /* of an op: [rms, largest] */

static void close_to(const char *op, const double *a, const double *b, int64_t n)
{
    double d2 = 0, v2 = 0, worst = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs(a[i] - b[i]);
        d2 += d * d;
        v2 += b[i] * b[i];
        worst = d > worst ? d : worst;
    }
    assert_true(v2 > 0);
    double rms = sqrt(d2 / v2), max = worst / sqrt(v2 / (double)n);
    const json_t *t = json_object_get(tolerance, op);
    if (json_array_size(t) != 2) fail_msg("%s has no tolerance", op);
    double rms_limit = json_number_value(json_array_get(t, 0));
    double max_limit = json_number_value(json_array_get(t, 1));
    if (!(rms <= rms_limit && max <= max_limit))
        fail_msg("%s: rms %g of %g, largest %g of %g", op, rms, rms_limit, max, max_limit);
}

enum { T = 150, H = 192, NQ = 6, NKV = 2, D = 64, F = 200, V = 300 };

static void get16(ops *o, const void *dev, int64_t n, double *out)
{
    uint16_t *t = must((size_t)n, 2);
    ok(o->dev_get(o, dev, 0, t, (size_t)n * 2));
    for (int64_t i = 0; i < n; i++) out[i] = ops_bf16_wide(t[i]);
    free(t);
}

typedef struct results {
    double embed[T * H], h[T * H], norm[T * H], mm[T * F], mm32[T * F], q[T * NQ * D];
    double attn[T * NQ * D], silu[T * F], logits[2 * V];
} results;

static void run(ops *o, bool exact, results *r)
{
    ops_conf c = {.n_ctx = 256,
                  .max_tok = T,
                  .max_row = 2,
                  .max_want = 2,
                  .page_tokens = 32,
                  .n_page = 8,
                  .logit_rows = 2,
                  .n_slot = 1,
                  .max_lane = 1};
    ok(o->configure(o, &c));
    static uint16_t emb[V * H], w[F * H], bias[F], gain[H], qg[D], y[T * H], x[T * H];
    static uint16_t qkv[T * (NQ + 2 * NKV) * D], gu[T * 2 * F];
    static float f32[T * F], row[V];
    fill(emb, V * H, 1, RANDOM, 1), fill(w, F * H, 2, RANDOM, 0.1f), fill(bias, F, 3, RANDOM, 1);
    fill(gain, H, 4, RANDOM, 1), fill(qg, D, 5, RANDOM, 1), fill(y, T * H, 6, RANDOM, 0.3f);
    fill(qkv, T * (NQ + 2 * NKV) * D, 7, RANDOM, 1), fill(gu, T * 2 * F, 8, RANDOM, 2);
    fill(x, T * H, 9, RANDOM, 1);
    float inv[D / 2];
    for (int i = 0; i < D / 2; i++) inv[i] = powf(1e4f, -2.0f * (float)i / D);
    ops_weight *we = open_weight(o, emb, V, H, NULL), *wm = open_weight(o, w, F, H, bias);
    ops_weight *wg = open_weight(o, gain, 1, H, NULL), *wq = open_weight(o, qg, 1, D, NULL);
    ops_rope *rope;
    ok(o->rope_open(o, inv, 1.0, &rope));
    void *a = alloc_dev(o, sizeof qkv), *b = alloc_dev(o, sizeof f32),
         *d = alloc_dev(o, sizeof qkv);
    put_tokens(o, T, 0, STEP_WANT_LAST);
    ok(o->embed(o, we, a));
    get16(o, a, T * H, r->embed);
    ok(o->dev_put(o, d, 0, y, sizeof y));
    ok(o->norm(o, OPS_ROWS_TOK, a, d, wg, 1e-5f, b));
    get16(o, a, T * H, r->h);
    get16(o, b, T * H, r->norm);
    ok(o->dev_put(o, a, 0, x, sizeof x));
    ok(o->matmul(o, OPS_ROWS_TOK, wm, a, OPS_BF16, b));
    get16(o, b, T * F, r->mm);
    if (!exact) {
        ok(o->matmul(o, OPS_ROWS_TOK, wm, a, OPS_F32, b));
        ok(o->dev_get(o, b, 0, f32, sizeof f32));
        for (int i = 0; i < T * F; i++) r->mm32[i] = f32[i];
    }
    ok(o->logits(o, we, a, 0, 1));
    ok(o->logits_get(o, 0, row));
    for (int i = 0; i < V; i++) r->logits[i] = row[i];
    ok(o->dev_put(o, a, 0, qkv, sizeof qkv));
    ok(o->qkv_post(o, 0, a, wq, wq, 1e-6f, rope, b));
    get16(o, b, T * NQ * D, r->q);
    ok(o->attention(o, 0, b, 0.125f, d));
    get16(o, d, T * NQ * D, r->attn);
    ok(o->dev_put(o, a, 0, gu, sizeof gu));
    ok(o->silu_mul(o, a, d));
    get16(o, d, T * F, r->silu);
    o->weight_close(o, we), o->weight_close(o, wm), o->weight_close(o, wg), o->weight_close(o, wq);
    assert_int_equal(o->weight_bytes(o), 0);
    o->rope_close(o, rope);
    o->dev_free(o, a), o->dev_free(o, b), o->dev_free(o, d);
}

static const ops_dims dims = {
    .n_layer = 1, .n_embd = H, .n_head = NQ, .n_kv = NKV, .d_head = D, .n_ff = F, .n_vocab = V};

static void compare(const results *a, const results *b, bool f32)
{
    close_to("embed", a->embed, b->embed, T * H);
    close_to("norm", a->h, b->h, T * H);
    close_to("norm", a->norm, b->norm, T * H);
    close_to("matmul", a->mm, b->mm, T * F);
    if (f32) close_to("matmul fp32", a->mm32, b->mm32, T * F);
    close_to("logits", a->logits, b->logits, V);
    close_to("q", a->q, b->q, T * NQ * D);
    close_to("attention", a->attn, b->attn, T * NQ * D);
    close_to("silu_mul", a->silu, b->silu, T * F);
}

static results *ref_results(bool exact)
{
    results *r = must(1, sizeof *r);
    ops *o;
    ok(ops_open_ref(&o, &dims, exact));
    run(o, exact, r);
    o->close(o);
    return r;
}

static void test_accuracy(void **state)
{
    (void)state;
    results *want = ref_results(false), *got = must(1, sizeof *got);
    for (size_t i = 0; i < N_ISA; i++) {
        if (!ops_isa_pick(all_isa[i])) continue;
        pool *p;
        ops *o;
        ok(pool_open(&p, 2));
        ops_open_opts oo = {.threads = p, .isa = all_isa[i]};
        ok(ops_open_cpu(&o, &dims, &oo));
        run(o, false, got);
        compare(got, want, true);
        o->close(o);
        pool_close(p);
    }
    free(want), free(got);
}

static void test_cuda(void **state)
{
    (void)state;
    NEED_CUDA();
    results *want = ref_results(false), *got = must(1, sizeof *got);
    ops *o;
    ok(ops_open_cuda(&o, &dims, &(ops_open_opts){.device = -1}));
    run(o, false, got);
    compare(got, want, true);
    o->close(o);
    free(want), free(got);
}

/* The exact mode differs from the rounded one by roundings alone. */
static void test_exact(void **state)
{
    (void)state;
    results *a = ref_results(false), *b = ref_results(true);
    double d2 = 0, v2 = 0;
    for (int i = 0; i < T * NQ * D; i++) {
        d2 += (a->attn[i] - b->attn[i]) * (a->attn[i] - b->attn[i]);
        v2 += b->attn[i] * b->attn[i];
    }
    assert_true(d2 > 0);
    assert_true(sqrt(d2 / v2) < 0.01);
    close_to("matmul", a->mm, b->mm, T * F);
    free(a), free(b);
}

int main(void)
{
    const struct CMUnitTest t[] = {cmocka_unit_test(test_accuracy), cmocka_unit_test(test_cuda),
                                   cmocka_unit_test(test_exact)};
    json_t *file;
    if (json_read_file(&file, TEST_DATA "/tolerance.json", 1 << 20) != CORUN_OK) return 1;
    tolerance = json_object_get(file, "ops");
    int failed = cmocka_run_group_tests_name("ops: accuracy", t, NULL, NULL);
    json_decref(file);
    return failed;
}
