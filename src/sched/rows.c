/* rows.c - owns the making of rows and lanes. Invariant: a row's arrays are copies in the plan's
 * own buffer, so they stay as they are while the requests move on. */
#include "sched/sched_impl.h"

#include <string.h>

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

bool rows_prompt(sched *s, request *r, int32_t max)
{
    plan_buf *b = s->cur;
    if (r->in_step == s->n_plan) return false;
    int32_t len = r->n_token - r->pos;
    if (s->o.cut && (len = min_i(len, s->o.cut - r->pos % s->o.cut)) > max) return false;
    len = min_i(len, max);
    int32_t end = r->pos + len;
    int32_t n_page = ceil_div(end, s->o.page_tokens);
    bool last = end == r->n_token;
    if (n_page - r->n_have > s->pool.n_free) return false;
    if (last && r->max_new && b->n_lane + r->n_sample > s->max.max_lane) return false;
    while (r->n_have < n_page) r->prompt[r->n_have++] = pages_take(&s->pool);
    step_want want = r->want_all ? STEP_WANT_ALL : STEP_WANT_NONE;
    if (last && r->max_new && !r->want_all) want = STEP_WANT_LAST;
    b->row[b->n_row++] = (step_row){.seq = seq_handle(s, r, 0),
                                    .slot = STEP_NO_SLOT,
                                    .pos = r->pos,
                                    .q_len = len,
                                    .tok_first = b->n_tok,
                                    .page = b->page + b->n_page,
                                    .n_page = n_page,
                                    .want = want};
    memcpy(b->page + b->n_page, r->prompt, (size_t)n_page * sizeof *b->page);
    memcpy(b->tok + b->n_tok, r->tokens + r->pos, (size_t)len * sizeof *b->tok);
    b->n_page += n_page;
    b->n_tok += len;
    b->n_prompt_row++;
    s->n_cut += !last;
    r->pos = end;
    r->in_step = s->n_plan;
    r->n_flight++;
    r->n_prompt_flight++;
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
            b->row[b->n_row++] = (step_row){.seq = -1,
                                            .slot = STEP_NO_SLOT,
                                            .q_len = 1,
                                            .tok_first = dead_tok,
                                            .want = STEP_WANT_NONE};
        }
    }
}
