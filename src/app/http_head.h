/* http_head.h - inside of http.c: reading the head of a request, and bodies in chunks. Strict: what
 * two readers could understand in two ways is refused. */
#ifndef APP_HTTP_HEAD_H
#define APP_HTTP_HEAD_H

#include "base/mem.h"

typedef struct http_pair {
    char *name, *value;
} http_pair;

typedef struct http_head {
    char *text; /* the bytes, cut into strings */
    char *method, *path;
    const char *host; /* whom it is for: the target's authority, else the header; NULL: neither */
    http_pair *field, *query;
    size_t n_field, n_query;
    bool old;     /* HTTP/1.0 */
    bool close;   /* the client wants no other request on this connection */
    bool expect;  /* 100-continue */
    bool chunked; /* the body comes in chunks; else it has `length` bytes */
    uint64_t length;
} http_head;

/* Bytes of the head with its empty line, or 0: not all there. Looks from byte `from` on. */
size_t http_head_end(const char *text, size_t len, size_t from);
/* Reads such a head. 0, or the status of the reply and why. Free it in any case. */
int http_head_read(http_head *h, const char *text, size_t len, const char **why);
void http_head_free(http_head *h);
const char *http_head_field(const http_head *h, const char *name); /* NULL: not there */
const char *http_head_reason(int status);                          /* of a reply's first line */

/* A body in chunks, piece by piece. */
typedef struct http_chunks {
    int state;
    uint64_t left;
    unsigned digits, line;
} http_chunks;

/* Reads at most len bytes up to the end of one run of body bytes: *used of them, which end in *n
 * bytes of body. 0: go on; 1: the body has ended; -1: malformed. */
int http_chunks_read(http_chunks *c, const char *data, size_t len, size_t *used, size_t *n);

#endif
