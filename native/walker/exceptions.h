/* exceptions.c: raised exceptions for the next drain. GIL held. */
#ifndef SPLUNK_PROFILER_WALKER_EXCEPTIONS_H
#define SPLUNK_PROFILER_WALKER_EXCEPTIONS_H

#include "ticker_state.h"

#pragma GCC visibility push(hidden)

typedef struct exception_log exception_log;

exception_log *exceptions_new(uint64_t interval); /* mean number for a kept one; NULL: no memory */
void exceptions_handle_raise(ticker_state *ticker, PyObject *exception); /* leaves no exception */
PyObject *exceptions_drain(ticker_state *ticker, const module_state *module);

#pragma GCC visibility pop

#endif
