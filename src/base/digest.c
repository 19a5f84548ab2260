/* digest.c - XXH3-128 behind our names. */
#include "base/digest.h"

#include <stdio.h>
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

#include "base/mem.h"

digest_stream *digest_open(void)
{
    XXH3_state_t *s = mem_aligned(64, sizeof *s, "digest state");
    if (s) XXH3_128bits_reset(s);
    return (digest_stream *)s;
}

void digest_reset(digest_stream *s) { XXH3_128bits_reset((XXH3_state_t *)s); }

void digest_add(digest_stream *s, const void *data, size_t len)
{
    if (len) XXH3_128bits_update((XXH3_state_t *)s, data, len);
}

digest digest_value(const digest_stream *s)
{
    XXH128_hash_t h = XXH3_128bits_digest((const XXH3_state_t *)s);
    return (digest){.hi = h.high64, .lo = h.low64};
}

void digest_close(digest_stream *s) { mem_free(s); }

digest digest_of(const void *data, size_t len)
{
    XXH128_hash_t h = XXH3_128bits(len ? data : "", len);
    return (digest){.hi = h.high64, .lo = h.low64};
}

void digest_hex(digest d, char out[33])
{
    snprintf(out, 33, "%016llx%016llx", (unsigned long long)d.hi, (unsigned long long)d.lo);
}
