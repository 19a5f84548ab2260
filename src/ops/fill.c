/* fill.c - made-up weights as a reader of rows. Invariant: the bits are those of fill.h. */
#include "ops/fill.h"

#include "ops/rows.h"

corun_status ops_fill_read(void *arg, int64_t row, int64_t n, void *out)
{
    const ops_fill *f = arg;
    uint16_t *o = out;
    uint64_t first = (uint64_t)(row * f->n_in), end = first + (uint64_t)(n * f->n_in);
    for (uint64_t i = first; i < end;) {
        float v[4];
        fill_four(f->seed, f->index, i / 4, f->base, f->spread, v);
        do {
            *o++ = ops_bf16_round(v[i % 4]);
            i++;
        } while (i < end && i % 4);
    }
    return CORUN_OK;
}
