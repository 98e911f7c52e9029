/* Queues of events for the next drain: what has happened on a thread, with references that only a drain may release. */
#include "public_compat.h"

#include "events.h"

#include <stdlib.h>

void events_append(ticker_state *ticker, event_kind kind, raw_event *event)
{
    event_queue *queue = &ticker->events[kind];
    event->next = NULL;
    *(queue->oldest == NULL ? &queue->oldest : queue->end) = event;
    queue->end = &event->next;
    queue->count++;
}

void event_free(ticker_state *ticker, raw_event *event)
{
    thread_release(ticker, &event->thread);
    compat_exception pending = compat_save_exception();
    for (int i = 0; i < EVENT_DETAILS; i++) {
        Py_XDECREF(event->details[i]);
    }
    compat_restore_exception(pending);
    free(event);
}

static raw_event *pop_oldest(event_queue *queue)
{
    raw_event *taken = queue->oldest;
    if (taken != NULL) {
        queue->oldest = taken->next;
        queue->count--;
    }
    return taken;
}

/* Return a new reference. */
static PyObject *convert_event(ticker_state *ticker, const module_state *module, const raw_event *event)
{
    PyObject *thread = convert_thread(ticker, module, &event->thread);
    if (thread == NULL) {
        return NULL;
    }
    PyObject *first = event->details[0], *second = event->details[1];
    PyObject *items[] = {
        [EVENT_time_ns] = PyLong_FromLongLong(event->time_ns),
        [EVENT_thread] = thread,
        [EVENT_event_count] = PyLong_FromUnsignedLongLong(event->count),
        [EVENT_event_amount] = PyLong_FromUnsignedLongLong(event->amount),
        [EVENT_live_id] = PyLong_FromUnsignedLongLong(event->live_id),
        [EVENT_details] = PyTuple_Pack(EVENT_DETAILS, first ? first : Py_None, second ? second : Py_None),
    };
    return make_tuple(module->types[RECORDED_EVENT], items, EVENT_FIELD_COUNT);
}

PyObject *events_drain(ticker_state *ticker, const module_state *module, event_kind kind)
{
    event_queue *queue = &ticker->events[kind];
    size_t left = queue->count; /* those that arrive from now on are for the next drain */
    ticker_state_free_unreferenced(ticker);
    PyObject *drained = PyList_New(0);
    for (; drained != NULL && left > 0; left--) {
        raw_event *taken = pop_oldest(queue);
        if (taken == NULL) {
            break; /* another drain took it meanwhile */
        }
        if (!taken->is_dropped) {
            (void)append_item(&drained, convert_event(ticker, module, taken));
        }
        event_free(ticker, taken);
    }
    ticker_state_free_unreferenced(ticker);
    return drained;
}

void events_release_all(ticker_state *ticker)
{
    for (int kind = 0; kind < EVENT_KIND_COUNT; kind++) {
        for (raw_event *taken; (taken = pop_oldest(&ticker->events[kind])) != NULL;) {
            event_free(ticker, taken);
        }
    }
}

int event_traverse(const raw_event *event, visitproc visit, void *arg)
{
    for (int i = 0; i < EVENT_DETAILS; i++) {
        Py_VISIT(event->details[i]);
    }
    return thread_traverse(&event->thread, visit, arg);
}

int events_traverse_all(const ticker_state *ticker, visitproc visit, void *arg)
{
    int stop = 0;
    for (int kind = 0; kind < EVENT_KIND_COUNT && stop == 0; kind++) {
        for (const raw_event *each = ticker->events[kind].oldest; each != NULL && stop == 0; each = each->next) {
            stop = event_traverse(each, visit, arg);
        }
    }
    return stop;
}
