/* fuzz_request.c - bodies of HTTP requests: any bytes become a job, whose answer is valid JSON; the
 * chunks of a streamed answer, put together, are the whole; texts to tokens and back, too. */
#include <stdint.h>
#include <stdlib.h>

#include "../openai_join.h"
#include "../openai_model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* One token and the end for every choice, into the job and its stream. */
static void feed(job *j, openai_stream *s, size_t prompt, corun_event *e, buf *out)
{
    if (job_event(j, prompt, e) != CORUN_OK) abort();
    if (s && openai_stream_event(s, prompt, e, out) != CORUN_OK) abort();
}

static void end_all(job *j, openai_stream *s, buf *out)
{
    for (size_t p = 0; p < j->n_prompt; p++) {
        const int32_t n = j->prompt[p].max_tokens == 0 ? 1 : j->s.n;
        for (size_t i = 1; i < j->prompt[p].n_token && j->s.prompt_logprobs >= 0; i++) {
            corun_event e = {.kind = CORUN_EVENT_PROMPT,
                             .index = (int32_t)i,
                             .token = j->prompt[p].token[i],
                             .logprob = -2,
                             .n_top = j->s.prompt_logprobs > 0,
                             .top_id = {'y'}};
            feed(j, s, p, &e, out);
        }
        for (int32_t k = 0; k < n; k++) {
            corun_event e = {.kind = CORUN_EVENT_TOKEN,
                             .sample = k,
                             .token = 266,
                             .logprob = -1,
                             .n_top = j->s.logprobs > 0,
                             .top_id = {'x'},
                             .text = "x\xc3\xa9",
                             .text_len = 3};
            if (j->prompt[p].max_tokens) feed(j, s, p, &e, out);
            e.kind = CORUN_EVENT_DONE;
            e.n_new = j->prompt[p].max_tokens != 0;
            e.stop_index = (int32_t)j->s.n_stop - 1;
            e.stop_token = -1;
            feed(j, s, p, &e, out);
        }
    }
}

static bool is_json(const buf *b)
{
    json_error_t e;
    json_t *v = json_loadb(b->data, b->len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &e);
    json_decref(v);
    return v != NULL || memmem(b->data, b->len, "\\u0000", 6); /* in a key of top_logprobs */
}

static void answer(const char *data, size_t size, job_kind kind, const job_model *m)
{
    job *j;
    buf body, sse;
    openai_stream *s = NULL;
    if (openai_http_open(&j, kind, data, size) != CORUN_OK) abort();
    if (openai_prepare(j, m) != CORUN_OK) abort();
    if (j->http == 200 && j->n_choice > 64) { /* too slow to be worth it here */
        job_free(j);
        return;
    }
    buf_init(&body, (size_t)1 << 28);
    buf_init(&sse, (size_t)1 << 28);
    if (j->http == 200 && j->stream && openai_stream_open(&s, j, m, 5) != CORUN_OK) abort();
    if (j->http == 200) end_all(j, s, &sse);
    if (!job_done(j)) abort();
    if (openai_write_body(j, m, 5, &body) != CORUN_OK || !is_json(&body)) abort();
    if (s && openai_stream_end(s, &sse) != CORUN_OK) abort();
    if (s && !memmem(body.data, body.len, "\\u0000", 6) &&
        !join_equals(sse.data, sse.len, j, body.data, body.len))
        abort();
    openai_stream_close(s);
    buf_free(&sse);
    buf_free(&body);
    job_free(j);
}

static void tokens(const char *data, size_t size, bool back, const job_model *m)
{
    job *j;
    buf b;
    buf_init(&b, (size_t)1 << 28);
    if ((back ? openai_detokenize : openai_tokenize)(&j, m, data, size, &b) != CORUN_OK) abort();
    if (j->http == 200 && !is_json(&b)) abort();
    buf_free(&b);
    job_free(j);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const job_model m = model(size & 1 ? BOS : -1);
    answer((const char *)data, size, JOB_COMPLETION, &m);
    answer((const char *)data, size, JOB_CHAT, &m);
    tokens((const char *)data, size, false, &m);
    tokens((const char *)data, size, true, &m);
    return 0;
}
