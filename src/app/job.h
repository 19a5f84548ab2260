/* job.h - one input line on its way through the engine: its prompts, what came back for each of
 * its choices, or the error that it ends with.
 *
 * A job knows neither files nor engines: events are fed in, a row comes out, so the whole path is
 * testable with a job_model made of plain functions. Its row depends on the line and the model
 * only; the line number is shown only where the line has no readable custom_id. */
#ifndef APP_JOB_H
#define APP_JOB_H

#include "base/digest.h"
#include "base/json.h"

/* What a request needs to know of the model and its engine. */
typedef struct job_model {
    const void *ctx; /* first argument of the functions; contracts as in corun.h */
    corun_status (*encode)(const void *ctx, const char *text, size_t len, unsigned flags,
                           int32_t *out, size_t cap, size_t *n);
    corun_status (*decode)(const void *ctx, const int32_t *ids, size_t n_id, unsigned flags,
                           char *out, size_t cap, size_t *n);
    corun_status (*token_bytes)(const void *ctx, int32_t id, char *out, size_t cap, size_t *n);
    corun_status (*render)(const void *ctx, const char *json, size_t len, char *out, size_t cap,
                           size_t *n);
    corun_sampling defaults;
    int32_t n_vocab, n_ctx, bos; /* bos -1: none */
    const char *served_name;     /* NULL: any model string is accepted */
    const char *fingerprint;     /* digest of the numeric identity */
    size_t text_max; /* of a longer text job_encode makes no tokens (CORUN_EINTERNAL); 0: of any */
    bool *too_long;  /* set then */
} job_model;

/* Tokens with their log-probabilities, in order. */
typedef struct job_tokens {
    int32_t *id;
    float *logprob; /* NaN: none */
    int32_t *n_top;
    size_t n, cap;
    int32_t *top_id; /* n_top[0] of the first token, n_top[1] of the second, ... */
    float *top_logprob;
    size_t n_tops, cap_tops;
} job_tokens;

typedef struct job_prompt {
    int32_t *token;
    size_t n_token;
    size_t n_added;     /* leading tokens that stand for no text of the prompt */
    int32_t max_tokens; /* for this prompt; -1: the rest of the context */
    uint64_t seed;      /* of its sample 0 */
    const char *text;   /* given as text and not cut, or NULL */
    size_t text_len;
    job_tokens logprobs; /* of the prompt's own tokens; empty unless asked for */
    size_t n_open;       /* choices that have not ended */
} job_prompt;

typedef struct job_choice {
    buf text;
    job_tokens tokens;
    bool ended, failed;
    char *failure;
    corun_finish finish;
    int32_t stop_index, stop_token, n_new;
} job_choice;

typedef enum job_kind { JOB_COMPLETION, JOB_CHAT, JOB_SCORE } job_kind;

typedef struct job {
    uint64_t line_no; /* from 1 */
    json_t *line;     /* NULL: not JSON */
    const json_t *custom_id, *body;
    digest id; /* of custom_id and body without ignored fields, or of the line's bytes */
    job_kind kind;

    int http; /* 200, or the status of the error row */
    char *message;
    const char *param, *type, *code; /* static texts or NULL */

    corun_sampling s; /* its arrays belong to the job */
    void *owned[8];   /* those arrays */
    size_t n_owned;
    bool seeded; /* the request names a seed */
    bool echo, literal_ids, return_ids;
    bool over_http;                               /* no line of a file: may be streamed */
    bool stream, stream_usage, stream_usage_each; /* a chunk with the usage at the end; in each */
    int32_t logprobs, prompt_logprobs;            /* as asked for; -1: none */
    const char *echo_text;                        /* chat: put before every choice, or NULL */
    size_t echo_len;

    job_prompt *prompt;
    size_t n_prompt;
    job_choice *choice; /* prompt-major, s.n each */
    size_t n_choice, n_open;
    size_t n_submitted; /* prompts handed to the engine */
} job;

/* Bytes of one line, and of one row. */
#define JOB_MAX_LINE ((size_t)16 << 20)
#define JOB_MAX_ROW  ((size_t)256 << 20)

corun_status job_new(job **out, uint64_t line_no);
void job_free(job *j); /* NULL is fine */
/* Frees all but what a report of the row needs: line number, status and message. */
void job_release(job *j);
/* Makes the job end with an error row. The first call wins. */
void job_fail(job *j, int http, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Makes the job one whose row an earlier run has written: all that is left is what its report
 * needs. */
corun_status job_restore(job *j, int http, const char *message, size_t len);
/* After the line was refused as JSON: takes its custom_id where only the size of a number was at
 * fault, so that the error row can name it. */
void job_recover_id(job *j, const char *line, size_t len);
/* Keeps memory for the job's life. NULL: no memory, text set. */
void *job_keep(job *j, void *p);
/* The tokens of a text. *ids is new memory. */
corun_status job_encode(const job_model *m, const char *text, size_t len, unsigned flags,
                        int32_t **ids, size_t *n);
/* Appends the text of ids to b. */
corun_status job_decode(const job_model *m, const int32_t *ids, size_t n, unsigned flags, buf *b);

/* After the prompts stand: room for the choices. */
corun_status job_start(job *j);
void job_request(const job *j, size_t prompt, corun_request *out);
/* An event of the request made from this prompt. */
corun_status job_event(job *j, size_t prompt, const corun_event *e);
/* True when the row can be written: every choice has ended, or the job has failed. */
bool job_done(const job *j);

corun_status job_tokens_add(job_tokens *t, int32_t id, float logprob, const corun_event *tops);
void job_tokens_free(job_tokens *t);

/* The error row, with its final line feed. */
corun_status job_write_error(const job *j, const job_model *m, buf *out);
/* What the row holds as response.body. */
void job_put_error(const job *j, const job_model *m, jw *w);

/* Counts characters (one for each maximal invalid part) of bytes that come in pieces. */
typedef struct job_chars {
    size_t n;
    unsigned need, lo, hi;
} job_chars;
void job_chars_add(job_chars *c, const char *data, size_t len);

#endif
