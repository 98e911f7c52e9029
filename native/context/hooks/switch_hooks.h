/* The interface between the hooks: each is one file, and reports to hooks_report_switch.
 *
 * Everything here expects the GIL of the installing interpreter to be held, except functions marked *any*.
 * Those may be called in an interpreter with its own GIL, since Context.run and the call sites of C code
 * belong to the process.
 */
#ifndef SPLUNK_PROFILER_CONTEXT_HOOKS_SWITCH_HOOKS_H
#define SPLUNK_PROFILER_CONTEXT_HOOKS_SWITCH_HOOKS_H

#include "hooks.h"

#include <stdbool.h>

#pragma GCC visibility push(hidden)

/* The same as in thread_records.h, which knows nothing of switches. */
#define HOT __attribute__((hot))

/* hooks.c. *any*: return true if this interpreter has installed the hooks; a hook that gets false passes
 * through. */
bool hooks_is_active(void);

/* hooks.c. *any*: report that `context` (or NULL) may now be the calling thread's current one. Keeps a
 * pending exception. */
void hooks_report_switch(PyObject *context);

/* Each hook: install returns NULL or, as a static string, what the user loses because it failed. Installing
 * twice and removing twice do nothing. None of them leaves an exception. */

/* context_run.c: Context.run, before 3.14. */
const char *context_run_install(void);
void context_run_remove(void);

/* relocations.c: PyContext_Enter and PyContext_Exit called by other C code, before 3.14. */
const char *relocations_install(void);
int relocations_refresh(void); /* number of redirected call sites; cheap if no module was loaded since */
void relocations_remove(void);

/* watcher.c: replaces both, since 3.14. */
const char *watcher_install(void);
void watcher_remove(void);

/* greenlets.c: greenlets, once greenlet is loaded. */
const char *greenlets_install(void);
bool greenlets_refresh(PyObject *modules); /* sys.modules; false: greenlet is being imported */
void greenlets_remove(void);

#pragma GCC visibility pop

#endif
