/* The type splunk_profiler._walker.IdleTracker, which finds the threads of a snapshot that changed since the
 * previous one. Its contract is splunk_profiler/_walker.pyi.
 *
 * Most threads of a service wait most of the time. An idle thread is reported once, and its idle snapshots
 * are counted.
 *
 * One thread uses an IdleTracker. A second thread, or a finaliser in the middle, gets complete answers and
 * does not corrupt memory. For this a call takes the entries out of the object while it works on them.
 */
#include "ticker_state.h"

#include "public_compat.h"

/* With more threads than this, reading the priorities takes longer than releasing the GIL and taking it again. */
#define MAX_PRIORITIES_WITH_GIL 64

/* One thread of a snapshot. */
typedef struct {
    PyObject *thread; /* owned: the RawThread; its items are compared by identity */
    uint64_t key;
    pid_t native_id;
    int nice;
    int64_t cpu_ns; /* the last that could be read */
    bool is_waiting;
    bool is_idle;               /* it is reported no more while it stays so: the receiver knows its state */
    unsigned long long count;   /* idle snapshots since it was reported */
    unsigned long long idle_ns; /* sum of their periods */
} idle_entry;

typedef struct {
    size_t count;
    idle_entry entries[]; /* in the order of the snapshot: by key */
} idle_table;

static const idle_table no_threads;

typedef struct {
    PyObject_HEAD
    idle_table *previous; /* NULL: no snapshot yet, or a call works on it */
    bool skip_idle;       /* false: every call reports all threads, with priorities */
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

static void read_priorities(idle_table *table)
{
    PyThreadState *state = table->count > MAX_PRIORITIES_WITH_GIL ? PyEval_SaveThread() : NULL;
    for (size_t i = 0; i < table->count; i++) {
        table->entries[i].nice = thread_nice(table->entries[i].native_id);
    }
    if (state != NULL) {
        PyEval_RestoreThread(state);
    }
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
    return !PyErr_Occurred() && native_id_parse(&entry->native_id, PyTuple_GET_ITEM(thread, THREAD_native_id));
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

/* Count another idle snapshot of a thread. Return false if it must be reported instead. */
static bool count_idle(const IdleTracker *self, idle_entry *entry, const idle_entry *previous,
                       unsigned long long period_ns)
{
    entry->is_idle = self->skip_idle && previous != NULL && entry->is_waiting && entry->cpu_ns <= previous->cpu_ns;
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
    entry->count = previous->count + 1;
    entry->idle_ns = previous->idle_ns + period_ns;
    return true;
}

/* `previous`: the thread in the previous snapshot, or NULL. On failure set the list to NULL. */
static bool append_change(const module_state *module, PyObject **list, const idle_entry *entry,
                          const idle_entry *previous)
{
    PyObject *items[] = {
        [CHANGE_thread] = Py_NewRef(entry->thread),
        [CHANGE_nice] = PyLong_FromLong(entry->nice),
        [CHANGE_idle_count] = PyLong_FromUnsignedLongLong(previous == NULL ? 0 : previous->count),
        [CHANGE_idle_ns] = PyLong_FromUnsignedLongLong(previous == NULL ? 0 : previous->idle_ns),
    };
    return append_item(list, make_tuple(module->types[THREAD_CHANGE], items, CHANGE_FIELD_COUNT));
}

static bool append_idle_time(const module_state *module, PyObject **list, const idle_entry *entry)
{
    PyObject *items[] = {
        [IDLE_TIME_key] = PyLong_FromUnsignedLongLong(entry->key),
        [IDLE_TIME_idle_count] = PyLong_FromUnsignedLongLong(entry->count),
        [IDLE_TIME_idle_ns] = PyLong_FromUnsignedLongLong(entry->idle_ns),
    };
    return append_item(list, make_tuple(module->types[IDLE_TIME], items, IDLE_TIME_FIELD_COUNT));
}

/* Append the idle times of the threads before `end_key`, which have ended; `index` is where to go on. */
static bool append_ended(const module_state *module, PyObject **list, const idle_table *previous, size_t *index,
                         uint64_t end_key)
{
    while (*index < previous->count && previous->entries[*index].key < end_key) {
        if (!append_idle_time(module, list, &previous->entries[(*index)++])) {
            return false;
        }
    }
    return true;
}

/* Return the ThreadChanges, or NULL with an exception. Both tables are in the order of their keys. */
static PyObject *compare_tables(IdleTracker *self, const idle_table *previous, idle_table *current,
                                unsigned long long period_ns)
{
    const module_state *module = state_of((PyObject *)self);
    PyObject *changed = PyList_New(0), *ended = PyList_New(0);
    bool done = changed != NULL && ended != NULL;
    size_t index = 0;
    for (size_t i = 0; done && i < current->count; i++) {
        idle_entry *entry = &current->entries[i];
        done = append_ended(module, &ended, previous, &index, entry->key);
        bool is_known = index < previous->count && previous->entries[index].key == entry->key;
        const idle_entry *before = is_known ? &previous->entries[index++] : NULL;
        done = done && (count_idle(self, entry, before, period_ns) || append_change(module, &changed, entry, before));
    }
    if (done) {
        (void)append_ended(module, &ended, previous, &index, UINT64_MAX);
    }
    PyObject *items[] = {[CHANGES_changed] = changed, [CHANGES_ended] = ended};
    return make_tuple(module->types[THREAD_CHANGES], items, CHANGES_FIELD_COUNT);
}

static PyObject *idle_tracker_find_changes(IdleTracker *self, PyObject *args)
{
    PyObject *threads, *made = NULL;
    unsigned long long period_ns;
    if (!PyArg_ParseTuple(args, "O!K:find_changes", &PyTuple_Type, &threads, &period_ns)) {
        return NULL;
    }
    /* From here on Python code may run. If this call fails, the next one reports every thread. */
    idle_table *previous = exchange_table(self, NULL), *current = parse_threads(threads);
    if (current != NULL) {
        if (!self->skip_idle) {
            read_priorities(current);
        }
        made = compare_tables(self, previous == NULL ? &no_threads : previous, current, period_ns);
        table_free(made == NULL ? current : exchange_table(self, current));
    }
    table_free(previous);
    return made;
}

static PyObject *idle_tracker_take_idle_times(IdleTracker *self, PyObject *Py_UNUSED(unused))
{
    PyObject *idle_times = PyList_New(0);
    idle_table *table = exchange_table(self, NULL);
    for (size_t i = 0; idle_times != NULL && table != NULL && i < table->count; i++) {
        idle_entry *entry = &table->entries[i];
        if (entry->count > 0 && !append_idle_time(state_of((PyObject *)self), &idle_times, entry)) {
            break;
        }
        entry->is_idle = false;
        entry->count = entry->idle_ns = 0;
    }
    table_free(idle_times == NULL ? table : exchange_table(self, table));
    return idle_times;
}

static PyObject *idle_tracker_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"skip_idle", NULL};
    int skip_idle;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "$p:IdleTracker", names, &skip_idle)) {
        return NULL;
    }
    IdleTracker *self = (IdleTracker *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->skip_idle = skip_idle;
    }
    return (PyObject *)self;
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

static void idle_tracker_dealloc(IdleTracker *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    (void)idle_tracker_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef idle_tracker_methods[] = {
    {"find_changes", (PyCFunction)idle_tracker_find_changes, METH_VARARGS,
     "find_changes($self, threads, period_ns, /)\n--\n\nReturn the changed threads of a snapshot."},
    {"take_idle_times", (PyCFunction)idle_tracker_take_idle_times, METH_NOARGS,
     "take_idle_times($self, /)\n--\n\nReturn the idle times; the next find_changes() reports all."},
    {NULL},
};

static PyType_Slot idle_tracker_slots[] = {
    {Py_tp_doc, "Finds the threads that changed; see the stub for the contract."},
    {Py_tp_new, idle_tracker_new},
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
