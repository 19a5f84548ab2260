/* The engine thread of the server over the fake model: every task ends once and as alone, order,
 * cancels, a full queue, the stop, engine failures; no page stays behind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "app/openai.h"
#include "app/service.h"

typedef struct one {
    task t;
    buf body;        /* of its answer */
    int http, place; /* how it ended, and as which */
    atomic_int ended;
    atomic_int events;
    sem_t *hold; /* its first event waits here */
    sem_t seen;  /* posted before that */
    bool cancel_self;
    int fail_at; /* this event is not taken; 0: all are */
} one;

typedef struct bench {
    cmd_session s;
    service *v;
    atomic_int n_ended;
    sem_t ended; /* posted for each */
} bench;

static bench *now_running; /* of the test: callbacks have only their task */

static corun_status on_event(task *t, size_t prompt, const corun_event *e)
{
    one *o = t->ctx;
    (void)prompt;
    (void)e;
    if (atomic_fetch_add(&o->events, 1) == 0) {
        sem_post(&o->seen);
        if (o->hold) sem_wait(o->hold);
    }
    if (o->cancel_self) service_cancel(now_running->v, t);
    if (o->fail_at && o->events == o->fail_at) FAIL(CORUN_ENOMEM, "the event is not taken");
    return CORUN_OK;
}

static void on_done(task *t)
{
    one *o = t->ctx;
    bench *b = now_running;
    o->http = t->j->http;
    buf_init(&o->body, JOB_MAX_ROW);
    openai_write_body(t->j, &b->s.facts, 0, &o->body);
    o->place = atomic_fetch_add(&b->n_ended, 1);
    atomic_fetch_add(&o->ended, 1);
    sem_post(&b->ended);
}

static void open_bench(bench *b, size_t queue, size_t window, int slots, const char *kv)
{
    cmd_engine_args a;
    cmd_engine_args_init(&a);
    a.model = "fake:phase";
    a.threads = 1;
    a.slots = slots;
    a.page = 16;
    if (kv) assert_int_equal(args_size(kv, &a.kv), CORUN_OK);
    memset(b, 0, sizeof *b);
    sem_init(&b->ended, 0, 0);
    if (cmd_open(&b->s, &a, true) != CORUN_OK) fail_msg("%s", err_text());
    const service_opts o = {.queue = queue, .window = window, .slots = (size_t)slots, .threads = 2};
    if (service_open(&b->v, &b->s, &o) != CORUN_OK) fail_msg("%s", err_text());
    now_running = b;
}

static void close_bench(bench *b)
{
    service_close(b->v);
    cmd_close(&b->s);
    sem_destroy(&b->ended);
}

static void make(one *o, const bench *b, const char *body)
{
    memset(o, 0, sizeof *o);
    sem_init(&o->seen, 0, 0);
    job *j;
    assert_int_equal(openai_http_open(&j, JOB_COMPLETION, body, strlen(body)), CORUN_OK);
    assert_int_equal(openai_prepare(j, &b->s.facts), CORUN_OK);
    if (j->http != 200) fail_msg("%s: %s", body, j->message);
    o->t = (task){.j = j, .ctx = o, .event = on_event, .done = on_done};
}

static void put(one *o, bench *b)
{
    if (service_submit(b->v, &o->t) != CORUN_OK) fail_msg("%s", err_text());
}

static void wait_ended(bench *b, size_t n)
{
    for (size_t i = 0; i < n; i++) sem_wait(&b->ended);
}

static void clear(one *o)
{
    job_free(o->t.j);
    buf_free(&o->body);
    sem_destroy(&o->seen);
}

static void no_page_leaked(bench *b)
{
    service_stats s;
    service_read_stats(b->v, &s);
    assert_int_equal(s.engine.pages_free, s.engine.pages);
    assert_int_equal(s.engine.swap_pages_free, s.engine.swap_pages);
    assert_int_equal(s.running + s.waiting + s.waiting_background, 0);
}

/* ---- answers --------------------------------------------------------------------------------- */

enum { MANY = 120 };

static void make_many(one *o, const bench *b)
{
    for (int i = 0; i < MANY; i++) {
        char body[512], prompt[200];
        if (i % 9 == 0)
            snprintf(prompt, sizeof prompt, "[\"a%d\",\"bb\",\"ccc %d\"]", i, i);
        else
            snprintf(prompt, sizeof prompt, "\"question %d of many, %s\"", i,
                     i % 2 ? "which is short" : "which has a longer text than the others have");
        snprintf(body, sizeof body,
                 "{\"model\":\"m\",\"prompt\":%s,\"max_tokens\":%d,\"n\":%d,\"logprobs\":%d,"
                 "\"echo\":%s}",
                 prompt, i % 11 == 0 ? 0 : 1 + i % 40, i % 7 == 0 ? 3 : 1, i % 3,
                 i % 5 ? "false" : "true");
        make(&o[i], b, body);
        o[i].t.background = i % 4 == 0;
    }
}

typedef struct feeder {
    bench *b;
    one *o;
    int from;
} feeder;

static void *feed(void *arg)
{
    feeder *f = arg;
    for (int i = f->from; i < MANY; i += 4) put(&f->o[i], f->b);
    return NULL;
}

static void test_answers(void **state)
{
    (void)state;
    static one alone[MANY], many[MANY];
    bench b;
    open_bench(&b, MANY, 1, 1, NULL);
    make_many(alone, &b);
    for (int i = 0; i < MANY; i++) {
        put(&alone[i], &b);
        wait_ended(&b, 1);
    }
    no_page_leaked(&b);
    assert_true(service_stop(b.v, 5));
    close_bench(&b);

    open_bench(&b, MANY, 64, 8, "64K");
    make_many(many, &b);
    pthread_t t[4];
    feeder f[4];
    for (int i = 0; i < 4; i++) {
        f[i] = (feeder){&b, many, i};
        assert_int_equal(pthread_create(&t[i], NULL, feed, &f[i]), 0);
    }
    for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
    wait_ended(&b, MANY);
    no_page_leaked(&b);
    service_stats s;
    service_read_stats(b.v, &s);
    assert_int_equal(s.ok, MANY);
    assert_int_equal(s.latency.n, MANY);
    assert_true(s.ttft.n > 0 && s.ttft.n < MANY); /* some ask for no token */
    assert_true(service_stop(b.v, 5));
    for (int i = 0; i < MANY; i++) {
        assert_int_equal(many[i].ended, 1);
        assert_int_equal(many[i].http, 200);
        assert_int_equal(many[i].body.len, alone[i].body.len);
        assert_memory_equal(many[i].body.data, alone[i].body.data, alone[i].body.len);
        clear(&many[i]);
        clear(&alone[i]);
    }
    close_bench(&b);
}

/* ---- order ----------------------------------------------------------------------------------- */

#define ASK(prompt, max) "{\"model\":\"m\",\"prompt\":" prompt ",\"max_tokens\":" #max "}"

static void test_order(void **state)
{
    (void)state;
    bench b;
    one first, back[3], turns, fore[2];
    sem_t hold;
    sem_init(&hold, 0, 0);
    open_bench(&b, 10, 1, 1, NULL);
    make(&first, &b, ASK("\"first\"", 4));
    first.hold = &hold;
    put(&first, &b);
    sem_wait(&first.seen); /* the service stands still now */
    for (int i = 0; i < 3; i++) {
        make(&back[i], &b, ASK("\"background\"", 4));
        back[i].t.background = true;
        put(&back[i], &b);
    }
    make(&turns, &b, ASK("[\"a\",\"b\",\"c\",\"d\"]", 3));
    put(&turns, &b);
    for (int i = 0; i < 2; i++) {
        make(&fore[i], &b, ASK("\"foreground\"", 3));
        put(&fore[i], &b);
    }
    service_stats s;
    service_row r[4];
    service_read_stats(b.v, &s);
    assert_int_equal(s.waiting, 3);
    assert_int_equal(s.waiting_background, 3);
    assert_int_equal(s.running, 1);
    assert_int_equal(service_running(b.v, r, 4), 1);
    assert_int_equal(r[0].prompt_tokens, first.t.j->prompt[0].n_token);
    assert_int_equal(r[0].new_tokens, 1);
    sem_post(&hold);
    wait_ended(&b, 7);
    assert_int_equal(first.place, 0);
    assert_int_equal(fore[0].place, 1); /* the one of four prompts has had one turn */
    assert_int_equal(fore[1].place, 2);
    assert_int_equal(turns.place, 3);
    for (int i = 0; i < 3; i++) assert_int_equal(back[i].place, 4 + i);
    no_page_leaked(&b);
    assert_true(service_stop(b.v, 5));
    clear(&first);
    clear(&turns);
    for (int i = 0; i < 3; i++) clear(&back[i]);
    for (int i = 0; i < 2; i++) clear(&fore[i]);
    close_bench(&b);
    sem_destroy(&hold);
}

/* Tasks in the background take no more than the rows, so that the window has room for others. */
static void test_background_rows(void **state)
{
    (void)state;
    enum { N = 6 };
    bench b;
    one o[N];
    sem_t hold;
    sem_init(&hold, 0, 0);
    open_bench(&b, 10, 64, 2, NULL);
    make(&o[0], &b, ASK("\"x\"", 30));
    o[0].hold = &hold;
    put(&o[0], &b);
    sem_wait(&o[0].seen);
    for (int i = 1; i < N; i++) {
        make(&o[i], &b, ASK("\"y\"", 30));
        o[i].t.background = true;
        put(&o[i], &b);
    }
    sem_post(&hold);
    sem_wait(&o[1].seen);
    service_stats s;
    service_read_stats(b.v, &s);
    assert_true(s.running <= 2);
    wait_ended(&b, N);
    no_page_leaked(&b);
    assert_true(service_stop(b.v, 5));
    for (int i = 0; i < N; i++) clear(&o[i]);
    close_bench(&b);
    sem_destroy(&hold);
}

/* ---- limits ---------------------------------------------------------------------------------- */

static void test_queue_full(void **state)
{
    (void)state;
    bench b;
    one first, o[4];
    sem_t hold;
    sem_init(&hold, 0, 0);
    open_bench(&b, 2, 1, 1, NULL);
    make(&first, &b, ASK("\"first\"", 2));
    first.hold = &hold;
    put(&first, &b);
    sem_wait(&first.seen);
    for (int i = 0; i < 4; i++) make(&o[i], &b, ASK("\"x\"", 2));
    o[3].t.background = true;
    put(&o[0], &b);
    put(&o[1], &b);
    assert_int_equal(service_submit(b.v, &o[2].t), CORUN_ECAPACITY);
    assert_string_equal(err_text(), "too many requests wait");
    put(&o[3], &b); /* those in the background do not count */
    sem_post(&hold);
    wait_ended(&b, 4);
    put(&o[2], &b);
    wait_ended(&b, 1);
    service_stats s;
    service_read_stats(b.v, &s);
    assert_int_equal(s.refused, 1);
    assert_int_equal(s.ok, 5);
    assert_true(service_stop(b.v, 5));
    clear(&first);
    for (int i = 0; i < 4; i++) clear(&o[i]);
    close_bench(&b);
    sem_destroy(&hold);
}

/* A prompt that can never fit the pool: its request fails, with what it has in the engine. */
static void test_refused_by_engine(void **state)
{
    (void)state;
    bench b;
    one o, after;
    char body[3000], text[2000];
    memset(text, 'x', sizeof text);
    text[1200] = 0;
    open_bench(&b, 4, 64, 4, "8K");
    snprintf(body, sizeof body,
             "{\"model\":\"m\",\"prompt\":[\"a\",\"b\",\"%s\",\"c\"],\"max_tokens\":50}", text);
    make(&o, &b, body);
    make(&after, &b, ASK("\"x\"", 5));
    put(&o, &b);
    put(&after, &b);
    wait_ended(&b, 2);
    assert_int_equal(o.http, 400);
    assert_non_null(strstr(o.t.j->message, "pages"));
    assert_int_equal(after.http, 200);
    no_page_leaked(&b);
    assert_true(service_stop(b.v, 5));
    clear(&o);
    clear(&after);
    close_bench(&b);
}

/* ---- cancels --------------------------------------------------------------------------------- */

static void test_cancel(void **state)
{
    (void)state;
    enum { N = 60 };
    static one o[N];
    bench b;
    open_bench(&b, N, 16, 4, NULL);
    for (int i = 0; i < N; i++) {
        make(&o[i], &b,
             i % 3 ? ASK("\"a long one\"", 400) : ASK("[\"one\",\"two\",\"three\"]", 300));
        o[i].cancel_self = i % 5 == 0;
        put(&o[i], &b);
    }
    for (int i = 0; i < N; i++)
        if (i % 2) {
            if (i % 8 == 1) usleep(2000);
            service_cancel(b.v, &o[i].t);
        }
    wait_ended(&b, N);
    no_page_leaked(&b);
    int n_cancelled = 0;
    for (int i = 0; i < N; i++) {
        assert_int_equal(o[i].ended, 1);
        assert_true(o[i].http == 200 || o[i].http == 499);
        if (i % 2 == 0 && i % 5) assert_int_equal(o[i].http, 200);
        if (i % 5 == 0) assert_int_equal(o[i].http, 499);
        n_cancelled += o[i].http == 499;
        service_cancel(b.v, &o[i].t); /* has ended: no error */
    }
    service_stats s;
    service_read_stats(b.v, &s);
    assert_int_equal(s.cancelled, n_cancelled);
    assert_int_equal(s.ok, N - n_cancelled);
    assert_true(service_stop(b.v, 5));
    for (int i = 0; i < N; i++) clear(&o[i]);
    close_bench(&b);
}

/* ---- stop ------------------------------------------------------------------------------------ */

static atomic_int n_worked;

static void work(void *arg)
{
    usleep(1000);
    atomic_fetch_add((atomic_int *)arg, 1);
}

static void hand_in(void *arg)
{
    one *o = arg;
    usleep(20000); /* the service is being stopped by now */
    if (service_submit(now_running->v, &o->t) != CORUN_OK) {
        o->http = -1;
        sem_post(&now_running->ended);
    }
}

static void test_stop(void **state)
{
    (void)state;
    bench b;
    one o[4], late, back;
    open_bench(&b, 10, 4, 2, NULL);
    n_worked = 0;
    for (int i = 0; i < 20; i++)
        assert_int_equal(service_work(b.v, SERVICE_CPU, work, &n_worked), CORUN_OK);
    for (int i = 0; i < 4; i++) {
        make(&o[i], &b, ASK("\"finishes\"", 60));
        put(&o[i], &b);
    }
    make(&late, &b, ASK("\"late\"", 5));
    make(&back, &b, ASK("\"back\"", 5));
    back.t.background = true;
    assert_int_equal(service_work(b.v, SERVICE_CPU, hand_in, &late), CORUN_OK);
    assert_true(service_stop(b.v, 30));
    assert_int_equal(n_worked, 20);
    assert_int_equal(b.n_ended, 5);
    for (int i = 0; i < 4; i++) assert_int_equal(o[i].http, 200);
    assert_int_equal(late.http, 200); /* it was taken before the stop */
    assert_int_equal(service_submit(b.v, &back.t), CORUN_ECAPACITY);
    assert_string_equal(err_text(), "the server is being stopped");
    no_page_leaked(&b);
    for (int i = 0; i < 4; i++) clear(&o[i]);
    clear(&late);
    clear(&back);
    close_bench(&b);
}

static void *post_later(void *arg)
{
    usleep(50000);
    sem_post(arg);
    return NULL;
}

static void test_abort(void **state)
{
    (void)state;
    enum { N = 8 };
    bench b;
    one o[N];
    pthread_t later;
    sem_t hold;
    sem_init(&hold, 0, 0);
    open_bench(&b, N, 2, 1, NULL);
    for (int i = 0; i < N; i++) {
        make(&o[i], &b, ASK("\"does not finish\"", 900));
        o[i].t.background = i >= 4;
        o[i].hold = i ? NULL : &hold;
        put(&o[i], &b);
    }
    sem_wait(&o[0].seen);
    assert_int_equal(pthread_create(&later, NULL, post_later, &hold), 0);
    assert_false(service_stop(b.v, 0));
    pthread_join(later, NULL);
    assert_int_equal(b.n_ended, N);
    for (int i = 0; i < N; i++) {
        assert_int_equal(o[i].ended, 1);
        assert_int_equal(o[i].http, i < 4 ? 503 : 499);
    }
    no_page_leaked(&b);
    for (int i = 0; i < N; i++) clear(&o[i]);
    close_bench(&b);
    sem_destroy(&hold);
}

/* A disk that stalls does not keep the other work from its threads. */
static void wait_for(void *arg) { sem_wait(arg); }

static void test_lanes(void **state)
{
    (void)state;
    bench b;
    sem_t stall;
    sem_init(&stall, 0, 0);
    open_bench(&b, 4, 4, 2, NULL);
    n_worked = 0;
    for (int i = 0; i < 5; i++)
        assert_int_equal(service_work(b.v, SERVICE_DISK, wait_for, &stall), CORUN_OK);
    for (int i = 0; i < 10; i++)
        assert_int_equal(service_work(b.v, SERVICE_CPU, work, &n_worked), CORUN_OK);
    for (int i = 0; i < 5000 && n_worked < 10; i++) usleep(1000);
    assert_int_equal(n_worked, 10);
    assert_true(service_stop(b.v, 5)); /* nor the server from its end */
    assert_int_equal(service_work(b.v, SERVICE_DISK, work, &n_worked), CORUN_OK);
    for (int i = 0; i < 5; i++) sem_post(&stall);
    close_bench(&b);
    assert_int_equal(n_worked, 11); /* all that was taken is done */
    sem_destroy(&stall);
}

/* Nor does work that takes long; but the end waits for it. */
static void test_large_lane(void **state)
{
    (void)state;
    bench b;
    pthread_t later;
    sem_t stall;
    sem_init(&stall, 0, 0);
    open_bench(&b, 4, 4, 2, NULL);
    n_worked = 0;
    assert_int_equal(service_work(b.v, SERVICE_LARGE, wait_for, &stall), CORUN_OK);
    for (int i = 0; i < 5; i++)
        assert_int_equal(service_work(b.v, SERVICE_LARGE, work, &n_worked), CORUN_OK);
    for (int i = 0; i < 10; i++)
        assert_int_equal(service_work(b.v, SERVICE_CPU, work, &n_worked), CORUN_OK);
    for (int i = 0; i < 5000 && n_worked < 10; i++) usleep(1000);
    assert_int_equal(n_worked, 10);
    assert_false(service_aborts(b.v));
    assert_int_equal(pthread_create(&later, NULL, post_later, &stall), 0);
    assert_true(service_stop(b.v, 0));
    assert_true(service_aborts(b.v));
    assert_int_equal(n_worked, 15);
    pthread_join(later, NULL);
    close_bench(&b);
    sem_destroy(&stall);
}

/* ---- failures -------------------------------------------------------------------------------- */

/* Whichever event is not taken, the last one too, that task alone ends with a 500. */
static void test_event_not_taken(void **state)
{
    (void)state;
    enum { N = 3 };
    bool all = false;
    for (int k = 1; !all; k++) {
        bench b;
        one o[N];
        service_stats s;
        open_bench(&b, N, 4, 2, NULL);
        for (int i = 0; i < N; i++) make(&o[i], &b, ASK("[\"y\",\"z\"]", 6));
        o[1].fail_at = k;
        for (int i = 0; i < N; i++) put(&o[i], &b);
        wait_ended(&b, N);
        all = o[1].events < k;
        for (int i = 0; i < N; i++) {
            bool failed = i == 1 && !all;
            assert_int_equal(o[i].http, failed ? 500 : 200);
            assert_int_equal(o[i].t.status, failed ? CORUN_ENOMEM : CORUN_OK);
            if (failed) {
                assert_string_equal(o[i].t.j->message, "the event is not taken");
                assert_int_equal(o[i].events, k);
            }
        }
        no_page_leaked(&b);
        service_read_stats(b.v, &s);
        assert_int_equal(s.failed, !all);
        assert_int_equal(s.cancelled, 0);
        assert_true(service_stop(b.v, 5));
        for (int i = 0; i < N; i++) clear(&o[i]);
        close_bench(&b);
        assert_true(k < 50);
    }
}

/* Memory that runs short anywhere in the service or the engine: every task ends once, with its
 * answer or a 500, and nothing hangs. */
static void test_no_memory(void **state)
{
    (void)state;
    enum { N = 5 };
    int failed = 0;
    for (uint64_t k = 1; k < 60; k += 2) {
        bench b;
        one o[N];
        open_bench(&b, N, 4, 2, NULL);
        for (int i = 0; i < N; i++)
            make(&o[i], &b, i % 2 ? ASK("\"x\"", 20) : ASK("[\"y\",\"z\"]", 20));
        mem_fail_at(k);
        int taken = 0;
        for (int i = 0; i < N; i++)
            if (service_submit(b.v, &o[i].t) == CORUN_OK) taken++;
        wait_ended(&b, (size_t)taken);
        mem_fail_at(0);
        for (int i = 0; i < N; i++) {
            if (!o[i].ended) continue;
            assert_int_equal(o[i].ended, 1);
            assert_true(o[i].http == 200 || o[i].http == 500);
            assert_int_equal(o[i].http == 500, o[i].t.status != CORUN_OK); /* no answer for good */
            failed += o[i].http == 500;
        }
        if (service_failure(b.v)) {
            assert_int_equal(service_submit(b.v, &o[0].t), CORUN_ECAPACITY);
        } else {
            no_page_leaked(&b);
        }
        service_stop(b.v, 5);
        for (int i = 0; i < N; i++) clear(&o[i]);
        close_bench(&b);
    }
    assert_true(failed > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_background_rows),
        cmocka_unit_test(test_queue_full),
        cmocka_unit_test(test_refused_by_engine),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_stop),
        cmocka_unit_test(test_abort),
        cmocka_unit_test(test_lanes),
        cmocka_unit_test(test_large_lane),
        cmocka_unit_test(test_event_not_taken),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
