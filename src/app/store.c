/* store.c - owns the state folder: its lock, its database and the contents of files. Invariant: a
 * row of the database names a content only after that content is whole and on disk, and a content
 * goes only when no row names it, whatever a crash may bring back. */
#include "app/store_in.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "app/sink.h"
#include "base/json.h"

enum { APPLICATION = 0x436f5253 /* "CoRS" */, BUSY_MS = 5000, HELD = 65536 };

/* ---- the database ---------------------------------------------------------------------------- */

static bool no_room(int err) { return err == ENOSPC || err == EDQUOT || err == EFBIG; }

/* The system's reason for the last failed write of the database or its log. */
static bool write_no_room(store *s)
{
    static const int which[] = {SQLITE_FCNTL_FILE_POINTER, SQLITE_FCNTL_JOURNAL_POINTER};
    for (size_t i = 0; i < 2; i++) {
        sqlite3_file *f = NULL;
        int err = 0;
        if (sqlite3_file_control(s->db, "main", which[i], &f) == SQLITE_OK && f && f->pMethods &&
            f->pMethods->xFileControl(f, SQLITE_FCNTL_LAST_ERRNO, &err) == SQLITE_OK &&
            no_room(err))
            return true;
    }
    return false;
}

corun_status store_fail(store *s, const char *what)
{
    int code = sqlite3_errcode(s->db) & 255;
    corun_status st = CORUN_EIO;
    if (code == SQLITE_NOMEM) st = CORUN_ENOMEM;
    if (code == SQLITE_NOTADB || code == SQLITE_CORRUPT) st = CORUN_EFORMAT;
    bool write = sqlite3_extended_errcode(s->db) == SQLITE_IOERR_WRITE;
    if (code == SQLITE_FULL || (write && write_no_room(s)))
        FAIL(CORUN_ECAPACITY, "%s: %s: no room on the disk", s->name, what);
    return err_set(st, "%s: %s: %s", s->name, what, sqlite3_errmsg(s->db));
}

corun_status store_fail_file(int err, const char *path)
{
    FAIL(no_room(err) ? CORUN_ECAPACITY : CORUN_EIO, "%s: %s", path, strerror(err));
}

static corun_status bind(store *s, sqlite3_stmt *q, const char *fmt, va_list ap)
{
    for (int i = 1; fmt[i - 1]; i++) {
        int rc;
        if (fmt[i - 1] == 'i') {
            rc = sqlite3_bind_int64(q, i, va_arg(ap, int64_t));
        } else if (fmt[i - 1] == 't') {
            rc = sqlite3_bind_text(q, i, va_arg(ap, const char *), -1, SQLITE_STATIC);
        } else {
            const char *data = va_arg(ap, const char *);
            rc = sqlite3_bind_blob64(q, i, data, va_arg(ap, size_t), SQLITE_STATIC);
        }
        if (rc != SQLITE_OK) return store_fail(s, "a value");
    }
    return CORUN_OK;
}

static corun_status ask(store *s, sqlite3_stmt **out, const char *sql, const char *fmt, va_list ap)
{
    size_t i = 0;
    while (i < STORE_QUERIES && s->query[i].sql && s->query[i].sql != sql) i++;
    if (i == STORE_QUERIES) FAIL(CORUN_EINTERNAL, "%s: too many statements", s->name);
    if (!s->query[i].sql) {
        if (sqlite3_prepare_v3(s->db, sql, -1, SQLITE_PREPARE_PERSISTENT, &s->query[i].st, NULL) !=
            SQLITE_OK)
            return store_fail(s, "a statement");
        s->query[i].sql = sql;
    }
    *out = s->query[i].st;
    return bind(s, *out, fmt, ap);
}

corun_status store_ask(store *s, sqlite3_stmt **out, const char *sql, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    corun_status st = ask(s, out, sql, fmt, ap);
    va_end(ap);
    return st;
}

corun_status store_step(store *s, sqlite3_stmt *q, bool *row)
{
    int rc = sqlite3_step(q);
    *row = rc == SQLITE_ROW;
    return rc == SQLITE_ROW || rc == SQLITE_DONE ? CORUN_OK : store_fail(s, "a statement");
}

void store_done(sqlite3_stmt *q)
{
    if (!q) return;
    sqlite3_reset(q);
    sqlite3_clear_bindings(q);
}

corun_status store_do(store *s, const char *sql, const char *fmt, ...)
{
    sqlite3_stmt *q = NULL;
    bool row;
    va_list ap;
    va_start(ap, fmt);
    corun_status st = ask(s, &q, sql, fmt, ap);
    va_end(ap);
    if (st == CORUN_OK) st = store_step(s, q, &row);
    store_done(q);
    return st;
}

/* The open files are still those that the next server will find. */
static corun_status check_parts(store *s)
{
    struct stat now;
    for (size_t i = 0; i < 2; i++) {
        const store_part *p = &s->part[i];
        if (!p->path || (stat(p->path, &now) == 0 && now.st_dev == p->dev && now.st_ino == p->ino))
            continue;
        err_set(CORUN_EIO,
                "%s: was removed or replaced while the server runs, so that what is written now "
                "would be lost: bring it back, or start the server again with what is there",
                p->path);
        if (!s->away) fprintf(stderr, "corun serve: %s\n", err_text());
        s->away = true;
        return CORUN_EIO;
    }
    s->away = false;
    return CORUN_OK;
}

corun_status store_lock(store *s)
{
    pthread_mutex_lock(&s->lock);
    corun_status st = check_parts(s);
    if (st == CORUN_OK) st = store_do(s, "BEGIN IMMEDIATE", "");
    if (st != CORUN_OK) pthread_mutex_unlock(&s->lock);
    return st;
}

static void remove_content(const store *s, const char *id)
{
    char path[4096]; /* as long as the system takes */
    snprintf(path, sizeof path, "%s/%s", s->files, id);
    unlink(path); /* what stays goes when the folder is opened the next time */
}

static void free_orphans(store *s, bool removed)
{
    for (store_orphan *o = s->orphans, *next; o; o = next) {
        next = o->next;
        if (removed) remove_content(s, o->id);
        mem_free(o);
    }
    s->orphans = NULL;
}

static corun_status commit(store *s)
{
    corun_status st = store_do(s, "COMMIT", "");
    if (st == CORUN_OK) {
        s->doubt = false;
        free_orphans(s, true);
        return CORUN_OK;
    }
    /* Where the log could not be written its last record, which makes it count, is not there. */
    int code = sqlite3_extended_errcode(s->db);
    if (code != SQLITE_FULL && code != SQLITE_IOERR_WRITE) s->doubt = true;
    return st;
}

corun_status store_settle(store *s)
{
    if (!s->doubt) return CORUN_OK;
    TRY(store_lock(s));
    return store_unlock(s, store_do(s, "PRAGMA user_version = 1", ""));
}

corun_status store_unlock(store *s, corun_status st)
{
    if (st == CORUN_OK) st = commit(s);
    if (!sqlite3_get_autocommit(s->db)) sqlite3_exec(s->db, "ROLLBACK", NULL, NULL, NULL);
    pthread_mutex_unlock(&s->lock);
    return st;
}

corun_status store_text(sqlite3_stmt *q, int column, char **out)
{
    const char *text = (const char *)sqlite3_column_text(q, column);
    *out = NULL;
    if (!text) return CORUN_OK;
    *out = mem_dup(text, (size_t)sqlite3_column_bytes(q, column), "text");
    return *out ? CORUN_OK : CORUN_ENOMEM;
}

void store_copy(sqlite3_stmt *q, int column, char *out, size_t cap)
{
    const char *text = (const char *)sqlite3_column_text(q, column);
    snprintf(out, cap, "%s", text ? text : "");
}

corun_status store_seq(store *s, const char *sql, const char *id, uint64_t *seq, bool *found)
{
    sqlite3_stmt *q = NULL;
    corun_status st = store_ask(s, &q, sql, "t", id);
    *found = false;
    if (st == CORUN_OK) st = store_step(s, q, found);
    if (*found) *seq = (uint64_t)sqlite3_column_int64(q, 0);
    store_done(q);
    return st;
}

corun_status store_new_id(const char *prefix, char out[STORE_ID])
{
    unsigned char r[16];
    if (getrandom(r, sizeof r, 0) != sizeof r) FAIL(CORUN_EIO, "getrandom: %s", strerror(errno));
    int n = snprintf(out, STORE_ID, "%s", prefix);
    for (size_t i = 0; i < sizeof r; i++)
        n += snprintf(out + n, STORE_ID - (size_t)n, "%02x", r[i]);
    return CORUN_OK;
}

/* ---- opening --------------------------------------------------------------------------------- */

static const char schema[] =
    "CREATE TABLE files (seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE,"
    " filename TEXT NOT NULL, purpose TEXT NOT NULL, bytes INTEGER NOT NULL,"
    " created_at INTEGER NOT NULL);"
    "CREATE TABLE batches (seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE,"
    " input TEXT NOT NULL, output TEXT, error TEXT, endpoint TEXT NOT NULL,"
    " status INTEGER NOT NULL, created_at INTEGER NOT NULL, in_progress_at INTEGER,"
    " finalizing_at INTEGER, completed_at INTEGER, failed_at INTEGER, cancelling_at INTEGER,"
    " cancelled_at INTEGER, total INTEGER NOT NULL DEFAULT 0,"
    " completed INTEGER NOT NULL DEFAULT 0, failed INTEGER NOT NULL DEFAULT 0, metadata TEXT,"
    " errors TEXT, facts TEXT);"
    "CREATE TABLE rows (batch INTEGER NOT NULL, idx INTEGER NOT NULL, line INTEGER NOT NULL,"
    " http INTEGER NOT NULL, row BLOB NOT NULL, PRIMARY KEY (batch, idx));"
    "PRAGMA application_id = 0x436f5253; PRAGMA user_version = 1;";

static corun_status exec(store *s, const char *sql, const char *what)
{
    return sqlite3_exec(s->db, sql, NULL, NULL, NULL) == SQLITE_OK ? CORUN_OK : store_fail(s, what);
}

static corun_status pragma(store *s, const char *sql, int64_t *out, char *text, size_t cap)
{
    sqlite3_stmt *q;
    if (sqlite3_prepare_v2(s->db, sql, -1, &q, NULL) != SQLITE_OK) return store_fail(s, "reading");
    bool row = false;
    corun_status st = store_step(s, q, &row);
    if (out) *out = row ? sqlite3_column_int64(q, 0) : 0;
    if (text) store_copy(q, 0, text, cap);
    sqlite3_finalize(q);
    return st;
}

static corun_status make_schema(store *s)
{
    TRY(exec(s, "PRAGMA auto_vacuum = INCREMENTAL", "creating"));
    TRY(exec(s, "BEGIN IMMEDIATE", "creating"));
    corun_status st = exec(s, schema, "creating");
    return st == CORUN_OK ? exec(s, "COMMIT", "creating") : st;
}

/* Whether a name is one that store_new_id makes with the prefix. */
static bool made_here(const char *name, const char *prefix)
{
    size_t n = strlen(prefix);
    return strncmp(name, prefix, n) == 0 && strlen(name) == n + 32 &&
           strspn(name + n, "0123456789abcdef") == 32;
}

/* A database that is new beside contents was lost: its contents must not be swept away. */
static corun_status check_new(const store *s)
{
    struct dirent **entry;
    int n = scandir(s->files, &entry, NULL, alphasort);
    if (n < 0) return store_fail_file(errno, s->files);
    corun_status st = CORUN_OK;
    for (int i = 0; i < n; i++) {
        if (st == CORUN_OK && made_here(entry[i]->d_name, "file-"))
            st = err_set(CORUN_EFORMAT,
                         "%s: a new or empty database beside stored files (%s): bring back the "
                         "database, or move the files away",
                         s->name, entry[i]->d_name);
        free(entry[i]);
    }
    free(entry);
    return st;
}

static corun_status check_database(store *s)
{
    int64_t application, version, tables;
    char text[512];
    TRY(pragma(s, "PRAGMA application_id", &application, NULL, 0));
    TRY(pragma(s, "PRAGMA user_version", &version, NULL, 0));
    TRY(pragma(s, "SELECT count(*) FROM sqlite_schema", &tables, NULL, 0));
    if (application == 0 && version == 0 && tables == 0) {
        TRY(check_new(s));
        return make_schema(s);
    }
    if (application != APPLICATION)
        FAIL(CORUN_EFORMAT, "%s: a database of another program", s->name);
    if (version != STORE_VERSION)
        FAIL(CORUN_EFORMAT, "%s: a database of version %lld, this program reads version %d",
             s->name, (long long)version, STORE_VERSION);
    TRY(pragma(s, "PRAGMA quick_check(1)", NULL, text, sizeof text));
    if (strcmp(text, "ok") != 0) FAIL(CORUN_EFORMAT, "%s: a broken database: %s", s->name, text);
    return CORUN_OK;
}

static corun_status open_database(store *s)
{
    char mode[16];
    if (sqlite3_open_v2(s->name, &s->db,
                        SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX,
                        NULL) != SQLITE_OK) {
        if (!s->db) FAIL(CORUN_ENOMEM, "%s: no memory to open it", s->name);
        return store_fail(s, "opening");
    }
    sqlite3_busy_timeout(s->db, BUSY_MS);
    TRY(check_database(s));
    TRY(pragma(s, "PRAGMA journal_mode = WAL", NULL, mode, sizeof mode));
    if (strcmp(mode, "wal") != 0)
        FAIL(CORUN_EINVAL, "%s: its file system cannot have a write-ahead log", s->name);
    return exec(s,
                "PRAGMA synchronous = FULL; PRAGMA journal_size_limit = 67108864;"
                "PRAGMA trusted_schema = OFF",
                "opening");
}

static char *join(const char *folder, const char *name)
{
    buf b;
    buf_init(&b, 1 << 16);
    buf_printf(&b, "%s/%s", folder, name);
    char *text = buf_status(&b) == CORUN_OK ? mem_dup(b.data, b.len, "path") : NULL;
    buf_free(&b);
    return text;
}

static corun_status remember_parts(store *s)
{
    static const char *const name[2] = {"corun.db", "corun.db-wal"};
    struct stat now;
    for (size_t i = 0; i < 2; i++) {
        store_part *p = &s->part[i];
        if (!(p->path = join(s->folder, name[i]))) return CORUN_ENOMEM;
        if (stat(p->path, &now) != 0) return store_fail_file(errno, p->path);
        p->dev = now.st_dev;
        p->ino = now.st_ino;
    }
    return CORUN_OK;
}

/* Removes contents that no row names: a killed server was about to add or had just deleted them.
 * What has other names is not ours. */
static corun_status sweep(store *s)
{
    struct dirent **entry;
    int n = scandir(s->files, &entry, NULL, alphasort);
    if (n < 0) return store_fail_file(errno, s->files);
    corun_status st = CORUN_OK;
    for (int i = 0; i < n; i++) {
        const char *name = entry[i]->d_name;
        uint64_t seq;
        bool found = true;
        if (st == CORUN_OK && (made_here(name, "file-") || made_here(name, "part-")))
            st = store_seq(s, "SELECT seq FROM files WHERE id = ?", name, &seq, &found);
        if (st == CORUN_OK && !found) remove_content(s, name);
        free(entry[i]);
    }
    free(entry);
    return st;
}

static corun_status count_used(store *s)
{
    int64_t bytes, n;
    TRY(pragma(s, "SELECT coalesce(sum(bytes), 0) FROM files", &bytes, NULL, 0));
    TRY(pragma(s, "SELECT count(*) FROM files", &n, NULL, 0));
    s->used = (uint64_t)bytes + (uint64_t)n * STORE_FILE;
    return CORUN_OK;
}

uint64_t store_used(const store *s) { return s->used; }

/* The folder, and those above it. */
static corun_status make_folder(const char *path)
{
    char *p = mem_dup(path, strlen(path), "path");
    if (!p) return CORUN_ENOMEM;
    int err = 0;
    for (size_t i = 1; p[i] && !err; i++) {
        if (p[i] != '/') continue;
        p[i] = 0;
        if (mkdir(p, 0700) != 0 && errno != EEXIST) err = errno;
        p[i] = '/';
    }
    if (!err && mkdir(p, 0700) != 0 && errno != EEXIST) err = errno;
    mem_free(p);
    if (err) FAIL(CORUN_EINVAL, "%s: %s", path, strerror(err));
    return CORUN_OK;
}

static corun_status open_folder(store *s, const char *folder)
{
    if (!*folder) FAIL(CORUN_EINVAL, "the state folder has no name");
    s->folder = mem_dup(folder, strlen(folder), "path");
    s->files = join(folder, "files");
    s->name = join(folder, "corun.db");
    char *lock = join(folder, "lock");
    corun_status st = s->folder && s->files && s->name && lock ? CORUN_OK : CORUN_ENOMEM;
    if (st == CORUN_OK) st = make_folder(s->files);
    if (st == CORUN_OK) st = file_lock(&s->lock_fd, lock);
    if (st == CORUN_EINVAL) err_prefix(st, "the state folder cannot be used");
    mem_free(lock);
    return st;
}

corun_status store_open(store **out, const char *folder)
{
    store *s;
    if (!MEM_NEW(s, 1)) return CORUN_ENOMEM;
    s->lock_fd = -1;
    pthread_mutex_init(&s->lock, NULL);
    corun_status st = open_folder(s, folder);
    if (st == CORUN_OK) st = open_database(s);
    if (st == CORUN_OK) st = sweep(s);
    if (st == CORUN_OK) st = count_used(s);
    if (st == CORUN_OK) st = remember_parts(s); /* the log is there since the first read */
    if (st == CORUN_OK) {
        folder_sync(s->folder);
        *out = s;
    } else {
        store_close(s);
    }
    return st;
}

void store_close(store *s)
{
    if (!s) return;
    for (size_t i = 0; i < STORE_QUERIES; i++) sqlite3_finalize(s->query[i].st);
    sqlite3_close(s->db);
    free_orphans(s, false);
    if (s->lock_fd >= 0) close(s->lock_fd);
    pthread_mutex_destroy(&s->lock);
    mem_free(s->folder);
    mem_free(s->files);
    mem_free(s->name);
    for (size_t i = 0; i < 2; i++) mem_free(s->part[i].path);
    mem_free(s);
}

/* ---- contents -------------------------------------------------------------------------------- */

struct store_draft {
    store *s;
    int fd;
    char *path;
    uint64_t bytes;
    size_t held;
    char data[HELD];
};

corun_status store_draft_open(store *s, store_draft **out)
{
    char id[STORE_ID];
    store_draft *d;
    TRY(store_new_id("part-", id));
    if (!MEM_NEW(d, 1)) return CORUN_ENOMEM;
    d->s = s;
    d->fd = -1;
    if (!(d->path = join(s->files, id))) {
        mem_free(d);
        return CORUN_ENOMEM;
    }
    d->fd = open(d->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (d->fd < 0) {
        corun_status st = store_fail_file(errno, d->path);
        mem_free(d->path); /* not ours */
        mem_free(d);
        return st;
    }
    s->used += STORE_FILE;
    *out = d;
    return CORUN_OK;
}

static corun_status write_all(store_draft *d, const char *data, size_t len)
{
    while (len) {
        ssize_t n = write(d->fd, data, len);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return store_fail_file(n < 0 ? errno : ENOSPC, d->path);
        data += n;
        len -= (size_t)n;
    }
    return CORUN_OK;
}

static corun_status flush(store_draft *d)
{
    size_t n = d->held;
    d->held = 0;
    return write_all(d, d->data, n);
}

corun_status store_draft_put(store_draft *d, const char *data, size_t len)
{
    d->bytes += len;
    d->s->used += len;
    if (len > HELD - d->held) TRY(flush(d));
    if (len > HELD) return write_all(d, data, len);
    memcpy(d->data + d->held, data, len);
    d->held += len;
    return CORUN_OK;
}

void store_draft_drop(store_draft *d)
{
    if (!d) return;
    if (d->path) { /* no file has become of it */
        unlink(d->path);
        d->s->used -= d->bytes + STORE_FILE;
    }
    if (d->fd >= 0) close(d->fd);
    mem_free(d->path);
    mem_free(d);
}

corun_status store_draft_place(store *s, store_draft *d, const char *id)
{
    TRY(flush(d));
    if (fsync(d->fd) != 0) return store_fail_file(errno, d->path);
    char *path = join(s->files, id);
    if (!path) return CORUN_ENOMEM;
    int rc = rename(d->path, path), err = errno;
    mem_free(path);
    if (rc != 0) return store_fail_file(err, d->path);
    folder_sync(s->files);
    mem_free(d->path);
    d->path = NULL;
    return CORUN_OK;
}

uint64_t store_draft_bytes(const store_draft *d) { return d->bytes; }

void store_unplace(store *s, const char *id, uint64_t bytes)
{
    store_orphan *o;
    s->used -= bytes + STORE_FILE;
    pthread_mutex_lock(&s->lock);
    bool doubt = s->doubt;
    if (doubt && MEM_NEW(o, 1)) { /* else it stays until the folder is opened the next time */
        snprintf(o->id, sizeof o->id, "%s", id);
        o->next = s->orphans;
        s->orphans = o;
    }
    pthread_mutex_unlock(&s->lock);
    if (!doubt) remove_content(s, id);
}

/* ---- files ----------------------------------------------------------------------------------- */

#define FILE_COLUMNS "seq, id, filename, purpose, bytes, created_at"

void store_file_free(store_file *f)
{
    mem_free(f->filename);
    f->filename = NULL;
}

void store_file_list_free(store_file *f, size_t n)
{
    for (size_t i = 0; i < n; i++) store_file_free(&f[i]);
    mem_free(f);
}

static corun_status read_file(sqlite3_stmt *q, store_file *f)
{
    *f = (store_file){.seq = (uint64_t)sqlite3_column_int64(q, 0),
                      .bytes = (uint64_t)sqlite3_column_int64(q, 4),
                      .created_at = sqlite3_column_int64(q, 5)};
    store_copy(q, 1, f->id, sizeof f->id);
    store_copy(q, 3, f->purpose, sizeof f->purpose);
    return store_text(q, 2, &f->filename);
}

corun_status store_file_row(store *s, const char *id, const store_draft *d, const char *filename,
                            const char *purpose, int64_t now)
{
    return store_do(s,
                    "INSERT INTO files (id, filename, purpose, bytes, created_at)"
                    " VALUES (?, ?, ?, ?, ?)",
                    "tttii", id, filename, purpose, (int64_t)d->bytes, now);
}

corun_status store_file_add(store *s, store_draft *d, const char *filename, const char *purpose,
                            store_file *out)
{
    *out = (store_file){.bytes = d->bytes, .created_at = time(NULL)};
    snprintf(out->purpose, sizeof out->purpose, "%s", purpose);
    out->filename = mem_dup(filename, strlen(filename), "file name");
    corun_status st = out->filename ? store_new_id("file-", out->id) : CORUN_ENOMEM;
    if (st == CORUN_OK) st = store_settle(s);
    if (st == CORUN_OK) st = store_draft_place(s, d, out->id);
    bool placed = st == CORUN_OK;
    if (placed && (st = store_lock(s)) == CORUN_OK) {
        st = store_file_row(s, out->id, d, filename, purpose, out->created_at);
        out->seq = (uint64_t)sqlite3_last_insert_rowid(s->db);
        st = store_unlock(s, st);
    }
    if (st != CORUN_OK) {
        if (placed) store_unplace(s, out->id, d->bytes);
        store_file_free(out);
    }
    store_draft_drop(d);
    return st;
}

corun_status store_file_get(store *s, const char *id, store_file *out, bool *found)
{
    sqlite3_stmt *q = NULL;
    *found = false;
    pthread_mutex_lock(&s->lock);
    corun_status st = store_ask(s, &q, "SELECT " FILE_COLUMNS " FROM files WHERE id = ?", "t", id);
    if (st == CORUN_OK) st = store_step(s, q, found);
    if (*found && (st = read_file(q, out)) != CORUN_OK) *found = false;
    store_done(q);
    pthread_mutex_unlock(&s->lock);
    return st;
}

corun_status store_file_path(const store *s, const char *id, buf *path)
{
    buf_printf(path, "%s/%s", s->files, id);
    buf_putc(path, 0);
    return buf_status(path);
}

corun_status store_file_open(store *s, const char *id, int *fd, uint64_t *bytes, bool *found)
{
    store_file f;
    struct stat sb;
    TRY(store_file_get(s, id, &f, found));
    if (!*found) return CORUN_OK;
    store_file_free(&f);
    char *path = join(s->files, f.id);
    if (!path) return CORUN_ENOMEM;
    corun_status st = CORUN_OK;
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (*fd < 0 && errno == ENOENT) {
        /* deleted since, or taken away by someone else */
        bool still = false;
        st = store_file_get(s, id, &f, &still);
        if (still) st = err_set(CORUN_EFORMAT, "%s: its content is not there", path);
        if (still) store_file_free(&f);
        *found = false;
    } else if (*fd < 0) {
        int err = errno;
        st = err_set(file_refusal(err), "%s: %s", path, strerror(err));
    } else if (fstat(*fd, &sb) != 0 || (uint64_t)sb.st_size != f.bytes) {
        close(*fd);
        st = err_set(CORUN_EFORMAT, "%s: has %lld bytes, %llu were written", path,
                     (long long)sb.st_size, (unsigned long long)f.bytes);
    }
    mem_free(path);
    *bytes = f.bytes;
    return st;
}

/* Reads the page's rows; the first column of each is its number. */
static corun_status list_files(store *s, const store_page *p, const char *purpose, uint64_t after,
                               store_file *out, size_t *n, bool *more)
{
    sqlite3_stmt *q = NULL;
    const char *sql = p->newest_first
                          ? "SELECT " FILE_COLUMNS " FROM files WHERE seq < ?"
                            " AND (?2 IS NULL OR purpose = ?2) ORDER BY seq DESC LIMIT ?3"
                          : "SELECT " FILE_COLUMNS " FROM files WHERE seq > ?"
                            " AND (?2 IS NULL OR purpose = ?2) ORDER BY seq LIMIT ?3";
    corun_status st = store_ask(s, &q, sql, "iti", (int64_t)after, purpose, (int64_t)p->limit + 1);
    bool row = true;
    while (st == CORUN_OK && (st = store_step(s, q, &row)) == CORUN_OK && row && *n < p->limit)
        if ((st = read_file(q, &out[*n])) == CORUN_OK) ++*n;
    *more = st == CORUN_OK && row;
    store_done(q);
    return st;
}

corun_status store_file_list(store *s, const store_page *p, const char *purpose, store_file **out,
                             size_t *n, bool *more, bool *found)
{
    uint64_t after = p->newest_first ? INT64_MAX : 0;
    *n = 0;
    *more = false;
    *found = true;
    if (!MEM_NEW(*out, p->limit)) return CORUN_ENOMEM;
    pthread_mutex_lock(&s->lock);
    corun_status st = CORUN_OK;
    if (p->after) st = store_seq(s, "SELECT seq FROM files WHERE id = ?", p->after, &after, found);
    if (st == CORUN_OK && *found) st = list_files(s, p, purpose, after, *out, n, more);
    pthread_mutex_unlock(&s->lock);
    if (st != CORUN_OK || !*found) {
        store_file_list_free(*out, *n);
        *out = NULL;
        *n = 0;
    }
    return st;
}

static corun_status delete_file(store *s, const char *id, uint64_t *bytes, bool *found,
                                char reader[STORE_ID])
{
    sqlite3_stmt *q = NULL;
    bool used = false;
    TRY(store_seq(s, "SELECT bytes FROM files WHERE id = ?", id, bytes, found));
    if (!*found) return CORUN_OK;
    corun_status st =
        store_ask(s, &q, "SELECT id FROM batches WHERE input = ? AND " STORE_UNFINISHED, "t", id);
    if (st == CORUN_OK) st = store_step(s, q, &used);
    if (used) store_copy(q, 0, reader, STORE_ID);
    store_done(q);
    if (st != CORUN_OK || used) return st;
    return store_do(s, "DELETE FROM files WHERE id = ?", "t", id);
}

corun_status store_file_delete(store *s, const char *id, bool *found, char reader[STORE_ID])
{
    uint64_t bytes;
    *reader = 0;
    TRY(store_lock(s));
    TRY(store_unlock(s, delete_file(s, id, &bytes, found, reader)));
    if (*found && !*reader) store_unplace(s, id, bytes);
    return CORUN_OK;
}
