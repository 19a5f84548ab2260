/* http_in.h - inside of the transport: a call and its server, as http.c (the loop) and http_call.c
 * (the owners' side) share them. */
#ifndef APP_HTTP_IN_H
#define APP_HTTP_IN_H

#include <pthread.h>

#include <event2/buffer.h>

#include "app/http.h"
#include "app/http_head.h"

typedef struct conn conn;

struct http_call {
    http *s;
    conn *c; /* the loop's: NULL: the client is gone */
    http_head head;
    http_chunks chunks;
    uint64_t left; /* of a body with a length */
    buf body;
    size_t limit, counted; /* of the body; its bytes in `bodies` */
    corun_status (*put)(void *ctx, const char *data, size_t len);
    void *put_ctx, *data;
    size_t number; /* the owner's */
    bool waits;    /* the reader takes no piece now */
    double waits_since;
    http_call *next_news;
    /* under the lock */
    struct evbuffer *out;
    int file; /* to be sent after it; -1: none */
    uint64_t file_len;
    size_t refused; /* bytes that its client did not take when they were offered last */
    size_t largest; /* piece of the stream so far */
    bool news, begun, ended, gone;
    bool goes_on;   /* the reader takes pieces again */
    bool cut;       /* the connection is to end: its client reads too slowly, or bytes were lost */
    bool no_memory; /* a part of a stream was lost for want of it; `cut` too */
    bool whole;     /* the body is read, and the connection may have another request */
};

struct http {
    struct event_base *base;
    struct event *accept, *wake, *tick;
    int fd, wake_fd;
    uint16_t port;
    http_limits l;
    http_handler h;
    pthread_t thread;
    bool running;
    conn *conns;
    size_t bodies; /* bytes */
    pthread_mutex_t lock;
    http_call *news;
    http_counts n;
    size_t n_call; /* that are not freed */
    _Atomic bool draining;
    bool closing, dead;
};

/* Under the lock: the loop is to look at the call. */
void http_tell(http_call *c);
/* Not under the lock. The body must no longer count. */
void http_call_free(http_call *c);
void http_free(http *s);
/* False: no memory; the reply is not whole. */
bool http_put_head(struct evbuffer *b, int status, const char *type, const http_field *f,
                   size_t n_field, bool keep);

#endif
