/* matmul.c - owns the matrix products of a device: which plan a product runs with, and its run.
 *
 * Invariant: the plan is a function of (table, kernel set, shape, rows, library, device); nothing
 * is timed and nothing depends on what ran before. Canonical and fixed plans have an admitted id,
 * no split and no workspace.
 *
 * The rule, where the table has no entry that the library accepts: canonical: the first pick of
 * the library without split and workspace whose id is admitted, else the first configuration of
 * the admitted ids (in the order below) that it accepts. standard: the library's first pick within
 * GPU_MATMUL_ROOM. fixed: the first of (the table's, the canonical plan of 256 rows, the
 * configurations in order) that is accepted at every size of `probes`; that one serves all. */
#include "ops/cuda/matmul.h"

#include <stdio.h>
#include <string.h>

#include "base/digest.h"
#include "ops/cuda/algo.h"

enum {
    RULE_VERSION = 1,
    SLOTS = 2048, /* plans kept; a power of two */
    PROBE_RUN = 8,
    MAX_PICKS = 16,
    MAX_BIAS = 1 << 18 /* outputs of an fp32 product with bias */
};

static const int32_t admitted_in_order[] = {66, 41, 42, 21, 23};
static const int32_t probes[] = {1, 16, 64, 256, 2048, PLAN_MAX_ROWS};

typedef struct slot {
    bool live, from_table;
    algo_problem problem;
    plan_config config;
    cublasLtMatmulAlgo_t algo;
} slot;

struct gpu_matmul {
    const gpu *g;
    ops_set set;
    const plan_table *table; /* NULL: the rule picks */
    plan_table *own;         /* the built-in one, where it is in use */
    algo_choices *choices;
    slot *slots;
    void *room;  /* GPU_MATMUL_ROOM bytes, or NULL */
    float *bias; /* a bias widened for an fp32 product */
    char note[256], digest[33];
};

/* ---- opening ------------------------------------------------------------------------------- */

static corun_status take_table(gpu_matmul *m, const plan_table *table)
{
    const gpu *g = m->g;
    long long version = (long long)g->lt_version;
    if (!table) {
        TRY(plan_builtin(&m->own, g->name, g->sm_count, version));
        table = m->own;
    }
    if (!table)
        snprintf(m->note, sizeof m->note,
                 "no plan table for %s, %d SMs, cuBLASLt %lld: products run with the library's "
                 "picks, which may be slower (corun tune makes a table)",
                 g->name, g->sm_count, version);
    else if (!plan_is_for(table, g->name, g->sm_count, version)) {
        snprintf(m->note, sizeof m->note,
                 "the plan table is for %s, %d SMs, cuBLASLt %lld, this is %s, %d SMs, cuBLASLt "
                 "%lld: it is left aside, products run with the library's picks",
                 table->device, table->sm_count, (long long)table->version, g->name, g->sm_count,
                 version);
        table = NULL;
    }
    m->table = table;
    char plans[33], text[96];
    TRY(plan_digest(table, m->set, plans));
    int n = snprintf(text, sizeof text, "matmul rule %d set %d plans %s", RULE_VERSION, (int)m->set,
                     plans);
    digest_hex(digest_of(text, (size_t)n), m->digest);
    return CORUN_OK;
}

corun_status gpu_matmul_open_plan(gpu_matmul **out, const gpu *g, ops_set set,
                                  const plan_table *table)
{
    gpu_matmul *m;
    corun_status st = CORUN_ENOMEM;
    *out = NULL;
    if (!MEM_NEW(m, 1)) return CORUN_ENOMEM;
    m->g = g;
    m->set = set;
    if (!MEM_NEW(m->slots, SLOTS) || !MEM_NEW(m->choices, 1)) goto done;
    TRY_OR_DONE(take_table(m, table));
    TRY_OR_DONE(gpu_alloc(g, (void **)&m->bias, MAX_BIAS * sizeof *m->bias, "widened bias"));
    *out = m;
    return CORUN_OK;
done:
    gpu_matmul_close(m);
    return st;
}

corun_status gpu_matmul_room(gpu_matmul *m, bool used)
{
    if (!used) {
        gpu_free(m->room);
        m->room = NULL;
        return CORUN_OK;
    }
    if (m->set != OPS_SET_STANDARD || m->room) return CORUN_OK;
    return gpu_alloc(m->g, &m->room, GPU_MATMUL_ROOM, "workspace of the matrix products");
}

void gpu_matmul_close(gpu_matmul *m)
{
    if (!m) return;
    gpu_free(m->room);
    gpu_free(m->bias);
    plan_close(m->own);
    mem_free(m->choices);
    mem_free(m->slots);
    mem_free(m);
}

void gpu_matmul_digest(const gpu_matmul *m, char hex[33]) { memcpy(hex, m->digest, 33); }

const char *gpu_matmul_note(const gpu_matmul *m) { return m->note; }

const plan_table *gpu_matmul_table(const gpu_matmul *m) { return m->table; }

/* ---- the plan of a product ------------------------------------------------------------------ */

/* Whether c runs s->problem; then it is the slot's plan. */
static bool accept(const gpu_matmul *m, slot *s, const plan_config *c)
{
    cublasLtMatmulAlgo_t base;
    size_t need;
    size_t room = m->set == OPS_SET_STANDARD ? GPU_MATMUL_ROOM : 0;
    if (!algo_base(m->g->lt, s->problem.shape.out, c->id, &base)) return false;
    algo_configure(&base, c, &s->algo);
    if (!algo_accepts(m->g->lt, &s->problem, &s->algo, room, &need)) return false;
    s->config = *c;
    return true;
}

/* A fixed configuration serves every number of rows, so it is asked at several. */
static bool accept_everywhere(const gpu_matmul *m, slot *s, const plan_config *c)
{
    slot probe = {0};
    for (size_t i = 0; i < sizeof probes / sizeof *probes; i++) {
        if (algo_problem_init(&probe.problem, &s->problem.shape, probes[i]) != CORUN_OK)
            return false;
        if (!accept(m, &probe, c)) return false;
    }
    return accept(m, s, c);
}

typedef bool (*accept_fn)(const gpu_matmul *m, slot *s, const plan_config *c);

static bool accept_pick(const gpu_matmul *m, slot *s, algo_problem *asked, accept_fn fn)
{
    cublasLtMatmulHeuristicResult_t r[MAX_PICKS];
    bool standard = m->set == OPS_SET_STANDARD;
    int n = algo_picks(m->g->lt, asked, standard ? GPU_MATMUL_ROOM : 0, r, MAX_PICKS);
    for (int i = 0; i < n; i++) {
        plan_config c;
        algo_config_of(&r[i].algo, &c);
        if (!standard && (!plan_admitted(c.id) || c.split != 1)) continue;
        if (fn(m, s, &c)) return true;
    }
    return false;
}

static bool accept_first(const gpu_matmul *m, slot *s, accept_fn fn)
{
    static const int32_t clusters[] = {0, 2};
    algo_choices *c = m->choices;
    for (size_t i = 0; i < sizeof admitted_in_order / sizeof *admitted_in_order; i++) {
        if (!algo_choices_of(m->g->lt, s->problem.shape.out, admitted_in_order[i], c)) continue;
        for (int t = 0; t < c->n_tile; t++)
            for (int k = 0; k < c->n_stages; k++)
                for (int u = 0; u < 2; u++) {
                    plan_config config = {.id = admitted_in_order[i],
                                          .tile = (int32_t)c->tile[t],
                                          .stages = (int32_t)c->stages[k],
                                          .cluster = clusters[u],
                                          .split = 1};
                    if (fn(m, s, &config)) return true;
                }
    }
    return false;
}

static bool accept_entry(const gpu_matmul *m, slot *s)
{
    plan_shape shape = s->problem.shape;
    if (!m->table) return false;
    if (m->set == OPS_SET_FIXED)
        return m->table->has_fixed && accept_everywhere(m, s, &m->table->fixed);
    const plan_entry *e = plan_find(m->table, m->set, &shape, s->problem.rows);
    if (!e && shape.bias) { /* the plan of the same product without bias */
        shape.bias = false;
        e = plan_find(m->table, m->set, &shape, s->problem.rows);
    }
    return e && accept(m, s, &e->config);
}

static bool accept_rule(const gpu_matmul *m, slot *s)
{
    if (m->set != OPS_SET_FIXED)
        return accept_pick(m, s, &s->problem, accept) ||
               (m->set == OPS_SET_CANONICAL && accept_first(m, s, accept));
    algo_problem asked;
    if (algo_problem_init(&asked, &s->problem.shape, 256) != CORUN_OK) return false;
    return accept_pick(m, s, &asked, accept_everywhere) || accept_first(m, s, accept_everywhere);
}

static bool is_of(const slot *s, const plan_shape *shape, int32_t rows)
{
    const plan_shape *o = &s->problem.shape;
    return s->live && s->problem.rows == rows && o->n_out == shape->n_out &&
           o->n_in == shape->n_in && o->bias == shape->bias && o->out == shape->out;
}

/* Finds the kept plan, or makes it. A full neighbourhood gives up its first plan: that costs time,
 * never a bit. */
static corun_status find_slot(gpu_matmul *m, int32_t rows, const plan_shape *shape, slot **out)
{
    uint64_t h = (uint64_t)shape->n_out * 0x9E3779B97F4A7C15u ^
                 (uint64_t)shape->n_in * 0xBF58476D1CE4E5B9u ^
                 (uint64_t)(rows * 4 + shape->bias * 2 + shape->out) * 0x94D049BB133111EBu;
    slot *s = NULL;
    for (int i = 0; i < PROBE_RUN; i++) {
        slot *at = &m->slots[((h >> 40) + (unsigned)i) & (SLOTS - 1)];
        if (is_of(at, shape, rows)) {
            *out = at;
            return CORUN_OK;
        }
        if (!at->live && !s) s = at;
    }
    if (!s) s = &m->slots[(h >> 40) & (SLOTS - 1)];
    s->live = false;
    TRY(algo_problem_init(&s->problem, shape, rows));
    s->from_table = accept_entry(m, s);
    if (!s->from_table && !accept_rule(m, s))
        FAIL(CORUN_EUNSUPPORTED,
             "product of %d rows, %lld x %lld%s: cuBLASLt %lld has no configuration that this "
             "kernel set admits",
             rows, (long long)shape->n_out, (long long)shape->n_in, shape->bias ? " + bias" : "",
             (long long)m->g->lt_version);
    s->live = true;
    *out = s;
    return CORUN_OK;
}

static corun_status check_shape(int32_t rows, const plan_shape *s)
{
    if (rows < 1 || s->n_out < 1 || s->n_in < 1)
        FAIL(CORUN_EINVAL, "product of %d rows, %lld x %lld: sizes below 1", rows,
             (long long)s->n_out, (long long)s->n_in);
    if (s->out != OPS_BF16 && s->out != OPS_F32)
        FAIL(CORUN_EINVAL, "a product's output is bf16 or fp32");
    if (s->bias && s->out == OPS_F32 && s->n_out > MAX_BIAS)
        FAIL(CORUN_EUNSUPPORTED, "an fp32 product with bias has at most %d outputs, not %lld",
             MAX_BIAS, (long long)s->n_out);
    return CORUN_OK;
}

corun_status gpu_matmul_plan(gpu_matmul *m, int32_t rows, const plan_shape *s, plan_config *c,
                             bool *from_table)
{
    slot *found;
    TRY(check_shape(rows, s));
    TRY(find_slot(m, rows < PLAN_MAX_ROWS ? rows : PLAN_MAX_ROWS, s, &found));
    *c = found->config;
    *from_table = found->from_table;
    return CORUN_OK;
}

corun_status gpu_matmul_prepare(gpu_matmul *m, int32_t rows, int64_t n_out, int64_t n_in, bool bias,
                                ops_dtype out_type)
{
    plan_shape s = {n_out, n_in, bias, out_type};
    slot *found;
    TRY(check_shape(rows, &s));
    if (rows > PLAN_MAX_ROWS) TRY(find_slot(m, PLAN_MAX_ROWS, &s, &found));
    int32_t rest = rows % PLAN_MAX_ROWS;
    return find_slot(m, rest ? rest : PLAN_MAX_ROWS, &s, &found);
}

/* ---- running ------------------------------------------------------------------------------- */

corun_status gpu_matmul_run(gpu_matmul *m, int32_t rows, int64_t n_out, int64_t n_in, const void *w,
                            const void *bias, const void *x, ops_dtype out_type, void *out)
{
    const gpu *g = m->g;
    plan_shape shape = {n_out, n_in, bias != NULL, out_type};
    size_t in_row = (size_t)n_in * 2, out_row = (size_t)n_out * (out_type == OPS_F32 ? 4 : 2);
    size_t room = m->set == OPS_SET_STANDARD ? GPU_MATMUL_ROOM : 0;
    if (room && !m->room) FAIL(CORUN_EINTERNAL, "products of the set standard without workspace");
    TRY(check_shape(rows, &shape));
    if (bias && out_type == OPS_F32) {
        TRY(gpu_widen(g, bias, n_out, m->bias));
        bias = m->bias;
    }
    for (int32_t first = 0; first < rows; first += PLAN_MAX_ROWS) {
        int32_t n = rows - first < PLAN_MAX_ROWS ? rows - first : PLAN_MAX_ROWS;
        slot *s;
        TRY(find_slot(m, n, &shape, &s));
        if (bias) TRY(algo_problem_bias(&s->problem, bias));
        TRY(algo_run(g->lt, &s->problem, &s->algo, w, (const char *)x + (size_t)first * in_row,
                     (char *)out + (size_t)first * out_row, m->room, room, g->stream));
    }
    return CORUN_OK;
}
