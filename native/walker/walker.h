/* What the files of the extension splunk_profiler._walker share: the module and its types. */
#ifndef SPLUNK_PROFILER_WALKER_H
#define SPLUNK_PROFILER_WALKER_H

#include "state.h"

typedef struct {
    PyTypeObject *ticker;       /* owned */
    PyTypeObject *watch;        /* owned */
    PyTypeObject *raw_thread;   /* owned */
    PyTypeObject *raw_snapshot; /* owned */
    PyTypeObject *collection;   /* owned */
    PyTypeObject *counters;     /* owned */
} module_state;

extern PyType_Spec ticker_spec HIDDEN;
extern PyType_Spec watch_spec HIDDEN;

#endif
