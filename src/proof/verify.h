/* verify.h - the promise, tried: recipes that have broken other engines, run under each policy on
 * the user's model, every bit of every log-probability compared. docs/verify.md lists them. */
#ifndef PROOF_VERIFY_H
#define PROOF_VERIFY_H

#include <stdio.h>

#include "base/json.h"

/* A recipe takes so many apart; a run has no more at one time. */
enum { VERIFY_MIN_ROW = 8, VERIFY_MAX_ROW = 512 };

typedef struct verify_opts {
    corun_model_opts model;     /* path "fake:": each policy on the fake of the level it needs */
    corun_model *open;          /* the model when it is open already (not for "fake:") */
    corun_engine_opts engine;   /* base; policy and kv_bytes are set here */
    const corun_policy *policy; /* [n_policy] columns of the table, in this order */
    size_t n_policy;
    const char *recipe; /* letters to run, as "AFG"; NULL: all */
    bool quick;
    size_t n_row; /* requests that are compared, VERIFY_MIN_ROW or more; 0: as the form has it */
    const corun_request *request; /* the user's own; n_request 0: made here */
    size_t n_request;
    const char *program;       /* this program, for the recipes that start it; NULL: they are n/a */
    const char *const *prefix; /* NULL-terminated words between the program and its command */
    FILE *out;                 /* the table */
    buf *json;                 /* NULL, or where the report goes */
} verify_opts;

/* CORUN_OK: every promise was kept. CORUN_EMISMATCH: the table says which were not. */
corun_status verify_run(const verify_opts *o);

#endif
