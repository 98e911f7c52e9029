/* Tells whether the process can make more threads, for libraries that abort it if they cannot make theirs.
 *
 * The threads run no Python code and are joined. Threads of `_thread` take the GIL once more as they end, after all that
 * Python can wait for. gRPC holds the GIL while it makes its own threads, so those would still exist.
 */
#include "module_state.h"

#include <pthread.h>

enum { MAX_THREADS = 64 };

/* Wait until the caller has made all of them. */
static void *wait_at_gate(void *gate)
{
    (void)pthread_mutex_lock(gate);
    (void)pthread_mutex_unlock(gate);
    return NULL;
}

static bool make_and_end_threads(int count)
{
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    pthread_t threads[MAX_THREADS];
    int made = 0;
    (void)pthread_mutex_lock(&gate);
    while (made < count && pthread_create(&threads[made], NULL, wait_at_gate, &gate) == 0) {
        made++;
    }
    (void)pthread_mutex_unlock(&gate);
    for (int i = 0; i < made; i++) {
        (void)pthread_join(threads[i], NULL);
    }
    return made == count;
}

static PyObject *has_room_for_threads(PyObject *Py_UNUSED(module), PyObject *number)
{
    const long count = PyLong_AsLong(number);
    bool has_room;
    if (count == -1 && PyErr_Occurred() != NULL) {
        return NULL;
    }
    if (count < 0 || count > MAX_THREADS) {
        return PyErr_Format(PyExc_ValueError, "not a number from 0 to %d", MAX_THREADS);
    }
    Py_BEGIN_ALLOW_THREADS
    has_room = make_and_end_threads((int)count);
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(has_room);
}

PyMethodDef thread_room_methods[] = {
    {"has_room_for_threads", has_room_for_threads, METH_O,
     "has_room_for_threads($module, count, /)\n--\n\nReturn True if the process can make so many more threads now."},
    {NULL},
};
