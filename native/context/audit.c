/* Compares what all threads show with their contexts, in one hold of the GIL, and repairs differences.
 *
 * Three steps. First, each thread's context is taken under the runtime's head lock. Then the context to show
 * is looked up without running Python code. Then the records are compared and repaired, under their mutex.
 * The GIL is held throughout, so no thread can switch. References are released at the end, which may run
 * finalisers.
 */
#include "py_compat.h"

#include "publisher.h"

#include <stdlib.h>

typedef struct {
    expected_context expected; /* refers to identity and labels */
    PyObject *context;         /* owned: from contextvars; NULL: none */
    PyObject *value;           /* owned: value of OpenTelemetry's variable; NULL: none */
    Identity *identity;        /* owned, or NULL */
    UserLabels *labels;        /* owned, or NULL */
} audited_thread;

typedef struct {
    audited_thread *threads;
    size_t count, capacity;
} audited_threads;

/* Return true if the thread is starting, ending or could not be started. Before 3.12 its state has the ident of the
 * thread that starts it, and a failed start leaves the state listed for ever. */
static bool has_no_context(const PyThreadState *state)
{
    compat_frame *const *slot = compat_frame_slot(state);
    return compat_is_ending(state) || (state->context == NULL && (slot == NULL || *slot == NULL));
}

/* Return false if there is no room. Head lock held: allocates nothing and releases nothing. */
static bool copy_contexts(PyInterpreterState *interp, audited_threads *audited)
{
    for (PyThreadState *state = compat_first_thread(interp); state != NULL; state = state->next) {
        if (has_no_context(state)) {
            continue;
        }
        if (audited->count == audited->capacity) {
            return false;
        }
        audited->threads[audited->count++] =
            (audited_thread){.expected.ident = state->thread_id, .context = Py_XNewRef(state->context)};
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
    expected_context *expected = &thread->expected;
    thread->value = compat_context_value(self, thread->context, config->variable);
    PyObject *span = spans_find(config, thread->value);
    expected->is_resolved = span == NULL || is_identity_cached(config, span, &thread->identity);
    if (user_labels_exist) {
        thread->labels = take_user_labels(compat_context_value(self, thread->context, config->labels));
    }
    expected->span = thread->identity == NULL ? NULL : &thread->identity->bytes;
    expected->labels = thread->labels == NULL ? NULL : &thread->labels->bytes;
}

/* Sort by ident. An ident that belongs to two thread states is not resolved. */
static void sort_threads(audited_threads *audited)
{
    qsort(audited->threads, audited->count, sizeof(audited_thread), expected_context_compare);
    for (size_t i = 1; i < audited->count; i++) {
        expected_context *previous = &audited->threads[i - 1].expected, *next = &audited->threads[i].expected;
        if (previous->ident == next->ident) {
            previous->is_resolved = next->is_resolved = false;
        }
    }
}

PyObject *audit(PyObject *module, PyObject *unused)
{
    const publisher_config *config = publisher_active_config();
    audited_threads audited = {NULL, 0, 0};
    repair_result counts = {0, 0};
    int result = config == NULL || thread_records_count() == 0 ? 0 : collect_contexts(&audited);
    if (result > 0) {
        for (size_t i = 0; i < audited.count; i++) {
            resolve_thread(config, &audited.threads[i]);
        }
        sort_threads(&audited);
        counts = thread_records_repair(audited.threads, audited.count, sizeof(audited_thread));
        publisher_counters[REPAIRED] += counts.repaired;
        if (counts.repaired > 0) { /* a wrong entry of the cache may be the cause */
            context_cache_clear();
        }
    }
    release_threads(&audited); /* may run Python code */
    free(audited.threads);
    return result < 0 ? PyErr_NoMemory()
                      : Py_BuildValue("nn", (Py_ssize_t)counts.compared, (Py_ssize_t)counts.repaired);
}
