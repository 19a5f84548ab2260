/* identity.c - the numeric identity: one digest over all that can move a bit of a result.
 *
 * On the CPU the class is portable, so instruction set, compiler and the number of threads are no
 * part of it: the golden digest of the kernels stands for them. A device backend names its machine,
 * its libraries and its kernels instead. Of the other libraries only the Unicode version moves
 * something: what a chat template makes of a letter's case. What only moves time (pool and swap
 * size, arrival) is no part either. Invariant: the digest is that of the JSON
 * text, whose fields stand in one order. */
#include <math.h>
#include <string.h>

#include "engine/engine.h"
#include "text/unicode.h"

#define NUMERICS_VERSION 1

static void put_digest(jw *w, const char *key, digest d)
{
    char hex[33];
    digest_hex(d, hex);
    jw_field_str(w, key, hex);
}

static void put_config(jw *w, const config *c)
{
    jw_key(w, "config");
    jw_open(w, '{');
    jw_field_str(w, "family", c->family_name);
    jw_field_int(w, "n_layer", c->n_layer);
    jw_field_int(w, "n_embd", c->n_embd);
    jw_field_int(w, "n_head", c->n_head);
    jw_field_int(w, "n_kv", c->n_kv);
    jw_field_int(w, "d_head", c->d_head);
    jw_field_int(w, "n_ff", c->n_ff);
    jw_field_int(w, "n_vocab", c->n_vocab);
    jw_field_double(w, "eps", (double)c->eps);
    jw_field_bool(w, "tied", c->tied);
    jw_field_bool(w, "qk_norm", c->qk_norm);
    jw_field_int(w, "bias", c->qkv_bias + 2 * c->o_bias + 4 * c->mlp_bias);
    jw_field_double(w, "theta", c->theta);
    jw_field_int(w, "rope", (int64_t)c->rope);
    const double rope[] = {c->factor,       c->low_freq,     c->high_freq,      c->beta_fast,
                           c->beta_slow,    c->mscale,       c->mscale_all_dim, c->attn_factor,
                           c->original_ctx, c->yarn_truncate};
    jw_key(w, "rope_scaling");
    jw_open(w, '[');
    for (size_t i = 0; i < sizeof rope / sizeof *rope; i++) jw_double(w, rope[i]);
    jw_close(w, ']');
    jw_key(w, "eos");
    jw_open(w, '[');
    for (int32_t i = 0; i < c->n_eos; i++) jw_int(w, c->eos[i]);
    jw_close(w, ']');
    jw_field_int(w, "bos", c->bos);
    jw_close(w, '}');
}

static void put_sampling(jw *w, const config *c)
{
    jw_key(w, "sampling_defaults");
    jw_open(w, '{');
    jw_field_double(w, "temperature", c->temperature);
    jw_field_double(w, "top_p", c->top_p);
    jw_field_double(w, "min_p", c->min_p);
    jw_field_double(w, "repetition_penalty", c->repetition_penalty);
    jw_field_int(w, "top_k", c->top_k);
    jw_field_int(w, "max_new_tokens", c->max_new_tokens);
    jw_close(w, '}');
}

static void put_policy(jw *w, const corun_engine *e)
{
    const corun_engine_opts *o = &e->opts;
    const policy *p = e->policy;
    jw_field_str(w, "policy", p->name);
    jw_field_int(w, "page_tokens", o->page_tokens);
    jw_field_int(w, "attention_block", 128);
    jw_field_int(w, "attention_chunk", 512);
    jw_field_int(w, "n_ctx", o->n_ctx);
    if (p->cut) jw_field_int(w, "prompt_cut", p->cut);
    if (p->width_moves) jw_field_int(w, "decode_width", o->n_slot);
    if (p->chunk_moves) jw_field_int(w, "prefill_chunk", o->prefill_chunk);
    jw_field_str(w, "logprobs", o->processed_logprobs ? "processed" : "raw");
    jw_field_bool(w, "unnamed_rows", o->allow_special_rows);
    jw_field_int(w, "ranks", 1);
}

corun_status identity_make(corun_engine *e)
{
    const corun_model *m = e->m;
    char date[16];
    buf b;
    jw w;
    buf_init(&b, 1 << 16);
    jw_init(&w, &b);
    jw_open(&w, '{');
    jw_field_int(&w, "numerics", NUMERICS_VERSION);
    jw_field_str(&w, "backend", m->net->o->name);
    if (*m->net->o->machine) jw_field_str(&w, "machine", m->net->o->machine);
    if (*m->golden) jw_field_str(&w, "golden", m->golden);
    jw_field_str(&w, "weights_dtype", "bf16");
    jw_field_str(&w, "kv_dtype", "bf16");
    put_digest(&w, "weights", m->net->weights);
    put_digest(&w, "tokenizer", bpe_digest(m->text));
    put_digest(&w, "template", m->prompt.digest);
    snprintf(date, sizeof date, "%04d-%02d-%02d", m->prompt.chat.year, m->prompt.chat.month,
             m->prompt.chat.day);
    jw_field_str(&w, "template_date", date);
    jw_field_str(&w, "unicode", unicode_library());
    put_config(&w, &m->net->cfg);
    put_sampling(&w, &m->net->cfg);
    put_policy(&w, e);
    jw_close(&w, '}');
    corun_status st = buf_status(&b);
    char *text = st == CORUN_OK ? mem_dup(b.data, b.len, "identity") : NULL;
    if (st == CORUN_OK && !text) st = CORUN_ENOMEM;
    if (st == CORUN_OK) {
        mem_free(e->identity);
        e->identity = text;
        e->identity_len = b.len;
        e->identity_digest = digest_of(b.data, b.len);
    }
    buf_free(&b);
    return st;
}
