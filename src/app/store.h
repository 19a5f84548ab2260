/* store.h - what the server keeps in its state folder: uploaded and written files, batches, and
 * the rows of batches that are not at their end.
 *
 * A folder belongs to one server at a time. Whatever a call has added or changed is on disk when it
 * returns CORUN_OK, and not at all otherwise; a content is seen whole or not at all. Every function
 * may be called from any thread.
 *
 * CORUN_ECAPACITY: there is no room on the disk. CORUN_EIO: the database or the file system has
 * refused. The store can be used after both. CORUN_EFORMAT: what is on the disk is not what was
 * written. */
#ifndef APP_STORE_H
#define APP_STORE_H

#include "base/mem.h"

#define STORE_VERSION 1
#define STORE_ID      48 /* room for an id: file-..., batch_... */
#define STORE_MAX_ROW ((size_t)256 << 20)
#define STORE_FILE    ((uint64_t)4096) /* what a file counts in store_used besides its bytes */

typedef struct store store;

/* Makes the folder where it is not there, and takes back what a killed server has left half done.
 * CORUN_EINVAL: another server has it, or it cannot be used; CORUN_EFORMAT: its database is broken,
 * of another version or none of ours. */
corun_status store_open(store **out, const char *folder);
void store_close(store *s); /* NULL is fine */
/* Bytes of all files and drafts together. */
uint64_t store_used(const store *s);

/* A page of a list, in the order in which things were added. */
typedef struct store_page {
    const char *after; /* id of the one before the first; NULL: from the beginning */
    bool newest_first;
    size_t limit;
} store_page;

/* ---- files ----------------------------------------------------------------------------------- */

typedef struct store_file {
    uint64_t seq;
    char id[STORE_ID];
    char *filename; /* owned */
    char purpose[16];
    uint64_t bytes;
    int64_t created_at;
} store_file;

void store_file_free(store_file *f);

/* A content that is being written; nobody sees it. */
typedef struct store_draft store_draft;

corun_status store_draft_open(store *s, store_draft **out);
corun_status store_draft_put(store_draft *d, const char *data, size_t len);
void store_draft_drop(store_draft *d); /* NULL is fine */

/* Makes the draft a file. It is dropped in any case. */
corun_status store_file_add(store *s, store_draft *d, const char *filename, const char *purpose,
                            store_file *out);
corun_status store_file_get(store *s, const char *id, store_file *out, bool *found);
/* The content, opened for reading; it can be read to its end whatever happens to the file. */
corun_status store_file_open(store *s, const char *id, int *fd, uint64_t *bytes, bool *found);
/* Appends the path of the content, terminated. */
corun_status store_file_path(const store *s, const char *id, buf *path);
/* *out is new memory with *n files. *found: p->after is there. purpose NULL: all. */
corun_status store_file_list(store *s, const store_page *p, const char *purpose, store_file **out,
                             size_t *n, bool *more, bool *found);
void store_file_list_free(store_file *f, size_t n);
/* reader: of the batch that still reads the file, which then stays; else empty. */
corun_status store_file_delete(store *s, const char *id, bool *found, char reader[STORE_ID]);

/* ---- batches --------------------------------------------------------------------------------- */

/* The words of the database and of the API: store_status_name. */
typedef enum store_status {
    STORE_VALIDATING,
    STORE_IN_PROGRESS,
    STORE_FINALIZING,
    STORE_COMPLETED,
    STORE_FAILED,
    STORE_CANCELLING,
    STORE_CANCELLED,
    STORE_STATUSES
} store_status;

const char *store_status_name(store_status st);

typedef struct store_batch {
    uint64_t seq;
    char id[STORE_ID], input[STORE_ID], output[STORE_ID], error[STORE_ID]; /* empty: none */
    char endpoint[32];
    store_status status;
    int64_t at[STORE_STATUSES]; /* unix time at which the status was reached; 0: not yet */
    uint64_t total, completed, failed;
    char *metadata; /* a JSON object, or NULL; owned, as the following */
    char *errors;   /* a JSON list, or NULL */
    char *facts;    /* a JSON object: what servers that work on it must have in common, or NULL */
} store_batch;

void store_batch_free(store_batch *b);

/* Adds a batch with b's input, endpoint and metadata, and fills in the rest. *found false: there
 * is no input of that purpose, nothing was added. */
corun_status store_batch_add(store *s, store_batch *b, const char *purpose, bool *found);
/* Batches that are not at their end. */
corun_status store_batch_unfinished(store *s, uint64_t *n);
corun_status store_batch_get(store *s, const char *id, store_batch *out, bool *found);
corun_status store_batch_list(store *s, const store_page *p, store_batch **out, size_t *n,
                              bool *more, bool *found);
void store_batch_list_free(store_batch *b, size_t n);
/* Asks for the end: validating or in_progress becomes cancelling. Others stay as they are. */
corun_status store_batch_cancel(store *s, const char *id, store_batch *out, bool *found);

/* The batch to work on: one that is being cancelled, else the oldest that is not at its end. */
corun_status store_batch_next(store *s, store_batch *out, bool *found);
/* validating becomes in_progress. *moved false: its status is another one by now. */
corun_status store_batch_begin(store *s, uint64_t seq, uint64_t total, const char *facts,
                               bool *moved);
/* in_progress becomes finalizing. */
corun_status store_batch_finalize(store *s, uint64_t seq, bool *moved);
/* The last step, to completed, failed or cancelled: the drafts become its files (NULL: none), its
 * rows go. errors: a JSON list or NULL. The drafts are dropped in any case. */
corun_status store_batch_end(store *s, const store_batch *b, store_status to, store_draft *output,
                             store_draft *error, const char *errors);

typedef struct store_row {
    uint64_t index, line_no;
    int http;
    const char *data;
    size_t len;
} store_row;

/* Adds rows, all or none, and counts them: those with 200 as completed, the others as failed. */
corun_status store_rows_add(store *s, uint64_t seq, const store_row *row, size_t n);
corun_status store_row_has(store *s, uint64_t seq, uint64_t index, bool *found);
/* Gives a number of rows with index *from or more, in order, and moves *from behind them. *n is how
 * many these were; 0: there is none. fn is called under a lock: no other function of the store may
 * be called but store_draft_put. */
corun_status store_rows_read(store *s, uint64_t seq, uint64_t *from,
                             corun_status (*fn)(void *ctx, const store_row *r), void *ctx,
                             size_t *n);

#endif
