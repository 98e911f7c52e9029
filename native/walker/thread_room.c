/* Tells whether the process can make more threads, for libraries that abort it if they cannot make theirs.
 *
 * The threads run no Python code and are joined. Threads of `_thread` take the GIL once more as they end, after all that
 * Python can wait for. gRPC holds the GIL while it makes its own threads, so those would still exist.
 */
#include "module_state.h"

#include <pthread.h>
#include <sys/mman.h>

enum { MAX_THREADS = 64, ARENA_MIB = 64 };

/* Wait until the caller has made all of them. */
static void *wait_at_gate(void *gate)
{
    (void)pthread_mutex_lock(gate);
    (void)pthread_mutex_unlock(gate);
    return NULL;
}

/* Return false if there is no address space (RLIMIT_AS) for the arenas that glibc reserves at the first allocation of each
 * thread. Threads that allocated here would leave them. */
static bool has_room_for_arenas(int count)
{
    const size_t size = ((size_t)count * ARENA_MIB) << 20;
    void *reserved = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return reserved != MAP_FAILED && munmap(reserved, size) == 0;
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
    const bool has_room = made == count && (count == 0 || has_room_for_arenas(count));
    (void)pthread_mutex_unlock(&gate);
    for (int i = 0; i < made; i++) {
        (void)pthread_join(threads[i], NULL);
    }
    return has_room;
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
