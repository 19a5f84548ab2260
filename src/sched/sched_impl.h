/* sched_impl.h - the scheduler's state, shared by the files of this folder only.
 *
 * Admitted requests stand in adm[] by age: first those in the pool (n_in of them), then those
 * moved out. Only the youngest in the pool moves out and only the oldest outside comes back, so
 * the two parts never mix. */
#ifndef SCHED_IMPL_H
#define SCHED_IMPL_H

#include "sched/pages.h"
#include "sched/sched.h"

typedef enum seq_state {
    SEQ_IDLE, /* its prompt is not finished */
    SEQ_WAIT, /* without a slot; its token is known once n_noted is n_planned */
    SEQ_RUN,  /* in a slot */
    SEQ_LAST, /* its last draw is in flight; the slot is given up */
    SEQ_DONE
} seq_state;

typedef struct sequence {
    seq_state state;
    bool holds;   /* is an owner of the prompt's pages */
    bool due;     /* sched_note: a lane whose result is still to come */
    int32_t slot; /* SEQ_RUN */
    int32_t tail; /* row of request.tail, -1: none */
    int32_t n_tail;
    int32_t n_planned, n_noted; /* draws */
    int32_t token;              /* the last one noted */
    prefix_at at;               /* its pages in the cache, as far as they are entered */
    int32_t pos;                /* REQ_BACK: tokens in place */
    uint64_t ready;             /* plan that has its next page in place and will run it */
} sequence;

typedef enum req_phase {
    REQ_FREE,
    REQ_QUEUED,
    REQ_PROMPT,
    REQ_BACK, /* recompute: its pages were dropped, or are computed again */
    REQ_SAMPLES,
    REQ_ENDED
} req_phase;

/* Page j of the sequence of a sample: prompt[j] while j < n_full, then tail[j - n_full]. The
 * owners of a full prompt page are the samples that hold (before the prompt is finished: the
 * request itself); those of the partial last one the samples that hold and have no tail yet. */
typedef struct request {
    uint64_t id;
    req_phase phase;
    bool out;  /* its pages are numbers of the swap area (recompute: it has none) */
    bool self; /* the request itself owns the prompt's pages */
    bool want_all;
    int32_t *tokens, n_token, max_new, n_sample;
    int32_t *drawn;                /* [n_sample][max_new] with reuse of any page or recompute */
    int32_t n_full, n_prompt_page; /* prompt pages: full ones, all */
    int32_t *prompt;               /* [n_prompt_page], n_have of them in place; 0: none */
    int32_t n_have;
    int32_t pos;      /* prompt tokens in place when the newest plan has run */
    int32_t seen;     /* prompt tokens ever planned: what is before is computed without logits */
    int32_t target;   /* REQ_BACK: prompt tokens to have in place */
    prefix_at at;     /* its pages in the cache, as far as they are entered */
    uint64_t since;   /* first step that uses its present pages */
    uint64_t in_step; /* the last plan that has a row of its prompt: a step has at most one */
    int32_t k_max, n_tail_max, n_tail_used;
    int32_t *tail;     /* [k_max][n_tail_max] */
    int32_t *tail_seq; /* [k_max] sample, -1: free */
    sequence *seq;     /* [n_sample] */
    int32_t n_live, n_wait, n_run;
    int32_t n_flight;        /* prompt rows and lanes in steps not noted */
    int32_t n_prompt_flight; /* prompt rows of those */
    int32_t full_pages;      /* most pages it can hold */
    int32_t n_out;           /* swap pages it holds */
    uint64_t n_evict;        /* times it was moved out */
    int32_t prev, next;      /* queue */
    int32_t chain;           /* next place with this hash of the id */
} request;

typedef struct slot_use {
    int32_t req, sample; /* -1: none */
    int32_t fresh;       /* seq handle seated by this plan, -1: none */
    uint64_t last_step;  /* the last one that used it */
#ifdef CORUN_BREAK
    int32_t last_page; /* first page of the sequence that sat here last */
#endif
} slot_use;

typedef struct plan_buf {
    uint64_t id; /* of its step, 0: none */
    int32_t n_row, n_tok, n_lane, n_page, n_move, n_seat, n_scratch;
    int32_t n_prompt_row;
    step_kind kind;
    step_row *row;
    int32_t *tok;
    step_lane *lane;
    int32_t *page;
    sched_move *move;
    sched_seat *seat;
    int32_t n_out, n_in;
} plan_buf;

struct sched {
    sched_opts o;
    sched_limits max;
    int32_t max_move, max_page; /* of a plan; entries of page tables */
    pages pool, swap;
    prefix *cache;     /* NULL: no reuse */
    int32_t *page_tok; /* [page_tokens] */
    request *req;      /* [max_request] */
    int32_t *free_req, n_free_req;
    int32_t *bucket, n_bucket; /* first place of each hash of an id; a power of two */
    int32_t queue_head, queue_tail, n_queue;
    int32_t *adm, n_adm, n_in;
    int64_t sum_full; /* of the admitted */
    int32_t n_run;    /* sequences in slots */
    slot_use *slot;
    plan_buf buf[2], *cur;
    int32_t buf_first, n_pending; /* ring of plans not noted */
    uint64_t last_id, noted_id, n_plan;
    bool evicted;       /* by this plan */
    bool turn;          /* corun: a decode step is due before the next chunk */
    corun_status fault; /* of this plan: a broken invariant */
    uint64_t n_swap_out, n_swap_in, n_copy, n_cut, n_evict_most, n_recompute, n_hit, n_hit_token;
    int32_t *count; /* sched_check */
};

static inline int32_t ceil_div(int32_t a, int32_t b) { return a / b + (a % b != 0); }
static inline int32_t min_i(int32_t a, int32_t b) { return a < b ? a : b; }
static inline int32_t max_i(int32_t a, int32_t b) { return a > b ? a : b; }

static inline int32_t seq_handle(const sched *s, const request *r, int32_t sample)
{
    return (int32_t)(r - s->req) * SCHED_MAX_SAMPLE + sample;
}

/* ---- place.c: which request's pages are where, and who sits in which slot ------------------ */

/* Owners of the prompt's full pages, and of its partial one. */
int32_t place_n_hold(const request *r);
int32_t place_n_untailed(const request *r);
/* Tokens that a sample which is not in flight has in its pages. */
int32_t place_written(const request *r, const sequence *q);
/* REQ_BACK: the first sample that does not have them all; NULL: none. When nothing is left to
 * compute, the request goes on. */
sequence *place_back_next(const request *r);
void place_back_done(request *r);
/* The pages of a sample, or of the request itself, lose this owner. */
void place_release(sched *s, request *r, sequence *q);
void place_release_self(sched *s, request *r);
void place_leave_slot(sched *s, request *r, sequence *q);
int32_t place_slots_free(const sched *s);
/* Lowest slot that nobody has and no step in flight uses; -1: none. */
int32_t place_slot_free(const sched *s);
/* A row of request.tail for a sample; false: k_max are taken. */
bool place_take_tail(request *r, sequence *q);
void place_sit(sched *s, request *r, sequence *q, int32_t slot);
/* Pages that running sequences and begun prompts in the pool may soon ask for (eager: 0). */
int32_t place_reserve(const sched *s);
/* The youngest request in the pool moves out; false: it is the only one. */
bool place_evict(sched *s);
/* Gets decode rows ready, oldest request first: the next page of each running sequence (moving
 * the youngest out as needed), seats for waiting ones, requests back in. Returns their number. */
int32_t place_ready(sched *s);
/* The request whose prompt is next, or whose pages are computed again: the one begun (only the
 * youngest in the pool can be), else the head of the queue, which this admits if the rules allow
 * it; else NULL. */
request *place_prompt(sched *s);
/* Out of the list of admitted requests: nothing of it is in flight and it holds no page. */
void place_retire(sched *s, request *r);

/* ---- rows.c: rows and lanes of the step in work --------------------------------------------- */

/* One row of up to max tokens of a prompt, or of what is computed again; false: no room for it, or
 * it would read what this step writes. */
bool rows_prompt(sched *s, request *r, int32_t max);
/* One row a ready sequence; fixed: row index is the slot and empty slots are dead rows. */
void rows_decode(sched *s, bool fixed);

/* ---- reuse.c: the prefix cache --------------------------------------------------------------- */

/* Tokens [pos, pos + n) of a sample. */
void reuse_tokens(const request *r, int32_t sample, int32_t pos, int32_t n, int32_t *out);
/* The pages that the cache has for the prompt, as far as they may be used: *at is their end, page
 * (or NULL) their numbers. Returns how many of them have owners. */
int32_t reuse_find(const sched *s, const request *r, prefix_at *at, int32_t *page);
/* The request, which has no pages, takes them, with n_owner owners each. */
void reuse_take(sched *s, request *r, int32_t n_owner);
/* Likewise the full pages of a sample's first n_token tokens after those of the prompt. */
void reuse_take_tail(sched *s, request *r, sequence *q, int32_t n_token);
/* The sample's newest noted draw is good: the full pages that it read are entered. */
void reuse_keep(sched *s, request *r, sequence *q);
/* Its newest draw has failed: none of its pages is an entry any more. */
void reuse_forget(sched *s, request *r, sequence *q);

/* ---- planners ------------------------------------------------------------------------------- */

void plan_corun(sched *s);
void plan_dynamic(sched *s);

#endif
