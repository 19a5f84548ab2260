/* pump.c - owns the window of a batch. Invariant: every line in a shard gives exactly one row,
 * whose index is the place of the line among them; of equal custom_ids only the first is run. */
#include "app/pump.h"

#include <stdlib.h>
#include <string.h>

#include "app/pieces.h"

/* ---- the window -------------------------------------------------------------------------- */

/* One line between reading and its turn in the order of the lines. */
typedef struct entry {
    job *j;
    buf row;       /* kept for its turn where there is no journal */
    bool finished; /* the row was made, in this run or in an earlier one */
    size_t bytes;  /* counted in state.bytes */
    journal_row r; /* index, line number and input digest; the rest once it is finished */
} entry;

typedef struct alive {
    uint64_t id; /* of the engine */
    job *j;
    size_t prompt;
    uint64_t index; /* of its entry */
} alive;

typedef struct state {
    pump *p;
    feed feed;
    entry *ring;         /* PUMP_MAX_ROWS */
    uint64_t head, tail; /* indices of rows */
    size_t bytes;
    alive *alive;
    size_t n_alive;
    job *filling;   /* has prompts to submit, or NULL */
    uint64_t index; /* lines read, blank ones not counted */
    uint64_t left;  /* rows of the piece that are not read */
    bool end;
    uint64_t budget, n_draw; /* lines that may be read before the next step */
    uint64_t steps;
    corun_stats stats;
} state;

corun_status pump_arrival_parse(const char *text, pump_arrival *out)
{
    char *end;
    const char *digits = text;
    *out = (pump_arrival){.kind = PUMP_ALL};
    if (strcmp(text, "all") == 0) return CORUN_OK;
    out->kind = PUMP_GROUP;
    if (strncmp(text, "seed:", 5) == 0) {
        out->kind = PUMP_RANDOM;
        digits = text + 5;
    }
    out->n = strtoull(digits, &end, 10);
    if (!*digits || *end || strspn(digits, "0123456789") != strlen(digits) || strlen(digits) > 18 ||
        (out->kind == PUMP_GROUP && out->n == 0))
        FAIL(CORUN_EINVAL, "--arrival %s: not all, a number of lines or seed:NUMBER", text);
    return CORUN_OK;
}

static uint64_t mix(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xBF58476D1CE4E5B9u;
    x ^= x >> 27;
    x *= 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

static void draw_budget(state *s)
{
    const pump_arrival *a = &s->p->arrival;
    if (a->kind == PUMP_ALL)
        s->budget = UINT64_MAX;
    else if (a->kind == PUMP_GROUP)
        s->budget = a->n;
    else
        s->budget = mix(a->n + ++s->n_draw * 0x9E3779B97F4A7C15u) % 9;
}

static bool has_room(const state *s)
{
    if (s->head == s->tail) return true;
    return s->tail - s->head < PUMP_MAX_ROWS && s->bytes < PUMP_MAX_BYTES;
}

/* Hands a finished row on. */
static corun_status pass_on(state *s, entry *at)
{
    const char *message = at->j->message ? at->j->message : "";
    if (s->p->out) TRY(results_add(s->p->out, &at->r, message, at->row.data));
    s->bytes -= at->bytes;
    at->bytes = 0;
    buf_free(&at->row);
    return CORUN_OK;
}

/* A job that is done becomes its row. */
static corun_status finish(state *s, entry *at)
{
    buf_init(&at->row, JOB_MAX_ROW);
    if (s->p->engine) TRY(feed_row(&s->p->kind, at->j, s->p->model, &at->row));
    s->bytes += at->row.len;
    s->bytes -= at->bytes;
    at->bytes = at->row.len;
    at->r.http = at->j->http;
    at->r.n_message = at->j->message ? (uint32_t)strlen(at->j->message) : 0;
    at->r.n_row = at->row.len;
    at->finished = true;
    s->p->report->n_done++;
    job_release(at->j);
    return s->p->out && s->p->out->journal ? pass_on(s, at) : CORUN_OK;
}

/* Reports the rows at the head that are done, and hands them on if that must be in order. */
static corun_status drain(state *s)
{
    for (; s->head < s->tail; s->head++) {
        entry *at = &s->ring[s->head % PUMP_MAX_ROWS];
        if (!at->finished && !job_done(at->j)) break;
        if (!at->finished) TRY(finish(s, at));
        TRY(report_row(s->p->report, at->j));
        if (at->bytes) TRY(pass_on(s, at));
        job_free(at->j);
        *at = (entry){0};
    }
    return CORUN_OK;
}

/* Ends what the engine still holds of a job that has failed. */
static corun_status drop(state *s, const job *j)
{
    for (size_t i = 0; i < s->n_alive;) {
        if (s->alive[i].j != j) {
            i++;
            continue;
        }
        TRY(corun_cancel(s->p->engine, s->alive[i].id));
        s->alive[i] = s->alive[--s->n_alive];
    }
    return CORUN_OK;
}

/* Submits prompts of the job that is being filled, as far as the window goes. */
static corun_status submit(state *s)
{
    job *j = s->filling;
    while (j->n_submitted < j->n_prompt && s->n_alive < s->p->window) {
        corun_request r;
        uint64_t id;
        job_request(j, j->n_submitted, &r);
        corun_status st = corun_submit(s->p->engine, &r, &id);
        if (st == CORUN_EINVAL || st == CORUN_ECAPACITY || st == CORUN_EUNSUPPORTED ||
            st == CORUN_EFORMAT) {
            job_fail(j, 400, NULL, "%s", corun_last_error());
            s->filling = NULL;
            return drop(s, j);
        }
        TRY(st);
        s->alive[s->n_alive++] = (alive){id, j, j->n_submitted++, s->tail - 1};
    }
    if (j->n_submitted == j->n_prompt) s->filling = NULL;
    return CORUN_OK;
}

/* The row of the line just read, if an earlier run has finished it. */
static corun_status find_row(state *s, journal_row *r, bool *found)
{
    journal_row was;
    TRY(results_find(s->p->out, r->index, &was, found));
    if (!*found) return CORUN_OK;
    if (was.line_no != r->line_no || was.input.hi != r->input.hi || was.input.lo != r->input.lo)
        FAIL(CORUN_EINVAL,
             "%s: line %llu, or one before it, is not what the journal's run has read. Give the "
             "same input to go on, --restart to start over",
             s->p->out->at.journal, (unsigned long long)r->line_no);
    *r = was;
    return CORUN_OK;
}

/* The job of a row that an earlier run has finished: what its report needs. */
static corun_status restore(state *s, job *j, const journal_row *r)
{
    buf text;
    buf_init(&text, JOURNAL_MAX_MESSAGE);
    corun_status st = journal_message(s->p->out->journal, r, &text);
    if (st == CORUN_OK) st = job_restore(j, r->http, text.data, text.len);
    buf_free(&text);
    s->p->report->n_done++;
    s->p->report->n_restored++;
    return st;
}

/* Makes the job of the line that was just read. *j stays NULL when it is another shard's. */
static corun_status make_job(state *s, job **j, bool mine, const journal_row *r, bool found)
{
    TRY(feed_job(&s->feed, j));
    if (found) return restore(s, *j, r);
    if (mine) return (*j)->http == 200 ? s->p->kind.prepare(*j, s->p->model) : CORUN_OK;
    job_free(*j);
    *j = NULL;
    return CORUN_OK;
}

/* The next line that asks for a row; before the first one of a piece its header. */
static corun_status next_line(state *s)
{
    feed *f = &s->feed;
    TRY(feed_next(f));
    if (!s->p->pieces) return CORUN_OK;
    if (s->left == 0 && f->what != LINES_END) {
        piece now;
        TRY(piece_read(&now, &f->seen, f->line.data, f->line.len, f->line_no));
        s->left = now.rows;
        lines_renumber(f->in, now.line);
        TRY(feed_next(f));
    }
    if (s->left > 0 && f->what == LINES_END)
        FAIL(CORUN_EFORMAT, "the input ends inside a piece: %llu rows are missing",
             (unsigned long long)s->left);
    s->left -= s->left > 0;
    return CORUN_OK;
}

/* Reads the next line of this shard into the ring. */
static corun_status take_line(state *s)
{
    pump *p = s->p;
    TRY(next_line(s));
    journal_row r = {.index = s->tail, .line_no = s->feed.line_no};
    if (s->feed.what == LINES_END) {
        s->end = true;
        return CORUN_OK;
    }
    bool mine = s->index++ % p->n_shard == p->shard, found = false;
    job *j = NULL;
    if (mine && p->out && p->out->journal) {
        r.input = lines_digest(p->in);
        TRY(find_row(s, &r, &found));
    }
    corun_status st = make_job(s, &j, mine, &r, found);
    if (st != CORUN_OK) job_free(j);
    if (st != CORUN_OK || !j) return st;
    entry *at = &s->ring[s->tail++ % PUMP_MAX_ROWS];
    *at =
        (entry){.j = j, .finished = found, .bytes = found ? 0 : 4 * s->feed.line.len + 512, .r = r};
    s->bytes += at->bytes;
    if (found || j->http != 200) return CORUN_OK;
    if (p->engine) {
        s->filling = j;
        return CORUN_OK;
    }
    j->n_open = 0; /* only checked: nothing to wait for */
    for (size_t i = 0; i < j->n_prompt; i++) p->report->n_checked += j->prompt[i].n_token;
    return CORUN_OK;
}

static corun_status fill(state *s)
{
    for (;;) {
        if (s->p->stop()) return CORUN_OK;
        if (s->filling) TRY(submit(s));
        if (s->filling || s->end || s->budget == 0 || s->n_alive == s->p->window || !has_room(s))
            return CORUN_OK;
        if (s->n_alive && !lines_ready(s->p->in)) return CORUN_OK; /* what is alive goes on */
        TRY(drain(s)); /* before reading, which may wait */
        uint64_t before = s->index;
        TRY(take_line(s));
        if (s->index != before && s->budget != UINT64_MAX) s->budget--;
    }
}

static corun_status handle(state *s, const corun_event *e)
{
    if (e->kind == CORUN_EVENT_IDLE && s->n_alive)
        FAIL(CORUN_EINTERNAL, "the engine is idle, %zu requests wait", (size_t)s->n_alive);
    if (e->kind == CORUN_EVENT_NONE || e->kind == CORUN_EVENT_IDLE) return CORUN_OK;
    size_t i = 0;
    while (i < s->n_alive && s->alive[i].id != e->id) i++;
    if (i == s->n_alive)
        FAIL(CORUN_EINTERNAL, "an event of request %llu, which is not alive",
             (unsigned long long)e->id);
    alive *a = &s->alive[i];
    job *j = a->j;
    entry *at = &s->ring[a->index % PUMP_MAX_ROWS];
    TRY(job_event(j, a->prompt, e));
    if (j->prompt[a->prompt].n_open == 0) *a = s->alive[--s->n_alive];
    return job_done(j) ? finish(s, at) : CORUN_OK;
}

static corun_status one_event(state *s)
{
    corun_event e;
    TRY(corun_next(s->p->engine, &e));
    TRY(handle(s, &e));
    TRY(corun_engine_stats(s->p->engine, &s->stats));
    uint64_t steps = s->stats.steps_prefill + s->stats.steps_decode + s->stats.steps_mixed;
    if (steps != s->steps) {
        s->steps = steps;
        draw_budget(s);
    }
    report_tick(s->p->report, &s->stats);
    return results_tick(s->p->out);
}

static corun_status run(state *s)
{
    draw_budget(s);
    while (!s->p->stop()) {
        TRY(fill(s));
        TRY(drain(s));
        if (s->n_alive == 0) {
            if (s->end && !s->filling) return CORUN_OK;
            if (s->budget == 0) s->budget = 1; /* nothing runs: time goes on */
            continue;
        }
        TRY(one_event(s));
    }
    return CORUN_OK;
}

corun_status pump_run(pump *p)
{
    state s = {.p = p};
    feed_init(&s.feed, p->in, &p->kind);
    corun_status st = CORUN_ENOMEM;
    if (MEM_NEW(s.ring, PUMP_MAX_ROWS) && MEM_NEW(s.alive, p->window)) st = run(&s);
    for (; s.ring && s.head < s.tail; s.head++) {
        buf_free(&s.ring[s.head % PUMP_MAX_ROWS].row);
        job_free(s.ring[s.head % PUMP_MAX_ROWS].j);
    }
    mem_free(s.ring);
    mem_free(s.alive);
    feed_free(&s.feed);
    return st;
}
