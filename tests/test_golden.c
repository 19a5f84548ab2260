/* test_golden.c - the tiny models of tests/data/golden against the reference framework: the graph
 * without rounding, the logits of the oracle, of the CPU and of a CUDA device, and a list of
 * planted faults, each of which must be seen.
 *
 * A fault is planted from outside: in the config, in a copy of the weights, in the steps, or in a
 * hook around an op. The product holds no code for it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <unistd.h>

#include "cuda_there.h"
#include "golden.h"
#include "model/model.h"

#define PAGE      16
#define N_PAGE    41 /* of 16 tokens: 640 and one spare */
#define MAX_TOK   328
#define CUT       328 /* the prompt's first piece ends inside a page */
#define PROMPT    599 /* the rest is decoded one by one */
#define MODEL_DIR TEST_DATA "/golden/"

static golden_tolerance tol;

/* ---- one run over all tokens ----------------------------------------------------------------- */

typedef struct plant plant;
/* What an attention hook changes for the token at pos: where it stands and which pages it sees. */
typedef void (*remap_fn)(int32_t *pos, int32_t *first_page);

struct plant {
    const char *name, *model;
    void (*config)(config *c);
    bool (*edit)(const config *c, buf *file); /* of model.safetensors; false: it did not fit */
    void (*hook)(ops *o);
    remap_fn remap;       /* with hook_remap */
    int32_t late_shift;   /* added to the position of every token from CUT on */
    bool swap_pages_late; /* entries 0 and CUT / PAGE of the page table change places at CUT */
};

typedef struct run {
    const golden *g;
    model *m;
    int32_t page[N_PAGE];
    float *row;
    golden_sum sum;
    double margin;
    int32_t next; /* index into g->pos */
} run;

/* Hooks replace functions of the backend's table; the real ones are kept here. */
static struct {
    ops real;
    const step *cur;
    const plant *p;
    weights *w;
    int32_t n_norm;
} hooked;

static ops_conf conf_of_run(void)
{
    ops_conf c = {.n_ctx = N_PAGE * PAGE,
                  .max_tok = MAX_TOK,
                  .max_row = MAX_TOK,
                  .max_want = MAX_TOK,
                  .max_lane = 1,
                  .n_slot = 1,
                  .page_tokens = PAGE,
                  .n_page = N_PAGE,
                  .n_swap = 1,
                  .logit_rows = 4,
                  .n_top = 1};
    for (int i = 0; i < OPS_N_OP; i++) c.set[i] = OPS_SET_CANONICAL;
    return c;
}

static corun_status run_step(run *r, int32_t first, int32_t n, uint64_t id, const plant *p)
{
    const golden *g = r->g;
    step_row row = {.seq = 0,
                    .slot = first < PROMPT ? STEP_NO_SLOT : 0,
                    .pos = first + (p && first >= CUT ? p->late_shift : 0),
                    .q_len = n,
                    .page = r->page,
                    .n_page = N_PAGE,
                    .want = STEP_WANT_ALL};
    step s = {.id = id,
              .kind = first == 0 ? STEP_PREFILL : (first < PROMPT ? STEP_MIXED : STEP_DECODE),
              .n_row = 1,
              .row = &row,
              .n_tok = n,
              .tok = g->token + first};
    hooked.cur = &s;
    hooked.n_norm = 0;
    TRY(r->m->forward(r->m, &s));
    for (; r->next < g->n_pos && g->pos[r->next] < first + n; r->next++) {
        TRY(r->m->logits(r->m, g->pos[r->next] - first, 1));
        TRY(r->m->o->logits_get(r->m->o, 0, r->row));
        golden_add(&r->sum, g->logits + (size_t)r->next * (size_t)g->n_vocab, r->row, g->n_vocab,
                   r->margin);
    }
    return CORUN_OK;
}

static corun_status run_all(run *r, const plant *p)
{
    ops_conf c = conf_of_run();
    TRY(r->m->configure(r->m, &c));
    for (int32_t i = 0; i < N_PAGE; i++) r->page[i] = (i * 7 + 3) % N_PAGE;
    uint64_t id = 1;
    TRY(run_step(r, 0, CUT, id++, p));
    if (p && p->swap_pages_late) {
        int32_t t = r->page[0];
        r->page[0] = r->page[CUT / PAGE];
        r->page[CUT / PAGE] = t;
    }
    TRY(run_step(r, CUT, PROMPT - CUT, id++, p));
    for (int32_t i = PROMPT; i < r->g->n_token; i++) TRY(run_step(r, i, 1, id++, p));
    return r->next == r->g->n_pos ? CORUN_OK : err_set(CORUN_EINTERNAL, "positions left over");
}

typedef enum backend { EXACT, ORACLE, CPU, DEVICE } backend;

static corun_status load_device(model **out, weights *w, const config *c)
{
    ops_dims d;
    ops *o;
    *out = NULL;
    model_dims(c, &d);
    TRY(ops_open_cuda(&o, &d, &(ops_open_opts){.device = -1}));
    return model_load_on(out, w, c, o);
}

/* A copy of the model's file with the plant's edit, in a new folder. */
static corun_status edited_copy(const char *folder, const config *c, const plant *p, char *out)
{
    char path[512];
    buf b;
    buf_init(&b, 64 << 20);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    corun_status st = file_read(&b, path, 64 << 20);
    if (st == CORUN_OK && !p->edit(c, &b)) st = err_set(CORUN_EINTERNAL, "edit found no tensor");
    strcpy(out, "/tmp/corun_golden_XXXXXX");
    if (st == CORUN_OK && !mkdtemp(out)) st = err_set(CORUN_EIO, "mkdtemp");
    snprintf(path, sizeof path, "%s/model.safetensors", out);
    FILE *f = st == CORUN_OK ? fopen(path, "wb") : NULL;
    if (!f || fwrite(b.data, 1, b.len, f) != b.len)
        st = st == CORUN_OK ? err_set(CORUN_EIO, "%s", path) : st;
    if (f) fclose(f);
    buf_free(&b);
    return st;
}

static corun_status run_model(const char *name, backend be, const plant *p, golden *g,
                              golden_sum *sum)
{
    char folder[256], copy[64] = "", path[512];
    config c;
    weights *w = NULL;
    pool *threads = NULL;
    run r = {.g = g};
    snprintf(folder, sizeof folder, MODEL_DIR "%s", name);
    corun_status st;
    TRY_OR_DONE(golden_open(g, folder));
    TRY_OR_DONE(config_open(&c, folder));
    if (p && p->edit) TRY_OR_DONE(edited_copy(folder, &c, p, copy));
    TRY_OR_DONE(weights_open(&w, copy[0] ? copy : folder));
    if (p && p->config) p->config(&c);
    if (be == CPU) {
        TRY_OR_DONE(pool_open(&threads, 2));
        TRY_OR_DONE(model_load(&r.m, w, &c, &(ops_open_opts){.threads = threads, .isa = "auto"}));
    } else if (be == DEVICE) {
        TRY_OR_DONE(load_device(&r.m, w, &c));
    } else {
        TRY_OR_DONE(model_load_ref(&r.m, w, &c, be == EXACT));
    }
    if (p && p->hook) {
        hooked.real = *r.m->o;
        hooked.p = p;
        hooked.w = w;
        p->hook(r.m->o);
    }
    r.margin = tol.top1_margin * g->bf16.rms;
    if (!(r.row = malloc((size_t)g->n_vocab * sizeof *r.row))) abort();
    TRY_OR_DONE(run_all(&r, p));
    *sum = r.sum;
done:
    free(r.row);
    model_close(r.m);
    weights_close(w);
    pool_close(threads);
    if (copy[0]) {
        snprintf(path, sizeof path, "%s/model.safetensors", copy);
        unlink(path);
        rmdir(copy);
    }
    return st;
}

#define OK(call)                                                                                   \
    do {                                                                                           \
        if ((call) != CORUN_OK) fail_msg("%s", err_text());                                        \
    } while (0)

/* ---- faults: config ----------------------------------------------------------------------------
 */

static void cfg_rope_layout(config *c) { c->gguf_permuted = true; }
static void cfg_eps(config *c) { c->eps *= 1.5f; }
static void cfg_theta(config *c) { c->theta *= 1.01; }
static void cfg_rope_default(config *c) { c->rope = CONFIG_ROPE_DEFAULT; }
static void cfg_low_freq(config *c) { c->low_freq *= 1.1; }
static void cfg_yarn_factor(config *c) { c->attn_factor = 1.0; }
static void cfg_yarn_truncate(config *c) { c->yarn_truncate = !c->yarn_truncate; }
static void cfg_yarn_mscale(config *c) { c->mscale = c->mscale_all_dim = 0; }
static void cfg_original_ctx(config *c) { c->original_ctx = c->n_ctx; }
static void cfg_tie(config *c) { c->tied = !c->tied; }

/* ---- faults: weights ----------------------------------------------------------------------------
 */

static uint16_t *find_data(buf *file, const char *name, uint64_t *bytes)
{
    safetensors_header *h;
    uint16_t *out = NULL;
    if (safetensors_parse(&h, file->data, file->len, file->len, "edit") != CORUN_OK) return NULL;
    for (size_t i = 0; i < safetensors_count(h); i++) {
        const weights_tensor *t = safetensors_at(h, i);
        if (strcmp(t->name, name) != 0) continue;
        out = (uint16_t *)(void *)(file->data + t->offset);
        *bytes = t->bytes;
    }
    safetensors_free(h);
    return out;
}

static bool swap_tensors(buf *file, const char *a, const char *b)
{
    uint64_t na, nb;
    uint16_t *pa = find_data(file, a, &na), *pb = find_data(file, b, &nb);
    if (!pa || !pb || na != nb) return false;
    for (uint64_t i = 0; i < na / 2; i++) {
        uint16_t t = pa[i];
        pa[i] = pb[i];
        pb[i] = t;
    }
    return true;
}

static bool edit_norm_gains(const config *c, buf *file)
{
    (void)c;
    return swap_tensors(file, "model.layers.1.input_layernorm.weight",
                        "model.layers.1.post_attention_layernorm.weight");
}

static bool edit_qk_gains(const config *c, buf *file)
{
    (void)c;
    return swap_tensors(file, "model.layers.0.self_attn.q_norm.weight",
                        "model.layers.0.self_attn.k_norm.weight");
}

static bool edit_gate_up(const config *c, buf *file)
{
    (void)c;
    return swap_tensors(file, "model.layers.0.mlp.gate_proj.weight",
                        "model.layers.0.mlp.up_proj.weight");
}

/* A bias of zeros is one that was dropped. */
static bool zero_biases(const config *c, buf *file, const char *const *role, int n)
{
    for (int32_t l = 0; l < c->n_layer; l++)
        for (int i = 0; i < n; i++) {
            char name[96];
            uint64_t bytes;
            snprintf(name, sizeof name, "model.layers.%d.%s.bias", (int)l, role[i]);
            uint16_t *p = find_data(file, name, &bytes);
            if (!p) return false;
            memset(p, 0, bytes);
        }
    return true;
}

static bool edit_no_qkv_bias(const config *c, buf *file)
{
    static const char *const r[] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"};
    return zero_biases(c, file, r, 3);
}

static bool edit_no_o_bias(const config *c, buf *file)
{
    static const char *const r[] = {"self_attn.o_proj"};
    return zero_biases(c, file, r, 1);
}

static bool edit_no_mlp_bias(const config *c, buf *file)
{
    static const char *const r[] = {"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"};
    return zero_biases(c, file, r, 3);
}

/* Head h reads kv head h mod n_kv: moves its rows of q and its columns of o to the place of a head
 * that reads this kv head. */
static bool edit_gqa(const config *c, buf *file)
{
    int32_t d = c->d_head, nq = c->n_head, group = nq / c->n_kv;
    for (int32_t l = 0; l < c->n_layer; l++) {
        char q_name[96], o_name[96];
        uint64_t nb_q, nb_o;
        snprintf(q_name, sizeof q_name, "model.layers.%d.self_attn.q_proj.weight", (int)l);
        snprintf(o_name, sizeof o_name, "model.layers.%d.self_attn.o_proj.weight", (int)l);
        uint16_t *q = find_data(file, q_name, &nb_q), *o = find_data(file, o_name, &nb_o);
        if (!q || !o || nb_q != nb_o) return false;
        uint16_t *q2 = malloc(nb_q), *o2 = malloc(nb_o);
        if (!q2 || !o2) abort();
        memcpy(q2, q, nb_q);
        memcpy(o2, o, nb_o);
        for (int32_t h = 0; h < nq; h++) {
            int32_t to = h % c->n_kv * group + h / c->n_kv;
            size_t head = (size_t)d * (size_t)c->n_embd;
            memcpy(q + (size_t)to * head, q2 + (size_t)h * head, head * sizeof *q);
            for (int32_t e = 0; e < c->n_embd; e++)
                memcpy(o + ((size_t)e * (size_t)nq + (size_t)to) * (size_t)d,
                       o2 + ((size_t)e * (size_t)nq + (size_t)h) * (size_t)d,
                       (size_t)d * sizeof *o);
        }
        free(q2);
        free(o2);
    }
    return true;
}

/* ---- faults: hooks ------------------------------------------------------------------------------
 */

static corun_status attention_scaled(ops *o, int32_t layer, const void *q, float scale, void *out)
{
    return hooked.real.attention(o, layer, q, scale * 1.01f, out);
}
static void hook_scale(ops *o) { o->attention = attention_scaled; }

/* The step with a row for each token, each where the plant's remap puts it. */
static corun_status attention_remapped(ops *o, int32_t layer, const void *q, float scale, void *out)
{
    static step_row rows[MAX_TOK];
    const step *cur = hooked.cur;
    const step_row *from = cur->row;
    for (int32_t i = 0; i < from->q_len; i++) {
        int32_t pos = from->pos + i, page = 0;
        hooked.p->remap(&pos, &page);
        rows[i] = (step_row){.slot = STEP_NO_SLOT,
                             .pos = pos,
                             .q_len = 1,
                             .tok_first = i,
                             .page = from->page + page,
                             .n_page = from->n_page - page,
                             .want = STEP_WANT_NONE};
    }
    step s = *cur;
    s.kind = STEP_MIXED;
    s.n_row = from->q_len;
    s.row = rows;
    TRY(o->step_put(o, &s));
    TRY(hooked.real.attention(o, layer, q, scale, out));
    return o->step_put(o, cur);
}
static void hook_remap(ops *o) { o->attention = attention_remapped; }
static void remap_one_more(int32_t *pos, int32_t *page)
{
    (void)page;
    (*pos)++;
}
static void remap_one_less(int32_t *pos, int32_t *page)
{
    (void)page;
    if (*pos > 0) (*pos)--;
}
static void remap_skip_chunk0(int32_t *pos, int32_t *page)
{
    if (*pos < 512) return;
    *pos -= 512;
    *page = 512 / PAGE;
}
static void remap_skip_last_chunk(int32_t *pos, int32_t *page)
{
    (void)page;
    if (*pos >= 512) *pos = 511;
}

/* The oracle's memory is the host's, one double an element where nothing is rounded. */

/* The second norm of a layer reads h before the attention's output is added. */
static corun_status norm_before_residual(ops *o, ops_rows rows, void *h, const void *y,
                                         const ops_weight *gain, float eps, void *out)
{
    if (rows != OPS_ROWS_TOK || hooked.n_norm++ % 2 == 0)
        return hooked.real.norm(o, rows, h, y, gain, eps, out);
    size_t bytes = (size_t)o->n_tok * (size_t)o->dims.n_embd * (size_t)o->act_bytes;
    void *keep = malloc(bytes);
    if (!keep) abort();
    corun_status st = hooked.real.norm(o, rows, h, NULL, gain, eps, out);
    memcpy(keep, out, bytes);
    if (st == CORUN_OK) st = hooked.real.norm(o, rows, h, y, gain, eps, out);
    memcpy(out, keep, bytes);
    free(keep);
    return st;
}
static void hook_norm_before_residual(ops *o) { o->norm = norm_before_residual; }

/* q is rotated first and normed after. */
static corun_status qkv_post_norm_last(ops *o, int32_t layer, const void *qkv,
                                       const ops_weight *q_gain, const ops_weight *k_gain,
                                       float eps, const ops_rope *rope, void *q)
{
    (void)q_gain;
    TRY(hooked.real.qkv_post(o, layer, qkv, NULL, k_gain, eps, rope, q));
    int32_t d = o->dims.d_head;
    char name[96];
    float gain[256];
    snprintf(name, sizeof name, "model.layers.%d.self_attn.q_norm.weight", (int)layer);
    const weights_tensor *t = weights_find(hooked.w, name);
    if (!t || d > 256 || o->act_bytes != sizeof(double)) FAIL(CORUN_EINTERNAL, "%s", name);
    TRY(weights_read_f32(hooked.w, t, 0, 1, gain));
    double *x = q;
    for (int64_t h = 0; h < (int64_t)o->n_tok * o->dims.n_head; h++, x += d) {
        double sq = 0;
        for (int32_t i = 0; i < d; i++) sq += x[i] * x[i];
        double r = 1 / sqrt(sq / d + (double)eps);
        for (int32_t i = 0; i < d; i++) x[i] *= r * (double)gain[i];
    }
    return CORUN_OK;
}
static void hook_norm_last(ops *o) { o->qkv_post = qkv_post_norm_last; }

/* ---- the tests ----------------------------------------------------------------------------------
 */

static const char *const model_names[] = {
    "llama_plain",  "llama3_tied_bias", "llama_linear", "llama_yarn_new",    "qwen2_tied",
    "qwen2_untied", "qwen3_tied",       "qwen3_yarn",   "qwen3_bias_mscale",
};
#define N_MODEL (sizeof model_names / sizeof *model_names)

static const plant plants[] = {
    {.name = "RoPE layout", .model = "llama_plain", .config = cfg_rope_layout},
    {.name = "RoPE layout, biases", .model = "qwen2_tied", .config = cfg_rope_layout},
    {.name = "eps", .model = "llama_plain", .config = cfg_eps},
    {.name = "eps, q and k norm", .model = "qwen3_tied", .config = cfg_eps},
    {.name = "scale of the scores", .model = "llama_plain", .hook = hook_scale},
    {.name = "GQA map, 3 a group", .model = "llama_plain", .edit = edit_gqa},
    {.name = "GQA map, 5 a group", .model = "qwen3_yarn", .edit = edit_gqa},
    {.name = "norm order, gains", .model = "llama_linear", .edit = edit_norm_gains},
    {.name = "norm order, residual", .model = "llama_plain", .hook = hook_norm_before_residual},
    {.name = "norm order, q after RoPE", .model = "qwen3_tied", .hook = hook_norm_last},
    {.name = "q and k gains swapped", .model = "qwen3_bias_mscale", .edit = edit_qk_gains},
    {.name = "gate and up swapped", .model = "qwen2_untied", .edit = edit_gate_up},
    {.name = "qkv bias dropped", .model = "qwen2_untied", .edit = edit_no_qkv_bias},
    {.name = "qkv bias dropped, qwen3", .model = "qwen3_bias_mscale", .edit = edit_no_qkv_bias},
    {.name = "o bias dropped", .model = "llama3_tied_bias", .edit = edit_no_o_bias},
    {.name = "mlp bias dropped", .model = "llama3_tied_bias", .edit = edit_no_mlp_bias},
    {.name = "tied taken as untied", .model = "llama3_tied_bias", .config = cfg_tie},
    {.name = "untied taken as tied", .model = "qwen3_yarn", .config = cfg_tie},
    {.name = "position off by one", .model = "qwen2_tied", .late_shift = 1},
    {.name = "mask one too many",
     .model = "llama_plain",
     .hook = hook_remap,
     .remap = remap_one_more},
    {.name = "mask one too few",
     .model = "llama_plain",
     .hook = hook_remap,
     .remap = remap_one_less},
    {.name = "theta", .model = "llama_plain", .config = cfg_theta},
    {.name = "theta of 1e6", .model = "qwen3_tied", .config = cfg_theta},
    {.name = "llama3 scaling ignored", .model = "llama3_tied_bias", .config = cfg_rope_default},
    {.name = "llama3 low_freq_factor", .model = "llama3_tied_bias", .config = cfg_low_freq},
    {.name = "linear scaling ignored", .model = "llama_linear", .config = cfg_rope_default},
    {.name = "yarn ignored", .model = "qwen3_yarn", .config = cfg_rope_default},
    {.name = "yarn factor on cos and sin", .model = "qwen3_yarn", .config = cfg_yarn_factor},
    {.name = "yarn given factor", .model = "llama_yarn_new", .config = cfg_yarn_factor},
    {.name = "yarn truncate", .model = "llama_yarn_new", .config = cfg_yarn_truncate},
    {.name = "yarn mscale", .model = "qwen3_bias_mscale", .config = cfg_yarn_mscale},
    {.name = "yarn original context", .model = "qwen3_yarn", .config = cfg_original_ctx},
    {.name = "chunk 0 not folded",
     .model = "qwen2_untied",
     .hook = hook_remap,
     .remap = remap_skip_chunk0},
    {.name = "last chunk not folded",
     .model = "qwen2_untied",
     .hook = hook_remap,
     .remap = remap_skip_last_chunk},
    {.name = "page order", .model = "llama_plain", .swap_pages_late = true},
};
#define N_PLANT (sizeof plants / sizeof *plants)

static void test_exact(void **state)
{
    golden g;
    golden_sum sum;
    OK(run_model(*state, EXACT, NULL, &g, &sum));
    double rel = golden_sum_figures(&sum).rms / g.std;
    printf("# %s: graph parity %.1e of std %.2f\n", (const char *)*state, rel, g.std);
    assert_true(g.std >= 3);
    assert_true(rel <= tol.graph_rms_of_std);
    golden_close(&g);
}

static void parity(const char *name, backend be)
{
    golden g;
    golden_sum sum;
    OK(run_model(name, be, NULL, &g, &sum));
    assert_true(golden_parity_ok(&tol, name, &sum, &g.bf16));
    golden_close(&g);
}

static void test_oracle(void **state) { parity(*state, ORACLE); }

static void test_cpu(void **state) { parity(*state, CPU); }

static void test_device(void **state)
{
    NEED_CUDA();
    char folder[256];
    config c;
    snprintf(folder, sizeof folder, MODEL_DIR "%s", (const char *)*state);
    OK(config_open(&c, folder));
    if (c.d_head != 64 && c.d_head != 128) skip(); /* the device has kernels for these */
    parity(*state, DEVICE);
}

static void test_plant(void **state)
{
    const plant *p = *state;
    if (getenv("CORUN_TEST_SHORT")) skip();
    golden g;
    golden_sum sum;
    OK(run_model(p->model, EXACT, p, &g, &sum));
    double rel = golden_sum_figures(&sum).rms / g.std;
    printf("# planted: %s (%s): %.1e of std\n", p->name, p->model, rel);
    assert_true(rel > tol.fault_factor * tol.graph_rms_of_std);
    golden_close(&g);
}

/* An argument picks cases by their names, as "cuda *". */
int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    static const struct {
        const char *name;
        CMUnitTestFunction run;
    } kind[] = {{"graph parity", test_exact},
                {"oracle", test_oracle},
                {"cpu", test_cpu},
                {"cuda", test_device}};
    enum { N_KIND = sizeof kind / sizeof *kind };
    static struct CMUnitTest tests[N_KIND * N_MODEL + N_PLANT];
    static char names[N_KIND * N_MODEL + N_PLANT][64];
    size_t n = 0;
    for (size_t i = 0; i < N_MODEL; i++)
        for (int k = 0; k < N_KIND; k++, n++) {
            snprintf(names[n], sizeof names[n], "%s %s", kind[k].name, model_names[i]);
            tests[n] = (struct CMUnitTest){.name = names[n],
                                           .test_func = kind[k].run,
                                           .initial_state = (void *)(uintptr_t)model_names[i]};
        }
    for (size_t i = 0; i < N_PLANT; i++, n++) {
        snprintf(names[n], sizeof names[n], "planted: %s", plants[i].name);
        tests[n] = (struct CMUnitTest){.name = names[n],
                                       .test_func = test_plant,
                                       .initial_state = (void *)(uintptr_t)&plants[i]};
    }
    if (golden_tolerance_read(&tol) != CORUN_OK) {
        fprintf(stderr, "%s\n", err_text());
        return 1;
    }
    return _cmocka_run_group_tests("golden", tests, n, NULL, NULL);
}
