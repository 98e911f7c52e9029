/* What contexts that were met before show, so that coming back to one costs no look-up. context_cache.c says when that
 * may be believed. All of it expects the GIL to be held; nothing here runs Python code or leaves an exception.
 */
#ifndef SPLUNK_PROFILER_KNOWN_CONTEXTS_H
#define SPLUNK_PROFILER_KNOWN_CONTEXTS_H

#include "py_compat.h"

#include "publisher.h"

typedef struct {
    const span_bytes *span;     /* NULL: none */
    const labels_bytes *labels; /* NULL: none */
} known_contents;

/* What a context shows; borrowed until the next call of the other functions here. False: it has to be looked up. `context`
 * is a thread's current one, NULL where that has none. */
HIDDEN bool known_context(PyObject *context, known_contents *shows);

/* A thread has come to a context with these variables (NULL: to none), and this is what it shows as long as it has them.
 * It is kept from the second time on. */
HIDDEN void known_context_met(compat_variables *variables, Identity *identity, UserLabels *labels);

/* Nothing is known any more. */
HIDDEN void known_contexts_forget(void);

#endif
