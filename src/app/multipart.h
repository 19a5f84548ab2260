/* multipart.h - a multipart/form-data body that comes in pieces of any size: the parts' names, and
 * their bytes as they come. Holds one part's header and a boundary, never a part.
 *
 * Strict where a guess would be needed: no base64, no nested multipart, a name in every part, and
 * an end that was sent. */
#ifndef APP_MULTIPART_H
#define APP_MULTIPART_H

#include "base/mem.h"

#define MULTIPART_MAX_BOUNDARY 70u            /* characters, RFC 2046 */
#define MULTIPART_MAX_HEADER   ((size_t)8192) /* bytes of the header lines of one part */
#define MULTIPART_MAX_PARTS    32u

typedef struct multipart multipart;

/* A status other than CORUN_OK ends the parsing with it. The texts are valid during the call. */
typedef struct multipart_handler {
    void *ctx;
    corun_status (*part)(void *ctx, const char *name, const char *filename); /* NULL: no file */
    corun_status (*data)(void *ctx, const char *data, size_t len);
    corun_status (*end)(void *ctx); /* the part is complete */
} multipart_handler;

/* content_type: the value of the request's header, NULL: it has none. CORUN_EFORMAT: no
 * multipart/form-data with a boundary. */
corun_status multipart_open(multipart **out, const char *content_type, const multipart_handler *h);
/* CORUN_EFORMAT names the byte and the rule. After an error: only multipart_close. */
corun_status multipart_put(multipart *m, const char *data, size_t len);
/* No more bytes will come. CORUN_EFORMAT: the last boundary has not come. */
corun_status multipart_end(const multipart *m);
void multipart_close(multipart *m); /* NULL is fine */

#endif
