/* openai_row.h - inside of openai_write.c and openai_stream.c: the parts that a whole answer and
 * the chunks of a stream have in common. Lists are written for a run of tokens, so that the lists
 * of chunks, one after the other, are the list of the whole. */
#ifndef APP_OPENAI_ROW_H
#define APP_OPENAI_ROW_H

#include "app/openai.h"

/* What stays the same while one answer is written. */
typedef struct row {
    jw w;
    const job *j;
    const job_model *m;
    buf text, other;        /* scratch */
    const job_prompt *once; /* the prompt that `facts` is of, or NULL */
    buf facts;              /* its log-probabilities as written, for its other choices */
} row;

/* The job and the model must outlive the row; out: where its text goes. */
void row_init(row *r, const job *j, const job_model *m, buf *out);
void row_free(row *r);

/* Tokens [from, to) of t, whose first alternative is top_id[top]. */
typedef struct part {
    const job_tokens *t;
    size_t from, to, top;
    size_t n_added;      /* leading tokens that stand for no text */
    bool special_counts; /* special tokens are part of the text */
} part;

/* Whole lists of t. */
part row_part(const job_tokens *t, size_t n_added, bool special_counts);

/* The logprobs object of a completion. chars counts the text before the parts, and goes on. */
corun_status row_completion_logprobs(row *r, const part *p, size_t n_part, job_chars *chars);
/* The part of the prompt, for echo. *one is memory for a prompt of a single token: job_tokens_free
 * when the part is written. */
corun_status row_echo_part(const job_prompt *p, job_tokens *one, part *out);
corun_status row_chat_logprobs(row *r, const part *p);
/* Key and value of "prompt_logprobs". In a completion: behind another field. */
corun_status row_prompt_logprobs(row *r, const job_prompt *p);
/* Appends the prompt's text in front of a completion. */
corun_status row_echo(row *r, const job_prompt *p, buf *b);
void row_ids(row *r, const char *key, const int32_t *id, size_t n);
/* finish_reason and stop_reason. */
void row_finish(row *r, const job_choice *c);
void row_seed(row *r, size_t choice);
/* "usage" and "corun", key and value. */
void row_usage(row *r, uint64_t n_new);
void row_sampling(row *r);
/* The id of the answer: "cmpl-..." or "chatcmpl-...". */
void row_id(const job *j, char out[64]);

#endif
