/* fuzz_openai.c - batch lines: any bytes become a job, and the job a row that is one line of valid
 * JSON; the row of a job whose choices have all ended, too. */
#include <stdint.h>
#include <stdlib.h>

#include "../openai_model.h"
#include "app/score.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void end_all(job *j)
{
    for (size_t p = 0; p < j->n_prompt; p++)
        for (int32_t s = 0; s < j->s.n; s++) {
            corun_event e = {.kind = CORUN_EVENT_TOKEN,
                             .sample = s,
                             .token = 266,
                             .logprob = -1,
                             .n_top = j->s.logprobs > 0 ? 1 : 0,
                             .top_id = {'x'},
                             .text = "\xf0",
                             .text_len = 1};
            if (job_event(j, p, &e) != CORUN_OK) abort();
            e.kind = CORUN_EVENT_DONE;
            e.stop_index = (int32_t)j->s.n_stop - 1;
            e.stop_token = -1;
            if (job_event(j, p, &e) != CORUN_OK) abort();
        }
}

static void check(job *j, const job_model *m, bool score)
{
    buf b;
    json_t *row;
    buf_init(&b, (size_t)1 << 28);
    if ((score ? score_prepare(j, m) : openai_prepare(j, m)) != CORUN_OK) abort();
    if (j->http == 200 && j->n_choice > 64) { /* too slow to be worth it here */
        job_free(j);
        return;
    }
    if (j->http == 200) end_all(j);
    if (!job_done(j)) abort();
    if ((score ? score_write(j, m, &b) : openai_write(j, m, &b)) != CORUN_OK) abort();
    if (memchr(b.data, '\n', b.len) != b.data + b.len - 1) abort();
    /* NUL may stand in a key of top_logprobs, which the strict reader refuses */
    if (!memmem(b.data, b.len, "\\u0000", 6)) {
        if (json_read(&row, b.data, b.len, "row") != CORUN_OK) abort();
        json_decref(row);
    }
    buf_free(&b);
    job_free(j);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    job_model m = model(size & 1 ? BOS : -1);
    job *j;
    if (openai_open(&j, (const char *)data, size, 1) != CORUN_OK) abort();
    check(j, &m, false);
    if (score_open(&j, (const char *)data, size, 1) != CORUN_OK) abort();
    check(j, &m, true);
    return 0;
}
