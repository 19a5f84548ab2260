/* openai_write.c - owns the rows of answered requests. Invariant: a row holds no clock value, no
 * random number and no line number, so equal answers are equal bytes. */
#include <stdio.h>
#include <string.h>

#include "app/openai_row.h"

/* The other choices of the prompt hold the same: seen at the first one where that cannot fit. */
static corun_status put_prompt_part(row *r, const job_prompt *p)
{
    const buf *out = r->w.b;
    const size_t from = out->len, more = r->once == p ? 0 : (size_t)r->j->s.n - 1;
    TRY(row_prompt_logprobs(r, p));
    if ((out->len - from) * more > out->max - out->len)
        FAIL(CORUN_ECAPACITY, "the answer is larger than %zu bytes", out->max);
    return CORUN_OK;
}

static corun_status put_completion_choice(row *r, const job_prompt *p, const job_choice *c)
{
    const job *j = r->j;
    buf_reset(&r->text);
    if (j->echo) TRY(row_echo(r, p, &r->text));
    buf_put(&r->text, c->text.data, c->text.len);
    TRY(buf_status(&r->text));
    jw_key(&r->w, "text");
    jw_str(&r->w, r->text.data ? r->text.data : "", r->text.len);
    jw_key(&r->w, "logprobs");
    if (j->logprobs < 0) {
        jw_null(&r->w);
    } else {
        job_tokens one = {0};
        job_chars chars = {0};
        part parts[2] = {{0}, row_part(&c->tokens, 0, !j->s.skip_special)};
        corun_status st = j->echo ? row_echo_part(p, &one, parts) : CORUN_OK;
        if (st == CORUN_OK)
            st = row_completion_logprobs(r, j->echo ? parts : parts + 1, j->echo ? 2 : 1, &chars);
        job_tokens_free(&one);
        TRY(st);
    }
    row_finish(r, c);
    if (j->prompt_logprobs >= 0) TRY(put_prompt_part(r, p));
    if (j->return_ids) row_ids(r, "prompt_token_ids", p->token, p->n_token);
    return CORUN_OK;
}

static corun_status put_chat_choice(row *r, const job_choice *c)
{
    const job *j = r->j;
    const part all = row_part(&c->tokens, 0, false);
    jw_key(&r->w, "message");
    jw_open(&r->w, '{');
    jw_field_str(&r->w, "role", "assistant");
    jw_key(&r->w, "content");
    buf_reset(&r->text);
    buf_put(&r->text, j->echo_text, j->echo_len);
    buf_put(&r->text, c->text.data, c->text.len);
    TRY(buf_status(&r->text));
    jw_str(&r->w, r->text.data ? r->text.data : "", r->text.len);
    jw_field_null(&r->w, "refusal");
    jw_close(&r->w, '}');
    jw_key(&r->w, "logprobs");
    if (j->logprobs < 0)
        jw_null(&r->w);
    else
        TRY(row_chat_logprobs(r, &all));
    row_finish(r, c);
    return CORUN_OK;
}

static corun_status put_choice(row *r, size_t i)
{
    const job *j = r->j;
    const job_prompt *p = &j->prompt[i / (size_t)j->s.n];
    const job_choice *c = &j->choice[i];
    jw_open(&r->w, '{');
    jw_field_uint(&r->w, "index", i);
    TRY(j->kind == JOB_CHAT ? put_chat_choice(r, c) : put_completion_choice(r, p, c));
    if (j->return_ids) row_ids(r, "token_ids", c->tokens.id, c->tokens.n);
    row_seed(r, i);
    jw_close(&r->w, '}');
    return CORUN_OK;
}

static corun_status put_body(row *r, int64_t created)
{
    const job *j = r->j;
    const bool chat = j->kind == JOB_CHAT;
    char id[64];
    jw *w = &r->w;
    jw_open(w, '{');
    row_id(j, id);
    jw_field_str(w, "id", id);
    jw_field_str(w, "object", chat ? "chat.completion" : "text_completion");
    jw_field_int(w, "created", created);
    jw_key(w, "model");
    jw_value(w, json_object_get(j->body, "model"));
    jw_key(w, "choices");
    jw_open(w, '[');
    for (size_t i = 0; i < j->n_choice; i++) TRY(put_choice(r, i));
    jw_close(w, ']');
    uint64_t n_new = 0;
    for (size_t i = 0; i < j->n_choice; i++) n_new += (uint64_t)j->choice[i].n_new;
    row_usage(r, n_new);
    if (chat && j->prompt_logprobs >= 0) TRY(row_prompt_logprobs(r, j->prompt));
    if (chat && j->return_ids)
        row_ids(r, "prompt_token_ids", j->prompt[0].token, j->prompt[0].n_token);
    jw_field_str(w, "system_fingerprint", r->m->fingerprint);
    row_sampling(r);
    jw_close(w, '}');
    return CORUN_OK;
}

static corun_status put_row(row *r)
{
    char hex[33], id[64];
    jw *w = &r->w;
    digest_hex(r->j->id, hex);
    jw_open(w, '{');
    snprintf(id, sizeof id, "batch_req_%s", hex);
    jw_field_str(w, "id", id);
    jw_key(w, "custom_id");
    jw_value(w, r->j->custom_id);
    jw_key(w, "response");
    jw_open(w, '{');
    jw_field_int(w, "status_code", 200);
    snprintf(id, sizeof id, "req_%s", hex);
    jw_field_str(w, "request_id", id);
    jw_key(w, "body");
    TRY(put_body(r, 0));
    jw_close(w, '}');
    jw_field_null(w, "error");
    jw_close(w, '}');
    return CORUN_OK;
}

corun_status openai_write(const job *j, const job_model *m, buf *out)
{
    if (j->http != 200) return job_write_error(j, m, out);
    row r;
    row_init(&r, j, m, out);
    corun_status st = put_row(&r);
    buf_putc(out, '\n');
    row_free(&r);
    return st != CORUN_OK ? st : buf_status(out);
}

corun_status openai_write_body(const job *j, const job_model *m, int64_t created, buf *out)
{
    row r;
    row_init(&r, j, m, out);
    corun_status st = CORUN_OK;
    if (j->http != 200)
        job_put_error(j, m, &r.w);
    else
        st = put_body(&r, created);
    row_free(&r);
    return st != CORUN_OK ? st : buf_status(out);
}
