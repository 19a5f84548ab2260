/* pieces.c - owns the header of a piece. Invariant: what is read was written by piece_write, or is
 * refused. */
#include "app/pieces.h"

#include <stdio.h>
#include <string.h>

#include "base/json.h"

enum { HEX = 32 };

void piece_write(buf *out, const piece *p, const buf *taken)
{
    jw w;
    jw_init(&w, out);
    jw_open(&w, '{');
    jw_field_uint(&w, "piece", p->index);
    jw_field_uint(&w, "line", p->line);
    jw_field_uint(&w, "rows", p->rows);
    jw_field_uint(&w, "bytes", p->bytes);
    jw_key(&w, "taken");
    jw_open(&w, '[');
    for (size_t i = 0; i < taken->len; i += HEX) jw_str(&w, taken->data + i, HEX);
    jw_close(&w, ']');
    jw_close(&w, '}');
    buf_putc(out, '\n');
}

static corun_status number(const json_t *o, const char *key, uint64_t lo, uint64_t hi, uint64_t no,
                           uint64_t *out)
{
    int64_t v;
    if (!json_is_whole(json_object_get(o, key), &v) || v < 0 || (uint64_t)v < lo ||
        (uint64_t)v > hi)
        FAIL(CORUN_EFORMAT, "line %llu: header of a piece: \"%s\" is missing or out of range",
             (unsigned long long)no, key);
    *out = (uint64_t)v;
    return CORUN_OK;
}

static corun_status read_taken(seen *taken, const json_t *list, uint64_t no)
{
    if (!json_is_array(list))
        FAIL(CORUN_EFORMAT, "line %llu: header of a piece: \"taken\" is no list",
             (unsigned long long)no);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        const char *s = json_is_string(v) ? json_string_value(v) : "";
        unsigned long long hi, lo;
        bool twice;
        if (strspn(s, "0123456789abcdef") != HEX || json_string_length(v) != HEX ||
            sscanf(s, "%16llx%16llx", &hi, &lo) != 2)
            FAIL(CORUN_EFORMAT, "line %llu: header of a piece: taken[%zu] is no digest",
                 (unsigned long long)no, i);
        TRY(seen_put(taken, (digest){.hi = hi, .lo = lo}, &twice));
    }
    return CORUN_OK;
}

corun_status piece_read(piece *out, seen *taken, const char *text, size_t len, uint64_t no)
{
    char what[48];
    json_t *o;
    snprintf(what, sizeof what, "line %llu: header of a piece", (unsigned long long)no);
    seen_free(taken);
    TRY(json_read(&o, text, len, what));
    corun_status st = number(o, "piece", 0, INT64_MAX, no, &out->index);
    if (st == CORUN_OK) st = number(o, "line", 1, INT64_MAX, no, &out->line);
    if (st == CORUN_OK) st = number(o, "rows", 1, PIECE_MAX_ROWS, no, &out->rows);
    if (st == CORUN_OK) st = number(o, "bytes", 1, INT64_MAX, no, &out->bytes);
    if (st == CORUN_OK) st = read_taken(taken, json_object_get(o, "taken"), no);
    json_decref(o);
    return st;
}
