/* algo.c - owns the calls to cuBLASLt that describe, check and run a product.
 * Invariant: alpha 1, beta 0, fp32 accumulation; nothing is allocated. */
#include "ops/cuda/algo.h"

#include <string.h>

corun_status algo_status(cublasStatus_t code, const char *what)
{
    if (code == CUBLAS_STATUS_SUCCESS) return CORUN_OK;
    FAIL(CORUN_EDEVICE, "%s: cuBLASLt: %s", what, cublasLtGetStatusString(code));
}

static cudaDataType type_of(ops_dtype t) { return t == OPS_F32 ? CUDA_R_32F : CUDA_R_16BF; }

corun_status algo_problem_init(algo_problem *p, const plan_shape *s, int32_t rows)
{
    cublasOperation_t transposed = CUBLAS_OP_T;
    uint64_t n = (uint64_t)s->n_out, k = (uint64_t)s->n_in, m = (uint64_t)rows;
    memset(p, 0, sizeof *p);
    p->shape = *s;
    p->rows = rows;
    TRY(algo_status(cublasLtMatmulDescInit(&p->op, CUBLAS_COMPUTE_32F, CUDA_R_32F), "product"));
    TRY(algo_status(cublasLtMatmulDescSetAttribute(&p->op, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                                   sizeof transposed),
                    "product"));
    TRY(algo_status(cublasLtMatrixLayoutInit(&p->w, CUDA_R_16BF, k, n, (int64_t)k), "weights"));
    TRY(algo_status(cublasLtMatrixLayoutInit(&p->x, CUDA_R_16BF, k, m, (int64_t)k), "input"));
    TRY(algo_status(cublasLtMatrixLayoutInit(&p->y, type_of(s->out), n, m, (int64_t)n), "output"));
    if (!s->bias) return CORUN_OK;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    TRY(algo_status(cublasLtMatmulDescSetAttribute(&p->op, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                                   sizeof epilogue),
                    "bias"));
    return algo_problem_bias(p, (const void *)(uintptr_t)256); /* only its alignment is read */
}

corun_status algo_problem_bias(algo_problem *p, const void *bias)
{
    return algo_status(cublasLtMatmulDescSetAttribute(&p->op, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                                      &bias, sizeof bias),
                       "bias");
}

static void set(cublasLtMatmulAlgo_t *a, cublasLtMatmulAlgoConfigAttributes_t what, int32_t value)
{
    uint16_t narrow = (uint16_t)value;
    bool is_narrow = what == CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID;
    /* a value that the algorithm does not have is refused by algo_accepts */
    (void)cublasLtMatmulAlgoConfigSetAttribute(a, what, is_narrow ? (void *)&narrow : &value,
                                               is_narrow ? sizeof narrow : sizeof value);
}

static int32_t get(const cublasLtMatmulAlgo_t *a, cublasLtMatmulAlgoConfigAttributes_t what)
{
    int32_t value = 0;
    uint16_t narrow = 0;
    size_t written;
    bool is_narrow = what == CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID;
    (void)cublasLtMatmulAlgoConfigGetAttribute(a, what, is_narrow ? (void *)&narrow : &value,
                                               is_narrow ? sizeof narrow : sizeof value, &written);
    return is_narrow ? narrow : value;
}

void algo_configure(const cublasLtMatmulAlgo_t *base, const plan_config *c,
                    cublasLtMatmulAlgo_t *algo)
{
    *algo = *base;
    set(algo, CUBLASLT_ALGO_CONFIG_TILE_ID, c->tile);
    set(algo, CUBLASLT_ALGO_CONFIG_STAGES_ID, c->stages);
    set(algo, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, c->cluster);
    set(algo, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, c->custom);
    set(algo, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, c->swizzle);
    set(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, c->split);
    set(algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, c->reduction);
}

void algo_config_of(const cublasLtMatmulAlgo_t *algo, plan_config *c)
{
    *c = (plan_config){.id = get(algo, CUBLASLT_ALGO_CONFIG_ID),
                       .tile = get(algo, CUBLASLT_ALGO_CONFIG_TILE_ID),
                       .stages = get(algo, CUBLASLT_ALGO_CONFIG_STAGES_ID),
                       .cluster = get(algo, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID),
                       .custom = get(algo, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION),
                       .swizzle = get(algo, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING),
                       .split = get(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM),
                       .reduction = get(algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME)};
    if (c->split < 1) c->split = 1;
    if (c->split == 1) c->reduction = 0;
}

bool algo_base(cublasLtHandle_t lt, ops_dtype out, int32_t id, cublasLtMatmulAlgo_t *base)
{
    cudaDataType y = type_of(out);
    return cublasLtMatmulAlgoInit(lt, CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_16BF, CUDA_R_16BF, y,
                                  y, id, base) == CUBLAS_STATUS_SUCCESS;
}

bool algo_accepts(cublasLtHandle_t lt, algo_problem *p, const cublasLtMatmulAlgo_t *algo,
                  size_t room, size_t *need)
{
    cublasLtMatmulHeuristicResult_t r = {0};
    if (cublasLtMatmulAlgoCheck(lt, &p->op, &p->w, &p->x, &p->y, &p->y, algo, &r) !=
        CUBLAS_STATUS_SUCCESS)
        return false;
    *need = r.workspaceSize <= ALGO_COUNTER ? 0 : r.workspaceSize;
    return *need <= room;
}

static int list_of(const cublasLtMatmulAlgo_t *base, cublasLtMatmulAlgoCapAttributes_t cap,
                   uint32_t *out)
{
    size_t bytes = 0;
    out[0] = 0; /* an id without such a choice has the one value "undefined" */
    if (cublasLtMatmulAlgoCapGetAttribute(base, cap, NULL, 0, &bytes) != CUBLAS_STATUS_SUCCESS ||
        bytes == 0 || bytes > ALGO_MAX_CHOICE * sizeof *out)
        return 1;
    if (cublasLtMatmulAlgoCapGetAttribute(base, cap, out, bytes, &bytes) != CUBLAS_STATUS_SUCCESS)
        return 1;
    return (int)(bytes / sizeof *out);
}

bool algo_choices_of(cublasLtHandle_t lt, ops_dtype out, int32_t id, algo_choices *c)
{
    size_t written;
    int32_t custom = 0;
    uint32_t swizzle = 0;
    if (!algo_base(lt, out, id, &c->base)) return false;
    c->n_tile = list_of(&c->base, CUBLASLT_ALGO_CAP_TILE_IDS, c->tile);
    c->n_stages = list_of(&c->base, CUBLASLT_ALGO_CAP_STAGES_IDS, c->stages);
    (void)cublasLtMatmulAlgoCapGetAttribute(&c->base, CUBLASLT_ALGO_CAP_CUSTOM_OPTION_MAX, &custom,
                                            sizeof custom, &written);
    (void)cublasLtMatmulAlgoCapGetAttribute(&c->base, CUBLASLT_ALGO_CAP_CTA_SWIZZLING_SUPPORT,
                                            &swizzle, sizeof swizzle, &written);
    c->custom = custom > 0 ? custom : 0;
    c->swizzle = (int)swizzle;
    return true;
}

int algo_picks(cublasLtHandle_t lt, algo_problem *p, size_t room,
               cublasLtMatmulHeuristicResult_t *out, int max)
{
    cublasLtMatmulPreferenceOpaque_t preference;
    uint32_t schemes = room ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE : 0, align = 16;
    static const cublasLtMatmulPreferenceAttributes_t aligned[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    int n = 0, kept = 0;
    bool ok = cublasLtMatmulPreferenceInit(&preference) == CUBLAS_STATUS_SUCCESS;
    for (size_t i = 0; i < sizeof aligned / sizeof *aligned; i++)
        ok = ok && cublasLtMatmulPreferenceSetAttribute(&preference, aligned[i], &align,
                                                        sizeof align) == CUBLAS_STATUS_SUCCESS;
    ok = ok && cublasLtMatmulPreferenceSetAttribute(
                   &preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes,
                   sizeof schemes) == CUBLAS_STATUS_SUCCESS;
    ok = ok &&
         cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                              &room, sizeof room) == CUBLAS_STATUS_SUCCESS;
    if (!ok || cublasLtMatmulAlgoGetHeuristic(lt, &p->op, &p->w, &p->x, &p->y, &p->y, &preference,
                                              max, out, &n) != CUBLAS_STATUS_SUCCESS)
        return 0;
    for (int i = 0; i < n; i++)
        if (out[i].state == CUBLAS_STATUS_SUCCESS && out[i].workspaceSize <= room)
            out[kept++] = out[i];
    return kept;
}

corun_status algo_run(cublasLtHandle_t lt, algo_problem *p, const cublasLtMatmulAlgo_t *algo,
                      const void *w, const void *x, void *out, void *workspace, size_t bytes,
                      void *stream)
{
    const float one = 1, zero = 0;
    cublasStatus_t code = cublasLtMatmul(lt, &p->op, &one, w, &p->w, x, &p->x, &zero, out, &p->y,
                                         out, &p->y, algo, workspace, bytes, (cudaStream_t)stream);
    if (code == CUBLAS_STATUS_SUCCESS) return CORUN_OK;
    FAIL(CORUN_EDEVICE, "product of %d rows, %lld x %lld: cuBLASLt: %s", p->rows,
         (long long)p->shape.n_out, (long long)p->shape.n_in, cublasLtGetStatusString(code));
}
