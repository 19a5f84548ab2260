/* verify_set.c - owns the requests of a column and their references. Invariant: a reference is the
 * answer of its request run alone, on an engine that has run nothing else. */
#include "proof/verify_int.h"

#include <string.h>

const vf_policy vf_policies[] = {
    {.policy = CORUN_POLICY_CORUN,
     .name = "corun",
     .fake = "fake:run,position",
     .lower = "fake:run,run"},
    {.policy = CORUN_POLICY_INVARIANT,
     .name = "invariant",
     .fake = "fake:batch",
     .lower = "fake:position",
     .chunks = true,
     .cut = 2048,
     .reuse = 2048},
    {.policy = CORUN_POLICY_FREE,
     .name = "free",
     .fake = "fake:phase",
     .lower = "fake:batch",
     .recomputes = true,
     .phase = true,
     .chunks = true,
     .reuse = 1},
    {.policy = CORUN_POLICY_DYNAMIC, .name = "dynamic", .fake = "fake:position", .chunks = true},
};
const size_t vf_n_policy = sizeof vf_policies / sizeof *vf_policies;

uint64_t vf_rand(vf *v, uint64_t below)
{
    uint64_t x = v->rng += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (x ^ x >> 31) % below;
}

corun_status vf_tokens_new(vf *v, size_t n, int32_t **out)
{
    int32_t **all = mem_realloc(v->owned, v->n_owned + 1, sizeof *all, "verify: prompts");
    if (!all) return CORUN_ENOMEM;
    v->owned = all;
    if (!MEM_NEW(*out, n)) return CORUN_ENOMEM;
    v->owned[v->n_owned++] = *out;
    return CORUN_OK;
}

/* ---- text ----------------------------------------------------------------------------------- */

static const char *const words[] = {
    "the",     "river",  "was",     "slow",  "and",    "old",    "engine", "of",     "a",
    "ship",    "that",   "carried", "salt",  "to",     "north",  "cities", "in",     "winter",
    "when",    "people", "there",   "wrote", "long",   "books",  "about",  "stars",  "because",
    "numbers", "are",    "never",   "quite", "silent", "42",     "1871",   "for",    "each",
    "garden",  "has",    "its",     "own",   "rule:",  "water",  "first",  "then",   "light",
    "Paris",   "Oslo",   "my",      "uncle", "said",   "\"no\"", "but",    "his",    "dog",
    "ran",     "under",  "seven",   "green", "trees",  "while",  "music",  "played", "softly"};

/* The text is a function of the seed alone; a longer one begins with the shorter. */
static void put_words(buf *b, uint64_t seed, size_t n)
{
    vf w = {.rng = seed * 0xd1342543de82ef95u};
    for (size_t i = 0; i < n; i++) {
        uint64_t k = vf_rand(&w, sizeof words / sizeof *words);
        buf_puts(b, words[k]);
        buf_puts(b, vf_rand(&w, 11) == 0 ? ".\n" : " ");
    }
}

/* Without a tokenizer any ids do. */
static corun_status any_ids(vf *v, uint64_t seed, size_t n, int32_t **out)
{
    vf w = {.rng = seed};
    TRY(vf_tokens_new(v, n, out));
    for (size_t i = 0; i < n; i++) (*out)[i] = (int32_t)vf_rand(&w, (uint64_t)v->info.n_vocab);
    return CORUN_OK;
}

corun_status vf_words(vf *v, uint64_t seed, size_t n, int32_t **out)
{
    if (v->o->model.dummy_weights) return any_ids(v, seed, n, out);
    buf b;
    buf_init(&b, (size_t)1 << 26);
    put_words(&b, seed, n + 1); /* a word is at least one token */
    size_t got = 0, cap = b.len + 16;
    int32_t *ids = NULL;
    corun_status st = buf_status(&b);
    if (st == CORUN_OK && !(ids = mem_alloc(cap, sizeof *ids, "token ids"))) st = CORUN_ENOMEM;
    if (st == CORUN_OK) st = corun_encode(v->m, b.data, b.len, CORUN_TEXT_LITERAL, ids, cap, &got);
    if (st == CORUN_OK && got < n)
        st = err_set(CORUN_EINTERNAL, "verify: %zu words are only %zu tokens", n + 1, got);
    if (st == CORUN_OK) st = vf_tokens_new(v, n, out);
    if (st == CORUN_OK) memcpy(*out, ids, n * sizeof *ids);
    mem_free(ids);
    buf_free(&b);
    return st;
}

/* ---- requests ------------------------------------------------------------------------------- */

corun_request vf_request(const vf *v, const int32_t *tokens, size_t n, int32_t max_tokens,
                         uint64_t seed)
{
    (void)v;
    return (corun_request){.tokens = tokens,
                           .n_token = n,
                           .sampling = {.temperature = 1,
                                        .top_p = 1,
                                        .repetition_penalty = 1,
                                        .max_tokens = max_tokens,
                                        .n = 1,
                                        .seed = seed,
                                        .ignore_eos = true,
                                        .skip_special = true,
                                        .logprobs = VERIFY_TOP,
                                        .prompt_logprobs = -1}};
}

corun_request vf_cut(corun_request r, int32_t max_tokens)
{
    if (r.sampling.max_tokens < 0 || r.sampling.max_tokens > max_tokens)
        r.sampling.max_tokens = max_tokens;
    if (r.sampling.min_tokens > r.sampling.max_tokens)
        r.sampling.min_tokens = r.sampling.max_tokens;
    return r;
}

int32_t vf_pages(const vf *v, const corun_request *r)
{
    int32_t p = v->eo.page_tokens, prompt = (int32_t)r->n_token, new = r->sampling.max_tokens;
    return (prompt + p - 1) / p + r->sampling.n * ((new + p - 1) / p + 1);
}

void vf_pool(vf *v, corun_engine_opts *o, int32_t pages)
{
    o->kv_bytes = (uint64_t)pages * (uint64_t)o->page_tokens * v->info.kv_bytes_per_token;
}

corun_status vf_alone(vf *v, vf_job *q)
{
    corun_stats s = {0};
    return vf_run(v->m, &v->eo, q, 1, (vf_when){0}, &s);
}

/* ---- the set -------------------------------------------------------------------------------- */

/* Made request i, from 1: mixed lengths, mixed sampling. The first four have a prompt of about a
 * page and lengths that make them lose their pages (recipe G). */
static corun_status make_filler(vf *v, size_t i, corun_request *out)
{
    static const int32_t half_pages[5] = {0, 3, 9, 12, 5};
    size_t n = 1 + vf_rand(v, v->few ? 40 : 200);
    int32_t new = 8 + (int32_t)vf_rand(v, v->few ? 9 : 57);
    if (i <= 4) {
        n = (size_t)v->eo.page_tokens - 2 + i;
        new = half_pages[i] * v->eo.page_tokens / 2;
        if (new > v->n_new) new = v->n_new;
    }
    int32_t *t;
    TRY(vf_words(v, 1000 + i, n, &t));
    corun_request r = vf_request(v, t, n, new, 7000 + i);
    corun_sampling *s = &r.sampling;
    switch (i % 5) {
    case 0: s->temperature = 0; break;
    case 1: break;
    case 2: s->top_k = 20; break;
    case 3: s->min_p = 0.02; break;
    case 4:
        s->top_p = 0.95;
        s->frequency_penalty = 0.5;
        break;
    }
    s->ignore_eos = i <= 4 || i % 2;
    *out = r;
    return CORUN_OK;
}

static int32_t count_distinct(const vf *v, size_t first, size_t n, int64_t *n_tokens, bool *seen)
{
    int32_t distinct = 0;
    memset(seen, 0, (size_t)v->info.n_vocab * sizeof *seen);
    *n_tokens = 0;
    for (size_t i = first; i < first + n; i++)
        for (int32_t k = 0; k < v->set[i].r.sampling.n; k++) {
            const vf_tokens *t = &v->set[i].s[k].drawn;
            *n_tokens += t->n;
            for (int32_t j = 0; j < t->n; j++) {
                if (t->t[j].id < 0 || t->t[j].id >= v->info.n_vocab) continue;
                distinct += !seen[t->t[j].id];
                seen[t->t[j].id] = true;
            }
        }
    return distinct;
}

/* A greedy answer that goes round in a loop would prove nothing: sampled instead. */
static corun_status unloop(vf *v, bool *seen)
{
    for (size_t i = 0; i < v->n_own; i++) {
        int64_t n;
        vf_job *q = &v->set[i];
        int32_t distinct = count_distinct(v, i, 1, &n, seen);
        if (q->r.sampling.temperature >= 1e-5 || n < 32 || distinct * 4 >= n) continue;
        q->r.sampling.temperature = 1;
        TRY(vf_alone(v, q));
    }
    return CORUN_OK;
}

enum { MIN_MADE = 6 }; /* below VERIFY_MIN_ROW */

static corun_status make_requests(vf *v, size_t n_row)
{
    const verify_opts *o = v->o;
    v->n_own = o->n_request < n_row - MIN_MADE ? o->n_request : n_row - MIN_MADE;
    v->n_set = n_row;
    if (!MEM_NEW(v->set, n_row)) return CORUN_ENOMEM;
    for (size_t i = 0; i < n_row; i++) {
        corun_request *r = &v->set[i].r;
        if (i < v->n_own) {
            int32_t n_ctx = v->eo.n_ctx ? v->eo.n_ctx : v->info.n_ctx;
            int32_t room = n_ctx - (int32_t)o->request[i].n_token;
            *r = vf_cut(o->request[i], room < v->n_new ? room : v->n_new);
            if (r->sampling.logprobs < VERIFY_TOP) r->sampling.logprobs = VERIFY_TOP;
        } else if (i == v->n_own) {
            int32_t *t;
            TRY(vf_words(v, 99, 120, &t));
            *r = vf_request(v, t, 120, v->n_new, 42);
        } else {
            TRY(make_filler(v, i - v->n_own, r));
        }
    }
    return CORUN_OK;
}

corun_status vf_set_open(vf *v)
{
    size_t n_row = v->few ? 17 : v->fake || v->o->quick ? 33 : 65;
    if (v->o->n_row) n_row = v->o->n_row;
    v->n_new = v->few ? 128 : 512;
    v->max_prefix = v->few ? 511 : 4097;
    if (v->few && !v->p->lower) v->n_new = 48; /* no promise: less is enough */
    v->rng = 1;
    TRY(make_requests(v, n_row));
    int32_t pages = 2;
    for (size_t i = 0; i < n_row; i++) pages += vf_pages(v, &v->set[i].r);
    int32_t most = (v->max_prefix + 600) / v->eo.page_tokens * 4;
    vf_pool(v, &v->eo, pages > most ? pages : most);
    for (size_t i = 0; i < n_row; i++) TRY(vf_alone(v, &v->set[i]));
    while (v->needle < v->n_own && v->set[v->needle].s[0].drawn.n < 16) v->needle++;
    bool *seen;
    if (!MEM_NEW(seen, (size_t)v->info.n_vocab)) return CORUN_ENOMEM;
    corun_status st = unloop(v, seen);
    v->n_distinct = count_distinct(v, 0, n_row, &v->n_tokens, seen);
    mem_free(seen);
    return st;
}

void vf_set_close(vf *v)
{
    if (v->set) vf_jobs_free(v->set, v->n_set);
    mem_free(v->set);
    for (size_t i = 0; i < v->n_owned; i++) mem_free(v->owned[i]);
    mem_free(v->owned);
    v->set = NULL;
    v->owned = NULL;
    v->n_owned = v->n_set = 0;
}
