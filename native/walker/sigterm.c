/* Delays the default action of SIGTERM until the data at hand has been sent.
 *
 * Python's own table continues to say SIG_DFL. The handler runs no Python code: it wakes a profiler thread
 * that waits here without the GIL. That thread has Python send the data, then performs the default action. A
 * second native thread enforces the time limit, whichever thread has the GIL.
 *
 * A handler that the application installs replaces ours, as it would replace the default. A forked child
 * inherits our handler but not the thread. There the default action happens at once, until the child opens a
 * listener of its own. It also happens at once where a thread other than the main thread sends its process the signal.
 */
#include "py_compat.h"

#include "module_state.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#define INIT_PID       1    /* for this process the kernel ignores signals with the default action */
#define MAX_PARK_POLLS 1000 /* of 1 ms each, for a profiler thread to be scheduled */

static struct {
    atomic_int pid;             /* process with a waiting thread; 0: none */
    atomic_uint listener_id;    /* number of listeners opened so far */
    atomic_uint wake_count;     /* futex word of the waiting thread */
    atomic_bool is_received;    /* after a SIGTERM the process ends */
    atomic_bool is_from_self;   /* the process sent it to itself */
    atomic_bool is_main_parked; /* the main thread runs no more Python code */
} sigterm_listener;

static void restore_default_action(void)
{
    const struct sigaction action = {.sa_handler = SIG_DFL};
    (void)sigaction(SIGTERM, &action, NULL);
}

static void wake_waiter(void)
{
    atomic_fetch_add(&sigterm_listener.wake_count, 1);
    (void)syscall(SYS_futex, &sigterm_listener.wake_count, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static void raise_by_default(pid_t pid)
{
    restore_default_action();
    (void)kill(pid, SIGTERM); /* blocked until the handler returns */
}

/* Wait in the main thread, which has sent the signal, until the waiting thread has parked it. */
static void wait_until_parked(bool has_gil)
{
    for (int polls = 0; !atomic_load(&sigterm_listener.is_main_parked) && polls < MAX_PARK_POLLS; polls++) {
        (void)poll(NULL, 0, 1);
    }
    while (!has_gil && atomic_load(&sigterm_listener.is_main_parked)) {
        (void)pause(); /* C code would go on until it takes the GIL */
    }
}

/* Async-signal-safe. A child after vfork shares our memory; in such a child this writes nothing. */
static void on_sigterm(int number, siginfo_t *info, void *context)
{
    const int saved = errno;
    const pid_t pid = getpid();
    const bool is_from_self = (info->si_code == SI_USER || info->si_code == SI_TKILL) && info->si_pid == pid;
    /* A signal that a process sends to itself takes effect before the call returns (uvicorn ends so). No code
     * after that call may run. The waiting thread parks the main thread, for which it needs no GIL. No other thread
     * can be parked; its `os.kill` has the GIL, so the main thread does not have the GIL meanwhile. Nor does it in
     * `signal.raise_signal`, but that is to the thread itself. */
    const bool has_gil = compat_calling_thread() != NULL;
    const bool is_of_main = compat_is_main_thread() && (has_gil || info->si_code == SI_TKILL);
    if (pid != atomic_load(&sigterm_listener.pid) || (is_from_self && !is_of_main)) {
        raise_by_default(pid);
        errno = saved;
        return;
    }
    if (is_from_self) {
        atomic_store(&sigterm_listener.is_from_self, true);
    }
    atomic_store(&sigterm_listener.is_received, true);
    if (pid != atomic_load(&sigterm_listener.pid)) { /* closed meanwhile; no thread waits */
        raise_by_default(pid);
    }
    wake_waiter();
    if (is_from_self) {
        wait_until_parked(has_gil);
    }
    errno = saved;
}

static bool is_our_handler(const struct sigaction *action)
{
    return (action->sa_flags & SA_SIGINFO) != 0 && action->sa_sigaction == on_sigterm;
}

static void end_by_sigterm(void)
{
    sigset_t only;
    restore_default_action();
    sigemptyset(&only);
    sigaddset(&only, SIGTERM);
    (void)pthread_sigmask(SIG_UNBLOCK, &only, NULL);
    (void)kill(getpid(), SIGTERM);
}

static void *end_after_limit(void *limit)
{
    const long limit_ms = (long)(intptr_t)limit;
    struct timespec left = {.tv_sec = limit_ms / 1000, .tv_nsec = limit_ms % 1000 * 1000000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
    end_by_sigterm();
    return NULL;
}

static void start_watchdog(int limit_ms)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, end_after_limit, (void *)(intptr_t)limit_ms) != 0) {
        end_by_sigterm(); /* nothing else could end a process whose GIL is never released */
        return;
    }
    (void)pthread_detach(thread);
}

/* A pending call that parks the main thread until the process ends. A child that is forked meanwhile inherits
 * it. */
static int park_main_thread(void *unused)
{
    if (getpid() == atomic_load(&sigterm_listener.pid) && atomic_load(&sigterm_listener.is_received)) {
        Py_BEGIN_ALLOW_THREADS
        for (;;) {
            (void)pause();
        }
        Py_END_ALLOW_THREADS
    }
    return 0;
}

static PyObject *sigterm_open(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    const pid_t pid = getpid();
    if (pid != atomic_load(&sigterm_listener.pid)) { /* the parent may be ending; this process got no signal */
        atomic_store(&sigterm_listener.is_received, false);
        atomic_store(&sigterm_listener.is_from_self, false);
        atomic_store(&sigterm_listener.is_main_parked, false);
    }
    unsigned listener_id = atomic_fetch_add(&sigterm_listener.listener_id, 1) + 1;
    atomic_store(&sigterm_listener.pid, (int)pid);
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
    if ((now.sa_flags & SA_SIGINFO) != 0 || now.sa_handler != SIG_DFL) {
        Py_RETURN_FALSE;
    }
    struct sigaction action = {.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK};
    action.sa_sigaction = on_sigterm;
    sigemptyset(&action.sa_mask);
    return PyBool_FromLong(sigaction(SIGTERM, &action, NULL) == 0);
}

static PyObject *sigterm_wait(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned int listener_id;
    int limit_ms;
    if (!PyArg_ParseTuple(args, "Ii:sigterm_wait", &listener_id, &limit_ms)) {
        return NULL;
    }
    bool is_received;
    Py_BEGIN_ALLOW_THREADS
    for (;;) {
        unsigned seen = atomic_load(&sigterm_listener.wake_count);
        /* Read before `is_received`: a signal may arrive while the listener is closed. */
        unsigned now = atomic_load(&sigterm_listener.listener_id);
        is_received = atomic_load(&sigterm_listener.is_received);
        if (is_received || listener_id != now) {
            break;
        }
        (void)syscall(SYS_futex, &sigterm_listener.wake_count, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    }
    if (is_received) {
        start_watchdog(limit_ms);
        if (atomic_load(&sigterm_listener.is_from_self)) {
            /* Needs no GIL. If the queue is full, the main thread continues. */
            (void)compat_add_main_pending_call(park_main_thread, NULL);
        }
        atomic_store(&sigterm_listener.is_main_parked, true);
    }
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(is_received);
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
    if (atomic_load(&sigterm_listener.is_received)) {
        Py_RETURN_FALSE;
    }
    /* From now on our handler performs the default action, if a caller that saved it puts it back. */
    atomic_store(&sigterm_listener.pid, 0);
    /* A signal may have arrived just now: its handler may have seen the listener. */
    if (atomic_load(&sigterm_listener.is_received)) {
        atomic_store(&sigterm_listener.pid, pid);
        Py_RETURN_FALSE;
    }
    atomic_fetch_add(&sigterm_listener.listener_id, 1);
    wake_waiter();
    Py_RETURN_TRUE;
}

static PyObject *sigterm_end_process(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    end_by_sigterm();
    Py_RETURN_NONE;
}

PyMethodDef sigterm_methods[] = {
    {"sigterm_open", sigterm_open, METH_NOARGS},
    {"sigterm_install", sigterm_install, METH_NOARGS},
    {"sigterm_wait", sigterm_wait, METH_VARARGS},
    {"sigterm_close", sigterm_close, METH_NOARGS},
    {"sigterm_end_process", sigterm_end_process, METH_NOARGS},
    {NULL},
};
