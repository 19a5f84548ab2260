/* test_cuda_ops.c - the CUDA backend's row kernels, pages, weights and steps against the
 * definitions, by bytes. Products and attention have tests of their own. */
#include "cuda_fixture.h"

#include <math.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/num.h"
#include "ops/ref_mma.h"

#ifdef CORUN_CUDA
#include <cuda_runtime_api.h>
#endif

static ops_dims dims(int32_t n_embd, int32_t n_ff)
{
    return (ops_dims){.n_layer = 2,
                      .n_embd = n_embd,
                      .n_head = 4,
                      .n_kv = 2,
                      .d_head = 64,
                      .n_ff = n_ff,
                      .n_vocab = 130};
}

static ops_conf conf(int32_t max_tok)
{
    ops_conf c = {.n_ctx = 1024,
                  .max_tok = max_tok,
                  .max_row = 40,
                  .max_want = max_tok,
                  .page_tokens = 16,
                  .n_page = 80,
                  .n_swap = 3,
                  .logit_rows = 8,
                  .n_slot = 2,
                  .max_lane = 2};
    for (int i = 0; i < OPS_N_OP; i++) c.set[i] = OPS_SET_CANONICAL;
    return c;
}

static void put(ops *o, void *dev, const void *host, size_t bytes)
{
    ok(o->dev_put(o, dev, 0, host, bytes));
}

static void get(ops *o, const void *dev, void *host, size_t bytes)
{
    ok(o->dev_get(o, dev, 0, host, bytes));
}

/* ---- norm ---------------------------------------------------------------------------------- */

static void norm_case(int32_t n, pattern p)
{
    enum { R = 19 };
    ops_dims d = dims(n, 64);
    ops_conf c = conf(R);
    ops *o = cuda_open(&d, &c);
    size_t bytes = (size_t)(R * n) * 2;
    uint16_t *h = must(bytes, 1), *y = must(bytes, 1), *g = must((size_t)n, 2);
    uint16_t *sum = must(bytes, 1), *want = must(bytes, 1), *plain = must(bytes, 1);
    uint16_t *got = must(bytes, 1);
    fill(h, R * n, 4, p, 1.0f);
    fill(y, R * n, 5, p, 0.5f);
    fill(g, n, 6, RANDOM, 1.0f);
    memcpy(sum, h, bytes);
    for (int r = 0; r < R; r++) ref_cpu_norm(sum + r * n, NULL, n, g, 1e-5f, plain + r * n);
    for (int r = 0; r < R; r++) ref_cpu_norm(sum + r * n, y + r * n, n, g, 1e-5f, want + r * n);
    ops_weight *gain = open_weight(o, g, 1, n, NULL);
    void *dh = alloc_dev(o, bytes), *dy = alloc_dev(o, bytes), *out = alloc_dev(o, bytes);
    put(o, dh, h, bytes);
    put(o, dy, y, bytes);
    put_tokens(o, R, 0, STEP_WANT_LAST);
    ok(o->norm(o, OPS_ROWS_TOK, dh, NULL, gain, 1e-5f, out));
    get(o, out, got, bytes);
    same_bytes(got, plain, bytes, "norm of %d", n);
    ok(o->norm(o, OPS_ROWS_WANT, dh, dy, gain, 1e-5f, out)); /* the last row, h untouched */
    get(o, out, got, bytes);
    same_bytes(got, want + (R - 1) * n, (size_t)n * 2, "norm of the wanted row of %d", n);
    get(o, dh, got, bytes);
    same_bytes(got, h, bytes, "h after a norm of wanted rows");
    ok(o->norm(o, OPS_ROWS_TOK, dh, dy, gain, 1e-5f, out));
    get(o, out, got, bytes);
    same_bytes(got, want, bytes, "norm with residual of %d", n);
    get(o, dh, got, bytes);
    same_bytes(got, sum, bytes, "residual of %d", n);
    o->weight_close(o, gain);
    o->dev_free(o, dh), o->dev_free(o, dy), o->dev_free(o, out);
    o->close(o);
    free(h), free(y), free(g), free(sum), free(want), free(plain), free(got);
}

static void test_norm(void **state)
{
    (void)state;
    NEED_CUDA();
    static const int32_t n[] = {8, 16, 64, 72, 576, 1000, 2048, 2056, 4096, 5120};
    for (size_t i = 0; i < sizeof n / sizeof *n; i++)
        for (int p = 0; p < N_PATTERN; p++) norm_case(n[i], (pattern)p);
}

/* ---- SiLU ---------------------------------------------------------------------------------- */

/* With the device's own 2^x every gate has the definition's bits; that function itself is near
 * num.h's. */
static void test_silu(void **state)
{
    (void)state;
    NEED_CUDA();
#ifdef CORUN_CUDA
    enum { R = 8, N = 8192 }; /* R N: every gate */
    ops_dims d = dims(64, N);
    ops_conf c = conf(R);
    ops *o = cuda_open(&d, &c);
    uint16_t *x = must(2 * R * N, 2), *want = must(R * N, 2), *got = must(R * N, 2);
    float *e = must(R * N, 4), *arg = must(R * N, 4);
    for (int r = 0; r < R; r++) {
        for (int i = 0; i < N; i++) {
            uint16_t g = (uint16_t)(r * N + i);
            x[r * 2 * N + i] = (g & 0x7fff) > 0x7f80 ? 0x3f80 : g; /* NaN has no one pattern */
            arg[r * N + i] = -ops_bf16_wide(x[r * 2 * N + i]) * 0x1.715476p+0f;
        }
        fill(x + r * 2 * N + N, N, (uint64_t)r, RANDOM, 1.0f);
    }
    void *dx = alloc_dev(o, 4 * R * N), *out = alloc_dev(o, 4 * R * N);
    put(o, dx, arg, 4 * R * N);
    cuda_ex2(o, R * N, dx, out);
    get(o, out, e, 4 * R * N);
    for (int i = 0; i < R * N; i++) {
        int r = i / N, k = i % N;
        float g = ops_bf16_wide(x[r * 2 * N + k]), u = ops_bf16_wide(x[r * 2 * N + N + k]);
        float den = 1.0f + e[i];
        want[i] = ops_bf16_round(ops_bf16_wide(ops_bf16_round(g / den)) * u);
        float near = num_exp2f(arg[i]);
        if (near >= 0x1p-126f && near < INFINITY)
            assert_true(fabsf(e[i] - near) <= 4 * 0x1p-23f * near);
    }
    put(o, dx, x, 4 * R * N);
    put_tokens(o, R, 0, STEP_WANT_NONE);
    ok(o->silu_mul(o, dx, out));
    get(o, out, got, 2 * R * N);
    for (int i = 0; i < R * N; i++) /* 0 times infinity */
        if ((want[i] & 0x7fff) > 0x7f80) want[i] = got[i] = (got[i] & 0x7fff) > 0x7f80;
    same_bytes(got, want, 2 * R * N, "silu_mul");
    o->dev_free(o, dx), o->dev_free(o, out);
    o->close(o);
    free(x), free(want), free(got), free(e), free(arg);
#endif
}

/* ---- embed, logits, products -------------------------------------------------------------------
 */

static void test_embed_and_logits(void **state)
{
    (void)state;
    NEED_CUDA();
    enum { V = 130, H = 72, R = 12 };
    ops_dims d = dims(H, 64);
    ops_conf c = conf(R);
    ops *o = cuda_open(&d, &c);
    uint16_t *w = must(V * H, 2), *got = must(R * H, 2), *x = must(R * H, 2);
    float row[V];
    fill(w, V * H, 9, RANDOM, 1.0f);
    fill(x, R * H, 10, RANDOM, 1.0f);
    ops_weight *h = open_weight(o, w, V, H, NULL);
    void *out = alloc_dev(o, R * H * 2);
    int32_t tok[R] = {0, 129, 1, 15, 16, 31, 32, 33, 64, 127, 128, 5}, page[1] = {0};
    step_row r = {.seq = 0, .slot = -1, .q_len = R, .page = page, .n_page = 1};
    r.want = STEP_WANT_ALL;
    step s = {.id = 1, .n_row = 1, .row = &r, .n_tok = R, .tok = tok};
    ok(o->step_put(o, &s));
    ok(o->embed(o, h, out));
    get(o, out, got, R * H * 2);
    for (int k = 0; k < R; k++) same_bytes(got + k * H, w + tok[k] * H, H * 2, "embed %d", tok[k]);
    put(o, out, x, R * H * 2);
    for (int first = 0; first < R; first += 5) {
        int n = R - first < 5 ? R - first : 5;
        ok(o->logits(o, h, out, first, n));
        for (int k = 0; k < n; k++) {
            ok(o->logits_get(o, k, row));
            for (int v = 0; v < V; v++) {
                float want = ref_mma_dot(x + (first + k) * H, w + v * H, H);
                same_bytes(&row[v], &want, 4, "logit %d of row %d", v, first + k);
            }
        }
    }
    assert_int_equal(o->logits(o, h, out, 8, 5), CORUN_EINVAL);
    o->weight_close(o, h);
    o->dev_free(o, out);
    o->close(o);
    free(w), free(got), free(x);
}

/* ---- what follows the qkv product --------------------------------------------------------------
 */

/* Element e of the K (v 0) or V (v 1) of a token from a page's bytes. */
static uint16_t cached(const uint16_t *page, const ops_dims *d, int32_t pt, int32_t layer,
                       int32_t head, int v, int32_t at, int32_t e)
{
    int64_t slabs = d->d_head / 64, half = slabs * pt * 64;
    const uint16_t *p = page + (int64_t)layer * d->n_kv * 2 * half + (head * 2 + v) * half;
    return p[((int64_t)(e / 64) * pt + at) * 64 + ((e % 64 / 8) ^ (at & 7)) * 8 + e % 8];
}

static void qkv_case(int32_t n_head, int32_t n_kv, int32_t d_head, int32_t pt, bool gains)
{
    enum { T = 70, POS = 13 };
    ops_dims d = dims(64, 64);
    d.n_head = n_head, d.n_kv = n_kv, d.d_head = d_head;
    ops_conf c = conf(T);
    c.page_tokens = pt;
    ops *o = cuda_open(&d, &c);
    int64_t width = (n_head + 2 * n_kv) * (int64_t)d_head, nq = n_head * (int64_t)d_head;
    uint16_t *x = must((size_t)(T * width), 2), *q = must((size_t)(T * nq), 2);
    uint16_t *page = must((size_t)o->page_bytes(o), 1), *want = must(256, 2), qg[256], kg[256];
    float inv[128];
    fill(x, T * width, 31, RANDOM, 2.0f);
    fill(qg, d_head, 32, RANDOM, 1.0f);
    fill(kg, d_head, 33, RANDOM, 1.0f);
    for (int i = 0; i < d_head / 2; i++) inv[i] = powf(1e4f, -2.0f * (float)i / (float)d_head);
    ops_weight *wq = open_weight(o, qg, 1, d_head, NULL), *wk = open_weight(o, kg, 1, d_head, NULL);
    ops_rope *rope;
    ok(o->rope_open(o, inv, 1.1, &rope));
    void *dx = alloc_dev(o, (size_t)(T * width) * 2), *dq = alloc_dev(o, (size_t)(T * nq) * 2);
    put(o, dx, x, (size_t)(T * width) * 2);
    put_tokens(o, T, POS, STEP_WANT_NONE);
    ok(o->qkv_post(o, 1, dx, gains ? wq : NULL, gains ? wk : NULL, 1e-6f, rope, dq));
    get(o, dq, q, (size_t)(T * nq) * 2);
    int32_t held = -1;
    for (int32_t t = 0; t < T; t++) {
        const uint16_t *in = x + t * width;
        int32_t pos = POS + t;
        if (pos / pt != held) ok(o->page_get(o, held = pos / pt, page));
        for (int32_t h = 0; h < n_head; h++) {
            ref_cpu_rope(in + h * d_head, d_head, gains ? qg : NULL, 1e-6f, inv, 1.1, pos, want);
            same_bytes(q + t * nq + h * d_head, want, (size_t)d_head * 2, "q, token %d, head %d", t,
                       h);
        }
        for (int32_t h = 0; h < n_kv; h++) {
            const uint16_t *k = in + nq + h * d_head, *v = k + (int64_t)n_kv * d_head;
            ref_cpu_rope(k, d_head, gains ? kg : NULL, 1e-6f, inv, 1.1, pos, want);
            for (int32_t e = 0; e < d_head; e++) {
                assert_int_equal(cached(page, &d, pt, 1, h, 0, pos % pt, e), want[e]);
                assert_int_equal(cached(page, &d, pt, 1, h, 1, pos % pt, e), v[e]);
                assert_int_equal(cached(page, &d, pt, 0, h, 0, pos % pt, e), 0);
            }
        }
    }
    o->weight_close(o, wq), o->weight_close(o, wk);
    o->rope_close(o, rope);
    o->dev_free(o, dx), o->dev_free(o, dq);
    o->close(o);
    free(x), free(q), free(page), free(want);
}

static void test_qkv_post(void **state)
{
    (void)state;
    NEED_CUDA();
    static const int32_t pt[] = {16, 32, 64, 128};
    for (int i = 0; i < 4; i++) {
        qkv_case(4, 2, 64, pt[i], i % 2);
        qkv_case(5, 1, 128, pt[i], true);
        qkv_case(3, 3, 128, pt[i], false);
    }
}

/* ---- pages -------------------------------------------------------------------------------------
 */

static void test_pages(void **state)
{
    (void)state;
    NEED_CUDA();
    ops_dims d = dims(64, 64);
    ops_conf c = conf(4);
    c.n_page = 7;
    ops *o = cuda_open(&d, &c);
    size_t n = (size_t)o->page_bytes(o);
    uint16_t *page[7], *got = must(n, 1);
    for (int i = 0; i < 7; i++) {
        page[i] = must(n, 1);
        ok(o->page_get(o, i, got)); /* they start as zeros */
        same_bytes(got, page[i], n, "a new page");
        fill(page[i], (int64_t)n / 2, (uint64_t)i + 50, RANDOM, 1.0f);
        ok(o->page_put(o, i, page[i]));
    }
    ok(o->page_copy(o, 1, 4));
    ok(o->page_copy(o, 2, 2));
    ok(o->page_out(o, 0, 2));
    ok(o->page_out(o, 6, 0));
    ok(o->page_copy(o, 5, 0));
    ok(o->page_in(o, 2, 6));
    ok(o->page_in(o, 0, 3));
    static const int want[7] = {5, 1, 2, 6, 1, 5, 0};
    for (int i = 0; i < 7; i++) {
        ok(o->page_get(o, i, got));
        same_bytes(got, page[want[i]], n, "page %d", i);
    }
    assert_int_equal(o->page_copy(o, 7, 0), CORUN_EINVAL);
    assert_int_equal(o->page_out(o, 0, 3), CORUN_EINVAL);
    assert_int_equal(o->page_in(o, -1, 0), CORUN_EINVAL);
    o->close(o);
    for (int i = 0; i < 7; i++) free(page[i]);
    free(got);
}

/* ---- weights -----------------------------------------------------------------------------------
 */

/* Made-up values have the same bits on the device and on the host; a refill keeps the handle. */
static void test_weights(void **state)
{
    (void)state;
    NEED_CUDA();
    enum { V = 130, H = 64 };
    ops_dims d = dims(H, 64);
    ops_conf c = conf(V);
    ops *o = cuda_open(&d, &c);
    uint16_t *want = must(V * H, 2), *got = must(V * H, 2), *other = must(V * H, 2);
    ops_fill f = {.seed = 0x123456789abcdefu, .index = 7, .n_in = H, .base = 0.5f, .spread = 3.0f};
    ops_weight_spec s = {
        .name = "made up", .n_out = V, .n_in = H, .read = ops_fill_read, .arg = &f};
    ok(ops_fill_read(&f, 0, V, want));
    ok(ops_fill_read(&f, 3, 2, got)); /* any rows, the same values */
    same_bytes(got, want + 3 * H, 2 * H * 2, "rows of made-up values");
    ops_weight *w;
    ok(o->weight_open(o, &s, &w));
    int32_t tok[V], page[9];
    for (int i = 0; i < V; i++) tok[i] = i;
    for (int i = 0; i < 9; i++) page[i] = i;
    step_row r = {.seq = 0, .slot = -1, .q_len = V, .page = page, .n_page = 9};
    step sp = {.id = 1, .n_row = 1, .row = &r, .n_tok = V, .tok = tok};
    void *out = alloc_dev(o, V * H * 2);
    ok(o->step_put(o, &sp));
    ok(o->embed(o, w, out));
    get(o, out, got, V * H * 2);
    same_bytes(got, want, V * H * 2, "made-up values on the device");
    fill(other, V * H, 3, RANDOM, 1.0f);
    source src = {other, H};
    s.read = source_read, s.arg = &src;
    ok(o->weight_refill(o, w, &s));
    ok(o->embed(o, w, out));
    get(o, out, got, V * H * 2);
    same_bytes(got, other, V * H * 2, "refilled");
    s.n_out = V - 1;
    assert_int_equal(o->weight_refill(o, w, &s), CORUN_EINVAL);
    s.n_out = V, s.dtype = OPS_F8_E4M3;
    assert_int_equal(o->weight_refill(o, w, &s), CORUN_EUNSUPPORTED);
    o->weight_close(o, w);
    assert_int_equal(o->weight_bytes(o), 0);
    o->dev_free(o, out);
    o->close(o);
    free(want), free(got), free(other);
}

/* A matrix that takes many pieces, read in order. */
static corun_status read_many(void *arg, int64_t row, int64_t n, void *out)
{
    int64_t *next = arg;
    if (row != *next) FAIL(CORUN_EINTERNAL, "row %d after row %d", (int)row, (int)*next);
    *next += n;
    for (int64_t i = 0; i < n; i++)
        fill((uint16_t *)out + i * 4096, 4096, (uint64_t)(row + i) % 97, RANDOM, 1);
    return CORUN_OK;
}

static void test_large_weight(void **state)
{
    (void)state;
    NEED_CUDA();
    ops_dims d = dims(4096, 64);
    d.n_vocab = 9000;
    ops_conf c = conf(4);
    ops *o = cuda_open(&d, &c);
    int64_t next = 0;
    ops_weight_spec s = {.name = "large", .n_out = 9000, .n_in = 4096, .read = read_many};
    s.arg = &next;
    ops_weight *w;
    ok(o->weight_open(o, &s, &w));
    assert_int_equal(next, 9000);
    int32_t tok[4] = {0, 2047, 2048, 8999}, page[1] = {0};
    step_row r = {.seq = 0, .slot = -1, .q_len = 4, .page = page, .n_page = 1};
    step sp = {.id = 1, .n_row = 1, .row = &r, .n_tok = 4, .tok = tok};
    uint16_t *got = must(4 * 4096, 2), *want = must(4096, 2);
    void *out = alloc_dev(o, 4 * 4096 * 2);
    ok(o->step_put(o, &sp));
    ok(o->embed(o, w, out));
    get(o, out, got, 4 * 4096 * 2);
    for (int i = 0; i < 4; i++) {
        fill(want, 4096, (uint64_t)tok[i] % 97, RANDOM, 1);
        same_bytes(got + i * 4096, want, 4096 * 2, "row %d", tok[i]);
    }
    o->weight_close(o, w);
    o->dev_free(o, out);
    o->close(o);
    free(got), free(want);
}

/* ---- steps -------------------------------------------------------------------------------------
 */

/* Tokens of slots, dead rows, pages anywhere: embed and qkv_post of a decode step, direct and
 * recorded, against the definition. */
static void test_decode_steps(void **state)
{
    (void)state;
    NEED_CUDA();
    enum { H = 64, V = 130, NH = 4, NKV = 2, D = 64, W = (NH + 2 * NKV) * D };
    ops_dims d = dims(H, 64);
    ops_conf c = conf(40);
    c.n_slot = 40, c.max_lane = 40;
    ops *o = cuda_open(&d, &c);
    uint16_t *emb = must(V * H, 2), *x = must(40 * W, 2), *got = must(40 * H, 2);
    uint16_t *q = must(40 * NH * D, 2), want[D];
    float inv[D / 2];
    fill(emb, V * H, 1, RANDOM, 1.0f);
    fill(x, 40 * W, 2, RANDOM, 1.0f);
    for (int i = 0; i < D / 2; i++) inv[i] = powf(1e4f, -2.0f * (float)i / D);
    ops_weight *we = open_weight(o, emb, V, H, NULL);
    ops_rope *rope;
    ok(o->rope_open(o, inv, 1.0, &rope));
    void *dh = alloc_dev(o, 40 * H * 2), *dx = alloc_dev(o, 40 * W * 2);
    void *dq = alloc_dev(o, 40 * NH * D * 2);
    put(o, dx, x, 40 * W * 2);
    for (int32_t i = 0; i < 40; i++) {
        int32_t drawn = (i * 37 + 5) % V;
        ops_slot p = {.top_p = 1, .repetition = 1, .n_top = -1, .n_draw_max = V};
        p.output = &drawn, p.n_output = 1;
        ok(o->slot_put(o, i, &p));
    }
    int replays = 0;
    uint64_t rng = 9;
    for (int turn = 0; turn < 40; turn++) {
        int32_t n = turn % 2 ? 17 : 1 + (int32_t)(mix32(rng++) % 40), page[40][64], tok[40];
        step_row r[40];
        int32_t slot_of[40], live = 0, pos_of[40];
        for (int32_t i = 0; i < n; i++) {
            bool dead = mix32(rng++) % 4 == 0 && i > 0, host = mix32(rng++) % 3 == 0;
            int32_t pos = (int32_t)(mix32(rng++) % 1000);
            for (int k = 0; k < 64; k++) page[i][k] = (int32_t)(mix32(rng++) % 80);
            tok[i] = (int32_t)(mix32(rng++) % V);
            r[i] = (step_row){.seq = dead ? -1 : i,
                              .slot = i,
                              .pos = pos,
                              .q_len = 1,
                              .tok_first = host ? i : STEP_TOK_SLOT,
                              .page = page[i],
                              .n_page = 64,
                              .want = STEP_WANT_LAST};
            if (dead) continue;
            slot_of[live] = host ? -tok[i] - 1 : i;
            pos_of[live++] = pos;
        }
        step s = {.id = 1, .kind = STEP_DECODE, .n_row = n, .row = r, .n_tok = n, .tok = tok};
        ok(o->step_put(o, &s));
        assert_int_equal(o->n_tok, live);
        assert_int_equal(o->n_want, live);
        bool replay = false;
        ok(o->record(o, &replay));
        if (!replay) {
            corun_status st = o->embed(o, we, dh);
            if (st == CORUN_OK) st = o->qkv_post(o, 1, dx, NULL, NULL, 0, rope, dq);
            ok(o->record_end(o, st));
        }
        replays += replay;
        get(o, dh, got, (size_t)live * H * 2);
        get(o, dq, q, (size_t)live * NH * D * 2);
        for (int32_t i = 0; i < live; i++) {
            int32_t id = slot_of[i] < 0 ? -slot_of[i] - 1 : (slot_of[i] * 37 + 5) % V;
            same_bytes(got + i * H, emb + id * H, H * 2, "turn %d, row %d, replay %d", turn, i,
                       replay);
            ref_cpu_rope(x + i * W, D, NULL, 0, inv, 1.0, pos_of[i], want);
            same_bytes(q + i * NH * D, want, D * 2, "q, turn %d, row %d", turn, i);
        }
        put(o, dh, x, 40 * H * 2); /* poison */
        put(o, dq, x, 40 * NH * D * 2);
    }
    assert_true(replays > 10);
    o->weight_close(o, we);
    o->rope_close(o, rope);
    o->dev_free(o, dh), o->dev_free(o, dx), o->dev_free(o, dq);
    o->close(o);
    free(emb), free(x), free(got), free(q);
}

/* ---- between two attentions --------------------------------------------------------------------
 */

#ifdef CORUN_CUDA
enum { MOST = GPU_BETWEEN_ROWS, N_BUF = 5 };

/* A layer's weights and, for each of two ways, its buffers: h, x, y, act, qkv. */
typedef struct scene {
    ops *o;
    int32_t n_embd;
    int64_t q, width[N_BUF];
    ops_weight *proj, *gate_up, *down, *qkv, *gain[2];
    void *attn, *pair, *buf[2][N_BUF];
    uint16_t *a, *host[2][N_BUF];
} scene;

static const char *const buf_name[N_BUF] = {"h", "x", "y", "act", "qkv"};

static ops_weight *made_up(ops *o, uint32_t index, int64_t n_out, int64_t n_in, bool bias)
{
    ops_fill f = {
        .seed = 3, .index = index, .n_in = n_in, .base = 0, .spread = 1.7f / sqrtf((float)n_in)};
    if (n_out == 1) f.base = 1, f.spread = 0.5f;
    uint16_t *b = bias ? must((size_t)n_out, 2) : NULL;
    if (b) fill(b, n_out, index, RANDOM, 0.2f);
    ops_weight_spec s = {.name = "w",
                         .dtype = OPS_BF16,
                         .n_out = n_out,
                         .n_in = n_in,
                         .read = ops_fill_read,
                         .arg = &f,
                         .bias = b};
    ops_weight *w = NULL;
    ok(o->weight_open(o, &s, &w));
    free(b);
    return w;
}

static void put_decode_step(ops *o, int32_t n)
{
    int32_t page[MOST + 1] = {0}, tok[MOST + 1] = {0};
    step_row r[MOST + 1];
    for (int32_t i = 0; i < n; i++) {
        page[i] = i;
        r[i] = (step_row){.seq = i,
                          .slot = i,
                          .pos = i % 8,
                          .q_len = 1,
                          .tok_first = i,
                          .page = &page[i],
                          .n_page = 1,
                          .want = STEP_WANT_LAST};
    }
    step s = {.id = 1, .kind = STEP_DECODE, .n_row = n, .row = r, .n_tok = n, .tok = tok};
    ok(o->step_put(o, &s));
}

static size_t bytes_of(const scene *s, int k) { return (size_t)((MOST + 1) * s->width[k]) * 2; }

/* like: the instance that this one is a twin of, or NULL. */
static void open_scene(scene *s, const ops_dims *d, bool bias, const ops *like)
{
    ops_conf c = conf(MOST);
    c.max_row = c.n_slot = c.max_lane = MOST;
    ops *o;
    if (like) {
        ok(like->twin(like, d, &o));
        ok(o->configure(o, &c));
    } else {
        o = cuda_open(d, &c);
    }
    const int64_t q = (int64_t)d->n_head * d->d_head, h = d->n_embd, f = d->n_ff;
    const int64_t qkv = q + 2 * (int64_t)d->n_kv * d->d_head;
    *s = (scene){.o = o,
                 .n_embd = d->n_embd,
                 .q = q,
                 .width = {h, h, h, f, qkv},
                 .proj = made_up(o, 1, h, q, bias),
                 .gate_up = made_up(o, 2, 2 * f, h, bias),
                 .down = made_up(o, 3, h, f, bias),
                 .qkv = made_up(o, 4, qkv, h, bias),
                 .gain = {made_up(o, 5, 1, h, false), made_up(o, 6, 1, h, false)},
                 .attn = alloc_dev(o, (size_t)((MOST + 1) * q) * 2),
                 .pair = alloc_dev(o, (size_t)((MOST + 1) * f) * 4),
                 .a = must((size_t)((MOST + 1) * q), 2)};
    for (int k = 0; k < N_BUF; k++)
        for (int way = 0; way < 2; way++) {
            s->buf[way][k] = alloc_dev(o, bytes_of(s, k));
            s->host[way][k] = must(bytes_of(s, k), 1);
        }
}

static void close_scene(scene *s)
{
    ops *o = s->o;
    for (int k = 0; k < N_BUF; k++)
        for (int way = 0; way < 2; way++) {
            o->dev_free(o, s->buf[way][k]);
            free(s->host[way][k]);
        }
    ops_weight *each[] = {s->proj, s->gate_up, s->down, s->qkv, s->gain[0], s->gain[1]};
    for (size_t i = 0; i < sizeof each / sizeof *each; i++) o->weight_close(o, each[i]);
    o->dev_free(o, s->attn), o->dev_free(o, s->pair);
    o->close(o);
    free(s->a);
}

/* The same contents in the buffers of both ways. */
static void fill_scene(scene *s, uint64_t seed)
{
    fill(s->a, (MOST + 1) * s->q, seed, RANDOM, 1.0f);
    put(s->o, s->attn, s->a, (size_t)((MOST + 1) * s->q) * 2);
    for (int k = 0; k < N_BUF; k++) {
        fill(s->host[0][k], (MOST + 1) * s->width[k], 50 * seed + (uint64_t)k, RANDOM, 2.0f);
        for (int way = 0; way < 2; way++) put(s->o, s->buf[way][k], s->host[0][k], bytes_of(s, k));
    }
}

static bool run_between(scene *s, int way, bool last)
{
    void **b = s->buf[way];
    bool done = false;
    ops_between all = {.o = s->proj,
                       .ffn_norm = s->gain[0],
                       .gate_up = s->gate_up,
                       .down = s->down,
                       .next_norm = last ? NULL : s->gain[1],
                       .next_qkv = last ? NULL : s->qkv,
                       .attn = s->attn,
                       .h = b[0],
                       .x = b[1],
                       .y = b[2],
                       .act = b[3],
                       .qkv = b[4],
                       .eps = 1e-6f};
    ok(s->o->between(s->o, &all, &done));
    return done;
}

/* The op against the ops one after the other, by bytes, in all of the buffers; more than `most`
 * rows it leaves to them. */
static void between_case(const ops_dims *d, int32_t most, bool bias, bool last, int turns)
{
    scene s;
    open_scene(&s, d, bias, NULL);
    ops *o = s.o;
    for (int turn = 0; turn < turns; turn++) {
        static const int32_t rows[] = {1, 32, 8, 16, 2, 9, 4, 25, 3, 17, 7, 31, 12, 5};
        const int32_t n = rows[turn % 14];
        put_decode_step(o, n);
        fill_scene(&s, (uint64_t)turn);
        assert_int_equal(run_between(&s, 0, last), n <= most);
        if (n > most) continue;
        void **b = s.buf[1];
        ok(o->matmul(o, OPS_ROWS_TOK, s.proj, s.attn, OPS_BF16, b[2]));
        ok(o->norm(o, OPS_ROWS_TOK, b[0], b[2], s.gain[0], 1e-6f, b[1]));
        ok(o->matmul(o, OPS_ROWS_TOK, s.gate_up, b[1], OPS_BF16, s.pair));
        ok(o->silu_mul(o, s.pair, b[3]));
        ok(o->matmul(o, OPS_ROWS_TOK, s.down, b[3], OPS_BF16, b[2]));
        if (!last) {
            ok(o->norm(o, OPS_ROWS_TOK, b[0], b[2], s.gain[1], 1e-6f, b[1]));
            ok(o->matmul(o, OPS_ROWS_TOK, s.qkv, b[1], OPS_BF16, b[4]));
        }
        for (int k = 0; k < N_BUF; k++) {
            for (int way = 0; way < 2; way++)
                get(o, s.buf[way][k], s.host[way][k], bytes_of(&s, k));
            same_bytes(s.host[0][k], s.host[1][k], bytes_of(&s, k),
                       "%s, width %d, turn %d, %d rows", buf_name[k], s.n_embd, turn, n);
        }
    }
    close_scene(&s);
}

/* Rows among others against the same rows first, or alone, without a kernel of the library. */
static void between_rows(const ops_dims *d)
{
    static const int32_t count[] = {1, 8, 9, 16, 17};
    scene s;
    open_scene(&s, d, true, NULL);
    put_decode_step(s.o, MOST);
    fill_scene(&s, 7);
    uint16_t *h = must(bytes_of(&s, 0), 1);
    get(s.o, s.buf[1][0], h, bytes_of(&s, 0));
    assert_true(run_between(&s, 0, false));
    for (int k = 0; k < N_BUF; k++) get(s.o, s.buf[0][k], s.host[0][k], bytes_of(&s, k));
    for (size_t i = 0; i < sizeof count / sizeof *count; i++)
        for (int32_t from = 0; from + count[i] <= MOST; from += 5) {
            put_decode_step(s.o, count[i]);
            put(s.o, s.attn, s.a + from * s.q, (size_t)(count[i] * s.q) * 2);
            put(s.o, s.buf[1][0], h + from * s.width[0], (size_t)(count[i] * s.width[0]) * 2);
            assert_true(run_between(&s, 1, false));
            for (int k = 0; k < N_BUF; k++) {
                get(s.o, s.buf[1][k], s.host[1][k], bytes_of(&s, k));
                same_bytes(s.host[0][k] + from * s.width[k], s.host[1][k],
                           (size_t)(count[i] * s.width[k]) * 2, "%s, width %d, %d rows from %d",
                           buf_name[k], s.n_embd, count[i], from);
            }
        }
    free(h);
    close_scene(&s);
}

/* As a step: as it is, then recorded, then replayed. */
static void step_between(scene *s, int layers)
{
    bool replay;
    ok(s->o->record(s->o, &replay));
    if (replay) return;
    for (int i = 0; i < layers; i++) assert_true(run_between(s, 0, false));
    ok(s->o->record_end(s->o, CORUN_OK));
}

/* Two instances of a device at once, as an engine's and its audit's: each has the kernel, and their
 * CTAs do not keep each other from starting, as it is and in graphs. */
static void between_beside(const ops_dims *d)
{
    enum { LAYERS = 20, STEPS = 30, TURNS = LAYERS * STEPS };
    scene s[2];
    for (int i = 0; i < 2; i++) {
        open_scene(&s[i], d, false, i ? s[0].o : NULL);
        put_decode_step(s[i].o, MOST);
        fill_scene(&s[i], 11);
    }
    for (int turn = 0; turn < LAYERS; turn++)
        for (int i = 0; i < 2; i++) assert_true(run_between(&s[i], 0, false));
    for (int n = 1; n < STEPS; n++)
        for (int i = 0; i < 2; i++) step_between(&s[i], LAYERS);
    for (int turn = 0; turn < TURNS; turn++) { /* alone */
        assert_true(run_between(&s[0], 1, false));
        get(s[0].o, s[0].buf[1][0], s[0].host[1][0], bytes_of(&s[0], 0));
    }
    for (int k = 0; k < N_BUF; k++) {
        get(s[0].o, s[0].buf[1][k], s[0].host[1][k], bytes_of(&s[0], k));
        for (int i = 0; i < 2; i++) {
            get(s[i].o, s[i].buf[0][k], s[i].host[0][k], bytes_of(&s[i], k));
            same_bytes(s[i].host[0][k], s[0].host[1][k], bytes_of(&s[i], k), "%s, instance %d",
                       buf_name[k], i);
        }
    }
    for (int i = 1; i >= 0; i--) close_scene(&s[i]);
}

/* Until it is set, or ten seconds where a test failed before it set it. */
static void hold(void *until)
{
    for (int i = 0; i < 10000 && !atomic_load((atomic_bool *)until); i++) usleep(1000);
}

/* What an instance gives waits for the turn of another one: as a step that is run as it is,
 * recorded, replayed, and without a recording. */
static void between_turns(const ops_dims *d)
{
    scene s[2];
    for (int i = 0; i < 2; i++) {
        open_scene(&s[i], d, false, i ? s[0].o : NULL);
        put_decode_step(s[i].o, MOST);
        ok(gpu_sync(&cuda_of(s[i].o)->g, "the scene"));
    }
    for (int form = 0; form < 4; form++) {
        const cuda *holder = cuda_of(s[0].o), *other = cuda_of(s[1].o);
        static atomic_bool until;
        atomic_store(&until, false);
        ok(gpu_between_enter(holder->between));
        const cudaError_t held = cudaLaunchHostFunc(holder->g.stream, hold, &until);
        ok(gpu_between_leave(holder->between, CORUN_OK));
        assert_int_equal(held, cudaSuccess);
        if (form == 3)
            assert_true(run_between(&s[1], 0, false));
        else
            step_between(&s[1], 1);
        usleep(20000);
        const cudaError_t waits = cudaStreamQuery(other->g.stream);
        atomic_store(&until, true);
        assert_int_equal(waits, cudaErrorNotReady);
        for (int i = 0; i < 2; i++) ok(gpu_sync(&cuda_of(s[i].o)->g, "the turns"));
    }
    for (int i = 1; i >= 0; i--) close_scene(&s[i]);
}

/* More rows, other kernel sets and other steps are left to the ops. */
static void between_refused(void)
{
    ops_dims d = dims(64, 64);
    for (int form = 0; form < 4; form++) {
        ops_conf c = conf(MOST + 1);
        c.n_slot = c.max_lane = MOST + 1;
        if (form == 1) c.set[OPS_OP_MATMUL] = OPS_SET_STANDARD;
        if (form == 2) c.set[OPS_OP_MATMUL] = OPS_SET_FIXED;
        ops *o = cuda_open(&d, &c);
        bool done = true;
        ops_between all = {0};
        if (form == 3)
            put_tokens(o, 5, 0, STEP_WANT_LAST); /* a prompt */
        else
            put_decode_step(o, form == 0 ? MOST + 1 : 1);
        ok(o->between(o, &all, &done));
        assert_false(done);
        o->close(o);
    }
}

/* Which sizes it takes hangs on the SMs: what is expected below is for all of an H200's. */
static bool on_h200(void)
{
    gpu g;
    ok(gpu_open(&g, 0));
    const bool yes = g.cc == 90 && g.sm_count == 132;
    gpu_close(&g);
    return yes;
}

#endif

static void test_between(void **state)
{
    (void)state;
    NEED_CUDA();
#ifdef CORUN_CUDA
    /* The last ones: shares of a CTA that reach behind the last row, of every product; and shares
     * so large that the ring has too little room beside 32 rows. */
    static const struct {
        ops_dims d;
        int32_t most;
    } all[] = {
        {{2, 64, 4, 2, 64, 64, 130}, MOST},       {{2, 576, 9, 3, 64, 1536, 130}, MOST},
        {{2, 1024, 16, 8, 128, 3072, 130}, MOST}, {{2, 896, 14, 2, 64, 4864, 130}, MOST},
        {{2, 2048, 16, 8, 128, 6144, 130}, MOST}, {{2, 4096, 32, 8, 128, 12288, 130}, MOST},
        {{2, 5120, 64, 8, 128, 25600, 130}, 8},   {{2, 2560, 32, 8, 128, 9728, 130}, MOST},
        {{2, 3584, 28, 4, 128, 18944, 130}, 8},   {{2, 8192, 64, 8, 128, 28672, 130}, 8},
    };
    const bool brief = getenv("CORUN_TEST_SHORT") != NULL;
    if (!on_h200()) skip();
    for (size_t i = 0; i < (brief ? 4 : sizeof all / sizeof *all); i++)
        for (int form = 0; form < 3; form++)
            between_case(&all[i].d, all[i].most, form == 1, form == 2,
                         brief   ? 5
                         : i < 4 ? 140
                                 : 28);
    between_refused();
#endif
}

static void test_between_rows(void **state)
{
    (void)state;
    NEED_CUDA();
#ifdef CORUN_CUDA
    static const ops_dims all[] = {{2, 64, 4, 2, 64, 64, 130}, {2, 576, 9, 3, 64, 1536, 130}};
    if (!on_h200()) skip();
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) between_rows(&all[i]);
#endif
}

static void test_between_beside(void **state)
{
    (void)state;
    NEED_CUDA();
#ifdef CORUN_CUDA
    static const ops_dims d = {2, 1024, 16, 8, 128, 3072, 130};
    if (!on_h200()) skip();
    between_beside(&d);
    between_turns(&d);
#endif
}

static void test_refusals(void **state)
{
    (void)state;
    NEED_CUDA();
    ops_open_opts oo = {.device = -1}, far = {.device = 1000};
    ops_dims d = dims(64, 64);
    ops *o;
    assert_int_equal(ops_open_cuda(&o, &d, &far), CORUN_EINVAL);
    d.d_head = 96;
    assert_int_equal(ops_open_cuda(&o, &d, &oo), CORUN_EUNSUPPORTED);
    assert_non_null(strstr(err_text(), "96"));
    d = dims(60, 64);
    assert_int_equal(ops_open_cuda(&o, &d, &oo), CORUN_EUNSUPPORTED);
    d = dims(64, 64);
    setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 1);
    assert_int_equal(ops_open_cuda(&o, &d, &oo), CORUN_EINVAL);
    assert_non_null(strstr(err_text(), "CUBLAS_WORKSPACE_CONFIG"));
    unsetenv("CUBLAS_WORKSPACE_CONFIG");
    ok(ops_open_cuda(&o, &d, &oo));
    step none = {.id = 1};
    assert_int_equal(o->step_put(o, &none), CORUN_EINVAL); /* before configure */
    ops_conf c = conf(4);
    c.n_page = 1 << 28;
    assert_int_equal(o->configure(o, &c), CORUN_ENOMEM);
    assert_non_null(strstr(err_text(), "KV pages"));
    c = conf(4);
    ok(o->configure(o, &c)); /* and it is whole again */
    ok(o->step_put(o, &none));
    o->close(o);
}

/* The first argument, where there is one, is the pattern of the tests that run. */
int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest t[] = {
        cmocka_unit_test(test_norm),           cmocka_unit_test(test_silu),
        cmocka_unit_test(test_qkv_post),       cmocka_unit_test(test_embed_and_logits),
        cmocka_unit_test(test_pages),          cmocka_unit_test(test_weights),
        cmocka_unit_test(test_large_weight),   cmocka_unit_test(test_decode_steps),
        cmocka_unit_test(test_between),        cmocka_unit_test(test_between_rows),
        cmocka_unit_test(test_between_beside), cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests_name("cuda: ops", t, NULL, NULL);
}
