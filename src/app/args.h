/* args.h - options of the command line as a table: parsing, sizes with units, help texts. */
#ifndef APP_ARGS_H
#define APP_ARGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "corun.h"

typedef enum arg_kind {
    ARG_FLAG, /* bool */
    ARG_TEXT, /* const char *: points into argv */
    ARG_UTF8, /* the same, for what requests and rows hold: UTF-8 */
    ARG_INT,  /* int32_t */
    ARG_LONG, /* int64_t */
    ARG_REAL, /* double */
    ARG_SIZE  /* int64_t bytes: 64M, 1.5G, 512KiB; units are powers of 1,024 */
} arg_kind;

typedef struct arg_spec {
    const char *name; /* without the dashes; NULL: a heading of the help text */
    char letter;      /* 0: none */
    arg_kind kind;
    void *dest;
    const char *value; /* what the help text calls the value */
    const char *help;
} arg_spec;

/* Reads argv[0 ... argc - 1] (no program name). Options may come as --name value, --name=value,
 * -x value; "--" ends them; "-" is a positional. CORUN_EINVAL names the option and the rule. */
corun_status args_parse(const arg_spec *spec, size_t n_spec, int argc, char **argv,
                        const char **pos, size_t max_pos, size_t *n_pos);
void args_help(const arg_spec *spec, size_t n_spec); /* to standard output */
corun_status args_size(const char *text, int64_t *out);

#endif
