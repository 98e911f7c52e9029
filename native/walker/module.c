/* The extension splunk_profiler._walker: its functions, its named tuples and its lifetime in the interpreter.
 * Its contract is splunk_profiler/_walker.pyi. */
#include "module_state.h"
#include "raw_fields.h"

#include "module_setup.h"

#define MODULE_NAME "splunk_profiler._walker"

static PyObject *set_after_fork_in_child(PyObject *Py_UNUSED(module), PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"in_child", NULL};
    PyObject *in_child;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:set_after_fork_in_child", names, &in_child)) {
        return NULL;
    }
    if (in_child != Py_None && !PyCallable_Check(in_child)) {
        return PyErr_Format(PyExc_TypeError, "in_child must be callable or None, not %.100s",
                            Py_TYPE(in_child)->tp_name);
    }
    if (forks_register_handlers() != 0) {
        return PyErr_NoMemory();
    }
    forks_set_child_callback(PyInterpreterState_Get(), in_child == Py_None ? NULL : in_child);
    Py_RETURN_NONE;
}

static PyObject *mark_profiler_thread(PyObject *Py_UNUSED(module), PyObject *is_starting)
{
    int truth = PyObject_IsTrue(is_starting);
    if (truth < 0) {
        return NULL;
    }
    gil_keeper_mark_thread(truth);
    Py_RETURN_NONE;
}

static void on_interpreter_end(PyObject *Py_UNUSED(capsule))
{
    forks_close_all();
}

/* Take a named tuple of splunk_profiler/raw.py. Return false with an ImportError if its fields differ from
 * those known here. */
static bool take_tuple_type(PyObject *raw, const char *name, const char *fields, PyTypeObject **taken)
{
    bool matches = false;
    PyObject *type = PyObject_GetAttrString(raw, name);
    PyObject *names = type == NULL ? NULL : PyObject_GetAttrString(type, "_fields");
    PyObject *space = names == NULL ? NULL : PyUnicode_FromString(" ");
    PyObject *joined = space == NULL ? NULL : PyUnicode_Join(space, names);
    if (joined != NULL) {
        /* The first field has a space before it. */
        matches = PyType_Check(type) && PyType_IsSubtype((PyTypeObject *)type, &PyTuple_Type)
                  && PyUnicode_CompareWithASCIIString(joined, fields + 1) == 0;
        if (!matches) {
            PyErr_Format(PyExc_ImportError,
                         "splunk_profiler.raw.%s has the fields \"%U\", and this build was made for \"%s\": reinstall",
                         name, joined, fields + 1);
        }
    }
    Py_XDECREF(joined);
    Py_XDECREF(space);
    Py_XDECREF(names);
    if (!matches) {
        Py_XDECREF(type);
        return false;
    }
    *taken = (PyTypeObject *)type;
    return true;
}

static int module_exec(PyObject *module)
{
    module_state *state = PyModule_GetState(module);
    value_types *types = &state->types;
    PyObject *raw = NULL;
    int result = -1;
    if (module_prepare(MODULE_NAME, "the native walker serves the main interpreter only", on_interpreter_end) != 0) {
        return -1;
    }
    raw = PyImport_ImportModule("splunk_profiler.raw");
    if (raw == NULL || !take_tuple_type(raw, "RawThread", RAW_THREAD_FIELDS(FIELD_NAME), &types->raw_thread)
        || !take_tuple_type(raw, "RawSnapshot", RAW_SNAPSHOT_FIELDS(FIELD_NAME), &types->raw_snapshot)
        || !take_tuple_type(raw, "RawCollection", RAW_COLLECTION_FIELDS(FIELD_NAME), &types->raw_collection)
        || !take_tuple_type(raw, "TickerCounters", TICKER_COUNTERS_FIELDS(FIELD_NAME), &types->ticker_counters)
        || !take_tuple_type(raw, "ThreadChange", THREAD_CHANGE_FIELDS(FIELD_NAME), &types->thread_change)
        || !take_tuple_type(raw, "IdleSpan", IDLE_SPAN_FIELDS(FIELD_NAME), &types->idle_span)) {
        goto error;
    }
    state->ticker = module_add_type(module, &ticker_spec);
    state->idle_tracker = state->ticker == NULL ? NULL : module_add_type(module, &idle_tracker_spec);
    result = state->idle_tracker == NULL ? -1 : 0;
error:
    Py_XDECREF(raw);
    return result;
}

static int module_traverse(PyObject *module, visitproc visit, void *arg)
{
    module_state *state = PyModule_GetState(module);
    Py_VISIT(state->ticker);
    Py_VISIT(state->idle_tracker);
    Py_VISIT(state->types.raw_thread);
    Py_VISIT(state->types.raw_snapshot);
    Py_VISIT(state->types.raw_collection);
    Py_VISIT(state->types.ticker_counters);
    Py_VISIT(state->types.thread_change);
    Py_VISIT(state->types.idle_span);
    return 0;
}

static int module_clear(PyObject *module)
{
    module_state *state = PyModule_GetState(module);
    Py_CLEAR(state->ticker);
    Py_CLEAR(state->idle_tracker);
    Py_CLEAR(state->types.raw_thread);
    Py_CLEAR(state->types.raw_snapshot);
    Py_CLEAR(state->types.raw_collection);
    Py_CLEAR(state->types.ticker_counters);
    Py_CLEAR(state->types.thread_change);
    Py_CLEAR(state->types.idle_span);
    return 0;
}

static void module_free(void *module)
{
    (void)module_clear(module);
}

static PyMethodDef module_methods[] = {
    {"set_after_fork_in_child", (PyCFunction)(void (*)(void))set_after_fork_in_child, METH_VARARGS | METH_KEYWORDS,
     "set_after_fork_in_child($module, in_child)\n--\n\nHave in_child() called in forked children."},
    {"sigterm_open", sigterm_open, METH_NOARGS, "sigterm_open($module)\n--\n\nOpen a watch and return its number."},
    {"sigterm_install", sigterm_install, METH_NOARGS,
     "sigterm_install($module)\n--\n\nHave SIGTERM end the wait, if its action is the default."},
    {"sigterm_wait", sigterm_wait, METH_VARARGS,
     "sigterm_wait($module, watch_id, limit_ms, /)\n--\n\nWait for SIGTERM; return False if the watch has ended."},
    {"sigterm_close", sigterm_close, METH_NOARGS, "sigterm_close($module)\n--\n\nEnd the watch."},
    {"sigterm_end_process", sigterm_end_process, METH_NOARGS,
     "sigterm_end_process($module)\n--\n\nEnd the process by SIGTERM."},
    {"mark_profiler_thread", mark_profiler_thread, METH_O,
     "mark_profiler_thread($module, is_starting, /)\n--\n\nMark the calling thread as one of the profiler's, or unmark "
     "it."},
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
    .m_name = MODULE_NAME,
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
