/* The type splunk_profiler._walker.Ticker: arguments in, values out. What it does is in the other files.
 *
 * The contract is splunk_profiler/_walker.pyi.
 */
#include "walker.h"

#include <stdlib.h>

#define RING_SIZE_MAX          65536
#define MAX_DEPTH_MAX          1000000
#define COLLECTION_DISTANCE_NS 10000000LL

typedef struct {
    PyObject_HEAD
    core *core; /* one reference of it; never NULL once made */
} Ticker;

/* ---- Ticker ---- */

static bool is_variable(const char *name, PyObject *given)
{
    if (given == Py_None || PyContextVar_CheckExact(given)) {
        return true;
    }
    PyErr_Format(PyExc_TypeError, "%s must be a ContextVar or None, not %.100s", name, Py_TYPE(given)->tp_name);
    return false;
}

static PyObject *ticker_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {
        "context_var", "labels_var", "max_depth", "make_frame", "make_stack", "ring_size", "collection_distance_ns",
        "focus",       "threads",    NULL};
    PyObject *context_var = Py_None, *labels_var = Py_None, *make_frame = Py_None, *make_stack = Py_None;
    PyObject *focus = Py_None, *threads = NULL;
    Py_ssize_t max_depth = 0, ring_size = 0; /* what has no default is refused below */
    long long distance_ns = COLLECTION_DISTANCE_NS;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$OOnOOnLOO!:Ticker", names, &context_var, &labels_var, &max_depth,
                                     &make_frame, &make_stack, &ring_size, &distance_ns, &focus, &PyDict_Type,
                                     &threads)) {
        return NULL;
    }
    if (!is_variable("context_var", context_var) || !is_variable("labels_var", labels_var)) {
        return NULL;
    }
    if (!PyCallable_Check(make_frame) || !PyCallable_Check(make_stack)) {
        PyErr_SetString(PyExc_TypeError, "make_frame and make_stack must be callable");
        return NULL;
    }
    if (max_depth < 1 || max_depth > MAX_DEPTH_MAX) {
        PyErr_Format(PyExc_ValueError, "max_depth must be 1 to %d, not %zd", MAX_DEPTH_MAX, max_depth);
        return NULL;
    }
    if (ring_size < 1 || ring_size > RING_SIZE_MAX) {
        PyErr_Format(PyExc_ValueError, "ring_size must be 1 to %d, not %zd", RING_SIZE_MAX, ring_size);
        return NULL;
    }
    if (distance_ns < 0) {
        return PyErr_Format(PyExc_ValueError, "collection_distance_ns must not be negative, it is %lld", distance_ns);
    }
    if (forks_prepare_process() != 0) {
        return PyErr_NoMemory();
    }
    core *made = core_new(PyInterpreterState_Get(), (size_t)ring_size);
    if (made == NULL) {
        return PyErr_NoMemory();
    }
    Ticker *self = (Ticker *)type->tp_alloc(type, 0);
    if (self == NULL) {
        core_drop(made);
        return NULL;
    }
    made->context_var = context_var == Py_None ? NULL : Py_NewRef(context_var);
    made->labels_var = labels_var == Py_None ? NULL : Py_NewRef(labels_var);
    made->threads = Py_XNewRef(threads);
    made->make_frame = Py_NewRef(make_frame);
    made->make_stack = Py_NewRef(make_stack);
    made->max_depth = (size_t)max_depth;
    made->collection_distance_ns = distance_ns;
    made->name_key = PyUnicode_InternFromString("__name__");
    made->generation_key = made->name_key == NULL ? NULL : PyUnicode_InternFromString("generation");
    made->native_id_key = made->generation_key == NULL ? NULL : PyUnicode_InternFromString("_native_id");
    self->core = made;
    if (made->native_id_key == NULL || !focus_take(made, focus)) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static int ticker_traverse(Ticker *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    return self->core == NULL ? 0 : core_traverse(self->core, visit, arg);
}

/* A run() under way holds a reference to the Ticker, so the loop is over when this is called. */
static int ticker_clear(Ticker *self)
{
    core_stop(self->core);
    atomic_store(&self->core->closed, true);
    core_release_all(self->core);
    return 0;
}

static void ticker_dealloc(Ticker *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    if (self->core != NULL) {
        ticker_clear(self);
        core_drop(self->core);
    }
    type->tp_free(self);
    Py_DECREF(type);
}

static bool parse_periods(PyObject *args, PyObject *kwargs, const char *format, long long periods_ns[2])
{
    static char *names[] = {"period_ns", "focused_period_ns", NULL};
    periods_ns[1] = 0;
    return PyArg_ParseTupleAndKeywords(args, kwargs, format, names, &periods_ns[0], &periods_ns[1]);
}

static PyObject *ticker_run(Ticker *self, PyObject *args, PyObject *kwargs)
{
    long long ns[2];
    if (!parse_periods(args, kwargs, "L|L:run", ns) || core_run(self->core, ns[0], ns[1]) != 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *ticker_pace(Ticker *self, PyObject *args, PyObject *kwargs)
{
    long long ns[2];
    if (!parse_periods(args, kwargs, "L|L:pace", ns) || core_pace(self->core, ns[0], ns[1]) != 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *ticker_stop(Ticker *self, PyObject *Py_UNUSED(unused))
{
    core_stop(self->core);
    Py_RETURN_NONE;
}

static PyObject *ticker_focus(Ticker *self, PyObject *Py_UNUSED(unused))
{
    core_focus(self->core);
    Py_RETURN_NONE;
}

static PyObject *ticker_capture(Ticker *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"focused", NULL};
    int focused = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$p:capture", names, &focused)) {
        return NULL;
    }
    core_capture(self->core, focused);
    Py_RETURN_NONE;
}

/* All that is ready, oldest first, linked; out of the core. */
static raw_snapshot *take_ready(core *c)
{
    raw_snapshot *first = NULL;
    for (size_t i = atomic_load(&c->ready); i > 0; i--) {
        raw_snapshot *snapshot = c->ring[(c->ring_first + i - 1) % c->ring_size];
        snapshot->next = first;
        first = snapshot;
    }
    atomic_store(&c->ready, 0);
    return first;
}

static PyObject *ticker_drain(Ticker *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"timeout_ns", NULL};
    core *c = self->core;
    raw_snapshot *taken = NULL;
    long long timeout_ns;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "L:drain", names, &timeout_ns)) {
        return NULL;
    }
    if (timeout_ns < 0) {
        return PyErr_Format(PyExc_ValueError, "timeout_ns must not be negative, it is %lld", timeout_ns);
    }
    const module_state *state = PyType_GetModuleState(Py_TYPE(self));
    if (state == NULL) {
        return NULL;
    }
    value_types types = {state->raw_thread, state->raw_snapshot, state->collection};
    core_release_dead(c);
    if (timeout_ns > 0 && atomic_load(&c->ready) == 0) {
        Py_BEGIN_ALLOW_THREADS
        core_wait_filled(c, timeout_ns);
        Py_END_ALLOW_THREADS
    }
    PyObject *drained = PyList_New(0);
    if (drained == NULL) {
        goto error;
    }
    taken = take_ready(c);
    while (taken != NULL) {
        PyObject *made = convert_snapshot(c, &types, taken);
        if (made == NULL) {
            goto error;
        }
        int failed = PyList_Append(drained, made);
        Py_DECREF(made);
        if (failed) {
            goto error;
        }
        raw_snapshot *done = taken;
        taken = taken->next;
        snapshot_free(c, done);
    }
    core_release_dead(c);
    return drained;
error:
    Py_XDECREF(drained);
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback); /* finalisers run below */
    while (taken != NULL) {
        raw_snapshot *lost = taken;
        taken = taken->next;
        snapshot_free(c, lost);
    }
    core_release_dead(c);
    PyErr_Restore(type, value, traceback);
    return NULL;
}

/* A callback of the collector, which calls it with ("start" or "stop", {"generation": 0, ...}). */
static PyObject *ticker_note_collection(Ticker *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2 || !PyUnicode_Check(args[0]) || !PyDict_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "note_collection takes a phase and a dict, as the collector gives them");
        return NULL;
    }
    return collections_note(self->core, args[0], args[1]);
}

static PyObject *ticker_drain_collections(Ticker *self, PyObject *Py_UNUSED(unused))
{
    const module_state *state = PyType_GetModuleState(Py_TYPE(self));
    if (state == NULL) {
        return NULL;
    }
    value_types types = {state->raw_thread, state->raw_snapshot, state->collection};
    return collections_drain(self->core, &types);
}

static PyObject *ticker_counters(Ticker *self, PyObject *Py_UNUSED(unused))
{
    core *c = self->core;
    const module_state *state = PyType_GetModuleState(Py_TYPE(self));
    if (state == NULL) {
        return NULL;
    }
    return PyObject_CallFunction((PyObject *)state->counters, "KKKKKLLL", (unsigned long long)atomic_load(&c->due),
                                 (unsigned long long)atomic_load(&c->captured),
                                 (unsigned long long)atomic_load(&c->by_pending_call),
                                 (unsigned long long)atomic_load(&c->missed),
                                 (unsigned long long)atomic_load(&c->overwrites), (long long)atomic_load(&c->late_max),
                                 (long long)atomic_load(&c->late_sum), (long long)atomic_load(&c->held_sum));
}

static PyMethodDef ticker_methods[] = {
    {"run", (PyCFunction)(void (*)(void))ticker_run, METH_VARARGS | METH_KEYWORDS,
     "run($self, period_ns, focused_period_ns=0)\n--\n\nCapture at absolute deadlines until stop()."},
    {"pace", (PyCFunction)(void (*)(void))ticker_pace, METH_VARARGS | METH_KEYWORDS,
     "pace($self, period_ns, focused_period_ns=0)\n--\n\nLet deadlines be so far apart from now on."},
    {"stop", (PyCFunction)ticker_stop, METH_NOARGS, "stop($self, /)\n--\n\nMake run and drain return, for good."},
    {"focus", (PyCFunction)ticker_focus, METH_NOARGS, "focus($self, /)\n--\n\nThere is a trace in the focus."},
    {"capture", (PyCFunction)(void (*)(void))ticker_capture, METH_VARARGS | METH_KEYWORDS,
     "capture($self, *, focused=False)\n--\n\nTake one snapshot now."},
    {"drain", (PyCFunction)(void (*)(void))ticker_drain, METH_VARARGS | METH_KEYWORDS,
     "drain($self, timeout_ns)\n--\n\nThe snapshots taken, oldest first."},
    {"note_collection", (PyCFunction)(void (*)(void))ticker_note_collection, METH_FASTCALL,
     "note_collection($self, phase, info, /)\n--\n\nTo be one of gc.callbacks."},
    {"drain_collections", (PyCFunction)ticker_drain_collections, METH_NOARGS,
     "drain_collections($self, /)\n--\n\nThe collections kept, oldest first."},
    {"counters", (PyCFunction)ticker_counters, METH_NOARGS,
     "counters($self, /)\n--\n\nWhat was done since it was made."},
    {"__class_getitem__", Py_GenericAlias, METH_O | METH_CLASS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot ticker_slots[] = {
    {Py_tp_doc, "Takes snapshots of all threads at a fixed rhythm; see the stub for the contract."},
    {Py_tp_new, ticker_new},
    {Py_tp_dealloc, ticker_dealloc},
    {Py_tp_traverse, ticker_traverse},
    {Py_tp_clear, ticker_clear},
    {Py_tp_methods, ticker_methods},
    {0, NULL},
};

PyType_Spec ticker_spec = {
    .name = "splunk_profiler._walker.Ticker",
    .basicsize = sizeof(Ticker),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = ticker_slots,
};
