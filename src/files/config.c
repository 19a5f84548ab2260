/* config.c - owns the reading of config.json and generation_config.json.
 *
 * Invariant: a configuration that parses is one whose every field was in range and consistent;
 * nothing that changes the model is passed over. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "files/config_impl.h"

#define CONFIG_FILE_MAX ((size_t)1 << 24)

/* ---- common ---------------------------------------------------------------------------------- */

static const struct {
    const char *name, *architecture;
    config_family family;
} families[] = {{"llama", "LlamaForCausalLM", CONFIG_LLAMA},
                {"qwen2", "Qwen2ForCausalLM", CONFIG_QWEN2},
                {"qwen3", "Qwen3ForCausalLM", CONFIG_QWEN3}};

bool config_find_family(config *c, const char *name)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        if (strcmp(families[i].name, name) != 0) continue;
        c->family = families[i].family;
        snprintf(c->family_name, sizeof c->family_name, "%s", name);
        return true;
    }
    return false;
}

void config_init(config *c)
{
    *c = (config){.theta = 10000.0,
                  .factor = 1.0,
                  .yarn_truncate = true,
                  .bos = -1,
                  .pad = -1,
                  .temperature = NAN,
                  .top_p = NAN,
                  .min_p = NAN,
                  .repetition_penalty = NAN,
                  .top_k = -1,
                  .max_new_tokens = -1};
    for (int i = 0; i < CONFIG_MAX_EOS; i++) c->eos[i] = -1;
}

corun_status config_add_eos(config *c, int64_t id, const char *key, const char *what)
{
    for (int32_t i = 0; i < c->n_eos; i++)
        if (c->eos[i] == id) return CORUN_OK;
    if (c->n_eos == CONFIG_MAX_EOS)
        FAIL(CORUN_EFORMAT, "%s: %s: more than %d end tokens", what, key, CONFIG_MAX_EOS);
    c->eos[c->n_eos++] = (int32_t)id;
    return CORUN_OK;
}

corun_status config_check(const config *c, const config_keys *k, const char *what)
{
    if (c->n_head % c->n_kv != 0)
        FAIL(CORUN_EFORMAT, "%s: %s %d is no multiple of %s %d", what, k->n_head, c->n_head,
             k->n_kv, c->n_kv);
    if (c->d_head % 2 != 0)
        FAIL(CORUN_EFORMAT, "%s: %s %d is odd, rotary positions need pairs", what, k->d_head,
             c->d_head);
    if ((int64_t)c->n_head * c->d_head > CONFIG_MAX_WIDTH)
        FAIL(CORUN_EFORMAT, "%s: %s %d times %s %d is above %d", what, k->n_head, c->n_head,
             k->d_head, c->d_head, CONFIG_MAX_WIDTH);
    return CORUN_OK;
}

/* ---- fields of a JSON object; null counts as absent --------------------------------------------
 */

typedef struct object {
    const json_t *o;
    const char *what; /* for errors: file, and the object's own key */
} object;

static const json_t *field(object s, const char *key)
{
    const json_t *v = json_object_get(s.o, key);
    return json_is_null(v) ? NULL : v;
}

/* Leaves *out alone when the key is absent. */
static corun_status get_int(object s, const char *key, int64_t lo, int64_t hi, int32_t *out)
{
    const json_t *v = field(s, key);
    int64_t x;
    if (!v) return CORUN_OK;
    if (!json_is_whole(v, &x)) FAIL(CORUN_EFORMAT, "%s: %s is no integer", s.what, key);
    if (x < lo || x > hi)
        FAIL(CORUN_EFORMAT, "%s: %s is %lld, not %lld to %lld", s.what, key, (long long)x,
             (long long)lo, (long long)hi);
    *out = (int32_t)x;
    return CORUN_OK;
}

static corun_status need_int(object s, const char *key, int64_t hi, int32_t *out)
{
    if (!field(s, key)) FAIL(CORUN_EFORMAT, "%s: %s is missing", s.what, key);
    return get_int(s, key, 1, hi, out);
}

static corun_status get_double(object s, const char *key, double lo, double hi, double *out)
{
    const json_t *v = field(s, key);
    if (!v) return CORUN_OK;
    if (!json_is_number(v)) FAIL(CORUN_EFORMAT, "%s: %s is no number", s.what, key);
    double x = json_number_value(v);
    if (!(x >= lo && x <= hi))
        FAIL(CORUN_EFORMAT, "%s: %s is %g, not %g to %g", s.what, key, x, lo, hi);
    *out = x;
    return CORUN_OK;
}

static corun_status get_bool(object s, const char *key, bool *out)
{
    const json_t *v = field(s, key);
    if (!v) return CORUN_OK;
    if (!json_is_boolean(v)) FAIL(CORUN_EFORMAT, "%s: %s is neither true nor false", s.what, key);
    *out = json_is_true(v);
    return CORUN_OK;
}

/* NULL when absent. */
static corun_status get_text(object s, const char *key, const char **out)
{
    const json_t *v = field(s, key);
    *out = NULL;
    if (!v) return CORUN_OK;
    *out = json_string_value(v);
    if (!*out) FAIL(CORUN_EFORMAT, "%s: %s is no string", s.what, key);
    return CORUN_OK;
}

/* ---- rope --------------------------------------------------------------------------------------
 */

typedef struct rope {
    config_rope kind;
    double theta; /* 0: not in this object */
    double factor, low, high, fast, slow, mscale, mscale_all, attn;
    bool truncate;
    int32_t ctx;
} rope;

#define R_LINEAR 1u
#define R_LLAMA3 2u
#define R_YARN   4u
#define R_ALL    15u

/* Which keys a rope object may hold, and with which type. */
static const struct {
    const char *key;
    unsigned with;
} rope_keys[] = {{"type", R_ALL},
                 {"rope_type", R_ALL},
                 {"rope_theta", R_ALL},
                 {"partial_rotary_factor", R_ALL},
                 {"factor", R_LINEAR | R_LLAMA3 | R_YARN},
                 {"original_max_position_embeddings", R_LLAMA3 | R_YARN},
                 {"low_freq_factor", R_LLAMA3},
                 {"high_freq_factor", R_LLAMA3},
                 {"beta_fast", R_YARN},
                 {"beta_slow", R_YARN},
                 {"mscale", R_YARN},
                 {"mscale_all_dim", R_YARN},
                 {"attention_factor", R_YARN},
                 {"truncate", R_YARN},
                 {"finetuned", R_YARN}};

static corun_status rope_kind(object s, rope *r)
{
    static const char *const names[] = {"default", "linear", "llama3", "yarn"};
    const char *a, *b;
    TRY(get_text(s, "rope_type", &a));
    TRY(get_text(s, "type", &b));
    if (a && b && strcmp(a, b) != 0)
        FAIL(CORUN_EFORMAT, "%s: rope_type is \"%s\", but type is \"%s\"", s.what, a, b);
    if (!a) a = b;
    if (!a) a = "default";
    for (int i = 0; i < 4; i++) {
        if (strcmp(a, names[i]) != 0) continue;
        r->kind = (config_rope)i;
        return CORUN_OK;
    }
    FAIL(CORUN_EUNSUPPORTED, "%s: rope_type \"%s\" is none of default, linear, llama3, yarn",
         s.what, a);
}

static corun_status rope_known_keys(object s, config_rope kind)
{
    static const unsigned bit[] = {8, R_LINEAR, R_LLAMA3, R_YARN};
    const char *key;
    json_t *val;
    json_object_foreach ((json_t *)(uintptr_t)s.o, key, val) {
        size_t i = 0, n = sizeof rope_keys / sizeof *rope_keys;
        while (i < n && strcmp(rope_keys[i].key, key) != 0) i++;
        if (json_is_null(val)) continue;
        if (i == n) FAIL(CORUN_EUNSUPPORTED, "%s: unknown key %s", s.what, key);
        if (!(rope_keys[i].with & bit[kind]))
            FAIL(CORUN_EFORMAT, "%s: key %s does not go with its rope_type", s.what, key);
    }
    return CORUN_OK;
}

static corun_status need_field(object s, const char *key)
{
    if (!field(s, key)) FAIL(CORUN_EFORMAT, "%s: %s is missing", s.what, key);
    return CORUN_OK;
}

/* One rope object. n_ctx stands in for an original context that yarn does not name. */
static corun_status parse_rope(object s, int32_t n_ctx, rope *r)
{
    double part = 1.0;
    bool finetuned;
    *r = (rope){.factor = 1.0, .fast = 32.0, .slow = 1.0, .truncate = true};
    TRY(rope_kind(s, r));
    TRY(rope_known_keys(s, r->kind));
    TRY(get_double(s, "rope_theta", 1.0 + 1e-6, 1e12, &r->theta));
    TRY(get_double(s, "partial_rotary_factor", 0.0, 1.0, &part));
    if (part != 1.0)
        FAIL(CORUN_EUNSUPPORTED, "%s: partial_rotary_factor %g, only 1 can be run", s.what, part);
    if (r->kind == CONFIG_ROPE_DEFAULT) return CORUN_OK;
    TRY(need_field(s, "factor"));
    TRY(get_double(s, "factor", 1.0, 1e6, &r->factor));
    if (r->kind == CONFIG_ROPE_LLAMA3) {
        TRY(need_field(s, "low_freq_factor"));
        TRY(need_field(s, "high_freq_factor"));
        TRY(need_field(s, "original_max_position_embeddings"));
    }
    TRY(get_double(s, "low_freq_factor", 1e-6, 1e6, &r->low));
    TRY(get_double(s, "high_freq_factor", 1e-6, 1e6, &r->high));
    if (r->kind == CONFIG_ROPE_LLAMA3 && !(r->low < r->high))
        FAIL(CORUN_EFORMAT, "%s: low_freq_factor %g is not below high_freq_factor %g", s.what,
             r->low, r->high);
    if (r->kind == CONFIG_ROPE_YARN) r->ctx = n_ctx;
    TRY(get_int(s, "original_max_position_embeddings", 1, CONFIG_MAX_CTX, &r->ctx));
    TRY(get_double(s, "beta_fast", 1e-6, 1e6, &r->fast));
    TRY(get_double(s, "beta_slow", 1e-6, 1e6, &r->slow));
    if (r->kind == CONFIG_ROPE_YARN && r->fast < r->slow)
        FAIL(CORUN_EFORMAT, "%s: beta_fast %g is below beta_slow %g", s.what, r->fast, r->slow);
    TRY(get_double(s, "mscale", 0.0, 1e3, &r->mscale));
    TRY(get_double(s, "mscale_all_dim", 0.0, 1e3, &r->mscale_all));
    TRY(get_double(s, "attention_factor", 1e-6, 1e3, &r->attn));
    TRY(get_bool(s, "finetuned", &finetuned));
    return get_bool(s, "truncate", &r->truncate);
}

static bool same_rope(const rope *a, const rope *b)
{
    return a->kind == b->kind && a->factor == b->factor && a->low == b->low && a->high == b->high &&
           a->fast == b->fast && a->slow == b->slow && a->mscale == b->mscale &&
           a->mscale_all == b->mscale_all && a->attn == b->attn && a->truncate == b->truncate &&
           a->ctx == b->ctx;
}

/* Both spellings: rope_theta and rope_scaling, or rope_parameters. */
static corun_status read_rope(object s, config *c)
{
    char what[2][512];
    static const char *const key[2] = {"rope_scaling", "rope_parameters"};
    rope r[2];
    double theta = 0.0;
    bool there[2] = {false, false};
    int32_t ctx = 0;
    TRY(get_double(s, "rope_theta", 1.0 + 1e-6, 1e12, &theta));
    for (int i = 0; i < 2; i++) {
        const json_t *v = field(s, key[i]);
        if (!v) continue;
        snprintf(what[i], sizeof what[i], "%s: %s", s.what, key[i]);
        if (!json_is_object(v)) FAIL(CORUN_EFORMAT, "%s is no object", what[i]);
        if (json_object_size(v) == 0) continue;
        TRY(parse_rope((object){v, what[i]}, c->n_ctx, &r[i]));
        there[i] = true;
        if (r[i].theta == 0.0) continue;
        if (theta != 0.0 && theta != r[i].theta)
            FAIL(CORUN_EFORMAT, "%s: rope_theta %g contradicts another rope_theta %g", what[i],
                 r[i].theta, theta);
        theta = r[i].theta;
    }
    if (there[0] && there[1] && !same_rope(&r[0], &r[1]))
        FAIL(CORUN_EFORMAT, "%s: rope_scaling and rope_parameters contradict each other", s.what);
    if (theta != 0.0) c->theta = theta;
    if (!there[0] && !there[1]) r[0] = (rope){.factor = 1.0, .truncate = true};
    const rope *x = there[1] ? &r[1] : &r[0];
    c->rope = x->kind;
    c->factor = x->factor;
    c->low_freq = x->low;
    c->high_freq = x->high;
    c->beta_fast = x->fast;
    c->beta_slow = x->slow;
    c->mscale = x->mscale;
    c->mscale_all_dim = x->mscale_all;
    c->attn_factor = x->attn;
    c->yarn_truncate = x->truncate;
    c->original_ctx = x->ctx;
    TRY(get_int(s, "original_max_position_embeddings", 1, CONFIG_MAX_CTX, &ctx));
    if (ctx != 0 && ctx != c->original_ctx)
        FAIL(CORUN_EFORMAT,
             "%s: original_max_position_embeddings %d is not that of its rope "
             "scaling, %d",
             s.what, ctx, c->original_ctx);
    return CORUN_OK;
}

/* ---- the rest of config.json -------------------------------------------------------------------
 */

/* Keys that change a model in a way that we do not run, unless they hold a neutral value: absent,
 * null, false, an empty container, or this number. */
static const struct {
    const char *key;
    double neutral;
} refused[] = {
    {"quantization_config", 0},     {"compression_config", 0},    {"use_sliding_window", 0},
    {"rope_interleaved", 0},        {"partial_rotary_factor", 1}, {"attn_logit_softcapping", 0},
    {"final_logit_softcapping", 0}, {"logit_scale", 1},           {"logits_scaling", 1},
    {"residual_multiplier", 1},     {"embedding_multiplier", 1},  {"attention_multiplier", 0},
    {"query_pre_attn_scalar", 0},   {"num_experts", 0},           {"num_local_experts", 0},
    {"n_routed_experts", 0},        {"kv_lora_rank", 0},          {"is_encoder_decoder", 0},
    {"add_cross_attention", 0},     {"use_qk_norm", 0},           {"no_rope_layers", 0},
    {"attention_sinks", 0}};

static corun_status check_refused(object s)
{
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        const json_t *v = field(s, refused[i].key);
        bool neutral = !v || json_is_false(v) ||
                       (json_is_number(v) && json_number_value(v) == refused[i].neutral) ||
                       (json_is_array(v) && json_array_size(v) == 0) ||
                       (json_is_object(v) && json_object_size(v) == 0);
        if (!neutral)
            FAIL(CORUN_EUNSUPPORTED, "%s: %s is set: such a model cannot be run", s.what,
                 refused[i].key);
    }
    return CORUN_OK;
}

static corun_status read_family(object s, config *c)
{
    const char *type, *text;
    TRY(get_text(s, "model_type", &type));
    if (!type) FAIL(CORUN_EFORMAT, "%s: model_type is missing", s.what);
    if (!config_find_family(c, type))
        FAIL(CORUN_EUNSUPPORTED, "%s: model_type \"%s\" is none of llama, qwen2, qwen3", s.what,
             type);
    const json_t *a = field(s, "architectures");
    if (a) {
        const char *want = families[c->family].architecture;
        const char *have = json_array_size(a) == 1 ? json_string_value(json_array_get(a, 0)) : NULL;
        if (!have) FAIL(CORUN_EFORMAT, "%s: architectures is no array of one string", s.what);
        if (strcmp(have, want) != 0)
            FAIL(CORUN_EUNSUPPORTED,
                 "%s: architectures holds \"%s\", for model_type \"%s\" only "
                 "%s can be run",
                 s.what, have, type, want);
    }
    TRY(get_text(s, "hidden_act", &text));
    if (text && strcmp(text, "silu") != 0)
        FAIL(CORUN_EUNSUPPORTED, "%s: hidden_act \"%s\", only silu can be run", s.what, text);
    const char *keys[] = {"torch_dtype", "dtype"};
    for (int i = 0; i < 2; i++) {
        TRY(get_text(s, keys[i], &text));
        if (text && strcmp(text, "bfloat16") != 0 && strcmp(text, "float16") != 0 &&
            strcmp(text, "float32") != 0)
            FAIL(CORUN_EUNSUPPORTED, "%s: %s \"%s\" is none of bfloat16, float16, float32", s.what,
                 keys[i], text);
    }
    return CORUN_OK;
}

static corun_status read_sizes(object s, config *c)
{
    TRY(need_int(s, "num_hidden_layers", CONFIG_MAX_LAYER, &c->n_layer));
    TRY(need_int(s, "hidden_size", CONFIG_MAX_WIDTH, &c->n_embd));
    TRY(need_int(s, "num_attention_heads", CONFIG_MAX_HEAD, &c->n_head));
    TRY(need_int(s, "intermediate_size", CONFIG_MAX_WIDTH, &c->n_ff));
    TRY(need_int(s, "vocab_size", CONFIG_MAX_VOCAB, &c->n_vocab));
    TRY(need_int(s, "max_position_embeddings", CONFIG_MAX_CTX, &c->n_ctx));
    c->n_kv = c->n_head; /* llama's class says so; the others' have other defaults */
    if (c->family != CONFIG_LLAMA) TRY(need_field(s, "num_key_value_heads"));
    TRY(get_int(s, "num_key_value_heads", 1, CONFIG_MAX_HEAD, &c->n_kv));
    if (c->family == CONFIG_QWEN3) {
        TRY(need_int(s, "head_dim", CONFIG_MAX_DIM, &c->d_head));
    } else {
        if (!field(s, "head_dim") && c->n_embd % c->n_head != 0)
            FAIL(CORUN_EFORMAT,
                 "%s: hidden_size %d is no multiple of num_attention_heads %d, and "
                 "head_dim is missing",
                 s.what, c->n_embd, c->n_head);
        c->d_head = c->n_embd / c->n_head;
        TRY(get_int(s, "head_dim", 1, CONFIG_MAX_DIM, &c->d_head));
        if (c->d_head > CONFIG_MAX_DIM)
            FAIL(CORUN_EFORMAT, "%s: heads of %d values, at most %d", s.what, c->d_head,
                 CONFIG_MAX_DIM);
    }
    double eps = 0.0;
    TRY(need_field(s, "rms_norm_eps"));
    TRY(get_double(s, "rms_norm_eps", 1e-30, 1.0, &eps));
    c->eps = (float)eps;
    return CORUN_OK;
}

static corun_status read_flags(object s, config *c)
{
    bool attention = c->family == CONFIG_QWEN2, mlp = false;
    TRY(get_bool(s, "tie_word_embeddings", &c->tied));
    TRY(get_bool(s, "attention_bias", &attention));
    TRY(get_bool(s, "mlp_bias", &mlp));
    if (c->family == CONFIG_QWEN2 && !attention)
        FAIL(CORUN_EFORMAT, "%s: attention_bias is false, but a qwen2 model has these biases",
             s.what);
    if (c->family != CONFIG_LLAMA && mlp)
        FAIL(CORUN_EFORMAT, "%s: mlp_bias is true, but a %s model has no such biases", s.what,
             c->family_name);
    c->qkv_bias = attention;
    c->o_bias = attention && c->family != CONFIG_QWEN2;
    c->mlp_bias = mlp;
    c->qk_norm = c->family == CONFIG_QWEN3;
    const json_t *layers = field(s, "layer_types");
    if (!layers) return CORUN_OK;
    if (!json_is_array(layers) || json_array_size(layers) != (size_t)c->n_layer)
        FAIL(CORUN_EFORMAT, "%s: layer_types is no array of num_hidden_layers %d strings", s.what,
             c->n_layer);
    for (size_t i = 0; i < json_array_size(layers); i++) {
        const char *t = json_string_value(json_array_get(layers, i));
        if (!t || strcmp(t, "full_attention") != 0)
            FAIL(CORUN_EUNSUPPORTED,
                 "%s: layer_types[%zu] is \"%s\", only full_attention can be "
                 "run",
                 s.what, i, t ? t : "no string");
    }
    return CORUN_OK;
}

/* ---- ids, and generation_config.json -----------------------------------------------------------
 */

/* -1 counts as absent. */
static corun_status get_id(object s, const char *key, const config *c, int32_t *out)
{
    int32_t id = -1;
    TRY(get_int(s, key, -1, c->n_vocab - 1, &id));
    if (id >= 0) *out = id;
    return CORUN_OK;
}

static corun_status read_eos(object s, config *c)
{
    static const char key[] = "eos_token_id";
    const json_t *v = field(s, key);
    int64_t id;
    if (!v) return CORUN_OK;
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *x = json_is_array(v) ? json_array_get(v, i) : v;
        if (!json_is_whole(x, &id))
            FAIL(CORUN_EFORMAT, "%s: %s is neither an integer nor an array of them", s.what, key);
        if (id == -1 && !json_is_array(v)) return CORUN_OK;
        if (id < 0 || id >= c->n_vocab)
            FAIL(CORUN_EFORMAT, "%s: %s %lld is not 0 to %d", s.what, key, (long long)id,
                 c->n_vocab - 1);
        TRY(config_add_eos(c, id, key, s.what));
    }
    return CORUN_OK;
}

static corun_status read_ids(object s, config *c)
{
    TRY(get_id(s, "bos_token_id", c, &c->bos));
    TRY(get_id(s, "pad_token_id", c, &c->pad));
    return read_eos(s, c);
}

static corun_status read_generation(object s, config *c)
{
    int32_t top_k = 0, unused = 0;
    bool sample = true; /* the temperature alone decides */
    TRY(get_bool(s, "do_sample", &sample));
    TRY(get_int(s, "max_length", 1, INT32_MAX, &unused));
    TRY(get_int(s, "min_length", 0, INT32_MAX, &unused));
    TRY(get_int(s, "min_new_tokens", 0, INT32_MAX, &unused));
    TRY(get_int(s, "num_beams", 1, INT32_MAX, &unused));
    TRY(get_double(s, "temperature", 0.0, 1e6, &c->temperature));
    TRY(get_double(s, "top_p", 0.0, 1.0, &c->top_p));
    TRY(get_double(s, "min_p", 0.0, 1.0, &c->min_p));
    TRY(get_double(s, "repetition_penalty", 1e-6, 1e6, &c->repetition_penalty));
    TRY(get_int(s, "top_k", -1, INT32_MAX, &top_k));
    if (field(s, "top_k")) c->top_k = top_k < 0 ? 0 : top_k;
    return get_int(s, "max_new_tokens", 1, INT32_MAX, &c->max_new_tokens);
}

static corun_status read_config(object s, object gen, config *c)
{
    static const config_keys keys = {"num_attention_heads", "num_key_value_heads", "head_dim"};
    config_init(c);
    if (!json_is_object(s.o)) FAIL(CORUN_EFORMAT, "%s is no JSON object", s.what);
    TRY(read_family(s, c));
    TRY(check_refused(s));
    TRY(read_sizes(s, c));
    TRY(read_flags(s, c));
    TRY(config_check(c, &keys, s.what));
    TRY(read_rope(s, c));
    TRY(get_id(s, "bos_token_id", c, &c->bos));
    TRY(get_id(s, "pad_token_id", c, &c->pad));
    if (gen.o) {
        if (!json_is_object(gen.o)) FAIL(CORUN_EFORMAT, "%s is no JSON object", gen.what);
        TRY(read_ids(gen, c));
        TRY(read_generation(gen, c));
    }
    return read_eos(s, c);
}

corun_status config_parse(config *out, const char *json, size_t len, const char *generation,
                          size_t gen_len, const char *what)
{
    json_t *root = NULL, *gen = NULL;
    char gen_what[PATH_MAX + 64];
    corun_status st;
    snprintf(gen_what, sizeof gen_what, "%s: generation_config.json", what);
    TRY_OR_DONE(json_read(&root, json, len, what));
    if (generation) TRY_OR_DONE(json_read(&gen, generation, gen_len, gen_what));
    st = read_config((object){root, what}, (object){gen, gen_what}, out);
done:
    json_decref(root);
    json_decref(gen);
    return st;
}

corun_status config_open(config *out, const char *folder)
{
    char path[PATH_MAX], gen_path[PATH_MAX];
    json_t *root = NULL, *gen = NULL;
    corun_status st;
    if (snprintf(path, sizeof path, "%s/config.json", folder) >= PATH_MAX ||
        snprintf(gen_path, sizeof gen_path, "%s/generation_config.json", folder) >= PATH_MAX)
        FAIL(CORUN_EINVAL, "%s: the path is too long", folder);
    TRY_OR_DONE(json_read_file(&root, path, CONFIG_FILE_MAX));
    if (file_exists(gen_path)) TRY_OR_DONE(json_read_file(&gen, gen_path, CONFIG_FILE_MAX));
    st = read_config((object){root, path}, (object){gen, gen_path}, out);
done:
    json_decref(root);
    json_decref(gen);
    return st;
}
