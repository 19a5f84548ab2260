/* test_sched_reuse.c - the prefix cache, pieces and recompute, each rule by a small directed
 * stream. */
#include "sched_sim.h"

static sim m; /* large: not on the stack */

static sched_opts free_opts(void)
{
    sched_opts o = sim_opts();
    o.planner = SCHED_PLAN_DYNAMIC;
    o.reuse = SCHED_REUSE_PAGES;
    o.recompute = true;
    o.n_swap = 0;
    o.chunk = 64;
    return o;
}

static sched_opts invariant_opts(void)
{
    sched_opts o = sim_opts();
    o.planner = SCHED_PLAN_DYNAMIC;
    o.cut = 32;
    o.chunk = 64;
    o.reuse = SCHED_REUSE_PIECES;
    return o;
}

/* A prompt of a family; what it did not compute, once it has run. */
static int32_t spared(uint64_t id, int32_t n_token, bool want_all)
{
    corun_status st;
    int32_t i = sim_add(&m, id, n_token, 3, 1, want_all, &st);
    assert_true(i >= 0);
    sim_run_all(&m);
    return m.req[i].first_pos;
}

static void test_prefix_hits(void **state)
{
    (void)state;
    for (int lag = 0; lag < 2; lag++) {
        sched_opts o = free_opts();
        o.lag = lag;
        sim_open(&m, &o, 20);
        m.family = 1;
        m.n_shared = 200;
        assert_int_equal(spared(1, 70, false), 0);
        assert_int_equal(sim_stats(&m).n_hit, 0);
        assert_int_equal(spared(2, 70, false), 64);
        assert_int_equal(spared(3, 64, false), 48); /* the last token's logits are needed */
        assert_int_equal(spared(4, 65, false), 64);
        assert_int_equal(spared(5, 16, false), 0);
        assert_int_equal(spared(6, 17, false), 16);
        assert_int_equal(spared(7, 70, true), 0); /* all logits are */
        assert_int_equal(spared(8, 200, false), 64);
        assert_int_equal(spared(9, 200, false), 192);
        assert_int_equal(sim_stats(&m).n_hit, 6);
        assert_int_equal(sim_stats(&m).n_hit_token, 64 + 48 + 64 + 16 + 64 + 192);
        m.n_shared = 40; /* parts ways in the third page */
        assert_int_equal(spared(10, 200, false), 32);
        m.family = 2;
        assert_int_equal(spared(11, 200, false), 0);
        sim_close(&m);
    }
}

/* Whole pieces only, and those that the prompt itself would cut. */
static void test_piece_hits(void **state)
{
    (void)state;
    sched_opts o = invariant_opts();
    sim_open(&m, &o, 20);
    m.family = 1;
    m.n_shared = 200;
    assert_int_equal(spared(1, 70, false), 0); /* pieces 32, 32, 6 */
    assert_int_equal(spared(2, 200, false), 64);
    assert_int_equal(spared(3, 64, false), 32);
    assert_int_equal(spared(4, 65, false), 64);
    assert_int_equal(spared(5, 60, false), 32);
    assert_int_equal(spared(6, 32, false), 0);
    assert_int_equal(spared(7, 200, false), 192);
    assert_int_equal(spared(8, 200, true), 0);
    sim_close(&m);
}

/* What runs at the same time shares nothing before a draw has shown that it is good. */
static void test_no_hit_before_note(void **state)
{
    (void)state;
    sched_opts o = free_opts();
    o.lag = 1;
    o.chunk = 256;
    sim_open(&m, &o, 21);
    m.family = 1;
    m.n_shared = 100;
    sim_must_add(&m, 1, 100, 5, 1);
    sim_must_add(&m, 2, 100, 5, 1);
    assert_true(sim_plan(&m));
    sim_must_add(&m, 3, 100, 5, 1);
    assert_true(sim_plan(&m)); /* step 1 is in flight */
    assert_int_equal(m.req[2].n_chunk, 1);
    sim_note(&m);
    sim_must_add(&m, 4, 100, 5, 1);
    assert_true(sim_plan(&m));
    for (int i = 0; i < 3; i++) assert_int_equal(m.req[i].first_pos, 0);
    assert_int_equal(m.req[3].first_pos, 96);
    assert_int_equal(sim_stats(&m).n_hit, 1);
    sim_note(&m);
    sim_run_all(&m);
    sim_close(&m);
}

/* After a failed draw nothing that it read is found again; nor what was never drawn from. */
static void test_failed_is_not_reused(void **state)
{
    (void)state;
    for (int v = 0; v < 2; v++) {
        sched_opts o = v ? free_opts() : invariant_opts();
        sim_open(&m, &o, 22);
        m.family = 1;
        m.n_shared = 200;
        sim_must_add(&m, 1, 70, 30, 1);
        m.req[0].end_at[0] = 1;
        m.fails = true;
        m.fail_all = true;
        sim_run_all(&m);
        assert_int_equal(spared(2, 100, false), 0); /* fails at its third draw */
        m.fail_all = m.fails = false;
        assert_int_equal(spared(3, 100, false), 0);
        m.req[sim_must_add(&m, 4, 100, 30, 1)].end_at[0] = 4;
        m.fails = m.fail_all = true;
        sim_run_all(&m);
        assert_int_equal(m.req[3].first_pos, 96);
        m.fail_all = m.fails = false;
        assert_int_equal(spared(5, 100, false), 0);
        sim_must_add(&m, 6, 200, 0, 1); /* only scored: no draw */
        sim_run_all(&m);
        assert_int_equal(spared(7, 200, false), 96);
        sim_close(&m);
    }
}

/* One request alone that draws 100, 101, ...; the last of n_draw draws fails. Returns where its
 * first row began. */
static int32_t draw_alone(sched *s, const sched_request *r, int32_t n_draw, bool fails)
{
    int32_t seq, first = -1, n = 0;
    assert_int_equal(sched_add(s, r, &seq), CORUN_OK);
    for (;;) {
        sched_plan p;
        assert_int_equal(sched_next(s, &p), CORUN_OK);
        if (!p.step.n_row) return first;
        if (first < 0) first = p.step.row[0].pos;
        n += p.step.n_lane;
        sched_result d = {.seq = seq,
                          .token = 99 + n,
                          .ended = n == n_draw && p.step.n_lane,
                          .failed = n == n_draw && fails};
        assert_int_equal(sched_note(s, p.step.id, &d, p.step.n_lane), CORUN_OK);
    }
}

/* A prompt shorter than a page: what a sample wrote itself is found from the root. */
static void test_failed_samples_are_not_reused(void **state)
{
    (void)state;
    int32_t tokens[40];
    for (int32_t i = 0; i < 40; i++) tokens[i] = i < 5 ? 7 : 100 + i - 5;
    for (int fails = 0; fails < 2; fails++) {
        sched_opts o = free_opts();
        sched *s;
        assert_int_equal(sched_open(&s, &o), CORUN_OK);
        sched_request r = {.id = 1, .tokens = tokens, .n_token = 5, .max_new = 60, .n_sample = 1};
        assert_int_equal(draw_alone(s, &r, 35, fails), 0);
        r = (sched_request){.id = 2, .tokens = tokens, .n_token = 40, .max_new = 2, .n_sample = 1};
        assert_int_equal(draw_alone(s, &r, 1, false), fails ? 0 : 32);
        assert_int_equal(sched_check(s), CORUN_OK);
        sched_close(s);
    }
}

/* A pool full of entries gives them out oldest first, the end of a sequence before its begin. */
static void test_oldest_entry_goes(void **state)
{
    (void)state;
    sched_opts o = free_opts();
    o.n_page = 17;
    sim_open(&m, &o, 23);
    m.n_shared = 200;
    for (uint64_t f = 1; f <= 4; f++) { /* 4 pages each, and a little */
        m.family = f;
        assert_int_equal(spared(f, 65, false), 0);
    }
    assert_int_equal(sim_stats(&m).page_free, 16);
    m.family = 4;
    assert_int_equal(spared(5, 65, false), 64);
    m.family = 1; /* gave two pages */
    int32_t left = spared(6, 65, false);
    assert_true(left > 0 && left < 64);
    sim_close(&m);
}

/* A request that has to make room computes its pages again, and takes those that are left. */
static void test_recompute(void **state)
{
    (void)state;
    for (int v = 0; v < 4; v++) {
        sched_opts o = free_opts();
        o.lag = v & 1;
        if (v & 2) o.reuse = SCHED_REUSE_NONE;
        o.n_slot = 3;
        o.n_page = 14;
        o.chunk = 20;
        sim_open(&m, &o, 7);
        m.family = 1;
        m.n_shared = 16;
        sim_must_add(&m, 1, 16, 97, 10);
        sim_must_add(&m, 2, 16, 190, 1);
        sim_run_all(&m);
        assert_int_equal(m.n_out + m.n_in, 0);
        assert_int_equal(m.req[0].n_again, 0); /* the oldest makes no room */
        assert_true(sim_stats(&m).n_recompute >= 3);
        assert_true(m.req[1].n_again >= 3);
        if (v & 2)
            assert_int_equal(sim_stats(&m).n_hit, 0);
        else
            assert_true(sim_stats(&m).n_hit > 0);
        sim_close(&m);
    }
}

/* n samples, some with tokens of their own and some that wait on the prompt's shared last page. */
static void test_recompute_samples(void **state)
{
    (void)state;
    static const int32_t len[] = {15, 16, 17, 31, 33, 40};
    for (int v = 0; v < 4; v++)
        for (size_t i = 0; i < sizeof len / sizeof *len; i++)
            for (int32_t n = 2; n <= 6; n++) {
                sched_opts o = free_opts();
                o.lag = v & 1;
                if (v & 2) o.reuse = SCHED_REUSE_NONE;
                o.n_page = 13;
                o.n_slot = 4;
                sim_open(&m, &o, 7);
                sim_must_add(&m, 1, 20, 150, 1);
                sim_must_add(&m, 2, len[i], 40, n);
                sim_must_add(&m, 3, len[i], 30, 2);
                sim_run_all(&m);
                assert_true(sim_stats(&m).n_recompute > 0);
                sim_close(&m);
            }
}

/* A scored prompt that is half done gives no logits twice (the device counts them). */
static void test_recompute_scored(void **state)
{
    (void)state;
    for (int v = 0; v < 4; v++) {
        bool seen = false;
        sched_opts o = free_opts();
        o.lag = v & 1;
        o.chunk = 5;
        o.n_page = 16;
        for (int32_t start = 0; start < 60; start++) {
            corun_status st;
            sim_open(&m, &o, 10);
            sim_must_add(&m, 1, 10, 90, 2);
            for (int32_t i = 0; i < start; i++) sim_turn(&m);
            sim_add(&m, 2, 100, v & 2 ? 0 : 8, 1, true, &st);
            sim_run_all(&m);
            seen = seen || m.req[1].n_again > 0;
            sim_close(&m);
        }
        assert_true(seen);
    }
}

/* Under recompute, too, any moment is good for a cancel. */
static void test_recompute_cancel(void **state)
{
    (void)state;
    for (int lag = 0; lag < 2; lag++)
        for (int32_t victim = 0; victim < 3; victim++)
            for (int32_t at = 0; at < 300; at += 1 + at / 40) {
                sched_opts o = free_opts();
                o.lag = lag;
                o.n_slot = 3;
                o.n_page = 14;
                o.chunk = 7;
                sim_open(&m, &o, 7);
                sim_must_add(&m, 1, 16, 97, 10);
                sim_must_add(&m, 2, 20, 150, 2);
                sim_must_add(&m, 3, 70, 5, 2);
                int32_t i = 0;
                while (i < at && sim_turn(&m)) i++;
                if (!m.req[victim].finished) sim_cancel(&m, victim);
                sim_run_all(&m);
                sim_close(&m);
            }
}

/* With cut a prompt's rows are its own, whoever else is there. */
static void test_pieces_are_its_own(void **state)
{
    (void)state;
    for (int lag = 0; lag < 2; lag++) {
        sched_opts o = invariant_opts();
        o.lag = lag;
        o.n_page = 24;
        uint64_t alone[6];
        sim_open(&m, &o, 18);
        sim_must_add(&m, 1000, 70, 40, 6);
        sim_run_all(&m);
        memcpy(alone, m.req[0].trace, sizeof alone);
        sim_close(&m);
        int32_t n_moved = 0;
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
            assert_memory_equal(alone, m.req[at].trace, sizeof alone);
            n_moved += m.req[at].n_out > 0;
            sim_close(&m);
        }
        assert_true(n_moved > 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prefix_hits),
        cmocka_unit_test(test_piece_hits),
        cmocka_unit_test(test_no_hit_before_note),
        cmocka_unit_test(test_failed_is_not_reused),
        cmocka_unit_test(test_failed_samples_are_not_reused),
        cmocka_unit_test(test_oldest_entry_goes),
        cmocka_unit_test(test_recompute),
        cmocka_unit_test(test_recompute_samples),
        cmocka_unit_test(test_recompute_scored),
        cmocka_unit_test(test_recompute_cancel),
        cmocka_unit_test(test_pieces_are_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
