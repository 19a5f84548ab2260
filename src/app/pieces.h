/* pieces.h - a batch file in pieces, so that many processes can run it and each row is still the
 * one of the whole file.
 *
 * A piece is a header line and then the lines of its rows as they stand in the file. The header
 *    {"piece": 0, "line": 1, "rows": 512, "bytes": 70000, "taken": ["D", ...]}
 * holds what a row depends on beside its own line: the number of the first line in the whole file,
 * and the digests of those custom_ids in the piece that an earlier piece has answered. So pieces
 * can be run in any order, anywhere, and twice. `bytes` counts the text behind the header line.
 * Blank lines between rows stay, since they count as lines; a line that is too long to be a request
 * is cut to its first JOB_MAX_LINE + 1 bytes, which give the same row. */
#ifndef APP_PIECES_H
#define APP_PIECES_H

#include "app/seen.h"

#define PIECE_MAX_ROWS  65536u
#define PIECE_MAX_BYTES ((size_t)256 << 20)

typedef struct piece {
    uint64_t index, line, rows, bytes;
} piece;

/* The header with its line feed. taken: the digests, 32 digits each, one behind the other. */
void piece_write(buf *out, const piece *p, const buf *taken);
/* Reads a header. taken becomes the set of its digests. CORUN_EFORMAT names the rule; no names the
 * line. */
corun_status piece_read(piece *out, seen *taken, const char *text, size_t len, uint64_t no);

#endif
