/* cuda_there.h - cases that need a CUDA device skip where none serves. */
#ifndef TESTS_CUDA_THERE_H
#define TESTS_CUDA_THERE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "ops/ops.h"

/* Skips the case without a device; a device that does not open for another reason fails it. */
#define NEED_CUDA()                                                                                \
    do {                                                                                           \
        if (!cuda_is_there()) skip();                                                              \
    } while (0)

static inline bool cuda_is_there(void)
{
    static const ops_dims d = {.n_layer = 1,
                               .n_embd = 64,
                               .n_head = 1,
                               .n_kv = 1,
                               .d_head = 64,
                               .n_ff = 64,
                               .n_vocab = 64};
    ops_open_opts oo = {.device = -1};
    ops *o;
    corun_status st = ops_open_cuda(&o, &d, &oo);
    if (st == CORUN_OK) {
        o->close(o);
        return true;
    }
    if (st != CORUN_EDEVICE && st != CORUN_EUNSUPPORTED) fail_msg("%s", err_text());
    print_message("no device: %s\n", err_text());
    return false;
}

#endif
