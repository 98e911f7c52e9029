/* What differs between versions of CPython inside the GIL: who has it, and how a forked child recovers it.
 *
 * A part of py_compat.h, which includes it with CPython's headers. Nothing here needs the GIL.
 */
#ifndef SPLUNK_PROFILER_COMPAT_GIL_COMPAT_H
#define SPLUNK_PROFILER_COMPAT_GIL_COMPAT_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* NULL: Python has ended. */
static inline struct _gil_runtime_state *compat_gil(PyInterpreterState *interp)
{
#if PY_VERSION_HEX >= 0x030C0000
    return interp == NULL ? NULL : interp->ceval.gil;
#else
    return interp == NULL ? NULL : &_PyRuntime.ceval.gil;
#endif
}

/* Whether any thread holds the GIL; a look without a lock. */
static inline bool compat_is_gil_locked(const struct _gil_runtime_state *gil)
{
#if PY_VERSION_HEX >= 0x030D0000
    return _Py_atomic_load_int_relaxed(&gil->locked) > 0;
#else
    return _Py_atomic_load_relaxed(&gil->locked) > 0;
#endif
}

/* The thread that holds the GIL, or NULL; a look without a lock. It may end meanwhile: only its address may be used. */
static inline const PyThreadState *compat_gil_holder(PyInterpreterState *interp)
{
    const struct _gil_runtime_state *gil = compat_gil(interp);
    if (gil == NULL || !compat_is_gil_locked(gil)) {
        return NULL;
    }
#if PY_VERSION_HEX >= 0x030D0000
    return _Py_atomic_load_ptr_relaxed(&gil->last_holder);
#else
    return (const PyThreadState *)_Py_atomic_load_relaxed(&gil->last_holder);
#endif
}

/* In a forked child: the GIL is free, whoever had it. */
static inline void compat_force_release_gil(PyInterpreterState *interp)
{
#if PY_VERSION_HEX >= 0x030D0000
    _Py_atomic_store_int_relaxed(&compat_gil(interp)->locked, 0);
#else
    _Py_atomic_store_relaxed(&compat_gil(interp)->locked, 0);
#endif
}

/* In a forked child, before anything else runs: the GIL forgets the threads that did not come along. One that waited
 * for it (a ticker, often) left a request, which makes who gives the GIL up wait for a taker, and is still counted by
 * the condition variables, which wait for it too. CPython's own hook makes them anew just so, but C code that forks does
 * not always call it. Whether the GIL is held stays as it is. */
static inline void compat_reinit_gil(PyInterpreterState *interp)
{
    struct _gil_runtime_state *gil = compat_gil(interp);
    if (gil == NULL) {
        return;
    }
    pthread_condattr_t attributes; /* CPython's clock for it wherever there is a monotonic one */
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
    PyThreadState *self = PyThreadState_GetUnchecked();
    if (self != NULL) {
        _Py_atomic_and_uintptr(&self->eval_breaker, ~(uintptr_t)_PY_GIL_DROP_REQUEST_BIT);
    }
#else
    _Py_atomic_store_relaxed(&interp->ceval.gil_drop_request, 0);
#endif
}

/* Whether the calling thread holds the GIL. Needs neither the GIL nor a thread state. */
static inline bool compat_holds_gil(void)
{
#if PY_VERSION_HEX >= 0x030D0000
    return PyThreadState_GetUnchecked() != NULL;
#elif PY_VERSION_HEX >= 0x030C0000
    return _PyThreadState_UncheckedGet() != NULL;
#else
    /* One for the whole process. Another thread may end and free its own meanwhile, so only the address is compared. */
    PyThreadState *running = _PyThreadState_UncheckedGet();
    return running != NULL && (running == PyGILState_GetThisThreadState() || PyGILState_GetThisThreadState() == NULL);
#endif
}

/* Whether the calling thread holds the GIL and can give it up: it may be one of a subinterpreter, or foreign, where that
 * cannot be told. */
static inline bool compat_can_release_gil(void)
{
#if PY_VERSION_HEX >= 0x030C0000
    return compat_holds_gil();
#else
    PyThreadState *running = _PyThreadState_UncheckedGet();
    return running != NULL && running == PyGILState_GetThisThreadState();
#endif
}

/* Whether waiting for one of CPython's locks in this thread may mean to give up the GIL and to wait for it again. */
static inline bool compat_locks_detach(void)
{
#if PY_VERSION_HEX >= 0x030D0000
    return PyThreadState_GetUnchecked() != NULL;
#else
    return false;
#endif
}

/* Whether some thread holds the GIL and runs pending calls; a look without a lock, so only a hint. False where only the
 * main thread runs them. Needs neither the GIL nor a thread state. */
static inline bool compat_has_pending_call_runner(PyInterpreterState *interp)
{
#if PY_VERSION_HEX >= 0x030C0000
    return compat_is_gil_locked(compat_gil(interp));
#else
    (void)interp;
    return false;
#endif
}

#endif
