/* model.h - a network on a backend: loaded weights, and forward(step).
 *
 * A family is a row of a table and one graph file (arch_*.c). The fake model has no weights: its
 * logits are a hash of what a kernel of a given level may depend on, and its KV pages hold digests,
 * so a wrong page, slot or schedule shows. */
#ifndef MODEL_MODEL_H
#define MODEL_MODEL_H

#include "base/digest.h"
#include "files/config.h"
#include "ops/ops.h"

/* The loaded files, shared by the engines of a model; read-only after load but for refill. */
typedef struct model model;

typedef struct model_opts {
    int32_t max_tok, max_row, max_lane, n_slot, n_page, n_swap, page_tokens, n_ctx, n_top;
    bool processed_logprobs;
    ops_set set[OPS_N_OP];
} model_opts;

#define MODEL_MAX_SCRATCH 8 /* sampling states beside the slots */

struct model {
    config cfg;
    ops *o;
    digest weights; /* content */
    uint64_t n_param;
    /* Runs the step: afterwards the wanted rows' final hidden states are in x_want, ready for
     * logits. */
    corun_status (*forward)(model *m, const step *s);
    /* Logits of wanted rows [first, first + n) into the backend's logits buffer. */
    corun_status (*logits)(model *m, int32_t first, int32_t n);
    void (*close)(model *m);
};

/* Reads weights into a backend. w stays the caller's; isa and threads as in ops_open_opts. */
corun_status model_load(model **out, weights *w, const config *cfg, const model_opts *o,
                        const ops_open_opts *oo);
/* level: one for prefill and one for decode. */
corun_status model_open_fake(model **out, ops_level prefill, ops_level decode, const model_opts *o,
                             const ops_open_opts *oo);
void model_close(model *m);

#endif
