/* Finds out what the calling thread's context is, and has its record show it.
 *
 * publish_current runs on the application's threads at every switch of context: a few look-ups, and nothing of it may
 * leave a trace, be it an exception or a reference. Only a span that is met for the first time costs a call of Python.
 */
#include "py_compat.h"

#include "context_compat.h"
#include "context_cache.h"
#include "publisher.h"
#include "hooks.h"

#include <string.h>

static struct {
    bool active;
    PyInterpreterState *interp; /* whose contexts are published */
    publisher_config config;    /* owned */
    unsigned install_count;     /* counts */
    PyObject *context_name;     /* owned until the interpreter ends: "_context", where the SDK's spans have theirs */
    uint64_t last_serial;
    bool has_labels;
    publisher_counts counts;
} publisher; /* GIL */

uint64_t publisher_next_serial(void)
{
    return ++publisher.last_serial;
}

void publisher_enable_labels(void)
{
    publisher.has_labels = true;
}

bool publisher_has_labels(void)
{
    return publisher.has_labels;
}

publisher_counts *publisher_counters(void)
{
    return &publisher.counts;
}

/* Hooks inside CPython are seen by all interpreters of the process; objects belong to one. */
const publisher_config *publisher_active_config(void)
{
    return publisher.active && PyInterpreterState_Get() == publisher.interp ? &publisher.config : NULL;
}

/* ---- what a context holds ---- */

PyObject *publisher_span_in(const publisher_config *config, PyObject *context)
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

lookup_result publisher_cached_identity(const publisher_config *config, PyObject *span, Identity **identity)
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
    return none ? FOUND : UNKNOWN; /* it may be of a module that was imported anew */
}

/* The ids of a span from its SpanContext, a tuple of trace id, span id, whether it is remote, flags, ... MISSING: remote or
 * invalid. UNKNOWN: not such a span. Leaves no exception. */
static lookup_result read_span_context(PyObject *span, encoded_span *ids)
{
    static const uint8_t zero[TRACE_ID_BYTES];
    lookup_result result = UNKNOWN;
    PyObject *context = NULL;
    if (compat_get_optional_attribute(span, publisher.context_name, &context) <= 0) {
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

static void cache_identity(PyObject *span, PyObject *identity)
{
    PyObject *attribute = Py_NewRef(publisher.config.attribute); /* setting may run Python, which may uninstall */
    if (PyObject_SetAttr(span, attribute, identity) != 0) {
        if (PyErr_ExceptionMatches(PyExc_AttributeError) || PyErr_ExceptionMatches(PyExc_TypeError)) {
            PyErr_Clear(); /* a span without a place for it: asked about every time */
        }
        else {
            discard_exception();
        }
    }
    Py_DECREF(attribute);
}

/* The identity of a span that has none cached, in the slow way; FOUND, or UNKNOWN if it could not be found out. Runs
 * Python code: afterwards the context may be another, and the publisher uninstalled. Leaves no exception. */
static lookup_result identify_span(PyObject *span, Identity **identity)
{
    encoded_span ids;
    lookup_result result = UNKNOWN;
    *identity = NULL;
    identify_call *call = identify_call_begin();
    if (call == NULL) { /* a span that is met inside `identify` is not asked about */
        return UNKNOWN;
    }
    if (read_span_context(span, &ids) == MISSING) {
        identify_call_end(call);
        cache_identity(span, Py_None);
        return FOUND;
    }
    if (!publisher.active) { /* all of this may have run Python as well */
        identify_call_end(call);
        return UNKNOWN;
    }
    PyObject *identify = Py_NewRef(publisher.config.identify);
    PyObject *made = PyObject_CallFunctionObjArgs(identify, span, NULL);
    identify_call_end(call);
    Py_DECREF(identify);
    if (made == NULL) {
        discard_exception();
        return UNKNOWN;
    }
    if (publisher.active && made != Py_None && Py_TYPE(made) != publisher.config.identity_type) {
        publisher.counts.failed++;
    }
    else if (publisher.active) {
        cache_identity(span, made);
        *identity = made == Py_None ? NULL : (Identity *)Py_NewRef(made);
        result = FOUND;
    }
    Py_DECREF(made);
    return result;
}

/* ---- publishing ---- */

static void show_record(const encoded_span *span, const encoded_labels *labels)
{
    switch (thread_records_show(span, labels)) {
    case SHOWN:
        publisher.counts.published++;
        break;
    case UNCHANGED:
        publisher.counts.unchanged++;
        break;
    case NO_MEMORY:
        publisher.counts.failed++;
        break;
    }
}

/* The user's labels of the calling thread's context; new reference or NULL. Leaves no exception. */
static UserLabels *current_labels(const publisher_config *config)
{
    PyObject *labels = NULL;
    if (PyContextVar_Get(config->labels, NULL, &labels) < 0) {
        discard_exception();
        return NULL;
    }
    if (labels != NULL && (Py_TYPE(labels) != config->user_labels_type || Py_SIZE(labels) == 0)) {
        Py_CLEAR(labels);
    }
    return (UserLabels *)labels;
}

/* Whether what was found in a value of OpenTelemetry's variable is there for good: where the value can be changed in place,
 * or the span looks its attributes up in Python, it is not. */
static bool is_cacheable(const publisher_config *config, PyObject *context, PyObject *span)
{
    return (context == NULL || Py_TYPE(context) == config->context_type)
           && (span == NULL || Py_TYPE(span)->tp_getattro == PyObject_GenericGetAttr);
}

/* Borrowed; NULL: the thread has no context. */
static compat_variables *current_variables(void)
{
    PyObject *context = PyThreadState_Get()->context;
    return context == NULL ? NULL : compat_variables_of(context);
}

/* No exception is pending before and after. */
static void publish_current(bool is_switch)
{
    const publisher_config *config = publisher_active_config();
    compat_variables *variables = NULL;                /* owned: looked up in these */
    PyObject *context = NULL, *identified_span = NULL; /* owned */
    Identity *identity = NULL, *new_identity = NULL;   /* owned */
    while (config != NULL) {
        Py_CLEAR(identity);
        Py_CLEAR(context);
        Py_CLEAR(variables);
        if (is_switch) {
            variables = (compat_variables *)Py_XNewRef((PyObject *)current_variables());
        }
        if (PyContextVar_Get(config->variable, NULL, &context) < 0) {
            discard_exception();
            break;
        }
        unsigned install_count = publisher.install_count;
        PyObject *span = publisher_span_in(config, context);
        bool cacheable = is_switch && is_cacheable(config, context, span);
        if (span != NULL && publisher_cached_identity(config, span, &identity) != FOUND) {
            if (PyErr_Occurred()) {
                discard_exception();
            }
            if (identified_span == NULL) { /* what is current is looked up anew after Python code has run */
                identified_span = Py_NewRef(span);
                identify_span(identified_span, &new_identity);
                config = publisher_active_config();
                continue;
            }
            if (span == identified_span) { /* it cannot keep an attribute */
                identity = (Identity *)Py_XNewRef((PyObject *)new_identity);
            }
            cacheable = false;
        }
        UserLabels *labels = publisher.active && publisher.has_labels ? current_labels(config) : NULL;
        if (publisher.active) {
            show_record(identity == NULL ? NULL : &identity->bytes, labels == NULL ? NULL : &labels->bytes);
        }
        /* The two are of these variables unless an attribute ran Python code in between. */
        if (cacheable && publisher.install_count == install_count && current_variables() == variables) {
            context_cache_offer(variables, identity, labels);
        }
        Py_XDECREF(labels);
        break;
    }
    Py_XDECREF(identity);
    Py_XDECREF(new_identity);
    Py_XDECREF(identified_span);
    Py_XDECREF(context);
    Py_XDECREF((PyObject *)variables);
}

static COLD void publish(bool is_switch)
{
    compat_exception pending = compat_save_exception();
    publish_current(is_switch);
    compat_restore_exception(pending);
}

void publisher_publish(void)
{
    if (publisher.active) {
        publish(false);
    }
}

/* Of all that is done here the most frequent: an asyncio task's turn comes here twice. */
static HOT void on_switch(PyObject *context)
{
    cached_context cached;
    if (!publisher.active) {
        return;
    }
    if (context_cache_find(context, &cached)) {
        publisher.counts.cache_hits++;
        show_record(cached.span, cached.labels);
    }
    else {
        publish(true);
    }
}

/* ---- a span that starts ---- */

/* The local root of a span that starts in `context`: its parent's, unless that is none of ours. May run Python. */
static void inherit_local_root(PyObject *context, encoded_span *ids)
{
    Identity *identity = NULL;
    encoded_span parent_ids;
    memcpy(ids->local_root_id, ids->span_id, SPAN_ID_BYTES);
    PyObject *parent = Py_XNewRef(publisher_span_in(&publisher.config, context));
    if (parent == NULL) {
        return;
    }
    lookup_result found = publisher_cached_identity(&publisher.config, parent, &identity);
    if (found == UNKNOWN && PyErr_Occurred()) {
        discard_exception();
    }
    if (found != FOUND && read_span_context(parent, &parent_ids) != MISSING && publisher.active) {
        (void)identify_span(parent, &identity);
        publish_current(false); /* as it was before the parent was asked about */
    }
    if (identity != NULL && memcmp(identity->bytes.trace_id, ids->trace_id, TRACE_ID_BYTES) == 0) {
        memcpy(ids->local_root_id, identity->bytes.local_root_id, SPAN_ID_BYTES);
    }
    Py_XDECREF(identity);
    Py_DECREF(parent);
}

static void assign_identity(PyObject *span, PyObject *parent_context)
{
    encoded_span ids;
    PyObject *context = NULL;
    if (read_span_context(span, &ids) != FOUND || publisher_active_config() == NULL) {
        return; /* what it is will be asked when it becomes current */
    }
    if (parent_context != Py_None) {
        context = Py_NewRef(parent_context);
    }
    else if (PyContextVar_Get(publisher.config.variable, NULL, &context) < 0) {
        discard_exception();
    }
    inherit_local_root(context, &ids);
    if (publisher.active) {
        PyObject *identity = (PyObject *)identity_new(publisher.config.identity_type, &ids);
        if (identity == NULL) {
            discard_exception();
        }
        else {
            cache_identity(span, identity);
            Py_DECREF(identity);
        }
    }
    Py_XDECREF(context);
}

PyObject *publisher_assign_identity(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count,
                                    PyObject *names)
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
    if (publisher_active_config() != NULL) {
        assign_identity(args[0], parent_context);
    }
    Py_RETURN_NONE;
}

/* ---- life ---- */

static void retain_config(const publisher_config *config)
{
    publisher.config = *config;
    Py_INCREF(config->variable);
    Py_INCREF(config->span_key);
    Py_INCREF(config->labels);
    Py_INCREF(config->attribute);
    Py_INCREF(config->identify);
    Py_INCREF(config->context_type);
    Py_INCREF(config->identity_type);
    Py_INCREF(config->user_labels_type);
}

void publisher_uninstall(void)
{
    if (!publisher.active || PyInterpreterState_Get() != publisher.interp) {
        return;
    }
    publisher.active = false;
    hooks_remove();
    context_cache_clear();
    thread_records_hide_all();
    publisher_config old_config = publisher.config;
    memset(&publisher.config, 0, sizeof(publisher.config));
    Py_DECREF(old_config.variable);
    Py_DECREF(old_config.span_key);
    Py_DECREF(old_config.labels);
    Py_DECREF(old_config.attribute);
    Py_DECREF(old_config.identify);
    Py_DECREF(old_config.context_type);
    Py_DECREF(old_config.identity_type);
    Py_DECREF(old_config.user_labels_type);
}

void publisher_finalize(void)
{
    publisher_uninstall();
    Py_CLEAR(publisher.context_name); /* an object of this interpreter: one that is initialized anew has its own */
}

PyObject *publisher_install(const publisher_config *config)
{
    int problem = thread_records_prepare_process();
    if (problem != 0) {
        errno = problem;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    if (publisher.context_name == NULL) {
        publisher.context_name = PyUnicode_InternFromString("_context");
        if (publisher.context_name == NULL) {
            return NULL;
        }
    }
    publisher_uninstall();
    retain_config(config);
    publisher.interp = PyInterpreterState_Get();
    publisher.install_count++;
    publisher.active = true;
    PyObject *problems = hooks_install(config->variable, (switch_callbacks){on_switch, publisher_publish});
    if (problems == NULL) {
        compat_exception failure = compat_save_exception();
        publisher_uninstall();
        compat_restore_exception(failure);
        return NULL;
    }
    publisher_publish();
    return problems;
}
