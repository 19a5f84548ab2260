/* cmd.h - what all commands share: exit codes, the model and engine options, signals. */
#ifndef APP_CMD_H
#define APP_CMD_H

#include "app/args.h"
#include "app/job.h"

/* The one table of exit codes; 128 + n: ended by signal n. */
enum {
    CMD_OK = 0,
    CMD_PROMISE = 1, /* a promise is broken: bytes or digests that must be equal differ */
    CMD_BAD = 2,     /* bad input or use */
    CMD_ROWS = 3,    /* --strict, and the batch has error rows */
    CMD_SYSTEM = 4,  /* the system failed: disk, memory, device */
    CMD_SIGNAL = 128
};

int cmd_exit_code(corun_status st);
/* Prints the error text of this thread and gives the exit code. */
int cmd_fail(corun_status st);
/* Prints what is wrong with the call and gives CMD_BAD. */
int cmd_usage(const char *command, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

typedef struct cmd_engine_args {
    const char *model, *policy, *device, *isa, *date, *served_name, *plan;
    int32_t threads, slots, ctx, page, chunk;
    int64_t kv, swap;
    bool processed_logprobs;
    bool allow_special_rows;
    bool dummy_weights;
    bool quiet; /* what the device notes is not said */
} cmd_engine_args;

void cmd_engine_args_init(cmd_engine_args *a);
#define CMD_ENGINE_SPECS(a)                                                                        \
    {NULL, 0, ARG_FLAG, NULL, NULL, "Model and schedule:"},                                        \
        {"model",     'm',     ARG_TEXT,                                                           \
         &(a)->model, "MODEL", "a .gguf file, safetensors folder, ORG/NAME, or fake:LEVEL"},       \
        {"policy",     0,      ARG_TEXT,                                                           \
         &(a)->policy, "NAME", "auto (default), free, corun, invariant or dynamic"},               \
        {"slots",     0,   ARG_INT,                                                                \
         &(a)->slots, "N", "rows of a decode step (16); under corun part of the identity"},        \
        {"ctx", 0, ARG_INT, &(a)->ctx, "N", "longest request in tokens (0: the model's)"},         \
        {"kv",     0,      ARG_SIZE,                                                               \
         &(a)->kv, "SIZE", "KV pool, as 512M or 2G (0: room for all slots at 1,024 tokens)"},      \
        {"swap",     0,      ARG_SIZE,                                                             \
         &(a)->swap, "SIZE", "size of the swap area (default: the pool's; free: none)"},           \
        {"page", 0, ARG_INT, &(a)->page, "N", "tokens of a KV page: 16, 32, 64 (default) or 128"}, \
        {"chunk",     0,   ARG_INT,                                                                \
         &(a)->chunk, "N", "prefill: the grid of corun (8192), else the most tokens of a step"},   \
        {"threads", 0, ARG_INT, &(a)->threads, "N", "CPU workers (0: one a core)"},                \
        {"device", 0, ARG_TEXT, &(a)->device, "NAME", "auto (default), cpu, cuda or cuda:N"},      \
        {"isa", 0, ARG_TEXT, &(a)->isa, "NAME", "auto, avx512, avx2, neon or generic"},            \
        {"plan",     0,      ARG_TEXT,                                                             \
         &(a)->plan, "FILE", "matrix plans for a CUDA device (corun tune makes them)"},            \
        {"dummy-weights",                                                                          \
         0,                                                                                        \
         ARG_FLAG,                                                                                 \
         &(a)->dummy_weights,                                                                      \
         NULL,                                                                                     \
         "MODEL is a config.json: weights are made up, prompts are token ids"},                    \
        {"date",       0,                                                                          \
         ARG_TEXT,     &(a)->date,                                                                 \
         "YYYY-MM-DD", "today, for templates that ask (2024-07-26)"},                              \
        {"processed-logprobs",     0,    ARG_FLAG,                                                 \
         &(a)->processed_logprobs, NULL, "log-probabilities after temperature instead of raw"},    \
    {                                                                                              \
        "allow-special-rows", 0, ARG_FLAG, &(a)->allow_special_rows, NULL,                         \
            "let ids that the tokenizer does not name be drawn"                                    \
    }

/* A model, and where wanted an engine over it, opened as the options say. */
typedef struct cmd_session {
    corun_model *model;
    corun_engine *engine; /* NULL: only the model */
    corun_model_info info;
    char identity[33]; /* empty without an engine, as the following */
    char policy[16];   /* in force: auto was settled when the engine was opened */
    job_model facts;   /* what requests need to know of them */
    double seconds_model, seconds_engine; /* to open them */
} cmd_session;

corun_status cmd_open(cmd_session *s, const cmd_engine_args *a, bool with_engine);
/* Another engine with the same options, with nothing left of the one before. */
corun_status cmd_reopen_engine(cmd_session *s, const cmd_engine_args *a);
void cmd_close(cmd_session *s);

/* From the first call on the first SIGINT, SIGTERM or SIGHUP is only noted; a second one ends the
 * process at once. */
void cmd_signals_install(void);
int cmd_signal(void); /* the signal that came, 0: none */

int cmd_info(int argc, char **argv);
int cmd_run(int argc, char **argv);
int cmd_batch(int argc, char **argv);
int cmd_split(int argc, char **argv);
int cmd_merge(int argc, char **argv);
int cmd_score(int argc, char **argv);
int cmd_verify(int argc, char **argv);
int cmd_audit(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_diff(int argc, char **argv);
int cmd_replay(int argc, char **argv);
int cmd_tune(int argc, char **argv);
int cmd_serve(int argc, char **argv);
int serve_main(int argc, char **argv); /* of a build with the server */

#endif
