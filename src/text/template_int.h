/* template_int.h - shared inside of the template interpreter (template*.c), nobody else's.
 *
 * Values are immutable and live in an arena of one render (constants: of the template), so they
 * are copied by assignment and shared freely; only namespaces, iterators and scopes change. A
 * value knows its nesting depth, a node its height: both are limited where they are made, so that
 * walking them can recurse. */
#ifndef TEXT_TEMPLATE_INT_H
#define TEXT_TEMPLATE_INT_H

#include "text/template.h"

#define TPL_SOURCE_MAX      (1u << 20)   /* bytes of a template */
#define TPL_NAME_MAX        1024         /* names in it */
#define TPL_ARENA_MAX       (512u << 20) /* bytes of one render's values */
#define TPL_OUT_MAX         (64u << 20)  /* bytes of rendered text */
#define TPL_STEPS_MAX       (8u << 20)   /* nodes evaluated, and their bulk work */
#define TPL_NEST_MAX        100          /* nested brackets or blocks of the source */
#define TPL_HEIGHT_MAX      400          /* of one syntax tree: long chains of operators count */
#define TPL_EVAL_MAX        1500         /* evaluations inside one another, through macros */
#define TPL_VALUE_DEPTH_MAX 1000         /* lists in lists */
#define TPL_RANGE_MAX       100000       /* items of range(), as the reference has it */

/* ---- arena ------------------------------------------------------------------------------- */

typedef struct tarena {
    struct tchunk *head;
    size_t used, max;
    corun_status st; /* why the last tpl_new or text append failed */
} tarena;

/* 16-byte aligned, not zeroed. NULL with the error text set. */
void *tpl_new(tarena *a, size_t n, size_t size);
/* Grows p (of old bytes) to bytes, in place when it is the newest. */
void *tpl_grow(tarena *a, void *p, size_t old, size_t bytes);
void tpl_arena_free(tarena *a);
static inline corun_status tpl_why(const tarena *a) { return a->st ? a->st : CORUN_ENOMEM; }
/* In a function that returns a status: p = room for n items from the arena a. */
#define TPL_NEW(a, p, n)                                                                           \
    do {                                                                                           \
        if (!((p) = tpl_new((a), (n), sizeof *(p)))) return tpl_why(a);                            \
    } while (0)

/* ---- values ------------------------------------------------------------------------------ */

typedef enum tkind {
    T_ABSENT, /* an argument that was not given; never seen by a template */
    T_UNDEF,  /* s: what is undefined, sub: see tundef */
    T_NONE,
    T_BOOL,
    T_INT,
    T_FLOAT,
    T_STR, /* UTF-8; sub 1: marked safe, which only + and * look at */
    T_SEQ, /* sub: tseq */
    T_DICT,
    T_ITER, /* what lazy filters give: true, without length, read once */
    T_NS,
    T_MACRO,
    T_FUNC,   /* i: a global function */
    T_METHOD, /* a method of a value */
    T_LOOP
} tkind;

typedef enum tseq { SEQ_LIST, SEQ_TUPLE, SEQ_RANGE, SEQ_KEYS, SEQ_VALUES, SEQ_ITEMS } tseq;
/* NAME: 's' is undefined. ATTR: (kind in depth) has no attribute 's'. HINT: s is the text.
 * UNSAFE: attribute 's' would change a value. */
typedef enum tundef { UNDEF_NAME, UNDEF_ATTR, UNDEF_HINT, UNDEF_UNSAFE } tundef;

typedef struct tval {
    uint8_t kind, sub;
    uint16_t depth;
    uint32_t len; /* bytes, items or pairs */
    union {
        int64_t i;
        double f;
        const char *s;
        const struct tval *v;
        const struct tpair *d;
        struct titer *it;
        struct tns *ns;
        struct tmacro *m;
        const struct tbound *bound;
        struct tloop *loop;
    } u;
} tval;

typedef struct tpair {
    tval k, v;
} tpair;

typedef struct titer {
    tval seq; /* what is left to read begins at pos */
    uint32_t pos;
} titer;

typedef struct tns {
    uint32_t n, cap;
    tpair *vars; /* keys are strings */
} tns;

typedef struct tbound {
    tval self;
    int method;
} tbound;

typedef struct tloop {
    const tval *items;
    uint32_t n, i; /* i: the item now, from 0 */
    bool changed_once;
    tval changed; /* the last arguments of loop.changed */
} tloop;

typedef struct tmacro {
    const struct tnode *def;
    struct tscope *scope;
} tmacro;

static inline tval tv_none(void) { return (tval){.kind = T_NONE}; }
static inline tval tv_bool(bool b) { return (tval){.kind = T_BOOL, .u.i = b}; }
static inline tval tv_int(int64_t i) { return (tval){.kind = T_INT, .u.i = i}; }
static inline tval tv_float(double f) { return (tval){.kind = T_FLOAT, .u.f = f}; }
static inline tval tv_str(const char *s, size_t len)
{
    return (tval){.kind = T_STR, .len = (uint32_t)len, .u.s = s};
}
static inline tval tv_hint(const char *s, size_t len)
{
    return (tval){.kind = T_UNDEF, .sub = UNDEF_HINT, .len = (uint32_t)len, .u.s = s};
}
static inline bool tv_is_num(const tval *v)
{
    return v->kind == T_BOOL || v->kind == T_INT || v->kind == T_FLOAT;
}
static inline bool tv_is_int(const tval *v) { return v->kind == T_BOOL || v->kind == T_INT; }
static inline double tv_double(const tval *v)
{
    return v->kind == T_FLOAT ? v->u.f : (double)v->u.i;
}

/* ---- syntax tree ------------------------------------------------------------------------- */

typedef enum tnode_kind {
    N_CONST, /* k */
    N_NAME,  /* id: the name */
    N_LIST,  /* kids; op: tseq */
    N_DICT,  /* kids: key, value, ... */
    N_NOT,
    N_NEG,
    N_POS,
    N_AND,
    N_OR,
    N_BINARY,   /* op: '+' '-' '*' '/' 'f' (floor division) '%' 'p' (power) */
    N_CONCAT,   /* kids */
    N_COMPARE,  /* kids; ops[i] between kid i and i + 1 */
    N_COND,     /* value, condition, else (NULL) */
    N_ATTR,     /* kid 0, id: the name */
    N_ITEM,     /* kid 0, kid 1 */
    N_SLICE,    /* kid 0, start, stop, step (each NULL or set) */
    N_CALL,     /* kid 0; arguments; n_kw of them with names[]; by op: *args, **kwargs */
    N_FILTER,   /* kid 0 (NULL: given by the caller) and arguments, id: the filter */
    N_TEST,     /* likewise, id: the test */
    N_NSREF,    /* a target only: kid 0 a name, id: the attribute */
    S_TEXT,     /* k */
    S_OUT,      /* kid 0 */
    S_BLOCK,    /* kids */
    S_IF,       /* condition, body, ..., else body at an odd end */
    S_FOR,      /* target, items, condition (NULL), body, else (NULL) */
    S_SET,      /* target, value */
    S_SETBLOCK, /* target, body, filters (NULL) */
    S_MACRO,    /* id: the name; kid 0: body, then defaults of the last parameters; names[] */
    S_CALL,     /* kid 0: the call, kid 1: an S_MACRO for the caller */
    S_FILTER,   /* kid 0: filters, kid 1: body */
    S_WITH,     /* target, value, ..., body */
    S_BREAK,
    S_CONTINUE
} tnode_kind;

typedef enum tcmp { CMP_EQ, CMP_NE, CMP_LT, CMP_LE, CMP_GT, CMP_GE, CMP_IN, CMP_NOT_IN } tcmp;

#define CALL_STAR     1
#define CALL_STARS    2
#define MACRO_VARARGS 1
#define MACRO_KWARGS  2
#define MACRO_CALLER  4

typedef struct tnode {
    uint8_t kind, op;
    uint16_t height;
    int line, id;
    int n, n_kw, n_name;
    struct tnode **kid;
    const int *names;   /* of keyword arguments, of a macro's parameters */
    const uint8_t *ops; /* N_COMPARE */
    tval k;
} tnode;

typedef struct tname {
    const char *s;
    uint32_t len;
} tname;

struct template
{
    tarena a;
    char *what;
    tnode *root;
    tname *names;
    int n_name;
    bool wants_parts, asks_string;
};

/* Names that every template has, at these places: the functions, then variables of the language. */
enum {
    NAME_NAMESPACE,
    NAME_RANGE,
    NAME_DICT,
    NAME_RAISE,
    NAME_STRFTIME,
    NAME_LOOP,
    NAME_CALLER,
    NAME_VARARGS,
    NAME_KWARGS,
    NAME_FIXED
};
extern const char *const tpl_fixed_names[NAME_FIXED];

/* ---- lexer ------------------------------------------------------------------------------- */

typedef enum ttok_kind {
    TOK_TEXT,
    TOK_VAR_BEGIN,
    TOK_VAR_END,
    TOK_BLOCK_BEGIN,
    TOK_BLOCK_END,
    TOK_NAME,
    TOK_STR,
    TOK_INT,
    TOK_FLOAT,
    TOK_OP, /* op: the character; '=' '!' '<' '>' with equal sign: 'E' 'N' 'L' 'G'; // F; ** P */
    TOK_END
} ttok_kind;

typedef struct ttok {
    uint8_t kind;
    char op;
    int line;
    uint32_t len;
    union {
        const char *s;
        int64_t i;
        double f;
    } u;
} ttok;

/* src is normalized in place: line ends, one final line end dropped. Tokens end with TOK_END. */
corun_status tpl_lex(template *t, char *src, size_t len, ttok **out, size_t *n);
corun_status tpl_parse_tokens(template *t, const ttok *tok, size_t n);

/* ---- parser, shared by template_parse.c (expressions) and template_stmt.c ------------------ */

typedef struct tparser {
    template *t;
    const ttok *tok; /* the token now */
    int nest, n_for;
    int name_cap;
    unsigned macro_uses; /* MACRO_ flags of the macro being read */
} tparser;

corun_status tpl_parse_fail(const template *t, int line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
corun_status tpl_node(tparser *p, tnode **out, tnode_kind kind, int line, int n);
/* Sets the height from the kids. */
corun_status tpl_close(tparser *p, tnode *n);
corun_status tpl_intern(tparser *p, const char *s, size_t len, int *id);
bool tpl_at_name(const tparser *p, const char *name);
bool tpl_at_op(const tparser *p, char op);
corun_status tpl_expect_op(tparser *p, char op);
corun_status tpl_unexpected(tparser *p, const char *wanted);

typedef struct tkids { /* children while they are being collected */
    tnode **v;
    int n, cap;
} tkids;
corun_status tpl_kid(tparser *p, tkids *k, tnode *n);

corun_status tpl_expr(tparser *p, tnode **out);    /* with inline if */
corun_status tpl_expr_or(tparser *p, tnode **out); /* without */
corun_status tpl_primary(tparser *p, tnode **out);
/* Comma separated: a tuple, or the one expression. until: a name that ends it, or NULL. */
corun_status tpl_tuple(tparser *p, tnode **out, bool with_cond, const char *until, bool parens);
/* [ '|' ] name(args) | ... ; the first target is NULL. */
corun_status tpl_filters(tparser *p, tnode **out, bool first_bare);
corun_status tpl_call(tparser *p, tnode *callee, tnode **out);
void tpl_detect_parts(template *t);

/* ---- evaluation -------------------------------------------------------------------------- */

typedef struct tscope {
    struct tscope *up;
    int n, cap;
    bool kept; /* a macro was made here or further in */
    struct tvar {
        int name;
        tval v;
    } * vars;
} tscope;

typedef struct tsb { /* text being built in the arena */
    char *p;
    size_t len, cap;
    bool failed;
} tsb;

typedef enum tflow { FLOW_NONE, FLOW_BREAK, FLOW_CONTINUE } tflow;

typedef struct tctx {
    const template *t;
    tarena a;
    uint64_t steps;
    int depth, line;
    tscope *scope;
    tsb *out;
    tflow flow;
    bool copy_strings; /* tpl_from_json: the JSON goes away */
    int year, month, day;
} tctx;

typedef struct tkw {
    const char *name;
    uint32_t len;
    tval v;
} tkw;

typedef struct targs {
    const tval *v;
    int n;
    tkw *kw;
    int n_kw;
} targs;

corun_status tpl_fail(const tctx *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The error of using an undefined value (in the words of the reference). */
corun_status tpl_fail_undef(const tctx *c, const tval *v);
/* Counts bulk work of n units. */
corun_status tpl_charge(tctx *c, uint64_t n);

corun_status tpl_eval(tctx *c, const tnode *n, tval *out);
/* The arguments of a call, filter or test; a->kw has room for `room` keywords more. */
corun_status tpl_eval_args(tctx *c, const tnode *n, int room, targs *a);
corun_status tpl_exec(tctx *c, const tnode *n);
corun_status tpl_run_macro(tctx *c, const tmacro *m, const targs *a, tval *out);
corun_status tpl_scope_push(tctx *c, tscope *up, tscope **saved);
corun_status tpl_assign(tctx *c, int name, const tval *v);
corun_status tpl_binary(tctx *c, char op, const tval *a, const tval *b, tval *out);
corun_status tpl_slice(tctx *c, const tval *v, const tval part[3], tval *out);
corun_status tpl_get_attr(tctx *c, const tval *v, const char *s, size_t len, tval *out);
corun_status tpl_get_item(tctx *c, const tval *v, const tval *key, tval *out);
corun_status tpl_call_value(tctx *c, const tval *f, const targs *a, tval *out);
corun_status tpl_apply_filters(tctx *c, const tnode *n, const tval *in, tval *out);

/* ---- text under construction --------------------------------------------------------------- */

void tsb_put(tctx *c, tsb *b, const char *s, size_t len);
void tsb_puts(tctx *c, tsb *b, const char *s);
void tsb_cp(tctx *c, tsb *b, int32_t cp);
corun_status tsb_value(tctx *c, const tsb *b, tval *out);

/* ---- values (template_value.c) --------------------------------------------------------------- */

const char *tpl_kind_name(const tval *v); /* as Python names the type */
corun_status tpl_from_json(tctx *c, const json_t *j, tval *out);
bool tpl_truth(const tval *v);
corun_status tpl_equal(tctx *c, const tval *a, const tval *b, bool *out);
corun_status tpl_less(tctx *c, const tval *a, const tval *b, bool or_equal, bool *out);
corun_status tpl_contains(tctx *c, const tval *box, const tval *v, bool *out);
corun_status tpl_list(tctx *c, tval **items, size_t n); /* room for n items */
/* A sequence of these items (which it keeps). */
corun_status tpl_seq(tctx *c, tseq kind, const tval *items, size_t n, tval *out);
corun_status tpl_iter(tctx *c, const tval *items, size_t n, tval *out);
corun_status tpl_dict(tctx *c, const tpair *pairs, size_t n, tval *out);
/* An error unless v can be the key of a dictionary. */
corun_status tpl_hashable(tctx *c, const tval *v);
/* NULL: not there. */
corun_status tpl_dict_get(tctx *c, const tval *d, const tval *k, const tval **out);
/* The items that iterating v gives; an error for what cannot be iterated. Empties an iterator. */
corun_status tpl_items(tctx *c, const tval *v, const tval **items, uint32_t *n);
bool tpl_can_iterate(const tval *v);
corun_status tpl_length(tctx *c, const tval *v, int64_t *out);
/* Text as Python's str and repr give it. */
corun_status tpl_put_str(tctx *c, tsb *b, const tval *v);
corun_status tpl_put_repr(tctx *c, tsb *b, const tval *v);
corun_status tpl_to_str(tctx *c, const tval *v, tval *out);

/* ---- strings (template_str.c) --------------------------------------------------------------- */

bool tstr_space(int32_t cp);
bool tstr_valid(const char *s, size_t len);
/* The code point at s, and its bytes. s is valid UTF-8 and not at its end. */
int32_t tstr_cp(const char *s, int *n);
size_t tstr_count(const char *s, size_t len);            /* code points */
size_t tstr_offset(const char *s, size_t len, size_t i); /* byte of code point i, at most len */
const char *tstr_find(const char *s, size_t len, const char *w, size_t wlen);
#define STRIP_LEFT  1
#define STRIP_RIGHT 2
tval tstr_strip(const tval *v, const tval *chars, unsigned sides); /* chars NULL: white space */
corun_status tstr_split(tctx *c, const tval *v, const tval *sep, int64_t max, bool from_right,
                        tval *out);
corun_status tstr_splitlines(tctx *c, const tval *v, bool keep, tval *out);
corun_status tstr_replace(tctx *c, const tval *v, const tval *from, const tval *to, int64_t max,
                          tval *out);
typedef enum tcase { CASE_UPPER, CASE_LOWER, CASE_CAPITAL, CASE_TITLE, CASE_TITLE_FILTER } tcase;
corun_status tstr_case(tctx *c, const tval *v, tcase how, tval *out);
bool tstr_is_case(const tval *v, bool upper);
bool tstr_is_class(const tval *v, char what); /* 'd' digits, 'a' letters, 'n' both, 's' space */
corun_status tstr_escape_html(tctx *c, const tval *v, tval *out);
corun_status tstr_percent(tctx *c, const tval *fmt, const tval *args, tval *out);
corun_status tstr_format(tctx *c, const tval *fmt, const targs *a, tval *out);

/* ---- filters, tests, methods, functions ----------------------------------------------------- */

int tpl_filter_find(const char *s, size_t len); /* -1: none */
int tpl_test_find(const char *s, size_t len);
/* NULL or what is wrong with these arguments. */
const char *tpl_filter_check(int id, int n_pos, const tname *kw, int n_kw);
const char *tpl_test_check(int id, int n_pos, int n_kw);
corun_status tpl_filter(tctx *c, int id, const tval *in, const targs *a, tval *out);
corun_status tpl_test(tctx *c, int id, const tval *in, const targs *a, bool *out);

/* Spreads arguments over the parameters ("a,b,c") into slots (T_ABSENT where not given). */
corun_status tpl_bind(const tctx *c, const char *what, const char *params, const targs *a,
                      tval *slots, int n_slot);
int tpl_param(const char *params, const char *name, size_t len); /* its place, -1: none */
int tpl_param_count(const char *params);

typedef enum tmethod_state {
    METHOD_NONE,
    METHOD_HERE,
    METHOD_UNSAFE,
    METHOD_MISSING
} tmethod_state;
/* What the reference would find as attribute s of v. MISSING: there, but not implemented. */
tmethod_state tpl_method_find(const tval *v, const char *s, size_t len, int *id);
bool tpl_method_unknown(const char *s, size_t len); /* a Python method that we do not have */
corun_status tpl_method(tctx *c, int id, const tval *self, const targs *a, tval *out);
corun_status tpl_function(tctx *c, int id, const targs *a, tval *out);
corun_status tpl_sort(tctx *c, tval *keys, tval *items, size_t n, bool reverse);
/* a.b.0 on a value; fallback (may be NULL) where it is undefined. */
corun_status tpl_attr_path(tctx *c, const tval *v, const tval *path, const tval *fallback,
                           tval *out);

typedef struct tjson {
    bool ascii, sorted;
    const char *indent; /* NULL: on one line */
    size_t indent_len;
    const char *item, *key; /* separators */
    size_t item_len, key_len;
} tjson;
corun_status tpl_to_json(tctx *c, const tval *v, const tjson *how, tval *out);

#endif
