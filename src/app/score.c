/* score.c - owns reading and writing of scored lines. Invariant: a row depends on its line and the
 * model only. */
#include "app/score.h"

#include <math.h>
#include <string.h>

static corun_status read_frame(job *j, const char **param)
{
    const char *key;
    json_t *v;
    if (!json_is_object(j->line)) FAIL(CORUN_EINVAL, "the line is no JSON object");
    j->body = j->line;
    json_object_foreach (j->line, key, v) {
        *param = key;
        if (strcmp(key, "custom_id") == 0) {
            if (!json_is_string(v)) FAIL(CORUN_EINVAL, "custom_id: must be a string");
            j->custom_id = v;
        } else if (strcmp(key, "text") != 0 && strcmp(key, "tokens") != 0 &&
                   strcmp(key, "add_special_tokens") != 0 && strcmp(key, "top_logprobs") != 0) {
            FAIL(CORUN_EINVAL, "%.100s: a line has no such field", key);
        }
    }
    *param = NULL;
    if (!json_object_get(j->line, "text") == !json_object_get(j->line, "tokens"))
        FAIL(CORUN_EINVAL, "the line must have one of text and tokens");
    return CORUN_OK;
}

static corun_status open_line(job **out, const char *line, size_t len, uint64_t line_no, bool text)
{
    TRY(job_new(out, line_no));
    job *j = *out;
    const char *param = NULL;
    j->kind = JOB_SCORE;
    j->id = digest_of(line, len);
    corun_status st = CORUN_OK;
    if (text) {
        if (len && line[len - 1] == '\r') len--;
        json_t *s = json_stringn(line, len), *o = json_object();
        if (!s)
            st = err_set(CORUN_EFORMAT, "the line is not UTF-8");
        else if (json_object_set_new(o, "text", s) != 0)
            st = err_set(CORUN_ENOMEM, "no memory for a line");
        j->line = o;
    } else {
        st = json_read(&j->line, line, len, "line");
        if (st != CORUN_OK) job_recover_id(j, line, len);
    }
    if (st == CORUN_OK) st = read_frame(j, &param);
    if (st == CORUN_ENOMEM) {
        job_free(j);
        *out = NULL;
        return st;
    }
    if (st != CORUN_OK) job_fail(j, 400, param, "%s", err_text());
    return CORUN_OK;
}

corun_status score_open(job **out, const char *line, size_t len, uint64_t line_no)
{
    return open_line(out, line, len, line_no, false);
}

corun_status score_open_text(job **out, const char *line, size_t len, uint64_t line_no)
{
    return open_line(out, line, len, line_no, true);
}

static corun_status read_tokens(job *j, const job_model *m, const json_t *list)
{
    job_prompt *p = j->prompt;
    size_t i;
    const json_t *v;
    if (!json_is_array(list)) FAIL(CORUN_EINVAL, "tokens: must be a list of token ids");
    p->n_token = json_array_size(list);
    if (!MEM_NEW(p->token, p->n_token)) return CORUN_ENOMEM;
    json_array_foreach (list, i, v) {
        int64_t id;
        if (!json_is_whole(v, &id)) FAIL(CORUN_EINVAL, "tokens: entry %zu is not an integer", i);
        if (id < 0 || id >= m->n_vocab)
            FAIL(CORUN_EINVAL, "tokens: id %lld is not in 0 ... %d", (long long)id, m->n_vocab - 1);
        p->token[i] = (int32_t)id;
    }
    return CORUN_OK;
}

static corun_status read_request(job *j, const job_model *m)
{
    const json_t *text = json_object_get(j->line, "text");
    const json_t *special = json_object_get(j->line, "add_special_tokens");
    const json_t *top = json_object_get(j->line, "top_logprobs");
    int64_t k = j->s.prompt_logprobs;
    if (special && !json_is_boolean(special))
        FAIL(CORUN_EINVAL, "add_special_tokens: must be true or false");
    if (top && (!json_is_whole(top, &k) || k < 0 || k > CORUN_MAX_TOP))
        FAIL(CORUN_EINVAL, "top_logprobs: must be an integer in 0 ... %d", CORUN_MAX_TOP);
    j->s.prompt_logprobs = j->prompt_logprobs = (int32_t)k;
    if (!MEM_NEW(j->prompt, 1)) return CORUN_ENOMEM;
    j->n_prompt = 1;
    job_prompt *p = j->prompt;
    if (text) {
        if (!json_is_string(text)) FAIL(CORUN_EINVAL, "text: must be a string");
        TRY(job_encode(m, json_string_value(text), json_string_length(text),
                       special && json_is_false(special) ? 0 : CORUN_TEXT_ADD_SPECIAL, &p->token,
                       &p->n_token));
    } else {
        TRY(read_tokens(j, m, json_object_get(j->line, "tokens")));
    }
    if (p->n_token == 0) FAIL(CORUN_EINVAL, "the line has no token");
    if (p->n_token > (size_t)m->n_ctx)
        FAIL(CORUN_EINVAL, "%zu tokens, more than the context of %d holds", p->n_token, m->n_ctx);
    return job_start(j);
}

corun_status score_prepare(job *j, const job_model *m)
{
    if (j->http != 200) return CORUN_OK;
    j->s = m->defaults;
    j->s.n = 1;
    j->s.temperature = 0;
    j->s.logprobs = -1;
    j->s.min_tokens = 0;
    if (j->s.prompt_logprobs < 0) j->s.prompt_logprobs = 0;
    corun_status st = read_request(j, m);
    if (st == CORUN_ENOMEM || st == CORUN_EINTERNAL) return st;
    if (st != CORUN_OK) job_fail(j, 400, NULL, "%s", err_text());
    return CORUN_OK;
}

static void put_frame(const job *j, jw *w)
{
    jw_key(w, "custom_id");
    if (j->custom_id) {
        jw_value(w, j->custom_id);
        return;
    }
    jw_null(w);
    jw_field_uint(w, "line", j->line_no);
}

static void put_tops(const job_tokens *t, jw *w)
{
    size_t top = 0;
    jw_key(w, "top_logprobs");
    jw_open(w, '[');
    if (t->n == 0) jw_null(w);
    for (size_t i = 0; i < t->n; top += (size_t)t->n_top[i++]) {
        if (i == 0) {
            jw_null(w);
            continue;
        }
        jw_open(w, '[');
        for (int32_t c = 0; c < t->n_top[i]; c++) {
            jw_open(w, '[');
            jw_int(w, t->top_id[top + (size_t)c]);
            jw_logprob(w, t->top_logprob[top + (size_t)c]);
            jw_close(w, ']');
        }
        jw_close(w, ']');
    }
    jw_close(w, ']');
}

static void put_scores(const job *j, jw *w)
{
    const job_prompt *p = j->prompt;
    const job_tokens *t = &p->logprobs;
    double sum = 0;
    jw_key(w, "tokens");
    jw_open(w, '[');
    for (size_t i = 0; i < p->n_token; i++) jw_int(w, p->token[i]);
    jw_close(w, ']');
    jw_key(w, "token_logprobs");
    jw_open(w, '[');
    jw_null(w);
    for (size_t i = 1; i < t->n; i++) {
        jw_logprob(w, t->logprob[i]);
        sum += (double)t->logprob[i];
    }
    jw_close(w, ']');
    if (j->prompt_logprobs > 0) put_tops(t, w);
    jw_field_double(w, "sum_logprob", sum);
}

corun_status score_write(const job *j, const job_model *m, buf *out)
{
    jw w;
    jw_init(&w, out);
    jw_open(&w, '{');
    put_frame(j, &w);
    if (j->http == 200) put_scores(j, &w);
    jw_field_str(&w, "system_fingerprint", m->fingerprint);
    jw_key(&w, "error");
    if (j->http == 200) {
        jw_null(&w);
    } else {
        jw_open(&w, '{');
        jw_field_str(&w, "message", j->message ? j->message : "no memory for the message");
        jw_close(&w, '}');
    }
    jw_close(&w, '}');
    buf_putc(out, '\n');
    return buf_status(out);
}
