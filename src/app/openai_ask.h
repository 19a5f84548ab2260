/* openai_ask.h - inside of openai_*.c: the fields of one body between reading and use.
 *
 * Functions here give CORUN_EINVAL with a text that starts with the field's name for every fault
 * of the request; the caller makes an error row of it. */
#ifndef APP_OPENAI_ASK_H
#define APP_OPENAI_ASK_H

#include "app/openai.h"

typedef struct openai_ask {
    job *j;
    const job_model *m;
    bool max_set, max_completion_set;
    int64_t max_tokens, max_completion;
    bool chat_logprobs;
    int32_t top_logprobs;  /* -1: absent */
    int32_t best_of;       /* 0: absent */
    int32_t truncate;      /* 0: absent */
    int8_t add_special;    /* -1: absent */
    int8_t add_generation; /* -1: absent */
    bool continue_final, stream_options;
    const json_t *prompt, *messages, *tools, *documents, *chat_template, *kwargs, *effort, *bad;
} openai_ask;

/* Reads every field of the body. *param is the field at fault. */
corun_status openai_fields(openai_ask *a, const char **param);
/* True for fields that have no effect, on the digest and the seed neither. */
bool openai_ignored(const char *field);
/* False for those, and for the fields that say how the answer is sent. */
bool openai_in_digest(const char *field);

/* 404 for another name than the served one. */
void openai_check_model(job *j, const job_model *m, const char *name);
/* Sets the job's id from custom_id and body. */
corun_status openai_digest(job *j);

/* Makes the job's prompts. *param is the field at fault. */
corun_status openai_prompts(openai_ask *a, const char **param);
/* The one of a chat, without the rules of length. */
corun_status openai_chat_prompt(openai_ask *a);

#endif
