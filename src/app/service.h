/* service.h - one engine that carries the requests of many callers.
 *
 * The service's thread alone touches the engine. Callers hand in prepared jobs (job.h) and are told
 * of events and of the end on that thread. What a job's row says depends on the job only, so all
 * that is decided here - order, room, cancels - is about time. */
#ifndef APP_SERVICE_H
#define APP_SERVICE_H

#include "app/cmd.h"
#include "app/job.h"

typedef struct service service;

/* One job on its way. The caller's; it must live until `done`. */
typedef struct task {
    job *j;          /* prepared, its http is 200 */
    bool background; /* waits while any other task waits: lines of stored batches */
    void *ctx;
    /* The event was fed to the job. On the service's thread: must not wait. NULL: none. Not
     * CORUN_OK: the task ends with a 500 and this thread's error text. */
    corun_status (*event)(struct task *t, size_t prompt, const corun_event *e);
    /* Every choice has ended, or the job has failed (j->http, j->message; 499: cancelled; 503: a
     * task of the foreground, cancelled by service_stop), and nothing of it is left in the engine.
     * The task is the caller's again. On the service's thread; called exactly once. */
    void (*done)(struct task *t);
    /* CORUN_OK, or what kept the service from running the job to its end: its 500 is then no answer
     * that the request would always get. Set before `done`. */
    corun_status status;
    /* The service's own. */
    struct task *next;                /* in a queue */
    struct task *run_prev, *run_next; /* among those that have begun */
    double since, first;              /* clock_seconds(): handed in, its first token */
    _Atomic uint64_t n_new;           /* tokens so far, of all choices */
    bool cancelled, queued, started;
} task;

typedef struct service_opts {
    size_t queue;   /* tasks that may wait, those in the background not counted */
    size_t window;  /* prompts alive in the engine */
    size_t slots;   /* rows of a step: a task in the background starts only while fewer are used */
    size_t threads; /* for the work of SERVICE_CPU; each other lane has one */
} service_opts;

/* The session must outlive the service. */
corun_status service_open(service **out, cmd_session *s, const service_opts *o);
/* CORUN_ECAPACITY: the queue is full, or the service is being stopped. From any thread. */
corun_status service_submit(service *v, task *t);
/* The task ends as soon as may be, `done` says so. A task that has ended is no error as long as its
 * memory is there. From any thread. */
void service_cancel(service *v, task *t);
/* Runs fn(arg) on one of the service's threads, for work that is too long for the caller's thread.
 * What takes long, and what waits for the disk, has a thread of its own each, so that no other
 * request waits for it. CORUN_ECAPACITY: too much waits. */
typedef enum service_lane {
    SERVICE_CPU,   /* some milliseconds */
    SERVICE_LARGE, /* longer, as the request or its answer is large */
    SERVICE_DISK,
    SERVICE_LANES
} service_lane;
corun_status service_work(service *v, service_lane lane, void (*fn)(void *arg), void *arg);
/* service_stop has waited long enough: what is not yet handed in will not be taken. */
bool service_aborts(service *v);
/* The engine has failed as a whole: text of the cause, or NULL. No task is taken any more. */
const char *service_failure(const service *v);

/* Takes no more tasks, but what service_work has still to hand in; cancels those in the background
 * that have not begun; waits until the others have ended, at most `seconds`; then the rest is
 * cancelled. Returns when nothing is left, tasks or work, that of the disk not counted. True when
 * nothing in the foreground had to be cancelled. */
bool service_stop(service *v, double seconds);
/* After service_stop. Ends when the disk's work has ended too. NULL is fine. */
void service_close(service *v);

#define SERVICE_BUCKETS 16
typedef struct service_histogram {
    uint64_t count[SERVICE_BUCKETS]; /* of service_bounds, each below its bound; not cumulated */
    uint64_t n;
    double sum; /* seconds */
} service_histogram;
extern const double service_bounds[SERVICE_BUCKETS]; /* seconds; the last is infinite */

typedef struct service_stats {
    corun_stats engine;                          /* as of the last step */
    size_t waiting, waiting_background, running; /* tasks */
    uint64_t ok, failed, cancelled,
        refused; /* tasks that have ended; refused: the queue was full */
    service_histogram ttft, tpot,
        latency; /* seconds: to the first token, a token after it, whole */
} service_stats;
void service_read_stats(service *v, service_stats *out);

/* One task that has begun. */
typedef struct service_row {
    char id[40]; /* digest of the request, as in its answer's id */
    job_kind kind;
    bool stream, background;
    uint64_t prompt_tokens, new_tokens;
    double seconds; /* since it was handed in */
} service_row;
/* At most cap rows, those that began last first; their number. */
size_t service_running(service *v, service_row *out, size_t cap);

#endif
