/* facts.c - owns the comparison of runs. Invariant: two objects have no difference exactly when a
 * run on the one may go on with what the other has begun. */
#include "app/facts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct differ {
    buf *text;
    const char *was, *is;
    unsigned n;
} differ;

enum { SHOWN = 8, VALUE = 90, LEVELS = 8 };

corun_status facts_set(json_t *o, const char *key, json_t *v)
{
    if (!o || json_object_set_new(o, key, v) != 0)
        FAIL(CORUN_ENOMEM, "no memory for what runs have in common");
    return CORUN_OK;
}

corun_status facts_of_engine(json_t *o, const cmd_session *s)
{
    const char *version = corun_version();
    corun_stats stats;
    char hex[33], text[16384];
    size_t n;
    json_t *numeric;
    TRY(facts_set(o, "release", json_stringn(version, strcspn(version, " "))));
    TRY(corun_identity(s->engine, hex, text, sizeof text, &n));
    TRY(json_read(&numeric, text, n, "identity"));
    corun_status st = facts_set(o, "identity", json_string(hex));
    if (st != CORUN_OK) json_decref(numeric);
    TRY(st);
    TRY(facts_set(o, "numeric", numeric));
    TRY(corun_engine_stats(s->engine, &stats));
    return facts_set(o, "pool_pages", json_integer((json_int_t)stats.pages));
}

static void put_value(buf *b, const json_t *v)
{
    char *text = v ? json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    if (!v)
        buf_puts(b, "nothing");
    else if (!text)
        buf_puts(b, "?");
    else
        buf_printf(b, "%.*s%s", VALUE, text, strlen(text) > VALUE ? "..." : "");
    free(text);
}

static void compare(differ *d, const char *name, const json_t *was, const json_t *is, int level)
{
    if (json_equal(was, is)) return;
    if (json_is_object(was) && json_is_object(is) && level < LEVELS) {
        const char *key;
        json_t *v;
        char deeper[128];
        json_object_foreach ((json_t *)(uintptr_t)is, key, v) {
            snprintf(deeper, sizeof deeper, "%s%s%s", name, *name ? "." : "", key);
            compare(d, deeper, json_object_get(was, key), v, level + 1);
        }
        json_object_foreach ((json_t *)(uintptr_t)was, key, v) {
            if (level == 0 || json_object_get(is, key)) continue; /* level 0: not asked for yet */
            snprintf(deeper, sizeof deeper, "%s.%s", name, key);
            compare(d, deeper, v, NULL, level + 1);
        }
        return;
    }
    if (d->n++ >= SHOWN) return;
    buf_printf(d->text, "\n  %s: %s ", name, d->was);
    put_value(d->text, was);
    buf_printf(d->text, ", %s ", d->is);
    put_value(d->text, is);
}

corun_status facts_compare(const json_t *was, const json_t *is, const char *was_name,
                           const char *is_name, buf *text, unsigned *n)
{
    differ d = {.text = text, .was = was_name, .is = is_name};
    compare(&d, "", was, is, 0);
    if (d.n > SHOWN) buf_puts(text, "\n  and more");
    *n = d.n;
    return buf_status(text);
}
