/* The hook for greenlets (gevent, eventlet, SQLAlchemy's asyncio). Each greenlet has its own context, which
 * greenlet switches without notice to CPython. Its trace function reports switches; each thread must set its
 * own.
 *
 * Our function calls the one that was set before. It cannot be removed from other threads, so it stays there
 * after removal and only forwards calls.
 */
#include "hooks.h"

#include "public_compat.h"

static PyObject *greenlet_module;                   /* owned; NULL: greenlet is not loaded, or no hooks are installed */
static _Thread_local unsigned traced_install_count; /* of a traced thread: the current one */

/* The trace function. `previous` is the one that was set before, or None. */
static PyObject *trace_switch(PyObject *previous, PyObject *const *args, Py_ssize_t count)
{
    hooks_report_switch(PyThreadState_Get()->context);
    if (previous == Py_None) {
        Py_RETURN_NONE;
    }
    PyObject *result = PyObject_Vectorcall(previous, args, (size_t)count, NULL);
    if (result == NULL) {
        /* greenlet removes a trace function that raises: ours goes with the other, and is set again alone. */
        traced_install_count = 0;
    }
    return result;
}

static PyMethodDef trace_method = {
    "trace_context",
    (PyCFunction)(void (*)(void))trace_switch,
    METH_FASTCALL,
    "Reports a greenlet's context, then calls the trace function that was set before.",
};

static bool is_own_trace(PyObject *function)
{
    return PyCFunction_CheckExact(function)
           && PyCFunction_GET_FUNCTION(function) == (PyCFunction)(void (*)(void))trace_switch;
}

const char *greenlets_install(void)
{
    return NULL; /* nothing can fail yet: a later refresh finds greenlet */
}

/* Return true if the module is being imported, from CPython's own flag. Leaves no exception. */
static bool is_being_imported(PyObject *module)
{
    PyObject *spec = PyObject_GetAttrString(module, "__spec__");
    PyObject *initializing = spec == NULL ? NULL : PyObject_GetAttrString(spec, "_initializing");
    bool result = initializing != NULL && PyObject_IsTrue(initializing) == 1;
    PyErr_Clear();
    Py_XDECREF(initializing);
    Py_XDECREF(spec);
    return result;
}

/* Not PyObject_HasAttrString: since 3.13 it calls sys.unraisablehook. Leaves no exception. */
static bool has_attribute(PyObject *module, const char *name)
{
    PyObject *value = PyObject_GetAttrString(module, name);
    PyErr_Clear();
    Py_XDECREF(value);
    return value != NULL;
}

bool greenlets_refresh(PyObject *modules)
{
    PyObject *module = greenlet_module != NULL ? NULL : PyDict_GetItemString(modules, "greenlet"); /* borrowed */
    if (module == NULL || module == Py_None) {
        return true;
    }
    Py_INCREF(module);
    bool is_complete = has_attribute(module, "settrace") && has_attribute(module, "gettrace");
    bool settled = is_complete || !is_being_imported(module); /* or another module of that name */
    if (is_complete) {
        Py_XSETREF(greenlet_module, Py_NewRef(module));
    }
    Py_DECREF(module);
    return settled;
}

const void *greenlets_current(void)
{
    if (!hooks_is_active() || greenlet_module == NULL) {
        return NULL;
    }
    PyObject *module = Py_NewRef(greenlet_module); /* the call may remove the hooks */
    PyObject *current = PyObject_CallMethod(module, "getcurrent", NULL);
    Py_DECREF(module);
    if (current == NULL) {
        PyErr_Clear();
        return NULL;
    }
    Py_DECREF(current); /* it is running, so it exists */
    return current;
}

void greenlets_ensure_traced(void)
{
    if (greenlet_module == NULL || traced_install_count == hooks_install_count() || !hooks_is_active()) {
        return;
    }
    compat_exception pending = compat_save_exception();
    /* The calls below allocate: the collector can run, and another thread can install or remove hooks
     * meanwhile. */
    unsigned install_count = hooks_install_count();
    PyObject *module = Py_NewRef(greenlet_module);
    PyObject *current = PyObject_CallMethod(module, "gettrace", NULL);
    bool is_traced = current != NULL && is_own_trace(current);
    if (current != NULL && !is_traced) {
        PyObject *own_trace = PyCFunction_New(&trace_method, current);
        PyObject *before = own_trace == NULL ? NULL : PyObject_CallMethod(module, "settrace", "(O)", own_trace);
        is_traced = before != NULL;
        Py_XDECREF(before);
        Py_XDECREF(own_trace);
    }
    if (is_traced) {
        traced_install_count = install_count;
    }
    PyErr_Clear(); /* no memory; the next switch tries again */
    Py_XDECREF(current);
    Py_DECREF(module);
    compat_restore_exception(pending);
}

void greenlets_remove(void)
{
    PyObject *module = greenlet_module;
    greenlet_module = NULL;
    traced_install_count = 0;
    if (module != NULL && !compat_is_finalizing()) {
        PyObject *current = PyObject_CallMethod(module, "gettrace", NULL);
        if (current != NULL && is_own_trace(current)) {
            PyObject *own_trace = PyObject_CallMethod(module, "settrace", "(O)", PyCFunction_GET_SELF(current));
            Py_XDECREF(own_trace);
        }
        Py_XDECREF(current);
        PyErr_Clear();
    }
    Py_XDECREF(module);
}
