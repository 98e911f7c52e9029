/* The process-wide part: tickers in forks, and the GIL for a thread that forks without it. */
#ifndef SPLUNK_PROFILER_WALKER_FORKS_H
#define SPLUNK_PROFILER_WALKER_FORKS_H

#include "ticker_state.h"

#pragma GCC visibility push(hidden)

/* forks.c. GIL held. */
bool forks_add(ticker_state *ticker); /* false: the system refuses handlers of forks, or there is no memory */
void forks_remove(ticker_state *ticker);
void forks_close_all(void); /* the interpreter ends: no ticker may use it any more */
/* Number of threads that wait for the mutex of a ticker, and may have the GIL meanwhile: release it soon. */
const atomic_int *forks_locks_wanted(void);
/* `in_child` may be NULL; false as above. */
bool forks_set_child_callback(PyInterpreterState *interp, PyObject *in_child);
/* Releases the GIL during the wait: a forking thread keeps these mutexes until its fork is over. */
void forks_lock(pthread_mutex_t *mutex);
/* The calling thread of ours begins, or ends, code of the application that may hold locks without the GIL: a child
 * would inherit them locked. Forks by any code wait, at most half a second. */
void forks_delay(bool is_starting);
/* Wait for the end of such a delay; no other one begins until the fork of the calling thread is over, or this is called
 * with false. */
void forks_prepare(bool is_starting);

/* In a forked child: the surviving thread, and the newest thread state of the parent. Zeros elsewhere. */
typedef struct {
    unsigned long ident;
    unsigned long native_id;
    uint64_t newest_inherited;
} fork_survivor;
const fork_survivor *forks_survivor(void);

/* owned_socket.c: close all sockets but those that the process `spared_maker` has made. Async-signal-safe. */
void sockets_close(pid_t spared_maker);

/* gil_keeper.c: one of our threads holds the GIL for a thread that forks without it. */
void gil_keeper_init(void);
void gil_keeper_mark_thread(bool is_starting); /* start or end of a profiler thread, the calling one; GIL held */
bool gil_keeper_is_profiler_thread(const void *thread); /* a thread state, only compared; from any thread */
bool gil_keeper_is_profiler_id(pid_t native_id);        /* the same, by the kernel's id */
/* Called by the forking thread, without the GIL: */
bool gil_keeper_request(PyInterpreterState *interp); /* false: no need, or another thread has a request */
void gil_keeper_wait(PyInterpreterState *interp, bool has_running_ticker);
void gil_keeper_release(void);
void gil_keeper_after_fork_in_child(PyInterpreterState *interp);
/* Called by a ticker, without the GIL: */
bool gil_keeper_is_requested(void);
void gil_keeper_hold_gil(PyThreadState *self);

#pragma GCC visibility pop

#endif
