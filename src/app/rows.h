/* rows.h - a result file of anyone's making in memory: its rows in order, found by the request
 * that they answer. Rows may come in any order. */
#ifndef APP_ROWS_H
#define APP_ROWS_H

#include "base/digest.h"
#include "base/json.h"

typedef struct rows_entry {
    digest key;
    uint64_t line;  /* from 1 */
    size_t at, len; /* in the text */
    uint64_t twin;  /* rows so far with this name */
    bool seen;      /* for the caller */
} rows_entry;

typedef struct rows {
    char *path;
    buf text;
    rows_entry *row;
    size_t n, cap;
    size_t *slot; /* open addressing: index + 1 */
    size_t n_slot;
    uint64_t n_bad, n_twin, n_nameless;
} rows;

/* Reads a whole file (.gz too, "-": standard input). A row is named by custom_id, else doc_id;
 * rows without a name are paired by their order. Rows with a name that came before are paired by
 * their order among those. Both kinds of second rows and lines that are no JSON object are counted
 * and named on standard error, the first 20 of each. CORUN_EINVAL: no such file. */
corun_status rows_read(rows *r, const char *path);
void rows_free(rows *r);
rows_entry *rows_find(const rows *r, digest key); /* NULL: not there */
/* One row as JSON: json_decref. Alternatives by text may have a key with NUL, which Jansson cannot
 * read: in keys (and only there) text gets U+F6B3 in its place. */
corun_status rows_json(json_t **out, char *text, size_t len, const char *what);
corun_status rows_parse(const rows *r, const rows_entry *e, json_t **out);
/* The name of a row as messages show it: request "ID", or row of line N. */
void rows_name(const json_t *row, const rows_entry *e, char out[160]);

#endif
