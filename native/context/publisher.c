/* Reads the calling thread's context and shows it in the thread's record.
 *
 * publish_current runs on the application's threads at every context switch. It makes a few look-ups, and
 * leaves no exception and no reference. Only a span that is met for the first time costs a Python call.
 */
#include "py_compat.h"

#include "context_cache.h"
#include "publisher.h"
#include "hooks.h"

#include <string.h>

static struct {
    bool active;
    PyInterpreterState *interp; /* the interpreter whose contexts are published */
    publisher_config config;    /* owned */
    unsigned install_count;     /* number of installs */
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

/* All interpreters of the process call the hooks inside CPython; objects belong to one interpreter. */
const publisher_config *publisher_active_config(void)
{
    return publisher.active && PyInterpreterState_Get() == publisher.interp ? &publisher.config : NULL;
}

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

/* Return the user's labels of the calling thread's context; new reference or NULL. Leaves no exception. */
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

/* Return true if the result for a value of OpenTelemetry's variable cannot change. It can if the value is
 * mutable, or if the span's attribute access runs Python. */
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
    compat_variables *variables = NULL;                /* owned: the variables of the look-ups */
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
        PyObject *span = spans_find(config, context);
        bool cacheable = is_switch && is_cacheable(config, context, span);
        if (span != NULL && spans_cached_identity(config, span, &identity) != FOUND) {
            if (PyErr_Occurred()) {
                discard_exception();
            }
            /* After Python code has run, look up the current context again. */
            if (identified_span == NULL) {
                identified_span = Py_NewRef(span);
                spans_identify(config, identified_span, &new_identity);
                config = publisher_active_config();
                continue;
            }
            if (span == identified_span) { /* its attributes cannot be set */
                identity = (Identity *)Py_XNewRef((PyObject *)new_identity);
            }
            cacheable = false;
        }
        UserLabels *labels = publisher.active && publisher.has_labels ? current_labels(config) : NULL;
        if (publisher.active) {
            show_record(identity == NULL ? NULL : &identity->bytes, labels == NULL ? NULL : &labels->bytes);
        }
        /* The results belong to these variables unless an attribute ran Python code meanwhile. */
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

/* The most frequent function here: each step of an asyncio task calls it twice. */
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
    spans_finalize();
}

PyObject *publisher_install(const publisher_config *config)
{
    int problem = thread_records_prepare_process();
    if (problem != 0) {
        errno = problem;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    if (!spans_prepare()) {
        return NULL;
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
