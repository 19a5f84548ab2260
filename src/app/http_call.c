/* http_call.c - owns what the holder of a call does with it, on any thread: reading the request,
 * writing the reply. Invariant: the loop hears of all that is written, and a reply that could not
 * be written whole ends its connection. */
#include "app/http_in.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

void http_free(http *s)
{
    pthread_mutex_destroy(&s->lock);
    mem_free(s);
}

void http_call_free(http_call *c)
{
    http *s = c->s;
    http_head_free(&c->head);
    buf_free(&c->body);
    if (c->out) evbuffer_free(c->out);
    if (c->file >= 0) close(c->file);
    pthread_mutex_lock(&s->lock);
    s->n.alive--;
    bool last = --s->n_call == 0 && s->dead;
    pthread_mutex_unlock(&s->lock);
    mem_free(c);
    if (last) http_free(s);
}

void http_tell(http_call *c)
{
    uint64_t one = 1;
    http *s = c->s;
    if (c->news) return;
    c->news = true;
    c->next_news = s->news;
    bool first = s->news == NULL;
    s->news = c;
    if (first && write(s->wake_fd, &one, sizeof one) < 0) return; /* it is awake anyway */
}

bool http_put_head(struct evbuffer *b, int status, const char *type, const http_field *f,
                   size_t n_field, bool keep)
{
    char date[64];
    struct tm tm;
    time_t now = time(NULL);
    gmtime_r(&now, &tm);
    strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", &tm);
    bool ok = evbuffer_add_printf(b, "HTTP/1.1 %d %s\r\nDate: %s\r\nContent-Type: %s\r\n", status,
                                  http_head_reason(status), date, type) >= 0;
    for (size_t i = 0; i < n_field; i++)
        ok = ok && evbuffer_add_printf(b, "%s: %s\r\n", f[i].name, f[i].value) >= 0;
    return ok && (keep || evbuffer_add_printf(b, "Connection: close\r\n") >= 0);
}

/* ---- the request ----------------------------------------------------------------------------- */

const char *http_method(const http_call *c) { return c->head.method; }
const char *http_path(const http_call *c) { return c->head.path; }

const char *http_query(const http_call *c, const char *name)
{
    for (size_t i = 0; i < c->head.n_query; i++)
        if (strcmp(c->head.query[i].name, name) == 0) return c->head.query[i].value;
    return NULL;
}

const char *http_header(const http_call *c, const char *name)
{
    return http_head_field(&c->head, name);
}

const char *http_host(const http_call *c) { return c->head.host; }

const char *http_body(const http_call *c, size_t *len)
{
    *len = c->body.len;
    return c->body.data ? c->body.data : "";
}

void http_set_data(http_call *c, void *data) { c->data = data; }
void *http_data(const http_call *c) { return c->data; }
void http_set_number(http_call *c, size_t number) { c->number = number; }
size_t http_number(const http_call *c) { return c->number; }

bool http_is_gone(const http_call *c)
{
    pthread_mutex_lock(&c->s->lock);
    bool gone = c->gone;
    pthread_mutex_unlock(&c->s->lock);
    return gone;
}

void http_body_limit(http_call *c, size_t bytes) { c->limit = bytes; }

void http_body_reader(http_call *c, corun_status (*put)(void *ctx, const char *data, size_t len),
                      void *ctx)
{
    c->put = put;
    c->put_ctx = ctx;
}

void http_body_wait(http_call *c)
{
    c->waits = true;
    c->waits_since = clock_seconds();
}

void http_body_go_on(http_call *c)
{
    pthread_mutex_lock(&c->s->lock);
    c->goes_on = true;
    if (!c->gone) http_tell(c);
    pthread_mutex_unlock(&c->s->lock);
}

/* ---- the reply ------------------------------------------------------------------------------- */

/* Under the lock; true: the caller frees the call. */
static bool end(http_call *c)
{
    c->ended = true;
    if (c->s->dead) return true;
    http_tell(c);
    return false;
}

static bool keeps(const http_call *c) { return c->whole && !c->head.close && !c->s->draining; }

static bool no_body(const http_call *c) { return strcmp(c->head.method, "HEAD") == 0; }

void http_reply(http_call *c, int status, const char *type, const http_field *f, size_t n_field,
                const char *data, size_t len)
{
    pthread_mutex_lock(&c->s->lock);
    if (!c->gone)
        c->cut |= !http_put_head(c->out, status, type, f, n_field, keeps(c)) ||
                  evbuffer_add_printf(c->out, "Content-Length: %zu\r\n\r\n", len) < 0 ||
                  (!no_body(c) && evbuffer_add(c->out, data, len) != 0);
    bool mine = end(c);
    pthread_mutex_unlock(&c->s->lock);
    if (mine) http_call_free(c);
}

void http_reply_file(http_call *c, const char *type, int fd, uint64_t len)
{
    pthread_mutex_lock(&c->s->lock);
    if (!c->gone) {
        c->cut |= !http_put_head(c->out, 200, type, NULL, 0, keeps(c)) ||
                  evbuffer_add_printf(c->out, "Content-Length: %llu\r\n\r\n",
                                      (unsigned long long)len) < 0;
    }
    c->file = fd;
    c->file_len = no_body(c) ? 0 : len;
    bool mine = end(c);
    pthread_mutex_unlock(&c->s->lock);
    if (mine) http_call_free(c);
}

void http_stream_begin(http_call *c, int status, const char *type, const http_field *f,
                       size_t n_field)
{
    pthread_mutex_lock(&c->s->lock);
    c->begun = true;
    if (c->head.old) c->whole = false; /* its end is the connection's */
    if (!c->gone) {
        const char *how = c->head.old ? "" : "Transfer-Encoding: chunked\r\n";
        c->no_memory = !http_put_head(c->out, status, type, f, n_field, keeps(c)) ||
                       evbuffer_add_printf(c->out, "%s\r\n", how) < 0;
        c->cut |= c->no_memory;
        http_tell(c);
    }
    pthread_mutex_unlock(&c->s->lock);
}

/* One piece of a stream. */
static bool put_chunk(http_call *c, const char *data, size_t len)
{
    if (c->head.old) return evbuffer_add(c->out, data, len) == 0;
    return evbuffer_add_printf(c->out, "%zx\r\n", len) >= 0 &&
           evbuffer_add(c->out, data, len) == 0 && evbuffer_add(c->out, "\r\n", 2) == 0;
}

/* A client is slow by what it did not take of earlier pieces. What the loop has not offered yet
 * does not count, nor does as much as the largest piece: no client takes that at once. */
bool http_stream_put(http_call *c, const char *data, size_t len)
{
    pthread_mutex_lock(&c->s->lock);
    bool ok = !c->gone && !c->cut;
    if (ok && len && !no_body(c)) {
        bool slow = c->refused > c->largest && c->refused - c->largest > c->s->l.unsent;
        c->no_memory = !slow && !put_chunk(c, data, len);
        if (len > c->largest) c->largest = len;
        ok = !slow && !c->no_memory;
        c->cut = !ok;
        http_tell(c);
    }
    pthread_mutex_unlock(&c->s->lock);
    return ok;
}

bool http_no_memory(const http_call *c)
{
    pthread_mutex_lock(&c->s->lock);
    bool yes = c->no_memory;
    pthread_mutex_unlock(&c->s->lock);
    return yes;
}

static void end_stream(http_call *c, bool whole)
{
    pthread_mutex_lock(&c->s->lock);
    if (!c->gone && !c->cut && !c->head.old && whole && !no_body(c))
        whole = evbuffer_add(c->out, "0\r\n\r\n", 5) == 0;
    c->cut |= !whole;
    bool mine = end(c);
    pthread_mutex_unlock(&c->s->lock);
    if (mine) http_call_free(c);
}

void http_stream_end(http_call *c) { end_stream(c, true); }
void http_stream_break(http_call *c) { end_stream(c, false); }
