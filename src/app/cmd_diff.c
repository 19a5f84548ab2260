/* cmd_diff.c - owns `corun diff`: two result files, row by row. Invariant: the exit code speaks of
 * the answers; a difference of identity alone is shown, not counted. */
#include <stdio.h>
#include <string.h>

#include "app/cmd.h"
#include "app/fingerprint.h"
#include "app/rows.h"
#include "proof/diff.h"

typedef struct diff_args {
    const char *pos[2];
    const char *identity[2];
    bool help;
} diff_args;

typedef struct diff_run {
    rows in[2];
    fingerprints print[2];
    uint64_t errors[2], only[2], equal, different;
    diff_count count;
    diff_place first;
    char first_name[160];
    uint64_t first_line[2];
} diff_run;

static corun_status read_args(diff_args *a, int argc, char **argv)
{
    const arg_spec specs[] = {
        {NULL, 0, ARG_FLAG, NULL, NULL, "Options:"},
        {"identity-a", 0, ARG_TEXT, &a->identity[0], "FILE",
         "identity of A: what `batch --metrics` or `info --identity --json` wrote"},
        {"identity-b", 0, ARG_TEXT, &a->identity[1], "FILE", "identity of B"},
        {"help", 'h', ARG_FLAG, &a->help, NULL, "this text"},
    };
    size_t n;
    TRY(args_parse(specs, sizeof specs / sizeof *specs, argc, argv, a->pos, 2, &n));
    if (a->help) {
        puts("corun diff A.jsonl B.jsonl [options]\n\n"
             "Compares two result files of any engine, rows in any order: what differs, where "
             "first,\nand where rows part. Exit code 0: equal, 1: different, 2: bad input.");
        args_help(specs, sizeof specs / sizeof *specs);
        return CORUN_OK;
    }
    if (n != 2) FAIL(CORUN_EINVAL, "two result files are needed");
    if (strcmp(a->pos[0], "-") == 0 && strcmp(a->pos[1], "-") == 0)
        FAIL(CORUN_EINVAL, "only one of the files can be standard input");
    return CORUN_OK;
}

static corun_status compare_row(diff_run *d, const rows_entry *e)
{
    json_t *a = NULL, *b = NULL;
    rows_entry *other = rows_find(&d->in[1], e->key);
    corun_status st = rows_parse(&d->in[0], e, &a);
    if (st == CORUN_OK) fingerprints_add(&d->print[0], a);
    if (st == CORUN_OK) d->errors[0] += diff_is_error(a);
    if (st == CORUN_OK && !other) d->only[0]++;
    if (st == CORUN_OK && other) {
        diff_place p = {.kind = DIFF_EQUAL};
        other->seen = true;
        st = rows_parse(&d->in[1], other, &b);
        if (st == CORUN_OK) diff_rows(a, b, &p, &d->count);
        if (st == CORUN_OK && p.kind == DIFF_EQUAL) d->equal++;
        if (st == CORUN_OK && p.kind != DIFF_EQUAL && d->different++ == 0) {
            d->first = p;
            rows_name(a, e, d->first_name);
            d->first_line[0] = e->line;
            d->first_line[1] = other->line;
        }
    }
    json_decref(a);
    json_decref(b);
    return st;
}

static corun_status compare(diff_run *d)
{
    for (size_t i = 0; i < d->in[0].n && !cmd_signal(); i++) TRY(compare_row(d, &d->in[0].row[i]));
    for (size_t i = 0; i < d->in[1].n && !cmd_signal(); i++) {
        json_t *row;
        TRY(rows_parse(&d->in[1], &d->in[1].row[i], &row));
        d->errors[1] += diff_is_error(row);
        d->only[1] += !d->in[1].row[i].seen;
        fingerprints_add(&d->print[1], row);
        json_decref(row);
    }
    return CORUN_OK;
}

static void print_pair(const char *what, uint64_t a, uint64_t b)
{
    printf("%-18s A %llu, B %llu\n", what, (unsigned long long)a, (unsigned long long)b);
}

static void print_histogram(const diff_count *n)
{
    int last = -1;
    for (int i = 0; i < DIFF_N_BUCKET; i++)
        if (n->any[i] || n->token[i]) last = i;
    if (last >= 0) printf("\nsamples part at    first bit  first token\n");
    for (int i = 0; i <= last; i++) {
        char name[48];
        unsigned long long lo = i ? 1ull << (i - 1) : 0, hi = i ? (1ull << i) - 1 : 0;
        if (lo == hi)
            snprintf(name, sizeof name, "token %llu", lo);
        else
            snprintf(name, sizeof name, "token %llu-%llu", lo, hi);
        printf("  %-16s %9llu  %11llu\n", name, (unsigned long long)n->any[i],
               (unsigned long long)n->token[i]);
    }
    for (int k = DIFF_PROMPT; k < DIFF_N_KIND; k++)
        if (n->kind[k])
            printf("  %-16s %9llu\n", diff_kind_name((diff_kind)k), (unsigned long long)n->kind[k]);
}

static corun_status print_report(const diff_run *d, const diff_args *a)
{
    print_pair("rows", d->in[0].n, d->in[1].n);
    print_pair("only in one", d->only[0], d->only[1]);
    print_pair("error rows", d->errors[0], d->errors[1]);
    if (d->in[0].n_bad || d->in[1].n_bad) print_pair("bad lines", d->in[0].n_bad, d->in[1].n_bad);
    if (d->in[0].n_twin || d->in[1].n_twin)
        print_pair("names twice", d->in[0].n_twin, d->in[1].n_twin);
    printf("%-18s %llu\n%-18s %llu\n", "equal", (unsigned long long)d->equal, "different",
           (unsigned long long)d->different);
    printf("%-18s %llu samples, %llu tokens, %llu log-probabilities\n", "compared",
           (unsigned long long)d->count.samples, (unsigned long long)d->count.tokens,
           (unsigned long long)d->count.logprobs);
    if (d->count.text_only) printf(DIFF_TEXT_ONLY, (unsigned long long)d->count.text_only);
    buf b;
    buf_init(&b, (size_t)1 << 24);
    corun_status st =
        fingerprints_compare(&d->print[0], a->identity[0], &d->print[1], a->identity[1], &b);
    if (st == CORUN_OK && d->different) {
        buf_printf(&b, "\nfirst difference: %s (A line %llu, B line %llu)\n  ", d->first_name,
                   (unsigned long long)d->first_line[0], (unsigned long long)d->first_line[1]);
        diff_place_text(&d->first, &b);
        buf_putc(&b, '\n');
    }
    if (st == CORUN_OK) st = buf_status(&b);
    if (st == CORUN_OK) fwrite(b.data, 1, b.len, stdout);
    buf_free(&b);
    if (st == CORUN_OK) print_histogram(&d->count);
    return st;
}

int cmd_diff(int argc, char **argv)
{
    diff_args a = {0};
    diff_run d = {0};
    corun_status st = read_args(&a, argc, argv);
    if (st != CORUN_OK) return cmd_usage("diff", "%s", corun_last_error());
    if (a.help) return CMD_OK;
    cmd_signals_install();
    st = rows_read(&d.in[0], a.pos[0]);
    if (st == CORUN_OK) st = rows_read(&d.in[1], a.pos[1]);
    if (st == CORUN_OK) st = compare(&d);
    if (st == CORUN_OK && !cmd_signal()) st = print_report(&d, &a);
    int code = CMD_OK;
    if (cmd_signal())
        code = CMD_SIGNAL + cmd_signal();
    else if (st != CORUN_OK)
        code = cmd_fail(st);
    else if (d.in[0].n_bad || d.in[1].n_bad)
        code = CMD_BAD;
    else if (d.different || d.only[0] || d.only[1])
        code = CMD_PROMISE;
    for (int i = 0; i < 2; i++) rows_free(&d.in[i]);
    return code;
}
