/* store_batches.c - owns the batches of the store and their rows. Invariant: a batch has rows only
 * while it is not at its end, and its counts are those of the rows that it has had. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "app/store_in.h"

enum { READ_AT_ONCE = 64, VACUUM_PAGES = 4096 };

#define BATCH_COLUMNS                                                                              \
    "seq, id, input, output, error, endpoint, status, total, completed, failed, metadata, errors," \
    " facts, created_at, in_progress_at, finalizing_at, completed_at, failed_at, cancelling_at,"   \
    " cancelled_at"

const char *store_status_name(store_status st)
{
    static const char *const name[STORE_STATUSES] = {"validating", "in_progress", "finalizing",
                                                     "completed",  "failed",      "cancelling",
                                                     "cancelled"};
    return name[st];
}

void store_batch_free(store_batch *b)
{
    mem_free(b->metadata);
    mem_free(b->errors);
    mem_free(b->facts);
    b->metadata = b->errors = b->facts = NULL;
}

void store_batch_list_free(store_batch *b, size_t n)
{
    for (size_t i = 0; i < n; i++) store_batch_free(&b[i]);
    mem_free(b);
}

static corun_status read_batch(store *s, sqlite3_stmt *q, store_batch *b)
{
    int64_t status = sqlite3_column_int64(q, 6);
    if (status < 0 || status >= STORE_STATUSES)
        FAIL(CORUN_EFORMAT, "%s: a batch with the status %lld", s->name, (long long)status);
    *b = (store_batch){.seq = (uint64_t)sqlite3_column_int64(q, 0),
                       .status = (store_status)status,
                       .total = (uint64_t)sqlite3_column_int64(q, 7),
                       .completed = (uint64_t)sqlite3_column_int64(q, 8),
                       .failed = (uint64_t)sqlite3_column_int64(q, 9)};
    store_copy(q, 1, b->id, STORE_ID);
    store_copy(q, 2, b->input, STORE_ID);
    store_copy(q, 3, b->output, STORE_ID);
    store_copy(q, 4, b->error, STORE_ID);
    store_copy(q, 5, b->endpoint, sizeof b->endpoint);
    for (int i = 0; i < STORE_STATUSES; i++) b->at[i] = sqlite3_column_int64(q, 13 + i);
    corun_status st = store_text(q, 10, &b->metadata);
    if (st == CORUN_OK) st = store_text(q, 11, &b->errors);
    if (st == CORUN_OK) st = store_text(q, 12, &b->facts);
    if (st != CORUN_OK) store_batch_free(b);
    return st;
}

/* The one batch, or none, that a statement gives. */
static corun_status take(store *s, corun_status st, sqlite3_stmt *q, store_batch *b, bool *found)
{
    *found = false;
    if (st == CORUN_OK) st = store_step(s, q, found);
    if (*found && (st = read_batch(s, q, b)) != CORUN_OK) *found = false;
    store_done(q);
    return st;
}

static corun_status get(store *s, const char *id, store_batch *b, bool *found)
{
    sqlite3_stmt *q = NULL;
    corun_status st =
        store_ask(s, &q, "SELECT " BATCH_COLUMNS " FROM batches WHERE id = ?", "t", id);
    return take(s, st, q, b, found);
}

corun_status store_batch_get(store *s, const char *id, store_batch *out, bool *found)
{
    pthread_mutex_lock(&s->lock);
    corun_status st = get(s, id, out, found);
    pthread_mutex_unlock(&s->lock);
    return st;
}

static corun_status add(store *s, store_batch *b, const char *purpose, bool *found)
{
    sqlite3_stmt *q = NULL;
    corun_status st = store_ask(s, &q, "SELECT 1 FROM files WHERE id = ? AND purpose = ?", "tt",
                                b->input, purpose);
    *found = false;
    if (st == CORUN_OK) st = store_step(s, q, found);
    store_done(q);
    if (st != CORUN_OK || !*found) return st;
    TRY(store_do(s,
                 "INSERT INTO batches (id, input, endpoint, status, created_at, metadata)"
                 " VALUES (?, ?, ?, 0, ?, ?)",
                 "tttit", b->id, b->input, b->endpoint, b->at[0], b->metadata));
    b->seq = (uint64_t)sqlite3_last_insert_rowid(s->db);
    return CORUN_OK;
}

corun_status store_batch_add(store *s, store_batch *b, const char *purpose, bool *found)
{
    TRY(store_new_id("batch_", b->id));
    b->status = STORE_VALIDATING;
    b->at[STORE_VALIDATING] = time(NULL);
    TRY(store_lock(s));
    return store_unlock(s, add(s, b, purpose, found));
}

corun_status store_batch_unfinished(store *s, uint64_t *n)
{
    sqlite3_stmt *q = NULL;
    bool row = false;
    *n = 0;
    pthread_mutex_lock(&s->lock);
    corun_status st = store_ask(s, &q, "SELECT count(*) FROM batches WHERE " STORE_UNFINISHED, "");
    if (st == CORUN_OK) st = store_step(s, q, &row);
    if (row) *n = (uint64_t)sqlite3_column_int64(q, 0);
    store_done(q);
    pthread_mutex_unlock(&s->lock);
    return st;
}

static corun_status list(store *s, const store_page *p, uint64_t after, store_batch *out, size_t *n,
                         bool *more)
{
    sqlite3_stmt *q = NULL;
    const char *sql = p->newest_first ? "SELECT " BATCH_COLUMNS
                                        " FROM batches WHERE seq < ? ORDER BY seq DESC LIMIT ?"
                                      : "SELECT " BATCH_COLUMNS
                                        " FROM batches WHERE seq > ? ORDER BY seq LIMIT ?";
    corun_status st = store_ask(s, &q, sql, "ii", (int64_t)after, (int64_t)p->limit + 1);
    bool row = true;
    while (st == CORUN_OK && (st = store_step(s, q, &row)) == CORUN_OK && row && *n < p->limit)
        if ((st = read_batch(s, q, &out[*n])) == CORUN_OK) ++*n;
    *more = st == CORUN_OK && row;
    store_done(q);
    return st;
}

corun_status store_batch_list(store *s, const store_page *p, store_batch **out, size_t *n,
                              bool *more, bool *found)
{
    uint64_t after = p->newest_first ? INT64_MAX : 0;
    *n = 0;
    *more = false;
    *found = true;
    if (!MEM_NEW(*out, p->limit)) return CORUN_ENOMEM;
    pthread_mutex_lock(&s->lock);
    corun_status st = CORUN_OK;
    if (p->after)
        st = store_seq(s, "SELECT seq FROM batches WHERE id = ?", p->after, &after, found);
    if (st == CORUN_OK && *found) st = list(s, p, after, *out, n, more);
    pthread_mutex_unlock(&s->lock);
    if (st != CORUN_OK || !*found) {
        store_batch_list_free(*out, *n);
        *out = NULL;
        *n = 0;
    }
    return st;
}

/* ---- from status to status ------------------------------------------------------------------- */

static corun_status cancel(store *s, const char *id, store_batch *b, bool *found)
{
    TRY(store_do(s,
                 "UPDATE batches SET status = 5, cancelling_at = ? WHERE id = ?"
                 " AND status IN (0, 1)",
                 "it", (int64_t)time(NULL), id));
    return get(s, id, b, found);
}

corun_status store_batch_cancel(store *s, const char *id, store_batch *out, bool *found)
{
    TRY(store_lock(s));
    corun_status st = store_unlock(s, cancel(s, id, out, found));
    if (st != CORUN_OK && *found) store_batch_free(out);
    return st;
}

corun_status store_batch_next(store *s, store_batch *out, bool *found)
{
    sqlite3_stmt *q = NULL;
    pthread_mutex_lock(&s->lock);
    corun_status st = store_ask(s, &q,
                                "SELECT " BATCH_COLUMNS " FROM batches WHERE " STORE_UNFINISHED
                                " ORDER BY status = 5 DESC, seq LIMIT 1",
                                "");
    st = take(s, st, q, out, found);
    pthread_mutex_unlock(&s->lock);
    return st;
}

corun_status store_batch_begin(store *s, uint64_t seq, uint64_t total, const char *facts,
                               bool *moved)
{
    TRY(store_lock(s));
    corun_status st = store_do(s,
                               "UPDATE batches SET status = 1, in_progress_at = ?, total = ?,"
                               " facts = ? WHERE seq = ? AND status = 0",
                               "iiti", (int64_t)time(NULL), (int64_t)total, facts, (int64_t)seq);
    *moved = st == CORUN_OK && sqlite3_changes(s->db) == 1;
    return store_unlock(s, st);
}

corun_status store_batch_finalize(store *s, uint64_t seq, bool *moved)
{
    TRY(store_lock(s));
    corun_status st =
        store_do(s, "UPDATE batches SET status = 2, finalizing_at = ? WHERE seq = ? AND status = 1",
                 "ii", (int64_t)time(NULL), (int64_t)seq);
    *moved = st == CORUN_OK && sqlite3_changes(s->db) == 1;
    return store_unlock(s, st);
}

static corun_status end_rows(store *s, const store_batch *b, store_status to,
                             const store_draft *output, const char *output_id,
                             const store_draft *error, const char *error_id, const char *errors)
{
    char name[STORE_ID + 32];
    int64_t now = time(NULL);
    static const char *const update[STORE_STATUSES] = {
        [STORE_COMPLETED] = "UPDATE batches SET status = 3, completed_at = ?, output = ?,"
                            " error = ?, errors = ? WHERE seq = ?",
        [STORE_FAILED] = "UPDATE batches SET status = 4, failed_at = ?, output = ?,"
                         " error = ?, errors = ? WHERE seq = ?",
        [STORE_CANCELLED] = "UPDATE batches SET status = 6, cancelled_at = ?, output = ?,"
                            " error = ?, errors = ? WHERE seq = ?"};
    if (output) {
        snprintf(name, sizeof name, "%s_output.jsonl", b->id);
        TRY(store_file_row(s, output_id, output, name, "batch_output", now));
    }
    if (error) {
        snprintf(name, sizeof name, "%s_error.jsonl", b->id);
        TRY(store_file_row(s, error_id, error, name, "batch_output", now));
    }
    TRY(store_do(s, update[to], "ittti", now, output ? output_id : NULL, error ? error_id : NULL,
                 errors, (int64_t)b->seq));
    return store_do(s, "DELETE FROM rows WHERE batch = ?", "i", (int64_t)b->seq);
}

/* Gives pages that rows have left back to the file system, some at a time. */
static void shrink(store *s)
{
    int64_t left;
    do {
        sqlite3_stmt *q = NULL;
        bool row = false;
        pthread_mutex_lock(&s->lock);
        left = 0;
        if (store_ask(s, &q, "PRAGMA freelist_count", "") == CORUN_OK &&
            store_step(s, q, &row) == CORUN_OK && row)
            left = sqlite3_column_int64(q, 0) - VACUUM_PAGES;
        store_done(q);
        if (row &&
            sqlite3_exec(s->db, "PRAGMA incremental_vacuum(4096)", NULL, NULL, NULL) != SQLITE_OK)
            left = 0; /* the space is used by the next batch */
        pthread_mutex_unlock(&s->lock);
    } while (left > 0);
}

corun_status store_batch_end(store *s, const store_batch *b, store_status to, store_draft *output,
                             store_draft *error, const char *errors)
{
    char output_id[STORE_ID], error_id[STORE_ID];
    corun_status st = store_settle(s);
    bool out_placed = false, err_placed = false;
    if (output && st == CORUN_OK) {
        st = store_new_id("file-", output_id);
        if (st == CORUN_OK) st = store_draft_place(s, output, output_id);
        out_placed = st == CORUN_OK;
    }
    if (error && st == CORUN_OK) {
        st = store_new_id("file-", error_id);
        if (st == CORUN_OK) st = store_draft_place(s, error, error_id);
        err_placed = st == CORUN_OK;
    }
    if (st == CORUN_OK && (st = store_lock(s)) == CORUN_OK)
        st = store_unlock(s, end_rows(s, b, to, output, output_id, error, error_id, errors));
    if (st != CORUN_OK && out_placed) store_unplace(s, output_id, store_draft_bytes(output));
    if (st != CORUN_OK && err_placed) store_unplace(s, error_id, store_draft_bytes(error));
    store_draft_drop(output);
    store_draft_drop(error);
    if (st == CORUN_OK) shrink(s);
    return st;
}

/* ---- rows ------------------------------------------------------------------------------------ */

static corun_status add_rows(store *s, uint64_t seq, const store_row *row, size_t n)
{
    int64_t ok = 0;
    for (size_t i = 0; i < n; i++) {
        TRY(store_do(s, "INSERT INTO rows (batch, idx, line, http, row) VALUES (?, ?, ?, ?, ?)",
                     "iiiib", (int64_t)seq, (int64_t)row[i].index, (int64_t)row[i].line_no,
                     (int64_t)row[i].http, row[i].data, row[i].len));
        ok += row[i].http == 200;
    }
    return store_do(s,
                    "UPDATE batches SET completed = completed + ?, failed = failed + ?"
                    " WHERE seq = ?",
                    "iii", ok, (int64_t)n - ok, (int64_t)seq);
}

corun_status store_rows_add(store *s, uint64_t seq, const store_row *row, size_t n)
{
    TRY(store_lock(s));
    return store_unlock(s, add_rows(s, seq, row, n));
}

corun_status store_row_has(store *s, uint64_t seq, uint64_t index, bool *found)
{
    sqlite3_stmt *q = NULL;
    *found = false;
    pthread_mutex_lock(&s->lock);
    corun_status st = store_ask(s, &q, "SELECT 1 FROM rows WHERE batch = ? AND idx = ?", "ii",
                                (int64_t)seq, (int64_t)index);
    if (st == CORUN_OK) st = store_step(s, q, found);
    store_done(q);
    pthread_mutex_unlock(&s->lock);
    return st;
}

corun_status store_rows_read(store *s, uint64_t seq, uint64_t *from,
                             corun_status (*fn)(void *ctx, const store_row *r), void *ctx,
                             size_t *n)
{
    sqlite3_stmt *q = NULL;
    *n = 0;
    pthread_mutex_lock(&s->lock);
    corun_status st = store_ask(s, &q,
                                "SELECT idx, line, http, row FROM rows WHERE batch = ? AND idx >= ?"
                                " ORDER BY idx LIMIT ?",
                                "iii", (int64_t)seq, (int64_t)*from, (int64_t)READ_AT_ONCE);
    bool row = true;
    while (st == CORUN_OK && (st = store_step(s, q, &row)) == CORUN_OK && row) {
        store_row r = {.index = (uint64_t)sqlite3_column_int64(q, 0),
                       .line_no = (uint64_t)sqlite3_column_int64(q, 1),
                       .http = sqlite3_column_int(q, 2),
                       .data = sqlite3_column_blob(q, 3),
                       .len = (size_t)sqlite3_column_bytes(q, 3)};
        if (!r.data && r.len) st = store_fail(s, "a row");
        if (st == CORUN_OK) st = fn(ctx, &r);
        if (st != CORUN_OK) break;
        *from = r.index + 1;
        ++*n;
    }
    store_done(q);
    pthread_mutex_unlock(&s->lock);
    return st;
}
