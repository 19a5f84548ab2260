/* params.c - owns the rules for sampling parameters. Invariant: what params_check let through
 * cannot make an op read outside its arrays, nor divide by zero. */
#include "engine/params.h"

#include <math.h>
#include <string.h>

static corun_status in_range(const char *name, double v, double lo, double hi)
{
    if (!(v >= lo && v <= hi)) FAIL(CORUN_EINVAL, "%s: %g is not in %g ... %g", name, v, lo, hi);
    return CORUN_OK;
}

static corun_status ids_ok(const char *name, const int32_t *id, size_t n, size_t max,
                           int32_t n_vocab)
{
    if (n > max) FAIL(CORUN_EINVAL, "%s: %zu entries, more than the %zu allowed", name, n, max);
    for (size_t i = 0; i < n; i++)
        if (id[i] < 0 || id[i] >= n_vocab)
            FAIL(CORUN_EINVAL, "%s: token id %d is not in 0 ... %d", name, id[i], n_vocab - 1);
    return CORUN_OK;
}

static corun_status check_numbers(const corun_sampling *s)
{
    TRY(in_range("temperature", s->temperature, 0, 100));
    TRY(in_range("top_p", s->top_p, 0, 1));
    TRY(in_range("min_p", s->min_p, 0, 1));
    TRY(in_range("presence_penalty", s->presence_penalty, -2, 2));
    TRY(in_range("frequency_penalty", s->frequency_penalty, -2, 2));
    TRY(in_range("repetition_penalty", s->repetition_penalty, 1e-6, 1e6));
    if (s->top_k < -1) FAIL(CORUN_EINVAL, "top_k: %d is neither -1, 0 nor positive", s->top_k);
    if (s->n < 1 || s->n > CORUN_MAX_SAMPLE)
        FAIL(CORUN_EINVAL, "n: %d is not in 1 ... %d", s->n, CORUN_MAX_SAMPLE);
    if (s->max_tokens < -1) FAIL(CORUN_EINVAL, "max_tokens: %d is negative", s->max_tokens);
    if (s->min_tokens < 0) FAIL(CORUN_EINVAL, "min_tokens: %d is negative", s->min_tokens);
    if (s->logprobs < -1 || s->logprobs > CORUN_MAX_TOP)
        FAIL(CORUN_EINVAL, "logprobs: %d is not in 0 ... %d", s->logprobs, CORUN_MAX_TOP);
    if (s->prompt_logprobs < -1 || s->prompt_logprobs > CORUN_MAX_TOP)
        FAIL(CORUN_EINVAL, "prompt_logprobs: %d is not in 0 ... %d", s->prompt_logprobs,
             CORUN_MAX_TOP);
    return CORUN_OK;
}

static corun_status check_stops(const corun_sampling *s)
{
    if (s->n_stop > PARAMS_MAX_STOP)
        FAIL(CORUN_EINVAL, "stop: %zu strings, more than the %d allowed", s->n_stop,
             PARAMS_MAX_STOP);
    for (size_t i = 0; i < s->n_stop; i++) {
        if (s->stop[i].len == 0) FAIL(CORUN_EINVAL, "stop: string %zu is empty", i);
        if (s->stop[i].len > PARAMS_MAX_STOP_LEN)
            FAIL(CORUN_EINVAL, "stop: string %zu has %zu bytes, more than the %d allowed", i,
                 s->stop[i].len, PARAMS_MAX_STOP_LEN);
    }
    return CORUN_OK;
}

static corun_status check_bad_words(const corun_sampling *s, const params_limits *l)
{
    size_t total = 0;
    if (s->n_bad > PARAMS_MAX_BAD)
        FAIL(CORUN_EINVAL, "bad_words: %zu words, more than the %d allowed", s->n_bad,
             PARAMS_MAX_BAD);
    for (size_t i = 0; i < s->n_bad; i++) {
        if (s->bad_len[i] < 1 || s->bad_len[i] > PARAMS_MAX_BAD_LEN)
            FAIL(CORUN_EINVAL, "bad_words: word %zu has %d tokens, not 1 ... %d", i, s->bad_len[i],
                 PARAMS_MAX_BAD_LEN);
        total += (size_t)s->bad_len[i];
    }
    if (total > OPS_MAX_BAD_SLOT)
        FAIL(CORUN_EINVAL, "bad_words: %zu tokens together, more than the %d allowed", total,
             OPS_MAX_BAD_SLOT);
    return ids_ok("bad_words", s->bad_id, total, total, l->n_vocab);
}

/* Masks that leave nothing to draw are an error before any work. */
static corun_status check_drawable(const corun_sampling *s, const params_limits *l)
{
    for (size_t i = 0; i < s->n_allowed; i++)
        if (s->allowed[i] < l->n_draw_max) return CORUN_OK;
    if (s->n_allowed) FAIL(CORUN_EINVAL, "allowed_token_ids: none of them has a token");
    return CORUN_OK;
}

corun_status params_check(const corun_sampling *s, int32_t n_prompt, const params_limits *l)
{
    TRY(check_numbers(s));
    TRY(ids_ok("logit_bias", s->bias_id, s->n_bias, PARAMS_MAX_BIAS, l->n_vocab));
    for (size_t i = 0; i < s->n_bias; i++)
        if (!(fabsf(s->bias[i]) <= 100.0f))
            FAIL(CORUN_EINVAL, "logit_bias: %g for id %d is not in -100 ... 100",
                 (double)s->bias[i], s->bias_id[i]);
    TRY(ids_ok("allowed_token_ids", s->allowed, s->n_allowed, (size_t)l->n_vocab, l->n_vocab));
    TRY(check_drawable(s, l));
    TRY(ids_ok("stop_token_ids", s->stop_id, s->n_stop_id, (size_t)l->n_vocab, l->n_vocab));
    TRY(check_bad_words(s, l));
    TRY(check_stops(s));
    if (n_prompt > l->n_ctx)
        FAIL(CORUN_ECAPACITY, "the prompt has %d tokens, the context holds %d", n_prompt, l->n_ctx);
    if (s->max_tokens > l->n_ctx - n_prompt)
        FAIL(CORUN_ECAPACITY, "%d prompt tokens and max_tokens %d exceed the context of %d",
             n_prompt, s->max_tokens, l->n_ctx);
    if (s->max_tokens == -1 && n_prompt == l->n_ctx)
        FAIL(CORUN_ECAPACITY, "the prompt fills the context of %d tokens", l->n_ctx);
    int32_t max_new = s->max_tokens < 0 ? l->n_ctx - n_prompt : s->max_tokens;
    if (s->min_tokens > max_new)
        FAIL(CORUN_EINVAL, "min_tokens: %d is more than max_tokens %d", s->min_tokens, max_new);
    return CORUN_OK;
}

/* Copies n items to *at and moves it on; arrays stay 8-byte aligned. */
static const void *put(char **at, const void *src, size_t bytes)
{
    void *dst = *at;
    if (bytes) memcpy(dst, src, bytes);
    *at += (bytes + 7) / 8 * 8;
    return dst;
}

corun_status params_copy(params *out, const corun_sampling *s, int32_t n_prompt,
                         const params_limits *l)
{
    *out = (params){.s = *s};
    TRY(params_check(s, n_prompt, l));
    size_t n_bad = 0, stop_bytes = 0;
    for (size_t i = 0; i < s->n_bad; i++) n_bad += (size_t)s->bad_len[i];
    for (size_t i = 0; i < s->n_stop; i++) stop_bytes += s->stop[i].len + 8;
    size_t ids = 2 * s->n_bias + s->n_allowed + n_bad + s->n_bad + 2 * s->n_stop_id + 16;
    size_t bytes =
        ids * 4 + 16 * 8 + (size_t)l->n_eos * 4 + s->n_stop * sizeof(corun_bytes) + stop_bytes;
    char *at = out->block = mem_alloc(bytes, 1, "sampling parameters");
    if (!at) return CORUN_ENOMEM;
    corun_sampling *o = &out->s;
    o->bias_id = put(&at, s->bias_id, s->n_bias * 4);
    o->bias = put(&at, s->bias, s->n_bias * 4);
    o->allowed = put(&at, s->allowed, s->n_allowed * 4);
    o->bad_id = put(&at, s->bad_id, n_bad * 4);
    o->bad_len = put(&at, s->bad_len, s->n_bad * 4);
    o->stop_id = put(&at, s->stop_id, s->n_stop_id * 4);
    out->n_end = (int32_t)s->n_stop_id + (s->ignore_eos ? 0 : l->n_eos);
    out->end_id = (int32_t *)(void *)at;
    int32_t n = 0;
    for (int32_t i = 0; i < l->n_eos && !s->ignore_eos; i++) out->end_id[n++] = l->eos[i];
    for (size_t i = 0; i < s->n_stop_id; i++) out->end_id[n++] = s->stop_id[i];
    at += ((size_t)n * 4 + 7) / 8 * 8;
    corun_bytes *stop = (corun_bytes *)(void *)at;
    at += s->n_stop * sizeof *stop;
    for (size_t i = 0; i < s->n_stop; i++) {
        stop[i].len = s->stop[i].len;
        stop[i].data = put(&at, s->stop[i].data, s->stop[i].len);
    }
    o->stop = stop;
    out->max_new = s->max_tokens < 0 ? l->n_ctx - n_prompt : s->max_tokens;
    return CORUN_OK;
}

void params_free(params *p)
{
    mem_free(p->block);
    p->block = NULL;
}

void params_slot(const params *p, const params_limits *l, ops_slot *out)
{
    const corun_sampling *s = &p->s;
    *out = (ops_slot){.temperature = (float)s->temperature,
                      .top_p = (float)s->top_p,
                      .min_p = (float)s->min_p,
                      .repetition = (float)s->repetition_penalty,
                      .presence = (float)s->presence_penalty,
                      .frequency = (float)s->frequency_penalty,
                      .top_k = s->top_k < 0 ? 0 : s->top_k,
                      .min_tokens = s->min_tokens,
                      .n_top = s->logprobs,
                      .end_id = p->end_id,
                      .n_end = p->n_end,
                      .bias_id = s->bias_id,
                      .bias = s->bias,
                      .n_bias = (int32_t)s->n_bias,
                      .allowed = s->allowed,
                      .n_allowed = (int32_t)s->n_allowed,
                      .bad_id = s->bad_id,
                      .bad_len = s->bad_len,
                      .n_bad = (int32_t)s->n_bad,
                      .n_draw_max = l->n_draw_max};
}
