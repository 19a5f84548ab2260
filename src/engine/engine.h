/* engine.h - the two handles of corun.h from the inside.
 *
 * A step: sched plans, pages move, slots are filled, the model runs, lanes are drawn, each drawn
 * token goes through its sample's text and stop rules, and the scheduler is told. Only the last
 * two touch request memory; from the plan to the draw nothing is allocated (mem_guard). */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include "base/json.h"
#include "engine/params.h"
#include "engine/policy.h"
#include "engine/prompt.h"
#include "model/model.h"
#include "sched/sched.h"

struct corun_model {
    pool *threads;
    struct plan_table *plan; /* the user's matrix plans, or NULL */
    model *net;
    bpe *text;
    prompt_source prompt;
    char golden[33];        /* CPU backends; "" on others */
    char device_note[256];  /* why "auto" did not take a CUDA device; "": it did, or had none */
    char tensor_types[160]; /* weights_types of what was given last; "": no files */
    audit_report *levels;   /* what was found last (levels.h), for options of this key */
    char levels_key[33];
    corun_engine *engine; /* that this model carries */
    bool mixed;           /* a refill failed half way: nothing runs until one succeeds */
};

/* One sample of a request: its tokens, and the text that is not final yet. */
typedef struct sample {
    struct request *req;
    int32_t index, seq;
    uint64_t seed;
    int32_t *token; /* [max_new] */
    int32_t n_token;
    bool ended;
    bpe_stream utf8;
    buf hold; /* decoded, but a stop string may still begin in it */
} sample;

typedef struct request {
    uint64_t id;
    params par; /* owned copies of the sampling parameters */
    int32_t *prompt;
    int32_t n_prompt;
    int32_t max_new;
    size_t stop_max; /* longest stop string */
    int32_t n_sample, n_open;
    sample *sample;
    struct request *next; /* in the engine's list */
} request;

typedef struct event_queue {
    corun_event *ev; /* .text is an offset + 1 into text until popped */
    size_t n, head, cap;
    buf text;
} event_queue;

/* A step that the backend was given. open: its draws are to be read. */
typedef struct flight {
    sched_plan plan;
    int32_t n_want;
    int32_t *want_of_row;                     /* [max_row] */
    int32_t *lane_row, *lane_slot, *lane_pos; /* [max_lane] of a batch of lanes */
    uint64_t call;                            /* e->n_call of its draws */
    double start;
    bool open;
} flight;

struct corun_engine {
    corun_model *m;
    corun_engine_opts opts; /* effective */
    const policy *policy;
    sched_opts sched_opts;
    sched *s;
    sample **by_seq; /* by the scheduler's handle */
    request *list;
    int32_t n_alive; /* in list */
    uint64_t next_id;
    event_queue q;
    flight flight[2];
    int32_t last;                 /* flight of the step given last */
    uint64_t n_call;              /* of sample so far */
    double noted;                 /* clock at the end of the step noted last */
    sched_result *result;         /* [max_lane] */
    int32_t *target;              /* [logit_rows] */
    int32_t *want_seq, *want_pos; /* [max_want]: whose position a wanted row is; -1: drawn only */
    int32_t max_lane;             /* of one draw */
    corun_stats stats;
    char *identity; /* JSON */
    size_t identity_len;
    digest identity_digest;
};

/* request.c */
corun_status request_open(request **out, const corun_engine *e, const corun_request *r);
void request_close(request *r);
void request_slot(const corun_engine *e, const sample *s, ops_slot *out);

/* emit.c: the text and stop rules of one sample (docs/batch.md states them for users). */
corun_status emit_token(corun_engine *e, sample *s, const ops_draw *d);
corun_status emit_prompt(corun_engine *e, sample *s, int32_t index, const ops_draw *d);
corun_status emit_done(corun_engine *e, sample *s, corun_finish why, int32_t stop_index,
                       int32_t stop_token);
corun_status emit_failed(corun_engine *e, sample *s, corun_status st, const char *text);
corun_status event_pop(corun_engine *e, corun_event *out); /* NONE when empty */

/* device.c */
/* The backend that `device` names for these dimensions, on the CPU with its golden digest checked.
 * oo: as for the CPU; its device field is set here. */
corun_status device_open(corun_model *m, const char *device, const ops_dims *d, ops_open_opts *oo,
                         ops **out);

/* api.c: n_slot, n_ctx (0 becomes the model's) and page_tokens. */
corun_status engine_check_shape(corun_engine_opts *o, const config *g);

/* identity.c: makes the identity, or makes it anew. */
corun_status identity_make(corun_engine *e);

/* step.c */
corun_status engine_step(corun_engine *e, bool *idle);
corun_status engine_land(corun_engine *e);       /* afterwards no step is in flight */
void engine_forget(corun_engine *e, request *r); /* all samples ended: unlink and free */

#endif
