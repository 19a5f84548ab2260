/* openai_prompt.c - owns the way from "prompt" or "messages" to token ids. Invariant: every prompt
 * of a job has at least one id, each a row of the head, and fits the context with its max_tokens.
 */
#include "app/openai_ask.h"

#include <stdio.h>
#include <string.h>

static corun_status add_prompts(openai_ask *a, size_t n)
{
    if (n > OPENAI_MAX_PROMPT)
        FAIL(CORUN_EINVAL, "prompt: %zu prompts, more than the %d allowed", n, OPENAI_MAX_PROMPT);
    if (!MEM_NEW(a->j->prompt, n)) return CORUN_ENOMEM;
    a->j->n_prompt = n;
    return CORUN_OK;
}

/* An empty prompt is the bos token alone, where the model has one. */
static corun_status not_empty(const openai_ask *a, job_prompt *p)
{
    if (p->n_token) return CORUN_OK;
    if (a->m->bos < 0)
        FAIL(CORUN_EINVAL, "prompt: empty, and the model has no bos token to start from");
    mem_free(p->token);
    if (!MEM_NEW(p->token, 1)) return CORUN_ENOMEM;
    p->token[0] = a->m->bos;
    p->n_token = p->n_added = 1;
    return CORUN_OK;
}

static corun_status from_text(openai_ask *a, job_prompt *p, const char *text, size_t len,
                              bool add_special)
{
    unsigned flags = add_special ? CORUN_TEXT_ADD_SPECIAL : 0;
    TRY(job_encode(a->m, text, len, flags, &p->token, &p->n_token));
    p->text = text;
    p->text_len = len;
    /* Whether the first id is a bos that the text does not have: only echo asks. */
    if (add_special && a->j->echo && p->n_token && p->token[0] == a->m->bos) {
        int32_t *plain;
        size_t n;
        TRY(job_encode(a->m, text, len, 0, &plain, &n));
        mem_free(plain);
        p->n_added = p->n_token > n;
    }
    return not_empty(a, p);
}

static corun_status from_ids(openai_ask *a, job_prompt *p, const json_t *ids)
{
    size_t i, n = json_array_size(ids);
    const json_t *v;
    if (!MEM_NEW(p->token, n)) return CORUN_ENOMEM;
    p->n_token = n;
    json_array_foreach (ids, i, v) {
        int64_t id;
        if (!json_is_whole(v, &id)) FAIL(CORUN_EINVAL, "prompt: token %zu is not an integer", i);
        if (id < 0 || id >= a->m->n_vocab)
            FAIL(CORUN_EINVAL, "prompt: token id %lld is not in 0 ... %d", (long long)id,
                 a->m->n_vocab - 1);
        p->token[i] = (int32_t)id;
    }
    return not_empty(a, p);
}

static corun_status completion_prompts(openai_ask *a)
{
    const json_t *v = a->prompt, *first = json_array_get(v, 0);
    bool special = a->add_special != 0;
    if (!v) FAIL(CORUN_EINVAL, "prompt: missing");
    if (json_is_string(v)) {
        TRY(add_prompts(a, 1));
        return from_text(a, a->j->prompt, json_string_value(v), json_string_length(v), special);
    }
    if (!json_is_array(v))
        FAIL(CORUN_EINVAL, "prompt: must be a string, a list of strings or token ids");
    if (!json_is_string(first) && !json_is_array(first)) { /* ids, or an empty list */
        TRY(add_prompts(a, 1));
        return from_ids(a, a->j->prompt, v);
    }
    TRY(add_prompts(a, json_array_size(v)));
    for (size_t i = 0; i < a->j->n_prompt; i++) {
        const json_t *p = json_array_get(v, i);
        if (json_typeof(p) != json_typeof(first))
            FAIL(CORUN_EINVAL, "prompt: entry %zu is of another kind than the first", i);
        corun_status st = json_is_string(p) ? from_text(a, &a->j->prompt[i], json_string_value(p),
                                                        json_string_length(p), special)
                                            : from_ids(a, &a->j->prompt[i], p);
        TRY(st);
    }
    return CORUN_OK;
}

/* ---- chat -------------------------------------------------------------------------------- */

static bool one_of(const char *s, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(s, list[i]) == 0) return true;
    return false;
}

/* Content is null, a string, or a list of text parts. */
static corun_status check_content(const json_t *content, size_t at)
{
    if (!content || json_is_null(content) || json_is_string(content)) return CORUN_OK;
    if (!json_is_array(content))
        FAIL(CORUN_EINVAL, "messages: content of message %zu is no text", at);
    size_t i;
    const json_t *part;
    json_array_foreach (content, i, part) {
        const char *type = json_string_value(json_object_get(part, "type"));
        if (!type) FAIL(CORUN_EINVAL, "messages: part %zu of message %zu has no type", i, at);
        if (strcmp(type, "text") != 0)
            FAIL(
                CORUN_EINVAL,
                "messages: part %zu of message %zu is of type \"%.40s\"; the model reads text only",
                i, at, type);
        if (!json_is_string(json_object_get(part, "text")))
            FAIL(CORUN_EINVAL, "messages: part %zu of message %zu has no text", i, at);
    }
    return CORUN_OK;
}

/* Arguments come as JSON text; templates see the object. "" and null are {}. */
static corun_status parse_arguments(json_t *function, size_t at)
{
    json_t *args = json_object_get(function, "arguments"), *parsed = NULL;
    if (json_is_object(args)) return CORUN_OK;
    if (!args || json_is_null(args) || (json_is_string(args) && json_string_length(args) == 0)) {
        parsed = json_object();
    } else if (json_is_string(args)) {
        char what[96];
        snprintf(what, sizeof what, "messages: arguments of a tool call in message %zu", at);
        TRY(json_read(&parsed, json_string_value(args), json_string_length(args), what));
    }
    if (!json_is_object(parsed)) {
        json_decref(parsed);
        FAIL(CORUN_EINVAL, "messages: arguments of a tool call in message %zu are no object", at);
    }
    if (json_object_set_new(function, "arguments", parsed) != 0)
        FAIL(CORUN_ENOMEM, "tool call: no memory");
    return CORUN_OK;
}

static corun_status fix_tool_calls(json_t *message, size_t at)
{
    json_t *calls = json_object_get(message, "tool_calls"), *call;
    if (!calls) return CORUN_OK;
    if (json_is_null(calls) || (json_is_array(calls) && json_array_size(calls) == 0)) {
        json_object_del(message, "tool_calls");
        return CORUN_OK;
    }
    if (!json_is_array(calls))
        FAIL(CORUN_EINVAL, "messages: tool_calls of message %zu must be a list", at);
    size_t i;
    json_array_foreach (calls, i, call) {
        json_t *f = json_object_get(call, "function");
        if (!json_is_string(json_object_get(f, "name")))
            FAIL(CORUN_EINVAL, "messages: tool call %zu of message %zu names no function", i, at);
        TRY(parse_arguments(f, at));
    }
    json_t *content = json_object_get(message, "content");
    if ((!content || json_is_null(content)) &&
        json_object_set_new(message, "content", json_string("")) != 0)
        FAIL(CORUN_ENOMEM, "message: no memory");
    return CORUN_OK;
}

static corun_status fix_message(json_t *message, size_t at)
{
    static const char *const roles[] = {"system",    "developer", "user",
                                        "assistant", "tool",      "ipython"};
    static const char *const keys[] = {"role",       "content",           "name",
                                       "tool_calls", "tool_call_id",      "reasoning",
                                       "thinking",   "reasoning_content", "refusal"};
    if (!json_is_object(message)) FAIL(CORUN_EINVAL, "messages: message %zu is no object", at);
    const char *role = json_string_value(json_object_get(message, "role"));
    if (!role) FAIL(CORUN_EINVAL, "messages: message %zu has no role", at);
    if (!one_of(role, roles, sizeof roles / sizeof *roles))
        FAIL(CORUN_EINVAL, "messages: message %zu has the unknown role \"%.40s\"", at, role);
    const char *key;
    json_t *v;
    json_object_foreach (message, key, v)
        if (!one_of(key, keys, sizeof keys / sizeof *keys) && !json_is_null(v))
            FAIL(CORUN_EINVAL, "messages: field %.60s of message %zu is not supported", key, at);
    TRY(check_content(json_object_get(message, "content"), at));
    TRY(fix_tool_calls(message, at));
    const json_t *content = json_object_get(message, "content");
    if (!content || json_is_null(content))
        FAIL(CORUN_EINVAL, "messages: message %zu has no content", at);
    return CORUN_OK;
}

/* With echo an answer that continues the last message begins with that message's text. */
static corun_status take_echo(openai_ask *a, const json_t *last)
{
    const char *role = json_string_value(json_object_get(last, "role"));
    const json_t *content = json_object_get(last, "content"), *part;
    if (!a->j->echo || strcmp(role, "assistant") != 0) return CORUN_OK;
    buf b;
    buf_init(&b, JOB_MAX_ROW);
    size_t i;
    if (json_is_string(content))
        buf_put(&b, json_string_value(content), json_string_length(content));
    json_array_foreach (content, i, part) {
        const json_t *t = json_object_get(part, "text");
        if (i) buf_putc(&b, '\n');
        buf_put(&b, json_string_value(t), json_string_length(t));
    }
    corun_status st = buf_status(&b);
    if (st == CORUN_OK && b.len) {
        a->j->echo_text = job_keep(a->j, mem_dup(b.data, b.len, "echo"));
        a->j->echo_len = b.len;
        if (!a->j->echo_text) st = CORUN_ENOMEM;
    }
    buf_free(&b);
    return st;
}

/* The object that the chat template's caller takes. */
static corun_status write_chat(const openai_ask *a, buf *b)
{
    jw w;
    jw_init(&w, b);
    jw_open(&w, '{');
    jw_key(&w, "messages");
    jw_value(&w, a->messages);
    if (a->tools) {
        jw_key(&w, "tools");
        jw_value(&w, a->tools);
    }
    if (a->documents) {
        jw_key(&w, "documents");
        jw_value(&w, a->documents);
    }
    jw_field_bool(&w, "add_generation_prompt", a->continue_final ? false : a->add_generation != 0);
    jw_field_bool(&w, "continue_final_message", a->continue_final);
    if (a->chat_template) {
        jw_key(&w, "chat_template");
        jw_value(&w, a->chat_template);
    }
    if (a->kwargs || a->effort) {
        const char *key;
        json_t *v;
        jw_key(&w, "chat_template_kwargs");
        jw_open(&w, '{');
        json_object_foreach ((json_t *)(uintptr_t)a->kwargs, key, v) {
            jw_key(&w, key);
            jw_value(&w, v);
        }
        if (a->effort && !json_object_get(a->kwargs, "reasoning_effort")) {
            jw_key(&w, "reasoning_effort");
            jw_value(&w, a->effort);
        }
        jw_close(&w, '}');
    }
    jw_close(&w, '}');
    return buf_status(b);
}

static corun_status render(const openai_ask *a, buf *in, char **text, size_t *len)
{
    TRY(write_chat(a, in));
    size_t cap = in->len + 4096;
    for (int attempt = 0; attempt < 2; attempt++) {
        if (!(*text = mem_alloc(cap, 1, "prompt"))) return CORUN_ENOMEM;
        corun_status st = a->m->render(a->m->ctx, in->data, in->len, *text, cap, len);
        if (st == CORUN_OK) return CORUN_OK;
        mem_free(*text);
        *text = NULL;
        if (st != CORUN_ECAPACITY || *len <= cap) return st;
        cap = *len;
    }
    FAIL(CORUN_EINTERNAL, "the chat template asks for more room twice");
}

corun_status openai_chat_prompt(openai_ask *a)
{
    size_t n = json_array_size(a->messages), i;
    json_t *message;
    if (!a->messages) FAIL(CORUN_EINVAL, "messages: missing");
    if (!json_is_array(a->messages)) FAIL(CORUN_EINVAL, "messages: must be a list");
    if (n == 0) FAIL(CORUN_EINVAL, "messages: the list is empty");
    json_array_foreach (a->messages, i, message) TRY(fix_message(message, i));
    const json_t *last = json_array_get(a->messages, n - 1);
    if (a->continue_final && a->add_generation == 1)
        FAIL(CORUN_EINVAL, "continue_final_message and add_generation_prompt exclude each other");
    TRY(take_echo(a, last));
    TRY(add_prompts(a, 1));
    buf in;
    buf_init(&in, 8 * JOB_MAX_LINE);
    char *text = NULL;
    size_t len = 0;
    corun_status st = render(a, &in, &text, &len);
    buf_free(&in);
    if (st != CORUN_OK) return st;
    if (!job_keep(a->j, text)) return CORUN_ENOMEM;
    return from_text(a, a->j->prompt, text, len, a->add_special == 1);
}

/* ---- both -------------------------------------------------------------------------------- */

static void truncate_prompt(const openai_ask *a, job_prompt *p)
{
    if (!a->truncate || p->n_token <= (size_t)a->truncate) return;
    size_t cut = p->n_token - (size_t)a->truncate;
    memmove(p->token, p->token + cut, (size_t)a->truncate * sizeof *p->token);
    p->n_token = (size_t)a->truncate;
    p->n_added = 0;
    p->text = NULL;
}

/* The limit for new tokens, from the fields or their defaults: 16 for completions, the model's
 * own or the rest of the context for chats. */
static corun_status fit(const openai_ask *a, job_prompt *p, const char **param)
{
    const int64_t n = (int64_t)p->n_token, ctx = a->m->n_ctx;
    const bool chat = a->j->kind == JOB_CHAT;
    bool given = a->max_completion_set || a->max_set;
    int64_t max = a->max_completion_set ? a->max_completion : a->max_set ? a->max_tokens : 0;
    if (!given) {
        max = chat ? a->m->defaults.max_tokens : 16;
        if (max < 0 || max > ctx - n) max = ctx - n;
    }
    if (n > ctx || (!given && n == ctx))
        FAIL(CORUN_EINVAL,
             "This model's maximum context length is %lld tokens. The prompt has %lld tokens.",
             (long long)ctx, (long long)n);
    if (max > ctx - n)
        FAIL(CORUN_EINVAL,
             "This model's maximum context length is %lld tokens. However, you requested %llu "
             "tokens (%lld in the prompt, %lld for the answer).",
             (long long)ctx, (unsigned long long)n + (unsigned long long)max, (long long)n,
             (long long)max);
    if (a->j->s.min_tokens > max) {
        *param = "min_tokens";
        FAIL(CORUN_EINVAL, "min_tokens: %d is more than the %lld tokens allowed for the answer",
             a->j->s.min_tokens, (long long)max);
    }
    p->max_tokens = (int32_t)max;
    return CORUN_OK;
}

/* The log-probabilities of the prompts stand in each choice: more of them than a row holds are
 * refused before they are made. An entry is no shorter than LEAST. */
static corun_status fit_row(const openai_ask *a)
{
#define LEAST "\"0\":{\"logprob\":0,\"rank\":1,\"decoded_token\":\"\"}"
    const job *j = a->j;
    const int32_t k = j->prompt_logprobs < a->m->n_vocab ? j->prompt_logprobs : a->m->n_vocab;
    uint64_t n = 0;
    if (j->prompt_logprobs < 0) return CORUN_OK;
    for (size_t i = 0; i < j->n_prompt; i++) n += j->prompt[i].n_token - 1;
    if (j->kind == JOB_COMPLETION) n *= (uint64_t)j->s.n;
    n *= (uint64_t)(k > 0 ? k : 1) * (sizeof LEAST - 1);
    if (n > JOB_MAX_ROW)
        FAIL(CORUN_EINVAL,
             "prompt_logprobs: those of the prompts take %llu bytes or more, each choice holding "
             "them; an answer has at most %zu bytes",
             (unsigned long long)n, JOB_MAX_ROW);
    return CORUN_OK;
}

corun_status openai_prompts(openai_ask *a, const char **param)
{
    job *j = a->j;
    *param = j->kind == JOB_CHAT ? "messages" : "prompt";
    TRY(j->kind == JOB_CHAT ? openai_chat_prompt(a) : completion_prompts(a));
    for (size_t i = 0; i < j->n_prompt; i++) {
        truncate_prompt(a, &j->prompt[i]);
        TRY(fit(a, &j->prompt[i], param));
        /* Those of sample 0, n, 2 n, ...: no two choices of a request have one seed. */
        int32_t sample = (int32_t)i * j->s.n;
        j->prompt[i].seed = j->seeded ? j->s.seed : corun_seed_sample(j->id.lo >> 11, sample);
    }
    if (j->n_prompt * (size_t)j->s.n > OPENAI_MAX_PROMPT)
        FAIL(CORUN_EINVAL, "prompt: %zu prompts with n %d make more than %d choices", j->n_prompt,
             j->s.n, OPENAI_MAX_PROMPT);
    *param = "prompt_logprobs";
    return fit_row(a);
}
