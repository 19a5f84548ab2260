/* fuzz_config.c - config.json, then a NUL byte, then generation_config.json: any bytes give an
 * error or a configuration in range, with rotary frequencies that are finite and positive. */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "files/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool held)
{
    if (!held) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data, *cut = size ? memchr(text, 0, size) : NULL;
    size_t len = cut ? (size_t)(cut - text) : size;
    static float freq[512];
    double scale;
    config c;
    if (config_parse(&c, text, len, cut ? cut + 1 : NULL, cut ? size - len - 1 : 0, "fuzz") !=
        CORUN_OK) {
        must(*err_text() != 0);
        return 0;
    }
    must(c.n_layer > 0 && c.n_embd > 0 && c.n_ff > 0 && c.n_vocab > 0 && c.n_ctx > 0);
    must(c.n_kv > 0 && c.n_head % c.n_kv == 0 && c.d_head % 2 == 0 && c.d_head <= 1024);
    must(c.eps > 0.0f && c.n_eos >= 0 && c.n_eos <= CONFIG_MAX_EOS);
    must(c.bos >= -1 && c.bos < c.n_vocab && c.pad >= -1 && c.pad < c.n_vocab);
    for (int i = 0; i < c.n_eos; i++) must(c.eos[i] >= 0 && c.eos[i] < c.n_vocab);
    must(config_rope_table(&c, NULL, freq, &scale) == CORUN_OK);
    must(isfinite(scale) && scale > 0.0);
    for (int i = 0; i < c.d_head / 2; i++) must(isfinite(freq[i]) && freq[i] >= 0.0f);
    return 0;
}
