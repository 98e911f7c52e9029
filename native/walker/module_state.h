/* The state of the extension splunk_profiler._walker: the named tuples of splunk_profiler/raw.py.
 *
 * Their fields are listed here in order. If those of raw.py differ, the import of the extension fails. */
#ifndef SPLUNK_PROFILER_WALKER_MODULE_STATE_H
#define SPLUNK_PROFILER_WALKER_MODULE_STATE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>

/* clang-format off */
#define RAW_THREAD_FIELDS(X) \
    X(THREAD, key) X(THREAD, ident) X(THREAD, native_id) X(THREAD, stack) X(THREAD, context) X(THREAD, labels) \
    X(THREAD, cpu_ns) X(THREAD, state) X(THREAD, python_thread)
#define RAW_SNAPSHOT_FIELDS(X) \
    X(SNAPSHOT, time_ns) X(SNAPSHOT, latency_ns) X(SNAPSHOT, threads) X(SNAPSHOT, period_ns) X(SNAPSHOT, is_focused) \
    X(SNAPSHOT, since_previous_ns) X(SNAPSHOT, process_cpu_ns) X(SNAPSHOT, instant_ns) X(SNAPSHOT, gil_wait_ns) \
    X(SNAPSHOT, lost_count) X(SNAPSHOT, quiet_count)
#define RECORDED_EVENT_FIELDS(X) \
    X(EVENT, time_ns) X(EVENT, thread) X(EVENT, event_count) X(EVENT, event_amount) X(EVENT, live_id) \
    X(EVENT, details)
#define TICKER_COUNTERS_FIELDS(X) \
    X(COUNTERS, due) X(COUNTERS, captured) X(COUNTERS, by_pending_call) X(COUNTERS, missed) \
    X(COUNTERS, gil_held_ns_sum) X(COUNTERS, allocations_lost) X(COUNTERS, live_evicted) X(COUNTERS, live_forgotten) \
    X(COUNTERS, hooks_refused) X(COUNTERS, event_ns_sum) X(COUNTERS, look_ns_sum)
/* clang-format on */

#define FIELD_INDEX(tuple, field) tuple##_##field,
#define FIELD_NAME(tuple, field)  " " #field

enum { RAW_THREAD_FIELDS(FIELD_INDEX) THREAD_FIELD_COUNT };
enum { RAW_SNAPSHOT_FIELDS(FIELD_INDEX) SNAPSHOT_FIELD_COUNT };
enum { RECORDED_EVENT_FIELDS(FIELD_INDEX) EVENT_FIELD_COUNT };
enum { TICKER_COUNTERS_FIELDS(FIELD_INDEX) COUNTERS_FIELD_COUNT };

enum { RAW_THREAD, RAW_SNAPSHOT, RECORDED_EVENT, TICKER_COUNTERS, TUPLE_TYPE_COUNT };

/* All are owned; NULL: not set yet. */
typedef struct {
    PyTypeObject *types[TUPLE_TYPE_COUNT];
    PyTypeObject *raw_threads_type;
    PyTypeObject *owned_socket_type;
} module_state;

/* The module of an instance. Never NULL: its type is made for a module, and has no subclasses. */
static inline const module_state *state_of(PyObject *self)
{
    return PyType_GetModuleState(Py_TYPE(self));
}

#pragma GCC visibility push(hidden)

extern PyType_Spec owned_socket_spec;
extern PyType_Spec ticker_spec;
extern PyType_Spec raw_threads_spec;
extern PyType_Spec snapshot_writer_spec;
extern PyMethodDef sigterm_methods[];
extern PyMethodDef spawn_methods[];
extern PyMethodDef thread_room_methods[];

/* owned_socket.c: the descriptor of an OwnedSocket; -1, with EBADF, if it is closed or another file's.
 * Async-signal-safe. */
int owned_socket_descriptor(const PyObject *owned_socket);

/* Steals the references, even if one is NULL: then it returns NULL, with the exception that is set. */
PyObject *make_tuple(PyTypeObject *type, PyObject **items, Py_ssize_t count);
/* Append `item`, whose reference it steals; NULL: an exception is set. On failure set the list to NULL. */
bool append_item(PyObject **list, PyObject *item);

#pragma GCC visibility pop

#endif
