/* The hook for ContextVar.set and ContextVar.reset, with which frameworks carry the values of one context into
 * another: asgiref does so between sync and async code of Django. Nothing else reports such a change. */
#include "hooks.h"
#include "method_entry.h"

static HOT PyObject *set_and_report(PyObject *variable, PyObject *value);
static HOT PyObject *reset_and_report(PyObject *variable, PyObject *token);

static method_entry set = {&PyContextVar_Type, "set", METH_O, (any_function)set_and_report, NULL, NULL};
static method_entry reset = {&PyContextVar_Type, "reset", METH_O, (any_function)reset_and_report, NULL, NULL};

static inline PyObject *call_and_report(const method_entry *method, PyObject *variable, PyObject *argument)
{
    PyObject *result = ((PyCFunction)method_entry_original(method))(variable, argument);
    if (result != NULL) {
        hooks_report_set(variable);
    }
    return result;
}

static HOT PyObject *set_and_report(PyObject *variable, PyObject *value)
{
    return call_and_report(&set, variable, value);
}

static HOT PyObject *reset_and_report(PyObject *variable, PyObject *token)
{
    return call_and_report(&reset, variable, token);
}

const char *variable_set_install(void)
{
    return method_entry_install(&set) && method_entry_install(&reset)
               ? NULL
               : "this build of CPython has another ContextVar.set: a span that a framework carries from one context "
                 "to another (Django between sync and async code) is published from the next switch on";
}

void variable_set_remove(void)
{
    method_entry_remove(&set);
    method_entry_remove(&reset);
}
