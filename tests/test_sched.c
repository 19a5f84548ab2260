/* test_sched.c - each rule of the scheduler by a small directed stream. */
#include "sched_sim.h"

#include "sched/pages.h"

static sim m; /* large: not on the stack */

/* ---- pages ---------------------------------------------------------------------------------- */

static void test_pages(void **state)
{
    (void)state;
    pages a, b;
    assert_int_equal(pages_open(&a, 4, 1, "a"), CORUN_OK);
    assert_int_equal(pages_open(&b, 1, 0, "b"), CORUN_OK);
    int32_t p[3];
    for (int i = 0; i < 3; i++) {
        p[i] = pages_take(&a);
        assert_in_range(p[i], 1, 3);
        for (int k = 0; k < i; k++) assert_int_not_equal(p[i], p[k]);
    }
    assert_int_equal(pages_take(&a), PAGES_NONE);
    pages_share(&a, p[1], 2);
    pages_drop(&a, p[1], 1);
    assert_int_equal(a.n_free, 0);
    int32_t moved = pages_move(&a, p[1], 2, &b);
    assert_int_equal(moved, 0);
    assert_int_equal(b.owners[0], 2);
    assert_int_equal(a.owners[p[1]], 0);
    assert_int_equal(pages_move(&a, p[0], 1, &b), PAGES_NONE);
    assert_int_equal(a.owners[p[0]], 1);
    pages_drop(&b, 0, 1);
    assert_int_equal(b.n_free, 0);
    pages_drop(&b, 0, 1);
    assert_int_equal(b.n_free, 1);
    assert_int_equal(pages_take(&a), p[1]);
    assert_int_equal(a.peak, 3);
    assert_int_equal(pages_check(&a, "a"), CORUN_OK);
    a.owners[p[0]] = 0; /* lost: neither owned nor free */
    assert_int_equal(pages_check(&a, "a"), CORUN_EINTERNAL);
    a.owners[p[0]] = 1;
    a.owners[0] = 1; /* the null page */
    assert_int_equal(pages_check(&a, "a"), CORUN_EINTERNAL);
    pages_close(&a);
    pages_close(&b);
}

/* ---- refusals ------------------------------------------------------------------------------- */

static void bad_opts(sched_opts o, const char *word)
{
    sched *s;
    assert_int_equal(sched_open(&s, &o), CORUN_EINVAL);
    assert_null(s);
    assert_non_null(strstr(corun_last_error(), word));
}

#define BAD(field, value)                                                                          \
    do {                                                                                           \
        sched_opts bad_ = sim_opts();                                                              \
        bad_.field = value;                                                                        \
        bad_opts(bad_, #field);                                                                    \
    } while (0)

static void test_bad_opts(void **state)
{
    (void)state;
    BAD(planner, 7);
    BAD(n_slot, 0);
    BAD(n_slot, -3);
    BAD(n_ctx, 0);
    BAD(page_tokens, 0);
    BAD(page_tokens, 24);
    BAD(n_page, 1);
    BAD(n_page, INT32_MAX);
    BAD(n_swap, -1);
    BAD(chunk, 0);
    BAD(max_request, 0);
    BAD(max_request, INT32_MAX);
    BAD(cut, -16);
    BAD(cut, 16); /* not with this planner */
    BAD(reuse, SCHED_REUSE_PAGES);
    BAD(recompute, true);
    BAD(key_bits, 63);
    sched_opts o = sim_opts();
    o.planner = SCHED_PLAN_DYNAMIC;
    o.cut = 24;
    bad_opts(o, "cut");
    o.cut = 64; /* chunk is 32 */
    bad_opts(o, "cut");
    o.cut = 32;
    o.reuse = SCHED_REUSE_PAGES;
    bad_opts(o, "reuse");
    o.reuse = SCHED_REUSE_PIECES;
    o.recompute = true;
    bad_opts(o, "recompute");
    o.recompute = false;
    o.cut = 0;
    bad_opts(o, "reuse");
    BAD(lag, 2);
    BAD(lag, -1);
    sched_close(NULL);
}

static void refused(uint64_t id, int32_t n_token, int32_t max_new, int32_t n_sample,
                    corun_status want, const char *text)
{
    static const int32_t tok[1024];
    sched_request r = {id, tok, n_token, max_new, n_sample, false};
    int32_t seq = -7;
    assert_int_equal(sched_add(m.s, &r, &seq), want);
    assert_int_equal(seq, -7);
    if (!strstr(corun_last_error(), text))
        SIM_FAIL("\"%s\" does not say \"%s\"", corun_last_error(), text);
    assert_int_equal(sched_check(m.s), CORUN_OK);
}

static void test_refusals(void **state)
{
    (void)state;
    sched_opts o = sim_opts();
    o.n_page = 5;
    o.max_request = 2;
    sim_open(&m, &o, 1);
    refused(1, 0, 5, 1, CORUN_EINVAL, "0 prompt tokens");
    refused(1, -1, 5, 1, CORUN_EINVAL, "-1 prompt tokens");
    refused(1, 5, -1, 1, CORUN_EINVAL, "max_new -1");
    refused(1, 5, 5, 0, CORUN_EINVAL, "0 samples");
    refused(1, 5, 5, SCHED_MAX_SAMPLE + 1, CORUN_EINVAL, "129 samples");
    refused(1, 200, 57, 1, CORUN_ECAPACITY, "context of 257 tokens");
    refused(1, 5, INT32_MAX, 1, CORUN_ECAPACITY, "context of 2147483652 tokens");
    /* 40 + 41 - 1 tokens are 5 pages; one token less fits */
    refused(1, 40, 26, 1, CORUN_ECAPACITY, "needs 5 pages of 16");
    refused(1, 65, 0, 1, CORUN_ECAPACITY, "needs 5 pages of 16");
    /* with a second sample the prompt's partial page must outlive the first one's copy */
    refused(1, 40, 25, 2, CORUN_ECAPACITY, "needs 5 pages of 16");
    sim_must_add(&m, 1, 40, 25, 1);
    refused(1, 5, 5, 1, CORUN_EINVAL, "id 1 is alive");
    sim_must_add(&m, 2, 64, 0, 1);
    refused(3, 5, 5, 1, CORUN_ECAPACITY, "2 requests are alive");
    sim_run_all(&m);
    sim_must_add(&m, 1, 48, 17, 1);
    sim_run_all(&m);
    assert_int_equal(sim_stats(&m).page_peak, 4);
    sim_close(&m);
}

static void test_out_of_memory(void **state)
{
    (void)state;
    sched_opts o = sim_opts();
    sched *s;
    uint64_t n = mem_count();
    assert_int_equal(sched_open(&s, &o), CORUN_OK);
    n = mem_count() - n;
    sched_close(s);
    for (uint64_t i = 1; i <= n; i++) {
        mem_fail_at(i);
        assert_int_equal(sched_open(&s, &o), CORUN_ENOMEM);
        assert_null(s);
    }
    mem_fail_at(0);
    sim_open(&m, &o, 1);
    static const int32_t tok[20];
    sched_request r = {5, tok, 20, 20, 3, false};
    int32_t seq;
    for (uint64_t i = 1; i <= 5; i++) {
        mem_fail_at(i);
        assert_int_equal(sched_add(m.s, &r, &seq), CORUN_ENOMEM);
        assert_int_equal(sched_check(m.s), CORUN_OK);
        assert_true(sched_idle(m.s));
    }
    mem_fail_at(0);
    sim_must_add(&m, 5, 20, 20, 3);
    sim_run_all(&m);
    sim_close(&m);
}

/* ---- sizes ---------------------------------------------------------------------------------- */

static void one_request(sched_opts o, int32_t n_token, int32_t max_new, int32_t n)
{
    sim_open(&m, &o, 3);
    sim_req *r = &m.req[sim_must_add(&m, 9, n_token, max_new, n)];
    sim_run_all(&m);
    if (o.planner == SCHED_PLAN_CORUN)
        assert_int_equal(r->n_chunk, (n_token + o.chunk - 1) / o.chunk);
    int32_t n_copy = n_token % SIM_PT && max_new > 1 ? n - 1 : 0;
    assert_int_equal(sim_stats(&m).n_copy, n_copy);
    assert_int_equal(m.n_after_end, 0); /* ends by max_new are known ahead */
    sim_close(&m);
}

static void test_edges(void **state)
{
    (void)state;
    static const int32_t len[] = {1, 15, 16, 17, 31, 32, 33, 47, 48, 49, 64, 65, 97};
    static const int32_t new[] = {0, 1, 2, 15, 16, 17, 33};
    static const int32_t sample[] = {1, 2, 5, 13};
    for (int v = 0; v < 4; v++) {
        sched_opts o = sim_opts();
        o.planner = v & 1 ? SCHED_PLAN_DYNAMIC : SCHED_PLAN_CORUN;
        o.lag = v >> 1;
        for (size_t i = 0; i < sizeof len / sizeof *len; i++)
            for (size_t j = 0; j < sizeof new / sizeof *new; j++)
                for (size_t k = 0; k < sizeof sample / sizeof *sample; k++)
                    one_request(o, len[i], new[j], sample[k]);
    }
}

/* Pages of k samples at a time, by the words of the header. */
static int32_t pages_of(int32_t n_token, int32_t max_new, int32_t n, int32_t k)
{
    int32_t n_full = n_token / SIM_PT, n_prompt = (n_token + SIM_PT - 1) / SIM_PT;
    if (max_new <= 1) return n_prompt;
    int32_t n_tail = (n_token + max_new - 1 + SIM_PT - 1) / SIM_PT - n_full;
    return n_full + k * n_tail + (k < n ? n_prompt - n_full : 0);
}

/* A pool of exactly the pages that k of n samples take: k run, never more, and all finish. */
static void test_exact_pool(void **state)
{
    (void)state;
    static const int32_t len[] = {1, 15, 16, 17, 40, 48};
    for (int v = 0; v < 4; v++)
        for (size_t i = 0; i < sizeof len / sizeof *len; i++)
            for (int32_t max_new = 1; max_new < 40; max_new += 6)
                for (int32_t n = 1; n <= 4; n++)
                    for (int32_t k = 1; k <= n; k++) {
                        sched_opts o = sim_opts();
                        o.planner = v & 1 ? SCHED_PLAN_DYNAMIC : SCHED_PLAN_CORUN;
                        o.lag = v >> 1;
                        o.n_swap = 0;
                        int32_t need = pages_of(len[i], max_new, n, k);
                        o.n_page = 1 + need;
                        sim_open(&m, &o, 4);
                        sim_must_add(&m, 1, len[i], max_new, n);
                        sim_run_all(&m);
                        assert_true(sim_stats(&m).page_peak <= need);
                        if (max_new > 1 && pages_of(len[i], max_new, n, k + 1) > need)
                            assert_true(m.max_run <= k);
                        if (k == n) assert_int_equal(sim_stats(&m).page_peak, need);
                        assert_int_equal(m.n_out, 0);
                        sim_close(&m);
                        if (k > 1 || need < 2) continue;
                        o.n_page = need;
                        sim_open(&m, &o, 4);
                        char text[40];
                        snprintf(text, sizeof text, "needs %d pages", need);
                        refused(1, len[i], max_new, n, CORUN_ECAPACITY, text);
                        sim_close(&m);
                    }
}

static void test_k_max(void **state)
{
    (void)state;
    sched_opts o = sim_opts();
    o.n_page = 9; /* 1 full + 2 x 3 + the partial one of those that wait */
    o.n_swap = 0;
    sim_open(&m, &o, 5);
    sim_must_add(&m, 1, 20, 30, 4);
    sim_run_all(&m);
    assert_int_equal(m.max_run, 2);
    assert_int_equal(sim_stats(&m).n_copy, 3);
    assert_int_equal(sim_stats(&m).page_peak, 8);
    sim_close(&m);
}

/* ---- admission ------------------------------------------------------------------------------ */

static void test_swap_bounds_admission(void **state)
{
    (void)state;
    for (int32_t n_swap = 0; n_swap <= 12; n_swap++) {
        sched_opts o = sim_opts();
        o.n_swap = n_swap;
        sim_open(&m, &o, 6);
        for (uint64_t i = 1; i <= 6; i++) sim_must_add(&m, i, 17, 48, 1); /* 4 pages at the end */
        sim_run_all(&m);
        assert_int_equal(m.max_admitted, 1 + (n_swap / 4 < 3 ? n_swap / 4 : 3)); /* 4 slots */
        sim_close(&m);
    }
}

/* A request that swap cannot hold is admitted as the oldest, when alone. */
static void test_larger_than_swap(void **state)
{
    (void)state;
    sched_opts o = sim_opts();
    o.n_swap = 3;
    sim_open(&m, &o, 6);
    sim_must_add(&m, 1, 10, 4, 1);
    sim_must_add(&m, 2, 100, 60, 1); /* 10 pages: waits for 1 */
    sim_must_add(&m, 3, 10, 30, 1);  /* fits beside it, but does not overtake */
    while (!m.req[0].finished) {
        assert_int_equal(m.req[1].pos + m.req[2].pos, 0);
        assert_true(sim_turn(&m));
    }
    sim_run_all(&m);
    assert_int_equal(m.max_admitted, 2);
    sim_close(&m);
}

static void test_order_is_kept(void **state)
{
    (void)state;
    for (int v = 0; v < 2; v++) {
        sched_opts o = sim_opts();
        o.planner = v ? SCHED_PLAN_DYNAMIC : SCHED_PLAN_CORUN;
        o.n_page = 11;
        o.n_swap = 40;
        sim_open(&m, &o, 6);
        sim_must_add(&m, 1, 60, 30, 1);
        sim_must_add(&m, 2, 120, 30, 1); /* 10 pages: all of the pool */
        for (uint64_t i = 3; i < 10; i++) sim_must_add(&m, i, 4, 10, 1);
        sim_run_all(&m); /* each first chunk checks that nobody was overtaken */
        sim_close(&m);
    }
}

/* ---- moving out and in ---------------------------------------------------------------------- */

/* Request 1 runs 10 samples, two at a time, in a pool that just holds it; request 2 moves out each
 * time the pair grows and comes back each time it ends. */
static void open_preempted(int v)
{
    sched_opts o = sim_opts();
    o.planner = v & 1 ? SCHED_PLAN_DYNAMIC : SCHED_PLAN_CORUN;
    o.lag = v >> 1;
    o.n_slot = 3;
    o.n_page = 14;
    o.n_swap = 13;
    sim_open(&m, &o, 7);
    sim_must_add(&m, 1, 16, 97, 10);
    sim_must_add(&m, 2, 16, 190, 1);
}

static void test_preempted_often(void **state)
{
    (void)state;
    for (int v = 0; v < 4; v++) {
        open_preempted(v);
        assert_int_equal(sim_stats(&m).n_swap_out, 0);
        sim_run_all(&m);
        assert_int_equal(m.max_run, 3);
        assert_int_equal(m.req[0].n_out, 0);
        assert_true(m.req[1].n_out >= 3);
        assert_int_equal(sim_stats(&m).n_swap_out, m.req[1].n_out);
        assert_int_equal(sim_stats(&m).n_swap_in, m.req[1].n_out);
        sim_close(&m);
    }
}

/* Samples of a request move together, shared pages once. */
static void test_shared_pages_move_once(void **state)
{
    (void)state;
    for (int lag = 0; lag < 2; lag++) {
        sched_opts o = sim_opts();
        o.lag = lag;
        o.n_slot = 8;
        o.n_page = 17;
        o.n_swap = 32;
        sim_open(&m, &o, 8);
        sim_must_add(&m, 1, 8, 120, 1);
        sim_must_add(&m, 2, 90, 30, 4); /* 5 full pages, 4 tails */
        int64_t most = 0;
        while (sim_turn(&m)) {
            int64_t n = 0;
            for (int32_t i = 0; i < m.last.n_move; i++) n += m.last.move[i].kind == SCHED_OUT;
            if (n > most) most = n;
        }
        sim_check_done(&m);
        assert_true(m.req[1].n_out > 0);
        assert_in_range(most, 9, 13);
        sim_close(&m);
    }
}

/* The youngest moves out first and comes back last. */
static void test_move_order(void **state)
{
    (void)state;
    for (int v = 0; v < 4; v++) {
        sched_opts o = sim_opts();
        o.planner = v & 1 ? SCHED_PLAN_DYNAMIC : SCHED_PLAN_CORUN;
        o.lag = v >> 1;
        o.n_page = 14;
        o.n_swap = 64;
        sim_open(&m, &o, 9);
        for (uint64_t i = 1; i <= 4; i++) sim_must_add(&m, i, 20, 120, 1);
        bool in[4] = {true, true, true, true};
        bool seen_two_out = false;
        while (sim_plan(&m) || m.n_flight) {
            int32_t n_out = sim_stats(&m).n_out, n_adm = n_out + sim_stats(&m).n_running;
            int32_t first = 4 - (n_adm + sim_stats(&m).n_waiting); /* finished */
            for (int32_t i = 0; i < m.last.step.n_row; i++) {
                int32_t seq = m.last.step.row[i].seq;
                if (seq < 0) continue;
                int32_t k = (int32_t)sim_req_of(&m, seq)->id - 1;
                assert_true(k - first < n_adm - n_out); /* only the oldest are in the pool */
                assert_true(in[k]);
            }
            seen_two_out = seen_two_out || n_out == 2;
            if (m.n_flight > (m.last.step.n_row ? o.lag : 0)) sim_note(&m);
        }
        sim_check_done(&m);
        assert_true(seen_two_out);
        assert_int_equal(m.req[0].n_out, 0);
        assert_true(m.req[3].n_out >= m.req[2].n_out && m.req[2].n_out >= m.req[1].n_out);
        sim_close(&m);
    }
}

/* A prompt that is half done moves out and goes on where it was. */
static void test_prompt_moves_out(void **state)
{
    (void)state;
    for (int v = 0; v < 4; v++) {
        sched_opts o = sim_opts();
        o.planner = v & 1 ? SCHED_PLAN_DYNAMIC : SCHED_PLAN_CORUN;
        o.lag = v >> 1;
        o.chunk = 3;
        o.n_slot = 3;
        o.n_page = 16;
        o.n_swap = 32;
        bool seen = false;
        for (int32_t start = 0; start < 60 && !seen; start++) {
            sim_open(&m, &o, 10);
            sim_must_add(&m, 1, 10, 90, 2);
            for (int32_t i = 0; i < start; i++) sim_turn(&m);
            sim_must_add(&m, 2, 100, 8, 1);
            while (sim_turn(&m)) {
                if (sim_stats(&m).n_out && m.req[1].pos > 0 && m.req[1].pos < 100) seen = true;
            }
            sim_check_done(&m);
            sim_close(&m);
        }
        assert_true(seen);
    }
}

/* ---- cancel --------------------------------------------------------------------------------- */

static void test_cancel(void **state)
{
    (void)state;
    /* at every moment of a stream that has all there is: queue, prompt, slots, waiting, outside */
    for (int v = 0; v < 4; v++)
        for (int32_t victim = 0; victim < 3; victim++)
            for (int32_t at = 0; at < 400; at += 1 + at / 40) {
                open_preempted(v);
                sim_must_add(&m, 3, 70, 5, 2);
                int32_t i = 0;
                while (i < at && sim_turn(&m)) i++;
                bool over = m.req[victim].finished;
                if (over)
                    assert_int_equal(sched_cancel(m.s, m.req[victim].id), CORUN_EINVAL);
                else
                    sim_cancel(&m, victim);
                assert_int_equal(sched_cancel(m.s, m.req[victim].id), CORUN_EINVAL);
                assert_int_equal(sched_cancel(m.s, 77), CORUN_EINVAL);
                sim_run_all(&m);
                sim_close(&m);
                if (over) break;
            }
}

/* After a cancel the pages stay until the step in flight is noted; the id is free at once. */
static void test_cancel_in_flight(void **state)
{
    (void)state;
    sched_opts o = sim_opts();
    sim_open(&m, &o, 11);
    sim_must_add(&m, 1, 40, 5, 2);
    assert_true(sim_plan(&m));
    sim_cancel(&m, 0);
    assert_int_equal(sim_stats(&m).page_free, o.n_page - 1 - 2);
    assert_false(sched_idle(m.s));
    sim_must_add(&m, 1, 8, 5, 1);
    sim_note(&m);
    assert_int_equal(sim_stats(&m).page_free, o.n_page - 1);
    sim_run_all(&m);
    sim_close(&m);
}

/* ---- lag ------------------------------------------------------------------------------------ */

static void test_late_row(void **state)
{
    (void)state;
    sched_opts o = sim_opts();
    o.lag = 1;
    o.n_slot = 1;
    sim_open(&m, &o, 12);
    sim_must_add(&m, 1, 16, 50, 1);
    sim_must_add(&m, 2, 16, 50, 1);
    m.req[0].end_at[0] = 2;
    assert_true(sim_plan(&m)); /* 1: prompt, draw 1 */
    assert_true(sim_plan(&m)); /* 2: draw 2 */
    sched_plan none;
    assert_int_equal(sched_next(m.s, &none), CORUN_EINVAL); /* two in flight */
    sim_note(&m);
    assert_true(sim_plan(&m)); /* 3: draw 3, before 2 is noted */
    sim_note(&m);              /* 2: it has ended */
    assert_int_equal(sim_stats(&m).page_free, o.n_page - 1 - 2);
    assert_int_equal(sim_stats(&m).n_seq_running, 0);
    assert_false(sim_plan(&m)); /* its slot is in flight */
    assert_int_equal(m.n_flight, 1);
    sim_note(&m);
    assert_int_equal(m.n_after_end, 1);
    assert_int_equal(sim_stats(&m).page_free, o.n_page - 1);
    assert_true(sim_plan(&m));
    assert_int_equal(m.req[1].pos, 16);
    sim_run_all(&m);
    sim_close(&m);
}

/* A request with nothing left to run gives its pages up at once instead of moving out. */
static void test_nothing_to_keep(void **state)
{
    (void)state;
    for (int v = 0; v < 2; v++) {
        sched_opts o = sim_opts();
        o.lag = 1;
        o.eager = true;
        o.n_page = 5;
        sim_open(&m, &o, 13);
        sim_must_add(&m, 1, 16, 40, 1);
        if (v) sim_must_add(&m, 2, 16, 17, 1); /* its last draw: one step before 1 needs a page */
        while (m.req[0].n_row[0] < 16) sim_turn(&m);
        if (!v) {
            sim_must_add(&m, 2, 32, 0, 1); /* scored while 1 holds 2 of 4 pages */
            sim_turn(&m);
        }
        assert_int_equal(sim_stats(&m).page_free, 0);
        assert_int_equal(m.n_flight, 1);
        assert_false(m.req[1].finished);
        assert_true(sim_plan(&m));
        assert_int_equal(m.last.n_move, 0);
        assert_int_equal(m.req[0].n_row[0], 17);
        sim_note(&m);
        assert_true(m.req[1].finished);
        sim_run_all(&m);
        sim_close(&m);
    }
}

static void test_note_errors(void **state)
{
    (void)state;
    sched_opts o = sim_opts();
    sim_open(&m, &o, 14);
    assert_int_equal(sched_note(m.s, 0, NULL, 0), CORUN_EINVAL);
    sim_must_add(&m, 1, 8, 5, 2);
    sim_must_add(&m, 2, 8, 5, 1);
    assert_true(sim_plan(&m));
    int32_t a = m.req[0].seq, b = m.req[1].seq;
    const sched_result bad[][2] = {{{a, 1, 0}, {a, 1, 0}},
                                   {{a, 1, 0}, {b, 1, 0}},
                                   {{a, 1, 0}, {a + 2, 1, 0}},
                                   {{-1, 1, 0}, {a, 1, 0}},
                                   {{a + 1, 1, 0}, {1 << 30, 1, 0}}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(sched_note(m.s, 1, bad[i], 2), CORUN_EINVAL);
    assert_int_equal(sched_note(m.s, 1, m.flight[0].res, 1), CORUN_EINVAL);
    assert_int_equal(sched_note(m.s, 2, m.flight[0].res, 2), CORUN_EINVAL);
    assert_int_equal(sched_check(m.s), CORUN_OK);
    sim_note(&m);
    sim_run_all(&m);
    sim_close(&m);
}

/* ---- plans ---------------------------------------------------------------------------------- */

static void test_dead_rows(void **state)
{
    (void)state;
    sched_opts o = sim_opts();
    sim_open(&m, &o, 15);
    sim_must_add(&m, 1, 8, 11, 1);
    sim_run_all(&m); /* each row is checked as it runs */
    assert_int_equal(m.n_live_rows, 10);
    assert_int_equal(m.n_dead, 30);
    sim_close(&m);
}

/* P: prompt, D: decode, M: mixed. */
static void kinds(char *out, int32_t n)
{
    int32_t i = 0;
    while (i < n && sim_turn(&m))
        if (m.last.step.n_row) out[i++] = "PDM"[m.last.step.kind];
    out[i] = 0;
}

static void test_chunks_alternate(void **state)
{
    (void)state;
    char k[40];
    sched_opts o = sim_opts();
    sim_open(&m, &o, 16);
    sim_must_add(&m, 1, 8, 40, 1);
    kinds(k, 3);
    assert_string_equal(k, "PDD");
    sim_must_add(&m, 2, 100, 40, 1);
    kinds(k, 9);
    assert_string_equal(k, "PDPDPDPDD");
    for (uint64_t i = 3; i < 6; i++) sim_must_add(&m, i, 8, 0, 1); /* scoring fills no slot */
    kinds(k, 7);
    assert_string_equal(k, "PDPDPDD");
    sim_must_add(&m, 6, 8, 40, 1);
    sim_must_add(&m, 7, 8, 40, 1);
    sim_must_add(&m, 8, 8, 40, 1); /* no slot for it */
    kinds(k, 5);
    assert_string_equal(k, "PPDDD");
    sim_run_all(&m);
    sim_close(&m);
    sim_open(&m, &o, 16); /* alone, nothing stands between its chunks */
    sim_must_add(&m, 1, 100, 3, 1);
    kinds(k, 9);
    assert_string_equal(k, "PPPPDD");
    sim_run_all(&m);
    sim_close(&m);
}

static void test_dynamic_mixes(void **state)
{
    (void)state;
    char k[40];
    sched_opts o = sim_opts();
    o.planner = SCHED_PLAN_DYNAMIC;
    o.chunk = 20;
    sim_open(&m, &o, 17);
    sim_must_add(&m, 1, 8, 40, 1);
    sim_must_add(&m, 2, 30, 40, 1);
    kinds(k, 4);
    assert_string_equal(k, "MMDD"); /* 8 + 12, then 1 + 18 */
    assert_int_equal(m.req[1].n_chunk, 2);
    sim_run_all(&m);
    sim_close(&m);
}

/* More first draws than a step has lanes: the rest of the prompts wait. */
static void test_lanes_are_bounded(void **state)
{
    (void)state;
    sched_opts o = sim_opts();
    o.planner = SCHED_PLAN_DYNAMIC;
    o.chunk = 200;
    o.n_slot = 8;
    o.n_page = 13;
    sim_open(&m, &o, 19);
    for (uint64_t i = 1; i <= 6; i++) /* one sample at a time, so slots are left for others */
        sim_must_add(&m, i, 1, 96, SCHED_MAX_SAMPLE);
    assert_true(sim_turn(&m));
    assert_int_equal(m.last.step.n_row, 4);
    assert_int_equal(m.last.step.n_lane, 4 * SCHED_MAX_SAMPLE);
    for (int32_t i = 0; i < 6; i++)
        for (int32_t k = 1; k < SCHED_MAX_SAMPLE; k++) m.req[i].end_at[k] = 2 + k % 3;
    sim_run_all(&m);
    sim_close(&m);
}

/* The same request alone and among others: under corun its steps are the same, under dynamic the
 * cuts of its prompt are seen to move. */
static void test_plan_is_its_own(void **state)
{
    (void)state;
    for (int v = 0; v < 4; v++) {
        sched_opts o = sim_opts();
        o.planner = v & 1 ? SCHED_PLAN_DYNAMIC : SCHED_PLAN_CORUN;
        o.lag = v >> 1;
        o.n_page = 24;
        uint64_t alone[6];
        sim_open(&m, &o, 18);
        sim_must_add(&m, 1000, 70, 40, 6);
        sim_run_all(&m);
        memcpy(alone, m.req[0].trace, sizeof alone);
        sim_close(&m);
        int32_t n_differ = 0, n_moved = 0;
        for (uint64_t seed = 1; seed <= 60; seed++) {
            sim_seed = seed;
            sim_open(&m, &o, seed);
            int32_t n = sim_below(&m, 8), at = -1;
            for (int32_t i = 0; i <= 10; i++) {
                if (i == n)
                    at = sim_must_add(&m, 1000, 70, 40, 6);
                else
                    sim_must_add(&m, (uint64_t)i, 1 + sim_below(&m, 90), sim_below(&m, 60),
                                 1 + sim_below(&m, 3));
                for (int32_t k = sim_below(&m, 30); k > 0; k--) sim_turn(&m);
            }
            sim_run_all(&m);
            n_differ += memcmp(alone, m.req[at].trace, sizeof alone) != 0;
            n_moved += m.req[at].n_out > 0;
            sim_close(&m);
        }
        assert_true(n_moved > 0);
        if (o.planner == SCHED_PLAN_CORUN)
            assert_int_equal(n_differ, 0);
        else
            assert_true(n_differ > 10);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pages),
        cmocka_unit_test(test_bad_opts),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_out_of_memory),
        cmocka_unit_test(test_edges),
        cmocka_unit_test(test_exact_pool),
        cmocka_unit_test(test_k_max),
        cmocka_unit_test(test_swap_bounds_admission),
        cmocka_unit_test(test_larger_than_swap),
        cmocka_unit_test(test_order_is_kept),
        cmocka_unit_test(test_preempted_often),
        cmocka_unit_test(test_shared_pages_move_once),
        cmocka_unit_test(test_move_order),
        cmocka_unit_test(test_prompt_moves_out),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_cancel_in_flight),
        cmocka_unit_test(test_late_row),
        cmocka_unit_test(test_nothing_to_keep),
        cmocka_unit_test(test_note_errors),
        cmocka_unit_test(test_dead_rows),
        cmocka_unit_test(test_chunks_alternate),
        cmocka_unit_test(test_dynamic_mixes),
        cmocka_unit_test(test_lanes_are_bounded),
        cmocka_unit_test(test_plan_is_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
