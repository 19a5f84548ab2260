/* openai.h - lines of an OpenAI Batch file: reading their requests, writing their rows.
 *
 * The fields that are used, those that are ignored and the rule that everything else is refused
 * stand in docs/batch.md; the tables in openai_fields.c are the same lists. */
#ifndef APP_OPENAI_H
#define APP_OPENAI_H

#include "app/job.h"

#define OPENAI_MAX_STOP   64   /* stop strings */
#define OPENAI_MAX_BIAS   1024 /* entries of logit_bias */
#define OPENAI_MAX_BAD    256  /* bad_words */
#define OPENAI_MAX_PROMPT 4096 /* prompts of one request */

/* Reads the line: JSON, custom_id, body, digest. A bad line is a job with an error (CORUN_OK);
 * other statuses mean that memory is short. */
corun_status openai_open(job **out, const char *line, size_t len, uint64_t line_no);
/* Reads the request and makes its tokens. Errors of the request are errors of the job. */
corun_status openai_prepare(job *j, const job_model *m);
/* The row of a job that is done, with its final line feed. */
corun_status openai_write(const job *j, const job_model *m, buf *out);

/* ---- over HTTP (docs/server.md) ------------------------------------------------------------- */

/* As openai_open, for the body of a request. request_id stands for custom_id, "" where absent. */
corun_status openai_http_open(job **out, job_kind kind, const char *body, size_t len);
/* What the row holds as response.body, but with this value of `created`. */
corun_status openai_write_body(const job *j, const job_model *m, int64_t created, buf *out);

/* The answers of /tokenize and /detokenize. *j is new: it holds the error where its http is not
 * 200, and out the answer where it is. Other statuses mean that memory is short. */
corun_status openai_tokenize(job **j, const job_model *m, const char *body, size_t len, buf *out);
corun_status openai_detokenize(job **j, const job_model *m, const char *body, size_t len, buf *out);

/* One answer as server-sent events. The chunks, put together, are the whole answer. */
typedef struct openai_stream openai_stream;
/* The job is prepared; job and model must outlive the stream. */
corun_status openai_stream_open(openai_stream **out, const job *j, const job_model *m,
                                int64_t created);
void openai_stream_close(openai_stream *s); /* NULL is fine */
/* The job was fed this event: appends the chunks that it gives, if any. */
corun_status openai_stream_event(openai_stream *s, size_t prompt, const corun_event *e, buf *out);
/* The job is done: appends its error, or what no event has given (events may be left out), the
 * usage where it was asked for and the end mark. */
corun_status openai_stream_end(openai_stream *s, buf *out);

#endif
