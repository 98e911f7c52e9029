/* A ticker's life and schedule. The loop runs on a thread that Python made and holds the GIL only to capture.
 *
 * At a deadline the loop writes it into `wanted_ns` and posts a pending call: whoever runs Python takes the deadline out
 * and captures. If nobody has after a short while, the loop takes the GIL itself and does the same. The exchange of
 * `wanted_ns` decides who captures, so it happens once, and neither side waits for the other.
 */
#include "py_compat.h"

#include "state.h"

#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#define PATIENCE_NS       1000000LL /* how long the pending call may take before the loop takes the GIL */
#define LONGEST_PERIOD_NS (86400LL * 1000000000LL)
#define LONGEST_WAIT_NS   (86400LL * 1000000000LL) /* keeps deadlines inside time_t; waits are loops anyway */

core *core_new(PyInterpreterState *interp, size_t ring_size)
{
    core *c = calloc(1, sizeof(core));
    if (c == NULL) {
        return NULL;
    }
    c->ring = calloc(ring_size, sizeof(raw_snapshot *));
    if (c->ring == NULL) {
        free(c);
        return NULL;
    }
    c->ring_size = ring_size;
    c->interp = interp;
    atomic_store(&c->references, 1);
    atomic_store(&c->keeps_all, true);
    core_init_locks(c);
    forks_add(c);
    return c;
}

/* GIL held. Whoever drops the last reference frees the memory: the Ticker object, or a pending call that came after its
 * end. The Python references are gone by then. */
void core_drop(core *c)
{
    if (atomic_fetch_sub(&c->references, 1) > 1) {
        return;
    }
    forks_remove(c);
    pthread_cond_destroy(&c->tick);
    pthread_cond_destroy(&c->filled);
    pthread_mutex_destroy(&c->mutex);
    free(c->walked);
    free(c->last);
    free(c->chosen);
    free(c->frames);
    free(c->ring);
    free(c->collections);
    free(atomic_load(&c->clocks));
    free(c);
}

static struct timespec timespec_of(int64_t at_ns)
{
    return (struct timespec){.tv_sec = at_ns / 1000000000LL, .tv_nsec = at_ns % 1000000000LL};
}

static bool ended(core *c)
{
    return atomic_load(&c->stopped) || atomic_load(&c->closed);
}

/* Needs the GIL. False if nothing could be taken of what was wanted. */
static bool capture_wanted(core *c, int64_t wanted_ns, const PyThreadState *runner)
{
    bool done = capture_snapshot(c, wanted_ns < 0 ? -wanted_ns : wanted_ns, wanted_ns < 0, runner);
    if (!done) {
        atomic_fetch_add(&c->missed, 1);
    }
    return done;
}

/* Runs in any thread that holds the GIL, at a point where it could run Python, perhaps long after it was posted. */
static int pending_capture(void *argument)
{
    core *c = argument;
    atomic_store(&c->posted, false);
    /* On 3.10 and 3.11 the main thread runs these calls in whatever interpreter it is in. */
    if (!ended(c) && PyInterpreterState_Get() == c->interp) {
        int64_t wanted = atomic_exchange(&c->wanted_ns, 0);
        if (wanted != 0 && capture_wanted(c, wanted, PyThreadState_Get())) {
            atomic_fetch_add(&c->by_pending_call, 1);
        }
    }
    core_drop(c);
    return 0;
}

/* Needs the mutex: a process does not fork while another thread is in here (CPython's queue lock would stay locked in
 * the child), and the interpreter does not end. */
static void post(core *c)
{
    if (atomic_load(&c->closed) || compat_is_finalizing() || atomic_exchange(&c->posted, true)) {
        return;
    }
    atomic_fetch_add(&c->references, 1);
    if (compat_post(c->interp, pending_capture, c) != 0) {
        atomic_store(&c->posted, false); /* the queue is full; the loop will take the GIL */
        atomic_fetch_sub(&c->references, 1);
    }
}

static void capture_ourselves(core *c, const PyThreadState *runner)
{
    int64_t wanted = atomic_exchange(&c->wanted_ns, 0);
    if (wanted != 0 && !ended(c)) {
        (void)capture_wanted(c, wanted, runner);
    }
}

/* Needs the mutex, which it gives up for longer where a thread forks without the GIL. */
static void wait_for_signal(core *c, PyThreadState *self, const struct timespec *until)
{
    if (gil_keeper_is_asked() && !compat_is_finalizing()) {
        pthread_mutex_unlock(&c->mutex);
        gil_keeper_keep(self);
        pthread_mutex_lock(&c->mutex);
    }
    else {
        pthread_cond_timedwait(&c->tick, &c->mutex, until);
    }
}

/* Needs the mutex; false if the ticker was ended. */
static bool wait_until(core *c, PyThreadState *self, int64_t at_ns)
{
    struct timespec at = timespec_of(at_ns);
    while (!ended(c) && monotonic_ns() < at_ns) {
        wait_for_signal(c, self, &at);
    }
    return !ended(c);
}

/* Needs the mutex. Gives the pending call `patience`, and more while somebody runs Python: that thread takes the
 * snapshot at its next check, whereas asking it for the GIL could take the turns of all others, and the deadlines of that
 * time with it. Returns when the capture is done, the GIL is free or `until_ns` has come. Where it is free from the
 * beginning nobody is given time: who comes back from a system call would be seen after it, and not in it. */
static void await_capture(core *c, PyThreadState *self, int64_t patience, int64_t until_ns)
{
    if (compat_gil_holder(c->interp) == NULL) {
        return;
    }
    int64_t now = monotonic_ns();
    bool going_on = wait_until(c, self, now + patience < until_ns ? now + patience : until_ns);
    while (going_on && atomic_load(&c->wanted_ns) != 0 && compat_is_gil_taken(c->interp)
           && (now = monotonic_ns()) < until_ns) {
        going_on = wait_until(c, self, now + patience < until_ns ? now + patience : until_ns);
    }
}

/* The two rhythms, on one grid. All threads are captured one period after the last time, and those in the focus at each
 * multiple of theirs in between; a capture of all serves the focus as well. */
typedef struct {
    int64_t all_ns, some_ns; /* the periods in force; 0: never */
    int64_t begin;           /* of the grid: the last deadline of all threads */
    int64_t some_at;         /* the focus's next deadline, or NEVER */
} rhythm;

#define NEVER INT64_MAX

/* Needs the mutex. Other periods move the next deadlines at once: that of all threads, counted from the last one, and
 * the focus's, whose grid begins anew. */
static void follow_pace(const core *c, rhythm *r)
{
    if (r->all_ns == 0 && c->period_ns > 0) {
        r->begin = monotonic_ns(); /* there was none for as long as that */
    }
    if (r->some_ns != c->focused_period_ns) {
        r->some_at = NEVER;
    }
    r->all_ns = c->period_ns;
    r->some_ns = c->focused_period_ns;
}

static int64_t next_of_all(const rhythm *r)
{
    return r->all_ns > 0 ? r->begin + r->all_ns : NEVER;
}

/* Needs the mutex. Begins or ends the focus's deadlines as there are traces in it, which can be at any moment. */
static int64_t next_deadline(core *c, rhythm *r)
{
    follow_pace(c, r);
    if (r->some_ns == 0 || !atomic_load(&c->focused)) {
        r->some_at = NEVER;
    }
    else if (r->some_at == NEVER) {
        r->some_at = r->begin + ((monotonic_ns() - r->begin) / r->some_ns + 1) * r->some_ns;
    }
    int64_t all_at = next_of_all(r);
    return all_at <= r->some_at ? all_at : r->some_at;
}

/* Needs the mutex; false if the ticker was ended. */
static bool wait_for_tick(core *c, PyThreadState *self, rhythm *r)
{
    for (;;) {
        int64_t now = monotonic_ns(), deadline = next_deadline(c, r);
        if (ended(c)) {
            return false;
        }
        if (now >= deadline) {
            return true;
        }
        struct timespec at = timespec_of(deadline - now < LONGEST_WAIT_NS ? deadline : now + LONGEST_WAIT_NS);
        wait_for_signal(c, self, &at);
    }
}

/* Needs the mutex, and not the GIL. Returns when the ticker is ended. If the interpreter ends while this waits for the
 * GIL, CPython ends or parks this thread there; it holds nothing then. */
static void keep_schedule(core *c, PyThreadState *self)
{
    rhythm r = {c->period_ns, c->focused_period_ns, monotonic_ns(), NEVER};
    while (wait_for_tick(c, self, &r)) {
        int64_t now = monotonic_ns(), all_at = next_of_all(&r);
        bool all = now >= all_at;
        int64_t period_ns = all ? r.all_ns : r.some_ns;
        int64_t deadline = all ? all_at : r.some_at;
        int64_t patience = period_ns / 4 < PATIENCE_NS ? period_ns / 4 : PATIENCE_NS;
        int64_t skipped = (now - deadline) / period_ns;
        deadline += skipped * period_ns; /* after a stall one capture, not a burst */
        int64_t next = deadline + period_ns;
        if (all) {
            r.begin = deadline;
            r.some_at = NEVER;
        }
        else {
            r.some_at = next;
            next = next < all_at ? next : all_at;
        }
        if (all && clocks_read(c, deadline) && wait_until(c, self, monotonic_ns() + CLOCKS_REST_NS)) {
            clocks_read_again(c);
        }
        atomic_fetch_add(&c->due, (unsigned long long)skipped + 1);
        atomic_store(&c->waited_ns, period_ns);
        if (atomic_exchange(&c->wanted_ns, all ? deadline : -deadline) != 0) {
            skipped++; /* nobody came to take the one before */
        }
        atomic_fetch_add(&c->missed, (unsigned long long)skipped);
        post(c);
        await_capture(c, self, patience, next);
        if (atomic_load(&c->wanted_ns) != 0 && monotonic_ns() < next && !ended(c) && !compat_is_finalizing()) {
            const PyThreadState *holder = compat_gil_holder(c->interp); /* whom this makes give it up; only compared */
            pthread_mutex_unlock(&c->mutex);
            PyEval_RestoreThread(self);
            capture_ourselves(c, holder);
            PyEval_SaveThread();
            pthread_mutex_lock(&c->mutex);
        }
        pthread_cond_broadcast(&c->filled);
    }
    if (atomic_exchange(&c->wanted_ns, 0) != 0) {
        atomic_fetch_add(&c->missed, 1);
    }
}

/* GIL held. False and an exception if a ticker cannot run like that. */
static bool check_periods(const core *c, int64_t period_ns, int64_t focused_period_ns)
{
    if (period_ns < 0 || period_ns > LONGEST_PERIOD_NS || (period_ns == 0 && focused_period_ns == 0)) {
        PyErr_Format(PyExc_ValueError, "period_ns must be 1 to a day, not %lld", (long long)period_ns);
        return false;
    }
    if (focused_period_ns < 0 || focused_period_ns > LONGEST_PERIOD_NS) {
        PyErr_Format(PyExc_ValueError, "focused_period_ns must be 0 to a day, not %lld", (long long)focused_period_ns);
        return false;
    }
    if (focused_period_ns > 0 && c->traces == NULL) {
        PyErr_SetString(PyExc_ValueError, "a ticker without focus has no focused_period_ns");
        return false;
    }
    return true;
}

/* Needs the mutex. */
static void set_periods(core *c, int64_t period_ns, int64_t focused_period_ns)
{
    c->period_ns = period_ns;
    c->focused_period_ns = focused_period_ns;
    atomic_store(&c->keeps_all, period_ns > 0);
}

int core_run(core *c, int64_t period_ns, int64_t focused_period_ns)
{
    if (!check_periods(c, period_ns, focused_period_ns)) {
        return -1;
    }
    forks_lock(&c->mutex);
    bool already = c->running;
    c->running = true;
    if (!already) {
        set_periods(c, period_ns, focused_period_ns);
    }
    pthread_mutex_unlock(&c->mutex);
    if (already) {
        PyErr_SetString(PyExc_RuntimeError, "the ticker is running already");
        return -1;
    }
    gil_keeper_own_thread(true);
    PyThreadState *self = PyEval_SaveThread();
    int slack_ns = prctl(PR_GET_TIMERSLACK);
    (void)prctl(PR_SET_TIMERSLACK,
                1UL); /* else the kernel ends waits together with those of the application's threads */
    pthread_mutex_lock(&c->mutex);
    keep_schedule(c, self);
    c->running = false;
    pthread_cond_broadcast(&c->filled);
    pthread_mutex_unlock(&c->mutex);
    if (slack_ns > 0) {
        (void)prctl(PR_SET_TIMERSLACK, (unsigned long)slack_ns);
    }
    PyEval_RestoreThread(self);
    gil_keeper_own_thread(false);
    return 0;
}

int core_pace(core *c, int64_t period_ns, int64_t focused_period_ns)
{
    if (!check_periods(c, period_ns, focused_period_ns)) {
        return -1;
    }
    forks_lock(&c->mutex);
    set_periods(c, period_ns, focused_period_ns);
    pthread_cond_broadcast(&c->tick);
    pthread_mutex_unlock(&c->mutex);
    return 0;
}

/* Called for each span that enters the focus: all but the first find it done. */
void core_focus(core *c)
{
    if (atomic_load(&c->focused)) {
        return;
    }
    forks_lock(&c->mutex);
    atomic_store(&c->focused, true);
    pthread_cond_broadcast(&c->tick);
    pthread_mutex_unlock(&c->mutex);
}

void core_stop(core *c)
{
    forks_lock(&c->mutex);
    atomic_store(&c->stopped, true);
    pthread_cond_broadcast(&c->tick);
    pthread_cond_broadcast(&c->filled);
    pthread_mutex_unlock(&c->mutex);
}

void core_capture(core *c, bool focused)
{
    if (!focused && clocks_read(c, 0)) {
        (void)nanosleep(&(struct timespec){.tv_nsec = CLOCKS_REST_NS}, NULL);
        clocks_read_again(c);
    }
    if (!capture_snapshot(c, 0, focused, PyThreadState_Get())) {
        atomic_fetch_add(&c->missed, 1);
    }
    forks_lock(&c->mutex);
    pthread_cond_broadcast(&c->filled);
    pthread_mutex_unlock(&c->mutex);
}

void core_wait_filled(core *c, int64_t timeout_ns)
{
    int64_t until = monotonic_ns() + (timeout_ns < LONGEST_WAIT_NS ? timeout_ns : LONGEST_WAIT_NS);
    struct timespec at = timespec_of(until);
    pthread_mutex_lock(&c->mutex);
    while (atomic_load(&c->ready) == 0 && !ended(c) && monotonic_ns() < until) {
        pthread_cond_timedwait(&c->filled, &c->mutex, &at);
    }
    pthread_mutex_unlock(&c->mutex);
}
