/* The fields of the named tuples in splunk_profiler/raw.py, in order. The module takes the types from there;
 * if their fields differ, its import fails. */
#ifndef SPLUNK_PROFILER_WALKER_RAW_FIELDS_H
#define SPLUNK_PROFILER_WALKER_RAW_FIELDS_H

/* clang-format off */
#define RAW_THREAD_FIELDS(X) \
    X(THREAD, key) X(THREAD, ident) X(THREAD, native_id) X(THREAD, stack) X(THREAD, context) X(THREAD, labels) \
    X(THREAD, cpu_ns) X(THREAD, state) X(THREAD, python_thread)
#define RAW_SNAPSHOT_FIELDS(X) \
    X(SNAPSHOT, time_ns) X(SNAPSHOT, latency_ns) X(SNAPSHOT, threads) X(SNAPSHOT, period_ns) X(SNAPSHOT, is_focused) \
    X(SNAPSHOT, since_previous_ns) X(SNAPSHOT, process_cpu_ns)
#define RAW_COLLECTION_FIELDS(X) \
    X(COLLECTION, time_ns) X(COLLECTION, thread) X(COLLECTION, generation) X(COLLECTION, collection_count) \
    X(COLLECTION, duration_ns)
#define TICKER_COUNTERS_FIELDS(X) \
    X(COUNTERS, due) X(COUNTERS, captured) X(COUNTERS, by_pending_call) X(COUNTERS, missed) X(COUNTERS, overwritten) \
    X(COUNTERS, latency_ns_max) X(COUNTERS, latency_ns_sum) X(COUNTERS, gil_held_ns_sum)
#define THREAD_CHANGE_FIELDS(X) X(CHANGE, thread) X(CHANGE, nice) X(CHANGE, idle_count) X(CHANGE, idle_ns)
#define IDLE_SPAN_FIELDS(X) X(IDLE_SPAN, key) X(IDLE_SPAN, idle_count) X(IDLE_SPAN, idle_ns)
/* clang-format on */

#define FIELD_INDEX(tuple, field) tuple##_##field,
#define FIELD_NAME(tuple, field)  " " #field

enum { RAW_THREAD_FIELDS(FIELD_INDEX) THREAD_FIELD_COUNT };
enum { RAW_SNAPSHOT_FIELDS(FIELD_INDEX) SNAPSHOT_FIELD_COUNT };
enum { RAW_COLLECTION_FIELDS(FIELD_INDEX) COLLECTION_FIELD_COUNT };
enum { TICKER_COUNTERS_FIELDS(FIELD_INDEX) COUNTERS_FIELD_COUNT };
enum { THREAD_CHANGE_FIELDS(FIELD_INDEX) CHANGE_FIELD_COUNT };
enum { IDLE_SPAN_FIELDS(FIELD_INDEX) IDLE_SPAN_FIELD_COUNT };

#endif
