/* rows.c - owns the making of rows and lanes. Invariant: a row's arrays are copies in the plan's
 * own buffer, so they stay as they are while the requests move on. */
#include "sched/sched_impl.h"

#include <string.h>

#include "base/fault.h"

/* Every sample gets its first draw: in a slot where one is free, else in a scratch slot. */
static void finish_prompt(sched *s, request *r)
{
    plan_buf *b = s->cur;
    r->phase = REQ_SAMPLES;
    if (r->max_new == 0) return;
    r->self = false;
    for (int32_t i = 0; i < r->n_prompt_page; i++)
        pages_share(&s->pool, r->prompt[i], r->n_sample - 1);
    for (int32_t i = 0; i < r->n_sample; i++) {
        sequence *q = &r->seq[i];
        q->holds = true;
        q->n_planned = 1;
        q->state = SEQ_WAIT;
        r->n_wait++;
        r->n_flight++;
        int32_t at = place_slot_free(s);
        if (at >= 0 && (r->max_new == 1 || place_take_tail(r, q))) {
            place_sit(s, r, q, at);
            s->slot[at].last_step = s->last_id + 1;
        } else {
            at = s->o.n_slot + b->n_scratch++;
        }
        if (r->max_new == 1) {
            if (q->state == SEQ_RUN)
                place_leave_slot(s, r, q);
            else
                r->n_wait--;
            q->state = SEQ_LAST;
        }
        b->lane[b->n_lane++] =
            (step_lane){.row = b->n_row - 1, .slot = at, .seq = seq_handle(s, r, i)};
    }
}

/* Room for a row's entry and page table. The first row of a step always has it. */
static bool has_room(const sched *s, int32_t n_page)
{
    return s->cur->n_row < s->max.max_row && s->cur->n_page + n_page <= s->max_page;
}

/* A row without a slot, whose tokens the host has: of the prompt (q NULL), or of what a sample
 * wrote. */
static void host_row(sched *s, request *r, const sequence *q, int32_t pos, int32_t len,
                     step_want want)
{
    plan_buf *b = s->cur;
    int32_t n_page = ceil_div(pos + len, s->o.page_tokens), *page = b->page + b->n_page;
    int32_t sample = q ? (int32_t)(q - r->seq) : 0, n_prompt = q ? r->n_full : n_page;
    b->row[b->n_row++] = (step_row){.seq = seq_handle(s, r, sample),
                                    .slot = STEP_NO_SLOT,
                                    .pos = pos,
                                    .q_len = len,
                                    .tok_first = b->n_tok,
                                    .page = page,
                                    .n_page = n_page,
                                    .want = want};
    memcpy(page, r->prompt, (size_t)n_prompt * sizeof *page);
    if (q)
        memcpy(page + n_prompt, r->tail + q->tail * r->n_tail_max,
               (size_t)(n_page - n_prompt) * sizeof *page);
    reuse_tokens(r, sample, pos, len, b->tok + b->n_tok);
    b->n_page += n_page;
    b->n_tok += len;
    b->n_prompt_row++;
    r->n_flight++;
    r->n_prompt_flight++;
}

/* The prompt first, then what each sample wrote: not in one step, since that reads the prompt. */
static bool row_back(sched *s, request *r, int32_t max)
{
    sequence *q = r->pos < r->target ? NULL : place_back_next(r);
    int32_t pos = q ? q->pos : r->pos, end = q ? place_written(r, q) : r->target;
    int32_t len = min_i(max, end - pos);
    if (len == 0 || !has_room(s, ceil_div(pos + len, s->o.page_tokens))) return false;
    host_row(s, r, q, pos, len, STEP_WANT_NONE);
    if (q) {
        q->pos += len;
    } else {
        r->pos += len;
        r->in_step = s->n_plan;
    }
    place_back_done(r);
    return true;
}

bool rows_prompt(sched *s, request *r, int32_t max)
{
    plan_buf *b = s->cur;
    if (r->in_step == s->n_plan) return false;
    if (r->phase == REQ_BACK) return row_back(s, r, max);
    bool again = r->pos < r->seen;
    int32_t len = (again ? r->seen : r->n_token) - r->pos;
    if (s->o.cut && (len = min_i(len, s->o.cut - r->pos % s->o.cut)) > max) return false;
    len = min_i(len, max);
    int32_t end = r->pos + len, n_page = ceil_div(end, s->o.page_tokens);
    bool last = end == r->n_token;
    if (!has_room(s, n_page) || n_page - r->n_have > s->pool.n_free) return false;
    if (last && r->max_new && b->n_lane + r->n_sample > s->max.max_lane) return false;
    while (r->n_have < n_page) r->prompt[r->n_have++] = pages_take(&s->pool);
    step_want want = r->want_all && !again ? STEP_WANT_ALL : STEP_WANT_NONE;
    if (last && r->max_new && !r->want_all) want = STEP_WANT_LAST;
    host_row(s, r, NULL, r->pos, len, want);
    s->n_cut += !last;
    r->pos = end;
    r->seen = max_i(r->seen, end);
    r->in_step = s->n_plan;
    if (last) finish_prompt(s, r);
    return true;
}

static void decode_row(sched *s, int32_t at)
{
    plan_buf *b = s->cur;
    slot_use *t = &s->slot[at];
    request *r = &s->req[t->req];
    sequence *q = &r->seq[t->sample];
    int32_t handle = seq_handle(s, r, t->sample);
    int32_t pos = r->n_token + q->n_planned - 1;
    int32_t *page = b->page + b->n_page;
    step_row row = {.seq = handle,
                    .slot = at,
                    .pos = pos,
                    .q_len = 1,
                    .tok_first = STEP_TOK_SLOT,
                    .page = page,
                    .n_page = pos / s->o.page_tokens + 1,
                    .want = STEP_WANT_LAST};
    if (t->fresh == handle) {
        row.tok_first = b->n_tok;
        b->tok[b->n_tok++] = q->token;
    }
    memcpy(page, r->prompt, (size_t)r->n_full * sizeof *page);
    memcpy(page + r->n_full, r->tail + q->tail * r->n_tail_max,
           (size_t)(row.n_page - r->n_full) * sizeof *page);
#ifdef CORUN_BREAK
    t->last_page = page[0];
#endif
    b->n_page += row.n_page;
    b->lane[b->n_lane++] = (step_lane){.row = b->n_row, .slot = at, .seq = handle};
    b->row[b->n_row++] = row;
    r->n_flight++;
    t->last_step = s->last_id + 1;
    if (++q->n_planned == r->max_new) {
        place_leave_slot(s, r, q);
        q->state = SEQ_LAST;
    }
}

/* Planted: a dead row that keeps the page of the sequence that sat in its slot, and writes it. */
static bool ghost_row(sched *s, int32_t at, int32_t tok)
{
#ifdef CORUN_BREAK
    plan_buf *b = s->cur;
    if (!FAULT(DEAD_WRITE) || !s->slot[at].last_page || !s->n_in) return false;
    b->page[b->n_page] = s->slot[at].last_page;
    b->row[b->n_row++] = (step_row){.seq = seq_handle(s, &s->req[s->adm[0]], 0),
                                    .slot = at,
                                    .q_len = 1,
                                    .tok_first = tok,
                                    .page = b->page + b->n_page++,
                                    .n_page = 1,
                                    .want = STEP_WANT_NONE};
    return true;
#else
    (void)s, (void)at, (void)tok;
    return false;
#endif
}

void rows_decode(sched *s, bool fixed)
{
    plan_buf *b = s->cur;
    int32_t dead_tok = -1;
    for (int32_t i = 0; i < s->o.n_slot; i++) {
        const slot_use *t = &s->slot[i];
        if (t->req >= 0 && s->req[t->req].seq[t->sample].ready == s->n_plan) {
            decode_row(s, i);
        } else if (fixed) {
            if (dead_tok < 0) {
                dead_tok = b->n_tok;
                b->tok[b->n_tok++] = 0;
            }
            if (ghost_row(s, i, dead_tok)) continue;
            b->row[b->n_row++] = (step_row){.seq = -1,
                                            .slot = STEP_NO_SLOT,
                                            .q_len = 1,
                                            .tok_first = dead_tok,
                                            .want = STEP_WANT_NONE};
        }
    }
}
