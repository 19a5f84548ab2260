/* test_template.c - the template interpreter: rows of known trouble, every construct by its golden,
 * limits, hostile nesting, failing allocations. Invariant: a row holds the whole text. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/template.h"

static json_t *object(const char *text)
{
    json_t *v;
    assert_int_equal(json_read(&v, text, strlen(text), "vars"), CORUN_OK);
    return v;
}

/* Parses and renders; b gets the text. */
static corun_status run_n(const char *src, size_t len, const json_t *vars, buf *b)
{
    template *t;
    corun_status st = template_parse(&t, src, len, "template");
    template_env env = {.vars = vars, .year = 2024, .month = 7, .day = 26};
    if (st == CORUN_OK) st = template_render(t, &env, b);
    template_free(t);
    return st;
}

static void expect(const char *src, const char *vars, const char *want)
{
    buf b;
    json_t *v = object(vars);
    buf_init(&b, 1 << 24);
    corun_status st = run_n(src, strlen(src), v, &b);
    if (st != CORUN_OK) fail_msg("%s\n  %s", src, err_text());
    assert_string_equal(b.data ? b.data : "", want);
    buf_free(&b);
    json_decref(v);
}

/* It fails with this status, and the error text holds part. */
static void refuse(const char *src, const char *vars, corun_status want, const char *part)
{
    buf b;
    json_t *v = object(vars);
    buf_init(&b, 1 << 24);
    corun_status st = run_n(src, strlen(src), v, &b);
    if (st != want || !strstr(err_text(), part))
        fail_msg("%.200s: %s: %s", src, corun_status_name(st), st ? err_text() : "");
    assert_int_equal(b.len, 0);
    buf_free(&b);
    json_decref(v);
}

/* ---- rows of public bug reports
 * ------------------------------------------------------------------ */

static void tojson_rows(void **state)
{
    (void)state;
    const char *x =
        "{\"x\":{\"path\":\"/a/b\",\"q\":\"<b>&'\\\"\",\"u\":\"\u00e9\u2028\U0001F600\","
        "\"z\":[],\"a\":{\"k\":[1,2]}}}";
    expect(
        "{{ x|tojson }}", x,
        "{\"path\": \"/a/b\", \"q\": \"<b>&'\\\"\", \"u\": \"\u00e9\u2028\U0001F600\", \"z\": [], "
        "\"a\": {\"k\": [1, 2]}}");
    const char *y = "{\"y\":{\"b\":[1,{\"\u00e9\":2}],\"a\":{}}}";
    expect("{{ y|tojson(ensure_ascii=false) }}", y, "{\"b\": [1, {\"\u00e9\": 2}], \"a\": {}}");
    expect("{{ y|tojson(separators=(',',':')) }}", y, "{\"b\":[1,{\"\u00e9\":2}],\"a\":{}}");
    expect("{{ y|tojson(indent=2) }}", y,
           "{\n  \"b\": [\n    1,\n    {\n      \"\u00e9\": 2\n    }\n  ],\n  \"a\": {}\n}");
    expect("{{ y|tojson(ensure_ascii=true) }}", y, "{\"b\": [1, {\"\\u00e9\": 2}], \"a\": {}}");
    expect("{{ ['\\x7f', '\\x07', '\U0001F600']|tojson(ensure_ascii=true) }}", "{}",
           "[\"\x7f\", \"\\u0007\", \"\\ud83d\\ude00\"]");
}

static void number_rows(void **state)
{
    (void)state;
    expect("{{ x|tojson }}",
           "{\"x\":{\"a\":3,\"c\":1.0,\"d\":1e16,\"e\":0.00001,\"f\":-0.0,"
           "\"h\":123456789012345678.0,\"i\":0.1}}",
           "{\"a\": 3, \"c\": 1.0, \"d\": 1e+16, \"e\": 1e-05, \"f\": -0.0, "
           "\"h\": 1.2345678901234568e+17, \"i\": 0.1}");
    expect("{{ x }}", "{\"x\":[9223372036854775807,-9223372036854775808,5e-324,1e22]}",
           "[9223372036854775807, -9223372036854775808, 5e-324, 1e+22]");
    json_t *v;
    const char *big = "{\"b\":12345678901234567890}", *twice = "{\"a\":1,\"a\":3}";
    assert_int_equal(json_read(&v, big, strlen(big), "x"), CORUN_EFORMAT);
    assert_int_equal(json_read(&v, twice, strlen(twice), "x"), CORUN_EFORMAT);
    refuse("{{ 9223372036854775807 + 1 }}", "{}", CORUN_EFORMAT, "64-bit");
    refuse("{{ -9223372036854775807 - 2 }}", "{}", CORUN_EFORMAT, "64-bit");
    refuse("{{ 3037000500 * 3037000500 }}", "{}", CORUN_EFORMAT, "64-bit");
    refuse("{{ 2 ** 63 }}", "{}", CORUN_EFORMAT, "64-bit");
    refuse("{{ -x // -1 }}", "{\"x\":-9223372036854775808}", CORUN_EFORMAT, "64-bit");
    refuse("{{ x // -1 }}", "{\"x\":-9223372036854775808}", CORUN_EFORMAT, "64-bit");
    refuse("{{ x|abs }}", "{\"x\":-9223372036854775808}", CORUN_EFORMAT, "64-bit");
    refuse("{{ '1e300'|int }}", "{}", CORUN_EFORMAT, "64-bit");
    refuse("{{ 9223372036854775808 }}", "{}", CORUN_EFORMAT, "64 bits");
    refuse("{{ 2 ** -1 }}", "{}", CORUN_EFORMAT, "not supported");
}

static const struct row {
    const char *src, *want;
} rows[] = {
    {"  {% if true %}\n    hi\n  {% endif %}\n  {{ 'x' }}\nend\n\n", "    hi\n  x\nend\n"},
    {"a\n  {%- if true %}\n b\n  {%- endif -%}\n  c\n", "a bc"},
    {"a\n   {#- n -#}\n   b{# q #}\nc", "abc"},
    {"a {% if true +%}\nb{% endif %}\n\nc", "a \nb\nc"},
    {"  {%+ if true %}y{% endif %}", "  y"},
    {"\t {% if true %}y{% endif %}", "y"},
    {"a\r\nb\r\n{% if true %}\r\nc{% endif %}\r\n", "a\nb\nc"},
    {"{% raw %}{{ a }}{% endraw %}", "{{ a }}"},
    {"{{ m.x is defined }}{{ m.x }}{{ nope }}{{ m.n }}{{ m.n is none }}{{ nope is none }}"
     "{{ nope|length }}{{ 'q' in nope }}",
     "FalseNoneTrueFalse0False"},
    {"{{ 'a' ~ nope ~ 1 ~ none }}", "a1None"},
    {"{% set s=0 %}{% for i in [1,2] %}{% set s=s+i %}{% endfor %}{{ s }}"
     "{% set ns=namespace(s=0) %}{% for i in [1,2] %}{% set ns.s=ns.s+i %}{% endfor %}{{ ns.s }}"
     "{% if 1 %}{% set q=5 %}{% endif %}{{ q }}",
     "035"},
    {"{{ '\\u00a0\\u3000 x\\u2003'.strip()|length }}{{ '\\u200bx'.strip()|length }}"
     "{{ 'aXbXc'.split('X',1) }}{{ ' a  b '.split() }}{{ ''.split('X') }}{{ 'xxabx'.strip('x') }}",
     "12['a', 'bXc']['a', 'b']['']ab"},
    {"{% for a in [1,2,3,4] if a%2==0 %}{{ loop.index }}{{ a }}{{ loop.length }}{% endfor %}|"
     "{{ -7//2 }}{{ -7%3 }}{{ 7/2 }}|{{ 1e3 }}|{{ '\U0001F600x'[0] }}{{ '\u00e9'|length }}",
     "122242|-423.5|1000.0|\U0001F6001"},
};

static void semantic_rows(void **state)
{
    (void)state;
    const char *m = "{\"m\":{\"n\":null}}";
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) expect(rows[i].src, m, rows[i].want);
    refuse("{{ nope.x }}", m, CORUN_EFORMAT, "'nope' is undefined");
    refuse("{{ 'a' + nope }}", m, CORUN_EFORMAT, "'nope' is undefined");
    refuse("{{ 'a' + 1 }}", m, CORUN_EFORMAT, "'str' and 'int'");
    refuse("{{ m.n[:3] }}", m, CORUN_EFORMAT, "NoneType");
}

/* ---- every construct, against the reference's text
 * ------------------------------------------------ */

static void snippets(void **state)
{
    (void)state;
    json_t *all, *row;
    size_t i, bad = 0;
    const char *path = TEST_DATA "/templates/snippets.json";
    assert_int_equal(json_read_file(&all, path, 1 << 22), CORUN_OK);
    const json_t *vars = json_object_get(all, "vars");
    json_array_foreach (json_object_get(all, "rows"), i, row) {
        const json_t *src = json_array_get(row, 0), *want = json_array_get(row, 1);
        buf b;
        buf_init(&b, 1 << 20);
        corun_status st = run_n(json_string_value(src), json_string_length(src), vars, &b);
        const char *text = b.data ? b.data : "";
        bool same = st == CORUN_OK && b.len == json_string_length(want) && json_is_string(want) &&
                    memcmp(text, json_string_value(want), b.len) == 0;
        if (st != CORUN_OK) same = json_is_null(want);
        if (!same)
            print_message("%s\n  want %s\n  got  %s\n", json_string_value(src),
                          json_is_null(want) ? "an error" : json_string_value(want),
                          st ? err_text() : text);
        bad += !same;
        buf_free(&b);
    }
    assert_true(i > 200);
    assert_int_equal(bad, 0);
    json_decref(all);
}

/* What is not implemented fails while parsing, and the error names line and construct. */
static void refused_constructs(void **state)
{
    (void)state;
    static const char *const src[][2] = {
        {"\n\n{% include 'x' %}", "template, line 3: the tag 'include' is not supported"},
        {"{% import 'x' as y %}", "the tag 'import'"},
        {"{% from 'x' import y %}", "the tag 'from'"},
        {"{% extends 'x' %}", "the tag 'extends'"},
        {"{% block x %}{% endblock %}", "the tag 'block'"},
        {"{% do x %}", "the tag 'do'"},
        {"{% autoescape true %}{% endautoescape %}", "the tag 'autoescape'"},
        {"{% endif %}", "the tag 'endif' is not expected"},
        {"{% for x in y recursive %}{% endfor %}", "recursive loops"},
        {"{% if 0 %}{{ x|groupby('a') }}{% endif %}", "the filter 'groupby' is not supported"},
        {"{{ x|tojson(nope=1) }}", "the filter 'tojson': a keyword argument is not supported"},
        {"{{ x is weird }}", "the test 'weird' is not supported"},
        {"{{ x.casefold() }}", "the method 'casefold' is not supported"},
        {"{{ cycler(1) }}", "the function 'cycler' is not supported"},
        {"{{ x|join(*y) }}", "filter or test"},
        {"{{ x[1, 2] }}", "a tuple as a subscript"},
        {"{{ '\\N{BULLET}' }}", "escape '\\N'"},
        {"{{ '\\ud83d' }}", "escape '\\u'"},
        {"{% if x %}\n{% for y in z %}", "a block begins here, 'endfor' is missing"},
        {"{% break %}", "'break' outside of a loop"},
    };
    for (size_t i = 0; i < sizeof src / sizeof *src; i++)
        refuse(src[i][0], "{}", CORUN_EFORMAT, src[i][1]);
    refuse("{{ [1].append(2) }}", "{}", CORUN_EFORMAT,
           "access to attribute 'append' of 'list' object is unsafe");
    refuse("{{ raise_exception('no ' ~ 1) }}", "{}", CORUN_EFORMAT,
           "template, line 1: the template refuses: no 1");
    refuse("a\n{{ m.x.y }}", "{\"m\":{}}", CORUN_EFORMAT,
           "template, line 2: 'dict object' has no attribute 'x'");
    refuse("{{ '%y' % strftime_now('%Q') }}", "{}", CORUN_EFORMAT, "the directive '%Q'");
}

static void bytes_and_dates(void **state)
{
    (void)state;
    template *t;
    buf b;
    buf_init(&b, 100);
    assert_int_equal(template_parse(&t, "\xff", 1, "t"), CORUN_EFORMAT);
    assert_null(t);
    assert_int_equal(template_parse(&t, "\xed\xa0\x80", 3, "t"), CORUN_EFORMAT);
    static const char nul[] = "a\0b{{ '\\0' }}";
    assert_int_equal(run_n(nul, sizeof nul - 1, NULL, &b), CORUN_OK);
    assert_int_equal(b.len, 4);
    assert_memory_equal(b.data, "a\0b\0", 4);
    const char *src = "{{ strftime_now('%a %d %j') }}";
    assert_int_equal(template_parse(&t, src, strlen(src), "t"), CORUN_OK);
    static const struct {
        int y, m, d;
        const char *want;
    } days[] = {{2024, 2, 29, "Thu 29 060"},
                {2023, 12, 31, "Sun 31 365"},
                {2000, 3, 1, "Wed 01 061"},
                {1900, 3, 1, "Thu 01 060"},
                {2026, 11, 29, "Sun 29 333"}};
    for (size_t i = 0; i < sizeof days / sizeof *days; i++) {
        buf_reset(&b);
        template_env env = {.vars = NULL, days[i].y, days[i].m, days[i].d};
        assert_int_equal(template_render(t, &env, &b), CORUN_OK);
        assert_string_equal(b.data, days[i].want);
    }
    template_env none = {.vars = NULL, 2024, 13, 1};
    assert_int_equal(template_render(t, &none, &b), CORUN_EINVAL);
    template_free(t);
    buf_free(&b);
}

static void content_loops(void **state)
{
    (void)state;
    static const struct {
        const char *src;
        bool parts;
    } src[] = {
        {"{% for m in messages %}{{ m.content }}{% endfor %}", false},
        {"{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}",
         true},
        {"{% for m in messages %}{% for p in m['content'] %}{% endfor %}{% endfor %}", true},
        {"{% set l = messages[1:] %}{% for m in l %}{% for p in m['content']|list %}{% endfor %}"
         "{% endfor %}",
         true},
        {"{% for m in messages %}{% for p in m.tool_calls %}{% endfor %}{% endfor %}", false},
        {"{% for m in other %}{% for p in m.content %}{% endfor %}{% endfor %}", false},
    };
    for (size_t i = 0; i < sizeof src / sizeof *src; i++) {
        template *t;
        assert_int_equal(template_parse(&t, src[i].src, strlen(src[i].src), "t"), CORUN_OK);
        assert_int_equal(template_wants_parts(t), src[i].parts);
        template_free(t);
    }
}

/* ---- limits
 * ------------------------------------------------------------------------------------------ */

/* n times `open`, `mid`, n times `close`. */
static char *nested(const char *open, const char *mid, const char *close, size_t n)
{
    buf b;
    buf_init(&b, 1 << 26);
    for (size_t i = 0; i < n; i++) buf_puts(&b, open);
    buf_puts(&b, mid);
    for (size_t i = 0; i < n; i++) buf_puts(&b, close);
    return b.data;
}

static void hostile_nesting(void **state)
{
    (void)state;
    static const char *const src[][3] = {
        {"{{ ((", "1", "}}"},
        {"[", "1", "]"},
        {"not ", "1", ""},
        {"-", "1", ""},
        {"{% if 1 %}", "x", "{% endif %}"},
        {"{% for x in [1] %}", "x", "{% endfor %}"},
        {"{% set x %}", "x", "{% endset %}"},
        {"{% macro f() %}", "x", "{% endmacro %}"},
        {"1 if 1 else ", "1", ""},
        {"{'a':", "1", "}"},
        {"f(", "1", ")"},
        {"x[", "1", "]"},
        {"", "x", ".x"},
        {"", "x", "|trim"},
        {"", "x", " is defined"},
        {"", "x", "+1"},
        {"", "x", " and 1"},
        {"", "x", "[0]"},
        {"", "x", "()"},
    };
    for (size_t i = 0; i < sizeof src / sizeof *src; i++) {
        char *inner = nested(src[i][0], src[i][1], src[i][2], 100000), *whole = NULL;
        bool tag = src[i][0][0] == '{' && src[i][0][1] != '\'';
        buf b;
        buf_init(&b, 1 << 26);
        buf_puts(&b, tag ? "" : "{{ ");
        buf_puts(&b, inner);
        buf_puts(&b, tag ? "" : " }}");
        whole = b.data;
        template *t;
        assert_int_equal(template_parse(&t, whole, b.len, "t"), CORUN_EFORMAT);
        mem_free(inner);
        buf_free(&b);
    }
}

static void limits(void **state)
{
    (void)state;
    refuse("{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}", "{}", CORUN_EFORMAT,
           "nested deeper");
    expect(
        "{% macro f(n) %}{% if n %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60)|length "
        "}}",
        "{}", "111");
    refuse("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}", "{}",
           CORUN_ECAPACITY, "steps");
    refuse("{% set n = namespace(s='x') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}"
           "{% endfor %}",
           "{}", CORUN_ECAPACITY, "bytes");
    refuse("{% set n = namespace(s='x') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}"
           "{% endfor %}",
           "{}", CORUN_ECAPACITY, "bytes");
    refuse("{% set n = namespace(l=[1]) %}{% for i in range(60) %}{% set n.l = n.l + n.l %}"
           "{% endfor %}",
           "{}", CORUN_ECAPACITY, "");
    refuse("{% set n = namespace(l=[1]) %}{% for i in range(2000) %}{% set n.l = [n.l] %}"
           "{% endfor %}",
           "{}", CORUN_EFORMAT, "values nested");
    refuse("{{ 'x' * 1000000000000 }}", "{}", CORUN_ECAPACITY, "repetition");
    refuse("{{ [1] * 9223372036854775807 }}", "{}", CORUN_ECAPACITY, "repetition");
    refuse("{{ '' * 9223372036854775807 }}{{ x }}{{ nope.y }}", "{}", CORUN_EFORMAT, "nope");
    refuse("{{ range(1000000) }}", "{}", CORUN_EFORMAT, "range too big");
    refuse("{{ range(-9223372036854775807, 9223372036854775807) }}", "{}", CORUN_EFORMAT,
           "range too big");
    expect(
        "{{ range(9223372036854775806, 9223372036854775807)|list }}{{ 'abc'[::9223372036854775807] "
        "}}{{ 'abc'[9223372036854775807:] }}{{ [1,2][-9223372036854775807:] }}",
        "{}", "[9223372036854775806]a[1, 2]");
    refuse("{{ '%2000d' % 1 }}", "{}", CORUN_EFORMAT, "too wide");
    refuse("{{ 'a'|indent(1000000000000) }}", "{}", CORUN_ECAPACITY, "repetition");
    /* the output */
    refuse("{% set s = ('x' * 1000) * 40000 %}{{ s }}{{ s }}", "{}", CORUN_ECAPACITY, "bytes");
    buf small;
    buf_init(&small, 4);
    assert_int_not_equal(run_n("12345", 5, NULL, &small), CORUN_OK);
    buf_free(&small);
}

/* JSON of the deepest nesting that the reader takes, as a value. */
static void deep_json(void **state)
{
    (void)state;
    char *deep = nested("[", "", "]", 900), *src = nested("{\"x\":", "", "", 1);
    buf b;
    buf_init(&b, 1 << 20);
    buf_printf(&b, "{\"x\":%s}", deep);
    expect("{{ x|tojson|length }}{{ x|string|length }}{{ x == x }}{{ [x] == [x] }}", b.data,
           "18001800TrueTrue");
    mem_free(deep);
    deep = nested("[", "", "]", 2000);
    buf_reset(&b);
    buf_printf(&b, "{\"x\":%s}", deep);
    refuse("{{ x|length }}", b.data, CORUN_EFORMAT, "nested deeper");
    expect("unused", b.data, "unused");
    mem_free(deep);
    mem_free(src);
    buf_free(&b);
}

/* ---- memory
 * ------------------------------------------------------------------------------------------- */

static void failing_allocations(void **state)
{
    (void)state;
    static const char src[] =
        "{% macro f(a, b=[1, 2]) %}{{ a|upper ~ b|join(',') }}{% endmacro %}"
        "{% for m in messages %}{% set x %}{{ m.content * 5000 }}{% endset %}{{ x|length }}"
        "{{ f(m|tojson, b=m.items()) }}{% endfor %}{{ ('[1]'|from_json)[0] }}";
    json_t *vars = object("{\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}]}");
    corun_status st = CORUN_ENOMEM;
    uint64_t n = 1;
    for (; st != CORUN_OK && n < 1000; n++) {
        buf b;
        buf_init(&b, 1 << 20);
        mem_fail_at(n);
        st = run_n(src, sizeof src - 1, vars, &b);
        mem_fail_at(0);
        if (st != CORUN_OK) {
            assert_int_equal(st, CORUN_ENOMEM);
            assert_int_equal(b.len, 0);
        }
        buf_free(&b);
    }
    assert_int_equal(st, CORUN_OK);
    assert_true(n > 8);
    json_decref(vars);
}

/* One parsed template, several renders: none leaves a trace. */
static void repeated_renders(void **state)
{
    (void)state;
    static const char src[] =
        "{% set n = namespace(c=0) %}{% for m in messages %}{% set n.c = n.c + "
        "1 %}{% endfor %}{% set messages = [] %}{{ n.c }}{{ x }}{% set x = 9 %}";
    template *t;
    json_t *vars = object("{\"messages\":[1,2],\"x\":5}");
    assert_int_equal(template_parse(&t, src, sizeof src - 1, "t"), CORUN_OK);
    template_env env = {.vars = vars, .year = 2024, .month = 7, .day = 26};
    for (int i = 0; i < 3; i++) {
        buf b;
        buf_init(&b, 100);
        assert_int_equal(template_render(t, &env, &b), CORUN_OK);
        assert_string_equal(b.data, "25");
        buf_free(&b);
    }
    template_free(t);
    json_decref(vars);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tojson_rows),
        cmocka_unit_test(number_rows),
        cmocka_unit_test(semantic_rows),
        cmocka_unit_test(snippets),
        cmocka_unit_test(refused_constructs),
        cmocka_unit_test(bytes_and_dates),
        cmocka_unit_test(content_loops),
        cmocka_unit_test(hostile_nesting),
        cmocka_unit_test(limits),
        cmocka_unit_test(deep_json),
        cmocka_unit_test(failing_allocations),
        cmocka_unit_test(repeated_renders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
