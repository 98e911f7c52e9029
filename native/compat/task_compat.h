/* Differences between CPython versions in generators and in asyncio. Include it after py_compat.h.
 *
 * Every function here expects the GIL to be held, and returns borrowed references.
 */
#ifndef SPLUNK_PROFILER_COMPAT_TASK_COMPAT_H
#define SPLUNK_PROFILER_COMPAT_TASK_COMPAT_H

#include "py_compat.h"

#if PY_VERSION_HEX >= 0x030B0000
#include <internal/pycore_frame.h>
#endif

#include <string.h>
#include <unistd.h>

/* Return the frame of a coroutine, a generator or an asynchronous generator that is suspended or has not begun;
 * NULL: it runs or has ended. */
static inline compat_frame *compat_suspended_frame(PyObject *generator)
{
    PyGenObject *self = (PyGenObject *)generator;
#if PY_VERSION_HEX >= 0x030B0000
    return self->gi_frame_state < FRAME_EXECUTING ? (compat_frame *)&self->gi_iframe : NULL;
#else
    return self->gi_frame != NULL && self->gi_frame->f_state < FRAME_EXECUTING ? self->gi_frame : NULL;
#endif
}

#if PY_VERSION_HEX < 0x030C0000
/* The value that asyncio keeps in a thread's dict. It is void in a forked child. */
typedef struct {
    PyObject ob_base;
    PyObject *loop;
    pid_t pid;
} compat_loop_holder;
#endif

/* Return the event loop of asyncio that a thread runs, or NULL. `key` is "__asyncio_running_event_loop__". May be
 * called under the head lock: it allocates nothing. In a forked child, asyncio has reset it. */
static inline PyObject *compat_running_loop(const PyThreadState *thread, PyObject *key)
{
#if PY_VERSION_HEX >= 0x030D0000
    return ((const _PyThreadStateImpl *)thread)->asyncio_running_loop;
#else
    PyObject *value = thread->dict == NULL ? NULL : PyDict_GetItemWithError(thread->dict, key);
    if (value == NULL) {
        PyErr_Clear();
        return NULL;
    }
#if PY_VERSION_HEX < 0x030C0000
    bool is_holder = strcmp(Py_TYPE(value)->tp_name, "_RunningLoopHolder") == 0
                     && Py_TYPE(value)->tp_basicsize == sizeof(compat_loop_holder);
    if (is_holder) {
        const compat_loop_holder *holder = (const compat_loop_holder *)value;
        return holder->pid == getpid() ? holder->loop : NULL;
    }
#endif
    return value; /* before 3.12, of the module in Python: a tuple, which is no task's loop */
#endif
}

/* Return the task of asyncio that a thread runs; NULL: none, or it is not in the thread's state. */
static inline PyObject *compat_running_task(const PyThreadState *thread)
{
#if PY_VERSION_HEX >= 0x030E0000
    return ((const _PyThreadStateImpl *)thread)->asyncio_running_task;
#else
    (void)thread;
    return NULL;
#endif
}

#endif
