/* Differences between CPython versions inside: thread list, frames, locks, pending calls.
 *
 * Include it before anything that includes Python.h. Every function here expects the GIL to be held unless it
 * says otherwise; the head lock, and the list of threads that it guards, need none. To support a new CPython version,
 * edit only the headers of this directory, and the names of instructions in splunk_profiler/capture/lock_calls.py and
 * loop_calls.py.
 */
#ifndef SPLUNK_PROFILER_COMPAT_PY_COMPAT_H
#define SPLUNK_PROFILER_COMPAT_PY_COMPAT_H

#define PY_SSIZE_T_CLEAN
#ifndef Py_BUILD_CORE
#define Py_BUILD_CORE 1
#endif
#include <Python.h>

#if PY_VERSION_HEX < 0x030A0000 || PY_VERSION_HEX >= 0x03100000
#error "the native walker knows the frames of CPython 3.10 to 3.15; install without it (the build does so by itself)"
#endif
#ifdef Py_GIL_DISABLED
#error "the native walker relies on the GIL; free-threaded builds use the portable walker"
#endif

#include <internal/pycore_ceval.h>
#include <internal/pycore_context.h>
#include <internal/pycore_gil.h>
#include <internal/pycore_hamt.h>
#include <internal/pycore_interp.h>
#include <internal/pycore_pystate.h>
#include <internal/pycore_runtime.h>
#if PY_VERSION_HEX >= 0x030E0000
#include <internal/pycore_interpframe.h>
#include <internal/pycore_stackref.h>
#elif PY_VERSION_HEX >= 0x030B0000
#include <internal/pycore_frame.h>
#else
#include <frameobject.h>
#endif

#include "gil_compat.h"

#include <sched.h>
#include <time.h>

/* Maximum wait of a capture for the runtime's head lock. Its holders only link a thread in or out. */
#define COMPAT_HEAD_LOCK_WAIT_NS 1000000LL

/* Needs the head lock. Newest first; ids descend because one hold of the head lock assigns the id and links
 * the thread. */
static inline PyThreadState *compat_first_thread(PyInterpreterState *interp)
{
#if PY_VERSION_HEX >= 0x030B0000
    return interp->threads.head;
#else
    return interp->tstate_head;
#endif
}

/* Return the id of the newest thread state so far. */
static inline uint64_t compat_newest_thread_id(const PyInterpreterState *interp)
{
#if PY_VERSION_HEX >= 0x030B0000
    return interp->threads.next_unique_id;
#else
    return interp->tstate_next_unique_id;
#endif
}

static inline unsigned long compat_native_id(const PyThreadState *thread)
{
#if PY_VERSION_HEX >= 0x030B0000
    return thread->native_thread_id;
#else
    return 0;
#endif
}

/* Return true if the thread is ending: its context is released before it is unlinked. Unknown before 3.12. */
static inline bool compat_is_ending(const PyThreadState *thread)
{
#if PY_VERSION_HEX >= 0x030C0000
    return thread->_status.finalizing || thread->_status.cleared;
#else
    return false;
#endif
}

/* Return true if a thread, perhaps this one, holds the head lock. Before 3.13 os.fork does not take it. */
static inline bool compat_is_head_locked(void)
{
#if PY_VERSION_HEX >= 0x030D0000
    return (_Py_atomic_load_uint8(&_PyRuntime.interpreters.mutex._bits) & _Py_LOCKED) != 0;
#else
    return false;
#endif
}

/* Threads that link thread states in or out hold the head lock; some are foreign threads without the GIL. Try
 * it only for a bounded time: the calling thread may itself hold it. sys._current_frames allocates under it,
 * and on 3.10 and 3.11 an allocation can run the collector and with it Python code. */
static inline bool compat_lock_head(void)
{
#if PY_VERSION_HEX >= 0x030D0000
    /* Not PyMutex_Lock: it detaches the thread state during its wait, so that other threads would run Python
     * meanwhile. */
    PyMutex *mutex = &_PyRuntime.interpreters.mutex;
    struct timespec begin, now;
    for (unsigned spins = 0;; spins++) {
        uint8_t bits = _Py_atomic_load_uint8(&mutex->_bits);
        if (!(bits & _Py_LOCKED) && _Py_atomic_compare_exchange_uint8(&mutex->_bits, &bits, bits | _Py_LOCKED)) {
            return true;
        }
        if (spins == 0) {
            clock_gettime(CLOCK_MONOTONIC, &begin);
        }
        else if (spins % 16 == 0) {
            clock_gettime(CLOCK_MONOTONIC, &now);
            if ((now.tv_sec - begin.tv_sec) * 1000000000LL + now.tv_nsec - begin.tv_nsec > COMPAT_HEAD_LOCK_WAIT_NS) {
                return false;
            }
            sched_yield();
        }
    }
#else
    return PyThread_acquire_lock_timed(_PyRuntime.interpreters.mutex, COMPAT_HEAD_LOCK_WAIT_NS / 1000, 0)
           == PY_LOCK_ACQUIRED;
#endif
}

static inline void compat_unlock_head(void)
{
#if PY_VERSION_HEX >= 0x030D0000
    PyMutex_Unlock(&_PyRuntime.interpreters.mutex);
#else
    PyThread_release_lock(_PyRuntime.interpreters.mutex);
#endif
}

/* Return true if the main interpreter `first` is the only one. Then the calling thread is in it, and needs no
 * look-up of its thread state. Needs no GIL: the list has the newest interpreter first, and an interpreter is
 * listed before anything runs in it. */
static inline bool compat_is_only_interpreter(const PyInterpreterState *first)
{
    return *(PyInterpreterState *volatile *)&_PyRuntime.interpreters.head == first;
}

/* Return a new reference or NULL. The keys of a Context are ContextVars, which hash by a stored value and
 * compare by identity. So no Python code runs, and nothing is allocated. The comparison of two different
 * variables uses the general rich comparison, whose recursion check would raise in a thread at its limit. The
 * headroom that CPython keeps for its own error handling prevents that. The context is borrowed: reading it
 * from a thread state needs the GIL, which the caller holds. */
static inline PyObject *compat_context_value(PyThreadState *self, PyObject *context, PyObject *variable)
{
    if (context == NULL || variable == NULL) {
        return NULL;
    }
    PyObject *value = NULL;
    self->recursion_headroom++;
    int found = PySequence_Contains(context, variable);
    if (found == 1) {
        value = PyObject_GetItem(context, variable);
    }
    if (found < 0 || (found == 1 && value == NULL)) {
        PyErr_Clear();
    }
    self->recursion_headroom--;
    return value;
}

/* Return the number of variables with a value in a context. The context is borrowed, or NULL. */
static inline Py_ssize_t compat_context_size(PyObject *context)
{
    return context == NULL ? 0 : ((PyContext *)context)->ctx_vars->h_count;
}

/* Return the context around an entered one; borrowed, or NULL. */
static inline PyObject *compat_outer_context(PyObject *context)
{
    return (PyObject *)((PyContext *)context)->ctx_prev;
}

/* The mapping of a context's variables. Immutable: a changed context gets another one. */
typedef PyHamtObject compat_variables; /* borrowed from the context */
static inline compat_variables *compat_variables_of(PyObject *context)
{
    return ((PyContext *)context)->ctx_vars;
}

/* Frames: walk from compat_top_frame by compat_caller_frame. Both skip frames that sys._current_frames does
 * not show. */

#if PY_VERSION_HEX >= 0x030B0000

typedef _PyInterpreterFrame compat_frame;

static inline PyCodeObject *compat_frame_code(compat_frame *frame)
{
#if PY_VERSION_HEX >= 0x030D0000
    return _PyFrame_GetCode(frame);
#else
    return frame->f_code;
#endif
}

/* Incomplete frames are those before their first RESUME, and the interpreter's own entry and C-stack frames.
 * They have no code or no globals, so check this before reading anything else of a frame. A complete frame has no
 * globals if the collector has cleared its function. */
static inline compat_frame *compat_first_complete(compat_frame *frame)
{
    for (; frame != NULL; frame = frame->previous) {
#if PY_VERSION_HEX >= 0x030C0000 && PY_VERSION_HEX < 0x030D0000
        if (frame->owner == FRAME_OWNED_BY_CSTACK) {
            continue;
        }
#endif
        if (!_PyFrame_IsIncomplete(frame) && frame->f_globals != NULL) {
            break;
        }
    }
    return frame;
}

/* Return the place of a thread's newest frame. */
static inline _PyInterpreterFrame *const *compat_frame_slot(const PyThreadState *thread)
{
#if PY_VERSION_HEX >= 0x030D0000
    return &thread->current_frame;
#else
    return thread->cframe == NULL ? NULL : &thread->cframe->current_frame;
#endif
}

static inline compat_frame *compat_frame_previous(compat_frame *frame)
{
    return frame->previous; /* complete or not */
}

/* Ask for the memory of the third or fourth caller. Callers are at lower addresses, mostly one right before the other. */
static inline void compat_prefetch_caller(const compat_frame *frame)
{
    __builtin_prefetch((const char *)frame - 512);
    __builtin_prefetch((const char *)frame - 576);
}

/* Return the offset in bytes, as frame.f_lasti; -1 before the first instruction. */
static inline int compat_frame_offset(compat_frame *frame)
{
    int index = _PyInterpreterFrame_LASTI(frame);
    return index < 0 ? -1 : index * (int)sizeof(_Py_CODEUNIT);
}

#else /* 3.10: every frame is an object of its own */

typedef PyFrameObject compat_frame;

static inline PyCodeObject *compat_frame_code(compat_frame *frame)
{
    return frame->f_code;
}

static inline compat_frame *compat_first_complete(compat_frame *frame)
{
    return frame;
}

static inline PyFrameObject *const *compat_frame_slot(const PyThreadState *thread)
{
    return &thread->frame;
}

static inline compat_frame *compat_frame_previous(compat_frame *frame)
{
    return frame->f_back;
}

static inline void compat_prefetch_caller(const compat_frame *frame)
{
    (void)frame; /* it may be anywhere */
}

static inline int compat_frame_offset(compat_frame *frame)
{
    return frame->f_lasti < 0 ? -1 : frame->f_lasti * (int)sizeof(_Py_CODEUNIT);
}

#endif

static inline PyObject *compat_frame_globals(compat_frame *frame)
{
    return frame->f_globals;
}

static inline compat_frame *compat_top_frame(const PyThreadState *thread)
{
    compat_frame *const *slot = compat_frame_slot(thread);
    return slot == NULL ? NULL : compat_first_complete(*slot);
}

static inline compat_frame *compat_caller_frame(compat_frame *frame)
{
    return compat_first_complete(compat_frame_previous(frame));
}

/* Pending calls: from any thread, with or without the GIL. */

/* Run call(argument) at the next check of the interpreter's main loop. Return 0, or -1 if the queue is full. */
static inline int compat_add_pending_call(PyInterpreterState *interp, int (*call)(void *), void *argument)
{
#if PY_VERSION_HEX >= 0x030C0000
    return _PyEval_AddPendingCall(interp, call, argument, 0);
#else
    int result = _PyEval_AddPendingCall(interp, call, argument);
    /* Here only the main thread runs pending calls, and CPython clears the breaker when another thread posts.
     * It computes the value for the poster, signals included. Set it, or the main thread would not check. */
    _Py_atomic_store_relaxed(&interp->ceval.eval_breaker, 1);
    return result;
#endif
}

/* Post to the main thread only. Needs no GIL. */
static inline int compat_add_main_pending_call(int (*call)(void *), void *argument)
{
    int result = Py_AddPendingCall(call, argument);
#if PY_VERSION_HEX < 0x030D0000
    /* As above: CPython computes the breaker for the posting thread, which runs no such calls. */
    _Py_atomic_store_relaxed(&PyInterpreterState_Main()->ceval.eval_breaker, 1);
#endif
    return result;
}

/* Return true in the thread that handles signals. */
static inline bool compat_is_main_thread(void)
{
    return PyThread_get_thread_ident() == _PyRuntime.main_thread;
}

/* Return an instance of a tuple subclass with unset items. The caller sets them by PyTuple_SET_ITEM before it
 * shares the tuple. */
static inline PyObject *compat_new_tuple(PyTypeObject *type, Py_ssize_t size)
{
    PyObject *made = type->tp_alloc(type, size);
#if PY_VERSION_HEX >= 0x030E0000
    if (made != NULL) {
        ((PyTupleObject *)made)->ob_hash = -1; /* not computed yet */
    }
#endif
    return made;
}

#endif
