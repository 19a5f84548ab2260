/* verify_files.c - owns the recipes that start this program again: H, L, M. Invariant: all files
 * lie in one new folder, which is removed with the column. */
#include "proof/verify_int.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { N_LINE = 8, MAX_ARG = 40 };

#define JOURNAL "killed.jsonl.corun-journal"

typedef struct vf_files {
    char dir[64];
    bool clean;    /* "clean.jsonl" is there, ... */
    size_t n_byte; /* ... and has so many bytes */
} vf_files;

static void path_of(const vf *v, const char *name, char out[128])
{
    snprintf(out, 128, "%s/%s", v->files->dir, name);
}

static corun_status open_folder(vf *v)
{
    if (v->files) return CORUN_OK;
    if (!MEM_NEW(v->files, 1)) return CORUN_ENOMEM;
    strcpy(v->files->dir, "/tmp/corun-verify-XXXXXX");
    if (mkdtemp(v->files->dir)) return CORUN_OK;
    int e = errno;
    mem_free(v->files);
    v->files = NULL;
    FAIL(CORUN_EIO, "/tmp: no folder can be made: %s", strerror(e));
}

void vf_files_close(vf *v)
{
    static const char *const names[] = {
        "in.jsonl",    "bad.jsonl",    "clean.jsonl", "again.jsonl",
        "mixed.jsonl", "killed.jsonl", JOURNAL,       ".killed.jsonl.corun-part",
        "log"};
    if (!v->files) return;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[128];
        path_of(v, names[i], path);
        unlink(path);
    }
    rmdir(v->files->dir);
    mem_free(v->files);
    v->files = NULL;
}

/* Made requests: their fields are those that a line here has. */
static const vf_job *made(const vf *v, size_t i)
{
    return &v->set[v->n_own + i % (v->n_set - v->n_own)];
}

/* ---- the batch file ------------------------------------------------------------------------- */

static void put_line(buf *b, size_t i, const corun_request *r)
{
    const corun_sampling *s = &r->sampling;
    jw w;
    jw_init(&w, b);
    buf_printf(b,
               "{\"custom_id\":\"row-%zu\",\"method\":\"POST\",\"url\":\"/v1/completions\","
               "\"body\":{\"model\":\"m\",\"prompt\":[",
               i);
    for (size_t k = 0; k < r->n_token; k++) buf_printf(b, "%s%d", k ? "," : "", r->tokens[k]);
    buf_printf(b, "],\"max_tokens\":%d,\"seed\":%llu,\"logprobs\":%d,\"ignore_eos\":%s",
               s->max_tokens, (unsigned long long)(s->seed >> 11), VERIFY_TOP,
               s->ignore_eos ? "true" : "false");
    const struct {
        const char *name;
        double v;
    } field[] = {{"temperature", s->temperature},
                 {"top_p", s->top_p},
                 {"min_p", s->min_p},
                 {"top_k", s->top_k},
                 {"frequency_penalty", s->frequency_penalty}};
    for (size_t k = 0; k < sizeof field / sizeof *field; k++) {
        char text[32];
        json_double_repr(field[k].v, text);
        buf_printf(b, ",\"%s\":%s", field[k].name, text);
    }
    buf_puts(b, "}}\n");
}

static corun_status write_file(const vf *v, const char *name, const buf *b)
{
    char path[128];
    TRY(buf_status(b));
    path_of(v, name, path);
    FILE *f = fopen(path, "wb");
    bool ok = f && fwrite(b->data, 1, b->len, f) == b->len;
    if (f && fclose(f) != 0) ok = false;
    if (!ok) FAIL(CORUN_EIO, "%s: %s", path, strerror(errno));
    return CORUN_OK;
}

/* The lines of the set, and with `bad` others among them that must be refused. */
static corun_status write_lines(vf *v, const char *name, bool bad, int *n_bad)
{
    buf b;
    buf_init(&b, (size_t)64 << 20);
    int32_t cut = v->few ? 24 : 64;
    *n_bad = 0;
    for (size_t i = 0; i < N_LINE; i++) {
        if (bad && i == 1) {
            buf_puts(&b, "{\"custom_id\":\"torn\",\"method\":\"PO\n");
            (*n_bad)++;
        }
        if (bad && i == 2) { /* a prompt that the context does not hold */
            buf_puts(&b, "{\"custom_id\":\"long\",\"method\":\"POST\",\"url\":\"/v1/completions\","
                         "\"body\":{\"model\":\"m\",\"prompt\":[1");
            for (int32_t k = 0; k < v->info.n_ctx; k++) buf_puts(&b, ",1");
            buf_puts(&b, "]}}\n");
            (*n_bad)++;
        }
        if (bad && i == 4) { /* a line that is too long to be read */
            buf_puts(&b, "{\"custom_id\":\"");
            for (int32_t k = 0; k < 17 << 20; k++) buf_putc(&b, 'x');
            buf_puts(&b, "\"}\n");
            (*n_bad)++;
        }
        corun_request r = vf_cut(made(v, i)->r, cut);
        put_line(&b, i, &r);
    }
    corun_status st = write_file(v, name, &b);
    buf_free(&b);
    return st;
}

/* ---- the other process ---------------------------------------------------------------------- */

extern char **environ;

static corun_status start(const vf *v, char *const *argv, pid_t *pid)
{
    char log[128];
    posix_spawn_file_actions_t fa;
    path_of(v, "log", log);
    posix_spawn_file_actions_init(&fa);
    posix_spawn_file_actions_addopen(&fa, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&fa, 1, log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_adddup2(&fa, 1, 2);
    int e = posix_spawn(pid, v->o->program, &fa, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&fa);
    if (e) FAIL(CORUN_EIO, "%s: %s", v->o->program, strerror(e));
    return CORUN_OK;
}

static corun_status ended_badly(const vf *v, int status)
{
    char log[128];
    buf b;
    path_of(v, "log", log);
    buf_init(&b, 1 << 16);
    corun_status st = file_read(&b, log, 1 << 15);
    if (st == CORUN_OK)
        st = err_set(CORUN_EMISMATCH, "the process ended with status %d: %.*s", status,
                     (int)(b.len > 300 ? 300 : b.len), b.data ? b.data : "");
    buf_free(&b);
    return st;
}

/* `corun batch` on one of the files, with the options of this column. */
static corun_status start_batch(const vf *v, const char *in, const char *out, pid_t *pid)
{
    char in_path[128], out_path[128], slots[16], page[16], chunk[16], ctx[16], threads[16];
    path_of(v, in, in_path);
    path_of(v, out, out_path);
    snprintf(slots, sizeof slots, "%d", v->eo.n_slot);
    snprintf(page, sizeof page, "%d", v->eo.page_tokens);
    snprintf(chunk, sizeof chunk, "%d", v->eo.prefill_chunk);
    snprintf(ctx, sizeof ctx, "%d", v->eo.n_ctx);
    snprintf(threads, sizeof threads, "%d", v->o->model.n_thread);
    const char *argv[MAX_ARG] = {v->o->program};
    size_t n = 1;
    for (size_t i = 0; v->o->prefix && v->o->prefix[i]; i++) argv[n++] = v->o->prefix[i];
    const char *const rest[] = {"batch",
                                "-m",
                                v->model,
                                "-i",
                                in_path,
                                "-o",
                                out_path,
                                "--policy",
                                v->p->name,
                                "--slots",
                                slots,
                                "--page",
                                page,
                                "--chunk",
                                chunk,
                                "--ctx",
                                ctx,
                                "--threads",
                                threads,
                                "--device",
                                v->o->model.device,
                                "--isa",
                                v->o->model.isa,
                                "--kv",
                                "64M",
                                "--quiet"};
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++) argv[n++] = rest[i];
    if (v->o->model.dummy_weights) argv[n++] = "--dummy-weights";
    if (v->o->model.plan) {
        argv[n++] = "--plan";
        argv[n++] = v->o->model.plan;
    }
    if (v->eo.processed_logprobs) argv[n++] = "--processed-logprobs";
    if (v->eo.allow_special_rows) argv[n++] = "--allow-special-rows";
    argv[n] = NULL;
    return start(v, (char *const *)(uintptr_t)argv, pid);
}

static corun_status run_batch(const vf *v, const char *in, const char *out)
{
    pid_t pid;
    int status;
    TRY(start_batch(v, in, out, &pid));
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR) FAIL(CORUN_EIO, "waitpid: %s", strerror(errno));
    return status == 0 ? CORUN_OK : ended_badly(v, status);
}

static corun_status read_out(const vf *v, const char *name, buf *b)
{
    char path[128];
    path_of(v, name, path);
    return file_read(b, path, (size_t)256 << 20);
}

static corun_status need_clean(vf *v)
{
    int n_bad;
    TRY(open_folder(v));
    if (v->files->clean) return CORUN_OK;
    TRY(write_lines(v, "in.jsonl", false, &n_bad));
    TRY(run_batch(v, "in.jsonl", "clean.jsonl"));
    struct stat s;
    char path[128];
    path_of(v, "clean.jsonl", path);
    if (stat(path, &s) != 0) FAIL(CORUN_EIO, "%s: %s", path, strerror(errno));
    v->files->n_byte = (size_t)s.st_size;
    v->files->clean = true;
    return CORUN_OK;
}

static size_t line_len(const buf *b, size_t at)
{
    const char *e = memchr(b->data + at, '\n', b->len - at);
    return e ? (size_t)(e - b->data) + 1 - at : b->len - at;
}

/* Each row of `want` is in `got` at its turn; rows between them are error rows. */
static void compare_rows(vf_cell *c, const buf *want, const buf *got, int n_bad)
{
    size_t a = 0, b = 0;
    int row = 0, others = 0;
    while (b < got->len) {
        size_t nb = line_len(got, b), na = a < want->len ? line_len(want, a) : 0;
        if (na && na == nb && memcmp(want->data + a, got->data + b, na) == 0) {
            a += na;
            row++;
        } else if (memmem(got->data + b, nb, "\"status_code\":400", 17)) {
            others++;
        } else {
            vf_broken(c, "row %d: its bytes differ", row);
            return;
        }
        b += nb;
    }
    if (a < want->len) vf_broken(c, "row %d is not there", row);
    if (others != n_bad) vf_broken(c, "%d error rows, not %d", others, n_bad);
}

/* Compares two result files and counts the rows and tokens in them. */
static corun_status compare_files(vf *v, vf_cell *c, const char *name, int n_bad)
{
    buf want, got;
    buf_init(&want, (size_t)256 << 20);
    buf_init(&got, (size_t)256 << 20);
    corun_status st = read_out(v, "clean.jsonl", &want);
    if (st == CORUN_OK) st = read_out(v, name, &got);
    if (st == CORUN_OK) {
        compare_rows(c, &want, &got, n_bad);
        if (memmem(want.data, want.len, "\"status_code\":400", 17))
            vf_broken(c, "a good line gave an error row");
        for (size_t i = 0; i < N_LINE; i++)
            c->n_token += vf_cut(made(v, i)->r, v->few ? 24 : 64).sampling.max_tokens;
    }
    buf_free(&want);
    buf_free(&got);
    return st;
}

/* L: two processes give the same bytes. */
corun_status vf_process(vf *v, vf_cell *c)
{
    if (!v->o->program) {
        vf_na(c, "the program does not know where it is");
        return CORUN_OK;
    }
    TRY(need_clean(v));
    TRY(run_batch(v, "in.jsonl", "again.jsonl"));
    vf_note(c, "2 processes, %d lines", N_LINE);
    return compare_files(v, c, "again.jsonl", 0);
}

/* Starts the batch and kills it when its journal is `size` bytes long or more. *size becomes what
 * it holds then; *ended: it came to its end before. */
static corun_status kill_batch(const vf *v, off_t *size, bool *ended)
{
    char journal[128];
    pid_t pid;
    int status = 0;
    off_t want = *size;
    path_of(v, JOURNAL, journal);
    TRY(start_batch(v, "in.jsonl", "killed.jsonl", &pid));
    const struct timespec nap = {.tv_nsec = 500000};
    for (;;) {
        struct stat s;
        pid_t got = waitpid(pid, &status, WNOHANG);
        *ended = got == pid;
        if (got < 0 && errno != EINTR) FAIL(CORUN_EIO, "waitpid: %s", strerror(errno));
        if (*ended) return status == 0 ? CORUN_OK : ended_badly(v, status);
        *size = stat(journal, &s) == 0 ? s.st_size : 0;
        if (*size >= want) break;
        nanosleep(&nap, NULL);
    }
    kill(pid, SIGKILL);
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR) FAIL(CORUN_EIO, "waitpid: %s", strerror(errno));
    return CORUN_OK;
}

/* H: kill -9 when the journal has grown past a random place, again and again, then once to the
 * end. Once its last record is torn as well. A run that ends before its kill is compared, and the
 * next one begins from nothing. */
corun_status vf_killed(vf *v, vf_cell *c)
{
    enum { MOST_STARTS = 60 };
    const int most = v->few ? 2 : 5;
    int n_kill = 0, n_rows = 0, n_torn = 0; /* n_rows: kills that left rows */
    char journal[128], out[128];
    if (!v->o->program) {
        vf_na(c, "the program does not know where it is");
        return CORUN_OK;
    }
    TRY(need_clean(v));
    path_of(v, JOURNAL, journal);
    path_of(v, "killed.jsonl", out);
    const off_t row = (off_t)v->files->n_byte / N_LINE;
    off_t at = 0;
    for (int i = 0; i < MOST_STARTS; i++) {
        bool ended, enough = n_rows >= most;
        off_t size = enough ? INT64_MAX : at + 1 + (off_t)vf_rand(v, (uint64_t)(2 * row));
        TRY(kill_batch(v, &size, &ended));
        if (ended) {
            TRY(compare_files(v, c, "killed.jsonl", 0));
            if (enough || c->state == VF_BROKEN) break;
            unlink(out);
            at = 0;
            continue;
        }
        n_kill++;
        at = size;
        if (at <= row) continue;
        n_rows++;
        if (!n_torn && truncate(journal, at - 7) == 0) n_torn++;
    }
    vf_note(c, "%d kills, %d of them with rows in the journal, %d torn record", n_kill, n_rows,
            n_torn);
    vf_need(c, (uint64_t)n_rows, "a kill that left rows to go on from");
    vf_need(c, (uint64_t)n_torn, "a torn record");
    return CORUN_OK;
}

/* M: bad lines give error rows and change no other row. */
corun_status vf_bad_lines(vf *v, vf_cell *c)
{
    int n_bad;
    if (!v->o->program) {
        vf_na(c, "the program does not know where it is");
        return CORUN_OK;
    }
    TRY(need_clean(v));
    TRY(write_lines(v, "bad.jsonl", true, &n_bad));
    TRY(run_batch(v, "bad.jsonl", "mixed.jsonl"));
    vf_note(c, "%d bad lines among %d: torn, longer than the context, longer than a line may be",
            n_bad, N_LINE);
    vf_need(c, (uint64_t)n_bad, "bad lines");
    return compare_files(v, c, "mixed.jsonl", n_bad);
}
