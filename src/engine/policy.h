/* policy.h - the table of policies: a planner with its options, a kernel set for each class of op,
 * and the levels that the promise rests on. Nothing else in the engine asks which policy it is. */
#ifndef ENGINE_POLICY_H
#define ENGINE_POLICY_H

#include "corun.h"
#include "ops/audit.h"
#include "sched/sched.h"

typedef struct policy {
    corun_policy id;
    const char *name;

    /* the planner: these fields go into sched_opts as they are */
    sched_planner planner;
    int32_t cut;
    sched_reuse reuse;
    bool recompute;

    /* prefill_chunk: the default, and what it is a multiple of */
    int32_t chunk, chunk_unit;
    bool mixed_budget; /* decode rows count in it: it must hold all of them */

    /* numeric identity: what else a result's bits may depend on */
    bool width_moves, chunk_moves;

    ops_set set[OPS_N_OP];
    ops_level prefill, decode; /* needed */
} policy;

/* NULL: AUTO, or no policy. */
const policy *policy_get(corun_policy p);
/* AUTO becomes the first policy that the backend meets: free, else corun. */
corun_status policy_resolve(const policy **out, corun_policy p, const ops *o,
                            const audit_report *seen);
/* Whether the ops meet what the policy needs: what they declare, and (seen not NULL) what the audit
 * found. CORUN_EUNSUPPORTED when an op declares less, CORUN_EMISMATCH when it was found to meet
 * less than it declares; the text names the op, its kernel set, the level and the one needed. */
corun_status policy_check(const policy *p, const ops *o, const audit_report *seen);

#endif
