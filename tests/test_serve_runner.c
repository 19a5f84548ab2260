/* test_serve_runner.c - stored batches over the fake model: their file is the one that `corun
 * batch` writes, through stops, full disks and cancels; what else ends a batch. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>
#include <sqlite3.h>

#include "app/serve_runner.h"
#include "base/json.h"

#define OK(call)                                                                                   \
    do {                                                                                           \
        if ((call) != CORUN_OK) fail_msg("%s: %s", #call, err_text());                             \
    } while (0)

typedef struct bench {
    char folder[64], in[96], out[96], db[96];
    cmd_session session;
    store *s;
    service *v;
    runner *r;
} bench;

static void start(bench *b)
{
    cmd_engine_args a;
    cmd_engine_args_init(&a);
    a.model = "fake:phase";
    a.threads = 1;
    OK(cmd_open(&b->session, &a, true));
    const service_opts o = {.queue = 16, .window = 64, .slots = (size_t)a.slots, .threads = 1};
    OK(service_open(&b->v, &b->session, &o));
    OK(store_open(&b->s, b->folder));
    OK(runner_start(&b->r, b->s, b->v, &b->session, (size_t)a.slots));
}

static void stop(bench *b)
{
    runner_stop(b->r);
    runner_stop(b->r); /* nothing */
    service_stop(b->v, 0);
    service_close(b->v);
    runner_close(b->r);
    store_close(b->s);
    cmd_close(&b->session);
}

static void begin(bench *b)
{
    strcpy(b->folder, "/tmp/corun-runner-XXXXXX");
    assert_non_null(mkdtemp(b->folder));
    snprintf(b->in, sizeof b->in, "%s/in", b->folder);
    snprintf(b->out, sizeof b->out, "%s/out", b->folder);
    snprintf(b->db, sizeof b->db, "%s/corun.db", b->folder);
    start(b);
}

static void end(bench *b)
{
    char cmd[96];
    stop(b);
    snprintf(cmd, sizeof cmd, "rm -r %s", b->folder);
    assert_int_equal(system(cmd), 0);
}

static void nap(void) { nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL); }

static void add_text(bench *b, const char *text, size_t len, const char *endpoint, store_batch *out)
{
    store_draft *d;
    store_file f;
    bool found;
    OK(store_draft_open(b->s, &d));
    OK(store_draft_put(d, text, len));
    OK(store_file_add(b->s, d, "in.jsonl", "batch", &f));
    *out = (store_batch){0};
    snprintf(out->endpoint, sizeof out->endpoint, "%s", endpoint);
    snprintf(out->input, sizeof out->input, "%s", f.id);
    OK(store_batch_add(b->s, out, "batch", &found));
    assert_true(found);
    runner_wake(b->r);
    store_file_free(&f);
}

/* Lines with all that a file can hold: good ones, equal ids, blank and broken ones. */
static void make_lines(buf *t, unsigned n, int tokens)
{
    buf_init(t, 1 << 24);
    for (unsigned i = 0; i < n; i++) {
        if (i % 50 == 7) buf_puts(t, "  \r\n\n");
        if (i % 50 == 9) buf_puts(t, "no JSON\n");
        buf_printf(t,
                   "{\"custom_id\":\"%s%u\",\"method\":\"POST\",\"url\":\"/v1/completions\","
                   "\"body\":{\"model\":\"m\",\"prompt\":[1,2,%u],\"max_tokens\":%d%s}}%s",
                   i % 40 == 3 ? "same" : "r", i % 40 == 3 ? 0 : i, 3 + i % 90, tokens,
                   i % 30 == 4 ? ",\"temperature\":9" : "", i + 1 < n ? "\n" : "");
    }
    OK(buf_status(t));
}

/* What `corun batch` writes for these lines. */
static void expected(bench *b, const buf *lines, buf *out)
{
    FILE *f = fopen(b->in, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(lines->data, 1, lines->len, f), lines->len);
    fclose(f);
    char *argv[] = {"-q", "-m", "fake:phase", "-i", b->in, "-o", b->out, NULL};
    assert_int_equal(cmd_batch(7, argv), CMD_OK);
    buf_init(out, 1 << 28);
    OK(file_read(out, b->out, 1 << 28));
}

static void content(bench *b, const char *id, buf *out)
{
    buf path;
    buf_init(&path, 1 << 16);
    OK(store_file_path(b->s, id, &path));
    buf_init(out, 1 << 28);
    OK(file_read(out, path.data, 1 << 28));
    buf_free(&path);
}

static void look(bench *b, const char *id, store_batch *out)
{
    bool found;
    store_batch_free(out);
    OK(store_batch_get(b->s, id, out, &found));
    assert_true(found);
}

static bool is_end(store_status s)
{
    return s == STORE_COMPLETED || s == STORE_FAILED || s == STORE_CANCELLED;
}

static void wait_end(bench *b, const char *id, store_batch *out)
{
    look(b, id, out);
    while (!is_end(out->status)) {
        nap();
        look(b, id, out);
    }
}

static void check_output(bench *b, const store_batch *x, const buf *want)
{
    buf got, bad, rows;
    content(b, x->output, &got);
    assert_int_equal(got.len, want->len);
    assert_memory_equal(got.data, want->data, want->len);
    content(b, x->error, &bad);
    /* the error file: those rows of it whose status is not 200, in their order */
    buf_init(&rows, 1 << 28);
    uint64_t n[2] = {0};
    for (const char *p = got.data, *lf; p < got.data + got.len; p = lf + 1) {
        lf = memchr(p, '\n', (size_t)(got.data + got.len - p));
        json_t *row;
        OK(json_read(&row, p, (size_t)(lf - p), "row"));
        json_t *response = json_object_get(row, "response");
        bool ok = json_integer_value(json_object_get(response, "status_code")) == 200;
        n[ok]++;
        if (!ok) buf_put(&rows, p, (size_t)(lf + 1 - p));
        json_decref(row);
    }
    assert_int_equal(x->completed, n[1]);
    assert_int_equal(x->failed, n[0]);
    assert_int_equal(x->total, n[0] + n[1]);
    assert_int_equal(rows.len, bad.len);
    assert_memory_equal(rows.data, bad.data, bad.len);
    buf_free(&got);
    buf_free(&bad);
    buf_free(&rows);
}

static void test_same_bytes(void **state)
{
    (void)state;
    bench b;
    buf lines, want;
    store_batch x, got = {0};
    begin(&b);
    make_lines(&lines, 400, 12);
    expected(&b, &lines, &want);
    add_text(&b, lines.data, lines.len, "/v1/completions", &x);
    wait_end(&b, x.id, &got);
    assert_int_equal(got.status, STORE_COMPLETED);
    assert_null(got.errors);
    for (int i = 0; i <= STORE_COMPLETED; i++) assert_true(got.at[i] > 0);
    check_output(&b, &got, &want);
    store_batch_free(&got);
    buf_free(&lines);
    buf_free(&want);
    end(&b);
}

/* The server ends again and again; what is missing is run by the next one. */
static void test_resumed(void **state)
{
    (void)state;
    bench b;
    buf lines, want;
    store_batch x, got = {0};
    uint64_t rows = 0;
    unsigned between = 0;
    begin(&b);
    make_lines(&lines, 2500, 60);
    expected(&b, &lines, &want);
    add_text(&b, lines.data, lines.len, "/v1/completions", &x);
    for (int i = 0; i < 6; i++) {
        do {
            nap();
            look(&b, x.id, &got);
        } while (!is_end(got.status) && got.completed + got.failed < rows + 200);
        between += got.status == STORE_IN_PROGRESS;
        stop(&b);
        start(&b);
        look(&b, x.id, &got);
        rows = got.completed + got.failed;
    }
    assert_true(between >= 2);
    wait_end(&b, x.id, &got);
    assert_int_equal(got.status, STORE_COMPLETED);
    check_output(&b, &got, &want);
    store_batch_free(&got);
    buf_free(&lines);
    buf_free(&want);
    end(&b);
}

static void test_cancelled(void **state)
{
    (void)state;
    bench b;
    buf lines, want, part;
    store_batch x, y, z, got = {0}, other = {0};
    bool found;
    begin(&b);
    make_lines(&lines, 2500, 60);
    expected(&b, &lines, &want);
    add_text(&b, lines.data, lines.len, "/v1/completions", &x);
    add_text(&b, lines.data, lines.len, "/v1/completions", &y); /* waits behind it */
    do {
        nap();
        look(&b, x.id, &got);
    } while (got.completed == 0);
    OK(store_batch_cancel(b.s, y.id, &other, &found));
    runner_wake(b.r);
    wait_end(&b, y.id, &other); /* while the first one runs */
    assert_int_equal(other.status, STORE_CANCELLED);
    assert_string_equal(other.output, "");
    look(&b, x.id, &got);
    assert_int_equal(got.status, STORE_IN_PROGRESS);
    store_batch_free(&got);
    OK(store_batch_cancel(b.s, x.id, &got, &found));
    assert_int_equal(got.status, STORE_CANCELLING);
    runner_wake(b.r);
    wait_end(&b, x.id, &got);
    assert_int_equal(got.status, STORE_CANCELLED);
    assert_true(got.completed + got.failed < got.total);
    /* what was finished is there, in order, and right */
    content(&b, got.output, &part);
    assert_true(part.len > 0);
    const char *at = want.data;
    for (const char *p = part.data, *lf; p < part.data + part.len; p = lf + 1) {
        lf = memchr(p, '\n', (size_t)(part.data + part.len - p));
        at = memmem(at, (size_t)(want.data + want.len - at), p, (size_t)(lf + 1 - p));
        assert_non_null(at);
        at += lf + 1 - p;
    }
    stop(&b);
    start(&b); /* stays as it is */
    add_text(&b, "{}", 2, "/v1/completions", &z);
    wait_end(&b, z.id, &other);
    assert_int_equal(other.status, STORE_COMPLETED);
    look(&b, x.id, &got);
    assert_int_equal(got.status, STORE_CANCELLED);
    store_batch_free(&got);
    store_batch_free(&other);
    buf_free(&lines);
    buf_free(&want);
    buf_free(&part);
    end(&b);
}

static void fails(bench *b, const char *text, size_t len, const char *endpoint, const char *why)
{
    store_batch x, got = {0};
    add_text(b, text, len, endpoint, &x);
    wait_end(b, x.id, &got);
    assert_int_equal(got.status, STORE_FAILED);
    assert_string_equal(got.output, "");
    if (!strstr(got.errors, why)) fail_msg("%s: %s", why, got.errors);
    store_batch_free(&got);
}

static void test_failed(void **state)
{
    (void)state;
    bench b;
    buf lines;
    begin(&b);
    fails(&b, "", 0, "/v1/completions", "\"empty_file\"");
    fails(&b, "\n \n\r\n", 5, "/v1/completions", "\"empty_file\"");
    fails(&b, "\x1f\x8b\x08", 3, "/v1/completions", "\"invalid_file\"");
    static const char one[] = "{}\n{\"url\":\"/v1/completions\"}\n{\"url\":7}\n{\"url\":\"/x\"}";
    fails(&b, one, sizeof one - 1, "/v1/chat/completions",
          "[{\"code\":\"mismatched_endpoint\",\"message\":\"the line's url is /v1/completions, "
          "the batch's endpoint /v1/chat/completions\",\"param\":\"url\",\"line\":2}]");
    make_lines(&lines, 100, 1);
    fails(&b, lines.data, lines.len, "/v1/chat/completions",
          "\"too_many_errors\",\"message\":\"there are 100 errors, the first 20 are listed\"");
    buf_free(&lines);
    end(&b);
}

/* The batch goes on under a server with another identity: no row of it joins the others. */
static void test_other_identity(void **state)
{
    (void)state;
    bench b;
    buf lines, part;
    store_batch x, got = {0};
    sqlite3 *db;
    begin(&b);
    make_lines(&lines, 2500, 60);
    add_text(&b, lines.data, lines.len, "/v1/completions", &x);
    do {
        nap();
        look(&b, x.id, &got);
    } while (got.completed == 0);
    stop(&b);
    assert_int_equal(sqlite3_open(b.db, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db,
                                  "UPDATE batches SET facts = json_set(facts, '$.identity', 'abc',"
                                  " '$.numeric.policy', 'other')",
                                  NULL, NULL, NULL),
                     SQLITE_OK);
    sqlite3_close(db);
    start(&b);
    wait_end(&b, x.id, &got);
    assert_int_equal(got.status, STORE_FAILED);
    assert_non_null(strstr(got.errors, "server_changed"));
    assert_non_null(strstr(got.errors, "identity: then \\\"abc\\\", now \\\""));
    assert_non_null(strstr(got.errors, "numeric.policy: then \\\"other\\\", now \\\""));
    content(&b, got.output, &part); /* the rows of then */
    uint64_t n = 0;
    for (size_t i = 0; i < part.len; i++) n += part.data[i] == '\n';
    assert_int_equal(n, got.completed + got.failed);
    buf_free(&part);
    buf_free(&lines);
    store_batch_free(&got);
    end(&b);
}

static void spoil(bench *b, const store_batch *x, const char *how)
{
    buf cmd, path;
    buf_init(&path, 1 << 16);
    buf_init(&cmd, 1 << 16);
    OK(store_file_path(b->s, x->input, &path));
    buf_printf(&cmd, "f=%s; %s", path.data, how);
    assert_int_equal(system(cmd.data), 0);
    buf_free(&path);
    buf_free(&cmd);
}

static void check_unreadable(bench *b, const store_batch *x, store_batch *got)
{
    wait_end(b, x->id, got);
    assert_int_equal(got->status, STORE_FAILED);
    if (!strstr(got->errors, "[{\"code\":\"unreadable_file\"")) fail_msg("%s", got->errors);
    if (!strstr(got->errors, x->input)) fail_msg("%s", got->errors);
}

/* A file that cannot be read ends its own batch, before or while it runs; the next one goes on. */
static void test_unreadable(void **state)
{
    (void)state;
    static const char *const how[] = {"rm $f", "truncate -s 5 $f", "rm $f && mkdir $f"};
    bench b;
    buf lines, part;
    store_batch x, y, z, got = {0};
    bool found;
    uint64_t n = 0;
    begin(&b);
    make_lines(&lines, 2500, 60);
    for (int i = 0; i < 3; i++) {
        add_text(&b, lines.data, lines.len, "/v1/completions", &z);
        add_text(&b, lines.data, lines.len, "/v1/completions", &x); /* waits behind it */
        add_text(&b, "{}", 2, "/v1/completions", &y);
        spoil(&b, &x, how[i]);
        store_batch_free(&got);
        OK(store_batch_cancel(b.s, z.id, &got, &found));
        runner_wake(b.r);
        check_unreadable(&b, &x, &got);
        assert_string_equal(got.output, "");
        wait_end(&b, y.id, &got);
        assert_int_equal(got.status, STORE_COMPLETED);
    }
    add_text(&b, lines.data, lines.len, "/v1/completions", &x);
    add_text(&b, "{}", 2, "/v1/completions", &y);
    do {
        nap();
        look(&b, x.id, &got);
    } while (got.completed < 200);
    stop(&b);
    OK(store_open(&b.s, b.folder));
    spoil(&b, &x, how[0]);
    store_close(b.s);
    start(&b);
    check_unreadable(&b, &x, &got);
    content(&b, got.output, &part); /* the rows of before, the error rows too */
    for (size_t i = 0; i < part.len; i++) n += part.data[i] == '\n';
    assert_int_equal(n, got.completed + got.failed);
    assert_true(got.failed && *got.error);
    wait_end(&b, y.id, &got);
    assert_int_equal(got.status, STORE_COMPLETED);
    store_batch_free(&got);
    buf_free(&part);
    buf_free(&lines);
    end(&b);
}

/* Memory that runs short anywhere: no row says so. The batch is tried again, or goes on under the
 * next server where the engine has failed. */
static void test_no_memory(void **state)
{
    (void)state;
    bench b;
    buf lines, want;
    int again = 0;
    begin(&b);
    make_lines(&lines, 60, 12);
    expected(&b, &lines, &want);
    for (uint64_t k = 1; k < 4000; k += 1 + k / 9) {
        store_batch x, got = {0};
        bool found;
        add_text(&b, lines.data, lines.len, "/v1/completions", &x);
        mem_fail_at(k);
        while (!is_end(got.status)) {
            char why[512];
            if (service_failure(b.v)) {
                mem_fail_at(0);
                stop(&b);
                start(&b);
                again++;
            }
            if (runner_trouble(b.r, x.seq, why, sizeof why)) {
                again++;
                runner_wake(b.r); /* not in two seconds */
            }
            nap();
            store_batch_free(&got);
            if (store_batch_get(b.s, x.id, &got, &found) != CORUN_OK) again++;
        }
        mem_fail_at(0);
        assert_int_equal(got.status, STORE_COMPLETED);
        check_output(&b, &got, &want);
        store_batch_free(&got);
    }
    assert_true(again > 5);
    buf_free(&lines);
    buf_free(&want);
    end(&b);
}

/* No room for rows: the batch waits and says why, and goes on when there is room. */
static void test_no_room(void **state)
{
    (void)state;
    bench b;
    buf lines, want;
    store_batch x, got = {0};
    struct rlimit was, tight;
    char why[512];
    signal(SIGXFSZ, SIG_IGN);
    begin(&b);
    make_lines(&lines, 400, 12);
    expected(&b, &lines, &want);
    add_text(&b, lines.data, lines.len, "/v1/completions", &x);
    do {
        nap();
        look(&b, x.id, &got);
    } while (got.status == STORE_VALIDATING);
    getrlimit(RLIMIT_FSIZE, &was);
    tight = was;
    tight.rlim_cur = 1000;
    setrlimit(RLIMIT_FSIZE, &tight);
    while (!runner_trouble(b.r, x.seq, why, sizeof why)) {
        nap();
        look(&b, x.id, &got);
        if (is_end(got.status)) fail_msg("ended before");
    }
    assert_non_null(strstr(why, "no room on the disk"));
    assert_false(runner_trouble(b.r, x.seq + 1, why, sizeof why));
    look(&b, x.id, &got);
    assert_int_equal(got.status, STORE_IN_PROGRESS);
    setrlimit(RLIMIT_FSIZE, &was);
    wait_end(&b, x.id, &got);
    assert_int_equal(got.status, STORE_COMPLETED);
    assert_false(runner_trouble(b.r, x.seq, why, sizeof why));
    check_output(&b, &got, &want);
    store_batch_free(&got);
    buf_free(&lines);
    buf_free(&want);
    end(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bytes),     cmocka_unit_test(test_resumed),
        cmocka_unit_test(test_cancelled),      cmocka_unit_test(test_failed),
        cmocka_unit_test(test_other_identity), cmocka_unit_test(test_unreadable),
        cmocka_unit_test(test_no_memory),      cmocka_unit_test(test_no_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
