/* step.h - one forward pass as plain data: made by sched, read by model and by the backends.
 *
 * A row is one sequence's part of the step: q_len consecutive tokens from position pos on.
 * A dead row keeps the shape of a fixed decode step: it has no slot, no pages and no effect.
 *
 * A row's token may come from the host (ids in step.tok) or from the slot's device state (the
 * token drawn last for this slot): the host then may not know it yet. Likewise pos is exact today
 * and an upper bound once speculation exists; pages are always reserved for the upper bound.
 * A row whose sequence turned out to have ended one step earlier is run all the same and its
 * result dropped; its pages are freed one step later. */
#ifndef STEP_STEP_H
#define STEP_STEP_H

#include <stdbool.h>
#include <stdint.h>

typedef enum step_kind {
    STEP_PREFILL, /* one request alone (isolated) */
    STEP_DECODE,  /* every live row has q_len 1 */
    STEP_MIXED    /* prefill chunks beside decode rows */
} step_kind;

typedef enum step_want {
    STEP_WANT_NONE, /* no logits: the middle of a prompt */
    STEP_WANT_LAST, /* of the row's last token */
    STEP_WANT_ALL   /* of each of its tokens (prompt log-probabilities) */
} step_want;

#define STEP_TOK_SLOT (-1) /* tok_first: the token is the slot's last drawn one (q_len is 1) */
#define STEP_NO_SLOT  (-1)

typedef struct step_row {
    int32_t seq;         /* the scheduler's handle of the sequence; -1: a dead row */
    int32_t slot;        /* per-slot sampling state; STEP_NO_SLOT while a prompt is in work */
    int32_t pos;         /* position of the first token */
    int32_t q_len;       /* tokens, at least 1 */
    int32_t tok_first;   /* index into step.tok, or STEP_TOK_SLOT */
    const int32_t *page; /* [n_page] page of tokens 0, page_tokens, ... of the sequence */
    int32_t n_page;      /* covers pos + q_len tokens */
    step_want want;
} step_row;

/* One draw: the logits of a row's last token, sampled with the state of a slot. A finished
 * prompt with n samples gives n lanes on one row. */
typedef struct step_lane {
    int32_t row;  /* index into step.row, whose want is not NONE */
    int32_t slot; /* sampling state to use and to advance */
    int32_t seq;  /* who gets the token */
} step_lane;

typedef struct step {
    uint64_t id; /* counts up from 1 */
    step_kind kind;
    int32_t n_row; /* dead rows included */
    const step_row *row;
    int32_t n_tok; /* ids in tok */
    const int32_t *tok;
    int32_t n_lane;
    const step_lane *lane;
} step;

#endif
