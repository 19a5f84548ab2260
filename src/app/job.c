/* job.c - owns a request from its line to its row. Invariant: events only add; what the row says
 * does not depend on the order in which the events of different choices came. */
#include "app/job.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

corun_status job_new(job **out, uint64_t line_no)
{
    job *j;
    if (!MEM_NEW(j, 1)) return CORUN_ENOMEM;
    j->line_no = line_no;
    j->http = 200;
    j->logprobs = j->prompt_logprobs = -1;
    *out = j;
    return CORUN_OK;
}

void job_tokens_free(job_tokens *t)
{
    mem_free(t->id);
    mem_free(t->logprob);
    mem_free(t->n_top);
    mem_free(t->top_id);
    mem_free(t->top_logprob);
    *t = (job_tokens){0};
}

void job_release(job *j)
{
    for (size_t i = 0; i < j->n_prompt && j->prompt; i++) {
        mem_free(j->prompt[i].token);
        job_tokens_free(&j->prompt[i].logprobs);
    }
    for (size_t i = 0; i < j->n_choice && j->choice; i++) {
        buf_free(&j->choice[i].text);
        job_tokens_free(&j->choice[i].tokens);
        mem_free(j->choice[i].failure);
    }
    mem_free(j->prompt);
    mem_free(j->choice);
    j->prompt = NULL;
    j->choice = NULL;
    j->n_prompt = j->n_choice = 0;
    for (size_t i = 0; i < j->n_owned; i++) mem_free(j->owned[i]);
    j->n_owned = 0;
    json_decref(j->line);
    j->line = NULL;
    j->custom_id = j->body = NULL;
}

void job_free(job *j)
{
    if (!j) return;
    job_release(j);
    mem_free(j->message);
    mem_free(j);
}

void job_fail(job *j, int http, const char *param, const char *fmt, ...)
{
    if (j->http != 200) return;
    char text[2 * ERR_TEXT_MAX];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    j->http = http;
    j->param = param;
    j->type = http >= 500 ? "server_error" : "invalid_request_error";
    j->message = mem_dup(text, strlen(text), "error message");
}

corun_status job_restore(job *j, int http, const char *message, size_t len)
{
    job_release(j);
    mem_free(j->message);
    j->message = NULL;
    j->http = http;
    if (len && !(j->message = mem_dup(message, len, "error message"))) return CORUN_ENOMEM;
    return CORUN_OK;
}

void job_recover_id(job *j, const char *line, size_t len)
{
    json_t *o = json_read_rough(line, len), *id = json_object_get(o, "custom_id");
    if (!json_is_string(id)) {
        json_decref(o);
        return;
    }
    j->line = o;
    j->custom_id = id;
}

void *job_keep(job *j, void *p)
{
    if (!p) return NULL;
    if (j->n_owned == sizeof j->owned / sizeof *j->owned) {
        mem_free(p);
        err_set(CORUN_EINTERNAL, "a job keeps more than %zu arrays", j->n_owned);
        return NULL;
    }
    return j->owned[j->n_owned++] = p;
}

corun_status job_encode(const job_model *m, const char *text, size_t len, unsigned flags,
                        int32_t **ids, size_t *n)
{
    size_t cap = len < 1 << 20 ? len + 16 : 1 << 20;
    if (m->text_max && len > m->text_max) {
        *m->too_long = true;
        FAIL(CORUN_EINTERNAL, "a text of more than %zu bytes", m->text_max);
    }
    for (int attempt = 0; attempt < 2; attempt++) {
        if (!(*ids = mem_alloc(cap, sizeof **ids, "token ids"))) return CORUN_ENOMEM;
        corun_status st = m->encode(m->ctx, text, len, flags, *ids, cap, n);
        if (st == CORUN_OK) return CORUN_OK;
        mem_free(*ids);
        *ids = NULL;
        if (st != CORUN_ECAPACITY) return st;
        cap = *n;
    }
    FAIL(CORUN_EINTERNAL, "the tokenizer asks for more room twice");
}

corun_status job_decode(const job_model *m, const int32_t *ids, size_t n, unsigned flags, buf *b)
{
    char small[256], *text = small;
    size_t len;
    corun_status st = m->decode(m->ctx, ids, n, flags, small, sizeof small, &len);
    if (st == CORUN_ECAPACITY) {
        if (!(text = mem_alloc(len, 1, "text"))) return CORUN_ENOMEM;
        st = m->decode(m->ctx, ids, n, flags, text, len, &len);
    }
    if (st == CORUN_OK) buf_put(b, text, len);
    if (text != small) mem_free(text);
    return st != CORUN_OK ? st : buf_status(b);
}

corun_status job_start(job *j)
{
    j->n_choice = j->n_prompt * (size_t)j->s.n;
    if (!MEM_NEW(j->choice, j->n_choice)) {
        j->n_choice = 0;
        return CORUN_ENOMEM;
    }
    j->n_open = j->n_choice;
    for (size_t i = 0; i < j->n_choice; i++) buf_init(&j->choice[i].text, JOB_MAX_ROW);
    for (size_t i = 0; i < j->n_prompt; i++) j->prompt[i].n_open = (size_t)j->s.n;
    return CORUN_OK;
}

void job_request(const job *j, size_t prompt, corun_request *out)
{
    const job_prompt *p = &j->prompt[prompt];
    *out = (corun_request){.tokens = p->token, .n_token = p->n_token, .sampling = j->s};
    out->sampling.seed = p->seed;
    out->sampling.max_tokens = p->max_tokens;
}

static bool resize(void **p, size_t n, size_t size)
{
    void *q = mem_realloc(*p, n, size, "tokens of an answer");
    if (q) *p = q;
    return q != NULL;
}

/* A capacity of at least need that is worth a move. */
static size_t more(size_t cap, size_t need)
{
    size_t want = cap ? 2 * cap : 32;
    return want < need ? need : want;
}

static bool grow_tokens(job_tokens *t)
{
    if (t->n < t->cap) return true;
    size_t want = more(t->cap, t->n + 1);
    bool ok = resize((void **)&t->id, want, sizeof *t->id) &&
              resize((void **)&t->logprob, want, sizeof *t->logprob) &&
              resize((void **)&t->n_top, want, sizeof *t->n_top);
    if (ok) t->cap = want;
    return ok;
}

static bool grow_tops(job_tokens *t, size_t need)
{
    if (t->n_tops + need <= t->cap_tops) return true;
    size_t want = more(t->cap_tops, t->n_tops + need);
    bool ok = resize((void **)&t->top_id, want, sizeof *t->top_id) &&
              resize((void **)&t->top_logprob, want, sizeof *t->top_logprob);
    if (ok) t->cap_tops = want;
    return ok;
}

corun_status job_tokens_add(job_tokens *t, int32_t id, float logprob, const corun_event *tops)
{
    int32_t n_top = tops ? tops->n_top : 0;
    if (!grow_tokens(t) || !grow_tops(t, (size_t)n_top)) return CORUN_ENOMEM;
    t->id[t->n] = id;
    t->logprob[t->n] = logprob;
    t->n_top[t->n++] = n_top;
    for (int32_t i = 0; i < n_top; i++) {
        t->top_id[t->n_tops] = tops->top_id[i];
        t->top_logprob[t->n_tops++] = tops->top_logprob[i];
    }
    return CORUN_OK;
}

static corun_status prompt_event(job_prompt *p, const corun_event *e)
{
    job_tokens *t = &p->logprobs;
    if (t->n == 0) TRY(job_tokens_add(t, p->token[0], NAN, NULL));
    if (e->index != (int32_t)t->n || t->n >= p->n_token)
        FAIL(CORUN_EINTERNAL, "log-probability of prompt token %d came after that of %zu", e->index,
             t->n - 1);
    return job_tokens_add(t, e->token, e->logprob, e);
}

corun_status job_event(job *j, size_t prompt, const corun_event *e)
{
    job_prompt *p = &j->prompt[prompt];
    if (e->kind == CORUN_EVENT_PROMPT) return prompt_event(p, e);
    if (e->sample < 0 || e->sample >= j->s.n)
        FAIL(CORUN_EINTERNAL, "an event of sample %d, of %d samples", e->sample, j->s.n);
    job_choice *c = &j->choice[prompt * (size_t)j->s.n + (size_t)e->sample];
    if (c->ended) FAIL(CORUN_EINTERNAL, "an event of a sample that has ended");
    if (e->kind == CORUN_EVENT_TOKEN) {
        bool lp = j->s.logprobs >= 0;
        TRY(job_tokens_add(&c->tokens, e->token, lp ? e->logprob : NAN, lp ? e : NULL));
    }
    if (e->kind == CORUN_EVENT_TOKEN || e->kind == CORUN_EVENT_DONE)
        buf_put(&c->text, e->text, e->text_len);
    TRY(buf_status(&c->text));
    if (e->kind == CORUN_EVENT_DONE) {
        c->finish = e->finish;
        c->stop_index = e->stop_index;
        c->stop_token = e->stop_token;
        c->n_new = e->n_new;
    } else if (e->kind == CORUN_EVENT_FAILED) {
        c->failed = true;
        if (!(c->failure = mem_dup(e->text, e->text_len, "error message"))) return CORUN_ENOMEM;
    } else {
        return CORUN_OK;
    }
    /* A prompt that is only scored ends once, for all its samples. */
    size_t n = p->max_tokens == 0 ? (size_t)j->s.n : 1;
    for (size_t i = 1; i < n; i++) {
        c[i].finish = c->finish;
        c[i].stop_index = c->stop_index;
        c[i].stop_token = c->stop_token;
        c[i].ended = true;
    }
    c->ended = true;
    p->n_open -= n;
    j->n_open -= n;
    if (j->n_open == 0)
        for (size_t i = 0; i < j->n_choice; i++)
            if (j->choice[i].failed) job_fail(j, 500, NULL, "%s", j->choice[i].failure);
    return CORUN_OK;
}

bool job_done(const job *j) { return j->http != 200 || j->n_open == 0; }

void job_put_error(const job *j, const job_model *m, jw *w)
{
    jw_open(w, '{');
    jw_key(w, "error");
    jw_open(w, '{');
    jw_field_str(w, "message", j->message ? j->message : "no memory for the message");
    jw_field_str(w, "type", j->type);
    jw_field_str(w, "param", j->param);
    jw_field_str(w, "code", j->code);
    jw_close(w, '}');
    jw_field_str(w, "system_fingerprint", m->fingerprint);
    jw_close(w, '}');
}

corun_status job_write_error(const job *j, const job_model *m, buf *out)
{
    char hex[33], id[64];
    jw w;
    jw_init(&w, out);
    digest_hex(j->id, hex);
    jw_open(&w, '{');
    snprintf(id, sizeof id, "batch_req_%s", hex);
    jw_field_str(&w, "id", id);
    jw_key(&w, "custom_id");
    if (j->custom_id) {
        jw_value(&w, j->custom_id);
    } else {
        jw_null(&w);
        jw_field_uint(&w, "line", j->line_no);
    }
    jw_key(&w, "response");
    jw_open(&w, '{');
    jw_field_int(&w, "status_code", j->http);
    snprintf(id, sizeof id, "req_%s", hex);
    jw_field_str(&w, "request_id", id);
    jw_key(&w, "body");
    job_put_error(j, m, &w);
    jw_close(&w, '}');
    jw_field_null(&w, "error");
    jw_close(&w, '}');
    buf_putc(out, '\n');
    return buf_status(out);
}

void job_chars_add(job_chars *c, const char *data, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        unsigned b = (unsigned char)data[i];
        if (c->need) {
            if (b >= c->lo && b <= c->hi) {
                c->lo = 0x80;
                c->hi = 0xbf;
                if (--c->need == 0) c->n++;
                continue;
            }
            c->n++; /* the part so far is one U+FFFD */
            c->need = 0;
        }
        c->lo = b == 0xe0 ? 0xa0 : b == 0xf0 ? 0x90 : 0x80;
        c->hi = b == 0xed ? 0x9f : b == 0xf4 ? 0x8f : 0xbf;
        if (b >= 0xc2 && b <= 0xdf)
            c->need = 1;
        else if (b >= 0xe0 && b <= 0xef)
            c->need = 2;
        else if (b >= 0xf0 && b <= 0xf4)
            c->need = 3;
        else
            c->n++;
    }
}
