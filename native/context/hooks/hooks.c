/* The set of hooks: installs and removes them, and forwards their reports.
 *
 * Hooks are replaced functions. A call can be inside one during its removal, and other code may hold one for
 * ever. So each hook checks hooks_is_active first, and passes through if it is false. There are no locks: the GIL
 * is held, and code that may run Python comes last.
 */
#include "py_compat.h"

#include "hooks.h"

#include <stdatomic.h>

static struct {
    PyInterpreterState *_Atomic interp; /* the main interpreter from hooks_begin on, or NULL; any one reads it */
    unsigned install_count;
    switch_callbacks callbacks;
    PyObject *variable;      /* owned; kept after removal, since attach may be called later */
    PyObject *modules;       /* owned: sys.modules */
    Py_ssize_t modules_seen; /* size of `modules` at the last refresh; -1: refresh again */
} installed;

typedef struct {
    const char *name;
    const char *(*install)(void);
    void (*remove)(void);
} hook;

/* Removing the last two lets other threads run. */
static const hook hooks[] = {
    {"ContextVar.set", variable_set_install, variable_set_remove},
#if COMPAT_REPORTS_SWITCHES
    {"PyContext_AddWatcher", watcher_install, watcher_remove},
#else
    {"Context.run", context_run_install, context_run_remove},
    {"PyContext_Enter", relocations_install, relocations_remove},
#endif
    {"greenlet.settrace", greenlets_install, greenlets_remove},
};

bool hooks_is_active(void)
{
    PyInterpreterState *interp = atomic_load_explicit(&installed.interp, memory_order_relaxed);
    return interp != NULL && (compat_is_only_interpreter(interp) || interp == PyInterpreterState_Get());
}

unsigned hooks_install_count(void)
{
    return installed.install_count;
}

/* Keeps a pending exception. */
static void refresh(void)
{
    if (!hooks_is_active()) { /* a callback ran Python code, which may remove the hooks */
        return;
    }
    compat_exception pending = compat_save_exception();
    Py_ssize_t count = PyDict_GET_SIZE(installed.modules);
    bool settled = greenlets_refresh(installed.modules);
    installed.modules_seen = settled ? count : -1;
#if !COMPAT_REPORTS_SWITCHES
    relocations_refresh(); /* last: lets other threads run, which may remove the hooks */
#endif
    compat_restore_exception(pending);
}

/* Runs after every switch. */
static inline void refresh_if_needed(void)
{
    /* Every import changes the size: a module that switches contexts is hooked by the next switch, not by the
     * next refresh. */
    if (PyDict_GET_SIZE(installed.modules) != installed.modules_seen) {
        refresh();
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

HOT void hooks_report_set(const PyObject *variable)
{
    if (hooks_is_active() && installed.callbacks.is_shown(variable)) {
        report_change();
    }
}

PyObject *hooks_install(PyObject *variable, switch_callbacks callbacks)
{
    PyObject *old_variable = installed.variable, *old_modules = installed.modules;
    installed.variable = Py_NewRef(variable);
    installed.modules = Py_NewRef(PyImport_GetModuleDict());
    installed.callbacks = callbacks;
    installed.modules_seen = -1;
    installed.install_count++;
    const char *problems[Py_ARRAY_LENGTH(hooks)];
    for (size_t i = 0; i < Py_ARRAY_LENGTH(hooks); i++) {
        problems[i] = hooks[i].install();
    }
    Py_XDECREF(old_variable);
    Py_XDECREF(old_modules);
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list != NULL && i < Py_ARRAY_LENGTH(hooks); i++) {
        if (problems[i] == NULL) {
            continue;
        }
        PyObject *problem = Py_BuildValue("ss", hooks[i].name, problems[i]);
        if (problem == NULL || PyList_Append(list, problem) != 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(problem);
    }
    return list;
}

void hooks_begin(void)
{
    atomic_store(&installed.interp, PyInterpreterState_Get());
    report_change();
}

void hooks_remove(void)
{
    compat_exception pending = compat_save_exception();
    unsigned install_count = installed.install_count;
    atomic_store(&installed.interp, NULL);
    for (size_t i = 0; i < Py_ARRAY_LENGTH(hooks) && installed.install_count == install_count; i++) {
        hooks[i].remove(); /* then another thread may install anew */
    }
    compat_restore_exception(pending);
}

void hooks_finalize(void)
{
    Py_CLEAR(installed.variable);
    Py_CLEAR(installed.modules);
}

/* Return the single argument of a function, passed by position or by name. Borrowed. */
static PyObject *parse_single_argument(PyObject *const *args, Py_ssize_t count, PyObject *names, const char *function,
                                       const char *name)
{
    Py_ssize_t named = names == NULL ? 0 : PyTuple_GET_SIZE(names);
    if (count + named != 1 || (named == 1 && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, 0), name) != 0)) {
        return PyErr_Format(PyExc_TypeError, "%s() takes exactly one argument, %s", function, name);
    }
    if (installed.variable == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "no hooks have been installed");
        return NULL;
    }
    return args[0];
}

PyObject *hooks_attach(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    PyObject *context = parse_single_argument(args, count, names, "attach", "context");
    PyObject *token = context == NULL ? NULL : PyContextVar_Set(installed.variable, context);
    if (token != NULL) {
        report_change();
    }
    return token;
}

PyObject *hooks_detach(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    PyObject *token = parse_single_argument(args, count, names, "detach", "token");
    if (token == NULL) {
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

PyObject *hooks_set_variable(PyObject *module, PyObject *args)
{
    PyObject *variable, *value;
    if (!PyArg_ParseTuple(args, "O!O:set_labels", &PyContextVar_Type, &variable, &value)) {
        return NULL;
    }
    PyObject *token = PyContextVar_Set(variable, value);
    if (token == NULL) {
        return NULL;
    }
    Py_DECREF(token);
    report_change();
    Py_RETURN_NONE;
}

PyObject *hooks_publish(PyObject *module, PyObject *unused)
{
    report_change();
    Py_RETURN_NONE;
}

PyObject *hooks_refresh(PyObject *module, PyObject *unused)
{
    refresh();
    Py_RETURN_NONE;
}
