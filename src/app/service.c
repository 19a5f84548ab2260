/* service.c - owns the engine of a server and the order of its tasks. Invariant: a task that was
 * taken gets `done` exactly once, and when it does the engine holds nothing of it.
 *
 * Tasks wait in two queues. Those of the foreground take turns, one prompt each, while the window
 * has room; those of the background begin only when no other waits and a row of the step is free.
 * The lock guards the queues, the list of what has begun, and the figures; the engine, the table
 * of prompts alive and the jobs that have begun are the service's thread's alone. */
#include "app/service.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"

#define WORK_MAX      4096 /* functions that wait, in each lane */
#define THREADS_MAX   64
#define STATS_SECONDS 0.02 /* age of the engine's figures, at most, while it runs */

const double service_bounds[SERVICE_BUCKETS] = {
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 120, INFINITY};

typedef struct queue {
    task *head, *tail;
} queue;

typedef struct alive {
    task *t;
    size_t prompt;
} alive;

typedef struct work {
    void (*fn)(void *arg);
    void *arg;
} work;

typedef struct lane {
    pthread_cond_t labour;
    work *work; /* a ring of WORK_MAX */
    size_t head, n;
    size_t alive; /* functions that wait or run */
} lane;

typedef struct worker {
    service *v;
    lane *lane;
    pthread_t thread;
} worker;

struct service {
    cmd_session *s;
    service_opts o;
    pthread_mutex_t lock;
    pthread_cond_t wake;  /* the service's thread: there is news */
    pthread_cond_t quiet; /* service_stop: something has ended */
    pthread_t engine_thread;
    worker
        worker[SERVICE_LANES - 1 + THREADS_MAX]; /* one for each lane, then more for SERVICE_CPU */
    size_t n_worker;
    bool engine_on;

    /* Under the lock. */
    queue fore, back;
    task *running; /* the last one first */
    size_t n_task; /* taken and not ended */
    size_t n_alive_shown;
    bool stopping, cancelling, closing;
    char *failure;
    service_stats stats;
    lane lane[SERVICE_LANES];

    atomic_bool news; /* something was queued, cancelled or closed */

    /* The service's thread's. */
    uint64_t *id; /* of the engine, for each prompt alive */
    alive *alive;
    size_t n_alive, n_row;
    double stats_at;
};

/* ---- queues (under the lock) ----------------------------------------------------------------- */

static queue *queue_of(service *v, const task *t) { return t->background ? &v->back : &v->fore; }

static void push(service *v, task *t)
{
    queue *q = queue_of(v, t);
    t->next = NULL;
    t->queued = true;
    if (q->tail)
        q->tail->next = t;
    else
        q->head = t;
    q->tail = t;
}

static void unlink_task(queue *q, task *t)
{
    task *before = NULL, **p = &q->head;
    while (*p != t) {
        before = *p;
        p = &before->next;
    }
    *p = t->next;
    if (q->tail == t) q->tail = before;
    t->queued = false;
}

static void start(service *v, task *t)
{
    t->started = true;
    if (t->background)
        v->stats.waiting_background--;
    else
        v->stats.waiting--;
    v->stats.running++;
    t->run_prev = NULL;
    t->run_next = v->running;
    if (v->running) v->running->run_prev = t;
    v->running = t;
}

/* Takes it out of every list. */
static void leave(service *v, task *t)
{
    if (t->queued) unlink_task(queue_of(v, t), t);
    if (!t->started) {
        if (t->background)
            v->stats.waiting_background--;
        else
            v->stats.waiting--;
        return;
    }
    v->stats.running--;
    if (t->run_prev)
        t->run_prev->run_next = t->run_next;
    else
        v->running = t->run_next;
    if (t->run_next) t->run_next->run_prev = t->run_prev;
}

static void observe(service_histogram *h, double seconds)
{
    size_t i = 0;
    while (seconds > service_bounds[i]) i++;
    h->count[i]++;
    h->n++;
    h->sum += seconds;
}

/* ---- the end of a task ----------------------------------------------------------------------- */

/* Tokens of the longest choice. */
static int64_t longest(const job *j)
{
    int64_t n = 0;
    for (size_t i = 0; i < j->n_choice; i++)
        if (j->choice[i].n_new > n) n = j->choice[i].n_new;
    return n;
}

static void count_end(service *v, const task *t, double now)
{
    service_stats *s = &v->stats;
    if (t->j->http == 499)
        s->cancelled++;
    else if (t->j->http != 200)
        s->failed++;
    else
        s->ok++;
    if (t->j->http != 200) return;
    observe(&s->latency, now - t->since);
    int64_t n = longest(t->j);
    if (n > 1 && t->first > 0) observe(&s->tpot, (now - t->first) / (double)(n - 1));
}

static void read_engine(service *v, double now)
{
    corun_stats e;
    v->stats_at = now;
    if (corun_engine_stats(v->s->engine, &e) != CORUN_OK) return;
    pthread_mutex_lock(&v->lock);
    v->stats.engine = e;
    pthread_mutex_unlock(&v->lock);
}

/* Nothing of it is in the engine. */
static void end(service *v, task *t)
{
    double now = clock_seconds();
    pthread_mutex_lock(&v->lock);
    leave(v, t);
    count_end(v, t, now);
    pthread_mutex_unlock(&v->lock);
    t->done(t); /* from here on it is the caller's */
    pthread_mutex_lock(&v->lock);
    v->n_task--;
    pthread_cond_broadcast(&v->quiet);
    pthread_mutex_unlock(&v->lock);
}

static void remove_alive(service *v, size_t i)
{
    v->n_alive--;
    v->id[i] = v->id[v->n_alive];
    v->alive[i] = v->alive[v->n_alive];
}

/* Ends what the engine still holds of a task. */
static void drop(service *v, const task *t)
{
    for (size_t i = 0; i < v->n_alive;) {
        if (v->alive[i].t != t) {
            i++;
            continue;
        }
        v->n_row -= t->j->prompt[v->alive[i].prompt].n_open;
        corun_cancel(v->s->engine, v->id[i]);
        remove_alive(v, i);
    }
}

/* The task ends, and not by what it asks for: st and the text of this thread's error say why. */
static void give_up(service *v, task *t, corun_status st)
{
    t->status = st;
    job_fail(t->j, 500, NULL, "%s", err_text());
    drop(v, t);
    end(v, t);
}

/* A task that waits or runs, or NULL. */
static task *any_task(const service *v, bool cancelled)
{
    task *const first[] = {v->running, v->fore.head, v->back.head};
    for (int k = 0; k < 3; k++)
        for (task *t = first[k]; t; t = k ? t->next : t->run_next)
            if (!cancelled || t->cancelled) return t;
    return NULL;
}

/* The engine is broken: every task fails with the text of this thread's error. */
static void fail_all(service *v)
{
    char text[ERR_TEXT_MAX];
    task *t;
    snprintf(text, sizeof text, "%s", err_text());
    pthread_mutex_lock(&v->lock);
    if (!v->failure) v->failure = mem_dup(text, strlen(text), "error message");
    v->stopping = true;
    pthread_mutex_unlock(&v->lock);
    fprintf(stderr, "corun serve: the engine has failed: %s\n", text);
    v->n_alive = v->n_row = 0;
    for (;;) {
        pthread_mutex_lock(&v->lock);
        t = any_task(v, false);
        pthread_mutex_unlock(&v->lock);
        if (!t) return;
        t->status = CORUN_EIO;
        job_fail(t->j, 500, NULL, "the engine has failed: %s", text);
        end(v, t);
    }
}

static void end_cancelled(service *v)
{
    for (;;) {
        pthread_mutex_lock(&v->lock);
        task *t = any_task(v, true);
        bool stopped = v->cancelling;
        pthread_mutex_unlock(&v->lock);
        if (!t) return;
        drop(v, t);
        if (stopped && !t->background)
            job_fail(t->j, 503, NULL, "the server was stopped before the answer was complete");
        else
            job_fail(t->j, 499, NULL, "the request was cancelled");
        read_engine(v, clock_seconds()); /* its pages are free: seen before its end is */
        end(v, t);
    }
}

/* ---- the engine's steps ---------------------------------------------------------------------- */

/* The task whose turn it is, out of its queue; NULL: none may go. */
static task *next_task(service *v)
{
    task *t = v->fore.head;
    if (!t && v->back.head && v->n_row < v->o.slots) t = v->back.head;
    if (!t) return NULL;
    unlink_task(queue_of(v, t), t);
    if (!t->started) start(v, t);
    return t;
}

/* One prompt of the task. False: the engine is broken. */
static bool submit(service *v, task *t)
{
    job *j = t->j;
    corun_request r;
    uint64_t id;
    job_request(j, j->n_submitted, &r);
    corun_status st = corun_submit(v->s->engine, &r, &id);
    if (st == CORUN_OK) {
        v->id[v->n_alive] = id;
        v->alive[v->n_alive++] = (alive){t, j->n_submitted};
        v->n_row += j->prompt[j->n_submitted++].n_open;
        if (j->n_submitted == j->n_prompt) return true;
        pthread_mutex_lock(&v->lock);
        push(v, t);
        pthread_mutex_unlock(&v->lock);
        return true;
    }
    switch (st) {
    case CORUN_EINVAL:
    case CORUN_ECAPACITY:
    case CORUN_EUNSUPPORTED:
    case CORUN_EFORMAT:
        job_fail(j, 400, NULL, "%s", err_text());
        drop(v, t);
        end(v, t);
        return true;
    case CORUN_ENOMEM: give_up(v, t, st); return true;
    default: fail_all(v); return false;
    }
}

static bool fill(service *v)
{
    while (v->n_alive < v->o.window) {
        pthread_mutex_lock(&v->lock);
        task *t = next_task(v);
        pthread_mutex_unlock(&v->lock);
        if (!t) break;
        if (!submit(v, t)) return false;
    }
    return true;
}

static void handle(service *v, const corun_event *e, double now)
{
    size_t i = 0;
    while (i < v->n_alive && v->id[i] != e->id) i++;
    if (i == v->n_alive) {
        err_set(CORUN_EINTERNAL, "an event of request %llu, which is not alive",
                (unsigned long long)e->id);
        fail_all(v);
        return;
    }
    const alive a = v->alive[i];
    task *t = a.t;
    job_prompt *p = &t->j->prompt[a.prompt];
    size_t open = p->n_open;
    corun_status st = job_event(t->j, a.prompt, e);
    v->n_row -= open - p->n_open;
    if (st != CORUN_OK) {
        give_up(v, t, st);
        return;
    }
    if (e->kind == CORUN_EVENT_TOKEN) {
        atomic_fetch_add_explicit(&t->n_new, 1, memory_order_relaxed);
        if (t->first <= 0) {
            t->first = now;
            pthread_mutex_lock(&v->lock);
            observe(&v->stats.ttft, now - t->since);
            pthread_mutex_unlock(&v->lock);
        }
    }
    if (t->event && (st = t->event(t, a.prompt, e)) != CORUN_OK) {
        give_up(v, t, st);
        return;
    }
    if (p->n_open == 0) remove_alive(v, i);
    if (!job_done(t->j)) return;
    if (now > v->stats_at) read_engine(v, now);
    end(v, t);
}

static void one_event(service *v)
{
    corun_event e;
    corun_status st = corun_next(v->s->engine, &e);
    if (st == CORUN_OK && e.kind == CORUN_EVENT_IDLE)
        st = err_set(CORUN_EINTERNAL, "the engine is idle, %zu requests wait", v->n_alive);
    if (st != CORUN_OK) {
        fail_all(v);
        return;
    }
    double now = clock_seconds();
    if (e.kind != CORUN_EVENT_NONE) handle(v, &e, now);
    if (now - v->stats_at > STATS_SECONDS) read_engine(v, now);
}

/* Waits until there is something to do. False: the end. */
static bool wait_for_news(service *v)
{
    if (v->n_alive && !atomic_load_explicit(&v->news, memory_order_relaxed)) return true;
    pthread_mutex_lock(&v->lock);
    while (!v->closing && !v->n_alive && !atomic_load(&v->news))
        pthread_cond_wait(&v->wake, &v->lock);
    bool go_on = !v->closing;
    pthread_mutex_unlock(&v->lock);
    return go_on;
}

static void *engine_main(void *arg)
{
    service *v = arg;
    while (wait_for_news(v)) {
        if (atomic_exchange(&v->news, false)) end_cancelled(v);
        if (fill(v) && v->n_alive) one_event(v);
        if (v->n_alive == 0) {
            read_engine(v, clock_seconds());
            pthread_mutex_lock(&v->lock);
            if (v->fore.head || v->back.head) atomic_store(&v->news, true);
            pthread_mutex_unlock(&v->lock);
        }
    }
    return NULL;
}

/* ---- work ------------------------------------------------------------------------------------ */

static void *work_main(void *arg)
{
    const worker *me = arg;
    service *v = me->v;
    lane *l = me->lane;
    pthread_mutex_lock(&v->lock);
    for (;;) {
        while (!l->n && !v->closing) pthread_cond_wait(&l->labour, &v->lock);
        if (!l->n) break;
        work w = l->work[l->head];
        l->head = (l->head + 1) % WORK_MAX;
        l->n--;
        pthread_mutex_unlock(&v->lock);
        w.fn(w.arg);
        pthread_mutex_lock(&v->lock);
        l->alive--;
        pthread_cond_broadcast(&v->quiet);
    }
    pthread_mutex_unlock(&v->lock);
    return NULL;
}

corun_status service_work(service *v, service_lane which, void (*fn)(void *arg), void *arg)
{
    lane *l = &v->lane[which];
    pthread_mutex_lock(&v->lock);
    bool room = l->n < WORK_MAX;
    if (room) {
        l->work[(l->head + l->n++) % WORK_MAX] = (work){fn, arg};
        l->alive++;
        pthread_cond_signal(&l->labour);
    }
    pthread_mutex_unlock(&v->lock);
    if (!room) FAIL(CORUN_ECAPACITY, "%d pieces of work wait", WORK_MAX);
    return CORUN_OK;
}

/* ---- tasks ----------------------------------------------------------------------------------- */

static bool own_thread(const service *v)
{
    for (size_t i = 0; i < v->n_worker; i++)
        if (pthread_equal(pthread_self(), v->worker[i].thread)) return true;
    return false;
}

static void tell(service *v)
{
    atomic_store(&v->news, true);
    pthread_cond_signal(&v->wake);
}

/* Under the lock: why the task is not taken, or NULL. */
static const char *refusal(service *v, const task *t)
{
    if (v->failure) return v->failure;
    bool last = v->stopping && !t->background && !v->cancelling && own_thread(v);
    if (v->stopping && !last) return "the server is being stopped";
    if (t->background || v->stats.waiting < v->o.queue) return NULL;
    v->stats.refused++;
    return "too many requests wait";
}

corun_status service_submit(service *v, task *t)
{
    atomic_store(&t->n_new, 0);
    t->first = 0;
    t->status = CORUN_OK;
    t->cancelled = t->queued = t->started = false;
    t->since = clock_seconds();
    pthread_mutex_lock(&v->lock);
    const char *why = refusal(v, t);
    if (!why) {
        push(v, t);
        v->n_task++;
        if (t->background)
            v->stats.waiting_background++;
        else
            v->stats.waiting++;
        tell(v);
    }
    pthread_mutex_unlock(&v->lock);
    if (why) FAIL(CORUN_ECAPACITY, "%s", why);
    return CORUN_OK;
}

void service_cancel(service *v, task *t)
{
    pthread_mutex_lock(&v->lock);
    t->cancelled = true;
    tell(v);
    pthread_mutex_unlock(&v->lock);
}

bool service_aborts(service *v)
{
    pthread_mutex_lock(&v->lock);
    bool aborts = v->cancelling;
    pthread_mutex_unlock(&v->lock);
    return aborts;
}

const char *service_failure(const service *v)
{
    service *w = (service *)(uintptr_t)v;
    pthread_mutex_lock(&w->lock);
    const char *text = v->failure;
    pthread_mutex_unlock(&w->lock);
    return text;
}

/* ---- figures --------------------------------------------------------------------------------- */

void service_read_stats(service *v, service_stats *out)
{
    pthread_mutex_lock(&v->lock);
    *out = v->stats;
    pthread_mutex_unlock(&v->lock);
}

static service_row row_of(task *t, double now)
{
    service_row r = {.kind = t->j->kind,
                     .stream = t->j->stream,
                     .background = t->background,
                     .new_tokens = atomic_load(&t->n_new),
                     .seconds = now - t->since};
    digest_hex(t->j->id, r.id);
    for (size_t i = 0; i < t->j->n_prompt; i++) r.prompt_tokens += t->j->prompt[i].n_token;
    return r;
}

size_t service_running(service *v, service_row *out, size_t cap)
{
    size_t n = 0;
    double now = clock_seconds();
    pthread_mutex_lock(&v->lock);
    for (task *t = v->running; t && n < cap; t = t->run_next) out[n++] = row_of(t, now);
    pthread_mutex_unlock(&v->lock);
    return n;
}

/* ---- open, stop, close ----------------------------------------------------------------------- */

static corun_status start_thread(pthread_t *out, void *(*fn)(void *), void *arg)
{
    int err = pthread_create(out, NULL, fn, arg);
    if (err) FAIL(CORUN_ENOMEM, "a thread cannot be started: %s", strerror(err));
    return CORUN_OK;
}

static corun_status open_service(service *v, const service_opts *o)
{
    if (!o->window || !o->slots || !o->threads || o->threads > THREADS_MAX)
        FAIL(CORUN_EINVAL, "service: a window, slots and 1 ... %d threads are needed", THREADS_MAX);
    if (!MEM_NEW(v->id, o->window) || !MEM_NEW(v->alive, o->window)) return CORUN_ENOMEM;
    for (int i = 0; i < SERVICE_LANES; i++)
        if (!MEM_NEW(v->lane[i].work, WORK_MAX)) return CORUN_ENOMEM;
    TRY(corun_engine_stats(v->s->engine, &v->stats.engine));
    TRY(start_thread(&v->engine_thread, engine_main, v));
    v->engine_on = true;
    pthread_mutex_lock(&v->lock); /* own_thread reads the table */
    corun_status st = CORUN_OK;
    while (st == CORUN_OK && v->n_worker < SERVICE_LANES - 1 + o->threads) {
        worker *w = &v->worker[v->n_worker];
        w->v = v;
        w->lane = &v->lane[v->n_worker < SERVICE_LANES ? v->n_worker : SERVICE_CPU];
        st = start_thread(&w->thread, work_main, w);
        if (st == CORUN_OK) v->n_worker++;
    }
    pthread_mutex_unlock(&v->lock);
    return st;
}

corun_status service_open(service **out, cmd_session *s, const service_opts *o)
{
    service *v;
    *out = NULL;
    if (!MEM_NEW(v, 1)) return CORUN_ENOMEM;
    v->s = s;
    v->o = *o;
    pthread_condattr_t steady;
    pthread_condattr_init(&steady);
    pthread_condattr_setclock(&steady, CLOCK_MONOTONIC);
    pthread_mutex_init(&v->lock, NULL);
    pthread_cond_init(&v->wake, NULL);
    for (int i = 0; i < SERVICE_LANES; i++) pthread_cond_init(&v->lane[i].labour, NULL);
    pthread_cond_init(&v->quiet, &steady);
    pthread_condattr_destroy(&steady);
    corun_status st = open_service(v, o);
    if (st != CORUN_OK)
        service_close(v);
    else
        *out = v;
    return st;
}

/* Under the lock: marks tasks; background: only those of the background that have not begun. */
static size_t cancel_many(service *v, bool background)
{
    size_t n = 0;
    for (task *t = v->back.head; t; t = t->next)
        if (!background || !t->started) t->cancelled = true;
    if (!background)
        for (task *t = v->fore.head; t; t = t->next, n++) t->cancelled = true;
    if (!background)
        for (task *t = v->running; t; t = t->run_next) {
            n += !t->background && !t->queued;
            t->cancelled = true;
        }
    tell(v);
    return n;
}

static bool is_quiet(const service *v)
{
    return !v->n_task && !v->lane[SERVICE_CPU].alive && !v->lane[SERVICE_LARGE].alive;
}

bool service_stop(service *v, double seconds)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    if (!(seconds >= 0)) seconds = 0;
    if (seconds > 1e8) seconds = 1e8;
    double whole = floor(seconds);
    until.tv_sec += (time_t)whole;
    until.tv_nsec += (long)((seconds - whole) * 1e9);
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&v->lock);
    v->stopping = true;
    cancel_many(v, true);
    while (!is_quiet(v))
        if (pthread_cond_timedwait(&v->quiet, &v->lock, &until) == ETIMEDOUT) break;
    size_t n = 0;
    v->cancelling = true;
    if (!is_quiet(v)) n = cancel_many(v, false);
    while (!is_quiet(v)) pthread_cond_wait(&v->quiet, &v->lock);
    pthread_mutex_unlock(&v->lock);
    return n == 0;
}

void service_close(service *v)
{
    if (!v) return;
    pthread_mutex_lock(&v->lock);
    v->closing = true;
    pthread_cond_broadcast(&v->wake);
    for (int i = 0; i < SERVICE_LANES; i++) pthread_cond_broadcast(&v->lane[i].labour);
    pthread_mutex_unlock(&v->lock);
    if (v->engine_on) pthread_join(v->engine_thread, NULL);
    for (size_t i = 0; i < v->n_worker; i++) pthread_join(v->worker[i].thread, NULL);
    pthread_cond_destroy(&v->wake);
    for (int i = 0; i < SERVICE_LANES; i++) {
        pthread_cond_destroy(&v->lane[i].labour);
        mem_free(v->lane[i].work);
    }
    pthread_cond_destroy(&v->quiet);
    pthread_mutex_destroy(&v->lock);
    mem_free(v->failure);
    mem_free(v->id);
    mem_free(v->alive);
    mem_free(v);
}
