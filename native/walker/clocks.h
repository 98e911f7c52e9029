/* clocks.c: reads CPU times and states of threads from the kernel. Needs the GIL only for Python values. */
#ifndef SPLUNK_PROFILER_WALKER_CLOCKS_H
#define SPLUNK_PROFILER_WALKER_CLOCKS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#define SECOND_NS        1000000000LL
#define CLOCKS_PROBE_NS  50000LL /* longer than most waits for a woken thread, shorter than most work */
#define THREAD_STAT_SIZE 512

/* RUNNING: the thread had a processor at the deadline. READY: it waited for one, or held the GIL at the
 * capture without a processor at the deadline. WANTS_GIL: it had none at the deadline, and waited for the GIL at the
 * capture. UNKNOWN: not measured. */
typedef enum {
    THREAD_UNKNOWN = -1,
    THREAD_WAITING = 0,
    THREAD_READY = 1,
    THREAD_RUNNING = 2,
    THREAD_WANTS_GIL = 3
} thread_state;

/* The CPU clock of one thread of the last snapshot. */
typedef struct {
    uint64_t key;
    pid_t native_id;
    int64_t cpu_ns;        /* 0: the thread has ended, or its clock cannot be read */
    int64_t read_ns;       /* time of the reading, monotonic */
    int64_t reader_cpu_ns; /* CPU time of the reading thread at that time */
    bool has_run, is_busy; /* it used CPU time, or much of it, since the previous deadline */
    thread_state state;
} clock_entry;

/* The clocks at one deadline. */
typedef struct {
    int64_t deadline_ns;           /* deadline of the capture that they are for; 0: it has none */
    int64_t process_ns;            /* CPU time of the process, read first */
    bool is_quiet;                 /* no thread of the application has run since the previous reading */
    bool was_quiet_since_snapshot; /* nor since the snapshot of these threads, which says of none that it ran */
    size_t count, capacity;
    clock_entry entries[]; /* oldest thread first */
} clock_table;

/* clocks.c: a thread that takes the table out has it alone, and returns it. */
typedef struct {
    _Atomic(clock_table *) table; /* NULL: none yet, or a thread works on it */
    uint32_t probe_phase;         /* share of the probe, in 2^-32; belongs to the holder of the table */
} cpu_clocks;

struct raw_snapshot;
struct ticker_state;

#pragma GCC visibility push(hidden)

int64_t clock_ns(clockid_t clock); /* 0: it cannot be read */
int64_t monotonic_ns(void);
void init_condition(pthread_cond_t *condition); /* for waits until a time of monotonic_ns */
void wait_on_condition(pthread_cond_t *condition, pthread_mutex_t *mutex, int64_t until_ns);
/* Read the clocks of the last snapshot's threads for the next one. RAN: threads of the application ran since the
 * previous deadline; the caller waits CLOCKS_PROBE_NS and reads them again, to find those that run now. QUIET: none
 * did, and that snapshot says of none that it ran. */
typedef enum { CLOCKS_UNKNOWN, CLOCKS_QUIET, CLOCKS_RAN } clocks_change;
clocks_change clocks_read(struct ticker_state *ticker, int64_t deadline_ns);
void clocks_read_again(struct ticker_state *ticker);
/* Write the clocks to a snapshot; read those that are missing. `is_last`: the next snapshot continues from
 * this one. */
void clocks_fill(struct ticker_state *ticker, struct raw_snapshot *snapshot, int64_t deadline_ns, bool is_last);
bool thread_is_runnable(pid_t native_id);                            /* it runs, or is ready to */
void thread_read_stat(pid_t native_id, char text[THREAD_STAT_SIZE]); /* its line of /proc; empty: it has ended */

#pragma GCC visibility pop

#endif
