/* load.c - owns the names of tensors in both file formats and the order of their rows in a handle.
 * Invariant: every tensor's shape is checked against the config before a byte of it is read. */
#include "model/load.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *hf, *gguf; /* without ".weight" */
} names[] = {
    [LOAD_EMBED] = {"model.embed_tokens", "token_embd"},
    [LOAD_OUT_NORM] = {"model.norm", "output_norm"},
    [LOAD_HEAD] = {"lm_head", "output"},
    [LOAD_ATTN_NORM] = {"input_layernorm", "attn_norm"},
    [LOAD_Q] = {"self_attn.q_proj", "attn_q"},
    [LOAD_K] = {"self_attn.k_proj", "attn_k"},
    [LOAD_V] = {"self_attn.v_proj", "attn_v"},
    [LOAD_O] = {"self_attn.o_proj", "attn_output"},
    [LOAD_Q_NORM] = {"self_attn.q_norm", "attn_q_norm"},
    [LOAD_K_NORM] = {"self_attn.k_norm", "attn_k_norm"},
    [LOAD_FFN_NORM] = {"post_attention_layernorm", "ffn_norm"},
    [LOAD_GATE] = {"mlp.gate_proj", "ffn_gate"},
    [LOAD_UP] = {"mlp.up_proj", "ffn_up"},
    [LOAD_DOWN] = {"mlp.down_proj", "ffn_down"},
};

#define NAME_MAX_LEN 96

static void name_of(const load *l, int layer, load_role role, const char *suffix,
                    char out[NAME_MAX_LEN])
{
    bool gguf = l->w && weights_is_gguf(l->w);
    const char *base = gguf ? names[role].gguf : names[role].hf;
    if (layer < 0)
        snprintf(out, NAME_MAX_LEN, "%s.%s", base, suffix);
    else
        snprintf(out, NAME_MAX_LEN, gguf ? "blk.%d.%s.%s" : "model.layers.%d.%s.%s", layer, base,
                 suffix);
}

/* The tensor of this name and shape, marked as used. */
static corun_status take(load *l, const char *name, int n_dim, const int64_t *dim,
                         const weights_tensor **out)
{
    TRY(weights_need(l->w, name, n_dim, dim, out));
    l->used[weights_index(l->w, *out)] = true;
    return CORUN_OK;
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

corun_status load_all_used(const load *l)
{
    if (!l->w) return CORUN_OK;
    for (size_t i = 0; i < weights_count(l->w); i++) {
        const char *name = weights_at(l->w, i)->name;
        if (l->used[i] || ends_with(name, "rotary_emb.inv_freq")) continue;
        if (l->cfg->tied && strcmp(name, "lm_head.weight") == 0) continue;
        FAIL(CORUN_EFORMAT, "tensor %s: the configuration has no place for it", name);
    }
    return CORUN_OK;
}

typedef struct matrix_read {
    weights *w;
    int n_part;
    load_part part[LOAD_MAX_PART];
    int64_t n_in, d_head;
} matrix_read;

/* Where row r lies in a file whose heads of d rows are interleaved. */
static int64_t file_row(int64_t r, int64_t d)
{
    int64_t in = r % d, half = d / 2;
    return r - in + 2 * (in % half) + in / half;
}

/* Rows [row, row + n) of a tensor whose heads have interleaved rows, a head at a time. */
static corun_status read_permuted(const matrix_read *m, const weights_tensor *t, int64_t row,
                                  int64_t n, uint16_t *out)
{
    int64_t d = m->d_head;
    uint16_t *head = mem_alloc((size_t)(d * m->n_in), sizeof *head, "rows of a head");
    if (!head) return CORUN_ENOMEM;
    corun_status st = CORUN_OK;
    for (int64_t done = 0; done < n && st == CORUN_OK;) {
        int64_t first = (row + done) / d * d, r = row + done - first;
        int64_t take = d - r < n - done ? d - r : n - done;
        st = weights_read_bf16(m->w, t, first, d, head);
        for (int64_t i = 0; i < take && st == CORUN_OK; i++, r++)
            memcpy(out + (done + i) * m->n_in, head + file_row(r, d) * m->n_in,
                   (size_t)m->n_in * sizeof *out);
        done += take;
    }
    mem_free(head);
    return st;
}

static corun_status read_rows(void *arg, int64_t row, int64_t n, void *out)
{
    const matrix_read *m = arg;
    uint16_t *o = out;
    for (int i = 0; i < m->n_part && n > 0; i++) {
        const load_part *p = &m->part[i];
        if (row >= p->rows) {
            row -= p->rows;
            continue;
        }
        int64_t take = p->rows - row < n ? p->rows - row : n;
        if (p->permuted)
            TRY(read_permuted(m, p->t, row, take, o));
        else
            TRY(weights_read_bf16(m->w, p->t, row, take, o));
        o += take * m->n_in;
        n -= take;
        row = 0;
    }
    return CORUN_OK;
}

static corun_status read_bias(load *l, int layer, const load_role *role, matrix_read *m,
                              uint16_t *out)
{
    for (int i = 0; i < m->n_part; i++) {
        char name[NAME_MAX_LEN];
        const weights_tensor *t;
        int64_t n = m->part[i].rows;
        name_of(l, layer, role[i], "bias", name);
        TRY(take(l, name, 1, &n, &t));
        if (l->mode == LOAD_CHECK) continue;
        uint16_t *raw = mem_alloc((size_t)n, sizeof *raw, name);
        if (!raw) return CORUN_ENOMEM;
        corun_status st = weights_read_bf16(l->w, t, 0, 1, raw);
        for (int64_t r = 0; r < n && st == CORUN_OK; r++)
            out[r] = raw[m->part[i].permuted ? file_row(r, m->d_head) : r];
        mem_free(raw);
        TRY(st);
        l->n_param += (uint64_t)n;
        out += n;
    }
    return CORUN_OK;
}

/* The handle of a weight, by the mode. */
static corun_status settle(load *l, const ops_weight_spec *spec, ops_weight **out)
{
    if (l->mode == LOAD_CHECK) return CORUN_OK;
    if (l->mode == LOAD_REFILL) return l->o->weight_refill(l->o, *out, spec);
    return l->o->weight_open(l->o, spec, out);
}

/* ---- made-up weights ----------------------------------------------------------------------- */

#define FILL_VERSION 1
#define FILL_SEED    20261130u
#define FILL_LOGIT   4.0f /* standard deviation of the logits */

/* Uniform values of standard deviation s reach s sqrt(3). */
static ops_fill made_up(load *l, load_role role, int64_t n_in, bool bias)
{
    float spread = sqrtf(3.0f / (float)n_in);
    if (role == LOAD_EMBED || role == LOAD_HEAD) spread = FILL_LOGIT * spread;
    return (ops_fill){
        .seed = FILL_SEED, .index = l->n_fill++, .n_in = n_in, .spread = bias ? 0.5f : spread};
}

static ops_fill made_up_gain(load *l, int64_t n)
{
    return (ops_fill){
        .seed = FILL_SEED, .index = l->n_fill++, .n_in = n, .base = 1.0f, .spread = 0.25f};
}

static corun_status open_made_up(load *l, ops_fill f, const char *name, int64_t rows,
                                 const uint16_t *bias, ops_weight **out)
{
    ops_weight_spec s = {.name = name,
                         .dtype = OPS_BF16,
                         .n_out = rows,
                         .n_in = f.n_in,
                         .read = ops_fill_read,
                         .arg = &f,
                         .bias = bias};
    l->n_param += (uint64_t)(rows * f.n_in) + (bias ? (uint64_t)rows : 0);
    return settle(l, &s, out);
}

static corun_status make_matrix(load *l, const char *name, load_role role, int64_t rows,
                                int64_t n_in, bool bias, ops_weight **out)
{
    uint16_t *b = NULL;
    corun_status st = CORUN_OK;
    if (bias) {
        if (!(b = mem_alloc((size_t)rows, sizeof *b, name))) return CORUN_ENOMEM;
        ops_fill f = made_up(l, role, rows, true);
        st = ops_fill_read(&f, 0, 1, b);
    }
    if (st == CORUN_OK) st = open_made_up(l, made_up(l, role, n_in, false), name, rows, b, out);
    mem_free(b);
    return st;
}

corun_status load_digest(const load *l, digest *out)
{
    if (l->w) return weights_digest(l->w, out);
    const uint32_t made[4] = {FILL_VERSION, FILL_SEED, l->n_fill, (uint32_t)FILL_LOGIT};
    *out = digest_of(made, sizeof made);
    return CORUN_OK;
}

/* ---- handles ------------------------------------------------------------------------------- */

corun_status load_matrix(load *l, int layer, int n, const load_role *role, const int64_t *n_out,
                         int64_t n_in, bool bias, ops_weight **out)
{
    matrix_read m = {.w = l->w, .n_part = n, .n_in = n_in, .d_head = l->cfg->d_head};
    char name[NAME_MAX_LEN], first[NAME_MAX_LEN];
    int64_t rows = 0;
    for (int i = 0; i < n; i++) {
        int64_t dim[2] = {n_out[i], n_in};
        name_of(l, layer, role[i], "weight", name);
        if (i == 0) memcpy(first, name, sizeof first);
        if (l->w) TRY(take(l, name, 2, dim, &m.part[i].t));
        m.part[i].rows = n_out[i];
        m.part[i].permuted = l->cfg->gguf_permuted && (role[i] == LOAD_Q || role[i] == LOAD_K);
        rows += n_out[i];
    }
    if (!l->w) return make_matrix(l, first, role[0], rows, n_in, bias, out);
    uint16_t *b = NULL;
    corun_status st = CORUN_OK;
    if (bias) {
        if (!(b = mem_alloc((size_t)rows, sizeof *b, first))) return CORUN_ENOMEM;
        st = read_bias(l, layer, role, &m, b);
    }
    ops_weight_spec spec = {.name = first,
                            .dtype = OPS_BF16,
                            .n_out = rows,
                            .n_in = n_in,
                            .read = read_rows,
                            .arg = &m,
                            .bias = b};
    if (st == CORUN_OK) st = settle(l, &spec, out);
    mem_free(b);
    if (st == CORUN_OK) l->n_param += (uint64_t)(rows * n_in);
    return st;
}

corun_status load_vector(load *l, int layer, load_role role, int64_t n, ops_weight **out)
{
    matrix_read m = {.w = l->w, .n_part = 1, .n_in = n, .d_head = l->cfg->d_head};
    char name[NAME_MAX_LEN];
    name_of(l, layer, role, "weight", name);
    if (!l->w) return open_made_up(l, made_up_gain(l, n), name, 1, NULL, out);
    TRY(take(l, name, 1, &n, &m.part[0].t));
    m.part[0].rows = 1;
    ops_weight_spec spec = {
        .name = name, .dtype = OPS_BF16, .n_out = 1, .n_in = n, .read = read_rows, .arg = &m};
    TRY(settle(l, &spec, out));
    l->n_param += (uint64_t)n;
    return CORUN_OK;
}

corun_status load_rope_factors(load *l, float **out)
{
    *out = NULL;
    const weights_tensor *t =
        l->w && weights_is_gguf(l->w) ? weights_find(l->w, "rope_freqs.weight") : NULL;
    if (!t) return CORUN_OK;
    int64_t n = l->cfg->d_head / 2;
    TRY(take(l, "rope_freqs.weight", 1, &n, &t));
    float *f = mem_alloc((size_t)n, sizeof *f, "rope_freqs");
    if (!f) return CORUN_ENOMEM;
    corun_status st = weights_read_f32(l->w, t, 0, 1, f);
    if (st != CORUN_OK)
        mem_free(f);
    else
        *out = f;
    return st;
}
