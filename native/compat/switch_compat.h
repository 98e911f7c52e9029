/* The only place that knows how CPython versions differ for the hooks. A new version is supported by editing this header.
 *
 * Uses nothing but the public API. Every function here expects the GIL to be held.
 */
#ifndef SPLUNK_PROFILER_COMPAT_SWITCH_COMPAT_H
#define SPLUNK_PROFILER_COMPAT_SWITCH_COMPAT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>

#ifdef Py_GIL_DISABLED
#error "the hooks for context switches rely on the GIL"
#endif

/* ---- which hooks this version needs ---- */

/* Since 3.14 the interpreter reports every switch of a context, also those that C code makes. */
#if PY_VERSION_HEX >= 0x030E0000
#define COMPAT_REPORTS_SWITCHES 1
#else
#define COMPAT_REPORTS_SWITCHES 0
#endif

/* Since 3.12 asyncio starts eager tasks by entering their context from C. */
#if PY_VERSION_HEX >= 0x030C0000
#define COMPAT_HAS_EAGER_TASKS 1
#else
#define COMPAT_HAS_EAGER_TASKS 0
#endif

/* Watchers of an interpreter's switches: add one and get its number, or -1 and an exception. */
#if PY_VERSION_HEX >= 0x030E0000

typedef PyContextEvent compat_event;
typedef PyContext_WatchCallback compat_watch_callback;
#define COMPAT_SWITCHED Py_CONTEXT_SWITCHED

static inline int compat_watch(compat_watch_callback callback)
{
    return PyContext_AddWatcher(callback);
}

static inline int compat_unwatch(int watcher)
{
    return PyContext_ClearWatcher(watcher);
}

#else

typedef int compat_event;
typedef int (*compat_watch_callback)(compat_event, PyObject *);
#define COMPAT_SWITCHED 1

static inline int compat_watch(compat_watch_callback Py_UNUSED(callback))
{
    PyErr_SetString(PyExc_RuntimeError, "this version of CPython reports no switches");
    return -1;
}

static inline int compat_unwatch(int Py_UNUSED(watcher))
{
    return 0;
}

#endif

/* The interpreter is being taken down: objects of extensions are best left alone. */
static inline bool compat_is_interpreter_ending(void)
{
#if PY_VERSION_HEX >= 0x030D0000
    return Py_IsFinalizing();
#else
    return _Py_IsFinalizing();
#endif
}

/* ---- a pending exception, put aside ---- */

#if PY_VERSION_HEX >= 0x030C0000

typedef PyObject *compat_error; /* owned, or NULL */

static inline compat_error compat_save_error(void)
{
    return PyErr_GetRaisedException();
}

static inline void compat_restore_error(compat_error saved)
{
    PyErr_SetRaisedException(saved);
}

#else

typedef struct {
    PyObject *type, *value, *traceback; /* owned, or NULL */
} compat_error;

static inline compat_error compat_save_error(void)
{
    compat_error saved;
    PyErr_Fetch(&saved.type, &saved.value, &saved.traceback);
    return saved;
}

static inline void compat_restore_error(compat_error saved)
{
    PyErr_Restore(saved.type, saved.value, saved.traceback);
}

#endif

#endif
