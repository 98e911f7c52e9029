/* Compares what all threads show with what their contexts are, in one hold of the GIL, and repairs what differs.
 *
 * Three steps. Under the runtime's head lock each thread's context is taken. Then it is looked up what should be shown of
 * it, by look-ups that run no Python code. Then, under the mutex of the records, it is compared and repaired. The GIL is
 * not given up in between, so no thread can switch. References are given up at the end: that may run finalisers.
 */
#include "py_compat.h"

#include "context_compat.h"
#include "context_cache.h"
#include "publisher.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    unsigned long ident;
    PyObject *context;  /* owned: as contextvars has it; NULL: none */
    PyObject *value;    /* owned: of OpenTelemetry's variable; NULL: none */
    Identity *identity; /* owned, or NULL */
    UserLabels *labels; /* owned, or NULL */
    bool known;         /* the two are what should be shown */
} audited_thread;

typedef struct {
    audited_thread *threads;
    size_t count, room;
} audited_threads;

/* False: no room. Head lock held: nothing is allocated and nothing given up. */
static bool take_contexts(PyInterpreterState *interp, audited_threads *taken)
{
    for (PyThreadState *state = compat_first_thread(interp); state != NULL; state = state->next) {
        if (compat_is_ending(state)) {
            continue;
        }
        if (taken->count == taken->room) {
            return false;
        }
        taken->threads[taken->count++] =
            (audited_thread){.ident = state->thread_id, .context = Py_XNewRef(state->context)};
    }
    return true;
}

static void give_up(audited_threads *taken)
{
    for (size_t i = 0; i < taken->count; i++) {
        Py_XDECREF(taken->threads[i].identity);
        Py_XDECREF(taken->threads[i].labels);
        Py_XDECREF(taken->threads[i].value);
        Py_XDECREF(taken->threads[i].context);
    }
    taken->count = 0;
}

/* 1; 0: another time, the lock is busy; -1: no memory. */
static int take_all_contexts(audited_threads *taken)
{
    PyInterpreterState *interp = PyInterpreterState_Get();
    for (;;) {
        if (!compat_lock_head()) {
            return 0;
        }
        bool all = take_contexts(interp, taken);
        compat_unlock_head();
        if (all) {
            return 1;
        }
        give_up(taken);
        size_t room = taken->room == 0 ? 64 : 2 * taken->room;
        audited_thread *grown = realloc(taken->threads, room * sizeof(audited_thread));
        if (grown == NULL) {
            return -1;
        }
        taken->threads = grown;
        taken->room = room;
    }
}

/* A type that looks its attributes up in Python cannot be asked here. */
static bool is_span_known(const publisher_inputs *inputs, PyObject *span, Identity **identity)
{
    if (Py_TYPE(span)->tp_getattro != PyObject_GenericGetAttr) {
        return false;
    }
    lookup found = publisher_cached_identity(inputs, span, identity);
    if (found == UNKNOWN) {
        PyErr_Clear();
    }
    return found == FOUND;
}

static void find_out(const publisher_inputs *inputs, audited_thread *thread)
{
    PyThreadState *self = PyThreadState_Get();
    thread->value = compat_context_value(self, thread->context, inputs->variable);
    PyObject *span = publisher_span_in(inputs, thread->value);
    thread->known = span == NULL || is_span_known(inputs, span, &thread->identity);
    if (publisher_may_have_labels()) {
        PyObject *labels = compat_context_value(self, thread->context, inputs->labels);
        if (labels != NULL && (Py_TYPE(labels) != inputs->user_labels_type || Py_SIZE(labels) == 0)) {
            Py_CLEAR(labels);
        }
        thread->labels = (UserLabels *)labels;
    }
}

static int by_ident(const void *left, const void *right)
{
    unsigned long one = ((const true_context *)left)->ident, other = ((const true_context *)right)->ident;
    return (one > other) - (one < other);
}

/* Sorted; without those that are not known, and without idents that stand for two thread states. */
static size_t true_contexts(const audited_threads *taken, true_context *truth)
{
    size_t kept = 0;
    for (size_t i = 0; i < taken->count; i++) {
        const audited_thread *thread = &taken->threads[i];
        truth[i] = (true_context){
            thread->ident,
            thread->identity == NULL ? NULL : &thread->identity->bytes,
            thread->labels == NULL ? NULL : &thread->labels->bytes,
            thread->known,
        };
    }
    qsort(truth, taken->count, sizeof(true_context), by_ident);
    for (size_t i = 0; i < taken->count; i++) {
        bool twin = (i > 0 && truth[i - 1].ident == truth[i].ident)
                    || (i + 1 < taken->count && truth[i + 1].ident == truth[i].ident);
        truth[i].known = truth[i].known && !twin;
    }
    for (size_t i = 0; i < taken->count; i++) {
        if (truth[i].known) {
            truth[kept++] = truth[i];
        }
    }
    return kept;
}

PyObject *audit(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    const publisher_inputs *inputs = publisher_installed();
    audited_threads taken = {NULL, 0, 0};
    true_context *truth = NULL;
    size_t compared = 0, repaired = 0;
    int result = inputs == NULL || thread_records_count() == 0 ? 0 : take_all_contexts(&taken);
    if (result > 0 && taken.count > 0) {
        truth = malloc(taken.count * sizeof(true_context));
        result = truth == NULL ? -1 : 1;
    }
    if (result > 0 && taken.count > 0) {
        for (size_t i = 0; i < taken.count; i++) {
            find_out(inputs, &taken.threads[i]);
        }
        compared = thread_records_repair(truth, true_contexts(&taken, truth), &repaired);
        publisher_counters()->repaired += repaired;
        if (repaired > 0) { /* what was believed of a context may be why */
            known_contexts_forget();
        }
    }
    free(truth);
    give_up(&taken); /* may run Python code */
    free(taken.threads);
    return result < 0 ? PyErr_NoMemory() : Py_BuildValue("(nn)", (Py_ssize_t)compared, (Py_ssize_t)repaired);
}
