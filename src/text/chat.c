/* chat.c - owns the preparation of chat messages. Invariant: what reaches a template has a known
 * role and a content that is text (or a list of text parts, for templates that loop over it). */
#include "text/chat.h"

#include <stdio.h>
#include <string.h>

/* Appended to the last message to find where it ends. The space shows whether the template trims
 * its content: then the message's own trailing space goes too. */
#define MARK      "CORUN_CONTINUES_HERE"
#define NAMED_MAX 16

struct named_template {
    char *name;
    template *t;
};

struct chat_templates {
    int n;
    struct named_template named[NAMED_MAX];
};

/* ---- templates
 * -------------------------------------------------------------------------------------- */

static corun_status add_template(chat_templates *s, const char *name, const char *src, size_t len,
                                 const char *what)
{
    if (s->n == NAMED_MAX) FAIL(CORUN_EFORMAT, "%s: more than %d templates", what, NAMED_MAX);
    for (int i = 0; i < s->n; i++)
        if (strcmp(s->named[i].name, name) == 0)
            FAIL(CORUN_EFORMAT, "%s: two templates are named '%s'", what, name);
    char *copy = mem_dup(name, strlen(name), "template name");
    if (!copy) return CORUN_ENOMEM;
    corun_status st = template_parse(&s->named[s->n].t, src, len, what);
    if (st != CORUN_OK) {
        mem_free(copy);
        return st;
    }
    s->named[s->n++].name = copy;
    return CORUN_OK;
}

corun_status chat_templates_text(chat_templates **out, const char *src, size_t len,
                                 const char *what)
{
    chat_templates *s;
    *out = NULL;
    if (!MEM_NEW(s, 1)) return CORUN_ENOMEM;
    corun_status st = add_template(s, "default", src, len, what);
    if (st == CORUN_OK)
        *out = s;
    else
        chat_templates_free(s);
    return st;
}

static corun_status read_list(chat_templates *s, const json_t *v, const char *what)
{
    size_t i;
    json_t *x;
    json_array_foreach (v, i, x) {
        const json_t *name = json_object_get(x, "name"), *src = json_object_get(x, "template");
        if (!json_is_string(name) || !json_is_string(src))
            FAIL(CORUN_EFORMAT, "%s: entry %zu needs the strings 'name' and 'template'", what, i);
        TRY(add_template(s, json_string_value(name), json_string_value(src),
                         json_string_length(src), what));
    }
    if (s->n == 0) FAIL(CORUN_EFORMAT, "%s: an empty list of templates", what);
    return CORUN_OK;
}

corun_status chat_templates_read(chat_templates **out, const json_t *v, const char *what)
{
    *out = NULL;
    if (json_is_string(v))
        return chat_templates_text(out, json_string_value(v), json_string_length(v), what);
    if (!json_is_array(v))
        FAIL(CORUN_EFORMAT, "%s: a string or a list of templates is required", what);
    chat_templates *s;
    if (!MEM_NEW(s, 1)) return CORUN_ENOMEM;
    corun_status st = read_list(s, v, what);
    if (st == CORUN_OK)
        *out = s;
    else
        chat_templates_free(s);
    return st;
}

void chat_templates_free(chat_templates *t)
{
    if (!t) return;
    for (int i = 0; i < t->n; i++) {
        template_free(t->named[i].t);
        mem_free(t->named[i].name);
    }
    mem_free(t);
}

/* Sets *out to the template of this name, or leaves it. */
static void named(const chat_templates *s, const char *name, const template **out)
{
    for (int i = 0; s && i < s->n; i++)
        if (strcmp(s->named[i].name, name) == 0) *out = s->named[i].t;
}

corun_status chat_date(const char *text, chat_source *out)
{
    static const int days[] = {31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    int y, m, d;
    char rest;
    bool ok = strlen(text) == 10 && sscanf(text, "%4d-%2d-%2d%c", &y, &m, &d, &rest) == 3;
    for (int i = 0; ok && i < 10; i++)
        ok = i == 4 || i == 7 ? text[i] == '-' : text[i] >= '0' && text[i] <= '9';
    bool leap = ok && ((y % 4 == 0 && y % 100 != 0) || y % 400 == 0);
    if (!ok || y < 1 || m < 1 || m > 12 || d < 1 || d > days[m - 1] || (m == 2 && d == 29 && !leap))
        FAIL(CORUN_EINVAL, "'%s' is not a date (YYYY-MM-DD)", text);
    out->year = y;
    out->month = m;
    out->day = d;
    return CORUN_OK;
}

/* ---- messages
 * ---------------------------------------------------------------------------------------- */

static corun_status set_new(json_t *o, const char *key, json_t *v)
{
    if (json_object_set_new(o, key, v) != 0) FAIL(CORUN_ENOMEM, "chat: no memory for '%s'", key);
    return CORUN_OK;
}

static corun_status part_text(const json_t *part, const char *where, const json_t **out)
{
    *out = part;
    if (json_is_string(part)) return CORUN_OK;
    const char *type = json_string_value(json_object_get(part, "type"));
    if (!type) FAIL(CORUN_EFORMAT, "%s: a content part needs a string 'type'", where);
    if (strcmp(type, "text") != 0 && strcmp(type, "input_text") != 0 &&
        strcmp(type, "output_text") != 0)
        FAIL(CORUN_EUNSUPPORTED, "%s: content parts of type '%s' are not supported", where, type);
    *out = json_object_get(part, "text");
    if (!json_is_string(*out)) FAIL(CORUN_EFORMAT, "%s: a text part needs a string 'text'", where);
    return CORUN_OK;
}

/* Parts in place for a template that wants them; else one string, joined by "\n". */
static corun_status prepare_parts(json_t *message, json_t *parts, bool keep, const char *where)
{
    size_t i;
    json_t *part;
    corun_status st = CORUN_OK;
    buf b;
    buf_init(&b, (size_t)1 << 30);
    json_array_foreach (parts, i, part) {
        const json_t *text;
        TRY_OR_DONE(part_text(part, where, &text));
        if (!keep && i) buf_putc(&b, '\n');
        if (!keep) buf_put(&b, json_string_value(text), json_string_length(text));
        if (keep && json_is_string(part)) {
            json_t *full = json_pack("{s:s, s:O}", "type", "text", "text", part);
            if (!full || json_array_set_new(parts, i, full) != 0)
                FAIL_OR_DONE(CORUN_ENOMEM, "%s: no memory", where);
        }
    }
    if (!keep) {
        TRY_OR_DONE(buf_status(&b));
        st = set_new(message, "content", json_stringn(b.data ? b.data : "", b.len));
    }
done:
    buf_free(&b);
    return st;
}

static bool has_text(const json_t *message, const char *key)
{
    return json_string_length(json_object_get(message, key)) > 0;
}

/* The one text as a list of one part. */
static corun_status text_as_part(json_t *message, json_t *text, const char *where)
{
    json_t *parts = json_pack("[{s:s, s:O}]", "type", "text", "text", text);
    if (!parts) FAIL(CORUN_ENOMEM, "%s: no memory", where);
    return set_new(message, "content", parts);
}

static corun_status prepare_content(json_t *message, const template *t, const char *where)
{
    json_t *content = json_object_get(message, "content");
    const char *role = json_string_value(json_object_get(message, "role"));
    if (json_is_string(content))
        return template_needs_parts(t) ? text_as_part(message, content, where) : CORUN_OK;
    if (json_is_array(content))
        return prepare_parts(message, content, template_wants_parts(t), where);
    if (content && !json_is_null(content))
        FAIL(CORUN_EFORMAT, "%s: content must be a string or a list of parts", where);
    if (strcmp(role, "assistant") == 0 &&
        (json_object_get(message, "tool_calls") || has_text(message, "reasoning_content") ||
         has_text(message, "reasoning")))
        return set_new(message, "content", json_string(""));
    FAIL(CORUN_EFORMAT, "%s: a message of role '%s' needs content", where, role);
}

static corun_status prepare_arguments(json_t *holder, const char *where)
{
    const json_t *a = json_object_get(holder, "arguments");
    char what[160];
    if (json_is_object(a)) return CORUN_OK;
    if (!a || json_is_null(a) || (json_is_string(a) && json_string_length(a) == 0))
        return set_new(holder, "arguments", json_object());
    snprintf(what, sizeof what, "%s.arguments", where);
    if (!json_is_string(a)) FAIL(CORUN_EFORMAT, "%s: an object or its JSON text is required", what);
    json_t *v;
    TRY(json_read(&v, json_string_value(a), json_string_length(a), what));
    if (json_is_null(v)) {
        json_decref(v);
        v = json_object();
    } else if (!json_is_object(v)) {
        json_decref(v);
        FAIL(CORUN_EFORMAT, "%s: the JSON text is not an object", what);
    }
    return set_new(holder, "arguments", v);
}

static corun_status prepare_calls(json_t *message, const char *where)
{
    json_t *calls = json_object_get(message, "tool_calls"), *call;
    size_t i;
    if (!calls) return CORUN_OK;
    if (json_is_null(calls) || (json_is_array(calls) && json_array_size(calls) == 0)) {
        json_object_del(message, "tool_calls");
        return CORUN_OK;
    }
    if (!json_is_array(calls)) FAIL(CORUN_EFORMAT, "%s.tool_calls: a list is required", where);
    json_array_foreach (calls, i, call) {
        char at[120];
        json_t *f = json_object_get(call, "function");
        snprintf(at, sizeof at, "%s.tool_calls[%zu]%s", where, i, f ? ".function" : "");
        if (!f) f = call; /* name and arguments may also stand in the call itself */
        if (!json_is_string(json_object_get(f, "name")))
            FAIL(CORUN_EFORMAT, "%s: a string 'name' is required", at);
        TRY(prepare_arguments(f, at));
    }
    return CORUN_OK;
}

static corun_status prepare_message(json_t *message, size_t i, const template *t)
{
    static const char *const roles[] = {"system", "developer", "user",   "assistant",
                                        "tool",   "function",  "ipython"};
    char where[64];
    snprintf(where, sizeof where, "messages[%zu]", i);
    if (!json_is_object(message)) FAIL(CORUN_EFORMAT, "%s: an object is required", where);
    const char *role = json_string_value(json_object_get(message, "role"));
    if (!role) FAIL(CORUN_EFORMAT, "%s: a string 'role' is required", where);
    bool known = false;
    for (size_t k = 0; k < sizeof roles / sizeof *roles; k++) known |= strcmp(role, roles[k]) == 0;
    if (!known) FAIL(CORUN_EFORMAT, "%s: unknown role '%s'", where, role);
    TRY(prepare_calls(message, where));
    return prepare_content(message, t, where);
}

/* ---- the request
 * -------------------------------------------------------------------------------------- */

typedef struct request {
    json_t *root, *messages, *tools, *documents, *kwargs, *vars;
    bool add_prompt, carry_on;
    const template *t;
    template *own; /* sent with the request */
} request;

static corun_status read_flag(const json_t *root, const char *key, bool def, bool *out)
{
    const json_t *v = json_object_get(root, key);
    *out = def;
    if (!v || json_is_null(v)) return CORUN_OK;
    if (!json_is_boolean(v)) FAIL(CORUN_EFORMAT, "%s: true or false is required", key);
    *out = json_is_true(v);
    return CORUN_OK;
}

static corun_status read_member(const json_t *root, const char *key, json_type type, json_t **out)
{
    json_t *v = json_object_get(root, key);
    *out = v && !json_is_null(v) ? v : NULL;
    if (*out && json_typeof(v) != type)
        FAIL(CORUN_EFORMAT, "%s: %s is required", key,
             type == JSON_ARRAY    ? "a list"
             : type == JSON_OBJECT ? "an object"
                                   : "a string");
    return CORUN_OK;
}

static corun_status check_objects(const json_t *list, const char *what)
{
    size_t i;
    const json_t *x;
    if (!list) return CORUN_OK;
    json_array_foreach (list, i, x)
        if (!json_is_object(x)) FAIL(CORUN_EFORMAT, "%s[%zu]: an object is required", what, i);
    return CORUN_OK;
}

static corun_status read_request(request *r)
{
    static const char *const keys[] = {"messages",
                                       "tools",
                                       "documents",
                                       "add_generation_prompt",
                                       "chat_template",
                                       "continue_final_message",
                                       "chat_template_kwargs"};
    const char *key;
    json_t *v;
    if (!json_is_object(r->root)) FAIL(CORUN_EFORMAT, "chat request: an object is required");
    json_object_foreach (r->root, key, v) {
        bool known = false;
        for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) known |= strcmp(key, keys[i]) == 0;
        if (!known) FAIL(CORUN_EFORMAT, "chat request: unknown field '%s'", key);
    }
    TRY(read_member(r->root, "messages", JSON_ARRAY, &r->messages));
    if (json_array_size(r->messages) == 0)
        FAIL(CORUN_EFORMAT, "messages: a list of at least one message is required");
    TRY(read_member(r->root, "tools", JSON_ARRAY, &r->tools));
    TRY(read_member(r->root, "documents", JSON_ARRAY, &r->documents));
    TRY(read_member(r->root, "chat_template_kwargs", JSON_OBJECT, &r->kwargs));
    TRY(check_objects(r->tools, "tools"));
    TRY(check_objects(r->documents, "documents"));
    TRY(read_flag(r->root, "continue_final_message", false, &r->carry_on));
    TRY(read_flag(r->root, "add_generation_prompt", !r->carry_on, &r->add_prompt));
    if (r->carry_on && r->add_prompt)
        FAIL(CORUN_EFORMAT, "add_generation_prompt and continue_final_message exclude one another");
    return CORUN_OK;
}

static corun_status pick_template(request *r, const chat_source *s)
{
    json_t *sent;
    TRY(read_member(r->root, "chat_template", JSON_STRING, &sent));
    if (sent) {
        named(s->templates, json_string_value(sent), &r->t);
        if (r->t) return CORUN_OK;
        TRY(template_parse(&r->own, json_string_value(sent), json_string_length(sent),
                           "chat_template"));
        r->t = r->own;
        return CORUN_OK;
    }
    if (!s->templates)
        FAIL(CORUN_EFORMAT, "the model has no chat template, and the request none either");
    if (json_array_size(r->tools) > 0) named(s->templates, "tool_use", &r->t);
    if (!r->t) named(s->templates, "default", &r->t);
    if (!r->t && s->templates->n == 1) r->t = s->templates->named[0].t;
    if (!r->t)
        FAIL(CORUN_EFORMAT, "the model's chat templates have names, and none is 'default': name "
                            "one in chat_template");
    return CORUN_OK;
}

/* The last text of the last message gets the mark. */
static corun_status add_mark(request *r)
{
    size_t n = json_array_size(r->messages);
    json_t *holder = json_array_get(r->messages, n - 1), *v = json_object_get(holder, "content");
    const char *key = "content";
    if (json_is_array(v)) {
        if (json_array_size(v) == 0)
            FAIL(CORUN_EFORMAT, "continue_final_message: the last message has no text");
        holder = json_array_get(v, json_array_size(v) - 1);
        v = json_object_get(holder, "text");
        key = "text";
    }
    buf b;
    buf_init(&b, (size_t)1 << 30);
    buf_put(&b, json_string_value(v), json_string_length(v));
    buf_puts(&b, MARK " ");
    corun_status st = buf_status(&b);
    if (st == CORUN_OK) st = set_new(holder, key, json_stringn(b.data, b.len));
    buf_free(&b);
    return st;
}

/* Cuts the text (from `from` on) at the mark. */
static corun_status cut_at_mark(buf *out, size_t from)
{
    const size_t len = sizeof MARK - 1;
    for (size_t i = out->len; i >= from + len; i--) {
        if (memcmp(out->data + i - len, MARK, len) != 0) continue;
        bool trimmed = i >= out->len || out->data[i] != ' ';
        size_t end = i - len;
        while (trimmed && end > from && strchr(" \t\r\n\v\f", out->data[end - 1]) &&
               out->data[end - 1])
            end--;
        out->len = end;
        out->data[end] = 0;
        return CORUN_OK;
    }
    FAIL(CORUN_EFORMAT,
         "continue_final_message: the template does not show the last message's content");
}

static corun_status set_shared(json_t *vars, const char *key, json_t *v)
{
    return set_new(vars, key, v ? json_incref(v) : json_null());
}

static corun_status make_vars(request *r, const chat_source *s)
{
    static const char *const taken[] = {
        "messages",     "tools", "documents", "add_generation_prompt", "continue_final_message",
        "chat_template"};
    const char *key;
    json_t *v;
    r->vars = json_object();
    if (!r->vars) FAIL(CORUN_ENOMEM, "chat: no memory for variables");
    if (s->special)
        json_object_foreach ((json_t *)(uintptr_t)s->special, key, v)
            TRY(set_shared(r->vars, key, v));
    if (r->kwargs)
        json_object_foreach (r->kwargs, key, v) {
            for (size_t i = 0; i < sizeof taken / sizeof *taken; i++)
                if (strcmp(key, taken[i]) == 0)
                    FAIL(CORUN_EFORMAT, "chat_template_kwargs: '%s' is a field of the request",
                         key);
            TRY(set_shared(r->vars, key, v));
        }
    TRY(set_shared(r->vars, "messages", r->messages));
    TRY(set_shared(r->vars, "tools", r->tools));
    TRY(set_shared(r->vars, "documents", r->documents));
    TRY(set_new(r->vars, "continue_final_message", json_boolean(r->carry_on)));
    return set_new(r->vars, "add_generation_prompt", json_boolean(r->add_prompt));
}

static corun_status render(request *r, const chat_source *s, buf *out)
{
    size_t i, from = out->len;
    json_t *message;
    TRY(read_request(r));
    TRY(pick_template(r, s));
    json_array_foreach (r->messages, i, message) TRY(prepare_message(message, i, r->t));
    if (r->carry_on) TRY(add_mark(r));
    TRY(make_vars(r, s));
    template_env env = {.vars = r->vars, .year = s->year, .month = s->month, .day = s->day};
    TRY(template_render(r->t, &env, out));
    return r->carry_on ? cut_at_mark(out, from) : CORUN_OK;
}

corun_status chat_render(const chat_source *s, const char *json, size_t len, buf *out)
{
    request r = {NULL};
    TRY(json_read(&r.root, json, len, "chat request"));
    corun_status st = render(&r, s, out);
    template_free(r.own);
    json_decref(r.vars);
    json_decref(r.root);
    return st;
}
