/* audit.h - the level that each op of a backend really meets, found by trying it over the seam
 * ops.h alone.
 *
 * Every op of a model's shapes runs in many scenes (steps of other rows, places, neighbours,
 * lengths, cuts, pages). Each token has a content; what an op gives for it is compared by its bytes
 * with every other scene that held the same content:
 *   same scene again                                  differs: none
 *   same own row, same shape of the step              differs: run
 *   same own row, other rows beside it                differs: position
 *   other own row (prefill, chunk cut, decode)        differs: batch
 *   no difference                                     phase
 * Own row: decode or not, first token and length of a chunk. Shape: kind, rows, tokens.
 * Inputs hold order-revealing sums and values without meaning (huge, NaN) beside the row; outputs
 * are poisoned first, so an element that is not written differs from run to run.
 * Weights are random, of the real shapes, one at a time in memory. */
#ifndef OPS_AUDIT_H
#define OPS_AUDIT_H

#include "base/digest.h"
#include "ops/ops.h"

typedef struct audit_spec {
    ops_dims dims; /* of the model; one layer is tried */
    bool qkv_bias, o_bias, mlp_bias, qk_norm;
    int32_t width;       /* rows of a decode step */
    int32_t page_tokens; /* as in ops_conf */
    int32_t n_ctx;       /* longest sequence that may be tried */
    bool processed_logprobs;
    bool full; /* more counts, lengths and repeats: minutes instead of seconds */
} audit_spec;

typedef struct audit_case {
    ops_op op;
    ops_set set;
    char what[48]; /* the shape or the form of the op */
    ops_level level, declared;
    uint64_t n_compared; /* outputs of a token that were held against an earlier one */
    double seconds;
    digest bits;   /* of all outputs: equal on machines that compute the same */
    char why[192]; /* the first difference of the lowest level; empty: none */
} audit_case;

enum { AUDIT_MAX_CASE = 128 };

typedef struct audit_report {
    audit_case c[AUDIT_MAX_CASE];
    size_t n;
    double seconds;
} audit_report;

/* Opens a twin of `like` and tries all ops with each kernel set. CORUN_EUNSUPPORTED: the backend
 * has no twin or keeps activations in another form than bf16. */
corun_status audit_run(const ops *like, const audit_spec *s, audit_report *out);
/* What may be relied on: the lower of declared and measured, over all cases of the op. */
ops_level audit_level(const audit_report *r, ops_set set, ops_op op);
/* The case that is to blame for it; NULL: the op was not tried. */
const audit_case *audit_weakest(const audit_report *r, ops_set set, ops_op op);

#endif
