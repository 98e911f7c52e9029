/* The type SocketReader: the messages of a socket (receiver.h) for Python. */
#include "publisher.h"
#include "receiver.h"

#include <errno.h>
#include <string.h>

typedef struct {
    PyObject_HEAD
    receiver *receiver; /* one reference */
} SocketReader;

static PyObject *none_or_error(int error)
{
    if (error != 0) {
        errno = error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    Py_RETURN_NONE;
}

static PyObject *socket_reader_start(SocketReader *self, PyObject *Py_UNUSED(unused))
{
    return none_or_error(receiver_start(self->receiver));
}

static PyObject *unpack_messages(const message_buffer *gathered)
{
    PyObject *messages = PyList_New(0);
    for (size_t at = 0; messages != NULL && at < gathered->used;) {
        message_length length;
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
    message_buffer taken = {NULL, 0, 0, 0};
    bool is_done;
    Py_BEGIN_ALLOW_THREADS
    is_done = receiver_take(self->receiver, seconds, &taken);
    Py_END_ALLOW_THREADS
    PyObject *messages = is_done ? unpack_messages(&taken) : PyErr_NoMemory();
    PyMem_RawFree(taken.bytes);
    return messages;
}

static PyObject *socket_reader_wake(SocketReader *self, PyObject *Py_UNUSED(unused))
{
    receiver_wake(self->receiver);
    Py_RETURN_NONE;
}

static PyObject *socket_reader_stop(SocketReader *self, PyObject *Py_UNUSED(unused))
{
    Py_BEGIN_ALLOW_THREADS
    receiver_stop(self->receiver);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *socket_reader_counts(SocketReader *self, PyObject *Py_UNUSED(unused))
{
    receiver_status status = receiver_get_status(self->receiver);
    return Py_BuildValue("KK", status.received, status.too_long);
}

static PyObject *socket_reader_has_message(SocketReader *self, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(receiver_has_message(self->receiver));
}

static PyObject *socket_reader_is_receiving(SocketReader *self, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(receiver_get_status(self->receiver).is_receiving);
}

static PyObject *socket_reader_is_lost(SocketReader *self, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(receiver_get_status(self->receiver).is_lost);
}

static PyObject *socket_reader_is_stopped(SocketReader *self, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(receiver_get_status(self->receiver).is_stopped);
}

static PyObject *socket_reader_tp_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"descriptor", NULL};
    int descriptor;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "i:SocketReader", names, &descriptor)) {
        return NULL;
    }
    SocketReader *self = (SocketReader *)type->tp_alloc(type, 0);
    if (self != NULL && (self->receiver = receiver_new(descriptor)) == NULL) {
        (void)PyErr_SetFromErrno(PyExc_OSError);
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static void socket_reader_dealloc(SocketReader *self)
{
    PyTypeObject *type = Py_TYPE(self);
    if (self->receiver != NULL) {
        receiver_release(self->receiver);
    }
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

static PyMethodDef socket_reader_methods[] = {
    {"start", (PyCFunction)socket_reader_start, METH_NOARGS},   {"take", (PyCFunction)socket_reader_take, METH_O},
    {"wake", (PyCFunction)socket_reader_wake, METH_NOARGS},     {"stop", (PyCFunction)socket_reader_stop, METH_NOARGS},
    {"counts", (PyCFunction)socket_reader_counts, METH_NOARGS}, {NULL},
};

static PyGetSetDef socket_reader_attributes[] = {
    {"has_message", (getter)socket_reader_has_message, NULL, "True if a message waits in the socket.", NULL},
    {"is_receiving", (getter)socket_reader_is_receiving, NULL, "True while the thread receives.", NULL},
    {"is_lost", (getter)socket_reader_is_lost, NULL, "True if the socket was closed, and all is taken.", NULL},
    {"is_stopped", (getter)socket_reader_is_stopped, NULL, "True from `stop` on.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot socket_reader_slots[] = {
    {Py_tp_doc, "Gathers what arrives at a datagram socket, without the GIL."},
    {Py_tp_new, socket_reader_tp_new},
    {Py_tp_dealloc, socket_reader_dealloc},
    {Py_tp_methods, socket_reader_methods},
    {Py_tp_getset, socket_reader_attributes},
    {0, NULL},
};

PyType_Spec socket_reader_spec = {
    .name = "splunk_profiler._context.SocketReader",
    .basicsize = sizeof(SocketReader),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = socket_reader_slots,
};
