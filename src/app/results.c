/* results.c - owns the order of steps from the first row to the file in place. Invariant: the
 * journal is removed only after the complete output is in place and on disk. */
#include "app/results.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "app/facts.h"

static corun_status describe_input(results *r)
{
    char hex[33];
    if (!r->input.known) return facts_set(r->facts, "input", json_string("a stream"));
    json_t *in = json_object();
    digest_hex(r->input.text, hex);
    corun_status st = facts_set(in, "bytes", json_integer((json_int_t)r->input.bytes));
    if (st == CORUN_OK) st = facts_set(in, "lines", json_integer((json_int_t)r->input.n));
    if (st == CORUN_OK) st = facts_set(in, "digest", json_string(hex));
    if (st == CORUN_OK) return facts_set(r->facts, "input", in);
    json_decref(in);
    return st;
}

corun_status results_open(results *r, const char *out, const char *in, const char *model,
                          json_t *options, const char *command, bool restart)
{
    const char *version = corun_version(), *inputs[] = {in, model};
    r->facts = json_object();
    TRY(facts_set(r->facts, "options", options));
    TRY(lines_survey(in, &r->input));
    TRY(place_find(&r->at, out, inputs, 2));
    if (r->metrics) TRY(place_apart(r->metrics, &r->at, "--metrics"));
    if (!r->at.path) {
        if (restart) FAIL(CORUN_EINVAL, "--restart: standard output has no journal");
        return sink_open(&r->direct, &r->at);
    }
    TRY(journal_open(&r->journal, &r->at, restart));
    TRY(place_clear(&r->at));
    TRY(facts_set(r->facts, "release", json_stringn(version, strcspn(version, " "))));
    TRY(facts_set(r->facts, "command", json_string(command)));
    TRY(describe_input(r));
    return journal_check(r->journal, r->facts);
}

corun_status results_begin(results *r, const cmd_session *s)
{
    if (!r->journal) return CORUN_OK;
    TRY(facts_of_engine(r->facts, s));
    TRY(journal_begin(r->journal, r->facts));
    r->begun = true;
    if (r->quiet) return CORUN_OK;
    if (!journal_restored(r->journal)) {
        if (access(r->at.path, F_OK) == 0)
            fprintf(stderr,
                    "corun: %s is there: its rows are made anew, and it is replaced at the end\n",
                    r->at.path);
        return CORUN_OK;
    }
    fprintf(stderr, "corun: %s: %llu rows are done, going on from there%s\n", r->at.journal,
            (unsigned long long)journal_restored(r->journal),
            journal_torn(r->journal) ? " (a torn record was dropped)" : "");
    return CORUN_OK;
}

corun_status results_find(results *r, uint64_t index, journal_row *row, bool *found)
{
    *found = false;
    return r->journal ? journal_find(r->journal, index, row, found) : CORUN_OK;
}

corun_status results_add(results *r, const journal_row *row, const char *message, const char *data)
{
    if (!r->journal) return sink_put(r->direct, data, row->n_row);
    return journal_add(r->journal, row, message, data);
}

corun_status results_tick(results *r) { return r->journal ? journal_tick(r->journal) : CORUN_OK; }

/* The journal's rows in their order. */
static corun_status copy_rows(results *r, sink *to, uint64_t n, int (*stop)(void))
{
    journal_rewind(r->journal);
    for (uint64_t i = 0; i < n && !stop(); i++) {
        journal_row row;
        bool found;
        TRY(journal_find(r->journal, i, &row, &found));
        if (!found)
            FAIL(CORUN_EINTERNAL, "%s: row %llu is missing", r->at.journal, (unsigned long long)i);
        TRY(journal_copy(r->journal, &row, to));
    }
    return CORUN_OK;
}

corun_status results_end(results *r, const lines *in, uint64_t n, int (*stop)(void))
{
    digest text = lines_digest(in);
    if (!r->journal) {
        TRY(sink_commit(r->direct));
        r->done = true;
        return CORUN_OK;
    }
    if (r->input.known && (text.hi != r->input.text.hi || text.lo != r->input.text.lo))
        FAIL(CORUN_EINVAL, "the input was changed while it was read: no output is written");
    if (journal_rows(r->journal) != n)
        FAIL(CORUN_EINTERNAL, "%s: has %llu rows, the input has %llu", r->at.journal,
             (unsigned long long)journal_rows(r->journal), (unsigned long long)n);
    sink *to = NULL;
    TRY(journal_sync(r->journal));
    TRY(sink_open(&to, &r->at));
    corun_status st = copy_rows(r, to, n, stop);
    if (st == CORUN_OK && !stop()) {
        st = sink_commit(to);
        r->done = st == CORUN_OK;
    }
    sink_close(to);
    return r->done ? journal_remove(r->journal) : st;
}

void results_close(results *r)
{
    sink_close(r->direct);
    journal_close(r->journal);
    json_decref(r->facts);
    place_free(&r->at);
    *r = (results){0};
}

int cmd_close_results(results *r, corun_status st)
{
    int code = CMD_OK, sig = cmd_signal();
    bool kept = r->begun && !r->done && journal_rows(r->journal) > 0;
    if (sig && !r->done) {
        fprintf(stderr, "corun: ended by signal %d, no output is written\n", sig);
        code = CMD_SIGNAL + sig;
    } else if (st != CORUN_OK) {
        code = cmd_fail(st);
    }
    if (kept)
        fprintf(stderr, "corun: %llu rows are done and kept in %s: the same command goes on\n",
                (unsigned long long)journal_rows(r->journal), r->at.journal);
    results_close(r);
    return code;
}
