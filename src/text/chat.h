/* chat.h - from a chat request to the prompt's text: checks and prepares the messages, picks the
 * template, renders it.
 *
 * Content given as parts is joined by "\n", or passed as a list to a template that loops over it
 * (and text likewise, as one part, to a template that can read nothing else).
 * A tool call's arguments are parsed before the template sees them ("" and null are {}). Null or
 * missing content is "" where an assistant calls tools or reasons, else an error. Parts other than
 * text are CORUN_EUNSUPPORTED. */
#ifndef TEXT_CHAT_H
#define TEXT_CHAT_H

#include "text/template.h"

/* The template of the fake model. */
#define CHAT_FAKE_TEMPLATE                                                                         \
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"                           \
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"

/* The templates of a model: one, or several by name. */
typedef struct chat_templates chat_templates;

/* v: a string, or a list of {"name", "template"} as tokenizer_config.json may have it. */
corun_status chat_templates_read(chat_templates **out, const json_t *v, const char *what);
corun_status chat_templates_text(chat_templates **out, const char *src, size_t len,
                                 const char *what);
void chat_templates_free(chat_templates *t); /* NULL is fine */

typedef struct chat_source {
    const chat_templates *templates; /* NULL: the model has none */
    const json_t *special;           /* object of strings: bos_token, ...; NULL: none */
    int year, month, day;            /* what strftime_now sees */
} chat_source;

/* "YYYY-MM-DD". */
corun_status chat_date(const char *text, chat_source *out);

/* json: the object that corun_chat_render (corun.h) describes. "chat_template" is the text of a
 * template, or the name of one of the model's; without it "tool_use" is taken where the model has
 * it and the request has tools, else "default". chat_template_kwargs become variables of the
 * template. Appends the text. */
corun_status chat_render(const chat_source *s, const char *json, size_t len, buf *out);

#endif
