/* http.c - the server of http.h over libevent's loop: sockets, limits, replies. Invariant: a call
 * is freed by the loop's thread once its owner has ended it (after the loop: by who ends it), and a
 * connection never waits without a limit.
 *
 * Owners on other threads touch a call's `out` and flags only, under the lock, and put the call on
 * the list of those with news; the loop takes it from there. */
#include "app/http_in.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/eventfd.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <event2/event.h>

#include "base/clock.h"

#define TICK      0.25 /* seconds between looks at the limits of time */
#define BLANK_MAX 8
#define LINGER_S  2 /* for a client to read a reply that came before it had sent all */
#define PIECE     ((size_t)64 << 10)   /* read from a connection before the others' turn */
#define TURN      ((size_t)256 << 10)  /* written to one */
#define DROP_MAX  ((uint64_t)64 << 20) /* bytes that a connection may send unread */

typedef enum conn_state { HEAD, BODY, ANSWER, FLUSH, LINGER } conn_state;

struct conn {
    struct conn *prev, *next;
    http *s;
    int fd;
    conn_state state;
    struct event *readable, *writable;
    bool writing, reading;
    buf in;         /* bytes that no call has */
    size_t looked;  /* of them, for the end of the head */
    unsigned blank; /* empty lines before it */
    struct evbuffer *out;
    int file; /* sent after `out`; -1: none */
    off_t file_at;
    uint64_t file_left;
    http_call *call;
    double since, moved; /* the state began; bytes came or went */
    uint64_t got;        /* bytes that came over the wire: of the body, or dropped */
    bool fresh;          /* no request yet */
    bool last;           /* closed when all is sent */
    bool deaf;           /* what comes is dropped */
};

http_limits http_limits_default(void)
{
    return (http_limits){.connections = 2048,
                         .head = 32 << 10,
                         .body = 32 << 20,
                         .bodies = 256 << 20,
                         .head_s = 10,
                         .body_s = 20,
                         .body_min = 1024,
                         .idle_s = 75,
                         .unsent = 4 << 20,
                         .write_s = 30};
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* On the loop's thread: its body no longer counts, however long its owner has kept it. */
static void forget_call(http_call *c)
{
    c->s->bodies -= c->counted;
    http_call_free(c);
}

static void set_read(conn *k, bool on)
{
    if (on == k->reading) return;
    k->reading = on;
    if (on)
        event_add(k->readable, NULL);
    else
        event_del(k->readable);
}

static void free_conn(conn *k)
{
    http *s = k->s;
    event_free(k->readable);
    event_free(k->writable);
    evbuffer_free(k->out);
    buf_free(&k->in);
    if (k->file >= 0) close(k->file);
    close(k->fd);
    if (k->prev)
        k->prev->next = k->next;
    else
        s->conns = k->next;
    if (k->next) k->next->prev = k->prev;
    pthread_mutex_lock(&s->lock);
    s->n.open--;
    pthread_mutex_unlock(&s->lock);
    mem_free(k);
}

/* Parts the call from its connection; its owner is told unless it has ended it. */
static void part(conn *k)
{
    http_call *c = k->call;
    if (!c) return;
    http *s = k->s;
    k->call = NULL;
    c->c = NULL;
    pthread_mutex_lock(&s->lock);
    c->gone = true;
    bool ended = c->ended;
    evbuffer_drain(c->out, evbuffer_get_length(c->out));
    pthread_mutex_unlock(&s->lock);
    if (!ended && s->h.gone) s->h.gone(s->h.ctx, c);
}

/* The connection ends now. */
static void drop(conn *k)
{
    part(k);
    free_conn(k);
}

/* ---- what goes out --------------------------------------------------------------------------- */

static bool flush(conn *k);

/* The transport's own reply to a request that it does not take; the connection ends. */
static void refuse(conn *k, int status, const char *why)
{
    char body[256];
    part(k);
    int n = snprintf(body, sizeof body,
                     "{\"error\":{\"message\":\"%s\",\"type\":\"%s\",\"param\":null,"
                     "\"code\":null}}",
                     why, status >= 500 ? "server_error" : "invalid_request_error");
    if (!http_put_head(k->out, status, "application/json", NULL, 0, false) ||
        evbuffer_add_printf(k->out, "Content-Length: %d\r\n%s\r\n%s", n,
                            status == 503 ? "Retry-After: 1\r\n" : "", body) < 0) {
        drop(k);
        return;
    }
    k->last = true;
    k->state = FLUSH;
    k->since = clock_seconds();
    flush(k);
}

static void next_request(conn *k);

/* All is sent: the next request, or the end. False: the connection is no more. */
static bool sent(conn *k)
{
    if (k->state != FLUSH) return true;
    k->since = k->moved = clock_seconds();
    if (k->file >= 0) close(k->file);
    k->file = -1;
    if (k->last || k->s->draining) {
        shutdown(k->fd, SHUT_WR);
        k->state = LINGER;
        k->in.len = 0;
        k->got = 0;
        set_read(k, true);
        return true;
    }
    k->state = HEAD;
    k->fresh = false;
    next_request(k);
    return false; /* it may be gone: the caller looks no more */
}

static bool unsent(const conn *k) { return evbuffer_get_length(k->out) || k->file_left; }

/* Writes at most `most` bytes: their number, or -1 and errno. */
static ssize_t write_some(conn *k, size_t most)
{
    if (evbuffer_get_length(k->out)) return evbuffer_write_atmost(k->out, k->fd, (ev_ssize_t)most);
    if (most > k->file_left) most = (size_t)k->file_left;
    ssize_t n = sendfile(k->fd, k->file, &k->file_at, most);
    if (n > 0) k->file_left -= (uint64_t)n;
    if (n != 0) return n;
    errno = EIO; /* the file has become shorter */
    return -1;
}

/* Sends what there is, and no more than TURN at once: the loop comes back for the rest. */
static bool flush(conn *k)
{
    size_t done = 0;
    bool full = false;
    while (unsent(k) && done < TURN) {
        ssize_t n = write_some(k, TURN - done);
        full = n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
        if (full) break;
        if (n <= 0) {
            drop(k);
            return false;
        }
        done += (size_t)n;
    }
    if (done) k->moved = clock_seconds();
    if (k->call) {
        pthread_mutex_lock(&k->s->lock);
        k->call->refused = full ? evbuffer_get_length(k->out) : 0;
        pthread_mutex_unlock(&k->s->lock);
    }
    bool want = unsent(k);
    if (want && !k->writing && event_add(k->writable, NULL) != 0) {
        drop(k);
        return false;
    }
    if (!want && k->writing) event_del(k->writable);
    k->writing = want;
    return want ? true : sent(k);
}

static void on_writable(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    flush(arg);
}

static void feed(conn *k);

/* The reader of the body takes pieces again. The time that it has waited does not count. */
static void go_on(conn *k)
{
    double now = clock_seconds();
    k->call->waits = false;
    k->since += now - k->call->waits_since;
    k->moved = now;
    set_read(k, true);
    feed(k);
}

/* Takes what an owner has written. */
static void take_news(http_call *c)
{
    http *s = c->s;
    conn *k = c->c;
    pthread_mutex_lock(&s->lock);
    c->news = false;
    bool ended = c->ended, cut = c->cut, whole = c->whole, goes_on = c->goes_on;
    c->goes_on = false;
    if (k && !unsent(k)) k->moved = clock_seconds();
    if (k && evbuffer_add_buffer(k->out, c->out) != 0) cut = true;
    if (k && c->file >= 0) {
        k->file = c->file;
        k->file_at = 0;
        k->file_left = c->file_len;
        c->file = -1;
    }
    if (cut && k) s->n.cut_off++;
    pthread_mutex_unlock(&s->lock);
    if (!k) {
        if (ended) forget_call(c);
        return;
    }
    if (cut) {
        drop(k);
        if (ended) forget_call(c);
        return;
    }
    if (ended) {
        if (k->state == ANSWER || k->state == BODY) {
            k->last |= !whole || c->head.close;
            k->state = FLUSH;
            k->since = k->moved = clock_seconds();
        }
        k->call = NULL;
        forget_call(c);
    }
    if (flush(k) && goes_on && !ended) go_on(k);
}

static void on_wake(evutil_socket_t fd, short what, void *arg)
{
    http *s = arg;
    uint64_t n;
    (void)what;
    if (read(fd, &n, sizeof n) < 0 && errno != EAGAIN) return;
    pthread_mutex_lock(&s->lock);
    http_call *list = s->news, *back = NULL;
    s->news = NULL;
    bool closing = s->closing;
    pthread_mutex_unlock(&s->lock);
    while (list) { /* the oldest first */
        http_call *next = list->next_news;
        list->next_news = back;
        back = list;
        list = next;
    }
    while (back) {
        http_call *next = back->next_news;
        take_news(back);
        back = next;
    }
    if (s->draining && s->accept) {
        event_free(s->accept);
        s->accept = NULL;
        close(s->fd);
        s->fd = -1;
        for (conn *k = s->conns, *after; k; k = after) {
            after = k->next;
            if (k->state == HEAD) drop(k);
        }
    }
    if (!closing) return;
    while (s->conns) drop(s->conns);
    event_base_loopbreak(s->base);
}

/* ---- what comes in --------------------------------------------------------------------------- */

/* A part of the body. False: the connection was answered or ended. */
static bool take_body(conn *k, const char *data, size_t len)
{
    http_call *c = k->call;
    http *s = k->s;
    if (c->put) {
        corun_status st = len ? c->put(c->put_ctx, data, len) : CORUN_OK;
        if (st == CORUN_OK) return true;
        char why[200];
        size_t n = 0;
        for (const char *p = err_text(); *p && n < sizeof why - 1; p++)
            why[n++] = *p == '"' || *p == '\\' || (unsigned char)*p < 0x20 ? '\'' : *p;
        while (n && ((unsigned char)why[n - 1] & 0x80)) n--; /* no half character at the cut */
        why[n] = 0;
        refuse(k, st == CORUN_ECAPACITY ? 413 : 400, why);
        return false;
    }
    if (c->body.len + len > c->limit) {
        refuse(k, 413, "the body is larger than this server takes");
        return false;
    }
    if (s->bodies + len > s->l.bodies) {
        refuse(k, 503, "the bodies of all requests together are too large");
        return false;
    }
    s->bodies += len;
    c->counted += len;
    buf_put(&c->body, data, len);
    if (buf_status(&c->body) == CORUN_OK) return true;
    refuse(k, 503, "no memory for the body");
    return false;
}

static void complete(conn *k)
{
    http_call *c = k->call;
    http *s = k->s;
    k->state = ANSWER;
    pthread_mutex_lock(&s->lock);
    c->whole = true;
    bool ended = c->ended;
    pthread_mutex_unlock(&s->lock);
    buf_putc(&c->body, 0);
    if (buf_status(&c->body) != CORUN_OK) {
        refuse(k, 503, "no memory for the body");
        return;
    }
    c->body.len--;
    if (!ended) s->h.call(s->h.ctx, c);
}

/* Gives the call what there is of its body. */
static void feed(conn *k)
{
    http_call *c = k->call;
    size_t at = 0;
    bool done = !c->head.chunked && c->left == 0;
    while (!done && !c->waits && at < k->in.len) {
        const char *p = k->in.data + at;
        size_t len = k->in.len - at, used, n;
        int r = 0;
        if (c->head.chunked) {
            r = http_chunks_read(&c->chunks, p, len, &used, &n);
            if (r < 0) {
                refuse(k, 400, "the chunks of the body are malformed");
                return;
            }
        } else {
            used = n = c->left < len ? (size_t)c->left : len;
            c->left -= n;
            r = c->left == 0;
        }
        at += used;
        if (n && !take_body(k, p + used - n, n)) return;
        done = r == 1;
    }
    if (at) memmove(k->in.data, k->in.data + at, k->in.len - at);
    k->in.len -= at;
    if (c->waits) /* a piece of a body in chunks is never its end */
        set_read(k, false);
    else if (done)
        complete(k);
}

/* The head is there: the call begins. */
static void begin(conn *k, size_t head)
{
    http *s = k->s;
    http_call *c;
    const char *why;
    if (!MEM_NEW(c, 1) || !(c->out = evbuffer_new())) {
        mem_free(c);
        drop(k);
        return;
    }
    c->s = s;
    c->file = -1;
    c->limit = s->l.body;
    pthread_mutex_lock(&s->lock);
    s->n.calls++;
    s->n.alive++;
    s->n_call++;
    pthread_mutex_unlock(&s->lock);
    int status = http_head_read(&c->head, k->in.data, head, &why);
    memmove(k->in.data, k->in.data + head, k->in.len - head);
    k->in.len -= head;
    k->looked = k->blank = 0;
    if (status) {
        http_call_free(c);
        refuse(k, status, why);
        return;
    }
    c->left = c->head.length;
    c->c = k;
    k->call = c;
    k->state = BODY;
    k->since = k->moved = clock_seconds();
    k->got = 0;
    c->whole = !c->head.chunked && c->left == 0;
    if (s->h.head) s->h.head(s->h.ctx, c);
    pthread_mutex_lock(&s->lock);
    bool ended = c->ended;
    pthread_mutex_unlock(&s->lock);
    if (ended) { /* take_news goes on */
        k->state = ANSWER;
        return;
    }
    if (!c->put && !c->head.chunked && c->left > c->limit) {
        refuse(k, 413, "the body is larger than this server takes");
        return;
    }
    buf_init(&c->body, c->limit + 1);
    if (c->head.expect && (c->head.chunked || c->left)) {
        if (evbuffer_add_printf(k->out, "HTTP/1.1 100 Continue\r\n\r\n") < 0) {
            drop(k);
            return;
        }
        if (!flush(k)) return;
    }
    feed(k);
}

/* Looks for a head in what has come. */
static void next_request(conn *k)
{
    set_read(k, true);
    size_t blank = 0; /* empty lines between two requests: a few */
    while (k->in.len >= blank + 2 && memcmp(k->in.data + blank, "\r\n", 2) == 0) blank += 2;
    k->blank += (unsigned)(blank / 2);
    if (k->blank > BLANK_MAX) {
        refuse(k, 400, "empty lines stand before the request");
        return;
    }
    if (blank) memmove(k->in.data, k->in.data + blank, k->in.len - blank);
    k->in.len -= blank;
    size_t head = http_head_end(k->in.data, k->in.len, k->looked);
    if (head > k->s->l.head || (!head && k->in.len > k->s->l.head)) {
        refuse(k, 431, "the head is larger than this server takes");
        return;
    }
    k->looked = k->in.len;
    if (head) begin(k, head);
}

/* More requests came ahead of their time than are kept: they are dropped, and the connection ends
 * with the reply that is awaited. It is still read, so that the client's going is seen. */
static void stop_listening(conn *k)
{
    k->deaf = true;
    k->in.len = 0;
    k->got = 0;
    if (!k->call) return;
    pthread_mutex_lock(&k->s->lock);
    k->call->whole = false;
    pthread_mutex_unlock(&k->s->lock);
}

static void on_readable(evutil_socket_t fd, short what, void *arg)
{
    conn *k = arg;
    char piece[PIECE];
    (void)what;
    ssize_t n = recv(fd, piece, sizeof piece, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) {
        if (k->state == FLUSH && n == 0) { /* it only waits for the rest */
            k->last = true;
            set_read(k, false);
            return;
        }
        drop(k);
        return;
    }
    if (k->state == LINGER || k->deaf) {
        k->got += (uint64_t)n;
        if (k->got > DROP_MAX) drop(k);
        return;
    }
    if (k->state == HEAD && k->in.len == 0) k->since = clock_seconds();
    if (k->state == HEAD || k->state == BODY) k->moved = clock_seconds();
    if (k->state == BODY) k->got += (uint64_t)n;
    buf_put(&k->in, piece, (size_t)n);
    if (buf_status(&k->in) != CORUN_OK) {
        drop(k);
        return;
    }
    if (k->state == HEAD)
        next_request(k);
    else if (k->state == BODY)
        feed(k);
    else if (k->in.len > k->s->l.head && k->state == ANSWER)
        stop_listening(k);
    else if (k->in.len > k->s->l.head) /* requests ahead of their time: when all is sent */
        set_read(k, false);
}

/* ---- connections ----------------------------------------------------------------------------- */

static void add_conn(http *s, int fd)
{
    conn *k;
    int one = 1;
    if (!MEM_NEW(k, 1)) {
        close(fd);
        return;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    k->s = s;
    k->fd = fd;
    k->file = -1;
    k->fresh = true;
    k->since = k->moved = clock_seconds();
    buf_init(&k->in, s->l.head + 2 * PIECE);
    k->out = evbuffer_new();
    k->readable = event_new(s->base, fd, EV_READ | EV_PERSIST, on_readable, k);
    k->writable = event_new(s->base, fd, EV_WRITE | EV_PERSIST, on_writable, k);
    if (!k->out || !k->readable || !k->writable) {
        if (k->out) evbuffer_free(k->out);
        if (k->readable) event_free(k->readable);
        if (k->writable) event_free(k->writable);
        close(fd);
        mem_free(k);
        return;
    }
    k->next = s->conns;
    if (s->conns) s->conns->prev = k;
    s->conns = k;
    pthread_mutex_lock(&s->lock);
    s->n.open++;
    bool many = s->n.open > s->l.connections;
    if (many)
        s->n.refused++;
    else
        s->n.connections++;
    pthread_mutex_unlock(&s->lock);
    if (many)
        refuse(k, 503, "too many connections");
    else
        set_read(k, true);
}

static void on_accept(evutil_socket_t fd, short what, void *arg)
{
    http *s = arg;
    (void)what;
    for (int i = 0; i < 64; i++) {
        int c = accept4(fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (c >= 0) {
            add_conn(s, c);
            continue;
        }
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
            event_del(s->accept); /* until the next tick */
        if (errno != ECONNABORTED && errno != EINTR) return;
    }
}

/* What a connection has waited for too long, or NULL. */
static const char *late(const conn *k, double now)
{
    const http_limits *l = &k->s->l;
    if (unsent(k) && now - k->moved > l->write_s) return "";
    switch (k->state) {
    case HEAD:
        if (k->in.len == 0 && !k->fresh) return now - k->since > l->idle_s ? "" : NULL;
        if (now - k->since <= l->head_s) return NULL;
        return k->in.len ? "the head of the request came too slowly" : "";
    case BODY: {
        if (k->call->waits) return NULL;
        double rest = now - k->since - l->body_s;
        bool slow = rest > 0 && (double)k->got < rest * l->body_min;
        return slow || now - k->moved > l->body_s ? "the body came too slowly" : NULL;
    }
    case LINGER: return now - k->since > LINGER_S ? "" : NULL;
    default: return NULL;
    }
}

static void on_tick(evutil_socket_t fd, short what, void *arg)
{
    http *s = arg;
    double now = clock_seconds();
    (void)fd, (void)what;
    if (s->accept && !event_pending(s->accept, EV_READ, NULL)) event_add(s->accept, NULL);
    for (conn *k = s->conns, *after; k; k = after) {
        after = k->next;
        const char *why = late(k, now);
        if (!why) continue;
        bool reader = unsent(k), linger = k->state == LINGER;
        pthread_mutex_lock(&s->lock);
        if (reader)
            s->n.cut_off++;
        else if (!linger && !(k->state == HEAD && !k->fresh && k->in.len == 0))
            s->n.timeouts++;
        pthread_mutex_unlock(&s->lock);
        if (*why)
            refuse(k, 408, why);
        else
            drop(k);
    }
}

/* ---- open and close -------------------------------------------------------------------------- */

static corun_status listen_at(http *s, const char *address, uint16_t port)
{
    char digits[8];
    struct addrinfo want = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_PASSIVE};
    struct addrinfo *found;
    const char *literal = strcmp(address, "localhost") == 0 ? "127.0.0.1" : address;
    snprintf(digits, sizeof digits, "%u", port);
    int err = getaddrinfo(literal, digits, &want, &found);
    if (err) FAIL(CORUN_EINVAL, "%s is no address: %s", address, gai_strerror(err));
    int one = 1;
    s->fd = socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (s->fd >= 0) setsockopt(s->fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    bool ok = s->fd >= 0 && bind(s->fd, found->ai_addr, found->ai_addrlen) == 0 &&
              listen(s->fd, 1024) == 0;
    err = errno;
    freeaddrinfo(found);
    if (!ok) FAIL(CORUN_EINVAL, "%s port %u: %s", address, port, strerror(err));
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    getsockname(s->fd, (struct sockaddr *)&a, &n);
    s->port = ntohs(a.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&a)->sin6_port
                                            : ((struct sockaddr_in *)&a)->sin_port);
    return CORUN_OK;
}

static void *loop(void *arg)
{
    event_base_dispatch(((http *)arg)->base);
    return NULL;
}

static corun_status open_http(http *s, const char *address, uint16_t port)
{
    const struct timeval tick = {.tv_usec = (suseconds_t)(TICK * 1e6)};
    s->fd = s->wake_fd = -1;
    TRY(listen_at(s, address, port));
    s->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    struct event_config *config = event_config_new();
    if (config && event_config_set_flag(config, EVENT_BASE_FLAG_IGNORE_ENV) == 0)
        s->base = event_base_new_with_config(config);
    if (config) event_config_free(config);
    if (s->wake_fd < 0 || !s->base) FAIL(CORUN_ENOMEM, "http: no event loop");
    s->accept = event_new(s->base, s->fd, EV_READ | EV_PERSIST, on_accept, s);
    s->wake = event_new(s->base, s->wake_fd, EV_READ | EV_PERSIST, on_wake, s);
    s->tick = event_new(s->base, -1, EV_PERSIST, on_tick, s);
    if (!s->accept || !s->wake || !s->tick) FAIL(CORUN_ENOMEM, "http: no events");
    event_add(s->accept, NULL);
    event_add(s->wake, NULL);
    event_add(s->tick, &tick);
    int err = pthread_create(&s->thread, NULL, loop, s);
    if (err) FAIL(CORUN_ENOMEM, "http: a thread cannot be started: %s", strerror(err));
    s->running = true;
    return CORUN_OK;
}

corun_status http_open(http **out, const char *address, uint16_t port, const http_limits *l,
                       const http_handler *h)
{
    http *s;
    *out = NULL;
    if (!MEM_NEW(s, 1)) return CORUN_ENOMEM;
    s->l = *l;
    s->h = *h;
    pthread_mutex_init(&s->lock, NULL);
    corun_status st = open_http(s, address, port);
    if (st != CORUN_OK)
        http_close(s);
    else
        *out = s;
    return st;
}

uint16_t http_port(const http *s) { return s->port; }

static void shout(http *s)
{
    uint64_t one = 1;
    if (write(s->wake_fd, &one, sizeof one) < 0) return; /* it is awake anyway */
}

void http_drain(http *s)
{
    s->draining = true;
    shout(s);
}

void http_close(http *s)
{
    if (!s) return;
    if (s->running) {
        pthread_mutex_lock(&s->lock);
        s->closing = true;
        pthread_mutex_unlock(&s->lock);
        shout(s);
        pthread_join(s->thread, NULL);
    }
    if (s->accept) event_free(s->accept);
    if (s->wake) event_free(s->wake);
    if (s->tick) event_free(s->tick);
    if (s->base) event_base_free(s->base);
    if (s->fd >= 0) close(s->fd);
    pthread_mutex_lock(&s->lock);
    s->dead = true;
    http_call *c = s->news;
    s->news = NULL;
    s->n_call++; /* for this function */
    pthread_mutex_unlock(&s->lock);
    if (s->wake_fd >= 0) close(s->wake_fd);
    while (c) { /* ended after the loop's last look */
        http_call *next = c->next_news;
        pthread_mutex_lock(&s->lock);
        c->news = false;
        bool ended = c->ended;
        pthread_mutex_unlock(&s->lock);
        if (ended) http_call_free(c);
        c = next;
    }
    pthread_mutex_lock(&s->lock);
    bool last = --s->n_call == 0;
    pthread_mutex_unlock(&s->lock);
    if (last) http_free(s);
}

http_counts http_stats(const http *s)
{
    http *h = (http *)(uintptr_t)s;
    pthread_mutex_lock(&h->lock);
    http_counts n = h->n;
    pthread_mutex_unlock(&h->lock);
    return n;
}
