/* digest.h - one streaming digest (XXH3, 128 bits) for weights, pages, files and identities.
 * Against accidents, not against attack: a prefix hit also compares the token ids. */
#ifndef BASE_DIGEST_H
#define BASE_DIGEST_H

#include <stddef.h>
#include <stdint.h>

typedef struct digest {
    uint64_t hi, lo; /* canonical XXH3-128 value */
} digest;

typedef struct digest_stream digest_stream;

digest_stream *digest_open(void); /* NULL: no memory, text set */
void digest_add(digest_stream *s, const void *data, size_t len);
void digest_reset(digest_stream *s);         /* as just opened */
digest digest_value(const digest_stream *s); /* may be called in the middle */
void digest_close(digest_stream *s);

digest digest_of(const void *data, size_t len);
void digest_hex(digest d, char out[33]);

#endif
