/* Differences between CPython versions in the values that frames keep, and in `threading.RLock`. Include it after
 * py_compat.h.
 *
 * A `with` statement keeps what it has entered on the frame's stack of values, below those of its body. How many values
 * stay there while an instruction runs is in the code's table of exceptions: CPython drops the others and calls the
 * handler. CPython 3.10 has no such table. What is entered at the moment is above those, and may have been released
 * already. Every function here expects the GIL to be held.
 */
#ifndef SPLUNK_PROFILER_COMPAT_LOCK_COMPAT_H
#define SPLUNK_PROFILER_COMPAT_LOCK_COMPAT_H

#include "py_compat.h"

#if PY_VERSION_HEX >= 0x030E0000
#include <internal/pycore_lock.h>
#endif

#if PY_VERSION_HEX >= 0x030B0000

/* The length, in code units, of the instruction that enters a block: BEFORE_WITH; or CALL with its cache. */
#define COMPAT_ENTER_UNITS (PY_VERSION_HEX >= 0x030E0000 ? 4 : 1)

/* Return the code's table of exceptions, borrowed. */
static inline PyObject *compat_exception_table(const PyCodeObject *code)
{
    return code->co_exceptiontable;
}

/* Return the index in localsplus of a value on the stack, or -1 if the frame has no such place. */
static inline int compat_stack_index(const PyCodeObject *code, int position)
{
    return position < 0 || position >= code->co_stacksize ? -1 : code->co_nlocalsplus + position;
}

/* Return the object at an index of localsplus, borrowed; NULL: there is none. If the value is not in use, it is an
 * address that may be void. */
static inline PyObject *compat_frame_value(const compat_frame *frame, int index)
{
#if PY_VERSION_HEX >= 0x030E0000
    uintptr_t bits = frame->localsplus[index].bits, tag = bits & 3;
    return tag > 1 ? NULL : (PyObject *)(bits - tag); /* 2 and 3 are no references; 1 without an address is NULL */
#else
    return frame->localsplus[index];
#endif
}

#else

#define COMPAT_ENTER_UNITS 1

static inline PyObject *compat_exception_table(const PyCodeObject *Py_UNUSED(code))
{
    return NULL;
}

static inline int compat_stack_index(const PyCodeObject *Py_UNUSED(code), int Py_UNUSED(position))
{
    return -1;
}

static inline PyObject *compat_frame_value(const compat_frame *Py_UNUSED(frame), int Py_UNUSED(index))
{
    return NULL;
}

#endif

/* The beginning of a `threading.RLock`, which CPython does not publish. */
typedef struct {
    PyObject ob_base;
#if PY_VERSION_HEX >= 0x030E0000
    _PyRecursiveMutex lock;
#else
    void *lock;
    unsigned long owner;
    unsigned long count;
    void *weak_references;
#endif
} compat_rlock;

/* Return the identifier of the thread that holds an RLock; 0: none. */
static inline unsigned long compat_rlock_owner(const PyObject *lock)
{
#if PY_VERSION_HEX >= 0x030E0000
    return (unsigned long)((const compat_rlock *)lock)->lock.thread;
#else
    return ((const compat_rlock *)lock)->owner;
#endif
}

#endif
