/* The state of the extension splunk_profiler._walker and its types. */
#ifndef SPLUNK_PROFILER_WALKER_MODULE_STATE_H
#define SPLUNK_PROFILER_WALKER_MODULE_STATE_H

#include "ticker_state.h"

typedef struct {
    PyTypeObject *ticker;       /* owned */
    PyTypeObject *idle_tracker; /* owned */
    value_types types;          /* owned */
} module_state;

extern PyType_Spec ticker_spec HIDDEN;
extern PyType_Spec idle_tracker_spec HIDDEN;

#endif
