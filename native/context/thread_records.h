/* The memory that host profilers read: one record per thread, and the two thread-local pointers to it. Plain
 * C.
 *
 * Access rules. A thread makes, writes and points to its own record while it holds the interpreter's lock
 * (the GIL). Other threads touch it only with the GIL *and* the registry's mutex. A thread that ends releases
 * its record with the mutex alone. So the owner needs no mutex to publish. No thread waits for the GIL while
 * it holds the mutex. docs/abi.md has the layouts.
 */
#ifndef SPLUNK_PROFILER_CONTEXT_THREAD_RECORDS_H
#define SPLUNK_PROFILER_CONTEXT_THREAD_RECORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HIDDEN __attribute__((visibility("hidden")))

/* Code that runs at every switch is placed together, apart from rare code. Between two switches the
 * application's code evicts it from the processor's caches, so each cache line costs. */
#define HOT  __attribute__((hot))
#define COLD __attribute__((cold, noinline))

/* The parts of a label that readers keep; they read the first ten labels. */
#define LABEL_KEY_BYTES   25
#define LABEL_VALUE_BYTES 53
#define TRACE_LABELS      3 /* trace_id, span_id, local_root_span_id */
#define MAX_USER_LABELS   (10 - TRACE_LABELS)

#define TRACE_ID_BYTES 16
#define SPAN_ID_BYTES  8

/* The published form of one span, encoded once. `serial` belongs to this span alone and is never 0; unlike an
 * address it is not reused. */
typedef struct {
    uint64_t serial;
    uint8_t trace_flags;
    uint8_t trace_id[TRACE_ID_BYTES]; /* big-endian, as W3C writes them */
    uint8_t span_id[SPAN_ID_BYTES];
    uint8_t local_root_id[SPAN_ID_BYTES];
    char trace_hex[2 * TRACE_ID_BYTES];
    char span_hex[2 * SPAN_ID_BYTES];
    char local_root_hex[2 * SPAN_ID_BYTES];
} encoded_span;

typedef struct {
    uint8_t key_length, value_length;
    char key[LABEL_KEY_BYTES];
    char value[LABEL_VALUE_BYTES];
} encoded_label;

/* The user's labels, encoded once; `serial` as above. */
typedef struct {
    uint64_t serial;
    const encoded_label *labels; /* borrowed */
    size_t count;
} encoded_labels;

typedef enum { ELASTIC, CUSTOM_LABELS, LIBRARY_KINDS } library_kind;

/* Returns the address of the calling thread's pointer of a library. */
typedef void **(*slot_accessor)(void);

typedef enum { SHOWN, UNCHANGED, NO_MEMORY } show_result;

/* Show this context in the calling thread from now on; NULL: no span, no labels. A thread that never had
 * either gets no record. */
HIDDEN show_result thread_records_show(const encoded_span *span, const encoded_labels *labels);

/* The trace and the local root of the span that a thread showed; `present` is false if there was none. */
typedef struct {
    bool present;
    uint8_t trace_id[TRACE_ID_BYTES];
    uint8_t local_root_id[SPAN_ID_BYTES];
} shown_root;

/* Show no span in the calling thread while code that may switch threads finds out its context. Return what
 * was shown before. */
HIDDEN shown_root thread_records_begin_update(void);
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
    bool is_resolved;
} expected_context;

/* Compare two expected_contexts by ident, for qsort and bsearch. */
HIDDEN int expected_context_compare(const void *left, const void *right);

/* Compare what threads show with what they should, and correct it. `threads` is sorted by ident, and all are
 * resolved. Threads without a record and those being updated are left alone. Hidden records are shown, and
 * not counted. Return the number of compared threads. */
HIDDEN size_t thread_records_repair(const expected_context *threads, size_t count, size_t *repaired);

HIDDEN size_t thread_records_count(void);

/* Register the handlers for the end of a thread and for a forked child. Later calls do nothing. Return 0, or
 * an errno. */
HIDDEN int thread_records_prepare_process(void);

/* In a forked child, keep only the calling thread's record. The fork handler calls it; further calls do
 * nothing. */
HIDDEN void thread_records_after_fork(void);

#endif
