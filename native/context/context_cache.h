/* A cache of what known contexts show, so that returning to one costs no look-up. context_cache.c says when
 * an entry is valid. Every function expects the GIL; none runs Python code or leaves an exception. */
#ifndef SPLUNK_PROFILER_CONTEXT_CONTEXT_CACHE_H
#define SPLUNK_PROFILER_CONTEXT_CONTEXT_CACHE_H

#include "py_compat.h"

#include "publisher.h"

typedef struct {
    const encoded_span *span;     /* NULL: none */
    const encoded_labels *labels; /* NULL: none */
} cached_context;

/* Find what a context shows; borrowed until the next call of the other functions here. Return false if it
 * must be looked up. `context` is a thread's current one; NULL: none. */
HIDDEN bool context_cache_find(PyObject *context, cached_context *cached);

/* Offer what a thread shows in a context with these variables (NULL: no context). An entry is made from the
 * second offer on. */
HIDDEN void context_cache_offer(compat_variables *variables, Identity *identity, UserLabels *labels);

/* Remove all entries. */
HIDDEN void context_cache_clear(void);

#endif
