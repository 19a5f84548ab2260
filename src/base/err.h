/* err.h - status text of this thread, and the macros that set or forward a status.
 *
 * The text is set once, where the cause is known, and names the place (which file, tensor, line,
 * field) and the rule. Callers only forward. The text is always valid UTF-8. */
#ifndef BASE_ERR_H
#define BASE_ERR_H

#include "corun.h"

#define ERR_TEXT_MAX 1024

/* Sets the text and returns st. Bytes that are not UTF-8 are shown as \xNN. */
corun_status err_set(corun_status st, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Puts "prefix: " before the text that is set, and returns st. */
corun_status err_prefix(corun_status st, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
const char *err_text(void);

#define FAIL(st, ...) return err_set((st), __VA_ARGS__)
#define TRY(call)                                                                                  \
    do {                                                                                           \
        corun_status try_st_ = (call);                                                             \
        if (try_st_ != CORUN_OK) return try_st_;                                                   \
    } while (0)
/* In a function with `corun_status st` and a label `done:` that releases in reverse order. */
#define TRY_OR_DONE(call)                                                                          \
    do {                                                                                           \
        if ((st = (call)) != CORUN_OK) goto done;                                                  \
    } while (0)
#define FAIL_OR_DONE(code, ...)                                                                    \
    do {                                                                                           \
        st = err_set((code), __VA_ARGS__);                                                         \
        goto done;                                                                                 \
    } while (0)

#endif
