/* serve_metrics.c - owns the counters of replies and the text of /metrics. Invariant: a counter
 * never goes down while the server runs. */
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "app/serve_store.h"
#include "base/clock.h"

static const int statuses[] = {200, 400, 401, 403, 404, 405, 408, 409,
                               413, 429, 431, 499, 500, 503, 507, 0}; /* 0: any other */
enum { N_STATUS = sizeof statuses / sizeof *statuses };

struct serve_metrics {
    atomic_ulong count[SERVE_ROUTES_MAX + 1][N_STATUS];
};

corun_status serve_metrics_open(serve_metrics **out)
{
    return MEM_NEW(*out, 1) ? CORUN_OK : CORUN_ENOMEM;
}

void serve_metrics_close(serve_metrics *m) { mem_free(m); }

void serve_metrics_count(serve_metrics *m, size_t route, int status)
{
    size_t k = 0;
    while (statuses[k] && statuses[k] != status) k++;
    if (route > SERVE_ROUTES_MAX) route = SERVE_ROUTES_MAX;
    atomic_fetch_add_explicit(&m->count[route][k], 1, memory_order_relaxed);
}

/* ---- the text -------------------------------------------------------------------------------- */

static void head(buf *b, const char *name, const char *type, const char *help)
{
    buf_printf(b, "# HELP corun_%s %s\n# TYPE corun_%s %s\n", name, help, name, type);
}

static void number(buf *b, const char *name, const char *type, const char *help, double v)
{
    head(b, name, type, help);
    buf_printf(b, "corun_%s %.17g\n", name, v);
}

/* A label's value: quotes, backslashes and line ends are escaped. */
static void label(buf *b, const char *name, const char *value)
{
    buf_printf(b, "%s=\"", name);
    for (const char *p = value; *p; p++) {
        if (*p == '\\' || *p == '"') buf_putc(b, '\\');
        if (*p == '\n')
            buf_puts(b, "\\n");
        else
            buf_putc(b, *p);
    }
    buf_putc(b, '"');
}

static void put_requests(const serve_metrics *m, buf *b)
{
    head(b, "http_requests_total", "counter", "Replies by method, endpoint and status.");
    for (size_t r = 0; r <= SERVE_ROUTES_MAX; r++)
        for (size_t k = 0; k < N_STATUS; k++) {
            unsigned long n = atomic_load_explicit(&m->count[r][k], memory_order_relaxed);
            const serve_route *route = serve_route_at(r);
            if (!n) continue;
            buf_puts(b, "corun_http_requests_total{");
            label(b, "method", route ? route->method : "other");
            buf_putc(b, ',');
            label(b, "endpoint", route ? route->path : "other");
            buf_printf(b, ",status=\"%d\"} %lu\n", statuses[k], n);
        }
}

static void put_histogram(buf *b, const char *name, const char *help, const service_histogram *h)
{
    uint64_t sum = 0;
    head(b, name, "histogram", help);
    for (size_t i = 0; i < SERVICE_BUCKETS; i++) {
        sum += h->count[i];
        if (isinf(service_bounds[i]))
            buf_printf(b, "corun_%s_bucket{le=\"+Inf\"} %llu\n", name, (unsigned long long)sum);
        else
            buf_printf(b, "corun_%s_bucket{le=\"%g\"} %llu\n", name, service_bounds[i],
                       (unsigned long long)sum);
    }
    buf_printf(b, "corun_%s_sum %.9g\ncorun_%s_count %llu\n", name, h->sum, name,
               (unsigned long long)h->n);
}

static void put_build(const serve *s, buf *b)
{
    const corun_model_info *i = &s->session.info;
    head(b, "build_info", "gauge", "What runs here; the value is 1.");
    buf_puts(b, "corun_build_info{");
    label(b, "version", corun_version());
    buf_putc(b, ',');
    label(b, "identity", s->session.identity);
    buf_putc(b, ',');
    label(b, "model", s->model_id);
    buf_putc(b, ',');
    label(b, "policy", s->session.policy);
    buf_putc(b, ',');
    label(b, "device", i->device);
    buf_putc(b, ',');
    label(b, "isa", i->isa);
    buf_puts(b, "} 1\n");
}

static void put_tasks(const service_stats *t, buf *b)
{
    head(b, "requests_total", "counter", "Requests that have reached the engine, by their end.");
    buf_printf(b, "corun_requests_total{end=\"ok\"} %llu\n", (unsigned long long)t->ok);
    buf_printf(b, "corun_requests_total{end=\"failed\"} %llu\n", (unsigned long long)t->failed);
    buf_printf(b, "corun_requests_total{end=\"cancelled\"} %llu\n",
               (unsigned long long)t->cancelled);
    number(b, "requests_refused_total", "counter", "Requests refused since the queue was full.",
           (double)t->refused);
    number(b, "requests_running", "gauge", "Requests that have begun.", (double)t->running);
    number(b, "requests_waiting", "gauge", "Requests in the queue.", (double)t->waiting);
    number(b, "batch_lines_waiting", "gauge", "Lines of stored batches in the queue.",
           (double)t->waiting_background);
    put_histogram(b, "time_to_first_token_seconds", "From the request to its first token.",
                  &t->ttft);
    put_histogram(b, "time_per_output_token_seconds", "Of the longest choice, after its first.",
                  &t->tpot);
    put_histogram(b, "request_latency_seconds", "From the request to its end.", &t->latency);
}

static void put_engine(const corun_stats *e, buf *b)
{
    const struct {
        const char *name, *type, *help;
        double v;
    } list[] = {
        {"prompt_tokens_total", "counter", "Prompt tokens computed.", (double)e->tokens_prompt},
        {"generation_tokens_total", "counter", "New tokens.", (double)e->tokens_new},
        {"rows_live_total", "counter", "Live rows of all decode steps.", (double)e->rows_live},
        {"rows_dead_total", "counter", "Dead rows of all decode steps.", (double)e->rows_dead},
        {"steps_prefill_total", "counter", "Steps of prompts alone.", (double)e->steps_prefill},
        {"steps_decode_total", "counter", "Steps of decode rows alone.", (double)e->steps_decode},
        {"steps_mixed_total", "counter", "Steps of both.", (double)e->steps_mixed},
        {"kv_pages", "gauge", "Pages of the KV pool.", (double)e->pages},
        {"kv_pages_free", "gauge", "Pages of the pool that are free.", (double)e->pages_free},
        {"kv_pages_used_peak", "gauge", "Pages in use, at most.", (double)e->pages_peak},
        {"swap_pages", "gauge", "Pages of the swap area.", (double)e->swap_pages},
        {"swap_pages_free", "gauge", "Pages of it that are free.", (double)e->swap_pages_free},
        {"swaps_out_total", "counter", "Requests moved out.", (double)e->swaps_out},
        {"swaps_in_total", "counter", "Requests moved back.", (double)e->swaps_in},
        {"recomputes_total", "counter", "Requests computed again.", (double)e->recomputes},
        {"prefix_hits_total", "counter", "Prompts that reused pages.", (double)e->prefix_hits},
        {"prefix_tokens_total", "counter", "Prompt tokens reused.", (double)e->prefix_tokens},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        number(b, list[i].name, list[i].type, list[i].help, list[i].v);
}

static void put_transport(const http_counts *h, buf *b)
{
    number(b, "http_connections_total", "counter", "Connections taken.", (double)h->connections);
    number(b, "http_connections_refused_total", "counter", "Connections beyond the limit.",
           (double)h->refused);
    number(b, "http_connections_open", "gauge", "Connections now.", (double)h->open);
    number(b, "http_timeouts_total", "counter", "Clients that were too slow to ask.",
           (double)h->timeouts);
    number(b, "http_cut_off_total", "counter",
           "Replies cut off: a client too slow to read, or no memory.", (double)h->cut_off);
}

void serve_metrics_write(serve *s, buf *out)
{
    service_stats t;
    const http_counts h = http_stats(s->http);
    service_read_stats(s->service, &t);
    put_build(s, out);
    number(out, "uptime_seconds", "gauge", "Since the start.", clock_seconds() - s->since);
    number(out, "up", "gauge", "0: the engine has failed.", service_failure(s->service) ? 0 : 1);
    put_requests(s->metrics, out);
    put_tasks(&t, out);
    put_engine(&t.engine, out);
    put_transport(&h, out);
    if (s->store)
        number(out, "stored_bytes", "gauge", "Of all files and uploads, as --max-stored counts.",
               (double)store_used(s->store));
}
