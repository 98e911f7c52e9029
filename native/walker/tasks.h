/* The capture of suspended asyncio tasks. GIL held. */
#ifndef SPLUNK_PROFILER_WALKER_TASKS_H
#define SPLUNK_PROFILER_WALKER_TASKS_H

#include "ticker_state.h"

/* A running event loop and its thread, of which the stack is not read. */
typedef struct {
    PyObject *loop; /* borrowed, as `task`: valid until Python code runs */
    PyObject *task; /* that the loop runs; NULL: none, or not in the thread's state (before CPython 3.14) */
    scratch_thread thread;
} running_loop;

#define MAX_LOOPS 64

/* Borrowed from a task; NULL: not known. A name that asyncio has given may count as none. */
typedef struct {
    PyObject *given;     /* its name, a str */
    PyObject *coroutine; /* the qualified name of its coroutine, a str */
} task_names;

#pragma GCC visibility push(hidden)

/* walk.c: list the running loops, newest thread first, and store their number. Where there are too many, the last one is
 * that of the oldest thread, most likely the main thread. `gil_holder` is only compared. False: the head lock is not free;
 * the number is 0. */
bool walk_loops(ticker_state *ticker, running_loop loops[MAX_LOOPS], const PyThreadState *gil_holder, size_t *count);

/* tasks.c. Read the names of any object; none if it is no task of asyncio's C code. */
task_names tasks_read_names(PyObject *task, PyTypeObject *task_type);
/* Return true if this was built for the layouts of the running CPython: `loop` is found as the running loop of
 * the calling thread, and `generator` as suspended at this place. Only compares what it finds. */
bool tasks_layouts_match(ticker_state *ticker, PyObject *loop, PyObject *generator, PyObject *code, int offset);
/* New references, or NULL with an exception. Need layouts that agree. */
PyObject *tasks_running_loops(ticker_state *ticker);
PyObject *tasks_capture(ticker_state *ticker, const module_state *module, PyObject *tasks, PyTypeObject *task_type,
                        size_t limit);

#pragma GCC visibility pop

#endif
