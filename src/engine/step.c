/* step.c - one step of the engine: plan, move pages, fill slots, run, draw, tell the scheduler.
 * Invariant: between the plan and the last draw nothing is allocated. */
#include <string.h>

#include "base/clock.h"
#include "base/fault.h"
#include "engine/engine.h"

static corun_status move_pages(const corun_engine *e, const sched_plan *p)
{
    ops *o = e->m->net->o;
    for (int32_t i = 0; i < p->n_move; i++) {
        const sched_move *v = &p->move[i];
        switch (v->kind) {
        case SCHED_COPY: TRY(o->page_copy(o, v->src, v->dst)); break;
        case SCHED_OUT:
            if (FAULT(PAGE_EARLY)) break;
            TRY(o->page_out(o, v->src, v->dst));
            break;
        case SCHED_IN:
            if (FAULT(STALE_PAGE)) break;
            TRY(o->page_in(o, v->src, v->dst));
            break;
        }
    }
    return CORUN_OK;
}

/* Planted: pages are saved when others have used them. */
static corun_status save_late(const corun_engine *e, const sched_plan *p)
{
    ops *o = e->m->net->o;
    for (int32_t i = 0; i < p->n_move; i++)
        if (p->move[i].kind == SCHED_OUT) TRY(o->page_out(o, p->move[i].src, p->move[i].dst));
    return CORUN_OK;
}

static corun_status fill_slot(const corun_engine *e, int32_t seq, int32_t slot)
{
    ops_slot s;
    request_slot(e, e->by_seq[seq], &s);
    ops *o = e->m->net->o;
    return o->slot_put(o, slot, &s);
}

/* Which position of which sequence each wanted row is, and each row's last wanted row. */
static int32_t map_wanted(corun_engine *e, const step *s)
{
    int32_t n = 0;
    for (int32_t r = 0; r < s->n_row; r++) {
        const step_row *w = &s->row[r];
        e->want_of_row[r] = -1;
        if (w->seq < 0 || w->want == STEP_WANT_NONE) continue;
        int32_t first = w->want == STEP_WANT_ALL ? 0 : w->q_len - 1;
        for (int32_t i = first; i < w->q_len; i++) {
            e->want_seq[n] = w->want == STEP_WANT_ALL ? w->seq : -1;
            e->want_pos[n++] = w->pos + i;
        }
        e->want_of_row[r] = n - 1;
    }
    return n;
}

static corun_status fail_request(corun_engine *e, request *r, corun_status st, const char *text)
{
    for (int32_t i = 0; i < r->n_sample; i++)
        if (!r->sample[i].ended) TRY(emit_failed(e, &r->sample[i], st, text));
    return CORUN_OK;
}

/* Log-probabilities of prompt tokens in wanted rows [first, first + n). */
static corun_status score_chunk(corun_engine *e, int32_t first, int32_t n)
{
    ops *o = e->m->net->o;
    int32_t top = -1;
    for (int32_t i = 0; i < n; i++) {
        int32_t seq = e->want_seq[first + i];
        e->target[i] = -1;
        if (seq < 0) continue;
        const request *r = e->by_seq[seq]->req;
        int32_t next = e->want_pos[first + i] + 1;
        if (r->par.s.prompt_logprobs < 0 || next >= r->n_prompt || r->n_open == 0) continue;
        e->target[i] = r->prompt[next];
        if (r->par.s.prompt_logprobs > top) top = r->par.s.prompt_logprobs;
    }
    if (top < 0) return CORUN_OK;
    double t0 = clock_seconds();
    TRY(o->score(o, n, e->target, top));
    e->stats.seconds_sample += clock_seconds() - t0;
    for (int32_t i = 0; i < n; i++) {
        if (e->target[i] < 0) continue;
        sample *s = e->by_seq[e->want_seq[first + i]];
        if (s->req->n_open == 0) continue;
        ops_draw d;
        TRY(o->score_get(o, i, &d));
        int32_t pos = e->want_pos[first + i];
        if (d.token < 0) {
            char text[96];
            snprintf(text, sizeof text, "%s at position %d", d.why, pos);
            TRY(fail_request(e, s->req, CORUN_EINTERNAL, text));
            continue;
        }
        if (d.n_top > s->req->par.s.prompt_logprobs) d.n_top = s->req->par.s.prompt_logprobs;
        TRY(emit_prompt(e, s, pos + 1, &d));
    }
    return CORUN_OK;
}

/* Lanes [from, to) of the step, drawn in one call; those whose row is not in this chunk of wanted
 * rows [first, first + n) are skipped. */
static corun_status draw_batch(corun_engine *e, const step *s, int32_t from, int32_t to,
                               int32_t first, int32_t n)
{
    ops *o = e->m->net->o;
    int32_t in = 0;
    for (int32_t i = from; i < to; i++) {
        const step_lane *l = &s->lane[i];
        int32_t want = e->want_of_row[l->row] - first;
        bool here = want >= 0 && want < n;
        int32_t k = i - from;
        e->lane_row[k] = here ? want : -1;
        /* Samples without a slot draw with a scratch state, a few at a time. */
        e->lane_slot[k] = l->slot;
        if (here && l->slot >= e->opts.n_slot) {
            e->lane_slot[k] = e->opts.n_slot + (l->slot - e->opts.n_slot) % MODEL_MAX_SCRATCH;
            TRY(fill_slot(e, l->seq, e->lane_slot[k]));
        }
        e->lane_pos[k] = s->row[l->row].pos + s->row[l->row].q_len;
        in += here;
    }
    if (!in) return CORUN_OK;
    double t0 = clock_seconds();
    corun_status st = o->sample(o, to - from, e->lane_row, e->lane_slot, e->lane_pos);
    e->stats.seconds_sample += clock_seconds() - t0;
    return st;
}

static corun_status take_draws(corun_engine *e, const step *s, int32_t from, int32_t to)
{
    ops *o = e->m->net->o;
    for (int32_t i = from; i < to; i++) {
        if (e->lane_row[i - from] < 0) continue;
        sample *sm = e->by_seq[s->lane[i].seq];
        ops_draw d;
        TRY(o->draw_get(o, i - from, &d));
        sched_result *r = &e->result[i];
        *r = (sched_result){.seq = s->lane[i].seq, .token = 0, .ended = true, .failed = true};
        if (sm->ended) continue;
        if (d.token < 0) {
            char text[96];
            snprintf(text, sizeof text, "%s at position %d", d.why, e->lane_pos[i - from] - 1);
            TRY(emit_failed(e, sm, CORUN_EINTERNAL, text));
            continue;
        }
        TRY(emit_token(e, sm, &d));
        e->stats.tokens_new++;
        r->token = d.token;
        r->failed = false;
        r->ended = sm->ended;
    }
    return CORUN_OK;
}

/* The end of a batch that starts at `from`: at most max_lane lanes, and no two scratch lanes with
 * one state. */
static int32_t batch_end(const corun_engine *e, const step *s, int32_t from)
{
    int32_t scratch = 0, i = from;
    for (; i < s->n_lane && i - from < e->max_lane; i++)
        if (s->lane[i].slot >= e->opts.n_slot && scratch++ == MODEL_MAX_SCRATCH) break;
    return i;
}

static corun_status draw(corun_engine *e, const step *s, int32_t n_want)
{
    int32_t rows = e->m->net->o->conf.logit_rows;
    for (int32_t first = 0; first < n_want; first += rows) {
        int32_t n = n_want - first < rows ? n_want - first : rows;
        mem_guard(true);
        corun_status st = e->m->net->logits(e->m->net, first, n);
        mem_guard(false);
        TRY(st);
        TRY(score_chunk(e, first, n));
        for (int32_t from = 0, to; from < s->n_lane; from = to) {
            to = batch_end(e, s, from);
            mem_guard(true);
            st = draw_batch(e, s, from, to, first, n);
            mem_guard(false);
            TRY(st);
            TRY(take_draws(e, s, from, to));
        }
    }
    return CORUN_OK;
}

void engine_forget(corun_engine *e, request *r)
{
    for (request **p = &e->list; *p; p = &(*p)->next)
        if (*p == r) {
            *p = r->next;
            break;
        }
    for (int32_t i = 0; i < r->n_sample; i++) e->by_seq[r->sample[i].seq] = NULL;
    request_close(r);
}

static void count_step(corun_engine *e, const sched_plan *p, double seconds)
{
    const step *s = &p->step;
    corun_stats *t = &e->stats;
    t->swaps_out += (uint64_t)p->n_swapped_out;
    t->swaps_in += (uint64_t)p->n_swapped_in;
    int32_t live = 0;
    for (int32_t r = 0; r < s->n_row; r++) {
        const step_row *w = &s->row[r];
        if (w->seq < 0) continue;
        live++;
        if (w->slot == STEP_NO_SLOT) t->tokens_prompt += (uint64_t)w->q_len;
    }
    if (s->kind == STEP_PREFILL) {
        t->steps_prefill++;
        t->seconds_prefill += seconds;
        return;
    }
    if (s->kind == STEP_DECODE)
        t->steps_decode++;
    else
        t->steps_mixed++;
    t->seconds_decode += seconds;
    t->rows_live += (uint64_t)live;
    t->rows_dead += (uint64_t)(s->n_row - live);
    if (live >= 1 && live <= 512) t->live_rows_seen[(live - 1) / 64] |= 1ull << ((live - 1) % 64);
}

/* Ends what ended in this step: scored prompts, failed requests; frees finished requests. */
static corun_status settle(corun_engine *e, const step *s)
{
    for (int32_t r = 0; r < s->n_row; r++) {
        const step_row *w = &s->row[r];
        if (w->seq < 0 || !e->by_seq[w->seq]) continue;
        request *q = e->by_seq[w->seq]->req;
        if (q->max_new == 0 && w->slot == STEP_NO_SLOT && w->pos + w->q_len == q->n_prompt &&
            q->n_open)
            TRY(emit_done(e, &q->sample[0], CORUN_FINISH_LENGTH, -1, -1));
    }
    return CORUN_OK;
}

corun_status engine_step(corun_engine *e, bool *idle)
{
    sched_plan p;
    model *net = e->m->net;
    *idle = false;
    mem_guard(true);
    corun_status st = sched_next(e->s, &p);
    if (st == CORUN_OK) st = move_pages(e, &p);
    for (int32_t i = 0; i < p.n_seat && st == CORUN_OK; i++)
        st = fill_slot(e, p.seat[i].seq, p.seat[i].slot);
    mem_guard(false);
    TRY(st);
    if (p.step.n_row == 0) {
        if (!sched_idle(e->s)) FAIL(CORUN_EINTERNAL, "the scheduler found nothing to run");
        *idle = true;
        return CORUN_OK;
    }
    double t0 = clock_seconds();
    mem_guard(true);
    st = net->forward(net, &p.step);
    mem_guard(false);
    TRY(st);
    if (FAULT(PAGE_EARLY)) TRY(save_late(e, &p));
    int32_t n_want = map_wanted(e, &p.step);
    if (n_want != net->o->n_want)
        FAIL(CORUN_EINTERNAL, "%d wanted rows, the backend has %d", n_want, net->o->n_want);
    TRY(draw(e, &p.step, n_want));
    TRY(settle(e, &p.step));
    count_step(e, &p, clock_seconds() - t0);
    TRY(sched_note(e->s, p.step.id, e->result, p.step.n_lane));
    for (request *r = e->list, *next; r; r = next) {
        next = r->next;
        if (r->n_open == 0) {
            /* A request that failed in its prompt is still known to the scheduler. */
            sched_cancel(e->s, r->id);
            engine_forget(e, r);
        }
    }
    return CORUN_OK;
}
