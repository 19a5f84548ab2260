/* test_golden_smollm2.c - the demo model against the reference framework on the same dequantised
 * weights: 20 prompts, full logits at four positions each, and at every position the 20 likeliest
 * ids and the token that follows. Skips without the model file; with CI set it fails instead. */
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

#define MODEL   TEST_CACHE "/models/SmolLM2-135M-Instruct.Q4_1.gguf"
#define GOLDEN  TEST_DATA "/golden/smollm2"
#define N_FULL  4
#define PAGE    16
#define N_PAGE  45
#define MAX_TOK 700

typedef struct prompt {
    int32_t n_token;
    const char *token, *pos; /* i32 each, unaligned */
    const char *full[N_FULL];
    const char *next; /* per token: f32, i32 id[n_top], f32 logprob[n_top] */
} prompt;

#define MAX_PROMPT 64

typedef struct smol {
    buf file;
    int32_t n_prompt, n_vocab, n_full, n_top, n_exact;
    prompt prompt[MAX_PROMPT];
    double std;
    golden_figures full, logprob; /* of the framework's own bf16 run */
} smol;

static int32_t i32_at(const char *p, size_t i)
{
    int32_t v;
    memcpy(&v, p + 4 * i, 4);
    return v;
}
static float f32_at(const char *p, size_t i)
{
    float v;
    memcpy(&v, p + 4 * i, 4);
    return v;
}

static corun_status smol_open(smol *s)
{
    memset(s, 0, sizeof *s);
    buf_init(&s->file, 16 << 20);
    TRY(file_read(&s->file, GOLDEN ".bin", 16 << 20));
    const char *p = s->file.data, *end = p + s->file.len;
    if (s->file.len < 32 || memcmp(p, "CRNGOLD2", 8) != 0)
        FAIL(CORUN_EFORMAT, "smollm2.bin: not a golden file");
    s->n_prompt = i32_at(p, 2);
    s->n_vocab = i32_at(p, 3);
    s->n_full = i32_at(p, 4);
    s->n_top = i32_at(p, 5);
    s->n_exact = i32_at(p, 6);
    if (s->n_full != N_FULL || s->n_prompt > MAX_PROMPT)
        FAIL(CORUN_EFORMAT, "smollm2.bin: other counts");
    p += 32;
    for (int32_t i = 0; i < s->n_prompt; i++) {
        prompt *q = &s->prompt[i];
        if (end - p < 4) FAIL(CORUN_EFORMAT, "smollm2.bin: ends early");
        q->n_token = i32_at(p, 0);
        q->token = p + 4;
        q->pos = q->token + 4 * (size_t)q->n_token;
        p = q->pos + 4 * N_FULL;
        for (int k = 0; k < N_FULL; k++) {
            q->full[k] = p;
            p += 8 + 8 * (size_t)s->n_exact + 3 * ((size_t)s->n_vocab / 2);
        }
        q->next = p;
        p += (size_t)q->n_token * (4 + 8 * (size_t)s->n_top);
    }
    if (p != end) FAIL(CORUN_EFORMAT, "smollm2.bin: wrong size");
    json_t *j;
    TRY(json_read_file(&j, GOLDEN ".json", 1 << 20));
    const json_t *b = json_object_get(json_object_get(j, "framework"), "bf16");
    s->std = golden_number(j, "std");
    s->full = golden_figures_of(json_object_get(b, "full"));
    s->logprob = golden_figures_of(json_object_get(b, "logprob"));
    json_decref(j);
    return CORUN_OK;
}

/* The full logits of one position: 12-bit steps, the largest ones exact. */
static void unpack(const smol *s, const char *p, float *out)
{
    float base = f32_at(p, 0), unit = f32_at(p, 1);
    const char *id = p + 8, *value = id + 4 * (size_t)s->n_exact;
    const uint8_t *c = (const uint8_t *)value + 4 * (size_t)s->n_exact;
    for (int32_t i = 0; i < s->n_vocab; i += 2, c += 3) {
        out[i] = base + unit * (float)(c[0] | (c[1] & 15) << 8);
        out[i + 1] = base + unit * (float)(c[1] >> 4 | c[2] << 4);
    }
    for (int32_t i = 0; i < s->n_exact; i++) out[i32_at(id, (size_t)i)] = f32_at(value, (size_t)i);
}

typedef struct result {
    golden_sum full;
    double sq, max; /* of log-probabilities, and of the exact part of the full logits */
    double kl;      /* sum over positions, over the n_top ids and the rest as one */
    int64_t n, n_pos, top1_wrong;
    double exact_sq;
    int64_t exact_n;
} result;

typedef struct run {
    const smol *s;
    model *m;
    float *ref, *row;
    double margin;
    result r;
} run;

static void add_logprob(run *x, const char *e, int32_t token, double lse)
{
    int32_t n = x->s->n_top;
    double kl = 0, rest = 1, rest_got = 1;
    const char *id = e + 4, *lp = id + 4 * (size_t)n;
    for (int32_t i = token < 0 ? 0 : -1; i < n; i++) {
        int32_t at = i < 0 ? token : i32_at(id, (size_t)i);
        float want = i < 0 ? f32_at(e, 0) : f32_at(lp, (size_t)i);
        double err = (double)x->row[at] - lse - (double)want;
        if (!isfinite(err)) err = 1e8;
        x->r.sq += err * err;
        x->r.max = fabs(err) > x->r.max ? fabs(err) : x->r.max;
        x->r.n++;
        if (i < 0) continue;
        kl -= exp((double)want) * err;
        rest -= exp((double)want);
        rest_got -= exp((double)want + err);
    }
    rest = rest > 1e-9 ? rest : 1e-9;
    rest_got = rest_got > 1e-9 ? rest_got : 1e-9;
    x->r.kl += kl + rest * log(rest / rest_got);
    x->r.n_pos++;
    float best = x->row[i32_at(id, 0)];
    bool margin = (double)f32_at(lp, 0) - (double)f32_at(lp, 1) > x->margin;
    for (int32_t i = 0; margin && i < x->s->n_vocab; i++)
        if (x->row[i] > best) {
            x->r.top1_wrong++;
            break;
        }
}

static void add_position(run *x, const prompt *q, int32_t at)
{
    const smol *s = x->s;
    double lse = golden_log_sum_exp(x->row, s->n_vocab);
    int32_t follows = at + 1 < q->n_token ? i32_at(q->token, (size_t)at + 1) : -1;
    add_logprob(x, q->next + (size_t)at * (4 + 8 * (size_t)s->n_top), follows, lse);
    for (int k = 0; k < N_FULL; k++) {
        if (i32_at(q->pos, (size_t)k) != at) continue;
        unpack(s, q->full[k], x->ref);
        golden_add(&x->r.full, x->ref, x->row, s->n_vocab, x->margin);
        const char *id = q->full[k] + 8, *value = id + 4 * (size_t)s->n_exact;
        for (int32_t i = 0; i < s->n_exact; i++, x->r.exact_n++) {
            double e = (double)x->row[i32_at(id, (size_t)i)] - (double)f32_at(value, (size_t)i);
            x->r.exact_sq += e * e;
        }
    }
}

static corun_status run_prompt(run *x, const prompt *q, int32_t cut)
{
    static int32_t tok[MAX_TOK];
    int32_t page[N_PAGE];
    if (q->n_token > MAX_TOK) FAIL(CORUN_EINTERNAL, "prompt too long");
    for (int32_t i = 0; i < q->n_token; i++) tok[i] = i32_at(q->token, (size_t)i);
    for (int32_t i = 0; i < N_PAGE; i++) page[i] = (i * 7 + 3) % N_PAGE;
    for (int32_t first = 0, n; first < q->n_token; first += n) {
        n = first == 0 && cut > 0 ? cut : q->n_token - first;
        step_row row = {.slot = STEP_NO_SLOT,
                        .pos = first,
                        .q_len = n,
                        .tok_first = 0,
                        .page = page,
                        .n_page = N_PAGE,
                        .want = STEP_WANT_ALL};
        step s = {.id = 1 + (uint64_t)first,
                  .kind = first == 0 ? STEP_PREFILL : STEP_MIXED,
                  .n_row = 1,
                  .row = &row,
                  .n_tok = n,
                  .tok = tok + first};
        TRY(x->m->forward(x->m, &s));
        for (int32_t i = 0; i < n; i++) {
            if (i % 4 == 0) TRY(x->m->logits(x->m, i, n - i < 4 ? n - i : 4));
            TRY(x->m->o->logits_get(x->m->o, i % 4, x->row));
            add_position(x, q, first + i);
        }
    }
    return CORUN_OK;
}

static golden_tolerance tol;

typedef enum machine { EXACT, CPU, DEVICE } machine;

static corun_status load(model **out, machine on, weights *w, const config *c, pool *threads)
{
    ops_open_opts oo = {.threads = threads, .isa = "auto", .device = -1};
    ops_dims d;
    ops *o;
    *out = NULL;
    if (on == EXACT) return model_load_ref(out, w, c, true);
    if (on == CPU) return model_load(out, w, c, &oo);
    model_dims(c, &d);
    TRY(ops_open_cuda(&o, &d, &oo));
    return model_load_on(out, w, c, o);
}

#define OK(call)                                                                                   \
    do {                                                                                           \
        if ((call) != CORUN_OK) fail_msg("%s", err_text());                                        \
    } while (0)

/* Runs prompts first, first + by, ... below end; sets up and takes down everything. */
static void run_model(machine on, bool plant, int32_t first, int32_t end, int32_t by, smol *s,
                      result *out)
{
    if (access(MODEL, R_OK) != 0) {
        if (getenv("CI")) fail_msg("%s is missing: tools/fetch demo", MODEL);
        skip();
    }
    if (getenv("CORUN_TEST_SHORT")) skip();
    config c;
    weights *w;
    pool *threads;
    run x = {.s = s};
    OK(golden_tolerance_read(&tol));
    OK(smol_open(s));
    OK(weights_open(&w, MODEL));
    OK(config_from_gguf(&c, w));
    OK(pool_open(&threads, 2));
    if (plant) c.gguf_permuted = !c.gguf_permuted;
    OK(load(&x.m, on, w, &c, threads));
    weights_close(w);
    ops_conf conf = {.n_ctx = N_PAGE * PAGE,
                     .max_tok = MAX_TOK,
                     .max_row = 1,
                     .max_want = MAX_TOK,
                     .max_lane = 1,
                     .n_slot = 1,
                     .page_tokens = PAGE,
                     .n_page = N_PAGE,
                     .n_swap = 1,
                     .logit_rows = 4,
                     .n_top = 1};
    for (int i = 0; i < OPS_N_OP; i++) conf.set[i] = OPS_SET_CANONICAL;
    OK(x.m->configure(x.m, &conf));
    x.margin = tol.top1_margin * s->full.rms;
    x.ref = malloc((size_t)s->n_vocab * sizeof *x.ref);
    x.row = malloc((size_t)s->n_vocab * sizeof *x.row);
    if (!x.ref || !x.row) abort();
    for (int32_t i = first; i < end && i < s->n_prompt; i += by)
        OK(run_prompt(&x, &s->prompt[i], i % 2 ? s->prompt[i].n_token * 2 / 3 : 0));
    *out = x.r;
    free(x.ref);
    free(x.row);
    model_close(x.m);
    pool_close(threads);
}

static void parity(machine on)
{
    smol s;
    result r;
    run_model(on, false, 0, MAX_PROMPT, 1, &s, &r);
    double rms = sqrt(r.sq / (double)r.n), kl = r.kl / (double)r.n_pos;
    printf("# log-probabilities: rms %.4f (framework's bf16 %.4f), max %.3f (%.3f), mean KL %.2e "
           "(%.2e), top-1 wrong %lld\n",
           rms, s.logprob.rms, r.max, s.logprob.max, kl, s.logprob.kl_mean,
           (long long)r.top1_wrong);
    /* The bound on the mean KL itself is for all positions: at 80 a few of them make the mean. */
    golden_tolerance few = tol;
    few.kl_mean = INFINITY;
    bool full = golden_parity_ok(&few, "full logits", &r.full, &s.full);
    assert_true(full);
    assert_true(rms <= tol.rms_factor * s.logprob.rms);
    assert_true(r.max <= tol.max_factor * s.logprob.max);
    assert_true(kl <= tol.kl_mean && kl <= tol.kl_mean_factor * s.logprob.kl_mean);
    assert_int_equal(r.top1_wrong, 0);
    buf_free(&s.file);
}

static void test_cpu(void **state)
{
    (void)state;
    parity(CPU);
}

static void test_cuda(void **state)
{
    (void)state;
    NEED_CUDA();
    parity(DEVICE);
}

static double exact_error(bool plant, int32_t first, int32_t end, int32_t by)
{
    smol s;
    result r;
    run_model(EXACT, plant, first, end, by, &s, &r);
    double logits = sqrt(r.exact_sq / (double)r.exact_n) / s.std;
    double logprob = sqrt(r.sq / (double)r.n) / s.std;
    printf("# exact%s: logits %.1e of std %.2f, log-probabilities %.1e\n",
           plant ? " with a planted fault" : "", logits, s.std, logprob);
    buf_free(&s.file);
    return logits > logprob ? logits : logprob;
}

static void test_exact(void **state)
{
    (void)state;
    assert_true(exact_error(false, 1, 13, 11) <= tol.graph_rms_of_std);
}

static void test_exact_plant(void **state)
{
    (void)state;
    double e = exact_error(true, 1, 2, 1);
    assert_true(e > tol.fault_factor * tol.graph_rms_of_std);
}

/* An argument picks cases by their names. */
int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cpu), cmocka_unit_test(test_cuda),
                                       cmocka_unit_test(test_exact),
                                       cmocka_unit_test(test_exact_plant)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
