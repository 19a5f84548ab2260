/* journal.h - the finished rows of a run that is not at its end, in a file beside the output.
 *
 * A journal is a header and then one record a row, in the order in which the rows were finished.
 * The header is a JSON object of all that a run which goes on must have in common with the one
 * that began. Every record is covered by a digest, together with the header's digest, so that a
 * torn, a changed or a foreign record is seen.
 *
 * Frame, little-endian, 72 bytes and then the payload:
 *    0  "CoRJ"
 *    4  u16 format (1)         6  u16 kind: 0 header, 1 row
 *    8  u64 index of the row  16  u64 line number of the input
 *   24  u32 status of the row 28  u32 bytes of the message
 *   32  u64 bytes of the row (header: of the JSON text)
 *   40  digest of the input up to the end of this line (high half, low half)
 *   56  digest of bytes 0 ... 55, the header's digest (0 in the header's own frame), the payload
 *   72  message, row
 *
 * A journal is locked while it is open. Rows are written as they come, so that a killed process
 * loses none, and synced in groups, so that a machine that loses power loses at most the last
 * group: JOURNAL_GROUP rows, JOURNAL_GROUP_BYTES or JOURNAL_GROUP_SECONDS, whichever is first
 * full (the clock is looked at between steps). */
#ifndef APP_JOURNAL_H
#define APP_JOURNAL_H

#include "app/sink.h"
#include "base/digest.h"
#include "base/json.h"

#define JOURNAL_FORMAT        1
#define JOURNAL_WINDOW        4096u /* a row is written at most this far before the first missing */
#define JOURNAL_MAX_HEADER    ((size_t)1 << 16)
#define JOURNAL_MAX_MESSAGE   4096u
#define JOURNAL_GROUP         256u
#define JOURNAL_GROUP_BYTES   ((size_t)8 << 20)
#define JOURNAL_GROUP_SECONDS 1.0

typedef struct journal_row {
    uint64_t index, line_no;
    int http;
    uint32_t n_message;
    uint64_t n_row;
    digest input;
    uint64_t at; /* place of the frame */
} journal_row;

/* What the bytes of a journal hold. */
typedef struct journal_shape {
    uint64_t n_header; /* bytes of the header's JSON text; 0: no header yet */
    uint64_t n_row;    /* whole records */
    uint64_t end;      /* bytes that count; what follows is a torn record */
    uint64_t torn;     /* its bytes */
} journal_shape;

/* Reads a whole journal. Bytes after the last whole record that hold no other one are torn and
 * count as not there. CORUN_EFORMAT names the byte: no journal at all, a record that is corrupt
 * and has a whole one behind it, rows out of the window or twice. */
corun_status journal_parse(const void *bytes, size_t len, journal_shape *out);

typedef struct journal journal;

/* Opens, locks and checks the journal of p; makes an empty one where there is none, or where
 * restart throws away what is there. */
corun_status journal_open(journal **out, const place *p, bool restart);
uint64_t journal_rows(const journal *j);     /* rows that it holds */
uint64_t journal_restored(const journal *j); /* of them, those of earlier runs */
uint64_t journal_torn(const journal *j);     /* bytes that were dropped */
/* Compares the members of facts with those of the header, if rows of an earlier run are there.
 * CORUN_EINVAL names every difference and says how to start over. */
corun_status journal_check(const journal *j, const json_t *facts);
/* journal_check with all facts; then the header is written where none is. Rows can be added. */
corun_status journal_begin(journal *j, const json_t *facts);

corun_status journal_add(journal *j, const journal_row *r, const char *message, const char *row);
/* Ends the group if its time is over. */
corun_status journal_tick(journal *j);
corun_status journal_sync(journal *j);

/* Looks for the row of this index among those of earlier runs; after journal_rewind, among all.
 * Indices must be asked for in rising order, none left out. */
corun_status journal_find(journal *j, uint64_t index, journal_row *r, bool *found);
void journal_rewind(journal *j);
/* Appends the message of r to b. */
corun_status journal_message(const journal *j, const journal_row *r, buf *b);
/* Copies the row of r. */
corun_status journal_copy(const journal *j, const journal_row *r, sink *to);

/* The output is in place: the journal goes. */
corun_status journal_remove(journal *j);
/* What was added is synced as far as that works. A journal without a row is removed. */
void journal_close(journal *j);

#endif
