/* serve_openai.c - owns completions, chats and texts over HTTP. Invariant: an answer is the body of
 * the row that a batch file would get for the same request.
 *
 * A request is made a job on a thread of the service, runs as its task, and is written on such a
 * thread again; a stream is written event by event on the service's own thread. Its `ask` is the
 * call's data until the end of either is settled: the lock holds a client that goes away apart
 * from an answer that ends.
 *
 * What is large goes to a lane of its own (SERVICE_LARGE), so that small requests never wait for
 * it: bodies, texts that become tokens, answers. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "app/openai.h"
#include "app/serve.h"
#include "base/clock.h"

#define LARGE ((size_t)256 << 10) /* bytes */
#define LATE  ((size_t)1 << 20)   /* of a stream: such a one is written at its end */

typedef struct ask {
    task t; /* ctx: this ask */
    serve *s;
    http_call *c;
    service_lane lane; /* of its beginning */
    job_kind kind;
    job *j;
    openai_stream *stream; /* NULL: the answer comes whole */
    buf chunk;
    int64_t created;
    double since;
    bool taken, gone; /* by the service; the client (both under the lock) */
    bool begun;       /* the stream's head is sent */
    bool broken;      /* its client takes no more chunks */
} ask;

static void ask_free(ask *a)
{
    openai_stream_close(a->stream);
    job_free(a->j);
    buf_free(&a->chunk);
    mem_free(a);
}

/* From here on a client that goes away finds nothing. */
static void let_go(ask *a)
{
    pthread_mutex_lock(&a->s->lock);
    http_set_data(a->c, serve_held);
    pthread_mutex_unlock(&a->s->lock);
}

static void refuse(ask *a, int status, const char *text)
{
    let_go(a);
    serve_error(a->s, a->c, status, NULL, NULL, NULL, "%s", text);
    ask_free(a);
}

/* ---- large and small ------------------------------------------------------------------------- */

/* Bytes of the answer, roughly: before its task runs those that stand for the prompts. */
static size_t about(const job *j)
{
    enum { ENTRY = 64 }; /* one log-probability */
    const bool chat = j->kind == JOB_CHAT;
    const int32_t k =
        !chat && j->echo && j->logprobs > j->prompt_logprobs ? j->logprobs : j->prompt_logprobs;
    size_t n = 0;
    if (j->http != 200) return 0;
    for (size_t i = 0; i < j->n_prompt; i++) n += j->prompt[i].n_token * (size_t)(k + 1) * ENTRY;
    if (!chat) n *= (size_t)j->s.n;
    for (size_t i = 0; i < j->n_choice; i++) {
        const job_choice *c = &j->choice[i];
        n += c->text.len + 8 * c->tokens.n + ENTRY * c->tokens.n_tops;
    }
    return n;
}

/* The model for a lane. On SERVICE_CPU no tokens are made of a large text, which a short request
 * can have by a chat template of its own. */
static job_model model_of(const serve *s, service_lane lane, bool *too_long)
{
    job_model m = s->session.facts;
    *too_long = false;
    if (lane == SERVICE_LARGE) return m;
    m.text_max = LARGE;
    m.too_long = too_long;
    return m;
}

static service_lane lane_of(const http_call *c)
{
    size_t len;
    http_body(c, &len);
    return len > LARGE ? SERVICE_LARGE : SERVICE_CPU;
}

/* ---- the end --------------------------------------------------------------------------------- */

static void count(ask *a, int status)
{
    char more[96];
    size_t prompt = 0, new = 0;
    for (size_t i = 0; i < a->j->n_prompt; i++) prompt += a->j->prompt[i].n_token;
    for (size_t i = 0; i < a->j->n_choice; i++) new += a->j->choice[i].tokens.n;
    snprintf(more, sizeof more, "%.3f s, %zu prompt tokens, %zu new%s", clock_seconds() - a->since,
             prompt, new, a->stream ? ", streamed" : "");
    serve_count_more(a->s, a->c, status, more);
}

/* The answer could not be written. */
static void fail_answer(ask *a, corun_status st)
{
    if (st == CORUN_ECAPACITY)
        job_fail(a->j, 500, NULL, "the answer is larger than %zu bytes", JOB_MAX_ROW);
    job_fail(a->j, 500, NULL, "%s", err_text());
}

/* Writes and sends a whole answer, or the error that the job ended with. */
static void send_whole(void *arg)
{
    ask *a = arg;
    job *j = a->j;
    const job_model *m = &a->s->session.facts;
    buf b;
    buf_init(&b, JOB_MAX_ROW);
    let_go(a);
    if (http_is_gone(a->c)) job_fail(j, 499, NULL, "the client has gone");
    corun_status st = openai_write_body(j, m, a->created, &b);
    if (st != CORUN_OK) {
        fail_answer(a, st);
        buf_reset(&b);
        st = openai_write_body(j, m, a->created, &b);
    }
    if (st != CORUN_OK) {
        serve_error(a->s, a->c, 500, NULL, NULL, NULL, "%s", err_text());
    } else {
        count(a, j->http);
        serve_send(a->c, j->http, NULL, NULL, b.data, b.len);
    }
    buf_free(&b);
    ask_free(a);
}

static void finish_stream(ask *a, bool whole)
{
    if (whole) http_stream_put(a->c, a->chunk.data, a->chunk.len);
    let_go(a);
    bool lost = http_no_memory(a->c) || (!whole && a->j->http == 200);
    count(a, lost ? 500 : a->j->http);
    if (whole)
        http_stream_end(a->c);
    else
        http_stream_break(a->c); /* so that nobody takes it for an answer */
    ask_free(a);
}

static void end_stream(ask *a)
{
    buf_reset(&a->chunk);
    finish_stream(a, openai_stream_end(a->stream, &a->chunk) == CORUN_OK);
}

static void begin_stream(ask *a)
{
    a->begun = true;
    serve_stream(a->c, "text/event-stream; charset=utf-8");
}

/* A stream that no event was given to: all of it, as one piece. */
static void send_late(void *arg)
{
    ask *a = arg;
    corun_status st = openai_stream_end(a->stream, &a->chunk);
    if (st != CORUN_OK) {
        fail_answer(a, st);
        send_whole(a);
        return;
    }
    begin_stream(a);
    finish_stream(a, true);
}

static void on_done(task *t)
{
    ask *a = t->ctx;
    if (a->begun) {
        end_stream(a);
        return;
    }
    void (*send)(void *arg) = a->stream && a->j->http == 200 ? send_late : send_whole;
    service_lane lane = about(a->j) > LARGE ? SERVICE_LARGE : SERVICE_CPU;
    if (service_work(a->s->service, lane, send, a) != CORUN_OK) send(a);
}

static corun_status on_event(task *t, size_t prompt, const corun_event *e)
{
    ask *a = t->ctx;
    if (a->broken) return CORUN_OK;
    buf_reset(&a->chunk);
    TRY(openai_stream_event(a->stream, prompt, e, &a->chunk));
    if (!a->chunk.len) return CORUN_OK;
    if (!a->begun) begin_stream(a);
    if (http_stream_put(a->c, a->chunk.data, a->chunk.len)) return CORUN_OK;
    if (http_no_memory(a->c)) FAIL(CORUN_ENOMEM, "no memory for the stream");
    a->broken = true;
    service_cancel(a->s->service, t);
    return CORUN_OK;
}

/* ---- the beginning --------------------------------------------------------------------------- */

/* Tokens that the request may come to: prompts and answers. A limit never shortens an answer. */
static void check_tokens(const serve *s, job *j)
{
    int64_t total = 0;
    for (size_t i = 0; i < j->n_prompt; i++)
        total += (int64_t)j->prompt[i].n_token + (int64_t)j->prompt[i].max_tokens * j->s.n;
    if (s->max_tokens && total > s->max_tokens)
        job_fail(j, 400, "max_tokens",
                 "max_tokens: the request may come to %lld tokens, prompts and answers together; "
                 "this server takes at most %lld (--max-tokens)",
                 (long long)total, (long long)s->max_tokens);
}

static corun_status prepare(ask *a, const job_model *m)
{
    size_t len;
    const char *body = http_body(a->c, &len);
    TRY(openai_http_open(&a->j, a->kind, body, len));
    TRY(openai_prepare(a->j, m));
    if (a->j->http == 200) check_tokens(a->s, a->j);
    if (a->j->http != 200) return CORUN_OK;
    a->t = (task){.j = a->j, .ctx = a, .done = on_done};
    if (!a->j->stream) return CORUN_OK;
    if (about(a->j) <= LATE) a->t.event = on_event;
    return openai_stream_open(&a->stream, a->j, &a->s->session.facts, a->created);
}

/* Hands the task in, unless the client has gone. Afterwards it may be gone itself. */
static void hand_in(ask *a)
{
    serve *s = a->s;
    corun_status st = CORUN_OK;
    pthread_mutex_lock(&s->lock);
    bool gone = a->gone;
    if (!gone) {
        a->taken = true;
        st = service_submit(s->service, &a->t);
        if (st != CORUN_OK) a->taken = false;
    }
    pthread_mutex_unlock(&s->lock);
    if (gone)
        refuse(a, 499, "the client has gone");
    else if (st != CORUN_OK)
        refuse(a, s->drain || service_failure(s->service) ? 503 : 429, err_text());
}

static void begin(void *arg)
{
    ask *a = arg;
    bool too_long;
    if (http_is_gone(a->c) || service_aborts(a->s->service)) {
        refuse(a, http_is_gone(a->c) ? 499 : 503, "the server was stopped before the answer");
        return;
    }
    const job_model m = model_of(a->s, a->lane, &too_long);
    corun_status st = prepare(a, &m);
    if (too_long) {
        job_free(a->j);
        a->j = NULL;
        a->lane = SERVICE_LARGE;
        if (service_work(a->s->service, a->lane, begin, a) != CORUN_OK) refuse(a, 429, err_text());
    } else if (st != CORUN_OK) {
        refuse(a, 500, err_text());
    } else if (a->j->http != 200) {
        send_whole(a);
    } else {
        hand_in(a);
    }
}

static void take(serve *s, http_call *c, job_kind kind)
{
    ask *a;
    if (!MEM_NEW(a, 1)) {
        serve_error(s, c, 503, NULL, NULL, NULL, "%s", err_text());
        return;
    }
    a->s = s;
    a->c = c;
    a->lane = lane_of(c);
    a->kind = kind;
    a->created = (int64_t)time(NULL);
    a->since = clock_seconds();
    buf_init(&a->chunk, JOB_MAX_ROW);
    http_set_data(c, a);
    if (service_work(s->service, a->lane, begin, a) != CORUN_OK) refuse(a, 429, err_text());
}

static void completions(serve *s, http_call *c) { take(s, c, JOB_COMPLETION); }

static void chat(serve *s, http_call *c) { take(s, c, JOB_CHAT); }

static void on_gone(serve *s, http_call *c)
{
    pthread_mutex_lock(&s->lock);
    void *data = http_data(c);
    if (data && data != serve_held) {
        ask *a = data;
        a->gone = true;
        if (a->taken) service_cancel(s->service, &a->t);
    }
    pthread_mutex_unlock(&s->lock);
    if (!data) serve_reply(s, c, 499, NULL, "", 0);
}

/* ---- texts ----------------------------------------------------------------------------------- */

typedef corun_status text_fn(job **j, const job_model *m, const char *body, size_t len, buf *out);

/* False: it is for SERVICE_LARGE. */
static bool answer_text(serve *s, http_call *c, service_lane lane, text_fn *fn)
{
    bool too_long;
    const job_model m = model_of(s, lane, &too_long);
    size_t len;
    const char *body = http_body(c, &len);
    job *j = NULL;
    buf b;
    jw w;
    buf_init(&b, JOB_MAX_ROW);
    corun_status st = fn(&j, &m, body, len, &b);
    int status = j ? j->http : 500;
    if (st == CORUN_OK && status != 200) {
        buf_reset(&b);
        jw_init(&w, &b);
        job_put_error(j, &m, &w);
    }
    job_free(j);
    if (st == CORUN_OK) {
        serve_reply_json(s, c, status, &b);
        return true;
    }
    buf_free(&b);
    if (too_long) return false;
    serve_error(s, c, 500, NULL, NULL, NULL, "%s", err_text());
    return true;
}

static void large_tokenize(serve *s, http_call *c)
{
    answer_text(s, c, SERVICE_LARGE, openai_tokenize);
}

static void small_tokenize(serve *s, http_call *c)
{
    if (!answer_text(s, c, SERVICE_CPU, openai_tokenize))
        serve_later(s, c, SERVICE_LARGE, large_tokenize);
}

static void do_detokenize(serve *s, http_call *c)
{
    answer_text(s, c, SERVICE_LARGE, openai_detokenize); /* it makes no tokens */
}

static void tokenize(serve *s, http_call *c)
{
    service_lane lane = lane_of(c);
    serve_later(s, c, lane, lane == SERVICE_LARGE ? large_tokenize : small_tokenize);
}

static void detokenize(serve *s, http_call *c) { serve_later(s, c, lane_of(c), do_detokenize); }

const serve_route serve_openai_routes[] = {
    {"POST", "/v1/completions", false, NULL, completions, on_gone},
    {"POST", "/v1/chat/completions", false, NULL, chat, on_gone},
    {"POST", "/tokenize", false, NULL, tokenize, NULL},
    {"POST", "/detokenize", false, NULL, detokenize, NULL},
    {NULL, NULL, false, NULL, NULL, NULL},
};
