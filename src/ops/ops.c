/* ops.c - names of ops and levels, and the choice of an instruction set. Invariant: a set is
 * picked only if this build holds its kernels and this processor runs all of its instructions. */
#include "ops/ops.h"

#include <string.h>

const char *ops_op_name(ops_op op)
{
    static const char *const name[OPS_N_OP] = {
        [OPS_OP_EMBED] = "embed",
        [OPS_OP_NORM] = "norm",
        [OPS_OP_MATMUL] = "matmul",
        [OPS_OP_QKV_POST] = "qkv_post",
        [OPS_OP_ATTN_DECODE] = "attention (decode)",
        [OPS_OP_ATTN_PREFILL] = "attention (prefill)",
        [OPS_OP_SILU_MUL] = "silu_mul",
        [OPS_OP_LOGITS] = "logits",
        [OPS_OP_SAMPLE] = "sample",
    };
    return (unsigned)op < OPS_N_OP ? name[op] : "?";
}

const char *ops_level_name(ops_level l)
{
    static const char *const name[] = {"none", "run", "position", "batch", "phase"};
    return (unsigned)l < sizeof name / sizeof *name ? name[l] : "?";
}

void ops_products(const ops_dims *d, ops_product out[OPS_N_PRODUCT])
{
    const int64_t q = (int64_t)d->n_head * d->d_head, kv = (int64_t)d->n_kv * d->d_head;
    out[OPS_QKV] = (ops_product){"qkv", q + 2 * kv, d->n_embd};
    out[OPS_O] = (ops_product){"o", d->n_embd, q};
    out[OPS_GATE_UP] = (ops_product){"gate_up", 2 * (int64_t)d->n_ff, d->n_embd};
    out[OPS_DOWN] = (ops_product){"down", d->n_embd, d->n_ff};
    out[OPS_HEAD] = (ops_product){"head", d->n_vocab, d->n_embd};
}

#ifndef CORUN_CUDA
corun_status ops_open_cuda(ops **out, const ops_dims *d, const ops_open_opts *o)
{
    (void)d, (void)o;
    *out = NULL;
    FAIL(CORUN_EUNSUPPORTED, "this program was built without the CUDA backend");
}
#endif

corun_status ops_run_between(ops *o, const ops_between *b)
{
    bool done = false;
    if (o->between) TRY(o->between(o, b, &done));
    if (done) return CORUN_OK;
    TRY(o->matmul(o, OPS_ROWS_TOK, b->o, b->attn, OPS_BF16, b->y));
    TRY(o->norm(o, OPS_ROWS_TOK, b->h, b->y, b->ffn_norm, b->eps, b->x));
    TRY(o->matmul(o, OPS_ROWS_TOK, b->gate_up, b->x, OPS_BF16, b->pair));
    TRY(o->silu_mul(o, b->pair, b->act));
    TRY(o->matmul(o, OPS_ROWS_TOK, b->down, b->act, OPS_BF16, b->y));
    if (!b->next_qkv) return CORUN_OK;
    TRY(o->norm(o, OPS_ROWS_TOK, b->h, b->y, b->next_norm, b->eps, b->x));
    return o->matmul(o, OPS_ROWS_TOK, b->next_qkv, b->x, OPS_BF16, b->qkv);
}

const char *ops_set_name(ops_set s)
{
    static const char *const name[OPS_N_SET] = {"standard", "fixed", "canonical"};
    return (unsigned)s < OPS_N_SET ? name[s] : "?";
}

/* Best first. */
static const char *const isa_name[] = {
#ifdef CPU_HAVE_avx512
    "avx512",
#endif
#ifdef CPU_HAVE_avx2
    "avx2",
#endif
#ifdef CPU_HAVE_neon
    "neon",
#endif
    "generic",
};

static bool isa_runs(const char *isa)
{
#if defined(__x86_64__)
    if (strcmp(isa, "avx512") == 0)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("fma");
    if (strcmp(isa, "avx2") == 0)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
    (void)isa;
    return true;
}

const char *ops_isa_pick(const char *isa)
{
    bool any = !isa || strcmp(isa, "auto") == 0;
    for (size_t i = 0; i < sizeof isa_name / sizeof *isa_name; i++)
        if ((any || strcmp(isa, isa_name[i]) == 0) && isa_runs(isa_name[i])) return isa_name[i];
    return NULL;
}
