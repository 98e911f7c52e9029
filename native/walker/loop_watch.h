/* loop_watch.c: callbacks that hold their event loop for long. GIL held, unless it says otherwise. */
#ifndef SPLUNK_PROFILER_WALKER_LOOP_WATCH_H
#define SPLUNK_PROFILER_WALKER_LOOP_WATCH_H

#include "ticker_state.h"

#pragma GCC visibility push(hidden)

/* Look at the loops from now on. `current_tasks`: asyncio's dict of loops and their running tasks, or NULL where
 * thread states have these. False with an exception. */
bool loops_watch(ticker_state *ticker, int64_t threshold_ns, PyObject *current_tasks, PyTypeObject *task_type);
void loops_slow_down(ticker_state *ticker, double ratio); /* look less often by this ratio than at the start */
/* Runs no Python code, leaves no exception. `gil_holder` is only compared; `since_ns` is when the look was asked for, 0:
 * now. */
void loops_look(ticker_state *ticker, const PyThreadState *gil_holder, int64_t since_ns);
/* Return true if all loops have begun other callbacks since the last look or peek, and no other thread may have begun a
 * loop: then no look is needed. Needs the ticker's mutex, not the GIL. */
bool loops_peek(ticker_state *ticker);
PyObject *loops_drain(ticker_state *ticker, const module_state *module);
void loops_release(ticker_state *ticker); /* release the references, which may run Python code */
int loops_traverse(const loop_watch *watch, visitproc visit, void *arg);

#pragma GCC visibility pop

#endif
