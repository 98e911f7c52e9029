/* What `threading` knows of a thread, at the instant of a capture: who asks later may get another one with the same ident.
 *
 * Who calls holds the GIL, and the thread is listed, so it has its ident for itself. No Python code runs.
 */
#include "py_compat.h"

#include "context_compat.h"
#include "state.h"

PyObject *thread_object_of(const core *c, unsigned long ident)
{
    PyObject *key = c->threads == NULL ? NULL : PyLong_FromUnsignedLong(ident);
    PyObject *found = key == NULL ? NULL : Py_XNewRef(PyDict_GetItemWithError(c->threads, key)); /* keys are ints */
    Py_XDECREF(key);
    if (found == NULL && PyErr_Occurred()) {
        PyErr_Clear();
    }
    return found;
}

unsigned long thread_object_native_id(const core *c, PyObject *object)
{
    PyObject *found = NULL;
    if (object == NULL || c->native_id_key == NULL || Py_TYPE(object)->tp_getattro != PyObject_GenericGetAttr
        || _PyType_Lookup(Py_TYPE(object), c->native_id_key) != NULL) {
        return 0; /* the last two would run code of a subclass */
    }
    unsigned long native_id = 0;
    if (compat_optional_attribute(object, c->native_id_key, &found) > 0 && PyLong_CheckExact(found)) {
        native_id = PyLong_AsUnsignedLong(found);
    }
    Py_XDECREF(found); /* not the last one: the thread has it */
    if (PyErr_Occurred()) {
        PyErr_Clear();
        return 0;
    }
    return native_id;
}
