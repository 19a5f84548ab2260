/* verify_int.h - inside of verify_*.c: answers with all their bits, runs of request lists, the set
 * of requests with its references, the cells of the table. */
#ifndef PROOF_VERIFY_INT_H
#define PROOF_VERIFY_INT_H

#include "proof/verify.h"

/* ---- verify_run.c: answers ------------------------------------------------------------------ */

enum { VERIFY_TOP = 5 }; /* alternatives compared where the request names fewer */

typedef struct vf_token {
    int32_t id, n_top;
    uint32_t logprob; /* bits */
    int32_t top_id[CORUN_MAX_TOP];
    uint32_t top_logprob[CORUN_MAX_TOP];
} vf_token;

typedef struct vf_tokens {
    vf_token *t;
    int32_t n, cap;
} vf_tokens;

/* All that one sample got. */
typedef struct vf_sample {
    vf_tokens drawn, prompt;
    buf text;
    bool done;
    char *failure; /* of a failed one */
    corun_finish finish;
    int32_t stop_index, stop_token;
} vf_sample;

/* A request in a run, and its answer: [r.sampling.n] samples. */
typedef struct vf_job {
    corun_request r;
    vf_sample *s;
    uint64_t id;
    int32_t n_open;
} vf_job;

/* When requests are submitted; they come in the order of the list. */
typedef struct vf_when {
    size_t alive; /* most at one time, 0: no limit */
    size_t group; /* at most so many before each step, 0: no limit */
} vf_when;

/* Runs the list on an engine of its own. Everything asked for comes once and in order, and every
 * page is free at the end, or the status is CORUN_EMISMATCH. */
corun_status vf_run(corun_model *m, const corun_engine_opts *o, vf_job *q, size_t n, vf_when w,
                    corun_stats *stats);
/* The same on an engine that is open; stats are what this list added. */
corun_status vf_run_on(corun_engine *e, vf_job *q, size_t n, vf_when w, corun_stats *stats);
void vf_jobs_free(vf_job *q, size_t n);

/* Compares the bytes of two answers. as_prefix: `got` may be shorter, because it was asked for
 * less; texts and ends are then left out. False: why names the sample, token and bit. */
bool vf_same(const vf_job *want, const vf_job *got, bool as_prefix, char *why, size_t cap);
bool vf_same_sample(const vf_sample *want, const vf_sample *got, bool as_prefix, char *why,
                    size_t cap);
bool vf_same_token(const vf_token *want, const vf_token *got, char *why, size_t cap);
int vf_live_counts(const corun_stats *s); /* distinct numbers of live rows in a decode step */
int vf_live_most(const corun_stats *s);   /* the largest of them */

/* ---- verify_set.c: requests ----------------------------------------------------------------- */

/* What a policy claims, and what the recipes may expect of it. */
typedef struct vf_policy {
    corun_policy policy;
    const char *name;
    const char *fake;  /* the weakest fake model under which it keeps its promise */
    const char *lower; /* one level weaker: the promise must be seen to break. NULL: none is made */
    bool recomputes;   /* evicted requests may be computed again instead of moved out */
    bool phase;        /* prompt bits are decode bits */
    bool chunks;       /* another prefill_chunk is the same identity */
    int32_t cut;       /* prompts are cut at its multiples only; 0: anywhere */
    int32_t reuse;     /* prompts reuse pages in pieces of so many tokens, 1: of a page, 0: none */
} vf_policy;

extern const vf_policy vf_policies[];
extern const size_t vf_n_policy;

typedef struct vf {
    const verify_opts *o;
    const vf_policy *p;
    corun_model *m;
    const char *model; /* its path */
    corun_model_info info;
    corun_engine_opts eo;
    bool fake, few; /* few: the quick form of a model of some size */
    uint64_t rng;
    int32_t n_new; /* tokens of the needle */
    int32_t max_prefix;
    vf_job *set; /* [n_set], each with its answer alone: the user's own, then made ones */
    size_t n_set, n_own;
    size_t needle;   /* one of them with an answer of some length */
    int32_t **owned; /* token arrays of this column */
    size_t n_owned;
    int32_t n_distinct; /* tokens in the answers of the set */
    int64_t n_tokens;   /* of them */
    struct vf_files *files;
} vf;

uint64_t vf_rand(vf *v, uint64_t below);
/* n tokens of text, the same for the same seed; freed with the column. */
corun_status vf_words(vf *v, uint64_t seed, size_t n, int32_t **out);
corun_status vf_tokens_new(vf *v, size_t n, int32_t **out);
/* A request with neutral sampling: temperature 1, this seed, eos ignored, VERIFY_TOP. */
corun_request vf_request(const vf *v, const int32_t *tokens, size_t n, int32_t max_tokens,
                         uint64_t seed);
/* The request with at most max_tokens new tokens. */
corun_request vf_cut(corun_request r, int32_t max_tokens);
/* The set, each request run alone; v->eo is sized for it. */
corun_status vf_set_open(vf *v);
void vf_set_close(vf *v);
/* Pages that a request takes at most. */
int32_t vf_pages(const vf *v, const corun_request *r);
void vf_pool(vf *v, corun_engine_opts *o, int32_t pages); /* o's KV pool has so many pages */
/* Runs one request alone on a fresh engine. */
corun_status vf_alone(vf *v, vf_job *q);

/* ---- cells ---------------------------------------------------------------------------------- */

typedef enum vf_state {
    VF_KEPT,
    VF_BROKEN, /* bytes differ, or something was lost or doubled */
    VF_IDLE,   /* equal, but nothing of what the recipe is for has happened */
    VF_NA,     /* cannot apply */
    VF_SKIPPED /* not asked for */
} vf_state;

typedef struct vf_cell {
    vf_state state;
    char seen[400];  /* what was exercised, or why it cannot apply */
    char where[400]; /* the first difference, or what was not exercised */
    int64_t n_token; /* compared */
    int32_t n_differ;
    double seconds;
} vf_cell;

typedef struct vf_recipe {
    char letter;
    const char *name;
    corun_status (*run)(vf *v, vf_cell *c);
} vf_recipe;

void vf_note(vf_cell *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The recipe is about this number: 0 makes the cell idle. */
void vf_need(vf_cell *c, uint64_t n, const char *what);
void vf_na(vf_cell *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void vf_broken(vf_cell *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Compares and counts; `name` says which request in which run. */
void vf_check(vf_cell *c, const vf_job *want, const vf_job *got, bool as_prefix, const char *fmt,
              ...) __attribute__((format(printf, 5, 6)));

corun_status vf_needle(vf *v, vf_cell *c);      /* A, verify_batch.c */
corun_status vf_lengths(vf *v, vf_cell *c);     /* B */
corun_status vf_experts(vf *v, vf_cell *c);     /* C */
corun_status vf_extremes(vf *v, vf_cell *c);    /* D */
corun_status vf_concurrency(vf *v, vf_cell *c); /* E */
corun_status vf_kinds(vf *v, vf_cell *c);       /* I */
corun_status vf_rows(vf *v, vf_cell *c);        /* P */
corun_status vf_prefix(vf *v, vf_cell *c);      /* F, verify_reuse.c */
corun_status vf_eviction(vf *v, vf_cell *c);    /* G */
corun_status vf_scores(vf *v, vf_cell *c);      /* N */
corun_status vf_replay(vf *v, vf_cell *c);      /* O */
corun_status vf_chunks(vf *v, vf_cell *c);      /* R */
corun_status vf_samples(vf *v, vf_cell *c);     /* J, verify_text.c */
corun_status vf_stops(vf *v, vf_cell *c);       /* K */
corun_status vf_seeds(vf *v, vf_cell *c);       /* Q */
corun_status vf_killed(vf *v, vf_cell *c);      /* H, verify_files.c */
corun_status vf_process(vf *v, vf_cell *c);     /* L, verify_files.c */
corun_status vf_bad_lines(vf *v, vf_cell *c);   /* M */
void vf_files_close(vf *v);

#endif
