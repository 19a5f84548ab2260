/* refill.c - owns new weights for a model that is open. Invariant: a model runs with the weights
 * that its identity names, or not at all. */
#include "engine/engine.h"

static corun_status to_arrays(const corun_tensor *t, size_t n, weights_array *out)
{
    static const weights_dtype type[] = {
        [CORUN_BF16] = WEIGHTS_BF16, [CORUN_F16] = WEIGHTS_F16, [CORUN_F32] = WEIGHTS_F32};
    for (size_t i = 0; i < n; i++) {
        const corun_tensor *s = &t[i];
        if (!s->name) FAIL(CORUN_EINVAL, "corun_model_refill: tensor %zu has no name", i);
        if ((unsigned)s->dtype > CORUN_F32)
            FAIL(CORUN_EINVAL, "tensor \"%s\": unknown type %d", s->name, (int)s->dtype);
        if (s->n_dim < 0 || s->n_dim > CORUN_MAX_DIM || (!s->dim && s->n_dim))
            FAIL(CORUN_EINVAL, "tensor \"%s\": %d dimensions, at most %d", s->name, s->n_dim,
                 CORUN_MAX_DIM);
        out[i].t = (weights_tensor){.name = s->name, .dtype = type[s->dtype], .n_dim = s->n_dim};
        for (int32_t k = 0; k < s->n_dim; k++) out[i].t.dim[k] = s->dim[k];
        out[i].data = s->data;
    }
    return CORUN_OK;
}

/* Another scheduler with the same options: no page of the old weights can be met again. */
static corun_status refill_with(corun_model *m, weights *w)
{
    corun_engine *e = m->engine;
    sched *fresh = NULL;
    bool written = false;
    if (e) TRY(engine_land(e)); /* rows of requests that have ended */
    if (e) TRY(sched_open(&fresh, &e->sched_opts));
    corun_status st = m->net->refill(m->net, w, &written);
    if (written) m->mixed = st != CORUN_OK;
    if (!written) {
        sched_close(fresh);
        return st;
    }
    if (e) {
        sched_close(e->s);
        e->s = fresh;
        if (st == CORUN_OK && (st = identity_make(e)) != CORUN_OK) m->mixed = true;
    }
    return st;
}

corun_status corun_model_refill(corun_model *m, const corun_tensor *t, size_t n)
{
    weights *w = NULL;
    if (!m || (!t && n)) FAIL(CORUN_EINVAL, "corun_model_refill: NULL");
    if (!m->net->refill) FAIL(CORUN_EUNSUPPORTED, "a fake model has no weights to refill");
    if (m->engine && m->engine->list)
        FAIL(CORUN_EINVAL, "corun_model_refill: requests are alive in the engine of this model");
    weights_array *a = mem_alloc(n, sizeof *a, "tensors");
    if (!a) return CORUN_ENOMEM;
    corun_status st = to_arrays(t, n, a);
    if (st == CORUN_OK) st = weights_of_arrays(&w, a, n, m->net->gguf);
    if (st == CORUN_OK) st = refill_with(m, w);
    if (st == CORUN_OK) weights_types(w, m->tensor_types, sizeof m->tensor_types);
    weights_close(w);
    mem_free(a);
    return st;
}
