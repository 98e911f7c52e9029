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
    for (int i = 0; i < EVENT_OBJECTS; i++) {
        Py_XDECREF(event->objects[i]);
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

PyObject *events_drain(ticker_state *ticker, const module_state *module, event_kind kind, event_converter convert)
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
            PyObject *thread = convert_thread(ticker, module, &taken->thread);
            (void)append_item(&drained, thread == NULL ? NULL : convert(module, taken, thread));
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
    for (int i = 0; i < EVENT_OBJECTS; i++) {
        Py_VISIT(event->objects[i]);
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
