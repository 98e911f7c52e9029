/* The type Mailbox, which gathers the messages of host profilers. */
#ifndef SPLUNK_PROFILER_MAILBOX_H
#define SPLUNK_PROFILER_MAILBOX_H

#include "py_compat.h"

extern PyType_Spec mailbox_spec;

#endif
