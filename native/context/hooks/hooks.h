/* The hooks inside CPython and greenlet that notice changes of a thread's current context, and their
 * callbacks.
 *
 * Everything here expects the GIL to be held, and belongs to the main interpreter, which alone can import the
 * module. hooks_is_active, hooks_report_switch and hooks_report_set may also be called in an interpreter with its
 * own GIL, since methods of built-in types and the call sites of C code belong to the process. The callbacks are all
 * that the hooks know of their user.
 */
#ifndef SPLUNK_PROFILER_CONTEXT_HOOKS_HOOKS_H
#define SPLUNK_PROFILER_CONTEXT_HOOKS_HOOKS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>

#pragma GCC visibility push(hidden)

/* The same as in record_buffer.h, which knows nothing of switches. */
#define HOT __attribute__((hot))

/* Called on the thread whose context changed. They keep a pending exception and never raise. */
typedef struct {
    /* `context` is current now, and another one may have been before; NULL: none. */
    void (*on_switch)(PyObject *context);
    void (*on_change)(void);                    /* a variable has changed in the current context */
    bool (*is_shown)(const PyObject *variable); /* true: on_change is for this one */
} switch_callbacks;

/* Install every hook that this interpreter can have. They pass through until hooks_begin. `variable` is the
 * ContextVar that hooks_attach sets; it is kept until the next install, even after hooks_remove. Return a new list
 * of (hook name, problem) for hooks that could not be installed. Return NULL with an exception on failure; then
 * hooks_remove is due. */
PyObject *hooks_install(PyObject *variable, switch_callbacks callbacks);

/* Call the callbacks from now on, first for the calling thread. Comes after hooks_install and what the user of the
 * hooks has to install: a change that only some hooks can see would leave what the others have reported. */
void hooks_begin(void);

bool hooks_is_active(void);         /* in the calling interpreter: from hooks_begin to hooks_remove */
unsigned hooks_install_count(void); /* number of installs: code that ran Python compares it with the one before */

/* Remove every hook. A hook that is running, or that other code holds, passes through from now on. */
void hooks_remove(void);

/* Release what was kept for later calls, after hooks_remove: the interpreter ends. */
void hooks_finalize(void);

/* Return the running greenlet, borrowed; NULL: greenlet is not loaded, or no hooks are installed. May run
 * Python. Leaves no exception, and expects none. */
const void *greenlets_current(void);

/* Methods of the module. attach(context) and detach(token) replace those of OpenTelemetry's runtime context: they
 * set or reset the variable. hooks_set_variable sets any variable. `on_change` follows in the same call, so no
 * other thread sees the one without the other. hooks_refresh looks for newly loaded modules: greenlet, and call
 * sites of PyContext_Enter to redirect. The hooks do so themselves after an import. */
PyObject *hooks_attach(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *hooks_detach(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *hooks_set_variable(PyObject *module, PyObject *args);
PyObject *hooks_publish(PyObject *module, PyObject *unused); /* only `on_change` */
PyObject *hooks_refresh(PyObject *module, PyObject *unused);

/* For the hooks, each of which is one file: report that `context` (or NULL) may now be the calling thread's
 * current one. Keeps a pending exception. */
void hooks_report_switch(PyObject *context);

/* The same for a variable that was set in it. */
void hooks_report_set(const PyObject *variable);

/* Each hook: install returns NULL or, as a static string, what the user loses because it failed. Installing
 * twice and removing twice do nothing. None of them leaves an exception. Those of the call sites release the GIL. */
const char *context_run_install(void); /* Context.run, before 3.14 */
void context_run_remove(void);
const char *variable_set_install(void); /* ContextVar.set and reset */
void variable_set_remove(void);
const char *relocations_install(void); /* PyContext_Enter and PyContext_Exit called by other C code, before 3.14 */
void relocations_refresh(void);        /* cheap if no large module was loaded since */
void relocations_remove(void);
const char *watcher_install(void); /* replaces both, since 3.14 */
void watcher_remove(void);
const char *greenlets_install(void);       /* greenlets, once greenlet is loaded */
bool greenlets_refresh(PyObject *modules); /* sys.modules; false: greenlet is being imported */
void greenlets_ensure_traced(void);        /* trace the calling thread's switches if they are not yet; cheap */
void greenlets_remove(void);

#pragma GCC visibility pop

#endif
