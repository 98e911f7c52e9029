/* Keeps the GIL for a thread that forks without it.
 *
 * C code may fork without the GIL (uWSGI's master does). If one of our threads has it at that instant, it stays locked in
 * the child for ever, and what that thread was changing stays half changed. The thread that forks must not wait for the
 * GIL itself, for its holder may want a lock that this thread has. So a ticker takes it, at most 20 ms later, and keeps it
 * until the fork is over: nobody changes anything meanwhile, and the child has only to unlock it. Where a thread of the
 * application has the GIL nothing is done: that is as it would be without us.
 *
 * Handlers of other libraries may want the GIL before the fork, on the thread that forks. Then it is let go: when that
 * thread has slept for 20 ms. A large process takes longer to fork, but works on it.
 *
 * A thread that waits for a processor counts as one that works, for half a second: beside busy processes 20 ms are soon
 * over. If the GIL is still one of our threads' in the child it is unlocked all the same. What that thread was changing
 * may be half changed then, but nothing else could ever unlock it.
 */
#include "py_compat.h"

#include "state.h"

#include <sys/syscall.h>
#include <unistd.h>

#define ASKING_NS  2000000LL
#define KEEPING_NS 10000000LL
#define WORKED_NS  1000000LL /* CPU time; who waits for the GIL uses little, to ask for it again and again */
#define LONGEST_NS 500000000LL
#define FORK_NS    10000000000LL /* a handler that computes until another thread has the GIL never ends else */

enum { ASKING_WAITS = 10, KEEPING_WAITS = 2, MOST_THREADS = 32 };

typedef enum { NOT_WANTED, ASKED, KEPT } keeping;

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    _Atomic keeping state; /* changed with the mutex */
    clockid_t clock;       /* mutex: CPU time of the thread that asks */
    pid_t native_id;       /* mutex: the same thread's */
    struct {
        _Atomic(const void *) state; /* as an address; NULL: the place is free */
        atomic_int native_id;        /* set after it */
    } own_threads[MOST_THREADS];
} keeper = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* This thread has asked, and is to say when it has forked. */
static _Thread_local bool asking;

void gil_keeper_init(void)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&keeper.mutex, NULL);
    pthread_cond_init(&keeper.changed, &attributes);
    pthread_condattr_destroy(&attributes);
}

/* Needs the mutex. */
static void wait_for_change(int64_t most_ns)
{
    int64_t at_ns = monotonic_ns() + most_ns;
    struct timespec at = {.tv_sec = at_ns / 1000000000LL, .tv_nsec = at_ns % 1000000000LL};
    pthread_cond_timedwait(&keeper.changed, &keeper.mutex, &at);
}

/* Needs the mutex. */
static void change(keeping state)
{
    atomic_store(&keeper.state, state);
    pthread_cond_broadcast(&keeper.changed);
}

void gil_keeper_own_thread(bool begins)
{
    const void *self = PyThreadState_Get();
    for (size_t i = 0; i < MOST_THREADS;
         i++) { /* no room: a thread more or less is known, and so is helped or is not */
        const void *expected = begins ? NULL : self;
        if (atomic_compare_exchange_strong(&keeper.own_threads[i].state, &expected, begins ? self : NULL)) {
            atomic_store(&keeper.own_threads[i].native_id, begins ? (int)syscall(SYS_gettid) : 0);
            return;
        }
    }
}

static bool is_own(const void *thread)
{
    for (size_t i = 0; i < MOST_THREADS; i++) {
        if (atomic_load(&keeper.own_threads[i].state) == thread) {
            return true;
        }
    }
    return false;
}

/* ---- the thread that forks ---- */

/* NULL: it is free. An address only: the thread may end. */
static const void *gil_holder(PyInterpreterState *interp)
{
    struct _gil_runtime_state *gil = compat_gil(interp);
    pthread_mutex_lock(&gil->mutex); /* held for moments, and while the GIL goes from one thread to the other */
    const void *holder = compat_gil_holder(interp);
    pthread_mutex_unlock(&gil->mutex);
    return holder;
}

bool gil_keeper_is_needed(PyInterpreterState *interp)
{
    if (compat_holds_gil() || PyGILState_GetThisThreadState() == NULL) { /* or it will not need the GIL */
        return false;
    }
    const void *holder = gil_holder(interp);
    return holder == NULL || is_own(holder);
}

bool gil_keeper_ask(void)
{
    pthread_mutex_lock(&keeper.mutex);
    asking = atomic_load(&keeper.state) == NOT_WANTED;
    if (asking) {
        pthread_getcpuclockid(pthread_self(), &keeper.clock); /* cannot fail for oneself */
        keeper.native_id = (pid_t)syscall(SYS_gettid);
        change(ASKED);
    }
    pthread_mutex_unlock(&keeper.mutex);
    return asking;
}

/* Whether the thread on which all depends would go on if it had a processor: the one of ours that has the GIL, or any if
 * it is free. */
static bool is_under_way(const void *holder)
{
    for (size_t i = 0; i < MOST_THREADS; i++) {
        const void *state = atomic_load(&keeper.own_threads[i].state);
        if (state != NULL && (holder == NULL || holder == state)
            && thread_is_runnable(atomic_load(&keeper.own_threads[i].native_id))) {
            return true;
        }
    }
    return false;
}

void gil_keeper_await(PyInterpreterState *interp, bool somebody_can)
{
    int64_t until_ns = monotonic_ns() + LONGEST_NS;
    pthread_mutex_lock(&keeper.mutex);
    for (int waits = 0; waits < ASKING_WAITS && atomic_load(&keeper.state) == ASKED; waits++) {
        const void *holder = gil_holder(interp);
        if (!somebody_can && (holder == NULL || !is_own(holder))) {
            break;
        }
        if (monotonic_ns() < until_ns && is_under_way(holder)) {
            waits = -1;
        }
        wait_for_change(ASKING_NS);
    }
    if (atomic_load(&keeper.state) == ASKED) {
        change(NOT_WANTED);
        asking = false;
    }
    pthread_mutex_unlock(&keeper.mutex);
}

void gil_keeper_release(void)
{
    if (asking) {
        asking = false;
        pthread_mutex_lock(&keeper.mutex);
        change(NOT_WANTED);
        pthread_mutex_unlock(&keeper.mutex);
    }
}

void gil_keeper_after_fork_in_child(PyInterpreterState *interp)
{
    const void *holder = interp == NULL || compat_holds_gil() ? NULL : compat_gil_holder(interp);
    if (holder != NULL && is_own(holder)) { /* the ticker that keeps it, as a rule */
        compat_free_gil(interp);
    }
    asking = false;
    atomic_store(&keeper.state, NOT_WANTED);
    for (size_t i = 0; i < MOST_THREADS; i++) {
        atomic_store(&keeper.own_threads[i].state, NULL);
    }
    gil_keeper_init();
}

/* ---- the ticker ---- */

bool gil_keeper_is_asked(void)
{
    return atomic_load(&keeper.state) == ASKED;
}

/* Needs the mutex. CPU time of the thread that asks. */
static int64_t used_ns(void)
{
    struct timespec used = {0};
    (void)clock_gettime(keeper.clock, &used); /* it may have ended */
    return used.tv_sec * 1000000000LL + used.tv_nsec;
}

/* Needs the mutex. Returns when the other thread has forked, or seems to want the GIL itself. */
static void wait_for_fork(void)
{
    int64_t now_ns = used_ns(), began_ns = monotonic_ns(), until_ns = began_ns + LONGEST_NS;
    for (int idle = 0;
         idle < KEEPING_WAITS && atomic_load(&keeper.state) == KEPT && monotonic_ns() - began_ns < FORK_NS; idle++) {
        int64_t before_ns = now_ns;
        wait_for_change(KEEPING_NS);
        now_ns = used_ns();
        if (now_ns - before_ns >= WORKED_NS) {
            idle = -1;
            until_ns = monotonic_ns() + LONGEST_NS;
        }
        else if (monotonic_ns() < until_ns && thread_is_runnable(keeper.native_id)) {
            idle = -1;
        }
    }
}

void gil_keeper_keep(PyThreadState *self)
{
    PyEval_RestoreThread(self);
    pthread_mutex_lock(&keeper.mutex);
    if (atomic_load(&keeper.state) == ASKED) {
        change(KEPT);
        wait_for_fork();
        change(NOT_WANTED);
    }
    pthread_mutex_unlock(&keeper.mutex);
    PyEval_SaveThread();
}
