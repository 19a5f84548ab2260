/* device.c - which machine a model runs on. Invariant: a device that was asked for by name is used
 * or refused; only "auto" may end on another one, and then the model knows why. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"

static corun_status open_cpu(corun_model *m, const ops_dims *d, const ops_open_opts *oo, ops **out)
{
    if (oo->plan)
        FAIL(CORUN_EINVAL, "a plan table serves a CUDA device; this model is %s",
             *m->device_note ? m->device_note : "running on the CPU");
    TRY(ops_golden_check(m->threads, oo->isa, m->golden));
    return ops_open_cpu(out, d, oo);
}

/* "cuda" or "cuda:N". */
static corun_status read_cuda(const char *device, int *number)
{
    *number = -1;
    if (strcmp(device, "cuda") == 0) return CORUN_OK;
    char *end;
    const char *text = device + strlen("cuda:");
    long n = strncmp(device, "cuda:", 5) == 0 && *text >= '0' && *text <= '9'
                 ? strtol(text, &end, 10)
                 : -1;
    if (n < 0 || n > 1024 || *end)
        FAIL(CORUN_EINVAL, "device \"%s\": not auto, cpu, cuda or cuda:N", device);
    *number = (int)n;
    return CORUN_OK;
}

corun_status device_open(corun_model *m, const char *device, const ops_dims *d, ops_open_opts *oo,
                         ops **out)
{
    *out = NULL;
    oo->device = -1;
    if (strcmp(device, "cpu") == 0) return open_cpu(m, d, oo, out);
    if (strcmp(device, "auto") != 0) {
        TRY(read_cuda(device, &oo->device));
        return ops_open_cuda(out, d, oo);
    }
#ifdef CORUN_CUDA
    corun_status st = ops_open_cuda(out, d, oo);
    if (st != CORUN_EDEVICE && st != CORUN_EUNSUPPORTED) return st;
    snprintf(m->device_note, sizeof m->device_note, "running on the CPU: %.230s", err_text());
#endif
    return open_cpu(m, d, oo, out);
}
