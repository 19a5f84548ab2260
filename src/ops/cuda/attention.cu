/* attention.cu - owns the attention of a step: its workspace, the list of its work, its launches.
 * The kernels are in attention_decode.cuh and attention_prefill.cuh.
 *
 * Chunk lengths: canonical 4 blocks, fixed 16. standard, decode: what the load of the whole step
 * asks for (splits that fill the device). standard, prefill: the row's own length, cut where its
 * tiles alone would leave most of the device idle.
 * Invariant: the grid and the arguments of a launch follow from the shape of the step; lists and
 * chunk lengths are made on the device. Without room for the states of a row's chunks its items
 * fold in registers: slower, the same bits. */
#include <math.h>

extern "C" {
#include "base/mem.h"
}

#include "ops/cuda/attention.h"
#include "ops/cuda/attention_decode.cuh"
#include "ops/cuda/attention_prefill.cuh"

enum {
    PLAN_THREADS = 1024,
    STATE_FLOOR = 64 << 20 /* bytes of states, where so many can be of use */
};

struct gpu_attn {
    const gpu *g;
    gpu_kv kv;
    int32_t n_head;
    ops_set decode_set, prefill_set;
    int32_t max_slots, slots, decode_room, prefill_room;
    attn_work *work;
    attn_item *decode, *prefill;
    uint32_t *done;
    float2 *state_tl;
    float *state_o;
    float *out_fp32;
    bool downward;
    void (*decode_kernel)(const attn_args);
    void (*prefill_kernel)(const attn_args);
    void (*fold_kernel)(const attn_args);
    int decode_bytes, prefill_bytes;
};

/* ---- the work of a step, made on the device ------------------------------------------------- */

struct plan_args {
    const int32_t *row_tok, *row_pos, *row_len;
    int32_t rows, n_head, n_kv, sm_count, slots, decode_room, prefill_room;
    ops_set decode_set, prefill_set;
    attn_work *work;
    attn_item *decode, *prefill;
};

DEVICE int32_t ceil_div(int32_t a, int32_t b) { return (a + b - 1) / b; }

/* The sum of v over the threads before this one, in thread order; *total: over all. */
static __device__ int32_t sum_before(int32_t v, int32_t *total)
{
    __shared__ int32_t of_warp[PLAN_THREADS / 32];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int32_t sum = v;
    for (int step = 1; step < 32; step *= 2) {
        int32_t below = __shfl_up_sync(~0u, sum, step);
        if (lane >= step) sum += below;
    }
    __syncthreads();
    if (lane == 31) of_warp[warp] = sum;
    __syncthreads();
    int32_t before = 0, all = 0;
    for (int w = 0; w < PLAN_THREADS / 32; w++) {
        if (w < warp) before += of_warp[w];
        all += of_warp[w];
    }
    *total = all;
    return before + sum - v;
}

/* How a row's work is cut. */
struct row_cut {
    int32_t position, length; /* length 0: a dead row or none */
    int32_t chunk;            /* blocks */
    int32_t tiles;            /* prefill */
    int32_t piece;            /* chunks of an item; 0: all, folded in registers */
};

/* Chunks that exist for the last row of tile i. */
DEVICE int32_t chunks_of_tile(const row_cut &c, int32_t i)
{
    int32_t last = c.position + min((i + 1) * (int32_t)ATTN_TILE, c.length) - 1;
    return last / (ATTN_BLOCK * c.chunk) + 1;
}

/* Slots that the row's states take; 0: none. */
DEVICE int32_t slots_of_row(const row_cut &c)
{
    if (c.length == 0 || c.piece == 0) return 0;
    if (c.length == 1) return chunks_of_tile(c, 0);
    int32_t n = 0;
    for (int32_t i = 0; i < c.tiles; i++) {
        int32_t chunks = chunks_of_tile(c, i);
        if (chunks > c.piece) n += chunks * min((int32_t)ATTN_TILE, c.length - i * ATTN_TILE);
    }
    return n;
}

DEVICE int32_t items_of_row(const row_cut &c)
{
    if (c.length == 0) return 0;
    if (c.piece == 0) return c.length == 1 ? 1 : c.tiles;
    int32_t n = 0;
    for (int32_t i = 0; i < (c.length == 1 ? 1 : c.tiles); i++)
        n += ceil_div(chunks_of_tile(c, i), c.piece);
    return n;
}

/* decode_blocks, tiles: of the whole step. */
DEVICE row_cut cut_row(const plan_args &p, int32_t row, int32_t decode_blocks, int32_t tiles)
{
    row_cut c = {0, 0, ATTN_CANONICAL, 0, 0};
    if (row >= p.rows || p.row_pos[row] < 0) return c;
    c.position = p.row_pos[row];
    c.length = p.row_len[row];
    c.tiles = ceil_div(c.length, ATTN_TILE);
    int32_t blocks = (c.position + c.length - 1) / ATTN_BLOCK + 1;
    ops_set set = c.length == 1 ? p.decode_set : p.prefill_set;
    if (set == OPS_SET_FIXED) c.chunk = ATTN_FIXED;
    if (c.length == 1) {
        if (set == OPS_SET_STANDARD)
            c.chunk = max(2, (int32_t)(((int64_t)decode_blocks * p.n_kv + 4 * p.sm_count - 1) /
                                       (4 * p.sm_count)));
        c.piece = blocks > c.chunk ? 1 : 0;
        return c;
    }
    int64_t items = (int64_t)tiles * p.n_head;
    int32_t pieces = items >= p.sm_count ? 1 : (int32_t)(p.sm_count / items); /* one wave */
    if (set == OPS_SET_STANDARD) c.chunk = max(min(blocks, 4), ceil_div(blocks, pieces));
    int32_t chunks = ceil_div(blocks, c.chunk);
    if (pieces > 1 && chunks > 1) c.piece = ceil_div(chunks, pieces);
    return c;
}

/* Writes the items of tile i of a row from *at on. */
DEVICE void write_tile(attn_item *items, int32_t &at, const row_cut &c, int32_t row, int32_t token,
                       int32_t i, int32_t &slot)
{
    int32_t chunks = chunks_of_tile(c, i), piece = c.piece ? c.piece : chunks;
    int32_t rows = min((int32_t)ATTN_TILE, c.length - i * ATTN_TILE);
    int32_t position = c.position + i * ATTN_TILE;
    int32_t blocks = (position + rows - 1) / ATTN_BLOCK + 1;
    attn_item item = {};
    item.row = row;
    item.token = token + i * ATTN_TILE;
    item.position = position;
    item.rows = rows;
    item.chunk = c.chunk;
    item.pieces = ceil_div(chunks, piece);
    item.slot = item.pieces > 1 ? slot : -1;
    for (int32_t first = 0; first < chunks; first += piece) {
        item.block = first * c.chunk;
        item.blocks = min(piece * c.chunk, blocks - item.block);
        items[at++] = item;
    }
    if (item.slot >= 0) slot += chunks * rows;
}

/* One CTA. A decode row becomes an item a chunk; a tile of a longer row an item, or several where
 * the tiles alone would leave the device idle. Tiles are listed from the last: those with the most
 * blocks first. */
static __global__ void __launch_bounds__(PLAN_THREADS) k_attn_plan(const plan_args p)
{
    int32_t decode_blocks = 0, tiles = 0, all;
    for (int32_t first = 0; first < p.rows; first += PLAN_THREADS) {
        int32_t row = first + (int32_t)threadIdx.x, mine = 0, mine_tiles = 0;
        if (row < p.rows && p.row_pos[row] >= 0) {
            if (p.row_len[row] == 1)
                mine = p.row_pos[row] / ATTN_BLOCK + 1;
            else
                mine_tiles = ceil_div(p.row_len[row], ATTN_TILE);
        }
        sum_before(mine, &all);
        decode_blocks += all;
        sum_before(mine_tiles, &all);
        tiles += all;
    }
    int32_t slots = 0, decode_items = 0, prefill_items = 0;
    for (int32_t first = 0; first < p.rows; first += PLAN_THREADS) {
        int32_t row = first + (int32_t)threadIdx.x;
        row_cut c = cut_row(p, row, decode_blocks, tiles);
        int32_t wanted = slots_of_row(c);
        int32_t slot = slots + sum_before(wanted, &all);
        slots = min(slots + all, p.slots);
        if (slot + wanted > p.slots) c.piece = 0;
        int32_t items = items_of_row(c), single = c.length == 1 ? items : 0;
        int32_t at = decode_items + sum_before(single, &all);
        decode_items += all;
        int32_t at_prefill = prefill_items + sum_before(items - single, &all);
        prefill_items += all;
        if (c.length == 1)
            write_tile(p.decode, at, c, row, p.row_tok[row], 0, slot);
        else
            for (int32_t i = c.tiles - 1; i >= 0; i--)
                write_tile(p.prefill, at_prefill, c, row, p.row_tok[row], i, slot);
    }
    if (threadIdx.x == 0) *p.work = {decode_items, prefill_items, 0, 0, 0, 0};
}

/* ---- host ----------------------------------------------------------------------------------- */

static corun_status check_shape(const ops_dims *d, const ops_conf *c, const gpu_kv *kv)
{
    if (d->d_head != 64 && d->d_head != 128)
        FAIL(CORUN_EUNSUPPORTED,
             "attention: the head dimension is %d; the CUDA kernels take 64 and 128", d->d_head);
    if (d->n_kv < 1 || d->n_head % d->n_kv || d->n_head / d->n_kv > ATTN_MAX_GROUP)
        FAIL(CORUN_EUNSUPPORTED,
             "attention: %d heads on %d kv heads; the CUDA kernels take groups of 1 to %d",
             d->n_head, d->n_kv, (int)ATTN_MAX_GROUP);
    int32_t p = c->page_tokens;
    if (p != 16 && p != 32 && p != 64 && p != 128)
        FAIL(CORUN_EUNSUPPORTED,
             "attention: pages of %d tokens; the CUDA kernels take 16, 32, 64 and 128", p);
    if (kv->page_tokens != p || kv->n_kv != d->n_kv || kv->d_head != d->d_head)
        FAIL(CORUN_EINVAL, "attention: the KV pool is not of the model's shape");
    return CORUN_OK;
}

/* States for every chunk of a pool whose pages two rows share; STATE_FLOOR bytes where the steps
 * have a use for them. */
static int32_t slots_for(const ops_dims *d, const ops_conf *c, int sm_count)
{
    int64_t chunk = ATTN_BLOCK * ATTN_CANONICAL, of_row = (c->n_ctx + chunk - 1) / chunk;
    int64_t pool = 2 * ((int64_t)c->n_page * c->page_tokens / chunk + c->max_row);
    int64_t decode = min(of_row * c->max_row, pool);
    int64_t standard = 4 * (int64_t)sm_count / d->n_kv + c->max_row;
    int64_t floor = STATE_FLOOR / ((int64_t)d->n_head * (d->d_head * 4 + 8));
    return (int32_t)max(max(decode, standard), min(floor, of_row * c->max_tok));
}

template <int D> static void pick_kernels(gpu_attn *a, int32_t group)
{
    a->decode_kernel = group <= 8 ? k_attn_decode<D, 1> : k_attn_decode<D, 2>;
    a->decode_bytes = group <= 8 ? decode_layout<D, 1>::BYTES : decode_layout<D, 2>::BYTES;
    a->prefill_kernel = k_attn_prefill<D>;
    a->fold_kernel = k_attn_fold<D>;
    a->prefill_bytes = prefill_layout<D>::BYTES;
}

static corun_status open_memory(gpu_attn *a, const ops_dims *d, const ops_conf *c)
{
    const gpu *g = a->g;
    a->slots = a->max_slots = slots_for(d, c, g->sm_count);
    a->decode_room = c->max_row + a->slots;
    a->prefill_room = c->max_tok / ATTN_TILE + c->max_row + g->sm_count;
    size_t states = (size_t)a->slots * d->n_head;
    TRY(gpu_alloc(g, (void **)&a->work, sizeof *a->work, "attention's work"));
    TRY(gpu_alloc(g, (void **)&a->decode, (size_t)a->decode_room * sizeof *a->decode,
                  "attention's decode items"));
    TRY(gpu_alloc(g, (void **)&a->prefill, (size_t)a->prefill_room * sizeof *a->prefill,
                  "attention's prefill items"));
    TRY(gpu_alloc(g, (void **)&a->done, (size_t)c->max_row * d->n_kv * 4, "attention's counters"));
    TRY(gpu_alloc(g, (void **)&a->state_tl, states * sizeof *a->state_tl,
                  "attention's states of chunks"));
    return gpu_alloc(g, (void **)&a->state_o, states * d->d_head * 4,
                     "attention's states of chunks");
}

corun_status gpu_attn_open(gpu_attn **out, const gpu *g, const ops_dims *d, const ops_conf *c,
                           const gpu_kv *kv)
{
    *out = NULL;
    TRY(check_shape(d, c, kv));
    gpu_attn *a = (gpu_attn *)mem_alloc(1, sizeof *a, "attention");
    if (!a) return CORUN_ENOMEM;
    a->g = g;
    a->kv = *kv;
    a->n_head = d->n_head;
    a->decode_set = c->set[OPS_OP_ATTN_DECODE];
    a->prefill_set = c->set[OPS_OP_ATTN_PREFILL];
    if (d->d_head == 64)
        pick_kernels<64>(a, d->n_head / d->n_kv);
    else
        pick_kernels<128>(a, d->n_head / d->n_kv);
    corun_status st = gpu_status(
        (int)cudaFuncSetAttribute((const void *)a->decode_kernel,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, a->decode_bytes),
        "shared memory of decode attention");
    if (st == CORUN_OK)
        st = gpu_status((int)cudaFuncSetAttribute((const void *)a->prefill_kernel,
                                                  cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                  a->prefill_bytes),
                        "shared memory of prefill attention");
    if (st == CORUN_OK) st = open_memory(a, d, c);
    if (st != CORUN_OK) {
        gpu_attn_close(a);
        return st;
    }
    *out = a;
    return CORUN_OK;
}

void gpu_attn_close(gpu_attn *a)
{
    if (!a) return;
    void *all[] = {a->work, a->decode, a->prefill, a->done, a->state_tl, a->state_o};
    for (void *p : all) gpu_free(p);
    mem_free(a);
}

void gpu_attn_probe(gpu_attn *a, float *out_fp32, bool downward, int32_t slots)
{
    a->out_fp32 = out_fp32;
    a->downward = downward;
    a->slots = slots < 0 ? a->max_slots : min(slots, a->max_slots);
}

void gpu_attn_decode_set(gpu_attn *a, ops_set set) { a->decode_set = set; }

corun_status gpu_attn_plan(gpu_attn *a, const gpu_step *s)
{
    plan_args p = {s->row_tok,    s->row_pos,     s->row_len, s->n_row,       a->n_head,
                   a->kv.n_kv,    a->g->sm_count, a->slots,   a->decode_room, a->prefill_room,
                   a->decode_set, a->prefill_set, a->work,    a->decode,      a->prefill};
    k_attn_plan<<<1, PLAN_THREADS, 0, (cudaStream_t)a->g->stream>>>(p);
    return gpu_status((int)cudaGetLastError(), "attention plan");
}

/* early: the kernel before is one of ours that lets it start (next_may_start). */
static corun_status launch_decode(gpu_attn *a, attn_args at, bool early)
{
    cudaLaunchAttribute attr = {};
    attr.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attr.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t c = {};
    c.gridDim = dim3((unsigned)a->g->sm_count);
    c.blockDim = dim3(DECODE_THREADS);
    c.dynamicSmemBytes = (size_t)a->decode_bytes;
    c.stream = (cudaStream_t)a->g->stream;
    c.attrs = &attr;
    c.numAttrs = early ? 1 : 0;
    void *args[] = {&at};
    return gpu_status((int)cudaLaunchKernelExC(&c, (const void *)a->decode_kernel, args),
                      "decode attention");
}

corun_status gpu_attn_run(gpu_attn *a, const gpu_step *s, int32_t layer, const void *q, float scale,
                          void *out, bool next_early)
{
    cudaStream_t stream = (cudaStream_t)a->g->stream;
    attn_args at = {};
    at.kv = (const char *)a->kv.base + (size_t)layer * a->kv.layer_stride;
    at.page_stride = a->kv.page_stride;
    at.page_tokens = a->kv.page_tokens;
    while (1 << at.page_shift < at.page_tokens) at.page_shift++;
    at.n_kv = a->kv.n_kv;
    at.group = a->n_head / a->kv.n_kv;
    at.page = s->page;
    at.max_page = s->max_page;
    at.q = (const __nv_bfloat16 *)q;
    at.out = (__nv_bfloat16 *)out;
    at.out_fp32 = a->out_fp32;
    at.c = (float)((double)scale * 1.4426950408889634);
    at.work = a->work;
    at.decode = a->decode;
    at.prefill = a->prefill;
    at.decode_room = a->decode_room;
    at.state_tl = a->state_tl;
    at.state_o = a->state_o;
    at.done = a->done;
    at.downward = a->downward;
    at.next_early = next_early;
    bool one = s->max_q == 1;
    if (!one) {
        a->prefill_kernel<<<a->g->sm_count, PREFILL_THREADS, a->prefill_bytes, stream>>>(at);
        TRY(gpu_status((int)cudaGetLastError(), "prefill attention"));
        /* Tiles are cut where they are few: so many there are at least. */
        int32_t tiles = (s->n_tok - s->n_row + 1) / ATTN_TILE;
        if ((int64_t)tiles * a->n_head < a->g->sm_count) {
            a->fold_kernel<<<4 * a->g->sm_count, FOLD_THREADS, 0, stream>>>(at);
            TRY(gpu_status((int)cudaGetLastError(), "fold of prefill attention"));
        }
    }
    return one || s->n_row > 1 ? launch_decode(a, at, one) : CORUN_OK;
}
