/* charset.h - sets of code points as sorted ranges, with the algebra that a regular expression's
 * character class needs. */
#ifndef TEXT_CHARSET_H
#define TEXT_CHARSET_H

#include "text/unicode.h"

typedef struct charset {
    unicode_range *r; /* sorted, disjoint and not adjacent, except between charset_add calls */
    size_t n, cap;
} charset;

void charset_free(charset *s);
corun_status charset_add(charset *s, uint32_t lo, uint32_t hi); /* then charset_settle */
corun_status charset_add_ranges(charset *s, const unicode_range *r, size_t n);
void charset_settle(charset *s);
corun_status charset_union(charset *s, const charset *o);
corun_status charset_intersect(charset *s, const charset *o);
corun_status charset_invert(charset *s);
bool charset_equal(const charset *a, const charset *b);
/* Adds what a name of \p{...} stands for: a general category (short or long name, or its first
 * letter) or one of our scripts. Case, space, '-' and '_' do not matter. *known false: no such
 * name. */
corun_status charset_add_property(charset *s, const char *name, size_t len, bool *known);
/* \w as the reference's engine has it: outside of [...] six numbers of Latin-1 are in, and other
 * numbers of category No are not. */
corun_status charset_add_word(charset *s, bool in_class);
corun_status charset_add_gc(charset *s, const char *prefix);

#endif
