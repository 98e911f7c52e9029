/* A ticker's lifetime and settings; its loop is in ticker_loop.c. */
#include "py_compat.h"

#include "allocations.h"
#include "exceptions.h"
#include "forks.h"
#include "sigterm.h"
#include "wakeups.h"

#include <stdlib.h>

/* Return false with an exception. */
static bool set_references(ticker_state *ticker, const ticker_arguments *given, PyObject *keywords)
{
    static const char *const names[NAME_COUNT] = {
        "__name__", "_native_id",   "generation", "_context",
        "cr_await", "gi_yieldfrom", "ag_await",   "__asyncio_running_event_loop__",
        "_lock"};
    for (int i = 0; i < NAME_COUNT; i++) {
        ticker->names[i] = PyUnicode_InternFromString(names[i]);
        if (ticker->names[i] == NULL) {
            return false;
        }
    }
    ticker->arguments = *given;
    PyObject *values = PyDict_Values(keywords);
    ticker->arguments.owner = values == NULL ? NULL : PyList_AsTuple(values);
    Py_XDECREF(values);
    return ticker->arguments.owner != NULL;
}

ticker_state *ticker_state_new(const ticker_arguments *given, PyObject *keywords)
{
    ticker_state *ticker = calloc(1, sizeof(ticker_state));
    if (ticker == NULL) {
        return (ticker_state *)PyErr_NoMemory();
    }
    atomic_store(&ticker->refcount, 1);
    ticker->interp = PyInterpreterState_Get();
    pthread_mutex_init(&ticker->loop.mutex, NULL);
    init_condition(&ticker->loop.changed);
    atomic_store(&ticker->loop.has_full_captures, true);
    ticker->ring.end = &ticker->ring.oldest;
    ticker->exceptions = exceptions_new((uint64_t)given->exception_interval);
    if (ticker->exceptions == NULL || !forks_add(ticker)) {
        free(ticker->exceptions);
        free(ticker);
        return (ticker_state *)PyErr_NoMemory();
    }
    if (!set_references(ticker, given, keywords)) {
        ticker_state_release_all(ticker);
        ticker_state_unref(ticker);
        return NULL;
    }
    return ticker;
}

/* GIL held. The last reference frees the memory: the Ticker's, or that of a pending call that runs after the
 * Ticker's end. The Python references are released by then. */
void ticker_state_unref(ticker_state *ticker)
{
    if (atomic_fetch_sub(&ticker->refcount, 1) > 1) {
        return;
    }
    forks_remove(ticker);
    pthread_cond_destroy(&ticker->loop.changed);
    pthread_mutex_destroy(&ticker->loop.mutex);
    free(ticker->scratch.threads);
    free(ticker->scratch.selected_keys);
    free(ticker->scratch.frames);
    free(ticker->previous.stacks);
    free(atomic_load(&ticker->clocks.table));
    free(ticker->exceptions);
    free(ticker->allocations);
    free(ticker->loop_watch);
    free(ticker);
}

/* Needs the mutex, and unlocks it. */
static void announce_change(ticker_state *ticker)
{
    pthread_cond_broadcast(&ticker->loop.changed);
    pthread_mutex_unlock(&ticker->loop.mutex);
}

void ticker_state_set_periods(ticker_state *ticker, int64_t period_ns, int64_t focused_period_ns)
{
    forks_lock(&ticker->loop.mutex);
    atomic_store(&ticker->loop.has_full_captures, period_ns > 0);
    schedule_set_periods(&ticker->schedule, period_ns, focused_period_ns);
    announce_change(ticker);
}

void ticker_state_set_look_period(ticker_state *ticker, int64_t look_ns)
{
    forks_lock(&ticker->loop.mutex);
    ticker->schedule.look_ns = look_ns;
    announce_change(ticker);
}

/* Called for each span that enters the filter; usually the flag is set already. */
void ticker_state_notify_trace_added(ticker_state *ticker)
{
    if (!atomic_load(&ticker->loop.may_have_traces)) {
        forks_lock(&ticker->loop.mutex);
        atomic_store(&ticker->loop.may_have_traces, true);
        announce_change(ticker);
    }
}

void ticker_state_stop(ticker_state *ticker)
{
    forks_lock(&ticker->loop.mutex);
    atomic_store(&ticker->loop.is_stopped, true);
    announce_change(ticker);
    wakeups_send();
}

void ticker_state_capture_now(ticker_state *ticker, bool is_focused)
{
    if (!is_focused && clocks_read(ticker, 0) == CLOCKS_RAN) {
        (void)nanosleep(&(struct timespec){.tv_nsec = CLOCKS_PROBE_NS}, NULL);
        clocks_read_again(ticker);
    }
    if (!capture_snapshot(ticker, 0, is_focused, PyThreadState_Get())) {
        ticker_state_count(ticker, COUNTERS_missed, 1);
    }
    ticker_state_announce_snapshots(ticker);
}

void ticker_state_announce_snapshots(ticker_state *ticker)
{
    if (atomic_load(&ticker->ring.ready) > 0 && atomic_exchange(&ticker->ring.is_awaited, false)) {
        wakeups_send();
    }
}

void ticker_state_wait(ticker_state *ticker, int64_t timeout_ns, bool wants_snapshot)
{
    const int64_t until_ns = monotonic_ns() + (timeout_ns < MAX_PERIOD_NS ? timeout_ns : MAX_PERIOD_NS);
    while (monotonic_ns() < until_ns) {
        unsigned count = wakeups_count();
        if (wants_snapshot) {
            atomic_store(&ticker->ring.is_awaited, true); /* first: who stores a snapshot later finds it */
        }
        if ((wants_snapshot && atomic_load(&ticker->ring.ready) > 0) || ticker_state_is_ended(ticker)
            || sigterm_is_untaken()) {
            return;
        }
        wakeups_wait(count, until_ns);
    }
}

void ticker_state_take_gil(ticker_state *ticker, PyThreadState *self)
{
    /* A thread that the ending interpreter does not let go on would leave its request, and the main thread would wait
     * for it to take the GIL. */
    if (!ticker_state_is_ended(ticker) && !compat_is_finalizing()) {
        compat_request_gil(ticker->interp);
    }
    PyEval_RestoreThread(self);
}
