/* load.h - from named tensors of a file to weight handles of a backend (inside model/). */
#ifndef MODEL_LOAD_H
#define MODEL_LOAD_H

#include "model/model.h"

/* A matrix of the graph: the rows of up to three tensors, one below the other. */
#define LOAD_MAX_PART 3

typedef struct load_part {
    const weights_tensor *t;
    int64_t rows;
    bool permuted; /* heads of d rows are interleaved (llama GGUF) and put back here */
} load_part;

/* What a walk over the graph's weights does. */
typedef enum load_mode {
    LOAD_OPEN,  /* makes the handles */
    LOAD_CHECK, /* names and shapes only; nothing is read or written */
    LOAD_REFILL /* new values into the handles that are there */
} load_mode;

typedef struct load {
    load_mode mode;
    weights *w; /* NULL: made-up weights */
    const config *cfg;
    ops *o;
    uint64_t n_param;
    uint32_t n_fill; /* made-up matrices so far */
    bool *used;      /* [weights_count]: tensors that the graph has taken */
} load;

/* Roles of tensors; `layer` is -1 for those outside the layers. */
typedef enum load_role {
    LOAD_EMBED,
    LOAD_OUT_NORM,
    LOAD_HEAD,
    LOAD_ATTN_NORM,
    LOAD_Q,
    LOAD_K,
    LOAD_V,
    LOAD_O,
    LOAD_Q_NORM,
    LOAD_K_NORM,
    LOAD_FFN_NORM,
    LOAD_GATE,
    LOAD_UP,
    LOAD_DOWN
} load_role;

/* One handle over the rows of n roles; with bias where the config says that they have one. */
corun_status load_matrix(load *l, int layer, int n, const load_role *role, const int64_t *n_out,
                         int64_t n_in, bool bias, ops_weight **out);
corun_status load_vector(load *l, int layer, load_role role, int64_t n, ops_weight **out);
/* An error that names the first tensor that the graph had no use for: the config contradicts it.
 * Left alone: rotary_emb.inv_freq (made from the config) and the head of a tied model. */
corun_status load_all_used(const load *l);
/* Digest of what was loaded. */
corun_status load_digest(const load *l, digest *out);
/* rope_freqs of a GGUF file, NULL when there are none: [d / 2], mem_free. */
corun_status load_rope_factors(load *l, float **out);

#endif
