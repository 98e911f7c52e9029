/* The messages of host profilers: datagrams of a socket, gathered without the GIL by a thread without a Python state.
 *
 * The kernel queues about eleven datagrams. Beside busy threads Python code waits tens of milliseconds for
 * the GIL, and the queue fills up sooner than that. Most processes never get a message, so by default the
 * thread is only made when `receiver_has_message` has found the first one. While the buffer is full nothing is read: senders
 * get EAGAIN, and the process spends neither memory nor CPU time. Many short messages also fill the buffer.
 *
 * A forked child cannot use its parent's receiver: the thread is missing, and the lock may be held for ever.
 * There all functions do nothing. None of them needs the GIL.
 */
#ifndef SPLUNK_PROFILER_CONTEXT_RECEIVER_H
#define SPLUNK_PROFILER_CONTEXT_RECEIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "record_buffer.h"

typedef struct receiver receiver;

typedef uint32_t message_length; /* precedes each message in a buffer */

typedef struct {
    uint8_t *bytes; /* owned; from PyMem_RawMalloc */
    size_t used;
    size_t bytes_read; /* includes messages that were too long: reading them takes time, too */
    unsigned arrived;  /* number of messages, including those that were too long */
} message_buffer;

typedef struct {
    bool is_receiving; /* the thread runs */
    bool is_lost;      /* the socket no longer exists, and all messages are taken */
    bool is_stopped;   /* by `receiver_stop`; the thread may still run */
    unsigned long long received, too_long;
} receiver_status;

/* Return a new receiver of the socket, which must stay open as long as it receives; NULL with errno set. */
HIDDEN receiver *receiver_new(int descriptor);
/* Stop the thread, and release the caller's reference. */
HIDDEN void receiver_release(receiver *self);
/* Start the thread, once. Return 0, or the error number if no thread can be made. */
HIDDEN int receiver_start(receiver *self);
/* Return true if a message waits in the socket, or somebody has shut it down. */
HIDDEN bool receiver_has_message(receiver *self);
/* Wait up to an hour for messages, `receiver_wake` or the end. Then move all messages that were sent before to
 * `taken`. Return false if there is no memory. */
HIDDEN bool receiver_take(receiver *self, double seconds, message_buffer *taken);
HIDDEN void receiver_wake(receiver *self);
/* Accept no more messages, and end the thread and `receiver_take`. Waits up to half a second for the thread. */
HIDDEN void receiver_stop(receiver *self);
HIDDEN receiver_status receiver_get_status(receiver *self);

#endif
