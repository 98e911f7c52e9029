/* Reads, writes, shuts down and closes a socket only while its descriptor is still ours.
 *
 * Applications close descriptors that they do not know, as daemons do, and the numbers are used again for
 * their files and connections. So each call first compares device and inode, and the system call follows at
 * once.
 *
 * Reading and writing keep the GIL. They never wait, and take up to 40 us for the largest piece, 64 KiB. Without
 * it they would wait for its return after each call: 5 ms for each busy thread, at each drain of the ring.
 */
#include "module_state.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct {
    int descriptor;
    unsigned long long device, inode;
} owned_socket;

#define IDENTITY_FORMAT "iKK"

/* Return false, with EBADF, if the descriptor is closed or another file's. */
static bool is_ours(const owned_socket *owned)
{
    struct stat found;
    bool same = fstat(owned->descriptor, &found) == 0 && found.st_dev == owned->device && found.st_ino == owned->inode;
    if (!same) {
        errno = EBADF;
    }
    return same;
}

#define MAX_PIECE 65536

/* Call `function` with the descriptor and a buffer, or the first piece of it. Return its result, 0 if it would block, or
 * NULL with the exception of its errno. `format` is that of the arguments: the identity and the buffer. */
static PyObject *transfer(PyObject *args, const char *format, ssize_t (*function)(int, void *, size_t))
{
    owned_socket owned;
    Py_buffer buffer;
    if (!PyArg_ParseTuple(args, format, &owned.descriptor, &owned.device, &owned.inode, &buffer)) {
        return NULL;
    }
    size_t size = buffer.len < MAX_PIECE ? (size_t)buffer.len : MAX_PIECE;
    ssize_t count = is_ours(&owned) ? function(owned.descriptor, buffer.buf, size) : -1;
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

static PyObject *socket_send(PyObject *Py_UNUSED(module), PyObject *args)
{
    return transfer(args, IDENTITY_FORMAT "y*:socket_send", send_now);
}

static PyObject *socket_receive(PyObject *Py_UNUSED(module), PyObject *args)
{
    return transfer(args, IDENTITY_FORMAT "w*:socket_receive", receive_now);
}

static PyObject *call_if_ours(PyObject *args, int (*function)(int))
{
    owned_socket owned;
    if (!PyArg_ParseTuple(args, IDENTITY_FORMAT, &owned.descriptor, &owned.device, &owned.inode)) {
        return NULL;
    }
    int result;
    Py_BEGIN_ALLOW_THREADS
    result = is_ours(&owned) ? function(owned.descriptor) : -1;
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(result == 0);
}

static int shut_down_writing(int descriptor)
{
    return shutdown(descriptor, SHUT_WR);
}

static PyObject *socket_shutdown(PyObject *Py_UNUSED(module), PyObject *args)
{
    return call_if_ours(args, shut_down_writing);
}

static PyObject *socket_close(PyObject *Py_UNUSED(module), PyObject *args)
{
    return call_if_ours(args, close);
}

PyMethodDef socket_methods[] = {
    {"socket_send", socket_send, METH_VARARGS,
     "socket_send($module, descriptor, device, inode, data, /)\n--\n\nWrite to a socket that is still ours."},
    {"socket_receive", socket_receive, METH_VARARGS,
     "socket_receive($module, descriptor, device, inode, target, /)\n--\n\nRead from a socket that is still ours."},
    {"socket_shutdown", socket_shutdown, METH_VARARGS,
     "socket_shutdown($module, descriptor, device, inode, /)\n--\n\nShut down writing to a socket that is still ours."},
    {"socket_close", socket_close, METH_VARARGS,
     "socket_close($module, descriptor, device, inode, /)\n--\n\nClose a socket that is still ours."},
    {NULL},
};
