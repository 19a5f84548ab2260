/* bpe.c - text to ids, and what a token is. Invariant: encoding writes nothing to the tokenizer, so
 * any number of threads may do it. */
#include "text/bpe.h"

#include <string.h>

#include "text/bpe_int.h"

typedef struct encoder {
    const bpe *t;
    unsigned flags;
    size_t max;
    bpe_ids *out;
    pattern_scan *scan;
    bpe_word word;
    pattern_pieces pieces[2];
    uint32_t *c; /* characters of a part, and their classes */
    uint8_t *cls;
    size_t cap;
    buf nfc;
} encoder;

static void encoder_free(encoder *e)
{
    buf_free(&e->nfc);
    mem_free(e->cls);
    mem_free(e->c);
    mem_free(e->pieces[1].at);
    mem_free(e->pieces[0].at);
    bpe_word_free(&e->word);
    pattern_scan_close(e->scan);
}

static corun_status encoder_room(encoder *e, size_t n)
{
    if (n <= e->cap) return CORUN_OK;
    if (n >= UINT32_MAX) FAIL(CORUN_ECAPACITY, "text of %zu bytes", n);
    size_t cap = n < 256 ? 256 : n + n / 2;
    mem_free(e->c);
    mem_free(e->cls);
    e->cls = NULL;
    e->cap = 0;
    if (!MEM_NEW(e->c, cap) || !MEM_NEW(e->cls, cap)) return CORUN_ENOMEM;
    e->cap = cap;
    return CORUN_OK;
}

/* A part without added tokens, normalized: pre-tokenizer steps, then merges. */
static corun_status encode_part(encoder *e, const char *s, size_t len)
{
    const bpe *t = e->t;
    if (!len) return CORUN_OK;
    TRY(encoder_room(e, len));
    size_t n = 0;
    for (size_t i = 0; i < len;) {
        int k;
        e->c[n++] = utf8_next(s + i, &k);
        i += (size_t)k;
    }
    pattern_pieces *now = &e->pieces[0], *next = &e->pieces[1];
    now->n = 0;
    TRY(pattern_pieces_add(now, 0, (uint32_t)n));
    for (int i = 0; i < t->n_step; i++) {
        const bpe_step *step = &t->step[i];
        pattern_classes(step->pattern, e->c, n, e->cls);
        next->n = 0;
        for (size_t k = 0; k < now->n; k++)
            TRY(pattern_split(step->pattern, e->scan, e->cls, now->at[k], step->behavior,
                              step->invert, next));
        pattern_pieces *swap = now;
        now = next;
        next = swap;
    }
    size_t at = 0, off = 0; /* characters and bytes so far */
    for (size_t k = 0; k < now->n; k++) {
        for (; at < now->at[k].begin; at++) off += UTF8_LEN(e->c[at]);
        size_t begin = off;
        for (; at < now->at[k].end; at++) off += UTF8_LEN(e->c[at]);
        TRY(bpe_merge(t, &e->word, s + begin, off - begin, e->max, e->out));
    }
    return CORUN_OK;
}

typedef corun_status (*part_fn)(encoder *e, const char *s, size_t len);

/* Finds the added tokens of m as the reference does, and gives the rest to fn. */
static corun_status split_added(encoder *e, const bpe_matcher *m, const char *s, size_t len,
                                part_fn fn)
{
    const bpe *t = e->t;
    size_t done = 0, at = 0;
    while (m->n && at < len) {
        unsigned char b = (unsigned char)s[at];
        int32_t k = m->first[b] < m->first[b + 1] ? bpe_match(t, m, s + at, len - at) : -1;
        if (k < 0) {
            at++;
            continue;
        }
        const bpe_added *a = &t->added[k];
        size_t begin = at, end = at + a->len;
        int n;
        at = end;
        if (a->single_word && ((begin > 0 && unicode_is_word(utf8_prev(s, begin, &n))) ||
                               (end < len && unicode_is_word(utf8_next(s + end, &n)))))
            continue;
        if (a->lstrip) {
            while (begin > done && unicode_is_space(utf8_prev(s, begin, &n))) begin -= (size_t)n;
            if (begin < done) begin = done;
        }
        if (a->rstrip)
            while (end < len && unicode_is_space(utf8_next(s + end, &n))) end += (size_t)n;
        if (done < begin) TRY(fn(e, s + done, begin - done));
        /* A token that lies in the space which the one before absorbed is gone with it. */
        if (begin >= end) continue;
        TRY(bpe_push_id(e->out, a->id, e->max));
        done = end;
    }
    return done < len ? fn(e, s + done, len - done) : CORUN_OK;
}

static corun_status encode_raw_part(encoder *e, const char *s, size_t len)
{
    const bpe *t = e->t;
    bool changed = false;
    if (t->nfc) {
        buf_reset(&e->nfc);
        TRY(unicode_nfc(s, len, &e->nfc, &changed));
    }
    if (changed) {
        s = e->nfc.data;
        len = e->nfc.len;
    }
    if (e->flags & BPE_LITERAL) return encode_part(e, s, len);
    return split_added(e, &t->normalized, s, len, encode_part);
}

corun_status bpe_encode(const bpe *t, const char *text, size_t len, unsigned flags, size_t max,
                        bpe_ids *out)
{
    size_t bad, before = out->n;
    if (!t) FAIL(CORUN_EUNSUPPORTED, "this model has no tokenizer: it takes token ids only");
    if (!utf8_valid(text, len, &bad)) FAIL(CORUN_EFORMAT, "text: byte %zu is not UTF-8", bad);
    encoder e = {.t = t, .flags = flags, .max = max, .out = out};
    buf_init(&e.nfc, SIZE_MAX / 2);
    corun_status st = pattern_scan_open(&e.scan);
    if (st == CORUN_OK && flags & BPE_ADD_SPECIAL)
        for (size_t i = 0; i < t->n_prefix && st == CORUN_OK; i++)
            st = bpe_push_id(out, t->prefix[i], max);
    if (st == CORUN_OK)
        st = flags & BPE_LITERAL ? encode_raw_part(&e, text, len)
                                 : split_added(&e, &t->raw, text, len, encode_raw_part);
    if (st == CORUN_OK && flags & BPE_ADD_SPECIAL)
        for (size_t i = 0; i < t->n_suffix && st == CORUN_OK; i++)
            st = bpe_push_id(out, t->suffix[i], max);
    if (st != CORUN_OK) out->n = before;
    encoder_free(&e);
    return st;
}

void bpe_ids_free(bpe_ids *ids)
{
    mem_free(ids->id);
    *ids = (bpe_ids){0};
}

/* ---- what is known of tokens ---------------------------------------------------------------- */

int32_t bpe_n_token(const bpe *t) { return t ? (int32_t)t->n_tok : 0; }
int32_t bpe_bos(const bpe *t) { return t ? t->bos : -1; }
int32_t bpe_eos(const bpe *t) { return t ? t->eos : -1; }
size_t bpe_n_special(const bpe *t) { return t->n_name; }
digest bpe_digest(const bpe *t) { return t ? t->digest : (digest){0}; }

void bpe_special_at(const bpe *t, size_t i, const char **name, const char **text)
{
    *name = t->name[i].name;
    *text = t->name[i].text;
}

const char *bpe_special(const bpe *t, const char *name)
{
    for (size_t i = 0; i < t->n_name; i++)
        if (!strcmp(t->name[i].name, name)) return t->name[i].text;
    return NULL;
}

int32_t bpe_find(const bpe *t, const char *s, size_t len)
{
    int32_t id = bpe_map_find(t, &t->literal, s, len);
    return id >= 0 ? id : bpe_map_find(t, &t->mapped, s, len);
}

void bpe_token(const bpe *t, int32_t id, const char **data, size_t *len, bool *is_special)
{
    *data = "";
    *len = 0;
    *is_special = false;
    if (!t || id < 0 || (size_t)id >= t->n_tok || !t->tok[id].flags) return;
    *data = t->arena.data + t->tok[id].off;
    *len = t->tok[id].len;
    *is_special = (t->tok[id].flags & BPE_TOK_SPECIAL) != 0;
}

/* One token a byte, for the fake model. */
corun_status bpe_open_bytes(bpe **out)
{
    static const char *const special[] = {"<|bos|>", "<|eos|>", "<|user|>", "<|assistant|>"};
    bpe *t;
    *out = NULL;
    TRY(bpe_new(&t, "byte tokenizer"));
    corun_status st = CORUN_OK;
    for (int i = 0; i < 256; i++) {
        char c = (char)i;
        TRY_OR_DONE(bpe_add_raw(t, &c, 1, i, BPE_TOK_VOCAB | BPE_TOK_MAPPED));
    }
    for (int i = 0; i < 4; i++)
        TRY_OR_DONE(bpe_add_added(t, special[i], strlen(special[i]),
                                  &(bpe_added){.id = 256 + i, .special = true}, true));
    t->bos = 256;
    t->eos = 257;
    TRY_OR_DONE(bpe_add_name(t, "bos_token", special[0], strlen(special[0])));
    TRY_OR_DONE(bpe_add_name(t, "eos_token", special[1], strlen(special[1])));
    TRY_OR_DONE(bpe_finish(t));
done:
    if (st == CORUN_OK)
        *out = t;
    else
        bpe_close(t);
    return st;
}

/* ---- streaming decode ----------------------------------------------------------------------- */

static const char replacement[] = "\xEF\xBF\xBD";

/* How many bytes a sequence that begins with c has; 0: none begins so. */
static int lead_len(unsigned char c)
{
    if (c < 0x80) return 1;
    if (c < 0xC2 || c > 0xF4) return 0;
    return c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
}

static bool second_ok(unsigned char lead, unsigned char c)
{
    unsigned lo = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    unsigned hi = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    return c >= lo && c <= hi;
}

void bpe_stream_push(bpe_stream *s, const char *data, size_t len, buf *out)
{
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)data[i];
        if (s->n_held) {
            bool fits = s->n_held == 1 ? second_ok(s->held[0], c) : (c & 0xC0) == 0x80;
            if (fits) {
                s->held[s->n_held++] = c;
                if (s->n_held == lead_len(s->held[0])) {
                    buf_put(out, s->held, (size_t)s->n_held);
                    s->n_held = 0;
                }
                continue;
            }
            buf_puts(out, replacement);
            s->n_held = 0;
        }
        int n = lead_len(c);
        if (n == 1)
            buf_putc(out, (char)c);
        else if (n == 0)
            buf_puts(out, replacement);
        else
            s->held[s->n_held++] = c;
    }
}

void bpe_stream_end(bpe_stream *s, buf *out)
{
    if (s->n_held) buf_puts(out, replacement);
    s->n_held = 0;
}
