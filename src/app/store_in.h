/* store_in.h - inside of the store: its database and how it is asked. */
#ifndef APP_STORE_IN_H
#define APP_STORE_IN_H

#include <pthread.h>
#include <sqlite3.h>
#include <sys/types.h>

#include "app/store.h"

enum { STORE_QUERIES = 64 };

/* A content that goes when it is sure that no row names it. */
typedef struct store_orphan {
    struct store_orphan *next;
    char id[STORE_ID];
} store_orphan;

/* Of a row of batches: it is not at its end. */
#define STORE_UNFINISHED "status IN (0, 1, 2, 5)"

/* A file that the database has open. */
typedef struct store_part {
    char *path;
    dev_t dev;
    ino_t ino;
} store_part;

struct store {
    sqlite3 *db;
    struct {
        const char *sql;
        sqlite3_stmt *st;
    } query[STORE_QUERIES]; /* prepared so far */
    store_orphan *orphans;
    store_part part[2];   /* itself and its log */
    bool away;            /* one of them was not in its place the last time */
    pthread_mutex_t lock; /* of all of the above */
    /* A COMMIT has failed when its records may have been in the log already: after a crash they
     * would count. Over with the next COMMIT, which writes over them. */
    _Atomic bool doubt;
    _Atomic uint64_t used;
    char *folder, *files, *name;
    int lock_fd;
};

/* The status and text of the database's last error. */
corun_status store_fail(store *s, const char *what);
/* The same of the system's. */
corun_status store_fail_file(int err, const char *path);

/* Takes the lock and begins a transaction; on an error the lock is not held. CORUN_EIO also where
 * the database is no longer what stands under its name: what is written would be lost. */
corun_status store_lock(store *s);
/* Commits if st is CORUN_OK, else takes all back; gives the lock back. */
corun_status store_unlock(store *s, corun_status st);

/* The statement of sql, a literal, with its parameters bound. fmt: i int64_t, t text or NULL,
 * b bytes and a size_t; they must live until store_done. */
corun_status store_ask(store *s, sqlite3_stmt **out, const char *sql, const char *fmt, ...);
/* *row: there is one, whose columns can be read. */
corun_status store_step(store *s, sqlite3_stmt *q, bool *row);
void store_done(sqlite3_stmt *q); /* NULL is fine */
/* store_ask for a statement without rows, and running it. */
corun_status store_do(store *s, const char *sql, const char *fmt, ...);

/* A column's text as new memory, NULL for NULL. */
corun_status store_text(sqlite3_stmt *q, int column, char **out);
/* A column's text into an array of this size; what does not fit is cut. */
void store_copy(sqlite3_stmt *q, int column, char *out, size_t cap);
/* Asks for the number of the file or batch of this id. */
corun_status store_seq(store *s, const char *sql, const char *id, uint64_t *seq, bool *found);

/* PREFIX and 32 random hexadecimal digits. */
corun_status store_new_id(const char *prefix, char out[STORE_ID]);

/* Ends a doubt, before a content is placed: at most what one COMMIT has left unsure is kept. */
corun_status store_settle(store *s);
/* The draft's bytes are on disk under the id's name. Not under the lock. */
corun_status store_draft_place(store *s, store_draft *d, const char *id);
/* Removes a content of this many bytes, which no row of the database names any more or yet; in
 * doubt it stays until that is sure. Not under the lock. */
void store_unplace(store *s, const char *id, uint64_t bytes);
/* Bytes put into it so far. */
uint64_t store_draft_bytes(const store_draft *d);
/* The row of a content that is in place. Under the lock. */
corun_status store_file_row(store *s, const char *id, const store_draft *d, const char *filename,
                            const char *purpose, int64_t now);

#endif
