/* template_parse.c - owns the reading of expressions into syntax trees. Invariant: every node's
 * height is at most TPL_HEIGHT_MAX, and a filter, test or keyword that is not known here is an
 * error now, not while rendering. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "text/template_int.h"

corun_status tpl_parse_fail(const template *t, int line, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    FAIL(CORUN_EFORMAT, "%s, line %d: %s", t->what, line, text);
}

static corun_status fail(const tparser *p, const char *text)
{
    return tpl_parse_fail(p->t, p->tok->line, "%s", text);
}

corun_status tpl_node(tparser *p, tnode **out, tnode_kind kind, int line, int n)
{
    tnode *x;
    TPL_NEW(&p->t->a, x, 1);
    *x = (tnode){.kind = (uint8_t)kind, .line = line, .n = n, .height = 1, .id = -1};
    if (n > 0) {
        TPL_NEW(&p->t->a, x->kid, (size_t)n);
        memset(x->kid, 0, (size_t)n * sizeof *x->kid);
    }
    *out = x;
    return CORUN_OK;
}

corun_status tpl_close(tparser *p, tnode *n)
{
    int h = 0;
    for (int i = 0; i < n->n; i++)
        if (n->kid[i] && n->kid[i]->height > h) h = n->kid[i]->height;
    if (h >= TPL_HEIGHT_MAX)
        return tpl_parse_fail(p->t, n->line, "nested deeper than %d levels", TPL_HEIGHT_MAX);
    n->height = (uint16_t)(h + 1);
    return CORUN_OK;
}

corun_status tpl_kid(tparser *p, tkids *k, tnode *n)
{
    if (k->n == k->cap) {
        int cap = k->cap ? k->cap * 2 : 4;
        tnode **v = tpl_grow(&p->t->a, k->v, (size_t)k->cap * sizeof *v, (size_t)cap * sizeof *v);
        if (!v) return tpl_why(&p->t->a);
        k->v = v;
        k->cap = cap;
    }
    k->v[k->n++] = n;
    return CORUN_OK;
}

corun_status tpl_intern(tparser *p, const char *s, size_t len, int *id)
{
    template *t = p->t;
    for (int i = 0; i < t->n_name; i++)
        if (t->names[i].len == len && memcmp(t->names[i].s, s, len) == 0) {
            *id = i;
            return CORUN_OK;
        }
    if (t->n_name == p->name_cap) {
        int cap = p->name_cap ? p->name_cap * 2 : 64;
        if (cap > TPL_NAME_MAX)
            return tpl_parse_fail(t, p->tok ? p->tok->line : 1, "too many names");
        tname *v =
            tpl_grow(&t->a, t->names, (size_t)p->name_cap * sizeof *v, (size_t)cap * sizeof *v);
        if (!v) return tpl_why(&t->a);
        t->names = v;
        p->name_cap = cap;
    }
    t->names[t->n_name] = (tname){s, (uint32_t)len};
    *id = t->n_name++;
    return CORUN_OK;
}

bool tpl_at_name(const tparser *p, const char *name)
{
    return p->tok->kind == TOK_NAME && p->tok->len == strlen(name) &&
           memcmp(p->tok->u.s, name, p->tok->len) == 0;
}

bool tpl_at_op(const tparser *p, char op) { return p->tok->kind == TOK_OP && p->tok->op == op; }

static const char *token_text(const ttok *t, char out[64])
{
    static const char *const kinds[] = {"text", "'{{'", "'}}'", "'{%'", "'%}'"};
    if (t->kind == TOK_NAME)
        snprintf(out, 64, "'%.*s'", (int)(t->len < 40 ? t->len : 40), t->u.s);
    else if (t->kind == TOK_OP) {
        static const char two[] = "F//P**E==N!=G>=L<=";
        const char *q = strchr(two, t->op);
        if (q)
            snprintf(out, 64, "'%.2s'", q + 1);
        else
            snprintf(out, 64, "'%c'", t->op);
    } else
        snprintf(out, 64, "%s",
                 t->kind <= TOK_BLOCK_END ? kinds[t->kind]
                 : t->kind == TOK_END     ? "the end of the template"
                 : t->kind == TOK_STR     ? "a string"
                                          : "a number");
    return out;
}

corun_status tpl_unexpected(tparser *p, const char *wanted)
{
    char text[64];
    return tpl_parse_fail(p->t, p->tok->line, "expected %s, found %s", wanted,
                          token_text(p->tok, text));
}

corun_status tpl_expect_op(tparser *p, char op)
{
    char wanted[4] = {'\'', op, '\'', 0};
    if (!tpl_at_op(p, op)) return tpl_unexpected(p, wanted);
    p->tok++;
    return CORUN_OK;
}

/* Steps over a token; its line. */
static int take_line(tparser *p)
{
    const ttok *t = p->tok;
    p->tok = t + 1;
    return t->line;
}

static corun_status enter(tparser *p)
{
    if (++p->nest > TPL_NEST_MAX)
        return tpl_parse_fail(p->t, p->tok->line, "nested deeper than %d levels", TPL_NEST_MAX);
    return CORUN_OK;
}

static corun_status constant(tparser *p, tnode **out, tval v)
{
    TRY(tpl_node(p, out, N_CONST, p->tok->line, 0));
    (*out)->k = v;
    return CORUN_OK;
}

/* kids -> node of this kind; takes over the collected children. */
static corun_status from_kids(tparser *p, tnode **out, tnode_kind kind, int line, const tkids *k)
{
    TRY(tpl_node(p, out, kind, line, 0));
    (*out)->kid = k->v;
    (*out)->n = k->n;
    return tpl_close(p, *out);
}

static corun_status pair_node(tparser *p, tnode **out, tnode_kind kind, int line, tnode *a,
                              tnode *b)
{
    tnode *x;
    TRY(tpl_node(p, &x, kind, line, b ? 2 : 1));
    x->kid[0] = a;
    if (b) x->kid[1] = b;
    TRY(tpl_close(p, x));
    *out = x;
    return CORUN_OK;
}

/* ---- primary expressions --------------------------------------------------------------------- */

static corun_status list_literal(tparser *p, tnode **out)
{
    int line = take_line(p);
    tkids k = {0};
    while (!tpl_at_op(p, ']')) {
        if (k.n) TRY(tpl_expect_op(p, ','));
        if (tpl_at_op(p, ']')) break;
        tnode *x;
        TRY(tpl_expr(p, &x));
        TRY(tpl_kid(p, &k, x));
    }
    p->tok++;
    return from_kids(p, out, N_LIST, line, &k);
}

static corun_status dict_literal(tparser *p, tnode **out)
{
    int line = take_line(p);
    tkids k = {0};
    while (!tpl_at_op(p, '}')) {
        if (k.n) TRY(tpl_expect_op(p, ','));
        if (tpl_at_op(p, '}')) break;
        tnode *x;
        TRY(tpl_expr(p, &x));
        TRY(tpl_kid(p, &k, x));
        TRY(tpl_expect_op(p, ':'));
        TRY(tpl_expr(p, &x));
        TRY(tpl_kid(p, &k, x));
    }
    p->tok++;
    return from_kids(p, out, N_DICT, line, &k);
}

static corun_status name_or_word(tparser *p, tnode **out)
{
    static const char *const refused[] = {"lipsum", "cycler", "joiner", "self", "super", "gettext"};
    const ttok *t = p->tok;
    tval v = {.kind = T_ABSENT};
    if (tpl_at_name(p, "true") || tpl_at_name(p, "True")) v = tv_bool(true);
    if (tpl_at_name(p, "false") || tpl_at_name(p, "False")) v = tv_bool(false);
    if (tpl_at_name(p, "none") || tpl_at_name(p, "None")) v = tv_none();
    if (v.kind != T_ABSENT) {
        TRY(constant(p, out, v));
        p->tok++;
        return CORUN_OK;
    }
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (tpl_at_name(p, refused[i]) && t[1].kind == TOK_OP && t[1].op == '(')
            return tpl_parse_fail(p->t, t->line, "the function '%s' is not supported", refused[i]);
    if (tpl_at_name(p, "varargs")) p->macro_uses |= MACRO_VARARGS;
    if (tpl_at_name(p, "kwargs")) p->macro_uses |= MACRO_KWARGS;
    if (tpl_at_name(p, "caller")) p->macro_uses |= MACRO_CALLER;
    TRY(tpl_node(p, out, N_NAME, t->line, 0));
    TRY(tpl_intern(p, t->u.s, t->len, &(*out)->id));
    p->tok++;
    return CORUN_OK;
}

static corun_status string_literal(tparser *p, tnode **out)
{
    const ttok *t = p->tok;
    TRY(constant(p, out, tv_str(t->u.s, t->len)));
    if (t[1].kind != TOK_STR) {
        p->tok++;
        return CORUN_OK;
    }
    size_t len = 0; /* neighbours are one string */
    for (; t->kind == TOK_STR; t++) len += t->len;
    char *s;
    TPL_NEW(&p->t->a, s, len);
    (*out)->k = tv_str(s, len);
    for (; p->tok->kind == TOK_STR; p->tok++) {
        memcpy(s, p->tok->u.s, p->tok->len);
        s += p->tok->len;
    }
    return CORUN_OK;
}

corun_status tpl_primary(tparser *p, tnode **out)
{
    const ttok *t = p->tok;
    switch (t->kind) {
    case TOK_NAME: return name_or_word(p, out);
    case TOK_STR: return string_literal(p, out);
    case TOK_INT:
    case TOK_FLOAT:
        TRY(constant(p, out, t->kind == TOK_INT ? tv_int(t->u.i) : tv_float(t->u.f)));
        p->tok++;
        return CORUN_OK;
    case TOK_OP: break;
    default: return tpl_unexpected(p, "an expression");
    }
    if (t->op != '(' && t->op != '[' && t->op != '{') return tpl_unexpected(p, "an expression");
    TRY(enter(p));
    if (t->op == '(') {
        p->tok++;
        TRY(tpl_tuple(p, out, true, NULL, true));
        TRY(tpl_expect_op(p, ')'));
    } else if (t->op == '[') {
        TRY(list_literal(p, out));
    } else {
        TRY(dict_literal(p, out));
    }
    p->nest--;
    return CORUN_OK;
}

corun_status tpl_tuple(tparser *p, tnode **out, bool with_cond, const char *until, bool parens)
{
    int line = p->tok->line;
    bool is_tuple = false;
    tkids k = {0};
    for (;;) {
        if (k.n) TRY(tpl_expect_op(p, ','));
        uint8_t kind = p->tok->kind;
        if (kind == TOK_VAR_END || kind == TOK_BLOCK_END || tpl_at_op(p, ')') ||
            (until && tpl_at_name(p, until)))
            break;
        tnode *x;
        TRY(with_cond ? tpl_expr(p, &x) : tpl_expr_or(p, &x));
        TRY(tpl_kid(p, &k, x));
        if (!tpl_at_op(p, ',')) break;
        is_tuple = true;
    }
    if (!is_tuple && k.n) {
        *out = k.v[0];
        return CORUN_OK;
    }
    if (!is_tuple && !parens) return tpl_unexpected(p, "an expression");
    TRY(from_kids(p, out, N_LIST, line, &k));
    (*out)->op = SEQ_TUPLE;
    return CORUN_OK;
}

/* ---- calls, filters, tests ------------------------------------------------------------------- */

typedef struct arg_list {
    tkids kids;
    tnode *star, *stars; /* *args, **kwargs */
    int *names, n_kw, cap;
} arg_list;

static bool at_keyword(const tparser *p)
{
    return p->tok->kind == TOK_NAME && p->tok[1].kind == TOK_OP && p->tok[1].op == '=';
}

static corun_status keyword_name(tparser *p, arg_list *l)
{
    if (l->n_kw == l->cap) {
        int cap = l->cap ? l->cap * 2 : 4;
        int *v = tpl_grow(&p->t->a, l->names, (size_t)l->cap * sizeof *v, (size_t)cap * sizeof *v);
        if (!v) return tpl_why(&p->t->a);
        l->names = v;
        l->cap = cap;
    }
    TRY(tpl_intern(p, p->tok->u.s, p->tok->len, &l->names[l->n_kw]));
    for (int i = 0; i < l->n_kw; i++)
        if (l->names[i] == l->names[l->n_kw]) return fail(p, "a keyword argument is given twice");
    l->n_kw++;
    p->tok += 2;
    return CORUN_OK;
}

static corun_status one_arg(tparser *p, arg_list *l)
{
    if (l->stars) return fail(p, "an argument follows **");
    if (tpl_at_op(p, '*') && !l->star) {
        p->tok++;
        return tpl_expr(p, &l->star);
    }
    if (tpl_at_op(p, 'P')) {
        p->tok++;
        return tpl_expr(p, &l->stars);
    }
    if (at_keyword(p))
        TRY(keyword_name(p, l));
    else if (l->n_kw || l->star)
        return fail(p, "a positional argument follows a keyword argument or *");
    tnode *x;
    TRY(tpl_expr(p, &x));
    return tpl_kid(p, &l->kids, x);
}

/* The arguments in parentheses become the kids after kid 0, the target. */
static corun_status call_args(tparser *p, tnode *n, tnode *target)
{
    arg_list l = {.n_kw = 0};
    bool first = true;
    TRY(tpl_kid(p, &l.kids, target));
    TRY(enter(p));
    TRY(tpl_expect_op(p, '('));
    for (; !tpl_at_op(p, ')'); first = false) {
        if (!first) TRY(tpl_expect_op(p, ','));
        if (tpl_at_op(p, ')')) break;
        TRY(one_arg(p, &l));
    }
    if ((l.star || l.stars) && n->kind != N_CALL)
        return fail(p, "* and ** in the arguments of a filter or test are not supported");
    p->tok++;
    p->nest--;
    if (l.star) TRY(tpl_kid(p, &l.kids, l.star));
    if (l.stars) TRY(tpl_kid(p, &l.kids, l.stars));
    n->op = (uint8_t)((l.star ? CALL_STAR : 0) | (l.stars ? CALL_STARS : 0));
    n->kid = l.kids.v;
    n->n = l.kids.n;
    n->names = l.names;
    n->n_kw = l.n_kw;
    return tpl_close(p, n);
}

corun_status tpl_call(tparser *p, tnode *callee, tnode **out)
{
    tnode *x;
    TRY(tpl_node(p, &x, N_CALL, p->tok->line, 0));
    TRY(call_args(p, x, callee));
    if (callee->kind == N_ATTR) {
        const tname *m = &p->t->names[callee->id];
        if (tpl_method_unknown(m->s, m->len))
            return tpl_parse_fail(p->t, x->line, "the method '%.*s' is not supported", (int)m->len,
                                  m->s);
    }
    *out = x;
    return CORUN_OK;
}

static corun_status check_args(tparser *p, const tnode *n, const char *what, const ttok *name)
{
    tname kw[16];
    const char *wrong = n->n_kw > 16 ? "too many keyword arguments" : NULL;
    for (int i = 0; !wrong && i < n->n_kw; i++) kw[i] = p->t->names[n->names[i]];
    if (!wrong)
        wrong = n->kind == N_FILTER ? tpl_filter_check(n->id, n->n - 1 - n->n_kw, kw, n->n_kw)
                                    : tpl_test_check(n->id, n->n - 1 - n->n_kw, n->n_kw);
    if (!wrong) return CORUN_OK;
    return tpl_parse_fail(p->t, n->line, "%s '%.*s': %s", what, (int)name->len, name->u.s, wrong);
}

static corun_status only_target(tparser *p, tnode *n, tnode *target)
{
    tkids k = {0};
    TRY(tpl_kid(p, &k, target));
    n->kid = k.v;
    n->n = 1;
    return tpl_close(p, n);
}

static corun_status one_filter(tparser *p, tnode *target, tnode **out)
{
    const ttok *name = p->tok;
    if (name->kind != TOK_NAME) return tpl_unexpected(p, "the name of a filter");
    tnode *x;
    TRY(tpl_node(p, &x, N_FILTER, name->line, 0));
    x->id = tpl_filter_find(name->u.s, name->len);
    if (x->id < 0)
        return tpl_parse_fail(p->t, name->line, "the filter '%.*s' is not supported",
                              (int)name->len, name->u.s);
    p->tok++;
    if (tpl_at_op(p, '.')) return fail(p, "filter names with a dot are not supported");
    TRY(tpl_at_op(p, '(') ? call_args(p, x, target) : only_target(p, x, target));
    TRY(check_args(p, x, "the filter", name));
    *out = x;
    return CORUN_OK;
}

corun_status tpl_filters(tparser *p, tnode **out, bool first_bare)
{
    tnode *x = NULL;
    while (first_bare || tpl_at_op(p, '|')) {
        if (!first_bare) p->tok++;
        first_bare = false;
        TRY(one_filter(p, x, &x));
    }
    *out = x;
    return CORUN_OK;
}

static corun_status postfix(tparser *p, tnode **x);

static corun_status one_test(tparser *p, tnode *target, tnode **out)
{
    int line = take_line(p);
    bool negated = tpl_at_name(p, "not");
    if (negated) p->tok++;
    const ttok *name = p->tok;
    if (name->kind != TOK_NAME) return tpl_unexpected(p, "the name of a test");
    tnode *x;
    TRY(tpl_node(p, &x, N_TEST, line, 0));
    x->id = tpl_test_find(name->u.s, name->len);
    if (x->id < 0)
        return tpl_parse_fail(p->t, name->line, "the test '%.*s' is not supported", (int)name->len,
                              name->u.s);
    p->tok++;
    uint8_t k = p->tok->kind;
    if (tpl_at_op(p, '(')) {
        TRY(call_args(p, x, target));
    } else if ((k == TOK_NAME || k == TOK_STR || k == TOK_INT || k == TOK_FLOAT ||
                tpl_at_op(p, '[') || tpl_at_op(p, '{')) &&
               !tpl_at_name(p, "else") && !tpl_at_name(p, "or") && !tpl_at_name(p, "and")) {
        if (tpl_at_name(p, "is")) return fail(p, "tests cannot be chained with 'is'");
        tkids kids = {0};
        tnode *arg;
        TRY(tpl_kid(p, &kids, target));
        TRY(tpl_primary(p, &arg));
        TRY(postfix(p, &arg));
        TRY(tpl_kid(p, &kids, arg));
        x->kid = kids.v;
        x->n = kids.n;
        TRY(tpl_close(p, x));
    } else {
        TRY(only_target(p, x, target));
    }
    TRY(check_args(p, x, "the test", name));
    *out = x;
    if (negated) return pair_node(p, out, N_NOT, line, x, NULL);
    return CORUN_OK;
}

/* ---- postfix ----------------------------------------------------------------------------------
 */

static corun_status subscript_part(tparser *p, tnode *target, tnode **out)
{
    int line = p->tok->line;
    tnode *part[3] = {NULL};
    bool slice = false;
    for (int i = 0; i < 3; i++) {
        if (!tpl_at_op(p, ':') && !tpl_at_op(p, ']') && !tpl_at_op(p, ',')) {
            TRY(tpl_expr(p, &part[i]));
        } else if (i == 0 && !tpl_at_op(p, ':')) {
            return tpl_unexpected(p, "an expression");
        }
        if (!tpl_at_op(p, ':') || i == 2) break;
        slice = true;
        p->tok++;
    }
    if (tpl_at_op(p, ',')) return fail(p, "a tuple as a subscript is not supported");
    if (!slice) return pair_node(p, out, N_ITEM, line, target, part[0]);
    TRY(tpl_node(p, out, N_SLICE, line, 4));
    (*out)->kid[0] = target;
    memcpy((*out)->kid + 1, part, sizeof part);
    return tpl_close(p, *out);
}

static corun_status subscript(tparser *p, tnode **x)
{
    const ttok *t = p->tok++;
    tnode *n;
    if (t->op == '[') {
        TRY(enter(p));
        TRY(subscript_part(p, *x, &n));
        TRY(tpl_expect_op(p, ']'));
        p->nest--;
    } else if (p->tok->kind == TOK_NAME) {
        TRY(pair_node(p, &n, N_ATTR, t->line, *x, NULL));
        TRY(tpl_intern(p, p->tok->u.s, p->tok->len, &n->id));
        p->tok++;
    } else if (p->tok->kind == TOK_INT) {
        tnode *key;
        TRY(constant(p, &key, tv_int(p->tok->u.i)));
        TRY(pair_node(p, &n, N_ITEM, t->line, *x, key));
        p->tok++;
    } else {
        return tpl_unexpected(p, "a name or a number");
    }
    *x = n;
    return CORUN_OK;
}

static corun_status postfix(tparser *p, tnode **x)
{
    for (;;) {
        if (tpl_at_op(p, '.') || tpl_at_op(p, '['))
            TRY(subscript(p, x));
        else if (tpl_at_op(p, '('))
            TRY(tpl_call(p, *x, x));
        else
            return CORUN_OK;
    }
}

static corun_status filter_expr(tparser *p, tnode **x)
{
    for (;;) {
        if (tpl_at_op(p, '|')) {
            p->tok++;
            TRY(one_filter(p, *x, x));
        } else if (tpl_at_name(p, "is")) {
            TRY(one_test(p, *x, x));
        } else if (tpl_at_op(p, '(')) {
            TRY(tpl_call(p, *x, x));
        } else {
            return CORUN_OK;
        }
    }
}

/* ---- operators --------------------------------------------------------------------------------
 */

static corun_status unary(tparser *p, tnode **out, bool with_filter)
{
    int line = p->tok->line;
    tnode *x;
    if (tpl_at_op(p, '-') || tpl_at_op(p, '+')) {
        tnode_kind kind = tpl_at_op(p, '-') ? N_NEG : N_POS;
        p->tok++;
        TRY(enter(p));
        TRY(unary(p, &x, false));
        p->nest--;
        TRY(pair_node(p, &x, kind, line, x, NULL));
    } else {
        TRY(tpl_primary(p, &x));
    }
    TRY(postfix(p, &x));
    if (with_filter) TRY(filter_expr(p, &x));
    *out = x;
    return CORUN_OK;
}

static corun_status binary(tparser *p, tnode **out, int line, char op, tnode *a, tnode *b)
{
    TRY(pair_node(p, out, N_BINARY, line, a, b));
    (*out)->op = (uint8_t)op;
    return CORUN_OK;
}

static corun_status power(tparser *p, tnode **out)
{
    tnode *a, *b;
    TRY(unary(p, &a, true));
    while (tpl_at_op(p, 'P')) {
        int line = take_line(p);
        TRY(unary(p, &b, true));
        TRY(binary(p, &a, line, 'p', a, b));
    }
    *out = a;
    return CORUN_OK;
}

static corun_status product(tparser *p, tnode **out)
{
    tnode *a, *b;
    TRY(power(p, &a));
    while (tpl_at_op(p, '*') || tpl_at_op(p, '/') || tpl_at_op(p, 'F') || tpl_at_op(p, '%')) {
        char op = p->tok->op == 'F' ? 'f' : p->tok->op;
        int line = take_line(p);
        TRY(power(p, &b));
        TRY(binary(p, &a, line, op, a, b));
    }
    *out = a;
    return CORUN_OK;
}

static corun_status concat(tparser *p, tnode **out)
{
    int line = p->tok->line;
    tkids k = {0};
    TRY(product(p, out));
    if (!tpl_at_op(p, '~')) return CORUN_OK;
    TRY(tpl_kid(p, &k, *out));
    while (tpl_at_op(p, '~')) {
        tnode *x;
        p->tok++;
        TRY(product(p, &x));
        TRY(tpl_kid(p, &k, x));
    }
    return from_kids(p, out, N_CONCAT, line, &k);
}

static corun_status sum(tparser *p, tnode **out)
{
    tnode *a, *b;
    TRY(concat(p, &a));
    while (tpl_at_op(p, '+') || tpl_at_op(p, '-')) {
        char op = p->tok->op;
        int line = take_line(p);
        TRY(concat(p, &b));
        TRY(binary(p, &a, line, op, a, b));
    }
    *out = a;
    return CORUN_OK;
}

/* The comparison that stands here and its number of tokens; -1: none. */
static int comparison(const tparser *p, int *tokens)
{
    static const char ops[] = "EN<L>G";
    *tokens = 1;
    if (p->tok->kind == TOK_OP) {
        const char *q = p->tok->op ? strchr(ops, p->tok->op) : NULL;
        return q ? (int)(q - ops) : -1;
    }
    if (tpl_at_name(p, "in")) return CMP_IN;
    tparser next = *p;
    next.tok++;
    if (!tpl_at_name(p, "not") || !tpl_at_name(&next, "in")) return -1;
    *tokens = 2;
    return CMP_NOT_IN;
}

static corun_status compare(tparser *p, tnode **out)
{
    int line = p->tok->line, tokens;
    tkids k = {0};
    uint8_t *ops = NULL;
    TRY(sum(p, out));
    if (comparison(p, &tokens) < 0) return CORUN_OK;
    TRY(tpl_kid(p, &k, *out));
    for (int op; (op = comparison(p, &tokens)) >= 0;) {
        ops = tpl_grow(&p->t->a, ops, (size_t)k.n - 1, (size_t)k.n);
        if (!ops) return tpl_why(&p->t->a);
        ops[k.n - 1] = (uint8_t)op;
        p->tok += tokens;
        tnode *x;
        TRY(sum(p, &x));
        TRY(tpl_kid(p, &k, x));
    }
    TRY(from_kids(p, out, N_COMPARE, line, &k));
    (*out)->ops = ops;
    return CORUN_OK;
}

static corun_status negation(tparser *p, tnode **out)
{
    if (!tpl_at_name(p, "not")) return compare(p, out);
    int line = take_line(p);
    TRY(enter(p));
    TRY(negation(p, out));
    p->nest--;
    return pair_node(p, out, N_NOT, line, *out, NULL);
}

static corun_status conjunction(tparser *p, tnode **out)
{
    tnode *a, *b;
    TRY(negation(p, &a));
    while (tpl_at_name(p, "and")) {
        int line = take_line(p);
        TRY(negation(p, &b));
        TRY(pair_node(p, &a, N_AND, line, a, b));
    }
    *out = a;
    return CORUN_OK;
}

corun_status tpl_expr_or(tparser *p, tnode **out)
{
    tnode *a, *b;
    TRY(conjunction(p, &a));
    while (tpl_at_name(p, "or")) {
        int line = take_line(p);
        TRY(conjunction(p, &b));
        TRY(pair_node(p, &a, N_OR, line, a, b));
    }
    *out = a;
    return CORUN_OK;
}

corun_status tpl_expr(tparser *p, tnode **out)
{
    int line = p->tok->line;
    TRY(tpl_expr_or(p, out));
    while (tpl_at_name(p, "if")) {
        tnode *x;
        TRY(tpl_node(p, &x, N_COND, line, 3));
        x->kid[0] = *out;
        p->tok++;
        TRY(tpl_expr_or(p, &x->kid[1]));
        if (tpl_at_name(p, "else")) {
            p->tok++;
            TRY(enter(p));
            TRY(tpl_expr(p, &x->kid[2]));
            p->nest--;
        }
        TRY(tpl_close(p, x));
        *out = x;
        line = p->tok->line;
    }
    return CORUN_OK;
}
