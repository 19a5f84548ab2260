/* fingerprint.c - owns the identities of result files. Invariant: fields are shown for an identity
 * only when their digest is the one that the rows carry. */
#include "app/fingerprint.h"

#include <stdio.h>
#include <string.h>

#include "base/digest.h"
#include "proof/diff.h"

void fingerprints_add(fingerprints *f, const json_t *row)
{
    const json_t *body = diff_body(row);
    const json_t *v = json_object_get(body ? body : row, "system_fingerprint");
    char text[96];
    if (diff_is_error(row)) return;
    if (!json_is_string(v)) {
        f->none++;
        return;
    }
    diff_show(v, text);
    size_t i = 0;
    while (i < f->n && strcmp(f->seen[i].text, text) != 0) i++;
    if (i == FINGERPRINTS_MAX) {
        f->more++;
        return;
    }
    if (i == f->n) memcpy(f->seen[f->n++].text, text, sizeof text);
    f->seen[i].n++;
}

corun_status fingerprint_file(const char *path, json_t **out, char digest_text[33])
{
    json_t *root, *id;
    buf b;
    jw w;
    *out = NULL;
    TRY(json_read_file(&root, path, (size_t)1 << 28));
    id = json_object_get(root, "identity");
    if (!id) id = root;
    if (!json_is_object(id) || !json_object_get(id, "numerics")) {
        json_decref(root);
        FAIL(CORUN_EFORMAT, "%s: holds no identity (corun info MODEL --identity --json writes one)",
             path);
    }
    *out = json_incref(id);
    json_decref(root);
    buf_init(&b, 1 << 20);
    jw_init(&w, &b);
    jw_value(&w, *out);
    corun_status st = buf_status(&b);
    if (st == CORUN_OK) digest_hex(digest_of(b.data, b.len), digest_text);
    buf_free(&b);
    if (st != CORUN_OK) {
        json_decref(*out);
        *out = NULL;
    }
    return st;
}

static void put_line(char name, const fingerprints *f, buf *out)
{
    buf_printf(out, "identity %-9c", name);
    for (size_t i = 0; i < f->n; i++)
        buf_printf(out, "%s %s (%llu rows)", i ? "," : "", f->seen[i].text,
                   (unsigned long long)f->seen[i].n);
    if (f->n + f->none == 0) buf_puts(out, " no answered row");
    if (f->more) buf_printf(out, ", others (%llu rows)", (unsigned long long)f->more);
    if (f->none)
        buf_printf(out, "%s none (%llu rows)", f->n ? "," : "", (unsigned long long)f->none);
    buf_putc(out, '\n');
}

/* The fields of the file, which must be those of every identity that the rows name. */
static corun_status read_fields(const fingerprints *f, const char *path, json_t **out)
{
    char hex[33], text[40];
    TRY(fingerprint_file(path, out, hex));
    snprintf(text, sizeof text, "\"%s\"", hex);
    if (f->n == 1 && strcmp(f->seen[0].text, text) == 0) return CORUN_OK;
    if (f->n == 0) return CORUN_OK;
    json_decref(*out);
    *out = NULL;
    FAIL(CORUN_EINVAL, "%s: is the identity %s, the rows name %s%s", path, hex, f->seen[0].text,
         f->n > 1 ? " and others" : "");
}

static bool same(const fingerprints *x, const fingerprints *y)
{
    return x->n == 1 && y->n == 1 && strcmp(x->seen[0].text, y->seen[0].text) == 0;
}

corun_status fingerprints_compare(const fingerprints *x, const char *a, const fingerprints *y,
                                  const char *b, buf *out)
{
    json_t *id_a = NULL, *id_b = NULL;
    size_t n;
    put_line('A', x, out);
    put_line('B', y, out);
    corun_status st = a ? read_fields(x, a, &id_a) : CORUN_OK;
    if (st == CORUN_OK && b) st = read_fields(y, b, &id_b);
    if (st == CORUN_OK && id_a && id_b)
        st = diff_identity(id_a, id_b, out, &n);
    else if (st == CORUN_OK && x->n && y->n && !same(x, y))
        buf_puts(out, "  (--identity-a and --identity-b name the differing fields)\n");
    json_decref(id_a);
    json_decref(id_b);
    return st != CORUN_OK ? st : buf_status(out);
}
