/* fuzz_multipart.c - the first byte says where the body is cut, up to the first line feed stands
 * the Content-Type, then the body: the parts are the same uncut and cut into pieces. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "app/multipart.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static corun_status on_part(void *ctx, const char *name, const char *filename)
{
    buf_printf(ctx, "part %s %s\n", name, filename ? filename : "");
    return CORUN_OK;
}

static corun_status on_data(void *ctx, const char *data, size_t len)
{
    if (!len) abort();
    buf_put(ctx, data, len);
    return CORUN_OK;
}

static corun_status on_end(void *ctx)
{
    buf_puts(ctx, "end\n");
    return CORUN_OK;
}

static corun_status feed(buf *out, const char *type, const char *body, size_t len, size_t step)
{
    multipart *m;
    multipart_handler h = {out, on_part, on_data, on_end};
    TRY(multipart_open(&m, type, &h));
    corun_status st = CORUN_OK;
    for (size_t at = 0; st == CORUN_OK && at < len; at += step) {
        /* a copy of its own: reading beside a piece is seen */
        size_t n = len - at < step ? len - at : step;
        char *piece = malloc(n);
        if (!piece) abort();
        memcpy(piece, body + at, n);
        st = multipart_put(m, piece, n);
        free(piece);
    }
    if (st == CORUN_OK) st = multipart_end(m);
    multipart_close(m);
    return st;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *lf = size > 1 ? memchr(data + 1, '\n', size - 1) : NULL;
    if (!lf) return 0;
    size_t n_type = (size_t)(lf - data) - 1;
    char *type = malloc(n_type + 1);
    if (!type) abort();
    memcpy(type, data + 1, n_type);
    type[n_type] = 0;
    const char *body = (const char *)lf + 1;
    size_t len = size - n_type - 2;
    buf whole, cut;
    buf_init(&whole, (size_t)1 << 26);
    buf_init(&cut, (size_t)1 << 26);
    corun_status a = feed(&whole, type, body, len, len ? len : 1);
    if (a != CORUN_OK && !*err_text()) abort();
    corun_status b = feed(&cut, type, body, len, 1 + data[0] % 64);
    if (a != b || whole.len != cut.len) abort();
    if (whole.len && memcmp(whole.data, cut.data, whole.len) != 0) abort();
    buf_free(&whole);
    buf_free(&cut);
    free(type);
    return 0;
}
