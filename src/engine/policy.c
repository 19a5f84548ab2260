/* policy.c - owns the table of policies. Invariant: a policy's row is all that tells it from the
 * others. */
#include "engine/policy.h"

#include <string.h>

#define SETS(matmul, decode, prefill, rest)                                                        \
    {                                                                                              \
        [OPS_OP_EMBED] = rest, [OPS_OP_NORM] = rest, [OPS_OP_MATMUL] = matmul,                     \
        [OPS_OP_QKV_POST] = rest, [OPS_OP_ATTN_DECODE] = decode, [OPS_OP_ATTN_PREFILL] = prefill,  \
        [OPS_OP_SILU_MUL] = rest, [OPS_OP_LOGITS] = matmul, [OPS_OP_SAMPLE] = rest                 \
    }

static const policy table[] = {
    {.id = CORUN_POLICY_DYNAMIC,
     .name = "dynamic",
     .planner = SCHED_PLAN_DYNAMIC,
     .chunk = 512,
     .chunk_unit = 1,
     .mixed_budget = true,
     .width_moves = true,
     .chunk_moves = true,
     .set = SETS(OPS_SET_STANDARD, OPS_SET_STANDARD, OPS_SET_STANDARD, OPS_SET_STANDARD),
     .prefill = OPS_LEVEL_RUN,
     .decode = OPS_LEVEL_RUN},
    {.id = CORUN_POLICY_CORUN,
     .name = "corun",
     .planner = SCHED_PLAN_CORUN,
     .chunk = 8192,
     .chunk_unit = 128,
     .width_moves = true,
     .chunk_moves = true,
     .set = SETS(OPS_SET_STANDARD, OPS_SET_CANONICAL, OPS_SET_STANDARD, OPS_SET_STANDARD),
     .prefill = OPS_LEVEL_RUN,
     .decode = OPS_LEVEL_POSITION},
    {.id = CORUN_POLICY_INVARIANT,
     .name = "invariant",
     .planner = SCHED_PLAN_DYNAMIC,
     .cut = 2048,
     .reuse = SCHED_REUSE_PIECES,
     .chunk = 2048,
     .chunk_unit = 2048,
     .set = SETS(OPS_SET_FIXED, OPS_SET_FIXED, OPS_SET_FIXED, OPS_SET_FIXED),
     .prefill = OPS_LEVEL_BATCH,
     .decode = OPS_LEVEL_BATCH},
    {.id = CORUN_POLICY_FREE,
     .name = "free",
     .planner = SCHED_PLAN_DYNAMIC,
     .reuse = SCHED_REUSE_PAGES,
     .recompute = true,
     .chunk = 512,
     .chunk_unit = 1,
     .mixed_budget = true,
     .set = SETS(OPS_SET_CANONICAL, OPS_SET_CANONICAL, OPS_SET_CANONICAL, OPS_SET_CANONICAL),
     .prefill = OPS_LEVEL_PHASE,
     .decode = OPS_LEVEL_PHASE},
};

#define N_POLICY (sizeof table / sizeof *table)

const policy *policy_get(corun_policy p)
{
    for (size_t i = 0; i < N_POLICY; i++)
        if (table[i].id == p) return &table[i];
    return NULL;
}

const char *corun_policy_name(corun_policy p)
{
    const policy *row = policy_get(p);
    return row ? row->name : p == CORUN_POLICY_AUTO ? "auto" : NULL;
}

corun_status corun_policy_parse(const char *name, corun_policy *out)
{
    if (!name || !out) FAIL(CORUN_EINVAL, "corun_policy_parse: NULL");
    *out = CORUN_POLICY_AUTO;
    if (strcmp(name, "auto") == 0) return CORUN_OK;
    for (size_t i = 0; i < N_POLICY; i++)
        if (strcmp(name, table[i].name) == 0) {
            *out = table[i].id;
            return CORUN_OK;
        }
    FAIL(CORUN_EINVAL, "policy \"%s\": not auto, free, corun, invariant or dynamic", name);
}

/* An op that both phases run must meet the higher one of the two levels. */
static ops_level needed(const policy *p, ops_op op)
{
    if (op == OPS_OP_ATTN_DECODE) return p->decode;
    if (op == OPS_OP_ATTN_PREFILL) return p->prefill;
    return p->decode > p->prefill ? p->decode : p->prefill;
}

corun_status policy_check(const policy *p, const ops *o, const audit_report *seen)
{
    for (int i = 0; i < OPS_N_OP; i++) {
        ops_set set = p->set[i];
        ops_level declared = o->level[set][i], need = needed(p, (ops_op)i);
        const char *op = ops_op_name((ops_op)i);
        if (declared < need)
            FAIL(CORUN_EUNSUPPORTED,
                 "policy %s: op %s of the %s kernels meets the level %s on backend %s, it needs %s",
                 p->name, op, ops_set_name(set), ops_level_name(declared), o->name,
                 ops_level_name(need));
        if (!seen || audit_level(seen, set, (ops_op)i) >= need) continue;
        const audit_case *c = audit_weakest(seen, set, (ops_op)i);
        FAIL(CORUN_EMISMATCH,
             "policy %s: op %s of the %s kernels was found to meet only the level %s on backend %s "
             "(%s), it needs %s; %s%s%s. `corun audit` measures again",
             p->name, op, ops_set_name(set), ops_level_name(audit_level(seen, set, (ops_op)i)),
             o->name, o->isa ? o->isa : "", ops_level_name(need), c ? c->what : "not tried",
             c && c->what[0] ? ": " : "", c ? c->why : "");
    }
    return CORUN_OK;
}

corun_status policy_resolve(const policy **out, corun_policy p, const ops *o,
                            const audit_report *seen)
{
    if (p == CORUN_POLICY_AUTO) {
        *out = policy_get(CORUN_POLICY_FREE);
        if (policy_check(*out, o, seen) == CORUN_OK) return CORUN_OK;
        p = CORUN_POLICY_CORUN;
    }
    *out = policy_get(p);
    if (!*out) FAIL(CORUN_EINVAL, "policy: %d is unknown", (int)p);
    return policy_check(*out, o, seen);
}
