/* A ticker's lifetime and schedule. The loop runs on a thread made by Python, and holds the GIL only to
 * capture.
 *
 * At a deadline the loop stores it in `pending_deadline_ns` and posts a pending call. The thread that runs
 * Python next takes the deadline out and captures. If none does so within a short time, the loop takes the
 * GIL and captures itself. The exchange of `pending_deadline_ns` decides which thread captures. So each
 * deadline is captured once, and neither thread waits for the other.
 */
#include "py_compat.h"

#include "ticker_state.h"

#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#define PENDING_CALL_TIMEOUT_NS 1000000LL /* time for the pending call before the loop takes the GIL */
#define MAX_PERIOD_NS           (86400LL * 1000000000LL)
#define MAX_WAIT_NS (86400LL * 1000000000LL) /* keeps deadlines inside time_t; every wait is repeated in a loop */

ticker_state *ticker_state_new(PyInterpreterState *interp, size_t ring_size)
{
    ticker_state *ticker = calloc(1, sizeof(ticker_state));
    if (ticker == NULL) {
        return NULL;
    }
    ticker->ring = calloc(ring_size, sizeof(raw_snapshot *));
    if (ticker->ring == NULL) {
        free(ticker);
        return NULL;
    }
    ticker->ring_size = ring_size;
    ticker->interp = interp;
    atomic_store(&ticker->refcount, 1);
    atomic_store(&ticker->has_full_captures, true);
    ticker_state_init_locks(ticker);
    forks_add(ticker);
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
    pthread_cond_destroy(&ticker->wake_cond);
    pthread_cond_destroy(&ticker->ready_cond);
    pthread_mutex_destroy(&ticker->mutex);
    free(ticker->scratch_threads);
    free(ticker->last_stacks);
    free(ticker->selected_keys);
    free(ticker->frames);
    free(ticker->ring);
    free(ticker->collections);
    free(atomic_load(&ticker->clocks));
    free(ticker);
}

static struct timespec timespec_of(int64_t at_ns)
{
    return (struct timespec){.tv_sec = at_ns / 1000000000LL, .tv_nsec = at_ns % 1000000000LL};
}

/* Needs the GIL. Return false if nothing could be captured. */
static bool capture_at_deadline(ticker_state *ticker, int64_t pending_deadline_ns, const PyThreadState *gil_holder)
{
    bool done = capture_snapshot(ticker, pending_deadline_ns < 0 ? -pending_deadline_ns : pending_deadline_ns,
                                 pending_deadline_ns < 0, gil_holder);
    if (!done) {
        atomic_fetch_add(&ticker->missed, 1);
    }
    return done;
}

/* Runs in any thread that holds the GIL, at a point where it could run Python, perhaps long after the post. */
static int run_pending_call(void *argument)
{
    ticker_state *ticker = argument;
    atomic_store(&ticker->is_call_posted, false);
    /* On 3.10 and 3.11 the main thread runs these calls in any interpreter that it is in. */
    if (!ticker_state_is_ended(ticker) && PyInterpreterState_Get() == ticker->interp) {
        int64_t signed_deadline_ns = atomic_exchange(&ticker->pending_deadline_ns, 0);
        if (signed_deadline_ns != 0 && capture_at_deadline(ticker, signed_deadline_ns, PyThreadState_Get())) {
            atomic_fetch_add(&ticker->by_pending_call, 1);
        }
    }
    ticker_state_unref(ticker);
    return 0;
}

/* Needs the mutex. So no other thread forks meanwhile (CPython's queue lock would stay locked in the child),
 * and the interpreter does not end. */
static void post_pending_call(ticker_state *ticker)
{
    if (atomic_load(&ticker->is_closed) || compat_is_finalizing() || atomic_exchange(&ticker->is_call_posted, true)) {
        return;
    }
    atomic_fetch_add(&ticker->refcount, 1);
    if (compat_add_pending_call(ticker->interp, run_pending_call, ticker) != 0) {
        atomic_store(&ticker->is_call_posted, false); /* the queue is full; the loop takes the GIL */
        atomic_fetch_sub(&ticker->refcount, 1);
    }
}

static void capture_in_loop(ticker_state *ticker, const PyThreadState *gil_holder)
{
    int64_t signed_deadline_ns = atomic_exchange(&ticker->pending_deadline_ns, 0);
    if (signed_deadline_ns != 0 && !ticker_state_is_ended(ticker)) {
        (void)capture_at_deadline(ticker, signed_deadline_ns, gil_holder);
    }
}

/* Needs the mutex, and releases it for longer while a thread forks without the GIL. */
static void wait_on_condition(ticker_state *ticker, PyThreadState *self, const struct timespec *until)
{
    if (gil_keeper_is_requested() && !compat_is_finalizing()) {
        pthread_mutex_unlock(&ticker->mutex);
        gil_keeper_hold_gil(self);
        pthread_mutex_lock(&ticker->mutex);
    }
    else {
        pthread_cond_timedwait(&ticker->wake_cond, &ticker->mutex, until);
    }
}

/* Needs the mutex. Return false if the ticker has ended. */
static bool wait_until(ticker_state *ticker, PyThreadState *self, int64_t at_ns)
{
    struct timespec at = timespec_of(at_ns);
    while (!ticker_state_is_ended(ticker) && monotonic_ns() < at_ns) {
        wait_on_condition(ticker, self, &at);
    }
    return !ticker_state_is_ended(ticker);
}

/* Needs the mutex. Wait `call_timeout_ns` for the pending call, and longer while a thread runs Python: that
 * thread captures at its next check. A request for the GIL could instead cost all other threads their turns,
 * and the deadlines meanwhile. Return when the capture is done, the GIL is free or `until_ns` is reached.
 *
 * If the GIL is free from the start, do not wait. Otherwise a thread that returns from a system call would be
 * seen after it, not in it.
 */
static void wait_for_capture(ticker_state *ticker, PyThreadState *self, int64_t call_timeout_ns, int64_t until_ns)
{
    if (compat_gil_holder(ticker->interp) == NULL) {
        return;
    }
    int64_t now = monotonic_ns();
    bool is_active = wait_until(ticker, self, now + call_timeout_ns < until_ns ? now + call_timeout_ns : until_ns);
    while (is_active && atomic_load(&ticker->pending_deadline_ns) != 0 && compat_has_pending_call_runner(ticker->interp)
           && (now = monotonic_ns()) < until_ns) {
        is_active = wait_until(ticker, self, now + call_timeout_ns < until_ns ? now + call_timeout_ns : until_ns);
    }
}

/* The two periods, on one grid. A capture of all threads is due one period after the previous one, and
 * focused captures at multiples of their period in between. A capture of all threads replaces a focused one. */
typedef struct {
    int64_t all_ns, focused_ns; /* current periods; 0: no such captures */
    int64_t grid_start_ns;      /* start of the grid: the last deadline of all threads */
    int64_t next_focused_ns;    /* next deadline of a focused capture, or NEVER */
} schedule_state;

#define NEVER INT64_MAX

/* Needs the mutex. Changed periods move the next deadlines at once. The deadline of all threads counts from
 * the previous one; the focused grid starts again. */
static void apply_periods(const ticker_state *ticker, schedule_state *schedule)
{
    if (schedule->all_ns == 0 && ticker->period_ns > 0) {
        schedule->grid_start_ns = monotonic_ns(); /* there were no such deadlines until now */
    }
    if (schedule->focused_ns != ticker->focused_period_ns) {
        schedule->next_focused_ns = NEVER;
    }
    schedule->all_ns = ticker->period_ns;
    schedule->focused_ns = ticker->focused_period_ns;
}

static int64_t next_full_deadline(const schedule_state *schedule)
{
    return schedule->all_ns > 0 ? schedule->grid_start_ns + schedule->all_ns : NEVER;
}

/* Needs the mutex. Starts or stops the focused deadlines as traces enter or leave the filter, at any moment. */
static int64_t next_deadline(ticker_state *ticker, schedule_state *schedule)
{
    apply_periods(ticker, schedule);
    if (schedule->focused_ns == 0 || !atomic_load(&ticker->is_focus_active)) {
        schedule->next_focused_ns = NEVER;
    }
    else if (schedule->next_focused_ns == NEVER) {
        schedule->next_focused_ns =
            schedule->grid_start_ns
            + ((monotonic_ns() - schedule->grid_start_ns) / schedule->focused_ns + 1) * schedule->focused_ns;
    }
    int64_t next_full_ns = next_full_deadline(schedule);
    return next_full_ns <= schedule->next_focused_ns ? next_full_ns : schedule->next_focused_ns;
}

/* Needs the mutex. Return false if the ticker has ended. */
static bool wait_for_tick(ticker_state *ticker, PyThreadState *self, schedule_state *schedule)
{
    for (;;) {
        int64_t now = monotonic_ns(), deadline = next_deadline(ticker, schedule);
        if (ticker_state_is_ended(ticker)) {
            return false;
        }
        if (now >= deadline) {
            return true;
        }
        struct timespec at = timespec_of(deadline - now < MAX_WAIT_NS ? deadline : now + MAX_WAIT_NS);
        wait_on_condition(ticker, self, &at);
    }
}

/* Needs the mutex, and not the GIL. Return when the ticker has ended. If the interpreter ends while this
 * thread waits for the GIL, CPython ends or parks the thread there; it holds no lock then. */
static void run_schedule(ticker_state *ticker, PyThreadState *self)
{
    schedule_state schedule = {ticker->period_ns, ticker->focused_period_ns, monotonic_ns(), NEVER};
    while (wait_for_tick(ticker, self, &schedule)) {
        int64_t now = monotonic_ns(), next_full_ns = next_full_deadline(&schedule);
        bool all = now >= next_full_ns;
        int64_t period_ns = all ? schedule.all_ns : schedule.focused_ns;
        int64_t deadline = all ? next_full_ns : schedule.next_focused_ns;
        int64_t call_timeout_ns = period_ns / 4 < PENDING_CALL_TIMEOUT_NS ? period_ns / 4 : PENDING_CALL_TIMEOUT_NS;
        int64_t skipped = (now - deadline) / period_ns;
        deadline += skipped * period_ns; /* one capture after a stall, not a burst */
        int64_t next = deadline + period_ns;
        if (all) {
            schedule.grid_start_ns = deadline;
            schedule.next_focused_ns = NEVER;
        }
        else {
            schedule.next_focused_ns = next;
            next = next < next_full_ns ? next : next_full_ns;
        }
        if (all && clocks_read(ticker, deadline) && wait_until(ticker, self, monotonic_ns() + CLOCKS_PROBE_NS)) {
            clocks_read_again(ticker);
        }
        atomic_fetch_add(&ticker->due, (unsigned long long)skipped + 1);
        atomic_store(&ticker->pending_period_ns, period_ns);
        if (atomic_exchange(&ticker->pending_deadline_ns, all ? deadline : -deadline) != 0) {
            skipped++; /* no thread took the previous deadline */
        }
        atomic_fetch_add(&ticker->missed, (unsigned long long)skipped);
        post_pending_call(ticker);
        wait_for_capture(ticker, self, call_timeout_ns, next);
        if (atomic_load(&ticker->pending_deadline_ns) != 0 && monotonic_ns() < next && !ticker_state_is_ended(ticker)
            && !compat_is_finalizing()) {
            /* The thread that this preempts; only compared. */
            const PyThreadState *holder = compat_gil_holder(ticker->interp);
            pthread_mutex_unlock(&ticker->mutex);
            PyEval_RestoreThread(self);
            capture_in_loop(ticker, holder);
            PyEval_SaveThread();
            pthread_mutex_lock(&ticker->mutex);
        }
        pthread_cond_broadcast(&ticker->ready_cond);
    }
    if (atomic_exchange(&ticker->pending_deadline_ns, 0) != 0) {
        atomic_fetch_add(&ticker->missed, 1);
    }
}

/* GIL held. Return false with an exception if the periods are invalid. */
static bool check_periods(const ticker_state *ticker, int64_t period_ns, int64_t focused_period_ns)
{
    if (period_ns < 0 || period_ns > MAX_PERIOD_NS || (period_ns == 0 && focused_period_ns == 0)) {
        PyErr_Format(PyExc_ValueError, "period_ns must be 1 to a day, not %lld", (long long)period_ns);
        return false;
    }
    if (focused_period_ns < 0 || focused_period_ns > MAX_PERIOD_NS) {
        PyErr_Format(PyExc_ValueError, "focused_period_ns must be 0 to a day, not %lld", (long long)focused_period_ns);
        return false;
    }
    if (focused_period_ns > 0 && ticker->traces == NULL) {
        PyErr_SetString(PyExc_ValueError, "a ticker without trace_filter has no focused_period_ns");
        return false;
    }
    return true;
}

/* Needs the mutex. */
static void store_periods(ticker_state *ticker, int64_t period_ns, int64_t focused_period_ns)
{
    ticker->period_ns = period_ns;
    ticker->focused_period_ns = focused_period_ns;
    atomic_store(&ticker->has_full_captures, period_ns > 0);
}

int ticker_state_run(ticker_state *ticker, int64_t period_ns, int64_t focused_period_ns)
{
    if (!check_periods(ticker, period_ns, focused_period_ns)) {
        return -1;
    }
    forks_lock(&ticker->mutex);
    bool already = ticker->is_running;
    ticker->is_running = true;
    if (!already) {
        store_periods(ticker, period_ns, focused_period_ns);
    }
    pthread_mutex_unlock(&ticker->mutex);
    if (already) {
        PyErr_SetString(PyExc_RuntimeError, "the ticker is running already");
        return -1;
    }
    gil_keeper_mark_thread(true);
    PyThreadState *self = PyEval_SaveThread();
    int slack_ns = prctl(PR_GET_TIMERSLACK);
    /* Without this the kernel ends our waits together with those of the application's threads. */
    (void)prctl(PR_SET_TIMERSLACK, 1UL);
    pthread_mutex_lock(&ticker->mutex);
    run_schedule(ticker, self);
    ticker->is_running = false;
    pthread_cond_broadcast(&ticker->ready_cond);
    pthread_mutex_unlock(&ticker->mutex);
    if (slack_ns > 0) {
        (void)prctl(PR_SET_TIMERSLACK, (unsigned long)slack_ns);
    }
    PyEval_RestoreThread(self);
    gil_keeper_mark_thread(false);
    return 0;
}

int ticker_state_set_periods(ticker_state *ticker, int64_t period_ns, int64_t focused_period_ns)
{
    if (!check_periods(ticker, period_ns, focused_period_ns)) {
        return -1;
    }
    forks_lock(&ticker->mutex);
    store_periods(ticker, period_ns, focused_period_ns);
    pthread_cond_broadcast(&ticker->wake_cond);
    pthread_mutex_unlock(&ticker->mutex);
    return 0;
}

/* Called for each span that enters the filter; usually the flag is set already. */
void ticker_state_notify_trace_added(ticker_state *ticker)
{
    if (atomic_load(&ticker->is_focus_active)) {
        return;
    }
    forks_lock(&ticker->mutex);
    atomic_store(&ticker->is_focus_active, true);
    pthread_cond_broadcast(&ticker->wake_cond);
    pthread_mutex_unlock(&ticker->mutex);
}

void ticker_state_stop(ticker_state *ticker)
{
    forks_lock(&ticker->mutex);
    atomic_store(&ticker->is_stopped, true);
    pthread_cond_broadcast(&ticker->wake_cond);
    pthread_cond_broadcast(&ticker->ready_cond);
    pthread_mutex_unlock(&ticker->mutex);
}

void ticker_state_capture_now(ticker_state *ticker, bool is_focused)
{
    if (!is_focused && clocks_read(ticker, 0)) {
        (void)nanosleep(&(struct timespec){.tv_nsec = CLOCKS_PROBE_NS}, NULL);
        clocks_read_again(ticker);
    }
    if (!capture_snapshot(ticker, 0, is_focused, PyThreadState_Get())) {
        atomic_fetch_add(&ticker->missed, 1);
    }
    forks_lock(&ticker->mutex);
    pthread_cond_broadcast(&ticker->ready_cond);
    pthread_mutex_unlock(&ticker->mutex);
}

void ticker_state_wait_ready(ticker_state *ticker, int64_t timeout_ns)
{
    int64_t until = monotonic_ns() + (timeout_ns < MAX_WAIT_NS ? timeout_ns : MAX_WAIT_NS);
    struct timespec at = timespec_of(until);
    pthread_mutex_lock(&ticker->mutex);
    while (atomic_load(&ticker->ready) == 0 && !ticker_state_is_ended(ticker) && monotonic_ns() < until) {
        pthread_cond_timedwait(&ticker->ready_cond, &ticker->mutex, &at);
    }
    pthread_mutex_unlock(&ticker->mutex);
}
