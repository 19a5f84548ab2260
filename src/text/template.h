/* template.h - chat templates: an interpreter of the part of Jinja that real templates use.
 *
 * The environment is that of the reference framework: immutable sandbox, trim_blocks,
 * lstrip_blocks, loop controls, no autoescape, keep_trailing_newline off; raise_exception,
 * strftime_now (with a pinned date) and its own tojson. What is not implemented is an error at
 * parse time that names line and construct. Steps, depth and output are limited. */
#ifndef TEXT_TEMPLATE_H
#define TEXT_TEMPLATE_H

#include "base/json.h"

typedef struct template template;

corun_status template_parse(template **out, const char *src, size_t len, const char *what);
void template_free(template *t);
/* True when the template loops over a message's content (content parts are then passed as they
 * are; else text parts are joined by "\n"). */
bool template_wants_parts(const template *t);
/* Likewise, and it never asks whether anything is a string: text must be given as a part too, or
 * the prompt would silently lose it. */
bool template_needs_parts(const template *t);

typedef struct template_env {
    const json_t *vars;   /* an object: messages, tools, bos_token, ... (null values are none) */
    int year, month, day; /* what strftime_now sees, at 00:00:00 */
} template_env;

/* Appends the text. raise_exception and run-time errors: CORUN_EFORMAT with line and text. */
corun_status template_render(const template *t, const template_env *env, buf *out);

#endif
