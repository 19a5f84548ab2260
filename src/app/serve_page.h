/* serve_page.h - the page at "/", as cmake/page.cmake makes it of page.html. */
#ifndef APP_SERVE_PAGE_H
#define APP_SERVE_PAGE_H

#include <stddef.h>

extern const unsigned char page_html[];
extern const size_t page_html_len;
extern const char page_policy[]; /* its Content-Security-Policy */

#endif
