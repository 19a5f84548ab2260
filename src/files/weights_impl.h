/* weights_impl.h - what weights.c (opening, names) and read.c (rows, digest) share. */
#ifndef FILES_WEIGHTS_IMPL_H
#define FILES_WEIGHTS_IMPL_H

#include <stdatomic.h>

#include "files/weights.h"

typedef struct weights_file {
    int fd;
    char *path;
    uint64_t size;
    safetensors_header *st;
    gguf_header *gguf;
    char *data;      /* the bytes that the metadata of gguf points into */
    const char *mem; /* not NULL: no file, but memory of the caller */
} weights_file;

typedef enum piece_state { PIECE_OPEN, PIECE_CLAIMED, PIECE_DONE } piece_state;

/* How a tensor is read: as rows of row_bytes, in pieces of WEIGHTS_PIECE_ROWS rows. */
typedef struct weights_rows {
    int64_t n_row;      /* 0 when the tensor has no bytes */
    int64_t n_col;      /* values a row */
    uint64_t row_bytes; /* a type that we do not read is one row of all its bytes */
    uint64_t piece;     /* index of the first piece */
} weights_rows;

struct weights {
    char *path;
    weights_file *file;
    size_t n_file;
    bool gguf;
    weights_tensor *t; /* sorted by name */
    char *names;       /* of arrays; names of files belong to their headers */
    weights_rows *rows;
    size_t n;
    digest *piece;         /* value of each piece, once its state is PIECE_DONE */
    _Atomic uint8_t *done; /* piece_state */
};

/* Sorts the table by name; a name that stands twice is an error. */
corun_status weights_sort(weights *w);
/* n bytes at offset, or CORUN_EIO. */
corun_status weights_pread(const weights_file *f, uint64_t offset, void *out, size_t n);
/* Fills w->rows and makes the pieces. */
corun_status weights_set_rows(weights *w);

#endif
