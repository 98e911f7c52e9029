/* Records raised exceptions, sampled. CPython calls `exceptions_handle_raise` on the thread that raises, at each frame
 * that the exception reaches (the event RAISE of sys.monitoring).
 *
 * A program may raise 100,000 exceptions a second. So each is kept with a probability of 1 to `interval`, whatever came
 * before it, and stands for `interval` of them: the sums are right for each type and place. Once a second, the interval is
 * chosen anew for about KEPT_PER_SECOND, by the number in the last one. It doubles after each KEPT_PER_SECOND: a storm
 * may begin at any time.
 *
 * No reference to an exception is kept, and none of its code runs: a type is enough to name it.
 */
#include "public_compat.h"

#include "events.h"
#include "exceptions.h"

#include <stdlib.h>

#define MAX_EXCEPTIONS  1024
#define KEPT_PER_SECOND 64
#define MAX_INTERVAL    (1U << 24) /* chances are multiples of 2^-32 */

struct exception_log {
    uint64_t min_interval;    /* as configured */
    uint64_t interval;        /* as it is now */
    size_t chosen_count;      /* since the last update of the interval */
    uint64_t estimated_count; /* exceptions since then */
    int64_t updated_ns;       /* monotonic */
    uint64_t unrecorded;      /* exceptions that the next kept one also stands for */
    uint64_t random;          /* state of the random numbers */
};

exception_log *exceptions_new(uint64_t interval)
{
    exception_log *log = malloc(sizeof(exception_log));
    if (log != NULL) {
        *log = (exception_log){.min_interval = interval, .interval = interval, .random = (uint64_t)monotonic_ns() | 1};
    }
    return log;
}

/* A generator of its own (xorshift64): that of the application must give it the same numbers as without us. */
static bool is_chosen(exception_log *log)
{
    log->random ^= log->random << 13;
    log->random ^= log->random >> 7;
    log->random ^= log->random << 17;
    return ((log->random >> 32) * log->interval) >> 32 == 0;
}

/* Return true in the frame where an exception was raised. Frames that it reaches later are the first of a longer
 * traceback; so is one that is raised again. C code (of Cython, pyexpat) adds entries for its own functions: it raised
 * the exception if there are only such entries below. */
static bool is_raised_here(const PyTracebackObject *traceback)
{
    const PyTracebackObject *inner = traceback->tb_next;
    while (inner != NULL && compat_is_c_entry(inner)) {
        inner = inner->tb_next;
    }
    return inner == NULL;
}

/* Return true for an exception, not control flow, in the frame where it was raised. */
static bool is_counted(PyObject *exception)
{
    if (!PyExceptionInstance_Check(exception)) {
        return false;
    }
    PyObject *traceback = ((PyBaseExceptionObject *)exception)->traceback;
    PyTypeObject *type = Py_TYPE(exception);
    return traceback != NULL && PyTraceBack_Check(traceback) && is_raised_here((PyTracebackObject *)traceback)
           && PyType_IsSubtype(type, (PyTypeObject *)PyExc_Exception)
           && !PyType_IsSubtype(type, (PyTypeObject *)PyExc_StopIteration)
           && !PyType_IsSubtype(type, (PyTypeObject *)PyExc_StopAsyncIteration);
}

/* Return false if there is no room. */
static bool append_exception(ticker_state *ticker, PyTypeObject *type)
{
    exception_log *log = ticker->exceptions;
    bool has_room = ticker->events[EVENT_EXCEPTION].count < MAX_EXCEPTIONS;
    raw_event *kept = has_room ? calloc(1, sizeof(raw_event)) : NULL;
    if (kept == NULL || !capture_calling_thread(ticker, &kept->thread, NULL)) {
        free(kept);
        return false;
    }
    kept->time_ns = clock_ns(CLOCK_REALTIME);
    kept->count = log->interval + log->unrecorded;
    kept->details[0] = Py_NewRef((PyObject *)type);
    events_append(ticker, EVENT_EXCEPTION, kept);
    log->unrecorded = 0;
    return true;
}

void exceptions_handle_raise(ticker_state *ticker, PyObject *exception)
{
    exception_log *log = ticker->exceptions;
    if (!is_chosen(log) || ticker_state_is_ended(ticker) || !is_counted(exception)) {
        return;
    }
    if (!append_exception(ticker, Py_TYPE(exception))) {
        log->unrecorded += log->interval; /* the next one stands for it */
    }
    log->estimated_count += log->interval;
    if (++log->chosen_count % KEPT_PER_SECOND == 0 && log->interval < MAX_INTERVAL) {
        log->interval *= 2;
    }
}

static void update_interval(exception_log *log)
{
    int64_t now_ns = monotonic_ns(), elapsed_ns = now_ns - log->updated_ns;
    if (elapsed_ns < SECOND_NS) {
        return;
    }
    double per_second = (double)log->estimated_count * SECOND_NS / (double)elapsed_ns;
    double interval = per_second / KEPT_PER_SECOND;
    log->interval = interval < MAX_INTERVAL ? (uint64_t)interval : MAX_INTERVAL;
    if (log->interval < log->min_interval) {
        log->interval = log->min_interval;
    }
    log->chosen_count = 0;
    log->estimated_count = 0;
    log->updated_ns = now_ns;
}

PyObject *exceptions_drain(ticker_state *ticker, const module_state *module)
{
    update_interval(ticker->exceptions);
    return events_drain(ticker, module, EVENT_EXCEPTION);
}
