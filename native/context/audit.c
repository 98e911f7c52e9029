/* Compares what all threads show with their contexts, in one hold of the GIL, and repairs differences.
 *
 * Three steps. First, each thread's context is taken under the runtime's head lock. Then the context to show
 * is looked up without running Python code. Then the records are compared and repaired, under their mutex.
 * The GIL is held throughout, so no thread can switch. References are released at the end, which may run
 * finalisers.
 */
#include "py_compat.h"

#include "context_cache.h"
#include "publisher.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    unsigned long ident;
    PyObject *context;  /* owned: from contextvars; NULL: none */
    PyObject *value;    /* owned: value of OpenTelemetry's variable; NULL: none */
    Identity *identity; /* owned, or NULL */
    UserLabels *labels; /* owned, or NULL */
    bool is_resolved;   /* identity and labels are those to show */
} audited_thread;

typedef struct {
    audited_thread *threads;
    size_t count, capacity;
} audited_threads;

/* Return false if there is no room. Head lock held: allocates nothing and releases nothing. */
static bool copy_contexts(PyInterpreterState *interp, audited_threads *audited)
{
    for (PyThreadState *state = compat_first_thread(interp); state != NULL; state = state->next) {
        if (compat_is_ending(state)) {
            continue;
        }
        if (audited->count == audited->capacity) {
            return false;
        }
        audited->threads[audited->count++] =
            (audited_thread){.ident = state->thread_id, .context = Py_XNewRef(state->context)};
    }
    return true;
}

static void release_threads(audited_threads *audited)
{
    for (size_t i = 0; i < audited->count; i++) {
        Py_XDECREF(audited->threads[i].identity);
        Py_XDECREF(audited->threads[i].labels);
        Py_XDECREF(audited->threads[i].value);
        Py_XDECREF(audited->threads[i].context);
    }
    audited->count = 0;
}

/* Return 1; 0: the lock is busy, try later; -1: no memory. */
static int collect_contexts(audited_threads *audited)
{
    PyInterpreterState *interp = PyInterpreterState_Get();
    for (;;) {
        if (!compat_lock_head()) {
            return 0;
        }
        bool is_complete = copy_contexts(interp, audited);
        compat_unlock_head();
        if (is_complete) {
            return 1;
        }
        release_threads(audited);
        size_t capacity = audited->capacity == 0 ? 64 : 2 * audited->capacity;
        audited_thread *grown = realloc(audited->threads, capacity * sizeof(audited_thread));
        if (grown == NULL) {
            return -1;
        }
        audited->threads = grown;
        audited->capacity = capacity;
    }
}

/* A type with attribute access in Python cannot be asked here, since no Python code may run. */
static bool is_identity_cached(const publisher_config *config, PyObject *span, Identity **identity)
{
    if (Py_TYPE(span)->tp_getattro != PyObject_GenericGetAttr) {
        return false;
    }
    lookup_result found = spans_cached_identity(config, span, identity);
    if (found == UNKNOWN) {
        PyErr_Clear();
    }
    return found == FOUND;
}

static void resolve_thread(const publisher_config *config, audited_thread *thread)
{
    PyThreadState *self = PyThreadState_Get();
    thread->value = compat_context_value(self, thread->context, config->variable);
    PyObject *span = spans_find(config, thread->value);
    thread->is_resolved = span == NULL || is_identity_cached(config, span, &thread->identity);
    if (publisher_has_labels()) {
        PyObject *labels = compat_context_value(self, thread->context, config->labels);
        if (labels != NULL && (Py_TYPE(labels) != config->user_labels_type || Py_SIZE(labels) == 0)) {
            Py_CLEAR(labels);
        }
        thread->labels = (UserLabels *)labels;
    }
}

/* Fill `expected`, sorted by ident. Leave out unresolved contexts, and idents that belong to two thread
 * states. */
static size_t expected_contexts(const audited_threads *audited, expected_context *expected)
{
    size_t kept = 0;
    for (size_t i = 0; i < audited->count; i++) {
        const audited_thread *thread = &audited->threads[i];
        expected[i] = (expected_context){
            thread->ident,
            thread->identity == NULL ? NULL : &thread->identity->bytes,
            thread->labels == NULL ? NULL : &thread->labels->bytes,
            thread->is_resolved,
        };
    }
    qsort(expected, audited->count, sizeof(expected_context), expected_context_compare);
    for (size_t i = 0; i < audited->count; i++) {
        bool is_duplicate = (i > 0 && expected[i - 1].ident == expected[i].ident)
                            || (i + 1 < audited->count && expected[i + 1].ident == expected[i].ident);
        expected[i].is_resolved = expected[i].is_resolved && !is_duplicate;
    }
    for (size_t i = 0; i < audited->count; i++) {
        if (expected[i].is_resolved) {
            expected[kept++] = expected[i];
        }
    }
    return kept;
}

PyObject *audit(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    const publisher_config *config = publisher_active_config();
    audited_threads audited = {NULL, 0, 0};
    expected_context *expected = NULL;
    size_t compared = 0, repaired = 0;
    int result = config == NULL || thread_records_count() == 0 ? 0 : collect_contexts(&audited);
    if (result > 0 && audited.count > 0) {
        expected = malloc(audited.count * sizeof(expected_context));
        result = expected == NULL ? -1 : 1;
    }
    if (result > 0 && audited.count > 0) {
        for (size_t i = 0; i < audited.count; i++) {
            resolve_thread(config, &audited.threads[i]);
        }
        compared = thread_records_repair(expected, expected_contexts(&audited, expected), &repaired);
        publisher_counters()->repaired += repaired;
        if (repaired > 0) { /* a wrong entry of the cache may be the cause */
            context_cache_clear();
        }
    }
    free(expected);
    release_threads(&audited); /* may run Python code */
    free(audited.threads);
    return result < 0 ? PyErr_NoMemory() : Py_BuildValue("(nn)", (Py_ssize_t)compared, (Py_ssize_t)repaired);
}
