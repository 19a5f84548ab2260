/* lines.c - owns the files of a batch. Invariant: the output's place holds what it held before,
 * or the complete new file. */
#include "app/lines.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

/* ---- input ------------------------------------------------------------------------------- */

struct lines {
    gzFile gz;
    char *path;
    size_t max_line;
    uint64_t no;
    char block[65536];
    size_t at, n;
    bool end;
};

corun_status lines_open(lines **out, const char *path, size_t max_line)
{
    bool std = strcmp(path, "-") == 0;
    int fd = std ? dup(STDIN_FILENO) : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) FAIL(CORUN_EINVAL, "%s: %s", std ? "standard input" : path, strerror(errno));
    struct stat sb;
    if (fstat(fd, &sb) == 0 && S_ISDIR(sb.st_mode)) {
        close(fd);
        FAIL(CORUN_EINVAL, "%s: is a folder", path);
    }
    lines *l;
    if (!MEM_NEW(l, 1)) {
        close(fd);
        return CORUN_ENOMEM;
    }
    l->max_line = max_line;
    l->path = mem_dup(std ? "standard input" : path, strlen(std ? "standard input" : path), "path");
    l->gz = gzdopen(fd, "rb");
    if (!l->gz) close(fd);
    if (!l->path || !l->gz) {
        lines_close(l);
        FAIL(CORUN_ENOMEM, "%s: no memory to read it", path);
    }
    *out = l;
    return CORUN_OK;
}

void lines_close(lines *l)
{
    if (!l) return;
    if (l->gz) gzclose(l->gz);
    mem_free(l->path);
    mem_free(l);
}

static corun_status fill(lines *l)
{
    int n = gzread(l->gz, l->block, sizeof l->block);
    int zerr = Z_OK;
    const char *text = gzerror(l->gz, &zerr);
    if (n < 0 && zerr == Z_ERRNO) FAIL(CORUN_EIO, "%s: %s", l->path, strerror(errno));
    if (n < 0 || (n == 0 && zerr != Z_OK && zerr != Z_STREAM_END))
        FAIL(CORUN_EFORMAT, "%s: not a whole gzip file: %s", l->path, text);
    l->at = 0;
    l->n = (size_t)n;
    l->end = n == 0;
    return CORUN_OK;
}

static bool blank(const buf *line)
{
    for (size_t i = 0; i < line->len; i++)
        if (!strchr(" \t\r\v\f", line->data[i]) || !line->data[i]) return false;
    return true;
}

/* One line, blank or not. *any: there was one. */
static corun_status one_line(lines *l, buf *line, lines_kind *kind, bool *any)
{
    buf_reset(line);
    *kind = LINES_LINE;
    *any = false;
    for (;;) {
        if (l->at == l->n) TRY(fill(l));
        if (l->end) return CORUN_OK;
        *any = true;
        const char *from = l->block + l->at, *lf = memchr(from, '\n', l->n - l->at);
        size_t len = lf ? (size_t)(lf - from) : l->n - l->at;
        size_t room = l->max_line - line->len;
        if (len > room) *kind = LINES_LONG;
        buf_put(line, from, len < room ? len : room);
        TRY(buf_status(line));
        l->at += len + (lf != NULL);
        if (lf) return CORUN_OK;
    }
}

corun_status lines_next(lines *l, buf *line, uint64_t *no, lines_kind *kind)
{
    bool any;
    do {
        TRY(one_line(l, line, kind, &any));
        if (!any) {
            *kind = LINES_END;
            return CORUN_OK;
        }
        l->no++;
    } while (*kind == LINES_LINE && blank(line));
    *no = l->no;
    return CORUN_OK;
}

bool lines_count(const char *path, uint64_t *n)
{
    struct stat sb;
    *n = 0;
    if (strcmp(path, "-") == 0 || stat(path, &sb) != 0 || !S_ISREG(sb.st_mode)) return false;
    gzFile gz = gzopen(path, "rb");
    if (!gz) return false;
    char block[65536];
    int got;
    bool filled = false;
    while ((got = gzread(gz, block, sizeof block)) > 0) {
        for (int i = 0; i < got; i++) {
            if (block[i] == '\n') {
                *n += filled;
                filled = false;
            } else if (!strchr(" \t\r\v\f", block[i]) || !block[i]) {
                filled = true;
            }
        }
    }
    *n += filled;
    gzclose(gz);
    return got == 0;
}

/* ---- output ------------------------------------------------------------------------------ */

struct sink {
    int fd;
    gzFile gz;
    char *path, *temp, *folder; /* NULL: standard output */
    bool done;
    buf held;
};

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* The place that path means (a link's target), its folder and the temporary name. */
static corun_status name_places(sink *s, const char *path, const char *const *input, size_t n)
{
    struct stat sb, in;
    if (stat(path, &sb) == 0) {
        if (!S_ISREG(sb.st_mode))
            FAIL(CORUN_EINVAL, "%s: not a regular file (\"-\" is standard output)", path);
        for (size_t i = 0; i < n; i++)
            if (strcmp(input[i], "-") != 0 && stat(input[i], &in) == 0 && same_file(&sb, &in))
                FAIL(CORUN_EINVAL, "%s: the output is also an input", path);
        char *real = realpath(path, NULL);
        if (!real) FAIL(CORUN_EINVAL, "%s: %s", path, strerror(errno));
        s->path = mem_dup(real, strlen(real), "path");
        free(real);
    } else {
        s->path = mem_dup(path, strlen(path), "path");
    }
    if (!s->path) return CORUN_ENOMEM;
    const char *slash = strrchr(s->path, '/'), *name = slash ? slash + 1 : s->path;
    if (!*name) FAIL(CORUN_EINVAL, "%s: names no file", path);
    size_t dir = (size_t)(name - s->path);
    s->folder = dir ? mem_dup(s->path, dir, "path") : mem_dup(".", 1, "path");
    buf b;
    buf_init(&b, 1 << 20);
    buf_put(&b, s->path, dir);
    buf_printf(&b, ".%s.corun-part", name);
    if (buf_status(&b) == CORUN_OK) s->temp = mem_dup(b.data, b.len, "path");
    buf_free(&b);
    return s->folder && s->temp ? CORUN_OK : CORUN_ENOMEM;
}

/* Opens and locks the temporary file. One that a killed process left is taken over. */
static corun_status open_temp(sink *s)
{
    for (int attempt = 0; attempt < 10; attempt++) {
        s->fd = open(s->temp, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
        if (s->fd < 0)
            FAIL(errno == ENOSPC || errno == EIO ? CORUN_EIO : CORUN_EINVAL,
                 "%s: cannot write beside it: %s", s->path, strerror(errno));
        struct stat here, there;
        if (flock(s->fd, LOCK_EX | LOCK_NB) != 0) {
            close(s->fd);
            s->fd = -1;
            FAIL(CORUN_EINVAL, "%s: another process is writing it (%s is locked)", s->path,
                 s->temp);
        }
        if (fstat(s->fd, &here) == 0 && stat(s->temp, &there) == 0 && same_file(&here, &there)) {
            if (ftruncate(s->fd, 0) != 0) FAIL(CORUN_EIO, "%s: %s", s->temp, strerror(errno));
            if (stat(s->path, &there) == 0 && fchmod(s->fd, there.st_mode & 0777) != 0)
                FAIL(CORUN_EIO, "%s: %s", s->temp, strerror(errno));
            return CORUN_OK;
        }
        close(s->fd); /* renamed away by its owner between open and lock */
        s->fd = -1;
    }
    FAIL(CORUN_EINVAL, "%s: other processes keep writing it", s->path);
}

static bool ends_in_gz(const char *path)
{
    size_t len = strlen(path);
    return len > 3 && strcmp(path + len - 3, ".gz") == 0;
}

corun_status sink_open(sink **out, const char *path, const char *const *input, size_t n_input)
{
    sink *s;
    if (!MEM_NEW(s, 1)) return CORUN_ENOMEM;
    s->fd = -1;
    buf_init(&s->held, (size_t)1 << 30);
    corun_status st = CORUN_OK;
    if (strcmp(path, "-") == 0) {
        s->fd = dup(STDOUT_FILENO);
        if (s->fd < 0) st = err_set(CORUN_EIO, "standard output: %s", strerror(errno));
    } else {
        st = name_places(s, path, input, n_input);
        if (st == CORUN_OK) st = open_temp(s);
    }
    if (st == CORUN_OK && ends_in_gz(path)) {
        int fd = dup(s->fd);
        s->gz = fd < 0 ? NULL : gzdopen(fd, "wb6");
        if (!s->gz) {
            if (fd >= 0) close(fd);
            st = err_set(CORUN_ENOMEM, "%s: no memory to compress", path);
        }
    }
    if (st != CORUN_OK) {
        sink_close(s);
        return st;
    }
    *out = s;
    return CORUN_OK;
}

static corun_status flush(sink *s)
{
    const char *name = s->path ? s->path : "standard output";
    size_t at = 0;
    while (at < s->held.len) {
        size_t left = s->held.len - at;
        if (s->gz) {
            int n = gzwrite(s->gz, s->held.data + at, (unsigned)(left < 1 << 20 ? left : 1 << 20));
            if (n <= 0) FAIL(CORUN_EIO, "%s: %s", name, strerror(errno));
            at += (size_t)n;
            continue;
        }
        ssize_t n = write(s->fd, s->held.data + at, left);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) FAIL(CORUN_EIO, "%s: %s", name, strerror(errno));
        at += (size_t)n;
    }
    buf_reset(&s->held);
    return CORUN_OK;
}

corun_status sink_put(sink *s, const char *data, size_t len)
{
    buf_put(&s->held, data, len);
    TRY(buf_status(&s->held));
    return !s->path || s->held.len >= 1 << 18 ? flush(s) : CORUN_OK;
}

corun_status sink_commit(sink *s)
{
    TRY(flush(s));
    if (s->gz) {
        int zerr = gzclose(s->gz);
        s->gz = NULL;
        if (zerr != Z_OK)
            FAIL(CORUN_EIO, "%s: %s", s->path,
                 zerr == Z_ERRNO ? strerror(errno) : "compression failed");
    }
    if (!s->path) {
        s->done = true;
        return CORUN_OK;
    }
    if (fsync(s->fd) != 0) FAIL(CORUN_EIO, "%s: %s", s->temp, strerror(errno));
    if (rename(s->temp, s->path) != 0) FAIL(CORUN_EIO, "%s: %s", s->path, strerror(errno));
    s->done = true;
    int dir = open(s->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir >= 0) {
        fsync(dir); /* some file systems cannot; the rename stands all the same */
        close(dir);
    }
    return CORUN_OK;
}

void sink_close(sink *s)
{
    if (!s) return;
    if (s->gz) gzclose(s->gz);
    if (s->fd >= 0 && s->temp && !s->done) unlink(s->temp);
    if (s->fd >= 0) close(s->fd);
    mem_free(s->path);
    mem_free(s->temp);
    mem_free(s->folder);
    buf_free(&s->held);
    mem_free(s);
}
