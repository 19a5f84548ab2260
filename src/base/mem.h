/* mem.h - checked sizes, allocation, and a growable byte buffer with a maximum.
 *
 * Every allocation of the project goes through here, so that a test can make the n-th one fail
 * and so that a guard can prove that a step allocates nothing. */
#ifndef BASE_MEM_H
#define BASE_MEM_H

#include "base/err.h"

/* False (and *out untouched) when the result does not fit. */
bool mem_mul(size_t a, size_t b, size_t *out);
bool mem_add(size_t a, size_t b, size_t *out);

/* n items of size bytes, zeroed. n or size 0 gives a valid pointer. NULL with the error text set
 * (what is what the memory is for) when the size overflows or memory is short. */
void *mem_alloc(size_t n, size_t size, const char *what);
void *mem_realloc(void *p, size_t n, size_t size, const char *what); /* new part not zeroed */
void *mem_aligned(size_t align, size_t bytes, const char *what);     /* zeroed; mem_free */
/* For large buffers that are read at full speed: aligned to 2 MiB, large pages asked for, contents
 * undefined; mem_free. */
void *mem_large(size_t bytes, const char *what);
char *mem_dup(const char *s, size_t len, const char *what); /* terminated copy */
void mem_free(void *p);

#define MEM_NEW(p, n) ((p) = mem_alloc((n), sizeof *(p), #p))

/* Test hooks. The n-th allocation from now on fails (0 = never). */
void mem_fail_at(uint64_t n);
uint64_t mem_count(void); /* allocations so far, of all threads */
/* While armed, an allocation of this thread aborts the process: a step must not allocate. */
void mem_guard(bool armed);

typedef struct buf {
    char *data;
    size_t len, cap, max;
    bool failed;         /* an append did not fit or memory was short: the error text is set */
    corun_status status; /* which of the two */
} buf;

void buf_init(buf *b, size_t max);
void buf_free(buf *b);
void buf_reset(buf *b); /* length 0, memory kept, failed cleared */
/* Appends do nothing once failed; check buf_status at the end. */
void buf_put(buf *b, const void *data, size_t len);
void buf_putc(buf *b, char c);
void buf_puts(buf *b, const char *s);
void buf_printf(buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
corun_status buf_status(const buf *b);

#endif
