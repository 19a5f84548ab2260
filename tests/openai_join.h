/* openai_join.h - puts the chunks of a streamed answer together, as a client does, so that they can
 * be compared with the whole answer. */
#ifndef TESTS_OPENAI_JOIN_H
#define TESTS_OPENAI_JOIN_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app/openai.h"

/* NULL from a step of the joining: what is wrong is printed. */
#define JOIN_CHECK(c)                                                                              \
    do {                                                                                           \
        if (!(c)) {                                                                                \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #c);                                \
            return false;                                                                          \
        }                                                                                          \
    } while (0)

static inline json_t *join_item(json_t *o, const char *key, json_t *fresh)
{
    json_t *v = json_object_get(o, key);
    if (v && !json_is_null(v)) {
        json_decref(fresh);
        return v;
    }
    json_object_set_new(o, key, fresh);
    return fresh;
}

static inline void join_text(json_t *o, const char *key, const json_t *more)
{
    buf b;
    buf_init(&b, JOB_MAX_ROW);
    json_t *was = join_item(o, key, json_string(""));
    buf_put(&b, json_string_value(was), json_string_length(was));
    buf_put(&b, json_string_value(more), json_string_length(more));
    json_object_set_new(o, key, json_stringn(b.data ? b.data : "", b.len));
    buf_free(&b);
}

/* Lists are put together, a null list stays null. */
static inline void join_lists(json_t *to, json_t *from)
{
    const char *key;
    json_t *v;
    json_object_foreach (from, key, v) {
        if (json_is_null(v))
            json_object_set(to, key, v);
        else
            json_array_extend(join_item(to, key, json_array()), v);
    }
}

static inline bool join_choice(json_t *choices, json_t *from, bool chat)
{
    size_t i = (size_t)json_integer_value(json_object_get(from, "index"));
    JOIN_CHECK(i < json_array_size(choices));
    json_t *to = json_array_get(choices, i), *v;
    const char *key;
    JOIN_CHECK(!json_object_get(to, "seed")); /* nothing comes after its end */
    json_object_foreach (from, key, v) {
        if (strcmp(key, "delta") == 0) {
            json_t *m = join_item(to, "message", json_pack("{s:n}", "refusal"));
            bool first = !json_object_get(m, "role"), role = json_object_get(v, "role") != NULL;
            JOIN_CHECK(chat && first == role);
            if (role) {
                json_object_set(m, "role", json_object_get(v, "role"));
                json_object_set_new(m, "content", json_string(""));
            }
            if (json_object_get(v, "content"))
                join_text(m, "content", json_object_get(v, "content"));
        } else if (strcmp(key, "text") == 0) {
            JOIN_CHECK(!chat);
            join_text(to, key, v);
        } else if (strcmp(key, "logprobs") == 0 && !json_is_null(v)) {
            join_lists(join_item(to, key, json_object()), v);
        } else if (strcmp(key, "token_ids") == 0) {
            json_array_extend(join_item(to, key, json_array()), v);
        } else {
            const json_t *was = json_object_get(to, key);
            bool one = !was || json_is_null(was) || json_equal(was, v);
            JOIN_CHECK(one);
            json_object_set(to, key, v);
        }
    }
    return true;
}

static inline bool join_chunk(json_t *whole, json_t *chunk, bool chat)
{
    const char *key;
    json_t *v;
    json_object_foreach (chunk, key, v) {
        if (strcmp(key, "choices") == 0) {
            size_t i;
            json_t *c;
            JOIN_CHECK(json_array_size(v) <= 1);
            json_array_foreach (v, i, c)
                JOIN_CHECK(join_choice(json_object_get(whole, key), c, chat));
        } else if (strcmp(key, "usage") == 0) {
            if (!json_is_null(v)) json_object_set(whole, key, v);
        } else {
            const json_t *was = json_object_get(whole, key);
            JOIN_CHECK(!was || json_equal(was, v));
            json_object_set(whole, key, v);
        }
    }
    return true;
}

/* The answer that the events make. False: they are no stream of n choices. */
static inline bool join_stream(const char *text, size_t len, size_t n, bool chat, json_t **out)
{
    static const char done[] = "data: [DONE]\n\n";
    json_t *whole = *out = json_pack("{s:[]}", "choices");
    const char *end = text + len;
    for (size_t i = 0; i < n; i++)
        json_array_append_new(json_object_get(whole, "choices"), json_pack("{s:n}", "logprobs"));
    for (;;) {
        const char *stop = memmem(text, (size_t)(end - text), "\n\n", 2);
        JOIN_CHECK(stop && stop - text > 6 && memcmp(text, "data: ", 6) == 0);
        JOIN_CHECK(!memchr(text, '\n', (size_t)(stop - text)));
        if (strncmp(text, done, sizeof done - 1) == 0) break;
        json_error_t e;
        json_t *chunk = json_loadb(text + 6, (size_t)(stop - text) - 6,
                                   JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &e);
        JOIN_CHECK(chunk);
        bool ok = join_chunk(whole, chunk, chat);
        json_decref(chunk);
        if (!ok) return false;
        text = stop + 2;
    }
    JOIN_CHECK(end - text == sizeof done - 1);
    json_object_set_new(whole, "object", json_string(chat ? "chat.completion" : "text_completion"));
    return true;
}

/* True when the events are the whole answer (its body's text), in another shape. */
static inline bool join_equals(const char *sse, size_t n_sse, const job *j, const char *body,
                               size_t n_body)
{
    json_t *joined = NULL, *whole;
    json_error_t e;
    bool ok = join_stream(sse, n_sse, j->n_choice, j->kind == JOB_CHAT, &joined);
    whole = json_loadb(body, n_body, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &e);
    JOIN_CHECK(whole);
    if (!j->stream_usage && !j->stream_usage_each) json_object_del(whole, "usage");
    if (ok && !json_equal(joined, whole)) {
        char *a = json_dumps(joined, JSON_SORT_KEYS), *b = json_dumps(whole, JSON_SORT_KEYS);
        fprintf(stderr, "joined: %s\nwhole:  %s\n", a ? a : "?", b ? b : "?");
        free(a);
        free(b);
        ok = false;
    }
    json_decref(joined);
    json_decref(whole);
    return ok;
}

#endif
