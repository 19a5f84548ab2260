/* request.c - owns the memory of one request. Invariant: everything that a step needs is allocated
 * here, before the scheduler hears of the request. */
#include "engine/engine.h"

#include <string.h>

#include "base/fault.h"
#include "base/seed.h"

static params_limits limits_of(const corun_engine *e)
{
    const config *g = &e->m->net->cfg;
    int32_t named = bpe_n_token(e->m->text);
    bool all = e->opts.allow_special_rows || named > g->n_vocab || named == 0;
    return (params_limits){.n_vocab = g->n_vocab,
                           .n_ctx = e->opts.n_ctx,
                           .n_draw_max = all ? g->n_vocab : named,
                           .eos = g->eos,
                           .n_eos = g->n_eos};
}

static corun_status check_prompt(const corun_engine *e, const corun_request *r)
{
    int32_t n_vocab = e->m->net->cfg.n_vocab;
    if (r->n_token == 0) FAIL(CORUN_EINVAL, "the prompt is empty");
    if (r->n_token > (size_t)e->opts.n_ctx)
        FAIL(CORUN_ECAPACITY, "the prompt has %zu tokens, the context holds %d", r->n_token,
             e->opts.n_ctx);
    for (size_t i = 0; i < r->n_token; i++)
        if (r->tokens[i] < 0 || r->tokens[i] >= n_vocab)
            FAIL(CORUN_EINVAL, "prompt: token id %d at %zu is not in 0 ... %d", r->tokens[i], i,
                 n_vocab - 1);
    return CORUN_OK;
}

static corun_status open_samples(request *q)
{
    if (!MEM_NEW(q->sample, (size_t)q->n_sample)) return CORUN_ENOMEM;
    for (int32_t i = 0; i < q->n_sample; i++) {
        sample *s = &q->sample[i];
        *s = (sample){
            .req = q, .index = i, .seed = seed_sample(q->par.s.seed, FAULT(SEED_N) ? 0 : i)};
        buf_init(&s->hold, (size_t)1 << 28);
        if (!MEM_NEW(s->token, (size_t)q->max_new)) return CORUN_ENOMEM;
    }
    return CORUN_OK;
}

corun_status request_open(request **out, const corun_engine *e, const corun_request *r)
{
    *out = NULL;
    TRY(check_prompt(e, r));
    if (r->sampling.n_stop && !e->m->text)
        FAIL(CORUN_EUNSUPPORTED, "stop: this model has no tokenizer, so there is no text");
    params_limits l = limits_of(e);
    request *q = mem_alloc(1, sizeof *q, "request");
    if (!q) return CORUN_ENOMEM;
    q->n_prompt = (int32_t)r->n_token;
    q->n_sample = r->sampling.n;
    corun_status st = params_copy(&q->par, &r->sampling, q->n_prompt, &l);
    if (st == CORUN_OK) {
        q->max_new = q->par.max_new;
        for (size_t i = 0; i < q->par.s.n_stop; i++)
            if (q->par.s.stop[i].len > q->stop_max) q->stop_max = q->par.s.stop[i].len;
        q->prompt = mem_alloc(r->n_token, sizeof *q->prompt, "prompt");
        if (q->prompt)
            memcpy(q->prompt, r->tokens, r->n_token * sizeof *q->prompt);
        else
            st = CORUN_ENOMEM;
    }
    /* A prompt that is only scored has one end, whatever n is. */
    if (q->max_new == 0) q->n_sample = 1;
    if (st == CORUN_OK) st = open_samples(q);
    q->n_open = q->n_sample;
    if (st != CORUN_OK)
        request_close(q);
    else
        *out = q;
    return st;
}

void request_close(request *r)
{
    if (!r) return;
    for (int32_t i = 0; r->sample && i < r->n_sample; i++) {
        mem_free(r->sample[i].token);
        buf_free(&r->sample[i].hold);
    }
    mem_free(r->sample);
    mem_free(r->prompt);
    params_free(&r->par);
    mem_free(r);
}

void request_slot(const corun_engine *e, const sample *s, ops_slot *out)
{
    params_limits l = limits_of(e);
    params_slot(&s->req->par, &l, out);
    out->seed = s->seed;
    out->prompt = s->req->prompt;
    out->n_prompt = s->req->n_prompt;
    out->output = s->token;
    out->n_output = s->n_token;
}
