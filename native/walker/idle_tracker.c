/* The type splunk_profiler._walker.IdleTracker, which finds the threads of a snapshot that changed since the
 * previous one. Its contract is splunk_profiler/_walker.pyi.
 *
 * Most threads of a service wait most of the time. An idle thread is reported once, and its idle snapshots
 * are counted.
 *
 * One thread uses an IdleTracker. A second thread, or a finaliser in the middle, gets complete answers and
 * does not corrupt memory. For this a call takes the entries out of the object while it works on them.
 */
#include "module_state.h"
#include "raw_fields.h"

#include "public_compat.h"

/* With more threads than this, reading the priorities takes longer than releasing the GIL and taking it again. */
#define MAX_PRIORITIES_WITH_GIL 64

/* One thread of the last snapshot. */
typedef struct {
    uint64_t key;
    PyObject *thread; /* owned: the RawThread reported last; its items are compared by identity */
    int64_t cpu_ns;
    bool is_idle;               /* it was idle when reported last, so the receiver knows its state */
    unsigned long long count;   /* idle snapshots since then */
    unsigned long long idle_ns; /* sum of their periods */
} idle_entry;

typedef struct {
    size_t count;
    idle_entry entries[]; /* in the order of the snapshot: by key */
} idle_table;

typedef struct {
    uint64_t key;
    PyObject *thread; /* borrowed from the tuple */
    pid_t native_id;
    int64_t cpu_ns;
    bool is_waiting;
    int nice;
} current_thread;

typedef struct {
    PyObject_HEAD
    idle_table *previous_table; /* NULL: no snapshot yet, or a call works on it */
    bool skip_idle;             /* false: every call reports all threads, with priorities */
} IdleTracker;

static void read_priorities(current_thread *current, size_t count)
{
    PyThreadState *state = count > MAX_PRIORITIES_WITH_GIL ? PyEval_SaveThread() : NULL;
    for (size_t i = 0; i < count; i++) {
        current[i].nice = thread_nice(current[i].native_id);
    }
    if (state != NULL) {
        PyEval_RestoreThread(state);
    }
}

static void table_free(idle_table *entries)
{
    if (entries == NULL) {
        return;
    }
    for (size_t i = 0; i < entries->count; i++) {
        Py_DECREF(entries->entries[i].thread);
    }
    PyMem_Free(entries);
}

/* Fill `current`. Return false with an exception if an item is no RawThread, or the keys are not in order. */
static bool parse_threads(PyObject *threads, current_thread *current)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(threads); i++) {
        PyObject *thread = PyTuple_GET_ITEM(threads, i);
        if (!PyTuple_Check(thread) || PyTuple_GET_SIZE(thread) != THREAD_FIELD_COUNT) {
            PyErr_Format(PyExc_TypeError, "threads must be RawThreads, not %.100s", Py_TYPE(thread)->tp_name);
            return false;
        }
        current[i] = (current_thread){.thread = thread, .is_waiting = true};
        current[i].key = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(thread, THREAD_key));
        if (PyErr_Occurred()) {
            return false;
        }
        if (i > 0 && current[i].key <= current[i - 1].key) {
            PyErr_SetString(PyExc_ValueError, "threads must be in the order of their keys");
            return false;
        }
        current[i].cpu_ns = PyLong_AsLongLong(PyTuple_GET_ITEM(thread, THREAD_cpu_ns));
        if (PyTuple_GET_ITEM(thread, THREAD_state) != Py_None) {
            current[i].is_waiting = PyLong_AsLong(PyTuple_GET_ITEM(thread, THREAD_state)) == THREAD_WAITING;
        }
        if (PyErr_Occurred() || !native_id_parse(&current[i].native_id, PyTuple_GET_ITEM(thread, THREAD_native_id))) {
            return false;
        }
    }
    return true;
}

static bool is_unchanged(PyObject *one, PyObject *other)
{
    for (int field = THREAD_stack; field <= THREAD_labels; field++) {
        if (PyTuple_GET_ITEM(one, field) != PyTuple_GET_ITEM(other, field)) {
            return false;
        }
    }
    return true;
}

static bool append_and_release(PyObject *list, PyObject *item)
{
    bool appended = item != NULL && PyList_Append(list, item) == 0;
    Py_XDECREF(item);
    return appended;
}

static bool append_change(const value_types *types, PyObject *list, const current_thread *current,
                          const idle_entry *previous)
{
    PyObject *items[] = {
        [CHANGE_thread] = Py_NewRef(current->thread),
        [CHANGE_nice] = PyLong_FromLong(current->nice),
        [CHANGE_idle_count] = PyLong_FromUnsignedLongLong(previous == NULL ? 0 : previous->count),
        [CHANGE_idle_ns] = PyLong_FromUnsignedLongLong(previous == NULL ? 0 : previous->idle_ns),
    };
    return append_and_release(list, make_tuple(types->thread_change, items, CHANGE_FIELD_COUNT));
}

static bool append_idle_span(const value_types *types, PyObject *list, const idle_entry *entry)
{
    PyObject *items[] = {
        [IDLE_SPAN_key] = PyLong_FromUnsignedLongLong(entry->key),
        [IDLE_SPAN_idle_count] = PyLong_FromUnsignedLongLong(entry->count),
        [IDLE_SPAN_idle_ns] = PyLong_FromUnsignedLongLong(entry->idle_ns),
    };
    return append_and_release(list, make_tuple(types->idle_span, items, IDLE_SPAN_FIELD_COUNT));
}

/* Compare two snapshots, both in the order of their keys. Return false with an exception if there is no
 * memory; `new_table` is consistent in either case. */
static bool compare_threads(const value_types *types, const IdleTracker *self, const idle_table *previous_table,
                            const current_thread *current, size_t count, unsigned long long period_ns,
                            idle_table *new_table, PyObject *changed, PyObject *ended_spans)
{
    size_t previous_index = 0, previous_count = previous_table == NULL ? 0 : previous_table->count;
    for (size_t i = 0; i < count; i++) {
        for (; previous_index < previous_count && previous_table->entries[previous_index].key < current[i].key;
             previous_index++) {
            if (!append_idle_span(types, ended_spans, &previous_table->entries[previous_index])) {
                return false;
            }
        }
        const idle_entry *previous =
            previous_index < previous_count && previous_table->entries[previous_index].key == current[i].key
                ? &previous_table->entries[previous_index++]
                : NULL;
        bool has_run = previous == NULL || current[i].cpu_ns > previous->cpu_ns || !current[i].is_waiting;
        idle_entry *updated = &new_table->entries[i];
        *updated =
            (idle_entry){.key = current[i].key, .cpu_ns = current[i].cpu_ns, .is_idle = !has_run && self->skip_idle};
        if (previous != NULL && current[i].cpu_ns == 0) {
            updated->cpu_ns = previous->cpu_ns; /* the clock could not be read */
        }
        bool is_repeat = !has_run && previous->is_idle && is_unchanged(current[i].thread, previous->thread);
        if (is_repeat) {
            updated->count = previous->count + 1;
            updated->idle_ns = previous->idle_ns + period_ns;
        }
        updated->thread = Py_NewRef(current[i].thread);
        new_table->count++;
        if (!is_repeat && !append_change(types, changed, &current[i], previous)) {
            return false;
        }
    }
    for (; previous_index < previous_count; previous_index++) {
        if (!append_idle_span(types, ended_spans, &previous_table->entries[previous_index])) {
            return false;
        }
    }
    return true;
}

static PyObject *idle_tracker_find_changes(IdleTracker *self, PyObject *args)
{
    PyObject *threads, *changed = NULL, *ended_spans = NULL, *made = NULL;
    unsigned long long period_ns;
    current_thread *current = NULL;
    idle_table *previous_table = NULL, *new_table = NULL;
    const module_state *state = PyType_GetModuleState(Py_TYPE(self));
    if (state == NULL || !PyArg_ParseTuple(args, "O!K:find_changes", &PyTuple_Type, &threads, &period_ns)) {
        return NULL;
    }
    size_t count = (size_t)PyTuple_GET_SIZE(threads);
    current = PyMem_Malloc((count + 1) * sizeof(current_thread));
    new_table = PyMem_Malloc(sizeof(idle_table) + count * sizeof(idle_entry));
    changed = PyList_New(0);
    ended_spans = PyList_New(0);
    if (new_table != NULL) {
        new_table->count = 0;
    }
    if (current == NULL || new_table == NULL || changed == NULL || ended_spans == NULL) {
        PyErr_NoMemory();
        goto error;
    }
    previous_table = self->previous_table;
    /* From here on Python code may run. If this call fails, the next one reports every thread. */
    self->previous_table = NULL;
    if (!parse_threads(threads, current)) {
        goto error;
    }
    if (!self->skip_idle) {
        read_priorities(current, count);
    }
    if (!compare_threads(&state->types, self, previous_table, current, count, period_ns, new_table, changed,
                         ended_spans)) {
        goto error;
    }
    made = Py_BuildValue("(OO)", changed, ended_spans);
    if (made != NULL) {
        idle_table *replaced_table = self->previous_table;
        self->previous_table = new_table;
        new_table = replaced_table;
    }
error:;
    compat_exception pending = compat_save_exception(); /* finalisers run below */
    PyMem_Free(current);
    Py_XDECREF(changed);
    Py_XDECREF(ended_spans);
    table_free(previous_table);
    table_free(new_table);
    compat_restore_exception(pending);
    return made;
}

static PyObject *idle_tracker_take_idle_spans(IdleTracker *self, PyObject *Py_UNUSED(unused))
{
    const module_state *state = PyType_GetModuleState(Py_TYPE(self));
    if (state == NULL) {
        return NULL;
    }
    PyObject *idle_spans = PyList_New(0);
    idle_table *previous_table = self->previous_table;
    self->previous_table = NULL;
    for (size_t i = 0; idle_spans != NULL && previous_table != NULL && i < previous_table->count; i++) {
        idle_entry *idle = &previous_table->entries[i];
        if (idle->count > 0 && !append_idle_span(&state->types, idle_spans, idle)) {
            Py_CLEAR(idle_spans);
            break;
        }
        idle->is_idle = false;
        idle->count = idle->idle_ns = 0;
    }
    idle_table *replaced_table = self->previous_table;
    if (idle_spans != NULL) {
        self->previous_table = previous_table;
        previous_table = replaced_table;
    }
    compat_exception pending = compat_save_exception();
    table_free(previous_table);
    compat_restore_exception(pending);
    return idle_spans;
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
    for (size_t i = 0; self->previous_table != NULL && i < self->previous_table->count; i++) {
        Py_VISIT(self->previous_table->entries[i].thread);
    }
    return 0;
}

static int idle_tracker_clear(IdleTracker *self)
{
    idle_table *previous_table = self->previous_table;
    self->previous_table = NULL;
    table_free(previous_table);
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
    {"take_idle_spans", (PyCFunction)idle_tracker_take_idle_spans, METH_NOARGS,
     "take_idle_spans($self, /)\n--\n\nReturn the idle spans; the next find_changes() reports all."},
    {NULL, NULL, 0, NULL},
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
