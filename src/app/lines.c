/* lines.c - owns the reading of inputs. Invariant: every byte of the input is part of a line or
 * named in an error. */
#include "app/lines.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

enum { BLOCK = 65536 };

struct lines {
    int fd;
    char *path;
    size_t max_line;
    uint64_t no;
    digest_stream *text; /* of what lines were made of */

    unsigned char raw[BLOCK]; /* as read from the file */
    size_t raw_at, raw_n;
    uint64_t raw_base; /* place in the file of raw[0] */
    bool raw_end;

    z_stream z;
    enum { START, PLAIN, MEMBER, BETWEEN } form; /* BETWEEN: after a member of a gzip file */

    char block[BLOCK]; /* text */
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
    l->fd = fd;
    l->max_line = max_line;
    l->path = mem_dup(std ? "standard input" : path, strlen(std ? "standard input" : path), "path");
    l->text = digest_open();
    bool z = inflateInit2(&l->z, 15 + 16) == Z_OK; /* a gzip member */
    if (!l->path || !l->text || !z) {
        lines_close(l);
        FAIL(CORUN_ENOMEM, "%s: no memory to read it", path);
    }
    *out = l;
    return CORUN_OK;
}

void lines_close(lines *l)
{
    if (!l) return;
    inflateEnd(&l->z);
    digest_close(l->text);
    mem_free(l->path);
    close(l->fd);
    mem_free(l);
}

/* More bytes of the file behind those that are not used yet. */
static corun_status fill_raw(lines *l)
{
    size_t left = l->raw_n - l->raw_at;
    memmove(l->raw, l->raw + l->raw_at, left);
    l->raw_base += l->raw_at;
    l->raw_at = 0;
    l->raw_n = left;
    ssize_t n = read(l->fd, l->raw + left, BLOCK - left);
    if (n < 0) FAIL(CORUN_EIO, "%s: %s", l->path, strerror(errno));
    l->raw_n += (size_t)n;
    l->raw_end = n == 0;
    return CORUN_OK;
}

static corun_status inflate_some(lines *l)
{
    l->z.next_in = l->raw + l->raw_at;
    l->z.avail_in = (unsigned)(l->raw_n - l->raw_at);
    l->z.next_out = (unsigned char *)l->block;
    l->z.avail_out = BLOCK;
    int zerr = inflate(&l->z, Z_NO_FLUSH);
    l->raw_at = l->raw_n - l->z.avail_in;
    l->n = BLOCK - l->z.avail_out;
    if (zerr == Z_STREAM_END) {
        l->form = BETWEEN;
        if (inflateReset(&l->z) != Z_OK) FAIL(CORUN_EINTERNAL, "%s: zlib state", l->path);
    } else if (zerr == Z_MEM_ERROR) {
        FAIL(CORUN_ENOMEM, "%s: no memory to read it", l->path);
    } else if (zerr != Z_OK && zerr != Z_BUF_ERROR) {
        FAIL(CORUN_EFORMAT, "%s: byte %llu: not a whole gzip file: %s", l->path,
             (unsigned long long)(l->raw_base + l->raw_at), l->z.msg ? l->z.msg : "bad data");
    }
    return CORUN_OK;
}

/* What the next bytes are: a gzip member, text, or neither. */
static corun_status recognise(lines *l)
{
    bool magic =
        l->raw_n - l->raw_at >= 2 && l->raw[l->raw_at] == 0x1f && l->raw[l->raw_at + 1] == 0x8b;
    if (!magic && l->form == BETWEEN)
        FAIL(CORUN_EFORMAT, "%s: byte %llu: not gzip, after the end of a gzip member", l->path,
             (unsigned long long)(l->raw_base + l->raw_at));
    l->form = magic ? MEMBER : PLAIN;
    return CORUN_OK;
}

/* The next block of text. */
static corun_status fill(lines *l)
{
    l->at = l->n = 0;
    while (l->n == 0) {
        size_t left = l->raw_n - l->raw_at;
        bool deciding = l->form == START || l->form == BETWEEN;
        if (left < (deciding ? 2u : 1u) && !l->raw_end) {
            TRY(fill_raw(l));
            continue;
        }
        if (left == 0) {
            if (l->form == MEMBER)
                FAIL(CORUN_EFORMAT, "%s: not a whole gzip file: it ends inside a member", l->path);
            l->end = true;
            return CORUN_OK;
        }
        if (deciding) {
            TRY(recognise(l));
        } else if (l->form == MEMBER) {
            TRY(inflate_some(l));
        } else {
            memcpy(l->block, l->raw + l->raw_at, left);
            l->n = left;
            l->raw_at = l->raw_n;
        }
    }
    return CORUN_OK;
}

static bool blank(const char *data, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (!strchr(" \t\r\v\f", data[i]) || !data[i]) return false;
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
        len += lf != NULL;
        digest_add(l->text, from, len);
        l->at += len;
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
    } while (*kind == LINES_LINE && blank(line->data, line->len));
    *no = l->no;
    return CORUN_OK;
}

bool lines_ready(const lines *l)
{
    struct pollfd p = {.fd = l->fd, .events = POLLIN};
    return l->at < l->n || l->raw_at < l->raw_n || l->raw_end || poll(&p, 1, 0) != 0;
}

void lines_renumber(lines *l, uint64_t no) { l->no = no - 1; }

digest lines_digest(const lines *l) { return digest_value(l->text); }

corun_status lines_survey(const char *path, lines_shape *out)
{
    struct stat sb;
    lines *l;
    *out = (lines_shape){0};
    if (strcmp(path, "-") == 0 || stat(path, &sb) != 0 || !S_ISREG(sb.st_mode)) return CORUN_OK;
    TRY(lines_open(&l, path, 0));
    corun_status st = CORUN_OK;
    bool filled = false;
    while ((st = fill(l)) == CORUN_OK && !l->end) {
        digest_add(l->text, l->block, l->n);
        out->bytes += l->n;
        for (size_t i = 0, len; i < l->n; i += len) {
            const char *lf = memchr(l->block + i, '\n', l->n - i);
            len = lf ? (size_t)(lf - l->block) - i : l->n - i;
            filled = filled || !blank(l->block + i, len);
            if (!lf) continue;
            out->n += filled;
            filled = false;
            len++;
        }
    }
    out->n += filled;
    out->text = lines_digest(l);
    out->known = true;
    lines_close(l);
    return st;
}
