/* What the hooks share: each is one file, and reports what it saw to hooks_report_switch.
 *
 * Everything here expects the GIL of the installing interpreter to be held, apart from what is marked *any*: those may be
 * reached from an interpreter with a GIL of its own, since Context.run and the call sites of C code belong to the process.
 */
#ifndef SPLUNK_PROFILER_CONTEXT_HOOKS_SWITCH_HOOKS_H
#define SPLUNK_PROFILER_CONTEXT_HOOKS_SWITCH_HOOKS_H

#include "hooks.h"

#include <stdbool.h>

#pragma GCC visibility push(hidden)

/* As in thread_records.h, which knows nothing of switches. */
#define HOT __attribute__((hot))

/* hooks.c. *any*: whether hooks are installed, and by this interpreter; one that sees false passes through. */
bool hooks_is_active(void);

/* hooks.c. The calling thread's current context may be another than before: this one, or NULL. *any*; keeps a pending
 * exception. */
void hooks_report_switch(PyObject *context);

/* Each hook: install returns NULL or, as a static string, what it costs the user that it could not be done. Installing
 * what is installed and removing what is not does nothing. None of them leaves an exception. */

/* run.c: Context.run, before 3.14. */
const char *context_run_install(void);
void context_run_remove(void);

/* relocations.c: PyContext_Enter and PyContext_Exit called by other C code, before 3.14. */
const char *relocations_install(void);
int relocations_refresh(void); /* how many call sites were redirected; cheap if no module was loaded since */
void relocations_remove(void);

/* watcher.c: all of the above, since 3.14. */
const char *watcher_install(void);
void watcher_remove(void);

/* greenlets.c: greenlets, once greenlet is loaded. */
const char *greenlets_install(void);
bool greenlets_refresh(PyObject *modules); /* sys.modules; false: greenlet is being imported just now */
void greenlets_remove(void);

#pragma GCC visibility pop

#endif
