/* config.h - config.json and generation_config.json, or GGUF metadata, to one validated struct.
 *
 * Every field is checked for range and for consistency with the others; errors name the key.
 * CORUN_EFORMAT: missing, out of range or contradictory; CORUN_EUNSUPPORTED: a family, a rope type
 * or a feature that we do not run. A key of a rope object, and a GGUF key of the architecture,
 * that we do not know is refused; other keys of config.json that the reference framework's class
 * does not read are ignored. */
#ifndef FILES_CONFIG_H
#define FILES_CONFIG_H

#include "files/weights.h"

typedef enum config_family { CONFIG_LLAMA, CONFIG_QWEN2, CONFIG_QWEN3 } config_family;

typedef enum config_rope {
    CONFIG_ROPE_DEFAULT,
    CONFIG_ROPE_LINEAR,
    CONFIG_ROPE_LLAMA3,
    CONFIG_ROPE_YARN
} config_rope;

#define CONFIG_MAX_EOS 16

typedef struct config {
    config_family family;
    char family_name[32];
    int32_t n_layer, n_embd, n_head, n_kv, d_head, n_ff, n_vocab, n_ctx;
    float eps;
    bool tied, qkv_bias, o_bias, mlp_bias, qk_norm;
    /* rope */
    double theta;
    config_rope rope;
    double factor;                                                    /* 1 with DEFAULT */
    double low_freq, high_freq;                                       /* llama3 */
    double beta_fast, beta_slow, mscale, mscale_all_dim, attn_factor; /* yarn; 0: absent */
    bool yarn_truncate;
    int32_t original_ctx; /* llama3, yarn */
    bool gguf_permuted;   /* q and k rows are interleaved (llama GGUF): undo at load */
    /* ids; -1: absent. eos: those of generation_config.json first, then those of config.json */
    int32_t bos, eos[CONFIG_MAX_EOS], n_eos, pad;
    /* generation_config.json; NAN or -1: absent. top_k 0: the file turns it off */
    double temperature, top_p, min_p, repetition_penalty;
    int32_t top_k, max_new_tokens;
} config;

/* From a folder (config.json, generation_config.json where there). On failure *out holds nothing
 * of use. */
corun_status config_open(config *out, const char *folder);
corun_status config_from_gguf(config *out, const weights *w);
/* Parse apart from open; generation may be NULL. */
corun_status config_parse(config *out, const char *json, size_t len, const char *generation,
                          size_t gen_len, const char *what);

/* inv_freq [d_head / 2] after scaling, in double by num.h, rounded once to fp32, and the factor on
 * cos and sin. factors: the GGUF tensor rope_freqs.weight [d_head / 2] or NULL; they divide the
 * unscaled frequencies and take the place of the scaling. */
corun_status config_rope_table(const config *c, const float *factors, float *inv_freq,
                               double *scale);

#endif
