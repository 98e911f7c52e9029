/* A ticker's life and schedule. The loop runs on a thread that Python made and holds the GIL only to capture.
 *
 * At a deadline the loop writes it into `wanted_ns` and posts a pending call: whoever runs Python takes the deadline out
 * and captures. If nobody has after a short while, the loop takes the GIL itself and does the same. The exchange of
 * `wanted_ns` decides who captures, so it happens once, and neither side waits for the other.
 */
#include "py_compat.h"

#include "core.h"

#include <stdlib.h>
#include <string.h>

#define PATIENCE_NS     1000000LL                /* how long the pending call may take before the loop takes the GIL */
#define LONGEST_WAIT_NS (86400LL * 1000000000LL) /* keeps deadlines inside time_t; waits are loops anyway */

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
    core_init_locks(c);
    forks_add(c);
    return c;
}

/* Whoever drops the last reference frees the memory: the Ticker object, or a pending call that came after its end. The
 * Python references are gone by then, so this needs no GIL. */
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
    free(c->frames);
    free(c->ring);
    free(c->collections);
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

/* Runs in any thread that holds the GIL, at a point where it could run Python, perhaps long after it was posted. */
static int pending_capture(void *argument)
{
    core *c = argument;
    atomic_store(&c->posted, false);
    /* On 3.10 and 3.11 the main thread runs these calls in whatever interpreter it is in. */
    if (!ended(c) && PyInterpreterState_Get() == c->interp) {
        int64_t deadline = atomic_exchange(&c->wanted_ns, 0);
        if (deadline != 0) {
            if (capture_snapshot(c, deadline)) {
                atomic_fetch_add(&c->by_pending_call, 1);
            }
            else {
                atomic_fetch_add(&c->missed, 1);
            }
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

static void capture_ourselves(core *c)
{
    int64_t deadline = atomic_exchange(&c->wanted_ns, 0);
    if (deadline != 0 && !ended(c) && !capture_snapshot(c, deadline)) {
        atomic_fetch_add(&c->missed, 1);
    }
}

/* Needs the mutex; false if the ticker was ended. */
static bool wait_until(core *c, int64_t at_ns)
{
    struct timespec at = timespec_of(at_ns);
    while (!ended(c) && monotonic_ns() < at_ns) {
        pthread_cond_timedwait(&c->tick, &c->mutex, &at);
    }
    return !ended(c);
}

/* Needs the mutex; false if the ticker was ended. The deadline moves with the period. */
static bool await_deadline(core *c, int64_t last_ns)
{
    int64_t at_ns = last_ns + atomic_load(&c->period_ns);
    while (!ended(c) && monotonic_ns() < at_ns) {
        struct timespec at = timespec_of(at_ns);
        pthread_cond_timedwait(&c->tick, &c->mutex, &at);
        at_ns = last_ns + atomic_load(&c->period_ns);
    }
    return !ended(c);
}

/* Needs the mutex. Gives the pending call `patience`, and more while somebody runs Python: that thread takes the
 * snapshot at its next check, whereas asking it for the GIL could take the turns of all others, and the deadlines of that
 * time with it. Returns when the capture is done, the GIL is free or `until_ns` has come. */
static void await_capture(core *c, int64_t patience, int64_t until_ns)
{
    int64_t now = monotonic_ns();
    bool going_on = wait_until(c, now + patience < until_ns ? now + patience : until_ns);
    while (going_on && atomic_load(&c->wanted_ns) != 0 && compat_is_gil_taken(c->interp)
           && (now = monotonic_ns()) < until_ns) {
        going_on = wait_until(c, now + patience < until_ns ? now + patience : until_ns);
    }
}

/* Needs the mutex, and not the GIL. Returns when the ticker is ended. If the interpreter ends while this waits for the
 * GIL, CPython ends or parks this thread there; it holds nothing then. */
static void keep_schedule(core *c, PyThreadState *self)
{
    int64_t deadline = monotonic_ns(); /* the last one */
    while (await_deadline(c, deadline)) {
        int64_t period_ns = atomic_load(&c->period_ns);
        int64_t patience = period_ns / 4 < PATIENCE_NS ? period_ns / 4 : PATIENCE_NS;
        deadline += period_ns;
        int64_t skipped = (monotonic_ns() - deadline) / period_ns;
        deadline += skipped * period_ns; /* after a stall one capture, not a burst */
        atomic_fetch_add(&c->due, (unsigned long long)skipped + 1);
        atomic_store(&c->waited_ns, period_ns);
        if (atomic_exchange(&c->wanted_ns, deadline) != 0) {
            skipped++; /* nobody came to take the one before */
        }
        atomic_fetch_add(&c->missed, (unsigned long long)skipped);
        post(c);
        await_capture(c, patience, deadline + period_ns);
        if (atomic_load(&c->wanted_ns) != 0 && monotonic_ns() < deadline + period_ns && !ended(c)
            && !compat_is_finalizing()) {
            pthread_mutex_unlock(&c->mutex);
            PyEval_RestoreThread(self);
            capture_ourselves(c);
            PyEval_SaveThread();
            pthread_mutex_lock(&c->mutex);
        }
        pthread_cond_broadcast(&c->filled);
    }
    if (atomic_exchange(&c->wanted_ns, 0) != 0) {
        atomic_fetch_add(&c->missed, 1);
    }
}

int core_run(core *c, int64_t period_ns)
{
    pthread_mutex_lock(&c->mutex);
    bool already = c->running;
    c->running = true;
    if (!already) {
        atomic_store(&c->period_ns, period_ns);
    }
    pthread_mutex_unlock(&c->mutex);
    if (already) {
        PyErr_SetString(PyExc_RuntimeError, "the ticker is running already");
        return -1;
    }
    PyThreadState *self = PyEval_SaveThread();
    pthread_mutex_lock(&c->mutex);
    keep_schedule(c, self);
    c->running = false;
    pthread_cond_broadcast(&c->filled);
    pthread_mutex_unlock(&c->mutex);
    PyEval_RestoreThread(self);
    return 0;
}

void core_pace(core *c, int64_t period_ns)
{
    pthread_mutex_lock(&c->mutex);
    atomic_store(&c->period_ns, period_ns);
    pthread_cond_broadcast(&c->tick);
    pthread_mutex_unlock(&c->mutex);
}

void core_stop(core *c)
{
    pthread_mutex_lock(&c->mutex);
    atomic_store(&c->stopped, true);
    pthread_cond_broadcast(&c->tick);
    pthread_cond_broadcast(&c->filled);
    pthread_mutex_unlock(&c->mutex);
}

void core_capture(core *c)
{
    if (!capture_snapshot(c, 0)) {
        atomic_fetch_add(&c->missed, 1);
    }
    pthread_mutex_lock(&c->mutex);
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
