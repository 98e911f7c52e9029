/* The receiver of a socket's datagrams (receiver.h): its thread, its buffer, and its ends. */
#include "receiver.h"

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    MAX_MESSAGE_BYTES = 64 * 1024, /* messages have 46, or 12 plus a host's name */
    FULL_BYTES = 64 * 1024,        /* a buffer with more bytes than this is full; there are two */
    MAX_MESSAGES = 1024,           /* in one of the two buffers, including those that were too long */
    /* A buffer that is not full has room for any message. */
    BUFFER_BYTES = FULL_BYTES + sizeof(message_length) + MAX_MESSAGE_BYTES,
    MAX_WAIT_S = 3600,
    CHECK_INTERVAL_MS = 1000, /* of whether the socket still exists */
    NS_PER_S = 1000000000,
};

static const double END_WAIT_S = 0.5;

typedef enum { IDLE, RECEIVING, ENDED } receiver_phase; /* IDLE: no thread receives yet */

struct receiver {
    atomic_int owners; /* its maker and the thread that receives; the last one frees it */
    int descriptor;    /* of the MessageSocket, which outlives the receiving */
    dev_t device;      /* with `inode`: identity of the descriptor's file at construction */
    ino_t inode;
    pid_t pid;
    pthread_mutex_t lock;   /* for the fields below */
    pthread_cond_t arrived; /* messages, `receiver_wake` or the end */
    pthread_cond_t emptied; /* room for messages, or the end */
    message_buffer filling;
    bool is_woken;
    receiver_phase phase;
    unsigned long long received, too_long;
    atomic_bool stopping;
};

typedef enum { MORE, EMPTY, FULL, BROKEN } read_result;

static bool is_same_socket(const receiver *self)
{
    struct stat found;
    return fstat(self->descriptor, &found) == 0 && found.st_dev == self->device && found.st_ino == self->inode;
}

/* Record a received message of this length; its bytes lie after the place of its prefix. */
static void append_message(receiver *self, size_t length)
{
    message_length prefix = (message_length)length;
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
static read_result receive_one(receiver *self)
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
    uint8_t *target = self->filling.bytes + self->filling.used + sizeof(message_length);
    /* With MSG_TRUNC the result is the whole length. */
    ssize_t length = recv(self->descriptor, target, MAX_MESSAGE_BYTES, MSG_DONTWAIT | MSG_TRUNC);
    if (length >= 0) {
        append_message(self, (size_t)length);
        return MORE;
    }
    return errno == EINTR ? MORE : errno == EAGAIN ? EMPTY : BROKEN;
}

/* Receive everything that is queued in the socket, as far as there is room. */
static read_result receive_queued(receiver *self)
{
    read_result last = MORE;
    while (last == MORE) {
        pthread_mutex_lock(&self->lock);
        last = receive_one(self);
        pthread_mutex_unlock(&self->lock);
    }
    return last;
}

static void wait_for_room(receiver *self)
{
    pthread_mutex_lock(&self->lock);
    while (self->filling.arrived > 0 && !atomic_load(&self->stopping)) {
        pthread_cond_wait(&self->emptied, &self->lock);
    }
    pthread_mutex_unlock(&self->lock);
}

/* Receive until `receiver_stop`, or until the socket no longer exists. Closing the descriptor does not end `poll`: during
 * `poll` the kernel keeps the socket, and senders reach it. And if the number is reused right before, this waits for
 * another file. */
static void receive_until_stopped(receiver *self)
{
    struct pollfd socket = {.fd = self->descriptor, .events = POLLIN | POLLRDHUP};
    while (!atomic_load(&self->stopping)) {
        if (!is_same_socket(self) || (poll(&socket, 1, CHECK_INTERVAL_MS) < 0 && errno != EINTR)) {
            return;
        }
        read_result last = receive_queued(self);
        if (last == FULL) {
            wait_for_room(self);
        }
        else if (last == BROKEN || (socket.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL))) {
            return;
        }
    }
}

static bool is_own_process(const receiver *self)
{
    return self->pid == getpid();
}

/* On Linux none of the calls can fail, and nothing needs to be destroyed. */
static void init_lock(receiver *self)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&self->lock, NULL);
    pthread_cond_init(&self->arrived, &attributes);
    pthread_cond_init(&self->emptied, NULL);
    pthread_condattr_destroy(&attributes);
}

receiver *receiver_new(int descriptor)
{
    struct stat found;
    if (fstat(descriptor, &found) != 0) {
        return NULL;
    }
    receiver *self = PyMem_RawCalloc(1, sizeof(receiver));
    if (self == NULL || (self->filling.bytes = PyMem_RawMalloc(BUFFER_BYTES)) == NULL) {
        PyMem_RawFree(self);
        errno = ENOMEM;
        return NULL;
    }
    self->owners = 1;
    self->descriptor = descriptor;
    self->device = found.st_dev;
    self->inode = found.st_ino;
    self->pid = getpid();
    init_lock(self);
    return self;
}

/* In a forked child the thread that receives is no owner. */
static void drop_reference(receiver *self)
{
    if (!is_own_process(self) || atomic_fetch_sub(&self->owners, 1) == 1) {
        PyMem_RawFree(self->filling.bytes);
        PyMem_RawFree(self);
    }
}

/* The body of the thread that receives. It inherits the signal mask of the thread that starts it. */
static void *receive(void *argument)
{
    receiver *self = argument;
    (void)pthread_setname_np(pthread_self(), "splunk-receiver");
    receive_until_stopped(self);
    pthread_mutex_lock(&self->lock);
    self->phase = ENDED;
    pthread_cond_broadcast(&self->arrived);
    pthread_mutex_unlock(&self->lock);
    drop_reference(self);
    return NULL;
}

/* Return when a wait of that many seconds is over: at most an hour, and none if it is NaN. */
static struct timespec end_of_wait(double seconds)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    seconds = !(seconds > 0) ? 0 : seconds > MAX_WAIT_S ? MAX_WAIT_S : seconds;
    long long until_ns = until.tv_nsec + (long long)(seconds * NS_PER_S);
    until.tv_sec += until_ns / NS_PER_S;
    until.tv_nsec = until_ns % NS_PER_S;
    return until;
}

static void wait_for_end(receiver *self)
{
    struct timespec until = end_of_wait(END_WAIT_S);
    pthread_mutex_lock(&self->lock);
    while (self->phase == RECEIVING && pthread_cond_timedwait(&self->arrived, &self->lock, &until) == 0) {
    }
    pthread_mutex_unlock(&self->lock);
}

int receiver_start(receiver *self)
{
    if (!is_own_process(self)) {
        return 0;
    }
    int error = 0;
    pthread_mutex_lock(&self->lock);
    if (self->phase == IDLE && !atomic_load(&self->stopping)) {
        pthread_t thread;
        atomic_fetch_add(&self->owners, 1);
        error = pthread_create(&thread, NULL, receive, self);
        if (error == 0) {
            (void)pthread_detach(thread);
            self->phase = RECEIVING;
        }
        else {
            atomic_fetch_sub(&self->owners, 1);
        }
    }
    pthread_mutex_unlock(&self->lock);
    return error;
}

bool receiver_has_message(receiver *self)
{
    struct pollfd socket = {.fd = self->descriptor, .events = POLLIN};
    return is_own_process(self) && !atomic_load(&self->stopping) && is_same_socket(self) && poll(&socket, 1, 0) > 0;
}

static void wait_for_messages(receiver *self, double seconds)
{
    struct timespec until = end_of_wait(seconds);
    pthread_mutex_lock(&self->lock);
    while (self->filling.arrived == 0 && !self->is_woken && self->phase != ENDED && !atomic_load(&self->stopping)) {
        if (pthread_cond_timedwait(&self->arrived, &self->lock, &until) != 0) {
            break;
        }
    }
    self->is_woken = false;
    pthread_mutex_unlock(&self->lock);
}

/* Take the gathered messages, and leave an empty buffer. */
static void swap_buffers(receiver *self, message_buffer *other)
{
    pthread_mutex_lock(&self->lock);
    message_buffer gathered = self->filling;
    self->filling = *other;
    *other = gathered;
    pthread_cond_signal(&self->emptied);
    pthread_mutex_unlock(&self->lock);
}

bool receiver_take(receiver *self, double seconds, message_buffer *taken)
{
    if (!is_own_process(self)) {
        return true;
    }
    taken->bytes = PyMem_RawMalloc(BUFFER_BYTES);
    if (taken->bytes == NULL) {
        return false;
    }
    wait_for_messages(self, seconds);
    (void)receive_queued(self); /* includes messages sent before that the thread has not read yet */
    swap_buffers(self, taken);
    return true;
}

void receiver_wake(receiver *self)
{
    if (is_own_process(self)) {
        pthread_mutex_lock(&self->lock);
        self->is_woken = true;
        pthread_cond_signal(&self->arrived);
        pthread_mutex_unlock(&self->lock);
    }
}

static void stop_receiving(receiver *self)
{
    pthread_mutex_lock(&self->lock);
    atomic_store(&self->stopping, true);
    pthread_cond_broadcast(&self->arrived);
    pthread_cond_broadcast(&self->emptied);
    pthread_mutex_unlock(&self->lock);
    if (is_same_socket(self)) {
        (void)shutdown(self->descriptor, SHUT_RDWR); /* ends poll */
    }
}

void receiver_stop(receiver *self)
{
    if (is_own_process(self)) {
        stop_receiving(self);
        wait_for_end(self);
    }
}

receiver_status receiver_get_status(receiver *self)
{
    receiver_status status = {false, false, false, 0, 0};
    if (is_own_process(self)) {
        pthread_mutex_lock(&self->lock);
        status.is_receiving = self->phase == RECEIVING;
        status.is_stopped = atomic_load(&self->stopping);
        status.is_lost = self->phase == ENDED && self->filling.arrived == 0 && !status.is_stopped;
        status.received = self->received;
        status.too_long = self->too_long;
        pthread_mutex_unlock(&self->lock);
    }
    return status;
}

void receiver_release(receiver *self)
{
    if (receiver_get_status(self).is_receiving) { /* else the descriptor may be the application's by now */
        stop_receiving(self);
    }
    drop_reference(self);
}
