/* serve_batches.c - owns /v1/batches. Invariant: what it answers was read from the store after what
 * it was asked to do is on disk. */
#include <stdio.h>
#include <string.h>

#include "app/serve_store.h"
#include "base/json.h"

enum { MAX_BODY = 1 << 20, USUAL_LIST = 20, MAX_LIST = 100 };
enum { MAX_PAIRS = 16, MAX_KEY = 64, MAX_VALUE = 512 }; /* of metadata, in characters */

/* ---- the object ------------------------------------------------------------------------------ */

/* A JSON text of the store as a value. */
static void put_json(jw *w, const char *text)
{
    json_t *v = NULL;
    if (text && json_read(&v, text, strlen(text), "the store") == CORUN_OK)
        jw_value(w, v);
    else
        jw_null(w);
    json_decref(v);
}

/* The errors of a failed batch, or what keeps one from going on. */
static void put_errors(serve *s, jw *w, const store_batch *b)
{
    char text[ERR_TEXT_MAX];
    bool waits = b->status != STORE_COMPLETED && b->status != STORE_FAILED &&
                 b->status != STORE_CANCELLED &&
                 runner_trouble(s->runner, b->seq, text, sizeof text);
    jw_key(w, "errors");
    if (!b->errors && !waits) {
        jw_null(w);
        return;
    }
    jw_open(w, '{');
    serve_put_text(w, "object", "list");
    jw_key(w, "data");
    if (b->errors) {
        put_json(w, b->errors);
    } else {
        jw_open(w, '[');
        jw_open(w, '{');
        serve_put_text(w, "code", "waits");
        serve_put_text(w, "message", text);
        serve_put_text(w, "param", NULL);
        serve_put_text(w, "line", NULL);
        jw_close(w, '}');
        jw_close(w, ']');
    }
    jw_close(w, '}');
}

static void put_time(jw *w, const char *key, int64_t at)
{
    jw_key(w, key);
    if (at)
        jw_int(w, at);
    else
        jw_null(w);
}

static void put_batch(serve *s, jw *w, const store_batch *b)
{
    jw_open(w, '{');
    serve_put_text(w, "id", b->id);
    serve_put_text(w, "object", "batch");
    serve_put_text(w, "endpoint", b->endpoint);
    put_errors(s, w, b);
    serve_put_text(w, "input_file_id", b->input);
    serve_put_text(w, "completion_window", "24h");
    serve_put_text(w, "status", store_status_name(b->status));
    serve_put_text(w, "output_file_id", b->output);
    serve_put_text(w, "error_file_id", b->error);
    put_time(w, "created_at", b->at[STORE_VALIDATING]);
    put_time(w, "in_progress_at", b->at[STORE_IN_PROGRESS]);
    put_time(w, "expires_at", 0);
    put_time(w, "finalizing_at", b->at[STORE_FINALIZING]);
    put_time(w, "completed_at", b->at[STORE_COMPLETED]);
    put_time(w, "failed_at", b->at[STORE_FAILED]);
    put_time(w, "expired_at", 0);
    put_time(w, "cancelling_at", b->at[STORE_CANCELLING]);
    put_time(w, "cancelled_at", b->at[STORE_CANCELLED]);
    jw_key(w, "request_counts");
    jw_open(w, '{');
    jw_field_uint(w, "total", b->total);
    jw_field_uint(w, "completed", b->completed);
    jw_field_uint(w, "failed", b->failed);
    jw_close(w, '}');
    jw_key(w, "metadata");
    put_json(w, b->metadata);
    jw_close(w, '}');
}

/* Frees the batch. */
static void reply_batch(serve *s, http_call *c, store_batch *b)
{
    buf out;
    jw w;
    buf_init(&out, (size_t)4 << 20);
    jw_init(&w, &out);
    put_batch(s, &w, b);
    store_batch_free(b);
    serve_reply_json(s, c, 200, &out);
}

/* ---- create ---------------------------------------------------------------------------------- */

/* What is wrong with a request. */
typedef struct fault {
    const char *param;
    char text[256];
} fault;

#define BAD(f, name, ...)                                                                          \
    do {                                                                                           \
        (f)->param = (name);                                                                       \
        snprintf((f)->text, sizeof(f)->text, __VA_ARGS__);                                         \
        return false;                                                                              \
    } while (0)

static size_t characters(const char *text, size_t len)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++) n += (text[i] & 0xc0) != 0x80;
    return n;
}

static bool check_metadata(const json_t *m, fault *f)
{
    const char *key;
    json_t *v;
    if (!m || json_is_null(m)) return true;
    if (!json_is_object(m)) BAD(f, "metadata", "metadata: must be an object");
    if (json_object_size(m) > MAX_PAIRS)
        BAD(f, "metadata", "metadata: more than %d pairs", MAX_PAIRS);
    json_object_foreach ((json_t *)(uintptr_t)m, key, v) {
        if (characters(key, strlen(key)) > MAX_KEY)
            BAD(f, "metadata", "metadata: a key of more than %d characters", MAX_KEY);
        if (!json_is_string(v)) BAD(f, "metadata", "metadata: values must be strings");
        if (characters(json_string_value(v), json_string_length(v)) > MAX_VALUE)
            BAD(f, "metadata", "metadata: a value of more than %d characters", MAX_VALUE);
    }
    return true;
}

/* The text of a field; NULL: it is no string, or a NUL would cut it short. */
static const char *text_of(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    const char *text = json_string_value(v);
    return text && strlen(text) == json_string_length(v) ? text : NULL;
}

static bool check_fields(const json_t *o, store_batch *b, fault *f)
{
    static const char *const known[] = {"input_file_id", "endpoint", "completion_window",
                                        "metadata"};
    const char *key;
    json_t *v;
    if (!json_is_object(o)) BAD(f, NULL, "the request must be a JSON object");
    json_object_foreach ((json_t *)(uintptr_t)o, key, v) {
        size_t i = 0;
        while (i < 4 && strcmp(key, known[i]) != 0) i++;
        if (i == 4 && !json_is_null(v)) BAD(f, NULL, "%.64s: this field is not supported", key);
    }
    const char *input = text_of(o, known[0]), *endpoint = text_of(o, known[1]);
    const char *window = text_of(o, known[2]);
    if (!input || strlen(input) >= STORE_ID)
        BAD(f, known[0], "input_file_id: the id of an uploaded file is needed");
    if (!endpoint ||
        (strcmp(endpoint, "/v1/completions") != 0 && strcmp(endpoint, "/v1/chat/completions") != 0))
        BAD(f, known[1], "endpoint: must be /v1/completions or /v1/chat/completions");
    if (!window || strcmp(window, "24h") != 0) BAD(f, known[2], "completion_window: must be 24h");
    snprintf(b->input, sizeof b->input, "%s", input);
    snprintf(b->endpoint, sizeof b->endpoint, "%s", endpoint);
    return check_metadata(json_object_get(o, known[3]), f);
}

/* On the disk's one thread: no other batch is added meanwhile. */
static void add(serve *s, http_call *c, store_batch *b)
{
    bool found, full = false;
    uint64_t n;
    corun_status st = store_batch_unfinished(s->store, &n);
    if (st == CORUN_OK) full = n >= s->max_batches;
    if (st == CORUN_OK && !full) st = store_batch_add(s->store, b, "batch", &found);
    if (st != CORUN_OK) {
        serve_store_error(s, c, st);
    } else if (full) {
        serve_error(s, c, 429, NULL, NULL, NULL,
                    "%llu batches are not at their end, and this server takes %llu (--max-batches):"
                    " wait for one of them, or cancel it",
                    (unsigned long long)n, (unsigned long long)s->max_batches);
    } else if (!found) {
        serve_error(s, c, 400, NULL, "input_file_id", NULL,
                    "input_file_id: there is no file %s with the purpose batch", b->input);
    } else {
        runner_wake(s->runner);
        reply_batch(s, c, b);
        return;
    }
    store_batch_free(b);
}

static void do_create(serve *s, http_call *c)
{
    size_t len;
    const char *body = http_body(c, &len);
    json_t *o = NULL;
    store_batch b = {0};
    fault f = {0};
    if (json_read(&o, body, len, "the request") != CORUN_OK) {
        serve_error(s, c, 400, NULL, NULL, NULL, "%s", err_text());
        return;
    }
    bool ok = check_fields(o, &b, &f);
    const json_t *m = json_object_get(o, "metadata");
    if (ok && json_is_object(m)) {
        buf text;
        jw w;
        buf_init(&text, MAX_BODY);
        jw_init(&w, &text);
        jw_value(&w, m);
        if (buf_status(&text) == CORUN_OK) b.metadata = mem_dup(text.data, text.len, "metadata");
        buf_free(&text);
        if (!b.metadata) ok = false;
        if (!ok) snprintf(f.text, sizeof f.text, "metadata: cannot be kept");
    }
    json_decref(o);
    if (ok)
        add(s, c, &b);
    else
        serve_error(s, c, 400, NULL, f.param, NULL, "%s", f.text);
}

/* ---- the others ------------------------------------------------------------------------------ */

static void do_get(serve *s, http_call *c)
{
    char id[STORE_ID];
    store_batch b;
    bool found;
    if (!serve_id(s, c, "batch", id)) return;
    corun_status st = store_batch_get(s->store, id, &b, &found);
    if (st != CORUN_OK)
        serve_store_error(s, c, st);
    else if (!found)
        serve_no_such(s, c, "batch", id);
    else
        reply_batch(s, c, &b);
}

static void do_cancel(serve *s, http_call *c)
{
    char id[STORE_ID];
    store_batch b;
    bool found;
    if (!serve_id(s, c, "batch", id)) return;
    corun_status st = store_batch_cancel(s->store, id, &b, &found);
    if (st != CORUN_OK) {
        serve_store_error(s, c, st);
    } else if (!found) {
        serve_no_such(s, c, "batch", id);
    } else if (b.status == STORE_CANCELLING) {
        runner_wake(s->runner);
        reply_batch(s, c, &b);
    } else {
        serve_error(s, c, 400, NULL, "id", NULL, "%s: is %s and cannot be cancelled", id,
                    store_status_name(b.status));
        store_batch_free(&b);
    }
}

static void do_list(serve *s, http_call *c)
{
    store_page p;
    store_batch *b;
    size_t n;
    bool more, found;
    if (!serve_page(s, c, &p, USUAL_LIST, MAX_LIST)) return;
    corun_status st = store_batch_list(s->store, &p, &b, &n, &more, &found);
    if (st != CORUN_OK) {
        serve_store_error(s, c, st);
        return;
    }
    if (!found) {
        serve_error(s, c, 400, NULL, "after", NULL, "after: there is no such batch");
        return;
    }
    buf out;
    jw w;
    buf_init(&out, (size_t)256 << 20);
    jw_init(&w, &out);
    jw_open(&w, '{');
    serve_put_text(&w, "object", "list");
    jw_key(&w, "data");
    jw_open(&w, '[');
    for (size_t i = 0; i < n; i++) put_batch(s, &w, &b[i]);
    serve_end_list(&w, n ? b[0].id : NULL, n ? b[n - 1].id : NULL, more);
    store_batch_list_free(b, n);
    serve_reply_json(s, c, 200, &out);
}

static void create_head(serve *s, http_call *c)
{
    (void)s;
    http_body_limit(c, MAX_BODY);
}

static void create(serve *s, http_call *c)
{
    if (serve_has_store(s, c)) serve_later(s, c, SERVICE_DISK, do_create);
}

static void list(serve *s, http_call *c)
{
    if (serve_has_store(s, c)) serve_later(s, c, SERVICE_DISK, do_list);
}

static void get(serve *s, http_call *c)
{
    if (serve_has_store(s, c)) serve_later(s, c, SERVICE_DISK, do_get);
}

static void cancel(serve *s, http_call *c)
{
    if (serve_has_store(s, c)) serve_later(s, c, SERVICE_DISK, do_cancel);
}

const serve_route serve_batches_routes[] = {
    {"POST", "/v1/batches", false, create_head, create, NULL},
    {"GET", "/v1/batches", false, NULL, list, NULL},
    {"GET", "/v1/batches/{}", false, NULL, get, NULL},
    {"POST", "/v1/batches/{}/cancel", false, NULL, cancel, NULL},
    {NULL, NULL, false, NULL, NULL, NULL},
};
