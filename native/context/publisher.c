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
    publisher_inputs inputs;    /* owned */
    unsigned installation;      /* counts */
    PyObject *context_name;     /* owned until the interpreter ends: "_context", where the SDK's spans have theirs */
    uint64_t last_serial;
    bool labels_exist;
    publisher_counts counts;
} publisher; /* GIL */

uint64_t publisher_next_serial(void)
{
    return ++publisher.last_serial;
}

void publisher_labels_exist(void)
{
    publisher.labels_exist = true;
}

bool publisher_may_have_labels(void)
{
    return publisher.labels_exist;
}

publisher_counts *publisher_counters(void)
{
    return &publisher.counts;
}

/* Hooks inside CPython are seen by all interpreters of the process; objects belong to one. */
const publisher_inputs *publisher_installed(void)
{
    return publisher.active && PyInterpreterState_Get() == publisher.interp ? &publisher.inputs : NULL;
}

/* ---- what a context holds ---- */

PyObject *publisher_span_in(const publisher_inputs *inputs, PyObject *context)
{
    if (context == NULL || !PyDict_Check(context) || PyDict_GET_SIZE(context) == 0) {
        return NULL;
    }
    PyObject *span = PyDict_GetItemWithError(context, inputs->span_key);
    if (span == NULL && PyErr_Occurred()) {
        PyErr_Clear();
    }
    return span == Py_None ? NULL : span;
}

lookup publisher_cached_identity(const publisher_inputs *inputs, PyObject *span, Identity **identity)
{
    PyObject *cached;
    *identity = NULL;
    PyObject *attribute = Py_NewRef(inputs->attribute); /* a span's own __getattr__ may uninstall */
    int found = compat_optional_attribute(span, attribute, &cached);
    Py_DECREF(attribute);
    if (found <= 0) {
        return found < 0 ? UNKNOWN : MISSING;
    }
    if (Py_TYPE(cached) == inputs->identity_type) {
        *identity = (Identity *)cached;
        return FOUND;
    }
    bool none = cached == Py_None;
    Py_DECREF(cached);
    return none ? FOUND : UNKNOWN; /* it may be of a module that was imported anew */
}

/* The ids of a span from its SpanContext, a tuple of trace id, span id, whether it is remote, flags, ... MISSING: remote or
 * invalid. UNKNOWN: not such a span. Leaves no exception. */
static lookup read_span_context(PyObject *span, span_bytes *ids)
{
    static const uint8_t zero[TRACE_ID_BYTES];
    lookup result = UNKNOWN;
    PyObject *context = NULL;
    if (compat_optional_attribute(span, publisher.context_name, &context) <= 0) {
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
        publisher_swallow();
    }
    return result;
}

static void cache_identity(PyObject *span, PyObject *identity)
{
    PyObject *attribute = Py_NewRef(publisher.inputs.attribute); /* setting may run Python, which may uninstall */
    if (PyObject_SetAttr(span, attribute, identity) != 0) {
        if (PyErr_ExceptionMatches(PyExc_AttributeError) || PyErr_ExceptionMatches(PyExc_TypeError)) {
            PyErr_Clear(); /* a span without a place for it: asked about every time */
        }
        else {
            publisher_swallow();
        }
    }
    Py_DECREF(attribute);
}

/* The identity of a span that has none cached, in the slow way; FOUND, or UNKNOWN if it could not be found out. Runs
 * Python code: afterwards the context may be another, and the publisher uninstalled. Leaves no exception. */
static lookup identify_span(PyObject *span, Identity **identity)
{
    span_bytes ids;
    lookup result = UNKNOWN;
    *identity = NULL;
    identification *ours = identification_begin();
    if (ours == NULL) { /* a span that is met inside `identify` is not asked about */
        return UNKNOWN;
    }
    if (read_span_context(span, &ids) == MISSING) {
        identification_end(ours);
        cache_identity(span, Py_None);
        return FOUND;
    }
    if (!publisher.active) { /* all of this may have run Python as well */
        identification_end(ours);
        return UNKNOWN;
    }
    PyObject *identify = Py_NewRef(publisher.inputs.identify);
    PyObject *made = PyObject_CallFunctionObjArgs(identify, span, NULL);
    identification_end(ours);
    Py_DECREF(identify);
    if (made == NULL) {
        publisher_swallow();
        return UNKNOWN;
    }
    if (publisher.active && made != Py_None && Py_TYPE(made) != publisher.inputs.identity_type) {
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

static void have_shown(const span_bytes *span, const labels_bytes *labels)
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
static UserLabels *current_labels(const publisher_inputs *inputs)
{
    PyObject *labels = NULL;
    if (PyContextVar_Get(inputs->labels, NULL, &labels) < 0) {
        publisher_swallow();
        return NULL;
    }
    if (labels != NULL && (Py_TYPE(labels) != inputs->user_labels_type || Py_SIZE(labels) == 0)) {
        Py_CLEAR(labels);
    }
    return (UserLabels *)labels;
}

/* Whether what was found in a value of OpenTelemetry's variable is there for good: where the value can be changed in place,
 * or the span looks its attributes up in Python, it is not. */
static bool is_lasting(const publisher_inputs *inputs, PyObject *context, PyObject *span)
{
    return (context == NULL || Py_TYPE(context) == inputs->context_type)
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
    const publisher_inputs *inputs = publisher_installed();
    compat_variables *variables = NULL;        /* owned: looked up in these */
    PyObject *context = NULL, *asked = NULL;   /* owned */
    Identity *identity = NULL, *answer = NULL; /* owned */
    while (inputs != NULL) {
        Py_CLEAR(identity);
        Py_CLEAR(context);
        Py_CLEAR(variables);
        if (is_switch) {
            variables = (compat_variables *)Py_XNewRef((PyObject *)current_variables());
        }
        if (PyContextVar_Get(inputs->variable, NULL, &context) < 0) {
            publisher_swallow();
            break;
        }
        unsigned installation = publisher.installation;
        PyObject *span = publisher_span_in(inputs, context);
        bool lasting = is_switch && is_lasting(inputs, context, span);
        if (span != NULL && publisher_cached_identity(inputs, span, &identity) != FOUND) {
            if (PyErr_Occurred()) {
                publisher_swallow();
            }
            if (asked == NULL) { /* what is current is looked up anew after Python code has run */
                asked = Py_NewRef(span);
                identify_span(asked, &answer);
                inputs = publisher_installed();
                continue;
            }
            if (span == asked) { /* it cannot keep an attribute */
                identity = (Identity *)Py_XNewRef((PyObject *)answer);
            }
            lasting = false;
        }
        UserLabels *labels = publisher.active && publisher.labels_exist ? current_labels(inputs) : NULL;
        if (publisher.active) {
            have_shown(identity == NULL ? NULL : &identity->bytes, labels == NULL ? NULL : &labels->bytes);
        }
        /* The two are of these variables unless an attribute ran Python code in between. */
        if (lasting && publisher.installation == installation && current_variables() == variables) {
            known_context_met(variables, identity, labels);
        }
        Py_XDECREF(labels);
        break;
    }
    Py_XDECREF(identity);
    Py_XDECREF(answer);
    Py_XDECREF(asked);
    Py_XDECREF(context);
    Py_XDECREF((PyObject *)variables);
}

static COLD void publish(bool is_switch)
{
    compat_exception pending = compat_take_exception();
    publish_current(is_switch);
    compat_give_back_exception(pending);
}

void publisher_publish(void)
{
    if (publisher.active) {
        publish(false);
    }
}

/* Of all that is done here the most frequent: an asyncio task's turn comes here twice. */
static HOT void switched(PyObject *context)
{
    known_contents shows;
    if (!publisher.active) {
        return;
    }
    if (known_context(context, &shows)) {
        publisher.counts.known++;
        have_shown(shows.span, shows.labels);
    }
    else {
        publish(true);
    }
}

/* ---- a span that starts ---- */

/* The local root of a span that starts in `context`: its parent's, unless that is none of ours. May run Python. */
static void inherit_local_root(PyObject *context, span_bytes *ids)
{
    Identity *identity = NULL;
    span_bytes of_parent;
    memcpy(ids->local_root_id, ids->span_id, SPAN_ID_BYTES);
    PyObject *parent = Py_XNewRef(publisher_span_in(&publisher.inputs, context));
    if (parent == NULL) {
        return;
    }
    lookup found = publisher_cached_identity(&publisher.inputs, parent, &identity);
    if (found == UNKNOWN && PyErr_Occurred()) {
        publisher_swallow();
    }
    if (found != FOUND && read_span_context(parent, &of_parent) != MISSING && publisher.active) {
        (void)identify_span(parent, &identity);
        publish_current(false); /* as it was before the parent was asked about */
    }
    if (identity != NULL && memcmp(identity->bytes.trace_id, ids->trace_id, TRACE_ID_BYTES) == 0) {
        memcpy(ids->local_root_id, identity->bytes.local_root_id, SPAN_ID_BYTES);
    }
    Py_XDECREF(identity);
    Py_DECREF(parent);
}

static void give_identity(PyObject *span, PyObject *parent_context)
{
    span_bytes ids;
    PyObject *context = NULL;
    if (read_span_context(span, &ids) != FOUND || publisher_installed() == NULL) {
        return; /* what it is will be asked when it becomes current */
    }
    if (parent_context != Py_None) {
        context = Py_NewRef(parent_context);
    }
    else if (PyContextVar_Get(publisher.inputs.variable, NULL, &context) < 0) {
        publisher_swallow();
    }
    inherit_local_root(context, &ids);
    if (publisher.active) {
        PyObject *identity = (PyObject *)identity_new(publisher.inputs.identity_type, &ids);
        if (identity == NULL) {
            publisher_swallow();
        }
        else {
            cache_identity(span, identity);
            Py_DECREF(identity);
        }
    }
    Py_XDECREF(context);
}

PyObject *publisher_inherit(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    Py_ssize_t named = names == NULL ? 0 : PyTuple_GET_SIZE(names);
    PyObject *parent_context = count > 1 ? args[1] : Py_None;
    if (count == 1 && named == 1
        && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, 0), "parent_context") == 0) {
        parent_context = args[1];
    }
    else if (count < 1 || count > 2 || named > 0) {
        PyErr_SetString(PyExc_TypeError, "inherit() takes a span and its parent_context");
        return NULL;
    }
    if (publisher_installed() != NULL) {
        give_identity(args[0], parent_context);
    }
    Py_RETURN_NONE;
}

/* ---- life ---- */

static void own_inputs(const publisher_inputs *inputs)
{
    publisher.inputs = *inputs;
    Py_INCREF(inputs->variable);
    Py_INCREF(inputs->span_key);
    Py_INCREF(inputs->labels);
    Py_INCREF(inputs->attribute);
    Py_INCREF(inputs->identify);
    Py_INCREF(inputs->context_type);
    Py_INCREF(inputs->identity_type);
    Py_INCREF(inputs->user_labels_type);
}

void publisher_uninstall(void)
{
    if (!publisher.active || PyInterpreterState_Get() != publisher.interp) {
        return;
    }
    publisher.active = false;
    switches_remove();
    known_contexts_forget();
    thread_records_hide_all();
    publisher_inputs before = publisher.inputs;
    memset(&publisher.inputs, 0, sizeof(publisher.inputs));
    Py_DECREF(before.variable);
    Py_DECREF(before.span_key);
    Py_DECREF(before.labels);
    Py_DECREF(before.attribute);
    Py_DECREF(before.identify);
    Py_DECREF(before.context_type);
    Py_DECREF(before.identity_type);
    Py_DECREF(before.user_labels_type);
}

void publisher_forget(void)
{
    publisher_uninstall();
    Py_CLEAR(publisher.context_name); /* an object of this interpreter: one that is initialized anew has its own */
}

PyObject *publisher_install(const publisher_inputs *inputs)
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
    own_inputs(inputs);
    publisher.interp = PyInterpreterState_Get();
    publisher.installation++;
    publisher.active = true;
    PyObject *problems = switches_install(inputs->variable, (switch_callbacks){switched, publisher_publish});
    if (problems == NULL) {
        compat_exception failure = compat_take_exception();
        publisher_uninstall();
        compat_give_back_exception(failure);
        return NULL;
    }
    publisher_publish();
    return problems;
}
