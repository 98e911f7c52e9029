/* The interfaces between the C files of splunk_profiler._context, apart from hooks.h and thread_records.h. All of it
 * expects the GIL to be held. Functions with a `module` argument are methods of the module.
 */
#ifndef SPLUNK_PROFILER_CONTEXT_PUBLISHER_H
#define SPLUNK_PROFILER_CONTEXT_PUBLISHER_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>

#include "thread_records.h"

/* module.c */
HIDDEN PyObject *module_identity_type(PyObject *module); /* borrowed; NULL: the module was cleared */

/* identities.c */
/* The published form of one span. Immutable. */
typedef struct {
    PyObject_HEAD
    encoded_span bytes;
} Identity;

/* The published form of one set of user labels. Immutable. */
typedef struct {
    PyObject_VAR_HEAD
    encoded_labels bytes; /* refers to `labels` below */
    encoded_label labels[];
} UserLabels;

HIDDEN extern PyType_Spec identity_spec;
HIDDEN extern PyType_Spec user_labels_spec;
/* Make one from an encoded_span without serial and hex text. New reference. */
HIDDEN Identity *identity_new(PyTypeObject *type, const encoded_span *ids);
HIDDEN bool is_identity(PyObject *object);
/* Return a context's value for the user's labels if it is labels; else release it and return NULL. Steals the
 * reference, which may be NULL. */
HIDDEN UserLabels *take_user_labels(PyObject *value);
HIDDEN extern bool user_labels_exist; /* false: no context needs to be searched for labels */

/* publisher.c: the arguments of install and a name, borrowed from the publisher. */
typedef union {
    struct {
        PyObject *variable;     /* OpenTelemetry's ContextVar */
        PyObject *span_key;     /* key of the span in a Context */
        PyObject *labels;       /* the ContextVar of UserLabels */
        PyObject *attribute;    /* of a span, with its Identity, or None for a span that has none */
        PyObject *identify;     /* the callable that makes an Identity */
        PyObject *context_type; /* an instance of exactly this type never changes */
        PyObject *ids;          /* the attribute of the SDK's spans with their SpanContext */
    };
    PyObject *all[7];
} publisher_config;

HIDDEN PyObject *publisher_install(PyObject *module, PyObject *args);
HIDDEN PyObject *publisher_begin(PyObject *module, PyObject *unused);
HIDDEN void publisher_uninstall(void);
HIDDEN const publisher_config *publisher_active_config(void); /* NULL: nothing is shown in this interpreter */
HIDDEN void publisher_publish(void); /* show the calling thread's current context; never raises */

HIDDEN extern unsigned long long publisher_counters[COUNTER_COUNT];

/* context_cache.c: what known contexts show, so that returning to one costs no look-up. It says when an entry is
 * valid. No function runs Python code or leaves an exception. */
typedef struct {
    const encoded_span *span;     /* NULL: none */
    const encoded_labels *labels; /* NULL: none */
} cached_context;
/* Find what a context shows; borrowed until the next call of the other functions here. Return false if it
 * must be looked up. `context` is a thread's current one; NULL: none. */
HIDDEN bool context_cache_find(PyObject *context, cached_context *cached);
/* Offer what a thread shows in a context with these variables (NULL: no context). An entry is made from the
 * second offer on. */
HIDDEN void context_cache_offer(PyObject *mapping, Identity *identity, UserLabels *labels);
HIDDEN void context_cache_clear(void);

/* exceptions.c: discard the pending exception, where none may propagate. Those that are not errors are deferred. */
HIDDEN void discard_exception(void);
/* Raise the pending exception again as soon as the application's code runs on this thread. It is the application's:
 * a signal handler may raise during our Python code, or another thread send an exception. */
HIDDEN void defer_exception(void);

/* spans.c */
typedef enum { UNKNOWN = -1, MISSING, FOUND } lookup_result;
/* Return the span in a value of OpenTelemetry's variable, borrowed; NULL: none. Leaves no exception. */
HIDDEN PyObject *spans_find(const publisher_config *config, PyObject *context);
/* Find the identity cached on a span: a new reference, or NULL if it is known to have none. UNKNOWN: another
 * object is cached, or an exception is pending. */
HIDDEN lookup_result spans_cached_identity(const publisher_config *config, PyObject *span, Identity **identity);
/* Identify a span without a cached identity, by a Python call. Afterwards the context may be another, and the publisher
 * uninstalled. Leaves no exception. */
HIDDEN void spans_identify(const publisher_config *config, PyObject *span, Identity **identity);
HIDDEN void spans_forget_roots(void);
HIDDEN PyObject *spans_known_local_root(PyObject *module, PyObject *trace_id);
HIDDEN PyObject *spans_assign_identity(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names);

/* audit.c */
HIDDEN PyObject *audit(PyObject *module, PyObject *unused);

/* libraries.c */
HIDDEN PyObject *libraries_wait_for_linker(PyObject *module, PyObject *unused);
HIDDEN PyObject *libraries_load_labels(PyObject *module, PyObject *path);
HIDDEN PyObject *libraries_load_elastic(PyObject *module, PyObject *args);
HIDDEN PyObject *libraries_replace_storage(PyObject *module, PyObject *content);
HIDDEN PyObject *libraries_clear_storage(PyObject *module, PyObject *unused);

/* grpc_forks.c */
HIDDEN PyObject *grpc_forks_keep_handlers(PyObject *module, PyObject *unused);
HIDDEN PyObject *grpc_forks_drop_handlers(PyObject *module, PyObject *unused);
HIDDEN PyObject *grpc_forks_is_left_out(PyObject *module, PyObject *unused);

/* socket_reader.c */
HIDDEN extern PyType_Spec socket_reader_spec;

#endif
