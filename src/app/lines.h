/* lines.h - lines in, rows out: plain or gzip, files or standard streams.
 *
 * Output goes to a temporary file beside its place and is put there by rename at the end, so a
 * reader sees the old file or the whole new one. The temporary file is locked: a second process
 * with the same output is refused. */
#ifndef APP_LINES_H
#define APP_LINES_H

#include "base/mem.h"

typedef struct lines lines;

/* path "-": standard input. gzip is recognised by its first bytes. CORUN_EINVAL: no such file. */
corun_status lines_open(lines **out, const char *path, size_t max_line);
void lines_close(lines *l);

typedef enum lines_kind {
    LINES_LINE,
    LINES_LONG, /* longer than max_line: its first bytes only */
    LINES_END
} lines_kind;

/* The next line that is not blank, without its line feed. *no counts from 1, blank lines too. */
corun_status lines_next(lines *l, buf *line, uint64_t *no, lines_kind *kind);
/* Lines of a regular file that are not blank, in *n; false when it cannot be read twice. */
bool lines_count(const char *path, uint64_t *n);

typedef struct sink sink;

/* path "-": standard output, written as it comes. A path that ends in .gz is compressed. The
 * output must be none of the inputs. CORUN_EINVAL for whatever the caller can mend. */
corun_status sink_open(sink **out, const char *path, const char *const *input, size_t n_input);
corun_status sink_put(sink *s, const char *data, size_t len);
corun_status sink_commit(sink *s); /* everything is on disk and in place */
void sink_close(sink *s);          /* without a commit before: the temporary file is removed */

#endif
