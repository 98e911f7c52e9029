/* arguments.c: return false with an exception if an argument is invalid. GIL held. */
#ifndef SPLUNK_PROFILER_WALKER_ARGUMENTS_H
#define SPLUNK_PROFILER_WALKER_ARGUMENTS_H

#include "ticker_state.h"

#pragma GCC visibility push(hidden)

bool parse_arguments(PyObject *args, PyObject *kwargs, ticker_arguments *given); /* of the constructor; borrowed */
/* `phase_ns` is an argument, too, unless it is NULL. */
bool parse_periods(const ticker_state *ticker, PyObject *args, long long *period_ns, long long *focused_ns,
                   long long *phase_ns);
bool parse_sample_bytes(PyObject *given, int64_t *sample_bytes); /* a mean distance of samples */

#pragma GCC visibility pop

#endif
