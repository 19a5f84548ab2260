/* http.h - an HTTP/1.1 server: connections, limits, bodies, replies and streams. It knows no route
 * and no engine.
 *
 * One thread (the server's own) reads and writes all sockets and calls the handler; it never waits.
 * A call is one request with its reply. The handler gets it when the head is read, again when the
 * body is complete, and owns it until http_reply or http_stream_end, which may come later and from
 * any thread. Whatever a client does costs that client only: every wait has a limit, every buffer a
 * maximum. */
#ifndef APP_HTTP_H
#define APP_HTTP_H

#include "base/mem.h"

typedef struct http http;
typedef struct http_call http_call;

typedef struct http_limits {
    unsigned connections; /* open at once; more get a 503 and are closed at once */
    size_t head;          /* bytes of the request line with all header lines: 431 */
    size_t body;          /* bytes, where the handler asks for no other limit: 413 */
    size_t bodies;        /* bytes of all bodies that are in memory together: 503 */
    unsigned head_s; /* from the connection, or from a head's first byte, to the whole head: 408 */
    unsigned body_s; /* between two pieces of a body, and ... */
    unsigned body_min; /* ... bytes a second that a body must keep up after that: 408 */
    unsigned idle_s;   /* between two requests of one connection: it is closed */
    size_t unsent;     /* bytes that a reader of a stream has left, beside as many as the stream's
                          largest piece, when another piece comes: it is cut off */
    unsigned write_s;  /* a client that has taken no byte of what waits for it: it is cut off */
} http_limits;

http_limits http_limits_default(void);

typedef struct http_handler {
    void *ctx;
    /* The head is read. May set a limit or a reader for the body, or reply at once (a bad path, no
     * key): then `call` does not come. NULL: nothing to do. */
    void (*head)(void *ctx, http_call *c);
    /* The request is complete. Must not wait: work is handed to another thread. */
    void (*call)(void *ctx, http_call *c);
    /* The client went away (closing its sending half counts), was cut off, or was answered by the
     * transport (a body that is too large, too slow or malformed) before the owner's reply was
     * complete. Also for a call that `head` has seen and `call` will not. Comes once, on the
     * server's thread, while the owner holds the call; the owner must still end it, may do so in
     * here, and what it sends then is dropped. No lock is held: another thread of the owner may end
     * the call at the same time, so what `gone` looks at must outlive that (the call itself does).
     */
    void (*gone)(void *ctx, http_call *c);
} http_handler;

/* address: an IPv4 or IPv6 literal or "localhost"; port 0: any free one. CORUN_EINVAL: the address
 * cannot be had. */
corun_status http_open(http **out, const char *address, uint16_t port, const http_limits *l,
                       const http_handler *h);
uint16_t http_port(const http *s);
/* No new connection and no new request; calls that are alive go on. */
void http_drain(http *s);
/* Cuts off what is left and ends the thread. `gone` comes for every call that is alive, and
 * returns before this does. Calls that their owners still hold stay valid until they are ended;
 * no handler is called any more. NULL is fine. */
void http_close(http *s);

typedef struct http_counts {
    uint64_t connections, refused, timeouts, cut_off, calls;
    unsigned open, alive; /* now: connections; calls whose reply is not yet all sent */
} http_counts;
http_counts http_stats(const http *s);

/* ---- the request (any thread, while the call is owned) ------------------------------------- */

const char *http_method(const http_call *c);                   /* "GET" */
const char *http_path(const http_call *c);                     /* decoded, without the query */
const char *http_query(const http_call *c, const char *name);  /* decoded value, or NULL */
const char *http_header(const http_call *c, const char *name); /* NULL: not there */
const char *http_host(const http_call *c); /* whom it is for, as its target or Host says; or NULL */
const char *http_body(const http_call *c,
                      size_t *len);           /* as it came; empty where a reader took it */
void http_set_data(http_call *c, void *data); /* the owner's own */
void *http_data(const http_call *c);
void http_set_number(http_call *c, size_t number); /* the same, a number: set in `head` */
size_t http_number(const http_call *c);
bool http_is_gone(const http_call *c);

/* In `head` only. */
void http_body_limit(http_call *c, size_t bytes);
/* The body goes to this function in pieces, on the server's thread, instead of into memory. Not
 * CORUN_OK: 400 with the error text, or 413 for CORUN_ECAPACITY. */
void http_body_reader(http_call *c, corun_status (*put)(void *ctx, const char *data, size_t len),
                      void *ctx);
/* In such a function: this piece is taken, and no other comes until http_body_go_on, on any thread
 * that knows the call to be alive. No limit of time runs meanwhile; that the client goes is seen
 * afterwards. */
void http_body_wait(http_call *c);
void http_body_go_on(http_call *c);

/* ---- the reply (any thread; once) ----------------------------------------------------------- */

typedef struct http_field {
    const char *name, *value;
} http_field;

/* Sends a whole reply; the bytes are copied. The call ends. */
void http_reply(http_call *c, int status, const char *type, const http_field *f, size_t n_field,
                const char *data, size_t len);
/* The same with a file's bytes, which are sent from the open fd (taken over). A file that is
 * shorter by then ends the connection. */
void http_reply_file(http_call *c, const char *type, int fd, uint64_t len);
/* A reply that comes in pieces (chunked). */
void http_stream_begin(http_call *c, int status, const char *type, const http_field *f,
                       size_t n_field);
/* False when the client is gone or too slow, or memory is short, which ends the connection: the
 * owner should cancel its work and end the call. */
bool http_stream_put(http_call *c, const char *data, size_t len);
/* A part of the stream was lost for want of memory. */
bool http_no_memory(const http_call *c);
void http_stream_end(http_call *c);
/* Ends the call and the connection in the middle: the client sees that the reply is not whole. */
void http_stream_break(http_call *c);

#endif
