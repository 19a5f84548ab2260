/* openai.c - owns the frame of a batch line. Invariant: whatever the bytes are, a line becomes a
 * job: a request with its tokens, or an error row. */
#include "app/openai_ask.h"

#include <string.h>

/* The digest of custom_id and body without ignored fields: of their canonical JSON. */
corun_status openai_digest(job *j)
{
    json_t *o = json_object(), *body = json_copy((json_t *)(uintptr_t)j->body);
    const char *key;
    json_t *v;
    void *next;
    buf b;
    buf_init(&b, 8 * JOB_MAX_LINE);
    json_object_foreach_safe (body, next, key, v)
        if (!openai_in_digest(key)) json_object_del(body, key);
    json_object_set(o, "custom_id", (json_t *)(uintptr_t)j->custom_id);
    json_object_set_new(o, "body", body);
    jw w;
    jw_init(&w, &b);
    jw_canonical(&w, o);
    json_decref(o);
    corun_status st = buf_status(&b);
    if (st == CORUN_OK) j->id = digest_of(b.data, b.len);
    buf_free(&b);
    return st;
}

/* The four fields of a line. */
static corun_status read_frame(job *j, const char **param)
{
    const char *key;
    json_t *v;
    if (!json_is_object(j->line)) FAIL(CORUN_EINVAL, "the line is no JSON object");
    v = json_object_get(j->line, "custom_id");
    *param = "custom_id";
    if (!json_is_string(v)) FAIL(CORUN_EINVAL, "custom_id: must be a string");
    j->custom_id = v;
    j->body = json_object_get(j->line, "body");
    *param = "body";
    if (!json_is_object(j->body)) FAIL(CORUN_EINVAL, "body: must be an object");
    TRY(openai_digest(j));
    json_object_foreach (j->line, key, v) {
        *param = key;
        if (strcmp(key, "custom_id") != 0 && strcmp(key, "method") != 0 &&
            strcmp(key, "url") != 0 && strcmp(key, "body") != 0)
            FAIL(CORUN_EINVAL, "%.100s: a line has no such field", key);
    }
    *param = "method";
    const char *s = json_string_value(json_object_get(j->line, "method"));
    if (!s || strcmp(s, "POST") != 0) FAIL(CORUN_EINVAL, "method: must be \"POST\"");
    *param = "url";
    s = json_string_value(json_object_get(j->line, "url"));
    if (s && strcmp(s, "/v1/completions") == 0)
        j->kind = JOB_COMPLETION;
    else if (s && strcmp(s, "/v1/chat/completions") == 0)
        j->kind = JOB_CHAT;
    else
        FAIL(CORUN_EINVAL, "url: must be \"/v1/completions\" or \"/v1/chat/completions\"");
    *param = NULL;
    return CORUN_OK;
}

corun_status openai_open(job **out, const char *line, size_t len, uint64_t line_no)
{
    TRY(job_new(out, line_no));
    job *j = *out;
    const char *param = NULL;
    j->id = digest_of(line, len);
    corun_status st = json_read(&j->line, line, len, "request");
    if (st == CORUN_OK)
        st = read_frame(j, &param);
    else
        job_recover_id(j, line, len);
    if (st == CORUN_ENOMEM) {
        job_free(j);
        *out = NULL;
        return st;
    }
    if (st != CORUN_OK) job_fail(j, 400, param, "%s", err_text());
    return CORUN_OK;
}

/* Rules between fields. */
static corun_status cross_check(openai_ask *a, const char **param)
{
    job *j = a->j;
    *param = "model";
    const json_t *model = json_object_get(j->body, "model");
    if (!model) FAIL(CORUN_EINVAL, "model: is missing");
    if (!json_is_string(model)) FAIL(CORUN_EINVAL, "model: must be a string");
    if (j->kind == JOB_CHAT) {
        *param = "top_logprobs";
        if (a->top_logprobs >= 0 && !a->chat_logprobs)
            FAIL(CORUN_EINVAL, "top_logprobs: needs logprobs true");
        if (a->chat_logprobs) j->logprobs = a->top_logprobs < 0 ? 0 : a->top_logprobs;
    }
    *param = "stream_options";
    if (a->stream_options && !j->stream) FAIL(CORUN_EINVAL, "stream_options: needs stream true");
    *param = "best_of";
    if (a->best_of && a->best_of != j->s.n)
        FAIL(CORUN_EINVAL, "best_of: only the value of n is supported");
    j->s.logprobs = j->logprobs;
    j->s.prompt_logprobs = j->prompt_logprobs;
    if (j->kind == JOB_COMPLETION && j->echo && j->logprobs > j->s.prompt_logprobs)
        j->s.prompt_logprobs = j->logprobs;
    *param = NULL;
    return CORUN_OK;
}

corun_status openai_prepare(job *j, const job_model *m)
{
    if (j->http != 200) return CORUN_OK;
    openai_ask a = {.j = j, .m = m, .top_logprobs = -1, .add_special = -1, .add_generation = -1};
    const char *param = NULL;
    j->s = m->defaults;
    j->s.logprobs = j->s.prompt_logprobs = -1;
    corun_status st = openai_fields(&a, &param);
    if (st == CORUN_OK) st = cross_check(&a, &param);
    if (st == CORUN_OK && j->http == 200) st = openai_prompts(&a, &param);
    if (st == CORUN_OK && j->http == 200) st = job_start(j);
    if (st == CORUN_ENOMEM || st == CORUN_EINTERNAL) return st;
    if (st != CORUN_OK) job_fail(j, 400, param, "%s", err_text());
    return CORUN_OK;
}
