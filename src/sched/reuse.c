/* reuse.c - owns what goes into the prefix cache and what is taken from it. Invariant: only a page
 * that the planner's rule allows is ever an entry, and only after a good draw that read it. */
#include "sched/sched_impl.h"

#include <string.h>

void reuse_tokens(const request *r, int32_t sample, int32_t pos, int32_t n, int32_t *out)
{
    int32_t prompt = max_i(0, min_i(n, r->n_token - pos));
    memcpy(out, r->tokens + pos, (size_t)prompt * sizeof *out);
    if (prompt == n) return;
    const int32_t *drawn = r->drawn + (size_t)sample * (size_t)r->max_new;
    memcpy(out + prompt, drawn + pos + prompt - r->n_token, (size_t)(n - prompt) * sizeof *out);
}

/* Pages of the prompt that may be entries: whole pieces, or all full pages. */
static int32_t n_keep(const sched *s, const request *r)
{
    int32_t piece = s->o.reuse == SCHED_REUSE_PIECES ? s->o.cut : s->o.page_tokens;
    return r->n_token / piece * piece / s->o.page_tokens;
}

/* Prompt tokens that need not be computed if they are found: not those whose logits are wanted. */
static int32_t n_spare(const request *r)
{
    if (r->phase == REQ_BACK) return r->n_token;
    return r->want_all ? r->seen : r->n_token - 1;
}

int32_t reuse_find(const sched *s, const request *r, prefix_at *at, int32_t *page)
{
    *at = (prefix_at){0};
    if (s->o.reuse == SCHED_REUSE_NONE) return 0;
    int32_t pt = s->o.page_tokens, n_owned = 0, n_all = 0;
    int32_t piece = s->o.reuse == SCHED_REUSE_PIECES ? s->o.cut / pt : 1;
    int32_t most = n_spare(r) / pt / piece * piece;
    prefix_at next = *at;
    for (int32_t j = 0; j < most; j++) {
        int32_t got = prefix_find(s->cache, &next, r->tokens + (size_t)j * (size_t)pt);
        if (got < 0) break;
        if (page) page[j] = got;
        n_all += s->pool.owners[got] > 0;
        if (next.n % piece) continue;
        *at = next;
        n_owned = n_all;
    }
    return n_owned;
}

void reuse_take(sched *s, request *r, int32_t n_owner)
{
    reuse_find(s, r, &r->at, r->prompt);
    for (int32_t j = 0; j < r->at.n; j++) pages_own(&s->pool, r->prompt[j], n_owner);
    r->n_have = r->at.n;
    r->pos = r->at.n * s->o.page_tokens;
    if (!r->at.n) return;
    s->n_hit++;
    s->n_hit_token += (uint64_t)r->pos;
}

void reuse_take_tail(sched *s, request *r, sequence *q, int32_t n_token)
{
    int32_t pt = s->o.page_tokens, sample = (int32_t)(q - r->seq);
    q->pos = r->n_full * pt;
    if (s->o.reuse != SCHED_REUSE_PAGES || r->at.n < r->n_full) return;
    q->at = r->at;
    while ((q->at.n + 1) * pt <= n_token) {
        reuse_tokens(r, sample, q->at.n * pt, pt, s->page_tok);
        int32_t got = prefix_find(s->cache, &q->at, s->page_tok);
        if (got < 0) return;
        pages_own(&s->pool, got, 1);
        r->tail[q->tail * r->n_tail_max + q->n_tail++] = got;
        q->pos += pt;
        s->n_hit_token += (uint64_t)pt;
    }
}

/* All that was written before the newest noted draw, which read it. */
void reuse_keep(sched *s, request *r, sequence *q)
{
    if (s->o.reuse == SCHED_REUSE_NONE) return;
    int32_t pt = s->o.page_tokens, sample = (int32_t)(q - r->seq);
    for (int32_t n = n_keep(s, r); r->at.n < n;)
        prefix_add(s->cache, &r->at, r->tokens + (size_t)r->at.n * (size_t)pt, r->prompt[r->at.n]);
    int32_t n = (r->n_token + q->n_noted - 1) / pt;
    if (s->o.reuse != SCHED_REUSE_PAGES || n <= r->n_full) return;
    if (q->at.n < r->n_full) q->at = r->at;
    while (q->at.n < n) {
        reuse_tokens(r, sample, q->at.n * pt, pt, s->page_tok);
        prefix_add(s->cache, &q->at, s->page_tok,
                   r->tail[q->tail * r->n_tail_max + q->at.n - r->n_full]);
    }
}

void reuse_forget(sched *s, request *r, sequence *q)
{
    if (s->o.reuse == SCHED_REUSE_NONE) return;
    for (int32_t i = 0; i < r->n_have; i++) prefix_forget(s->cache, r->prompt[i]);
    for (int32_t i = 0; i < q->n_tail; i++)
        prefix_forget(s->cache, r->tail[q->tail * r->n_tail_max + i]);
}
