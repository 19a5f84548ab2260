/* serve_info.c - owns the endpoints that say what the server is and does. Invariant: none of them
 * touches the engine; what they show is what the service has noted. */
#include <stdio.h>
#include <string.h>

#include "app/serve.h"
#include "base/clock.h"

#define MAX_REPLY ((size_t)64 << 20)

/* ---- models ---------------------------------------------------------------------------------- */

static void put_model(const serve *s, jw *w)
{
    jw_open(w, '{');
    jw_field_str(w, "id", s->model_id);
    jw_field_str(w, "object", "model");
    jw_field_int(w, "created", s->created);
    jw_field_str(w, "owned_by", "corun");
    jw_field_str(w, "root", s->model_id);
    jw_field_null(w, "parent");
    jw_field_int(w, "max_model_len", s->session.facts.n_ctx);
    jw_close(w, '}');
}

static void models(serve *s, http_call *c)
{
    buf b;
    jw w;
    buf_init(&b, MAX_REPLY);
    jw_init(&w, &b);
    jw_open(&w, '{');
    jw_field_str(&w, "object", "list");
    jw_key(&w, "data");
    jw_open(&w, '[');
    put_model(s, &w);
    jw_close(&w, ']');
    jw_close(&w, '}');
    serve_reply_json(s, c, 200, &b);
}

static void one_model(serve *s, http_call *c)
{
    const char *name = http_path(c) + strlen("/v1/models/");
    buf b;
    jw w;
    if (strcmp(name, s->model_id) != 0) {
        serve_error(s, c, 404, NULL, "model", "model_not_found",
                    "The model `%.200s` does not exist.", name);
        return;
    }
    buf_init(&b, MAX_REPLY);
    jw_init(&w, &b);
    put_model(s, &w);
    serve_reply_json(s, c, 200, &b);
}

/* ---- the server ------------------------------------------------------------------------------ */

static void health(serve *s, http_call *c)
{
    const char *why = service_failure(s->service);
    if (why)
        serve_error(s, c, 503, NULL, NULL, NULL, "the engine has failed: %s", why);
    else if (s->drain)
        serve_error(s, c, 503, NULL, NULL, NULL, "the server is being stopped");
    else
        serve_reply(s, c, 200, NULL, "{}", 2);
}

static void version(serve *s, http_call *c)
{
    buf b;
    jw w;
    buf_init(&b, MAX_REPLY);
    jw_init(&w, &b);
    jw_open(&w, '{');
    jw_field_str(&w, "version", corun_version());
    jw_close(&w, '}');
    serve_reply_json(s, c, 200, &b);
}

static void tokenizer_info(serve *s, http_call *c)
{
    size_t n = 0;
    corun_status st = corun_tokenizer_info(s->session.model, NULL, 0, &n);
    char *text = st == CORUN_ECAPACITY ? mem_alloc(n, 1, "tokenizer info") : NULL;
    if (text) st = corun_tokenizer_info(s->session.model, text, n, &n);
    if (st == CORUN_OK)
        serve_reply(s, c, 200, NULL, text, n);
    else
        serve_error(s, c, 500, NULL, NULL, NULL, "%s", err_text());
    mem_free(text);
}

static void metrics(serve *s, http_call *c)
{
    buf b;
    buf_init(&b, MAX_REPLY);
    serve_metrics_write(s, &b);
    if (buf_status(&b) == CORUN_OK)
        serve_reply(s, c, 200, "text/plain; version=0.0.4; charset=utf-8", b.data, b.len);
    else
        serve_error(s, c, 500, NULL, NULL, NULL, "%s", err_text());
    buf_free(&b);
}

static void put_running(jw *w, service *v)
{
    enum { MOST = 256 };
    static const char *const kind[] = {"completion", "chat", "score"};
    service_row r[MOST];
    size_t n = service_running(v, r, MOST);
    jw_key(w, "running");
    jw_open(w, '[');
    for (size_t i = 0; i < n; i++) {
        jw_open(w, '{');
        jw_field_str(w, "id", r[i].id);
        jw_field_str(w, "kind", kind[r[i].kind]);
        jw_field_uint(w, "prompt_tokens", r[i].prompt_tokens);
        jw_field_uint(w, "new_tokens", r[i].new_tokens);
        jw_field_double(w, "seconds", r[i].seconds);
        jw_field_bool(w, "stream", r[i].stream);
        jw_field_bool(w, "background", r[i].background);
        jw_close(w, '}');
    }
    jw_close(w, ']');
}

/* For the page, which asks each second. */
static void state(serve *s, http_call *c)
{
    service_stats t;
    buf b;
    jw w;
    service_read_stats(s->service, &t);
    const corun_stats *e = &t.engine;
    buf_init(&b, MAX_REPLY);
    jw_init(&w, &b);
    jw_open(&w, '{');
    jw_field_str(&w, "identity", s->session.identity);
    jw_field_str(&w, "model", s->model_id);
    jw_field_str(&w, "policy", s->session.policy);
    jw_field_str(&w, "version", corun_version());
    jw_field_double(&w, "uptime_s", clock_seconds() - s->since);
    jw_field_uint(&w, "slots", s->slots);
    put_running(&w, s->service);
    jw_field_uint(&w, "waiting", t.waiting + t.waiting_background);
    jw_field_uint(&w, "pages", e->pages);
    jw_field_uint(&w, "pages_free", e->pages_free);
    jw_field_uint(&w, "pages_peak", e->pages_peak);
    jw_field_uint(&w, "swap_pages", e->swap_pages);
    jw_field_uint(&w, "swap_pages_free", e->swap_pages_free);
    jw_field_uint(&w, "tokens_new", e->tokens_new);
    jw_field_uint(&w, "tokens_prompt", e->tokens_prompt);
    jw_field_uint(&w, "rows_live", e->rows_live);
    jw_field_uint(&w, "rows_dead", e->rows_dead);
    jw_field_uint(&w, "steps", e->steps_prefill + e->steps_decode + e->steps_mixed);
    jw_field_uint(&w, "steps_decode", e->steps_decode + e->steps_mixed); /* those with rows_live */
    jw_field_uint(&w, "prefix_hits", e->prefix_hits);
    jw_field_uint(&w, "swaps_out", e->swaps_out);
    jw_field_uint(&w, "swaps_in", e->swaps_in);
    jw_field_uint(&w, "recomputes", e->recomputes);
    jw_close(&w, '}');
    serve_reply_json(s, c, 200, &b);
}

const serve_route serve_info_routes[] = {
    {"GET", "/v1/models", false, NULL, models, NULL},
    {"GET", "/v1/models/*", false, NULL, one_model, NULL},
    {"GET", "/health", true, NULL, health, NULL},
    {"GET", "/ping", true, NULL, health, NULL},
    {"GET", "/version", false, NULL, version, NULL},
    {"GET", "/tokenizer_info", false, NULL, tokenizer_info, NULL},
    {"GET", "/metrics", false, NULL, metrics, NULL},
    {"GET", "/corun/state", false, NULL, state, NULL},
    {NULL, NULL, false, NULL, NULL, NULL},
};
