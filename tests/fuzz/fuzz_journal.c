/* fuzz_journal.c - a journal from its bytes: any bytes give an error or a shape that lies in them,
 * and what counts of them has the same shape without what was torn. */
#include <stdint.h>
#include <stdlib.h>

#include "app/journal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    journal_shape s, again;
    if (journal_parse(data, size, &s) != CORUN_OK) {
        if (!*err_text()) abort();
        return 0;
    }
    if (s.end > size || s.torn > size - s.end) abort();
    if (s.n_row && !s.n_header) abort();
    if (journal_parse(data, (size_t)s.end, &again) != CORUN_OK) abort();
    if (again.torn || again.end != s.end || again.n_row != s.n_row || again.n_header != s.n_header)
        abort();
    return 0;
}
