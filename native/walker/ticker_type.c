/* The type splunk_profiler._walker.Ticker: its methods and its lifetime. Its contract is
 * splunk_profiler/_walker.pyi. */
#include "arguments.h"
#include "events.h"
#include "exceptions.h"
#include "lock_holders.h"
#include "loop_watch.h"
#include "tasks.h"

#include "allocations.h"

typedef struct {
    PyObject_HEAD
    ticker_state *ticker_state; /* one reference; NULL only during construction */
} Ticker;

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
    long long period_ns, focused_ns, phase_ns = 0;
    return none_if(parse_periods(self->ticker_state, args, &period_ns, &focused_ns, &phase_ns)
                   && ticker_state_run(self->ticker_state, period_ns, focused_ns, phase_ns));
}

static PyObject *ticker_set_periods(Ticker *self, PyObject *args)
{
    long long period_ns, focused_ns;
    if (!parse_periods(self->ticker_state, args, &period_ns, &focused_ns, NULL)) {
        return NULL;
    }
    ticker_state_set_periods(self->ticker_state, period_ns, focused_ns);
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

static PyObject *ticker_drain(Ticker *self, PyObject *args)
{
    ticker_state *ticker = self->ticker_state;
    long long timeout_ns, pause_ns = 0;
    if (!PyArg_ParseTuple(args, "L|L:drain", &timeout_ns, &pause_ns)) {
        return NULL;
    }
    ticker_state_free_unreferenced(ticker);
    if (pause_ns > 0 || (timeout_ns > 0 && atomic_load(&ticker->ring.ready) == 0)) {
        PyThreadState *self_thread = PyEval_SaveThread();
        ticker_state_wait(ticker, pause_ns, false);
        ticker_state_wait(ticker, timeout_ns, true);
        ticker_state_take_gil(ticker, self_thread);
    }
    PyObject *drained = PyList_New(0);
    if (drained == NULL) {
        return NULL;
    }
    for (raw_snapshot *snapshot = snapshots_take(ticker), *next; snapshot != NULL; snapshot = next) {
        next = snapshot->next;
        if (drained != NULL) {
            (void)append_item(&drained,
                              convert_snapshot((PyObject *)self, ticker, state_of((PyObject *)self), snapshot));
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
    return events_drain(self->ticker_state, state_of((PyObject *)self), EVENT_COLLECTION);
}

static PyObject *ticker_reads_tasks(Ticker *self, PyObject *args)
{
    PyObject *loop, *generator, *code;
    int offset;
    if (!PyArg_ParseTuple(args, "OO!O!i:reads_tasks", &loop, &PyGen_Type, &generator, &PyCode_Type, &code, &offset)) {
        return NULL;
    }
    return PyBool_FromLong(tasks_layouts_match(self->ticker_state, loop, generator, code, offset));
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
    return locks_layouts_match(args);
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

static PyObject *ticker_watch_loops(Ticker *self, PyObject *args)
{
    PyObject *current_tasks, *task_type;
    long long threshold_ns;
    if (!PyArg_ParseTuple(args, "LOO!:watch_loops", &threshold_ns, &current_tasks, &PyType_Type, &task_type)) {
        return NULL;
    }
    return none_if(loops_watch(self->ticker_state, threshold_ns,
                               PyDict_CheckExact(current_tasks) ? current_tasks : NULL, (PyTypeObject *)task_type));
}

static PyObject *ticker_slow_down_looks(Ticker *self, PyObject *ratio)
{
    double given = PyFloat_AsDouble(ratio);
    if (given == -1.0 && PyErr_Occurred()) {
        return NULL;
    }
    loops_slow_down(self->ticker_state, given);
    Py_RETURN_NONE;
}

static PyObject *ticker_drain_loop_blocks(Ticker *self, PyObject *Py_UNUSED(unused))
{
    return loops_drain(self->ticker_state, state_of((PyObject *)self));
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
    {"run", (PyCFunction)ticker_run, METH_VARARGS},
    {"set_periods", (PyCFunction)ticker_set_periods, METH_VARARGS},
    {"stop", (PyCFunction)ticker_stop, METH_NOARGS},
    {"notify_trace_added", (PyCFunction)ticker_notify_trace_added, METH_NOARGS},
    {"capture", (PyCFunction)(void (*)(void))ticker_capture, METH_VARARGS | METH_KEYWORDS},
    {"drain", (PyCFunction)ticker_drain, METH_VARARGS},
    {"on_gc_event", (PyCFunction)(void (*)(void))ticker_on_gc_event, METH_FASTCALL},
    {"drain_collections", (PyCFunction)ticker_drain_collections, METH_NOARGS},
    {"reads_tasks", (PyCFunction)ticker_reads_tasks, METH_VARARGS},
    {"running_loops", (PyCFunction)ticker_running_loops, METH_NOARGS},
    {"capture_tasks", (PyCFunction)ticker_capture_tasks, METH_VARARGS},
    {"reads_locks", (PyCFunction)ticker_reads_locks, METH_VARARGS},
    {"entered_places", (PyCFunction)ticker_entered_places, METH_NOARGS},
    {"capture_lock_holders", (PyCFunction)ticker_capture_lock_holders, METH_VARARGS},
    {"on_raise", (PyCFunction)(void (*)(void))ticker_on_raise, METH_FASTCALL},
    {"drain_exceptions", (PyCFunction)ticker_drain_exceptions, METH_NOARGS},
    {"start_allocations", (PyCFunction)ticker_start_allocations, METH_VARARGS},
    {"set_sample_bytes", (PyCFunction)ticker_set_sample_bytes, METH_O},
    {"stop_allocations", (PyCFunction)ticker_stop_allocations, METH_NOARGS},
    {"drain_allocations", (PyCFunction)ticker_drain_allocations, METH_NOARGS},
    {"watch_loops", (PyCFunction)ticker_watch_loops, METH_VARARGS},
    {"slow_down_looks", (PyCFunction)ticker_slow_down_looks, METH_O},
    {"drain_loop_blocks", (PyCFunction)ticker_drain_loop_blocks, METH_NOARGS},
    {"counters", (PyCFunction)ticker_counters, METH_NOARGS},
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
