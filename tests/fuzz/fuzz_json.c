/* fuzz_json.c - the strict JSON reader and both writers: any bytes give a value or an error, and
 * the canonical text of a value reads back to the same canonical text. */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A whole number is written as one; a float reads back to its bits. */
static void check_number(const json_t *v)
{
    int64_t whole;
    json_t *back;
    buf b;
    jw w;
    if (!json_is_number(v)) return;
    float f = (float)json_number_value(v);
    if (!isfinite(f) || f < -9999.0f) f = 0;
    buf_init(&b, 1 << 10);
    jw_init(&w, &b);
    jw_open(&w, '[');
    jw_logprob(&w, f);
    if (json_is_whole(v, &whole)) {
        jw_int(&w, whole);
        jw_uint(&w, (uint64_t)whole & INT64_MAX);
    }
    jw_close(&w, ']');
    if (json_read(&back, b.data, b.len, "numbers") != CORUN_OK) abort();
    float g = (float)json_number_value(json_array_get(back, 0));
    if (memcmp(&f, &g, sizeof f) != 0) abort();
    if (json_array_size(back) == 3 && json_integer_value(json_array_get(back, 1)) != whole) abort();
    json_decref(back);
    buf_free(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *v, *again;
    if (json_read(&v, (const char *)data, size, "fuzz") != CORUN_OK) return 0;
    buf a, b;
    buf_init(&a, 1 << 26);
    buf_init(&b, 1 << 26);
    jw w;
    jw_init(&w, &a);
    jw_canonical(&w, v);
    if (buf_status(&a) != CORUN_OK) abort();
    if (json_read(&again, a.data, a.len, "canonical") != CORUN_OK) abort();
    jw_init(&w, &b);
    jw_canonical(&w, again);
    if (a.len != b.len || memcmp(a.data, b.data, a.len) != 0) abort();
    json_decref(again);
    /* As it stands: the same value once more. */
    buf_reset(&b);
    jw_init(&w, &b);
    jw_value(&w, v);
    if (buf_status(&b) != CORUN_OK) abort();
    if (json_read(&again, b.data, b.len, "value") != CORUN_OK || !json_equal(v, again)) abort();
    json_decref(again);
    check_number(json_is_array(v) ? json_array_get(v, 0) : v);
    json_decref(v);
    buf_free(&a);
    buf_free(&b);
    return 0;
}
