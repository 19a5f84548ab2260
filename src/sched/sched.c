/* sched.c - owns the life of requests: queue, admission sizes, plans in flight, results. Invariant:
 * a request's place is given up only when no plan in flight names it. */
#include "sched/sched_impl.h"

#include "base/fault.h"
#include "base/mem.h"

#define MAX_REQUEST (1 << 20)
#define MAX_PAGES   (1 << 28)

/* ---- open and close ------------------------------------------------------------------------- */

static int32_t pool_tokens(const sched_opts *o)
{
    int64_t n = (int64_t)(o->n_page - 1) * o->page_tokens;
    return n > INT32_MAX / 2 ? INT32_MAX / 2 : (int32_t)n;
}

void sched_limits_get(const sched_opts *o, sched_limits *out)
{
    int32_t chunk = min_i(o->chunk, pool_tokens(o));
    if (o->planner == SCHED_PLAN_CORUN) {
        chunk = min_i(chunk, o->n_ctx);
        *out = (sched_limits){.max_row = o->n_slot,
                              .max_tok = max_i(chunk, o->n_slot),
                              .max_lane = max_i(o->n_slot, SCHED_MAX_SAMPLE)};
    } else {
        *out = (sched_limits){.max_row = o->n_slot + min_i(chunk, o->max_request),
                              .max_tok = o->n_slot + chunk,
                              .max_lane = o->n_slot + 4 * SCHED_MAX_SAMPLE};
    }
}

/* What goes with the planner. */
static corun_status check_planner(const sched_opts *o)
{
    bool dynamic = o->planner == SCHED_PLAN_DYNAMIC;
    if (!dynamic && o->planner != SCHED_PLAN_CORUN)
        FAIL(CORUN_EINVAL, "scheduler: planner %d is unknown", (int)o->planner);
    if (o->cut < 0 || (o->cut && (!dynamic || o->cut % o->page_tokens || o->chunk % o->cut)))
        FAIL(CORUN_EINVAL,
             "scheduler: cut is %d: the planner, page_tokens or chunk do not go with it", o->cut);
    if ((unsigned)o->reuse > SCHED_REUSE_PAGES || (o->reuse && !dynamic) ||
        (o->reuse == SCHED_REUSE_PIECES && !o->cut) || (o->reuse == SCHED_REUSE_PAGES && o->cut))
        FAIL(CORUN_EINVAL, "scheduler: reuse is %d: the planner or cut do not go with it",
             (int)o->reuse);
    if (o->recompute && (!dynamic || o->cut))
        FAIL(CORUN_EINVAL, "scheduler: recompute needs the dynamic planner without cut");
    if (o->key_bits < 0 || o->key_bits > 62)
        FAIL(CORUN_EINVAL, "scheduler: key_bits is %d, not 0 to 62", o->key_bits);
    return CORUN_OK;
}

static corun_status check_opts(const sched_opts *o)
{
    if (o->n_slot < 1 || o->n_slot > MAX_REQUEST)
        FAIL(CORUN_EINVAL, "scheduler: n_slot is %d, not 1 to %d", o->n_slot, MAX_REQUEST);
    if (o->n_ctx < 1) FAIL(CORUN_EINVAL, "scheduler: n_ctx is %d, not at least 1", o->n_ctx);
    if (o->page_tokens != 16 && o->page_tokens != 32 && o->page_tokens != 64 &&
        o->page_tokens != 128)
        FAIL(CORUN_EINVAL, "scheduler: page_tokens is %d, not 16, 32, 64 or 128", o->page_tokens);
    if (o->n_page < 2 || o->n_page > MAX_PAGES)
        FAIL(CORUN_EINVAL, "scheduler: n_page is %d, not 2 to %d", o->n_page, MAX_PAGES);
    if (o->n_swap < 0 || o->n_swap > MAX_PAGES)
        FAIL(CORUN_EINVAL, "scheduler: n_swap is %d, not 0 to %d", o->n_swap, MAX_PAGES);
    if (o->chunk < 1) FAIL(CORUN_EINVAL, "scheduler: chunk is %d, not at least 1", o->chunk);
    if (o->max_request < 1 || o->max_request > MAX_REQUEST)
        FAIL(CORUN_EINVAL, "scheduler: max_request is %d, not 1 to %d", o->max_request,
             MAX_REQUEST);
    if (o->lag != 0 && o->lag != 1) FAIL(CORUN_EINVAL, "scheduler: lag is %d, not 0 or 1", o->lag);
    return check_planner(o);
}

static corun_status open_buf(sched *s, plan_buf *b)
{
    int32_t seq_pages = min_i(ceil_div(s->o.n_ctx, s->o.page_tokens), s->o.n_page - 1);
    size_t n_page;
    if (!mem_mul((size_t)s->o.n_slot, (size_t)seq_pages, &n_page) || n_page > INT32_MAX / 2)
        FAIL(CORUN_EINVAL, "scheduler: %d slots of %d pages are too many", s->o.n_slot, seq_pages);
    n_page += (size_t)s->o.n_page;
    s->max_page = (int32_t)n_page;
    if (!MEM_NEW(b->row, (size_t)s->max.max_row)) return CORUN_ENOMEM;
    if (!MEM_NEW(b->tok, (size_t)s->max.max_tok + 1)) return CORUN_ENOMEM; /* 1: of dead rows */
    if (!MEM_NEW(b->lane, (size_t)s->max.max_lane)) return CORUN_ENOMEM;
    if (!MEM_NEW(b->page, n_page)) return CORUN_ENOMEM;
    if (!MEM_NEW(b->move, (size_t)s->max_move)) return CORUN_ENOMEM;
    if (!MEM_NEW(b->seat, (size_t)s->o.n_slot)) return CORUN_ENOMEM;
    return CORUN_OK;
}

static corun_status open_parts(sched *s)
{
    TRY(pages_open(&s->pool, s->o.n_page, 1, "pool"));
    TRY(pages_open(&s->swap, s->o.n_swap, 0, "swap"));
    if (s->o.reuse != SCHED_REUSE_NONE)
        TRY(prefix_open(&s->cache, s->o.n_page, s->o.page_tokens, s->o.key_bits));
    s->pool.cache = s->cache;
    if (!MEM_NEW(s->page_tok, (size_t)s->o.page_tokens)) return CORUN_ENOMEM;
    if (!MEM_NEW(s->req, (size_t)s->o.max_request)) return CORUN_ENOMEM;
    if (!MEM_NEW(s->free_req, (size_t)s->o.max_request)) return CORUN_ENOMEM;
    for (s->n_bucket = 1; s->n_bucket < s->o.max_request;) s->n_bucket *= 2;
    if (!MEM_NEW(s->bucket, (size_t)s->n_bucket)) return CORUN_ENOMEM;
    if (!MEM_NEW(s->adm, (size_t)s->o.max_request)) return CORUN_ENOMEM;
    if (!MEM_NEW(s->slot, (size_t)s->o.n_slot)) return CORUN_ENOMEM;
    if (!MEM_NEW(s->count, (size_t)max_i(s->o.n_page, s->o.n_swap))) return CORUN_ENOMEM;
    for (int32_t i = s->o.max_request - 1; i >= 0; i--) s->free_req[s->n_free_req++] = i;
    for (int32_t i = 0; i < s->n_bucket; i++) s->bucket[i] = -1;
    for (int32_t i = 0; i < s->o.n_slot; i++) s->slot[i] = (slot_use){-1, -1, -1, 0};
    for (int i = 0; i < 2; i++) TRY(open_buf(s, &s->buf[i]));
    return CORUN_OK;
}

corun_status sched_open(sched **out, const sched_opts *o)
{
    *out = NULL;
    TRY(check_opts(o));
    sched *s;
    if (!MEM_NEW(s, 1)) return CORUN_ENOMEM;
    s->o = *o;
    if (FAULT(RECOMPUTE)) s->o.recompute = true;
    s->queue_head = s->queue_tail = -1;
    sched_limits_get(o, &s->max);
    s->max_move = 2 * (o->n_page + o->n_swap);
    corun_status st = open_parts(s);
    if (st != CORUN_OK) {
        sched_close(s);
        return st;
    }
    *out = s;
    return CORUN_OK;
}

static void free_request(request *r)
{
    mem_free(r->tokens);
    mem_free(r->drawn);
    mem_free(r->prompt);
    mem_free(r->tail);
    mem_free(r->tail_seq);
    mem_free(r->seq);
    *r = (request){0};
}

void sched_close(sched *s)
{
    if (!s) return;
    for (int32_t i = 0; s->req && i < s->o.max_request; i++) free_request(&s->req[i]);
    for (int i = 0; i < 2; i++) {
        plan_buf *b = &s->buf[i];
        mem_free(b->row);
        mem_free(b->tok);
        mem_free(b->lane);
        mem_free(b->page);
        mem_free(b->move);
        mem_free(b->seat);
    }
    pages_close(&s->pool);
    pages_close(&s->swap);
    mem_free(s->req);
    mem_free(s->free_req);
    mem_free(s->bucket);
    mem_free(s->adm);
    mem_free(s->slot);
    mem_free(s->count);
    prefix_close(s->cache);
    mem_free(s->page_tok);
    mem_free(s);
}

/* ---- requests ------------------------------------------------------------------------------- */

static int32_t *bucket_of(const sched *s, uint64_t id)
{
    return &s->bucket[(id * 0x9e3779b97f4a7c15ULL >> 32) & (uint64_t)(s->n_bucket - 1)];
}

static request *find(const sched *s, uint64_t id)
{
    for (int32_t i = *bucket_of(s, id); i >= 0; i = s->req[i].chain)
        if (s->req[i].n_live > 0 && s->req[i].id == id) return &s->req[i];
    return NULL;
}

/* How many samples run at a time, and the pages that takes. The last drawn token is never run, so
 * a sample writes n_token + max_new - 1 tokens. Samples that wait keep the partial page alive. */
static corun_status size_request(const sched *s, const sched_request *in, request *r)
{
    int32_t pt = s->o.page_tokens, pool = s->o.n_page - 1;
    int64_t len = (int64_t)in->n_token + in->max_new;
    if (len > s->o.n_ctx)
        FAIL(CORUN_ECAPACITY,
             "request needs a context of %lld tokens (prompt of %d and %d new ones), it is %d",
             (long long)len, in->n_token, in->max_new, s->o.n_ctx);
    r->n_full = in->n_token / pt;
    r->n_prompt_page = ceil_div(in->n_token, pt);
    r->n_tail_max = in->max_new > 1 ? ceil_div((int32_t)len - 1, pt) - r->n_full : 0;
    int32_t partial = r->n_prompt_page - r->n_full;
    r->k_max = min_i(in->n_sample, s->o.n_slot);
    int64_t need;
    for (;; r->k_max--) {
        need = r->n_full + (int64_t)r->k_max * r->n_tail_max;
        if (r->n_tail_max == 0 || r->k_max < in->n_sample) need += partial;
        if (need <= pool || r->k_max == 1) break;
    }
    if (need > pool)
        FAIL(
            CORUN_ECAPACITY,
            "request needs %lld pages of %d tokens (prompt of %d, %d new ones, %d samples one at a "
            "time), the pool has %d",
            (long long)need, pt, in->n_token, in->max_new, in->n_sample, pool);
    r->full_pages = (int32_t)need;
    return CORUN_OK;
}

static corun_status fill_request(const sched *s, const sched_request *in, request *r)
{
    if (!MEM_NEW(r->tokens, (size_t)in->n_token)) return CORUN_ENOMEM;
    if (!MEM_NEW(r->prompt, (size_t)r->n_prompt_page)) return CORUN_ENOMEM;
    if (!MEM_NEW(r->tail, (size_t)r->k_max * (size_t)r->n_tail_max)) return CORUN_ENOMEM;
    if (!MEM_NEW(r->tail_seq, (size_t)r->k_max)) return CORUN_ENOMEM;
    if (!MEM_NEW(r->seq, (size_t)in->n_sample)) return CORUN_ENOMEM;
    if ((s->o.recompute || s->o.reuse == SCHED_REUSE_PAGES) &&
        !MEM_NEW(r->drawn, (size_t)in->n_sample * (size_t)in->max_new))
        return CORUN_ENOMEM;
    for (int32_t i = 0; i < in->n_token; i++) r->tokens[i] = in->tokens[i];
    for (int32_t i = 0; i < r->k_max; i++) r->tail_seq[i] = -1;
    for (int32_t i = 0; i < in->n_sample; i++) r->seq[i] = (sequence){.slot = -1, .tail = -1};
    r->id = in->id;
    r->n_token = in->n_token;
    r->max_new = in->max_new;
    r->n_sample = r->n_live = in->n_sample;
    r->want_all = in->want_all;
    return CORUN_OK;
}

corun_status sched_add(sched *s, const sched_request *in, int32_t *seq)
{
    if (in->n_token < 1) FAIL(CORUN_EINVAL, "request has %d prompt tokens", in->n_token);
    if (in->max_new < 0) FAIL(CORUN_EINVAL, "request has max_new %d", in->max_new);
    if (in->n_sample < 1 || in->n_sample > SCHED_MAX_SAMPLE)
        FAIL(CORUN_EINVAL, "request has %d samples, not 1 to %d", in->n_sample, SCHED_MAX_SAMPLE);
    if (find(s, in->id))
        FAIL(CORUN_EINVAL, "a request with id %llu is alive", (unsigned long long)in->id);
    request made = {.next = -1};
    TRY(size_request(s, in, &made));
    if (!s->n_free_req)
        FAIL(CORUN_ECAPACITY, "%d requests are alive: no more are taken", s->o.max_request);
    corun_status st = fill_request(s, in, &made);
    if (st != CORUN_OK) {
        free_request(&made);
        return st;
    }
    int32_t place = s->free_req[--s->n_free_req];
    made.phase = REQ_QUEUED;
    made.prev = s->queue_tail;
    if (s->queue_tail >= 0)
        s->req[s->queue_tail].next = place;
    else
        s->queue_head = place;
    s->queue_tail = place;
    s->n_queue++;
    made.chain = *bucket_of(s, in->id);
    *bucket_of(s, in->id) = place;
    s->req[place] = made;
    *seq = place * SCHED_MAX_SAMPLE;
    return CORUN_OK;
}

static void give_up_place(sched *s, request *r)
{
    int32_t *at = bucket_of(s, r->id);
    while (*at != (int32_t)(r - s->req)) at = &s->req[*at].chain;
    *at = r->chain;
    s->free_req[s->n_free_req++] = (int32_t)(r - s->req);
    free_request(r);
}

/* Pages go at once unless a step in flight still has a row of the sample. */
static void settle(sched *s, request *r, sequence *q)
{
    if (q->state == SEQ_DONE && (r->out || (q->n_noted == q->n_planned && !r->n_prompt_flight)))
        place_release(s, r, q);
}

static void end_seq(sched *s, request *r, sequence *q)
{
    if (q->state == SEQ_RUN) place_leave_slot(s, r, q);
    if (q->state == SEQ_WAIT) r->n_wait--;
    if (q->state != SEQ_DONE) r->n_live--;
    q->state = SEQ_DONE;
    settle(s, r, q);
}

/* What is left to do when the last sample has ended, and when nothing is in flight any more. */
static void settle_request(sched *s, request *r)
{
    if (r->phase == REQ_FREE || r->n_live > 0) return;
    r->phase = REQ_ENDED;
    if (r->out || !r->n_prompt_flight) place_release_self(s, r);
    if (r->n_flight) return;
    place_retire(s, r);
    give_up_place(s, r);
}

corun_status sched_cancel(sched *s, uint64_t id)
{
    request *r = find(s, id);
    if (!r) FAIL(CORUN_EINVAL, "no request with id %llu is alive", (unsigned long long)id);
    if (r->phase == REQ_QUEUED) {
        if (r->prev >= 0)
            s->req[r->prev].next = r->next;
        else
            s->queue_head = r->next;
        if (r->next >= 0)
            s->req[r->next].prev = r->prev;
        else
            s->queue_tail = r->prev;
        s->n_queue--;
        give_up_place(s, r);
        return CORUN_OK;
    }
    for (int32_t i = 0; i < r->n_sample; i++) end_seq(s, r, &r->seq[i]);
    settle_request(s, r);
    return CORUN_OK;
}

/* ---- plans and results ---------------------------------------------------------------------- */

static void emit_seats(sched *s, plan_buf *b)
{
    for (int32_t i = 0; i < s->o.n_slot; i++) {
        if (s->slot[i].fresh >= 0)
            b->seat[b->n_seat++] = (sched_seat){.seq = s->slot[i].fresh, .slot = i};
        s->slot[i].fresh = -1;
    }
}

corun_status sched_next(sched *s, sched_plan *out)
{
    *out = (sched_plan){0};
    if (s->n_pending > s->o.lag)
        FAIL(CORUN_EINVAL, "step %llu is not noted yet", (unsigned long long)(s->noted_id + 1));
    plan_buf *b = s->cur = &s->buf[(s->buf_first + s->n_pending) % 2];
    b->id = 0;
    b->n_row = b->n_tok = b->n_lane = b->n_page = b->n_move = b->n_seat = b->n_scratch = 0;
    b->n_prompt_row = b->n_out = b->n_in = 0;
    b->kind = STEP_DECODE;
    s->n_plan++;
    s->evicted = false;
    if (s->o.planner == SCHED_PLAN_CORUN)
        plan_corun(s);
    else
        plan_dynamic(s);
    if (s->fault != CORUN_OK) return s->fault;
    emit_seats(s, b);
    if (b->n_row) {
        b->id = ++s->last_id;
        s->n_pending++;
    }
    *out = (sched_plan){.n_move = b->n_move,
                        .move = b->move,
                        .n_seat = b->n_seat,
                        .seat = b->seat,
                        .step = {.id = b->id,
                                 .kind = b->kind,
                                 .n_row = b->n_row,
                                 .row = b->row,
                                 .n_tok = b->n_tok,
                                 .tok = b->tok,
                                 .n_lane = b->n_lane,
                                 .lane = b->lane},
                        .n_swapped_out = b->n_out,
                        .n_swapped_in = b->n_in};
    return CORUN_OK;
}

static request *req_of(sched *s, int32_t handle) { return &s->req[handle / SCHED_MAX_SAMPLE]; }

static sequence *seq_of(sched *s, int32_t handle)
{
    return &req_of(s, handle)->seq[handle % SCHED_MAX_SAMPLE];
}

/* Exactly one result for each lane. */
static corun_status check_results(sched *s, const plan_buf *b, const sched_result *r, int32_t n)
{
    if (n != b->n_lane)
        FAIL(CORUN_EINVAL, "step %llu has %d lanes, not %d", (unsigned long long)b->id, b->n_lane,
             n);
    for (int32_t i = 0; i < n; i++) seq_of(s, b->lane[i].seq)->due = true;
    int32_t bad = -1;
    for (int32_t i = 0; i < n && bad < 0; i++) {
        int32_t h = r[i].seq;
        bool known = h >= 0 && h / SCHED_MAX_SAMPLE < s->o.max_request &&
                     req_of(s, h)->phase != REQ_FREE &&
                     h % SCHED_MAX_SAMPLE < req_of(s, h)->n_sample;
        if (!known || !seq_of(s, h)->due)
            bad = i;
        else
            seq_of(s, h)->due = false;
    }
    for (int32_t i = 0; i < n; i++) seq_of(s, b->lane[i].seq)->due = false;
    if (bad >= 0)
        FAIL(CORUN_EINVAL, "step %llu has no (other) lane of sequence %d",
             (unsigned long long)b->id, r[bad].seq);
    return CORUN_OK;
}

static void note_prompt(sched *s, request *r)
{
    r->n_flight--;
    r->n_prompt_flight--;
    if (r->max_new || r->seen < r->n_token || r->n_prompt_flight) return;
    for (int32_t i = 0; i < r->n_sample; i++) end_seq(s, r, &r->seq[i]);
}

/* A draw tells whether what its row read is good: if its sample still has those pages. */
static void note_pages(sched *s, request *r, sequence *q, uint64_t step_id, bool failed)
{
    if (q->state == SEQ_DONE || !q->holds || r->out || step_id < r->since) return;
    if (failed)
        reuse_forget(s, r, q);
    else
        reuse_keep(s, r, q);
}

corun_status sched_note(sched *s, uint64_t step_id, const sched_result *res, int32_t n)
{
    plan_buf *b = &s->buf[s->buf_first];
    if (!s->n_pending || step_id != b->id)
        FAIL(CORUN_EINVAL, "step %llu is not the oldest one in flight",
             (unsigned long long)step_id);
    TRY(check_results(s, b, res, n));
    s->noted_id = b->id;
    s->buf_first = (s->buf_first + 1) % 2;
    s->n_pending--;
    for (int32_t i = 0; i < b->n_row; i++) {
        const step_row *row = &b->row[i];
        if (row->seq >= 0 && row->slot == STEP_NO_SLOT) note_prompt(s, req_of(s, row->seq));
    }
    for (int32_t i = 0; i < n; i++) {
        request *r = req_of(s, res[i].seq);
        sequence *q = seq_of(s, res[i].seq);
        q->n_noted++;
        r->n_flight--;
        q->token = res[i].token;
        if (r->drawn)
            r->drawn[(size_t)(q - r->seq) * (size_t)r->max_new + (size_t)q->n_noted - 1] = q->token;
        note_pages(s, r, q, b->id, res[i].failed);
        if (res[i].ended || q->n_noted == r->max_new)
            end_seq(s, r, q);
        else
            settle(s, r, q);
    }
    /* Rows name every request of the step; lanes of a prompt share its row. */
    for (int32_t i = 0; i < b->n_row; i++) {
        const step_row *row = &b->row[i];
        if (row->seq < 0) continue;
        request *r = req_of(s, row->seq);
        for (int32_t k = 0; row->slot == STEP_NO_SLOT && k < r->n_sample; k++)
            settle(s, r, &r->seq[k]);
        settle_request(s, r);
    }
    return CORUN_OK;
}

void sched_stats_get(const sched *s, sched_stats *out)
{
    *out = (sched_stats){.n_waiting = s->n_queue,
                         .n_running = s->n_in,
                         .n_out = s->n_adm - s->n_in,
                         .n_seq_running = s->n_run,
                         .page_free = s->pool.n_free,
                         .page_peak = s->pool.peak,
                         .swap_free = s->swap.n_free,
                         .n_swap_out = s->n_swap_out,
                         .n_swap_in = s->n_swap_in,
                         .n_copy = s->n_copy,
                         .n_recompute = s->n_recompute,
                         .n_hit = s->n_hit,
                         .n_hit_token = s->n_hit_token,
                         .n_cut = s->n_cut,
                         .n_evict_most = s->n_evict_most};
}

bool sched_idle(const sched *s) { return s->n_adm == 0 && s->n_queue == 0; }
