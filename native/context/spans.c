/* Finds and makes the identities of spans. GIL held.
 *
 * `config` is the publisher's own. A function that runs Python code may find the publisher uninstalled afterwards:
 * then all fields of `config` are NULL.
 */
#include "public_compat.h"

#include "publisher.h"

#include <string.h>

/* Owned until the interpreter ends: "_context", the attribute of the SDK's spans with their span context. */
static PyObject *context_name;

bool spans_prepare(void)
{
    if (context_name == NULL) {
        context_name = PyUnicode_InternFromString("_context");
    }
    return context_name != NULL;
}

void spans_finalize(void)
{
    Py_CLEAR(context_name); /* the next interpreter makes its own */
}

PyObject *spans_find(const publisher_config *config, PyObject *context)
{
    if (context == NULL || !PyDict_Check(context) || PyDict_GET_SIZE(context) == 0) {
        return NULL;
    }
    PyObject *span = PyDict_GetItemWithError(context, config->span_key);
    if (span == NULL && PyErr_Occurred()) {
        PyErr_Clear();
    }
    return span == Py_None ? NULL : span;
}

lookup_result spans_cached_identity(const publisher_config *config, PyObject *span, Identity **identity)
{
    PyObject *cached;
    *identity = NULL;
    PyObject *attribute = Py_NewRef(config->attribute); /* a span's own __getattr__ may uninstall */
    int found = compat_get_optional_attribute(span, attribute, &cached);
    Py_DECREF(attribute);
    if (found <= 0) {
        return found < 0 ? UNKNOWN : MISSING;
    }
    if (Py_TYPE(cached) == config->identity_type) {
        *identity = (Identity *)cached;
        return FOUND;
    }
    bool none = cached == Py_None;
    Py_DECREF(cached);
    return none ? FOUND : UNKNOWN; /* its type may be of an earlier import of this module */
}

/* Read the ids of a span from its SpanContext, a tuple (trace id, span id, is remote, flags, ...). MISSING:
 * remote or invalid. UNKNOWN: not such a span. Leaves no exception. */
static lookup_result read_span_context(PyObject *span, encoded_span *ids)
{
    static const uint8_t zero[TRACE_ID_BYTES];
    lookup_result result = UNKNOWN;
    PyObject *context = NULL;
    if (compat_get_optional_attribute(span, context_name, &context) <= 0) {
        goto error;
    }
    if (!PyTuple_Check(context) || PyTuple_GET_SIZE(context) < 4 || !PyBool_Check(PyTuple_GET_ITEM(context, 2))) {
        goto error;
    }
    long flags = PyLong_AsLong(PyTuple_GET_ITEM(context, 3));
    if ((flags == -1 && PyErr_Occurred())
        || compat_int_to_bytes(PyTuple_GET_ITEM(context, 0), ids->trace_id, TRACE_ID_BYTES) != 0
        || compat_int_to_bytes(PyTuple_GET_ITEM(context, 1), ids->span_id, SPAN_ID_BYTES) != 0) {
        goto error;
    }
    ids->trace_flags = (uint8_t)flags;
    bool valid = memcmp(ids->trace_id, zero, TRACE_ID_BYTES) != 0 && memcmp(ids->span_id, zero, SPAN_ID_BYTES) != 0;
    result = valid && PyTuple_GET_ITEM(context, 2) == Py_False ? FOUND : MISSING;
error:
    Py_XDECREF(context);
    if (PyErr_Occurred()) {
        discard_exception();
    }
    return result;
}

static void cache_identity(const publisher_config *config, PyObject *span, PyObject *identity)
{
    PyObject *attribute = Py_NewRef(config->attribute); /* setting may run Python, which may uninstall */
    if (PyObject_SetAttr(span, attribute, identity) != 0) {
        if (PyErr_ExceptionMatches(PyExc_AttributeError) || PyErr_ExceptionMatches(PyExc_TypeError)) {
            PyErr_Clear(); /* the span has no place for it: it is identified every time */
        }
        else {
            discard_exception();
        }
    }
    Py_DECREF(attribute);
}

lookup_result spans_identify(const publisher_config *config, PyObject *span, Identity **identity)
{
    encoded_span ids;
    lookup_result result = UNKNOWN;
    *identity = NULL;
    identify_call *call = identify_call_begin();
    if (call == NULL) { /* spans met inside `identify` are not identified */
        return UNKNOWN;
    }
    lookup_result found = read_span_context(span, &ids);
    if (publisher_active_config() == NULL) { /* reading may have run Python code, which may uninstall */
        identify_call_end(call);
        return UNKNOWN;
    }
    if (found == MISSING) {
        identify_call_end(call);
        cache_identity(config, span, Py_None);
        return FOUND;
    }
    PyObject *identify = Py_NewRef(config->identify);
    PyObject *made = PyObject_CallFunctionObjArgs(identify, span, NULL);
    identify_call_end(call);
    Py_DECREF(identify);
    if (made == NULL) {
        discard_exception();
        return UNKNOWN;
    }
    if (publisher_active_config() != NULL && made != Py_None && Py_TYPE(made) != config->identity_type) {
        publisher_counters()->failed++;
    }
    else if (publisher_active_config() != NULL) {
        cache_identity(config, span, made);
        *identity = made == Py_None ? NULL : (Identity *)Py_NewRef(made);
        result = FOUND;
    }
    Py_DECREF(made);
    return result;
}

/* Set the local root of a span that starts in `context`: its parent's, unless the parent is none of ours. May
 * run Python. */
static void inherit_local_root(const publisher_config *config, PyObject *context, encoded_span *ids)
{
    Identity *identity = NULL;
    encoded_span parent_ids;
    memcpy(ids->local_root_id, ids->span_id, SPAN_ID_BYTES);
    PyObject *parent = Py_XNewRef(spans_find(config, context));
    if (parent == NULL) {
        return;
    }
    lookup_result found = spans_cached_identity(config, parent, &identity);
    if (found == UNKNOWN && PyErr_Occurred()) {
        discard_exception();
    }
    if (found != FOUND && read_span_context(parent, &parent_ids) != MISSING && publisher_active_config() != NULL) {
        (void)spans_identify(config, parent, &identity);
        publisher_publish(); /* restores what was shown before the parent was identified */
    }
    if (identity != NULL && memcmp(identity->bytes.trace_id, ids->trace_id, TRACE_ID_BYTES) == 0) {
        memcpy(ids->local_root_id, identity->bytes.local_root_id, SPAN_ID_BYTES);
    }
    Py_XDECREF(identity);
    Py_DECREF(parent);
}

static void assign_identity(const publisher_config *config, PyObject *span, PyObject *parent_context)
{
    encoded_span ids;
    PyObject *context = NULL;
    if (read_span_context(span, &ids) != FOUND || publisher_active_config() == NULL) {
        return; /* it is identified when it becomes current */
    }
    if (parent_context != Py_None) {
        context = Py_NewRef(parent_context);
    }
    else if (PyContextVar_Get(config->variable, NULL, &context) < 0) {
        discard_exception();
    }
    inherit_local_root(config, context, &ids);
    if (publisher_active_config() != NULL) {
        PyObject *identity = (PyObject *)identity_new(config->identity_type, &ids);
        if (identity == NULL) {
            discard_exception();
        }
        else {
            cache_identity(config, span, identity);
            Py_DECREF(identity);
        }
    }
    Py_XDECREF(context);
}

PyObject *spans_assign_identity(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    Py_ssize_t named = names == NULL ? 0 : PyTuple_GET_SIZE(names);
    PyObject *parent_context = count > 1 ? args[1] : Py_None;
    if (count == 1 && named == 1
        && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, 0), "parent_context") == 0) {
        parent_context = args[1];
    }
    else if (count < 1 || count > 2 || named > 0) {
        PyErr_SetString(PyExc_TypeError, "assign_identity() takes a span and its parent_context");
        return NULL;
    }
    const publisher_config *config = publisher_active_config();
    if (config != NULL) {
        assign_identity(config, args[0], parent_context);
    }
    Py_RETURN_NONE;
}
