/* audit.c - owns the table of `corun audit` and the comparison of its results.
 * Invariant: what is shown is what was kept for the engine. */
#include "proof/audit.h"

#include <string.h>

#include "engine/levels.h"
#include "proof/diff.h"

/* ---- measuring --------------------------------------------------------------------------------
 */

/* The quick form with other numbers of threads: a case whose bits differ is not repeatable. */
static corun_status other_threads(const corun_model *m, const audit_spec *s, audit_report *r)
{
    static const int threads[] = {1, 2, 3, 5};
    const ops *o = m->net->o;
    if (strcmp(o->name, "cpu") != 0) return CORUN_OK;
    audit_spec quick = *s;
    quick.full = false;
    audit_report *first = mem_alloc(2, sizeof *first, "audit report");
    if (!first) return CORUN_ENOMEM;
    corun_status st = audit_run(o, &quick, first);
    for (size_t i = 0; i < sizeof threads / sizeof *threads && st == CORUN_OK; i++) {
        ops *like;
        ops_open_opts oo = {.isa = o->isa};
        if (threads[i] == pool_size(m->threads)) continue;
        if ((st = pool_open(&oo.threads, threads[i])) != CORUN_OK) break;
        st = ops_open_cpu(&like, &quick.dims, &oo);
        if (st == CORUN_OK) {
            st = audit_run(like, &quick, first + 1);
            like->close(like);
        }
        pool_close(oo.threads);
        for (size_t k = 0; st == CORUN_OK && k < first->n && k < r->n; k++) {
            r->seconds += k ? 0 : first[1].seconds;
            if (memcmp(&first->c[k].bits, &first[1].c[k].bits, sizeof(digest)) == 0) continue;
            r->c[k].level = OPS_LEVEL_NONE; /* cases stand in one order in both forms */
            snprintf(r->c[k].why, sizeof r->c[k].why, "other bits with %d threads", threads[i]);
        }
    }
    mem_free(first);
    return st;
}

static int print_table(const audit_report *r, const audit_spec *s, const ops *o, int threads,
                       FILE *out)
{
    int failed = 0;
    if (out) {
        fprintf(out, "%s %s, %d threads, decode width %d, pages of %d, %s form\n", o->name,
                o->isa ? o->isa : "", threads, s->width, s->page_tokens,
                s->full ? "full" : "quick");
        fprintf(out, "%-20s %-22s %-10s %-9s %-9s %9s %8s\n", "op", "form", "kernels", "level",
                "declared", "compared", "seconds");
    }
    for (size_t i = 0; i < r->n; i++) {
        const audit_case *c = &r->c[i];
        failed += c->level < c->declared;
        if (!out) continue;
        fprintf(out, "%-20s %-22s %-10s %-9s %-9s %9llu %8.3f\n", ops_op_name(c->op), c->what,
                ops_set_name(c->set), ops_level_name(c->level), ops_level_name(c->declared),
                (unsigned long long)c->n_compared, c->seconds);
        if (c->level < c->declared) fprintf(out, "    FAILED: %s\n", c->why);
    }
    if (out)
        fprintf(out, "%d of %zu cases miss what they declare, %.2f s\n", failed, r->n, r->seconds);
    return failed;
}

corun_status proof_audit(corun_model *m, const proof_audit_opts *o, FILE *out, buf *json,
                         char kept[1024], int *n_failed)
{
    audit_spec s;
    buf identity;
    char key[33];
    kept[0] = 0;
    if (m->net->fake)
        FAIL(CORUN_EUNSUPPORTED, "the fake model has no ops to audit: its levels are its name");
    corun_engine_opts eo = o->engine;
    TRY(engine_check_shape(&eo, &m->net->cfg));
    levels_spec(m, &eo, &s);
    audit_report *r = mem_alloc(1, sizeof *r, "audit report");
    if (!r) return CORUN_ENOMEM;
    buf_init(&identity, 1 << 20);
    corun_status st = levels_identity(m, &s, &identity, key);
    s.full = o->full;
    if (st == CORUN_OK) st = audit_run(m->net->o, &s, r);
    if (st == CORUN_OK && o->full) st = other_threads(m, &s, r);
    if (st == CORUN_OK) st = levels_text(r, o->full, &identity, json);
    if (st == CORUN_OK) {
        *n_failed = print_table(r, &s, m->net->o, pool_size(m->threads), out);
        if (levels_save(key, json, kept) != CORUN_OK) kept[0] = 0;
    }
    buf_free(&identity);
    mem_free(r);
    return st;
}

/* ---- comparing --------------------------------------------------------------------------------
 */

/* The file as an object: whole, or (a result file of many lines) its first row. */
static corun_status read_any(json_t **out, const char *path)
{
    buf b;
    buf_init(&b, (size_t)1 << 28);
    corun_status st = file_read(&b, path, (size_t)1 << 28);
    if (st == CORUN_OK) st = json_read(out, b.data ? b.data : "", b.len, path);
    const char *end = st == CORUN_EFORMAT && b.data ? memchr(b.data, '\n', b.len) : NULL;
    if (end) st = json_read(out, b.data, (size_t)(end - b.data), path);
    buf_free(&b);
    if (st == CORUN_OK && !json_is_object(*out)) {
        json_decref(*out);
        FAIL(CORUN_EFORMAT, "%s: no JSON object", path);
    }
    return st;
}

static const json_t *identity_of(const json_t *root)
{
    const json_t *id = json_object_get(root, "identity");
    return json_is_object(id) ? id : json_object_get(root, "numerics") ? root : NULL;
}

static const char *fingerprint_of(const json_t *root)
{
    const json_t *body = diff_body(root);
    const char *s = json_string_value(json_object_get(body ? body : root, "system_fingerprint"));
    return s ? s : json_string_value(json_object_get(root, "identity_digest"));
}

static const char *text_of(const json_t *v, const char *key)
{
    const char *s = json_string_value(json_object_get(v, key));
    return s ? s : "(nothing)";
}

/* The case of b for the same op, form and kernel set. */
static const json_t *same_case(const json_t *cases, const json_t *c)
{
    static const char *const key[] = {"op", "what", "set"};
    size_t i;
    const json_t *v;
    json_array_foreach ((json_t *)cases, i, v) {
        int same = 0;
        for (int k = 0; k < 3; k++) same += strcmp(text_of(v, key[k]), text_of(c, key[k])) == 0;
        if (same == 3) return v;
    }
    return NULL;
}

/* Whether the bits of two results come from the same inputs: one form, one shape. */
static bool same_inputs(const json_t *a, const json_t *b)
{
    static const char *const elsewhere[] = {"backend", "isa",    "machine",
                                            "sources", "golden", "threads"};
    const json_t *ia = json_object_get(a, "identity"), *ib = json_object_get(b, "identity"), *v;
    const char *key;
    if (strcmp(text_of(a, "form"), text_of(b, "form")) != 0) return false;
    json_object_foreach ((json_t *)ia, key, v) {
        bool skip = false;
        for (size_t i = 0; i < sizeof elsewhere / sizeof *elsewhere; i++)
            skip |= strcmp(key, elsewhere[i]) == 0;
        if (!skip && !json_equal(v, json_object_get(ib, key))) return false;
    }
    return true;
}

static void diff_cases(const json_t *a, const json_t *b, buf *out, size_t *n)
{
    static const char *const key[] = {"level", "declared", "bits"};
    int n_key = same_inputs(a, b) ? 3 : 2;
    const json_t *ca = json_object_get(a, "cases"), *cb = json_object_get(b, "cases");
    size_t i;
    const json_t *v;
    json_array_foreach ((json_t *)ca, i, v) {
        const json_t *w = same_case(cb, v);
        for (int k = 0; k < n_key; k++) {
            const char *x = text_of(v, key[k]), *y = w ? text_of(w, key[k]) : "(not tried)";
            if (strcmp(x, y) == 0) continue;
            buf_printf(out, "  %s %s (%s): %s %s, %s\n", text_of(v, "op"), text_of(v, "what"),
                       text_of(v, "set"), key[k], x, y);
            ++*n;
            if (!w) break;
        }
    }
    json_array_foreach ((json_t *)cb, i, v) {
        if (same_case(ca, v)) continue;
        buf_printf(out, "  %s %s (%s): only in B\n", text_of(v, "op"), text_of(v, "what"),
                   text_of(v, "set"));
        ++*n;
    }
}

static corun_status diff_files(const json_t *a, const json_t *b, buf *out, size_t *n)
{
    const json_t *ia = identity_of(a), *ib = identity_of(b);
    const char *fa = fingerprint_of(a), *fb = fingerprint_of(b);
    if (!json_object_get(a, "cases") != !json_object_get(b, "cases"))
        FAIL(CORUN_EFORMAT, "one is a result of the audit, the other is not");
    if (ia && ib) {
        TRY(diff_identity(ia, ib, out, n));
    } else if (fa && fb) {
        if (strcmp(fa, fb) == 0) return CORUN_OK;
        buf_printf(out, "  system_fingerprint: %s, %s\n", fa, fb);
        buf_puts(out, "  (its fields are in the identities that `info --identity --json` and "
                      "`batch --metrics` write)\n");
        ++*n;
    } else {
        FAIL(CORUN_EFORMAT, "they do not both name an identity");
    }
    if (json_object_get(a, "cases") && json_object_get(b, "cases")) diff_cases(a, b, out, n);
    return CORUN_OK;
}

corun_status proof_audit_diff(const char *path_a, const char *path_b, buf *out, size_t *n)
{
    json_t *a, *b;
    *n = 0;
    TRY(read_any(&a, path_a));
    corun_status st = read_any(&b, path_b);
    if (st != CORUN_OK) {
        json_decref(a);
        return st;
    }
    st = diff_files(a, b, out, n);
    if (st == CORUN_EFORMAT) err_prefix(st, "%s, %s", path_a, path_b);
    json_decref(a);
    json_decref(b);
    return st != CORUN_OK ? st : buf_status(out);
}
