/* audit_attn.c - tries qkv_post and attention: the ops that write and read pages.
 * Invariant: every cache is written by the same calls, so a difference of attention is its own. */
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "ops/audit_impl.h"

enum { HUGE_SEQ = AUDIT_SEQ - 2, NAN_SEQ = AUDIT_SEQ - 1, FIELD = 1 << 16 };

typedef struct attn {
    audit *a;
    ops_rope *rope;
    ops_weight *q_gain, *k_gain; /* NULL without q and k norm */
    int fill;                    /* byte of pages that nobody wrote */
} attn;

/* Content of a token of a sequence. */
static int32_t content_of(int32_t seq, int32_t pos)
{
    return seq == HUGE_SEQ ? AUDIT_HUGE : seq == NAN_SEQ ? AUDIT_NAN : seq * FIELD + pos;
}

static int32_t *row_table(audit *a)
{
    return a->table_of + (size_t)a->sc.s.n_row * (size_t)a->pages;
}

/* ---- pages --------------------------------------------------------------------------------------
 */

static void order_pages(audit *a, bool shuffled)
{
    int32_t n = a->conf.n_page - a->n_spare;
    for (int32_t i = 0; i < n; i++) a->perm[i] = i;
    for (int32_t i = n - 1; shuffled && i > 0; i--) {
        int32_t k = (int32_t)(audit_mix((uint64_t)i) % (uint64_t)(i + 1)), t = a->perm[i];
        a->perm[i] = a->perm[k];
        a->perm[k] = t;
    }
}

static corun_status fill_pages(attn *t)
{
    audit *a = t->a;
    memset(a->row, t->fill, (size_t)a->o->page_bytes(a->o));
    for (int32_t i = 0; i < a->conf.n_page; i++) TRY(a->o->page_put(a->o, i, a->row));
    return CORUN_OK;
}

/* The pages that the scene writes to, as if nobody had. */
static corun_status fresh_pages(attn *t)
{
    audit *a = t->a;
    memset(a->row, t->fill, (size_t)a->o->page_bytes(a->o));
    for (int32_t r = 0; r < a->sc.s.n_row; r++) {
        const step_row *w = &a->sc.row[r];
        int32_t pt = a->conf.page_tokens;
        for (int32_t i = w->pos / pt; w->seq >= 0 && i <= (w->pos + w->q_len - 1) / pt; i++)
            TRY(a->o->page_put(a->o, w->page[i], a->row));
    }
    return CORUN_OK;
}

/* ---- qkv_post -----------------------------------------------------------------------------------
 */

static corun_status run_qkv(attn *t)
{
    audit *a = t->a;
    const ops_dims *d = &a->spec->dims;
    int32_t qk = (d->n_head + d->n_kv) * d->d_head, v = d->n_kv * d->d_head;
    audit_copy to = audit_copy_of(a, 0, a->in[0], (size_t)(qk + v) * 2, a->o->n_tok);
    for (int32_t i = 0; i < a->sc.n_tok; i++) {
        int32_t c = a->sc.content[i];
        if (a->sc.at[i] < 0) continue;
        bool odd = c / FIELD % 2 == 1;
        memcpy(a->row, audit_window(a, odd ? 2 : 0, c, 10), (size_t)qk * 2);
        memcpy(a->row + (size_t)qk * 2, audit_window(a, odd ? 1 : 0, c, 11), (size_t)v * 2);
        TRY(audit_put(a, &to, a->row));
    }
    TRY(audit_put_end(a, &to));
    return a->o->qkv_post(a->o, 0, a->in[0], t->q_gain, t->k_gain, 1e-5f, t->rope, a->out[0]);
}

static corun_status note_q(attn *t)
{
    audit *a = t->a;
    size_t bytes = (size_t)(a->spec->dims.n_head * a->spec->dims.d_head) * 2;
    audit_copy from = audit_copy_of(a, 0, a->out[0], bytes, a->o->n_tok);
    for (int32_t i = 0; i < a->sc.n_tok; i++) {
        const void *row;
        if (a->sc.content[i] < 0) continue;
        TRY(audit_get(a, &from, a->sc.at[i], &row));
        TRY(audit_note(a, 0, i, 0, row, bytes));
    }
    return CORUN_OK;
}

/* Each page that a row wrote to, under its last token there and the first one. */
static corun_status note_pages(attn *t)
{
    audit *a = t->a;
    int32_t pt = a->conf.page_tokens, tok = 0;
    size_t bytes = (size_t)a->o->page_bytes(a->o);
    for (int32_t r = 0; r < a->sc.s.n_row; tok += a->sc.row[r++].q_len) {
        const step_row *w = &a->sc.row[r];
        for (int32_t i = w->pos / pt; w->seq >= 0 && i <= (w->pos + w->q_len - 1) / pt; i++) {
            int32_t first = i * pt > w->pos ? 0 : w->pos % pt, last = (i + 1) * pt - 1;
            if (last > w->pos + w->q_len - 1) last = w->pos + w->q_len - 1;
            TRY(a->o->page_get(a->o, w->page[i], a->row));
            TRY(audit_note(a, 0, tok + last - w->pos, 100 + (uint32_t)first, a->row, bytes));
        }
    }
    for (int32_t i = 0; i < a->n_spare; i++) {
        TRY(a->o->page_get(a->o, a->conf.n_page - 1 - i, a->row));
        TRY(audit_note_key(a, 0, (uint64_t)i, 0, 0, "a page of nobody", a->row, bytes));
    }
    return CORUN_OK;
}

static corun_status try_qkv(attn *t, int32_t times, bool fresh)
{
    audit *a = t->a;
    TRY(audit_scene_put(a));
    for (int32_t k = 0; k < times; k++) {
        TRY(audit_put_same(a, a->out[0], (size_t)a->widest * 2, a->sc.n_tok, k % 2 ? 0x5a : 0xa5));
        if (fresh) TRY(fresh_pages(t));
        TRY(run_qkv(t));
        TRY(note_q(t));
        if (fresh) TRY(note_pages(t));
    }
    return CORUN_OK;
}

/* Decode rows with a page each, so that no two rows write to the same one. */
static void add_writers(audit *a, int32_t n, int32_t rotate, int32_t other, int32_t parity)
{
    for (int32_t r = 0; r < n; r++) {
        int32_t seq = (r + rotate) % n, *page = row_table(a);
        int32_t pos = (int32_t)(audit_mix((uint64_t)seq) % (uint64_t)a->len);
        bool is_other = other && r % 2 == parity;
        if (is_other) pos = (pos + 41) % a->len;
        for (int32_t i = 0; i < a->pages; i++) page[i] = a->perm[(r + rotate) % (a->conf.max_row)];
        audit_scene_row(a, (r + 2 * rotate) % a->conf.n_slot, pos, 1,
                        is_other ? other : content_of(seq % HUGE_SEQ, seq / HUGE_SEQ * 4096 + pos),
                        page);
    }
}

static void add_writer_chunk(audit *a, int32_t pos, int32_t n)
{
    int32_t *page = row_table(a);
    for (int32_t i = 0; i < a->pages; i++) page[i] = a->perm[a->conf.max_row + i];
    audit_scene_row(a, STEP_NO_SLOT, pos, n, content_of(0, pos), page);
}

static corun_status writers(attn *t, int32_t n, int32_t rotate, int32_t other, int32_t parity,
                            int32_t times)
{
    audit_scene_begin(t->a, STEP_DECODE);
    add_writers(t->a, n, rotate, other, parity);
    return try_qkv(t, times, true);
}

/* One sequence of n tokens written in pieces of `piece` tokens (1: by decode steps) into fresh
 * pages, which must end up the same. */
static corun_status write_chain(attn *t, int32_t n, int32_t piece)
{
    audit *a = t->a;
    int32_t pt = a->conf.page_tokens;
    for (int32_t pos = 0; pos < n; pos += piece) {
        audit_scene_begin(a, piece == 1 ? STEP_DECODE : STEP_PREFILL);
        add_writer_chunk(a, pos, n - pos < piece ? n - pos : piece);
        if (piece == 1) a->sc.row[0].slot = 0;
        if (pos == 0) {
            int32_t q_len = a->sc.row[0].q_len;
            a->sc.row[0].q_len = n;
            TRY(fresh_pages(t));
            a->sc.row[0].q_len = q_len;
        }
        TRY(try_qkv(t, 1, false));
    }
    for (int32_t i = 0; i <= (n - 1) / pt; i++) {
        TRY(a->o->page_get(a->o, a->sc.row[0].page[i], a->row));
        TRY(audit_note_key(a, 0, (uint64_t)(n * FIELD + i), (uint64_t)piece, 1,
                           piece == 1   ? "a page by decode"
                           : piece == n ? "a page by prefill"
                                        : "a page by chunks",
                           a->row, (size_t)a->o->page_bytes(a->o)));
    }
    return CORUN_OK;
}

static corun_status try_writing(attn *t)
{
    audit *a = t->a;
    int32_t w = a->spec->width;
    double begin = clock_seconds();
    TRY(audit_begin(a, 0, OPS_OP_QKV_POST, a->spec->qk_norm ? "with q and k norm" : ""));
    order_pages(a, false);
    t->fill = 0;
    TRY(fill_pages(t));
    TRY(writers(t, w, 0, 0, 0, a->n_repeat));
    TRY(writers(t, w, 1, 0, 0, 1));
    order_pages(a, true);
    static const int32_t other[] = {AUDIT_HUGE, AUDIT_NAN, AUDIT_OTHER, AUDIT_DEAD};
    for (int32_t i = 0; i < 4 && w > 1; i++) TRY(writers(t, w, i, other[i], i % 2, 1));
    for (int32_t i = 0; i < a->n_count; i++) TRY(writers(t, a->count[i], 0, 0, 0, 1));
    for (int32_t i = 0; i < a->n_prefill; i++) {
        int32_t n = a->prefill[i], cut = n * 3 / 7 | 1;
        TRY(write_chain(t, n, n));
        if (n < 3) continue;
        TRY(write_chain(t, n, cut));
        if (i == 0 || a->spec->full) TRY(write_chain(t, n, 1));
        audit_scene_begin(a, STEP_MIXED);
        add_writers(a, w, 0, 0, 0);
        add_writer_chunk(a, 0, n);
        TRY(try_qkv(t, 1, true));
        audit_scene_begin(a, STEP_PREFILL);
        add_writer_chunk(a, 0, n);
        TRY(try_qkv(t, a->n_repeat, true));
    }
    audit_end(a, begin);
    return CORUN_OK;
}

/* ---- attention ----------------------------------------------------------------------------------
 */

static int32_t seq_len(const audit *a, int32_t seq)
{
    if (seq < 2 || seq >= HUGE_SEQ) return a->len;
    return 1 + (int32_t)(audit_mix((uint64_t)seq) % (uint64_t)a->len);
}

/* All sequences into the pages, one after the other. */
static corun_status write_caches(attn *t, bool shuffled, int fill)
{
    audit *a = t->a;
    t->fill = fill;
    order_pages(a, shuffled);
    TRY(fill_pages(t));
    for (int32_t s = 0; s < AUDIT_SEQ; s++) {
        audit_scene_begin(a, STEP_PREFILL);
        audit_scene_row(a, STEP_NO_SLOT, 0, seq_len(a, s), content_of(s, 0),
                        a->perm + (size_t)s * (size_t)a->pages);
        TRY(audit_scene_put(a));
        TRY(run_qkv(t));
    }
    return CORUN_OK;
}

static void add_reader(audit *a, int32_t slot, int32_t seq, int32_t pos, int32_t n)
{
    audit_scene_row(a, slot, pos, n, content_of(seq, pos),
                    a->perm + (size_t)seq * (size_t)a->pages);
}

static corun_status try_readers(attn *t, int32_t times)
{
    audit *a = t->a;
    const ops_dims *d = &a->spec->dims;
    size_t bytes = (size_t)(d->n_head * d->d_head) * 2;
    float scale = 0.125f;
    TRY(audit_scene_put(a));
    for (int32_t k = 0; k < times; k++) {
        audit_copy to = audit_copy_of(a, 0, a->in[0], bytes, a->o->n_tok);
        for (int32_t i = 0; i < a->sc.n_tok; i++) {
            int32_t c = a->sc.content[i];
            if (a->sc.at[i] >= 0)
                TRY(audit_put(a, &to, audit_window(a, c % 2 == 1 ? 2 : 0, c, 12)));
        }
        TRY(audit_put_end(a, &to));
        TRY(audit_put_same(a, a->out[0], bytes, a->sc.n_tok, k % 2 ? 0x5a : 0xa5));
        TRY(a->o->attention(a->o, 0, a->in[0], scale, a->out[0]));
        audit_copy from = audit_copy_of(a, 0, a->out[0], bytes, a->o->n_tok);
        for (int32_t i = 0; i < a->sc.n_tok; i++) {
            const void *row;
            if (a->sc.content[i] < 0) continue;
            TRY(audit_get(a, &from, a->sc.at[i], &row));
            TRY(audit_note(a, a->sc.row[a->sc.owner[i]].q_len > 1, i, 0, row, bytes));
        }
    }
    return CORUN_OK;
}

/* What every second row of a decode step is instead of its own sequence. */
typedef struct others {
    int32_t seq, pos; /* seq -1: its own, at pos; AUDIT_DEAD: a dead row */
    int32_t parity;
    bool any;
} others;

static void add_readers(audit *a, int32_t n, int32_t rotate, others x)
{
    for (int32_t r = 0; r < n; r++) {
        int32_t k = (r + rotate) % n, seq = k % HUGE_SEQ, len = seq_len(a, seq);
        int32_t pos = len - 1 - k / HUGE_SEQ * 17 % len;
        int32_t slot = (r + 2 * rotate) % a->conf.n_slot;
        if (!x.any || r % 2 != x.parity)
            add_reader(a, slot, seq, pos, 1);
        else if (x.seq == AUDIT_DEAD)
            audit_scene_row(a, slot, 0, 1, AUDIT_DEAD, a->perm);
        else
            add_reader(a, slot, x.seq < 0 ? seq : x.seq, x.seq < 0 ? x.pos % len : x.pos % a->len,
                       1);
    }
}

static corun_status readers(attn *t, int32_t n, int32_t rotate, others x, int32_t times)
{
    audit_scene_begin(t->a, STEP_DECODE);
    add_readers(t->a, n, rotate, x);
    return try_readers(t, times);
}

static corun_status decode_scenes(attn *t, bool all)
{
    audit *a = t->a;
    int32_t w = a->spec->width;
    static const int32_t pos[] = {0,   1,   15,  16,  63,  64,  127,  128,
                                  129, 255, 511, 512, 513, 640, 1024, 2047};
    TRY(readers(t, w, 0, (others){0}, all ? a->n_repeat : 1));
    TRY(readers(t, w, 1, (others){0}, 1));
    TRY(readers(t, w, w / 2, (others){0}, 1));
    for (int32_t i = 0; i < 2 && w > 1; i++) {
        TRY(readers(t, w, i, (others){.any = true, .seq = HUGE_SEQ, .pos = 200, .parity = i}, 1));
        TRY(readers(t, w, i, (others){.any = true, .seq = NAN_SEQ, .pos = 600, .parity = i}, 1));
        TRY(readers(t, w, i, (others){.any = true, .seq = AUDIT_DEAD, .parity = i}, 1));
    }
    if (!all) return CORUN_OK;
    for (size_t i = 0; i < sizeof pos / sizeof *pos && w > 1; i++)
        if (pos[i] < a->len)
            TRY(readers(t, w, 0,
                        (others){.any = true, .seq = -1, .pos = pos[i], .parity = (int32_t)i % 2},
                        1));
    for (int32_t i = 0; i < a->n_count; i++) TRY(readers(t, a->count[i], 0, (others){0}, 1));
    return CORUN_OK;
}

/* Tokens [pos, pos + n) of a sequence in one piece by itself. */
static corun_status piece(attn *t, int32_t seq, int32_t pos, int32_t n, int32_t times)
{
    audit_scene_begin(t->a, STEP_PREFILL);
    add_reader(t->a, STEP_NO_SLOT, seq, pos, n);
    return try_readers(t, times);
}

/* The same of sequence 0 before, among or behind decode rows. */
static corun_status piece_beside(attn *t, int32_t pos, int32_t n, int32_t before, int32_t behind,
                                 others x)
{
    audit_scene_begin(t->a, STEP_MIXED);
    add_readers(t->a, before, 0, x);
    add_reader(t->a, STEP_NO_SLOT, 0, pos, n);
    add_readers(t->a, behind, 0, x);
    return try_readers(t, 1);
}

static corun_status prefill_scenes(attn *t, bool all)
{
    audit *a = t->a;
    int32_t w = a->spec->width, n = a->len;
    static const int32_t step_of[] = {61, 128, 257, 512};
    for (int32_t seq = 0; seq < 2; seq++) {
        TRY(piece(t, seq, 0, n, all && seq == 0 ? a->n_repeat : 1));
        for (size_t i = seq ? 2 : 0; i < (a->spec->full ? 4u : seq ? 3u : 1u); i++)
            for (int32_t pos = 0; pos < n; pos += step_of[i])
                TRY(piece(t, seq, pos, n - pos < step_of[i] ? n - pos : step_of[i], 1));
    }
    if (!all) return CORUN_OK;
    for (int32_t i = 0; i < a->n_prefill; i++) {
        int32_t len = a->prefill[i] < n ? a->prefill[i] : n;
        TRY(piece(t, 0, 0, len, 1));
        TRY(piece_beside(t, 0, len, w, 0, (others){0}));
        if (i > 0 && !a->spec->full) continue;
        TRY(piece_beside(t, 0, len, 0, w, (others){0}));
        TRY(piece_beside(t, 0, len, w, 0, (others){.any = true, .seq = -1, .pos = 3 + 64 * i}));
        TRY(piece_beside(t, 0, len, w, 0, (others){.any = true, .seq = NAN_SEQ, .pos = 600}));
        TRY(piece_beside(t, n - len, len, 1, (w + 1) / 2, (others){0}));
    }
    TRY(piece(t, 0, n - 1, 1, 1));             /* the last token of a prompt by itself */
    for (int32_t pos = 0; pos < n; pos += w) { /* every position by decode steps */
        audit_scene_begin(a, STEP_DECODE);
        for (int32_t r = 0; r < w && pos + r < n; r++) add_reader(a, r, 0, pos + r, 1);
        TRY(try_readers(t, 1));
    }
    return CORUN_OK;
}

static corun_status try_reading(attn *t)
{
    audit *a = t->a;
    double begin = clock_seconds();
    TRY(audit_begin(a, 0, OPS_OP_ATTN_DECODE, ""));
    TRY(audit_begin(a, 1, OPS_OP_ATTN_PREFILL, ""));
    TRY(write_caches(t, false, 0));
    TRY(decode_scenes(t, true));
    TRY(prefill_scenes(t, true));
    TRY(write_caches(t, true, 0xff)); /* NaN in every place that no token wrote */
    TRY(decode_scenes(t, a->spec->full));
    TRY(prefill_scenes(t, a->spec->full));
    audit_end(a, begin);
    return CORUN_OK;
}

static corun_status try_all(attn *t)
{
    audit *a = t->a;
    ops *o = a->o;
    int32_t d = a->spec->dims.d_head;
    float inv_freq[128], f = 1.0f;
    for (int32_t i = 0; i < d / 2; i++, f *= 0.77f) inv_freq[i] = f;
    TRY(o->rope_open(o, inv_freq, 1.0, &t->rope));
    if (a->spec->qk_norm) {
        TRY(audit_weight(a, 1, d, false, &t->q_gain));
        TRY(audit_weight(a, 1, d, false, &t->k_gain));
    }
    a->want = STEP_WANT_NONE;
    for (int s = 0; s < OPS_N_SET; s++) {
        TRY(audit_use_set(a, (ops_set)s));
        TRY(try_writing(t));
        TRY(try_reading(t));
    }
    return CORUN_OK;
}

corun_status audit_attention(audit *a)
{
    attn t = {.a = a};
    if (a->spec->dims.d_head > 256)
        FAIL(CORUN_EUNSUPPORTED, "audit: heads of %d elements", a->spec->dims.d_head);
    corun_status st = try_all(&t);
    if (t.q_gain) a->o->weight_close(a->o, t.q_gain);
    if (t.k_gain) a->o->weight_close(a->o, t.k_gain);
    if (t.rope) a->o->rope_close(a->o, t.rope);
    return st;
}
