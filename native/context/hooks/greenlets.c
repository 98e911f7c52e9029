/* The hook for greenlets (gevent, eventlet, SQLAlchemy's asyncio). Each greenlet has its own context, which
 * greenlet switches without notice to CPython. Its trace function reports switches; each thread must set its
 * own.
 *
 * Our function calls the one that was set before. It cannot be removed from other threads, so it stays there
 * after removal and only forwards calls.
 */
#include "switch_hooks.h"

#include "public_compat.h"

static struct {
    PyObject *settrace, *gettrace; /* owned; NULL: greenlet is not loaded, or no hooks are installed */
    PyObject *getcurrent;          /* as above */
    unsigned install_count;        /* number of installs; a traced thread has the current one */
} greenlets;

static _Thread_local unsigned traced_install_count;

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
    greenlets.install_count++;
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

bool greenlets_refresh(PyObject *modules)
{
    if (greenlets.settrace != NULL) {
        return true;
    }
    PyObject *module = PyDict_GetItemString(modules, "greenlet"); /* borrowed */
    if (module == NULL || module == Py_None) {
        return true;
    }
    Py_INCREF(module);
    PyObject *settrace = PyObject_GetAttrString(module, "settrace");
    PyObject *gettrace = settrace == NULL ? NULL : PyObject_GetAttrString(module, "gettrace");
    if (gettrace == NULL) { /* not defined yet, or another module of that name */
        PyErr_Clear();
        bool settled = !is_being_imported(module);
        Py_XDECREF(settrace);
        Py_DECREF(module);
        return settled;
    }
    PyObject *getcurrent = PyObject_GetAttrString(module, "getcurrent");
    PyErr_Clear();
    Py_DECREF(module);
    Py_XSETREF(greenlets.settrace, settrace);
    Py_XSETREF(greenlets.gettrace, gettrace);
    Py_XSETREF(greenlets.getcurrent, getcurrent);
    return true;
}

const void *greenlets_current(void)
{
    if (!hooks_is_active() || greenlets.getcurrent == NULL) {
        return NULL;
    }
    PyObject *getcurrent = Py_NewRef(greenlets.getcurrent); /* the call may remove the hooks */
    PyObject *current = PyObject_CallNoArgs(getcurrent);
    Py_DECREF(getcurrent);
    if (current == NULL) {
        PyErr_Clear();
        return NULL;
    }
    Py_DECREF(current); /* it is running, so it exists */
    return current;
}

int greenlets_trace_thread(void)
{
    if (!hooks_is_active() || greenlets.settrace == NULL) {
        return 0;
    }
    /* The calls below allocate: the collector can run, and another thread can install or remove hooks
     * meanwhile. */
    unsigned install_count = greenlets.install_count;
    PyObject *settrace = Py_NewRef(greenlets.settrace);
    PyObject *gettrace = Py_NewRef(greenlets.gettrace);
    PyObject *current = NULL, *own_trace = NULL, *before = NULL;
    int result = -1;
    current = PyObject_CallNoArgs(gettrace);
    if (current == NULL) {
        goto error;
    }
    if (!is_own_trace(current)) {
        own_trace = PyCFunction_New(&trace_method, current);
        before = own_trace == NULL ? NULL : PyObject_CallOneArg(settrace, own_trace);
        if (before == NULL) {
            goto error;
        }
    }
    traced_install_count = install_count;
    result = 1;
error:
    Py_XDECREF(before);
    Py_XDECREF(own_trace);
    Py_XDECREF(current);
    Py_DECREF(gettrace);
    Py_DECREF(settrace);
    return result;
}

void greenlets_ensure_traced(void)
{
    if (greenlets.settrace == NULL || traced_install_count == greenlets.install_count || !hooks_is_active()) {
        return;
    }
    compat_exception pending = compat_save_exception();
    if (greenlets_trace_thread() < 0) {
        PyErr_Clear(); /* no memory; the next switch tries again */
    }
    compat_restore_exception(pending);
}

static void remove_trace(PyObject *settrace, PyObject *gettrace)
{
    PyObject *current = PyObject_CallNoArgs(gettrace);
    if (current != NULL && is_own_trace(current)) {
        PyObject *own_trace = PyObject_CallOneArg(settrace, PyCFunction_GET_SELF(current));
        Py_XDECREF(own_trace);
    }
    Py_XDECREF(current);
    PyErr_Clear();
}

void greenlets_remove(void)
{
    PyObject *settrace = greenlets.settrace, *gettrace = greenlets.gettrace, *getcurrent = greenlets.getcurrent;
    greenlets.settrace = greenlets.gettrace = greenlets.getcurrent = NULL;
    if (settrace != NULL) {
        traced_install_count = 0;
        if (!compat_is_finalizing()) {
            remove_trace(settrace, gettrace);
        }
        Py_DECREF(settrace);
        Py_DECREF(gettrace);
        Py_XDECREF(getcurrent);
    }
}
