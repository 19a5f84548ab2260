/* sched.h - who runs when, on which pages, in which row: integers only, no clock, no device.
 *
 * A request is a prompt with one or more samples. Its samples share the prompt's prefill and its
 * full pages; each sample is a sequence of its own from the first drawn token on. The unit of
 * admission and of moving out is the request.
 *
 * The engine's loop:
 *   sched_plan   gives page moves to carry out, in order, then one step to run (or none)
 *   (runs it, draws the lanes)
 *   sched_note   for each lane of the step: the sequence goes on, or has ended
 * With lag 1 the engine may plan step i + 1 before it notes step i: ends by max_new are known
 * ahead, other ends are not, so a row of an ended sequence may run once more; sched_note of that
 * row is ignored and its pages are free only after it.
 *
 * Reuse: a full page is entered in the prefix cache (prefix.h) when a step is noted whose good draw
 * read it; a prompt that begins with the same tokens then owns it too instead of computing it. A
 * page that nobody owns stays an entry until the pool needs it.
 *
 * Recompute: instead of moving out, a request gives its pages up; coming back it gets pages, takes
 * what the cache still has, and computes the rest from its prompt and the tokens drawn so far, in
 * rows that want nothing. Draws are never drawn again.
 *
 * Invariants (each tested on random streams): a page has as many owners as it is counted; no row
 * writes a page that another sequence can see or find; no row reads what another row of its step
 * writes; everything admitted finishes; under corun the steps of a request (chunks, shapes,
 * positions) do not depend on any other request, with cut the rows of its prompt do not.
 *
 * Nothing here allocates after sched_open and sched_add. */
#ifndef SCHED_SCHED_H
#define SCHED_SCHED_H

#include "base/err.h"
#include "step/step.h"

typedef enum sched_planner {
    SCHED_PLAN_CORUN,  /* isolated prefill on its grid, decode at the fixed width */
    SCHED_PLAN_DYNAMIC /* continuous batching, prompts in pieces beside decode */
} sched_planner;

typedef enum sched_reuse {
    SCHED_REUSE_NONE,
    SCHED_REUSE_PIECES, /* pages of whole pieces (cut) that prompt rows wrote, in whole pieces */
    SCHED_REUSE_PAGES   /* any full page, whatever wrote it */
} sched_reuse;

typedef struct sched_opts {
    sched_planner planner;
    int32_t n_slot;      /* rows of a decode step */
    int32_t n_ctx;       /* longest sequence */
    int32_t page_tokens; /* 16, 32, 64 or 128 */
    int32_t n_page;      /* of the pool; page 0 is the null page: never given out */
    int32_t n_swap;      /* pages of the swap area */
    int32_t chunk;       /* corun: the grid; dynamic: token budget of a step */
    int32_t cut; /* dynamic: 0, or prompts are cut at its multiples only, chunk is a multiple of it,
                    and decode rows do not count in the budget */
    sched_reuse reuse;   /* dynamic only; PIECES: with cut */
    bool recompute;      /* dynamic without cut: pages are dropped and computed again, not moved */
    int32_t key_bits;    /* tests: bits of a digest in the prefix cache (1 to 62); 0: all */
    int32_t max_request; /* alive at one time (queued ones included) */
    int32_t lag;         /* 0 or 1 */
    bool eager;          /* keep no room for what those in the pool will ask for: more moves */
} sched_opts;

typedef struct sched_request {
    uint64_t id;
    const int32_t *tokens; /* copied */
    int32_t n_token;       /* prompt, at least 1 */
    int32_t max_new;       /* most tokens of a sample; 0: the prompt is only scored */
    int32_t n_sample;
    bool want_all; /* logits of every prompt token */
} sched_request;

/* Handles: sample i of the request in place p has seq p * SCHED_MAX_SAMPLE + i. Places are below
 * max_request and are reused once the request has ended and no step in flight holds a row of it. */
#define SCHED_MAX_SAMPLE CORUN_MAX_SAMPLE

typedef struct sched sched;

corun_status sched_open(sched **out, const sched_opts *o);
void sched_close(sched *s); /* NULL is fine */

/* The largest step these options can give (o is as sched_open takes it). */
typedef struct sched_limits {
    int32_t max_row;  /* dead ones included */
    int32_t max_tok;  /* sum of q_len; any of them may be wanted */
    int32_t max_lane; /* scratch slots are below n_slot + max_lane */
} sched_limits;
void sched_limits_get(const sched_opts *o, sched_limits *out);

/* Takes a request at the end of the queue. *seq is the handle of sample 0; sample i is *seq + i.
 * CORUN_EINVAL: a field is out of range, or a living request has this id. CORUN_ECAPACITY names
 * the pages that it would need when it can never fit, or says that max_request are alive. */
corun_status sched_add(sched *s, const sched_request *r, int32_t *seq);
/* All samples end; pages are free after a step in flight. CORUN_EINVAL: no living request has
 * this id. */
corun_status sched_cancel(sched *s, uint64_t id);

typedef enum sched_move_kind { SCHED_COPY, SCHED_OUT, SCHED_IN } sched_move_kind;

typedef struct sched_move {
    sched_move_kind kind;
    int32_t src, dst; /* COPY: page, page; OUT: page, swap page; IN: swap page, page */
} sched_move;

/* A sequence that this step puts into a slot: the engine fills the slot's sampling state (with
 * the tokens drawn so far) before the step runs. */
typedef struct sched_seat {
    int32_t seq, slot;
} sched_seat;

typedef struct sched_plan {
    int32_t n_move;
    const sched_move *move; /* carry out in order, before the step */
    int32_t n_seat;
    const sched_seat *seat;
    step step;                           /* n_row 0: nothing to run */
    int32_t n_swapped_out, n_swapped_in; /* requests moved by this plan */
} sched_plan;

/* Valid until its step is noted (a plan without a step: until the next sched_next). Moves and
 * steps must take effect in the order of the plans: a page of a step in flight may be moved out
 * and given to another by the next plan. A plan without a step may still have moves.
 *
 * n_row 0 while a step is in flight: note it and ask again. n_row 0 with none in flight: idle.
 *
 * A row whose token the scheduler knows (sched_note told it) but whose slot is new has its token
 * in step.tok; a row that stays in its slot uses STEP_TOK_SLOT. A prompt's rows have no slot (its
 * lanes have) and the handle of sample 0. A row that computes again what a sample wrote has no slot
 * and the sample's handle. A dead row has seq -1, STEP_NO_SLOT, no pages, pos 0 and
 * one host token, 0. A slot is given to another sequence only when no step in flight uses it.
 *
 * The lanes of a finished prompt: one for each sample, in order. A sample that has a slot free for
 * it takes it at once (a seat of this plan); the others draw with a scratch slot (slot >= n_slot:
 * n_slot + k for the k-th of them in this step; the engine draws them by turns), wait, and are
 * seated later. */
corun_status sched_next(sched *s, sched_plan *out);

typedef struct sched_result {
    int32_t seq;
    int32_t token; /* drawn; the next step's input */
    bool ended;    /* by eos, a stop or a failure: no further row */
    bool failed;   /* nothing that its row read or wrote may be reused */
} sched_result;

/* Results of the oldest step not yet noted: one for each of its lanes (any order). A request with
 * max_new 0 has no lanes: it ends when its last prompt step is noted. CORUN_EINVAL (and nothing
 * noted): another step is due, or the results are not those of its lanes. */
corun_status sched_note(sched *s, uint64_t step_id, const sched_result *r, int32_t n);

typedef struct sched_stats {
    int32_t n_waiting, n_running, n_out; /* requests queued, admitted and in, moved out */
    int32_t n_seq_running;               /* sequences in slots */
    int32_t page_free, page_peak, swap_free;
    uint64_t n_swap_out, n_swap_in, n_copy;
    uint64_t n_recompute;        /* requests that came back with tokens to compute again */
    uint64_t n_hit, n_hit_token; /* prompts that took pages from the cache, tokens in all of them */
    uint64_t n_cut;              /* prompt rows that ended inside the prompt */
    uint64_t n_evict_most; /* times that one request lost its pages, the most of all requests */
} sched_stats;
void sched_stats_get(const sched *s, sched_stats *out);
bool sched_idle(const sched *s);

/* Checks every invariant; CORUN_EINTERNAL names the broken one (tests and debug builds). */
corun_status sched_check(const sched *s);

#endif
