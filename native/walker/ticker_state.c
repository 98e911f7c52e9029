/* A ticker's lifetime and loop. The loop runs on a thread made by Python, and holds the GIL only to capture.
 *
 * At a deadline the loop stores it in `pending.deadline_ns` and posts a pending call. The thread that runs
 * Python next takes the deadline out and captures. If none does so within a short time, the loop takes the
 * GIL and captures itself. The exchange of `pending.deadline_ns` decides which thread captures. So each
 * deadline is captured once, and neither thread waits for the other. Before 3.12 the loop always captures
 * itself: it pauses the thread that runs Python, and does not take the GIL.
 */
#include "py_compat.h"

#include "allocations.h"
#include "exceptions.h"
#include "forks.h"

#include <stdlib.h>
#include <sys/prctl.h>

#define PENDING_CALL_TIMEOUT_NS 1000000LL  /* time for the pending call before the loop takes the GIL */
#define MAX_STOP_NS             20000000LL /* one try to pause Python; then other threads get our locks */
#define STOP_RETRY_NS           50000LL
/* Each pause wakes a thread that waits for the GIL in vain, and its 5 ms until it asks for the GIL begin anew. More
 * frequent pauses would keep it waiting for ever. */
#define MIN_PAUSE_PERIOD_NS 7500000LL
#define MAX_PERIOD_NS       (86400LL * SECOND_NS)
#define MAX_WAIT_NS         MAX_PERIOD_NS /* keeps deadlines inside time_t; every wait is repeated in a loop */

static int64_t min_ns(int64_t one, int64_t other)
{
    return one < other ? one : other;
}

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
    ticker->collections.end = &ticker->collections.oldest;
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
    free(ticker);
}

/* Needs the GIL. Take the pending deadline out and capture. Return false without a snapshot. */
static bool capture_pending(ticker_state *ticker, const PyThreadState *gil_holder)
{
    int64_t signed_ns = ticker_state_is_ended(ticker) ? 0 : atomic_exchange(&ticker->pending.deadline_ns, 0);
    if (signed_ns == 0) {
        return false;
    }
    bool done = capture_snapshot(ticker, signed_ns < 0 ? -signed_ns : signed_ns, signed_ns < 0, gil_holder);
    if (!done) {
        ticker_state_count(ticker, COUNTERS_missed, 1);
    }
    return done;
}

/* Runs in any thread that holds the GIL, at a point where it could run Python, perhaps long after the post. */
static int run_pending_call(void *argument)
{
    ticker_state *ticker = argument;
    atomic_store(&ticker->pending.is_posted, false);
    if (PyInterpreterState_Get() == ticker->interp && capture_pending(ticker, PyThreadState_Get())) {
        ticker_state_count(ticker, COUNTERS_by_pending_call, 1);
    }
    ticker_state_unref(ticker);
    return 0;
}

/* Needs the mutex. So no other thread forks meanwhile (CPython's queue lock would stay locked in the child),
 * and the interpreter does not end. */
static void post_pending_call(ticker_state *ticker)
{
    if (atomic_load(&ticker->loop.is_closed) || compat_is_finalizing()
        || atomic_exchange(&ticker->pending.is_posted, true)) {
        return;
    }
    atomic_fetch_add(&ticker->refcount, 1);
    if (compat_add_pending_call(ticker->interp, run_pending_call, ticker) != 0) {
        atomic_store(&ticker->pending.is_posted, false); /* the queue is full; the loop takes the GIL */
        atomic_fetch_sub(&ticker->refcount, 1);
    }
}

/* Needs the mutex, and releases it for longer while a thread forks without the GIL. */
static void wait_for_change(ticker_state *ticker, PyThreadState *self, int64_t until_ns)
{
    if (gil_keeper_is_requested() && !compat_is_finalizing()) {
        pthread_mutex_unlock(&ticker->loop.mutex);
        gil_keeper_hold_gil(self);
        pthread_mutex_lock(&ticker->loop.mutex);
    }
    else {
        wait_on_condition(&ticker->loop.changed, &ticker->loop.mutex, until_ns);
    }
}

/* Needs the mutex. Return false if the ticker has ended. */
static bool wait_until(ticker_state *ticker, PyThreadState *self, int64_t until_ns)
{
    while (!ticker_state_is_ended(ticker) && monotonic_ns() < until_ns) {
        wait_for_change(ticker, self, until_ns);
    }
    return !ticker_state_is_ended(ticker);
}

/* Needs the mutex. Return the due deadline; one without a period: the ticker has ended. */
static schedule_tick wait_for_tick(ticker_state *ticker, PyThreadState *self)
{
    while (!ticker_state_is_ended(ticker)) {
        int64_t deadline_ns = schedule_next_ns(&ticker->schedule, atomic_load(&ticker->loop.may_have_traces));
        int64_t now_ns = monotonic_ns();
        if (now_ns >= deadline_ns) {
            return schedule_pop(&ticker->schedule, now_ns);
        }
        wait_for_change(ticker, self, min_ns(deadline_ns, now_ns + MAX_WAIT_NS));
    }
    return (schedule_tick){0};
}

/* Needs the mutex. Wait a quarter of the period, at most PENDING_CALL_TIMEOUT_NS, for the pending call, and
 * longer while a thread runs Python: that thread captures at its next check. A request for the GIL could
 * instead cost all other threads their turns, and the deadlines meanwhile. Return when the capture is done,
 * the GIL is free or `until_ns` is reached.
 *
 * If the GIL is free from the start, do not wait. Otherwise a thread that returns from a system call would be
 * seen after it, not in it.
 */
static void wait_for_capture(ticker_state *ticker, PyThreadState *self, int64_t period_ns, int64_t until_ns)
{
    int64_t timeout_ns = min_ns(period_ns / 4, PENDING_CALL_TIMEOUT_NS);
    bool is_active = compat_gil_holder(ticker->interp) != NULL;
    while (is_active) {
        is_active = wait_until(ticker, self, min_ns(monotonic_ns() + timeout_ns, until_ns))
                    && atomic_load(&ticker->pending.deadline_ns) != 0 && compat_gil_holder(ticker->interp) != NULL
                    && monotonic_ns() < until_ns;
    }
}

/* Needs the mutex, and releases it to take the GIL. If the interpreter ends while this thread waits for the
 * GIL, CPython ends or parks the thread there; it holds no lock then. */
static void capture_with_gil(ticker_state *ticker, PyThreadState *self)
{
    /* The thread that this preempts; only compared. */
    const PyThreadState *gil_holder = compat_gil_holder(ticker->interp);
    pthread_mutex_unlock(&ticker->loop.mutex);
    PyEval_RestoreThread(self);
    (void)capture_pending(ticker, gil_holder);
    PyEval_SaveThread();
    pthread_mutex_lock(&ticker->loop.mutex);
}

#if !COMPAT_ANY_THREAD_RUNS_CALLS
/* Needs the mutex, and keeps it during the pause: so no thread forks then, and the interpreter does not end. */
static void capture_in_pause(ticker_state *ticker, PyThreadState *self, int64_t until_ns)
{
    int64_t begin_ns = monotonic_ns(), now_ns = begin_ns;
    compat_pause pause;
    while (!compat_pause_python(ticker->interp, self, &pause, begin_ns, min_ns(until_ns, now_ns + MAX_STOP_NS),
                                forks_locks_wanted())) {
        if (!wait_until(ticker, self, monotonic_ns() + STOP_RETRY_NS) || compat_is_finalizing()) {
            return;
        }
        now_ns = monotonic_ns();
        if (now_ns >= until_ns) {
            return;
        }
    }
    (void)capture_pending(ticker, pause.gil_holder);
    compat_resume_python(ticker->interp, &pause);
}
#endif

/* Needs the mutex. Capture at the next check of the thread that runs Python. CPython before 3.12 lets only the main
 * thread run pending calls, and a thread that waits for the GIL ask for it only after 5 ms. Until then the waiter gets
 * it where other threads release it, so that captures would show those places and not those where the time goes.
 * A thread of another interpreter would not see the request for a pause. */
static void capture_in_loop(ticker_state *ticker, PyThreadState *self, int64_t period_ns, int64_t until_ns)
{
#if !COMPAT_ANY_THREAD_RUNS_CALLS
    if (period_ns >= MIN_PAUSE_PERIOD_NS && compat_is_only_interpreter(ticker->interp) && compat_synchronize()) {
        capture_in_pause(ticker, self, until_ns);
        return;
    }
#else
    (void)period_ns;
    (void)until_ns;
#endif
    capture_with_gil(ticker, self);
}

/* Needs the mutex. Have a thread capture before the next deadline. */
static void handle_tick(ticker_state *ticker, PyThreadState *self, const schedule_tick *tick)
{
    int64_t missed = tick->skipped;
    if (!tick->is_focused && clocks_read(ticker, tick->deadline_ns)
        && wait_until(ticker, self, monotonic_ns() + CLOCKS_PROBE_NS)) {
        clocks_read_again(ticker);
    }
    ticker_state_count(ticker, COUNTERS_due, tick->skipped + 1);
    atomic_store(&ticker->pending.period_ns, tick->period_ns);
    long long no_wait = 0; /* otherwise the previous deadline still waits: the wait began there */
    (void)atomic_compare_exchange_strong(&ticker->pending.since_ns, &no_wait, monotonic_ns());
    if (atomic_exchange(&ticker->pending.deadline_ns, tick->is_focused ? -tick->deadline_ns : tick->deadline_ns) != 0) {
        missed++; /* no thread took the previous deadline */
    }
    ticker_state_count(ticker, COUNTERS_missed, missed);
    if (COMPAT_ANY_THREAD_RUNS_CALLS) {
        post_pending_call(ticker);
        wait_for_capture(ticker, self, tick->period_ns, tick->next_ns);
    }
    if (atomic_load(&ticker->pending.deadline_ns) != 0 && monotonic_ns() < tick->next_ns
        && !ticker_state_is_ended(ticker) && !compat_is_finalizing()) {
        capture_in_loop(ticker, self, tick->period_ns, tick->next_ns);
    }
    pthread_cond_broadcast(&ticker->loop.changed);
}

/* Needs the mutex, and not the GIL. Return when the ticker has ended. */
static void run_loop(ticker_state *ticker, PyThreadState *self)
{
    for (;;) {
        schedule_tick tick = wait_for_tick(ticker, self);
        if (tick.period_ns == 0) {
            break;
        }
        handle_tick(ticker, self, &tick);
    }
    if (atomic_exchange(&ticker->pending.deadline_ns, 0) != 0) {
        ticker_state_count(ticker, COUNTERS_missed, 1);
    }
}

/* GIL held. Return false with an exception if the periods are invalid. */
static bool check_periods(const ticker_state *ticker, int64_t period_ns, int64_t focused_period_ns)
{
    if (period_ns < 0 || period_ns > MAX_PERIOD_NS || (period_ns == 0 && focused_period_ns == 0)) {
        PyErr_Format(PyExc_ValueError, "period_ns must be 1 to a day, not %lld", (long long)period_ns);
    }
    else if (focused_period_ns < 0 || focused_period_ns > MAX_PERIOD_NS) {
        PyErr_Format(PyExc_ValueError, "focused_period_ns must be 0 to a day, not %lld", (long long)focused_period_ns);
    }
    else if (focused_period_ns > 0 && ticker->arguments.traces == NULL) {
        PyErr_SetString(PyExc_ValueError, "a ticker without trace_filter has no focused_period_ns");
    }
    else {
        return true;
    }
    return false;
}

bool ticker_state_run(ticker_state *ticker, int64_t period_ns, int64_t focused_period_ns)
{
    if (!check_periods(ticker, period_ns, focused_period_ns)) {
        return false;
    }
    forks_lock(&ticker->loop.mutex);
    bool is_first = !ticker->loop.is_running;
    if (is_first) {
        ticker->loop.is_running = true;
        atomic_store(&ticker->loop.has_full_captures, period_ns > 0);
        schedule_start(&ticker->schedule, period_ns, focused_period_ns);
    }
    pthread_mutex_unlock(&ticker->loop.mutex);
    if (!is_first) {
        PyErr_SetString(PyExc_RuntimeError, "the ticker is running already");
        return false;
    }
    gil_keeper_mark_thread(true);
    PyThreadState *self = PyEval_SaveThread();
    int slack_ns = prctl(PR_GET_TIMERSLACK);
    /* Without this the kernel ends our waits together with those of the application's threads. */
    (void)prctl(PR_SET_TIMERSLACK, 1UL);
    pthread_mutex_lock(&ticker->loop.mutex);
    run_loop(ticker, self);
    ticker->loop.is_running = false;
    pthread_cond_broadcast(&ticker->loop.changed);
    pthread_mutex_unlock(&ticker->loop.mutex);
    if (slack_ns > 0) {
        (void)prctl(PR_SET_TIMERSLACK, (unsigned long)slack_ns);
    }
    PyEval_RestoreThread(self);
    gil_keeper_mark_thread(false);
    return true;
}

/* Needs the mutex, and unlocks it. */
static void announce_change(ticker_state *ticker)
{
    pthread_cond_broadcast(&ticker->loop.changed);
    pthread_mutex_unlock(&ticker->loop.mutex);
}

bool ticker_state_set_periods(ticker_state *ticker, int64_t period_ns, int64_t focused_period_ns)
{
    if (!check_periods(ticker, period_ns, focused_period_ns)) {
        return false;
    }
    forks_lock(&ticker->loop.mutex);
    atomic_store(&ticker->loop.has_full_captures, period_ns > 0);
    schedule_set_periods(&ticker->schedule, period_ns, focused_period_ns);
    announce_change(ticker);
    return true;
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
}

void ticker_state_capture_now(ticker_state *ticker, bool is_focused)
{
    if (!is_focused && clocks_read(ticker, 0)) {
        (void)nanosleep(&(struct timespec){.tv_nsec = CLOCKS_PROBE_NS}, NULL);
        clocks_read_again(ticker);
    }
    if (!capture_snapshot(ticker, 0, is_focused, PyThreadState_Get())) {
        ticker_state_count(ticker, COUNTERS_missed, 1);
    }
    forks_lock(&ticker->loop.mutex);
    announce_change(ticker);
}

void ticker_state_wait_ready(ticker_state *ticker, int64_t timeout_ns)
{
    int64_t until_ns = monotonic_ns() + min_ns(timeout_ns, MAX_WAIT_NS);
    pthread_mutex_lock(&ticker->loop.mutex);
    while (atomic_load(&ticker->ring.ready) == 0 && !ticker_state_is_ended(ticker) && monotonic_ns() < until_ns) {
        wait_on_condition(&ticker->loop.changed, &ticker->loop.mutex, until_ns);
    }
    pthread_mutex_unlock(&ticker->loop.mutex);
}
