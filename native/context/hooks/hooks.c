/* The set of hooks: installs and removes them, and forwards their reports.
 *
 * One installation for each process, by the interpreter that asked for it. Hooks are replaced functions. A
 * call can be inside one during its removal, and other code may hold one for ever. So each hook checks
 * hooks_is_active first, and passes through if it is false. There are no locks: the GIL is held, and code
 * that may run Python comes last.
 */
#include "py_compat.h"

#include "switch_hooks.h"

#include <stdatomic.h>

static struct {
    PyInterpreterState *_Atomic interp; /* the main interpreter, or NULL; any interpreter reads it */
    switch_callbacks callbacks;
    PyObject *variable;      /* owned; kept after removal, since attach may be called later */
    PyObject *modules;       /* owned: sys.modules */
    Py_ssize_t modules_seen; /* size of `modules` at the last refresh; -1: refresh again */
} installed;

typedef struct {
    const char *name;
    bool is_needed; /* for this version of CPython */
    const char *(*install)(void);
    void (*remove)(void);
} hook;

/* Only removing the last one may run Python. */
static const hook hooks[] = {
    {"PyContext_AddWatcher", COMPAT_REPORTS_SWITCHES, watcher_install, watcher_remove},
    {"Context.run", !COMPAT_REPORTS_SWITCHES, context_run_install, context_run_remove},
    {"PyContext_Enter", !COMPAT_REPORTS_SWITCHES, relocations_install, relocations_remove},
    {"greenlet.settrace", true, greenlets_install, greenlets_remove},
};
enum { HOOK_COUNT = sizeof(hooks) / sizeof(hooks[0]) };

bool hooks_is_active(void)
{
    PyInterpreterState *interp = atomic_load_explicit(&installed.interp, memory_order_relaxed);
    return interp != NULL && (compat_is_only_interpreter(interp) || interp == PyInterpreterState_Get());
}

/* Runs after every switch. */
static inline void refresh_if_needed(void)
{
    /* Every import changes the size: a module that switches contexts is hooked by the next switch, not by the
     * next refresh. */
    if (PyDict_GET_SIZE(installed.modules) != installed.modules_seen) {
        (void)hooks_refresh();
    }
    greenlets_ensure_traced();
}

HOT void hooks_report_switch(PyObject *context)
{
    if (hooks_is_active()) {
        installed.callbacks.on_switch(context);
        refresh_if_needed();
    }
}

static void report_change(void)
{
    if (hooks_is_active()) {
        installed.callbacks.on_change();
        refresh_if_needed();
    }
}

int hooks_refresh(void)
{
    if (!hooks_is_active()) {
        return 0;
    }
    compat_exception pending = compat_save_exception();
    Py_ssize_t count = PyDict_GET_SIZE(installed.modules);
    int redirected = COMPAT_REPORTS_SWITCHES ? 0 : relocations_refresh();
    bool settled = greenlets_refresh(installed.modules);
    installed.modules_seen = settled ? count : -1;
    compat_restore_exception(pending);
    return redirected;
}

static PyObject *list_problems(const char *const *problems)
{
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list != NULL && i < HOOK_COUNT; i++) {
        if (problems[i] == NULL) {
            continue;
        }
        PyObject *pair = Py_BuildValue("(ss)", hooks[i].name, problems[i]);
        if (pair == NULL || PyList_Append(list, pair) != 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(pair);
    }
    return list;
}

PyObject *hooks_install(PyObject *variable, switch_callbacks callbacks)
{
    const char *problems[HOOK_COUNT];
    PyInterpreterState *interp = PyInterpreterState_Get();
    PyInterpreterState *other = atomic_load(&installed.interp);
    if (!PyContextVar_CheckExact(variable)) {
        return PyErr_Format(PyExc_TypeError, "a ContextVar is needed, not %.100s", Py_TYPE(variable)->tp_name);
    }
    if (interp != PyInterpreterState_Main()) {
        PyErr_SetString(PyExc_RuntimeError, "the hooks are for the main interpreter only");
        return NULL;
    }
    if (other != NULL && other != interp) {
        PyErr_SetString(PyExc_RuntimeError, "another interpreter of this process has installed the hooks");
        return NULL;
    }
    PyObject *old_variable = installed.variable, *old_modules = installed.modules;
    installed.variable = Py_NewRef(variable);
    installed.modules = Py_NewRef(PyImport_GetModuleDict());
    installed.modules_seen = -1;
    installed.callbacks = callbacks;
    atomic_store(&installed.interp, interp);
    for (size_t i = 0; i < HOOK_COUNT; i++) {
        problems[i] = hooks[i].is_needed ? hooks[i].install() : NULL;
    }
    Py_XDECREF(old_variable);
    Py_XDECREF(old_modules);
    (void)hooks_refresh();
    greenlets_ensure_traced();
    PyObject *list = list_problems(problems);
    if (list == NULL) {
        hooks_remove();
    }
    return list;
}

void hooks_remove(void)
{
    if (!hooks_is_active()) {
        return;
    }
    compat_exception pending = compat_save_exception();
    atomic_store(&installed.interp, NULL);
    for (size_t i = 0; i < HOOK_COUNT; i++) {
        hooks[i].remove();
    }
    compat_restore_exception(pending);
}

void hooks_finalize(void)
{
    PyInterpreterState *interp = atomic_load(&installed.interp);
    if (interp == NULL || interp == PyInterpreterState_Get()) {
        hooks_remove();
        Py_CLEAR(installed.variable);
        Py_CLEAR(installed.modules);
    }
}

/* Return the single argument of a function, passed by position or by name. Borrowed. */
static PyObject *parse_single_argument(PyObject *const *args, Py_ssize_t count, PyObject *names, const char *function,
                                       const char *name)
{
    Py_ssize_t named = names == NULL ? 0 : PyTuple_GET_SIZE(names);
    if (count + named == 1 && (named == 0 || PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, 0), name) == 0)) {
        return args[0];
    }
    return PyErr_Format(PyExc_TypeError, "%s() takes exactly one argument, %s", function, name);
}

PyObject *hooks_attach(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    PyObject *context = parse_single_argument(args, count, names, "attach", "context");
    if (context == NULL) {
        return NULL;
    }
    if (installed.variable == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "no hooks have been installed");
        return NULL;
    }
    PyObject *token = PyContextVar_Set(installed.variable, context);
    if (token != NULL) {
        report_change();
    }
    return token;
}

PyObject *hooks_detach(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    PyObject *token = parse_single_argument(args, count, names, "detach", "token");
    if (token == NULL) {
        return NULL;
    }
    if (installed.variable == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "no hooks have been installed");
        return NULL;
    }
    if (!PyContextToken_CheckExact(token)) { /* the words of ContextVar.reset */
        return PyErr_Format(PyExc_TypeError, "expected an instance of Token, got %R", token);
    }
    if (PyContextVar_Reset(installed.variable, token) != 0) {
        return NULL;
    }
    report_change();
    Py_RETURN_NONE;
}
