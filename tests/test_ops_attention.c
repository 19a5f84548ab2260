/* test_ops_attention.c - RoPE, the KV cache and attention of every instruction set against the
 * definition, by bytes: prompts in one, in pieces, token by token, beside others, on any pages. */
#include "ops_fixture.h"

#define CTX 700

typedef struct shape {
    int32_t n_head, n_kv, d, layers;
    bool gains;
} shape;

/* One sequence: its qkv rows, and what each op must give. */
typedef struct sequence {
    int32_t n;
    uint16_t *qkv, *q, *k, *v, *out; /* [n][...] */
} sequence;

typedef struct world {
    shape s;
    float inv_freq[128];
    uint16_t q_gain[256], k_gain[256];
    float scale;
} world;

static void world_init(world *w, shape s)
{
    *w = (world){.s = s, .scale = 1.0f / sqrtf((float)s.d)};
    for (int i = 0; i < s.d / 2; i++) w->inv_freq[i] = (float)pow(10000.0, -2.0 * i / (double)s.d);
    fill(w->q_gain, s.d, 21, RANDOM, 1.0f);
    fill(w->k_gain, s.d, 22, RANDOM, 1.0f);
}

static void sequence_init(sequence *q, const world *w, int32_t n, uint64_t seed, float scale)
{
    const shape *s = &w->s;
    const int64_t width = (s->n_head + 2 * s->n_kv) * s->d;
    const int64_t nq = s->n_head * s->d, nk = s->n_kv * s->d;
    q->n = n;
    q->qkv = must((size_t)(n * width), 2);
    q->q = must((size_t)(n * nq), 2);
    q->k = must((size_t)(n * nk), 2);
    q->v = must((size_t)(n * nk), 2);
    q->out = must((size_t)(n * nq), 2);
    fill(q->qkv, n * width, seed, RANDOM, scale);
    for (int32_t t = 0; t < n; t++) {
        const uint16_t *x = q->qkv + t * width;
        for (int32_t h = 0; h < s->n_head; h++)
            ref_cpu_rope(x + h * s->d, s->d, s->gains ? w->q_gain : NULL, 1e-6f, w->inv_freq, 1.0,
                         t, q->q + t * nq + h * s->d);
        for (int32_t h = 0; h < s->n_kv; h++)
            ref_cpu_rope(x + nq + h * s->d, s->d, s->gains ? w->k_gain : NULL, 1e-6f, w->inv_freq,
                         1.0, t, q->k + t * nk + h * s->d);
        memcpy(q->v + t * nk, x + nq + nk, (size_t)nk * 2);
    }
    for (int32_t t = 0; t < n; t++)
        for (int32_t h = 0; h < s->n_head; h++) {
            int64_t g = h / (s->n_head / s->n_kv) * s->d;
            ref_cpu_attention(q->q + t * nq + h * s->d, q->k + g, q->v + g, nk, s->d, t, w->scale,
                              q->out + t * nq + h * s->d);
        }
}

static void sequence_free(sequence *q)
{
    free(q->qkv), free(q->q), free(q->k), free(q->v), free(q->out);
}

typedef struct machine {
    pool *threads;
    ops *o;
    ops_rope *rope;
    ops_weight *q_gain, *k_gain;
    void *qkv, *q, *out;
    int32_t page_tokens, n_page;
} machine;

#define MAX_TOK 800

static bool machine_open(machine *m, const world *w, const char *isa, int threads, int32_t pt)
{
    if (!ops_isa_pick(isa)) return false;
    ok(pool_open(&m->threads, threads));
    ops_dims d = {.n_layer = w->s.layers,
                  .n_embd = 33,
                  .n_head = w->s.n_head,
                  .n_kv = w->s.n_kv,
                  .d_head = w->s.d,
                  .n_ff = 8,
                  .n_vocab = 8};
    ops_open_opts oo = {.threads = m->threads, .isa = isa};
    ok(ops_open_cpu(&m->o, &d, &oo));
    m->page_tokens = pt;
    m->n_page = 4 * ((CTX + pt - 1) / pt) + 3;
    ops_conf c = {.n_ctx = CTX,
                  .max_tok = MAX_TOK,
                  .max_row = 48,
                  .max_want = 48,
                  .page_tokens = pt,
                  .n_page = m->n_page,
                  .n_swap = 2,
                  .logit_rows = 1,
                  .n_slot = 1,
                  .max_lane = 1};
    ok(m->o->rope_open(m->o, w->inv_freq, 1.0, &m->rope));
    ok(m->o->configure(m->o, &c));
    m->q_gain = m->k_gain = NULL;
    if (w->s.gains) {
        m->q_gain = open_weight(m->o, w->q_gain, 1, d.d_head, NULL);
        m->k_gain = open_weight(m->o, w->k_gain, 1, d.d_head, NULL);
    }
    m->qkv = alloc_dev(m->o, (size_t)(MAX_TOK * (d.n_head + 2 * d.n_kv) * d.d_head) * 2);
    m->q = alloc_dev(m->o, (size_t)(MAX_TOK * d.n_head * d.d_head) * 2);
    m->out = alloc_dev(m->o, (size_t)(MAX_TOK * d.n_head * d.d_head) * 2);
    /* Free pages may hold anything, NaN above all. */
    size_t bytes = (size_t)m->o->page_bytes(m->o);
    uint16_t *nan = must(bytes, 1);
    for (size_t i = 0; i < bytes / 2; i++) nan[i] = 0x7fc1;
    for (int32_t p = 0; p < m->n_page; p++) ok(m->o->page_put(m->o, p, nan));
    free(nan);
    return true;
}

static void machine_close(machine *m)
{
    m->o->dev_free(m->o, m->qkv), m->o->dev_free(m->o, m->q), m->o->dev_free(m->o, m->out);
    m->o->weight_close(m->o, m->q_gain), m->o->weight_close(m->o, m->k_gain);
    m->o->rope_close(m->o, m->rope);
    m->o->close(m->o);
    pool_close(m->threads);
}

typedef struct part {
    const sequence *q; /* NULL: a dead row */
    int32_t pos, n;
    const int32_t *page;
} part;

/* One step of these parts on a layer: all bytes of q and of the output are compared. */
static void run_step(machine *m, const world *w, const part *p, int n_part, int32_t layer,
                     const char *what)
{
    const shape *s = &w->s;
    const size_t width = (size_t)((s->n_head + 2 * s->n_kv) * s->d) * 2;
    const size_t nq = (size_t)(s->n_head * s->d) * 2;
    step_row row[48];
    static int32_t tok[MAX_TOK];
    static uint8_t got[MAX_TOK * 16 * 256];
    int32_t at = 0, n_tok = 0;
    for (int i = 0; i < n_part; i++) {
        row[i] = (step_row){.seq = -1, .slot = -1, .q_len = 1, .tok_first = 0};
        if (!p[i].q) continue;
        row[i] = (step_row){.seq = i,
                            .slot = -1,
                            .pos = p[i].pos,
                            .q_len = p[i].n,
                            .tok_first = n_tok,
                            .page = p[i].page,
                            .n_page = (p[i].pos + p[i].n + m->page_tokens - 1) / m->page_tokens};
        n_tok += p[i].n;
        ok(m->o->dev_put(m->o, m->qkv, (size_t)at * width,
                         (const char *)p[i].q->qkv + (size_t)p[i].pos * width,
                         (size_t)p[i].n * width));
        at += p[i].n;
    }
    step st = {
        .id = 1, .kind = STEP_MIXED, .n_row = n_part, .row = row, .n_tok = n_tok, .tok = tok};
    ok(m->o->step_put(m->o, &st));
    assert_int_equal(m->o->n_tok, at);
    memset(got, 0x7f, (size_t)at * nq);
    ok(m->o->dev_put(m->o, m->q, 0, got, (size_t)at * nq));
    ok(m->o->dev_put(m->o, m->out, 0, got, (size_t)at * nq));
    ok(m->o->qkv_post(m->o, layer, m->qkv, m->q_gain, m->k_gain, 1e-6f, m->rope, m->q));
    ok(m->o->attention(m->o, layer, m->q, w->scale, m->out));
    ok(m->o->dev_get(m->o, m->q, 0, got, (size_t)at * nq));
    at = 0;
    for (int i = 0; i < n_part; i++) {
        if (!p[i].q) continue;
        same_bytes(got + (size_t)at * nq, (const char *)p[i].q->q + (size_t)p[i].pos * nq,
                   (size_t)p[i].n * nq, "%s %s: q of row %d at %d + %d", m->o->isa, what, i,
                   p[i].pos, p[i].n);
        at += p[i].n;
    }
    ok(m->o->dev_get(m->o, m->out, 0, got, (size_t)at * nq));
    at = 0;
    for (int i = 0; i < n_part; i++) {
        if (!p[i].q) continue;
        same_bytes(got + (size_t)at * nq, (const char *)p[i].q->out + (size_t)p[i].pos * nq,
                   (size_t)p[i].n * nq, "%s %s: attention of row %d at %d + %d", m->o->isa, what, i,
                   p[i].pos, p[i].n);
        at += p[i].n;
    }
}

/* Page table of sequence i: scattered, and other for each i. */
static void pages_of(const machine *m, int i, int32_t *page)
{
    int32_t n = (CTX + m->page_tokens - 1) / m->page_tokens;
    for (int32_t k = 0; k < n; k++) {
        int32_t slot = i * n + k;
        page[k] = slot % 2 ? slot : m->n_page - 1 - (m->n_page % 2 == 0) - slot;
        assert_in_range(page[k], 0, m->n_page - 1);
    }
}

/* A whole prompt in the pieces of `cut` (0 ends the list), then token by token. */
static void pieces(machine *m, const world *w, const sequence *q, const int32_t *cut,
                   const int32_t *page, int32_t layer)
{
    int32_t pos = 0;
    for (; *cut && pos < q->n; cut++) {
        int32_t n = *cut < q->n - pos ? *cut : q->n - pos;
        part p = {q, pos, n, page};
        run_step(m, w, &p, 1, layer, "piece");
        pos += n;
    }
    for (; pos < q->n; pos++) {
        part p = {q, pos, 1, page};
        run_step(m, w, &p, 1, layer, "token");
    }
}

static void shape_case(shape s, int32_t n, int turn)
{
    world w;
    world_init(&w, s);
    sequence q;
    sequence_init(&q, &w, n, 31, 1.0f);
    static const int32_t pt[] = {16, 32, 64, 128};
    static const int threads[] = {1, 2, 5};
    for (size_t i = 0; i < N_ISA; i++) {
        for (int t = 0; t < 4; t++) {
            if (i == 0 && t != turn % 4) continue; /* plain C is slow: one page size a shape */
            machine m;
            if (!machine_open(&m, &w, all_isa[i], threads[(turn + t + (int)i) % 3], pt[t]))
                continue;
            int32_t page[128];
            pages_of(&m, t % 2, page);
            static const int32_t cut[4][8] = {
                {CTX, 0}, {1, 2, 3, 127, 129, 200, CTX, 0}, {128, 5, 512, CTX, 0}, {300, 0}};
            pieces(&m, &w, &q, cut[t], page, s.layers - 1);
            machine_close(&m);
        }
    }
    sequence_free(&q);
}

static void test_shapes(void **state)
{
    (void)state;
    static const struct {
        shape s;
        int32_t n;
    } c[] = {
        {{9, 3, 64, 2, false}, 600}, {{4, 4, 64, 1, true}, 140},  {{8, 4, 128, 1, true}, 150},
        {{4, 1, 64, 2, false}, 140}, {{5, 1, 16, 1, true}, 140},  {{7, 1, 128, 1, false}, 130},
        {{8, 1, 64, 1, false}, 150}, {{14, 2, 48, 1, true}, 140}, {{3, 1, 6, 3, false}, 520},
        {{2, 2, 256, 1, false}, 40}, {{16, 1, 34, 1, true}, 70},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) shape_case(c[i].s, c[i].n, (int)i);
}

/* Three sequences beside each other and beside dead rows, in every slot. */
static void test_neighbours(void **state)
{
    (void)state;
    world w;
    world_init(&w, (shape){6, 2, 64, 2, true});
    sequence q[3];
    sequence_init(&q[0], &w, 300, 41, 1.0f);
    sequence_init(&q[1], &w, 530, 42, 3.0f);
    sequence_init(&q[2], &w, 20, 43, 0.1f);
    for (size_t i = 0; i < N_ISA; i++) {
        machine m;
        if (!machine_open(&m, &w, all_isa[i], (int)(i % 2) * 4 + 1, 32)) continue;
        int32_t page[3][128];
        for (int k = 0; k < 3; k++) pages_of(&m, k, page[k]);
        /* mixed: pieces of all three at once, dead rows between */
        part a[] = {{NULL, 0, 0, NULL},
                    {&q[0], 0, 290, page[0]},
                    {&q[2], 0, 7, page[2]},
                    {NULL, 0, 0, NULL},
                    {&q[1], 0, 500, page[1]}};
        run_step(&m, &w, a, 5, 1, "mixed");
        part b[] = {{&q[1], 500, 1, page[1]}, {&q[0], 290, 1, page[0]}, {&q[2], 7, 5, page[2]}};
        run_step(&m, &w, b, 3, 1, "mixed");
        for (int step_i = 0; step_i < 8; step_i++) {
            part c[7] = {{0}};
            c[step_i % 7] = (part){&q[1], 501 + step_i, 1, page[1]};
            c[(step_i + 3) % 7] = (part){&q[2], 12 + step_i, 1, page[2]};
            c[(step_i + 5) % 7] = (part){&q[0], 291 + step_i, 1, page[0]};
            run_step(&m, &w, c, 7, 1, "decode");
        }
        machine_close(&m);
    }
    for (int k = 0; k < 3; k++) sequence_free(&q[k]);
}

/* Pages that moved out, came back elsewhere, or were copied serve as well; dead rows and another
 * layer leave every page as it was. */
static void test_pages(void **state)
{
    (void)state;
    world w;
    world_init(&w, (shape){3, 3, 64, 2, false});
    sequence q;
    sequence_init(&q, &w, 60, 51, 1.0f);
    machine m;
    assert_true(machine_open(&m, &w, ops_isa_pick("auto"), 2, 16));
    int32_t page[4] = {7, 3, 9, 1};
    part p = {&q, 0, 59, page};
    run_step(&m, &w, &p, 1, 0, "prompt");
    ok(m.o->page_out(m.o, 3, 1));
    ok(m.o->page_out(m.o, 9, 0));
    ok(m.o->page_copy(m.o, 20, 3));
    ok(m.o->page_copy(m.o, 20, 9));
    ok(m.o->page_in(m.o, 1, 14));
    ok(m.o->page_in(m.o, 0, 3));
    ok(m.o->page_copy(m.o, 7, 5));
    int32_t moved[4] = {5, 14, 3, 1};
    size_t bytes = (size_t)m.o->page_bytes(m.o);
    uint8_t *before = must((size_t)m.n_page, bytes), *after = must(1, bytes);
    for (int32_t i = 0; i < m.n_page; i++) ok(m.o->page_get(m.o, i, before + (size_t)i * bytes));
    part dead[2] = {{NULL, 0, 0, NULL}, {NULL, 0, 0, NULL}};
    run_step(&m, &w, dead, 2, 0, "dead");
    for (int32_t i = 0; i < m.n_page; i++) {
        ok(m.o->page_get(m.o, i, after));
        same_bytes(after, before + (size_t)i * bytes, bytes, "page %d after dead rows", i);
    }
    part last = {&q, 59, 1, moved};
    run_step(&m, &w, &last, 1, 0, "moved pages");
    assert_int_equal(m.o->page_copy(m.o, 0, m.n_page), CORUN_EINVAL);
    assert_int_equal(m.o->page_out(m.o, 0, 2), CORUN_EINVAL);
    assert_int_equal(m.o->page_in(m.o, -1, 0), CORUN_EINVAL);
    free(before), free(after);
    machine_close(&m);
    sequence_free(&q);
}

/* Scores so large that they overflow, and so small that P underflows. */
static void test_extremes(void **state)
{
    (void)state;
    static const float scale[] = {1e-30f, 1e-3f, 40.0f, 1e18f};
    for (size_t k = 0; k < 4; k++) {
        world w;
        world_init(&w, (shape){4, 2, 16, 1, false});
        sequence q;
        sequence_init(&q, &w, 200, 61 + k, scale[k]);
        if (k == 3) /* rows that overflow are NaN, whose pattern is not defined: compare others */
            for (int64_t i = 0; i < 200 * 4 * 16; i++)
                if ((q.out[i] & 0x7fff) > 0x7f80) goto next;
        for (size_t i = 0; i < N_ISA; i++) {
            machine m;
            if (!machine_open(&m, &w, all_isa[i], 2, 64)) continue;
            int32_t page[128];
            pages_of(&m, 0, page);
            static const int32_t cut[] = {100, 30, 0};
            pieces(&m, &w, &q, cut, page, 0);
            machine_close(&m);
        }
    next:
        sequence_free(&q);
    }
}

int main(void)
{
    const struct CMUnitTest t[] = {
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_neighbours),
        cmocka_unit_test(test_pages),
        cmocka_unit_test(test_extremes),
    };
    return cmocka_run_group_tests_name("ops: attention", t, NULL, NULL);
}
