/* plan_dynamic.c - the ordinary planner: continuous batching with chunked prefill. Invariant: each
 * step has all decode rows that are ready, and prompts fill the rest of its token budget. */
#include "sched/sched_impl.h"

static request *prompt_at(sched *s, int32_t i)
{
    request *r = &s->req[s->adm[i]];
    return r->phase == REQ_PROMPT ? r : NULL;
}

/* Nothing runs and the oldest prompt lacks pages: younger requests move out for it. */
static bool force_prompt(sched *s, int32_t budget)
{
    request *r = NULL;
    for (int32_t i = 0; i < s->n_in && !r; i++) r = prompt_at(s, i);
    if (!r || s->cur->n_in) return false;
    while (!rows_prompt(s, r, budget))
        if (&s->req[s->adm[s->n_in - 1]] == r || !place_evict(s)) return false;
    return true;
}

void plan_dynamic(sched *s)
{
    int32_t budget = s->o.chunk - place_ready(s);
    rows_decode(s, false);
    bool fits = true;
    for (int32_t i = 0; i < s->n_in && budget > 0 && fits; i++) {
        request *r = prompt_at(s, i);
        if (!r) continue;
        int32_t pos = r->pos;
        fits = rows_prompt(s, r, budget);
        budget -= r->pos - pos;
    }
    while (budget > 0 && fits) {
        request *r = place_admit(s);
        if (!r) break;
        int32_t pos = r->pos;
        fits = rows_prompt(s, r, budget);
        budget -= r->pos - pos;
    }
    if (s->cur->n_row == 0) force_prompt(s, s->o.chunk);
    s->cur->kind = s->cur->n_prompt_row ? STEP_MIXED : STEP_DECODE;
}
