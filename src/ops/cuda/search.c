/* search.c - owns the timing and checking of configurations (see search.h).
 * Invariant: a configuration is reported as canonical only after every element of its output was
 * compared with the canonical accumulators. */
#include "ops/cuda/search.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "ops/cuda/algo.h"
#include "ops/ref_mma.h"

enum {
    KEEP = 40,    /* best of a full cell, for the cells beside it */
    FINALS = 6,   /* configurations of a set that are timed again */
    MAX_FULL = 8, /* full cells of a shape */
    SCREEN_LAUNCHES = 8,
    FINAL_LAUNCHES = 64,
    FINAL_REPEATS = 5,
    SAMPLES = 192, /* elements that are compared with ref_mma_dot */
    MAX_CUSTOM = 15
};

static const int32_t admitted[] = {66, 41, 42, 21, 23};
enum { N_ADMITTED = sizeof admitted / sizeof *admitted };
static const size_t rotate_bytes = (size_t)320 << 20, flush_bytes = (size_t)96 << 20;

typedef struct timed {
    plan_config config;
    float us;
} timed;

typedef struct times {
    timed *at;
    int n, cap;
} times;

/* What was best for other shapes at a number of rows: tried first. */
typedef struct seeds {
    int32_t rows;
    ops_dtype out;
    times best;
} seeds;

typedef struct full_cell {
    int32_t rows, n;
    plan_config best[KEEP];
} full_cell;

struct gpu_search {
    const gpu *g;
    pool *threads;
    plan_shape shape;
    int32_t max_rows;
    char *w; /* `copies` weights, one after the other */
    size_t w_bytes;
    int copies, turn;
    void *x, *bias, *out, *room, *flush;
    float *acc;
    unsigned long long *count;
    cudaEvent_t begin, end;
    times all[2]; /* what the library accepts, bf16 and fp32 outputs; us unused */
    full_cell full[MAX_FULL];
    int n_full;
    seeds seed[2 * MAX_FULL];
    int n_seed;
    uint64_t compared;
};

static bool push(times *t, const plan_config *c, float us)
{
    if (t->n == t->cap) {
        int cap = t->cap ? 2 * t->cap : 256;
        timed *p = mem_realloc(t->at, (size_t)cap, sizeof *p, "configurations");
        if (!p) return false;
        t->at = p;
        t->cap = cap;
    }
    t->at[t->n++] = (timed){*c, us};
    return true;
}

static bool has(const times *t, const plan_config *c)
{
    for (int i = 0; i < t->n; i++)
        if (plan_config_equal(&t->at[i].config, c)) return true;
    return false;
}

static int by_time(const void *a, const void *b)
{
    float x = ((const timed *)a)->us, y = ((const timed *)b)->us;
    return (x > y) - (x < y);
}

static corun_status cuda(cudaError_t e) { return gpu_status((int)e, "search"); }

/* ---- opening ------------------------------------------------------------------------------- */

corun_status gpu_search_open(gpu_search **out, const gpu *g)
{
    gpu_search *s;
    corun_status st = CORUN_OK;
    *out = NULL;
    if (!MEM_NEW(s, 1)) return CORUN_ENOMEM;
    s->g = g;
    TRY_OR_DONE(pool_open(&s->threads, 0));
    TRY_OR_DONE(cuda(cudaEventCreate(&s->begin)));
    TRY_OR_DONE(cuda(cudaEventCreate(&s->end)));
    TRY_OR_DONE(gpu_alloc(g, &s->room, GPU_MATMUL_ROOM, "workspace"));
    TRY_OR_DONE(gpu_alloc(g, &s->flush, flush_bytes, "L2 flush"));
    TRY_OR_DONE(gpu_alloc(g, (void **)&s->count, sizeof *s->count, "counter"));
    *out = s;
    return CORUN_OK;
done:
    gpu_search_close(s);
    return st;
}

static void free_operands(gpu_search *s)
{
    void **each[] = {(void **)&s->w, &s->x, &s->bias, &s->out, (void **)&s->acc};
    for (size_t i = 0; i < sizeof each / sizeof *each; i++) {
        gpu_free(*each[i]);
        *each[i] = NULL;
    }
}

void gpu_search_close(gpu_search *s)
{
    if (!s) return;
    free_operands(s);
    gpu_free(s->room);
    gpu_free(s->flush);
    gpu_free(s->count);
    if (s->begin) cudaEventDestroy(s->begin);
    if (s->end) cudaEventDestroy(s->end);
    for (int i = 0; i < 2; i++) mem_free(s->all[i].at);
    for (int i = 0; i < s->n_seed; i++) mem_free(s->seed[i].best.at);
    pool_close(s->threads);
    mem_free(s);
}

uint64_t gpu_search_compared(const gpu_search *s) { return s->compared; }

/* ---- what the library accepts -------------------------------------------------------------- */

typedef struct enumeration {
    const gpu *g;
    algo_problem problem;
    algo_choices *choices; /* [N_ADMITTED] */
    bool offered[N_ADMITTED];
    times *found; /* [workers][N_ADMITTED] */
} enumeration;

static void enumerate_tile(enumeration *e, int a, uint32_t tile, algo_problem *p, times *found)
{
    const algo_choices *c = &e->choices[a];
    int customs = c->custom < MAX_CUSTOM ? c->custom : MAX_CUSTOM;
    /* kernels of the older families know no clusters: 21, 23 */
    int clusters = admitted[a] < 40 ? 1 : CUBLASLT_CLUSTER_SHAPE_END;
    for (int k = 0; k < c->n_stages; k++)
        for (int u = 0; u < clusters; u++)
            for (int o = 0; o <= customs; o++)
                for (int z = 0; z <= c->swizzle; z++) {
                    plan_config config = {.id = admitted[a],
                                          .tile = (int32_t)tile,
                                          .stages = (int32_t)c->stages[k],
                                          .cluster = u,
                                          .custom = o,
                                          .swizzle = z,
                                          .split = 1};
                    cublasLtMatmulAlgo_t algo;
                    size_t need;
                    if (u == 1) continue; /* no shape has this number */
                    algo_configure(&c->base, &config, &algo);
                    if (algo_accepts(e->g->lt, p, &algo, 0, &need)) push(found, &config, 0);
                }
}

static void enumerate_worker(void *arg, int worker, int n_worker)
{
    enumeration *e = arg;
    algo_problem p = e->problem;
    for (int a = 0; a < N_ADMITTED; a++) {
        int64_t begin, end;
        if (!e->offered[a]) continue;
        pool_slice(e->choices[a].n_tile, 1, worker, n_worker, &begin, &end);
        for (int64_t t = begin; t < end; t++)
            enumerate_tile(e, a, e->choices[a].tile[t], &p, &e->found[worker * N_ADMITTED + a]);
    }
}

/* Once for each form of output: asked with the first shape that comes, at 256 rows. */
static corun_status enumerate(gpu_search *s)
{
    times *all = &s->all[s->shape.out == OPS_F32];
    if (all->n) return CORUN_OK;
    int workers = pool_size(s->threads);
    enumeration e = {.g = s->g};
    plan_shape shape = s->shape;
    shape.bias = false;
    corun_status st = CORUN_ENOMEM;
    if (!MEM_NEW(e.choices, N_ADMITTED)) return CORUN_ENOMEM;
    if (!(e.found = mem_alloc((size_t)workers * N_ADMITTED, sizeof *e.found, "configurations")))
        goto done;
    TRY_OR_DONE(algo_problem_init(&e.problem, &shape, 256));
    for (int a = 0; a < N_ADMITTED; a++)
        e.offered[a] = algo_choices_of(s->g->lt, shape.out, admitted[a], &e.choices[a]);
    pool_run(s->threads, enumerate_worker, &e);
    for (int a = 0; a < N_ADMITTED; a++)
        for (int w = 0; w < workers; w++) {
            const times *f = &e.found[w * N_ADMITTED + a];
            for (int i = 0; i < f->n; i++)
                if (!push(all, &f->at[i].config, 0)) goto done;
        }
    if (!all->n)
        FAIL_OR_DONE(CORUN_EUNSUPPORTED, "cuBLASLt %lld accepts no admitted configuration",
                     (long long)s->g->lt_version);
    st = CORUN_OK;
done:
    for (int i = 0; e.found && i < workers * N_ADMITTED; i++) mem_free(e.found[i].at);
    mem_free(e.found);
    mem_free(e.choices);
    return st;
}

/* ---- operands and the reference ------------------------------------------------------------- */

static uint64_t mix(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

static corun_status check_samples(gpu_search *s)
{
    size_t k = (size_t)s->shape.n_in;
    corun_status st = CORUN_ENOMEM;
    uint16_t *x = mem_alloc(k, 2, "sample"), *w = mem_alloc(k, 2, "sample");
    if (!x || !w) goto done;
    for (uint64_t i = 0; i < SAMPLES; i++) {
        size_t m = mix(2 * i) % (uint64_t)s->max_rows,
               n = mix(2 * i + 1) % (uint64_t)s->shape.n_out;
        float got, want;
        TRY_OR_DONE(cuda(cudaMemcpy(x, (char *)s->x + m * k * 2, k * 2, cudaMemcpyDeviceToHost)));
        TRY_OR_DONE(cuda(cudaMemcpy(w, s->w + n * k * 2, k * 2, cudaMemcpyDeviceToHost)));
        TRY_OR_DONE(cuda(
            cudaMemcpy(&got, s->acc + m * (size_t)s->shape.n_out + n, 4, cudaMemcpyDeviceToHost)));
        want = ref_mma_dot(x, w, (int64_t)k);
        if (memcmp(&got, &want, 4) != 0)
            FAIL_OR_DONE(CORUN_EMISMATCH,
                         "product of %d rows, %lld x %lld: row %zu, output %zu is %.9g, the "
                         "definition gives %.9g",
                         s->max_rows, (long long)s->shape.n_out, (long long)s->shape.n_in, m, n,
                         (double)got, (double)want);
    }
    st = CORUN_OK;
done:
    mem_free(x);
    mem_free(w);
    return st;
}

/* The accumulators by the rule alone: the first admitted configuration. */
static corun_status make_reference(gpu_search *s)
{
    plan_table *empty = NULL;
    gpu_matmul *m = NULL;
    corun_status st = CORUN_OK;
    TRY_OR_DONE(plan_new(&empty, s->g->name, s->g->sm_count, (int64_t)s->g->lt_version));
    TRY_OR_DONE(gpu_matmul_open_plan(&m, s->g, OPS_SET_CANONICAL, empty));
    TRY_OR_DONE(gpu_matmul_run(m, s->max_rows, s->shape.n_out, s->shape.n_in, s->w, NULL, s->x,
                               OPS_F32, s->acc));
    TRY_OR_DONE(cuda(cudaStreamSynchronize((cudaStream_t)s->g->stream)));
    TRY_OR_DONE(check_samples(s));
done:
    gpu_matmul_close(m);
    plan_close(empty);
    return st;
}

corun_status gpu_search_shape(gpu_search *s, const plan_shape *shape, int32_t max_rows)
{
    size_t n = (size_t)shape->n_out, k = (size_t)shape->n_in, m = (size_t)max_rows;
    free_operands(s);
    s->shape = *shape;
    s->max_rows = max_rows;
    s->n_full = s->turn = 0;
    s->w_bytes = (n * k * 2 + 255) / 256 * 256;
    size_t copies = (rotate_bytes + s->w_bytes - 1) / s->w_bytes;
    s->copies = copies < 2 ? 2 : (int)copies;
    TRY(gpu_alloc(s->g, (void **)&s->w, s->w_bytes * (size_t)s->copies, "weights"));
    TRY(gpu_alloc(s->g, &s->x, m * k * 2, "input"));
    TRY(gpu_alloc(s->g, &s->bias, n * 2, "bias"));
    TRY(gpu_alloc(s->g, (void **)&s->acc, m * n * 4, "accumulators"));
    TRY(gpu_alloc(s->g, &s->out, m * n * 4, "output"));
    TRY(gpu_fill_normal(s->g, s->x, m * k, 1, 1.0f));
    TRY(gpu_fill_normal(s->g, s->w, s->w_bytes / 2 * (size_t)s->copies, 2, 0.05f));
    TRY(gpu_fill_normal(s->g, s->bias, n, 3, 1.0f));
    TRY(make_reference(s));
    return enumerate(s);
}

/* ---- time and bits of one configuration ---------------------------------------------------- */

typedef struct cell {
    gpu_search *s;
    algo_problem problem;
    double floor_us; /* of memory and arithmetic: sizes the runs */
    double deadline;
    times canonical, standard;
    int n_valid;
} cell;

/* A configuration in the library's form, with the workspace that its kernel set has. */
typedef struct ready {
    cublasLtMatmulAlgo_t algo;
    size_t room;
} ready;

static bool resolve(cell *c, const plan_config *config, ready *r)
{
    cublasLtMatmulAlgo_t base;
    size_t need;
    r->room = config->split > 1 || !plan_admitted(config->id) ? GPU_MATMUL_ROOM : 0;
    if (!algo_base(c->s->g->lt, c->problem.shape.out, config->id, &base)) return false;
    algo_configure(&base, config, &r->algo);
    return algo_accepts(c->s->g->lt, &c->problem, &r->algo, r->room, &need);
}

static corun_status launch(cell *c, const ready *r, const void *w)
{
    gpu_search *s = c->s;
    return algo_run(s->g->lt, &c->problem, &r->algo, w, s->x, s->out, r->room ? s->room : NULL,
                    r->room, s->g->stream);
}

static const char *next_weight(gpu_search *s)
{
    const char *w = s->w + s->w_bytes * (size_t)s->turn;
    s->turn = (s->turn + 1) % s->copies;
    return w;
}

/* The shortest of `repeats` runs of a graph of launches, a launch; 1e30: it cannot be captured. */
static corun_status time_graph(cell *c, const ready *r, int launches, int repeats, float *us)
{
    gpu_search *s = c->s;
    cudaStream_t stream = (cudaStream_t)s->g->stream;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    bool ok = true;
    *us = 1e30f;
    TRY(cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal)));
    for (int i = 0; i < launches && ok; i++) ok = launch(c, r, next_weight(s)) == CORUN_OK;
    if (cudaStreamEndCapture(stream, &graph) != cudaSuccess || !ok ||
        cudaGraphInstantiate(&exec, graph, 0) != cudaSuccess) {
        (void)cudaGetLastError();
        if (graph) cudaGraphDestroy(graph);
        return CORUN_OK;
    }
    corun_status st = cuda(cudaGraphUpload(exec, stream));
    for (int i = 0; i < repeats && st == CORUN_OK; i++) {
        float ms = 0;
        /* The memset empties L2, and hides the time that the host needs for the launch. */
        st = cuda(cudaMemsetAsync(s->flush, i, flush_bytes, stream));
        if (st == CORUN_OK) st = cuda(cudaEventRecord(s->begin, stream));
        if (st == CORUN_OK) st = cuda(cudaGraphLaunch(exec, stream));
        if (st == CORUN_OK) st = cuda(cudaEventRecord(s->end, stream));
        if (st == CORUN_OK) st = cuda(cudaEventSynchronize(s->end));
        if (st == CORUN_OK) st = cuda(cudaEventElapsedTime(&ms, s->begin, s->end));
        if (1e3f * ms / (float)launches < *us) *us = 1e3f * ms / (float)launches;
    }
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    return st;
}

static int launches_for(const cell *c, double us, int most)
{
    double n = us / (c->floor_us + 2);
    return n < 1 ? 1 : n > most ? most : (int)n;
}

/* A few launches without a graph: while the memset empties L2 the host gets ahead of the device. */
static corun_status time_launches(cell *c, const ready *r, int launches, float *us)
{
    gpu_search *s = c->s;
    cudaStream_t stream = (cudaStream_t)s->g->stream;
    float ms = 0;
    bool ok = true;
    TRY(cuda(cudaMemsetAsync(s->flush, 0, flush_bytes, stream)));
    TRY(cuda(cudaEventRecord(s->begin, stream)));
    for (int i = 0; i < launches && ok; i++) ok = launch(c, r, next_weight(s)) == CORUN_OK;
    TRY(cuda(cudaEventRecord(s->end, stream)));
    TRY(cuda(cudaEventSynchronize(s->end)));
    TRY(cuda(cudaEventElapsedTime(&ms, s->begin, s->end)));
    *us = ok ? 1e3f * ms / (float)launches : 1e30f;
    return CORUN_OK;
}

/* Times a configuration briefly into its list; one that the library refuses is left out. The first
 * launch of a kernel loads it: its time is taken again. */
static corun_status screen(cell *c, const plan_config *config, bool standard, float *us)
{
    ready r;
    times *list = standard ? &c->standard : &c->canonical;
    double begin = clock_seconds();
    *us = 1e30f;
    if (!resolve(c, config, &r)) return CORUN_OK;
    int launches = launches_for(c, 40, SCREEN_LAUNCHES);
    TRY(time_launches(c, &r, launches, us));
    if (*us < 1e29f && clock_seconds() - begin > 3e-4 + 2e-6 * c->floor_us * launches)
        TRY(time_launches(c, &r, launches, us));
    if (*us < 1e29f && !push(list, config, *us)) return CORUN_ENOMEM;
    return CORUN_OK;
}

static corun_status compare(cell *c, const plan_config *config, ops_dtype out, bool *differs)
{
    gpu_search *s = c->s;
    cudaStream_t stream = (cudaStream_t)s->g->stream;
    cell as = *c;
    plan_shape shape = s->shape;
    ready r;
    unsigned long long count = 0;
    size_t rows = (size_t)c->problem.rows, elements = rows * (size_t)shape.n_out;
    *differs = false;
    shape.out = out;
    shape.bias = s->shape.bias && out == OPS_BF16;
    TRY(algo_problem_init(&as.problem, &shape, c->problem.rows));
    if (shape.bias) TRY(algo_problem_bias(&as.problem, s->bias));
    if (!resolve(&as, config, &r)) return CORUN_OK;
    TRY(cuda(cudaMemsetAsync(s->out, 0xff, elements * (out == OPS_F32 ? 4 : 2), stream)));
    TRY(cuda(cudaMemsetAsync(s->count, 0, sizeof count, stream)));
    TRY(launch(&as, &r, s->w));
    TRY(gpu_count_differing(s->g, s->acc, shape.bias ? s->bias : NULL, s->out, out, rows,
                            shape.n_out, s->count));
    TRY(cuda(cudaMemcpyAsync(&count, s->count, sizeof count, cudaMemcpyDeviceToHost, stream)));
    TRY(cuda(cudaStreamSynchronize(stream)));
    s->compared += elements;
    *differs = count != 0;
    return CORUN_OK;
}

/* The output as it is asked for, and as fp32 where the same configuration gives it. */
static corun_status check_bits(cell *c, const plan_config *config)
{
    bool differs = false, differs_f32 = false;
    TRY(compare(c, config, c->s->shape.out, &differs));
    if (c->s->shape.out != OPS_F32) TRY(compare(c, config, OPS_F32, &differs_f32));
    if (differs || differs_f32)
        FAIL(CORUN_EMISMATCH,
             "product of %d rows, %lld x %lld: id %d, tile %d, stages %d, cluster %d, custom %d, "
             "swizzle %d gives other bits than the definition",
             c->problem.rows, (long long)c->s->shape.n_out, (long long)c->s->shape.n_in, config->id,
             config->tile, config->stages, config->cluster, config->custom, config->swizzle);
    return CORUN_OK;
}

/* ---- the search of a cell ------------------------------------------------------------------- */

static corun_status screen_picks(cell *c)
{
    cublasLtMatmulHeuristicResult_t r[KEEP];
    float us;
    for (int standard = 0; standard < 2; standard++) {
        int n = algo_picks(c->s->g->lt, &c->problem, standard ? GPU_MATMUL_ROOM : 0, r,
                           standard ? 8 : 16);
        for (int i = 0; i < n; i++) {
            plan_config config;
            algo_config_of(&r[i].algo, &config);
            bool is_canonical = plan_admitted(config.id) && config.split == 1;
            if (is_canonical ? has(&c->canonical, &config) : has(&c->standard, &config)) continue;
            TRY(screen(c, &config, !is_canonical, &us));
        }
    }
    return CORUN_OK;
}

static float best_of(const times *t)
{
    float best = 1e30f;
    for (int i = 0; i < t->n; i++)
        if (t->at[i].us < best) best = t->at[i].us;
    return best;
}

typedef struct group {
    int begin, end;
    float us;
} group;

static int by_group_time(const void *a, const void *b)
{
    float x = ((const group *)a)->us, y = ((const group *)b)->us;
    return (x > y) - (x < y);
}

/* Times the k-th of three representatives of a group: its middle, first and last. */
static corun_status screen_representative(cell *c, const times *all, group *g, int k)
{
    const int at[] = {(g->begin + g->end) / 2, g->begin, g->end - 1};
    const plan_config *config = &all->at[at[k]].config;
    float us;
    if (has(&c->canonical, config)) return CORUN_OK;
    TRY(screen(c, config, false, &us));
    if (us < g->us) g->us = us;
    return CORUN_OK;
}

/* Cuts the list into groups of one id and tile, and times their representatives: one of each, then
 * the others of groups that could be good. The order strides through the list, so that a search
 * that is cut short has seen tiles of all sizes. */
static corun_status screen_groups(cell *c, const times *all, group *g, int *n_group)
{
    int n = 0, stride = 197;
    for (int i = 0; i < all->n; n++) {
        const plan_config *first = &all->at[i].config;
        g[n] = (group){i, i, 1e30f};
        while (g[n].end < all->n && all->at[g[n].end].config.id == first->id &&
               all->at[g[n].end].config.tile == first->tile)
            g[n].end++;
        i = g[n].end;
    }
    while (n % stride == 0) stride += 2;
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < n && clock_seconds() < c->deadline; i++) {
            group *at = &g[(int64_t)i * stride % n];
            if (k == 0 || at->us < 3 * best_of(&c->canonical))
                TRY(screen_representative(c, all, at, k));
        }
    *n_group = n;
    return CORUN_OK;
}

/* The seeds of c's rows and output; NULL: there is no room for more. */
static seeds *seeds_of(cell *c)
{
    gpu_search *s = c->s;
    for (int i = 0; i < s->n_seed; i++)
        if (s->seed[i].rows == c->problem.rows && s->seed[i].out == s->shape.out)
            return &s->seed[i];
    if (s->n_seed == 2 * MAX_FULL) return NULL;
    s->seed[s->n_seed] = (seeds){.rows = c->problem.rows, .out = s->shape.out};
    return &s->seed[s->n_seed++];
}

static corun_status screen_seeds(cell *c)
{
    const seeds *s = seeds_of(c);
    float us;
    for (int i = s ? s->best.n - 1 : -1; i >= 0 && clock_seconds() < c->deadline; i--)
        if (!has(&c->canonical, &s->best.at[i].config))
            TRY(screen(c, &s->best.at[i].config, false, &us));
    return CORUN_OK;
}

static corun_status screen_all(cell *c)
{
    const times *all = &c->s->all[c->s->shape.out == OPS_F32];
    corun_status st = CORUN_OK;
    int n_group;
    float us;
    c->n_valid = all->n;
    group *g = mem_alloc((size_t)all->n, sizeof *g, "groups");
    if (!g) return CORUN_ENOMEM;
    TRY_OR_DONE(screen_seeds(c));
    TRY_OR_DONE(screen_groups(c, all, g, &n_group));
    qsort(g, (size_t)n_group, sizeof *g, by_group_time);
    for (int k = 0; k < n_group && clock_seconds() < c->deadline; k++) {
        if (g[k].us > 2 * best_of(&c->canonical)) break;
        for (int i = g[k].begin; i < g[k].end && clock_seconds() < c->deadline; i++)
            if (!has(&c->canonical, &all->at[i].config))
                TRY_OR_DONE(screen(c, &all->at[i].config, false, &us));
    }
done:
    mem_free(g);
    return st;
}

/* The best of the full cells with the next smaller and the next larger number of rows. */
static corun_status screen_neighbours(cell *c)
{
    const gpu_search *s = c->s;
    const full_cell *side[2] = {NULL, NULL};
    for (int i = 0; i < s->n_full; i++) {
        const full_cell *f = &s->full[i];
        int above = f->rows > c->problem.rows;
        if (!side[above] || (above ? f->rows < side[1]->rows : f->rows > side[0]->rows))
            side[above] = f;
    }
    int share = side[0] && side[1] ? KEEP / 2 : KEEP;
    for (int k = 0; k < share; k++)
        for (int i = 0; i < 2; i++) {
            float us;
            if (!side[i] || k >= side[i]->n || clock_seconds() > c->deadline) continue;
            c->n_valid++;
            if (!has(&c->canonical, &side[i]->best[k]))
                TRY(screen(c, &side[i]->best[k], false, &us));
        }
    return CORUN_OK;
}

/* The best configurations with their K in parts, where that can pay: few outputs, a long K. */
static corun_status screen_splits(cell *c)
{
    static const int32_t parts[] = {2, 3, 4, 6, 8};
    if (c->problem.rows > 512 || c->s->shape.n_in < 1024) return CORUN_OK;
    int most = c->canonical.n < 10 ? c->canonical.n : 10;
    for (int i = 0; i < most; i++)
        for (size_t k = 0; k < sizeof parts / sizeof *parts; k++) {
            plan_config config = c->canonical.at[i].config;
            float us;
            config.split = parts[k];
            config.reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
            if (clock_seconds() > c->deadline) return CORUN_OK;
            if (!has(&c->standard, &config)) TRY(screen(c, &config, true, &us));
        }
    return CORUN_OK;
}

static corun_status time_again(cell *c, times *t)
{
    int most = t->n < FINALS ? t->n : FINALS;
    for (int i = 0; i < most; i++) {
        ready r;
        if (!resolve(c, &t->at[i].config, &r)) continue;
        TRY(time_graph(c, &r, launches_for(c, 300, FINAL_LAUNCHES), FINAL_REPEATS, &t->at[i].us));
    }
    qsort(t->at, (size_t)most, sizeof *t->at, by_time);
    return CORUN_OK;
}

/* The library's first pick, run as the set standard runs it. */
static corun_status time_first_pick(cell *c, search_cell *out)
{
    cublasLtMatmulHeuristicResult_t r;
    float us;
    if (algo_picks(c->s->g->lt, &c->problem, GPU_MATMUL_ROOM, &r, 1) < 1) return CORUN_OK;
    const ready first = {r.algo, GPU_MATMUL_ROOM};
    TRY(time_graph(c, &first, launches_for(c, 300, FINAL_LAUNCHES), FINAL_REPEATS, &us));
    if (us > 1e29f) return CORUN_OK;
    out->pick_us = (double)us;
    if (out->pick_us >= out->standard_us) return CORUN_OK;
    out->standard_us = out->pick_us;
    algo_config_of(&r.algo, &out->standard);
    return CORUN_OK;
}

/* Puts the library's first canonical pick among those that are timed again. */
static void raise_pick(cell *c)
{
    cublasLtMatmulHeuristicResult_t r;
    plan_config pick;
    if (c->canonical.n < FINALS || algo_picks(c->s->g->lt, &c->problem, 0, &r, 1) < 1) return;
    algo_config_of(&r.algo, &pick);
    for (int i = FINALS; i < c->canonical.n; i++)
        if (plan_config_equal(&c->canonical.at[i].config, &pick)) {
            timed t = c->canonical.at[i];
            c->canonical.at[i] = c->canonical.at[FINALS - 1];
            c->canonical.at[FINALS - 1] = t;
            return;
        }
}

/* Keeps what later cells and the fixed configuration need of a full cell. */
static corun_status keep(cell *c)
{
    gpu_search *s = c->s;
    if (s->n_full < MAX_FULL) {
        full_cell *f = &s->full[s->n_full++];
        f->rows = c->problem.rows;
        f->n = c->canonical.n < KEEP ? c->canonical.n : KEEP;
        for (int i = 0; i < f->n; i++) f->best[i] = c->canonical.at[i].config;
    }
    seeds *seed = seeds_of(c);
    for (int i = 0; seed && i < KEEP / 2 && i < c->canonical.n; i++) {
        const plan_config *config = &c->canonical.at[i].config;
        if (!has(&seed->best, config) && !push(&seed->best, config, 0)) return CORUN_ENOMEM;
    }
    return CORUN_OK;
}

static corun_status run_cell(cell *c, bool full, search_cell *out)
{
    TRY(screen_picks(c));
    TRY(full ? screen_all(c) : screen_neighbours(c));
    if (!c->canonical.n)
        FAIL(CORUN_EUNSUPPORTED, "product of %d rows, %lld x %lld: no admitted configuration",
             c->problem.rows, (long long)c->s->shape.n_out, (long long)c->s->shape.n_in);
    qsort(c->canonical.at, (size_t)c->canonical.n, sizeof *c->canonical.at, by_time);
    TRY(screen_splits(c));
    if (c->standard.n)
        qsort(c->standard.at, (size_t)c->standard.n, sizeof *c->standard.at, by_time);
    raise_pick(c);
    TRY(time_again(c, &c->canonical));
    TRY(time_again(c, &c->standard));
    for (int i = 0; i < FINALS && i < c->canonical.n; i++)
        TRY(check_bits(c, &c->canonical.at[i].config));
    if (full) TRY(keep(c));
    *out = (search_cell){.canonical = c->canonical.at[0].config,
                         .canonical_us = (double)c->canonical.at[0].us,
                         .standard = c->canonical.at[0].config,
                         .standard_us = (double)c->canonical.at[0].us,
                         .n_valid = c->n_valid,
                         .n_timed = c->canonical.n + c->standard.n};
    if (c->standard.n && c->standard.at[0].us < c->canonical.at[0].us) {
        out->standard = c->standard.at[0].config;
        out->standard_us = (double)c->standard.at[0].us;
    }
    return time_first_pick(c, out);
}

corun_status gpu_search_cell(gpu_search *s, int32_t rows, bool full, double seconds,
                             search_cell *out)
{
    cell c = {.s = s, .deadline = clock_seconds() + seconds};
    double n = (double)s->shape.n_out, k = (double)s->shape.n_in, m = rows;
    double memory = (n * k * 2 + m * k * 2 + m * n * (s->shape.out == OPS_F32 ? 4 : 2)) / 4.5e6;
    double arithmetic = 2 * m * n * k / 780e6;
    if (rows < 1 || rows > s->max_rows)
        FAIL(CORUN_EINVAL, "search: %d rows, the shape was made for %d", rows, s->max_rows);
    c.floor_us = memory > arithmetic ? memory : arithmetic;
    TRY(algo_problem_init(&c.problem, &s->shape, rows));
    if (s->shape.bias) TRY(algo_problem_bias(&c.problem, s->bias));
    corun_status st = run_cell(&c, full, out);
    mem_free(c.canonical.at);
    mem_free(c.standard.at);
    return st;
}

/* ---- the fixed configuration ---------------------------------------------------------------- */

/* Whether the library takes c for a shape at every size of step. */
static bool serves(const gpu_search *s, const plan_shape *shape, const plan_config *config)
{
    static const int32_t rows[] = {1, 16, 64, 256, 2048, PLAN_MAX_ROWS};
    cublasLtMatmulAlgo_t base, algo;
    if (!algo_base(s->g->lt, shape->out, config->id, &base)) return false;
    algo_configure(&base, config, &algo);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        algo_problem p;
        size_t need;
        if (algo_problem_init(&p, shape, rows[i]) != CORUN_OK ||
            !algo_accepts(s->g->lt, &p, &algo, 0, &need))
            return false;
    }
    return true;
}

/* The configurations that were best at 256 rows, of this search and of the caller. */
static corun_status fixed_candidates(const gpu_search *s, const plan_config *extra, int n_extra,
                                     times *list)
{
    for (int i = 0; i < s->n_seed; i++)
        for (int k = 0; s->seed[i].rows == 256 && k < s->seed[i].best.n; k++) {
            const plan_config *c = &s->seed[i].best.at[k].config;
            if (!has(list, c) && !push(list, c, 0)) return CORUN_ENOMEM;
        }
    for (int i = 0; i < n_extra; i++)
        if (!has(list, &extra[i]) && !push(list, &extra[i], 0)) return CORUN_ENOMEM;
    return CORUN_OK;
}

/* Leaves out what does not serve the shape, in bf16 and as a head would be. */
static void keep_serving(const gpu_search *s, const plan_shape *shape, times *list)
{
    plan_shape head = *shape;
    int n = 0;
    head.out = OPS_F32;
    head.bias = false;
    for (int i = 0; i < list->n; i++)
        if (serves(s, shape, &list->at[i].config) && serves(s, &head, &list->at[i].config))
            list->at[n++] = list->at[i];
    list->n = n;
}

/* Adds to each candidate its time on the shape, in units of the best of them. */
static corun_status time_candidates(gpu_search *s, const plan_shape *shape, times *list)
{
    cell c = {.s = s, .floor_us = 10};
    corun_status st = gpu_search_shape(s, shape, 256);
    float best = 1e30f;
    float *us = mem_alloc((size_t)list->n, sizeof *us, "candidates");
    if (!us) return CORUN_ENOMEM;
    if (st == CORUN_OK) st = algo_problem_init(&c.problem, shape, 256);
    if (st == CORUN_OK && shape->bias) st = algo_problem_bias(&c.problem, s->bias);
    for (int i = 0; i < list->n && st == CORUN_OK; i++) {
        st = screen(&c, &list->at[i].config, false, &us[i]);
        if (us[i] < best) best = us[i];
    }
    for (int i = 0; i < list->n && st == CORUN_OK; i++) list->at[i].us += us[i] / best;
    mem_free(c.canonical.at);
    mem_free(us);
    return st;
}

corun_status gpu_search_fixed(gpu_search *s, const plan_shape *shapes, int n_shape,
                              const plan_config *extra, int n_extra, plan_config *c, double *ratio,
                              bool *found)
{
    times list = {0};
    corun_status st = fixed_candidates(s, extra, n_extra, &list);
    for (int i = 0; i < n_shape; i++) keep_serving(s, &shapes[i], &list);
    for (int i = 0; i < n_shape && st == CORUN_OK && list.n; i++)
        st = time_candidates(s, &shapes[i], &list);
    *found = st == CORUN_OK && list.n > 0 && n_shape > 0;
    if (*found) {
        qsort(list.at, (size_t)list.n, sizeof *list.at, by_time);
        *c = list.at[0].config;
        *ratio = (double)list.at[0].us / n_shape;
    }
    mem_free(list.at);
    return st;
}
