/* Records garbage collections. The collector calls `collections_handle_event` on the thread that it runs on.
 *
 * A program may have thousands of collections a second. So of each generation only one in a while is kept,
 * with the stack of its thread. It carries the number and duration of those since the previous one. The
 * collector calls us between its "start" and its "stop": no collection begins in here, and no Python code
 * runs.
 */
#include "py_compat.h"

#include "events.h"

#include <stdlib.h>

#define MAX_COLLECTIONS 256
/* Places for slow collections only. Without them the next collection, perhaps on another thread, would carry
 * their time. */
#define SLOW_RESERVE 64
#define MIN_SLOW_NS  10000000LL

static void append_collection(ticker_state *ticker, int generation, int64_t now_ns)
{
    pending_collections *pending = &ticker->collections.pending[generation];
    raw_event *kept = calloc(1, sizeof(raw_event));
    if (kept == NULL || !capture_calling_thread(ticker, &kept->thread, NULL)) {
        free(kept);
        return; /* the next one carries its counts */
    }
    kept->time_ns = clock_ns(CLOCK_REALTIME);
    kept->count = pending->count;
    kept->amount = (uint64_t)pending->duration_ns;
    kept->details[0] = PyLong_FromLong(generation); /* exists already: it is small */
    events_append(ticker, EVENT_COLLECTION, kept);
    *pending = (pending_collections){.last_recorded_ns = now_ns};
}

static void record_end(ticker_state *ticker, long generation)
{
    collection_log *log = &ticker->collections;
    int64_t start_ns = log->start_ns, now_ns = monotonic_ns();
    log->start_ns = 0;
    if (start_ns == 0 || generation < 0 || generation >= GENERATION_COUNT) {
        return;
    }
    pending_collections *pending = &log->pending[generation];
    pending->count++;
    pending->duration_ns += now_ns - start_ns;
    size_t capacity = now_ns - start_ns < MIN_SLOW_NS ? MAX_COLLECTIONS - SLOW_RESERVE : MAX_COLLECTIONS;
    if (ticker->events[EVENT_COLLECTION].count < capacity
        && now_ns - pending->last_recorded_ns >= ticker->arguments.min_collection_interval_ns) {
        append_collection(ticker, (int)generation, now_ns);
    }
}

bool collections_handle_event(ticker_state *ticker, PyObject *phase, PyObject *info)
{
    if (PyUnicode_CompareWithASCIIString(phase, "start") == 0) {
        ticker->collections.start_ns = monotonic_ns();
    }
    else if (!ticker_state_is_ended(ticker)) {
        PyObject *number = PyDict_GetItemWithError(info, ticker->names[NAME_GENERATION]); /* borrowed */
        long generation = number == NULL ? -1 : PyLong_AsLong(number);
        if (PyErr_Occurred()) {
            return false;
        }
        record_end(ticker, generation);
    }
    return true;
}
