/* fuzz_json.c - the strict JSON reader and both writers: any bytes give a value or an error, and
 * the canonical text of a value reads back to the same canonical text. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

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
    json_decref(v);
    json_decref(again);
    buf_free(&a);
    buf_free(&b);
    return 0;
}
