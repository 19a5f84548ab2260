/* version.h - what this program was built from, for what is kept from one run to the next. */
#ifndef BASE_VERSION_H
#define BASE_VERSION_H

/* Digest (32 hexadecimal digits) of the sources of the arithmetic, without comments and white
 * space, of the compiler and of its options. The release stands in corun_version. */
const char *version_sources(void);

#endif
