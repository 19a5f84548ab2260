/* openai_fields.c - owns the tables of fields: those that are used and those that are ignored
 * (docs/batch.md has the same lists). Invariant: a field in neither table is refused. */
#include "app/openai_ask.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { COMP = 1, CHAT = 2, BOTH = 3 };
typedef enum kind { REAL, INT, BOOL, OWN } kind;

typedef struct field {
    const char *name;
    unsigned where;
    kind kind;
    size_t at; /* REAL, INT, BOOL: offset in corun_sampling */
    double lo, hi;
    corun_status (*read)(openai_ask *a, const json_t *v); /* OWN */
} field;

static const char *const ignored[] = {
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "priority",
    "prompt_cache_retention",
    "request_id",
    "cache_salt",
    "parallel_tool_calls",
    "spaces_between_special_tokens",
};

bool openai_ignored(const char *name)
{
    for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++)
        if (strcmp(name, ignored[i]) == 0) return true;
    return false;
}

bool openai_in_digest(const char *name)
{
    return !openai_ignored(name) && strcmp(name, "stream") != 0 &&
           strcmp(name, "stream_options") != 0;
}

static corun_status read_int(const json_t *v, int64_t lo, int64_t hi, int32_t *out)
{
    int64_t i;
    if (!json_is_whole(v, &i)) FAIL(CORUN_EINVAL, "must be an integer");
    if (i < lo || i > hi)
        FAIL(CORUN_EINVAL, "%lld is not in %lld ... %lld", (long long)i, (long long)lo,
             (long long)hi);
    *out = (int32_t)i;
    return CORUN_OK;
}

/* Values beyond int32 stand for the largest one. */
static corun_status read_count(const json_t *v, int64_t lo, int32_t *out)
{
    int64_t i;
    if (!json_is_whole(v, &i)) FAIL(CORUN_EINVAL, "must be an integer");
    if (i < lo) FAIL(CORUN_EINVAL, "%lld is less than %lld", (long long)i, (long long)lo);
    *out = i > INT32_MAX ? INT32_MAX : (int32_t)i;
    return CORUN_OK;
}

static corun_status read_bool(const json_t *v, bool *out)
{
    if (!json_is_boolean(v)) FAIL(CORUN_EINVAL, "must be true or false");
    *out = json_is_true(v);
    return CORUN_OK;
}

void openai_check_model(job *j, const job_model *m, const char *name)
{
    if (m->served_name && strcmp(name, m->served_name) != 0) {
        job_fail(j, 404, "model", "The model `%.200s` does not exist.", name);
        j->code = "model_not_found";
    }
}

static corun_status read_model(openai_ask *a, const json_t *v)
{
    if (!json_is_string(v)) FAIL(CORUN_EINVAL, "must be a string");
    openai_check_model(a->j, a->m, json_string_value(v));
    return CORUN_OK;
}

static corun_status read_stream(openai_ask *a, const json_t *v)
{
    TRY(read_bool(v, &a->j->stream));
    if (a->j->stream && !a->j->over_http) FAIL(CORUN_EINVAL, "a batch cannot be streamed");
    return CORUN_OK;
}

static corun_status read_stream_options(openai_ask *a, const json_t *v)
{
    const char *key;
    json_t *o;
    a->stream_options = true;
    if (!json_is_object(v)) FAIL(CORUN_EINVAL, "must be an object");
    json_object_foreach ((json_t *)(uintptr_t)v, key, o) {
        bool refused = false, *to = strcmp(key, "include_usage") == 0 ? &a->j->stream_usage
                                    : strcmp(key, "continuous_usage_stats") == 0
                                        ? &a->j->stream_usage_each
                                    : strcmp(key, "include_obfuscation") == 0 ? &refused
                                                                              : NULL;
        if (!to) FAIL(CORUN_EINVAL, "%.60s: there is no such option", key);
        corun_status st = json_is_null(o) ? CORUN_OK : read_bool(o, to);
        if (st != CORUN_OK) return err_prefix(st, "%.60s", key);
        if (refused) FAIL(CORUN_EINVAL, "include_obfuscation: only false is supported");
    }
    return CORUN_OK;
}

/* As it stands, so that an error can name it. */
static corun_status read_tokens(const json_t *v, int64_t *out)
{
    if (!json_is_whole(v, out)) FAIL(CORUN_EINVAL, "must be an integer");
    if (*out < 0) FAIL(CORUN_EINVAL, "%lld is less than 0", (long long)*out);
    return CORUN_OK;
}

static corun_status read_max(openai_ask *a, const json_t *v)
{
    a->max_set = true;
    return read_tokens(v, &a->max_tokens);
}

static corun_status read_max_completion(openai_ask *a, const json_t *v)
{
    a->max_completion_set = true;
    return read_tokens(v, &a->max_completion);
}

static corun_status read_top_k(openai_ask *a, const json_t *v)
{
    return read_count(v, -1, &a->j->s.top_k);
}

static corun_status read_seed(openai_ask *a, const json_t *v)
{
    int64_t i;
    if (!json_is_whole(v, &i)) FAIL(CORUN_EINVAL, "must be an integer");
    if (i < -1) FAIL(CORUN_EINVAL, "%lld is negative (-1 stands for none)", (long long)i);
    a->j->seeded = i >= 0;
    if (i >= 0) a->j->s.seed = (uint64_t)i;
    return CORUN_OK;
}

static corun_status read_stop(openai_ask *a, const json_t *v)
{
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    if (!json_is_array(v) && !json_is_string(v))
        FAIL(CORUN_EINVAL, "must be a string or a list of strings");
    if (n > OPENAI_MAX_STOP)
        FAIL(CORUN_EINVAL, "%zu strings, more than the %d allowed", n, OPENAI_MAX_STOP);
    corun_bytes *stop = job_keep(a->j, mem_alloc(n, sizeof *stop, "stop strings"));
    if (!stop) return CORUN_ENOMEM;
    for (size_t i = 0; i < n; i++) {
        const json_t *s = json_is_array(v) ? json_array_get(v, i) : v;
        if (!json_is_string(s)) FAIL(CORUN_EINVAL, "must be a string or a list of strings");
        stop[i] = (corun_bytes){json_string_value(s), json_string_length(s)};
        if (stop[i].len == 0) FAIL(CORUN_EINVAL, "string %zu is empty", i);
        if (stop[i].len > 4096) FAIL(CORUN_EINVAL, "string %zu has more than 4096 bytes", i);
    }
    a->j->s.stop = stop;
    a->j->s.n_stop = n;
    return CORUN_OK;
}

static corun_status read_ids(openai_ask *a, const json_t *v, const int32_t **ids, size_t *n)
{
    if (!json_is_array(v)) FAIL(CORUN_EINVAL, "must be a list of token ids");
    size_t count = json_array_size(v);
    if (count > (size_t)a->m->n_vocab)
        FAIL(CORUN_EINVAL, "%zu ids, more than the vocabulary has", count);
    int32_t *id = job_keep(a->j, mem_alloc(count, sizeof *id, "token ids"));
    if (!id) return CORUN_ENOMEM;
    for (size_t i = 0; i < count; i++) {
        corun_status st = read_int(json_array_get(v, i), 0, a->m->n_vocab - 1, &id[i]);
        if (st != CORUN_OK) return err_prefix(st, "token id %zu", i);
    }
    *ids = id;
    *n = count;
    return CORUN_OK;
}

static corun_status read_stop_ids(openai_ask *a, const json_t *v)
{
    return read_ids(a, v, &a->j->s.stop_id, &a->j->s.n_stop_id);
}

static corun_status read_allowed(openai_ask *a, const json_t *v)
{
    if (json_is_array(v) && json_array_size(v) == 0) FAIL(CORUN_EINVAL, "the list is empty");
    return read_ids(a, v, &a->j->s.allowed, &a->j->s.n_allowed);
}

/* A token id as the key of an object: digits only, no leading zero. */
static corun_status key_id(const char *key, int32_t n_vocab, int32_t *out)
{
    size_t len = strlen(key);
    bool digits = len > 0 && len < 11 && strspn(key, "0123456789") == len;
    if (!digits || (key[0] == '0' && len > 1))
        FAIL(CORUN_EINVAL, "\"%.40s\" is not a token id", key);
    long long id = strtoll(key, NULL, 10);
    if (id >= n_vocab) FAIL(CORUN_EINVAL, "token id %lld is not in 0 ... %d", id, n_vocab - 1);
    *out = (int32_t)id;
    return CORUN_OK;
}

static corun_status read_bias(openai_ask *a, const json_t *v)
{
    if (!json_is_object(v)) FAIL(CORUN_EINVAL, "must be an object of token ids and numbers");
    size_t n = json_object_size(v), i = 0;
    if (n > OPENAI_MAX_BIAS)
        FAIL(CORUN_EINVAL, "%zu entries, more than the %d allowed", n, OPENAI_MAX_BIAS);
    int32_t *id = job_keep(a->j, mem_alloc(n, sizeof *id, "logit_bias"));
    float *bias = job_keep(a->j, mem_alloc(n, sizeof *bias, "logit_bias"));
    if (!id || !bias) return CORUN_ENOMEM;
    const char *key;
    json_t *b;
    json_object_foreach ((json_t *)(uintptr_t)v, key, b) {
        TRY(key_id(key, a->m->n_vocab, &id[i]));
        if (!json_is_number(b)) FAIL(CORUN_EINVAL, "the value of %s is not a number", key);
        double d = json_number_value(b);
        if (!(fabs(d) <= 100)) FAIL(CORUN_EINVAL, "%g for %s is not in -100 ... 100", d, key);
        bias[i++] = (float)d;
    }
    a->j->s.bias_id = id;
    a->j->s.bias = bias;
    a->j->s.n_bias = n;
    return CORUN_OK;
}

/* Each word as it stands and, where that is another word of equal length in tokens, with a space
 * in front: the rule of the common engines. */
static corun_status read_bad(openai_ask *a, const json_t *v)
{
    size_t n = json_is_array(v) ? json_array_size(v) : 0, n_id = 0, n_bad = 0;
    if (!json_is_array(v)) FAIL(CORUN_EINVAL, "must be a list of strings");
    if (n > OPENAI_MAX_BAD)
        FAIL(CORUN_EINVAL, "%zu words, more than the %d allowed", n, OPENAI_MAX_BAD);
    int32_t *len = job_keep(a->j, mem_alloc(2 * n, sizeof *len, "bad_words"));
    int32_t *all = job_keep(a->j, mem_alloc(2 * n * 64, sizeof *all, "bad_words"));
    if (!len || !all) return CORUN_ENOMEM;
    for (size_t i = 0; i < n; i++) {
        const json_t *word = json_array_get(v, i);
        if (!json_is_string(word) || json_string_length(word) == 0)
            FAIL(CORUN_EINVAL, "word %zu must be a string that is not empty", i);
        const char *s = json_string_value(word), *end = s + json_string_length(word);
        while (s < end && *s == ' ') s++;
        for (int space = 0; space < 2; space++) {
            char text[264] = " ";
            if (end - s > 256) FAIL(CORUN_EINVAL, "word %zu has more than 256 bytes", i);
            memcpy(text + space, s, (size_t)(end - s));
            int32_t *ids;
            size_t k;
            TRY(job_encode(a->m, text, (size_t)(end - s) + (size_t)space, 0, &ids, &k));
            bool fits = k >= 1 && k <= 64;
            bool other = !space || (fits && (int32_t)k == len[n_bad - 1] &&
                                    ids[0] != all[n_id - (size_t)len[n_bad - 1]]);
            if (fits && other) {
                memcpy(all + n_id, ids, k * sizeof *ids);
                n_id += k;
                len[n_bad++] = (int32_t)k;
            }
            mem_free(ids);
            if (!fits && !space) FAIL(CORUN_EINVAL, "word %zu has %zu tokens, not 1 ... 64", i, k);
        }
    }
    a->j->s.bad_id = all;
    a->j->s.bad_len = len;
    a->j->s.n_bad = n_bad;
    return CORUN_OK;
}

static corun_status read_logprobs(openai_ask *a, const json_t *v)
{
    if (a->j->kind == JOB_CHAT) return read_bool(v, &a->chat_logprobs);
    return read_int(v, 0, CORUN_MAX_TOP, &a->j->logprobs);
}

static corun_status read_top_logprobs(openai_ask *a, const json_t *v)
{
    return read_int(v, 0, CORUN_MAX_TOP, &a->top_logprobs);
}

static corun_status read_prompt_logprobs(openai_ask *a, const json_t *v)
{
    return read_int(v, 0, CORUN_MAX_TOP, &a->j->prompt_logprobs);
}

static corun_status read_echo(openai_ask *a, const json_t *v) { return read_bool(v, &a->j->echo); }

static corun_status read_return_ids(openai_ask *a, const json_t *v)
{
    return read_bool(v, &a->j->return_ids);
}

static corun_status read_literal_ids(openai_ask *a, const json_t *v)
{
    return read_bool(v, &a->j->literal_ids);
}

static corun_status read_add_special(openai_ask *a, const json_t *v)
{
    bool b = false;
    TRY(read_bool(v, &b));
    a->add_special = b;
    return CORUN_OK;
}

static corun_status read_truncate(openai_ask *a, const json_t *v)
{
    return read_count(v, 1, &a->truncate);
}

static corun_status read_best_of(openai_ask *a, const json_t *v)
{
    return read_int(v, 1, CORUN_MAX_SAMPLE, &a->best_of);
}

static corun_status read_refused(openai_ask *a, const json_t *v)
{
    (void)a;
    (void)v;
    FAIL(CORUN_EINVAL, "only null is supported");
}

static corun_status read_response_format(openai_ask *a, const json_t *v)
{
    (void)a;
    const char *type = json_string_value(json_object_get(v, "type"));
    if (!type || strcmp(type, "text") != 0 || json_object_size(v) != 1)
        FAIL(CORUN_EINVAL, "only {\"type\": \"text\"} is supported");
    return CORUN_OK;
}

static corun_status read_prompt(openai_ask *a, const json_t *v)
{
    a->prompt = v;
    return CORUN_OK;
}

static corun_status read_messages(openai_ask *a, const json_t *v)
{
    a->messages = v;
    return CORUN_OK;
}

static corun_status read_tools(openai_ask *a, const json_t *v)
{
    if (!json_is_array(v)) FAIL(CORUN_EINVAL, "must be a list");
    size_t i;
    const json_t *t;
    json_array_foreach (v, i, t) {
        const char *type = json_string_value(json_object_get(t, "type"));
        const json_t *f = json_object_get(t, "function");
        if (!type || strcmp(type, "function") != 0 || !json_is_string(json_object_get(f, "name")))
            FAIL(CORUN_EINVAL, "tool %zu is not a function with a name", i);
    }
    a->tools = v;
    return CORUN_OK;
}

static corun_status read_tool_choice(openai_ask *a, const json_t *v)
{
    (void)a;
    const char *s = json_string_value(v);
    if (!s || (strcmp(s, "none") != 0 && strcmp(s, "auto") != 0))
        FAIL(CORUN_EINVAL, "only \"none\" and \"auto\" are supported");
    return CORUN_OK;
}

static corun_status read_documents(openai_ask *a, const json_t *v)
{
    if (!json_is_array(v)) FAIL(CORUN_EINVAL, "must be a list");
    a->documents = v;
    return CORUN_OK;
}

static corun_status read_template(openai_ask *a, const json_t *v)
{
    if (!json_is_string(v)) FAIL(CORUN_EINVAL, "must be a string");
    a->chat_template = v;
    return CORUN_OK;
}

static corun_status read_kwargs(openai_ask *a, const json_t *v)
{
    if (!json_is_object(v)) FAIL(CORUN_EINVAL, "must be an object");
    a->kwargs = v;
    return CORUN_OK;
}

static corun_status read_effort(openai_ask *a, const json_t *v)
{
    if (!json_is_string(v)) FAIL(CORUN_EINVAL, "must be a string");
    a->effort = v;
    return CORUN_OK;
}

static corun_status read_add_generation(openai_ask *a, const json_t *v)
{
    bool b = false;
    TRY(read_bool(v, &b));
    a->add_generation = b;
    return CORUN_OK;
}

static corun_status read_continue(openai_ask *a, const json_t *v)
{
    return read_bool(v, &a->continue_final);
}

#define AT(member)         offsetof(corun_sampling, member), 0, 0, NULL
#define IN(member, lo, hi) offsetof(corun_sampling, member), (lo), (hi), NULL
#define FN(f)              0, 0, 0, (f)

static const field fields[] = {
    {"model", BOTH, OWN, FN(read_model)},
    {"max_tokens", BOTH, OWN, FN(read_max)},
    {"max_completion_tokens", CHAT, OWN, FN(read_max_completion)},
    {"min_tokens", BOTH, INT, IN(min_tokens, 0, INT32_MAX)},
    {"temperature", BOTH, REAL, IN(temperature, 0, 2)},
    {"top_p", BOTH, REAL, IN(top_p, 0, 1)},
    {"top_k", BOTH, OWN, FN(read_top_k)},
    {"min_p", BOTH, REAL, IN(min_p, 0, 1)},
    {"repetition_penalty", BOTH, REAL, IN(repetition_penalty, 1e-6, 1e6)},
    {"presence_penalty", BOTH, REAL, IN(presence_penalty, -2, 2)},
    {"frequency_penalty", BOTH, REAL, IN(frequency_penalty, -2, 2)},
    {"n", BOTH, INT, IN(n, 1, CORUN_MAX_SAMPLE)},
    {"best_of", COMP, OWN, FN(read_best_of)},
    {"seed", BOTH, OWN, FN(read_seed)},
    {"logit_bias", BOTH, OWN, FN(read_bias)},
    {"allowed_token_ids", BOTH, OWN, FN(read_allowed)},
    {"bad_words", BOTH, OWN, FN(read_bad)},
    {"stop", BOTH, OWN, FN(read_stop)},
    {"stop_token_ids", BOTH, OWN, FN(read_stop_ids)},
    {"include_stop_str_in_output", BOTH, BOOL, AT(include_stop)},
    {"ignore_eos", BOTH, BOOL, AT(ignore_eos)},
    {"skip_special_tokens", BOTH, BOOL, AT(skip_special)},
    {"logprobs", BOTH, OWN, FN(read_logprobs)},
    {"top_logprobs", CHAT, OWN, FN(read_top_logprobs)},
    {"prompt_logprobs", BOTH, OWN, FN(read_prompt_logprobs)},
    {"echo", BOTH, OWN, FN(read_echo)},
    {"return_token_ids", BOTH, OWN, FN(read_return_ids)},
    {"return_tokens_as_token_ids", BOTH, OWN, FN(read_literal_ids)},
    {"add_special_tokens", BOTH, OWN, FN(read_add_special)},
    {"truncate_prompt_tokens", BOTH, OWN, FN(read_truncate)},
    {"stream", BOTH, OWN, FN(read_stream)},
    {"stream_options", BOTH, OWN, FN(read_stream_options)},
    {"response_format", BOTH, OWN, FN(read_response_format)},
    {"prompt", COMP, OWN, FN(read_prompt)},
    {"suffix", COMP, OWN, FN(read_refused)},
    {"messages", CHAT, OWN, FN(read_messages)},
    {"tools", CHAT, OWN, FN(read_tools)},
    {"tool_choice", CHAT, OWN, FN(read_tool_choice)},
    {"documents", CHAT, OWN, FN(read_documents)},
    {"chat_template", CHAT, OWN, FN(read_template)},
    {"chat_template_kwargs", CHAT, OWN, FN(read_kwargs)},
    {"reasoning_effort", CHAT, OWN, FN(read_effort)},
    {"add_generation_prompt", CHAT, OWN, FN(read_add_generation)},
    {"continue_final_message", CHAT, OWN, FN(read_continue)},
};

static corun_status read_plain(openai_ask *a, const field *f, const json_t *v)
{
    char *at = (char *)&a->j->s + f->at;
    if (f->kind == BOOL) return read_bool(v, (bool *)at);
    if (f->kind == INT) return read_int(v, (int64_t)f->lo, (int64_t)f->hi, (int32_t *)(void *)at);
    if (!json_is_number(v)) FAIL(CORUN_EINVAL, "must be a number");
    double d = json_number_value(v);
    if (!(d >= f->lo && d <= f->hi)) FAIL(CORUN_EINVAL, "%g is not in %g ... %g", d, f->lo, f->hi);
    *(double *)(void *)at = d;
    return CORUN_OK;
}

corun_status openai_fields(openai_ask *a, const char **param)
{
    const unsigned here = a->j->kind == JOB_CHAT ? CHAT : COMP;
    const char *key;
    json_t *v;
    json_object_foreach ((json_t *)(uintptr_t)a->j->body, key, v) {
        const field *f = NULL;
        for (size_t i = 0; i < sizeof fields / sizeof *fields && !f; i++)
            if (fields[i].where & here && strcmp(key, fields[i].name) == 0) f = &fields[i];
        if (!f && openai_ignored(key)) continue;
        *param = key;
        if (!f)
            FAIL(CORUN_EINVAL,
                 "%.100s: this field is not supported here (docs/batch.md has the list)", key);
        if (json_is_null(v)) continue;
        corun_status st = f->kind == OWN ? f->read(a, v) : read_plain(a, f, v);
        if (st == CORUN_ENOMEM) return st;
        if (st != CORUN_OK) return err_prefix(st, "%s", key);
    }
    *param = NULL;
    return CORUN_OK;
}
