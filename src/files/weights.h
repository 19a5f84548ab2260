/* weights.h - bytes on disk to named tensors, read in pieces.
 *
 * Nothing is mapped: a file that shrinks is an error, not a signal. Parsing (from bytes) is apart
 * from opening (from a path). Every length is checked against the bytes that remain before
 * anything is allocated. After weights_open all calls but weights_close may come from several
 * threads at once. */
#ifndef FILES_WEIGHTS_H
#define FILES_WEIGHTS_H

#include "base/digest.h"
#include "base/mem.h"

typedef enum weights_dtype {
    WEIGHTS_F32,
    WEIGHTS_F16,
    WEIGHTS_BF16,
    WEIGHTS_F8_E4M3,
    WEIGHTS_F8_E8M0,
    WEIGHTS_Q4_0,
    WEIGHTS_Q4_1,
    WEIGHTS_Q5_0,
    WEIGHTS_Q5_1,
    WEIGHTS_Q8_0,
    WEIGHTS_Q4_K,
    WEIGHTS_Q5_K,
    WEIGHTS_Q6_K,
    WEIGHTS_OTHER /* legal in the format, but nothing that we read */
} weights_dtype;

const char *weights_dtype_name(weights_dtype t);

#define WEIGHTS_MAX_DIM 8

typedef struct weights_tensor {
    const char *name;
    weights_dtype dtype;
    const char *dtype_text; /* as the file spells it */
    int32_t n_dim;
    int64_t dim[WEIGHTS_MAX_DIM]; /* PyTorch order: the last one is contiguous */
    int32_t file;                 /* index of the shard */
    uint64_t offset, bytes;       /* in that file */
} weights_tensor;

typedef struct weights weights;

/* Opens model.safetensors, a sharded set (model.safetensors.index.json) or a GGUF file (split
 * files too). path is the folder or the .gguf file (any part of a split set). Every file stays
 * open until weights_close (NULL is fine). */
corun_status weights_open(weights **out, const char *path);
void weights_close(weights *w);

/* Tensors in the caller's memory, which must stay until weights_close: row-major, little-endian,
 * of type F32, F16 or BF16; name, dtype, n_dim and dim are read, and copied. gguf: names and rows
 * are those of a GGUF file. Read as a file with the same tensors, with the same digest. */
typedef struct weights_array {
    weights_tensor t;
    const void *data;
} weights_array;
corun_status weights_of_arrays(weights **out, const weights_array *a, size_t n, bool gguf);

bool weights_is_gguf(const weights *w);
size_t weights_count(const weights *w);
/* How many tensors there are of each type, as "F32 61, Q4_1 211". */
void weights_types(const weights *w, char *out, size_t cap);
const weights_tensor *weights_at(const weights *w, size_t i); /* in order of name */
size_t weights_index(const weights *w, const weights_tensor *t);
/* By its name as the file has it; NULL: not there. */
const weights_tensor *weights_find(const weights *w, const char *name);
/* The tensor, or an error that names it: missing, or of another shape than dim[n_dim]. */
corun_status weights_need(const weights *w, const char *name, int n_dim, const int64_t *dim,
                          const weights_tensor **out);

/* Rows [row, row + n) of a tensor seen as a matrix [all but last dims][last dim] (one row when it
 * has fewer than two), to bf16 (other types: fp32 by the format's formula, then one rounding to
 * bf16, to nearest even; a NaN stays one). CORUN_EINVAL for rows that do not exist,
 * CORUN_EUNSUPPORTED for a type that we do not read, CORUN_EIO when the file has shrunk.
 *
 * The content digest is made of pieces of WEIGHTS_PIECE_ROWS rows. A call digests the pieces that
 * it covers whole while their bytes are at hand, in any order and on any thread; what no call
 * covered whole is read once more by weights_digest. So read multiples of that many rows. */
#define WEIGHTS_PIECE_ROWS 32

corun_status weights_read_bf16(weights *w, const weights_tensor *t, int64_t row, int64_t n,
                               uint16_t *out);
corun_status weights_read_f32(weights *w, const weights_tensor *t, int64_t row, int64_t n,
                              float *out);
/* Digest of the tensors' content: for all tensors in order of name: name, dtype, shape and the
 * digest of each piece of raw bytes. It does not depend on shards, on header layout or on how the
 * tensors were read. */
corun_status weights_digest(weights *w, digest *out);

/* GGUF metadata (weights_is_gguf): value of a key. */
typedef enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64
} gguf_type;

typedef struct gguf_value {
    gguf_type type;
    gguf_type item;   /* ARRAY: type of the items (never ARRAY) */
    uint64_t count;   /* ARRAY: items; STRING: bytes */
    const char *data; /* the raw little-endian bytes; a string array: u64 length + bytes each, all
                         of them checked; a BOOL is 0 or 1 */
    uint64_t bytes;   /* at data */
} gguf_value;

const gguf_value *weights_meta(const weights *w, const char *key); /* NULL: not there */
size_t weights_meta_count(const weights *w);
const char *weights_meta_key(const weights *w, size_t i); /* in order of key */
/* False when the key is absent or of another kind. Any integer type that fits is taken. */
bool weights_meta_int(const weights *w, const char *key, int64_t *out);
bool weights_meta_double(const weights *w, const char *key, double *out);
bool weights_meta_bool(const weights *w, const char *key, bool *out);
bool weights_meta_str(const weights *w, const char *key, const char **s, size_t *len);

/* ---- the parsers, apart from files (fuzz targets) ------------------------------------------- */

typedef struct safetensors_header safetensors_header;
/* data: the first bytes of a file of file_bytes bytes: 8 + header length of them. */
corun_status safetensors_parse(safetensors_header **out, const char *data, size_t len,
                               uint64_t file_bytes, const char *what);
size_t safetensors_count(const safetensors_header *h);
const weights_tensor *safetensors_at(const safetensors_header *h, size_t i); /* in order of name */
void safetensors_free(safetensors_header *h);

typedef struct gguf_header gguf_header;
/* data: a prefix of the file; *need > len asks for at least that many bytes instead (CORUN_OK,
 * *out NULL). The values of the metadata point into data, which must outlive the header. */
corun_status gguf_parse(gguf_header **out, const char *data, size_t len, uint64_t file_bytes,
                        const char *what, uint64_t *need);
size_t gguf_count(const gguf_header *h);
const weights_tensor *gguf_at(const gguf_header *h, size_t i); /* in order of name */
size_t gguf_meta_count(const gguf_header *h);
const char *gguf_meta_key(const gguf_header *h, size_t i);
const gguf_value *gguf_meta(const gguf_header *h, const char *key);
void gguf_free(gguf_header *h);

/* n values of a readable type to fp32, or to bf16 (fp32 and one rounding; bf16 is copied). n is a
 * multiple of the block; src needs no alignment. */
void dequant_row(weights_dtype t, const void *src, int64_t n, float *out);
void dequant_row_bf16(weights_dtype t, const void *src, int64_t n, uint16_t *out);
int32_t dequant_block(weights_dtype t);       /* values a block (1: plain) */
int32_t dequant_block_bytes(weights_dtype t); /* bytes a block; 0: not readable */

#endif
