/* The hooks inside CPython and greenlet that notice changes of a thread's current context, and their
 * callbacks.
 *
 * Everything here expects the GIL to be held unless it says otherwise, and belongs to the interpreter that
 * installed it. The callbacks are all that the hooks know of their user.
 */
#ifndef SPLUNK_PROFILER_CONTEXT_HOOKS_HOOKS_H
#define SPLUNK_PROFILER_CONTEXT_HOOKS_HOOKS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#pragma GCC visibility push(hidden)

/* Called with the GIL held, on the thread whose context changed. They keep a pending exception and never
 * raise. */
typedef struct {
    /* `context` is current now, and another one may have been before; NULL: none. */
    void (*on_switch)(PyObject *context);
    void (*on_change)(void); /* the variable has changed in the current context */
} switch_callbacks;

/* Install every hook that this interpreter can have. Idempotent. `variable` is the ContextVar that
 * hooks_attach sets; it is kept until the next install, even after hooks_remove. Return a new list of (hook
 * name, problem) str pairs for hooks that could not be installed. Return NULL with an exception on failure;
 * then nothing is installed. */
PyObject *hooks_install(PyObject *variable, switch_callbacks callbacks);

/* Look for newly loaded modules: greenlet, and call sites of PyContext_Enter to redirect. Cheap if nothing
 * was loaded. The hooks call it themselves after an import. Keeps a pending exception; never raises. Return
 * the number of redirected call sites. */
int hooks_refresh(void);

/* Remove every hook. A hook that is running, or that other code holds, passes through from now on. */
void hooks_remove(void);

/* Handle the interpreter's end: remove the hooks, and release what was kept for later calls. */
void hooks_finalize(void);

/* Trace the calling thread's greenlet switches, if greenlet is loaded and they are not traced yet. Cheap.
 * Keeps a pending exception; never raises. The hooks call it at every switch. */
void greenlets_ensure_traced(void);

/* Trace the calling thread's switches now. Return 1 if traced, 0 if greenlet is not loaded or no hooks are
 * installed, -1 with an exception. */
int greenlets_trace_thread(void);

/* Return the running greenlet, borrowed; NULL: greenlet is not loaded, or no hooks are installed. May run
 * Python. Leaves no exception, and expects none. */
const void *greenlets_current(void);

/* METH_FASTCALL | METH_KEYWORDS replacements for attach(context) and detach(token) of OpenTelemetry's runtime
 * context: ContextVar.set and ContextVar.reset, followed by `on_change`. Without hooks they only set and
 * reset. */
/* Return the Token, a new reference. */
PyObject *hooks_attach(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
/* Return None. */
PyObject *hooks_detach(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);

#pragma GCC visibility pop

#endif
