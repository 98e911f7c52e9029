/* Records garbage collections. The collector calls `collections_handle_event` on the thread that it runs on.
 *
 * A program may have thousands of collections a second. So of each generation only one in a while is kept,
 * with the stack of its thread. It carries the number and duration of those since the previous one. The
 * collector calls us between its "start" and its "stop": no collection begins in here, and no Python code
 * runs.
 */
#include "py_compat.h"

#include "ticker_state.h"
#include "raw_fields.h"

#include <stdlib.h>

#define RING_SIZE 256
/* Places of the ring for slow collections only. Without them the next collection, perhaps on another thread,
 * would carry their time. */
#define SLOW_RESERVE 64
#define MIN_SLOW_NS  10000000LL

static void append_collection(ticker_state *ticker, int generation, int64_t now_ns)
{
    pending_collections *pending = &ticker->pending[generation];
    raw_collection kept = {
        .time_ns = time_of_day_ns(),
        .generation = generation,
        .count = pending->count,
        .duration_ns = pending->duration_ns,
    };
    if (ticker->collections == NULL) {
        ticker->collections = malloc(RING_SIZE * sizeof(raw_collection));
    }
    if (ticker->collections == NULL || !capture_calling_thread(ticker, &kept.thread)) {
        return; /* the next one carries its counts */
    }
    ticker->collections[(ticker->collections_first + ticker->collections_ready++) % RING_SIZE] = kept;
    *pending = (pending_collections){.last_recorded_ns = now_ns};
}

static void record_end(ticker_state *ticker, long generation)
{
    int64_t start_ns = ticker->collection_start_ns;
    ticker->collection_start_ns = 0;
    if (start_ns == 0 || generation < 0 || generation >= GENERATION_COUNT || ticker_state_is_ended(ticker)) {
        return;
    }
    int64_t now_ns = monotonic_ns();
    pending_collections *pending = &ticker->pending[generation];
    pending->count++;
    pending->duration_ns += now_ns - start_ns;
    size_t capacity = now_ns - start_ns < MIN_SLOW_NS ? RING_SIZE - SLOW_RESERVE : RING_SIZE;
    if (ticker->collections_ready < capacity
        && now_ns - pending->last_recorded_ns >= ticker->min_collection_interval_ns) {
        append_collection(ticker, (int)generation, now_ns);
    }
}

PyObject *collections_handle_event(ticker_state *ticker, PyObject *phase, PyObject *info)
{
    if (PyUnicode_CompareWithASCIIString(phase, "start") == 0) {
        ticker->collection_start_ns = monotonic_ns();
    }
    else if (ticker->generation_key != NULL) {
        PyObject *number = PyDict_GetItemWithError(info, ticker->generation_key); /* borrowed */
        long generation = number == NULL ? -1 : PyLong_AsLong(number);
        if (PyErr_Occurred()) {
            return NULL;
        }
        record_end(ticker, generation);
    }
    Py_RETURN_NONE;
}

bool collections_pop(ticker_state *ticker, raw_collection *taken)
{
    if (ticker->collections_ready == 0) {
        return false;
    }
    *taken = ticker->collections[ticker->collections_first];
    ticker->collections_first = (ticker->collections_first + 1) % RING_SIZE;
    ticker->collections_ready--;
    return true;
}

int collections_traverse(ticker_state *ticker, visitproc visit, void *arg)
{
    for (size_t i = 0; i < ticker->collections_ready; i++) {
        const raw_collection *kept = &ticker->collections[(ticker->collections_first + i) % RING_SIZE];
        Py_VISIT(kept->thread.context);
        Py_VISIT(kept->thread.labels);
        Py_VISIT(kept->thread.python_thread);
    }
    return 0;
}

/* Return a new reference. */
static PyObject *convert_collection(ticker_state *ticker, const value_types *types, const raw_collection *raw)
{
    PyObject *thread = convert_thread(ticker, types, &raw->thread);
    if (thread == NULL) {
        return NULL;
    }
    PyObject *items[] = {
        [COLLECTION_time_ns] = PyLong_FromLongLong(raw->time_ns),
        [COLLECTION_thread] = thread,
        [COLLECTION_generation] = PyLong_FromLong(raw->generation),
        [COLLECTION_collection_count] = PyLong_FromUnsignedLongLong(raw->count),
        [COLLECTION_duration_ns] = PyLong_FromLongLong(raw->duration_ns),
    };
    return make_tuple(types->raw_collection, items, COLLECTION_FIELD_COUNT);
}

PyObject *collections_drain(ticker_state *ticker, const value_types *types)
{
    raw_collection taken;
    ticker_state_free_unreferenced(ticker);
    PyObject *drained = PyList_New(0);
    /* Collections that arrive meanwhile are for the next drain. */
    for (size_t left = ticker->collections_ready; drained != NULL && left > 0 && collections_pop(ticker, &taken);
         left--) {
        PyObject *made = convert_collection(ticker, types, &taken);
        bool failed = made == NULL || PyList_Append(drained, made) != 0;
        compat_exception pending = compat_save_exception(); /* finalisers run below */
        if (failed) {
            Py_CLEAR(drained);
        }
        Py_XDECREF(made);
        thread_release(ticker, &taken.thread);
        compat_restore_exception(pending);
    }
    compat_exception pending = compat_save_exception();
    ticker_state_free_unreferenced(ticker);
    compat_restore_exception(pending);
    return drained;
}
