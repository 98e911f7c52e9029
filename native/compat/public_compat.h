/* Differences between CPython versions in its public functions. The interpreter's insides are in py_compat.h.
 *
 * Every function here expects the GIL to be held unless it says otherwise.
 */
#ifndef SPLUNK_PROFILER_COMPAT_PUBLIC_COMPAT_H
#define SPLUNK_PROFILER_COMPAT_PUBLIC_COMPAT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>

/* The same functions under their old and new names. compat_get_optional_attribute returns 1 and a new reference; 0:
 * there is no such attribute; -1 with an exception. compat_is_finalizing is true while the interpreter shuts down: do
 * not touch objects of extensions then. It and compat_unchecked_thread need no GIL. */
#if PY_VERSION_HEX >= 0x030D0000
#define compat_get_optional_attribute PyObject_GetOptionalAttr
#define compat_is_finalizing          Py_IsFinalizing
#define compat_unchecked_thread       PyThreadState_GetUnchecked
#else
#define compat_get_optional_attribute _PyObject_LookupAttr
#define compat_is_finalizing          _Py_IsFinalizing
#define compat_unchecked_thread       _PyThreadState_UncheckedGet
#endif

/* Since 3.12 interpreters can have GILs of their own, and each thread knows its state. */
#define COMPAT_HAS_OWN_GILS (PY_VERSION_HEX >= 0x030C0000)

/* Return the calling thread's state, or NULL if it does not hold its interpreter's GIL. Needs no GIL. */
static inline PyThreadState *compat_calling_thread(void)
{
    PyThreadState *running = compat_unchecked_thread();
#if !COMPAT_HAS_OWN_GILS
    /* One value for the whole process. Another thread may end and free its state meanwhile: compare only the
     * address. */
    return running == PyGILState_GetThisThreadState() ? running : NULL;
#else
    return running;
#endif
}

#if PY_VERSION_HEX >= 0x030C0000
/* Return true if C code made this entry. It makes a frame of an empty code object (PyCode_NewEmpty: three instructions,
 * no variable and no name) that never runs, so that its offset is that of the first or second instruction. */
static inline bool compat_is_c_entry(const PyTracebackObject *entry)
{
    PyCodeObject *code = PyFrame_GetCode(entry->tb_frame);
    bool is_empty = entry->tb_lasti <= 2 && Py_SIZE(code) <= 4 && code->co_nlocalsplus == 0
                    && PyTuple_GET_SIZE(code->co_names) == 0;
    Py_DECREF(code); /* not the last reference: the frame has one */
    return is_empty;
}
#else /* exceptions are not recorded there */
static inline bool compat_is_c_entry(const PyTracebackObject *Py_UNUSED(entry))
{
    return false;
}
#endif

/* Return a new weak reference without a callback, or NULL. Runs no Python code and leaves no exception. */
static inline PyObject *compat_new_weakref(PyObject *object)
{
    /* Before 3.12 an allocation may run the collector, and finalisers with it. */
    bool collects = PY_VERSION_HEX < 0x030C0000 && PyGC_Disable();
    PyObject *weakref = PyWeakref_NewRef(object, NULL);
    if (collects) {
        PyGC_Enable();
    }
    if (weakref == NULL) {
        PyErr_Clear();
    }
    return weakref;
}

/* Return the referent, borrowed until other code runs; NULL if it no longer exists. */
static inline PyObject *compat_referent(PyObject *weakref)
{
    PyObject *object;
#if PY_VERSION_HEX >= 0x030D0000
    (void)PyWeakref_GetRef(weakref, &object);
    Py_XDECREF(object); /* not the last reference */
#else
    object = PyWeakref_GET_OBJECT(weakref);
    object = object == Py_None ? NULL : object;
#endif
    return object;
}

static inline bool compat_is_weakref_dead(PyObject *weakref)
{
    return compat_referent(weakref) == NULL;
}

/* A pending exception; all NULL: none. Owned. */
typedef struct {
    PyObject *type, *value, *traceback;
} compat_exception;

/* Take the pending exception. None is pending afterwards. */
static inline compat_exception compat_save_exception(void)
{
    compat_exception saved = {NULL, NULL, NULL};
#if PY_VERSION_HEX >= 0x030C0000
    saved.value = PyErr_GetRaisedException();
#else
    PyErr_Fetch(&saved.type, &saved.value, &saved.traceback);
#endif
    return saved;
}

/* Make the saved exception the pending one again, or none if there was none. Steals the references. */
static inline void compat_restore_exception(compat_exception saved)
{
#if PY_VERSION_HEX >= 0x030C0000
    PyErr_SetRaisedException(saved.value);
#else
    PyErr_Restore(saved.type, saved.value, saved.traceback);
#endif
}

/* Write an int as `size` bytes, big-endian. Return -1 with an exception if it is no int, negative or too
 * large. */
static inline int compat_int_to_bytes(PyObject *number, uint8_t *bytes, Py_ssize_t size)
{
    if (!PyLong_Check(number)) {
        PyErr_Format(PyExc_TypeError, "an int is needed, not %.100s", Py_TYPE(number)->tp_name);
        return -1;
    }
#if PY_VERSION_HEX >= 0x030D0000
    Py_ssize_t needed = PyLong_AsNativeBytes(number, bytes, size,
                                             Py_ASNATIVEBYTES_BIG_ENDIAN | Py_ASNATIVEBYTES_UNSIGNED_BUFFER
                                                 | Py_ASNATIVEBYTES_REJECT_NEGATIVE);
    if (needed > size) {
        PyErr_SetString(PyExc_OverflowError, "int too big to convert");
        return -1;
    }
    return needed < 0 ? -1 : 0;
#else
    return _PyLong_AsByteArray((PyLongObject *)number, bytes, (size_t)size, 0, 0);
#endif
}

static inline PyObject *compat_int_from_bytes(const uint8_t *bytes, size_t size)
{
#if PY_VERSION_HEX >= 0x030D0000
    return PyLong_FromUnsignedNativeBytes(bytes, size, Py_ASNATIVEBYTES_BIG_ENDIAN);
#else
    return _PyLong_FromByteArray(bytes, size, 0, 0);
#endif
}

/* Since 3.14 the interpreter reports every context switch, including those by C code. */
#define COMPAT_REPORTS_SWITCHES (PY_VERSION_HEX >= 0x030E0000)

/* Since 3.12 asyncio starts eager tasks by entering their context from C. */
#define COMPAT_HAS_EAGER_TASKS (PY_VERSION_HEX >= 0x030C0000)

#endif
