/* cuda_fixture.h - what the tests of the CUDA backend share. */
#ifndef TESTS_CUDA_FIXTURE_H
#define TESTS_CUDA_FIXTURE_H

#include "cuda_there.h"
#include "ops_fixture.h"
#ifdef CORUN_CUDA
#include "ops/cuda/backend.h"
#endif

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
