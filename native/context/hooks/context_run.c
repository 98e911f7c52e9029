/* The hook for Context.run before 3.14, by which asyncio's handles, executors and anyio switch contexts.
 *
 * The hook replaces the method's entry in CPython's own table. Every bound method, method descriptor and
 * specialised instruction uses that entry at each call, so those made earlier are hooked too. The entry
 * belongs to the process: for interpreters without hooks, calls pass through to the original.
 */
#include "py_compat.h"

#include "hooks.h"

#include <stdatomic.h>
#include <string.h>

typedef PyObject *(*run_function)(PyObject *, PyObject *const *, Py_ssize_t, PyObject *);

static PyMethodDef *method; /* in PyContext_Type's table; NULL before the first install */
/* The original function; set once, since another tool may have put its own above ours. */
static run_function _Atomic original;

static HOT PyObject *run_and_report(PyObject *context, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    if (count < 1 || !hooks_is_active()) {
        return atomic_load_explicit(&original, memory_order_relaxed)(context, args, count, names);
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

static PyCFunction as_cfunction(run_function function)
{
    return (PyCFunction)(void (*)(void))function;
}

const char *context_run_install(void)
{
    PyMethodDef *found = PyContext_Type.tp_methods;
    while (found != NULL && found->ml_name != NULL && strcmp(found->ml_name, "run") != 0) {
        found++;
    }
    if (found == NULL || found->ml_name == NULL || found->ml_flags != (METH_FASTCALL | METH_KEYWORDS)) {
        return "this build of CPython has another Context.run: tasks of asyncio and work handed to executors are "
               "published with the span of whatever ran before them on their thread";
    }
    if (method == NULL) {
        atomic_store(&original, (run_function)(void (*)(void))found->ml_meth);
        method = found;
    }
    /* Later the entry is restored, or still ours, or another tool's that calls ours. In the last case setting it
     * again would make a cycle. */
    if (found->ml_meth == as_cfunction(original)) {
        __atomic_store_n(&found->ml_meth, as_cfunction(run_and_report), __ATOMIC_RELEASE);
    }
    return NULL;
}

void context_run_remove(void)
{
    if (method != NULL && method->ml_meth == as_cfunction(run_and_report)) {
        __atomic_store_n(&method->ml_meth, as_cfunction(original), __ATOMIC_RELEASE);
    }
}
