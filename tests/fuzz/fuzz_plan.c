/* fuzz_plan.c - plan tables: any bytes give a table or an error, and the text of a table reads back
 * to the same text. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "ops/plan.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    plan_table *t, *again;
    buf a, b;
    if (plan_parse(&t, (const char *)data, size, "fuzz") != CORUN_OK) return 0;
    buf_init(&a, 1 << 26);
    buf_init(&b, 1 << 26);
    plan_write(t, &a);
    if (buf_status(&a) != CORUN_OK) abort();
    if (plan_parse(&again, a.data, a.len, "written") != CORUN_OK) abort();
    plan_write(again, &b);
    if (a.len != b.len || memcmp(a.data, b.data, a.len) != 0) abort();
    for (size_t i = 0; i < t->n_entry; i++) {
        const plan_entry *e = &t->entry[i];
        if (plan_find(again, e->set, &e->shape, e->rows)->rows != e->rows) abort();
    }
    buf_free(&a);
    buf_free(&b);
    plan_close(t);
    plan_close(again);
    return 0;
}
