/* openai_fake.h - for test_openai.c and test_rows.c: a small vocabulary and a job_model made of
 * plain functions, and helpers to open lines, feed events and look into rows. */
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

#include "app/openai.h"
#include "app/score.h"

/* ---- a model: bytes, 256 bos, 257 eos, 258 <|user|>, 259 <|assistant|>, then words ---------- */

static const char *const words[] = {"<|bos|>", "<|eos|>",  "<|user|>", "<|assistant|>",
                                    "The",     " capital", " of",      " France",
                                    " is",     " Paris",   "\xf0\x9f", "\xa6\xac"};
enum { N_WORD = 12, N_VOCAB = 272, BOS = 256, EOS = 257, THE = 260, IS = 264, PARIS = 265 };

typedef struct fake {
    int32_t bos;     /* added by ADD_SPECIAL; -1: none */
    char seen[4096]; /* what the template got */
} fake;

static inline const char *bytes_of(int32_t id, size_t *n, char one[2])
{
    if (id < 256) {
        one[0] = (char)id;
        *n = 1;
        return one;
    }
    *n = id < 256 + N_WORD ? strlen(words[id - 256]) : 0;
    return *n ? words[id - 256] : "";
}

static inline corun_status encode(const void *ctx, const char *text, size_t len, unsigned flags,
                                  int32_t *out, size_t cap, size_t *n)
{
    const fake *f = ctx;
    *n = 0;
    if (flags & CORUN_TEXT_ADD_SPECIAL && f->bos >= 0) {
        if (cap) out[0] = f->bos;
        *n = 1;
    }
    for (size_t i = 0; i < len;) {
        int32_t id = (unsigned char)text[i];
        size_t step = 1;
        for (int w = 0; w < N_WORD; w++) {
            size_t k = strlen(words[w]);
            if (k <= len - i && memcmp(words[w], text + i, k) == 0) {
                id = 256 + w;
                step = k;
            }
        }
        if (*n < cap) out[*n] = id;
        ++*n;
        i += step;
    }
    return *n <= cap ? CORUN_OK : CORUN_ECAPACITY;
}

static inline corun_status token_bytes(const void *ctx, int32_t id, char *out, size_t cap,
                                       size_t *n)
{
    char one[2];
    const char *s = bytes_of(id, n, one);
    (void)ctx;
    if (*n > cap) return CORUN_ECAPACITY;
    if (*n) memcpy(out, s, *n);
    return CORUN_OK;
}

/* Bytes as they are; the row writer mends what is no UTF-8. */
static inline corun_status decode(const void *ctx, const int32_t *ids, size_t n_id, unsigned flags,
                                  char *out, size_t cap, size_t *n)
{
    (void)ctx;
    *n = 0;
    for (size_t i = 0; i < n_id; i++) {
        char one[2];
        size_t k;
        const char *s = bytes_of(ids[i], &k, one);
        if (flags & CORUN_TEXT_SKIP_SPECIAL && ids[i] >= 256 && ids[i] < 260) continue;
        if (*n + k <= cap) memcpy(out + *n, s, k);
        *n += k;
    }
    return *n <= cap ? CORUN_OK : CORUN_ECAPACITY;
}

static inline corun_status render(const void *ctx, const char *json, size_t len, char *out,
                                  size_t cap, size_t *n)
{
    fake *f = (fake *)(uintptr_t)ctx;
    snprintf(f->seen, sizeof f->seen, "%.*s", (int)len, json);
    if (strstr(f->seen, "explode")) return err_set(CORUN_EFORMAT, "template: raised explode");
    *n = strlen("<|user|>hi<|assistant|>");
    if (*n > cap) return CORUN_ECAPACITY;
    memcpy(out, "<|user|>hi<|assistant|>", *n);
    return CORUN_OK;
}

static fake the_fake = {.bos = BOS};

static inline job_model model(int32_t bos)
{
    the_fake.bos = bos;
    return (job_model){.ctx = &the_fake,
                       .encode = encode,
                       .decode = decode,
                       .token_bytes = token_bytes,
                       .render = render,
                       .defaults = {.temperature = 1,
                                    .top_p = 1,
                                    .repetition_penalty = 1,
                                    .n = 1,
                                    .max_tokens = -1,
                                    .skip_special = true,
                                    .logprobs = -1,
                                    .prompt_logprobs = -1},
                       .n_vocab = N_VOCAB,
                       .n_ctx = 64,
                       .bos = bos,
                       .fingerprint = "f00d"};
}

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
