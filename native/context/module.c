/* The extension splunk_profiler._context: parses arguments and returns values. Its contract is
 * splunk_profiler/_context.pyi. */
#include "module_setup.h"
#include "publisher.h"
#include "hooks.h"

#define MODULE_NAME "splunk_profiler._context"

/* The module's state is an owned reference to each of these types. */
static PyType_Spec *const types[] = {&identity_spec, &user_labels_spec, &socket_reader_spec};

PyObject *module_identity_type(PyObject *module)
{
    return *(PyObject **)PyModule_GetState(module);
}

static PyObject *uninstall(PyObject *module, PyObject *unused)
{
    publisher_uninstall();
    Py_RETURN_NONE;
}

#define COUNTER_FORMAT(index, name) "sK"
#define COUNTER_VALUE(index, name)  , #name, publisher_counters[index]

/* For tests and debuggers. */
static PyObject *counters(PyObject *module, PyObject *unused)
{
    return Py_BuildValue("{sn" SWITCH_COUNTERS(COUNTER_FORMAT) "}", "threads",
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

static int module_exec(PyObject *module)
{
    PyObject **references = PyModule_GetState(module);
    if (module_prepare(MODULE_NAME, "contexts are published of the main interpreter only", on_interpreter_end) != 0) {
        return -1;
    }
    for (size_t i = 0; i < Py_ARRAY_LENGTH(types); i++) {
        references[i] = (PyObject *)module_add_type(module, types[i]);
        if (references[i] == NULL) {
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
    {"keep_grpc_fork_handlers", grpc_forks_keep_handlers, METH_NOARGS},
    {"drop_grpc_fork_handlers", grpc_forks_drop_handlers, METH_NOARGS},
    {"is_left_out_of_grpc_fork", grpc_forks_is_left_out, METH_NOARGS},
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
    .m_size = Py_ARRAY_LENGTH(types) * sizeof(PyObject *),
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
