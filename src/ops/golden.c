/* golden.c - the golden digest of the CPU class: a few thousand outputs of every op, from inputs
 * that a counter makes, against the digests that docs/numerics.md stands for.
 *
 * The inputs hold what a wrong build gets wrong: cancelling sums, subnormal products, more than a
 * chunk of keys, every path of the row counts. Invariant: the outputs depend on nothing but the
 * arithmetic, so one constant an op holds for every instruction set, compiler and thread count. */
#include <string.h>

#include "base/digest.h"
#include "base/fault.h"
#include "base/mem.h"
#include "ops/rows.h"

enum {
    N_EMBD = 200,
    N_HEAD = 6,
    N_KV = 2,
    D_HEAD = 32,
    N_FF = 104,
    N_VOCAB = 330,
    N_CTX = 640,
    N_TOK = 60,
    N_QKV = (N_HEAD + 2 * N_KV) * D_HEAD,
    PAGE = 64,
    N_PAGE = N_CTX / PAGE
};

static const digest want[OPS_N_OP] = {
    [OPS_OP_EMBED] = {0xc4dba9fa59e49823, 0xa040e03953864c86},
    [OPS_OP_NORM] = {0x0f6a6a12b28cba32, 0x91c5de91d1ebdae0},
    [OPS_OP_MATMUL] = {0x248fff3ca8c7c543, 0x9da829f4ee0b5ee7},
    [OPS_OP_QKV_POST] = {0x8a623ffbb485a57b, 0x12bf9a3cab3071ea},
    [OPS_OP_ATTN_DECODE] = {0xc42460d409d0f942, 0xd0c88e2fb5c8c407},
    [OPS_OP_ATTN_PREFILL] = {0x7225052e66e9078e, 0x377136d8607e47fd},
    [OPS_OP_SILU_MUL] = {0xc9440d09c547f344, 0x202b1c317a169aad},
    [OPS_OP_LOGITS] = {0x59e37d1261c62f5c, 0x35071eafbcb53571},
    [OPS_OP_SAMPLE] = {0x74dc313855e6423c, 0xaa703eed4d1edd63},
};

typedef struct golden {
    ops *o;
    ops_weight *table, *proj, *tiny, *gain, *head_gain; /* proj has a bias */
    ops_rope *rope;
    void *a, *b, *c; /* activations: room for N_TOK rows of the widest */
    uint16_t *host;
    float *row;
    digest_stream *out[OPS_N_OP];
} golden;

static uint32_t counter(uint32_t seed, uint32_t i)
{
    uint32_t x = seed * 0x9e3779b9u + i;
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
}

#define TINY 1000 /* a `low`: exponents near -66, whose products are about subnormal */

/* bf16 values of both signs with exponents from -low to 0. */
static uint16_t value(uint32_t seed, int64_t i, uint32_t low)
{
    uint32_t x = counter(seed, (uint32_t)i), e = 127u - (x >> 20) % (low + 1);
    if (low == TINY) e = 64u - (x >> 20) % 6;
    return (uint16_t)((x & 0x8000u) | e << 7 | (x & 0x7fu));
}

typedef struct matrix {
    uint32_t seed, low;
    int64_t n_in;
} matrix;

static corun_status read_rows(void *arg, int64_t row, int64_t n, void *out)
{
    const matrix *m = arg;
    for (int64_t i = 0; i < n * m->n_in; i++)
        ((uint16_t *)out)[i] = value(m->seed, row * m->n_in + i, m->low);
    return CORUN_OK;
}

static corun_status weight(golden *g, uint32_t seed, int64_t n_out, int64_t n_in, uint32_t low,
                           const uint16_t *bias, ops_weight **w)
{
    matrix m = {seed, low, n_in};
    ops_weight_spec s = {.name = "golden weights",
                         .dtype = OPS_BF16,
                         .n_out = n_out,
                         .n_in = n_in,
                         .read = read_rows,
                         .arg = &m,
                         .bias = bias};
    return g->o->weight_open(g->o, &s, w);
}

static corun_status put(golden *g, void *dev, uint32_t seed, int64_t n, uint32_t low)
{
    for (int64_t i = 0; i < n; i++) g->host[i] = value(seed, i, low);
    return g->o->dev_put(g->o, dev, 0, g->host, (size_t)n * 2);
}

static corun_status take(golden *g, ops_op op, const void *dev, size_t bytes)
{
    TRY(g->o->dev_get(g->o, dev, 0, g->host, bytes));
    digest_add(g->out[op], g->host, bytes);
    return CORUN_OK;
}

/* n tokens of one sequence from pos on, pages from the last to the first. */
static corun_status put_step(golden *g, int32_t pos, int32_t n, step_want want_rows)
{
    int32_t page[N_PAGE], tok[N_TOK];
    for (int32_t i = 0; i < N_PAGE; i++) page[i] = N_PAGE - 1 - i;
    for (int32_t i = 0; i < n; i++) tok[i] = (int32_t)(counter(77, (uint32_t)i) % N_VOCAB);
    step_row r = {.slot = STEP_NO_SLOT,
                  .pos = pos,
                  .q_len = n,
                  .page = page,
                  .n_page = N_PAGE,
                  .want = want_rows};
    step s = {.id = 1, .kind = STEP_PREFILL, .n_row = 1, .row = &r, .n_tok = n, .tok = tok};
    return g->o->step_put(g->o, &s);
}

static corun_status run_rows(golden *g)
{
    ops *o = g->o;
    TRY(put_step(g, 0, N_TOK, STEP_WANT_LAST));
    TRY(o->embed(o, g->table, g->a));
    TRY(take(g, OPS_OP_EMBED, g->a, N_TOK * N_EMBD * 2));
    TRY(put(g, g->b, 11, N_TOK * N_EMBD, 9));
    TRY(o->norm(o, OPS_ROWS_TOK, g->a, NULL, g->gain, 1e-5f, g->c));
    TRY(take(g, OPS_OP_NORM, g->c, N_TOK * N_EMBD * 2));
    TRY(o->norm(o, OPS_ROWS_TOK, g->a, g->b, g->gain, 1e-6f, g->c));
    TRY(take(g, OPS_OP_NORM, g->a, N_TOK * N_EMBD * 2));
    TRY(take(g, OPS_OP_NORM, g->c, N_TOK * N_EMBD * 2));
    TRY(put(g, g->a, 12, N_TOK * 2 * N_FF, 5));
    TRY(o->silu_mul(o, g->a, g->b));
    TRY(take(g, OPS_OP_SILU_MUL, g->b, N_TOK * N_FF * 2));
    static const int32_t n_row[] = {1, 2, 3, 5, 17, N_TOK};
    TRY(put(g, g->a, 13, N_TOK * N_EMBD, 30));
    for (size_t i = 0; i < sizeof n_row / sizeof *n_row; i++) {
        TRY(put_step(g, 0, n_row[i], STEP_WANT_NONE));
        TRY(o->matmul(o, OPS_ROWS_TOK, g->proj, g->a, OPS_F32, g->b));
        TRY(take(g, OPS_OP_MATMUL, g->b, (size_t)n_row[i] * N_FF * 4));
        TRY(o->matmul(o, OPS_ROWS_TOK, g->proj, g->a, OPS_BF16, g->b));
        TRY(take(g, OPS_OP_MATMUL, g->b, (size_t)n_row[i] * N_FF * 2));
    }
    /* Sums that are subnormal: flushing them shows. */
    TRY(put(g, g->a, 14, 2 * N_EMBD, TINY));
    TRY(put_step(g, 0, 2, STEP_WANT_NONE));
    TRY(o->matmul(o, OPS_ROWS_TOK, g->tiny, g->a, OPS_F32, g->b));
    return take(g, OPS_OP_MATMUL, g->b, 2 * N_FF * 4);
}

static corun_status run_attention(golden *g)
{
    ops *o = g->o;
    for (int32_t pos = 0; pos < 600; pos += N_TOK) {
        TRY(put_step(g, pos, N_TOK, STEP_WANT_NONE));
        TRY(put(g, g->a, 20 + (uint32_t)pos, N_TOK * N_QKV, 3));
        TRY(o->qkv_post(o, 0, g->a, g->head_gain, g->head_gain, 1e-6f, g->rope, g->b));
        if (pos != 120 && pos != 480) continue;
        TRY(take(g, OPS_OP_QKV_POST, g->b, N_TOK * N_HEAD * D_HEAD * 2));
        TRY(o->attention(o, 0, g->b, 0.25f, g->c));
        TRY(take(g, OPS_OP_ATTN_PREFILL, g->c, N_TOK * N_HEAD * D_HEAD * 2));
    }
    static const int32_t at[] = {0, 1, 127, 128, 300, 511, 512, 599};
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        TRY(put_step(g, at[i], 1, STEP_WANT_NONE));
        TRY(o->attention(o, 0, g->b, 0.25f, g->c));
        TRY(take(g, OPS_OP_ATTN_DECODE, g->c, N_HEAD * D_HEAD * 2));
    }
    return CORUN_OK;
}

static void take_draw(golden *g, const ops_draw *d)
{
    digest_stream *s = g->out[OPS_OP_SAMPLE];
    digest_add(s, &d->token, sizeof d->token);
    digest_add(s, &d->logprob, sizeof d->logprob);
    digest_add(s, &d->n_top, sizeof d->n_top);
    digest_add(s, d->top_id, (size_t)d->n_top * sizeof *d->top_id);
    digest_add(s, d->top_logprob, (size_t)d->n_top * sizeof *d->top_logprob);
}

static corun_status run_logits(golden *g)
{
    enum { ROWS = 6 };
    ops *o = g->o;
    TRY(put_step(g, 0, ROWS, STEP_WANT_ALL));
    TRY(put(g, g->a, 41, ROWS * N_EMBD, 6));
    TRY(o->logits(o, g->table, g->a, 0, ROWS));
    for (int32_t i = 0; i < ROWS; i++) {
        TRY(o->logits_get(o, i, g->row));
        digest_add(g->out[OPS_OP_LOGITS], g->row, N_VOCAB * sizeof *g->row);
    }
    const int32_t drawn[] = {1, 2, 2, 9};
    for (int32_t i = 0; i < ROWS; i++) {
        ops_slot s = {.seed = 0x1234567u + (uint64_t)i,
                      .temperature = i == 0 ? 0.0f : 0.7f,
                      .top_p = i == 2 ? 0.6f : 1.0f,
                      .min_p = i == 3 ? 0.05f : 0.0f,
                      .repetition = i == 4 ? 1.3f : 1.0f,
                      .presence = i == 5 ? 0.5f : 0.0f,
                      .frequency = i == 5 ? 0.25f : 0.0f,
                      .top_k = i == 1 ? 20 : 0,
                      .n_top = 5,
                      .n_draw_max = N_VOCAB,
                      .output = drawn,
                      .n_output = 4};
        TRY(o->slot_put(o, i, &s));
    }
    const int32_t row[ROWS] = {0, 1, 2, 3, 4, 5}, pos[ROWS] = {6, 7, 600, 9, 10, 11};
    TRY(o->sample(o, ROWS, row, row, pos));
    ops_draw d;
    for (int32_t i = 0; i < ROWS; i++) {
        TRY(o->draw_get(o, 0, i, &d));
        take_draw(g, &d);
    }
    TRY(o->score(o, ROWS, (const int32_t[]){0, 1, 100, 128, 200, N_VOCAB - 1}, 5));
    for (int32_t i = 0; i < ROWS; i++) {
        TRY(o->score_get(o, i, &d));
        take_draw(g, &d);
    }
    return CORUN_OK;
}

static corun_status open_golden(golden *g, pool *threads, const char *isa)
{
    const ops_dims d = {.n_layer = 1,
                        .n_embd = N_EMBD,
                        .n_head = N_HEAD,
                        .n_kv = N_KV,
                        .d_head = D_HEAD,
                        .n_ff = N_FF,
                        .n_vocab = N_VOCAB};
    const ops_open_opts oo = {.threads = threads, .isa = isa};
    const ops_conf c = {.n_ctx = N_CTX,
                        .max_tok = N_TOK,
                        .max_row = 1,
                        .max_want = N_TOK,
                        .max_lane = 8,
                        .n_slot = 8,
                        .page_tokens = PAGE,
                        .n_page = N_PAGE,
                        .logit_rows = 8,
                        .n_top = 5};
    for (int i = 0; i < OPS_N_OP; i++)
        if (!(g->out[i] = digest_open())) return CORUN_ENOMEM;
    TRY(ops_open_cpu(&g->o, &d, &oo));
    ops *o = g->o;
    TRY(o->configure(o, &c));
    uint16_t bias[N_FF];
    float inv[D_HEAD / 2];
    for (int i = 0; i < N_FF; i++) bias[i] = value(5, i, 3);
    for (int i = 0; i < D_HEAD / 2; i++) inv[i] = 1.0f / (float)(1 << i) * 1.25f;
    TRY(weight(g, 1, N_VOCAB, N_EMBD, 8, NULL, &g->table));
    TRY(weight(g, 2, N_FF, N_EMBD, 30, bias, &g->proj));
    TRY(weight(g, 6, N_FF, N_EMBD, TINY, NULL, &g->tiny));
    TRY(weight(g, 3, 1, N_EMBD, 2, NULL, &g->gain));
    TRY(weight(g, 4, 1, D_HEAD, 2, NULL, &g->head_gain));
    TRY(o->rope_open(o, inv, 1.1, &g->rope));
    if (!MEM_NEW(g->host, N_TOK * N_QKV * 2) || !MEM_NEW(g->row, N_VOCAB)) return CORUN_ENOMEM;
    TRY(o->dev_alloc(o, N_TOK * N_QKV * 4, &g->a));
    TRY(o->dev_alloc(o, N_TOK * N_QKV * 4, &g->b));
    return o->dev_alloc(o, N_TOK * N_QKV * 4, &g->c);
}

static void close_golden(golden *g)
{
    ops *o = g->o;
    for (int i = 0; i < OPS_N_OP; i++)
        if (g->out[i]) digest_close(g->out[i]);
    mem_free(g->host);
    mem_free(g->row);
    if (!o) return;
    if (g->a) o->dev_free(o, g->a);
    if (g->b) o->dev_free(o, g->b);
    if (g->c) o->dev_free(o, g->c);
    o->weight_close(o, g->table);
    o->weight_close(o, g->proj);
    o->weight_close(o, g->tiny);
    o->weight_close(o, g->gain);
    o->weight_close(o, g->head_gain);
    if (g->rope) o->rope_close(o, g->rope);
    o->close(o);
}

/* Compares op by op and gives the digest of all. */
static corun_status judge(const golden *g, char text[33])
{
    digest all[OPS_N_OP];
    for (int i = 0; i < OPS_N_OP; i++) {
        all[i] = digest_value(g->out[i]);
        if (all[i].hi == want[i].hi && all[i].lo == want[i].lo) continue;
        char a[33], b[33];
        digest_hex(all[i], a);
        digest_hex(want[i], b);
        FAIL(CORUN_EMISMATCH,
             "%s (%s): this build gives other bits than the CPU class is defined to have (golden "
             "digest %s, not %s)",
             ops_op_name((ops_op)i), g->o->isa, a, b);
    }
    digest_hex(digest_of(all, sizeof all), text);
    return CORUN_OK;
}

corun_status ops_golden_check(pool *threads, const char *isa, char text[33])
{
    golden g = {0};
    corun_status st;
    fault_pause(true);
    TRY_OR_DONE(open_golden(&g, threads, isa));
    TRY_OR_DONE(run_rows(&g));
    TRY_OR_DONE(run_attention(&g));
    TRY_OR_DONE(run_logits(&g));
    st = judge(&g, text);
done:
    fault_pause(false);
    close_golden(&g);
    return st;
}
