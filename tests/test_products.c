/* test_products.c - every matrix product of a forward pass against the definition of its class: the
 * whole of K, bit by bit, on a sample of rows and columns (docs/numerics.md: section 1 on a device,
 * section 7 on a CPU).
 *
 * The backend's table is wrapped: each matmul and logits call runs, then elements of its output are
 * compared with ref_mma or ref_cpu over the input that it had and the weight's own values, which
 * are made again on the host. An output that was asked for in bf16 is made once more in fp32. On a
 * device the models are those of tests/data/configs with two layers (layers do not differ), at
 * every decode width of the ladder to 256 and prompts of 1 to 8,192 tokens. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "cuda_there.h"
#include "model/model.h"
#include "ops/ref_cpu.h"
#include "ops/ref_mma.h"
#include "ops/rows.h"

enum { MAX_WEIGHT = 64, SAMPLES = 12, LAYERS = 2, PAGE = 64, LOGIT_ROWS = 2 };

#define OK(call)                                                                                   \
    do {                                                                                           \
        if ((call) != CORUN_OK) fail_msg("%s: %s", #call, err_text());                             \
    } while (0)

/* ---- the wrapped backend -------------------------------------------------------------------- */

typedef struct weight {
    const ops_weight *w;
    ops_fill fill;
    int64_t n_out, n_in;
    uint16_t *bias;
} weight;

typedef struct probe {
    ops real; /* the functions that are wrapped */
    weight weight[MAX_WEIGHT];
    int n_weight;
    void *fp32;   /* dev: an output in fp32 */
    int64_t most; /* elements that it has room for */
    bool cpu;
    uint16_t *x, *row;
    float *logits;
    uint64_t rng;
    int64_t n_product, n_checked, n_wrong, n_order;
    char first[200]; /* the first that is wrong */
} probe;

static probe p; /* the table's functions get no argument of ours */

static uint64_t draw(uint64_t below)
{
    uint64_t x = p.rng += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (x ^ x >> 31) % below;
}

static const weight *weight_of(const ops_weight *w)
{
    for (int i = 0; i < p.n_weight; i++)
        if (p.weight[i].w == w) return &p.weight[i];
    fail_msg("a product with a weight that was not opened");
    return NULL;
}

static corun_status open_weight(ops *o, const ops_weight_spec *s, ops_weight **w)
{
    corun_status st = p.real.weight_open(o, s, w);
    if (st != CORUN_OK || s->n_out == 1) return st;
    assert_true(p.n_weight < MAX_WEIGHT && s->read == ops_fill_read);
    weight *k = &p.weight[p.n_weight++];
    *k = (weight){.w = *w, .fill = *(const ops_fill *)s->arg, .n_out = s->n_out, .n_in = s->n_in};
    if (!s->bias) return st;
    k->bias = malloc((size_t)s->n_out * sizeof *k->bias);
    assert_non_null(k->bias);
    memcpy(k->bias, s->bias, (size_t)s->n_out * sizeof *k->bias);
    return st;
}

static float f32_of(uint16_t b)
{
    uint32_t u = (uint32_t)b << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* What the element must be: x of one row times row `col` of the weight. */
static float wanted(const weight *k, int64_t col)
{
    OK(ops_fill_read((void *)(uintptr_t)&k->fill, col, 1, p.row));
    float back = 0, acc; /* the same sum from its end */
    for (int64_t i = k->n_in - 1; i >= 0; i--) back += f32_of(p.x[i]) * f32_of(p.row[i]);
    uint16_t bias = k->bias ? k->bias[col] : 0;
    if (p.cpu) {
        ref_cpu_matmul(p.row, k->bias ? &bias : NULL, 1, k->n_in, p.x, 1, true, &acc);
    } else {
        acc = ref_mma_dot(p.x, p.row, k->n_in);
        if (k->bias) acc += f32_of(bias);
    }
    if (k->bias) back += f32_of(bias);
    p.n_order += memcmp(&back, &acc, sizeof acc) != 0;
    return acc;
}

static void compare(const weight *k, int64_t row, int64_t rows, int64_t col, const char *form,
                    uint32_t want, uint32_t got)
{
    p.n_checked++;
    if (want == got) return;
    if (!p.n_wrong++)
        snprintf(p.first, sizeof p.first,
                 "%lld x %lld, row %lld of %lld, column %lld, %s: %08x, not %08x",
                 (long long)k->n_out, (long long)k->n_in, (long long)row, (long long)rows,
                 (long long)col, form, got, want);
}

static uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static int64_t pick(int sample, int64_t n)
{
    return sample == 0 ? n - 1 : sample == 1 ? 0 : (int64_t)draw((uint64_t)n);
}

static corun_status wrapped_matmul(ops *o, ops_rows set, const ops_weight *w, const void *x,
                                   ops_dtype type, void *out)
{
    TRY(p.real.matmul(o, set, w, x, type, out));
    const weight *k = weight_of(w);
    int64_t rows = set == OPS_ROWS_WANT ? o->n_want : o->n_tok;
    size_t size = type == OPS_F32 ? 4 : 2;
    assert_true(rows * k->n_out <= p.most);
    if (type != OPS_F32) TRY(p.real.matmul(o, set, w, x, OPS_F32, p.fp32));
    p.n_product++;
    for (int i = 0; i < SAMPLES && rows; i++) {
        int64_t row = pick(i, rows), col = pick(i ^ (int)draw(2), k->n_out);
        size_t at = (size_t)(row * k->n_out + col);
        uint32_t got = 0, fp32 = 0;
        TRY(o->dev_get(o, x, (size_t)(row * k->n_in) * 2, p.x, (size_t)k->n_in * 2));
        TRY(o->dev_get(o, out, at * size, &got, size));
        float want = wanted(k, col);
        if (type == OPS_F32) {
            compare(k, row, rows, col, "fp32", bits_of(want), got);
            continue;
        }
        TRY(o->dev_get(o, p.fp32, at * 4, &fp32, 4));
        compare(k, row, rows, col, "bf16", ops_bf16_round(want), got);
        compare(k, row, rows, col, "again in fp32", bits_of(want), fp32);
    }
    return CORUN_OK;
}

static corun_status wrapped_logits(ops *o, const ops_weight *w, const void *x, int32_t first,
                                   int32_t n)
{
    TRY(p.real.logits(o, w, x, first, n));
    const weight *k = weight_of(w);
    p.n_product++;
    for (int i = 0; i < LOGIT_ROWS && n; i++) {
        int64_t row = pick(i, n);
        TRY(o->dev_get(o, x, (size_t)((first + row) * k->n_in) * 2, p.x, (size_t)k->n_in * 2));
        TRY(o->logits_get(o, (int32_t)row, p.logits));
        for (int c = 0; c < SAMPLES; c++) {
            int64_t col = pick(c, k->n_out);
            compare(k, row, n, col, "logits", bits_of(wanted(k, col)), bits_of(p.logits[col]));
        }
    }
    return CORUN_OK;
}

/* ---- a model and its steps ------------------------------------------------------------------ */

typedef struct rig {
    model *m;
    pool *threads;
    ops_conf conf;
    step_row *row;
    int32_t *tok, *page;
    uint64_t id;
} rig;

static void wrap(ops *o)
{
    p.real = *o;
    p.cpu = strcmp(o->name, "cpu") == 0;
    o->weight_open = open_weight;
    o->matmul = wrapped_matmul;
    o->logits = wrapped_logits;
    o->between = NULL; /* test_cuda_ops holds it against the products that run here */
    o->record = NULL;  /* each step runs call by call */
    o->record_end = NULL;
}

static void open_rig(rig *r, const char *folder, bool cuda, int32_t longest, int32_t width)
{
    config c;
    ops_dims d;
    ops *o;
    ops_open_opts oo = {.isa = "auto", .device = -1};
    memset(&p, 0, sizeof p);
    memset(r, 0, sizeof *r);
    p.rng = 7;
    OK(config_open(&c, folder));
    if (c.n_layer > LAYERS) c.n_layer = LAYERS;
    OK(pool_open(&r->threads, 2));
    oo.threads = r->threads;
    model_dims(&c, &d);
    OK(cuda ? ops_open_cuda(&o, &d, &oo) : ops_open_cpu(&o, &d, &oo));
    wrap(o);
    OK(model_load_on(&r->m, NULL, &c, o));
    int32_t pages = (longest + PAGE - 1) / PAGE;
    r->conf = (ops_conf){.n_ctx = pages * PAGE,
                         .max_tok = longest > 2 * width ? longest : 2 * width,
                         .max_row = width + 1,
                         .max_want = width + 1,
                         .max_lane = 1,
                         .n_slot = width,
                         .page_tokens = PAGE,
                         .n_page = pages + width,
                         .n_swap = 1,
                         .logit_rows = width + 1,
                         .n_top = 1};
    for (int i = 0; i < OPS_N_OP; i++) r->conf.set[i] = OPS_SET_CANONICAL;
    OK(r->m->configure(r->m, &r->conf));
    int64_t q = (int64_t)(c.n_head + 2 * c.n_kv) * c.d_head, wide = 2 * (int64_t)c.n_ff;
    wide = q > wide ? q : wide;
    p.most = wide * r->conf.max_tok;
    int64_t in = c.n_ff > c.n_embd ? c.n_ff : c.n_embd;
    in = (int64_t)c.n_head * c.d_head > in ? (int64_t)c.n_head * c.d_head : in;
    OK(o->dev_alloc(o, (size_t)p.most * 4, &p.fp32));
    p.x = malloc((size_t)in * 2);
    p.row = malloc((size_t)in * 2);
    p.logits = malloc((size_t)c.n_vocab * sizeof *p.logits);
    r->row = calloc((size_t)r->conf.max_row, sizeof *r->row);
    r->tok = calloc((size_t)r->conf.max_tok, sizeof *r->tok);
    r->page = calloc((size_t)(pages + width), sizeof *r->page);
    assert_true(p.x && p.row && p.logits && r->row && r->tok && r->page);
    for (int32_t i = 0; i < pages + width; i++) r->page[i] = i;
}

static void close_rig(rig *r)
{
    ops *o = r->m->o;
    o->dev_free(o, p.fp32);
    model_close(r->m);
    pool_close(r->threads);
    for (int i = 0; i < p.n_weight; i++) free(p.weight[i].bias);
    free(p.x), free(p.row), free(p.logits);
    free(r->row), free(r->tok), free(r->page);
}

/* A prompt of n tokens (0: none) beside `rows` decode rows, each over a page of its own. */
static void run(rig *r, int32_t n, int32_t rows)
{
    step s = {.id = ++r->id,
              .kind = !n     ? STEP_DECODE
                      : rows ? STEP_MIXED
                             : STEP_PREFILL,
              .row = r->row,
              .tok = r->tok,
              .n_tok = n + rows};
    int32_t pages = r->conf.n_page - r->conf.n_slot;
    for (int32_t i = 0; i < s.n_tok; i++)
        r->tok[i] = (int32_t)draw((uint64_t)r->m->o->dims.n_vocab);
    for (int32_t i = 0; i < rows; i++)
        r->row[s.n_row++] = (step_row){.seq = i,
                                       .slot = i,
                                       .pos = (int32_t)draw(PAGE),
                                       .q_len = 1,
                                       .tok_first = i,
                                       .page = r->page + pages + i,
                                       .n_page = 1,
                                       .want = STEP_WANT_LAST};
    if (n)
        r->row[s.n_row++] = (step_row){.seq = rows,
                                       .slot = STEP_NO_SLOT,
                                       .q_len = n,
                                       .tok_first = rows,
                                       .page = r->page,
                                       .n_page = pages,
                                       .want = STEP_WANT_LAST};
    OK(r->m->forward(r->m, &s));
    OK(r->m->logits(r->m, 0, s.n_row));
}

static void judge(const char *name)
{
    print_message("# %s: %lld products, %lld elements over all of K, %lld differ; the sum from "
                  "its end has other bits in %lld\n",
                  name, (long long)p.n_product, (long long)p.n_checked, (long long)p.n_wrong,
                  (long long)p.n_order);
    if (p.n_wrong) fail_msg("%s: %s", name, p.first);
    assert_true(p.n_checked > 500);
    assert_true(p.n_order * 4 > p.n_checked / 2); /* else an order would not show */
}

static void try_model(const char *folder, const char *name, bool cuda, int32_t longest,
                      int32_t width)
{
    static const int32_t odd[] = {3, 5, 33, 100, 129, 200, 255};
    static const int32_t prompt[] = {1, 7, 64, 333, 512, 2048, 8192};
    char path[256];
    rig r;
    snprintf(path, sizeof path, "%s/%s/%s", TEST_DATA, folder, name);
    open_rig(&r, path, cuda, longest, width);
    for (size_t i = 0; i < sizeof prompt / sizeof *prompt; i++)
        if (prompt[i] <= longest) run(&r, prompt[i], 0);
    for (int32_t n = 1; n <= width; n += n < 4 ? n : n < 8 ? 4 : n < 128 ? 8 : 32) run(&r, 0, n);
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++)
        if (odd[i] <= width) run(&r, 0, odd[i]);
    run(&r, longest / 4, width);
    judge(name);
    close_rig(&r);
}

static void test_cpu(void **state)
{
    (void)state;
    try_model("golden", "llama_plain", false, 64, 8);
    try_model("golden", "qwen2_untied", false, 64, 8);
}

#define CUDA_MODEL(name, folder)                                                                   \
    static void test_cuda_##name(void **state)                                                     \
    {                                                                                              \
        (void)state;                                                                               \
        NEED_CUDA();                                                                               \
        try_model("configs", folder, true, 8192, 256);                                             \
    }
CUDA_MODEL(smollm2, "smollm2_135m")
CUDA_MODEL(qwen_small, "qwen3_0.6b")
CUDA_MODEL(qwen, "qwen3_8b")
CUDA_MODEL(llama, "llama3.1_8b")
CUDA_MODEL(qwen_large, "qwen3_32b")

/* Products with biases. */
static void test_cuda_bias(void **state)
{
    (void)state;
    NEED_CUDA();
    try_model("golden", "qwen2_untied", true, 512, 64);
}

/* An argument picks cases by their names. */
int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest t[] = {
        cmocka_unit_test(test_cpu),
        cmocka_unit_test(test_cuda_bias),
        cmocka_unit_test(test_cuda_smollm2),
        cmocka_unit_test(test_cuda_qwen_small),
        cmocka_unit_test(test_cuda_qwen),
        cmocka_unit_test(test_cuda_llama),
        cmocka_unit_test(test_cuda_qwen_large),
    };
    return cmocka_run_group_tests_name("matrix products", t, NULL, NULL);
}
