/* The type splunk_profiler._walker.RawThreads: the threads of a snapshot, as RawThread tuples that are made when
 * they are asked for. SnapshotWriter asks for few of them.
 */
#include "ticker_state.h"

#include "public_compat.h"

typedef struct {
    PyObject_HEAD
    PyObject *owner;        /* owned: the Ticker, whose callables convert_thread calls */
    ticker_state *ticker;   /* of the Ticker */
    raw_snapshot *snapshot; /* NULL: the collector has cleared it */
} RawThreads;

PyObject *raw_threads_new(PyTypeObject *type, PyObject *owner, ticker_state *ticker, raw_snapshot *snapshot)
{
    RawThreads *self = (RawThreads *)type->tp_alloc(type, 0);
    if (self == NULL) {
        snapshot_free(ticker, snapshot);
        return NULL;
    }
    self->owner = Py_NewRef(owner);
    self->ticker = ticker;
    self->snapshot = snapshot;
    return (PyObject *)self;
}

const raw_snapshot *raw_threads_snapshot(PyObject *threads)
{
    return ((RawThreads *)threads)->snapshot;
}

ticker_state *raw_threads_ticker(PyObject *threads)
{
    return ((RawThreads *)threads)->ticker;
}

static Py_ssize_t raw_threads_length(RawThreads *self)
{
    return self->snapshot == NULL ? 0 : (Py_ssize_t)self->snapshot->count;
}

static PyObject *raw_threads_item(RawThreads *self, Py_ssize_t index)
{
    if (index < 0 || index >= raw_threads_length(self)) {
        PyErr_SetString(PyExc_IndexError, "the snapshot has fewer threads");
        return NULL;
    }
    return convert_thread(self->ticker, state_of((PyObject *)self), &self->snapshot->threads[index]);
}

static int raw_threads_traverse(RawThreads *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->owner);
    return self->snapshot == NULL ? 0 : snapshot_traverse(self->snapshot, visit, arg);
}

/* The Ticker stays until the end: the snapshot is freed with its state. Its own clear breaks cycles. */
static int raw_threads_clear(RawThreads *self)
{
    raw_snapshot *snapshot = self->snapshot;
    self->snapshot = NULL; /* before any finaliser runs */
    if (snapshot != NULL) {
        snapshot_free(self->ticker, snapshot);
        ticker_state_free_unreferenced(self->ticker);
    }
    return 0;
}

static void raw_threads_dealloc(RawThreads *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    (void)raw_threads_clear(self);
    Py_DECREF(self->owner);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyType_Slot raw_threads_slots[] = {
    {Py_tp_doc, "The threads of a snapshot; see the stub for the contract."},
    {Py_tp_dealloc, raw_threads_dealloc},
    {Py_tp_traverse, raw_threads_traverse},
    {Py_tp_clear, raw_threads_clear},
    {Py_sq_length, raw_threads_length},
    {Py_sq_item, raw_threads_item},
    {0, NULL},
};

PyType_Spec raw_threads_spec = {
    .name = "splunk_profiler._walker.RawThreads",
    .basicsize = sizeof(RawThreads),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = raw_threads_slots,
};
