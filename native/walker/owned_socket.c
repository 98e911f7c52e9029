/* The type splunk_profiler._walker.OwnedSocket: a local socket that is used only while its descriptor is still ours.
 *
 * Applications close descriptors that they do not know, as daemons do, and the numbers are used again for
 * their files and connections. So device and inode are noted as soon as there is a socket. Each call first
 * compares them, and the system call follows at once.
 *
 * All calls keep the GIL, so that no Python code begins to close the descriptor in between; a call of `os.close` that
 * is under way, or C code, may. They never wait, and take up to 40 us for the largest piece, 64 KiB. Without the GIL
 * they would wait for its return after each call: 5 ms for each busy thread, at each drain of the ring.
 */
#include "module_state.h"

#include "forks.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <structmember.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { BACKLOG = 512, MAX_PIECE = 65536 }; /* BACKLOG: hosts that connect while the exporter is loading */

typedef struct OwnedSocket {
    PyObject_HEAD
    int descriptor; /* -1: closed */
    dev_t device;
    ino_t inode;
    pid_t maker;
    struct ucred peer; /* as the kernel noted it when that side connected or listened; zeros for a listener */
    struct OwnedSocket *_Atomic next;
} OwnedSocket;

/* The sockets that are not closed. Changed with the GIL, by one store at a time: C code may fork meanwhile. */
static OwnedSocket *_Atomic first_socket;

/* Return false, with EBADF, if the descriptor is closed or another file's. */
static bool is_ours(const OwnedSocket *self)
{
    struct stat found;
    bool same = fstat(self->descriptor, &found) == 0 && found.st_dev == self->device && found.st_ino == self->inode;
    if (!same) {
        errno = EBADF;
    }
    return same;
}

int owned_socket_descriptor(const PyObject *owned_socket)
{
    const OwnedSocket *self = (const OwnedSocket *)owned_socket;
    return is_ours(self) ? self->descriptor : -1;
}

/* Return false if it is closed, or no longer ours. Async-signal-safe. */
static bool close_now(OwnedSocket *self)
{
    bool was_ours = is_ours(self) && close(self->descriptor) == 0;
    self->descriptor = -1;
    OwnedSocket *_Atomic *link = &first_socket;
    while (*link != NULL && *link != self) {
        link = &(*link)->next;
    }
    if (*link == self) {
        *link = self->next;
    }
    return was_ours;
}

void sockets_close(pid_t spared_maker)
{
    OwnedSocket *next;
    for (OwnedSocket *each = first_socket; each != NULL; each = next) {
        next = each->next;
        if (each->maker != spared_maker) {
            (void)close_now(each);
        }
    }
}

/* Return a new socket, or -1. It gets no number of a closed standard stream: what the application, or C code in it,
 * writes to standard error would be part of the stream. */
static int new_descriptor(void)
{
    const int made = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (made < 0 || made > STDERR_FILENO) {
        return made;
    }
    const int moved = fcntl(made, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    const int error = errno;
    (void)close(made);
    errno = error;
    return moved;
}

/* Note what the new socket is known by. A fork by C code between its system call and the last line here leaves the child
 * with a copy that nothing closes. */
static bool make_socket(OwnedSocket *self)
{
    struct stat made;
    self->maker = getpid();
    self->descriptor = new_descriptor();
    if (self->descriptor < 0 || fstat(self->descriptor, &made) != 0) {
        return false;
    }
    self->device = made.st_dev;
    self->inode = made.st_ino;
    self->next = first_socket;
    first_socket = self;
    return true;
}

static bool connect_now(OwnedSocket *self, const struct sockaddr *address, socklen_t length)
{
    socklen_t size = sizeof(self->peer);
    return connect(self->descriptor, address, length) == 0
           && getsockopt(self->descriptor, SOL_SOCKET, SO_PEERCRED, &self->peer, &size) == 0;
}

static bool listen_now(OwnedSocket *self, const struct sockaddr *address, socklen_t length)
{
    return bind(self->descriptor, address, length) == 0 && listen(self->descriptor, BACKLOG) == 0;
}

static PyObject *open_socket(PyTypeObject *type, PyObject *name,
                             bool (*begin)(OwnedSocket *, const struct sockaddr *, socklen_t))
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char *text;
    Py_ssize_t length;
    if (PyBytes_AsStringAndSize(name, &text, &length) != 0) {
        return NULL;
    }
    if ((size_t)length > sizeof(address.sun_path)) {
        PyErr_SetString(PyExc_ValueError, "the name of the socket is too long");
        return NULL;
    }
    memcpy(address.sun_path, text, (size_t)length);
    OwnedSocket *self = (OwnedSocket *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    if (!make_socket(self)
        || !begin(self, (struct sockaddr *)&address, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length))) {
        (void)PyErr_SetFromErrno(PyExc_OSError);
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static PyObject *owned_socket_connect(PyTypeObject *type, PyObject *name)
{
    return open_socket(type, name, connect_now);
}

static PyObject *owned_socket_listen(PyTypeObject *type, PyObject *name)
{
    return open_socket(type, name, listen_now);
}

/* Call `function` with the descriptor and a buffer, or the first piece of it. Return its result, 0 if it would block, or
 * NULL with the exception of its errno. */
static PyObject *transfer(const OwnedSocket *self, PyObject *data, int flags, ssize_t (*function)(int, void *, size_t))
{
    Py_buffer buffer;
    if (PyObject_GetBuffer(data, &buffer, flags) != 0) {
        return NULL;
    }
    size_t size = buffer.len < MAX_PIECE ? (size_t)buffer.len : MAX_PIECE;
    ssize_t count = is_ours(self) ? function(self->descriptor, buffer.buf, size) : -1;
    int error = errno;
    PyBuffer_Release(&buffer);
    errno = error;
    if (count < 0 && errno != EAGAIN && errno != EINTR) {
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    return PyLong_FromSsize_t(count < 0 ? 0 : count);
}

static ssize_t send_now(int descriptor, void *data, size_t size)
{
    return send(descriptor, data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static ssize_t receive_now(int descriptor, void *target, size_t size)
{
    ssize_t count = recv(descriptor, target, size, MSG_DONTWAIT);
    if (count == 0) {
        errno = EPIPE; /* the other side has ended */
    }
    return count == 0 ? -1 : count;
}

static PyObject *owned_socket_send(OwnedSocket *self, PyObject *data)
{
    return transfer(self, data, PyBUF_SIMPLE, send_now);
}

static PyObject *owned_socket_receive(OwnedSocket *self, PyObject *target)
{
    return transfer(self, target, PyBUF_WRITABLE, receive_now);
}

static PyObject *owned_socket_shutdown(OwnedSocket *self, PyObject *Py_UNUSED(ignored))
{
    return PyBool_FromLong(is_ours(self) && shutdown(self->descriptor, SHUT_WR) == 0);
}

static PyObject *owned_socket_close(OwnedSocket *self, PyObject *Py_UNUSED(ignored))
{
    return PyBool_FromLong(close_now(self));
}

static void owned_socket_dealloc(OwnedSocket *self)
{
    PyTypeObject *type = Py_TYPE(self);
    (void)close_now(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef owned_socket_methods[] = {
    {"connect", (PyCFunction)owned_socket_connect, METH_O | METH_CLASS},
    {"listen", (PyCFunction)owned_socket_listen, METH_O | METH_CLASS},
    {"send", (PyCFunction)owned_socket_send, METH_O},
    {"receive", (PyCFunction)owned_socket_receive, METH_O},
    {"shutdown", (PyCFunction)owned_socket_shutdown, METH_NOARGS},
    {"close", (PyCFunction)owned_socket_close, METH_NOARGS},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef owned_socket_members[] = {
    {"descriptor", T_INT, offsetof(OwnedSocket, descriptor), READONLY, NULL},
    {"peer_pid", T_INT, offsetof(OwnedSocket, peer.pid), READONLY, NULL},
    {"peer_uid", T_UINT, offsetof(OwnedSocket, peer.uid), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot owned_socket_slots[] = {
    {Py_tp_doc, "A local stream socket that is left alone once its descriptor is another file's."},
    {Py_tp_dealloc, owned_socket_dealloc},
    {Py_tp_methods, owned_socket_methods},
    {Py_tp_members, owned_socket_members},
    {0, NULL},
};

PyType_Spec owned_socket_spec = {
    .name = "splunk_profiler._walker.OwnedSocket",
    .basicsize = sizeof(OwnedSocket),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = owned_socket_slots,
};
