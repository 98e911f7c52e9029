/* Finds and makes the identities of spans. GIL held.
 *
 * `config` is the publisher's own. A function that runs Python code may find the publisher uninstalled afterwards:
 * then all fields of `config` are NULL.
 */
#include "public_compat.h"

#include "publisher.h"
#include "hooks.h"

#include <stdlib.h>
#include <string.h>

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
    if (is_identity(cached)) {
        *identity = (Identity *)cached;
        return FOUND;
    }
    bool none = cached == Py_None;
    Py_DECREF(cached);
    return none ? FOUND : UNKNOWN;
}

/* Return true for a SpanContext: a tuple (trace id, span id, is remote, flags, ...). */
static bool is_span_context(PyObject *context)
{
    return PyTuple_Check(context) && PyTuple_GET_SIZE(context) >= 4 && PyBool_Check(PyTuple_GET_ITEM(context, 2));
}

/* Return false where the items are no ids and flags; an exception may be set then. */
static bool read_ids(PyObject *context, encoded_span *ids)
{
    long flags = PyLong_AsLong(PyTuple_GET_ITEM(context, 3));
    ids->trace_flags = (uint8_t)flags;
    return !(flags == -1 && PyErr_Occurred())
           && compat_int_to_bytes(PyTuple_GET_ITEM(context, 0), ids->trace_id, TRACE_ID_BYTES) == 0
           && compat_int_to_bytes(PyTuple_GET_ITEM(context, 1), ids->span_id, SPAN_ID_BYTES) == 0;
}

static bool are_ids_valid(const encoded_span *ids)
{
    static const uint8_t zero[TRACE_ID_BYTES];
    return memcmp(ids->trace_id, zero, TRACE_ID_BYTES) != 0 && memcmp(ids->span_id, zero, SPAN_ID_BYTES) != 0;
}

/* Read the ids of a span from its SpanContext. MISSING: remote or invalid. UNKNOWN: not such a span. Leaves no
 * exception. */
static lookup_result read_span_context(const publisher_config *config, PyObject *span, encoded_span *ids)
{
    lookup_result result = UNKNOWN;
    PyObject *context = NULL;
    if (config->ids == NULL) {
        return UNKNOWN; /* uninstalled */
    }
    PyObject *name = Py_NewRef(config->ids); /* a span's own __getattr__ may uninstall */
    if (compat_get_optional_attribute(span, name, &context) > 0 && is_span_context(context) && read_ids(context, ids)) {
        result = are_ids_valid(ids) && PyTuple_GET_ITEM(context, 2) == Py_False ? FOUND : MISSING;
    }
    Py_XDECREF(context);
    Py_DECREF(name);
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

/* A call of `identify`. Allocated, not on the stack: greenlets of a thread share its stack, and one may switch to
 * another during the call. */
typedef struct identify_call {
    const void *greenlet;    /* borrowed: it exists during the call; NULL: unknown, or there are none */
    elastic_record previous; /* what the thread showed before */
    struct identify_call *next;
} identify_call;

static _Thread_local identify_call *active_calls; /* owned */

/* Return the call that this greenlet is in. A call or a greenlet that is unknown matches any. */
static identify_call *find_call(const void *greenlet)
{
    identify_call *found = active_calls;
    while (found != NULL && greenlet != NULL && found->greenlet != NULL && found->greenlet != greenlet) {
        found = found->next;
    }
    return found;
}

/* Return NULL if the calling greenlet is in a call already, or there is no memory; then do not identify spans.
 * May run Python; leaves no exception. */
static identify_call *begin_call(void)
{
    const void *greenlet = greenlets_current();
    identify_call *made = find_call(greenlet) != NULL ? NULL : malloc(sizeof(*made));
    if (made != NULL) {
        *made = (identify_call){greenlet, thread_records_begin_update(), active_calls};
        active_calls = made;
    }
    return made;
}

static void end_call(identify_call *call)
{
    identify_call **link = &active_calls;
    while (*link != call) {
        link = &(*link)->next;
    }
    *link = call->next;
    free(call);
    thread_records_end_update();
}

/* The local roots of the last traces; in a bucket, the newest first. With a thousand traces at once, 2 % have gone. */
enum { ROOT_BUCKET_BITS = 10, ROOTS_PER_BUCKET = 4 };
typedef struct {
    uint8_t trace_id[TRACE_ID_BYTES];
    uint8_t local_root_id[SPAN_ID_BYTES];
} trace_root;

static trace_root trace_roots[1 << ROOT_BUCKET_BITS][ROOTS_PER_BUCKET]; /* GIL */

static trace_root *roots_near(const uint8_t *trace_id)
{
    uint64_t low; /* the half that is random in all formats */
    memcpy(&low, trace_id + TRACE_ID_BYTES - sizeof(low), sizeof(low));
    return trace_roots[low * UINT64_C(0x9E3779B97F4A7C15) >> (64 - ROOT_BUCKET_BITS)];
}

/* Return the last root of a trace, or NULL. */
static trace_root *find_root(const uint8_t *trace_id)
{
    trace_root *bucket = roots_near(trace_id);
    for (trace_root *root = bucket; root < bucket + ROOTS_PER_BUCKET; root++) {
        if (memcmp(root->trace_id, trace_id, TRACE_ID_BYTES) == 0) {
            return root;
        }
    }
    return NULL;
}

static void save_root(const encoded_span *span)
{
    trace_root *root = find_root(span->trace_id);
    if (root == NULL) {
        root = roots_near(span->trace_id);
        memmove(root + 1, root, (ROOTS_PER_BUCKET - 1) * sizeof(*root));
        memcpy(root->trace_id, span->trace_id, TRACE_ID_BYTES);
    }
    memcpy(root->local_root_id, span->local_root_id, SPAN_ID_BYTES);
}

void spans_forget_roots(void)
{
    memset(trace_roots, 0, sizeof(trace_roots));
}

PyObject *spans_known_local_root(PyObject *module, PyObject *trace_id)
{
    uint8_t trace[TRACE_ID_BYTES];
    if (compat_int_to_bytes(trace_id, trace, sizeof(trace)) != 0) {
        return NULL;
    }
    const identify_call *call = find_call(greenlets_current());
    if (call != NULL && call->previous.trace_present && memcmp(call->previous.trace_id, trace, sizeof(trace)) == 0) {
        return compat_int_from_bytes(call->previous.transaction_id, SPAN_ID_BYTES);
    }
    const trace_root *root = find_root(trace);
    return root != NULL ? compat_int_from_bytes(root->local_root_id, SPAN_ID_BYTES) : Py_NewRef(Py_None);
}

/* Discard or defer the exception that is set, if there is one. It is none that `identify` raised, which catches its own.
 * It is discarded if it says that `identify` cannot be called so deep down, or without memory. */
static void handle_exception(void)
{
    if (!PyErr_Occurred()) {
        return;
    }
    if (PyErr_ExceptionMatches(PyExc_RecursionError) || PyErr_ExceptionMatches(PyExc_MemoryError)) {
        discard_exception();
    }
    else {
        defer_exception();
    }
}

/* Cache what `identify` has returned, None or an identity; set `identity`, owned, or NULL for None. */
static void accept_identity(const publisher_config *config, PyObject *span, PyObject *made, Identity **identity)
{
    if (made != Py_None && !is_identity(made)) {
        publisher_counters[FAILED]++;
        return;
    }
    cache_identity(config, span, made);
    *identity = made == Py_None ? NULL : (Identity *)Py_NewRef(made);
    if (*identity != NULL && find_root((*identity)->bytes.trace_id) == NULL) {
        save_root(&(*identity)->bytes);
    }
}

void spans_identify(const publisher_config *config, PyObject *span, Identity **identity)
{
    encoded_span ids;
    PyObject *identify = NULL, *made = NULL;
    *identity = NULL;
    identify_call *call = begin_call();
    if (call == NULL) {
        return;
    }
    lookup_result found = read_span_context(config, span, &ids);
    if (publisher_active_config() == NULL) {
        goto done; /* reading may have run Python code, which may uninstall */
    }
    if (found == MISSING) {
        made = Py_NewRef(Py_None);
    }
    else {
        identify = Py_NewRef(config->identify);
        made = PyObject_CallFunctionObjArgs(identify, span, NULL);
    }
done:
    end_call(call);
    Py_XDECREF(identify);
    handle_exception();
    if (made != NULL && publisher_active_config() != NULL) {
        accept_identity(config, span, made, identity);
    }
    Py_XDECREF(made);
}

/* Set the local root of a span that starts in `context`: its parent's, or itself if the parent is none of ours. May
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
    if (found != FOUND && read_span_context(config, parent, &parent_ids) != MISSING
        && publisher_active_config() != NULL) {
        spans_identify(config, parent, &identity);
        publisher_publish(); /* restores what was shown before the parent was identified */
    }
    if (identity != NULL && memcmp(identity->bytes.trace_id, ids->trace_id, TRACE_ID_BYTES) == 0) {
        memcpy(ids->local_root_id, identity->bytes.local_root_id, SPAN_ID_BYTES);
    }
    Py_XDECREF(identity);
    Py_DECREF(parent);
}

static void assign_identity(PyTypeObject *type, const publisher_config *config, PyObject *span,
                            PyObject *parent_context)
{
    encoded_span ids;
    PyObject *context = NULL;
    if (read_span_context(config, span, &ids) != FOUND || publisher_active_config() == NULL) {
        return; /* it is identified when it becomes current */
    }
    if (parent_context != Py_None) {
        context = Py_NewRef(parent_context);
    }
    else if (PyContextVar_Get(config->variable, NULL, &context) < 0) {
        discard_exception();
    }
    inherit_local_root(config, context, &ids);
    if (memcmp(ids.local_root_id, ids.span_id, SPAN_ID_BYTES) == 0) {
        save_root(&ids);
    }
    if (publisher_active_config() != NULL) {
        PyObject *identity = (PyObject *)identity_new(type, &ids);
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

PyObject *spans_assign_identity(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names)
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
    PyObject *type = Py_XNewRef(module_identity_type(module)); /* NULL: the interpreter ends */
    if (config != NULL && type != NULL) {
        assign_identity((PyTypeObject *)type, config, args[0], parent_context);
    }
    Py_XDECREF(type);
    Py_RETURN_NONE;
}
