/* events.c: what has happened on a thread, in queues for the next drain. GIL held. */
#ifndef SPLUNK_PROFILER_WALKER_EVENTS_H
#define SPLUNK_PROFILER_WALKER_EVENTS_H

#include "ticker_state.h"

#pragma GCC visibility push(hidden)

void events_append(ticker_state *ticker, event_kind kind, raw_event *event); /* which is of malloc */
/* Return the events of a kind, oldest first, and release their references. */
PyObject *events_drain(ticker_state *ticker, const module_state *module, event_kind kind);
void event_free(ticker_state *ticker, raw_event *event); /* may run Python code, as the next one may */
void events_release_all(ticker_state *ticker);
int event_traverse(const raw_event *event, visitproc visit, void *arg);
int events_traverse_all(const ticker_state *ticker, visitproc visit, void *arg);

#pragma GCC visibility pop

#endif
