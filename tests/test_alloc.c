/* test_alloc.c - every allocation behind the public calls fails once: each call then says
 * CORUN_ENOMEM, leaves nothing behind (AddressSanitizer sees leaks) and works the next time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "corun.h"

static corun_model_opts model_opts(const char *path)
{
    corun_model_opts o = corun_model_opts_default();
    o.path = path;
    o.n_thread = 2;
    return o;
}

static corun_engine_opts engine_opts(corun_policy p)
{
    corun_engine_opts o = corun_engine_opts_default();
    o.policy = p;
    o.n_slot = 3;
    o.n_ctx = 128;
    o.page_tokens = 16;
    o.prefill_chunk = p == CORUN_POLICY_INVARIANT ? 2048 : 128;
    return o;
}

/* Allocations that `open` makes, each of which is then made to fail. */
static void walk_model(const char *path)
{
    corun_model_opts o = model_opts(path);
    corun_model *m;
    uint64_t k = 1;
    for (corun_status st = CORUN_ENOMEM; st != CORUN_OK; k++) {
        mem_fail_at(k);
        st = corun_model_open(&m, &o);
        mem_fail_at(0);
        if (st == CORUN_OK) break;
        if (st != CORUN_ENOMEM)
            fail_msg("%s: allocation %d: %s: %s", path, (int)k, corun_status_name(st),
                     corun_last_error());
        assert_null(m);
        assert_true(k < 20000);
    }
    assert_true(k > 10);
    corun_model_close(m);
}

static void test_model(void **state)
{
    (void)state;
    walk_model("fake:phase");
    walk_model(TEST_DATA "/golden/llama_plain");
    walk_model(TEST_DATA "/golden/qwen3_yarn");
}

/* A request with everything that a request can own. */
static corun_request request(corun_model *m)
{
    static const int32_t prompt[20] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    static const int32_t ids[3] = {3, 4, 5}, len[2] = {1, 2};
    static const float bias[3] = {1, -1, 0.5f};
    static const corun_bytes stop[2] = {{"stop", 4}, {"x", 1}};
    corun_request r = {.tokens = prompt, .n_token = 20};
    assert_int_equal(corun_sampling_default(m, &r.sampling), CORUN_OK);
    corun_sampling *s = &r.sampling;
    s->max_tokens = 12;
    s->n = 2;
    s->logprobs = 3;
    s->prompt_logprobs = 1;
    s->bias_id = ids;
    s->bias = bias;
    s->n_bias = 3;
    s->bad_id = ids;
    s->bad_len = len;
    s->n_bad = 2;
    s->stop_id = ids;
    s->n_stop_id = 1;
    s->stop = stop;
    s->n_stop = 2;
    return r;
}

/* Runs one request to its end; the first failure of a call is returned. */
static corun_status run(corun_engine *e, const corun_request *r, int *n_event)
{
    uint64_t id;
    corun_event ev = {.kind = CORUN_EVENT_NONE};
    *n_event = 0;
    corun_status st = corun_submit(e, r, &id);
    while (st == CORUN_OK && ev.kind != CORUN_EVENT_IDLE) {
        st = corun_next(e, &ev);
        if (st == CORUN_OK && ev.kind > CORUN_EVENT_IDLE) ++*n_event;
    }
    return st;
}

static void walk_engine(corun_model *m, corun_policy p)
{
    corun_engine_opts o = engine_opts(p);
    corun_engine *e;
    uint64_t k = 1;
    if (corun_engine_open(&e, m, &o) != CORUN_OK) /* the op levels are measured now, and kept */
        fail_msg("%s", corun_last_error());
    corun_engine_close(e);
    for (;; k++) {
        mem_fail_at(k);
        corun_status st = corun_engine_open(&e, m, &o);
        mem_fail_at(0);
        if (st == CORUN_OK) break;
        assert_int_equal(st, CORUN_ENOMEM);
        assert_null(e);
        assert_true(k < 20000);
    }
    assert_true(k > 10);
    corun_engine_close(e);
    /* A failure in the middle ends the run with ENOMEM; the engine closes, and a new one works. */
    corun_request r = request(m);
    int n_event, all;
    assert_int_equal(corun_engine_open(&e, m, &o), CORUN_OK);
    assert_int_equal(run(e, &r, &all), CORUN_OK);
    assert_true(all > 20);
    corun_engine_close(e);
    for (k = 1;; k++) {
        assert_int_equal(corun_engine_open(&e, m, &o), CORUN_OK);
        mem_fail_at(k);
        corun_status st = run(e, &r, &n_event);
        mem_fail_at(0);
        corun_engine_close(e);
        if (st == CORUN_OK) break;
        assert_int_equal(st, CORUN_ENOMEM);
    }
    assert_true(k > 5);
    assert_int_equal(n_event, all);
}

static void test_engine(void **state)
{
    (void)state;
    static const char *const path[] = {"fake:phase", TEST_DATA "/golden/llama_plain"};
    for (int i = 0; i < 2; i++) {
        corun_model_opts o = model_opts(path[i]);
        corun_model *m;
        if (corun_model_open(&m, &o) != CORUN_OK) fail_msg("%s", corun_last_error());
        for (int p = CORUN_POLICY_DYNAMIC; p <= CORUN_POLICY_FREE; p++)
            walk_engine(m, (corun_policy)p);
        corun_model_close(m);
    }
}

static void test_text(void **state)
{
    (void)state;
    corun_model_opts o = model_opts(TEST_DATA "/golden/llama_plain");
    corun_model *m;
    assert_int_equal(corun_model_open(&m, &o), CORUN_OK);
    static const char chat[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],"
                               "\"chat_template\":\"{{ messages[0].content }} there\"}";
    char out[256];
    int32_t id[64];
    size_t n, n_id = 0;
    for (uint64_t k = 1;; k++) {
        mem_fail_at(k);
        corun_status st = corun_chat_render(m, chat, sizeof chat - 1, out, sizeof out, &n);
        if (st == CORUN_OK) st = corun_encode(m, out, n, 0, id, 64, &n_id);
        if (st == CORUN_OK) st = corun_decode(m, id, n_id, 0, out, sizeof out, &n);
        mem_fail_at(0);
        if (st == CORUN_OK) break;
        if (st != CORUN_ENOMEM) fail_msg("allocation %d: %s", (int)k, corun_last_error());
        assert_true(k < 20000);
    }
    assert_memory_equal(out, "hi there", 8);
    corun_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_model), cmocka_unit_test(test_engine),
                                       cmocka_unit_test(test_text)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
