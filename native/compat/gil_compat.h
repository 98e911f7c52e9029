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

/* Return true if some thread holds the GIL and runs pending calls; read without a lock, so only a hint. False
 * where only the main thread runs them. Needs neither the GIL nor a thread state. */
static inline bool compat_has_pending_call_runner(PyInterpreterState *interp)
{
    return PY_VERSION_HEX >= 0x030C0000 && compat_is_gil_locked(compat_gil(interp));
}

#endif
