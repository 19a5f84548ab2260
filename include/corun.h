/* corun.h - the whole public interface of CoRun, a deterministic LLM inference engine.
 *
 * Two handles. A corun_model is a loaded model with its tokenizer and chat template. A corun_engine
 * is one running schedule over a model; a model carries one engine at a time. The text functions
 * may be called from any thread, the rest belongs to one owner thread.
 *
 * The promise: with the same numeric identity (corun_identity) the same request gives the same
 * tokens and the same log-probability bits, whatever the other requests are, whenever it arrives.
 *
 * Every call that can fail returns a corun_status and writes results through pointers. On failure
 * corun_last_error() holds the text of the first cause, for the calling thread. The library keeps
 * no pointer to the caller's memory after a call returns, and hands out no heap memory but the two
 * handles. Text goes into the caller's buffer: *n is always the full size in bytes (or items), and
 * CORUN_ECAPACITY means "call again with that much room". Texts are UTF-8 and not terminated.
 */
#ifndef CORUN_H
#define CORUN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CORUN_API_VERSION 1

#if defined(__GNUC__)
#define CORUN_API __attribute__((visibility("default")))
#else
#define CORUN_API
#endif

typedef enum corun_status {
    CORUN_OK = 0,
    CORUN_EINVAL,       /* the caller passed something that this header forbids */
    CORUN_ENOMEM,       /* host or device memory */
    CORUN_EIO,          /* the system refused a file */
    CORUN_EFORMAT,      /* a model, tokenizer, template or request text is malformed */
    CORUN_EUNSUPPORTED, /* well formed, but nothing that this build can run */
    CORUN_ECAPACITY,    /* an output buffer, a queue or the KV pool is too small */
    CORUN_EDEVICE,      /* the device or one of its libraries reported an error */
    CORUN_EMISMATCH,    /* a digest or an identity differs */
    CORUN_EINTERNAL     /* an invariant of ours is broken: please report */
} corun_status;

CORUN_API const char *corun_status_name(corun_status st);
CORUN_API const char *corun_last_error(void);
CORUN_API const char *corun_version(void); /* release and source revision */

typedef struct corun_model corun_model;
typedef struct corun_engine corun_engine;

/* ---- model ------------------------------------------------------------------------------- */

typedef struct corun_model_opts {
    const char *path;   /* a .gguf file, a folder with safetensors, "fake:LEVEL", or (where no file
                           or folder has this name) ORG/NAME[@REVISION][:FILE.gguf] in the user's
                           Hugging Face cache: HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME and HOME say
                           where files are looked for; identity and bits follow from their content
                           alone. Nothing is downloaded */
    int n_thread;       /* CPU workers; 0 = one a core. Never changes a bit */
    const char *isa;    /* "auto", "avx512", "avx2", "neon", "generic". Never changes a bit */
    const char *device; /* "cpu", "cuda", "cuda:N", or "auto": a CUDA device where one serves */
    const char *template_date; /* "YYYY-MM-DD" given to strftime_now; NULL = "2024-07-26" */
    bool dummy_weights; /* path is a config.json, or a folder with one: weights are made up from the
                           shapes, there is no tokenizer, prompts are token ids */
    const char *plan;   /* a table of matrix plans for a CUDA device (corun tune makes one) instead
                           of the built-in one; part of the identity; NULL = built-in */
} corun_model_opts;

CORUN_API corun_model_opts corun_model_opts_default(void);
CORUN_API corun_status corun_model_open(corun_model **out, const corun_model_opts *o);
CORUN_API void corun_model_close(corun_model *m); /* NULL is fine; close its engines first */

typedef struct corun_model_info {
    char family[32];       /* "llama", "qwen2", "qwen3", "fake" */
    char isa[16];          /* kernels in use */
    char device[80];       /* "cpu", or "cuda" and the device's name */
    char device_note[256]; /* what its user should know, as why "auto" took the CPU; "": nothing */
    int32_t n_layer, n_embd, n_head, n_kv_head, head_dim, n_ff;
    int32_t n_vocab;  /* rows of the head: token ids are 0 ... n_vocab - 1 */
    int32_t n_token;  /* ids that the tokenizer names; the rest decode to nothing */
    int32_t n_ctx;    /* positions the model was made for */
    int32_t bos, eos; /* -1: none */
    bool tied;        /* the head is the embedding */
    bool has_template;
    uint64_t n_param, weight_bytes, kv_bytes_per_token;
    char weights_digest[33], tokenizer_digest[33], template_digest[33]; /* hexadecimal */
    char tensor_types[160]; /* of the weights as they were given, "F32 61, Q4_1 211"; "": none */
} corun_model_info;

CORUN_API corun_status corun_model_describe(const corun_model *m, corun_model_info *out);

#define CORUN_MAX_DIM 8

typedef enum corun_dtype { CORUN_BF16, CORUN_F16, CORUN_F32 } corun_dtype;

typedef struct corun_tensor {
    const char *name; /* as the model's files have it */
    corun_dtype dtype;
    int32_t n_dim;
    const int64_t *dim; /* as in the file: rows first, the last one contiguous */
    const void *data;   /* all of it, little-endian, row-major */
} corun_tensor;

/* New values for every weight, in place: all tensors of the model's files, each once, in any order,
 * with the same shapes. Names and shapes are all checked before anything is written. Afterwards
 * weights digest, identity and bits are those of a model opened from a file with these tensors. No
 * request may be alive; kept prefixes are dropped, and the counters of pages and prefixes start
 * anew. A failure while values are written (memory, device) leaves a model that runs nothing until
 * a refill succeeds. */
CORUN_API corun_status corun_model_refill(corun_model *m, const corun_tensor *t, size_t n);

#define CORUN_TEXT_ADD_SPECIAL  1u /* encode: add bos/eos as the model's files say */
#define CORUN_TEXT_LITERAL      2u /* encode: control text is plain text */
#define CORUN_TEXT_SKIP_SPECIAL 4u /* decode: special tokens give no text */

CORUN_API corun_status corun_encode(const corun_model *m, const char *text, size_t len,
                                    unsigned flags, int32_t *out, size_t cap, size_t *n);
/* Bytes that are no UTF-8 become U+FFFD, one for each maximal invalid part. */
CORUN_API corun_status corun_decode(const corun_model *m, const int32_t *ids, size_t n_id,
                                    unsigned flags, char *out, size_t cap, size_t *n);
/* The raw bytes of one token: may be half a character. */
CORUN_API corun_status corun_token_bytes(const corun_model *m, int32_t id, char *out, size_t cap,
                                         size_t *n);
/* json: an object with "messages" and, where wanted, "tools", "documents",
 * "add_generation_prompt" (default true), "continue_final_message", "chat_template" and
 * "chat_template_kwargs". A template's own exception is CORUN_EFORMAT with its text. */
CORUN_API corun_status corun_chat_render(const corun_model *m, const char *json, size_t len,
                                         char *out, size_t cap, size_t *n);
/* What evaluation tools ask of a tokenizer: a JSON object with its special tokens by name
 * ("eos_token": text) and "chat_template": text, a list of {"name", "template"}, or null. */
CORUN_API corun_status corun_tokenizer_info(const corun_model *m, char *out, size_t cap, size_t *n);

/* ---- requests ---------------------------------------------------------------------------- */

#define CORUN_MAX_TOP    20  /* alternatives with log-probability, each token */
#define CORUN_MAX_SAMPLE 128 /* samples of one request */

typedef struct corun_bytes {
    const char *data;
    size_t len;
} corun_bytes;

typedef struct corun_sampling {
    double temperature; /* below 1e-5: greedy */
    double top_p, min_p;
    int32_t top_k; /* 0 or -1: off */
    double repetition_penalty, presence_penalty, frequency_penalty;
    int32_t max_tokens; /* new tokens, 0 allowed (scoring); -1: the rest of the context */
    int32_t min_tokens;
    int32_t n;     /* samples; sample i draws with the seed derived from (seed, i) */
    uint64_t seed; /* with the position, the only input of the random numbers */
    bool ignore_eos, include_stop, skip_special;
    int32_t logprobs;        /* -1: none; k: the drawn token and the k likeliest */
    int32_t prompt_logprobs; /* likewise for the prompt's own tokens */
    const int32_t *bias_id;  /* logit_bias */
    const float *bias;
    size_t n_bias;
    const int32_t *allowed; /* allowed_token_ids; none when n_allowed is 0 */
    size_t n_allowed;
    const int32_t *bad_id;  /* bad words as token ids, one after the other, ... */
    const int32_t *bad_len; /* ... with their lengths */
    size_t n_bad;
    const int32_t *stop_id;
    size_t n_stop_id;
    const corun_bytes *stop; /* stop strings */
    size_t n_stop;
} corun_sampling;

/* The defaults of the model's generation_config.json over neutral values. */
CORUN_API corun_status corun_sampling_default(const corun_model *m, corun_sampling *out);
/* The seed of sample i of a request with this seed (53 bits for i > 0). */
CORUN_API uint64_t corun_seed_sample(uint64_t seed, int32_t i);

typedef struct corun_request {
    const int32_t *tokens; /* the prompt, at least one id */
    size_t n_token;
    corun_sampling sampling;
} corun_request;

/* ---- engine ------------------------------------------------------------------------------ */

typedef enum corun_policy {
    CORUN_POLICY_DYNAMIC,   /* an ordinary engine: continuous batching, no promise */
    CORUN_POLICY_CORUN,     /* isolated prefill, decode at one fixed shape */
    CORUN_POLICY_INVARIANT, /* batch-invariant kernels: prompts cut at own multiples of 2,048 */
    CORUN_POLICY_FREE,      /* canonical kernels: any schedule, prefix reuse, recompute */
    CORUN_POLICY_AUTO       /* free where the levels are shown, else corun */
} corun_policy;

/* "free", ..., "auto"; NULL for no policy. */
CORUN_API const char *corun_policy_name(corun_policy p);
CORUN_API corun_status corun_policy_parse(const char *name, corun_policy *out);

typedef struct corun_engine_opts {
    corun_policy policy; /* AUTO is settled at open: the identity names what it became */
    int32_t n_slot;      /* rows of a decode step; under corun part of the identity */
    int32_t n_ctx;       /* longest request in tokens; 0 = the model's */
    int32_t page_tokens; /* 16, 32, 64 or 128 */
    uint64_t kv_bytes;   /* the KV pool; 0 = n_slot requests of min(n_ctx, 1024), or one of n_ctx */
    int64_t swap_bytes;  /* the swap area; -1 = as large as the pool. free has none */
    int32_t prefill_chunk;   /* tokens. corun: the grid of prompts (8,192), in the identity. Others:
                                the most in a step (512; invariant: a multiple of 2,048) */
    bool processed_logprobs; /* log-probabilities after temperature instead of raw */
    bool allow_special_rows; /* let ids that the tokenizer does not name be drawn */
} corun_engine_opts;

CORUN_API corun_engine_opts corun_engine_opts_default(void);
CORUN_API corun_status corun_engine_open(corun_engine **out, corun_model *m,
                                         const corun_engine_opts *o);
CORUN_API void corun_engine_close(corun_engine *e);

/* The numeric identity as a JSON object of its fields, and its digest (32 hexadecimal digits). */
CORUN_API corun_status corun_identity(const corun_engine *e, char digest[33], char *json,
                                      size_t cap, size_t *n);

/* Takes a request (everything is copied). *id names it in events and has no other effect.
 * A request that can never fit is refused with CORUN_ECAPACITY and the size it needs. */
CORUN_API corun_status corun_submit(corun_engine *e, const corun_request *r, uint64_t *id);
/* No further event of this request will come; its pages are free after the running step. */
CORUN_API corun_status corun_cancel(corun_engine *e, uint64_t id);

typedef enum corun_event_kind {
    CORUN_EVENT_NONE,   /* a step ran and gave no event: call again */
    CORUN_EVENT_IDLE,   /* no request is alive */
    CORUN_EVENT_PROMPT, /* log-probability of prompt token `index` (from 1 on) */
    CORUN_EVENT_TOKEN,  /* a new token */
    CORUN_EVENT_DONE,   /* a sample ended */
    CORUN_EVENT_FAILED  /* a sample failed: status and text say why; no other event follows */
} corun_event_kind;

typedef enum corun_finish {
    CORUN_FINISH_STOP,  /* eos, a stop token id or a stop string */
    CORUN_FINISH_LENGTH /* max_tokens or the context */
} corun_finish;

typedef struct corun_event {
    corun_event_kind kind;
    uint64_t id;    /* of the request */
    int32_t sample; /* 0 ... n - 1 */
    int32_t index;  /* TOKEN: 0 is the first new token. PROMPT: its place in the prompt */
    int32_t token;
    float logprob; /* where asked for */
    int32_t n_top; /* alternatives, likeliest first; ties: the lower id first */
    int32_t top_id[CORUN_MAX_TOP];
    float top_logprob[CORUN_MAX_TOP];
    const char *text; /* TOKEN, DONE: text that became final; FAILED: the cause. Valid until the
                         next call with this engine */
    size_t text_len;
    corun_finish finish;     /* DONE */
    int32_t stop_index;      /* DONE: index of the stop string that ended it, else -1 */
    int32_t stop_token;      /* DONE: the stop token id (not eos) that ended it, else -1 */
    int32_t n_prompt, n_new; /* DONE: tokens */
    corun_status status;     /* FAILED */
} corun_event;

/* The next event. Runs one step when none is waiting. */
CORUN_API corun_status corun_next(corun_engine *e, corun_event *out);

typedef struct corun_stats {
    uint64_t steps_prefill, steps_decode, steps_mixed;
    uint64_t tokens_prompt, tokens_new;  /* prompt: what is computed again included */
    uint64_t rows_live, rows_dead;       /* of all decode steps */
    uint64_t swaps_out, swaps_in;        /* requests moved */
    uint64_t recomputes;                 /* requests whose pages were dropped and computed again */
    uint64_t preempted_most;             /* times that one request lost its pages, at most */
    uint64_t prefix_hits, prefix_tokens; /* prompts that reused pages, tokens not computed */
    uint64_t prompt_cuts;                /* chunks that ended inside a prompt */
    uint64_t pages, pages_free, pages_peak, swap_pages, swap_pages_free;
    uint64_t requests_waiting, requests_running;
    uint64_t live_rows_seen[8]; /* bit r: a decode step had r + 1 live rows (up to 512) */
    double seconds_prefill, seconds_decode, seconds_sample;
    double seconds_wait; /* of the host, for draws of a device */
} corun_stats;

CORUN_API corun_status corun_engine_stats(const corun_engine *e, corun_stats *out);

#ifdef __cplusplus
}
#endif
#endif
