/* What `threading` knows of a thread, at the instant of a capture: who asks later may get another one with the same ident.
 *
 * Who calls holds the GIL, and the thread is listed, so it has its ident for itself. No Python code runs.
 */
#include "py_compat.h"

#include "context_compat.h"
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
        return 0; /* the last two would run code of a subclass */
    }
    unsigned long native_id = 0;
    if (compat_get_optional_attribute(python_thread, ticker->native_id_key, &found) > 0 && PyLong_CheckExact(found)) {
        native_id = PyLong_AsUnsignedLong(found);
    }
    Py_XDECREF(found); /* not the last one: the thread has it */
    if (PyErr_Occurred()) {
        PyErr_Clear();
        return 0;
    }
    return native_id;
}
