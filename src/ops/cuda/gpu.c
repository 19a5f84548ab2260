/* gpu.c - owns the device: opening it, its memory, its one stream, and the words of its errors.
 * Invariant: a device that is opened is a Hopper one, and no variable that would change a
 * library's choice is set. */
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

#include "ops/cuda/gpu.h"

#define MIN_DRIVER 13000 /* as cudaDriverGetVersion counts */

extern char **environ;

corun_status gpu_status(int code, const char *what)
{
    if (code == cudaSuccess) return CORUN_OK;
    (void)cudaGetLastError(); /* it is told here, and not by the next launch again */
    cudaError_t e = (cudaError_t)code;
    FAIL(e == cudaErrorMemoryAllocation ? CORUN_ENOMEM : CORUN_EDEVICE, "%s: %s (%s)", what,
         cudaGetErrorString(e), cudaGetErrorName(e));
}

#define CUDA(call, what) TRY(gpu_status((int)(call), (what)))

/* The name of a variable that is set and that a library would listen to. */
static const char *foreign_variable(void)
{
    static const char *const prefix[] = {"CUBLAS", "NVIDIA_TF32_OVERRIDE="};
    for (char **e = environ; *e; e++)
        for (size_t i = 0; i < sizeof prefix / sizeof *prefix; i++)
            if (strncmp(*e, prefix[i], strlen(prefix[i])) == 0) return *e;
    return NULL;
}

/* The first Hopper device, or number `want`. */
static corun_status pick(gpu *g, int want)
{
    int n = 0, driver = 0;
    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
        FAIL(CORUN_EDEVICE, "no CUDA device: no driver is installed");
    if (driver < MIN_DRIVER)
        FAIL(CORUN_EDEVICE, "the driver serves CUDA %d.%d, CUDA %d.%d is needed", driver / 1000,
             driver % 1000 / 10, MIN_DRIVER / 1000, MIN_DRIVER % 1000 / 10);
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e != cudaSuccess || n < 1)
        FAIL(CORUN_EDEVICE, "no CUDA device: %s",
             e == cudaSuccess ? "the driver counts none" : cudaGetErrorString(e));
    if (want >= n) FAIL(CORUN_EINVAL, "device cuda:%d: there are %d", want, n);
    struct cudaDeviceProp p;
    for (int i = want < 0 ? 0 : want; i < n; i++) {
        CUDA(cudaGetDeviceProperties(&p, i), "properties of the device");
        g->device = i;
        g->cc = p.major * 10 + p.minor;
        g->sm_count = p.multiProcessorCount;
        snprintf(g->name, sizeof g->name, "%.63s", p.name);
        if (g->cc == 90) return CORUN_OK;
        if (want >= 0) break;
    }
    FAIL(CORUN_EUNSUPPORTED,
         "%s (compute capability %d.%d) is not a Hopper device: the CUDA backend's arithmetic is "
         "that of capability 9.0, another device would give other bits",
         g->name, g->cc / 10, g->cc % 10);
}

corun_status gpu_use(const gpu *g)
{
    return gpu_status((int)cudaSetDevice(g->device), "cudaSetDevice");
}

corun_status gpu_open(gpu *g, int want)
{
    *g = (gpu){.device = -1};
    const char *v = foreign_variable();
    if (v)
        FAIL(CORUN_EINVAL,
             "the variable %.*s is set: it would change what the CUDA libraries "
             "compute; unset it",
             (int)strcspn(v, "="), v);
    TRY(pick(g, want));
    TRY(gpu_use(g));
    TRY(gpu_lt_load());
    cudaStream_t s;
    CUDA(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), "stream");
    g->stream = s;
    cublasLtHandle_t h;
    cublasStatus_t st = cublasLtCreate(&h);
    if (st != CUBLAS_STATUS_SUCCESS)
        FAIL(CORUN_EDEVICE, "cublasLtCreate: %s", cublasLtGetStatusString(st));
    g->lt = h;
    g->lt_version = cublasLtGetVersion();
    return CORUN_OK;
}

void gpu_close(gpu *g)
{
    if (g->lt) cublasLtDestroy(g->lt);
    if (g->stream) cudaStreamDestroy(g->stream);
    *g = (gpu){.device = -1};
}

corun_status gpu_alloc(const gpu *g, void **dev, size_t bytes, const char *what)
{
    *dev = NULL;
    TRY(gpu_use(g));
    cudaError_t e = cudaMalloc(dev, bytes ? bytes : 1);
    if (e == cudaErrorMemoryAllocation) {
        size_t left = 0, all = 0;
        cudaGetLastError(); /* it is told here, and nowhere else */
        cudaMemGetInfo(&left, &all);
        FAIL(CORUN_ENOMEM, "%s: %.2f GiB of device memory are needed, %.2f of %.2f are free", what,
             (double)bytes / (1 << 30), (double)left / (1 << 30), (double)all / (1 << 30));
    }
    CUDA(e, what);
    e = cudaMemsetAsync(*dev, 0, bytes, g->stream);
    if (e != cudaSuccess) {
        gpu_free(*dev);
        *dev = NULL;
    }
    return gpu_status((int)e, what);
}

void gpu_free(void *dev)
{
    if (dev) cudaFree(dev);
}

corun_status gpu_alloc_host(void **host, size_t bytes, const char *what)
{
    *host = NULL;
    CUDA(cudaHostAlloc(host, bytes ? bytes : 1, cudaHostAllocDefault), what);
    memset(*host, 0, bytes);
    return CORUN_OK;
}

void gpu_free_host(void *host)
{
    if (host) cudaFreeHost(host);
}

corun_status gpu_sync(const gpu *g, const char *what)
{
    return gpu_status((int)cudaStreamSynchronize(g->stream), what);
}

static corun_status copy(const gpu *g, void *to, const void *from, size_t bytes, const char *what)
{
    if (bytes == 0) return CORUN_OK;
    TRY(gpu_use(g));
    CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, g->stream), what);
    return gpu_sync(g, what);
}

corun_status gpu_put(const gpu *g, void *dev, const void *host, size_t bytes)
{
    return copy(g, dev, host, bytes, "copy to the device");
}

corun_status gpu_get(const gpu *g, const void *dev, void *host, size_t bytes)
{
    return copy(g, host, dev, bytes, "copy from the device");
}
