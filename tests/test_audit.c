/* test_audit.c - the audit finds the level that an op really meets: every kind of fault, planted in
 * one op of one kernel set, lowers that op in that set to exactly its level and nothing else. */
#include "ops_fixture.h"

#include "base/mem.h"
#include "ops/audit.h"
#include "planted.h"

static const ops_dims dims = {
    .n_layer = 2, .n_embd = 64, .n_head = 4, .n_kv = 2, .d_head = 16, .n_ff = 96, .n_vocab = 200};

static audit_spec spec(void)
{
    return (audit_spec){.dims = dims,
                        .qkv_bias = true,
                        .qk_norm = true,
                        .width = 6,
                        .page_tokens = 16,
                        .n_ctx = 150};
}

static audit_report *measure(const audit_spec *s, const char *isa, int threads, plant_kind kind,
                             ops_set set, ops_op op)
{
    pool *p;
    ops *o;
    ok(pool_open(&p, threads));
    ops_open_opts oo = {.threads = p, .isa = isa};
    ok(ops_open_cpu(&o, &dims, &oo));
    o = planted_wrap(o, kind, set, op);
    audit_report *r = must(1, sizeof *r);
    ok(audit_run(o, s, r));
    o->close(o);
    pool_close(p);
    return r;
}

/* All ops of all sets meet `phase` but one, which meets `level`. */
static void only(const audit_report *r, ops_set set, ops_op op, ops_level level, const char *what)
{
    for (int s = 0; s < OPS_N_SET; s++)
        for (int i = 0; i < OPS_N_OP; i++) {
            const audit_case *c = audit_weakest(r, (ops_set)s, (ops_op)i);
            assert_non_null(c);
            ops_level want = s == (int)set && i == (int)op ? level : OPS_LEVEL_PHASE;
            if (audit_level(r, (ops_set)s, (ops_op)i) != want)
                fail_msg("%s: %s, set %d: %s, not %s (%s)", what, ops_op_name((ops_op)i), s,
                         ops_level_name(c->level), ops_level_name(want), c->why);
            assert_int_equal(c->why[0] != 0, c->level < OPS_LEVEL_PHASE);
            assert_true(c->n_compared > 100);
        }
}

/* Nothing planted: the level phase, and the same bits with every instruction set and number of
 * threads. */
static void test_clean(void **state)
{
    (void)state;
    audit_spec s = spec();
    audit_report *first = measure(&s, "generic", 1, PLANT_NONE, 0, 0);
    only(first, 0, 0, OPS_LEVEL_PHASE, "clean");
    for (size_t i = 0; i < N_ISA; i++)
        for (int threads = 1; threads <= 3; threads++) {
            if (!ops_isa_pick(all_isa[i])) continue;
            audit_report *r = measure(&s, all_isa[i], threads, PLANT_NONE, 0, 0);
            assert_int_equal(r->n, first->n);
            for (size_t k = 0; k < r->n; k++)
                same_bytes(&r->c[k].bits, &first->c[k].bits, sizeof(digest), "%s, %d threads: %s",
                           all_isa[i], threads, r->c[k].what);
            free(r);
        }
    free(first);
}

static const struct {
    plant_kind kind;
    ops_level level;
    const char *name;
} plants[] = {{PLANT_CALLS, OPS_LEVEL_NONE, "not repeatable"},
              {PLANT_UNWRITTEN, OPS_LEVEL_NONE, "an element not written"},
              {PLANT_SLOT, OPS_LEVEL_RUN, "bits by slot"},
              {PLANT_ROW, OPS_LEVEL_RUN, "bits by place"},
              {PLANT_BESIDE, OPS_LEVEL_RUN, "bits by a neighbour's length"},
              {PLANT_STALE, OPS_LEVEL_RUN, "a stale page read"},
              {PLANT_SHAPE, OPS_LEVEL_POSITION, "order of a sum by batch size"},
              {PLANT_CUT, OPS_LEVEL_BATCH, "prefill is not decode"}};

static bool applies(plant_kind k, ops_op op)
{
    bool attention = op == OPS_OP_ATTN_DECODE || op == OPS_OP_ATTN_PREFILL;
    if (k == PLANT_STALE) return attention;
    if (k == PLANT_UNWRITTEN) return !attention && op != OPS_OP_LOGITS && op != OPS_OP_SAMPLE;
    if (op == OPS_OP_SAMPLE) /* its lanes have a slot and a number, no length and no cut */
        return k == PLANT_CALLS || k == PLANT_SHAPE || k == PLANT_ROW;
    if (op == OPS_OP_ATTN_PREFILL) /* part of a prompt has no slot */
        return k != PLANT_SLOT && k != PLANT_CUT;
    return op != OPS_OP_ATTN_DECODE || k != PLANT_CUT;
}

static void test_plants(void **state)
{
    (void)state;
    audit_spec s = spec();
    int n = 0;
    for (size_t k = 0; k < sizeof plants / sizeof *plants; k++)
        for (int op = 0; op < OPS_N_OP; op++) {
            if (!applies(plants[k].kind, (ops_op)op)) continue;
            ops_set set = (ops_set)(n++ % OPS_N_SET);
            char what[128];
            snprintf(what, sizeof what, "%s in %s, set %d", plants[k].name, ops_op_name((ops_op)op),
                     (int)set);
            audit_report *r = measure(&s, "auto", 1, plants[k].kind, set, (ops_op)op);
            only(r, set, (ops_op)op, plants[k].level, what);
            free(r);
        }
    assert_true(n > 40);
}

/* What an op declares is an upper bound of what may be relied on. */
static void test_declared(void **state)
{
    (void)state;
    audit_report r = {.n = 2};
    r.c[0] = (audit_case){.op = OPS_OP_MATMUL, .level = OPS_LEVEL_PHASE, .declared = OPS_LEVEL_RUN};
    r.c[1] = (audit_case){.op = OPS_OP_MATMUL, .level = OPS_LEVEL_BATCH, .declared = OPS_LEVEL_RUN};
    assert_int_equal(audit_level(&r, OPS_SET_STANDARD, OPS_OP_MATMUL), OPS_LEVEL_RUN);
    assert_ptr_equal(audit_weakest(&r, OPS_SET_STANDARD, OPS_OP_MATMUL), &r.c[1]);
    assert_int_equal(audit_level(&r, OPS_SET_FIXED, OPS_OP_MATMUL), OPS_LEVEL_NONE); /* not tried */
}

/* Widths, contexts and dimensions at their edges. */
static void test_edges(void **state)
{
    (void)state;
    static const int32_t width[] = {1, 2, 3, 17}, ctx[] = {1, 2, 16, 40};
    for (size_t i = 0; i < 4; i++) {
        audit_spec s = spec();
        s.width = width[i];
        s.n_ctx = ctx[3 - i];
        s.processed_logprobs = i % 2;
        audit_report *r = measure(&s, "auto", 1, PLANT_NONE, 0, 0);
        for (size_t k = 0; k < r->n; k++) assert_int_equal(r->c[k].level, OPS_LEVEL_PHASE);
        free(r);
    }
    ops *o;
    ops_open_opts oo = {.isa = "auto"};
    ok(pool_open(&oo.threads, 1));
    ok(ops_open_cpu(&o, &dims, &oo));
    audit_report *r = must(1, sizeof *r);
    audit_spec bad = spec();
    bad.width = 0;
    assert_int_equal(audit_run(o, &bad, r), CORUN_EINVAL);
    audit_spec good = spec();
    corun_status (*twin)(const ops *, const ops_dims *, ops **) = o->twin;
    o->twin = NULL;
    assert_int_equal(audit_run(o, &good, r), CORUN_EUNSUPPORTED);
    o->twin = twin;
    for (uint64_t n = 1; n < 200; n += 1 + n / 8) { /* memory that is short leaks nothing */
        mem_fail_at(n);
        corun_status st = audit_run(o, &good, r);
        mem_fail_at(0);
        assert_true(st == CORUN_OK || st == CORUN_ENOMEM);
    }
    free(r);
    o->close(o);
    pool_close(oo.threads);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_clean),
        cmocka_unit_test(test_plants),
        cmocka_unit_test(test_declared),
        cmocka_unit_test(test_edges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
