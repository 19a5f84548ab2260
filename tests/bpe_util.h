/* bpe_util.h - what the tokenizer's tests share: files of the cache, golden ids, comparisons. */
#ifndef TESTS_BPE_UTIL_H
#define TESTS_BPE_UTIL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <zlib.h>

#include "base/json.h"
#include "text/bpe.h"

/* A file that tools/fetch gets: absent, the test is skipped, or fails where CI is set. */
static inline void need_file(const char *path)
{
    if (access(path, R_OK) == 0) return;
    if (getenv("CI")) fail_msg("%s is not there: run tools/fetch", path);
    skip();
}

static inline bpe *open_folder(const char *name)
{
    char path[1024];
    snprintf(path, sizeof path, TEST_CACHE "/tokenizers/%s/tokenizer.json", name);
    need_file(path);
    *strrchr(path, '/') = 0;
    bpe *t = NULL;
    if (bpe_open_folder(&t, path) != CORUN_OK) fail_msg("%s", err_text());
    return t;
}

static inline bpe *open_gguf(const char *file)
{
    char path[1024];
    snprintf(path, sizeof path, TEST_CACHE "/%s", file);
    need_file(path);
    weights *w = NULL;
    bpe *t = NULL;
    if (weights_open(&w, path) != CORUN_OK) fail_msg("%s", err_text());
    if (bpe_open_gguf(&t, w) != CORUN_OK) fail_msg("%s", err_text());
    weights_close(w);
    return t;
}

static inline bpe_ids encode(const bpe *t, const char *s, size_t len, unsigned flags)
{
    bpe_ids ids = {0};
    if (bpe_encode(t, s, len, flags, SIZE_MAX, &ids) != CORUN_OK) fail_msg("%s", err_text());
    return ids;
}

/* The ids as "1 2 3"; the caller frees. */
static inline char *ids_text(const bpe_ids *ids)
{
    buf b;
    buf_init(&b, SIZE_MAX / 2);
    buf_puts(&b, "");
    for (size_t i = 0; i < ids->n; i++) buf_printf(&b, i ? " %d" : "%d", ids->id[i]);
    return b.data ? b.data : mem_dup("", 0, "ids");
}

static inline void check_ids_n(const bpe *t, const char *s, size_t len, unsigned flags,
                               const char *want)
{
    bpe_ids ids = encode(t, s, len, flags);
    char *got = ids_text(&ids);
    if (strcmp(got, want) != 0) {
        print_error("text \"%s\"\n  wanted %s\n  got    %s\n", s, want, got);
        fail();
    }
    mem_free(got);
    bpe_ids_free(&ids);
}

static inline void check_ids(const bpe *t, const char *s, const char *want)
{
    check_ids_n(t, s, strlen(s), 0, want);
}

/* The bytes of the tokens, one behind the other. */
static inline void raw_bytes(const bpe *t, const bpe_ids *ids, buf *out)
{
    for (size_t i = 0; i < ids->n; i++) {
        const char *d;
        size_t n;
        bool special;
        bpe_token(t, ids->id[i], &d, &n, &special);
        buf_put(out, d, n);
    }
}

/* ---- goldens -------------------------------------------------------------------------------- */

#define MAX_LINES 2000

typedef struct golden {
    char *all;
    char *line[MAX_LINES];
    size_t n;
} golden;

static inline void golden_free(golden *g) { mem_free(g->all); }

/* tests/data/tokens/NAME.ids.gz; "=" lines are filled in from base, which may be NULL. */
static inline golden golden_open(const char *name, const golden *base)
{
    char path[1024];
    golden g = {0};
    snprintf(path, sizeof path, TEST_DATA "/tokens/%s.ids.gz", name);
    gzFile f = gzopen(path, "rb");
    assert_non_null(f);
    const size_t max = 1 << 22;
    g.all = mem_alloc(max, 1, "golden");
    int n = gzread(f, g.all, (unsigned)max - 1);
    assert_true(n > 0 && (size_t)n < max - 1);
    gzclose(f);
    char *at = strchr(g.all, '\n');
    assert_non_null(at);
    for (at++; *at; g.n++) {
        char *end = strchr(at, '\n');
        assert_non_null(end);
        assert_true(g.n < MAX_LINES);
        *end = 0;
        g.line[g.n] = at;
        if (!strcmp(at, "=")) {
            assert_non_null(base);
            g.line[g.n] = base->line[g.n];
        }
        at = end + 1;
    }
    return g;
}

static inline json_t *golden_texts(void)
{
    json_t *lines = NULL;
    if (json_read_file(&lines, TEST_DATA "/tokens/lines.json", 1 << 24) != CORUN_OK)
        fail_msg("%s", err_text());
    assert_true(json_array_size(lines) == 1000);
    return lines;
}

#endif
