/* fuzz_bpe.c - a tokenizer.json, a tokenizer_config.json and a text in one input, with NUL bytes
 * between them: the text stands behind the last one, the config, which may be absent, behind the
 * one before (no NUL: a fixed tokenizer, and all of the input is the text). Any file loads or is
 * refused; any text is encoded or refused; what the fixed tokenizer encodes decodes to the same
 * bytes. The stream decoder gives valid UTF-8 for any bytes. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "text/bpe.h"
#include "text/unicode.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The fixed tokenizer: every byte, then a few added tokens; a pattern with look-ahead; no NFC. */
static bpe *fixed_open(void)
{
    static const char tail[] =
        "},\"merges\":[\"a b\",\"ab a\",\"\xC4\xA0 a\"]},\"added_tokens\":[{\"id\":300,\"content\":"
        "\"<s>\",\"special\":true},{\"id\":301,\"content\":\"<s>x\",\"normalized\":false}],"
        "\"decoder\":{\"type\":\"ByteLevel\"},\"pre_tokenizer\":{\"type\":\"Sequence\","
        "\"pretokenizers\":[{\"type\":\"Digits\",\"individual_digits\":true},{\"type\":"
        "\"ByteLevel\",\"add_prefix_space\":false}]}}";
    buf b;
    bpe *t = NULL;
    buf_init(&b, 1 << 20);
    buf_puts(&b, "{\"model\":{\"vocab\":{\"ab\":256,\"aba\":257,\"\xC4\xA0"
                 "a\":258");
    unsigned other = 0x100;
    for (unsigned i = 0; i < 256; i++) {
        bool plain = (i >= 33 && i <= 126) || (i >= 161 && i <= 172) || i >= 174;
        char c[4];
        int n = utf8_put(plain ? i : other++, c);
        buf_puts(&b, ",\"");
        if (i == '"' || i == '\\') buf_putc(&b, '\\');
        buf_put(&b, c, (size_t)n);
        buf_printf(&b, "\":%u", i);
    }
    buf_puts(&b, tail);
    if (bpe_parse(&t, b.data, b.len, NULL, 0, "fixed") != CORUN_OK) abort();
    buf_free(&b);
    return t;
}

static void check_text(const bpe *t, const char *s, size_t len, bool same)
{
    bpe_ids ids = {0}, again = {0};
    size_t at;
    bool valid = utf8_valid(s, len, &at);
    corun_status st = bpe_encode(t, s, len, BPE_ADD_SPECIAL, 1 << 20, &ids);
    if (!valid && st == CORUN_OK) abort();
    if (same && valid && st != CORUN_OK) abort();
    if (st == CORUN_OK) {
        if (bpe_encode(t, s, len, BPE_ADD_SPECIAL, 1 << 20, &again) != CORUN_OK) abort();
        if (ids.n != again.n || (ids.n && memcmp(ids.id, again.id, ids.n * sizeof *ids.id)))
            abort();
    }
    buf raw, text;
    buf_init(&raw, 1 << 26);
    buf_init(&text, 1 << 26);
    buf_puts(&raw, "");
    buf_puts(&text, "");
    bpe_stream stream = {0};
    for (size_t i = 0; i < ids.n; i++) {
        const char *d;
        size_t n;
        bool special;
        if (ids.id[i] < 0 || ids.id[i] >= bpe_n_token(t)) abort();
        bpe_token(t, ids.id[i], &d, &n, &special);
        buf_put(&raw, d, n);
        bpe_stream_push(&stream, d, n, &text);
        if (!utf8_valid(text.data, text.len, &at)) abort();
    }
    bpe_stream_end(&stream, &text);
    if (!utf8_valid(text.data, text.len, &at)) abort();
    if (same && valid && (raw.len != len || (len && memcmp(raw.data, s, len) != 0))) abort();
    buf_free(&text);
    buf_free(&raw);
    bpe_ids_free(&again);
    bpe_ids_free(&ids);
}

static void check_stream(const char *s, size_t len)
{
    buf a, b;
    bpe_stream x = {0}, y = {0};
    size_t at;
    buf_init(&a, 1 << 26);
    buf_init(&b, 1 << 26);
    buf_puts(&a, "");
    buf_puts(&b, "");
    bpe_stream_push(&x, s, len, &a);
    for (size_t i = 0; i < len; i++) bpe_stream_push(&y, s + i, 1, &b);
    bpe_stream_end(&x, &a);
    bpe_stream_end(&y, &b);
    if (a.len != b.len || memcmp(a.data, b.data, a.len) != 0) abort();
    if (!utf8_valid(a.data, a.len, &at)) abort();
    buf_free(&a);
    buf_free(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *s = (const char *)data;
    const char *nul = size ? memrchr(s, 0, size) : NULL;
    if (size > 1 << 16) return 0;
    if (!nul) {
        static bpe *fixed; /* made once: it takes longer than a run */
        if (!fixed) fixed = fixed_open();
        check_text(fixed, s, size, true);
        check_stream(s, size);
        return 0;
    }
    bpe *t = NULL;
    const char *end = memrchr(s, 0, (size_t)(nul - s)), *conf = end ? end + 1 : NULL;
    size_t n_conf = conf ? (size_t)(nul - conf) : 0;
    if (!end) end = nul;
    if (bpe_parse(&t, s, (size_t)(end - s), conf, n_conf, "fuzz") != CORUN_OK) return 0;
    check_text(t, nul + 1, size - (size_t)(nul + 1 - s), false);
    bpe_close(t);
    return 0;
}
