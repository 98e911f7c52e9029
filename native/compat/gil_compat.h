/* Differences between CPython versions inside the GIL: its holder, and its recovery in a forked child.
 *
 * A part of py_compat.h, which includes it with CPython's headers. Nothing here needs the GIL.
 */
#ifndef SPLUNK_PROFILER_COMPAT_GIL_COMPAT_H
#define SPLUNK_PROFILER_COMPAT_GIL_COMPAT_H

#include "public_compat.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>
#if !defined(__x86_64__)
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

/* Return the GIL; NULL: Python has ended. */
static inline struct _gil_runtime_state *compat_gil(PyInterpreterState *interp)
{
#if PY_VERSION_HEX >= 0x030C0000
    return interp == NULL ? NULL : interp->ceval.gil;
#else
    return interp == NULL ? NULL : &_PyRuntime.ceval.gil;
#endif
}

/* Return true if any thread holds the GIL; read without a lock. Here and below, versions before 3.13 wrap the same
 * int or pointer in an atomic type. */
static inline bool compat_is_gil_locked(const struct _gil_runtime_state *gil)
{
    return __atomic_load_n((const int *)&gil->locked, __ATOMIC_RELAXED) > 0;
}

/* In the address of the last holder, before 3.12; see compat_pause_python. */
#define GIL_HOLDER_MARK ((uintptr_t)1)

/* Return the thread that holds the GIL, or NULL; read without a lock. It may end meanwhile: use only its
 * address. */
static inline const PyThreadState *compat_gil_holder(PyInterpreterState *interp)
{
    const struct _gil_runtime_state *gil = compat_gil(interp);
    if (gil == NULL || !compat_is_gil_locked(gil)) {
        return NULL;
    }
    uintptr_t holder = __atomic_load_n((const uintptr_t *)&gil->last_holder, __ATOMIC_RELAXED);
    return (const PyThreadState *)(holder & ~GIL_HOLDER_MARK);
}

/* Return true for a thread that waits for the GIL, and perhaps for the one that has it. Versions before 3.15 do not
 * tell. */
static inline bool compat_wants_gil(const PyThreadState *state)
{
#if PY_VERSION_HEX >= 0x030F0000
    return __atomic_load_n(&state->gil_requested, __ATOMIC_RELAXED) != 0;
#else
    (void)state;
    return false;
#endif
}

/* Ask for the GIL, which the calling thread takes next, as CPython does after a wait of 5 ms. Until it is asked for, each
 * thread that gives it up for a moment wakes the thread that waits, and has it again before that runs. Whoever gives it
 * up on request waits until another thread has it: for ever at the interpreter's end, when no other takes it. Needs no
 * GIL. */
static inline void compat_request_gil(PyInterpreterState *interp)
{
    struct _gil_runtime_state *gil = compat_gil(interp);
    if (gil == NULL) {
        return;
    }
    pthread_mutex_lock(&gil->mutex); /* the holder needs it to release the GIL, so it does not end meanwhile */
    if (compat_is_gil_locked(gil) && !compat_is_finalizing()) {
#if PY_VERSION_HEX >= 0x030D0000
        PyThreadState *holder = __atomic_load_n((PyThreadState *const *)&gil->last_holder, __ATOMIC_RELAXED);
        if (holder != NULL) {
            _Py_atomic_or_uintptr(&holder->eval_breaker, _PY_GIL_DROP_REQUEST_BIT);
        }
#else
        _Py_atomic_store_relaxed(&interp->ceval.gil_drop_request, 1);
        _Py_atomic_store_relaxed(&interp->ceval.eval_breaker, 1);
#endif
    }
    pthread_mutex_unlock(&gil->mutex);
}

/* In a forked child: unlock the GIL, whichever thread held it. */
static inline void compat_force_release_gil(PyInterpreterState *interp)
{
    __atomic_store_n((int *)&compat_gil(interp)->locked, 0, __ATOMIC_RELAXED);
}

/* In a forked child, before anything else runs: discard the GIL's state of threads that no longer exist. A
 * thread that waited for it (often a ticker) left a drop request. The holder would wait for that thread to
 * take the GIL. The condition variables still count it, and would wait for it too. CPython's own hook
 * initializes them in the same way, but C code that forks does not always call it. A held GIL stays held. */
static inline void compat_reinit_gil(PyInterpreterState *interp)
{
    struct _gil_runtime_state *gil = compat_gil(interp);
    if (gil == NULL) {
        return;
    }
    pthread_condattr_t attributes; /* CPython's clock, where there is a monotonic one */
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&gil->mutex, NULL);
    pthread_cond_init(&gil->cond, &attributes);
#ifdef FORCE_SWITCHING
    pthread_mutex_init(&gil->switch_mutex, NULL);
    pthread_cond_init(&gil->switch_cond, &attributes);
#endif
    pthread_condattr_destroy(&attributes);
#if PY_VERSION_HEX >= 0x030D0000
    PyThreadState *self = compat_unchecked_thread();
    if (self != NULL) {
        _Py_atomic_and_uintptr(&self->eval_breaker, ~(uintptr_t)_PY_GIL_DROP_REQUEST_BIT);
    }
#else
    _Py_atomic_store_relaxed(&interp->ceval.gil_drop_request, 0);
#endif
}

/* Return true if the calling thread holds the GIL and can release it. Before 3.12 this is false for threads
 * of subinterpreters and foreign threads, where it is unknown. */
static inline bool compat_can_release_gil(void)
{
    return compat_calling_thread() != NULL;
}

/* Return true if waiting for one of CPython's locks in this thread may release and retake the GIL. */
static inline bool compat_locks_detach(void)
{
    return PY_VERSION_HEX >= 0x030D0000 && compat_unchecked_thread() != NULL;
}

/* Before 3.12 only the main thread runs pending calls. */
#define COMPAT_ANY_THREAD_RUNS_CALLS (PY_VERSION_HEX >= 0x030C0000)

/* In a forked child: let its only thread run pending calls, as CPython's own hook does. It handles signals then, too. */
static inline void compat_run_calls_here(void)
{
#if !COMPAT_ANY_THREAD_RUNS_CALLS
    _PyRuntime.main_thread = PyThread_get_thread_ident();
#endif
}

#if PY_VERSION_HEX < 0x030C0000
/* A pause of Python: no thread runs Python between compat_pause_python and compat_resume_python, as if the calling
 * thread had taken the GIL. It takes only the mutex of the GIL:
 *
 * - If the GIL is free, no thread can take it without the mutex.
 * - Otherwise its holder is asked to release it. The holder writes its address to last_holder, then locks the mutex, and
 *   only then releases the GIL. So a mark in last_holder disappears at the instant from which the holder waits for us.
 *   Afterwards it finds neither the mark nor the request, and goes on.
 *
 * A thread that takes the GIL instead would compete with all others that wait for it: the holder wakes one of them, in
 * the order of their waits. And each capture would cost two switches of threads. The code during the pause must not
 * release the GIL. It needs no other lock of CPython than a thread with the GIL may take. */
typedef struct {
    const PyThreadState *gil_holder; /* only compared; NULL: the GIL is free */
    PyThreadState *previous;         /* CPython's current thread before the pause, which is restored; mostly NULL */
} compat_pause;

#define GIL_SPINS         500     /* 5 to 25 us: longer than a thread that runs Python takes to react */
#define MIN_GIL_SLEEP_NS  60000LL /* after that, while C code keeps the GIL: a part of the time so far, ... */
#define MAX_GIL_SLEEP_NS  500000LL
#define GIL_SLEEP_DIVISOR 16 /* ... because the holder may have to wait as long for the thread that sleeps */

/* Order this thread's writes before its reads, and all that the other threads did before a write that was read. Return
 * false if the system cannot. */
static inline bool compat_synchronize(void)
{
#if defined(__x86_64__)
    __atomic_thread_fence(__ATOMIC_SEQ_CST); /* this processor shows the writes of a thread in their order */
    return true;
#else
    return syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0
           || (syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0
               && syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0);
#endif
}

/* Return false at `until_ns`, or if another thread needs a lock of this one. */
static inline bool compat_wait_for_holder(const uintptr_t *holder, uintptr_t marked, int64_t begin_ns, int64_t until_ns,
                                          const atomic_int *locks_wanted)
{
    for (int spins = 0; __atomic_load_n(holder, __ATOMIC_RELAXED) == marked; spins++) {
        if (spins < GIL_SPINS) {
#if defined(__x86_64__)
            __builtin_ia32_pause();
#elif defined(__aarch64__)
            __asm__ volatile("yield");
#endif
            continue;
        }
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        int64_t now_ns = now.tv_sec * 1000000000LL + now.tv_nsec, sleep_ns = (now_ns - begin_ns) / GIL_SLEEP_DIVISOR;
        if (now_ns >= until_ns || atomic_load(locks_wanted) > 0 || compat_is_finalizing()) {
            return false;
        }
        sleep_ns = sleep_ns < MIN_GIL_SLEEP_NS ? MIN_GIL_SLEEP_NS : sleep_ns;
        sleep_ns = sleep_ns > MAX_GIL_SLEEP_NS ? MAX_GIL_SLEEP_NS : sleep_ns;
        (void)nanosleep(&(struct timespec){.tv_nsec = (long)sleep_ns}, NULL);
    }
    return true;
}

/* Needs the mutex, and the GIL is held. Return true if its holder waits for the mutex from now on, and has not begun to
 * end the interpreter meanwhile. */
static inline bool compat_stop_holder(PyInterpreterState *interp, int64_t begin_ns, int64_t until_ns,
                                      const atomic_int *locks_wanted)
{
    uintptr_t *last_holder = (uintptr_t *)&compat_gil(interp)->last_holder;
    uintptr_t holder = __atomic_load_n(last_holder, __ATOMIC_RELAXED), marked = holder | GIL_HOLDER_MARK;
    __atomic_store_n(last_holder, marked, __ATOMIC_RELAXED);
    /* Without a current thread the holder has just taken the GIL; or it waits for the mutex, and wrote its address
     * before the mark. */
    if (compat_synchronize() && compat_unchecked_thread() != NULL) {
        /* A thread that releases the GIL on request waits until another one takes it. So a request stays only if it is
         * of a thread that waits for the GIL. */
        int was_requested = _Py_atomic_load_relaxed(&interp->ceval.gil_drop_request);
        _Py_atomic_store_relaxed(&interp->ceval.gil_drop_request, 1);
        _Py_atomic_store_relaxed(&interp->ceval.eval_breaker, 1); /* computed by each thread that takes the GIL */
        (void)compat_wait_for_holder(last_holder, marked, begin_ns, until_ns, locks_wanted);
        _Py_atomic_store_relaxed(&interp->ceval.gil_drop_request, was_requested);
    }
    return !__atomic_compare_exchange_n(last_holder, &marked, holder, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)
           && compat_synchronize() && !compat_is_finalizing();
}

/* Needs no GIL. `self` becomes the current thread. The ending interpreter frees it without notice, but cannot begin to
 * end during a pause. Return false, without a pause, at `until_ns` or if `locks_wanted` is not 0; also where a holder is in
 * between, so that the caller has to try again. `begin_ns`: when the first try began. */
static inline bool compat_pause_python(PyInterpreterState *interp, PyThreadState *self, compat_pause *pause,
                                       int64_t begin_ns, int64_t until_ns, const atomic_int *locks_wanted)
{
    struct _gil_runtime_state *gil = compat_gil(interp);
    pthread_mutex_lock(&gil->mutex);
    if (compat_is_finalizing()
        || (compat_is_gil_locked(gil) && !compat_stop_holder(interp, begin_ns, until_ns, locks_wanted))) {
        pthread_mutex_unlock(&gil->mutex);
        return false;
    }
    pause->gil_holder = compat_gil_holder(interp);
    pause->previous = PyThreadState_Swap(self);
    return true;
}

static inline void compat_resume_python(PyInterpreterState *interp, const compat_pause *pause)
{
    PyThreadState_Swap(pause->previous);
    pthread_mutex_unlock(&compat_gil(interp)->mutex);
}
#endif

#endif
