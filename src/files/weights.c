/* weights.c - owns open weight files: which files make a model, and its table of tensors.
 *
 * Invariant: each name stands once in the table and belongs to a file whose header was checked. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "files/weights_impl.h"

#define FILES_MAX  4096
#define INDEX_MAX  ((size_t)1 << 28)
#define FIRST_READ ((uint64_t)1 << 20)

/* ---- one file -------------------------------------------------------------------------------- */

/* Room for n files, none of them open. NULL: no memory, text set. */
static weights_file *alloc_files(size_t n)
{
    weights_file *f = mem_alloc(n, sizeof *f, "weight files");
    for (size_t i = 0; f && i < n; i++) f[i].fd = -1;
    return f;
}

static corun_status open_file(weights_file *f, const char *path)
{
    struct stat sb;
    f->path = mem_dup(path, strlen(path), "path");
    if (!f->path) return CORUN_ENOMEM;
    f->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not hang us */
    if (f->fd < 0 || fstat(f->fd, &sb) != 0)
        FAIL(file_refusal(errno), "%s: %s", path, strerror(errno));
    if (!S_ISREG(sb.st_mode)) FAIL(CORUN_EFORMAT, "%s: not a regular file", path);
    f->size = (uint64_t)sb.st_size;
    return CORUN_OK;
}

static corun_status open_safetensors(weights_file *f, const char *path)
{
    uint64_t n = 0;
    char first[8] = {0}, *data = NULL;
    TRY(open_file(f, path));
    size_t len = f->size < 8 ? (size_t)f->size : 8;
    TRY(weights_pread(f, 0, first, len));
    memcpy(&n, first, sizeof n);
    if (len < 8 || n > f->size - 8 || n > INDEX_MAX) /* the parser says what is wrong */
        return safetensors_parse(&f->st, first, len, f->size, path);
    data = mem_alloc(8 + n, 1, "safetensors header");
    if (!data) return CORUN_ENOMEM;
    corun_status st = weights_pread(f, 0, data, 8 + n);
    if (st == CORUN_OK) st = safetensors_parse(&f->st, data, 8 + n, f->size, path);
    mem_free(data);
    return st;
}

static corun_status open_gguf(weights_file *f, const char *path)
{
    uint64_t have = 0, want = FIRST_READ;
    TRY(open_file(f, path));
    for (;;) {
        if (want > f->size) want = f->size;
        char *p = mem_realloc(f->data, want, 1, "GGUF header");
        if (!p) return CORUN_ENOMEM;
        f->data = p;
        TRY(weights_pread(f, have, f->data + have, want - have));
        have = want;
        TRY(gguf_parse(&f->gguf, f->data, have, f->size, path, &want));
        if (f->gguf) return CORUN_OK;
        if (want < 2 * have) want = 2 * have;
    }
}

/* ---- the table ------------------------------------------------------------------------------- */

static int by_name(const void *pa, const void *pb)
{
    return strcmp(((const weights_tensor *)pa)->name, ((const weights_tensor *)pb)->name);
}

static const weights_tensor *find_exact(const weights_tensor *t, size_t n, const char *name)
{
    weights_tensor key = {.name = name};
    return n ? bsearch(&key, t, n, sizeof *t, by_name) : NULL;
}

corun_status weights_sort(weights *w)
{
    if (w->n) qsort(w->t, w->n, sizeof *w->t, by_name);
    for (size_t i = 1; i < w->n; i++)
        if (strcmp(w->t[i - 1].name, w->t[i].name) == 0)
            FAIL(CORUN_EFORMAT, "tensor \"%s\" stands in %s and in %s", w->t[i].name,
                 w->file[w->t[i - 1].file].path, w->file[w->t[i].file].path);
    return CORUN_OK;
}

/* All tensors of all files; a name that stands in two files is an error. */
static corun_status gather(weights *w)
{
    size_t total = 0;
    for (size_t f = 0; f < w->n_file; f++)
        total += w->gguf ? gguf_count(w->file[f].gguf) : safetensors_count(w->file[f].st);
    w->t = mem_alloc(total, sizeof *w->t, "tensor table");
    if (!w->t) return CORUN_ENOMEM;
    for (size_t f = 0; f < w->n_file; f++) {
        size_t n = w->gguf ? gguf_count(w->file[f].gguf) : safetensors_count(w->file[f].st);
        for (size_t i = 0; i < n; i++) {
            w->t[w->n] = w->gguf ? *gguf_at(w->file[f].gguf, i) : *safetensors_at(w->file[f].st, i);
            w->t[w->n++].file = (int32_t)f;
        }
    }
    return weights_sort(w);
}

/* ---- a folder with safetensors ----------------------------------------------------------------
 */

static corun_status join(char out[PATH_MAX], const char *folder, const char *name)
{
    int n = snprintf(out, PATH_MAX, "%s/%s", folder, name);
    if (n < 0 || n >= PATH_MAX) FAIL(CORUN_EINVAL, "%s/%s: the path is too long", folder, name);
    return CORUN_OK;
}

/* One line of the index: a tensor and the file that holds it. */
typedef struct place {
    const char *name, *file;
} place;

static int by_file(const void *pa, const void *pb)
{
    const place *a = pa, *b = pb;
    int r = strcmp(a->file, b->file);
    return r ? r : strcmp(a->name, b->name);
}

/* The weight_map as an array sorted by file, and the number of files. */
static corun_status read_places(const json_t *root, const char *path, place **out, size_t *n,
                                size_t *n_file)
{
    const json_t *map = json_object_get(root, "weight_map");
    const char *key;
    json_t *val;
    if (!json_is_object(map)) FAIL(CORUN_EFORMAT, "%s: weight_map is missing or no object", path);
    if (json_object_size(map) == 0) FAIL(CORUN_EFORMAT, "%s: weight_map is empty", path);
    place *p = *out = mem_alloc(json_object_size(map), sizeof *p, "weight_map");
    if (!p) return CORUN_ENOMEM;
    *n = 0;
    json_object_foreach ((json_t *)(uintptr_t)map, key, val) {
        const char *file = json_string_value(val);
        if (!file) FAIL(CORUN_EFORMAT, "%s: weight_map: \"%s\" is no string", path, key);
        if (!*file || strlen(file) != json_string_length(val) || strchr(file, '/') ||
            strchr(file, '\\') || strcmp(file, ".") == 0 || strcmp(file, "..") == 0)
            FAIL(CORUN_EFORMAT, "%s: weight_map: \"%s\": \"%s\" is no plain file name", path, key,
                 file);
        p[(*n)++] = (place){key, file};
    }
    qsort(p, *n, sizeof *p, by_file);
    *n_file = 1;
    for (size_t i = 1; i < *n; i++) *n_file += strcmp(p[i - 1].file, p[i].file) != 0;
    if (*n_file > FILES_MAX)
        FAIL(CORUN_EFORMAT, "%s: weight_map names %zu files, more than %d", path, *n_file,
             FILES_MAX);
    return CORUN_OK;
}

/* The tensors that the index names, each from the file that it names. */
static corun_status gather_places(weights *w, const char *folder, const place *p, size_t n)
{
    char path[PATH_MAX];
    w->t = mem_alloc(n, sizeof *w->t, "tensor table");
    if (!w->t) return CORUN_ENOMEM;
    size_t f = 0;
    for (size_t i = 0; i < n; i++) {
        if (i > 0 && strcmp(p[i - 1].file, p[i].file) != 0) f++;
        weights_file *wf = &w->file[f];
        if (!wf->st) {
            TRY(join(path, folder, p[i].file));
            TRY(open_safetensors(wf, path));
        }
        const weights_tensor *t =
            safetensors_count(wf->st)
                ? find_exact(safetensors_at(wf->st, 0), safetensors_count(wf->st), p[i].name)
                : NULL;
        if (!t)
            FAIL(CORUN_EFORMAT, "%s: tensor \"%s\" is not there, but the index says so", wf->path,
                 p[i].name);
        w->t[w->n] = *t;
        w->t[w->n++].file = (int32_t)f;
    }
    qsort(w->t, w->n, sizeof *w->t, by_name);
    return CORUN_OK;
}

static corun_status open_index(weights *w, const char *folder, const char *path, bool has_single)
{
    json_t *root = NULL;
    place *p = NULL;
    size_t n = 0, n_file = 0;
    bool single_named = false;
    corun_status st;
    TRY_OR_DONE(json_read_file(&root, path, INDEX_MAX));
    TRY_OR_DONE(read_places(root, path, &p, &n, &n_file));
    for (size_t i = 0; i < n; i++) single_named |= strcmp(p[i].file, "model.safetensors") == 0;
    if (has_single && !single_named)
        FAIL_OR_DONE(CORUN_EFORMAT,
                     "%s does not name model.safetensors, which is there too: "
                     "remove one of them",
                     path);
    if (!(w->file = alloc_files(n_file))) {
        st = CORUN_ENOMEM;
        goto done;
    }
    w->n_file = n_file;
    st = gather_places(w, folder, p, n);
done:
    mem_free(p);
    json_decref(root);
    return st;
}

static corun_status open_folder(weights *w, const char *folder)
{
    char single[PATH_MAX], index[PATH_MAX];
    TRY(join(single, folder, "model.safetensors"));
    TRY(join(index, folder, "model.safetensors.index.json"));
    if (file_exists(index)) return open_index(w, folder, index, file_exists(single));
    if (!file_exists(single))
        FAIL(CORUN_EFORMAT,
             "%s: neither model.safetensors nor model.safetensors.index.json is there", folder);
    if (!(w->file = alloc_files(1))) return CORUN_ENOMEM;
    w->n_file = 1;
    TRY(open_safetensors(&w->file[0], single));
    return gather(w);
}

/* ---- a GGUF file or a split set ---------------------------------------------------------------
 */

static bool int_value(const gguf_value *v, int64_t *out);

static corun_status split_key(const weights_file *f, const char *key, int64_t lo, int64_t hi,
                              int64_t *out)
{
    const gguf_value *v = gguf_meta(f->gguf, key);
    if (!v || !int_value(v, out))
        FAIL(CORUN_EFORMAT, "%s: key \"%s\" of a split file is missing or no integer", f->path,
             key);
    if (*out < lo || *out > hi)
        FAIL(CORUN_EFORMAT, "%s: key \"%s\" is %lld, not %lld to %lld", f->path, key,
             (long long)*out, (long long)lo, (long long)hi);
    return CORUN_OK;
}

/* Checks that an open part is part no of count. */
static corun_status check_part(const weights_file *f, int64_t no, int64_t count)
{
    int64_t x;
    TRY(split_key(f, "split.count", 1, FILES_MAX, &x));
    if (x != count)
        FAIL(CORUN_EFORMAT, "%s: key \"split.count\" is %lld, but %lld in the first part", f->path,
             (long long)x, (long long)count);
    TRY(split_key(f, "split.no", 0, count - 1, &x));
    if (x != no)
        FAIL(CORUN_EFORMAT, "%s: key \"split.no\" is %lld, but %lld by the file's name", f->path,
             (long long)x, (long long)no);
    return CORUN_OK;
}

static corun_status open_split(weights *w, const char *path, int64_t no, int64_t count)
{
    char tail[64], part[PATH_MAX];
    int n = snprintf(tail, sizeof tail, "-%05d-of-%05d.gguf", (int)no + 1, (int)count);
    size_t len = strlen(path), stem = len - (size_t)n;
    if (len < (size_t)n || strcmp(path + stem, tail) != 0)
        FAIL(CORUN_EFORMAT, "%s: a split file of part %d of %d, but its name does not end in %s",
             path, (int)no + 1, (int)count, tail);
    weights_file *all = alloc_files((size_t)count);
    if (!all) return CORUN_ENOMEM;
    all[no] = w->file[0];
    mem_free(w->file);
    w->file = all;
    w->n_file = (size_t)count;
    for (int64_t i = 0; i < count; i++) {
        snprintf(tail, sizeof tail, "-%05d-of-%05d.gguf", (int)i + 1, (int)count);
        if (snprintf(part, sizeof part, "%.*s%s", (int)stem, path, tail) >= PATH_MAX)
            FAIL(CORUN_EINVAL, "%s: the path is too long", path);
        if (i != no) TRY(open_gguf(&w->file[i], part));
        TRY(check_part(&w->file[i], i, count));
    }
    return CORUN_OK;
}

static corun_status open_gguf_set(weights *w, const char *path)
{
    int64_t count = 1, no = 0, total;
    w->gguf = true;
    if (!(w->file = alloc_files(1))) return CORUN_ENOMEM;
    w->n_file = 1;
    TRY(open_gguf(&w->file[0], path));
    if (gguf_meta(w->file[0].gguf, "split.count"))
        TRY(split_key(&w->file[0], "split.count", 0, FILES_MAX, &count));
    if (count > 1) {
        TRY(split_key(&w->file[0], "split.no", 0, count - 1, &no));
        TRY(open_split(w, path, no, count));
    }
    TRY(gather(w));
    if (count > 1) {
        TRY(split_key(&w->file[0], "split.tensors.count", 0, INT64_MAX, &total));
        if ((uint64_t)total != w->n)
            FAIL(CORUN_EFORMAT, "%s: key \"split.tensors.count\" is %lld, the parts hold %zu",
                 w->file[0].path, (long long)total, w->n);
    }
    return CORUN_OK;
}

/* ---- open and close ---------------------------------------------------------------------------
 */

static corun_status open_path(weights *w, const char *path)
{
    struct stat sb;
    w->path = mem_dup(path, strlen(path), "path");
    if (!w->path) return CORUN_ENOMEM;
    if (stat(path, &sb) != 0) FAIL(file_refusal(errno), "%s: %s", path, strerror(errno));
    TRY(S_ISDIR(sb.st_mode) ? open_folder(w, path) : open_gguf_set(w, path));
    return weights_set_rows(w);
}

corun_status weights_open(weights **out, const char *path)
{
    *out = NULL;
    weights *w = mem_alloc(1, sizeof *w, "weights");
    if (!w) return CORUN_ENOMEM;
    corun_status st = open_path(w, path);
    if (st == CORUN_OK)
        *out = w;
    else
        weights_close(w);
    return st;
}

void weights_close(weights *w)
{
    if (!w) return;
    for (size_t i = 0; i < w->n_file; i++) {
        weights_file *f = &w->file[i];
        if (f->fd >= 0) close(f->fd);
        safetensors_free(f->st);
        gguf_free(f->gguf);
        mem_free(f->data);
        mem_free(f->path);
    }
    mem_free(w->file);
    mem_free(w->t);
    mem_free(w->rows);
    mem_free(w->piece);
    mem_free((void *)w->done);
    mem_free(w->names);
    mem_free(w->path);
    mem_free(w);
}

/* ---- names ------------------------------------------------------------------------------------
 */

bool weights_is_gguf(const weights *w) { return w->gguf; }
size_t weights_count(const weights *w) { return w->n; }
size_t weights_index(const weights *w, const weights_tensor *t) { return (size_t)(t - w->t); }
const weights_tensor *weights_at(const weights *w, size_t i) { return &w->t[i]; }

void weights_types(const weights *w, char *out, size_t cap)
{
    size_t n[WEIGHTS_OTHER + 1] = {0}, at = 0;
    for (size_t i = 0; i < weights_count(w); i++) n[weights_at(w, i)->dtype]++;
    if (cap) *out = 0;
    for (int t = 0; t <= WEIGHTS_OTHER && at < cap; t++)
        if (n[t])
            at += (size_t)snprintf(out + at, cap - at, "%s%s %zu", at ? ", " : "",
                                   weights_dtype_name((weights_dtype)t), n[t]);
}

const weights_tensor *weights_find(const weights *w, const char *name)
{
    return find_exact(w->t, w->n, name);
}

static void shape_text(char out[256], int n_dim, const int64_t *dim)
{
    size_t at = 0;
    at += (size_t)snprintf(out, 256, "[");
    for (int i = 0; i < n_dim; i++)
        at += (size_t)snprintf(out + at, 256 - at, "%s%lld", i ? ", " : "", (long long)dim[i]);
    snprintf(out + at, 256 - at, "]");
}

corun_status weights_need(const weights *w, const char *name, int n_dim, const int64_t *dim,
                          const weights_tensor **out)
{
    char have[256], want[256];
    if (n_dim < 0 || n_dim > WEIGHTS_MAX_DIM)
        FAIL(CORUN_EINVAL, "tensor \"%s\" with %d dimensions", name, n_dim);
    shape_text(want, n_dim, dim);
    const weights_tensor *t = *out = weights_find(w, name);
    if (!t) FAIL(CORUN_EFORMAT, "%s: tensor \"%s\" %s is missing", w->path, name, want);
    bool same = t->n_dim == n_dim;
    for (int i = 0; same && i < n_dim; i++) same = t->dim[i] == dim[i];
    if (same) return CORUN_OK;
    *out = NULL;
    shape_text(have, t->n_dim, t->dim);
    FAIL(CORUN_EFORMAT, "%s: tensor \"%s\" has shape %s, the model needs %s", w->file[t->file].path,
         t->name, have, want);
}

/* ---- metadata ---------------------------------------------------------------------------------
 */

const gguf_value *weights_meta(const weights *w, const char *key)
{
    return w->gguf ? gguf_meta(w->file[0].gguf, key) : NULL;
}

size_t weights_meta_count(const weights *w)
{
    return w->gguf ? gguf_meta_count(w->file[0].gguf) : 0;
}

const char *weights_meta_key(const weights *w, size_t i)
{
    return gguf_meta_key(w->file[0].gguf, i);
}

static bool int_value(const gguf_value *v, int64_t *out)
{
    union {
        uint8_t u8;
        int8_t i8;
        uint16_t u16;
        int16_t i16;
        uint32_t u32;
        int32_t i32;
        uint64_t u64;
        int64_t i64;
    } x;
    if (v->bytes > sizeof x || v->type == GGUF_ARRAY || v->type == GGUF_STRING) return false;
    memcpy(&x, v->data, v->bytes);
    switch (v->type) {
    case GGUF_U8: *out = x.u8; return true;
    case GGUF_I8: *out = x.i8; return true;
    case GGUF_U16: *out = x.u16; return true;
    case GGUF_I16: *out = x.i16; return true;
    case GGUF_U32: *out = x.u32; return true;
    case GGUF_I32: *out = x.i32; return true;
    case GGUF_I64: *out = x.i64; return true;
    case GGUF_U64:
        if (x.u64 > INT64_MAX) return false;
        *out = (int64_t)x.u64;
        return true;
    default: return false;
    }
}

bool weights_meta_int(const weights *w, const char *key, int64_t *out)
{
    const gguf_value *v = weights_meta(w, key);
    return v && int_value(v, out);
}

bool weights_meta_double(const weights *w, const char *key, double *out)
{
    const gguf_value *v = weights_meta(w, key);
    float f;
    if (v && v->type == GGUF_F64) {
        memcpy(out, v->data, sizeof *out);
    } else if (v && v->type == GGUF_F32) {
        memcpy(&f, v->data, sizeof f);
        *out = (double)f;
    } else {
        return false;
    }
    return true;
}

bool weights_meta_bool(const weights *w, const char *key, bool *out)
{
    const gguf_value *v = weights_meta(w, key);
    if (!v || v->type != GGUF_BOOL) return false;
    *out = v->data[0] != 0;
    return true;
}

bool weights_meta_str(const weights *w, const char *key, const char **s, size_t *len)
{
    const gguf_value *v = weights_meta(w, key);
    if (!v || v->type != GGUF_STRING) return false;
    *s = v->data;
    *len = v->count;
    return true;
}
