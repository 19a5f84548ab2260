/* test_bpe_pattern.c - the pre-tokenizer's patterns and NFC against the reference's engines:
 * tests/data/tokens/patterns.json and nfc.json, written by tools/golden_tokens.py. */
#include "bpe_util.h"

#include "text/charset.h"
#include "text/pattern.h"

static json_t *read_data(const char *name)
{
    char path[512];
    json_t *v = NULL;
    snprintf(path, sizeof path, TEST_DATA "/tokens/%s", name);
    if (json_read_file(&v, path, 1 << 24) != CORUN_OK) fail_msg("%s", err_text());
    return v;
}

static pattern *parse(const char *re, size_t len)
{
    pattern *p = NULL;
    if (pattern_parse(&p, re, len, false, "test") != CORUN_OK) fail_msg("%s", err_text());
    return p;
}

/* Characters of a text, and their classes. */
static size_t classes_of(const pattern *p, const char *s, size_t len, uint32_t *c, uint8_t *cls)
{
    size_t n = 0;
    for (size_t i = 0; i < len;) {
        int k;
        c[n++] = utf8_next(s + i, &k);
        i += (size_t)k;
    }
    pattern_classes(p, c, n, cls);
    return n;
}

static void check_case(const pattern *p, pattern_scan *scan, const json_t *texts, const json_t *row,
                       const char *re)
{
    uint32_t c[2000];
    uint8_t cls[2000];
    size_t k = 3, n_want = json_array_size(row);
    const json_t *text = json_array_get(texts, (size_t)json_integer_value(json_array_get(row, 0)));
    pattern_behavior b = (pattern_behavior)json_integer_value(json_array_get(row, 1));
    bool invert = json_integer_value(json_array_get(row, 2)) != 0;
    assert_true(json_string_length(text) < 2000);
    size_t n = classes_of(p, json_string_value(text), json_string_length(text), c, cls);
    pattern_pieces out = {0};
    if (pattern_split(p, scan, cls, (pattern_piece){0, (uint32_t)n}, b, invert, &out) != CORUN_OK)
        fail_msg("%s", err_text());
    bool same = out.n * 2 + 3 == n_want;
    for (size_t i = 0; same && i < out.n; i++, k += 2)
        same = json_integer_value(json_array_get(row, k)) == out.at[i].begin &&
               json_integer_value(json_array_get(row, k + 1)) == out.at[i].end;
    if (!same)
        fail_msg("pattern %s, behavior %d, invert %d: \"%s\"", re, (int)b, invert,
                 json_string_value(text));
    mem_free(out.at);
}

static void test_patterns(void **state)
{
    (void)state;
    json_t *all = read_data("patterns.json");
    const json_t *texts = json_object_get(all, "texts");
    pattern_scan *scan = NULL;
    assert_int_equal(pattern_scan_open(&scan), CORUN_OK);
    size_t i, k, n = 0;
    json_t *one, *row;
    json_array_foreach (json_object_get(all, "patterns"), i, one) {
        const json_t *re = json_object_get(one, "re");
        pattern *p = parse(json_string_value(re), json_string_length(re));
        json_array_foreach (json_object_get(one, "cases"), k, row) {
            check_case(p, scan, texts, row, json_string_value(re));
            n++;
        }
        pattern_free(p);
    }
    assert_true(n > 2000);
    pattern_scan_close(scan);
    json_decref(all);
}

/* How many characters each class holds: in the reference's engine, and in ours. */
static void test_class_sizes(void **state)
{
    (void)state;
    json_t *all = read_data("patterns.json");
    const char *name;
    json_t *size;
    json_object_foreach (json_object_get(all, "sizes"), name, size) {
        charset s = {0};
        bool known = true;
        if (name[1] == 'p')
            assert_int_equal(charset_add_property(&s, name + 3, strlen(name) - 4, &known),
                             CORUN_OK);
        else if (name[1] == 's')
            assert_int_equal(charset_add_ranges(&s, unicode_space, unicode_space_n), CORUN_OK);
        else if (name[1] == 'd')
            assert_int_equal(charset_add_gc(&s, "Nd"), CORUN_OK);
        else
            assert_int_equal(charset_add_word(&s, false), CORUN_OK);
        assert_true(known);
        size_t n = 0;
        for (size_t i = 0; i < s.n; i++)
            for (uint32_t c = s.r[i].lo; c <= s.r[i].hi; c++) n += c < 0xD800 || c > 0xDFFF;
        if ((json_int_t)n != json_integer_value(size))
            fail_msg("%s: %zu characters, not %lld", name, n, (long long)json_integer_value(size));
        charset_free(&s);
    }
    json_decref(all);
}

static void test_charset(void **state)
{
    (void)state;
    charset a = {0}, b = {0};
    assert_int_equal(charset_add(&a, 10, 20), CORUN_OK);
    assert_int_equal(charset_add(&a, 5, 9), CORUN_OK);
    assert_int_equal(charset_add(&a, 30, 40), CORUN_OK);
    assert_int_equal(charset_add(&a, 15, 18), CORUN_OK);
    charset_settle(&a);
    assert_int_equal(a.n, 2);
    assert_true(a.r[0].lo == 5 && a.r[0].hi == 20 && a.r[1].lo == 30 && a.r[1].hi == 40);
    assert_int_equal(charset_add_ranges(&b, &(unicode_range){18, 33}, 1), CORUN_OK);
    assert_int_equal(charset_intersect(&b, &a), CORUN_OK);
    assert_int_equal(b.n, 2);
    assert_true(b.r[0].lo == 18 && b.r[0].hi == 20 && b.r[1].lo == 30 && b.r[1].hi == 33);
    assert_int_equal(charset_invert(&a), CORUN_OK);
    assert_true(a.n == 3 && a.r[0].lo == 0 && a.r[0].hi == 4 && a.r[2].hi == UNICODE_MAX);
    assert_int_equal(charset_invert(&a), CORUN_OK);
    assert_int_equal(charset_union(&a, &b), CORUN_OK);
    assert_true(a.n == 2 && a.r[0].lo == 5);
    charset_free(&b);
    assert_int_equal(charset_invert(&b), CORUN_OK); /* of nothing: everything */
    assert_true(b.n == 1 && b.r[0].lo == 0 && b.r[0].hi == UNICODE_MAX);
    assert_int_equal(charset_invert(&b), CORUN_OK);
    assert_int_equal(b.n, 0);
    charset_free(&a);
    charset_free(&b);
}

static void test_refused(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        {"(a", "( without )"},
        {"a)", ") without ("},
        {"[a", "[ without ]"},
        {"[]a]", "empty class"},
        {"[b-a]", "empty range"},
        {"[a-\\d]", "range that ends in a class"},
        {"[[:alpha:]]", "[[:name:]]"},
        {"*a", "nothing to repeat"},
        {"a**", "nothing to repeat"},
        {"a|*", "nothing to repeat"},
        {"(*UTF)a", "nothing to repeat"},
        {"x{2}+", "means another thing"},
        {"x{2}?", "means another thing"},
        {"x{3,2}", "repeat count"},
        {"x{70000}", "65535"},
        {"(a)\\1", "\\1 is not supported"},
        {"\\K", "\\K is not supported"},
        {"\\R", "\\R is not supported"},
        {"\\X", "\\X is not supported"},
        {"(?<n>a)", "kind of group"},
        {"(?m:a)", "kind of group"},
        {"(?R)", "kind of group"},
        {"a(?i)b", "middle of a group"},
        {"(?i:\u00df)", "U+00DF under (?i)"},
        {"(?i:ss)", "one-character spellings"},
        {"(?i:\\p{L})", "\\p{...} under (?i)"},
        {"\\p{Klingon}", "Klingon"},
        {"\\pL", "name in braces"},
        {"\\p{L", "without }"},
        {"\\xFF", "is a byte"},
        {"\\x{110000}", "no character"},
        {"\\uD800", "no character"},
        {"\\u12", "hexadecimal"},
        {"\\x{}", "hexadecimal"},
        {"a\\", "backslash at the end"},
        {"(?<=a+)b", "PCRE2"},
        {"\xff", "not UTF-8"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        pattern *p = NULL;
        corun_status st = pattern_parse(&p, rows[i][0], strlen(rows[i][0]), false, "file.json");
        if (st == CORUN_OK || !strstr(err_text(), rows[i][1]) || !strstr(err_text(), "file.json"))
            fail_msg("%s: status %d, \"%s\"", rows[i][0], (int)st, st ? err_text() : "");
        assert_null(p);
    }
    char deep[400];
    memset(deep, '(', sizeof deep);
    pattern *p = NULL;
    assert_int_equal(pattern_parse(&p, deep, sizeof deep, false, "deep"), CORUN_EUNSUPPORTED);
    memset(deep, '[', sizeof deep);
    assert_int_equal(pattern_parse(&p, deep, sizeof deep, false, "deep"), CORUN_EUNSUPPORTED);
}

/* A pattern that backtracks for ever is an error, and one that needs a stack gets it. */
static void test_costly(void **state)
{
    (void)state;
    static uint32_t c[40000];
    static uint8_t cls[40000];
    for (size_t i = 0; i < 40000; i++) c[i] = 'a' + (i % 2);
    pattern_scan *scan = NULL;
    pattern_pieces out = {0};
    assert_int_equal(pattern_scan_open(&scan), CORUN_OK);
    pattern *p = parse("(?:(?:a|b)*)*c", 14);
    pattern_classes(p, c, 60, cls);
    corun_status st =
        pattern_split(p, scan, cls, (pattern_piece){0, 60}, PATTERN_ISOLATED, false, &out);
    assert_true(st == CORUN_ECAPACITY || st == CORUN_OK);
    if (st != CORUN_OK) assert_non_null(strstr(err_text(), "too costly"));
    pattern_free(p);
    out.n = 0;
    p = parse("(?:a|b(?:x)?)*", 14);
    pattern_classes(p, c, 40000, cls);
    if (pattern_split(p, scan, cls, (pattern_piece){0, 40000}, PATTERN_ISOLATED, false, &out) !=
        CORUN_OK)
        fail_msg("%s", err_text());
    assert_int_equal(out.n, 1);
    mem_free(out.at);
    pattern_free(p);
    pattern_scan_close(scan);
}

static void test_literal(void **state)
{
    (void)state;
    uint32_t c[20];
    uint8_t cls[20];
    pattern *p = NULL;
    pattern_scan *scan = NULL;
    pattern_pieces out = {0};
    assert_int_equal(pattern_scan_open(&scan), CORUN_OK);
    assert_int_equal(pattern_parse(&p, ".*(", 3, true, "t"), CORUN_OK);
    size_t n = classes_of(p, "x.*(y.*", 7, c, cls);
    assert_int_equal(
        pattern_split(p, scan, cls, (pattern_piece){0, (uint32_t)n}, PATTERN_ISOLATED, false, &out),
        CORUN_OK);
    assert_int_equal(out.n, 3);
    assert_true(out.at[1].begin == 1 && out.at[1].end == 4);
    mem_free(out.at);
    pattern_free(p);
    pattern_scan_close(scan);
}

/* ---- NFC, UTF-8 -------------------------------------------------------------------------------
 */

static void test_nfc(void **state)
{
    (void)state;
    json_t *rows = read_data("nfc.json"), *row;
    size_t i, changes = 0;
    assert_true(json_array_size(rows) == 1500);
    json_array_foreach (rows, i, row) {
        const json_t *in = json_array_get(row, 0), *want = json_array_get(row, 1);
        buf out;
        bool changed;
        buf_init(&out, 1000);
        assert_int_equal(unicode_nfc(json_string_value(in), json_string_length(in), &out, &changed),
                         CORUN_OK);
        const char *got = changed ? out.data : json_string_value(in);
        size_t len = changed ? out.len : json_string_length(in);
        if (len != json_string_length(want) || memcmp(got, json_string_value(want), len) != 0)
            fail_msg("row %zu: \"%s\" gives \"%s\"", i, json_string_value(in), got);
        changes += changed;
        buf_free(&out);
    }
    assert_true(changes > 500);
    json_decref(rows);
}

static void test_utf8(void **state)
{
    (void)state;
    static const struct {
        const char *s;
        size_t len;
        int64_t bad; /* -1: valid */
    } rows[] = {
        {"", 0, -1},
        {"12345678", 8, -1},
        {"1234567\xc3\xa9", 9, -1},
        {"\xed\x9f\xbf\xee\x80\x80", 6, -1},
        {"\xf4\x8f\xbf\xbf", 4, -1},
        {"a\0b", 3, -1},
        {"12345678\xff", 9, 8},
        {"\xc0\x80", 2, 0},
        {"x\xc1\xbf", 3, 1},
        {"\xe0\x9f\xbf", 3, 0},
        {"\xed\xa0\x80", 3, 0},
        {"\xf0\x8f\xbf\xbf", 4, 0},
        {"\xf4\x90\x80\x80", 4, 0},
        {"\xf5\x80\x80\x80", 4, 0},
        {"ab\xe2\x82", 4, 2},
        {"\x80", 1, 0},
        {"\xe2(\xa1", 3, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        size_t at = 99;
        assert_int_equal(utf8_valid(rows[i].s, rows[i].len, &at), rows[i].bad < 0);
        if (rows[i].bad >= 0) assert_int_equal(at, rows[i].bad);
    }
    for (uint32_t c = 0; c <= UNICODE_MAX; c += c < 0x3000 ? 1 : 251) {
        if (c >= 0xD800 && c <= 0xDFFF) continue;
        char b[8] = "xxxx";
        size_t at;
        int n = utf8_put(c, b), k;
        assert_true(utf8_valid(b, (size_t)n, &at));
        assert_int_equal(utf8_next(b, &k), c);
        assert_int_equal(k, n);
        assert_int_equal(UTF8_LEN(c), n);
        assert_int_equal(utf8_prev(b, (size_t)n, &k), c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_patterns), cmocka_unit_test(test_class_sizes),
        cmocka_unit_test(test_charset),  cmocka_unit_test(test_refused),
        cmocka_unit_test(test_costly),   cmocka_unit_test(test_literal),
        cmocka_unit_test(test_nfc),      cmocka_unit_test(test_utf8),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
