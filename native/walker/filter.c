/* Selects the threads that work for a trace of the trace filter, before their stacks are read.
 *
 * The caller holds the GIL and none of CPython's locks. A thread is left out only if it surely works for no
 * such trace. Then it has no span, or the trace of its span is not in the dict. A span that only Python code
 * could ask counts as a match; the worker checks it again. No Python code runs. No reference released here is
 * the last one, since the thread's own context holds the same objects.
 */
#include "py_compat.h"

#include "ticker_state.h"

/* Return the trace id, borrowed from the span context of `span`; NULL: it is not one of OpenTelemetry's. */
static PyObject *find_trace_id(const ticker_state *ticker, PyObject *span)
{
    PyTypeObject *type = Py_TYPE(span);
    PyObject *context = NULL, *trace_id = NULL;
    if (type->tp_getattro != PyObject_GenericGetAttr || _PyType_Lookup(type, ticker->context_name) != NULL) {
        return NULL; /* it would run code of its own */
    }
    if (compat_get_optional_attribute(span, ticker->context_name, &context) < 0) {
        PyErr_Clear();
    }
    if (context != NULL && PyTuple_Check(context) && PyTuple_GET_SIZE(context) > 0) {
        trace_id = PyTuple_GET_ITEM(context, 0);
    }
    Py_XDECREF(context);
    return trace_id != NULL && PyLong_CheckExact(trace_id) ? trace_id : NULL;
}

static bool may_match(const ticker_state *ticker, PyObject *value)
{
    if (!PyDict_Check(value)) {
        return true;
    }
    PyObject *span = PyDict_GetItemWithError(value, ticker->span_key);
    if (span == NULL) {
        PyErr_Clear();
        return false;
    }
    PyObject *trace_id = find_trace_id(ticker, span);
    int found = trace_id == NULL ? 1 : PyDict_Contains(ticker->traces, trace_id);
    if (found < 0) {
        PyErr_Clear();
    }
    return found != 0;
}

size_t filter_threads(ticker_state *ticker, size_t count)
{
    PyThreadState *self = PyThreadState_Get();
    size_t selected = 0;
    for (size_t i = 0; i < count; i++) {
        PyObject *value = compat_context_value(self, ticker->scratch_threads[i].context, ticker->context_var);
        if (value != NULL && may_match(ticker, value)) {
            ticker->selected_keys[selected++] = ticker->scratch_threads[i].key;
        }
        Py_XDECREF(value);
    }
    return selected;
}

bool filter_is_empty(const ticker_state *ticker)
{
    return ticker->traces == NULL || PyDict_GET_SIZE(ticker->traces) == 0;
}

bool filter_set(ticker_state *ticker, PyObject *trace_filter)
{
    PyObject *traces, *span_key;
    if (trace_filter == Py_None) {
        return true;
    }
    if (!PyTuple_Check(trace_filter)) {
        PyErr_Format(PyExc_TypeError, "trace_filter must be a tuple or None, not %.100s",
                     Py_TYPE(trace_filter)->tp_name);
        return false;
    }
    if (!PyArg_ParseTuple(trace_filter, "O!U:trace_filter", &PyDict_Type, &traces, &span_key)) {
        return false;
    }
    ticker->context_name = PyUnicode_InternFromString("_context");
    if (ticker->context_name == NULL) {
        return false;
    }
    ticker->span_key = Py_NewRef(span_key);
    ticker->traces = Py_NewRef(traces);
    return true;
}
