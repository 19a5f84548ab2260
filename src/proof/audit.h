/* audit.h - the levels of a model's ops, measured now and shown: `corun audit`.
 *
 * The full form also runs the quick form with other numbers of threads, whose bits must be equal.
 */
#ifndef PROOF_AUDIT_H
#define PROOF_AUDIT_H

#include <stdio.h>

#include "base/mem.h"

typedef struct proof_audit_opts {
    corun_engine_opts engine; /* n_slot, n_ctx, page_tokens, processed_logprobs count */
    bool full;
} proof_audit_opts;

/* Measures, prints the table to out (NULL: none), gives the result as JSON text and keeps it for
 * engines that open later. *kept: the file, or empty when the cache cannot be written. *n_failed:
 * ops that miss what they declare. */
corun_status proof_audit(corun_model *m, const proof_audit_opts *o, FILE *out, buf *json,
                         char kept[1024], int *n_failed);

/* Explains in words what differs between two files: results of the audit, identities (as `info
 * --identity --json` or `batch --metrics` write them) or result files of a batch. *n: differences.
 */
corun_status proof_audit_diff(const char *path_a, const char *path_b, buf *out, size_t *n);

#endif
