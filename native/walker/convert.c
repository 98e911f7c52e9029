/* Converts raw snapshots to Python values, on the sampler thread, with the GIL.
 *
 * Every frame is converted once: a table maps (code, offset, module) to the Frame that make_frame returned.
 * make_frame and make_stack are Python: captures and even another drain may run during such a call. So
 * nothing read from the ticker before the call is valid after it. Its arguments are: the caller holds the
 * Ticker, so the collector does not clear it.
 */
#include "py_compat.h"

#include "ticker_state.h"

#include <stdlib.h>

#define MAX_CACHED_FRAMES    16384 /* distinct frames; the table is cleared when it has so many */
#define MIN_FRAME_CACHE_SIZE 1024  /* slots, a power of 2; doubled when half full */

static size_t key_hash(const cached_frame *key)
{
    uint64_t hash = ((uint64_t)(uintptr_t)key->code >> 4) * 0x9E3779B97F4A7C15u;
    hash ^= (((uint64_t)(uintptr_t)key->module >> 4) + (uint64_t)(unsigned)key->offset) * 0xC2B2AE3D27D4EB4Fu;
    return (size_t)(hash ^ (hash >> 29));
}

/* Return the slot that holds the key (code, module, offset), or had it while its code lived, or the free slot for it.
 * The table is never full. */
static cached_frame *find_slot(const frame_cache *cache, const cached_frame *key)
{
    for (size_t i = key_hash(key);; i++) {
        cached_frame *slot = &cache->slots[i & (cache->size - 1)];
        if (slot->frame == NULL
            || (slot->code == key->code && slot->offset == key->offset && slot->module == key->module)) {
            return slot;
        }
    }
}

static void slot_release(const cached_frame *slot)
{
    Py_XDECREF(slot->code_ref);
    Py_XDECREF(slot->module);
    Py_XDECREF(slot->frame);
}

void frame_cache_clear(frame_cache *cache)
{
    frame_cache cleared = *cache;
    *cache = (frame_cache){NULL}; /* before any finaliser runs */
    for (size_t i = 0; i < cleared.size; i++) {
        slot_release(&cleared.slots[i]);
    }
    free(cleared.slots);
}

/* Make room for one more frame; false: no memory. */
static bool ensure_capacity(frame_cache *cache)
{
    if (cache->count >= MAX_CACHED_FRAMES) {
        frame_cache_clear(cache);
    }
    if ((cache->count + 1) * 2 <= cache->size) {
        return true;
    }
    frame_cache grown = {.size = cache->size == 0 ? MIN_FRAME_CACHE_SIZE : cache->size * 2, .count = cache->count};
    grown.slots = calloc(grown.size, sizeof(cached_frame));
    if (grown.slots == NULL) {
        return false;
    }
    for (size_t i = 0; i < cache->size; i++) {
        if (cache->slots[i].frame != NULL) {
            *find_slot(&grown, &cache->slots[i]) = cache->slots[i];
        }
    }
    free(cache->slots);
    *cache = grown;
    return true;
}

/* Return a new reference, or NULL. */
static PyObject *find_frame(const frame_cache *cache, const cached_frame *key)
{
    const cached_frame *slot = cache->size == 0 ? NULL : find_slot(cache, key);
    bool is_cached = slot != NULL && slot->frame != NULL && !compat_is_weakref_dead(slot->code_ref);
    return is_cached ? Py_NewRef(slot->frame) : NULL;
}

/* Cache a frame. Without memory the frame is only not cached. */
static void cache_frame(frame_cache *cache, const cached_frame *key, PyObject *frame)
{
    PyObject *code_ref = ensure_capacity(cache) ? compat_new_weakref(key->code) : NULL;
    if (code_ref != NULL) {
        cached_frame *slot = find_slot(cache, key), replaced = *slot;
        *slot = (cached_frame){key->code, code_ref, Py_XNewRef(key->module), key->offset, Py_NewRef(frame)};
        cache->count += replaced.frame == NULL;
        slot_release(&replaced);
    }
}

/* Return a new reference. The caller holds the stack of `raw`, whose globals another drain may release meanwhile. */
static PyObject *convert_frame(ticker_state *ticker, const raw_frame *raw)
{
    PyObject *globals = Py_NewRef(raw->globals);
    PyObject *module = Py_XNewRef(PyDict_GetItemWithError(globals, ticker->names[NAME_MODULE]));
    cached_frame key = {.code = raw->code, .module = module, .offset = raw->offset};
    PyObject *frame = NULL;
    if (module != NULL || !PyErr_Occurred()) {
        frame = find_frame(&ticker->frame_cache, &key);
        if (frame == NULL) {
            frame = PyObject_CallFunction(ticker->arguments.make_frame, "OiO", raw->code, raw->offset, globals);
            if (frame != NULL) {
                cache_frame(&ticker->frame_cache, &key, frame);
            }
        }
    }
    compat_exception pending = compat_save_exception(); /* a finaliser may run */
    Py_XDECREF(module);
    Py_DECREF(globals);
    compat_restore_exception(pending);
    return frame;
}

/* Return a new reference; to fewer frames if another drain made the stack meanwhile. Other threads run between two
 * frames, and one that walks gc.get_objects() would read NULL in a tuple that is not full yet. */
static PyObject *convert_frames(ticker_state *ticker, const raw_stack *raw)
{
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list != NULL && i < raw->depth && raw->stack == NULL; i++) {
        append_item(&list, convert_frame(ticker, &raw->frames[i]));
    }
    PyObject *frames = list == NULL ? NULL : PyList_AsTuple(list);
    Py_XDECREF(list);
    return frames;
}

/* A service's own reference may be the last one to the globals of code that runs once: a lock or a file in them is to
 * be released when it says so, not at the thread's next capture. */
static void release_globals(raw_stack *raw)
{
    for (size_t i = 0; i < raw->depth; i++) {
        Py_DECREF(raw->frames[i].globals);
    }
}

/* The caller holds `raw`. The stack is made at most once. */
PyObject *convert_stack(ticker_state *ticker, raw_stack *raw)
{
    if (raw->stack != NULL) {
        return raw->stack;
    }
    if (ticker->arguments.make_stack == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "the ticker has ended");
        return NULL;
    }
    PyObject *frames = convert_frames(ticker, raw);
    if (frames == NULL) {
        return NULL;
    }
    PyObject *truncated = raw->truncated ? Py_True : Py_False;
    PyObject *stack = PyObject_CallFunctionObjArgs(ticker->arguments.make_stack, frames, truncated, NULL);
    Py_DECREF(frames);
    if (stack != NULL && raw->stack == NULL) {
        raw->stack = stack; /* before finalisers run */
        release_globals(raw);
    }
    else { /* or another drain made it meanwhile, and others use that one */
        Py_XDECREF(stack);
    }
    return stack == NULL ? NULL : raw->stack;
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

bool append_item(PyObject **list, PyObject *item)
{
    bool appended = item != NULL && PyList_Append(*list, item) == 0;
    compat_exception pending = compat_save_exception(); /* finalisers run below */
    Py_XDECREF(item);
    if (!appended) {
        Py_CLEAR(*list);
    }
    compat_restore_exception(pending);
    return appended;
}

PyObject *new_ref_or_none(PyObject *object)
{
    return Py_NewRef(object != NULL ? object : Py_None);
}

PyObject *convert_thread(ticker_state *ticker, const module_state *module, const raw_thread *raw)
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
    return make_tuple(module->types[RAW_THREAD], items, THREAD_FIELD_COUNT);
}

PyObject *convert_snapshot(PyObject *owner, ticker_state *ticker, const module_state *module, raw_snapshot *raw)
{
    PyObject *threads = raw_threads_new(module->raw_threads_type, owner, ticker, raw);
    if (threads == NULL) {
        return NULL;
    }
    PyObject *items[] = {
        [SNAPSHOT_time_ns] = PyLong_FromLongLong(raw->time_ns),
        [SNAPSHOT_latency_ns] = PyLong_FromLongLong(raw->latency_ns),
        [SNAPSHOT_threads] = threads,
        [SNAPSHOT_period_ns] = PyLong_FromLongLong(raw->period_ns),
        [SNAPSHOT_is_focused] = PyBool_FromLong(raw->is_focused),
        [SNAPSHOT_since_previous_ns] = PyLong_FromLongLong(raw->since_previous_ns),
        [SNAPSHOT_process_cpu_ns] = PyLong_FromLongLong(raw->process_cpu_ns),
        [SNAPSHOT_instant_ns] = PyLong_FromLongLong(raw->instant_ns),
        [SNAPSHOT_gil_wait_ns] = PyLong_FromLongLong(raw->gil_wait_ns),
        [SNAPSHOT_lost_count] = PyLong_FromSize_t(raw->lost_count),
        [SNAPSHOT_quiet_count] = PyLong_FromLongLong(raw->quiet_count),
    };
    return make_tuple(module->types[RAW_SNAPSHOT], items, SNAPSHOT_FIELD_COUNT);
}
