/* Notices the collector's work: who calls `collections_note` is the collector, on the thread that it works on.
 *
 * A program may have thousands of collections a second. So of each generation one in a while is kept, with the stack of
 * its thread, and says how many there were since the one before and how long they took. The collector calls us between
 * its "begun" and its "over", so that none begins in here, and what runs then runs no Python code.
 */
#include "py_compat.h"

#include "state.h"

#include <stdlib.h>

#define RING_SIZE 256
#define FOR_LONG  64 /* places of the ring; else one that took long would be told of on another thread, with the next */
#define LONG_NS   10000000LL

static bool ended(core *c)
{
    return atomic_load(&c->stopped) || atomic_load(&c->closed);
}

static void keep(core *c, int generation, int64_t now)
{
    uncounted_collections *uncounted = &c->uncounted[generation];
    raw_collection kept = {
        .time_ns = time_of_day_ns(),
        .generation = generation,
        .count = uncounted->count,
        .duration_ns = uncounted->duration_ns,
    };
    if (c->collections == NULL) {
        c->collections = malloc(RING_SIZE * sizeof(raw_collection));
    }
    if (c->collections == NULL || !capture_calling_thread(c, &kept.thread)) {
        return; /* the next one will stand for it */
    }
    c->collections[(c->collections_first + c->collections_ready++) % RING_SIZE] = kept;
    *uncounted = (uncounted_collections){.kept_ns = now};
}

static void note_end(core *c, long generation)
{
    int64_t began = c->collection_began_ns;
    c->collection_began_ns = 0;
    if (began == 0 || generation < 0 || generation >= GENERATIONS || ended(c)) {
        return;
    }
    int64_t now = monotonic_ns();
    uncounted_collections *uncounted = &c->uncounted[generation];
    uncounted->count++;
    uncounted->duration_ns += now - began;
    size_t room = now - began < LONG_NS ? RING_SIZE - FOR_LONG : RING_SIZE;
    if (c->collections_ready < room && now - uncounted->kept_ns >= c->collection_distance_ns) {
        keep(c, (int)generation, now);
    }
}

PyObject *collections_note(core *c, PyObject *phase, PyObject *info)
{
    if (PyUnicode_CompareWithASCIIString(phase, "start") == 0) {
        c->collection_began_ns = monotonic_ns();
    }
    else if (c->generation_key != NULL) {
        PyObject *number = PyDict_GetItemWithError(info, c->generation_key); /* borrowed */
        long generation = number == NULL ? -1 : PyLong_AsLong(number);
        if (PyErr_Occurred()) {
            return NULL;
        }
        note_end(c, generation);
    }
    Py_RETURN_NONE;
}

bool collections_take(core *c, raw_collection *taken)
{
    if (c->collections_ready == 0) {
        return false;
    }
    *taken = c->collections[c->collections_first];
    c->collections_first = (c->collections_first + 1) % RING_SIZE;
    c->collections_ready--;
    return true;
}

int collections_traverse(core *c, visitproc visit, void *arg)
{
    for (size_t i = 0; i < c->collections_ready; i++) {
        const raw_collection *kept = &c->collections[(c->collections_first + i) % RING_SIZE];
        Py_VISIT(kept->thread.context);
        Py_VISIT(kept->thread.labels);
        Py_VISIT(kept->thread.object);
    }
    return 0;
}

/* New reference. */
static PyObject *convert_collection(core *c, const value_types *types, const raw_collection *raw)
{
    PyObject *made = NULL, *time_ns = NULL, *generation = NULL, *count = NULL, *duration_ns = NULL;
    PyObject *thread = convert_thread(c, types, &raw->thread);
    if (thread == NULL) {
        goto error;
    }
    time_ns = PyLong_FromLongLong(raw->time_ns);
    generation = PyLong_FromLong(raw->generation);
    count = PyLong_FromUnsignedLongLong(raw->count);
    duration_ns = PyLong_FromLongLong(raw->duration_ns);
    if (time_ns == NULL || generation == NULL || count == NULL || duration_ns == NULL) {
        goto error;
    }
    made = compat_new_tuple(types->collection, 5);
    if (made == NULL) {
        goto error;
    }
    PyTuple_SET_ITEM(made, 0, Py_NewRef(time_ns));
    PyTuple_SET_ITEM(made, 1, Py_NewRef(thread));
    PyTuple_SET_ITEM(made, 2, Py_NewRef(generation));
    PyTuple_SET_ITEM(made, 3, Py_NewRef(count));
    PyTuple_SET_ITEM(made, 4, Py_NewRef(duration_ns));
error:
    Py_XDECREF(thread);
    Py_XDECREF(time_ns);
    Py_XDECREF(generation);
    Py_XDECREF(count);
    Py_XDECREF(duration_ns);
    return made;
}

PyObject *collections_drain(core *c, const value_types *types)
{
    raw_collection taken;
    PyObject *type, *value, *traceback; /* an error of ours, while finalisers may run */
    core_release_dead(c);
    PyObject *drained = PyList_New(0);
    /* Others may come meanwhile: they are for the next drain. */
    for (size_t left = c->collections_ready; drained != NULL && left > 0 && collections_take(c, &taken); left--) {
        PyObject *made = convert_collection(c, types, &taken);
        bool failed = made == NULL || PyList_Append(drained, made) != 0;
        PyErr_Fetch(&type, &value, &traceback);
        if (failed) {
            Py_CLEAR(drained);
        }
        Py_XDECREF(made);
        thread_release(c, &taken.thread);
        PyErr_Restore(type, value, traceback);
    }
    PyErr_Fetch(&type, &value, &traceback);
    core_release_dead(c);
    PyErr_Restore(type, value, traceback);
    return drained;
}
