/* plan_corun.c - the planner of the paper's system. Invariant: a prompt runs alone in chunks of
 * its own grid and a decode step has one row a slot, so a step's shape never tells who else is
 * there. */
#include "sched/sched_impl.h"

/* One chunk of the prompt in work or of the next request. */
static bool prompt_step(sched *s)
{
    request *r = place_prompt(s);
    if (!r || !rows_prompt(s, r, s->o.chunk)) return false;
    s->cur->kind = STEP_PREFILL;
    /* Work that fills no slot lets the running streams through first. */
    s->turn = r->pos < r->n_token || r->max_new == 0;
    return true;
}

void plan_corun(sched *s)
{
    if (!s->turn && prompt_step(s)) return;
    if (place_ready(s)) {
        s->cur->kind = STEP_DECODE;
        rows_decode(s, true);
        s->turn = false;
        return;
    }
    prompt_step(s);
}
