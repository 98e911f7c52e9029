/* The extension splunk_profiler._context: parses arguments and returns values. Its contract is
 * splunk_profiler/_context.pyi. */
#include "context_cache.h"
#include "module_setup.h"
#include "socket_reader.h"
#include "publisher.h"
#include "hooks.h"

#define MODULE_NAME "splunk_profiler._context"

typedef struct {
    PyTypeObject *identity;      /* owned */
    PyTypeObject *user_labels;   /* owned */
    PyTypeObject *library;       /* owned */
    PyTypeObject *counters;      /* owned */
    PyTypeObject *socket_reader; /* owned */
} module_state;

static PyObject *install(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"variable", "span_key", "labels", "attribute", "identify", "context_type", NULL};
    const module_state *state = PyModule_GetState(module);
    publisher_config config = {.identity_type = state->identity, .user_labels_type = state->user_labels};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!UO!UOO!:install", names, &PyContextVar_Type, &config.variable,
                                     &config.span_key, &PyContextVar_Type, &config.labels, &config.attribute,
                                     &config.identify, &PyType_Type, &config.context_type)) {
        return NULL;
    }
    if (!PyCallable_Check(config.identify)) {
        return PyErr_Format(PyExc_TypeError, "identify must be callable, not %.100s",
                            Py_TYPE(config.identify)->tp_name);
    }
    return publisher_install(&config);
}

static PyObject *uninstall(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    publisher_uninstall();
    Py_RETURN_NONE;
}

static PyObject *trace_greenlets(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    int traced = greenlets_trace_thread();
    return traced < 0 ? NULL : PyBool_FromLong(traced);
}

static PyObject *publish(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    greenlets_ensure_traced();
    publisher_publish();
    Py_RETURN_NONE;
}

/* One call: no other thread sees the variable set and the labels not yet shown. */
static PyObject *set_labels(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *variable, *labels;
    if (!PyArg_ParseTuple(args, "O!O:set_labels", &PyContextVar_Type, &variable, &labels)) {
        return NULL;
    }
    PyObject *token = PyContextVar_Set(variable, labels);
    if (token == NULL) {
        return NULL;
    }
    Py_DECREF(token);
    greenlets_ensure_traced();
    publisher_publish();
    Py_RETURN_NONE;
}

static PyObject *refresh(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    (void)hooks_refresh();
    Py_RETURN_NONE;
}

static PyObject *load_labels_library(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"path", NULL};
    const module_state *state = PyModule_GetState(module);
    PyObject *path;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:load_labels_library", names, &path)) {
        return NULL;
    }
    return libraries_load_labels(state->library, path);
}

static PyObject *load_elastic_library(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"path", "storage", NULL};
    const module_state *state = PyModule_GetState(module);
    PyObject *path, *storage;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OS:load_elastic_library", names, &path, &storage)) {
        return NULL;
    }
    return libraries_load_elastic(state->library, path, storage);
}

static PyObject *counters(PyObject *module, PyObject *Py_UNUSED(unused))
{
    const module_state *state = PyModule_GetState(module);
    const publisher_counts *counts = publisher_counters();
    return PyObject_CallFunction((PyObject *)state->counters, "KKKKKK", counts->published, counts->unchanged,
                                 counts->cache_hits, counts->repaired, (unsigned long long)thread_records_count(),
                                 counts->failed);
}

static PyObject *reset_after_fork(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    thread_records_after_fork();
    context_cache_clear(); /* drop what was known of contexts of threads that no longer exist */
    Py_RETURN_NONE;
}

static void on_interpreter_end(PyObject *Py_UNUSED(capsule))
{
    publisher_finalize();
    hooks_finalize();
}

static PyTypeObject *add_named_tuple(PyObject *module, const char *name, const char *fields)
{
    PyObject *type = NULL, *namedtuple = NULL;
    PyObject *collections = PyImport_ImportModule("collections");
    PyObject *arguments = Py_BuildValue("(ss)", name, fields);
    PyObject *options = Py_BuildValue("{ss}", "module", MODULE_NAME);
    if (collections != NULL && arguments != NULL && options != NULL) {
        namedtuple = PyObject_GetAttrString(collections, "namedtuple");
    }
    if (namedtuple != NULL) {
        type = PyObject_Call(namedtuple, arguments, options);
    }
    if (type != NULL && PyModule_AddObjectRef(module, name, type) != 0) {
        Py_CLEAR(type);
    }
    Py_XDECREF(namedtuple);
    Py_XDECREF(options);
    Py_XDECREF(arguments);
    Py_XDECREF(collections);
    return (PyTypeObject *)type;
}

static int module_exec(PyObject *module)
{
    module_state *state = PyModule_GetState(module);
    if (module_prepare(MODULE_NAME, "contexts are published of the main interpreter only", on_interpreter_end) != 0) {
        return -1;
    }
    if ((state->identity = module_add_type(module, &identity_spec)) == NULL
        || (state->user_labels = module_add_type(module, &user_labels_spec)) == NULL
        || (state->library = add_named_tuple(module, "Library", "path tls")) == NULL
        || (state->counters =
                add_named_tuple(module, "SwitchCounters", "published unchanged cache_hits repaired threads failed"))
               == NULL
        || (state->socket_reader = module_add_type(module, &socket_reader_spec)) == NULL) {
        return -1;
    }
    return 0;
}

static int module_traverse(PyObject *module, visitproc visit, void *arg)
{
    module_state *state = PyModule_GetState(module);
    Py_VISIT(state->identity);
    Py_VISIT(state->user_labels);
    Py_VISIT(state->library);
    Py_VISIT(state->counters);
    Py_VISIT(state->socket_reader);
    return 0;
}

static int module_clear(PyObject *module)
{
    module_state *state = PyModule_GetState(module);
    Py_CLEAR(state->identity);
    Py_CLEAR(state->user_labels);
    Py_CLEAR(state->library);
    Py_CLEAR(state->counters);
    Py_CLEAR(state->socket_reader);
    return 0;
}

static void module_free(void *module)
{
    (void)module_clear(module);
}

#define KEYWORDS (METH_VARARGS | METH_KEYWORDS)

static PyMethodDef module_methods[] = {
    {"install", (PyCFunction)(void (*)(void))install, KEYWORDS,
     "install($module, variable, span_key, labels, attribute, identify, context_type)\n--\n\nPublish contexts at every "
     "switch."},
    {"uninstall", uninstall, METH_NOARGS, "uninstall($module)\n--\n\nStop publishing: threads show nothing."},
    {"attach", (PyCFunction)(void (*)(void))hooks_attach, METH_FASTCALL | METH_KEYWORDS,
     "attach($module, context)\n--\n\nSet the variable, then publish."},
    {"detach", (PyCFunction)(void (*)(void))hooks_detach, METH_FASTCALL | METH_KEYWORDS,
     "detach($module, token)\n--\n\nReset the variable, then publish."},
    {"trace_greenlets", trace_greenlets, METH_NOARGS,
     "trace_greenlets($module)\n--\n\nTrace the calling thread's greenlet switches."},
    {"publish", publish, METH_NOARGS, "publish($module)\n--\n\nPublish the calling thread's context as it is now."},
    {"set_labels", set_labels, METH_VARARGS,
     "set_labels($module, variable, labels, /)\n--\n\nSet the variable, then publish."},
    {"previous_local_root", identity_previous_local_root, METH_O,
     "previous_local_root($module, trace_id, /)\n--\n\nReturn the local root that was shown, for identify."},
    {"assign_identity", (PyCFunction)(void (*)(void))spans_assign_identity, METH_FASTCALL | METH_KEYWORDS,
     "assign_identity($module, span, parent_context=None)\n--\n\nSet the Identity of a span that starts."},
    {"refresh", refresh, METH_NOARGS, "refresh($module)\n--\n\nLook for newly loaded modules."},
    {"load_labels_library", (PyCFunction)(void (*)(void))load_labels_library, KEYWORDS,
     "load_labels_library($module, path)\n--\n\nPublish through libcustomlabels.so."},
    {"load_elastic_library", (PyCFunction)(void (*)(void))load_elastic_library, KEYWORDS,
     "load_elastic_library($module, path, storage)\n--\n\nPublish through elastic-jvmti-linux-<arch>.so."},
    {"replace_storage", libraries_replace_storage, METH_O,
     "replace_storage($module, storage, /)\n--\n\nReplace the process storage in one store."},
    {"clear_storage", libraries_clear_storage, METH_NOARGS,
     "clear_storage($module)\n--\n\nRemove the process storage for readers."},
    {"audit", audit, METH_NOARGS, "audit($module)\n--\n\nCompare what all threads show with their contexts."},
    {"counters", counters, METH_NOARGS, "counters($module)\n--\n\nReturn the counts since the module was loaded."},
    {"reset_after_fork", reset_after_fork, METH_NOARGS,
     "reset_after_fork($module)\n--\n\nDrop the records of threads that no longer exist."},
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
    .m_size = sizeof(module_state),
    .m_methods = module_methods,
    .m_slots = module_slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};

PyMODINIT_FUNC PyInit__context(void)
{
    return PyModuleDef_Init(&module_def);
}
