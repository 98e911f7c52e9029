/* Finds the threading.Thread of a thread at the instant of a capture: later its ident may belong to another
 * thread.
 *
 * The caller holds the GIL, and the thread is listed, so no other thread has its ident. No Python code runs.
 */
#include "py_compat.h"

#include "ticker_state.h"

PyObject *thread_objects_find(const ticker_state *ticker, unsigned long ident)
{
    PyObject *key = ticker->threads == NULL ? NULL : PyLong_FromUnsignedLong(ident);
    PyObject *found =
        key == NULL ? NULL : Py_XNewRef(PyDict_GetItemWithError(ticker->threads, key)); /* keys are ints */
    Py_XDECREF(key);
    if (found == NULL && PyErr_Occurred()) {
        PyErr_Clear();
    }
    return found;
}

unsigned long thread_objects_native_id(const ticker_state *ticker, PyObject *python_thread)
{
    PyObject *found = NULL;
    if (python_thread == NULL || ticker->native_id_key == NULL
        || Py_TYPE(python_thread)->tp_getattro != PyObject_GenericGetAttr
        || _PyType_Lookup(Py_TYPE(python_thread), ticker->native_id_key) != NULL) {
        return 0; /* the last two conditions mean code of a subclass, which would run */
    }
    unsigned long native_id = 0;
    if (compat_get_optional_attribute(python_thread, ticker->native_id_key, &found) > 0 && PyLong_CheckExact(found)) {
        native_id = PyLong_AsUnsignedLong(found);
    }
    Py_XDECREF(found); /* not the last reference: the thread has one */
    if (PyErr_Occurred()) {
        PyErr_Clear();
        return 0;
    }
    return native_id;
}
