/* Holds the GIL for a thread that forks without it.
 *
 * C code may fork without the GIL (uWSGI's master does). If one of our threads holds the GIL at that instant,
 * it stays locked in the child for ever. That thread's changes stay incomplete. The forking thread must not
 * wait for the GIL itself: the GIL's holder may need a lock that the forking thread has. So a ticker takes
 * the GIL, at most 20 ms later, and holds it until the fork is over. Meanwhile no thread changes anything,
 * and the child has only to unlock the GIL. If a thread of the application holds the GIL, nothing is done:
 * the fork behaves as without us.
 *
 * Fork handlers of other libraries may take the GIL before the fork, on the forking thread. So the ticker
 * releases the GIL when that thread has slept for 20 ms. A large process takes longer to fork, but uses CPU
 * time meanwhile.
 *
 * A thread that waits for a processor counts as working, for half a second: beside busy processes 20 ms pass
 * quickly. If one of our threads still holds the GIL in the child, the child unlocks it. That thread's
 * changes may then be incomplete, but nothing else could ever unlock the GIL.
 */
#include "py_compat.h"

#include "forks.h"

#include <sys/syscall.h>
#include <unistd.h>

#define REQUEST_WAIT_NS 2000000LL
#define HOLD_WAIT_NS    10000000LL
#define MIN_WORK_NS     1000000LL /* CPU time; a thread that waits for the GIL uses little, for repeated requests */
#define MAX_RUNNABLE_NS 500000000LL
/* Ends the wait for a handler that computes until another thread has the GIL. */
#define MAX_FORK_NS 10000000000LL

enum { MAX_REQUEST_WAITS = 10, MAX_IDLE_WAITS = 2, MAX_THREADS = 32 };

typedef enum { GIL_NOT_REQUESTED, GIL_REQUESTED, GIL_HELD } gil_request;

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    _Atomic gil_request state; /* changed with the mutex */
    clockid_t clock;           /* mutex: CPU clock of the requesting thread, which may have ended */
    pid_t native_id;           /* mutex: the same thread's id */
    struct {
        _Atomic(const void *) state; /* compared as an address; NULL: the place is free */
        atomic_int native_id;        /* set after `state` */
    } profiler_threads[MAX_THREADS];
} keeper = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* True if this thread made the request and must release it after its fork. */
static _Thread_local bool has_requested;

void gil_keeper_init(void)
{
    pthread_mutex_init(&keeper.mutex, NULL);
    init_condition(&keeper.changed);
}

/* Needs the mutex. */
static void wait_for_change(int64_t timeout_ns)
{
    wait_on_condition(&keeper.changed, &keeper.mutex, monotonic_ns() + timeout_ns);
}

/* Needs the mutex. */
static void set_state(gil_request state)
{
    atomic_store(&keeper.state, state);
    pthread_cond_broadcast(&keeper.changed);
}

void gil_keeper_mark_thread(bool is_starting)
{
    const void *self = PyThreadState_Get();
    if (is_starting && !compat_is_main_thread()) {
        (void)pthread_setname_np(pthread_self(), "splunk-profiler"); /* for `doctor`; as CPython does from 3.14 on */
    }
    /* Without a free place the thread is not recorded; it is then not treated as ours. */
    for (size_t i = 0; i < MAX_THREADS; i++) {
        const void *expected = is_starting ? NULL : self;
        if (atomic_compare_exchange_strong(&keeper.profiler_threads[i].state, &expected, is_starting ? self : NULL)) {
            atomic_store(&keeper.profiler_threads[i].native_id, is_starting ? (int)syscall(SYS_gettid) : 0);
            return;
        }
    }
}

bool gil_keeper_is_profiler_thread(const void *thread)
{
    for (size_t i = 0; i < MAX_THREADS; i++) {
        if (atomic_load(&keeper.profiler_threads[i].state) == thread) {
            return true;
        }
    }
    return false;
}

bool gil_keeper_is_profiler_id(pid_t native_id)
{
    for (size_t i = 0; i < MAX_THREADS; i++) {
        if (atomic_load(&keeper.profiler_threads[i].native_id) == native_id) {
            return native_id != 0;
        }
    }
    return false;
}

/* Return the holder of the GIL, as an address only, since the thread may end; NULL: it is free. */
static const void *gil_holder(PyInterpreterState *interp)
{
    struct _gil_runtime_state *gil = compat_gil(interp);
    pthread_mutex_lock(&gil->mutex); /* held during a hand-over of the GIL, and before 3.12 during a pause of Python */
    const void *holder = compat_gil_holder(interp);
    pthread_mutex_unlock(&gil->mutex);
    return holder;
}

/* `holder` has the GIL. If it is another thread, and ours, the calling thread does not have the GIL, also where CPython
 * does not know the calling thread. */
static bool is_other_profiler_thread(const void *holder)
{
    return holder != PyGILState_GetThisThreadState() && gil_keeper_is_profiler_thread(holder);
}

/* Also for a thread that CPython does not know: its child may enter Python. */
static bool is_needed(PyInterpreterState *interp)
{
    const void *holder = gil_holder(interp);
    return holder == NULL || is_other_profiler_thread(holder);
}

bool gil_keeper_request(PyInterpreterState *interp)
{
    if (!is_needed(interp)) {
        return false;
    }
    pthread_mutex_lock(&keeper.mutex);
    has_requested = atomic_load(&keeper.state) == GIL_NOT_REQUESTED;
    if (has_requested) {
        pthread_getcpuclockid(pthread_self(), &keeper.clock); /* cannot fail for the calling thread */
        keeper.native_id = (pid_t)syscall(SYS_gettid);
        set_state(GIL_REQUESTED);
    }
    pthread_mutex_unlock(&keeper.mutex);
    return has_requested;
}

/* Return true if the thread that must act next is runnable. This is our thread that holds the GIL, or any of
 * ours if the GIL is free. */
static bool is_holder_runnable(const void *holder)
{
    for (size_t i = 0; i < MAX_THREADS; i++) {
        const void *state = atomic_load(&keeper.profiler_threads[i].state);
        if (state != NULL && (holder == NULL || holder == state)
            && thread_is_runnable(atomic_load(&keeper.profiler_threads[i].native_id))) {
            return true;
        }
    }
    return false;
}

void gil_keeper_wait(PyInterpreterState *interp, bool has_running_ticker)
{
    int64_t until_ns = monotonic_ns() + MAX_RUNNABLE_NS;
    pthread_mutex_lock(&keeper.mutex);
    for (int waits = 0; waits < MAX_REQUEST_WAITS && atomic_load(&keeper.state) == GIL_REQUESTED; waits++) {
        const void *holder = gil_holder(interp);
        if (!has_running_ticker && (holder == NULL || !gil_keeper_is_profiler_thread(holder))) {
            break;
        }
        if (monotonic_ns() < until_ns && is_holder_runnable(holder)) {
            waits = -1;
        }
        wait_for_change(REQUEST_WAIT_NS);
    }
    if (atomic_load(&keeper.state) == GIL_REQUESTED) {
        set_state(GIL_NOT_REQUESTED);
        has_requested = false;
    }
    pthread_mutex_unlock(&keeper.mutex);
}

void gil_keeper_release(void)
{
    if (has_requested) {
        has_requested = false;
        pthread_mutex_lock(&keeper.mutex);
        set_state(GIL_NOT_REQUESTED);
        pthread_mutex_unlock(&keeper.mutex);
    }
}

void gil_keeper_after_fork_in_child(PyInterpreterState *interp)
{
    const void *holder = compat_gil_holder(interp);
    if (holder != NULL && is_other_profiler_thread(holder)) { /* usually the ticker that holds it for the fork */
        compat_force_release_gil(interp);
    }
    has_requested = false;
    atomic_store(&keeper.state, GIL_NOT_REQUESTED);
    for (size_t i = 0; i < MAX_THREADS; i++) {
        atomic_store(&keeper.profiler_threads[i].state, NULL);
        atomic_store(&keeper.profiler_threads[i].native_id, 0);
    }
    gil_keeper_init();
}

bool gil_keeper_is_requested(void)
{
    return atomic_load(&keeper.state) == GIL_REQUESTED;
}

/* Needs the mutex. Return when the other thread has forked, or appears to wait for the GIL. */
static void wait_for_fork(void)
{
    int64_t now_ns = clock_ns(keeper.clock), began_ns = monotonic_ns(), until_ns = began_ns + MAX_RUNNABLE_NS;
    for (int idle_waits = 0; idle_waits < MAX_IDLE_WAITS && atomic_load(&keeper.state) == GIL_HELD
                             && monotonic_ns() - began_ns < MAX_FORK_NS;
         idle_waits++) {
        int64_t before_ns = now_ns;
        wait_for_change(HOLD_WAIT_NS);
        now_ns = clock_ns(keeper.clock);
        if (now_ns - before_ns >= MIN_WORK_NS) {
            idle_waits = -1;
            until_ns = monotonic_ns() + MAX_RUNNABLE_NS;
        }
        else if (monotonic_ns() < until_ns && thread_is_runnable(keeper.native_id)) {
            idle_waits = -1;
        }
    }
}

void gil_keeper_hold_gil(PyThreadState *self)
{
    PyEval_RestoreThread(self);
    pthread_mutex_lock(&keeper.mutex);
    if (atomic_load(&keeper.state) == GIL_REQUESTED) {
        set_state(GIL_HELD);
        wait_for_fork();
        set_state(GIL_NOT_REQUESTED);
    }
    pthread_mutex_unlock(&keeper.mutex);
    PyEval_SaveThread();
}
