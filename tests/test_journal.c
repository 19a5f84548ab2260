/* test_journal.c - the reader of journals on bytes: every cut, every changed byte, hostile fields.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "app/journal.h"

enum { ROWS = 5, HEAD = 72 };

typedef struct made {
    buf file;
    size_t end[ROWS + 1]; /* of the header and of each row */
} made;

static void read_all(const char *path, buf *b)
{
    buf_init(b, 1 << 20);
    assert_int_equal(file_read(b, path, 1 << 20), CORUN_OK);
}

/* A journal with rows in this order, written by the writer itself; check: and found again. */
static void make_checked(made *m, const uint64_t *order, size_t n, bool check)
{
    char folder[] = "/tmp/corun-journal-XXXXXX", name[64];
    place p;
    journal *j;
    assert_non_null(mkdtemp(folder));
    snprintf(name, sizeof name, "%s/out", folder);
    assert_int_equal(place_find(&p, name, NULL, 0), CORUN_OK);
    assert_int_equal(journal_open(&j, &p, false), CORUN_OK);
    json_t *facts = json_pack("{s:s}", "release", "1");
    assert_int_equal(journal_begin(j, facts), CORUN_OK);
    buf_init(&m->file, 1 << 20);
    for (size_t i = 0; i <= n; i++) {
        buf now;
        read_all(p.journal, &now);
        m->end[i] = now.len;
        buf_free(&now);
        if (i == n) break;
        char row[40], message[8] = "bad";
        snprintf(row, sizeof row, "{\"row\":%d}\n", (int)order[i]);
        row[7 + i] = 0; /* rows are bytes */
        journal_row r = {.index = order[i],
                         .line_no = order[i] + 1,
                         .http = 200,
                         .n_message = i % 2 ? 3 : 0,
                         .n_row = 10 + i};
        assert_int_equal(journal_add(j, &r, message, row), CORUN_OK);
    }
    assert_int_equal(journal_sync(j), CORUN_OK);
    read_all(p.journal, &m->file);
    for (uint64_t i = 0; check && i < n; i++) {
        journal_row r;
        bool found;
        if (i == 0) journal_rewind(j);
        assert_int_equal(journal_find(j, i, &r, &found), CORUN_OK);
        assert_true(found && r.index == i && r.line_no == i + 1);
    }
    json_decref(facts);
    assert_int_equal(journal_remove(j), CORUN_OK);
    journal_close(j);
    place_free(&p);
    assert_int_equal(rmdir(folder), 0);
}

static void make(made *m, const uint64_t *order, size_t n) { make_checked(m, order, n, true); }
static void make_file(made *m, const uint64_t *order, size_t n)
{
    make_checked(m, order, n, false);
}

static const uint64_t ORDER[ROWS] = {2, 0, 1, 4, 3};

static void test_every_cut(void **state)
{
    (void)state;
    made m;
    make(&m, ORDER, ROWS);
    for (size_t cut = 0; cut <= m.file.len; cut++) {
        journal_shape s;
        /* a copy of its own, so that a sanitizer sees a read too far */
        char *bytes = mem_dup(m.file.data, cut, "test");
        assert_int_equal(journal_parse(bytes, cut, &s), CORUN_OK);
        size_t rows = 0, end = cut < m.end[0] ? 0 : m.end[0];
        while (rows < ROWS && m.end[rows + 1] <= cut) end = m.end[++rows];
        assert_int_equal(s.n_row, rows);
        assert_int_equal(s.end, end);
        assert_int_equal(s.torn, cut - end);
        mem_free(bytes);
    }
    buf_free(&m.file);
}

static void test_every_byte(void **state)
{
    (void)state;
    made m;
    make(&m, ORDER, ROWS);
    for (size_t at = 0; at < m.file.len; at++) {
        journal_shape s;
        for (int bit = 0; bit < 8; bit++) {
            m.file.data[at] ^= (char)(1 << bit);
            corun_status st = journal_parse(m.file.data, m.file.len, &s);
            if (at < m.end[ROWS - 1]) { /* all but the last record */
                assert_int_equal(st, CORUN_EFORMAT);
                assert_non_null(strstr(err_text(), at < 6 ? "journal" : "byte"));
            } else {
                assert_int_equal(st, CORUN_OK);
                assert_int_equal(s.n_row, ROWS - 1);
            }
            m.file.data[at] ^= (char)(1 << bit);
        }
    }
    buf_free(&m.file);
}

static void test_order(void **state)
{
    (void)state;
    made m;
    journal_shape s;
    const uint64_t order[] = {0, 1}, late[] = {JOURNAL_WINDOW, 0};
    make(&m, order, 2);
    char *again = mem_dup(m.file.data + m.end[0], m.end[1] - m.end[0], "record");
    assert_non_null(again);
    buf_put(&m.file, again, m.end[1] - m.end[0]);
    mem_free(again);
    assert_int_equal(journal_parse(m.file.data, m.file.len, &s), CORUN_EFORMAT);
    assert_non_null(strstr(err_text(), "cannot be here"));
    buf_free(&m.file);
    make_file(&m, late, 2);
    assert_int_equal(journal_parse(m.file.data, m.file.len, &s), CORUN_EFORMAT);
    assert_non_null(strstr(err_text(), "row 4096, which cannot be here"));
    buf_free(&m.file);
}

static void test_hostile(void **state)
{
    (void)state;
    journal_shape s;
    static unsigned char bytes[1 << 16];
    assert_int_equal(journal_parse(NULL, 0, &s), CORUN_OK);
    assert_int_equal(journal_parse("Co", 2, &s), CORUN_OK);
    assert_int_equal(journal_parse("CX", 2, &s), CORUN_EFORMAT);
    assert_int_equal(journal_parse("CoRJ\2\0", 6, &s), CORUN_EFORMAT);
    assert_int_equal(journal_parse(bytes, sizeof bytes, &s), CORUN_EFORMAT);
    for (size_t i = 0; i + HEAD < sizeof bytes; i += HEAD) { /* frames that all claim to be long */
        memcpy(bytes + i, "CoRJ\1\0\1\0", 8);
        bytes[i + 34] = 0x0f;
    }
    bytes[6] = 0;
    assert_int_equal(journal_parse(bytes, sizeof bytes, &s), CORUN_EFORMAT);
    made m;
    make(&m, ORDER, ROWS); /* the same behind a whole journal: bounded, and refused or torn */
    buf_put(&m.file, bytes + HEAD, sizeof bytes - HEAD);
    corun_status st = journal_parse(m.file.data, m.file.len, &s);
    assert_true(st == CORUN_EFORMAT || (st == CORUN_OK && s.n_row == ROWS));
    buf_free(&m.file);
}

static void test_no_memory(void **state)
{
    (void)state;
    made m;
    make(&m, ORDER, ROWS);
    journal_shape s;
    mem_fail_at(1);
    assert_int_equal(journal_parse(m.file.data, m.file.len, &s), CORUN_ENOMEM);
    mem_fail_at(0);
    buf_free(&m.file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_cut), cmocka_unit_test(test_every_byte),
        cmocka_unit_test(test_order),     cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
