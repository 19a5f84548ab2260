/* files_make.h - builds weight files for the tests of the files room: bytes of GGUF and safetensors
 * files, well formed or not, and a folder of their own for each test.
 * Invariant: what it writes is written here, apart from the code under test. */
#ifndef TESTS_FILES_MAKE_H
#define TESTS_FILES_MAKE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "files/config.h"

typedef struct make {
    buf b;
} make;

static inline void make_init(make *m) { buf_init(&m->b, (size_t)1 << 26); }
static inline void make_free(make *m) { buf_free(&m->b); }

static inline void put_raw(make *m, const void *p, size_t n) { buf_put(&m->b, p, n); }
static inline void put_u8(make *m, uint8_t v) { put_raw(m, &v, sizeof v); }
static inline void put_u16(make *m, uint16_t v) { put_raw(m, &v, sizeof v); }
static inline void put_u32(make *m, uint32_t v) { put_raw(m, &v, sizeof v); }
static inline void put_u64(make *m, uint64_t v) { put_raw(m, &v, sizeof v); }
static inline void put_f32(make *m, float v) { put_raw(m, &v, sizeof v); }

static inline void put_zeros(make *m, size_t n)
{
    while (n-- > 0) put_u8(m, 0);
}

static inline void put_str(make *m, const char *s)
{
    put_u64(m, strlen(s));
    put_raw(m, s, strlen(s));
}

/* ---- GGUF ------------------------------------------------------------------------------------ */

static inline void gg_head(make *m, uint64_t n_tensor, uint64_t n_kv)
{
    put_raw(m, "GGUF", 4);
    put_u32(m, 3);
    put_u64(m, n_tensor);
    put_u64(m, n_kv);
}

static inline void gg_u32(make *m, const char *key, uint32_t v)
{
    put_str(m, key);
    put_u32(m, GGUF_U32);
    put_u32(m, v);
}

static inline void gg_f32(make *m, const char *key, float v)
{
    put_str(m, key);
    put_u32(m, GGUF_F32);
    put_f32(m, v);
}

static inline void gg_str(make *m, const char *key, const char *v)
{
    put_str(m, key);
    put_u32(m, GGUF_STRING);
    put_str(m, v);
}

static inline void gg_bool(make *m, const char *key, uint8_t v)
{
    put_str(m, key);
    put_u32(m, GGUF_BOOL);
    put_u8(m, v);
}

/* dims as in the file: the contiguous one first. */
static inline void gg_tensor(make *m, const char *name, uint32_t type, uint64_t offset, int n_dim,
                             uint64_t d0, uint64_t d1)
{
    put_str(m, name);
    put_u32(m, (uint32_t)n_dim);
    if (n_dim > 0) put_u64(m, d0);
    if (n_dim > 1) put_u64(m, d1);
    put_u32(m, type);
    put_u64(m, offset);
}

static inline void gg_pad(make *m, size_t align)
{
    while (m->b.len % align) put_u8(m, 0);
}

/* ---- safetensors -------------------------------------------------------------------------------
 */

/* The length, the header text and n_data bytes that count up. */
static inline void st_file(make *m, const char *header, size_t n_data)
{
    put_str(m, header);
    for (size_t i = 0; i < n_data; i++) put_u8(m, (uint8_t)i);
}

/* ---- folders ------------------------------------------------------------------------------------
 */

static inline void folder_make(char out[64])
{
    snprintf(out, 64, "/tmp/corun-files-XXXXXX");
    assert_non_null(mkdtemp(out));
}

static inline void folder_remove(const char *folder)
{
    DIR *d = opendir(folder);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        char path[512];
        if (e->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        unlink(path);
    }
    closedir(d);
    rmdir(folder);
}

static inline void file_put(const char *folder, const char *name, const void *data, size_t n)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    fclose(f);
}

static inline void file_text(const char *folder, const char *name, const char *text)
{
    file_put(folder, name, text, strlen(text));
}

/* Open file descriptors of this process. */
static inline int count_fds(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    if (!d) return 0;
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

/* A status, and a piece of its text. */
static inline void expect(corun_status st, corun_status want, const char *text, const char *label)
{
    if (st != want || (text && !strstr(err_text(), text)))
        fail_msg("%s: status \"%s\", text \"%s\"; wanted \"%s\" with \"%s\"", label,
                 corun_status_name(st), st ? err_text() : "", corun_status_name(want),
                 text ? text : "");
}

#endif
