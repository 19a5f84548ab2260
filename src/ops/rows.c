/* rows.c - owns the flat arrays of a step and the checks of dimensions, configurations and steps.
 * Invariant: rows_put writes only what it has checked. */
#include "ops/rows.h"

#include <string.h>

#include "base/mem.h"
#include "base/num.h"

#define MAX_D_HEAD 256

corun_status ops_check_dims(const ops_dims *d)
{
    const struct {
        const char *name;
        int32_t v, max;
    } f[] = {{"n_layer", d->n_layer, 1 << 16},  {"n_embd", d->n_embd, 1 << 20},
             {"n_head", d->n_head, 1 << 16},    {"n_kv", d->n_kv, 1 << 16},
             {"d_head", d->d_head, MAX_D_HEAD}, {"n_ff", d->n_ff, 1 << 24},
             {"n_vocab", d->n_vocab, 1 << 24}};
    for (size_t i = 0; i < sizeof f / sizeof *f; i++)
        if (f[i].v < 1 || f[i].v > f[i].max)
            FAIL(CORUN_EINVAL, "%s is %d, not in 1 ... %d", f[i].name, f[i].v, f[i].max);
    if (d->d_head % 2 != 0) FAIL(CORUN_EINVAL, "d_head is %d, an odd number", d->d_head);
    if (d->n_head % d->n_kv != 0)
        FAIL(CORUN_EINVAL, "n_head %d is no multiple of n_kv %d", d->n_head, d->n_kv);
    return CORUN_OK;
}

corun_status ops_check_conf(const ops_dims *d, const ops_conf *c)
{
    (void)d;
    const struct {
        const char *name;
        int32_t v, min;
    } f[] = {{"n_ctx", c->n_ctx, 1},       {"max_tok", c->max_tok, 1},
             {"max_row", c->max_row, 1},   {"max_want", c->max_want, 1},
             {"max_lane", c->max_lane, 1}, {"n_slot", c->n_slot, 1},
             {"n_page", c->n_page, 1},     {"n_swap", c->n_swap, 0},
             {"n_top", c->n_top, 0},       {"logit_rows", c->logit_rows, 1}};
    for (size_t i = 0; i < sizeof f / sizeof *f; i++)
        if (f[i].v < f[i].min || f[i].v > 1 << 28)
            FAIL(CORUN_EINVAL, "%s is %d, not in %d ... %d", f[i].name, f[i].v, f[i].min, 1 << 28);
    int32_t p = c->page_tokens;
    if (p != 16 && p != 32 && p != 64 && p != 128)
        FAIL(CORUN_EINVAL, "page_tokens is %d, not 16, 32, 64 or 128", p);
    return CORUN_OK;
}

corun_status rows_open(rowset *r, const ops_dims *d, const ops_conf *c)
{
    *r = (rowset){.dims = *d, .conf = *c};
    r->max_page = (c->n_ctx + c->page_tokens - 1) / c->page_tokens;
    size_t n_tok = (size_t)c->max_tok, n_row = (size_t)c->max_row;
    if (!MEM_NEW(r->id, n_tok) || !MEM_NEW(r->slot, n_tok) || !MEM_NEW(r->pos, n_tok) ||
        !MEM_NEW(r->seq, n_tok) || !MEM_NEW(r->want, (size_t)c->max_want) ||
        !MEM_NEW(r->seq_tok, n_row + 1) || !MEM_NEW(r->page, n_row * (size_t)r->max_page)) {
        rows_close(r);
        return CORUN_ENOMEM;
    }
    return CORUN_OK;
}

void rows_close(rowset *r)
{
    mem_free(r->id);
    mem_free(r->slot);
    mem_free(r->pos);
    mem_free(r->seq);
    mem_free(r->want);
    mem_free(r->seq_tok);
    mem_free(r->page);
    *r = (rowset){0};
}

static corun_status check_row(const rowset *r, const step *s, int32_t i)
{
    const step_row *w = &s->row[i];
    const ops_conf *c = &r->conf;
    if (w->q_len < 1 || w->q_len > c->max_tok - r->n_tok)
        FAIL(CORUN_EINVAL, "row %d: q_len %d, room for %d tokens", i, w->q_len,
             c->max_tok - r->n_tok);
    if (w->pos < 0 || w->pos > c->n_ctx - w->q_len)
        FAIL(CORUN_EINVAL, "row %d: tokens %d ... %d, the context is %d", i, w->pos,
             w->pos + w->q_len - 1, c->n_ctx);
    int32_t n_page = (w->pos + w->q_len + c->page_tokens - 1) / c->page_tokens;
    if (w->n_page < n_page) FAIL(CORUN_EINVAL, "row %d: %d pages, needs %d", i, w->n_page, n_page);
    for (int32_t k = 0; k < n_page; k++)
        if (w->page[k] < 0 || w->page[k] >= c->n_page)
            FAIL(CORUN_EINVAL, "row %d: page %d of %d", i, w->page[k], c->n_page);
    if (w->tok_first == STEP_TOK_SLOT) {
        if (w->q_len != 1) FAIL(CORUN_EINVAL, "row %d: %d tokens from a slot", i, w->q_len);
        if (w->slot < 0 || w->slot >= c->n_slot)
            FAIL(CORUN_EINVAL, "row %d: slot %d of %d", i, w->slot, c->n_slot);
        return CORUN_OK;
    }
    if (w->tok_first < 0 || w->tok_first > s->n_tok - w->q_len)
        FAIL(CORUN_EINVAL, "row %d: tokens from %d of %d", i, w->tok_first, s->n_tok);
    for (int32_t t = 0; t < w->q_len; t++) {
        int32_t id = s->tok[w->tok_first + t];
        if (id < 0 || id >= r->dims.n_vocab)
            FAIL(CORUN_EINVAL, "row %d: token id %d of %d", i, id, r->dims.n_vocab);
    }
    return CORUN_OK;
}

static corun_status put_row(rowset *r, const step *s, int32_t i)
{
    const step_row *w = &s->row[i];
    TRY(check_row(r, s, i));
    int32_t n_page = (w->pos + w->q_len + r->conf.page_tokens - 1) / r->conf.page_tokens;
    memcpy(r->page + (int64_t)r->n_seq * r->max_page, w->page, (size_t)n_page * sizeof *r->page);
    int32_t n_want = w->want == STEP_WANT_ALL ? w->q_len : w->want == STEP_WANT_LAST ? 1 : 0;
    if (n_want > r->conf.max_want - r->n_want)
        FAIL(CORUN_EINVAL, "row %d: more than %d wanted rows", i, r->conf.max_want);
    for (int32_t k = 0; k < n_want; k++) r->want[r->n_want++] = r->n_tok + w->q_len - n_want + k;
    for (int32_t t = 0; t < w->q_len; t++, r->n_tok++) {
        r->id[r->n_tok] = w->tok_first == STEP_TOK_SLOT ? -1 : s->tok[w->tok_first + t];
        r->slot[r->n_tok] = w->tok_first == STEP_TOK_SLOT ? w->slot : -1;
        r->pos[r->n_tok] = w->pos + t;
        r->seq[r->n_tok] = r->n_seq;
    }
    r->seq_tok[++r->n_seq] = r->n_tok;
    return CORUN_OK;
}

corun_status rows_put(rowset *r, const step *s)
{
    r->n_tok = r->n_want = r->n_seq = 0;
    if (s->n_row < 0 || s->n_row > r->conf.max_row)
        FAIL(CORUN_EINVAL, "%d rows, configured for %d", s->n_row, r->conf.max_row);
    r->seq_tok[0] = 0;
    for (int32_t i = 0; i < s->n_row; i++) {
        if (s->row[i].seq < 0) continue;
        corun_status st = put_row(r, s, i);
        if (st == CORUN_OK) continue;
        r->n_tok = r->n_want = r->n_seq = 0;
        return st;
    }
    return CORUN_OK;
}

corun_status ops_need_index(int32_t i, int32_t n, const char *what)
{
    if (i < 0 || i >= n) FAIL(CORUN_EINVAL, "%s %d of %d", what, i, n);
    return CORUN_OK;
}

corun_status ops_need_layer(const ops_dims *d, int32_t layer, const char *op)
{
    if (layer < 0 || layer >= d->n_layer)
        FAIL(CORUN_EINVAL, "%s: layer %d of %d", op, layer, d->n_layer);
    return CORUN_OK;
}

corun_status ops_need_logits(const ops *o, int32_t first, int32_t n)
{
    if (first < 0 || n < 0 || n > o->conf.logit_rows || first > o->n_want - n)
        FAIL(CORUN_EINVAL, "logits: rows %d + %d of %d wanted ones, %d at once", first, n,
             o->n_want, o->conf.logit_rows);
    return CORUN_OK;
}

corun_status ops_need_shape(int64_t n_out, int64_t n_in, int64_t want_out, int64_t want_in,
                            const char *op)
{
    if ((want_out && n_out != want_out) || n_in != want_in)
        FAIL(CORUN_EINVAL, "%s: a weight of %lld x %lld where %lld x %lld is needed", op,
             (long long)n_out, (long long)n_in, (long long)want_out, (long long)want_in);
    return CORUN_OK;
}

void ops_rope_rows(const float *inv_freq, double scale, int64_t half, int64_t first, int64_t n,
                   int64_t stride, float *cos, float *sin)
{
    for (int64_t p = first; p < first + n; p++)
        for (int64_t i = 0; i < half; i++) {
            double angle = (double)((float)p * inv_freq[i]);
            cos[p * stride + i] = (float)(num_cos(angle) * scale);
            sin[p * stride + i] = (float)(num_sin(angle) * scale);
        }
}
