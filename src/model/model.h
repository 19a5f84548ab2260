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

#define MODEL_MAX_SCRATCH 8 /* sampling states beside the slots */

typedef struct model model;
struct model {
    config cfg;
    ops *o;
    digest weights; /* of their content */
    bool gguf;      /* names and rows of a GGUF file */
    uint64_t n_param;
    bool fake; /* tokens do not come from the ops */
    /* Sizes the backend and the activations for a schedule; before the first step, and again for
     * each new engine. c->n_slot holds the scratch states too. */
    corun_status (*configure)(model *m, const ops_conf *c);
    /* Runs the step: afterwards the wanted rows' final hidden states are ready for logits. */
    corun_status (*forward)(model *m, const step *s);
    /* Logits of wanted rows [first, first + n) into the backend's logits buffer. */
    corun_status (*logits)(model *m, int32_t first, int32_t n);
    /* New values of every weight from w, whose tensors have the names and shapes of those that the
     * model was loaded from. All of it is checked before the first is written; m->weights is
     * renewed. *written: true as soon as values have changed, so that a failure after that (memory,
     * device) leaves a mixture. NULL: no weights. */
    corun_status (*refill)(model *m, weights *w, bool *written);
    void (*close)(model *m);
};

/* Dimensions that a backend is opened with. */
void model_dims(const config *cfg, ops_dims *out);
/* Reads weights into a backend, which becomes the model's and is closed on failure. w stays the
 * caller's; NULL: made-up weights, a function of the shapes alone, with logits of a standard
 * deviation of about 4. */
corun_status model_load_on(model **out, weights *w, const config *cfg, ops *o);
/* The same on the CPU backend. */
corun_status model_load(model **out, weights *w, const config *cfg, const ops_open_opts *oo);
/* The same graph on the oracle (tests and goldens); exact: nothing is rounded. */
corun_status model_load_ref(model **out, weights *w, const config *cfg, bool exact);
/* The fake: at `phase` a token is a hash of tokens and positions; at `batch` also of what wrote
 * each cached position; at `position` also of the step's shape; at `run` also of slot and
 * neighbours. One level for prefill and one for decode. */
corun_status model_open_fake(model **out, ops_level prefill, ops_level decode,
                             const ops_open_opts *oo);
void model_close(model *m);

#endif
