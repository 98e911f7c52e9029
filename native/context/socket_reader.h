/* The type SocketReader, which gathers the messages of host profilers. */
#ifndef SPLUNK_PROFILER_CONTEXT_SOCKET_READER_H
#define SPLUNK_PROFILER_CONTEXT_SOCKET_READER_H

#include "py_compat.h"

extern PyType_Spec socket_reader_spec;

#endif
