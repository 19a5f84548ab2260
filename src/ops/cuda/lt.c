/* lt.c - opens cuBLASLt when a device is opened, so that a program with the CUDA backend in it
 * starts and runs its CPU engine where the library does not exist.
 *
 * The functions of cublasLt.h that the backend calls are defined here and pass each call on. The
 * one variable is the table of the library's entry points: a library is loaded once a process.
 * Invariant: the table is complete before the first call; without it calls return NOT_INITIALIZED.
 */
#include <cublasLt.h>
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "ops/cuda/gpu.h"

#define ENTRIES(X)                                                                                 \
    X(Create)                                                                                      \
    X(Destroy)                                                                                     \
    X(GetVersion)                                                                                  \
    X(GetStatusString)                                                                             \
    X(GetStatusName)                                                                               \
    X(Matmul)                                                                                      \
    X(MatmulAlgoCapGetAttribute)                                                                   \
    X(MatmulAlgoCheck)                                                                             \
    X(MatmulAlgoConfigGetAttribute)                                                                \
    X(MatmulAlgoConfigSetAttribute)                                                                \
    X(MatmulAlgoGetHeuristic)                                                                      \
    X(MatmulAlgoGetIds)                                                                            \
    X(MatmulAlgoInit)                                                                              \
    X(MatmulDescCreate)                                                                            \
    X(MatmulDescDestroy)                                                                           \
    X(MatmulDescInit_internal)                                                                     \
    X(MatmulDescSetAttribute)                                                                      \
    X(MatmulPreferenceCreate)                                                                      \
    X(MatmulPreferenceDestroy)                                                                     \
    X(MatmulPreferenceInit_internal)                                                               \
    X(MatmulPreferenceSetAttribute)                                                                \
    X(MatrixLayoutCreate)                                                                          \
    X(MatrixLayoutDestroy)                                                                         \
    X(MatrixLayoutInit_internal)                                                                   \
    X(MatrixLayoutSetAttribute)

#define POINTER(name) __typeof__(cublasLt##name) *name;
static struct {
    ENTRIES(POINTER)
    bool ready;
    char why[256];
} lt;

static void load(void)
{
    static const char *const file[] = {"libcublasLt.so.13",
                                       "/usr/local/cuda/lib64/libcublasLt.so.13"};
    void *lib = NULL;
    for (size_t i = 0; i < sizeof file / sizeof *file && !lib; i++) {
        lib = dlopen(file[i], RTLD_NOW | RTLD_LOCAL);
        const char *text = lib ? NULL : dlerror();
        if (i == 0 && text) strncpy(lt.why, text, sizeof lt.why - 1);
    }
    if (!lib) return;
    const char *missing = NULL;
#define TAKE(name)                                                                                 \
    do {                                                                                           \
        void *p = dlsym(lib, "cublasLt" #name);                                                    \
        memcpy(&lt.name, &p, sizeof p);                                                            \
        if (!p) missing = "cublasLt" #name;                                                        \
    } while (0);
    ENTRIES(TAKE)
    lt.ready = !missing;
    if (missing) strncpy(lt.why, missing, sizeof lt.why - 1);
}

corun_status gpu_lt_load(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
    if (!lt.ready) FAIL(CORUN_EDEVICE, "cuBLASLt of CUDA 13 cannot be loaded: %s", lt.why);
    return CORUN_OK;
}

#define CALL(name, ...)                                                                            \
    {                                                                                              \
        return lt.ready ? lt.name(__VA_ARGS__) : CUBLAS_STATUS_NOT_INITIALIZED;                    \
    }

typedef cublasLtMatmulDesc_t desc;
typedef cublasLtMatrixLayout_t layout;
typedef cublasLtMatmulPreference_t preference;

cublasStatus_t cublasLtCreate(cublasLtHandle_t *h) CALL(Create, h)

    cublasStatus_t cublasLtDestroy(cublasLtHandle_t h) CALL(Destroy, h)

        size_t cublasLtGetVersion(void)
{
    return lt.ready ? lt.GetVersion() : 0;
}

const char *cublasLtGetStatusString(cublasStatus_t s)
{
    return lt.ready ? lt.GetStatusString(s) : "cuBLASLt is not loaded";
}

const char *cublasLtGetStatusName(cublasStatus_t s)
{
    return lt.ready ? lt.GetStatusName(s) : "CUBLAS_STATUS_NOT_INITIALIZED";
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t h, desc d, const void *alpha, const void *a,
                              layout ad, const void *b, layout bd, const void *beta, const void *c,
                              layout cd, void *out, layout od, const cublasLtMatmulAlgo_t *algo,
                              void *work, size_t bytes, cudaStream_t stream)
    CALL(Matmul, h, d, alpha, a, ad, b, bd, beta, c, cd, out, od, algo, work, bytes, stream)

        cublasStatus_t cublasLtMatmulAlgoCapGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                                         cublasLtMatmulAlgoCapAttributes_t attr,
                                                         void *buf, size_t size, size_t *written)
            CALL(MatmulAlgoCapGetAttribute, algo, attr, buf, size, written)

                cublasStatus_t
    cublasLtMatmulAlgoCheck(cublasLtHandle_t h, desc d, layout a, layout b, layout c, layout out,
                            const cublasLtMatmulAlgo_t *algo,
                            cublasLtMatmulHeuristicResult_t *result)
        CALL(MatmulAlgoCheck, h, d, a, b, c, out, algo, result)

            cublasStatus_t
    cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                         cublasLtMatmulAlgoConfigAttributes_t attr, void *buf,
                                         size_t size, size_t *written)
        CALL(MatmulAlgoConfigGetAttribute, algo, attr, buf, size, written)

            cublasStatus_t
    cublasLtMatmulAlgoConfigSetAttribute(cublasLtMatmulAlgo_t *algo,
                                         cublasLtMatmulAlgoConfigAttributes_t attr, const void *buf,
                                         size_t size)
        CALL(MatmulAlgoConfigSetAttribute, algo, attr, buf, size)

            cublasStatus_t
    cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t h, desc d, layout a, layout b, layout c,
                                   layout out, preference p, int n,
                                   cublasLtMatmulHeuristicResult_t result[], int *got)
        CALL(MatmulAlgoGetHeuristic, h, d, a, b, c, out, p, n, result, got)

            cublasStatus_t
    cublasLtMatmulAlgoGetIds(cublasLtHandle_t h, cublasComputeType_t compute, cudaDataType_t scale,
                             cudaDataType_t a, cudaDataType_t b, cudaDataType_t c,
                             cudaDataType_t out, int n, int ids[], int *got)
        CALL(MatmulAlgoGetIds, h, compute, scale, a, b, c, out, n, ids, got)

            cublasStatus_t
    cublasLtMatmulAlgoInit(cublasLtHandle_t h, cublasComputeType_t compute, cudaDataType_t scale,
                           cudaDataType_t a, cudaDataType_t b, cudaDataType_t c, cudaDataType_t out,
                           int id, cublasLtMatmulAlgo_t *algo)
        CALL(MatmulAlgoInit, h, compute, scale, a, b, c, out, id, algo)

            cublasStatus_t
    cublasLtMatmulDescCreate(desc *d, cublasComputeType_t compute, cudaDataType_t scale)
        CALL(MatmulDescCreate, d, compute, scale)

            cublasStatus_t cublasLtMatmulDescDestroy(desc d) CALL(MatmulDescDestroy, d)

                cublasStatus_t
    cublasLtMatmulDescSetAttribute(desc d, cublasLtMatmulDescAttributes_t attr, const void *buf,
                                   size_t size) CALL(MatmulDescSetAttribute, d, attr, buf, size)

        cublasStatus_t cublasLtMatmulPreferenceCreate(preference *p) CALL(MatmulPreferenceCreate, p)

            cublasStatus_t cublasLtMatmulPreferenceDestroy(preference p)
                CALL(MatmulPreferenceDestroy, p)

                    cublasStatus_t
    cublasLtMatmulPreferenceSetAttribute(preference p, cublasLtMatmulPreferenceAttributes_t attr,
                                         const void *buf, size_t size)
        CALL(MatmulPreferenceSetAttribute, p, attr, buf, size)

            cublasStatus_t
    cublasLtMatrixLayoutCreate(layout *l, cudaDataType type, uint64_t rows, uint64_t cols,
                               int64_t ld) CALL(MatrixLayoutCreate, l, type, rows, cols, ld)

        cublasStatus_t cublasLtMatrixLayoutDestroy(layout l) CALL(MatrixLayoutDestroy, l)

            cublasStatus_t
    cublasLtMatrixLayoutSetAttribute(layout l, cublasLtMatrixLayoutAttribute_t attr,
                                     const void *buf, size_t size)
        CALL(MatrixLayoutSetAttribute, l, attr, buf, size)

            cublasStatus_t
    cublasLtMatmulDescInit_internal(desc d, size_t size, cublasComputeType_t compute,
                                    cudaDataType_t scale)
        CALL(MatmulDescInit_internal, d, size, compute, scale)

            cublasStatus_t cublasLtMatmulPreferenceInit_internal(preference p, size_t size)
                CALL(MatmulPreferenceInit_internal, p, size)

                    cublasStatus_t
    cublasLtMatrixLayoutInit_internal(layout l, size_t size, cudaDataType type, uint64_t rows,
                                      uint64_t cols, int64_t ld)
        CALL(MatrixLayoutInit_internal, l, size, type, rows, cols, ld)
