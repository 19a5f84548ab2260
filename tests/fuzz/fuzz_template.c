/* fuzz_template.c - templates and chat requests: any bytes give text or an error. Input: a
 * template, rendered twice with fixed variables (the same both times); or a template, a NUL and the
 * JSON of a chat request. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "text/chat.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char vars_text[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\"S \\u00e9\"},{\"role\":\"user\",\"content\":"
    "\" a,b \\n\"},{\"role\":\"assistant\",\"content\":\"<think>x</think>y\",\"tool_calls\":[{"
    "\"function\":{\"name\":\"f\",\"arguments\":{\"a\":[1,2.5,null,true]}}}]}],\"tools\":[{"
    "\"type\":\"function\",\"function\":{\"name\":\"f\"}}],\"add_generation_prompt\":true,"
    "\"bos_token\":\"<s>\",\"x\":5,\"s\":\"Hello\",\"l\":[3,1,2],\"m\":{\"k\":\"v\",\"n\":null},"
    "\"f\":1.5}";

static const json_t *vars(void)
{
    static json_t *v;
    if (!v && json_read(&v, vars_text, sizeof vars_text - 1, "vars") != CORUN_OK) abort();
    return v;
}

static void chat(const char *src, size_t len, const char *json, size_t json_len)
{
    chat_templates *t;
    buf b;
    buf_init(&b, 1 << 26);
    if (chat_templates_text(&t, src, len, "fuzz") == CORUN_OK) {
        chat_source s = {.templates = t, .special = vars(), .year = 2024, .month = 7, .day = 26};
        (void)chat_render(&s, json, json_len, &b);
        chat_templates_free(t);
    }
    buf_free(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *src = (const char *)data, *nul = size ? memchr(src, 0, size) : NULL;
    template *t;
    if (nul) {
        size_t len = (size_t)(nul - src);
        chat(src, len, nul + 1, size - len - 1);
        return 0;
    }
    if (template_parse(&t, src, size, "fuzz") != CORUN_OK) return 0;
    template_env env = {.vars = vars(), .year = 2024, .month = 7, .day = 26};
    buf a, b;
    buf_init(&a, 1 << 27);
    buf_init(&b, 1 << 27);
    corun_status st = template_render(t, &env, &a);
    if (template_render(t, &env, &b) != st) abort();
    if (a.len != b.len || (a.len && memcmp(a.data, b.data, a.len) != 0)) abort();
    if (st != CORUN_OK && a.len) abort();
    (void)template_wants_parts(t);
    template_free(t);
    buf_free(&a);
    buf_free(&b);
    return 0;
}
