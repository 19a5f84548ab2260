/* cmd_info.c - owns `corun info`: what a model is, and with --identity the numeric identity that
 * results with these options carry. */
#include <stdio.h>
#include <string.h>

#include "app/cmd.h"

typedef struct info_args {
    cmd_engine_args e;
    bool json, identity, help;
} info_args;

static corun_status read_args(info_args *a, int argc, char **argv)
{
    const arg_spec specs[] = {
        {NULL, 0, ARG_FLAG, NULL, NULL, "Output:"},
        {"json", 0, ARG_FLAG, &a->json, NULL, "one JSON object"},
        {"identity", 0, ARG_FLAG, &a->identity, NULL,
         "also the numeric identity under the options below"},
        {"help", 'h', ARG_FLAG, &a->help, NULL, "this text"},
        CMD_ENGINE_SPECS(&a->e),
    };
    const char *pos[1] = {NULL};
    size_t n;
    cmd_engine_args_init(&a->e);
    TRY(args_parse(specs, sizeof specs / sizeof *specs, argc, argv, pos, 1, &n));
    if (a->help) {
        puts("corun info MODEL [options]\n\nShows what a model is.");
        args_help(specs, sizeof specs / sizeof *specs);
        return CORUN_OK;
    }
    if (n && a->e.model) FAIL(CORUN_EINVAL, "two models are named");
    if (n) a->e.model = pos[0];
    if (!a->e.model) FAIL(CORUN_EINVAL, "no model is named: corun info MODEL");
    return CORUN_OK;
}

static corun_status print_json(const cmd_session *s, const char *identity, size_t len)
{
    const corun_model_info *i = &s->info;
    const struct {
        const char *name;
        int64_t v;
    } number[] = {
        {"n_layer", i->n_layer},
        {"n_embd", i->n_embd},
        {"n_head", i->n_head},
        {"n_kv_head", i->n_kv_head},
        {"head_dim", i->head_dim},
        {"n_ff", i->n_ff},
        {"n_vocab", i->n_vocab},
        {"n_token", i->n_token},
        {"n_ctx", i->n_ctx},
        {"bos", i->bos},
        {"eos", i->eos},
        {"n_param", (int64_t)i->n_param},
        {"weight_bytes", (int64_t)i->weight_bytes},
        {"kv_bytes_per_token", (int64_t)i->kv_bytes_per_token},
    };
    const struct {
        const char *name, *v;
    } text[] = {
        {"family", i->family},
        {"isa", i->isa},
        {"device", i->device},
        {"weights_digest", i->weights_digest},
        {"tokenizer_digest", i->tokenizer_digest},
        {"template_digest", i->template_digest},
        {"tensor_types", i->tensor_types},
        {"version", corun_version()},
    };
    buf b;
    jw w;
    buf_init(&b, 1 << 20);
    jw_init(&w, &b);
    jw_open(&w, '{');
    for (size_t k = 0; k < sizeof text / sizeof *text; k++) {
        jw_field_str(&w, text[k].name, text[k].v);
    }
    for (size_t k = 0; k < sizeof number / sizeof *number; k++) {
        jw_field_int(&w, number[k].name, number[k].v);
    }
    jw_field_bool(&w, "tied", i->tied);
    jw_field_bool(&w, "has_template", i->has_template);
    json_t *id = NULL;
    corun_status st = len ? json_read(&id, identity, len, "identity") : CORUN_OK;
    if (st == CORUN_OK && id) {
        jw_field_str(&w, "identity_digest", s->identity);
        jw_key(&w, "identity");
        jw_value(&w, id);
        json_decref(id);
    }
    jw_close(&w, '}');
    if (st == CORUN_OK) st = buf_status(&b);
    if (st == CORUN_OK) printf("%s\n", b.data);
    buf_free(&b);
    return st;
}

static void print_text(const cmd_session *s, const char *identity, size_t len)
{
    const corun_model_info *i = &s->info;
    printf("family          %s%s\n", i->family, i->tied ? " (head tied to the embedding)" : "");
    printf("parameters      %.1f million\n", (double)i->n_param / 1e6);
    printf("layers          %d of width %d, feed-forward %d\n", i->n_layer, i->n_embd, i->n_ff);
    printf("heads           %d, of which %d hold keys and values, dimension %d\n", i->n_head,
           i->n_kv_head, i->head_dim);
    printf("vocabulary      %d rows, %d with a token, bos %d, eos %d\n", i->n_vocab, i->n_token,
           i->bos, i->eos);
    printf("context         %d tokens\n", i->n_ctx);
    printf("memory          %.1f MiB weights, %.1f KiB of KV a token\n",
           (double)i->weight_bytes / 1048576, (double)i->kv_bytes_per_token / 1024);
    if (*i->tensor_types) printf("tensors         %s (all held as bf16)\n", i->tensor_types);
    printf("device          %s\n", i->device);
    printf("kernels         %s\n", i->isa);
    printf("chat template   %s\n", i->has_template ? "yes" : "no");
    printf("weights         %s\n", i->weights_digest);
    printf("tokenizer       %s\n", i->tokenizer_digest);
    printf("template        %s\n", i->template_digest);
    if (len) printf("identity        %s\n%.*s\n", s->identity, (int)len, identity);
}

int cmd_info(int argc, char **argv)
{
    info_args a = {0};
    cmd_session s = {0};
    char identity[16384];
    size_t n = 0;
    corun_status st = read_args(&a, argc, argv);
    if (st != CORUN_OK) return cmd_usage("info", "%s", corun_last_error());
    if (a.help) return CMD_OK;
    st = cmd_open(&s, &a.e, a.identity);
    if (st == CORUN_OK && a.identity)
        st = corun_identity(s.engine, s.identity, identity, sizeof identity, &n);
    if (st == CORUN_OK) {
        if (a.json)
            st = print_json(&s, identity, n);
        else
            print_text(&s, identity, n);
    }
    int code = st != CORUN_OK ? cmd_fail(st) : CMD_OK;
    cmd_close(&s);
    return code;
}
