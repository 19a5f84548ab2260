/* serve_routes.c - owns the way from a request to its handler, and the shape of replies and errors.
 * Invariant: every call is counted once, when it ends. A call's number is its route's place. */
#include <arpa/inet.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "app/serve.h"

static const serve_route *const tables[] = {serve_openai_routes, serve_info_routes,
                                            serve_page_routes, serve_files_routes,
                                            serve_batches_routes};
#define N_TABLE (sizeof tables / sizeof *tables)

char serve_held[1];

const serve_route *serve_route_at(size_t i)
{
    for (size_t t = 0; t < N_TABLE; t++)
        for (const serve_route *r = tables[t]; r->method; r++)
            if (i-- == 0) return r;
    return NULL;
}

/* ---- paths ----------------------------------------------------------------------------------- */

static bool matches(const char *pattern, const char *path)
{
    for (;;) {
        if (strcmp(pattern, "*") == 0) return *path != 0;
        if (pattern[0] == '{') {
            size_t n = strcspn(path, "/");
            if (n == 0) return false;
            path += n;
            pattern += 2;
            continue;
        }
        if (*pattern != *path) return false;
        if (!*path) return true;
        pattern++;
        path++;
    }
}

/* What GET answers HEAD asks for too: the transport leaves out the body. */
static bool takes(const serve_route *r, const char *method)
{
    return strcmp(r->method, method) == 0 ||
           (strcmp(method, "HEAD") == 0 && strcmp(r->method, "GET") == 0);
}

/* The route of a call, *at its place; NULL: none, and *other is one of another method or NULL. */
static const serve_route *find(const http_call *c, size_t *at, const serve_route **other)
{
    const char *path = http_path(c), *method = http_method(c);
    const serve_route *r;
    *other = NULL;
    for (*at = 0; (r = serve_route_at(*at)) != NULL; ++*at) {
        if (!matches(r->path, path)) continue;
        if (takes(r, method)) return r;
        *other = r;
    }
    *at = SERVE_ROUTES_MAX;
    return NULL;
}

bool serve_segment(const http_call *c, unsigned k, char *out, size_t cap)
{
    const char *p = http_path(c);
    for (unsigned i = 0; *p == '/'; i++) {
        size_t n = strcspn(++p, "/");
        if (i == k) {
            if (n == 0 || n >= cap) return false;
            memcpy(out, p, n);
            out[n] = 0;
            return true;
        }
        p += n;
    }
    return false;
}

/* ---- replies --------------------------------------------------------------------------------- */

void serve_count_more(serve *s, const http_call *c, int status, const char *more)
{
    serve_metrics_count(s->metrics, http_number(c), status);
    if (!s->log) return;
    char path[200];
    size_t n = 0;
    for (const char *p = http_path(c); *p && n < sizeof path - 1; p++)
        path[n++] = *p < 0x20 || *p == 0x7f ? '?' : *p; /* a decoded line feed makes no line */
    path[n] = 0;
    fprintf(stderr, "corun serve: %s %s %d%s%s\n", http_method(c), path, status, *more ? " " : "",
            more);
}

void serve_count(serve *s, const http_call *c, int status) { serve_count_more(s, c, status, ""); }

/* The client's own name for the request goes back to it. */
static size_t put_request_id(const http_call *c, http_field *f)
{
    const char *id = http_header(c, "X-Request-Id");
    if (!id || !*id || strlen(id) > 200) return 0;
    for (const char *p = id; *p; p++)
        if (*p < 0x20 || *p > 0x7e) return 0;
    *f = (http_field){"X-Request-Id", id};
    return 1;
}

void serve_send(http_call *c, int status, const char *type, const http_field *more,
                const char *data, size_t len)
{
    http_field f[3];
    size_t n = put_request_id(c, f);
    if (more) f[n++] = *more;
    if (status == 429 || status == 503) f[n++] = (http_field){"Retry-After", "1"};
    http_reply(c, status, type ? type : "application/json", f, n, data, len);
}

void serve_reply(serve *s, http_call *c, int status, const char *type, const char *data, size_t len)
{
    serve_count(s, c, status);
    serve_send(c, status, type, NULL, data, len);
}

void serve_stream(http_call *c, const char *type)
{
    http_field f[2] = {{"Cache-Control", "no-cache"}};
    size_t n = 1 + put_request_id(c, f + 1);
    http_stream_begin(c, 200, type, f, n);
}

static const char *usual_type(int status)
{
    switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 429: return "rate_limit_error";
    default: return status >= 500 ? "server_error" : "invalid_request_error";
    }
}

static void error(serve *s, http_call *c, int status, const http_field *more, const char *type,
                  const char *param, const char *code, const char *message)
{
    buf b;
    jw w;
    buf_init(&b, (size_t)1 << 20);
    jw_init(&w, &b);
    jw_open(&w, '{');
    jw_key(&w, "error");
    jw_open(&w, '{');
    jw_field_str(&w, "message", message);
    jw_field_str(&w, "type", type ? type : usual_type(status));
    jw_field_str(&w, "param", param);
    jw_field_str(&w, "code", code);
    jw_close(&w, '}');
    jw_close(&w, '}');
    bool whole = buf_status(&b) == CORUN_OK;
    serve_count(s, c, status);
    serve_send(c, status, NULL, more, whole ? b.data : "{}", whole ? b.len : 2);
    buf_free(&b);
}

void serve_error(serve *s, http_call *c, int status, const char *type, const char *param,
                 const char *code, const char *fmt, ...)
{
    char text[2 * ERR_TEXT_MAX];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    error(s, c, status, NULL, type, param, code, text);
}

void serve_reply_json(serve *s, http_call *c, int status, buf *b)
{
    if (buf_status(b) == CORUN_OK)
        serve_reply(s, c, status, NULL, b->data, b->len);
    else
        serve_error(s, c, 500, NULL, NULL, NULL, "%s", err_text());
    buf_free(b);
}

/* ---- work on other threads ------------------------------------------------------------------- */

typedef struct later {
    serve *s;
    http_call *c;
    void (*fn)(serve *s, http_call *c);
} later;

static void run_later(void *arg)
{
    later l = *(later *)arg;
    mem_free(arg);
    l.fn(l.s, l.c);
}

void serve_later(serve *s, http_call *c, service_lane lane, void (*fn)(serve *s, http_call *c))
{
    later *l;
    if (!MEM_NEW(l, 1)) {
        serve_error(s, c, 503, NULL, NULL, NULL, "%s", err_text());
        return;
    }
    *l = (later){s, c, fn};
    if (service_work(s->service, lane, run_later, l) == CORUN_OK) return;
    mem_free(l);
    serve_error(s, c, 429, NULL, NULL, NULL, "%s", err_text());
}

/* ---- the handler ----------------------------------------------------------------------------- */

/* Takes the same time whatever the key is: it depends on the length of what was given only. */
static bool same_key(const char *given, size_t n, const char *key)
{
    size_t k = strlen(key);
    volatile unsigned differ = n != k;
    for (size_t i = 0; i < n; i++) differ |= (unsigned char)given[i] ^ (unsigned char)key[i % k];
    return differ == 0;
}

static bool key_is_right(const serve *s, const http_call *c)
{
    static const char scheme[] = "Bearer ";
    const char *given = http_header(c, "Authorization");
    if (!s->keys) return true;
    if (!given || strncasecmp(given, scheme, sizeof scheme - 1) != 0) return false;
    given += sizeof scheme - 1;
    given += strspn(given, " ");
    size_t n = strlen(given);
    bool right = false;
    for (size_t i = 0; i < s->n_keys; i++) right |= same_key(given, n, s->keys[i]);
    return right;
}

/* localhost or an address, with or without a port. */
static bool is_here(const char *host)
{
    char name[64];
    struct in6_addr a;
    bool six = *host == '[';
    size_t n = six ? strcspn(++host, "]") : strcspn(host, ":");
    const char *port = host + n + (six && host[n]);
    if (n >= sizeof name || (*port && *port != ':') || port[strspn(port, ":0123456789")])
        return false;
    memcpy(name, host, n);
    name[n] = 0;
    return strcasecmp(name, "localhost") == 0 || inet_pton(six ? AF_INET6 : AF_INET, name, &a) == 1;
}

/* Without keys, whoever reaches the server may use it; a page of another site in a browser of this
 * machine reaches it too. Such a page stands in Origin, and a name of its own that was turned to
 * this address (DNS rebinding) in Host, or in the target. */
static const char *foreign(const serve *s, const http_call *c)
{
    const char *host = http_host(c), *origin = http_header(c, "Origin");
    if (s->keys) return NULL;
    const char *who = origin ? strstr(origin, "://") : NULL;
    if (origin && (!who || !host || strcasecmp(who + 3, host) != 0))
        return "Origin: a page of another site may not use a server without keys";
    if (!s->loopback || !host || is_here(host)) return NULL;
    return "Host: a server without keys on this machine is localhost or an address";
}

static void refuse_method(serve *s, http_call *c)
{
    char text[64];
    buf allow;
    const serve_route *r;
    buf_init(&allow, 256);
    for (size_t i = 0; (r = serve_route_at(i)) != NULL; i++)
        if (matches(r->path, http_path(c)))
            buf_printf(&allow, "%s%s", allow.len ? ", " : "",
                       strcmp(r->method, "GET") == 0 ? "GET, HEAD" : r->method);
    const http_field f = {"Allow", allow.data ? allow.data : ""};
    snprintf(text, sizeof text, "this path takes %s only", f.value);
    error(s, c, 405, &f, NULL, NULL, NULL, text);
    buf_free(&allow);
}

static void on_head(void *ctx, http_call *c)
{
    static const http_field bearer = {"WWW-Authenticate", "Bearer"};
    serve *s = ctx;
    size_t at;
    const serve_route *other, *r = find(c, &at, &other);
    http_set_number(c, at);
    const char *why = foreign(s, c);
    if (why) {
        error(s, c, 403, NULL, NULL, NULL, NULL, why);
        return;
    }
    if (!(r ? r : other ? other : &(serve_route){0})->open && !key_is_right(s, c)) {
        const char *given = http_header(c, "Authorization");
        error(s, c, 401, &bearer, NULL, NULL, "invalid_api_key",
              given ? "the API key is not one of this server's"
                    : "an API key is needed: Authorization: Bearer KEY");
        return;
    }
    if (r) {
        if (r->head) r->head(s, c);
    } else if (other) {
        refuse_method(s, c);
    } else {
        serve_error(s, c, 404, NULL, NULL, NULL, "there is nothing at %.200s", http_path(c));
    }
}

static void on_call(void *ctx, http_call *c)
{
    const serve_route *r = serve_route_at(http_number(c));
    if (!http_data(c)) http_set_data(c, serve_held);
    if (r) r->call(ctx, c);
}

static void on_gone(void *ctx, http_call *c)
{
    const serve_route *r = serve_route_at(http_number(c));
    if (r && r->gone)
        r->gone(ctx, c);
    else if (!http_data(c)) /* only its head was seen: nobody else holds it */
        serve_reply(ctx, c, 499, NULL, "", 0);
}

http_handler serve_handler(serve *s)
{
    return (http_handler){.ctx = s, .head = on_head, .call = on_call, .gone = on_gone};
}
