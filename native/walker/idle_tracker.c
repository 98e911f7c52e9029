/* The type splunk_profiler._walker.IdleTracker, which finds the threads of a snapshot that changed since the
 * previous one. Its contract is splunk_profiler/_walker.pyi.
 *
 * Most threads of a service wait most of the time. An idle thread is reported once.
 *
 * One thread uses an IdleTracker. A second thread, or a finaliser in the middle, gets complete answers and
 * does not corrupt memory. For this a call takes the entries out of the object while it works on them.
 */
#include "ticker_state.h"

#include "public_compat.h"

/* One thread of a snapshot. */
typedef struct {
    PyObject *thread; /* owned: the RawThread; its items are compared by identity */
    uint64_t key;
    int64_t cpu_ns; /* the last that could be read */
    bool is_waiting;
    bool is_idle; /* it is reported no more while it stays so: the receiver knows its state */
} idle_entry;

typedef struct {
    size_t count;
    idle_entry entries[]; /* in the order of the snapshot: by key */
} idle_table;

static const idle_table no_threads;

typedef struct {
    PyObject_HEAD
    idle_table *previous; /* NULL: no snapshot yet, or a call works on it */
} IdleTracker;

/* Replace the table of the tracker; return the one that it had. */
static idle_table *exchange_table(IdleTracker *self, idle_table *table)
{
    idle_table *replaced = self->previous;
    self->previous = table;
    return replaced;
}

static void table_free(idle_table *table)
{
    for (size_t i = 0; table != NULL && i < table->count; i++) {
        Py_DECREF(table->entries[i].thread);
    }
    PyMem_Free(table);
}

/* Return false with an exception if this is no RawThread. */
static bool parse_thread(PyObject *thread, idle_entry *entry)
{
    if (!PyTuple_Check(thread) || PyTuple_GET_SIZE(thread) != THREAD_FIELD_COUNT) {
        PyErr_Format(PyExc_TypeError, "threads must be RawThreads, not %.100s", Py_TYPE(thread)->tp_name);
        return false;
    }
    PyObject *state = PyTuple_GET_ITEM(thread, THREAD_state);
    entry->key = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(thread, THREAD_key));
    if (PyErr_Occurred()) {
        return false;
    }
    entry->cpu_ns = PyLong_AsLongLong(PyTuple_GET_ITEM(thread, THREAD_cpu_ns));
    if (PyErr_Occurred()) {
        return false;
    }
    entry->is_waiting = state == Py_None || PyLong_AsLong(state) == THREAD_WAITING;
    return !PyErr_Occurred();
}

/* Return the table of a snapshot, or NULL with an exception: an item is no RawThread, or out of order. */
static idle_table *parse_threads(PyObject *threads)
{
    Py_ssize_t count = PyTuple_GET_SIZE(threads);
    idle_table *table = PyMem_Calloc(1, sizeof(idle_table) + (size_t)count * sizeof(idle_entry));
    if (table == NULL) {
        return (idle_table *)PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        idle_entry *entry = &table->entries[i];
        if (!parse_thread(PyTuple_GET_ITEM(threads, i), entry)) {
            goto error;
        }
        if (i > 0 && entry->key <= table->entries[i - 1].key) {
            PyErr_SetString(PyExc_ValueError, "threads must be in the order of their keys");
            goto error;
        }
        entry->thread = Py_NewRef(PyTuple_GET_ITEM(threads, i));
        table->count++;
    }
    return table;
error:
    table_free(table);
    return NULL;
}

/* Return true if a thread stays idle, so that it is not reported. `previous`: the thread in the previous
 * snapshot, or NULL. */
static bool stays_idle(idle_entry *entry, const idle_entry *previous)
{
    entry->is_idle = previous != NULL && entry->is_waiting && entry->cpu_ns <= previous->cpu_ns;
    if (previous != NULL && entry->cpu_ns == 0) {
        entry->cpu_ns = previous->cpu_ns; /* the clock could not be read */
    }
    if (!entry->is_idle || !previous->is_idle) {
        return false;
    }
    for (int field = THREAD_stack; field <= THREAD_labels; field++) {
        if (PyTuple_GET_ITEM(entry->thread, field) != PyTuple_GET_ITEM(previous->thread, field)) {
            return false;
        }
    }
    return true;
}

/* Append the keys of the threads before `end_key`, which have ended; `index` is where to go on. */
static bool append_ended(PyObject **list, const idle_table *previous, size_t *index, uint64_t end_key)
{
    while (*index < previous->count && previous->entries[*index].key < end_key) {
        if (!append_item(list, PyLong_FromUnsignedLongLong(previous->entries[(*index)++].key))) {
            return false;
        }
    }
    return true;
}

/* Return the ThreadChanges, or NULL with an exception. Both tables are in the order of their keys. */
static PyObject *compare_tables(const module_state *module, const idle_table *previous, idle_table *current)
{
    PyObject *changed = PyList_New(0), *ended = PyList_New(0);
    bool done = changed != NULL && ended != NULL;
    size_t index = 0;
    for (size_t i = 0; done && i < current->count; i++) {
        idle_entry *entry = &current->entries[i];
        done = append_ended(&ended, previous, &index, entry->key);
        bool is_known = index < previous->count && previous->entries[index].key == entry->key;
        const idle_entry *before = is_known ? &previous->entries[index++] : NULL;
        done = done && (stays_idle(entry, before) || append_item(&changed, Py_NewRef(entry->thread)));
    }
    if (done) {
        (void)append_ended(&ended, previous, &index, UINT64_MAX);
    }
    PyObject *items[] = {[CHANGES_changed] = changed, [CHANGES_ended] = ended};
    return make_tuple(module->types[THREAD_CHANGES], items, CHANGES_FIELD_COUNT);
}

static PyObject *idle_tracker_find_changes(IdleTracker *self, PyObject *threads)
{
    if (!PyTuple_Check(threads)) {
        return PyErr_Format(PyExc_TypeError, "threads must be a tuple, not %.100s", Py_TYPE(threads)->tp_name);
    }
    /* From here on Python code may run. If this call fails, the next one reports every thread. */
    PyObject *made = NULL;
    idle_table *previous = exchange_table(self, NULL), *current = parse_threads(threads);
    if (current != NULL) {
        made = compare_tables(state_of((PyObject *)self), previous == NULL ? &no_threads : previous, current);
        table_free(made == NULL ? current : exchange_table(self, current));
    }
    table_free(previous);
    return made;
}

static int idle_tracker_traverse(IdleTracker *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    for (size_t i = 0; self->previous != NULL && i < self->previous->count; i++) {
        Py_VISIT(self->previous->entries[i].thread);
    }
    return 0;
}

static int idle_tracker_clear(IdleTracker *self)
{
    table_free(exchange_table(self, NULL));
    return 0;
}

static PyObject *idle_tracker_clear_method(IdleTracker *self, PyObject *Py_UNUSED(unused))
{
    (void)idle_tracker_clear(self);
    Py_RETURN_NONE;
}

static void idle_tracker_dealloc(IdleTracker *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    (void)idle_tracker_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef idle_tracker_methods[] = {
    {"find_changes", (PyCFunction)idle_tracker_find_changes, METH_O,
     "find_changes($self, threads, /)\n--\n\nReturn the changed threads of a snapshot."},
    {"clear", (PyCFunction)idle_tracker_clear_method, METH_NOARGS,
     "clear($self, /)\n--\n\nHave the next find_changes() report all."},
    {NULL},
};

static PyType_Slot idle_tracker_slots[] = {
    {Py_tp_doc, "Finds the threads that changed; see the stub for the contract."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_dealloc, idle_tracker_dealloc},
    {Py_tp_traverse, idle_tracker_traverse},
    {Py_tp_clear, idle_tracker_clear},
    {Py_tp_methods, idle_tracker_methods},
    {0, NULL},
};

PyType_Spec idle_tracker_spec = {
    .name = "splunk_profiler._walker.IdleTracker",
    .basicsize = sizeof(IdleTracker),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = idle_tracker_slots,
};
