/* fingerprint.h - the identities that rows name, and their fields where a file tells them. */
#ifndef APP_FINGERPRINT_H
#define APP_FINGERPRINT_H

#include "base/json.h"

#define FINGERPRINTS_MAX 16

/* The distinct values of system_fingerprint in the answered rows of a result file. */
typedef struct fingerprints {
    struct {
        char text[96]; /* as JSON, cut */
        uint64_t n;
    } seen[FINGERPRINTS_MAX];
    size_t n;
    uint64_t more, none; /* rows with further ones, rows without one */
} fingerprints;

void fingerprints_add(fingerprints *f, const json_t *row);

/* The identity object in a file that `batch --metrics` or `info --identity --json` wrote (or that
 * is itself the object), and its digest, which is the fingerprint that rows carry. *out is new. */
corun_status fingerprint_file(const char *path, json_t **out, char digest_text[33]);

/* Appends one line a file with the identities of its rows, and where both files a and b (NULL: not
 * given) tell the fields, every field that differs. CORUN_EMISMATCH when a file is not that of the
 * rows' identity. */
corun_status fingerprints_compare(const fingerprints *x, const char *a, const fingerprints *y,
                                  const char *b, buf *out);

#endif
