/* openai_fake.h - for test_openai.c and test_rows.c: helpers to open lines over the small model of
 * openai_model.h, feed events and look into rows. */
#ifndef TESTS_OPENAI_FAKE_H
#define TESTS_OPENAI_FAKE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app/score.h"
#include "openai_model.h"

/* ---- helpers --------------------------------------------------------------------------------- */

static inline job *open_line(const char *line, const job_model *m)
{
    job *j;
    assert_int_equal(openai_open(&j, line, strlen(line), 7), CORUN_OK);
    assert_int_equal(openai_prepare(j, m), CORUN_OK);
    return j;
}

static inline job *open_body(bool chat, const char *body, const job_model *m)
{
    char line[8192];
    snprintf(line, sizeof line,
             "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/%scompletions\","
             "\"body\":{\"model\":\"m\"%s%s}}",
             chat ? "chat/" : "", *body ? "," : "", body);
    return open_line(line, m);
}

static inline json_t *row_of(const job *j, const job_model *m, char **text)
{
    buf b;
    json_t *v;
    buf_init(&b, 1 << 24);
    assert_int_equal(openai_write(j, m, &b), CORUN_OK);
    assert_int_equal(b.data[b.len - 1], '\n');
    if (json_read(&v, b.data, b.len, "row") != CORUN_OK) fail_msg("%s\n%s", err_text(), b.data);
    if (text) *text = strdup(b.data);
    buf_free(&b);
    return v;
}

static inline const json_t *at(const json_t *v, const char *path)
{
    char part[64];
    while (v && *path) {
        size_t n = strcspn(path, "/");
        snprintf(part, sizeof part, "%.*s", (int)n, path);
        v = json_is_array(v) ? json_array_get(v, (size_t)atoi(part)) : json_object_get(v, part);
        path += n + (path[n] == '/');
    }
    return v;
}

/* The value at path, as compact JSON text, is want. */
static inline void expect(const json_t *row, const char *path, const char *want)
{
    buf b;
    jw w;
    const json_t *v = at(row, path);
    if (!v) fail_msg("nothing at %s", path);
    buf_init(&b, 1 << 20);
    jw_init(&w, &b);
    jw_value(&w, v);
    if (strcmp(b.data, want) != 0) fail_msg("%s: %s, not %s", path, b.data, want);
    buf_free(&b);
}

/* Prompt tokens' log-probabilities: the token likeliest, then the one after it in the list. */
static inline void feed_prompt(job *j, size_t prompt, int n_top)
{
    const job_prompt *p = &j->prompt[prompt];
    for (size_t i = 1; i < p->n_token; i++) {
        corun_event e = {.kind = CORUN_EVENT_PROMPT,
                         .index = (int32_t)i,
                         .token = p->token[i],
                         .logprob = -0.25f * (float)i,
                         .n_top = n_top};
        for (int k = 0; k < n_top; k++) {
            e.top_id[k] = k == 0 ? p->token[i] : 's' + k;
            e.top_logprob[k] = -0.25f * (float)i - (float)k;
        }
        assert_int_equal(job_event(j, prompt, &e), CORUN_OK);
    }
}

static inline void feed_token(job *j, size_t prompt, int sample, int index, int32_t id,
                              const char *text, int n_top)
{
    corun_event e = {.kind = CORUN_EVENT_TOKEN,
                     .sample = sample,
                     .index = index,
                     .token = id,
                     .logprob = -1.5f,
                     .n_top = n_top,
                     .text = text,
                     .text_len = strlen(text)};
    for (int k = 0; k < n_top; k++) {
        e.top_id[k] = 'x' + k;
        e.top_logprob[k] = -0.5f - (float)k;
    }
    assert_int_equal(job_event(j, prompt, &e), CORUN_OK);
}

static inline void feed_done(job *j, size_t prompt, int sample, corun_finish finish, int n_new,
                             int stop)
{
    corun_event e = {.kind = CORUN_EVENT_DONE,
                     .sample = sample,
                     .finish = finish,
                     .stop_index = stop,
                     .stop_token = -1,
                     .n_prompt = (int32_t)j->prompt[prompt].n_token,
                     .n_new = n_new};
    assert_int_equal(job_event(j, prompt, &e), CORUN_OK);
}

#endif
