/* The type SocketReader: empties the socket of host profilers as fast as they fill it, without the GIL.
 *
 * The kernel queues about eleven datagrams. Beside busy threads Python code waits tens of milliseconds for
 * the GIL, and the queue fills up sooner than that. So `run` gathers messages in a buffer. `take` empties the
 * buffer and the socket, so it misses no message that was sent before. While the buffer is full nothing is
 * read: senders get EAGAIN, and the process spends neither memory nor CPU time. Many short messages also fill
 * the buffer, so that no `take` returns too many.
 *
 * A forked child cannot use its parent's reader: the thread is missing, and the lock may be held for ever.
 */
#include "publisher.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef uint32_t length_prefix;

enum {
    MAX_MESSAGE_BYTES = 64 * 1024, /* messages have 46, or 12 plus a host's name */
    FULL_BYTES = 64 * 1024,        /* read into one of the two buffers; a buffer with more is full */
    MAX_MESSAGES = 1024,           /* in one of the two buffers, including those that were too long */
    /* A buffer that is not full has room for any message. */
    BUFFER_BYTES = FULL_BYTES + sizeof(length_prefix) + MAX_MESSAGE_BYTES,
    MAX_WAIT_S = 3600,
};

typedef struct {
    uint8_t *bytes; /* owned: messages, each after its length */
    size_t used;
    size_t bytes_read; /* includes messages that were too long: reading them takes time, too */
    unsigned arrived;  /* number of messages, including those that were too long */
} buffer;

typedef struct {
    PyObject_HEAD
    int descriptor; /* of the MessageSocket, which outlives `run` */
    dev_t device;   /* with `inode`: identity of the descriptor's file at construction */
    ino_t inode;
    pid_t pid;
    pthread_mutex_t lock;   /* for the fields below */
    pthread_cond_t arrived; /* for `take`: messages, `wake` or the end */
    pthread_cond_t emptied; /* for `run`: room, or the end */
    buffer filling;
    bool is_woken;
    unsigned long long received, too_long;
    atomic_bool stopping;
    /* Only one thread may run `run`: `append_message` relies on the room that was checked before. */
    atomic_bool running;
} SocketReader;

typedef enum { MORE, EMPTY, FULL, BROKEN } read_result;

static bool is_same_socket(const SocketReader *self)
{
    struct stat found;
    return fstat(self->descriptor, &found) == 0 && found.st_dev == self->device && found.st_ino == self->inode;
}

/* Record a received message of this length; its bytes lie after the place of its prefix. */
static void append_message(SocketReader *self, size_t length)
{
    length_prefix prefix = (length_prefix)length;
    self->received++;
    self->filling.bytes_read += sizeof(prefix) + length;
    if (self->filling.arrived++ == 0) {
        pthread_cond_signal(&self->arrived);
    }
    if (length > MAX_MESSAGE_BYTES) {
        self->too_long++;
        return;
    }
    memcpy(self->filling.bytes + self->filling.used, &prefix, sizeof(prefix));
    self->filling.used += sizeof(prefix) + length;
}

/* Needs the lock. */
static read_result receive_one(SocketReader *self)
{
    if (atomic_load(&self->stopping)) {
        return EMPTY;
    }
    if (self->filling.bytes_read > FULL_BYTES || self->filling.arrived >= MAX_MESSAGES) {
        return FULL;
    }
    /* The application may close descriptors that are not its own, as daemons do. The number may then belong
     * to another file, whose data must not be taken. So check it before each read, as late as possible. */
    if (!is_same_socket(self)) {
        return BROKEN;
    }
    uint8_t *target = self->filling.bytes + self->filling.used + sizeof(length_prefix);
    /* With MSG_TRUNC the result is the whole length. */
    ssize_t length = recv(self->descriptor, target, MAX_MESSAGE_BYTES, MSG_DONTWAIT | MSG_TRUNC);
    if (length >= 0) {
        append_message(self, (size_t)length);
        return MORE;
    }
    return errno == EINTR ? MORE : errno == EAGAIN ? EMPTY : BROKEN;
}

/* Receive everything that is queued in the socket, as far as there is room. */
static read_result receive_queued(SocketReader *self)
{
    read_result last = MORE;
    while (last == MORE) {
        pthread_mutex_lock(&self->lock);
        last = receive_one(self);
        pthread_mutex_unlock(&self->lock);
    }
    return last;
}

static void wait_for_room(SocketReader *self)
{
    pthread_mutex_lock(&self->lock);
    while (self->filling.arrived > 0 && !atomic_load(&self->stopping)) {
        pthread_cond_wait(&self->emptied, &self->lock);
    }
    pthread_mutex_unlock(&self->lock);
}

/* Read until `stop`, and return true; return false if the socket no longer exists.
 *
 * Closing the descriptor does not end `poll`: during `poll` the kernel keeps the socket, and senders reach
 * it. The next message shows it, perhaps one of our own (message_socket.py).
 */
static bool read_until_stopped(SocketReader *self)
{
    struct pollfd socket = {.fd = self->descriptor, .events = POLLIN | POLLRDHUP};
    while (!atomic_load(&self->stopping)) {
        if (!is_same_socket(self) || (poll(&socket, 1, -1) < 0 && errno != EINTR)) {
            return atomic_load(&self->stopping);
        }
        read_result last = receive_queued(self);
        if (last == FULL) {
            wait_for_room(self);
        }
        else if (last == BROKEN || (socket.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL))) {
            return atomic_load(&self->stopping);
        }
    }
    return true;
}

static bool is_own_process(const SocketReader *self)
{
    return self->pid == getpid();
}

static PyObject *socket_reader_run(SocketReader *self, PyObject *Py_UNUSED(unused))
{
    bool stopped = true;
    if (is_own_process(self)) {
        if (atomic_exchange(&self->running, true)) {
            PyErr_SetString(PyExc_RuntimeError, "another thread reads already");
            return NULL;
        }
        Py_BEGIN_ALLOW_THREADS
        stopped = read_until_stopped(self);
        Py_END_ALLOW_THREADS
        atomic_store(&self->running, false);
    }
    return PyBool_FromLong(stopped);
}

static void wait_for_messages(SocketReader *self, double seconds)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    seconds = !(seconds > 0) ? 0 : seconds > MAX_WAIT_S ? MAX_WAIT_S : seconds; /* NaN: 0 */
    long long until_ns = until.tv_nsec + (long long)(seconds * 1e9);
    until.tv_sec += until_ns / 1000000000;
    until.tv_nsec = until_ns % 1000000000;
    pthread_mutex_lock(&self->lock);
    while (self->filling.arrived == 0 && !self->is_woken && !atomic_load(&self->stopping)) {
        if (pthread_cond_timedwait(&self->arrived, &self->lock, &until) != 0) {
            break;
        }
    }
    self->is_woken = false;
    pthread_mutex_unlock(&self->lock);
}

/* Take the gathered messages, and leave an empty buffer. */
static void swap_buffers(SocketReader *self, buffer *other)
{
    pthread_mutex_lock(&self->lock);
    buffer gathered = self->filling;
    self->filling = *other;
    *other = gathered;
    pthread_cond_signal(&self->emptied);
    pthread_mutex_unlock(&self->lock);
}

static PyObject *unpack_messages(const buffer *gathered)
{
    PyObject *messages = PyList_New(0);
    for (size_t at = 0; messages != NULL && at < gathered->used;) {
        length_prefix length;
        memcpy(&length, gathered->bytes + at, sizeof(length));
        at += sizeof(length);
        PyObject *message = PyBytes_FromStringAndSize((const char *)gathered->bytes + at, length);
        if (message == NULL || PyList_Append(messages, message) != 0) {
            Py_CLEAR(messages);
        }
        Py_XDECREF(message);
        at += length;
    }
    return messages;
}

static PyObject *socket_reader_take(SocketReader *self, PyObject *timeout)
{
    double seconds = PyFloat_AsDouble(timeout);
    if (seconds == -1.0 && PyErr_Occurred()) {
        return NULL;
    }
    if (!is_own_process(self)) {
        return PyList_New(0);
    }
    buffer other = {.bytes = PyMem_RawMalloc(BUFFER_BYTES)};
    if (other.bytes == NULL) {
        return PyErr_NoMemory();
    }
    Py_BEGIN_ALLOW_THREADS
    wait_for_messages(self, seconds);
    (void)receive_queued(self); /* includes messages sent before that `run` has not read yet */
    swap_buffers(self, &other);
    Py_END_ALLOW_THREADS
    PyObject *messages = unpack_messages(&other);
    PyMem_RawFree(other.bytes);
    return messages;
}

static PyObject *socket_reader_wake(SocketReader *self, PyObject *Py_UNUSED(unused))
{
    if (is_own_process(self)) {
        pthread_mutex_lock(&self->lock);
        self->is_woken = true;
        pthread_cond_signal(&self->arrived);
        pthread_mutex_unlock(&self->lock);
    }
    Py_RETURN_NONE;
}

static PyObject *socket_reader_stop(SocketReader *self, PyObject *Py_UNUSED(unused))
{
    if (is_own_process(self)) {
        pthread_mutex_lock(&self->lock);
        atomic_store(&self->stopping, true);
        pthread_cond_broadcast(&self->arrived);
        pthread_cond_broadcast(&self->emptied);
        pthread_mutex_unlock(&self->lock);
        if (is_same_socket(self)) {
            (void)shutdown(self->descriptor, SHUT_RDWR); /* ends poll */
        }
    }
    Py_RETURN_NONE;
}

static PyObject *socket_reader_counts(SocketReader *self, PyObject *Py_UNUSED(unused))
{
    unsigned long long received = 0, too_long = 0;
    if (is_own_process(self)) {
        pthread_mutex_lock(&self->lock);
        received = self->received;
        too_long = self->too_long;
        pthread_mutex_unlock(&self->lock);
    }
    PyObject *module = PyType_GetModule(Py_TYPE(self));
    return module == NULL
               ? NULL
               : PyObject_CallFunction(module_type(module, RECEIVED_MESSAGES_TYPE), "KK", received, too_long);
}

/* On Linux none of the calls can fail, and nothing needs to be destroyed. */
static void init_lock(SocketReader *self)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&self->lock, NULL);
    pthread_cond_init(&self->arrived, &attributes);
    pthread_cond_init(&self->emptied, NULL);
    pthread_condattr_destroy(&attributes);
}

static PyObject *socket_reader_tp_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"descriptor", NULL};
    int descriptor;
    struct stat found;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "i:SocketReader", names, &descriptor)) {
        return NULL;
    }
    if (fstat(descriptor, &found) != 0) {
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    SocketReader *self = (SocketReader *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->descriptor = descriptor;
    self->device = found.st_dev;
    self->inode = found.st_ino;
    self->pid = getpid();
    init_lock(self);
    self->filling.bytes = PyMem_RawMalloc(BUFFER_BYTES);
    if (self->filling.bytes == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static void socket_reader_dealloc(SocketReader *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyMem_RawFree(self->filling.bytes);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

static PyMethodDef socket_reader_methods[] = {
    {"run", (PyCFunction)socket_reader_run, METH_NOARGS, "Read until `stop`."},
    {"take", (PyCFunction)socket_reader_take, METH_O, "Return the messages since the last take."},
    {"wake", (PyCFunction)socket_reader_wake, METH_NOARGS, "Make `take` return."},
    {"stop", (PyCFunction)socket_reader_stop, METH_NOARGS, "End `run` and `take`."},
    {"counts", (PyCFunction)socket_reader_counts, METH_NOARGS, "Return the numbers of messages."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot socket_reader_slots[] = {
    {Py_tp_doc, "Gathers what arrives at a datagram socket, without the GIL."},
    {Py_tp_new, socket_reader_tp_new},
    {Py_tp_dealloc, socket_reader_dealloc},
    {Py_tp_methods, socket_reader_methods},
    {0, NULL},
};

PyType_Spec socket_reader_spec = {
    .name = "splunk_profiler._context.SocketReader",
    .basicsize = sizeof(SocketReader),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = socket_reader_slots,
};
