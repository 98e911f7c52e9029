/* Which threads work for one of the traces in the focus, found out before anything of their stacks is read.
 *
 * Who calls holds the GIL and none of CPython's locks. A thread is left out only if it surely works for none of them: it has no
 * span, or one whose trace is not in the dict. Spans that would have to be asked in Python count as possible; the worker
 * looks at them again. No Python code runs, and no reference that is given up here is the last one: the thread's own
 * context keeps all of it.
 */
#include "py_compat.h"

#include "context_compat.h"
#include "state.h"

/* Borrowed from `span`'s own span context, or NULL if that is not one as OpenTelemetry makes them. */
static PyObject *trace_id_of(const core *c, PyObject *span)
{
    PyTypeObject *type = Py_TYPE(span);
    PyObject *context = NULL, *trace_id = NULL;
    if (type->tp_getattro != PyObject_GenericGetAttr || _PyType_Lookup(type, c->context_name) != NULL) {
        return NULL; /* it would run code of its own */
    }
    if (compat_optional_attribute(span, c->context_name, &context) < 0) {
        PyErr_Clear();
    }
    if (context != NULL && PyTuple_Check(context) && PyTuple_GET_SIZE(context) > 0) {
        trace_id = PyTuple_GET_ITEM(context, 0);
    }
    Py_XDECREF(context);
    return trace_id != NULL && PyLong_CheckExact(trace_id) ? trace_id : NULL;
}

static bool may_be_in_focus(const core *c, PyObject *value)
{
    if (!PyDict_Check(value)) {
        return true;
    }
    PyObject *span = PyDict_GetItemWithError(value, c->span_key);
    if (span == NULL) {
        PyErr_Clear();
        return false;
    }
    PyObject *trace_id = trace_id_of(c, span);
    int found = trace_id == NULL ? 1 : PyDict_Contains(c->traces, trace_id);
    if (found < 0) {
        PyErr_Clear();
    }
    return found != 0;
}

size_t focus_choose(core *c, size_t count)
{
    PyThreadState *self = PyThreadState_Get();
    size_t chosen = 0;
    for (size_t i = 0; i < count; i++) {
        PyObject *value = compat_context_value(self, c->walked[i].context, c->context_var);
        if (value != NULL && may_be_in_focus(c, value)) {
            c->chosen[chosen++] = c->walked[i].key;
        }
        Py_XDECREF(value);
    }
    return chosen;
}

bool focus_is_empty(const core *c)
{
    return c->traces == NULL || PyDict_GET_SIZE(c->traces) == 0;
}

bool focus_take(core *c, PyObject *focus)
{
    PyObject *traces, *span_key;
    if (focus == Py_None) {
        return true;
    }
    if (!PyTuple_Check(focus)) {
        PyErr_Format(PyExc_TypeError, "focus must be a tuple or None, not %.100s", Py_TYPE(focus)->tp_name);
        return false;
    }
    if (!PyArg_ParseTuple(focus, "O!U:focus", &PyDict_Type, &traces, &span_key)) {
        return false;
    }
    c->context_name = PyUnicode_InternFromString("_context");
    if (c->context_name == NULL) {
        return false;
    }
    c->span_key = Py_NewRef(span_key);
    c->traces = Py_NewRef(traces);
    return true;
}
