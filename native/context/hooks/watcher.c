/* The hook for CPython 3.14 and newer, which report every context switch to a watcher. Before that it does
 * nothing. */
#include "switch_hooks.h"

#include "public_compat.h"

static int watcher = -1;

/* May be called with an exception set, and keeps it. */
static HOT int on_context_event(compat_event event, PyObject *context)
{
    if (event == COMPAT_SWITCHED) {
        hooks_report_switch(context == Py_None ? NULL : context);
    }
    return 0;
}

const char *watcher_install(void)
{
    if (watcher < 0) {
        watcher = compat_watch(on_context_event);
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
        if (compat_unwatch(watcher) != 0) {
            PyErr_Clear();
        }
        watcher = -1;
    }
}
