/* fuzz_safetensors.c - the header parser: any bytes give a table or an error, and the tensors of a
 * table that parses tile the data exactly. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "files/weights.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    safetensors_header *h;
    uint64_t n, total = 0;
    if (safetensors_parse(&h, (const char *)data, size, size, "fuzz") != CORUN_OK) {
        if (h || !*err_text()) abort();
        return 0;
    }
    memcpy(&n, data, sizeof n);
    for (size_t i = 0; i < safetensors_count(h); i++) {
        const weights_tensor *t = safetensors_at(h, i);
        if (t->offset < 8 + n || t->offset > size || t->bytes > size - t->offset) abort();
        if (t->n_dim < 0 || t->n_dim > WEIGHTS_MAX_DIM || !t->dtype_text) abort();
        if (i > 0 && strcmp(safetensors_at(h, i - 1)->name, t->name) >= 0) abort();
        total += t->bytes;
    }
    if (total != size - 8 - n) abort();
    safetensors_free(h);
    return 0;
}
