/* args.c - owns the reading of options. Invariant: a value is taken whole or refused; nothing is
 * guessed from a prefix. */
#include "app/args.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/utf8.h"

corun_status args_size(const char *text, int64_t *out)
{
    char *end;
    errno = 0;
    double v = strtod(text, &end);
    static const char units[] = "KMGT";
    double scale = 1;
    const char *u = *end ? strchr(units, *end) : NULL;
    if (u) {
        for (ptrdiff_t i = 0; i <= u - units; i++) scale *= 1024;
        end++;
        if (*end == 'i') end++;
    }
    if (*end == 'B') end++;
    bool digit = (text[0] >= '0' && text[0] <= '9') || text[0] == '.';
    if (!digit || *end || errno || !(v * scale < 9e18) || strpbrk(text, "xXpPeEnN"))
        FAIL(CORUN_EINVAL, "%s: not a size (examples: 64M, 1.5G, 800000)", text);
    *out = (int64_t)floor(v * scale);
    return CORUN_OK;
}

static corun_status read_integer(const char *text, int64_t lo, int64_t hi, int64_t *out)
{
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (end == text || *end || errno || text[0] == ' ' || v < lo || v > hi)
        FAIL(CORUN_EINVAL, "%s: not an integer in %lld ... %lld", text, (long long)lo,
             (long long)hi);
    *out = v;
    return CORUN_OK;
}

static corun_status take(const arg_spec *s, const char *text)
{
    int64_t i = 0;
    switch (s->kind) {
    case ARG_FLAG: break;
    case ARG_UTF8:
        if (utf8_bad(text, strlen(text)) < strlen(text)) FAIL(CORUN_EINVAL, "not UTF-8");
        *(const char **)s->dest = text;
        break;
    case ARG_TEXT: *(const char **)s->dest = text; break;
    case ARG_INT:
        TRY(read_integer(text, INT32_MIN, INT32_MAX, &i));
        *(int32_t *)s->dest = (int32_t)i;
        break;
    case ARG_LONG: TRY(read_integer(text, INT64_MIN, INT64_MAX, (int64_t *)s->dest)); break;
    case ARG_REAL: {
        char *end;
        double v = strtod(text, &end);
        if (end == text || *end || !isfinite(v)) FAIL(CORUN_EINVAL, "%s: not a number", text);
        *(double *)s->dest = v;
        break;
    }
    case ARG_SIZE: TRY(args_size(text, (int64_t *)s->dest)); break;
    }
    return CORUN_OK;
}

/* The option that arg names, and the text after '=' if there is one. */
static const arg_spec *find(const arg_spec *spec, size_t n, const char *arg, const char **value)
{
    *value = NULL;
    for (size_t i = 0; i < n; i++) {
        const arg_spec *s = &spec[i];
        if (!s->name) continue;
        if (arg[1] != '-') {
            if (s->letter && arg[1] == s->letter && !arg[2]) return s;
            continue;
        }
        size_t len = strlen(s->name);
        if (strncmp(arg + 2, s->name, len) != 0) continue;
        if (arg[2 + len] == 0) return s;
        if (arg[2 + len] == '=') {
            *value = arg + 2 + len + 1;
            return s;
        }
    }
    return NULL;
}

corun_status args_parse(const arg_spec *spec, size_t n_spec, int argc, char **argv,
                        const char **pos, size_t max_pos, size_t *n_pos)
{
    *n_pos = 0;
    bool options = true;
    for (int i = 0; i < argc; i++) {
        const char *a = argv[i], *value;
        if (options && strcmp(a, "--") == 0) {
            options = false;
            continue;
        }
        if (!options || a[0] != '-' || a[1] == 0) {
            if (*n_pos == max_pos) FAIL(CORUN_EINVAL, "%s: an argument too many", a);
            pos[(*n_pos)++] = a;
            continue;
        }
        const arg_spec *s = find(spec, n_spec, a, &value);
        if (!s) FAIL(CORUN_EINVAL, "%s: unknown option", a);
        if (s->kind == ARG_FLAG) {
            if (value) FAIL(CORUN_EINVAL, "--%s takes no value", s->name);
            *(bool *)s->dest = true;
            continue;
        }
        if (!value) {
            if (i + 1 >= argc) FAIL(CORUN_EINVAL, "--%s needs a value", s->name);
            value = argv[++i];
        }
        corun_status st = take(s, value);
        if (st != CORUN_OK) return err_prefix(st, "--%s", s->name);
    }
    return CORUN_OK;
}

void args_help(const arg_spec *spec, size_t n_spec)
{
    for (size_t i = 0; i < n_spec; i++) {
        const arg_spec *s = &spec[i];
        if (!s->name) {
            printf("\n%s\n", s->help);
            continue;
        }
        char left[64], letter[8] = "    ";
        if (s->letter) snprintf(letter, sizeof letter, "-%c, ", s->letter);
        snprintf(left, sizeof left, "  %s--%s %s", letter, s->name, s->value ? s->value : "");
        printf("%-34s %s\n", left, s->help);
    }
}
