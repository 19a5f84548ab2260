/* plan.c - owns the text format and the order of plan tables.
 * Invariant: entries are sorted by (set, n_out, n_in, bias, out, rows), each key once. */
#include "ops/plan.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/digest.h"
#include "base/json.h"

enum { MAX_WORDS = 16, MAX_LINE = 256, MAX_ENTRIES = 1 << 16, MAX_FILE = 8 << 20 };

static const struct {
    ops_set set;
    const char *name;
} sets[] = {{OPS_SET_STANDARD, "standard"}, {OPS_SET_CANONICAL, "canonical"}};

bool plan_config_equal(const plan_config *a, const plan_config *b)
{
    return a->id == b->id && a->tile == b->tile && a->stages == b->stages &&
           a->cluster == b->cluster && a->custom == b->custom && a->swizzle == b->swizzle &&
           a->split == b->split && a->reduction == b->reduction;
}

/* ---- order -------------------------------------------------------------------------------- */

static int order(int64_t a, int64_t b) { return (a > b) - (a < b); }

static int compare_shape(const plan_entry *a, const plan_entry *b)
{
    int c = order(a->set, b->set);
    if (!c) c = order(a->shape.n_out, b->shape.n_out);
    if (!c) c = order(a->shape.n_in, b->shape.n_in);
    if (!c) c = order(a->shape.bias, b->shape.bias);
    return c ? c : order(a->shape.out, b->shape.out);
}

static int compare(const plan_entry *a, const plan_entry *b)
{
    int c = compare_shape(a, b);
    return c ? c : order(a->rows, b->rows);
}

/* The first entry that is not before e. */
static size_t lower_bound(const plan_table *t, const plan_entry *e)
{
    size_t lo = 0, hi = t->n_entry;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (compare(&t->entry[mid], e) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

const plan_entry *plan_find(const plan_table *t, ops_set set, const plan_shape *s, int32_t rows)
{
    plan_entry e = {.set = set, .shape = *s, .rows = rows};
    size_t i = lower_bound(t, &e);
    if (i < t->n_entry && compare_shape(&t->entry[i], &e) == 0) return &t->entry[i];
    return i > 0 && compare_shape(&t->entry[i - 1], &e) == 0 ? &t->entry[i - 1] : NULL;
}

/* ---- building ------------------------------------------------------------------------------ */

corun_status plan_new(plan_table **out, const char *device, int32_t sm_count, int64_t version)
{
    plan_table *t;
    *out = NULL;
    if (!MEM_NEW(t, 1)) return CORUN_ENOMEM;
    snprintf(t->device, sizeof t->device, "%s", device);
    t->sm_count = sm_count;
    t->version = version;
    *out = t;
    return CORUN_OK;
}

void plan_close(plan_table *t)
{
    if (!t) return;
    for (size_t i = 0; i < t->n_entry; i++) mem_free(t->entry[i].note);
    mem_free(t->entry);
    mem_free(t->end);
    mem_free(t);
}

/* The rule that a configuration breaks, NULL: none. */
static const char *refuse_config(ops_set set, const plan_config *c)
{
    if (set == OPS_SET_STANDARD)
        return (c->split > 1) == (c->reduction != 0)
                   ? NULL
                   : "a split needs a reduction, and only a split";
    if (!plan_admitted(c->id)) return "the algorithm id is none of 21, 23, 41, 42, 66";
    return c->split == 1 && c->reduction == 0 ? NULL : "this set allows no split and no reduction";
}

corun_status plan_add(plan_table *t, const plan_entry *e)
{
    const char *why = refuse_config(e->set, &e->config);
    if (why) FAIL(CORUN_EINVAL, "plan table: %s", why);
    size_t i = lower_bound(t, e);
    if (i < t->n_entry && compare(&t->entry[i], e) == 0) {
        char *note = t->entry[i].note;
        bool same = plan_config_equal(&t->entry[i].config, &e->config);
        if (!same) mem_free(note);
        t->entry[i] = *e;
        t->entry[i].note = same ? note : NULL;
        return CORUN_OK;
    }
    if (t->n_entry == MAX_ENTRIES)
        FAIL(CORUN_ECAPACITY, "plan table: more than %d entries", MAX_ENTRIES);
    if (t->n_entry == t->cap) {
        size_t cap = t->cap ? 2 * t->cap : 64;
        plan_entry *p = mem_realloc(t->entry, cap, sizeof *p, "plan table");
        if (!p) return CORUN_ENOMEM;
        t->entry = p;
        t->cap = cap;
    }
    memmove(&t->entry[i + 1], &t->entry[i], (t->n_entry - i) * sizeof *t->entry);
    t->entry[i] = *e;
    t->n_entry++;
    return CORUN_OK;
}

/* Bit i: the set has no plan for product i of `product`. */
static int missing_of(const plan_table *t, ops_set set, const plan_shape *product, int n)
{
    int missing = 0;
    for (int i = 0; i < n; i++) {
        plan_shape s = product[i];
        if (plan_find(t, set, &s, 1)) continue;
        s.bias = true;
        if (!plan_find(t, set, &s, 1)) missing |= 1 << i;
    }
    return missing;
}

void plan_missing(const plan_table *t, const ops_dims *d, char *out, size_t cap)
{
    enum { N = OPS_N_PRODUCT };
    ops_product p[N];
    plan_shape product[N];
    ops_products(d, p);
    for (int i = 0; i < N; i++) product[i] = (plan_shape){p[i].n_out, p[i].n_in, false, OPS_BF16};
    product[OPS_HEAD].n_out = (d->n_vocab + 7) / 8 * 8;
    product[OPS_HEAD].out = OPS_F32;
    int canonical = missing_of(t, OPS_SET_CANONICAL, product, N);
    int standard = missing_of(t, OPS_SET_STANDARD, product, N);
    char text[256] = "";
    size_t n = 0;
    for (int i = 0; i < N; i++) {
        bool c = canonical >> i & 1, s = standard >> i & 1;
        if (c || s)
            n += (size_t)snprintf(text + n, sizeof text - n, "%s%s%s", n ? ", " : " ", p[i].name,
                                  c && s ? ""
                                  : c    ? " (canonical)"
                                         : " (standard)");
    }
    if (!t->has_fixed)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s the set fixed", n ? ", nor for" : "");
    out[0] = 0;
    if (n)
        snprintf(out, cap,
                 "the plan table has no plans for%s: the library's picks may be slower "
                 "(corun tune)",
                 text);
}

bool plan_is_for(const plan_table *t, const char *device, int32_t sm_count, int64_t version)
{
    return strcmp(t->device, device) == 0 && t->sm_count == sm_count && t->version == version;
}

/* ---- parsing ------------------------------------------------------------------------------- */

typedef struct reader {
    const char *what;
    int line;
    char text[MAX_LINE]; /* the line, its words terminated */
    char *word[MAX_WORDS];
    int n_word;
    buf note; /* comment lines since the last plan */
} reader;

static corun_status split_words(reader *r, const char *line, size_t len)
{
    if (len > 0 && line[len - 1] == '\r') len--;
    if (len >= MAX_LINE)
        FAIL(CORUN_EFORMAT, "%s: line %d: longer than %d bytes", r->what, r->line, MAX_LINE - 1);
    if (memchr(line, '\0', len)) FAIL(CORUN_EFORMAT, "%s: line %d: a zero byte", r->what, r->line);
    memcpy(r->text, line, len);
    r->text[len] = '\0';
    r->n_word = 0;
    if (r->text[0] == '#') return CORUN_OK;
    char *rest = r->text, *w;
    while ((w = strtok_r(rest, " \t", &rest))) {
        if (r->n_word == MAX_WORDS)
            FAIL(CORUN_EFORMAT, "%s: line %d: more than %d words", r->what, r->line, MAX_WORDS);
        r->word[r->n_word++] = w;
    }
    return CORUN_OK;
}

static corun_status need_words(const reader *r, int n)
{
    if (r->n_word == n) return CORUN_OK;
    FAIL(CORUN_EFORMAT, "%s: line %d: '%s' takes %d values, %d are there", r->what, r->line,
         r->word[0], n - 1, r->n_word - 1);
}

static corun_status read_number(const reader *r, int i, const char *name, int64_t min, int64_t max,
                                int64_t *out)
{
    const char *w = r->word[i];
    size_t n = strspn(w, "0123456789");
    if (n == 0 || n > 15 || w[n] != '\0' || atoll(w) < min || atoll(w) > max)
        FAIL(CORUN_EFORMAT, "%s: line %d: %s is '%s', not a whole number from %lld to %lld",
             r->what, r->line, name, w, (long long)min, (long long)max);
    *out = atoll(w);
    return CORUN_OK;
}

static corun_status read_choice(const reader *r, int i, const char *name, const char *a,
                                const char *b, int *out)
{
    *out = strcmp(r->word[i], b) == 0;
    if (*out || strcmp(r->word[i], a) == 0) return CORUN_OK;
    FAIL(CORUN_EFORMAT, "%s: line %d: %s is '%s', not %s or %s", r->what, r->line, name, r->word[i],
         a, b);
}

/* Words from `first`: the six numbers of a configuration, then (all) split and reduction. */
static corun_status read_config(const reader *r, int first, bool all, ops_set set, plan_config *c)
{
    const char *names[] = {"id",     "tile",    "stages", "cluster",
                           "custom", "swizzle", "split",  "reduction"};
    int32_t *field[] = {&c->id,     &c->tile,    &c->stages, &c->cluster,
                        &c->custom, &c->swizzle, &c->split,  &c->reduction};
    c->split = 1;
    c->reduction = 0;
    for (int i = 0; i < (all ? 8 : 6); i++) {
        int64_t v = 0;
        TRY(read_number(r, first + i, names[i], i == 6 ? 1 : 0, 65535, &v));
        *field[i] = (int32_t)v;
    }
    const char *why = refuse_config(set, c);
    if (why) FAIL(CORUN_EFORMAT, "%s: line %d: %s", r->what, r->line, why);
    return CORUN_OK;
}

/* Gives the comment lines that were read to *to, where there are any. */
static corun_status take_note(reader *r, char **to)
{
    TRY(buf_status(&r->note));
    if (r->note.len == 0) return CORUN_OK;
    *to = mem_dup(r->note.data, r->note.len, "plan table");
    buf_reset(&r->note);
    return *to ? CORUN_OK : CORUN_ENOMEM;
}

static corun_status read_plan(reader *r, plan_table *t)
{
    plan_entry e = {0};
    int set, bias, f32;
    int64_t rows;
    TRY(need_words(r, 16));
    TRY(read_choice(r, 1, "the set", sets[0].name, sets[1].name, &set));
    e.set = sets[set].set;
    TRY(read_number(r, 2, "n_out", 1, INT32_MAX, &e.shape.n_out));
    TRY(read_number(r, 3, "n_in", 1, INT32_MAX, &e.shape.n_in));
    TRY(read_choice(r, 4, "the bias", "none", "bias", &bias));
    TRY(read_choice(r, 5, "the output", "bf16", "f32", &f32));
    TRY(read_number(r, 6, "rows", 1, PLAN_MAX_ROWS, &rows));
    TRY(read_config(r, 7, true, e.set, &e.config));
    TRY(read_number(r, 15, "the time", 0, INT64_C(1000000000000), &e.ns));
    e.shape.bias = bias;
    e.shape.out = f32 ? OPS_F32 : OPS_BF16;
    e.rows = (int32_t)rows;
    size_t before = t->n_entry;
    TRY(plan_add(t, &e));
    if (t->n_entry == before)
        FAIL(CORUN_EFORMAT, "%s: line %d: a second plan of one set, shape and rows", r->what,
             r->line);
    return take_note(r, &t->entry[lower_bound(t, &e)].note);
}

/* The name is the rest of the line: it may hold spaces, one between two words. */
static corun_status read_device(const reader *r, plan_table *t)
{
    int64_t sm;
    if (r->n_word < 4) return need_words(r, 4);
    TRY(read_number(r, 1, "the library version", 1, INT64_C(1000000000), &t->version));
    TRY(read_number(r, 2, "the number of SMs", 1, 65535, &sm));
    t->sm_count = (int32_t)sm;
    t->device[0] = '\0';
    for (int i = 3; i < r->n_word; i++) {
        for (const char *c = r->word[i]; *c; c++)
            if (*c < '!' || *c > '~')
                FAIL(CORUN_EFORMAT, "%s: line %d: a device name of other than plain ASCII", r->what,
                     r->line);
        size_t n = strlen(t->device);
        int more =
            snprintf(t->device + n, sizeof t->device - n, "%s%s", i > 3 ? " " : "", r->word[i]);
        if (n + (size_t)more >= sizeof t->device)
            FAIL(CORUN_EFORMAT, "%s: line %d: a device name of more than %zu bytes", r->what,
                 r->line, sizeof t->device - 1);
    }
    return CORUN_OK;
}

static corun_status read_line(reader *r, int *n_item, plan_table *t)
{
    int item = (*n_item)++;
    const char *word = r->word[0];
    if (item == 0) {
        if (r->n_word != 2 || strcmp(word, "corun-plan") != 0 || strcmp(r->word[1], "1") != 0)
            FAIL(CORUN_EFORMAT, "%s: line %d: a plan table begins with 'corun-plan 1'", r->what,
                 r->line);
        return CORUN_OK;
    }
    if ((item == 1) != (strcmp(word, "device") == 0))
        FAIL(CORUN_EFORMAT, "%s: line %d: one line 'device' comes second", r->what, r->line);
    if (item == 1) return read_device(r, t);
    if (strcmp(word, "plan") == 0) return read_plan(r, t);
    if (strcmp(word, "fixed") != 0)
        FAIL(CORUN_EFORMAT, "%s: line %d: '%s' is no item of a plan table", r->what, r->line, word);
    if (t->has_fixed) FAIL(CORUN_EFORMAT, "%s: line %d: a second 'fixed'", r->what, r->line);
    t->has_fixed = true;
    TRY(need_words(r, 7));
    return read_config(r, 1, false, OPS_SET_FIXED, &t->fixed);
}

corun_status plan_parse(plan_table **out, const char *text, size_t len, const char *what)
{
    plan_table *t;
    reader r = {.what = what};
    int n_item = 0;
    TRY(plan_new(&t, "", 0, 0));
    buf_init(&r.note, MAX_FILE);
    corun_status st = CORUN_OK;
    for (size_t at = 0; at < len && st == CORUN_OK;) {
        const char *end = memchr(text + at, '\n', len - at);
        size_t n = end ? (size_t)(end - text) - at : len - at;
        r.line++;
        st = split_words(&r, text + at, n);
        if (st == CORUN_OK && r.text[0] == '#') buf_printf(&r.note, "%s\n", r.text);
        if (st == CORUN_OK && r.n_word > 0) st = read_line(&r, &n_item, t);
        at += n + 1;
    }
    if (st == CORUN_OK && n_item < 2)
        st = err_set(CORUN_EFORMAT, "%s: ends before the line 'device'", what);
    if (st == CORUN_OK) st = take_note(&r, &t->end);
    buf_free(&r.note);
    *out = st == CORUN_OK ? t : NULL;
    if (st != CORUN_OK) plan_close(t);
    return st;
}

corun_status plan_open(plan_table **out, const char *path)
{
    buf b;
    *out = NULL;
    buf_init(&b, MAX_FILE);
    corun_status st = file_read(&b, path, MAX_FILE);
    if (st == CORUN_OK) st = plan_parse(out, b.data, b.len, path);
    buf_free(&b);
    return st;
}

corun_status plan_builtin(plan_table **out, const char *device, int32_t sm_count, int64_t version)
{
    *out = NULL;
    for (size_t i = 0; i < plan_n_text; i++) {
        plan_table *t;
        TRY(plan_parse(&t, plan_texts[i].text, plan_texts[i].len, plan_texts[i].name));
        if (plan_is_for(t, device, sm_count, version)) {
            *out = t;
            return CORUN_OK;
        }
        plan_close(t);
    }
    return CORUN_OK;
}

/* ---- writing ------------------------------------------------------------------------------- */

static void put_config(buf *b, const plan_config *c)
{
    buf_printf(b, " %d %d %d %d %d %d", c->id, c->tile, c->stages, c->cluster, c->custom,
               c->swizzle);
}

static void put_fixed(buf *b, const plan_table *t)
{
    if (!t->has_fixed) return;
    buf_puts(b, "fixed");
    put_config(b, &t->fixed);
    buf_putc(b, '\n');
}

static void put_entry(buf *b, const plan_entry *e, bool with_time)
{
    buf_printf(b, "plan %s %lld %lld %s %s %d",
               e->set == OPS_SET_CANONICAL ? "canonical" : "standard", (long long)e->shape.n_out,
               (long long)e->shape.n_in, e->shape.bias ? "bias" : "none",
               e->shape.out == OPS_F32 ? "f32" : "bf16", e->rows);
    put_config(b, &e->config);
    buf_printf(b, " %d %d", e->config.split, e->config.reduction);
    if (with_time) buf_printf(b, " %lld", (long long)e->ns);
    buf_putc(b, '\n');
}

void plan_write(const plan_table *t, buf *b)
{
    buf_printf(b, "corun-plan 1\ndevice %lld %d %s\n", (long long)t->version, t->sm_count,
               t->device);
    put_fixed(b, t);
    for (size_t i = 0; i < t->n_entry; i++) {
        if (t->entry[i].note) buf_puts(b, t->entry[i].note);
        put_entry(b, &t->entry[i], true);
    }
    if (t->end) buf_puts(b, t->end);
}

corun_status plan_digest(const plan_table *t, ops_set set, char hex[33])
{
    buf b;
    buf_init(&b, MAX_FILE);
    if (t) {
        buf_printf(&b, "device %lld %d %s\n", (long long)t->version, t->sm_count, t->device);
        if (set == OPS_SET_FIXED) put_fixed(&b, t);
        for (size_t i = 0; i < t->n_entry; i++)
            if (t->entry[i].set == set) put_entry(&b, &t->entry[i], false);
    }
    corun_status st = buf_status(&b);
    if (st == CORUN_OK) digest_hex(digest_of(b.data ? b.data : "", b.len), hex);
    buf_free(&b);
    return st;
}
