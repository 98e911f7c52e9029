/* Reads the calling thread's context and shows it in the thread's record.
 *
 * publish_current runs on the application's threads at every context switch. It makes a few look-ups, and
 * leaves no exception and no reference. Only a span that is met for the first time costs a Python call.
 */
#include "py_compat.h"

#include "publisher.h"
#include "hooks.h"

#include <string.h>

unsigned long long publisher_counters[COUNTER_COUNT]; /* GIL */

static publisher_config installed_config; /* owned; NULLs: nothing is installed. GIL */

/* All interpreters of the process call the hooks inside CPython; objects belong to one interpreter. */
const publisher_config *publisher_active_config(void)
{
    return hooks_is_active() ? &installed_config : NULL;
}

static void show_record(const encoded_span *span, const encoded_labels *labels)
{
    publisher_counters[thread_records_show(span, labels)]++;
}

/* Return the user's labels of the calling thread's context; new reference or NULL. Leaves no exception. */
static UserLabels *current_labels(const publisher_config *config)
{
    PyObject *labels = NULL;
    if (PyContextVar_Get(config->labels, NULL, &labels) < 0) {
        discard_exception();
    }
    return take_user_labels(labels);
}

/* Return true if the result for a value of OpenTelemetry's variable cannot change. It can if the value is
 * mutable, or if the span's attribute access runs Python. */
static bool is_cacheable(const publisher_config *config, PyObject *context, PyObject *span)
{
    return (context == NULL || (PyObject *)Py_TYPE(context) == config->context_type)
           && (span == NULL || Py_TYPE(span)->tp_getattro == PyObject_GenericGetAttr);
}

/* Borrowed; NULL: the thread has no context. */
static PyObject *current_variables(void)
{
    PyObject *context = PyThreadState_Get()->context;
    return context == NULL ? NULL : (PyObject *)compat_variables_of(context);
}

/* A span without a cached identity, which Python code was asked about. */
typedef struct {
    PyObject *span;     /* owned; NULL: none */
    Identity *identity; /* owned, or NULL */
} asked_span;

/* Have Python code identify a span once: a new reference, or NULL. Return false after it has run: the current context
 * may be another one now. An exception may be pending before, none afterwards. */
static COLD bool identify(const publisher_config *config, PyObject *span, asked_span *asked, Identity **identity)
{
    if (PyErr_Occurred()) {
        discard_exception();
    }
    if (asked->span == NULL) {
        asked->span = Py_NewRef(span);
        spans_identify(config, asked->span, &asked->identity);
        return false;
    }
    if (span == asked->span) { /* its attributes cannot be set */
        *identity = (Identity *)Py_XNewRef((PyObject *)asked->identity);
    }
    return true;
}

/* Show a span and the calling thread's labels. `variables` are those that a cache entry is for; NULL: no context. */
static void show_context(const publisher_config *config, Identity *identity, PyObject *variables, bool cacheable,
                         unsigned install_count)
{
    UserLabels *labels = user_labels_exist ? current_labels(config) : NULL;
    show_record(identity == NULL ? NULL : &identity->bytes, labels == NULL ? NULL : &labels->bytes);
    /* The results belong to these variables unless an attribute ran Python code meanwhile. */
    if (cacheable && hooks_install_count() == install_count && current_variables() == variables) {
        context_cache_offer(variables, identity, labels);
    }
    Py_XDECREF(labels);
}

/* Return false if the context must be looked up again; then `asked` is set. */
static bool try_publish(bool is_switch, asked_span *asked)
{
    const publisher_config *config = publisher_active_config();
    if (config == NULL) {
        return true;
    }
    PyObject *context = NULL;                                                 /* owned */
    PyObject *span = NULL;                                                    /* owned: its attributes may run Python */
    Identity *identity = NULL;                                                /* owned */
    PyObject *variables = is_switch ? Py_XNewRef(current_variables()) : NULL; /* owned: of the look-ups */
    bool is_found = true;
    if (PyContextVar_Get(config->variable, NULL, &context) < 0) {
        discard_exception();
        goto error;
    }
    unsigned install_count = hooks_install_count();
    span = Py_XNewRef(spans_find(config, context));
    bool cacheable = is_switch && is_cacheable(config, context, span);
    if (span != NULL && spans_cached_identity(config, span, &identity) != FOUND) {
        cacheable = false;
        is_found = identify(config, span, asked, &identity);
    }
    if (is_found && hooks_is_active()) {
        show_context(config, identity, variables, cacheable, install_count);
    }
error:
    Py_XDECREF(identity);
    Py_XDECREF(span);
    Py_XDECREF(context);
    Py_XDECREF(variables);
    return is_found;
}

/* No exception is pending before and after. */
static void publish_current(bool is_switch)
{
    asked_span asked = {NULL, NULL};
    while (!try_publish(is_switch, &asked)) {
    }
    Py_XDECREF(asked.identity);
    Py_XDECREF(asked.span);
}

static COLD void publish(bool is_switch)
{
    compat_exception pending = compat_save_exception();
    publish_current(is_switch);
    compat_restore_exception(pending);
}

void publisher_publish(void)
{
    publish(false);
}

/* The most frequent function here: each step of an asyncio task calls it twice. */
static HOT void on_switch(PyObject *context)
{
    cached_context cached;
    if (context_cache_find(context, &cached)) {
        publisher_counters[CACHE_HITS]++;
        show_record(cached.span, cached.labels);
    }
    else {
        publish(true);
    }
}

static bool is_shown(const PyObject *variable)
{
    return variable == installed_config.variable || variable == installed_config.labels;
}

void publisher_uninstall(void)
{
    if (installed_config.variable == NULL) {
        return;
    }
    publisher_config old_config = installed_config;
    memset(&installed_config, 0, sizeof(installed_config)); /* before other threads run, which may install anew */
    context_cache_clear();
    spans_forget_roots();
    thread_records_hide_all(); /* no switch is seen from hooks_remove on */
    hooks_remove();
    for (size_t i = 0; i < Py_ARRAY_LENGTH(old_config.all); i++) {
        Py_DECREF(old_config.all[i]);
    }
}

PyObject *publisher_install(PyObject *module, PyObject *args)
{
    publisher_config config;
    if (!PyArg_ParseTuple(args, "O!UO!UOO!:install", &PyContextVar_Type, &config.variable, &config.span_key,
                          &PyContextVar_Type, &config.labels, &config.attribute, &config.identify, &PyType_Type,
                          &config.context_type)) {
        return NULL;
    }
    if (!PyCallable_Check(config.identify)) {
        return PyErr_Format(PyExc_TypeError, "identify must be callable, not %.100s",
                            Py_TYPE(config.identify)->tp_name);
    }
    int problem = thread_records_prepare_process();
    if (problem != 0) {
        errno = problem;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    while (installed_config.variable != NULL) { /* other threads run at its end, and may install */
        publisher_uninstall();
    }
    config.ids = PyUnicode_InternFromString("_context");
    if (config.ids == NULL) {
        return NULL;
    }
    for (size_t i = 0; i < Py_ARRAY_LENGTH(config.all) - 1; i++) { /* the last one is owned */
        Py_INCREF(config.all[i]);
    }
    installed_config = config;
    PyObject *problems = hooks_install(config.variable, (switch_callbacks){on_switch, publisher_publish, is_shown});
    if (problems == NULL) {
        compat_exception failure = compat_save_exception();
        publisher_uninstall();
        compat_restore_exception(failure);
        return NULL;
    }
    return problems;
}

PyObject *publisher_begin(PyObject *module, PyObject *unused)
{
    if (installed_config.variable != NULL) { /* else another thread has uninstalled */
        hooks_begin();
    }
    Py_RETURN_NONE;
}
