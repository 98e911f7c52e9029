/* The parts of setting up a module that both extensions share. GIL held. */
#ifndef SPLUNK_PROFILER_COMPAT_MODULE_SETUP_H
#define SPLUNK_PROFILER_COMPAT_MODULE_SETUP_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "layouts.h"

/* Have `on_end` called when CPython clears the interpreter: the last moment to touch its objects. `name` is the
 * module's full name, a literal. Return 0, or -1 with an exception. */
static inline int module_register_end(const char *name, PyCapsule_Destructor on_end)
{
    PyObject *dict = PyInterpreterState_GetDict(PyInterpreterState_Get()); /* borrowed */
    if (dict == NULL) {
        PyErr_SetString(PyExc_ImportError, "the interpreter has no place for its end to be noticed");
        return -1;
    }
    if (PyDict_GetItemString(dict, name) != NULL) {
        return 0; /* imported again */
    }
    PyObject *capsule = PyCapsule_New((void *)name, name, on_end);
    int result = capsule == NULL ? -1 : PyDict_SetItemString(dict, name, capsule);
    Py_XDECREF(capsule);
    return result;
}

/* Check that this interpreter can have the module, and register its end. Return 0, or -1 with an ImportError, which
 * outside the main interpreter says `main_only`. */
static inline int module_prepare(const char *name, const char *main_only, PyCapsule_Destructor on_end)
{
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_SetString(PyExc_ImportError, main_only);
        return -1;
    }
    return layouts_check() != 0 ? -1 : module_register_end(name, on_end);
}

/* Add a type to the module. Return a new reference, or NULL with an exception. */
static inline PyTypeObject *module_add_type(PyObject *module, PyType_Spec *spec)
{
    PyTypeObject *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    if (type != NULL && PyModule_AddType(module, type) != 0) {
        Py_CLEAR(type);
    }
    return type;
}

#endif
