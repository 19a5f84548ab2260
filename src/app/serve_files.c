/* serve_files.c - owns /v1/files. Invariant: an upload is a file only when all of it has come and
 * is on disk; whatever ends it before leaves nothing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "app/multipart.h"
#include "app/serve_store.h"

enum { MAX_NAME = 1024, MAX_LIST = 10000, FORM_BYTES = 65536 /* of a form besides its file */ };
enum { WRITE_AT = 65536, PIECE_MAX = 4 * WRITE_AT }; /* bytes of an upload in memory */

/* ---- shared with serve_batches.c ------------------------------------------------------------- */

bool serve_has_store(serve *s, http_call *c)
{
    if (s->store) return true;
    serve_error(s, c, 503, NULL, NULL, "no_state", "this server keeps no files and batches: %s",
                s->store_why ? s->store_why : "it has no state folder");
    return false;
}

void serve_store_error(serve *s, http_call *c, corun_status st)
{
    int status = st == CORUN_ECAPACITY ? 507 : st == CORUN_EINTERNAL ? 500 : 503;
    serve_error(s, c, status, NULL, NULL, st == CORUN_ECAPACITY ? "no_room" : "storage", "%s",
                err_text());
}

void serve_no_such(serve *s, http_call *c, const char *what, const char *id)
{
    serve_error(s, c, 404, NULL, "id", NULL, "there is no %s %.80s", what, id);
}

bool serve_id(serve *s, http_call *c, const char *what, char id[STORE_ID])
{
    if (serve_segment(c, 2, id, STORE_ID)) return true;
    serve_no_such(s, c, what, "of that id");
    return false;
}

bool serve_page(serve *s, http_call *c, store_page *p, size_t usual, size_t most)
{
    const char *limit = http_query(c, "limit"), *order = http_query(c, "order");
    *p = (store_page){.after = http_query(c, "after"), .newest_first = true, .limit = usual};
    if (limit) {
        char *end;
        unsigned long n = strtoul(limit, &end, 10);
        if (*limit < '0' || *limit > '9' || *end || strlen(limit) > 9 || n < 1 || n > most) {
            serve_error(s, c, 400, NULL, "limit", NULL, "limit: must be a number in 1 ... %zu",
                        most);
            return false;
        }
        p->limit = n;
    }
    if (order && strcmp(order, "asc") != 0 && strcmp(order, "desc") != 0) {
        serve_error(s, c, 400, NULL, "order", NULL, "order: must be asc or desc");
        return false;
    }
    p->newest_first = !order || strcmp(order, "desc") == 0;
    return true;
}

void serve_put_text(jw *w, const char *key, const char *text)
{
    jw_field_str(w, key, text && *text ? text : NULL);
}

void serve_end_list(jw *w, const char *first, const char *last, bool more)
{
    jw_close(w, ']');
    serve_put_text(w, "first_id", first);
    serve_put_text(w, "last_id", last);
    jw_field_bool(w, "has_more", more);
    jw_close(w, '}');
}

/* ---- objects --------------------------------------------------------------------------------- */

static void put_file(jw *w, const store_file *f)
{
    jw_open(w, '{');
    serve_put_text(w, "id", f->id);
    serve_put_text(w, "object", "file");
    jw_field_uint(w, "bytes", f->bytes);
    jw_field_int(w, "created_at", f->created_at);
    serve_put_text(w, "expires_at", NULL);
    jw_field_str(w, "filename", f->filename);
    serve_put_text(w, "purpose", f->purpose);
    serve_put_text(w, "status", "processed");
    serve_put_text(w, "status_details", NULL);
    jw_close(w, '}');
}

static void reply_file(serve *s, http_call *c, const store_file *f)
{
    buf b;
    jw w;
    buf_init(&b, 1 << 20);
    jw_init(&w, &b);
    put_file(&w, f);
    serve_reply_json(s, c, 200, &b);
}

/* ---- uploads --------------------------------------------------------------------------------- */

/* Its form is read on the transport's thread, its file written on that of the disk: the one waits
 * while the other works. */
typedef struct upload {
    serve *s;
    http_call *c;
    multipart *form;
    store_draft *draft;
    buf piece;       /* of the file, to be written */
    bool busy, gone; /* is being written; the client has gone meanwhile (both under the lock) */
    enum { PURPOSE, FILE_PART } part;
    char purpose[32], filename[MAX_NAME + 1];
    size_t n_purpose;
    uint64_t bytes;
    bool has_purpose, has_file;
    int status; /* 200, or what the upload is answered with; its rest is read and dropped */
    const char *param;
    char why[ERR_TEXT_MAX];
} upload;

static void upload_free(upload *u)
{
    multipart_close(u->form);
    store_draft_drop(u->draft);
    buf_free(&u->piece);
    mem_free(u);
}

/* The first fault of an upload counts. What is written of it goes with the next piece. */
static corun_status refuse(upload *u, int status, const char *param)
{
    if (u->status != 200) return CORUN_OK;
    u->status = status;
    u->param = param;
    snprintf(u->why, sizeof u->why, "%s", err_text());
    return CORUN_OK;
}

/* ---- on the disk's thread ---- */

/* What the files may have together is not only this upload's: others, and outputs, count. */
static void check_room(upload *u)
{
    if (store_used(u->s->store) <= u->s->max_stored) return;
    err_set(CORUN_ECAPACITY,
            "file: with it the files of this server would have more than the %llu bytes that they "
            "may have together (--max-stored); delete some",
            (unsigned long long)u->s->max_stored);
    refuse(u, 413, "file");
}

static void put_piece(upload *u)
{
    corun_status st = CORUN_OK;
    if (u->status == 200 && u->has_file && !u->draft) st = store_draft_open(u->s->store, &u->draft);
    if (u->status == 200 && st == CORUN_OK && u->piece.len)
        st = store_draft_put(u->draft, u->piece.data, u->piece.len);
    if (st != CORUN_OK)
        refuse(u, st == CORUN_ECAPACITY ? 507 : 503, NULL);
    else
        check_room(u);
    buf_reset(&u->piece);
    if (u->status == 200) return;
    store_draft_drop(u->draft);
    u->draft = NULL;
}

static void write_piece(void *arg)
{
    upload *u = arg;
    serve *s = u->s;
    put_piece(u);
    pthread_mutex_lock(&s->lock);
    u->busy = false;
    bool gone = u->gone;
    if (!gone) http_body_go_on(u->c);
    pthread_mutex_unlock(&s->lock);
    if (gone) upload_free(u);
}

static void free_upload(void *arg) { upload_free(arg); }

/* ---- on the transport's ---- */

static corun_status on_part(void *ctx, const char *name, const char *filename)
{
    upload *u = ctx;
    bool file = strcmp(name, "file") == 0, purpose = strcmp(name, "purpose") == 0;
    u->part = file ? FILE_PART : PURPOSE;
    if (!file && !purpose) {
        err_set(CORUN_EINVAL, "%.64s: this field of an upload is not supported", name);
        return refuse(u, 400, NULL);
    }
    if (file ? u->has_file : u->has_purpose) {
        err_set(CORUN_EINVAL, "%s: is given twice", name);
        return refuse(u, 400, file ? "file" : "purpose");
    }
    u->has_purpose = u->has_purpose || purpose;
    u->has_file = u->has_file || file;
    if (!file) return CORUN_OK;
    if (filename && strlen(filename) > MAX_NAME) {
        err_set(CORUN_EINVAL, "file: its name is longer than %d bytes", MAX_NAME);
        return refuse(u, 400, "file");
    }
    snprintf(u->filename, sizeof u->filename, "%s",
             filename && *filename ? filename : "upload.jsonl");
    return CORUN_OK;
}

static corun_status on_data(void *ctx, const char *data, size_t len)
{
    upload *u = ctx;
    if (u->status != 200) return CORUN_OK;
    if (u->part == PURPOSE) {
        size_t room = sizeof u->purpose - 1 - u->n_purpose, n = len < room ? len : room;
        memcpy(u->purpose + u->n_purpose, data, n);
        u->n_purpose += n;
        return CORUN_OK;
    }
    u->bytes += len;
    if (u->bytes > u->s->max_upload) {
        err_set(CORUN_ECAPACITY, "file: longer than %zu bytes (--max-upload)", u->s->max_upload);
        return refuse(u, 413, "file");
    }
    buf_put(&u->piece, data, len);
    return buf_status(&u->piece) == CORUN_OK ? CORUN_OK : refuse(u, 503, NULL);
}

static corun_status on_end(void *ctx)
{
    (void)ctx;
    return CORUN_OK;
}

/* A piece of the body. What is wrong with it is said when it has come to its end. */
static corun_status on_body(void *ctx, const char *data, size_t len)
{
    upload *u = ctx;
    if (u->form && multipart_put(u->form, data, len) != CORUN_OK) {
        refuse(u, 400, NULL);
        multipart_close(u->form);
        u->form = NULL;
    }
    bool dropped = u->status != 200 && u->draft;
    if (u->piece.len < WRITE_AT && !dropped) return CORUN_OK;
    u->busy = true;
    http_body_wait(u->c);
    if (service_work(u->s->service, SERVICE_DISK, write_piece, u) != CORUN_OK) write_piece(u);
    return CORUN_OK;
}

static void upload_head(serve *s, http_call *c)
{
    upload *u;
    if (!serve_has_store(s, c)) return;
    if (!MEM_NEW(u, 1)) {
        serve_error(s, c, 503, NULL, NULL, NULL, "%s", err_text());
        return;
    }
    *u = (upload){.s = s, .c = c, .status = 200};
    buf_init(&u->piece, PIECE_MAX);
    const multipart_handler h = {u, on_part, on_data, on_end};
    if (multipart_open(&u->form, http_header(c, "Content-Type"), &h) != CORUN_OK) {
        upload_free(u);
        serve_error(s, c, 400, NULL, NULL, NULL, "%s", err_text());
        return;
    }
    http_set_data(c, u);
    http_body_limit(c, s->max_upload + FORM_BYTES);
    http_body_reader(c, on_body, u);
}

static void check_form(upload *u)
{
    if (u->status == 200 && u->form && multipart_end(u->form) != CORUN_OK) refuse(u, 400, NULL);
    if (u->status != 200) return;
    if (!u->has_file) {
        err_set(CORUN_EINVAL, "file: is needed");
        refuse(u, 400, "file");
    } else if (!u->has_purpose || u->n_purpose != 5 || memcmp(u->purpose, "batch", 5) != 0) {
        err_set(CORUN_EINVAL, "purpose: must be batch");
        refuse(u, 400, "purpose");
    }
}

static void finish_upload(void *arg)
{
    upload *u = arg;
    serve *s = u->s;
    http_call *c = u->c;
    store_file f;
    check_form(u);
    put_piece(u);
    if (u->status != 200) {
        serve_error(s, c, u->status, NULL, u->param, u->status == 507 ? "no_room" : NULL, "%s",
                    u->why);
    } else {
        corun_status st = store_file_add(s->store, u->draft, u->filename, u->purpose, &f);
        u->draft = NULL;
        if (st != CORUN_OK) {
            serve_store_error(s, c, st);
        } else {
            reply_file(s, c, &f);
            store_file_free(&f);
        }
    }
    upload_free(u);
}

static void upload_call(serve *s, http_call *c)
{
    upload *u = http_data(c);
    http_set_data(c, serve_held);
    if (service_work(s->service, SERVICE_DISK, finish_upload, u) == CORUN_OK) return;
    upload_free(u);
    serve_error(s, c, 429, NULL, NULL, NULL, "%s", err_text());
}

static void upload_gone(serve *s, http_call *c)
{
    upload *u = http_data(c);
    if ((void *)u == serve_held) return; /* whoever holds it ends it */
    http_set_data(c, serve_held);
    if (u) {
        pthread_mutex_lock(&s->lock);
        bool busy = u->busy;
        u->gone = true;
        pthread_mutex_unlock(&s->lock);
        if (!busy && service_work(s->service, SERVICE_DISK, free_upload, u) != CORUN_OK)
            upload_free(u);
    }
    serve_reply(s, c, 499, NULL, "", 0);
}

/* ---- reading --------------------------------------------------------------------------------- */

static void do_list(serve *s, http_call *c)
{
    store_page p;
    store_file *f;
    size_t n;
    bool more, found;
    if (!serve_page(s, c, &p, MAX_LIST, MAX_LIST)) return;
    corun_status st =
        store_file_list(s->store, &p, http_query(c, "purpose"), &f, &n, &more, &found);
    if (st != CORUN_OK) {
        serve_store_error(s, c, st);
        return;
    }
    if (!found) {
        serve_error(s, c, 400, NULL, "after", NULL, "after: there is no such file");
        return;
    }
    buf b;
    jw w;
    buf_init(&b, (size_t)256 << 20);
    jw_init(&w, &b);
    jw_open(&w, '{');
    serve_put_text(&w, "object", "list");
    jw_key(&w, "data");
    jw_open(&w, '[');
    for (size_t i = 0; i < n; i++) put_file(&w, &f[i]);
    serve_end_list(&w, n ? f[0].id : NULL, n ? f[n - 1].id : NULL, more);
    store_file_list_free(f, n);
    serve_reply_json(s, c, 200, &b);
}

static void do_get(serve *s, http_call *c)
{
    char id[STORE_ID];
    store_file f;
    bool found;
    if (!serve_id(s, c, "file", id)) return;
    corun_status st = store_file_get(s->store, id, &f, &found);
    if (st != CORUN_OK) {
        serve_store_error(s, c, st);
    } else if (!found) {
        serve_no_such(s, c, "file", id);
    } else {
        reply_file(s, c, &f);
        store_file_free(&f);
    }
}

static void do_content(serve *s, http_call *c)
{
    char id[STORE_ID];
    int fd;
    uint64_t bytes;
    bool found;
    if (!serve_id(s, c, "file", id)) return;
    corun_status st = store_file_open(s->store, id, &fd, &bytes, &found);
    if (st != CORUN_OK) {
        serve_store_error(s, c, st);
    } else if (!found) {
        serve_no_such(s, c, "file", id);
    } else {
        serve_count(s, c, 200);
        http_reply_file(c, "application/octet-stream", fd, bytes);
    }
}

static void do_delete(serve *s, http_call *c)
{
    char id[STORE_ID], reader[STORE_ID];
    bool found;
    if (!serve_id(s, c, "file", id)) return;
    corun_status st = store_file_delete(s->store, id, &found, reader);
    if (st != CORUN_OK) {
        serve_store_error(s, c, st);
    } else if (!found) {
        serve_no_such(s, c, "file", id);
    } else if (*reader) {
        serve_error(s, c, 400, NULL, "id", "file_in_use", "%s: %s reads it; cancel that first", id,
                    reader);
    } else {
        buf b;
        jw w;
        buf_init(&b, 4096);
        jw_init(&w, &b);
        jw_open(&w, '{');
        serve_put_text(&w, "id", id);
        serve_put_text(&w, "object", "file");
        jw_field_bool(&w, "deleted", true);
        jw_close(&w, '}');
        serve_reply_json(s, c, 200, &b);
    }
}

static void list(serve *s, http_call *c)
{
    if (serve_has_store(s, c)) serve_later(s, c, SERVICE_DISK, do_list);
}

static void get(serve *s, http_call *c)
{
    if (serve_has_store(s, c)) serve_later(s, c, SERVICE_DISK, do_get);
}

static void content(serve *s, http_call *c)
{
    if (serve_has_store(s, c)) serve_later(s, c, SERVICE_DISK, do_content);
}

static void remove_file(serve *s, http_call *c)
{
    if (serve_has_store(s, c)) serve_later(s, c, SERVICE_DISK, do_delete);
}

const serve_route serve_files_routes[] = {
    {"POST", "/v1/files", false, upload_head, upload_call, upload_gone},
    {"GET", "/v1/files", false, NULL, list, NULL},
    {"GET", "/v1/files/{}", false, NULL, get, NULL},
    {"DELETE", "/v1/files/{}", false, NULL, remove_file, NULL},
    {"GET", "/v1/files/{}/content", false, NULL, content, NULL},
    {NULL, NULL, false, NULL, NULL, NULL},
};
