/* serve_main.c - owns `corun serve`: options, order of opening and closing, the end by a signal.
 * Invariant: the service ends before the transport does, so that what it still answers is sent. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "app/pump.h"
#include "app/serve.h"
#include "base/clock.h"

#define MAX_KEYS_FILE ((size_t)1 << 20)

typedef struct serve_args {
    cmd_engine_args e;
    const char *host, *keys, *state;
    int32_t port, queue, max_batches, connections, head_s, body_s, idle_s, write_s;
    int64_t max_body, max_upload, max_stored, bodies, unsent, max_tokens;
    double stop_s;
    bool no_keys, no_state, log, quiet, help;
} serve_args;

static bool is_loopback(const char *host)
{
    return strcmp(host, "localhost") == 0 || strncmp(host, "127.", 4) == 0 ||
           strcmp(host, "::1") == 0;
}

static corun_status check_args(const serve_args *a)
{
    const struct {
        const char *name;
        int64_t v, most;
    } list[] = {
        {"port", a->port, 65535},
        {"queue", a->queue, 1 << 20},
        {"max-batches", a->max_batches, 1 << 20},
        {"connections", a->connections, 1 << 20},
        {"head-seconds", a->head_s, 86400},
        {"body-seconds", a->body_s, 86400},
        {"idle-seconds", a->idle_s, 86400},
        {"write-seconds", a->write_s, 86400},
        {"max-body", a->max_body, JOB_MAX_LINE},
        {"max-upload", a->max_upload, INT64_MAX / 2},
        {"max-stored", a->max_stored, INT64_MAX / 2},
        {"max-bodies", a->bodies, INT64_MAX},
        {"max-unsent", a->unsent, INT64_MAX},
        {"max-tokens", a->max_tokens, INT64_MAX},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        bool zero = i == 0 || strcmp(list[i].name, "max-tokens") == 0;
        if (list[i].v < (zero ? 0 : 1) || list[i].v > list[i].most)
            FAIL(CORUN_EINVAL, "--%s %lld: not in %d ... %lld", list[i].name, (long long)list[i].v,
                 zero ? 0 : 1, (long long)list[i].most);
    }
    if (!(a->stop_s >= 0 && a->stop_s <= 86400))
        FAIL(CORUN_EINVAL, "--stop-seconds %g: not in 0 ... 86400", a->stop_s);
    if (a->no_keys && a->keys) FAIL(CORUN_EINVAL, "--no-keys and --api-keys exclude each other");
    if (a->no_state && a->state) FAIL(CORUN_EINVAL, "--no-state and --state exclude each other");
    if (!is_loopback(a->host) && !a->keys && !a->no_keys)
        FAIL(CORUN_EINVAL,
             "--host %s: other machines could use the server. Give --api-keys FILE, or --no-keys "
             "where that is meant",
             a->host);
    return CORUN_OK;
}

static corun_status read_args(serve_args *a, int argc, char **argv)
{
    const arg_spec specs[] = {
        {NULL, 0, ARG_FLAG, NULL, NULL, "Server:"},
        {"host", 0, ARG_TEXT, &a->host, "ADDRESS", "where to listen (127.0.0.1)"},
        {"port", 0, ARG_INT, &a->port, "N", "TCP port (8000); 0: any free one"},
        {"served-model-name", 0, ARG_UTF8, &a->e.served_name, "NAME",
         "the model's name; requests for another one are refused"},
        {"api-keys", 0, ARG_TEXT, &a->keys, "FILE", "one key a line; # begins a comment"},
        {"no-keys", 0, ARG_FLAG, &a->no_keys, NULL,
         "serve other machines without keys (with --host)"},
        {"state", 0, ARG_TEXT, &a->state, "FOLDER",
         "files and batches (XDG_STATE_HOME or ~/.local/state, /corun/serve)"},
        {"no-state", 0, ARG_FLAG, &a->no_state, NULL, "no files and no batches"},
        {"log", 0, ARG_FLAG, &a->log, NULL, "one line a request on standard error"},
        {"quiet", 'q', ARG_FLAG, &a->quiet, NULL, "only the line that says where it listens"},
        {"help", 'h', ARG_FLAG, &a->help, NULL, "this text"},
        {NULL, 0, ARG_FLAG, NULL, NULL, "Limits:"},
        {"queue", 0, ARG_INT, &a->queue, "N", "requests that may wait (1024); more get 429"},
        {"max-tokens", 0, ARG_LONG, &a->max_tokens, "N",
         "of one request, prompts and answers together (0: no limit)"},
        {"max-body", 0, ARG_SIZE, &a->max_body, "SIZE", "of one request (16M, at most)"},
        {"max-upload", 0, ARG_SIZE, &a->max_upload, "SIZE", "of an uploaded file (200M)"},
        {"max-stored", 0, ARG_SIZE, &a->max_stored, "SIZE",
         "of all files together, for one more to be uploaded (32G)"},
        {"max-batches", 0, ARG_INT, &a->max_batches, "N",
         "that are not at their end (1000); more get 429"},
        {"max-bodies", 0, ARG_SIZE, &a->bodies, "SIZE",
         "of all requests in memory together (256M)"},
        {"connections", 0, ARG_INT, &a->connections, "N", "open at once (2048)"},
        {"head-seconds", 0, ARG_INT, &a->head_s, "N", "for the head of a request (10)"},
        {"body-seconds", 0, ARG_INT, &a->body_s, "N",
         "between two pieces of its body; after that 1,024 bytes a second (20)"},
        {"idle-seconds", 0, ARG_INT, &a->idle_s, "N", "between two requests of a connection (75)"},
        {"write-seconds", 0, ARG_INT, &a->write_s, "N", "for a client that takes no byte (30)"},
        {"max-unsent", 0, ARG_SIZE, &a->unsent, "SIZE",
         "of a stream whose client reads slowly (4M)"},
        {"stop-seconds", 0, ARG_REAL, &a->stop_s, "N",
         "after SIGTERM, until what still runs is aborted (30)"},
        CMD_ENGINE_SPECS(&a->e),
    };
    const char *pos[1];
    size_t n;
    const http_limits l = http_limits_default();
    cmd_engine_args_init(&a->e);
    a->host = "127.0.0.1";
    a->port = 8000;
    a->queue = 1024;
    a->max_batches = 1000;
    a->stop_s = 30;
    a->connections = (int32_t)l.connections;
    a->head_s = (int32_t)l.head_s;
    a->body_s = (int32_t)l.body_s;
    a->idle_s = (int32_t)l.idle_s;
    a->write_s = (int32_t)l.write_s;
    a->max_body = (int64_t)JOB_MAX_LINE;
    a->max_upload = 200 << 20;
    a->max_stored = (int64_t)32 << 30;
    a->bodies = (int64_t)l.bodies;
    a->unsent = (int64_t)l.unsent;
    TRY(args_parse(specs, sizeof specs / sizeof *specs, argc, argv, pos, 0, &n));
    if (a->help) {
        puts(
            "corun serve -m MODEL [options]\n\n"
            "Serves the OpenAI API over HTTP. The answer to a request is the one that it gets in a "
            "batch\nfile (request_id is its custom_id), at any load. docs/server.md lists the "
            "endpoints.");
        args_help(specs, sizeof specs / sizeof *specs);
        return CORUN_OK;
    }
    a->e.quiet = a->quiet;
    return check_args(a);
}

/* ---- keys ------------------------------------------------------------------------------------ */

static corun_status add_key(serve *s, char *line, const char *path, size_t no)
{
    line += strspn(line, " \t");
    size_t n = strcspn(line, "\r");
    while (n && (line[n - 1] == ' ' || line[n - 1] == '\t')) n--;
    line[n] = 0;
    if (!n || line[0] == '#') return CORUN_OK;
    for (size_t i = 0; i < n; i++)
        if (line[i] <= 0x20 || line[i] > 0x7e)
            FAIL(CORUN_EINVAL, "%s: line %zu: a key is printable ASCII without spaces", path, no);
    char **more = mem_realloc(s->keys, s->n_keys + 1, sizeof *more, "API keys");
    if (!more) return CORUN_ENOMEM;
    s->keys = more;
    if (!(more[s->n_keys] = mem_dup(line, n, "API key"))) return CORUN_ENOMEM;
    s->n_keys++;
    return CORUN_OK;
}

static corun_status read_keys(serve *s, const char *path)
{
    buf b;
    struct stat st;
    if (!path) return CORUN_OK;
    buf_init(&b, MAX_KEYS_FILE);
    corun_status r = file_read(&b, path, MAX_KEYS_FILE);
    buf_putc(&b, 0);
    if (r == CORUN_OK) r = buf_status(&b);
    size_t no = 1;
    for (char *p = b.data; r == CORUN_OK && p && *p; no++) {
        char *end = p + strcspn(p, "\n");
        bool last = !*end;
        *end = 0;
        r = add_key(s, p, path, no);
        p = last ? end : end + 1;
    }
    buf_free(&b);
    TRY(r);
    if (!s->n_keys) FAIL(CORUN_EINVAL, "--api-keys %s: holds no key", path);
    if (stat(path, &st) == 0 && st.st_mode & 077)
        fprintf(stderr, "corun serve: %s: other users may read the keys (chmod 600)\n", path);
    return CORUN_OK;
}

/* ---- open ------------------------------------------------------------------------------------ */

/* The base name of a path; a name that is no path as it stands. */
static const char *model_name(const char *path, char *out, size_t cap)
{
    if (access(path, F_OK) != 0) return path;
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    size_t from = n;
    while (from > 0 && path[from - 1] != '/') from--;
    snprintf(out, cap, "%.*s", (int)(n - from), path + from);
    return out;
}

static corun_status open_http(serve *s, const serve_args *a)
{
    http_limits l = http_limits_default();
    l.connections = (unsigned)a->connections;
    l.body = (size_t)a->max_body;
    l.bodies = (size_t)a->bodies;
    l.head_s = (unsigned)a->head_s;
    l.body_s = (unsigned)a->body_s;
    l.idle_s = (unsigned)a->idle_s;
    l.write_s = (unsigned)a->write_s;
    l.unsent = (size_t)a->unsent;
    const http_handler h = serve_handler(s);
    return http_open(&s->http, a->host, (uint16_t)a->port, &l, &h);
}

static corun_status open_all(serve *s, const serve_args *a, char name[256])
{
    TRY(read_keys(s, a->keys));
    TRY(serve_metrics_open(&s->metrics));
    TRY(cmd_open(&s->session, &a->e, true));
    s->model_id = a->e.served_name ? a->e.served_name : model_name(a->e.model, name, 256);
    s->slots = (size_t)a->e.slots;
    s->max_tokens = a->max_tokens;
    s->log = a->log && !a->quiet;
    s->loopback = is_loopback(a->host) && !a->no_keys;
    const service_opts o = {.queue = (size_t)a->queue,
                            .window = PUMP_WINDOW(a->e.slots),
                            .slots = s->slots,
                            .threads = 2};
    TRY(service_open(&s->service, &s->session, &o));
    s->max_upload = (size_t)a->max_upload;
    s->max_stored = (uint64_t)a->max_stored;
    s->max_batches = (uint64_t)a->max_batches;
    TRY(serve_state_open(s, a->state, a->no_state));
    s->created = (int64_t)time(NULL);
    s->since = clock_seconds();
    return open_http(s, a);
}

static void close_all(serve *s)
{
    serve_state_stop(s); /* where opening has failed */
    http_close(s->http);
    service_close(s->service);
    serve_state_close(s);
    serve_metrics_close(s->metrics);
    cmd_close(&s->session);
    for (size_t i = 0; i < s->n_keys; i++) mem_free(s->keys[i]);
    mem_free(s->keys);
}

/* ---- run ------------------------------------------------------------------------------------- */

static void nap(double seconds)
{
    struct timespec t = {.tv_nsec = (long)(seconds * 1e9)};
    nanosleep(&t, NULL);
}

/* Ends what runs, in the time that the options give it. False: something was aborted. */
static bool stop(serve *s, const serve_args *a)
{
    double end = clock_seconds() + a->stop_s;
    service_stats t;
    service_read_stats(s->service, &t);
    if (!a->quiet)
        fprintf(stderr, "corun serve: stopping; %zu requests run, %zu wait\n", t.running,
                t.waiting);
    s->drain = true;
    http_drain(s->http);
    serve_state_stop(s);
    bool whole = service_stop(s->service, a->stop_s);
    if (end < clock_seconds() + 1) end = clock_seconds() + 1;
    while (http_stats(s->http).alive && clock_seconds() < end) nap(0.01);
    return whole && !http_stats(s->http).alive;
}

static int run(serve *s, const serve_args *a)
{
    char name[256];
    corun_status st = open_all(s, a, name);
    if (st != CORUN_OK) return cmd_fail(st);
    bool six = strchr(a->host, ':') != NULL;
    fprintf(stderr, "corun serve: listening on http://%s%s%s:%u\n", six ? "[" : "", a->host,
            six ? "]" : "", http_port(s->http));
    while (!cmd_signal()) nap(0.1);
    return stop(s, a) ? CMD_OK : CMD_SIGNAL + cmd_signal();
}

int serve_main(int argc, char **argv)
{
    serve_args a = {0};
    if (read_args(&a, argc, argv) != CORUN_OK) return cmd_usage("serve", "%s", corun_last_error());
    if (a.help) return CMD_OK;
    serve s = {0};
    pthread_mutex_init(&s.lock, NULL);
    cmd_signals_install();
    int code = run(&s, &a);
    close_all(&s);
    pthread_mutex_destroy(&s.lock);
    return code;
}
