/* api.c - every function of corun.h but the status texts: checks arguments, calls inward.
 * Invariant: a handle is either complete or was never handed out. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/seed.h"
#include "engine/engine.h"
#include "engine/levels.h"
#include "files/hub.h"
#include "ops/plan.h"

/* ---- model ---------------------------------------------------------------------------------- */

corun_model_opts corun_model_opts_default(void)
{
    return (corun_model_opts){.isa = "auto", .device = "auto"};
}

/* "fake:phase" or "fake:prefill-level,decode-level". */
static corun_status open_fake(corun_model *m, const char *spec, const char *device,
                              const ops_open_opts *oo)
{
    if (strcmp(device, "auto") != 0 && strcmp(device, "cpu") != 0)
        FAIL(CORUN_EINVAL, "device \"%s\": the fake model runs on the CPU", device);
    if (oo->plan)
        FAIL(CORUN_EINVAL, "a plan table serves a CUDA device; the fake model runs on the CPU");
    TRY(ops_golden_check(m->threads, oo->isa, m->golden));
    ops_level level[2] = {OPS_LEVEL_NONE, OPS_LEVEL_NONE};
    const char *p = spec;
    int n = 0;
    for (; n < 2; n++) {
        for (ops_level l = OPS_LEVEL_RUN; l <= OPS_LEVEL_PHASE; l++) {
            size_t len = strlen(ops_level_name(l));
            if (strncmp(p, ops_level_name(l), len) == 0 && (p[len] == 0 || p[len] == ',')) {
                level[n] = l;
                p += len;
                break;
            }
        }
        if (*p != ',') break;
        p++;
    }
    if (n == 0) level[1] = level[0]; /* one level for both */
    if (*p != 0 || !level[0] || !level[1])
        FAIL(CORUN_EINVAL,
             "fake model: \"%s\" is no level or pair of levels of run, position, batch, phase (as "
             "fake:phase)",
             spec);
    TRY(model_open_fake(&m->net, level[0], level[1], oo));
    TRY(bpe_open_bytes(&m->text));
    return prompt_open_text(&m->prompt, CHAT_FAKE_TEMPLATE, m->text);
}

/* The backend that the device names, and on it the weights. */
static corun_status open_net(corun_model *m, weights *w, const config *cfg, const char *device,
                             ops_open_opts *oo)
{
    ops_dims d;
    ops *o;
    model_dims(cfg, &d);
    TRY(device_open(m, device, &d, oo, &o));
    return model_load_on(&m->net, w, cfg, o);
}

/* A config.json, or a folder with one. */
static corun_status open_dummy(corun_model *m, const char *path, const char *device,
                               ops_open_opts *oo)
{
    config cfg;
    size_t len = strlen(path), name = strlen("config.json");
    bool file = len >= name && strcmp(path + len - name, "config.json") == 0;
    if (file && len > name && path[len - name - 1] != '/') file = false;
    char *folder = mem_dup(path, file ? len - name : len, "path");
    if (!folder) return CORUN_ENOMEM;
    corun_status st = config_open(&cfg, *folder ? folder : ".");
    mem_free(folder);
    TRY(st);
    return open_net(m, NULL, &cfg, device, oo);
}

static corun_status open_files(corun_model *m, const char *path, const char *device,
                               ops_open_opts *oo)
{
    weights *w;
    config cfg;
    TRY(weights_open(&w, path));
    bool gguf = weights_is_gguf(w);
    corun_status st = gguf ? config_from_gguf(&cfg, w) : config_open(&cfg, path);
    if (st == CORUN_OK) st = gguf ? bpe_open_gguf(&m->text, w) : bpe_open_folder(&m->text, path);
    if (st == CORUN_OK)
        st = gguf ? prompt_open_gguf(&m->prompt, w, m->text)
                  : prompt_open_folder(&m->prompt, path, m->text);
    if (st != CORUN_OK && gguf) err_prefix(st, "%s", path);
    if (st == CORUN_OK && cfg.n_eos == 0 && bpe_eos(m->text) >= 0) {
        cfg.eos[0] = bpe_eos(m->text);
        cfg.n_eos = 1;
    }
    if (st == CORUN_OK) st = open_net(m, w, &cfg, device, oo);
    if (st == CORUN_OK) weights_types(w, m->tensor_types, sizeof m->tensor_types);
    weights_close(w);
    return st;
}

corun_status corun_model_open(corun_model **out, const corun_model_opts *o)
{
    if (!out || !o || !o->path) FAIL(CORUN_EINVAL, "corun_model_open: a path is needed");
    *out = NULL;
    corun_model *m = mem_alloc(1, sizeof *m, "model");
    if (!m) return CORUN_ENOMEM;
    const char *isa = o->isa ? o->isa : "auto";
    corun_status st = CORUN_OK;
    if (!ops_isa_pick(isa))
        st = err_set(CORUN_EINVAL, "isa: \"%s\" is unknown or cannot run on this machine", isa);
    if (st == CORUN_OK) st = pool_open(&m->threads, o->n_thread);
    if (st == CORUN_OK && o->plan) st = plan_open(&m->plan, o->plan);
    ops_open_opts oo = {.threads = m->threads, .isa = isa, .plan = m->plan};
    const char *device = o->device ? o->device : "auto";
    bool fake = strncmp(o->path, "fake:", 5) == 0;
    char *path = NULL;
    if (st == CORUN_OK && !fake) st = hub_find(&path, o->path, o->dummy_weights);
    if (st == CORUN_OK)
        st = fake               ? open_fake(m, o->path + 5, device, &oo)
             : o->dummy_weights ? open_dummy(m, path, device, &oo)
                                : open_files(m, path, device, &oo);
    mem_free(path);
    if (st == CORUN_OK)
        st = chat_date(o->template_date ? o->template_date : "2024-07-26", &m->prompt.chat);
    if (st != CORUN_OK)
        corun_model_close(m);
    else
        *out = m;
    return st;
}

void corun_model_close(corun_model *m)
{
    if (!m) return;
    corun_engine_close(m->engine);
    model_close(m->net);
    plan_close(m->plan);
    mem_free(m->levels);
    prompt_close(&m->prompt);
    bpe_close(m->text);
    pool_close(m->threads);
    mem_free(m);
}

corun_status corun_model_describe(const corun_model *m, corun_model_info *out)
{
    if (!m || !out) FAIL(CORUN_EINVAL, "corun_model_describe: NULL");
    const config *g = &m->net->cfg;
    *out = (corun_model_info){.n_layer = g->n_layer,
                              .n_embd = g->n_embd,
                              .n_head = g->n_head,
                              .n_kv_head = g->n_kv,
                              .head_dim = g->d_head,
                              .n_ff = g->n_ff,
                              .n_vocab = g->n_vocab,
                              .n_token = bpe_n_token(m->text),
                              .n_ctx = g->n_ctx,
                              .bos = bpe_bos(m->text),
                              .eos = g->n_eos ? g->eos[0] : -1,
                              .tied = g->tied,
                              .has_template = m->prompt.templates != NULL,
                              .n_param = m->net->n_param,
                              .weight_bytes = m->net->o->weight_bytes(m->net->o)};
    out->kv_bytes_per_token = (uint64_t)g->n_layer * (uint64_t)g->n_kv * (uint64_t)g->d_head * 4;
    snprintf(out->family, sizeof out->family, "%s", g->family_name);
    const ops *b = m->net->o;
    snprintf(out->isa, sizeof out->isa, "%s", b->isa);
    snprintf(out->device, sizeof out->device, "%s%s%s", b->name, *b->label ? ", " : "", b->label);
    snprintf(out->device_note, sizeof out->device_note, "%s",
             *m->device_note ? m->device_note : b->note);
    snprintf(out->tensor_types, sizeof out->tensor_types, "%s", m->tensor_types);
    digest_hex(m->net->weights, out->weights_digest);
    digest_hex(bpe_digest(m->text), out->tokenizer_digest);
    digest_hex(m->prompt.digest, out->template_digest);
    return CORUN_OK;
}

/* ---- text ----------------------------------------------------------------------------------- */

/* Copies a finished buffer out by the two-call rule. */
static corun_status give_text(const buf *b, char *out, size_t cap, size_t *n)
{
    TRY(buf_status(b));
    *n = b->len;
    if (b->len > cap) FAIL(CORUN_ECAPACITY, "the text has %zu bytes, the buffer %zu", b->len, cap);
    if (b->len) memcpy(out, b->data, b->len);
    return CORUN_OK;
}

#define MAX_TEXT ((size_t)1 << 30)

corun_status corun_encode(const corun_model *m, const char *text, size_t len, unsigned flags,
                          int32_t *out, size_t cap, size_t *n)
{
    if (!m || (!text && len) || !n) FAIL(CORUN_EINVAL, "corun_encode: NULL");
    bpe_ids ids = {0};
    unsigned f = (flags & CORUN_TEXT_ADD_SPECIAL ? BPE_ADD_SPECIAL : 0) |
                 (flags & CORUN_TEXT_LITERAL ? BPE_LITERAL : 0);
    corun_status st = bpe_encode(m->text, text ? text : "", len, f, MAX_TEXT / 4, &ids);
    if (st == CORUN_OK) {
        *n = ids.n;
        if (ids.n > cap)
            st = err_set(CORUN_ECAPACITY, "the text has %zu tokens, the buffer %zu", ids.n, cap);
        else if (ids.n)
            memcpy(out, ids.id, ids.n * sizeof *out);
    }
    bpe_ids_free(&ids);
    return st;
}

corun_status corun_decode(const corun_model *m, const int32_t *ids, size_t n_id, unsigned flags,
                          char *out, size_t cap, size_t *n)
{
    if (!m || (!ids && n_id) || !n) FAIL(CORUN_EINVAL, "corun_decode: NULL");
    bpe_stream s = {.n_held = 0};
    buf b;
    buf_init(&b, MAX_TEXT);
    for (size_t i = 0; i < n_id; i++) {
        const char *data;
        size_t len;
        bool special;
        bpe_token(m->text, ids[i], &data, &len, &special);
        if (!(special && flags & CORUN_TEXT_SKIP_SPECIAL)) bpe_stream_push(&s, data, len, &b);
    }
    bpe_stream_end(&s, &b);
    corun_status st = give_text(&b, out, cap, n);
    buf_free(&b);
    return st;
}

corun_status corun_token_bytes(const corun_model *m, int32_t id, char *out, size_t cap, size_t *n)
{
    if (!m || !n) FAIL(CORUN_EINVAL, "corun_token_bytes: NULL");
    const char *data;
    bool special;
    bpe_token(m->text, id, &data, n, &special);
    if (*n > cap) FAIL(CORUN_ECAPACITY, "the token has %zu bytes, the buffer %zu", *n, cap);
    if (*n) memcpy(out, data, *n);
    return CORUN_OK;
}

corun_status corun_chat_render(const corun_model *m, const char *json, size_t len, char *out,
                               size_t cap, size_t *n)
{
    if (!m || !json || !n) FAIL(CORUN_EINVAL, "corun_chat_render: NULL");
    buf b;
    buf_init(&b, MAX_TEXT);
    corun_status st = chat_render(&m->prompt.chat, json, len, &b);
    if (st == CORUN_OK) st = give_text(&b, out, cap, n);
    buf_free(&b);
    return st;
}

corun_status corun_tokenizer_info(const corun_model *m, char *out, size_t cap, size_t *n)
{
    if (!m || !n) FAIL(CORUN_EINVAL, "corun_tokenizer_info: NULL");
    buf b;
    jw w;
    const char *key;
    json_t *v;
    buf_init(&b, MAX_TEXT);
    jw_init(&w, &b);
    jw_open(&w, '{');
    json_object_foreach (m->prompt.special, key, v) {
        jw_key(&w, key);
        jw_value(&w, v);
    }
    jw_key(&w, "chat_template");
    if (m->prompt.source)
        jw_value(&w, m->prompt.source);
    else
        jw_null(&w);
    jw_close(&w, '}');
    corun_status st = give_text(&b, out, cap, n);
    buf_free(&b);
    return st;
}

/* ---- sampling ------------------------------------------------------------------------------- */

uint64_t corun_seed_sample(uint64_t seed, int32_t i) { return seed_sample(seed, i); }

static double or_else(double v, double neutral) { return isnan(v) ? neutral : v; }

corun_status corun_sampling_default(const corun_model *m, corun_sampling *out)
{
    if (!m || !out) FAIL(CORUN_EINVAL, "corun_sampling_default: NULL");
    const config *g = &m->net->cfg;
    *out = (corun_sampling){.temperature = or_else(g->temperature, 1),
                            .top_p = or_else(g->top_p, 1),
                            .min_p = or_else(g->min_p, 0),
                            .top_k = g->top_k > 0 ? g->top_k : 0,
                            .repetition_penalty = or_else(g->repetition_penalty, 1),
                            .max_tokens = g->max_new_tokens,
                            .n = 1,
                            .skip_special = true,
                            .logprobs = -1,
                            .prompt_logprobs = -1};
    return CORUN_OK;
}

/* ---- engine --------------------------------------------------------------------------------- */

corun_engine_opts corun_engine_opts_default(void)
{
    return (corun_engine_opts){.policy = CORUN_POLICY_AUTO,
                               .n_slot = 16,
                               .page_tokens = 64,
                               .swap_bytes = -1,
                               .prefill_chunk = 0};
}

enum { MAX_SLOT = 4096, MAX_ALIVE = 1024, MAX_CHUNK = 1 << 20 };

corun_status engine_check_shape(corun_engine_opts *o, const config *g)
{
    if (o->n_slot < 1 || o->n_slot > MAX_SLOT)
        FAIL(CORUN_EINVAL, "n_slot: %d is not in 1 ... %d", o->n_slot, MAX_SLOT);
    if (o->n_ctx < 0 || o->n_ctx > g->n_ctx)
        FAIL(CORUN_EINVAL, "n_ctx: %d is not in 1 ... %d, the positions of the model", o->n_ctx,
             g->n_ctx);
    if (o->n_ctx == 0) o->n_ctx = g->n_ctx;
    if (o->page_tokens != 16 && o->page_tokens != 32 && o->page_tokens != 64 &&
        o->page_tokens != 128)
        FAIL(CORUN_EINVAL, "page_tokens: %d is not 16, 32, 64 or 128", o->page_tokens);
    return CORUN_OK;
}

static corun_status check_chunk(corun_engine_opts *o, const policy *p)
{
    if (o->prefill_chunk == 0) o->prefill_chunk = p->chunk;
    if (o->prefill_chunk < 1 || o->prefill_chunk > MAX_CHUNK)
        FAIL(CORUN_EINVAL, "prefill_chunk: %d is not in 1 ... %d", o->prefill_chunk, MAX_CHUNK);
    if (o->prefill_chunk % p->chunk_unit)
        FAIL(CORUN_EINVAL, "prefill_chunk: %d is no multiple of %d", o->prefill_chunk,
             p->chunk_unit);
    if (p->mixed_budget && o->prefill_chunk < o->n_slot)
        FAIL(CORUN_EINVAL, "prefill_chunk: %d tokens are fewer than the %d rows", o->prefill_chunk,
             o->n_slot);
    return CORUN_OK;
}

/* Pages of the pool and of the swap area. */
static corun_status size_pages(const corun_engine_opts *o, const config *g, ops_conf *c)
{
    uint64_t page = (uint64_t)g->n_layer * (uint64_t)g->n_kv * (uint64_t)g->d_head * 4 *
                    (uint64_t)o->page_tokens;
    uint64_t typical = (uint64_t)(o->n_ctx < 1024 ? o->n_ctx : 1024);
    uint64_t each = (typical + (uint64_t)o->page_tokens - 1) / (uint64_t)o->page_tokens;
    uint64_t whole = ((uint64_t)o->n_ctx + (uint64_t)o->page_tokens - 1) / (uint64_t)o->page_tokens;
    uint64_t n = each * (uint64_t)o->n_slot;
    if (n < whole) n = whole; /* by default every request that the context holds fits */
    if (o->kv_bytes) n = o->kv_bytes / page;
    uint64_t swap = o->swap_bytes < 0 ? n : (uint64_t)o->swap_bytes / page;
    if (n < 1)
        FAIL(CORUN_EINVAL, "kv_bytes: %llu do not hold one page of %llu bytes",
             (unsigned long long)o->kv_bytes, (unsigned long long)page);
    if (n > INT32_MAX / 2 || swap > INT32_MAX / 2)
        FAIL(CORUN_EINVAL, "kv_bytes or swap_bytes: more pages than can be counted");
    c->n_page = (int32_t)n + 1; /* and the null page */
    c->n_swap = (int32_t)swap;
    return CORUN_OK;
}

static corun_status open_arrays(corun_engine *e, const ops_conf *c, int32_t n_result)
{
    e->max_lane = c->max_lane;
    buf_init(&e->q.text, (size_t)1 << 30);
    if (!MEM_NEW(e->by_seq, (size_t)e->sched_opts.max_request * SCHED_MAX_SAMPLE) ||
        !MEM_NEW(e->result, (size_t)n_result) || !MEM_NEW(e->target, (size_t)c->logit_rows) ||
        !MEM_NEW(e->want_seq, (size_t)c->max_want) || !MEM_NEW(e->want_pos, (size_t)c->max_want))
        return CORUN_ENOMEM;
    for (int i = 0; i < 2; i++) {
        flight *f = &e->flight[i];
        if (!MEM_NEW(f->want_of_row, (size_t)c->max_row) ||
            !MEM_NEW(f->lane_row, (size_t)c->max_lane) ||
            !MEM_NEW(f->lane_slot, (size_t)c->max_lane) ||
            !MEM_NEW(f->lane_pos, (size_t)c->max_lane))
            return CORUN_ENOMEM;
    }
    return CORUN_OK;
}

static corun_status open_engine(corun_engine *e, const corun_engine_opts *opts)
{
    corun_model *m = e->m;
    corun_engine_opts *o = &e->opts;
    *o = *opts;
    const audit_report *seen;
    TRY(engine_check_shape(o, &m->net->cfg));
    TRY(levels_get(m, o, &seen));
    TRY(policy_resolve(&e->policy, o->policy, m->net->o, seen));
    o->policy = e->policy->id;
    TRY(check_chunk(o, e->policy));
    sched_opts so = {.planner = e->policy->planner,
                     .cut = e->policy->cut,
                     .reuse = e->policy->reuse,
                     .recompute = e->policy->recompute,
                     .n_slot = o->n_slot,
                     .n_ctx = o->n_ctx,
                     .page_tokens = o->page_tokens,
                     .chunk = o->prefill_chunk,
                     .max_request = MAX_ALIVE,
                     .lag = m->net->o->lag};
    ops_conf c = {.n_ctx = o->n_ctx,
                  .max_lane = o->n_slot + CORUN_MAX_SAMPLE,
                  .n_slot = o->n_slot + MODEL_MAX_SCRATCH,
                  .page_tokens = o->page_tokens,
                  .logit_rows = o->n_slot > 16 ? o->n_slot : 16,
                  .n_top = CORUN_MAX_TOP,
                  .processed_logprobs = o->processed_logprobs};
    memcpy(c.set, e->policy->set, sizeof c.set);
    if (e->policy->recompute) o->swap_bytes = 0;
    TRY(size_pages(o, &m->net->cfg, &c));
    so.n_page = c.n_page;
    so.n_swap = c.n_swap;
    sched_limits l;
    sched_limits_get(&so, &l);
    /* Of those that have ended, some hold a place until their row in flight has landed. */
    if (so.lag) so.max_request *= 2;
    c.max_row = l.max_row;
    c.max_tok = c.max_want = l.max_tok;
    e->sched_opts = so;
    TRY(sched_open(&e->s, &so));
    TRY(open_arrays(e, &c, l.max_lane));
    TRY(m->net->configure(m->net, &c));
    e->stats.pages = (uint64_t)c.n_page - 1;
    e->stats.swap_pages = (uint64_t)c.n_swap;
    e->next_id = 1;
    return identity_make(e);
}

corun_status corun_engine_open(corun_engine **out, corun_model *m, const corun_engine_opts *o)
{
    if (!out || !m || !o) FAIL(CORUN_EINVAL, "corun_engine_open: NULL");
    *out = NULL;
    if (m->engine) FAIL(CORUN_EINVAL, "this model already carries an engine");
    if (m->mixed) FAIL(CORUN_EINVAL, "a refill of this model failed half way: refill it first");
    corun_engine *e = mem_alloc(1, sizeof *e, "engine");
    if (!e) return CORUN_ENOMEM;
    e->m = m;
    corun_status st = open_engine(e, o);
    if (st != CORUN_OK) {
        corun_engine_close(e);
        return st;
    }
    m->engine = e;
    *out = e;
    return CORUN_OK;
}

void corun_engine_close(corun_engine *e)
{
    if (!e) return;
    while (e->list) engine_forget(e, e->list);
    sched_close(e->s);
    mem_free(e->by_seq);
    mem_free(e->result);
    for (int i = 0; i < 2; i++) {
        mem_free(e->flight[i].want_of_row);
        mem_free(e->flight[i].lane_row);
        mem_free(e->flight[i].lane_slot);
        mem_free(e->flight[i].lane_pos);
    }
    mem_free(e->target);
    mem_free(e->want_seq);
    mem_free(e->want_pos);
    mem_free(e->q.ev);
    buf_free(&e->q.text);
    mem_free(e->identity);
    if (e->m->engine == e) e->m->engine = NULL;
    mem_free(e);
}

corun_status corun_identity(const corun_engine *e, char digest_text[33], char *json, size_t cap,
                            size_t *n)
{
    if (!e) FAIL(CORUN_EINVAL, "corun_identity: NULL");
    if (digest_text) digest_hex(e->identity_digest, digest_text);
    if (!n) return CORUN_OK;
    *n = e->identity_len;
    if (e->identity_len > cap)
        FAIL(CORUN_ECAPACITY, "the identity has %zu bytes, the buffer %zu", e->identity_len, cap);
    memcpy(json, e->identity, e->identity_len);
    return CORUN_OK;
}

corun_status corun_submit(corun_engine *e, const corun_request *r, uint64_t *id)
{
    if (!e || !r || !id || (!r->tokens && r->n_token)) FAIL(CORUN_EINVAL, "corun_submit: NULL");
    if (e->m->mixed) FAIL(CORUN_EINVAL, "a refill of this model failed half way: refill it first");
    if (e->n_alive == MAX_ALIVE)
        FAIL(CORUN_ECAPACITY, "%d requests are alive: no more are taken", MAX_ALIVE);
    request *q;
    TRY(request_open(&q, e, r));
    q->id = e->next_id;
    sched_request sr = {.id = q->id,
                        .tokens = q->prompt,
                        .n_token = q->n_prompt,
                        .max_new = q->max_new,
                        .n_sample = q->n_sample,
                        .want_all = q->par.s.prompt_logprobs >= 0};
    int32_t seq;
    corun_status st = sched_add(e->s, &sr, &seq);
    if (st != CORUN_OK) {
        request_close(q);
        return st;
    }
    for (int32_t i = 0; i < q->n_sample; i++) {
        q->sample[i].seq = seq + i;
        e->by_seq[seq + i] = &q->sample[i];
    }
    request **p = &e->list;
    while (*p) p = &(*p)->next;
    *p = q;
    e->n_alive++;
    *id = e->next_id++;
    return CORUN_OK;
}

corun_status corun_cancel(corun_engine *e, uint64_t id)
{
    if (!e) FAIL(CORUN_EINVAL, "corun_cancel: NULL");
    event_queue *v = &e->q;
    size_t kept = v->head;
    for (size_t i = v->head; i < v->n; i++)
        if (v->ev[i].id != id) v->ev[kept++] = v->ev[i];
    v->n = kept;
    for (request *q = e->list; q; q = q->next)
        if (q->id == id) {
            corun_status st = sched_cancel(e->s, id);
            engine_forget(e, q);
            return st;
        }
    return CORUN_OK; /* it had ended: its last events are gone now */
}

corun_status corun_next(corun_engine *e, corun_event *out)
{
    if (!e || !out) FAIL(CORUN_EINVAL, "corun_next: NULL");
    TRY(event_pop(e, out));
    if (out->kind != CORUN_EVENT_NONE) return CORUN_OK;
    bool idle;
    TRY(engine_step(e, &idle));
    TRY(event_pop(e, out));
    if (out->kind == CORUN_EVENT_NONE && idle) out->kind = CORUN_EVENT_IDLE;
    return CORUN_OK;
}

corun_status corun_engine_stats(const corun_engine *e, corun_stats *out)
{
    if (!e || !out) FAIL(CORUN_EINVAL, "corun_engine_stats: NULL");
    sched_stats s;
    sched_stats_get(e->s, &s);
    *out = e->stats;
    out->pages_free = (uint64_t)s.page_free;
    out->pages_peak = (uint64_t)s.page_peak;
    out->swap_pages_free = (uint64_t)s.swap_free;
    out->recomputes = s.n_recompute;
    out->prefix_hits = s.n_hit;
    out->prefix_tokens = s.n_hit_token;
    out->prompt_cuts = s.n_cut;
    out->preempted_most = s.n_evict_most;
    out->requests_waiting = (uint64_t)s.n_waiting;
    out->requests_running = (uint64_t)(s.n_running + s.n_out);
    return CORUN_OK;
}
