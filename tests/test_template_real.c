/* test_template_real.c - real chat templates render to the same text as in the reference
 * environment: every template of the pinned packages with every conversation and option of
 * tests/data/templates (made by tools/golden_templates.py). Invariant: a template is compared only
 * when its file has the digest that the golden was made from. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/digest.h"
#include "text/template.h"

static json_t *cases, *golden;

static int load(void **state)
{
    (void)state;
    return json_read_file(&cases, TEST_DATA "/templates/cases.json", 8 << 20) ||
           json_read_file(&golden, TEST_DATA "/templates/golden.json", 8 << 20);
}

static int unload(void **state)
{
    (void)state;
    json_decref(cases);
    json_decref(golden);
    return 0;
}

static void hex(const char *data, size_t len, char out[17])
{
    snprintf(out, 17, "%016" PRIx64, digest_of(data, len).hi);
}

/* The template's text: in the golden, or from the cache. False: not fetched. */
static bool source(const json_t *row, buf *b)
{
    const json_t *own = json_object_get(row, "source");
    if (own) {
        buf_put(b, json_string_value(own), json_string_length(own));
        return true;
    }
    char path[512];
    snprintf(path, sizeof path, TEST_CACHE "/templates/%s",
             json_string_value(json_object_get(row, "name")));
    return file_read(b, path, 1 << 20) == CORUN_OK;
}

/* Renders one case; the golden's short form of what came out. */
static void outcome(const template *t, const json_t *vars, char out[17])
{
    buf b;
    buf_init(&b, 1 << 24);
    template_env env = {.vars = vars, .year = 2024, .month = 7, .day = 26};
    if (template_render(t, &env, &b) == CORUN_OK) {
        hex(b.data ? b.data : "", b.len, out);
        out[12] = 0;
    } else {
        strcpy(out, "!");
    }
    buf_free(&b);
}

/* Compares every case of one template; the number that differ. */
static int compare(const json_t *row, const char *src, size_t len)
{
    template *t;
    const char *name = json_string_value(json_object_get(row, "name"));
    size_t i;
    int bad = 0;
    const json_t *c, *want = json_object_get(row, "out");
    if (template_parse(&t, src, len, name) != CORUN_OK) {
        print_message("%s\n", err_text());
        return 1;
    }
    assert_int_equal(json_array_size(want), json_array_size(cases));
    json_array_foreach (cases, i, c) {
        char got[17];
        const char *w = json_string_value(json_array_get(want, i));
        outcome(t, json_object_get(c, "vars"), got);
        if (strcmp(got, w) == 0) continue;
        print_message("%s, case %s: %s, not %s%s%s\n", name,
                      json_string_value(json_object_get(c, "name")), got, w,
                      got[0] == '!' ? ": " : "", got[0] == '!' ? err_text() : "");
        bad++;
    }
    template_free(t);
    return bad;
}

static void check_folder(const char *folder)
{
    size_t i;
    const json_t *row;
    int bad = 0, seen = 0;
    json_array_foreach (golden, i, row) {
        const char *name = json_string_value(json_object_get(row, "name"));
        if (strncmp(name, folder, strlen(folder)) != 0) continue;
        buf b;
        char d[17];
        buf_init(&b, 1 << 20);
        if (!source(row, &b)) {
            buf_free(&b);
            if (getenv("CI")) fail_msg("%s is missing: run tools/fetch tests", name);
            skip();
        }
        hex(b.data ? b.data : "", b.len, d);
        assert_string_equal(d, json_string_value(json_object_get(row, "digest")));
        bad += compare(row, b.data ? b.data : "", b.len);
        seen++;
        buf_free(&b);
    }
    assert_true(seen > 0);
    assert_int_equal(bad, 0);
}

static void demo(void **state)
{
    (void)state;
    check_folder("demo/");
}

static void axolotl(void **state)
{
    (void)state;
    check_folder("axolotl/");
}

static void llama_cpp(void **state)
{
    (void)state;
    check_folder("llama.cpp/");
}

static void trl(void **state)
{
    (void)state;
    check_folder("trl/");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(demo),
        cmocka_unit_test(axolotl),
        cmocka_unit_test(llama_cpp),
        cmocka_unit_test(trl),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
