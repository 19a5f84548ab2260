/* openai_row.c - owns the parts of answers: lists of tokens, reasons, figures. Invariant: what is
 * written for a token depends on the token and the tokens before it only. */
#include "app/openai_row.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

void row_init(row *r, const job *j, const job_model *m, buf *out)
{
    *r = (row){.j = j, .m = m};
    jw_init(&r->w, out);
    buf_init(&r->text, JOB_MAX_ROW);
    buf_init(&r->other, JOB_MAX_ROW);
    buf_init(&r->facts, JOB_MAX_ROW);
}

void row_free(row *r)
{
    buf_free(&r->text);
    buf_free(&r->other);
    buf_free(&r->facts);
}

part row_part(const job_tokens *t, size_t n_added, bool special_counts)
{
    return (part){.t = t, .to = t->n, .n_added = n_added, .special_counts = special_counts};
}

void row_id(const job *j, char out[64])
{
    char hex[33];
    digest_hex(j->id, hex);
    snprintf(out, 64, "%s-%s", j->kind == JOB_CHAT ? "chatcmpl" : "cmpl", hex);
}

/* The text of one token, as log-probability lists show it, into b. */
static corun_status token_text(const row *r, int32_t id, buf *b)
{
    buf_reset(b);
    if (r->j->literal_ids) {
        buf_printf(b, "token_id:%d", id);
        return buf_status(b);
    }
    return job_decode(r->m, &id, 1, 0, b);
}

static corun_status token_bytes(const row *r, int32_t id, char out[1024], size_t *n)
{
    return r->m->token_bytes(r->m->ctx, id, out, 1024, n);
}

/* True when skip_special_tokens leaves this token out of texts. */
static corun_status is_silent(row *r, int32_t id, bool *silent)
{
    *silent = false;
    if (!r->j->s.skip_special) return CORUN_OK;
    buf_reset(&r->other);
    TRY(job_decode(r->m, &id, 1, CORUN_TEXT_SKIP_SPECIAL, &r->other));
    *silent = r->other.len == 0;
    return CORUN_OK;
}

static void put_text(row *r, const buf *b) { jw_str(&r->w, b->data ? b->data : "", b->len); }

static void put_logprob(row *r, float v)
{
    if (isnan(v))
        jw_null(&r->w);
    else
        jw_logprob(&r->w, v);
}

/* ---- completions ------------------------------------------------------------------------- */

/* One entry of top_logprobs: {text: log-probability}, the likeliest first, at most k of them and
 * the token itself. Two ids of one text are one key, with the larger value. */
static corun_status put_top_object(row *r, const job_tokens *t, size_t i, size_t top, int32_t k)
{
    buf seen[CORUN_MAX_TOP + 1];
    int32_t n = 0, n_top = t->n_top[i] < k ? t->n_top[i] : k;
    corun_status st = CORUN_OK;
    jw_open(&r->w, '{');
    for (int32_t c = 0; c <= n_top && st == CORUN_OK; c++) {
        int32_t id = c < n_top ? t->top_id[top + (size_t)c] : t->id[i];
        float lp = c < n_top ? t->top_logprob[top + (size_t)c] : t->logprob[i];
        buf *b = &seen[n];
        buf_init(b, JOB_MAX_ROW);
        st = token_text(r, id, b);
        bool twice = false;
        for (int32_t p = 0; p < n; p++)
            twice |= seen[p].len == b->len && memcmp(seen[p].data, b->data, b->len) == 0;
        if (st == CORUN_OK && !twice) {
            jw_key_str(&r->w, b->data ? b->data : "", b->len);
            jw_logprob(&r->w, lp);
            n++;
        } else {
            buf_free(b);
        }
    }
    jw_close(&r->w, '}');
    while (n > 0) buf_free(&seen[--n]);
    return st;
}

/* Start of each token in characters of the choice's text (before any cut at a stop string). */
static corun_status put_offsets(row *r, const part *p, size_t n_part, job_chars *chars)
{
    jw_key(&r->w, "text_offset");
    jw_open(&r->w, '[');
    for (size_t k = 0; k < n_part; k++) {
        for (size_t i = p[k].from; i < p[k].to; i++) {
            char bytes[1024];
            size_t n;
            bool silent;
            jw_uint(&r->w, chars->n);
            TRY(is_silent(r, p[k].t->id[i], &silent));
            if (i < p[k].n_added || (silent && !p[k].special_counts)) continue;
            TRY(token_bytes(r, p[k].t->id[i], bytes, &n));
            job_chars_add(chars, bytes, n);
        }
    }
    jw_close(&r->w, ']');
    return CORUN_OK;
}

corun_status row_completion_logprobs(row *r, const part *p, size_t n_part, job_chars *chars)
{
    const int32_t k = r->j->logprobs;
    jw_open(&r->w, '{');
    jw_key(&r->w, "tokens");
    jw_open(&r->w, '[');
    for (size_t a = 0; a < n_part; a++)
        for (size_t i = p[a].from; i < p[a].to; i++) {
            TRY(token_text(r, p[a].t->id[i], &r->text));
            put_text(r, &r->text);
        }
    jw_close(&r->w, ']');
    jw_key(&r->w, "token_logprobs");
    jw_open(&r->w, '[');
    for (size_t a = 0; a < n_part; a++)
        for (size_t i = p[a].from; i < p[a].to; i++) put_logprob(r, p[a].t->logprob[i]);
    jw_close(&r->w, ']');
    jw_key(&r->w, "top_logprobs");
    if (k == 0) {
        jw_null(&r->w);
    } else {
        jw_open(&r->w, '[');
        for (size_t a = 0; a < n_part; a++) {
            size_t top = p[a].top;
            for (size_t i = p[a].from; i < p[a].to; top += (size_t)p[a].t->n_top[i++]) {
                if (isnan(p[a].t->logprob[i]))
                    jw_null(&r->w);
                else
                    TRY(put_top_object(r, p[a].t, i, top, k));
            }
        }
        jw_close(&r->w, ']');
    }
    TRY(put_offsets(r, p, n_part, chars));
    jw_close(&r->w, '}');
    return CORUN_OK;
}

/* A prompt of one token has no log-probability at all: only its own entry. */
corun_status row_echo_part(const job_prompt *p, job_tokens *one, part *out)
{
    const job_tokens *t = &p->logprobs;
    if (t->n == 0) {
        TRY(job_tokens_add(one, p->token[0], NAN, NULL));
        t = one;
    }
    *out = row_part(t, p->n_added, p->text != NULL);
    return CORUN_OK;
}

/* ---- chat -------------------------------------------------------------------------------- */

static corun_status put_chat_token(row *r, int32_t id, float lp)
{
    char bytes[1024];
    size_t n;
    TRY(token_text(r, id, &r->text));
    jw_key(&r->w, "token");
    put_text(r, &r->text);
    jw_key(&r->w, "logprob");
    jw_logprob(&r->w, lp);
    TRY(token_bytes(r, id, bytes, &n));
    jw_key(&r->w, "bytes");
    jw_open(&r->w, '[');
    for (size_t i = 0; i < n; i++) jw_int(&r->w, (unsigned char)bytes[i]);
    jw_close(&r->w, ']');
    return CORUN_OK;
}

corun_status row_chat_logprobs(row *r, const part *p)
{
    const job_tokens *t = p->t;
    size_t top = p->top;
    jw_open(&r->w, '{');
    jw_key(&r->w, "content");
    jw_open(&r->w, '[');
    for (size_t i = p->from; i < p->to; top += (size_t)t->n_top[i++]) {
        jw_open(&r->w, '{');
        TRY(put_chat_token(r, t->id[i], t->logprob[i]));
        jw_key(&r->w, "top_logprobs");
        jw_open(&r->w, '[');
        for (int32_t c = 0; c < t->n_top[i] && c < r->j->logprobs; c++) {
            jw_open(&r->w, '{');
            TRY(put_chat_token(r, t->top_id[top + (size_t)c], t->top_logprob[top + (size_t)c]));
            jw_close(&r->w, '}');
        }
        jw_close(&r->w, ']');
        jw_close(&r->w, '}');
    }
    jw_close(&r->w, ']');
    jw_close(&r->w, '}');
    return CORUN_OK;
}

/* ---- both -------------------------------------------------------------------------------- */

/* [null, {id: {logprob, rank, decoded_token}}, ...]; the rank is null beyond those asked for. */
static corun_status put_prompt_logprobs(row *r, const job_prompt *p)
{
    const job_tokens *t = &p->logprobs;
    size_t top = 0;
    jw_key(&r->w, "prompt_logprobs");
    jw_open(&r->w, '[');
    if (t->n == 0) jw_null(&r->w);
    for (size_t i = 0; i < t->n; top += (size_t)t->n_top[i++]) {
        if (i == 0) {
            jw_null(&r->w);
            continue;
        }
        bool own = false;
        int32_t k = t->n_top[i] < r->j->prompt_logprobs ? t->n_top[i] : r->j->prompt_logprobs;
        jw_open(&r->w, '{');
        for (int32_t c = 0; c <= k; c++) {
            int32_t id = c < k ? t->top_id[top + (size_t)c] : t->id[i];
            if (c == k && own) break;
            own |= id == t->id[i];
            char key[16];
            snprintf(key, sizeof key, "%d", id);
            jw_key(&r->w, key);
            jw_open(&r->w, '{');
            jw_key(&r->w, "logprob");
            jw_logprob(&r->w, c < k ? t->top_logprob[top + (size_t)c] : t->logprob[i]);
            jw_key(&r->w, "rank");
            if (c < k)
                jw_int(&r->w, c + 1);
            else
                jw_null(&r->w);
            TRY(token_text(r, id, &r->text));
            jw_key(&r->w, "decoded_token");
            put_text(r, &r->text);
            jw_close(&r->w, '}');
        }
        jw_close(&r->w, '}');
    }
    jw_close(&r->w, ']');
    return CORUN_OK;
}

corun_status row_prompt_logprobs(row *r, const job_prompt *p)
{
    buf *out = r->w.b;
    const size_t from = out->len;
    if (r->once == p) {
        buf_put(out, r->facts.data, r->facts.len);
        return buf_status(out);
    }
    TRY(put_prompt_logprobs(r, p));
    TRY(buf_status(out));
    if (r->j->kind == JOB_CHAT || r->j->s.n == 1) return CORUN_OK;
    buf_reset(&r->facts);
    buf_put(&r->facts, out->data + from, out->len - from);
    TRY(buf_status(&r->facts));
    r->once = p;
    return CORUN_OK;
}

void row_ids(row *r, const char *key, const int32_t *id, size_t n)
{
    jw_key(&r->w, key);
    jw_open(&r->w, '[');
    for (size_t i = 0; i < n; i++) jw_int(&r->w, id[i]);
    jw_close(&r->w, ']');
}

void row_finish(row *r, const job_choice *c)
{
    jw_field_str(&r->w, "finish_reason", c->finish == CORUN_FINISH_STOP ? "stop" : "length");
    jw_key(&r->w, "stop_reason");
    if (c->finish == CORUN_FINISH_STOP && c->stop_index >= 0 &&
        (size_t)c->stop_index < r->j->s.n_stop)
        jw_str(&r->w, r->j->s.stop[c->stop_index].data, r->j->s.stop[c->stop_index].len);
    else if (c->finish == CORUN_FINISH_STOP && c->stop_token >= 0)
        jw_int(&r->w, c->stop_token);
    else
        jw_null(&r->w);
}

/* The prompt's text in front of a completion. */
corun_status row_echo(row *r, const job_prompt *p, buf *b)
{
    if (p->text) {
        buf_put(b, p->text, p->text_len);
        return buf_status(b);
    }
    return job_decode(r->m, p->token, p->n_token,
                      r->j->s.skip_special ? CORUN_TEXT_SKIP_SPECIAL : 0, b);
}

void row_seed(row *r, size_t choice)
{
    const size_t n = (size_t)r->j->s.n;
    jw_field_uint(&r->w, "seed",
                  corun_seed_sample(r->j->prompt[choice / n].seed, (int32_t)(choice % n)));
}

void row_usage(row *r, uint64_t n_new)
{
    uint64_t prompt = 0;
    for (size_t i = 0; i < r->j->n_prompt; i++) prompt += r->j->prompt[i].n_token;
    jw_key(&r->w, "usage");
    jw_open(&r->w, '{');
    jw_field_uint(&r->w, "prompt_tokens", prompt);
    jw_field_uint(&r->w, "completion_tokens", n_new);
    jw_field_uint(&r->w, "total_tokens", prompt + n_new);
    jw_close(&r->w, '}');
}

/* Fields of the request that a row names only where they were given: with them and the ids of its
 * prompt the row can be run again. */
static void put_given(row *r)
{
    static const char *const field[] = {"include_stop_str_in_output",
                                        "skip_special_tokens",
                                        "stop",
                                        "stop_token_ids",
                                        "logit_bias",
                                        "allowed_token_ids",
                                        "bad_words"};
    jw *w = &r->w;
    const int32_t k[] = {r->j->logprobs, r->j->prompt_logprobs};
    for (size_t i = 0; i < 2; i++)
        if (k[i] >= 0) {
            jw_field_int(w, i ? "prompt_logprobs" : "logprobs", k[i]);
        }
    if (r->j->echo) {
        jw_field_bool(w, "echo", true);
    }
    for (size_t i = 0; i < sizeof field / sizeof *field; i++) {
        const json_t *v = json_object_get(r->j->body, field[i]);
        if (!v || json_is_null(v)) continue;
        jw_key(w, field[i]);
        jw_value(w, v);
    }
}

/* The effective sampling parameters and the seed. */
void row_sampling(row *r)
{
    const corun_sampling *s = &r->j->s;
    jw *w = &r->w;
    jw_key(w, "corun");
    jw_open(w, '{');
    jw_field_uint(w, "seed", r->j->prompt[0].seed);
    jw_key(w, "sampling");
    jw_open(w, '{');
    jw_field_double(w, "temperature", s->temperature);
    jw_field_double(w, "top_p", s->top_p);
    jw_field_int(w, "top_k", s->top_k);
    jw_field_double(w, "min_p", s->min_p);
    jw_field_double(w, "repetition_penalty", s->repetition_penalty);
    jw_field_double(w, "presence_penalty", s->presence_penalty);
    jw_field_double(w, "frequency_penalty", s->frequency_penalty);
    bool same = true; /* a default may be cut by the context, for each prompt by its length */
    for (size_t i = 1; i < r->j->n_prompt; i++)
        same &= r->j->prompt[i].max_tokens == r->j->prompt[0].max_tokens;
    jw_key(w, "max_tokens");
    if (!same) jw_open(w, '[');
    for (size_t i = 0; i < (same ? 1 : r->j->n_prompt); i++) jw_int(w, r->j->prompt[i].max_tokens);
    if (!same) jw_close(w, ']');
    jw_field_int(w, "min_tokens", s->min_tokens);
    jw_field_int(w, "n", s->n);
    jw_field_bool(w, "ignore_eos", s->ignore_eos);
    put_given(r);
    jw_close(w, '}');
    jw_close(w, '}');
}
