/* plan_dynamic.c - the ordinary planner: continuous batching with chunked prefill. Invariant: each
 * step has all decode rows that are ready, and prompts fill the rest of its token budget. */
#include "sched/sched_impl.h"

void plan_dynamic(sched *s)
{
    int32_t budget = s->o.chunk - place_ready(s);
    rows_decode(s, false);
    s->cur->kind = STEP_DECODE;
    while (budget > 0) {
        request *r = place_prompt(s);
        int32_t pos = r ? r->pos : 0;
        if (!r || !rows_prompt(s, r, budget)) return;
        s->cur->kind = STEP_MIXED;
        budget -= r->pos - pos;
    }
}
