/* emit.c - from drawn tokens to events: text, stop rules, the end of a sample.
 *
 * Order after each token (c tokens so far): eos, stop token ids (both not before min_tokens), then
 * stop strings in the decoded text, then the length. A stop string wins over the length when both
 * fall on one token. Of several stop strings the one that completes first wins; ties: the first in
 * the list. Text is held back while a stop string may still begin in it.
 * Invariant: what was emitted never has to be taken back. */
#include "engine/engine.h"

#include <string.h>

#include "base/fault.h"

static corun_event *event_push(corun_engine *e, corun_event_kind kind, const sample *s)
{
    event_queue *q = &e->q;
    if (q->n == q->cap) {
        size_t cap = q->cap ? 2 * q->cap : 256;
        corun_event *p = mem_realloc(q->ev, cap, sizeof *p, "events");
        if (!p) return NULL;
        q->ev = p;
        q->cap = cap;
    }
    corun_event *ev = &q->ev[q->n++];
    *ev = (corun_event){.kind = kind,
                        .id = s->req->id,
                        .sample = s->index,
                        .stop_index = -1,
                        .stop_token = -1,
                        .n_prompt = s->req->n_prompt,
                        .n_new = s->n_token};
    return ev;
}

/* The event's text: bytes [0, n) of data, kept in the queue's own buffer until popped. */
static corun_status event_text(corun_engine *e, corun_event *ev, const char *data, size_t n)
{
    size_t at = e->q.text.len;
    buf_put(&e->q.text, data, n);
    buf_putc(&e->q.text, 0);
    TRY(buf_status(&e->q.text));
    ev->text = (const char *)(uintptr_t)(at + 1);
    ev->text_len = n;
    return CORUN_OK;
}

corun_status event_pop(corun_engine *e, corun_event *out)
{
    event_queue *q = &e->q;
    if (q->head == q->n) {
        q->head = q->n = 0;
        buf_reset(&q->text);
        *out = (corun_event){.kind = CORUN_EVENT_NONE, .text = ""};
        return CORUN_OK;
    }
    *out = q->ev[q->head++];
    uintptr_t at = (uintptr_t)out->text;
    out->text = at ? q->text.data + at - 1 : "";
    return CORUN_OK;
}

static void set_draw(corun_event *ev, const ops_draw *d)
{
    ev->token = d->token;
    ev->logprob = d->logprob;
    ev->n_top = d->n_top < CORUN_MAX_TOP ? d->n_top : CORUN_MAX_TOP;
    for (int32_t i = 0; i < ev->n_top; i++) {
        ev->top_id[i] = d->top_id[i];
        ev->top_logprob[i] = d->top_logprob[i];
    }
}

corun_status emit_prompt(corun_engine *e, sample *s, int32_t index, const ops_draw *d)
{
    corun_event *ev = event_push(e, CORUN_EVENT_PROMPT, s);
    if (!ev) return CORUN_ENOMEM;
    set_draw(ev, d);
    ev->index = index;
    return CORUN_OK;
}

static void close_sample(sample *s)
{
    s->ended = true;
    s->req->n_open--;
}

corun_status emit_done(corun_engine *e, sample *s, corun_finish why, int32_t stop_index,
                       int32_t stop_token)
{
    bpe_stream_end(&s->utf8, &s->hold);
    TRY(buf_status(&s->hold));
    corun_event *ev = event_push(e, CORUN_EVENT_DONE, s);
    if (!ev) return CORUN_ENOMEM;
    ev->finish = why;
    ev->stop_index = stop_index;
    ev->stop_token = stop_token;
    close_sample(s);
    return event_text(e, ev, s->hold.data, s->hold.len);
}

corun_status emit_failed(corun_engine *e, sample *s, corun_status st, const char *text)
{
    corun_event *ev = event_push(e, CORUN_EVENT_FAILED, s);
    if (!ev) return CORUN_ENOMEM;
    ev->status = st;
    close_sample(s);
    return event_text(e, ev, text, strlen(text));
}

/* The first stop string that ends in hold after byte `old`: its index, and where it begins. */
static int32_t find_stop(const sample *s, size_t old, size_t *begin, size_t *end)
{
    const corun_sampling *p = &s->req->par.s;
    const buf *h = &s->hold;
    int32_t found = -1;
    *end = SIZE_MAX;
    for (size_t i = 0; i < p->n_stop; i++) {
        size_t len = p->stop[i].len;
        size_t from = old + 1 > len ? old + 1 - len : 0;
        if (h->len < from + len) continue;
        const char *hit = memmem(h->data + from, h->len - from, p->stop[i].data, len);
        if (!hit) continue;
        size_t b = (size_t)(hit - h->data);
        if (b + len < *end) {
            found = (int32_t)i;
            *begin = b;
            *end = b + len;
        }
    }
    return found;
}

/* Bytes of hold that can be emitted: all but what a stop string could begin in, cut at a
 * character. */
static size_t final_bytes(const sample *s)
{
    size_t keep = s->req->stop_max ? s->req->stop_max - 1 : 0;
    if (s->hold.len <= keep) return 0;
    size_t n = s->hold.len - keep;
    while (n > 0 && n < s->hold.len && ((unsigned char)s->hold.data[n] & 0xc0) == 0x80) n--;
    return n;
}

/* Whether the token ends the sample; *stop_token is set when it is one of stop_token_ids. */
static bool ends_by_id(const corun_engine *e, const sample *s, int32_t token, int32_t *stop_token)
{
    const corun_sampling *p = &s->req->par.s;
    const config *g = &e->m->net->cfg;
    *stop_token = -1;
    if (s->n_token < p->min_tokens) return false;
    for (int32_t i = 0; i < g->n_eos && !p->ignore_eos; i++)
        if (token == g->eos[i]) return true;
    for (size_t i = 0; i < p->n_stop_id; i++)
        if (token == p->stop_id[i]) {
            *stop_token = token;
            return true;
        }
    return false;
}

static corun_status push_text(const corun_engine *e, sample *s, int32_t token)
{
    const char *data;
    size_t len;
    bool special;
    bpe_token(e->m->text, token, &data, &len, &special);
    if (!(special && s->req->par.s.skip_special)) bpe_stream_push(&s->utf8, data, len, &s->hold);
    return buf_status(&s->hold);
}

corun_status emit_token(corun_engine *e, sample *s, const ops_draw *d)
{
    const corun_sampling *p = &s->req->par.s;
    int32_t stop_token, stop = -1;
    s->token[s->n_token++] = d->token;
    bool ended = ends_by_id(e, s, d->token, &stop_token);
    size_t old = s->hold.len, begin = 0, end = 0;
    if (!ended || p->include_stop) TRY(push_text(e, s, d->token));
    if (!ended && s->n_token == s->req->max_new) bpe_stream_end(&s->utf8, &s->hold);
    if (!ended && s->n_token >= p->min_tokens) stop = find_stop(s, old, &begin, &end);
    if (stop >= 0) {
        s->hold.len = p->include_stop || FAULT(STOP_LATE) ? end : begin;
        s->utf8.n_held = 0;
    }
    corun_event *ev = event_push(e, CORUN_EVENT_TOKEN, s);
    if (!ev) return CORUN_ENOMEM;
    set_draw(ev, d);
    ev->index = s->n_token - 1;
    bool last = ended || stop >= 0 || s->n_token == s->req->max_new;
    size_t n = last ? 0 : final_bytes(s);
    TRY(event_text(e, ev, s->hold.data, n));
    if (last)
        return emit_done(e, s, ended || stop >= 0 ? CORUN_FINISH_STOP : CORUN_FINISH_LENGTH, stop,
                         stop_token);
    if (n) {
        memmove(s->hold.data, s->hold.data + n, s->hold.len - n);
        s->hold.len -= n;
    }
    return CORUN_OK;
}
