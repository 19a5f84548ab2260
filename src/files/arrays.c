/* arrays.c - owns weights that lie in the caller's memory instead of in files. Invariant: they are
 * read, and digested, as a file with the same tensors would be. */
#include <string.h>

#include "files/weights_impl.h"

/* Bytes of one tensor; its type and shape are checked. */
static corun_status size_of(const weights_array *a, uint64_t *bytes)
{
    const weights_tensor *t = &a->t;
    size_t n = (size_t)dequant_block_bytes(t->dtype);
    if (t->dtype != WEIGHTS_F32 && t->dtype != WEIGHTS_F16 && t->dtype != WEIGHTS_BF16)
        FAIL(CORUN_EINVAL, "tensor \"%s\": the type is not F32, F16 or BF16", t->name);
    if (t->n_dim < 0 || t->n_dim > WEIGHTS_MAX_DIM)
        FAIL(CORUN_EINVAL, "tensor \"%s\": %d dimensions, at most %d", t->name, t->n_dim,
             WEIGHTS_MAX_DIM);
    for (int32_t i = 0; i < t->n_dim; i++)
        if (t->dim[i] < 0 || !mem_mul(n, (size_t)t->dim[i], &n) || n > SIZE_MAX / 2)
            FAIL(CORUN_EINVAL, "tensor \"%s\": the shape has no size", t->name);
    if (!a->data && n) FAIL(CORUN_EINVAL, "tensor \"%s\": no data", t->name);
    *bytes = n;
    return CORUN_OK;
}

static corun_status gather(weights *w, const weights_array *a, size_t n)
{
    static const char path[] = "arrays";
    size_t names = 0;
    w->path = mem_dup(path, sizeof path - 1, "path");
    w->t = mem_alloc(n, sizeof *w->t, "tensor table");
    w->file = mem_alloc(n, sizeof *w->file, "weight files");
    if (!w->path || !w->t || !w->file) return CORUN_ENOMEM;
    for (size_t i = 0; i < n; i++) {
        w->file[i].fd = -1;
        names += strlen(a[i].t.name) + 1;
    }
    w->n_file = n;
    if (!(w->names = mem_alloc(names, 1, "tensor names"))) return CORUN_ENOMEM;
    char *name = w->names;
    for (size_t i = 0; i < n; i++) {
        weights_tensor *t = &w->t[w->n++];
        size_t len = strlen(a[i].t.name) + 1;
        *t = a[i].t;
        TRY(size_of(&a[i], &t->bytes));
        t->name = memcpy(name, a[i].t.name, len);
        name += len;
        t->dtype_text = weights_dtype_name(t->dtype);
        t->file = (int32_t)i;
        t->offset = 0;
        w->file[i].mem = a[i].data ? a[i].data : "";
        w->file[i].size = t->bytes;
        if (!(w->file[i].path = mem_dup(path, sizeof path - 1, "path"))) return CORUN_ENOMEM;
    }
    TRY(weights_sort(w));
    return weights_set_rows(w);
}

corun_status weights_of_arrays(weights **out, const weights_array *a, size_t n, bool gguf)
{
    *out = NULL;
    if (n > INT32_MAX) FAIL(CORUN_EINVAL, "%zu tensors are too many", n);
    weights *w = mem_alloc(1, sizeof *w, "weights");
    if (!w) return CORUN_ENOMEM;
    w->gguf = gguf;
    corun_status st = gather(w, a, n);
    if (st == CORUN_OK)
        *out = w;
    else
        weights_close(w);
    return st;
}
