/* test_model_load.c - a configuration that contradicts the file is refused, and the tensor named.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "model/model.h"

static corun_status load_with(const char *name, void (*change)(config *))
{
    char path[512];
    weights *w;
    config c;
    pool *threads;
    model *m = NULL;
    snprintf(path, sizeof path, TEST_DATA "/golden/%s", name);
    assert_int_equal(weights_open(&w, path), CORUN_OK);
    assert_int_equal(config_open(&c, path), CORUN_OK);
    assert_int_equal(pool_open(&threads, 1), CORUN_OK);
    if (change) change(&c);
    ops_open_opts oo = {.threads = threads, .isa = "auto"};
    corun_status st = model_load(&m, w, &c, &oo);
    model_close(m);
    pool_close(threads);
    weights_close(w);
    return st;
}

static void no_bias(config *c) { c->qkv_bias = false; }
static void fewer_layers(config *c) { c->n_layer--; }
static void more_layers(config *c) { c->n_layer++; }
static void tied(config *c) { c->tied = true; }
static void no_qk_norm(config *c) { c->qk_norm = false; }

static void test_agrees(void **state)
{
    (void)state;
    assert_int_equal(load_with("llama_plain", NULL), CORUN_OK);
    assert_int_equal(load_with("llama3_tied_bias", NULL), CORUN_OK); /* holds another lm_head */
    assert_int_equal(load_with("llama_plain", tied), CORUN_OK);
}

static void refused(const char *name, void (*change)(config *), const char *tensor)
{
    assert_int_equal(load_with(name, change), CORUN_EFORMAT);
    if (!strstr(err_text(), tensor)) fail_msg("%s", err_text());
}

static void test_contradicts(void **state)
{
    (void)state;
    refused("qwen2_tied", no_bias, "self_attn");
    refused("llama_plain", fewer_layers, "model.layers.");
    refused("llama_plain", more_layers, "model.layers.");
    refused("qwen3_tied", no_qk_norm, "_norm.weight");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_agrees),
                                       cmocka_unit_test(test_contradicts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
