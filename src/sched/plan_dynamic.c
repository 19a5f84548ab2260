/* plan_dynamic.c - continuous batching. Invariant: each step has all decode rows that are ready and
 * at most chunk tokens; prompts fill what is left of it (with cuts: whole pieces, at most chunk
 * tokens of them). */
#include "sched/sched_impl.h"

void plan_dynamic(sched *s)
{
    int32_t n_ready = place_ready(s), budget = s->o.chunk - (s->o.cut ? 0 : n_ready);
    rows_decode(s, false);
    s->cur->kind = STEP_DECODE;
    while (budget > 0) {
        request *r = place_prompt(s);
        int32_t n_tok = s->cur->n_tok;
        if (!r || !rows_prompt(s, r, budget)) return;
        s->cur->kind = STEP_MIXED;
        budget -= s->cur->n_tok - n_tok;
    }
}
