/* The set of hooks: what is installed, for whom, and what they all report to.
 *
 * One installation for each process, by the interpreter that asked for it. Hooks are replaced functions, so a call can be
 * inside of one while it is removed, and somebody may hold it for ever: each asks switch_is_wanted first and passes
 * through when it is not. Nothing here is locked; the GIL is held, and what may run Python comes last.
 */
#include "py_compat.h"

#include "switch_hooks.h"

#include "switch_compat.h"

#include <stdatomic.h>

static struct {
    PyInterpreterState *_Atomic interp; /* who installed: the main one, or NULL. Read by any interpreter */
    switch_callbacks callbacks;
    PyObject *variable;      /* owned; outlives removal, since attach may be called later by whoever holds it */
    PyObject *modules;       /* owned: sys.modules */
    Py_ssize_t modules_seen; /* how many there were when last looked through; -1: look again */
} installed;

typedef struct {
    const char *name;
    bool needed; /* by this version of CPython */
    const char *(*install)(void);
    void (*remove)(void);
} hook;

/* The last may run Python when it is removed. */
static const hook hooks[] = {
    {"PyContext_AddWatcher", COMPAT_REPORTS_SWITCHES, switch_watcher_install, switch_watcher_remove},
    {"Context.run", !COMPAT_REPORTS_SWITCHES, switch_run_install, switch_run_remove},
    {"PyContext_Enter", !COMPAT_REPORTS_SWITCHES, relocations_install, relocations_remove},
    {"greenlet.settrace", true, switch_greenlets_install, switch_greenlets_remove},
};
enum { HOOKS = sizeof(hooks) / sizeof(hooks[0]) };

bool switch_is_wanted(void)
{
    PyInterpreterState *interp = atomic_load_explicit(&installed.interp, memory_order_relaxed);
    return interp != NULL && (compat_is_alone(interp) || interp == PyInterpreterState_Get());
}

/* After every switch. */
static inline void look_around(void)
{
    /* Any import shows here, so a module that switches contexts is known by the next switch, not by the next refresh. */
    if (PyDict_GET_SIZE(installed.modules) != installed.modules_seen) {
        (void)switches_refresh();
    }
    switches_thread_seen();
}

HOT void switch_noticed(PyObject *context)
{
    if (switch_is_wanted()) {
        installed.callbacks.switched(context);
        look_around();
    }
}

static void change_noticed(void)
{
    if (switch_is_wanted()) {
        installed.callbacks.changed();
        look_around();
    }
}

int switches_refresh(void)
{
    if (!switch_is_wanted()) {
        return 0;
    }
    compat_error pending = compat_save_error();
    Py_ssize_t count = PyDict_GET_SIZE(installed.modules);
    int redirected = COMPAT_REPORTS_SWITCHES ? 0 : relocations_refresh();
    bool settled = switch_greenlets_refresh(installed.modules);
    installed.modules_seen = settled ? count : -1;
    compat_restore_error(pending);
    return redirected;
}

static PyObject *list_problems(const char *const *problems)
{
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list != NULL && i < HOOKS; i++) {
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

PyObject *switches_install(PyObject *variable, switch_callbacks callbacks)
{
    const char *problems[HOOKS];
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
    for (size_t i = 0; i < HOOKS; i++) {
        problems[i] = hooks[i].needed ? hooks[i].install() : NULL;
    }
    Py_XDECREF(old_variable);
    Py_XDECREF(old_modules);
    (void)switches_refresh();
    switches_thread_seen();
    PyObject *list = list_problems(problems);
    if (list == NULL) {
        switches_remove();
    }
    return list;
}

void switches_remove(void)
{
    if (!switch_is_wanted()) {
        return;
    }
    compat_error pending = compat_save_error();
    atomic_store(&installed.interp, NULL);
    for (size_t i = 0; i < HOOKS; i++) {
        hooks[i].remove();
    }
    compat_restore_error(pending);
}

void switches_forget(void)
{
    PyInterpreterState *interp = atomic_load(&installed.interp);
    if (interp == NULL || interp == PyInterpreterState_Get()) {
        switches_remove();
        Py_CLEAR(installed.variable);
        Py_CLEAR(installed.modules);
    }
}

/* The argument of a function that has one, called by position or by name. Borrowed. */
static PyObject *only_argument(PyObject *const *args, Py_ssize_t count, PyObject *names, const char *function,
                               const char *name)
{
    Py_ssize_t named = names == NULL ? 0 : PyTuple_GET_SIZE(names);
    if (count + named == 1 && (named == 0 || PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, 0), name) == 0)) {
        return args[0];
    }
    return PyErr_Format(PyExc_TypeError, "%s() takes exactly one argument, %s", function, name);
}

PyObject *switches_attach(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    PyObject *context = only_argument(args, count, names, "attach", "context");
    if (context == NULL) {
        return NULL;
    }
    if (installed.variable == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "no hooks have been installed");
        return NULL;
    }
    PyObject *token = PyContextVar_Set(installed.variable, context);
    if (token != NULL) {
        change_noticed();
    }
    return token;
}

PyObject *switches_detach(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    PyObject *token = only_argument(args, count, names, "detach", "token");
    if (token == NULL) {
        return NULL;
    }
    if (installed.variable == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "no hooks have been installed");
        return NULL;
    }
    if (!PyContextToken_CheckExact(token)) { /* in the words of ContextVar.reset */
        return PyErr_Format(PyExc_TypeError, "expected an instance of Token, got %R", token);
    }
    if (PyContextVar_Reset(installed.variable, token) != 0) {
        return NULL;
    }
    change_noticed();
    Py_RETURN_NONE;
}
