/* What publishes contexts, shared by the C files of splunk_profiler._context. All of it expects the GIL to be held.
 *
 * publisher.c finds out what the calling thread's context is and has it shown; context_cache.c remembers what that was;
 * audit.c does so for all threads;
 * identities.c has the two types of what is published; libraries.c loads what readers look for; thread_records.c owns the
 * memory they read; hooks.h is where changes of context are noticed.
 */
#ifndef SPLUNK_PROFILER_CONTEXT_PUBLISHER_H
#define SPLUNK_PROFILER_CONTEXT_PUBLISHER_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>

#include "thread_records.h"

/* What is published of one span. Immutable. */
typedef struct {
    PyObject_HEAD
    encoded_span bytes;
} Identity;

/* What is published of one set of labels of the user. Immutable. */
typedef struct {
    PyObject_VAR_HEAD
    encoded_labels bytes; /* its labels are those below */
    encoded_label labels[];
} UserLabels;

/* identities.c */
HIDDEN extern PyType_Spec identity_spec;
HIDDEN extern PyType_Spec user_labels_spec;
/* From encoded_span without serial and hex text. New reference. */
HIDDEN Identity *identity_new(PyTypeObject *type, const encoded_span *ids);
/* A call of `identify` by the calling greenlet, or by the thread where there are none. NULL: it is in one already, or there
 * is no memory; then spans are not asked about. May run Python; leaves no exception. */
typedef struct identify_call identify_call;
HIDDEN identify_call *identify_call_begin(void);
HIDDEN void identify_call_end(identify_call *ended);
/* A method of the module: for `identify`, the local root of what was current before, if that was of this trace. */
HIDDEN PyObject *identity_previous_local_root(PyObject *module, PyObject *trace_id);

/* publisher.c: what Python gave to install, all borrowed from the publisher. */
typedef struct {
    PyObject *variable;          /* OpenTelemetry's ContextVar */
    PyObject *span_key;          /* under which a Context has its span */
    PyObject *labels;            /* the ContextVar of UserLabels */
    PyObject *attribute;         /* under which a span has its Identity, or None for a span that has none */
    PyObject *identify;          /* makes it */
    PyTypeObject *context_type;  /* an instance of exactly this type never changes */
    PyTypeObject *identity_type; /* exactly this type counts */
    PyTypeObject *user_labels_type;
} publisher_config;

HIDDEN PyObject *publisher_install(const publisher_config *config); /* list of (hook name, problem) */
HIDDEN void publisher_uninstall(void);
HIDDEN void publisher_finalize(void);                         /* the interpreter ends: no object of it is kept */
HIDDEN const publisher_config *publisher_active_config(void); /* NULL: not installed in this interpreter */
HIDDEN void publisher_publish(void); /* the calling thread's context as it is now; never raises */
HIDDEN PyObject *publisher_assign_identity(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names);
HIDDEN uint64_t publisher_next_serial(void);
HIDDEN void publisher_enable_labels(void); /* from now on contexts are asked for labels */
HIDDEN bool publisher_has_labels(void);

typedef enum { UNKNOWN = -1, MISSING, FOUND } lookup_result;

/* The span in a value of OpenTelemetry's variable, borrowed; NULL: none. Leaves no exception. */
HIDDEN PyObject *publisher_span_in(const publisher_config *config, PyObject *context);
/* The identity cached on a span, new reference, NULL if it is known to have none. UNKNOWN: something else is there, or an
 * exception is pending. */
HIDDEN lookup_result publisher_cached_identity(const publisher_config *config, PyObject *span, Identity **identity);

typedef struct {
    unsigned long long published, unchanged, repaired, failed;
    unsigned long long cache_hits; /* of the first two: nothing had to be looked up */
} publisher_counts;
HIDDEN publisher_counts *publisher_counters(void);

/* exceptions.c: the pending exception was raised where none may leave. Those that are not errors are raised again later. */
HIDDEN void discard_exception(void);

/* audit.c */
HIDDEN PyObject *audit(PyObject *module, PyObject *unused);

/* libraries.c: methods of the module. The type of what they return is in the module's state. */
HIDDEN PyObject *libraries_load_labels(PyTypeObject *library, PyObject *path);
HIDDEN PyObject *libraries_load_elastic(PyTypeObject *library, PyObject *path, PyObject *storage);
HIDDEN PyObject *libraries_replace_storage(PyObject *module, PyObject *storage);
HIDDEN PyObject *libraries_clear_storage(PyObject *module, PyObject *unused);

#endif
