/* model_fake.c - a model without weights, to test everything around one.
 *
 * Each cached position holds a 16-byte entry in its KV page: a hash of what a kernel of the fake's
 * level may depend on. The logits of a position are a hash of the entries of all positions up to
 * it, read back from the pages. So a wrong page, a stale entry, a wrong token or position, and (at
 * the lower levels) a schedule that is not the request's own give other tokens.
 * Invariant: at level `phase` the logits are a function of the tokens alone. */
#include <string.h>

#include "model/model.h"

enum { FAKE_VOCAB = 272, FAKE_WIDTH = 64, FAKE_CTX = 32768 };

typedef struct fake {
    model base;
    ops_level prefill, decode;
    ops_weight *embed;
    void *h;         /* dev: embedded tokens */
    uint16_t *token; /* [max_tok][FAKE_WIDTH] host copy */
    char *page;      /* one page */
    digest *want;    /* [max_want] */
    digest_stream *running;
} fake;

/* Row r of the embedding spells r: so the real embed op tells which token a row has. */
static corun_status read_embed(void *arg, int64_t row, int64_t n, void *out)
{
    (void)arg;
    uint16_t *o = out;
    for (int64_t r = row; r < row + n; r++, o += FAKE_WIDTH) {
        memset(o, 0, FAKE_WIDTH * sizeof *o);
        float low = (float)(r & 127), high = (float)(r >> 7);
        uint32_t bits;
        memcpy(&bits, &low, 4);
        o[0] = (uint16_t)(bits >> 16); /* integers below 256 are exact in bf16 */
        memcpy(&bits, &high, 4);
        o[1] = (uint16_t)(bits >> 16);
    }
    return CORUN_OK;
}

static int32_t token_of(const uint16_t *h)
{
    float v[2];
    for (int i = 0; i < 2; i++) {
        uint32_t bits = (uint32_t)h[i] << 16;
        memcpy(&v[i], &bits, 4);
    }
    return (int32_t)v[0] + 128 * (int32_t)v[1];
}

/* What an entry is a hash of: unused fields stay 0. */
typedef struct cause {
    int32_t token, pos;           /* phase */
    int32_t decode, first, q_len; /* batch: what wrote it */
    int32_t n_row, n_tok;         /* position: the step's shape */
    int32_t slot, row;            /* run: place, ... */
    uint64_t neighbours;          /* ... and the others */
} cause;

static digest entry_of(const fake *f, const step *s, int32_t r, int32_t token, int32_t pos,
                       uint64_t neighbours)
{
    const step_row *w = &s->row[r];
    bool decode = w->slot != STEP_NO_SLOT;
    ops_level level = decode ? f->decode : f->prefill;
    cause c;
    memset(&c, 0, sizeof c);
    c.token = token;
    c.pos = pos;
    if (level < OPS_LEVEL_PHASE) {
        c.decode = decode;
        c.first = decode ? 0 : w->pos;
        c.q_len = w->q_len;
    }
    if (level < OPS_LEVEL_BATCH) {
        c.n_row = s->n_row;
        for (int32_t i = 0; i < s->n_row; i++) c.n_tok += s->row[i].q_len;
    }
    if (level < OPS_LEVEL_POSITION) {
        c.slot = w->slot;
        c.row = r;
        c.neighbours = neighbours;
    }
    return digest_of(&c, sizeof c);
}

/* Writes the entries of a row's tokens into its pages. */
static corun_status write_row(fake *f, const step *s, int32_t r, const uint16_t *h,
                              uint64_t neighbours)
{
    const step_row *w = &s->row[r];
    ops *o = f->base.o;
    int32_t p = o->conf.page_tokens, held = -1;
    for (int32_t i = 0; i < w->q_len; i++) {
        int32_t pos = w->pos + i, page = w->page[pos / p];
        if (page != held) {
            if (held >= 0) TRY(o->page_put(o, held, f->page));
            TRY(o->page_get(o, page, f->page));
            held = page;
        }
        digest e = entry_of(f, s, r, token_of(h + (size_t)i * FAKE_WIDTH), pos, neighbours);
        memcpy(f->page + (size_t)(pos % p) * sizeof e, &e, sizeof e);
    }
    return held >= 0 ? o->page_put(o, held, f->page) : CORUN_OK;
}

/* State after each position that is wanted: a running digest over all entries up to it. */
static corun_status read_row(fake *f, const step_row *w, int32_t *n_want)
{
    ops *o = f->base.o;
    int32_t p = o->conf.page_tokens;
    if (w->want == STEP_WANT_NONE) return CORUN_OK;
    digest_stream *d = f->running;
    digest_reset(d);
    corun_status st = CORUN_OK;
    for (int32_t pos = 0; pos < w->pos + w->q_len && st == CORUN_OK; pos++) {
        if (pos % p == 0) st = o->page_get(o, w->page[pos / p], f->page);
        digest_add(d, f->page + (size_t)(pos % p) * sizeof(digest), sizeof(digest));
        bool last = pos == w->pos + w->q_len - 1;
        if (last || (w->want == STEP_WANT_ALL && pos >= w->pos))
            f->want[(*n_want)++] = digest_value(d);
    }
    return st;
}

static uint64_t hash_neighbours(const step *s)
{
    uint64_t h = 0;
    for (int32_t r = 0; r < s->n_row; r++) {
        int64_t place[4] = {s->row[r].pos, s->row[r].q_len, s->row[r].slot, (int64_t)h};
        h = digest_of(place, sizeof place).lo;
    }
    return h;
}

static corun_status forward(model *m, const step *s)
{
    fake *f = (fake *)m;
    ops *o = m->o;
    TRY(o->step_put(o, s));
    TRY(o->embed(o, f->embed, f->h));
    size_t row_bytes = FAKE_WIDTH * sizeof *f->token;
    TRY(o->dev_get(o, f->h, 0, f->token, (size_t)o->n_tok * row_bytes));
    uint64_t neighbours = hash_neighbours(s);
    int32_t n_want = 0;
    const uint16_t *h = f->token;
    for (int32_t r = 0; r < s->n_row; r++) {
        if (s->row[r].seq < 0) continue;
        TRY(write_row(f, s, r, h, neighbours));
        TRY(read_row(f, &s->row[r], &n_want));
        h += (size_t)s->row[r].q_len * FAKE_WIDTH;
    }
    if (n_want != o->n_want)
        FAIL(CORUN_EINTERNAL, "fake model: %d wanted rows, the backend has %d", n_want, o->n_want);
    return CORUN_OK;
}

static corun_status logits(model *m, int32_t first, int32_t n)
{
    fake *f = (fake *)m;
    float row[FAKE_VOCAB];
    for (int32_t r = 0; r < n; r++) {
        for (int32_t i = 0; i < FAKE_VOCAB; i += 4) {
            uint64_t key[3] = {f->want[first + r].hi, f->want[first + r].lo, (uint64_t)i};
            uint64_t v = digest_of(key, sizeof key).lo;
            for (int k = 0; k < 4; k++, v >>= 16) row[i + k] = (float)(v & 0xffff) / 8192 - 4;
        }
        TRY(m->o->logits_put(m->o, r, row));
    }
    return CORUN_OK;
}

static void free_bufs(fake *f)
{
    f->base.o->dev_free(f->base.o, f->h);
    mem_free(f->token);
    mem_free(f->page);
    mem_free(f->want);
    digest_close(f->running);
    f->running = NULL;
    f->h = NULL;
    f->token = NULL;
    f->page = NULL;
    f->want = NULL;
}

static corun_status configure(model *m, const ops_conf *c)
{
    fake *f = (fake *)m;
    free_bufs(f);
    TRY(m->o->configure(m->o, c));
    size_t rows = (size_t)c->max_tok * FAKE_WIDTH;
    TRY(m->o->dev_alloc(m->o, rows * sizeof *f->token, &f->h));
    if (!MEM_NEW(f->token, rows) || !MEM_NEW(f->want, (size_t)c->max_want) ||
        !MEM_NEW(f->page, (size_t)m->o->page_bytes(m->o)) || !(f->running = digest_open()))
        return CORUN_ENOMEM;
    return CORUN_OK;
}

static void close_fake(model *m)
{
    fake *f = (fake *)m;
    free_bufs(f);
    m->o->weight_close(m->o, f->embed);
    m->o->close(m->o);
    mem_free(f);
}

corun_status model_open_fake(model **out, ops_level prefill, ops_level decode,
                             const ops_open_opts *oo)
{
    *out = NULL;
    ops_dims d = {.n_layer = 1,
                  .n_embd = FAKE_WIDTH,
                  .n_head = 1,
                  .n_kv = 1,
                  .d_head = FAKE_WIDTH,
                  .n_ff = FAKE_WIDTH,
                  .n_vocab = FAKE_VOCAB};
    fake *f = mem_alloc(1, sizeof *f, "fake model");
    if (!f) return CORUN_ENOMEM;
    f->prefill = prefill;
    f->decode = decode;
    f->base = (model){.fake = true,
                      .configure = configure,
                      .forward = forward,
                      .logits = logits,
                      .close = close_fake};
    config *g = &f->base.cfg;
    *g = (config){.n_layer = 1,
                  .n_embd = FAKE_WIDTH,
                  .n_head = 1,
                  .n_kv = 1,
                  .d_head = FAKE_WIDTH,
                  .n_ff = FAKE_WIDTH,
                  .n_vocab = FAKE_VOCAB,
                  .n_ctx = FAKE_CTX,
                  .eps = 1e-5f,
                  .tied = true,
                  .theta = 10000,
                  .bos = 256,
                  .eos = {257},
                  .n_eos = 1,
                  .pad = -1,
                  .temperature = 1,
                  .top_p = 1,
                  .min_p = 0,
                  .repetition_penalty = 1,
                  .top_k = 0,
                  .max_new_tokens = -1};
    strcpy(g->family_name, "fake");
    int32_t modes[2] = {(int32_t)prefill, (int32_t)decode};
    f->base.weights = digest_of(modes, sizeof modes);
    corun_status st = ops_open_cpu(&f->base.o, &d, oo);
    if (st != CORUN_OK) {
        mem_free(f);
        return st;
    }
    ops_weight_spec w = {.name = "fake embedding",
                         .dtype = OPS_BF16,
                         .n_out = FAKE_VOCAB,
                         .n_in = FAKE_WIDTH,
                         .read = read_embed};
    st = f->base.o->weight_open(f->base.o, &w, &f->embed);
    if (st != CORUN_OK) {
        close_fake(&f->base);
        return st;
    }
    f->base.n_param = FAKE_VOCAB * FAKE_WIDTH;
    *out = &f->base;
    return CORUN_OK;
}
