/* diff.c - owns the comparison of two result rows and of two identities. Invariant: rows that
 * differ in a compared part are never called equal, and the place is the first one by token. */
#include "proof/diff.h"

#include <stdio.h>
#include <string.h>

#include "base/num.h"

const char *diff_kind_name(diff_kind k)
{
    static const char *const name[] = {
        "equal", "token",   "log-probability",   "alternatives", "prompt", "text",
        "end",   "message", "number of choices", "error",        "value"};
    return (unsigned)k < DIFF_N_KIND ? name[k] : "?";
}

int diff_bucket(int64_t token)
{
    int b = 0;
    for (uint64_t v = token < 0 ? 0 : (uint64_t)token; v && b < DIFF_N_BUCKET - 1; v >>= 1) b++;
    return b;
}

/* ---- values ------------------------------------------------------------------------------ */

void diff_show(const json_t *v, char out[96])
{
    buf b;
    jw w;
    buf_init(&b, (size_t)64 << 20);
    jw_init(&w, &b);
    if (v)
        jw_value(&w, v);
    else
        buf_puts(&b, "(nothing)");
    size_t n = buf_status(&b) == CORUN_OK ? b.len : 0;
    bool cut = n > 91;
    if (cut) {
        n = 91;
        while (n && ((unsigned char)b.data[n] & 0xc0) == 0x80) n--;
    }
    if (n) memcpy(out, b.data, n);
    snprintf(out + n, 96 - n, "%s", cut ? "..." : "");
    buf_free(&b);
}

static void put_values(diff_place *p, const json_t *a, const json_t *b)
{
    diff_show(a, p->a);
    diff_show(b, p->b);
    p->bits = json_is_number(a) && json_is_number(b);
    if (!p->bits) return;
    p->bit_a = num_bits_f((float)json_number_value(a));
    p->bit_b = num_bits_f((float)json_number_value(b));
}

static bool is_nothing(const json_t *v) { return !v || json_is_null(v); }

/* A step on the way into a value; the path is written out only where something differs. */
typedef struct step {
    const struct step *up;
    const char *key; /* NULL: index */
    size_t index;
} step;

static void put_path(const step *s, char *out, size_t cap)
{
    const step *way[32];
    size_t n = 0, at = 0;
    for (; s && n < 32; s = s->up) way[n++] = s;
    at += (size_t)snprintf(out, cap, "%s", s ? "..." : ""); /* only the last steps of a long way */
    while (n > 0 && at < cap - 1) {
        const step *k = way[--n];
        int len = k->key ? snprintf(out + at, cap - at, "%s%.60s", at ? "." : "", k->key)
                         : snprintf(out + at, cap - at, "[%zu]", k->index);
        at += len > 0 ? (size_t)len : 0;
    }
}

static bool numbers_equal(const json_t *a, const json_t *b, bool fp32)
{
    if (json_is_integer(a) && json_is_integer(b))
        return json_integer_value(a) == json_integer_value(b);
    double x = json_number_value(a), y = json_number_value(b);
    return fp32 ? num_bits_f((float)x) == num_bits_f((float)y) : num_bits(x) == num_bits(y);
}

/* True when two values differ; p gets the place. JSON has at most 2,048 levels (json.h). */
static bool differ(const json_t *a, const json_t *b, const step *way, bool fp32, diff_place *p)
{
    if (json_is_array(a) && json_is_array(b)) {
        size_t n = json_array_size(a), m = json_array_size(b);
        for (size_t i = 0; i < n || i < m; i++) {
            const step s = {way, NULL, i};
            if (differ(json_array_get(a, i), json_array_get(b, i), &s, fp32, p)) return true;
        }
        return false;
    }
    if (json_is_object(a) && json_is_object(b)) {
        const char *key;
        json_t *v;
        json_object_foreach ((json_t *)(uintptr_t)a, key, v) {
            const step s = {way, key, 0};
            if (differ(v, json_object_get(b, key), &s, fp32, p)) return true;
        }
        json_object_foreach ((json_t *)(uintptr_t)b, key, v) {
            const step s = {way, key, 0};
            if (!json_object_get(a, key) && differ(NULL, v, &s, fp32, p)) return true;
        }
        return false;
    }
    bool same = a == b || /* both absent, too */
                (a && b &&
                 (json_is_number(a) && json_is_number(b) ? numbers_equal(a, b, fp32)
                                                         : json_equal(a, b) == 1));
    if (same) return false;
    put_path(way, p->path, sizeof p->path);
    put_values(p, a, b);
    return true;
}

/* ---- forms of rows ------------------------------------------------------------------------ */

static bool is_score(const json_t *row)
{
    return json_is_array(json_object_get(row, "tokens")) &&
           json_is_array(json_object_get(row, "token_logprobs"));
}

static const json_t *answer_of(const json_t *row)
{
    const json_t *response = json_object_get(row, "response");
    const json_t *body = json_is_object(response) ? json_object_get(response, "body") : row;
    return json_is_object(body) ? body : NULL;
}

bool diff_is_error(const json_t *row)
{
    const json_t *response = json_object_get(row, "response"), *body = answer_of(row);
    int64_t code;
    if (!is_nothing(json_object_get(row, "error"))) return true;
    if (json_is_object(response) &&
        json_is_whole(json_object_get(response, "status_code"), &code) && code != 200)
        return true;
    return body && !is_nothing(json_object_get(body, "error"));
}

const json_t *diff_body(const json_t *row)
{
    if (diff_is_error(row)) return NULL;
    const json_t *body = answer_of(row);
    return body && json_is_array(json_object_get(body, "choices")) ? body : NULL;
}

bool diff_key(const json_t *row, buf *key)
{
    static const char *const name[] = {"custom_id", "doc_id"};
    buf_reset(key);
    for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
        const json_t *v = json_object_get(row, name[i]);
        if (json_is_string(v)) {
            buf_puts(key, "s:");
            buf_put(key, json_string_value(v), json_string_length(v));
            return true;
        }
        if (json_is_integer(v)) {
            buf_printf(key, "i:%lld", (long long)json_integer_value(v));
            return true;
        }
    }
    return false;
}

/* ---- one choice --------------------------------------------------------------------------- */

/* The new tokens of a choice; any of the lists may be NULL. */
typedef struct series {
    const json_t *ids;                /* integers */
    const json_t *tokens, *lps, *top; /* completions */
    const json_t *content;            /* chat: objects with token, logprob, top_logprobs */
    size_t n;
    bool any; /* there is a list */
} series;

static const json_t *list(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return json_is_array(v) ? v : NULL;
}

static void longest(series *s, const json_t *v)
{
    if (!v) return;
    s->any = true;
    if (json_array_size(v) > s->n) s->n = json_array_size(v);
}

static series series_of(const json_t *choice, const json_t *logprobs)
{
    series s = {.ids = list(choice, "token_ids"),
                .tokens = list(logprobs, "tokens"),
                .lps = list(logprobs, "token_logprobs"),
                .top = list(logprobs, "top_logprobs"),
                .content = list(logprobs, "content")};
    longest(&s, s.tokens);
    longest(&s, s.lps);
    longest(&s, s.content);
    if (!s.any) longest(&s, s.ids); /* with echo the other lists hold the prompt too */
    return s;
}

static const json_t *token_at(const series *s, size_t i)
{
    return s->content ? json_object_get(json_array_get(s->content, i), "token")
                      : json_array_get(s->tokens, i);
}

static const json_t *logprob_at(const series *s, size_t i)
{
    return s->content ? json_object_get(json_array_get(s->content, i), "logprob")
                      : json_array_get(s->lps, i);
}

static const json_t *top_at(const series *s, size_t i)
{
    return s->content ? json_object_get(json_array_get(s->content, i), "top_logprobs")
                      : json_array_get(s->top, i);
}

/* The ids belong to the last entries: with echo the other lists begin with the prompt. */
static const json_t *id_at(const series *s, size_t i)
{
    size_t n = json_array_size(s->ids), before = s->n > n ? s->n - n : 0;
    return s->ids && i >= before ? json_array_get(s->ids, i - before) : NULL;
}

/* Parts of a character all read as U+FFFD: the bytes tell them apart. */
static bool tokens_equal(const series *a, const series *b, size_t i)
{
    const json_t *x = token_at(a, i), *y = token_at(b, i);
    if (x != y && (!x || !y || !json_equal(x, y))) return false;
    x = json_object_get(json_array_get(a->content, i), "bytes");
    y = json_object_get(json_array_get(b->content, i), "bytes");
    return is_nothing(x) || is_nothing(y) || json_equal(x, y);
}

static bool set(diff_place *p, diff_kind kind, size_t token)
{
    p->kind = kind;
    p->token = (int64_t)token;
    return true;
}

/* What two series can be compared by. */
typedef struct common {
    bool ids, names, lps, tops;
} common;

static common common_of(const series *a, const series *b)
{
    return (common){.ids = a->ids && b->ids,
                    .names = (a->tokens || a->content) && (b->tokens || b->content),
                    .lps = (a->lps || a->content) && (b->lps || b->content),
                    .tops = a->content ? b->content != NULL : a->top && b->top};
}

/* Another token at i, or only one of the two has one. p, where given, gets the place. */
static bool token_differ(const series *a, const series *b, const common *c, size_t i, diff_place *p)
{
    const json_t *x = id_at(a, i), *y = id_at(b, i);
    bool ids = c->ids && (x || y) && !json_equal(x, y);
    if (!ids && i < a->n && i < b->n && (!c->names || tokens_equal(a, b, i))) return false;
    if (!p) return true;
    diff_show(ids ? x : token_at(a, i), p->a);
    diff_show(ids ? y : token_at(b, i), p->b);
    return set(p, DIFF_TOKEN, i);
}

/* The first differing token, log-probability or alternative. *token: index of the first other
 * token, which may come later; -1: none. */
static bool series_differ(const series *a, const series *b, diff_place *p, int64_t *token,
                          diff_count *n)
{
    const common c = common_of(a, b);
    bool found = false;
    *token = -1;
    if (!c.names && !c.lps && !c.ids) return false;
    for (size_t i = 0; i < a->n || i < b->n; i++) {
        if (token_differ(a, b, &c, i, found ? NULL : p)) {
            *token = (int64_t)i;
            return true;
        }
        n->tokens += c.names || c.ids;
        n->logprobs += c.lps && json_is_number(logprob_at(a, i));
        if (found) continue;
        if (c.lps && differ(logprob_at(a, i), logprob_at(b, i), NULL, true, p))
            found = set(p, DIFF_LOGPROB, i);
        else if (c.tops && differ(top_at(a, i), top_at(b, i), NULL, true, p))
            found = set(p, DIFF_TOP, i);
    }
    return found;
}

static const json_t *text_of(const json_t *choice)
{
    const json_t *message = json_object_get(choice, "message");
    return json_object_get(message ? message : choice, message ? "content" : "text");
}

static bool text_differ(const json_t *a, const json_t *b, diff_place *p)
{
    if (is_nothing(a) && is_nothing(b)) return false;
    if (a && b && json_equal(a, b)) return false;
    p->kind = DIFF_TEXT;
    if (!json_is_string(a) || !json_is_string(b)) {
        put_values(p, a, b);
        return true;
    }
    const char *s = json_string_value(a), *t = json_string_value(b);
    size_t n = json_string_length(a), m = json_string_length(b), i = 0, chars = 0;
    while (i < n && i < m && s[i] == t[i]) i++;
    while (i > 0 && i < n && ((unsigned char)s[i] & 0xc0) == 0x80) i--;
    while (i > 0 && i < m && ((unsigned char)t[i] & 0xc0) == 0x80) i--;
    for (size_t k = 0; k < i; k++) chars += ((unsigned char)s[k] & 0xc0) != 0x80;
    p->text = (int64_t)chars;
    json_t *rest_a = json_stringn(s + i, n - i), *rest_b = json_stringn(t + i, m - i);
    diff_show(rest_a, p->a);
    diff_show(rest_b, p->b);
    json_decref(rest_a);
    json_decref(rest_b);
    return true;
}

/* A field that both have, or that one has with a value, in both choices. */
static bool field_differ(const json_t *a, const json_t *b, const char *key, diff_kind kind,
                         bool need_both, diff_place *p)
{
    const json_t *x = json_object_get(a, key), *y = json_object_get(b, key);
    const step s = {NULL, key, 0};
    if (is_nothing(x) && is_nothing(y)) return false;
    if (need_both && (!x || !y)) return false;
    if (!differ(is_nothing(x) ? NULL : x, is_nothing(y) ? NULL : y, &s, false, p)) return false;
    p->kind = kind;
    return true;
}

static bool message_differ(const json_t *a, const json_t *b, diff_place *p)
{
    const char *key;
    json_t *v;
    json_object_foreach ((json_t *)(uintptr_t)a, key, v)
        if (strcmp(key, "content") != 0 && strcmp(key, "role") != 0 &&
            field_differ(a, b, key, DIFF_MESSAGE, false, p))
            return true;
    json_object_foreach ((json_t *)(uintptr_t)b, key, v)
        if (strcmp(key, "content") != 0 && strcmp(key, "role") != 0 && !json_object_get(a, key) &&
            field_differ(a, b, key, DIFF_MESSAGE, false, p))
            return true;
    return false;
}

static bool prompt_differ(const json_t *a, const json_t *b, diff_place *p)
{
    static const char *const key[] = {"prompt_token_ids", "prompt_logprobs"};
    for (size_t k = 0; k < 2; k++) {
        const json_t *x = list(a, key[k]), *y = list(b, key[k]);
        if (!x || !y) continue;
        for (size_t i = 0; i < json_array_size(x) || i < json_array_size(y); i++) {
            const step top = {NULL, key[k], 0}, s = {&top, NULL, i};
            if (differ(json_array_get(x, i), json_array_get(y, i), &s, true, p))
                return set(p, DIFF_PROMPT, i);
        }
    }
    return false;
}

static bool choice_differ(const json_t *a, const json_t *b, diff_place *p, int64_t *token,
                          diff_count *n)
{
    *token = -1;
    if (prompt_differ(a, b, p)) return true;
    series x = series_of(a, json_object_get(a, "logprobs"));
    series y = series_of(b, json_object_get(b, "logprobs"));
    const common c = common_of(&x, &y);
    n->text_only += !c.names && !c.lps && !c.ids;
    if (x.any && y.any && series_differ(&x, &y, p, token, n)) return true;
    const json_t *message_a = json_object_get(a, "message"),
                 *message_b = json_object_get(b, "message");
    /* A chat answer and a completion of the same ids have texts of other rules (echo). */
    bool same_form = !message_a == !message_b;
    if ((same_form || !x.ids || !y.ids) && text_differ(text_of(a), text_of(b), p)) return true;
    if (message_a && message_b && message_differ(message_a, message_b, p)) return true;
    return field_differ(a, b, "finish_reason", DIFF_FINISH, true, p) ||
           field_differ(a, b, "stop_reason", DIFF_FINISH, true, p);
}

static void count_sample(const diff_place *p, int64_t token, diff_count *n)
{
    n->samples++;
    n->kind[p->kind]++;
    bool placed = p->kind == DIFF_TOKEN || p->kind == DIFF_LOGPROB || p->kind == DIFF_TOP;
    if (placed) n->any[diff_bucket(p->token)]++;
    if (token >= 0) n->token[diff_bucket(token)]++;
}

static diff_place nowhere(size_t sample)
{
    return (diff_place){.sample = sample, .token = -1, .text = -1};
}

static void bodies(const json_t *a, const json_t *b, diff_place *out, diff_count *n)
{
    const json_t *x = list(a, "choices"), *y = list(b, "choices");
    if (json_array_size(x) != json_array_size(y)) {
        out->kind = DIFF_SAMPLES;
        snprintf(out->a, sizeof out->a, "%zu", json_array_size(x));
        snprintf(out->b, sizeof out->b, "%zu", json_array_size(y));
        count_sample(out, -1, n);
        return;
    }
    for (size_t i = 0; i < json_array_size(x); i++) {
        diff_place p = nowhere(i);
        int64_t token = -1;
        if (i > 0 || !prompt_differ(a, b, &p)) /* chat: of the body */
            choice_differ(json_array_get(x, i), json_array_get(y, i), &p, &token, n);
        count_sample(&p, token, n);
        if (out->kind == DIFF_EQUAL) *out = p;
    }
}

void diff_rows(const json_t *a, const json_t *b, diff_place *out, diff_count *n)
{
    int64_t token = -1;
    *out = nowhere(0);
    if (diff_is_error(a) || diff_is_error(b)) {
        const json_t *x = diff_is_error(a) ? json_object_get(answer_of(a), "error") : NULL;
        const json_t *y = diff_is_error(b) ? json_object_get(answer_of(b), "error") : NULL;
        if (diff_is_error(a) && is_nothing(x)) x = json_object_get(a, "error");
        if (diff_is_error(b) && is_nothing(y)) y = json_object_get(b, "error");
        if (differ(x, y, NULL, false, out) || !diff_is_error(a) != !diff_is_error(b))
            out->kind = DIFF_ERROR;
        count_sample(out, -1, n);
        return;
    }
    const json_t *body_a = diff_body(a), *body_b = diff_body(b);
    if (body_a && body_b) {
        bodies(body_a, body_b, out, n);
        return;
    }
    if (is_score(a) && is_score(b)) {
        series x = series_of(NULL, a), y = series_of(NULL, b);
        series_differ(&x, &y, out, &token, n);
    } else if (differ(a, b, NULL, false, out)) {
        out->kind = DIFF_VALUE;
    }
    count_sample(out, token, n);
}

/* ---- in words ----------------------------------------------------------------------------- */

void diff_place_text(const diff_place *p, buf *out)
{
    buf_printf(out, "sample %zu", p->sample);
    if (p->kind == DIFF_PROMPT)
        buf_printf(out, ", prompt token %lld", (long long)p->token);
    else if (p->token >= 0)
        buf_printf(out, ", token %lld", (long long)p->token);
    if (p->text >= 0) buf_printf(out, ", character %lld", (long long)p->text);
    buf_printf(out, ": %s", diff_kind_name(p->kind));
    if (p->path[0]) buf_printf(out, " (%s)", p->path);
    buf_printf(out, ": A %s, B %s", p->a, p->b);
    if (!p->bits) return;
    uint32_t x = p->bit_a ^ p->bit_b;
    int top = 31;
    while (top > 0 && !(x >> top & 1)) top--;
    if (x)
        buf_printf(out, " (fp32 bits %08x and %08x, apart from bit %d down)", p->bit_a, p->bit_b,
                   top);
}

static void field(const char *name, const json_t *a, const json_t *b, buf *out, size_t *n)
{
    diff_place p = nowhere(0);
    const step s = {NULL, name, 0};
    if (!differ(a, b, &s, false, &p)) return;
    ++*n;
    buf_printf(out, "  %s: A %s, B %s\n", p.path, p.a, p.b);
}

/* One level down, so that each differing field of "config" is named. */
static void fields(const char *name, const json_t *a, const json_t *b, buf *out, size_t *n)
{
    const char *key;
    json_t *v;
    char path[160];
    if (!json_is_object(a) || !json_is_object(b)) {
        field(name, a, b, out, n);
        return;
    }
    json_object_foreach ((json_t *)(uintptr_t)a, key, v) {
        snprintf(path, sizeof path, "%.60s.%.60s", name, key);
        field(path, v, json_object_get(b, key), out, n);
    }
    json_object_foreach ((json_t *)(uintptr_t)b, key, v) {
        snprintf(path, sizeof path, "%.60s.%.60s", name, key);
        if (!json_object_get(a, key)) field(path, NULL, v, out, n);
    }
}

corun_status diff_identity(const json_t *a, const json_t *b, buf *out, size_t *n)
{
    const char *key;
    json_t *v;
    *n = 0;
    if (!json_is_object(a) || !json_is_object(b))
        FAIL(CORUN_EFORMAT, "an identity must be a JSON object");
    json_object_foreach ((json_t *)(uintptr_t)a, key, v)
        fields(key, v, json_object_get(b, key), out, n);
    json_object_foreach ((json_t *)(uintptr_t)b, key, v)
        if (!json_object_get(a, key)) fields(key, NULL, v, out, n);
    return buf_status(out);
}
