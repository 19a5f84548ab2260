/* bench_parts.c - owns the parts of a step timed apart from the engine, on an instance of the
 * backend of their own. Invariant: a part runs over and over without the host between, recorded
 * where the engine's step is, and what it reads (weights, pages) is more than a cache holds
 * wherever the step's own reads are. */
#include "proof/bench_int.h"

#include <string.h>

#include "base/clock.h"

/* ---- weights ----------------------------------------------------------------------------------
 */

corun_status bench_weights_open(ops *o, const config *g, int32_t n_layer, ops_weight **w)
{
    ops_dims d;
    ops_product p[OPS_N_PRODUCT];
    model_dims(g, &d);
    ops_products(&d, p);
    for (int32_t i = 0; i <= n_layer * OPS_PER_LAYER; i++) {
        const ops_product *of = &p[i == n_layer * OPS_PER_LAYER ? OPS_HEAD : i % OPS_PER_LAYER];
        ops_fill f = {.seed = 1, .index = (uint32_t)i, .n_in = of->n_in, .spread = 0.05f};
        ops_weight_spec s = {.name = "bench",
                             .dtype = OPS_BF16,
                             .n_out = of->n_out,
                             .n_in = of->n_in,
                             .read = ops_fill_read,
                             .arg = &f};
        TRY(o->weight_open(o, &s, &w[i]));
    }
    return CORUN_OK;
}

void bench_weights_close(ops *o, int32_t n_layer, ops_weight **w)
{
    for (int32_t i = 0; w && i <= n_layer * OPS_PER_LAYER; i++) o->weight_close(o, w[i]);
}

/* ---- made-up contents -------------------------------------------------------------------------
 */

/* Uniform with a standard deviation of 1: contents move the power that a device takes. */
static corun_status fill_values(uint16_t *v, size_t n, uint32_t index)
{
    ops_fill f = {.seed = 2, .index = index, .n_in = (int64_t)n, .spread = 1.75f};
    return ops_fill_read(&f, 0, 1, v);
}

enum { SOURCE = 1 << 20 }; /* values that are made once and used over and over */

corun_status bench_fill_pages(ops *o, int32_t first, int32_t n)
{
    enum { DISTINCT = 4 };
    size_t bytes = (size_t)o->page_bytes(o), at;
    uint16_t *v = mem_alloc(bytes / 2 + 1, sizeof *v, "page");
    if (!v) return CORUN_ENOMEM;
    corun_status st = CORUN_OK;
    for (int32_t i = 0; i < n && st == CORUN_OK; i++) {
        if (i >= DISTINCT) {
            st = o->page_copy(o, first + i % DISTINCT, first + i);
            continue;
        }
        size_t part = bytes / 2 < SOURCE ? bytes / 2 : SOURCE;
        st = fill_values(v, part, (uint32_t)i);
        for (at = part; at < bytes / 2; at += part) {
            size_t more = bytes / 2 - at < part ? bytes / 2 - at : part;
            memcpy(v + at, v, more * sizeof *v);
        }
        if (st == CORUN_OK) st = o->page_put(o, first + i, v);
    }
    mem_free(v);
    return st;
}

/* ---- opening ----------------------------------------------------------------------------------
 */

enum { WEIGHT_LAYERS = 8, MAX_KEPT = 32, PAGE_TOKENS = 64 };

/* What was timed for so many tokens, or for so many rows. */
typedef struct kept_part {
    int32_t n;
    double first, second; /* products of the layers, row kernels; the head, draws */
} kept_part;

struct bench_parts {
    ops *o;
    config cfg;
    ops_set set[OPS_N_OP];
    double warm;
    int32_t n_weight; /* layers that have matrices */
    ops_weight **w;
    ops_weight *gain, *head_gain; /* of a row, of a head */
    ops_rope *rope;
    float scale;
    /* of the step in work */
    int32_t rows, n_tok;
    void *x, *y, *h;
    int32_t *chunk_row, *slot, *pos;
    kept_part of_tokens[MAX_KEPT], of_rows[MAX_KEPT];
    int n_of_tokens, n_of_rows;
};

static corun_status open_gain(const bench_parts *p, int64_t n, ops_weight **w)
{
    ops_fill f = {.seed = 3, .n_in = n, .base = 1, .spread = 0.05f};
    ops_weight_spec s = {.name = "bench",
                         .dtype = OPS_BF16,
                         .n_out = 1,
                         .n_in = n,
                         .read = ops_fill_read,
                         .arg = &f};
    return p->o->weight_open(p->o, &s, w);
}

static corun_status open_rope(bench_parts *p)
{
    double scale;
    float *inv_freq;
    if (!MEM_NEW(inv_freq, (size_t)p->cfg.d_head / 2)) return CORUN_ENOMEM;
    corun_status st = config_rope_table(&p->cfg, NULL, inv_freq, &scale);
    if (st == CORUN_OK) st = p->o->rope_open(p->o, inv_freq, scale, &p->rope);
    mem_free(inv_freq);
    return st;
}

static corun_status open_all(bench_parts *p, const corun_model *m)
{
    ops_dims d;
    const ops *like = m->net->o;
    if (m->net->fake || !like->twin)
        FAIL(CORUN_EUNSUPPORTED, "bench: the ops of this model cannot be timed apart");
    model_dims(&p->cfg, &d);
    TRY(like->twin(like, &d, &p->o));
    p->n_weight = d.n_layer < WEIGHT_LAYERS ? d.n_layer : WEIGHT_LAYERS;
    if (!MEM_NEW(p->w, (size_t)p->n_weight * OPS_PER_LAYER + 1)) return CORUN_ENOMEM;
    TRY(bench_weights_open(p->o, &p->cfg, p->n_weight, p->w));
    TRY(open_gain(p, d.n_embd, &p->gain));
    if (p->cfg.qk_norm) TRY(open_gain(p, d.d_head, &p->head_gain));
    return open_rope(p);
}

corun_status bench_parts_open(bench_parts **out, const corun_model *m, const policy *pol,
                              double warm)
{
    bench_parts *p;
    *out = NULL;
    if (!MEM_NEW(p, 1)) return CORUN_ENOMEM;
    p->cfg = m->net->cfg;
    p->warm = warm;
    memcpy(p->set, pol->set, sizeof p->set);
    float r = 1; /* 1 / sqrt(d) by Newton: only a size, as the model's own has it */
    for (int i = 0; i < 32; i++) r = 0.5f * (r + 1 / ((float)p->cfg.d_head * r));
    p->scale = r;
    corun_status st = open_all(p, m);
    if (st != CORUN_OK) {
        bench_parts_close(p);
        return st;
    }
    *out = p;
    return CORUN_OK;
}

static void free_step(bench_parts *p)
{
    ops *o = p->o;
    o->dev_free(o, p->x);
    o->dev_free(o, p->y);
    o->dev_free(o, p->h);
    p->x = p->y = p->h = NULL;
    mem_free(p->chunk_row);
    mem_free(p->slot);
    mem_free(p->pos);
    p->chunk_row = p->slot = p->pos = NULL;
}

void bench_parts_close(bench_parts *p)
{
    if (!p) return;
    ops *o = p->o;
    if (o) {
        free_step(p);
        bench_weights_close(o, p->n_weight, p->w);
        o->weight_close(o, p->gain);
        o->weight_close(o, p->head_gain);
        o->rope_close(o, p->rope);
        o->close(o);
    }
    mem_free(p->w);
    mem_free(p);
}

/* ---- a step -----------------------------------------------------------------------------------
 */

static int32_t pages_of(int32_t tokens) { return (tokens + PAGE_TOKENS - 1) / PAGE_TOKENS; }

static corun_status configure(bench_parts *p, int32_t rows, int32_t n_tok, int32_t end)
{
    int32_t n_page = rows * pages_of(end);
    ops_conf c = {.n_ctx = end,
                  .max_tok = n_tok,
                  .max_row = rows,
                  .max_want = rows,
                  .max_lane = rows,
                  .n_slot = rows,
                  .page_tokens = PAGE_TOKENS,
                  .n_page = n_page + 1,
                  .logit_rows = rows,
                  .n_top = 1};
    memcpy(c.set, p->set, sizeof c.set);
    return p->o->configure(p->o, &c);
}

/* Activations: every part reads x and writes y, or h. */
static corun_status open_buffers(bench_parts *p)
{
    const config *g = &p->cfg;
    ops *o = p->o;
    size_t q = (size_t)g->n_head * (size_t)g->d_head, kv = (size_t)g->n_kv * (size_t)g->d_head;
    size_t widest = 2 * (size_t)g->n_ff;
    if (widest < q + 2 * kv) widest = q + 2 * kv;
    if (widest < (size_t)g->n_embd) widest = (size_t)g->n_embd;
    size_t n = widest * (size_t)p->n_tok, some = n < SOURCE ? n : SOURCE;
    TRY(o->dev_alloc(o, n * 2, &p->x));
    TRY(o->dev_alloc(o, n * 2, &p->y));
    TRY(o->dev_alloc(o, (size_t)p->n_tok * (size_t)g->n_embd * 2, &p->h));
    uint16_t *v = mem_alloc(some, sizeof *v, "activations");
    if (!v) return CORUN_ENOMEM;
    corun_status st = fill_values(v, some, 9);
    for (size_t at = 0; at < n && st == CORUN_OK; at += some) {
        size_t part = n - at < some ? n - at : some;
        st = o->dev_put(o, p->x, at * 2, v, part * 2);
        if (st == CORUN_OK) st = o->dev_put(o, p->y, at * 2, v, part * 2);
    }
    size_t h = (size_t)p->n_tok * (size_t)g->n_embd;
    for (size_t at = 0; at < h && st == CORUN_OK; at += some)
        st = o->dev_put(o, p->h, at * 2, v, (h - at < some ? h - at : some) * 2);
    mem_free(v);
    return st;
}

/* Page k of those of all rows, which lie in no order (7919 is prime). */
static int32_t scattered(const bench_parts *p, int64_t k, int32_t each)
{
    int64_t n = (int64_t)p->rows * each;
    return 1 + (int32_t)(n % 7919 ? k * 7919 % n : k);
}

static corun_status put_step(const bench_parts *p, int32_t pos, int32_t len)
{
    ops *o = p->o;
    int32_t each = pages_of(pos + len);
    int32_t *page = mem_alloc((size_t)(p->rows * each), sizeof *page, "pages");
    int32_t *tok = mem_alloc((size_t)len, sizeof *tok, "tokens");
    step_row *row = mem_alloc((size_t)p->rows, sizeof *row, "rows");
    corun_status st = page && tok && row ? CORUN_OK : CORUN_ENOMEM;
    for (int32_t i = 0; i < p->rows && st == CORUN_OK; i++) {
        for (int32_t k = 0; k < each; k++) page[i * each + k] = scattered(p, i * each + k, each);
        row[i] = (step_row){.seq = i,
                            .slot = STEP_NO_SLOT,
                            .pos = pos,
                            .q_len = len,
                            .page = page + (size_t)i * (size_t)each,
                            .n_page = each,
                            .want = STEP_WANT_LAST};
    }
    for (int32_t k = 0; k < len && st == CORUN_OK; k++) tok[k] = k % p->cfg.n_vocab;
    step s = {.id = 1,
              .kind = len == 1 ? STEP_DECODE : STEP_MIXED,
              .n_row = p->rows,
              .row = row,
              .n_tok = len,
              .tok = tok};
    if (st == CORUN_OK) st = o->step_put(o, &s);
    mem_free(row);
    mem_free(tok);
    mem_free(page);
    return st;
}

static corun_status put_slots(bench_parts *p, int32_t pos)
{
    size_t n = (size_t)p->rows;
    if (!MEM_NEW(p->chunk_row, n) || !MEM_NEW(p->slot, n) || !MEM_NEW(p->pos, n))
        return CORUN_ENOMEM;
    for (int32_t i = 0; i < p->rows; i++) {
        ops_slot s = {.seed = (uint64_t)i,
                      .temperature = 1,
                      .top_p = 1,
                      .repetition = 1,
                      .n_draw_max = p->cfg.n_vocab};
        p->chunk_row[i] = p->slot[i] = i;
        p->pos[i] = pos;
        TRY(p->o->slot_put(p->o, i, &s));
    }
    return CORUN_OK;
}

/* ---- the parts --------------------------------------------------------------------------------
 */

static ops_weight *matrix(const bench_parts *p, int32_t layer, int k)
{
    return p->w[layer % p->n_weight * OPS_PER_LAYER + k];
}

static corun_status run_products(bench_parts *p)
{
    ops *o = p->o;
    for (int32_t l = 0; l < p->cfg.n_layer; l++)
        for (int k = 0; k < OPS_PER_LAYER; k++)
            TRY(o->matmul(o, OPS_ROWS_TOK, matrix(p, l, k), p->x, OPS_BF16, p->y));
    return CORUN_OK;
}

static corun_status run_head(bench_parts *p)
{
    return p->o->logits(p->o, p->w[p->n_weight * OPS_PER_LAYER], p->x, 0, p->rows);
}

static corun_status run_attention(bench_parts *p)
{
    ops *o = p->o;
    for (int32_t l = 0; l < p->cfg.n_layer; l++) TRY(o->attention(o, l, p->x, p->scale, p->y));
    return CORUN_OK;
}

static corun_status run_rows(bench_parts *p)
{
    ops *o = p->o;
    float eps = p->cfg.eps;
    TRY(o->embed(o, p->w[p->n_weight * OPS_PER_LAYER], p->h));
    for (int32_t l = 0; l < p->cfg.n_layer; l++) {
        TRY(o->norm(o, OPS_ROWS_TOK, p->h, l ? p->x : NULL, p->gain, eps, p->y));
        TRY(o->qkv_post(o, l, p->x, p->head_gain, p->head_gain, eps, p->rope, p->y));
        TRY(o->norm(o, OPS_ROWS_TOK, p->h, p->x, p->gain, eps, p->y));
        TRY(o->silu_mul(o, p->x, p->y));
    }
    return o->norm(o, OPS_ROWS_WANT, p->h, p->x, p->gain, eps, p->y);
}

static corun_status run_draws(bench_parts *p)
{
    return p->o->sample(p->o, p->rows, p->chunk_row, p->slot, p->pos);
}

typedef corun_status (*part_fn)(bench_parts *p);

static corun_status run_recorded(bench_parts *p, part_fn run)
{
    bool replay = false;
    TRY(p->o->record(p->o, &replay));
    return replay ? CORUN_OK : p->o->record_end(p->o, run(p));
}

/* Where the backend records decode steps, so are the passes that stand for its layers. */
static corun_status run_part(bench_parts *p, part_fn run)
{
    bool alone = run == run_head || run == run_draws;
    return p->o->record && !alone ? run_recorded(p, run) : run(p);
}

/* Seconds of n passes; a device has finished then. */
static corun_status time_passes(bench_parts *p, part_fn run, int64_t n, double *seconds)
{
    char end[2];
    double t0 = clock_seconds();
    for (int64_t i = 0; i < n; i++) TRY(run_part(p, run));
    TRY(p->o->dev_get(p->o, p->y, 0, end, sizeof end));
    *seconds = clock_seconds() - t0;
    return CORUN_OK;
}

/* The median of a few batches of passes, after `warm` seconds. A batch is a fortieth of what the
 * products are warmed up for, or one pass. */
static corun_status time_part(bench_parts *p, part_fn run, double warm, double *pass)
{
    enum { BATCHES = 7 };
    double t[BATCHES], s, first = clock_seconds();
    TRY(time_passes(p, run, 2, &s)); /* plans are made, kernels are loaded, the pass is recorded */
    TRY(time_passes(p, run, 1, &s));
    double want = p->warm / 40 / (s > 1e-9 ? s : 1e-9);
    int64_t n = want < 1 ? 1 : want > 1e5 ? 100000 : (int64_t)want;
    while (clock_seconds() - first < warm) TRY(time_passes(p, run, n, &s));
    for (int i = 0; i < BATCHES; i++) {
        int at = i;
        TRY(time_passes(p, run, n, &s));
        for (; at > 0 && t[at - 1] > s; at--) t[at] = t[at - 1];
        t[at] = s;
    }
    *pass = t[BATCHES / 2] / (double)n;
    return CORUN_OK;
}

/* ---- floors -----------------------------------------------------------------------------------
 */

double bench_floor(double bytes, double operations)
{
    double memory = bytes / 4.5e12, arithmetic = operations / 780e12;
    return memory > arithmetic ? memory : arithmetic;
}

static double floor_of_matrix(double n_out, double n_in, double m, double out_bytes)
{
    return bench_floor(2 * n_out * n_in + 2 * m * n_in + out_bytes * m * n_out,
                       2 * m * n_out * n_in);
}

static double floor_of_products(const bench_parts *p)
{
    const config *g = &p->cfg;
    double q = (double)g->n_head * g->d_head, kv = (double)g->n_kv * g->d_head, h = g->n_embd;
    double m = p->n_tok, ff = g->n_ff;
    double layer = floor_of_matrix(q + 2 * kv, h, m, 2) + floor_of_matrix(h, q, m, 2) +
                   floor_of_matrix(2 * ff, h, m, 2) + floor_of_matrix(h, ff, m, 2);
    return g->n_layer * layer + floor_of_matrix(g->n_vocab, h, p->rows, 4);
}

static double floor_of_attention(const bench_parts *p, int32_t pos, int32_t len)
{
    const config *g = &p->cfg;
    double read = (double)p->rows * (pos + len) * g->n_kv * g->d_head * 4;
    double pairs = (double)p->rows * len * (pos + (len + 1) / 2.0);
    return g->n_layer * bench_floor(read, 4 * pairs * g->n_head * g->d_head);
}

/* ---- timing -----------------------------------------------------------------------------------
 */

double bench_part_sum(const bench_part_times *t)
{
    return t->products + t->attention + t->rows + t->draws;
}

/* The backend as after opening: a recorded decode shape is that of one part alone. */
static corun_status prepare(bench_parts *p, int32_t pos, int32_t len)
{
    free_step(p);
    TRY(configure(p, p->rows, p->n_tok, pos + len));
    TRY(bench_fill_pages(p->o, 1, p->o->conf.n_page - 1));
    TRY(open_buffers(p));
    return put_step(p, pos, len);
}

static kept_part *find(kept_part *k, int n, int32_t of)
{
    for (int i = 0; i < n; i++)
        if (k[i].n == of) return &k[i];
    return NULL;
}

/* The products of the layers and the row kernels. */
static corun_status time_of_tokens(bench_parts *p, int32_t pos, int32_t len, kept_part *out)
{
    const kept_part *k = find(p->of_tokens, p->n_of_tokens, p->n_tok);
    if (k) {
        *out = *k;
        return CORUN_OK;
    }
    *out = (kept_part){.n = p->n_tok};
    TRY(prepare(p, pos, len));
    TRY(time_part(p, run_products, p->warm, &out->first));
    TRY(prepare(p, pos, len));
    TRY(time_part(p, run_rows, p->warm / 8, &out->second));
    if (p->n_of_tokens < MAX_KEPT) p->of_tokens[p->n_of_tokens++] = *out;
    return CORUN_OK;
}

/* The head and the draws, after prepare. */
static corun_status time_of_rows(bench_parts *p, int32_t pos, kept_part *out)
{
    const kept_part *k = find(p->of_rows, p->n_of_rows, p->rows);
    if (k) {
        *out = *k;
        return CORUN_OK;
    }
    *out = (kept_part){.n = p->rows};
    TRY(put_slots(p, pos));
    TRY(time_part(p, run_head, p->warm / 8, &out->first));
    TRY(time_part(p, run_draws, 0, &out->second));
    if (p->n_of_rows < MAX_KEPT) p->of_rows[p->n_of_rows++] = *out;
    return CORUN_OK;
}

static corun_status time_all(bench_parts *p, int32_t pos, int32_t len, bench_part_times *t)
{
    kept_part tokens, rows;
    TRY(time_of_tokens(p, pos, len, &tokens));
    TRY(prepare(p, pos, len));
    TRY(time_part(p, run_attention, p->warm / 8, &t->attention));
    TRY(time_of_rows(p, pos + len, &rows));
    t->products = tokens.first + rows.first;
    t->rows = tokens.second;
    t->draws = rows.second;
    t->products_floor = floor_of_products(p);
    t->attention_floor = floor_of_attention(p, pos, len);
    return CORUN_OK;
}

corun_status bench_parts_time(bench_parts *p, int32_t rows, int32_t pos, int32_t len,
                              bench_part_times *t)
{
    *t = (bench_part_times){0};
    p->rows = rows;
    p->n_tok = rows * len;
    corun_status st = time_all(p, pos, len, t);
    free_step(p);
    TRY(st);
    return configure(p, 1, 1, 1);
}
