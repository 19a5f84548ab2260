/* sink.h - where rows go: standard output, or a file that is put in place when it is complete.
 *
 * A file is written beside its place under another name and put there by rename, so a reader sees
 * the old file or the whole new one. That other file is locked: a second process is refused. */
#ifndef APP_SINK_H
#define APP_SINK_H

#include "base/mem.h"

/* The place that an output's name means. path NULL: standard output. */
typedef struct place {
    char *path;    /* a link's target */
    char *folder;  /* that holds it */
    char *temp;    /* beside it: .NAME.corun-part */
    char *journal; /* beside it: NAME.corun-journal */
    bool gz;       /* the name ends in .gz: compressed */
} place;

/* name "-": standard output. Refuses (CORUN_EINVAL) what can be seen to fail before the work: no
 * regular file, a link that leads nowhere, one of the inputs or a file of a model among them (a
 * GGUF file or a folder), a folder that cannot be written. Inputs may be NULL or "-". */
corun_status place_find(place *p, const char *name, const char *const *input, size_t n_input);
/* Removes a temporary file that a killed process left. CORUN_EINVAL: a process still writes it. */
corun_status place_clear(const place *p);
/* CORUN_EINVAL: what p's option names and the output q would be one file, or one beside it. */
corun_status place_apart(const place *p, const place *q, const char *option);
/* place_find for what has no journal. CORUN_EINVAL too: a batch that is not at its end has one
 * there, and will write its rows. */
corun_status place_find_idle(place *p, const char *name, const char *const *input, size_t n_input);
void place_free(place *p);

/* Opens path for reading and writing, makes it where it is not there, and locks it. Follows no
 * link and opens regular files only. CORUN_EINVAL: another process holds it, or the caller must
 * mend it; CORUN_EIO: the system failed. */
corun_status file_lock(int *fd, const char *path);
/* The names in the folder are on disk. File systems that cannot do this are no error. */
void folder_sync(const char *folder);
/* The status for a file that cannot be made or opened: CORUN_EIO when the system is at fault. */
corun_status place_refusal(int err);

typedef struct sink sink;

corun_status sink_open(sink **out, const place *p); /* p must outlive it */
corun_status sink_put(sink *s, const char *data, size_t len);
corun_status sink_commit(sink *s); /* everything is on disk and in place */
void sink_close(sink *s);          /* without a commit before: the temporary file is removed */
corun_status sink_whole(const place *p, const buf *b); /* b alone: open, put, commit, close */

#endif
