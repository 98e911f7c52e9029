/* Selects the threads that work for a trace of the trace filter, before their stacks are read.
 *
 * The caller holds the GIL and none of CPython's locks. A thread is left out only if it surely works for no
 * such trace. Then it has no span, or the trace of its span is not in the dict. A span that only Python code
 * could ask counts as a match; the sampler checks it again. No Python code runs. No reference released here is
 * the last one, since the thread's own context holds the same objects.
 */
#include "py_compat.h"

#include "ticker_state.h"

PyObject *read_attribute(PyObject *object, PyObject *name)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject *value = NULL;
    if (type->tp_getattro != PyObject_GenericGetAttr || _PyType_Lookup(type, name) != NULL) {
        return NULL; /* it would run code of its own */
    }
    if (compat_get_optional_attribute(object, name, &value) < 0) {
        PyErr_Clear();
    }
    return value;
}

/* Return the trace id, borrowed from the span context of `span`; NULL: it is not one of OpenTelemetry's. */
static PyObject *find_trace_id(const ticker_state *ticker, PyObject *span)
{
    PyObject *context = read_attribute(span, ticker->names[NAME_SPAN_CONTEXT]), *trace_id = NULL;
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
    PyObject *span = PyDict_GetItemWithError(value, ticker->arguments.span_key);
    if (span == NULL) {
        PyErr_Clear();
        return false;
    }
    PyObject *trace_id = find_trace_id(ticker, span);
    int found = trace_id == NULL ? 1 : PyDict_Contains(ticker->arguments.traces, trace_id);
    if (found < 0) {
        PyErr_Clear();
    }
    return found != 0;
}

void filter_threads(ticker_state *ticker)
{
    walk_scratch *scratch = &ticker->scratch;
    PyThreadState *self = PyThreadState_Get();
    scratch->selected_count = 0;
    for (size_t i = 0; i < scratch->count; i++) {
        PyObject *value = compat_context_value(self, scratch->threads[i].context, ticker->arguments.context_var);
        if (value != NULL && may_match(ticker, value)) {
            scratch->selected_keys[scratch->selected_count++] = scratch->threads[i].key;
        }
        Py_XDECREF(value);
    }
}

bool filter_is_empty(const ticker_state *ticker)
{
    return ticker->arguments.traces == NULL || PyDict_GET_SIZE(ticker->arguments.traces) == 0;
}
