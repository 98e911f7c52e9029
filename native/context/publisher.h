/* The publisher of contexts, shared by the C files of splunk_profiler._context. All of it expects the GIL to
 * be held.
 *
 * publisher.c reads the calling thread's context and shows it; context_cache.c caches the results; audit.c checks
 * all threads; spans.c finds the identities of spans; identities.c has the published types; libraries.c loads the
 * libraries for readers; thread_records.c owns the memory that they read; hooks.h notices context changes.
 */
#ifndef SPLUNK_PROFILER_CONTEXT_PUBLISHER_H
#define SPLUNK_PROFILER_CONTEXT_PUBLISHER_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>

#include "thread_records.h"

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

/* identities.c */
HIDDEN extern PyType_Spec identity_spec;
HIDDEN extern PyType_Spec user_labels_spec;
/* Make one from an encoded_span without serial and hex text. New reference. */
HIDDEN Identity *identity_new(PyTypeObject *type, const encoded_span *ids);
/* Begin a call of `identify`, for the calling greenlet, or the thread if there are none. NULL: it is in a
 * call already, or there is no memory; then do not identify spans. May run Python; leaves no exception. */
typedef struct identify_call identify_call;
HIDDEN identify_call *identify_call_begin(void);
HIDDEN void identify_call_end(identify_call *ended);
/* A method of the module: for `identify`, the local root that was current before, if it belongs to this trace. */
HIDDEN PyObject *identity_previous_local_root(PyObject *module, PyObject *trace_id);

/* publisher.c: the arguments of install, borrowed from the publisher. */
typedef struct {
    PyObject *variable; /* OpenTelemetry's ContextVar */
    PyObject *span_key; /* key of the span in a Context */
    PyObject *labels;   /* the ContextVar of UserLabels */
    /* Attribute of a span with its Identity, or None for a span that has none. */
    PyObject *attribute;
    PyObject *identify;          /* the callable that makes an Identity */
    PyTypeObject *context_type;  /* an instance of exactly this type never changes */
    PyTypeObject *identity_type; /* only exactly this type is accepted */
    PyTypeObject *user_labels_type;
} publisher_config;

HIDDEN PyObject *publisher_install(const publisher_config *config); /* list of (hook name, problem) */
HIDDEN void publisher_uninstall(void);
HIDDEN void publisher_finalize(void);                         /* the interpreter ends: release all its objects */
HIDDEN const publisher_config *publisher_active_config(void); /* NULL: not installed in this interpreter */
HIDDEN void publisher_publish(void); /* show the calling thread's current context; never raises */
HIDDEN uint64_t publisher_next_serial(void);
HIDDEN void publisher_enable_labels(void); /* from now on contexts are searched for labels */
HIDDEN bool publisher_has_labels(void);

typedef struct {
    unsigned long long published, unchanged, repaired, failed;
    unsigned long long cache_hits; /* those of the first two without a look-up */
} publisher_counts;
HIDDEN publisher_counts *publisher_counters(void);

/* spans.c */
typedef enum { UNKNOWN = -1, MISSING, FOUND } lookup_result;
/* Return the span in a value of OpenTelemetry's variable, borrowed; NULL: none. Leaves no exception. */
HIDDEN PyObject *spans_find(const publisher_config *config, PyObject *context);
/* Find the identity cached on a span: a new reference, or NULL if it is known to have none. UNKNOWN: another
 * object is cached, or an exception is pending. */
HIDDEN lookup_result spans_cached_identity(const publisher_config *config, PyObject *span, Identity **identity);
/* Identify a span without a cached identity, by a Python call. Return FOUND, or UNKNOWN on failure. Afterwards the
 * context may be another, and the publisher uninstalled. Leaves no exception. */
HIDDEN lookup_result spans_identify(const publisher_config *config, PyObject *span, Identity **identity);
HIDDEN PyObject *spans_assign_identity(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names);
HIDDEN bool spans_prepare(void);  /* called at each install; false with an exception */
HIDDEN void spans_finalize(void); /* the interpreter ends: release all its objects */

/* exceptions.c: discard the pending exception, where none may propagate. Those that are not errors are raised
 * again later. */
HIDDEN void discard_exception(void);

/* audit.c */
HIDDEN PyObject *audit(PyObject *module, PyObject *unused);

/* libraries.c: methods of the module. The module's state has the type of their results. */
HIDDEN PyObject *libraries_load_labels(PyTypeObject *library, PyObject *path);
HIDDEN PyObject *libraries_load_elastic(PyTypeObject *library, PyObject *path, PyObject *storage);
HIDDEN PyObject *libraries_replace_storage(PyObject *module, PyObject *storage);
HIDDEN PyObject *libraries_clear_storage(PyObject *module, PyObject *unused);

#endif
