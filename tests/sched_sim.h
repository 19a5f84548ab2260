/* sched_sim.h - a device and an engine in integers, to run the scheduler against.
 *
 * Each cell of a page holds a hash of all tokens up to it. Every row reads all its earlier cells
 * and every move carries cells and (without a prefix cache, whose pages stay) poisons what it left,
 * so a page that is stale, used twice, wrongly copied, moved or found shows at the row that reads
 * it. Requests of one family begin with the same tokens;
 * those of two families differ in the first page and go on alike. */
#ifndef TESTS_SCHED_SIM_H
#define TESTS_SCHED_SIM_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sched/sched.h"

#define SIM_PT      16
#define SIM_POISON  0xdeadULL
#define SIM_MAX_REQ 512
#define SIM_NEVER   (1 << 30)

typedef struct sim_req {
    uint64_t id;
    int32_t n_token, max_new, n_sample, seq;
    uint64_t family; /* of its first n_shared tokens */
    int32_t n_shared;
    bool want_all, cancelled, finished;
    int32_t end_at[SCHED_MAX_SAMPLE]; /* draws after which the engine ends the sample */
    int32_t n_row[SCHED_MAX_SAMPLE];  /* decode rows planned */
    int32_t n_drawn[SCHED_MAX_SAMPLE], n_noted[SCHED_MAX_SAMPLE];
    bool ended[SCHED_MAX_SAMPLE]; /* noted */
    int32_t pos, n_chunk;         /* prompt tokens (the most) and rows planned */
    int32_t first_pos;            /* of its first prompt row */
    int32_t n_scored;             /* prompt tokens whose logits were wanted */
    int32_t n_again;              /* rows of what was computed before */
    int32_t n_prompt_flight;
    int32_t n_out;                    /* times moved out (its first prompt page) */
    uint64_t trace[SCHED_MAX_SAMPLE]; /* hash of a sample's steps: chunks, positions, shapes */
} sim_req;

typedef struct sim_flight {
    uint64_t id;
    int32_t n, n_row, max;
    sched_result *res;
    int32_t *row_seq; /* of prompt rows */
    step st;          /* its arrays must stay as they are until it is noted */
    uint64_t hash;
} sim_flight;

typedef struct sim {
    sched *s;
    sched_opts o;
    sched_limits lim;
    uint64_t (*page)[SIM_PT], (*swap)[SIM_PT];
    uint64_t (*wrote)[SIM_PT]; /* step and row that wrote the cell */
    int32_t *slot_tok, *slot_seq;
    uint64_t *slot_used; /* last step with a lane in it */
    sim_req req[SIM_MAX_REQ];
    int32_t n_req;
    int32_t *place; /* place -> req */
    sim_flight flight[2];
    int32_t first, n_flight;
    uint64_t rng;
    sched_plan last; /* the newest plan */
    uint64_t family; /* of requests added next, 0: their own */
    int32_t n_shared;
    int64_t n_step, n_out, n_in, n_copy, n_dead, n_live_rows, n_after_end;
    int32_t max_run, max_admitted;
    bool fails, fail_all; /* some draws fail; each that ends a sample does, by max_new too */
    bool quiet_check;     /* skip sched_check (long runs) */
} sim;

static uint64_t sim_seed; /* shown with a failure */

static inline uint64_t sim_mix(uint64_t a, uint64_t b)
{
    uint64_t x = a * 0x9e3779b97f4a7c15ULL ^ (b + 0x7f4a7c15ULL) * 0xbf58476d1ce4e5b9ULL;
    x ^= x >> 31;
    x *= 0x94d049bb133111ebULL;
    x ^= x >> 29;
    return x * 0xd6e8feb86659fd93ULL ^ x >> 32;
}

/* Counter RNG: the state is a key and a count. */
static inline uint64_t sim_rand(sim *m)
{
    m->rng++;
    return sim_mix(m->rng >> 20, m->rng);
}
static inline int32_t sim_below(sim *m, int32_t n) { return (int32_t)(sim_rand(m) >> 33) % n; }

#define SIM_FAIL(...)                                                                              \
    do {                                                                                           \
        fprintf(stderr, "sim: " __VA_ARGS__);                                                      \
        fprintf(stderr, " (seed %llu)\n", (unsigned long long)sim_seed);                           \
        fail();                                                                                    \
    } while (0)

static inline int32_t sim_token(const sim_req *r, int32_t sample, int32_t pos)
{
    if (pos < r->n_token && pos < r->n_shared)
        return (int32_t)(sim_mix(pos < SIM_PT ? r->family : 0, (uint64_t)pos) >> 34);
    if (pos < r->n_token) sample = -1;
    return (int32_t)(sim_mix(sim_mix(r->id, (uint64_t)(sample + 1)), (uint64_t)pos) >> 34);
}

/* The cell at pos, from the one before it (0 at the first). */
static inline uint64_t sim_cell(const sim_req *r, int32_t sample, int32_t pos, uint64_t before)
{
    return sim_mix(before + 1, (uint64_t)sim_token(r, sample, pos));
}

static inline bool sim_dynamic(const sim *m) { return m->o.planner == SCHED_PLAN_DYNAMIC; }

static inline void sim_open(sim *m, const sched_opts *o, uint64_t seed)
{
    *m = (sim){.o = *o, .rng = seed << 20};
    assert_int_equal(sched_open(&m->s, o), CORUN_OK);
    sched_limits_get(o, &m->lim);
    m->page = calloc((size_t)o->n_page, sizeof *m->page);
    m->wrote = calloc((size_t)o->n_page, sizeof *m->wrote);
    m->swap = calloc((size_t)o->n_swap + 1, sizeof *m->swap);
    m->slot_tok = calloc((size_t)(o->n_slot + m->lim.max_lane), sizeof *m->slot_tok);
    m->slot_seq = calloc((size_t)o->n_slot, sizeof *m->slot_seq);
    m->slot_used = calloc((size_t)(o->n_slot + m->lim.max_lane), sizeof *m->slot_used);
    m->place = calloc((size_t)o->max_request, sizeof *m->place);
    for (int i = 0; i < 2; i++) {
        m->flight[i].res = calloc((size_t)m->lim.max_lane, sizeof(sched_result));
        m->flight[i].row_seq = calloc((size_t)m->lim.max_row, sizeof(int32_t));
    }
    for (int32_t i = 0; i < o->n_slot; i++) m->slot_seq[i] = -1;
}

static inline void sim_close(sim *m)
{
    sched_close(m->s);
    free(m->page);
    free(m->wrote);
    free(m->swap);
    free(m->slot_tok);
    free(m->slot_seq);
    free(m->slot_used);
    free(m->place);
    for (int i = 0; i < 2; i++) {
        free(m->flight[i].res);
        free(m->flight[i].row_seq);
    }
}

static inline void sim_check(const sim *m)
{
    if (!m->quiet_check && sched_check(m->s) != CORUN_OK) SIM_FAIL("check: %s", corun_last_error());
}

/* The place in m->req, or -1 with the status. */
static inline int32_t sim_add(sim *m, uint64_t id, int32_t n_token, int32_t max_new,
                              int32_t n_sample, bool want_all, corun_status *st)
{
    assert_true(m->n_req < SIM_MAX_REQ);
    sim_req *r = &m->req[m->n_req];
    *r = (sim_req){.id = id,
                   .n_token = n_token,
                   .max_new = max_new,
                   .n_sample = n_sample,
                   .want_all = want_all,
                   .family = m->family,
                   .n_shared = m->family ? m->n_shared : 0};
    int32_t *tok = calloc((size_t)n_token, sizeof *tok);
    for (int32_t i = 0; i < n_token; i++) tok[i] = sim_token(r, -1, i);
    sched_request q = {id, tok, n_token, max_new, n_sample, want_all};
    *st = sched_add(m->s, &q, &r->seq);
    free(tok);
    sim_check(m);
    if (*st != CORUN_OK) return -1;
    assert_int_equal(r->seq % SCHED_MAX_SAMPLE, 0);
    m->place[r->seq / SCHED_MAX_SAMPLE] = m->n_req;
    for (int32_t i = 0; i < SCHED_MAX_SAMPLE; i++) r->end_at[i] = SIM_NEVER;
    return m->n_req++;
}

static inline int32_t sim_must_add(sim *m, uint64_t id, int32_t n_token, int32_t max_new,
                                   int32_t n_sample)
{
    corun_status st;
    int32_t i = sim_add(m, id, n_token, max_new, n_sample, false, &st);
    if (i < 0) SIM_FAIL("add: %s", corun_last_error());
    return i;
}

static inline sim_req *sim_req_of(sim *m, int32_t seq)
{
    return &m->req[m->place[seq / SCHED_MAX_SAMPLE]];
}

static inline void sim_move(sim *m, const sched_move *v)
{
    bool from_swap = v->kind == SCHED_IN, to_swap = v->kind == SCHED_OUT;
    int32_t n_src = from_swap ? m->o.n_swap : m->o.n_page;
    int32_t n_dst = to_swap ? m->o.n_swap : m->o.n_page;
    if (v->src < !from_swap || v->src >= n_src || v->dst < !to_swap || v->dst >= n_dst)
        SIM_FAIL("move %d from %d to %d", (int)v->kind, v->src, v->dst);
    uint64_t *src = from_swap ? m->swap[v->src] : m->page[v->src];
    uint64_t *dst = to_swap ? m->swap[v->dst] : m->page[v->dst];
    if (to_swap)
        for (int32_t i = 0; i < m->n_req; i++)
            m->req[i].n_out += src[0] == sim_cell(&m->req[i], -1, 0, 0);
    memcpy(dst, src, sizeof *m->page);
    if (v->kind == SCHED_IN || (to_swap && m->o.reuse == SCHED_REUSE_NONE))
        for (int i = 0; i < SIM_PT; i++) src[i] = SIM_POISON;
    m->n_copy += v->kind == SCHED_COPY;
    m->n_out += to_swap;
    m->n_in += from_swap;
}

static inline void sim_dead_row(sim *m, const step *st, int32_t at)
{
    const step_row *w = &st->row[at];
    bool shape = st->kind == STEP_DECODE && m->o.planner == SCHED_PLAN_CORUN && w->q_len == 1;
    bool none = w->slot == STEP_NO_SLOT && !w->pos && !w->page && !w->n_page;
    bool token = w->tok_first >= 0 && w->tok_first < st->n_tok && !st->tok[w->tok_first];
    if (!shape || !none || !token || w->want != STEP_WANT_NONE) SIM_FAIL("row %d is not dead", at);
    m->n_dead++;
}

static inline void sim_prompt_row(sim *m, const step *st, int32_t at)
{
    const step_row *w = &st->row[at];
    sim_req *r = sim_req_of(m, w->seq);
    int32_t left = r->n_token - w->pos;
    bool jump = m->o.recompute || (m->o.reuse && !r->n_chunk); /* its cells tell if it may */
    if (w->seq % SCHED_MAX_SAMPLE || (w->pos != r->pos && !jump) || w->q_len > left)
        SIM_FAIL("prompt row %d at %d, %d long, %d were done", at, w->pos, w->q_len, r->pos);
    if (m->o.cut && (w->pos % m->o.cut || w->q_len != (left < m->o.cut ? left : m->o.cut)))
        SIM_FAIL("prompt row %d at %d, %d long, is off its pieces", at, w->pos, w->q_len);
    if (m->o.planner == SCHED_PLAN_CORUN) {
        bool alone = st->n_row == 1 && st->kind == STEP_PREFILL;
        bool grid = w->pos % m->o.chunk == 0 && w->q_len == (left < m->o.chunk ? left : m->o.chunk);
        if (!alone || !grid) SIM_FAIL("prompt row %d is off its grid or not alone", at);
    }
    step_want want = STEP_WANT_NONE;
    if (w->q_len == left && r->max_new) want = STEP_WANT_LAST;
    if (r->want_all) want = STEP_WANT_ALL;
    if (w->pos < r->pos && w->pos + w->q_len <= r->pos) { /* again */
        want = STEP_WANT_NONE;
        r->n_again++;
    }
    if (w->want != want) SIM_FAIL("prompt row %d wants %d", at, (int)w->want);
    if (want == STEP_WANT_ALL && w->pos != r->n_scored)
        SIM_FAIL("prompt row %d scores from %d on, %d were", at, w->pos, r->n_scored);
    if (want == STEP_WANT_ALL) r->n_scored += w->q_len;
    for (const sim_req *e = m->req; e < r && !r->n_chunk; e++)
        if (!e->n_chunk && !e->cancelled) SIM_FAIL("request %d overtakes", (int)r->id);
    if (!r->n_chunk) r->first_pos = w->pos;
    if (r->pos < w->pos + w->q_len) r->pos = w->pos + w->q_len;
    r->n_chunk++;
    r->n_prompt_flight++;
}

/* A row of what a sample wrote before its pages were given up. */
static inline void sim_back_row(sim *m, const step *st, int32_t at)
{
    const step_row *w = &st->row[at];
    sim_req *r = sim_req_of(m, w->seq);
    int32_t sample = w->seq % SCHED_MAX_SAMPLE;
    if (!m->o.recompute || w->want != STEP_WANT_NONE || sample >= r->n_sample || r->ended[sample] ||
        w->pos < r->n_token / SIM_PT * SIM_PT || w->pos + w->q_len > r->n_token + r->n_row[sample])
        SIM_FAIL("row %d computes [%d, %d) of sample %d again", at, w->pos, w->pos + w->q_len,
                 sample);
    r->n_again++;
    r->n_prompt_flight++;
}

static inline void sim_decode_row(sim *m, const step *st, int32_t at)
{
    const step_row *w = &st->row[at];
    sim_req *r = sim_req_of(m, w->seq);
    int32_t sample = w->seq % SCHED_MAX_SAMPLE;
    if (r->ended[sample]) SIM_FAIL("row %d is of a sample that has ended", at);
    if (w->q_len != 1 || w->pos != r->n_token + r->n_row[sample] ||
        w->pos >= r->n_token + r->max_new - 1)
        SIM_FAIL("decode row %d at %d, %d rows before", at, w->pos, r->n_row[sample]);
    if (w->slot >= m->o.n_slot || m->slot_seq[w->slot] != w->seq || w->want != STEP_WANT_LAST)
        SIM_FAIL("decode row %d is not in its slot", at);
    if (m->o.planner == SCHED_PLAN_CORUN && (at != w->slot || st->kind != STEP_DECODE))
        SIM_FAIL("decode row %d is in slot %d", at, w->slot);
    r->n_row[sample]++;
    m->n_live_rows++;
}

static inline void sim_row_pages(const sim *m, const step_row *w)
{
    if (w->n_page != (w->pos + w->q_len + SIM_PT - 1) / SIM_PT)
        SIM_FAIL("a row of %d tokens has %d pages", w->pos + w->q_len, w->n_page);
    for (int32_t j = 0; j < w->n_page; j++) {
        if (w->page[j] < 1 || w->page[j] >= m->o.n_page) SIM_FAIL("a row has page %d", w->page[j]);
        for (int32_t k = 0; k < j; k++)
            if (w->page[j] == w->page[k]) SIM_FAIL("a row has page %d twice", w->page[j]);
    }
}

/* Reads all earlier cells and writes its own. */
static inline void sim_row_cells(sim *m, const step *st, const step_row *w)
{
    const sim_req *r = sim_req_of(m, w->seq);
    int32_t sample = w->seq % SCHED_MAX_SAMPLE;
    uint64_t cell = 0, by = st->id << 20 | (uint64_t)(w - st->row);
    for (int32_t i = 0; i < w->pos; i++) {
        int32_t p = w->page[i / SIM_PT];
        cell = sim_cell(r, sample, i, cell);
        if (m->page[p][i % SIM_PT] != cell)
            SIM_FAIL("request %d sample %d reads a wrong cell at %d", (int)r->id, sample, i);
        if (m->wrote[p][i % SIM_PT] >> 20 == st->id)
            SIM_FAIL("request %d sample %d reads what its step writes at %d", (int)r->id, sample,
                     i);
    }
    for (int32_t i = 0; i < w->q_len; i++) {
        int32_t pos = w->pos + i, tok = -1;
        if (w->tok_first == STEP_TOK_SLOT && w->slot >= 0)
            tok = m->slot_tok[w->slot];
        else if (w->tok_first >= 0 && w->tok_first + i < st->n_tok)
            tok = st->tok[w->tok_first + i];
        if (tok != sim_token(r, sample, pos))
            SIM_FAIL("token %d at %d, not %d", tok, pos, sim_token(r, sample, pos));
        cell = sim_cell(r, sample, pos, cell);
        m->page[w->page[pos / SIM_PT]][pos % SIM_PT] = cell;
        m->wrote[w->page[pos / SIM_PT]][pos % SIM_PT] = by;
    }
}

static inline void sim_row(sim *m, const step *st, int32_t at)
{
    const step_row *w = &st->row[at];
    if (w->seq < 0) {
        sim_dead_row(m, st, at);
        return;
    }
    sim_req *r = sim_req_of(m, w->seq);
    int32_t sample = w->seq % SCHED_MAX_SAMPLE;
    bool prompt = w->slot == STEP_NO_SLOT;
    bool back = prompt && (sample || w->pos + w->q_len > r->n_token ||
                           (m->o.recompute && r->n_drawn[0] && w->want == STEP_WANT_NONE));
    if (r->finished || r->cancelled)
        SIM_FAIL("row %d is of request %d that has ended", at, (int)r->id);
    sim_row_pages(m, w);
    if (back && w->pos + w->q_len > r->n_token)
        sim_back_row(m, st, at);
    else if (back) /* of the prompt, or of a sample's own copy of its end */
        r->n_again++, r->n_prompt_flight++;
    else if (prompt)
        sim_prompt_row(m, st, at);
    else
        sim_decode_row(m, st, at);
    uint64_t shape = m->o.planner == SCHED_PLAN_CORUN ? (uint64_t)st->n_row : 0;
    for (int32_t i = sample; i < (prompt ? r->n_sample : sample + 1); i++)
        r->trace[i] = sim_mix(sim_mix(r->trace[i], (uint64_t)w->pos << 32 | (uint64_t)w->q_len),
                              shape << 1 | prompt);
    sim_row_cells(m, st, w);
}

static inline void sim_lanes(sim *m, const step *st, sim_flight *f)
{
    int32_t n_scratch = 0;
    for (int32_t i = 0; i < st->n_lane; i++) {
        const step_lane *l = &st->lane[i];
        if (l->row < 0 || l->row >= st->n_row) SIM_FAIL("lane %d is of row %d", i, l->row);
        const step_row *w = &st->row[l->row];
        sim_req *r = sim_req_of(m, l->seq);
        int32_t sample = l->seq % SCHED_MAX_SAMPLE;
        if (w->want == STEP_WANT_NONE || w->seq / SCHED_MAX_SAMPLE != l->seq / SCHED_MAX_SAMPLE)
            SIM_FAIL("lane %d is not of its row", i);
        if (sample >= r->n_sample || (w->slot != STEP_NO_SLOT && w->seq != l->seq))
            SIM_FAIL("lane %d is of sample %d", i, sample);
        if (w->pos + w->q_len != r->n_token + r->n_drawn[sample])
            SIM_FAIL("lane %d draws at %d", i, w->pos + w->q_len);
        if (l->slot >= m->o.n_slot) {
            if (w->slot != STEP_NO_SLOT || l->slot != m->o.n_slot + n_scratch++)
                SIM_FAIL("lane %d has scratch slot %d", i, l->slot);
        } else if (m->slot_seq[l->slot] != l->seq ||
                   (w->slot != STEP_NO_SLOT && w->slot != l->slot)) {
            SIM_FAIL("lane %d has the slot of another", i);
        }
        int32_t tok = sim_token(r, sample, r->n_token + r->n_drawn[sample]++);
        m->slot_tok[l->slot] = tok;
        m->slot_used[l->slot] = st->id;
        int32_t end = r->end_at[sample];
        if (m->fail_all && r->max_new < end) end = r->max_new;
        bool failed = m->fails && r->n_drawn[sample] == end && (m->fail_all || tok % 2);
        f->res[f->n++] =
            (sched_result){l->seq, tok, r->n_drawn[sample] >= r->end_at[sample], failed};
    }
}

static inline uint64_t sim_hash_step(const step *st)
{
    uint64_t h = st->id;
    for (int32_t i = 0; i < st->n_row; i++) {
        const step_row *w = &st->row[i];
        h = sim_mix(h, (uint64_t)w->pos << 32 | (uint32_t)w->seq);
        h = sim_mix(h, (uint64_t)w->q_len << 32 | (uint32_t)w->slot);
        h = sim_mix(h, (uint64_t)w->want << 32 | (uint32_t)w->tok_first);
        for (int32_t j = 0; j < w->n_page; j++) h = sim_mix(h, (uint64_t)w->page[j]);
    }
    for (int32_t i = 0; i < st->n_tok; i++) h = sim_mix(h, (uint64_t)st->tok[i]);
    for (int32_t i = 0; i < st->n_lane; i++)
        h = sim_mix(sim_mix(h, (uint64_t)st->lane[i].row << 32 | (uint32_t)st->lane[i].slot),
                    (uint64_t)st->lane[i].seq);
    return h;
}

static inline void sim_run(sim *m, const sched_plan *p)
{
    const step *st = &p->step;
    for (int32_t i = 0; i < p->n_move; i++) sim_move(m, &p->move[i]);
    for (int32_t i = 0; i < p->n_seat; i++) {
        int32_t slot = p->seat[i].slot;
        if (slot < 0 || slot >= m->o.n_slot) SIM_FAIL("seat in slot %d", slot);
        for (int32_t k = 0; k < m->n_flight; k++)
            if (m->slot_used[slot] == m->flight[(m->first + k) % 2].id)
                SIM_FAIL("slot %d is still in flight", slot);
        m->slot_seq[slot] = p->seat[i].seq;
        m->slot_tok[slot] = -2;
    }
    if (!st->n_row) return;
    if (st->n_row > m->lim.max_row || st->n_lane > m->lim.max_lane) SIM_FAIL("step too large");
    sim_flight *f = &m->flight[(m->first + m->n_flight++) % 2];
    f->id = st->id;
    f->n = f->n_row = 0;
    int32_t n_tok = 0, n_live = 0;
    for (int32_t i = 0; i < st->n_row; i++) {
        sim_row(m, st, i);
        n_tok += st->row[i].q_len;
        n_live += st->row[i].seq >= 0;
        if (st->row[i].seq >= 0 && st->row[i].slot == STEP_NO_SLOT)
            f->row_seq[f->n_row++] = st->row[i].seq;
    }
    if (!n_live || n_tok > m->lim.max_tok) SIM_FAIL("step of %d rows, %d tokens", n_live, n_tok);
    if (m->o.planner == SCHED_PLAN_CORUN && st->kind == STEP_DECODE && st->n_row != m->o.n_slot)
        SIM_FAIL("decode step of %d rows", st->n_row);
    if (sim_dynamic(m) && st->kind == STEP_MIXED &&
        n_tok > m->o.chunk + (m->o.cut ? m->o.n_slot : 0))
        SIM_FAIL("mixed step of %d tokens", n_tok);
    sim_lanes(m, st, f);
    f->st = *st;
    f->hash = sim_hash_step(st);
    m->n_step++;
}

static inline void sim_finish(sim_req *r)
{
    bool all = true;
    for (int32_t i = 0; i < r->n_sample; i++) all = all && r->ended[i];
    r->finished = all;
}

/* Plans and runs one step; false when there is none. */
static inline bool sim_plan(sim *m)
{
    mem_guard(true);
    corun_status st = sched_next(m->s, &m->last);
    mem_guard(false);
    if (st != CORUN_OK) SIM_FAIL("next: %s", corun_last_error());
    sim_check(m);
    sim_run(m, &m->last);
    sched_stats t;
    sched_stats_get(m->s, &t);
    if (t.n_seq_running > m->max_run) m->max_run = t.n_seq_running;
    if (t.n_running + t.n_out > m->max_admitted) m->max_admitted = t.n_running + t.n_out;
    return m->last.step.n_row > 0;
}

static inline void sim_note(sim *m)
{
    sim_flight *f = &m->flight[m->first];
    if (sim_hash_step(&f->st) != f->hash) SIM_FAIL("step %d changed in flight", (int)f->id);
    m->first = (m->first + 1) % 2;
    m->n_flight--;
    for (int32_t i = f->n - 1; i > 0; i--) { /* any order */
        int32_t j = sim_below(m, i + 1);
        sched_result t = f->res[i];
        f->res[i] = f->res[j];
        f->res[j] = t;
    }
    for (int32_t i = 0; i < f->n; i++) {
        sim_req *r = sim_req_of(m, f->res[i].seq);
        int32_t sample = f->res[i].seq % SCHED_MAX_SAMPLE;
        if (r->cancelled) continue;
        if (r->ended[sample]) {
            m->n_after_end++;
            continue;
        }
        r->n_noted[sample]++;
        if (f->res[i].ended || r->n_noted[sample] == r->max_new) r->ended[sample] = true;
        sim_finish(r);
    }
    for (int32_t i = 0; i < f->n_row; i++) {
        sim_req *r = sim_req_of(m, f->row_seq[i]);
        if (--r->n_prompt_flight || r->max_new || r->pos < r->n_token || r->cancelled) continue;
        for (int32_t k = 0; k < r->n_sample; k++) r->ended[k] = true;
        sim_finish(r);
    }
    mem_guard(true);
    corun_status st = sched_note(m->s, f->id, f->res, f->n);
    mem_guard(false);
    if (st != CORUN_OK) SIM_FAIL("note: %s", corun_last_error());
    sim_check(m);
}

static inline void sim_cancel(sim *m, int32_t i)
{
    mem_guard(true);
    corun_status st = sched_cancel(m->s, m->req[i].id);
    mem_guard(false);
    if (st != CORUN_OK) SIM_FAIL("cancel: %s", corun_last_error());
    m->req[i].cancelled = true;
    sim_check(m);
}

/* One turn of the engine's loop, keeping lag steps in flight; false: nothing is left to do. */
static inline bool sim_turn(sim *m)
{
    bool ran = sim_plan(m);
    if (!ran && !m->n_flight) {
        if (!sched_idle(m->s)) SIM_FAIL("nothing to run, and not idle");
        return false;
    }
    if (m->n_flight > (ran ? m->o.lag : 0)) sim_note(m);
    return true;
}

/* All that was asked for was done, and nothing is left behind. */
static inline void sim_check_done(sim *m)
{
    assert_true(sched_idle(m->s));
    sched_stats t;
    sched_stats_get(m->s, &t);
    assert_int_equal(t.page_free, m->o.n_page - 1);
    assert_int_equal(t.swap_free, m->o.n_swap);
    assert_int_equal(t.n_seq_running + t.n_running + t.n_out + t.n_waiting, 0);
    assert_int_equal(t.n_copy, m->n_copy);
    for (int32_t i = 0; i < m->n_req; i++) {
        const sim_req *r = &m->req[i];
        if (r->cancelled) continue;
        if (!r->finished || r->pos != r->n_token || r->n_scored != (r->want_all ? r->n_token : 0))
            SIM_FAIL("request %d is not finished", (int)r->id);
        for (int32_t k = 0; k < r->n_sample; k++) {
            int32_t want = r->end_at[k] < r->max_new ? r->end_at[k] : r->max_new;
            if (r->n_noted[k] != want)
                SIM_FAIL("request %d sample %d: %d draws, not %d", (int)r->id, k, r->n_noted[k],
                         want);
        }
    }
}

static inline void sim_run_all(sim *m)
{
    while (sim_turn(m)) assert_true(m->n_step < 1000000);
    sim_check_done(m);
}

/* A small corun schedule, the base of directed streams. */
static inline sched_opts sim_opts(void)
{
    return (sched_opts){.planner = SCHED_PLAN_CORUN,
                        .n_slot = 4,
                        .n_ctx = 256,
                        .page_tokens = SIM_PT,
                        .n_page = 65,
                        .n_swap = 64,
                        .chunk = 32,
                        .max_request = 16,
                        .lag = 0};
}

static inline sched_stats sim_stats(const sim *m)
{
    sched_stats t;
    sched_stats_get(m->s, &t);
    return t;
}

#endif
