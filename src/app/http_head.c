/* http_head.c - owns the reading of request heads and chunk frames. Invariant: nothing outside the
 * given bytes is read, and every string of a head is free of control characters. */
#include "app/http_head.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define MAX_FIELDS 200
#define MAX_QUERY  64

size_t http_head_end(const char *text, size_t len, size_t from)
{
    from = from > 3 ? from - 3 : 0;
    const char *p = len > from ? memmem(text + from, len - from, "\r\n\r\n", 4) : NULL;
    return p ? (size_t)(p - text) + 4 : 0;
}

static bool is_token(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        bool letter = (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z');
        if (!letter && (c == 0 || !strchr("!#$%&'*+-.^_`|~", c))) return false;
    }
    return n > 0;
}

static int hex(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    c |= 32;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* %XX in place; plus: '+' is a space. False: a bad escape, or a NUL. */
static bool decode(char *s, bool plus)
{
    char *to = s;
    for (; *s; s++) {
        if (*s == '%') {
            int a = hex(s[1]), b = a < 0 ? -1 : hex(s[2]);
            if (b < 0 || a * 16 + b == 0) return false;
            *to++ = (char)(a * 16 + b);
            s += 2;
        } else {
            *to++ = plus && *s == '+' ? ' ' : *s;
        }
    }
    *to = 0;
    return true;
}

/* name=value&... */
static bool read_query(http_head *h, char *q)
{
    if (!q || !*q) return true;
    size_t n = 1;
    for (const char *p = q; *p; p++) n += *p == '&';
    if (n > MAX_QUERY || !MEM_NEW(h->query, n)) return false;
    for (char *next; q; q = next) {
        next = strchr(q, '&');
        if (next) *next++ = 0;
        char *value = strchr(q, '=');
        if (value) *value++ = 0;
        h->query[h->n_query++] = (http_pair){q, value ? value : q + strlen(q)};
        if (!decode(q, true) || (value && !decode(value, true))) return false;
    }
    return true;
}

/* METHOD TARGET HTTP/1.x; line is terminated. */
static int read_line(http_head *h, char *line, const char **why)
{
    char *target = strchr(line, ' ');
    char *version = target ? strchr(target + 1, ' ') : NULL;
    *why = "the request line is malformed";
    if (!version || strchr(version + 1, ' ')) return 400;
    *target++ = 0;
    *version++ = 0;
    if (!is_token(line, strlen(line)) || strlen(line) > 32) return 400;
    for (const char *p = target; *p; p++)
        if ((unsigned char)*p <= 0x20 || *p == 0x7f || *p == '#') return 400;
    if (strncmp(version, "HTTP/", 5) != 0) return 400;
    *why = "only HTTP/1.0 and HTTP/1.1 are spoken here";
    if (strcmp(version, "HTTP/1.1") != 0 && strcmp(version, "HTTP/1.0") != 0) return 505;
    h->old = version[7] == '0';
    *why = "the request line is malformed";
    if (strncasecmp(target, "http://", 7) == 0) { /* the form that proxies use */
        char *name = target + 7;
        size_t n = strcspn(name, "/?@");
        if (n == 0 || name[n] != '/') return 400;
        h->host = memmove(target, name, n);
        target[n] = 0;
        target = name + n;
    }
    if (*target != '/') return 400;
    char *query = strchr(target, '?');
    if (query) *query++ = 0;
    if (!decode(target, false) || !read_query(h, query)) return 400;
    h->method = line;
    h->path = target;
    return 0;
}

static int read_field(http_head *h, char *line, const char **why)
{
    char *value = strchr(line, ':');
    *why = "a header line is malformed";
    if (!value || !is_token(line, (size_t)(value - line))) return 400;
    *value++ = 0;
    value += strspn(value, " \t");
    size_t n = strlen(value);
    while (n && (value[n - 1] == ' ' || value[n - 1] == '\t')) value[--n] = 0;
    for (size_t i = 0; i < n; i++)
        if (((unsigned char)value[i] < 0x20 && value[i] != '\t') || value[i] == 0x7f) return 400;
    *why = "too many header lines";
    if (h->n_field == MAX_FIELDS) return 431;
    h->field[h->n_field++] = (http_pair){line, value};
    return 0;
}

/* The one field of this name; *n: how many there are. */
static const char *only(const http_head *h, const char *name, size_t *n)
{
    const char *v = NULL;
    *n = 0;
    for (size_t i = 0; i < h->n_field; i++)
        if (strcasecmp(h->field[i].name, name) == 0) {
            v = h->field[i].value;
            ++*n;
        }
    return v;
}

/* How the body comes, and what becomes of the connection. */
static int read_frame(http_head *h, const char **why)
{
    size_t n, m;
    const char *v = only(h, "Host", &n);
    *why = "one Host header is needed";
    if (n > 1 || (n == 0 && !h->old)) return 400;
    if (!h->host) h->host = v;
    const char *te = only(h, "Transfer-Encoding", &n), *length = only(h, "Content-Length", &m);
    *why = "the length of the body is not clear";
    if (n > 1 || m > 1 || (n && (m || h->old))) return 400;
    if (n && strcasecmp(te, "chunked") != 0) {
        *why = "only the transfer coding chunked is read";
        return 501;
    }
    h->chunked = n == 1;
    if (m) {
        if (!*length || strspn(length, "0123456789") != strlen(length) || strlen(length) > 18)
            return 400;
        h->length = strtoull(length, NULL, 10);
    }
    v = only(h, "Connection", &n);
    h->close = h->old;
    for (size_t i = 0; i < h->n_field; i++)
        if (strcasecmp(h->field[i].name, "Connection") == 0 &&
            strcasestr(h->field[i].value, "close"))
            h->close = true;
    v = only(h, "Expect", &n);
    *why = "only 100-continue can be expected";
    if (v && strcasecmp(v, "100-continue") != 0) return 417;
    h->expect = v && !h->old;
    return 0;
}

int http_head_read(http_head *h, const char *text, size_t len, const char **why)
{
    *h = (http_head){0};
    *why = "no memory";
    if (memchr(text, 0, len)) {
        *why = "the head holds a NUL byte";
        return 400;
    }
    if (!(h->text = mem_dup(text, len, "head")) || !MEM_NEW(h->field, MAX_FIELDS)) return 503;
    int status = 0;
    char *p = h->text, *end = p + len - 2; /* at the empty line */
    for (int k = 0; p < end && status == 0; k++) {
        char *stop = strstr(p, "\r\n");
        *stop = 0;
        if (strchr(p, '\r') || strchr(p, '\n')) {
            *why = "a line of the head is not ended by CR LF";
            return 400;
        }
        status = k ? read_field(h, p, why) : read_line(h, p, why);
        p = stop + 2;
    }
    if (status == 0 && !h->method) {
        *why = "the request line is missing";
        return 400;
    }
    return status ? status : read_frame(h, why);
}

void http_head_free(http_head *h)
{
    mem_free(h->text);
    mem_free(h->field);
    mem_free(h->query);
    *h = (http_head){0};
}

const char *http_head_field(const http_head *h, const char *name)
{
    for (size_t i = 0; i < h->n_field; i++)
        if (strcasecmp(h->field[i].name, name) == 0) return h->field[i].value;
    return NULL;
}

/* ---- chunks ---------------------------------------------------------------------------------- */

enum { SIZE, EXTENSION, SIZE_LF, DATA, DATA_CR, DATA_LF, TRAILER, TRAILER_LF, LAST_LF };
#define MAX_LINE 4096

static int step(http_chunks *c, char b)
{
    switch (c->state) {
    case SIZE: {
        int d = hex(b);
        if (d >= 0) {
            if (++c->digits > 15) return -1;
            c->left = c->left * 16 + (uint64_t)d;
            return 0;
        }
        if (!c->digits) return -1;
        c->state = b == '\r' ? SIZE_LF : EXTENSION;
        return b == '\r' || b == ';' || b == ' ' || b == '\t' ? 0 : -1;
    }
    case EXTENSION:
        if (b == '\n' || ++c->line > MAX_LINE) return -1;
        if (b == '\r') c->state = SIZE_LF;
        return 0;
    case SIZE_LF:
        c->state = c->left ? DATA : TRAILER;
        c->line = 0;
        return b == '\n' ? 0 : -1;
    case DATA_CR: c->state = DATA_LF; return b == '\r' ? 0 : -1;
    case DATA_LF:
        c->state = SIZE;
        c->digits = 0;
        return b == '\n' ? 0 : -1;
    case TRAILER: /* at the beginning of a line, or in one */
        if (b == '\n' || c->line > MAX_LINE) return -1;
        if (b == '\r') c->state = c->digits ? TRAILER_LF : LAST_LF;
        c->digits = b != '\r';
        c->line++;
        return 0;
    case TRAILER_LF: c->state = TRAILER; return b == '\n' ? 0 : -1;
    default: return b == '\n' ? 1 : -1;
    }
}

int http_chunks_read(http_chunks *c, const char *data, size_t len, size_t *used, size_t *n)
{
    *n = 0;
    for (*used = 0; *used < len;) {
        if (c->state == DATA) {
            *n = c->left < len - *used ? (size_t)c->left : len - *used;
            *used += *n;
            c->left -= *n;
            if (c->left == 0) c->state = DATA_CR;
            return 0;
        }
        bool was = c->state == SIZE_LF;
        int r = step(c, data[(*used)++]);
        if (was && c->state == TRAILER) c->digits = 0;
        if (r) return r;
    }
    return 0;
}

const char *http_head_reason(int status)
{
    static const struct {
        int status;
        const char *text;
    } list[] = {{200, "OK"},
                {400, "Bad Request"},
                {401, "Unauthorized"},
                {403, "Forbidden"},
                {404, "Not Found"},
                {405, "Method Not Allowed"},
                {408, "Request Timeout"},
                {409, "Conflict"},
                {413, "Content Too Large"},
                {417, "Expectation Failed"},
                {429, "Too Many Requests"},
                {431, "Request Header Fields Too Large"},
                {500, "Internal Server Error"},
                {501, "Not Implemented"},
                {503, "Service Unavailable"},
                {507, "Insufficient Storage"},
                {505, "HTTP Version Not Supported"}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        if (list[i].status == status) return list[i].text;
    return "Status";
}
