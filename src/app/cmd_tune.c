/* cmd_tune.c - owns `corun tune`: the plans of a model's matrix products, searched on this GPU. */
#include <stdio.h>

#include "app/cmd.h"
#include "proof/tune.h"

static corun_status read_args(tune_opts *o, bool *help, int argc, char **argv)
{
    const arg_spec specs[] = {
        {"model", 'm', ARG_TEXT, &o->model, "MODEL",
         "a folder with config.json, a .gguf file or ORG/NAME: only its sizes are read"},
        {"out", 'o', ARG_TEXT, &o->out, "FILE", "the table; one that is there is added to"},
        {"seconds", 0, ARG_REAL, &o->seconds, "S", "time for all shapes together (90)"},
        {"again", 0, ARG_FLAG, &o->again, NULL, "search shapes that the table has, too"},
        {"help", 'h', ARG_FLAG, help, NULL, "this text"},
    };
    size_t n;
    TRY(args_parse(specs, sizeof specs / sizeof *specs, argc, argv, NULL, 0, &n));
    if (*help) {
        puts(
            "corun tune -m MODEL -o FILE [options]\n\nSearches the fastest configuration of every "
            "matrix product of the model on the first Hopper GPU,\ncompares the bits of those that "
            "could win, and writes a plan table. Prints one line a product and\nnumber of rows.");
        args_help(specs, sizeof specs / sizeof *specs);
        return CORUN_OK;
    }
    if (!o->model) FAIL(CORUN_EINVAL, "no model is named: -m MODEL");
    if (!o->out) FAIL(CORUN_EINVAL, "no file is named for the table (-o FILE)");
    if (!(o->seconds >= 1 && o->seconds <= 86400))
        FAIL(CORUN_EINVAL, "--seconds is a number from 1 to 86400");
    return CORUN_OK;
}

int cmd_tune(int argc, char **argv)
{
    tune_opts o = {.seconds = 90};
    bool help = false;
    corun_status st = read_args(&o, &help, argc, argv);
    if (st != CORUN_OK) return cmd_usage("tune", "%s", corun_last_error());
    if (help) return CMD_OK;
    st = tune_run(&o, stdout);
    return st == CORUN_OK ? CMD_OK : cmd_fail(st);
}
