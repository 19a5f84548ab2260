/* main.c - owns the table of commands and the table of exit codes. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "app/cmd.h"
#include "base/fault.h"

static const struct {
    const char *name;
    int (*run)(int argc, char **argv); /* without the program's and the command's name */
    const char *help;
} commands[] = {
    {"info", cmd_info, "what a model is, and its digests"},
    {"run", cmd_run, "one prompt, its answer streamed"},
    {"batch", cmd_batch, "an OpenAI batch file"},
    {"split", cmd_split, "a batch file in pieces that can be run anywhere"},
    {"merge", cmd_merge, "join the results of batch shards"},
    {"serve", cmd_serve, "the OpenAI API over HTTP"},
    {"score", cmd_score, "log-probabilities of given texts"},
    {"diff", cmd_diff, "where two result files part"},
    {"replay", cmd_replay, "run rows of a result file again, alone, and compare"},
    {"verify", cmd_verify, "the promise, tried on a model: recipes under each policy"},
    {"audit", cmd_audit, "the levels that the kernels meet on this machine"},
    {"bench", cmd_bench, "times the engine beside its own matrix products"},
    {"tune", cmd_tune, "plans of the matrix products, searched on this GPU"},
};

static void help(void)
{
    puts("corun - deterministic LLM inference: one answer, whatever the schedule\n\n"
         "usage: corun COMMAND [options]     (corun COMMAND --help shows its options)\n");
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        printf("  %-8s %s\n", commands[i].name, commands[i].help);
    puts("\nexit codes:\n"
         "  0        done\n"
         "  1        a promise is broken: bytes or digests that must be equal differ\n"
         "  2        bad input or use\n"
         "  3        --strict, and the batch has error rows\n"
         "  4        the system failed: disk, memory, device\n"
         "  128 + n  ended by signal n");
}

static int dispatch(int argc, char **argv)
{
    const char *word = argc > 1 ? argv[1] : "--help";
    if (strcmp(word, "--version") == 0 || strcmp(word, "version") == 0) {
        printf("corun %s\n", corun_version());
        return CMD_OK;
    }
    bool asks = strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "help") == 0;
    if (asks && argc < 3) {
        help();
        return argc > 1 ? CMD_OK : CMD_BAD;
    }
    char *of_help[] = {"--help"};
    const char *name = asks ? argv[2] : word;
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (strcmp(name, commands[i].name) == 0)
            return asks ? commands[i].run(1, of_help) : commands[i].run(argc - 2, argv + 2);
    fprintf(stderr, "corun: %s: unknown command (corun --help lists them)\n", name);
    return CMD_BAD;
}

/* A file that a closed standard stream's number were given to would get our messages in it. The
 * direction is the wrong one, so that a use of the stream is still an error. */
static bool hold_streams(void)
{
    static const int way[] = {O_WRONLY, O_RDONLY, O_RDONLY};
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", way[fd]) != fd)
            return false;
    return true;
}

/* A variable that is set and changes what a library of a device computes: "NAME=value", or NULL. */
static const char *foreign_variable(void)
{
    static const char *const prefix[] = {"CUBLAS",
                                         "NVIDIA_TF32_OVERRIDE=", "NCCL_ALGO=", "NCCL_PROTO="};
    for (char **e = environ; *e; e++)
        for (size_t i = 0; i < sizeof prefix / sizeof *prefix; i++)
            if (strncmp(*e, prefix[i], strlen(prefix[i])) == 0) return *e;
    return NULL;
}

/* Libraries read such variables before main, so without them the program starts anew. True: there
 * were none. */
static bool start_clean(char **argv)
{
    char name[256];
    bool found = false;
    for (const char *v; (v = foreign_variable()) != NULL; found = true) {
        size_t n = strcspn(v, "=");
        if (n < sizeof name) {
            memcpy(name, v, n);
            name[n] = 0;
        }
        if (n >= sizeof name || unsetenv(name) != 0) {
            fprintf(stderr, "corun: a variable that would change results cannot be removed\n");
            return false;
        }
        fprintf(stderr, "corun: the variable %s would change results: it is removed\n", name);
    }
    if (!found) return true;
    execv("/proc/self/exe", argv);
    fprintf(stderr, "corun: /proc/self/exe: %s\n", strerror(errno));
    return false;
}

int main(int argc, char **argv)
{
    if (!hold_streams() || !start_clean(argv)) return CMD_SYSTEM;
    if (argc > 2 && strcmp(argv[1], "--fault") == 0) { /* of a test build: base/fault.h */
        if (!fault_select(argv[2])) {
            fprintf(stderr, "corun: --fault %s: this build has no such fault\n", argv[2]);
            return CMD_BAD;
        }
        argv += 2;
        argc -= 2;
    }
    int code = dispatch(argc, argv);
    if ((fflush(stdout) != 0 || ferror(stdout)) && code == CMD_OK) {
        fprintf(stderr, "corun: standard output: %s\n", strerror(errno));
        code = CMD_SYSTEM;
    }
    return code;
}
