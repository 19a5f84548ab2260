/* serve_store.h - what the endpoints of files and of batches share. */
#ifndef APP_SERVE_STORE_H
#define APP_SERVE_STORE_H

#include "app/serve.h"
#include "app/serve_runner.h"
#include "app/store.h"

/* False: the server keeps no state, and the call has been answered. */
bool serve_has_store(serve *s, http_call *c);
/* Answers with the text of this thread's error, which the store has set. */
void serve_store_error(serve *s, http_call *c, corun_status st);
/* The id in the path after /v1/files/ or /v1/batches/; false: the call has been answered. */
bool serve_id(serve *s, http_call *c, const char *what, char id[STORE_ID]);
void serve_no_such(serve *s, http_call *c, const char *what, const char *id);
/* Reads after, limit (1 ... most; most where `usual` is 0) and order. False: answered. */
bool serve_page(serve *s, http_call *c, store_page *p, size_t usual, size_t most);
/* Ends a list whose data were written. */
void serve_end_list(jw *w, const char *first, const char *last, bool more);
void serve_put_text(jw *w, const char *key, const char *text); /* NULL or empty: null */

#endif
