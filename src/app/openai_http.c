/* openai_http.c - owns the way from the body of an HTTP request to a job. Invariant: the job is the
 * one that a batch line with this body, and with its request_id as custom_id, would give. */
#include <string.h>

#include "app/openai_ask.h"

/* Reads the body and makes the frame of a line around it. */
static corun_status read_body(job *j, const char *text, size_t len, const char **param)
{
    json_t *body;
    *param = NULL;
    TRY(json_read(&body, text, len, "body"));
    const json_t *id = json_object_get(body, "request_id");
    if (!id || json_is_null(id))
        id = json_string("");
    else
        json_incref((json_t *)(uintptr_t)id);
    j->line = json_object();
    int bad = !id || json_object_set_new(j->line, "custom_id", (json_t *)(uintptr_t)id) != 0;
    bad |= json_object_set_new(j->line, "body", body) != 0;
    if (bad) FAIL(CORUN_ENOMEM, "request: no memory");
    j->body = body;
    if (!json_is_object(body)) FAIL(CORUN_EINVAL, "body: must be a JSON object");
    *param = "request_id";
    if (!json_is_string(id)) FAIL(CORUN_EINVAL, "request_id: must be a string");
    j->custom_id = id;
    *param = NULL;
    return openai_digest(j);
}

corun_status openai_http_open(job **out, job_kind kind, const char *body, size_t len)
{
    const char *param;
    TRY(job_new(out, 0));
    job *j = *out;
    j->kind = kind;
    j->over_http = true;
    j->id = digest_of(body, len);
    corun_status st = read_body(j, body, len, &param);
    if (st == CORUN_ENOMEM) {
        job_free(j);
        *out = NULL;
        return st;
    }
    if (st != CORUN_OK) job_fail(j, 400, param, "%s", err_text());
    return CORUN_OK;
}

/* ---- tokens of texts ------------------------------------------------------------------------- */

static corun_status take_flag(json_t *body, const char *key, bool *out)
{
    const json_t *v = json_object_get(body, key);
    if (!v || json_is_null(v)) return CORUN_OK;
    if (!json_is_boolean(v)) FAIL(CORUN_EINVAL, "%s: must be true or false", key);
    *out = json_is_true(v);
    return CORUN_OK;
}

/* No field but these and those that are ignored; `model` as everywhere. */
static corun_status check_fields(job *j, const job_model *m, const char *const *known, size_t n,
                                 const char **param)
{
    const char *key;
    json_t *v;
    json_object_foreach ((json_t *)(uintptr_t)j->body, key, v) {
        bool ok = openai_ignored(key) || strcmp(key, "model") == 0;
        for (size_t i = 0; i < n; i++) ok |= strcmp(key, known[i]) == 0;
        *param = key;
        if (!ok) FAIL(CORUN_EINVAL, "%.100s: this field is not supported here", key);
    }
    *param = "model";
    const json_t *model = json_object_get(j->body, "model");
    if (model && !json_is_null(model)) {
        if (!json_is_string(model)) FAIL(CORUN_EINVAL, "model: must be a string");
        openai_check_model(j, m, json_string_value(model));
    }
    *param = NULL;
    return CORUN_OK;
}

static corun_status text_tokens(job *j, const job_model *m, const char **param)
{
    static const char *const known[] = {"prompt", "add_special_tokens", "return_token_strs"};
    bool special = true;
    const json_t *v = json_object_get(j->body, "prompt");
    TRY(check_fields(j, m, known, sizeof known / sizeof *known, param));
    if (j->http != 200) return CORUN_OK;
    *param = "add_special_tokens";
    TRY(take_flag((json_t *)(uintptr_t)j->body, *param, &special));
    *param = "prompt";
    if (!v) FAIL(CORUN_EINVAL, "prompt: missing (messages neither)");
    if (!json_is_string(v)) FAIL(CORUN_EINVAL, "prompt: must be a string");
    if (!MEM_NEW(j->prompt, 1)) return CORUN_ENOMEM;
    j->n_prompt = 1;
    return job_encode(m, json_string_value(v), json_string_length(v),
                      special ? CORUN_TEXT_ADD_SPECIAL : 0, &j->prompt->token, &j->prompt->n_token);
}

/* The fields are those of a chat. */
static corun_status chat_tokens(job *j, const job_model *m, const char **param)
{
    openai_ask a = {.j = j, .m = m, .top_logprobs = -1, .add_special = -1, .add_generation = -1};
    j->kind = JOB_CHAT;
    j->s = m->defaults;
    json_object_del((json_t *)(uintptr_t)j->body, "return_token_strs");
    TRY(openai_fields(&a, param));
    if (j->http != 200) return CORUN_OK;
    *param = "messages";
    return openai_chat_prompt(&a);
}

static corun_status write_tokens(const job *j, const job_model *m, bool texts, buf *out)
{
    jw w;
    buf one;
    const job_prompt *p = j->prompt;
    jw_init(&w, out);
    jw_open(&w, '{');
    jw_field_uint(&w, "count", p->n_token);
    jw_field_int(&w, "max_model_len", m->n_ctx);
    jw_key(&w, "tokens");
    jw_open(&w, '[');
    for (size_t i = 0; i < p->n_token; i++) jw_int(&w, p->token[i]);
    jw_close(&w, ']');
    jw_key(&w, "token_strs");
    if (!texts) {
        jw_null(&w);
    } else {
        buf_init(&one, JOB_MAX_ROW);
        jw_open(&w, '[');
        corun_status st = CORUN_OK;
        for (size_t i = 0; i < p->n_token && st == CORUN_OK; i++) {
            buf_reset(&one);
            st = job_decode(m, &p->token[i], 1, 0, &one);
            jw_str(&w, one.data ? one.data : "", one.len);
        }
        jw_close(&w, ']');
        buf_free(&one);
        TRY(st);
    }
    jw_close(&w, '}');
    return buf_status(out);
}

/* An error of the request becomes the job's. */
static corun_status settle(job **j, corun_status st, const char *param)
{
    if (st == CORUN_ENOMEM || st == CORUN_EINTERNAL) {
        job_free(*j);
        *j = NULL;
        return st;
    }
    if (st != CORUN_OK) job_fail(*j, 400, param, "%s", err_text());
    return CORUN_OK;
}

corun_status openai_tokenize(job **j, const job_model *m, const char *body, size_t len, buf *out)
{
    bool texts = false;
    const char *param = "return_token_strs";
    TRY(openai_http_open(j, JOB_COMPLETION, body, len));
    if ((*j)->http != 200) return CORUN_OK;
    json_t *o = (json_t *)(uintptr_t)(*j)->body;
    corun_status st = take_flag(o, param, &texts);
    if (st == CORUN_OK)
        st = json_object_get(o, "messages") ? chat_tokens(*j, m, &param)
                                            : text_tokens(*j, m, &param);
    if (st == CORUN_OK && (*j)->http == 200) st = write_tokens(*j, m, texts, out);
    return settle(j, st, param);
}

static corun_status detokenize(job *j, const job_model *m, buf *out, const char **param)
{
    static const char *const known[] = {"tokens"};
    TRY(check_fields(j, m, known, 1, param));
    if (j->http != 200) return CORUN_OK;
    *param = "tokens";
    const json_t *ids = json_object_get(j->body, "tokens"), *v;
    if (!json_is_array(ids)) FAIL(CORUN_EINVAL, "tokens: must be a list of token ids");
    size_t n = json_array_size(ids), i;
    int32_t *id = job_keep(j, mem_alloc(n, sizeof *id, "token ids"));
    if (!id) return CORUN_ENOMEM;
    json_array_foreach (ids, i, v) {
        int64_t k;
        if (!json_is_whole(v, &k)) FAIL(CORUN_EINVAL, "tokens: entry %zu is not an integer", i);
        if (k < 0 || k >= m->n_vocab)
            FAIL(CORUN_EINVAL, "tokens: id %lld is not in 0 ... %d", (long long)k, m->n_vocab - 1);
        id[i] = (int32_t)k;
    }
    buf text;
    jw w;
    buf_init(&text, JOB_MAX_ROW);
    corun_status st = job_decode(m, id, n, 0, &text);
    if (st == CORUN_OK) {
        jw_init(&w, out);
        jw_open(&w, '{');
        jw_key(&w, "prompt");
        jw_str(&w, text.data ? text.data : "", text.len);
        jw_close(&w, '}');
        st = buf_status(out);
    }
    buf_free(&text);
    return st;
}

corun_status openai_detokenize(job **j, const job_model *m, const char *body, size_t len, buf *out)
{
    const char *param = NULL;
    TRY(openai_http_open(j, JOB_COMPLETION, body, len));
    if ((*j)->http != 200) return CORUN_OK;
    return settle(j, detokenize(*j, m, out, &param), param);
}
