/* The extension splunk_profiler._walker: its functions, its named tuples and its lifetime in the interpreter.
 * Its contract is splunk_profiler/_walker.pyi. */
#include "allocations.h"
#include "forks.h"

#include "module_setup.h"

#include <string.h>
#include <unistd.h>

#define MODULE_NAME "splunk_profiler._walker"

/* The named tuples of splunk_profiler/raw.py. There is a space before each field. */
static const struct {
    const char *name;
    const char *fields;
} tuples[TUPLE_TYPE_COUNT] = {
    [RAW_THREAD] = {"RawThread", RAW_THREAD_FIELDS(FIELD_NAME)},
    [RAW_SNAPSHOT] = {"RawSnapshot", RAW_SNAPSHOT_FIELDS(FIELD_NAME)},
    [RECORDED_EVENT] = {"RecordedEvent", RECORDED_EVENT_FIELDS(FIELD_NAME)},
    [TICKER_COUNTERS] = {"TickerCounters", TICKER_COUNTERS_FIELDS(FIELD_NAME)},
};

static PyObject *set_after_fork_in_child(PyObject *Py_UNUSED(module), PyObject *in_child)
{
    if (in_child != Py_None && !PyCallable_Check(in_child)) {
        return PyErr_Format(PyExc_TypeError, "in_child must be callable or None, not %.100s",
                            Py_TYPE(in_child)->tp_name);
    }
    if (!forks_set_child_callback(PyInterpreterState_Get(), in_child == Py_None ? NULL : in_child)) {
        return PyErr_NoMemory();
    }
    Py_RETURN_NONE;
}

static PyObject *mark_profiler_thread(PyObject *Py_UNUSED(module), PyObject *is_starting)
{
    gil_keeper_mark_thread(is_starting == Py_True);
    Py_RETURN_NONE;
}

static PyObject *delay_forks(PyObject *Py_UNUSED(module), PyObject *is_starting)
{
    forks_delay(is_starting == Py_True);
    Py_RETURN_NONE;
}

static PyObject *prepare_fork(PyObject *Py_UNUSED(module), PyObject *is_starting)
{
    forks_prepare(is_starting == Py_True);
    Py_RETURN_NONE;
}

static PyObject *close_inherited_sockets(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    sockets_close(getpid());
    Py_RETURN_NONE;
}

/* Keeps the GIL: a busy process would not give it back for far longer than the few microseconds of this. */
static PyObject *read_thread_stat(PyObject *Py_UNUSED(module), PyObject *given)
{
    pid_t native_id;
    char text[THREAD_STAT_SIZE];
    if (!native_id_parse(&native_id, given)) {
        return NULL;
    }
    thread_read_stat(native_id, text);
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
}

static void on_interpreter_end(PyObject *Py_UNUSED(capsule))
{
    allocations_close();
    sockets_close(0);
    forks_close_all();
}

/* Return true if a named tuple has these fields; else set an ImportError. */
static bool check_fields(PyObject *type, const char *name, const char *fields)
{
    PyObject *names = PyObject_GetAttrString(type, "_fields");
    PyObject *space = names == NULL ? NULL : PyUnicode_FromString(" ");
    PyObject *joined = space == NULL ? NULL : PyUnicode_Join(space, names);
    bool matches = joined != NULL && PyType_Check(type) && PyType_IsSubtype((PyTypeObject *)type, &PyTuple_Type)
                   && PyUnicode_CompareWithASCIIString(joined, fields) == 0;
    if (joined != NULL && !matches) {
        PyErr_Format(PyExc_ImportError,
                     "splunk_profiler.raw.%s has the fields \"%U\", and this build was made for \"%s\": reinstall",
                     name, joined, fields);
    }
    Py_XDECREF(joined);
    Py_XDECREF(space);
    Py_XDECREF(names);
    return matches;
}

static bool take_tuple_types(module_state *state)
{
    PyObject *raw = PyImport_ImportModule("splunk_profiler.raw");
    bool matches = raw != NULL;
    for (int i = 0; matches && i < TUPLE_TYPE_COUNT; i++) {
        PyObject *type = PyObject_GetAttrString(raw, tuples[i].name);
        state->types[i] = (PyTypeObject *)type;
        matches = type != NULL && check_fields(type, tuples[i].name, tuples[i].fields + 1);
    }
    Py_XDECREF(raw);
    return matches;
}

static bool add_type(PyObject *module, PyType_Spec *spec)
{
    PyTypeObject *type = module_add_type(module, spec);
    Py_XDECREF(type); /* the module's dict has another reference */
    return type != NULL;
}

/* Add the states of threads, for a test that they are those of `raw`. */
static bool add_states(PyObject *module)
{
    return PyModule_AddIntConstant(module, "STATE_READY", THREAD_READY) == 0
           && PyModule_AddIntConstant(module, "STATE_RUNNING", THREAD_RUNNING) == 0
           && PyModule_AddIntConstant(module, "STATE_WANTS_GIL", THREAD_WANTS_GIL) == 0;
}

static int module_exec(PyObject *module)
{
    module_state *state = PyModule_GetState(module);
    bool done =
        module_prepare(MODULE_NAME, "the native walker serves the main interpreter only", on_interpreter_end) == 0
        && take_tuple_types(state) && PyModule_AddFunctions(module, sigterm_methods) == 0
        && PyModule_AddFunctions(module, spawn_methods) == 0 && PyModule_AddFunctions(module, thread_room_methods) == 0
        && add_type(module, &ticker_spec) && add_type(module, &snapshot_writer_spec) && add_states(module);
    state->raw_threads_type = done ? module_add_type(module, &raw_threads_spec) : NULL;
    state->owned_socket_type = state->raw_threads_type != NULL ? module_add_type(module, &owned_socket_spec) : NULL;
    return state->owned_socket_type != NULL ? 0 : -1;
}

static PyMethodDef module_methods[] = {
    {"set_after_fork_in_child", set_after_fork_in_child, METH_O},
    {"mark_profiler_thread", mark_profiler_thread, METH_O},
    {"delay_forks", delay_forks, METH_O},
    {"prepare_fork", prepare_fork, METH_O},
    {"close_inherited_sockets", close_inherited_sockets, METH_NOARGS},
    {"read_thread_stat", read_thread_stat, METH_O},
    {NULL},
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
    .m_traverse = module_traverse_references,
    .m_clear = module_clear_references,
    .m_free = module_free_references,
};

PyMODINIT_FUNC PyInit__walker(void)
{
    return PyModuleDef_Init(&module_def);
}
