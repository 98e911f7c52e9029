/* The type splunk_profiler._walker.Watch: which threads of a snapshot have changed since the one before.
 *
 * Most threads of a service wait most of the time. What is said of them again and again is the same, so it is said once,
 * and counted. The contract is splunk_profiler/_walker.pyi. One thread uses a Watch; another one that does so, or a
 * finaliser that runs in the middle, gets answers that are complete and leaves the memory whole: the entries are taken
 * out while they are worked on.
 */
#include "walker.h"

#define BRIEF 64 /* threads whose priorities take less time to ask for than it takes to get the GIL and give it back */

/* A thread of the last snapshot. */
typedef struct {
    uint64_t key;
    PyObject *thread; /* owned: the RawThread that was told last; what it holds is compared by identity */
    int64_t cpu_ns;
    bool rests;                /* it had not run when it was told: whoever was told knows it as it is */
    unsigned long long count;  /* of snapshots since then in which it rested */
    unsigned long long sum_ns; /* of their periods */
} entry;

typedef struct {
    size_t count;
    entry entries[]; /* in the order of the snapshot: by key */
} table;

typedef struct {
    uint64_t key;
    PyObject *thread; /* borrowed from the tuple */
    pid_t native_id;
    int64_t cpu_ns;
    bool waits;
    int nice;
} seen_thread;

typedef struct {
    PyObject_HEAD
    table *last;      /* NULL: there was no snapshot, or it is being worked on */
    bool counts_rest; /* else all threads are told each time, with their priorities */
} Watch;

enum { KEY, IDENT, NATIVE_ID, STACK, CONTEXT, LABELS, CPU_NS, STATE, OBJECT, FIELDS }; /* of a RawThread */

static void read_priorities(seen_thread *seen, size_t count)
{
    PyThreadState *state = count > BRIEF ? PyEval_SaveThread() : NULL;
    for (size_t i = 0; i < count; i++) {
        seen[i].nice = thread_nice(seen[i].native_id);
    }
    if (state != NULL) {
        PyEval_RestoreThread(state);
    }
}

static void table_free(table *entries)
{
    if (entries == NULL) {
        return;
    }
    for (size_t i = 0; i < entries->count; i++) {
        Py_DECREF(entries->entries[i].thread);
    }
    PyMem_Free(entries);
}

/* Written to `seen`. False and an exception if they are no RawThreads, or not in the order of their keys. */
static bool take_threads(PyObject *threads, seen_thread *seen)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(threads); i++) {
        PyObject *thread = PyTuple_GET_ITEM(threads, i);
        if (!PyTuple_Check(thread) || PyTuple_GET_SIZE(thread) != FIELDS) {
            PyErr_Format(PyExc_TypeError, "threads must be RawThreads, not %.100s", Py_TYPE(thread)->tp_name);
            return false;
        }
        seen[i] = (seen_thread){.thread = thread, .waits = true};
        seen[i].key = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(thread, KEY));
        if (PyErr_Occurred()) {
            return false;
        }
        if (i > 0 && seen[i].key <= seen[i - 1].key) {
            PyErr_SetString(PyExc_ValueError, "threads must be in the order of their keys");
            return false;
        }
        seen[i].cpu_ns = PyLong_AsLongLong(PyTuple_GET_ITEM(thread, CPU_NS));
        if (PyTuple_GET_ITEM(thread, STATE) != Py_None) {
            seen[i].waits = PyLong_AsLong(PyTuple_GET_ITEM(thread, STATE)) == THREAD_WAITS;
        }
        if (PyErr_Occurred() || !native_id_take(&seen[i].native_id, PyTuple_GET_ITEM(thread, NATIVE_ID))) {
            return false;
        }
    }
    return true;
}

static bool is_same(PyObject *one, PyObject *other)
{
    for (int field = STACK; field <= LABELS; field++) {
        if (PyTuple_GET_ITEM(one, field) != PyTuple_GET_ITEM(other, field)) {
            return false;
        }
    }
    return true;
}

static bool append_new(PyObject *list, PyObject *item)
{
    bool appended = item != NULL && PyList_Append(list, item) == 0;
    Py_XDECREF(item);
    return appended;
}

static bool tell(PyObject *list, const seen_thread *seen, const entry *before)
{
    return append_new(list, Py_BuildValue("(OiKK)", seen->thread, seen->nice, before == NULL ? 0ULL : before->count,
                                          before == NULL ? 0ULL : before->sum_ns));
}

static bool tell_key(PyObject *list, const entry *gone)
{
    return append_new(list, Py_BuildValue("(KKK)", (unsigned long long)gone->key, gone->count, gone->sum_ns));
}

/* Both in the order of their keys. False and an exception if there is no memory; `now` is whole in either case. */
static bool compare(const Watch *self, const table *last, const seen_thread *seen, size_t count,
                    unsigned long long period_ns, table *now, PyObject *changed, PyObject *gone)
{
    size_t old = 0, known = last == NULL ? 0 : last->count;
    for (size_t i = 0; i < count; i++) {
        for (; old < known && last->entries[old].key < seen[i].key; old++) {
            if (!tell_key(gone, &last->entries[old])) {
                return false;
            }
        }
        const entry *before = old < known && last->entries[old].key == seen[i].key ? &last->entries[old++] : NULL;
        bool ran = before == NULL || seen[i].cpu_ns > before->cpu_ns || !seen[i].waits;
        entry *after = &now->entries[i];
        *after = (entry){.key = seen[i].key, .cpu_ns = seen[i].cpu_ns, .rests = !ran && self->counts_rest};
        if (before != NULL && seen[i].cpu_ns == 0) {
            after->cpu_ns = before->cpu_ns; /* it could not be read */
        }
        bool same = !ran && before->rests && is_same(seen[i].thread, before->thread);
        if (same) {
            after->count = before->count + 1;
            after->sum_ns = before->sum_ns + period_ns;
        }
        after->thread = Py_NewRef(seen[i].thread);
        now->count++;
        if (!same && !tell(changed, &seen[i], before)) {
            return false;
        }
    }
    for (; old < known; old++) {
        if (!tell_key(gone, &last->entries[old])) {
            return false;
        }
    }
    return true;
}

static PyObject *watch_changes(Watch *self, PyObject *args)
{
    PyObject *threads, *changed = NULL, *gone = NULL, *made = NULL;
    unsigned long long period_ns;
    seen_thread *seen = NULL;
    table *last = NULL, *now = NULL;
    if (!PyArg_ParseTuple(args, "O!K:changes", &PyTuple_Type, &threads, &period_ns)) {
        return NULL;
    }
    size_t count = (size_t)PyTuple_GET_SIZE(threads);
    seen = PyMem_Malloc((count + 1) * sizeof(seen_thread));
    now = PyMem_Malloc(sizeof(table) + count * sizeof(entry));
    changed = PyList_New(0);
    gone = PyList_New(0);
    if (now != NULL) {
        now->count = 0;
    }
    if (seen == NULL || now == NULL || changed == NULL || gone == NULL) {
        PyErr_NoMemory();
        goto error;
    }
    last = self->last;
    self->last = NULL; /* from here on Python code may run, and who is not told everything is told all the next time */
    if (!take_threads(threads, seen)) {
        goto error;
    }
    if (!self->counts_rest) {
        read_priorities(seen, count);
    }
    if (!compare(self, last, seen, count, period_ns, now, changed, gone)) {
        goto error;
    }
    made = Py_BuildValue("(OO)", changed, gone);
    if (made != NULL) {
        table *others = self->last;
        self->last = now;
        now = others;
    }
error:;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback); /* finalisers run below */
    PyMem_Free(seen);
    Py_XDECREF(changed);
    Py_XDECREF(gone);
    table_free(last);
    table_free(now);
    PyErr_Restore(type, value, traceback);
    return made;
}

static PyObject *watch_rested(Watch *self, PyObject *Py_UNUSED(unused))
{
    PyObject *rested = PyList_New(0);
    table *last = self->last;
    self->last = NULL;
    for (size_t i = 0; rested != NULL && last != NULL && i < last->count; i++) {
        entry *resting = &last->entries[i];
        if (resting->count > 0 && !tell_key(rested, resting)) {
            Py_CLEAR(rested);
            break;
        }
        resting->rests = false;
        resting->count = resting->sum_ns = 0;
    }
    table *others = self->last;
    if (rested != NULL) {
        self->last = last;
        last = others;
    }
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    table_free(last);
    PyErr_Restore(type, value, traceback);
    return rested;
}

static PyObject *watch_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"counts_rest", NULL};
    int counts_rest;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "$p:Watch", names, &counts_rest)) {
        return NULL;
    }
    Watch *self = (Watch *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->counts_rest = counts_rest;
    }
    return (PyObject *)self;
}

static int watch_traverse(Watch *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    for (size_t i = 0; self->last != NULL && i < self->last->count; i++) {
        Py_VISIT(self->last->entries[i].thread);
    }
    return 0;
}

static int watch_clear(Watch *self)
{
    table *last = self->last;
    self->last = NULL;
    table_free(last);
    return 0;
}

static void watch_dealloc(Watch *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    (void)watch_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef watch_methods[] = {
    {"changes", (PyCFunction)watch_changes, METH_VARARGS,
     "changes($self, threads, period_ns, /)\n--\n\nWhat is new of the threads of a snapshot."},
    {"rested", (PyCFunction)watch_rested, METH_NOARGS,
     "rested($self, /)\n--\n\nHow long threads have rested; the next changes() tells all."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot watch_slots[] = {
    {Py_tp_doc, "Tells which threads have changed; see the stub for the contract."},
    {Py_tp_new, watch_new},
    {Py_tp_dealloc, watch_dealloc},
    {Py_tp_traverse, watch_traverse},
    {Py_tp_clear, watch_clear},
    {Py_tp_methods, watch_methods},
    {0, NULL},
};

PyType_Spec watch_spec = {
    .name = "splunk_profiler._walker.Watch",
    .basicsize = sizeof(Watch),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = watch_slots,
};
