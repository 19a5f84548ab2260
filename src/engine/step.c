/* step.c - one step of the engine: plan, move pages, fill slots, run, draw, tell the scheduler.
 *
 * On a backend with lag 1 a step is in flight while the one before it ends: the next step is given
 * to the device, drawn tokens feed it there, and only then the host reads the draws before it. A
 * step with scored prompts, or with more rows or lanes than one call takes, is finished at once.
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
static int32_t map_wanted(corun_engine *e, const step *s, int32_t *want_of_row)
{
    int32_t n = 0;
    for (int32_t r = 0; r < s->n_row; r++) {
        const step_row *w = &s->row[r];
        want_of_row[r] = -1;
        if (w->seq < 0 || w->want == STEP_WANT_NONE) continue;
        int32_t first = w->want == STEP_WANT_ALL ? 0 : w->q_len - 1;
        for (int32_t i = first; i < w->q_len; i++) {
            e->want_seq[n] = w->want == STEP_WANT_ALL ? w->seq : -1;
            e->want_pos[n++] = w->pos + i;
        }
        want_of_row[r] = n - 1;
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
        if (seq < 0 || !e->by_seq[seq]) continue;
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
 * rows [first, first + n) are skipped, and those of a request that has ended meanwhile. */
static corun_status draw_batch(corun_engine *e, flight *f, int32_t from, int32_t to, int32_t first,
                               int32_t n)
{
    const step *s = &f->plan.step;
    ops *o = e->m->net->o;
    int32_t in = 0;
    for (int32_t i = from; i < to; i++) {
        const step_lane *l = &s->lane[i];
        int32_t want = f->want_of_row[l->row] - first;
        bool here = want >= 0 && want < n && e->by_seq[l->seq];
        int32_t k = i - from;
        f->lane_row[k] = here ? want : -1;
        /* Samples without a slot draw with a scratch state, a few at a time. */
        f->lane_slot[k] = l->slot;
        if (here && l->slot >= e->opts.n_slot) {
            f->lane_slot[k] = e->opts.n_slot + (l->slot - e->opts.n_slot) % MODEL_MAX_SCRATCH;
            TRY(fill_slot(e, l->seq, f->lane_slot[k]));
        }
        f->lane_pos[k] = s->row[l->row].pos + s->row[l->row].q_len;
        in += here;
    }
    if (!in) return CORUN_OK;
    double t0 = clock_seconds();
    corun_status st = o->sample(o, to - from, f->lane_row, f->lane_slot, f->lane_pos);
    f->call = ++e->n_call;
    e->stats.seconds_sample += clock_seconds() - t0;
    return st;
}

static corun_status take_draws(corun_engine *e, const flight *f, int32_t from, int32_t to)
{
    const step *s = &f->plan.step;
    ops *o = e->m->net->o;
    for (int32_t i = from; i < to; i++) {
        sample *sm = e->by_seq[s->lane[i].seq];
        if (f->lane_row[i - from] < 0 || !sm || sm->ended) continue;
        ops_draw d;
        double t0 = clock_seconds();
        TRY(o->draw_get(o, (int32_t)(e->n_call - f->call), i - from, &d));
        e->stats.seconds_wait += clock_seconds() - t0;
        if (d.token < 0) {
            char text[96];
            snprintf(text, sizeof text, "%s at position %d", d.why, f->lane_pos[i - from] - 1);
            TRY(emit_failed(e, sm, CORUN_EINTERNAL, text));
            continue;
        }
        TRY(emit_token(e, sm, &d));
        e->stats.tokens_new++;
        e->result[i].token = d.token;
        e->result[i].failed = false;
        e->result[i].ended = sm->ended;
    }
    return CORUN_OK;
}

/* Until its draw is taken, a lane has ended. */
static void clear_results(corun_engine *e, const step *s)
{
    for (int32_t i = 0; i < s->n_lane; i++)
        e->result[i] = (sched_result){.seq = s->lane[i].seq, .ended = true, .failed = true};
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

/* Logits, scores and draws, each read as it is made. */
static corun_status draw_all(corun_engine *e, flight *f)
{
    const step *s = &f->plan.step;
    int32_t rows = e->m->net->o->conf.logit_rows;
    clear_results(e, s);
    for (int32_t first = 0; first < f->n_want; first += rows) {
        int32_t n = f->n_want - first < rows ? f->n_want - first : rows;
        mem_guard(true);
        corun_status st = e->m->net->logits(e->m->net, first, n);
        mem_guard(false);
        TRY(st);
        TRY(score_chunk(e, first, n));
        for (int32_t from = 0, to; from < s->n_lane; from = to) {
            to = batch_end(e, s, from);
            mem_guard(true);
            st = draw_batch(e, f, from, to, first, n);
            mem_guard(false);
            TRY(st);
            TRY(take_draws(e, f, from, to));
        }
    }
    return CORUN_OK;
}

void engine_forget(corun_engine *e, request *r)
{
    for (request **p = &e->list; *p; p = &(*p)->next)
        if (*p == r) {
            *p = r->next;
            e->n_alive--;
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

/* The end of a step whose results are known. */
static corun_status note(corun_engine *e, flight *f)
{
    const step *s = &f->plan.step;
    double now = clock_seconds();
    f->open = false;
    TRY(settle(e, s));
    count_step(e, &f->plan, now - (f->start > e->noted ? f->start : e->noted));
    e->noted = now;
    TRY(sched_note(e->s, s->id, e->result, s->n_lane));
    for (request *r = e->list, *next; r; r = next) {
        next = r->next;
        if (r->n_open == 0) {
            /* A request that failed in its prompt, or has a row in flight, is still known to the
             * scheduler. */
            sched_cancel(e->s, r->id);
            engine_forget(e, r);
        }
    }
    return CORUN_OK;
}

/* Reads the draws of a step in flight. */
static corun_status land(corun_engine *e, flight *f)
{
    if (!f->open) return CORUN_OK;
    clear_results(e, &f->plan.step);
    TRY(take_draws(e, f, 0, f->plan.step.n_lane));
    return note(e, f);
}

corun_status engine_land(corun_engine *e) { return land(e, &e->flight[e->last]); }

/* Whether the draws of the step can be left in flight: one call each of logits and sample. */
static bool flies(const corun_engine *e, const flight *f)
{
    const step *s = &f->plan.step;
    if (!e->sched_opts.lag || f->n_want > e->m->net->o->conf.logit_rows) return false;
    for (int32_t r = 0; r < s->n_row; r++)
        if (s->row[r].want == STEP_WANT_ALL) return false;
    return batch_end(e, s, 0) == s->n_lane;
}

static corun_status start(corun_engine *e, flight *f)
{
    const sched_plan *p = &f->plan;
    model *net = e->m->net;
    f->start = clock_seconds();
    TRY(net->forward(net, &p->step));
    if (FAULT(PAGE_EARLY)) TRY(save_late(e, p));
    f->n_want = map_wanted(e, &p->step, f->want_of_row);
    if (f->n_want != net->o->n_want)
        FAIL(CORUN_EINTERNAL, "%d wanted rows, the backend has %d", f->n_want, net->o->n_want);
    f->open = flies(e, f);
    if (!f->open || f->n_want == 0) return CORUN_OK;
    TRY(net->logits(net, 0, f->n_want));
    return draw_batch(e, f, 0, p->step.n_lane, 0, f->n_want);
}

static corun_status plan(corun_engine *e, sched_plan *p)
{
    TRY(sched_next(e->s, p));
    TRY(move_pages(e, p));
    for (int32_t i = 0; i < p->n_seat; i++) TRY(fill_slot(e, p->seat[i].seq, p->seat[i].slot));
    return CORUN_OK;
}

corun_status engine_step(corun_engine *e, bool *idle)
{
    flight *before = &e->flight[e->last], *f = &e->flight[(e->last + 1) % 2];
    *idle = false;
    mem_guard(true);
    corun_status st = plan(e, &f->plan);
    if (st == CORUN_OK && f->plan.step.n_row) st = start(e, f);
    mem_guard(false);
    TRY(st);
    if (f->plan.step.n_row == 0) {
        if (before->open) return land(e, before);
        if (!sched_idle(e->s)) FAIL(CORUN_EINTERNAL, "the scheduler found nothing to run");
        *idle = true;
        return CORUN_OK;
    }
    e->last = (e->last + 1) % 2;
    TRY(land(e, before));
    if (f->open) return CORUN_OK;
    TRY(draw_all(e, f));
    return note(e, f);
}
