/* The hook for CPython 3.14 and newer, which report every context switch to a watcher. */
#include "hooks.h"

#include "public_compat.h"

#if COMPAT_REPORTS_SWITCHES

static int watcher = -1;

/* May be called with an exception set, and keeps it. */
static HOT int on_context_event(PyContextEvent event, PyObject *context)
{
    if (event == Py_CONTEXT_SWITCHED) {
        hooks_report_switch(context == Py_None ? NULL : context);
    }
    return 0;
}

const char *watcher_install(void)
{
    if (watcher < 0) {
        watcher = PyContext_AddWatcher(on_context_event);
        if (watcher < 0) {
            PyErr_Clear();
            return "other tools have taken every context watcher: tasks of asyncio and uvloop and work handed to "
                   "executors are published with the span of whatever ran before them on their thread";
        }
    }
    return NULL;
}

void watcher_remove(void)
{
    if (watcher >= 0) {
        if (PyContext_ClearWatcher(watcher) != 0) {
            PyErr_Clear();
        }
        watcher = -1;
    }
}

#endif
