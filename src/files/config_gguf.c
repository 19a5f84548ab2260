/* config_gguf.c - owns the reading of a configuration from GGUF metadata.
 *
 * Invariant: every key of the architecture was either read or is known to change nothing. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/num.h"
#include "files/config_impl.h"

#define KEY_LEN 128

typedef struct source {
    const weights *w;
    const char *arch; /* "llama" */
} source;

static const char *full_key(const source *s, const char *key, char out[KEY_LEN])
{
    snprintf(out, KEY_LEN, "%s.%s", s->arch, key);
    return out;
}

/* Leaves *out alone when the key is absent. key is without the architecture. */
static corun_status get_int(const source *s, const char *key, int64_t lo, int64_t hi, int32_t *out)
{
    char full[KEY_LEN];
    int64_t x;
    if (!weights_meta(s->w, full_key(s, key, full))) return CORUN_OK;
    if (!weights_meta_int(s->w, full, &x)) FAIL(CORUN_EFORMAT, "GGUF: %s is no integer", full);
    if (x < lo || x > hi)
        FAIL(CORUN_EFORMAT, "GGUF: %s is %lld, not %lld to %lld", full, (long long)x, (long long)lo,
             (long long)hi);
    *out = (int32_t)x;
    return CORUN_OK;
}

static corun_status need_int(const source *s, const char *key, int64_t hi, int32_t *out)
{
    char full[KEY_LEN];
    if (!weights_meta(s->w, full_key(s, key, full)))
        FAIL(CORUN_EFORMAT, "GGUF: %s is missing", full);
    return get_int(s, key, 1, hi, out);
}

static corun_status get_double(const source *s, const char *key, double lo, double hi, double *out)
{
    char full[KEY_LEN];
    double x;
    if (!weights_meta(s->w, full_key(s, key, full))) return CORUN_OK;
    if (!weights_meta_double(s->w, full, &x)) FAIL(CORUN_EFORMAT, "GGUF: %s is no float", full);
    if (!(x >= lo && x <= hi)) FAIL(CORUN_EFORMAT, "GGUF: %s is %g, not %g to %g", full, x, lo, hi);
    *out = x;
    return CORUN_OK;
}

/* ---- the keys of an architecture ---------------------------------------------------------------
 */

typedef enum use {
    USE_READ,    /* read by one of the functions below */
    USE_IGNORED, /* says nothing about the network */
    USE_NEUTRAL  /* must hold the neutral number (a bool counts as 0 or 1) */
} use;

static const struct {
    const char *key;
    use use;
    double neutral;
} known[] = {{"context_length", USE_READ, 0},
             {"embedding_length", USE_READ, 0},
             {"block_count", USE_READ, 0},
             {"feed_forward_length", USE_READ, 0},
             {"vocab_size", USE_READ, 0},
             {"attention.head_count", USE_READ, 0},
             {"attention.head_count_kv", USE_READ, 0},
             {"attention.key_length", USE_READ, 0},
             {"attention.value_length", USE_READ, 0},
             {"attention.layer_norm_rms_epsilon", USE_READ, 0},
             {"rope.dimension_count", USE_READ, 0},
             {"rope.freq_base", USE_READ, 0},
             {"rope.scale_linear", USE_READ, 0},
             {"rope.scaling.type", USE_READ, 0},
             {"rope.scaling.factor", USE_READ, 0},
             {"rope.scaling.original_context_length", USE_READ, 0},
             {"rope.scaling.attn_factor", USE_READ, 0},
             {"rope.scaling.yarn_beta_fast", USE_READ, 0},
             {"rope.scaling.yarn_beta_slow", USE_READ, 0},
             {"rope.scaling.finetuned", USE_IGNORED, 0},
             {"tensor_data_layout", USE_IGNORED, 0},
             {"rope.scaling.yarn_ext_factor", USE_NEUTRAL, 1},
             {"rope.scaling.yarn_attn_factor", USE_NEUTRAL, 1},
             {"rope.scaling.yarn_log_multiplier", USE_NEUTRAL, 0},
             {"attention.causal", USE_NEUTRAL, 1},
             {"attention.sliding_window", USE_NEUTRAL, 0},
             {"attention.clamp_kqv", USE_NEUTRAL, 0},
             {"attention.max_alibi_bias", USE_NEUTRAL, 0},
             {"attn_logit_softcapping", USE_NEUTRAL, 0},
             {"final_logit_softcapping", USE_NEUTRAL, 0},
             {"logit_scale", USE_NEUTRAL, 1},
             {"residual_scale", USE_NEUTRAL, 1},
             {"embedding_scale", USE_NEUTRAL, 1},
             {"use_parallel_residual", USE_NEUTRAL, 0},
             {"pooling_type", USE_NEUTRAL, 0},
             {"expert_count", USE_NEUTRAL, 0},
             {"expert_used_count", USE_NEUTRAL, 0},
             {"nextn_predict_layers", USE_NEUTRAL, 0}};

static corun_status check_neutral(const source *s, const char *full, double neutral)
{
    int64_t i;
    double d;
    bool b;
    if (weights_meta_int(s->w, full, &i))
        d = (double)i;
    else if (weights_meta_bool(s->w, full, &b))
        d = b;
    else if (!weights_meta_double(s->w, full, &d))
        FAIL(CORUN_EUNSUPPORTED, "GGUF: %s is no number", full);
    if (d != neutral)
        FAIL(CORUN_EUNSUPPORTED, "GGUF: %s is %g: such a model cannot be run", full, d);
    return CORUN_OK;
}

static corun_status check_keys(const source *s)
{
    size_t len = strlen(s->arch), n = sizeof known / sizeof *known;
    for (size_t k = 0; k < weights_meta_count(s->w); k++) {
        const char *full = weights_meta_key(s->w, k);
        if (strncmp(full, s->arch, len) != 0 || full[len] != '.') continue;
        size_t i = 0;
        while (i < n && strcmp(known[i].key, full + len + 1) != 0) i++;
        if (i == n) FAIL(CORUN_EUNSUPPORTED, "GGUF: unknown key %s", full);
        if (known[i].use == USE_NEUTRAL) TRY(check_neutral(s, full, known[i].neutral));
    }
    return CORUN_OK;
}

/* ---- the parts ---------------------------------------------------------------------------------
 */

static corun_status read_family(config *c, source *s)
{
    const char *arch;
    char name[32];
    size_t len;
    if (!weights_meta_str(s->w, "general.architecture", &arch, &len))
        FAIL(CORUN_EFORMAT, "GGUF: general.architecture is missing or no string");
    snprintf(name, sizeof name, "%.*s", (int)(len < 31 ? len : 31), arch);
    if (strlen(name) != len || !config_find_family(c, name))
        FAIL(CORUN_EUNSUPPORTED, "GGUF: general.architecture \"%s\" is none of llama, qwen2, qwen3",
             name);
    s->arch = c->family_name;
    return CORUN_OK;
}

static corun_status read_sizes(config *c, const source *s)
{
    int32_t value = 0, rows = 0;
    TRY(need_int(s, "context_length", CONFIG_MAX_CTX, &c->n_ctx));
    TRY(need_int(s, "embedding_length", CONFIG_MAX_WIDTH, &c->n_embd));
    TRY(need_int(s, "block_count", CONFIG_MAX_LAYER, &c->n_layer));
    TRY(need_int(s, "feed_forward_length", CONFIG_MAX_WIDTH, &c->n_ff));
    TRY(need_int(s, "attention.head_count", CONFIG_MAX_HEAD, &c->n_head));
    c->n_kv = c->n_head;
    TRY(get_int(s, "attention.head_count_kv", 1, CONFIG_MAX_HEAD, &c->n_kv));
    c->d_head = c->n_embd / c->n_head;
    TRY(get_int(s, "attention.key_length", 1, CONFIG_MAX_DIM, &c->d_head));
    if (c->d_head < 1 || c->d_head > CONFIG_MAX_DIM)
        FAIL(CORUN_EFORMAT, "GGUF: heads of %d values, not 1 to %d", c->d_head, CONFIG_MAX_DIM);
    char full[KEY_LEN];
    if (!weights_meta(s->w, full_key(s, "attention.key_length", full)) &&
        c->n_embd % c->n_head != 0)
        FAIL(CORUN_EFORMAT,
             "GGUF: %s.embedding_length %d is no multiple of its head_count %d, and "
             "%s is missing",
             s->arch, c->n_embd, c->n_head, full);
    value = c->d_head;
    TRY(get_int(s, "attention.value_length", 1, CONFIG_MAX_DIM, &value));
    if (value != c->d_head)
        FAIL(CORUN_EUNSUPPORTED, "GGUF: %s.attention.value_length %d is not key_length %d", s->arch,
             value, c->d_head);
    const weights_tensor *t = weights_find(s->w, "token_embd.weight");
    if (!t || t->n_dim != 2 || t->dim[0] > CONFIG_MAX_VOCAB)
        FAIL(CORUN_EFORMAT, "GGUF: tensor \"token_embd.weight\" is missing or no matrix");
    rows = c->n_vocab = (int32_t)t->dim[0];
    TRY(get_int(s, "vocab_size", 1, CONFIG_MAX_VOCAB, &rows));
    if (rows != c->n_vocab)
        FAIL(CORUN_EFORMAT, "GGUF: %s.vocab_size is %d, but token_embd.weight has %d rows", s->arch,
             rows, c->n_vocab);
    double eps = 0.0;
    if (!weights_meta(s->w, full_key(s, "attention.layer_norm_rms_epsilon", full)))
        FAIL(CORUN_EFORMAT, "GGUF: %s is missing", full);
    TRY(get_double(s, "attention.layer_norm_rms_epsilon", 1e-30, 1.0, &eps));
    c->eps = (float)eps;
    return CORUN_OK;
}

static corun_status rope_kind(config *c, const source *s)
{
    char full[KEY_LEN];
    const char *type;
    size_t len;
    c->rope = CONFIG_ROPE_DEFAULT;
    if (!weights_meta(s->w, full_key(s, "rope.scaling.type", full))) return CORUN_OK;
    if (!weights_meta_str(s->w, full, &type, &len))
        FAIL(CORUN_EFORMAT, "GGUF: %s is no string", full);
    if (len == 6 && memcmp(type, "linear", 6) == 0)
        c->rope = CONFIG_ROPE_LINEAR;
    else if (len == 4 && memcmp(type, "yarn", 4) == 0)
        c->rope = CONFIG_ROPE_YARN;
    else if (len != 4 || memcmp(type, "none", 4) != 0)
        FAIL(CORUN_EUNSUPPORTED, "GGUF: %s \"%.*s\" is none of none, linear, yarn", full,
             (int)(len < 64 ? len : 64), type);
    return CORUN_OK;
}

/* The factor stands under a new key, or an old one that says linear by itself; 0 is "none". */
static corun_status rope_factor(config *c, const source *s)
{
    double factor = 0.0, old = 0.0;
    TRY(get_double(s, "rope.scaling.factor", 0.0, 1e6, &factor));
    TRY(get_double(s, "rope.scale_linear", 0.0, 1e6, &old));
    if (old != 0.0 && old != 1.0) {
        if (c->rope == CONFIG_ROPE_YARN || (factor != 0.0 && factor != old))
            FAIL(CORUN_EFORMAT, "GGUF: %s.rope.scale_linear %g contradicts rope.scaling", s->arch,
                 old);
        c->rope = CONFIG_ROPE_LINEAR;
        factor = old;
    }
    if (c->rope == CONFIG_ROPE_DEFAULT) {
        if (factor != 0.0 && factor != 1.0)
            FAIL(CORUN_EFORMAT, "GGUF: %s.rope.scaling.factor %g without a rope.scaling.type",
                 s->arch, factor);
        return CORUN_OK;
    }
    if (factor < 1.0)
        FAIL(CORUN_EFORMAT, "GGUF: %s.rope.scaling.factor is missing or below 1", s->arch);
    c->factor = factor;
    return CORUN_OK;
}

static corun_status read_rope(config *c, const source *s)
{
    int32_t turned = c->d_head;
    double attn = 1.0;
    TRY(get_int(s, "rope.dimension_count", 1, CONFIG_MAX_DIM, &turned));
    if (turned != c->d_head)
        FAIL(CORUN_EUNSUPPORTED, "GGUF: %s.rope.dimension_count %d is not the head's %d", s->arch,
             turned, c->d_head);
    TRY(get_double(s, "rope.freq_base", 1.0 + 1e-6, 1e12, &c->theta));
    TRY(rope_kind(c, s));
    TRY(rope_factor(c, s));
    TRY(get_double(s, "rope.scaling.attn_factor", 1e-6, 1e3, &attn));
    if (c->rope != CONFIG_ROPE_YARN) {
        if (attn != 1.0)
            FAIL(CORUN_EUNSUPPORTED, "GGUF: %s.rope.scaling.attn_factor %g without yarn", s->arch,
                 attn);
        return CORUN_OK;
    }
    c->original_ctx = c->n_ctx;
    c->beta_fast = 32.0;
    c->beta_slow = 1.0;
    TRY(get_int(s, "rope.scaling.original_context_length", 1, CONFIG_MAX_CTX, &c->original_ctx));
    TRY(get_double(s, "rope.scaling.yarn_beta_fast", 1e-6, 1e6, &c->beta_fast));
    TRY(get_double(s, "rope.scaling.yarn_beta_slow", 1e-6, 1e6, &c->beta_slow));
    if (c->beta_fast < c->beta_slow)
        FAIL(CORUN_EFORMAT, "GGUF: %s.rope.scaling.yarn_beta_fast %g is below yarn_beta_slow %g",
             s->arch, c->beta_fast, c->beta_slow);
    /* Here the factor multiplies yarn's own instead of taking its place. */
    if (attn != 1.0) c->attn_factor = attn * (0.1 * num_log(c->factor) + 1.0);
    return CORUN_OK;
}

/* -1, in either width, counts as absent. */
static corun_status get_id(const config *c, const source *s, const char *key, int32_t *out)
{
    int64_t id;
    if (!weights_meta(s->w, key)) return CORUN_OK;
    if (!weights_meta_int(s->w, key, &id)) FAIL(CORUN_EFORMAT, "GGUF: %s is no integer", key);
    if (id == -1 || id == UINT32_MAX) return CORUN_OK;
    if (id < 0 || id >= c->n_vocab)
        FAIL(CORUN_EFORMAT, "GGUF: %s %lld is not 0 to %d", key, (long long)id, c->n_vocab - 1);
    *out = (int32_t)id;
    return CORUN_OK;
}

static corun_status read_ids(config *c, const source *s)
{
    static const char *const eos[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                      "tokenizer.ggml.eom_token_id"};
    TRY(get_id(c, s, "tokenizer.ggml.bos_token_id", &c->bos));
    TRY(get_id(c, s, "tokenizer.ggml.padding_token_id", &c->pad));
    for (int i = 0; i < 3; i++) {
        int32_t id = -1;
        TRY(get_id(c, s, eos[i], &id));
        if (id >= 0) TRY(config_add_eos(c, id, eos[i], "GGUF"));
    }
    return CORUN_OK;
}

corun_status config_from_gguf(config *out, const weights *w)
{
    char name[3][KEY_LEN];
    source s = {.w = w};
    config_init(out);
    TRY(read_family(out, &s));
    TRY(check_keys(&s));
    TRY(read_sizes(out, &s));
    config_keys keys = {.n_head = full_key(&s, "attention.head_count", name[0]),
                        .n_kv = full_key(&s, "attention.head_count_kv", name[1]),
                        .d_head = full_key(&s, "attention.key_length", name[2])};
    TRY(config_check(out, &keys, "GGUF"));
    TRY(read_rope(out, &s));
    TRY(read_ids(out, &s));
    out->tied = !weights_find(w, "output.weight");
    out->qkv_bias = out->family == CONFIG_QWEN2 || weights_find(w, "blk.0.attn_q.bias");
    out->o_bias = weights_find(w, "blk.0.attn_output.bias");
    out->mlp_bias = weights_find(w, "blk.0.ffn_down.bias");
    out->qk_norm = out->family == CONFIG_QWEN3;
    out->gguf_permuted = out->family == CONFIG_LLAMA;
    return CORUN_OK;
}
