/* lines.h - lines in: plain or gzip, a file or standard input. */
#ifndef APP_LINES_H
#define APP_LINES_H

#include "base/digest.h"
#include "base/mem.h"

typedef struct lines lines;

/* path "-": standard input. gzip is recognised by its first bytes; members that follow each other
 * are read as one text, and anything else after a member is CORUN_EFORMAT. CORUN_EINVAL: no such
 * file. */
corun_status lines_open(lines **out, const char *path, size_t max_line);
void lines_close(lines *l);

typedef enum lines_kind {
    LINES_LINE,
    LINES_LONG, /* longer than max_line: its first bytes only */
    LINES_END
} lines_kind;

/* The next line that is not blank, without its line feed. *no counts from 1, blank lines too. */
corun_status lines_next(lines *l, buf *line, uint64_t *no, lines_kind *kind);
/* False when reading on would wait: a stream has nothing new yet. Of a line that has begun the rest
 * is waited for. */
bool lines_ready(const lines *l);
/* The next line has this number. */
void lines_renumber(lines *l, uint64_t no);
/* The digest of all text up to the end of the last line, decompressed. */
digest lines_digest(const lines *l);

typedef struct lines_shape {
    bool known;        /* a regular file, which can be read twice */
    uint64_t n, bytes; /* lines that are not blank; bytes, decompressed */
    digest text;       /* lines_digest at the end */
} lines_shape;

/* Reads the whole file where it can be read again, and gives its shape. */
corun_status lines_survey(const char *path, lines_shape *out);

#endif
