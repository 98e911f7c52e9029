/* The memory that host profilers read: one record per thread, and the two thread-local pointers to it. Plain
 * C.
 *
 * Access rules. A thread makes, writes and points to its own record while it holds the interpreter's lock
 * (the GIL). Other threads touch it only with the GIL *and* the registry's mutex. A thread that ends releases
 * its record with the mutex alone. So the owner needs no mutex to publish. No thread waits for the GIL while
 * it holds the mutex. docs/host-profilers/abi.md has the layouts.
 */
#ifndef SPLUNK_PROFILER_CONTEXT_THREAD_RECORDS_H
#define SPLUNK_PROFILER_CONTEXT_THREAD_RECORDS_H

#include "record_buffer.h"

#include <stdbool.h>

typedef enum { ELASTIC, CUSTOM_LABELS, LIBRARY_KINDS } library_kind;

/* Returns the address of the calling thread's pointer of a library. */
typedef void **(*slot_accessor)(void);

/* The counters of publishing, which the tests look at; nothing else reads them. They begin with the results of
 * thread_records_show; FAILED: no memory. */
#define SWITCH_COUNTERS(X)                                                                                             \
    X(PUBLISHED, published) X(UNCHANGED, unchanged) X(FAILED, failed) X(CACHE_HITS, cache_hits) X(REPAIRED, repaired)
#define COUNTER_INDEX(index, name) index,
typedef enum { SWITCH_COUNTERS(COUNTER_INDEX) COUNTER_COUNT } switch_counter;

/* Show this context in the calling thread from now on; NULL: no span, no labels. A thread that never had
 * either gets no record. */
HIDDEN switch_counter thread_records_show(const encoded_span *span, const encoded_labels *labels);

/* Show no span in the calling thread while code that may switch threads finds out its context. Return what
 * was shown before. */
HIDDEN elastic_record thread_records_begin_update(void);
HIDDEN void thread_records_end_update(void);

/* The base address for offsets of static thread-local memory. */
HIDDEN intptr_t thread_records_thread_pointer(void);

/* Publish through this library from now on, if its pointers are in static thread-local memory (`is_static`).
 * Otherwise each thread starts at its next call of thread_records_show. The pointers of another library of
 * the kind are nulled. */
HIDDEN void thread_records_use_library(library_kind kind, slot_accessor accessor, bool is_static);

/* Null the pointers of all threads. Their memory is kept for later. */
HIDDEN void thread_records_hide_all(void);

/* The context that a thread should show. */
typedef struct {
    unsigned long ident; /* as pthread_self */
    const encoded_span *span;
    const encoded_labels *labels;
    bool is_resolved; /* span and labels are those to show */
} expected_context;

/* Compare two expected_contexts by ident, for qsort and bsearch. */
HIDDEN int expected_context_compare(const void *left, const void *right);

typedef struct {
    size_t compared, repaired;
} repair_result;

/* Compare what threads show with what they should, and correct it. `threads` is an array of objects of `size`
 * bytes that begin with an expected_context, sorted by ident. Threads without a record, unresolved ones and those
 * being updated are left alone. Hidden records are shown, and not counted. */
HIDDEN repair_result thread_records_repair(const void *threads, size_t count, size_t size);

HIDDEN size_t thread_records_count(void);

/* Register the handlers for the end of a thread and for a forked child. Later calls do nothing. Return 0, or
 * an errno. */
HIDDEN int thread_records_prepare_process(void);

/* In a forked child, keep only the calling thread's record. The fork handler calls it; further calls do
 * nothing. */
HIDDEN void thread_records_after_fork(void);

#endif
