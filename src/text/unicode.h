/* unicode.h - UTF-8, character classes of Unicode 16, and NFC as the reference tokenizer does it.
 *
 * The classes are those of the reference's regex engine (Unicode 16), whatever PCRE2 or libc
 * know. Its NFC is older (Unicode 9): marks and compositions that are newer are plain characters
 * to it, and so they are here; unicode_nfc_unknown lists them. The tables are made by
 * tools/gen_unicode. */
#ifndef TEXT_UNICODE_H
#define TEXT_UNICODE_H

#include "base/mem.h"

#define UNICODE_MAX      0x10FFFFu
#define UNICODE_GC_COUNT 30

typedef struct unicode_range {
    uint32_t lo, hi; /* both inside */
} unicode_range;

typedef struct unicode_script {
    const char *name;
    const unicode_range *r;
    size_t n;
} unicode_script;

extern const uint32_t unicode_gc_runs[]; /* first code point << 8 | category, ascending */
extern const size_t unicode_gc_runs_n;
extern const char unicode_gc_names[UNICODE_GC_COUNT][3];
extern const unicode_script unicode_scripts[];
extern const size_t unicode_scripts_n;
extern const unicode_range unicode_nfc_active[], unicode_nfc_unknown[];
extern const size_t unicode_nfc_active_n, unicode_nfc_unknown_n;

/* White_Space of Unicode 16: 25 code points. */
extern const unicode_range unicode_space[];
extern const size_t unicode_space_n;
/* Word characters beyond L, M, Nd, Nl and Pc: circled and squared letters. */
extern const unicode_range unicode_word_more[];
extern const size_t unicode_word_more_n;

/* The Unicode version of the library whose data the case functions and repr of templates use. */
const char *unicode_library(void);

int unicode_gc(uint32_t c); /* index into unicode_gc_names */
bool unicode_in(const unicode_range *r, size_t n, uint32_t c);
bool unicode_is_space(uint32_t c);
bool unicode_is_word(uint32_t c); /* L, M, Nd, Nl, Pc, the above, U+200C and U+200D */

/* True when the bytes are UTF-8; else *at is the offset of the first byte that is not. */
bool utf8_valid(const char *s, size_t len, size_t *at);
/* The character at s, which is valid UTF-8; *n is its length in bytes. */
uint32_t utf8_next(const char *s, int *n);
/* The character that ends just before s + at (at > 0). */
uint32_t utf8_prev(const char *s, size_t at, int *n);
int utf8_put(uint32_t c, char out[4]); /* bytes written */
#define UTF8_LEN(c) (1u + ((c) >= 0x80) + ((c) >= 0x800) + ((c) >= 0x10000))

/* NFC of valid UTF-8, appended to out. *changed false: the text is in NFC and out is untouched.
 * Linear but for a sort of each run of marks. */
corun_status unicode_nfc(const char *s, size_t len, buf *out, bool *changed);

#endif
