/* The loop of a ticker, on a thread made by Python. It holds the GIL only to capture.
 *
 * At a deadline the loop stores it in `pending.deadline_ns` and posts a pending call. The thread that runs
 * Python next takes the deadline out and captures. If none does so within a short time, the loop takes the
 * GIL and captures itself. The exchange of `pending.deadline_ns` decides which thread captures. So each
 * deadline is captured once, and neither thread waits for the other. Before 3.12 the loop always captures
 * itself: it pauses the thread that runs Python, and does not take the GIL.
 */
#include "py_compat.h"

#include "forks.h"
#include "loop_watch.h"

#include <sys/prctl.h>

#define PENDING_CALL_TIMEOUT_NS 1000000LL  /* time for the pending call before the loop takes the GIL */
#define MAX_STOP_NS             20000000LL /* one try to pause Python; then other threads get our locks */
#define STOP_RETRY_NS           50000LL
#define QUIET_NS                10000LL   /* two clocks are read one after the other; less than a callback takes */
#define MAX_LOOK_WAIT_NS        5000000LL /* a pending call stays in the queue */
/* Each pause wakes a thread that waits for the GIL in vain, and its 5 ms until it asks for the GIL begin anew. More
 * frequent pauses would keep it waiting for ever. */
#define MIN_PAUSE_PERIOD_NS 7500000LL
#define MAX_WAIT_NS         MAX_PERIOD_NS /* keeps deadlines inside time_t; every wait is repeated in a loop */

static int64_t min_ns(int64_t one, int64_t other)
{
    return one < other ? one : other;
}

/* Needs the GIL. Take the pending deadline out and capture. Return false without a snapshot. */
static bool capture_pending(ticker_state *ticker, const PyThreadState *gil_holder)
{
    int64_t signed_ns = ticker_state_is_ended(ticker) ? 0 : atomic_exchange(&ticker->pending.deadline_ns, 0);
    if (signed_ns == 0) {
        return false;
    }
    if (signed_ns == LOOK_DUE) {
        capture_look(ticker, gil_holder);
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
        int64_t deadline_ns = schedule_next_ns(&ticker->schedule, atomic_load(&ticker->loop.may_have_traces),
                                               atomic_load(&ticker->loop.has_loops));
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

/* Needs the mutex. Note since when a thread is waited for, and which one has the GIL. */
static void begin_wait(ticker_state *ticker)
{
    long long no_wait = 0; /* otherwise the previous deadline still waits: the wait began there */
    if (atomic_compare_exchange_strong(&ticker->pending.since_ns, &no_wait, monotonic_ns())) {
        atomic_store(&ticker->pending.gil_holder, compat_gil_holder(ticker->interp));
    }
}

/* Return true if no other thread has run since `others_cpu_ns` was set, before the last look or capture: then event loops
 * are as they were. So an idle process has nothing of looks but these readings. The clock of the process is late by the
 * current tick of threads that run on other processors. */
static bool is_quiet(ticker_state *ticker, int64_t *others_cpu_ns)
{
    int64_t cpu_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - clock_ns(CLOCK_THREAD_CPUTIME_ID);
    bool has_run = cpu_ns - *others_cpu_ns >= QUIET_NS;
    if (has_run || atomic_load(&ticker->loop.needs_look) || atomic_load(&ticker->pending.deadline_ns) != 0) {
        *others_cpu_ns = cpu_ns; /* a look, a peek or a capture follows */
        return false;
    }
    atomic_store(&ticker->loop.quiet_until_ns, clock_ns(CLOCK_BOOTTIME));
    return true;
}

/* Needs the mutex. Return true if all threads are as the last capture has them: the clocks of those that it has stood,
 * no other one used time, and none has the GIL. Then the deadline is only counted. */
static bool is_quiet_deadline(ticker_state *ticker, const schedule_tick *tick)
{
    quiet_deadlines *quiet = &ticker->quiet;
    if (compat_gil_holder(ticker->interp) != NULL || atomic_load(&ticker->loop.may_have_traces) || tick->skipped > 0
        || (atomic_load(&quiet->count) > 0 && atomic_load(&quiet->period_ns) != tick->period_ns)
        || !is_quiet(ticker, &quiet->others_cpu_ns)) {
        return false;
    }
    int64_t late_ns = monotonic_ns() - tick->deadline_ns;
    atomic_store(&quiet->period_ns, tick->period_ns);
    atomic_store(&quiet->time_ns, clock_ns(CLOCK_REALTIME) - late_ns);
    atomic_store(&quiet->instant_ns, clock_ns(CLOCK_BOOTTIME) - late_ns);
    atomic_store(&quiet->process_cpu_ns, clock_ns(CLOCK_PROCESS_CPUTIME_ID));
    atomic_fetch_add(&quiet->count, 1);
    return true;
}

/* Needs the mutex. Store a deadline for the thread that captures; false: there is nothing to capture. */
static bool store_deadline(ticker_state *ticker, PyThreadState *self, const schedule_tick *tick)
{
    int64_t missed = tick->skipped;
    clocks_change change = tick->is_focused ? CLOCKS_UNKNOWN : clocks_read(ticker, tick->deadline_ns);
    if (change == CLOCKS_QUIET && ticker->arguments.skips_quiet && is_quiet_deadline(ticker, tick)) {
        ticker_state_count(ticker, COUNTERS_due, 1);
        return false;
    }
    if (change == CLOCKS_RAN && wait_until(ticker, self, monotonic_ns() + CLOCKS_PROBE_NS)) {
        clocks_read_again(ticker);
    }
    ticker_state_count(ticker, COUNTERS_due, tick->skipped + 1);
    atomic_store(&ticker->pending.period_ns[tick->is_focused], tick->period_ns);
    begin_wait(ticker);
    int64_t previous_ns =
        atomic_exchange(&ticker->pending.deadline_ns, tick->is_focused ? -tick->deadline_ns : tick->deadline_ns);
    if (previous_ns != 0 && previous_ns != LOOK_DUE) {
        missed++; /* no thread took the previous deadline */
    }
    ticker_state_count(ticker, COUNTERS_missed, missed);
    return true;
}

/* Needs the mutex. Have a thread capture, or look at event loops, before the next deadline. */
static void handle_tick(ticker_state *ticker, PyThreadState *self, const schedule_tick *tick)
{
    long long nothing = 0; /* otherwise a capture is due, which looks as well */
    int64_t until_ns = tick->next_ns;
    if (!tick->is_look) {
        if (!store_deadline(ticker, self, tick)) {
            return;
        }
    }
    else if (is_quiet(ticker, &ticker->loop.others_cpu_ns)
             || (atomic_load(&ticker->pending.deadline_ns) == 0 && loops_peek(ticker))) {
        return;
    }
    else {
        begin_wait(ticker);
        (void)atomic_compare_exchange_strong(&ticker->pending.deadline_ns, &nothing, LOOK_DUE);
    }
    if (COMPAT_ANY_THREAD_RUNS_CALLS) {
        until_ns = tick->is_look ? min_ns(until_ns, monotonic_ns() + MAX_LOOK_WAIT_NS) : until_ns;
        post_pending_call(ticker);
        wait_for_capture(ticker, self, tick->period_ns, until_ns);
    }
    if (atomic_load(&ticker->pending.deadline_ns) != 0 && monotonic_ns() < until_ns && !ticker_state_is_ended(ticker)
        && !compat_is_finalizing()) {
        capture_in_loop(ticker, self, tick->period_ns, until_ns);
    }
    ticker_state_announce_snapshots(ticker);
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
    int64_t left_ns = atomic_exchange(&ticker->pending.deadline_ns, 0);
    if (left_ns != 0 && left_ns != LOOK_DUE) {
        ticker_state_count(ticker, COUNTERS_missed, 1);
    }
}

bool ticker_state_run(ticker_state *ticker, int64_t period_ns, int64_t focused_period_ns, int64_t phase_ns)
{
    forks_lock(&ticker->loop.mutex);
    bool is_first = !ticker->loop.is_running;
    if (is_first) {
        ticker->loop.is_running = true;
        atomic_store(&ticker->loop.has_full_captures, period_ns > 0);
        schedule_start(&ticker->schedule, period_ns, focused_period_ns, phase_ns);
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
    pthread_mutex_unlock(&ticker->loop.mutex);
    if (slack_ns > 0) {
        (void)prctl(PR_SET_TIMERSLACK, (unsigned long)slack_ns);
    }
    PyEval_RestoreThread(self);
    gil_keeper_mark_thread(false);
    return true;
}
