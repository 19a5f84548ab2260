/* step.c - the step as arrays on the device, and the recording of decode shapes.
 *
 * A decode step is filled up with dead rows to one of few widths, so that few graphs serve all
 * steps; under the planner of fixed shapes its rows, dead ones included, are the same for every
 * step and so is the width. Invariant: the arrays keep their addresses from configure to
 * configure, and the pinned copy is rewritten only after a kernel has read it. */
#include <cuda_runtime_api.h>
#include <string.h>

#include "base/fault.h"
#include "ops/cuda/attention.h"
#include "ops/cuda/backend.h"

#define CUDA(call, what) TRY(gpu_status((int)(call), (what)))

/* ---- arrays -------------------------------------------------------------------------------- */

/* The same places in the device's block and in the host's. */
static void lay_out(gpu_step *s, int32_t *p)
{
    s->tok_id = p, p += s->max_tok;
    s->tok_slot = p, p += s->max_tok;
    s->tok_pos = p, p += s->max_tok;
    s->tok_row = p, p += s->max_tok;
    s->row_tok = p, p += s->max_row + 1;
    s->row_pos = p, p += s->max_row + 1;
    s->row_len = p, p += s->max_row + 1;
    s->want_tok = p, p += s->max_want;
    s->page = p;
}

corun_status cuda_steps_open(cuda *c)
{
    const ops_conf *f = &c->base.conf;
    c->s = (gpu_step){.max_row = f->max_row,
                      .max_tok = f->max_tok,
                      .max_want = f->max_want,
                      .max_page = c->r.max_page};
    size_t n = 4 * (size_t)f->max_tok + 3 * ((size_t)f->max_row + 1) + (size_t)f->max_want +
               (size_t)f->max_row * (size_t)c->r.max_page;
    TRY(gpu_alloc(&c->g, (void **)&c->dev_step, n * sizeof *c->dev_step, "arrays of the step"));
    TRY(gpu_alloc_host((void **)&c->host_step, n * sizeof *c->host_step, "arrays of the step"));
    cudaEvent_t e;
    CUDA(cudaEventCreateWithFlags(&e, cudaEventDisableTiming), "event");
    c->step_sent = e;
    lay_out(&c->s, c->dev_step);
    return CORUN_OK;
}

void cuda_steps_close(cuda *c)
{
    cuda_graphs_drop(c);
    if (c->step_sent) cudaEventDestroy(c->step_sent);
    gpu_free(c->dev_step);
    gpu_free_host(c->host_step);
    c->step_sent = NULL;
    c->dev_step = c->host_step = NULL;
}

/* The width of a decode shape of n rows: 1, 2, 4, then multiples of 8, of 32 from 128 on, of 128
 * from 1,024 on; at most the rows of the configuration. */
static int32_t width_of(const ops_conf *f, int32_t n)
{
    int32_t unit = n <= 128 ? 8 : n <= 1024 ? 32 : 128;
    int32_t w = n <= 2 ? n : n <= 4 ? 4 : (n + unit - 1) / unit * unit;
    int32_t most = f->max_row < f->max_tok ? f->max_row : f->max_tok;
    return w < most ? w : most;
}

/* Tokens that sequences reach, rounded up: 512, 1,024, 2,048, ... */
static int32_t end_of(const ops_conf *f, int32_t end)
{
    int32_t e = 512;
    while (e < end && e < 1 << 29) e *= 2;
    return e < f->n_ctx ? e : f->n_ctx;
}

static void fill_rows(const rowset *r, gpu_step *s, int32_t *max_pages)
{
    *max_pages = 0;
    s->max_q = 1;
    for (int32_t i = 0; i < r->n_seq; i++) {
        int32_t first = r->seq_tok[i], len = r->seq_tok[i + 1] - first, pos = r->pos[first];
        int32_t pages = (pos + len + r->conf.page_tokens - 1) / r->conf.page_tokens;
        s->row_tok[i] = first;
        s->row_pos[i] = pos;
        s->row_len[i] = len;
        if (len > s->max_q) s->max_q = len;
        if (pos + len > s->max_end) s->max_end = pos + len;
        if (pages > *max_pages) *max_pages = pages;
        memcpy(s->page + (size_t)i * (size_t)s->max_page, rows_pages(r, i),
               (size_t)pages * sizeof *s->page);
    }
    s->row_tok[r->n_seq] = r->n_tok;
    size_t n = (size_t)r->n_tok * sizeof(int32_t);
    memcpy(s->tok_id, r->id, n);
    memcpy(s->tok_slot, r->slot, n);
    memcpy(s->tok_pos, r->pos, n);
    memcpy(s->tok_row, r->seq, n);
    memcpy(s->want_tok, r->want, (size_t)r->n_want * sizeof(int32_t));
}

/* Dead rows up to the width; wanted rows likewise where every live row is wanted. */
static void fill_dead(gpu_step *s, int32_t width)
{
    bool all = s->n_want == s->n_row;
    for (; s->n_row < width; s->n_row++, s->n_tok++) {
        s->tok_id[s->n_tok] = s->tok_slot[s->n_tok] = s->tok_pos[s->n_tok] = 0;
        s->tok_row[s->n_tok] = -1;
        s->row_pos[s->n_row] = -1;
        s->row_len[s->n_row] = 1;
        s->row_tok[s->n_row + 1] = s->n_tok + 1;
    }
    while (all && s->n_want < width && s->n_want < s->max_want) s->want_tok[s->n_want++] = 0;
}

/* Planted: a step of much context cuts the attention of all its decode rows in another way. */
static void plant_load_split(const cuda *c)
{
    int64_t load = 0;
    for (int32_t i = 0; i < c->r.n_seq; i++) load += c->r.pos[c->r.seq_tok[i]] + 1;
    bool heavy = c->r.n_seq > 1 && load > 1536;
    gpu_attn_decode_set(c->attn, heavy ? OPS_SET_FIXED : c->base.conf.set[OPS_OP_ATTN_DECODE]);
}

corun_status cuda_step_put(ops *o, const step *s)
{
    cuda *c = cuda_of(o);
    if (!c->configured) FAIL(CORUN_EINVAL, "step before configure");
    TRY(gpu_use(&c->g));
    corun_status st = rows_put(&c->r, s);
    o->n_tok = c->r.n_tok;
    o->n_want = c->r.n_want;
    TRY(st);
    CUDA(cudaEventSynchronize(c->step_sent), "the step before");
    gpu_step h = c->s;
    lay_out(&h, c->host_step);
    h.kind = s->kind;
    h.n_row = c->r.n_seq;
    h.n_tok = c->r.n_tok;
    h.n_want = c->r.n_want;
    h.max_end = 0;
    int32_t pages;
    fill_rows(&c->r, &h, &pages);
    bool shaped = s->kind == STEP_DECODE && h.n_tok == h.n_row && h.n_tok > 0;
    if (shaped) {
        fill_dead(&h, width_of(&o->conf, s->n_row));
        h.max_end = end_of(&o->conf, h.max_end);
    }
    gpu_step *d = &c->s;
    TRY(gpu_step_in(&c->g, d, &h, pages));
    CUDA(cudaEventRecord(c->step_sent, c->g.stream), "event");
    d->kind = h.kind;
    d->n_row = h.n_row;
    d->n_tok = h.n_tok;
    d->n_want = h.n_want;
    d->max_q = h.max_q;
    d->max_end = h.max_end;
    c->shaped = shaped;
    if (FAULT(LOAD_SPLIT)) plant_load_split(c);
    return h.n_tok ? gpu_attn_plan(c->attn, d) : CORUN_OK;
}

/* ---- recording ----------------------------------------------------------------------------- */

void cuda_graphs_drop(cuda *c)
{
    if (c->n_graph) gpu_sync(&c->g, "graphs of steps"); /* one may be running */
    for (int32_t i = 0; i < c->n_graph; i++)
        if (c->graph[i].exec) cudaGraphExecDestroy(c->graph[i].exec);
    c->n_graph = c->next_graph = 0;
    c->recording = NULL;
}

static cuda_graph *find(cuda *c)
{
    for (int32_t i = 0; i < c->n_graph; i++)
        if (c->graph[i].n_tok == c->s.n_tok && c->graph[i].n_want == c->s.n_want &&
            c->graph[i].max_end == c->s.max_end)
            return &c->graph[i];
    return NULL;
}

/* A place for a new shape: a free one, else the one that was made longest ago. */
static cuda_graph *place(cuda *c)
{
    cuda_graph *g;
    if (c->n_graph < CUDA_MAX_GRAPH) {
        g = &c->graph[c->n_graph++];
    } else {
        g = &c->graph[c->next_graph++ % CUDA_MAX_GRAPH];
        gpu_sync(&c->g, "graphs of steps");
        if (g->exec) cudaGraphExecDestroy(g->exec);
    }
    *g = (cuda_graph){.n_tok = c->s.n_tok, .n_want = c->s.n_want, .max_end = c->s.max_end};
    return g;
}

static corun_status launch(const cuda *c, const cuda_graph *g)
{
    if (g->between) TRY(gpu_between_enter(c->between));
    corun_status st = gpu_status((int)cudaGraphLaunch(g->exec, c->g.stream), "graph of the step");
    return g->between ? gpu_between_leave(c->between, st) : st;
}

corun_status cuda_record(ops *o, bool *replay)
{
    cuda *c = cuda_of(o);
    *replay = false;
    c->recording = NULL;
    if (!c->shaped) return CORUN_OK;
    cuda_graph *g = find(c);
    if (!g) {
        place(c); /* its first step runs as it is: plans are made, kernels are loaded */
        return CORUN_OK;
    }
    if (g->exec) {
        *replay = true;
        return launch(c, g);
    }
    CUDA(cudaStreamBeginCapture(c->g.stream, cudaStreamCaptureModeThreadLocal), "recording");
    c->recording = g;
    return CORUN_OK;
}

corun_status cuda_record_end(ops *o, corun_status st)
{
    cuda *c = cuda_of(o);
    cuda_graph *g = c->recording;
    if (!g) return st;
    c->recording = NULL;
    cudaGraph_t made = NULL;
    cudaError_t e = cudaStreamEndCapture(c->g.stream, &made);
    if (st == CORUN_OK) st = gpu_status((int)e, "recording of the step");
    cudaGraphExec_t exec = NULL;
    if (st == CORUN_OK)
        st = gpu_status((int)cudaGraphInstantiate(&exec, made, 0), "graph of the step");
    if (made) cudaGraphDestroy(made);
    TRY(st);
    g->exec = exec;
    return launch(c, g);
}
