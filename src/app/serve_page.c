/* serve_page.c - the route of the page at "/". The page is one fixed text: what it shows comes from
 * the other endpoints, with the reader's key, so it needs none itself. */
#include "app/serve_page.h"

#include "app/serve.h"

static void get_page(serve *s, http_call *c)
{
    static const http_field fields[] = {
        {"Content-Security-Policy", page_policy},
        {"X-Content-Type-Options", "nosniff"},
        {"Referrer-Policy", "no-referrer"},
        {"Cache-Control", "no-cache"},
    };
    serve_count(s, c, 200);
    http_reply(c, 200, "text/html; charset=utf-8", fields, sizeof fields / sizeof *fields,
               (const char *)page_html, page_html_len);
}

const serve_route serve_page_routes[] = {
    {.method = "GET", .path = "/", .open = true, .call = get_page},
    {0},
};
