/* sink.c - owns the writing of outputs. Invariant: the output's place holds what it held before,
 * or the complete new file. */
#include "app/sink.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

/* ---- places ------------------------------------------------------------------------------ */

corun_status place_refusal(int err)
{
    bool system = err == ENOSPC || err == EDQUOT || err == EIO || err == ENOMEM || err == EMFILE ||
                  err == ENFILE || err == EFBIG || err == ENOLCK;
    return system ? CORUN_EIO : CORUN_EINVAL;
}

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

static char *join(const char *path, size_t dir, const char *before, const char *name,
                  const char *after)
{
    buf b;
    buf_init(&b, 1 << 20);
    buf_put(&b, path, dir);
    buf_printf(&b, "%s%s%s", before, name, after);
    char *text = buf_status(&b) == CORUN_OK ? mem_dup(b.data, b.len, "path") : NULL;
    buf_free(&b);
    return text;
}

/* Where the file's own name begins. */
static const char *base_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static bool ends(const char *name, const char *with)
{
    size_t n = strlen(name), m = strlen(with);
    return n >= m && strcmp(name + n - m, with) == 0;
}

/* Whether a file of the folder is one that a model in it is made of. */
static bool of_model(const char *name, const struct stat *folder)
{
    struct stat sb;
    const char *file = base_of(name);
    char *dir = file > name ? mem_dup(name, (size_t)(file - name), "path") : NULL;
    bool there = stat(dir ? dir : ".", &sb) == 0 && same_file(&sb, folder);
    mem_free(dir);
    return there && (ends(file, ".safetensors") || ends(file, ".safetensors.index.json") ||
                     ends(file, ".gguf") || ends(file, ".jinja") || ends(file, "config.json") ||
                     strncmp(file, "tokenizer", 9) == 0 || strncmp(file, "chat_template", 13) == 0);
}

/* The file that name means, in p->path. */
static corun_status resolve(place *p, const char *name, const char *const *input, size_t n)
{
    struct stat sb, in;
    if (stat(name, &sb) == 0) {
        if (!S_ISREG(sb.st_mode))
            FAIL(CORUN_EINVAL, "%s: not a regular file (\"-\" is standard output)", name);
        for (size_t i = 0; i < n; i++) {
            if (!input[i] || strcmp(input[i], "-") == 0 || stat(input[i], &in) != 0) continue;
            if (same_file(&sb, &in)) FAIL(CORUN_EINVAL, "%s: the output is also an input", name);
            if (S_ISDIR(in.st_mode) && of_model(name, &in))
                FAIL(CORUN_EINVAL, "%s: the output is a file of the model %s", name, input[i]);
        }
        char *real = realpath(name, NULL);
        if (!real) FAIL(CORUN_EINVAL, "%s: %s", name, strerror(errno));
        p->path = mem_dup(real, strlen(real), "path");
        free(real);
    } else {
        int err = errno;
        if (lstat(name, &sb) == 0 && S_ISLNK(sb.st_mode))
            FAIL(CORUN_EINVAL, "%s: a symbolic link that leads to no file (%s)", name,
                 strerror(err));
        if (err != ENOENT) FAIL(CORUN_EINVAL, "%s: %s", name, strerror(err));
        p->path = mem_dup(name, strlen(name), "path");
    }
    return p->path ? CORUN_OK : CORUN_ENOMEM;
}

corun_status place_find(place *p, const char *name, const char *const *input, size_t n_input)
{
    size_t len = strlen(name);
    *p = (place){.gz = len > 3 && ends(name, ".gz")};
    if (strcmp(name, "-") == 0) return CORUN_OK;
    TRY(resolve(p, name, input, n_input));
    const char *file = base_of(p->path);
    if (!*file) FAIL(CORUN_EINVAL, "%s: names no file", name);
    size_t dir = (size_t)(file - p->path);
    p->folder = dir ? mem_dup(p->path, dir, "path") : mem_dup(".", 1, "path");
    p->temp = join(p->path, dir, ".", file, ".corun-part");
    p->journal = join(p->path, dir, "", file, ".corun-journal");
    if (!p->folder || !p->temp || !p->journal) return CORUN_ENOMEM;
    if (access(p->folder, W_OK | X_OK) != 0)
        FAIL(CORUN_EINVAL, "%s: its folder cannot be written: %s", name, strerror(errno));
    return CORUN_OK;
}

corun_status place_clear(const place *p)
{
    struct stat sb;
    if (lstat(p->temp, &sb) != 0) return CORUN_OK;
    int fd;
    TRY(file_lock(&fd, p->temp));
    unlink(p->temp);
    close(fd);
    return CORUN_OK;
}

corun_status place_apart(const place *p, const place *q, const char *option)
{
    struct stat x, y;
    if (!p->path && !q->path) FAIL(CORUN_EINVAL, "%s and -o write both to standard output", option);
    if (!p->path || !q->path) return CORUN_OK;
    if (stat(p->folder, &x) != 0 || stat(q->folder, &y) != 0 || !same_file(&x, &y)) return CORUN_OK;
    const char *a[] = {p->path, p->temp, p->journal}, *b[] = {q->path, q->temp, q->journal};
    for (int i = 0; i < 9; i++)
        if (strcmp(base_of(a[i / 3]), base_of(b[i % 3])) == 0)
            FAIL(CORUN_EINVAL, "%s %s and -o %s write to one place", option, p->path, q->path);
    return CORUN_OK;
}

corun_status place_find_idle(place *p, const char *name, const char *const *input, size_t n_input)
{
    struct stat sb;
    TRY(place_find(p, name, input, n_input));
    if (!p->path || lstat(p->journal, &sb) != 0) return CORUN_OK;
    FAIL(CORUN_EINVAL,
         "%s: a batch that writes there runs or was stopped, and its rows are in %s: let it end "
         "(the same command goes on), or remove that file",
         p->path, p->journal);
}

void place_free(place *p)
{
    mem_free(p->path);
    mem_free(p->folder);
    mem_free(p->temp);
    mem_free(p->journal);
    *p = (place){0};
}

corun_status file_lock(int *fd, const char *path)
{
    for (int attempt = 0; attempt < 10; attempt++) {
        /* O_NONBLOCK: a FIFO must not hang us */
        int f = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
        if (f < 0)
            FAIL(place_refusal(errno), "%s: %s", path,
                 errno == ELOOP ? "is a symbolic link, which is not followed" : strerror(errno));
        struct stat here, there;
        if (fstat(f, &here) != 0 || !S_ISREG(here.st_mode)) {
            close(f);
            FAIL(CORUN_EINVAL, "%s: not a regular file", path);
        }
        if (flock(f, LOCK_EX | LOCK_NB) != 0) {
            int err = errno;
            close(f);
            if (err == EWOULDBLOCK)
                FAIL(CORUN_EINVAL, "%s: another process is writing it (the file is locked)", path);
            FAIL(CORUN_EIO, "%s: cannot be locked: %s", path, strerror(err));
        }
        if (lstat(path, &there) == 0 && same_file(&here, &there)) {
            *fd = f;
            return CORUN_OK;
        }
        close(f); /* renamed or removed by its owner between open and lock */
    }
    FAIL(CORUN_EINVAL, "%s: other processes keep writing it", path);
}

void folder_sync(const char *folder)
{
    int dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0) return;
    fsync(dir);
    close(dir);
}

/* ---- writing ----------------------------------------------------------------------------- */

struct sink {
    const place *p;
    int fd;
    gzFile gz;
    bool done;
    buf held;
};

static const char *name_of(const sink *s) { return s->p->path ? s->p->path : "standard output"; }

static corun_status open_temp(sink *s)
{
    struct stat sb;
    TRY(file_lock(&s->fd, s->p->temp));
    if (ftruncate(s->fd, 0) != 0) FAIL(CORUN_EIO, "%s: %s", s->p->temp, strerror(errno));
    if (stat(s->p->path, &sb) == 0 && fchmod(s->fd, sb.st_mode & 0777) != 0)
        FAIL(CORUN_EIO, "%s: %s", s->p->temp, strerror(errno));
    return CORUN_OK;
}

corun_status sink_open(sink **out, const place *p)
{
    sink *s;
    if (!MEM_NEW(s, 1)) return CORUN_ENOMEM;
    s->p = p;
    s->fd = -1;
    buf_init(&s->held, (size_t)1 << 30);
    corun_status st = CORUN_OK;
    if (p->path)
        st = open_temp(s);
    else if ((s->fd = dup(STDOUT_FILENO)) < 0)
        st = err_set(CORUN_EIO, "standard output: %s", strerror(errno));
    if (st == CORUN_OK && p->gz) {
        int fd = dup(s->fd);
        s->gz = fd < 0 ? NULL : gzdopen(fd, "wb6");
        if (!s->gz) {
            if (fd >= 0) close(fd);
            st = err_set(CORUN_ENOMEM, "%s: no memory to compress", name_of(s));
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
    size_t at = 0;
    while (at < s->held.len) {
        size_t left = s->held.len - at;
        if (s->gz) {
            int n = gzwrite(s->gz, s->held.data + at, (unsigned)(left < 1 << 20 ? left : 1 << 20));
            if (n <= 0) FAIL(CORUN_EIO, "%s: %s", name_of(s), strerror(errno));
            at += (size_t)n;
            continue;
        }
        ssize_t n = write(s->fd, s->held.data + at, left);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) FAIL(CORUN_EIO, "%s: %s", name_of(s), strerror(errno));
        at += (size_t)n;
    }
    buf_reset(&s->held);
    return CORUN_OK;
}

corun_status sink_put(sink *s, const char *data, size_t len)
{
    buf_put(&s->held, data, len);
    TRY(buf_status(&s->held));
    return !s->p->path || s->held.len >= 1 << 18 ? flush(s) : CORUN_OK;
}

corun_status sink_commit(sink *s)
{
    const place *p = s->p;
    TRY(flush(s));
    if (s->gz) {
        int zerr = gzclose(s->gz);
        s->gz = NULL;
        if (zerr != Z_OK)
            FAIL(CORUN_EIO, "%s: %s", name_of(s),
                 zerr == Z_ERRNO ? strerror(errno) : "compression failed");
    }
    if (p->path) {
        if (fsync(s->fd) != 0) FAIL(CORUN_EIO, "%s: %s", p->temp, strerror(errno));
        if (rename(p->temp, p->path) != 0) FAIL(CORUN_EIO, "%s: %s", p->path, strerror(errno));
        folder_sync(p->folder);
    }
    s->done = true;
    return CORUN_OK;
}

void sink_close(sink *s)
{
    if (!s) return;
    if (s->gz) gzclose(s->gz);
    if (s->fd >= 0 && s->p->path && !s->done) unlink(s->p->temp);
    if (s->fd >= 0) close(s->fd);
    buf_free(&s->held);
    mem_free(s);
}

corun_status sink_whole(const place *p, const buf *b)
{
    sink *s;
    TRY(sink_open(&s, p));
    corun_status st = sink_put(s, b->data, b->len);
    if (st == CORUN_OK) st = sink_commit(s);
    sink_close(s);
    return st;
}
