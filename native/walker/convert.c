/* Makes Python values of raw snapshots, on the worker thread, with the GIL but in no hurry.
 *
 * Every frame is named once: a table maps (code, offset, module) to the Frame that make_frame returned. make_frame and
 * make_stack are Python: others run meanwhile, captures and even another drain included, so nothing found in the core
 * before such a call is trusted after it.
 */
#include "py_compat.h"

#include "state.h"

#include <stdlib.h>

#define KNOWN_FRAMES_MAX 16384 /* distinct frames; when there are more, the table starts anew */
#define KNOWN_SIZE_FIRST 1024  /* slots, a power of 2; doubled when half full */

typedef struct {
    PyObject *code;
    PyObject *module; /* NULL: the globals have no __name__ */
    int offset;
} frame_key; /* borrows */

static size_t key_hash(const frame_key *key)
{
    uint64_t hash = ((uint64_t)(uintptr_t)key->code >> 4) * 0x9E3779B97F4A7C15u;
    hash ^= (((uint64_t)(uintptr_t)key->module >> 4) + (uint64_t)(unsigned)key->offset) * 0xC2B2AE3D27D4EB4Fu;
    return (size_t)(hash ^ (hash >> 29));
}

/* The slot that holds the key, or the free one where it belongs. The table is never full. */
static known_frame *slot_of(known_frame *known, size_t size, const frame_key *key)
{
    for (size_t i = key_hash(key);; i++) {
        known_frame *slot = &known[i & (size - 1)];
        if (slot->frame == NULL
            || (slot->code == key->code && slot->offset == key->offset && slot->module == key->module)) {
            return slot;
        }
    }
}

void known_frames_clear(core *c)
{
    known_frame *known = c->known;
    size_t size = c->known_size;
    c->known = NULL; /* before any finaliser runs */
    c->known_size = c->known_count = 0;
    for (size_t i = 0; i < size; i++) {
        if (known[i].frame != NULL) {
            Py_DECREF(known[i].frame);
            Py_DECREF(known[i].code);
            Py_XDECREF(known[i].module);
        }
    }
    free(known);
}

/* False if there is no memory for a table that can take one more. */
static bool make_room(core *c)
{
    if (c->known_count >= KNOWN_FRAMES_MAX) {
        known_frames_clear(c);
    }
    if ((c->known_count + 1) * 2 <= c->known_size) {
        return true;
    }
    size_t size = c->known_size == 0 ? KNOWN_SIZE_FIRST : c->known_size * 2;
    known_frame *grown = calloc(size, sizeof(known_frame));
    if (grown == NULL) {
        return false;
    }
    for (size_t i = 0; i < c->known_size; i++) {
        if (c->known[i].frame != NULL) {
            frame_key key = {c->known[i].code, c->known[i].module, c->known[i].offset};
            *slot_of(grown, size, &key) = c->known[i];
        }
    }
    free(c->known);
    c->known = grown;
    c->known_size = size;
    return true;
}

/* Without memory the frame is merely not remembered. */
static void remember_frame(core *c, const frame_key *key, PyObject *frame)
{
    if (!make_room(c)) {
        return;
    }
    known_frame *slot = slot_of(c->known, c->known_size, key);
    if (slot->frame == NULL) {
        *slot = (known_frame){Py_NewRef(key->code), Py_XNewRef(key->module), key->offset, Py_NewRef(frame)};
        c->known_count++;
    }
}

/* New reference. `raw` lives in a stack that the caller holds. The table must not own the globals: those of code that
 * is run once can be large and would stay. */
static PyObject *convert_frame(core *c, const raw_frame *raw)
{
    PyObject *frame = NULL, *offset = NULL, *module = NULL, *make_frame = NULL;
    if (c->make_frame == NULL || c->name_key == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "the ticker has ended");
        goto error;
    }
    make_frame = Py_NewRef(c->make_frame);
    module = Py_XNewRef(PyDict_GetItemWithError(raw->globals, c->name_key));
    if (module == NULL && PyErr_Occurred()) {
        goto error;
    }
    frame_key key = {raw->code, module, raw->offset};
    if (c->known_size > 0) {
        known_frame *slot = slot_of(c->known, c->known_size, &key);
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
        remember_frame(c, &key, frame);
    }
error:
    Py_XDECREF(offset);
    Py_XDECREF(module);
    Py_XDECREF(make_frame);
    return frame;
}

/* Borrowed from `raw`, which the caller holds; made at most once. */
static PyObject *convert_stack(core *c, raw_stack *raw)
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
        PyObject *frame = convert_frame(c, &raw->frames[i]);
        if (frame == NULL) {
            goto error;
        }
        PyTuple_SET_ITEM(frames, (Py_ssize_t)i, frame);
    }
    if (c->make_stack == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "the ticker has ended");
        goto error;
    }
    make_stack = Py_NewRef(c->make_stack);
    PyObject *arguments[] = {frames, raw->truncated ? Py_True : Py_False};
    stack = PyObject_Vectorcall(make_stack, arguments, 2, NULL);
    if (stack == NULL) {
        goto error;
    }
    if (raw->stack == NULL) { /* else another drain made it meanwhile, and its users have that one */
        raw->stack = Py_NewRef(stack);
    }
error:
    Py_XDECREF(stack);
    Py_XDECREF(make_stack);
    Py_XDECREF(frames);
    return PyErr_Occurred() ? NULL : raw->stack;
}

PyObject *convert_thread(core *c, const value_types *types, const raw_thread *raw)
{
    PyObject *made = NULL;
    PyObject *key = PyLong_FromUnsignedLongLong(raw->key);
    PyObject *ident = PyLong_FromUnsignedLong(raw->ident);
    PyObject *native_id = PyLong_FromUnsignedLong(raw->native_id);
    PyObject *cpu_ns = PyLong_FromLongLong(raw->cpu_ns);
    PyObject *state = raw->state == THREAD_UNKNOWN ? Py_NewRef(Py_None) : PyLong_FromLong(raw->state);
    if (key == NULL || ident == NULL || native_id == NULL || cpu_ns == NULL || state == NULL) {
        goto error;
    }
    PyObject *stack = convert_stack(c, raw->stack); /* borrowed */
    if (stack == NULL) {
        goto error;
    }
    made = compat_new_tuple(types->raw_thread, 9);
    if (made == NULL) {
        goto error;
    }
    PyTuple_SET_ITEM(made, 0, Py_NewRef(key));
    PyTuple_SET_ITEM(made, 1, Py_NewRef(ident));
    PyTuple_SET_ITEM(made, 2, Py_NewRef(native_id));
    PyTuple_SET_ITEM(made, 3, Py_NewRef(stack));
    PyTuple_SET_ITEM(made, 4, Py_NewRef(raw->context != NULL ? raw->context : Py_None));
    PyTuple_SET_ITEM(made, 5, Py_NewRef(raw->labels != NULL ? raw->labels : Py_None));
    PyTuple_SET_ITEM(made, 6, Py_NewRef(cpu_ns));
    PyTuple_SET_ITEM(made, 7, Py_NewRef(state));
    PyTuple_SET_ITEM(made, 8, Py_NewRef(raw->object != NULL ? raw->object : Py_None));
error:
    Py_XDECREF(key);
    Py_XDECREF(ident);
    Py_XDECREF(native_id);
    Py_XDECREF(cpu_ns);
    Py_XDECREF(state);
    return made;
}

PyObject *convert_snapshot(core *c, const value_types *types, raw_snapshot *raw)
{
    PyObject *made = NULL, *time_ns = NULL, *latency_ns = NULL, *period_ns = NULL, *since_ns = NULL;
    PyObject *process_cpu_ns = NULL;
    PyObject *threads = PyTuple_New((Py_ssize_t)raw->count);
    if (threads == NULL) {
        goto error;
    }
    for (size_t i = 0; i < raw->count; i++) {
        PyObject *thread = convert_thread(c, types, &raw->threads[i]);
        if (thread == NULL) {
            goto error;
        }
        PyTuple_SET_ITEM(threads, (Py_ssize_t)i, thread);
    }
    time_ns = PyLong_FromLongLong(raw->time_ns);
    latency_ns = PyLong_FromLongLong(raw->latency_ns);
    period_ns = PyLong_FromLongLong(raw->period_ns);
    since_ns = PyLong_FromLongLong(raw->since_ns);
    process_cpu_ns = PyLong_FromLongLong(raw->process_cpu_ns);
    if (time_ns == NULL || latency_ns == NULL || period_ns == NULL || since_ns == NULL || process_cpu_ns == NULL) {
        goto error;
    }
    made = compat_new_tuple(types->raw_snapshot, 7);
    if (made == NULL) {
        goto error;
    }
    PyTuple_SET_ITEM(made, 0, Py_NewRef(time_ns));
    PyTuple_SET_ITEM(made, 1, Py_NewRef(latency_ns));
    PyTuple_SET_ITEM(made, 2, Py_NewRef(threads));
    PyTuple_SET_ITEM(made, 3, Py_NewRef(period_ns));
    PyTuple_SET_ITEM(made, 4, Py_NewRef(raw->focused ? Py_True : Py_False));
    PyTuple_SET_ITEM(made, 5, Py_NewRef(since_ns));
    PyTuple_SET_ITEM(made, 6, Py_NewRef(process_cpu_ns));
error:
    Py_XDECREF(time_ns);
    Py_XDECREF(latency_ns);
    Py_XDECREF(period_ns);
    Py_XDECREF(since_ns);
    Py_XDECREF(process_cpu_ns);
    Py_XDECREF(threads);
    return made;
}
