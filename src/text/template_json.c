/* template_json.c - owns JSON text inside templates, spelled as Python's json.dumps spells it.
 * Invariant: what has no JSON form (undefined, lazy, a function) is an error, never a guess. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/template_int.h"

typedef struct jout {
    tctx *c;
    tsb b;
    const tjson *how;
} jout;

static void put_string(jout *o, const tval *v)
{
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    tsb_puts(o->c, &o->b, "\"");
    for (uint32_t i = 0; i < v->len;) {
        int n;
        int32_t cp = tstr_cp(v->u.s + i, &n);
        const char *p = cp && cp < 0x80 ? strchr(from, cp) : NULL;
        char t[16] = "";
        if (p)
            snprintf(t, sizeof t, "\\%c", to[p - from]);
        else if (cp < 0x20 || (o->how->ascii && cp >= 0x7f && cp < 0x10000 && cp != 0x7f))
            snprintf(t, sizeof t, "\\u%04x", (unsigned)cp);
        else if (o->how->ascii && cp >= 0x10000)
            snprintf(t, sizeof t, "\\u%04x\\u%04x", (unsigned)(0xd800 + ((cp - 0x10000) >> 10)),
                     (unsigned)(0xdc00 + (cp & 0x3ff)));
        if (t[0])
            tsb_puts(o->c, &o->b, t);
        else
            tsb_put(o->c, &o->b, v->u.s + i, (size_t)n);
        i += (uint32_t)n;
    }
    tsb_puts(o->c, &o->b, "\"");
}

static void put_scalar(jout *o, const tval *v)
{
    char t[32];
    if (v->kind == T_FLOAT) {
        json_double_repr(v->u.f, t);
        if (isnan(v->u.f) || isinf(v->u.f))
            strcpy(t, isnan(v->u.f) ? "NaN" : v->u.f > 0 ? "Infinity" : "-Infinity");
    } else if (v->kind == T_INT) {
        snprintf(t, sizeof t, "%lld", (long long)v->u.i);
    } else {
        strcpy(t, v->kind == T_NONE ? "null" : v->u.i ? "true" : "false");
    }
    tsb_puts(o->c, &o->b, t);
}

static void put_line(jout *o, int level)
{
    if (!o->how->indent) return;
    tsb_puts(o->c, &o->b, "\n");
    for (int i = 0; i < level; i++) tsb_put(o->c, &o->b, o->how->indent, o->how->indent_len);
}

static corun_status put_any(jout *o, const tval *v, int level);

static corun_status put_key(jout *o, const tval *k)
{
    if (k->kind == T_STR) {
        put_string(o, k);
        return CORUN_OK;
    }
    if (k->kind != T_NONE && !tv_is_num(k))
        return tpl_fail(o->c, "keys must be str, int, float, bool or None, not %s",
                        tpl_kind_name(k));
    tsb_puts(o->c, &o->b, "\"");
    put_scalar(o, k);
    tsb_puts(o->c, &o->b, "\"");
    return CORUN_OK;
}

/* The pairs in the order of their keys. */
static corun_status sorted_pairs(tctx *c, const tval *v, tval *out)
{
    tval *keys, *at;
    tpair *pairs;
    TRY(tpl_list(c, &keys, v->len));
    TRY(tpl_list(c, &at, v->len));
    for (uint32_t i = 0; i < v->len; i++) {
        keys[i] = v->u.d[i].k;
        at[i] = tv_int(i);
    }
    TRY(tpl_sort(c, keys, at, v->len, false));
    TPL_NEW(&c->a, pairs, v->len);
    for (uint32_t i = 0; i < v->len; i++) pairs[i] = v->u.d[at[i].u.i];
    return tpl_dict(c, pairs, v->len, out);
}

static corun_status put_object(jout *o, const tval *v, int level)
{
    tval d = *v;
    if (o->how->sorted) TRY(sorted_pairs(o->c, v, &d));
    tsb_puts(o->c, &o->b, "{");
    for (uint32_t i = 0; i < d.len; i++) {
        if (i) tsb_put(o->c, &o->b, o->how->item, o->how->item_len);
        put_line(o, level + 1);
        TRY(put_key(o, &d.u.d[i].k));
        tsb_put(o->c, &o->b, o->how->key, o->how->key_len);
        TRY(put_any(o, &d.u.d[i].v, level + 1));
    }
    if (d.len) put_line(o, level);
    tsb_puts(o->c, &o->b, "}");
    return CORUN_OK;
}

static corun_status put_array(jout *o, const tval *v, int level)
{
    tsb_puts(o->c, &o->b, "[");
    for (uint32_t i = 0; i < v->len; i++) {
        if (i) tsb_put(o->c, &o->b, o->how->item, o->how->item_len);
        put_line(o, level + 1);
        TRY(put_any(o, &v->u.v[i], level + 1));
    }
    if (v->len) put_line(o, level);
    tsb_puts(o->c, &o->b, "]");
    return CORUN_OK;
}

static corun_status put_any(jout *o, const tval *v, int level)
{
    TRY(tpl_charge(o->c, 1));
    if (v->kind == T_DICT) return put_object(o, v, level);
    if (v->kind == T_SEQ && v->sub <= SEQ_TUPLE) return put_array(o, v, level);
    if (v->kind == T_STR)
        put_string(o, v);
    else if (v->kind == T_NONE || tv_is_num(v))
        put_scalar(o, v);
    else
        return tpl_fail(o->c, "object of type %s is not JSON serializable", tpl_kind_name(v));
    return o->b.failed ? tpl_why(&o->c->a) : CORUN_OK;
}

corun_status tpl_to_json(tctx *c, const tval *v, const tjson *how, tval *out)
{
    jout o = {.c = c, .how = how};
    TRY(put_any(&o, v, 0));
    return tsb_value(c, &o.b, out);
}
