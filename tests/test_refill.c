/* test_refill.c - weights given as arrays: digest, refusals, short memory, and the rows of a GGUF
 * model. That a refilled model is a freshly opened one is shown in test_python.py. */
#include "engine_run.h"
#include <unistd.h>

#include "files/weights.h"

/* All tensors of a model's files in memory, bf16 or fp32. */
typedef struct set {
    size_t n;
    corun_tensor *t;
    weights *w;
} set;

static void set_open(set *s, const char *path, corun_dtype type)
{
    assert_int_equal(weights_open(&s->w, path), CORUN_OK);
    s->n = weights_count(s->w);
    s->t = calloc(s->n, sizeof *s->t);
    for (size_t i = 0; i < s->n; i++) {
        const weights_tensor *t = weights_at(s->w, i);
        int64_t rows = 1, cols = 1;
        for (int32_t d = 0; d < t->n_dim; d++) {
            if (d < t->n_dim - 1)
                rows *= t->dim[d];
            else
                cols = t->dim[d];
        }
        void *data = malloc((size_t)(rows * cols) * (type == CORUN_F32 ? 4 : 2) + 1);
        assert_non_null(data);
        assert_int_equal(type == CORUN_F32 ? weights_read_f32(s->w, t, 0, rows, data)
                                           : weights_read_bf16(s->w, t, 0, rows, data),
                         CORUN_OK);
        s->t[i] = (corun_tensor){t->name, type, t->n_dim, t->dim, data};
    }
}

static void set_close(set *s)
{
    for (size_t i = 0; i < s->n; i++) free((void *)(uintptr_t)s->t[i].data);
    free(s->t);
    weights_close(s->w);
}

static const char golden[] = TEST_DATA "/golden/llama_plain";

static void refused(corun_status got, corun_status want, const char *word)
{
    assert_int_equal(got, want);
    if (!strstr(corun_last_error(), word)) fail_msg("%s: %s", word, corun_last_error());
}

static void test_digest(void **state)
{
    (void)state;
    set s;
    weights *w;
    digest want, got;
    set_open(&s, golden, CORUN_BF16);
    weights_array *a = calloc(s.n + 1, sizeof *a);
    for (size_t i = 0; i < s.n; i++) { /* in reverse: the order does not count */
        a[i].t = *weights_at(s.w, s.n - 1 - i);
        assert_int_equal(a[i].t.dtype, WEIGHTS_BF16);
        a[i].data = s.t[s.n - 1 - i].data;
    }
    assert_int_equal(weights_of_arrays(&w, a, s.n, false), CORUN_OK);
    assert_int_equal(weights_digest(s.w, &want), CORUN_OK);
    assert_int_equal(weights_digest(w, &got), CORUN_OK);
    assert_memory_equal(&got, &want, sizeof got);
    weights_close(w);
    ((uint8_t *)(uintptr_t)a[0].data)[1] ^= 1; /* one bit */
    assert_int_equal(weights_of_arrays(&w, a, s.n, false), CORUN_OK);
    assert_int_equal(weights_digest(w, &got), CORUN_OK);
    assert_memory_not_equal(&got, &want, sizeof got);
    weights_close(w);
    a[s.n] = a[3];
    refused(weights_of_arrays(&w, a, s.n + 1, false), CORUN_EFORMAT, a[3].t.name);
    assert_null(w);
    a[0].t.dtype = WEIGHTS_Q8_0;
    refused(weights_of_arrays(&w, a, s.n, false), CORUN_EINVAL, "F32, F16 or BF16");
    free(a);
    set_close(&s);
}

static void test_refused(void **state)
{
    (void)state;
    set s;
    corun_model_info before, after;
    corun_model *m = run_open(golden);
    set_open(&s, golden, CORUN_BF16);
    assert_int_equal(corun_model_describe(m, &before), CORUN_OK);
    const int64_t huge[2] = {INT64_MAX / 2, INT64_MAX / 2}, less[2] = {-1, 4};
    const corun_tensor bad[] = {
        {NULL, CORUN_BF16, 0, NULL, s.t[0].data}, {"x", (corun_dtype)7, 0, NULL, s.t[0].data},
        {"x", CORUN_BF16, 9, huge, s.t[0].data},  {"x", CORUN_BF16, -1, huge, s.t[0].data},
        {"x", CORUN_BF16, 2, NULL, s.t[0].data},  {"x", CORUN_BF16, 2, huge, s.t[0].data},
        {"x", CORUN_BF16, 2, less, s.t[0].data},  {"x", CORUN_BF16, 0, NULL, NULL}};
    const corun_tensor kept = s.t[2];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        s.t[2] = bad[i];
        refused(corun_model_refill(m, s.t, s.n), CORUN_EINVAL, "tensor");
    }
    s.t[2] = kept;
    refused(corun_model_refill(m, NULL, 1), CORUN_EINVAL, "NULL");
    refused(corun_model_refill(NULL, s.t, s.n), CORUN_EINVAL, "NULL");
    refused(corun_model_refill(m, NULL, 0), CORUN_EFORMAT, "missing");
    refused(corun_model_refill(m, s.t, s.n - 1), CORUN_EFORMAT, s.t[s.n - 1].name);
    assert_int_equal(corun_model_describe(m, &after), CORUN_OK);
    assert_memory_equal(&after, &before, sizeof after);
    set_close(&s);
    corun_model_close(m);
}

/* Short sequences: opening stays cheap. */
static corun_engine_opts small_opts(void)
{
    corun_engine_opts o = corun_engine_opts_default();
    o.n_ctx = 128;
    return o;
}

static void run_one(corun_model *m, run_sample *out)
{
    static const int32_t prompt[] = {7, 3, 25, 9};
    const corun_engine_opts o = small_opts();
    run_request q = {.r = {.tokens = prompt, .n_token = 4}, .out = out};
    assert_int_equal(corun_sampling_default(m, &q.r.sampling), CORUN_OK);
    q.r.sampling.max_tokens = 20;
    q.r.sampling.logprobs = 2;
    q.r.sampling.prompt_logprobs = 0;
    q.r.sampling.ignore_eos = true;
    run_all(m, &o, &q, 1, 1);
}

/* Wherever memory runs out: the old weights stay, or nothing runs until a refill succeeds. */
static void test_short_of_memory(void **state)
{
    (void)state;
    set s;
    corun_model_info before, after;
    corun_engine *e;
    corun_model *m = run_open(golden);
    const corun_engine_opts o = small_opts();
    run_sample *want = calloc(1, sizeof *want), *got = calloc(1, sizeof *got);
    set_open(&s, golden, CORUN_BF16);
    assert_int_equal(corun_model_describe(m, &before), CORUN_OK);
    run_one(m, want);
    int kept = 0, mixed = 0;
    for (uint64_t k = 1;; k++) {
        assert_int_equal(corun_engine_open(&e, m, &o), CORUN_OK);
        mem_fail_at(k);
        corun_status st = corun_model_refill(m, s.t, s.n);
        mem_fail_at(0);
        corun_engine_close(e);
        if (st == CORUN_OK) break;
        assert_int_equal(st, CORUN_ENOMEM);
        if (corun_engine_open(&e, m, &o) == CORUN_OK) {
            corun_engine_close(e);
            assert_int_equal(corun_model_describe(m, &after), CORUN_OK);
            assert_string_equal(after.weights_digest, before.weights_digest);
            kept++;
        } else {
            refused(CORUN_EINVAL, CORUN_EINVAL, "half way");
            assert_int_equal(corun_model_refill(m, s.t, s.n), CORUN_OK);
            mixed++;
        }
        if (k % 16 == 0) {
            run_one(m, got);
            assert_int_equal(run_differ(got, want, 1), 0);
        }
    }
    assert_true(kept > 3 && mixed > 3);
    run_one(m, got);
    assert_int_equal(run_differ(got, want, 1), 0);
    set_close(&s);
    free(want);
    free(got);
    corun_model_close(m);
}

/* A GGUF model refilled with its own values, expanded: other types, the same bits. Its q and k
 * have interleaved rows. */
static void test_gguf(void **state)
{
    (void)state;
    const char *path = TEST_CACHE "/models/SmolLM2-135M-Instruct.Q4_1.gguf";
    if (access(path, R_OK) != 0) {
        if (getenv("CI")) fail_msg("%s: not fetched", path);
        skip();
    }
    set s;
    corun_model_info before, after;
    run_sample *want = calloc(1, sizeof *want), *got = calloc(1, sizeof *got);
    corun_model *m = run_open(path);
    assert_int_equal(corun_model_describe(m, &before), CORUN_OK);
    run_one(m, want);
    set_open(&s, path, CORUN_BF16);
    uint16_t *row = (uint16_t *)(uintptr_t)s.t[0].data;
    for (int i = 0; i < 576; i++) row[i] ^= 0x8000;
    assert_int_equal(corun_model_refill(m, s.t, s.n), CORUN_OK);
    run_one(m, got);
    assert_int_equal(run_differ(got, want, 1), 1);
    for (int i = 0; i < 576; i++) row[i] ^= 0x8000;
    assert_int_equal(corun_model_refill(m, s.t, s.n), CORUN_OK);
    run_one(m, got);
    assert_int_equal(run_differ(got, want, 1), 0);
    assert_int_equal(corun_model_describe(m, &after), CORUN_OK);
    assert_string_not_equal(after.weights_digest, before.weights_digest);
    assert_string_equal(before.tensor_types, "F32 61, Q4_1 210, Q8_0 1");
    assert_string_equal(after.tensor_types, "BF16 272");
    set_close(&s);
    free(want);
    free(got);
    corun_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_digest),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_short_of_memory),
        cmocka_unit_test(test_gguf),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
