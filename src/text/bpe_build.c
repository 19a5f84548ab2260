/* bpe_build.c - fills a tokenizer's tables from whatever file they come. Invariant: a spelling has
 * one id and an id has one spelling. */
#include <stdlib.h>
#include <string.h>

#include "text/bpe_int.h"

corun_status bpe_new(bpe **out, const char *what)
{
    bpe *t;
    *out = NULL;
    if (!MEM_NEW(t, 1)) return CORUN_ENOMEM;
    buf_init(&t->arena, UINT32_MAX / 2);
    buf_init(&t->rules, 1u << 24);
    t->unk = t->bos = t->eos = -1;
    if (!(t->what = mem_dup(what, strlen(what), "tokenizer"))) {
        mem_free(t);
        return CORUN_ENOMEM;
    }
    *out = t;
    return CORUN_OK;
}

void bpe_close(bpe *t)
{
    if (!t) return;
    for (int i = 0; i < t->n_step; i++) pattern_free(t->step[i].pattern);
    for (size_t i = 0; i < t->n_name; i++) {
        mem_free(t->name[i].name);
        mem_free(t->name[i].text);
    }
    mem_free(t->name);
    mem_free(t->suffix);
    mem_free(t->prefix);
    mem_free(t->normalized.at);
    mem_free(t->raw.at);
    mem_free(t->added);
    mem_free(t->pair);
    mem_free(t->literal.slot);
    mem_free(t->mapped.slot);
    mem_free(t->tok);
    buf_free(&t->rules);
    buf_free(&t->arena);
    mem_free(t->what);
    mem_free(t);
}

/* ---- the byte alphabet ---------------------------------------------------------------------- */

/* The byte that a character of GPT-2's alphabet stands for, -1: it is not in the alphabet. */
static int byte_of(uint32_t c)
{
    if ((c >= 33 && c <= 126) || (c >= 161 && c <= 172) || (c >= 174 && c <= 255)) return (int)c;
    if (c < 0x100 || c > 0x143) return -1;
    unsigned k = c - 0x100; /* the k-th of the other 68 bytes */
    if (k < 33) return (int)k;
    if (k < 67) return (int)(127 + k - 33);
    return 173;
}

/* Appends the raw bytes of a spelling to b; false: some character is outside of the alphabet, and
 * the bytes are the text itself. */
static bool put_raw(buf *b, const char *s, size_t len)
{
    size_t start = b->len;
    for (size_t i = 0; i < len;) {
        int n;
        int v = byte_of(utf8_next(s + i, &n));
        if (v < 0) {
            b->len = start;
            buf_put(b, s, len);
            return false;
        }
        buf_putc(b, (char)v);
        i += (size_t)n;
    }
    return true;
}

/* ---- maps ----------------------------------------------------------------------------------- */

static uint32_t bytes_hash(const char *s, size_t len)
{
    const uint64_t k = 0x9E3779B97F4A7C15u;
    uint64_t h = (len + 1) * k, w;
    for (; len >= 8; s += 8, len -= 8) {
        memcpy(&w, s, 8);
        h = (h ^ w) * k;
        h ^= h >> 32;
    }
    w = 0;
    if (len) memcpy(&w, s, len);
    h = (h ^ w) * k;
    return (uint32_t)(h >> 32);
}

static bool tok_is(const bpe *t, int32_t id, const char *s, size_t len)
{
    const bpe_tok *k = &t->tok[id];
    return k->len == len && !memcmp(t->arena.data + k->off, s, len);
}

int32_t bpe_map_find(const bpe *t, const bpe_map *m, const char *s, size_t len)
{
    if (!m->n) return -1;
    uint32_t hash = bytes_hash(s, len);
    for (size_t i = hash & (m->n - 1);; i = (i + 1) & (m->n - 1)) {
        const bpe_slot *k = &m->slot[i];
        if (k->id < 0) return -1;
        if (k->hash == hash && tok_is(t, k->id, s, len)) return k->id;
    }
}

static void map_put(bpe_map *m, bpe_slot what)
{
    size_t i = what.hash & (m->n - 1);
    while (m->slot[i].id >= 0) i = (i + 1) & (m->n - 1);
    m->slot[i] = what;
    m->used++;
}

static corun_status map_room(bpe_map *m)
{
    if (m->used * 2 < m->n) return CORUN_OK;
    bpe_map big = {.n = m->n ? m->n * 2 : 1024};
    if (!MEM_NEW(big.slot, big.n)) return CORUN_ENOMEM;
    memset(big.slot, 0xFF, big.n * sizeof *big.slot);
    for (size_t i = 0; i < m->n; i++)
        if (m->slot[i].id >= 0) map_put(&big, m->slot[i]);
    mem_free(m->slot);
    *m = big;
    return CORUN_OK;
}

/* ---- tokens --------------------------------------------------------------------------------- */

/* Room for an id, with the tables grown. */
static corun_status tok_room(bpe *t, int32_t id)
{
    if (id < 0 || id >= BPE_MAX_ID)
        FAIL(CORUN_EFORMAT, "%s: token id %d is not in 0 ... %d", t->what, id, BPE_MAX_ID - 1);
    size_t n = (size_t)id + 1;
    if (n > t->cap_tok) {
        size_t cap = t->cap_tok ? t->cap_tok : 1024;
        while (cap < n) cap *= 2;
        bpe_tok *k = mem_realloc(t->tok, cap, sizeof *k, "tokens");
        if (!k) return CORUN_ENOMEM;
        t->tok = k;
        t->cap_tok = cap;
    }
    if (n > t->n_tok) {
        memset(t->tok + t->n_tok, 0, (n - t->n_tok) * sizeof *t->tok);
        t->n_tok = n;
    }
    return CORUN_OK;
}

/* Makes the bytes from off on, at the end of the arena, the token of an id. */
static corun_status tok_set(bpe *t, int32_t id, size_t off, uint32_t flags)
{
    TRY(buf_status(&t->arena));
    TRY(tok_room(t, id));
    bpe_map *m = flags & BPE_TOK_MAPPED ? &t->mapped : &t->literal;
    TRY(map_room(m));
    const char *s = t->arena.data ? t->arena.data + off : "";
    size_t len = t->arena.len - off;
    if (t->tok[id].flags) FAIL(CORUN_EFORMAT, "%s: token id %d is given twice", t->what, id);
    if (bpe_map_find(t, m, s, len) >= 0)
        FAIL(CORUN_EFORMAT, "%s: tokens %d and %d have the same text", t->what,
             bpe_map_find(t, m, s, len), id);
    t->tok[id] = (bpe_tok){.off = (uint32_t)off, .len = (uint32_t)len, .flags = flags};
    map_put(m, (bpe_slot){.id = id, .hash = bytes_hash(s, len)});
    return CORUN_OK;
}

corun_status bpe_add_vocab(bpe *t, const char *s, size_t len, int32_t id)
{
    size_t off = t->arena.len;
    bool mapped = put_raw(&t->arena, s, len) && len > 0;
    return tok_set(t, id, off, BPE_TOK_VOCAB | (mapped ? BPE_TOK_MAPPED : 0));
}

corun_status bpe_add_raw(bpe *t, const char *s, size_t len, int32_t id, uint32_t flags)
{
    size_t off = t->arena.len;
    buf_put(&t->arena, s, len);
    return tok_set(t, id, off, flags);
}

int32_t bpe_vocab_id(const bpe *t, const char *s, size_t len)
{
    char small[256];
    size_t k = 0;
    for (size_t i = 0; i < len;) {
        int n;
        int v = byte_of(utf8_next(s + i, &n));
        if (v < 0 || k == sizeof small) break;
        small[k++] = (char)v;
        i += (size_t)n;
        if (i == len) return bpe_map_find(t, &t->mapped, small, k);
    }
    if (k < sizeof small) {
        int32_t id = bpe_map_find(t, &t->literal, s, len);
        return id >= 0 && t->tok[id].flags & BPE_TOK_VOCAB ? id : -1;
    }
    buf b;
    buf_init(&b, SIZE_MAX / 2);
    bool mapped = put_raw(&b, s, len);
    int32_t id = b.failed ? -1 : bpe_map_find(t, mapped ? &t->mapped : &t->literal, b.data, b.len);
    buf_free(&b);
    return id >= 0 && t->tok[id].flags & BPE_TOK_VOCAB ? id : -1;
}

corun_status bpe_add_added(bpe *t, const char *s, size_t len, const bpe_added *flags, bool decoded)
{
    int32_t id = flags->id;
    uint32_t f = BPE_TOK_ADDED | (flags->special ? BPE_TOK_SPECIAL : 0);
    if (len == 0 || len > 4096)
        FAIL(CORUN_EFORMAT, "%s: added token %d has a text of %zu bytes", t->what, id, len);
    if (id >= 0 && (size_t)id < t->n_tok && t->tok[id].flags & BPE_TOK_ADDED) {
        bpe_added *a = &t->added[t->tok[id].flags >> BPE_TOK_INDEX];
        if (a->len != len || memcmp(t->arena.data + a->off, s, len) != 0)
            FAIL(CORUN_EFORMAT, "%s: added token %d is given with two texts", t->what, id);
        uint32_t off = a->off;
        *a = *flags;
        a->off = off;
        a->len = (uint32_t)len;
        t->tok[id].flags = (t->tok[id].flags & ~BPE_TOK_SPECIAL) | f;
        return CORUN_OK;
    }
    f |= (uint32_t)t->n_added << BPE_TOK_INDEX;
    if (t->n_added == t->cap_added) {
        size_t cap = t->cap_added ? t->cap_added * 2 : 64;
        bpe_added *a = mem_realloc(t->added, cap, sizeof *a, "added tokens");
        if (!a) return CORUN_ENOMEM;
        t->added = a;
        t->cap_added = cap;
    }
    bpe_added a = *flags;
    a.off = (uint32_t)t->arena.len;
    a.len = (uint32_t)len;
    buf_put(&t->arena, s, len);
    TRY(buf_status(&t->arena));
    size_t off = t->arena.len;
    if (decoded)
        buf_put(&t->arena, s, len);
    else
        put_raw(&t->arena, s, len);
    TRY(buf_status(&t->arena));
    TRY(tok_room(t, id));
    const bpe_tok *old = &t->tok[id];
    if (old->flags) {
        /* It stands in the vocabulary too: then with the same text. */
        if (old->len != t->arena.len - off ||
            memcmp(t->arena.data + old->off, t->arena.data + off, old->len) != 0)
            FAIL(CORUN_EFORMAT, "%s: added token %d is another text in the vocabulary", t->what,
                 id);
        t->tok[id].flags |= f;
    } else {
        int32_t other = decoded ? -1 : bpe_vocab_id(t, s, len);
        if (other >= 0)
            FAIL(CORUN_EFORMAT, "%s: added token %d has id %d in the vocabulary", t->what, id,
                 other);
        TRY(tok_set(t, id, off, f));
    }
    t->added[t->n_added++] = a;
    return CORUN_OK;
}

/* ---- merges --------------------------------------------------------------------------------- */

corun_status bpe_merges_begin(bpe *t, size_t n)
{
    if (n >= UINT32_MAX / 4) FAIL(CORUN_EFORMAT, "%s: %zu merges", t->what, n);
    t->n_slot = 64;
    while (t->n_slot < n * 2) t->n_slot *= 2;
    if (!MEM_NEW(t->pair, t->n_slot)) return CORUN_ENOMEM;
    for (size_t i = 0; i < t->n_slot; i++) t->pair[i].key = BPE_NO_PAIR;
    return CORUN_OK;
}

/* How much of a text to show. */
static int shown(size_t len) { return len < 60 ? (int)len : 60; }

corun_status bpe_add_merge(bpe *t, const char *both, size_t left_len, size_t len)
{
    int32_t l = bpe_vocab_id(t, both, left_len);
    int32_t r = bpe_vocab_id(t, both + left_len, len - left_len);
    int32_t id = bpe_vocab_id(t, both, len);
    if (l < 0 || r < 0 || id < 0)
        FAIL(CORUN_EFORMAT, "%s: merge %zu (\"%.*s\" with \"%.*s\"): %s is not in the vocabulary",
             t->what, t->n_merge, shown(left_len), both, shown(len - left_len), both + left_len,
             l < 0   ? "the left part"
             : r < 0 ? "the right part"
                     : "the result");
    if ((t->n_pair + 1) * 2 > t->n_slot)
        FAIL(CORUN_EINTERNAL, "%s: more merges than announced", t->what);
    uint64_t key = (uint64_t)l << 32 | (uint32_t)r;
    size_t i = (size_t)(key * 0x9E3779B97F4A7C15u >> 20) & (t->n_slot - 1);
    while (t->pair[i].key != BPE_NO_PAIR && t->pair[i].key != key) i = (i + 1) & (t->n_slot - 1);
    if (t->pair[i].key == BPE_NO_PAIR) t->n_pair++;
    /* Where a pair stands twice the reference keeps the last rank. */
    t->pair[i] = (bpe_pair){.key = key, .rank = (uint32_t)t->n_merge, .id = id};
    t->n_merge++;
    return CORUN_OK;
}

/* ---- rules ---------------------------------------------------------------------------------- */

corun_status bpe_add_step(bpe *t, const char *re, size_t len, bool literal,
                          pattern_behavior behavior, bool invert, const char *what)
{
    if (t->n_step == BPE_MAX_STEP)
        FAIL(CORUN_EUNSUPPORTED, "%s: more than %d pre-tokenizer steps", what, BPE_MAX_STEP);
    bpe_step *s = &t->step[t->n_step];
    TRY(pattern_parse(&s->pattern, re, len, literal, what));
    s->behavior = behavior;
    s->invert = invert;
    t->n_step++;
    buf_printf(&t->rules, "step %d %d %d %zu:", literal, (int)behavior, invert, len);
    buf_put(&t->rules, re, len);
    buf_putc(&t->rules, '\n');
    return buf_status(&t->rules);
}

corun_status bpe_add_name(bpe *t, const char *name, const char *text, size_t len)
{
    bpe_name *a = mem_realloc(t->name, t->n_name + 1, sizeof *a, "special tokens");
    if (!a) return CORUN_ENOMEM;
    t->name = a;
    bpe_name n = {.name = mem_dup(name, strlen(name), "special token"),
                  .text = mem_dup(text, len, "special token")};
    if (!n.name || !n.text) {
        mem_free(n.name);
        mem_free(n.text);
        return CORUN_ENOMEM;
    }
    t->name[t->n_name++] = n;
    buf_printf(&t->rules, "name %s %zu:", name, len);
    buf_put(&t->rules, text, len);
    buf_putc(&t->rules, '\n');
    return buf_status(&t->rules);
}

corun_status bpe_add_around(bpe *t, bool suffix, const int32_t *id, size_t n)
{
    int32_t **list = suffix ? &t->suffix : &t->prefix;
    size_t *have = suffix ? &t->n_suffix : &t->n_prefix;
    if (*have + n > 64) FAIL(CORUN_EUNSUPPORTED, "%s: post-processor adds too much", t->what);
    int32_t *p = mem_realloc(*list, *have + n, sizeof *p, "special tokens");
    if (!p) return CORUN_ENOMEM;
    *list = p;
    if (!suffix) memmove(p + n, p, *have * sizeof *p);
    if (n) memcpy(suffix ? p + *have : p, id, n * sizeof *p);
    *have += n;
    return CORUN_OK;
}

/* ---- finishing ------------------------------------------------------------------------------ */

typedef struct added_order {
    const char *s;
    uint32_t len, at;
} added_order;

static int added_compare(const void *pa, const void *pb)
{
    const added_order *a = pa, *b = pb;
    uint32_t n = a->len < b->len ? a->len : b->len;
    int c = memcmp(a->s, b->s, n);
    if (c) return c;
    return a->len < b->len ? -1 : a->len > b->len;
}

static corun_status make_matcher(const bpe *t, bpe_matcher *m, bool normalized)
{
    added_order *o;
    if (!MEM_NEW(o, t->n_added)) return CORUN_ENOMEM;
    if (!MEM_NEW(m->at, t->n_added)) {
        mem_free(o);
        return CORUN_ENOMEM;
    }
    for (size_t i = 0; i < t->n_added; i++)
        if (t->added[i].normalized == normalized)
            o[m->n++] = (added_order){
                .s = t->arena.data + t->added[i].off, .len = t->added[i].len, .at = (uint32_t)i};
    qsort(o, m->n, sizeof *o, added_compare);
    size_t k = 0;
    for (unsigned b = 0; b <= 256; b++) {
        while (k < m->n && (unsigned char)o[k].s[0] < b) k++;
        m->first[b] = (uint32_t)k;
    }
    for (size_t i = 0; i < m->n; i++) m->at[i] = o[i].at;
    mem_free(o);
    return CORUN_OK;
}

int32_t bpe_match(const bpe *t, const bpe_matcher *m, const char *s, size_t len)
{
    size_t lo = m->first[(unsigned char)s[0]], hi = m->first[(unsigned char)s[0] + 1];
    int32_t best = -1;
    for (size_t depth = 1; lo < hi; depth++) {
        /* [lo, hi) begin with s[0 ... depth); the shortest of them is the first. */
        const bpe_added *a = &t->added[m->at[lo]];
        if (a->len == depth) {
            best = (int32_t)m->at[lo++];
        }
        if (depth == len) break;
        unsigned char want = (unsigned char)s[depth];
        for (int upper = 0; upper < 2; upper++) {
            size_t x = lo, y = hi;
            while (x < y) {
                size_t mid = (x + y) / 2;
                unsigned char c = (unsigned char)t->arena.data[t->added[m->at[mid]].off + depth];
                if (c < want || (upper && c == want))
                    x = mid + 1;
                else
                    y = mid;
            }
            if (upper)
                hi = x;
            else
                lo = x;
        }
    }
    return best;
}

/* The text of a normalized added token is itself brought to NFC. */
static corun_status normalize_added(bpe *t)
{
    if (!t->nfc) return CORUN_OK;
    buf b;
    buf_init(&b, 1u << 20);
    corun_status st = CORUN_OK;
    for (size_t i = 0; i < t->n_added && st == CORUN_OK; i++) {
        bpe_added *a = &t->added[i];
        bool changed = false;
        if (!a->normalized) continue;
        buf_reset(&b);
        st = unicode_nfc(t->arena.data + a->off, a->len, &b, &changed);
        if (st != CORUN_OK || !changed) continue;
        a->off = (uint32_t)t->arena.len;
        a->len = (uint32_t)b.len;
        buf_put(&t->arena, b.data, b.len);
        st = buf_status(&t->arena);
    }
    buf_free(&b);
    return st;
}

static corun_status make_digest(bpe *t)
{
    digest_stream *d = digest_open();
    if (!d) return CORUN_ENOMEM;
    for (size_t i = 0; i < t->n_tok; i++) {
        uint32_t head[2] = {t->tok[i].len, t->tok[i].flags & ((1u << BPE_TOK_INDEX) - 1)};
        digest_add(d, head, sizeof head);
        if (t->tok[i].len) digest_add(d, t->arena.data + t->tok[i].off, t->tok[i].len);
    }
    for (size_t i = 0; i < t->n_added; i++) {
        const bpe_added *a = &t->added[i];
        uint32_t head[7] = {(uint32_t)a->id, a->len,    a->special,   a->single_word,
                            a->lstrip,       a->rstrip, a->normalized};
        digest_add(d, head, sizeof head);
        digest_add(d, t->arena.data + a->off, a->len);
    }
    /* The table's order is a function of the merges and their order alone. */
    for (size_t i = 0; i < t->n_slot; i++)
        if (t->pair[i].key != BPE_NO_PAIR) digest_add(d, &t->pair[i], sizeof t->pair[i]);
    buf_printf(&t->rules, "nfc %d ignore_merges %d unk %d fuse_unk %d bos %d eos %d", t->nfc,
               t->ignore_merges, t->unk, t->fuse_unk, t->bos, t->eos);
    for (size_t i = 0; i < t->n_prefix; i++) buf_printf(&t->rules, " <%d", t->prefix[i]);
    for (size_t i = 0; i < t->n_suffix; i++) buf_printf(&t->rules, " >%d", t->suffix[i]);
    corun_status st = buf_status(&t->rules);
    if (st == CORUN_OK) {
        digest_add(d, t->rules.data, t->rules.len);
        t->digest = digest_value(d);
    }
    digest_close(d);
    return st;
}

corun_status bpe_finish(bpe *t)
{
    bool long_token = false;
    size_t n_mapped = 0;
    for (size_t i = 0; i < t->n_tok; i++) {
        if (!(t->tok[i].flags & BPE_TOK_MAPPED)) continue;
        n_mapped++;
        if (t->tok[i].len > 1 && !(t->tok[i].flags & BPE_TOK_ADDED)) long_token = true;
    }
    if (!n_mapped) FAIL(CORUN_EFORMAT, "%s: the vocabulary has no token of text", t->what);
    if (!t->n_merge && long_token)
        FAIL(CORUN_EFORMAT, "%s: no merges, but tokens of more than one byte", t->what);
    for (int b = 0; b < 256; b++) {
        char c = (char)b;
        t->byte_id[b] = bpe_map_find(t, &t->mapped, &c, 1);
    }
    TRY(normalize_added(t));
    TRY(make_matcher(t, &t->raw, false));
    TRY(make_matcher(t, &t->normalized, true));
    return make_digest(t);
}
