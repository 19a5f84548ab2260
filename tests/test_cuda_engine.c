/* test_cuda_engine.c - the promise on a CUDA device, with the tiny models and made-up ones: a
 * request gets the same bytes whatever runs beside it, by the policy's word; recorded steps and
 * steps that are not; a refill. Everything is compared by bytes. */
#include "cuda_there.h"
#include "engine_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "files/weights.h"

enum { N = 14 };

static int32_t prompts[N][RUN_MAX_PROMPT];

static corun_model *open_with(const char *path, bool dummy, const char *plan)
{
    corun_model *m;
    corun_model_opts o = corun_model_opts_default();
    o.path = path;
    o.device = "cuda";
    o.dummy_weights = dummy;
    o.plan = plan;
    if (corun_model_open(&m, &o) != CORUN_OK) fail_msg("%s: %s", path, corun_last_error());
    return m;
}

static corun_model *open_on(const char *path, bool dummy) { return open_with(path, dummy, NULL); }

static corun_engine_opts opts(corun_policy p)
{
    corun_engine_opts o = corun_engine_opts_default();
    o.policy = p;
    o.n_slot = 6;
    o.n_ctx = 2048;
    o.page_tokens = 16;
    return o;
}

/* Fourteen requests: short and long, greedy and not, some with penalties or filters. */
static void requests(corun_model *m, run_request *q, run_sample *out, bool scored)
{
    corun_model_info info;
    assert_int_equal(corun_model_describe(m, &info), CORUN_OK);
    uint64_t s = 99;
    for (int i = 0; i < N; i++) {
        static const int len[N] = {1, 7, 16, 17, 100, 127, 128, 129, 300, 511, 513, 40, 65, 700};
        corun_request *r = &q[i].r;
        *r = (corun_request){.tokens = prompts[i], .n_token = (size_t)len[i]};
        for (int k = 0; k < len[i]; k++)
            prompts[i][k] = (int32_t)(run_rand(&s) % (uint64_t)info.n_vocab);
        assert_int_equal(corun_sampling_default(m, &r->sampling), CORUN_OK);
        corun_sampling *p = &r->sampling;
        p->max_tokens = 20 + i * 7;
        p->seed = 1000 + (uint64_t)i;
        p->logprobs = 3;
        p->ignore_eos = true;
        p->temperature = i % 5 == 0 ? 0 : 1;
        p->top_k = i % 4 == 1 ? 20 : 0;
        p->top_p = i % 4 == 2 ? 0.9 : 1;
        p->repetition_penalty = i % 6 == 3 ? 1.2 : 1;
        p->frequency_penalty = i % 6 == 4 ? 0.3 : 0;
        if (scored && i % 2) p->prompt_logprobs = 2;
        q[i].out = &out[i];
    }
    for (int i = 2; i < N; i += 3) /* prompts that begin alike */
        memcpy(prompts[i], prompts[9], q[i].r.n_token * 4);
}

static run_sample *samples(void)
{
    run_sample *s = calloc(N, sizeof *s);
    assert_non_null(s);
    return s;
}

/* All requests, `group` a step, in the order of `first`; how many samples differ from base. */
static int differ(corun_model *m, const corun_engine_opts *o, const run_request *q,
                  const run_sample *base, size_t group, int first, corun_stats *stats)
{
    run_sample *out = samples();
    run_request r[N];
    for (int i = 0; i < N; i++) {
        int k = (i + first) % N;
        r[i] = (run_request){.r = q[k].r, .out = &out[k]};
    }
    *stats = run_all(m, o, r, N, group);
    int d = run_differ(base, out, N);
    free(out);
    return d;
}

static void alone(corun_model *m, const corun_engine_opts *o, run_request *q)
{
    for (int i = 0; i < N; i++) run_all(m, o, &q[i], 1, 1);
    for (int i = 0; i < N; i++) assert_int_equal(q[i].out->n_token, q[i].r.sampling.max_tokens);
}

/* Every width, chunk, pool and arrival gives what each request gives alone. */
static void free_policy(const char *path, bool dummy)
{
    corun_model *m = open_on(path, dummy);
    corun_engine_opts o = opts(CORUN_POLICY_FREE);
    run_sample *base = samples();
    run_request q[N];
    corun_stats s;
    requests(m, q, base, true);
    alone(m, &o, q);
    static const struct {
        int32_t n_slot, chunk, page;
        size_t group;
        uint64_t pages;
    } run[] = {{6, 512, 16, N, 0},  {1, 512, 16, 3, 0},  {14, 512, 16, N, 0},
               {6, 64, 16, 4, 0},   {9, 2048, 64, 2, 0}, {14, 100, 128, N, 0},
               {6, 512, 16, N, 90}, {14, 128, 32, 5, 45}};
    uint64_t recomputes = 0;
    corun_model_info info;
    assert_int_equal(corun_model_describe(m, &info), CORUN_OK);
    for (size_t i = 0; i < sizeof run / sizeof *run; i++) {
        o.n_slot = run[i].n_slot;
        o.prefill_chunk = run[i].chunk;
        o.page_tokens = run[i].page;
        o.kv_bytes = run[i].pages * info.kv_bytes_per_token * (uint64_t)run[i].page;
        int d = differ(m, &o, q, base, run[i].group, (int)i * 3, &s);
        if (d) fail_msg("%s: free, run %zu: %d of %d samples differ", path, i, d, N);
        recomputes += s.recomputes;
    }
    assert_true(recomputes > 0);
    free(base);
    corun_model_close(m);
}

/* One width: any arrival, order and pool. */
static void corun_policy_case(const char *path, bool dummy)
{
    corun_model *m = open_on(path, dummy);
    corun_engine_opts o = opts(CORUN_POLICY_CORUN);
    run_sample *base = samples();
    run_request q[N];
    corun_stats s;
    corun_model_info info;
    uint64_t swaps = 0;
    requests(m, q, base, true);
    assert_int_equal(corun_model_describe(m, &info), CORUN_OK);
    alone(m, &o, q);
    static const size_t group[] = {N, 1, 3, 5};
    for (size_t i = 0; i < 4; i++) {
        o.kv_bytes = i < 2 ? 0 : 90 * info.kv_bytes_per_token * 16;
        int d = differ(m, &o, q, base, group[i], (int)i * 4, &s);
        if (d) fail_msg("%s: corun, run %zu: %d of %d samples differ", path, i, d, N);
        swaps += s.swaps_out;
    }
    assert_true(swaps > 0);
    free(base);
    corun_model_close(m);
}

static void invariant_case(const char *path, bool dummy)
{
    corun_model *m = open_on(path, dummy);
    corun_engine_opts o = opts(CORUN_POLICY_INVARIANT);
    run_sample *base = samples();
    run_request q[N];
    corun_stats s;
    requests(m, q, base, true);
    alone(m, &o, q);
    static const int32_t slots[] = {6, 1, 14, 9};
    for (size_t i = 0; i < 4; i++) {
        o.n_slot = slots[i];
        int d = differ(m, &o, q, base, i % 2 ? 3 : N, (int)i * 4, &s);
        if (d) fail_msg("%s: invariant, run %zu: %d of %d samples differ", path, i, d, N);
    }
    free(base);
    corun_model_close(m);
}

#define MODEL(name) TEST_DATA "/golden/" name

static void test_free_policy(void **state)
{
    (void)state;
    NEED_CUDA();
    free_policy(MODEL("llama_plain"), false);
    free_policy(MODEL("qwen3_tied"), false);
    free_policy(MODEL("qwen3_bias_mscale/config.json"), true);
    free_policy(TEST_DATA "/configs/small_llama/config.json", true); /* sizes of between.cu */
}

static void test_corun(void **state)
{
    (void)state;
    NEED_CUDA();
    corun_policy_case(MODEL("qwen2_untied"), false);
    corun_policy_case(MODEL("qwen3_tied"), true);
}

static void test_invariant(void **state)
{
    (void)state;
    NEED_CUDA();
    invariant_case(MODEL("qwen3_tied"), false);
}

/* A generated sequence scored as a prompt gives the log-probabilities that its tokens were drawn
 * with (free). */
static void test_scored_again(void **state)
{
    (void)state;
    NEED_CUDA();
    corun_model *m = open_on(MODEL("llama_plain"), false);
    corun_engine_opts o = opts(CORUN_POLICY_FREE);
    run_sample *base = samples(), *again = samples();
    run_request q[N], r[N];
    static int32_t whole[N][RUN_MAX_PROMPT];
    requests(m, q, base, false);
    run_all(m, &o, q, N, N);
    for (int i = 0; i < N; i++) {
        const run_sample *b = &base[i];
        size_t n = q[i].r.n_token;
        memcpy(whole[i], q[i].r.tokens, n * 4);
        memcpy(whole[i] + n, b->token, (size_t)b->n_token * 4);
        r[i] = (run_request){.r = q[i].r, .out = &again[i]};
        r[i].r.tokens = whole[i];
        r[i].r.n_token = n + (size_t)b->n_token;
        r[i].r.sampling.max_tokens = 0;
        r[i].r.sampling.prompt_logprobs = 0;
    }
    run_all(m, &o, r, N, 4);
    for (int i = 0; i < N; i++)
        for (int k = 0; k < base[i].n_token; k++)
            assert_int_equal(again[i].prompt_logprob[q[i].r.n_token + (size_t)k],
                             base[i].logprob[k]);
    free(base), free(again);
    corun_model_close(m);
}

/* The same files on the CPU: other bits, nearly the same values. */
static void test_near_the_cpu(void **state)
{
    (void)state;
    NEED_CUDA();
    corun_model *m = open_on(MODEL("qwen3_tied"), false), *c;
    corun_model_opts mo = corun_model_opts_default();
    mo.path = MODEL("qwen3_tied");
    mo.device = "cpu";
    assert_int_equal(corun_model_open(&c, &mo), CORUN_OK);
    corun_engine_opts o = opts(CORUN_POLICY_FREE);
    run_sample *a = samples(), *b = samples();
    run_request q[N];
    requests(m, q, a, true);
    for (int i = 0; i < N; i++) q[i].r.sampling.max_tokens = 1;
    run_all(m, &o, q, N, N);
    for (int i = 0; i < N; i++) q[i].out = &b[i];
    run_all(c, &o, q, N, N);
    double worst = 0, sum = 0;
    int n = 0;
    for (int i = 0; i < N; i++)
        for (int k = 1; k < (int)q[i].r.n_token && q[i].r.sampling.prompt_logprobs >= 0; k++, n++) {
            float x, y;
            memcpy(&x, &a[i].prompt_logprob[k], 4);
            memcpy(&y, &b[i].prompt_logprob[k], 4);
            double e = (double)x - (double)y;
            sum += e * e;
            worst = e > worst ? e : -e > worst ? -e : worst;
        }
    printf("# %d log-probabilities, device against CPU: rms %.4f, largest %.4f\n", n, sqrt(sum / n),
           worst);
    assert_true(n > 500 && sum > 0 && sqrt(sum / n) < 0.05);
    free(a), free(b);
    corun_model_close(m);
    corun_model_close(c);
}

/* Two opens of a model of one identity, and two devices by name. */
static void test_identity(void **state)
{
    (void)state;
    NEED_CUDA();
    corun_model *m = open_on(MODEL("qwen3_tied"), false);
    corun_model_info info;
    assert_int_equal(corun_model_describe(m, &info), CORUN_OK);
    assert_non_null(strstr(info.device, "cuda"));
    corun_engine_opts o = opts(CORUN_POLICY_FREE);
    corun_engine *e;
    char first[33], second[33], json[16384];
    size_t n;
    assert_int_equal(corun_engine_open(&e, m, &o), CORUN_OK);
    assert_int_equal(corun_identity(e, first, json, sizeof json - 1, &n), CORUN_OK);
    json[n] = 0;
    printf("# %s\n", json);
    assert_non_null(strstr(json, "\"backend\":\"cuda\""));
    assert_non_null(strstr(json, "cuBLASLt"));
    assert_non_null(strstr(json, "fmad=false"));
    corun_engine_close(e);
    o.n_slot = 3;
    assert_int_equal(corun_engine_open(&e, m, &o), CORUN_OK);
    assert_int_equal(corun_identity(e, second, json, sizeof json, &n), CORUN_OK);
    assert_string_equal(first, second);
    corun_engine_close(e);
    corun_model_close(m);
}

static void identity_of(corun_model *m, const corun_engine_opts *o, char out[33])
{
    corun_engine *e;
    size_t n;
    char json[16384];
    assert_int_equal(corun_engine_open(&e, m, o), CORUN_OK);
    assert_int_equal(corun_identity(e, out, json, sizeof json, &n), CORUN_OK);
    corun_engine_close(e);
}

/* A table of another device is left aside and said; the bits of free are those of any table, the
 * identity is not. */
static void test_plan(void **state)
{
    (void)state;
    NEED_CUDA();
    char path[] = "/tmp/corun-plan-XXXXXX", with[33], without[33];
    int fd = mkstemp(path);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "w");
    assert_true(f && fputs("corun-plan 1\ndevice 1 1 Another Device\n", f) >= 0 && !fclose(f));
    corun_model *m = open_on(MODEL("qwen3_tied"), false);
    corun_engine_opts o = opts(CORUN_POLICY_FREE);
    run_sample *a = samples(), *b = samples();
    run_request q[N];
    requests(m, q, a, true);
    run_all(m, &o, q, N, N);
    identity_of(m, &o, without);
    corun_model_info info;
    assert_int_equal(corun_model_describe(m, &info), CORUN_OK);
    bool no_table = strstr(info.device_note, "no plan table") != NULL;
    printf("# %s\n", info.device_note);
    corun_model_close(m);
    m = open_with(MODEL("qwen3_tied"), false, path);
    assert_int_equal(corun_model_describe(m, &info), CORUN_OK);
    assert_non_null(strstr(info.device_note, "the plan table is for Another Device"));
    assert_non_null(strstr(info.device_note, "left aside"));
    identity_of(m, &o, with);
    assert_true(no_table || strcmp(with, without) != 0);
    for (int i = 0; i < N; i++) q[i].out = &b[i];
    run_all(m, &o, q, N, 3);
    assert_int_equal(run_differ(a, b, N), 0);
    free(a), free(b);
    corun_model_close(m);
    remove(path);
    corun_model_opts mo = corun_model_opts_default();
    mo.path = MODEL("qwen3_tied");
    mo.device = "cuda";
    mo.plan = path;
    assert_int_not_equal(corun_model_open(&m, &mo), CORUN_OK);
    assert_non_null(strstr(corun_last_error(), path));
}

/* New weights in the same buffers, recorded steps and all: the bits of a fresh start. */
static void test_refill(void **state)
{
    (void)state;
    NEED_CUDA();
    corun_model *fresh = open_on(MODEL("llama_plain"), false);
    corun_model *m = open_on(MODEL("llama_plain"), true); /* made-up weights of its shapes */
    corun_engine_opts o = opts(CORUN_POLICY_FREE);
    o.allow_special_rows = true; /* every id may be drawn, with a tokenizer or without */
    run_sample *want = samples(), *before = samples(), *after = samples();
    run_request q[N];
    requests(fresh, q, want, false);
    run_all(fresh, &o, q, N, N);
    for (int i = 0; i < N; i++) q[i].out = &before[i];
    run_all(m, &o, q, N, N);
    assert_int_equal(run_differ(want, before, N), N);
    weights *w;
    assert_int_equal(weights_open(&w, MODEL("llama_plain")), CORUN_OK);
    size_t n = weights_count(w);
    corun_tensor *t = calloc(n, sizeof *t);
    for (size_t i = 0; i < n; i++) {
        const weights_tensor *x = weights_at(w, i);
        assert_int_equal(x->dtype, WEIGHTS_BF16);
        int64_t rows = 1, last = x->dim[x->n_dim - 1];
        for (int d = 0; d + 1 < x->n_dim; d++) rows *= x->dim[d];
        uint16_t *data = malloc((size_t)(rows * last) * 2);
        assert_int_equal(weights_read_bf16(w, x, 0, rows, data), CORUN_OK);
        t[i] = (corun_tensor){.name = x->name, .dtype = CORUN_BF16, .n_dim = x->n_dim};
        t[i].dim = x->dim;
        t[i].data = data;
    }
    corun_model_info a, b;
    if (corun_model_refill(m, t, n) != CORUN_OK) fail_msg("%s", corun_last_error());
    assert_int_equal(corun_model_describe(m, &a), CORUN_OK);
    assert_int_equal(corun_model_describe(fresh, &b), CORUN_OK);
    assert_string_equal(a.weights_digest, b.weights_digest);
    for (int i = 0; i < N; i++) q[i].out = &after[i];
    run_all(m, &o, q, N, 3);
    /* this model has no tokenizer, so no text */
    for (int i = 0; i < N; i++) {
        memset(want[i].text, 0, sizeof want[i].text);
        want[i].text_len = 0;
    }
    assert_int_equal(run_differ(want, after, N), 0);
    for (size_t i = 0; i < n; i++) free((void *)(uintptr_t)t[i].data);
    free(t);
    weights_close(w);
    free(want), free(before), free(after);
    corun_model_close(m);
    corun_model_close(fresh);
}

int main(void)
{
    const struct CMUnitTest t[] = {
        cmocka_unit_test(test_identity),    cmocka_unit_test(test_near_the_cpu),
        cmocka_unit_test(test_free_policy), cmocka_unit_test(test_corun),
        cmocka_unit_test(test_invariant),   cmocka_unit_test(test_scored_again),
        cmocka_unit_test(test_plan),        cmocka_unit_test(test_refill),
    };
    return cmocka_run_group_tests_name("cuda: engine", t, NULL, NULL);
}
