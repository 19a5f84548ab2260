/* http.c - the server of http.h. */
#include "app/http.h"

#include <event2/event.h>

http_limits http_limits_default(void)
{
    return (http_limits){.connections = 2048,
                         .head = 32 << 10,
                         .body = 32 << 20,
                         .bodies = 256 << 20,
                         .head_s = 10,
                         .body_s = 20,
                         .body_min = 1024,
                         .idle_s = 75,
                         .unsent = 4 << 20,
                         .write_s = 30};
}

corun_status http_open(http **out, const char *address, uint16_t port, const http_limits *l,
                       const http_handler *h)
{
    (void)out, (void)l, (void)h;
    FAIL(CORUN_EINVAL, "address %s port %u: no transport in this build", address, (unsigned)port);
}
#define NONE(decl, ...)                                                                            \
    decl                                                                                           \
    {                                                                                              \
        __VA_ARGS__;                                                                               \
    }
// clang-format off
NONE(uint16_t http_port(const http *s), (void)s; return 0)
NONE(void http_drain(http *s), (void)s)
NONE(void http_close(http *s), (void)s)
NONE(http_counts http_stats(const http *s), (void)s; return (http_counts){0})
NONE(const char *http_method(const http_call *c), (void)c; return "")
NONE(const char *http_path(const http_call *c), (void)c; return "")
NONE(const char *http_query(const http_call *c, const char *name), (void)c, (void)name; return NULL)
NONE(const char *http_header(const http_call *c, const char *name), (void)c, (void)name; return NULL)
NONE(const char *http_body(const http_call *c, size_t *len), (void)c; *len = 0; return "")
NONE(void http_set_data(http_call *c, void *data), (void)c, (void)data)
NONE(void *http_data(const http_call *c), (void)c; return NULL)
NONE(bool http_is_gone(const http_call *c), (void)c; return true)
NONE(void http_body_limit(http_call *c, size_t bytes), (void)c, (void)bytes)
NONE(void http_body_reader(http_call *c, corun_status (*put)(void *, const char *, size_t), void *ctx), (void)c, (void)put, (void)ctx)
NONE(void http_reply(http_call *c, int status, const char *type, const http_field *f, size_t n_field, const char *data, size_t len), (void)c, (void)status, (void)type, (void)f, (void)n_field, (void)data, (void)len)
NONE(void http_reply_file(http_call *c, const char *type, int fd, uint64_t len), (void)c, (void)type, (void)fd, (void)len)
NONE(void http_stream_begin(http_call *c, int status, const char *type, const http_field *f, size_t n_field), (void)c, (void)status, (void)type, (void)f, (void)n_field)
NONE(bool http_stream_put(http_call *c, const char *data, size_t len), (void)c, (void)data, (void)len; return false)
NONE(void http_stream_end(http_call *c), (void)c)
// clang-format on
