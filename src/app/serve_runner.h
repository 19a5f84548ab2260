/* serve_runner.h - works on stored batches, one at a time, the oldest first: validates the file,
 * hands its lines to the service as tasks of the background, keeps the rows, makes the files.
 *
 * All that it knows is in the store, so that a server which was killed goes on where its rows end.
 * What the store cannot take - a full disk - is tried again until it can. */
#ifndef APP_SERVE_RUNNER_H
#define APP_SERVE_RUNNER_H

#include "app/service.h"
#include "app/store.h"

#define RUNNER_MAX_BYTES  ((size_t)48 << 20) /* of lines and rows in memory */
#define RUNNER_MAX_ERRORS 20u                /* of a batch that are listed */

typedef struct runner runner;

/* Before the service has its first task: the engine is asked for its identity. slots: rows of a
 * step. */
corun_status runner_start(runner **out, store *s, service *v, const cmd_session *session,
                          size_t slots);
/* A batch was added, or is to be cancelled. From any thread. */
void runner_wake(runner *r);
/* What keeps the batch from going on, if anything does. */
bool runner_trouble(runner *r, uint64_t seq, char *out, size_t cap);
/* Takes back what is in the service and keeps the rows that are finished. Before
 * service_stop; a second call does nothing. */
void runner_stop(runner *r);
void runner_close(runner *r); /* after runner_stop; NULL is fine */

#endif
