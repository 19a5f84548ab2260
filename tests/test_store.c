/* test_store.c - the state folder: what is kept over a restart, what is refused, what a full disk
 * leaves. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <sqlite3.h>

#include "app/store.h"

#define OK(call)                                                                                   \
    do {                                                                                           \
        if ((call) != CORUN_OK) fail_msg("%s: %s", #call, err_text());                             \
    } while (0)

typedef struct at {
    char folder[64], db[96];
    store *s;
} at;

static void begin(at *a)
{
    strcpy(a->folder, "/tmp/corun-store-XXXXXX");
    assert_non_null(mkdtemp(a->folder));
    strcat(a->folder, "/deep/er");
    snprintf(a->db, sizeof a->db, "%s/corun.db", a->folder);
    OK(store_open(&a->s, a->folder));
}

static void again(at *a)
{
    store_close(a->s);
    a->s = NULL;
    OK(store_open(&a->s, a->folder));
}

static void end(at *a)
{
    char cmd[128];
    store_close(a->s);
    a->folder[strlen(a->folder) - strlen("/deep/er")] = 0;
    snprintf(cmd, sizeof cmd, "rm -r %s", a->folder);
    assert_int_equal(system(cmd), 0);
}

static void sql(const at *a, const char *text)
{
    sqlite3 *db;
    assert_int_equal(sqlite3_open(a->db, &db), SQLITE_OK);
    if (sqlite3_exec(db, text, NULL, NULL, NULL) != SQLITE_OK)
        fail_msg("%s: %s", text, sqlite3_errmsg(db));
    sqlite3_close(db);
}

static int contents(const at *a)
{
    char cmd[128];
    int n = -1;
    snprintf(cmd, sizeof cmd, "ls -A %s/files | wc -l", a->folder);
    FILE *p = popen(cmd, "r");
    assert_int_equal(fscanf(p, "%d", &n), 1);
    pclose(p);
    return n;
}

static void add_file(at *a, const char *text, const char *purpose, store_file *f)
{
    store_draft *d;
    OK(store_draft_open(a->s, &d));
    OK(store_draft_put(d, text, strlen(text)));
    OK(store_file_add(a->s, d, "in.jsonl", purpose, f));
    store_file_free(f);
}

static void expect_content(at *a, const char *id, const char *want)
{
    int fd;
    uint64_t bytes;
    bool found;
    char text[4096];
    OK(store_file_open(a->s, id, &fd, &bytes, &found));
    assert_true(found);
    assert_int_equal(bytes, strlen(want));
    assert_int_equal(read(fd, text, sizeof text), (ssize_t)bytes);
    assert_memory_equal(text, want, bytes);
    close(fd);
}

static void test_files(void **state)
{
    (void)state;
    at a;
    store_file f[3], got;
    bool found;
    int fd;
    uint64_t bytes;
    char reader[STORE_ID];
    begin(&a);
    add_file(&a, "one", "batch", &f[0]);
    add_file(&a, "", "batch", &f[1]);
    add_file(&a, "three", "batch_output", &f[2]);
    assert_memory_equal(f[0].id, "file-", 5);
    assert_int_equal(strlen(f[0].id), 37);
    store_draft *d;
    OK(store_draft_open(a.s, &d)); /* given up */
    OK(store_draft_put(d, "half", 4));
    assert_int_equal(contents(&a), 4);
    store_draft_drop(d);
    assert_int_equal(contents(&a), 3);
    again(&a);
    expect_content(&a, f[0].id, "one");
    expect_content(&a, f[1].id, "");
    OK(store_file_get(a.s, f[2].id, &got, &found));
    assert_true(found);
    assert_string_equal(got.filename, "in.jsonl");
    assert_string_equal(got.purpose, "batch_output");
    assert_int_equal(got.bytes, 5);
    assert_true(got.created_at > 1600000000);
    store_file_free(&got);
    OK(store_file_get(a.s, "file-x", &got, &found));
    assert_false(found);
    OK(store_file_delete(a.s, f[0].id, &found, reader));
    assert_true(found);
    assert_string_equal(reader, "");
    OK(store_file_delete(a.s, f[0].id, &found, reader));
    assert_false(found);
    OK(store_file_open(a.s, f[0].id, &fd, &bytes, &found));
    assert_false(found);
    assert_int_equal(contents(&a), 2);
    end(&a);
}

static void test_file_lists(void **state)
{
    (void)state;
    at a;
    store_file f[5], *list;
    size_t n;
    bool more, found;
    begin(&a);
    for (int i = 0; i < 5; i++) add_file(&a, "x", i % 2 ? "batch_output" : "batch", &f[i]);
    OK(store_file_list(a.s, &(store_page){.limit = 3, .newest_first = true}, NULL, &list, &n, &more,
                       &found));
    assert_int_equal(n, 3);
    assert_true(more && found);
    assert_string_equal(list[0].id, f[4].id);
    assert_string_equal(list[2].id, f[2].id);
    store_file_list_free(list, n);
    OK(store_file_list(a.s, &(store_page){f[2].id, true, 2}, NULL, &list, &n, &more, &found));
    assert_int_equal(n, 2);
    assert_false(more);
    assert_string_equal(list[1].id, f[0].id);
    store_file_list_free(list, n);
    OK(store_file_list(a.s, &(store_page){f[0].id, false, 9}, "batch", &list, &n, &more, &found));
    assert_int_equal(n, 2);
    assert_false(more);
    assert_string_equal(list[0].id, f[2].id);
    assert_string_equal(list[1].id, f[4].id);
    store_file_list_free(list, n);
    OK(store_file_list(a.s, &(store_page){"file-none", false, 9}, NULL, &list, &n, &more, &found));
    assert_false(found);
    assert_int_equal(n, 0);
    store_file_list_free(list, n);
    end(&a);
}

/* ---- batches --------------------------------------------------------------------------------- */

static void add_batch(at *a, const char *input, store_batch *b)
{
    bool found;
    *b = (store_batch){.endpoint = "/v1/completions", .metadata = "{\"a\":\"b\"}"};
    snprintf(b->input, sizeof b->input, "%s", input);
    OK(store_batch_add(a->s, b, "batch", &found));
    b->metadata = NULL;
    assert_true(found);
    assert_memory_equal(b->id, "batch_", 6);
}

static store_status status_of(at *a, const char *id, store_batch *out)
{
    bool found;
    store_batch_free(out);
    OK(store_batch_get(a->s, id, out, &found));
    assert_true(found);
    return out->status;
}

static void add_rows(at *a, uint64_t seq, uint64_t from, uint64_t n)
{
    char text[8][32];
    store_row r[8];
    assert_true(n <= 8);
    for (uint64_t i = 0; i < n; i++) {
        int len = snprintf(text[i], 32, "row %llu\n", (unsigned long long)(from + i));
        r[i] =
            (store_row){from + i, from + i + 1, (from + i) % 3 ? 200 : 400, text[i], (size_t)len};
    }
    OK(store_rows_add(a->s, seq, r, n));
}

static corun_status put_row(void *ctx, const store_row *r)
{
    assert_int_equal(r->line_no, r->index + 1);
    assert_int_equal(r->http, r->index % 3 ? 200 : 400);
    return store_draft_put(ctx, r->data, r->len);
}

static store_draft *all_rows(at *a, uint64_t seq)
{
    store_draft *d;
    uint64_t from = 0;
    size_t n;
    OK(store_draft_open(a->s, &d));
    do OK(store_rows_read(a->s, seq, &from, put_row, d, &n));
    while (n);
    return d;
}

static void test_batch(void **state)
{
    (void)state;
    at a;
    store_file f;
    store_batch b, got = {0};
    bool found, moved;
    char reader[STORE_ID];
    begin(&a);
    add_file(&a, "{}\n", "batch", &f);
    add_batch(&a, f.id, &b);
    assert_int_equal(status_of(&a, b.id, &got), STORE_VALIDATING);
    assert_string_equal(got.metadata, "{\"a\":\"b\"}");
    assert_string_equal(got.endpoint, "/v1/completions");
    assert_string_equal(got.input, f.id);
    assert_true(got.at[STORE_VALIDATING] > 1600000000 && !got.at[STORE_IN_PROGRESS]);
    OK(store_file_delete(a.s, f.id, &found, reader)); /* it is being read */
    assert_string_equal(reader, b.id);
    expect_content(&a, f.id, "{}\n");
    OK(store_batch_finalize(a.s, b.seq, &moved));
    assert_false(moved);
    OK(store_batch_begin(a.s, b.seq, 5, "{\"x\":1}", &moved));
    assert_true(moved);
    OK(store_batch_begin(a.s, b.seq, 6, "{}", &moved));
    assert_false(moved);
    add_rows(&a, b.seq, 3, 2); /* in any order */
    again(&a);
    add_rows(&a, b.seq, 0, 3);
    assert_int_equal(status_of(&a, b.id, &got), STORE_IN_PROGRESS);
    assert_int_equal(got.total, 5);
    assert_int_equal(got.completed, 3);
    assert_int_equal(got.failed, 2);
    assert_string_equal(got.facts, "{\"x\":1}");
    OK(store_row_has(a.s, b.seq, 4, &found));
    assert_true(found);
    OK(store_row_has(a.s, b.seq, 5, &found));
    assert_false(found);
    OK(store_batch_finalize(a.s, b.seq, &moved));
    assert_true(moved);
    OK(store_batch_end(a.s, &b, STORE_COMPLETED, all_rows(&a, b.seq), NULL, NULL));
    again(&a);
    assert_int_equal(status_of(&a, b.id, &got), STORE_COMPLETED);
    assert_true(got.at[STORE_FINALIZING] && got.at[STORE_COMPLETED] && !got.at[STORE_FAILED]);
    assert_string_equal(got.error, "");
    expect_content(&a, got.output, "row 0\nrow 1\nrow 2\nrow 3\nrow 4\n");
    OK(store_row_has(a.s, b.seq, 4, &found));
    assert_false(found);
    store_file out;
    OK(store_file_get(a.s, got.output, &out, &found));
    assert_string_equal(out.purpose, "batch_output");
    char name[80];
    snprintf(name, sizeof name, "%s_output.jsonl", b.id);
    assert_string_equal(out.filename, name);
    store_file_free(&out);
    OK(store_file_delete(a.s, f.id, &found, reader)); /* now it may go */
    assert_string_equal(reader, "");
    OK(store_batch_get(a.s, "batch_x", &b, &found));
    assert_false(found);
    store_batch_free(&got);
    end(&a);
}

/* Rows are added all or none, also when one is there already. */
static void test_rows_all_or_none(void **state)
{
    (void)state;
    at a;
    store_file f;
    store_batch b, got = {0};
    bool found;
    begin(&a);
    add_file(&a, "{}\n", "batch", &f);
    add_batch(&a, f.id, &b);
    add_rows(&a, b.seq, 2, 1);
    store_row twice[2] = {{1, 2, 200, "a", 1}, {2, 3, 200, "b", 1}};
    assert_int_equal(store_rows_add(a.s, b.seq, twice, 2), CORUN_EIO);
    OK(store_row_has(a.s, b.seq, 1, &found));
    assert_false(found);
    status_of(&a, b.id, &got);
    assert_int_equal(got.completed, 1);
    store_batch_free(&got);
    end(&a);
}

static void test_cancel(void **state)
{
    (void)state;
    at a;
    store_file f;
    store_batch b[3], got = {0}, next = {0}, *list;
    bool found, moved, more;
    size_t n;
    begin(&a);
    OK(store_batch_next(a.s, &next, &found));
    assert_false(found);
    add_file(&a, "{}\n", "batch", &f);
    for (int i = 0; i < 3; i++) add_batch(&a, f.id, &b[i]);
    OK(store_batch_next(a.s, &next, &found)); /* the oldest */
    assert_true(found);
    assert_int_equal(next.seq, b[0].seq);
    store_batch_free(&next);
    OK(store_batch_begin(a.s, b[0].seq, 5, "{}", &moved));
    OK(store_batch_cancel(a.s, b[2].id, &got, &found));
    assert_true(found);
    assert_int_equal(got.status, STORE_CANCELLING);
    assert_true(got.at[STORE_CANCELLING] > 0);
    OK(store_batch_next(a.s, &next, &found)); /* that one first */
    assert_int_equal(next.seq, b[2].seq);
    OK(store_batch_begin(a.s, b[2].seq, 5, "{}", &moved));
    assert_false(moved);
    OK(store_batch_end(a.s, &next, STORE_CANCELLED, NULL, NULL, NULL));
    store_batch_free(&next);
    store_batch_free(&got);
    OK(store_batch_cancel(a.s, b[2].id, &got, &found)); /* stays */
    assert_int_equal(got.status, STORE_CANCELLED);
    assert_string_equal(got.output, "");
    store_batch_free(&got);
    OK(store_batch_cancel(a.s, b[0].id, &got, &found));
    assert_int_equal(got.status, STORE_CANCELLING);
    OK(store_batch_finalize(a.s, b[0].seq, &moved));
    assert_false(moved);
    OK(store_batch_cancel(a.s, "batch_x", &next, &found));
    assert_false(found);
    /* errors are kept */
    OK(store_batch_end(a.s, &b[1], STORE_FAILED, NULL, NULL, "[{\"code\":\"c\"}]"));
    assert_int_equal(status_of(&a, b[1].id, &got), STORE_FAILED);
    assert_string_equal(got.errors, "[{\"code\":\"c\"}]");
    OK(store_batch_list(a.s, &(store_page){NULL, true, 2}, &list, &n, &more, &found));
    assert_int_equal(n, 2);
    assert_true(more);
    assert_string_equal(list[0].id, b[2].id);
    store_batch_list_free(list, n);
    OK(store_batch_list(a.s, &(store_page){b[0].id, false, 2}, &list, &n, &more, &found));
    assert_int_equal(n, 2);
    assert_false(more);
    assert_string_equal(list[0].id, b[1].id);
    store_batch_list_free(list, n);
    OK(store_batch_list(a.s, &(store_page){"batch_x", false, 2}, &list, &n, &more, &found));
    assert_false(found);
    /* no input, or none of that purpose */
    store_batch bad = {.input = "file-x", .endpoint = "/v1/completions"};
    OK(store_batch_add(a.s, &bad, "batch", &found));
    assert_false(found);
    add_file(&a, "{}\n", "batch_output", &f);
    snprintf(bad.input, sizeof bad.input, "%s", f.id);
    OK(store_batch_add(a.s, &bad, "batch", &found));
    assert_false(found);
    store_batch_free(&got);
    end(&a);
}

/* ---- what is refused ------------------------------------------------------------------------- */

static void refused(at *a, corun_status want, const char *why)
{
    store_close(a->s);
    a->s = NULL;
    store *s;
    corun_status st = store_open(&s, a->folder);
    if (st != want || !strstr(err_text(), why)) fail_msg("%d: %s", st, err_text());
}

static void overwrite(const at *a, long from, const char *data, size_t len)
{
    FILE *f = fopen(a->db, "r+b");
    assert_non_null(f);
    fseek(f, from, SEEK_SET);
    assert_int_equal(fwrite(data, 1, len, f), len);
    fclose(f);
}

static void test_refused(void **state)
{
    (void)state;
    at a;
    store *second;
    store_file f;
    char junk[4096];
    memset(junk, 0xa5, sizeof junk);
    begin(&a);
    assert_int_equal(store_open(&second, a.folder), CORUN_EINVAL);
    assert_non_null(strstr(err_text(), "another process"));
    add_file(&a, "kept", "batch", &f);
    again(&a);
    expect_content(&a, f.id, "kept");
    store_close(a.s);
    a.s = NULL;
    sql(&a, "PRAGMA user_version = 7");
    refused(&a, CORUN_EFORMAT, "version 7, this program reads version 1");
    sql(&a, "PRAGMA user_version = 1; PRAGMA application_id = 5");
    refused(&a, CORUN_EFORMAT, "another program");
    sql(&a, "PRAGMA application_id = 0x436f5253");
    again(&a);
    expect_content(&a, f.id, "kept");
    store_close(a.s);
    a.s = NULL;
    overwrite(&a, 3 * 4096, junk, sizeof junk);
    refused(&a, CORUN_EFORMAT, "broken database");
    overwrite(&a, 0, junk, sizeof junk);
    refused(&a, CORUN_EFORMAT, "not a database");
    end(&a);
    assert_int_equal(store_open(&a.s, ""), CORUN_EINVAL);
    assert_int_equal(store_open(&a.s, "/dev/null/x"), CORUN_EINVAL);
    assert_non_null(strstr(err_text(), "/dev/null"));
    assert_int_equal(store_open(&a.s, "/proc/corun"), CORUN_EINVAL);
}

/* What a server that was killed has left: half contents go, whole ones stay. */
static void test_sweep(void **state)
{
    (void)state;
    at a;
    store_file f;
    char path[256];
    begin(&a);
    add_file(&a, "kept", "batch", &f);
    static const char *const left[] = {"part-0123456789abcdef0123456789abcdef",
                                       "file-0123456789abcdef0123456789abcdef", "thesis.txt",
                                       "file-of-mine"};
    for (int i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "%s/files/%s", a.folder, left[i]);
        fclose(fopen(path, "w"));
    }
    assert_int_equal(contents(&a), 5);
    again(&a);
    assert_int_equal(contents(&a), 3); /* what others have put there stays */
    for (int i = 2; i < 4; i++) {
        snprintf(path, sizeof path, "%s/files/%s", a.folder, left[i]);
        assert_int_equal(unlink(path), 0);
    }
    expect_content(&a, f.id, "kept");
    /* a content that someone has cut or taken away is an error, no wrong answer */
    int fd;
    uint64_t bytes;
    bool found;
    snprintf(path, sizeof path, "%s/files/%s", a.folder, f.id);
    assert_int_equal(truncate(path, 2), 0);
    assert_int_equal(store_file_open(a.s, f.id, &fd, &bytes, &found), CORUN_EFORMAT);
    assert_non_null(strstr(err_text(), "has 2 bytes, 4 were written"));
    unlink(path);
    assert_int_equal(store_file_open(a.s, f.id, &fd, &bytes, &found), CORUN_EFORMAT);
    end(&a);
}

/* A new database would have all contents swept away: it is refused, and nothing is removed. */
static void test_lost_database(void **state)
{
    (void)state;
    at a;
    store_file f;
    char wal[128];
    begin(&a);
    add_file(&a, "kept", "batch", &f);
    store_close(a.s);
    a.s = NULL;
    snprintf(wal, sizeof wal, "%s-wal", a.db);
    unlink(wal);
    for (int empty = 0; empty < 2; empty++) {
        unlink(a.db);
        if (empty) fclose(fopen(a.db, "w"));
        assert_int_equal(store_open(&a.s, a.folder), CORUN_EFORMAT);
        assert_non_null(strstr(err_text(), "beside stored files"));
        assert_int_equal(contents(&a), 1);
    }
    end(&a);
}

/* Nothing may be written: each call says why and leaves nothing. */
static void expect_no_write(at *a, const store_file *f, const store_batch *run, const char *path)
{
    store_file out;
    store_batch b = {.endpoint = "/v1/completions"};
    store_draft *d;
    bool found, moved;
    char reader[STORE_ID];
    int n = contents(a);
    const store_row row = {0, 1, 200, "row", 3};
    for (int i = 0; i < 6; i++) {
        corun_status st = CORUN_OK;
        snprintf(b.input, sizeof b.input, "%s", f->id);
        err_set(CORUN_OK, "none");
        switch (i) {
        case 0:
            OK(store_draft_open(a->s, &d));
            OK(store_draft_put(d, "two", 3));
            st = store_file_add(a->s, d, "two", "batch", &out);
            break;
        case 1: st = store_file_delete(a->s, f->id, &found, reader); break;
        case 2: st = store_batch_add(a->s, &b, "batch", &found); break;
        case 3: st = store_batch_cancel(a->s, run->id, &b, &found); break;
        case 4: st = store_rows_add(a->s, run->seq, &row, 1); break;
        default: st = store_batch_finalize(a->s, run->seq, &moved);
        }
        if (st != CORUN_EIO || !strstr(err_text(), path) || !strstr(err_text(), "replaced"))
            fail_msg("call %d: %d, %s", i, (int)st, err_text());
    }
    assert_int_equal(contents(a), n);
    expect_content(a, f->id, "one"); /* it can be read */
}

/* The database, or its log, is taken away or replaced while the store is open: nothing is taken
 * that would be lost. Brought back, all goes on. */
static void test_taken_away(void **state)
{
    (void)state;
    for (int log = 0; log < 2; log++) {
        at a;
        store_file f;
        store_batch b, got;
        char path[128], away[160];
        bool found, moved;
        begin(&a);
        add_file(&a, "one", "batch", &f);
        b = (store_batch){.endpoint = "/v1/completions"};
        snprintf(b.input, sizeof b.input, "%s", f.id);
        OK(store_batch_add(a.s, &b, "batch", &found));
        OK(store_batch_begin(a.s, b.seq, 1, "{}", &moved));
        snprintf(path, sizeof path, "%s%s", a.db, log ? "-wal" : "");
        snprintf(away, sizeof away, "%s.away", path);
        assert_int_equal(rename(path, away), 0);
        expect_no_write(&a, &f, &b, path);
        FILE *other = fopen(path, "w"); /* another one in its place */
        assert_non_null(other);
        fclose(other);
        expect_no_write(&a, &f, &b, path);
        assert_int_equal(rename(away, path), 0);
        OK(store_rows_add(a.s, b.seq, &(store_row){0, 1, 200, "row", 3}, 1));
        again(&a);
        OK(store_batch_get(a.s, b.id, &got, &found));
        assert_true(found && got.completed == 1);
        store_batch_free(&got);
        expect_content(&a, f.id, "one");
        end(&a);
    }
}

/* Files may not grow beyond some size: as on a full disk, every write behind it fails. */
static void test_no_room(void **state)
{
    (void)state;
    at a;
    store_file f, g = {0};
    store_batch b, got = {0};
    store_draft *d;
    bool found;
    struct rlimit was, tight;
    char *large = mem_alloc(1, 1 << 20, "text");
    memset(large, 'x', 1 << 20);
    signal(SIGXFSZ, SIG_IGN);
    begin(&a);
    add_file(&a, "{}\n", "batch", &f);
    add_batch(&a, f.id, &b);
    getrlimit(RLIMIT_FSIZE, &was);
    tight = was;
    tight.rlim_cur = 300000;
    setrlimit(RLIMIT_FSIZE, &tight);
    OK(store_draft_open(a.s, &d));
    assert_int_equal(store_draft_put(d, large, 1 << 20), CORUN_ECAPACITY);
    store_draft_drop(d);
    OK(store_draft_open(a.s, &d));
    assert_int_equal(contents(&a), 2);
    store_draft_drop(d);
    store_row r = {0, 1, 200, large, 1 << 20};
    assert_int_equal(store_rows_add(a.s, b.seq, &r, 1), CORUN_ECAPACITY);
    assert_non_null(strstr(err_text(), "no room on the disk"));
    status_of(&a, b.id, &got); /* reading goes on */
    assert_int_equal(got.completed, 0);
    /* no room for the database alone: the content goes as well */
    tight.rlim_cur = 10;
    setrlimit(RLIMIT_FSIZE, &tight);
    OK(store_draft_open(a.s, &d));
    OK(store_draft_put(d, "small", 5));
    assert_int_equal(store_file_add(a.s, d, "n", "batch", &g), CORUN_ECAPACITY);
    OK(store_draft_open(a.s, &d));
    OK(store_draft_put(d, "small", 5));
    assert_int_equal(store_batch_end(a.s, &b, STORE_CANCELLED, d, NULL, NULL), CORUN_ECAPACITY);
    assert_int_equal(contents(&a), 1);
    assert_int_equal(status_of(&a, b.id, &got), STORE_VALIDATING);
    setrlimit(RLIMIT_FSIZE, &was);
    /* and with room all works again */
    OK(store_rows_add(a.s, b.seq, &r, 1));
    OK(store_row_has(a.s, b.seq, 0, &found));
    assert_true(found);
    OK(store_draft_open(a.s, &d));
    OK(store_batch_end(a.s, &b, STORE_CANCELLED, d, NULL, NULL));
    again(&a);
    assert_int_equal(status_of(&a, b.id, &got), STORE_CANCELLED);
    struct stat sb;
    assert_int_equal(stat(a.db, &sb), 0);
    assert_true(sb.st_size < 300000); /* what the row took was given back */
    store_batch_free(&got);
    mem_free(large);
    end(&a);
}

/* ---- a log that cannot be synced ------------------------------------------------------------- */

static sqlite3_vfs shim;
static const sqlite3_vfs *real_vfs;
static sqlite3_io_methods log_methods;
static int (*real_sync)(sqlite3_file *f, int flags);
static bool sync_fails;

static int log_sync(sqlite3_file *f, int flags)
{
    return sync_fails ? SQLITE_IOERR_FSYNC : real_sync(f, flags);
}

static int shim_open(sqlite3_vfs *v, const char *name, sqlite3_file *f, int flags, int *out)
{
    (void)v;
    int rc = real_vfs->xOpen((sqlite3_vfs *)(uintptr_t)real_vfs, name, f, flags, out);
    if (rc != SQLITE_OK || !(flags & SQLITE_OPEN_WAL)) return rc;
    log_methods = *f->pMethods;
    real_sync = log_methods.xSync;
    log_methods.xSync = log_sync;
    f->pMethods = &log_methods;
    return rc;
}

static int use_shim(void **state)
{
    (void)state;
    real_vfs = sqlite3_vfs_find(NULL);
    shim = *real_vfs;
    shim.xOpen = shim_open;
    shim.zName = "shim";
    return sqlite3_vfs_register(&shim, 1) == SQLITE_OK ? 0 : -1;
}

static int leave_shim(void **state)
{
    (void)state;
    sync_fails = false;
    return sqlite3_vfs_unregister(&shim) == SQLITE_OK ? 0 : -1;
}

/* What a server finds after this moment's crash: every file that the database names is there, and
 * no other. Their number, and how many of the batches have completed. */
static size_t crash(const at *a, size_t *completed)
{
    char cmd[300];
    at b = {0};
    store_file *f;
    store_batch *x;
    size_t n, n_batch;
    bool more, found;
    const store_page all = {.limit = 100};
    snprintf(b.folder, sizeof b.folder, "%.50s.crash", a->folder);
    snprintf(cmd, sizeof cmd, "rm -rf %s && cp -r %s %s", b.folder, a->folder, b.folder);
    assert_int_equal(system(cmd), 0);
    OK(store_open(&b.s, b.folder));
    OK(store_file_list(b.s, &all, NULL, &f, &n, &more, &found));
    for (size_t i = 0; i < n; i++) {
        int fd;
        uint64_t bytes;
        if (store_file_open(b.s, f[i].id, &fd, &bytes, &found) != CORUN_OK)
            fail_msg("a file is lost: %s", err_text());
        assert_true(found);
        close(fd);
    }
    assert_int_equal(contents(&b), n);
    OK(store_batch_list(b.s, &all, &x, &n_batch, &more, &found));
    for (size_t i = 0; i < n_batch; i++) *completed += x[i].status == STORE_COMPLETED;
    store_file_list_free(f, n);
    store_batch_list_free(x, n_batch);
    store_close(b.s);
    return n;
}

static void test_no_sync(void **state)
{
    (void)state;
    at a;
    store_file one, two;
    store_draft *d;
    bool found, moved;
    size_t completed = 0;
    begin(&a);
    add_file(&a, "one", "batch", &one);
    sync_fails = true;
    for (int i = 0; i < 3; i++) { /* what is unsure does not pile up */
        OK(store_draft_open(a.s, &d));
        OK(store_draft_put(d, "two", 3));
        assert_int_equal(store_file_add(a.s, d, "two", "batch", &two), CORUN_EIO);
        /* the log has it, unsynced; later ones do not come so far */
        assert_int_equal(crash(&a, &completed), i ? 1 : 2);
        assert_int_equal(contents(&a), 2);
    }
    assert_int_equal(store_used(a.s), 3 + STORE_FILE);
    sync_fails = false;
    add_file(&a, "three", "batch", &two);
    assert_int_equal(crash(&a, &completed), 2);
    assert_int_equal(contents(&a), 2);

    store_batch b = {.endpoint = "/v1/completions"};
    snprintf(b.input, sizeof b.input, "%s", one.id);
    OK(store_batch_add(a.s, &b, "batch", &found));
    OK(store_batch_begin(a.s, b.seq, 1, "{}", &moved));
    OK(store_rows_add(a.s, b.seq, &(store_row){0, 1, 200, "row", 3}, 1));
    OK(store_batch_finalize(a.s, b.seq, &moved));
    sync_fails = true;
    for (int i = 0; i < 3; i++) {
        completed = 0;
        OK(store_draft_open(a.s, &d));
        OK(store_draft_put(d, "row", 3));
        assert_int_equal(store_batch_end(a.s, &b, STORE_COMPLETED, d, NULL, NULL), CORUN_EIO);
        assert_int_equal(crash(&a, &completed), i ? 2 : 3);
        assert_int_equal(completed, i ? 0 : 1);
        assert_int_equal(contents(&a), 3);
    }
    sync_fails = false;
    OK(store_draft_open(a.s, &d));
    OK(store_draft_put(d, "row", 3));
    OK(store_batch_end(a.s, &b, STORE_COMPLETED, d, NULL, NULL));
    assert_int_equal(contents(&a), 3);
    assert_int_equal(store_used(a.s), 3 + 5 + 3 + 3 * STORE_FILE);
    end(&a);
}

/* ---- what all files count -------------------------------------------------------------------- */

static void test_used(void **state)
{
    (void)state;
    at a;
    store_file f[2];
    store_draft *d;
    bool found;
    char reader[STORE_ID];
    begin(&a);
    assert_int_equal(store_used(a.s), 0);
    add_file(&a, "12345", "batch", &f[0]);
    add_file(&a, "", "batch", &f[1]);
    assert_int_equal(store_used(a.s), 5 + 2 * STORE_FILE);
    OK(store_draft_open(a.s, &d));
    OK(store_draft_put(d, "123", 3));
    assert_int_equal(store_used(a.s), 8 + 3 * STORE_FILE);
    store_draft_drop(d);
    assert_int_equal(store_used(a.s), 5 + 2 * STORE_FILE);
    char path[256]; /* left behind by a server that was killed */
    snprintf(path, sizeof path, "%s/files/part-00112233445566778899aabbccddeeff", a.folder);
    FILE *left = fopen(path, "w");
    fputs("123", left);
    fclose(left);
    again(&a);
    assert_int_equal(store_used(a.s), 5 + 2 * STORE_FILE);
    OK(store_file_delete(a.s, f[0].id, &found, reader));
    assert_int_equal(store_used(a.s), STORE_FILE);
    end(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_file_lists),
        cmocka_unit_test(test_batch),
        cmocka_unit_test(test_rows_all_or_none),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_sweep),
        cmocka_unit_test(test_lost_database),
        cmocka_unit_test(test_taken_away),
        cmocka_unit_test(test_no_room),
        cmocka_unit_test(test_used),
        cmocka_unit_test_setup_teardown(test_no_sync, use_shim, leave_shim),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
