/* Notices that a thread's current context has changed: the hooks inside CPython and greenlet, and the joint to whoever
 * wants to know.
 *
 * Everything here expects the GIL to be held unless it says otherwise, and belongs to the interpreter that installed it.
 * The callback is the only thing known about the other side.
 */
#ifndef SPLUNK_PROFILER_CONTEXT_HOOKS_HOOKS_H
#define SPLUNK_PROFILER_CONTEXT_HOOKS_HOOKS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#pragma GCC visibility push(hidden)

/* Called with the GIL held on the thread that it is about. They keep a pending exception and never raise. */
typedef struct {
    void (*on_switch)(PyObject *context); /* this one is current now, which others may have been; NULL: none */
    void (*on_change)(void);              /* the variable has another value in the one that is current */
} switch_callbacks;

/* Install every hook this interpreter can have. Idempotent. `variable` is the ContextVar that hooks_attach sets; it is
 * kept until the next install, also after hooks_remove. Returns a new list of (hook name, problem) str pairs for hooks
 * that could not be installed, NULL with an exception on failure (nothing left installed). */
PyObject *hooks_install(PyObject *variable, switch_callbacks callbacks);

/* Look for newly loaded modules: call sites of PyContext_Enter to redirect, greenlet. Cheap if nothing was loaded. The
 * hooks do so themselves whenever they see that modules were imported. Keeps a pending exception; never raises. Returns
 * how many call sites were redirected. */
int hooks_refresh(void);

/* Take every hook out again. A hook that is running, or that somebody else holds, passes through from now on. */
void hooks_remove(void);

/* The interpreter ends: take the hooks out and give up what was kept for calls that might still come. */
void hooks_finalize(void);

/* The calling thread takes part: traces its greenlet switches if greenlet is loaded and they are not traced yet. Cheap.
 * Keeps a pending exception; never raises. The hooks call it themselves at every switch. */
void greenlets_ensure_traced(void);

/* The same at once, for a caller who wants to know: 1 traced, 0 greenlet is not loaded or no hooks are installed, -1 and
 * an exception. */
int greenlets_trace_thread(void);

/* Which greenlet runs, borrowed; NULL: greenlet is not loaded, or no hooks are installed. May run Python; leaves no
 * exception, and there is none before. */
const void *greenlets_current(void);

/* METH_FASTCALL | METH_KEYWORDS replacements for attach(context) and detach(token) of OpenTelemetry's runtime context:
 * ContextVar.set and ContextVar.reset, each followed by `on_change`. Without hooks installed they set and reset alone. */
PyObject *hooks_attach(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names); /* the Token, new */
PyObject *hooks_detach(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names); /* None */

#pragma GCC visibility pop

#endif
