/* check.c - the scheduler's invariants, each counted afresh from the requests. */
#include "sched/sched_impl.h"

#include <string.h>

#define BROKEN(...) FAIL(CORUN_EINTERNAL, "scheduler: " __VA_ARGS__)

static void count_request(const request *r, int32_t *count)
{
    int32_t n_hold = place_n_hold(r), n_untailed = place_n_untailed(r);
    for (int32_t i = 0; i < r->n_have; i++)
        count[r->prompt[i]] += i < r->n_full ? n_hold : n_untailed;
    for (int32_t k = 0; k < r->k_max; k++)
        for (int32_t i = 0; r->tail_seq[k] >= 0 && i < r->seq[r->tail_seq[k]].n_tail; i++)
            count[r->tail[k * r->n_tail_max + i]]++;
}

/* A page has as many owners as it is counted. */
static corun_status check_owners(const sched *s, bool out)
{
    const pages *p = out ? &s->swap : &s->pool;
    memset(s->count, 0, (size_t)p->n * sizeof *s->count);
    for (int32_t i = 0; i < s->n_adm; i++)
        if (s->req[s->adm[i]].out == out) count_request(&s->req[s->adm[i]], s->count);
    for (int32_t i = 0; i < p->n; i++)
        if (s->count[i] != p->owners[i])
            BROKEN("%s page %d is counted %d times and has %d owners", out ? "swap" : "pool", i,
                   p->owners[i], s->count[i]);
    return pages_check(p, out ? "swap" : "pool");
}

static corun_status check_request(const sched *s, const request *r)
{
    int32_t n_live = 0, n_wait = 0, n_run = 0, n_tail = 0, n_page = r->n_have;
    for (int32_t i = 0; i < r->n_sample; i++) {
        const sequence *q = &r->seq[i];
        n_live += q->state != SEQ_DONE;
        n_wait += q->state == SEQ_WAIT;
        n_run += q->state == SEQ_RUN;
        n_tail += q->tail >= 0;
        n_page += q->n_tail;
        if (q->tail >= 0 && (q->tail >= r->k_max || r->tail_seq[q->tail] != i))
            BROKEN("sample %d of request %llu has no row for its pages", i,
                   (unsigned long long)r->id);
        if (q->n_noted > q->n_planned || q->n_planned > r->max_new)
            BROKEN("sample %d of request %llu: %d draws planned, %d noted, at most %d", i,
                   (unsigned long long)r->id, q->n_planned, q->n_noted, r->max_new);
        if (q->state == SEQ_RUN &&
            (r->out || q->tail < 0 || q->slot < 0 || q->slot >= s->o.n_slot ||
             &s->req[s->slot[q->slot].req] != r || s->slot[q->slot].sample != i))
            BROKEN("sample %d of request %llu runs without its slot", i, (unsigned long long)r->id);
    }
    if (n_live != r->n_live || n_wait != r->n_wait || n_run != r->n_run || n_tail != r->n_tail_used)
        BROKEN("request %llu: samples are miscounted", (unsigned long long)r->id);
    if (n_page > r->full_pages || (r->out && n_page != r->n_out))
        BROKEN("request %llu has %d pages, %d of the swap area, at most %d",
               (unsigned long long)r->id, n_page, r->n_out, r->full_pages);
    return CORUN_OK;
}

/* What the newest plan's step writes belongs to one sequence each. */
static corun_status check_writes(const sched *s)
{
    const plan_buf *b = s->cur;
    if (!b || b->id <= s->noted_id) return CORUN_OK;
    for (int32_t i = 0; i < b->n_row; i++) {
        const step_row *w = &b->row[i];
        if (w->seq < 0) {
            if (w->n_page || w->page || w->slot != STEP_NO_SLOT || w->want != STEP_WANT_NONE)
                BROKEN("dead row %d has pages, a slot or a result", i);
            continue;
        }
        const request *r = &s->req[w->seq / SCHED_MAX_SAMPLE];
        if (w->n_page != ceil_div(w->pos + w->q_len, s->o.page_tokens))
            BROKEN("row %d has %d pages for %d tokens", i, w->n_page, w->pos + w->q_len);
        /* samples share the prompt that they begin with, or come back to */
        bool shared = w->slot == STEP_NO_SLOT && r->phase != REQ_PROMPT;
        int32_t most = shared ? place_n_hold(r) : 1;
        for (int32_t j = w->pos / s->o.page_tokens; j < w->n_page; j++) {
            int32_t p = w->page[j];
            if (p < 1 || p >= s->o.n_page || s->pool.owners[p] < 1 || s->pool.owners[p] > most)
                BROKEN("row %d writes page %d of %d owners", i, p, s->pool.owners[p]);
            if (s->cache && prefix_has(s->cache, p))
                BROKEN("row %d writes page %d, which others can find", i, p);
        }
    }
    return CORUN_OK;
}

corun_status sched_check(const sched *s)
{
    int64_t sum = 0;
    int32_t n_run = 0, n_queue = 0;
    for (int32_t i = 0; i < s->n_adm; i++) {
        const request *r = &s->req[s->adm[i]];
        TRY(check_request(s, r));
        if (r->out != (i >= s->n_in)) BROKEN("admitted request %d is on the wrong side", i);
        if (r->phase == REQ_PROMPT && i != s->n_adm - 1)
            BROKEN("admitted request %d is in its prompt and not the youngest", i);
        if (r->phase == REQ_BACK && i < s->n_in - 1)
            BROKEN("request %d comes back and is not the youngest in the pool", i);
        sum += r->full_pages;
        n_run += r->n_run;
    }
    for (int32_t i = s->queue_head; i >= 0; i = s->req[i].next) {
        if (s->req[i].phase != REQ_QUEUED) BROKEN("place %d is queued and runs", i);
        n_queue++;
    }
    if (sum != s->sum_full || n_run != s->n_run || n_queue != s->n_queue ||
        n_queue + s->n_adm + s->n_free_req != s->o.max_request)
        BROKEN("requests are miscounted");
    if (!s->o.recompute && s->n_adm && sum - s->req[s->adm[0]].full_pages > s->o.n_swap)
        BROKEN("the swap area cannot hold the admitted requests but the oldest");
    for (int32_t i = 0; i < s->o.n_slot; i++) {
        const slot_use *t = &s->slot[i];
        if (t->req >= 0 && s->req[t->req].seq[t->sample].slot != i)
            BROKEN("slot %d is kept for a sequence elsewhere", i);
    }
    TRY(check_owners(s, false));
    TRY(check_owners(s, true));
    return check_writes(s);
}
