/* pattern_int.h - between the two halves of a pattern: translation and execution. */
#ifndef TEXT_PATTERN_INT_H
#define TEXT_PATTERN_INT_H

#include "text/charset.h"
#include "text/pattern.h"

/* text is a PCRE2 pattern in which PATTERN_MARK and two bytes (high, low) stand for "one character
 * of set[high * 256 + low]"; all else is ASCII without control characters. */
#define PATTERN_MARK '\x01'

typedef struct pattern_src {
    charset *set;
    size_t n, cap;
    buf text;
} pattern_src;

corun_status pattern_translate(pattern_src *out, const char *re, size_t len, bool literal,
                               const char *what);
void pattern_src_free(pattern_src *s); /* also after a failure */

#endif
