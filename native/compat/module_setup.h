/* The parts of setting up a module that both extensions share. GIL held. */
#ifndef SPLUNK_PROFILER_COMPAT_MODULE_SETUP_H
#define SPLUNK_PROFILER_COMPAT_MODULE_SETUP_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>

/* layouts.c: check that the running CPython has the layouts of the one that this was compiled for. Return 0, or -1
 * with an ImportError that names the difference. In the main interpreter. */
__attribute__((visibility("hidden"))) int layouts_check(void);

/* layouts.c: return true if the memory can be read. At least 8 bytes. Needs no GIL. */
__attribute__((visibility("hidden"))) bool layouts_is_readable(const void *memory, size_t size);

/* Check that this interpreter can have the module, and have `on_end` called when CPython clears the interpreter: the
 * last moment to touch its objects. `name` is the module's full name, a literal. Return 0, or -1 with an ImportError,
 * which outside the main interpreter says `main_only`. */
static inline int module_prepare(const char *name, const char *main_only, PyCapsule_Destructor on_end)
{
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_SetString(PyExc_ImportError, main_only);
        return -1;
    }
    if (layouts_check() != 0) {
        return -1;
    }
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

/* Add a type to the module. Return a new reference, or NULL with an exception. */
static inline PyTypeObject *module_add_type(PyObject *module, PyType_Spec *spec)
{
    PyTypeObject *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    if (type != NULL && PyModule_AddType(module, type) != 0) {
        Py_CLEAR(type);
    }
    return type;
}

/* Functions for a module whose state is an array of owned references, of which some may be NULL. */

static inline int module_traverse_references(PyObject *module, visitproc visit, void *arg)
{
    PyObject **references = PyModule_GetState(module);
    for (size_t i = 0; i < (size_t)PyModule_GetDef(module)->m_size / sizeof(PyObject *); i++) {
        Py_VISIT(references[i]);
    }
    return 0;
}

static inline int module_clear_references(PyObject *module)
{
    PyObject **references = PyModule_GetState(module);
    for (size_t i = 0; i < (size_t)PyModule_GetDef(module)->m_size / sizeof(PyObject *); i++) {
        Py_CLEAR(references[i]);
    }
    return 0;
}

static inline void module_free_references(void *module)
{
    (void)module_clear_references(module);
}

#endif
