/* http_streams.c - many open streams over app/http.h and over libmicrohttpd, measured side by side.
 * Invariant: both servers get the same requests and the same bytes at the same times; the client is
 * another process.
 *
 * usage: http_streams http|microhttpd [STREAMS [SECONDS]] */
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <event2/buffer.h>
#include <microhttpd.h>

#include "app/http.h"
#include "base/clock.h"

#define CHUNK    200
#define TICK     0.1
#define STOPPED  10                 /* readers that do not read */
#define UNSENT   ((size_t)4 << 20)  /* of each of them, at most */
#define OFFERED  ((size_t)64 << 20) /* to each of them */
#define PATIENCE 3.0                /* seconds to wait for a client's end to be noticed */

/* The owner's side of one reply. */
typedef struct stream {
    http_call *call;
    struct MHD_Connection *con;
    pthread_mutex_t lock; /* what follows: libmicrohttpd pulls, so its owner keeps a queue */
    struct evbuffer *out;
    bool suspended, ended, cut;
    _Atomic double gone; /* when it was noticed */
} stream;

typedef struct bench {
    stream *list;
    unsigned max;
    _Atomic unsigned n;
    http *ours;
    struct MHD_Daemon *mhd;
    uint16_t port;
    int pipe; /* to the client's process */
} bench;

static void die(const char *what)
{
    fprintf(stderr, "http_streams: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void nap(double s)
{
    struct timespec t = {(time_t)s, (long)((s - (double)(time_t)s) * 1e9)};
    if (s > 0) nanosleep(&t, NULL);
}

static stream *add_stream(bench *b)
{
    unsigned i = b->n;
    if (i == b->max) return NULL;
    stream *s = b->list + i;
    pthread_mutex_init(&s->lock, NULL);
    s->out = evbuffer_new();
    return s->out ? s : NULL;
}

/* ---- over http.h ------------------------------------------------------------------------------
 */

static void on_call(void *ctx, http_call *c)
{
    bench *b = ctx;
    stream *s = add_stream(b);
    if (!s) {
        http_reply(c, 503, "text/plain", NULL, 0, "", 0);
        return;
    }
    s->call = c;
    http_set_data(c, s);
    if (strcmp(http_path(c), "/stream") == 0)
        http_stream_begin(c, 200, "text/event-stream", NULL, 0);
    b->n++;
}

static void on_gone(void *ctx, http_call *c)
{
    stream *s = http_data(c);
    (void)ctx;
    if (s) s->gone = clock_seconds();
}

/* ---- over libmicrohttpd ------------------------------------------------------------------------
 */

static ssize_t pull(void *ctx, uint64_t pos, char *to, size_t max)
{
    stream *s = ctx;
    ssize_t n = 0;
    (void)pos;
    pthread_mutex_lock(&s->lock);
    if (s->cut)
        n = MHD_CONTENT_READER_END_WITH_ERROR;
    else if (evbuffer_get_length(s->out))
        n = evbuffer_remove(s->out, to, max);
    else if (s->ended)
        n = MHD_CONTENT_READER_END_OF_STREAM;
    else {
        s->suspended = true;
        MHD_suspend_connection(s->con);
    }
    pthread_mutex_unlock(&s->lock);
    return n;
}

static enum MHD_Result begin_stream(stream *s)
{
    struct MHD_Response *r =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16 << 10, pull, s, NULL);
    MHD_add_response_header(r, "Content-Type", "text/event-stream");
    enum MHD_Result ok = MHD_queue_response(s->con, 200, r);
    MHD_destroy_response(r);
    return ok;
}

static enum MHD_Result on_request(void *ctx, struct MHD_Connection *con, const char *path,
                                  const char *method, const char *version, const char *data,
                                  size_t *len, void **own)
{
    bench *b = ctx;
    stream *s = *own;
    (void)method, (void)version, (void)data, (void)len;
    if (s) return begin_stream(s); /* it was pending and its owner has resumed it */
    s = *own = add_stream(b);
    if (!s) return MHD_NO;
    s->con = con;
    enum MHD_Result ok = MHD_YES;
    if (strcmp(path, "/stream") == 0)
        ok = begin_stream(s);
    else {
        s->suspended = true;
        MHD_suspend_connection(con);
    }
    b->n++;
    return ok;
}

static void on_completed(void *ctx, struct MHD_Connection *con, void **own,
                         enum MHD_RequestTerminationCode why)
{
    stream *s = *own;
    (void)ctx, (void)con, (void)why;
    if (s) s->gone = clock_seconds();
}

/* ---- the owner ----------------------------------------------------------------------------------
 */

/* False: the client is gone or too slow. */
static bool put(stream *s, const char *data, size_t len)
{
    if (s->call) return http_stream_put(s->call, data, len);
    if (s->gone > 0) return false;
    pthread_mutex_lock(&s->lock);
    bool ok = !s->cut && evbuffer_get_length(s->out) + len <= UNSENT;
    s->cut = !ok;
    if (ok)
        evbuffer_add(s->out, data, len);
    else
        evbuffer_drain(s->out, evbuffer_get_length(s->out));
    if (s->suspended) MHD_resume_connection(s->con);
    s->suspended = false;
    pthread_mutex_unlock(&s->lock);
    return ok;
}

static void end(stream *s, bool begun)
{
    if (s->call && begun)
        http_stream_end(s->call);
    else if (s->call)
        http_reply(s->call, 200, "text/plain", NULL, 0, "late", 4);
    else if (!(s->gone > 0)) {
        pthread_mutex_lock(&s->lock);
        s->ended = true;
        if (s->suspended) MHD_resume_connection(s->con);
        s->suspended = false;
        pthread_mutex_unlock(&s->lock);
    }
}

static void open_server(bench *b, const char *which)
{
    if (strcmp(which, "http") == 0) {
        http_limits l = http_limits_default();
        l.unsent = UNSENT;
        const http_handler h = {b, NULL, on_call, on_gone};
        if (http_open(&b->ours, "127.0.0.1", 0, &l, &h) != CORUN_OK) die("http_open");
        b->port = http_port(b->ours);
        return;
    }
    if (strcmp(which, "microhttpd") != 0) die("a server is http or microhttpd");
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    b->mhd =
        MHD_start_daemon(MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL,
                         on_request, b, MHD_OPTION_SOCK_ADDR, &a, MHD_OPTION_CONNECTION_LIMIT,
                         2048u, MHD_OPTION_NOTIFY_COMPLETED, on_completed, b, MHD_OPTION_END);
    if (!b->mhd) die("MHD_start_daemon");
    b->port = MHD_get_daemon_info(b->mhd, MHD_DAEMON_INFO_BIND_PORT)->port;
}

static double cpu_of(int who)
{
    struct rusage u;
    getrusage(who, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static double rss_mib(void)
{
    long all = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f && fscanf(f, "%ld %ld", &all, &resident) != 2) resident = 0;
    if (f) fclose(f);
    return (double)resident * (double)sysconf(_SC_PAGESIZE) / (1 << 20);
}

static double hear(int fd)
{
    double v;
    if (read(fd, &v, sizeof v) != sizeof v) die("the other process has ended");
    return v;
}

static void say(int fd, double v)
{
    if (write(fd, &v, sizeof v) != sizeof v) die("the other process has ended");
}

static void wait_for(const bench *b, unsigned n)
{
    while (b->n < n) nap(0.001);
}

static void fill(char *chunk)
{
    memset(chunk, 'x', CHUNK);
    int n = snprintf(chunk, CHUNK, "data: %016.6f", clock_seconds());
    chunk[n] = ' ';
    memcpy(chunk + CHUNK - 2, "\n\n", 2);
}

static bool noticed(const stream *s, double since, const char *what)
{
    while (!(s->gone > 0) && clock_seconds() < since + PATIENCE) nap(0.0005);
    if (s->gone > 0)
        printf("%s: noticed after %.1f ms\n", what, (s->gone - since) * 1e3);
    else
        printf("%s: not noticed in %.0f s\n", what, PATIENCE);
    return s->gone > 0;
}

static void owner(bench *b, unsigned streams, double seconds)
{
    char chunk[CHUNK];
    static const char big[16 << 10];
    double empty = rss_mib();
    say(b->pipe, b->port);
    hear(b->pipe);
    wait_for(b, streams);
    double cpu = cpu_of(RUSAGE_SELF), mine = cpu_of(RUSAGE_THREAD), begin = clock_seconds();
    unsigned ticks = (unsigned)(seconds / TICK);
    for (unsigned t = 1; t <= ticks; t++) {
        for (unsigned i = 0; i < streams; i++) {
            fill(chunk);
            put(b->list + i, chunk, CHUNK);
        }
        nap(begin + t * TICK - clock_seconds());
    }
    cpu = cpu_of(RUSAGE_SELF) - cpu, mine = cpu_of(RUSAGE_THREAD) - mine;
    printf("%u streams, %u chunks of %d bytes each\n", streams, ticks, CHUNK);
    printf("cpu: server's thread %.2f s, owner's thread %.2f s\n", cpu - mine, mine);
    printf("rss: %.1f MiB, %.1f MiB before the streams\n", rss_mib(), empty);
    fflush(stdout);
    say(b->pipe, 0);

    double closed = hear(b->pipe); /* the first stream's client, while chunks go on */
    stream *s = b->list;
    for (double until = closed + PATIENCE; !(s->gone > 0) && clock_seconds() < until; nap(TICK)) {
        fill(chunk);
        put(s, chunk, CHUNK);
    }
    noticed(s, closed, "client closes, a chunk each 100 ms");

    wait_for(b, streams + 1);
    s = b->list + streams;
    say(b->pipe, 0);
    bool seen = noticed(s, hear(b->pipe), "client closes, the reply is pending");
    double replied = clock_seconds();
    end(s, false);
    if (!seen) noticed(s, replied, "... its owner then replies");

    hear(b->pipe);
    wait_for(b, streams + 1 + STOPPED);
    double before = rss_mib(), taken = 0;
    unsigned cut = 0, gone = 0;
    for (unsigned i = 0; i < STOPPED; i++) {
        size_t sum = 0;
        s = b->list + streams + 1 + i;
        while (sum < OFFERED && put(s, big, sizeof big)) sum += sizeof big;
        cut += sum < OFFERED;
        taken += (double)sum / (1 << 20);
    }
    double stopped = clock_seconds(), high = rss_mib();
    nap(PATIENCE);
    for (unsigned i = 0; i < STOPPED; i++) gone += b->list[streams + 1 + i].gone > 0;
    printf(
        "%d readers that stop: %u cut off by the owner's limit after %.1f MiB each, rss +%.1f MiB; "
        "%.0f s later %u connections closed, rss +%.1f MiB\n",
        STOPPED, cut, taken / STOPPED, high - before, clock_seconds() - stopped, gone,
        rss_mib() - before);
    fflush(stdout);
    say(b->pipe, 0);
    for (unsigned i = 0; i < b->n; i++)
        if (i != streams) end(b->list + i, true);
}

/* ---- the client
 * ---------------------------------------------------------------------------------- */

static int ask(uint16_t port, const char *path)
{
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    char text[100];
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a)) die("connect");
    int n = snprintf(text, sizeof text, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path);
    if (write(fd, text, (size_t)n) != n) die("write");
    return fd;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Reads until the owner says that all is sent, and a moment more. */
static size_t read_streams(int pipe, int poll, double *late, size_t max)
{
    struct epoll_event got[256];
    static char text[64 << 10];
    size_t n = 0;
    for (double until = 0; !(until > 0) || clock_seconds() < until;) {
        int k = epoll_wait(poll, got, 256, 50);
        for (int i = 0; i < k; i++) {
            if (got[i].data.fd == pipe) {
                hear(pipe);
                until = clock_seconds() + 0.5;
                continue;
            }
            ssize_t len = read(got[i].data.fd, text, sizeof text - 1);
            double now = clock_seconds();
            if (len <= 0) die("a stream has ended");
            text[len] = 0;
            for (const char *p = text; (p = strstr(p, "data: ")) && n < max; p++)
                late[n++] = now - strtod(p + 6, NULL);
        }
    }
    return n;
}

static void client(int pipe, unsigned streams, double seconds)
{
    uint16_t port = (uint16_t)hear(pipe);
    int poll = epoll_create1(0), *fd;
    double *late, begin = clock_seconds();
    size_t max = (size_t)(seconds / TICK) * streams * 2;
    if (!MEM_NEW(fd, streams) || !MEM_NEW(late, max)) die("no memory");
    struct epoll_event e = {EPOLLIN, {.fd = pipe}};
    epoll_ctl(poll, EPOLL_CTL_ADD, pipe, &e);
    for (unsigned i = 0; i < streams; i++) {
        e.data.fd = fd[i] = ask(port, "/stream");
        epoll_ctl(poll, EPOLL_CTL_ADD, fd[i], &e);
    }
    printf("connected in %.0f ms\n", (clock_seconds() - begin) * 1e3);
    fflush(stdout);
    say(pipe, 0);
    size_t n = read_streams(pipe, poll, late, max);
    qsort(late, n, sizeof *late, by_value);
    if (!n) die("no chunk came");
    printf("latency of %zu chunks: p50 %.2f ms, p99 %.2f ms, largest %.2f ms\n", n,
           late[n / 2] * 1e3, late[n * 99 / 100] * 1e3, late[n - 1] * 1e3);
    fflush(stdout);
    nap(0.1);
    double now = clock_seconds();
    close(fd[0]);
    say(pipe, now);
    int pending = ask(port, "/pending");
    hear(pipe);
    nap(0.2);
    now = clock_seconds();
    close(pending);
    say(pipe, now);
    for (unsigned i = 0; i < STOPPED; i++) ask(port, "/stream");
    say(pipe, 0);
    hear(pipe);
    mem_free(fd);
    mem_free(late);
}

int main(int argc, char **argv)
{
    unsigned streams = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 1000;
    double seconds = argc > 3 ? strtod(argv[3], NULL) : 10;
    struct rlimit files;
    int pipe[2], status = 0;
    bench b = {.max = streams + 1 + STOPPED};
    if (argc < 2 || !streams || seconds < TICK) {
        fprintf(stderr, "usage: http_streams http|microhttpd [STREAMS [SECONDS]]\n");
        return 2;
    }
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pipe)) die("socketpair");
    pid_t child = fork();
    if (child < 0) die("fork");
    if (child == 0) {
        close(pipe[0]);
        client(pipe[1], streams, seconds);
        return 0;
    }
    close(pipe[1]);
    b.pipe = pipe[0];
    if (!MEM_NEW(b.list, b.max)) die("no memory");
    open_server(&b, argv[1]);
    printf("server: %s %s\n", argv[1], b.mhd ? MHD_get_version() : "over libevent");
    fflush(stdout);
    owner(&b, streams, seconds);
    waitpid(child, &status, 0);
    nap(0.3); /* the streams that were resumed end */
    http_close(b.ours);
    if (b.mhd) MHD_stop_daemon(b.mhd);
    for (unsigned i = 0; i < b.n; i++) evbuffer_free(b.list[i].out);
    mem_free(b.list);
    return status != 0;
}
