/* fuzz_rows.c - rows of result files: two lines of any bytes are refused or compared; a row equals
 * itself, and the order of the two does not decide whether they part. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "app/rows.h"
#include "proof/diff.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static json_t *read_row(const uint8_t *data, size_t size)
{
    json_t *row = NULL;
    char *text = malloc(size + 1); /* rows_json may change it */
    if (!text) abort();
    if (size) memcpy(text, data, size);
    text[size] = 0;
    if (rows_json(&row, text, size, "fuzz") != CORUN_OK) row = NULL;
    free(text);
    if (row && !json_is_object(row)) {
        json_decref(row);
        row = NULL;
    }
    return row;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *end = size ? memchr(data, '\n', size) : NULL;
    size_t n = end ? (size_t)(end - data) : size;
    json_t *a = read_row(data, n), *b = end ? read_row(end + 1, size - n - 1) : NULL;
    if (!b && a) b = json_deep_copy(a);
    if (a && b) {
        diff_place p, q, same;
        diff_count count = {0};
        buf text;
        buf_init(&text, 1 << 20);
        diff_rows(a, b, &p, &count);
        diff_rows(b, a, &q, &count);
        if ((p.kind == DIFF_EQUAL) != (q.kind == DIFF_EQUAL)) abort();
        diff_rows(a, a, &same, &count);
        if (same.kind != DIFF_EQUAL) abort();
        diff_place_text(&p, &text);
        diff_key(a, &text);
        diff_is_error(b);
        if (diff_identity(a, b, &text, &n) != CORUN_OK && buf_status(&text) == CORUN_OK) abort();
        buf_free(&text);
    }
    json_decref(a);
    json_decref(b);
    return 0;
}
