/* cmd_bench.c - owns `corun bench`: the engine's step beside its own parts, in two forms. */
#include <stdio.h>

#include "app/cmd.h"
#include "proof/bench.h"

enum { NOT_GIVEN = INT32_MIN };

/* What is timed on a device when nothing is named. */
#define STEPS   "256x1536,256x1090,32x1090,1x1024"
#define PROMPTS "256x1024,1x8192,1x32768"

typedef struct bench_args {
    cmd_engine_args e;
    int32_t context, prefill, repeat; /* NOT_GIVEN */
    const char *steps, *prompts, *jobs;
    bench_device_opts d;
    bool json, help;
} bench_args;

static const char about[] =
    "corun bench -m MODEL [options]\n\n"
    "On a CPU: times decode steps of 1, 4, 16 and 32 rows and one prefill, each beside the bare\n"
    "matrix products of the same step, in one run.\n"
    "On a CUDA device, and where --steps, --prompts or --jobs is given: times what they name "
    "beside\n"
    "the parts of the same steps (docs/bench.md).";

static corun_status read_lists(bench_args *a)
{
    bench_device_opts *d = &a->d;
    if (a->steps) TRY(bench_read_shapes(a->steps, d->steps, &d->n_steps));
    if (a->prompts) TRY(bench_read_shapes(a->prompts, d->prompts, &d->n_prompts));
    if (a->jobs) TRY(bench_read_jobs(a->jobs, d->jobs, &d->n_jobs));
    return bench_read_policies(a->e.policy, d->policy, &d->n_policy);
}

static corun_status read_args(bench_args *a, int argc, char **argv)
{
    const arg_spec specs[] = {
        {"model", 'm', ARG_TEXT, &a->e.model, "MODEL",
         "a .gguf file, safetensors folder or ORG/NAME"},
        {"threads", 0, ARG_INT, &a->e.threads, "N", "CPU workers (0: one a core)"},
        {"device", 0, ARG_TEXT, &a->e.device, "NAME", "auto, cpu, cuda or cuda:N"},
        {"dummy-weights", 0, ARG_FLAG, &a->e.dummy_weights, NULL,
         "MODEL is a config.json: weights are made up"},
        {"isa", 0, ARG_TEXT, &a->e.isa, "NAME", "auto, avx512, avx2, neon or generic"},
        {"plan", 0, ARG_TEXT, &a->e.plan, "FILE", "matrix plans for a CUDA device"},
        {"json", 0, ARG_FLAG, &a->json, NULL, "one JSON object; of the second form one a figure"},
        {"help", 'h', ARG_FLAG, &a->help, NULL, "this text"},
        {NULL, 0, ARG_FLAG, NULL, NULL, "On a CPU:"},
        {"context", 0, ARG_INT, &a->context, "N", "mean context of the decode steps (256)"},
        {"prefill", 0, ARG_INT, &a->prefill, "N", "tokens of the timed prompt (512)"},
        {"repeat", 0, ARG_INT, &a->repeat, "N",
         "engines that run for each figure; medians count (5)"},
        {NULL, 0, ARG_FLAG, NULL, NULL, "On a device:"},
        {"steps", 0, ARG_TEXT, &a->steps, "LIST", "rows x context (" STEPS ")"},
        {"prompts", 0, ARG_TEXT, &a->prompts, "LIST", "prompts x tokens (" PROMPTS ")"},
        {"jobs", 0, ARG_TEXT, &a->jobs, "LIST",
         "requests x in/out or x shortest-longest, as 256x1024/1024,256x64-4096"},
        {"policy", 0, ARG_TEXT, &a->e.policy, "LIST", "free (default), corun, invariant, dynamic"},
        {"chunk", 0, ARG_INT, &a->d.chunk, "N", "prompt tokens of a step (8192)"},
        {"timed", 0, ARG_INT, &a->d.timed, "N", "steps that are timed (120)"},
        {"warm", 0, ARG_REAL, &a->d.warm, "S", "seconds of the same work before (2)"},
        {"logprobs", 0, ARG_INT, &a->d.logprobs, "K",
         "the drawn token's log-probability and K alternatives (0; -1: none)"},
        {"kv", 0, ARG_SIZE, &a->d.kv, "SIZE", "most of the KV pool (0: what is needed)"},
    };
    size_t n;
    cmd_engine_args_init(&a->e);
    a->d = bench_device_default();
    a->e.policy = "free";
    a->context = a->prefill = a->repeat = NOT_GIVEN;
    TRY(args_parse(specs, sizeof specs / sizeof *specs, argc, argv, NULL, 0, &n));
    if (a->help) {
        puts(about);
        args_help(specs, sizeof specs / sizeof *specs);
        return CORUN_OK;
    }
    if (!a->e.model) FAIL(CORUN_EINVAL, "no model is named: -m MODEL");
    a->d.json = a->json;
    return read_lists(a);
}

static int32_t or_else(int32_t v, int32_t normal) { return v == NOT_GIVEN ? normal : v; }

static corun_status run_on_device(bench_args *a, corun_model *m)
{
    bench_device_opts *d = &a->d;
    if (a->context != NOT_GIVEN || a->prefill != NOT_GIVEN || a->repeat != NOT_GIVEN)
        FAIL(CORUN_EINVAL, "--context, --prefill and --repeat belong to the form for CPUs");
    if (!a->steps && !a->prompts && !a->jobs) {
        TRY(bench_read_shapes(STEPS, d->steps, &d->n_steps));
        TRY(bench_read_shapes(PROMPTS, d->prompts, &d->n_prompts));
    }
    return bench_device_run(m, d, stdout);
}

static corun_status run_on_cpu(const bench_args *a, corun_model *m)
{
    bench_opts o = {.n_ctx = or_else(a->context, 256),
                    .n_prefill = or_else(a->prefill, 512),
                    .n_repeat = or_else(a->repeat, 5),
                    .json = a->json};
    return bench_run(m, &o, stdout);
}

int cmd_bench(int argc, char **argv)
{
    bench_args a = {0};
    cmd_session s = {0};
    corun_status st = read_args(&a, argc, argv);
    if (st != CORUN_OK) return cmd_usage("bench", "%s", corun_last_error());
    if (a.help) return CMD_OK;
    st = cmd_open(&s, &a.e, false);
    if (st == CORUN_OK) {
        bool device = bench_on_device(s.model) || a.steps || a.prompts || a.jobs;
        st = device ? run_on_device(&a, s.model) : run_on_cpu(&a, s.model);
    }
    int code = st != CORUN_OK ? cmd_fail(st) : CMD_OK;
    cmd_close(&s);
    return code;
}
