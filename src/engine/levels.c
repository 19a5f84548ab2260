/* levels.c - owns the kept results of the audit. Invariant: a result counts only for the identity
 * that it was measured under, and only when it covers every op with every kernel set. */
#include "engine/levels.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/version.h"

#ifdef CORUN_BREAK
static const bool broken = true;
#else
static const bool broken = false;
#endif

enum { FORMAT = 1, MAX_TEXT = 1 << 20, MAX_CTX = 4096 };

/* ---- identity ---------------------------------------------------------------------------------
 */

void levels_spec(const corun_model *m, const corun_engine_opts *o, audit_spec *out)
{
    const config *g = &m->net->cfg;
    int32_t n_ctx = o->n_ctx ? o->n_ctx : g->n_ctx;
    *out = (audit_spec){.qkv_bias = g->qkv_bias,
                        .o_bias = g->o_bias,
                        .mlp_bias = g->mlp_bias,
                        .qk_norm = g->qk_norm,
                        .width = o->n_slot,
                        .page_tokens = o->page_tokens,
                        .n_ctx = n_ctx < MAX_CTX ? n_ctx : MAX_CTX,
                        .processed_logprobs = o->processed_logprobs};
    model_dims(g, &out->dims);
    out->dims.n_layer = 1; /* layers do not differ */
}

corun_status levels_identity(const corun_model *m, const audit_spec *s, buf *json, char key[33])
{
    const ops *o = m->net->o;
    jw w;
    jw_init(&w, json);
    jw_open(&w, '{');
    jw_field_int(&w, "format", FORMAT);
    jw_field_str(&w, "backend", o->name);
    jw_field_str(&w, "isa", o->isa ? o->isa : "");
    jw_field_str(&w, "machine", o->machine);
    jw_field_str(&w, "sources", version_sources());
    jw_field_str(&w, "golden", m->golden);
    jw_field_int(&w, "threads", pool_size(m->threads));
    jw_field_int(&w, "n_embd", s->dims.n_embd);
    jw_field_int(&w, "n_head", s->dims.n_head);
    jw_field_int(&w, "n_kv", s->dims.n_kv);
    jw_field_int(&w, "d_head", s->dims.d_head);
    jw_field_int(&w, "n_ff", s->dims.n_ff);
    jw_field_int(&w, "n_vocab", s->dims.n_vocab);
    jw_field_bool(&w, "qkv_bias", s->qkv_bias);
    jw_field_bool(&w, "o_bias", s->o_bias);
    jw_field_bool(&w, "mlp_bias", s->mlp_bias);
    jw_field_bool(&w, "qk_norm", s->qk_norm);
    jw_field_int(&w, "width", s->width);
    jw_field_int(&w, "page_tokens", s->page_tokens);
    jw_field_int(&w, "n_ctx", s->n_ctx);
    jw_field_str(&w, "logprobs", s->processed_logprobs ? "processed" : "raw");
    jw_close(&w, '}');
    TRY(buf_status(json));
    digest_hex(digest_of(json->data, json->len), key);
    return CORUN_OK;
}

/* ---- text -------------------------------------------------------------------------------------
 */

static void put_case(jw *w, const audit_case *c)
{
    char hex[33];
    digest_hex(c->bits, hex);
    jw_open(w, '{');
    jw_field_str(w, "op", ops_op_name(c->op));
    jw_field_str(w, "what", c->what);
    jw_field_str(w, "set", ops_set_name(c->set));
    jw_field_str(w, "level", ops_level_name(c->level));
    jw_field_str(w, "declared", ops_level_name(c->declared));
    jw_field_int(w, "compared", (int64_t)c->n_compared);
    jw_field_double(w, "seconds", c->seconds);
    jw_field_str(w, "bits", hex);
    jw_field_str(w, "why", c->why);
    jw_close(w, '}');
}

corun_status levels_text(const audit_report *r, bool full, const buf *identity, buf *out)
{
    json_t *id;
    TRY(json_read(&id, identity->data, identity->len, "identity"));
    jw w;
    jw_init(&w, out);
    jw_open(&w, '{');
    jw_field_str(&w, "form", full ? "full" : "quick");
    jw_field_str(&w, "version", corun_version());
    jw_key(&w, "identity");
    jw_value(&w, id);
    jw_field_double(&w, "seconds", r->seconds);
    jw_key(&w, "cases");
    jw_open(&w, '[');
    for (size_t i = 0; i < r->n; i++) put_case(&w, &r->c[i]);
    jw_close(&w, ']');
    jw_close(&w, '}');
    buf_putc(out, '\n');
    json_decref(id);
    return buf_status(out);
}

/* Index of a name, -1: none. */
static int find(const json_t *v, const char *(*name)(int), int n)
{
    for (int i = 0; json_is_string(v) && i < n; i++)
        if (strcmp(json_string_value(v), name(i)) == 0) return i;
    return -1;
}

static const char *name_of_op(int i) { return ops_op_name((ops_op)i); }
static const char *name_of_set(int i) { return ops_set_name((ops_set)i); }
static const char *name_of_level(int i) { return ops_level_name((ops_level)i); }

static bool read_case(audit_case *c, const json_t *v)
{
    int op = find(json_object_get(v, "op"), name_of_op, OPS_N_OP);
    int set = find(json_object_get(v, "set"), name_of_set, OPS_N_SET);
    int level = find(json_object_get(v, "level"), name_of_level, OPS_LEVEL_PHASE + 1);
    int declared = find(json_object_get(v, "declared"), name_of_level, OPS_LEVEL_PHASE + 1);
    const char *what = json_string_value(json_object_get(v, "what"));
    const char *why = json_string_value(json_object_get(v, "why"));
    int64_t n;
    if (op < 0 || set < 0 || level < 0 || declared < 0 || !what || !why ||
        !json_is_whole(json_object_get(v, "compared"), &n) || n < 0)
        return false;
    *c = (audit_case){.op = (ops_op)op,
                      .set = (ops_set)set,
                      .level = (ops_level)level,
                      .declared = (ops_level)declared,
                      .n_compared = (uint64_t)n};
    snprintf(c->what, sizeof c->what, "%s", what);
    snprintf(c->why, sizeof c->why, "%s", why);
    return true;
}

static corun_status read_report(audit_report *out, json_t *root, const char *key)
{
    json_t *id = json_object_get(root, "identity"), *cases = json_object_get(root, "cases");
    char hex[33];
    buf b;
    jw w;
    buf_init(&b, MAX_TEXT);
    jw_init(&w, &b);
    if (id) jw_value(&w, id);
    digest_hex(digest_of(b.data ? b.data : "", b.len), hex);
    buf_free(&b);
    if (strcmp(hex, key) != 0) FAIL(CORUN_EFORMAT, "kept audit: of another identity");
    size_t n = json_array_size(cases);
    if (n > AUDIT_MAX_CASE) FAIL(CORUN_EFORMAT, "kept audit: %zu cases", n);
    memset(out, 0, sizeof *out);
    for (; out->n < n; out->n++)
        if (!read_case(&out->c[out->n], json_array_get(cases, out->n)))
            FAIL(CORUN_EFORMAT, "kept audit: case %zu is malformed", out->n);
    for (int s = 0; s < OPS_N_SET; s++)
        for (int i = 0; i < OPS_N_OP; i++)
            if (!audit_weakest(out, (ops_set)s, (ops_op)i))
                FAIL(CORUN_EFORMAT, "kept audit: no case of %s", ops_op_name((ops_op)i));
    return CORUN_OK;
}

corun_status levels_read(audit_report *out, const char *text, size_t len, const char *key)
{
    json_t *root;
    TRY(json_read(&root, text, len, "kept audit"));
    corun_status st = read_report(out, root, key);
    json_decref(root);
    return st;
}

/* ---- the cache --------------------------------------------------------------------------------
 */

enum { PATH_SIZE = 1024 };

/* The folder (made where asked), or false: there is none. */
static bool cache_folder(char out[PATH_SIZE], bool make)
{
    const char *base = getenv("XDG_CACHE_HOME"), *sub = "";
    if (!base || base[0] != '/') {
        base = getenv("HOME");
        sub = "/.cache";
    }
    if (!base || base[0] != '/') return false;
    int n = snprintf(out, PATH_SIZE, "%s%s/corun/audit", base, sub);
    if (n < 0 || n > PATH_SIZE - 64) return false;
    for (char *p = out + 1; make && (p = strchr(p, '/')); p++) {
        *p = 0;
        if (mkdir(out, 0777) != 0 && errno != EEXIST) return false;
        *p = '/';
    }
    return !make || mkdir(out, 0777) == 0 || errno == EEXIST;
}

static bool write_all(int fd, const char *p, size_t n)
{
    while (n > 0) {
        ssize_t k = write(fd, p, n);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return false;
        p += k;
        n -= (size_t)k;
    }
    return true;
}

corun_status levels_save(const char *key, const buf *text, char path[1024])
{
    char dir[PATH_SIZE], temp[PATH_SIZE + 32], name[PATH_SIZE + 64];
    if (!cache_folder(dir, true)) FAIL(CORUN_EIO, "the cache folder cannot be made");
    snprintf(temp, sizeof temp, "%s/.new-XXXXXX", dir);
    snprintf(name, sizeof name, "%s/%s.json", dir, key);
    int fd = mkstemp(temp);
    if (fd < 0) FAIL(CORUN_EIO, "%s: %s", dir, strerror(errno));
    bool ok = write_all(fd, text->data, text->len);
    ok = close(fd) == 0 && ok;
    if (!ok || rename(temp, name) != 0) {
        int err = errno;
        unlink(temp);
        FAIL(CORUN_EIO, "%s: %s", name, strerror(err));
    }
    if (path) snprintf(path, PATH_SIZE, "%.*s", PATH_SIZE - 1, name);
    return CORUN_OK;
}

static corun_status load(audit_report *out, const char *key)
{
    char dir[PATH_SIZE], name[PATH_SIZE + 64];
    buf b;
    if (!cache_folder(dir, false)) return CORUN_EIO;
    snprintf(name, sizeof name, "%s/%s.json", dir, key);
    struct stat at;
    if (stat(name, &at) != 0 || !S_ISREG(at.st_mode)) return CORUN_EIO;
    buf_init(&b, MAX_TEXT);
    corun_status st = file_read(&b, name, MAX_TEXT);
    if (st == CORUN_OK) st = levels_read(out, b.data ? b.data : "", b.len, key);
    buf_free(&b);
    return st;
}

/* ---- at open ----------------------------------------------------------------------------------
 */

static corun_status measure(const corun_model *m, const audit_spec *s, const buf *identity,
                            const char *key, audit_report *out)
{
    TRY(audit_run(m->net->o, s, out));
    buf text;
    buf_init(&text, MAX_TEXT);
    corun_status st = levels_text(out, s->full, identity, &text);
    if (st == CORUN_OK) (void)levels_save(key, &text, NULL); /* not kept: measured again */
    buf_free(&text);
    return st;
}

corun_status levels_get(corun_model *m, const corun_engine_opts *o, const audit_report **out)
{
    *out = NULL;
    if (m->net->fake || broken) return CORUN_OK;
    audit_spec s;
    buf identity;
    char key[33];
    levels_spec(m, o, &s);
    buf_init(&identity, MAX_TEXT);
    corun_status st = levels_identity(m, &s, &identity, key);
    if (st == CORUN_OK && !(m->levels && strcmp(key, m->levels_key) == 0)) {
        m->levels_key[0] = 0;
        if (!m->levels) m->levels = mem_alloc(1, sizeof *m->levels, "audit report");
        if (!m->levels) st = CORUN_ENOMEM;
        if (st == CORUN_OK && load(m->levels, key) != CORUN_OK)
            st = measure(m, &s, &identity, key, m->levels);
        if (st == CORUN_OK) memcpy(m->levels_key, key, sizeof key);
    }
    buf_free(&identity);
    if (st == CORUN_OK) *out = m->levels;
    return st;
}
