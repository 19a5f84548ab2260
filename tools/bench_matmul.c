/* bench_matmul.c - times the matmuls of one SmolLM2-135M step: ours against oneDNN's best of bf16
 * and fp32, interleaved in one run, and this machine's read bandwidth and fp32 fma rate.
 *
 * usage: bench_matmul [-t THREADS] [-i ISA] [-r ROWS,ROWS,...] [-n ROUNDS] [-a]
 * Without -a oneDNN may use AVX-512 with its bf16 dot, but not AMX: a matrix unit sums in an order
 * that no other processor has, so no kernel of the portable class can use it.
 * Built where oneDNN is found. oneDNN packs its weights as it likes; both sides run warm, each in
 * its own threads, one after the other, with a pause between them in which the other's threads go
 * to sleep. oneDNN takes its number of threads from OMP_NUM_THREADS, by default all cores. */
#include <dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/clock.h"
#include "base/pool.h"
#include "ops/ops.h"

enum { N_LAYER = 30 };

static const struct {
    const char *name;
    int n_out, n_in, count;
} mat[] = {{"qkv", 960, 576, N_LAYER},
           {"o", 576, 576, N_LAYER},
           {"gate_up", 3072, 576, N_LAYER},
           {"down", 576, 1536, N_LAYER},
           {"head", 49152, 576, 1}};
enum { N_MAT = sizeof mat / sizeof *mat, MAX_IN = 1536 };

static void die(const char *what)
{
    fprintf(stderr, "bench_matmul: %s\n", what);
    exit(2);
}

static void ok(corun_status st)
{
    if (st != CORUN_OK) die(err_text());
}

static uint16_t value(uint32_t i)
{
    i = (i ^ 61u) ^ (i >> 16);
    i *= 0x27d4eb2du;
    i ^= i >> 15;
    return (uint16_t)(0x3c00u | (i & 0x80ffu)); /* about +-0.01 */
}

static corun_status read_rows(void *arg, int64_t row, int64_t n, void *out)
{
    int64_t n_in = *(int64_t *)arg;
    for (int64_t i = 0; i < n * n_in; i++) ((uint16_t *)out)[i] = value((uint32_t)(row * n_in + i));
    return CORUN_OK;
}

/* ---- ours ---------------------------------------------------------------------------------- */

typedef struct ours {
    pool *threads;
    ops *o;
    ops_weight *w[N_LAYER][N_MAT];
    void *x, *y;
} ours;

static void ours_open(ours *u, int threads, const char *isa, int max_rows)
{
    ok(pool_open(&u->threads, threads));
    ops_dims d = {.n_layer = 1,
                  .n_embd = 576,
                  .n_head = 9,
                  .n_kv = 3,
                  .d_head = 64,
                  .n_ff = 1536,
                  .n_vocab = 49152};
    ops_open_opts oo = {.threads = u->threads, .isa = isa};
    ok(ops_open_cpu(&u->o, &d, &oo));
    ops_conf c = {.n_ctx = max_rows,
                  .max_tok = max_rows,
                  .max_row = 1,
                  .max_want = max_rows,
                  .page_tokens = 128,
                  .n_page = max_rows / 128 + 1,
                  .logit_rows = max_rows,
                  .n_slot = 1,
                  .max_lane = 1};
    ok(u->o->configure(u->o, &c));
    for (int l = 0; l < N_LAYER; l++)
        for (int m = 0; m < N_MAT; m++) {
            if (l >= mat[m].count) continue;
            int64_t n_in = mat[m].n_in;
            ops_weight_spec s = {.name = mat[m].name,
                                 .n_out = mat[m].n_out,
                                 .n_in = n_in,
                                 .read = read_rows,
                                 .arg = &n_in};
            ok(u->o->weight_open(u->o, &s, &u->w[l][m]));
        }
    ok(u->o->dev_alloc(u->o, (size_t)max_rows * 3072 * 2, &u->y));
    ok(u->o->dev_alloc(u->o, (size_t)max_rows * MAX_IN * 2, &u->x));
    uint16_t *x = malloc((size_t)max_rows * MAX_IN * 2);
    for (int i = 0; i < max_rows * MAX_IN; i++) x[i] = value((uint32_t)i);
    ok(u->o->dev_put(u->o, u->x, 0, x, (size_t)max_rows * MAX_IN * 2));
    free(x);
}

static void ours_rows(ours *u, int rows)
{
    int32_t *page = calloc((size_t)rows, sizeof *page), *tok = calloc((size_t)rows, sizeof *tok);
    for (int i = 0; i < rows; i++) page[i] = i < u->o->conf.n_page ? i : 0;
    step_row r = {.q_len = rows, .page = page, .n_page = rows, .want = STEP_WANT_ALL, .slot = -1};
    step s = {.id = 1, .n_row = 1, .row = &r, .n_tok = rows, .tok = tok};
    ok(u->o->step_put(u->o, &s));
    free(page);
    free(tok);
}

static void ours_mat(ours *u, int m, int l)
{
    if (mat[m].count == 1)
        ok(u->o->logits(u->o, u->w[l][m], u->x, 0, u->o->n_want));
    else
        ok(u->o->matmul(u->o, OPS_ROWS_TOK, u->w[l][m], u->x, OPS_BF16, u->y));
}

/* ---- oneDNN -------------------------------------------------------------------------------- */

typedef struct rival {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_t prim[N_MAT];
    dnnl_memory_t x[N_MAT], y[N_MAT], w[N_LAYER][N_MAT];
} rival;

static void need(dnnl_status_t st, const char *what)
{
    if (st != dnnl_success) die(what);
}

/* Weights once in the layout that the primitive for `rows` rows asks for. */
static void rival_open(rival *v, int rows, dnnl_data_type_t type)
{
    need(dnnl_engine_create(&v->engine, dnnl_cpu, 0), "dnnl_engine_create");
    need(dnnl_stream_create(&v->stream, v->engine, dnnl_stream_default_flags), "stream");
    for (int m = 0; m < N_MAT; m++) {
        dnnl_dims_t xd = {rows, mat[m].n_in}, wd = {mat[m].n_in, mat[m].n_out};
        dnnl_dims_t yd = {rows, mat[m].n_out};
        dnnl_data_type_t yt = mat[m].count == 1 ? dnnl_f32 : type;
        dnnl_memory_desc_t xm, wm, ym;
        need(dnnl_memory_desc_init_by_tag(&xm, 2, xd, type, dnnl_ab), "x");
        need(dnnl_memory_desc_init_by_tag(&wm, 2, wd, type, dnnl_format_tag_any), "w");
        need(dnnl_memory_desc_init_by_tag(&ym, 2, yd, yt, dnnl_ab), "y");
        dnnl_matmul_desc_t md;
        need(dnnl_matmul_desc_init(&md, &xm, &wm, NULL, &ym), "matmul");
        dnnl_primitive_desc_t pd;
        need(dnnl_primitive_desc_create(&pd, &md, NULL, v->engine, NULL), "primitive desc");
        need(dnnl_primitive_create(&v->prim[m], pd), "primitive");
        const dnnl_memory_desc_t *wq = dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0);
        need(dnnl_memory_create(&v->x[m], &xm, v->engine, DNNL_MEMORY_ALLOCATE), "x memory");
        need(dnnl_memory_create(&v->y[m], &ym, v->engine, DNNL_MEMORY_ALLOCATE), "y memory");
        for (int l = 0; l < mat[m].count; l++) {
            need(dnnl_memory_create(&v->w[l][m], wq, v->engine, DNNL_MEMORY_ALLOCATE), "weights");
            void *p;
            need(dnnl_memory_get_data_handle(v->w[l][m], &p), "weights");
            size_t n = dnnl_memory_desc_get_size(wq);
            for (size_t i = 0; i < n / 2; i++) ((uint16_t *)p)[i] = value((uint32_t)i);
        }
        void *p;
        need(dnnl_memory_get_data_handle(v->x[m], &p), "x");
        size_t n = (size_t)rows * (size_t)mat[m].n_in * (type == dnnl_f32 ? 2 : 1);
        for (size_t i = 0; i < n; i++) ((uint16_t *)p)[i] = value((uint32_t)i);
        dnnl_primitive_desc_destroy(pd);
    }
}

static void rival_close(rival *v)
{
    for (int m = 0; m < N_MAT; m++) {
        dnnl_primitive_destroy(v->prim[m]);
        dnnl_memory_destroy(v->x[m]);
        dnnl_memory_destroy(v->y[m]);
        for (int l = 0; l < mat[m].count; l++) dnnl_memory_destroy(v->w[l][m]);
    }
    dnnl_stream_destroy(v->stream);
    dnnl_engine_destroy(v->engine);
}

static void rival_mat(rival *v, int m, int l)
{
    dnnl_exec_arg_t a[3] = {
        {DNNL_ARG_SRC, v->x[m]}, {DNNL_ARG_WEIGHTS, v->w[l][m]}, {DNNL_ARG_DST, v->y[m]}};
    need(dnnl_primitive_execute(v->prim[m], v->stream, 3, a), "execute");
    need(dnnl_stream_wait(v->stream), "wait");
}

/* ---- the machine --------------------------------------------------------------------------- */

typedef struct probe {
    const float *data;
    int64_t n;
    float sink[256];
} probe;

static void read_work(void *arg, int worker, int n_worker)
{
    probe *p = arg;
    int64_t b, e;
    pool_slice(p->n, 1024, worker, n_worker, &b, &e);
    float s[64] = {0};
    for (int64_t i = b; i + 64 <= e; i += 64)
        for (int k = 0; k < 64; k++) s[k] += p->data[i + k];
    for (int k = 1; k < 64; k++) s[0] += s[k];
    p->sink[worker] = s[0];
}

static double bandwidth(pool *threads)
{
    probe p = {.n = 64 << 20};
    float *d = malloc((size_t)p.n * sizeof *d);
    for (int64_t i = 0; i < p.n; i++) d[i] = 1.0f;
    p.data = d;
    double best = 1e9;
    for (int i = 0; i < 5; i++) {
        double t = clock_seconds();
        pool_run(threads, read_work, &p);
        t = clock_seconds() - t;
        best = t < best ? t : best;
    }
    free(d);
    return (double)p.n * sizeof *d / best;
}

#define FMA_TURNS 4000000

#if defined(__x86_64__)
__attribute__((target("avx512f"))) static void fma_avx512(float *sink)
{
    __m512 a[16], b = _mm512_set1_ps(0.999f), c = _mm512_set1_ps(0.001f);
    for (int k = 0; k < 16; k++) a[k] = _mm512_set1_ps((float)k);
    for (int i = 0; i < FMA_TURNS; i++) {
#pragma GCC unroll 16
        for (int k = 0; k < 16; k++) a[k] = _mm512_fmadd_ps(a[k], b, c);
    }
    for (int k = 1; k < 16; k++) a[0] = _mm512_add_ps(a[0], a[k]);
    *sink = _mm512_reduce_add_ps(a[0]);
}

__attribute__((target("avx2,fma"))) static void fma_avx2(float *sink)
{
    __m256 a[12], b = _mm256_set1_ps(0.999f), c = _mm256_set1_ps(0.001f);
    for (int k = 0; k < 12; k++) a[k] = _mm256_set1_ps((float)k);
    for (int i = 0; i < FMA_TURNS; i++) {
#pragma GCC unroll 12
        for (int k = 0; k < 12; k++) a[k] = _mm256_fmadd_ps(a[k], b, c);
    }
    for (int k = 1; k < 12; k++) a[0] = _mm256_add_ps(a[0], a[k]);
    float t[8];
    _mm256_storeu_ps(t, a[0]);
    *sink = t[0];
}
#endif

static void fma_work(void *arg, int worker, int n_worker)
{
    probe *p = arg;
    (void)n_worker;
#if defined(__x86_64__)
    if (p->n == 16 * 16)
        fma_avx512(&p->sink[worker]);
    else
        fma_avx2(&p->sink[worker]);
#else
    p->sink[worker] = 0;
#endif
}

/* fp32 multiply-adds of all threads in registers, two operations each; 0: not measured. */
static double fma_rate(pool *threads)
{
    probe p = {.n = 0};
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f"))
        p.n = 16 * 16;
    else if (__builtin_cpu_supports("avx2"))
        p.n = 12 * 8;
#endif
    double best = 1e9;
    for (int i = 0; i < 5; i++) {
        double t = clock_seconds();
        pool_run(threads, fma_work, &p);
        t = clock_seconds() - t;
        best = t < best ? t : best;
    }
    return 2.0 * (double)p.n * FMA_TURNS * pool_size(threads) / best;
}

/* ---- report -------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

#define MAX_ROUND 1000

typedef struct times {
    double step[MAX_ROUND];
    double call[N_LAYER][N_MAT]; /* the best of each call */
} times;

static void time_step(void *who, void (*run)(void *, int, int), times *t, int round)
{
    usleep(10000);
    double start = clock_seconds(), at = start;
    for (int m = 0; m < N_MAT; m++)
        for (int l = 0; l < mat[m].count; l++) {
            run(who, m, l);
            double end = clock_seconds();
            if (round == 0 || end - at < t->call[l][m]) t->call[l][m] = end - at;
            at = end;
        }
    t->step[round] = at - start;
}

static void run_ours(void *who, int m, int l) { ours_mat(who, m, l); }
static void run_rival(void *who, int m, int l) { rival_mat(who, m, l); }

static void report(ours *u, int rows, int rounds)
{
    rival bf = {0}, fp = {0};
    rival_open(&bf, rows, dnnl_bf16);
    rival_open(&fp, rows, dnnl_f32);
    ours_rows(u, rows);
    static times t[3];
    for (int r = -1; r < rounds; r++) {
        int at = r < 0 ? 0 : r;
        time_step(u, run_ours, &t[0], at);
        time_step(&bf, run_rival, &t[1], at);
        time_step(&fp, run_rival, &t[2], at);
    }
    rival_close(&bf);
    rival_close(&fp);
    double sum[3] = {0}, part[3][N_MAT] = {{0}}, flop = 0;
    for (int m = 0; m < N_MAT; m++) {
        flop += 2.0 * rows * mat[m].n_out * mat[m].n_in * mat[m].count;
        for (int k = 0; k < 3; k++)
            for (int l = 0; l < mat[m].count; l++) {
                part[k][m] += t[k].call[l][m];
                sum[k] += t[k].call[l][m];
            }
    }
    for (int k = 0; k < 3; k++) qsort(t[k].step, (size_t)rounds, sizeof(double), by_value);
    double steps = t[1].step[0] < t[2].step[0] ? t[1].step[0] : t[2].step[0];
    double calls = sum[1] < sum[2] ? sum[1] : sum[2];
    static const char *const who[] = {"ours", "oneDNN bf16", "oneDNN fp32"};
    printf("%d rows: ratio of the best steps %.3f, of the sums of each call's best %.3f\n", rows,
           t[0].step[0] / steps, sum[0] / calls);
    for (int k = 0; k < 3; k++) {
        printf("  %-12s step best %8.2f median %8.2f  calls %8.2f ms (%.0f GFLOP/s):", who[k],
               t[k].step[0] * 1e3, t[k].step[rounds / 2] * 1e3, sum[k] * 1e3, flop / sum[k] * 1e-9);
        for (int m = 0; m < N_MAT; m++) printf(" %s %.2f", mat[m].name, part[k][m] * 1e3);
        printf("\n");
    }
    fflush(stdout);
}

int main(int argc, char **argv)
{
    int threads = 0, rounds = 12, c;
    bool amx = false;
    const char *isa = "auto";
    char *rows = "1,4,16,32,512";
    while ((c = getopt(argc, argv, "t:i:r:n:a")) != -1) {
        if (c == 'a')
            amx = true;
        else if (c == 't')
            threads = atoi(optarg);
        else if (c == 'i')
            isa = optarg;
        else if (c == 'r')
            rows = optarg;
        else if (c == 'n' && atoi(optarg) > 0 && atoi(optarg) <= MAX_ROUND)
            rounds = atoi(optarg);
        else
            die("usage: bench_matmul [-t THREADS] [-i ISA] [-r ROWS,ROWS,...] [-n ROUNDS] [-a]");
    }
    int list[32], n = 0, most = 1;
    char *copy = strdup(rows);
    for (char *p = strtok(copy, ","); p && n < 32; p = strtok(NULL, ",")) {
        list[n] = atoi(p);
        if (list[n] < 1 || list[n] > 8192) die("rows: 1 ... 8192");
        most = list[n] > most ? list[n] : most;
        n++;
    }
    free(copy);
    if (!amx) need(dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx512_core_bf16), "dnnl_set_max_cpu_isa");
    static ours u;
    ours_open(&u, threads, isa, most);
    printf("oneDNN %s AMX; %d threads, %s; read bandwidth %.1f GB/s, fp32 fma %.0f GFLOP/s\n",
           amx ? "with" : "without", pool_size(u.threads), u.o->isa, bandwidth(u.threads) * 1e-9,
           fma_rate(u.threads) * 1e-9);
    for (int i = 0; i < n; i++) report(&u, list[i], rounds);
    u.o->close(u.o);
    pool_close(u.threads);
    return 0;
}
