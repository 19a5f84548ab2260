/* tune.c - owns the order and the budget of a search, and the file it writes.
 * Invariant: the file on disk is always a whole table: it is written beside and renamed. */
#include "proof/tune.h"

#include "base/clock.h"
#include "base/err.h"

#ifndef CORUN_CUDA

corun_status tune_run(const tune_opts *o, FILE *report)
{
    (void)o;
    (void)report;
    FAIL(CORUN_EUNSUPPORTED, "tune times products on a GPU: this build has no CUDA backend");
}

#else

#include <errno.h>
#include <string.h>

#include "base/json.h"
#include "files/config.h"
#include "files/hub.h"
#include "model/model.h"
#include "ops/cuda/search.h"

enum { N_SHAPE = OPS_N_PRODUCT, N_ROWS = 12, HEAD_ROWS = 1024, FULL_WEIGHT = 4 };

/* Full cells first: the others draw on them. */
static const int32_t ladder[N_ROWS] = {256, 1,   64,  2048, 8,    16,
                                       32,  128, 512, 1024, 4096, PLAN_MAX_ROWS};

static bool is_full(int32_t rows) { return rows == 1 || rows == 64 || rows == 256 || rows == 2048; }

typedef struct job {
    const char *name;
    plan_shape shape;
    int32_t max_rows;
} job;

typedef struct tune {
    gpu g;
    gpu_search *search;
    plan_table *table;
    job jobs[N_SHAPE];
    int n_job;
    plan_shape layer[N_SHAPE]; /* the products of a layer, searched now or before */
    int n_layer;
    double deadline, weight; /* weight: of the cells that are left */
    FILE *report;
} tune;

/* ---- what is to be searched ----------------------------------------------------------------- */

static corun_status read_config(config *c, const char *name)
{
    char *path;
    weights *w = NULL;
    TRY(hub_find(&path, name, true));
    size_t n = strlen(path);
    bool gguf = n >= 5 && strcmp(path + n - 5, ".gguf") == 0;
    corun_status st = gguf ? weights_open(&w, path) : config_open(c, path);
    if (st == CORUN_OK && gguf) st = config_from_gguf(c, w);
    weights_close(w);
    mem_free(path);
    return st;
}

static double weight_of(const job *j)
{
    double sum = 0;
    for (int i = 0; i < N_ROWS; i++)
        if (ladder[i] <= j->max_rows) sum += is_full(ladder[i]) ? FULL_WEIGHT : 1;
    return sum;
}

static void make_jobs(tune *t, const config *c, bool again)
{
    const bool bias[N_SHAPE] = {c->qkv_bias, c->o_bias, c->mlp_bias, c->mlp_bias, false};
    ops_dims d;
    ops_product p[N_SHAPE];
    model_dims(c, &d);
    ops_products(&d, p);
    for (int i = 0; i < N_SHAPE; i++) {
        bool head = i == OPS_HEAD;
        job j = {.name = p[i].name,
                 .shape = {p[i].n_out, p[i].n_in, bias[i], head ? OPS_F32 : OPS_BF16},
                 .max_rows = head ? HEAD_ROWS : PLAN_MAX_ROWS};
        if (j.shape.out == OPS_BF16) t->layer[t->n_layer++] = j.shape;
        if (!again && plan_find(t->table, OPS_SET_CANONICAL, &j.shape, 1)) {
            fprintf(t->report, "# %s %lld x %lld: in the table already\n", j.name,
                    (long long)j.shape.n_out, (long long)j.shape.n_in);
            continue;
        }
        t->jobs[t->n_job++] = j;
        t->weight += weight_of(&j);
    }
}

static corun_status open_table(tune *t, const char *path)
{
    int64_t version = (int64_t)t->g.lt_version;
    if (!file_exists(path)) return plan_new(&t->table, t->g.name, t->g.sm_count, version);
    TRY(plan_open(&t->table, path));
    if (plan_is_for(t->table, t->g.name, t->g.sm_count, version)) return CORUN_OK;
    FAIL(CORUN_EMISMATCH,
         "%s is a table for %s, %d SMs, cuBLASLt %lld; this is %s, %d SMs, cuBLASLt %lld", path,
         t->table->device, t->table->sm_count, (long long)t->table->version, t->g.name,
         t->g.sm_count, (long long)version);
}

/* ---- the file ------------------------------------------------------------------------------- */

static corun_status write_text(const buf *b, const char *path)
{
    FILE *f = fopen(path, "wb");
    if (!f) FAIL(CORUN_EIO, "%s: %s", path, strerror(errno));
    bool ok = fwrite(b->data, 1, b->len, f) == b->len;
    ok = fclose(f) == 0 && ok;
    if (!ok) FAIL(CORUN_EIO, "%s: %s", path, strerror(errno));
    return CORUN_OK;
}

static corun_status save(const tune *t, const char *path)
{
    buf text, beside;
    buf_init(&text, 64 << 20);
    buf_init(&beside, 1 << 16);
    plan_write(t->table, &text);
    buf_printf(&beside, "%s.new", path);
    corun_status st = buf_status(&text);
    if (st == CORUN_OK) st = buf_status(&beside);
    if (st == CORUN_OK) st = write_text(&text, beside.data);
    if (st == CORUN_OK && rename(beside.data, path) != 0)
        st = err_set(CORUN_EIO, "%s: %s", path, strerror(errno));
    buf_free(&text);
    buf_free(&beside);
    return st;
}

/* ---- running -------------------------------------------------------------------------------- */

/* The least time of a product at 4.5 TB/s and 780 TFLOP/s, in microseconds. */
static double floor_us(const plan_shape *s, int32_t rows)
{
    double n = (double)s->n_out, k = (double)s->n_in, m = rows;
    double memory = (2 * n * k + 2 * m * k + (s->out == OPS_F32 ? 4 : 2) * m * n) / 4.5e6;
    double arithmetic = 2 * m * n * k / 780e6;
    return memory > arithmetic ? memory : arithmetic;
}

static void print_config(FILE *f, const plan_config *c)
{
    fprintf(f, " %d/%d/%d/%d/%d/%d", c->id, c->tile, c->stages, c->cluster, c->custom, c->swizzle);
    if (c->split > 1) fprintf(f, "/split %d", c->split);
}

static void print_cell(const tune *t, const job *j, int32_t rows, const search_cell *c)
{
    double least = floor_us(&j->shape, rows);
    fprintf(t->report, "%-8s %6lld %6lld %5d %9.2f %5.1f %9.2f %5.2f %9.2f %5d %5d", j->name,
            (long long)j->shape.n_out, (long long)j->shape.n_in, rows, c->canonical_us,
            100 * least / c->canonical_us, c->standard_us, c->canonical_us / c->standard_us,
            c->pick_us, c->n_timed, c->n_valid);
    print_config(t->report, &c->canonical);
    fputs(" |", t->report);
    print_config(t->report, &c->standard);
    fputc('\n', t->report);
    fflush(t->report);
}

static corun_status run_job(tune *t, const job *j)
{
    TRY(gpu_search_shape(t->search, &j->shape, j->max_rows));
    for (int i = 0; i < N_ROWS; i++) {
        int32_t rows = ladder[i];
        if (rows > j->max_rows) continue;
        bool full = is_full(rows);
        double weight = full ? FULL_WEIGHT : 1, left = t->deadline - clock_seconds();
        search_cell c;
        TRY(gpu_search_cell(t->search, rows, full, left > 0 ? left * weight / t->weight : 0, &c));
        t->weight -= weight;
        print_cell(t, j, rows, &c);
        plan_entry e = {.set = OPS_SET_CANONICAL,
                        .shape = j->shape,
                        .rows = rows,
                        .config = c.canonical,
                        .ns = (int64_t)(1e3 * c.canonical_us)};
        TRY(plan_add(t->table, &e));
        e.set = OPS_SET_STANDARD;
        e.config = c.standard;
        e.ns = (int64_t)(1e3 * c.standard_us);
        TRY(plan_add(t->table, &e));
    }
    return CORUN_OK;
}

static corun_status choose_fixed(tune *t, bool again)
{
    plan_config c;
    double ratio;
    bool found;
    if (t->table->has_fixed && !again) return CORUN_OK;
    plan_config *best = mem_alloc(t->table->n_entry, sizeof *best, "configurations");
    int n = 0;
    if (!best) return CORUN_ENOMEM;
    for (size_t i = 0; i < t->table->n_entry; i++) {
        const plan_entry *e = &t->table->entry[i];
        if (e->set == OPS_SET_CANONICAL && e->rows == 256) best[n++] = e->config;
    }
    corun_status st =
        gpu_search_fixed(t->search, t->layer, t->n_layer, best, n, &c, &ratio, &found);
    mem_free(best);
    TRY(st);
    if (!found) {
        fputs("# fixed: no configuration serves every shape and every number of rows\n", t->report);
        return CORUN_OK;
    }
    t->table->fixed = c;
    t->table->has_fixed = true;
    fprintf(t->report, "# fixed: mean of %.3f times the best at 256 rows:", ratio);
    print_config(t->report, &c);
    fputc('\n', t->report);
    return CORUN_OK;
}

static corun_status run(tune *t, const tune_opts *o)
{
    double begin = clock_seconds();
    config c;
    TRY(read_config(&c, o->model));
    TRY(gpu_open(&t->g, -1));
    TRY(open_table(t, o->out));
    fprintf(t->report, "# corun %s tune: %s on %s, %d SMs, cuBLASLt %zu, at most %.0f s\n",
            corun_version(), o->model, t->g.name, t->g.sm_count, t->g.lt_version, o->seconds);
    make_jobs(t, &c, o->again);
    if (!t->n_job) return CORUN_OK;
    fputs("# times in us; share: of 4.5 TB/s or 780 TFLOP/s, whichever allows less; ratio: "
          "canonical over standard;\n# pick: the library's first; configurations: "
          "id/tile/stages/cluster/custom/swizzle, canonical | standard\n"
          "# product  n_out   n_in  rows canonical share  standard ratio      pick timed  held\n",
          t->report);
    TRY(gpu_search_open(&t->search, &t->g));
    t->deadline = begin + o->seconds;
    for (int i = 0; i < t->n_job; i++) {
        TRY(run_job(t, &t->jobs[i]));
        TRY(save(t, o->out));
    }
    TRY(choose_fixed(t, o->again));
    fprintf(t->report, "# %.1f s, %llu outputs compared by their bits, none differs\n",
            clock_seconds() - begin, (unsigned long long)gpu_search_compared(t->search));
    return save(t, o->out);
}

corun_status tune_run(const tune_opts *o, FILE *report)
{
    tune t = {.report = report};
    corun_status st = run(&t, o);
    gpu_search_close(t.search);
    plan_close(t.table);
    gpu_close(&t.g);
    return st;
}

#endif
