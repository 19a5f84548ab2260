/* serve_runner.c - owns the batches' way from uploaded lines to files. Invariant: a row is kept
 * exactly when its line was answered as `corun batch` would answer it; what was cancelled, or ended
 * for want of memory or with the engine, leaves no row and is run again. */
#include "app/serve_runner.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "app/facts.h"
#include "app/feed.h"
#include "app/journal.h"
#include "app/openai.h"
#include "app/pump.h"
#include "base/clock.h"

#define RETRY_SECONDS 2.0 /* after the store has refused something */
#define MAX_ERRORS    ((size_t)64 << 10)

static const feed_kind openai = {openai_open, openai_prepare, openai_write};

/* One line in the service. */
typedef struct item {
    task t; /* ctx: this item */
    runner *r;
    job *j;
    uint64_t index;
    size_t bytes;      /* counted in work.bytes */
    size_t at;         /* place in work.live */
    struct item *next; /* among those that are done */
} item;

struct runner {
    store *store;
    service *service;
    const job_model *model;
    size_t slots;
    json_t *facts;
    pthread_t thread;
    bool started;
    pthread_mutex_t lock;
    pthread_cond_t wake;

    /* Under the lock. */
    item *done;
    bool news, stop;
    uint64_t trouble_seq;
    char trouble[ERR_TEXT_MAX]; /* empty: none */
};

/* The batch that is being run. The runner's thread's. */
typedef struct work {
    runner *r;
    const store_batch *b;
    feed feed;
    uint64_t index; /* lines read */
    bool end;       /* all lines are read */
    bool lost;      /* the service has ended */
    bool resumed;   /* there are rows of an earlier run */
    item **live;
    size_t n_live, max_live, bytes;

    store_row *row; /* finished and not yet in the store; their data is owned */
    size_t n_row, cap_row, row_bytes;
    double row_since, retry_at;
} work;

/* ---- waiting --------------------------------------------------------------------------------- */

void runner_wake(runner *r)
{
    pthread_mutex_lock(&r->lock);
    r->news = true;
    pthread_cond_signal(&r->wake);
    pthread_mutex_unlock(&r->lock);
}

/* Until there is something to do, or this many seconds have passed (negative: without an end). */
static void wait_for_news(runner *r, double seconds)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    if (seconds > 0) {
        until.tv_sec += (time_t)seconds;
        until.tv_nsec += (long)((seconds - (double)(time_t)seconds) * 1e9);
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
    }
    pthread_mutex_lock(&r->lock);
    while (!r->news && !r->stop && !r->done)
        if (seconds < 0)
            pthread_cond_wait(&r->wake, &r->lock);
        else if (pthread_cond_timedwait(&r->wake, &r->lock, &until) == ETIMEDOUT)
            break;
    pthread_mutex_unlock(&r->lock);
}

/* Keeps the text of this thread's error for who asks, and says it once. */
static void set_trouble(runner *r, const store_batch *b)
{
    const char *text = err_text();
    pthread_mutex_lock(&r->lock);
    bool same = strcmp(r->trouble, text) == 0;
    snprintf(r->trouble, sizeof r->trouble, "%s", text);
    r->trouble_seq = b ? b->seq : 0;
    pthread_mutex_unlock(&r->lock);
    if (!same)
        fprintf(stderr, "corun serve: %s waits: %s\n", b ? b->id : "the store of batches", text);
}

static void no_trouble(runner *r)
{
    pthread_mutex_lock(&r->lock);
    r->trouble[0] = 0;
    pthread_mutex_unlock(&r->lock);
}

bool runner_trouble(runner *r, uint64_t seq, char *out, size_t cap)
{
    pthread_mutex_lock(&r->lock);
    bool any = r->trouble[0] && r->trouble_seq == seq;
    if (any) snprintf(out, cap, "%s", r->trouble);
    pthread_mutex_unlock(&r->lock);
    return any;
}

/* ---- the end of a batch ---------------------------------------------------------------------- */

typedef struct writer {
    store *s;
    store_draft *output, *error;
    uint64_t n, n_error;
} writer;

static corun_status write_row(void *ctx, const store_row *row)
{
    writer *w = ctx;
    w->n++;
    TRY(store_draft_put(w->output, row->data, row->len));
    if (row->http == 200) return CORUN_OK;
    w->n_error++;
    return store_draft_put(w->error, row->data, row->len);
}

/* Makes the batch's files of its rows and ends it. A file without rows is not made, but the output
 * of a completed batch. */
static corun_status finish(runner *r, const store_batch *b, store_status to, const char *errors)
{
    writer w = {.s = r->store};
    uint64_t from = 0;
    size_t n = 0;
    corun_status st = store_draft_open(r->store, &w.output);
    if (st == CORUN_OK) st = store_draft_open(r->store, &w.error);
    do
        if (st == CORUN_OK) st = store_rows_read(r->store, b->seq, &from, write_row, &w, &n);
    while (st == CORUN_OK && n);
    if (st == CORUN_OK && to == STORE_COMPLETED && w.n != b->total)
        st = err_set(CORUN_EINTERNAL, "%s: has %llu rows, its file has %llu lines", b->id,
                     (unsigned long long)w.n, (unsigned long long)b->total);
    if (st != CORUN_OK) {
        store_draft_drop(w.output);
        store_draft_drop(w.error);
        return st;
    }
    if (!w.n_error) {
        store_draft_drop(w.error);
        w.error = NULL;
    }
    if (!w.n) {
        store_draft_drop(w.output);
        w.output = NULL;
    }
    return store_batch_end(r->store, b, to, w.output, w.error, errors);
}

/* Whether the batch is still to be worked on. Batches that were cancelled meanwhile are ended. */
static corun_status go_on(runner *r, const store_batch *b, bool *yes)
{
    bool news;
    do {
        pthread_mutex_lock(&r->lock);
        news = r->news;
        r->news = false;
        *yes = !r->stop;
        pthread_mutex_unlock(&r->lock);
        if (!news || !*yes) return CORUN_OK;
        store_batch next;
        bool found;
        corun_status st = store_batch_next(r->store, &next, &found);
        if (st != CORUN_OK || !found) return st;
        news = next.status == STORE_CANCELLING;
        if (news && next.seq == b->seq)
            *yes = false;
        else if (news)
            st = finish(r, &next, STORE_CANCELLED, NULL);
        store_batch_free(&next);
        TRY(st);
        if (news) runner_wake(r); /* there may be more */
    } while (news && *yes);
    return CORUN_OK;
}

/* ---- validating ------------------------------------------------------------------------------ */

/* The errors of a batch: a JSON list. */
typedef struct faults {
    buf text;
    jw w;
    unsigned n;
} faults;

static void faults_begin(faults *f)
{
    *f = (faults){0};
    buf_init(&f->text, MAX_ERRORS);
    jw_init(&f->w, &f->text);
    jw_open(&f->w, '[');
}

static void add_fault(faults *f, const char *code, const char *param, uint64_t line,
                      const char *message)
{
    jw *w = &f->w;
    if (f->n++ >= RUNNER_MAX_ERRORS) return;
    jw_open(w, '{');
    jw_field_str(w, "code", code);
    jw_field_str(w, "message", message);
    jw_field_str(w, "param", param);
    jw_key(w, "line");
    if (line)
        jw_uint(w, line);
    else
        jw_null(w);
    jw_close(w, '}');
}

static corun_status fail(runner *r, const store_batch *b, faults *f)
{
    char text[96];
    if (f->n > RUNNER_MAX_ERRORS) {
        snprintf(text, sizeof text, "there are %u errors, the first %u are listed", f->n,
                 RUNNER_MAX_ERRORS);
        f->n = 0;
        add_fault(f, "too_many_errors", NULL, 0, text);
    }
    jw_close(&f->w, ']');
    buf_putc(&f->text, 0);
    TRY(buf_status(&f->text));
    return finish(r, b, STORE_FAILED, f->text.data);
}

static corun_status open_input(runner *r, const store_batch *b, lines **in, bool *gzip)
{
    int fd;
    uint64_t bytes;
    bool found;
    unsigned char head[2];
    TRY(store_file_open(r->store, b->input, &fd, &bytes, &found));
    if (!found) FAIL(CORUN_EFORMAT, "%s: its content is not there", b->input);
    *gzip = read(fd, head, 2) == 2 && head[0] == 0x1f && head[1] == 0x8b;
    close(fd);
    buf path;
    buf_init(&path, 1 << 16);
    corun_status st = store_file_path(r->store, b->input, &path);
    if (st == CORUN_OK) st = lines_open(in, path.data, JOB_MAX_LINE);
    buf_free(&path);
    return st;
}

/* The next line. What cannot be read now will not be readable later. */
static corun_status next_line(feed *f)
{
    corun_status st = feed_next(f);
    return st == CORUN_EIO ? CORUN_EFORMAT : st;
}

/* A line that names another endpoint than the batch. Other errors of a line give its error row. */
static corun_status check_line(feed *f, const store_batch *b, faults *out)
{
    job *j;
    char text[160];
    TRY(feed_job(f, &j));
    const char *url = json_string_value(json_object_get(j->line, "url"));
    bool known =
        url && (strcmp(url, "/v1/completions") == 0 || strcmp(url, "/v1/chat/completions") == 0);
    if (known && strcmp(url, b->endpoint) != 0) {
        snprintf(text, sizeof text, "the line's url is %s, the batch's endpoint %s", url,
                 b->endpoint);
        add_fault(out, "mismatched_endpoint", "url", f->line_no, text);
    }
    job_free(j);
    return CORUN_OK;
}

/* Reads all lines. *yes false: ended before. */
static corun_status check_lines(runner *r, const store_batch *b, lines *in, faults *out,
                                uint64_t *total, bool *yes)
{
    feed f;
    feed_init(&f, in, &openai);
    corun_status st = CORUN_OK;
    for (*total = 0; st == CORUN_OK; ++*total) {
        st = go_on(r, b, yes);
        if (st != CORUN_OK || !*yes) break;
        st = next_line(&f);
        if (st != CORUN_OK || f.what == LINES_END) break;
        st = check_line(&f, b, out);
    }
    feed_free(&f);
    return st;
}

static corun_status begin(runner *r, const store_batch *b, uint64_t total)
{
    bool moved;
    char *facts = json_dumps(r->facts, JSON_COMPACT);
    if (!facts) FAIL(CORUN_ENOMEM, "no memory for what servers have in common");
    corun_status st = store_batch_begin(r->store, b->seq, total, facts, &moved);
    free(facts);
    return st;
}

static corun_status validate(runner *r, const store_batch *b)
{
    lines *in = NULL;
    faults f;
    uint64_t total = 0;
    bool yes = true, gzip;
    faults_begin(&f);
    corun_status st = open_input(r, b, &in, &gzip);
    if (st == CORUN_OK && !gzip) st = check_lines(r, b, in, &f, &total, &yes);
    if (st == CORUN_OK && yes) {
        if (gzip)
            add_fault(&f, "invalid_file", NULL, 0, "the file is gzip: lines of JSON are read");
        else if (!total)
            add_fault(&f, "empty_file", NULL, 0, "the file has no line");
        st = f.n ? fail(r, b, &f) : begin(r, b, total);
    }
    lines_close(in);
    buf_free(&f.text);
    return st;
}

/* ---- rows ------------------------------------------------------------------------------------ */

static void drop_rows(work *w)
{
    for (size_t i = 0; i < w->n_row; i++) mem_free((void *)(uintptr_t)w->row[i].data);
    w->bytes -= w->row_bytes;
    w->n_row = w->row_bytes = 0;
}

/* Puts the finished rows into the store. What it refuses is kept and tried again later. */
static void commit(work *w)
{
    if (!w->n_row) return;
    if (store_rows_add(w->r->store, w->b->seq, w->row, w->n_row) == CORUN_OK) {
        drop_rows(w);
        no_trouble(w->r);
        w->retry_at = 0;
        return;
    }
    set_trouble(w->r, w->b);
    w->retry_at = clock_seconds() + RETRY_SECONDS;
}

static void commit_in_groups(work *w, bool last)
{
    double now = clock_seconds();
    if (now < w->retry_at) return;
    if (last || w->n_row >= JOURNAL_GROUP || w->row_bytes >= JOURNAL_GROUP_BYTES ||
        now - w->row_since >= JOURNAL_GROUP_SECONDS)
        commit(w);
}

/* A job that is done becomes a row. */
static corun_status add_row(work *w, job *j, uint64_t index)
{
    buf row;
    if (w->n_row == w->cap_row) {
        size_t cap = w->cap_row ? 2 * w->cap_row : JOURNAL_GROUP;
        store_row *more = mem_realloc(w->row, cap, sizeof *more, "rows");
        if (!more) return CORUN_ENOMEM;
        w->row = more;
        w->cap_row = cap;
    }
    buf_init(&row, JOB_MAX_ROW);
    corun_status st = feed_row(&openai, j, w->r->model, &row);
    if (st != CORUN_OK) {
        buf_free(&row);
        return st;
    }
    if (!w->n_row) w->row_since = clock_seconds();
    w->row[w->n_row++] = (store_row){index, j->line_no, j->http, row.data, row.len};
    w->row_bytes += row.len;
    w->bytes += row.len;
    return CORUN_OK;
}

/* ---- lines ----------------------------------------------------------------------------------- */

static void on_done(task *t)
{
    item *i = t->ctx;
    runner *r = i->r;
    pthread_mutex_lock(&r->lock);
    i->next = r->done;
    r->done = i;
    pthread_cond_signal(&r->wake);
    pthread_mutex_unlock(&r->lock);
}

/* The service could not run the line to its end. */
static corun_status no_answer(const item *i)
{
    const char *why = i->j->message ? i->j->message : "no memory";
    return err_set(i->t.status == CORUN_ENOMEM ? CORUN_ENOMEM : CORUN_EINTERNAL, "line %llu: %s",
                   (unsigned long long)i->j->line_no, why);
}

/* Rows of the lines that the service has ended. */
static corun_status collect(work *w)
{
    runner *r = w->r;
    corun_status st = CORUN_OK;
    pthread_mutex_lock(&r->lock);
    item *i = r->done;
    r->done = NULL;
    pthread_mutex_unlock(&r->lock);
    if (!i) return CORUN_OK;
    for (item *next; i; i = next) {
        next = i->next;
        if (i->j->http == 499 || i->t.status == CORUN_EIO)
            w->lost = true;
        else if (st == CORUN_OK)
            st = i->t.status == CORUN_OK ? add_row(w, i->j, i->index) : no_answer(i);
        w->live[i->at] = w->live[--w->n_live];
        w->live[i->at]->at = i->at;
        w->bytes -= i->bytes;
        job_free(i->j);
        mem_free(i);
    }
    return st;
}

/* Hands a job in: in any case it is the caller's no more. */
static corun_status submit(work *w, job *j)
{
    item *i;
    if (!MEM_NEW(i, 1)) {
        job_free(j);
        return CORUN_ENOMEM;
    }
    *i = (item){.t = {.j = j, .background = true, .ctx = i, .done = on_done},
                .r = w->r,
                .j = j,
                .index = w->index - 1,
                .bytes = 4 * w->feed.line.len + 512,
                .at = w->n_live};
    if (service_submit(w->r->service, &i->t) != CORUN_OK) {
        w->lost = true;
        mem_free(i);
        job_free(j);
        return CORUN_OK;
    }
    w->live[w->n_live++] = i;
    w->bytes += i->bytes;
    return CORUN_OK;
}

static corun_status take_line(work *w)
{
    job *j;
    bool found = false;
    TRY(next_line(&w->feed));
    w->end = w->feed.what == LINES_END;
    if (w->end) return CORUN_OK;
    w->index++;
    TRY(feed_job(&w->feed, &j)); /* in any case: it may be the first of its custom_id */
    corun_status st = CORUN_OK;
    if (w->resumed) st = store_row_has(w->r->store, w->b->seq, w->index - 1, &found);
    if (st == CORUN_OK && !found && j->http == 200) st = openai.prepare(j, w->r->model);
    if (st == CORUN_OK && !found && j->http == 200) return submit(w, j);
    if (st == CORUN_OK && !found) st = add_row(w, j, w->index - 1);
    job_free(j);
    return st;
}

/* Lines into the service and rows out of it until all are there. */
static corun_status run_lines(work *w)
{
    bool yes = true;
    while (!w->lost) {
        TRY(go_on(w->r, w->b, &yes));
        if (!yes) return CORUN_OK;
        TRY(collect(w));
        bool all = w->end && !w->n_live;
        commit_in_groups(w, all);
        if (all && !w->n_row) return CORUN_OK;
        bool room = w->n_live < w->max_live && w->bytes < RUNNER_MAX_BYTES;
        if (!w->end && !w->lost && room && !w->retry_at)
            TRY(take_line(w));
        else
            wait_for_news(w->r, w->n_row ? 0.1 : 1.0);
    }
    if (service_failure(w->r->service)) FAIL(CORUN_EIO, "%s", service_failure(w->r->service));
    return CORUN_OK;
}

/* Nothing of the batch is in the service any more. */
static void take_back(work *w)
{
    for (size_t i = 0; i < w->n_live; i++) service_cancel(w->r->service, &w->live[i]->t);
    while (w->n_live) {
        pthread_mutex_lock(&w->r->lock);
        while (!w->r->done) pthread_cond_wait(&w->r->wake, &w->r->lock);
        pthread_mutex_unlock(&w->r->lock);
        if (collect(w) != CORUN_OK) w->lost = true;
    }
    commit(w);
}

static corun_status check_facts(runner *r, const store_batch *b, bool *same)
{
    json_t *was;
    buf text;
    unsigned n = 0;
    TRY(json_read(&was, b->facts ? b->facts : "{}", b->facts ? strlen(b->facts) : 2, b->id));
    buf_init(&text, 1 << 16);
    buf_printf(&text,
               "this server computes otherwise than the one that has begun the batch, so its rows "
               "do not go into one file. What is finished is in output_file_id; create the "
               "batch again to have it whole. What differs:");
    corun_status st = facts_compare(was, r->facts, "then", "now", &text, &n);
    buf_putc(&text, 0);
    if (st == CORUN_OK) st = buf_status(&text);
    *same = n == 0;
    if (st == CORUN_OK && n) {
        faults f;
        faults_begin(&f);
        add_fault(&f, "server_changed", NULL, 0, text.data);
        fprintf(stderr, "corun serve: %s has failed: %s\n", b->id, text.data);
        st = fail(r, b, &f);
        buf_free(&f.text);
    }
    buf_free(&text);
    json_decref(was);
    return st;
}

static corun_status run(runner *r, const store_batch *b)
{
    work w = {.r = r, .b = b, .resumed = b->completed + b->failed > 0};
    lines *in = NULL;
    bool same, gzip, moved;
    TRY(check_facts(r, b, &same));
    if (!same) return CORUN_OK;
    w.max_live = PUMP_WINDOW(r->slots);
    corun_status st = open_input(r, b, &in, &gzip);
    if (st == CORUN_OK && !MEM_NEW(w.live, w.max_live + 1)) st = CORUN_ENOMEM;
    if (st == CORUN_OK) {
        feed_init(&w.feed, in, &openai);
        st = run_lines(&w);
        char why[ERR_TEXT_MAX];
        snprintf(why, sizeof why, "%s", err_text());
        take_back(&w);
        if (st != CORUN_OK) err_set(st, "%s", why);
        if (st == CORUN_OK && w.end && !w.lost && !w.n_row && w.index == b->total)
            st = store_batch_finalize(r->store, b->seq, &moved);
        drop_rows(&w);
        feed_free(&w.feed);
    }
    mem_free(w.row);
    mem_free(w.live);
    lines_close(in);
    return st;
}

/* ---- the thread ------------------------------------------------------------------------------ */

static corun_status advance(runner *r, const store_batch *b)
{
    switch (b->status) {
    case STORE_VALIDATING: return validate(r, b);
    case STORE_IN_PROGRESS: return run(r, b);
    case STORE_FINALIZING: return finish(r, b, STORE_COMPLETED, NULL);
    default: return finish(r, b, STORE_CANCELLED, NULL);
    }
}

/* A batch that would fail again however often it were tried fails now, so that the others go on. */
static corun_status step(runner *r, const store_batch *b)
{
    corun_status st = advance(r, b);
    if (st != CORUN_EFORMAT && st != CORUN_EINTERNAL) return st;
    faults f;
    fprintf(stderr, "corun serve: %s has failed: %s\n", b->id, err_text());
    faults_begin(&f);
    add_fault(&f, st == CORUN_EFORMAT ? "unreadable_file" : "internal_error", NULL, 0, err_text());
    st = fail(r, b, &f);
    buf_free(&f.text);
    return st;
}

static void *runner_main(void *arg)
{
    runner *r = arg;
    for (;;) {
        store_batch b = {0};
        bool found = false;
        pthread_mutex_lock(&r->lock);
        bool stop = r->stop;
        r->news = false;
        pthread_mutex_unlock(&r->lock);
        if (stop) return NULL;
        corun_status st = store_batch_next(r->store, &b, &found);
        if (st == CORUN_OK && found) st = step(r, &b);
        if (st != CORUN_OK)
            set_trouble(r, found ? &b : NULL);
        else
            no_trouble(r);
        if (st != CORUN_OK || !found) wait_for_news(r, found || st ? RETRY_SECONDS : -1);
        if (found) store_batch_free(&b);
    }
}

corun_status runner_start(runner **out, store *s, service *v, const cmd_session *session,
                          size_t slots)
{
    runner *r;
    pthread_condattr_t steady;
    if (!MEM_NEW(r, 1)) return CORUN_ENOMEM;
    r->store = s;
    r->service = v;
    r->slots = slots;
    r->model = &session->facts;
    r->facts = json_object();
    corun_status st = facts_of_engine(r->facts, session);
    const char *name = session->facts.served_name;
    if (st == CORUN_OK)
        st = facts_set(r->facts, "served_model_name", name ? json_string(name) : json_null());
    pthread_condattr_init(&steady);
    pthread_condattr_setclock(&steady, CLOCK_MONOTONIC);
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->wake, &steady);
    pthread_condattr_destroy(&steady);
    int err = st == CORUN_OK ? pthread_create(&r->thread, NULL, runner_main, r) : 0;
    if (err) st = err_set(CORUN_ENOMEM, "a thread cannot be started: %s", strerror(err));
    r->started = st == CORUN_OK;
    if (r->started)
        *out = r;
    else
        runner_close(r);
    return st;
}

void runner_stop(runner *r)
{
    if (!r->started) return;
    pthread_mutex_lock(&r->lock);
    r->stop = true;
    pthread_cond_signal(&r->wake);
    pthread_mutex_unlock(&r->lock);
    pthread_join(r->thread, NULL);
    r->started = false;
}

void runner_close(runner *r)
{
    if (!r) return;
    json_decref(r->facts);
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->wake);
    mem_free(r);
}
