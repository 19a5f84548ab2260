/* test_files_config.c - config.json and generation_config.json, old and new spellings; GGUF
 * metadata; rotary tables against published values. */
#include "files_make.h"

/* A config.json: the base text of a family with "extra" put before its end. */
#define LLAMA                                                                                      \
    "\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_act\":\"silu\","   \
    "\"hidden_size\":576,\"intermediate_size\":1536,\"num_hidden_layers\":30,"                     \
    "\"num_attention_heads\":9,\"num_key_value_heads\":3,\"max_position_embeddings\":8192,"        \
    "\"vocab_size\":49152,\"rms_norm_eps\":1e-05,\"torch_dtype\":\"bfloat16\""
#define QWEN2                                                                                      \
    "\"model_type\":\"qwen2\",\"hidden_size\":896,\"intermediate_size\":4864,"                     \
    "\"num_hidden_layers\":24,\"num_attention_heads\":14,\"num_key_value_heads\":2,"               \
    "\"max_position_embeddings\":32768,\"vocab_size\":151936,\"rms_norm_eps\":1e-06"
#define QWEN3                                                                                      \
    "\"model_type\":\"qwen3\",\"hidden_size\":1024,\"intermediate_size\":3072,"                    \
    "\"num_hidden_layers\":28,\"num_attention_heads\":16,\"num_key_value_heads\":8,"               \
    "\"head_dim\":128,\"max_position_embeddings\":40960,\"vocab_size\":151936,"                    \
    "\"rms_norm_eps\":1e-06"

static corun_status parse2(config *c, const char *base, const char *extra, const char *gen)
{
    char text[4096];
    snprintf(text, sizeof text, "{%s%s%s}", base, *extra ? "," : "", extra);
    return config_parse(c, text, strlen(text), gen, gen ? strlen(gen) : 0, "config.json");
}

static config parse_ok(const char *base, const char *extra, const char *gen)
{
    config c;
    expect(parse2(&c, base, extra, gen), CORUN_OK, NULL, extra);
    return c;
}

static void bad(const char *base, const char *extra, corun_status want, const char *text)
{
    config c;
    expect(parse2(&c, base, extra, NULL), want, text, extra);
}

/* ---- families
 * ------------------------------------------------------------------------------------- */

static void test_families(void **state)
{
    (void)state;
    config c = parse_ok(LLAMA,
                        "\"rope_theta\":100000,\"tie_word_embeddings\":true,"
                        "\"bos_token_id\":1,\"eos_token_id\":2,\"pad_token_id\":2",
                        NULL);
    assert_int_equal(c.family, CONFIG_LLAMA);
    assert_string_equal(c.family_name, "llama");
    assert_int_equal(c.n_layer, 30);
    assert_int_equal(c.n_embd, 576);
    assert_int_equal(c.n_head, 9);
    assert_int_equal(c.n_kv, 3);
    assert_int_equal(c.d_head, 64);
    assert_int_equal(c.n_ff, 1536);
    assert_int_equal(c.n_vocab, 49152);
    assert_int_equal(c.n_ctx, 8192);
    assert_true(c.eps == 1e-5f && c.theta == 100000.0 && c.tied);
    assert_false(c.qkv_bias || c.o_bias || c.mlp_bias || c.qk_norm || c.gguf_permuted);
    assert_int_equal(c.bos, 1);
    assert_int_equal(c.pad, 2);
    assert_int_equal(c.n_eos, 1);
    assert_int_equal(c.eos[0], 2);
    assert_int_equal(c.eos[1], -1);
    assert_true(isnan(c.temperature) && isnan(c.top_p) && isnan(c.min_p));
    assert_true(isnan(c.repetition_penalty) && c.top_k == -1 && c.max_new_tokens == -1);
    c = parse_ok(LLAMA, "\"attention_bias\":true,\"mlp_bias\":true", NULL);
    assert_true(c.qkv_bias && c.o_bias && c.mlp_bias && !c.tied && c.theta == 10000.0);
    assert_int_equal(c.bos, -1);
    assert_int_equal(c.n_eos, 0);
    c = parse_ok(LLAMA, "\"head_dim\":128", NULL);
    assert_int_equal(c.d_head, 128);
    c = parse_ok(QWEN2,
                 "\"use_sliding_window\":false,\"sliding_window\":32768,"
                 "\"max_window_layers\":21",
                 NULL);
    assert_true(c.qkv_bias && !c.o_bias && !c.mlp_bias && !c.qk_norm);
    assert_int_equal(c.d_head, 64);
    c = parse_ok(QWEN3, "\"attention_bias\":false,\"dtype\":\"bfloat16\"", NULL);
    assert_true(!c.qkv_bias && !c.o_bias && c.qk_norm);
    assert_int_equal(c.d_head, 128);
    c = parse_ok(QWEN3, "\"attention_bias\":true", NULL);
    assert_true(c.qkv_bias && c.o_bias);
    /* whole numbers written with a point, nulls as absent */
    c = parse_ok("\"model_type\":\"llama\",\"hidden_size\":64.0,\"intermediate_size\":128,"
                 "\"num_hidden_layers\":2,\"num_attention_heads\":4,"
                 "\"max_position_embeddings\":128,\"vocab_size\":100,\"rms_norm_eps\":1e-5",
                 "\"num_key_value_heads\":null,\"head_dim\":null,\"rope_scaling\":null,"
                 "\"eos_token_id\":null,\"pad_token_id\":-1,\"architectures\":null,"
                 "\"quantization_config\":null,\"unknown_key\":{\"x\":[1]}",
                 NULL);
    assert_int_equal(c.n_embd, 64);
    assert_int_equal(c.n_kv, 4);
    assert_int_equal(c.d_head, 16);
    assert_int_equal(c.pad, -1);
}

/* Each required key left out, of a wrong type and out of range. */
static void test_required(void **state)
{
    (void)state;
    static const char *const keys[] = {"hidden_size",
                                       "intermediate_size",
                                       "num_hidden_layers",
                                       "num_attention_heads",
                                       "max_position_embeddings",
                                       "vocab_size",
                                       "rms_norm_eps",
                                       "model_type",
                                       "num_key_value_heads",
                                       "head_dim"};
    static const char *const values[] = {NULL,   "null", "0",   "-1", "1e18",       "\"8\"",
                                         "true", "1.5",  "[8]", "{}", "2147483648", "1e400"};
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
        for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
            if (strcmp(keys[k], "rms_norm_eps") == 0 && v >= 10) continue;
            char text[4096], pattern[64];
            config c;
            snprintf(text, sizeof text, "{%s}", QWEN3);
            snprintf(pattern, sizeof pattern, "\"%s\":", keys[k]);
            char *at = strstr(text, pattern), *value = at + strlen(pattern);
            assert_non_null(at);
            char *end = value + strcspn(value, ",}");
            char out[4096];
            if (values[v])
                snprintf(out, sizeof out, "%.*s%s%s", (int)(value - text), text, values[v], end);
            else
                snprintf(out, sizeof out, "%.*s\"x\":1%s", (int)(at - text), text, end);
            corun_status st = config_parse(&c, out, strlen(out), NULL, 0, "config.json");
            if (st == CORUN_OK) fail_msg("%s = %s", keys[k], values[v] ? values[v] : "nothing");
            if (v != 11) assert_non_null(strstr(err_text(), keys[k]));
            assert_non_null(strstr(err_text(), "config.json"));
        }
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *extra;
        corun_status st;
        const char *text;
    } c[] = {
        {"\"hidden_act\":\"gelu\"", CORUN_EUNSUPPORTED, "hidden_act \"gelu\""},
        {"\"architectures\":[\"MistralForCausalLM\"]", CORUN_EUNSUPPORTED, "architectures"},
        {"\"architectures\":[]", CORUN_EFORMAT, "architectures"},
        {"\"architectures\":\"Qwen3ForCausalLM\"", CORUN_EFORMAT, "architectures"},
        {"\"architectures\":[\"Qwen3ForCausalLM\",\"X\"]", CORUN_EFORMAT, "architectures"},
        {"\"architectures\":[\"Qwen2ForCausalLM\"]", CORUN_EUNSUPPORTED, "architectures"},
        {"\"torch_dtype\":\"float8\"", CORUN_EUNSUPPORTED, "torch_dtype"},
        {"\"dtype\":\"int8\"", CORUN_EUNSUPPORTED, "dtype"},
        {"\"quantization_config\":{\"quant_method\":\"fp8\"}", CORUN_EUNSUPPORTED,
         "quantization_config"},
        {"\"use_sliding_window\":true", CORUN_EUNSUPPORTED, "use_sliding_window"},
        {"\"partial_rotary_factor\":0.5", CORUN_EUNSUPPORTED, "partial_rotary_factor"},
        {"\"rope_interleaved\":true", CORUN_EUNSUPPORTED, "rope_interleaved"},
        {"\"num_experts\":8", CORUN_EUNSUPPORTED, "num_experts"},
        {"\"attn_logit_softcapping\":50.0", CORUN_EUNSUPPORTED, "attn_logit_softcapping"},
        {"\"logit_scale\":0.5", CORUN_EUNSUPPORTED, "logit_scale"},
        {"\"residual_multiplier\":\"1\"", CORUN_EUNSUPPORTED, "residual_multiplier"},
        {"\"mlp_bias\":true", CORUN_EFORMAT, "mlp_bias"},
        {"\"attention_bias\":1", CORUN_EFORMAT, "attention_bias"},
        {"\"tie_word_embeddings\":\"yes\"", CORUN_EFORMAT, "tie_word_embeddings"},
        {"\"layer_types\":[\"full_attention\"]", CORUN_EFORMAT, "layer_types"},
        {"\"rope_scaling\":\"yarn\"", CORUN_EFORMAT, "rope_scaling"},
        {"\"rope_theta\":1", CORUN_EFORMAT, "rope_theta"},
        {"\"rope_theta\":-5", CORUN_EFORMAT, "rope_theta"},
        {"\"rope_theta\":\"1e6\"", CORUN_EFORMAT, "rope_theta"},
        {"\"eos_token_id\":151936", CORUN_EFORMAT, "eos_token_id 151936"},
        {"\"eos_token_id\":[1,-1]", CORUN_EFORMAT, "eos_token_id -1"},
        {"\"eos_token_id\":[1,\"2\"]", CORUN_EFORMAT, "eos_token_id"},
        {"\"eos_token_id\":{}", CORUN_EFORMAT, "eos_token_id"},
        {"\"eos_token_id\":[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]", CORUN_EFORMAT,
         "eos_token_id: more than 16"},
        {"\"bos_token_id\":-2", CORUN_EFORMAT, "bos_token_id"},
        {"\"bos_token_id\":151936", CORUN_EFORMAT, "bos_token_id"},
        {"\"pad_token_id\":1e9", CORUN_EFORMAT, "pad_token_id"},
        {"\"hidden_size\":1024", CORUN_EFORMAT, "duplicate"},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) bad(QWEN3, c[i].extra, c[i].st, c[i].text);
    bad(QWEN2, "\"attention_bias\":false", CORUN_EFORMAT, "attention_bias is false");
    parse_ok(QWEN2, "\"attention_bias\":true", NULL);
    static const struct {
        const char *from, *to, *text;
    } swap[] = {{"\"num_key_value_heads\":8", "\"num_key_value_heads\":5", "no multiple"},
                {"\"num_key_value_heads\":8", "\"num_key_value_heads\":32", "no multiple"},
                {"\"head_dim\":128", "\"head_dim\":127", "odd"},
                {"\"num_attention_heads\":16", "\"num_attention_heads\":65536", "above"},
                {"\"qwen3\"", "\"qwen3_moe\"", "model_type \"qwen3_moe\""},
                {"\"qwen3\"", "\"mistral\"", "model_type \"mistral\""},
                {"\"qwen3\"", "\"Qwen3\"", "model_type"},
                {"\"qwen3\"", "3", "model_type"}};
    for (size_t i = 0; i < sizeof swap / sizeof *swap; i++) {
        char text[4096], out[4096];
        config x;
        snprintf(text, sizeof text, "{%s}", QWEN3);
        char *at = strstr(text, swap[i].from);
        snprintf(out, sizeof out, "%.*s%s%s", (int)(at - text), text, swap[i].to,
                 at + strlen(swap[i].from));
        corun_status st = config_parse(&x, out, strlen(out), NULL, 0, "config.json");
        assert_true(st == CORUN_EFORMAT || st == CORUN_EUNSUPPORTED);
        assert_non_null(strstr(err_text(), swap[i].text));
    }
    bad("\"model_type\":\"llama\",\"hidden_size\":100,\"intermediate_size\":8,"
        "\"num_hidden_layers\":1,\"num_attention_heads\":3,\"max_position_embeddings\":8,"
        "\"vocab_size\":8,\"rms_norm_eps\":1e-5",
        "", CORUN_EFORMAT, "hidden_size 100");
    config x;
    expect(config_parse(&x, "[]", 2, NULL, 0, "c"), CORUN_EFORMAT, "no JSON object", "array");
    expect(config_parse(&x, "", 0, NULL, 0, "c"), CORUN_EFORMAT, "JSON", "nothing");
    expect(config_parse(&x, "{}", 2, NULL, 0, "c"), CORUN_EFORMAT, "model_type", "empty");
}

static void test_layer_types(void **state)
{
    (void)state;
    char extra[2048] = "\"layer_types\":[";
    for (int i = 0; i < 28; i++) strcat(extra, i ? ",\"full_attention\"" : "\"full_attention\"");
    strcat(extra, "]");
    parse_ok(QWEN3, extra, NULL);
    memcpy(strstr(extra, "full_attention\"]"), "sldg_attention", 14);
    bad(QWEN3, extra, CORUN_EUNSUPPORTED, "layer_types[27] is \"sldg_attention\"");
}

/* ---- generation_config.json
 * ------------------------------------------------------------------------ */

static void test_generation(void **state)
{
    (void)state;
    config c = parse_ok(QWEN3, "\"bos_token_id\":151643,\"eos_token_id\":151645",
                        "{\"bos_token_id\":151642,\"do_sample\":true,\"max_length\":20,"
                        "\"eos_token_id\":[151643,151645],\"pad_token_id\":151643,"
                        "\"temperature\":0.6,\"top_k\":20,\"top_p\":0.95,\"min_p\":0,"
                        "\"repetition_penalty\":1.05,\"max_new_tokens\":2048,"
                        "\"transformers_version\":\"4.51.0\"}");
    assert_int_equal(c.bos, 151642);
    assert_int_equal(c.pad, 151643);
    assert_int_equal(c.n_eos, 2);
    assert_int_equal(c.eos[0], 151643);
    assert_int_equal(c.eos[1], 151645);
    assert_true(c.temperature == 0.6 && c.top_k == 20 && c.top_p == 0.95 && c.min_p == 0.0);
    assert_true(c.repetition_penalty == 1.05 && c.max_new_tokens == 2048);
    c = parse_ok(QWEN3, "\"eos_token_id\":[5,6]", "{\"eos_token_id\":7,\"top_k\":-1}");
    assert_int_equal(c.n_eos, 3);
    assert_int_equal(c.eos[0], 7);
    assert_int_equal(c.eos[2], 6);
    assert_int_equal(c.top_k, 0);
    c = parse_ok(QWEN3, "\"eos_token_id\":5", "{\"temperature\":null,\"top_k\":0}");
    assert_true(isnan(c.temperature) && c.top_k == 0 && c.n_eos == 1);
    static const char *const wrong[] = {"{\"temperature\":-0.1}",
                                        "{\"temperature\":\"0.6\"}",
                                        "{\"temperature\":1e9}",
                                        "{\"top_p\":1.01}",
                                        "{\"top_p\":-0.5}",
                                        "{\"min_p\":2}",
                                        "{\"top_k\":-2}",
                                        "{\"top_k\":1.5}",
                                        "{\"top_k\":3000000000}",
                                        "{\"repetition_penalty\":0}",
                                        "{\"repetition_penalty\":-1}",
                                        "{\"max_new_tokens\":0}",
                                        "{\"do_sample\":5}",
                                        "{\"do_sample\":\"true\"}",
                                        "{\"max_length\":-1}",
                                        "{\"max_length\":\"20\"}",
                                        "{\"min_length\":-1}",
                                        "{\"num_beams\":0}",
                                        "{\"eos_token_id\":200000}",
                                        "{\"bos_token_id\":200000}",
                                        "{\"pad_token_id\":\"x\"}",
                                        "[]",
                                        "{",
                                        "{\"top_k\":1,\"top_k\":1}"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        expect(parse2(&c, QWEN3, "", wrong[i]), CORUN_EFORMAT, "generation_config.json", wrong[i]);
}

static void test_open(void **state)
{
    (void)state;
    char folder[64], path[128];
    config c;
    folder_make(folder);
    expect(config_open(&c, folder), CORUN_EFORMAT, "config.json", "no file");
    file_text(folder, "config.json", "{" QWEN2 "}");
    expect(config_open(&c, folder), CORUN_OK, NULL, folder);
    assert_true(isnan(c.temperature));
    file_text(folder, "generation_config.json", "{\"temperature\":0.7}");
    expect(config_open(&c, folder), CORUN_OK, NULL, folder);
    assert_true(c.temperature == 0.7);
    file_text(folder, "generation_config.json", "{\"temperature\":}");
    expect(config_open(&c, folder), CORUN_EFORMAT, "generation_config.json", folder);
    file_text(folder, "generation_config.json", "{\"temperature\":-1}");
    expect(config_open(&c, folder), CORUN_EFORMAT, "generation_config.json: temperature", folder);
    snprintf(path, sizeof path, "%s/generation_config.json", folder);
    unlink(path);
    mkdir(path, 0700);
    expect(config_open(&c, folder), CORUN_EFORMAT, "generation_config.json", "a folder");
    rmdir(path);
    folder_remove(folder);
}

/* ---- rope: spellings
 * ------------------------------------------------------------------------------- */

#define L3                                                                                         \
    "\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"                             \
    "\"original_max_position_embeddings\":8192"
#define YARN "\"factor\":4.0,\"original_max_position_embeddings\":32768"

static void test_rope_spellings(void **state)
{
    (void)state;
    static const struct {
        const char *extra;
        config_rope rope;
        double theta, factor;
    } good[] = {
        {"\"rope_theta\":5e5,\"rope_scaling\":null", CONFIG_ROPE_DEFAULT, 5e5, 1},
        {"\"rope_theta\":5e5,\"rope_scaling\":{}", CONFIG_ROPE_DEFAULT, 5e5, 1},
        {"\"rope_theta\":5e5", CONFIG_ROPE_DEFAULT, 5e5, 1},
        {"", CONFIG_ROPE_DEFAULT, 1e4, 1},
        {"\"rope_scaling\":{\"rope_type\":\"default\"}", CONFIG_ROPE_DEFAULT, 1e4, 1},
        {"\"rope_scaling\":{\"type\":\"default\"}", CONFIG_ROPE_DEFAULT, 1e4, 1},
        {"\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}", CONFIG_ROPE_LINEAR, 1e4, 2},
        {"\"rope_scaling\":{\"type\":\"llama3\"," L3 "}", CONFIG_ROPE_LLAMA3, 1e4, 8},
        {"\"rope_scaling\":{\"rope_type\":\"llama3\"," L3 "}", CONFIG_ROPE_LLAMA3, 1e4, 8},
        {"\"rope_scaling\":{\"rope_type\":\"llama3\",\"type\":\"llama3\"," L3 "}",
         CONFIG_ROPE_LLAMA3, 1e4, 8},
        {"\"rope_scaling\":{\"type\":\"yarn\"," YARN "}", CONFIG_ROPE_YARN, 1e4, 4},
        {"\"rope_scaling\":{\"type\":\"yarn\",\"factor\":16,\"finetuned\":true}", CONFIG_ROPE_YARN,
         1e4, 16},
        {"\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":1e6}", CONFIG_ROPE_DEFAULT,
         1e6, 1},
        {"\"rope_parameters\":{\"rope_theta\":1e6}", CONFIG_ROPE_DEFAULT, 1e6, 1},
        {"\"rope_parameters\":{\"rope_theta\":1e6,\"rope_type\":\"llama3\"," L3 "}",
         CONFIG_ROPE_LLAMA3, 1e6, 8},
        {"\"rope_theta\":1e6,\"rope_parameters\":{\"rope_type\":\"yarn\"," YARN "}",
         CONFIG_ROPE_YARN, 1e6, 4},
        {"\"rope_parameters\":{\"rope_theta\":1e6,\"partial_rotary_factor\":1.0}",
         CONFIG_ROPE_DEFAULT, 1e6, 1},
        /* both places, in agreement */
        {"\"rope_theta\":1e6,\"rope_scaling\":{\"type\":\"yarn\"," YARN "},"
         "\"rope_parameters\":{\"rope_theta\":1e6,\"rope_type\":\"yarn\"," YARN "}",
         CONFIG_ROPE_YARN, 1e6, 4},
        {"\"rope_scaling\":null,\"rope_parameters\":{\"rope_theta\":1e6,\"rope_type\":\"linear\","
         "\"factor\":2}",
         CONFIG_ROPE_LINEAR, 1e6, 2},
        {"\"original_max_position_embeddings\":32768,\"rope_scaling\":{\"type\":\"yarn\"," YARN "}",
         CONFIG_ROPE_YARN, 1e4, 4},
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        config c = parse_ok(LLAMA, good[i].extra, NULL);
        assert_int_equal(c.rope, good[i].rope);
        assert_true(c.theta == good[i].theta && c.factor == good[i].factor);
    }
    config c = parse_ok(LLAMA, "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4.0}", NULL);
    assert_int_equal(c.original_ctx, 8192); /* max_position_embeddings stands in */
    assert_true(c.beta_fast == 32 && c.beta_slow == 1 && c.yarn_truncate && c.attn_factor == 0);
}

static void test_rope_refused(void **state)
{
    (void)state;
    static const struct {
        const char *extra;
        corun_status st;
        const char *text;
    } c[] = {
        {"\"rope_scaling\":{\"type\":\"yarn\",\"rope_type\":\"llama3\"," L3 "}", CORUN_EFORMAT,
         "rope_type is \"llama3\", but type is \"yarn\""},
        {"\"rope_scaling\":{\"type\":\"su\",\"factor\":2}", CORUN_EUNSUPPORTED, "\"su\""},
        {"\"rope_scaling\":{\"rope_type\":\"longrope\",\"factor\":2}", CORUN_EUNSUPPORTED,
         "\"longrope\""},
        {"\"rope_scaling\":{\"rope_type\":\"dynamic\",\"factor\":2}", CORUN_EUNSUPPORTED,
         "\"dynamic\""},
        {"\"rope_scaling\":{\"rope_type\":\"YARN\",\"factor\":2}", CORUN_EUNSUPPORTED, "\"YARN\""},
        {"\"rope_scaling\":{\"rope_type\":3}", CORUN_EFORMAT, "rope_type is no string"},
        {"\"rope_scaling\":{\"factor\":8}", CORUN_EFORMAT, "factor"},
        {"\"rope_parameters\":{\"factor\":8}", CORUN_EFORMAT, "rope_parameters: key factor"},
        {"\"rope_scaling\":{\"rope_type\":\"default\",\"factor\":8}", CORUN_EFORMAT, "factor"},
        {"\"rope_scaling\":{\"rope_type\":\"linear\"}", CORUN_EFORMAT, "factor is missing"},
        {"\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":0.5}", CORUN_EFORMAT,
         "factor is 0.5"},
        {"\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":\"2\"}", CORUN_EFORMAT,
         "no number"},
        {"\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":2,\"beta_fast\":32}", CORUN_EFORMAT,
         "beta_fast"},
        {"\"rope_scaling\":{\"rope_type\":\"yarn\"," YARN ",\"low_freq_factor\":1}", CORUN_EFORMAT,
         "low_freq_factor"},
        {"\"rope_scaling\":{\"rope_type\":\"yarn\"," YARN ",\"mrope_section\":[1]}",
         CORUN_EUNSUPPORTED, "unknown key mrope_section"},
        {"\"rope_scaling\":{\"rope_type\":\"yarn\"," YARN ",\"beta_fast\":1,\"beta_slow\":2}",
         CORUN_EFORMAT, "beta_fast"},
        {"\"rope_scaling\":{\"rope_type\":\"yarn\"," YARN ",\"truncate\":1}", CORUN_EFORMAT,
         "truncate"},
        {"\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4,"
         "\"original_max_position_embeddings\":0}",
         CORUN_EFORMAT, "original_max_position_embeddings"},
        {"\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8}", CORUN_EFORMAT,
         "low_freq_factor is missing"},
        {"\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,"
         "\"high_freq_factor\":4}",
         CORUN_EFORMAT, "original_max_position_embeddings is missing"},
        {"\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,"
         "\"high_freq_factor\":4,\"original_max_position_embeddings\":8192}",
         CORUN_EFORMAT, "not below"},
        {"\"rope_theta\":1e4,\"rope_parameters\":{\"rope_theta\":1e6}", CORUN_EFORMAT,
         "contradicts another rope_theta"},
        {"\"rope_scaling\":{\"type\":\"linear\",\"factor\":2},"
         "\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":4}",
         CORUN_EFORMAT, "contradict each other"},
        {"\"rope_scaling\":{\"type\":\"linear\",\"factor\":2},"
         "\"rope_parameters\":{\"rope_theta\":1e6}",
         CORUN_EFORMAT, "contradict each other"},
        {"\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\"}}", CORUN_EUNSUPPORTED,
         "full_attention"},
        {"\"rope_parameters\":{\"rope_theta\":1e6,\"partial_rotary_factor\":0.5}",
         CORUN_EUNSUPPORTED, "partial_rotary_factor"},
        {"\"original_max_position_embeddings\":4096", CORUN_EFORMAT,
         "original_max_position_embeddings"},
        {"\"rope_parameters\":[]", CORUN_EFORMAT, "rope_parameters is no object"},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) bad(LLAMA, c[i].extra, c[i].st, c[i].text);
}

/* ---- rope: numbers
 * ---------------------------------------------------------------------------------- */

/* Up to the rounding to fp32 and of the printed digits. */
static void near(double got, double want)
{
    if (!(fabs(got - want) <= 6.5e-8 * fabs(want))) fail_msg("%.10g, not %.10g", got, want);
}

/* A configuration with these rotary fields only. */
static config rope_config(int d, double theta, config_rope rope, double factor, int original)
{
    config c = {.d_head = d,
                .theta = theta,
                .rope = rope,
                .factor = factor,
                .low_freq = 1,
                .high_freq = 4,
                .beta_fast = 32,
                .beta_slow = 1,
                .yarn_truncate = true,
                .original_ctx = original};
    return c;
}

static void table(const config *c, const float *factors, float *f, double *scale)
{
    assert_int_equal(config_rope_table(c, factors, f, scale), CORUN_OK);
}

static void test_rope_llama3(void **state)
{
    (void)state;
    static const struct {
        int d, i;
        double factor, want;
    } v[] = {
        {128, 28, 8, 0.00321144599},  {128, 29, 8, 0.00216657076},  {128, 34, 8, 0.000178507813},
        {128, 35, 8, 9.55621235e-05}, {128, 63, 8, 3.06892599e-07}, {64, 15, 32, 0.00129054793},
        {64, 17, 32, 9.7082878e-05},  {64, 18, 32, 1.94616382e-05}, {64, 31, 32, 9.41830673e-08}};
    for (size_t k = 0; k < sizeof v / sizeof *v; k++) {
        float f[64];
        double scale;
        config c = rope_config(v[k].d, 500000, CONFIG_ROPE_LLAMA3, v[k].factor, 8192);
        table(&c, NULL, f, &scale);
        near(f[v[k].i], v[k].want);
        assert_true(scale == 1.0);
    }
    /* which are unchanged, blended, divided */
    for (int d = 64; d <= 128; d += 64) {
        float f[64], plain[64];
        double scale;
        config c = rope_config(d, 500000, CONFIG_ROPE_LLAMA3, d == 64 ? 32 : 8, 8192);
        table(&c, NULL, f, &scale);
        c.rope = CONFIG_ROPE_DEFAULT;
        table(&c, NULL, plain, &scale);
        int same = d == 64 ? 14 : 28, blend = d == 64 ? 17 : 34;
        for (int i = 0; i < d / 2; i++) {
            double ratio = (double)f[i] / (double)plain[i];
            if (i <= same)
                assert_true(f[i] == plain[i]);
            else if (i <= blend)
                assert_true(ratio < 0.999 && ratio * c.factor > 1.001);
            else
                near(ratio * c.factor, 1.0);
        }
    }
}

static void test_rope_yarn(void **state)
{
    (void)state;
    static const struct {
        int d, original, lo, hi;
        double theta, factor, mscale, all, scale;
    } v[] = {{64, 4096, 10, 23, 10000, 40, 1, 1, 1.0},
             {64, 4096, 10, 23, 10000, 40, 0.707, 0, 1.36888795},
             {64, 4096, 10, 23, 10000, 40, 1, 0.5, 1.36888795 / 1.18444397},
             {128, 32768, 23, 40, 1e6, 4, 0, 0, 1.13862944}};
    for (size_t k = 0; k < sizeof v / sizeof *v; k++) {
        float f[64], plain[64];
        double scale;
        config c = rope_config(v[k].d, v[k].theta, CONFIG_ROPE_YARN, v[k].factor, v[k].original);
        c.mscale = v[k].mscale;
        c.mscale_all_dim = v[k].all;
        table(&c, NULL, f, &scale);
        near(scale, v[k].scale);
        c.attn_factor = 0.75;
        table(&c, NULL, f, &scale);
        assert_true(scale == 0.75);
        c.rope = CONFIG_ROPE_DEFAULT;
        table(&c, NULL, plain, &scale);
        assert_true(scale == 1.0);
        for (int i = 0; i < v[k].d / 2; i++) {
            double ramp = (double)(i - v[k].lo) / (v[k].hi - v[k].lo);
            ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
            double want = pow(v[k].theta, -2.0 * i / v[k].d);
            want = want / v[k].factor * ramp + want * (1 - ramp);
            if (fabs((double)f[i] - want) > 1e-7 * want)
                fail_msg("index %d: %g, not %g", i, (double)f[i], want);
            if (i <= v[k].lo) assert_true(f[i] == plain[i]);
        }
    }
    /* without truncation the range is 10.472 to 22.513; one dimension apart it is widened */
    float f[32];
    double scale;
    config c = rope_config(64, 10000, CONFIG_ROPE_YARN, 40, 4096);
    c.yarn_truncate = false;
    table(&c, NULL, f, &scale);
    double plain = pow(10000, -2.0 * 11 / 64), ramp = (11 - 10.4722) / (22.5131 - 10.4722);
    assert_true(fabs((double)f[11] - (plain / 40 * ramp + plain * (1 - ramp))) < 1e-5 * plain);
    c.beta_fast = c.beta_slow = 1;
    table(&c, NULL, f, &scale);
    for (int i = 0; i < 32; i++) assert_true(isfinite(f[i]) && f[i] > 0);
    c = rope_config(64, 10000, CONFIG_ROPE_YARN, 40, 6); /* both ends are 0 */
    table(&c, NULL, f, &scale);
    assert_true(f[0] == 1.0f);
    near((double)f[1] * 40, pow(10000, -2.0 / 64));
    c = rope_config(64, 10000, CONFIG_ROPE_YARN, 1, 4096); /* factor 1 changes nothing */
    table(&c, NULL, f, &scale);
    assert_true(scale == 1.0);
}

static void test_rope_plain(void **state)
{
    (void)state;
    static const double thetas[] = {10000, 100000, 130000, 500000, 1e6, 5e6, 11158840};
    for (size_t k = 0; k < sizeof thetas / sizeof *thetas; k++)
        for (int d = 2; d <= 256; d *= 2) {
            float f[128], g[128];
            double scale;
            config c = rope_config(d, thetas[k], CONFIG_ROPE_DEFAULT, 1, 0);
            table(&c, NULL, f, &scale);
            assert_true(f[0] == 1.0f && scale == 1.0);
            for (int i = 0; i < d / 2; i++)
                assert_true(fabs((double)f[i] - pow(thetas[k], -2.0 * i / d)) <=
                            6e-8 * (double)f[i]);
            c.rope = CONFIG_ROPE_LINEAR;
            c.factor = 4;
            table(&c, NULL, g, &scale);
            for (int i = 0; i < d / 2; i++) assert_true(g[i] == f[i] / 4);
        }
}

/* A GGUF file's factors take the place of llama3 scaling: what the converter writes gives what the
 * formula gives. */
static void test_rope_factors(void **state)
{
    (void)state;
    float want[64], plain[64], factors[64], f[64];
    double scale;
    config c = rope_config(128, 500000, CONFIG_ROPE_LLAMA3, 8, 8192);
    table(&c, NULL, want, &scale);
    c.rope = CONFIG_ROPE_DEFAULT;
    table(&c, NULL, plain, &scale);
    for (int i = 0; i < 64; i++) factors[i] = plain[i] / want[i];
    table(&c, factors, f, &scale);
    for (int i = 0; i < 64; i++)
        assert_true(fabs((double)f[i] - (double)want[i]) <= 3e-7 * (double)want[i]);
    c.rope = CONFIG_ROPE_YARN;
    c.factor = 4;
    table(&c, factors, f, &scale);
    assert_true(scale == 1.0 && f[0] == 1.0f);
    static const float wrong[] = {0.0f, -1.0f, NAN, INFINITY};
    for (int i = 0; i < 4; i++) {
        factors[7] = wrong[i];
        expect(config_rope_table(&c, factors, f, &scale), CORUN_EFORMAT,
               "rope_freqs.weight\": value 7", "factor");
    }
}

/* ---- GGUF
 * -------------------------------------------------------------------------------------------- */

typedef struct gguf_case {
    const char *arch;
    int skip; /* leaves out the skip-th key of the base */
    void (*more)(make *m);
    int n_more;
    const char *tensor; /* one more, of 4 values */
} gguf_case;

/* A small model: 8 tokens, width 32, 4 heads, 2 kv heads. */
static corun_status from_gguf(config *c, const gguf_case *g)
{
    char folder[64], path[128], key[128];
    static const struct {
        const char *key;
        double v;
    } base[] = {{"context_length", 128},
                {"embedding_length", 32},
                {"block_count", 2},
                {"feed_forward_length", 64},
                {"attention.head_count", 4},
                {"attention.layer_norm_rms_epsilon", 1e-6},
                {"attention.head_count_kv", 2}};
    make m;
    make_init(&m);
    gg_head(&m, 1 + (g->tensor != NULL), (uint64_t)(1 + 7 - (g->skip > 0) + g->n_more));
    gg_str(&m, "general.architecture", g->arch);
    for (int i = 0; i < 7; i++) {
        if (i + 1 == g->skip) continue;
        snprintf(key, sizeof key, "%s.%s", g->arch, base[i].key);
        if (i == 5)
            gg_f32(&m, key, (float)base[i].v);
        else
            gg_u32(&m, key, (uint32_t)base[i].v);
    }
    if (g->more) g->more(&m);
    gg_tensor(&m, "token_embd.weight", 1, 0, 2, 32, 8);
    if (g->tensor) gg_tensor(&m, g->tensor, 0, 512, 1, 4, 0);
    gg_pad(&m, 32);
    put_zeros(&m, 528);
    folder_make(folder);
    file_put(folder, "m.gguf", m.b.data, m.b.len);
    make_free(&m);
    snprintf(path, sizeof path, "%s/m.gguf", folder);
    weights *w;
    expect(weights_open(&w, path), CORUN_OK, NULL, path);
    corun_status st = config_from_gguf(c, w);
    weights_close(w);
    folder_remove(folder);
    return st;
}

static config gguf_ok(const char *arch, void (*more)(make *m), int n_more, const char *tensor)
{
    config c;
    expect(from_gguf(&c, &(gguf_case){arch, 0, more, n_more, tensor}), CORUN_OK, NULL, arch);
    return c;
}

static void gguf_bad(const char *arch, void (*more)(make *m), int n_more, corun_status want,
                     const char *text)
{
    config c;
    expect(from_gguf(&c, &(gguf_case){arch, 0, more, n_more, NULL}), want, text, text);
}

static void add_head64(make *m)
{
    gg_u32(m, "qwen3.attention.key_length", 64);
    gg_u32(m, "qwen3.attention.value_length", 64);
    gg_f32(m, "qwen3.rope.freq_base", 1e6f);
}

static void add_ids(make *m)
{
    gg_u32(m, "tokenizer.ggml.bos_token_id", 1);
    gg_u32(m, "tokenizer.ggml.eos_token_id", 2);
    gg_u32(m, "tokenizer.ggml.eot_token_id", 3);
    gg_u32(m, "tokenizer.ggml.eom_token_id", 2);
    gg_u32(m, "tokenizer.ggml.padding_token_id", UINT32_MAX);
}

static void test_gguf_families(void **state)
{
    (void)state;
    config c = gguf_ok("llama", add_ids, 5, NULL);
    assert_int_equal(c.family, CONFIG_LLAMA);
    assert_int_equal(c.n_layer, 2);
    assert_int_equal(c.n_embd, 32);
    assert_int_equal(c.n_head, 4);
    assert_int_equal(c.n_kv, 2);
    assert_int_equal(c.d_head, 8);
    assert_int_equal(c.n_ff, 64);
    assert_int_equal(c.n_vocab, 8);
    assert_int_equal(c.n_ctx, 128);
    assert_true(c.eps == 1e-6f && c.theta == 10000.0 && c.tied && c.gguf_permuted);
    assert_int_equal(c.bos, 1);
    assert_int_equal(c.pad, -1);
    assert_int_equal(c.n_eos, 2);
    assert_int_equal(c.eos[0], 2);
    assert_int_equal(c.eos[1], 3);
    assert_false(gguf_ok("llama", NULL, 0, "output.weight").tied);
    assert_true(gguf_ok("llama", NULL, 0, "blk.0.attn_q.bias").qkv_bias);
    assert_true(gguf_ok("llama", NULL, 0, "blk.0.attn_output.bias").o_bias);
    assert_true(gguf_ok("llama", NULL, 0, "blk.0.ffn_down.bias").mlp_bias);
    c = gguf_ok("qwen2", NULL, 0, NULL);
    assert_true(c.qkv_bias && !c.o_bias && !c.gguf_permuted && !c.qk_norm);
    c = gguf_ok("qwen3", add_head64, 3, NULL);
    assert_true(c.qk_norm && !c.qkv_bias && !c.gguf_permuted && c.theta == 1e6);
    assert_int_equal(c.d_head, 64);
    static const struct {
        int skip;
        const char *text;
    } missing[] = {{1, "llama.context_length is missing"},
                   {2, "llama.embedding_length is missing"},
                   {3, "llama.block_count is missing"},
                   {4, "llama.feed_forward_length is missing"},
                   {5, "llama.attention.head_count is missing"},
                   {6, "llama.attention.layer_norm_rms_epsilon is missing"}};
    for (size_t i = 0; i < 6; i++)
        expect(from_gguf(&c, &(gguf_case){"llama", missing[i].skip, NULL, 0, NULL}), CORUN_EFORMAT,
               missing[i].text, "missing");
    expect(from_gguf(&c, &(gguf_case){"llama", 7, NULL, 0, NULL}), CORUN_OK, NULL, "kv heads");
    assert_int_equal(c.n_kv, 4);
    gguf_bad("qwen3moe", NULL, 0, CORUN_EUNSUPPORTED, "general.architecture \"qwen3moe\"");
    gguf_bad("gemma3", NULL, 0, CORUN_EUNSUPPORTED, "general.architecture \"gemma3\"");
    gguf_bad("", NULL, 0, CORUN_EUNSUPPORTED, "general.architecture");
    char path[512];
    snprintf(path, sizeof path, "%s/files/tiny", TEST_DATA);
    weights *w;
    assert_int_equal(weights_open(&w, path), CORUN_OK);
    expect(config_from_gguf(&c, w), CORUN_EFORMAT, "general.architecture", "no GGUF");
    weights_close(w);
}

/* One key each, in a llama file. */
#define ONE_U32(fn, key, v)                                                                        \
    static void fn(make *m) { gg_u32(m, key, v); }
#define ONE_F32(fn, key, v)                                                                        \
    static void fn(make *m) { gg_f32(m, key, v); }
#define ONE_STR(fn, key, v)                                                                        \
    static void fn(make *m) { gg_str(m, key, v); }
ONE_U32(k_unknown, "llama.attention.new_thing", 1)
ONE_U32(k_other_arch, "qwen2.attention.new_thing", 1)
ONE_U32(k_prefix, "llama2.attention.new_thing", 1)
ONE_U32(k_experts, "llama.expert_count", 8)
ONE_U32(k_no_experts, "llama.expert_count", 0)
ONE_U32(k_window, "llama.attention.sliding_window", 4096)
ONE_STR(k_text_number, "llama.expert_count", "0")
ONE_U32(k_vocab, "llama.vocab_size", 9)
ONE_U32(k_vocab_ok, "llama.vocab_size", 8)
ONE_U32(k_value, "llama.attention.value_length", 16)
ONE_U32(k_odd, "llama.attention.key_length", 7)
ONE_U32(k_dims, "llama.rope.dimension_count", 4)
ONE_U32(k_base_int, "llama.rope.freq_base", 10000)
ONE_F32(k_base_nan, "llama.rope.freq_base", NAN)
ONE_F32(k_base_inf, "llama.rope.freq_base", INFINITY)
ONE_STR(k_type, "llama.rope.scaling.type", "longrope")
ONE_STR(k_type_none, "llama.rope.scaling.type", "none")
ONE_U32(k_type_int, "llama.rope.scaling.type", 1)
ONE_F32(k_factor, "llama.rope.scaling.factor", 4)
ONE_F32(k_old, "llama.rope.scale_linear", 4)
ONE_F32(k_attn, "llama.rope.scaling.attn_factor", 0.5f)
ONE_F32(k_log, "llama.rope.scaling.yarn_log_multiplier", 0.1f)
ONE_U32(k_bos, "tokenizer.ggml.bos_token_id", 8)
ONE_STR(k_eos, "tokenizer.ggml.eos_token_id", "2")

static void k_causal(make *m) { gg_bool(m, "llama.attention.causal", 0); }
static void k_causal_ok(make *m) { gg_bool(m, "llama.attention.causal", 1); }

static void k_linear(make *m)
{
    gg_str(m, "llama.rope.scaling.type", "linear");
    gg_f32(m, "llama.rope.scaling.factor", 4);
}

static void k_linear_missing(make *m) { gg_str(m, "llama.rope.scaling.type", "linear"); }

static void k_contradiction(make *m)
{
    k_linear(m);
    gg_f32(m, "llama.rope.scale_linear", 2);
}

static void k_yarn(make *m)
{
    gg_str(m, "llama.rope.scaling.type", "yarn");
    gg_f32(m, "llama.rope.scaling.factor", 4);
    gg_u32(m, "llama.rope.scaling.original_context_length", 32);
    gg_f32(m, "llama.rope.scaling.yarn_beta_fast", 16);
    gg_bool(m, "llama.rope.scaling.finetuned", 1);
}

static void k_yarn_attn(make *m)
{
    k_yarn(m);
    gg_f32(m, "llama.rope.scaling.attn_factor", 0.5f);
}

static void k_heads_array(make *m)
{
    put_str(m, "llama.attention.head_count_swa");
    put_u32(m, GGUF_ARRAY);
    put_u32(m, GGUF_U32);
    put_u64(m, 1);
    put_u32(m, 4);
}

static void test_gguf_keys(void **state)
{
    (void)state;
    gguf_bad("llama", k_unknown, 1, CORUN_EUNSUPPORTED, "unknown key llama.attention.new_thing");
    gguf_bad("llama", k_heads_array, 1, CORUN_EUNSUPPORTED, "unknown key llama.attention.head_c");
    gguf_ok("llama", k_other_arch, 1, NULL);
    gguf_ok("llama", k_prefix, 1, NULL);
    gguf_bad("llama", k_experts, 1, CORUN_EUNSUPPORTED, "llama.expert_count is 8");
    gguf_ok("llama", k_no_experts, 1, NULL);
    gguf_bad("llama", k_text_number, 1, CORUN_EUNSUPPORTED, "llama.expert_count is no number");
    gguf_bad("llama", k_window, 1, CORUN_EUNSUPPORTED, "sliding_window is 4096");
    gguf_bad("llama", k_causal, 1, CORUN_EUNSUPPORTED, "attention.causal is 0");
    gguf_ok("llama", k_causal_ok, 1, NULL);
    gguf_bad("llama", k_vocab, 1, CORUN_EFORMAT, "vocab_size is 9, but token_embd.weight has 8");
    gguf_ok("llama", k_vocab_ok, 1, NULL);
    gguf_bad("llama", k_value, 1, CORUN_EUNSUPPORTED, "value_length 16 is not key_length 8");
    gguf_bad("llama", k_odd, 1, CORUN_EFORMAT, "llama.attention.key_length 7 is odd");
    gguf_bad("llama", k_dims, 1, CORUN_EUNSUPPORTED, "rope.dimension_count 4 is not the head's 8");
    gguf_bad("llama", k_base_int, 1, CORUN_EFORMAT, "llama.rope.freq_base is no float");
    gguf_bad("llama", k_base_nan, 1, CORUN_EFORMAT, "llama.rope.freq_base is nan");
    gguf_bad("llama", k_base_inf, 1, CORUN_EFORMAT, "llama.rope.freq_base is inf");
    gguf_bad("llama", k_type, 1, CORUN_EUNSUPPORTED, "rope.scaling.type \"longrope\"");
    gguf_bad("llama", k_type_int, 1, CORUN_EFORMAT, "llama.rope.scaling.type is no string");
    gguf_ok("llama", k_type_none, 1, NULL);
    gguf_bad("llama", k_factor, 1, CORUN_EFORMAT, "rope.scaling.factor 4 without");
    gguf_bad("llama", k_linear_missing, 1, CORUN_EFORMAT, "rope.scaling.factor is missing");
    gguf_bad("llama", k_contradiction, 3, CORUN_EFORMAT, "llama.rope.scale_linear 2 contradicts");
    gguf_bad("llama", k_attn, 1, CORUN_EUNSUPPORTED, "attn_factor 0.5 without yarn");
    gguf_bad("llama", k_log, 1, CORUN_EUNSUPPORTED, "yarn_log_multiplier");
    gguf_bad("llama", k_bos, 1, CORUN_EFORMAT, "tokenizer.ggml.bos_token_id 8 is not 0 to 7");
    gguf_bad("llama", k_eos, 1, CORUN_EFORMAT, "tokenizer.ggml.eos_token_id is no integer");
    config c = gguf_ok("llama", k_linear, 2, NULL);
    assert_true(c.rope == CONFIG_ROPE_LINEAR && c.factor == 4);
    c = gguf_ok("llama", k_old, 1, NULL);
    assert_true(c.rope == CONFIG_ROPE_LINEAR && c.factor == 4);
    c = gguf_ok("llama", k_yarn, 5, NULL);
    assert_true(c.rope == CONFIG_ROPE_YARN && c.factor == 4 && c.original_ctx == 32);
    assert_true(c.beta_fast == 16 && c.beta_slow == 1 && c.attn_factor == 0 && c.yarn_truncate);
    c = gguf_ok("llama", k_yarn_attn, 6, NULL);
    near(c.attn_factor, 0.5 * 1.1386294361);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_families),       cmocka_unit_test(test_required),
        cmocka_unit_test(test_refused),        cmocka_unit_test(test_layer_types),
        cmocka_unit_test(test_generation),     cmocka_unit_test(test_open),
        cmocka_unit_test(test_rope_spellings), cmocka_unit_test(test_rope_refused),
        cmocka_unit_test(test_rope_llama3),    cmocka_unit_test(test_rope_yarn),
        cmocka_unit_test(test_rope_plain),     cmocka_unit_test(test_rope_factors),
        cmocka_unit_test(test_gguf_families),  cmocka_unit_test(test_gguf_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
