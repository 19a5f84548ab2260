/* serve.h - inside of `corun serve`: what its endpoints share. One context, one table of routes,
 * one shape of error.
 *
 * Handlers run on the transport's thread and must not wait: whatever reads files, makes tokens or
 * formats long texts goes through serve_later. */
#ifndef APP_SERVE_H
#define APP_SERVE_H

#include <pthread.h>

#include "app/http.h"
#include "app/service.h"

typedef struct serve serve;

typedef struct serve_route {
    const char *method; /* GET: HEAD too */
    /* "{}" stands for one segment that is not empty, a final "*" for all the rest (not empty). */
    const char *path;
    bool open; /* needs no key */
    /* The head is read, the key is right: may set a limit or a reader for the body, or reply.
     * NULL: nothing to do. */
    void (*head)(serve *s, http_call *c);
    void (*call)(serve *s, http_call *c); /* the request is complete */
    /* As in http.h; must be there when head or call set data of their own. NULL: whoever holds
     * the call after `call` ends it in any case. */
    void (*gone)(serve *s, http_call *c);
} serve_route;

/* Tables of routes, each ended by a row without a method; serve_routes.c lists them. */
extern const serve_route serve_openai_routes[];  /* serve_openai.c */
extern const serve_route serve_info_routes[];    /* serve_info.c */
extern const serve_route serve_page_routes[];    /* serve_page.c */
extern const serve_route serve_files_routes[];   /* serve_files.c */
extern const serve_route serve_batches_routes[]; /* serve_batches.c */

#define SERVE_ROUTES_MAX 64

typedef struct serve_metrics serve_metrics;

struct serve {
    cmd_session session;
    service *service;
    http *http;
    const char *model_id;  /* --served-model-name, or the base name of the model's path */
    struct store *store;   /* NULL: /v1/files and /v1/batches answer 503 */
    struct runner *runner; /* of its batches */
    const char *store_why; /* the reason */
    size_t max_upload;     /* bytes of a file */
    uint64_t max_stored;   /* of all files together */
    uint64_t max_batches;  /* that are not at their end */
    size_t slots;          /* rows of a step */
    int64_t max_tokens;    /* of a request: prompts and answers; 0: no limit */
    int64_t created;       /* unix time of the start */
    double since;          /* the same by clock_seconds() */
    char **keys;           /* API keys; NULL: none is asked for */
    size_t n_keys;
    bool loopback;      /* listens for this machine only */
    bool log;           /* one line a request on standard error */
    _Atomic bool drain; /* no new work: set before service_stop */
    serve_metrics *metrics;
    pthread_mutex_t lock; /* a call's data against its end: see serve_openai.c */
};

/* The handler of http.h for these routes: keys, 404, 405. */
http_handler serve_handler(serve *s);
/* Data of a call whose holder ends it in any case; set before `call` comes. */
extern char serve_held[1];

/* The k-th segment of the path, from 0 ("/v1/files/x": 2 is "x"). False: there is none, or it does
 * not fit. */
bool serve_segment(const http_call *c, unsigned k, char *out, size_t cap);

/* Runs fn(s, c) on a thread of the service, of this lane. 429 when too much waits: the call has
 * ended then. */
void serve_later(serve *s, http_call *c, service_lane lane, void (*fn)(serve *s, http_call *c));

/* Ends the call with a whole reply; counted and logged. type NULL: application/json. */
void serve_reply(serve *s, http_call *c, int status, const char *type, const char *data,
                 size_t len);
/* The same with what a JSON writer made; frees b. A buffer that has failed becomes a 500. */
void serve_reply_json(serve *s, http_call *c, int status, buf *b);
/* The same with the error envelope. type NULL: the usual one of the status; param, code: may be
 * NULL. A 429 or 503 gets Retry-After. */
void serve_error(serve *s, http_call *c, int status, const char *type, const char *param,
                 const char *code, const char *fmt, ...) __attribute__((format(printf, 7, 8)));
/* Sends without counting; more: one field, or NULL. */
void serve_send(http_call *c, int status, const char *type, const http_field *more,
                const char *data, size_t len);
/* Begins a reply that comes in pieces. serve_count when it ends. */
void serve_stream(http_call *c, const char *type);
/* A reply that http_* itself has sent, or a client that went away (499): counts and logs it. */
void serve_count(serve *s, const http_call *c, int status);
/* more: what the line of the log says besides. */
void serve_count_more(serve *s, const http_call *c, int status, const char *more);

/* serve_state.c */
/* folder NULL: the usual one, which may fail: the reason is said and kept. Before the first task.
 */
corun_status serve_state_open(serve *s, const char *folder, bool none);
/* Batches stop where they are. Before service_stop. */
void serve_state_stop(serve *s);
void serve_state_close(serve *s); /* after the service and the transport have ended */

/* serve_metrics.c */
corun_status serve_metrics_open(serve_metrics **out);
void serve_metrics_close(serve_metrics *m);
/* route: its place in all tables; SERVE_ROUTES_MAX: none of them. */
void serve_metrics_count(serve_metrics *m, size_t route, int status);
void serve_metrics_write(serve *s, buf *out);
/* The route at this place, or NULL. */
const serve_route *serve_route_at(size_t i);

#endif
