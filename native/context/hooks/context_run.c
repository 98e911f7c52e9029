/* The hook for Context.run before 3.14, by which asyncio's handles, executors and anyio switch contexts. */
#include "py_compat.h"

#include "hooks.h"
#include "method_entry.h"

typedef PyObject *(*run_function)(PyObject *, PyObject *const *, Py_ssize_t, PyObject *);

static HOT PyObject *run_and_report(PyObject *context, PyObject *const *args, Py_ssize_t count, PyObject *names);

static method_entry run = {
    &PyContext_Type, "run", METH_FASTCALL | METH_KEYWORDS, (any_function)run_and_report, NULL, NULL};

static HOT PyObject *run_and_report(PyObject *context, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    if (count < 1 || !hooks_is_active()) {
        return ((run_function)method_entry_original(&run))(context, args, count, names);
    }
    if (PyContext_Enter(context) != 0) {
        return NULL;
    }
    hooks_report_switch(context);
    PyObject *result = PyObject_Vectorcall(args[0], args + 1, (size_t)count - 1, names);
    PyObject *outer = compat_outer_context(context); /* the thread's context after the exit */
    if (PyContext_Exit(context) != 0) {
        Py_CLEAR(result);
        return NULL;
    }
    hooks_report_switch(outer);
    return result;
}

const char *context_run_install(void)
{
    return method_entry_install(&run)
               ? NULL
               : "this build of CPython has another Context.run: tasks of asyncio and work handed to executors are "
                 "published with the span of whatever ran before them on their thread";
}

void context_run_remove(void)
{
    method_entry_remove(&run);
}
