/* k_attn.c - causal attention over pages: docs/numerics.md, section 3, in fp32.
 *
 * Work is cut by query vectors (a token and a head), weighed by the positions they see. A worker
 * takes up to TILE_ROW neighbouring vectors of one kv head at a time through the blocks of 128.
 * Reduction order: q.k over the head dimension upward from +0; the row sum in four lanes; o over
 * the keys upward on the scaled o; a key after the vector's position takes no part, so what the
 * page holds there has no effect. Level: phase.
 * Bound: the bytes of K and V over the read bandwidth (decode), the fma rate (prefill). */
#include "base/fault.h"
#include "base/num.h"
#include "ops/cpu/tile.h"

/* Key vectors at once for mr query vectors. */
#define KEYS(mr) ((mr) == 1 ? 8 : (mr) <= 3 ? 4 : (mr) <= 6 ? 2 : 1)

typedef struct attn_tile {
    float q[TILE_ROW * CPU_MAX_D];
    float s[TILE_ROW * CPU_BLOCK]; /* scores, then probabilities */
    float o[TILE_ROW * CPU_MAX_D]; /* of the running chunk */
    float O[TILE_ROW * CPU_MAX_D]; /* of the chunks before it */
    float t[TILE_ROW], l[TILE_ROW][4];
    float T[TILE_ROW], L[TILE_ROW];
    int32_t pos[TILE_ROW];
    int32_t nk[TILE_ROW]; /* keys of the block that the vector sees */
    /* K of the next block by pages, fetched while V is used; K of what follows the tile */
    const char *ahead[8], *then[8];
} attn_tile;

/* K of kv head h (its offset in a page) for the pages of the block from start; NULL: none. */
static void find_ahead(const cpu_kv *kv, const int32_t *page, int64_t h, int64_t start,
                       int64_t last, const char **ahead)
{
    for (int64_t at = start; at < start + CPU_BLOCK; at += kv->page_tokens, ahead++)
        *ahead =
            at > last ? NULL : (const char *)(kv->data + page[at / kv->page_tokens] * kv->page + h);
}

/* next: V of the keys, of which 4 VW bytes are fetched for each word of k. */
CPU_INLINE void scores_group(const int mr, const int nv, const float *q, const uint32_t *const *k,
                             const char *const *next, int64_t half, float *s)
{
    vf acc[2 * TILE_ROW > 16 ? 2 * TILE_ROW : 16];
    CPU_UNROLL for (int i = 0; i < mr * nv; i++) acc[i] = vf_zero();
    for (int64_t i = 0; i < half; i++) {
        CPU_UNROLL for (int v = 0; v < nv; v++)
        {
            vu word = vu_load(k[v] + i * CPU_KEYS);
            __builtin_prefetch(next[v] + i * (4 * VW));
            vf lo = vu_low(word), hi = vu_high(word);
            CPU_UNROLL for (int r = 0; r < mr; r++)
            {
                vf a = vf_fma(vf_all(q[r * CPU_MAX_D + 2 * i]), lo, acc[r * nv + v]);
                acc[r * nv + v] = vf_fma(vf_all(q[r * CPU_MAX_D + 2 * i + 1]), hi, a);
            }
        }
    }
    CPU_UNROLL for (int r = 0; r < mr; r++) CPU_UNROLL for (int v = 0; v < nv; v++)
        vf_store(s + r * CPU_BLOCK + v * VW, acc[r * nv + v]);
}

/* V of kv head h (its offset in a page) from token `at` of the sequence on. */
static const uint32_t *value_at(const cpu_kv *kv, const int32_t *page, int64_t h, int64_t at)
{
    const uint16_t *p = kv->data + page[at / kv->page_tokens] * kv->page + h;
    p += (int64_t)kv->d * kv->page_tokens + at % kv->page_tokens * kv->dp;
    return (const uint32_t *)(const void *)p;
}

/* K of kv head h for the key vector at token `at` of the sequence. */
static const uint32_t *key_at(const cpu_kv *kv, const int32_t *page, int64_t h, int64_t at)
{
    const uint16_t *p = kv->data + page[at / kv->page_tokens] * kv->page + h;
    p += at % kv->page_tokens / CPU_KEYS * CPU_KEYS * kv->d;
    return (const uint32_t *)(const void *)p + at % CPU_KEYS;
}

CPU_INLINE void scores_of(const int mr, attn_tile *a, const cpu_kv *kv, const int32_t *page,
                          int64_t h, int64_t start, int64_t nk)
{
    const int nv = KEYS(mr);
    for (int64_t v = 0; v * VW < nk; v += nv) {
        const uint32_t *k[8];
        const char *next[8];
        for (int i = 0; i < nv; i++) {
            int64_t at = (v + i) * VW;
            if (at >= nk) at = (nk - 1) / VW * VW; /* not used, but in a page of ours */
            k[i] = key_at(kv, page, h, start + at);
            next[i] = (const char *)value_at(kv, page, h, start + at);
        }
        scores_group(mr, nv, a->q, k, next, kv->d / 2, a->s + v * VW);
    }
}

static void scores(int mr, attn_tile *a, const cpu_kv *kv, const int32_t *page, int64_t h,
                   int64_t start, int64_t nk)
{
    switch (mr) {
#define CASE(n)                                                                                    \
    case n: scores_of(n, a, kv, page, h, start, nk); break;
        CPU_CASES(CASE)
#undef CASE
    default: break;
    }
}

/* o of mr vectors from r0 on += P V for keys [j, j_end) of the block. */
CPU_INLINE void values_of(const int mr, const int ns, attn_tile *a, int r0, const cpu_kv *kv,
                          const int32_t *page, int64_t h, int64_t start, int64_t j, int64_t j_end)
{
    const int64_t pt = kv->page_tokens, stride = kv->dp / 2;
    while (j < j_end) {
        int64_t at = start + j, n = pt - at % pt < j_end - j ? pt - at % pt : j_end - j;
        const uint32_t *words = value_at(kv, page, h, at);
        const char *next =
            a->ahead[j / pt] ? a->ahead[j / pt] + at % pt * kv->d * 2 : (const char *)words;
        for (int64_t strip = 0; strip < kv->dp / CPU_PANEL * CPU_STRIPS; strip += ns) {
            const uint32_t *w[4];
            vf acc[TILE_ROW * 2 > 16 ? TILE_ROW * 2 : 16];
            float *o = a->o + r0 * CPU_MAX_D;
            const char *fetch[4] = {NULL};
            CPU_UNROLL for (int s = 0; s < ns; s++)
            {
                w[s] = words + (strip + s) * VW;
                fetch[s] = next + (strip * n + s) * (4 * VW);
            }
            CPU_UNROLL for (int r = 0; r < mr; r++) CPU_UNROLL for (int s = 0; s < ns; s++)
            {
                int64_t c = (strip + s) / CPU_STRIPS * CPU_PANEL + (strip + s) % CPU_STRIPS * VW;
                acc[(r * ns + s) * 2] = vf_load(o + r * CPU_MAX_D + c);
                acc[(r * ns + s) * 2 + 1] = vf_load(o + r * CPU_MAX_D + c + 16);
            }
            tile_bf16(mr, ns, a->s + r0 * CPU_BLOCK + j, w, stride, n, fetch, ns * 4 * VW, acc);
            CPU_UNROLL for (int r = 0; r < mr; r++) CPU_UNROLL for (int s = 0; s < ns; s++)
            {
                int64_t c = (strip + s) / CPU_STRIPS * CPU_PANEL + (strip + s) % CPU_STRIPS * VW;
                vf_store(o + r * CPU_MAX_D + c, acc[(r * ns + s) * 2]);
                vf_store(o + r * CPU_MAX_D + c + 16, acc[(r * ns + s) * 2 + 1]);
            }
        }
        j += n;
    }
}

static void values(int mr, attn_tile *a, int r0, const cpu_kv *kv, const int32_t *page, int64_t h,
                   int64_t start, int64_t j, int64_t j_end)
{
    const bool group = kv->dp / CPU_PANEL * CPU_STRIPS % CPU_GROUP(mr) == 0;
    switch (mr) {
#define CASE(n)                                                                                    \
    case n:                                                                                        \
        if (group)                                                                                 \
            values_of(n, CPU_GROUP(n), a, r0, kv, page, h, start, j, j_end);                       \
        else                                                                                       \
            values_of(n, 1, a, r0, kv, page, h, start, j, j_end);                                  \
        break;
        CPU_CASES(CASE)
#undef CASE
    default: break;
    }
}

/* Scores of vector r to probabilities; t and l move on, o is scaled. */
static void softmax(attn_tile *a, int r, float c, int64_t dp)
{
    float *s = a->s + r * CPU_BLOCK, *o = a->o + r * CPU_MAX_D;
    int64_t nk = a->nk[r], n = (nk + 15) / 16 * 16;
    for (int64_t j = nk; j < n; j++) s[j] = -INFINITY;
    vf top = vf_load(s);
    for (int64_t j = VW; j < n; j += VW) top = vf_max(top, vf_load(s + j));
    float lane[VW], m;
    vf_store(lane, top);
    m = lane[0];
    for (int i = 1; i < VW; i++) m = lane[i] > m ? lane[i] : m;
    float cm = c * m, t = a->t[r] > cm ? a->t[r] : cm;
    float base = t == -INFINITY ? 0.0f : t;
    float scale = num_exp2f(a->t[r] - base);
    a->t[r] = t;
    for (int64_t j = 0; j < n; j++) s[j] = num_exp2f(cpu_fmaf(s[j], c, -base));
    float sum[4] = {0};
    for (int64_t j = 0; j < n; j += 8) {
        for (int q = 0; q < 4; q++) sum[q] += s[j + 2 * q];
        for (int q = 0; q < 4; q++) sum[q] += s[j + 2 * q + 1];
    }
    for (int q = 0; q < 4; q++) a->l[r][q] = cpu_fmaf(a->l[r][q], scale, sum[q]);
    for (int64_t j = 0; j < n; j++) s[j] = cpu_rounded(s[j]);
    if (scale != 1.0f)
        for (int64_t i = 0; i < dp; i++) o[i] *= scale;
}

/* The chunk of vector r is complete. */
static void fold(attn_tile *a, int r, bool first, bool swapped, int64_t dp)
{
    float *o = a->o + r * CPU_MAX_D, *O = a->O + r * CPU_MAX_D;
    float l = (a->l[r][0] + a->l[r][1]) + (a->l[r][2] + a->l[r][3]);
    if (first) {
        a->T[r] = a->t[r];
        a->L[r] = l;
        memcpy(O, o, (size_t)dp * sizeof *o);
        return;
    }
    float t = a->T[r] > a->t[r] ? a->T[r] : a->t[r];
    float base = t == -INFINITY ? 0.0f : t;
    float A = num_exp2f(a->T[r] - base), B = num_exp2f(a->t[r] - base);
    a->T[r] = t;
    a->L[r] = cpu_fmaf(l, B, a->L[r] * A);
    for (int64_t i = 0; i < dp; i++)
        O[i] = swapped ? cpu_fmaf(O[i], A, o[i] * B) : cpu_fmaf(o[i], B, O[i] * A);
}

/* One block for all vectors of the tile; keys behind the last position do not exist. */
static void block(int mr, attn_tile *a, const cpu_attn_job *j, const int32_t *page, int64_t h,
                  int64_t start)
{
    const cpu_kv *kv = &j->kv;
    int64_t all = CPU_BLOCK, most = 0;
    for (int r = 0; r < mr; r++) {
        int64_t nk = a->pos[r] - start + 1;
        a->nk[r] = (int32_t)(nk < 0 ? 0 : nk > CPU_BLOCK ? CPU_BLOCK : nk);
        all = a->nk[r] < all ? a->nk[r] : all;
        most = a->nk[r] > most ? a->nk[r] : most;
    }
    scores(mr, a, kv, page, h, start, most);
    for (int r = 0; r < mr; r++)
        if (a->nk[r] > 0) softmax(a, r, j->c, kv->dp);
    values(mr, a, 0, kv, page, h, start, 0, all);
    for (int r = 0; r < mr; r++)
        if (a->nk[r] > all) values(1, a, r, kv, page, h, start, all, a->nk[r]);
}

static void vectors(int mr, attn_tile *a, const cpu_attn_job *j, const int32_t *page, int64_t h)
{
    const int64_t dp = j->kv.dp;
    const bool many = j->r->n_seq > 1 && j->cost > 300 * (int64_t)j->kv.n_head;
    const int64_t size = FAULT(LOAD_SPLIT) && many ? CPU_BLOCK : CPU_CHUNK;
    const bool swapped = FAULT(FOLD_ORDER) && j->r->n_tok > j->r->n_seq;
    int32_t last = 0;
    for (int r = 0; r < mr; r++) last = a->pos[r] > last ? a->pos[r] : last;
    for (int64_t chunk = 0; chunk <= last; chunk += size) {
        for (int r = 0; r < mr; r++) {
            a->t[r] = -INFINITY;
            memset(a->l[r], 0, sizeof a->l[r]);
            memset(a->o + r * CPU_MAX_D, 0, (size_t)dp * sizeof *a->o);
        }
        for (int64_t b = chunk; b <= last && b < chunk + size; b += CPU_BLOCK) {
            memcpy(a->ahead, a->then, sizeof a->ahead);
            if (b + CPU_BLOCK <= last) find_ahead(&j->kv, page, h, b + CPU_BLOCK, last, a->ahead);
            block(mr, a, j, page, h, b);
        }
        for (int r = 0; r < mr; r++)
            if (a->pos[r] >= chunk) fold(a, r, chunk == 0, swapped, dp);
    }
}

/* Vectors [v, v_end) of kv head g and sequence seq: v counts heads of the group fastest. */
static void run_vectors(const cpu_attn_job *j, attn_tile *a, int64_t seq, int64_t g, int64_t v,
                        int64_t v_end)
{
    const cpu_kv *kv = &j->kv;
    const int64_t d = kv->d, group = kv->n_head / kv->n_kv, tok = j->r->seq_tok[seq];
    const int32_t *page = rows_pages(j->r, (int32_t)seq);
    while (v < v_end) {
        int64_t n_tile = (v_end - v + TILE_ROW - 1) / TILE_ROW, mr = (v_end - v) / n_tile;
        for (int64_t r = 0; r < mr; r++) {
            int64_t t = tok + (v + r) / group, head = g * group + (v + r) % group;
            const uint16_t *q = j->q + (t * kv->n_head + head) * d;
            a->pos[r] = j->r->pos[t];
            for (int64_t i = 0; i < d; i++) a->q[r * CPU_MAX_D + i] = cpu_wide(q[i]);
        }
        vectors((int)mr, a, j, page, kv->layer + g * kv->head);
        for (int64_t r = 0; r < mr; r++) {
            int64_t t = tok + (v + r) / group, head = g * group + (v + r) % group;
            uint16_t *out = j->out + (t * kv->n_head + head) * d;
            float inv = 1.0f / a->L[r];
            for (int64_t i = 0; i < d; i++) out[i] = cpu_round(a->O[r * CPU_MAX_D + i] * inv);
        }
        v += mr;
    }
}

void CPU_NAME(k_attention)(void *job, int worker, int n_worker);
void CPU_NAME(k_attention)(void *job, int worker, int n_worker)
{
    const cpu_attn_job *j = job;
    const int64_t group = j->kv.n_head / j->kv.n_kv;
    const int64_t lo = j->cost * worker / n_worker, hi = j->cost * (worker + 1) / n_worker;
    attn_tile a;
    int64_t at = 0; /* cost of all vectors before this one */
    for (int64_t seq = 0; seq < j->r->n_seq; seq++) {
        int64_t tok = j->r->seq_tok[seq], n = (j->r->seq_tok[seq + 1] - tok) * group;
        for (int64_t g = 0; g < j->kv.n_kv; g++) {
            int64_t b = -1, e = -1;
            for (int64_t v = 0; v < n; v++) {
                if (at >= lo && at < hi) {
                    if (b < 0) b = v;
                    e = v + 1;
                }
                at += j->r->pos[tok + v / group] + 1;
            }
            if (b < 0) continue;
            int64_t next = g + 1 < j->kv.n_kv ? seq : seq + 1, h = next == seq ? g + 1 : 0;
            memset(a.then, 0, sizeof a.then);
            if (next < j->r->n_seq)
                find_ahead(&j->kv, rows_pages(j->r, (int32_t)next), j->kv.layer + h * j->kv.head, 0,
                           j->r->pos[j->r->seq_tok[next + 1] - 1], a.then);
            run_vectors(j, &a, seq, g, b, e);
        }
    }
}
