/* Converts raw snapshots to Python values, on the worker thread, with the GIL.
 *
 * Every frame is converted once: a table maps (code, offset, module) to the Frame that make_frame returned.
 * make_frame and make_stack are Python: captures and even another drain may run during such a call. So
 * nothing read from the ticker before the call is valid after it.
 */
#include "py_compat.h"

#include "ticker_state.h"
#include "raw_fields.h"

#include <stdlib.h>

#define MAX_CACHED_FRAMES    16384 /* distinct frames; the table is cleared when it has so many */
#define MIN_FRAME_CACHE_SIZE 1024  /* slots, a power of 2; doubled when half full */

typedef struct {
    PyObject *code;
    PyObject *module; /* NULL: the globals have no __name__ */
    int offset;
} frame_key; /* borrowed */

static size_t key_hash(const frame_key *key)
{
    uint64_t hash = ((uint64_t)(uintptr_t)key->code >> 4) * 0x9E3779B97F4A7C15u;
    hash ^= (((uint64_t)(uintptr_t)key->module >> 4) + (uint64_t)(unsigned)key->offset) * 0xC2B2AE3D27D4EB4Fu;
    return (size_t)(hash ^ (hash >> 29));
}

/* Return the slot that holds the key, or the free slot for it. The table is never full. */
static cached_frame *find_slot(cached_frame *frame_cache, size_t size, const frame_key *key)
{
    for (size_t i = key_hash(key);; i++) {
        cached_frame *slot = &frame_cache[i & (size - 1)];
        if (slot->frame == NULL
            || (slot->code == key->code && slot->offset == key->offset && slot->module == key->module)) {
            return slot;
        }
    }
}

void frame_cache_clear(ticker_state *ticker)
{
    cached_frame *frame_cache = ticker->frame_cache;
    size_t size = ticker->frame_cache_size;
    ticker->frame_cache = NULL; /* before any finaliser runs */
    ticker->frame_cache_size = ticker->frame_cache_count = 0;
    for (size_t i = 0; i < size; i++) {
        if (frame_cache[i].frame != NULL) {
            Py_DECREF(frame_cache[i].frame);
            Py_DECREF(frame_cache[i].code);
            Py_XDECREF(frame_cache[i].module);
        }
    }
    free(frame_cache);
}

/* Make room for one more frame; false: no memory. */
static bool ensure_capacity(ticker_state *ticker)
{
    if (ticker->frame_cache_count >= MAX_CACHED_FRAMES) {
        frame_cache_clear(ticker);
    }
    if ((ticker->frame_cache_count + 1) * 2 <= ticker->frame_cache_size) {
        return true;
    }
    size_t size = ticker->frame_cache_size == 0 ? MIN_FRAME_CACHE_SIZE : ticker->frame_cache_size * 2;
    cached_frame *grown = calloc(size, sizeof(cached_frame));
    if (grown == NULL) {
        return false;
    }
    for (size_t i = 0; i < ticker->frame_cache_size; i++) {
        if (ticker->frame_cache[i].frame != NULL) {
            frame_key key = {ticker->frame_cache[i].code, ticker->frame_cache[i].module, ticker->frame_cache[i].offset};
            *find_slot(grown, size, &key) = ticker->frame_cache[i];
        }
    }
    free(ticker->frame_cache);
    ticker->frame_cache = grown;
    ticker->frame_cache_size = size;
    return true;
}

/* Cache a frame. Without memory the frame is only not cached. */
static void cache_frame(ticker_state *ticker, const frame_key *key, PyObject *frame)
{
    if (!ensure_capacity(ticker)) {
        return;
    }
    cached_frame *slot = find_slot(ticker->frame_cache, ticker->frame_cache_size, key);
    if (slot->frame == NULL) {
        *slot = (cached_frame){Py_NewRef(key->code), Py_XNewRef(key->module), key->offset, Py_NewRef(frame)};
        ticker->frame_cache_count++;
    }
}

/* Return a new reference. The caller holds the stack of `raw`. The table must not own the globals: those of
 * code that runs once can be large, and would stay. */
static PyObject *convert_frame(ticker_state *ticker, const raw_frame *raw)
{
    PyObject *frame = NULL, *offset = NULL, *module = NULL, *make_frame = NULL;
    if (ticker->make_frame == NULL || ticker->name_key == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "the ticker has ended");
        goto error;
    }
    make_frame = Py_NewRef(ticker->make_frame);
    module = Py_XNewRef(PyDict_GetItemWithError(raw->globals, ticker->name_key));
    if (module == NULL && PyErr_Occurred()) {
        goto error;
    }
    frame_key key = {raw->code, module, raw->offset};
    if (ticker->frame_cache_size > 0) {
        cached_frame *slot = find_slot(ticker->frame_cache, ticker->frame_cache_size, &key);
        if (slot->frame != NULL) {
            frame = Py_NewRef(slot->frame);
            goto error;
        }
    }
    offset = PyLong_FromLong(raw->offset);
    if (offset == NULL) {
        goto error;
    }
    PyObject *arguments[] = {raw->code, offset, raw->globals};
    frame = PyObject_Vectorcall(make_frame, arguments, 3, NULL);
    if (frame != NULL) {
        cache_frame(ticker, &key, frame);
    }
error:
    Py_XDECREF(offset);
    Py_XDECREF(module);
    Py_XDECREF(make_frame);
    return frame;
}

/* Return a reference borrowed from `raw`, which the caller holds. The stack is made at most once. */
static PyObject *convert_stack(ticker_state *ticker, raw_stack *raw)
{
    PyObject *frames = NULL, *make_stack = NULL, *stack = NULL;
    if (raw->stack != NULL) {
        return raw->stack;
    }
    frames = PyTuple_New((Py_ssize_t)raw->depth);
    if (frames == NULL) {
        goto error;
    }
    for (size_t i = 0; i < raw->depth; i++) {
        PyObject *frame = convert_frame(ticker, &raw->frames[i]);
        if (frame == NULL) {
            goto error;
        }
        PyTuple_SET_ITEM(frames, (Py_ssize_t)i, frame);
    }
    if (ticker->make_stack == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "the ticker has ended");
        goto error;
    }
    make_stack = Py_NewRef(ticker->make_stack);
    PyObject *arguments[] = {frames, raw->truncated ? Py_True : Py_False};
    stack = PyObject_Vectorcall(make_stack, arguments, 2, NULL);
    if (stack == NULL) {
        goto error;
    }
    if (raw->stack == NULL) { /* otherwise another drain made it meanwhile, and others use that one */
        raw->stack = Py_NewRef(stack);
    }
error:
    Py_XDECREF(stack);
    Py_XDECREF(make_stack);
    Py_XDECREF(frames);
    return PyErr_Occurred() ? NULL : raw->stack;
}

PyObject *make_tuple(PyTypeObject *type, PyObject **items, Py_ssize_t count)
{
    bool is_complete = true;
    for (Py_ssize_t i = 0; i < count; i++) {
        is_complete = is_complete && items[i] != NULL;
    }
    PyObject *made = is_complete ? compat_new_tuple(type, count) : NULL;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (made != NULL) {
            PyTuple_SET_ITEM(made, i, items[i]);
        }
        else {
            Py_XDECREF(items[i]);
        }
    }
    return made;
}

static PyObject *new_ref_or_none(PyObject *object)
{
    return Py_NewRef(object != NULL ? object : Py_None);
}

PyObject *convert_thread(ticker_state *ticker, const value_types *types, const raw_thread *raw)
{
    PyObject *stack = convert_stack(ticker, raw->stack); /* borrowed */
    if (stack == NULL) {
        return NULL;
    }
    PyObject *items[] = {
        [THREAD_key] = PyLong_FromUnsignedLongLong(raw->key),
        [THREAD_ident] = PyLong_FromUnsignedLong(raw->ident),
        [THREAD_native_id] = PyLong_FromUnsignedLong(raw->native_id),
        [THREAD_stack] = Py_NewRef(stack),
        [THREAD_context] = new_ref_or_none(raw->context),
        [THREAD_labels] = new_ref_or_none(raw->labels),
        [THREAD_cpu_ns] = PyLong_FromLongLong(raw->cpu_ns),
        [THREAD_state] = raw->state == THREAD_UNKNOWN ? Py_NewRef(Py_None) : PyLong_FromLong(raw->state),
        [THREAD_python_thread] = new_ref_or_none(raw->python_thread),
    };
    return make_tuple(types->raw_thread, items, THREAD_FIELD_COUNT);
}

PyObject *convert_snapshot(ticker_state *ticker, const value_types *types, raw_snapshot *raw)
{
    PyObject *threads = PyTuple_New((Py_ssize_t)raw->count);
    if (threads == NULL) {
        return NULL;
    }
    for (size_t i = 0; i < raw->count; i++) {
        PyObject *thread = convert_thread(ticker, types, &raw->threads[i]);
        if (thread == NULL) {
            Py_DECREF(threads);
            return NULL;
        }
        PyTuple_SET_ITEM(threads, (Py_ssize_t)i, thread);
    }
    PyObject *items[] = {
        [SNAPSHOT_time_ns] = PyLong_FromLongLong(raw->time_ns),
        [SNAPSHOT_latency_ns] = PyLong_FromLongLong(raw->latency_ns),
        [SNAPSHOT_threads] = threads,
        [SNAPSHOT_period_ns] = PyLong_FromLongLong(raw->period_ns),
        [SNAPSHOT_is_focused] = PyBool_FromLong(raw->is_focused),
        [SNAPSHOT_since_previous_ns] = PyLong_FromLongLong(raw->since_previous_ns),
        [SNAPSHOT_process_cpu_ns] = PyLong_FromLongLong(raw->process_cpu_ns),
    };
    return make_tuple(types->raw_snapshot, items, SNAPSHOT_FIELD_COUNT);
}
