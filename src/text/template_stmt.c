/* template_stmt.c - owns the reading of statements, and what a template's tree says about content
 * parts. Invariant: every block that begins has its end, and a tag that is not known is an error
 * now. */
#include <string.h>

#include "text/template_int.h"

static corun_status body(tparser *p, const char *const *ends, int begin, tnode **out);

static corun_status block_end(tparser *p)
{
    if (tpl_at_op(p, ':')) p->tok++;
    if (p->tok->kind != TOK_BLOCK_END) return tpl_unexpected(p, "'%}'");
    p->tok++;
    return CORUN_OK;
}

/* The body up to the one end tag, which is read too. */
static corun_status body_to(tparser *p, const char *end, int begin, tnode **out)
{
    const char *const ends[] = {end, NULL};
    TRY(block_end(p));
    TRY(body(p, ends, begin, out));
    p->tok++;
    return block_end(p);
}

static corun_status name_id(tparser *p, int *id)
{
    if (p->tok->kind != TOK_NAME) return tpl_unexpected(p, "a name");
    TRY(tpl_intern(p, p->tok->u.s, p->tok->len, id));
    p->tok++;
    return CORUN_OK;
}

/* ---- targets of assignments --------------------------------------------------------------------
 */

static corun_status check_target(tparser *p, const tnode *n)
{
    if (n->kind == N_NAME || n->kind == N_NSREF) return CORUN_OK;
    if (n->kind != N_LIST || n->op != SEQ_TUPLE)
        return tpl_parse_fail(p->t, n->line, "this cannot be assigned to");
    for (int i = 0; i < n->n; i++) TRY(check_target(p, n->kid[i]));
    return CORUN_OK;
}

static corun_status one_target(tparser *p, tnode **out, bool with_ns)
{
    bool is_ns =
        with_ns && p->tok->kind == TOK_NAME && p->tok[1].kind == TOK_OP && p->tok[1].op == '.';
    TRY(tpl_primary(p, out));
    if (!is_ns) return CORUN_OK;
    tnode *ns = *out;
    TRY(tpl_node(p, out, N_NSREF, p->tok->line, 1));
    (*out)->kid[0] = ns;
    p->tok++;
    TRY(name_id(p, &(*out)->id));
    return tpl_close(p, *out);
}

static corun_status target(tparser *p, tnode **out, const char *until, bool with_ns)
{
    int line = p->tok->line;
    bool is_tuple = false;
    tkids k = {0};
    for (;;) {
        if (k.n) TRY(tpl_expect_op(p, ','));
        if (k.n && (p->tok->kind == TOK_BLOCK_END || tpl_at_op(p, '=') ||
                    (until && tpl_at_name(p, until))))
            break;
        tnode *x;
        TRY(one_target(p, &x, with_ns));
        TRY(tpl_kid(p, &k, x));
        if (!tpl_at_op(p, ',')) break;
        is_tuple = true;
    }
    *out = k.v[0];
    if (is_tuple) {
        TRY(tpl_node(p, out, N_LIST, line, 0));
        (*out)->kid = k.v;
        (*out)->n = k.n;
        (*out)->op = SEQ_TUPLE;
        TRY(tpl_close(p, *out));
    }
    return check_target(p, *out);
}

/* ---- statements ---------------------------------------------------------------------------------
 */

static corun_status finish(tparser *p, tnode **out, tnode_kind kind, int line, const tkids *k)
{
    TRY(tpl_node(p, out, kind, line, 0));
    (*out)->kid = k->v;
    (*out)->n = k->n;
    return tpl_close(p, *out);
}

static corun_status stmt_if(tparser *p, int line, tnode **out)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    static const char *const last[] = {"endif", NULL};
    tkids k = {0};
    tnode *x;
    for (;;) {
        TRY(tpl_tuple(p, &x, false, NULL, false));
        TRY(tpl_kid(p, &k, x));
        TRY(block_end(p));
        TRY(body(p, ends, line, &x));
        TRY(tpl_kid(p, &k, x));
        if (!tpl_at_name(p, "elif")) break;
        p->tok++;
    }
    if (tpl_at_name(p, "else")) {
        p->tok++;
        TRY(block_end(p));
        TRY(body(p, last, line, &x));
        TRY(tpl_kid(p, &k, x));
    }
    p->tok++;
    TRY(block_end(p));
    return finish(p, out, S_IF, line, &k);
}

static corun_status stmt_for(tparser *p, int line, tnode **out)
{
    static const char *const ends[] = {"else", "endfor", NULL};
    static const char *const last[] = {"endfor", NULL};
    tnode *x;
    TRY(tpl_node(p, &x, S_FOR, line, 5));
    TRY(target(p, &x->kid[0], "in", false));
    if (!tpl_at_name(p, "in")) return tpl_unexpected(p, "'in'");
    p->tok++;
    TRY(tpl_tuple(p, &x->kid[1], false, "recursive", false));
    if (tpl_at_name(p, "if")) {
        p->tok++;
        TRY(tpl_expr(p, &x->kid[2]));
    }
    if (tpl_at_name(p, "recursive"))
        return tpl_parse_fail(p->t, line, "recursive loops are not supported");
    TRY(block_end(p));
    p->n_for++;
    TRY(body(p, ends, line, &x->kid[3]));
    p->n_for--;
    if (tpl_at_name(p, "else")) {
        p->tok++;
        TRY(block_end(p));
        TRY(body(p, last, line, &x->kid[4]));
    }
    p->tok++;
    TRY(block_end(p));
    *out = x;
    return tpl_close(p, x);
}

static corun_status stmt_set(tparser *p, int line, tnode **out)
{
    tnode *to, *x;
    TRY(target(p, &to, NULL, true));
    if (tpl_at_op(p, '=')) {
        p->tok++;
        TRY(tpl_node(p, &x, S_SET, line, 2));
        TRY(tpl_tuple(p, &x->kid[1], true, NULL, false));
        TRY(block_end(p));
    } else {
        TRY(tpl_node(p, &x, S_SETBLOCK, line, 3));
        TRY(tpl_filters(p, &x->kid[2], false));
        TRY(body_to(p, "endset", line, &x->kid[1]));
    }
    x->kid[0] = to;
    *out = x;
    return tpl_close(p, x);
}

/* "(a, b=1, ...)": names, and defaults of the last ones as kids from 1 on. */
static corun_status parameters(tparser *p, tkids *k, int **names, int *n_name)
{
    int cap = 0;
    TRY(tpl_expect_op(p, '('));
    while (!tpl_at_op(p, ')')) {
        if (*n_name) TRY(tpl_expect_op(p, ','));
        if (*n_name == cap) {
            int more = cap ? cap * 2 : 4;
            *names = tpl_grow(&p->t->a, *names, (size_t)cap * sizeof **names,
                              (size_t)more * sizeof **names);
            if (!*names) return tpl_why(&p->t->a);
            cap = more;
        }
        TRY(name_id(p, &(*names)[*n_name]));
        for (int i = 0; i < *n_name; i++)
            if ((*names)[i] == (*names)[*n_name])
                return tpl_parse_fail(p->t, p->tok->line, "a parameter is named twice");
        (*n_name)++;
        if (tpl_at_op(p, '=')) {
            tnode *x;
            p->tok++;
            TRY(tpl_expr(p, &x));
            TRY(tpl_kid(p, k, x));
        } else if (k->n > 1) {
            return tpl_parse_fail(p->t, p->tok->line,
                                  "a parameter without default follows one with a default");
        }
    }
    p->tok++;
    return CORUN_OK;
}

/* From the parameter list to the end tag. */
static corun_status macro_rest(tparser *p, int line, int id, const char *end, tnode **out)
{
    tnode *x;
    tkids k = {0};
    int *names = NULL, n_name = 0, n_for = p->n_for;
    unsigned outer = p->macro_uses;
    TRY(tpl_node(p, &x, S_MACRO, line, 0));
    TRY(tpl_kid(p, &k, NULL));
    if (tpl_at_op(p, '(')) TRY(parameters(p, &k, &names, &n_name));
    tnode *call = NULL;
    if (id < 0) { /* a call block: the call stands between the parameters and the body */
        TRY(tpl_expr(p, &call));
        if (call->kind != N_CALL) return tpl_parse_fail(p->t, line, "'call' needs a call");
    }
    p->macro_uses = 0;
    p->n_for = 0;
    TRY(body_to(p, end, line, &k.v[0]));
    x->op = (uint8_t)p->macro_uses;
    p->macro_uses |= outer;
    p->n_for = n_for;
    x->id = id;
    x->kid = k.v;
    x->n = k.n;
    x->names = names;
    x->n_name = n_name;
    TRY(tpl_close(p, x));
    *out = x;
    if (id >= 0) return CORUN_OK;
    TRY(tpl_node(p, out, S_CALL, line, 2));
    (*out)->kid[0] = call;
    (*out)->kid[1] = x;
    return tpl_close(p, *out);
}

static corun_status stmt_macro(tparser *p, int line, tnode **out)
{
    int id;
    TRY(name_id(p, &id));
    if (!tpl_at_op(p, '(')) return tpl_unexpected(p, "'('");
    return macro_rest(p, line, id, "endmacro", out);
}

static corun_status stmt_with(tparser *p, int line, tnode **out)
{
    tkids k = {0};
    tnode *x;
    while (p->tok->kind != TOK_BLOCK_END) {
        if (k.n) TRY(tpl_expect_op(p, ','));
        TRY(one_target(p, &x, false));
        TRY(check_target(p, x));
        TRY(tpl_kid(p, &k, x));
        TRY(tpl_expect_op(p, '='));
        TRY(tpl_expr(p, &x));
        TRY(tpl_kid(p, &k, x));
    }
    TRY(body_to(p, "endwith", line, &x));
    TRY(tpl_kid(p, &k, x));
    return finish(p, out, S_WITH, line, &k);
}

static corun_status stmt_filter(tparser *p, int line, tnode **out)
{
    tnode *x;
    TRY(tpl_node(p, &x, S_FILTER, line, 2));
    TRY(tpl_filters(p, &x->kid[0], true));
    TRY(body_to(p, "endfilter", line, &x->kid[1]));
    *out = x;
    return tpl_close(p, x);
}

static corun_status stmt_jump(tparser *p, int line, tnode_kind kind, tnode **out)
{
    if (p->n_for == 0)
        return tpl_parse_fail(p->t, line, "'%s' outside of a loop",
                              kind == S_BREAK ? "break" : "continue");
    TRY(tpl_node(p, out, kind, line, 0));
    return block_end(p);
}

static corun_status statement(tparser *p, tnode **out)
{
    int line = p->tok->line;
    const ttok *name = p->tok;
    if (name->kind != TOK_NAME) return tpl_unexpected(p, "the name of a tag");
    p->tok++;
    tparser was = *p;
    was.tok = name;
    if (tpl_at_name(&was, "if")) return stmt_if(p, line, out);
    if (tpl_at_name(&was, "for")) return stmt_for(p, line, out);
    if (tpl_at_name(&was, "set")) return stmt_set(p, line, out);
    if (tpl_at_name(&was, "macro")) return stmt_macro(p, line, out);
    if (tpl_at_name(&was, "call")) return macro_rest(p, line, -1, "endcall", out);
    if (tpl_at_name(&was, "filter")) return stmt_filter(p, line, out);
    if (tpl_at_name(&was, "with")) return stmt_with(p, line, out);
    if (tpl_at_name(&was, "break")) return stmt_jump(p, line, S_BREAK, out);
    if (tpl_at_name(&was, "continue")) return stmt_jump(p, line, S_CONTINUE, out);
    if (tpl_at_name(&was, "generation")) { /* its own scope, like a call block */
        tnode *x;
        TRY(tpl_node(p, &x, S_WITH, line, 1));
        TRY(body_to(p, "endgeneration", line, &x->kid[0]));
        *out = x;
        return tpl_close(p, x);
    }
    return tpl_parse_fail(p->t, line, "the tag '%.*s' is not %s here", (int)name->len, name->u.s,
                          name->len > 2 && memcmp(name->u.s, "end", 3) == 0 ? "expected"
                                                                            : "supported");
}

static bool at_end_tag(const tparser *p, const char *const *ends)
{
    for (; *ends; ends++)
        if (tpl_at_name(p, *ends)) return true;
    return false;
}

static corun_status one_piece(tparser *p, tnode **out)
{
    const ttok *t = p->tok++;
    if (t->kind == TOK_TEXT) {
        TRY(tpl_node(p, out, S_TEXT, t->line, 0));
        (*out)->k = tv_str(t->u.s, t->len);
        return CORUN_OK;
    }
    if (t->kind == TOK_BLOCK_BEGIN) return statement(p, out);
    TRY(tpl_node(p, out, S_OUT, t->line, 1));
    TRY(tpl_tuple(p, &(*out)->kid[0], true, NULL, false));
    if (p->tok->kind != TOK_VAR_END) return tpl_unexpected(p, "'}}'");
    p->tok++;
    return tpl_close(p, *out);
}

/* Up to a tag with one of these names (NULL: to the end of the template); the name is next. */
static corun_status body(tparser *p, const char *const *ends, int begin, tnode **out)
{
    tkids k = {0};
    tnode *x;
    int line = p->tok->line;
    if (++p->nest > TPL_NEST_MAX)
        return tpl_parse_fail(p->t, line, "nested deeper than %d levels", TPL_NEST_MAX);
    for (;;) {
        if (p->tok->kind == TOK_END) {
            if (!ends) break;
            const char *end = ends[0];
            for (; *ends; ends++) end = *ends;
            return tpl_parse_fail(p->t, begin, "a block begins here, '%s' is missing", end);
        }
        if (p->tok->kind == TOK_BLOCK_BEGIN && ends) {
            p->tok++;
            if (at_end_tag(p, ends)) break;
            p->tok--;
        }
        TRY(one_piece(p, &x));
        TRY(tpl_kid(p, &k, x));
    }
    p->nest--;
    return finish(p, out, S_BLOCK, line, &k);
}

corun_status tpl_parse_tokens(template *t, const ttok *tok, size_t n)
{
    (void)n; /* the last one is TOK_END, which nothing passes */
    tparser p = {.t = t, .tok = tok};
    for (int i = 0, id; i < NAME_FIXED; i++)
        TRY(tpl_intern(&p, tpl_fixed_names[i], strlen(tpl_fixed_names[i]), &id));
    return body(&p, NULL, 1, &t->root);
}

/* ---- content parts ------------------------------------------------------------------------------
 */

typedef struct idset {
    int v[64], n;
} idset;

static bool has(const idset *s, int id)
{
    for (int i = 0; i < s->n; i++)
        if (s->v[i] == id) return true;
    return false;
}

/* True when the set grew. */
static bool add(idset *s, int id)
{
    if (has(s, id) || s->n == 64) return false;
    s->v[s->n++] = id;
    return true;
}

/* A variable of the set (key NULL) or its member `key`, seen through filters, tests, slices. */
static bool is_access(const template *t, const tnode *n, const idset *vars, const char *key)
{
    while (n && (n->kind == N_FILTER || n->kind == N_TEST || n->kind == N_SLICE)) n = n->kid[0];
    if (!n) return false;
    if (!key) return n->kind == N_NAME && has(vars, n->id);
    if (n->kind != N_ATTR && n->kind != N_ITEM) return false;
    if (n->kid[0]->kind != N_NAME || !has(vars, n->kid[0]->id)) return false;
    tname name = {0};
    if (n->kind == N_ATTR)
        name = t->names[n->id];
    else if (n->kid[1]->kind == N_CONST && n->kid[1]->k.kind == T_STR)
        name = (tname){n->kid[1]->k.u.s, n->kid[1]->k.len};
    return name.len == strlen(key) && memcmp(name.s, key, name.len) == 0;
}

typedef struct finder {
    const template *t;
    idset lists, items; /* variables that hold the messages, one message */
    bool grew, found, asks_string;
    int string_test;
} finder;

static void find_parts(finder *f, const tnode *n)
{
    if (!n) return;
    if (n->kind == N_TEST && n->id == f->string_test) f->asks_string = true;
    if (n->kind == S_SET && n->kid[0]->kind == N_NAME &&
        is_access(f->t, n->kid[1], &f->lists, NULL))
        f->grew |= add(&f->lists, n->kid[0]->id);
    if (n->kind == S_FOR) {
        if (n->kid[0]->kind == N_NAME && is_access(f->t, n->kid[1], &f->lists, NULL))
            f->grew |= add(&f->items, n->kid[0]->id);
        if (is_access(f->t, n->kid[1], &f->items, "content")) f->found = true;
    }
    for (int i = 0; i < n->n; i++) find_parts(f, n->kid[i]);
}

void tpl_detect_parts(template *t)
{
    finder f = {.t = t, .string_test = tpl_test_find("string", 6)};
    for (int i = 0; i < t->n_name; i++)
        if (t->names[i].len == 8 && memcmp(t->names[i].s, "messages", 8) == 0) add(&f.lists, i);
    do {
        f.grew = false;
        find_parts(&f, t->root);
    } while (f.grew);
    t->wants_parts = f.found;
    t->asks_string = f.asks_string;
}
