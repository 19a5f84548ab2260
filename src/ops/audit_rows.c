/* audit_rows.c - tries the ops that treat each token by itself: embed, norm, products, silu_mul,
 * logits. Invariant: a token's inputs depend on its content alone. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "ops/audit_impl.h"

/* One form of an op: widths in elements; 0: not there. */
typedef struct form {
    ops_op op;
    const char *what;
    int32_t in[2];     /* bf16 elements of a row of a->in[i] */
    size_t out[2];     /* bytes of a row of a->out[i] */
    bool out_wanted;   /* rows of out[0] are the wanted ones */
    bool in_wanted;    /* rows of in[0] are the wanted ones */
    bool changes_in;   /* in[0] is an output too */
    int32_t max_chunk; /* logits: wanted rows of one call; 0: no logits */
    corun_status (*run)(audit *a, const struct form *f);
    ops_weight *w;
    ops_between *between; /* weights, and buffers that are not compared */
} form;

static const float eps = 1e-5f;

static corun_status run_embed(audit *a, const form *f)
{
    return a->o->embed(a->o, f->w, a->out[0]);
}

static corun_status run_norm(audit *a, const form *f)
{
    return a->o->norm(a->o, f->out_wanted ? OPS_ROWS_WANT : OPS_ROWS_TOK, a->in[0],
                      f->in[1] ? a->in[1] : NULL, f->w, eps, a->out[0]);
}

static corun_status run_matmul(audit *a, const form *f)
{
    TRY(a->o->matmul(a->o, OPS_ROWS_TOK, f->w, a->in[0], OPS_F32, a->out[0]));
    return a->o->matmul(a->o, OPS_ROWS_TOK, f->w, a->in[0], OPS_BF16, a->out[1]);
}

static corun_status run_silu(audit *a, const form *f)
{
    (void)f;
    return a->o->silu_mul(a->o, a->in[0], a->out[0]);
}

/* What a step of the model does between two attentions: at once where the backend can. */
static corun_status run_between(audit *a, const form *f)
{
    ops_between b = *f->between;
    b.h = a->in[0], b.attn = a->in[1], b.y = a->out[0], b.qkv = a->out[1];
    return ops_run_between(a->o, &b);
}

/* ---- one scene --------------------------------------------------------------------------------
 */

static corun_status put_inputs(audit *a, const form *f)
{
    const audit_scene *c = &a->sc;
    for (int k = 0; k < 2; k++) {
        if (!f->in[k]) continue;
        bool wanted = k == 0 && f->in_wanted;
        audit_copy to = audit_copy_of(a, 0, a->in[k], (size_t)f->in[k] * 2,
                                      wanted ? a->o->n_want : a->o->n_tok);
        for (int32_t i = 0; i < c->n_tok; i++) {
            if ((wanted ? c->want_at[i] : c->at[i]) < 0) continue;
            TRY(audit_put(a, &to, audit_values(a, c->content[i], (uint32_t)k)));
        }
        TRY(audit_put_end(a, &to));
    }
    return CORUN_OK;
}

static corun_status poison(audit *a, const form *f, int byte)
{
    for (int k = 0; k < 2; k++)
        if (f->out[k]) TRY(audit_put_same(a, a->out[k], f->out[k], a->sc.n_tok, byte));
    return CORUN_OK;
}

/* poisoned: whether the buffer is spoiled first. */
static corun_status note_logits(audit *a, const form *f, bool poisoned)
{
    const audit_scene *c = &a->sc;
    int32_t n_want = a->o->n_want, token = 0;
    size_t bytes = (size_t)a->spec->dims.n_vocab * sizeof(float);
    for (int32_t first = 0; first < n_want; first += f->max_chunk) {
        int32_t n = n_want - first < f->max_chunk ? n_want - first : f->max_chunk;
        memset(a->row, 0x7f, bytes);
        for (int32_t i = 0; poisoned && i < n; i++)
            TRY(a->o->logits_put(a->o, i, (float *)(void *)a->row));
        TRY(a->o->logits(a->o, f->w, a->in[0], first, n));
        for (int32_t i = 0; i < n; i++, token++) {
            while (c->want_at[token] < 0) token++;
            TRY(a->o->logits_get(a->o, i, (float *)(void *)a->row));
            TRY(audit_note(a, 0, token, 0, a->row, bytes));
        }
    }
    return CORUN_OK;
}

static corun_status note_rows(audit *a, const form *f)
{
    const audit_scene *c = &a->sc;
    const size_t bytes[3] = {f->out[0], f->out[1], f->changes_in ? (size_t)f->in[0] * 2 : 0};
    void *const dev[3] = {a->out[0], a->out[1], a->in[0]};
    audit_copy from[3];
    for (int k = 0; k < 3; k++)
        if (bytes[k])
            from[k] = audit_copy_of(a, k, dev[k], bytes[k],
                                    k < 2 && f->out_wanted ? a->o->n_want : a->o->n_tok);
    for (int32_t i = 0; i < c->n_tok; i++) {
        if (c->content[i] < 0) continue;
        for (int k = 0; k < 3; k++) {
            const void *row;
            if (!bytes[k]) continue;
            TRY(audit_get(a, &from[k], k < 2 && f->out_wanted ? c->want_at[i] : c->at[i], &row));
            TRY(audit_note(a, 0, i, (uint32_t)k, row, bytes[k]));
        }
    }
    return CORUN_OK;
}

static corun_status try_scene(audit *a, const form *f, int32_t times)
{
    TRY(audit_scene_put(a));
    for (int32_t t = 0; t < times; t++) {
        TRY(put_inputs(a, f));
        TRY(poison(a, f, t % 2 ? 0x5a : 0xa5));
        if (f->max_chunk) {
            TRY(note_logits(a, f, t > 0));
            continue;
        }
        TRY(f->run(a, f));
        TRY(note_rows(a, f));
    }
    return CORUN_OK;
}

/* ---- the scenes -------------------------------------------------------------------------------
 */

typedef struct beside {
    int32_t first, rotate; /* row r holds content first + (r + rotate) mod n */
    int32_t other;         /* 0, or what every second row holds instead */
    int32_t parity, keep;  /* which of the rows; keep > 0: all but row keep - 1 are `other` */
    int32_t far;           /* positions of the others */
} beside;

static void add_decode_rows(audit *a, int32_t n, beside b)
{
    int32_t last = a->len - 1;
    for (int32_t r = 0; r < n; r++) {
        int32_t content = b.first + (r + b.rotate) % n;
        bool other = b.other && (b.keep ? r != b.keep - 1 : r % 2 == b.parity);
        if (other) content = b.other;
        int32_t pos = other ? b.far % (last + 1) : content % (last + 1);
        int32_t slot = (r + 2 * b.rotate) % a->conf.n_slot;
        audit_scene_row(a, slot, pos, 1, content, a->perm);
    }
}

static corun_status try_decode(audit *a, const form *f, int32_t n, beside b, int32_t times)
{
    audit_scene_begin(a, STEP_DECODE);
    add_decode_rows(a, n, b);
    return try_scene(a, f, times);
}

/* n tokens of a prompt from `from` on. */
static corun_status try_prefill(audit *a, const form *f, int32_t from, int32_t n, int32_t times)
{
    audit_scene_begin(a, STEP_PREFILL);
    audit_scene_row(a, STEP_NO_SLOT, from, n, from, a->perm);
    return try_scene(a, f, times);
}

/* The first n tokens of a prompt before or behind decode rows. */
static corun_status try_mixed(audit *a, const form *f, int32_t n, int32_t before, int32_t behind,
                              beside b)
{
    audit_scene_begin(a, STEP_MIXED);
    add_decode_rows(a, before, b);
    audit_scene_row(a, STEP_NO_SLOT, 0, n, 0, a->perm);
    add_decode_rows(a, behind, b);
    return try_scene(a, f, 1);
}

/* Tokens that the slots drew last, instead of ids of the host. */
static corun_status try_slot_tokens(audit *a, const form *f)
{
    audit_scene_begin(a, STEP_DECODE);
    add_decode_rows(a, a->spec->width, (beside){.rotate = 1});
    for (int32_t r = 0; r < a->spec->width; r++) {
        a->sc.row[r].tok_first = STEP_TOK_SLOT;
        ops_slot s = {.repetition = 1,
                      .top_p = 1,
                      .n_top = -1,
                      .n_draw_max = a->spec->dims.n_vocab,
                      .output = &a->sc.tok[r],
                      .n_output = 1};
        TRY(a->o->slot_put(a->o, a->sc.row[r].slot, &s));
    }
    return try_scene(a, f, 1);
}

static corun_status decode_scenes(audit *a, const form *f)
{
    int32_t w = a->spec->width;
    TRY(try_decode(a, f, w, (beside){0}, a->n_repeat));
    static const int32_t other[] = {AUDIT_ZERO, AUDIT_HUGE, AUDIT_NAN, AUDIT_OTHER, AUDIT_DEAD};
    for (int32_t i = 0; i < 5; i++)
        for (int32_t parity = 0; parity < 2; parity++) {
            if (!a->spec->full && parity != i % 2) continue;
            beside b = {.rotate = i, .other = other[i], .parity = parity, .far = 97 * i};
            if (w > 1) TRY(try_decode(a, f, w, b, 1));
        }
    TRY(try_decode(a, f, w, (beside){.rotate = 1}, 1));
    TRY(try_decode(a, f, w, (beside){.rotate = w / 2}, 1));
    if (f->op == OPS_OP_EMBED) TRY(try_slot_tokens(a, f));
    TRY(try_decode(a, f, w, (beside){.other = AUDIT_DEAD, .keep = (w + 1) / 2}, 1));
    TRY(try_decode(a, f, w, (beside){.rotate = w - 1, .other = AUDIT_NAN, .keep = w}, 1));
    for (int32_t i = 0; i < a->n_count; i++) TRY(try_decode(a, f, a->count[i], (beside){0}, 1));
    for (int32_t i = 0; i < 3; i++) /* M = 1 for more contents */
        TRY(try_decode(a, f, 1, (beside){.first = (w - 1) * i / 2}, a->n_repeat));
    return CORUN_OK;
}

static corun_status prefill_scenes(audit *a, const form *f)
{
    int32_t w = a->spec->width, room = f->max_chunk ? w + 3 : a->conf.max_tok - w;
    for (int32_t i = 0; i < a->n_prefill; i++) {
        int32_t n = a->prefill[i] < room ? a->prefill[i] : room;
        if (i > 0 && f->max_chunk) break;
        TRY(try_prefill(a, f, 0, n, a->n_repeat));
        int32_t cut = n * 3 / 7 | 1;
        if (n < 3) continue;
        TRY(try_prefill(a, f, 0, cut, 1));
        TRY(try_prefill(a, f, cut, n - cut, 1));
        if (i > 0 && !a->spec->full) continue;
        TRY(try_mixed(a, f, cut, w, 0, (beside){0}));
        TRY(try_mixed(a, f, cut, 0, w, (beside){0}));
        TRY(try_mixed(a, f, cut, w, 0, (beside){.other = AUDIT_NAN}));
        TRY(try_mixed(a, f, cut, w, 0, (beside){.other = AUDIT_HUGE, .far = 77, .parity = 1}));
        for (int32_t k = 0; a->spec->full && k < n; k += w) /* each of them in a decode step */
            TRY(try_decode(a, f, n - k < w ? n - k : w, (beside){.first = k}, 1));
    }
    return CORUN_OK;
}

static corun_status try_form(audit *a, const form *f)
{
    double begin = clock_seconds();
    a->want = f->out_wanted || f->in_wanted ? STEP_WANT_ALL : STEP_WANT_NONE;
    TRY(audit_begin(a, 0, f->op, f->what));
    TRY(decode_scenes(a, f));
    TRY(prefill_scenes(a, f));
    audit_end(a, begin);
    return CORUN_OK;
}

/* ---- the forms --------------------------------------------------------------------------------
 */

static corun_status try_sets(audit *a, const form *f)
{
    for (int s = 0; s < OPS_N_SET; s++) {
        TRY(audit_use_set(a, (ops_set)s));
        TRY(try_form(a, f));
    }
    return CORUN_OK;
}

static corun_status try_norms(audit *a)
{
    int32_t h = a->spec->dims.n_embd;
    form f = {.op = OPS_OP_NORM, .in = {h}, .out = {(size_t)h * 2}, .run = run_norm};
    TRY(audit_weight(a, 1, h, false, &f.w));
    f.what = "first";
    corun_status st = try_sets(a, &f);
    f.what = "with residual";
    f.in[1] = h;
    f.changes_in = true;
    if (st == CORUN_OK) st = try_sets(a, &f);
    f.what = "of wanted rows";
    f.changes_in = false;
    f.out_wanted = true;
    if (st == CORUN_OK) st = try_sets(a, &f);
    a->o->weight_close(a->o, f.w);
    return st;
}

static corun_status try_matmul(audit *a, int64_t n_out, int64_t n_in, bool bias)
{
    char what[48];
    snprintf(what, sizeof what, "%lld x %lld%s", (long long)n_out, (long long)n_in,
             bias ? " with bias" : "");
    form f = {.op = OPS_OP_MATMUL,
              .what = what,
              .in = {(int32_t)n_in},
              .out = {(size_t)n_out * 4, (size_t)n_out * 2},
              .run = run_matmul};
    TRY(audit_weight(a, n_out, n_in, bias, &f.w));
    corun_status st = try_sets(a, &f);
    a->o->weight_close(a->o, f.w);
    return st;
}

/* The table of token rows, as embedding and as head. */
static corun_status try_vocabulary(audit *a)
{
    const ops_dims *d = &a->spec->dims;
    form f = {.op = OPS_OP_EMBED, .what = "", .out = {(size_t)d->n_embd * 2}, .run = run_embed};
    TRY(audit_weight(a, d->n_vocab, d->n_embd, false, &f.w));
    corun_status st = try_sets(a, &f);
    char what[48];
    snprintf(what, sizeof what, "%d x %d", d->n_vocab, d->n_embd);
    form head = {.op = OPS_OP_LOGITS,
                 .what = what,
                 .in = {d->n_embd},
                 .in_wanted = true,
                 .max_chunk = a->conf.logit_rows,
                 .w = f.w};
    if (st == CORUN_OK) st = try_sets(a, &head);
    a->o->weight_close(a->o, f.w);
    return st;
}

static corun_status open_between(audit *a, const ops_product *p, const bool *bias, form *f)
{
    const ops_dims *d = &a->spec->dims;
    ops_between *b = f->between;
    ops_weight *w[OPS_PER_LAYER] = {0}, *gain[2] = {0};
    size_t rows = (size_t)a->conf.max_tok * sizeof(uint16_t);
    corun_status st = CORUN_OK;
    for (int i = 0; i < OPS_PER_LAYER && st == CORUN_OK; i++)
        st = audit_weight(a, p[i].n_out, p[i].n_in, bias[i], &w[i]);
    for (int i = 0; i < 2 && st == CORUN_OK; i++)
        st = audit_weight(a, 1, d->n_embd, false, &gain[i]);
    b->o = w[OPS_O], b->gate_up = w[OPS_GATE_UP], b->down = w[OPS_DOWN];
    b->next_qkv = w[OPS_QKV], b->ffn_norm = gain[0], b->next_norm = gain[1];
    b->eps = eps;
    TRY(st);
    TRY(a->o->dev_alloc(a->o, rows * (size_t)d->n_embd, &b->x));
    TRY(a->o->dev_alloc(a->o, rows * (size_t)d->n_ff, &b->act));
    return a->o->dev_alloc(a->o, 2 * rows * (size_t)d->n_ff, &b->pair);
}

/* Where the backend has it: a layer's part of any number of rows, in steps of few and of many. */
static corun_status try_between(audit *a, const ops_product *p, const bool *bias)
{
    const ops_dims *d = &a->spec->dims;
    ops *o = a->o;
    ops_between b = {0};
    form f = {.op = OPS_OP_MATMUL,
              .what = "between attentions",
              .in = {d->n_embd, (int32_t)p[OPS_O].n_in},
              .out = {(size_t)d->n_embd * 2, (size_t)p[OPS_QKV].n_out * 2},
              .changes_in = true,
              .run = run_between,
              .between = &b};
    if (!o->between) return CORUN_OK;
    corun_status st = open_between(a, p, bias, &f);
    if (st == CORUN_OK) st = try_sets(a, &f);
    const ops_weight *const all[] = {b.o, b.gate_up, b.down, b.next_qkv, b.ffn_norm, b.next_norm};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        o->weight_close(o, (ops_weight *)(uintptr_t)all[i]);
    o->dev_free(o, b.x);
    o->dev_free(o, b.act);
    o->dev_free(o, b.pair);
    return st;
}

corun_status audit_rows(audit *a)
{
    const audit_spec *s = a->spec;
    const ops_dims *d = &s->dims;
    const bool bias[OPS_PER_LAYER] = {s->qkv_bias, s->o_bias, s->mlp_bias, s->mlp_bias};
    ops_product p[OPS_N_PRODUCT];
    ops_products(d, p);
    for (int32_t i = 0; i < a->conf.n_page; i++) a->perm[i] = i; /* no op here reads a page */
    TRY(try_vocabulary(a));
    TRY(try_norms(a));
    for (int i = 0; i < OPS_PER_LAYER; i++) {
        bool again = false;
        for (int k = 0; k < i; k++)
            again |= p[k].n_out == p[i].n_out && p[k].n_in == p[i].n_in && bias[k] == bias[i];
        if (!again) TRY(try_matmul(a, p[i].n_out, p[i].n_in, bias[i]));
    }
    TRY(try_between(a, p, bias));
    form silu = {.op = OPS_OP_SILU_MUL,
                 .what = "",
                 .in = {2 * d->n_ff},
                 .out = {(size_t)d->n_ff * 2},
                 .run = run_silu};
    return try_sets(a, &silu);
}
