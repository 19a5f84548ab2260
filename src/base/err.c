/* err.c - owns the error text of each thread. Invariant: the text is valid UTF-8 and terminated. */
#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

static _Thread_local char text[ERR_TEXT_MAX];

const char *corun_status_name(corun_status st)
{
    static const char *const names[] = {
        "ok",          "bad argument", "out of memory", "I/O error", "bad format",
        "unsupported", "no capacity",  "device error",  "mismatch",  "internal error"};
    return (unsigned)st < sizeof names / sizeof *names ? names[st] : "unknown status";
}

const char *corun_last_error(void) { return text; }
const char *err_text(void) { return text; }

static void set_clean(const char *raw)
{
    size_t o = 0;
    for (const unsigned char *s = (const unsigned char *)raw; *s && o + 5 < sizeof text;) {
        int n = utf8_part(s, strlen((const char *)s));
        if (n < 0 || (n == 1 && *s < 0x20 && *s != '\n' && *s != '\t')) {
            o += (size_t)snprintf(text + o, sizeof text - o, "\\x%02x", *s++);
            continue;
        }
        memcpy(text + o, s, (size_t)n);
        o += (size_t)n;
        s += n;
    }
    text[o] = 0;
}

corun_status err_set(corun_status st, const char *fmt, ...)
{
    char raw[ERR_TEXT_MAX];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(raw, sizeof raw, fmt, ap);
    va_end(ap);
    set_clean(raw);
    return st;
}

corun_status err_prefix(corun_status st, const char *fmt, ...)
{
    char raw[2 * ERR_TEXT_MAX];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(raw, ERR_TEXT_MAX, fmt, ap);
    va_end(ap);
    if (n < 0 || n >= ERR_TEXT_MAX) n = (int)strlen(raw);
    snprintf(raw + n, sizeof raw - (size_t)n, ": %s", text);
    set_clean(raw);
    return st;
}
