/* test_sched_random.c - random request streams against the scheduler's invariants. A failing
 * stream prints its seed: run it alone with the seed as argument. */
#include "sched_sim.h"

typedef enum mode { CORUN, DYNAMIC, INVARIANT, FREE, N_MODE } mode;

typedef struct totals {
    int64_t steps, outs, ins, copies, dead, after_end, refused, cancelled, most_out;
    int64_t hits, hit_tokens, recomputes, again, cuts;
} totals;

static void random_request(sim *m, totals *t, uint64_t id)
{
    static const int32_t edge[] = {SIM_PT - 1, SIM_PT, SIM_PT + 1, 2 * SIM_PT, 1};
    int32_t c = m->o.chunk, n_token;
    switch (sim_below(m, 4)) {
    case 0: n_token = edge[sim_below(m, 5)]; break;
    case 1: n_token = c + sim_below(m, 3) - 1; break;
    default: n_token = 1 + sim_below(m, 90);
    }
    if (n_token < 1) n_token = 1;
    int32_t max_new = sim_below(m, 8) ? 1 + sim_below(m, 60) : sim_below(m, 3);
    int32_t n_sample = sim_below(m, 3) ? 1 : 1 + sim_below(m, 9);
    m->family = m->o.reuse ? (uint64_t)sim_below(m, 4) : 0;
    m->n_shared = sim_below(m, 3) ? 100 : sim_below(m, 100);
    corun_status st;
    int32_t i = sim_add(m, id, n_token, max_new, n_sample, sim_below(m, 5) == 0, &st);
    if (i < 0) {
        assert_int_equal(st, CORUN_ECAPACITY);
        t->refused += !strstr(corun_last_error(), "alive");
        return;
    }
    for (int32_t k = 0; k < n_sample; k++)
        if (max_new && sim_below(m, 3) == 0) m->req[i].end_at[k] = 1 + sim_below(m, max_new);
}

static void random_cancel(sim *m, totals *t)
{
    int32_t i = sim_below(m, m->n_req);
    if (m->req[i].cancelled || m->req[i].finished) {
        assert_int_equal(sched_cancel(m->s, m->req[i].id), CORUN_EINVAL);
        return;
    }
    sim_cancel(m, i);
    t->cancelled++;
}

static void random_opts(sim *m, sched_opts *o, mode k, int32_t lag)
{
    static const int32_t chunk[] = {1, 7, 16, 24, 32, 48, 200};
    *o = (sched_opts){.planner = k == CORUN ? SCHED_PLAN_CORUN : SCHED_PLAN_DYNAMIC,
                      .n_slot = 1 + sim_below(m, 6),
                      .n_ctx = 60 + sim_below(m, 120),
                      .page_tokens = SIM_PT,
                      .n_page = 3 + sim_below(m, 30),
                      .chunk = chunk[sim_below(m, 7)],
                      .max_request = 1 + sim_below(m, 12),
                      .lag = lag,
                      .eager = sim_below(m, 2)};
    if (k == INVARIANT) {
        o->cut = SIM_PT * (1 + sim_below(m, 3));
        o->chunk = o->cut * (1 + sim_below(m, 3));
        o->reuse = sim_below(m, 8) ? SCHED_REUSE_PIECES : SCHED_REUSE_NONE;
    } else if (k == FREE) {
        o->reuse = sim_below(m, 8) ? SCHED_REUSE_PAGES : SCHED_REUSE_NONE;
        o->recompute = sim_below(m, 8) != 0;
    }
    o->key_bits = sim_below(m, 2) ? 0 : 1 + sim_below(m, 3); /* digests that collide */
    int32_t swap = sim_below(m, 8); /* often more than the pool: many admitted, many moves */
    o->n_swap = swap == 0 ? 0 : swap < 3 ? sim_below(m, o->n_page) : (swap - 2) * (o->n_page - 1);
}

static void stream(uint64_t seed, totals *t)
{
    static sim m;
    sched_opts o;
    m.rng = seed << 20;
    random_opts(&m, &o, (mode)(seed % N_MODE), seed / N_MODE & 1);
    sim_open(&m, &o, seed ^ 0x5eed0000);
    int32_t n_add = 10 + sim_below(&m, 30), busy = 1 + sim_below(&m, 20);
    bool cancels = sim_below(&m, 2);
    m.fails = sim_below(&m, 2);
    for (int32_t added = 0; added < n_add || !sched_idle(m.s);) {
        if (added < n_add && (sim_below(&m, busy) == 0 || sched_idle(m.s)))
            random_request(&m, t, 1 + (uint64_t)added++);
        if (cancels && m.n_req && sim_below(&m, 40) == 0) random_cancel(&m, t);
        if (m.n_flight && sim_below(&m, 4) == 0) sim_note(&m);
        sim_turn(&m);
        if (cancels && m.n_req && sim_below(&m, 60) == 0) random_cancel(&m, t);
        assert_true(m.n_step < 200000);
    }
    while (m.n_flight) sim_note(&m);
    sim_check_done(&m);
    t->steps += m.n_step;
    t->outs += m.n_out;
    t->ins += m.n_in;
    t->copies += m.n_copy;
    t->dead += m.n_dead;
    t->after_end += m.n_after_end;
    sched_stats st;
    sched_stats_get(m.s, &st);
    t->hits += (int64_t)st.n_hit;
    t->hit_tokens += (int64_t)st.n_hit_token;
    t->recomputes += (int64_t)st.n_recompute;
    t->cuts += (int64_t)st.n_cut;
    for (int32_t i = 0; i < m.n_req; i++) t->again += m.req[i].n_again;
    for (int32_t i = 0; i < m.n_req; i++)
        if (m.req[i].n_out > t->most_out) t->most_out = m.req[i].n_out;
    sim_close(&m);
}

static uint64_t only; /* of the command line */

static totals streams(mode k, uint64_t lag, uint64_t n)
{
    totals t = {0};
    for (uint64_t i = 1; i <= n; i++) {
        uint64_t seed = (i * 2 + lag) * N_MODE + k;
        if (only && seed != only) continue;
        sim_seed = seed; /* SIM_FAIL prints it */
        stream(seed, &t);
    }
    print_message(
        "%lld steps, %lld pages out, %lld in, %lld copies, %lld dead rows, %lld late rows, "
        "%lld refused, %lld cancelled, one request out %lld times; %lld hits of %lld tokens, "
        "%lld recomputes in %lld rows, %lld cuts\n",
        (long long)t.steps, (long long)t.outs, (long long)t.ins, (long long)t.copies,
        (long long)t.dead, (long long)t.after_end, (long long)t.refused, (long long)t.cancelled,
        (long long)t.most_out, (long long)t.hits, (long long)t.hit_tokens, (long long)t.recomputes,
        (long long)t.again, (long long)t.cuts);
    return t;
}

static void test_corun(void **state)
{
    (void)state;
    for (uint64_t lag = 0; lag < 2; lag++) {
        totals t = streams(CORUN, lag, 1000);
        assert_true(only || (t.outs > 0 && t.dead > 0 && !t.hits && !t.recomputes));
    }
}

static void test_dynamic(void **state)
{
    (void)state;
    for (uint64_t lag = 0; lag < 2; lag++) {
        totals t = streams(DYNAMIC, lag, 1000);
        assert_true(only || (t.outs > 0 && t.cuts > 0 && !t.hits && !t.recomputes));
    }
}

static void test_invariant(void **state)
{
    (void)state;
    for (uint64_t lag = 0; lag < 2; lag++) {
        totals t = streams(INVARIANT, lag, 1000);
        assert_true(only || (t.outs > 0 && t.cuts > 0 && t.hits > 0 && !t.recomputes));
    }
}

static void test_any_schedule(void **state)
{
    (void)state;
    for (uint64_t lag = 0; lag < 2; lag++) {
        totals t = streams(FREE, lag, 1500);
        assert_true(only || (t.hits > 0 && t.recomputes > 0 && t.again > 0 && t.cuts > 0));
    }
}

int main(int argc, char **argv)
{
    if (argc > 1) only = strtoull(argv[1], NULL, 10);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_corun),
        cmocka_unit_test(test_dynamic),
        cmocka_unit_test(test_invariant),
        cmocka_unit_test(test_any_schedule),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
