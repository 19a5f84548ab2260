/* cmd_audit.c - owns `corun audit`: the levels that the ops of a model meet on this machine, and
 * what differs between two identities. */
#include <stdio.h>

#include "app/cmd.h"
#include "app/sink.h"
#include "proof/audit.h"

typedef struct audit_args {
    cmd_engine_args e;
    const char *json;
    bool full, diff, help;
} audit_args;

static corun_status read_args(audit_args *a, int argc, char **argv, const char *pos[2])
{
    const arg_spec specs[] = {
        {"model", 'm', ARG_TEXT, &a->e.model, "MODEL",
         "a .gguf file, safetensors folder or ORG/NAME"},
        {"full", 0, ARG_FLAG, &a->full, NULL,
         "more row counts, lengths, repeats and numbers of threads (minutes)"},
        {"json", 0, ARG_TEXT, &a->json, "FILE", "write the result there too"},
        {"diff", 0, ARG_FLAG, &a->diff, NULL,
         "compare two files: audits, or the identities that they name"},
        {"slots", 0, ARG_INT, &a->e.slots, "N", "rows of a decode step"},
        {"ctx", 0, ARG_INT, &a->e.ctx, "N", "longest request in tokens (0: the model's)"},
        {"page", 0, ARG_INT, &a->e.page, "N", "tokens of a KV page: 16, 32, 64 or 128"},
        {"processed-logprobs", 0, ARG_FLAG, &a->e.processed_logprobs, NULL,
         "log-probabilities after temperature instead of raw"},
        {"threads", 0, ARG_INT, &a->e.threads, "N", "CPU workers (0: one a core)"},
        {"device", 0, ARG_TEXT, &a->e.device, "NAME", "auto, cpu, cuda or cuda:N"},
        {"dummy-weights", 0, ARG_FLAG, &a->e.dummy_weights, NULL,
         "MODEL is a config.json: weights are made up"},
        {"isa", 0, ARG_TEXT, &a->e.isa, "NAME", "auto, avx512, avx2, neon or generic"},
        {"plan", 0, ARG_TEXT, &a->e.plan, "FILE", "matrix plans for a CUDA device"},
        {"help", 'h', ARG_FLAG, &a->help, NULL, "this text"},
    };
    size_t n;
    cmd_engine_args_init(&a->e);
    TRY(args_parse(specs, sizeof specs / sizeof *specs, argc, argv, pos, 2, &n));
    if (a->help) {
        puts("corun audit -m MODEL [options]\ncorun audit --diff A B\n\n"
             "Tries every op of the model's shapes with every kernel set and shows the level that "
             "it\n"
             "meets on this machine (docs/audit.md). The result is kept for engines that open "
             "later.\nExit code 1: an op misses what it declares; with --diff, something differs.");
        args_help(specs, sizeof specs / sizeof *specs);
        return CORUN_OK;
    }
    if (a->diff && n != 2) FAIL(CORUN_EINVAL, "--diff needs two files");
    if (a->diff && (a->e.model || a->full || a->json))
        FAIL(CORUN_EINVAL, "--diff goes with two files alone");
    if (!a->diff && n) FAIL(CORUN_EINVAL, "%s: the model is named by -m", pos[0]);
    if (!a->diff && !a->e.model) FAIL(CORUN_EINVAL, "no model is named: -m MODEL");
    return CORUN_OK;
}

static int show_diff(const char *a, const char *b)
{
    buf out;
    size_t n;
    buf_init(&out, (size_t)1 << 28);
    corun_status st = proof_audit_diff(a, b, &out, &n);
    if (st == CORUN_OK && n) printf("%.*s", (int)out.len, out.data);
    if (st == CORUN_OK) printf("%zu differences\n", n);
    buf_free(&out);
    return st != CORUN_OK ? cmd_fail(st) : n ? CMD_PROMISE : CMD_OK;
}

int cmd_audit(int argc, char **argv)
{
    audit_args a = {0};
    cmd_session s = {0};
    const char *pos[2];
    corun_status st = read_args(&a, argc, argv, pos);
    if (st != CORUN_OK) return cmd_usage("audit", "%s", corun_last_error());
    if (a.help) return CMD_OK;
    if (a.diff) return show_diff(pos[0], pos[1]);
    proof_audit_opts o = {.engine = corun_engine_opts_default(), .full = a.full};
    o.engine.n_slot = a.e.slots;
    o.engine.n_ctx = a.e.ctx;
    o.engine.page_tokens = a.e.page;
    o.engine.processed_logprobs = a.e.processed_logprobs;
    buf json;
    char kept[1024];
    int failed = 0;
    place json_at = {0};
    buf_init(&json, 1 << 20);
    if (a.json) st = place_find_idle(&json_at, a.json, &a.e.model, 1);
    if (st == CORUN_OK) st = cmd_open(&s, &a.e, false);
    if (st == CORUN_OK) st = proof_audit(s.model, &o, stdout, &json, kept, &failed);
    if (st == CORUN_OK) printf(kept[0] ? "kept in %s\n" : "not kept: no cache folder%s\n", kept);
    if (st == CORUN_OK && a.json) st = sink_whole(&json_at, &json);
    buf_free(&json);
    place_free(&json_at);
    cmd_close(&s);
    return st != CORUN_OK ? cmd_fail(st) : failed ? CMD_PROMISE : CMD_OK;
}
