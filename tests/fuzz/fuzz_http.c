/* fuzz_http.c - the bytes of a connection: a head is read or refused with a status, and what is
 * behind it is read as a body in chunks, which gives the same bytes whole and byte by byte. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "app/http_head.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Reads the body in steps of at most `step` bytes; gives how it ended, sums up its bytes. */
static int read_chunks(const char *p, size_t len, size_t step, size_t *total, uint64_t *sum)
{
    http_chunks k = {0};
    int r = 0;
    *total = 0;
    *sum = 0;
    for (size_t at = 0; at < len && r == 0;) {
        size_t used, n, some = len - at < step ? len - at : step;
        r = http_chunks_read(&k, p + at, some, &used, &n);
        if (r < 0) break;
        if (used > some || n > used || (used == 0 && r == 0)) abort();
        for (size_t i = 0; i < n; i++) *sum = *sum * 31 + (unsigned char)p[at + used - n + i];
        *total += n;
        at += used;
    }
    return r;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data, *why = NULL;
    size_t end = http_head_end(text, size, 0);
    if (end > size) abort();
    if (end) {
        http_head h = {0};
        int status = http_head_read(&h, text, end, &why);
        if (status && (status < 400 || status > 599 || !why)) abort();
        if (!status) {
            if (!h.method || !h.path || (h.path[0] != '/' && strcmp(h.path, "*") != 0)) abort();
            for (size_t i = 0; i < h.n_field; i++)
                if (strpbrk(h.field[i].value, "\r\n")) abort();
            http_head_field(&h, "content-type");
        }
        http_head_free(&h);
    }
    size_t n, m;
    uint64_t a, b;
    int whole = read_chunks(text + end, size - end, size, &n, &a);
    int parts = read_chunks(text + end, size - end, 1, &m, &b);
    if (whole != parts || (whole >= 0 && (n != m || a != b))) abort();
    return 0;
}
