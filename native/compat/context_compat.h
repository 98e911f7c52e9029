/* What the context publisher needs of CPython's public functions that differ between versions. What it needs of the
 * interpreter's insides is in py_compat.h.
 */
#ifndef SPLUNK_PROFILER_COMPAT_CONTEXT_COMPAT_H
#define SPLUNK_PROFILER_COMPAT_CONTEXT_COMPAT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>

/* 1 and a new reference; 0: there is no such attribute; -1 and an exception. */
static inline int compat_get_optional_attribute(PyObject *object, PyObject *name, PyObject **value)
{
#if PY_VERSION_HEX >= 0x030D0000
    return PyObject_GetOptionalAttr(object, name, value);
#else
    return _PyObject_LookupAttr(object, name, value);
#endif
}

/* A weak reference without a callback, new, or NULL. Runs no Python code and leaves no exception. */
static inline PyObject *compat_new_weakref(PyObject *object)
{
#if PY_VERSION_HEX < 0x030C0000
    int collects = PyGC_Disable(); /* the collector runs where something is allocated, and finalisers with it */
    PyObject *weakref = PyWeakref_NewRef(object, NULL);
    if (collects) {
        PyGC_Enable();
    }
#else
    PyObject *weakref = PyWeakref_NewRef(object, NULL);
#endif
    if (weakref == NULL) {
        PyErr_Clear();
    }
    return weakref;
}

/* Whether what is referred to is gone. */
static inline bool compat_is_weakref_dead(PyObject *weakref)
{
#if PY_VERSION_HEX >= 0x030D0000
    PyObject *object;
    int alive = PyWeakref_GetRef(weakref, &object);
    Py_XDECREF(object);
    return alive == 0;
#else
    return PyWeakref_GET_OBJECT(weakref) == Py_None;
#endif
}

/* An exception that was pending; all NULL: none was. Owned. */
typedef struct {
    PyObject *type, *value, *traceback;
} compat_exception;

/* No exception is pending afterwards. */
static inline compat_exception compat_save_exception(void)
{
    compat_exception saved = {NULL, NULL, NULL};
    if (PyErr_Occurred() != NULL) {
#if PY_VERSION_HEX >= 0x030C0000
        saved.value = PyErr_GetRaisedException();
#else
        PyErr_Fetch(&saved.type, &saved.value, &saved.traceback);
#endif
    }
    return saved;
}

/* Pending again, if it was. Takes the references over. */
static inline void compat_restore_exception(compat_exception saved)
{
#if PY_VERSION_HEX >= 0x030C0000
    if (saved.value != NULL) {
        PyErr_SetRaisedException(saved.value);
    }
#else
    if (saved.type != NULL) {
        PyErr_Restore(saved.type, saved.value, saved.traceback);
    }
#endif
}

/* An int as `size` bytes, big-endian; -1 and an exception if it is none, negative or does not fit. */
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

#endif
