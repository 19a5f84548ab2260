/* test_plan.c - plan tables: what is read back, what is refused and with which words, which entry
 * serves a product, and the tables of this repository. Needs no device. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "ops/plan.h"

#define HEAD "corun-plan 1\ndevice 130100 132 NVIDIA H200\n"
#define PLAN "plan canonical 6144 4096 none bf16 "

static plan_table *parse(const char *text)
{
    plan_table *t = NULL;
    corun_status st = plan_parse(&t, text, strlen(text), "test.plan");
    if (st != CORUN_OK) print_error("%s\n", corun_last_error());
    assert_int_equal(st, CORUN_OK);
    return t;
}

static void test_round_trip(void **state)
{
    (void)state;
    const char *text = HEAD "# a comment\n\nfixed 66 28 35 2 4 0\n" PLAN
                            "256 66 17 35 2 0 0 1 0 21300\r\n" PLAN "1 21 5 9 0 0 1 1 0 15500\n"
                            "plan standard 1024 3072 bias f32 64 11 5 9 0 0 0 3 2 9000\n";
    plan_table *t = parse(text), *again;
    buf a, b;
    assert_string_equal(t->device, "NVIDIA H200");
    assert_int_equal(t->sm_count, 132);
    assert_int_equal(t->version, 130100);
    assert_true(t->has_fixed);
    assert_int_equal(t->fixed.tile, 28);
    assert_int_equal(t->n_entry, 3);
    buf_init(&a, 1 << 20);
    buf_init(&b, 1 << 20);
    plan_write(t, &a);
    again = parse(a.data);
    plan_write(again, &b);
    assert_string_equal(a.data, b.data);
    assert_true(plan_is_for(t, "NVIDIA H200", 132, 130100));
    assert_false(plan_is_for(t, "NVIDIA H100", 132, 130100));
    assert_false(plan_is_for(t, "NVIDIA H200", 114, 130100));
    assert_false(plan_is_for(t, "NVIDIA H200", 132, 130200));
    buf_free(&a);
    buf_free(&b);
    plan_close(t);
    plan_close(again);
}

/* Comments stay with the plan they stand before, in any order of the plans, until another
 * configuration takes its place. */
static void test_comments(void **state)
{
    (void)state;
    const char *text = "# on top\n" HEAD "# why this one\n#  two lines\r\n" PLAN
                       "256 66 17 35 2 0 0 1 0 21300\n# the small one\n" PLAN
                       "1 21 5 9 0 0 1 1 0 15500\n#at the end";
    plan_table *t = parse(text);
    buf b;
    buf_init(&b, 1 << 20);
    plan_write(t, &b);
    assert_string_equal(b.data, HEAD "# the small one\n" PLAN
                                     "1 21 5 9 0 0 1 1 0 15500\n# on top\n# why this one\n"
                                     "#  two lines\n" PLAN "256 66 17 35 2 0 0 1 0 21300\n"
                                     "#at the end\n");
    plan_entry e = t->entry[1];
    e.note = NULL;
    e.ns = 7; /* timed again */
    assert_int_equal(plan_add(t, &e), CORUN_OK);
    assert_non_null(t->entry[1].note);
    e.config.tile++;
    assert_int_equal(plan_add(t, &e), CORUN_OK);
    assert_null(t->entry[1].note);
    buf_free(&b);
    plan_close(t);
}

static void test_refused(void **state)
{
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"", "ends before the line 'device'"},
        {"corun-plan 1\n", "ends before the line 'device'"},
        {"corun-plan 2\n", "line 1: a plan table begins with 'corun-plan 1'"},
        {"\n{}\n", "line 2: a plan table begins with"},
        {"corun-plan 1\n" PLAN "1 66 1 1 0 0 0 1 0 5\n", "line 2: one line 'device' comes second"},
        {HEAD "device 1 1 X\n", "line 3: one line 'device' comes second"},
        {"corun-plan 1\ndevice 130100 132\n", "line 2: 'device' takes 3 values, 2 are there"},
        {"corun-plan 1\ndevice x 132 NVIDIA H200\n", "line 2: the library version is 'x'"},
        {HEAD "tile 3\n", "line 3: 'tile' is no item of a plan table"},
        {HEAD PLAN "1 66 1 1 0 0 0 1 0\n", "line 3: 'plan' takes 15 values, 14 are there"},
        {HEAD PLAN "1 66 1 1 0 0 0 1 0 5 6 7\n", "line 3: more than 16 words"},
        {HEAD PLAN "0 66 1 1 0 0 0 1 0 5\n", "line 3: rows is '0', not a whole number from 1"},
        {HEAD PLAN "8193 66 1 1 0 0 0 1 0 5\n", "line 3: rows is '8193'"},
        {HEAD PLAN "1 66 -1 1 0 0 0 1 0 5\n", "line 3: tile is '-1'"},
        {HEAD PLAN "1 66 1 99999 0 0 0 1 0 5\n", "line 3: stages is '99999'"},
        {HEAD PLAN "1 66 1 1 0 0 0 0 0 5\n", "line 3: split is '0'"},
        {HEAD PLAN "1 24 1 1 0 0 0 1 0 5\n", "line 3: the algorithm id is none of 21, 23"},
        {HEAD PLAN "1 66 1 1 0 0 0 2 2 5\n", "line 3: this set allows no split"},
        {HEAD PLAN "1 66 1 1 0 0 0 1 2 5\n", "line 3: this set allows no split"},
        {HEAD "plan standard 8 8 none bf16 1 66 1 1 0 0 0 2 0 5\n", "line 3: a split needs"},
        {HEAD "plan fixed 8 8 none bf16 1 66 1 1 0 0 0 1 0 5\n", "line 3: the set is 'fixed'"},
        {HEAD "plan standard 8 8 yes bf16 1 66 1 1 0 0 0 1 0 5\n", "line 3: the bias is 'yes'"},
        {HEAD "plan standard 8 8 none fp8 1 66 1 1 0 0 0 1 0 5\n", "line 3: the output is 'fp8'"},
        {HEAD "fixed 24 1 1 0 0 0\n", "line 3: the algorithm id is none of"},
        {HEAD "fixed 66 1 1 0 0 0\nfixed 66 1 1 0 0 0\n", "line 4: a second 'fixed'"},
        {HEAD PLAN "1 66 1 1 0 0 0 1 0 5\n" PLAN "1 66 2 1 0 0 0 1 0 5\n",
         "line 4: a second plan of one set, shape and rows"},
        {"corun-plan 1\ndevice 1 1 a-name-of-a-device-that-is-longer-than-any-device-has-ever-had-"
         "and-more\n",
         "line 2: a device name of more than 63 bytes"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        plan_table *t = (plan_table *)&bad;
        assert_int_equal(plan_parse(&t, bad[i].text, strlen(bad[i].text), "bad.plan"),
                         CORUN_EFORMAT);
        assert_null(t);
        const char *text = corun_last_error();
        if (!strstr(text, "bad.plan: ") || !strstr(text, bad[i].says))
            fail_msg("case %zu says: %s", i, text);
    }
    char zero[] = HEAD "fixed 66\0 1 1 0 0 0\n";
    plan_table *t;
    assert_int_equal(plan_parse(&t, zero, sizeof zero - 1, "bad.plan"), CORUN_EFORMAT);
    assert_non_null(strstr(corun_last_error(), "line 3: a zero byte"));
    assert_int_equal(plan_open(&t, "/nowhere/x.plan"), CORUN_EFORMAT);
    assert_non_null(strstr(corun_last_error(), "/nowhere/x.plan"));
}

static void test_find(void **state)
{
    (void)state;
    plan_table *t = parse(HEAD PLAN "1 66 1 1 0 0 0 1 0 5\n" PLAN "64 66 64 1 0 0 0 1 0 5\n" PLAN
                                    "2048 66 2048 1 0 0 0 1 0 5\n"
                                    "plan standard 6144 4096 none bf16 64 24 7 1 0 0 0 1 0 5\n"
                                    "plan canonical 6144 4096 none f32 64 66 8 1 0 0 0 1 0 5\n");
    static const int32_t asked[][2] = {{1, 1},     {2, 64},      {64, 64},
                                       {65, 2048}, {2048, 2048}, {8192, 2048}};
    plan_shape s = {6144, 4096, false, OPS_BF16};
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++)
        assert_int_equal(plan_find(t, OPS_SET_CANONICAL, &s, asked[i][0])->config.tile,
                         asked[i][1]);
    assert_int_equal(plan_find(t, OPS_SET_STANDARD, &s, 1)->config.tile, 7);
    s.out = OPS_F32;
    assert_int_equal(plan_find(t, OPS_SET_CANONICAL, &s, 100)->config.tile, 8);
    s.bias = true;
    assert_null(plan_find(t, OPS_SET_CANONICAL, &s, 100));
    s = (plan_shape){6144, 4095, false, OPS_BF16};
    assert_null(plan_find(t, OPS_SET_CANONICAL, &s, 1));
    plan_close(t);
}

/* The digest moves with a plan of the set, and not with times, comments or other sets. */
static void test_digest(void **state)
{
    (void)state;
    const char *one = HEAD "fixed 66 1 1 0 0 0\n" PLAN "1 66 1 1 0 0 0 1 0 5\n";
    const char *time = HEAD "# x\nfixed 66 2 1 0 0 0\n" PLAN "1 66 1 1 0 0 0 1 0 6\n"
                            "plan standard 6144 4096 none bf16 64 24 7 1 0 0 0 1 0 5\n";
    const char *other = HEAD "fixed 66 1 1 0 0 0\n" PLAN "1 66 2 1 0 0 0 1 0 5\n";
    plan_table *a = parse(one), *b = parse(time), *c = parse(other);
    char x[33], y[33];
    assert_int_equal(plan_digest(a, OPS_SET_CANONICAL, x), CORUN_OK);
    assert_int_equal(plan_digest(b, OPS_SET_CANONICAL, y), CORUN_OK);
    assert_string_equal(x, y);
    assert_int_equal(plan_digest(c, OPS_SET_CANONICAL, y), CORUN_OK);
    assert_string_not_equal(x, y);
    assert_int_equal(plan_digest(a, OPS_SET_FIXED, x), CORUN_OK);
    assert_int_equal(plan_digest(b, OPS_SET_FIXED, y), CORUN_OK);
    assert_string_not_equal(x, y);
    assert_int_equal(plan_digest(NULL, OPS_SET_FIXED, y), CORUN_OK);
    assert_string_not_equal(x, y);
    plan_close(a);
    plan_close(b);
    plan_close(c);
}

static void test_add(void **state)
{
    (void)state;
    plan_table *t;
    plan_entry e = {.set = OPS_SET_CANONICAL,
                    .shape = {64, 64, false, OPS_BF16},
                    .rows = 8,
                    .config = {.id = 66, .tile = 5, .split = 1}};
    assert_int_equal(plan_new(&t, "X", 1, 1), CORUN_OK);
    for (int i = 200; i > 0; i--) {
        e.rows = 1 + i * 37 % 200;
        e.config.tile = e.rows;
        assert_int_equal(plan_add(t, &e), CORUN_OK);
    }
    assert_int_equal(t->n_entry, 200);
    for (int32_t rows = 1; rows <= 200; rows++)
        assert_int_equal(plan_find(t, e.set, &e.shape, rows)->config.tile, rows);
    e.config.split = 2;
    assert_int_equal(plan_add(t, &e), CORUN_EINVAL);
    plan_close(t);
}

static void test_builtin(void **state)
{
    (void)state;
    for (size_t i = 0; i < plan_n_text; i++) {
        plan_table *t, *same;
        corun_status st = plan_parse(&t, plan_texts[i].text, plan_texts[i].len, plan_texts[i].name);
        if (st != CORUN_OK) fail_msg("%s", corun_last_error());
        assert_int_equal(plan_builtin(&same, t->device, t->sm_count, t->version), CORUN_OK);
        assert_non_null(same);
        assert_int_equal(same->n_entry, t->n_entry);
        plan_close(same);
        plan_close(t);
    }
    plan_table *none = (plan_table *)state;
    assert_int_equal(plan_builtin(&none, "no such device", 132, 130100), CORUN_OK);
    assert_null(none);
}

/* What a model lacks is said: which products, in which set. */
static void test_missing(void **state)
{
    (void)state;
    const ops_dims qwen = {
        .n_embd = 4096, .n_head = 32, .n_kv = 8, .d_head = 128, .n_ff = 12288, .n_vocab = 151936};
    ops_dims d = qwen;
    char text[256];
    for (size_t i = 0; i < plan_n_text; i++) {
        plan_table *t;
        assert_int_equal(plan_parse(&t, plan_texts[i].text, plan_texts[i].len, plan_texts[i].name),
                         CORUN_OK);
        plan_missing(t, &qwen, text, sizeof text);
        assert_string_equal(text, "");
        d.n_ff = 12280;
        plan_missing(t, &d, text, sizeof text);
        assert_non_null(strstr(text, "no plans for gate_up, down: "));
        plan_close(t);
    }
    plan_table *t = parse(HEAD PLAN "1 66 1 1 0 0 0 1 0 5\n"
                                    "plan canonical 4096 12288 bias bf16 64 66 8 1 0 0 0 1 0 5\n");
    plan_missing(t, &qwen, text, sizeof text);
    assert_non_null(strstr(text, "no plans for qkv (standard), o, gate_up, down (standard), "
                                 "head, nor for the set fixed: "));
    plan_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_comments),
        cmocka_unit_test(test_refused),    cmocka_unit_test(test_find),
        cmocka_unit_test(test_digest),     cmocka_unit_test(test_add),
        cmocka_unit_test(test_builtin),    cmocka_unit_test(test_missing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
