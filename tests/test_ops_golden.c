/* test_ops_golden.c - the golden digest: one for every instruction set and number of threads. */
#include "ops_fixture.h"

static void test_golden(void **state)
{
    (void)state;
    char first[33] = "";
    int seen = 0;
    for (size_t i = 0; i < N_ISA; i++)
        for (int threads = 1; threads <= 5; threads += 2) {
            if (!ops_isa_pick(all_isa[i])) continue;
            char text[33];
            pool *p;
            ok(pool_open(&p, threads));
            ok(ops_golden_check(p, all_isa[i], text));
            pool_close(p);
            assert_int_equal(strlen(text), 32);
            if (seen++) assert_string_equal(text, first);
            memcpy(first, text, sizeof first);
        }
    assert_true(seen > 0);
    printf("golden digest %s\n", first);
}

static void test_names(void **state)
{
    (void)state;
    char text[33];
    pool *p;
    ok(pool_open(&p, 1));
    assert_null(ops_isa_pick("sse9"));
    assert_non_null(ops_isa_pick("auto"));
    assert_string_equal(ops_isa_pick("generic"), "generic");
    assert_int_equal(ops_golden_check(p, "sse9", text), CORUN_EUNSUPPORTED);
    assert_non_null(strstr(err_text(), "sse9"));
    pool_close(p);
    for (int i = 0; i < OPS_N_OP; i++) assert_string_not_equal(ops_op_name((ops_op)i), "?");
    assert_string_equal(ops_op_name(OPS_N_OP), "?");
    assert_string_equal(ops_level_name(OPS_LEVEL_PHASE), "phase");
    assert_string_equal(ops_level_name((ops_level)9), "?");
}

int main(void)
{
    const struct CMUnitTest t[] = {cmocka_unit_test(test_golden), cmocka_unit_test(test_names)};
    return cmocka_run_group_tests_name("ops: golden", t, NULL, NULL);
}
