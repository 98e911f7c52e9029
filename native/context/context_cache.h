/* What contexts that were met before show, so that coming back to one costs no look-up. context_cache.c says when that
 * may be believed. All of it expects the GIL to be held; nothing here runs Python code or leaves an exception.
 */
#ifndef SPLUNK_PROFILER_CONTEXT_CONTEXT_CACHE_H
#define SPLUNK_PROFILER_CONTEXT_CONTEXT_CACHE_H

#include "py_compat.h"

#include "publisher.h"

typedef struct {
    const encoded_span *span;     /* NULL: none */
    const encoded_labels *labels; /* NULL: none */
} cached_context;

/* What a context shows; borrowed until the next call of the other functions here. False: it has to be looked up. `context`
 * is a thread's current one, NULL where that has none. */
HIDDEN bool context_cache_find(PyObject *context, cached_context *cached);

/* A thread has come to a context with these variables (NULL: to none), and this is what it shows as long as it has them.
 * It is kept from the second time on. */
HIDDEN void context_cache_offer(compat_variables *variables, Identity *identity, UserLabels *labels);

/* Nothing is known any more. */
HIDDEN void context_cache_clear(void);

#endif
