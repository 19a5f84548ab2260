/* journal.c - owns the file of finished rows. Invariant: up to j->end the file is a header and
 * whole records, whatever happens to the process. */
#include "app/journal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "app/facts.h"
#include "app/job.h"
#include "base/clock.h"

enum { HEAD = 72, DIGEST_AT = 56, BLOCK = 65536, KIND_HEADER = 0, KIND_ROW = 1 };
static const char MAGIC[4] = {'C', 'o', 'R', 'J'};

/* ---- frames ------------------------------------------------------------------------------ */

/* Bytes that can be read at any place: of memory or of a file. */
typedef struct source {
    const unsigned char *bytes; /* NULL: a file */
    int fd;
    uint64_t size;
    const char *name;
    digest_stream *stream; /* scratch */
    digest salt;           /* the header's digest */
} source;

typedef struct frame {
    unsigned kind;
    journal_row r;
    digest sum;
    uint64_t end;
} frame;

static void put(unsigned char *p, uint64_t v, int n)
{
    for (int i = 0; i < n; i++) p[i] = (unsigned char)(v >> 8 * i);
}

static uint64_t get(const unsigned char *p, int n)
{
    uint64_t v = 0;
    for (int i = 0; i < n; i++) v |= (uint64_t)p[i] << 8 * i;
    return v;
}

static corun_status read_at(const source *s, uint64_t at, void *out, size_t n)
{
    if (s->bytes) {
        memcpy(out, s->bytes + at, n);
        return CORUN_OK;
    }
    for (size_t done = 0; done < n;) {
        ssize_t got = pread(s->fd, (char *)out + done, n - done, (off_t)(at + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) FAIL(CORUN_EIO, "%s: %s", s->name, strerror(errno));
        if (got == 0) FAIL(CORUN_EIO, "%s: became shorter while it was read", s->name);
        done += (size_t)got;
    }
    return CORUN_OK;
}

static void sum_begin(digest_stream *d, const unsigned char *head, digest salt)
{
    unsigned char of_header[16];
    put(of_header, salt.hi, 8);
    put(of_header + 8, salt.lo, 8);
    digest_reset(d);
    digest_add(d, head, DIGEST_AT);
    digest_add(d, of_header, sizeof of_header);
}

static void write_head(unsigned char *h, unsigned kind, const journal_row *r)
{
    memcpy(h, MAGIC, sizeof MAGIC);
    put(h + 4, JOURNAL_FORMAT, 2);
    put(h + 6, kind, 2);
    put(h + 8, r->index, 8);
    put(h + 16, r->line_no, 8);
    put(h + 24, (uint32_t)r->http, 4);
    put(h + 28, r->n_message, 4);
    put(h + 32, r->n_row, 8);
    put(h + 40, r->input.hi, 8);
    put(h + 48, r->input.lo, 8);
}

/* The head's fields, when they can be those of a frame at this place, which may be cut. */
static bool read_head(const unsigned char *h, uint64_t at, frame *f)
{
    *f = (frame){.kind = (unsigned)get(h + 6, 2),
                 .r = {.index = get(h + 8, 8),
                       .line_no = get(h + 16, 8),
                       .http = (int)(get(h + 24, 4) & 0x7fffffff),
                       .n_message = (uint32_t)get(h + 28, 4),
                       .n_row = get(h + 32, 8),
                       .input = {get(h + 40, 8), get(h + 48, 8)},
                       .at = at},
                 .sum = {get(h + 56, 8), get(h + 64, 8)}};
    if (memcmp(h, MAGIC, sizeof MAGIC) != 0 || get(h + 4, 2) != JOURNAL_FORMAT) return false;
    if (f->kind != (at ? KIND_ROW : KIND_HEADER)) return false;
    if (f->r.n_message > JOURNAL_MAX_MESSAGE) return false;
    if (f->r.n_row > (at ? JOB_MAX_ROW : JOURNAL_MAX_HEADER)) return false;
    f->end = at + HEAD + f->r.n_message + f->r.n_row;
    return true;
}

/* Reads the frame at this place. *whole: it is one, and its digest is right. */
static corun_status read_frame(const source *s, uint64_t at, frame *f, bool *whole)
{
    unsigned char head[HEAD], block[BLOCK];
    *whole = false;
    if (s->size - at < HEAD) return CORUN_OK;
    TRY(read_at(s, at, head, HEAD));
    if (!read_head(head, at, f) || f->end > s->size) return CORUN_OK;
    sum_begin(s->stream, head, at ? s->salt : (digest){0});
    for (uint64_t p = at + HEAD; p < f->end;) {
        size_t n = f->end - p < BLOCK ? (size_t)(f->end - p) : BLOCK;
        TRY(read_at(s, p, block, n));
        digest_add(s->stream, block, n);
        p += n;
    }
    digest sum = digest_value(s->stream);
    *whole = sum.hi == f->sum.hi && sum.lo == f->sum.lo;
    return CORUN_OK;
}

/* ---- the whole file ---------------------------------------------------------------------- */

/* The next place from *p on where a frame may begin; the size when there is none. */
static corun_status next_magic(const source *s, uint64_t *p)
{
    unsigned char block[BLOCK];
    while (*p < s->size && s->size - *p >= HEAD) {
        size_t n = s->size - *p < BLOCK ? (size_t)(s->size - *p) : BLOCK;
        TRY(read_at(s, *p, block, n));
        const unsigned char *hit = memmem(block, n, MAGIC, sizeof MAGIC);
        *p += hit ? (uint64_t)(hit - block) : n - (sizeof MAGIC - 1);
        if (hit && s->size - *p >= HEAD) return CORUN_OK;
    }
    *p = s->size;
    return CORUN_OK;
}

/* The header is on disk before the first row is written: a torn one has nothing behind it. */
static corun_status check_header(source *s, journal_shape *out)
{
    unsigned char head[HEAD] = {0};
    frame f;
    bool whole;
    size_t n = s->size < HEAD ? (size_t)s->size : HEAD;
    TRY(read_at(s, 0, head, n));
    if (memcmp(head, MAGIC, n < sizeof MAGIC ? n : sizeof MAGIC) != 0)
        FAIL(CORUN_EFORMAT, "%s: is no journal of corun; remove it, or start over with --restart",
             s->name);
    if (n >= 6 && get(head + 4, 2) != JOURNAL_FORMAT)
        FAIL(CORUN_EFORMAT, "%s: has the format %u, this program reads and writes %d", s->name,
             (unsigned)get(head + 4, 2), JOURNAL_FORMAT);
    TRY(read_frame(s, 0, &f, &whole));
    uint64_t behind = sizeof MAGIC;
    TRY(next_magic(s, &behind));
    bool cut = n < HEAD || (read_head(head, 0, &f) && f.end > s->size && behind == s->size);
    if (!whole && !cut)
        FAIL(CORUN_EFORMAT, "%s: byte 0: the header is corrupt; --restart throws the journal away",
             s->name);
    if (!whole) return CORUN_OK; /* torn before the first row */
    s->salt = f.sum;
    out->n_header = f.r.n_row;
    out->end = f.end;
    return CORUN_OK;
}

/* After the frame at `bad` was found not whole: is there a whole one behind it? */
static corun_status check_tail(const source *s, uint64_t bad, uint64_t n_row)
{
    uint64_t budget = 2 * (s->size - bad) + (1 << 20); /* hostile bytes shall not cost n squared */
    for (uint64_t p = bad + 1;; p++) {
        TRY(next_magic(s, &p));
        if (p == s->size) return CORUN_OK;
        frame f;
        bool whole;
        TRY(read_frame(s, p, &f, &whole));
        uint64_t cost = f.end > p && f.end <= s->size ? f.end - p : HEAD;
        if (whole || cost > budget)
            FAIL(CORUN_EFORMAT,
                 "%s: byte %llu: record %llu is corrupt, and records behind it are whole. To keep "
                 "the rows before it: truncate -s %llu on this file. --restart starts over",
                 s->name, (unsigned long long)bad, (unsigned long long)n_row + 1,
                 (unsigned long long)bad);
        budget -= cost;
    }
}

static corun_status survey(source *s, journal_shape *out)
{
    uint64_t seen[JOURNAL_WINDOW / 64] = {0}, first = 0; /* first: the lowest index not seen */
    *out = (journal_shape){0};
    if (s->size == 0) return CORUN_OK;
    TRY(check_header(s, out));
    uint64_t at = out->end;
    while (at && at < s->size) {
        frame f;
        bool whole;
        TRY(read_frame(s, at, &f, &whole));
        if (!whole) {
            TRY(check_tail(s, at, out->n_row));
            break;
        }
        uint64_t i = f.r.index, bit = 1ull << i % 64, *word = &seen[i % JOURNAL_WINDOW / 64];
        if (i < first || i - first >= JOURNAL_WINDOW || (*word & bit))
            FAIL(CORUN_EFORMAT, "%s: byte %llu: record %llu is of row %llu, which cannot be here",
                 s->name, (unsigned long long)at, (unsigned long long)out->n_row + 1,
                 (unsigned long long)i);
        *word |= bit;
        for (; seen[first % JOURNAL_WINDOW / 64] >> first % 64 & 1; first++)
            seen[first % JOURNAL_WINDOW / 64] &= ~(1ull << first % 64);
        out->n_row++;
        out->end = at = f.end;
    }
    out->torn = s->size - out->end;
    return CORUN_OK;
}

corun_status journal_parse(const void *bytes, size_t len, journal_shape *out)
{
    source s = {.bytes = bytes ? bytes : (const void *)"", .size = len, .name = "journal"};
    if (!(s.stream = digest_open())) return CORUN_ENOMEM;
    corun_status st = survey(&s, out);
    digest_close(s.stream);
    return st;
}

/* ---- open -------------------------------------------------------------------------------- */

struct journal {
    const place *p;
    source s; /* s.size: the end of what is read */
    uint64_t end, n_rows, n_restored, torn;
    json_t *header; /* of an earlier run; NULL: none, or without a row */
    bool begun, removed;

    uint64_t at;                    /* reading: the next frame */
    uint64_t where[JOURNAL_WINDOW]; /* frames read before their turn; 0: none */

    unsigned n_group; /* rows written and not synced */
    size_t group_bytes;
    double group_begin;
};

static corun_status read_header(journal *j, uint64_t n)
{
    char *text = mem_alloc(n, 1, "journal");
    if (!text) return CORUN_ENOMEM;
    corun_status st = read_at(&j->s, HEAD, text, n);
    if (st == CORUN_OK) st = json_read(&j->header, text, n, j->s.name);
    if (st == CORUN_OK && !json_is_object(j->header))
        st = err_set(CORUN_EFORMAT, "%s: its header is no JSON object", j->s.name);
    mem_free(text);
    return st;
}

static corun_status load(journal *j, bool restart)
{
    struct stat sb;
    journal_shape shape = {0};
    TRY(file_lock(&j->s.fd, j->s.name));
    if (fstat(j->s.fd, &sb) != 0) FAIL(CORUN_EIO, "%s: %s", j->s.name, strerror(errno));
    if (sb.st_size && sb.st_uid != geteuid() && !restart)
        FAIL(CORUN_EINVAL, "%s: is the journal of another user (id %u)", j->s.name,
             (unsigned)sb.st_uid);
    if (!restart) {
        j->s.size = (uint64_t)sb.st_size;
        TRY(survey(&j->s, &shape));
        if (shape.n_row) TRY(read_header(j, shape.n_header));
    }
    if (!shape.n_row) shape = (journal_shape){0}; /* nothing is lost by starting anew */
    if (ftruncate(j->s.fd, (off_t)shape.end) != 0)
        FAIL(CORUN_EIO, "%s: %s", j->s.name, strerror(errno));
    if (stat(j->p->path, &sb) == 0 && fchmod(j->s.fd, sb.st_mode & 0777) != 0)
        FAIL(place_refusal(errno), "%s: %s", j->s.name, strerror(errno));
    j->s.size = j->end = shape.end;
    j->n_rows = j->n_restored = shape.n_row;
    j->torn = shape.torn;
    j->at = HEAD + shape.n_header;
    return CORUN_OK;
}

corun_status journal_open(journal **out, const place *p, bool restart)
{
    journal *j;
    if (!MEM_NEW(j, 1)) return CORUN_ENOMEM;
    j->p = p;
    j->s = (source){.fd = -1, .name = p->journal};
    corun_status st = (j->s.stream = digest_open()) ? load(j, restart) : CORUN_ENOMEM;
    if (st != CORUN_OK) {
        j->removed = true; /* what is there stays as it is */
        journal_close(j);
        return st;
    }
    *out = j;
    return CORUN_OK;
}

uint64_t journal_rows(const journal *j) { return j->n_rows; }
uint64_t journal_restored(const journal *j) { return j->n_restored; }
uint64_t journal_torn(const journal *j) { return j->torn; }

/* ---- what must be equal ------------------------------------------------------------------ */

corun_status journal_check(const journal *j, const json_t *facts)
{
    buf text;
    unsigned n = 0;
    if (!j->header) return CORUN_OK;
    buf_init(&text, 1 << 16);
    corun_status st = facts_compare(j->header, facts, "journal", "this run", &text, &n);
    buf_putc(&text, 0);
    if (st == CORUN_OK) st = buf_status(&text);
    if (st == CORUN_OK && n)
        st = err_set(CORUN_EINVAL,
                     "%s: belongs to another run (%llu rows are done). --restart throws them away "
                     "and starts over. What differs (%u):%s",
                     j->s.name, (unsigned long long)j->n_rows, n, text.data);
    buf_free(&text);
    return st;
}

/* ---- writing ----------------------------------------------------------------------------- */

/* Takes back what a failed write left behind j->end. */
static corun_status write_failed(journal *j, int err)
{
    if (ftruncate(j->s.fd, (off_t)j->end) != 0) { /* a torn record, which the next run drops */
    }
    FAIL(CORUN_EIO, "%s: %s", j->s.name, strerror(err));
}

static corun_status append(journal *j, unsigned kind, const journal_row *r, const char *message,
                           const char *row)
{
    unsigned char head[HEAD];
    write_head(head, kind, r);
    sum_begin(j->s.stream, head, kind == KIND_HEADER ? (digest){0} : j->s.salt);
    digest_add(j->s.stream, message, r->n_message);
    digest_add(j->s.stream, row, r->n_row);
    digest sum = digest_value(j->s.stream);
    put(head + 56, sum.hi, 8);
    put(head + 64, sum.lo, 8);
    struct iovec part[3] = {{head, HEAD},
                            {(void *)(uintptr_t)message, r->n_message},
                            {(void *)(uintptr_t)row, r->n_row}};
    uint64_t at = j->end;
    for (int i = 0; i < 3;) { /* mostly one call: a killed process then leaves no torn record */
        ssize_t n = pwritev(j->s.fd, part + i, 3 - i, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return write_failed(j, n < 0 ? errno : ENOSPC);
        at += (uint64_t)n;
        size_t left = (size_t)n;
        for (; i < 3 && left >= part[i].iov_len; i++) left -= part[i].iov_len;
        if (i == 3) break;
        part[i].iov_base = (char *)part[i].iov_base + left;
        part[i].iov_len -= left;
    }
    if (kind == KIND_HEADER) j->s.salt = sum;
    j->end = at;
    return CORUN_OK;
}

corun_status journal_begin(journal *j, const json_t *facts)
{
    TRY(journal_check(j, facts));
    j->begun = true;
    if (j->header) return CORUN_OK;
    char *text = json_dumps(facts, JSON_COMPACT);
    if (!text) FAIL(CORUN_ENOMEM, "%s: no memory for its header", j->s.name);
    journal_row r = {.n_row = strlen(text)};
    corun_status st = CORUN_OK;
    if (r.n_row > JOURNAL_MAX_HEADER)
        st = err_set(CORUN_EINTERNAL, "%s: a header of %zu bytes", j->s.name, (size_t)r.n_row);
    if (st == CORUN_OK) st = append(j, KIND_HEADER, &r, "", text);
    free(text);
    TRY(st);
    j->n_group = 1;
    TRY(journal_sync(j));
    folder_sync(j->p->folder);
    return CORUN_OK;
}

corun_status journal_add(journal *j, const journal_row *r, const char *message, const char *row)
{
    if (j->n_group == 0) j->group_begin = clock_seconds();
    TRY(append(j, KIND_ROW, r, message, row));
    j->n_rows++;
    j->n_group++;
    j->group_bytes += r->n_row;
    return j->n_group >= JOURNAL_GROUP || j->group_bytes >= JOURNAL_GROUP_BYTES ? journal_sync(j)
                                                                                : CORUN_OK;
}

corun_status journal_tick(journal *j)
{
    if (j->n_group == 0 || clock_seconds() - j->group_begin < JOURNAL_GROUP_SECONDS)
        return CORUN_OK;
    return journal_sync(j);
}

corun_status journal_sync(journal *j)
{
    if (j->n_group == 0) return CORUN_OK;
    if (fdatasync(j->s.fd) != 0) FAIL(CORUN_EIO, "%s: %s", j->s.name, strerror(errno));
    j->n_group = 0;
    j->group_bytes = 0;
    return CORUN_OK;
}

/* ---- reading back ------------------------------------------------------------------------ */

void journal_rewind(journal *j)
{
    j->s.size = j->end;
    j->at = 0;
    memset(j->where, 0, sizeof j->where);
}

corun_status journal_find(journal *j, uint64_t index, journal_row *r, bool *found)
{
    frame f;
    bool whole = true;
    uint64_t *at = &j->where[index % JOURNAL_WINDOW];
    while (*at == 0 && j->at < j->s.size) {
        TRY(read_frame(&j->s, j->at, &f, &whole));
        if (!whole || (f.kind == KIND_ROW && f.r.index - index >= JOURNAL_WINDOW))
            FAIL(CORUN_EIO, "%s: byte %llu: changed while it was in use", j->s.name,
                 (unsigned long long)j->at);
        if (f.kind == KIND_ROW) j->where[f.r.index % JOURNAL_WINDOW] = f.r.at;
        j->at = f.end;
    }
    *found = *at != 0;
    if (!*found) return CORUN_OK;
    TRY(read_frame(&j->s, *at, &f, &whole));
    if (!whole || f.r.index != index)
        FAIL(CORUN_EIO, "%s: byte %llu: changed while it was in use", j->s.name,
             (unsigned long long)*at);
    *at = 0;
    *r = f.r;
    return CORUN_OK;
}

corun_status journal_message(const journal *j, const journal_row *r, buf *b)
{
    char text[JOURNAL_MAX_MESSAGE];
    TRY(read_at(&j->s, r->at + HEAD, text, r->n_message));
    buf_put(b, text, r->n_message);
    return buf_status(b);
}

corun_status journal_copy(const journal *j, const journal_row *r, sink *to)
{
    char block[BLOCK];
    uint64_t at = r->at + HEAD + r->n_message, end = at + r->n_row;
    while (at < end) {
        size_t n = end - at < BLOCK ? (size_t)(end - at) : BLOCK;
        TRY(read_at(&j->s, at, block, n));
        TRY(sink_put(to, block, n));
        at += n;
    }
    return CORUN_OK;
}

/* ---- end --------------------------------------------------------------------------------- */

corun_status journal_remove(journal *j)
{
    j->removed = true;
    if (unlink(j->s.name) != 0)
        FAIL(CORUN_EIO, "%s: the output is complete, but this cannot be removed: %s", j->s.name,
             strerror(errno));
    folder_sync(j->p->folder);
    return CORUN_OK;
}

void journal_close(journal *j)
{
    if (!j) return;
    if (!j->removed && j->n_rows == 0)
        unlink(j->s.name);
    else if (j->n_group && fdatasync(j->s.fd) != 0) { /* the records' digests tell */
    }
    if (j->s.fd >= 0) close(j->s.fd);
    json_decref(j->header);
    digest_close(j->s.stream);
    mem_free(j);
}
