/* bpe_merge.c - one piece of bytes to ids. Invariant: the pair of lowest rank, leftmost first, is
 * merged until none is left; short and long pieces take two ways to the same result. */
#include <string.h>

#include "text/bpe_int.h"

#define NO_RANK UINT32_MAX
#define SHORT   24 /* symbols up to which a plain search for the lowest rank is faster */

void bpe_word_free(bpe_word *w)
{
    mem_free(w->heap);
    mem_free(w->next);
    mem_free(w->prev);
    mem_free(w->rank);
    mem_free(w->merged);
    mem_free(w->sym);
    *w = (bpe_word){0};
}

static corun_status word_room(bpe_word *w, size_t n)
{
    if (n <= w->cap) return CORUN_OK;
    if (n >= UINT32_MAX / 4) FAIL(CORUN_ECAPACITY, "a piece of %zu bytes", n);
    size_t cap = n < 256 ? 256 : n + n / 2;
    bpe_word_free(w);
    if (!MEM_NEW(w->sym, cap) || !MEM_NEW(w->merged, cap) || !MEM_NEW(w->rank, cap) ||
        !MEM_NEW(w->prev, cap) || !MEM_NEW(w->next, cap) || !MEM_NEW(w->heap, cap * 3))
        return CORUN_ENOMEM;
    w->cap = cap;
    return CORUN_OK;
}

corun_status bpe_push_id(bpe_ids *ids, int32_t id, size_t max)
{
    if (ids->n >= max) FAIL(CORUN_ECAPACITY, "text of more than %zu tokens", max);
    if (ids->n == ids->cap) {
        size_t cap = ids->cap ? ids->cap * 2 : 64;
        int32_t *p = mem_realloc(ids->id, cap, sizeof *p, "token ids");
        if (!p) return CORUN_ENOMEM;
        ids->id = p;
        ids->cap = cap;
    }
    ids->id[ids->n++] = id;
    return CORUN_OK;
}

/* Rank of the pair (NO_RANK: no such merge) and the id that it becomes. */
static inline uint32_t pair_rank(const bpe *t, int32_t l, int32_t r, int32_t *id)
{
    uint64_t key = (uint64_t)l << 32 | (uint32_t)r;
    size_t i = (size_t)(key * 0x9E3779B97F4A7C15u >> 20) & (t->n_slot - 1);
    while (t->pair[i].key != key) {
        if (t->pair[i].key == BPE_NO_PAIR) return NO_RANK;
        i = (i + 1) & (t->n_slot - 1);
    }
    *id = t->pair[i].id;
    return t->pair[i].rank;
}

static size_t merge_short(const bpe *t, bpe_word *w, size_t n)
{
    int32_t *sym = w->sym;
    for (size_t i = 0; i + 1 < n; i++) w->rank[i] = pair_rank(t, sym[i], sym[i + 1], &w->merged[i]);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (w->rank[i] < w->rank[best]) best = i;
        if (w->rank[best] == NO_RANK) break;
        sym[best] = w->merged[best];
        size_t tail = n - best - 2;
        memmove(sym + best + 1, sym + best + 2, tail * sizeof *sym);
        memmove(w->rank + best, w->rank + best + 1, tail * sizeof *w->rank);
        memmove(w->merged + best, w->merged + best + 1, tail * sizeof *w->merged);
        n--;
        if (best > 0)
            w->rank[best - 1] = pair_rank(t, sym[best - 1], sym[best], &w->merged[best - 1]);
        if (best + 1 < n) w->rank[best] = pair_rank(t, sym[best], sym[best + 1], &w->merged[best]);
    }
    return n;
}

/* ---- long pieces: a heap of rank << 32 | position ------------------------------------------- */

static void heap_up(uint64_t *h, size_t i)
{
    uint64_t x = h[i];
    while (i > 0 && h[(i - 1) / 2] > x) {
        h[i] = h[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    h[i] = x;
}

static void heap_down(uint64_t *h, size_t n, size_t i)
{
    uint64_t x = h[i];
    for (;;) {
        size_t k = 2 * i + 1;
        if (k >= n) break;
        if (k + 1 < n && h[k + 1] < h[k]) k++;
        if (h[k] >= x) break;
        h[i] = h[k];
        i = k;
    }
    h[i] = x;
}

/* Looks at the pair that begins at position i; a merge goes on the heap. */
static void offer(const bpe *t, bpe_word *w, size_t n, uint32_t i, size_t *n_heap)
{
    uint32_t j = w->next[i];
    w->rank[i] = j < n ? pair_rank(t, w->sym[i], w->sym[j], &w->merged[i]) : NO_RANK;
    if (w->rank[i] == NO_RANK) return;
    w->heap[*n_heap] = (uint64_t)w->rank[i] << 32 | i;
    heap_up(w->heap, (*n_heap)++);
}

/* Room: n - 1 first offers and two for each of at most n - 1 merges. */
static size_t merge_long(const bpe *t, bpe_word *w, size_t n)
{
    size_t n_heap = 0, k = 0;
    for (size_t i = 0; i < n; i++) {
        w->prev[i] = (uint32_t)i - 1;
        w->next[i] = (uint32_t)i + 1;
    }
    for (size_t i = 0; i < n; i++) offer(t, w, n, (uint32_t)i, &n_heap);
    while (n_heap) {
        uint64_t top = w->heap[0];
        w->heap[0] = w->heap[--n_heap];
        if (n_heap) heap_down(w->heap, n_heap, 0);
        uint32_t i = (uint32_t)top;
        if (w->sym[i] < 0 || w->rank[i] != top >> 32) continue; /* not that pair any more */
        uint32_t j = w->next[i];
        w->sym[i] = w->merged[i];
        w->sym[j] = -1;
        w->next[i] = w->next[j];
        if (w->next[i] < n) w->prev[w->next[i]] = i;
        offer(t, w, n, i, &n_heap);
        if (i > 0) offer(t, w, n, w->prev[i], &n_heap);
    }
    for (size_t i = 0; i < n; i++)
        if (w->sym[i] >= 0) w->sym[k++] = w->sym[i];
    return k;
}

corun_status bpe_merge(const bpe *t, bpe_word *w, const char *s, size_t len, size_t max,
                       bpe_ids *out)
{
    if (t->ignore_merges || len == 1) {
        int32_t id = bpe_map_find(t, &t->mapped, s, len);
        if (id >= 0) return bpe_push_id(out, id, max);
    }
    TRY(word_room(w, len));
    size_t n = 0;
    bool last_unk = false;
    for (size_t i = 0; i < len; i++) {
        int32_t id = t->byte_id[(unsigned char)s[i]];
        /* A byte without a token: the unknown token where the file has one, else nothing, as the
         * reference does it. Its neighbours may then merge. */
        bool unk = id < 0;
        if (unk && (t->unk < 0 || (last_unk && t->fuse_unk))) continue;
        w->sym[n++] = unk ? t->unk : id;
        last_unk = unk;
    }
    if (t->n_pair) n = n <= SHORT ? merge_short(t, w, n) : merge_long(t, w, n);
    for (size_t i = 0; i < n; i++) TRY(bpe_push_id(out, w->sym[i], max));
    return CORUN_OK;
}
