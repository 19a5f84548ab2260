/* cuda_fixture.h - what the tests of the CUDA backend share: they skip where no device serves. */
#ifndef TESTS_CUDA_FIXTURE_H
#define TESTS_CUDA_FIXTURE_H

#include "ops_fixture.h"
#ifdef CORUN_CUDA
#include "ops/cuda/backend.h"
#endif

/* Skips the case without a device; a device that does not open for another reason fails it. */
#define NEED_CUDA()                                                                                \
    do {                                                                                           \
        if (!cuda_is_there()) skip();                                                              \
    } while (0)

UNUSED static bool cuda_is_there(void)
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

#ifdef CORUN_CUDA
UNUSED static void cuda_ex2(ops *o, int64_t n, const void *x, void *out)
{
    ok(gpu_ex2(&cuda_of(o)->g, n, x, out));
}
#endif

UNUSED static ops *cuda_open(const ops_dims *d, const ops_conf *c)
{
    ops_open_opts oo = {.device = -1};
    ops *o;
    ok(ops_open_cuda(&o, d, &oo));
    ok(o->configure(o, c));
    return o;
}

#endif
