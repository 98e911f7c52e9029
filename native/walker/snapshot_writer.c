/* The type splunk_profiler._walker.SnapshotWriter: writes snapshots as records of a stream. Its contract is
 * splunk_profiler/_walker.pyi, its twin in Python is capture/snapshot_writer.py, and the form of a record is
 * described in stream/records.py.
 *
 * Most threads of a service wait most of the time. An idle thread is written once, then counted. What a thread
 * shares with its previous state (its stack, context, labels) has the numbers that it had. For the others
 * Python is asked, under the same hold of the GIL: beside busy threads the next hold would be long in coming.
 *
 * One thread uses a SnapshotWriter. A second thread, or a finaliser in the middle, gets complete records and
 * does not corrupt memory. For this a call takes the previous snapshot out of the object while it works on it.
 */
#include "ticker_state.h"

#include "public_compat.h"

#include <errno.h>
#include <sys/resource.h>

/* Of SnapshotRecord and ThreadEntry in stream/records.py. */
#define RECORD_TYPE 9
#define LENGTH_SIZE 4
#define FIXED_SIZE  (LENGTH_SIZE + 1 + 7 * 8 + 1 + 4)
#define ENTRY_SIZE  26
enum { SCOPE_CHANGES, SCOPE_COMPLETE, SCOPE_FOCUSED };

/* What has a number in the stream. */
enum { NUMBER_THREAD, NUMBER_STACK, NUMBER_SPAN, NUMBER_LABELS, NUMBER_COUNT };

/* The last state of a thread in the stream. */
typedef struct {
    uint32_t numbers[NUMBER_COUNT];
    int64_t cpu_ns; /* the last that could be read */
    bool is_idle;   /* it is written no more while it stays so */
    bool is_named;  /* its threading.Thread was seen */
    int8_t nice;
    int64_t nice_until_ns; /* instant from which on its nice value is read again */
} written_thread;

/* A snapshot of all threads; NULL, NULL: there is none. */
typedef struct {
    PyObject *threads; /* owned: RawThreads */
    written_thread *written;
} written_snapshot;

typedef struct {
    PyObject_HEAD
    PyObject *number_of[NUMBER_COUNT]; /* owned callables */
    int reads_nice;
    written_snapshot previous; /* none as well while a call works on it */
} SnapshotWriter;

/* A call of write(). */
typedef struct {
    SnapshotWriter *writer;
    const module_state *module;
    ticker_state *ticker;
    const raw_snapshot *snapshot, *before; /* `before` may be NULL */
    const written_thread *written_before;
    written_thread *written;
    unsigned int floors[NUMBER_COUNT]; /* smaller numbers are not valid any more */
    int is_complete;
    unsigned char *at; /* where to write on */
    uint32_t listed, idle;
    PyObject *ended_keys; /* owned list */
    uint32_t *ended;      /* numbers of threads */
    uint32_t ended_count;
} write_call;

static void written_free(written_snapshot *snapshot)
{
    written_snapshot freed = *snapshot;
    *snapshot = (written_snapshot){NULL, NULL}; /* before any finaliser runs */
    PyMem_Free(freed.written);
    Py_XDECREF(freed.threads);
}

static void put(unsigned char **at, uint64_t value, int size)
{
    for (int i = 0; i < size; i++) {
        *(*at)++ = (unsigned char)(value >> (8 * i));
    }
}

/* Ask Python for a number. Steals `value`, and returns false with an exception if it is NULL. */
static bool ask(const write_call *call, int kind, PyObject *value, uint32_t *number)
{
    PyObject *answer = value == NULL ? NULL : PyObject_CallOneArg(call->writer->number_of[kind], value);
    Py_XDECREF(value);
    unsigned long found = answer == NULL ? 0 : PyLong_AsUnsignedLong(answer);
    Py_XDECREF(answer);
    if (answer == NULL || (found == (unsigned long)-1 && PyErr_Occurred())) {
        return false;
    }
    if (found > UINT32_MAX) {
        PyErr_Format(PyExc_OverflowError, "%lu is too large for a number in a stream", found);
        return false;
    }
    *number = (uint32_t)found;
    return true;
}

/* Ask for the number of a span or labels, unless it is that of the previous value. */
static bool number_value(const write_call *call, int kind, PyObject *value, PyObject *before, written_thread *now)
{
    uint32_t *number = &now->numbers[kind];
    if (value == NULL || value == Py_None) {
        *number = 0;
        return true;
    }
    return (value == before && (*number == 0 || *number >= call->floors[kind]))
           || ask(call, kind, Py_NewRef(value), number);
}

static bool number_identity(const write_call *call, const raw_thread *raw, const raw_thread *before,
                            written_thread *now)
{
    uint32_t *number = &now->numbers[NUMBER_THREAD];
    bool is_known = before != NULL && *number >= call->floors[NUMBER_THREAD];
    bool gets_name = raw->python_thread != NULL && !now->is_named;
    if ((!is_known || gets_name)
        && !ask(call, NUMBER_THREAD, convert_thread(call->ticker, call->module, raw), number)) {
        return false;
    }
    now->is_named = now->is_named || gets_name;
    return true;
}

static bool number_stack(const write_call *call, const raw_thread *raw, const raw_thread *before, written_thread *now)
{
    uint32_t *number = &now->numbers[NUMBER_STACK];
    bool is_known = before != NULL && raw->stack == before->stack && *number >= call->floors[NUMBER_STACK];
    return is_known || ask(call, NUMBER_STACK, Py_XNewRef(convert_stack(call->ticker, raw->stack)), number);
}

/* `now` has the numbers of `before`, which is NULL for a new thread. */
static bool number_thread(const write_call *call, const raw_thread *raw, const raw_thread *before, written_thread *now)
{
    return number_identity(call, raw, before, now) && number_stack(call, raw, before, now)
           && number_value(call, NUMBER_SPAN, raw->context, before == NULL ? NULL : before->context, now)
           && number_value(call, NUMBER_LABELS, raw->labels, before == NULL ? NULL : before->labels, now);
}

/* Read the nice value of a thread, 0 if it has ended; once a second, because it hardly changes, and beside busy threads
 * each system call with the GIL counts. */
static void read_nice(const write_call *call, const raw_thread *raw, written_thread *now)
{
    if (call->writer->reads_nice && raw->native_id != 0 && call->snapshot->instant_ns >= now->nice_until_ns) {
        errno = 0;
        int nice = getpriority(PRIO_PROCESS, (id_t)raw->native_id);
        now->nice = (int8_t)(errno == 0 ? nice : 0);
        now->nice_until_ns = call->snapshot->instant_ns + SECOND_NS;
    }
}

/* Return true if a thread stays idle, so that it is only counted. Sets what `now` says of that. */
static bool stays_idle(const raw_thread *raw, const raw_thread *before, written_thread *now)
{
    bool was_idle = now->is_idle, is_waiting = raw->state == THREAD_UNKNOWN || raw->state == THREAD_WAITING;
    now->is_idle = before != NULL && is_waiting && raw->cpu_ns <= now->cpu_ns;
    now->cpu_ns = raw->cpu_ns != 0 || before == NULL ? raw->cpu_ns : now->cpu_ns;
    return was_idle && now->is_idle && raw->stack == before->stack && raw->context == before->context
           && raw->labels == before->labels;
}

static bool write_thread(write_call *call, const raw_thread *raw, const raw_thread *before, written_thread *now)
{
    if (stays_idle(raw, before, now) && !call->is_complete && !call->snapshot->is_focused) {
        call->idle++;
        return true;
    }
    if (!number_thread(call, raw, before, now)) {
        return false;
    }
    for (int kind = 0; kind < NUMBER_COUNT; kind++) {
        put(&call->at, now->numbers[kind], 4);
    }
    put(&call->at, (uint64_t)raw->cpu_ns, 8);
    put(&call->at, (uint64_t)(int64_t)raw->state, 1);
    read_nice(call, raw, now);
    put(&call->at, (uint64_t)(int64_t)now->nice, 1);
    call->listed++;
    return true;
}

/* Note that the threads before `end_key` have ended; `index` is where to go on. */
static bool note_ended(write_call *call, size_t *index, uint64_t end_key)
{
    while (call->before != NULL && *index < call->before->count && call->before->threads[*index].key < end_key) {
        size_t ended = (*index)++;
        if (call->snapshot->is_focused) {
            continue; /* it says nothing of other threads */
        }
        call->ended[call->ended_count++] = call->written_before[ended].numbers[NUMBER_THREAD];
        if (!append_item(&call->ended_keys, PyLong_FromUnsignedLongLong(call->before->threads[ended].key))) {
            return false;
        }
    }
    return true;
}

/* Both snapshots have their threads in the order of their keys. */
static bool write_threads(write_call *call)
{
    size_t index = 0;
    for (size_t i = 0; i < call->snapshot->count; i++) {
        const raw_thread *raw = &call->snapshot->threads[i], *before = NULL;
        if (!note_ended(call, &index, raw->key)) {
            return false;
        }
        call->written[i] = (written_thread){.is_idle = false};
        if (call->before != NULL && index < call->before->count && call->before->threads[index].key == raw->key) {
            before = &call->before->threads[index];
            call->written[i] = call->written_before[index++];
        }
        if (!write_thread(call, raw, before, &call->written[i])) {
            return false;
        }
    }
    return note_ended(call, &index, UINT64_MAX);
}

static void write_fixed_fields(const write_call *call, unsigned char *start)
{
    const raw_snapshot *raw = call->snapshot;
    put(&start, (uint64_t)(call->at - start) - LENGTH_SIZE, LENGTH_SIZE);
    put(&start, RECORD_TYPE, 1);
    put(&start, (uint64_t)raw->time_ns, 8);
    put(&start, (uint64_t)raw->instant_ns, 8);
    put(&start, (uint64_t)(raw->latency_ns > 0 ? raw->latency_ns : 0), 8);
    put(&start, (uint64_t)raw->period_ns, 8);
    put(&start, (uint64_t)raw->since_previous_ns, 8);
    put(&start, (uint64_t)raw->process_cpu_ns, 8);
    put(&start, (uint64_t)raw->gil_wait_ns, 8);
    put(&start, raw->is_focused ? SCOPE_FOCUSED : call->is_complete ? SCOPE_COMPLETE : SCOPE_CHANGES, 1);
    put(&start, call->idle, 4);
    put(&start, call->listed, LENGTH_SIZE);
}

/* Return the record in `bytes`, which has room for it, and sets its size. False with an exception. */
static bool write_record(write_call *call, PyObject **bytes)
{
    unsigned char *start = (unsigned char *)PyBytes_AS_STRING(*bytes);
    call->at = start + FIXED_SIZE + LENGTH_SIZE;
    if (!write_threads(call)) {
        return false;
    }
    put(&call->at, call->ended_count, LENGTH_SIZE);
    for (uint32_t i = 0; i < call->ended_count; i++) {
        put(&call->at, call->ended[i], 4);
    }
    write_fixed_fields(call, start);
    return _PyBytes_Resize(bytes, call->at - start) == 0;
}

/* Return (record, keys of ended threads), or NULL with an exception. */
static PyObject *make_record(write_call *call)
{
    size_t ended_capacity = call->before == NULL ? 0 : call->before->count;
    size_t capacity = FIXED_SIZE + LENGTH_SIZE * (2 + ended_capacity) + call->snapshot->count * ENTRY_SIZE;
    PyObject *made = NULL, *record = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)capacity);
    call->ended_keys = PyList_New(0);
    call->ended = PyMem_Calloc(ended_capacity + 1, sizeof(uint32_t));
    if (call->ended == NULL) {
        (void)PyErr_NoMemory();
    }
    if (record != NULL && call->ended_keys != NULL && call->ended != NULL && write_record(call, &record)) {
        made = PyTuple_Pack(2, record, call->ended_keys);
    }
    PyMem_Free(call->ended);
    Py_XDECREF(call->ended_keys);
    Py_XDECREF(record);
    return made;
}

/* Keep a snapshot for the next one to compare with: this one, or after an error or a focused one `previous` again. */
static void keep_snapshot(SnapshotWriter *self, written_snapshot *kept)
{
    written_snapshot replaced = self->previous; /* of a call in the middle of this one */
    self->previous = *kept;
    *kept = replaced;
    written_free(kept);
}

static PyObject *snapshot_writer_write(SnapshotWriter *self, PyObject *args)
{
    write_call call = {.writer = self, .module = state_of((PyObject *)self)};
    PyObject *raw;
    if (self->number_of[NUMBER_THREAD] == NULL) { /* a finaliser, after the collector has cleared this */
        PyErr_SetString(PyExc_RuntimeError, "the writer has ended");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "O!p(IIII):write", call.module->types[RAW_SNAPSHOT], &raw, &call.is_complete,
                          &call.floors[NUMBER_THREAD], &call.floors[NUMBER_STACK], &call.floors[NUMBER_SPAN],
                          &call.floors[NUMBER_LABELS])) {
        return NULL;
    }
    PyObject *threads = PyTuple_GET_ITEM(raw, SNAPSHOT_threads);
    if (!Py_IS_TYPE(threads, call.module->raw_threads_type) || raw_threads_snapshot(threads) == NULL) {
        return PyErr_Format(PyExc_TypeError,
                            "a snapshot of the native walker is needed, not one with threads in a %.100s",
                            Py_TYPE(threads)->tp_name);
    }
    call.snapshot = raw_threads_snapshot(threads);
    call.ticker = raw_threads_ticker(threads);
    call.written = PyMem_Calloc(call.snapshot->count + 1, sizeof(written_thread));
    if (call.written == NULL) {
        return PyErr_NoMemory();
    }
    /* From here on Python code may run. */
    written_snapshot current = {Py_NewRef(threads), call.written}, previous = self->previous;
    self->previous = (written_snapshot){NULL, NULL};
    if (previous.threads != NULL) {
        call.before = raw_threads_snapshot(previous.threads);
        call.written_before = previous.written;
    }
    PyObject *made = make_record(&call);
    compat_exception pending = compat_save_exception(); /* finalisers run below */
    bool is_kept = made != NULL && !call.snapshot->is_focused;
    keep_snapshot(self, is_kept ? &current : &previous);
    written_free(is_kept ? &previous : &current);
    compat_restore_exception(pending);
    return made;
}

static PyObject *snapshot_writer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"thread_number", "stack_number", "span_number", "labels_number", "reads_nice", NULL};
    PyObject *given[NUMBER_COUNT] = {NULL};
    int reads_nice = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$OOOOp:SnapshotWriter", names, &given[NUMBER_THREAD],
                                     &given[NUMBER_STACK], &given[NUMBER_SPAN], &given[NUMBER_LABELS], &reads_nice)) {
        return NULL;
    }
    for (int kind = 0; kind < NUMBER_COUNT; kind++) {
        if (given[kind] == NULL || !PyCallable_Check(given[kind])) {
            return PyErr_Format(PyExc_TypeError, "%s must be callable", names[kind]);
        }
    }
    SnapshotWriter *self = (SnapshotWriter *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->reads_nice = reads_nice;
        for (int kind = 0; kind < NUMBER_COUNT; kind++) {
            self->number_of[kind] = Py_NewRef(given[kind]);
        }
    }
    return (PyObject *)self;
}

static int snapshot_writer_traverse(SnapshotWriter *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->previous.threads);
    for (int kind = 0; kind < NUMBER_COUNT; kind++) {
        Py_VISIT(self->number_of[kind]);
    }
    return 0;
}

static int snapshot_writer_clear(SnapshotWriter *self)
{
    written_free(&self->previous);
    for (int kind = 0; kind < NUMBER_COUNT; kind++) {
        Py_CLEAR(self->number_of[kind]);
    }
    return 0;
}

static void snapshot_writer_dealloc(SnapshotWriter *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    (void)snapshot_writer_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef snapshot_writer_methods[] = {
    {"write", (PyCFunction)snapshot_writer_write, METH_VARARGS},
    {NULL},
};

static PyType_Slot snapshot_writer_slots[] = {
    {Py_tp_doc, "Writes snapshots as records of a stream; see the stub for the contract."},
    {Py_tp_new, snapshot_writer_new},
    {Py_tp_dealloc, snapshot_writer_dealloc},
    {Py_tp_traverse, snapshot_writer_traverse},
    {Py_tp_clear, snapshot_writer_clear},
    {Py_tp_methods, snapshot_writer_methods},
    {0, NULL},
};

PyType_Spec snapshot_writer_spec = {
    .name = "splunk_profiler._walker.SnapshotWriter",
    .basicsize = sizeof(SnapshotWriter),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = snapshot_writer_slots,
};
