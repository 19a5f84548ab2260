/* pattern.h - the regular expression of a pre-tokenizer step.
 *
 * A pattern sees characters only through the sets that it names, so every character is replaced
 * by the number of its class (the characters that are in the same sets) and PCRE2 runs on one
 * byte a character, in byte mode, with each set written as bytes. All knowledge of Unicode is in
 * our own tables: PCRE2 has none to disagree with, and no UTF-8 to check.
 *
 * The syntax is that of the reference's engine (Oniguruma): what means something else there than
 * in PCRE2 is translated or refused, and the error names the place. Refused: back references,
 * named groups, \b under (?i) and the like; (?i) is known for ASCII letters only. */
#ifndef TEXT_PATTERN_H
#define TEXT_PATTERN_H

#include "base/mem.h"

typedef struct pattern pattern;

/* literal: re is the text itself, not an expression. what names it in errors. */
corun_status pattern_parse(pattern **out, const char *re, size_t len, bool literal,
                           const char *what);
void pattern_free(pattern *p);

/* cls[i] = class of c[i]. */
void pattern_classes(const pattern *p, const uint32_t *c, size_t n, uint8_t *cls);

typedef enum pattern_behavior {
    PATTERN_ISOLATED, /* every match and every gap is a piece */
    PATTERN_REMOVED,  /* matches disappear */
    PATTERN_MERGED_WITH_PREVIOUS,
    PATTERN_MERGED_WITH_NEXT,
    PATTERN_CONTIGUOUS /* adjacent matches are one piece */
} pattern_behavior;

/* Pieces [begin, end) of a text, counted in characters; ascending, never empty. */
typedef struct pattern_piece {
    uint32_t begin, end;
} pattern_piece;

typedef struct pattern_pieces {
    pattern_piece *at;
    size_t n, cap;
} pattern_pieces;

corun_status pattern_pieces_add(pattern_pieces *p, uint32_t begin, uint32_t end);

/* What one thread needs to run patterns. */
typedef struct pattern_scan pattern_scan;
corun_status pattern_scan_open(pattern_scan **out);
void pattern_scan_close(pattern_scan *s);

/* Splits one piece by itself (look-around does not see its neighbours) and appends. */
corun_status pattern_split(const pattern *p, pattern_scan *scan, const uint8_t *cls,
                           pattern_piece in, pattern_behavior behavior, bool invert,
                           pattern_pieces *out);

#endif
