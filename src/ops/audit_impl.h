/* audit_impl.h - what the files of the audit share: contents, scenes, and the book of what was
 * seen. Invariant: a scene's outputs are noted under the content of each token, whatever row it
 * has. */
#ifndef OPS_AUDIT_IMPL_H
#define OPS_AUDIT_IMPL_H

#include "ops/audit.h"

enum {
    AUDIT_TABLE = 1 << 16, /* values of a table of contents, beside the widest row */
    AUDIT_SEQ = 16,        /* sequences with a KV cache */
    AUDIT_MAX_COUNT = 48
};

/* Contents >= 0 are compared. Others stand beside them. */
enum { AUDIT_ZERO = -1, AUDIT_HUGE = -2, AUDIT_NAN = -3, AUDIT_OTHER = -4, AUDIT_DEAD = -5 };

/* The step being tried. */
typedef struct audit_scene {
    step s;
    step_row *row;    /* [max_row] */
    int32_t *tok;     /* [max_tok] */
    int32_t *content; /* [max_tok] of each token, dead ones included */
    int32_t *owner;   /* [max_tok] its row */
    int32_t *at;      /* [max_tok] its place in activations; -1: the backend dropped it */
    int32_t *want_at; /* [max_tok] its place among the wanted rows */
    int32_t n_tok;    /* dead ones included */
    uint64_t id;      /* the same for repeats */
} audit_scene;

typedef struct audit_seen audit_seen; /* one note of the book */

typedef struct audit {
    const audit_spec *spec;
    audit_report *rep;
    ops *o;
    ops_set set;
    ops_conf conf;
    int32_t n_repeat;
    int32_t count[AUDIT_MAX_COUNT], n_count; /* row counts of decode steps */
    int32_t prefill[4], n_prefill;           /* lengths of prefills, ascending */
    int32_t len, pages;                      /* longest cached sequence, and its pages */
    int32_t widest;                          /* elements of the widest row */
    uint16_t *table[3];                      /* random; order-revealing; random and large */
    uint16_t *plain[3];                      /* rows of zero, huge and NaN */
    void *in[2], *out[2];                    /* dev: activations of max_tok rows */
    char *row;                               /* host: a row, or a page */
    char *stage[3];                          /* host: rows on their way, of stage_bytes each */
    size_t stage_bytes;
    audit_scene sc;
    uint64_t n_scene;
    int32_t n_spare;   /* the last pages: owned by nobody */
    int32_t *perm;     /* [n_page - n_spare] pages in some order */
    int32_t *table_of; /* [max_row][pages of len] page tables */
    step_want want;
    /* the book of the case (two cases: attention) */
    audit_case *cur[2];
    char apart[2][24]; /* the first two scenes in which the two cases differ; empty: none */
    digest_stream *bits;
    audit_seen *seen;
    size_t n_seen, cap_seen;
} audit;

uint64_t audit_mix(uint64_t x);
/* n <= widest bf16 values of a content; salt tells inputs of one op apart. */
const uint16_t *audit_values(const audit *a, int32_t content, uint32_t salt);
/* The same from one table: 0 random, 1 order-revealing, 2 random and large. */
const uint16_t *audit_window(const audit *a, int table, int32_t content, uint32_t salt);
corun_status audit_weight(audit *a, int64_t n_out, int64_t n_in, bool bias, ops_weight **w);
/* Token id of a content. */
int32_t audit_token(const audit *a, int32_t content);

/* ---- scenes ---- */

void audit_scene_begin(audit *a, step_kind kind);
/* A row of q_len tokens with contents first, first + 1, ... (or all the same one below 0). slot
 * STEP_NO_SLOT: part of a prompt. page: the row's page table. */
void audit_scene_row(audit *a, int32_t slot, int32_t pos, int32_t q_len, int32_t first,
                     const int32_t *page);
/* Puts the step; afterwards the places of its tokens are known. */
corun_status audit_scene_put(audit *a);

/* ---- rows to and from the device ---- */

/* Some rows at a time: for a device each copy is a round trip. */
typedef struct audit_copy {
    void *dev;
    char *host;
    size_t bytes;      /* of a row */
    int32_t first, n;  /* rows [first, first + n) are in host */
    int32_t room, all; /* most rows in host; rows on the device */
} audit_copy;

/* Of `all` rows; stage: 0 to 2, of copies that go on at once. */
audit_copy audit_copy_of(audit *a, int stage, void *dev, size_t bytes, int32_t all);
/* The next row, from 0 on; audit_put_end behind the last one. */
corun_status audit_put(audit *a, audit_copy *c, const void *row);
corun_status audit_put_end(audit *a, audit_copy *c);
/* `all` rows of one byte. */
corun_status audit_put_same(audit *a, void *dev, size_t bytes, int32_t all, int byte);
/* Row `at`, until the next call. */
corun_status audit_get(audit *a, audit_copy *c, int32_t at, const void **row);

/* ---- the book ---- */

/* Starts a case; a second one shares its notes (which: 0 or 1). */
corun_status audit_begin(audit *a, int which, ops_op op, const char *what);
/* Notes what was computed for token i of the scene; part tells outputs of one token apart. */
corun_status audit_note(audit *a, int which, int32_t i, uint32_t part, const void *data,
                        size_t bytes);
/* The same for anything with a key of its own; own and shape as in audit.h. */
corun_status audit_note_key(audit *a, int which, uint64_t key, uint64_t own, uint64_t shape,
                            const char *name, const void *data, size_t bytes);
void audit_end(audit *a, double begin);

/* ---- the families of ops: each tries its ops with the set of a ---- */

corun_status audit_rows(audit *a);
corun_status audit_attention(audit *a);
corun_status audit_sampling(audit *a);
/* Configures the backend for a set. */
corun_status audit_use_set(audit *a, ops_set set);

#endif
