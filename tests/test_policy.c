/* test_policy.c - the table of policies: names, levels that are refused, what AUTO becomes. */
#include "engine_run.h"

#include "engine/engine.h"

static void test_names(void **state)
{
    (void)state;
    static const char *const name[] = {"dynamic", "corun", "invariant", "free", "auto"};
    for (corun_policy p = CORUN_POLICY_DYNAMIC; p <= CORUN_POLICY_AUTO; p++) {
        corun_policy back;
        assert_string_equal(corun_policy_name(p), name[p]);
        assert_int_equal(corun_policy_parse(name[p], &back), CORUN_OK);
        assert_int_equal(back, p);
    }
    corun_policy p;
    assert_null(corun_policy_name((corun_policy)17));
    static const char *const bad[] = {"", "fast", "Free", "corun "};
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(corun_policy_parse(bad[i], &p), CORUN_EINVAL);
        assert_non_null(strstr(corun_last_error(), bad[i]));
    }
}

/* Opens and gives the policy of the identity; NULL: refused. */
static const char *opened(corun_model *m, corun_policy p)
{
    static char json[16384];
    corun_engine_opts o = corun_engine_opts_default();
    o.policy = p;
    o.n_ctx = 4096;
    corun_engine *e;
    size_t n;
    if (corun_engine_open(&e, m, &o) != CORUN_OK) return NULL;
    assert_int_equal(corun_identity(e, NULL, json, sizeof json - 1, &n), CORUN_OK);
    json[n] = 0;
    corun_engine_close(e);
    char *at = strstr(json, "\"policy\":\"");
    assert_non_null(at);
    at += strlen("\"policy\":\"");
    *strchr(at, '"') = 0;
    return at;
}

static void expect_refused(corun_model *m, corun_policy p, const char *const *words)
{
    assert_null(opened(m, p));
    for (; *words; words++)
        if (!strstr(corun_last_error(), *words))
            fail_msg("\"%s\" does not say \"%s\"", corun_last_error(), *words);
}

#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void test_levels(void **state)
{
    (void)state;
    corun_model *m = run_open("fake:phase");
    ops_level(*level)[OPS_N_OP] = m->net->o->level;
    assert_string_equal(opened(m, CORUN_POLICY_AUTO), "free");
    for (corun_policy p = CORUN_POLICY_DYNAMIC; p < CORUN_POLICY_AUTO; p++)
        assert_string_equal(opened(m, p), corun_policy_name(p));

    /* a kernel set that a policy does not use is none of its business */
    level[OPS_SET_STANDARD][OPS_OP_MATMUL] = OPS_LEVEL_POSITION;
    assert_string_equal(opened(m, CORUN_POLICY_FREE), "free");
    assert_string_equal(opened(m, CORUN_POLICY_CORUN), "corun");
    /* an op that both phases run must meet the higher level, one of the prefill its own */
    level[OPS_SET_STANDARD][OPS_OP_ATTN_PREFILL] = OPS_LEVEL_RUN;
    assert_string_equal(opened(m, CORUN_POLICY_CORUN), "corun");
    level[OPS_SET_STANDARD][OPS_OP_MATMUL] = OPS_LEVEL_RUN;
    expect_refused(m, CORUN_POLICY_CORUN,
                   WORDS("policy corun", "matmul", "standard", "level run", "needs position"));
    assert_string_equal(opened(m, CORUN_POLICY_DYNAMIC), "dynamic");
    level[OPS_SET_STANDARD][OPS_OP_MATMUL] = OPS_LEVEL_NONE;
    expect_refused(m, CORUN_POLICY_DYNAMIC, WORDS("matmul", "level none", "needs run"));
    level[OPS_SET_STANDARD][OPS_OP_MATMUL] = OPS_LEVEL_POSITION;

    level[OPS_SET_CANONICAL][OPS_OP_ATTN_DECODE] = OPS_LEVEL_BATCH;
    expect_refused(
        m, CORUN_POLICY_FREE,
        WORDS("policy free", "attention (decode)", "canonical", "level batch", "needs phase"));
    assert_string_equal(opened(m, CORUN_POLICY_AUTO), "corun");
    level[OPS_SET_CANONICAL][OPS_OP_ATTN_DECODE] = OPS_LEVEL_RUN;
    expect_refused(m, CORUN_POLICY_AUTO, WORDS("policy corun", "attention (decode)", "canonical"));

    level[OPS_SET_FIXED][OPS_OP_LOGITS] = OPS_LEVEL_BATCH;
    assert_string_equal(opened(m, CORUN_POLICY_INVARIANT), "invariant");
    level[OPS_SET_FIXED][OPS_OP_ATTN_PREFILL] = OPS_LEVEL_POSITION;
    expect_refused(m, CORUN_POLICY_INVARIANT,
                   WORDS("attention (prefill)", "fixed", "level position", "needs batch"));
    corun_model_close(m);
}

static void test_chunk(void **state)
{
    (void)state;
    static const struct {
        corun_policy p;
        int32_t chunk;
        bool ok;
    } c[] = {
        {CORUN_POLICY_CORUN, 128, true},      {CORUN_POLICY_CORUN, 100, false},
        {CORUN_POLICY_FREE, 16, true},        {CORUN_POLICY_FREE, 15, false},
        {CORUN_POLICY_DYNAMIC, 17, true},     {CORUN_POLICY_DYNAMIC, 1, false},
        {CORUN_POLICY_INVARIANT, 4096, true}, {CORUN_POLICY_INVARIANT, 2049, false},
        {CORUN_POLICY_INVARIANT, 512, false}, {(corun_policy)9, 0, false},
    };
    corun_model *m = run_open("fake:phase");
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        corun_engine_opts o = corun_engine_opts_default();
        o.policy = c[i].p;
        o.prefill_chunk = c[i].chunk;
        o.n_ctx = 4096;
        corun_engine *e = NULL;
        assert_int_equal(corun_engine_open(&e, m, &o), c[i].ok ? CORUN_OK : CORUN_EINVAL);
        corun_engine_close(e);
    }
    corun_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_levels),
        cmocka_unit_test(test_chunk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
