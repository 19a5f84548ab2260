/* rows.c - owns result files that were read. Invariant: each row stands once in the table, under a
 * key that no other row of the file has. */
#include "app/rows.h"

#include <stdio.h>
#include <string.h>

#include "app/job.h"
#include "app/lines.h"
#include "proof/diff.h"

#define SHOW     20
#define MAX_TEXT ((size_t)1 << 44)

static size_t *place(const rows *r, digest key)
{
    size_t i = (size_t)key.lo & (r->n_slot - 1);
    while (r->slot[i]) {
        const rows_entry *e = &r->row[r->slot[i] - 1];
        if (e->key.hi == key.hi && e->key.lo == key.lo) break;
        i = (i + 1) & (r->n_slot - 1);
    }
    return &r->slot[i];
}

rows_entry *rows_find(const rows *r, digest key)
{
    size_t at = r->n_slot ? *place(r, key) : 0;
    return at ? &r->row[at - 1] : NULL;
}

static corun_status grow(rows *r)
{
    if (r->n == r->cap) {
        size_t cap = r->cap ? 2 * r->cap : 1024;
        rows_entry *row = mem_realloc(r->row, cap, sizeof *row, "rows");
        if (!row) return CORUN_ENOMEM;
        r->row = row;
        r->cap = cap;
    }
    if (2 * (r->n + 1) <= r->n_slot) return CORUN_OK;
    size_t n = r->n_slot ? 2 * r->n_slot : 2048;
    mem_free(r->slot);
    r->n_slot = 0;
    if (!MEM_NEW(r->slot, n)) return CORUN_ENOMEM;
    r->n_slot = n;
    for (size_t i = 0; i < r->n; i++) *place(r, r->row[i].key) = i + 1;
    return CORUN_OK;
}

void rows_name(const json_t *row, const rows_entry *e, char out[160])
{
    char text[96];
    const json_t *id = json_object_get(row, "custom_id");
    if (!id || json_is_null(id)) id = json_object_get(row, "doc_id");
    if (id && !json_is_null(id)) {
        diff_show(id, text);
        snprintf(out, 160, "request %s", text);
    } else {
        snprintf(out, 160, "row of line %llu", (unsigned long long)e->line);
    }
}

/* The end of the string whose opening quote is at i: its closing quote, or len. */
static size_t string_end(const char *text, size_t len, size_t i)
{
    for (i++; i < len && text[i] != '"'; i++)
        if (text[i] == '\\') i++;
    return i < len ? i : len;
}

corun_status rows_json(json_t **out, char *text, size_t len, const char *what)
{
    if (!memmem(text, len, "\\u0000", 6)) return json_read(out, text, len, what);
    for (size_t i = 0; i < len; i++) {
        if (text[i] != '"') continue;
        size_t end = string_end(text, len, i), after = end + 1;
        while (after < len && strchr(" \t\r", text[after]) && text[after]) after++;
        for (; after < len && text[after] == ':' && i + 6 <= end; i++) {
            if (text[i] != '\\') continue;
            if (memcmp(text + i, "\\u0000", 6) == 0) memcpy(text + i, "\\uf6b3", 6);
            i++;
        }
        i = end;
    }
    return json_read(out, text, len, what);
}

/* The key of a row, apart from those of all rows before it. */
static corun_status key_of(rows *r, const json_t *row, buf *name, rows_entry *e)
{
    bool named = diff_key(row, name);
    if (!named) buf_printf(name, "n:%llu", (unsigned long long)r->n_nameless++);
    TRY(buf_status(name));
    e->key = digest_of(name->data, name->len);
    rows_entry *first = rows_find(r, e->key);
    if (!first) return CORUN_OK;
    buf_printf(name, "\n%llu", (unsigned long long)++first->twin);
    TRY(buf_status(name));
    e->key = digest_of(name->data, name->len);
    if (r->n_twin++ < SHOW) {
        char text[160];
        rows_name(row, e, text);
        fprintf(stderr, "corun: %s: line %llu: %s stood in line %llu already\n", r->path,
                (unsigned long long)e->line, text, (unsigned long long)first->line);
    }
    return CORUN_OK;
}

static corun_status add(rows *r, buf *line, uint64_t no, lines_kind kind, buf *name)
{
    json_t *row = NULL;
    corun_status st = CORUN_OK;
    if (kind == LINES_LONG) st = err_set(CORUN_EFORMAT, "longer than %zu bytes", JOB_MAX_ROW);
    if (st == CORUN_OK) st = rows_json(&row, line->data, line->len, "row");
    if (st == CORUN_OK && !json_is_object(row)) st = err_set(CORUN_EFORMAT, "no JSON object");
    if (st == CORUN_ENOMEM) return st;
    if (st != CORUN_OK) {
        if (r->n_bad++ < SHOW)
            fprintf(stderr, "corun: %s: line %llu: %s\n", r->path, (unsigned long long)no,
                    err_text());
        json_decref(row);
        return CORUN_OK;
    }
    rows_entry e = {.line = no, .at = r->text.len, .len = line->len};
    st = key_of(r, row, name, &e);
    json_decref(row);
    TRY(st);
    TRY(grow(r));
    buf_put(&r->text, line->data, line->len);
    TRY(buf_status(&r->text));
    r->row[r->n] = e;
    *place(r, e.key) = ++r->n;
    return CORUN_OK;
}

corun_status rows_read(rows *r, const char *path)
{
    lines *in;
    buf line, name;
    uint64_t no;
    lines_kind kind = LINES_LINE;
    *r = (rows){0};
    buf_init(&r->text, MAX_TEXT);
    if (!(r->path = mem_dup(path, strlen(path), "path"))) return CORUN_ENOMEM;
    TRY(lines_open(&in, path, JOB_MAX_ROW));
    buf_init(&line, JOB_MAX_ROW + 1);
    buf_init(&name, JOB_MAX_ROW);
    corun_status st;
    while ((st = lines_next(in, &line, &no, &kind)) == CORUN_OK && kind != LINES_END)
        if ((st = add(r, &line, no, kind, &name)) != CORUN_OK) break;
    buf_free(&line);
    buf_free(&name);
    lines_close(in);
    if (r->n_bad > SHOW)
        fprintf(stderr, "corun: %s: %llu more bad lines\n", path,
                (unsigned long long)(r->n_bad - SHOW));
    if (r->n_twin > SHOW)
        fprintf(stderr, "corun: %s: %llu more rows of a name that stood already\n", path,
                (unsigned long long)(r->n_twin - SHOW));
    return st;
}

void rows_free(rows *r)
{
    mem_free(r->path);
    mem_free(r->row);
    mem_free(r->slot);
    buf_free(&r->text);
    *r = (rows){0};
}

corun_status rows_parse(const rows *r, const rows_entry *e, json_t **out)
{
    return json_read(out, r->text.data + e->at, e->len, r->path);
}
