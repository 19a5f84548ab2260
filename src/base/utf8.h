/* utf8.h - what counts as UTF-8 in texts that leave the program. */
#ifndef BASE_UTF8_H
#define BASE_UTF8_H

#include <stddef.h>

/* Length of the well-formed UTF-8 sequence at s (len bytes remain), or minus the number of bytes
 * of the maximal invalid part. */
static inline int utf8_part(const unsigned char *s, size_t len)
{
    unsigned char c = s[0], lo = 0x80, hi = 0xbf;
    if (c < 0x80) return 1;
    int n = c >= 0xc2 && c <= 0xdf ? 2 : (c & 0xf0) == 0xe0 ? 3 : c >= 0xf0 && c <= 0xf4 ? 4 : 0;
    if (n == 0) return -1;
    if (c == 0xe0) lo = 0xa0;
    if (c == 0xed) hi = 0x9f;
    if (c == 0xf0) lo = 0x90;
    if (c == 0xf4) hi = 0x8f;
    for (int i = 1; i < n; i++) {
        if ((size_t)i >= len || s[i] < lo || s[i] > hi) return -i;
        lo = 0x80;
        hi = 0xbf;
    }
    return n;
}

/* The first byte of s that is not part of well-formed UTF-8; len: none is. */
static inline size_t utf8_bad(const char *s, size_t len)
{
    size_t at = 0;
    while (at < len) {
        int n = utf8_part((const unsigned char *)s + at, len - at);
        if (n < 0) return at;
        at += (size_t)n;
    }
    return len;
}

#endif
