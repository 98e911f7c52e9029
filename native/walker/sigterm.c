/* Delays the default action of SIGTERM until the data at hand has been sent.
 *
 * Python's own table continues to say SIG_DFL. The handler runs no Python code: it wakes the thread that waits for
 * snapshots, or one that waits here, without the GIL. That has Python send the data and perform the default action. A
 * timer enforces the time limit, whichever thread has the GIL.
 *
 * A handler that the application installs replaces ours, as it would replace the default. A forked child
 * inherits our handler but neither thread nor timer. There the default action happens at once, until the child opens a
 * listener of its own. It also happens at once where a thread other than the main thread sends its process the signal.
 */
#include "py_compat.h"

#include "module_state.h"

#include "clocks.h"
#include "sigterm.h"
#include "wakeups.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

#define INIT_PID    1                  /* for this process the kernel ignores signals with the default action */
#define MAX_WAIT_NS (3600 * SECOND_NS) /* each wait is repeated */

/* From RECEIVED on the process ends; from TAKEN on a thread of ours sees to that. */
typedef enum { NOTHING, RECEIVED, TAKEN } sigterm_progress;

static struct {
    atomic_int pid;          /* process with a listener; 0: none */
    atomic_uint listener_id; /* number of listeners opened so far */
    atomic_int progress;     /* of that process: sigterm_progress */
    pid_t timer_pid;         /* process that has the timer; GIL */
    timer_t timer;           /* set before the first handler, and kept: a number of ours is never another's */
    int limit_ms;            /* likewise */
} sigterm_listener;

static void restore_default_action(void)
{
    const struct sigaction action = {.sa_handler = SIG_DFL};
    (void)sigaction(SIGTERM, &action, NULL);
}

static void raise_by_default(pid_t pid)
{
    restore_default_action();
    (void)kill(pid, SIGTERM); /* blocked until the handler returns */
}

static void unblock_sigterm(void)
{
    sigset_t only;
    sigemptyset(&only);
    sigaddset(&only, SIGTERM);
    (void)pthread_sigmask(SIG_UNBLOCK, &only, NULL);
}

/* A forked child inherits the progress of its parent. */
static bool is_received(pid_t pid)
{
    return pid == atomic_load(&sigterm_listener.pid) && atomic_load(&sigterm_listener.progress) != NOTHING;
}

/* Return true if what sends the data may wait for the calling thread, which runs code of ours, or forks. */
static bool is_awaited(void)
{
    PyObject *name = PyUnicode_FromString("splunk_profiler.activation");
    PyObject *activation = name == NULL ? NULL : PyImport_GetModule(name);
    PyObject *answer = activation == NULL ? NULL : PyObject_CallMethod(activation, "is_in_profiler", NULL);
    bool is_awaited = answer != Py_False; /* also at the interpreter's end, without the module */
    PyErr_Clear();
    Py_XDECREF(answer);
    Py_XDECREF(activation);
    Py_XDECREF(name);
    return is_awaited;
}

/* A pending call that parks the main thread until the process ends. A child that is forked meanwhile inherits
 * it. */
static int park_main_thread(void *is_sender)
{
    if (is_received(getpid()) && (is_sender != NULL || !is_awaited())) {
        Py_BEGIN_ALLOW_THREADS
        for (;;) {
            (void)pause();
        }
        Py_END_ALLOW_THREADS
    }
    return 0;
}

/* Let the main thread, which runs the handler, run no more Python code. */
static void park(bool is_sender, bool has_gil)
{
    unblock_sigterm(); /* for the timer: there may be no other thread */
    while (is_sender && !has_gil) {
        (void)pause(); /* C code would go on until it takes the GIL */
    }
    /* If the queue is full, it goes on. */
    (void)compat_add_main_pending_call(park_main_thread, is_sender ? &sigterm_listener : NULL);
}

static void start_time_limit(void)
{
    const struct itimerspec limit = {
        .it_value = {.tv_sec = sigterm_listener.limit_ms / 1000,
                     .tv_nsec = sigterm_listener.limit_ms % 1000 * 1000000L},
    };
    (void)timer_settime(sigterm_listener.timer, 0, &limit, NULL);
}

/* Async-signal-safe, but for the pending call. A child after vfork shares our memory; in such a child this writes
 * nothing. */
static void on_sigterm(int number, siginfo_t *info, void *context)
{
    const int saved = errno;
    const pid_t pid = getpid();
    const bool is_from_self = (info->si_code == SI_USER || info->si_code == SI_TKILL) && info->si_pid == pid;
    /* A signal that a process sends to itself takes effect before the call returns (uvicorn ends so). No code
     * after that call may run. No other thread than the main thread can be parked; its `os.kill` has the GIL, so the
     * main thread does not have the GIL meanwhile. Nor does it in `signal.raise_signal`, but that is to the thread
     * itself. */
    const bool is_main = compat_is_main_thread(), has_gil = compat_calling_thread() != NULL;
    const bool is_of_main = is_main && (has_gil || info->si_code == SI_TKILL);
    const bool is_over = info->si_code == SI_TIMER && is_received(pid);
    int progress = NOTHING;
    if (is_over || pid != atomic_load(&sigterm_listener.pid) || (is_from_self && !is_of_main)) {
        raise_by_default(pid);
        errno = saved;
        return;
    }
    if (atomic_compare_exchange_strong(&sigterm_listener.progress, &progress, RECEIVED)) {
        start_time_limit();
    }
    if (pid != atomic_load(&sigterm_listener.pid)) { /* closed meanwhile; no thread waits */
        raise_by_default(pid);
    }
    wakeups_send();
    /* Without us the main thread would have ended here: what it does next may be a section for which it blocks the signal,
     * or `exec`. Should it be about to add or take a pending call just now, the time limit ends the process. */
    if (is_main) {
        park(is_from_self, has_gil);
    }
    errno = saved;
}

static bool is_our_handler(const struct sigaction *action)
{
    return (action->sa_flags & SA_SIGINFO) != 0 && action->sa_sigaction == on_sigterm;
}

bool sigterm_is_untaken(void)
{
    return atomic_load(&sigterm_listener.progress) == RECEIVED && is_received(getpid());
}

/* A child of fork has no timer of its parent. */
static bool make_timer(pid_t pid, int limit_ms)
{
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGTERM};
    if (pid != sigterm_listener.timer_pid) {
        if (timer_create(CLOCK_MONOTONIC, &event, &sigterm_listener.timer) != 0) {
            return false;
        }
        sigterm_listener.timer_pid = pid;
    }
    sigterm_listener.limit_ms = limit_ms;
    return true;
}

static PyObject *sigterm_open(PyObject *Py_UNUSED(module), PyObject *limit)
{
    const pid_t pid = getpid();
    const int limit_ms = (int)PyLong_AsLong(limit);
    if (PyErr_Occurred()) {
        return NULL;
    }
    if (pid != atomic_load(&sigterm_listener.pid)) { /* the parent may be ending; this process got no signal */
        atomic_store(&sigterm_listener.progress, NOTHING);
    }
    if (!make_timer(pid, limit_ms)) {
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    unsigned listener_id = atomic_fetch_add(&sigterm_listener.listener_id, 1) + 1;
    atomic_store(&sigterm_listener.pid, (int)pid);
    wakeups_send(); /* the previous listener ends */
    return PyLong_FromUnsignedLong(listener_id);
}

/* The GIL is held here and in the application's signal.signal, so the action does not change between check
 * and change. */
static PyObject *sigterm_install(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    struct sigaction now;
    const pid_t pid = getpid();
    if (pid == INIT_PID || pid != atomic_load(&sigterm_listener.pid) || sigaction(SIGTERM, NULL, &now) != 0) {
        Py_RETURN_FALSE;
    }
    if (is_our_handler(&now)) {
        Py_RETURN_TRUE;
    }
    /* An action that the application sets while the process ends would get the signal of the time limit. */
    if (!is_received(pid) && ((now.sa_flags & SA_SIGINFO) != 0 || now.sa_handler != SIG_DFL)) {
        Py_RETURN_FALSE;
    }
    struct sigaction action = {.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK};
    action.sa_sigaction = on_sigterm;
    sigemptyset(&action.sa_mask);
    return PyBool_FromLong(sigaction(SIGTERM, &action, NULL) == 0);
}

static PyObject *sigterm_wait(PyObject *Py_UNUSED(module), PyObject *given_id)
{
    const unsigned long listener_id = PyLong_AsUnsignedLong(given_id);
    if (listener_id == (unsigned long)-1 && PyErr_Occurred()) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    for (;;) {
        unsigned count = wakeups_count();
        if (sigterm_is_untaken() || listener_id != atomic_load(&sigterm_listener.listener_id)) {
            break;
        }
        wakeups_wait(count, monotonic_ns() + MAX_WAIT_NS);
    }
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *sigterm_take(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    int progress = RECEIVED;
    return PyBool_FromLong(is_received(getpid())
                           && atomic_compare_exchange_strong(&sigterm_listener.progress, &progress, TAKEN));
}

static PyObject *sigterm_close(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    struct sigaction now;
    const pid_t pid = getpid();
    if (pid != atomic_load(&sigterm_listener.pid)) {
        Py_RETURN_TRUE;
    }
    if (sigaction(SIGTERM, NULL, &now) == 0 && is_our_handler(&now)) {
        restore_default_action();
    }
    if (atomic_load(&sigterm_listener.progress) != NOTHING) {
        Py_RETURN_FALSE;
    }
    /* From now on our handler performs the default action, if a caller that saved it puts it back. */
    atomic_store(&sigterm_listener.pid, 0);
    /* A signal may have arrived just now: its handler may have seen the listener. */
    if (atomic_load(&sigterm_listener.progress) != NOTHING) {
        atomic_store(&sigterm_listener.pid, pid);
        Py_RETURN_FALSE;
    }
    atomic_fetch_add(&sigterm_listener.listener_id, 1);
    wakeups_send();
    Py_RETURN_TRUE;
}

static PyObject *sigterm_end_process(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    restore_default_action();
    unblock_sigterm();
    (void)kill(getpid(), SIGTERM);
    Py_RETURN_NONE;
}

PyMethodDef sigterm_methods[] = {
    {"sigterm_open", sigterm_open, METH_O},
    {"sigterm_install", sigterm_install, METH_NOARGS},
    {"sigterm_wait", sigterm_wait, METH_O},
    {"sigterm_take", sigterm_take, METH_NOARGS},
    {"sigterm_close", sigterm_close, METH_NOARGS},
    {"sigterm_end_process", sigterm_end_process, METH_NOARGS},
    {NULL},
};
