/* template.c - owns parsed templates and the frame of a render. Invariant: a render leaves the
 * template and the caller's JSON untouched, so one template serves many threads. */
#include "text/template.h"

#include <string.h>

#include "text/template_int.h"

corun_status template_parse(template **out, const char *src, size_t len, const char *what)
{
    template *t;
    ttok *tok = NULL;
    size_t n_tok;
    char *copy;
    corun_status st = CORUN_OK;
    *out = NULL;
    if (len > TPL_SOURCE_MAX)
        FAIL(CORUN_EFORMAT, "%s: a template of more than %u bytes", what, TPL_SOURCE_MAX);
    if (!tstr_valid(src, len)) FAIL(CORUN_EFORMAT, "%s: the template is not UTF-8", what);
    if (!MEM_NEW(t, 1)) return CORUN_ENOMEM;
    t->a.max = TPL_ARENA_MAX;
    t->what = mem_dup(what, strlen(what), "template name");
    copy = tpl_new(&t->a, len, 1);
    if (!t->what || !copy) FAIL_OR_DONE(CORUN_ENOMEM, "%s: no memory for the template", what);
    if (len) memcpy(copy, src, len);
    TRY_OR_DONE(tpl_lex(t, copy, len, &tok, &n_tok));
    TRY_OR_DONE(tpl_parse_tokens(t, tok, n_tok));
    tpl_detect_parts(t);
    *out = t;
done:
    mem_free(tok);
    if (st != CORUN_OK) template_free(t);
    return st;
}

void template_free(template *t)
{
    if (!t) return;
    tpl_arena_free(&t->a);
    mem_free(t->what);
    mem_free(t);
}

bool template_wants_parts(const template *t) { return t->wants_parts; }
bool template_needs_parts(const template *t) { return t->wants_parts && !t->asks_string; }

/* The variables that the template names, in its outermost scope. */
static corun_status set_vars(tctx *c, const json_t *vars)
{
    for (int i = 0; i < c->t->n_name; i++) {
        const tname *n = &c->t->names[i];
        json_t *j = json_object_getn(vars, n->s, n->len);
        tval v;
        if (!j) continue;
        TRY(tpl_from_json(c, j, &v));
        TRY(tpl_assign(c, i, &v));
    }
    return CORUN_OK;
}

corun_status template_render(const template *t, const template_env *env, buf *out)
{
    tsb text = {0};
    tval v;
    tctx c = {.t = t, .a.max = TPL_ARENA_MAX, .line = 1, .out = &text};
    c.year = env->year;
    c.month = env->month;
    c.day = env->day;
    if (c.year < 1 || c.year > 9999 || c.month < 1 || c.month > 12 || c.day < 1 || c.day > 31)
        FAIL(CORUN_EINVAL, "%s: the date %d-%d-%d is none", t->what, c.year, c.month, c.day);
    corun_status st = tpl_scope_push(&c, NULL, &(tscope *){NULL});
    if (st == CORUN_OK) st = set_vars(&c, env->vars);
    /* a scope of its own: what the template sets hides the variables */
    if (st == CORUN_OK) st = tpl_scope_push(&c, c.scope, &(tscope *){NULL});
    if (st == CORUN_OK) st = tpl_exec(&c, t->root);
    if (st == CORUN_OK) st = tsb_value(&c, &text, &v);
    if (st == CORUN_OK) {
        buf_put(out, v.u.s, v.len);
        st = buf_status(out);
    }
    tpl_arena_free(&c.a);
    return st;
}
