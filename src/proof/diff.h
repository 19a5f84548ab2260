/* diff.h - two rows of result files compared: the first place where they part, to the bit.
 *
 * Rows may come from any engine. Known forms: a line of OpenAI batch output, a bare answer of the
 * completions or chat endpoint, a row of `corun score`. Of these the choices are compared: token
 * ids (or texts of tokens), log-probabilities and alternatives as fp32, text, reasons of the end,
 * other parts of the message, prompt log-probabilities; each where both rows have it. Ids, clock
 * values, usage, the model's name and the parameters are not. A row of another form is compared as
 * a JSON value, numbers exactly. */
#ifndef PROOF_DIFF_H
#define PROOF_DIFF_H

#include "base/json.h"

typedef enum diff_kind {
    DIFF_EQUAL,
    DIFF_TOKEN,   /* another token, or one of the two has ended */
    DIFF_LOGPROB, /* the token's log-probability */
    DIFF_TOP,     /* its alternatives */
    DIFF_PROMPT,  /* prompt ids or prompt log-probabilities */
    DIFF_TEXT,
    DIFF_FINISH,  /* finish_reason or stop_reason */
    DIFF_MESSAGE, /* another part of a chat message */
    DIFF_SAMPLES, /* numbers of choices */
    DIFF_ERROR,   /* one is an error row, or two errors differ */
    DIFF_VALUE,   /* rows of another form */
    DIFF_N_KIND
} diff_kind;

const char *diff_kind_name(diff_kind k);

/* Where two rows part, and what stands there. */
typedef struct diff_place {
    diff_kind kind;
    size_t sample; /* index of the choice */
    int64_t token; /* its index; PROMPT: in the prompt; -1: not known */
    int64_t text;  /* TEXT: characters before it */
    bool bits;     /* two numbers: bit_a and bit_b are their fp32 bits */
    uint32_t bit_a, bit_b;
    char path[256];    /* into the row, where that says more */
    char a[96], b[96]; /* the values, cut */
} diff_place;

/* Histogram of token indices: 0, 1, 2-3, 4-7, ... */
#define DIFF_N_BUCKET 24

int diff_bucket(int64_t token);

/* What all rows compared so far gave. Samples count one by one. */
typedef struct diff_count {
    uint64_t samples, tokens, logprobs; /* compared */
    uint64_t text_only;                 /* samples without ids or log-probabilities in both rows */
    uint64_t kind[DIFF_N_KIND];         /* of the first difference of each sample */
    uint64_t any[DIFF_N_BUCKET];        /* token index of the first difference */
    uint64_t token[DIFF_N_BUCKET];      /* token index of the first other token */
} diff_count;

/* What the reader is told where text_only is not 0; takes it as an unsigned long long. */
#define DIFF_TEXT_ONLY                                                                             \
    "text only: %llu samples carry no log-probabilities or token ids; ask for logprobs or "        \
    "return_token_ids\n"

/* Compares two rows; *out is where the first differing choice parts (kind EQUAL: nowhere). */
void diff_rows(const json_t *a, const json_t *b, diff_place *out, diff_count *n);
/* The body of an answer in a row of a known form, NULL: an error row or another form. */
const json_t *diff_body(const json_t *row);
bool diff_is_error(const json_t *row);
/* What names the request in any order of rows: custom_id, else doc_id, else nothing. False: no
 * name. The key is "s:" and a string's text or "i:" and an integer. */
bool diff_key(const json_t *row, buf *key);

/* Appends one line for every field in which two identities (JSON objects) differ: two spaces, the
 * field, both values. *n: how many. */
corun_status diff_identity(const json_t *a, const json_t *b, buf *out, size_t *n);
/* A value as JSON text, cut at a character. NULL: "(nothing)". */
void diff_show(const json_t *v, char out[96]);
/* The place in words, one line without its end. */
void diff_place_text(const diff_place *p, buf *out);

#endif
