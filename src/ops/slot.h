/* slot.h - the sampling state of one slot in host memory: what slot_put of every backend fills. */
#ifndef OPS_SLOT_H
#define OPS_SLOT_H

#include "ops/ops.h"

typedef struct slot_state {
    bool ready;
    ops_slot p;       /* parameters; its pointers are not used after slot_fill */
    bool use_flag;    /* flag holds something */
    bool use_bias;    /* bias holds something */
    bool use_count;   /* a penalty needs counts */
    int32_t n_output; /* tokens drawn so far */
    int32_t last;     /* the last of them */
    uint8_t *flag;    /* [n_vocab] SAMPLE_* */
    int32_t *count;   /* [n_vocab] */
    float *bias;      /* [n_vocab] */
    int32_t *bad_id;  /* [OPS_MAX_BAD_SLOT] */
    int32_t *bad_len; /* [OPS_MAX_BAD] */
    int32_t *recent;  /* [OPS_MAX_BAD_LEN] ring: output token i at i % OPS_MAX_BAD_LEN */
} slot_state;

/* The arrays are the caller's, zeroed before the first call. CORUN_EINVAL: an id out of range, too
 * many bad words or alternatives, a parameter without meaning; ready is then false. */
corun_status slot_fill(slot_state *t, int32_t n_vocab, int32_t n_top, const ops_slot *p);
/* A token was drawn. */
void slot_advance(slot_state *t, int32_t token);

#endif
