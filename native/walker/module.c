/* The extension splunk_profiler._walker: its functions, the tuples that it gives, and its life in the interpreter.
 *
 * The contract is splunk_profiler/_walker.pyi.
 */
#include "walker.h"

#include "layouts.h"

#define END_CAPSULE "splunk_profiler._walker"

/* ---- functions ---- */

static PyObject *watch_forks(PyObject *Py_UNUSED(module), PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"in_child", NULL};
    PyObject *in_child;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:watch_forks", names, &in_child)) {
        return NULL;
    }
    if (in_child != Py_None && !PyCallable_Check(in_child)) {
        return PyErr_Format(PyExc_TypeError, "in_child must be callable or None, not %.100s",
                            Py_TYPE(in_child)->tp_name);
    }
    if (forks_prepare_process() != 0) {
        return PyErr_NoMemory();
    }
    forks_watch(PyInterpreterState_Get(), in_child == Py_None ? NULL : in_child);
    Py_RETURN_NONE;
}

static PyObject *own_thread(PyObject *Py_UNUSED(module), PyObject *begins)
{
    int truth = PyObject_IsTrue(begins);
    if (truth < 0) {
        return NULL;
    }
    gil_keeper_own_thread(truth);
    Py_RETURN_NONE;
}

/* ---- module ---- */

/* Called by CPython when it clears the interpreter: the last moment at which nothing may be posted to it any more. */
static void interpreter_ends(PyObject *Py_UNUSED(capsule))
{
    forks_close_all();
}

static int note_end_of_interpreter(void)
{
    PyObject *capsule = NULL;
    int result = -1;
    PyObject *dict = PyInterpreterState_GetDict(PyInterpreterState_Get()); /* borrowed */
    if (dict == NULL) {
        PyErr_SetString(PyExc_ImportError, "the interpreter has no place for its end to be noticed");
        return -1;
    }
    if (PyDict_GetItemString(dict, END_CAPSULE) != NULL) {
        return 0; /* imported again */
    }
    capsule = PyCapsule_New(&ticker_spec, END_CAPSULE, interpreter_ends);
    if (capsule != NULL) {
        result = PyDict_SetItemString(dict, END_CAPSULE, capsule);
    }
    Py_XDECREF(capsule);
    return result;
}

static bool add_named_tuple(PyObject *module, PyObject *namedtuple, const char *name, const char *fields,
                            PyTypeObject **added)
{
    PyObject *type = NULL;
    PyObject *arguments = Py_BuildValue("(ss)", name, fields);
    PyObject *options = Py_BuildValue("{ss}", "module", "splunk_profiler._walker");
    if (arguments != NULL && options != NULL) {
        type = PyObject_Call(namedtuple, arguments, options);
    }
    Py_XDECREF(arguments);
    Py_XDECREF(options);
    if (type != NULL && PyModule_AddObjectRef(module, name, type) != 0) {
        Py_CLEAR(type);
    }
    *added = (PyTypeObject *)type;
    return type != NULL;
}

static int module_exec(PyObject *module)
{
    module_state *state = PyModule_GetState(module);
    PyObject *collections = NULL, *namedtuple = NULL;
    int result = -1;
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_SetString(PyExc_ImportError, "the native walker serves the main interpreter only");
        return -1;
    }
    if (layouts_check() != 0) {
        return -1;
    }
    collections = PyImport_ImportModule("collections");
    namedtuple = collections == NULL ? NULL : PyObject_GetAttrString(collections, "namedtuple");
    if (namedtuple == NULL || note_end_of_interpreter() != 0) {
        goto error;
    }
    if (!add_named_tuple(module, namedtuple, "RawThread",
                         "key ident native_id stack context labels cpu_ns state python_thread", &state->raw_thread)
        || !add_named_tuple(module, namedtuple, "RawSnapshot",
                            "time_ns latency_ns threads period_ns focused since_ns process_cpu_ns",
                            &state->raw_snapshot)
        || !add_named_tuple(module, namedtuple, "RawCollection", "time_ns thread generation stands_for duration_ns",
                            &state->collection)
        || !add_named_tuple(module, namedtuple, "Counters",
                            "due captured by_pending_call missed overwritten late_ns_max late_ns_sum held_ns_sum",
                            &state->counters)) {
        goto error;
    }
    state->ticker = (PyTypeObject *)PyType_FromModuleAndSpec(module, &ticker_spec, NULL);
    if (state->ticker == NULL || PyModule_AddType(module, state->ticker) != 0) {
        goto error;
    }
    state->watch = (PyTypeObject *)PyType_FromModuleAndSpec(module, &watch_spec, NULL);
    if (state->watch == NULL || PyModule_AddType(module, state->watch) != 0) {
        goto error;
    }
    result = 0;
error:
    Py_XDECREF(namedtuple);
    Py_XDECREF(collections);
    return result;
}

static int module_traverse(PyObject *module, visitproc visit, void *arg)
{
    module_state *state = PyModule_GetState(module);
    Py_VISIT(state->ticker);
    Py_VISIT(state->watch);
    Py_VISIT(state->raw_thread);
    Py_VISIT(state->raw_snapshot);
    Py_VISIT(state->collection);
    Py_VISIT(state->counters);
    return 0;
}

static int module_clear(PyObject *module)
{
    module_state *state = PyModule_GetState(module);
    Py_CLEAR(state->ticker);
    Py_CLEAR(state->watch);
    Py_CLEAR(state->raw_thread);
    Py_CLEAR(state->raw_snapshot);
    Py_CLEAR(state->collection);
    Py_CLEAR(state->counters);
    return 0;
}

static void module_free(void *module)
{
    (void)module_clear(module);
}

static PyMethodDef module_methods[] = {
    {"watch_forks", (PyCFunction)(void (*)(void))watch_forks, METH_VARARGS | METH_KEYWORDS,
     "watch_forks($module, in_child)\n--\n\nHave in_child() called in forked children."},
    {"sigterm_open", sigterm_open, METH_NOARGS, "sigterm_open($module)\n--\n\nBegin a watch; returns its number."},
    {"sigterm_install", sigterm_install, METH_NOARGS,
     "sigterm_install($module)\n--\n\nHave SIGTERM end the wait where its action is the default."},
    {"sigterm_wait", sigterm_wait, METH_VARARGS,
     "sigterm_wait($module, watch, limit_ms, /)\n--\n\nWait for SIGTERM; False: the watch is over."},
    {"sigterm_close", sigterm_close, METH_NOARGS, "sigterm_close($module)\n--\n\nEnd the watch."},
    {"sigterm_end", sigterm_end, METH_NOARGS, "sigterm_end($module)\n--\n\nEnd the process by SIGTERM."},
    {"own_thread", own_thread, METH_O,
     "own_thread($module, begins, /)\n--\n\nThe calling thread is one of the profiler's, or ends."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
#ifdef Py_mod_multiple_interpreters
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
    {0, NULL},
};

static PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,
    .m_name = "splunk_profiler._walker",
    .m_doc = "Reads the interpreter's frames of all threads in one hold of the GIL.",
    .m_size = sizeof(module_state),
    .m_methods = module_methods,
    .m_slots = module_slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};

PyMODINIT_FUNC PyInit__walker(void)
{
    return PyModuleDef_Init(&module_def);
}
