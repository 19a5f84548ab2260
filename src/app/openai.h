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

#endif
