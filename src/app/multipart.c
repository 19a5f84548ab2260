/* multipart.c - owns the reading of form uploads. Invariant: what the handler is given does not
 * depend on where the bytes were cut into pieces. */
#include "app/multipart.h"

#include <string.h>
#include <strings.h>

/* What the next byte belongs to. */
typedef enum where {
    PREAMBLE, /* before the first boundary */
    TAIL,     /* behind a boundary: "--", or blanks and the end of its line */
    DASH,     /* behind the first dash of that "--" */
    TAIL_LF,
    HEADER,
    DATA,
    EPILOGUE
} where;

struct multipart {
    multipart_handler h;
    where at;
    char delim[MULTIPART_MAX_BOUNDARY + 5]; /* CR LF - - boundary */
    size_t n_delim, matched;
    char header[MULTIPART_MAX_HEADER + 1];
    size_t n_header, line; /* where the header's line begins */
    unsigned parts;
    bool in_part; /* the handler was told of a part that has not ended */
    uint64_t byte;
};

#define BAD(m, ...) FAIL(CORUN_EFORMAT, "multipart body: byte %llu: " __VA_ARGS__)
#define AT(m)       ((unsigned long long)(m)->byte)

static bool is_token(char c) { return c > ' ' && c < 127 && !strchr("()<>@,;:\\\"/[]?=", c); }

static const char *skip_blanks(const char *p) { return p + strspn(p, " \t"); }

/* One `; name=value` of a header's value. *p moves behind it. value needs room for the rest of the
 * text. False: none is left, or what is left is none. */
static bool next_param(const char **p, char *name, size_t cap, char *value)
{
    const char *s = skip_blanks(*p);
    size_t n = 0;
    if (*s != ';') return false;
    s = skip_blanks(s + 1);
    while (is_token(*s) && n + 1 < cap) name[n++] = *s++;
    name[n] = 0;
    s = skip_blanks(s);
    if (!n || *s != '=') return false;
    s = skip_blanks(s + 1);
    n = 0;
    if (*s == '"') {
        for (s++; *s && *s != '"'; s++) {
            if (s[0] == '\\' && (s[1] == '"' || s[1] == '\\')) s++;
            value[n++] = *s;
        }
        if (*s++ != '"') return false;
    } else {
        while (is_token(*s) || (unsigned char)*s >= 128) value[n++] = *s++;
        if (!n) return false;
    }
    value[n] = 0;
    *p = s;
    return true;
}

/* The value begins with this word, which a blank, a semicolon or the end follows. */
static bool begins(const char **p, const char *word)
{
    size_t n = strlen(word);
    if (strncasecmp(*p, word, n) != 0 || !strchr("; \t", (*p)[n])) return false;
    *p += n;
    return true;
}

static corun_status read_boundary(multipart *m, const char *type)
{
    char name[64], value[512];
    const char *p = skip_blanks(type ? type : "");
    if (!begins(&p, "multipart/form-data"))
        FAIL(CORUN_EFORMAT, "Content-Type: must be multipart/form-data with a boundary");
    if (strlen(p) < sizeof value) {
        while (next_param(&p, name, sizeof name, value)) {
            size_t n = strlen(value);
            if (strcasecmp(name, "boundary") != 0) continue;
            if (n < 1 || n > MULTIPART_MAX_BOUNDARY) break;
            for (size_t i = 0; i < n; i++)
                if (value[i] < ' ' || value[i] > '~') n = 0;
            if (!n || value[n - 1] == ' ') break;
            memcpy(m->delim, "\r\n--", 4);
            memcpy(m->delim + 4, value, n);
            m->n_delim = n + 4;
            return CORUN_OK;
        }
    }
    FAIL(CORUN_EFORMAT, "Content-Type: multipart/form-data needs a boundary of 1 to %u characters",
         MULTIPART_MAX_BOUNDARY);
}

corun_status multipart_open(multipart **out, const char *content_type, const multipart_handler *h)
{
    multipart *m;
    if (!MEM_NEW(m, 1)) return CORUN_ENOMEM;
    m->h = *h;
    m->matched = 2; /* the first boundary need not follow a line */
    corun_status st = read_boundary(m, content_type);
    if (st == CORUN_OK)
        *out = m;
    else
        mem_free(m);
    return st;
}

void multipart_close(multipart *m) { mem_free(m); }

/* ---- the header of a part ------------------------------------------------------------------- */

/* What a part's header says. The arrays are as long as the whole header. */
typedef struct found {
    char name[MULTIPART_MAX_HEADER + 1], filename[MULTIPART_MAX_HEADER + 1];
    char value[MULTIPART_MAX_HEADER + 1];
    bool has_name, has_filename;
} found;

static corun_status read_disposition(multipart *m, found *f, const char *p)
{
    char name[64];
    if (f->has_name) BAD(m, "a part with two Content-Disposition lines", AT(m));
    if (!begins(&p, "form-data")) BAD(m, "Content-Disposition: must be form-data", AT(m));
    while (next_param(&p, name, sizeof name, f->value)) {
        bool is_name = strcasecmp(name, "name") == 0, is_file = strcasecmp(name, "filename") == 0;
        if ((is_name && f->has_name) || (is_file && f->has_filename))
            BAD(m, "Content-Disposition: two values of one name", AT(m));
        if (is_name || is_file) strcpy(is_name ? f->name : f->filename, f->value);
        f->has_name = f->has_name || is_name;
        f->has_filename = f->has_filename || is_file;
    }
    if (*skip_blanks(p)) BAD(m, "Content-Disposition: cannot be read", AT(m));
    if (!f->has_name) BAD(m, "Content-Disposition: has no name", AT(m));
    return CORUN_OK;
}

static corun_status read_line(multipart *m, found *f, const char *line)
{
    const char *colon = strchr(line, ':');
    if (!colon || colon == line) BAD(m, "a part's header line without a name", AT(m));
    size_t n = (size_t)(colon - line);
    const char *value = skip_blanks(colon + 1);
    if (n == 19 && strncasecmp(line, "Content-Disposition", n) == 0)
        return read_disposition(m, f, value);
    if (n == 25 && strncasecmp(line, "Content-Transfer-Encoding", n) == 0 &&
        strcasecmp(value, "binary") != 0 && strcasecmp(value, "8bit") != 0 &&
        strcasecmp(value, "7bit") != 0)
        BAD(m, "Content-Transfer-Encoding: only binary is read", AT(m));
    if (n == 12 && strncasecmp(line, "Content-Type", n) == 0 &&
        strncasecmp(value, "multipart/", 10) == 0)
        BAD(m, "a part that is multipart itself", AT(m));
    return CORUN_OK;
}

static corun_status begin_part(multipart *m)
{
    found *f;
    corun_status st = CORUN_OK;
    if (!MEM_NEW(f, 1)) return CORUN_ENOMEM;
    for (size_t at = 0; st == CORUN_OK && at < m->n_header; at += strlen(m->header + at) + 1)
        st = read_line(m, f, m->header + at);
    if (st == CORUN_OK && !f->has_name)
        st = err_set(CORUN_EFORMAT, "multipart body: byte %llu: a part without Content-Disposition",
                     AT(m));
    if (st == CORUN_OK) st = m->h.part(m->h.ctx, f->name, f->has_filename ? f->filename : NULL);
    mem_free(f);
    TRY(st);
    m->in_part = true;
    m->at = DATA;
    m->matched = 0;
    return CORUN_OK;
}

/* A byte of the header. Lines are kept with a NUL each. */
static corun_status header_byte(multipart *m, char c)
{
    if (!c) BAD(m, "NUL in a part's header", AT(m));
    bool cr = m->n_header > m->line && m->header[m->n_header - 1] == '\r';
    if (cr != (c == '\n')) BAD(m, "a part's header lines must end with CR LF", AT(m));
    if (!cr) {
        if (m->n_header == MULTIPART_MAX_HEADER)
            BAD(m, "a part's header is longer than %zu bytes", AT(m), MULTIPART_MAX_HEADER);
        m->header[m->n_header++] = c;
        return CORUN_OK;
    }
    m->header[m->n_header - 1] = 0;
    if (m->n_header - 1 > m->line) {
        m->line = m->n_header;
        return CORUN_OK;
    }
    m->n_header--;
    return begin_part(m);
}

/* ---- boundaries ------------------------------------------------------------------------------ */

static corun_status give(multipart *m, const char *data, size_t len)
{
    return m->at == DATA && len ? m->h.data(m->h.ctx, data, len) : CORUN_OK;
}

static corun_status boundary(multipart *m)
{
    m->matched = 0;
    m->at = TAIL;
    if (!m->in_part) return CORUN_OK;
    m->in_part = false;
    return m->h.end(m->h.ctx);
}

/* Bytes of a part, or before the first one, up to its boundary or the end of the piece. A boundary
 * holds a CR in front only, so after a mismatch no byte but the new one can begin another. */
static corun_status scan(multipart *m, const char *data, size_t len, size_t *used)
{
    size_t i = 0, held = m->matched; /* the beginning of a boundary in earlier pieces */
    while (i < len && m->matched < m->n_delim) {
        if (m->matched == 0) {
            const char *cr = memchr(data + i, '\r', len - i);
            i = cr ? (size_t)(cr - data) + 1 : len;
            m->matched = cr != NULL;
        } else if (data[i] == m->delim[m->matched]) {
            i++;
            m->matched++;
        } else {
            TRY(give(m, m->delim, held));
            held = 0;
            m->matched = 0;
        }
    }
    *used = i;
    if (!held) TRY(give(m, data, i - m->matched));
    m->byte += i;
    return m->matched == m->n_delim ? boundary(m) : CORUN_OK;
}

/* A byte behind a boundary. */
static corun_status tail_byte(multipart *m, char c)
{
    if (m->at == TAIL && c == '-' && !m->matched) {
        m->at = DASH;
    } else if (m->at == DASH && c == '-') {
        m->at = EPILOGUE;
    } else if (m->at == TAIL && (c == ' ' || c == '\t') && m->matched < 64) {
        m->matched++; /* blanks */
    } else if (m->at == TAIL && c == '\r') {
        m->at = TAIL_LF;
    } else if (m->at == TAIL_LF && c == '\n') {
        if (++m->parts > MULTIPART_MAX_PARTS)
            BAD(m, "more than %u parts", AT(m), MULTIPART_MAX_PARTS);
        m->at = HEADER;
        m->n_header = m->line = 0;
    } else {
        BAD(m, "a boundary must end its line", AT(m));
    }
    return CORUN_OK;
}

corun_status multipart_put(multipart *m, const char *data, size_t len)
{
    while (len && m->at != EPILOGUE) {
        size_t used = 1;
        if (m->at == PREAMBLE || m->at == DATA) {
            TRY(scan(m, data, len, &used));
        } else {
            TRY(m->at == HEADER ? header_byte(m, *data) : tail_byte(m, *data));
            m->byte++;
        }
        data += used;
        len -= used;
    }
    return CORUN_OK;
}

corun_status multipart_end(const multipart *m)
{
    if (m->at != EPILOGUE) BAD(m, "it ends before its last boundary", AT(m));
    return CORUN_OK;
}
