/* What belongs to the process and not to a module: the one registration for forks, and the list of cores it needs.
 *
 * A process can be forked by C code that runs no os.register_at_fork hook (uWSGI does), by a thread without the GIL,
 * by a foreign thread. Before the fork the cores' mutexes are taken, so that no ticker is between CPython's locks at that
 * instant, and none of our threads has the GIL (gil_keeper.c). In the child nothing of CPython is called, since any of its
 * locks may be held by a thread that is not there any more (the GIL's own are made anew, as CPython does after its hook):
 * the call that is to notice the child is posted before the fork, and is inherited. In the parent it does nothing.
 *
 * The mutexes are held until the fork is over. Handlers of other libraries run meanwhile, and may want the GIL: so whoever
 * has the GIL gives it up before it waits for one of them.
 */
#include "py_compat.h"

#include "state.h"

#include <sys/syscall.h>
#include <unistd.h>

static struct {
    pthread_mutex_t mutex;
    core *cores;                        /* mutex */
    bool handlers;                      /* mutex */
    PyObject *in_child;                 /* owned; GIL */
    PyInterpreterState *_Atomic interp; /* whose in_child it is; NULL: nobody watches */
    atomic_bool posted;                 /* a call of notice_child is in the interpreter's queue, which has 32 places */
    atomic_bool unnoticed;              /* this is a forked child, and in_child has not been told */
    fork_survivor survivor;             /* written only in the child, before it has a second thread */
} process = {.mutex = PTHREAD_MUTEX_INITIALIZER};

void core_init_locks(core *c)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&c->mutex, NULL);
    pthread_cond_init(&c->tick, &attributes);
    pthread_cond_init(&c->filled, &attributes);
    pthread_condattr_destroy(&attributes);
}

void forks_lock(pthread_mutex_t *mutex)
{
    while (pthread_mutex_trylock(mutex) != 0) {
        PyThreadState *self = PyEval_SaveThread();
        pthread_mutex_lock(mutex); /* and not kept: nobody waits for the GIL with it */
        pthread_mutex_unlock(mutex);
        PyEval_RestoreThread(self);
    }
}

static int notice_child(void *unused)
{
    (void)unused;
    atomic_store(&process.posted, false);
    if (PyInterpreterState_Get() != atomic_load(&process.interp) || !atomic_exchange(&process.unnoticed, false)) {
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

static void post_notice(void)
{
    PyInterpreterState *interp = atomic_load(&process.interp);
    if (interp == NULL || compat_is_finalizing() || atomic_exchange(&process.posted, true)) {
        return;
    }
    if (compat_post(interp, notice_child, NULL) != 0) {
        atomic_store(&process.posted, false); /* a full queue: the Python hooks remain */
    }
}

/* This thread has no GIL; see gil_keeper.c. Any running ticker will do. */
static void have_gil_kept(PyInterpreterState *interp)
{
    bool somebody_can = false;
    if (!gil_keeper_ask()) {
        return;
    }
    pthread_mutex_lock(&process.mutex);
    for (core *c = process.cores; c != NULL; c = c->next_core) {
        pthread_mutex_lock(&c->mutex);
        somebody_can = somebody_can || c->running;
        pthread_cond_broadcast(&c->tick);
        pthread_mutex_unlock(&c->mutex);
    }
    pthread_mutex_unlock(&process.mutex);
    gil_keeper_await(interp, somebody_can);
}

static void before_fork(void)
{
    PyInterpreterState *interp = atomic_load(&process.interp);
    if (interp != NULL && !compat_is_finalizing() && gil_keeper_is_needed(interp)) {
        have_gil_kept(interp);
    }
    bool has_gil = compat_has_gil_to_give();
    /* With the GIL the interpreter cannot end under us, and the post might give the GIL up: not under our mutex. */
    bool posts_first = compat_locks_detach();
    if (posts_first) {
        post_notice();
    }
    if (has_gil) {
        forks_lock(&process.mutex);
    }
    else {
        pthread_mutex_lock(&process.mutex);
    }
    if (!posts_first) {
        post_notice();
    }
    for (core *c = process.cores; c != NULL; c = c->next_core) {
        pthread_mutex_lock(&c->mutex); /* for a moment: another thread that forks would have the one above */
    }
}

static void after_fork_in_parent(void)
{
    for (core *c = process.cores; c != NULL; c = c->next_core) {
        pthread_mutex_unlock(&c->mutex);
    }
    pthread_mutex_unlock(&process.mutex);
    gil_keeper_release();
}

/* Only this thread exists. Mutexes are made anew: condition variables count waiters that are gone. */
static void after_fork_in_child(void)
{
    for (core *c = process.cores; c != NULL; c = c->next_core) {
        core_init_locks(c);
        c->running = false;
        atomic_store(&c->stopped, true);
        atomic_store(&c->closed, true);
    }
    pthread_mutex_init(&process.mutex, NULL);
    PyInterpreterState *interp = PyInterpreterState_Main();
    process.survivor = (fork_survivor){
        .ident = (unsigned long)pthread_self(),
        .native_id = (unsigned long)syscall(SYS_gettid),
        .newest_inherited = interp == NULL ? 0 : compat_newest_id(interp),
    };
    compat_recover_gil(interp);
    gil_keeper_after_fork_in_child(interp);
    atomic_store(&process.unnoticed, true);
}

int forks_prepare_process(void)
{
    forks_lock(&process.mutex);
    if (!process.handlers) {
        gil_keeper_init();
        process.handlers = pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child) == 0;
    }
    bool done = process.handlers;
    pthread_mutex_unlock(&process.mutex);
    return done ? 0 : -1;
}

void forks_add(core *c)
{
    forks_lock(&process.mutex);
    c->next_core = process.cores;
    c->link = &process.cores;
    if (process.cores != NULL) {
        process.cores->link = &c->next_core;
    }
    process.cores = c;
    pthread_mutex_unlock(&process.mutex);
}

void forks_remove(core *c)
{
    forks_lock(&process.mutex);
    *c->link = c->next_core;
    if (c->next_core != NULL) {
        c->next_core->link = c->link;
    }
    pthread_mutex_unlock(&process.mutex);
}

void forks_close_all(void)
{
    forks_lock(&process.mutex);
    atomic_store(&process.interp, NULL);
    for (core *c = process.cores; c != NULL; c = c->next_core) {
        pthread_mutex_lock(&c->mutex);
        atomic_store(&c->closed, true);
        pthread_cond_broadcast(&c->tick);
        pthread_cond_broadcast(&c->filled);
        pthread_mutex_unlock(&c->mutex);
    }
    pthread_mutex_unlock(&process.mutex);
    Py_CLEAR(process.in_child);
}

void forks_watch(PyInterpreterState *interp, PyObject *in_child)
{
    forks_lock(&process.mutex);
    PyObject *before = process.in_child;
    process.in_child = Py_XNewRef(in_child);
    atomic_store(&process.interp, in_child == NULL ? NULL : interp);
    pthread_mutex_unlock(&process.mutex);
    Py_XDECREF(before);
}

const fork_survivor *forks_survivor(void)
{
    return &process.survivor;
}
