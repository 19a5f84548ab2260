/* unicode.c - UTF-8 and NFC. Invariant: a string that utf8_valid refused never gets further. */
#include "text/unicode.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

const unicode_range unicode_space[] = {
    {0x9, 0xD},       {0x20, 0x20},     {0x85, 0x85},     {0xA0, 0xA0},     {0x1680, 0x1680},
    {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000},
};
const size_t unicode_space_n = sizeof unicode_space / sizeof *unicode_space;

const unicode_range unicode_word_more[] = {
    {0x24B6, 0x24E9}, {0x1F130, 0x1F149}, {0x1F150, 0x1F169}, {0x1F170, 0x1F189}};
const size_t unicode_word_more_n = sizeof unicode_word_more / sizeof *unicode_word_more;

const char *unicode_library(void) { return utf8proc_unicode_version(); }

int unicode_gc(uint32_t c)
{
    size_t lo = 0, hi = unicode_gc_runs_n;
    while (hi - lo > 1) {
        size_t mid = (lo + hi) / 2;
        if (unicode_gc_runs[mid] >> 8 <= c)
            lo = mid;
        else
            hi = mid;
    }
    return (int)(unicode_gc_runs[lo] & 0xFF);
}

bool unicode_in(const unicode_range *r, size_t n, uint32_t c)
{
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (r[mid].hi < c)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < n && r[lo].lo <= c;
}

bool unicode_is_space(uint32_t c)
{
    if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13);
    return unicode_in(unicode_space, unicode_space_n, c);
}

bool unicode_is_word(uint32_t c)
{
    const char *g = unicode_gc_names[unicode_gc(c)];
    if (g[0] == 'L' || g[0] == 'M') return true;
    if (!strcmp(g, "Nd") || !strcmp(g, "Nl") || !strcmp(g, "Pc")) return true;
    return c == 0x200C || c == 0x200D || unicode_in(unicode_word_more, unicode_word_more_n, c);
}

/* Length of the well-formed sequence at s (len > 0 bytes are there), 0: none. */
static int utf8_seq(const unsigned char *s, size_t len)
{
    unsigned c = s[0];
    if (c < 0x80) return 1;
    int n = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : 2;
    if (c < 0xC2 || c > 0xF4 || len < (size_t)n) return 0;
    unsigned lo = c == 0xE0 ? 0xA0 : c == 0xF0 ? 0x90 : 0x80;
    unsigned hi = c == 0xED ? 0x9F : c == 0xF4 ? 0x8F : 0xBF;
    if (s[1] < lo || s[1] > hi) return 0;
    for (int i = 2; i < n; i++)
        if ((s[i] & 0xC0) != 0x80) return 0;
    return n;
}

bool utf8_valid(const char *s, size_t len, size_t *at)
{
    const unsigned char *p = (const unsigned char *)s;
    size_t i = 0;
    while (i < len) {
        uint64_t eight;
        if (len - i >= 8 && (memcpy(&eight, p + i, 8), !(eight & 0x8080808080808080u))) {
            i += 8;
            continue;
        }
        int n = utf8_seq(p + i, len - i);
        if (!n) {
            *at = i;
            return false;
        }
        i += (size_t)n;
    }
    return true;
}

uint32_t utf8_next(const char *s, int *n)
{
    const unsigned char *p = (const unsigned char *)s;
    uint32_t c = p[0];
    if (c < 0x80) {
        *n = 1;
        return c;
    }
    if (c < 0xE0) {
        *n = 2;
        return (c & 0x1F) << 6 | (p[1] & 0x3Fu);
    }
    if (c < 0xF0) {
        *n = 3;
        return (c & 0x0F) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu);
    }
    *n = 4;
    return (c & 0x07) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3Fu);
}

uint32_t utf8_prev(const char *s, size_t at, int *n)
{
    size_t i = at - 1;
    while (i > 0 && ((unsigned char)s[i] & 0xC0) == 0x80) i--;
    return utf8_next(s + i, n);
}

int utf8_put(uint32_t c, char out[4])
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xC0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3F));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xE0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 0x3F));
        out[2] = (char)(0x80 | (c & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 0x3F));
    out[2] = (char)(0x80 | (c >> 6 & 0x3F));
    out[3] = (char)(0x80 | (c & 0x3F));
    return 4;
}

/* ---- NFC ------------------------------------------------------------------------------------ */

static bool nfc_is_active(uint32_t c)
{
    return c >= 0x300 && unicode_in(unicode_nfc_active, unicode_nfc_active_n, c);
}

static int nfc_class(uint32_t c)
{
    return (int)utf8proc_get_property((utf8proc_int32_t)c)->combining_class;
}

/* A character that has no part in the reference's NFC, whatever newer tables say. */
static bool nfc_is_inert(uint32_t c)
{
    if (c < 0x300) return false;
    if (unicode_in(unicode_nfc_unknown, unicode_nfc_unknown_n, c)) return true;
    return nfc_class(c) && !nfc_is_active(c);
}

static bool nfc_needed(const char *s, size_t len)
{
    for (size_t i = 0; i < len;) {
        if ((unsigned char)s[i] < 0xCC) { /* below U+0300 */
            i++;
            continue;
        }
        int n;
        if (nfc_is_active(utf8_next(s + i, &n))) return true;
        i += (size_t)n;
    }
    return false;
}

typedef struct nfc_mark {
    uint32_t at;
    int32_t c, ccc;
} nfc_mark;

static int nfc_mark_order(const void *pa, const void *pb)
{
    const nfc_mark *a = pa, *b = pb;
    if (a->ccc != b->ccc) return a->ccc < b->ccc ? -1 : 1;
    return a->at < b->at ? -1 : a->at > b->at;
}

/* Puts each run of marks of c[n] in canonical order. m has room for the longest run. */
static void nfc_reorder(int32_t *c, size_t n, nfc_mark *m)
{
    for (size_t i = 0; i < n;) {
        size_t k = 0;
        bool sorted = true;
        for (; i + k < n; k++) {
            int ccc = nfc_class((uint32_t)c[i + k]);
            if (!ccc) break;
            m[k] = (nfc_mark){.at = (uint32_t)k, .c = c[i + k], .ccc = ccc};
            sorted = sorted && (k == 0 || m[k - 1].ccc <= ccc);
        }
        if (!sorted) {
            qsort(m, k, sizeof *m, nfc_mark_order);
            for (size_t j = 0; j < k; j++) c[i + j] = m[j].c;
        }
        i += k ? k : 1;
    }
}

/* NFC of in[n], a text without inert characters. c and m have room for cap items. */
static corun_status nfc_segment(const uint32_t *in, size_t n, int32_t *c, size_t cap, nfc_mark *m,
                                buf *out)
{
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        int bound = 0;
        utf8proc_ssize_t r =
            utf8proc_decompose_char((utf8proc_int32_t)in[i], c + k, (utf8proc_ssize_t)(cap - k),
                                    UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, &bound);
        if (r < 0 || (size_t)r > cap - k)
            FAIL(CORUN_EINTERNAL, "NFC: U+%04X does not decompose", in[i]);
        k += (size_t)r;
    }
    nfc_reorder(c, k, m);
    utf8proc_ssize_t r =
        utf8proc_normalize_utf32(c, (utf8proc_ssize_t)k, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    if (r < 0) FAIL(CORUN_EINTERNAL, "NFC: %s", utf8proc_errmsg(r));
    for (utf8proc_ssize_t i = 0; i < r; i++) {
        char b[4];
        buf_put(out, b, (size_t)utf8_put((uint32_t)c[i], b));
    }
    return buf_status(out);
}

corun_status unicode_nfc(const char *s, size_t len, buf *out, bool *changed)
{
    *changed = nfc_needed(s, len);
    if (!*changed) return CORUN_OK;
    corun_status st = CORUN_OK;
    /* A canonical decomposition has at most four characters. */
    size_t cap, n = 0;
    uint32_t *in = NULL;
    int32_t *c = NULL;
    nfc_mark *m = NULL;
    if (!mem_mul(len, 4, &cap)) FAIL(CORUN_ENOMEM, "NFC: text of %zu bytes", len);
    if (!MEM_NEW(in, len) || !MEM_NEW(c, cap) || !MEM_NEW(m, cap)) {
        st = CORUN_ENOMEM;
        goto done;
    }
    for (size_t i = 0; i <= len;) {
        int step = 1;
        uint32_t u = i < len ? utf8_next(s + i, &step) : 0;
        bool inert = i < len && nfc_is_inert(u);
        if (i == len || inert) {
            TRY_OR_DONE(nfc_segment(in, n, c, cap, m, out));
            n = 0;
            if (inert) buf_put(out, s + i, (size_t)step);
        } else {
            in[n++] = u;
        }
        i += (size_t)step;
    }
    st = buf_status(out);
done:
    mem_free(m);
    mem_free(c);
    mem_free(in);
    return st;
}
