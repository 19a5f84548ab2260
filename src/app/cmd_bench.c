/* cmd_bench.c - owns `corun bench`: the engine's step beside its own bare matrix products. */
#include <stdio.h>

#include "app/cmd.h"
#include "proof/bench.h"

typedef struct bench_args {
    cmd_engine_args e;
    int32_t context, prefill, repeat;
    bool json, help;
} bench_args;

static corun_status read_args(bench_args *a, int argc, char **argv)
{
    const arg_spec specs[] = {
        {"model", 'm', ARG_TEXT, &a->e.model, "MODEL", "a .gguf file or a folder with safetensors"},
        {"context", 0, ARG_INT, &a->context, "N", "mean context of the decode steps (256)"},
        {"prefill", 0, ARG_INT, &a->prefill, "N", "tokens of the timed prompt (512)"},
        {"repeat", 0, ARG_INT, &a->repeat, "N", "runs of each figure; the best counts (5)"},
        {"threads", 0, ARG_INT, &a->e.threads, "N", "CPU workers (0: one a core)"},
        {"device", 0, ARG_TEXT, &a->e.device, "NAME", "auto, cpu, cuda or cuda:N"},
        {"dummy-weights", 0, ARG_FLAG, &a->e.dummy_weights, NULL,
         "MODEL is a config.json: weights are made up"},
        {"isa", 0, ARG_TEXT, &a->e.isa, "NAME", "auto, avx512, avx2, neon or generic"},
        {"json", 0, ARG_FLAG, &a->json, NULL, "one JSON object"},
        {"help", 'h', ARG_FLAG, &a->help, NULL, "this text"},
    };
    size_t n;
    cmd_engine_args_init(&a->e);
    a->context = 256;
    a->prefill = 512;
    a->repeat = 5;
    TRY(args_parse(specs, sizeof specs / sizeof *specs, argc, argv, NULL, 0, &n));
    if (a->help) {
        puts("corun bench -m MODEL [options]\n\nTimes decode steps of 1, 4, 16 and 32 rows (on "
             "a CUDA device 1, 16, 64 and 256) and one\nprefill, each beside the bare matrix "
             "products\nof the same step, in one run.");
        args_help(specs, sizeof specs / sizeof *specs);
        return CORUN_OK;
    }
    if (!a->e.model) FAIL(CORUN_EINVAL, "no model is named: -m MODEL");
    return CORUN_OK;
}

int cmd_bench(int argc, char **argv)
{
    bench_args a = {0};
    cmd_session s = {0};
    corun_status st = read_args(&a, argc, argv);
    if (st != CORUN_OK) return cmd_usage("bench", "%s", corun_last_error());
    if (a.help) return CMD_OK;
    st = cmd_open(&s, &a.e, false);
    bench_opts o = {
        .n_ctx = a.context, .n_prefill = a.prefill, .n_repeat = a.repeat, .json = a.json};
    if (st == CORUN_OK) st = bench_run(s.model, &o, stdout);
    int code = st != CORUN_OK ? cmd_fail(st) : CMD_OK;
    cmd_close(&s);
    return code;
}
