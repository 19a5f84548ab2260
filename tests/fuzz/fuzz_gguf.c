/* fuzz_gguf.c - a GGUF file from its bytes to a configuration: any bytes give an error or a header
 * whose tensors lie in the file; a file that opens reads to its end, and its content digest does
 * not depend on how it was read. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "files/config.h"
#include "text/bpe.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Every prefix that is asked for grows; the whole file never asks. */
static gguf_header *parse_growing(const char *data, size_t size)
{
    gguf_header *h = NULL;
    uint64_t need = 24, before;
    while (!h) {
        if (need > size) need = size;
        before = need;
        if (gguf_parse(&h, data, (size_t)before, size, "fuzz", &need) != CORUN_OK) {
            if (h || !*err_text()) abort();
            return NULL;
        }
        if (!h && (need <= before || need > size)) abort();
        if (!h && need < 2 * before) need = 2 * before;
    }
    return h;
}

static void read_all(weights *w)
{
    static float values[1 << 16];
    digest before, after;
    if (weights_digest(w, &before) != CORUN_OK) abort();
    for (size_t i = 0; i < weights_count(w); i++) {
        const weights_tensor *t = weights_at(w, i);
        int64_t rows = 1, cols = t->n_dim ? t->dim[t->n_dim - 1] : 1;
        for (int d = 0; d + 1 < t->n_dim; d++) rows *= t->dim[d];
        if (cols > 1 << 11) continue;
        for (int64_t r = 0; r < rows; r += 32) {
            corun_status st = weights_read_f32(w, t, r, rows - r < 32 ? rows - r : 32, values);
            if (st != CORUN_OK && st != CORUN_EUNSUPPORTED) abort();
        }
    }
    if (weights_digest(w, &after) != CORUN_OK) abort();
    if (before.hi != after.hi || before.lo != after.lo) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    gguf_header *h = parse_growing((const char *)data, size);
    if (!h) return 0;
    for (size_t i = 0; i < gguf_count(h); i++) {
        const weights_tensor *t = gguf_at(h, i);
        if (t->offset > size || t->bytes > size - t->offset) abort();
    }
    gguf_free(h);
    char path[64];
    weights *w;
    config c;
    int fd = memfd_create("fuzz", 0);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (weights_open(&w, path) == CORUN_OK) {
        if (config_from_gguf(&c, w) == CORUN_OK) {
            static float freq[512];
            double scale;
            if (config_rope_table(&c, NULL, freq, &scale) != CORUN_OK) abort();
        }
        read_all(w);
        bpe *t;
        if (bpe_open_gguf(&t, w) == CORUN_OK) bpe_close(t);
        weights_close(w);
    }
    close(fd);
    return 0;
}
