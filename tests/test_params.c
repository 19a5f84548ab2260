/* test_params.c - the rules of sampling parameters, a message for each, and the copies.
 * Invariant: what is refused names its field; what is let through reaches the slot unchanged. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#include "engine/params.h"

static const int32_t eos[] = {2, 3};
static const params_limits lim = {
    .n_vocab = 1000, .n_ctx = 256, .n_draw_max = 990, .eos = eos, .n_eos = 2};

static corun_sampling neutral(void)
{
    return (corun_sampling){.temperature = 1,
                            .top_p = 1,
                            .repetition_penalty = 1,
                            .max_tokens = 16,
                            .n = 1,
                            .logprobs = -1,
                            .prompt_logprobs = -1};
}

static void refused(corun_sampling s, int32_t n_prompt, corun_status st, const char *field)
{
    params p;
    assert_int_equal(params_check(&s, n_prompt, &lim), st);
    assert_non_null(strstr(err_text(), field));
    assert_int_equal(params_copy(&p, &s, n_prompt, &lim), st);
    params_free(&p);
}

static void taken(corun_sampling s, int32_t n_prompt)
{
    if (params_check(&s, n_prompt, &lim) != CORUN_OK) print_error("%s\n", err_text());
    assert_int_equal(params_check(&s, n_prompt, &lim), CORUN_OK);
}

#define REFUSED(field, change)                                                                     \
    do {                                                                                           \
        corun_sampling s = neutral();                                                              \
        change;                                                                                    \
        refused(s, 10, CORUN_EINVAL, field);                                                       \
    } while (0)
#define TAKEN(change)                                                                              \
    do {                                                                                           \
        corun_sampling s = neutral();                                                              \
        change;                                                                                    \
        taken(s, 10);                                                                              \
    } while (0)

static void test_numbers(void **state)
{
    (void)state;
    REFUSED("temperature", s.temperature = -0.1);
    REFUSED("temperature", s.temperature = NAN);
    REFUSED("temperature", s.temperature = INFINITY);
    REFUSED("top_p", s.top_p = 1.01);
    REFUSED("top_p", s.top_p = -1);
    REFUSED("top_p", s.top_p = NAN);
    REFUSED("min_p", s.min_p = 2);
    REFUSED("min_p", s.min_p = -0.001);
    REFUSED("top_k", s.top_k = -2);
    REFUSED("presence_penalty", s.presence_penalty = 2.1);
    REFUSED("frequency_penalty", s.frequency_penalty = -2.1);
    REFUSED("frequency_penalty", s.frequency_penalty = NAN);
    REFUSED("repetition_penalty", s.repetition_penalty = 0);
    REFUSED("repetition_penalty", s.repetition_penalty = -1);
    REFUSED("n:", s.n = 0);
    REFUSED("n:", s.n = CORUN_MAX_SAMPLE + 1);
    REFUSED("max_tokens", s.max_tokens = -2);
    REFUSED("min_tokens", s.min_tokens = -1);
    REFUSED("min_tokens", s.min_tokens = 17);
    REFUSED("logprobs", s.logprobs = CORUN_MAX_TOP + 1);
    REFUSED("logprobs", s.logprobs = -2);
    REFUSED("prompt_logprobs", s.prompt_logprobs = CORUN_MAX_TOP + 1);
    TAKEN(s.temperature = 0);
    TAKEN(s.temperature = 1e-300); /* greedy */
    TAKEN(s.temperature = 2);
    TAKEN(s.top_p = 0);
    TAKEN(s.top_p = 1e-300);
    TAKEN(s.min_p = 1);
    TAKEN(s.top_k = -1);
    TAKEN(s.top_k = INT32_MAX);
    TAKEN(s.presence_penalty = -2);
    TAKEN(s.frequency_penalty = 2);
    TAKEN(s.max_tokens = 0);
    TAKEN(s.max_tokens = -1);
    TAKEN(s.min_tokens = 16);
    TAKEN(s.n = CORUN_MAX_SAMPLE);
    TAKEN(s.logprobs = CORUN_MAX_TOP);
    TAKEN(s.prompt_logprobs = 0);
}

static void test_context(void **state)
{
    (void)state;
    corun_sampling s = neutral();
    taken(s, 240);
    refused(s, 241, CORUN_ECAPACITY, "256");
    refused(s, 257, CORUN_ECAPACITY, "256");
    s.max_tokens = INT32_MAX;
    refused(s, 1, CORUN_ECAPACITY, "max_tokens");
    s.max_tokens = -1;
    taken(s, 255);
    refused(s, 256, CORUN_ECAPACITY, "fills the context");
    s.max_tokens = 0; /* scoring a prompt that fills the context */
    taken(s, 256);
}

static void test_lists(void **state)
{
    (void)state;
    static int32_t many[PARAMS_MAX_BIAS + 1];
    static float zero[PARAMS_MAX_BIAS + 1];
    static int32_t long_len[2000];
    static corun_bytes stops[PARAMS_MAX_STOP + 1];
    int32_t out[] = {5, 1000}, neg[] = {-1}, rows[] = {995, 991}, one = 1, none = 0, huge = 65;
    float big[] = {100.5f}, nan[] = {NAN}, edge[] = {-100};
    corun_bytes empty = {"", 0}, longer = {"x", PARAMS_MAX_STOP_LEN + 1};
    for (int i = 0; i <= PARAMS_MAX_STOP; i++) stops[i] = (corun_bytes){"ab", 2};
    for (int i = 0; i < 2000; i++) long_len[i] = 64;
    REFUSED("logit_bias", (s.bias_id = out, s.bias = zero, s.n_bias = 2));
    REFUSED("logit_bias", (s.bias_id = neg, s.bias = zero, s.n_bias = 1));
    REFUSED("logit_bias", (s.bias_id = out, s.bias = big, s.n_bias = 1));
    REFUSED("logit_bias", (s.bias_id = out, s.bias = nan, s.n_bias = 1));
    REFUSED("logit_bias", (s.bias_id = many, s.bias = zero, s.n_bias = PARAMS_MAX_BIAS + 1));
    TAKEN((s.bias_id = many, s.bias = zero, s.n_bias = PARAMS_MAX_BIAS));
    TAKEN((s.bias_id = rows, s.bias = edge, s.n_bias = 1)); /* a row without a token: no effect */
    REFUSED("allowed_token_ids", (s.allowed = out, s.n_allowed = 2));
    REFUSED("allowed_token_ids", (s.allowed = rows, s.n_allowed = 2));
    TAKEN((s.allowed = out, s.n_allowed = 1));
    REFUSED("stop_token_ids", (s.stop_id = neg, s.n_stop_id = 1));
    REFUSED("bad_words", (s.bad_id = out + 1, s.bad_len = &one, s.n_bad = 1));
    REFUSED("bad_words", (s.bad_id = out, s.bad_len = &none, s.n_bad = 1));
    REFUSED("bad_words", (s.bad_id = out, s.bad_len = &huge, s.n_bad = 1));
    REFUSED("bad_words", s.n_bad = PARAMS_MAX_BAD + 1);
    REFUSED("bad_words", (s.bad_id = many, s.bad_len = long_len, s.n_bad = 1025));
    REFUSED("stop:", (s.stop = &empty, s.n_stop = 1));
    REFUSED("stop:", (s.stop = &longer, s.n_stop = 1));
    REFUSED("stop:", (s.stop = stops, s.n_stop = PARAMS_MAX_STOP + 1));
    TAKEN((s.stop = stops, s.n_stop = PARAMS_MAX_STOP));
}

static void test_copy(void **state)
{
    (void)state;
    int32_t id[] = {7, 8, 9}, len[] = {1, 2};
    float bias[] = {1, -2, 3};
    char text[] = "stop here";
    corun_bytes stop[] = {{text, 4}, {text + 5, 4}};
    corun_sampling s = neutral();
    s.temperature = 1e-5, s.top_p = 0.25, s.min_p = 0.125, s.top_k = -1, s.logprobs = 3;
    s.repetition_penalty = 1.5, s.presence_penalty = 0.5, s.frequency_penalty = -0.5;
    s.bias_id = id, s.bias = bias, s.n_bias = 3, s.allowed = id, s.n_allowed = 2;
    s.bad_id = id, s.bad_len = len, s.n_bad = 2, s.stop_id = id + 2, s.n_stop_id = 1;
    s.stop = stop, s.n_stop = 2, s.max_tokens = -1, s.min_tokens = 4;
    params p;
    assert_int_equal(params_copy(&p, &s, 6, &lim), CORUN_OK);
    assert_int_equal(p.max_new, 250);
    memset(id, 0, sizeof id);
    memset(len, 0, sizeof len);
    memset(bias, 0, sizeof bias);
    memset(text, 'x', 9);
    assert_memory_equal(p.s.stop[0].data, "stop", 4);
    assert_memory_equal(p.s.stop[1].data, "here", 4);
    ops_slot o;
    params_slot(&p, &lim, &o);
    assert_true(o.temperature == 1e-5f && o.top_p == 0.25f && o.min_p == 0.125f);
    assert_true(o.repetition == 1.5f && o.presence == 0.5f && o.frequency == -0.5f);
    assert_true(o.top_k == 0 && o.min_tokens == 4 && o.n_top == 3 && o.n_draw_max == 990);
    assert_int_equal(o.n_end, 3); /* eos, then the stop ids */
    assert_memory_equal(o.end_id, ((int32_t[]){2, 3, 9}), 12);
    assert_memory_equal(o.bias_id, ((int32_t[]){7, 8, 9}), 12);
    assert_memory_equal(o.bias, ((float[]){1, -2, 3}), 12);
    assert_memory_equal(o.allowed, ((int32_t[]){7, 8}), 8);
    assert_memory_equal(o.bad_id, ((int32_t[]){7, 8, 9}), 12);
    assert_memory_equal(o.bad_len, ((int32_t[]){1, 2}), 8);
    assert_true(o.n_bias == 3 && o.n_allowed == 2 && o.n_bad == 2);
    params_free(&p);
    s = neutral();
    s.ignore_eos = true;
    mem_fail_at(1);
    assert_int_equal(params_copy(&p, &s, 6, &lim), CORUN_ENOMEM);
    mem_fail_at(0);
    assert_int_equal(params_copy(&p, &s, 6, &lim), CORUN_OK);
    assert_true(p.n_end == 0 && p.max_new == 16);
    params_free(&p);
}

int main(void)
{
    const struct CMUnitTest t[] = {cmocka_unit_test(test_numbers), cmocka_unit_test(test_context),
                                   cmocka_unit_test(test_lists), cmocka_unit_test(test_copy)};
    return cmocka_run_group_tests_name("params", t, NULL, NULL);
}
