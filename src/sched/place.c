/* place.c - owns the movement of pages and the seats. Invariant: requests go out youngest
 * first and come back oldest first, so the admitted ones are a part in the pool followed by a
 * part outside, both by age. */
#include "sched/sched_impl.h"

#include "base/mem.h"

int32_t place_n_hold(const request *r)
{
    int32_t n = r->self;
    for (int32_t i = 0; i < r->n_sample; i++) n += r->seq[i].holds;
    return n;
}

int32_t place_n_untailed(const request *r)
{
    int32_t n = r->self;
    for (int32_t i = 0; i < r->n_sample; i++) n += r->seq[i].holds && r->seq[i].n_tail == 0;
    return n;
}

/* Some owners of this request less. The last pages of a sequence are dropped first: the prefix
 * cache finds none without those before it. */
static void drop(sched *s, request *r, int32_t page, int32_t n)
{
    pages *p = r->out ? &s->swap : &s->pool;
    pages_drop(p, page, n);
    if (r->out && !p->owners[page]) r->n_out--;
}

static void drop_tail(sched *s, request *r, sequence *q)
{
    if (q->tail < 0) return;
    for (int32_t i = q->n_tail - 1; i >= 0; i--)
        drop(s, r, r->tail[q->tail * r->n_tail_max + i], 1);
    r->tail_seq[q->tail] = -1;
    r->n_tail_used--;
    q->tail = -1;
    q->n_tail = 0;
}

/* One owner, who is no longer counted as such. */
static void drop_prompt(sched *s, request *r, bool partial)
{
    if (partial && r->n_have > r->n_full) {
        drop(s, r, r->prompt[r->n_full], 1);
        if (place_n_untailed(r) == 0) r->n_have = r->n_full;
    }
    for (int32_t i = min_i(r->n_have, r->n_full) - 1; i >= 0; i--) drop(s, r, r->prompt[i], 1);
    if (place_n_hold(r) == 0) r->n_have = 0;
}

void place_release(sched *s, request *r, sequence *q)
{
    if (!q->holds) return;
    q->holds = false;
    bool partial = q->n_tail == 0;
    drop_tail(s, r, q);
    drop_prompt(s, r, partial);
}

void place_release_self(sched *s, request *r)
{
    if (!r->self) return;
    r->self = false;
    drop_prompt(s, r, true);
}

void place_leave_slot(sched *s, request *r, sequence *q)
{
    s->slot[q->slot].req = s->slot[q->slot].sample = -1;
    q->slot = -1;
    r->n_run--;
    s->n_run--;
}

static bool slot_is_free(const sched *s, const slot_use *t)
{
    return t->req < 0 && t->last_step <= s->noted_id;
}

int32_t place_slots_free(const sched *s)
{
    int32_t n = 0;
    for (int32_t i = 0; i < s->o.n_slot; i++) n += slot_is_free(s, &s->slot[i]);
    return n;
}

int32_t place_slot_free(const sched *s)
{
    for (int32_t i = 0; i < s->o.n_slot; i++)
        if (slot_is_free(s, &s->slot[i])) return i;
    return -1;
}

void place_sit(sched *s, request *r, sequence *q, int32_t slot)
{
    int32_t sample = (int32_t)(q - r->seq);
    s->slot[slot].req = (int32_t)(r - s->req);
    s->slot[slot].sample = sample;
    s->slot[slot].fresh = seq_handle(s, r, sample);
    if (q->state == SEQ_WAIT) r->n_wait--;
    q->state = SEQ_RUN;
    q->slot = slot;
    r->n_run++;
    s->n_run++;
}

int32_t place_reserve(const sched *s)
{
    int32_t n = s->n_run;
    if (s->o.eager) return 0;
    for (int32_t i = 0; i < s->n_in; i++) {
        const request *r = &s->req[s->adm[i]];
        if (r->phase == REQ_PROMPT) n += r->n_prompt_page - r->n_have;
    }
    return n;
}

static bool emit_move(sched *s, sched_move_kind kind, int32_t src, int32_t dst)
{
    plan_buf *b = s->cur;
    if (dst == PAGES_NONE || b->n_move == s->max_move) {
        s->fault =
            err_set(CORUN_EINTERNAL, "scheduler: no room for a page move of kind %d", (int)kind);
        return false;
    }
    b->move[b->n_move++] = (sched_move){kind, src, dst};
    return true;
}

/* Every page of the request to the other side, shared ones once. */
static bool move_pages(sched *s, request *r, bool out)
{
    pages *from = out ? &s->pool : &s->swap, *to = out ? &s->swap : &s->pool;
    sched_move_kind kind = out ? SCHED_OUT : SCHED_IN;
    int32_t n = 0, n_hold = place_n_hold(r), n_untailed = place_n_untailed(r);
    for (int32_t i = 0; i < r->n_have; i++) {
        int32_t src = r->prompt[i];
        r->prompt[i] = pages_move(from, src, i < r->n_full ? n_hold : n_untailed, to);
        if (!emit_move(s, kind, src, r->prompt[i])) return false;
        n++;
    }
    for (int32_t k = 0; k < r->k_max; k++) {
        if (r->tail_seq[k] < 0) continue;
        for (int32_t i = 0; i < r->seq[r->tail_seq[k]].n_tail; i++) {
            int32_t *page = &r->tail[k * r->n_tail_max + i], src = *page;
            *page = pages_move(from, src, 1, to);
            if (!emit_move(s, kind, src, *page)) return false;
            n++;
        }
    }
    r->out = out;
    r->n_out = out ? n : 0;
    if (n && out) {
        s->cur->n_out++;
        s->n_swap_out++;
    } else if (n) {
        s->cur->n_in++;
        s->n_swap_in++;
    }
    return true;
}

/* The request goes out and keeps no page; its samples keep their claim on those to come. */
static void give_up_pages(sched *s, request *r)
{
    int32_t n_hold = place_n_hold(r), n_untailed = place_n_untailed(r);
    for (int32_t i = 0; i < r->n_sample; i++) drop_tail(s, r, &r->seq[i]);
    for (int32_t i = r->n_have - 1; i >= 0; i--)
        drop(s, r, r->prompt[i], i < r->n_full ? n_hold : n_untailed);
    r->n_have = r->pos = 0;
    if (r->phase == REQ_SAMPLES) r->phase = REQ_BACK;
    r->out = true;
}

int32_t place_written(const request *r, const sequence *q) { return r->n_token + q->n_planned - 1; }

/* A sample that has written tokens of its own has pages of its own. */
static int32_t n_own_page(const sched *s, const request *r, const sequence *q)
{
    if (!q->holds || q->n_planned <= 1) return 0;
    return ceil_div(place_written(r, q), s->o.page_tokens) - r->n_full;
}

static int32_t back_target(const sched *s, const request *r)
{
    bool any = false;
    for (int32_t i = 0; i < r->n_sample; i++) {
        if (r->seq[i].holds && r->seq[i].n_planned <= 1) return r->n_token;
        any = any || r->seq[i].holds;
    }
    return any ? r->n_full * s->o.page_tokens : 0;
}

/* Pages of a request that gave them up, without what it may ask for later, and the samples that
 * have pages of their own. */
static int32_t count_back(const sched *s, const request *r, int32_t *n_sample)
{
    *n_sample = 0;
    if (r->phase != REQ_BACK) return 0;
    int32_t n = ceil_div(back_target(s, r), s->o.page_tokens);
    for (int32_t i = 0; i < r->n_sample; i++) {
        int32_t own = n_own_page(s, r, &r->seq[i]);
        n += own;
        *n_sample += own > 0;
    }
    return n;
}

sequence *place_back_next(const request *r)
{
    for (int32_t k = 0; k < r->k_max; k++) {
        sequence *q = r->tail_seq[k] >= 0 ? &r->seq[r->tail_seq[k]] : NULL;
        if (q && q->pos < place_written(r, q)) return q;
    }
    return NULL;
}

void place_back_done(request *r)
{
    if (r->phase == REQ_BACK && !r->out && r->pos >= r->target && !place_back_next(r))
        r->phase = REQ_SAMPLES;
}

/* A request that gave its pages up gets new ones: those that the cache has, and empty ones. */
static void get_pages_back(sched *s, request *r)
{
    r->out = false;
    r->since = s->last_id + 1;
    r->at = (prefix_at){0};
    int32_t n_hold = place_n_hold(r);
    if (r->phase == REQ_PROMPT || (r->phase == REQ_BACK && n_hold > 0)) reuse_take(s, r, n_hold);
    if (r->phase != REQ_BACK) {
        s->n_recompute += r->phase == REQ_PROMPT && r->pos < r->seen;
        return;
    }
    r->target = back_target(s, r);
    for (int32_t i = 0; i < r->n_sample; i++) {
        sequence *q = &r->seq[i];
        q->at = (prefix_at){0};
        if (n_own_page(s, r, q) && place_take_tail(r, q))
            reuse_take_tail(s, r, q, place_written(r, q));
    }
    int32_t n_untailed = 0;
    for (int32_t i = 0; i < r->n_sample; i++) {
        sequence *q = &r->seq[i];
        n_untailed += q->holds && q->tail < 0;
        for (int32_t n = n_own_page(s, r, q); q->n_tail < n;)
            r->tail[q->tail * r->n_tail_max + q->n_tail++] = pages_take(&s->pool);
    }
    for (int32_t n = ceil_div(r->target, s->o.page_tokens); r->n_have < n; r->n_have++) {
        r->prompt[r->n_have] = pages_take(&s->pool);
        pages_share(&s->pool, r->prompt[r->n_have],
                    (r->n_have < r->n_full ? n_hold : n_untailed) - 1);
    }
    place_back_done(r);
    s->n_recompute += r->phase == REQ_BACK;
}

bool place_evict(sched *s)
{
    if (s->n_in <= 1) return false;
    request *r = &s->req[s->adm[--s->n_in]];
    for (int32_t i = 0; i < r->n_sample; i++) {
        sequence *q = &r->seq[i];
        if (q->state == SEQ_LAST || q->state == SEQ_DONE) place_release(s, r, q);
        if (q->state != SEQ_RUN) continue;
        place_leave_slot(s, r, q);
        q->state = SEQ_WAIT;
        q->ready = 0;
        r->n_wait++;
    }
    if (r->phase != REQ_PROMPT) place_release_self(s, r);
    s->evicted = true;
    if (++r->n_evict > s->n_evict_most) s->n_evict_most = r->n_evict;
    if (!s->o.recompute) return move_pages(s, r, true);
    give_up_pages(s, r);
    return true;
}

bool place_take_tail(request *r, sequence *q)
{
    if (r->n_tail_used == r->k_max) return false;
    int32_t k = 0;
    while (r->tail_seq[k] >= 0) k++;
    r->tail_seq[k] = (int32_t)(q - r->seq);
    r->n_tail_used++;
    q->tail = k;
    return true;
}

/* The page that the next decode row writes is in place and owned by this sample alone; false: no
 * page is free. */
static bool grow(sched *s, request *r, sequence *q)
{
    int32_t pos = r->n_token + q->n_planned - 1;
    if (pos / s->o.page_tokens - r->n_full < q->n_tail) return true;
    int32_t *tail = &r->tail[q->tail * r->n_tail_max + q->n_tail];
    if (q->n_tail == 0 && r->n_prompt_page > r->n_full) {
        int32_t src = r->prompt[r->n_full];
        if (s->pool.owners[src] == 1) {
            *tail = src;
            r->n_have = r->n_full;
        } else {
            int32_t dst = pages_take(&s->pool);
            if (dst == PAGES_NONE || !emit_move(s, SCHED_COPY, src, dst)) return false;
            pages_drop(&s->pool, src, 1);
            *tail = dst;
            s->n_copy++;
        }
    } else {
        int32_t page = pages_take(&s->pool);
        if (page == PAGES_NONE) return false;
        *tail = page;
    }
    q->n_tail++;
    return true;
}

/* Running sequences of one request; whoever is youngest makes room, itself at the end. */
static void grow_running(sched *s, request *r)
{
    for (int32_t k = 0; k < r->k_max && r->n_run > 0; k++) {
        if (r->tail_seq[k] < 0) continue;
        sequence *q = &r->seq[r->tail_seq[k]];
        if (q->state != SEQ_RUN) continue;
        bool ok;
        while (!(ok = grow(s, r, q)) && place_evict(s))
            if (r->out) return;
        if (ok) q->ready = s->n_plan;
    }
}

/* Waiting samples into free slots, in their order. Others move out for it only if no sample of
 * this request runs: that is what progress needs, and more would be unkind. */
static void seat_waiting(sched *s, request *r)
{
    for (int32_t i = 0; i < r->n_sample && r->n_wait > 0 && r->phase == REQ_SAMPLES; i++) {
        sequence *q = &r->seq[i];
        if (q->state != SEQ_WAIT || q->n_noted != q->n_planned) continue;
        int32_t slot = place_slot_free(s);
        if (slot < 0) return;
        if (q->tail < 0 && !place_take_tail(r, q)) continue;
        bool ok;
        while (!(ok = grow(s, r, q)))
            if (r->n_run > 0 || &s->req[s->adm[s->n_in - 1]] == r || !place_evict(s)) break;
        if (!ok) {
            if (q->n_tail == 0) {
                r->tail_seq[q->tail] = -1;
                r->n_tail_used--;
                q->tail = -1;
            }
            return;
        }
        place_sit(s, r, q, slot);
        q->ready = s->n_plan;
    }
}

/* The oldest requests outside come back while there is room for their pages, for the step they
 * take at once, and for what the others may ask for meanwhile. */
static void bring_in(sched *s)
{
    while (s->n_in < s->n_adm) {
        request *r = &s->req[s->adm[s->n_in]];
        bool prompt = r->phase == REQ_PROMPT;
        int32_t n_tail = r->n_tail_used;
        int32_t need = s->o.recompute ? count_back(s, r, &n_tail) : r->n_out;
        if (s->n_in) {
            if (s->req[s->adm[s->n_in - 1]].phase == REQ_BACK) return; /* one at a time */
            if (!prompt && place_slot_free(s) < 0) return;
            prefix_at at;
            if (s->o.recompute) need -= reuse_find(s, r, &at, NULL);
            need += prompt ? r->n_prompt_page - r->n_have : max_i(1, n_tail);
            need += place_reserve(s);
        }
        if (s->pool.n_free < need) return;
        s->n_in++;
        if (s->o.recompute)
            get_pages_back(s, r);
        else if (!move_pages(s, r, false))
            return;
        seat_waiting(s, r);
    }
}

static int32_t count_ready(const sched *s)
{
    int32_t n = 0;
    for (int32_t i = 0; i < s->o.n_slot; i++) {
        const slot_use *t = &s->slot[i];
        n += t->req >= 0 && s->req[t->req].seq[t->sample].ready == s->n_plan;
    }
    return n;
}

int32_t place_ready(sched *s)
{
    if (s->n_in) place_back_done(&s->req[s->adm[s->n_in - 1]]); /* its last sample may have ended */
    for (int32_t i = 0; i < s->n_in; i++) grow_running(s, &s->req[s->adm[i]]);
    for (int32_t i = 0; i < s->n_in; i++) seat_waiting(s, &s->req[s->adm[i]]);
    if (!s->evicted) bring_in(s);
    return count_ready(s);
}

/* Head of the queue into the pool, if the rules allow it; NULL otherwise. */
static request *admit(sched *s)
{
    if (s->queue_head < 0 || s->n_in != s->n_adm || s->evicted) return NULL;
    request *r = &s->req[s->queue_head];
    if (s->n_adm) {
        int64_t swap = s->sum_full - s->req[s->adm[0]].full_pages + r->full_pages;
        if (!s->o.recompute && swap > s->o.n_swap) return NULL;
        prefix_at at;
        int32_t need = r->n_prompt_page - reuse_find(s, r, &at, NULL) + (r->max_new > 1);
        need = s->o.eager ? 1 : need + place_reserve(s);
        if (s->pool.n_free < need) return NULL;
    }
    if (r->max_new > 0) {
        int32_t n = place_slots_free(s);
        for (int32_t i = 0; i < s->n_in; i++) {
            const request *a = &s->req[s->adm[i]];
            n -= a->phase == REQ_PROMPT ? a->max_new > 0 : min_i(a->n_wait, a->k_max - a->n_run);
        }
        if (n <= 0) return NULL;
    }
    s->queue_head = r->next;
    if (r->next >= 0)
        s->req[r->next].prev = -1;
    else
        s->queue_tail = -1;
    s->n_queue--;
    s->adm[s->n_adm++] = (int32_t)(r - s->req);
    s->n_in++;
    s->sum_full += r->full_pages;
    r->phase = REQ_PROMPT;
    r->self = true;
    r->since = s->last_id + 1;
    reuse_take(s, r, 1);
    return r;
}

request *place_prompt(sched *s)
{
    request *r = s->n_in ? &s->req[s->adm[s->n_in - 1]] : NULL;
    return r && (r->phase == REQ_PROMPT || r->phase == REQ_BACK) ? r : admit(s);
}

void place_retire(sched *s, request *r)
{
    int32_t at = 0, p = (int32_t)(r - s->req);
    while (s->adm[at] != p) at++;
    for (int32_t i = at + 1; i < s->n_adm; i++) s->adm[i - 1] = s->adm[i];
    s->n_adm--;
    if (at < s->n_in) s->n_in--;
    s->sum_full -= r->full_pages;
}
