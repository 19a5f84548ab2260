/* prompt.h - where a model keeps its chat templates, and the prompt's text. */
#ifndef ENGINE_PROMPT_H
#define ENGINE_PROMPT_H

#include "base/digest.h"
#include "text/bpe.h"
#include "text/chat.h"

typedef struct prompt_source {
    chat_source chat; /* templates NULL: the model has none */
    json_t *special;  /* the tokenizer's special tokens, owned */
    chat_templates *templates;
    json_t *source; /* their text: a string, or a list of {"name", "template"}; NULL: none */
    digest digest;  /* of the templates' text */
} prompt_source;

/* chat_template.jinja and additional_chat_templates/NAME.jinja win over tokenizer_config.json. */
corun_status prompt_open_folder(prompt_source *out, const char *folder, const bpe *t);
corun_status prompt_open_gguf(prompt_source *out, const weights *w, const bpe *t);
corun_status prompt_open_text(prompt_source *out, const char *src, const bpe *t);
void prompt_close(prompt_source *p);

#endif
