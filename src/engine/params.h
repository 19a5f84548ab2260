/* params.h - sampling parameters: checked against the model, and copied.
 * Ranges follow the common serving APIs; a message names the field and the rule. */
#ifndef ENGINE_PARAMS_H
#define ENGINE_PARAMS_H

#include "base/mem.h"
#include "ops/ops.h"

#define PARAMS_MAX_BIAS     100000
#define PARAMS_MAX_STOP     1024
#define PARAMS_MAX_STOP_LEN 4096            /* bytes of one stop string */
#define PARAMS_MAX_BAD_LEN  OPS_MAX_BAD_LEN /* tokens of one bad word */
#define PARAMS_MAX_BAD      OPS_MAX_BAD

typedef struct params_limits {
    int32_t n_vocab, n_ctx, n_draw_max;
    const int32_t *eos; /* ids that end a text unless ignore_eos */
    int32_t n_eos;
} params_limits;

/* Owned copies; end ids are eos (unless ignored) and then the stop token ids. */
typedef struct params {
    corun_sampling s; /* its arrays point into the copies below */
    int32_t max_new;  /* max_tokens after the context is taken into account */
    int32_t *end_id;
    int32_t n_end;
    void *block; /* one allocation that holds all arrays */
} params;

/* CORUN_EINVAL names the field; CORUN_ECAPACITY when prompt + max_tokens exceed the context. */
corun_status params_check(const corun_sampling *s, int32_t n_prompt, const params_limits *l);
corun_status params_copy(params *out, const corun_sampling *s, int32_t n_prompt,
                         const params_limits *l);
void params_free(params *p);
/* The sampling state of a slot but for seed, prompt and output. */
void params_slot(const params *p, const params_limits *l, ops_slot *out);

#endif
