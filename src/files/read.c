/* read.c - owns reading the rows of tensors and the digest of their content.
 *
 * Invariant: a piece of a tensor gets its digest once, from its bytes as the file gave them,
 * whichever call and thread reads them; memory use does not depend on the size of a tensor. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "files/weights_impl.h"

#define CHUNK 65536 /* bytes read at once, on the stack: holds whole blocks of every type */

corun_status weights_pread(const weights_file *f, uint64_t offset, void *out, size_t n)
{
    char *p = out;
    if (f->mem) {
        memcpy(out, f->mem + offset, n);
        return CORUN_OK;
    }
    while (n > 0) {
        ssize_t got = pread(f->fd, p, n, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0)
            FAIL(CORUN_EIO, "%s: reading at %llu: %s", f->path, (unsigned long long)offset,
                 strerror(errno));
        if (got == 0)
            FAIL(CORUN_EIO, "%s: the file has shrunk: nothing at %llu, it had %llu bytes", f->path,
                 (unsigned long long)offset, (unsigned long long)f->size);
        p += got;
        n -= (size_t)got;
        offset += (uint64_t)got;
    }
    return CORUN_OK;
}

corun_status weights_set_rows(weights *w)
{
    uint64_t pieces = 0;
    w->rows = mem_alloc(w->n, sizeof *w->rows, "tensor rows");
    if (!w->rows) return CORUN_ENOMEM;
    for (size_t i = 0; i < w->n; i++) {
        const weights_tensor *t = &w->t[i];
        weights_rows *r = &w->rows[i];
        r->piece = pieces;
        if (t->bytes == 0) continue;
        r->n_row = r->n_col = 1;
        for (int32_t d = 0; d < t->n_dim; d++) {
            if (d == t->n_dim - 1)
                r->n_col = t->dim[d];
            else
                r->n_row *= t->dim[d]; /* no overflow: the tensor lies in a file */
        }
        if (t->dtype == WEIGHTS_OTHER) r->n_row = 1;
        r->row_bytes = t->bytes / (uint64_t)r->n_row;
        pieces += ((uint64_t)r->n_row + WEIGHTS_PIECE_ROWS - 1) / WEIGHTS_PIECE_ROWS;
    }
    w->piece = mem_alloc(pieces, sizeof *w->piece, "piece digests");
    w->done = mem_alloc(pieces, sizeof *w->done, "piece states");
    return w->piece && w->done ? CORUN_OK : CORUN_ENOMEM;
}

/* Where the values of a read go; both NULL: they are only digested. */
typedef struct sink {
    weights_dtype type;
    float *f32;
    uint16_t *bf16;
} sink;

static void put(sink *s, const void *src, size_t bytes)
{
    if (!s->f32 && !s->bf16) return;
    int64_t n = (int64_t)(bytes / (size_t)dequant_block_bytes(s->type)) * dequant_block(s->type);
    if (s->f32) {
        dequant_row(s->type, src, n, s->f32);
        s->f32 += n;
    } else {
        dequant_row_bf16(s->type, src, n, s->bf16);
        s->bf16 += n;
    }
}

/* Bytes of a file to the sink, and their digest where d is not NULL. */
static corun_status stream(const weights_file *f, uint64_t offset, uint64_t bytes, sink *s,
                           digest *d)
{
    char chunk[CHUNK];
    size_t unit = (size_t)dequant_block_bytes(s->type), step = CHUNK - CHUNK % (unit ? unit : 1);
    digest_stream *ds = NULL;
    corun_status st = CORUN_OK;
    if (d && bytes > step && !(ds = digest_open())) return CORUN_ENOMEM;
    while (bytes > 0) {
        size_t n = bytes < step ? (size_t)bytes : step;
        TRY_OR_DONE(weights_pread(f, offset, chunk, n));
        if (ds)
            digest_add(ds, chunk, n);
        else if (d)
            *d = digest_of(chunk, n);
        put(s, chunk, n);
        offset += n;
        bytes -= n;
    }
    if (ds) *d = digest_value(ds);
done:
    if (ds) digest_close(ds);
    return st;
}

/* Rows [row, end) of one piece, to the sink; the piece gets its digest when they are all of it. */
static corun_status read_piece(weights *w, size_t i, int64_t row, int64_t end, sink *s)
{
    const weights_tensor *t = &w->t[i];
    const weights_rows *r = &w->rows[i];
    int64_t k = row / WEIGHTS_PIECE_ROWS, first = k * WEIGHTS_PIECE_ROWS;
    int64_t last = r->n_row - first < WEIGHTS_PIECE_ROWS ? r->n_row : first + WEIGHTS_PIECE_ROWS;
    uint64_t p = r->piece + (uint64_t)k;
    uint8_t open = PIECE_OPEN;
    digest d;
    bool mine = row == first && end == last &&
                atomic_compare_exchange_strong(&w->done[p], &open, PIECE_CLAIMED);
    corun_status st = stream(&w->file[t->file], t->offset + (uint64_t)row * r->row_bytes,
                             (uint64_t)(end - row) * r->row_bytes, s, mine ? &d : NULL);
    if (mine) {
        if (st == CORUN_OK) w->piece[p] = d;
        atomic_store(&w->done[p], st == CORUN_OK ? PIECE_DONE : PIECE_OPEN);
    }
    return st;
}

static corun_status read_rows(weights *w, const weights_tensor *t, int64_t row, int64_t n, sink *s)
{
    if (t < w->t || t >= w->t + w->n)
        FAIL(CORUN_EINVAL, "%s: the tensor is of another file", w->path);
    size_t i = (size_t)(t - w->t);
    const weights_rows *r = &w->rows[i];
    if (!dequant_block_bytes(t->dtype))
        FAIL(CORUN_EUNSUPPORTED, "%s: tensor \"%s\" has type %s, which cannot be read", w->path,
             t->name, t->dtype_text);
    if (row < 0 || n < 0 || n > r->n_row - row)
        FAIL(CORUN_EINVAL, "%s: tensor \"%s\" has %lld rows, not %lld from %lld on", w->path,
             t->name, (long long)r->n_row, (long long)n, (long long)row);
    s->type = t->dtype;
    for (int64_t end = row + n; row < end;) {
        int64_t next = (row / WEIGHTS_PIECE_ROWS + 1) * WEIGHTS_PIECE_ROWS;
        if (next > end) next = end;
        corun_status st = read_piece(w, i, row, next, s);
        if (st != CORUN_OK) return err_prefix(st, "tensor \"%s\"", t->name);
        row = next;
    }
    return CORUN_OK;
}

corun_status weights_read_bf16(weights *w, const weights_tensor *t, int64_t row, int64_t n,
                               uint16_t *out)
{
    return read_rows(w, t, row, n, &(sink){.bf16 = out});
}

corun_status weights_read_f32(weights *w, const weights_tensor *t, int64_t row, int64_t n,
                              float *out)
{
    return read_rows(w, t, row, n, &(sink){.f32 = out});
}

/* What names a tensor in the digest, then the values of its pieces. */
static corun_status add_tensor(weights *w, size_t i, digest_stream *ds)
{
    const weights_tensor *t = &w->t[i];
    const weights_rows *r = &w->rows[i];
    int64_t n_dim = t->n_dim;
    digest_add(ds, t->name, strlen(t->name) + 1);
    digest_add(ds, t->dtype_text, strlen(t->dtype_text) + 1);
    digest_add(ds, &n_dim, sizeof n_dim);
    digest_add(ds, t->dim, (size_t)n_dim * sizeof *t->dim);
    for (int64_t row = 0; row < r->n_row; row += WEIGHTS_PIECE_ROWS) {
        uint64_t p = r->piece + (uint64_t)(row / WEIGHTS_PIECE_ROWS);
        digest d;
        if (atomic_load(&w->done[p]) == PIECE_DONE) {
            d = w->piece[p];
        } else {
            int64_t n = r->n_row - row < WEIGHTS_PIECE_ROWS ? r->n_row - row : WEIGHTS_PIECE_ROWS;
            corun_status st = stream(&w->file[t->file], t->offset + (uint64_t)row * r->row_bytes,
                                     (uint64_t)n * r->row_bytes, &(sink){.type = t->dtype}, &d);
            if (st != CORUN_OK) return err_prefix(st, "tensor \"%s\"", t->name);
        }
        digest_add(ds, &d.hi, sizeof d.hi);
        digest_add(ds, &d.lo, sizeof d.lo);
    }
    return CORUN_OK;
}

corun_status weights_digest(weights *w, digest *out)
{
    corun_status st = CORUN_OK;
    digest_stream *ds = digest_open();
    if (!ds) return CORUN_ENOMEM;
    for (size_t i = 0; i < w->n && st == CORUN_OK; i++) st = add_tensor(w, i, ds);
    if (st == CORUN_OK) *out = digest_value(ds);
    digest_close(ds);
    return st;
}
