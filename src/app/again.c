/* again.c - owns the way from a row back to its request. Invariant: a row gives the request that
 * it answered, or a refusal; nothing is guessed. */
#include "app/again.h"

#include <string.h>

#include "proof/diff.h"

/* The prompt ids of each prompt, in order: in the choices of a completion, in the body of a chat.
 */
static corun_status put_prompts(jw *w, const json_t *body, const json_t *choices, size_t n)
{
    const json_t *of_chat = json_object_get(body, "prompt_token_ids");
    size_t n_choice = json_array_size(choices);
    if (n < 1 || n_choice % n != 0) FAIL(CORUN_EINVAL, "its choices do not fit its n");
    jw_open(w, '[');
    for (size_t i = 0; i < n_choice; i += n) {
        const json_t *c = json_array_get(choices, i);
        const json_t *ids = of_chat ? of_chat : json_object_get(c, "prompt_token_ids");
        if (!json_is_array(ids))
            FAIL(CORUN_EINVAL, "it holds no prompt_token_ids (return_token_ids)");
        const json_t *seed = json_object_get(c, "seed");
        if (i > 0 && !json_equal(seed, json_object_get(json_array_get(choices, 0), "seed")))
            FAIL(CORUN_EINVAL, "its prompts have different seeds");
        jw_value(w, ids);
    }
    jw_close(w, ']');
    return CORUN_OK;
}

static corun_status put_sampling(jw *w, const json_t *corun)
{
    const json_t *sampling = json_object_get(corun, "sampling");
    const json_t *seed = json_object_get(corun, "seed");
    const char *key;
    json_t *v;
    if (!json_is_object(sampling) || !json_is_integer(seed))
        FAIL(CORUN_EINVAL, "it holds no sampling parameters");
    if (!json_is_integer(json_object_get(sampling, "max_tokens")))
        FAIL(CORUN_EINVAL, "its prompts have different max_tokens");
    if (json_object_get(sampling, "echo")) FAIL(CORUN_EINVAL, "it has an echo");
    json_object_foreach ((json_t *)(uintptr_t)sampling, key, v) {
        jw_key(w, key);
        jw_value(w, v);
    }
    jw_key(w, "seed");
    jw_value(w, seed);
    return CORUN_OK;
}

static corun_status put_batch(jw *w, const json_t *row, const json_t *body)
{
    const json_t *corun = json_object_get(body, "corun");
    const json_t *choices = json_object_get(body, "choices");
    int64_t n = 0;
    TRY(json_is_whole(json_object_get(json_object_get(corun, "sampling"), "n"), &n)
            ? CORUN_OK
            : err_set(CORUN_EINVAL, "it holds no sampling parameters"));
    jw_open(w, '{');
    jw_key(w, "custom_id");
    jw_value(w, json_object_get(row, "custom_id"));
    jw_field_str(w, "method", "POST");
    jw_field_str(w, "url", "/v1/completions");
    jw_key(w, "body");
    jw_open(w, '{');
    jw_key(w, "model");
    jw_value(w, json_object_get(body, "model"));
    jw_key(w, "prompt");
    TRY(put_prompts(w, body, choices, n < 1 ? 0 : (size_t)n));
    jw_field_bool(w, "return_token_ids", true);
    TRY(put_sampling(w, corun));
    jw_close(w, '}');
    jw_close(w, '}');
    return CORUN_OK;
}

static void put_score(jw *w, const json_t *row)
{
    const json_t *top = json_object_get(row, "top_logprobs");
    size_t k = 0;
    for (size_t i = 0; i < json_array_size(top); i++)
        if (json_array_size(json_array_get(top, i)) > k)
            k = json_array_size(json_array_get(top, i));
    jw_open(w, '{');
    jw_key(w, "tokens");
    jw_value(w, json_object_get(row, "tokens"));
    jw_field_uint(w, "top_logprobs", k);
    jw_close(w, '}');
}

bool again_is_score(const json_t *row)
{
    return !diff_body(row) && json_is_array(json_object_get(row, "token_logprobs"));
}

corun_status again_line(const json_t *row, buf *line, bool *score)
{
    const json_t *body = diff_body(row);
    jw w;
    jw_init(&w, line);
    *score = again_is_score(row);
    if (*score)
        put_score(&w, row);
    else if (body && json_is_string(json_object_get(row, "custom_id")))
        TRY(put_batch(&w, row, body));
    else
        FAIL(CORUN_EINVAL, "it is no row of a batch");
    return buf_status(line);
}
