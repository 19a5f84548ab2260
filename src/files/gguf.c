/* gguf.c - owns the parsing of a GGUF header (versions 2 and 3, little-endian).
 *
 * Invariant: every count and length is checked against the bytes that the file still has before
 * memory is taken for it, nothing recurses, and no two tensors of a header that parses overlap. */
#include <stdlib.h>
#include <string.h>

#include "files/weights.h"

#define HEADER_MAX  ((uint64_t)1 << 28)
#define KEY_MAX     65535u
#define NAME_MAX_64 64
#define DIM_MAX     4u

typedef struct gguf_kv {
    const char *key;
    size_t key_len;
    gguf_value v;
} gguf_kv;

struct gguf_header {
    gguf_kv *kv; /* sorted by key */
    size_t n_kv, cap_kv;
    char *keys; /* the keys, each terminated */
    weights_tensor *t;
    char (*names)[NAME_MAX_64];
    size_t n_tensor, cap_tensor;
};

/* The prefix that we hold, and the file it comes from. off <= len <= file. */
typedef struct cursor {
    const char *data, *what;
    uint64_t len, file, off, need;
} cursor;

typedef unsigned long long llu;

/* n bytes for a field, or CORUN_ECAPACITY with c->need set when the prefix is too short. */
static corun_status take(cursor *c, uint64_t n, const char *field, const char **p)
{
    *p = c->data + c->off;
    if (n > c->file - c->off)
        FAIL(CORUN_EFORMAT, "%s: offset %llu: %s takes %llu bytes, but %llu remain in the file",
             c->what, (llu)c->off, field, (llu)n, (llu)(c->file - c->off));
    if (n > HEADER_MAX - c->off)
        FAIL(CORUN_EFORMAT, "%s: offset %llu: %s: the header is longer than %llu bytes", c->what,
             (llu)c->off, field, (llu)HEADER_MAX);
    if (n > c->len - c->off) {
        c->need = c->off + n;
        return CORUN_ECAPACITY;
    }
    c->off += n;
    return CORUN_OK;
}

static corun_status take_u32(cursor *c, const char *field, uint32_t *out)
{
    const char *p;
    TRY(take(c, sizeof *out, field, &p));
    memcpy(out, p, sizeof *out);
    return CORUN_OK;
}

static corun_status take_u64(cursor *c, const char *field, uint64_t *out)
{
    const char *p;
    TRY(take(c, sizeof *out, field, &p));
    memcpy(out, p, sizeof *out);
    return CORUN_OK;
}

static corun_status take_string(cursor *c, const char *field, const char **s, uint64_t *len)
{
    TRY(take_u64(c, field, len));
    return take(c, *len, field, s);
}

/* A key or a tensor name: 1 to max bytes, no NUL. */
static corun_status take_name(cursor *c, const char *field, size_t max, const char **s, size_t *len)
{
    uint64_t at = c->off, n;
    TRY(take_u64(c, field, &n));
    if (n > max)
        FAIL(CORUN_EFORMAT, "%s: offset %llu: %s of %llu bytes, at most %zu are allowed", c->what,
             (llu)at, field, (llu)n, max);
    TRY(take(c, n, field, s));
    if (n == 0) FAIL(CORUN_EFORMAT, "%s: offset %llu: %s is empty", c->what, (llu)at, field);
    if (memchr(*s, 0, n))
        FAIL(CORUN_EFORMAT, "%s: offset %llu: %s holds a NUL byte", c->what, (llu)at, field);
    *len = n;
    return CORUN_OK;
}

/* ---- metadata -------------------------------------------------------------------------------- */

static uint64_t type_bytes(uint32_t t)
{
    switch (t) {
    case GGUF_U8:
    case GGUF_I8:
    case GGUF_BOOL: return 1;
    case GGUF_U16:
    case GGUF_I16: return 2;
    case GGUF_U32:
    case GGUF_I32:
    case GGUF_F32: return 4;
    case GGUF_U64:
    case GGUF_I64:
    case GGUF_F64: return 8;
    default: return 0; /* STRING, ARRAY */
    }
}

static corun_status check_bools(const cursor *c, const char *p, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        if ((unsigned char)p[i] > 1)
            FAIL(CORUN_EFORMAT, "%s: offset %llu: a bool is %d, not 0 or 1", c->what,
                 (llu)(uint64_t)(p - c->data) + i, (unsigned char)p[i]);
    return CORUN_OK;
}

static corun_status take_array(cursor *c, gguf_value *v)
{
    uint64_t at = c->off, count, n;
    uint32_t item;
    TRY(take_u32(c, "type of an array's items", &item));
    TRY(take_u64(c, "length of an array", &count));
    if (item > GGUF_F64)
        FAIL(CORUN_EFORMAT, "%s: offset %llu: unknown type %u of an array's items", c->what,
             (llu)at, item);
    if (item == GGUF_ARRAY)
        FAIL(CORUN_EUNSUPPORTED, "%s: offset %llu: an array of arrays", c->what, (llu)at);
    uint64_t size = item == GGUF_STRING ? 8 : type_bytes(item);
    if (count > (c->file - c->off) / size)
        FAIL(CORUN_EFORMAT, "%s: offset %llu: an array of %llu items, but %llu bytes remain",
             c->what, (llu)at, (llu)count, (llu)(c->file - c->off));
    v->item = (gguf_type)item;
    v->count = count;
    v->data = c->data + c->off;
    uint64_t begin = c->off;
    const char *p;
    if (item == GGUF_STRING) {
        for (uint64_t i = 0; i < count; i++) TRY(take_string(c, "string of an array", &p, &n));
    } else {
        TRY(take(c, count * size, "array", &p));
        if (item == GGUF_BOOL) TRY(check_bools(c, p, count));
    }
    v->bytes = c->off - begin;
    return CORUN_OK;
}

static corun_status take_value(cursor *c, gguf_value *v)
{
    uint64_t at = c->off;
    uint32_t type;
    TRY(take_u32(c, "type of a value", &type));
    if (type > GGUF_F64)
        FAIL(CORUN_EFORMAT, "%s: offset %llu: unknown type %u of a value", c->what, (llu)at, type);
    v->type = (gguf_type)type;
    if (type == GGUF_ARRAY) return take_array(c, v);
    if (type == GGUF_STRING) {
        TRY(take_string(c, "string value", &v->data, &v->count));
        v->bytes = v->count;
        return CORUN_OK;
    }
    v->count = 1;
    v->bytes = type_bytes(type);
    TRY(take(c, v->bytes, "value", &v->data));
    return type == GGUF_BOOL ? check_bools(c, v->data, 1) : CORUN_OK;
}

static int by_key(const void *pa, const void *pb)
{
    const gguf_kv *a = pa, *b = pb;
    size_t n = a->key_len < b->key_len ? a->key_len : b->key_len;
    int r = memcmp(a->key, b->key, n);
    if (r != 0) return r;
    return a->key_len < b->key_len ? -1 : a->key_len > b->key_len;
}

/* Room for one more item of an array that doubles. */
static corun_status room(void **p, size_t n, size_t *cap, size_t size, const char *what)
{
    if (n < *cap) return CORUN_OK;
    size_t want = *cap ? 2 * *cap : 16;
    void *q = mem_realloc(*p, want, size, what);
    if (!q) return CORUN_ENOMEM;
    *p = q;
    *cap = want;
    return CORUN_OK;
}

static corun_status take_metadata(cursor *c, gguf_header *h, uint64_t n_kv)
{
    size_t text = 0;
    for (uint64_t i = 0; i < n_kv; i++) {
        void *p = h->kv;
        TRY(room(&p, h->n_kv, &h->cap_kv, sizeof *h->kv, "GGUF metadata"));
        h->kv = p;
        gguf_kv *kv = &h->kv[h->n_kv];
        *kv = (gguf_kv){0};
        TRY(take_name(c, "key", KEY_MAX, &kv->key, &kv->key_len));
        corun_status st = take_value(c, &kv->v);
        if (st != CORUN_OK && st != CORUN_ECAPACITY)
            return err_prefix(st, "key \"%.*s\"", (int)(kv->key_len < 80 ? kv->key_len : 80),
                              kv->key);
        TRY(st);
        text += kv->key_len + 1;
        h->n_kv++;
    }
    h->keys = mem_alloc(text, 1, "GGUF keys");
    if (!h->keys) return CORUN_ENOMEM;
    if (h->n_kv) qsort(h->kv, h->n_kv, sizeof *h->kv, by_key);
    char *k = h->keys;
    for (size_t i = 0; i < h->n_kv; i++) {
        gguf_kv *kv = &h->kv[i];
        memcpy(k, kv->key, kv->key_len);
        kv->key = k;
        k += kv->key_len + 1;
        if (i > 0 && strcmp(h->kv[i - 1].key, kv->key) == 0)
            FAIL(CORUN_EFORMAT, "%s: key \"%s\" stands twice", c->what, kv->key);
    }
    return CORUN_OK;
}

static corun_status read_alignment(const gguf_header *h, const char *what, uint64_t *out)
{
    uint32_t a;
    const gguf_value *v = gguf_meta(h, "general.alignment");
    *out = 32;
    if (!v) return CORUN_OK;
    if (v->type != GGUF_U32) FAIL(CORUN_EFORMAT, "%s: general.alignment is no u32", what);
    memcpy(&a, v->data, sizeof a);
    if (a == 0 || (a & (a - 1)) != 0)
        FAIL(CORUN_EFORMAT, "%s: general.alignment %u is no power of two", what, a);
    *out = a;
    return CORUN_OK;
}

/* ---- tensors --------------------------------------------------------------------------------- */

static const struct {
    uint32_t id;
    const char *name;
    weights_dtype type;
    uint32_t block, bytes;
} ggml_types[] = {
    {0, "F32", WEIGHTS_F32, 1, 4},           {1, "F16", WEIGHTS_F16, 1, 2},
    {2, "Q4_0", WEIGHTS_Q4_0, 32, 18},       {3, "Q4_1", WEIGHTS_Q4_1, 32, 20},
    {6, "Q5_0", WEIGHTS_Q5_0, 32, 22},       {7, "Q5_1", WEIGHTS_Q5_1, 32, 24},
    {8, "Q8_0", WEIGHTS_Q8_0, 32, 34},       {9, "Q8_1", WEIGHTS_OTHER, 32, 36},
    {10, "Q2_K", WEIGHTS_OTHER, 256, 84},    {11, "Q3_K", WEIGHTS_OTHER, 256, 110},
    {12, "Q4_K", WEIGHTS_Q4_K, 256, 144},    {13, "Q5_K", WEIGHTS_Q5_K, 256, 176},
    {14, "Q6_K", WEIGHTS_Q6_K, 256, 210},    {15, "Q8_K", WEIGHTS_OTHER, 256, 292},
    {16, "IQ2_XXS", WEIGHTS_OTHER, 256, 66}, {17, "IQ2_XS", WEIGHTS_OTHER, 256, 74},
    {18, "IQ3_XXS", WEIGHTS_OTHER, 256, 98}, {19, "IQ1_S", WEIGHTS_OTHER, 256, 50},
    {20, "IQ4_NL", WEIGHTS_OTHER, 32, 18},   {21, "IQ3_S", WEIGHTS_OTHER, 256, 110},
    {22, "IQ2_S", WEIGHTS_OTHER, 256, 82},   {23, "IQ4_XS", WEIGHTS_OTHER, 256, 136},
    {24, "I8", WEIGHTS_OTHER, 1, 1},         {25, "I16", WEIGHTS_OTHER, 1, 2},
    {26, "I32", WEIGHTS_OTHER, 1, 4},        {27, "I64", WEIGHTS_OTHER, 1, 8},
    {28, "F64", WEIGHTS_OTHER, 1, 8},        {29, "IQ1_M", WEIGHTS_OTHER, 256, 56},
    {30, "BF16", WEIGHTS_BF16, 1, 2},        {34, "TQ1_0", WEIGHTS_OTHER, 256, 54},
    {35, "TQ2_0", WEIGHTS_OTHER, 256, 66},   {39, "MXFP4", WEIGHTS_OTHER, 32, 17},
    {40, "NVFP4", WEIGHTS_OTHER, 64, 36},    {41, "Q1_0", WEIGHTS_OTHER, 128, 18},
};

/* Type and size of a tensor whose dimensions are read; row is its contiguous dimension. */
static corun_status set_type(weights_tensor *t, uint32_t id, uint64_t elems, uint64_t row,
                             const char *what)
{
    size_t i = 0, n = sizeof ggml_types / sizeof *ggml_types;
    while (i < n && ggml_types[i].id != id) i++;
    if (i == n) FAIL(CORUN_EFORMAT, "%s: tensor \"%s\": unknown type %u", what, t->name, id);
    t->dtype = ggml_types[i].type;
    t->dtype_text = ggml_types[i].name;
    if (row % ggml_types[i].block != 0)
        FAIL(CORUN_EFORMAT, "%s: tensor \"%s\": rows of %llu values are no whole %s blocks of %u",
             what, t->name, (llu)row, t->dtype_text, ggml_types[i].block);
    if (__builtin_mul_overflow(elems / ggml_types[i].block, (uint64_t)ggml_types[i].bytes,
                               &t->bytes))
        FAIL(CORUN_EFORMAT, "%s: tensor \"%s\": its size overflows", what, t->name);
    return CORUN_OK;
}

static corun_status take_tensor(cursor *c, weights_tensor *t, char name[NAME_MAX_64])
{
    const char *s;
    size_t len;
    uint32_t n_dim, type;
    uint64_t elems = 1, row = 1;
    TRY(take_name(c, "tensor name", NAME_MAX_64 - 1, &s, &len));
    memcpy(name, s, len);
    name[len] = 0;
    t->name = name;
    uint64_t at = c->off;
    TRY(take_u32(c, "number of dimensions", &n_dim));
    if (n_dim > DIM_MAX)
        FAIL(CORUN_EFORMAT, "%s: offset %llu: tensor \"%s\" has %u dimensions, more than %u",
             c->what, (llu)at, name, n_dim, DIM_MAX);
    t->n_dim = (int32_t)n_dim;
    for (uint32_t i = 0; i < n_dim; i++) {
        uint64_t d;
        at = c->off;
        TRY(take_u64(c, "dimension", &d));
        if (d == 0 || d > INT64_MAX || __builtin_mul_overflow(elems, d, &elems))
            FAIL(CORUN_EFORMAT, "%s: offset %llu: tensor \"%s\": dimension %llu is out of range",
                 c->what, (llu)at, name, (llu)d);
        if (i == 0) row = d;
        t->dim[n_dim - 1 - i] = (int64_t)d;
    }
    TRY(take_u32(c, "tensor type", &type));
    TRY(set_type(t, type, elems, row, c->what));
    return take_u64(c, "tensor offset", &t->offset);
}

static int by_offset(const void *pa, const void *pb)
{
    const weights_tensor *a = pa, *b = pb;
    return a->offset < b->offset ? -1 : a->offset > b->offset;
}

static int by_name(const void *pa, const void *pb)
{
    return strcmp(((const weights_tensor *)pa)->name, ((const weights_tensor *)pb)->name);
}

/* Makes offsets absolute; regions must be aligned, inside the file and apart. */
static corun_status check_regions(gguf_header *h, const cursor *c, uint64_t align)
{
    uint64_t start = (c->off + align - 1) / align * align, last = 0;
    for (size_t i = 0; i < h->n_tensor; i++) {
        weights_tensor *t = &h->t[i];
        uint64_t end;
        if (t->offset % align != 0)
            FAIL(CORUN_EFORMAT, "%s: tensor \"%s\": offset %llu is no multiple of %llu", c->what,
                 t->name, (llu)t->offset, (llu)align);
        if (__builtin_add_overflow(t->offset, start, &t->offset) ||
            __builtin_add_overflow(t->offset, t->bytes, &end) || end > c->file)
            FAIL(CORUN_EFORMAT,
                 "%s: tensor \"%s\": %llu bytes at data offset %llu do not fit into "
                 "a file of %llu",
                 c->what, t->name, (llu)t->bytes, (llu)(t->offset - start), (llu)c->file);
    }
    if (h->n_tensor) qsort(h->t, h->n_tensor, sizeof *h->t, by_offset);
    for (size_t i = 0; i < h->n_tensor; i++) {
        const weights_tensor *t = &h->t[i];
        if (t->offset < last)
            FAIL(CORUN_EFORMAT, "%s: tensors \"%s\" and \"%s\" overlap", c->what, h->t[i - 1].name,
                 t->name);
        last = t->offset + t->bytes;
    }
    if (h->n_tensor) qsort(h->t, h->n_tensor, sizeof *h->t, by_name);
    for (size_t i = 1; i < h->n_tensor; i++)
        if (strcmp(h->t[i - 1].name, h->t[i].name) == 0)
            FAIL(CORUN_EFORMAT, "%s: tensor \"%s\" stands twice", c->what, h->t[i].name);
    return CORUN_OK;
}

static corun_status take_tensors(cursor *c, gguf_header *h, uint64_t n_tensor)
{
    size_t cap = 0;
    for (uint64_t i = 0; i < n_tensor; i++) {
        void *p = h->t, *q = h->names;
        TRY(room(&p, h->n_tensor, &h->cap_tensor, sizeof *h->t, "tensor table"));
        h->t = p;
        TRY(room(&q, h->n_tensor, &cap, sizeof *h->names, "tensor names"));
        h->names = q;
        h->t[i] = (weights_tensor){0};
        TRY(take_tensor(c, &h->t[i], h->names[i]));
        h->n_tensor++;
    }
    for (size_t i = 0; i < h->n_tensor; i++) h->t[i].name = h->names[i]; /* they may have moved */
    return CORUN_OK;
}

/* ---- the whole header ------------------------------------------------------------------------ */

static corun_status parse(gguf_header *h, cursor *c)
{
    const char *magic;
    uint32_t version;
    uint64_t n_tensor, n_kv, align, at;
    TRY(take(c, 4, "magic", &magic));
    if (memcmp(magic, "GGUF", 4) != 0) FAIL(CORUN_EFORMAT, "%s: offset 0: no GGUF file", c->what);
    TRY(take_u32(c, "version", &version));
    if (version == 0x02000000u || version == 0x03000000u)
        FAIL(CORUN_EUNSUPPORTED, "%s: offset 4: a big-endian GGUF file", c->what);
    if (version != 2 && version != 3)
        FAIL(CORUN_EUNSUPPORTED, "%s: offset 4: GGUF version %u, only 2 and 3 are read", c->what,
             version);
    TRY(take_u64(c, "number of tensors", &n_tensor));
    TRY(take_u64(c, "number of keys", &n_kv));
    /* The shortest key takes 14 bytes and the shortest tensor 25. */
    if (n_kv > (c->file - c->off) / 14)
        FAIL(CORUN_EFORMAT, "%s: offset 16: %llu keys, but %llu bytes remain in the file", c->what,
             (llu)n_kv, (llu)(c->file - c->off));
    if (n_tensor > (c->file - c->off) / 25)
        FAIL(CORUN_EFORMAT, "%s: offset 8: %llu tensors, but %llu bytes remain in the file",
             c->what, (llu)n_tensor, (llu)(c->file - c->off));
    TRY(take_metadata(c, h, n_kv));
    TRY(read_alignment(h, c->what, &align));
    at = c->off;
    if (n_tensor > (c->file - at) / 25)
        FAIL(CORUN_EFORMAT, "%s: offset 8: %llu tensors, but %llu bytes remain after the keys",
             c->what, (llu)n_tensor, (llu)(c->file - at));
    TRY(take_tensors(c, h, n_tensor));
    return check_regions(h, c, align);
}

corun_status gguf_parse(gguf_header **out, const char *data, size_t len, uint64_t file_bytes,
                        const char *what, uint64_t *need)
{
    cursor c = {
        .data = data, .what = what, .len = len < file_bytes ? len : file_bytes, .file = file_bytes};
    *out = NULL;
    *need = 0;
    gguf_header *h = mem_alloc(1, sizeof *h, "GGUF header");
    if (!h) return CORUN_ENOMEM;
    corun_status st = parse(h, &c);
    if (st == CORUN_OK) {
        *out = h;
        return CORUN_OK;
    }
    gguf_free(h);
    if (st != CORUN_ECAPACITY) return st;
    *need = c.need;
    return CORUN_OK;
}

size_t gguf_count(const gguf_header *h) { return h->n_tensor; }
const weights_tensor *gguf_at(const gguf_header *h, size_t i) { return &h->t[i]; }
size_t gguf_meta_count(const gguf_header *h) { return h->n_kv; }
const char *gguf_meta_key(const gguf_header *h, size_t i) { return h->kv[i].key; }

const gguf_value *gguf_meta(const gguf_header *h, const char *key)
{
    size_t lo = 0, hi = h->n_kv;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        int r = strcmp(key, h->kv[mid].key);
        if (r == 0) return &h->kv[mid].v;
        if (r < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}

void gguf_free(gguf_header *h)
{
    if (!h) return;
    mem_free(h->kv);
    mem_free(h->keys);
    mem_free(h->t);
    mem_free(h->names);
    mem_free(h);
}
