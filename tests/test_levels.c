/* test_levels.c - opening an engine measures its ops once, keeps the result, and refuses a policy
 * whose level is not met, naming the op. Faults are planted in the backend under a tiny model. */
#include "engine_run.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/levels.h"
#include "planted.h"

#define MODEL TEST_DATA "/golden/qwen3_tied"

static char home[] = "/tmp/corun_levels_XXXXXX";

static corun_engine_opts opts(corun_policy p)
{
    corun_engine_opts o = corun_engine_opts_default();
    o.policy = p;
    o.n_slot = 4;
    o.n_ctx = 100;
    o.page_tokens = 16;
    return o;
}

/* The model with a fault planted in its backend. */
static corun_model *open_planted(plant_kind k, ops_set set, ops_op op)
{
    corun_model *m = run_open(MODEL);
    m->net->o = planted_wrap(m->net->o, k, set, op);
    return m;
}

static corun_status try_open(corun_model *m, corun_policy p, corun_policy *got)
{
    corun_engine *e;
    corun_engine_opts o = opts(p);
    corun_status st = corun_engine_open(&e, m, &o);
    if (st == CORUN_OK) {
        if (got) *got = e->opts.policy;
        corun_engine_close(e);
    }
    return st;
}

/* Where the result of this model is kept. */
static void kept(corun_model *m, char path[512])
{
    audit_spec s;
    buf id;
    char key[33];
    corun_engine_opts o = opts(CORUN_POLICY_AUTO);
    buf_init(&id, 1 << 16);
    levels_spec(m, &o, &s);
    assert_int_equal(levels_identity(m, &s, &id, key), CORUN_OK);
    buf_free(&id);
    snprintf(path, 512, "%s/corun/audit/%s.json", home, key);
}

static void forget(corun_model *m)
{
    char path[512];
    kept(m, path);
    unlink(path);
    m->levels_key[0] = 0;
}

static void says(const char *word)
{
    if (!strstr(corun_last_error(), word)) fail_msg("\"%s\": no %s", corun_last_error(), word);
}

/* Each kind of fault: which policies still open, what AUTO becomes. */
static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        plant_kind kind;
        ops_set set;
        ops_op op;
        bool dynamic, corun, invariant, free;
        const char *level;
    } c[] = {
        {PLANT_NONE, OPS_SET_STANDARD, OPS_OP_MATMUL, true, true, true, true, ""},
        {PLANT_CUT, OPS_SET_CANONICAL, OPS_OP_MATMUL, true, true, true, false, "batch"},
        {PLANT_CUT, OPS_SET_STANDARD, OPS_OP_MATMUL, true, true, true, true, "batch"},
        {PLANT_SHAPE, OPS_SET_FIXED, OPS_OP_ATTN_PREFILL, true, true, false, true, "position"},
        {PLANT_SHAPE, OPS_SET_STANDARD, OPS_OP_NORM, true, true, true, true, "position"},
        {PLANT_STALE, OPS_SET_CANONICAL, OPS_OP_ATTN_DECODE, true, false, true, false, "run"},
        {PLANT_SLOT, OPS_SET_STANDARD, OPS_OP_LOGITS, true, false, true, true, "run"},
        {PLANT_ROW, OPS_SET_STANDARD, OPS_OP_ATTN_PREFILL, true, true, true, true, "run"},
        {PLANT_CALLS, OPS_SET_STANDARD, OPS_OP_SILU_MUL, false, false, true, true, "none"},
        {PLANT_UNWRITTEN, OPS_SET_FIXED, OPS_OP_EMBED, true, true, false, true, "none"},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        corun_model *m = open_planted(c[i].kind, c[i].set, c[i].op);
        forget(m);
        const bool opens[] = {c[i].dynamic, c[i].corun, c[i].invariant, c[i].free};
        for (corun_policy p = CORUN_POLICY_DYNAMIC; p <= CORUN_POLICY_FREE; p++) {
            corun_status st = try_open(m, p, NULL);
            if (st != (opens[p] ? CORUN_OK : CORUN_EMISMATCH))
                fail_msg("case %zu, %s: %s", i, corun_policy_name(p), corun_status_name(st));
            if (opens[p]) continue;
            says(ops_op_name(c[i].op));
            says(ops_set_name(c[i].set));
            says(c[i].level);
            says("corun audit");
        }
        corun_policy got;
        corun_status st = try_open(m, CORUN_POLICY_AUTO, &got);
        if (c[i].free || c[i].corun) {
            assert_int_equal(st, CORUN_OK);
            assert_int_equal(got, c[i].free ? CORUN_POLICY_FREE : CORUN_POLICY_CORUN);
        } else {
            assert_int_equal(st, CORUN_EMISMATCH);
        }
        forget(m);
        corun_model_close(m);
    }
}

/* What an op does not declare is not asked of the audit. */
static void test_declared(void **state)
{
    (void)state;
    corun_model *m = run_open(MODEL);
    m->net->o->level[OPS_SET_FIXED][OPS_OP_MATMUL] = OPS_LEVEL_RUN;
    assert_int_equal(try_open(m, CORUN_POLICY_INVARIANT, NULL), CORUN_EUNSUPPORTED);
    assert_int_equal(try_open(m, CORUN_POLICY_FREE, NULL), CORUN_OK);
    forget(m);
    corun_model_close(m);
}

static uint64_t file_stamp(const char *path)
{
    struct stat s;
    return stat(path, &s) == 0 ? (uint64_t)s.st_ino : 0;
}

static void overwrite(const char *path, const char *text, size_t len)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
}

/* Kept once; a failure too; a file that does not say what it must is measured again. */
static void test_cache(void **state)
{
    (void)state;
    char path[512];
    corun_model *m = open_planted(PLANT_CUT, OPS_SET_CANONICAL, OPS_OP_MATMUL);
    forget(m);
    kept(m, path);
    assert_int_equal(try_open(m, CORUN_POLICY_FREE, NULL), CORUN_EMISMATCH);
    uint64_t first = file_stamp(path);
    assert_true(first != 0);
    corun_model_close(m);

    m = run_open(MODEL); /* no fault, but the kept failure holds until it is measured again */
    assert_int_equal(try_open(m, CORUN_POLICY_FREE, NULL), CORUN_EMISMATCH);
    assert_int_equal(file_stamp(path), first);
    buf good;
    buf_init(&good, 1 << 20);
    forget(m);
    assert_int_equal(try_open(m, CORUN_POLICY_FREE, NULL), CORUN_OK);
    assert_int_equal(file_read(&good, path, 1 << 20), CORUN_OK);

    static const char *const bad[] = {
        "", "{", "[]", "{}", "null", "{\"identity\":{}}", "{\"identity\":7,\"cases\":[]}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        overwrite(path, bad[i], strlen(bad[i]));
        m->levels_key[0] = 0;
        assert_int_equal(try_open(m, CORUN_POLICY_FREE, NULL), CORUN_OK);
        struct stat s;
        assert_int_equal(stat(path, &s), 0);
        assert_true(s.st_size > 1000); /* measured and kept again */
    }
    /* each byte of the good text changed, cut at many places: never a crash, never a wrong pass */
    audit_report *r = calloc(1, sizeof *r);
    assert_non_null(r);
    char key[33];
    snprintf(key, sizeof key, "%.32s", strrchr(path, '/') + 1);
    assert_int_equal(levels_read(r, good.data, good.len, key), CORUN_OK);
    for (size_t i = 0; i < good.len - 1; i += 7) { /* its last byte ends the line */
        assert_int_not_equal(levels_read(r, good.data, i, key), CORUN_OK);
        char was = good.data[i];
        good.data[i] ^= 1;
        if (levels_read(r, good.data, good.len, key) == CORUN_OK) assert_true(r->n > 0);
        good.data[i] = was;
    }
    free(r);
    /* another identity is another file */
    corun_engine_opts o = opts(CORUN_POLICY_FREE);
    o.n_slot = 5;
    corun_engine *e;
    assert_int_equal(corun_engine_open(&e, m, &o), CORUN_OK);
    corun_engine_close(e);
    assert_string_not_equal(m->levels_key, key);
    buf_free(&good);
    forget(m);
    corun_model_close(m);
}

/* No folder, no right to write: measured, and no error. */
static void test_no_cache(void **state)
{
    (void)state;
    static const char *const places[] = {"/dev/null", "relative", "/proc/self"};
    char old[512];
    const char *h = getenv("HOME");
    snprintf(old, sizeof old, "%s", h ? h : "/");
    assert_int_equal(setenv("HOME", "/dev/null", 1), 0);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(setenv("XDG_CACHE_HOME", places[i], 1), 0);
        corun_model *m = run_open(MODEL);
        assert_int_equal(try_open(m, CORUN_POLICY_AUTO, NULL), CORUN_OK);
        corun_model_close(m);
    }
    assert_int_equal(setenv("HOME", old, 1), 0);
    assert_int_equal(setenv("XDG_CACHE_HOME", home, 1), 0);
    corun_model *m = run_open("fake:run,position"); /* nothing to measure */
    assert_int_equal(try_open(m, CORUN_POLICY_CORUN, NULL), CORUN_OK);
    assert_null(m->levels);
    corun_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_declared),
        cmocka_unit_test(test_cache),
        cmocka_unit_test(test_no_cache),
    };
    if (!mkdtemp(home) || setenv("XDG_CACHE_HOME", home, 1) != 0) return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    char cmd[128];
    snprintf(cmd, sizeof cmd, "rm -rf %s", home);
    return system(cmd) != 0 || failed;
}
