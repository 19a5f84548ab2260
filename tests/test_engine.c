/* test_engine.c - the promise on the fake model: a request gets the same bytes whatever runs beside
 * it. The fake's kernels are as weak as the policy allows; one level weaker must show. Letters are
 * those of the recipes that docs/verify.md lists. */
#include "engine_run.h"

#include <stdio.h>

#define request engine_request /* names that this file uses itself */
#define model   engine_model
#include "engine/engine.h"
#undef request
#undef model

enum { N_FILLER = 64, N_MAX = N_FILLER + 16 };

static int32_t prompts[N_MAX][RUN_MAX_PROMPT];

static corun_engine_opts opts(corun_policy p)
{
    corun_engine_opts o = corun_engine_opts_default();
    o.policy = p;
    o.n_slot = 8;
    o.n_ctx = 2048;
    o.page_tokens = 16;
    o.prefill_chunk = p == CORUN_POLICY_CORUN ? 128 : p == CORUN_POLICY_INVARIANT ? 0 : 32;
    return o;
}

/* Each policy with a promise, on kernels of just the level that it asks for, and of one lower. */
static const struct claim {
    corun_policy p;
    const char *model, *lower;
} claims[] = {{CORUN_POLICY_CORUN, "fake:run,position", "fake:run,run"},
              {CORUN_POLICY_INVARIANT, "fake:batch", "fake:position"},
              {CORUN_POLICY_FREE, "fake:phase", "fake:batch"}};
enum { N_CLAIM = 3 };

static corun_request request(corun_model *m, int slot, int n_prompt, int max_tokens, uint64_t seed)
{
    corun_request r = {.tokens = prompts[slot], .n_token = (size_t)n_prompt};
    uint64_t s = seed * 1000003 + 17;
    for (int i = 0; i < n_prompt; i++) prompts[slot][i] = (int32_t)(run_rand(&s) % 256);
    assert_int_equal(corun_sampling_default(m, &r.sampling), CORUN_OK);
    r.sampling.max_tokens = max_tokens;
    r.sampling.seed = seed;
    r.sampling.logprobs = 3;
    r.sampling.ignore_eos = true;
    return r;
}

static run_sample *samples(size_t n)
{
    run_sample *s = calloc(n, sizeof *s);
    assert_non_null(s);
    return s;
}

/* The needle (slot 0 of prompts): alone, then at each place among fillers of mixed length and mixed
 * parameters. Returns how many runs differed from the run alone. */
static int needle(const char *model, corun_policy p, int n_prompt, int max_tokens)
{
    corun_model *m = run_open(model);
    corun_engine_opts o = opts(p);
    run_sample *out = samples(N_MAX), *alone = samples(1);
    run_request q[N_FILLER + 1];
    corun_request r = request(m, 0, n_prompt, max_tokens, 42);
    run_request one = {.r = r, .out = alone};
    run_all(m, &o, &one, 1, 1);
    assert_int_equal(alone->n_token, max_tokens);
    int distinct = 0;
    char seen[272] = {0};
    for (int i = 0; i < alone->n_token; i++) distinct += !seen[alone->token[i]]++;
    assert_true(distinct > 100); /* no degenerate loop */
    int bad = 0;
    uint64_t rng = 7;
    for (int round = 0; round < 4; round++) {
        size_t at = round == 0 ? 0 : (size_t)(run_rand(&rng) % (N_FILLER + 1));
        for (size_t i = 0; i <= N_FILLER; i++) {
            q[i].out = &out[i];
            if (i == at) {
                q[i].r = r;
                continue;
            }
            uint64_t x = run_rand(&rng);
            q[i].r = request(m, (int)i + 1, 1 + (int)(x % 200), 1 + (int)(x >> 8 & 63), 1000 + i);
            if (x >> 20 & 1) q[i].r.sampling.temperature = 0;
            if (x >> 21 & 1) q[i].r.sampling.top_k = 5;
            if (x >> 22 & 1) q[i].r.sampling.min_p = 0.05;
        }
        corun_stats s = run_all(m, &o, q, N_FILLER + 1, 1 + (size_t)(round * 5));
        if (p == CORUN_POLICY_CORUN) assert_true(s.rows_dead > 0);
        bad += run_differ(alone, &out[at], 1);
    }
    free(out);
    free(alone);
    corun_model_close(m);
    return bad;
}

/* A */
static void test_needle(void **state)
{
    (void)state;
    for (int i = 0; i < N_CLAIM; i++)
        for (int n = 100; n <= 300; n += 200)
            assert_int_equal(needle(claims[i].model, claims[i].p, n, 512), 0);
    assert_int_equal(needle("fake:phase", CORUN_POLICY_DYNAMIC, 100, 512), 0);
}

static void test_needle_one_level_lower(void **state)
{
    (void)state;
    for (int i = 0; i < N_CLAIM; i++)
        assert_true(needle(claims[i].lower, claims[i].p, 100, 512) > 0);
    assert_true(needle("fake:position", CORUN_POLICY_DYNAMIC, 100, 512) > 0);
}

/* B: a neighbour's length from 1 to the maximum. */
static void neighbour_lengths(corun_policy p, const char *model)
{
    corun_model *m = run_open(model);
    corun_engine_opts o = opts(p);
    run_sample *out = samples(2), *alone = samples(1);
    run_request q[2] = {{.out = &out[0]}, {.out = &out[1]}};
    q[1].r = request(m, 0, 33, 100, 5);
    run_request one = {.r = q[1].r, .out = alone};
    run_all(m, &o, &one, 1, 1);
    static const int len[] = {1, 15, 16, 17, 127, 128, 129, 500, 1000, 2000};
    for (size_t i = 0; i < sizeof len / sizeof *len; i++) {
        q[0].r = request(m, 1, len[i], 40, 6);
        run_all(m, &o, q, 2, 2);
        assert_int_equal(run_differ(alone, &out[1], 1), 0);
    }
    free(out);
    free(alone);
    corun_model_close(m);
}

static void test_neighbour_lengths(void **state)
{
    (void)state;
    for (int i = 0; i < N_CLAIM; i++) neighbour_lengths(claims[i].p, claims[i].model);
}

/* E, G: the same 24 requests at every concurrency, in shuffled order, with a pool so small that
 * requests move out: one result each. */
static void concurrency_order_pool(corun_policy p, const char *model)
{
    enum { N = 24 };
    corun_model *m = run_open(model);
    corun_engine_opts o = opts(p);
    run_sample *base = samples(N), *out = samples(N);
    run_request q[N], shuffled[N];
    for (int i = 0; i < N; i++) {
        q[i].r = request(m, i, 1 + i * 13, 20 + i * 9 % 150, 77 + (uint64_t)i);
        q[i].out = &base[i];
    }
    for (int i = 0; i < N; i++) run_all(m, &o, &q[i], 1, 1); /* each alone */
    uint64_t rng = 3, moved = 0, kinds = 0;
    for (size_t group = 1; group <= N; group *= 2) {
        for (int i = 0; i < N; i++) shuffled[i] = (run_request){.r = q[i].r, .out = &out[i]};
        for (int i = N - 1; i > 0; i--) {
            int k = (int)(run_rand(&rng) % (uint64_t)(i + 1));
            run_request t = shuffled[i];
            shuffled[i] = shuffled[k];
            shuffled[k] = t;
        }
        o.kv_bytes = group & 1 ? 0 : 40 * 16 * 256; /* 40 pages of 16 tokens of 256 bytes */
        corun_stats s = run_all(m, &o, shuffled, N, group);
        moved += p == CORUN_POLICY_FREE ? s.recomputes : s.swaps_in;
        assert_true(p == CORUN_POLICY_FREE ? s.swaps_out == 0 : s.recomputes == 0);
        kinds |= s.live_rows_seen[0];
        assert_int_equal(run_differ(base, out, N), 0);
    }
    assert_true(moved > 0);
    assert_true(__builtin_popcountll(kinds) >= 3);
    free(base);
    free(out);
    corun_model_close(m);
}

static void test_concurrency_order_pool(void **state)
{
    (void)state;
    for (int i = 0; i < N_CLAIM; i++) concurrency_order_pool(claims[i].p, claims[i].model);
}

/* J: n samples of one request: distinct, and each the single request with the derived seed. */
static void sample_seeds(corun_policy p, const char *model)
{
    static const int counts[] = {2, 8, 21};
    corun_model *m = run_open(model);
    corun_engine_opts o = opts(p);
    for (size_t c = 0; c < 3; c++) {
        int n = counts[c];
        run_sample *out = samples((size_t)n), *one = samples(1), *fill = samples(4);
        corun_request r = request(m, 0, 45, 60, 99);
        r.sampling.n = n;
        run_request q[5] = {{.r = r, .out = out}};
        for (int i = 0; i < 4; i++)
            q[i + 1] = (run_request){.r = request(m, i + 1, 30 + i, 30, 500 + (uint64_t)i),
                                     .out = &fill[i]};
        run_all(m, &o, q, 5, 2);
        for (int i = 0; i < n; i++) {
            for (int k = 0; k < i; k++) assert_true(run_differ(&out[i], &out[k], 1));
            run_request s = {.r = r, .out = one};
            s.r.sampling.n = 1;
            s.r.sampling.seed = corun_seed_sample(99, i);
            run_all(m, &o, &s, 1, 1);
            assert_int_equal(run_differ(one, &out[i], 1), 0);
        }
        free(out);
        free(one);
        free(fill);
    }
    corun_model_close(m);
}

static void test_samples(void **state)
{
    (void)state;
    for (int i = 0; i < N_CLAIM; i++) sample_seeds(claims[i].p, claims[i].model);
}

/* P, Q: four identical rows in one batch; the same seed twice; other seeds differ. */
static void identical_rows(corun_policy p, const char *model)
{
    corun_model *m = run_open(model);
    corun_engine_opts o = opts(p);
    run_sample *out = samples(6);
    run_request q[6];
    for (int i = 0; i < 6; i++) {
        q[i].r = request(m, i, 50, 200, 11);
        q[i].r.sampling.seed = i < 4 ? 11 : 100 + (uint64_t)i;
        q[i].out = &out[i];
    }
    run_all(m, &o, q, 6, 6);
    for (int i = 1; i < 4; i++) assert_int_equal(run_differ(&out[0], &out[i], 1), 0);
    for (int i = 4; i < 6; i++) assert_true(run_differ(&out[0], &out[i], 1));
    free(out);
    corun_model_close(m);
}

static void test_identical_rows(void **state)
{
    (void)state;
    for (int i = 0; i < N_CLAIM; i++) identical_rows(claims[i].p, claims[i].model);
}

static void expect_cut(corun_model *m, corun_policy p, const run_sample *whole, const char *stop,
                       size_t len, bool include, int32_t max_tokens)
{
    corun_engine_opts o = opts(p);
    run_sample *out = samples(1);
    corun_bytes s[2] = {{.data = "\x01never\x01", .len = 7}, {.data = stop, .len = len}};
    run_request q = {.r = request(m, 0, 20, max_tokens, 8), .out = out};
    q.r.sampling.stop = s;
    q.r.sampling.n_stop = 2;
    q.r.sampling.include_stop = include;
    run_all(m, &o, &q, 1, 1);
    const char *hit = memmem(whole->text, (size_t)whole->text_len, stop, len);
    assert_non_null(hit);
    size_t want = (size_t)(hit - whole->text) + (include ? len : 0);
    assert_int_equal(out->text_len, want);
    assert_memory_equal(out->text, whole->text, want);
    assert_int_equal(out->finish, CORUN_FINISH_STOP);
    assert_int_equal(out->stop_index, 1);
    assert_true(out->n_token <= whole->n_token);
    assert_memory_equal(out->token, whole->token, (size_t)out->n_token * sizeof *out->token);
    assert_memory_equal(out->logprob, whole->logprob, (size_t)out->n_token * sizeof(uint32_t));
    free(out);
}

/* K: stop strings that span tokens, at every place of a text, and one that falls on max_tokens. */
static void stop_strings(corun_policy p, const char *model)
{
    corun_model *m = run_open(model);
    corun_engine_opts o = opts(p);
    run_sample *whole = samples(1);
    run_request q = {.r = request(m, 0, 20, 80, 8), .out = whole};
    run_all(m, &o, &q, 1, 1);
    assert_int_equal(whole->finish, CORUN_FINISH_LENGTH);
    /* Take as stop strings pieces of the text that begin at a character. */
    for (int32_t at = 0; at + 12 < whole->text_len; at += 5) {
        int32_t b = at, e;
        while (b < whole->text_len && ((unsigned char)whole->text[b] & 0xc0) == 0x80) b++;
        e = b + 6;
        while (e < whole->text_len && ((unsigned char)whole->text[e] & 0xc0) == 0x80) e++;
        if (e >= whole->text_len) break;
        expect_cut(m, p, whole, whole->text + b, (size_t)(e - b), false, 80);
        expect_cut(m, p, whole, whole->text + b, (size_t)(e - b), true, 80);
    }
    /* The last characters of the text: the stop falls on max_tokens and wins. */
    int32_t b = whole->text_len - 4;
    while (((unsigned char)whole->text[b] & 0xc0) == 0x80) b--;
    expect_cut(m, p, whole, whole->text + b, (size_t)(whole->text_len - b), false, 80);
    free(whole);
    corun_model_close(m);
}

static void test_stop_strings(void **state)
{
    (void)state;
    for (int i = 0; i < N_CLAIM; i++) stop_strings(claims[i].p, claims[i].model);
}

static void stop_ids(corun_policy p, const char *model)
{
    corun_model *m = run_open(model);
    corun_engine_opts o = opts(p);
    run_sample *whole = samples(1), *out = samples(1);
    run_request q = {.r = request(m, 0, 20, 80, 8), .out = whole};
    run_all(m, &o, &q, 1, 1);
    int32_t stop = whole->token[30], first = 30;
    for (int32_t i = 29; i >= 0; i--)
        if (whole->token[i] == stop) first = i;
    q.out = out;
    q.r.sampling.stop_id = &stop;
    q.r.sampling.n_stop_id = 1;
    run_all(m, &o, &q, 1, 1);
    assert_int_equal(out->n_token, first + 1);
    assert_int_equal(out->stop_token, stop);
    q.r.sampling.min_tokens = 60; /* not drawn before, and other tokens follow */
    run_all(m, &o, &q, 1, 1);
    assert_true(out->n_token >= 60);
    for (int32_t i = 0; i < 59; i++) assert_int_not_equal(out->token[i], stop);
    free(whole);
    free(out);
    corun_model_close(m);
}

static void test_stop_ids(void **state)
{
    (void)state;
    for (int i = 0; i < N_CLAIM; i++) stop_ids(claims[i].p, claims[i].model);
}

/* Prompt log-probabilities: one value for each token but the first, the same bytes cold or beside
 * others, and with max_tokens 0 nothing else. */
static void prompt_logprobs(corun_policy p, const char *model)
{
    static const int len[] = {1, 2, 15, 16, 17, 33, 127, 128, 129, 300};
    corun_model *m = run_open(model);
    corun_engine_opts o = opts(p);
    run_sample *a = samples(1), *b = samples(2);
    for (size_t i = 0; i < sizeof len / sizeof *len; i++) {
        run_request q[2] = {{.r = request(m, 0, len[i], 0, 1), .out = a}};
        q[0].r.sampling.prompt_logprobs = 1;
        run_all(m, &o, q, 1, 1);
        assert_int_equal(a->n_prompt_lp, len[i] - 1);
        assert_int_equal(a->n_token, 0);
        assert_int_equal(a->done, 1);
        assert_int_equal(a->finish, CORUN_FINISH_LENGTH);
        q[0].out = &b[1];
        q[1] = q[0];
        q[0] = (run_request){.r = request(m, 1, 70, 20, 2), .out = &b[0]};
        run_all(m, &o, q, 2, 2);
        assert_int_equal(run_differ(a, &b[1], 1), 0);
    }
    free(a);
    free(b);
    corun_model_close(m);
}

static void test_prompt_logprobs(void **state)
{
    (void)state;
    for (int i = 0; i < N_CLAIM; i++) prompt_logprobs(claims[i].p, claims[i].model);
}

static void test_refused(void **state)
{
    (void)state;
    corun_model *m = run_open("fake:phase");
    corun_engine_opts o = opts(CORUN_POLICY_CORUN);
    o.kv_bytes = 20 * 16 * 256;
    corun_engine *e;
    assert_int_equal(corun_engine_open(&e, m, &o), CORUN_OK);
    uint64_t id;
    corun_request r = request(m, 0, 400, 10, 1);
    assert_int_equal(corun_submit(e, &r, &id), CORUN_ECAPACITY); /* 26 pages of 20 */
    assert_non_null(strstr(corun_last_error(), "page"));
    r = request(m, 0, 2040, 10, 1);
    assert_int_equal(corun_submit(e, &r, &id), CORUN_ECAPACITY);
    r = request(m, 0, 10, 10, 1);
    r.n_token = 0;
    assert_int_equal(corun_submit(e, &r, &id), CORUN_EINVAL);
    static const int32_t bad[] = {-1, 272, INT32_MAX, INT32_MIN};
    for (int i = 0; i < 4; i++) {
        r = request(m, 0, 10, 10, 1);
        prompts[0][9] = bad[i];
        assert_int_equal(corun_submit(e, &r, &id), CORUN_EINVAL);
    }
    corun_event ev;
    assert_int_equal(corun_next(e, &ev), CORUN_OK);
    assert_int_equal(ev.kind, CORUN_EVENT_IDLE);
    corun_engine_close(e);
    corun_model_close(m);
    corun_model_opts mo = corun_model_opts_default();
    static const char *const paths[] = {
        "fake:", "fake:none", "fake:phase,", "fake:phase,phase,run", "/nonexistent", "/etc/passwd"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        mo.path = paths[i];
        assert_int_not_equal(corun_model_open(&m, &mo), CORUN_OK);
        assert_true(strlen(corun_last_error()) > 10);
    }
}

/* Cancelling at any moment frees all pages and leaves the others as they were. */
static void cancel(corun_policy p, const char *model)
{
    corun_model *m = run_open(model);
    corun_engine_opts o = opts(p);
    run_sample *alone = samples(1), *out = samples(1);
    run_request one = {.r = request(m, 0, 40, 60, 4), .out = alone};
    run_all(m, &o, &one, 1, 1);
    for (int after = 0; after < 60; after += 7) {
        corun_engine *e;
        uint64_t id[4];
        assert_int_equal(corun_engine_open(&e, m, &o), CORUN_OK);
        for (int i = 0; i < 4; i++) {
            corun_request r = request(m, i, 40, 60, 4 + (uint64_t)i);
            if (i == 2) r.sampling.n = 11;
            assert_int_equal(corun_submit(e, &r, &id[i]), CORUN_OK);
        }
        memset(out, 0, sizeof *out);
        corun_event ev = {.kind = CORUN_EVENT_NONE};
        for (int k = 0; ev.kind != CORUN_EVENT_IDLE; k++) {
            if (k == after) {
                assert_int_equal(corun_cancel(e, id[1]), CORUN_OK);
                assert_int_equal(corun_cancel(e, id[2]), CORUN_OK);
            }
            assert_int_equal(corun_next(e, &ev), CORUN_OK);
            if (k >= after && ev.kind > CORUN_EVENT_IDLE)
                assert_true(ev.id != id[1] && ev.id != id[2]);
            if (ev.kind > CORUN_EVENT_IDLE && ev.id == id[0]) run_take(out, &ev);
        }
        corun_stats s;
        assert_int_equal(corun_engine_stats(e, &s), CORUN_OK);
        assert_int_equal(s.pages_free, s.pages);
        corun_engine_close(e);
        assert_int_equal(run_differ(alone, out, 1), 0);
    }
    free(alone);
    free(out);
    corun_model_close(m);
}

static void test_cancel(void **state)
{
    (void)state;
    for (int i = 0; i < N_CLAIM; i++) cancel(claims[i].p, claims[i].model);
}

/* The digest of an engine with one option changed. */
static void identity_of(const char *model, corun_policy p, int change, char out[33])
{
    corun_model *m = run_open(model);
    corun_engine_opts o = opts(p);
    corun_engine *e;
    if (change == 1) o.kv_bytes = 100 * 16 * 256;
    if (change == 2) o.n_slot = 9;
    if (change == 3) o.prefill_chunk = p == CORUN_POLICY_INVARIANT ? 4096 : 256;
    if (change == 4) o.processed_logprobs = true;
    if (change == 5) o.page_tokens = 32;
    if (corun_engine_open(&e, m, &o) != CORUN_OK) fail_msg("%s", corun_last_error());
    assert_int_equal(corun_identity(e, out, NULL, 0, NULL), CORUN_OK);
    corun_engine_close(e);
    corun_model_close(m);
}

/* The identity: what moves a bit is in it, what moves only time is not. */
static void test_identity(void **state)
{
    (void)state;
    char base[N_CLAIM][33], other[33];
    for (int i = 0; i < N_CLAIM; i++) {
        corun_policy p = claims[i].p;
        identity_of("fake:phase", p, 0, base[i]);
        for (int k = 0; k < i; k++) assert_string_not_equal(base[i], base[k]);
        identity_of("fake:batch", p, 0, other); /* other weights */
        assert_string_not_equal(base[i], other);
        for (int change = 1; change <= 5; change++) {
            identity_of("fake:phase", p, change, other);
            bool moves = change > 3 || (change > 1 && p == CORUN_POLICY_CORUN);
            if (moves)
                assert_string_not_equal(base[i], other);
            else
                assert_string_equal(base[i], other);
        }
    }
}

/* ---- reuse, recompute, cuts ------------------------------------------------------------------ */

/* F: a prompt after others that begin alike, against cold; warm prefixes of every kind of length.
 */
static int prefixes(const char *model, corun_policy p, uint64_t *hits)
{
    static const int shared[] = {1, 15, 16, 17, 100, 511, 2047, 2048, 2049, 4096, 4097};
    enum { N = sizeof shared / sizeof *shared };
    corun_model *m = run_open(model);
    corun_engine_opts o = opts(p);
    o.n_ctx = 8192;
    o.kv_bytes = 4096 * 16 * 256;
    run_sample *cold = samples(N), *warm = samples(N + 2);
    run_request q[N + 2];
    int bad = 0;
    /* the root of all: 4,200 tokens; the others leave it after shared[i] tokens */
    for (int order = 0; order < 2; order++) {
        q[0] = (run_request){.r = request(m, 0, 4200, 20, 1), .out = &warm[0]};
        for (int i = 0; i < N; i++) {
            corun_request r = request(m, i + 1, shared[i] + 60, 40, 2 + (uint64_t)i);
            for (int k = 0; k < shared[i]; k++) prompts[i + 1][k] = prompts[0][k];
            if (i == 5) r.sampling.prompt_logprobs = 1;
            run_request one = {.r = r, .out = &cold[i]};
            corun_stats s = run_all(m, &o, &one, 1, 1);
            assert_int_equal(s.prefix_hits, 0);
            int at = order ? N - i : i + 1;
            q[at] = (run_request){.r = r, .out = &warm[i + 1]};
        }
        q[N + 1] = q[3]; /* the very same once more */
        q[N + 1].out = &warm[N + 1];
        corun_stats s = run_all(m, &o, q, N + 2, 1);
        *hits += s.prefix_hits;
        bad += run_differ(cold, warm + 1, N);
        bad += run_differ(q[3].out, &warm[N + 1], 1);
    }
    free(cold);
    free(warm);
    corun_model_close(m);
    return bad;
}

static void test_prefixes(void **state)
{
    (void)state;
    for (int i = 0; i < N_CLAIM; i++) {
        uint64_t hits = 0;
        assert_int_equal(prefixes(claims[i].model, claims[i].p, &hits), 0);
        if (claims[i].p == CORUN_POLICY_CORUN)
            assert_int_equal(hits, 0);
        else
            assert_true(hits >= 4);
    }
    uint64_t hits = 0;
    assert_true(prefixes("fake:batch", CORUN_POLICY_FREE, &hits) > 0);
    assert_true(prefixes("fake:position", CORUN_POLICY_INVARIANT, &hits) > 0);
}

/* A prompt that goes on where an answer ended finds the pages that decode wrote. */
static int next_turn(const char *model, corun_policy p, uint64_t *spared)
{
    corun_model *m = run_open(model);
    corun_engine_opts o = opts(p);
    run_sample *out = samples(3);
    run_request q[2] = {{.r = request(m, 0, 50, 100, 1), .out = &out[0]}};
    run_all(m, &o, q, 1, 1);
    q[1] = (run_request){.r = request(m, 1, 200, 60, 2), .out = &out[1]};
    memcpy(prompts[1], prompts[0], 50 * sizeof **prompts);
    memcpy(prompts[1] + 50, out[0].token, 100 * sizeof **prompts);
    run_all(m, &o, &q[1], 1, 1); /* cold */
    q[1].out = &out[2];
    o.n_slot = 1;
    corun_stats s = run_all(m, &o, q, 2, 2);
    *spared = s.prefix_tokens;
    int bad = run_differ(&out[1], &out[2], 1);
    free(out);
    corun_model_close(m);
    return bad;
}

static void test_next_turn(void **state)
{
    (void)state;
    uint64_t spared;
    assert_int_equal(next_turn("fake:phase", CORUN_POLICY_FREE, &spared), 0);
    assert_int_equal(spared, 144); /* of 149 that were written, whole pages */
    assert_true(next_turn("fake:batch", CORUN_POLICY_FREE, &spared) > 0);
    assert_int_equal(next_turn("fake:batch", CORUN_POLICY_INVARIANT, &spared), 0);
    assert_int_equal(spared, 0);
}

/* G: a pool so small that requests make room, several times each, samples and scores included. */
static int pressed(const char *model, corun_policy p, corun_stats *s)
{
    enum { N = 12 };
    corun_model *m = run_open(model);
    corun_engine_opts o = opts(p);
    run_sample *base = samples((size_t)N * 3), *out = samples((size_t)N * 3);
    run_request q[N];
    for (int i = 0; i < N; i++) {
        q[i].r = request(m, i, 10 + i * 17, 100 + i * 5, 30 + (uint64_t)i);
        q[i].r.sampling.n = 1 + i % 3;
        if (i % 4 == 3) q[i].r.sampling.prompt_logprobs = 1;
        q[i].out = &base[3 * i];
        run_all(m, &o, &q[i], 1, 1);
        q[i].out = &out[3 * i];
    }
    o.kv_bytes = 44 * 16 * 256;
    o.swap_bytes = 400 * 16 * 256;
    *s = run_all(m, &o, q, N, 2);
    int bad = run_differ(base, out, (size_t)N * 3);
    free(base);
    free(out);
    corun_model_close(m);
    return bad;
}

static void test_pressed(void **state)
{
    (void)state;
    corun_stats s;
    for (int i = 0; i < N_CLAIM; i++) {
        assert_int_equal(pressed(claims[i].model, claims[i].p, &s), 0);
        assert_true((claims[i].p == CORUN_POLICY_FREE ? s.recomputes : s.swaps_out) > 2);
    }
    assert_true(pressed("fake:batch", CORUN_POLICY_FREE, &s) > 0);
}

/* R: one long prompt under every budget: its cuts move, its bits do not. */
static void test_budgets(void **state)
{
    (void)state;
    static const int32_t chunk[] = {8, 17, 64, 500, 4096};
    for (int v = 0; v < 2; v++) {
        corun_model *m = run_open(v ? "fake:batch" : "fake:phase");
        corun_engine_opts o = opts(CORUN_POLICY_FREE);
        run_sample *base = samples(1), *out = samples(1);
        run_request q = {.r = request(m, 0, 1500, 50, 9), .out = base};
        q.r.sampling.prompt_logprobs = 0;
        int bad = 0;
        uint64_t cuts = UINT64_MAX;
        for (int i = 0; i < 5; i++) {
            o.prefill_chunk = chunk[i];
            corun_stats s = run_all(m, &o, &q, 1, 1);
            assert_true(s.prompt_cuts < cuts);
            cuts = s.prompt_cuts;
            if (i) bad += run_differ(base, out, 1);
            q.out = out;
        }
        assert_int_equal(cuts, 0);
        assert_true(v ? bad == 4 : bad == 0);
        free(base);
        free(out);
        corun_model_close(m);
    }
}

/* On kernels of level phase, which those of the CPU are, all policies give the same bytes. */
static void test_policies_agree(void **state)
{
    (void)state;
    enum { N = 10 };
    corun_model *m = run_open("fake:phase");
    run_sample *base = samples(N), *out = samples(N);
    run_request q[N];
    for (corun_policy p = CORUN_POLICY_DYNAMIC; p <= CORUN_POLICY_AUTO; p++) {
        corun_engine_opts o = opts(p);
        for (int i = 0; i < N; i++) {
            q[i].r = request(m, i, 20 + i * 40, 60, 5 + (uint64_t)i);
            q[i].out = p == CORUN_POLICY_DYNAMIC ? &base[i] : &out[i];
        }
        run_all(m, &o, q, N, 3);
        if (p != CORUN_POLICY_DYNAMIC) assert_int_equal(run_differ(base, out, N), 0);
    }
    free(base);
    free(out);
    corun_model_close(m);
}

/* A thousand requests are alive at one time, and those that end, by a stop that nobody can foresee,
 * make room at once: whether their row of the next step is in flight or not. */
static void test_many_ends(void **state)
{
    (void)state;
    corun_model *m = run_open("fake:phase");
    corun_engine_opts o = opts(CORUN_POLICY_FREE);
    o.n_slot = 256;
    o.n_ctx = 512;
    o.prefill_chunk = 512;
    corun_engine *e;
    if (corun_engine_open(&e, m, &o) != CORUN_OK) fail_msg("%s", corun_last_error());
    int32_t only[1] = {70};
    corun_request r = request(m, 0, 8, 16, 3);
    r.sampling.allowed = r.sampling.stop_id = only;
    r.sampling.n_allowed = r.sampling.n_stop_id = 1;
    size_t alive = 0, sent = 0;
    uint64_t id;
    do {
        for (; alive < 1000 && sent < 4000; alive++, sent++)
            if (corun_submit(e, &r, &id) != CORUN_OK) fail_msg("%s", corun_last_error());
        corun_event ev;
        assert_int_equal(corun_next(e, &ev), CORUN_OK);
        assert_int_not_equal(ev.kind, CORUN_EVENT_FAILED);
        alive -= ev.kind == CORUN_EVENT_DONE;
    } while (alive);
    for (; alive < 1024; alive++) assert_int_equal(corun_submit(e, &r, &id), CORUN_OK);
    assert_int_equal(corun_submit(e, &r, &id), CORUN_ECAPACITY);
    assert_non_null(strstr(corun_last_error(), "1024 requests are alive"));
    corun_engine_close(e);
    corun_model_close(m);
}

/* As on a device: a step is given before the draws of the one before it are read. */
static void step_ahead(corun_model *m) { m->net->o->lag = 1; }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_needle),
        cmocka_unit_test(test_needle_one_level_lower),
        cmocka_unit_test(test_neighbour_lengths),
        cmocka_unit_test(test_concurrency_order_pool),
        cmocka_unit_test(test_samples),
        cmocka_unit_test(test_identical_rows),
        cmocka_unit_test(test_stop_strings),
        cmocka_unit_test(test_stop_ids),
        cmocka_unit_test(test_prompt_logprobs),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_identity),
        cmocka_unit_test(test_prefixes),
        cmocka_unit_test(test_next_turn),
        cmocka_unit_test(test_pressed),
        cmocka_unit_test(test_budgets),
        cmocka_unit_test(test_policies_agree),
        cmocka_unit_test(test_many_ends),
    };
    int failed = cmocka_run_group_tests_name("step by step", tests, NULL, NULL);
    run_prepare = step_ahead;
    return failed + cmocka_run_group_tests_name("a step ahead", tests, NULL, NULL);
}
