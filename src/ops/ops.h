/* ops.h - the seam between the model graph and a machine: one table of functions a backend.
 *
 * Activations are bf16 (uint16_t on the host), row-major, in memory of the backend ("dev"
 * pointers are opaque to callers). Weights are opaque handles. All that changes from step to step
 * (tokens, positions, page tables, lanes, sampling state) is put into the backend's own arrays by
 * step_put and slot_put; the ops that follow read it there, so that a device backend can record
 * them once. Nothing is allocated after open, configure, weight_open and dev_alloc.
 *
 * Rows: after step_put a step has n_tok token rows (in the order of step.row, q_len rows each;
 * a backend may drop dead rows: the CPU does) and n_want wanted rows (in the same order: of every
 * live row with want LAST its last token, with want ALL all of its tokens; a dead row wants
 * nothing). Ops name the row set, not a count.
 *
 * Arithmetic: docs/numerics.md. Every op declares, per kernel set, the highest level it meets.
 * Errors: CORUN_EINVAL for what this header forbids, CORUN_EDEVICE with the vendor's words. */
#ifndef OPS_OPS_H
#define OPS_OPS_H

#include "base/err.h"
#include "base/pool.h"
#include "step/step.h"

/* ---- levels and kernel sets ---------------------------------------------------------------- */

typedef enum ops_level {
    OPS_LEVEL_NONE,     /* not shown to be repeatable */
    OPS_LEVEL_RUN,      /* same inputs, same shape, same machine: same bits */
    OPS_LEVEL_POSITION, /* and a row's bits depend on no slot and no other row */
    OPS_LEVEL_BATCH,    /* and not on how many rows there are */
    OPS_LEVEL_PHASE     /* and not on prefill, chunk cut or decode */
} ops_level;

typedef enum ops_set { OPS_SET_STANDARD, OPS_SET_FIXED, OPS_SET_CANONICAL, OPS_N_SET } ops_set;

typedef enum ops_op {
    OPS_OP_EMBED,
    OPS_OP_NORM,
    OPS_OP_MATMUL,
    OPS_OP_QKV_POST,
    OPS_OP_ATTN_DECODE,
    OPS_OP_ATTN_PREFILL,
    OPS_OP_SILU_MUL,
    OPS_OP_LOGITS,
    OPS_OP_SAMPLE,
    OPS_N_OP
} ops_op;

const char *ops_op_name(ops_op op);
const char *ops_level_name(ops_level l);
const char *ops_set_name(ops_set s);

/* ---- configuration ------------------------------------------------------------------------- */

/* Of the model: fixed at open. */
typedef struct ops_dims {
    int32_t n_layer, n_embd, n_head, n_kv, d_head, n_ff, n_vocab;
} ops_dims;

/* The matrix products of a dense layer, then the head. */
enum {
    OPS_QKV,
    OPS_O,
    OPS_GATE_UP,
    OPS_DOWN,
    OPS_PER_LAYER,
    OPS_HEAD = OPS_PER_LAYER,
    OPS_N_PRODUCT
};

typedef struct ops_product {
    const char *name;
    int64_t n_out, n_in;
} ops_product;

void ops_products(const ops_dims *d, ops_product out[OPS_N_PRODUCT]);

/* Of the schedule: maxima of any step, and the numeric choices. */
typedef struct ops_conf {
    int32_t n_ctx;    /* longest sequence: page tables, rope tables */
    int32_t max_tok;  /* token rows of a step */
    int32_t max_row;  /* rows of a step, dead ones included */
    int32_t max_want; /* wanted rows of a step */
    int32_t max_lane; /* lanes of one sample call */
    int32_t n_slot;   /* sampling states, scratch ones included */
    int32_t page_tokens, n_page, n_swap;
    int32_t logit_rows; /* rows of the logits buffer: wanted rows are taken in chunks of it */
    int32_t n_top;      /* most alternatives ever asked for */
    bool processed_logprobs;
    ops_set set[OPS_N_OP];
} ops_conf;

typedef struct ops_open_opts {
    pool *threads; /* CPU backends, and tables that a device backend makes on the host: borrowed */
    const char *isa;               /* CPU: "auto", "avx512", "avx2", "neon", "generic" */
    int device;                    /* CUDA: number of the device; -1: the first that serves */
    const struct plan_table *plan; /* CUDA: the user's matrix plans (plan.h), borrowed until close;
                                      NULL: the built-in ones */
} ops_open_opts;

/* ---- weights ------------------------------------------------------------------------------- */

typedef enum ops_dtype { OPS_BF16, OPS_F32, OPS_F8_E4M3 } ops_dtype;

/* Gives rows [row, row + n) of the matrix, n_in elements each, in the dtype of the spec. Called by
 * the thread that opens the weight, with ascending rows that meet, each once. */
typedef corun_status (*ops_weight_read)(void *arg, int64_t row, int64_t n, void *out);

typedef struct ops_weight_spec {
    const char *name; /* for errors */
    ops_dtype dtype;
    int64_t n_out, n_in; /* y[n_out] = W[n_out][n_in] x; a vector has n_out 1 */
    ops_weight_read read;
    void *arg;
    const uint16_t *bias; /* [n_out] bf16 or NULL; copied */
    int32_t block;        /* F8: edge of the scale blocks; 0: no scales */
    const float *scale;   /* F8: [ceil(n_out / block)][ceil(n_in / block)]; copied */
} ops_weight_spec;

/* A reader of made-up values, arg an ops_fill: element i of the matrix is bf16(base + spread u),
 * u uniform in [-1, 1), a function of seed, index and i alone. A device backend makes them where
 * they lie; the bits are the same. */
typedef struct ops_fill {
    uint64_t seed;
    uint32_t index; /* of the matrix */
    int64_t n_in;
    float base, spread;
} ops_fill;
corun_status ops_fill_read(void *arg, int64_t row, int64_t n, void *out);

typedef struct ops_weight ops_weight;
typedef struct ops_rope ops_rope;

#define OPS_MAX_BAD      4096  /* bad words of a slot */
#define OPS_MAX_BAD_LEN  64    /* tokens of one of them */
#define OPS_MAX_BAD_SLOT 65536 /* tokens of all of them */

/* ---- sampling state of a slot --------------------------------------------------------------- */

/* Everything of docs/numerics.md section 5. Arrays are borrowed for the call. */
typedef struct ops_slot {
    uint64_t seed;
    float temperature, top_p, min_p;
    float repetition, presence, frequency; /* neutral: 1, 0, 0 */
    int32_t top_k;                         /* 0: off */
    int32_t min_tokens;                    /* until so many are drawn, end_id are masked */
    int32_t n_top;                         /* alternatives to report, -1: no log-probability */
    const int32_t *end_id;                 /* eos and stop ids, for min_tokens */
    int32_t n_end;
    const int32_t *bias_id;
    const float *bias;
    int32_t n_bias;
    const int32_t *allowed; /* n_allowed 0: all */
    int32_t n_allowed;
    const int32_t *bad_id, *bad_len; /* bad words, one after the other; matched against output */
    int32_t n_bad;
    int32_t n_draw_max;    /* ids >= n_draw_max can never be drawn (rows without a token) */
    const int32_t *prompt; /* for the repetition penalty */
    int32_t n_prompt;
    const int32_t *output; /* tokens drawn so far (empty for a new sample) */
    int32_t n_output;
} ops_slot;

/* Result of one lane. */
typedef struct ops_draw {
    int32_t token;   /* -1: the row failed */
    const char *why; /* of a failed row: "non-finite logits" or "no token may be drawn", a constant;
                        the caller adds the position. NULL otherwise */
    float logprob;
    int32_t n_top;
    const int32_t *top_id;    /* [n_top] likeliest first, ties: lower id first */
    const float *top_logprob; /* valid until sample or score was called twice more */
} ops_draw;

/* ---- the table ----------------------------------------------------------------------------- */

/* What stands between two attentions: the product behind the first one, the feed-forward part, and
 * the next layer's norm and qkv product (both NULL behind the last layer). Buffers as the ops take
 * them; pair: [tok][2 n_ff], between gate_up and silu_mul. */
typedef struct ops_between {
    const ops_weight *o, *ffn_norm, *gate_up, *down, *next_norm, *next_qkv;
    const void *attn;
    void *h, *x, *y, *pair, *act, *qkv;
    float eps;
} ops_between;

typedef enum ops_rows { OPS_ROWS_TOK, OPS_ROWS_WANT } ops_rows;

typedef struct ops ops;
struct ops {
    const char *name; /* "cpu", "ref", "cuda" */
    const char *isa;
    char label[64];    /* the device in words for people; "": nothing to say */
    char note[256];    /* what people should know of this machine; "": nothing */
    char machine[512]; /* all of a machine and its libraries that can move a bit; "": nothing can */
    ops_dims dims;
    ops_conf conf; /* of the last configure */
    ops_level level[OPS_N_SET][OPS_N_OP];
    int32_t act_bytes;     /* of one activation element in dev memory: 2, or more on an oracle */
    int32_t n_tok, n_want; /* of the step that was put */
    int32_t lag; /* 1: work runs on after a call returns; best given a step ahead of its draws */

    void (*close)(ops *o);
    /* Another instance on the same device (and threads) for other dimensions: what tries the ops
     * apart from a running engine. NULL: this backend has none, and so cannot be audited. */
    corun_status (*twin)(const ops *o, const ops_dims *d, ops **out);
    /* Sizes the KV pool, the swap area, rope tables, step and slot arrays for a schedule. May be
     * called again: what was there before is freed, weights stay. Pages start as zeros. */
    corun_status (*configure)(ops *o, const ops_conf *c);

    /* memory of the backend; dev_alloc counts activations as bf16, whatever act_bytes is */
    corun_status (*dev_alloc)(ops *o, size_t bytes, void **dev);
    void (*dev_free)(ops *o, void *dev);
    corun_status (*dev_put)(ops *o, void *dev, size_t off, const void *host, size_t bytes);
    corun_status (*dev_get)(ops *o, const void *dev, size_t off, void *host, size_t bytes);

    /* weights; refill keeps the handle and its buffers (shapes must be the same) */
    corun_status (*weight_open)(ops *o, const ops_weight_spec *s, ops_weight **w);
    corun_status (*weight_refill)(ops *o, ops_weight *w, const ops_weight_spec *s);
    void (*weight_close)(ops *o, ops_weight *w);
    uint64_t (*weight_bytes)(const ops *o);
    /* cos and sin tables (for the n_ctx positions of each configure) from inv_freq [d_head / 2],
     * copied, and the factor on both */
    corun_status (*rope_open)(ops *o, const float *inv_freq, double scale, ops_rope **r);
    void (*rope_close)(ops *o, ops_rope *r);

    /* inputs of a step */
    corun_status (*step_put)(ops *o, const step *s);
    /* NULL on a backend that does not record. After step_put a graph calls record, its ops where
     * *replay is false, and record_end with their status. A decode shape whose ops were seen before
     * is replayed as it was recorded: the caller makes the same calls for every step of a shape. */
    corun_status (*record)(ops *o, bool *replay);
    corun_status (*record_end)(ops *o, corun_status st);
    corun_status (*slot_put)(ops *o, int32_t slot, const ops_slot *s);

    /* h[tok][n_embd] = row of w at the token (host id, or the slot's last drawn token) */
    corun_status (*embed)(ops *o, const ops_weight *w, void *h);
    /* reduce (identity for one rank), residual, RMSNorm:
     *   y NULL: out = norm(h); else h = bf16(h + y) and out = norm(h). Row sets as named.
     * With rows WANT only the wanted rows of h (and y) are read; h is left alone and out is
     * compact [n_want][n_embd]. */
    corun_status (*norm)(ops *o, ops_rows rows, void *h, const void *y, const ops_weight *gain,
                         float eps, void *out);
    /* out[row][n_out] = x[row][n_in] W^T (+ bias), bf16 or fp32 */
    corun_status (*matmul)(ops *o, ops_rows rows, const ops_weight *w, const void *x,
                           ops_dtype out_type, void *out);
    /* qkv[tok][(n_head + 2 n_kv) d]: q norm and k norm where given, RoPE on q and k; writes
     * q[tok][n_head d] and the K and V of each token into its page */
    corun_status (*qkv_post)(ops *o, int32_t layer, const void *qkv, const ops_weight *q_gain,
                             const ops_weight *k_gain, float eps, const ops_rope *rope, void *q);
    /* out[tok][n_head d]: causal attention of each token over its sequence's pages */
    corun_status (*attention)(ops *o, int32_t layer, const void *q, float scale, void *out);
    /* gate_up[tok][2 n_ff] (gate first): out[tok][n_ff] = bf16(silu(gate)) * up */
    corun_status (*silu_mul)(ops *o, const void *gate_up, void *out);

    /* NULL on a backend that has none; callers take ops_run_between. Where *done, all of b but
     * pair for the step's token rows, with the bits of the ops one after the other; else nothing.
     */
    corun_status (*between)(ops *o, const ops_between *b, bool *done);

    /* fp32 logits of wanted rows [first, first + n) of x[n_want][n_embd] into the logits buffer;
     * n <= logit_rows */
    corun_status (*logits)(ops *o, const ops_weight *w, const void *x, int32_t first, int32_t n);
    /* test access to the logits buffer: row r of the chunk, n_vocab floats */
    corun_status (*logits_get)(ops *o, int32_t r, float *host);
    corun_status (*logits_put)(ops *o, int32_t r, const float *host);
    /* Draws lane i (0 ... n_lane - 1) from chunk row chunk_row[i] (-1: not in this chunk, skipped)
     * with the state of slot[i]; the token becomes the slot's last drawn one.
     * pos[i]: absolute position of the drawn token. */
    corun_status (*sample)(ops *o, int32_t n_lane, const int32_t *chunk_row, const int32_t *slot,
                           const int32_t *pos);
    /* Lane of the last call of sample (back 0) or of the one before (back 1); waits for it. */
    corun_status (*draw_get)(ops *o, int32_t back, int32_t lane, ops_draw *out);
    /* log-probability of target[i] and the n_top likeliest ids, of chunk row i */
    corun_status (*score)(ops *o, int32_t n, const int32_t *target, int32_t n_top);
    corun_status (*score_get)(ops *o, int32_t i, ops_draw *out);

    /* pages: all layers of one page at once */
    uint64_t (*page_bytes)(const ops *o);
    corun_status (*page_copy)(ops *o, int32_t src, int32_t dst);
    corun_status (*page_out)(ops *o, int32_t page, int32_t swap);
    corun_status (*page_in)(ops *o, int32_t swap, int32_t page);
    corun_status (*page_get)(ops *o, int32_t page, void *host);       /* page_bytes */
    corun_status (*page_put)(ops *o, int32_t page, const void *host); /* page_bytes */
};

/* All of b for the step's token rows: at once where the backend can, else op by op. */
corun_status ops_run_between(ops *o, const ops_between *b);

/* Opens a backend for a model's dimensions; configure comes before the first step. */
corun_status ops_open_cpu(ops **out, const ops_dims *d, const ops_open_opts *o);
/* The first Hopper device. CORUN_EUNSUPPORTED: built without CUDA, another kind of device, or a
 * dimension that no kernel takes; CORUN_EDEVICE: no device or no library; CORUN_EINVAL: a variable
 * of the environment would change what a library computes. */
corun_status ops_open_cuda(ops **out, const ops_dims *d, const ops_open_opts *o);
/* The oracle: scalar, double inside, roundings as numerics.md has them, or (exact) none at all. */
corun_status ops_open_ref(ops **out, const ops_dims *d, bool exact);

/* A few hundred outputs of every op of the CPU class against constants; CORUN_EMISMATCH names the
 * op that this build computes wrongly. *digest is the golden digest that the identity holds. */
corun_status ops_golden_check(pool *threads, const char *isa, char digest[33]);
/* "avx512", ...: what "auto" picks here; NULL if `isa` cannot run here or is unknown. */
const char *ops_isa_pick(const char *isa);

#endif
