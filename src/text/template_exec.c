/* template_exec.c - owns the execution of statements: scopes, loops, macros, output. Invariant: a
 * scope is only ever written by the statements inside it; namespaces carry values outward. */
#include <string.h>

#include "text/template_int.h"

/* Opens a scope inside up; *saved gets the scope to go back to. */
corun_status tpl_scope_push(tctx *c, tscope *up, tscope **saved)
{
    tscope *s;
    *saved = c->scope;
    TPL_NEW(&c->a, s, 1);
    *s = (tscope){.up = up};
    c->scope = s;
    return CORUN_OK;
}

corun_status tpl_assign(tctx *c, int name, const tval *v)
{
    tscope *s = c->scope;
    c->steps += (uint64_t)s->n / 8;
    for (int i = 0; i < s->n; i++)
        if (s->vars[i].name == name) {
            s->vars[i].v = *v;
            return CORUN_OK;
        }
    if (s->n == s->cap) {
        int cap = s->cap ? s->cap * 2 : 4;
        void *p = tpl_grow(&c->a, s->vars, (size_t)s->cap * sizeof *s->vars,
                           (size_t)cap * sizeof *s->vars);
        if (!p) return tpl_why(&c->a);
        s->vars = p;
        s->cap = cap;
    }
    s->vars[s->n].name = name;
    s->vars[s->n++].v = *v;
    return CORUN_OK;
}

static corun_status assign_ns(tctx *c, const tnode *to, const tval *v)
{
    tval ns;
    TRY(tpl_eval(c, to->kid[0], &ns));
    const tname *name = &c->t->names[to->id];
    if (ns.kind == T_UNDEF) return tpl_fail_undef(c, &ns);
    if (ns.kind != T_NS)
        return tpl_fail(c, "cannot assign attribute '%.*s' on an object that is no namespace",
                        (int)name->len, name->s);
    tns *s = ns.u.ns;
    c->steps += s->n / 8;
    for (uint32_t i = 0; i < s->n; i++)
        if (s->vars[i].k.len == name->len && memcmp(s->vars[i].k.u.s, name->s, name->len) == 0) {
            s->vars[i].v = *v;
            return CORUN_OK;
        }
    if (s->n == s->cap) {
        uint32_t cap = s->cap ? s->cap * 2 : 4;
        tpair *p = tpl_grow(&c->a, s->vars, s->cap * sizeof *p, cap * sizeof *p);
        if (!p) return tpl_why(&c->a);
        s->vars = p;
        s->cap = cap;
    }
    s->vars[s->n].k = tv_str(name->s, name->len);
    s->vars[s->n++].v = *v;
    return CORUN_OK;
}

static corun_status assign_to(tctx *c, const tnode *to, const tval *v)
{
    if (to->kind == N_NAME) return tpl_assign(c, to->id, v);
    if (to->kind == N_NSREF) return assign_ns(c, to, v);
    const tval *items;
    uint32_t n;
    TRY(tpl_items(c, v, &items, &n));
    if ((int64_t)n != to->n)
        return tpl_fail(c, "%s values to unpack (expected %d, got %u)",
                        (int64_t)n > to->n ? "too many" : "not enough", to->n, n);
    for (int i = 0; i < to->n; i++) TRY(assign_to(c, to->kid[i], &items[i]));
    return CORUN_OK;
}

/* Runs a body in the scope of now and takes its text. */
static corun_status text_of(tctx *c, const tnode *body, tval *out)
{
    tsb *b, *outer = c->out;
    TPL_NEW(&c->a, b, 1);
    *b = (tsb){0};
    c->out = b;
    TRY(tpl_exec(c, body));
    c->out = outer;
    return tsb_value(c, b, out);
}

/* Likewise, in a scope of its own. */
static corun_status capture(tctx *c, const tnode *body, tval *out)
{
    tscope *saved;
    TRY(tpl_scope_push(c, c->scope, &saved));
    TRY(text_of(c, body, out));
    c->scope = saved;
    return CORUN_OK;
}

/* ---- loops
 * --------------------------------------------------------------------------------------- */

/* The items of a loop, after its condition. */
static corun_status loop_items(tctx *c, const tnode *n, const tval **items, uint32_t *count)
{
    tval v;
    TRY(tpl_eval(c, n->kid[1], &v));
    c->line = n->line;
    TRY(tpl_items(c, &v, items, count));
    if (!n->kid[2]) return CORUN_OK;
    tval *kept;
    uint32_t n_kept = 0;
    TRY(tpl_list(c, &kept, *count));
    for (uint32_t i = 0; i < *count; i++) {
        tscope *saved;
        tval ok;
        TRY(tpl_scope_push(c, c->scope, &saved));
        TRY(assign_to(c, n->kid[0], &(*items)[i]));
        TRY(tpl_eval(c, n->kid[2], &ok));
        if (tpl_truth(&ok)) kept[n_kept++] = (*items)[i];
        c->scope = saved;
    }
    *items = kept;
    *count = n_kept;
    return CORUN_OK;
}

static corun_status exec_for(tctx *c, const tnode *n)
{
    const tval *items;
    tloop *loop;
    tscope *saved = c->scope, *turn = NULL;
    bool ran = false;
    TPL_NEW(&c->a, loop, 1);
    *loop = (tloop){0};
    TRY(loop_items(c, n, &items, &loop->n));
    loop->items = items;
    tval self = {.kind = T_LOOP, .u.loop = loop};
    /* One scope serves all turns, emptied between them, unless a macro has kept it. */
    for (uint32_t i = 0; i < loop->n && c->flow != FLOW_BREAK; i++) {
        loop->i = i;
        TRY(tpl_charge(c, 1));
        if (!turn || turn->kept) {
            TRY(tpl_scope_push(c, saved, &(tscope *){NULL}));
            turn = c->scope;
        }
        turn->n = 0;
        TRY(tpl_assign(c, NAME_LOOP, &self));
        TRY(assign_to(c, n->kid[0], &items[i]));
        TRY(tpl_exec(c, n->kid[3]));
        c->scope = turn;
        if (c->flow == FLOW_NONE) ran = true;
        if (c->flow == FLOW_CONTINUE) c->flow = FLOW_NONE;
    }
    c->flow = FLOW_NONE;
    c->scope = saved;
    if (ran || !n->kid[4]) return CORUN_OK;
    TRY(tpl_scope_push(c, c->scope, &saved));
    TRY(tpl_exec(c, n->kid[4]));
    c->scope = saved;
    return CORUN_OK;
}

/* ---- macros
 * ---------------------------------------------------------------------------------------- */

static int find_kw(const tctx *c, const targs *a, int name)
{
    const tname *n = &c->t->names[name];
    for (int i = 0; i < a->n_kw; i++)
        if (a->kw[i].len == n->len && memcmp(a->kw[i].name, n->s, n->len) == 0) return i;
    return -1;
}

/* What is left over of the arguments: varargs, kwargs, caller. */
static corun_status bind_rest(tctx *c, const tnode *def, const targs *a, const bool *used)
{
    tpair *pairs;
    size_t n = 0;
    tval v;
    bool caller = false;
    TPL_NEW(&c->a, pairs, (size_t)a->n_kw);
    for (int i = 0; i < a->n_kw; i++) {
        if (used[i]) continue;
        if (a->kw[i].len == 6 && memcmp(a->kw[i].name, "caller", 6) == 0 &&
            (def->op & MACRO_CALLER)) {
            TRY(tpl_assign(c, NAME_CALLER, &a->kw[i].v));
            caller = true;
            continue;
        }
        if (!(def->op & MACRO_KWARGS))
            return tpl_fail(c, "the macro takes no keyword argument '%.*s'", (int)a->kw[i].len,
                            a->kw[i].name);
        pairs[n].k = tv_str(a->kw[i].name, a->kw[i].len);
        pairs[n++].v = a->kw[i].v;
    }
    if (def->op & MACRO_KWARGS) {
        TRY(tpl_dict(c, pairs, n, &v));
        TRY(tpl_assign(c, NAME_KWARGS, &v));
    }
    if ((def->op & MACRO_CALLER) && !caller) {
        v = tv_hint("No caller defined", 17);
        TRY(tpl_assign(c, NAME_CALLER, &v));
    }
    int extra = a->n > def->n_name ? a->n - def->n_name : 0;
    if (def->op & MACRO_VARARGS) {
        TRY(tpl_seq(c, SEQ_TUPLE, a->v + (a->n - extra), (size_t)extra, &v));
        return tpl_assign(c, NAME_VARARGS, &v);
    }
    if (extra) return tpl_fail(c, "the macro takes not more than %d argument(s)", def->n_name);
    return CORUN_OK;
}

static corun_status bind_macro(tctx *c, const tnode *def, const targs *a)
{
    bool *used;
    TPL_NEW(&c->a, used, (size_t)a->n_kw);
    memset(used, 0, (size_t)a->n_kw * sizeof *used);
    int first_default = def->n_name - (def->n - 1);
    for (int i = 0; i < def->n_name; i++) {
        tval v;
        int kw = i < a->n ? -1 : find_kw(c, a, def->names[i]);
        if (i < a->n) {
            v = a->v[i];
        } else if (kw >= 0) {
            v = a->kw[kw].v;
            used[kw] = true;
        } else if (i >= first_default) {
            TRY(tpl_eval(c, def->kid[1 + i - first_default], &v));
        } else {
            const tname *n = &c->t->names[def->names[i]];
            v = (tval){.kind = T_UNDEF, .sub = UNDEF_NAME, .len = n->len, .u.s = n->s};
        }
        TRY(tpl_assign(c, def->names[i], &v));
    }
    return bind_rest(c, def, a, used);
}

corun_status tpl_run_macro(tctx *c, const tmacro *m, const targs *a, tval *out)
{
    tscope *saved;
    if (++c->depth > TPL_EVAL_MAX)
        return tpl_fail(c, "macros nested deeper than %d levels", TPL_EVAL_MAX);
    TRY(tpl_scope_push(c, m->scope, &saved));
    TRY(bind_macro(c, m->def, a));
    TRY(text_of(c, m->def->kid[0], out));
    c->scope = saved;
    c->depth--;
    return CORUN_OK;
}

static corun_status macro_value(tctx *c, const tnode *def, tval *out)
{
    tmacro *m;
    TPL_NEW(&c->a, m, 1);
    *m = (tmacro){.def = def, .scope = c->scope};
    for (tscope *s = c->scope; s && !s->kept; s = s->up) s->kept = true;
    *out = (tval){.kind = T_MACRO, .u.m = m};
    return CORUN_OK;
}

/* {% call f(x) %}: f with one keyword argument more. */
static corun_status exec_call(tctx *c, const tnode *n)
{
    tval f, v;
    targs a;
    TRY(tpl_eval(c, n->kid[0]->kid[0], &f));
    TRY(tpl_eval_args(c, n->kid[0], 1, &a));
    a.kw[a.n_kw] = (tkw){.name = "caller", .len = 6};
    TRY(macro_value(c, n->kid[1], &a.kw[a.n_kw++].v));
    c->line = n->line;
    if (f.kind != T_MACRO) return tpl_fail(c, "'call' needs a macro");
    TRY(tpl_call_value(c, &f, &a, &v));
    return tpl_put_str(c, c->out, &v);
}

/* ---- statements
 * -------------------------------------------------------------------------------------- */

static corun_status exec_block(tctx *c, const tnode *n)
{
    for (int i = 0; i < n->n && c->flow == FLOW_NONE; i++) TRY(tpl_exec(c, n->kid[i]));
    return CORUN_OK;
}

static corun_status exec_if(tctx *c, const tnode *n)
{
    int i = 0;
    for (; i + 1 < n->n; i += 2) {
        tval v;
        TRY(tpl_eval(c, n->kid[i], &v));
        if (tpl_truth(&v)) return tpl_exec(c, n->kid[i + 1]);
    }
    return i < n->n ? tpl_exec(c, n->kid[i]) : CORUN_OK;
}

static corun_status exec_with(tctx *c, const tnode *n)
{
    tscope *saved, *inner;
    TRY(tpl_scope_push(c, c->scope, &saved));
    inner = c->scope;
    for (int i = 0; i + 1 < n->n; i += 2) {
        tval v;
        c->scope = saved; /* the values see the outer scope */
        TRY(tpl_eval(c, n->kid[i + 1], &v));
        c->scope = inner;
        TRY(assign_to(c, n->kid[i], &v));
    }
    TRY(tpl_exec(c, n->kid[n->n - 1]));
    c->scope = saved;
    return CORUN_OK;
}

static corun_status exec_out(tctx *c, const tnode *n)
{
    tval v;
    TRY(tpl_eval(c, n->kid[0], &v));
    c->line = n->line;
    return tpl_put_str(c, c->out, &v);
}

static corun_status exec_set(tctx *c, const tnode *n)
{
    tval v;
    if (n->kind == S_SET) {
        TRY(tpl_eval(c, n->kid[1], &v));
    } else {
        TRY(capture(c, n->kid[1], &v));
        if (n->kid[2]) TRY(tpl_apply_filters(c, n->kid[2], &v, &v));
    }
    c->line = n->line;
    return assign_to(c, n->kid[0], &v);
}

static corun_status exec_any(tctx *c, const tnode *n)
{
    tval v;
    switch (n->kind) {
    case S_TEXT:
        tsb_put(c, c->out, n->k.u.s, n->k.len);
        return c->out->failed ? tpl_why(&c->a) : CORUN_OK;
    case S_OUT: return exec_out(c, n);
    case S_BLOCK: return exec_block(c, n);
    case S_IF: return exec_if(c, n);
    case S_FOR: return exec_for(c, n);
    case S_SET:
    case S_SETBLOCK: return exec_set(c, n);
    case S_MACRO: TRY(macro_value(c, n, &v)); return tpl_assign(c, n->id, &v);
    case S_CALL: return exec_call(c, n);
    case S_FILTER:
        TRY(capture(c, n->kid[1], &v));
        TRY(tpl_apply_filters(c, n->kid[0], &v, &v));
        return tpl_put_str(c, c->out, &v);
    case S_WITH: return exec_with(c, n);
    case S_BREAK: c->flow = FLOW_BREAK; return CORUN_OK;
    case S_CONTINUE: c->flow = FLOW_CONTINUE; return CORUN_OK;
    default: FAIL(CORUN_EINTERNAL, "template node %d is no statement", n->kind);
    }
}

corun_status tpl_exec(tctx *c, const tnode *n)
{
    c->line = n->line;
    TRY(tpl_charge(c, 1));
    if (++c->depth > TPL_EVAL_MAX)
        return tpl_fail(c, "statements nested deeper than %d levels", TPL_EVAL_MAX);
    TRY(exec_any(c, n));
    c->depth--;
    return CORUN_OK;
}
