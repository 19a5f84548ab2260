/* bpe.h - byte-level BPE: text to token ids and back.
 *
 * From tokenizer.json (with tokenizer_config.json where there) or from GGUF metadata. The file is
 * obeyed, never the class name: normalizer, pre-tokenizer, ignore_merges, added tokens and
 * post-processor are read from it, and anything that we do not implement is a load error that
 * names the key. Read-only after open: any number of threads may encode and decode. */
#ifndef TEXT_BPE_H
#define TEXT_BPE_H

#include "base/digest.h"
#include "base/mem.h"
#include "files/weights.h"

typedef struct bpe bpe;

corun_status bpe_open_folder(bpe **out, const char *folder); /* tokenizer.json, ..._config.json */
corun_status bpe_open_gguf(bpe **out, const weights *w);
/* Parse apart from open. tokenizer_config may be NULL. */
corun_status bpe_parse(bpe **out, const char *json, size_t len, const char *tokenizer_config,
                       size_t config_len, const char *what);
/* One token a byte (ids 0 to 255), then <|bos|> 256, <|eos|> 257, <|user|> 258, <|assistant|> 259:
 * for the fake model. */
corun_status bpe_open_bytes(bpe **out);
void bpe_close(bpe *t);

/* NULL is a tokenizer without tokens: every id decodes to nothing, bpe_encode refuses. */
int32_t bpe_n_token(const bpe *t); /* ids with a token: 0 ... n - 1 (gaps decode to nothing) */
int32_t bpe_bos(const bpe *t);     /* -1: none */
int32_t bpe_eos(const bpe *t);
/* Value of bos_token, eos_token, pad_token, unk_token, ... or NULL (for chat templates). */
const char *bpe_special(const bpe *t, const char *name);
size_t bpe_n_special(const bpe *t);
void bpe_special_at(const bpe *t, size_t i, const char **name, const char **text);
/* The id whose content is exactly these bytes (added tokens included), -1: none. */
int32_t bpe_find(const bpe *t, const char *s, size_t len);
digest bpe_digest(const bpe *t); /* of content: vocabulary, merges, added tokens, rules */

#define BPE_ADD_SPECIAL 1u /* bos and eos as the post-processor or tokenizer_config say */
#define BPE_LITERAL     2u /* added tokens in the text are plain text */

/* A byte that the vocabulary has no token for is dropped, as the reference does, unless the file
 * names an unknown token. Of our families only SmolLM2 lacks some: 04 06 13 14 16 1D, and 15 bytes
 * that are in no assigned character. Everything else decodes to the text that was encoded, or to
 * its NFC where the file asks for that. */

/* Appends ids. text must be UTF-8 (CORUN_EFORMAT with the byte offset otherwise). max bounds the
 * number of ids (CORUN_ECAPACITY). */
typedef struct bpe_ids {
    int32_t *id;
    size_t n, cap;
} bpe_ids;
corun_status bpe_encode(const bpe *t, const char *text, size_t len, unsigned flags, size_t max,
                        bpe_ids *out);
void bpe_ids_free(bpe_ids *ids);

/* Raw bytes of one token; len 0 for ids without one. is_special as the file says. */
void bpe_token(const bpe *t, int32_t id, const char **data, size_t *len, bool *is_special);

/* Streaming decode: never emits half a character. Bytes that can be no UTF-8 become U+FFFD, one
 * for each maximal invalid part, as soon as that is certain. */
typedef struct bpe_stream {
    unsigned char held[4];
    int n_held;
} bpe_stream;
void bpe_stream_push(bpe_stream *s, const char *data, size_t len, buf *out);
void bpe_stream_end(bpe_stream *s, buf *out);

#endif
