/* slot.c - checks a slot's parameters and fills its state. Invariant: the arrays (flags, counts,
 * bias) are zero wherever the present state does not say otherwise. */
#include "ops/slot.h"

#include <math.h>
#include <string.h>

#include "ops/sample.h"

static corun_status ids_ok(int32_t n_vocab, const char *what, const int32_t *id, int64_t n)
{
    if (n < 0) FAIL(CORUN_EINVAL, "slot: %s: a negative number of ids", what);
    for (int64_t i = 0; i < n; i++)
        if (id[i] < 0 || id[i] >= n_vocab)
            FAIL(CORUN_EINVAL, "slot: %s: token id %d is not in 0 ... %d", what, id[i],
                 n_vocab - 1);
    return CORUN_OK;
}

static corun_status numbers_ok(int32_t n_top, const ops_slot *p)
{
    /* Written so that NaN fails. */
    if (!(p->temperature >= 0 && p->temperature < INFINITY))
        FAIL(CORUN_EINVAL, "slot: temperature %g", (double)p->temperature);
    if (!(p->top_p >= 0 && p->top_p <= 1)) FAIL(CORUN_EINVAL, "slot: top_p %g", (double)p->top_p);
    if (!(p->min_p >= 0 && p->min_p <= 1)) FAIL(CORUN_EINVAL, "slot: min_p %g", (double)p->min_p);
    if (!(p->repetition > 0 && p->repetition < INFINITY))
        FAIL(CORUN_EINVAL, "slot: repetition penalty %g", (double)p->repetition);
    if (!isfinite(p->presence) || !isfinite(p->frequency))
        FAIL(CORUN_EINVAL, "slot: presence or frequency penalty is not finite");
    if (p->n_top < -1 || p->n_top > n_top)
        FAIL(CORUN_EINVAL, "slot: %d alternatives, more than the %d of the configuration", p->n_top,
             n_top);
    if (p->n_draw_max < 1) FAIL(CORUN_EINVAL, "slot: no id may be drawn");
    return CORUN_OK;
}

static corun_status put_bad_words(slot_state *t, int32_t n_vocab, const ops_slot *p)
{
    if (p->n_bad < 0 || p->n_bad > OPS_MAX_BAD)
        FAIL(CORUN_EINVAL, "slot: %d bad words, more than %d", p->n_bad, OPS_MAX_BAD);
    int64_t total = 0;
    for (int32_t i = 0; i < p->n_bad; i++) {
        if (p->bad_len[i] < 1 || p->bad_len[i] > OPS_MAX_BAD_LEN)
            FAIL(CORUN_EINVAL, "slot: a bad word of %d tokens, not 1 ... %d", p->bad_len[i],
                 OPS_MAX_BAD_LEN);
        total += p->bad_len[i];
    }
    if (total > OPS_MAX_BAD_SLOT)
        FAIL(CORUN_EINVAL, "slot: bad words of %lld tokens together, more than %d",
             (long long)total, OPS_MAX_BAD_SLOT);
    TRY(ids_ok(n_vocab, "bad words", p->bad_id, total));
    if (total) memcpy(t->bad_id, p->bad_id, (size_t)total * sizeof *t->bad_id);
    if (p->n_bad) memcpy(t->bad_len, p->bad_len, (size_t)p->n_bad * sizeof *t->bad_len);
    return CORUN_OK;
}

void slot_advance(slot_state *t, int32_t token)
{
    t->recent[t->n_output % OPS_MAX_BAD_LEN] = token;
    t->n_output++;
    t->last = token;
    if (t->use_count) t->count[token]++;
}

static void put_flags(slot_state *t, int32_t n_vocab, const ops_slot *p)
{
    bool prompt = p->repetition != 1.0f && p->n_prompt > 0, end = p->min_tokens > p->n_output;
    t->use_flag = p->n_allowed > 0 || prompt || (end && p->n_end > 0) || p->repetition != 1.0f;
    if (p->n_allowed > 0) {
        memset(t->flag, SAMPLE_DENIED, (size_t)n_vocab);
        for (int32_t i = 0; i < p->n_allowed; i++) t->flag[p->allowed[i]] = 0;
    }
    for (int32_t i = 0; i < p->n_end && end; i++) t->flag[p->end_id[i]] |= SAMPLE_END;
    for (int32_t i = 0; i < p->n_prompt && prompt; i++) t->flag[p->prompt[i]] |= SAMPLE_PROMPT;
}

corun_status slot_fill(slot_state *t, int32_t n_vocab, int32_t n_top, const ops_slot *p)
{
    size_t v = (size_t)n_vocab;
    t->ready = false;
    TRY(numbers_ok(n_top, p));
    TRY(ids_ok(n_vocab, "end ids", p->end_id, p->n_end));
    TRY(ids_ok(n_vocab, "bias", p->bias_id, p->n_bias));
    TRY(ids_ok(n_vocab, "allowed", p->allowed, p->n_allowed));
    TRY(ids_ok(n_vocab, "prompt", p->prompt, p->n_prompt));
    TRY(ids_ok(n_vocab, "output", p->output, p->n_output));
    for (int32_t i = 0; i < p->n_bias; i++)
        if (!isfinite(p->bias[i]))
            FAIL(CORUN_EINVAL, "slot: the bias of id %d is not finite", p->bias_id[i]);
    TRY(put_bad_words(t, n_vocab, p));
    if (t->use_flag) memset(t->flag, 0, v * sizeof *t->flag);
    if (t->use_count) memset(t->count, 0, v * sizeof *t->count);
    if (t->use_bias) memset(t->bias, 0, v * sizeof *t->bias);
    t->p = *p;
    t->n_output = 0;
    t->last = 0;
    t->use_count = p->repetition != 1.0f || p->presence != 0.0f || p->frequency != 0.0f;
    t->use_bias = p->n_bias > 0;
    for (int32_t i = 0; i < p->n_bias; i++) t->bias[p->bias_id[i]] += p->bias[i];
    put_flags(t, n_vocab, p);
    for (int32_t i = 0; i < p->n_output; i++) slot_advance(t, p->output[i]);
    t->ready = true;
    return CORUN_OK;
}
