/* openai_stream.c - owns the chunks of a streamed answer. Invariant: texts and lists of the chunks
 * of a choice, one after the other, are those of the whole answer; every other field of the whole
 * stands in exactly one chunk, or in each with the same value. */
#include <stdio.h>
#include <string.h>

#include "app/openai_row.h"

/* How far a choice has been sent. */
typedef struct sent {
    size_t token, top, text;
    job_chars chars;
    bool begun, ended;
} sent;

struct openai_stream {
    row r;
    buf head, tail; /* of every chunk, around its choice */
    sent *choice;
    uint64_t n_new;
    bool begun; /* a chunk was sent */
};

static corun_status open_stream(openai_stream *s, const job *j, int64_t created)
{
    char id[64];
    jw w;
    const bool chat = j->kind == JOB_CHAT;
    if (!MEM_NEW(s->choice, j->n_choice)) return CORUN_ENOMEM;
    row_id(j, id);
    buf_puts(&s->head, "data: ");
    jw_init(&w, &s->head);
    jw_open(&w, '{');
    jw_field_str(&w, "id", id);
    jw_field_str(&w, "object", chat ? "chat.completion.chunk" : "text_completion");
    jw_field_int(&w, "created", created);
    jw_key(&w, "model");
    jw_value(&w, json_object_get(j->body, "model"));
    jw_key(&w, "choices");
    jw_open(&w, '[');
    jw_init(&w, &s->tail);
    jw_close(&w, ']');
    jw_field_str(&w, "system_fingerprint", s->r.m->fingerprint);
    TRY(buf_status(&s->head));
    return buf_status(&s->tail);
}

corun_status openai_stream_open(openai_stream **out, const job *j, const job_model *m,
                                int64_t created)
{
    openai_stream *s;
    *out = NULL;
    if (!MEM_NEW(s, 1)) return CORUN_ENOMEM;
    row_init(&s->r, j, m, NULL);
    buf_init(&s->head, JOB_MAX_ROW);
    buf_init(&s->tail, JOB_MAX_ROW);
    corun_status st = open_stream(s, j, created);
    if (st != CORUN_OK)
        openai_stream_close(s);
    else
        *out = s;
    return st;
}

void openai_stream_close(openai_stream *s)
{
    if (!s) return;
    row_free(&s->r);
    buf_free(&s->head);
    buf_free(&s->tail);
    mem_free(s->choice);
    mem_free(s);
}

/* Opens a chunk up to its list of choices. */
static void chunk_open(openai_stream *s, buf *out)
{
    buf_put(out, s->head.data, s->head.len);
    jw_init(&s->r.w, out);
}

static corun_status chunk_close(openai_stream *s, bool usage)
{
    row *r = &s->r;
    const job *j = r->j;
    buf_put(r->w.b, s->tail.data, s->tail.len);
    r->w.comma = true;
    if (usage || j->stream_usage_each) {
        row_usage(r, s->n_new);
    } else if (j->stream_usage) {
        jw_field_null(&r->w, "usage");
    }
    if (!s->begun && !usage) { /* the first one holds what the whole answer says once */
        s->begun = true;
        if (j->kind == JOB_CHAT) {
            if (j->prompt_logprobs >= 0) TRY(row_prompt_logprobs(r, j->prompt));
            if (j->return_ids)
                row_ids(r, "prompt_token_ids", j->prompt[0].token, j->prompt[0].n_token);
        }
        row_sampling(r);
    }
    jw_close(&r->w, '}');
    buf_puts(r->w.b, "\n\n");
    return buf_status(r->w.b);
}

static void put_delta(row *r, const char *role, const char *text, size_t len)
{
    if (r->j->kind != JOB_CHAT) {
        jw_key(&r->w, "text");
        jw_str(&r->w, text, len);
        return;
    }
    jw_key(&r->w, "delta");
    jw_open(&r->w, '{');
    if (role) {
        jw_field_str(&r->w, "role", role);
    }
    if (role || len) {
        jw_key(&r->w, "content");
        jw_str(&r->w, text, len);
    }
    jw_close(&r->w, '}');
}

static corun_status put_logprobs(row *r, const part *p, job_chars *chars)
{
    jw_key(&r->w, "logprobs");
    if (r->j->logprobs < 0 || !p) {
        jw_null(&r->w);
        return CORUN_OK;
    }
    return r->j->kind == JOB_CHAT ? row_chat_logprobs(r, p)
                                  : row_completion_logprobs(r, p, 1, chars);
}

static void put_no_finish(row *r)
{
    jw_field_null(&r->w, "finish_reason");
    jw_field_null(&r->w, "stop_reason");
}

/* What a completion says once about the prompt of a choice. */
static corun_status put_prompt_facts(row *r, const job_prompt *p)
{
    if (r->j->kind == JOB_CHAT) return CORUN_OK;
    if (r->j->prompt_logprobs >= 0) TRY(row_prompt_logprobs(r, p));
    if (r->j->return_ids) row_ids(r, "prompt_token_ids", p->token, p->n_token);
    return CORUN_OK;
}

/* A chunk without tokens of the answer: the role, or text that stands before it. */
static corun_status put_before(openai_stream *s, size_t i, const char *role, const char *text,
                               size_t len, const part *p, buf *out)
{
    row *r = &s->r;
    chunk_open(s, out);
    jw_open(&r->w, '{');
    jw_field_uint(&r->w, "index", i);
    put_delta(r, role, text, len);
    TRY(put_logprobs(r, p, &s->choice[i].chars));
    put_no_finish(r);
    TRY(put_prompt_facts(r, &r->j->prompt[i / (size_t)r->j->s.n]));
    jw_close(&r->w, '}');
    return chunk_close(s, false);
}

static corun_status put_echo(openai_stream *s, size_t i, buf *out)
{
    const job_prompt *p = &s->r.j->prompt[i / (size_t)s->r.j->s.n];
    job_tokens one = {0};
    part prompt;
    buf text;
    buf_init(&text, JOB_MAX_ROW);
    corun_status st = row_echo(&s->r, p, &text);
    if (st == CORUN_OK) st = row_echo_part(p, &one, &prompt);
    if (st == CORUN_OK)
        st = put_before(s, i, NULL, text.data ? text.data : "", text.len, &prompt, out);
    buf_free(&text);
    job_tokens_free(&one);
    return st;
}

/* What comes before the first token of a choice. */
static corun_status begin(openai_stream *s, size_t i, buf *out)
{
    const job *j = s->r.j;
    if (j->kind == JOB_CHAT) {
        TRY(put_before(s, i, "assistant", "", 0, NULL, out));
        if (j->echo_len) TRY(put_before(s, i, NULL, j->echo_text, j->echo_len, NULL, out));
        s->choice[i].begun = true;
    } else if (j->echo) {
        TRY(put_echo(s, i, out));
        s->choice[i].begun = true;
    }
    return CORUN_OK;
}

/* All that is new of a choice, as one chunk. */
static corun_status put_new(openai_stream *s, size_t i, buf *out)
{
    row *r = &s->r;
    const job *j = r->j;
    const job_choice *c = &j->choice[i];
    sent *at = &s->choice[i];
    const part p = {.t = &c->tokens,
                    .from = at->token,
                    .to = c->tokens.n,
                    .top = at->top,
                    .special_counts = !j->s.skip_special};
    chunk_open(s, out);
    jw_open(&r->w, '{');
    jw_field_uint(&r->w, "index", i);
    put_delta(r, NULL, c->text.data ? c->text.data + at->text : "", c->text.len - at->text);
    TRY(put_logprobs(r, &p, &at->chars));
    if (c->ended)
        row_finish(r, c);
    else
        put_no_finish(r);
    if (!at->begun) TRY(put_prompt_facts(r, &j->prompt[i / (size_t)j->s.n]));
    if (j->return_ids)
        row_ids(r, "token_ids", c->tokens.n ? c->tokens.id + p.from : NULL, p.to - p.from);
    if (c->ended) row_seed(r, i);
    jw_close(&r->w, '}');
    for (; at->token < p.to; at->token++) at->top += (size_t)c->tokens.n_top[at->token];
    at->text = c->text.len;
    at->begun = true;
    at->ended = c->ended;
    return chunk_close(s, false);
}

corun_status openai_stream_event(openai_stream *s, size_t prompt, const corun_event *e, buf *out)
{
    const job *j = s->r.j;
    const size_t n = (size_t)j->s.n;
    if (e->kind != CORUN_EVENT_TOKEN && e->kind != CORUN_EVENT_DONE) return CORUN_OK;
    s->n_new += e->kind == CORUN_EVENT_TOKEN;
    /* A prompt that is only scored ends once, for all its samples. */
    bool all = j->prompt[prompt].max_tokens == 0;
    for (size_t k = all ? 0 : (size_t)e->sample; k < (all ? n : (size_t)e->sample + 1); k++) {
        size_t i = prompt * n + k;
        const job_choice *c = &j->choice[i];
        sent *at = &s->choice[i];
        if (at->ended) continue;
        if (!at->begun) TRY(begin(s, i, out));
        if (c->ended || c->text.len > at->text) TRY(put_new(s, i, out));
    }
    return CORUN_OK;
}

/* What the events have not given, as they were not asked. */
static corun_status put_rest(openai_stream *s, buf *out)
{
    const job *j = s->r.j;
    s->n_new = 0;
    for (size_t i = 0; i < j->n_choice; i++) s->n_new += (uint64_t)j->choice[i].n_new;
    for (size_t i = 0; i < j->n_choice; i++) {
        if (s->choice[i].ended) continue;
        if (!s->choice[i].begun) TRY(begin(s, i, out));
        TRY(put_new(s, i, out));
    }
    return CORUN_OK;
}

corun_status openai_stream_end(openai_stream *s, buf *out)
{
    row *r = &s->r;
    if (r->j->http != 200) {
        buf_puts(out, "data: ");
        jw_init(&r->w, out);
        job_put_error(r->j, r->m, &r->w);
        buf_puts(out, "\n\n");
        return buf_status(out);
    }
    TRY(put_rest(s, out));
    if (r->j->stream_usage) {
        chunk_open(s, out);
        TRY(chunk_close(s, true));
    }
    buf_puts(out, "data: [DONE]\n\n");
    return buf_status(out);
}
