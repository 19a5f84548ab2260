/* template_test.c - owns the tests (what follows "is"). Invariant: a test never changes a value. */
#include <math.h>
#include <string.h>

#include "text/template_int.h"

typedef enum ttest {
    TEST_BOOLEAN,
    TEST_CALLABLE,
    TEST_DEFINED,
    TEST_DIVISIBLE,
    TEST_EQ,
    TEST_ESCAPED,
    TEST_EVEN,
    TEST_FALSE,
    TEST_FLOAT,
    TEST_GE,
    TEST_GT,
    TEST_IN,
    TEST_INTEGER,
    TEST_ITERABLE,
    TEST_LE,
    TEST_LOWER,
    TEST_LT,
    TEST_MAPPING,
    TEST_NE,
    TEST_NONE,
    TEST_NUMBER,
    TEST_ODD,
    TEST_SAMEAS,
    TEST_SEQUENCE,
    TEST_STRING,
    TEST_TRUE,
    TEST_UNDEFINED,
    TEST_UPPER
} ttest;

static const struct test {
    const char *name;
    ttest id;
    int n_arg;
} tests[] = {
    {"boolean", TEST_BOOLEAN, 0},
    {"callable", TEST_CALLABLE, 0},
    {"defined", TEST_DEFINED, 0},
    {"divisibleby", TEST_DIVISIBLE, 1},
    {"eq", TEST_EQ, 1},
    {"equalto", TEST_EQ, 1},
    {"==", TEST_EQ, 1},
    {"escaped", TEST_ESCAPED, 0},
    {"even", TEST_EVEN, 0},
    {"false", TEST_FALSE, 0},
    {"float", TEST_FLOAT, 0},
    {"ge", TEST_GE, 1},
    {">=", TEST_GE, 1},
    {"gt", TEST_GT, 1},
    {"greaterthan", TEST_GT, 1},
    {">", TEST_GT, 1},
    {"in", TEST_IN, 1},
    {"integer", TEST_INTEGER, 0},
    {"iterable", TEST_ITERABLE, 0},
    {"le", TEST_LE, 1},
    {"<=", TEST_LE, 1},
    {"lessthan", TEST_LT, 1},
    {"lower", TEST_LOWER, 0},
    {"lt", TEST_LT, 1},
    {"<", TEST_LT, 1},
    {"mapping", TEST_MAPPING, 0},
    {"ne", TEST_NE, 1},
    {"!=", TEST_NE, 1},
    {"none", TEST_NONE, 0},
    {"number", TEST_NUMBER, 0},
    {"odd", TEST_ODD, 0},
    {"sameas", TEST_SAMEAS, 1},
    {"sequence", TEST_SEQUENCE, 0},
    {"string", TEST_STRING, 0},
    {"true", TEST_TRUE, 0},
    {"undefined", TEST_UNDEFINED, 0},
    {"upper", TEST_UPPER, 0},
};

int tpl_test_find(const char *s, size_t len)
{
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (strlen(tests[i].name) == len && memcmp(tests[i].name, s, len) == 0) return (int)i;
    return -1;
}

const char *tpl_test_check(int id, int n_pos, int n_kw)
{
    if (n_kw) return "keyword arguments are not supported";
    if (n_pos > tests[id].n_arg) return "too many arguments";
    return n_pos < tests[id].n_arg ? "an argument is missing" : NULL;
}

/* v % by == want */
static corun_status remainder_is(tctx *c, const tval *v, int64_t by, int64_t want, bool *out)
{
    tval b = tv_int(by), w = tv_int(want), r;
    if (v->kind != T_UNDEF && !tv_is_num(v))
        return tpl_fail(c, "a number is required, not '%s'", tpl_kind_name(v));
    TRY(tpl_binary(c, '%', v, &b, &r));
    return tpl_equal(c, &r, &w, out);
}

static corun_status divisible(tctx *c, const tval *v, const tval *by, bool *out)
{
    tval zero = tv_int(0), r;
    if (v->kind == T_STR) return tpl_fail(c, "a number is required, not 'str'");
    TRY(tpl_binary(c, '%', v, by, &r));
    return tpl_equal(c, &r, &zero, out);
}

/* The same object: exact for none, booleans and undefined, else equal in kind and value. */
static corun_status same(tctx *c, const tval *a, const tval *b, bool *out)
{
    *out = false;
    return a->kind == b->kind ? tpl_equal(c, a, b, out) : CORUN_OK;
}

static corun_status is_case(tctx *c, const tval *v, bool upper, bool *out)
{
    tval s;
    TRY(tpl_to_str(c, v, &s));
    *out = tstr_is_case(&s, upper);
    return tpl_charge(c, s.len / 8);
}

/* Tests of the kind alone; false: not one of them. */
static bool test_kind(ttest id, const tval *v, bool *out)
{
    uint8_t k = v->kind;
    switch (id) {
    case TEST_BOOLEAN: *out = k == T_BOOL; break;
    case TEST_CALLABLE: *out = k == T_MACRO || k == T_FUNC || k == T_METHOD; break;
    case TEST_DEFINED: *out = k != T_UNDEF; break;
    case TEST_ESCAPED: *out = k == T_STR && v->sub; break;
    case TEST_FALSE: *out = k == T_BOOL && !v->u.i; break;
    case TEST_FLOAT: *out = k == T_FLOAT; break;
    case TEST_INTEGER: *out = k == T_INT; break;
    case TEST_ITERABLE: *out = tpl_can_iterate(v); break;
    case TEST_MAPPING: *out = k == T_DICT; break;
    case TEST_NONE: *out = k == T_NONE; break;
    case TEST_NUMBER: *out = tv_is_num(v); break;
    case TEST_SEQUENCE:
        *out = k == T_STR || k == T_DICT || k == T_UNDEF || (k == T_SEQ && v->sub <= SEQ_RANGE);
        break;
    case TEST_STRING: *out = k == T_STR; break;
    case TEST_TRUE: *out = k == T_BOOL && v->u.i; break;
    case TEST_UNDEFINED: *out = k == T_UNDEF; break;
    default: return false;
    }
    return true;
}

corun_status tpl_test(tctx *c, int id, const tval *v, const targs *a, bool *out)
{
    const struct test *t = &tests[id];
    if (a->n_kw || a->n != t->n_arg)
        return tpl_fail(c, "the test '%s' takes %d argument(s)", t->name, t->n_arg);
    if (test_kind(t->id, v, out)) return CORUN_OK;
    const tval *b = a->v;
    switch (t->id) {
    case TEST_DIVISIBLE: return divisible(c, v, b, out);
    case TEST_EQ: return tpl_equal(c, v, b, out);
    case TEST_NE:
        TRY(tpl_equal(c, v, b, out));
        *out = !*out;
        return CORUN_OK;
    case TEST_EVEN: return remainder_is(c, v, 2, 0, out);
    case TEST_ODD: return remainder_is(c, v, 2, 1, out);
    case TEST_GE: return tpl_less(c, b, v, true, out);
    case TEST_GT: return tpl_less(c, b, v, false, out);
    case TEST_LE: return tpl_less(c, v, b, true, out);
    case TEST_LT: return tpl_less(c, v, b, false, out);
    case TEST_IN: return tpl_contains(c, b, v, out);
    case TEST_SAMEAS: return same(c, v, b, out);
    case TEST_LOWER: return is_case(c, v, false, out);
    case TEST_UPPER: return is_case(c, v, true, out);
    default: FAIL(CORUN_EINTERNAL, "template test %d", (int)t->id);
    }
}
