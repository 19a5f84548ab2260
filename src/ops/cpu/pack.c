/* pack.c - owns packed weights and rope tables of the CPU backend.
 *
 * A matrix is read in order by the calling thread, a piece at a time, while the other workers pack
 * the piece before it. Packed matrices lie in large chunks, so that the kernel can back them with
 * large pages. Invariant: a chunk is freed when its last matrix is closed. */
#include "ops/cpu/backend.h"

#include <stdatomic.h>
#include <string.h>

#include "base/mem.h"

#define CHUNK_BYTES ((size_t)16 << 20)
#define HUGE        ((size_t)2 << 20)
#define PIECE_BYTES ((size_t)1 << 20) /* of a matrix that are read at once */

struct cpu_chunk {
    cpu_chunk *next;
    unsigned char *data;
    size_t used, size;
    int n_user;
};

/* Bytes for one matrix from a chunk with room, or from a new one. Not zeroed when reused. */
static corun_status chunk_take(cpu *c, size_t bytes, const char *name, ops_weight *w)
{
    bytes = (bytes + 4095) / 4096 * 4096;
    cpu_chunk *k = c->chunks;
    while (k && k->size - k->used < bytes) k = k->next;
    if (!k) {
        size_t size = bytes > CHUNK_BYTES ? (bytes + HUGE - 1) / HUGE * HUGE : CHUNK_BYTES;
        if (!MEM_NEW(k, 1)) return CORUN_ENOMEM;
        k->data = mem_large(size, name);
        if (!k->data) {
            mem_free(k);
            return CORUN_ENOMEM;
        }
        k->size = size;
        k->next = c->chunks;
        c->chunks = k;
    }
    w->chunk = k;
    w->panel = (uint32_t *)(void *)(k->data + k->used);
    w->bytes = bytes;
    k->used += bytes;
    k->n_user++;
    return CORUN_OK;
}

static void chunk_give(cpu *c, cpu_chunk *k)
{
    if (!k || --k->n_user > 0) return;
    for (cpu_chunk **p = &c->chunks; *p; p = &(*p)->next) {
        if (*p != k) continue;
        *p = k->next;
        break;
    }
    mem_free(k->data);
    mem_free(k);
}

void cpu_chunks_close(cpu *c)
{
    while (c->chunks) {
        cpu_chunk *k = c->chunks;
        c->chunks = k->next;
        mem_free(k->data);
        mem_free(k);
    }
}

typedef struct pack_job {
    const ops_weight_spec *s;
    ops_weight *w;
    const uint16_t *rows; /* the piece to pack: rows [row, row + n) */
    int64_t row, n;
    uint16_t *next_rows; /* the piece to read: rows [next, next + next_n) */
    int64_t next, next_n;
    corun_status st;
    _Atomic int64_t panel; /* next one of the piece */
} pack_job;

/* Panel p of the piece. */
static void pack_panel(const pack_job *j, int64_t p)
{
    const int64_t K = j->w->n_in, left = j->n - p * CPU_PANEL;
    const uint16_t *row = j->rows + p * CPU_PANEL * K;
    uint32_t *out = j->w->panel + (j->row / CPU_PANEL + p) * K * 16;
    if (left < CPU_PANEL) {
        for (int64_t k = 0; k < K; k++)
            for (int64_t o = 0; o < 16; o++)
                out[k * 16 + o] = (o < left ? row[o * K + k] : 0u) |
                                  (16 + o < left ? (uint32_t)row[(16 + o) * K + k] << 16 : 0u);
        return;
    }
    /* Squares of 16 x 16 words, turned in the first-level cache. */
    for (int64_t k0 = 0; k0 < K; k0 += 16) {
        int64_t n = K - k0 < 16 ? K - k0 : 16;
        uint32_t square[16][16];
        for (int64_t o = 0; o < 16; o++) {
            const uint16_t *low = row + o * K + k0, *high = row + (16 + o) * K + k0;
            for (int64_t k = 0; k < n; k++) square[o][k] = low[k] | (uint32_t)high[k] << 16;
        }
        for (int64_t k = 0; k < n; k++)
            for (int64_t o = 0; o < 16; o++) out[(k0 + k) * 16 + o] = square[o][k];
    }
}

static void pack_work(void *arg, int worker, int n_worker)
{
    pack_job *j = arg;
    (void)n_worker;
    if (worker == 0 && j->next_n > 0)
        j->st = j->s->read(j->s->arg, j->next, j->next_n, j->next_rows);
    int64_t p, n = (j->n + CPU_PANEL - 1) / CPU_PANEL;
    while ((p = atomic_fetch_add(&j->panel, 1)) < n) pack_panel(j, p);
}

static corun_status pack_matrix(cpu *c, ops_weight *w, const ops_weight_spec *s)
{
    int64_t most = (int64_t)(PIECE_BYTES / 2) / w->n_in / CPU_PANEL * CPU_PANEL;
    if (most < CPU_PANEL) most = CPU_PANEL;
    uint16_t *piece[2] = {NULL, NULL};
    corun_status st = CORUN_ENOMEM;
    piece[0] = mem_aligned(64, (size_t)(most * w->n_in) * 2, s->name);
    piece[1] = mem_aligned(64, (size_t)(most * w->n_in) * 2, s->name);
    if (!piece[0] || !piece[1]) goto done;
    pack_job j = {.s = s, .w = w, .st = CORUN_OK};
    int64_t have = 0, have_n = 0, next = 0; /* the piece read last, and where the next begins */
    for (int i = 0;; i ^= 1) {
        j.rows = piece[i ^ 1];
        j.row = have;
        j.n = have_n;
        j.next = next;
        j.next_n = w->n_out - next < most ? w->n_out - next : most;
        j.next_rows = piece[i];
        if (j.n == 0 && j.next_n == 0) break;
        atomic_store(&j.panel, 0);
        pool_run(c->threads, pack_work, &j);
        if ((st = j.st) != CORUN_OK) goto done;
        have = next;
        have_n = j.next_n;
        next += have_n;
    }
    st = CORUN_OK;
done:
    mem_free(piece[0]);
    mem_free(piece[1]);
    return st;
}

static corun_status pack_vector(ops_weight *w, const ops_weight_spec *s)
{
    uint16_t *v = mem_alloc((size_t)w->n_in, sizeof *v, s->name);
    if (!v) return CORUN_ENOMEM;
    corun_status st = s->read(s->arg, 0, 1, v);
    if (st == CORUN_OK)
        for (int64_t i = 0; i < w->n_in; i++) w->vec[i] = ops_bf16_wide(v[i]);
    mem_free(v);
    return st;
}

static corun_status pack(cpu *c, ops_weight *w, const ops_weight_spec *s)
{
    if (s->dtype != OPS_BF16)
        FAIL(CORUN_EUNSUPPORTED, "%s: the CPU backend takes bf16 weights only", s->name);
    if ((s->bias != NULL) != (w->bias != NULL))
        FAIL(CORUN_EINVAL, "%s: refilled with another bias", s->name);
    TRY(w->vec ? pack_vector(w, s) : pack_matrix(c, w, s));
    if (s->bias)
        for (int64_t i = 0; i < w->n_out; i++) w->bias[i] = ops_bf16_wide(s->bias[i]);
    return CORUN_OK;
}

/* Scratch of the matmul for matrices of up to n_in columns. */
static corun_status grow_scratch(cpu *c, int64_t n_in)
{
    int64_t n = cpu_matmul_scratch(n_in);
    if (n <= c->scratch_floats) return CORUN_OK;
    float *p = mem_large((size_t)n * (size_t)pool_size(c->threads) * sizeof *p, "matmul scratch");
    if (!p) return CORUN_ENOMEM;
    mem_free(c->scratch);
    c->scratch = p;
    c->scratch_floats = n;
    return CORUN_OK;
}

corun_status cpu_weight_open(ops *o, const ops_weight_spec *s, ops_weight **out)
{
    cpu *c = cpu_of(o);
    *out = NULL;
    if (s->n_out < 1 || s->n_in < 1 || s->n_out > 1 << 30 || s->n_in > 1 << 24)
        FAIL(CORUN_EINVAL, "%s: shape %lld x %lld", s->name, (long long)s->n_out,
             (long long)s->n_in);
    ops_weight *w;
    if (!MEM_NEW(w, 1)) return CORUN_ENOMEM;
    w->n_out = s->n_out;
    w->n_in = s->n_in;
    int64_t n_panel = (s->n_out + CPU_PANEL - 1) / CPU_PANEL;
    corun_status st = CORUN_ENOMEM;
    if (s->bias && !(w->bias = mem_alloc((size_t)n_panel * CPU_PANEL, sizeof *w->bias, s->name)))
        goto fail;
    if (s->n_out == 1) {
        w->bytes = (size_t)s->n_in * sizeof *w->vec;
        if (!(w->vec = mem_alloc((size_t)s->n_in, sizeof *w->vec, s->name))) goto fail;
    } else {
        if ((st = grow_scratch(c, s->n_in)) != CORUN_OK) goto fail;
        if ((st = chunk_take(c, (size_t)(n_panel * s->n_in) * 64, s->name, w)) != CORUN_OK)
            goto fail;
    }
    c->weight_bytes += w->bytes;
    w->counted = true;
    if ((st = pack(c, w, s)) != CORUN_OK) goto fail;
    *out = w;
    return CORUN_OK;
fail:
    cpu_weight_close(o, w);
    return st;
}

corun_status cpu_weight_refill(ops *o, ops_weight *w, const ops_weight_spec *s)
{
    if (s->n_out != w->n_out || s->n_in != w->n_in)
        FAIL(CORUN_EINVAL, "%s: refilled with %lld x %lld, holds %lld x %lld", s->name,
             (long long)s->n_out, (long long)s->n_in, (long long)w->n_out, (long long)w->n_in);
    return pack(cpu_of(o), w, s);
}

void cpu_weight_close(ops *o, ops_weight *w)
{
    if (!w) return;
    cpu *c = cpu_of(o);
    c->weight_bytes -= w->counted ? w->bytes : 0;
    chunk_give(c, w->chunk);
    mem_free(w->vec);
    mem_free(w->bias);
    mem_free(w);
}

/* ---- rope ---------------------------------------------------------------------------------- */

typedef struct rope_job {
    const ops_rope *r;
    int64_t n_ctx, half;
} rope_job;

static void rope_work(void *arg, int worker, int n_worker)
{
    const rope_job *j = arg;
    int64_t b, e;
    pool_slice(j->n_ctx, 1, worker, n_worker, &b, &e);
    ops_rope_rows(j->r->inv_freq, j->r->scale, j->half, b, e - b, j->half, j->r->cos, j->r->sin);
}

static corun_status rope_table(cpu *c, ops_rope *r, int32_t n_ctx)
{
    size_t half = (size_t)c->base.dims.d_head / 2;
    mem_free(r->cos);
    mem_free(r->sin);
    r->sin = NULL;
    r->cos = mem_alloc((size_t)n_ctx * half, sizeof *r->cos, "rope table");
    if (!r->cos) return CORUN_ENOMEM;
    r->sin = mem_alloc((size_t)n_ctx * half, sizeof *r->sin, "rope table");
    if (!r->sin) return CORUN_ENOMEM;
    rope_job j = {.r = r, .n_ctx = n_ctx, .half = (int64_t)half};
    pool_run(c->threads, rope_work, &j);
    return CORUN_OK;
}

corun_status cpu_rope_tables(cpu *c, int32_t n_ctx)
{
    for (ops_rope *r = c->ropes; r; r = r->next) TRY(rope_table(c, r, n_ctx));
    return CORUN_OK;
}

corun_status cpu_rope_open(ops *o, const float *inv_freq, double scale, ops_rope **out)
{
    cpu *c = cpu_of(o);
    *out = NULL;
    ops_rope *r;
    if (!MEM_NEW(r, 1)) return CORUN_ENOMEM;
    size_t half = (size_t)o->dims.d_head / 2;
    r->scale = scale;
    r->next = c->ropes;
    c->ropes = r;
    corun_status st = CORUN_ENOMEM;
    if (MEM_NEW(r->inv_freq, half)) {
        memcpy(r->inv_freq, inv_freq, half * sizeof *inv_freq);
        st = c->configured ? rope_table(c, r, o->conf.n_ctx) : CORUN_OK;
    }
    if (st != CORUN_OK) {
        cpu_rope_close(o, r);
        return st;
    }
    *out = r;
    return CORUN_OK;
}

void cpu_rope_close(ops *o, ops_rope *r)
{
    if (!r) return;
    for (ops_rope **p = &cpu_of(o)->ropes; *p; p = &(*p)->next) {
        if (*p != r) continue;
        *p = r->next;
        break;
    }
    mem_free(r->inv_freq);
    mem_free(r->cos);
    mem_free(r->sin);
    mem_free(r);
}
