/* Differences between CPython versions inside the GIL: its holder, and its recovery in a forked child.
 *
 * A part of py_compat.h, which includes it with CPython's headers. Nothing here needs the GIL.
 */
#ifndef SPLUNK_PROFILER_COMPAT_GIL_COMPAT_H
#define SPLUNK_PROFILER_COMPAT_GIL_COMPAT_H

#include "public_compat.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

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

/* Return the thread that holds the GIL, or NULL; read without a lock. It may end meanwhile: use only its
 * address. */
static inline const PyThreadState *compat_gil_holder(PyInterpreterState *interp)
{
    const struct _gil_runtime_state *gil = compat_gil(interp);
    if (gil == NULL || !compat_is_gil_locked(gil)) {
        return NULL;
    }
    return __atomic_load_n((PyThreadState *const *)&gil->last_holder, __ATOMIC_RELAXED);
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

/* Return true if the calling thread holds the GIL. Needs neither the GIL nor a thread state. */
static inline bool compat_holds_gil(void)
{
    PyThreadState *running = compat_unchecked_thread();
#if PY_VERSION_HEX >= 0x030C0000
    return running != NULL;
#else
    /* One value for the whole process. Another thread may end and free its state meanwhile: compare only the
     * address. */
    return running != NULL && (running == PyGILState_GetThisThreadState() || PyGILState_GetThisThreadState() == NULL);
#endif
}

/* Return true if the calling thread holds the GIL and can release it. Before 3.12 this is false for threads
 * of subinterpreters and foreign threads, where it is unknown. */
static inline bool compat_can_release_gil(void)
{
#if PY_VERSION_HEX >= 0x030C0000
    return compat_holds_gil();
#else
    PyThreadState *running = compat_unchecked_thread();
    return running != NULL && running == PyGILState_GetThisThreadState();
#endif
}

/* Return true if waiting for one of CPython's locks in this thread may release and retake the GIL. */
static inline bool compat_locks_detach(void)
{
    return PY_VERSION_HEX >= 0x030D0000 && compat_unchecked_thread() != NULL;
}

/* Before 3.12 only the main thread runs pending calls. */
#define COMPAT_ANY_THREAD_RUNS_CALLS (PY_VERSION_HEX >= 0x030C0000)

#if PY_VERSION_HEX < 0x030C0000
#define GIL_SPINS       500     /* 5 to 25 us: longer than a thread that runs Python takes to react */
#define MIN_GIL_WAIT_NS 50000L  /* between two requests; a thread that takes the GIL takes back the request */
#define MAX_GIL_WAIT_NS 800000L /* ... if C code keeps the GIL */
#define GIL_TIMEOUT_NS  20000000L

/* Needs gil->mutex, and unlocks it if it returns true: the GIL was free, and is taken. Does what CPython's take_gil()
 * does at its end, but for eval_breaker, which the next thread that takes the GIL computes. */
static inline bool compat_take_free_gil(PyInterpreterState *interp, PyThreadState *self)
{
    struct _gil_runtime_state *gil = compat_gil(interp);
    if (compat_is_gil_locked(gil) || compat_is_finalizing()) {
        return false;
    }
    pthread_mutex_lock(&gil->switch_mutex);
    _Py_atomic_store_relaxed(&gil->locked, 1);
    _Py_atomic_store_relaxed(&gil->last_holder, (uintptr_t)self);
    gil->switch_number++;
    pthread_cond_signal(&gil->switch_cond);
    pthread_mutex_unlock(&gil->switch_mutex);
    _Py_atomic_store_relaxed(&interp->ceval.gil_drop_request, 0);
    pthread_mutex_unlock(&gil->mutex);
    PyThreadState_Swap(self);
    return true;
}

static inline bool compat_spin_for_gil(PyInterpreterState *interp, PyThreadState *self)
{
    struct _gil_runtime_state *gil = compat_gil(interp);
    for (int i = 0; i < GIL_SPINS; i++) {
        if (!compat_is_gil_locked(gil) && pthread_mutex_trylock(&gil->mutex) == 0) {
            if (compat_take_free_gil(interp, self)) {
                return true;
            }
            pthread_mutex_unlock(&gil->mutex);
        }
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("yield");
#endif
    }
    return false;
}

static inline bool compat_wait_for_gil(PyInterpreterState *interp, PyThreadState *self, long wait_ns)
{
    struct _gil_runtime_state *gil = compat_gil(interp);
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += wait_ns;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    pthread_mutex_lock(&gil->mutex);
    if (compat_is_gil_locked(gil)) {
        pthread_cond_timedwait(&gil->cond, &gil->mutex, &until);
    }
    if (compat_take_free_gil(interp, self)) {
        return true;
    }
    pthread_mutex_unlock(&gil->mutex);
    return false;
}

/* Return true with the GIL, if it is free. Otherwise take the request back: who gives the GIL up on request waits until
 * another thread takes it. Under the mutex either the GIL is locked, and its holder finds no request when it gives it up;
 * or the ending interpreter's thread has given it up. No other thread would take it then, so that thread is woken. */
static inline bool compat_withdraw_gil_request(PyInterpreterState *interp, PyThreadState *self)
{
    struct _gil_runtime_state *gil = compat_gil(interp);
    pthread_mutex_lock(&gil->mutex);
    if (compat_take_free_gil(interp, self)) {
        return true;
    }
    if (PyInterpreterState_Main() == interp) { /* else its end has freed it */
        _Py_atomic_store_relaxed(&interp->ceval.gil_drop_request, 0);
    }
    if (!compat_is_gil_locked(gil)) {
        pthread_mutex_lock(&gil->switch_mutex);
        _Py_atomic_store_relaxed(&gil->last_holder, (uintptr_t)self);
        pthread_cond_signal(&gil->switch_cond);
        pthread_mutex_unlock(&gil->switch_mutex);
    }
    pthread_mutex_unlock(&gil->mutex);
    return false;
}
#endif

/* PyEval_RestoreThread, but at the next check of the thread that has the GIL.
 *
 * CPython before 3.12 lets only the main thread run pending calls, and a waiter ask for the GIL only after the
 * switch interval of 5 ms. Until then the waiter gets the GIL from the thread that releases it voluntarily.
 * Captures would show those places, and not those where the time goes. Beside several busy threads the waiter
 * would also wait for its turn, for tens of milliseconds. Without success the ticker takes its turn like any other
 * waiter: each wait here puts it at the end of the queue. The ending interpreter frees `self` without notice, so that
 * its fields must not be read without the GIL. */
static inline void compat_take_gil(PyInterpreterState *interp, PyThreadState *self)
{
#if PY_VERSION_HEX < 0x030C0000
    long wait_ns = MIN_GIL_WAIT_NS;
    for (long waited_ns = 0; waited_ns < GIL_TIMEOUT_NS && !compat_is_finalizing(); waited_ns += wait_ns) {
        _Py_atomic_store_relaxed(&interp->ceval.gil_drop_request, 1);
        _Py_atomic_store_relaxed(&interp->ceval.eval_breaker, 1);
        if (compat_spin_for_gil(interp, self) || compat_wait_for_gil(interp, self, wait_ns)) {
            return;
        }
        wait_ns = wait_ns < MAX_GIL_WAIT_NS ? 2 * wait_ns : wait_ns;
    }
    if (compat_withdraw_gil_request(interp, self)) {
        return;
    }
#else
    (void)interp;
#endif
    PyEval_RestoreThread(self);
}

#endif
