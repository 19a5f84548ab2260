/* safetensors.c - owns the parsing of a safetensors header.
 *
 * Invariant: a header that parses tiles the data of its file exactly: every byte after the header
 * belongs to one tensor and every tensor's size is what its type and shape need. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "files/weights.h"

#define HEADER_MAX 100000000u

struct safetensors_header {
    weights_tensor *t;
    size_t n;
    char *names;
};

static const struct {
    const char *name;
    weights_dtype type;
    int bits;
} dtypes[] = {
    {"BF16", WEIGHTS_BF16, 16},        {"F16", WEIGHTS_F16, 16},
    {"F32", WEIGHTS_F32, 32},          {"F8_E4M3", WEIGHTS_F8_E4M3, 8},
    {"F8_E8M0", WEIGHTS_F8_E8M0, 8},   {"F8_E5M2", WEIGHTS_OTHER, 8},
    {"F8_E4M3FNUZ", WEIGHTS_OTHER, 8}, {"F8_E5M2FNUZ", WEIGHTS_OTHER, 8},
    {"BOOL", WEIGHTS_OTHER, 8},        {"U8", WEIGHTS_OTHER, 8},
    {"I8", WEIGHTS_OTHER, 8},          {"U16", WEIGHTS_OTHER, 16},
    {"I16", WEIGHTS_OTHER, 16},        {"U32", WEIGHTS_OTHER, 32},
    {"I32", WEIGHTS_OTHER, 32},        {"U64", WEIGHTS_OTHER, 64},
    {"I64", WEIGHTS_OTHER, 64},        {"F64", WEIGHTS_OTHER, 64},
    {"C64", WEIGHTS_OTHER, 64},        {"F4", WEIGHTS_OTHER, 4},
    {"F6_E2M3", WEIGHTS_OTHER, 6},     {"F6_E3M2", WEIGHTS_OTHER, 6},
};

/* Type, then the size in bits of one element. */
static corun_status read_dtype(weights_tensor *t, const json_t *v, int *bits, const char *what)
{
    const char *s = json_string_value(v);
    if (!s) FAIL(CORUN_EFORMAT, "%s: tensor \"%s\": dtype is missing or no string", what, t->name);
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        if (strcmp(s, dtypes[i].name) != 0) continue;
        t->dtype = dtypes[i].type;
        t->dtype_text = dtypes[i].name;
        *bits = dtypes[i].bits;
        return CORUN_OK;
    }
    FAIL(CORUN_EFORMAT, "%s: tensor \"%s\": unknown dtype \"%s\"", what, t->name, s);
}

/* Shape, then the number of elements. The product must not overflow even where a dimension is 0. */
static corun_status read_shape(weights_tensor *t, const json_t *v, uint64_t *elems,
                               const char *what)
{
    uint64_t product = 1;
    bool zero = false;
    if (!json_is_array(v))
        FAIL(CORUN_EFORMAT, "%s: tensor \"%s\": shape is missing or no array", what, t->name);
    size_t n = json_array_size(v);
    if (n > WEIGHTS_MAX_DIM)
        FAIL(CORUN_EUNSUPPORTED, "%s: tensor \"%s\": %zu dimensions, more than %d", what, t->name,
             n, WEIGHTS_MAX_DIM);
    t->n_dim = (int32_t)n;
    for (size_t i = 0; i < n; i++) {
        const json_t *d = json_array_get(v, i);
        json_int_t x = json_integer_value(d);
        if (!json_is_integer(d) || x < 0)
            FAIL(CORUN_EFORMAT, "%s: tensor \"%s\": shape[%zu] is no integer from 0 on", what,
                 t->name, i);
        t->dim[i] = x;
        if (x == 0)
            zero = true;
        else if (__builtin_mul_overflow(product, (uint64_t)x, &product))
            FAIL(CORUN_EFORMAT, "%s: tensor \"%s\": the size of its shape overflows", what,
                 t->name);
    }
    *elems = zero ? 0 : product;
    return CORUN_OK;
}

static corun_status read_offsets(weights_tensor *t, const json_t *v, const char *what)
{
    json_int_t at[2];
    if (!json_is_array(v) || json_array_size(v) != 2)
        FAIL(CORUN_EFORMAT, "%s: tensor \"%s\": data_offsets is no array of two integers", what,
             t->name);
    for (size_t i = 0; i < 2; i++) {
        const json_t *x = json_array_get(v, i);
        at[i] = json_integer_value(x);
        if (!json_is_integer(x) || at[i] < 0)
            FAIL(CORUN_EFORMAT, "%s: tensor \"%s\": data_offsets[%zu] is no integer from 0 on",
                 what, t->name, i);
    }
    if (at[1] < at[0])
        FAIL(CORUN_EFORMAT, "%s: tensor \"%s\": data_offsets end before they begin", what, t->name);
    t->offset = (uint64_t)at[0];
    t->bytes = (uint64_t)(at[1] - at[0]);
    return CORUN_OK;
}

static corun_status read_entry(weights_tensor *t, const json_t *v, const char *what)
{
    int bits = 0;
    uint64_t elems = 0, size;
    if (!json_is_object(v))
        FAIL(CORUN_EFORMAT, "%s: tensor \"%s\": its entry is no object", what, t->name);
    TRY(read_dtype(t, json_object_get(v, "dtype"), &bits, what));
    TRY(read_shape(t, json_object_get(v, "shape"), &elems, what));
    TRY(read_offsets(t, json_object_get(v, "data_offsets"), what));
    if (__builtin_mul_overflow(elems, (uint64_t)bits, &size))
        FAIL(CORUN_EFORMAT, "%s: tensor \"%s\": the size of its shape overflows", what, t->name);
    if (size % 8 != 0)
        FAIL(CORUN_EFORMAT, "%s: tensor \"%s\": %llu bits are no whole bytes", what, t->name,
             (unsigned long long)size);
    if (size / 8 != t->bytes)
        FAIL(CORUN_EFORMAT,
             "%s: tensor \"%s\": data_offsets span %llu bytes, type and shape need %llu", what,
             t->name, (unsigned long long)t->bytes, (unsigned long long)(size / 8));
    return CORUN_OK;
}

static int by_offset(const void *pa, const void *pb)
{
    const weights_tensor *a = pa, *b = pb;
    if (a->offset != b->offset) return a->offset < b->offset ? -1 : 1;
    return a->bytes < b->bytes ? -1 : a->bytes > b->bytes;
}

static int by_name(const void *pa, const void *pb)
{
    return strcmp(((const weights_tensor *)pa)->name, ((const weights_tensor *)pb)->name);
}

/* No hole, no overlap, no rest. */
static corun_status check_tiles(safetensors_header *h, uint64_t data_bytes, const char *what)
{
    uint64_t at = 0;
    qsort(h->t, h->n, sizeof *h->t, by_offset);
    for (size_t i = 0; i < h->n; i++) {
        const weights_tensor *t = &h->t[i];
        if (t->offset != at)
            FAIL(CORUN_EFORMAT, "%s: tensor \"%s\" begins at data byte %llu, %s there", what,
                 t->name, (unsigned long long)t->offset,
                 t->offset > at ? "with a hole before it:" : "but another tensor lies");
        at += t->bytes; /* both below 2^63 */
        if (at > data_bytes)
            FAIL(CORUN_EFORMAT, "%s: tensor \"%s\" ends at data byte %llu, the file has %llu", what,
                 t->name, (unsigned long long)at, (unsigned long long)data_bytes);
    }
    if (at != data_bytes)
        FAIL(CORUN_EFORMAT, "%s: %llu bytes of data, but the tensors end at %llu", what,
             (unsigned long long)data_bytes, (unsigned long long)at);
    return CORUN_OK;
}

static corun_status check_metadata(const json_t *v, const char *what)
{
    const char *key;
    json_t *val;
    if (json_is_null(v)) return CORUN_OK;
    if (!json_is_object(v)) FAIL(CORUN_EFORMAT, "%s: __metadata__ is no object", what);
    json_object_foreach ((json_t *)(uintptr_t)v, key, val)
        if (!json_is_string(val))
            FAIL(CORUN_EFORMAT, "%s: __metadata__: \"%s\" is no string", what, key);
    return CORUN_OK;
}

static corun_status read_table(safetensors_header *h, const json_t *root, uint64_t data_start,
                               uint64_t data_bytes, const char *what)
{
    const char *key;
    json_t *val;
    size_t text = 0, n = 0;
    if (!json_is_object(root)) FAIL(CORUN_EFORMAT, "%s: the header is no JSON object", what);
    json_object_foreach ((json_t *)(uintptr_t)root, key, val) text += strlen(key) + 1;
    h->names = mem_alloc(text, 1, "tensor names");
    h->t = mem_alloc(json_object_size(root), sizeof *h->t, "tensor table");
    if (!h->names || !h->t) return CORUN_ENOMEM;
    char *name = h->names;
    json_object_foreach ((json_t *)(uintptr_t)root, key, val) {
        if (strcmp(key, "__metadata__") == 0) {
            TRY(check_metadata(val, what));
            continue;
        }
        size_t len = strlen(key) + 1;
        memcpy(name, key, len);
        h->t[n].name = name;
        name += len;
        TRY(read_entry(&h->t[n], val, what));
        h->n = ++n;
    }
    TRY(check_tiles(h, data_bytes, what));
    for (size_t i = 0; i < n; i++) h->t[i].offset += data_start;
    qsort(h->t, n, sizeof *h->t, by_name);
    return CORUN_OK;
}

corun_status safetensors_parse(safetensors_header **out, const char *data, size_t len,
                               uint64_t file_bytes, const char *what)
{
    uint64_t n;
    json_t *root = NULL;
    corun_status st;
    *out = NULL;
    if (len < 8 || file_bytes < 8)
        FAIL(CORUN_EFORMAT, "%s: %llu bytes are too few for a safetensors file", what,
             (unsigned long long)file_bytes);
    memcpy(&n, data, sizeof n);
    if (n > HEADER_MAX)
        FAIL(CORUN_EFORMAT, "%s: header length %llu at offset 0 is above %u", what,
             (unsigned long long)n, HEADER_MAX);
    if (n > file_bytes - 8)
        FAIL(CORUN_EFORMAT, "%s: header length %llu at offset 0, but only %llu bytes follow", what,
             (unsigned long long)n, (unsigned long long)(file_bytes - 8));
    if (n > len - 8)
        FAIL(CORUN_EINVAL, "%s: the header of %llu bytes was not passed whole", what,
             (unsigned long long)n);
    if (n == 0 || data[8] != '{')
        FAIL(CORUN_EFORMAT, "%s: the header at offset 8 does not begin with {", what);
    safetensors_header *h = mem_alloc(1, sizeof *h, "safetensors header");
    if (!h) return CORUN_ENOMEM;
    TRY_OR_DONE(json_read(&root, data + 8, n, what));
    st = read_table(h, root, 8 + n, file_bytes - 8 - n, what);
done:
    json_decref(root);
    if (st == CORUN_OK)
        *out = h;
    else
        safetensors_free(h);
    return st;
}

size_t safetensors_count(const safetensors_header *h) { return h->n; }
const weights_tensor *safetensors_at(const safetensors_header *h, size_t i) { return &h->t[i]; }

void safetensors_free(safetensors_header *h)
{
    if (!h) return;
    mem_free(h->t);
    mem_free(h->names);
    mem_free(h);
}
