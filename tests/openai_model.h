/* openai_model.h - a job_model made of plain functions over a small vocabulary: no engine. */
#ifndef TESTS_OPENAI_MODEL_H
#define TESTS_OPENAI_MODEL_H

#include <stdio.h>
#include <string.h>

#include "app/openai.h"

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

#endif
