/* The extension splunk_profiler._context: parses arguments and returns values. Its contract is
 * splunk_profiler/_context.pyi. */
#include "module_setup.h"
#include "publisher.h"
#include "hooks.h"

#define MODULE_NAME "splunk_profiler._context"

PyObject *module_type(PyObject *module, type_index index)
{
    return ((PyObject **)PyModule_GetState(module))[index];
}

static PyObject *uninstall(PyObject *module, PyObject *unused)
{
    publisher_uninstall();
    Py_RETURN_NONE;
}

#define COUNTER_NAME(index, name)   " " #name
#define COUNTER_FORMAT(index, name) "K"
#define COUNTER_VALUE(index, name)  , publisher_counters[index]

/* For the tests. */
static PyObject *counters(PyObject *module, PyObject *unused)
{
    return PyObject_CallFunction(module_type(module, SWITCH_COUNTERS_TYPE), "n" SWITCH_COUNTERS(COUNTER_FORMAT),
                                 (Py_ssize_t)thread_records_count() SWITCH_COUNTERS(COUNTER_VALUE));
}

static PyObject *reset_after_fork(PyObject *module, PyObject *unused)
{
    thread_records_after_fork();
    context_cache_clear(); /* drop what was known of contexts of threads that no longer exist */
    Py_RETURN_NONE;
}

static void on_interpreter_end(PyObject *Py_UNUSED(capsule))
{
    publisher_uninstall();
    hooks_finalize();
}

static PyObject *add_named_tuple(PyObject *module, const char *name, const char *fields)
{
    PyObject *collections = PyImport_ImportModule("collections");
    PyObject *type = collections == NULL ? NULL : PyObject_CallMethod(collections, "namedtuple", "ss", name, fields);
    PyObject *module_name = PyModule_GetNameObject(module);
    if (type != NULL
        && (module_name == NULL || PyObject_SetAttrString(type, "__module__", module_name) != 0
            || PyModule_AddObjectRef(module, name, type) != 0)) {
        Py_CLEAR(type);
    }
    Py_XDECREF(module_name);
    Py_XDECREF(collections);
    return type;
}

static int module_exec(PyObject *module)
{
    static PyType_Spec *const specs[] = {
        [IDENTITY_TYPE] = &identity_spec,
        [USER_LABELS_TYPE] = &user_labels_spec,
        [SOCKET_READER_TYPE] = &socket_reader_spec,
    };
    static const struct {
        const char *name, *fields;
    } tuples[TYPE_COUNT] = {
        [SWITCH_COUNTERS_TYPE] = {"SwitchCounters", "threads" SWITCH_COUNTERS(COUNTER_NAME)},
        [AUDIT_RESULT_TYPE] = {"AuditResult", "compared repaired"},
        [RECEIVED_MESSAGES_TYPE] = {"ReceivedMessages", "received too_long"},
        [HOOK_PROBLEM_TYPE] = {"HookProblem", "hook problem"},
    };
    PyObject **types = PyModule_GetState(module);
    if (module_prepare(MODULE_NAME, "contexts are published of the main interpreter only", on_interpreter_end) != 0) {
        return -1;
    }
    for (size_t i = 0; i < TYPE_COUNT; i++) {
        types[i] = i < Py_ARRAY_LENGTH(specs) ? (PyObject *)module_add_type(module, specs[i])
                                              : add_named_tuple(module, tuples[i].name, tuples[i].fields);
        if (types[i] == NULL) {
            return -1;
        }
    }
    return 0;
}

#define FAST                (METH_FASTCALL | METH_KEYWORDS)
#define AS_METHOD(function) (PyCFunction)(void (*)(void))(function)

static PyMethodDef module_methods[] = {
    {"install", publisher_install, METH_VARARGS},
    {"begin", publisher_begin, METH_NOARGS},
    {"uninstall", uninstall, METH_NOARGS},
    {"attach", AS_METHOD(hooks_attach), FAST},
    {"detach", AS_METHOD(hooks_detach), FAST},
    {"publish", hooks_publish, METH_NOARGS},
    {"set_labels", hooks_set_variable, METH_VARARGS},
    {"known_local_root", spans_known_local_root, METH_O},
    {"assign_identity", AS_METHOD(spans_assign_identity), FAST},
    {"refresh", hooks_refresh, METH_NOARGS},
    {"wait_for_linker", libraries_wait_for_linker, METH_NOARGS},
    {"load_labels_library", libraries_load_labels, METH_O},
    {"load_elastic_library", libraries_load_elastic, METH_VARARGS},
    {"replace_storage", libraries_replace_storage, METH_O},
    {"clear_storage", libraries_clear_storage, METH_NOARGS},
    {"audit", audit, METH_NOARGS},
    {"counters", counters, METH_NOARGS},
    {"reset_after_fork", reset_after_fork, METH_NOARGS},
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
    .m_doc = "Publishes each thread's trace context where host profilers read it.",
    .m_size = TYPE_COUNT * sizeof(PyObject *),
    .m_methods = module_methods,
    .m_slots = module_slots,
    .m_traverse = module_traverse_references,
    .m_clear = module_clear_references,
    .m_free = module_free_references,
};

PyMODINIT_FUNC PyInit__context(void)
{
    return PyModuleDef_Init(&module_def);
}
