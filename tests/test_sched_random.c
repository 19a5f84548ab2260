/* test_sched_random.c - random request streams against the scheduler's invariants. A failing
 * stream prints its seed: run it alone with the seed as argument. */
#include "sched_sim.h"

typedef struct totals {
    int64_t steps, outs, ins, copies, dead, after_end, refused, cancelled, waited, most_out;
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

static void random_opts(sim *m, sched_opts *o, sched_planner planner, int32_t lag)
{
    static const int32_t chunk[] = {1, 7, 16, 24, 32, 48, 200};
    *o = (sched_opts){.planner = planner,
                      .n_slot = 1 + sim_below(m, 6),
                      .n_ctx = 60 + sim_below(m, 120),
                      .page_tokens = SIM_PT,
                      .n_page = 3 + sim_below(m, 30),
                      .chunk = chunk[sim_below(m, 7)],
                      .max_request = 1 + sim_below(m, 12),
                      .lag = lag,
                      .eager = sim_below(m, 2)};
    int32_t swap = sim_below(m, 8); /* often more than the pool: many admitted, many moves */
    o->n_swap = swap == 0 ? 0 : swap < 3 ? sim_below(m, o->n_page) : (swap - 2) * (o->n_page - 1);
}

static void stream(uint64_t seed, totals *t)
{
    static sim m;
    sched_opts o;
    m.rng = seed << 20;
    random_opts(&m, &o, seed & 1 ? SCHED_PLAN_DYNAMIC : SCHED_PLAN_CORUN, seed >> 1 & 1);
    sim_open(&m, &o, seed ^ 0x5eed0000);
    int32_t n_add = 10 + sim_below(&m, 30), busy = 1 + sim_below(&m, 20);
    bool cancels = sim_below(&m, 2);
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
    for (int32_t i = 0; i < m.n_req; i++)
        if (m.req[i].n_out > t->most_out) t->most_out = m.req[i].n_out;
    sim_close(&m);
}

static uint64_t only; /* of the command line */

static void streams(uint64_t first, uint64_t by, uint64_t n)
{
    totals t = {0};
    for (uint64_t i = 0; i < n; i++) {
        uint64_t seed = first + i * by;
        if (only && seed != only) continue;
        sim_seed = seed; /* SIM_FAIL prints it */
        stream(seed, &t);
    }
    print_message(
        "%lld steps, %lld pages out, %lld in, %lld copies, %lld dead rows, %lld late rows, "
        "%lld refused, %lld cancelled, one request out %lld times\n",
        (long long)t.steps, (long long)t.outs, (long long)t.ins, (long long)t.copies,
        (long long)t.dead, (long long)t.after_end, (long long)t.refused, (long long)t.cancelled,
        (long long)t.most_out);
}

static void test_corun(void **state)
{
    (void)state;
    streams(1 << 2, 4, 1000);
}

static void test_dynamic(void **state)
{
    (void)state;
    streams((1 << 2) + 1, 4, 1000);
}

static void test_corun_lag(void **state)
{
    (void)state;
    streams((1 << 2) + 2, 4, 1000);
}

static void test_dynamic_lag(void **state)
{
    (void)state;
    streams((1 << 2) + 3, 4, 1000);
}

int main(int argc, char **argv)
{
    if (argc > 1) only = strtoull(argv[1], NULL, 10);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_corun),
        cmocka_unit_test(test_dynamic),
        cmocka_unit_test(test_corun_lag),
        cmocka_unit_test(test_dynamic_lag),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
