/* The process-wide part: one registration of fork handlers, and the list of tickers for it.
 *
 * A process can be forked by C code that runs no os.register_at_fork hook (uWSGI does). The forking thread
 * may lack the GIL, or be a foreign one. Before the fork the mutexes of the tickers are taken. So no ticker
 * holds one of CPython's locks at that instant, and none of our threads has the GIL (gil_keeper.c). The child
 * calls nothing of CPython, since a thread that no longer exists may hold any of its locks. Only the GIL's
 * own locks are initialized again, as CPython does after its hook. The pending call that reports the child is
 * posted before the fork, and the child inherits it; in the parent it does nothing.
 *
 * The mutexes are held until the fork is over. Handlers of other libraries run meanwhile, and may take the
 * GIL. So a thread that has the GIL releases it before it waits for one of these mutexes.
 *
 * From CPython 3.13 on, os.fork holds the head lock when it calls us. A thread that ends waits for that lock with the
 * GIL: a forking thread that released the GIL now would never get it back. So nothing here releases it then, and waits
 * end without success. What another thread needs the GIL for is waited for before, in a hook of os.register_at_fork
 * (forks_prepare).
 */
#include "py_compat.h"

#include "forks.h"
#include "wakeups.h"

#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The thread that delays a fork may wait for a processor, or write to a full pipe. */
#define MAX_DELAY_NS  500000000LL
#define DELAY_POLL_NS 1000000L
#define HEAD_LOCK_NS  20000LL

static struct {
    pthread_mutex_t mutex;
    /* Held by a thread of ours in code of the application that has locks (see forks_delay), and during a fork. */
    pthread_mutex_t delay;
    atomic_int forks_waiting; /* for the end of a delay: no other one begins before them */
    ticker_state *tickers;    /* mutex */
    bool has_handlers;        /* mutex */
    PyObject *in_child;       /* owned; GIL */
    /* The interpreter of in_child; NULL: no callback is set. */
    PyInterpreterState *_Atomic interp;
    /* A call of run_child_callback is in the interpreter's queue, which has 32 places. */
    atomic_bool is_call_posted;
    atomic_bool is_callback_due; /* this is a forked child, and in_child has not been called */
    fork_survivor survivor;      /* written only in the child, before it has a second thread */
    atomic_int locks_wanted;
} process = {.mutex = PTHREAD_MUTEX_INITIALIZER, .delay = PTHREAD_MUTEX_INITIALIZER};

/* The calling thread of ours is in the application's code, and holds process.delay. */
static _Thread_local bool has_delay;

/* The fork of the calling thread. */
static _Thread_local struct {
    bool is_prepared;     /* it has waited for the end of a delay */
    bool has_hooks;       /* it was prepared by a hook of Python's: there will be one in the child */
    bool is_delay_locked; /* it holds process.delay */
    bool keeps_gil;       /* it is in os.fork with the head lock; other threads hold that for a moment only */
    bool has_locks;       /* it holds the other mutexes */
} this_fork;

const atomic_int *forks_locks_wanted(void)
{
    return &process.locks_wanted;
}

void forks_lock(pthread_mutex_t *mutex)
{
    while (pthread_mutex_trylock(mutex) != 0) {
        PyThreadState *self = PyEval_SaveThread();
        pthread_mutex_lock(mutex); /* released at once: no thread waits for the GIL with it */
        pthread_mutex_unlock(mutex);
        PyEval_RestoreThread(self);
    }
}

static void sleep_briefly(void)
{
    PyThreadState *self = compat_can_release_gil() && !this_fork.keeps_gil ? PyEval_SaveThread() : NULL;
    nanosleep(&(struct timespec){.tv_nsec = DELAY_POLL_NS}, NULL);
    if (self != NULL) {
        PyEval_RestoreThread(self);
    }
}

void forks_delay(bool is_starting)
{
    if (is_starting && !has_delay && !this_fork.is_delay_locked) {
        while (atomic_load(&process.forks_waiting) > 0) {
            sleep_briefly();
        }
        forks_lock(&process.delay);
        has_delay = true;
    }
    else if (!is_starting && has_delay) {
        has_delay = false;
        pthread_mutex_unlock(&process.delay);
    }
}

/* Return false if another thread has kept the mutex for `max_ns`. */
static bool lock_within(pthread_mutex_t *mutex, int64_t max_ns)
{
    int64_t until_ns = monotonic_ns() + max_ns;
    bool is_locked = pthread_mutex_trylock(mutex) == 0;
    while (!is_locked && monotonic_ns() < until_ns) {
        sleep_briefly();
        is_locked = pthread_mutex_trylock(mutex) == 0;
    }
    return is_locked;
}

void forks_prepare(bool is_starting)
{
    if (!is_starting) {
        this_fork.is_prepared = false;
        if (this_fork.is_delay_locked) {
            this_fork.is_delay_locked = false;
            pthread_mutex_unlock(&process.delay);
        }
    }
    else if (process.has_handlers && !this_fork.is_prepared
             && !has_delay) { /* has_delay: the application's code forks */
        this_fork.is_prepared = true;
        atomic_fetch_add(&process.forks_waiting, 1);
        /* A thread that delays us may need the GIL. */
        this_fork.is_delay_locked = lock_within(&process.delay, this_fork.keeps_gil ? 0 : MAX_DELAY_NS);
        atomic_fetch_sub(&process.forks_waiting, 1);
    }
}

static int run_child_callback(void *unused)
{
    atomic_store(&process.is_call_posted, false);
    if (PyInterpreterState_Get() != atomic_load(&process.interp) || !atomic_exchange(&process.is_callback_due, false)) {
        return 0;
    }
    PyObject *in_child = Py_XNewRef(process.in_child);
    if (in_child != NULL) {
        PyObject *result = PyObject_CallNoArgs(in_child);
        if (result == NULL) {
            PyErr_WriteUnraisable(in_child);
        }
        Py_XDECREF(result);
        Py_DECREF(in_child);
    }
    return 0;
}

static void post_child_callback(void)
{
    PyInterpreterState *interp = atomic_load(&process.interp);
    if (interp == NULL || compat_is_finalizing() || atomic_exchange(&process.is_call_posted, true)) {
        return;
    }
    if (compat_add_pending_call(interp, run_child_callback, NULL) != 0) {
        atomic_store(&process.is_call_posted, false); /* the queue is full; the Python hooks remain */
    }
}

/* Called without the GIL, after the request; see gil_keeper.c. Any running ticker can hold it. */
static void hold_gil_for_fork(PyInterpreterState *interp)
{
    bool has_running_ticker = false;
    pthread_mutex_lock(&process.mutex);
    for (ticker_state *ticker = process.tickers; ticker != NULL; ticker = ticker->next_ticker) {
        pthread_mutex_lock(&ticker->loop.mutex);
        has_running_ticker = has_running_ticker || ticker->loop.is_running;
        pthread_cond_broadcast(&ticker->loop.changed);
        pthread_mutex_unlock(&ticker->loop.mutex);
    }
    pthread_mutex_unlock(&process.mutex);
    gil_keeper_wait(interp, has_running_ticker);
}

/* Unlock the mutexes of all tickers before `end`, and that of their list. */
static void unlock_tickers(const ticker_state *end)
{
    for (ticker_state *ticker = process.tickers; ticker != end; ticker = ticker->next_ticker) {
        pthread_mutex_unlock(&ticker->loop.mutex);
    }
    pthread_mutex_unlock(&process.mutex);
}

static void lock_tickers(void)
{
    if (compat_can_release_gil()) {
        forks_lock(&process.mutex);
    }
    else {
        pthread_mutex_lock(&process.mutex);
    }
    for (ticker_state *ticker = process.tickers; ticker != NULL; ticker = ticker->next_ticker) {
        /* Others hold it briefly: another forking thread would hold the mutex above. */
        pthread_mutex_lock(&ticker->loop.mutex);
    }
}

/* With the GIL kept, a wait might never end. Return false if a mutex cannot be had. The child initializes it anew; in the
 * child, what its holder was about to do stays undone. */
static bool try_lock_tickers(void)
{
    if (!lock_within(&process.mutex, MAX_DELAY_NS)) {
        return false;
    }
    for (ticker_state *ticker = process.tickers; ticker != NULL; ticker = ticker->next_ticker) {
        if (!lock_within(&ticker->loop.mutex, MAX_DELAY_NS)) {
            unlock_tickers(ticker);
            return false;
        }
    }
    return true;
}

/* Have the child report itself. The post may release the GIL from CPython 3.13 on: so it comes before our mutexes, and
 * in os.fork not at all, as Python's hooks run in that child. */
static void lock_and_post(void)
{
    if (this_fork.keeps_gil) {
        this_fork.has_locks = try_lock_tickers();
        return;
    }
    if (compat_locks_detach()) {
        post_child_callback(); /* with the GIL the interpreter cannot end meanwhile */
        lock_tickers();
    }
    else {
        lock_tickers();
        post_child_callback();
    }
    this_fork.has_locks = true;
}

/* A peek at event loops, without the GIL, has the head lock for microseconds. */
static bool stays_head_locked(void)
{
    bool is_locked = compat_is_head_locked();
    for (int64_t until_ns = monotonic_ns() + HEAD_LOCK_NS; is_locked && monotonic_ns() < until_ns;) {
        is_locked = compat_is_head_locked();
    }
    return is_locked;
}

static void before_fork(void)
{
    this_fork.keeps_gil = compat_can_release_gil() && stays_head_locked();
    this_fork.has_hooks = this_fork.is_prepared;
    forks_prepare(true);
    atomic_fetch_add(&process.locks_wanted, 1);
    PyInterpreterState *interp = atomic_load(&process.interp);
    if (interp != NULL && !compat_is_finalizing() && gil_keeper_request(interp)) {
        hold_gil_for_fork(interp);
    }
    lock_and_post();
}

static void after_fork_in_parent(void)
{
    this_fork.keeps_gil = false;
    if (this_fork.has_locks) {
        this_fork.has_locks = false;
        unlock_tickers(NULL);
    }
    atomic_fetch_sub(&process.locks_wanted, 1);
    gil_keeper_release();
    forks_prepare(false);
}

static void set_survivor(uint64_t newest_inherited)
{
    process.survivor = (fork_survivor){
        .ident = (unsigned long)pthread_self(),
        .native_id = (unsigned long)syscall(SYS_gettid),
        .newest_inherited = newest_inherited,
    };
}

/* C code may have forked this process before our handlers were there, and not called CPython's hook. Then thread
 * states that are inherited have the ids of threads of the parent. */
static void find_survivor(void)
{
    PyThreadState *self = PyThreadState_Get();
    unsigned long native_id = compat_native_id(self);
    if (native_id == 0 || native_id == (unsigned long)syscall(SYS_gettid) || !compat_lock_head()) {
        return;
    }
    PyThreadState *state = compat_first_thread(PyThreadState_GetInterpreter(self));
    while (state != self && syscall(SYS_tgkill, getpid(), (pid_t)compat_native_id(state), 0) == 0) {
        state = state->next; /* newest first: this one was started here */
    }
    set_survivor(state->id);
    compat_unlock_head();
}

/* Only this thread exists. Its mutexes and conditions are initialized again: conditions count waiters that no
 * longer exist. */
static void after_fork_in_child(void)
{
    for (ticker_state *ticker = process.tickers; ticker != NULL; ticker = ticker->next_ticker) {
        pthread_mutex_init(&ticker->loop.mutex, NULL);
        init_condition(&ticker->loop.changed);
        ticker->loop.is_running = false;
        atomic_store(&ticker->loop.is_stopped, true);
        atomic_store(&ticker->loop.is_closed, true);
    }
    pthread_mutex_init(&process.mutex, NULL);
    pthread_mutex_init(&process.delay, NULL);
    atomic_store(&process.forks_waiting, 0);
    has_delay = false;
    atomic_store(&process.locks_wanted, 0);
    PyInterpreterState *interp = PyInterpreterState_Main();
    set_survivor(interp == NULL ? 0 : compat_newest_thread_id(interp));
    compat_reinit_gil(interp);
    gil_keeper_after_fork_in_child(interp);
    if (!this_fork.has_hooks) {
        sockets_close(0); /* the child may never run Python, and would keep the exporter alive */
    }
    atomic_store(&process.is_callback_due, !this_fork.keeps_gil); /* else nothing is posted */
    compat_run_calls_here();
    memset(&this_fork, 0, sizeof(this_fork));
}

/* Needs the mutex and the GIL. Registers once; false: the system refuses. */
static bool register_handlers(void)
{
    if (!process.has_handlers) {
        find_survivor();
        gil_keeper_init();
        process.has_handlers = pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child) == 0;
    }
    return process.has_handlers;
}

bool forks_add(ticker_state *ticker)
{
    forks_lock(&process.mutex);
    bool has_handlers = register_handlers();
    if (has_handlers) {
        ticker->next_ticker = process.tickers;
        process.tickers = ticker;
    }
    pthread_mutex_unlock(&process.mutex);
    return has_handlers;
}

void forks_remove(ticker_state *ticker)
{
    forks_lock(&process.mutex);
    ticker_state **link = &process.tickers;
    while (*link != ticker) {
        link = &(*link)->next_ticker;
    }
    *link = ticker->next_ticker;
    pthread_mutex_unlock(&process.mutex);
}

void forks_close_all(void)
{
    atomic_fetch_add(&process.locks_wanted, 1);
    forks_lock(&process.mutex);
    atomic_store(&process.interp, NULL);
    for (ticker_state *ticker = process.tickers; ticker != NULL; ticker = ticker->next_ticker) {
        pthread_mutex_lock(&ticker->loop.mutex);
        atomic_store(&ticker->loop.is_closed, true);
        pthread_cond_broadcast(&ticker->loop.changed);
        pthread_mutex_unlock(&ticker->loop.mutex);
    }
    pthread_mutex_unlock(&process.mutex);
    atomic_fetch_sub(&process.locks_wanted, 1);
    wakeups_send();
    Py_CLEAR(process.in_child);
}

bool forks_set_child_callback(PyInterpreterState *interp, PyObject *in_child)
{
    forks_lock(&process.mutex);
    bool has_handlers = register_handlers();
    PyObject *before = NULL;
    if (has_handlers) {
        before = process.in_child;
        process.in_child = Py_XNewRef(in_child);
        atomic_store(&process.interp, in_child == NULL ? NULL : interp);
    }
    pthread_mutex_unlock(&process.mutex);
    Py_XDECREF(before);
    return has_handlers;
}

const fork_survivor *forks_survivor(void)
{
    return &process.survivor;
}
