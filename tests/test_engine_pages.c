/* test_engine_pages.c - pages under the whole engine on tiny real models: a step changes the pages
 * of its live rows at their own positions and nothing else, poison in every other place moves no
 * byte, a request that fails leaves nothing behind, and scored prompts are the same cold and warm.
 */
#include "engine_run.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#define request sched_request_state /* both rooms have a struct of this name */
#include "sched/sched_impl.h"
#undef request
#include "engine/engine.h"

#define MODEL TEST_DATA "/golden/qwen2_untied"

enum { PAGE = 16, MAX_BYTES = 1 << 24, MAX_PAGE = 512 };

/* What the wrapped forward looks at; the real one is kept here. */
static struct {
    corun_model *m;
    corun_status (*forward)(model *m, const step *s);
    bool poison;
    int n_step, n_dead, n_poisoned;
    char before[MAX_BYTES], after[MAX_BYTES];
    int32_t written[MAX_PAGE]; /* tokens of this step in each page */
} watch;

static void get_pages(const ops *o, char *to)
{
    size_t bytes = o->page_bytes(o);
    assert_true(o->conf.n_page <= MAX_PAGE && bytes * (size_t)o->conf.n_page <= MAX_BYTES);
    for (int32_t p = 0; p < o->conf.n_page; p++)
        assert_int_equal(o->page_get((ops *)(uintptr_t)o, p, to + (size_t)p * bytes), CORUN_OK);
}

/* NaN in the null page and in every page that nobody owns and the prefix cache does not hold. What
 * a sequence has not written yet in its last page is still poison from the time it was free. */
static void poison_pages(ops *o, const pages *all)
{
    static uint16_t nan[MAX_BYTES / 2];
    size_t bytes = o->page_bytes(o);
    if (!nan[0])
        for (size_t i = 0; i < MAX_BYTES / 2; i++) nan[i] = 0x7fc1;
    assert_true(bytes <= sizeof nan);
    assert_int_equal(o->page_put(o, 0, nan), CORUN_OK);
    for (int32_t i = 0; i < all->n_stack; i++, watch.n_poisoned++)
        assert_int_equal(o->page_put(o, all->stack[i], nan), CORUN_OK);
}

static void check_pages(const ops *o, const step *s)
{
    size_t bytes = o->page_bytes(o), token = bytes / PAGE;
    memset(watch.written, 0, sizeof watch.written);
    for (int32_t r = 0; r < s->n_row; r++) {
        const step_row *w = &s->row[r];
        if (w->seq < 0) {
            assert_int_equal(w->n_page, 0);
            watch.n_dead++;
            continue;
        }
        for (int32_t i = 0; i < w->q_len; i++) watch.written[w->page[(w->pos + i) / PAGE]]++;
    }
    get_pages(o, watch.after);
    for (int32_t p = 0; p < o->conf.n_page; p++) {
        const char *a = watch.before + (size_t)p * bytes, *b = watch.after + (size_t)p * bytes;
        size_t changed = 0;
        for (size_t i = 0; i < bytes; i++) changed += a[i] != b[i];
        assert_true(watch.written[p] <= PAGE);
        if (changed > token * (size_t)watch.written[p])
            fail_msg("step %d: %zu bytes of page %d changed, %d tokens were its own", watch.n_step,
                     changed, p, watch.written[p]);
    }
}

static corun_status watched_forward(model *m, const step *s)
{
    if (watch.poison) poison_pages(m->o, &watch.m->engine->s->pool);
    get_pages(m->o, watch.before);
    TRY(watch.forward(m, s));
    check_pages(m->o, s);
    watch.n_step++;
    return CORUN_OK;
}

static void watch_begin(corun_model *m, bool poison)
{
    watch.m = m;
    watch.forward = m->net->forward;
    watch.poison = poison;
    watch.n_step = watch.n_dead = watch.n_poisoned = 0;
    m->net->forward = watched_forward;
}

static void watch_end(corun_model *m) { m->net->forward = watch.forward; }

static corun_engine_opts opts(corun_policy p, const corun_model *m, uint64_t n_page)
{
    corun_model_info info;
    assert_int_equal(corun_model_describe(m, &info), CORUN_OK);
    corun_engine_opts o = corun_engine_opts_default();
    o.policy = p;
    o.n_slot = 8;
    o.n_ctx = 256;
    o.page_tokens = PAGE;
    o.kv_bytes = info.kv_bytes_per_token * PAGE * n_page;
    return o;
}

enum { N = 10 };

static int32_t prompt[N][256];
static run_sample out[2][N], alone[N];

/* Eight of different lengths, seven of which end soon; a long one; and a scored prompt. */
static void make_requests(const corun_model *m, run_request q[N], run_sample *to)
{
    uint64_t rng = 11;
    for (int i = 0; i < N; i++) {
        int n = i < 8 ? 5 + 7 * i : 60;
        for (int k = 0; k < n; k++) prompt[i][k] = (int32_t)(run_rand(&rng) % 200);
        q[i] = (run_request){.r = {.tokens = prompt[i], .n_token = (size_t)n}, .out = &to[i]};
        corun_sampling *s = &q[i].r.sampling;
        assert_int_equal(corun_sampling_default(m, s), CORUN_OK);
        s->max_tokens = i == 9 ? 0 : i == 3 ? 100 : i == 8 ? 80 : 4 + i;
        s->prompt_logprobs = i == 9 ? 0 : -1;
        s->seed = (uint64_t)i;
        s->logprobs = 3;
        s->ignore_eos = true;
    }
}

static const corun_policy policies[] = {CORUN_POLICY_CORUN, CORUN_POLICY_INVARIANT,
                                        CORUN_POLICY_FREE, CORUN_POLICY_DYNAMIC};

/* DET-3 and DET-4: each step is watched; with poison and without, alone and together. */
static void test_own_pages(void **state)
{
    (void)state;
    corun_model *m = run_open(MODEL);
    for (int p = 0; p < 4; p++) {
        corun_engine_opts o = opts(policies[p], m, 64);
        run_request q[N];
        make_requests(m, q, alone);
        for (int i = 0; i < N; i++) run_all(m, &o, &q[i], 1, 1);
        for (int poison = 0; poison < 2; poison++) {
            for (int i = 0; i < N; i++) q[i].out = &out[poison][i];
            watch_begin(m, poison);
            run_all(m, &o, q, N, 3);
            watch_end(m);
            assert_true(watch.n_step > 90);
            assert_true((watch.n_poisoned > 1000) == poison);
            if (policies[p] == CORUN_POLICY_CORUN) assert_true(watch.n_dead > 300);
            assert_int_equal(run_differ(alone, out[poison], N), 0);
        }
    }
    corun_model_close(m);
}

/* A copy of the model whose embedding of one token is NaN. */
static void make_bad_model(char *folder, int32_t bad)
{
    static const char *const file[] = {"config.json", "generation_config.json", "tokenizer.json",
                                       "tokenizer_config.json", "model.safetensors"};
    strcpy(folder, "/tmp/corun_pages_XXXXXX");
    assert_non_null(mkdtemp(folder));
    for (size_t i = 0; i < sizeof file / sizeof *file; i++) {
        char path[512];
        buf b;
        buf_init(&b, 1 << 26);
        snprintf(path, sizeof path, "%s/%s", MODEL, file[i]);
        assert_int_equal(file_read(&b, path, 1 << 26), CORUN_OK);
        if (i == 4) {
            uint64_t n;
            json_t *head;
            memcpy(&n, b.data, 8);
            assert_int_equal(json_read(&head, b.data + 8, (size_t)n, path), CORUN_OK);
            const json_t *t = json_object_get(head, "model.embed_tokens.weight");
            assert_string_equal(json_string_value(json_object_get(t, "dtype")), "BF16");
            int64_t width = json_integer_value(json_array_get(json_object_get(t, "shape"), 1));
            int64_t at = json_integer_value(json_array_get(json_object_get(t, "data_offsets"), 0));
            uint16_t nan = 0x7fc1;
            memcpy(b.data + 8 + n + at + 2 * width * bad, &nan, 2);
            json_decref(head);
        }
        snprintf(path, sizeof path, "%s/%s", folder, file[i]);
        FILE *f = fopen(path, "wb");
        assert_non_null(f);
        assert_int_equal(fwrite(b.data, 1, b.len, f), b.len);
        assert_int_equal(fclose(f), 0);
        buf_free(&b);
    }
}

static void remove_folder(const char *folder)
{
    char cmd[128];
    snprintf(cmd, sizeof cmd, "rm -r '%s'", folder);
    assert_int_equal(system(cmd), 0);
}

/* DET-4, the other half: a request with NaN fails, again when it comes again, and neither its
 * neighbours nor one that shares its prefix or takes its pages is touched. */
static void test_failed_request(void **state)
{
    (void)state;
    enum { BAD = 199 };
    char folder[64];
    make_bad_model(folder, BAD);
    corun_model *m = run_open(folder);
    for (int p = 0; p < 4; p++) {
        corun_engine_opts o = opts(policies[p], m, 24);
        run_request q[N];
        make_requests(m, q, alone);
        for (int i = 0; i < N; i++)
            for (size_t k = 0; k < q[i].r.n_token; k++) prompt[i][k] %= BAD;
        for (int i = 0; i < N; i++) run_all(m, &o, &q[i], 1, 1);
        /* Requests 1, 2 and 5 begin as request 8 does; NaN comes after two pages, at once, last. */
        static const int who[] = {1, 2, 5};
        run_request bad[N + 3];
        memcpy(bad, q, sizeof q);
        for (int i = 0; i < N; i++) bad[i].out = &out[0][i];
        static int32_t wrong[3][60];
        for (int i = 0; i < 3; i++) {
            memcpy(wrong[i], prompt[8], sizeof wrong[i]);
            wrong[i][i == 0 ? 33 : i == 1 ? 0 : 59] = BAD;
            bad[who[i]].r.tokens = wrong[i];
            bad[who[i]].r.n_token = 60;
            bad[N + i] = bad[who[i]]; /* again, when the first has ended */
            bad[N + i].out = &out[1][i];
        }
        run_all(m, &o, bad, N + 3, 2);
        for (int i = 0; i < N; i++) {
            bool is_bad = i == 1 || i == 2 || i == 5;
            assert_int_equal(out[0][i].failed, is_bad);
            if (!is_bad) assert_int_equal(run_differ(&alone[i], &out[0][i], 1), 0);
        }
        for (int i = 0; i < 3; i++) assert_true(out[1][i].failed && !out[1][i].n_token);
    }
    corun_model_close(m);
    remove_folder(folder);
}

/* DET-6: prompts of P - 1, P, P + 1 and 2 P + 1 ids scored three times among others that write and
 * read the same prefix: always length - 1 values, the bytes of a cold engine. */
static void test_scored_prompts(void **state)
{
    (void)state;
    corun_model *m = run_open(MODEL);
    for (int p = 0; p < 4; p++) {
        corun_engine_opts o = opts(policies[p], m, 64);
        static const size_t length[] = {PAGE - 1, PAGE, PAGE + 1, 2 * PAGE + 1};
        static run_sample cold[4], got[24];
        run_request q[24], one;
        make_requests(m, q, out[0]);
        run_request score = q[9], plain = q[8];
        plain.r.tokens = score.r.tokens;
        for (int i = 0; i < 4; i++) {
            one = score;
            one.r.n_token = length[i];
            one.out = &cold[i];
            run_all(m, &o, &one, 1, 1);
            assert_int_equal(cold[i].n_prompt_lp, length[i] - 1);
        }
        for (int i = 0; i < 24; i++) {
            q[i] = i % 2 ? score : plain;
            q[i].r.n_token = length[i / 2 % 4];
            q[i].r.sampling.max_tokens = i % 2 ? 0 : 20;
            q[i].out = &got[i];
        }
        run_all(m, &o, q, 24, 1);
        for (int i = 1; i < 24; i += 2)
            assert_int_equal(run_differ(&cold[i / 2 % 4], &got[i], 1), 0);
        for (int i = 8; i < 24; i += 2) assert_int_equal(run_differ(&got[i % 8], &got[i], 1), 0);
    }
    corun_model_close(m);
}

int main(void)
{
    const struct CMUnitTest t[] = {cmocka_unit_test(test_own_pages),
                                   cmocka_unit_test(test_failed_request),
                                   cmocka_unit_test(test_scored_prompts)};
    return cmocka_run_group_tests_name("engine: pages", t, NULL, NULL);
}
