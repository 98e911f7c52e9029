/* CPU times and priorities of threads, asked of the kernel without the GIL. */
#include "core.h"

#include <errno.h>
#include <sys/resource.h>
#include <sys/types.h>
#include <time.h>

typedef struct {
    pid_t native_id;
    int64_t cpu_ns;
    int nice;
} thread_clock;

/* The kernel numbers a thread's CPU clock by the thread's id; one of a thread that has ended is an error. */
static void read_clock(thread_clock *clock)
{
    struct timespec used;
    clock->cpu_ns = 0;
    clock->nice = 0;
    if (clock->native_id <= 0 || clock_gettime((clockid_t)((~(unsigned)clock->native_id << 3) | 6), &used) != 0) {
        return;
    }
    errno = 0;
    int nice = getpriority(PRIO_PROCESS, (id_t)clock->native_id);
    if (errno == 0) { /* else it ended just now */
        clock->cpu_ns = used.tv_sec * 1000000000LL + used.tv_nsec;
        clock->nice = nice;
    }
}

PyObject *thread_clocks(PyObject *Py_UNUSED(module), PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"native_ids", NULL};
    PyObject *argument, *made = NULL;
    thread_clock *clocks = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:thread_clocks", names, &argument)) {
        return NULL;
    }
    PyObject *native_ids = PySequence_Fast(argument, "native_ids must be a sequence of int");
    if (native_ids == NULL) {
        return NULL;
    }
    Py_ssize_t count = PySequence_Fast_GET_SIZE(native_ids);
    clocks = PyMem_New(thread_clock, (size_t)count + 1);
    if (clocks == NULL) {
        PyErr_NoMemory();
        goto error;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        int overflow;
        long id = PyLong_AsLongAndOverflow(PySequence_Fast_GET_ITEM(native_ids, i), &overflow);
        if (id == -1 && PyErr_Occurred()) {
            goto error;
        }
        clocks[i].native_id = overflow != 0 || id < 0 || id > INT32_MAX ? 0 : (pid_t)id;
    }
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < count; i++) {
        read_clock(&clocks[i]);
    }
    Py_END_ALLOW_THREADS
    made = PyList_New(count);
    for (Py_ssize_t i = 0; made != NULL && i < count; i++) {
        PyObject *pair = Py_BuildValue("(Li)", (long long)clocks[i].cpu_ns, clocks[i].nice);
        if (pair == NULL) {
            Py_CLEAR(made);
            break;
        }
        PyList_SET_ITEM(made, i, pair);
    }
error:
    PyMem_Free(clocks);
    Py_DECREF(native_ids);
    return made;
}
