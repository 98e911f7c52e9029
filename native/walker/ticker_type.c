/* The type splunk_profiler._walker.Ticker: parses arguments and returns values. Its contract is
 * splunk_profiler/_walker.pyi. */
#include "module_state.h"
#include "raw_fields.h"

#include "public_compat.h"

#include <stdlib.h>

#define MAX_RING_SIZE                  65536
#define MAX_STACK_DEPTH                1000000
#define DEFAULT_COLLECTION_INTERVAL_NS 10000000LL

typedef struct {
    PyObject_HEAD
    ticker_state *ticker_state; /* one reference; never NULL after construction */
} Ticker;

static bool check_context_var(const char *name, PyObject *given)
{
    if (given == Py_None || PyContextVar_CheckExact(given)) {
        return true;
    }
    PyErr_Format(PyExc_TypeError, "%s must be a ContextVar or None, not %.100s", name, Py_TYPE(given)->tp_name);
    return false;
}

/* The arguments of the constructor. All borrowed. */
typedef struct {
    PyObject *context_var, *labels_var, *make_frame, *make_stack, *trace_filter;
    PyObject *threads; /* a dict, or NULL */
    Py_ssize_t max_depth, ring_size;
    long long interval_ns;
} ticker_arguments;

/* Return false with an exception if an argument is invalid. filter_set checks `trace_filter`. */
static bool parse_arguments(PyObject *args, PyObject *kwargs, ticker_arguments *given)
{
    static char *names[] = {"context_var",
                            "labels_var",
                            "max_depth",
                            "make_frame",
                            "make_stack",
                            "ring_size",
                            "min_collection_interval_ns",
                            "trace_filter",
                            "threads",
                            NULL};
    /* The zeros and the None of the callables are invalid: these arguments are required, and checked below. */
    *given =
        (ticker_arguments){Py_None, Py_None, Py_None, Py_None, Py_None, NULL, 0, 0, DEFAULT_COLLECTION_INTERVAL_NS};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$OOnOOnLOO!:Ticker", names, &given->context_var,
                                     &given->labels_var, &given->max_depth, &given->make_frame, &given->make_stack,
                                     &given->ring_size, &given->interval_ns, &given->trace_filter, &PyDict_Type,
                                     &given->threads)
        || !check_context_var("context_var", given->context_var)
        || !check_context_var("labels_var", given->labels_var)) {
        return false;
    }
    if (!PyCallable_Check(given->make_frame) || !PyCallable_Check(given->make_stack)) {
        PyErr_SetString(PyExc_TypeError, "make_frame and make_stack must be callable");
    }
    else if (given->max_depth < 1 || given->max_depth > MAX_STACK_DEPTH) {
        PyErr_Format(PyExc_ValueError, "max_depth must be 1 to %d, not %zd", MAX_STACK_DEPTH, given->max_depth);
    }
    else if (given->ring_size < 1 || given->ring_size > MAX_RING_SIZE) {
        PyErr_Format(PyExc_ValueError, "ring_size must be 1 to %d, not %zd", MAX_RING_SIZE, given->ring_size);
    }
    else if (given->interval_ns < 0) {
        PyErr_Format(PyExc_ValueError, "min_collection_interval_ns must not be negative, it is %lld",
                     given->interval_ns);
    }
    else {
        return true;
    }
    return false;
}

static PyObject *new_ref_unless_none(PyObject *object)
{
    return object == Py_None ? NULL : Py_NewRef(object);
}

static PyObject *ticker_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    ticker_arguments given;
    if (!parse_arguments(args, kwargs, &given)) {
        return NULL;
    }
    if (forks_register_handlers() != 0) {
        return PyErr_NoMemory();
    }
    ticker_state *made = ticker_state_new(PyInterpreterState_Get(), (size_t)given.ring_size);
    if (made == NULL) {
        return PyErr_NoMemory();
    }
    Ticker *self = (Ticker *)type->tp_alloc(type, 0);
    if (self == NULL) {
        ticker_state_unref(made);
        return NULL;
    }
    made->context_var = new_ref_unless_none(given.context_var);
    made->labels_var = new_ref_unless_none(given.labels_var);
    made->threads = Py_XNewRef(given.threads);
    made->make_frame = Py_NewRef(given.make_frame);
    made->make_stack = Py_NewRef(given.make_stack);
    made->max_depth = (size_t)given.max_depth;
    made->min_collection_interval_ns = given.interval_ns;
    made->name_key = PyUnicode_InternFromString("__name__");
    made->generation_key = made->name_key == NULL ? NULL : PyUnicode_InternFromString("generation");
    made->native_id_key = made->generation_key == NULL ? NULL : PyUnicode_InternFromString("_native_id");
    self->ticker_state = made;
    if (made->native_id_key == NULL || !filter_set(made, given.trace_filter)) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static int ticker_traverse(Ticker *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    return self->ticker_state == NULL ? 0 : ticker_state_traverse(self->ticker_state, visit, arg);
}

/* A running run() holds a reference to the Ticker, so its loop is over when this is called. */
static int ticker_clear(Ticker *self)
{
    ticker_state_stop(self->ticker_state);
    atomic_store(&self->ticker_state->is_closed, true);
    ticker_state_release_all(self->ticker_state);
    return 0;
}

static void ticker_dealloc(Ticker *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    if (self->ticker_state != NULL) {
        ticker_clear(self);
        ticker_state_unref(self->ticker_state);
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
    if (!parse_periods(args, kwargs, "L|L:run", ns) || ticker_state_run(self->ticker_state, ns[0], ns[1]) != 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *ticker_set_periods(Ticker *self, PyObject *args, PyObject *kwargs)
{
    long long ns[2];
    if (!parse_periods(args, kwargs, "L|L:set_periods", ns)
        || ticker_state_set_periods(self->ticker_state, ns[0], ns[1]) != 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *ticker_stop(Ticker *self, PyObject *Py_UNUSED(unused))
{
    ticker_state_stop(self->ticker_state);
    Py_RETURN_NONE;
}

static PyObject *ticker_notify_trace_added(Ticker *self, PyObject *Py_UNUSED(unused))
{
    ticker_state_notify_trace_added(self->ticker_state);
    Py_RETURN_NONE;
}

static PyObject *ticker_capture(Ticker *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"is_focused", NULL};
    int is_focused = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$p:capture", names, &is_focused)) {
        return NULL;
    }
    ticker_state_capture_now(self->ticker_state, is_focused);
    Py_RETURN_NONE;
}

/* Take all ready snapshots out of the ring. Return them as a list, oldest first. */
static raw_snapshot *pop_ready_snapshots(ticker_state *ticker)
{
    raw_snapshot *first = NULL;
    for (size_t i = atomic_load(&ticker->ready); i > 0; i--) {
        raw_snapshot *snapshot = ticker->ring[(ticker->ring_first + i - 1) % ticker->ring_size];
        snapshot->next = first;
        first = snapshot;
    }
    atomic_store(&ticker->ready, 0);
    return first;
}

static PyObject *ticker_drain(Ticker *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"timeout_ns", NULL};
    ticker_state *ticker = self->ticker_state;
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
    ticker_state_free_unreferenced(ticker);
    if (timeout_ns > 0 && atomic_load(&ticker->ready) == 0) {
        Py_BEGIN_ALLOW_THREADS
        ticker_state_wait_ready(ticker, timeout_ns);
        Py_END_ALLOW_THREADS
    }
    PyObject *drained = PyList_New(0);
    if (drained == NULL) {
        goto error;
    }
    taken = pop_ready_snapshots(ticker);
    while (taken != NULL) {
        PyObject *made = convert_snapshot(ticker, &state->types, taken);
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
        snapshot_free(ticker, done);
    }
    ticker_state_free_unreferenced(ticker);
    return drained;
error:
    Py_XDECREF(drained);
    compat_exception pending = compat_save_exception(); /* finalisers run below */
    while (taken != NULL) {
        raw_snapshot *lost = taken;
        taken = taken->next;
        snapshot_free(ticker, lost);
    }
    ticker_state_free_unreferenced(ticker);
    compat_restore_exception(pending);
    return NULL;
}

/* Handle a callback of the collector, with ("start" or "stop", {"generation": 0, ...}). */
static PyObject *ticker_on_gc_event(Ticker *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2 || !PyUnicode_Check(args[0]) || !PyDict_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "on_gc_event takes a phase and a dict, as the collector gives them");
        return NULL;
    }
    return collections_handle_event(self->ticker_state, args[0], args[1]);
}

static PyObject *ticker_drain_collections(Ticker *self, PyObject *Py_UNUSED(unused))
{
    const module_state *state = PyType_GetModuleState(Py_TYPE(self));
    if (state == NULL) {
        return NULL;
    }
    return collections_drain(self->ticker_state, &state->types);
}

static PyObject *ticker_counters(Ticker *self, PyObject *Py_UNUSED(unused))
{
    ticker_state *ticker = self->ticker_state;
    const module_state *state = PyType_GetModuleState(Py_TYPE(self));
    if (state == NULL) {
        return NULL;
    }
    PyObject *items[] = {
        [COUNTERS_due] = PyLong_FromUnsignedLongLong(atomic_load(&ticker->due)),
        [COUNTERS_captured] = PyLong_FromUnsignedLongLong(atomic_load(&ticker->captured)),
        [COUNTERS_by_pending_call] = PyLong_FromUnsignedLongLong(atomic_load(&ticker->by_pending_call)),
        [COUNTERS_missed] = PyLong_FromUnsignedLongLong(atomic_load(&ticker->missed)),
        [COUNTERS_overwritten] = PyLong_FromUnsignedLongLong(atomic_load(&ticker->overwrites)),
        [COUNTERS_latency_ns_max] = PyLong_FromLongLong(atomic_load(&ticker->latency_ns_max)),
        [COUNTERS_latency_ns_sum] = PyLong_FromLongLong(atomic_load(&ticker->latency_ns_sum)),
        [COUNTERS_gil_held_ns_sum] = PyLong_FromLongLong(atomic_load(&ticker->gil_held_ns_sum)),
    };
    return make_tuple(state->types.ticker_counters, items, COUNTERS_FIELD_COUNT);
}

static PyMethodDef ticker_methods[] = {
    {"run", (PyCFunction)(void (*)(void))ticker_run, METH_VARARGS | METH_KEYWORDS,
     "run($self, period_ns, focused_period_ns=0)\n--\n\nCapture at absolute deadlines until stop()."},
    {"set_periods", (PyCFunction)(void (*)(void))ticker_set_periods, METH_VARARGS | METH_KEYWORDS,
     "set_periods($self, period_ns, focused_period_ns=0)\n--\n\nChange the periods of a running ticker."},
    {"stop", (PyCFunction)ticker_stop, METH_NOARGS, "stop($self, /)\n--\n\nMake run and drain return, for good."},
    {"notify_trace_added", (PyCFunction)ticker_notify_trace_added, METH_NOARGS,
     "notify_trace_added($self, /)\n--\n\nAnnounce a trace in the filter."},
    {"capture", (PyCFunction)(void (*)(void))ticker_capture, METH_VARARGS | METH_KEYWORDS,
     "capture($self, *, is_focused=False)\n--\n\nTake one snapshot now."},
    {"drain", (PyCFunction)(void (*)(void))ticker_drain, METH_VARARGS | METH_KEYWORDS,
     "drain($self, timeout_ns)\n--\n\nReturn the snapshots, oldest first."},
    {"on_gc_event", (PyCFunction)(void (*)(void))ticker_on_gc_event, METH_FASTCALL,
     "on_gc_event($self, phase, info, /)\n--\n\nRecord a collection; for gc.callbacks."},
    {"drain_collections", (PyCFunction)ticker_drain_collections, METH_NOARGS,
     "drain_collections($self, /)\n--\n\nReturn the kept collections, oldest first."},
    {"counters", (PyCFunction)ticker_counters, METH_NOARGS,
     "counters($self, /)\n--\n\nReturn the counts since construction."},
    {"__class_getitem__", Py_GenericAlias, METH_O | METH_CLASS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot ticker_slots[] = {
    {Py_tp_doc, "Takes snapshots of all threads at fixed periods; see the stub for the contract."},
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
