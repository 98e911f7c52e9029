/* CPU times and priorities of threads, asked of the kernel without the GIL. */
#include "core.h"

#include <errno.h>
#include <sys/resource.h>
#include <sys/types.h>
#include <time.h>

static int64_t clock_or_zero(clockid_t clock)
{
    struct timespec used;
    return clock_gettime(clock, &used) == 0 ? used.tv_sec * 1000000000LL + used.tv_nsec : 0;
}

int64_t process_cpu_ns(void)
{
    return clock_or_zero(CLOCK_PROCESS_CPUTIME_ID);
}

/* The kernel numbers a thread's CPU clock by the thread's id; one of a thread that has ended is an error. */
void thread_clock_read(thread_clock *clock, bool with_priority)
{
    clock->nice = 0;
    clock->cpu_ns = clock->native_id <= 0 ? 0 : clock_or_zero((clockid_t)((~(unsigned)clock->native_id << 3) | 6));
    if (!with_priority || clock->cpu_ns == 0) {
        return;
    }
    errno = 0;
    int nice = getpriority(PRIO_PROCESS, (id_t)clock->native_id);
    if (errno == 0) {
        clock->nice = nice;
    }
    else { /* it ended just now */
        clock->cpu_ns = 0;
    }
}

bool thread_clock_take(thread_clock *clock, PyObject *native_id)
{
    int overflow;
    long id = PyLong_AsLongAndOverflow(native_id, &overflow);
    clock->native_id = overflow != 0 || id < 0 || id > INT32_MAX ? 0 : (pid_t)id;
    return id != -1 || !PyErr_Occurred();
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
        if (!thread_clock_take(&clocks[i], PySequence_Fast_GET_ITEM(native_ids, i))) {
            goto error;
        }
    }
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < count; i++) {
        thread_clock_read(&clocks[i], true);
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
