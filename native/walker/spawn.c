/* Starts the exporter process so that it is not a child of this process: no SIGCHLD at its end, nothing for
 * os.wait to find.
 *
 * A child without an exit signal starts the exporter and ends; the exporter becomes a child of the nearest
 * reaper. Both run in our memory on stacks of their own (as after vfork), while the calling thread waits. No
 * page is copied, and no pthread_atfork handler runs. So another thread may hold any lock, and a child calls
 * only functions that take none. They share errno with the calling thread, too.
 */
#include "module_state.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef SYS_close_range
#define SYS_close_range 436 /* on every architecture */
#endif

#define INIT_PID 1

enum {
    LISTENER = 3, /* the exporter's descriptor of the socket */
    STACK_BYTES = 64 * 1024,
    LIST_BYTES = 1024,
    SIGNALS = 64,          /* of the kernel; glibc hides two */
    SIGNAL_MASK_BYTES = 8, /* size of the kernel's set of signals */
    FAILED_EXEC_STATUS = 127,
    RANDOM_BYTES = 16, /* of the kernel, at AT_RANDOM */
};

typedef struct {
    char **arguments; /* owned array of borrowed strings, like `environment` */
    char **environment;
    PyObject *owners[2]; /* owned: tuples of those strings */
    PyObject *listener;  /* owned OwnedSocket */
    char *stacks;        /* of the child and of the exporter; grow downwards on all architectures of CPython */
    int error;           /* 0, or errno of a step that failed, in one of the three processes */
} spawn_request;

/* Close all descriptors from `first`, as listed in /proc. Return false if there is no list. */
static bool close_listed(int first)
{
    char entries[LIST_BYTES] __attribute__((aligned(8)));
    int list = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    long length = -1;
    while (list >= 0 && (length = syscall(SYS_getdents64, list, entries, sizeof(entries))) > 0) {
        for (long at = 0; at < length;) {
            const struct dirent *entry = (const struct dirent *)(entries + at);
            int descriptor = 0;
            for (const char *digit = entry->d_name; *digit >= '0' && *digit <= '9'; digit++) {
                descriptor = descriptor * 10 + (*digit - '0');
            }
            if (descriptor >= first && descriptor != list) {
                (void)close(descriptor);
            }
            at += entry->d_reclen;
        }
    }
    if (list >= 0) {
        (void)close(list);
    }
    return length == 0;
}

/* Leave the socket as descriptor 3, and 0 to 2 on /dev/null. Needs no free descriptor. The table of descriptors is the
 * exporter's own: no thread of the host can give the socket's number to another file any more. */
static bool arrange_descriptors(const PyObject *listener)
{
    const int descriptor = owned_socket_descriptor(listener);
    bool has_listener = descriptor == LISTENER ? fcntl(LISTENER, F_SETFD, 0) == 0 : dup2(descriptor, LISTENER) >= 0;
    if (!has_listener) {
        return false;
    }
    for (int standard = 0; standard < LISTENER; standard++) {
        (void)close(standard);
    }
    /* System-call filters older than close_range (systemd 245) kill the process that calls it. Before Linux 5.16 that
     * also kills every process that shares its memory: the host. */
    if (!close_listed(LISTENER + 1) && syscall(SYS_close_range, LISTENER + 1, ~0U, 0) != 0) {
        return false;
    }
    return open("/dev/null", O_RDWR) == 0 && dup2(0, 1) == 1 && dup2(0, 2) == 2;
}

/* Signals are blocked until no handler of the host is left that could run here, in its memory. */
static void arrange_signals(void)
{
    /* glibc's sigaction takes a lock for SIGABRT; all layouts of the kernel's structure have zeros for SIG_DFL. */
    static const char default_action[64];
    const struct sigaction ignore = {.sa_handler = SIG_IGN};
    sigset_t none;
    for (int number = 1; number <= SIGNALS; number++) {
        (void)syscall(SYS_rt_sigaction, number, default_action, NULL, SIGNAL_MASK_BYTES);
    }
    (void)sigaction(SIGINT, &ignore, NULL);
    (void)sigaction(SIGTERM, &ignore, NULL);
    (void)sigaction(SIGHUP, &ignore, NULL);
    sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
}

/* Beside a real-time host the exporter would be one, too. Its nice value stays, and any other policy. */
static void leave_real_time(void)
{
    const struct sched_param usual = {.sched_priority = 0};
    const long policy = syscall(SYS_sched_getscheduler, 0); /* musl's functions do nothing */
    if (policy == SCHED_FIFO || policy == SCHED_RR) {
        (void)syscall(SYS_sched_setscheduler, 0, SCHED_OTHER, &usual);
    }
}

static int run_exporter(void *argument)
{
    spawn_request *request = argument;
    (void)setsid();
    leave_real_time();
    if (arrange_descriptors(request->listener)) {
        arrange_signals();
        (void)execve(request->arguments[0], request->arguments, request->environment);
    }
    request->error = errno;
    _exit(FAILED_EXEC_STATUS);
}

static int run_child(void *argument)
{
    spawn_request *request = argument;
    const int flags = CLONE_VM | CLONE_VFORK | SIGCHLD; /* the signal is for its reaper */
    if (clone(run_exporter, request->stacks + 2 * STACK_BYTES, flags, request) < 0) {
        request->error = errno;
    }
    _exit(0);
}

/* Return false if the child was killed: the exporter may still run in our memory. */
static bool start_and_reap(spawn_request *request)
{
    sigset_t all, before;
    int status = 0;
    sigfillset(&all);
    (void)pthread_sigmask(SIG_BLOCK, &all, &before);
    pid_t child = clone(run_child, request->stacks + STACK_BYTES, CLONE_VM | CLONE_VFORK, request);
    if (child < 0) {
        request->error = errno;
    }
    else {
        while (waitpid(child, &status, __WALL) < 0 && errno == EINTR) {
        }
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (WIFSIGNALED(status)) {
        request->error = ECANCELED;
    }
    return !WIFSIGNALED(status);
}

static void free_request(spawn_request *request)
{
    PyMem_RawFree(request->arguments);
    PyMem_RawFree(request->environment);
    Py_XDECREF(request->owners[0]);
    Py_XDECREF(request->owners[1]);
    Py_DECREF(request->listener);
    PyMem_RawFree(request);
}

/* Return an owned array, ended by NULL, of the strings in a list of bytes, and set `*owner` to a tuple that keeps them;
 * NULL: an exception is set. */
static char **make_array(PyObject *list, PyObject **owner)
{
    *owner = PyList_AsTuple(list);
    const Py_ssize_t count = *owner == NULL ? 0 : PyTuple_GET_SIZE(*owner);
    char **array = *owner == NULL ? NULL : PyMem_RawCalloc((size_t)count + 1, sizeof(*array));
    if (array == NULL && *owner != NULL) {
        PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; array != NULL && i < count; i++) {
        /* Without a place for the length, bytes with a zero in them are a ValueError. */
        if (PyBytes_AsStringAndSize(PyTuple_GET_ITEM(*owner, i), &array[i], NULL) != 0) {
            PyMem_RawFree(array);
            array = NULL;
        }
    }
    return array;
}

static spawn_request *make_request(const module_state *state, PyObject *args)
{
    PyObject *arguments, *environment, *listener;
    if (!PyArg_ParseTuple(args, "O!O!O!:spawn_exporter", &PyList_Type, &arguments, &PyList_Type, &environment,
                          state->owned_socket_type, &listener)) {
        return NULL;
    }
    if (PyList_GET_SIZE(arguments) == 0) {
        PyErr_SetString(PyExc_ValueError, "the first argument is the program");
        return NULL;
    }
    spawn_request *request = PyMem_RawCalloc(1, sizeof(*request));
    if (request == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    request->listener = Py_NewRef(listener);
    request->arguments = make_array(arguments, &request->owners[0]);
    request->environment = request->arguments == NULL ? NULL : make_array(environment, &request->owners[1]);
    if (request->environment == NULL) {
        free_request(request);
        return NULL;
    }
    return request;
}

/* The nearest reaper becomes the exporter's parent. Return true if that would be this process. */
static bool is_reaper(void)
{
    int is_subreaper = 0;
    (void)prctl(PR_GET_CHILD_SUBREAPER, &is_subreaper);
    return getpid() == INIT_PID || is_subreaper != 0;
}

static PyObject *adopts_orphans(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    return PyBool_FromLong(is_reaper());
}

static PyObject *execution_random(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    const char *bytes = (const char *)getauxval(AT_RANDOM);
    return PyBytes_FromStringAndSize(bytes, bytes == NULL ? 0 : RANDOM_BYTES);
}

static PyObject *spawn_exporter(PyObject *module, PyObject *args)
{
    if (is_reaper()) {
        PyObject *reason =
            Py_BuildValue("is", ECHILD, "this process adopts orphans, so the exporter would be its child");
        PyErr_SetObject(PyExc_OSError, reason);
        Py_XDECREF(reason);
        return NULL;
    }
    spawn_request *request = make_request(PyModule_GetState(module), args);
    if (request == NULL) {
        return NULL;
    }
    bool is_over = true;
    Py_BEGIN_ALLOW_THREADS
    request->stacks =
        mmap(NULL, 2 * STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (request->stacks == MAP_FAILED) {
        request->error = errno;
    }
    else if ((is_over = start_and_reap(request))) {
        (void)munmap(request->stacks, 2 * STACK_BYTES);
    }
    Py_END_ALLOW_THREADS
    const int error = request->error;
    if (is_over) { /* else leaked */
        free_request(request);
    }
    if (error != 0) {
        errno = error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    Py_RETURN_NONE;
}

/* A file in memory is mapped under the text as its name: the doctor reads the list of mappings, and nothing else of us. */
static PyObject *show_in_maps(PyObject *Py_UNUSED(module), PyObject *text)
{
    static void *shown = MAP_FAILED;
    const char *name = PyUnicode_AsUTF8(text);
    if (name == NULL) {
        return NULL;
    }
    const int file = *name == '\0' ? -1 : memfd_create(name, MFD_CLOEXEC);
    void *mapping = file < 0 ? MAP_FAILED : mmap(NULL, 1, PROT_NONE, MAP_PRIVATE, file, 0);
    const int error = errno;
    if (file >= 0) {
        (void)close(file);
    }
    if (mapping == MAP_FAILED && *name != '\0') {
        errno = error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    if (shown != MAP_FAILED) {
        (void)munmap(shown, 1);
    }
    shown = mapping;
    Py_RETURN_NONE;
}

PyMethodDef spawn_methods[] = {
    {"spawn_exporter", spawn_exporter, METH_VARARGS},
    {"adopts_orphans", adopts_orphans, METH_NOARGS},
    {"execution_random", execution_random, METH_NOARGS},
    {"show_in_maps", show_in_maps, METH_O},
    {NULL},
};
