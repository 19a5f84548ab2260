/* json.h - JSON over Jansson: strict reading, and a writer that cannot emit bad JSON.
 *
 * Reading refuses duplicate keys, invalid UTF-8, lone surrogates, trailing text, numbers that do
 * not fit and more than 2,048 levels; NUL inside a string value is allowed. */
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include <jansson.h>

#include "base/mem.h"

/* what names the text in errors ("config.json", "line 7"). The value is new: json_decref. */
corun_status json_read(json_t **out, const char *text, size_t len, const char *what);
/* For a text that json_read refused since a number does not fit: its value with every integer as a
 * double, or NULL when that does not help. Leaves the error text as it is. */
json_t *json_read_rough(const char *text, size_t len);
/* Reads a whole file of at most max bytes into b (which the caller inits and frees). */
corun_status json_read_file(json_t **out, const char *path, size_t max);
corun_status file_read(buf *b, const char *path, size_t max);
/* The status for a file that could not be opened: CORUN_EFORMAT when its path is at fault (nothing
 * there, no right to read), else CORUN_EIO. */
corun_status file_refusal(int err);
/* False only when nothing has this name: a link that leads nowhere is there, and an error. */
bool file_exists(const char *path);

/* An integer where the value is one: 16 and 16.0 yes, 16.5, "16", true no. */
bool json_is_whole(const json_t *v, int64_t *out);

/* The shortest decimal that reads back as v, spelled as Python's repr: 0.1, 1e-05, 1e+16, 2.0. */
void json_double_repr(double v, char out[32]);
/* The text of a log-probability: %.9g; -inf as -9999.0. */
void json_logprob_repr(float v, char out[32]);

/* Writer. Appends to b; keeps commas right. */
typedef struct jw {
    buf *b;
    bool comma;
} jw;

void jw_init(jw *w, buf *b);
void jw_open(jw *w, char c);  /* '{' or '[' */
void jw_close(jw *w, char c); /* '}' or ']' */
void jw_key(jw *w, const char *key);
void jw_key_str(jw *w, const char *key, size_t len); /* as jw_str */
void jw_str(jw *w, const char *s, size_t len);       /* invalid UTF-8 becomes U+FFFD */
void jw_cstr(jw *w, const char *s);
void jw_int(jw *w, int64_t v);
void jw_uint(jw *w, uint64_t v);
void jw_double(jw *w, double v); /* json_double_repr; not finite: null */
void jw_logprob(jw *w, float v);
void jw_bool(jw *w, bool v);
void jw_null(jw *w);
void jw_value(jw *w, const json_t *v); /* in the order of the parsed text */
/* A key and its value. */
void jw_field_str(jw *w, const char *key, const char *v); /* NULL: null */
void jw_field_int(jw *w, const char *key, int64_t v);
void jw_field_uint(jw *w, const char *key, uint64_t v);
void jw_field_double(jw *w, const char *key, double v);
void jw_field_bool(jw *w, const char *key, bool v);
void jw_field_null(jw *w, const char *key);
/* Canonical text: sorted keys (by bytes), no white space, every number as a double. */
void jw_canonical(jw *w, const json_t *v);

#endif
