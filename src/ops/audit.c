/* audit.c - the frame of the audit: contents, scenes, and the book that finds the level.
 * Invariant: contents depend on their number alone, so the digests of two machines compare. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "ops/audit_impl.h"
#include "ops/rows.h"

uint64_t audit_mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static uint64_t mix2(uint64_t a, uint64_t b) { return audit_mix(audit_mix(a) ^ b); }

/* ---- contents ------------------------------------------------------------------------------- */

static corun_status make_tables(audit *a)
{
    size_t n = AUDIT_TABLE + (size_t)a->widest;
    for (int t = 0; t < 3; t++) {
        if (!(a->table[t] = mem_alloc(n, sizeof(uint16_t), "audit contents"))) return CORUN_ENOMEM;
        if (!(a->plain[t] = mem_alloc((size_t)a->widest, sizeof(uint16_t), "audit contents")))
            return CORUN_ENOMEM;
    }
    static const float step_values[4] = {1e8f, 1.0f, -1e8f, 0.37f};
    for (size_t i = 0; i < n; i++) {
        uint64_t r = audit_mix(i % AUDIT_TABLE); /* near enough to normal: a sum of four */
        float f = 0;
        for (int k = 0; k < 4; k++) f += (float)(r >> 16 * k & 0xffff) * 0x1p-16f;
        f = (f - 2.0f) * 1.7f;
        a->table[0][i] = ops_bf16_round(f);
        a->table[1][i] = ops_bf16_round(step_values[audit_mix(r) % 4]);
        a->table[2][i] = ops_bf16_round(6.0f * f);
    }
    for (int32_t i = 0; i < a->widest; i++) {
        a->plain[1][i] = i % 2 ? 0xff00 : 0x7f00; /* -+ 1.7e38 */
        a->plain[2][i] = 0x7fc0;
    }
    return CORUN_OK;
}

const uint16_t *audit_values(const audit *a, int32_t content, uint32_t salt)
{
    if (content == AUDIT_ZERO || content == AUDIT_HUGE) return a->plain[AUDIT_ZERO - content];
    if (content == AUDIT_NAN || content == AUDIT_DEAD) return a->plain[2];
    uint64_t at = mix2((uint64_t)(int64_t)content, salt);
    return a->table[at % 3] + (at >> 8) % AUDIT_TABLE;
}

const uint16_t *audit_window(const audit *a, int table, int32_t content, uint32_t salt)
{
    if (content < 0) return audit_values(a, content, salt);
    return a->table[table] + mix2((uint64_t)content, salt) % AUDIT_TABLE;
}

int32_t audit_token(const audit *a, int32_t content)
{
    return (int32_t)(mix2((uint64_t)(int64_t)content, 99) % (uint64_t)a->spec->dims.n_vocab);
}

typedef struct weight_arg {
    const audit *a;
    int64_t n_out, n_in;
} weight_arg;

static corun_status read_weight(void *arg, int64_t row, int64_t n, void *out)
{
    const weight_arg *w = arg;
    uint16_t *o = out;
    for (int64_t r = row; r < row + n; r++, o += w->n_in) {
        uint64_t at = mix2((uint64_t)r, (uint64_t)(w->n_out * 31 + w->n_in));
        memcpy(o, w->a->table[0] + at % AUDIT_TABLE, (size_t)w->n_in * sizeof *o);
    }
    return CORUN_OK;
}

corun_status audit_weight(audit *a, int64_t n_out, int64_t n_in, bool bias, ops_weight **w)
{
    weight_arg arg = {a, n_out, n_in};
    uint16_t *b = NULL;
    if (bias) {
        if (!MEM_NEW(b, (size_t)n_out)) return CORUN_ENOMEM;
        for (int64_t i = 0; i < n_out; i++)
            b[i] = a->table[0][audit_mix((uint64_t)i + 7) % AUDIT_TABLE];
    }
    ops_weight_spec s = {.name = "audit weights",
                         .dtype = OPS_BF16,
                         .n_out = n_out,
                         .n_in = n_in,
                         .read = read_weight,
                         .arg = &arg,
                         .bias = b};
    corun_status st = a->o->weight_open(a->o, &s, w);
    mem_free(b);
    return st;
}

/* ---- scenes --------------------------------------------------------------------------------- */

void audit_scene_begin(audit *a, step_kind kind)
{
    audit_scene *c = &a->sc;
    c->s = (step){.id = ++a->n_scene, .kind = kind, .row = c->row, .tok = c->tok};
    c->id = a->n_scene;
    c->n_tok = 0;
}

void audit_scene_row(audit *a, int32_t slot, int32_t pos, int32_t q_len, int32_t first,
                     const int32_t *page)
{
    audit_scene *c = &a->sc;
    bool dead = first == AUDIT_DEAD;
    c->row[c->s.n_row] =
        (step_row){.seq = dead ? -1 : c->s.n_row,
                   .slot = dead ? STEP_NO_SLOT : slot,
                   .pos = dead ? 0 : pos,
                   .q_len = q_len,
                   .tok_first = c->n_tok,
                   .page = page,
                   .n_page = (pos + q_len + a->conf.page_tokens - 1) / a->conf.page_tokens,
                   .want = dead ? STEP_WANT_NONE : a->want};
    for (int32_t i = 0; i < q_len; i++) {
        int32_t id = first < 0 ? first : first + i;
        c->owner[c->n_tok] = c->s.n_row;
        c->content[c->n_tok] = id;
        c->tok[c->n_tok++] = audit_token(a, id);
    }
    c->s.n_row++;
    c->s.n_tok = c->n_tok;
}

corun_status audit_scene_put(audit *a)
{
    audit_scene *c = &a->sc;
    ops *o = a->o;
    TRY(o->step_put(o, &c->s));
    int32_t live = 0;
    for (int32_t i = 0; i < c->n_tok; i++) {
        bool dead = c->content[i] == AUDIT_DEAD;
        c->want_at[i] = dead || a->want == STEP_WANT_NONE ? -1 : live;
        c->at[i] = dead ? -1 : live++;
    }
    if (o->n_tok != live) { /* the backend keeps dead rows */
        if (o->n_tok != c->n_tok)
            FAIL(CORUN_EINTERNAL,
                 "audit: the backend has %d tokens of a step of %d, %d of them live", o->n_tok,
                 c->n_tok, live);
        for (int32_t i = 0; i < c->n_tok; i++) c->at[i] = i;
    }
    if (o->n_want != (a->want == STEP_WANT_NONE ? 0 : live))
        FAIL(CORUN_EINTERNAL, "audit: the backend has %d wanted rows, not %d", o->n_want, live);
    return CORUN_OK;
}

/* ---- rows to and from the device ------------------------------------------------------------ */

audit_copy audit_copy_of(audit *a, int stage, void *dev, size_t bytes, int32_t all)
{
    size_t room = a->stage_bytes / bytes;
    return (audit_copy){.dev = dev,
                        .host = a->stage[stage],
                        .bytes = bytes,
                        .room = room < (size_t)all ? (int32_t)room : all,
                        .all = all};
}

corun_status audit_put(audit *a, audit_copy *c, const void *row)
{
    if (c->first + c->n == c->all)
        FAIL(CORUN_EINTERNAL, "audit: more than %d rows to a buffer", c->all);
    memcpy(c->host + (size_t)c->n * c->bytes, row, c->bytes);
    return ++c->n == c->room ? audit_put_end(a, c) : CORUN_OK;
}

corun_status audit_put_end(audit *a, audit_copy *c)
{
    int32_t n = c->n, first = c->first;
    c->first += n;
    c->n = 0;
    return n ? a->o->dev_put(a->o, c->dev, (size_t)first * c->bytes, c->host, (size_t)n * c->bytes)
             : CORUN_OK;
}

corun_status audit_put_same(audit *a, void *dev, size_t bytes, int32_t all, int byte)
{
    size_t left = bytes * (size_t)all, at = 0;
    memset(a->stage[0], byte, left < a->stage_bytes ? left : a->stage_bytes);
    for (size_t n; left; left -= n, at += n) {
        n = left < a->stage_bytes ? left : a->stage_bytes;
        TRY(a->o->dev_put(a->o, dev, at, a->stage[0], n));
    }
    return CORUN_OK;
}

corun_status audit_get(audit *a, audit_copy *c, int32_t at, const void **row)
{
    if (at < 0 || at >= c->all) FAIL(CORUN_EINTERNAL, "audit: row %d of %d", at, c->all);
    if (at < c->first || at >= c->first + c->n) {
        int32_t n = c->all - at < c->room ? c->all - at : c->room;
        c->n = 0;
        TRY(a->o->dev_get(a->o, c->dev, (size_t)at * c->bytes, c->host, (size_t)n * c->bytes));
        c->first = at;
        c->n = n;
    }
    *row = c->host + (size_t)(at - c->first) * c->bytes;
    return CORUN_OK;
}

/* ---- the book ------------------------------------------------------------------------------- */

struct audit_seen {
    uint64_t key; /* 0: free */
    digest d;
    char name[24]; /* of the scene that was first */
};

corun_status audit_begin(audit *a, int which, ops_op op, const char *what)
{
    if (which == 0) {
        a->n_seen = 0;
        memset(a->seen, 0, a->cap_seen * sizeof *a->seen);
        digest_reset(a->bits);
        a->cur[1] = NULL;
        a->apart[0][0] = 0;
    }
    if (a->rep->n == AUDIT_MAX_CASE) FAIL(CORUN_EINTERNAL, "audit: too many cases");
    audit_case *c = &a->rep->c[a->rep->n++];
    *c = (audit_case){
        .op = op, .set = a->set, .level = OPS_LEVEL_PHASE, .declared = a->o->level[a->set][op]};
    snprintf(c->what, sizeof c->what, "%s", what);
    a->cur[which] = c;
    return CORUN_OK;
}

static corun_status grow_book(audit *a)
{
    size_t cap = a->cap_seen ? a->cap_seen * 2 : 4096;
    audit_seen *old = a->seen, *fresh = mem_alloc(cap, sizeof *fresh, "audit notes");
    if (!fresh) return CORUN_ENOMEM;
    for (size_t i = 0; i < a->cap_seen; i++) {
        if (!old[i].key) continue;
        size_t k = old[i].key & (cap - 1);
        while (fresh[k].key) k = (k + 1) & (cap - 1);
        fresh[k] = old[i];
    }
    mem_free(old);
    a->seen = fresh;
    a->cap_seen = cap;
    return CORUN_OK;
}

/* The first note under a key, or a new one. */
static audit_seen *find_note(audit *a, uint64_t key, digest d, const char *name)
{
    size_t k = (key |= 1) & (a->cap_seen - 1);
    while (a->seen[k].key && a->seen[k].key != key) k = (k + 1) & (a->cap_seen - 1);
    audit_seen *s = &a->seen[k];
    if (!s->key) {
        *s = (audit_seen){.key = key, .d = d};
        snprintf(s->name, sizeof s->name, "%s", name);
        a->n_seen++;
    }
    return s;
}

static void lower(audit_case *c, ops_level level, const char *name, const char *than)
{
    if (level >= c->level) return;
    static const char *const what[] = {
        [OPS_LEVEL_NONE] = "not repeatable, or not all of its output is written",
        [OPS_LEVEL_RUN] = "depends on the place or on what stands beside it",
        [OPS_LEVEL_POSITION] = "depends on the number of rows beside it",
        [OPS_LEVEL_BATCH] = "depends on the cut into prefill, chunks and decode"};
    c->level = level;
    snprintf(c->why, sizeof c->why, "%s: %s has other bits than %s", what[level], name, than);
}

corun_status audit_note_key(audit *a, int which, uint64_t key, uint64_t own, uint64_t shape,
                            const char *name, const void *data, size_t bytes)
{
    if (a->n_seen * 2 + 8 > a->cap_seen) TRY(grow_book(a));
    digest d = digest_of(data, bytes);
    audit_case *c = a->cur[which];
    const uint64_t k[] = {mix2(mix2(mix2(key, own), shape), a->sc.id), mix2(mix2(key, own), shape),
                          mix2(key, own), mix2(key, 5 + (uint64_t)which), key};
    for (int i = 0; i < (a->cur[1] ? 5 : 4); i++) {
        size_t n = a->n_seen;
        audit_seen *s = find_note(a, mix2(k[i], (uint64_t)i), d, name);
        if (i == 3 && a->n_seen > n) digest_add(a->bits, &d, sizeof d);
        if (a->n_seen == n && i > 0) c->n_compared++;
        if (s->d.hi == d.hi && s->d.lo == d.lo) continue;
        if (i < 4)
            lower(c, (ops_level)i, name, s->name);
        else if (!a->apart[0][0]) {
            snprintf(a->apart[0], sizeof a->apart[0], "%s", name);
            snprintf(a->apart[1], sizeof a->apart[1], "%s", s->name);
        }
    }
    return CORUN_OK;
}

corun_status audit_note(audit *a, int which, int32_t i, uint32_t part, const void *data,
                        size_t bytes)
{
    static const char *const kinds[] = {"prefill", "decode", "mixed"};
    const audit_scene *c = &a->sc;
    if (c->content[i] < 0) return CORUN_OK;
    const step_row *r = &c->row[c->owner[i]];
    bool decode = r->slot != STEP_NO_SLOT;
    uint64_t own = mix2(decode ? 1 : 2 + (uint64_t)r->pos, (uint64_t)r->q_len);
    uint64_t shape = mix2(mix2((uint64_t)c->s.kind, (uint64_t)c->s.n_row), (uint64_t)c->n_tok);
    char name[24];
    snprintf(name, sizeof name, "%s %dx%d row %d", kinds[c->s.kind], c->s.n_row, r->q_len,
             c->owner[i]);
    return audit_note_key(a, which, mix2((uint64_t)c->content[i], part), own, shape, name, data,
                          bytes);
}

void audit_end(audit *a, double begin)
{
    /* Two cases that differ from each other: one that has a fault by itself is to blame alone. */
    bool blamed =
        !a->cur[1] || a->cur[0]->level < OPS_LEVEL_PHASE || a->cur[1]->level < OPS_LEVEL_PHASE;
    for (int i = 0; i < 2; i++) {
        if (!a->cur[i]) continue;
        if (a->apart[0][0] && !blamed) lower(a->cur[i], OPS_LEVEL_BATCH, a->apart[0], a->apart[1]);
        a->cur[i]->seconds = clock_seconds() - begin;
        a->cur[i]->bits = digest_value(a->bits);
        a->cur[i] = NULL;
    }
}

/* ---- open and close ------------------------------------------------------------------------- */

static int32_t at_most(int32_t a, int32_t b) { return a < b ? a : b; }
static int32_t at_least(int32_t a, int32_t b) { return a > b ? a : b; }

static void add_count(audit *a, int32_t n, int32_t max)
{
    if (n < 1 || n > max || a->n_count == AUDIT_MAX_COUNT) return;
    for (int32_t i = 0; i < a->n_count; i++)
        if (a->count[i] == n) return;
    a->count[a->n_count++] = n;
}

static void choose(audit *a)
{
    static const int32_t quick_count[] = {1, 2, 3, 5, 8, 13}, quick_len[] = {61, 320},
                         full_len[] = {9, 61, 255, 1030};
    static const int32_t far[] = {31,  32,  33,  48,  63,  64,  65, 96,
                                  127, 128, 129, 192, 255, 256, 257};
    const audit_spec *s = a->spec;
    a->n_repeat = s->full ? 5 : 2;
    if (s->full) {
        for (int32_t n = 1; n <= 24; n++) add_count(a, n, 1024);
        for (size_t i = 0; i < sizeof far / sizeof *far; i++)
            add_count(a, far[i], at_least(64, 2 * s->width));
    } else {
        for (size_t i = 0; i < sizeof quick_count / sizeof *quick_count; i++)
            add_count(a, quick_count[i], 1024);
    }
    add_count(a, s->width - 1, 1024);
    a->n_prefill = s->full ? 4 : 2;
    for (int32_t i = 0; i < a->n_prefill; i++)
        a->prefill[i] = at_most(s->full ? full_len[i] : quick_len[i], s->n_ctx);
    a->len = at_most(s->full ? 2100 : 650, s->n_ctx);
}

static corun_status open_scene(audit *a)
{
    audit_scene *c = &a->sc;
    size_t n = (size_t)a->conf.max_tok;
    if (!MEM_NEW(c->row, (size_t)a->conf.max_row) || !MEM_NEW(c->tok, n) ||
        !MEM_NEW(c->content, n) || !MEM_NEW(c->owner, n) || !MEM_NEW(c->at, n) ||
        !MEM_NEW(c->want_at, n) || !MEM_NEW(a->perm, (size_t)a->conf.n_page) ||
        !MEM_NEW(a->table_of, (size_t)a->conf.max_row * (size_t)a->pages))
        return CORUN_ENOMEM;
    return CORUN_OK;
}

static corun_status open_audit(audit *a, const ops *like)
{
    const audit_spec *s = a->spec;
    ops_dims d = s->dims;
    d.n_layer = 1;
    if (!like->twin || like->act_bytes != 2)
        FAIL(CORUN_EUNSUPPORTED, "audit: backend %s cannot be tried apart from a model",
             like->name);
    TRY(like->twin(like, &d, &a->o));
    choose(a);
    int32_t rows = s->width;
    for (int32_t i = 0; i < a->n_count; i++) rows = at_least(rows, a->count[i]);
    int32_t longest = at_least(a->prefill[a->n_prefill - 1], a->len);
    a->pages = (a->len + s->page_tokens - 1) / s->page_tokens;
    a->n_spare = 2;
    a->conf = (ops_conf){.n_ctx = s->n_ctx,
                         .max_tok = longest + rows,
                         .max_row = rows + 2,
                         .max_want = longest + rows,
                         .max_lane = rows,
                         .n_slot = rows + 2,
                         .page_tokens = s->page_tokens,
                         .n_page = at_least(AUDIT_SEQ * a->pages, rows + 2 + a->pages) + a->n_spare,
                         .n_swap = 1,
                         .logit_rows = at_least(16, s->width),
                         .n_top = CORUN_MAX_TOP,
                         .processed_logprobs = s->processed_logprobs};
    a->widest = at_least(at_least(2 * d.n_ff, (d.n_head + 2 * d.n_kv) * d.d_head), d.n_embd);
    TRY(audit_use_set(a, OPS_SET_STANDARD));
    size_t bytes = 4 * (size_t)a->widest, page = (size_t)a->o->page_bytes(a->o);
    if (bytes < page) bytes = page;
    if (bytes < 4 * (size_t)d.n_vocab) bytes = 4 * (size_t)d.n_vocab;
    if (!(a->row = mem_alloc(bytes, 1, "audit row")) || !(a->bits = digest_open()))
        return CORUN_ENOMEM;
    a->stage_bytes = bytes > (size_t)4 << 20 ? bytes : (size_t)4 << 20;
    for (int i = 0; i < 3; i++)
        if (!(a->stage[i] = mem_alloc(a->stage_bytes, 1, "audit rows"))) return CORUN_ENOMEM;
    TRY(open_scene(a));
    TRY(make_tables(a));
    TRY(grow_book(a));
    for (int i = 0; i < 2; i++) {
        size_t in, out, n = (size_t)a->conf.max_tok;
        if (!mem_mul(n, 2 * (size_t)a->widest, &in) || !mem_mul(n, 4 * (size_t)a->widest, &out))
            FAIL(CORUN_EINVAL, "audit: activations do not fit in memory");
        TRY(a->o->dev_alloc(a->o, in, &a->in[i]));
        TRY(a->o->dev_alloc(a->o, out, &a->out[i]));
    }
    return CORUN_OK;
}

static void close_audit(audit *a)
{
    for (int i = 0; i < 3; i++) {
        mem_free(a->table[i]);
        mem_free(a->plain[i]);
        mem_free(a->stage[i]);
    }
    mem_free(a->sc.row);
    mem_free(a->sc.tok);
    mem_free(a->sc.content);
    mem_free(a->sc.owner);
    mem_free(a->sc.at);
    mem_free(a->sc.want_at);
    mem_free(a->perm);
    mem_free(a->table_of);
    mem_free(a->row);
    mem_free(a->seen);
    if (a->bits) digest_close(a->bits);
    if (!a->o) return;
    for (int i = 0; i < 2; i++) {
        if (a->in[i]) a->o->dev_free(a->o, a->in[i]);
        if (a->out[i]) a->o->dev_free(a->o, a->out[i]);
    }
    a->o->close(a->o);
}

corun_status audit_use_set(audit *a, ops_set set)
{
    a->set = set;
    for (int i = 0; i < OPS_N_OP; i++) a->conf.set[i] = set;
    return a->o->configure(a->o, &a->conf);
}

corun_status audit_run(const ops *like, const audit_spec *s, audit_report *out)
{
    double begin = clock_seconds();
    memset(out, 0, sizeof *out);
    if (s->width < 1 || s->n_ctx < 1)
        FAIL(CORUN_EINVAL, "audit: width %d, context %d", s->width, s->n_ctx);
    audit *a = mem_alloc(1, sizeof *a, "audit");
    if (!a) return CORUN_ENOMEM;
    a->spec = s;
    a->rep = out;
    corun_status st;
    TRY_OR_DONE(open_audit(a, like));
    TRY_OR_DONE(audit_rows(a));
    TRY_OR_DONE(audit_attention(a));
    TRY_OR_DONE(audit_sampling(a));
    out->seconds = clock_seconds() - begin;
done:
    close_audit(a);
    mem_free(a);
    return st;
}

const audit_case *audit_weakest(const audit_report *r, ops_set set, ops_op op)
{
    const audit_case *weakest = NULL;
    for (size_t i = 0; i < r->n; i++) {
        const audit_case *c = &r->c[i];
        if (c->op == op && c->set == set && (!weakest || c->level < weakest->level)) weakest = c;
    }
    return weakest;
}

ops_level audit_level(const audit_report *r, ops_set set, ops_op op)
{
    const audit_case *c = audit_weakest(r, set, op);
    if (!c) return OPS_LEVEL_NONE;
    return c->level < c->declared ? c->level : c->declared;
}
