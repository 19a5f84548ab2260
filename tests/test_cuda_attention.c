/* test_cuda_attention.c - attention of the CUDA backend by its bits: single rows, whole prompts,
 * pieces and steps of all of them, graphs replayed over other lengths, each kernel set. Skips where
 * there is no Hopper device. tools/gpu/attention/check.cu asks more, and times it.
 *
 * One sequence of LENGTH tokens; the result of a step is kept by position. NaN lies wherever no
 * token is. Invariant: every comparison is of fp32 outputs before rounding, by bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#ifdef CORUN_CUDA

#include <cuda_runtime_api.h>

#include "ops/cuda/attention.h"

enum { LENGTH = 1700, ROOM = LENGTH + 64, N_KV = 2, PAGES_64 = 64 };

static gpu device;
static bool have;

static int open_device(void **state)
{
    (void)state;
    have = gpu_open(&device, -1) == CORUN_OK;
    if (!have) print_message("skipped: %s\n", corun_last_error());
    return 0;
}

static int close_device(void **state)
{
    (void)state;
    gpu_close(&device);
    return 0;
}

#define OK(call)                                                                                   \
    do {                                                                                           \
        if ((call) != CORUN_OK) fail_msg("%s: %s", #call, corun_last_error());                     \
    } while (0)
#define CUDA(call) OK(gpu_status((int)(call), #call))
#define NEED_DEVICE                                                                                \
    do {                                                                                           \
        (void)state;                                                                               \
        if (!have) skip();                                                                         \
    } while (0)

/* ---- one shape ------------------------------------------------------------------------------ */

/* Positions [first, first + n) as one row; n 0: a dead row. */
typedef struct piece {
    int32_t first, n;
} piece;

typedef struct rig {
    ops_dims d;
    ops_conf c;
    gpu_kv kv;
    gpu_attn *a;
    gpu_step s;
    size_t token;     /* outputs of a token */
    uint16_t *q_host; /* [position][token] */
    int32_t at[ROOM]; /* position of each token row of the step, -1: of a dead row */
    void *q, *out;
    float *wide, *host; /* [token row][token]: on the device, here */
} rig;

/* bf16 from a counter, about of variance 1. */
static uint16_t value(uint64_t i)
{
    i = (i + 1) * 0x9E3779B97F4A7C15u;
    i = (i ^ i >> 30) * 0xBF58476D1CE4E5B9u;
    i = (i ^ i >> 27) * 0x94D049BB133111EBu;
    i ^= i >> 31;
    float f = ((float)(i & 0xffff) + (float)(i >> 16 & 0xffff) - 65535.0f) * (1.0f / 27000.0f);
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return (uint16_t)(u >> 16);
}

static void *dev(size_t bytes)
{
    void *p;
    OK(gpu_alloc(&device, &p, bytes, "test"));
    return p;
}

static void put(void *to, const void *from, size_t bytes)
{
    CUDA(cudaStreamSynchronize((cudaStream_t)device.stream));
    CUDA(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
}

/* Page of the sequence's i-th page: some order that is not upward. */
static int32_t page_at(const rig *r, int32_t i) { return (i * 37 + 11) % r->c.n_page; }

/* The pool: NaN, and the first `length` tokens of the sequence. */
static void fill_pool(rig *r, int32_t length)
{
    int32_t pt = r->kv.page_tokens, d = r->d.d_head;
    uint16_t *bytes = malloc(r->kv.layer_stride);
    assert_non_null(bytes);
    memset(bytes, 0xff, r->kv.layer_stride);
    for (int32_t t = 0; t < length; t++)
        for (int32_t m = 0; m < 2 * N_KV; m++) /* K, V of each kv head */
            for (int32_t e = 0; e < d; e++) {
                size_t matrix = ((size_t)page_at(r, t / pt) * 2 * N_KV + (size_t)m) * (size_t)pt;
                int32_t in_page = t % pt, piece8 = (e % 64 / 8) ^ (in_page & 7);
                size_t line = ((size_t)(e / 64) * (size_t)pt + (size_t)in_page) * 64;
                bytes[matrix * (size_t)d + line + (size_t)(piece8 * 8 + e % 8)] =
                    value(((uint64_t)t * 2 * N_KV + (uint64_t)m) * 256 + (uint64_t)e);
            }
    put(r->kv.base, bytes, r->kv.layer_stride);
    free(bytes);
}

static rig *open_rig(int32_t d_head, int32_t group, int32_t page_tokens, ops_set set)
{
    rig *r = calloc(1, sizeof *r);
    assert_non_null(r);
    r->d = (ops_dims){.n_layer = 1, .n_head = N_KV * group, .n_kv = N_KV, .d_head = d_head};
    r->c = (ops_conf){.n_ctx = LENGTH,
                      .max_tok = ROOM,
                      .max_row = ROOM,
                      .page_tokens = page_tokens,
                      .n_page = PAGES_64 * 64 / page_tokens};
    r->c.set[OPS_OP_ATTN_DECODE] = r->c.set[OPS_OP_ATTN_PREFILL] = set;
    r->kv = (gpu_kv){.page_stride = (size_t)N_KV * 2 * (size_t)page_tokens * (size_t)d_head * 2,
                     .page_tokens = page_tokens,
                     .n_kv = N_KV,
                     .d_head = d_head};
    r->kv.layer_stride = r->kv.page_stride * (size_t)r->c.n_page;
    r->kv.base = dev(r->kv.layer_stride);
    r->token = (size_t)r->d.n_head * (size_t)d_head;
    r->s.max_row = r->s.max_tok = ROOM;
    r->s.max_page = (LENGTH + page_tokens - 1) / page_tokens;
    r->s.row_tok = dev((ROOM + 1) * sizeof(int32_t));
    r->s.row_pos = dev(ROOM * sizeof(int32_t));
    r->s.row_len = dev(ROOM * sizeof(int32_t));
    r->s.page = dev((size_t)ROOM * (size_t)r->s.max_page * sizeof(int32_t));
    r->q = dev(ROOM * r->token * 2);
    r->out = dev(ROOM * r->token * 2);
    r->wide = dev(ROOM * r->token * sizeof(float));
    r->host = malloc(ROOM * r->token * sizeof(float));
    r->q_host = malloc(LENGTH * r->token * 2);
    assert_true(r->host && r->q_host);
    for (size_t i = 0; i < LENGTH * r->token; i++) r->q_host[i] = value(i + (1ull << 40));
    OK(gpu_attn_open(&r->a, &device, &r->d, &r->c, &r->kv));
    gpu_attn_probe(r->a, r->wide, false, -1);
    fill_pool(r, LENGTH);
    return r;
}

static void close_rig(rig *r)
{
    void *all[] = {r->kv.base, r->s.row_tok, r->s.row_pos, r->s.row_len,
                   r->s.page,  r->q,         r->out,       r->wide};
    gpu_attn_close(r->a);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) gpu_free(all[i]);
    free(r->host);
    free(r->q_host);
    free(r);
}

/* Puts a step of these rows; its outputs are poisoned. */
static void put_step(rig *r, const piece *row, int32_t n)
{
    int32_t *first = calloc(ROOM + 1, sizeof *first), *pos = calloc(ROOM, sizeof *pos);
    int32_t *len = calloc(ROOM, sizeof *len), n_tok = 0;
    int32_t *page = malloc((size_t)n * (size_t)r->s.max_page * sizeof *page);
    uint16_t *q = malloc(ROOM * r->token * 2);
    assert_true(first && pos && len && page && q);
    memset(q, 0xff, ROOM * r->token * 2);
    r->s.max_q = 1;
    for (int32_t i = 0; i < n; i++) {
        first[i] = n_tok;
        pos[i] = row[i].n ? row[i].first : -1;
        len[i] = row[i].n ? row[i].n : 1;
        if (len[i] > r->s.max_q) r->s.max_q = len[i];
        for (int32_t p = 0; p < r->s.max_page; p++)
            page[i * r->s.max_page + p] = row[i].n ? page_at(r, p) : INT32_MAX;
        for (int32_t t = 0; t < len[i]; t++, n_tok++) {
            r->at[n_tok] = row[i].n ? row[i].first + t : -1;
            if (row[i].n)
                memcpy(q + (size_t)n_tok * r->token, r->q_host + (size_t)r->at[n_tok] * r->token,
                       r->token * 2);
        }
    }
    first[n] = n_tok;
    r->s.n_row = n;
    r->s.n_tok = n_tok;
    r->s.kind = r->s.max_q == 1 ? STEP_DECODE : n == 1 ? STEP_PREFILL : STEP_MIXED;
    put(r->s.row_tok, first, (size_t)(n + 1) * sizeof *first);
    put(r->s.row_pos, pos, (size_t)n * sizeof *pos);
    put(r->s.row_len, len, (size_t)n * sizeof *len);
    put(r->s.page, page, (size_t)n * (size_t)r->s.max_page * sizeof *page);
    put(r->q, q, ROOM * r->token * 2);
    CUDA(cudaMemset(r->wide, 0xff, ROOM * r->token * sizeof(float)));
    CUDA(cudaMemset(r->out, 0xff, ROOM * r->token * 2));
    CUDA(cudaDeviceSynchronize());
    free(first);
    free(pos);
    free(len);
    free(page);
    free(q);
}

static void launch(rig *r)
{
    OK(gpu_attn_plan(r->a, &r->s));
    OK(gpu_attn_run(r->a, &r->s, 0, r->q, r->d.d_head == 64 ? 0.125f : 0.08838834764831845f, r->out,
                    false));
}

/* The outputs of the step, here. */
static void fetch(rig *r)
{
    CUDA(cudaStreamSynchronize((cudaStream_t)device.stream));
    CUDA(cudaMemcpy(r->host, r->wide, ROOM * r->token * sizeof(float), cudaMemcpyDeviceToHost));
}

/* The outputs of the step into result[position][token]; those of dead rows must be untouched. */
static void take(rig *r, float *result)
{
    fetch(r);
    for (int32_t t = 0; t < r->s.n_tok; t++) {
        const float *from = r->host + (size_t)t * r->token;
        if (r->at[t] >= 0) {
            memcpy(result + (size_t)r->at[t] * r->token, from, r->token * sizeof(float));
            continue;
        }
        const uint8_t *byte = (const uint8_t *)from;
        for (size_t i = 0; i < r->token * sizeof(float); i++) assert_int_equal(byte[i], 0xff);
    }
}

static void run(rig *r, const piece *row, int32_t n, float *result)
{
    put_step(r, row, n);
    launch(r);
    take(r, result);
}

/* A step whose rows may overlap: each output must be that of its position. */
static void run_against(rig *r, const piece *row, int32_t n, const float *expect)
{
    put_step(r, row, n);
    launch(r);
    fetch(r);
    for (int32_t i = 0, t = 0; i < n; i++)
        for (int32_t k = 0; k < row[i].n; k++, t++)
            if (memcmp(r->host + (size_t)t * r->token, expect + (size_t)r->at[t] * r->token,
                       r->token * sizeof(float)) != 0)
                fail_msg("d %d, group %d, pages of %d, %d rows: token %d of [%d, %d) differs",
                         r->d.d_head, r->d.n_head / N_KV, r->kv.page_tokens, n, k, row[i].first,
                         row[i].first + row[i].n);
}

static float *results(const rig *r)
{
    float *x = malloc(LENGTH * r->token * sizeof *x);
    assert_non_null(x);
    memset(x, 0xff, LENGTH * r->token * sizeof *x);
    return x;
}

static void assert_same(const rig *r, const float *x, const float *y)
{
    for (int32_t p = 0; p < LENGTH; p++)
        if (memcmp(x + (size_t)p * r->token, y + (size_t)p * r->token, r->token * sizeof *x) != 0)
            fail_msg("d %d, group %d, pages of %d: position %d differs", r->d.d_head,
                     r->d.n_head / N_KV, r->kv.page_tokens, p);
}

static void assert_finite(const rig *r, const float *x)
{
    for (size_t i = 0; i < LENGTH * r->token; i++)
        if (!(x[i] - x[i] == 0)) fail_msg("output %zu is not finite", i);
}

/* Every position as a row of its own. */
static void run_decode(rig *r, float *result)
{
    static piece row[LENGTH];
    for (int32_t p = 0; p < LENGTH; p++) row[p] = (piece){p, 1};
    run(r, row, LENGTH, result);
}

/* Pieces and single rows from the end on, dead rows between. */
static const piece mixed[] = {{1699, 1}, {0, 0},     {1600, 99}, {1599, 1}, {1100, 499},
                              {0, 0},    {513, 587}, {512, 1},   {511, 1},  {130, 381},
                              {129, 1},  {0, 0},     {1, 128},   {0, 1},    {0, 0}};
enum { N_MIXED = sizeof mixed / sizeof *mixed };

/* ---- tests ---------------------------------------------------------------------------------- */

static void refused(int32_t heads, int32_t n_kv, int32_t d_head, int32_t page_tokens,
                    const char *word)
{
    ops_dims d = {.n_layer = 1, .n_head = heads, .n_kv = n_kv, .d_head = d_head};
    ops_conf c = {.n_ctx = 64, .max_tok = 1, .max_row = 1, .page_tokens = page_tokens, .n_page = 1};
    gpu_kv kv = {.page_tokens = page_tokens, .n_kv = n_kv, .d_head = d_head};
    gpu_attn *a;
    assert_int_equal(gpu_attn_open(&a, &device, &d, &c, &kv), CORUN_EUNSUPPORTED);
    assert_null(a);
    assert_non_null(strstr(corun_last_error(), word));
}

static void test_refusals(void **state)
{
    (void)state;
    refused(8, 2, 96, 64, "head dimension is 96");
    refused(34, 2, 128, 64, "34 heads on 2 kv heads");
    refused(7, 2, 128, 64, "7 heads on 2 kv heads");
    refused(8, 2, 128, 48, "pages of 48");
    refused(8, 2, 128, 256, "pages of 256");
}

static void test_phases_agree(void **state)
{
    static const int32_t shape[][3] = {{128, 4, 64}, {64, 3, 16}, {128, 16, 128}, {64, 1, 32}};
    NEED_DEVICE;
    bool brief = getenv("CORUN_TEST_SHORT") != NULL; /* both head dimensions, one set */
    for (size_t i = 0; i < (brief ? 2 : sizeof shape / sizeof *shape); i++)
        for (int set = brief ? OPS_SET_CANONICAL : OPS_SET_FIXED; set <= OPS_SET_CANONICAL; set++) {
            rig *r = open_rig(shape[i][0], shape[i][1], shape[i][2], (ops_set)set);
            float *expect = results(r), *got = results(r);
            run_decode(r, expect);
            assert_finite(r, expect);
            run(r, &(piece){0, LENGTH}, 1, got);
            assert_same(r, expect, got);
            memset(got, 0xff, LENGTH * r->token * sizeof *got);
            run(r, mixed, N_MIXED, got);
            assert_same(r, expect, got);
            gpu_attn_probe(r->a, r->wide, false, 0); /* all folds in registers */
            memset(got, 0xff, LENGTH * r->token * sizeof *got);
            run_decode(r, got);
            assert_same(r, expect, got);
            memset(got, 0xff, LENGTH * r->token * sizeof *got);
            for (int32_t at = 0, n = 1; at < LENGTH; at += n, n = n * 3 + 1) {
                if (n > LENGTH - at) n = LENGTH - at;
                fill_pool(r, at + n); /* NaN behind the piece */
                run(r, &(piece){at, n}, 1, got);
            }
            assert_same(r, expect, got);
            free(expect);
            free(got);
            close_rig(r);
        }
}

/* Pieces of 2 to 129 tokens at the borders of blocks and chunks: alone, where the blocks are spread
 * over the device, and as many in a step as have room, where each CTA does one after the other. */
static void test_short_pieces(void **state)
{
    static const int32_t shape[][3] = {{128, 4, 64}, {64, 3, 16}};
    static const int32_t first[] = {0, 1, 63, 64, 65, 127, 128, 400, 449, 511, 512};
    static const int32_t alone[] = {2, 3, 17, 63, 64, 65, 66, 112, 127, 128, 129};
    enum { N_FIRST = sizeof first / sizeof *first, N_ALONE = sizeof alone / sizeof *alone };
    static piece row[ROOM / 2];
    NEED_DEVICE;
    int32_t more = getenv("CORUN_TEST_SHORT") ? 9 : 1;
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++) {
        rig *r = open_rig(shape[i][0], shape[i][1], shape[i][2], OPS_SET_CANONICAL);
        float *expect = results(r);
        int32_t n = 0, tokens = 0;
        run_decode(r, expect);
        for (int32_t f = 0; f < N_FIRST; f++)
            for (int32_t k = 0; k < N_ALONE; k++)
                run_against(r, &(piece){first[f], alone[k]}, 1, expect);
        for (int32_t length = 2; length <= 129; length += more)
            for (int32_t f = 0; f < N_FIRST; f++) {
                if (tokens + length > ROOM) {
                    run_against(r, row, n, expect);
                    n = tokens = 0;
                }
                row[n++] = (piece){first[f], length};
                tokens += length;
            }
        run_against(r, row, n, expect);
        for (n = 0; n < ROOM / 2; n++) row[n] = (piece){n % 126, 2}; /* items of one block */
        for (int32_t times = 0; times < 8; times++) run_against(r, row, n, expect);
        free(expect);
        close_rig(r);
    }
}

/* Some rows of each kind, alone and in pieces: few enough for a tool that follows every access. */
static void test_few(void **state)
{
    static const int32_t shape[][3] = {{128, 4, 64}, {64, 3, 16}};
    static const piece few[] = {{1690, 10}, {0, 0}, {1600, 1}, {505, 20}, {100, 60}, {0, 3}};
    enum { N_FEW = sizeof few / sizeof *few };
    NEED_DEVICE;
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++) {
        rig *r = open_rig(shape[i][0], shape[i][1], shape[i][2], OPS_SET_CANONICAL);
        float *expect = results(r), *got = results(r);
        piece row[128];
        int32_t n = 0;
        for (int32_t k = 0; k < N_FEW; k++)
            for (int32_t at = 0; at < few[k].n; at++) row[n++] = (piece){few[k].first + at, 1};
        run(r, row, n, expect);
        run(r, few, N_FEW, got);
        assert_same(r, expect, got);
        assert_memory_not_equal(got + 1600 * r->token, got + 1601 * r->token,
                                r->token * sizeof *got); /* 1601 was not run */
        free(expect);
        free(got);
        close_rig(r);
    }
}

static void test_replay(void **state)
{
    NEED_DEVICE;
    enum { N = 100 };
    rig *r = open_rig(128, 4, 64, OPS_SET_CANONICAL);
    float *expect = results(r), *got = results(r);
    piece row[N];
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    run_decode(r, expect);
    for (int32_t i = 0; i < N; i++) row[i] = (piece){i % 7, i % 3 ? 1 : 0};
    put_step(r, row, N);
    CUDA(cudaStreamBeginCapture((cudaStream_t)device.stream, cudaStreamCaptureModeThreadLocal));
    launch(r);
    CUDA(cudaStreamEndCapture((cudaStream_t)device.stream, &graph));
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    for (int32_t at = 0; at < LENGTH; at += N) {
        for (int32_t i = 0; i < N; i++) row[i] = (piece){at + (i * 37 + at) % N, 1};
        put_step(r, row, N);
        CUDA(cudaGraphLaunch(exec, (cudaStream_t)device.stream));
        take(r, got);
    }
    assert_same(r, expect, got);
    CUDA(cudaGraphExecDestroy(exec));
    CUDA(cudaGraphDestroy(graph));
    free(expect);
    free(got);
    close_rig(r);
}

static void test_standard_follows_load(void **state)
{
    NEED_DEVICE;
    rig *r = open_rig(128, 4, 64, OPS_SET_STANDARD);
    float *expect = results(r), *got = results(r), *alone = results(r);
    size_t last = (LENGTH - 1) * r->token;
    run_decode(r, expect);
    run_decode(r, got);
    assert_finite(r, expect);
    assert_same(r, expect, got); /* it repeats itself */
    run(r, &(piece){LENGTH - 1, 1}, 1, alone);
    assert_memory_not_equal(expect + last, alone + last, r->token * sizeof *alone);
    free(expect);
    free(got);
    free(alone);
    close_rig(r);
}

/* A fold in the wrong order is seen. */
static void test_planted_fault(void **state)
{
    NEED_DEVICE;
    rig *r = open_rig(128, 4, 64, OPS_SET_CANONICAL);
    float *expect = results(r), *got = results(r);
    size_t last = (LENGTH - 1) * r->token;
    piece row = {LENGTH - 1, 1};
    run(r, &row, 1, expect);
    gpu_attn_probe(r->a, r->wide, true, -1);
    run(r, &row, 1, got);
    assert_memory_not_equal(expect + last, got + last, r->token * sizeof *got);
    free(expect);
    free(got);
    close_rig(r);
}

/* The first argument, where there is one, is the pattern of the tests that run. */
int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),     cmocka_unit_test(test_phases_agree),
        cmocka_unit_test(test_short_pieces), cmocka_unit_test(test_few),
        cmocka_unit_test(test_replay),       cmocka_unit_test(test_standard_follows_load),
        cmocka_unit_test(test_planted_fault)};
    return cmocka_run_group_tests(tests, open_device, close_device);
}

#else

static void test_not_built(void **state)
{
    (void)state;
    skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_not_built)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
