/* The HTTP transport over raw loopback sockets: replies, bodies in any pieces, every limit, clients
 * that go away, streams from other threads, drain and close. No descriptor stays behind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <event2/event.h>

#include "app/http.h"

#define STREAMS 8
#define HOST    "Host: x\r\n"

typedef struct room {
    http *s;
    atomic_int gone, calls, cut;
    _Atomic(http_call *) held;
    pthread_t thread[64];
    atomic_int n_thread;
} room;

static void nap(void) { usleep(2000); }

static atomic_bool endless; /* a client that takes whatever it is given, at once */

ssize_t sendfile(int to, int from, off_t *at, size_t n)
{
    if (!endless) return syscall(SYS_sendfile, to, from, at, n);
    if (n > 4096) n = 4096;
    *at += (off_t)n;
    return (ssize_t)n;
}

static atomic_long fails_in; /* the n-th allocation of libevent from now on fails; 0: none does */

static bool fails(void) { return fails_in > 0 && --fails_in == 0; }
static void *get(size_t n) { return fails() ? NULL : malloc(n); }
static void *get_more(void *p, size_t n) { return fails() ? NULL : realloc(p, n); }

static void *run_stream(void *arg)
{
    http_call *c = arg;
    char piece[32];
    http_stream_begin(c, 200, "text/plain", NULL, 0);
    for (int i = 0; i < 100; i++) {
        snprintf(piece, sizeof piece, "%s-%d;", http_query(c, "n"), i);
        if (!http_stream_put(c, piece, strlen(piece))) break;
    }
    http_stream_end(c);
    return NULL;
}

static void *run_flood(void *arg)
{
    static const char data[4096];
    http_call *c = arg;
    room *r = http_data(c);
    http_stream_begin(c, 200, "text/plain", NULL, 0);
    while (http_stream_put(c, data, sizeof data)) nap();
    r->cut++;
    http_stream_end(c);
    return NULL;
}

enum { HUGE_PIECE = 16 << 20, N_PIECE = 2000 };

/* A piece of more than a socket takes at once, then many small ones. */
static void *run_big(void *arg)
{
    http_call *c = arg;
    char *data = calloc(1, HUGE_PIECE);
    http_stream_begin(c, 200, "text/plain", NULL, 0);
    bool ok = data && http_stream_put(c, data, HUGE_PIECE);
    for (int i = 0; ok && i < N_PIECE; i++) ok = http_stream_put(c, "x", 1);
    free(data);
    http_stream_end(c);
    return NULL;
}

static void *run_reply(void *arg)
{
    http_reply(arg, 200, "text/plain", NULL, 0, "late", 4);
    return NULL;
}

static corun_status too_much(void *ctx, const char *data, size_t len)
{
    (void)ctx, (void)data, (void)len;
    FAIL(CORUN_ECAPACITY, "the reader takes no more");
}

/* A reader that lets each piece be counted elsewhere. */
static atomic_int held_bytes, pause_ms = 5;

static void *run_later(void *arg)
{
    usleep((useconds_t)pause_ms * 1000);
    http_body_go_on(arg);
    return NULL;
}

static corun_status take_later(void *ctx, const char *data, size_t len)
{
    http_call *c = ctx;
    room *r = http_data(c);
    for (size_t i = 0; i < len; i++) /* in order, and none twice */
        if ((unsigned char)data[i] != (unsigned char)held_bytes++) held_bytes = -1000000;
    http_body_wait(c);
    pthread_create(&r->thread[r->n_thread++], NULL, run_later, c);
    return CORUN_OK;
}

static void on_head(void *ctx, http_call *c)
{
    http_set_data(c, ctx);
    if (strcmp(http_path(c), "/small") == 0) http_body_limit(c, 10);
    if (strcmp(http_path(c), "/reader") == 0) http_body_reader(c, too_much, NULL);
    if (strcmp(http_path(c), "/later") == 0) http_body_reader(c, take_later, c);
}

static void on_call(void *ctx, http_call *c)
{
    room *r = ctx;
    const char *p = http_path(c);
    void *(*run)(void *) = strcmp(p, "/stream") == 0  ? run_stream
                           : strcmp(p, "/flood") == 0 ? run_flood
                           : strcmp(p, "/big") == 0   ? run_big
                           : strcmp(p, "/late") == 0  ? run_reply
                                                      : NULL;
    r->calls++;
    if (run) {
        pthread_create(&r->thread[r->n_thread++], NULL, run, c);
    } else if (strcmp(p, "/hold") == 0) {
        r->held = c;
    } else if (strcmp(p, "/file") == 0 || strcmp(p, "/short") == 0) {
        FILE *f = tmpfile();
        fputs("of a file", f);
        fflush(f);
        int fd = dup(fileno(f));
        fclose(f);
        http_reply_file(c, "text/plain", fd, strcmp(p, "/file") == 0 ? 9 : 10);
    } else if (strcmp(p, "/endless") == 0) {
        http_reply_file(c, "text/plain", open("/dev/null", O_RDONLY | O_CLOEXEC), 1ull << 50);
    } else if (strcmp(p, "/broken") == 0) {
        http_stream_begin(c, 200, "text/plain", NULL, 0);
        http_stream_put(c, "some", 4);
        http_stream_break(c);
    } else {
        size_t n;
        const char *body = http_body(c, &n);
        http_reply(c, 200, "text/plain", NULL, 0, body, n);
    }
}

/* A call whose body never came whole has no other owner than this function. */
static void on_gone(void *ctx, http_call *c)
{
    room *r = ctx;
    const char *p = http_path(c);
    r->gone++;
    bool threads = strcmp(p, "/stream") == 0 || strcmp(p, "/flood") == 0 ||
                   strcmp(p, "/big") == 0 || strcmp(p, "/late") == 0;
    if (!threads && strcmp(p, "/hold") != 0) http_reply(c, 500, "text/plain", NULL, 0, "", 0);
}

static void open_room(room *r, const http_limits *l)
{
    const http_handler h = {r, on_head, on_call, on_gone};
    memset(r, 0, sizeof *r);
    assert_int_equal(http_open(&r->s, "127.0.0.1", 0, l, &h), CORUN_OK);
}

static void close_room(room *r)
{
    http_close(r->s);
    for (int i = 0; i < r->n_thread; i++) pthread_join(r->thread[i], NULL);
}

static http_limits limits(void)
{
    http_limits l = http_limits_default();
    l.head_s = l.body_s = l.idle_s = l.write_s = 1;
    return l;
}

static int dial(const room *r)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons(http_port(r->s)),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const struct timeval wait = {.tv_sec = 8};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

static void say(int fd, const char *text)
{
    assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
}

/* Reads until `end` is there, or (NULL) to the end of the connection; false: it did not come. */
static bool hear(int fd, char *to, size_t cap, const char *end)
{
    size_t n = 0;
    for (ssize_t k; n < cap - 1; n += (size_t)k) {
        to[n] = 0;
        if (end && strstr(to, end)) return true;
        k = recv(fd, to + n, end ? 1 : cap - 1 - n, 0);
        if (k <= 0) return k == 0 && !end;
    }
    to[n] = 0;
    return end && strstr(to, end);
}

/* One connection: text goes, `want` is to stand in what comes until the server closes. */
static void ask(const room *r, const char *text, const char *want)
{
    char got[8192];
    int fd = dial(r);
    say(fd, text);
    bool whole = hear(fd, got, sizeof got, NULL);
    close(fd);
    if (!whole || !strstr(got, want)) fail_msg("%.60s: no %s in: %s", text, want, got);
}

static void test_replies(void **state)
{
    (void)state;
    room r;
    char got[4096];
    const http_limits l = http_limits_default();
    open_room(&r, &l);
    int fd = dial(&r);
    say(fd, "POST / HTTP/1.1\r\n" HOST "Content-Length: 3\r\n\r\nabc");
    assert_true(hear(fd, got, sizeof got, "Content-Length: 3\r\n\r\nabc"));
    say(fd,
        "HEAD /file HTTP/1.1\r\n" HOST "\r\nGET /file HTTP/1.1\r\n" HOST "\r\n"
        "POST / HTTP/1.1\r\n" HOST "Content-Length: 2\r\n\r\nxyGET /late HTTP/1.1\r\n" HOST "\r\n");
    assert_true(hear(fd, got, sizeof got, "Content-Length: 9\r\n\r\nHTTP/1.1 200"));
    assert_true(hear(fd, got, sizeof got, "\r\n\r\nof a file"));
    assert_true(hear(fd, got, sizeof got, "\r\n\r\nxy"));
    assert_true(hear(fd, got, sizeof got, "\r\n\r\nlate"));
    say(fd, "POST / HTTP/1.1\r\n" HOST "Expect: 100-continue\r\nContent-Length: 2\r\n\r\n");
    assert_true(hear(fd, got, sizeof got, "HTTP/1.1 100 Continue\r\n\r\n"));
    say(fd, "o");
    nap();
    say(fd, "k");
    assert_true(hear(fd, got, sizeof got, "\r\n\r\nok"));
    close(fd);
    close_room(&r);
    assert_int_equal(r.calls, 6);
    assert_int_equal(r.gone, 0);
}

static void test_chunks(void **state)
{
    (void)state;
    static const char head[] = "POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n";
    static const char body[] = "3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\nT: 1\r\n\r\n";
    room r;
    char got[4096], part[64];
    const http_limits l = http_limits_default();
    open_room(&r, &l);
    int fd = dial(&r);
    for (size_t cut = 0; cut < sizeof body; cut++) {
        say(fd, head);
        snprintf(part, sizeof part, "%.*s", (int)cut, body);
        say(fd, part);
        nap();
        say(fd, body + cut);
        assert_true(hear(fd, got, sizeof got, "Content-Length: 13\r\n\r\nabc0123456789"));
    }
    close(fd);
    close_room(&r);
}

static void test_sizes(void **state)
{
    (void)state;
    room r;
    http_limits l = limits();
    l.bodies = 100;
    l.head = 200;
    open_room(&r, &l);
    char head[400] = "GET / HTTP/1.1\r\nA: ";
    memset(head + strlen(head), 'a', 300);
    ask(&r, head, "HTTP/1.1 431 ");
    ask(&r, "POST /small HTTP/1.1\r\n" HOST "Content-Length: 11\r\n\r\n", "HTTP/1.1 413 ");
    ask(&r, "POST /small HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\nB\r\n01234567890",
        "HTTP/1.1 413 ");
    ask(&r, "POST /reader HTTP/1.1\r\n" HOST "Content-Length: 2\r\n\r\nab", "HTTP/1.1 413 ");
    char body[300] = "POST / HTTP/1.1\r\n" HOST "Content-Length: 101\r\n\r\n";
    memset(body + strlen(body), 'b', 101);
    ask(&r, body, "HTTP/1.1 503 ");
    assert_int_equal(r.gone, 4);
    assert_int_equal(r.calls, 0);
    for (int i = 0; i < 5; i++) /* a body counts while its call lives */
        ask(&r,
            "POST / HTTP/1.1\r\n" HOST "Connection: close\r\nContent-Length: 30\r\n\r\n"
            "012345678901234567890123456789",
            "HTTP/1.1 200 ");
    close_room(&r);
}

/* A byte each 100 ms: the limits are those of the whole. */
static void drip(const room *r, const char *begin, const char *want)
{
    char got[4096];
    int fd = dial(r), n = 0;
    say(fd, begin);
    for (; n < 40 && recv(fd, got, 1, MSG_PEEK | MSG_DONTWAIT) < 0; n++) {
        say(fd, "a");
        usleep(100000);
    }
    assert_true(n < 40);
    assert_true(hear(fd, got, sizeof got, NULL));
    if (!strstr(got, want)) fail_msg("%.60s: no %s in: %s", begin, want, got);
    close(fd);
}

static void test_times(void **state)
{
    (void)state;
    room r;
    const http_limits l = limits();
    open_room(&r, &l);
    ask(&r, "GET / HT", "HTTP/1.1 408 ");
    ask(&r, "POST / HTTP/1.1\r\n" HOST "Content-Length: 9\r\n\r\nab", "HTTP/1.1 408 ");
    ask(&r, "GET / HTTP/1.1\r\n" HOST "\r\n", "HTTP/1.1 200 "); /* then idle */
    assert_int_equal(r.gone, 1);
    assert_int_equal(http_stats(r.s).timeouts, 2);
    drip(&r, "GET /", "HTTP/1.1 408 ");
    drip(&r, "POST / HTTP/1.1\r\n" HOST "Content-Length: 90\r\n\r\n", "HTTP/1.1 408 ");
    close_room(&r);
    http_limits any = l; /* however slow, but it goes on */
    any.body_min = 0;
    open_room(&r, &any);
    ask(&r, "POST / HTTP/1.1\r\n" HOST "Content-Length: 9\r\n\r\nab", "HTTP/1.1 408 ");
    close_room(&r);
}

/* A reader that does not read is cut off: by what waits for it, or by time. */
static void test_slow_readers(void **state)
{
    (void)state;
    for (int by_time = 0; by_time < 2; by_time++) {
        room r;
        http_limits l = limits();
        l.unsent = by_time ? (size_t)1 << 30 : 64 << 10;
        l.write_s = by_time ? 1 : 60;
        open_room(&r, &l);
        int fd = dial(&r), small = 4096;
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
        say(fd, "GET /flood HTTP/1.1\r\n" HOST "\r\n");
        for (int i = 0; i < 4000 && !r.cut; i++) nap();
        assert_int_equal(r.cut, 1);
        for (int i = 0; i < 500 && http_stats(r.s).alive; i++) nap();
        assert_int_equal(http_stats(r.s).alive, 0);
        assert_int_equal(http_stats(r.s).cut_off, 1);
        close(fd);
        close_room(&r);
    }
}

/* One that reads is not, however little may wait: for a piece larger than that, for pieces that
 * come faster than the loop looks. */
static void test_large_pieces(void **state)
{
    (void)state;
    static char got[1 << 16];
    room r;
    http_limits l = limits();
    l.unsent = 1;
    open_room(&r, &l);
    int fd = dial(&r);
    say(fd, "GET /big HTTP/1.0\r\n\r\n");
    size_t n = 0;
    for (ssize_t k; (k = recv(fd, got, sizeof got, 0)) > 0;) n += (size_t)k;
    assert_true(n > HUGE_PIECE + N_PIECE && n < HUGE_PIECE + N_PIECE + 500); /* with its head */
    assert_int_equal(http_stats(r.s).cut_off, 0);
    close(fd);
    close_room(&r);
}

static void *run_client(void *arg)
{
    static atomic_int number;
    char text[128], got[16384];
    int n = number++, fd = dial(arg);
    snprintf(text, sizeof text, "GET /stream?n=%d HTTP/1.0\r\n\r\n", n);
    say(fd, text);
    bool ok = hear(fd, got, sizeof got, NULL);
    close(fd);
    const char *p = strstr(got, "\r\n\r\n");
    p = p ? p + 4 : "";
    for (int i = 0; ok && i < 100; i++) {
        snprintf(text, sizeof text, "%d-%d;", n, i);
        ok = strncmp(p, text, strlen(text)) == 0;
        p += ok ? strlen(text) : 0;
    }
    return ok && !*p ? arg : NULL;
}

static void test_streams(void **state)
{
    (void)state;
    room r;
    pthread_t t[STREAMS];
    const http_limits l = http_limits_default();
    open_room(&r, &l);
    for (int i = 0; i < STREAMS; i++) pthread_create(&t[i], NULL, run_client, &r);
    for (int i = 0; i < STREAMS; i++) {
        void *ok;
        pthread_join(t[i], &ok);
        assert_non_null(ok);
    }
    assert_int_equal(r.gone, 0);
    close_room(&r);
}

static http_call *hold(room *r, int fd)
{
    r->held = NULL;
    say(fd, "GET /hold HTTP/1.1\r\n" HOST "\r\n");
    for (int i = 0; i < 1000 && !r->held; i++) nap();
    assert_non_null(r->held);
    return r->held;
}

static void test_gone_drain_close(void **state)
{
    (void)state;
    room r;
    char got[4096];
    http_limits l = http_limits_default();
    l.connections = 2;
    open_room(&r, &l);
    int fd = dial(&r);
    http_call *c = hold(&r, fd);
    close(fd);
    for (int i = 0; i < 1000 && !r.gone; i++) nap();
    assert_true(http_is_gone(c));
    assert_false(http_stream_put(c, "x", 1));
    http_reply(c, 200, "text/plain", NULL, 0, "x", 1);

    int one = dial(&r), two = dial(&r);
    http_call *first = hold(&r, one), *second = hold(&r, two);
    ask(&r, "", "HTTP/1.1 503 "); /* the third connection */
    assert_int_equal(http_stats(r.s).refused, 1);
    http_drain(r.s);
    http_reply(first, 200, "text/plain", NULL, 0, "done", 4);
    assert_true(hear(one, got, sizeof got, NULL));
    assert_non_null(strstr(got, "Connection: close\r\n"));
    assert_non_null(strstr(got, "\r\n\r\ndone"));
    assert_int_equal(r.gone, 1);
    close_room(&r);
    assert_int_equal(r.gone, 2);
    assert_true(http_is_gone(second));
    http_reply(second, 200, "text/plain", NULL, 0, "x", 1); /* after the server's end */
    close(one);
    close(two);
}

/* ---- one client does not cost the others ----------------------------------------------------- */

static void test_turns(void **state)
{
    (void)state;
    room r;
    const http_limits l = http_limits_default();
    open_room(&r, &l);
    int fd = dial(&r);
    endless = true;
    say(fd, "GET /endless HTTP/1.1\r\n" HOST "\r\n");
    for (int i = 0; i < 1000 && !r.calls; i++) nap();
    for (int i = 0; i < 20; i++)
        ask(&r, "GET / HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n", "HTTP/1.1 200 ");
    endless = false;
    close(fd);
    close_room(&r);
}

/* Requests ahead of their time do not hide that their client goes. */
static void test_ahead(void **state)
{
    (void)state;
    enum { MUCH = 100000 };
    static char ahead[MUCH + 1], got[4096];
    room r;
    const http_limits l = http_limits_default();
    memset(ahead, 'x', MUCH);
    open_room(&r, &l);
    for (int i = 0; i < 2; i++) {
        int fd = dial(&r), n = r.gone;
        http_call *c = hold(&r, fd);
        say(fd, ahead);
        if (i == 1) { /* more than the server's system buffers */
            fcntl(fd, F_SETFL, O_NONBLOCK);
            for (int k = 0; k < 200; k++)
                if (send(fd, ahead, MUCH, MSG_NOSIGNAL) < 0 && errno != EAGAIN) break;
        }
        close(fd);
        for (int k = 0; k < 1000 && r.gone == n; k++) nap();
        assert_int_equal(r.gone, n + 1);
        http_reply(c, 200, "text/plain", NULL, 0, "x", 1);
    }
    int fd = dial(&r); /* it stays: the reply comes, and is the last one */
    http_call *c = hold(&r, fd);
    say(fd, ahead);
    usleep(50000);
    http_reply(c, 200, "text/plain", NULL, 0, "answer", 6);
    assert_true(hear(fd, got, sizeof got, NULL));
    assert_non_null(strstr(got, "Connection: close\r\n"));
    assert_non_null(strstr(got, "\r\n\r\nanswer"));
    close(fd);
    close_room(&r);
}

/* A reader that takes its time holds up its own connection only, and loses nothing. */
static void test_body_waits(void **state)
{
    (void)state;
    room r;
    char got[4096];
    const http_limits l = limits(); /* a second for a body */
    open_room(&r, &l);
    for (int chunked = 0; chunked < 2; chunked++) {
        int fd = dial(&r);
        held_bytes = 0;
        say(fd, chunked ? "POST /later HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n"
                        : "POST /later HTTP/1.1\r\n" HOST "Content-Length: 256\r\n\r\n");
        for (int i = 0; i < 256;) {
            unsigned char piece[64];
            int n = 1 + i % 63;
            if (i + n > 256) n = 256 - i;
            for (int k = 0; k < n; k++) piece[k] = (unsigned char)(i + k);
            char frame[16];
            snprintf(frame, sizeof frame, "%x\r\n", n);
            if (chunked) say(fd, frame);
            assert_int_equal(send(fd, piece, (size_t)n, MSG_NOSIGNAL), n);
            if (chunked) say(fd, "\r\n");
            i += n;
        }
        if (chunked) say(fd, "0\r\n\r\n");
        say(fd, "GET / HTTP/1.1\r\n" HOST "\r\n"); /* the next request comes after it */
        assert_true(hear(fd, got, sizeof got, "Content-Length: 0\r\n\r\n"));
        assert_int_equal(held_bytes, 256);
        assert_true(hear(fd, got, sizeof got, "Content-Length: 0\r\n\r\n"));
        close(fd);
    }
    pause_ms = 2500; /* longer than the limits of time; others are served meanwhile */
    held_bytes = 0;
    int fd = dial(&r);
    say(fd, "POST /later HTTP/1.1\r\n" HOST "Content-Length: 1\r\n\r\n");
    assert_int_equal(send(fd, "", 1, MSG_NOSIGNAL), 1);
    while (held_bytes == 0) nap();
    int calls = r.calls;
    ask(&r, "GET / HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n", "HTTP/1.1 200 ");
    assert_int_equal(r.calls, calls + 1);
    assert_true(hear(fd, got, sizeof got, "Content-Length: 0\r\n\r\n"));
    close(fd);
    pause_ms = 300; /* a client that goes: seen when the reader goes on */
    held_bytes = 0;
    fd = dial(&r);
    say(fd, "POST /later HTTP/1.1\r\n" HOST "Content-Length: 9\r\n\r\n");
    assert_int_equal(send(fd, "", 1, MSG_NOSIGNAL), 1);
    while (held_bytes == 0) nap();
    close(fd);
    for (int i = 0; i < 1000 && !r.gone; i++) nap();
    assert_int_equal(r.gone, 1);
    assert_int_equal(http_stats(r.s).timeouts, 0);
    pause_ms = 5;
    close_room(&r);
}

/* ---- a reply is whole, or its end is missing ------------------------------------------------- */

/* The body of a reply that was sent whole, or NULL. */
static const char *body_of(const char *got, char *to)
{
    const char *p = strstr(got, "\r\n\r\n"), *length = strstr(got, "Content-Length: ");
    if (!p) return NULL;
    p += 4;
    if (length) return strlen(p) == strtoul(length + 16, NULL, 10) ? strcpy(to, p) : NULL;
    for (*to = 0;;) { /* chunks */
        char *end;
        size_t n = strtoul(p, &end, 16);
        if (end == p || strncmp(end, "\r\n", 2) != 0) return NULL;
        if (n == 0) return strcmp(end, "\r\n\r\n") == 0 ? to : NULL;
        if (strlen(end) < n + 4) return NULL;
        strncat(to, end + 2, n);
        p = end + 4 + n;
    }
}

static void test_broken(void **state)
{
    (void)state;
    static char got[4096], body[4096];
    room r;
    const http_limits l = http_limits_default();
    open_room(&r, &l);
    static const char *const path[] = {"/broken", "/short"};
    for (int i = 0; i < 2; i++) {
        char text[64];
        int fd = dial(&r);
        snprintf(text, sizeof text, "GET %s HTTP/1.1\r\n" HOST "\r\n", path[i]);
        say(fd, text);
        assert_true(hear(fd, got, sizeof got, NULL)); /* the connection ends */
        assert_null(body_of(got, body));
        close(fd);
    }
    close_room(&r);
    assert_int_equal(r.gone, 0);
}

static void test_no_memory(void **state)
{
    (void)state;
    enum { BIG = 20000 };
    static char text[2 * BIG], stream[8192], big[BIG + 1], got[4 * BIG], body[4 * BIG];
    int cut = 0, whole = 0;
    memset(big, 'b', BIG);
    for (int i = 0; i < 100; i++) sprintf(stream + strlen(stream), "7-%d;", i);
    const char *const want[] = {big, stream, "of a file", "late"};
    const char *const path[] = {"/", "/stream?n=7", "/file", "/late"};
    for (int k = 1; k < 24; k++)
        for (int i = 0; i < 4; i++) {
            room r;
            const http_limits l = http_limits_default();
            open_room(&r, &l);
            int fd = dial(&r);
            say(fd, "GET / HTTP/1.1\r\n" HOST "\r\n");
            assert_true(hear(fd, got, sizeof got, "Content-Length: 0\r\n\r\n"));
            snprintf(text, sizeof text, "POST %s HTTP/1.1\r\n" HOST "Content-Length: %zu\r\n\r\n%s",
                     path[i], i ? (size_t)0 : strlen(big), i ? "" : big);
            fails_in = k;
            say(fd, text);
            const char *b = NULL;
            ssize_t n = 0, more = 1;
            for (*got = 0; !(b = body_of(got, body)) && more > 0; n += more) {
                more = recv(fd, got + n, sizeof got - 1 - (size_t)n, 0);
                if (more < 0) assert_int_not_equal(errno, EAGAIN); /* else the connection ends */
                got[n + (more > 0 ? more : 0)] = 0;
            }
            fails_in = 0;
            if (b) assert_string_equal(b, want[i]);
            whole += b != NULL;
            cut += b == NULL;
            close(fd);
            ask(&r, "GET / HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n", "HTTP/1.1 200 ");
            close_room(&r);
        }
    assert_true(cut > 3 && whole > 30);
}

/* A reply that comes before the client has sent all is read by it none the less. */
static void test_early_reply(void **state)
{
    (void)state;
    enum { MUCH = 1 << 20 };
    static char body[MUCH + 1], got[4096];
    room r;
    const http_limits l = http_limits_default();
    open_room(&r, &l);
    memset(body, 'b', MUCH);
    int fd = dial(&r);
    say(fd, "POST /small HTTP/1.1\r\n" HOST "Content-Length: 1048576\r\n\r\n");
    say(fd, body);
    usleep(100000);
    say(fd, "more"); /* still taken */
    assert_true(hear(fd, got, sizeof got, NULL));
    assert_non_null(strstr(got, "HTTP/1.1 413 "));
    close(fd);
    close_room(&r);
}

static void test_drain_ends_idle_connections(void **state)
{
    (void)state;
    room r;
    char got[4096];
    const http_limits l = http_limits_default();
    open_room(&r, &l);
    int fd[2] = {dial(&r), dial(&r)};
    say(fd[0], "GET / HTTP/1.1\r\n" HOST "\r\n");
    assert_true(hear(fd[0], got, sizeof got, "Content-Length: 0\r\n\r\n"));
    while (http_stats(r.s).open < 2) nap();
    http_drain(r.s);
    for (int i = 0; i < 2; i++) {
        assert_true(hear(fd[i], got, sizeof got, NULL));
        close(fd[i]);
    }
    close_room(&r);
}

static int descriptors(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

static int at_start;

static int count_start(void **state)
{
    (void)state;
    at_start = descriptors();
    return 0;
}

static int count_end(void **state)
{
    (void)state;
    return descriptors() == at_start ? 0 : -1;
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, count_start, count_end)
    const struct CMUnitTest tests[] = {
        T(test_replies),      T(test_chunks),
        T(test_sizes),        T(test_times),
        T(test_slow_readers), T(test_large_pieces),
        T(test_streams),      T(test_gone_drain_close),
        T(test_early_reply),  T(test_drain_ends_idle_connections),
        T(test_turns),        T(test_body_waits),
        T(test_ahead),        T(test_broken),
        T(test_no_memory),
    };
    event_set_mem_functions(get, get_more, free);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
