/* score.h - lines of `corun score`: a text or token ids in, log-probabilities of its tokens out.
 * The fields and the row are described in docs/batch.md. */
#ifndef APP_SCORE_H
#define APP_SCORE_H

#include "app/job.h"

corun_status score_open(job **out, const char *line, size_t len, uint64_t line_no);
/* The line itself is the text. */
corun_status score_open_text(job **out, const char *line, size_t len, uint64_t line_no);
corun_status score_prepare(job *j, const job_model *m);
corun_status score_write(const job *j, const job_model *m, buf *out);

#endif
