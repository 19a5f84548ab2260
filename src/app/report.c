/* report.c - owns progress and metrics. Invariant: nothing here reaches a result file. */
#include "app/report.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

enum { SHOW_ERRORS = 20, KEEP_ERRORS = 10000 };

void report_init(report *r, bool quiet)
{
    *r = (report){.quiet = quiet, .terminal = isatty(STDERR_FILENO) == 1};
    r->begin = r->ready = r->shown = clock_seconds();
}

void report_free(report *r)
{
    for (size_t i = 0; i < r->n_listed; i++) mem_free(r->error[i].message);
    mem_free(r->error);
    r->error = NULL;
    r->n_listed = r->cap_listed = 0;
}

void report_ready(report *r) { r->ready = clock_seconds(); }

static void clear_bar(const report *r)
{
    if (r->terminal && !r->quiet) fputs("\r\033[K", stderr);
}

corun_status report_row(report *r, const job *j)
{
    if (j->http == 200) {
        r->n_ok++;
        return CORUN_OK;
    }
    const char *text = j->message ? j->message : "no memory for the message";
    if (r->n_error++ < SHOW_ERRORS) {
        clear_bar(r);
        fprintf(stderr, "corun: line %llu: %s\n", (unsigned long long)j->line_no, text);
    }
    if (r->n_listed == KEEP_ERRORS) return CORUN_OK;
    if (r->n_listed == r->cap_listed) {
        size_t cap = r->cap_listed ? 2 * r->cap_listed : 16;
        report_error *e = mem_realloc(r->error, cap, sizeof *e, "error list");
        if (!e) return CORUN_ENOMEM;
        r->error = e;
        r->cap_listed = cap;
    }
    char *copy = mem_dup(text, strlen(text), "error list");
    if (!copy) return CORUN_ENOMEM;
    r->error[r->n_listed++] = (report_error){j->line_no, j->http, copy};
    return CORUN_OK;
}

static void put_time(char out[24], double s)
{
    long t = s < 0 ? 0 : s > 3.6e8 ? 360000000 : (long)(s + 0.5);
    if (t >= 3600)
        snprintf(out, 24, "%ld:%02ld:%02ld", t / 3600, t / 60 % 60, t % 60);
    else
        snprintf(out, 24, "%ld:%02ld", t / 60, t % 60);
}

/* What the rates count: new tokens; where none are made, as in scoring, those of the prompts. */
static uint64_t counted(const report *r)
{
    return r->n_new_tokens ? r->n_new_tokens : r->n_prompt_tokens;
}

void report_tick(report *r, const corun_stats *s)
{
    r->n_prompt_tokens = s->tokens_prompt;
    r->n_new_tokens = s->tokens_new;
    double t = clock_seconds();
    if (r->quiet || t - r->shown < (r->terminal ? 0.2 : 10)) return;
    r->shown = t;
    uint64_t done = r->n_done;
    double spent = t - r->ready, rate = spent > 0 ? (double)counted(r) / spent : 0;
    char left[24] = "?", bar[32] = "";
    if (r->n_total && done > r->n_restored)
        put_time(left, spent / (double)(done - r->n_restored) * (double)(r->n_total - done));
    if (r->n_total && done) {
        bar[0] = '[';
        for (uint64_t i = 0; i < 20; i++) bar[1 + i] = i < 20 * done / r->n_total ? '#' : '.';
        memcpy(bar + 21, "] ", 3);
    }
    char total[32] = "";
    if (r->n_total) snprintf(total, sizeof total, "/%llu", (unsigned long long)r->n_total);
    fprintf(stderr, "%s%s%llu%s rows, %.0f tokens/s, %s left%s",
            r->terminal ? "\r\033[K" : "corun: ", r->terminal ? bar : "", (unsigned long long)done,
            total, rate, left, r->terminal ? "" : "\n");
}

void report_end(report *r)
{
    clear_bar(r);
    if (r->n_error > SHOW_ERRORS)
        fprintf(stderr, "corun: %llu more error rows\n",
                (unsigned long long)(r->n_error - SHOW_ERRORS));
    if (r->quiet) return;
    double spent = clock_seconds() - r->ready;
    char t[24], kept[64] = "", tokens[96] = "";
    put_time(t, spent);
    if (counted(r))
        snprintf(tokens, sizeof tokens, ", %llu %s tokens in %s (%.0f tokens/s)",
                 (unsigned long long)counted(r), r->n_new_tokens ? "new" : "prompt", t,
                 spent > 0 ? (double)counted(r) / spent : 0);
    if (r->n_checked)
        snprintf(tokens, sizeof tokens, ", %llu prompt tokens", (unsigned long long)r->n_checked);
    if (r->n_restored)
        snprintf(kept, sizeof kept, " (%llu from the journal)", (unsigned long long)r->n_restored);
    fprintf(stderr, "corun: %llu rows%s, %llu with errors%s\n",
            (unsigned long long)(r->n_ok + r->n_error), kept, (unsigned long long)r->n_error,
            tokens);
}

static void put_stats(jw *w, const corun_stats *s)
{
    const struct {
        const char *name;
        uint64_t v;
    } count[] = {
        {"steps_prefill", s->steps_prefill}, {"steps_decode", s->steps_decode},
        {"steps_mixed", s->steps_mixed},     {"tokens_prompt", s->tokens_prompt},
        {"tokens_new", s->tokens_new},       {"rows_live", s->rows_live},
        {"rows_dead", s->rows_dead},         {"swaps_out", s->swaps_out},
        {"swaps_in", s->swaps_in},           {"recomputes", s->recomputes},
        {"prefix_hits", s->prefix_hits},     {"prefix_tokens", s->prefix_tokens},
        {"prompt_cuts", s->prompt_cuts},     {"pages", s->pages},
        {"pages_peak", s->pages_peak},       {"swap_pages", s->swap_pages},
    };
    for (size_t i = 0; i < sizeof count / sizeof *count; i++) {
        jw_field_uint(w, count[i].name, count[i].v);
    }
    jw_key(w, "live_rows_seen");
    jw_open(w, '[');
    for (unsigned r = 0; r < 512; r++)
        if (s->live_rows_seen[r / 64] >> r % 64 & 1) jw_uint(w, r + 1);
    jw_close(w, ']');
    jw_field_double(w, "seconds_prefill", s->seconds_prefill);
    jw_field_double(w, "seconds_decode", s->seconds_decode);
    jw_field_double(w, "seconds_sample", s->seconds_sample);
    jw_field_double(w, "seconds_wait", s->seconds_wait);
}

corun_status report_metrics(const report *r, const corun_stats *s, const char *identity,
                            size_t identity_len, buf *b)
{
    double end = clock_seconds(), spent = end - r->ready;
    jw w;
    jw_init(&w, b);
    jw_open(&w, '{');
    jw_field_uint(&w, "rows", r->n_ok + r->n_error);
    jw_field_uint(&w, "rows_restored", r->n_restored);
    jw_field_uint(&w, "error_rows", r->n_error);
    jw_key(&w, "errors"); /* the first 10,000 */
    jw_open(&w, '[');
    for (size_t i = 0; i < r->n_listed; i++) {
        jw_open(&w, '{');
        jw_field_uint(&w, "line", r->error[i].line_no);
        jw_field_int(&w, "status_code", r->error[i].http);
        jw_field_str(&w, "message", r->error[i].message);
        jw_close(&w, '}');
    }
    jw_close(&w, ']');
    jw_field_double(&w, "seconds_open", r->ready - r->begin);
    jw_field_double(&w, "seconds_run", spent);
    jw_field_double(&w, "new_tokens_per_second", spent > 0 ? (double)s->tokens_new / spent : 0);
    put_stats(&w, s);
    jw_field_str(&w, "version", corun_version());
    json_t *id;
    if (identity && json_read(&id, identity, identity_len, "identity") == CORUN_OK) {
        jw_key(&w, "identity");
        jw_value(&w, id);
        json_decref(id);
    }
    jw_close(&w, '}');
    buf_putc(b, '\n');
    return buf_status(b);
}
