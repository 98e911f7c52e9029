/* The capture of threads that hold locks for which others wait. GIL held. */
#ifndef SPLUNK_PROFILER_WALKER_LOCK_HOLDERS_H
#define SPLUNK_PROFILER_WALKER_LOCK_HOLDERS_H

#include "ticker_state.h"

/* A thread and its newest complete frame. It stays what it is while the GIL is held. */
typedef struct {
    uint64_t key;
    unsigned long ident;
    void *frame;
} thread_top;

#pragma GCC visibility push(hidden)

/* walk.c */
size_t walk_tops(ticker_state *ticker, thread_top *tops, size_t capacity); /* the other threads, newest first */
/* Walk the threads with these keys, newest first, as walk_stacks does. */
bool walk_selected(ticker_state *ticker, const uint64_t *keys, size_t count);

/* lock_holders.c: the methods of Ticker with their arguments. New references, or NULL with an exception. */
PyObject *locks_layouts_match(PyObject *args); /* needs to be True before the next two are called */
PyObject *locks_entered_places(ticker_state *ticker);
PyObject *locks_capture_holders(ticker_state *ticker, const module_state *module, PyObject *args);

#pragma GCC visibility pop

#endif
