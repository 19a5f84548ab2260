/* bpe_int.h - the tokenizer's tables, between the files that build, load and run them. */
#ifndef TEXT_BPE_INT_H
#define TEXT_BPE_INT_H

#include "text/bpe.h"
#include "text/pattern.h"
#include "text/unicode.h"

#define BPE_MAX_ID   (1 << 22) /* ids are below this */
#define BPE_MAX_STEP 16

/* bpe_tok.flags */
#define BPE_TOK_VOCAB   1u /* in the model's vocabulary */
#define BPE_TOK_MAPPED  2u /* and written in the byte alphabet: merges and pieces may reach it */
#define BPE_TOK_ADDED   4u
#define BPE_TOK_SPECIAL 8u
#define BPE_TOK_INDEX   8 /* of an added token: flags >> 8 is its place in bpe.added */

typedef struct bpe_tok {
    uint32_t off, len; /* raw bytes, in the arena */
    uint32_t flags;    /* 0: no token has this id */
} bpe_tok;

typedef struct bpe_pair {
    uint64_t key; /* left id << 32 | right id; BPE_NO_PAIR: free */
    uint32_t rank;
    int32_t id; /* of the merged token */
} bpe_pair;

#define BPE_NO_PAIR UINT64_MAX

typedef struct bpe_added {
    uint32_t off, len; /* the text that it matches, in the arena */
    int32_t id;
    bool special, single_word, lstrip, rstrip, normalized;
} bpe_added;

/* Leftmost-longest search for added tokens: their indices in order of their texts. */
typedef struct bpe_matcher {
    uint32_t *at;
    size_t n;
    uint32_t first[257]; /* [first[b], first[b + 1]): those that begin with byte b */
} bpe_matcher;

typedef struct bpe_step {
    pattern *pattern;
    pattern_behavior behavior;
    bool invert;
} bpe_step;

typedef struct bpe_name {
    char *name, *text;
} bpe_name;

typedef struct bpe_slot {
    int32_t id;    /* -1: free */
    uint32_t hash; /* of the raw bytes */
} bpe_slot;

/* Ids by raw bytes, open addressing; n slots, a power of two. */
typedef struct bpe_map {
    bpe_slot *slot;
    size_t n, used;
} bpe_map;

struct bpe {
    buf arena;
    bpe_tok *tok;
    size_t n_tok, cap_tok;
    bpe_map mapped;  /* tokens with BPE_TOK_MAPPED */
    bpe_map literal; /* all others, and added tokens */
    int32_t byte_id[256];

    bpe_pair *pair;
    size_t n_slot, n_pair, n_merge;
    bool ignore_merges, fuse_unk;
    int32_t unk; /* -1: bytes without a token are dropped */

    bpe_added *added;
    size_t n_added, cap_added;
    bpe_matcher raw, normalized;

    bool nfc;
    bpe_step step[BPE_MAX_STEP];
    int n_step;

    int32_t *prefix, *suffix; /* what BPE_ADD_SPECIAL adds */
    size_t n_prefix, n_suffix;
    int32_t bos, eos;
    bpe_name *name;
    size_t n_name;

    buf rules; /* the settings as text, for the digest */
    digest digest;
    char *what;
};

/* ---- building (bpe_build.c) ----------------------------------------------------------------- */

/* A new, empty tokenizer; free with bpe_close. what names the file in errors. */
corun_status bpe_new(bpe **out, const char *what);
/* A token of the vocabulary, spelled in the byte alphabet. An id or a spelling that is already
 * taken is an error. */
corun_status bpe_add_vocab(bpe *t, const char *s, size_t len, int32_t id);
/* The id of a spelling in the vocabulary, -1: none. */
int32_t bpe_vocab_id(const bpe *t, const char *s, size_t len);
/* One byte token with these raw bytes, not spelled in the byte alphabet. */
corun_status bpe_add_raw(bpe *t, const char *s, size_t len, int32_t id, uint32_t flags);
/* An added token that matches the text s. decoded: its bytes are s itself, else what the byte
 * alphabet makes of it. Replaces the flags of one with the same id and text. */
corun_status bpe_add_added(bpe *t, const char *s, size_t len, const bpe_added *flags, bool decoded);
/* Room for n merges; then one call each, in order. both = left and right joined, as spelled. */
corun_status bpe_merges_begin(bpe *t, size_t n);
corun_status bpe_add_merge(bpe *t, const char *both, size_t left_len, size_t len);
corun_status bpe_add_step(bpe *t, const char *re, size_t len, bool literal,
                          pattern_behavior behavior, bool invert, const char *what);
corun_status bpe_add_name(bpe *t, const char *name, const char *text, size_t len);
/* Adds ids before (suffix false: in front of what is there) or behind. */
corun_status bpe_add_around(bpe *t, bool suffix, const int32_t *id, size_t n);
/* Checks the whole and makes the tables that encoding needs. */
corun_status bpe_finish(bpe *t);

#define BPE_RE_GPT2                                                                                \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
/* The reference's Digits step asks another table than its regex engine: Unicode 17's. These are
 * the numbers that only the newer one knows. */
#define BPE_DIGIT_SET "[\\p{N}\\x{11DE0}-\\x{11DE9}\\x{16FF4}-\\x{16FF6}]"

/* ---- running (bpe_merge.c) ------------------------------------------------------------------ */

typedef struct bpe_word { /* room for one piece */
    int32_t *sym, *merged;
    uint32_t *rank, *prev, *next;
    uint64_t *heap;
    size_t cap;
} bpe_word;

void bpe_word_free(bpe_word *w);
/* Appends the ids of one piece of bytes. */
corun_status bpe_merge(const bpe *t, bpe_word *w, const char *s, size_t len, size_t max,
                       bpe_ids *out);
corun_status bpe_push_id(bpe_ids *ids, int32_t id, size_t max);

int32_t bpe_map_find(const bpe *t, const bpe_map *m, const char *s, size_t len);

/* Longest added token of m that begins at s (len > 0 bytes): index into t->added, -1: none. */
int32_t bpe_match(const bpe *t, const bpe_matcher *m, const char *s, size_t len);

/* ---- reading the two big members of tokenizer.json (bpe_scan.c) ------------------------------ */

typedef struct bpe_span {
    size_t begin, end; /* 0, 0: not there */
} bpe_span;

/* Finds the object model.vocab and the array model.merges, and writes the document without their
 * contents (line feeds kept) to rest. Text that is not JSON is left for the reader of rest to
 * refuse. */
corun_status bpe_scan_cut(const char *s, size_t len, bpe_span *vocab, bpe_span *merges, buf *rest);
corun_status bpe_scan_vocab(bpe *t, const char *s, bpe_span span);
corun_status bpe_scan_merges(bpe *t, const char *s, bpe_span span);

#endif
