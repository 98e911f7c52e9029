/* The capture of suspended asyncio tasks. GIL held. */
#ifndef SPLUNK_PROFILER_WALKER_TASKS_H
#define SPLUNK_PROFILER_WALKER_TASKS_H

#include "ticker_state.h"

/* A running event loop and its thread, of which the stack is not read. */
typedef struct {
    PyObject *loop; /* borrowed: valid until Python code runs */
    scratch_thread thread;
} running_loop;

#define MAX_LOOPS 64

#pragma GCC visibility push(hidden)

/* walk.c: list the running loops; return their number, 0 without the head lock. */
size_t walk_loops(ticker_state *ticker, running_loop loops[MAX_LOOPS]);

/* tasks.c. Return true if this was built for the layouts of the running CPython: `loop` is found as the running loop of
 * the calling thread, and `generator` as suspended at this place. Only compares what it finds. */
bool tasks_layouts_agree(ticker_state *ticker, PyObject *loop, PyObject *generator, PyObject *code, int offset);
/* New references, or NULL with an exception. Need layouts that agree. */
PyObject *tasks_running_loops(ticker_state *ticker);
PyObject *tasks_capture(ticker_state *ticker, const module_state *module, PyObject *tasks, PyTypeObject *task_type,
                        size_t limit);

#pragma GCC visibility pop

#endif
