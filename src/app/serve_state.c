/* serve_state.c - owns the server's state folder: which one it is, opening it, what happens when it
 * cannot be had. Invariant: there is a store exactly when there is a runner for its batches. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app/serve_store.h"

static const char no_memory[] = "no memory";

static void why(serve *s, const char *text)
{
    char *copy = mem_dup(text, strlen(text), "reason");
    s->store_why = copy ? copy : no_memory;
}

/* $XDG_STATE_HOME, else ~/.local/state; and /corun/serve. Only absolute paths count. */
static corun_status usual_folder(buf *path)
{
    const char *base = getenv("XDG_STATE_HOME"), *sub = "";
    if (!base || *base != '/') {
        base = getenv("HOME");
        sub = "/.local/state";
    }
    if (!base || *base != '/')
        FAIL(CORUN_EINVAL, "neither XDG_STATE_HOME nor HOME names a folder (--state)");
    buf_printf(path, "%s%s/corun/serve", base, sub);
    buf_putc(path, 0);
    return buf_status(path);
}

static corun_status open_store(serve *s, const char *folder)
{
    buf path;
    buf_init(&path, 1 << 16);
    corun_status st = CORUN_OK;
    if (!folder) {
        st = usual_folder(&path);
        folder = path.data;
    }
    if (st == CORUN_OK) st = store_open(&s->store, folder);
    if (st == CORUN_OK) st = runner_start(&s->runner, s->store, s->service, &s->session, s->slots);
    if (st != CORUN_OK) {
        store_close(s->store);
        s->store = NULL;
    }
    buf_free(&path);
    return st;
}

corun_status serve_state_open(serve *s, const char *folder, bool none)
{
    if (none) {
        why(s, "it was started with --no-state");
        return CORUN_OK;
    }
    corun_status st = open_store(s, folder);
    if (st == CORUN_OK || folder) return st; /* the folder that was asked for must be had */
    why(s, err_text());
    fprintf(stderr, "corun serve: no files and no batches: %s\n", err_text());
    return CORUN_OK;
}

void serve_state_stop(serve *s)
{
    if (s->runner) runner_stop(s->runner);
}

void serve_state_close(serve *s)
{
    runner_close(s->runner);
    store_close(s->store);
    if (s->store_why != no_memory) mem_free((void *)(uintptr_t)s->store_why);
}
