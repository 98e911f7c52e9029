/* The type splunk_profiler._walker.Ticker: parses arguments and returns values. Its contract is
 * splunk_profiler/_walker.pyi. */
#include "exceptions.h"
#include "lock_holders.h"
#include "tasks.h"

#include "allocations.h"

#define MAX_RING_SIZE                  65536
#define MAX_STACK_DEPTH                1000000
#define DEFAULT_COLLECTION_INTERVAL_NS 10000000LL
#define MAX_SAMPLE_BYTES               (1LL << 40)

typedef struct {
    PyObject_HEAD
    ticker_state *ticker_state; /* one reference; NULL only during construction */
} Ticker;

/* The next two are converters of arguments. They store borrowed references; NULL: None was given. */
static int convert_context_var(PyObject *given, void *context_var)
{
    if (given != Py_None && !PyContextVar_CheckExact(given)) {
        PyErr_Format(PyExc_TypeError, "a ContextVar or None is needed, not %.100s", Py_TYPE(given)->tp_name);
        return 0;
    }
    *(PyObject **)context_var = given == Py_None ? NULL : given;
    return 1;
}

static int convert_trace_filter(PyObject *given, void *arguments)
{
    ticker_arguments *filter = arguments;
    if (given == Py_None) {
        return 1;
    }
    if (!PyTuple_Check(given)) {
        PyErr_Format(PyExc_TypeError, "trace_filter must be a tuple or None, not %.100s", Py_TYPE(given)->tp_name);
        return 0;
    }
    return PyArg_ParseTuple(given, "O!U:trace_filter", &PyDict_Type, &filter->traces, &filter->span_key);
}

/* The arguments come out borrowed. Return false with an exception if one is invalid. */
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
                            "exception_interval",
                            NULL};
    /* The zeros and NULLs of required arguments are invalid, which is checked below. */
    *given = (ticker_arguments){.min_collection_interval_ns = DEFAULT_COLLECTION_INTERVAL_NS, .exception_interval = 1};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$O&O&nOOnLO&O!L:Ticker", names, convert_context_var,
                                     &given->context_var, convert_context_var, &given->labels_var, &given->max_depth,
                                     &given->make_frame, &given->make_stack, &given->ring_size,
                                     &given->min_collection_interval_ns, convert_trace_filter, given, &PyDict_Type,
                                     &given->threads, &given->exception_interval)) {
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
    else if (given->min_collection_interval_ns < 0) {
        PyErr_Format(PyExc_ValueError, "min_collection_interval_ns must not be negative, it is %lld",
                     given->min_collection_interval_ns);
    }
    else if (given->exception_interval < 1 || given->exception_interval > MAX_EXCEPTION_INTERVAL) {
        PyErr_Format(PyExc_ValueError, "exception_interval must be 1 to %d, not %lld", MAX_EXCEPTION_INTERVAL,
                     given->exception_interval);
    }
    else {
        return true;
    }
    return false;
}

static PyObject *ticker_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    ticker_arguments given;
    if (!parse_arguments(args, kwargs, &given)) {
        return NULL;
    }
    Ticker *self = (Ticker *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->ticker_state = ticker_state_new(&given, kwargs);
        if (self->ticker_state == NULL) {
            Py_CLEAR(self);
        }
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
    atomic_store(&self->ticker_state->loop.is_closed, true);
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

static PyObject *none_if(bool done)
{
    return done ? Py_NewRef(Py_None) : NULL;
}

static PyObject *ticker_run(Ticker *self, PyObject *args)
{
    long long period_ns, focused_period_ns = 0;
    return none_if(PyArg_ParseTuple(args, "L|L:run", &period_ns, &focused_period_ns)
                   && ticker_state_run(self->ticker_state, period_ns, focused_period_ns));
}

static PyObject *ticker_set_periods(Ticker *self, PyObject *args)
{
    long long period_ns, focused_period_ns = 0;
    return none_if(PyArg_ParseTuple(args, "L|L:set_periods", &period_ns, &focused_period_ns)
                   && ticker_state_set_periods(self->ticker_state, period_ns, focused_period_ns));
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

static PyObject *ticker_drain(Ticker *self, PyObject *timeout)
{
    ticker_state *ticker = self->ticker_state;
    long long timeout_ns = PyLong_AsLongLong(timeout);
    if (timeout_ns == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (timeout_ns < 0) {
        return PyErr_Format(PyExc_ValueError, "timeout_ns must not be negative, it is %lld", timeout_ns);
    }
    ticker_state_free_unreferenced(ticker);
    if (timeout_ns > 0 && atomic_load(&ticker->ring.ready) == 0) {
        Py_BEGIN_ALLOW_THREADS
        ticker_state_wait_ready(ticker, timeout_ns);
        Py_END_ALLOW_THREADS
    }
    PyObject *drained = PyList_New(0);
    if (drained == NULL) {
        return NULL;
    }
    for (raw_snapshot *snapshot = snapshots_take(ticker), *next; snapshot != NULL; snapshot = next) {
        next = snapshot->next;
        if (drained != NULL) {
            (void)append_item(&drained, convert_snapshot(ticker, state_of((PyObject *)self), snapshot));
        }
        else { /* one has failed, and the others are lost */
            snapshot_free(ticker, snapshot);
        }
    }
    ticker_state_free_unreferenced(ticker);
    return drained;
}

/* Handle a callback of the collector, with ("start" or "stop", {"generation": 0, ...}). */
static PyObject *ticker_on_gc_event(Ticker *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2 || !PyUnicode_Check(args[0]) || !PyDict_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "on_gc_event takes a phase and a dict, as the collector gives them");
        return NULL;
    }
    return none_if(collections_handle_event(self->ticker_state, args[0], args[1]));
}

static PyObject *ticker_drain_collections(Ticker *self, PyObject *Py_UNUSED(unused))
{
    return collections_drain(self->ticker_state, state_of((PyObject *)self));
}

static PyObject *ticker_reads_tasks(Ticker *self, PyObject *args)
{
    PyObject *loop, *generator, *code;
    int offset;
    if (!PyArg_ParseTuple(args, "OO!O!i:reads_tasks", &loop, &PyGen_Type, &generator, &PyCode_Type, &code, &offset)) {
        return NULL;
    }
    return PyBool_FromLong(tasks_layouts_agree(self->ticker_state, loop, generator, code, offset));
}

static PyObject *ticker_running_loops(Ticker *self, PyObject *Py_UNUSED(unused))
{
    return tasks_running_loops(self->ticker_state);
}

static PyObject *ticker_capture_tasks(Ticker *self, PyObject *args)
{
    PyObject *tasks, *task_type;
    Py_ssize_t limit;
    if (!PyArg_ParseTuple(args, "O!O!n:capture_tasks", &PyList_Type, &tasks, &PyType_Type, &task_type, &limit)) {
        return NULL;
    }
    return tasks_capture(self->ticker_state, state_of((PyObject *)self), tasks, (PyTypeObject *)task_type,
                         limit < 0 ? 0 : (size_t)limit);
}

static PyObject *ticker_reads_locks(Ticker *Py_UNUSED(self), PyObject *args)
{
    return locks_layouts_agree(args);
}

static PyObject *ticker_entered_places(Ticker *self, PyObject *Py_UNUSED(unused))
{
    return locks_entered_places(self->ticker_state);
}

static PyObject *ticker_capture_lock_holders(Ticker *self, PyObject *args)
{
    return locks_capture_holders(self->ticker_state, state_of((PyObject *)self), args);
}

/* Handle a RAISE event of sys.monitoring, with (code, offset, exception). An error would replace the exception. */
static PyObject *ticker_on_raise(Ticker *self, PyObject *const *args, Py_ssize_t count)
{
    if (count == 3) {
        exceptions_handle_raise(self->ticker_state, args[2]);
    }
    Py_RETURN_NONE;
}

static PyObject *ticker_drain_exceptions(Ticker *self, PyObject *Py_UNUSED(unused))
{
    return exceptions_drain(self->ticker_state, state_of((PyObject *)self));
}

/* Parse a mean distance of samples. False with an exception. */
static bool parse_sample_bytes(PyObject *given, int64_t *sample_bytes)
{
    *sample_bytes = PyLong_AsLongLong(given);
    if (*sample_bytes == -1 && PyErr_Occurred()) {
        return false;
    }
    if (*sample_bytes < 1 || *sample_bytes > MAX_SAMPLE_BYTES) {
        PyErr_Format(PyExc_ValueError, "sample_bytes must be 1 to %lld, not %lld", MAX_SAMPLE_BYTES,
                     (long long)*sample_bytes);
        return false;
    }
    return true;
}

static PyObject *ticker_start_allocations(Ticker *self, PyObject *args)
{
    PyObject *given;
    int tracks_live = 0;
    int64_t sample_bytes;
    if (!PyArg_ParseTuple(args, "O|p:start_allocations", &given, &tracks_live)
        || !parse_sample_bytes(given, &sample_bytes)) {
        return NULL;
    }
    return none_if(allocations_start(self->ticker_state, sample_bytes, tracks_live));
}

static PyObject *ticker_set_sample_bytes(Ticker *self, PyObject *given)
{
    int64_t sample_bytes;
    if (!parse_sample_bytes(given, &sample_bytes)) {
        return NULL;
    }
    allocations_set_sample_bytes(self->ticker_state, sample_bytes);
    Py_RETURN_NONE;
}

static PyObject *ticker_stop_allocations(Ticker *self, PyObject *Py_UNUSED(unused))
{
    allocations_stop(self->ticker_state);
    Py_RETURN_NONE;
}

static PyObject *ticker_drain_allocations(Ticker *self, PyObject *Py_UNUSED(unused))
{
    return allocations_drain(self->ticker_state, state_of((PyObject *)self));
}

static PyObject *ticker_counters(Ticker *self, PyObject *Py_UNUSED(unused))
{
    PyObject *items[COUNTERS_FIELD_COUNT];
    for (int i = 0; i < COUNTERS_FIELD_COUNT; i++) {
        items[i] = PyLong_FromLongLong(atomic_load(&self->ticker_state->counters[i]));
    }
    return make_tuple(state_of((PyObject *)self)->types[TICKER_COUNTERS], items, COUNTERS_FIELD_COUNT);
}

static PyMethodDef ticker_methods[] = {
    {"run", (PyCFunction)ticker_run, METH_VARARGS,
     "run($self, period_ns, focused_period_ns=0, /)\n--\n\nCapture at absolute deadlines until stop()."},
    {"set_periods", (PyCFunction)ticker_set_periods, METH_VARARGS,
     "set_periods($self, period_ns, focused_period_ns=0, /)\n--\n\nChange the periods of a running ticker."},
    {"stop", (PyCFunction)ticker_stop, METH_NOARGS, "stop($self, /)\n--\n\nMake run and drain return, for good."},
    {"notify_trace_added", (PyCFunction)ticker_notify_trace_added, METH_NOARGS,
     "notify_trace_added($self, /)\n--\n\nAnnounce a trace in the filter."},
    {"capture", (PyCFunction)(void (*)(void))ticker_capture, METH_VARARGS | METH_KEYWORDS,
     "capture($self, *, is_focused=False)\n--\n\nTake one snapshot now."},
    {"drain", (PyCFunction)ticker_drain, METH_O,
     "drain($self, timeout_ns, /)\n--\n\nReturn the snapshots, oldest first."},
    {"on_gc_event", (PyCFunction)(void (*)(void))ticker_on_gc_event, METH_FASTCALL,
     "on_gc_event($self, phase, info, /)\n--\n\nRecord a collection; for gc.callbacks."},
    {"drain_collections", (PyCFunction)ticker_drain_collections, METH_NOARGS,
     "drain_collections($self, /)\n--\n\nReturn the kept collections, oldest first."},
    {"reads_tasks", (PyCFunction)ticker_reads_tasks, METH_VARARGS,
     "reads_tasks($self, loop, generator, code, offset, /)\n--\n\nReturn True if tasks can be read."},
    {"running_loops", (PyCFunction)ticker_running_loops, METH_NOARGS,
     "running_loops($self, /)\n--\n\nReturn the event loops that run."},
    {"capture_tasks", (PyCFunction)ticker_capture_tasks, METH_VARARGS,
     "capture_tasks($self, tasks, task_type, limit, /)\n--\n\nReturn the stacks of suspended tasks."},
    {"reads_locks", (PyCFunction)ticker_reads_locks, METH_VARARGS,
     "reads_locks($self, entered, kinds, /)\n--\n\nReturn True if locks can be read."},
    {"entered_places", (PyCFunction)ticker_entered_places, METH_NOARGS,
     "entered_places($self, /)\n--\n\nReturn places at which threads may enter a block."},
    {"capture_lock_holders", (PyCFunction)ticker_capture_lock_holders, METH_VARARGS,
     "capture_lock_holders($self, places, kinds, /)\n--\n\nReturn the threads that others wait for."},
    {"on_raise", (PyCFunction)(void (*)(void))ticker_on_raise, METH_FASTCALL,
     "on_raise($self, code, offset, exception, /)\n--\n\nRecord a raised exception; for sys.monitoring."},
    {"drain_exceptions", (PyCFunction)ticker_drain_exceptions, METH_NOARGS,
     "drain_exceptions($self, /)\n--\n\nReturn the kept exceptions, oldest first."},
    {"start_allocations", (PyCFunction)ticker_start_allocations, METH_VARARGS,
     "start_allocations($self, sample_bytes, tracks_live=False, /)\n--\n\nSample what the process allocates."},
    {"set_sample_bytes", (PyCFunction)ticker_set_sample_bytes, METH_O,
     "set_sample_bytes($self, sample_bytes, /)\n--\n\nChange the mean distance of samples."},
    {"stop_allocations", (PyCFunction)ticker_stop_allocations, METH_NOARGS,
     "stop_allocations($self, /)\n--\n\nSample allocations no longer."},
    {"drain_allocations", (PyCFunction)ticker_drain_allocations, METH_NOARGS,
     "drain_allocations($self, /)\n--\n\nReturn the samples, oldest first, and the blocks that have ended."},
    {"counters", (PyCFunction)ticker_counters, METH_NOARGS,
     "counters($self, /)\n--\n\nReturn the counts since construction."},
    {"__class_getitem__", Py_GenericAlias, METH_O | METH_CLASS, NULL},
    {NULL},
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
